//! The heartbeat: a `KubeEdge` twin update from a timer of its own, whatever the rest of the vehicle does.
//!
//! Only the latest one is kept, none is queued: while the link is down none is made, and after a pause there is one, not
//! all that were missed. The first two after a start follow each other closely, since `KubeEdge` passes the first report
//! of each property on as an empty value.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tracing::warn;
use wayside_domain::ids::{Digest, Generation, RoundId};
use wayside_host::clock::Clock;
use wayside_host::shutdown::Shutdown;
use wayside_proto::kubeedge::{Heartbeat, PayloadError, TrainState};

use crate::link::LinkHandle;

/// Between the first two heartbeats.
const REPEAT: Duration = Duration::from_millis(300);

/// What a heartbeat says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) link_up: bool,
    pub(crate) state: TrainState,
    pub(crate) round: Option<RoundId>,
    pub(crate) model: Option<Digest>,
    pub(crate) num_examples: u64,
}

/// Beats until `shutdown`: every `interval`, moved by up to 10 % each time, and when the link comes up.
pub(crate) async fn beat(
    interval: Duration,
    generation: Generation,
    seed: u64,
    mut status: watch::Receiver<Status>,
    link: LinkHandle,
    clock: Clock,
    shutdown: Shutdown,
) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut sent = 0_u64;
    let mut was_up = false;
    let mut wait = interval;
    let mut due = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep_until(due) => {}
            changed = status.changed() => {
                if changed.is_err() {
                    return;
                }
                let up = status.borrow_and_update().link_up;
                if std::mem::replace(&mut was_up, up) || !up {
                    continue;
                }
            }
        }
        let now = status.borrow().clone();
        if now.link_up {
            sent += 1;
            match payload(&now, generation, sent, &clock) {
                Ok(payload) => link.heartbeat(payload),
                Err(error) => warn!(%error, "heartbeat cannot be written"),
            }
            wait = if sent == 1 {
                REPEAT.min(interval)
            } else {
                interval
            };
        }
        due = tokio::time::Instant::now() + wait.mul_f64(rng.random_range(0.9..=1.1));
    }
}

fn payload(
    status: &Status,
    generation: Generation,
    number: u64,
    clock: &Clock,
) -> Result<Vec<u8>, PayloadError> {
    let heartbeat = Heartbeat {
        generation,
        state: status.state,
        round: status.round,
        model: status.model,
        num_examples: status.num_examples,
        sent: clock.now(),
    };
    let event_id = format!("{}-{number}", generation.0);
    heartbeat.to_twin(event_id).to_json()
}
