//! gRPC: the roadside units' and the operators' service on one port.

mod admin;
mod assembly;
mod coordinator;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

pub(crate) use admin::EXIT_HEADER;

use crate::hub::Hub;
use wayside_host::exit::{Exit, Failure};
use wayside_proto::wire::services::admin_server::AdminServer;
use wayside_proto::wire::services::coordinator_server::CoordinatorServer;

/// A peer that has gone without a word is noticed after this and [`PING_TIMEOUT`].
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls of one connection at the same time.
const MAX_STREAMS: u32 = 128;
/// Open calls get this long to end after the shutdown was asked for.
const GRACE: Duration = Duration::from_secs(3);
/// Answers to operators may be larger than messages between machines: a round's explanation has a line a vehicle.
pub(crate) const MAX_ADMIN_BYTES: usize = 64 << 20;

/// Opens the port.
///
/// # Errors
/// One line with the address and a remedy.
pub(crate) async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let refused = |error: io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => "stop what uses it, or choose another port",
            io::ErrorKind::PermissionDenied => "choose a port above 1023",
            _ => "choose an address of this machine",
        };
        Failure::new(
            Exit::AddressInUse,
            format!("server.listen {address}: {error}: {remedy}"),
        )
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((listener, bound))
}

/// Serves until the shutdown. What a peer sends that is not gRPC ends that peer's connection only.
///
/// # Errors
/// If the port itself fails.
pub(crate) async fn serve(hub: Arc<Hub>, listener: TcpListener) -> Result<(), Failure> {
    let limit = hub.limits.max_message_bytes;
    let coordinator = coordinator::CoordinatorService::new(Arc::clone(&hub));
    let coordinator = CoordinatorServer::new(coordinator)
        .max_decoding_message_size(limit)
        .max_encoding_message_size(limit);
    let admin = AdminServer::new(admin::AdminService(Arc::clone(&hub)))
        .max_decoding_message_size(limit)
        .max_encoding_message_size(MAX_ADMIN_BYTES);
    let shutdown = hub.shutdown.clone();
    let serving = Server::builder()
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(coordinator)
        .add_service(admin)
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            async move {
                shutdown.wait().await;
            },
        );
    let cut_short = async {
        hub.shutdown.wait().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = serving => served.map_err(|error| Failure::new(Exit::Failed, format!("server: {error}"))),
        () = cut_short => Ok(()),
    }
}
