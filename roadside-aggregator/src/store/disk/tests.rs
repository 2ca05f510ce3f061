use super::*;
use crate::fleet::Vehicle;
use crate::region::{Ledger, Published};
use crate::store::Memory;
use std::time::Duration;
use wayside_domain::encoding::CodecSpec;
use wayside_domain::head::Standardisation;
use wayside_domain::ids::ModelVersion;
use wayside_domain::job::{AggregationSpec, Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec};
use wayside_domain::round::{Accepted, Guard, RoundTerms};
use wayside_domain::time::Timestamp;
use wayside_domain::update::{RejectReason, Verdict};
use wayside_proto::convert::{Contribution, JobPlan, RoundSummary, UpdateMetrics};
use wayside_proto::topics::ModelKey;

fn job() -> JobId {
    JobId::new("lights").unwrap()
}

fn vehicle(name: &str) -> VehicleId {
    VehicleId::new(name).unwrap()
}

fn ledger() -> Ledger {
    let spec = JobSpec {
        job: job(),
        model: ModelSpec {
            backbone: Some(Digest([3; 32])),
            input_height: 32,
            input_width: 32,
            classes: vec!["a".into(), "b".into()],
            standardisation: Standardisation::new(vec![0.1, 0.2], vec![1.0, 0.3]).unwrap(),
            network: wayside_domain::network::Network::LinearHead,
            personal: Vec::new(),
        },
        training: TrainingSpec {
            lr: 0.1,
            momentum: 0.9,
            weight_decay: 0.0,
            batch_size: 8,
            effort: Effort::LocalSteps(3),
            proximal_mu: 0.0,
            class_weights: vec![1.0; 2],
            seed: u64::MAX,
        },
        round: RoundSpec {
            fraction_train: 0.3,
            min_vehicles: 2,
            over_selection: 1.3,
            quorum: 0.7,
            round_timeout: Duration::from_secs(10),
            min_window: Duration::from_millis(5),
            edge_rounds: 2,
            max_examples: 1_000_000,
            max_norm: 0.1,
            max_norm_ratio: 0.0,
            latency_budget: Duration::from_millis(500),
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    };
    Ledger {
        plan: JobPlan {
            spec,
            merge_round: RoundId(4),
            base_version: ModelVersion(3),
            model: Digest([1; 32]),
            model_bytes: 100,
            exponents: vec![-3, 2],
            norm_bound: 0.3,
            window_ends: Timestamp(1000),
            paused: false,
        },
        contribute_by: Timestamp(950),
        next_round: RoundId(8),
        done: false,
        counted: vec![RoundId(1)],
        edge_examples: 55,
        model: Digest([2; 32]),
        terms: Some(RoundTerms {
            round: RoundId(7),
            base_version: ModelVersion(3),
            cohort: [vehicle("v1"), vehicle("v2")].into(),
            target: 2,
            quorum: 1,
            opened: Timestamp(10),
            earliest_close: Timestamp(15),
            deadline: Timestamp(800),
            guard: Guard {
                schema: Digest([9; 32]),
                max_examples: 1000,
                max_norm: 0.1 + 0.2,
            },
            max_staleness: Some(3),
        }),
        summaries: vec![RoundSummary {
            round: RoundId(6),
            opened: Timestamp(1),
            closed: Timestamp(9),
            cohort: vec![vehicle("v1")],
            target: 1,
            quorum: 1,
            accepted: 1,
            aggregated: true,
        }],
        published: vec![Published {
            key: ModelKey::of(&Digest([1; 32])),
            chunks: 3,
        }],
        up_bytes: 5,
        down_bytes: 6,
        next_line: 0,
    }
}

fn line(from: &str, verdict: Verdict) -> Contribution {
    Contribution {
        vehicle: vehicle(from),
        round: RoundId(7),
        update_id: UpdateId([7; 16]),
        num_examples: 10,
        verdict,
        l2_norm: 0.1 + 0.2,
        handling: Duration::from_millis(12),
        metrics: UpdateMetrics {
            loss: Some(0.7 / 3.0),
            train: Duration::from_millis(900),
            receipts: 3,
            receipts_within_budget: 2,
            last_latency: Duration::from_millis(77),
            encoding: None,
            goodput_bytes_per_s: 0,
        },
    }
}

fn update(from: &str) -> StoredUpdate {
    StoredUpdate {
        vehicle: vehicle(from),
        round: RoundId(7),
        accepted: Accepted {
            update_id: UpdateId([7; 16]),
            num_examples: 10,
        },
        staleness: 2,
    }
}

fn pending() -> Pending {
    Pending {
        merge_round: RoundId(3),
        partial_id: UpdateId([8; 16]),
        bytes: vec![6; 5000],
    }
}

/// The life of a round, commit by commit.
fn commits() -> Vec<Vec<Write>> {
    let known = Vehicle {
        generation: Generation(4),
        backbone: Some(Digest([3; 32])),
        num_examples: 10,
        receipts: 3,
        receipts_within_budget: 2,
    };
    let key = |n: u8| UpdateId([n; 16]);
    vec![
        vec![
            Write::Generation(Generation(9)),
            Write::Vehicle(vehicle("v1"), known),
        ],
        vec![
            Write::Ledger(job(), Box::new(ledger())),
            Write::Model(Digest([1; 32]), vec![1; 100]),
        ],
        vec![
            Write::Update(job(), update("v1"), vec![5; 3000]),
            Write::Receipt(job(), key(1), RoundId(7), Verdict::Accepted),
            Write::Line(job(), 0, line("v1", Verdict::Accepted)),
        ],
        vec![
            Write::Receipt(
                job(),
                key(2),
                RoundId(7),
                Verdict::Rejected(RejectReason::NotFinite),
            ),
            Write::Line(
                job(),
                1,
                line("v2", Verdict::Rejected(RejectReason::NotFinite)),
            ),
        ],
        vec![
            Write::Line(job(), 2, line("v3", Verdict::Stale)),
            Write::Partial(job(), pending()),
            Write::Residual(job(), vec![0.5, -0.25]),
        ],
        vec![
            Write::Line(job(), 3, line("v1", Verdict::Stale)),
            Write::Update(job(), update("v2"), vec![6; 3000]),
            Write::DropUpdates(job()),
            Write::DropLines(job()),
            Write::ForgetReceipts(job(), vec![key(1)]),
        ],
        vec![
            Write::Line(job(), 0, line("v2", Verdict::Stale)),
            Write::DropPartial(job()),
        ],
        vec![
            Write::ForgetVehicle(vehicle("v1")),
            Write::Update(job(), update("v2"), vec![6; 3000]),
        ],
    ]
}

/// Whatever was committed is read back after a reopen, and it is what the plain form in memory holds.
#[test]
fn disk_and_memory_agree_after_every_commit() {
    let folder = tempfile::tempdir().unwrap();
    let mut memory = Memory::default();
    for writes in commits() {
        let mut disk = Disk::open(folder.path()).unwrap();
        disk.commit(writes.clone()).unwrap();
        memory.commit(writes).unwrap();
        drop(disk);
        let mut disk = Disk::open(folder.path()).unwrap();
        assert_eq!(disk.load().unwrap(), memory.load().unwrap());
        assert_eq!(disk.model(Digest([1; 32])), memory.model(Digest([1; 32])));
        for update in [update("v1"), update("v2")] {
            let key = update.key();
            let frame = disk.frame(&job(), key);
            assert_eq!(frame, memory.frame(&job(), key));
            for range in [0..0, 7..90, 2990..3000, 2990..3001] {
                let (mut one, mut other) = (Vec::new(), Vec::new());
                let read = disk.read_frame(&job(), key, range.clone(), &mut one);
                let also = memory.read_frame(&job(), key, range.clone(), &mut other);
                assert_eq!(read.is_ok(), also.is_ok(), "{range:?}");
                assert!(read.is_err() || one == other);
            }
        }
    }
    assert_eq!(list(&folder.path().join("updates")).unwrap().len(), 1);
    assert!(list(&folder.path().join("partials")).unwrap().is_empty());
    let mut disk = Disk::open(folder.path()).unwrap();
    disk.keep_models(&[]);
    assert_eq!(disk.model(Digest([1; 32])), None);
}

fn filled(folder: &Path) {
    let mut disk = Disk::open(folder).unwrap();
    for writes in commits().into_iter().take(5) {
        disk.commit(writes).unwrap();
    }
}

#[test]
fn damaged_files_are_left_out_and_harm_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    for kind in ["updates", "models", "partials"] {
        let below = folder.path().join(kind);
        for name in list(&below).unwrap() {
            fs::write(below.join(name), [0; 100]).unwrap();
        }
    }
    let mut disk = Disk::open(folder.path()).unwrap();
    let stored = disk.load().unwrap();
    let kept = &stored.jobs[&job()];
    assert!(kept.pending.is_none() && kept.ledger.is_some());
    // Its record says that it was accepted; that its frame is gone shows when it is read.
    assert_eq!(kept.updates.len(), 1);
    assert_eq!(disk.frame(&job(), kept.updates[0].key()), None);
    assert_eq!((kept.lines.len(), kept.receipts.len()), (3, 2));
    assert_eq!(disk.model(Digest([1; 32])), None);
}

#[test]
fn a_damaged_store_is_moved_aside_and_begun_anew() {
    for rubbish in [&[0_u8; 4096][..], b"", b"\xff not a store"] {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path());
        let records = folder.path().join("records");
        for name in list(&records)
            .unwrap()
            .iter()
            .filter(|name| *name != "blobs")
        {
            let path = records.join(name);
            if path.is_file() {
                fs::write(path, rubbish).unwrap();
            }
        }
        let mut disk = Disk::open(folder.path()).unwrap();
        let stored = disk.load().unwrap();
        assert!(stored.jobs.is_empty() && stored.generation == Generation(0));
        disk.commit(vec![Write::Generation(Generation(1))]).unwrap();
    }
}

#[test]
fn a_damaged_record_costs_its_job_only() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path());
    let mut disk = Disk::open(folder.path()).unwrap();
    disk.records
        .insert("ledger/lights/now", b"{".as_slice())
        .unwrap();
    disk.records
        .insert("receipt/lights/zz", b"[]".as_slice())
        .unwrap();
    let stored = disk.load().unwrap();
    assert!(stored.damaged && stored.jobs[&job()].ledger.is_none());
    assert_eq!(
        (stored.generation, stored.vehicles.len()),
        (Generation(9), 1)
    );
}
