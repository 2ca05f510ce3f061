use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use wayside_domain::encoding::{CodecSpec, UpdateEncoding};
use wayside_domain::head::Standardisation;
use wayside_domain::ids::ModelVersion;
use wayside_domain::job::{AggregationSpec, Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec};

use super::*;
use crate::machine::Announced;

fn rsu() -> RoadsideId {
    RoadsideId::new("rsu").unwrap()
}

fn job() -> JobId {
    JobId::new("lights").unwrap()
}

fn order(round: u64) -> Order {
    let second = std::time::Duration::from_secs(1);
    let spec = JobSpec {
        job: job(),
        model: ModelSpec {
            backbone: None,
            input_height: 128,
            input_width: 64,
            classes: vec!["red".into(), "green".into()],
            standardisation: Standardisation::identity(4),
            network: wayside_domain::network::Network::LinearHead,
            personal: Vec::new(),
        },
        training: TrainingSpec {
            lr: 0.1,
            momentum: 0.0,
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
            round_timeout: second,
            min_window: second,
            edge_rounds: 1,
            max_examples: 1000,
            max_norm: 100.0,
            max_norm_ratio: 0.0,
            latency_budget: second,
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    };
    Order {
        job: job(),
        spec: Arc::new(spec),
        round: Announced {
            round: RoundId(round),
            base_version: ModelVersion(4),
            model: Digest([1; 32]),
            model_bytes: 1,
            model_chunks: 1,
            job_digest: Digest([2; 32]),
            exponents: vec![0, 0],
            in_cohort: true,
            open: true,
        },
        encoding: UpdateEncoding::Fp16,
    }
}

/// A file of the folder by its name on the shelf.
fn file(folder: &tempfile::TempDir, name: String) -> std::path::PathBuf {
    folder.path().join(name)
}

fn open(folder: &Path, now: u64) -> (Spool, Opened) {
    Spool::open(folder, &rsu(), Timestamp(now)).unwrap()
}

fn seal(spool: &mut Spool, generation: Generation, round: u64) -> OutboxEntry {
    let encoded = Encoded {
        job: job(),
        round: RoundId(round),
        num_examples: 5,
        loss: 0.5,
        train_ms: 3,
        encoded: Timestamp(77),
        encoding: UpdateEncoding::Int8,
        frame: vec![9; 100],
        residual: Some(vec![round as f32, -0.5]),
        personal: vec![0.25; 3],
    };
    let vehicle = VehicleId::new("v1").unwrap();
    let sender = (&vehicle, &rsu(), generation);
    spool
        .seal(sender, &order(round), &encoded, UpdateMetrics::default())
        .unwrap()
        .0
}

#[test]
fn a_sealed_update_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut spool, opened) = open(folder.path(), 1000);
    assert_eq!(opened.generation, Generation(1000));
    let first = seal(&mut spool, opened.generation, 1);
    let second = seal(&mut spool, opened.generation, 2);
    assert_ne!(first.update_id, second.update_id);
    spool.forget_update(&first, true).unwrap();
    drop(spool);

    // The clock went back meanwhile: starts still count up.
    let (spool, opened) = open(folder.path(), 5);
    assert_eq!(opened.generation, Generation(1001));
    assert_eq!(opened.restored.outbox, std::slice::from_ref(&second));
    assert_eq!(opened.restored.done, BTreeMap::from([(job(), RoundId(2))]));
    let update = Update::decode(&spool.payloads().read_update(second.update_id).unwrap()).unwrap();
    assert_eq!(
        (update.round, update.base_version, update.num_examples),
        (RoundId(2), ModelVersion(4), 5)
    );
    assert_eq!(update.update_id, second.update_id);
    assert!(spool.payloads().read_update(first.update_id).is_err());
    drop(spool);

    let other = RoadsideId::new("other").unwrap();
    let (_, opened) = Spool::open(folder.path(), &other, Timestamp(5)).unwrap();
    assert!(
        opened.restored.done.is_empty(),
        "rounds count for each roadside unit"
    );
    assert_eq!(opened.restored.outbox.len(), 1);
}

#[test]
fn a_lost_payload_opens_its_round_again_and_orphans_are_swept_away() {
    let folder = tempfile::tempdir().unwrap();
    let (mut spool, opened) = open(folder.path(), 1);
    let entry = seal(&mut spool, opened.generation, 1);
    let path = file(&folder, name::update(entry.update_id));
    drop(spool);
    fs::write(&path, [0; 500]).unwrap();
    let orphan = folder
        .path()
        .join("outbox/00112233445566778899aabbccddeeff.update");
    fs::write(&orphan, b"x").unwrap();
    fs::write(folder.path().join("outbox/.x.1-1.wayside-tmp"), b"x").unwrap();

    let (_, opened) = open(folder.path(), 2);
    assert!(opened.restored.outbox.is_empty() && opened.restored.done.is_empty());
    let left: Vec<String> = fs::read_dir(folder.path().join("outbox"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        left,
        [format!("{}.update.damaged-1", entry.update_id.to_hex())]
    );
}

#[test]
fn models_are_checked_before_they_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (spool, _) = open(folder.path(), 1);
    let (payloads, bytes) = (spool.payloads().clone(), b"a model".as_slice());
    let digest = codec::digest(bytes);
    assert!(!payloads.write_model(digest, b"another").unwrap());
    assert!(payloads.write_model(digest, bytes).unwrap());
    assert_eq!(payloads.read_model(digest).unwrap(), bytes);
    drop(spool);
    let (spool, opened) = open(folder.path(), 2);
    assert_eq!(opened.restored.models, BTreeSet::from([digest]));
    fs::write(file(&folder, name::model(digest)), b"").unwrap();
    assert!(payloads.read_model(digest).is_err());
    assert!(!file(&folder, name::model(digest)).exists(), "moved aside");
    payloads.write_model(digest, bytes).unwrap();
    spool.payloads().drop_models(&[digest, Digest([7; 32])]);
    assert!(!file(&folder, name::model(digest)).exists());
}

#[test]
fn the_newest_specification_of_each_job_is_kept_and_only_so_many() {
    let folder = tempfile::tempdir().unwrap();
    let (mut spool, _) = open(folder.path(), 1);
    let digest = |n: u8| codec::digest(&[n]);
    spool.remember_job(&rsu(), &job(), digest(1), &[1]).unwrap();
    spool.remember_job(&rsu(), &job(), digest(1), &[1]).unwrap();
    spool.remember_job(&rsu(), &job(), digest(2), &[2]).unwrap();
    assert!(!file(&folder, name::job(digest(1))).exists());
    drop(spool);
    let (mut spool, opened) = open(folder.path(), 2);
    assert_eq!(opened.specs, [(digest(2), vec![2])]);
    for n in 3..100 {
        let name = JobId::new(format!("job{n}")).unwrap();
        spool.remember_job(&rsu(), &name, digest(n), &[n]).unwrap();
    }
    drop(spool);
    let (_, opened) = open(folder.path(), 3);
    assert_eq!(opened.specs.len(), MAX_JOBS);
    assert_eq!(
        fs::read_dir(folder.path().join("jobs")).unwrap().count(),
        MAX_JOBS
    );
}

/// What an encoding took counts once the update does, and is lost with an update that does not count.
#[test]
fn feedback_waits_for_the_receipt() {
    let folder = tempfile::tempdir().unwrap();
    let (mut spool, opened) = open(folder.path(), 1000);
    let payloads = spool.payloads().clone();
    assert!(payloads.residual(&job()).is_empty() && payloads.personal(&job()).is_empty());
    let first = seal(&mut spool, opened.generation, 1);
    assert!(payloads.residual(&job()).is_empty(), "no receipt yet");
    assert_eq!(payloads.personal(&job()), [0.25; 3]);
    spool.forget_update(&first, true).unwrap();
    assert_eq!(payloads.residual(&job()), [1.0, -0.5]);
    let second = seal(&mut spool, opened.generation, 2);
    spool.forget_update(&second, false).unwrap();
    assert_eq!(
        payloads.residual(&job()),
        [1.0, -0.5],
        "the second did not count"
    );
    let third = seal(&mut spool, opened.generation, 3);
    drop(spool);
    let (mut spool, _) = open(folder.path(), 2000);
    spool.forget_update(&third, true).unwrap();
    assert_eq!(
        payloads.residual(&job()),
        [3.0, -0.5],
        "also after a restart"
    );
    // A damaged file begins anew.
    let path = folder
        .path()
        .join("feedback")
        .join(format!("{}.residual", job()));
    fs::write(path, b"rubbish").unwrap();
    assert!(payloads.residual(&job()).is_empty());
}

/// Found by simulated crashes: that a record is gone is not durable until the next write, so after a crash it can be back
/// while its payload is not. Its round was taken for lost then and trained once more, after its receipt.
#[test]
fn a_round_with_a_receipt_stays_done_when_a_crash_brings_its_record_back() {
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Debug, Default)]
    struct Disk(Arc<Mutex<crate::store::MemoryStore>>);
    impl Store for Disk {
        fn load(&self) -> Result<crate::store::Records, StoreError> {
            self.0.lock().unwrap().load()
        }
        fn begin(&mut self, generation: Generation) -> Result<(), StoreError> {
            self.0.lock().unwrap().begin(generation)
        }
        fn record_update(&mut self, entry: &OutboxEntry, seals: u64) -> Result<(), StoreError> {
            self.0.lock().unwrap().record_update(entry, seals)
        }
        fn forget_update(&mut self, update_id: UpdateId) -> Result<(), StoreError> {
            self.0.lock().unwrap().forget_update(update_id)
        }
        fn reopen_round(&mut self, roadside: &RoadsideId, job: &JobId) -> Result<(), StoreError> {
            self.0.lock().unwrap().reopen_round(roadside, job)
        }
        fn remember_job(
            &mut self,
            roadside: &RoadsideId,
            job: &JobId,
            digest: Option<Digest>,
        ) -> Result<(), StoreError> {
            self.0.lock().unwrap().remember_job(roadside, job, digest)
        }
    }

    let disk = Disk::default();
    let store = Box::new(disk.clone());
    let (mut spool, opened) = Spool::in_memory(None, store, &rsu(), Timestamp(1)).unwrap();
    let entry = seal(&mut spool, opened.generation, 7);
    spool.forget_update(&entry, true).unwrap();
    let payloads = spool.payloads().clone();
    drop(spool);
    let crashed = disk.0.lock().unwrap().after_crash();
    *disk.0.lock().unwrap() = crashed;

    let store = Box::new(disk.clone());
    let (_, opened) = Spool::in_memory(Some(payloads), store, &rsu(), Timestamp(2)).unwrap();
    assert!(opened.restored.outbox.is_empty());
    assert_eq!(opened.restored.done, [(job(), RoundId(7))].into());
}
