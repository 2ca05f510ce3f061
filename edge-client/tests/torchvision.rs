//! State dicts of torchvision against what torchvision computes, and a second folded network where it lies at hand.
//!
//! `golden/torchvision.py` made the fixtures from torchvision's own modules.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::{Path, PathBuf};

use edge_client::backbone::{Backbone, read_float, read_float_bytes};
use edge_client::pictures::{InputSize, Picture};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use wayside_extractor::float::FloatNetwork;
use wayside_extractor::topology::{Family, Padding};

/// Far above rounding (measured: 7e-6 of the largest feature), far below what a wrong padding, epsilon or mean does.
const TOLERANCE: f32 = 1e-3;

fn golden(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    folder.join(name)
}

fn pictures(view: &TensorView) -> Vec<Picture> {
    assert_eq!(view.dtype(), Dtype::U8);
    let [_, height, width, 3] = *view.shape() else {
        panic!("{:?}", view.shape());
    };
    let size = InputSize { height, width };
    view.data()
        .chunks_exact(height * width * 3)
        .map(|rgb| Picture::new(size, rgb.to_vec()).unwrap())
        .collect()
}

/// Largest difference as a share of the largest value, or of 1 where that is smaller.
fn difference(backbone: &Backbone, pictures: &[Picture], expected: &TensorView) -> f32 {
    let features = backbone.extract(pictures).unwrap();
    assert_eq!(*expected.shape(), [features.nrows(), features.ncols()]);
    let expected = expected.data().as_chunks::<4>().0;
    let expected: Vec<f32> = expected.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let largest = expected.iter().fold(1.0_f32, |most, x| most.max(x.abs()));
    let pairs = features.iter().zip(&expected);
    pairs.fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// The file with some tensors left out.
fn without(name: &str, dropped: impl Fn(&str) -> bool) -> Vec<u8> {
    let bytes = std::fs::read(golden(name)).unwrap();
    let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    tensors.retain(|(name, _)| !dropped(name));
    safetensors::serialize(tensors, None).unwrap()
}

#[test]
fn features_equal_those_of_torchvision() {
    let bytes = std::fs::read(golden("torchvision_expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    let small = Backbone::load(&golden("torchvision_small.safetensors")).unwrap();
    let headless = without("torchvision_small.safetensors", |name| {
        name.starts_with("classifier")
    });
    let headless = Backbone::from_bytes(&headless).unwrap();
    let large = Backbone::load(&golden("torchvision_large.safetensors")).unwrap();
    for size in ["64x48", "33x47"] {
        let shown = expected.tensor(&format!("pictures_{size}")).unwrap();
        let shown = pictures(&shown);
        for (backbone, what) in [
            (&small, "small_features"),
            (&headless, "small_pooled"),
            (&large, "large_pooled"),
        ] {
            let expected = expected.tensor(&format!("{what}_{size}")).unwrap();
            let difference = difference(backbone, &shown, &expected);
            eprintln!("{what} {size}: {difference:e}");
            assert!(difference <= TOLERANCE, "{what} {size}: {difference}");
        }
    }
}

#[test]
fn a_state_dict_says_what_it_is() {
    let check = |network: &FloatNetwork, family: Family| {
        assert_eq!(network.family, family);
        assert_eq!(network.padding, Padding::Symmetric);
        assert_eq!(network.sixth.to_bits(), (1.0_f32 / 6.0).to_bits());
        let black = network.normalisation.shift[0];
        assert!((black + 0.485 / 0.229).abs() < 1e-6);
        assert_eq!(network.blocks.len(), family.blocks().len());
    };
    let expanding = |network: &FloatNetwork| {
        let blocks = network.blocks.iter();
        blocks
            .map(|block| block.expand.is_some())
            .collect::<Vec<_>>()
    };
    let small = read_float(&golden("torchvision_small.safetensors")).unwrap();
    check(&small, Family::Small);
    let behind = |first: usize| (0..first).map(|_| false).chain(std::iter::repeat(true));
    assert!(expanding(&small).into_iter().eq(behind(1).take(11)));
    assert_eq!(
        small.pooled.map(|layer| (layer.output, layer.input)),
        Some((32, 96))
    );
    let large = read_float(&golden("torchvision_large.safetensors")).unwrap();
    check(&large, Family::Large);
    // At this width the second block's expansion, 64 / 8, is as wide as its input: there is none.
    assert!(expanding(&large).into_iter().eq(behind(2).take(15)));
    assert_eq!(large.pooled, None);
}

#[test]
fn metadata_may_name_another_input() {
    let bytes = std::fs::read(golden("torchvision_small.safetensors")).unwrap();
    let with = |key: &str, value: &str| {
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        let metadata = [(key.to_owned(), value.to_owned())].into();
        read_float_bytes(&safetensors::serialize(tensors, Some(metadata)).unwrap())
    };
    let normalisation = with("input", "RGB, x/127.5-1").unwrap().normalisation;
    assert_eq!(
        normalisation.scale.map(f32::to_bits),
        [(1.0_f32 / 127.5).to_bits(); 3]
    );
    assert_eq!(
        normalisation.shift.map(f32::to_bits),
        [(-1.0_f32).to_bits(); 3]
    );
    let error = with("input", "BGR").unwrap_err().to_string();
    assert!(error.contains("metadata \"input\" is \"BGR\""), "{error}");
    let error = with("padding", "TensorFlow SAME").unwrap_err().to_string();
    assert!(error.contains("metadata \"padding\""), "{error}");
}

#[test]
fn a_wrong_tensor_is_named() {
    let file = "torchvision_small.safetensors";
    let check = |bytes: &[u8], expected: &str| {
        let error = read_float_bytes(bytes).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    for missing in [
        "features.0.0.weight",
        "features.0.1.running_var",
        "features.4.block.1.1.bias",
        "features.4.block.2.fc2.bias",
        "features.12.1.num_batches_tracked",
        "classifier.0.bias",
        "classifier.3.bias",
    ] {
        check(
            &without(file, |name| name == missing),
            &format!("tensor {missing} is missing"),
        );
    }
    check(
        &without(file, |name| name == "classifier.0.weight"),
        "tensor classifier.0.bias does not belong to the network",
    );

    let bytes = std::fs::read(golden(file)).unwrap();
    let with = |changed: &str, values: &[f32], shape: &[usize]| {
        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        tensors.retain(|(name, _)| name != changed);
        let view = TensorView::new(Dtype::F32, shape.to_vec(), &data).unwrap();
        tensors.push((changed.to_owned(), view));
        safetensors::serialize(tensors, None).unwrap()
    };
    check(
        &with("features.0.0.bias", &[0.0; 8], &[8]),
        "tensor features.0.0.bias does not belong to the network",
    );
    let mut variances = [1.0; 8];
    variances[5] = -1e-9;
    check(
        &with("features.0.1.running_var", &variances, &[8]),
        "tensor features.0.1.running_var holds a negative variance",
    );
    check(
        &with("features.0.1.weight", &[f32::MAX; 8], &[8]),
        "batch norm features.0.1 folded into the convolution before it leaves the range of f32",
    );
    check(
        &with("features.0.1.running_mean", &[0.0; 9], &[9]),
        "tensor features.0.1.running_mean has shape [9], expected [8]",
    );
    check(
        &with("features.0.1.num_batches_tracked", &[40.0], &[]),
        "tensor features.0.1.num_batches_tracked has type F32, expected I64",
    );
    check(
        &with("classifier.3.weight", &[0.0; 5 * 31], &[5, 31]),
        "tensor classifier.3.weight has shape [5, 31], expected [5, 32, 1, 1]",
    );
}

/// Weights without a settled licence, read where they lie beside the project.
#[test]
fn a_folded_small_network_equals_its_reference() {
    let extra = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/extra");
    let weights = extra.join("mobilenet_v3_small_075_imagenet.safetensors");
    let Ok(bytes) = std::fs::read(extra.join("golden_small_075.safetensors")) else {
        eprintln!("not run: no second network beside the project");
        return;
    };
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let shown = pictures(&file.tensor("input_u8").unwrap());
    let backbone = Backbone::load(&weights).unwrap();
    assert_eq!(backbone.features(), 1024);
    let features = backbone.extract(&shown).unwrap();
    let expected = file.tensor("feature_1024").unwrap();
    let expected = expected.data().as_chunks::<4>().0.iter();
    let expected = expected.map(|b| f32::from_le_bytes(*b));
    let pairs = features.iter().zip(expected);
    let difference = pairs.fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
    eprintln!("small 0.75: {difference:e}");
    assert!(difference <= TOLERANCE, "{difference}");
}
