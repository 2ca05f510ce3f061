//! What became of each update lately, so that the same update gets the same answer however often it comes.
//!
//! Bounded by round age: an id is forgotten once its round is `keep_rounds` behind; such an update is stale anyway.

use crate::ids::{RoundId, UpdateId};
use crate::update::Verdict;
use std::collections::BTreeMap;

/// The book of verdicts of one job at one unit.
#[derive(Clone, Debug)]
pub struct ReceiptBook {
    keep_rounds: u64,
    max_entries: usize,
    by_id: BTreeMap<UpdateId, (RoundId, Verdict)>,
    by_round: BTreeMap<RoundId, Vec<UpdateId>>,
}

impl ReceiptBook {
    /// Keeps verdicts of the last `keep_rounds` rounds, `max_entries` at most.
    pub fn new(keep_rounds: u64, max_entries: usize) -> Self {
        Self {
            keep_rounds,
            max_entries,
            by_id: BTreeMap::new(),
            by_round: BTreeMap::new(),
        }
    }

    /// The verdict that was given; `None` for an update not seen, or long ago.
    pub fn find(&self, update_id: UpdateId) -> Option<Verdict> {
        self.by_id.get(&update_id).map(|(_, verdict)| *verdict)
    }

    /// Writes a verdict down; the first one for an id stands. Returns ids that are forgotten now.
    pub fn record(
        &mut self,
        round: RoundId,
        update_id: UpdateId,
        verdict: Verdict,
    ) -> Vec<UpdateId> {
        if let std::collections::btree_map::Entry::Vacant(place) = self.by_id.entry(update_id) {
            place.insert((round, verdict));
            self.by_round.entry(round).or_default().push(update_id);
        }
        let newest = self
            .by_round
            .last_key_value()
            .map_or(0, |(round, _)| round.0);
        let mut forgotten = Vec::new();
        while let Some(oldest) = self.by_round.first_entry() {
            let too_old = oldest.key().0 + self.keep_rounds < newest;
            let too_many = self.by_id.len() > self.max_entries && oldest.key().0 < newest;
            if !too_old && !too_many {
                break;
            }
            for id in oldest.remove() {
                self.by_id.remove(&id);
                forgotten.push(id);
            }
        }
        forgotten
    }

    /// Verdicts kept.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// No verdict is kept.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update::RejectReason;

    #[test]
    fn the_first_verdict_stands_and_old_rounds_are_forgotten() {
        let mut book = ReceiptBook::new(2, 100);
        let id = |n: u8| UpdateId([n; 16]);
        book.record(RoundId(1), id(1), Verdict::Accepted);
        book.record(
            RoundId(1),
            id(1),
            Verdict::Rejected(RejectReason::NotFinite),
        );
        assert_eq!(book.find(id(1)), Some(Verdict::Accepted));
        assert!(book.record(RoundId(3), id(3), Verdict::Stale).is_empty());
        assert_eq!(book.record(RoundId(4), id(4), Verdict::Accepted), [id(1)]);
        assert_eq!(book.find(id(1)), None);
        assert_eq!(book.len(), 2);
    }
}
