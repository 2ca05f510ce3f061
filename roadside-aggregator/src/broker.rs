//! The embedded MQTT broker: what a roadside unit uses unless it is told to use another one.
//!
//! rmqtt with retained messages in memory. It runs on a runtime of its own, so that dropping it ends every connection
//! and every task of it, and so that several of them live in one process without sharing anything. What it retains
//! dies with it; the unit publishes its retained messages again after each reconnect.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use rmqtt::context::ServerContext;
use rmqtt::net::{Builder, Listener};
use rmqtt::server::MqttServer;
use tokio::runtime::{self, Runtime};

/// Messages that wait for one slow subscriber; further ones are dropped by the broker, and vehicles send again.
const MAX_QUEUE: usize = 100_000;
/// Messages at `QoS` 1 on their way to one subscriber.
const MAX_INFLIGHT: NonZeroU16 = NonZeroU16::new(256).expect("256 is not 0");
/// rmqtt forgets messages after 5 minutes unless told otherwise, retained ones too: a model or announcement must stay
/// for as long as it holds.
const KEEP_MESSAGES: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The broker's own numbers of its two ports.
const OUTER_LISTENER: u16 = 1;
const INNER_LISTENER: u16 = 2;
/// Threads of the broker's runtime.
const THREADS: usize = 2;

/// Why no broker could be started.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The address is in use or cannot be bound.
    #[error(
        "broker.listen: cannot listen on {address}, {reason}: stop the other process or choose another port"
    )]
    Bind {
        /// Where it should have listened.
        address: SocketAddr,
        /// What the system said.
        reason: String,
    },
    /// Anything else, which is not expected.
    #[error("embedded broker: {0}")]
    Start(String),
}

/// A running broker; dropping it closes the port and all connections.
pub struct Embedded {
    address: SocketAddr,
    inner: SocketAddr,
    /// What serves `address` once it is opened.
    waiting: Option<MqttServer>,
    /// Taken when dropped.
    runtime: Option<Runtime>,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Embedded({})", self.address)
    }
}

impl Embedded {
    /// Starts a broker on `listen`; port 0 lets the system choose one, which [`Embedded::address`] tells.
    ///
    /// `max_packet_bytes` bounds every MQTT packet, retained ones too. The port is open when this returns.
    pub async fn start(listen: SocketAddr, max_packet_bytes: u32) -> Result<Self, BrokerError> {
        let mut broker = Self::start_closed(listen, max_packet_bytes).await?;
        broker.open();
        Ok(broker)
    }

    /// Starts a broker that serves [`Embedded::inner`] at once, and who comes to `listen` only after
    /// [`Embedded::open`]; until then they wait for their CONNACK. So the unit can subscribe before the first vehicle
    /// says something.
    pub async fn start_closed(
        listen: SocketAddr,
        max_packet_bytes: u32,
    ) -> Result<Self, BrokerError> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("broker")
            .enable_all()
            .build()
            .map_err(|error| BrokerError::Start(error.to_string()))?;
        let started = runtime.spawn(serve(listen, max_packet_bytes)).await;
        let mut broker = Self {
            address: listen,
            inner: listen,
            waiting: None,
            runtime: Some(runtime),
        };
        let (server, address, inner) =
            started.map_err(|error| BrokerError::Start(error.to_string()))??;
        (broker.address, broker.inner) = (address, inner);
        broker.waiting = Some(server);
        Ok(broker)
    }

    /// Begins to serve who comes to [`Embedded::address`]. Again, it does nothing.
    pub fn open(&mut self) {
        if let (Some(server), Some(runtime)) = (self.waiting.take(), &self.runtime) {
            runtime.spawn(run(server));
        }
    }

    /// Where it serves from the start, on a loopback port that the system chose: for the unit's own client.
    pub fn inner(&self) -> SocketAddr {
        self.inner
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not `drop`, which blocks and may not be called from async code.
            runtime.shutdown_background();
        }
    }
}

/// Serves the inner port, and binds the outer one.
async fn serve(
    listen: SocketAddr,
    max_packet_bytes: u32,
) -> Result<(MqttServer, SocketAddr, SocketAddr), BrokerError> {
    let start = |error: rmqtt::Error| BrokerError::Start(error.to_string());
    // The addresses are bound first: nothing else is worth starting when one is taken.
    let (outer, address) = bind(listen, max_packet_bytes)?;
    let (inner, inner_address) = bind((Ipv4Addr::LOCALHOST, 0).into(), max_packet_bytes)?;
    let retainer = format!(
        "storage.type = \"ram\"\nmax_payload_size = \"{max_packet_bytes}B\"\nretained_message_ttl = \"0s\"\n"
    );
    let context = ServerContext::new()
        // Else the broker turns vehicles away while the machine is busy training.
        .busy_check_enable(false)
        .plugins_config_map_add("rmqtt-retainer", retainer)
        .build()
        .await;
    rmqtt_retainer::register(&context, true, true)
        .await
        .map_err(start)?;
    let server = |listener, id| {
        MqttServer::new(context.clone())
            .listener_by_id(listener, id)
            .build()
    };
    tokio::spawn(run(server(inner, INNER_LISTENER)));
    Ok((server(outer, OUTER_LISTENER), address, inner_address))
}

fn bind(listen: SocketAddr, max_packet_bytes: u32) -> Result<(Listener, SocketAddr), BrokerError> {
    let listener = Builder::new()
        .name("wayside")
        .laddr(listen)
        .nodelay(true)
        .reuseaddr(Some(true))
        .max_packet_size(max_packet_bytes)
        .max_mqueue_len(MAX_QUEUE)
        .max_inflight(MAX_INFLIGHT)
        .message_expiry_interval(KEEP_MESSAGES)
        .bind()
        .and_then(Listener::tcp)
        .map_err(|error| BrokerError::Bind {
            address: listen,
            reason: reason(&error),
        })?;
    let address = listener
        .local_addr()
        .map_err(|error| BrokerError::Start(error.to_string()))?;
    Ok((listener, address))
}

async fn run(server: MqttServer) {
    if let Err(error) = server.run().await {
        tracing::error!(%error, "embedded broker ended");
    }
}

fn reason(error: &rmqtt::Error) -> String {
    error
        .downcast_ref::<io::Error>()
        .map_or_else(|| error.to_string(), io::Error::to_string)
}
