use std::time::Duration;

use proptest::prelude::*;
use wayside_domain::encoding::{CodecSpec, UpdateEncoding};
use wayside_domain::head::Standardisation;
use wayside_domain::ids::{ModelVersion, RoadsideId};
use wayside_domain::job::{AggregationSpec, Buffered, Effort, ModelSpec, RoundSpec, TrainingSpec};
use wayside_domain::update::RejectReason;

use super::*;

const BACKBONE: Digest = Digest([0xbb; 32]);
const JOB_DIGEST: Digest = Digest([0x0b; 32]);
const MODEL_BYTES: usize = 600;

fn t(seconds: u64) -> Timestamp {
    Timestamp(1_700_000_000_000 + seconds * 1000)
}

fn rsu() -> RoadsideId {
    RoadsideId::new("rsu").unwrap()
}

fn job() -> JobId {
    JobId::new("lights").unwrap()
}

fn spec_of(job: &JobId) -> Arc<JobSpec> {
    Arc::new(JobSpec {
        job: job.clone(),
        model: ModelSpec {
            backbone: Some(BACKBONE),
            input_height: 128,
            input_width: 64,
            classes: vec!["red".into(), "green".into()],
            standardisation: Standardisation::identity(4),
            network: wayside_domain::network::Network::LinearHead,
            personal: Vec::new(),
        },
        training: TrainingSpec {
            lr: 0.1,
            momentum: 0.9,
            weight_decay: 0.0,
            batch_size: 8,
            effort: Effort::LocalEpochs(1),
            proximal_mu: 0.0,
            class_weights: vec![1.0; 2],
            seed: 1,
        },
        round: RoundSpec {
            fraction_train: 1.0,
            min_vehicles: 1,
            over_selection: 1.0,
            quorum: 0.5,
            round_timeout: Duration::from_secs(30),
            min_window: Duration::ZERO,
            edge_rounds: 1,
            max_examples: 1000,
            max_norm: 100.0,
            max_norm_ratio: 0.0,
            latency_budget: Duration::from_millis(500),
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    })
}

fn model(round: u64) -> Digest {
    let mut bytes = [0x30; 32];
    bytes[0] = u8::try_from(round).unwrap();
    Digest(bytes)
}

fn announced(round: u64) -> Announced {
    Announced {
        round: RoundId(round),
        base_version: ModelVersion(round - 1),
        model: model(round),
        model_bytes: MODEL_BYTES,
        model_chunks: 2,
        job_digest: JOB_DIGEST,
        exponents: vec![0, 0],
        in_cohort: true,
        open: true,
    }
}

fn fixed() -> Fixed {
    Fixed {
        network: wayside_domain::network::Network::LinearHead,
        roadside: rsu(),
        backbone: BACKBONE,
        features: 4,
        resend_after: Duration::from_secs(2),
    }
}

fn entry(n: u8, round: u64, sealed: Timestamp) -> OutboxEntry {
    OutboxEntry {
        update_id: UpdateId([n; 16]),
        job: job(),
        roadside: rsu(),
        round: RoundId(round),
        sealed,
    }
}

fn encoded(order: &Order, at: Timestamp) -> Encoded {
    Encoded {
        job: order.job.clone(),
        round: order.round.round,
        num_examples: 7,
        loss: 0.5,
        train_ms: 10,
        encoded: at,
        encoding: order.encoding,
        frame: vec![1],
        residual: None,
        personal: Vec::new(),
    }
}

/// A vehicle that has features and knows the job.
fn ready(restored: Restored) -> Vehicle {
    let mut vehicle = Vehicle::new(fixed(), restored);
    vehicle.on_link(t(0), true);
    let effects = vehicle.on_job_spec(t(0), JOB_DIGEST, spec_of(&job()), 4000);
    let spec = spec_of(&job());
    assert_eq!(effects, [Effect::LoadFeatures { job: job(), spec }]);
    assert_eq!(vehicle.phase(), Phase::Preparing);
    let features = WorkDone::Features {
        job: job(),
        num_examples: 7,
    };
    vehicle.on_work_done(t(0), features);
    vehicle
}

fn with_models(rounds: impl IntoIterator<Item = u64>) -> Restored {
    Restored {
        models: rounds.into_iter().map(model).collect(),
        ..Restored::default()
    }
}

fn order_in(effects: &[Effect]) -> Option<Order> {
    effects.iter().find_map(|effect| match effect {
        Effect::StartTraining(order) => Some((**order).clone()),
        _ => None,
    })
}

fn trains(effects: &[Effect]) -> Option<u64> {
    order_in(effects).map(|order| order.round.round.0)
}

/// Trains a round to the end and gives its update the id.
fn train(vehicle: &mut Vehicle, now: Timestamp, round: u64, id: u8) -> Vec<Effect> {
    let effects = vehicle.on_announcement(now, &job(), announced(round), true);
    let order = order_in(&effects).unwrap();
    let done = WorkDone::Trained(encoded(&order, now));
    let effects = vehicle.on_work_done(now, done);
    assert!(
        matches!(&effects[..], [Effect::Seal(sealing)] if sealing.1.round.0 == round),
        "{effects:?}"
    );
    vehicle.on_sealed(now, Some((entry(id, round, now), 1000)))
}

#[test]
fn a_round_from_announcement_to_receipt() {
    let mut vehicle = ready(Restored::default());
    let effects = vehicle.on_announcement(t(1), &job(), announced(1), true);
    let fetch = Effect::FetchModel {
        job: job(),
        model: model(1),
    };
    assert_eq!(effects, [fetch]);
    assert_eq!(vehicle.phase(), Phase::Fetching);
    let key = ModelKey::of(&model(1));
    assert!(
        vehicle
            .on_model_part(&job(), ModelKey::of(&model(2)), 0, vec![1; 300])
            .is_empty()
    );
    assert!(
        vehicle
            .on_model_part(&job(), key, 1, vec![2; 300])
            .is_empty()
    );
    let effects = vehicle.on_model_part(&job(), key, 0, vec![1; 300]);
    assert!(matches!(&effects[..], [Effect::StoreModel { bytes, .. }] if bytes.len() == 600));
    let effects = vehicle.on_model_stored(t(2), &job(), model(1), true);
    assert!(matches!(
        &effects[..],
        [Effect::LeaveModel { .. }, Effect::StartTraining(_)]
    ));
    assert_eq!(vehicle.phase(), Phase::Training);

    let order = order_in(&effects).unwrap();
    let effects = vehicle.on_work_done(t(3), WorkDone::Trained(encoded(&order, t(3))));
    assert!(matches!(&effects[..], [Effect::Seal(_)]));
    let effects = vehicle.on_sealed(t(3), Some((entry(1, 1, t(3)), 1000)));
    let update_id = UpdateId([1; 16]);
    let send = Effect::SendUpdate {
        update_id,
        chunks: None,
    };
    assert_eq!(effects, [send]);
    assert_eq!(vehicle.phase(), Phase::Uploading);
    assert!(vehicle.on_handed_over(t(3), update_id).is_empty());

    let now = t(3) + Duration::from_millis(400);
    let effects = vehicle.on_receipt(now, &job(), update_id, Verdict::Accepted, RoundId(1));
    let dropped = Effect::DropUpdate {
        entry: entry(1, 1, t(3)),
        why: Leaves::Receipt {
            verdict: Verdict::Accepted,
            latency: Duration::from_millis(400),
            within_budget: true,
        },
    };
    assert_eq!(effects, [dropped]);
    let figures = LinkFigures {
        receipts: 1,
        within_budget: 1,
        last_latency_ms: 400,
        goodput_bytes_per_s: 2500,
    };
    assert_eq!((vehicle.figures(), vehicle.phase()), (figures, Phase::Idle));
    assert!(
        vehicle
            .on_receipt(now, &job(), update_id, Verdict::Accepted, RoundId(1))
            .is_empty()
    );
}

#[test]
fn a_finished_round_is_not_trained_again_after_a_restart() {
    let done = Restored {
        done: [(job(), RoundId(3))].into(),
        ..with_models([3, 4])
    };
    let mut vehicle = ready(done);
    let effects = vehicle.on_announcement(t(1), &job(), announced(3), false);
    assert_eq!(trains(&effects), None);
    assert_eq!(
        trains(&vehicle.on_announcement(t(2), &job(), announced(4), true)),
        Some(4)
    );

    // Killed between the record of the update and its receipt: the outbox alone is enough.
    let waiting = Restored {
        outbox: vec![entry(9, 3, t(0))],
        ..with_models([3])
    };
    let mut vehicle = ready(waiting);
    let effects = vehicle.on_announcement(t(1), &job(), announced(3), false);
    assert_eq!(trains(&effects), None);
    assert_eq!(vehicle.phase(), Phase::Uploading);
}

#[test]
fn a_newer_round_cancels_the_older_one() {
    let mut vehicle = ready(with_models([1, 2]));
    let first = order_in(&vehicle.on_announcement(t(1), &job(), announced(1), true)).unwrap();
    assert_eq!(
        vehicle.on_announcement(t(2), &job(), announced(2), true),
        [Effect::CancelWork]
    );
    assert!(vehicle.on_tick(t(2)).is_empty(), "cancelled once");
    // It had finished at the same moment: its update counts nowhere any more.
    let effects = vehicle.on_work_done(t(3), WorkDone::Trained(encoded(&first, t(3))));
    assert_eq!(trains(&effects), Some(2));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Seal(_)))
    );
    // A late delivery of the older announcement changes nothing.
    assert!(
        vehicle
            .on_announcement(t(4), &job(), announced(1), false)
            .is_empty()
    );
}

#[test]
fn a_round_that_closes_or_leaves_the_vehicle_out_is_not_trained() {
    let mut vehicle = ready(with_models([1, 2, 3]));
    let outside = Announced {
        in_cohort: false,
        ..announced(1)
    };
    assert!(
        vehicle
            .on_announcement(t(1), &job(), outside, true)
            .is_empty()
    );
    // Admitted later in the same round.
    assert_eq!(
        trains(&vehicle.on_announcement(t(2), &job(), announced(1), true)),
        Some(1)
    );
    let closed = Announced {
        open: false,
        ..announced(1)
    };
    assert_eq!(
        vehicle.on_announcement(t(3), &job(), closed, true),
        [Effect::CancelWork]
    );
    assert!(vehicle.on_work_done(t(4), WorkDone::Cancelled).is_empty());
    assert_eq!(vehicle.phase(), Phase::Idle);
    let other_terms = Announced {
        job_digest: Digest([1; 32]),
        ..announced(2)
    };
    assert!(
        vehicle
            .on_announcement(t(5), &job(), other_terms, true)
            .is_empty()
    );
}

#[test]
fn failed_training_sends_nothing_and_waits_for_the_next_round() {
    let mut vehicle = ready(with_models([1, 2]));
    vehicle.on_announcement(t(1), &job(), announced(1), true);
    assert!(vehicle.on_work_done(t(2), WorkDone::Failed).is_empty());
    assert_eq!(vehicle.phase(), Phase::Failed);
    assert!(
        vehicle
            .on_announcement(t(3), &job(), announced(1), true)
            .is_empty()
    );
    assert_eq!(
        trains(&vehicle.on_announcement(t(4), &job(), announced(2), true)),
        Some(2)
    );
    // A disk that refuses the update is a failure too.
    let order = order_in(&[Effect::StartTraining(Box::new(Order {
        job: job(),
        spec: spec_of(&job()),
        round: announced(2),
        encoding: UpdateEncoding::Fp16,
    }))])
    .unwrap();
    vehicle.on_work_done(t(5), WorkDone::Trained(encoded(&order, t(5))));
    assert!(vehicle.on_sealed(t(5), None).is_empty());
    assert_eq!(
        (vehicle.phase(), vehicle.outbox().len()),
        (Phase::Failed, 0)
    );
}

#[test]
fn updates_are_sent_again_until_a_receipt_and_at_once_on_reconnect() {
    let mut vehicle = ready(with_models([1]));
    train(&mut vehicle, t(1), 1, 1);
    let update_id = UpdateId([1; 16]);
    let send = Effect::SendUpdate {
        update_id,
        chunks: None,
    };
    assert_eq!(vehicle.next_deadline(), Some(t(3)));
    // Still being handed over: not twice at the same time.
    assert!(vehicle.on_tick(t(3)).is_empty());
    vehicle.on_handed_over(t(4), update_id);
    assert_eq!(vehicle.next_deadline(), Some(t(7)));
    assert_eq!(vehicle.on_tick(t(7)), std::slice::from_ref(&send));
    vehicle.on_handed_over(t(7), update_id);
    assert!(vehicle.on_link(t(8), false).is_empty());
    assert!(
        vehicle.on_tick(t(100)).is_empty(),
        "nothing is sent without a link"
    );
    let presence = Effect::PublishPresence { num_examples: 7 };
    assert_eq!(vehicle.on_link(t(101), true), [presence, send.clone()]);
    vehicle.on_handed_over(t(101), update_id);
    // The kept announcement that follows a reconnect does not send it once more, a new one some time later does.
    assert!(
        vehicle
            .on_announcement(t(101), &job(), announced(1), false)
            .is_empty()
    );
    assert!(
        vehicle
            .on_announcement(t(101), &job(), announced(1), true)
            .is_empty()
    );
    vehicle.on_tick(t(103));
    vehicle.on_handed_over(t(103), update_id);
    assert_eq!(
        vehicle.on_announcement(t(105), &job(), announced(1), true),
        [send]
    );
}

#[test]
fn only_missing_chunks_are_sent_when_asked_for() {
    let mut vehicle = ready(with_models([1]));
    train(&mut vehicle, t(1), 1, 1);
    let update_id = UpdateId([1; 16]);
    assert!(
        vehicle.on_need(&job(), update_id, vec![2]).is_empty(),
        "still on its way"
    );
    vehicle.on_handed_over(t(1), update_id);
    let chunks = Some(vec![2, 3]);
    assert_eq!(
        vehicle.on_need(&job(), update_id, vec![2, 3]),
        [Effect::SendUpdate { update_id, chunks }]
    );
    vehicle.on_handed_over(t(1), update_id);
    assert!(
        vehicle
            .on_need(&job(), UpdateId([2; 16]), vec![0])
            .is_empty()
    );
    assert!(
        vehicle
            .on_need(&JobId::new("other").unwrap(), update_id, vec![0])
            .is_empty()
    );
    assert!(vehicle.on_need(&job(), update_id, vec![]).is_empty());
    let effects = vehicle.on_need(&job(), update_id, (0..100_000).collect());
    assert!(
        matches!(&effects[..], [Effect::SendUpdate { chunks: Some(c), .. }] if c.len() == MAX_NEED)
    );
}

#[test]
fn a_refused_update_is_forgotten_and_counts_as_an_answer() {
    let mut vehicle = ready(with_models([1]));
    train(&mut vehicle, t(1), 1, 1);
    let verdict = Verdict::Rejected(RejectReason::NormTooLarge);
    let other = JobId::new("other").unwrap();
    assert!(
        vehicle
            .on_receipt(t(2), &other, UpdateId([1; 16]), verdict, RoundId(1))
            .is_empty()
    );
    let effects = vehicle.on_receipt(t(2), &job(), UpdateId([1; 16]), verdict, RoundId(1));
    assert!(matches!(
        &effects[..],
        [Effect::DropUpdate {
            why: Leaves::Receipt {
                within_budget: false,
                ..
            },
            ..
        }]
    ));
    assert!(
        vehicle
            .on_announcement(t(3), &job(), announced(1), true)
            .is_empty()
    );
}

#[test]
fn a_vehicle_without_what_the_job_needs_does_not_take_part() {
    let check = |change: &dyn Fn(&mut JobSpec), expected: Unfit| {
        let mut vehicle = Vehicle::new(fixed(), with_models([1]));
        let mut spec = (*spec_of(&job())).clone();
        change(&mut spec);
        let effects = vehicle.on_job_spec(t(0), JOB_DIGEST, Arc::new(spec), 4000);
        let (job_id, why) = (job(), expected);
        assert_eq!(effects, [Effect::NotTakingPart { job: job_id, why }]);
        assert!(
            vehicle
                .on_announcement(t(1), &job(), announced(1), true)
                .is_empty()
        );
    };
    let (asked, here) = (Digest([1; 32]), BACKBONE);
    check(
        &|spec| spec.model.backbone = Some(Digest([1; 32])),
        Unfit::Backbone { asked, here },
    );
    check(
        &|spec| spec.model.standardisation = Standardisation::identity(5),
        Unfit::Features { asked: 5, here: 4 },
    );
    // Any backbone will do.
    let mut vehicle = Vehicle::new(fixed(), Restored::default());
    let mut spec = (*spec_of(&job())).clone();
    spec.model.backbone = None;
    let effects = vehicle.on_job_spec(t(0), JOB_DIGEST, Arc::new(spec), 4000);
    assert!(matches!(&effects[..], [Effect::LoadFeatures { .. }]));
    // No usable picture: told once, and nothing is trained.
    let none = WorkDone::Features {
        job: job(),
        num_examples: 0,
    };
    let effects = vehicle.on_work_done(t(0), none);
    let (job_id, why) = (job(), Unfit::NoExamples);
    assert_eq!(effects, [Effect::NotTakingPart { job: job_id, why }]);
}

#[test]
fn features_that_failed_are_tried_again_later() {
    let mut vehicle = Vehicle::new(fixed(), Restored::default());
    vehicle.on_job_spec(t(0), JOB_DIGEST, spec_of(&job()), 4000);
    assert!(vehicle.on_work_done(t(1), WorkDone::Failed).is_empty());
    assert_eq!(vehicle.next_deadline(), Some(t(61)));
    assert!(matches!(
        &vehicle.on_tick(t(61))[..],
        [Effect::LoadFeatures { .. }]
    ));
    // The same specification again changes nothing; other classes need other features.
    vehicle.on_work_done(t(62), WorkDone::Cancelled);
    let mut spec = (*spec_of(&job())).clone();
    spec.model.classes.push("yellow".into());
    let again = vehicle.on_job_spec(t(63), JOB_DIGEST, spec_of(&job()), 4000);
    assert!(again.is_empty(), "{again:?}");
    vehicle.on_work_done(
        t(63),
        WorkDone::Features {
            job: job(),
            num_examples: 7,
        },
    );
    let effects = vehicle.on_job_spec(t(64), Digest([5; 32]), Arc::new(spec), 4000);
    assert!(matches!(&effects[..], [Effect::LoadFeatures { .. }]));
}

#[test]
fn a_stop_cancels_work_and_its_end_resumes_it() {
    let mut vehicle = ready(with_models([1]));
    assert_eq!(
        trains(&vehicle.on_announcement(t(1), &job(), announced(1), true)),
        Some(1)
    );
    assert_eq!(vehicle.on_paused(t(2), true), [Effect::CancelWork]);
    assert_eq!(vehicle.phase(), Phase::Paused);
    assert!(vehicle.on_work_done(t(3), WorkDone::Cancelled).is_empty());
    assert!(vehicle.on_tick(t(4)).is_empty());
    assert_eq!(trains(&vehicle.on_paused(t(5), false)), Some(1));
}

#[test]
fn a_model_is_asked_for_again_until_it_is_right() {
    let mut vehicle = ready(Restored::default());
    let fetch = Effect::FetchModel {
        job: job(),
        model: model(1),
    };
    assert_eq!(
        vehicle.on_announcement(t(1), &job(), announced(1), true),
        std::slice::from_ref(&fetch)
    );
    assert_eq!(vehicle.next_deadline(), Some(t(11)));
    assert_eq!(vehicle.on_tick(t(11)), std::slice::from_ref(&fetch));
    let key = ModelKey::of(&model(1));
    vehicle.on_model_part(&job(), key, 0, vec![1; 300]);
    vehicle.on_model_part(&job(), key, 1, vec![2; 300]);
    assert_eq!(vehicle.next_deadline(), None, "with the disk");
    assert!(
        vehicle
            .on_model_stored(t(12), &job(), model(1), false)
            .is_empty()
    );
    assert_eq!(vehicle.on_tick(t(22)), std::slice::from_ref(&fetch));
    // A newer round with another model: the old one is left.
    let effects = vehicle.on_announcement(t(23), &job(), announced(2), true);
    let leave = Effect::LeaveModel {
        job: job(),
        model: model(1),
    };
    let next = Effect::FetchModel {
        job: job(),
        model: model(2),
    };
    assert_eq!(effects, [leave, next]);
    // A model that the schema rules out is not asked for.
    let huge = Announced {
        model_bytes: 4001,
        ..announced(3)
    };
    let effects = vehicle.on_announcement(t(24), &job(), huge, true);
    assert!(matches!(&effects[..], [Effect::LeaveModel { .. }]));
    // One that is damaged on disk is fetched once more.
    let mut vehicle = ready(with_models([1]));
    vehicle.on_announcement(t(1), &job(), announced(1), true);
    vehicle.on_model_lost(model(1));
    assert_eq!(vehicle.on_work_done(t(2), WorkDone::Cancelled), [fetch]);
}

#[test]
fn models_that_no_job_needs_are_dropped() {
    let mut vehicle = ready(with_models([1, 2, 3]));
    vehicle.on_announcement(t(1), &job(), announced(4), true);
    let key = ModelKey::of(&model(4));
    vehicle.on_model_part(&job(), key, 0, vec![1; 300]);
    vehicle.on_model_part(&job(), key, 1, vec![2; 300]);
    let effects = vehicle.on_model_stored(t(2), &job(), model(4), true);
    let old = [1, 2, 3].map(model).to_vec();
    assert_eq!(effects[0], Effect::DropModels(old));
}

#[test]
fn jobs_take_turns_on_the_one_thread() {
    let other = JobId::new("zebra").unwrap();
    let mut vehicle = ready(with_models([1, 2]));
    vehicle.on_job_spec(t(0), JOB_DIGEST, spec_of(&other), 4000);
    let features = WorkDone::Features {
        job: other.clone(),
        num_examples: 7,
    };
    vehicle.on_work_done(t(0), features);
    let first = order_in(&vehicle.on_announcement(t(1), &job(), announced(1), true)).unwrap();
    assert!(
        vehicle
            .on_announcement(t(1), &other, announced(1), true)
            .is_empty()
    );
    let effects = vehicle.on_work_done(t(2), WorkDone::Trained(encoded(&first, t(2))));
    let second = order_in(&effects).unwrap();
    assert_eq!(second.job, other);
    vehicle.on_sealed(t(2), Some((entry(1, 1, t(2)), 1000)));
    // The first job's next round waits for the other one, which waited longer.
    assert!(
        vehicle
            .on_announcement(t(3), &job(), announced(2), true)
            .is_empty()
    );
    let effects = vehicle.on_work_done(t(4), WorkDone::Cancelled);
    assert_eq!(order_in(&effects).map(|order| order.job), Some(job()));
}

#[test]
fn foreign_jobs_cannot_fill_the_memory() {
    let mut vehicle = ready(with_models([1]));
    for n in 0..1000 {
        let name = JobId::new(format!("job{n}")).unwrap();
        let announced = Announced {
            open: n % 2 == 0,
            ..announced(1)
        };
        vehicle.on_announcement(t(1), &name, announced, true);
        assert!(vehicle.jobs.len() <= MAX_JOBS);
    }
}

#[test]
fn updates_leave_by_age_and_to_make_room() {
    let mut vehicle = ready(with_models([1]));
    train(&mut vehicle, t(1), 1, 1);
    let later = t(1) + OUTBOX_AGE + Duration::from_millis(1);
    vehicle.on_link(t(2), false);
    assert_eq!(vehicle.next_deadline(), Some(later));
    let effects = vehicle.on_tick(later);
    assert!(matches!(
        &effects[..],
        [Effect::DropUpdate {
            why: Leaves::Expired,
            ..
        }]
    ));
    let full = Restored {
        outbox: (0..32).map(|n| entry(100 + n, 50, t(0))).collect(),
        ..with_models([1])
    };
    let mut vehicle = ready(full);
    let effects = train(&mut vehicle, t(1), 1, 1);
    assert!(matches!(
        &effects[0],
        Effect::DropUpdate {
            why: Leaves::MadeRoom,
            ..
        }
    ));
    let effects = vehicle.on_update_lost(t(2), UpdateId([1; 16]));
    assert!(matches!(
        &effects[0],
        Effect::DropUpdate {
            why: Leaves::Lost,
            ..
        }
    ));
}

#[derive(Clone, Debug)]
enum Step {
    Announce {
        round: u64,
        open: bool,
        in_cohort: bool,
        live: bool,
    },
    Link(bool),
    Finish {
        good: bool,
    },
    HandedOver,
    Receipt {
        id: u8,
    },
    Need {
        id: u8,
    },
    Pause(bool),
    Wait(u64),
    /// Killed and started again with what was durable.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1_u64..6, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(round, closed, out, live)| {
            Step::Announce { round, open: !closed || round % 2 == 0, in_cohort: !out || round % 3 == 0, live }
        }),
        1 => any::<bool>().prop_map(Step::Link),
        3 => prop::bool::weighted(0.8).prop_map(|good| Step::Finish { good }),
        2 => Just(Step::HandedOver),
        1 => (0_u8..8).prop_map(|id| Step::Receipt { id }),
        1 => (0_u8..8).prop_map(|id| Step::Need { id }),
        1 => any::<bool>().prop_map(Step::Pause),
        2 => (0_u64..40).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

enum Task {
    Load,
    Train(Order),
}

/// What a fleet's day leaves on disk, and what was seen of it.
#[derive(Default)]
struct World {
    outbox: BTreeMap<UpdateId, OutboxEntry>,
    done: Option<RoundId>,
    sealed_rounds: BTreeSet<u64>,
    seals: u8,
    working: Option<Task>,
    handing: BTreeSet<UpdateId>,
    newest: Option<Announced>,
    link_up: bool,
    paused: bool,
}

impl World {
    fn apply(&mut self, vehicle: &mut Vehicle, now: Timestamp, effects: Vec<Effect>) {
        let mut queue: std::collections::VecDeque<Effect> = effects.into();
        while let Some(effect) = queue.pop_front() {
            match effect {
                Effect::StartTraining(order) => {
                    assert!(
                        self.working.is_none() && !self.paused,
                        "one piece of work at a time"
                    );
                    let newest = self.newest.as_ref().unwrap();
                    assert_eq!(
                        order.round, *newest,
                        "only the newest announcement is trained"
                    );
                    assert!(newest.open && newest.in_cohort);
                    assert!(
                        !self.sealed_rounds.contains(&order.round.round.0),
                        "trained twice"
                    );
                    self.working = Some(Task::Train(*order));
                }
                Effect::LoadFeatures { .. } => {
                    assert!(self.working.is_none() && !self.paused);
                    self.working = Some(Task::Load);
                }
                Effect::Seal(sealing) => {
                    let round = sealing.1.round;
                    assert!(self.sealed_rounds.insert(round.0), "sealed twice");
                    self.seals += 1;
                    let entry = entry(self.seals, round.0, now);
                    self.outbox.insert(entry.update_id, entry.clone());
                    self.done = Some(round);
                    queue.extend(vehicle.on_sealed(now, Some((entry, 1000))));
                }
                Effect::SendUpdate { update_id, .. } => {
                    assert!(self.link_up, "sent without a link");
                    assert!(
                        self.outbox.contains_key(&update_id),
                        "sent before it was durable"
                    );
                    assert!(
                        self.handing.insert(update_id),
                        "handed over twice at the same time"
                    );
                }
                Effect::DropUpdate { entry, .. } => {
                    assert!(self.outbox.remove(&entry.update_id).is_some());
                    self.handing.remove(&entry.update_id);
                }
                Effect::PublishPresence { .. }
                | Effect::CancelWork
                | Effect::NotTakingPart { .. } => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(vehicle.outbox().len(), self.outbox.len());
    }

    fn restart(&mut self) -> Vehicle {
        let restored = Restored {
            outbox: self.outbox.values().cloned().collect(),
            done: self.done.map(|round| (job(), round)).into_iter().collect(),
            ..with_models(1..6)
        };
        (self.working, self.link_up, self.paused) = (None, false, false);
        self.handing.clear();
        self.newest = None;
        Vehicle::new(fixed(), restored)
    }
}

proptest! {
    /// Whatever happens in whatever order, and however often the vehicle is killed: the invariants hold.
    #[test]
    fn a_bad_day(steps in prop::collection::vec(step(), 0..120)) {
        let mut world = World::default();
        let mut vehicle = world.restart();
        let mut now = t(0);
        let know = |vehicle: &mut Vehicle, now| vehicle.on_job_spec(now, JOB_DIGEST, spec_of(&job()), 4000);
        let effects = know(&mut vehicle, now);
        world.apply(&mut vehicle, now, effects);
        for step in steps {
            let effects = match step {
                Step::Announce { round, open, in_cohort, live } => {
                    let new = Announced { in_cohort, open, ..announced(round) };
                    if world.newest.as_ref().is_none_or(|old| old.round <= new.round) {
                        world.newest = Some(new.clone());
                    }
                    vehicle.on_announcement(now, &job(), new, live)
                }
                Step::Link(up) => {
                    world.link_up = up;
                    world.handing.clear();
                    vehicle.on_link(now, up)
                }
                Step::Finish { good } => match world.working.take() {
                    None => continue,
                    Some(Task::Load) if good => {
                        let features = WorkDone::Features { job: job(), num_examples: 7 };
                        vehicle.on_work_done(now, features)
                    }
                    Some(Task::Train(order)) if good => {
                        vehicle.on_work_done(now, WorkDone::Trained(encoded(&order, now)))
                    }
                    Some(_) => vehicle.on_work_done(now, WorkDone::Cancelled),
                },
                Step::HandedOver => match world.handing.pop_first() {
                    None => continue,
                    Some(update_id) => vehicle.on_handed_over(now, update_id),
                },
                Step::Receipt { id } => vehicle.on_receipt(now, &job(), UpdateId([id; 16]), Verdict::Accepted, RoundId(1)),
                Step::Need { id } => vehicle.on_need(&job(), UpdateId([id; 16]), vec![0]),
                Step::Pause(paused) => {
                    world.paused = paused;
                    vehicle.on_paused(now, paused)
                }
                Step::Wait(seconds) => {
                    now = now + Duration::from_secs(seconds);
                    vehicle.on_tick(now)
                }
                Step::Restart => {
                    vehicle = world.restart();
                    know(&mut vehicle, now)
                }
            };
            world.apply(&mut vehicle, now, effects);
        }
        // With a link, no pause and time, everything that waits is sent.
        world.link_up = true;
        world.handing.clear();
        let effects = vehicle.on_link(now, true);
        world.apply(&mut vehicle, now, effects);
        let waiting: BTreeSet<UpdateId> = world.outbox.keys().copied().collect();
        prop_assert_eq!(&world.handing, &waiting);
    }
}

/// A spec whose codec or rounds were changed, with its own digest.
fn ready_with(change: impl Fn(&mut JobSpec)) -> Vehicle {
    let mut vehicle = ready(Restored {
        models: (1..9).map(model).collect(),
        ..Restored::default()
    });
    vehicle.on_work_done(
        t(0),
        WorkDone::Features {
            job: job(),
            num_examples: 7,
        },
    );
    let mut spec = JobSpec::clone(&spec_of(&job()));
    change(&mut spec);
    vehicle.on_job_spec(t(0), OTHER_DIGEST, Arc::new(spec), 4000);
    vehicle
}

fn announced_with(round: u64) -> Announced {
    Announced {
        job_digest: OTHER_DIGEST,
        ..announced(round)
    }
}

const OTHER_DIGEST: Digest = Digest([77; 32]);

#[test]
fn a_slow_link_steps_the_encoding_down_and_a_fast_one_up_again() {
    let mut vehicle = ready_with(|spec| {
        spec.codec.lowest = UpdateEncoding::Int8;
        spec.round.latency_budget = Duration::from_secs(500);
    });
    let mut used = Vec::new();
    let mut at = 1000;
    for (round, latency_ms) in (1..).zip([900, 900, 900, 900, 10, 10, 10]) {
        let effects = vehicle.on_announcement(t(at), &job(), announced_with(round), true);
        let order = order_in(&effects).expect("a round to train");
        used.push(order.encoding.label());
        vehicle.on_work_done(t(at), WorkDone::Trained(encoded(&order, t(at))));
        let id = round.to_le_bytes()[0];
        vehicle.on_sealed(t(at), Some((entry(id, round, t(at)), 100_000)));
        at += latency_ms;
        let id = UpdateId([id; 16]);
        vehicle.on_receipt(t(at), &job(), id, Verdict::Accepted, RoundId(round));
    }
    assert_eq!(
        used,
        [
            "fp16",
            "fp16-diff",
            "int8",
            "int8",
            "int8",
            "fp16-diff",
            "fp16"
        ]
    );
}

#[test]
fn in_buffered_rounds_late_work_goes_on_and_counts_once() {
    let mut vehicle = ready_with(|spec| {
        spec.aggregation.buffered = Some(Buffered {
            buffer_size: 2,
            max_staleness: 2,
        });
    });
    let effects = vehicle.on_announcement(t(1), &job(), announced_with(1), true);
    let order = order_in(&effects).expect("the first round");
    // Two rounds close without this vehicle: its work is still wanted.
    let effects = vehicle.on_announcement(t(2), &job(), announced_with(3), true);
    assert!(!effects.contains(&Effect::CancelWork), "{effects:?}");
    let effects = vehicle.on_work_done(t(3), WorkDone::Trained(encoded(&order, t(3))));
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Seal(_)))
    );
    let effects = vehicle.on_sealed(t(3), Some((entry(1, 1, t(3)), 1000)));
    assert_eq!(order_in(&effects), None, "one update at a time");
    // It counted in round 3, so that round is done; the next one is trained.
    let id = UpdateId([1; 16]);
    let effects = vehicle.on_receipt(t(4), &job(), id, Verdict::Accepted, RoundId(3));
    assert_eq!(order_in(&effects), None);
    let effects = vehicle.on_announcement(t(5), &job(), announced_with(4), true);
    let order = order_in(&effects).expect("the fourth round");
    // Three rounds late is too late.
    let effects = vehicle.on_announcement(t(6), &job(), announced_with(7), true);
    assert!(effects.contains(&Effect::CancelWork));
    assert_eq!(order.round.round, RoundId(4));
}
