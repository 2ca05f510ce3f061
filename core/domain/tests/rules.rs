//! The rules against reference values that NumPy made from the papers' formulas, and what all of them promise.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "fixtures hold small whole numbers; sums of quanta are exact in 128 bits"
)]

use half::f16;
use proptest::prelude::*;
use serde_json::Value;
use wayside_domain::aggregate::rules::FlTrust;
use wayside_domain::aggregate::{
    Aggregator, BLOCK, InMemory, RuleSpec, Updates, Weighted, WeightedSum, combine,
};
use wayside_domain::kernels::Isa;

fn load(name: &str) -> Value {
    let path = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).expect("JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("a list");
    list.iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn halves(value: &Value) -> Vec<f16> {
    let list = value.as_array().expect("a list");
    let bits = list.iter().map(|v| v.as_u64().expect("bits"));
    bits.map(|b| f16::from_bits(u16::try_from(b).expect("16 bits")))
        .collect()
}

fn known(rows: &[Vec<f16>], num_examples: &[u64]) -> Vec<Weighted> {
    let largest = |row: &Vec<f16>| row.iter().map(|v| v.to_f64().abs()).fold(0.0, f64::max);
    let rows = rows.iter().zip(num_examples);
    rows.map(|(row, num_examples)| Weighted {
        num_examples: *num_examples,
        largest: largest(row),
        staleness: 0,
    })
    .collect()
}

fn source(rows: &[Vec<f16>]) -> InMemory {
    InMemory::new(rows.iter().map(Vec::as_slice))
}

/// A rule as the fixtures name its parameters.
fn rule(name: &str, params: &Value, scaled_root: &[f64], root_norm: f64) -> Box<dyn Aggregator> {
    if name == "fltrust" {
        let root = scaled_root.to_vec();
        return Box::new(FlTrust { root, root_norm });
    }
    let mut spec = RuleSpec::named(name);
    let given = params.as_object().expect("an object").iter();
    // What follows from the others: how many were cut, each score, who was chosen.
    for (key, value) in
        given.filter(|(key, _)| !["k", "scores", "selected"].contains(&key.as_str()))
    {
        let value = match value {
            Value::Bool(yes) => f64::from(u8::from(*yes)),
            Value::String(text) if text == "auto" => 0.0,
            value => value.as_f64().expect("a number"),
        };
        spec = match key.as_str() {
            "f" => spec.with("num_malicious", value),
            "m" => spec.with("num_selected", value),
            "tau" => spec.with("clip_norm", value),
            "nu" => spec.with("smoothing", value),
            key => spec.with(key, value),
        };
    }
    spec.build().expect("a rule")
}

#[test]
fn every_rule_gives_what_its_paper_says() {
    let fixture = load("rules.json");
    let lengths = numbers(&fixture["tensors"]);
    let ranges = [
        0..lengths[0] as usize,
        lengths[0] as usize..(lengths[0] + lengths[1]) as usize,
    ];
    let exponents: Vec<i8> = numbers(&fixture["exponents"])
        .iter()
        .map(|e| *e as i8)
        .collect();
    let units = |at: usize| f64::from(exponents[usize::from(at >= ranges[0].end)]).exp2();
    let mut checked = std::collections::BTreeMap::new();
    for case in fixture["cases"].as_array().expect("cases") {
        let rows: Vec<Vec<f16>> = case["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .map(halves)
            .collect();
        let examples: Vec<u64> = numbers(&case["num_examples"])
            .iter()
            .map(|n| *n as u64)
            .collect();
        let (source, known) = (source(&rows), known(&rows, &examples));
        let most = known.iter().map(|k| k.largest).fold(0.0, f64::max);
        let root = numbers(&case["root"]);
        let scaled_root: Vec<f64> = root.iter().enumerate().map(|(i, v)| v / units(i)).collect();
        let root_norm = root.iter().map(|v| v * v).sum::<f64>().sqrt();
        for entry in case["rules"].as_array().expect("rules") {
            let name = entry["rule"].as_str().expect("a name");
            let rule = rule(name, &entry["params"], &scaled_root, root_norm);
            let updates = Updates::new(&source, &known, ranges.clone(), &exponents, 1);
            let sum = combine(rule.as_ref(), &updates).expect("combines");
            let mean = sum.mean(ranges.clone()).expect("examples");
            for (at, (got, expected)) in mean.iter().zip(numbers(&entry["expected"])).enumerate() {
                // Coefficients are multiples of 2^-28 of their sum, results of 2^-24 of the scale.
                let tolerance = (most * 2e-7).max(1e-7) * units(at);
                assert!(
                    (got - expected).abs() <= tolerance,
                    "{name} {} n = {}: value {at} is {got}, expected {expected}",
                    entry["params"],
                    rows.len()
                );
            }
            *checked.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    assert_eq!(
        checked.len(),
        9,
        "every rule has reference values: {checked:?}"
    );
}

/// What KubeEdge's own federated learning gives for the same clients: Sedna sums in f64, so do we.
#[test]
fn fedavg_gives_what_sedna_gives() {
    fn flat(value: &Value, to: &mut Vec<f64>) {
        match value {
            Value::Array(list) => list.iter().for_each(|v| flat(v, to)),
            value => to.push(value.as_f64().expect("a number")),
        }
    }
    let fixture = load("sedna-fedavg.json");
    let (mut rows, mut examples) = (Vec::new(), Vec::new());
    for client in fixture["clients"].as_array().expect("clients") {
        let mut row = Vec::new();
        flat(&client["weights"], &mut row);
        rows.push(row.into_iter().map(f16::from_f64).collect::<Vec<_>>());
        examples.push(client["num_samples"].as_u64().expect("a count"));
    }
    let mut expected = Vec::new();
    flat(&fixture["result"], &mut expected);
    let (source, known) = (source(&rows), known(&rows, &examples));
    let updates = Updates::new(&source, &known, [0..expected.len()], &[0], 1);
    let rule = RuleSpec::default().build().expect("fedavg");
    let sum = combine(rule.as_ref(), &updates).expect("combines");
    assert!(sum.is_exact());
    for (got, expected) in sum
        .mean([0..expected.len()])
        .expect("examples")
        .iter()
        .zip(expected)
    {
        assert!(
            (got - expected).abs() <= 1e-15 * expected.abs(),
            "{got} {expected}"
        );
    }
}

fn half_values(len: usize) -> impl Strategy<Value = Vec<f16>> {
    let value = (-1.0f32..1.0).prop_map(|v| f16::from_f32(v * v * v));
    proptest::collection::vec(value, len)
}

fn cohort(len: usize) -> impl Strategy<Value = Vec<(u64, Vec<f16>)>> {
    proptest::collection::vec((1u64..5_000, half_values(len)), 9..24)
}

fn all_rules() -> Vec<RuleSpec> {
    vec![
        RuleSpec::named("fedavg"),
        RuleSpec::named("fedavg").with("weighted", 0.0),
        RuleSpec::named("fedavg-clipped"),
        RuleSpec::named("median"),
        RuleSpec::named("trimmed-mean"),
        RuleSpec::named("krum").with("num_malicious", 2.0),
        RuleSpec::named("multi-krum").with("num_malicious", 2.0),
        RuleSpec::named("centered-clipping"),
        RuleSpec::named("geometric-median"),
    ]
}

fn bits(sum: &WeightedSum) -> Vec<u64> {
    sum.values().iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Three tensors over more than two blocks, so that blocks, tensors and threads do not meet at the same places.
    #[test]
    fn threads_and_cpu_change_no_bit(cohort in cohort(3), spread in half_values(2 * BLOCK + 77)) {
        let d = spread.len();
        let rows: Vec<Vec<f16>> = cohort.iter().map(|(n, few)| {
            let value = |(i, v): (usize, &f16)| *v * few[i % 3] + f16::from_f64(*n as f64 * 1e-6);
            spread.iter().enumerate().map(value).collect()
        }).collect();
        let examples: Vec<u64> = cohort.iter().map(|(n, _)| *n).collect();
        let (source, known) = (source(&rows), known(&rows, &examples));
        let ranges = [0..7, 7..BLOCK + 5, BLOCK + 5..d];
        for spec in all_rules() {
            let rule = spec.build().expect("a rule");
            let mut first = None;
            for isa in Isa::available() {
                for threads in [1, 2, 3, 8] {
                    let updates = Updates::new(&source, &known, ranges.clone(), &[-5, 0, 2], threads).on(isa);
                    let sum = combine(rule.as_ref(), &updates).expect("combines");
                    let first = first.get_or_insert_with(|| sum.clone());
                    prop_assert!(bits(&sum) == bits(first), "{} on {:?}, {} threads", spec.name, isa, threads);
                    prop_assert_eq!(sum.is_exact(), first.is_exact());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any order gives the same bits, for FedAvg also any grouping into roadside units; taking one out again too.
    #[test]
    fn order_and_tiers_change_no_bit(cohort in cohort(21), seed in any::<u64>(), units in 1usize..5) {
        use rand::seq::SliceRandom;
        use rand_chacha::rand_core::SeedableRng;
        let mut shuffled = cohort.clone();
        shuffled.shuffle(&mut rand_chacha::ChaCha8Rng::seed_from_u64(seed));
        let of = |members: &[(u64, Vec<f16>)], spec: &RuleSpec| {
            let rows: Vec<_> = members.iter().map(|(_, row)| row.clone()).collect();
            let examples: Vec<_> = members.iter().map(|(n, _)| *n).collect();
            let (source, known) = (source(&rows), known(&rows, &examples));
            let updates = Updates::new(&source, &known, [0..9, 9..21], &[-3, 2], 1);
            combine(spec.build().expect("a rule").as_ref(), &updates).expect("combines")
        };
        let plain = RuleSpec::default();
        let flat = of(&cohort, &plain);
        prop_assert!(flat.is_exact());
        prop_assert_eq!(bits(&of(&shuffled, &plain)), bits(&flat));
        // Selecting rules may break ties by the order, which is that of names; these values have none.
        for name in ["median", "trimmed-mean"] {
            let spec = RuleSpec::named(name);
            prop_assert_eq!(bits(&of(&shuffled, &spec)), bits(&of(&cohort, &spec)));
        }
        let mut tree = WeightedSum::new(21, vec![-3, 2]);
        for unit in shuffled.chunks(shuffled.len().div_ceil(units)) {
            tree.merge(&of(unit, &plain)).expect("same scales");
        }
        prop_assert_eq!(bits(&tree), bits(&flat));
        // A contribution taken out leaves what would have been without it.
        let (last, rest) = shuffled.split_last().expect("some");
        tree.remove(last.0, &[-3, 2], &last.1).expect("was in");
        prop_assert_eq!(bits(&tree), bits(&of(rest, &plain)));
    }

    /// Past the exact range a sum says so and stays right to 1e-14.
    #[test]
    fn past_the_bound_the_sum_is_still_right(
        rows in proptest::collection::vec((1u64 << 38..1 << 40, half_values(5)), 3..40),
    ) {
        let values: Vec<_> = rows.iter().map(|(_, row)| {
            row.iter().map(|v| f16::from_f32(v.to_f32().abs() + 0.1)).collect::<Vec<_>>()
        }).collect();
        let examples: Vec<_> = rows.iter().map(|(n, _)| *n).collect();
        let (source, known) = (source(&values), known(&values, &examples));
        let updates = Updates::new(&source, &known, [0..5], &[0], 1);
        let sum = updates.weighted_sum().expect("sums");
        prop_assert!(!sum.is_exact());
        for (at, got) in sum.values().iter().enumerate() {
            // In units of 2^-24, as integers: exact.
            let exact: i128 = values.iter().zip(&examples)
                .map(|(row, n)| (row[at].to_f64() * 16_777_216.0) as i128 * i128::from(*n)).sum();
            let expected = exact as f64 / 16_777_216.0;
            prop_assert!((got - expected).abs() <= 1e-14 * expected.abs(), "{} {}", got, expected);
        }
    }
}

/// Stale updates weigh less, in whole 256ths, and the sum of them is exact.
#[test]
fn stale_updates_weigh_less() {
    let rows = vec![vec![f16::ONE], vec![f16::from_f32(0.5)]];
    let mut known = known(&rows, &[10, 20]);
    known[1].staleness = 3; // 1 / sqrt(1 + 3) = 1/2
    let source = source(&rows);
    let updates = Updates::new(&source, &known, [0..1], &[0], 1);
    let sum = updates.weighted_sum().expect("sums");
    assert!(sum.is_exact());
    assert_eq!(sum.values(), [10.0 + 20.0 * 0.5 * 0.5]);
    assert_eq!(sum.num_examples(), 30);
}
