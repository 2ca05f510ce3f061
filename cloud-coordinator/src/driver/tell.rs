//! Log lines and events for what a job did, once it is durable.

use crate::federation::{Effect, Gate, NewVersion};
use crate::observer::{Event, Observer};
use tracing::{error, info, warn};
use wayside_domain::ids::JobId;
use wayside_domain::update::Verdict;

/// Tells of one effect. `bytes` is the size of the partial aggregate that led to it.
pub(super) fn tell(job: &JobId, observer: &Observer, effect: Effect, bytes: u64) {
    match effect {
        Effect::Judged(judged) => {
            let (roadside, partial, verdict) =
                (&judged.roadside, judged.partial_id, judged.verdict);
            let (merge_round, num_examples) = (judged.judged_in, judged.num_examples);
            if let Some((vehicle, update, other)) = &judged.conflict {
                warn!(%job, %roadside, %vehicle, %update, counted_at = %other, "update came through two roadside units");
            }
            if matches!(verdict, Verdict::Rejected(_)) {
                warn!(%job, %roadside, %merge_round, %partial, %verdict, num_examples, "partial aggregate refused");
            } else {
                info!(%job, %roadside, %merge_round, %partial, %verdict, num_examples, "partial aggregate judged");
            }
            observer.tell(Event::PartialJudged {
                job: job.clone(),
                merge_round,
                roadside: judged.roadside,
                verdict,
                num_examples,
                accepted: judged.tally.accepted,
                refused: judged.tally.refused,
                up_bytes: judged.tally.up_bytes,
                down_bytes: judged.tally.down_bytes,
                partial_bytes: bytes,
            });
        }
        Effect::Admitted(roadside) => {
            info!(%job, %roadside, "roadside unit taken into the merge round");
        }
        Effect::Missed { windows } => {
            warn!(%job, windows, "merge windows passed unnoticed, merging once");
        }
        Effect::Version(version) => version_made(job, observer, &version),
        Effect::Unusable(reason) => {
            error!(%job, %reason, "merged result not usable, model unchanged");
        }
        Effect::Closed(report) => {
            let merge_round = report.merge_round;
            let (asked, contributed) = (report.cohort.len(), report.accepted.len());
            let reason = report
                .closed
                .map_or("open", |(_, closing, _)| closing.label());
            let made = report.closed.and_then(|(_, _, made)| made);
            info!(%job, %merge_round, asked, contributed, num_examples = report.num_examples(), reason, "merge round closed");
            if made.is_none() {
                observer.tell(Event::NoResult {
                    job: job.clone(),
                    merge_round,
                    reason,
                });
            }
        }
        Effect::Opened { merge_round, base } => {
            info!(%job, %merge_round, %base, "merge round opened");
            observer.tell(Event::MergeOpened {
                job: job.clone(),
                merge_round,
                base,
            });
        }
        Effect::Paused(paused) => info!(%job, paused, "job paused or resumed"),
        Effect::RolledBack { to } => {
            info!(%job, version = %to, "rolled back");
            observer.tell(Event::RolledBack {
                job: job.clone(),
                to,
            });
        }
        Effect::Finished => {
            info!(%job, "job finished");
            observer.tell(Event::JobFinished { job: job.clone() });
        }
        Effect::Reply {
            partial_id,
            verdict,
        } => {
            tracing::debug!(%job, partial = %partial_id, %verdict, "answered");
        }
    }
}

/// Tells of a version.
pub(super) fn version_made(job: &JobId, observer: &Observer, version: &NewVersion) {
    let evaluation = version.evaluation.as_ref();
    let (accuracy, macro_recall) = (
        evaluation.map(|e| e.accuracy),
        evaluation.map(|e| e.macro_recall),
    );
    let released = version.gate == Gate::Released;
    let gate = match &version.gate {
        Gate::Released => "released",
        Gate::KeptBack { reason } => reason,
    };
    info!(
        %job,
        version = %version.version,
        parent = %version.parent,
        gate,
        accuracy,
        macro_recall,
        num_examples = version.num_examples,
        contributors = version.contributors,
        exact = version.exact,
        "version made"
    );
    observer.tell(Event::VersionMade {
        job: job.clone(),
        version: version.version,
        released,
        accuracy,
        macro_recall,
        num_examples: version.num_examples,
        contributors: version.contributors,
        exact: version.exact,
    });
}
