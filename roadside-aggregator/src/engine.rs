//! Machine and store together: what arrived is handled as a batch, made durable with one flush, and only then shown.

use tokio::sync::watch;
use tokio::time::Instant;
use wayside_domain::time::Timestamp;
use wayside_host::clock::Clock;
use wayside_proto::codec;

use crate::aggregate::{self, Order};
use crate::downlink::Outgoing;
use crate::event::Observer;
use crate::region::Effect;
use crate::store::{Store, StoreError, Write};
use crate::unit::{Input, Settings, Unit};
use crate::uplink::Wanted;

/// A tick may lead to the next one: a close to a contribution, a pause to a close. More than this is a mistake.
const MOST_TICKS: usize = 8;

/// Something that arrived, and when.
pub type Arrived = (Timestamp, Input);

/// Machine and store. Its methods block on the disk.
pub struct Engine {
    unit: Unit,
    store: Box<dyn Store>,
    clock: Clock,
    outgoing: Outgoing,
    observer: Observer,
    wanted: watch::Sender<Wanted>,
    threads: usize,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("unit", &self.unit)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Goes on where the store ends. The generation in `settings` is replaced by a newer one than the stored one.
    pub fn start(
        mut settings: Settings,
        mut store: Box<dyn Store>,
        clock: Clock,
        outgoing: Outgoing,
        observer: Observer,
        wanted: watch::Sender<Wanted>,
    ) -> Result<Self, StoreError> {
        let (now, stored) = (clock.now(), store.load()?);
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
            clock,
            outgoing,
            observer,
            wanted,
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        };
        engine.store.keep_models(&engine.unit.models());
        engine.apply(effects)?;
        engine.turn(Vec::new())?;
        Ok(engine)
    }

    /// Handles what arrived and what the time asks for; when it returns, everything shown is durable.
    pub fn turn(&mut self, arrived: Vec<Arrived>) -> Result<(), StoreError> {
        let mut effects = Vec::new();
        for (at, input) in arrived {
            effects.extend(self.unit.handle(at, input));
        }
        self.apply(effects)?;
        for _ in 0..MOST_TICKS {
            self.local_models()?;
            let effects = self.unit.on_tick(self.clock.now());
            if effects.is_empty() {
                break;
            }
            self.apply(effects)?;
        }
        self.update_wanted();
        Ok(())
    }

    /// When to call [`Engine::turn`] if nothing arrives.
    pub fn next_deadline(&self) -> Timestamp {
        self.unit.next_deadline(self.clock.now())
    }

    /// Messages dropped since the start because there was no room.
    pub fn dropped(&self) -> u64 {
        self.outgoing.dropped() + self.unit.turned_away()
    }

    /// Tells what was not told yet, before the end.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        let effects = self.unit.tell_traffic();
        self.apply(effects)
    }

    /// Does what the effects say; answers go out before a rule runs, which may take a while.
    fn apply(&mut self, effects: Vec<Effect>) -> Result<(), StoreError> {
        let mut orders = self.apply_once(effects)?;
        let answers = self.unit.on_flushed(self.clock.now());
        orders.extend(self.apply_once(answers)?);
        for order in orders {
            let began = Instant::now();
            let result = aggregate::run(&order, self.store.as_ref(), self.threads);
            tracing::debug!(
                job = %order.job, round = %order.round, rule = %order.rule.name, updates = order.members.len(),
                ms = began.elapsed().as_millis(), "rule has run"
            );
            let now = self.clock.now();
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
                } => self.outgoing.publish(topic.to_string(), payload, retain),
                Effect::Tell(event) => self.observer.tell(event),
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
                    .handle(self.clock.now(), Input::Model { digest, frame });
                self.apply(effects)?;
            }
        }
        Ok(())
    }

    fn update_wanted(&self) {
        let models = self.unit.wanted_models();
        let partials = self.unit.pending();
        let ids: Vec<_> = partials
            .map(|(job, pending)| (job, pending.partial_id))
            .collect();
        self.wanted.send_if_modified(|wanted| {
            let known = wanted
                .partials
                .iter()
                .map(|(job, pending)| (job, pending.partial_id));
            if wanted.models == models && known.eq(ids.iter().copied()) {
                return false;
            }
            wanted.models = models;
            wanted.partials = self
                .unit
                .pending()
                .map(|(j, p)| (j.clone(), p.clone()))
                .collect();
            true
        });
    }
}
