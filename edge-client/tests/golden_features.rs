//! The shipped backbone against reference results, from picture files to features.
//!
//! `golden/make.py` made the files: eight photographs as PNG and what TensorFlow.js computes for them with the same
//! weights. Weights that were damaged on the way are tried here too, since only the real file has all the tensors.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use edge_client::backbone::{Backbone, BackboneError};
use edge_client::features::{Extraction, FeatureError, FeatureSet, extract_dataset};
use edge_client::pictures::{self, Dataset, InputSize, Picture, PictureSource, SkipReason};
use proptest::prelude::*;
use safetensors::SafeTensors;

/// Twenty times what was measured between two implementations; a wrong padding or constant is far beyond.
const TOLERANCE: f32 = 1e-3;
const SIZE: InputSize = InputSize {
    height: 224,
    width: 224,
};

fn path(below: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(below)
}

fn weights() -> Vec<u8> {
    std::fs::read(path("models/mobilenet_v3_large_075_coco.f16.safetensors")).unwrap()
}

fn backbone() -> Backbone {
    Backbone::load(&path("models/mobilenet_v3_large_075_coco.f16.safetensors")).unwrap()
}

fn classes() -> Vec<String> {
    vec!["pictures".to_owned()]
}

fn source() -> PictureSource {
    PictureSource::Folder(path("tests/golden"))
}

fn golden() -> Dataset {
    pictures::load(&source(), &classes()).unwrap()
}

fn decoded(size: InputSize) -> Vec<Picture> {
    let dataset = golden();
    (0..dataset.samples().len())
        .map(|index| dataset.decode(index, size).unwrap())
        .collect()
}

fn expected(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(path("tests/golden/golden_large_075.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (values, _) = file.tensor(name).unwrap().data().as_chunks::<4>();
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn largest_difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let differences = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

#[test]
fn features_equal_the_reference() {
    let pictures = decoded(SIZE);
    assert_eq!(pictures.len(), 8);
    let backbone = backbone();
    let map = backbone.feature_map(&pictures).unwrap();
    assert_eq!(map.dims(), [8, 7, 7, 480]);
    let map: Vec<f32> = map.flatten_all().unwrap().to_vec1().unwrap();
    let difference = largest_difference(&map, &expected("featuremap_480_nhwc"));
    assert!(difference <= TOLERANCE, "feature map: {difference}");

    let features = backbone.extract(&pictures).unwrap();
    assert_eq!(features.dim(), (8, backbone.features()));
    let difference = largest_difference(features.as_slice().unwrap(), &expected("pooled_480"));
    assert!(difference <= TOLERANCE, "pooled: {difference}");
}

#[test]
fn the_shipped_backbone_has_480_features() {
    let backbone = backbone();
    assert_eq!(backbone.features(), 480);
    assert_eq!(backbone.digest(), *blake3::hash(&weights()).as_bytes());
}

#[test]
fn features_do_not_depend_on_the_batch() {
    let backbone = backbone();
    for (height, width) in [(128, 64), (64, 32), (33, 1)] {
        let pictures = decoded(InputSize { height, width });
        let together = backbone.extract(&pictures).unwrap();
        for (picture, together) in pictures.iter().zip(together.rows()) {
            let alone = backbone.extract(std::slice::from_ref(picture)).unwrap();
            assert_eq!(alone.row(0), together);
        }
    }
    assert_eq!(backbone.extract(&[]).unwrap().dim(), (0, 480));
}

#[test]
fn a_batch_has_one_size() {
    let mut pictures = decoded(InputSize::default());
    pictures.push(decoded(SIZE).remove(0));
    let error = backbone().extract(&pictures).unwrap_err();
    assert!(matches!(error, BackboneError::MixedSizes { .. }), "{error}");
}

fn extract(
    cache: Option<&std::path::Path>,
    threads: usize,
    cancel: bool,
) -> Result<FeatureSet, FeatureError> {
    let seen = Mutex::new(Vec::new());
    let set = extract_dataset(
        &backbone(),
        &Extraction {
            source: &source(),
            classes: &classes(),
            size: InputSize::default(),
            cache_dir: cache,
            threads,
        },
        &|done, total| seen.lock().unwrap().push((done, total)),
        &AtomicBool::new(cancel),
    )?;
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.first(), Some(&(set.cached, 8)));
    assert!(seen.contains(&(8, 8)));
    Ok(set)
}

#[test]
fn the_second_extraction_comes_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let plain = extract(None, 1, false).unwrap();
    let first = extract(Some(folder.path()), 3, false).unwrap();
    let second = extract(Some(folder.path()), 0, true).unwrap();
    assert_eq!((first.extracted, first.cached), (8, 0));
    assert_eq!((second.extracted, second.cached), (0, 8));
    assert_eq!(plain.features, first.features);
    assert_eq!(plain.features, second.features);
    assert_eq!(second.names[2], "pictures/02_astronaut.png");
    assert_eq!(second.backbone, backbone().digest());
    // Beside the class folder lie two scripts, the results, and torchvision's three files.
    let reasons: Vec<SkipReason> = second.skipped.iter().map(|one| one.reason).collect();
    assert_eq!(reasons, [SkipReason::OutOfPlace; 6]);
}

#[test]
fn a_damaged_cache_is_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let first = extract(Some(folder.path()), 2, false).unwrap();
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap();
    let file = file.unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let second = extract(Some(folder.path()), 2, false).unwrap();
    assert_eq!((second.extracted, second.cached), (1, 7));
    assert_eq!(first.features, second.features);
    assert_eq!(extract(Some(folder.path()), 2, false).unwrap().cached, 8);
}

#[test]
fn extraction_stops_when_told() {
    assert!(matches!(
        extract(None, 2, true),
        Err(FeatureError::Cancelled)
    ));
}

#[test]
fn a_picture_broken_inside_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("pictures");
    std::fs::create_dir(&class).unwrap();
    let mut bytes = std::fs::read(path("tests/golden/pictures/05_rocket.png")).unwrap();
    std::fs::write(class.join("good.png"), &bytes).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xFF;
    std::fs::write(class.join("broken.png"), bytes).unwrap();
    let set = extract_dataset(
        &backbone(),
        &Extraction {
            source: &PictureSource::Folder(folder.path().into()),
            classes: &classes(),
            size: InputSize::default(),
            cache_dir: None,
            threads: 1,
        },
        &|_, _| {},
        &AtomicBool::new(false),
    )
    .unwrap();
    assert_eq!(set.names, ["pictures/good.png"]);
    assert_eq!(set.skipped[0].name, "pictures/broken.png");
    assert_eq!(set.skipped[0].reason, SkipReason::Damaged);
}

#[test]
fn damaged_weights_are_named() {
    let good = weights();
    let check = |bytes: &[u8], expected: &str| {
        let error = Backbone::from_bytes(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let header = u64::from_le_bytes(good[..8].try_into().unwrap());
    let header = 8 + usize::try_from(header).unwrap();
    // Same lengths, so that all offsets stay right.
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let text = String::from_utf8(good[..header].to_vec()[8..].to_vec()).unwrap();
        assert!(text.contains(from), "{from}");
        let text = text.replacen(from, to, 1);
        [&good[..8], text.as_bytes(), &good[header..]].concat()
    };
    check(b"", "damaged safetensors");
    check(&good[..good.len() - 1], "damaged safetensors");
    check(&good[..header - 1], "damaged safetensors");
    let mut long = good.clone();
    long[..8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
    check(&long, "header too large");
    let renamed = replaced(
        "\"features.3.block.1.0.bias\"",
        "\"features.3.block.9.0.bias\"",
    );
    check(&renamed, "tensor features.3.block.1.0.bias is missing");
    check(
        &replaced("[120,528,1,1]", "[528,120,1,1]"),
        "features.13.block.3.0.weight has shape [528, 120, 1, 1], expected [528, 528, 1, 1]",
    );
    check(
        &replaced("MobileNetV3-Large", "MobileNetV2-Large"),
        "metadata \"model\"",
    );
    check(
        &replaced("TensorFlow SAME", "Torch symmetric"),
        "metadata \"padding\"",
    );
    let mut infinite = good.clone();
    infinite[header..header + 2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    check(&infinite, "holds a value that is not finite");
}

#[test]
fn a_tensor_too_many_is_named() {
    let bytes = weights();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut tensors = file.tensors();
    let (_, copy) = tensors[0].clone();
    tensors.push(("features.99.weight".to_owned(), copy));
    let bytes = safetensors::serialize(tensors, header.metadata().clone()).unwrap();
    let error = Backbone::from_bytes(&bytes).unwrap_err().to_string();
    assert_eq!(
        error,
        "tensor features.99.weight does not belong to the network"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// One wrong byte in header or data: an error, or a backbone with other numbers; never a panic.
    #[test]
    fn any_damage_is_an_error_or_another_backbone(
        at in prop_oneof![0_usize..16, 16_usize..14_000, 14_000_usize..3_000_000],
        byte in any::<u8>(),
        keep in prop_oneof![Just(usize::MAX), 0_usize..3_514_288],
    ) {
        let mut bytes = weights();
        bytes[at] = byte;
        bytes.truncate(keep);
        if let Ok(damaged) = Backbone::from_bytes(&bytes) {
            prop_assert_eq!(damaged.features(), 480);
        }
    }
}

/// Two threads may use one backbone.
#[test]
fn a_backbone_is_shared_between_threads() {
    let backbone = backbone();
    let pictures = decoded(InputSize::default());
    let alone = backbone.extract(&pictures).unwrap();
    let wrong = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                if backbone.extract(&pictures).unwrap() != alone {
                    wrong.store(true, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(!wrong.into_inner());
}
