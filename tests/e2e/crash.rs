//! Each tier killed with -9 in the middle of a round: every acknowledged update counts, once, and versions come out.

use anyhow::{Context, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use wayside_tests::broker::Mosquitto;
use wayside_tests::process::{Process, wait_for};
use wayside_tests::site::{Broker, Site, some_pictures};

const MERGES: u64 = 8;
const VEHICLES: [(&str, &str); 4] = [
    ("v1", "rsu-1"),
    ("v2", "rsu-2"),
    ("v3", "rsu-1"),
    ("v4", "rsu-2"),
];
const PATIENCE: Duration = Duration::from_secs(60);
/// A round of the job stays open this long, so that a kill finds it open.
const WINDOW: Duration = Duration::from_millis(1500);

fn job() -> String {
    format!(
        "job = \"lights\"\n[model]\nclasses = [\"red\", \"yellow\", \"green\"]\ninput_height = 64\ninput_width = 32\n\
         calibration = \"held-back.safetensors\"\n[training]\nlr = 0.05\nbatch_size = 8\nlocal_epochs = 2\nseed = 3\n\
         [strategy]\nmin_vehicles = 2\nquorum = 0.5\nround_timeout_ms = 20000\nmin_window_ms = {}\n\
         [merge]\nserver_optimizer = \"none\"\nmin_roadsides = 2\n\
         [schedule]\nperiod_ms = 120000\nmerge_when_complete = true\nmerges = {MERGES}\n\
         [evaluation]\nfeatures = \"held-back.safetensors\"\nmax_regression = 1.0\n",
        WINDOW.as_millis()
    )
}

/// The merge round that is open.
fn merge_round(site: &Site) -> Option<u64> {
    site.ask(&["job", "show", "lights"]).ok()?["merge_round"].as_u64()
}

/// Waits until a round is in its middle: the merge round is `number`, and rounds have been open for a part of their
/// window.
fn middle_of(site: &Site, number: u64) -> anyhow::Result<()> {
    wait_for(&format!("merge round {number}"), PATIENCE, || {
        merge_round(site).filter(|now| *now >= number)
    })?;
    std::thread::sleep(WINDOW / 3);
    Ok(())
}

/// Receipts that vehicles hold: id (as logged) with the number of times it was acknowledged as counted.
fn acknowledged(processes: &[Process]) -> BTreeMap<String, usize> {
    let mut ids = BTreeMap::new();
    for process in processes {
        for line in process
            .log()
            .lines()
            .filter(|line| line.contains(" receipt ") && line.contains("verdict=accepted"))
        {
            let id = line
                .split("update_id=")
                .nth(1)
                .and_then(|rest| rest.split_whitespace().next());
            *ids.entry(id.unwrap_or("no id in the line").to_owned())
                .or_default() += 1;
        }
    }
    ids
}

/// Updates that made it into a version: id (full, hexadecimal) with the number of times.
fn counted(site: &Site) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut ids = BTreeMap::new();
    let rounds = site.ask(&["round", "list", "--job", "lights"])?;
    for round in rounds["rounds"].as_array().context("a list of rounds")? {
        let number = round["merge_round"].as_u64().context("a number")?;
        let explained = site.ask(&["round", "explain", &number.to_string(), "--job", "lights"])?;
        let roadsides = explained["roadsides"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for roadside in roadsides
            .iter()
            .filter(|roadside| roadside["verdict"] == "accepted")
        {
            for line in roadside["contributions"].as_array().into_iter().flatten() {
                if line["verdict"] == "accepted" {
                    let id = line["update_id"].as_str().context("an id")?;
                    *ids.entry(id.to_owned()).or_default() += 1;
                }
            }
        }
    }
    Ok(ids)
}

fn run(site: &Site, brokers: &BTreeMap<&str, Broker>) -> anyhow::Result<()> {
    some_pictures("test", 0, 12, &site.path("held-back"))?;
    let mut features = std::process::Command::new(wayside_tests::process::program("edge-client")?);
    features
        .arg("features")
        .arg("--pictures")
        .arg(site.path("held-back"));
    features
        .arg("--weights")
        .arg(wayside_tests::site::weights())
        .args(["--height", "64", "--width", "32"]);
    features
        .args(["--classes", "red,yellow,green"])
        .arg("--out")
        .arg(site.path("held-back.safetensors"));
    wayside_tests::process::output(features)?;
    let job = site.write("job.toml", job())?;

    let mut cloud = site.cloud()?;
    wait_for("the cloud to answer", PATIENCE, || {
        site.ask(&["job", "list"]).ok()
    })?;
    site.ask(&["job", "create", &job.to_string_lossy()])?;
    let mut units = BTreeMap::new();
    for (name, broker) in brokers {
        units.insert(*name, site.roadside(name, broker)?);
        wait_for("the broker", PATIENCE, || {
            std::net::TcpStream::connect(broker.address()).ok()
        })?;
    }
    let mut vehicles = Vec::new();
    for ((name, unit), first) in VEHICLES.into_iter().zip(0..) {
        some_pictures("train", first, 40, &site.path(name))?;
        vehicles.push(site.vehicle(name, unit, &brokers[unit], &site.path(name))?);
    }

    middle_of(site, 2)?;
    vehicles[0].kill()?;
    vehicles[0] = site.vehicle("v1", "rsu-1", &brokers["rsu-1"], &site.path("v1"))?;

    middle_of(site, 4)?;
    let unit = units.get_mut("rsu-1").context("a unit")?;
    unit.kill()?;
    *unit = site.roadside("rsu-1", &brokers["rsu-1"])?;

    middle_of(site, 6)?;
    cloud.kill()?;
    cloud = site.cloud()?;

    wait_for("the job's end", PATIENCE, || {
        site.ask(&["job", "show", "lights"])
            .ok()
            .filter(|job| job["state"] == "finished")
    })
    .with_context(|| {
        format!(
            "the cloud logged:\n{}",
            wayside_tests::process::tail(&cloud.log(), 30)
        )
    })?;
    let job: Value = site.ask(&["job", "show", "lights"])?;
    ensure!(
        job["released_version"].as_u64().unwrap_or(0) >= 1,
        "no version was released: {job}"
    );

    let (acknowledged, counted) = (acknowledged(&vehicles), counted(site)?);
    ensure!(
        counted.values().all(|times| *times == 1),
        "counted twice: {counted:?}"
    );
    ensure!(
        acknowledged.len() as u64 >= MERGES,
        "only {} updates were acknowledged",
        acknowledged.len()
    );
    for id in acknowledged.keys() {
        let times = counted
            .keys()
            .filter(|full| full.starts_with(id.as_str()))
            .count();
        ensure!(
            times == 1,
            "update {id} was acknowledged and counted {times} times; counted: {counted:?}"
        );
    }
    Ok(())
}

#[test]
fn with_embedded_brokers() {
    let site = Site::new().expect("a site");
    let brokers = ["rsu-1", "rsu-2"].map(|unit| (unit, Broker::embedded().expect("a port")));
    run(&site, &BTreeMap::from(brokers)).expect("every acknowledged update counts once");
}

#[test]
fn with_mosquitto() {
    let site = Site::new().expect("a site");
    let mosquitto = Mosquitto::start(&site.path("")).expect("mosquitto");
    let broker = Broker::External(mosquitto.address.clone());
    let brokers = ["rsu-1", "rsu-2"].map(|unit| (unit, broker.clone()));
    run(&site, &BTreeMap::from(brokers)).expect("every acknowledged update counts once");
}
