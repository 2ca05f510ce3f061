//! A small fleet on this machine: folders, configuration files, commands.

use crate::process::{Process, free_port, output, program};
use anyhow::Context;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Where a roadside unit's vehicles meet it.
#[derive(Clone, Debug)]
pub enum Broker {
    /// Its own, on this port.
    Embedded(u16),
    /// Another process at this address.
    External(String),
}

impl Broker {
    /// The embedded broker on a free port.
    pub fn embedded() -> anyhow::Result<Self> {
        Ok(Self::Embedded(free_port()?))
    }

    /// Host and port for clients.
    pub fn address(&self) -> String {
        match self {
            Self::Embedded(port) => format!("127.0.0.1:{port}"),
            Self::External(address) => address.clone(),
        }
    }
}

/// Folders and ports of one test.
#[derive(Debug)]
pub struct Site {
    folder: TempDir,
    cloud_port: u16,
}

impl Site {
    /// An empty site.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            cloud_port: free_port()?,
        })
    }

    /// A path in the site's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the site's folder.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, bytes)?;
        Ok(path)
    }

    fn run(&self, tier: &str, name: &str, config: &str) -> anyhow::Result<Process> {
        let config = self.write(&format!("{name}.toml"), config)?;
        let mut command = Command::new(program(tier)?);
        command
            .arg("run")
            .arg("--config")
            .arg(config)
            .env("WAYSIDE_LOG", "debug");
        Process::start(name, command, &self.path(&format!("{name}.log")))
    }

    /// Starts the cloud, or starts it again.
    pub fn cloud(&self) -> anyhow::Result<Process> {
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:{}\"\n[state]\ndir = {}\n",
            self.cloud_port,
            quoted(&self.path("cloud-state"))
        );
        self.run("cloud-coordinator", "cloud", &config)
    }

    /// Starts a roadside unit, or starts it again.
    pub fn roadside(&self, id: &str, broker: &Broker) -> anyhow::Result<Process> {
        let mut config = format!(
            "[roadside]\nid = \"{id}\"\n[cloud]\naddress = \"http://127.0.0.1:{}\"\n[state]\ndir = {}\n[broker]\n",
            self.cloud_port,
            quoted(&self.path(&format!("{id}-state")))
        );
        match broker {
            Broker::Embedded(port) => write!(
                config,
                "mode = \"embedded\"\nlisten = \"127.0.0.1:{port}\"\n"
            )?,
            Broker::External(address) => {
                write!(config, "mode = \"external\"\naddress = \"{address}\"\n")?;
            }
        }
        self.run("roadside-aggregator", id, &config)
    }

    /// Starts a vehicle, or starts it again.
    pub fn vehicle(
        &self,
        id: &str,
        roadside: &str,
        broker: &Broker,
        pictures: &Path,
    ) -> anyhow::Result<Process> {
        let config = format!(
            "[vehicle]\nid = \"{id}\"\n[roadside]\nid = \"{roadside}\"\naddress = \"{}\"\n[data]\npictures = {}\n\
             [model]\nweights = {}\n[state]\ndir = {}\n[heartbeat]\ninterval_ms = 500\n\
             [link]\nreconnect_ms = 300\nreconnect_max_ms = 1000\nresend_after_ms = 500\nchunk_bytes = 1024\n",
            broker.address(),
            quoted(pictures),
            quoted(&weights()),
            quoted(&self.path(&format!("{id}-state")))
        );
        self.run("edge-client", id, &config)
    }

    /// Runs a command of the cloud's with `--format json`; what it printed.
    pub fn ask(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let mut command = Command::new(program("cloud-coordinator")?);
        command.args(arguments).args([
            "--format",
            "json",
            "--server",
            &format!("http://127.0.0.1:{}", self.cloud_port),
        ]);
        let text = output(command)?;
        serde_json::from_str(&text).with_context(|| format!("{arguments:?} printed {text:?}"))
    }
}

/// A path as a TOML string; JSON's strings are a part of TOML's.
fn quoted(path: &Path) -> String {
    Value::from(path.to_string_lossy()).to_string()
}

/// The backbone that the project ships.
pub fn weights() -> PathBuf {
    project().join("edge-client/models/mobilenet_v3_large_075_coco.int8.safetensors")
}

/// The project's root.
pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Copies every `step`-th shipped traffic light of `part` (`train` or `test`) from `first` on into `folder`.
pub fn some_pictures(
    part: &str,
    first: usize,
    step: usize,
    folder: &Path,
) -> anyhow::Result<usize> {
    let mut copied = 0;
    for class in ["red", "yellow", "green"] {
        let from = project()
            .join("simulations/data/traffic_lights")
            .join(part)
            .join(class);
        let mut files: Vec<PathBuf> = fs::read_dir(&from)?
            .map(|entry| entry.map(|e| e.path()))
            .collect::<Result<_, _>>()?;
        files.sort();
        fs::create_dir_all(folder.join(class))?;
        for file in files.iter().skip(first).step_by(step) {
            fs::copy(
                file,
                folder.join(class).join(file.file_name().context("a name")?),
            )?;
            copied += 1;
        }
    }
    Ok(copied)
}

/// A safetensors file of made-up features: `features` F32 `[n, d]`, `labels` U8 `[n]`.
pub fn feature_file(features: usize, classes: u8, examples: usize) -> Vec<u8> {
    let mut data = Vec::new();
    for example in 0..examples {
        for feature in 0..features {
            // Spread out, different for each class, never constant.
            let value = ((example * 7 + feature * 3) % 11) as f32
                + f32::from(u8::from(example % usize::from(classes) == feature));
            data.extend_from_slice(&value.to_le_bytes());
        }
    }
    let end = data.len();
    data.extend(
        (0..examples).map(|example| u8::try_from(example % usize::from(classes)).unwrap_or(0)),
    );
    let header = format!(
        r#"{{"features":{{"dtype":"F32","shape":[{examples},{features}],"data_offsets":[0,{end}]}},"labels":{{"dtype":"U8","shape":[{examples}],"data_offsets":[{end},{}]}}}}"#,
        data.len()
    );
    let padded = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let mut file = (padded.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(padded.as_bytes());
    file.extend_from_slice(&data);
    file
}
