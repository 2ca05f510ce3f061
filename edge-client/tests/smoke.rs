//! The real binary: what it prints, and how it ends.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn weights() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("models/mobilenet_v3_large_075_coco.int8.safetensors")
}

fn client(args: &[&str]) -> Output {
    let begun = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_edge-client"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{args:?} took {:?}",
        begun.elapsed()
    );
    output
}

/// A folder with pictures and a good configuration.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for (class, colour) in [("red", [220, 10, 10]), ("green", [10, 220, 10])] {
            let folder = place.path("pictures").join(class);
            std::fs::create_dir_all(&folder).unwrap();
            let picture = image::RgbImage::from_pixel(40, 40, image::Rgb(colour));
            picture.save(folder.join("a.png")).unwrap();
        }
        std::fs::write(place.path("pictures/red/broken.jpg"), "no picture").unwrap();
        let config = format!(
            "[vehicle]
id = \"v1\"
[roadside]
id = \"rsu\"
address = \"127.0.0.1:1\"
\
             [data]
pictures = '{}'
[model]
weights = '{}'
[state]
dir = '{}'
",
            place.path("pictures").display(),
            weights().display(),
            place.path("state").display(),
        );
        std::fs::write(place.path("client.toml"), config).unwrap();
        place
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn config(&self) -> String {
        self.path("client.toml").display().to_string()
    }

    /// A run that must not start: its code, and its one line on standard error.
    fn refuse(&self, command: &str, more: &[&str], code: i32, parts: &[&str]) {
        let config = self.config();
        let mut args = vec![command, "--config", &config];
        args.extend(more);
        let output = client(&args);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}");
        let lines: Vec<&str> = line
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        assert_eq!(lines.len(), 1, "{line}");
        for part in parts {
            assert!(lines[0].contains(part), "{part:?} is not in {line}");
        }
    }
}

#[test]
fn mistakes_are_one_line_with_a_code() {
    let place = Place::new();
    place.refuse("run", &["-c", "vehicle.id=a/b"], 12, &["`vehicle.id`"]);
    place.refuse(
        "run",
        &["-c", "link.chunk_byte=1"],
        11,
        &["link.chunk_byte", "link.chunk_bytes"],
    );
    place.refuse(
        "run",
        &["-c", "heartbeat.interval_ms=often"],
        11,
        &["heartbeat.interval_ms"],
    );
    place.refuse("run", &["-c", "log.level=loud"], 12, &["log.level"]);
    let nowhere = place.path("nowhere").display().to_string();
    for command in ["run", "check-config"] {
        place.refuse(
            command,
            &["-c", &format!("model.weights={nowhere}")],
            40,
            &["model.weights", &nowhere],
        );
        place.refuse(
            command,
            &["-c", &format!("data.pictures={nowhere}")],
            41,
            &["data.pictures", &nowhere],
        );
    }
    let not_weights = place.config();
    place.refuse(
        "run",
        &["-c", &format!("model.weights={not_weights}")],
        40,
        &["damaged safetensors"],
    );
    place.refuse(
        "run",
        &["-c", "state.dir=/proc/wayside"],
        30,
        &["/proc/wayside", "cannot be written"],
    );
    let foreign = place.path("pictures").display().to_string();
    place.refuse(
        "run",
        &["-c", &format!("state.dir={foreign}")],
        31,
        &[&foreign],
    );

    let output = client(&["run", "--config", &nowhere]);
    assert_eq!(output.status.code(), Some(10));
    let output = client(&["run", "-c", "vehicle.id=v1"]);
    assert_eq!(
        output.status.code(),
        Some(11),
        "no file, and keys without a default"
    );
    let output = client(&["walk"]);
    assert_eq!(output.status.code(), Some(2));
    let output = client(&["run", "--config", &nowhere, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["success"], &json["error"]["code"]),
        (&false.into(), &10.into())
    );
}

#[test]
fn help_names_the_commands() {
    let help = String::from_utf8(client(&["--help"]).stdout).unwrap();
    for word in ["run", "features", "check-config"] {
        assert!(help.contains(word), "{help}");
    }
    let help = String::from_utf8(client(&["features", "--help"]).stdout).unwrap();
    for word in [
        "--pictures",
        "--weights",
        "--out",
        "--classes",
        "--height",
        "--threads",
    ] {
        assert!(help.contains(word), "{help}");
    }
}

#[test]
fn a_good_configuration_is_good() {
    let place = Place::new();
    let output = client(&[
        "check-config",
        "--config",
        &place.config(),
        "--format",
        "json",
    ]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["success"], true);
    assert_eq!(
        (&json["vehicle"], &json["pictures"]),
        (&"v1".into(), &3.into())
    );
    assert!(!place.path("state").exists(), "nothing is made");
    let output = client(&["check-config", "--config", &place.config()]);
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("is good: vehicle v1")
    );
    assert!(json["engine"].as_str().unwrap().starts_with("int8 on "));
}

#[test]
fn features_become_a_file() {
    let place = Place::new();
    let (pictures, out) = (place.path("pictures"), place.path("held-back.safetensors"));
    let weights = weights();
    let run = |more: &[&str]| {
        let mut args = vec![
            "features",
            "--height",
            "32",
            "--width",
            "32",
            "--threads",
            "1",
            "--pictures",
            pictures.to_str().unwrap(),
            "--weights",
            weights.to_str().unwrap(),
            "--out",
            out.to_str().unwrap(),
        ];
        args.extend(more);
        client(&args)
    };
    let output = run(&["--classes", "red,green", "--format", "json"]);
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["pictures"], &json["skipped"][0]["name"]),
        (&2.into(), &"red/broken.jpg".into())
    );
    let set = edge_client::features::FeatureSet::read_safetensors(&out).unwrap();
    assert_eq!(
        (set.labels, set.classes),
        (vec![1, 0], vec!["red".to_owned(), "green".to_owned()])
    );
    let text = String::from_utf8(run(&[]).stdout).unwrap();
    assert!(
        text.contains("2 pictures (1 green, 1 red)") && text.contains("red/broken.jpg: "),
        "{text}"
    );
    let output = run(&["--classes", "blue"]);
    assert_eq!(output.status.code(), Some(41), "{output:?}");
}

#[test]
fn a_running_vehicle_ends_on_sigterm_and_holds_its_folder() {
    let place = Place::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_edge-client"))
        .args(["run", "--config", &place.config()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lock = place.path("state/records");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !lock.exists() {
        assert!(Instant::now() < deadline, "never opened");
        std::thread::sleep(Duration::from_millis(20));
    }
    place.refuse("run", &[], 32, &["locked by another process"]);
    let kill = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
}

fn json(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// torchvision weights become int8, int8 weights become features in a table, and too strict a demand leaves nothing.
#[test]
fn quantize_then_features() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let place = Place::new();
    let [f32, pictures] = ["torchvision_small.safetensors", "."]
        .map(|below| golden.join(below).display().to_string());
    let [int8, csv] = ["int8.safetensors", "features.csv"].map(|below| place.path(below));
    let (int8_text, csv_text) = (int8.display().to_string(), csv.display().to_string());
    let quantize = |min_cosine: &str| {
        client(&[
            "quantize",
            "--weights",
            &f32,
            "--pictures",
            &pictures,
            "--out",
            &int8_text,
            "--height",
            "64",
            "--width",
            "48",
            "--min-cosine",
            min_cosine,
            "--format",
            "json",
        ])
    };
    let refused = quantize("0.99999999");
    assert_eq!(refused.status.code(), Some(44), "{refused:?}");
    assert_eq!(json(&refused)["success"], false);
    assert!(!int8.exists());

    let done = json(&quantize("0.9"));
    assert_eq!(done["success"], true, "{done}");
    assert!(int8.exists());
    let features = json(&client(&[
        "features",
        "--weights",
        &int8_text,
        "--pictures",
        &pictures,
        "--out",
        &csv_text,
        "--height",
        "64",
        "--width",
        "48",
        "--format",
        "json",
    ]));
    assert_eq!(features["pictures"], 8, "{features}");
    let table = std::fs::read_to_string(csv).unwrap();
    let width = usize::try_from(features["features"].as_u64().unwrap()).unwrap();
    assert_eq!(table.lines().count(), 9);
    for line in table.lines() {
        assert_eq!(line.split(',').count(), 2 + width, "{line}");
    }
}

#[test]
fn bench_says_what_scripts_read() {
    let small = &[
        "bench",
        "--width",
        "0.35",
        "--size",
        "64x48",
        "--seconds",
        "0.05",
    ];
    let bench = |more: &[&str]| json(&client(&[small, more, &["--format", "json"]].concat()));
    for (more, isa) in [
        (&["--isa", "scalar"][..], "scalar"),
        (&["--engine", "f32", "--threads", "2"], "generic"),
    ] {
        let got = bench(more);
        assert_eq!(got["isa"], isa, "{got}");
        for key in [
            "cpu_ms_min",
            "cpu_ms_p10",
            "cpu_ms_median",
            "wall_ms_median",
            "pictures_per_s",
            "peak_rss_bytes",
        ] {
            assert!(got[key].as_f64().unwrap() > 0.0, "{key} in {got}");
        }
        assert_eq!(got["arena_bytes"].is_number(), isa == "scalar", "{got}");
        assert!(
            got["peak_rss_bytes"].as_u64().unwrap() <= 40_000_000,
            "{got}"
        );
    }
    let got = bench(&["--stages"]);
    for part in [
        "stem",
        "expand",
        "depthwise_3x3",
        "depthwise_5x5",
        "gate",
        "project",
        "pool",
    ] {
        assert!(
            got["stages_us"][part].as_f64().unwrap() > 0.0,
            "{part} in {got}"
        );
    }
    let refused = client(&["bench", "--stages", "--engine", "f32"]);
    assert_eq!(refused.status.code(), Some(2));
    let refused = client(&["bench", "--isa", "sse1"]);
    assert_eq!(refused.status.code(), Some(2));
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(line.contains("avx512vnni"), "{line}");
}
