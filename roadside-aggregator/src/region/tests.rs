use std::time::Duration;

use super::*;
use crate::aggregate;
use crate::fleet::Fleet;
use crate::intake::{Arrival, Expected, read};
use crate::store::{Memory, Store, Stored};
use proptest::prelude::*;
use wayside_domain::aggregate::RuleSpec;
use wayside_domain::encoding::CodecSpec;
use wayside_domain::head::Standardisation;
use wayside_domain::ids::{Generation, ModelVersion};
use wayside_domain::job::{
    AggregationSpec, Buffered, Effort, JobSpec, ModelSpec, RoundSpec, TrainingSpec,
};
use wayside_domain::update::RejectReason;
use wayside_proto::codec::{decode_sum, encode_delta, encode_delta_values, encode_model, f16};
use wayside_proto::convert::{
    Announcement, PartialAggregate, Presence, Receipt, Update, UpdateMetrics,
};

const FEATURES: usize = 5;
const EXPONENTS: [i8; 2] = [-3, -2];

fn vehicle(name: &str) -> VehicleId {
    VehicleId::new(name).unwrap()
}

fn site(generation: u64) -> Site {
    Site {
        roadside: RoadsideId::new("r1").unwrap(),
        chunk_bytes: 16,
        generation: Generation(generation),
    }
}

fn spec(edge_rounds: u32) -> JobSpec {
    JobSpec {
        job: JobId::new("lights").unwrap(),
        model: ModelSpec {
            backbone: None,
            input_height: 32,
            input_width: 32,
            classes: vec!["a".into(), "b".into(), "c".into()],
            standardisation: Standardisation::new(vec![0.0; FEATURES], vec![1.0; FEATURES])
                .unwrap(),
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
            class_weights: vec![1.0; 3],
            seed: 7,
        },
        round: RoundSpec {
            fraction_train: 1.0,
            min_vehicles: 2,
            over_selection: 1.0,
            quorum: 0.5,
            round_timeout: Duration::from_secs(10),
            min_window: Duration::ZERO,
            edge_rounds,
            max_examples: 1_000_000,
            max_norm: 100.0,
            max_norm_ratio: 0.0,
            latency_budget: Duration::from_millis(500),
        },
        aggregation: AggregationSpec::default(),
        codec: CodecSpec::default(),
    }
}

fn model() -> (Digest, Vec<u8>) {
    let schema = spec(1).model.schema().unwrap();
    let (frame, _) = encode_model(&schema, &vec![0.25; schema.num_parameters()]).unwrap();
    (codec::digest(&frame), frame)
}

fn plan(merge_round: u64, edge_rounds: u32) -> JobPlan {
    let (digest, frame) = model();
    JobPlan {
        spec: spec(edge_rounds),
        merge_round: RoundId(merge_round),
        base_version: ModelVersion(3),
        model: digest,
        model_bytes: frame.len() as u64,
        exponents: EXPONENTS.to_vec(),
        norm_bound: 5.0,
        window_ends: Timestamp(100_000),
        paused: false,
    }
}

fn deltas(seed: u8) -> Vec<f32> {
    let schema = spec(1).model.schema().unwrap();
    let value =
        |i: usize| f32::from(seed.wrapping_mul(31).wrapping_add(i.to_le_bytes()[0])) / 2048.0;
    (0..schema.num_parameters()).map(value).collect()
}

/// A region with its fleet and store, and what it showed.
struct Rig {
    region: Region,
    fleet: Fleet,
    store: Memory,
    shown: Vec<Effect>,
}

impl Rig {
    fn new(vehicles: usize, edge_rounds: u32) -> Self {
        let mut fleet = Fleet::new(
            Timestamp(0),
            Duration::from_secs(30),
            3,
            Duration::ZERO,
            BTreeMap::new(),
        );
        for n in 0..vehicles {
            fleet.on_presence(Timestamp(0), &presence(&format!("v{n}")));
        }
        let region = Region::new(site(1), Timestamp(0), plan(1, edge_rounds), RoundId(1)).unwrap();
        let mut rig = Self {
            region,
            fleet,
            store: Memory::default(),
            shown: Vec::new(),
        };
        let (digest, frame) = model();
        let mut effects = vec![rig.region.save()];
        effects.extend(rig.region.on_model(digest, frame));
        rig.apply(0, effects);
        rig
    }

    /// What the engine does with effects.
    fn apply(&mut self, now: u64, effects: Vec<Effect>) {
        let mut todo = effects;
        for _ in 0..10 {
            let (mut writes, mut orders) = (Vec::new(), Vec::new());
            for effect in todo {
                match effect {
                    Effect::Write(write) => writes.push(write),
                    Effect::Aggregate(order) => orders.push(order),
                    show => self.shown.push(show),
                }
            }
            self.store.commit(writes).unwrap();
            let answers = self.region.on_flushed(Timestamp(now));
            self.shown.extend(answers);
            todo = Vec::new();
            for order in orders {
                let result = aggregate::run(&order, &self.store, 1);
                let (now, round) = (Timestamp(now), order.round);
                todo.extend(self.region.on_aggregated(now, &self.fleet, round, result));
            }
            if !todo.is_empty() {
                continue;
            }
            todo = self.region.on_tick(Timestamp(now), &self.fleet);
            if todo.is_empty() {
                return;
            }
        }
        panic!("never comes to rest");
    }

    fn tick(&mut self, now: u64) {
        self.apply(now, Vec::new());
    }

    /// The process dies and comes back.
    fn crash(&mut self, now: u64, generation: u64) {
        let Stored { mut jobs, .. } = self.store.load().unwrap();
        let job = jobs.remove(&spec(1).job).unwrap();
        let store = self.store.clone();
        self.region = Region::restore(
            site(generation),
            job,
            &|digest| store.model(digest),
            &|key| store.frame(&spec(1).job, key),
        )
        .unwrap();
        self.shown.clear();
        let effects = self.region.on_start();
        self.apply(now, effects);
    }

    fn send(&mut self, now: u64, from: &str, bytes: &[u8], id: UpdateId, round: u64) {
        let sender = vehicle(from);
        if let Some(verdict) = self.region.known(&sender, id) {
            self.region
                .on_again(Timestamp(now), sender, id, RoundId(round), verdict);
            self.apply(now, Vec::new());
            return;
        }
        let topic = Topic::Update {
            roadside: site(1).roadside,
            job: spec(1).job,
            vehicle: sender.clone(),
            round: RoundId(round),
            chunk: 0,
        };
        let expected = Expected {
            topic: &topic,
            update_id: id,
            digest: codec::digest(bytes),
            schema: self.region.schema(),
            exponents: self.region.exponents(),
            open_rounds: self.region.open_rounds(),
            reference: self.region.reference(),
        };
        let arrival = read(&sender, RoundId(round), Timestamp(now), bytes, expected);
        let effects = self.region.on_arrival(Timestamp(now), arrival);
        self.apply(now, effects);
    }

    fn update(&mut self, now: u64, from: &str, round: u64, seed: u8, examples: u64) {
        let update = update(from, round, seed, examples);
        self.send(now, from, &update.encode(), update.update_id, round);
    }

    /// Verdicts that went out, in order.
    fn verdicts(&self) -> Vec<(String, Verdict)> {
        let receipts = self.shown.iter().filter_map(|effect| match effect {
            Effect::Publish {
                topic: Topic::Receipt { vehicle, .. },
                payload,
                ..
            } => Some((
                vehicle.to_string(),
                Receipt::decode(payload).unwrap().verdict,
            )),
            _ => None,
        });
        receipts.collect()
    }

    fn last_verdict(&self) -> Verdict {
        self.verdicts().last().unwrap().1
    }

    fn announcement(&self) -> Announcement {
        let last = self.shown.iter().rev().find_map(|effect| match effect {
            Effect::Publish {
                topic: Topic::Round { .. },
                payload,
                retain: true,
            } => Some(Announcement::decode(payload).unwrap()),
            _ => None,
        });
        last.unwrap()
    }

    fn partial(&self) -> PartialAggregate {
        let partial = PartialAggregate::decode(&self.region.pending().unwrap().bytes).unwrap();
        // The cloud refuses a partial aggregate whose lines say something else than its sum: seen when a round without
        // a result left its accepted lines behind, and everything in the next sum was lost with them.
        let accepted = partial
            .contributions
            .iter()
            .filter(|line| line.verdict == Verdict::Accepted);
        let counted: u64 = accepted.map(|line| line.num_examples).sum();
        assert_eq!(counted, partial.num_examples);
        partial
    }
}

fn presence(name: &str) -> Presence {
    Presence {
        vehicle: vehicle(name),
        generation: Generation(1),
        online: true,
        client_version: "0".into(),
        backbone: None,
        num_examples: 10,
    }
}

fn id_of(from: &str, round: u64, seed: u8) -> UpdateId {
    let mut id = [0; 16];
    id.copy_from_slice(&codec::digest(format!("{from}{round}{seed}").as_bytes()).0[..16]);
    UpdateId(id)
}

fn update(from: &str, round: u64, seed: u8, num_examples: u64) -> Update {
    let spec = spec(1);
    let schema = spec.model.schema().unwrap();
    Update {
        job: spec.job,
        roadside: site(1).roadside,
        vehicle: vehicle(from),
        round: RoundId(round),
        base_version: ModelVersion(3),
        update_id: id_of(from, round, seed),
        num_examples,
        frame: encode_delta(&schema, &deltas(seed), &EXPONENTS).unwrap(),
        metrics: UpdateMetrics::default(),
    }
}

fn sum_bits(partial: &PartialAggregate) -> Vec<u64> {
    let sum = decode_sum(&partial.sum_frame, &spec(1).model.schema().unwrap()).unwrap();
    assert_eq!(sum.num_examples, partial.num_examples);
    sum.values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_round_opens_collects_and_contributes() {
    let mut rig = Rig::new(3, 1);
    let open = rig.announcement();
    assert!(open.open && open.round == RoundId(1) && open.cohort.len() == 3);
    assert_eq!((open.deadline, open.model), (Timestamp(10_000), model().0));
    for n in 0..3_u8 {
        rig.update(10, &format!("v{n}"), 1, n, 5 + u64::from(n));
    }
    assert!(rig.verdicts().iter().all(|(_, v)| *v == Verdict::Accepted));
    let partial = rig.partial();
    assert_eq!(
        (partial.num_examples, partial.merge_round),
        (18, RoundId(1))
    );
    assert_eq!((partial.contributions.len(), partial.rounds.len()), (3, 1));
    assert!(partial.rounds[0].aggregated && partial.vehicles_online == 3);
    assert!(
        partial.down_bytes > 3 * partial.sum_frame.len() as u64,
        "model, job and announcement"
    );
    rig.update(20, "v0", 1, 9, 5);
    assert_eq!(rig.last_verdict(), Verdict::Stale, "late");
    rig.tick(2020);
    assert!(
        !rig.announcement().open,
        "told when no round follows at once"
    );
    rig.tick(95_000);
    assert_eq!(
        rig.region.open_round(),
        None,
        "one contribution a merge round"
    );
    let effects = rig.region.on_plan(Timestamp(96_000), plan(2, 1));
    rig.apply(96_000, effects);
    assert_eq!(rig.region.open_round(), Some(RoundId(2)));
    let late = rig.region.lines.values().map(|line| line.verdict);
    assert_eq!(
        late.collect::<Vec<_>>(),
        [Verdict::Stale],
        "told with the next partial aggregate"
    );
}

type Twist = Box<dyn Fn(&mut Update)>;

/// Each hostile update gets its reason, and the sum is the same in every bit as without them.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of attacks")]
fn hostile_updates_change_nothing() {
    let honest = |rig: &mut Rig, n: u8| rig.update(10, &format!("v{n}"), 1, n, 100);
    let mut clean = Rig::new(4, 1);
    (0..4).for_each(|n| honest(&mut clean, n));

    let mut rig = Rig::new(4, 1);
    let schema = spec(1).model.schema().unwrap();
    let values = |bits: u16| {
        let mut values = vec![f16::ZERO; schema.num_parameters()];
        values[7] = f16::from_bits(bits);
        encode_delta_values(&schema, &values, &EXPONENTS).unwrap()
    };
    let wide = wayside_domain::schema::Schema::linear_head(FEATURES + 1, 3).unwrap();
    let mut bomb = update("v3", 1, 50, 100).frame;
    let planes = bomb.iter().position(|b| *b == 0x28).unwrap();
    bomb.truncate(planes);
    bomb.extend([
        0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38, 0x02, 0x00, 0x10, 0x00, 0x03, 0x00, 0x10, 0x00,
    ]);
    let attacks: Vec<(&str, Twist, RejectReason)> = vec![
        (
            "nan",
            {
                let f = values(0x7e00);
                Box::new(move |u| u.frame.clone_from(&f))
            },
            RejectReason::NotFinite,
        ),
        (
            "inf",
            {
                let f = values(0x7c00);
                Box::new(move |u| u.frame.clone_from(&f))
            },
            RejectReason::NotFinite,
        ),
        (
            "-inf",
            {
                let f = values(0xfc00);
                Box::new(move |u| u.frame.clone_from(&f))
            },
            RejectReason::NotFinite,
        ),
        (
            "huge",
            {
                let f = values(0x7bff);
                Box::new(move |u| u.frame.clone_from(&f))
            },
            RejectReason::NormTooLarge,
        ),
        (
            "shape",
            Box::new(move |u| {
                u.frame =
                    encode_delta(&wide, &vec![0.0; wide.num_parameters()], &EXPONENTS).unwrap();
            }),
            RejectReason::WrongSchema,
        ),
        (
            "scales",
            Box::new(|u| {
                let schema = spec(1).model.schema().unwrap();
                u.frame = encode_delta(&schema, &deltas(1), &[0, 0]).unwrap();
            }),
            RejectReason::Inconsistent,
        ),
        (
            "none",
            Box::new(|u| u.num_examples = 0),
            RejectReason::NoExamples,
        ),
        (
            "many",
            Box::new(|u| u.num_examples = 1_000_000_000),
            RejectReason::TooManyExamples,
        ),
        (
            "base",
            Box::new(|u| u.base_version = ModelVersion(2)),
            RejectReason::WrongBase,
        ),
        (
            "round",
            Box::new(|u| u.round = RoundId(2)),
            RejectReason::Inconsistent,
        ),
        (
            "other",
            Box::new(|u| u.vehicle = vehicle("v0")),
            RejectReason::Inconsistent,
        ),
        (
            "id",
            Box::new(|u| u.update_id = UpdateId([9; 16])),
            RejectReason::Inconsistent,
        ),
        (
            "job",
            Box::new(|u| u.job = JobId::new("else").unwrap()),
            RejectReason::Inconsistent,
        ),
        (
            "bomb",
            Box::new(move |u| u.frame.clone_from(&bomb)),
            RejectReason::Damaged,
        ),
        (
            "cut",
            Box::new(|u| u.frame.truncate(40)),
            RejectReason::Damaged,
        ),
        (
            "empty",
            Box::new(|u| u.frame.clear()),
            RejectReason::Damaged,
        ),
    ];
    honest(&mut rig, 0);
    honest(&mut rig, 1);
    for (seed, (name, twist, reason)) in (100..).zip(&attacks) {
        let mut bad = update("v3", 1, seed, 100);
        let id = bad.update_id;
        twist(&mut bad);
        rig.send(11, "v3", &bad.encode(), id, 1);
        assert_eq!(rig.last_verdict(), Verdict::Rejected(*reason), "{name}");
        rig.send(12, "v3", &bad.encode(), id, 1);
        assert_eq!(
            rig.last_verdict(),
            Verdict::Rejected(*reason),
            "{name} again"
        );
    }
    // Somebody who was not asked, a round that is not there, bytes that are nothing, and an update sent by another.
    rig.update(13, "stranger", 1, 1, 100);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Rejected(RejectReason::NotInCohort)
    );
    rig.update(13, "v2", 7, 1, 100);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Rejected(RejectReason::UnknownRound)
    );
    rig.send(13, "v2", b"rubbish", UpdateId([1; 16]), 1);
    assert_eq!(rig.last_verdict(), Verdict::Rejected(RejectReason::Damaged));
    let stolen = update("v2", 1, 2, 100);
    rig.send(13, "v1", &stolen.encode(), stolen.update_id, 1);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Rejected(RejectReason::Inconsistent)
    );
    rig.update(13, "v1", 1, 77, 100);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Rejected(RejectReason::AlreadyContributed)
    );
    honest(&mut rig, 0);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Accepted,
        "the same receipt again"
    );
    honest(&mut rig, 2);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Accepted,
        "whoever stole it does not spoil it"
    );
    honest(&mut rig, 3);

    let (dirty, clean) = (rig.partial(), clean.partial());
    assert_eq!(sum_bits(&dirty), sum_bits(&clean));
    assert_eq!(dirty.num_examples, 400);
    let reasons: Vec<Verdict> = dirty
        .contributions
        .iter()
        .filter(|line| line.vehicle == vehicle("v3") && line.verdict != Verdict::Accepted)
        .map(|line| line.verdict)
        .collect();
    let expected: Vec<Verdict> = attacks
        .iter()
        .map(|(_, _, reason)| Verdict::Rejected(*reason))
        .collect();
    assert_eq!(reasons, expected, "one line each, none for redelivery");
    assert!(
        dirty
            .contributions
            .iter()
            .all(|line| line.l2_norm.is_finite())
    );
}

/// One vehicle cannot fill the book or the lines.
#[test]
fn a_flood_of_one_vehicle_is_answered_but_not_written_down() {
    let mut rig = Rig::new(3, 1);
    for seed in 0..100 {
        rig.update(1, "v0", 1, seed, 0);
    }
    assert_eq!(rig.verdicts().len(), 100);
    assert_eq!((rig.region.lines.len(), rig.region.book.len()), (16, 16));
    rig.update(2, "v0", 1, 200, 5);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Accepted,
        "what counts is always written down"
    );
    assert_eq!(rig.region.lines.len(), 17);
}

#[test]
fn a_crash_with_five_of_ten_loses_nothing_and_counts_nothing_twice() {
    let run = |crash: bool| {
        let mut rig = Rig::new(10, 1);
        let before = rig.announcement();
        (0..5).for_each(|n| rig.update(100, &format!("v{n}"), 1, n, 10));
        if crash {
            rig.crash(5000, 2);
            assert_eq!(
                rig.announcement(),
                before,
                "same round, cohort and deadline"
            );
        }
        for n in 0..5 {
            rig.update(5100, &format!("v{n}"), 1, n, 10);
            assert_eq!(rig.last_verdict(), Verdict::Accepted, "the same receipt");
        }
        rig.update(5150, "v0", 1, 99, 10);
        assert_eq!(
            rig.last_verdict(),
            Verdict::Rejected(RejectReason::AlreadyContributed)
        );
        (5..10).for_each(|n| rig.update(5200, &format!("v{n}"), 1, n, 10));
        rig
    };
    let (mut crashed, smooth) = (run(true), run(false));
    let partial = crashed.partial();
    assert_eq!(sum_bits(&partial), sum_bits(&smooth.partial()));
    assert_eq!(
        (partial.num_examples, partial.contributions.len()),
        (100, 11)
    );
    // The partial aggregate waits for its answer, also after another crash.
    crashed.crash(6000, 3);
    assert_eq!(crashed.partial(), partial);
    let effects = crashed
        .region
        .on_partial_answer(partial.partial_id, Verdict::Accepted);
    crashed.apply(6001, effects);
    assert_eq!(crashed.region.pending(), None);
    crashed.crash(6002, 4);
    assert_eq!(
        (crashed.region.pending(), crashed.region.open_round()),
        (None, None)
    );
    crashed.update(6003, "v0", 1, 0, 10);
    assert_eq!(
        crashed.last_verdict(),
        Verdict::Accepted,
        "also after the close"
    );
}

#[test]
fn a_deadline_with_quorum_gives_a_result_and_without_none() {
    let mut rig = Rig::new(4, 1);
    rig.update(10, "v0", 1, 0, 10);
    rig.tick(9999);
    assert_eq!(rig.region.open_round(), Some(RoundId(1)));
    rig.tick(10_000);
    assert_eq!(
        rig.region.pending(),
        None,
        "one of four is below the quorum of two"
    );
    assert_eq!(
        rig.region.open_round(),
        Some(RoundId(2)),
        "a new round at once"
    );
    rig.update(10_001, "v0", 1, 5, 10);
    assert_eq!(rig.last_verdict(), Verdict::Stale);
    rig.update(10_002, "v0", 2, 0, 10);
    rig.update(10_003, "v1", 2, 1, 10);
    let waits = |rig: &Rig| {
        let closed = rig.shown.iter().rev().find_map(|effect| match effect {
            Effect::Tell(Event::RoundClosed { waiting_for, .. }) => Some(waiting_for.clone()),
            _ => None,
        });
        closed.unwrap()
    };
    rig.tick(20_000);
    assert_eq!(waits(&rig), [vehicle("v2"), vehicle("v3")]);
    assert_eq!(rig.partial().num_examples, 20);
    assert_eq!(rig.partial().rounds.len(), 2);
}

#[test]
fn nothing_is_contributed_when_nothing_was_aggregated() {
    let mut rig = Rig::new(4, 1);
    for now in (0..=100_000).step_by(500) {
        rig.tick(now);
    }
    assert_eq!(
        (rig.region.pending(), rig.region.open_round()),
        (None, None)
    );
    let deadlines = rig.shown.iter().filter_map(|effect| match effect {
        Effect::Tell(Event::RoundOpened { deadline, .. }) => Some(deadline.0),
        _ => None,
    });
    assert_eq!(
        deadlines.max(),
        Some(95_000),
        "a twentieth of the window is kept free"
    );
    assert!(!rig.announcement().open);
}

#[test]
fn a_plan_for_the_next_merge_round_ends_what_is_open() {
    let mut rig = Rig::new(3, 1);
    rig.update(10, "v0", 1, 0, 10);
    rig.update(10, "v1", 1, 1, 10);
    let effects = rig.region.on_plan(Timestamp(20), plan(2, 1));
    rig.apply(20, effects);
    assert_eq!(rig.region.open_round(), Some(RoundId(2)));
    rig.update(30, "v2", 1, 2, 10);
    assert_eq!(rig.last_verdict(), Verdict::Stale);
    (0..3).for_each(|n| rig.update(40, &format!("v{n}"), 2, n, 10));
    let partial = rig.partial();
    assert_eq!((partial.num_examples, partial.contributions.len()), (30, 6));
    let aggregated: Vec<bool> = partial
        .rounds
        .iter()
        .map(|round| round.aggregated)
        .collect();
    assert_eq!(aggregated, [false, true]);
}

#[test]
fn a_finished_job_is_announced_as_closed_though_its_last_model_is_not_fetched() {
    let mut rig = Rig::new(3, 1);
    (0..3).for_each(|n| rig.update(10, &format!("v{n}"), 1, n, 10));
    assert!(
        rig.announcement().open,
        "closed rounds are announced a little later"
    );
    let mut last = plan(2, 1);
    last.paused = true;
    last.model = Digest([9; 32]);
    let effects = rig.region.on_plan(Timestamp(20), last);
    rig.apply(20, effects);
    rig.tick(2_100);
    let announced = rig.announcement();
    assert_eq!((announced.open, announced.cohort.len()), (false, 0));
}

#[test]
fn a_paused_job_takes_nothing_and_says_so() {
    let mut rig = Rig::new(3, 1);
    rig.update(10, "v0", 1, 0, 10);
    let mut paused = plan(1, 1);
    paused.paused = true;
    let effects = rig.region.on_plan(Timestamp(20), paused);
    rig.apply(20, effects);
    rig.update(30, "v1", 1, 1, 10);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Rejected(RejectReason::UnknownJob)
    );
    rig.update(30, "v0", 1, 0, 10);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Accepted,
        "the verdict that it got"
    );
    rig.tick(2030);
    assert!(!rig.announcement().open);
    rig.tick(200_000);
    assert_eq!(rig.region.pending(), None);
}

/// kappa2 = 2: the second round starts from the regional model, and one partial aggregate tells of both.
#[test]
fn regional_rounds_move_a_model_on() {
    let run = |crash: bool| {
        let mut rig = Rig::new(2, 2);
        let first = rig.announcement();
        (0..2).for_each(|n| rig.update(10, &format!("v{n}"), 1, n, 10));
        assert_eq!(rig.region.pending(), None);
        if crash {
            rig.crash(15, 1);
        }
        let second = rig.announcement();
        assert!(second.open && second.round == RoundId(2) && second.model != first.model);
        assert_eq!(second.base_version, first.base_version);
        (0..2).for_each(|n| rig.update(20, &format!("v{n}"), 2, n + 5, 10));
        rig
    };
    let rig = run(false);
    let partial = rig.partial();
    assert_eq!((partial.num_examples, partial.rounds.len()), (40, 2));
    assert_eq!(sum_bits(&run(true).partial()), sum_bits(&partial));
    let schema = spec(1).model.schema().unwrap();
    let sum = decode_sum(&partial.sum_frame, &schema).unwrap();
    for (i, (range, exponent)) in schema.ranges().zip(EXPONENTS).enumerate() {
        for at in range {
            let got = sum.values[at] / 40.0 * f64::from(exponent).exp2();
            let mean = |a: u8, b: u8| f64::from(deltas(a)[at] + deltas(b)[at]) / 2.0;
            let expected = mean(0, 1) + mean(5, 6);
            assert!(
                (got - expected).abs() < 2e-3,
                "tensor {i} at {at}: {got} {expected}"
            );
        }
    }
    // The next merge round starts from the same base, whose chunks may be gone from the broker by now.
    let mut rig = rig;
    rig.shown.clear();
    let effects = rig.region.on_plan(Timestamp(30), plan(2, 2));
    rig.apply(30, effects);
    let key = ModelKey::of(&model().0);
    let chunks = rig.shown.iter().filter(|effect| {
        matches!(effect, Effect::Publish { topic: Topic::Model { key: k, .. }, payload, .. } if *k == key && !payload.is_empty())
    });
    assert_eq!(chunks.count(), model().1.len().div_ceil(16));
    assert_eq!(rig.announcement().model, model().0);
}

#[test]
fn old_models_are_cleared_and_the_one_before_stays() {
    let mut rig = Rig::new(2, 4);
    for round in 1..=3 {
        (0..2).for_each(|n| rig.update(10, &format!("v{n}"), round, n, 10));
    }
    assert_eq!(rig.region.ledger.published.len(), 2);
    let cleared: BTreeSet<String> = rig
        .shown
        .iter()
        .filter_map(|effect| match effect {
            Effect::Publish {
                topic: Topic::Model { key, .. },
                payload,
                ..
            } if payload.is_empty() => Some(key.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(
        cleared.len(),
        2,
        "the global model and the first regional one"
    );
}

#[test]
fn a_model_that_cannot_be_read_opens_nothing() {
    let mut other = plan(1, 1);
    other.model = codec::digest(b"x");
    let mut region = Region::new(site(1), Timestamp(0), other, RoundId(1)).unwrap();
    assert!(region.wanted_model().is_some());
    assert!(
        region
            .on_model(codec::digest(b"x"), b"x".to_vec())
            .is_empty()
    );
    assert!(region.wanted_model().is_none() && !region.is_ready(Timestamp(1)));
}

proptest! {
    /// Any order, any redelivery, any crashes: every vehicle counts once and the sum has the same bits.
    #[test]
    fn order_redelivery_and_crashes_do_not_matter(
        deliveries in proptest::collection::vec((0u8..6, any::<bool>()), 0..40),
    ) {
        let mut rig = Rig::new(6, 1);
        let mut generation = 1;
        for (n, crash) in deliveries {
            if crash {
                generation += 1;
                rig.crash(10, generation);
            }
            rig.update(10, &format!("v{n}"), 1, n, 10 + u64::from(n));
        }
        (0..6).for_each(|n| rig.update(20, &format!("v{n}"), 1, n, 10 + u64::from(n)));
        let mut plain = Rig::new(6, 1);
        (0..6).for_each(|n| plain.update(20, &format!("v{n}"), 1, n, 10 + u64::from(n)));
        let (got, expected) = (rig.partial(), plain.partial());
        prop_assert_eq!(sum_bits(&got), sum_bits(&expected));
        prop_assert_eq!(got.contributions.len(), 6);
    }
}

/// What a sender claims about its round must not push verdicts out of the book.
#[test]
fn the_book_is_kept_by_our_rounds_not_by_claims() {
    let mut rig = Rig::new(3, 1);
    rig.update(1, "v0", 1, 0, 10);
    rig.update(2, "v1", u64::MAX, 0, 10);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Rejected(RejectReason::UnknownRound)
    );
    rig.update(3, "v0", 1, 0, 10);
    assert_eq!(rig.last_verdict(), Verdict::Accepted);
    let refused = Arrival::refused(
        vehicle("v1"),
        UpdateId([4; 16]),
        RoundId(1),
        Timestamp(1),
        RejectReason::TooLarge,
    );
    let effects = rig.region.on_arrival(Timestamp(4), refused);
    rig.apply(4, effects);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Rejected(RejectReason::TooLarge)
    );
}

/// A rig whose job was changed before its first round.
fn rig_with(vehicles: usize, change: impl Fn(&mut JobSpec)) -> Rig {
    let mut rig = Rig::new(vehicles, 1);
    let mut plan = plan(2, 1);
    change(&mut plan.spec);
    let effects = rig.region.on_plan(Timestamp(1), plan);
    rig.apply(1, effects);
    let (digest, frame) = model();
    let effects = rig.region.on_model(digest, frame);
    rig.apply(1, effects);
    rig
}

fn mean_of(partial: &PartialAggregate) -> Vec<f64> {
    let sum = decode_sum(&partial.sum_frame, &spec(1).model.schema().unwrap()).unwrap();
    sum.values
        .iter()
        .map(|v| v / sum.num_examples as f64)
        .collect()
}

#[test]
fn a_jobs_rule_makes_the_contribution() {
    let mut rig = rig_with(5, |spec| spec.aggregation.rule = RuleSpec::named("median"));
    let round = rig.announcement().round.0;
    for n in 0..5_u8 {
        rig.update(10, &format!("v{n}"), round, 10 * n, 5 + u64::from(n));
    }
    let partial = rig.partial();
    assert_eq!(partial.num_examples, 5 + 6 + 7 + 8 + 9);
    let schema = spec(1).model.schema().unwrap();
    for (at, got) in mean_of(&partial).into_iter().enumerate() {
        let exponent = EXPONENTS[usize::from(at >= schema.ranges().next().unwrap().end)];
        let scaled = |n: u8| f16::from_f32(deltas(10 * n)[at] * f32::from(-exponent).exp2());
        let mut all: Vec<f64> = (0..5).map(|n| scaled(n).to_f64()).collect();
        all.sort_by(f64::total_cmp);
        assert!((got - all[2]).abs() < 1e-12, "value {at}: {got} of {all:?}");
    }
}

#[test]
fn a_frame_that_is_gone_at_the_close_costs_its_update_only() {
    let mut rig = Rig::new(3, 1);
    for n in 0..2_u8 {
        rig.update(10, &format!("v{n}"), 1, n, 5);
    }
    rig.store.lose_frame(&spec(1).job, &vehicle("v0"));
    rig.update(20, "v2", 1, 2, 7);
    let partial = rig.partial();
    assert_eq!(partial.num_examples, 12, "v1 and v2");
    let line = partial
        .contributions
        .iter()
        .find(|line| line.vehicle == vehicle("v0"));
    assert_eq!(line.unwrap().verdict, Verdict::Stale);
}

#[test]
fn buffered_rounds_take_late_updates_for_less() {
    let mut rig = rig_with(4, |spec| {
        spec.round.edge_rounds = 3;
        spec.aggregation.buffered = Some(Buffered {
            buffer_size: 2,
            max_staleness: 2,
        });
    });
    let first = rig.announcement().round.0;
    assert_eq!(rig.announcement().cohort.len(), 4);
    rig.update(10, "v0", first, 1, 100);
    rig.update(11, "v1", first, 2, 100);
    let second = rig.announcement();
    assert_eq!(second.round.0, first + 1, "two updates close a round");
    // v2 has trained on the first model all the while; v3 is on the second one.
    rig.update(20, "v2", first, 3, 100);
    assert_eq!(rig.last_verdict(), Verdict::Accepted, "one round late");
    rig.update(21, "v3", first + 1, 4, 100);
    let third = rig.announcement().round.0;
    assert_eq!(third, first + 2);
    rig.crash(22, 2);
    rig.update(23, "v0", first, 5, 100);
    assert_eq!(rig.last_verdict(), Verdict::Accepted, "two rounds late");
    rig.update(24, "v1", first + 5, 6, 100);
    assert_eq!(
        rig.last_verdict(),
        Verdict::Rejected(RejectReason::UnknownRound)
    );
    rig.update(25, "v1", third, 7, 100);
    let partial = rig.partial();
    assert_eq!(partial.num_examples, 600, "six updates of a hundred");
    assert!(
        partial
            .contributions
            .iter()
            .all(|l| l.verdict == Verdict::Accepted || l.round.0 > third)
    );
    rig.update(30, "v3", first, 8, 100);
    assert_eq!(rig.last_verdict(), Verdict::Stale, "no round is open");
}

#[test]
fn a_late_update_weighs_less_in_the_sum() {
    let mut rig = rig_with(2, |spec| {
        spec.round.min_vehicles = 1;
        spec.aggregation.buffered = Some(Buffered {
            buffer_size: 1,
            max_staleness: 3,
        });
    });
    let first = rig.announcement().round.0;
    rig.update(10, "v0", first, 1, 100);
    let fresh = mean_of(&rig.partial());
    let mut next = plan(3, 1);
    next.spec = rig.region.ledger.plan.spec.clone();
    let effects = rig.region.on_plan(Timestamp(20), next);
    rig.apply(20, effects);
    assert_eq!(rig.announcement().round.0, first + 1);
    rig.update(30, "v1", first, 1, 100);
    assert_eq!(rig.last_verdict(), Verdict::Accepted);
    for (fresh, late) in fresh.iter().zip(mean_of(&rig.partial())) {
        // 1 / sqrt(2) in 256ths.
        assert!(
            (late - fresh * 181.0 / 256.0).abs() < 1e-12,
            "{fresh} {late}"
        );
    }
}

#[test]
fn fp16_partials_feed_their_rounding_back() {
    let mut rig = rig_with(2, |spec| spec.aggregation.fp16_partials = true);
    let schema = spec(1).model.schema().unwrap();
    let (mut sent, mut exact) = (
        vec![0.0; schema.num_parameters()],
        vec![0.0; schema.num_parameters()],
    );
    for merge_round in 2..12 {
        let round = rig.announcement().round.0;
        rig.update(10 * merge_round, "v0", round, 3, 3);
        rig.update(10 * merge_round, "v1", round, 90, 7);
        let partial = rig.partial();
        let delta = codec::decode_delta(&partial.sum_frame, &schema).unwrap();
        for (sum, value) in sent.iter_mut().zip(delta.to_parameters()) {
            *sum += f64::from(value);
        }
        for (at, sum) in exact.iter_mut().enumerate() {
            *sum += f64::from(deltas(3)[at]).mul_add(0.3, f64::from(deltas(90)[at]) * 0.7);
        }
        let mut next = plan(merge_round + 1, 1);
        next.spec = rig.region.ledger.plan.spec.clone();
        let effects = rig.region.on_plan(Timestamp(10 * merge_round + 5), next);
        rig.apply(10 * merge_round + 5, effects);
        if merge_round == 6 {
            rig.crash(10 * merge_round + 6, 2);
        }
    }
    for (at, (sent, exact)) in sent.iter().zip(exact).enumerate() {
        // One rounding in all, not ten of them.
        assert!(
            (sent - exact).abs() <= 2e-4 * exact.abs().max(0.01),
            "value {at}: {sent}, {exact}"
        );
    }
}
