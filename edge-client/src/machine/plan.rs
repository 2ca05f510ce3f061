//! What can be started now: after each input the machine looks at everything anew.

use std::sync::Arc;

use wayside_domain::ids::JobId;
use wayside_domain::time::Timestamp;

use super::job::{Features, Fetch};
use super::{Download, Effect, FETCH_AGAIN, Order, Vehicle, Work};

impl Vehicle {
    /// Looks at everything and starts what can be started now.
    pub(super) fn plan(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.plan_fetches(now, effects);
        self.plan_work(now, effects);
        self.plan_sends(now, effects);
    }

    fn plan_fetches(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let ids: Vec<JobId> = self.jobs.keys().cloned().collect();
        for id in ids {
            let Some(job) = self.jobs.get(&id) else {
                continue;
            };
            let wanted = job.wanted().filter(|(announced, _)| {
                !self.is_settled(&id, job, announced.round)
                    && !self.models.contains(&announced.model)
            });
            let wanted = wanted.map(|(announced, spec)| {
                let (bytes, chunks) = (announced.model_bytes, announced.model_chunks);
                (
                    announced.model,
                    Download::new(bytes, chunks, spec.max_model_bytes),
                )
            });
            let link_up = self.link_up;
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            let stale = |fetch: &Fetch| {
                wanted
                    .as_ref()
                    .is_none_or(|(model, _)| *model != fetch.model)
            };
            if let Some(old) = job.fetch.take_if(|fetch| stale(fetch)) {
                let (job, model) = (id.clone(), old.model);
                effects.push(Effect::LeaveModel { job, model });
            }
            let Some((model, download)) = wanted else {
                continue;
            };
            let begin = match (&mut job.fetch, download) {
                (Some(fetch), _) => {
                    let again = link_up && !fetch.storing && now >= fetch.again;
                    if again {
                        fetch.again = now + FETCH_AGAIN;
                    }
                    again
                }
                (None, Some(download)) => {
                    job.fetch = Some(Fetch {
                        model,
                        download,
                        again: now + FETCH_AGAIN,
                        storing: false,
                    });
                    true
                }
                // Totals that the job's schema rules out: nothing to do until another announcement.
                (None, None) => false,
            };
            if begin {
                let job = id.clone();
                effects.push(Effect::FetchModel { job, model });
            }
        }
    }

    fn plan_work(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if let Some(work) = &self.work {
            let moot = self.paused
                || work
                    .order
                    .as_ref()
                    .is_some_and(|order| !self.is_current(order));
            if let Some(work) = self.work.as_mut().filter(|work| moot && !work.cancelled) {
                work.cancelled = true;
                effects.push(Effect::CancelWork);
            }
            return;
        }
        if self.paused {
            return;
        }
        let loading = self.jobs.iter().find_map(|(id, job)| {
            let spec = job.spec.as_ref().filter(|spec| spec.fits)?;
            let due = match job.features {
                Features::Missing => true,
                Features::Failed { again } => now >= again,
                Features::Ready { .. } => false,
            };
            due.then(|| (id.clone(), Arc::clone(&spec.asks)))
        });
        if let Some((job, spec)) = loading {
            self.work = Some(Work {
                job: job.clone(),
                order: None,
                cancelled: false,
            });
            effects.push(Effect::LoadFeatures { job, spec });
            return;
        }
        let ready = self.jobs.iter().filter_map(|(id, job)| {
            let (announced, spec) = job.wanted()?;
            // In buffered rounds one update at a time: its receipt says in which round it counted.
            let in_flight = self.outbox.entries().any(|entry| entry.job == *id)
                || self.sealing.as_ref().is_some_and(|(job, _)| job == id);
            let waits = job.max_staleness().is_some() && in_flight;
            let can = matches!(job.features, Features::Ready { num_examples: 1.. })
                && !waits
                && self.models.contains(&announced.model)
                && !self.is_settled(id, job, announced.round);
            can.then(|| {
                let (job_id, spec) = (id.clone(), Arc::clone(&spec.asks));
                let round = announced.clone();
                let order = Order {
                    job: job_id,
                    spec,
                    round,
                    encoding: job.encoding(),
                };
                (job.last_trained, order)
            })
        });
        // Whoever waited longest; of equals the first by name.
        let Some((_, order)) = ready.min_by_key(|(last_trained, _)| *last_trained) else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(&order.job) {
            job.last_trained = now;
        }
        self.work = Some(Work {
            job: order.job.clone(),
            order: Some(order.clone()),
            cancelled: false,
        });
        effects.push(Effect::StartTraining(Box::new(order)));
    }

    fn plan_sends(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.link_up {
            return;
        }
        while let Some(entry) = self.outbox.next_to_send(now, &self.fixed.roadside) {
            let update_id = entry.update_id;
            self.outbox.sent(now, update_id);
            self.last_sent = now;
            // A slow link still works on the last try; the next one comes later.
            if self.handing.insert(update_id) {
                let chunks = None;
                effects.push(Effect::SendUpdate { update_id, chunks });
            }
        }
    }
}
