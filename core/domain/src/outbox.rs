//! Updates on a vehicle that have no receipt yet.
//!
//! An update leaves the outbox only on a receipt that names it, or when it is too old to count anywhere; until then it
//! is sent again with the same id. The order is: look ([`Outbox::next_to_send`]), send, confirm ([`Outbox::sent`]),
//! and only on the receipt remove. The values lie in files; here are the records.
//!
//! Invariants: nothing is removed without a receipt or an eviction that the caller is told of; no more entries than
//! the limit; an entry is not sent twice within its waiting time unless the link came up anew.

use crate::ids::{JobId, RoadsideId, RoundId, UpdateId};
use crate::time::Timestamp;
use std::time::Duration;

/// One sealed update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Its identity.
    pub update_id: UpdateId,
    /// The job it belongs to.
    pub job: JobId,
    /// The only roadside unit where it counts.
    pub roadside: RoadsideId,
    /// The only round in which it counts.
    pub round: RoundId,
    /// When it was sealed.
    pub sealed: Timestamp,
}

#[derive(Clone, Debug)]
struct Waiting {
    entry: OutboxEntry,
    due: Timestamp,
    tries: u32,
}

/// What an outbox may hold and how patient it is.
#[derive(Clone, Copy, Debug)]
pub struct OutboxLimits {
    /// Most entries; the oldest one makes room.
    pub max_entries: usize,
    /// First wait for a receipt; doubles with each try up to 16 times.
    pub resend_after: Duration,
    /// Older entries are given up.
    pub max_age: Duration,
}

/// The outbox; see the module's text.
#[derive(Clone, Debug)]
pub struct Outbox {
    limits: OutboxLimits,
    waiting: Vec<Waiting>,
}

impl Outbox {
    /// An outbox with the entries that were stored, all due at once.
    pub fn restore(limits: OutboxLimits, entries: impl IntoIterator<Item = OutboxEntry>) -> Self {
        let mut waiting: Vec<_> = entries
            .into_iter()
            .map(|entry| Waiting {
                entry,
                due: Timestamp(0),
                tries: 0,
            })
            .collect();
        waiting.sort_by_key(|w| w.entry.sealed);
        Self { limits, waiting }
    }

    /// Takes in a sealed update that is durable already; returns what had to make room, to be deleted.
    pub fn push(&mut self, entry: OutboxEntry) -> Vec<OutboxEntry> {
        self.waiting
            .retain(|w| w.entry.update_id != entry.update_id);
        self.waiting.push(Waiting {
            entry,
            due: Timestamp(0),
            tries: 0,
        });
        let over = self
            .waiting
            .len()
            .saturating_sub(self.limits.max_entries.max(1));
        self.waiting.drain(..over).map(|w| w.entry).collect()
    }

    /// The oldest entry for this roadside unit that is due. It stays where it is.
    pub fn next_to_send(&self, now: Timestamp, roadside: &RoadsideId) -> Option<&OutboxEntry> {
        self.waiting
            .iter()
            .find(|w| w.due <= now && w.entry.roadside == *roadside)
            .map(|w| &w.entry)
    }

    /// The entry was handed to the link; it is due again if no receipt comes.
    pub fn sent(&mut self, now: Timestamp, update_id: UpdateId) {
        let limits = self.limits;
        if let Some(w) = self
            .waiting
            .iter_mut()
            .find(|w| w.entry.update_id == update_id)
        {
            w.due = now + limits.resend_after.saturating_mul(1 << w.tries.min(4));
            w.tries = w.tries.saturating_add(1);
        }
    }

    /// A receipt named this update, whatever its verdict: nothing is gained by sending it again. Returns the entry to
    /// delete; `None` if it is not here (an old receipt).
    pub fn on_receipt(&mut self, update_id: UpdateId) -> Option<OutboxEntry> {
        let at = self
            .waiting
            .iter()
            .position(|w| w.entry.update_id == update_id)?;
        Some(self.waiting.remove(at).entry)
    }

    /// The link is up anew, or the roadside unit announced itself: everything is due.
    pub fn on_link_up(&mut self) {
        for w in &mut self.waiting {
            w.due = Timestamp(0);
            w.tries = 0;
        }
    }

    /// Gives up what is too old; returns it, to be deleted.
    pub fn expire(&mut self, now: Timestamp) -> Vec<OutboxEntry> {
        let oldest = now - self.limits.max_age;
        let (gone, kept) = self
            .waiting
            .drain(..)
            .partition(|w| w.entry.sealed < oldest);
        self.waiting = kept;
        let gone: Vec<Waiting> = gone;
        gone.into_iter().map(|w| w.entry).collect()
    }

    /// When the next entry for this roadside unit is due.
    pub fn next_deadline(&self, roadside: &RoadsideId) -> Option<Timestamp> {
        self.waiting
            .iter()
            .filter(|w| w.entry.roadside == *roadside)
            .map(|w| w.due)
            .min()
    }

    /// The entry with this id.
    pub fn get(&self, update_id: UpdateId) -> Option<&OutboxEntry> {
        self.waiting
            .iter()
            .map(|w| &w.entry)
            .find(|entry| entry.update_id == update_id)
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &OutboxEntry> {
        self.waiting.iter().map(|w| &w.entry)
    }

    /// Entries waiting for a receipt.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outbox() -> Outbox {
        let limits = OutboxLimits {
            max_entries: 4,
            resend_after: Duration::from_millis(100),
            max_age: Duration::from_secs(10),
        };
        Outbox::restore(limits, [])
    }

    fn rsu() -> RoadsideId {
        RoadsideId::new("rsu").expect("an id")
    }

    fn entry(n: u8, sealed: u64) -> OutboxEntry {
        OutboxEntry {
            update_id: UpdateId([n; 16]),
            job: JobId::new("job").expect("an id"),
            roadside: rsu(),
            round: RoundId(u64::from(n)),
            sealed: Timestamp(sealed),
        }
    }

    #[test]
    fn an_update_stays_until_its_receipt_and_is_sent_again_with_growing_patience() {
        let mut outbox = outbox();
        outbox.push(entry(1, 0));
        let id = UpdateId([1; 16]);
        for (now, due_after) in [(0, 100), (100, 200), (300, 400)] {
            assert_eq!(
                outbox
                    .next_to_send(Timestamp(now), &rsu())
                    .map(|e| e.update_id),
                Some(id)
            );
            outbox.sent(Timestamp(now), id);
            assert_eq!(
                outbox.next_to_send(Timestamp(now + due_after - 1), &rsu()),
                None
            );
            assert_eq!(
                outbox.next_deadline(&rsu()),
                Some(Timestamp(now + due_after))
            );
        }
        outbox.on_link_up();
        assert!(outbox.next_to_send(Timestamp(301), &rsu()).is_some());
        assert_eq!(outbox.on_receipt(UpdateId([9; 16])), None);
        assert_eq!(outbox.on_receipt(id), Some(entry(1, 0)));
        assert_eq!(outbox.on_receipt(id), None);
        assert!(outbox.is_empty());
    }

    #[test]
    fn an_update_for_another_unit_waits_for_that_unit() {
        let mut outbox = outbox();
        outbox.push(entry(1, 0));
        let other = RoadsideId::new("other").expect("an id");
        assert_eq!(outbox.next_to_send(Timestamp(0), &other), None);
        assert_eq!(outbox.next_deadline(&other), None);
    }

    proptest! {
        /// Every entry that went in is still there, or came out by receipt, eviction or age; never two ways.
        #[test]
        fn nothing_is_lost_in_silence(steps in proptest::collection::vec((0u8..4, 0u8..10), 0..80)) {
            let mut outbox = outbox();
            let (mut inside, mut now) = (std::collections::BTreeSet::new(), 0u64);
            for (step, n) in steps {
                now += 700;
                let gone: Vec<OutboxEntry> = match step {
                    0 => { inside.insert(n); outbox.push(entry(n, now)) }
                    1 => outbox.on_receipt(UpdateId([n; 16])).into_iter().collect(),
                    2 => outbox.expire(Timestamp(now)),
                    _ => { outbox.sent(Timestamp(now), UpdateId([n; 16])); vec![] }
                };
                for entry in gone {
                    prop_assert!(inside.remove(&entry.update_id.0[0]));
                }
                prop_assert_eq!(outbox.len(), inside.len());
                prop_assert!(outbox.len() <= 4);
            }
        }
    }
}
