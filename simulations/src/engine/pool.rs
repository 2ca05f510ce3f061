//! Threads that handle the events of several actors at once. Which thread does what makes no difference to what comes
//! out.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::cloud::Cloud;
use super::env::{Env, Out};
use super::event::{Actor, Event, Millis};
use super::log::Logged;
use super::unit::Unit;
use super::vehicle::Vehicle;

/// An actor that is away from the city while its events are handled.
#[derive(Debug)]
pub(super) enum Body {
    Cloud(Box<Cloud>),
    Unit(Box<Unit>),
    Vehicle(Box<Vehicle>),
}

/// One actor and its events of one window, in order.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) actor: Actor,
    pub(super) body: Body,
    pub(super) events: Vec<Event>,
    pub(super) until: Millis,
}

/// What came of tasks.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) bodies: Vec<(Actor, Body)>,
    pub(super) events: Vec<Event>,
    pub(super) log: Vec<Logged>,
    pub(super) handled: u64,
}

impl Body {
    fn count(&mut self) -> &mut u64 {
        match self {
            Self::Cloud(cloud) => cloud.count(),
            Self::Unit(unit) => unit.count(),
            Self::Vehicle(vehicle) => vehicle.count(),
        }
    }

    fn handle(&mut self, env: &Env, event: Event, out: &mut Out<'_>) {
        match self {
            Self::Cloud(cloud) => cloud.handle(env, event.at, event.what, out),
            Self::Unit(unit) => unit.handle(env, event.at, event.what, out),
            Self::Vehicle(vehicle) => vehicle.handle(env, event.at, event.what, out),
        }
    }
}

impl Task {
    /// Handles the events up to the end of the window, those included that the actor makes for itself meanwhile.
    pub(super) fn run(mut self, env: &Env, done: &mut Done) {
        let mut count = *self.body.count();
        // Few at a time: the next one is taken from the end.
        self.events.sort_by(|a, b| b.cmp(a));
        while let Some(event) = self.events.pop() {
            done.handled += 1;
            let first = done.events.len();
            let mut out = Out {
                from: self.actor,
                cause: event.from,
                count: &mut count,
                events: &mut done.events,
                log: &mut done.log,
            };
            self.body.handle(env, event, &mut out);
            let mut at = first;
            while at < done.events.len() {
                let made = &done.events[at];
                if made.to == self.actor && made.at < self.until {
                    let made = done.events.swap_remove(at);
                    let place = self.events.partition_point(|known| *known > made);
                    self.events.insert(place, made);
                } else {
                    debug_assert!(
                        made.to == self.actor || made.at >= self.until,
                        "too early: {made:?}"
                    );
                    at += 1;
                }
            }
        }
        *self.body.count() = count;
        done.bodies.push((self.actor, self.body));
    }
}

/// Threads beside the calling one.
#[derive(Debug)]
pub(super) struct Pool {
    workers: Vec<(Sender<Vec<Task>>, Receiver<Done>)>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// `threads` in all, the calling one included.
    pub(super) fn new(env: &Arc<Env>, threads: usize) -> Self {
        let (mut workers, mut handles) = (Vec::new(), Vec::new());
        for number in 1..threads {
            let (to, tasks) = channel::<Vec<Task>>();
            let (results, from) = channel();
            let env = Arc::clone(env);
            let spawned = std::thread::Builder::new()
                .name(format!("wayside-city-{number}"))
                .spawn(move || {
                    while let Ok(tasks) = tasks.recv() {
                        let mut done = Done::default();
                        for task in tasks {
                            task.run(&env, &mut done);
                        }
                        if results.send(done).is_err() {
                            return;
                        }
                    }
                });
            // Without the thread the others do its part.
            if let Ok(handle) = spawned {
                workers.push((to, from));
                handles.push(handle);
            }
        }
        Self {
            workers,
            threads: handles,
        }
    }

    /// Runs all tasks; the heaviest first, each where the least is to be done.
    pub(super) fn run(&self, env: &Env, mut tasks: Vec<Task>) -> Vec<Done> {
        let weight = |task: &Task| -> u32 { task.events.iter().map(|e| e.what.weight()).sum() };
        let total: u32 = tasks.iter().map(weight).sum();
        if self.workers.is_empty() || tasks.len() < 2 || total < WORTH_IT {
            let mut done = Done::default();
            for task in tasks {
                task.run(env, &mut done);
            }
            return vec![done];
        }
        tasks.sort_by_key(|task| std::cmp::Reverse(weight(task)));
        let mut shares: Vec<(u32, Vec<Task>)> = Vec::new();
        shares.resize_with(self.workers.len() + 1, Default::default);
        for task in tasks {
            if let Some(least) = shares.iter_mut().min_by_key(|(weight, _)| *weight) {
                least.0 += weight(&task) + 1;
                least.1.push(task);
            }
        }
        let mine = shares.pop().unwrap_or_default().1;
        let mut sent = Vec::new();
        let mut done = Done::default();
        for ((to, from), (_, share)) in self.workers.iter().zip(shares) {
            match to.send(share) {
                Ok(()) => sent.push(from),
                // A worker that is gone panicked, which ends the run below; nothing is lost before that.
                Err(back) => back.0.into_iter().for_each(|task| task.run(env, &mut done)),
            }
        }
        for task in mine {
            task.run(env, &mut done);
        }
        let mut all = vec![done];
        for from in sent {
            all.push(from.recv().expect("a thread of the simulation panicked"));
        }
        all
    }
}

/// Weight of a window from which on several threads pay.
const WORTH_IT: u32 = 20;

impl Drop for Pool {
    fn drop(&mut self) {
        self.workers.clear();
        for thread in self.threads.drain(..) {
            // A panic there was told where the result was awaited.
            let _ = thread.join();
        }
    }
}
