use ndarray::Array2;
use proptest::prelude::*;
use rand::Rng;

use super::*;

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

#[test]
fn training_learns_what_can_be_learned() {
    let mut settings = settings();
    settings.effort = Effort::LocalEpochs(30);
    let trained = run(&settings).unwrap();
    let (x, labels) = examples(40);
    let evaluation = HEAD.evaluate(&trained.parameters, x.view(), &labels);
    assert!(evaluation.accuracy > 0.95, "{evaluation:?}");
    assert!((trained.loss - evaluation.loss).abs() < 1e-5);
    assert_eq!((trained.num_examples, trained.steps), (40, 150));
}

#[test]
fn the_seed_decides_everything() {
    let (x, labels) = examples(40);
    let with = |seed| {
        let cancel = AtomicBool::new(false);
        let trained = train(
            &HEAD,
            &base(),
            x.view(),
            &labels,
            &settings(),
            seed,
            &cancel,
        );
        trained.unwrap().parameters
    };
    assert_eq!(with(3), with(3));
    assert_ne!(with(3), with(4));
}

#[test]
fn steps_may_end_within_a_pass() {
    let mut settings = settings();
    settings.effort = Effort::LocalSteps(7);
    assert_eq!(run(&settings).unwrap().steps, 7);
    settings.batch_size = 1000;
    assert_eq!(run(&settings).unwrap().steps, 7);
    settings.batch_size = 1;
    assert_eq!(run(&settings).unwrap().steps, 7);
}

#[test]
fn a_strong_proximal_term_stays_near_the_base() {
    let distance = |mu: f32| {
        let mut settings = settings();
        settings.proximal_mu = mu;
        settings.lr = 0.01;
        settings.effort = Effort::LocalEpochs(50);
        let trained = run(&settings).unwrap().parameters;
        let squares = trained.iter().zip(base()).map(|(w, b)| (w - b).powi(2));
        squares.sum::<f32>().sqrt()
    };
    assert!(distance(50.0) < 0.2 * distance(0.0));
}

#[test]
fn a_correction_is_added_to_every_gradient() {
    let (x, labels) = examples(40);
    let cancel = AtomicBool::new(false);
    let from = |correction: Option<&[f32]>| {
        let base = base();
        let start = Start {
            base: &base,
            correction,
        };
        train_from(&HEAD, start, x.view(), &labels, &settings(), 1, &cancel)
    };
    let plain = run(&settings()).unwrap();
    assert_eq!(from(None).unwrap(), plain);
    assert_eq!(from(Some(&[0.0; 21])).unwrap(), plain);
    // A constant slope on all biases cancels out in the softmax, so it moves them by itself alone: 25 steps of 0.1.
    let mut correction = [0.0; 21];
    correction[18..].fill(0.5);
    let moved = from(Some(&correction)).unwrap().parameters;
    for (index, (moved, plain)) in moved.iter().zip(&plain.parameters).enumerate() {
        let by = if index < 18 { 0.0 } else { -25.0 * 0.1 * 0.5 };
        assert!(
            (moved - plain - by).abs() < 1e-4,
            "{index}: {moved} {plain}"
        );
    }
    let error = from(Some(&[0.0; 3])).unwrap_err().to_string();
    assert_eq!(error, "3 corrections, expected 21");
    let error = from(Some(&[f32::NAN; 21])).unwrap_err().to_string();
    assert_eq!(error, "corrections hold a value that is not finite");
}

#[test]
fn settings_out_of_range_are_named() {
    let check = |change: &dyn Fn(&mut TrainingSpec), expected: &str| {
        let mut settings = settings();
        change(&mut settings);
        assert_eq!(run(&settings).unwrap_err().to_string(), expected);
    };
    check(
        &|s| s.lr *= 1000.0,
        "lr is 100, expected more than 0, at most 10",
    );
    check(
        &|s| s.lr = f32::NAN,
        "lr is NaN, expected more than 0, at most 10",
    );
    check(&|s| s.momentum = 1.0, "momentum is 1, expected 0 to 0.999");
    check(
        &|s| s.weight_decay = -1.0,
        "weight_decay is -1, expected 0 to 1",
    );
    check(
        &|s| s.batch_size = 0,
        "batch_size is 0, expected at least 1",
    );
    check(
        &|s| s.effort = Effort::LocalEpochs(0),
        "local_epochs is 0, expected at least 1",
    );
    check(
        &|s| s.effort = Effort::LocalSteps(0),
        "local_steps is 0, expected at least 1",
    );
}

#[test]
fn a_learning_rate_gone_wrong_gives_nothing() {
    // Labels that the features say nothing about, so that no step size makes up for it.
    let (x, _) = examples(40);
    let x = x.mapv(|value| value * 20.0);
    let labels: Vec<u8> = (0..40_u8).map(|i| i % 7 % 3).collect();
    let mut settings = settings();
    settings.lr = 10.0;
    let cancel = AtomicBool::new(false);
    let error = train(&HEAD, &base(), x.view(), &labels, &settings, 1, &cancel).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { .. }), "{error}");
    settings.weight_decay = 1.0;
    settings.effort = Effort::LocalEpochs(100);
    let error = train(&HEAD, &base(), x.view(), &labels, &settings, 1, &cancel).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { .. }), "{error}");
}

#[test]
fn bad_examples_are_named() {
    let (x, labels) = examples(10);
    let cancel = AtomicBool::new(false);
    let check = |base: &[f32], x: &Array2<f32>, labels: &[u8], expected: &str| {
        let got = train(&HEAD, base, x.view(), labels, &settings(), 1, &cancel);
        assert_eq!(got.unwrap_err().to_string(), expected);
    };
    let mut wrong = labels.clone();
    wrong[4] = 3;
    check(
        &base(),
        &x,
        &wrong,
        "label 3 of example 4, expected less than 3",
    );
    check(&base(), &x, &labels[1..], "9 labels, expected 10");
    check(&base()[1..], &x, &labels, "20 parameters, expected 21");
    let narrow = Array2::zeros((10, 5));
    check(&base(), &narrow, &labels, "5 features, expected 6");
    check(&base(), &Array2::zeros((0, 6)), &[], "no examples");
    let mut nan = x.clone();
    nan[[3, 3]] = f32::NAN;
    check(
        &base(),
        &nan,
        &labels,
        "features hold a value that is not finite",
    );
    let mut inf = base();
    inf[0] = f32::INFINITY;
    check(
        &inf,
        &x,
        &labels,
        "base parameters hold a value that is not finite",
    );
}

#[test]
fn cancelling_gives_nothing() {
    let (x, labels) = examples(10);
    let cancel = AtomicBool::new(true);
    let got = train(&HEAD, &base(), x.view(), &labels, &settings(), 1, &cancel);
    assert_eq!(got, Err(TrainError::Cancelled));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the settings and the features: finite parameters and loss, or an error.
    #[test]
    fn trained_parameters_are_finite(
        lr in 1e-4_f32..10.0,
        momentum in 0.0_f32..0.999,
        scale in 1e-3_f32..1e20,
        batch_size in 1_u32..50,
    ) {
        let (x, labels) = examples(40);
        let x = x.mapv(|value| value * scale);
        let settings = TrainingSpec { lr, momentum, batch_size, ..settings() };
        let cancel = AtomicBool::new(false);
        if let Ok(trained) = train(&HEAD, &base(), x.view(), &labels, &settings, 1, &cancel) {
            prop_assert!(trained.loss.is_finite());
            prop_assert!(trained.parameters.iter().all(|value| value.is_finite()));
        }
    }
}
