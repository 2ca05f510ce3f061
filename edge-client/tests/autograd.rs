//! The domain's training beside candle's autograd, which only this crate has.

use std::sync::atomic::AtomicBool;

use candle_core::{D, Device, Tensor, Var};
use ndarray::Array2;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use wayside_domain::head::LinearHead;
use wayside_domain::job::{Effort, TrainingSpec};
use wayside_domain::train::{TrainError, Trained, train};

const HEAD: LinearHead = LinearHead {
    features: 6,
    classes: 3,
};

fn settings() -> TrainingSpec {
    TrainingSpec {
        lr: 0.1,
        momentum: 0.0,
        weight_decay: 0.0,
        batch_size: 8,
        effort: Effort::LocalEpochs(5),
        proximal_mu: 0.0,
        class_weights: vec![1.0; 3],
        seed: 0,
    }
}

/// Examples whose classes lie apart, with class 0 three times as frequent as the others.
fn examples(count: usize) -> (Array2<f32>, Vec<u8>) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let labels: Vec<u8> = (0..count).map(|i| [0, 1, 0, 2, 0][i % 5]).collect();
    let x = Array2::from_shape_fn((count, 6), |(row, column)| {
        let apart = if column == usize::from(labels[row]) {
            2.0
        } else {
            0.0
        };
        apart + rng.random_range(-1.0..1.0)
    });
    (x, labels)
}

fn base() -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    (0..HEAD.num_parameters())
        .map(|_| rng.random_range(-0.5..0.5))
        .collect()
}

fn run(settings: &TrainingSpec) -> Result<Trained, TrainError> {
    let (x, labels) = examples(40);
    let cancel = AtomicBool::new(false);
    train(&HEAD, &base(), x.view(), &labels, settings, 1, &cancel)
}

/// The same descent on whole batches, with the gradient from candle's autograd.
fn candle(settings: &TrainingSpec, steps: usize) -> candle_core::Result<Vec<f32>> {
    let (x, labels) = examples(40);
    let weights = &settings.class_weights;
    let device = Device::Cpu;
    let x = Tensor::from_slice(
        x.as_slice().expect("freshly made, so row-major"),
        (40, 6),
        &device,
    )?;
    let index: Vec<u32> = labels.iter().map(|&label| u32::from(label)).collect();
    let index = Tensor::from_slice(&index, (40, 1), &device)?;
    let factor: Vec<f32> = labels.iter().map(|&l| weights[usize::from(l)]).collect();
    let factor = Tensor::from_slice(&factor, 40, &device)?;
    let base = Tensor::from_slice(&base(), HEAD.num_parameters(), &device)?;
    let mut parameters = base.to_vec1::<f32>()?;
    let mut velocity = vec![0.0; parameters.len()];
    for _ in 0..steps {
        let var = Var::from_slice(&parameters, parameters.len(), &device)?;
        let weight = var.narrow(0, 0, 18)?.reshape((6, 3))?;
        let bias = var.narrow(0, 18, 3)?;
        let logits = x.matmul(&weight)?.broadcast_add(&bias)?;
        let target = logits.gather(&index, 1)?.squeeze(1)?;
        let losses = (logits.exp()?.sum(D::Minus1)?.log()? - target)?;
        let entropy = (losses * &factor)?.mean_all()?;
        let decay = (var.sqr()?.sum_all()? * (f64::from(settings.weight_decay) / 2.0))?;
        let away = (var.as_tensor() - &base)?.sqr()?.sum_all()?;
        let proximal = (away * (f64::from(settings.proximal_mu) / 2.0))?;
        let gradient = ((entropy + decay)? + proximal)?.backward()?;
        let gradient = gradient
            .get(&var)
            .expect("the loss depends on it")
            .to_vec1::<f32>()?;
        for ((value, v), gradient) in parameters.iter_mut().zip(&mut velocity).zip(gradient) {
            *v = settings.momentum * *v + gradient;
            *value -= settings.lr * *v;
        }
    }
    Ok(parameters)
}

#[test]
fn training_equals_candle_autograd() {
    let check = |change: &dyn Fn(&mut TrainingSpec)| {
        let mut settings = settings();
        settings.batch_size = 40;
        change(&mut settings);
        let ours = run(&settings).unwrap();
        let theirs = candle(&settings, 5).unwrap();
        for (ours, theirs) in ours.parameters.iter().zip(theirs) {
            assert!(
                (ours - theirs).abs() < 1e-5,
                "{ours} {theirs}: {settings:?}"
            );
        }
    };
    check(&|_| {});
    check(&|s| s.momentum = 0.9);
    check(&|s| s.weight_decay = 0.1);
    check(&|s| s.proximal_mu = 1.5);
    check(&|s| s.class_weights = vec![0.5, 1.5, 2.0]);
    check(&|s| s.class_weights = vec![0.0, 3.0, 1.0]);
    check(&|s| {
        s.momentum = 0.5;
        s.weight_decay = 0.01;
        s.proximal_mu = 0.3;
        s.class_weights = vec![0.5, 1.5, 2.0];
    });
}
