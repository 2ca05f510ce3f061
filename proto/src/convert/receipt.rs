//! Answers to an update: verdict, receipt, missing chunks.

use super::check::{At, millis};
use super::{ConvertError, Limit, Wire};
use crate::wire;
use std::time::Duration;
use wayside_domain::ids::{ModelVersion, RoundId, UpdateId};
use wayside_domain::update::{RejectReason, Verdict};

impl From<Verdict> for wire::Verdict {
    fn from(verdict: Verdict) -> Self {
        let (kind, reason) = match verdict {
            Verdict::Accepted => (wire::VerdictKind::Accepted, 0),
            Verdict::Duplicate => (wire::VerdictKind::Duplicate, 0),
            Verdict::Stale => (wire::VerdictKind::Stale, 0),
            Verdict::Rejected(reason) => (wire::VerdictKind::Rejected, number_of(reason)),
        };
        Self {
            kind: kind.into(),
            reason,
        }
    }
}

impl TryFrom<wire::Verdict> for Verdict {
    type Error = ConvertError;

    fn try_from(verdict: wire::Verdict) -> Result<Self, ConvertError> {
        let at = |field| At("Verdict", field);
        let kind = wire::VerdictKind::try_from(verdict.kind);
        let rejected = matches!(kind, Ok(wire::VerdictKind::Rejected));
        let fits = rejected || verdict.reason == 0;
        at("reason").range(fits, verdict.reason, "0 unless rejected")?;
        match kind {
            Ok(wire::VerdictKind::Accepted) => Ok(Self::Accepted),
            Ok(wire::VerdictKind::Duplicate) => Ok(Self::Duplicate),
            Ok(wire::VerdictKind::Stale) => Ok(Self::Stale),
            Ok(wire::VerdictKind::Rejected) => {
                let all = RejectReason::ALL.into_iter();
                let reason = all.clone().find(|r| number_of(*r) == verdict.reason);
                at("reason").range(reason.is_some(), verdict.reason, "1 to 13")?;
                Ok(Self::Rejected(at("reason").present(reason)?))
            }
            Ok(wire::VerdictKind::Unspecified) | Err(_) => Err(ConvertError::Range {
                message: "Verdict",
                field: "kind",
                got: verdict.kind.to_string(),
                allowed: "1 to 4",
            }),
        }
    }
}

/// The wire number of a reason.
fn number_of(reason: RejectReason) -> i32 {
    let reason = match reason {
        RejectReason::NotInCohort => wire::Reason::NotInCohort,
        RejectReason::AlreadyContributed => wire::Reason::AlreadyContributed,
        RejectReason::WrongSchema => wire::Reason::WrongSchema,
        RejectReason::WrongBase => wire::Reason::WrongBase,
        RejectReason::UnknownRound => wire::Reason::UnknownRound,
        RejectReason::NotFinite => wire::Reason::NotFinite,
        RejectReason::NoExamples => wire::Reason::NoExamples,
        RejectReason::TooManyExamples => wire::Reason::TooManyExamples,
        RejectReason::NormTooLarge => wire::Reason::NormTooLarge,
        RejectReason::Damaged => wire::Reason::Damaged,
        RejectReason::TooLarge => wire::Reason::TooLarge,
        RejectReason::Inconsistent => wire::Reason::Inconsistent,
        RejectReason::UnknownJob => wire::Reason::UnknownJob,
    };
    reason.into()
}

/// What became of an update, and where the job stands now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Of which update.
    pub update_id: UpdateId,
    /// The round that it was sealed for.
    pub round: RoundId,
    /// What became of it.
    pub verdict: Verdict,
    /// The round that is open now.
    pub current_round: RoundId,
    /// The model that it starts from.
    pub current_version: ModelVersion,
    /// From first chunk to receipt, whole milliseconds.
    pub handling: Duration,
}

impl Wire for Receipt {
    type Message = wire::Receipt;
    const NAME: &'static str = "Receipt";
    const MAX_BYTES: usize = 512;
}

impl From<&Receipt> for wire::Receipt {
    fn from(receipt: &Receipt) -> Self {
        Self {
            update_id: receipt.update_id.0.to_vec(),
            round: receipt.round.0,
            verdict: Some(receipt.verdict.into()),
            current_round: receipt.current_round.0,
            current_version: receipt.current_version.0,
            roadside_ms: millis(receipt.handling),
        }
    }
}

impl TryFrom<wire::Receipt> for Receipt {
    type Error = ConvertError;

    fn try_from(receipt: wire::Receipt) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        Ok(Self {
            update_id: at("update_id").update_id(&receipt.update_id)?,
            round: RoundId(receipt.round),
            verdict: at("verdict").present(receipt.verdict)?.try_into()?,
            current_round: RoundId(receipt.current_round),
            current_version: ModelVersion(receipt.current_version),
            handling: Duration::from_millis(receipt.roadside_ms.into()),
        })
    }
}

/// Chunks that have not arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Of which update.
    pub update_id: UpdateId,
    /// Their numbers, at most [`Need::MAX_MISSING`]; ask again for more.
    pub missing: Vec<u32>,
}

impl Need {
    /// Most chunks that one message asks for.
    pub const MAX_MISSING: usize = 65_536;
}

impl Wire for Need {
    type Message = wire::Need;
    const NAME: &'static str = "Need";
    const MAX_BYTES: usize = 5 * Need::MAX_MISSING + 256;
    const NUMBERS: &'static [Limit] = &[(&[2], "missing", Need::MAX_MISSING)];
}

impl From<&Need> for wire::Need {
    fn from(need: &Need) -> Self {
        Self {
            update_id: need.update_id.0.to_vec(),
            missing: need.missing.clone(),
        }
    }
}

impl TryFrom<wire::Need> for Need {
    type Error = ConvertError;

    fn try_from(need: wire::Need) -> Result<Self, ConvertError> {
        let at = |field| At(Self::NAME, field);
        at("missing").at_most(need.missing.len(), Self::MAX_MISSING)?;
        Ok(Self {
            update_id: at("update_id").update_id(&need.update_id)?,
            missing: need.missing,
        })
    }
}
