//! Machine and store together: what arrived is handled as a batch, made durable with one flush, and only then shown.

use tokio::time::Instant;
use wayside_domain::time::Timestamp;
use wayside_proto::codec;
use wayside_proto::topics::Topic;

use crate::aggregate::{self, Order};
use crate::event::Event;
use crate::region::Effect;
use crate::store::{Store, StoreError, Write};
use crate::unit::{Input, Settings, Unit};

/// A tick may lead to the next one: a close to a contribution, a pause to a close. More than this is a mistake.
const MOST_TICKS: usize = 8;

/// Something that arrived, and when.
pub type Arrived = (Timestamp, Input);

/// The world of an engine: the time, and whom it shows what is durable. Links and a wall clock in a process, a queue of
/// events in a simulation.
pub trait Outside {
    /// The time.
    fn now(&self) -> Timestamp;
    /// A message for vehicles.
    fn publish(&mut self, topic: Topic, payload: Vec<u8>, retain: bool);
    /// Something that happened.
    fn tell(&mut self, event: Event);
    /// The unit after a turn: what it may want of the cloud ([`Unit::wanted_models`], [`Unit::pending`]).
    fn turned(&mut self, unit: &Unit);
}

/// Machine and store. Its methods block on the disk.
pub struct Engine<O> {
    unit: Unit,
    store: Box<dyn Store>,
    outside: O,
    threads: usize,
}

impl<O> std::fmt::Debug for Engine<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("unit", &self.unit)
            .finish_non_exhaustive()
    }
}

impl<O: Outside> Engine<O> {
    /// Goes on where the store ends. The generation in `settings` is replaced by a newer one than the stored one.
    /// `threads` run a round's rule.
    ///
    /// # Errors
    /// [`StoreError`] if the state cannot be read or written.
    pub fn start(
        mut settings: Settings,
        mut store: Box<dyn Store>,
        outside: O,
        threads: usize,
    ) -> Result<Self, StoreError> {
        let (now, stored) = (outside.now(), store.load()?);
        settings.site.generation.0 = now.0.max(stored.generation.next().0);
        let (unit, effects) = Unit::new(
            settings,
            now,
            stored,
            &|digest| store.model(digest),
            &|job, key| store.frame(job, key),
        );
        let mut engine = Self {
            unit,
            store,
            outside,
            threads,
        };
        engine.store.keep_models(&engine.unit.models());
        engine.apply(effects)?;
        engine.turn(Vec::new())?;
        Ok(engine)
    }

    /// The machine.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Its world.
    pub fn outside(&mut self) -> &mut O {
        &mut self.outside
    }

    /// Handles what arrived and what the time asks for; when it returns, everything shown is durable.
    ///
    /// # Errors
    /// [`StoreError`] if something cannot be made durable; the engine is of no use then.
    pub fn turn(&mut self, arrived: Vec<Arrived>) -> Result<(), StoreError> {
        let mut effects = Vec::new();
        for (at, input) in arrived {
            effects.extend(self.unit.handle(at, input));
        }
        self.apply(effects)?;
        for _ in 0..MOST_TICKS {
            self.local_models()?;
            let effects = self.unit.on_tick(self.outside.now());
            if effects.is_empty() {
                break;
            }
            self.apply(effects)?;
        }
        self.outside.turned(&self.unit);
        Ok(())
    }

    /// When to call [`Engine::turn`] if nothing arrives.
    pub fn next_deadline(&self) -> Timestamp {
        self.unit.next_deadline(self.outside.now())
    }

    /// Tells what was not told yet, before the end.
    ///
    /// # Errors
    /// As [`Engine::turn`].
    pub fn finish(&mut self) -> Result<(), StoreError> {
        let effects = self.unit.tell_traffic();
        self.apply(effects)
    }

    /// Does what the effects say; answers go out before a rule runs, which may take a while.
    fn apply(&mut self, effects: Vec<Effect>) -> Result<(), StoreError> {
        let mut orders = self.apply_once(effects)?;
        let answers = self.unit.on_flushed(self.outside.now());
        orders.extend(self.apply_once(answers)?);
        for order in orders {
            let began = Instant::now();
            let result = aggregate::run(&order, self.store.as_ref(), self.threads);
            tracing::debug!(
                job = %order.job, round = %order.round, rule = %order.rule.name, updates = order.members.len(),
                ms = began.elapsed().as_millis(), "rule has run"
            );
            let now = self.outside.now();
            let effects = self
                .unit
                .on_aggregated(now, &order.job, order.round, result);
            self.apply(effects)?;
        }
        Ok(())
    }

    /// Makes durable, then visible; gives back the rules that are to run.
    fn apply_once(&mut self, effects: Vec<Effect>) -> Result<Vec<Order>, StoreError> {
        let (mut writes, mut shows, mut orders) = (Vec::new(), Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::Write(write) => writes.push(write),
                Effect::Aggregate(order) => orders.push(*order),
                show => shows.push(show),
            }
        }
        let models = writes.iter().any(|write| matches!(write, Write::Model(..)));
        self.store.commit(writes)?;
        for show in shows {
            match show {
                Effect::Publish {
                    topic,
                    payload,
                    retain,
                } => self.outside.publish(topic, payload, retain),
                Effect::Tell(event) => self.outside.tell(event),
                Effect::Write(_) | Effect::Aggregate(_) => {}
            }
        }
        if models {
            self.store.keep_models(&self.unit.models());
        }
        Ok(orders)
    }

    /// A model that the disk has, such as the one before a rollback, need not be fetched.
    fn local_models(&mut self) -> Result<(), StoreError> {
        for (_, digest, _) in self.unit.wanted_models() {
            let frame = self.store.model(digest);
            if let Some(frame) = frame.filter(|frame| codec::digest(frame) == digest) {
                let effects = self
                    .unit
                    .handle(self.outside.now(), Input::Model { digest, frame });
                self.apply(effects)?;
            }
        }
        Ok(())
    }
}
