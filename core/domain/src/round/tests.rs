use super::*;
use crate::update::PayloadStats;
use proptest::prelude::*;

const SCHEMA: Digest = Digest([1; 32]);

fn terms(members: u8, target: usize, quorum: usize) -> RoundTerms<u8> {
    RoundTerms {
        round: RoundId(7),
        base_version: ModelVersion(3),
        cohort: (0..members).collect(),
        target,
        quorum,
        opened: Timestamp(1000),
        earliest_close: Timestamp(1500),
        deadline: Timestamp(9000),
        guard: Guard {
            schema: SCHEMA,
            max_examples: 1000,
            max_norm: 10.0,
        },
        max_staleness: None,
    }
}

fn update(member: u8, id: u8) -> Update<u8> {
    Update {
        member,
        update_id: UpdateId([id; 16]),
        round: RoundId(7),
        base_version: ModelVersion(3),
        schema: SCHEMA,
        num_examples: 10,
        stats: PayloadStats {
            finite: true,
            l2_norm: 1.0,
        },
    }
}

fn verdict(effects: &[Effect<u8>]) -> Verdict {
    let replies: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Reply { verdict, .. } => Some(*verdict),
            _ => None,
        })
        .collect();
    assert_eq!(replies.len(), 1, "one update, one answer");
    replies[0]
}

#[test]
fn each_fault_has_its_verdict_and_changes_nothing() {
    let check = |change: fn(&mut Update<u8>), expected: Verdict| {
        let mut round = Round::open(terms(4, 4, 2));
        let mut bad = update(1, 1);
        change(&mut bad);
        assert_eq!(verdict(&round.on_update(Timestamp(2000), &bad)), expected);
        assert!(round.accepted().is_empty());
    };
    let rejected = Verdict::Rejected;
    check(|u| u.round = RoundId(6), Verdict::Stale);
    check(
        |u| u.round = RoundId(8),
        rejected(RejectReason::UnknownRound),
    );
    check(
        |u| u.base_version = ModelVersion(2),
        rejected(RejectReason::WrongBase),
    );
    check(|u| u.member = 9, rejected(RejectReason::NotInCohort));
    check(
        |u| u.schema = Digest([2; 32]),
        rejected(RejectReason::WrongSchema),
    );
    check(
        |u| u.stats.finite = false,
        rejected(RejectReason::NotFinite),
    );
    check(|u| u.num_examples = 0, rejected(RejectReason::NoExamples));
    check(
        |u| u.num_examples = 1_000_000_000,
        rejected(RejectReason::TooManyExamples),
    );
    check(
        |u| u.stats.l2_norm = 1e4,
        rejected(RejectReason::NormTooLarge),
    );
    check(
        |u| u.stats.l2_norm = f64::NAN,
        rejected(RejectReason::NormTooLarge),
    );
}

#[test]
fn persist_comes_before_reply_and_reply_before_close() {
    let mut round = Round::open(terms(2, 2, 1));
    round.on_update(Timestamp(2000), &update(0, 1));
    let effects = round.on_update(Timestamp(2000), &update(1, 2));
    assert!(matches!(
        effects[..],
        [
            Effect::Persist { .. },
            Effect::Reply { .. },
            Effect::Close {
                outcome: Outcome::Aggregated
            }
        ]
    ));
}

#[test]
fn the_same_update_three_times_counts_once_also_after_the_close_and_after_a_restart() {
    let mut round = Round::open(terms(2, 2, 1));
    assert_eq!(
        verdict(&round.on_update(Timestamp(2000), &update(0, 1))),
        Verdict::Accepted
    );
    assert_eq!(
        verdict(&round.on_update(Timestamp(2100), &update(0, 1))),
        Verdict::Duplicate
    );
    assert_eq!(
        verdict(&round.on_update(Timestamp(2200), &update(0, 5))),
        Verdict::Rejected(RejectReason::AlreadyContributed)
    );
    let mut again = Round::restore(round.terms().clone(), round.accepted().clone());
    assert_eq!(
        verdict(&again.on_update(Timestamp(3000), &update(0, 1))),
        Verdict::Duplicate
    );
    again.on_tick(Timestamp(9000));
    assert_eq!(
        verdict(&again.on_update(Timestamp(9100), &update(0, 1))),
        Verdict::Duplicate
    );
    assert_eq!(
        verdict(&again.on_update(Timestamp(9100), &update(1, 2))),
        Verdict::Stale
    );
    assert_eq!(again.num_examples(), 10);
}

#[test]
fn the_minimum_window_holds_the_close_back() {
    let mut round = Round::open(terms(1, 1, 1));
    let effects = round.on_update(Timestamp(1100), &update(0, 1));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Close { .. }))
    );
    assert_eq!(round.next_deadline(), Some(Timestamp(1500)));
    assert!(round.on_tick(Timestamp(1499)).is_empty());
    assert_eq!(round.on_tick(Timestamp(1500)).len(), 1);
    assert_eq!(round.next_deadline(), None);
}

#[test]
fn a_deadline_without_quorum_is_no_result() {
    let mut round = Round::open(terms(4, 4, 2));
    round.on_update(Timestamp(2000), &update(0, 1));
    assert_eq!(
        round.on_tick(Timestamp(9000)),
        [Effect::Close {
            outcome: Outcome::NoResult
        }]
    );
    assert!(round.on_tick(Timestamp(9001)).is_empty(), "closes once");
}

#[test]
fn a_newcomer_is_waited_for_where_everybody_was_wanted() {
    let mut round = Round::open(terms(1, 1, 1));
    round.admit(1);
    round.admit(1);
    assert_eq!(round.terms().target, 2);
    round.on_update(Timestamp(2000), &update(0, 1));
    assert_eq!(round.outcome(), None);
    round.on_update(Timestamp(2000), &update(1, 2));
    assert_eq!(round.outcome(), Some(&Outcome::Aggregated));
    round.admit(2);
    assert_eq!(
        round.terms().cohort.len(),
        2,
        "a closed round takes nobody in"
    );
}

proptest! {
    /// Whatever arrives, in whatever order and however often: a member counts at most once, nothing counts after the
    /// close, the round closes exactly once, and what was persisted is what counts.
    #[test]
    fn counting_holds_under_any_delivery(
        deliveries in proptest::collection::vec((0u8..8, 0u8..12, 1000u64..12_000), 0..60),
        target in 1usize..8, quorum in 1usize..8,
    ) {
        let mut deliveries = deliveries;
        deliveries.sort_by_key(|(_, _, at)| *at);
        let mut round = Round::open(terms(6, target, quorum));
        let (mut persisted, mut closed) = (BTreeMap::new(), 0);
        for (member, id, at) in deliveries {
            for effect in round.on_update(Timestamp(at), &update(member, id)) {
                match effect {
                    Effect::Persist { member, update_id } => {
                        prop_assert_eq!(closed, 0);
                        prop_assert!(persisted.insert(member, update_id).is_none());
                    }
                    Effect::Reply { verdict, to, update_id } => {
                        prop_assert_eq!(verdict.counts(), persisted.get(&to) == Some(&update_id));
                    }
                    Effect::Close { .. } => closed += 1,
                }
            }
        }
        closed += round.on_tick(Timestamp(9000)).len();
        prop_assert_eq!(closed, 1);
        prop_assert!(round.next_deadline().is_none());
        let counted: BTreeMap<_, _> = round.accepted().iter().map(|(m, a)| (*m, a.update_id)).collect();
        prop_assert_eq!(&counted, &persisted);
        let quorum = round.terms().quorum;
        let enough = persisted.len() >= quorum;
        prop_assert_eq!(round.outcome() == Some(&Outcome::Aggregated), enough);
    }
}
