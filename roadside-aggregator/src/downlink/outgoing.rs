//! What is to be published, and what should stand retained at the broker.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Messages that wait at most; beyond them the oldest receipt or word is dropped, and vehicles ask again.
const MAX_WAITING: usize = 65_536;
/// Topics that are known to be cleared, and cleared again at a broker that may have missed it.
const MAX_CLEARED: usize = 4096;
/// Bytes of a publish packet beside topic and payload.
const PACKET_HEAD: usize = 16;

#[derive(Debug)]
enum Item {
    /// The retained message with this number, if it still is the newest on its topic.
    Retained(String, u64),
    Once(String, Vec<u8>),
}

#[derive(Debug, Default)]
struct State {
    /// As it should stand: number and payload by topic; an empty payload clears.
    retained: BTreeMap<String, (u64, Vec<u8>)>,
    cleared: usize,
    next: u64,
    queue: VecDeque<Item>,
    dropped: u64,
}

/// Takes messages without waiting; clones share one queue.
#[derive(Clone, Debug)]
pub struct Outgoing {
    max_packet_bytes: usize,
    state: Arc<Mutex<State>>,
    news: Arc<Notify>,
}

impl Outgoing {
    /// Nothing yet. Messages that do not fit into a packet are refused here, where the link does not suffer.
    pub fn new(max_packet_bytes: usize) -> Self {
        Self {
            max_packet_bytes,
            state: Arc::default(),
            news: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a message; never waits.
    pub fn publish(&self, topic: String, payload: Vec<u8>, retain: bool) {
        let bytes = topic.len() + payload.len() + PACKET_HEAD;
        if bytes > self.max_packet_bytes {
            let limit = self.max_packet_bytes;
            tracing::error!(
                topic,
                bytes,
                limit,
                "message does not fit into a packet and is not sent"
            );
            return;
        }
        self.lock().push(topic, payload, retain);
        self.news.notify_one();
    }

    /// A new session begins: the broker may have forgotten everything, so all retained messages go first.
    pub(super) fn begin_session(&self) {
        let mut state = self.lock();
        let mut standing: Vec<(u64, String)> = state
            .retained
            .iter()
            .map(|(topic, (number, _))| (*number, topic.clone()))
            .collect();
        standing.sort();
        state.queue.retain(|item| matches!(item, Item::Once(..)));
        for (number, topic) in standing.into_iter().rev() {
            state.queue.push_front(Item::Retained(topic, number));
        }
        drop(state);
        self.news.notify_one();
    }

    /// The next message: topic, payload, retain.
    pub(super) async fn next(&self) -> (String, Vec<u8>, bool) {
        loop {
            let news = self.news.notified();
            if let Some(message) = self.lock().pop() {
                return message;
            }
            news.await;
        }
    }

    /// Messages dropped since the start because there was no room.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }
}

impl State {
    fn push(&mut self, topic: String, payload: Vec<u8>, retain: bool) {
        if retain {
            let number = self.next;
            self.next += 1;
            if payload.is_empty() {
                self.cleared += 1;
                if self.cleared > MAX_CLEARED {
                    self.retained.retain(|_, (_, payload)| !payload.is_empty());
                    self.cleared = 1;
                }
            }
            self.retained.insert(topic.clone(), (number, payload));
            self.queue.push_back(Item::Retained(topic, number));
        } else {
            self.queue.push_back(Item::Once(topic, payload));
        }
        if self.queue.len() > MAX_WAITING {
            let oldest = self
                .queue
                .iter()
                .position(|item| matches!(item, Item::Once(..)));
            if oldest.and_then(|at| self.queue.remove(at)).is_some() {
                self.dropped += 1;
            }
        }
    }

    fn pop(&mut self) -> Option<(String, Vec<u8>, bool)> {
        while let Some(item) = self.queue.pop_front() {
            match item {
                Item::Once(topic, payload) => return Some((topic, payload, false)),
                Item::Retained(topic, number) => match self.retained.get(&topic) {
                    Some((newest, payload)) if *newest == number => {
                        let payload = payload.clone();
                        return Some((topic, payload, true));
                    }
                    _ => {}
                },
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(outgoing: &Outgoing) -> Vec<(String, Vec<u8>, bool)> {
        let mut state = outgoing.lock();
        std::iter::from_fn(|| state.pop()).collect()
    }

    #[test]
    fn retained_messages_go_again_in_order_and_only_the_newest() {
        let outgoing = Outgoing::new(1000);
        let publish = |topic: &str, payload: &str, retain| {
            outgoing.publish(topic.into(), payload.into(), retain);
        };
        publish("z/model", "m", true);
        publish("a/round", "1", true);
        publish("receipt", "r", false);
        publish("a/round", "2", true);
        let texts = |messages: Vec<(String, Vec<u8>, bool)>| -> Vec<String> {
            let messages = messages.iter();
            messages
                .map(|(topic, payload, _)| format!("{topic}={}", String::from_utf8_lossy(payload)))
                .collect()
        };
        assert_eq!(
            texts(all(&outgoing)),
            ["z/model=m", "receipt=r", "a/round=2"]
        );
        publish("receipt", "s", false);
        publish("z/model", "", true);
        outgoing.begin_session();
        assert_eq!(
            texts(all(&outgoing)),
            ["a/round=2", "z/model=", "receipt=s"]
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_and_what_is_too_much_is_dropped() {
        let outgoing = Outgoing::new(30);
        outgoing.publish("t".into(), vec![0; 14], false);
        assert!(all(&outgoing).is_empty());
        outgoing.publish("keep".into(), vec![1], true);
        for n in 0..=MAX_WAITING {
            outgoing.publish("t".into(), n.to_le_bytes().to_vec(), false);
        }
        assert_eq!(outgoing.dropped(), 2);
        assert_eq!(all(&outgoing)[0].0, "keep");
    }
}
