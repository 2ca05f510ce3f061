//! A partial aggregate as the machine sees it, and what can be wrong with it.

use std::collections::BTreeSet;

use super::{Rules, Tally};
use wayside_domain::aggregate::{AggregateError, WeightedSum};
use wayside_domain::ids::{ModelVersion, RoadsideId, RoundId, UpdateId, VehicleId};
use wayside_domain::schema::Schema;
use wayside_domain::update::{PayloadStats, RejectReason, Update, Verdict};
use wayside_proto::codec::{self, DecodeError};
use wayside_proto::convert::PartialAggregate;

/// One vehicle's update as its roadside unit judged it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The vehicle.
    pub vehicle: VehicleId,
    /// Which update.
    pub update_id: UpdateId,
    /// Its weight.
    pub num_examples: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// Its L2 norm, parameter units.
    pub l2_norm: f64,
}

/// A roadside unit's weighted sum with what stands behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// The sender.
    pub roadside: RoadsideId,
    /// The merge round that it was made for.
    pub merge_round: RoundId,
    /// The model that its deltas start from.
    pub base_version: ModelVersion,
    /// The same in every delivery.
    pub partial_id: UpdateId,
    /// Examples that it claims.
    pub num_examples: u64,
    /// The sum, or why there is none.
    pub sum: Result<WeightedSum, RejectReason>,
    /// One line an update.
    pub lines: Vec<Line>,
    /// Bytes from vehicles.
    pub up_bytes: u64,
    /// Bytes to vehicles.
    pub down_bytes: u64,
}

/// The sum as it stands in the frame, or as the mean in fp16 times its examples.
fn sum_of(
    wire: &PartialAggregate,
    schema: &Schema,
) -> Result<Result<WeightedSum, AggregateError>, DecodeError> {
    if codec::is_update(&wire.sum_frame) {
        let mean = codec::decode_delta(&wire.sum_frame, schema)?;
        let mut sum = WeightedSum::new(schema.num_parameters(), mean.exponents().to_vec());
        let added = sum.add(wire.num_examples, mean.exponents(), mean.values());
        return Ok(added.map(|()| sum));
    }
    let sum = codec::decode_sum(&wire.sum_frame, schema)?;
    Ok(WeightedSum::from_parts(
        sum.exponents,
        sum.values,
        sum.num_examples,
        sum.bound,
    ))
}

impl Partial {
    /// Decodes the sum. A frame that cannot be read is not an error here but a verdict later; the detail is returned for
    /// the log.
    pub fn from_wire(wire: &PartialAggregate, schema: &Schema) -> (Self, Option<DecodeError>) {
        let (sum, fault) = match sum_of(wire, schema) {
            _ if wire.sum_frame.is_empty() => (Err(RejectReason::NoExamples), None),
            Err(error) => (Err(error.reason()), Some(error)),
            Ok(sum) => (sum.map_err(|_| RejectReason::NotFinite), None),
        };
        let line = |line: &wayside_proto::convert::Contribution| Line {
            vehicle: line.vehicle.clone(),
            update_id: line.update_id,
            num_examples: line.num_examples,
            verdict: line.verdict,
            l2_norm: line.l2_norm,
        };
        let partial = Self {
            roadside: wire.roadside.clone(),
            merge_round: wire.merge_round,
            base_version: wire.base_version,
            partial_id: wire.partial_id,
            num_examples: wire.num_examples,
            sum,
            lines: wire.contributions.iter().map(line).collect(),
            up_bytes: wire.up_bytes,
            down_bytes: wire.down_bytes,
        };
        (partial, fault)
    }

    /// The lines that counted.
    pub fn accepted(&self) -> impl Iterator<Item = &Line> {
        self.lines
            .iter()
            .filter(|line| line.verdict == Verdict::Accepted)
    }

    /// What arrived with it.
    pub fn tally(&self) -> Tally {
        let accepted = self.accepted().count();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Tally {
            accepted: count(accepted),
            refused: count(self.lines.len() - accepted),
            up_bytes: self.up_bytes,
            down_bytes: self.down_bytes,
        }
    }

    /// As the round machine sees it: the norm is that of the mean delta.
    pub(super) fn as_update(&self, rules: &Rules) -> Update<RoadsideId> {
        let mean = self
            .sum
            .as_ref()
            .ok()
            .and_then(|sum| sum.mean(rules.schema.ranges()));
        let squares = mean.map_or(0.0, |mean| mean.iter().map(|v| v * v).sum::<f64>());
        Update {
            member: self.roadside.clone(),
            update_id: self.partial_id,
            round: self.merge_round,
            base_version: self.base_version,
            schema: rules.schema_digest,
            num_examples: self.num_examples,
            stats: PayloadStats {
                finite: squares.is_finite(),
                l2_norm: squares.sqrt(),
            },
        }
    }

    /// What is wrong with it, beyond what the round machine looks at.
    pub(super) fn fault(&self, rules: &Rules, exponents: &[i8]) -> Option<RejectReason> {
        let sum = match &self.sum {
            Err(reason) => return Some(*reason),
            Ok(sum) => sum,
        };
        if sum.values().len() != rules.schema.num_parameters() {
            return Some(RejectReason::WrongSchema);
        }
        let largest = sum
            .values()
            .iter()
            .fold(0.0, |most: f64, v| most.max(v.abs()));
        // A sum is never larger than its bound; past the exact range both are rounded.
        let bound_holds = largest <= sum.bound() * (1.0 + 1e-9);
        if sum.exponents() != exponents || sum.num_examples() != self.num_examples || !bound_holds {
            return Some(RejectReason::Inconsistent);
        }
        let mut total = 0u64;
        let mut seen = BTreeSet::new();
        for line in self.accepted() {
            if line.num_examples == 0 {
                return Some(RejectReason::NoExamples);
            }
            if line.num_examples > rules.max_examples {
                return Some(RejectReason::TooManyExamples);
            }
            if !line.l2_norm.is_finite() {
                return Some(RejectReason::NotFinite);
            }
            if !seen.insert((&line.vehicle, line.update_id)) {
                return Some(RejectReason::Inconsistent);
            }
            total = match total.checked_add(line.num_examples) {
                Some(total) => total,
                None => return Some(RejectReason::TooManyExamples),
            };
        }
        (total != self.num_examples).then_some(RejectReason::Inconsistent)
    }
}
