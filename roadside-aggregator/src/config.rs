//! Host configuration of a roadside unit. Jobs come from the cloud; only addresses, paths and limits stand here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wayside_domain::ids::{Namespace, RoadsideId};
use wayside_domain::upload::UploadLimits;
use wayside_host::config::ConfigError;
use wayside_host::telemetry::LogConfig;

use crate::link::Address;

/// Bytes that an MQTT packet has beside a chunk of payload: fixed header, topic, and the fields of a part.
const PACKET_OVERHEAD: usize = 1024;

/// Everything a roadside unit is told by its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Who this unit is.
    pub roadside: RoadsideConfig,
    /// The MQTT broker between this unit and its vehicles.
    pub broker: BrokerConfig,
    /// The cloud coordinator.
    pub cloud: CloudConfig,
    /// Where this unit keeps what must survive a crash.
    pub state: StateConfig,
    /// When a vehicle counts as lost.
    pub heartbeat: HeartbeatConfig,
    /// Bounds on memory and time.
    pub limits: LimitsConfig,
    /// Log lines on standard error.
    pub log: LogConfig,
}

/// `[roadside]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoadsideConfig {
    /// Name of this unit, unique in the fleet: letters, digits, `_` and `-`. Default `roadside-1`.
    pub id: String,
    /// Kubernetes namespace in which `KubeEdge` knows the vehicles. Default `default`.
    pub namespace: String,
}

impl Default for RoadsideConfig {
    fn default() -> Self {
        Self {
            id: "roadside-1".to_owned(),
            namespace: "default".to_owned(),
        }
    }
}

/// Whose broker is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerMode {
    /// One within this process.
    #[default]
    Embedded,
    /// One that runs already, such as mosquitto or the one beside edgecore.
    External,
}

/// `[broker]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerConfig {
    /// `embedded` or `external`. Default `embedded`.
    pub mode: BrokerMode,
    /// Where the embedded broker listens, an IP address and a port; port 0 lets the system choose. Default
    /// `127.0.0.1:1883`.
    pub listen: String,
    /// Where the external broker is, host and port. Default `127.0.0.1:1883`.
    pub address: String,
    /// Largest MQTT packet in bytes, for the embedded broker and this unit's client, in and out; an external broker
    /// must take as much. 2048 to 67108864, and larger than a chunk. Default 1048576.
    pub max_packet_bytes: u32,
    /// MQTT keepalive in seconds, 5 to 60. Default 20.
    pub keepalive_s: u16,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            mode: BrokerMode::Embedded,
            listen: "127.0.0.1:1883".to_owned(),
            address: "127.0.0.1:1883".to_owned(),
            max_packet_bytes: 1 << 20,
            keepalive_s: 20,
        }
    }
}

/// `[cloud]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CloudConfig {
    /// URL of the coordinator's gRPC service. Default `http://127.0.0.1:7443`.
    pub address: String,
}

impl Default for CloudConfig {
    fn default() -> Self {
        Self {
            address: "http://127.0.0.1:7443".to_owned(),
        }
    }
}

/// `[state]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StateConfig {
    /// A folder of its own; made if absent. Default `state/roadside-aggregator`.
    pub dir: PathBuf,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("state/roadside-aggregator"),
        }
    }
}

/// `[heartbeat]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeartbeatConfig {
    /// Interval of the vehicles' heartbeats in milliseconds, 100 to 600000. Default 30000.
    pub interval_ms: u64,
    /// Heartbeats in a row that must fail to come before a vehicle counts as lost, 1 to 20. Default 3.
    pub misses: u32,
}

impl Default for HeartbeatConfig {
    fn default() -> Self {
        Self {
            interval_ms: 30_000,
            misses: 3,
        }
    }
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Bytes of one chunk of a model, 256 to 1048576. Default 65536.
    pub chunk_bytes: usize,
    /// Bytes that all unfinished uploads together may come to hold. Default 67108864.
    pub max_open_upload_bytes: usize,
    /// Silence after which missing chunks are asked for, in milliseconds, 1 or more. Default 1000.
    pub need_after_ms: u64,
    /// Age at which an unfinished upload is dropped, in milliseconds, at least `need_after_ms`. Default 60000.
    pub upload_max_age_ms: u64,
    /// A round waits until no vehicle has come for this long, in milliseconds, 0 to 60000, so that vehicles that start
    /// together take part together; five times as long at most. Default 500.
    pub settle_ms: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            chunk_bytes: 65_536,
            max_open_upload_bytes: 64 << 20,
            need_after_ms: 1000,
            upload_max_age_ms: 60_000,
            settle_ms: 500,
        }
    }
}

/// The configuration with every value read, as the unit uses it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// This unit.
    pub roadside: RoadsideId,
    /// Namespace of the vehicles' device topics.
    pub namespace: Namespace,
    /// Where the embedded broker listens; `None` with an external one.
    pub listen: Option<SocketAddr>,
    /// Where the external broker is.
    pub broker: Address,
    /// The cloud's address as tonic takes it.
    pub cloud: tonic::transport::Endpoint,
    /// Bounds on uploads.
    pub uploads: UploadLimits,
}

impl Config {
    /// Checks every value; the first one that is not allowed is named. Opens nothing.
    pub fn validate(&self) -> Result<Checked, ConfigError> {
        let roadside = RoadsideId::new(&*self.roadside.id).or_else(|error| {
            refuse("roadside.id", format!("is {:?}: {error}", self.roadside.id))
        })?;
        let namespace = Namespace::new(&*self.roadside.namespace).or_else(|error| {
            let got = &self.roadside.namespace;
            refuse("roadside.namespace", format!("is {got:?}: {error}"))
        })?;
        let listen = match self.broker.mode {
            BrokerMode::External => None,
            BrokerMode::Embedded => {
                let got = &self.broker.listen;
                let address = got.parse().or_else(|_| {
                    refuse(
                        "broker.listen",
                        format!("is {got:?}, expected an IP address and port"),
                    )
                })?;
                Some(address)
            }
        };
        let Some(broker) = Address::parse(&self.broker.address) else {
            let message = format!("is {:?}, expected host:port", self.broker.address);
            return refuse("broker.address", message);
        };
        let cloud = self.cloud_endpoint()?;
        let between = |key: &str, got: u64, low: u64, high: u64| {
            if (low..=high).contains(&got) {
                return Ok(());
            }
            refuse(key, format!("is {got}, expected {low} to {high}"))
        };
        let wide = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let (broker_config, limits) = (&self.broker, &self.limits);
        let packet = u64::from(broker_config.max_packet_bytes);
        between("broker.max_packet_bytes", packet, 2048, 64 << 20)?;
        between(
            "broker.keepalive_s",
            broker_config.keepalive_s.into(),
            5,
            60,
        )?;
        between(
            "heartbeat.interval_ms",
            self.heartbeat.interval_ms,
            100,
            600_000,
        )?;
        between("heartbeat.misses", self.heartbeat.misses.into(), 1, 20)?;
        between("limits.chunk_bytes", wide(limits.chunk_bytes), 256, 1 << 20)?;
        let room = packet.saturating_sub(wide(PACKET_OVERHEAD));
        if wide(limits.chunk_bytes) > room {
            let got = limits.chunk_bytes;
            let message = format!(
                "is {got}, expected at most {room}: broker.max_packet_bytes less {PACKET_OVERHEAD}"
            );
            return refuse("limits.chunk_bytes", message);
        }
        let open = wide(limits.max_open_upload_bytes);
        between("limits.max_open_upload_bytes", open, 4096, 1 << 40)?;
        between("limits.need_after_ms", limits.need_after_ms, 1, 3_600_000)?;
        let age = limits.upload_max_age_ms;
        between(
            "limits.upload_max_age_ms",
            age,
            limits.need_after_ms,
            86_400_000,
        )?;
        between("limits.settle_ms", limits.settle_ms, 0, 60_000)?;
        Ok(Checked {
            roadside,
            namespace,
            listen,
            broker,
            cloud,
            uploads: UploadLimits {
                max_open_bytes: limits.max_open_upload_bytes,
                need_after: Duration::from_millis(limits.need_after_ms),
                max_age: Duration::from_millis(age),
            },
        })
    }

    fn cloud_endpoint(&self) -> Result<tonic::transport::Endpoint, ConfigError> {
        let got = &self.cloud.address;
        let refuse = |what: &str| refuse("cloud.address", format!("is {got:?}, {what}"));
        let Ok(endpoint) = tonic::transport::Endpoint::from_shared(got.clone()) else {
            return refuse("expected a URL such as http://127.0.0.1:7443");
        };
        match endpoint.uri().scheme_str() {
            Some("http") if endpoint.uri().host().is_some() => Ok(endpoint),
            Some("https") => refuse("but TLS is not built in yet: use http"),
            _ => refuse("expected a URL such as http://127.0.0.1:7443"),
        }
    }
}

fn refuse<T>(key: &str, message: String) -> Result<T, ConfigError> {
    Err(ConfigError::out_of_range(key, &message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_defaults_and_the_sample_are_the_same() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("roadside-aggregator.toml");
        let sample: Config = wayside_host::config::load(Some(&path), &[], std::iter::empty())
            .expect("the sample loads");
        assert_eq!(sample, Config::default());
        sample.validate().expect("and is allowed");
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        for text in [
            "roadside.id=a/b",
            "roadside.namespace=",
            "broker.listen=localhost:1883",
            "broker.address=nowhere",
            "broker.max_packet_bytes=100",
            "broker.keepalive_s=0",
            "cloud.address=not a url",
            "cloud.address=https://cloud:7443",
            "heartbeat.interval_ms=1",
            "heartbeat.misses=0",
            "limits.chunk_bytes=255",
            "limits.chunk_bytes=1048576",
            "limits.max_open_upload_bytes=1",
            "limits.upload_max_age_ms=10",
        ] {
            let overrides = [text.to_owned()];
            let config: Config =
                wayside_host::config::load(None, &overrides, std::iter::empty()).expect(text);
            let error = config.validate().expect_err(text).to_string();
            let key = text.split_once('=').expect("key=value").0;
            assert!(error.contains(key) && !error.contains('\n'), "{error}");
        }
    }
}
