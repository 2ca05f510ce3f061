use wayside_extractor::file;
use wayside_extractor::topology::{Family, Padding};

use super::*;
use crate::backbone::read_float;
use crate::pictures::InputSize;

/// Blurred noise: neighbours resemble each other, as in photographs.
fn pictures(count: usize, size: InputSize) -> Vec<Picture> {
    let mut state = 1_u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0
    };
    let picture = |_| {
        let waves: Vec<[f32; 4]> = (0..9).map(|_| std::array::from_fn(|_| noise())).collect();
        let bytes = (0..size.height * size.width * 3).map(|at| {
            let (pixel, colour) = (at / 3, at % 3);
            let (y, x) = ((pixel / size.width) as f32, (pixel % size.width) as f32);
            let own = waves.iter().skip(colour).step_by(3);
            let sum: f32 = own
                .map(|[a, b, c, d]| d * (a * x * 0.5 + b * y * 0.5 + c * 6.3).sin())
                .sum();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "clamped to a byte"
            )]
            let byte = (127.5 + 60.0 * sum).clamp(0.0, 255.0) as u8;
            byte
        });
        Picture::new(size, bytes.collect()).unwrap()
    };
    (0..count).map(picture).collect()
}

fn random(family: Family, padding: Padding) -> FloatNetwork {
    FloatNetwork::random(family, 0.25, 5, padding)
}

const SIZE: InputSize = InputSize {
    height: 48,
    width: 40,
};

#[test]
fn random_networks_keep_their_features() {
    for (family, padding) in [
        (Family::Small, Padding::Same),
        (Family::Large, Padding::Symmetric),
    ] {
        let float = random(family, padding);
        let calibration = pictures(24, SIZE);
        let network = quantize(&float, &calibration, 2, &|_, _| {}).unwrap();
        let agreement = compare(&float, &network, &calibration, 2).unwrap();
        assert!(agreement.mean > 0.97, "{family:?} {agreement:?}");
        let layers = layers(&float, &network, &calibration, 2).unwrap();
        assert_eq!(layers[0].name, "stem");
        assert!(layers[0].cosine > 0.999, "{:?}", layers[0]);
        assert!(
            layers
                .iter()
                .all(|layer| layer.saturated < 0.2 && layer.low < layer.high)
        );
    }
}

#[test]
fn threads_change_nothing() {
    let float = random(Family::Small, Padding::Same);
    let calibration = pictures(20, SIZE);
    let one = quantize(&float, &calibration, 1, &|_, _| {}).unwrap();
    let three = quantize(&float, &calibration, 3, &|_, _| {}).unwrap();
    assert!(one == three);
}

/// Channels that never move and weights of 0 still make a network that can run.
#[test]
fn dead_channels_are_no_trouble() {
    let mut float = random(Family::Large, Padding::Same);
    float.stem.weight[..27].fill(0.0);
    let block = &mut float.blocks[3];
    block.project.weight[..block.project.input].fill(0.0);
    block.depthwise.weight.fill(0.0);
    block.depthwise.bias.fill(-1.0);
    float.last.weight.fill(0.0);
    let calibration = pictures(4, SIZE);
    let network = quantize(&float, &calibration, 2, &|_, _| {}).unwrap();
    let bytes = file::write(
        &network,
        &file::Provenance {
            input_size: (SIZE.height, SIZE.width),
            calibration: [0; 32],
            source: [0; 32],
            origin: None,
            licence: None,
        },
    );
    assert!(file::read(&bytes).unwrap().0 == network);
    assert!(compare(&float, &network, &calibration, 2).unwrap().mean > 0.99);
}

#[test]
fn the_shipped_network_is_close_with_few_pictures() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/models/mobilenet_v3_large_075_coco.f16.safetensors"
    );
    let float = read_float(path.as_ref()).unwrap();
    let calibration = pictures(
        16,
        InputSize {
            height: 64,
            width: 64,
        },
    );
    let network = quantize(&float, &calibration, 2, &|_, _| {}).unwrap();
    let agreement = compare(&float, &network, &calibration, 2).unwrap();
    assert!(agreement.mean > 0.98, "{agreement:?}");
}

#[test]
fn pictures_must_be_there_and_of_one_size() {
    let float = random(Family::Small, Padding::Same);
    let error = quantize(&float, &[], 1, &|_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "no pictures to calibrate on");
    let mut mixed = pictures(1, SIZE);
    mixed.extend(pictures(
        1,
        InputSize {
            height: 32,
            width: 32,
        },
    ));
    let error = quantize(&float, &mixed, 1, &|_, _| {}).unwrap_err();
    assert!(error.to_string().starts_with("picture of 32x32"), "{error}");
}
