//! What the store holds, and the way to and from the domain. These types are a promise to later versions of ourselves.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::federation::{Closing, Judged, Progress, RoundReport, Tally};
use wayside_domain::ids::{JobId, ModelVersion, RoadsideId, RoundId, UpdateId};
use wayside_domain::round::Accepted;
use wayside_domain::time::Timestamp;
use wayside_domain::update::{RejectReason, Verdict};

/// A roadside unit that ever said hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoadsideRecord {
    /// Its name.
    pub roadside: String,
    /// When it connected or was lost last, Unix milliseconds.
    pub last_seen_ms: u64,
    /// Version of its software as it said.
    pub software: String,
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    job: String,
    created_ms: u64,
    paused: bool,
    merge_round: u64,
    released: u64,
    newest: u64,
    exponents: Vec<i8>,
    norm_bound: f64,
    last_merge_ms: Option<u64>,
}

impl JobRecord {
    /// A record of a job's progress.
    pub fn new(job: &JobId, progress: &Progress) -> Self {
        Self {
            job: job.to_string(),
            created_ms: progress.created.0,
            paused: progress.paused,
            merge_round: progress.merge_round.0,
            released: progress.released.0,
            newest: progress.newest.0,
            exponents: progress.exponents.clone(),
            norm_bound: progress.norm_bound,
            last_merge_ms: progress.last_merge.map(|time| time.0),
        }
    }

    /// The job and its progress.
    ///
    /// # Errors
    /// [`StoreError::Record`] if a value cannot have been written by us.
    pub fn read(&self) -> Result<(JobId, Progress), StoreError> {
        if !(self.norm_bound.is_finite() && self.norm_bound > 0.0) {
            return Err(damaged("job"));
        }
        let progress = Progress {
            created: Timestamp(self.created_ms),
            paused: self.paused,
            merge_round: RoundId(self.merge_round),
            released: ModelVersion(self.released),
            newest: ModelVersion(self.newest),
            exponents: self.exponents.clone(),
            norm_bound: self.norm_bound,
            last_merge: self.last_merge_ms.map(Timestamp),
        };
        let job = JobId::new(self.job.clone()).map_err(|_| damaged("job"))?;
        Ok((job, progress))
    }
}

/// A roadside unit's accepted partial aggregate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AcceptedRecord {
    roadside: String,
    partial_id: String,
    num_examples: u64,
}

/// One merge round, open or closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRecord {
    merge_round: u64,
    base_version: u64,
    opened_ms: u64,
    earliest_close_ms: u64,
    deadline_ms: u64,
    cohort: Vec<String>,
    accepted: Vec<AcceptedRecord>,
    updates_accepted: u32,
    updates_refused: u32,
    up_bytes: u64,
    down_bytes: u64,
    closed_ms: Option<u64>,
    closing: Option<String>,
    new_version: Option<u64>,
}

impl RoundRecord {
    /// Its number.
    pub fn merge_round(&self) -> RoundId {
        RoundId(self.merge_round)
    }
}

impl From<&RoundReport> for RoundRecord {
    fn from(report: &RoundReport) -> Self {
        let accepted = report
            .accepted
            .iter()
            .map(|(roadside, accepted)| AcceptedRecord {
                roadside: roadside.to_string(),
                partial_id: accepted.update_id.to_hex(),
                num_examples: accepted.num_examples,
            });
        Self {
            merge_round: report.merge_round.0,
            base_version: report.base_version.0,
            opened_ms: report.opened.0,
            earliest_close_ms: report.earliest_close.0,
            deadline_ms: report.deadline.0,
            cohort: report.cohort.iter().map(ToString::to_string).collect(),
            accepted: accepted.collect(),
            updates_accepted: report.tally.accepted,
            updates_refused: report.tally.refused,
            up_bytes: report.tally.up_bytes,
            down_bytes: report.tally.down_bytes,
            closed_ms: report.closed.map(|(at, _, _)| at.0),
            closing: report
                .closed
                .map(|(_, closing, _)| closing.label().to_owned()),
            new_version: report
                .closed
                .and_then(|(_, _, made)| made)
                .map(|version| version.0),
        }
    }
}

impl TryFrom<&RoundRecord> for RoundReport {
    type Error = StoreError;

    fn try_from(record: &RoundRecord) -> Result<Self, StoreError> {
        let roadside = |text: &String| RoadsideId::new(text.clone()).map_err(|_| damaged("round"));
        let cohort: BTreeSet<_> = record
            .cohort
            .iter()
            .map(roadside)
            .collect::<Result<_, _>>()?;
        let mut accepted = BTreeMap::new();
        for entry in &record.accepted {
            let update_id =
                UpdateId::from_hex(&entry.partial_id).ok_or_else(|| damaged("round"))?;
            let num_examples = entry.num_examples;
            accepted.insert(
                roadside(&entry.roadside)?,
                Accepted {
                    update_id,
                    num_examples,
                },
            );
        }
        let closed = match (record.closed_ms, &record.closing) {
            (None, _) => None,
            (Some(at), closing) => {
                let all = [
                    Closing::Merged,
                    Closing::BelowQuorum,
                    Closing::Unusable,
                    Closing::RolledBack,
                ];
                let named = |c: &Closing| closing.as_deref() == Some(c.label());
                let closing = all
                    .into_iter()
                    .find(named)
                    .ok_or_else(|| damaged("round"))?;
                Some((Timestamp(at), closing, record.new_version.map(ModelVersion)))
            }
        };
        Ok(Self {
            merge_round: RoundId(record.merge_round),
            base_version: ModelVersion(record.base_version),
            opened: Timestamp(record.opened_ms),
            earliest_close: Timestamp(record.earliest_close_ms),
            deadline: Timestamp(record.deadline_ms),
            cohort,
            accepted,
            tally: Tally {
                accepted: record.updates_accepted,
                refused: record.updates_refused,
                up_bytes: record.up_bytes,
                down_bytes: record.down_bytes,
            },
            closed,
        })
    }
}

/// What became of one partial aggregate; its content is a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialRecord {
    /// The merge round in which it was judged.
    pub judged_in: u64,
    /// The sender.
    pub roadside: String,
    /// Its identity, hexadecimal.
    pub partial_id: String,
    /// Label of its verdict.
    verdict: String,
    /// Examples that it claims.
    pub num_examples: u64,
    /// When it arrived, Unix milliseconds.
    pub received_ms: u64,
}

impl PartialRecord {
    /// A record of a verdict.
    pub fn new(judged: &Judged, now: Timestamp) -> Self {
        Self {
            judged_in: judged.judged_in.0,
            roadside: judged.roadside.to_string(),
            partial_id: judged.partial_id.to_hex(),
            verdict: judged.verdict.label().to_owned(),
            num_examples: judged.num_examples,
            received_ms: now.0,
        }
    }

    /// The receipt: judged in, id, verdict.
    ///
    /// # Errors
    /// [`StoreError::Record`] if a value cannot have been written by us.
    pub fn receipt(&self) -> Result<(RoundId, UpdateId, Verdict), StoreError> {
        let id = UpdateId::from_hex(&self.partial_id).ok_or_else(|| damaged("partial"))?;
        let verdict = verdict(&self.verdict).ok_or_else(|| damaged("partial"))?;
        Ok((RoundId(self.judged_in), id, verdict))
    }
}

fn verdict(label: &str) -> Option<Verdict> {
    let plain = [Verdict::Accepted, Verdict::Duplicate, Verdict::Stale];
    let reasons = RejectReason::ALL.into_iter().map(Verdict::Rejected);
    plain
        .into_iter()
        .chain(reasons)
        .find(|verdict| verdict.label() == label)
}

fn damaged(kind: &'static str) -> StoreError {
    StoreError::Record { kind }
}
