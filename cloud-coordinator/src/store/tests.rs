use super::*;
use crate::federation::{Closing, Progress, RoundReport, Tally};
use std::collections::{BTreeMap, BTreeSet};
use wayside_domain::ids::{ModelVersion, RoadsideId, UpdateId};
use wayside_domain::round::Accepted;
use wayside_domain::time::Timestamp;

fn job() -> JobId {
    JobId::new("lights").unwrap()
}

fn progress(merge_round: u64) -> Progress {
    Progress {
        created: Timestamp(1),
        paused: true,
        merge_round: RoundId(merge_round),
        released: ModelVersion(3),
        newest: ModelVersion(4),
        exponents: vec![-7, 3],
        norm_bound: 0.1 + 0.2,
        last_merge: Some(Timestamp(u64::MAX)),
    }
}

fn report(merge_round: u64, closed: bool) -> RoundReport {
    let unit = RoadsideId::new("north").unwrap();
    let accepted = Accepted {
        update_id: UpdateId([7; 16]),
        num_examples: u64::MAX,
    };
    RoundReport {
        merge_round: RoundId(merge_round),
        base_version: ModelVersion(3),
        opened: Timestamp(5),
        earliest_close: Timestamp(6),
        deadline: Timestamp(7),
        cohort: BTreeSet::from([unit.clone()]),
        accepted: BTreeMap::from([(unit, accepted)]),
        tally: Tally {
            accepted: 1,
            refused: 2,
            up_bytes: 3,
            down_bytes: 4,
        },
        closed: closed.then_some((Timestamp(9), Closing::Merged, Some(ModelVersion(4)))),
    }
}

/// Everything that a form of the store has to do.
fn check_form(store: &Store) {
    let round = |n, closed| Change::Round(job(), RoundRecord::from(&report(n, closed)));
    let changes = [
        Change::Job(job(), JobRecord::new(&job(), &progress(2))),
        round(10, true),
        round(9, false),
    ];
    store.commit(&changes).unwrap();
    let read = store.jobs().unwrap()[0].read().unwrap();
    assert_eq!(read, (job(), progress(2)), "to the last bit");
    let rounds = store.rounds(&job()).unwrap();
    let rounds: Vec<_> = rounds
        .iter()
        .map(|r| RoundReport::try_from(r).unwrap())
        .collect();
    assert_eq!(rounds, [report(9, false), report(10, true)], "in order");
    assert!(
        store
            .rounds(&JobId::new("light").unwrap())
            .unwrap()
            .is_empty()
    );
    assert!(store.round(&job(), RoundId(1)).unwrap().is_none());

    let partial = |judged_in: u64, id: u8| {
        let judged = crate::federation::Judged {
            judged_in: RoundId(judged_in),
            roadside: RoadsideId::new("north").unwrap(),
            partial_id: UpdateId([id; 16]),
            verdict: wayside_domain::update::Verdict::Rejected(
                wayside_domain::update::RejectReason::NotFinite,
            ),
            num_examples: 1,
            tally: Tally::default(),
            record: true,
            conflict: None,
        };
        PartialRecord::new(&judged, Timestamp(1))
    };
    let changes = [(1, 1), (1, 2), (2, 3)].map(|(n, id)| Change::Partial(job(), partial(n, id)));
    store.commit(&changes).unwrap();
    assert_eq!(
        store.partials(&job(), RoundId(1)).unwrap(),
        [partial(1, 1), partial(1, 2)]
    );
    let receipt = store.partials(&job(), RoundId(2)).unwrap()[0]
        .receipt()
        .unwrap();
    assert_eq!(receipt.2.label(), "not_finite");
    store
        .commit(&[Change::DropPartials(job(), RoundId(1))])
        .unwrap();
    assert!(store.partials(&job(), RoundId(1)).unwrap().is_empty());
    assert_eq!(store.partials(&job(), RoundId(2)).unwrap().len(), 1);
}

#[test]
fn both_forms_do_the_same() {
    check_form(&Store::new(MemoryTable::default()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    check_form(&Store::open(&path).unwrap());
    let again = Store::open(&path).unwrap();
    assert_eq!(
        again.jobs().unwrap().len(),
        1,
        "still there, and its lock was let go of"
    );
}

#[test]
fn a_failed_commit_changes_nothing() {
    let table = MemoryTable::default();
    let store = Store::new(table.clone());
    store
        .commit(&[Change::Job(job(), JobRecord::new(&job(), &progress(1)))])
        .unwrap();
    table.fail(true);
    let change = [Change::Job(job(), JobRecord::new(&job(), &progress(2)))];
    assert!(store.commit(&change).is_err());
    table.fail(false);
    assert_eq!(store.jobs().unwrap()[0].read().unwrap().1, progress(1));
}

#[test]
fn a_store_with_records_of_something_else_is_moved_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = sled::open(&path).unwrap();
    db.insert("job/lights", &b"{\"job\":3}"[..]).unwrap();
    db.flush().unwrap();
    drop(db);
    let store = Store::open(&path).unwrap();
    assert!(store.jobs().unwrap().is_empty());
    assert!(folder.path().join("store.damaged-1").is_dir());
    drop(store);
    for (name, content) in [
        ("db", &b""[..]),
        ("conf", &b"nonsense"[..]),
        ("db", &[0xff; 9000][..]),
    ] {
        std::fs::write(path.join(name), content).unwrap();
        let store = Store::open(&path).expect(name);
        store
            .commit(&[Change::Job(job(), JobRecord::new(&job(), &progress(1)))])
            .unwrap();
    }
}
