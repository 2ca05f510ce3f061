//! A running picture allocates nothing, and the arena stays small.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use wayside_extractor::engine::Model;
use wayside_extractor::kernels::Isa;
use wayside_extractor::quantized::QuantNetwork;
use wayside_extractor::topology::{Family, Padding};

#[test]
fn pictures_allocate_nothing() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let network = QuantNetwork::random(Family::Small, 0.5, 1, Padding::Symmetric);
        let model = Model::new(network.clone(), isa).unwrap();
        let mut session = model.session(96, 64);
        let rgb = vec![77; 96 * 64 * 3];
        let mut features = vec![0.0; model.features()];
        let counted = allocation_counter::measure(|| {
            for _ in 0..3 {
                session.run(&rgb, &mut features);
            }
        });
        assert_eq!(counted.count_total, 0, "{isa}");
    }
}

/// The counter counts: a session does allocate when it is made.
#[test]
fn a_session_allocates_once() {
    let network = QuantNetwork::random(Family::Small, 0.5, 1, Padding::Symmetric);
    let model = Model::new(network.clone(), Isa::detect()).unwrap();
    let counted = allocation_counter::measure(|| {
        let session = model.session(96, 64);
        let own = u64::try_from(session.arena_bytes()).unwrap();
        std::hint::black_box((session, own));
    });
    assert!(counted.count_total > 0);
}

#[test]
fn arenas_at_224() {
    for (family, limit) in [(Family::Small, 1_000_000), (Family::Large, 1_000_000)] {
        let network = QuantNetwork::random(family, 1.0, 1, Padding::Symmetric);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let model = Model::new(network.clone(), isa).unwrap();
            let bytes = model.session(224, 224).arena_bytes();
            assert!(bytes <= limit, "{family:?} on {isa}: {bytes} bytes");
        }
    }
}
