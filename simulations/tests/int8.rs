//! What quantization costs on the traffic lights: how far features turn, and what a head makes of them.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use edge_client::backbone::{Backbone, read_float};
use edge_client::features::{Extraction, FeatureSet, extract_dataset};
use edge_client::pictures::{self, InputSize, Picture, PictureSource};
use edge_client::quantize::quantize;
use ndarray::ArrayView1;
use wayside_domain::class_weights::ClassWeights;
use wayside_domain::head::{Evaluation, LinearHead, Standardisation};
use wayside_domain::job::{Effort, TrainingSpec};
use wayside_extractor::kernels::Isa;
use wayside_extractor::quantized::QuantNetwork;
use wayside_sim::baseline::{Examples, train_and_evaluate};

const SIZE: InputSize = InputSize {
    height: 128,
    width: 64,
};
const THREADS: usize = 2;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn classes() -> Vec<String> {
    ["green", "red", "yellow"].map(String::from).to_vec()
}

fn source(part: &str) -> PictureSource {
    PictureSource::Folder(project().join("simulations/data/traffic_lights").join(part))
}

fn features(backbone: &Backbone, part: &str) -> FeatureSet {
    let extraction = Extraction {
        source: &source(part),
        classes: &classes(),
        size: SIZE,
        cache_dir: None,
        threads: THREADS,
    };
    let never = AtomicBool::new(false);
    extract_dataset(backbone, &extraction, &|_, _| {}, &never).expect("the pictures are usable")
}

fn cosine(a: ArrayView1<'_, f32>, b: ArrayView1<'_, f32>) -> f64 {
    let dot = |a: ArrayView1<'_, f32>, b: ArrayView1<'_, f32>| -> f64 {
        let products = a.iter().zip(b);
        products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// A head trained on the one part, judged on the other.
fn head(mut train: FeatureSet, mut test: FeatureSet) -> Evaluation {
    let standardisation = Standardisation::of(train.features.view()).expect("features are finite");
    let spec = TrainingSpec {
        lr: 0.01,
        momentum: 0.9,
        weight_decay: 0.0,
        batch_size: 32,
        effort: Effort::LocalEpochs(40),
        proximal_mu: 0.0,
        class_weights: ClassWeights::InverseRoot.of(&train.labels, classes().len()),
        seed: 1,
    };
    let head = LinearHead {
        features: train.features.ncols(),
        classes: classes().len(),
    };
    let [train, test] = [&mut train, &mut test].map(|set| {
        standardisation.apply(set.features.view_mut());
        Examples {
            features: set.features.clone(),
            labels: set.labels.clone(),
        }
    });
    let start = vec![0.0; head.num_parameters()];
    let never = AtomicBool::new(false);
    train_and_evaluate(&head, &start, &train, &test, &spec, &never).expect("training goes well")
}

/// Asserts the least mean and worst cosine, and that a head loses at most a point of accuracy and four of recall.
fn check(name: &str, float: &Backbone, int8: &Backbone, mean: f64, worst: f64) {
    let [float_train, float_test] = ["train", "test"].map(|part| features(float, part));
    let [int8_train, int8_test] = ["train", "test"].map(|part| features(int8, part));
    assert_eq!(float_test.names, int8_test.names);
    let rows = float_test.features.rows().into_iter();
    let cosines: Vec<f64> = rows
        .zip(int8_test.features.rows())
        .map(|(a, b)| cosine(a, b))
        .collect();
    let got_mean = cosines.iter().sum::<f64>() / cosines.len() as f64;
    let got_worst = cosines.iter().copied().fold(f64::INFINITY, f64::min);
    let (float, int8) = (head(float_train, float_test), head(int8_train, int8_test));
    eprintln!(
        "{name}: cosine {got_mean:.4} in the mean, {got_worst:.4} at worst of {}; head accuracy f32 {:.4}, int8 {:.4}; \
         macro recall f32 {:.4}, int8 {:.4}",
        cosines.len(),
        float.accuracy,
        int8.accuracy,
        float.macro_recall,
        int8.macro_recall
    );
    assert!(got_mean >= mean && got_worst >= worst, "{name}: cosine");
    assert!(int8.accuracy >= float.accuracy - 0.01, "{name}: accuracy");
    assert!(
        int8.macro_recall >= float.macro_recall - 0.04,
        "{name}: macro recall"
    );
}

/// 40 photographs have the same bits on every instruction set that this CPU has.
fn same_bits(network: &QuantNetwork) {
    let dataset = pictures::load(&source("test"), &classes()).expect("pictures are there");
    let forty: Vec<Picture> = (0..40)
        .map(|index| dataset.decode(index * 7, SIZE).expect("pictures are whole"))
        .collect();
    let bits = |isa| -> Vec<u32> {
        let backbone = Backbone::from_quantized(network.clone(), isa).expect("it runs");
        let features = backbone.extract(&forty).expect("pictures of one size");
        features.iter().map(|x| x.to_bits()).collect()
    };
    let expected = bits(Isa::Scalar);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        assert!(bits(isa) == expected, "{isa} differs from the definition");
    }
}

#[test]
fn shipped_large_has_the_same_bits_everywhere() {
    let path = project().join("edge-client/models/mobilenet_v3_large_075_coco.int8.safetensors");
    let bytes = std::fs::read(path).expect("shipped weights are there");
    let (network, _) = wayside_extractor::file::read(&bytes).expect("shipped weights load");
    same_bits(&network);
}

/// The weights that vehicles use by default.
#[test]
fn shipped_large() {
    let load = |kind: &str| {
        let name = format!("edge-client/models/mobilenet_v3_large_075_coco.{kind}.safetensors");
        Backbone::load(&project().join(name)).expect("shipped weights load")
    };
    check("Large", &load("f16"), &load("int8"), 0.992, 0.90);
}

/// A second network, quantized here; its weights may not stand in the project.
#[test]
fn small_beside_the_project() {
    let path = project().join("../shared/data/extra/mobilenet_v3_small_075_imagenet.safetensors");
    if !path.exists() {
        eprintln!("did not run: {} is not there", path.display());
        return;
    }
    let network = read_float(&path).expect("weights load");
    let dataset = pictures::load(&source("train"), &classes()).expect("pictures are there");
    let calibration: Vec<Picture> = (0..dataset.samples().len())
        .step_by(2)
        .map(|index| dataset.decode(index, SIZE).expect("pictures are whole"))
        .collect();
    let quantized = quantize(&network, &calibration, THREADS, &|_, _| {}).expect("it quantizes");
    same_bits(&quantized);
    let int8 = Backbone::from_quantized(quantized, Isa::detect()).expect("it runs");
    let float = Backbone::from_float(network);
    check("Small", &float, &int8, 0.987, 0.93);
}
