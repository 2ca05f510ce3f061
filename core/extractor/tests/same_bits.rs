//! Every instruction set gives the bits that `reference` defines: on networks and pictures of any size, and on a golden
//! digest that ties one machine's architecture to another's.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use proptest::prelude::*;
use wayside_extractor::engine::Model;
use wayside_extractor::kernels::Isa;
use wayside_extractor::quantized::QuantNetwork;
use wayside_extractor::random::{BlockWidths, Widths};
use wayside_extractor::reference;
use wayside_extractor::topology::{Family, Padding};

fn here() -> Vec<Isa> {
    let all = Isa::ALL.into_iter();
    all.filter(|isa| isa.is_available()).collect()
}

/// A picture with edges, plain areas and extreme bytes.
fn picture(height: usize, width: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    let mut bytes = Vec::with_capacity(height * width * 3);
    for row in 0..height {
        for column in 0..width {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let [a, b, c, d] = state.to_le_bytes();
            let plain = (row / 5 + column / 7 + seed as usize) % 3;
            bytes.extend(match plain {
                0 => [a, b, c],
                1 => [255, d, 0],
                _ => [a / 8 + 40, a / 8 + 90, a / 8],
            });
        }
    }
    bytes
}

fn features(
    network: &QuantNetwork,
    isa: Isa,
    size: (usize, usize),
    pictures: &[Vec<u8>],
) -> Vec<f32> {
    let model = Model::new(network.clone(), isa).unwrap();
    let mut session = model.session(size.0, size.1);
    let mut all = vec![0.0; model.features() * pictures.len()];
    for (picture, features) in pictures.iter().zip(all.chunks_exact_mut(model.features())) {
        session.run(picture, features);
    }
    all
}

fn bits(features: &[f32]) -> Vec<u32> {
    features.iter().map(|x| x.to_bits()).collect()
}

fn check(network: &QuantNetwork, size: (usize, usize), pictures: &[Vec<u8>]) {
    let expected: Vec<f32> = pictures
        .iter()
        .flat_map(|rgb| reference::run(network, size.0, size.1, rgb, &mut |_, _| ()))
        .collect();
    assert!(expected.iter().all(|x| x.is_finite()));
    for isa in here() {
        let got = features(network, isa, size, pictures);
        assert_eq!(bits(&got), bits(&expected), "{isa} at {size:?}");
    }
}

/// Digest of what 40 pictures give, as little-endian f32.
fn digest(network: &QuantNetwork, isa: Isa) -> String {
    let pictures: Vec<_> = (0..40).map(|seed| picture(64, 48, seed)).collect();
    let features = features(network, isa, (64, 48), &pictures);
    let spread = features.iter().filter(|x| x.abs() > 1e-3).count();
    assert!(spread > features.len() / 2, "features that say nothing");
    let bytes: Vec<u8> = features.iter().flat_map(|x| x.to_le_bytes()).collect();
    blake3::hash(&bytes).to_hex()[..16].to_owned()
}

/// The same constants hold on x86-64 and, under emulation or on a board, on aarch64.
#[test]
fn forty_pictures_have_one_digest_everywhere() {
    let random = |family| QuantNetwork::random(family, 0.75, 3, Padding::Same);
    let shipped = "../../edge-client/models/mobilenet_v3_large_075_coco.int8.safetensors";
    let shipped = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(shipped);
    let (shipped, _) = wayside_extractor::file::read(&std::fs::read(shipped).unwrap()).unwrap();
    for (name, network, expected) in [
        ("random small", random(Family::Small), "16df9402148f8390"),
        ("random large", random(Family::Large), "085fcb74c1436f65"),
        ("shipped large", shipped, "8caa2c12c5b9d8ff"),
    ] {
        for isa in here() {
            assert_eq!(digest(&network, isa), expected, "{name} on {isa}");
        }
    }
}

#[test]
fn at_full_size() {
    for family in [Family::Small, Family::Large] {
        let network = QuantNetwork::random(family, 1.0, 5, Padding::Symmetric);
        check(&network, (224, 224), &[picture(224, 224, 9)]);
    }
}

/// Sessions keep nothing from picture to picture, and a batch is its pictures.
#[test]
fn a_session_has_no_memory() {
    let network = QuantNetwork::random(Family::Small, 0.5, 8, Padding::Same);
    let (a, b) = (picture(33, 47, 1), picture(33, 47, 2));
    for isa in here() {
        let both = features(&network, isa, (33, 47), &[a.clone(), b.clone(), a.clone()]);
        let alone = features(&network, isa, (33, 47), std::slice::from_ref(&a));
        let length = alone.len();
        assert_eq!(bits(&both[..length]), bits(&alone));
        assert_eq!(bits(&both[2 * length..]), bits(&alone));
        assert_ne!(bits(&both[length..2 * length]), bits(&alone));
    }
}

fn widths(family: Family) -> impl Strategy<Value = Widths> {
    let width = prop_oneof![
        1usize..=40,
        Just(64),
        Just(72),
        Just(80),
        Just(112),
        Just(128)
    ];
    let block =
        (width.clone(), 1usize..=20, width.clone()).prop_map(|(expansion, squeeze, output)| {
            BlockWidths {
                expansion,
                squeeze,
                output,
            }
        });
    let blocks = proptest::collection::vec(block, family.blocks().len());
    let pooled = proptest::option::of(1usize..=33);
    (width.clone(), blocks, width, pooled).prop_map(|(stem, mut blocks, last, pooled)| {
        // Some residuals and some blocks without expansion.
        let mut input = stem;
        for (index, block) in blocks.iter_mut().enumerate() {
            if index % 3 == 1 {
                block.output = input;
            }
            if index % 5 == 0 {
                block.expansion = input;
            }
            input = block.output;
        }
        Widths {
            stem,
            blocks,
            last,
            pooled,
        }
    })
}

fn case() -> impl Strategy<Value = (Family, Widths, u64, Padding, (usize, usize))> {
    let family = prop_oneof![Just(Family::Small), Just(Family::Large)];
    let padding = prop_oneof![Just(Padding::Same), Just(Padding::Symmetric)];
    family.prop_flat_map(move |family| {
        let size = (1usize..=70, 1usize..=130);
        (
            Just(family),
            widths(family),
            any::<u64>(),
            padding.clone(),
            size,
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(target_arch = "aarch64") { 6 } else { 48 }))]

    #[test]
    fn any_widths_and_sizes((family, widths, seed, padding, size) in case()) {
        let network = QuantNetwork::random_with(family, &widths, seed, padding);
        check(&network, size, &[picture(size.0, size.1, 3)]);
    }
}
