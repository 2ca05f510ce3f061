//! What came from vehicles and was not dealt with yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use wayside_domain::time::Timestamp;
use wayside_host::clock::Clock;

/// Vehicles whose latest heartbeat waits.
const MAX_HEARTBEATS: usize = 100_000;
/// Presence messages that wait.
const MAX_PRESENCES: usize = 100_000;
/// Parts of updates that wait.
const MAX_PARTS: usize = 65_536;
/// Bytes of parts that wait.
const MAX_PART_BYTES: usize = 128 << 20;

/// One message as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where it came.
    pub topic: String,
    /// What came.
    pub payload: Vec<u8>,
    /// When.
    pub arrived: Timestamp,
}

#[derive(Debug, Default)]
struct Waiting {
    presences: VecDeque<Message>,
    heartbeats: BTreeMap<String, Message>,
    parts: VecDeque<Message>,
    part_bytes: usize,
    dropped: u64,
}

/// Bounded by class. Of heartbeats only the latest of each vehicle waits, and none of a further vehicle when full; of
/// presence messages the oldest is dropped; of parts the newest, since the vehicle sends them again. Drops are counted.
#[derive(Clone, Debug)]
pub struct Inbox {
    clock: Clock,
    waiting: Arc<Mutex<Waiting>>,
    news: Arc<Notify>,
}

impl Inbox {
    /// Empty; messages are stamped by this clock.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            waiting: Arc::default(),
            news: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a message; never waits.
    pub fn push(&self, topic: String, payload: Vec<u8>) {
        let message = Message {
            topic,
            payload,
            arrived: self.clock.now(),
        };
        self.lock().push(message);
        self.news.notify_one();
    }

    /// Returns once something waits. Safe to drop and call again.
    pub async fn wait(&self) {
        loop {
            let news = self.news.notified();
            if !self.lock().is_empty() {
                return;
            }
            news.await;
        }
    }

    /// Takes out up to `most` messages: presences first, then heartbeats, then parts, each in order.
    pub fn drain(&self, most: usize) -> Vec<Message> {
        let mut waiting = self.lock();
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(message) = waiting.pop() else { break };
            taken.push(message);
        }
        taken
    }

    /// Messages dropped since the start because there was no room.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.presences.is_empty() && self.heartbeats.is_empty() && self.parts.is_empty()
    }

    fn push(&mut self, message: Message) {
        if message.topic.starts_with('$') {
            let known = self.heartbeats.contains_key(&message.topic);
            if known || self.heartbeats.len() < MAX_HEARTBEATS {
                self.heartbeats.insert(message.topic.clone(), message);
            } else {
                self.dropped += 1;
            }
        } else if message.topic.contains("/fleet/") {
            if self.presences.len() >= MAX_PRESENCES {
                self.presences.pop_front();
                self.dropped += 1;
            }
            self.presences.push_back(message);
        } else if self.parts.len() < MAX_PARTS
            && self.part_bytes + message.payload.len() <= MAX_PART_BYTES
        {
            self.part_bytes += message.payload.len();
            self.parts.push_back(message);
        } else {
            self.dropped += 1;
        }
    }

    fn pop(&mut self) -> Option<Message> {
        if let Some(message) = self.presences.pop_front() {
            return Some(message);
        }
        if let Some((_, message)) = self.heartbeats.pop_first() {
            return Some(message);
        }
        let message = self.parts.pop_front()?;
        self.part_bytes -= message.payload.len();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presences_come_first_and_only_the_latest_heartbeat_counts() {
        let inbox = Inbox::new(Clock::system());
        for (topic, byte) in [
            ("wayside/v1/r/j/update/v/1/0", 1),
            ("$hw/events/device/d/v/twin/update", 2),
            ("$hw/events/device/d/v/twin/update", 3),
            ("wayside/v1/r/fleet/presence/v", 4),
            ("wayside/v1/r/j/update/v/1/1", 5),
        ] {
            inbox.push(topic.into(), vec![byte]);
        }
        let order: Vec<u8> = inbox.drain(10).iter().map(|m| m.payload[0]).collect();
        assert_eq!(order, [4, 3, 1, 5]);
        assert_eq!((inbox.drain(1).len(), inbox.dropped()), (0, 0));
    }

    #[test]
    fn too_many_parts_are_dropped_and_counted() {
        let mut waiting = Waiting::default();
        for n in 0..3 {
            waiting.push(Message {
                topic: format!("t{n}"),
                payload: vec![0; MAX_PART_BYTES / 2],
                arrived: Timestamp(0),
            });
        }
        assert_eq!((waiting.parts.len(), waiting.dropped), (2, 1));
        waiting.pop();
        assert_eq!(waiting.part_bytes, MAX_PART_BYTES / 2);
    }
}
