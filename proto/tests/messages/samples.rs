//! One value of each message, with every field set.

use std::time::Duration;
use wayside_domain::encoding::CodecSpec;
use wayside_domain::head::Standardisation;
use wayside_domain::ids::{
    Digest, Generation, JobId, ModelVersion, RoadsideId, RoundId, UpdateId, VehicleId,
};
use wayside_domain::job::{AggregationSpec, Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec};
use wayside_domain::time::Timestamp;
use wayside_domain::update::{RejectReason, Verdict};
use wayside_proto::convert::{
    Announcement, Contribution, Envelope, JobPlan, PartialAggregate, Presence, Receipt,
    RoundSummary, Update, UpdateMetrics, UpdatePart, resource,
};

pub(crate) fn job_id() -> JobId {
    JobId::new("lights").unwrap()
}

pub(crate) fn roadside() -> RoadsideId {
    RoadsideId::new("rsu-a").unwrap()
}

pub(crate) fn vehicle() -> VehicleId {
    VehicleId::new("veh-0001").unwrap()
}

pub(crate) fn job() -> JobSpec {
    JobSpec {
        job: job_id(),
        model: ModelSpec {
            backbone: Some(Digest([1; 32])),
            input_height: 96,
            input_width: 64,
            classes: ["red", "yellow", "green"].map(String::from).to_vec(),
            standardisation: Standardisation::new(vec![0.5, -1.25], vec![1.5, 0.25]).unwrap(),
            network: wayside_domain::network::Network::LinearHead,
            personal: Vec::new(),
        },
        training: TrainingSpec {
            lr: 0.05,
            momentum: 0.9,
            weight_decay: 1e-4,
            batch_size: 32,
            effort: Effort::LocalEpochs(2),
            proximal_mu: 0.01,
            class_weights: vec![0.5, 2.0, 1.0],
            seed: 7,
        },
        round: RoundSpec {
            fraction_train: 0.5,
            min_vehicles: 4,
            over_selection: 1.3,
            quorum: 0.6,
            round_timeout: Duration::from_secs(60),
            min_window: Duration::from_millis(500),
            edge_rounds: 3,
            max_examples: 10_000,
            max_norm: 25.0,
            max_norm_ratio: 4.0,
            latency_budget: Duration::from_millis(500),
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    }
}

pub(crate) fn presence() -> Presence {
    Presence {
        vehicle: vehicle(),
        generation: Generation(3),
        online: true,
        client_version: "0.1.0".into(),
        backbone: Some(Digest([1; 32])),
        num_examples: 812,
    }
}

pub(crate) fn announcement() -> Announcement {
    Announcement {
        roadside: roadside(),
        job: job_id(),
        round: RoundId(17),
        base_version: ModelVersion(4),
        model: Digest([2; 32]),
        model_bytes: 2980,
        model_chunks: 3,
        job_digest: Digest([3; 32]),
        deadline: Timestamp(1_796_074_046_959),
        exponents: vec![-5, 2],
        cohort: vec![vehicle(), VehicleId::new("veh-0002").unwrap()],
        open: true,
    }
}

pub(crate) fn part() -> UpdatePart {
    UpdatePart {
        update_id: UpdateId([4; 16]),
        total_bytes: 3000,
        total_chunks: 12,
        digest: Digest([5; 32]),
        data: b"a chunk of an update".to_vec(),
    }
}

pub(crate) fn metrics() -> UpdateMetrics {
    UpdateMetrics {
        loss: Some(0.375),
        train: Duration::from_millis(1234),
        receipts: 20,
        receipts_within_budget: 19,
        last_latency: Duration::from_millis(87),
        encoding: None,
        goodput_bytes_per_s: 0,
    }
}

pub(crate) fn update() -> Update {
    Update {
        job: job_id(),
        roadside: roadside(),
        vehicle: vehicle(),
        round: RoundId(17),
        base_version: ModelVersion(4),
        update_id: UpdateId([4; 16]),
        num_examples: 812,
        frame: b"WSF, and so on".to_vec(),
        metrics: metrics(),
    }
}

pub(crate) fn receipt() -> Receipt {
    Receipt {
        update_id: UpdateId([4; 16]),
        round: RoundId(17),
        verdict: Verdict::Rejected(RejectReason::NormTooLarge),
        current_round: RoundId(18),
        current_version: ModelVersion(5),
        handling: Duration::from_millis(12),
    }
}

pub(crate) fn envelope() -> Envelope {
    Envelope {
        msg_id: "00000000-0000-4000-8000-000000000001".into(),
        parent_msg_id: "00000000-0000-4000-8000-000000000002".into(),
        sent: Timestamp(1_796_074_046_959),
        sync: true,
        source: "rsu-a".into(),
        group: "user".into(),
        operation: "get".into(),
        resource: resource::hello(&roadside()),
        content: b"an encoded message".to_vec(),
    }
}

pub(crate) fn job_plan() -> JobPlan {
    JobPlan {
        spec: job(),
        merge_round: RoundId(9),
        base_version: ModelVersion(4),
        model: Digest([2; 32]),
        model_bytes: 2980,
        exponents: vec![-5, 2],
        norm_bound: 12.5,
        window_ends: Timestamp(1_796_074_999_999),
        paused: true,
    }
}

pub(crate) fn partial() -> PartialAggregate {
    PartialAggregate {
        job: job_id(),
        roadside: roadside(),
        merge_round: RoundId(9),
        base_version: ModelVersion(4),
        partial_id: UpdateId([6; 16]),
        num_examples: 812,
        sum_frame: b"WSF, and so on".to_vec(),
        contributions: vec![Contribution {
            vehicle: vehicle(),
            round: RoundId(17),
            update_id: UpdateId([4; 16]),
            num_examples: 812,
            verdict: Verdict::Accepted,
            l2_norm: 1.5,
            handling: Duration::from_millis(12),
            metrics: metrics(),
        }],
        rounds: vec![RoundSummary {
            round: RoundId(17),
            opened: Timestamp(1_796_074_046_000),
            closed: Timestamp(1_796_074_046_959),
            cohort: vec![vehicle()],
            target: 3,
            quorum: 2,
            accepted: 1,
            aggregated: true,
        }],
        up_bytes: 10_000,
        down_bytes: 20_000,
        vehicles_online: 5,
    }
}
