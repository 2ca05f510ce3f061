//! Whether a connection still gets anywhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::Instant;

/// What the three loops of a connection know of each other.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) start: Instant,
    /// Publishes handed to the client, and acknowledged by the broker.
    pub(super) handed: AtomicU64,
    pub(super) acked: AtomicU64,
    /// Milliseconds since the start.
    pub(super) last_ack: AtomicU64,
    pub(super) last_news: AtomicU64,
    pub(super) last_ping: AtomicU64,
    /// A message was dropped since the filters were last subscribed.
    pub(super) dropped: AtomicBool,
}

impl Progress {
    pub(super) fn new(start: Instant) -> Self {
        Self {
            start,
            handed: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            last_ack: AtomicU64::new(0),
            last_news: AtomicU64::new(0),
            last_ping: AtomicU64::new(0),
            dropped: AtomicBool::new(false),
        }
    }

    pub(super) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn hand(&self, now_ms: u64) {
        // The wait for acknowledgements begins with the first publish that has none.
        if self.handed.fetch_add(1, Ordering::Relaxed) == self.acked.load(Ordering::Relaxed) {
            self.last_ack.store(now_ms, Ordering::Relaxed);
        }
    }

    pub(super) fn ack(&self, now_ms: u64) {
        self.acked.fetch_add(1, Ordering::Relaxed);
        self.last_ack.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn all_acknowledged(&self) -> bool {
        self.acked.load(Ordering::Relaxed) >= self.handed.load(Ordering::Relaxed)
    }

    /// Why the connection must be given up, if it must.
    pub(super) fn stuck(
        &self,
        now_ms: u64,
        keepalive_ms: u64,
        patience_ms: u64,
    ) -> Option<&'static str> {
        let load = |place: &AtomicU64| place.load(Ordering::Relaxed);
        let since = |place| now_ms.saturating_sub(load(place));
        if load(&self.handed) > load(&self.acked) && since(&self.last_ack) > patience_ms {
            return Some("connected, but nothing was acknowledged");
        }
        let unanswered = load(&self.last_ping) > load(&self.last_news);
        let silent = unanswered && since(&self.last_ping) > keepalive_ms / 2;
        silent.then_some("no answer to a ping")
    }
}
