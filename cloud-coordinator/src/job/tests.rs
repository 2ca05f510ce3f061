use super::*;
use std::collections::HashMap;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

const MINIMAL: &str =
    "job = 'lights'\n[model]\nclasses = ['red', 'green']\ncalibration = 'c.safetensors'\n";

fn features_file(values: &[f32], labels: &[u8], metadata: &[(&str, &str)]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let shape = vec![labels.len(), values.len() / labels.len()];
    let metadata: HashMap<_, _> = metadata
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let tensors = [
        (
            "features",
            TensorView::new(Dtype::F32, shape, &data).unwrap(),
        ),
        (
            "labels",
            TensorView::new(Dtype::U8, vec![labels.len()], labels).unwrap(),
        ),
    ];
    safetensors::serialize(tensors, Some(metadata)).unwrap()
}

fn folder(metadata: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = features_file(&[1.0, 2.0, 3.0, 4.0, 5.0, 9.0], &[0, 1, 1], metadata);
    std::fs::write(folder.path().join("c.safetensors"), file).unwrap();
    folder
}

fn refuse(text: &str, expected: &str) {
    let error = read(text, folder(&[]).path())
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn the_sample_has_every_default_and_the_docs_do_not_lie() {
    let sample = include_str!("../../job.toml");
    let (_, sample) = parse(sample).unwrap();
    let (_, minimal) = parse(MINIMAL).unwrap();
    assert_eq!(sample.strategy, minimal.strategy);
    assert_eq!(sample.merge, minimal.merge);
    assert_eq!(sample.schedule, minimal.schedule);
    let training = file::Training {
        local_epochs: Some(2),
        ..minimal.training
    };
    assert_eq!(sample.training, training);
    assert_eq!(
        (sample.model.input_height, sample.model.input_width),
        (128, 64)
    );
}

#[test]
fn a_job_and_its_copy_are_the_same() {
    let backbone = "ab".repeat(32);
    let folder = folder(&[
        ("backbone", &backbone),
        ("classes", "red,green"),
        ("input_size", "128x64"),
    ]);
    let text = format!(
        "{MINIMAL}[training]\nclass_weights = 'inverse'\n[evaluation]\nfeatures = 'c.safetensors'\n"
    );
    let (definition, sources) = read(&text, folder.path()).unwrap();
    assert_eq!(definition.spec.model.backbone, Digest::from_hex(&backbone));
    assert_eq!(definition.spec.model.standardisation.mean(), [3.0, 5.0]);
    assert_eq!(definition.spec.training.class_weights, [1.5, 0.75]);
    assert!(definition.held_back.is_some());
    let copied = folder.path().join("jobs/lights");
    std::fs::create_dir(folder.path().join("jobs")).unwrap();
    copy(&copied, &definition, &sources).unwrap();
    assert!(is_copy(&copied));
    std::fs::remove_file(folder.path().join("c.safetensors")).unwrap();
    let again = load(&copied).unwrap();
    assert_eq!(
        (again.spec, again.rules, again.toml),
        (definition.spec, definition.rules, text)
    );
}

#[test]
fn each_server_optimizer_has_a_name() {
    let check = |name: &str, expected: ServerOptimizer| {
        let text = format!("{MINIMAL}[merge]\nserver_optimizer = '{name}'\nserver_lr = 0.1\n");
        let (definition, _) = read(&text, folder(&[]).path()).unwrap();
        assert_eq!(definition.rules.server, expected);
    };
    let adaptive = Adaptive {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        tau: 1e-3,
    };
    check("none", ServerOptimizer::Plain { lr: 0.1 });
    check("momentum", ServerOptimizer::Momentum { lr: 0.1, beta: 0.9 });
    check("adagrad", ServerOptimizer::Adagrad(adaptive));
    check("adam", ServerOptimizer::Adam(adaptive));
    check("yogi", ServerOptimizer::Yogi(adaptive));
}

#[test]
fn each_mistake_names_key_and_remedy() {
    let with = |more: &str| format!("{MINIMAL}{more}");
    refuse("job = 'x'\n", "missing key `model`: add it");
    refuse(
        &with("[training]\nlearning_rate = 1\n"),
        "job.toml line 6: unknown key `training.learning_rate`",
    );
    refuse(&with("[training]\nlr = 'fast'\n"), "`training.lr`");
    refuse(
        &with("[training]\nlr = -1\n"),
        "training.lr is -1, allowed is above 0",
    );
    refuse(
        &with("[training]\nclass_weights = 'some'\n"),
        "class_weights",
    );
    refuse(
        &with("[training]\nlocal_epochs = 1\nlocal_steps = 1\n"),
        "training.local_steps stands beside local_epochs",
    );
    refuse(&with("[strategy]\nquorum = 0\n"), "strategy.quorum is 0");
    refuse(
        &with("[merge]\nserver_optimizer = 'adamw'\n"),
        "server_optimizer",
    );
    refuse(&with("[merge]\nbeta1 = 1\n"), "merge.beta1 is 1, allowed");
    refuse(
        &with("[merge]\nbeta2 = -0.5\n"),
        "merge.beta2 is -0.5, allowed is 0 to below 1",
    );
    refuse(
        &with("[merge]\ntau = 0\n"),
        "merge.tau is 0, allowed is 0.000000001 to 1",
    );
    refuse(&with("[merge]\ntau = nan\n"), "merge.tau is NaN");
    refuse(
        &with("[merge]\nserver_lr = 0\n"),
        "merge.server_lr is 0, allowed is above 0 to 10",
    );
    refuse(
        &with("[merge]\nserver_momentum = 1\n"),
        "merge.server_momentum is 1",
    );
    refuse(&with("[merge]\nquorum = nan\n"), "merge.quorum is NaN");
    refuse(
        &with("[merge]\nmin_roadsides = 0\n"),
        "merge.min_roadsides is 0",
    );
    refuse(
        &with("[schedule]\nperiod_ms = 1\n"),
        "schedule.period_ms is 1",
    );
    refuse(
        &with("[evaluation]\nfeatures = 'none.safetensors'\n"),
        "evaluation.features: ",
    );
    refuse(
        &with("[evaluation]\nfeatures = 'c.safetensors'\nmax_regression = 2\n"),
        "evaluation.max_regression is 2",
    );
    refuse(
        &with("backbone = 'ff'\n"),
        "model.backbone is not 64 hexadecimal digits",
    );
    refuse(
        &MINIMAL.replace("'lights'", "'fleet'"),
        "job id fleet is reserved",
    );
    refuse(&MINIMAL.replace("'lights'", "'a/b'"), "job is \"a/b\"");
    refuse(
        &MINIMAL.replace("'green'", "'red'"),
        "model.classes needs 2 to 255 different names",
    );
    refuse(&MINIMAL.replace("c.saf", "d.saf"), "model.calibration: ");
    refuse(
        &MINIMAL.replace("c.safetensors", "."),
        "name a file that the coordinator can read",
    );
    let large = " ".repeat(MAX_TOML_BYTES + 1);
    assert!(matches!(parse(&large), Err(JobFileError::TooLarge { .. })));
}

#[test]
fn files_of_another_job_are_refused() {
    let check = |metadata: &[(&str, &str)], text: &str, expected: &str| {
        let error = read(text, folder(metadata).path())
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(
        &[("classes", "green,red")],
        MINIMAL,
        "made for classes `green,red`, the job says `red,green`",
    );
    check(
        &[("input_size", "32x32")],
        MINIMAL,
        "made for input_size `32x32`",
    );
    check(&[("backbone", "xyz")], MINIMAL, "backbone");
    let other = format!("{MINIMAL}backbone = '{}'\n", "00".repeat(32));
    check(
        &[("backbone", &"11".repeat(32))],
        &other,
        "model.backbone is 0000",
    );
}

#[test]
fn features_are_read_bounded_and_checked() {
    let classes: Vec<String> = vec!["red".into(), "green".into()];
    let check = |bytes: &[u8], expected: &str| {
        let error = Features::read(bytes, &classes, (128, 64))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(b"", "damaged safetensors file");
    check(&[0xff; 64], "damaged safetensors file");
    let mut huge_header = (1_u64 << 63).to_le_bytes().to_vec();
    huge_header.extend([b'{'; 64]);
    check(&huge_header, "damaged safetensors file");
    check(
        &features_file(&[1.0, f32::NAN], &[0, 1], &[]),
        "feature 0 of example 1 is NaN",
    );
    check(
        &features_file(&[1.0, f32::INFINITY], &[0], &[]),
        "feature 1 of example 0 is inf",
    );
    check(
        &features_file(&[1.0, 2.0], &[0, 2], &[]),
        "label 2 of example 1 has no class",
    );
    let wrong_type = {
        let view = TensorView::new(Dtype::U8, vec![1, 1], &[1]).unwrap();
        safetensors::serialize([("features", view)], None).unwrap()
    };
    check(&wrong_type, "tensor `features` is U8, expected F32");
    let whole = features_file(&[1.0, 2.0], &[0, 1], &[]);
    for end in 0..whole.len() {
        assert!(
            Features::read(&whole[..end], &classes, (128, 64)).is_err(),
            "cut at {end}"
        );
    }
}
