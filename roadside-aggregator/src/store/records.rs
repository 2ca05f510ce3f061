//! Stored forms. They are a promise to later versions of this software, so they are apart from the domain's types.
//!
//! Floats are kept as their bits, so that what is read is what was written.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wayside_domain::encoding::UpdateEncoding;
use wayside_domain::ids::{Digest, Generation, ModelVersion, RoundId, UpdateId, VehicleId};
use wayside_domain::round::{Accepted, Guard, RoundTerms};
use wayside_domain::time::Timestamp;
use wayside_domain::update::{RejectReason, Verdict};
use wayside_proto::convert::{Contribution, JobPlan, RoundSummary, UpdateMetrics};
use wayside_proto::topics::ModelKey;

use crate::fleet::Vehicle;
use crate::region::{Ledger, Published};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct VehicleRecord {
    generation: u64,
    backbone: Option<String>,
    num_examples: u64,
    receipts: u64,
    receipts_within_budget: u64,
}

impl From<&Vehicle> for VehicleRecord {
    fn from(vehicle: &Vehicle) -> Self {
        Self {
            generation: vehicle.generation.0,
            backbone: vehicle.backbone.map(Digest::to_hex),
            num_examples: vehicle.num_examples,
            receipts: vehicle.receipts,
            receipts_within_budget: vehicle.receipts_within_budget,
        }
    }
}

impl From<VehicleRecord> for Vehicle {
    fn from(record: VehicleRecord) -> Self {
        Self {
            generation: Generation(record.generation),
            backbone: record.backbone.as_deref().and_then(Digest::from_hex),
            num_examples: record.num_examples,
            receipts: record.receipts,
            receipts_within_budget: record.receipts_within_budget,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct TermsRecord {
    round: u64,
    base_version: u64,
    cohort: Vec<String>,
    target: usize,
    quorum: usize,
    opened_ms: u64,
    earliest_close_ms: u64,
    deadline_ms: u64,
    schema: String,
    max_examples: u64,
    max_norm_bits: u64,
    #[serde(default)]
    max_staleness: Option<u64>,
}

impl From<&RoundTerms<VehicleId>> for TermsRecord {
    fn from(terms: &RoundTerms<VehicleId>) -> Self {
        Self {
            round: terms.round.0,
            base_version: terms.base_version.0,
            cohort: terms.cohort.iter().map(ToString::to_string).collect(),
            target: terms.target,
            quorum: terms.quorum,
            opened_ms: terms.opened.0,
            earliest_close_ms: terms.earliest_close.0,
            deadline_ms: terms.deadline.0,
            schema: terms.guard.schema.to_hex(),
            max_examples: terms.guard.max_examples,
            max_norm_bits: terms.guard.max_norm.to_bits(),
            max_staleness: terms.max_staleness,
        }
    }
}

impl TermsRecord {
    fn read(self) -> Option<RoundTerms<VehicleId>> {
        Some(RoundTerms {
            round: RoundId(self.round),
            base_version: ModelVersion(self.base_version),
            cohort: vehicles(&self.cohort)?,
            target: self.target,
            quorum: self.quorum,
            opened: Timestamp(self.opened_ms),
            earliest_close: Timestamp(self.earliest_close_ms),
            deadline: Timestamp(self.deadline_ms),
            guard: Guard {
                schema: Digest::from_hex(&self.schema)?,
                max_examples: self.max_examples,
                max_norm: f64::from_bits(self.max_norm_bits),
            },
            max_staleness: self.max_staleness,
        })
    }
}

fn vehicles<C: FromIterator<VehicleId>>(names: &[String]) -> Option<C> {
    names
        .iter()
        .map(|name| VehicleId::new(&**name).ok())
        .collect()
}

#[derive(Debug, Serialize, Deserialize)]
struct SummaryRecord {
    round: u64,
    opened_ms: u64,
    closed_ms: u64,
    cohort: Vec<String>,
    target: u32,
    quorum: u32,
    accepted: u32,
    aggregated: bool,
}

impl From<&RoundSummary> for SummaryRecord {
    fn from(summary: &RoundSummary) -> Self {
        Self {
            round: summary.round.0,
            opened_ms: summary.opened.0,
            closed_ms: summary.closed.0,
            cohort: summary.cohort.iter().map(ToString::to_string).collect(),
            target: summary.target,
            quorum: summary.quorum,
            accepted: summary.accepted,
            aggregated: summary.aggregated,
        }
    }
}

impl SummaryRecord {
    fn read(self) -> Option<RoundSummary> {
        Some(RoundSummary {
            round: RoundId(self.round),
            opened: Timestamp(self.opened_ms),
            closed: Timestamp(self.closed_ms),
            cohort: vehicles(&self.cohort)?,
            target: self.target,
            quorum: self.quorum,
            accepted: self.accepted,
            aggregated: self.aggregated,
        })
    }
}

/// A ledger but for its plan, which is kept in its wire form.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LedgerRecord {
    contribute_by_ms: u64,
    next_round: u64,
    done: bool,
    counted: Vec<u64>,
    edge_examples: u64,
    model: String,
    terms: Option<TermsRecord>,
    summaries: Vec<SummaryRecord>,
    /// Key in hexadecimal, chunks.
    published: Vec<(String, u32)>,
    up_bytes: u64,
    down_bytes: u64,
}

impl From<&Ledger> for LedgerRecord {
    fn from(ledger: &Ledger) -> Self {
        let published = ledger.published.iter();
        Self {
            contribute_by_ms: ledger.contribute_by.0,
            next_round: ledger.next_round.0,
            done: ledger.done,
            counted: ledger.counted.iter().map(|round| round.0).collect(),
            edge_examples: ledger.edge_examples,
            model: ledger.model.to_hex(),
            terms: ledger.terms.as_ref().map(Into::into),
            summaries: ledger.summaries.iter().map(Into::into).collect(),
            published: published.map(|p| (p.key.to_string(), p.chunks)).collect(),
            up_bytes: ledger.up_bytes,
            down_bytes: ledger.down_bytes,
        }
    }
}

impl LedgerRecord {
    pub(super) fn read(self, plan: JobPlan) -> Option<Ledger> {
        let key = |hex: &str| UpdateId::from_hex(hex).map(|bytes| ModelKey(bytes.0));
        let published = self.published.iter().map(|(hex, chunks)| {
            Some(Published {
                key: key(hex)?,
                chunks: *chunks,
            })
        });
        let terms = match self.terms {
            Some(terms) => Some(terms.read()?),
            None => None,
        };
        Some(Ledger {
            plan,
            contribute_by: Timestamp(self.contribute_by_ms),
            next_round: RoundId(self.next_round),
            done: self.done,
            counted: self.counted.into_iter().map(RoundId).collect(),
            edge_examples: self.edge_examples,
            model: Digest::from_hex(&self.model)?,
            terms,
            summaries: self
                .summaries
                .into_iter()
                .map(SummaryRecord::read)
                .collect::<Option<_>>()?,
            published: published.collect::<Option<_>>()?,
            up_bytes: self.up_bytes,
            down_bytes: self.down_bytes,
            next_line: 0,
        })
    }
}

/// An accepted update but for its frame, which is a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct UpdateRecord {
    pub(super) round: u64,
    pub(super) update_id: String,
    pub(super) num_examples: u64,
    #[serde(default)]
    pub(super) staleness: u64,
}

impl UpdateRecord {
    pub(super) fn accepted(&self) -> Option<Accepted> {
        Some(Accepted {
            update_id: UpdateId::from_hex(&self.update_id)?,
            num_examples: self.num_examples,
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReceiptRecord {
    round: u64,
    verdict: String,
}

impl ReceiptRecord {
    pub(super) fn new(round: RoundId, verdict: Verdict) -> Self {
        Self {
            round: round.0,
            verdict: verdict.label().to_owned(),
        }
    }

    pub(super) fn read(&self) -> Option<(RoundId, Verdict)> {
        Some((RoundId(self.round), verdict(&self.verdict)?))
    }
}

/// Reads [`Verdict::label`].
fn verdict(label: &str) -> Option<Verdict> {
    let plain = [Verdict::Accepted, Verdict::Duplicate, Verdict::Stale];
    let rejected = RejectReason::ALL.into_iter().map(Verdict::Rejected);
    plain
        .into_iter()
        .chain(rejected)
        .find(|v| v.label() == label)
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LineRecord {
    vehicle: String,
    round: u64,
    update_id: String,
    num_examples: u64,
    verdict: String,
    l2_norm_bits: u64,
    handling_ms: u64,
    loss_bits: Option<u64>,
    train_ms: u64,
    receipts: u64,
    receipts_within_budget: u64,
    last_latency_ms: u64,
    #[serde(default)]
    encoding: Option<String>,
    #[serde(default)]
    goodput_bytes_per_s: u64,
}

impl From<&Contribution> for LineRecord {
    fn from(line: &Contribution) -> Self {
        let metrics = &line.metrics;
        Self {
            vehicle: line.vehicle.to_string(),
            round: line.round.0,
            update_id: line.update_id.to_hex(),
            num_examples: line.num_examples,
            verdict: line.verdict.label().to_owned(),
            l2_norm_bits: line.l2_norm.to_bits(),
            handling_ms: millis(line.handling),
            loss_bits: metrics.loss.map(f64::to_bits),
            train_ms: millis(metrics.train),
            receipts: metrics.receipts,
            receipts_within_budget: metrics.receipts_within_budget,
            last_latency_ms: millis(metrics.last_latency),
            encoding: metrics.encoding.map(|encoding| encoding.label().to_owned()),
            goodput_bytes_per_s: metrics.goodput_bytes_per_s,
        }
    }
}

impl LineRecord {
    pub(super) fn read(&self) -> Option<Contribution> {
        Some(Contribution {
            vehicle: VehicleId::new(&*self.vehicle).ok()?,
            round: RoundId(self.round),
            update_id: UpdateId::from_hex(&self.update_id)?,
            num_examples: self.num_examples,
            verdict: verdict(&self.verdict)?,
            l2_norm: f64::from_bits(self.l2_norm_bits),
            handling: Duration::from_millis(self.handling_ms),
            metrics: UpdateMetrics {
                loss: self.loss_bits.map(f64::from_bits),
                train: Duration::from_millis(self.train_ms),
                receipts: self.receipts,
                receipts_within_budget: self.receipts_within_budget,
                last_latency: Duration::from_millis(self.last_latency_ms),
                encoding: self.encoding.as_deref().and_then(UpdateEncoding::parse),
                goodput_bytes_per_s: self.goodput_bytes_per_s,
            },
        })
    }
}

/// A partial aggregate but for its bytes, which are a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PartialRecord {
    pub(super) merge_round: u64,
    pub(super) partial_id: String,
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
