//! Who is there, by heartbeats. Time is the receiver's own; what a sender says about the time is never used.
//!
//! Invariants: a member is lost only after `misses` intervals without a sign of life; an older generation never
//! changes anything; a lost member is revived by its next heartbeat; each change is reported once.

use crate::ids::Generation;
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a heartbeat or a presence message leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Known and there.
    Alive,
    /// Known, was lost or offline, and is back.
    Revived,
    /// Not known: ask it to register.
    Unknown,
    /// From an earlier connection of the same member; ignored.
    Outdated,
}

#[derive(Clone, Copy, Debug)]
struct Presence {
    generation: Generation,
    last_seen: Timestamp,
    online: bool,
}

const NEVER: Timestamp = Timestamp(u64::MAX);

/// The presence of all members of one unit.
#[derive(Clone, Debug)]
pub struct Liveness<M> {
    patience: Duration,
    members: BTreeMap<M, Presence>,
    /// No member is lost before this time. Signs of life only ever move a loss to later, so it is enough to look at all
    /// members once this time has come.
    none_before: Timestamp,
}

impl<M: Ord + Clone> Liveness<M> {
    /// A member is lost after `misses` heartbeats of `interval` did not come.
    pub fn new(interval: Duration, misses: u32) -> Self {
        Self {
            patience: interval.saturating_mul(misses.max(1)),
            members: BTreeMap::new(),
            none_before: NEVER,
        }
    }

    /// A member registers; `Outdated` if a later generation of it is already here.
    pub fn register(&mut self, now: Timestamp, member: M, generation: Generation) -> Seen {
        let known = self.members.get(&member).copied();
        if known.is_some_and(|known| known.generation > generation) {
            return Seen::Outdated;
        }
        self.members.insert(
            member,
            Presence {
                generation,
                last_seen: now,
                online: true,
            },
        );
        self.none_before = self.none_before.min(now + self.patience);
        if known.is_some_and(|known| known.online) {
            Seen::Alive
        } else {
            Seen::Revived
        }
    }

    /// A heartbeat arrived.
    pub fn heartbeat(&mut self, now: Timestamp, member: &M, generation: Generation) -> Seen {
        let Some(known) = self.members.get_mut(member) else {
            return Seen::Unknown;
        };
        if generation < known.generation {
            return Seen::Outdated;
        }
        if generation > known.generation {
            return Seen::Unknown; // it was started anew and must say what it now is
        }
        known.last_seen = now;
        self.none_before = self.none_before.min(now + self.patience);
        let was_online = std::mem::replace(&mut known.online, true);
        if was_online {
            Seen::Alive
        } else {
            Seen::Revived
        }
    }

    /// The member's link said goodbye (its last will); an old connection's will does not hurt a new one.
    pub fn offline(&mut self, member: &M, generation: Generation) -> Seen {
        match self.members.get_mut(member) {
            None => Seen::Unknown,
            Some(known) if known.generation != generation => Seen::Outdated,
            Some(known) => {
                known.online = false;
                Seen::Alive
            }
        }
    }

    /// When [`Liveness::on_tick`] is next worth calling: a member may be lost then, none is before. Costs the same
    /// whatever the number of members.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        (self.none_before < NEVER).then_some(self.none_before)
    }

    /// Members that are lost as of now, each reported once.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<M> {
        let mut lost = Vec::new();
        if now < self.none_before {
            return lost;
        }
        self.none_before = NEVER;
        for (member, known) in self.members.iter_mut().filter(|(_, known)| known.online) {
            let due = known.last_seen + self.patience;
            if now >= due {
                known.online = false;
                lost.push(member.clone());
            } else {
                self.none_before = self.none_before.min(due);
            }
        }
        lost
    }

    /// Whether the member is known, and there.
    pub fn is_online(&self, member: &M) -> bool {
        self.members.get(member).is_some_and(|known| known.online)
    }

    /// All members that are there, in order.
    pub fn online(&self) -> impl Iterator<Item = &M> {
        self.members
            .iter()
            .filter(|(_, known)| known.online)
            .map(|(member, _)| member)
    }

    /// Forgets members that have been silent since before `limit`; returns them.
    pub fn forget_silent_since(&mut self, limit: Timestamp) -> Vec<M> {
        let gone: Vec<M> = self
            .members
            .iter()
            .filter(|(_, known)| !known.online && known.last_seen < limit)
            .map(|(member, _)| member.clone())
            .collect();
        for member in &gone {
            self.members.remove(member);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);
    const G1: Generation = Generation(1);
    const G2: Generation = Generation(2);

    #[test]
    fn lost_after_three_missed_and_revived_by_the_next() {
        let mut fleet = Liveness::new(30 * SECOND, 3);
        assert_eq!(fleet.heartbeat(Timestamp(0), &"v1", G1), Seen::Unknown);
        assert_eq!(fleet.register(Timestamp(0), "v1", G1), Seen::Revived);
        assert_eq!(fleet.next_deadline(), Some(Timestamp(90_000)));
        assert!(fleet.on_tick(Timestamp(89_999)).is_empty());
        assert_eq!(fleet.on_tick(Timestamp(90_000)), ["v1"]);
        assert!(fleet.on_tick(Timestamp(95_000)).is_empty(), "reported once");
        assert_eq!(fleet.heartbeat(Timestamp(96_000), &"v1", G1), Seen::Revived);
        assert!(fleet.is_online(&"v1"));
    }

    #[test]
    fn a_late_last_will_of_the_old_connection_is_ignored() {
        let mut fleet = Liveness::new(SECOND, 3);
        fleet.register(Timestamp(0), "v1", G1);
        fleet.register(Timestamp(10), "v1", G2);
        assert_eq!(fleet.offline(&"v1", G1), Seen::Outdated);
        assert_eq!(fleet.register(Timestamp(20), "v1", G1), Seen::Outdated);
        assert!(fleet.is_online(&"v1"));
        assert_eq!(fleet.offline(&"v1", G2), Seen::Alive);
        assert!(!fleet.is_online(&"v1"));
    }

    #[test]
    fn a_new_start_must_register_before_its_heartbeats_count() {
        let mut fleet = Liveness::new(SECOND, 3);
        fleet.register(Timestamp(0), "v1", G1);
        assert_eq!(fleet.heartbeat(Timestamp(10), &"v1", G2), Seen::Unknown);
    }

    proptest! {
        /// The bound that saves looking at everybody changes nothing: members are lost when each of them is due.
        #[test]
        fn the_bound_hides_nobody(
            beats in proptest::collection::vec((0u64..60, 0u8..5, 0u8..8), 1..80),
        ) {
            let mut fleet = Liveness::new(Duration::from_millis(30), 3);
            let mut last = BTreeMap::new();
            let mut now = Timestamp(0);
            for (gap, member, what) in beats {
                now.0 += gap;
                let due: Vec<u8> = (last.iter())
                    .filter(|(_, seen)| now.0 >= *seen + 90)
                    .map(|(member, _)| *member)
                    .collect();
                if let Some(first) = last.values().min() {
                    prop_assert!(fleet.next_deadline().is_some_and(|at| at.0 <= *first + 90));
                }
                prop_assert_eq!(fleet.on_tick(now), due.clone());
                last.retain(|member, _| !due.contains(member));
                match what {
                    0 => {
                        fleet.offline(&member, G1);
                        last.remove(&member);
                    }
                    1..4 => {
                        fleet.register(now, member, G1);
                        last.insert(member, now.0);
                    }
                    _ => if fleet.heartbeat(now, &member, G1) != Seen::Unknown {
                        last.insert(member, now.0);
                    },
                }
            }
        }

        /// Never lost while heartbeats come within the patience; always lost once they have stopped for it.
        #[test]
        fn lost_exactly_when_silent(gaps in proptest::collection::vec(1u64..200, 1..50)) {
            let mut fleet = Liveness::new(Duration::from_millis(40), 3);
            let mut now = Timestamp(0);
            fleet.register(now, 0u8, G1);
            for gap in gaps {
                let then = Timestamp(now.0 + gap);
                prop_assert_eq!(fleet.on_tick(then).len(), usize::from(gap >= 120));
                fleet.heartbeat(then, &0, G1);
                prop_assert!(fleet.is_online(&0));
                now = then;
            }
        }
    }
}
