//! The city in virtual time: the production machines of all three tiers over one queue of events.
//!
//! Time goes in windows as long as the shortest way from one actor to another. Within a window nobody hears of anybody
//! else, so actors handle their events side by side on several threads; what they make is sorted into the queue by time,
//! receiver, sender and the sender's own count. Each actor draws from a generator of its own. So the log and the model
//! are the same for any number of threads.

pub mod cloud;
pub mod env;
pub mod event;
mod hostile;
pub mod invariants;
pub mod log;
mod pool;
pub(crate) mod rng;
pub mod tally;
pub mod unit;
pub mod vehicle;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cloud::{Cloud, Made};
use env::{Env, Out};
use event::{Actor, Event, Millis, What};
use log::Logged;
use pool::{Body, Done, Pool, Task};
use unit::Unit;
use vehicle::Vehicle;

/// A whole city.
#[derive(Debug)]
pub struct City {
    env: Arc<Env>,
    now: Millis,
    queue: BinaryHeap<Reverse<Event>>,
    cloud: Option<Box<Cloud>>,
    units: Vec<Option<Box<Unit>>>,
    vehicles: Vec<Option<Box<Vehicle>>>,
    pool: Pool,
    handled: u64,
}

/// What happened in one window.
#[derive(Debug, Default)]
pub struct Window {
    /// Entries of the log, in order.
    pub log: Vec<Logged>,
    /// Versions that were made.
    pub made: Vec<Made>,
}

/// Something that breaks, or is mended, at a set time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub at: Millis,
    /// What it happens to.
    pub to: Actor,
    /// Power or, for units, the line to the cloud.
    pub power: bool,
    /// Off or on.
    pub on: bool,
}

impl City {
    /// A city at time 0, with everything that will break. `threads` work on it.
    ///
    /// # Errors
    /// A first version that cannot be framed.
    pub fn new(
        env: Arc<Env>,
        faults: &[Fault],
        evaluate_every: u64,
        threads: usize,
    ) -> anyhow::Result<Self> {
        let cloud = Cloud::new(&env, evaluate_every)?;
        let (vehicles, units) = (env.vehicles.len(), env.units.len());
        let mut city = Self {
            pool: Pool::new(&env, threads.max(1)),
            now: 0,
            queue: BinaryHeap::new(),
            cloud: Some(Box::new(cloud)),
            units: Vec::with_capacity(units),
            vehicles: Vec::with_capacity(vehicles),
            handled: 0,
            env,
        };
        let (mut count, mut first) = (0, Vec::new());
        let mut log = Vec::new();
        let mut out = Out {
            from: Actor::Cloud,
            cause: Actor::Cloud,
            count: &mut count,
            events: &mut first,
            log: &mut log,
        };
        for index in (0..).take(units) {
            city.units.push(Some(Box::new(Unit::new(&city.env, index))));
            out.send(0, Actor::Unit(index), What::Power(true));
            out.send(0, Actor::Unit(index), What::Backhaul(true));
        }
        for fault in faults {
            let what = if fault.power {
                What::Power(fault.on)
            } else {
                What::Backhaul(fault.on)
            };
            out.send(fault.at, fault.to, what);
        }
        for index in (0..).take(vehicles) {
            let mut vehicle = Box::new(Vehicle::new(&city.env, index));
            let mut count = 0;
            let mut out = Out {
                from: Actor::Vehicle(index),
                cause: Actor::Vehicle(index),
                count: &mut count,
                events: out.events,
                log: out.log,
            };
            vehicle.begin(&city.env, &mut out);
            *vehicle.count() = count;
            city.vehicles.push(Some(vehicle));
        }
        if let Some(cloud) = &mut city.cloud {
            // What it sends later comes after what was sent for it here.
            *cloud.count() = count;
        }
        city.queue.extend(first.into_iter().map(Reverse));
        Ok(city)
    }

    /// The time.
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Events that were handled.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    /// What everybody shares.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The job has its last version.
    pub fn is_finished(&self) -> bool {
        self.cloud.as_ref().is_some_and(|cloud| cloud.is_finished())
    }

    /// Values of the newest version.
    pub fn parameters(&self) -> &[f32] {
        self.cloud.as_ref().map_or(&[], |cloud| &cloud.parameters)
    }

    /// Where a vehicle is, and whether a round has asked it yet.
    pub fn whereabouts(&self, vehicle: u32) -> Option<((f32, f32), bool)> {
        let vehicle = self.vehicles.get(vehicle as usize)?.as_ref()?;
        Some((vehicle.position(&self.env, self.now), vehicle.is_awake()))
    }

    /// Goes on by one window that is not empty, up to `end`; `None` at the end, or once cancelled.
    pub fn step(&mut self, end: Millis) -> Option<Window> {
        if self.env.cancel.load(Ordering::Relaxed) {
            return None;
        }
        let first = self.queue.peek()?.0.at;
        if first >= end {
            self.now = end;
            return None;
        }
        self.now = first;
        let until = (first + self.env.look_ahead).min(end);
        let mut events = Vec::new();
        while let Some(next) = self.queue.peek() {
            if next.0.at >= until {
                break;
            }
            events.extend(self.queue.pop().map(|next| next.0));
        }
        events.sort_by_key(|event| event.to); // stable: events of one actor stay in order
        let mut tasks: Vec<Task> = Vec::new();
        for event in events {
            let actor = event.to;
            if let Some(task) = tasks.last_mut().filter(|task| task.actor == actor) {
                task.events.push(event);
            } else if let Some(body) = self.take(actor) {
                tasks.push(Task {
                    actor,
                    body,
                    events: vec![event],
                    until,
                });
            }
        }
        let all = self.pool.run(&self.env, tasks);
        Some(self.put_back(all))
    }

    fn take(&mut self, actor: Actor) -> Option<Body> {
        match actor {
            Actor::Cloud => self.cloud.take().map(Body::Cloud),
            Actor::Unit(index) => self.units.get_mut(index as usize)?.take().map(Body::Unit),
            Actor::Vehicle(index) => {
                let place = self.vehicles.get_mut(index as usize)?;
                place.take().map(Body::Vehicle)
            }
        }
    }

    fn put_back(&mut self, all: Vec<Done>) -> Window {
        let mut window = Window::default();
        for done in all {
            self.handled += done.handled;
            self.queue.extend(done.events.into_iter().map(Reverse));
            window.log.extend(done.log);
            for (actor, body) in done.bodies {
                match (actor, body) {
                    (Actor::Unit(index), Body::Unit(unit)) => {
                        self.units[index as usize] = Some(unit);
                    }
                    (Actor::Vehicle(index), Body::Vehicle(vehicle)) => {
                        self.vehicles[index as usize] = Some(vehicle);
                    }
                    (_, Body::Cloud(mut cloud)) => {
                        window.made.append(&mut cloud.made);
                        self.cloud = Some(cloud);
                    }
                    _ => {}
                }
            }
        }
        // Entries of one actor are in order already; the sort is stable.
        window.log.sort_by_key(|logged| (logged.at, logged.who));
        window
    }
}
