//! The vehicle's configuration: one TOML file, checked as a whole before anything is opened.
//!
//! [`Config`] is what stands in the file; `Settings` is the same, checked and in the types that the rest works with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wayside_domain::ids::{Namespace, RoadsideId, VehicleId};
use wayside_host::config::ConfigError;
use wayside_host::telemetry::LogConfig;

use crate::pictures::PictureSource;

/// Bytes of an MQTT packet beside a chunk's data: topic, ids, digest, lengths.
const PACKET_OVERHEAD: usize = 1024;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Who this vehicle is.
    pub vehicle: VehicleSection,
    /// The roadside unit it works with.
    pub roadside: RoadsideSection,
    /// Its pictures.
    pub data: DataSection,
    /// The frozen network.
    pub model: ModelSection,
    /// Where it keeps its state.
    pub state: StateSection,
    /// How often it says that it is there.
    #[serde(default)]
    pub heartbeat: HeartbeatSection,
    /// The MQTT link.
    #[serde(default)]
    pub link: LinkSection,
    /// How training shares the machine with the car.
    #[serde(default)]
    pub training: TrainingSection,
    /// Log lines on standard error.
    #[serde(default)]
    pub log: LogConfig,
}

/// `[vehicle]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct VehicleSection {
    /// Name of the vehicle, unique in the fleet: letters, digits, `_`, `-`, at most 64.
    pub id: String,
    /// Kubernetes namespace in which `KubeEdge` knows the vehicle's Device object. Default `default`.
    #[serde(default = "default_namespace")]
    pub namespace: String,
}

/// `[roadside]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RoadsideSection {
    /// Name of the roadside unit, as in its own configuration.
    pub id: String,
    /// `host:port` of its MQTT broker. Default `127.0.0.1:1883`.
    #[serde(default = "default_address")]
    pub address: String,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// A folder with one sub-folder a class (JPEG, PNG), or a safetensors file of pictures and labels.
    pub pictures: PathBuf,
    /// For a file: what stands before `images` and `labels` in its tensor names, such as `train_`. Default empty.
    #[serde(default)]
    pub prefix: String,
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// The backbone's weights, a safetensors file.
    pub weights: PathBuf,
}

/// `[state]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StateSection {
    /// Folder of this process alone; made if it is absent.
    pub dir: PathBuf,
}

/// `[heartbeat]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeartbeatSection {
    /// Time between two heartbeats in milliseconds, 100 to 3600000; each is moved by up to 10 %. Default 30000.
    pub interval_ms: u64,
}

impl Default for HeartbeatSection {
    fn default() -> Self {
        Self {
            interval_ms: 30_000,
        }
    }
}

/// `[link]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkSection {
    /// MQTT keepalive in seconds, 1 to 600. Carriers drop flows that idle for 150 s. Default 20.
    pub keepalive_s: u64,
    /// Time to connect, and to hand one packet to the network, in seconds, 1 to 120. Default 10.
    pub timeout_s: u64,
    /// Largest MQTT packet in both directions, in bytes; the broker's limit must be the same or larger. At least
    /// `chunk_bytes` + 1024. Default 262144.
    pub max_packet_bytes: usize,
    /// Bytes of one chunk of an update, 256 to 1048576; one chunk must fit through the slowest link within about 2 s.
    /// Default 65536.
    pub chunk_bytes: usize,
    /// First wait for a receipt in milliseconds, 100 to 600000; it doubles up to 16 times. Default 2000.
    pub resend_after_ms: u64,
    /// The first reconnect comes after a random time of up to so many milliseconds, 1 to 600000. A fleet whose broker
    /// restarts comes back spread over this time. Default 10000.
    pub reconnect_ms: u64,
    /// Later reconnects wait up to twice as long each time, but at most this, in milliseconds. Default 60000.
    pub reconnect_max_ms: u64,
}

impl Default for LinkSection {
    fn default() -> Self {
        Self {
            keepalive_s: 20,
            timeout_s: 10,
            max_packet_bytes: 256 * 1024,
            chunk_bytes: 64 * 1024,
            resend_after_ms: 2_000,
            reconnect_ms: 10_000,
            reconnect_max_ms: 60_000,
        }
    }
}

/// `[training]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingSection {
    /// Threads that extract features, 0 to 1024; 0 takes all cores but one, and at least one. Default 0.
    pub threads: usize,
    /// Niceness of extraction and training above the process's own, 0 to 19. Default 10.
    pub nice: i32,
    /// While this file exists, extraction and training stop (ignition, battery, temperature). Default none.
    pub stop_file: Option<PathBuf>,
}

impl Default for TrainingSection {
    fn default() -> Self {
        Self {
            threads: 0,
            nice: 10,
            stop_file: None,
        }
    }
}

fn default_namespace() -> String {
    "default".to_owned()
}

fn default_address() -> String {
    "127.0.0.1:1883".to_owned()
}

/// A checked [`Config`].
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) vehicle: VehicleId,
    pub(crate) namespace: Namespace,
    pub(crate) roadside: RoadsideId,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) pictures: PictureSource,
    pub(crate) weights: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) heartbeat: Duration,
    pub(crate) link: LinkSection,
    pub(crate) threads: usize,
    pub(crate) nice: i32,
    pub(crate) stop_file: Option<PathBuf>,
}

impl Config {
    /// Everything at its default but what has none.
    pub fn new(
        vehicle: &str,
        roadside: &str,
        pictures: impl Into<PathBuf>,
        weights: impl Into<PathBuf>,
        state_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            vehicle: VehicleSection {
                id: vehicle.to_owned(),
                namespace: default_namespace(),
            },
            roadside: RoadsideSection {
                id: roadside.to_owned(),
                address: default_address(),
            },
            data: DataSection {
                pictures: pictures.into(),
                prefix: String::new(),
            },
            model: ModelSection {
                weights: weights.into(),
            },
            state: StateSection {
                dir: state_dir.into(),
            },
            heartbeat: HeartbeatSection::default(),
            link: LinkSection::default(),
            training: TrainingSection::default(),
            log: LogConfig::default(),
        }
    }

    /// Reads file, environment and overrides, and checks every value; see [`wayside_host::config::load`].
    ///
    /// # Errors
    /// The first thing wrong, in one line that names it and the remedy.
    pub fn load(
        path: Option<&Path>,
        overrides: &[String],
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let config: Self = wayside_host::config::load(path, overrides, env)?;
        config.validate()?;
        Ok(config)
    }

    /// Checks every value against its range; whether files exist is found out when they are opened.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.settings().map(drop)
    }

    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let refuse = |key: &str, message: String| ConfigError::out_of_range(key, &message);
        let id = |key: &'static str, error: wayside_domain::ids::IdError| {
            refuse(key, format!("is not an id: {error}"))
        };
        let vehicle = VehicleId::new(&self.vehicle.id).map_err(|error| id("vehicle.id", error))?;
        let namespace = Namespace::new(&self.vehicle.namespace)
            .map_err(|error| id("vehicle.namespace", error))?;
        let roadside =
            RoadsideId::new(&self.roadside.id).map_err(|error| id("roadside.id", error))?;
        let (host, port) = split_address(&self.roadside.address).ok_or_else(|| {
            let got = &self.roadside.address;
            refuse(
                "roadside.address",
                format!("is {got:?}, expected host:port with a port of 1 to 65535"),
            )
        })?;
        for (key, path) in [
            ("data.pictures", &self.data.pictures),
            ("model.weights", &self.model.weights),
            ("state.dir", &self.state.dir),
        ] {
            if path.as_os_str().is_empty() {
                return Err(refuse(key, "is empty, expected a path".to_owned()));
            }
        }
        let link = &self.link;
        let within = |key: &str, got: u64, least: u64, most: u64| {
            if (least..=most).contains(&got) {
                return Ok(());
            }
            Err(refuse(key, format!("is {got}, expected {least} to {most}")))
        };
        within(
            "heartbeat.interval_ms",
            self.heartbeat.interval_ms,
            100,
            3_600_000,
        )?;
        within("link.keepalive_s", link.keepalive_s, 1, 600)?;
        within("link.timeout_s", link.timeout_s, 1, 120)?;
        within("link.chunk_bytes", link.chunk_bytes as u64, 256, 1 << 20)?;
        within(
            "link.max_packet_bytes",
            link.max_packet_bytes as u64,
            (link.chunk_bytes + PACKET_OVERHEAD) as u64,
            256 << 20,
        )?;
        within("link.resend_after_ms", link.resend_after_ms, 100, 600_000)?;
        within("link.reconnect_ms", link.reconnect_ms, 1, 600_000)?;
        within(
            "link.reconnect_max_ms",
            link.reconnect_max_ms,
            link.reconnect_ms,
            3_600_000,
        )?;
        within("training.threads", self.training.threads as u64, 0, 1024)?;
        if !(0..=19).contains(&self.training.nice) {
            let got = self.training.nice;
            return Err(refuse(
                "training.nice",
                format!("is {got}, expected 0 to 19"),
            ));
        }
        Ok(Settings {
            vehicle,
            namespace,
            roadside,
            host,
            port,
            pictures: source(&self.data.pictures, &self.data.prefix),
            weights: self.model.weights.clone(),
            state_dir: self.state.dir.clone(),
            heartbeat: Duration::from_millis(self.heartbeat.interval_ms),
            link: self.link.clone(),
            threads: threads(self.training.threads),
            nice: self.training.nice,
            stop_file: self.training.stop_file.clone(),
        })
    }
}

/// A path to pictures: a safetensors file if the name says so, else a folder.
pub fn source(path: &Path, prefix: &str) -> PictureSource {
    if path.extension().is_some_and(|end| end == "safetensors") {
        PictureSource::Safetensors {
            path: path.to_owned(),
            prefix: prefix.to_owned(),
        }
    } else {
        PictureSource::Folder(path.to_owned())
    }
}

/// The configured number of threads; 0 means all cores but one, and at least one.
pub fn threads(configured: usize) -> usize {
    if configured > 0 {
        return configured;
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    cores.saturating_sub(1).max(1)
}

/// Host and port; an IPv6 host stands in brackets and is given without them.
fn split_address(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.trim().rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let plain = !host.is_empty() && !host.contains([':', '/', ' ', '[', ']']);
    let host = match bracketed {
        Some(host) => host.parse::<std::net::Ipv6Addr>().ok().map(|_| host)?,
        None => plain.then_some(host)?,
    };
    Some((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::new("v1", "rsu", "pictures", "weights.safetensors", "state")
    }

    fn refuse(change: impl FnOnce(&mut Config), part: &str) {
        let mut config = config();
        change(&mut config);
        let line = config.validate().unwrap_err().to_string();
        assert!(line.contains(part), "{line}");
    }

    #[test]
    fn the_sample_file_loads_and_shows_the_defaults() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("edge-client.toml");
        let sample = Config::load(Some(&path), &[], std::iter::empty()).unwrap();
        let minimal = Config::new(
            &sample.vehicle.id,
            &sample.roadside.id,
            &sample.data.pictures,
            &sample.model.weights,
            &sample.state.dir,
        );
        assert_eq!(sample, minimal);
    }

    #[test]
    fn values_are_checked_by_name() {
        assert!(config().validate().is_ok());
        refuse(|c| c.vehicle.id = "a/b".into(), "`vehicle.id`");
        refuse(|c| c.vehicle.namespace = "é".into(), "`vehicle.namespace`");
        refuse(|c| c.roadside.id = String::new(), "`roadside.id`");
        refuse(
            |c| c.roadside.address = "host".into(),
            "`roadside.address` is \"host\", expected host:port",
        );
        refuse(
            |c| c.heartbeat.interval_ms = 99,
            "is 99, expected 100 to 3600000",
        );
        refuse(|c| c.link.keepalive_s = 0, "`link.keepalive_s`");
        refuse(|c| c.link.chunk_bytes = 255, "`link.chunk_bytes`");
        refuse(
            |c| c.link.max_packet_bytes = 65_536,
            "is 65536, expected 66560",
        );
        refuse(|c| c.link.reconnect_max_ms = 1, "`link.reconnect_max_ms`");
        refuse(|c| c.training.nice = 20, "`training.nice`");
        refuse(|c| c.data.pictures = PathBuf::new(), "`data.pictures`");
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        let check = |address, expected: Option<(&str, u16)>| {
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(split_address(address), expected, "{address}");
        };
        check("127.0.0.1:1883", Some(("127.0.0.1", 1883)));
        check("rsu-7.example:1", Some(("rsu-7.example", 1)));
        check("[::1]:1883", Some(("::1", 1883)));
        for bad in [
            "",
            "host",
            "host:",
            ":1",
            "host:0",
            "host:65536",
            "::1:1883",
            "tcp://h:1",
            "[x]:1",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn at_least_one_thread() {
        assert!(threads(0) >= 1);
        assert_eq!(threads(7), 7);
    }
}
