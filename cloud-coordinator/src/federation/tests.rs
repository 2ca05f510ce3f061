use std::time::Duration;

use super::*;
use crate::job::{Features, RootSet};
use crate::strategy::{Adaptive, ServerOptimizer};
use ndarray::array;
use proptest::prelude::*;
use wayside_domain::aggregate::RuleSpec;
use wayside_domain::aggregate::WeightedSum;
use wayside_domain::encoding::CodecSpec;
use wayside_domain::head::Standardisation;
use wayside_domain::ids::{JobId, ModelVersion};
use wayside_domain::job::{AggregationSpec, Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec};
use wayside_domain::schema::Schema;
use wayside_proto::codec;
use wayside_proto::convert::{Contribution, PartialAggregate, UpdateMetrics};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
const START: Timestamp = Timestamp(1_700_000_000_000);

fn at(ms: u64) -> Timestamp {
    Timestamp(START.0 + ms)
}

fn unit(n: u8) -> RoadsideId {
    RoadsideId::new(format!("unit-{n}")).unwrap()
}

/// Two features, two classes: six parameters.
fn rules() -> Rules {
    let schema = Schema::linear_head(2, 2).unwrap();
    Rules {
        initial: None,
        job: JobId::new("job").unwrap(),
        schema_digest: codec::schema_digest(&schema),
        schema,
        server: ServerOptimizer::Plain { lr: 1.0 },
        quorum: 0.5,
        min_roadsides: 1,
        period: Duration::from_millis(DAY),
        merge_when_complete: true,
        merges: 0,
        edge_rounds: 1,
        max_examples: 1_000_000_000,
        max_norm: 100.0,
        max_norm_ratio: 0.0,
        max_regression: 0.1,
        merge: MergeRule::Sum,
        keeps_scales: false,
    }
}

/// The job that [`rules`] are of.
fn spec() -> JobSpec {
    JobSpec {
        job: JobId::new("job").unwrap(),
        model: ModelSpec {
            backbone: None,
            input_height: 32,
            input_width: 32,
            classes: vec!["a".into(), "b".into()],
            standardisation: Standardisation::identity(2),
            network: wayside_domain::network::Network::LinearHead,
            personal: Vec::new(),
        },
        training: TrainingSpec {
            lr: 0.1,
            momentum: 0.0,
            weight_decay: 0.0,
            batch_size: 2,
            effort: Effort::LocalEpochs(1),
            proximal_mu: 0.0,
            class_weights: vec![1.0; 2],
            seed: 3,
        },
        round: RoundSpec {
            fraction_train: 1.0,
            min_vehicles: 1,
            over_selection: 1.0,
            quorum: 0.5,
            round_timeout: Duration::from_secs(1),
            min_window: Duration::ZERO,
            edge_rounds: 1,
            max_examples: 1000,
            max_norm: 100.0,
            max_norm_ratio: 0.0,
            latency_budget: Duration::from_millis(500),
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    }
}

/// Class 0 where the first feature is positive.
fn features() -> Features {
    Features {
        values: array![[2.0, 0.0], [1.0, 0.5], [-1.0, 0.0], [-2.0, 0.3]],
        labels: vec![0, 0, 1, 1],
        backbone: None,
    }
}

fn held_back() -> Arc<HeldBack> {
    Arc::new(HeldBack::new(features(), &spec().model))
}

/// Moves the head towards what [`held_back`] wants, times a factor.
fn step(factor: f32) -> Vec<f32> {
    [1.0, -1.0, 0.0, 0.0, 0.0, 0.0].map(|v| v * factor).to_vec()
}

#[derive(Clone, Debug)]
struct Sent {
    vehicle: u16,
    examples: u64,
    delta: Vec<f32>,
}

fn sent(vehicle: u16, examples: u64, factor: f32) -> Sent {
    Sent {
        vehicle,
        examples,
        delta: step(factor),
    }
}

fn line(from: &Sent, l2_norm: f64) -> Contribution {
    Contribution {
        vehicle: VehicleId::new(format!("car-{}", from.vehicle)).unwrap(),
        round: RoundId(1),
        update_id: UpdateId([u8::try_from(from.vehicle % 251).unwrap(); 16]),
        num_examples: from.examples,
        verdict: Verdict::Accepted,
        l2_norm,
        handling: Duration::from_millis(1),
        metrics: UpdateMetrics {
            loss: None,
            train: Duration::ZERO,
            receipts: 0,
            receipts_within_budget: 0,
            last_latency: Duration::ZERO,
            encoding: None,
            goodput_bytes_per_s: 0,
        },
    }
}

/// What a roadside unit sends after one round with these updates, as it goes over the wire.
fn wire(machine: &Federation, from: u8, id: u8, updates: &[Sent]) -> PartialAggregate {
    let (rules, progress) = (&machine.rules, machine.progress());
    let mut sum = WeightedSum::new(rules.schema.num_parameters(), progress.exponents.clone());
    let mut lines = Vec::new();
    for update in updates {
        let frame = codec::encode_delta(&rules.schema, &update.delta, &progress.exponents).unwrap();
        let delta = codec::decode_delta(&frame, &rules.schema).unwrap();
        sum.add(update.examples, delta.exponents(), delta.values())
            .unwrap();
        lines.push(line(update, delta.stats().l2_norm));
    }
    let sum = codec::Sum {
        exponents: sum.exponents().to_vec(),
        values: sum.values().to_vec(),
        num_examples: sum.num_examples(),
        bound: sum.bound(),
    };
    PartialAggregate {
        job: rules.job.clone(),
        roadside: unit(from),
        merge_round: progress.merge_round,
        base_version: progress.released,
        partial_id: UpdateId([id; 16]),
        num_examples: sum.num_examples,
        sum_frame: codec::encode_sum(&rules.schema, &sum).unwrap(),
        contributions: lines,
        rounds: Vec::new(),
        up_bytes: 10,
        down_bytes: 20,
        vehicles_online: 1,
    }
}

fn submit(machine: &mut Federation, now: Timestamp, wire: &PartialAggregate) -> Vec<Effect> {
    let (partial, _) = Partial::from_wire(wire, &machine.rules.schema.clone());
    machine.on_partial(now, partial)
}

fn verdict(effects: &[Effect]) -> Verdict {
    let reply = |effect: &Effect| match effect {
        Effect::Reply { verdict, .. } => Some(*verdict),
        _ => None,
    };
    let replies: Vec<_> = effects.iter().filter_map(reply).collect();
    assert_eq!(replies.len(), 1, "one partial aggregate, one answer");
    replies[0]
}

fn version(effects: &[Effect]) -> Option<&NewVersion> {
    effects.iter().find_map(|effect| match effect {
        Effect::Version(version) => Some(&**version),
        _ => None,
    })
}

fn closing(effects: &[Effect]) -> Option<Closing> {
    effects.iter().find_map(|effect| match effect {
        Effect::Closed(report) => report.closed.map(|(_, closing, _)| closing),
        _ => None,
    })
}

/// A job with `units` connected, its first merge round open.
fn running(rules: Rules, units: u8) -> Federation {
    let (mut machine, first) = Federation::begin(rules, Some(held_back()), 7, START).unwrap();
    assert!(first.evaluation.is_some() && first.gate == Gate::Released);
    for n in 0..units {
        machine.on_hello(START, &unit(n));
    }
    machine
}

/// Stops the machine and starts it from what was kept.
fn restarted(
    machine: &Federation,
    judged: &[Judged],
    kept: &[PartialAggregate],
    now: Timestamp,
) -> Federation {
    let schema = &machine.rules.schema;
    let open = machine.open_round();
    let counts = |wire: &&PartialAggregate| {
        let mut accepted = open.iter().flat_map(|report| report.accepted.values());
        accepted.any(|accepted| accepted.update_id == wire.partial_id)
    };
    let members = machine.members.iter().map(|(id, member)| {
        (
            id.clone(),
            Member {
                connected: false,
                ..*member
            },
        )
    });
    let stored = Stored {
        progress: machine.progress().clone(),
        model: machine.model().clone(),
        counted: kept
            .iter()
            .filter(counts)
            .map(|w| Partial::from_wire(w, schema).0)
            .collect(),
        open: machine.open_round(),
        receipts: judged
            .iter()
            .filter(|j| j.record)
            .map(|j| (j.judged_in, j.partial_id, j.verdict))
            .collect(),
        members: members.collect(),
    };
    Federation::restore(
        machine.rules.clone(),
        machine.held_back.clone(),
        stored,
        now,
    )
}

fn judged(effects: &[Effect]) -> Vec<Judged> {
    let judged = |effect: &Effect| match effect {
        Effect::Judged(judged) => Some(judged.clone()),
        _ => None,
    };
    effects.iter().filter_map(judged).collect()
}

/// Flat FedAvg of all updates from one model, without roadside units, windows or machines.
fn flat(base: &Model, exponents: &[i8], rules: &Rules, updates: &[Sent]) -> Vec<u8> {
    let mut sum = WeightedSum::new(rules.schema.num_parameters(), exponents.to_vec());
    for update in updates {
        let delta = codec::Delta::quantise(&rules.schema, &update.delta, exponents).unwrap();
        sum.add(update.examples, exponents, delta.values()).unwrap();
    }
    let mean = sum.mean(rules.schema.ranges()).unwrap();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "as the released model is rounded"
    )]
    let model: Vec<f32> = base
        .master
        .iter()
        .zip(mean)
        .map(|(w, d)| (w + d) as f32)
        .collect();
    codec::encode_model(&rules.schema, &model).unwrap().0
}

/// Updates of vehicles at four units; values of every magnitude that fp16 has below 1.
fn updates(examples: std::ops::Range<u64>) -> impl Strategy<Value = Vec<(u8, Sent)>> {
    let value = (0u16..0x3c00, any::<bool>());
    let value = value.prop_map(|(bits, negative)| {
        let value = codec::f16::from_bits(bits).to_f32();
        if negative { -value } else { value }
    });
    let one = (0u8..4, examples, prop::collection::vec(value, 6));
    prop::collection::vec(one, 1..12).prop_map(|all| {
        let numbered = all.into_iter().zip(0u16..);
        numbered
            .map(|((unit, examples, delta), vehicle)| {
                (
                    unit,
                    Sent {
                        vehicle,
                        examples,
                        delta,
                    },
                )
            })
            .collect()
    })
}

/// Sends each unit's share in the given order; gives what the merge made.
fn merged(machine: &mut Federation, all: &[(u8, Sent)], order: &[u8]) -> NewVersion {
    let share = |n: u8| {
        all.iter()
            .filter(|(unit, _)| *unit == n)
            .map(|(_, s)| s.clone())
            .collect::<Vec<_>>()
    };
    let mut effects = Vec::new();
    for n in order {
        let share = share(*n);
        if !share.is_empty() {
            let wire = wire(machine, *n, *n + 1, &share);
            effects.extend(submit(machine, at(1000), &wire));
        }
    }
    effects.extend(machine.on_tick(at(DAY)));
    version(&effects).expect("a version").clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_tree_equals_flat_averaging_bit_for_bit(
        all in updates(1..100_000),
        order in Just([0u8, 1, 2, 3]).prop_shuffle(),
    ) {
        let rules = Rules { merge_when_complete: false, quorum: 0.01, max_regression: 1.0, ..rules() };
        let mut machine = running(rules.clone(), 4);
        let base = machine.model().clone();
        let exponents = machine.progress().exponents.clone();
        let made = merged(&mut machine, &all, &order);
        let sent: Vec<_> = all.into_iter().map(|(_, sent)| sent).collect();
        prop_assert!(made.exact);
        prop_assert_eq!(made.num_examples, sent.iter().map(|s| s.examples).sum::<u64>());
        prop_assert_eq!(usize::try_from(made.contributors).unwrap(), sent.len());
        prop_assert_eq!(&made.frame, &flat(&base, &exponents, &rules, &sent));
    }

    /// Also past the exact range, where f64 sums do depend on order.
    #[test]
    fn the_order_of_arrival_does_not_matter(
        all in updates(500_000_000..1_000_000_000),
        order in Just([0u8, 1, 2, 3]).prop_shuffle(),
    ) {
        let rules = Rules { merge_when_complete: false, quorum: 0.01, ..rules() };
        let one = merged(&mut running(rules.clone(), 4), &all, &[0, 1, 2, 3]);
        prop_assume!(!one.exact);
        let other = merged(&mut running(rules, 4), &all, &order);
        prop_assert_eq!(one, other);
    }

    /// Whatever arrives in whatever order and however often, a partial aggregate counts once.
    #[test]
    fn redelivery_and_restarts_change_nothing(
        all in updates(1..1000),
        again in prop::collection::vec((0u8..4, any::<bool>()), 0..12),
    ) {
        let rules = Rules { merge_when_complete: false, quorum: 0.01, ..rules() };
        let expected = merged(&mut running(rules.clone(), 4), &all, &[0, 1, 2, 3]);
        let mut machine = running(rules, 4);
        let (mut kept, mut records) = (Vec::new(), Vec::new());
        for (n, restart) in again.into_iter().chain((0..4).map(|n| (n, true))) {
            let share: Vec<_> = all.iter().filter(|(unit, _)| *unit == n).map(|(_, s)| s.clone()).collect();
            if share.is_empty() { continue; }
            let wire = wire(&machine, n, n + 1, &share);
            let effects = submit(&mut machine, at(1000), &wire);
            prop_assert_eq!(verdict(&effects), Verdict::Accepted);
            records.extend(judged(&effects));
            kept.push(wire);
            if restart { machine = restarted(&machine, &records, &kept, at(2000)); }
        }
        let effects = machine.on_tick(at(DAY));
        prop_assert_eq!(version(&effects), Some(&expected));
    }
}

#[test]
fn one_bad_partial_aggregate_is_refused_and_changes_nothing() {
    let expected = {
        let mut machine = running(rules(), 2);
        let good = wire(&machine, 0, 1, &[sent(1, 10, 0.1)]);
        submit(&mut machine, at(5), &good);
        version(&machine.on_tick(at(DAY))).unwrap().clone()
    };
    let check = |change: &dyn Fn(&mut PartialAggregate), expected_verdict: Verdict| {
        let mut machine = running(rules(), 2);
        let good = wire(&machine, 0, 1, &[sent(1, 10, 0.1)]);
        let mut bad = wire(&machine, 1, 2, &[sent(2, 10, 0.5), sent(3, 5, 0.5)]);
        change(&mut bad);
        submit(&mut machine, at(5), &good);
        let effects = submit(&mut machine, at(6), &bad);
        assert_eq!(verdict(&effects), expected_verdict);
        assert!(version(&effects).is_none());
        assert_eq!(version(&machine.on_tick(at(DAY))), Some(&expected));
    };
    let rejected = Verdict::Rejected;
    let reframe = |partial: &mut PartialAggregate, change: &dyn Fn(&mut codec::Sum)| {
        let schema = Schema::linear_head(2, 2).unwrap();
        let mut sum = codec::decode_sum(&partial.sum_frame, &schema).unwrap();
        change(&mut sum);
        partial.sum_frame = codec::encode_sum(&schema, &sum).unwrap();
    };
    check(&|p| p.merge_round = RoundId(0), Verdict::Stale);
    check(
        &|p| p.merge_round = RoundId(9),
        rejected(RejectReason::UnknownRound),
    );
    check(
        &|p| p.base_version = ModelVersion(3),
        rejected(RejectReason::WrongBase),
    );
    check(
        &|p| p.roadside = unit(9),
        rejected(RejectReason::NotInCohort),
    );
    check(
        &|p| p.sum_frame.truncate(40),
        rejected(RejectReason::Damaged),
    );
    check(&|p| p.sum_frame[70] ^= 1, rejected(RejectReason::Damaged));
    check(&|p| p.sum_frame.clear(), rejected(RejectReason::NoExamples));
    check(&|p| p.num_examples = 0, rejected(RejectReason::NoExamples));
    check(
        &|p| p.num_examples = 16,
        rejected(RejectReason::Inconsistent),
    );
    check(
        &|p| p.contributions[0].num_examples = 11,
        rejected(RejectReason::Inconsistent),
    );
    check(
        &|p| p.contributions[0].num_examples = 0,
        rejected(RejectReason::NoExamples),
    );
    check(
        &|p| p.contributions[0].num_examples = u64::MAX,
        rejected(RejectReason::TooManyExamples),
    );
    check(
        &|p| p.contributions[0].verdict = Verdict::Stale,
        rejected(RejectReason::Inconsistent),
    );
    check(
        &|p| p.contributions[1] = p.contributions[0].clone(),
        rejected(RejectReason::Inconsistent),
    );
    check(
        &|p| reframe(p, &|s| s.exponents[0] = 3),
        rejected(RejectReason::Inconsistent),
    );
    check(
        &|p| reframe(p, &|s| s.bound = 0.01),
        rejected(RejectReason::Inconsistent),
    );
    check(
        &|p| reframe(p, &|s| s.num_examples = 16),
        rejected(RejectReason::Inconsistent),
    );
    check(
        &|p| {
            reframe(p, &|s| {
                s.values[0] = 1e300;
                s.bound = 1e301;
            });
        },
        rejected(RejectReason::NotFinite),
    );
    check(
        &|p| {
            reframe(p, &|s| {
                s.values[0] = 15.0 * 150.0;
                s.bound = 1e4;
            });
        },
        rejected(RejectReason::NormTooLarge),
    );
}

#[test]
fn an_update_that_came_through_two_units_counts_once() {
    let mut machine = running(rules(), 3);
    let one = wire(&machine, 0, 1, &[sent(1, 10, 0.1)]);
    let two = wire(&machine, 1, 2, &[sent(1, 10, 0.1), sent(2, 10, 0.1)]);
    assert_eq!(
        verdict(&submit(&mut machine, at(1), &one)),
        Verdict::Accepted
    );
    let effects = submit(&mut machine, at(2), &two);
    assert_eq!(
        verdict(&effects),
        Verdict::Rejected(RejectReason::AlreadyContributed)
    );
    let conflict = judged(&effects)[0].conflict.clone().unwrap();
    assert_eq!((conflict.0.as_str(), conflict.2), ("car-1", unit(0)));
    let machine = restarted(&machine, &[], &[one], at(3));
    let (partial, _) = Partial::from_wire(&two, &machine.rules.schema);
    assert!(
        machine.open.as_ref().unwrap().conflict(&partial).is_some(),
        "also after a restart"
    );
}

#[test]
fn an_id_gets_its_first_verdict_for_ever() {
    let mut machine = running(rules(), 2);
    let mut bad = wire(&machine, 1, 2, &[sent(2, 10, 0.5)]);
    bad.num_examples = 11;
    let effects = submit(&mut machine, at(1), &bad);
    let reason = Verdict::Rejected(RejectReason::Inconsistent);
    assert_eq!(verdict(&effects), reason);
    let mut machine = restarted(&machine, &judged(&effects), &[], at(2));
    bad.num_examples = 10;
    let again = submit(&mut machine, at(3), &bad);
    assert_eq!(
        again,
        [Effect::Reply {
            partial_id: bad.partial_id,
            verdict: reason
        }]
    );
}

#[test]
fn a_flood_of_refused_ids_is_not_written_down() {
    let mut machine = running(rules(), 1);
    let mut recorded = 0;
    for id in 0..200 {
        let mut bad = wire(&machine, 0, id, &[sent(2, 10, 0.5)]);
        bad.merge_round = RoundId(u64::MAX);
        recorded += judged(&submit(&mut machine, at(1), &bad))
            .iter()
            .filter(|j| j.record)
            .count();
    }
    assert_eq!(recorded, usize::try_from(MAX_REFUSED).unwrap());
    let mut stranger = wire(&machine, 9, 250, &[sent(2, 10, 0.5)]);
    stranger.partial_id = UpdateId([250; 16]);
    assert!(!judged(&submit(&mut machine, at(1), &stranger))[0].record);
}

#[test]
fn a_job_waits_for_its_units_and_newcomers_are_wanted_too() {
    let (mut machine, _) = Federation::begin(
        Rules {
            min_roadsides: 2,
            ..rules()
        },
        None,
        7,
        START,
    )
    .unwrap();
    assert_eq!(machine.state(), JobState::Pending);
    assert!(machine.on_hello(at(1), &unit(0)).is_empty());
    assert!(machine.on_tick(at(60_000)).is_empty());
    let effects = machine.on_hello(at(70_000), &unit(1));
    let opened = Effect::Opened {
        merge_round: RoundId(1),
        base: ModelVersion(0),
    };
    assert_eq!(effects, [opened]);
    assert_eq!(
        machine.window_ends(),
        at(70_000 + DAY),
        "the window begins with the first round"
    );
    assert_eq!(
        machine.on_hello(at(80_000), &unit(2)),
        [Effect::Admitted(unit(2))]
    );
    for n in 0..3 {
        let wire = wire(&machine, n, n + 1, &[sent(n.into(), 10, 0.1)]);
        let effects = submit(&mut machine, at(90_000), &wire);
        assert_eq!(
            version(&effects).is_some(),
            n == 2,
            "complete with the third"
        );
    }
    assert_eq!(machine.progress().merge_round, RoundId(2));
    assert_eq!(machine.window_ends(), at(90_000 + DAY));
}

#[test]
fn below_quorum_the_next_round_starts_from_the_same_base() {
    let mut machine = running(rules(), 3);
    let one = wire(&machine, 0, 1, &[sent(1, 10, 0.1)]);
    submit(&mut machine, at(1), &one);
    machine.on_lost(at(2), &unit(2));
    let effects = machine.on_tick(at(DAY));
    assert_eq!(
        closing(&effects),
        Some(Closing::BelowQuorum),
        "one of three"
    );
    assert!(version(&effects).is_none());
    let opened = Effect::Opened {
        merge_round: RoundId(2),
        base: ModelVersion(0),
    };
    assert_eq!(effects.last(), Some(&opened));
    let stale = wire(&machine, 1, 9, &[sent(4, 10, 0.1)]);
    let stale = PartialAggregate {
        merge_round: RoundId(1),
        ..stale
    };
    assert_eq!(
        verdict(&submit(&mut machine, at(DAY + 1), &stale)),
        Verdict::Stale
    );
}

#[test]
fn a_unit_that_was_not_seen_for_a_window_is_not_waited_for() {
    let mut machine = running(rules(), 2);
    machine.on_lost(at(1), &unit(1));
    machine.on_tick(at(DAY));
    assert_eq!(
        machine.open_round().unwrap().cohort.len(),
        2,
        "seen within the last window"
    );
    machine.on_tick(at(2 * DAY));
    assert_eq!(machine.open_round().unwrap().cohort, [unit(0)].into());
    let wire = wire(&machine, 1, 5, &[sent(1, 10, 0.1)]);
    let effects = submit(&mut machine, at(2 * DAY + 1), &wire);
    assert_eq!(
        verdict(&effects),
        Verdict::Accepted,
        "but it is known, and welcome"
    );
}

#[test]
fn after_a_sleep_of_days_it_merges_once() {
    let mut machine = running(
        Rules {
            merge_when_complete: false,
            ..rules()
        },
        2,
    );
    for n in 0..2 {
        let wire = wire(&machine, n, n + 1, &[sent(n.into(), 10, 0.1)]);
        assert!(
            version(&submit(&mut machine, at(1), &wire)).is_none(),
            "not before the window ends"
        );
    }
    assert!(machine.on_tick(at(DAY - 1)).is_empty());
    let now = at(10 * DAY + 5 * HOUR);
    let mut machine = restarted(&machine, &[], &[], now);
    // The partial aggregates were lost with the disk: below quorum, but still one close only.
    let effects = machine.on_tick(now);
    assert_eq!(closing(&effects), Some(Closing::BelowQuorum));
    assert_eq!(effects[0], Effect::Missed { windows: 9 });
    assert!(machine.on_tick(now).is_empty());
    assert_eq!(machine.window_ends(), Timestamp(now.0 + DAY));

    let mut machine = running(
        Rules {
            merge_when_complete: false,
            ..rules()
        },
        1,
    );
    let wire = wire(&machine, 0, 1, &[sent(1, 10, 0.1)]);
    submit(&mut machine, at(1), &wire);
    let effects = machine.on_tick(at(3 * DAY));
    assert_eq!(version(&effects).unwrap().version, ModelVersion(1));
    assert!(version(&machine.on_tick(at(3 * DAY + 1))).is_none());
}

#[test]
fn a_worse_version_is_kept_back_and_the_next_round_starts_from_the_released_one() {
    let rules = Rules {
        server: ServerOptimizer::Momentum { lr: 1.0, beta: 0.5 },
        ..rules()
    };
    let mut machine = running(rules, 1);
    let good = wire(&machine, 0, 1, &[sent(1, 10, 1.0)]);
    let effects = submit(&mut machine, at(1), &good);
    let first = version(&effects).unwrap().clone();
    assert_eq!(first.gate, Gate::Released);
    assert!((first.evaluation.as_ref().unwrap().accuracy - 1.0).abs() < 1e-9);

    let bad = wire(&machine, 0, 2, &[sent(1, 10, -9.0)]);
    let effects = submit(&mut machine, at(2), &bad);
    let second = version(&effects).unwrap();
    assert!(
        matches!(&second.gate, Gate::KeptBack { reason } if reason.contains("below")),
        "{:?}",
        second.gate
    );
    assert_eq!(
        (second.version, second.parent),
        (ModelVersion(2), ModelVersion(1))
    );
    assert_eq!(machine.model(), &first.model(), "optimizer state included");
    assert_eq!(machine.progress().released, ModelVersion(1));
    assert_eq!(machine.open_round().unwrap().base_version, ModelVersion(1));

    let good = wire(&machine, 0, 3, &[sent(1, 10, 0.1)]);
    let third = version(&submit(&mut machine, at(3), &good))
        .unwrap()
        .clone();
    assert_eq!(
        (third.version, third.parent),
        (ModelVersion(3), ModelVersion(1))
    );
    assert_eq!(third.gate, Gate::Released);
}

#[test]
fn scales_and_norm_bound_follow_the_last_merge() {
    let mut machine = running(
        Rules {
            max_norm_ratio: 3.0,
            ..rules()
        },
        1,
    );
    assert_eq!(machine.progress().exponents, [0, 0]);
    assert!((machine.progress().norm_bound - 100.0).abs() < f64::EPSILON);
    let wire = wire(
        &machine,
        0,
        1,
        &[sent(1, 10, 0.01), sent(2, 10, 0.01), sent(3, 10, 0.01)],
    );
    submit(&mut machine, at(1), &wire);
    // Largest mean delta 0.01, headroom 4: 0.04 is within 2^-4; the bias did not move.
    assert_eq!(machine.progress().exponents, [-4, 0]);
    let norm = 0.01 * 2.0_f64.sqrt();
    assert!((machine.progress().norm_bound - 3.0 * norm).abs() < 1e-4);
}

#[test]
fn rolling_back_closes_the_round_and_starts_from_the_earlier_version() {
    let mut machine = running(rules(), 1);
    let first = machine.model().clone();
    let wire_1 = wire(&machine, 0, 1, &[sent(1, 10, 1.0)]);
    submit(&mut machine, at(1), &wire_1);
    assert_eq!(machine.progress().released, ModelVersion(1));
    let late = wire(&machine, 0, 2, &[sent(1, 10, 1.0)]);
    let effects = machine.roll_back(at(5), first.clone());
    assert_eq!(closing(&effects), Some(Closing::RolledBack));
    assert_eq!(machine.model(), &first);
    let opened = Effect::Opened {
        merge_round: RoundId(3),
        base: ModelVersion(0),
    };
    assert_eq!(effects.last(), Some(&opened));
    assert_eq!(verdict(&submit(&mut machine, at(6), &late)), Verdict::Stale);
    let wire_2 = wire(&machine, 0, 3, &[sent(1, 10, 1.0)]);
    let made = version(&submit(&mut machine, at(7), &wire_2))
        .unwrap()
        .clone();
    assert_eq!(
        (made.version, made.parent),
        (ModelVersion(2), ModelVersion(0))
    );
}

/// The state belongs to the version: from version 1 the same update gives the same next version, whatever lay between.
#[test]
fn rolling_back_restores_the_optimizer_state_of_the_earlier_version() {
    let adaptive = Adaptive {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        tau: 1e-3,
    };
    for server in [
        ServerOptimizer::Momentum { lr: 1.0, beta: 0.9 },
        ServerOptimizer::Adagrad(adaptive),
        ServerOptimizer::Adam(adaptive),
        ServerOptimizer::Yogi(adaptive),
    ] {
        let mut machine = running(Rules { server, ..rules() }, 1);
        let ask = |machine: &mut Federation, id: u8, factor: f32| {
            let wire = wire(machine, 0, id, &[sent(1, 10, factor)]);
            let effects = submit(machine, at(u64::from(id)), &wire);
            version(&effects).unwrap().clone()
        };
        let first = ask(&mut machine, 1, 0.5);
        let second = ask(&mut machine, 2, 0.25);
        assert_eq!(
            second.parent, first.version,
            "released, so its state counts"
        );
        assert_ne!(first.optimizer, second.optimizer);
        machine.roll_back(at(3), first.model());
        let third = ask(&mut machine, 4, 0.25);
        assert_eq!(
            (third.version, third.parent),
            (ModelVersion(3), ModelVersion(1))
        );
        assert_eq!(third.optimizer, second.optimizer, "{server:?}");
        assert_eq!(third.master, second.master, "{server:?}");
    }
}

#[test]
fn a_paused_job_takes_what_arrives_and_opens_nothing_new() {
    let mut machine = running(rules(), 1);
    assert_eq!(machine.set_paused(at(1), true), [Effect::Paused(true)]);
    assert!(machine.set_paused(at(1), true).is_empty());
    let wire = wire(&machine, 0, 1, &[sent(1, 10, 0.1)]);
    let effects = submit(&mut machine, at(2), &wire);
    assert!(version(&effects).is_some() && machine.open_round().is_none());
    assert_eq!(machine.state(), JobState::Paused);
    assert!(machine.on_tick(at(30 * DAY)).is_empty());
    let effects = machine.set_paused(at(40 * DAY), false);
    assert_eq!(effects.len(), 2, "resumed and opened: {effects:?}");
    assert_eq!(machine.window_ends(), at(41 * DAY));
}

#[test]
fn after_its_last_version_a_job_is_finished() {
    let mut machine = running(
        Rules {
            merges: 1,
            ..rules()
        },
        1,
    );
    let wire_1 = wire(&machine, 0, 1, &[sent(1, 10, 0.1)]);
    let effects = submit(&mut machine, at(1), &wire_1);
    assert_eq!(effects.last(), Some(&Effect::Finished));
    assert_eq!(
        (machine.state(), machine.open_round()),
        (JobState::Finished, None)
    );
    let late = PartialAggregate {
        partial_id: UpdateId([9; 16]),
        ..wire_1.clone()
    };
    assert_eq!(verdict(&submit(&mut machine, at(2), &late)), Verdict::Stale);
    assert_eq!(
        verdict(&submit(&mut machine, at(2), &wire_1)),
        Verdict::Accepted,
        "the same receipt"
    );
    let mut machine = restarted(&machine, &[], &[], at(3));
    assert!(machine.on_tick(at(9 * DAY)).is_empty());
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn a_model_that_would_not_be_finite_is_no_version() {
    let mut machine = running(
        Rules {
            max_norm: 1e300,
            ..rules()
        },
        1,
    );
    let mut wire = wire(&machine, 0, 1, &[sent(1, 1, 0.1)]);
    let schema = machine.rules.schema.clone();
    let mut sum = codec::decode_sum(&wire.sum_frame, &schema).unwrap();
    (sum.values[0], sum.bound) = (1e100, 1e100);
    wire.sum_frame = codec::encode_sum(&schema, &sum).unwrap();
    let effects = submit(&mut machine, at(1), &wire);
    assert_eq!(closing(&effects), Some(Closing::Unusable));
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Unusable(_)))
    );
    assert_eq!(machine.progress().newest, ModelVersion(0));
    assert_eq!(machine.open_round().unwrap().merge_round, RoundId(2));
}

#[expect(clippy::cast_possible_truncation, reason = "compared within 1e-3")]
/// Three units of which one pulls the other way: what becomes of the merge under a rule.
fn merged_under(merge: MergeRule) -> Vec<f32> {
    let rules = Rules {
        merge,
        max_regression: 1.0,
        ..rules()
    };
    let mut machine = running(rules, 3);
    let before: Vec<f64> = machine.model().master.clone();
    let mut effects = Vec::new();
    for (n, factor) in [(0, 0.5), (1, 0.25), (2, -0.75)] {
        let wire = wire(&machine, n, n + 1, &[sent(u16::from(n), 10, factor)]);
        effects = submit(&mut machine, at(1), &wire);
    }
    let version = version(&effects).expect("a version");
    version
        .master
        .iter()
        .zip(before)
        .map(|(to, from)| (to - from) as f32)
        .collect()
}

#[test]
fn the_cloud_combines_units_by_its_own_rule() {
    let close = |got: &[f32], factor: f32| {
        got.iter()
            .zip(step(factor))
            .all(|(got, wanted)| (got - wanted).abs() < 1e-3)
    };
    let sum = merged_under(MergeRule::Sum);
    assert!(close(&sum, 0.0), "{sum:?}");
    let median = merged_under(MergeRule::Rule(RuleSpec::named("median")));
    assert!(close(&median, 0.25), "{median:?}");
    // The cloud's own examples say that the two point the right way and the third the wrong one.
    let root = Arc::new(RootSet::new(features(), &spec()));
    let trusted = merged_under(MergeRule::FlTrust(root));
    assert!(trusted[0] > 0.0 && trusted[1] < 0.0, "{trusted:?}");
}

#[test]
fn a_partial_aggregate_may_be_a_mean_in_fp16() {
    let mut machine = running(rules(), 1);
    let mut partial = wire(&machine, 0, 1, &[sent(0, 10, 0.5)]);
    let exponents = machine.progress().exponents.clone();
    partial.sum_frame = codec::encode_delta(&machine.rules.schema, &step(0.5), &exponents).unwrap();
    let exact = {
        let mut other = running(rules(), 1);
        let wire = wire(&other, 0, 1, &[sent(0, 10, 0.5)]);
        version(&submit(&mut other, at(1), &wire))
            .unwrap()
            .frame
            .clone()
    };
    let effects = submit(&mut machine, at(1), &partial);
    assert_eq!(version(&effects).expect("a version").frame, exact);
}
