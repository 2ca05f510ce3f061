//! A picture through a whole network, by network and instruction set.

use criterion::{Criterion, criterion_group, criterion_main};
use wayside_extractor::engine::Model;
use wayside_extractor::kernels::Isa;
use wayside_extractor::quantized::QuantNetwork;
use wayside_extractor::topology::{Family, Padding};

fn networks(c: &mut Criterion) {
    for (family, size) in [
        (Family::Small, (224, 224)),
        (Family::Large, (224, 224)),
        (Family::Large, (128, 64)),
    ] {
        let network = QuantNetwork::random(family, 1.0, 1, Padding::Symmetric);
        let rgb: Vec<u8> = (0..size.0 * size.1 * 3)
            .map(|i| u8::try_from(i * 7919 % 251).unwrap_or_default())
            .collect();
        let mut group = c.benchmark_group(format!("{}/{}x{}", family.name(), size.0, size.1));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let model = Model::new(network.clone(), isa).expect("random networks are fit");
            let mut session = model.session(size.0, size.1);
            let mut features = vec![0.0; model.features()];
            if isa == Isa::Scalar {
                group.sample_size(10);
            } else {
                group.sample_size(50);
            }
            group.bench_function(isa.name(), |b| b.iter(|| session.run(&rgb, &mut features)));
        }
        group.finish();
    }
}

criterion_group!(benches, networks);
criterion_main!(benches);
