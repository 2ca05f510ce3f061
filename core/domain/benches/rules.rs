//! Every rule on decoded updates of a million parameters, one thread.
//!
//! `cargo bench -p wayside-domain`; all updates differ and lie in memory, as they do for the peers.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use half::f16;
use std::hint::black_box;
use std::time::Duration;
use wayside_domain::aggregate::{InMemory, RuleSpec, Updates, Weighted, combine};
use wayside_domain::kernels::Isa;

const PARAMETERS: usize = 1_000_000;

/// Values like those of a round: most small, the largest about 1.
fn updates(n: u64) -> (InMemory, Vec<Weighted>) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    let mut update = || -> Vec<f16> {
        (0..PARAMETERS)
            .map(|_| f16::from_f32(draw() * draw() * draw()))
            .collect()
    };
    let mut known = Vec::new();
    let mut source = InMemory::default();
    for k in 0..n {
        source.push(&update());
        known.push(Weighted {
            num_examples: 20 + k * 7 % 300,
            largest: 1.0,
            staleness: 0,
        });
    }
    (source, known)
}

fn run(c: &mut Criterion, n: u64, rules: &[RuleSpec]) {
    let (source, known) = updates(n);
    let mut group = c.benchmark_group(format!("{n} updates of 1M"));
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(3));
    for rule in rules {
        let built = rule.build().expect("a known rule");
        for isa in Isa::available() {
            let id = BenchmarkId::new(&rule.name, isa.label());
            group.bench_function(id, |b| {
                let updates = Updates::new(&source, &known, [0..PARAMETERS], &[-4], 1).on(isa);
                b.iter(|| black_box(combine(built.as_ref(), &updates)).expect("combines"));
            });
        }
    }
    group.finish();
}

fn fedavg(c: &mut Criterion) {
    run(c, 100, &[RuleSpec::named("fedavg")]);
}

fn robust(c: &mut Criterion) {
    let rules = [
        RuleSpec::named("krum").with("num_malicious", 10.0),
        RuleSpec::named("multi-krum").with("num_malicious", 10.0),
        RuleSpec::named("median"),
        RuleSpec::named("trimmed-mean"),
        RuleSpec::named("fedavg-clipped"),
        RuleSpec::named("centered-clipping"),
        RuleSpec::named("geometric-median"),
    ];
    run(c, 50, &rules);
}

criterion_group!(benches, fedavg, robust);
criterion_main!(benches);
