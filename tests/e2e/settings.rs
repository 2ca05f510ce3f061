//! What a job may choose, with real vehicles on real pictures: rules, encodings, buffered rounds, personal tensors.

use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use wayside_tests::process::{output, program, wait_for};
use wayside_tests::site::{Broker, Site, some_pictures, weights};

/// A job of the traffic lights with lines of its own in some sections.
fn job(name: &str, model: &str, strategy: &str, codec: &str, merge: &str) -> String {
    format!(
        "job = \"{name}\"\n[model]\nclasses = [\"red\", \"yellow\", \"green\"]\ncalibration = \"holdback.safetensors\"\n{model}\n\
         [training]\nlr = 0.01\nmomentum = 0.0\nlocal_epochs = 1\n[strategy]\nmin_vehicles = 3\n\
         round_timeout_ms = 20000\n{strategy}\n[codec]\n{codec}\n[merge]\n{merge}\n\
         [schedule]\nperiod_ms = 60000\nmerge_when_complete = true\nmerges = 4\n\
         [evaluation]\nfeatures = \"holdback.safetensors\"\nmax_regression = 1.0\n"
    )
}

fn finished(site: &Site, job: &str) -> anyhow::Result<Value> {
    wait_for("the job to finish", Duration::from_secs(120), || {
        let shown = site.ask(&["job", "show", job]).ok()?;
        (shown["state"] == "finished").then_some(())
    })?;
    site.ask(&["model", "list", "--job", job])
}

#[test]
fn jobs_with_other_rules_encodings_and_rounds_learn_too() {
    let site = Site::new().expect("a site");
    let test = site.path("test");
    some_pictures("test", 0, 3, &test).expect("pictures");
    let holdback = site.path("holdback.safetensors");
    let mut features = Command::new(program("edge-client").expect("built"));
    features
        .args(["features", "--classes", "red,yellow,green", "--pictures"])
        .arg(&test)
        .arg("--weights")
        .arg(weights())
        .arg("--out")
        .arg(&holdback);
    output(features).expect("features");
    let robust = job(
        "robust",
        "personal = [\"head-bias\"]",
        "rule = \"median\"\npartials = \"fp16\"",
        "encoding = \"int8\"",
        "rule = \"fltrust\"\nserver_optimizer = \"adam\"\nserver_lr = 0.01",
    );
    let buffered = job(
        "buffered",
        "",
        "buffer_size = 2\nmax_staleness = 2\nedge_rounds = 2",
        "encoding = \"topk\"\ntopk_fraction = 0.1",
        "",
    );
    let impossible = job(
        "impossible",
        "",
        "rule = { name = \"krum\", num_malicious = 2 }",
        "",
        "",
    );
    let mut cloud = site.cloud().expect("the cloud");
    wait_for("the cloud to answer", Duration::from_secs(20), || {
        site.ask(&["job", "list"]).ok()
    })
    .expect("an answer");
    let create = |name: &str, text: String| {
        let path = site.write(name, text).expect("a file");
        site.ask(&["job", "create", &path.to_string_lossy()])
    };
    assert!(
        create("impossible.toml", impossible).is_err(),
        "krum of three"
    );
    create("robust.toml", robust).expect("created");
    create("buffered.toml", buffered).expect("created");
    let broker = Broker::embedded().expect("a port");
    let mut roadside = site.roadside("rsu-1", &broker).expect("a unit");
    let mut vehicles = Vec::new();
    for n in 0..3 {
        let folder = site.path(&format!("pictures-{n}"));
        some_pictures("train", n, 12, &folder).expect("pictures");
        let name = format!("v{n}");
        vehicles.push(
            site.vehicle(&name, "rsu-1", &broker, &folder)
                .expect("a vehicle"),
        );
    }
    for job in ["robust", "buffered"] {
        let models = finished(&site, job).expect("it ends").to_string();
        let shown = site
            .ask(&["model", "show", "latest", "--job", job])
            .expect("a version");
        let accuracy = shown["accuracy"].as_f64().unwrap_or_default();
        assert!(accuracy > 0.7, "{job}: {accuracy}, {models}");
    }
    // The encoding of each update is in the explanation.
    let explained = site
        .ask(&["round", "explain", "2", "--job", "robust"])
        .expect("a round");
    let lines = explained["roadsides"][0]["contributions"]
        .as_array()
        .cloned();
    let encodings: Vec<_> = lines
        .iter()
        .flatten()
        .map(|line| line["encoding"].clone())
        .collect();
    assert!(
        !encodings.is_empty() && encodings.iter().all(|e| *e == "int8"),
        "{explained}"
    );
    cloud.kill().expect("killed");
    roadside.kill().expect("killed");
    for vehicle in &mut vehicles {
        vehicle.kill().expect("killed");
    }
}
