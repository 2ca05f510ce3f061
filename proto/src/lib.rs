//! Everything that crosses a wire: messages, frames, topics.
//!
//! Invariants: what comes out of a decoder here has been checked, and its memory was bounded before it was allocated;
//! no input makes a decoder panic; a topic string is written in [`topics`] only.
//!
//! - [`codec`]: frames that carry parameters (fp16 deltas, models, exact sums).
//! - [`convert`]: messages as plain structs with typed ids, to and from bytes.
//! - [`kubeedge`]: JSON payloads of `KubeEdge`'s device twins, and its envelope.
//! - [`topics`]: the only topic strings, `KubeEdge`'s among them.
//! - [`wire`]: generated from the `.proto` files, unchecked.
//!
//! Left to others: sockets, brokers, and what a message means for a round.

#![forbid(unsafe_code)]

pub mod codec;
pub mod convert;
pub mod kubeedge;
pub mod topics;

/// Messages as prost generates them. Nothing in here has been checked: use [`convert`].
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated; the .proto files are the documentation"
)]
pub mod wire {
    include!("gen/messages.rs");

    /// Clients and servers of the roadside-cloud and the admin service.
    #[cfg(feature = "grpc")]
    pub mod services {
        include!("gen/services.rs");
    }
}
