//! Which roadside units there are and which are connected.
//!
//! Invariants: a unit has at most one live connection; a connection that was replaced cannot mark its unit as lost; the
//! number of units is bounded.

use std::collections::BTreeMap;

use crate::federation::Member;
use crate::store::RoadsideRecord;
use wayside_domain::ids::{Generation, RoadsideId};
use wayside_domain::time::Timestamp;

/// Names one watch stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId(u64);

/// Why a unit may not connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    /// As many units as allowed are known.
    #[error(
        "{limit} roadside units are registered, more are not allowed: raise limits.max_roadsides"
    )]
    Full {
        /// The limit.
        limit: usize,
    },
    /// A later start of the same unit is connected.
    #[error("a later start of this roadside unit is connected: two units may not share a name")]
    Older,
}

#[derive(Clone, Debug)]
struct Known {
    last_seen: Timestamp,
    software: String,
    live: Option<(ConnectionId, Generation)>,
}

/// All roadside units ever seen.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    limit: usize,
    known: BTreeMap<RoadsideId, Known>,
    connections: u64,
}

impl Registry {
    /// The units of an earlier run, none connected; records with impossible names are passed over.
    pub(crate) fn restore(limit: usize, records: Vec<RoadsideRecord>) -> Self {
        let known = records.into_iter().filter_map(|record| {
            let known = Known {
                last_seen: Timestamp(record.last_seen_ms),
                software: record.software,
                live: None,
            };
            Some((RoadsideId::new(record.roadside).ok()?, known))
        });
        Self {
            limit,
            known: known.collect(),
            connections: 0,
        }
    }

    /// A unit says hello. Its earlier connection, if one is live, is replaced.
    ///
    /// # Errors
    /// [`ConnectError`]; then nothing has changed.
    pub(crate) fn connect(
        &mut self,
        now: Timestamp,
        roadside: &RoadsideId,
        generation: Generation,
        software: String,
    ) -> Result<ConnectionId, ConnectError> {
        match self.known.get(roadside) {
            None if self.known.len() >= self.limit => {
                return Err(ConnectError::Full { limit: self.limit });
            }
            Some(Known {
                live: Some((_, live)),
                ..
            }) if generation < *live => {
                return Err(ConnectError::Older);
            }
            _ => {}
        }
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let known = Known {
            last_seen: now,
            software,
            live: Some((connection, generation)),
        };
        self.known.insert(roadside.clone(), known);
        Ok(connection)
    }

    /// A connection ended. True if it was the unit's live one, so that the unit is lost now.
    pub(crate) fn disconnect(
        &mut self,
        now: Timestamp,
        roadside: &RoadsideId,
        connection: ConnectionId,
    ) -> bool {
        match self.known.get_mut(roadside) {
            Some(known) if known.live.is_some_and(|(live, _)| live == connection) => {
                known.live = None;
                known.last_seen = now;
                true
            }
            _ => false,
        }
    }

    /// Whether a connection is still its unit's live one.
    pub(crate) fn is_live(&self, roadside: &RoadsideId, connection: ConnectionId) -> bool {
        let known = self.known.get(roadside);
        known.is_some_and(|known| known.live.is_some_and(|(live, _)| live == connection))
    }

    /// The units as a job sees them.
    pub(crate) fn members(&self) -> BTreeMap<RoadsideId, Member> {
        let member = |known: &Known| Member {
            connected: known.live.is_some(),
            last_seen: known.last_seen,
        };
        self.known
            .iter()
            .map(|(id, known)| (id.clone(), member(known)))
            .collect()
    }

    /// A unit as it is kept.
    pub(crate) fn record(&self, roadside: &RoadsideId) -> Option<RoadsideRecord> {
        let known = self.known.get(roadside)?;
        Some(RoadsideRecord {
            roadside: roadside.to_string(),
            last_seen_ms: known.last_seen.0,
            software: known.software.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_connection_does_not_lose_its_unit() {
        let mut registry = Registry::restore(2, Vec::new());
        let a = RoadsideId::new("a").unwrap();
        let connect = |registry: &mut Registry, id: &RoadsideId, generation| {
            registry.connect(Timestamp(1), id, Generation(generation), "1".into())
        };
        let first = connect(&mut registry, &a, 5).unwrap();
        assert_eq!(connect(&mut registry, &a, 4), Err(ConnectError::Older));
        let second = connect(&mut registry, &a, 5).unwrap();
        assert!(!registry.is_live(&a, first) && registry.is_live(&a, second));
        assert!(!registry.disconnect(Timestamp(2), &a, first));
        assert!(registry.members()[&a].connected);
        assert!(registry.disconnect(Timestamp(3), &a, second));
        assert_eq!(
            registry.members()[&a],
            Member {
                connected: false,
                last_seen: Timestamp(3)
            }
        );
        connect(&mut registry, &a, 1).expect("an earlier generation once the later one is gone");
        connect(&mut registry, &RoadsideId::new("b").unwrap(), 1).unwrap();
        let full = connect(&mut registry, &RoadsideId::new("c").unwrap(), 1);
        assert_eq!(full, Err(ConnectError::Full { limit: 2 }));
    }

    #[test]
    fn an_earlier_run_is_remembered() {
        let mut registry = Registry::restore(9, Vec::new());
        let a = RoadsideId::new("a").unwrap();
        registry
            .connect(Timestamp(7), &a, Generation(1), "0.1.0".into())
            .unwrap();
        let record = registry.record(&a).unwrap();
        let again = Registry::restore(9, vec![record]);
        assert_eq!(
            again.members()[&a],
            Member {
                connected: false,
                last_seen: Timestamp(7)
            }
        );
    }
}
