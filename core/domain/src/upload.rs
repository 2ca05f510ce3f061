//! Putting an update together from its chunks, in any order, within bounds.
//!
//! Invariants: nothing is allocated for a declared total above the limit; one open upload a member; all open uploads
//! together stay within `max_open_bytes`; an upload that stops growing is asked for and then dropped; two chunks of
//! one upload that disagree end it.

use crate::ids::{Digest, RoundId, UpdateId};
use crate::time::Timestamp;
use crate::update::RejectReason;
use std::collections::BTreeMap;
use std::time::Duration;

/// Smallest chunk but for the last one; bounds the number of chunks that a total can be declared in.
pub const MIN_CHUNK_BYTES: usize = 256;

/// Bounds on uploads.
#[derive(Clone, Copy, Debug)]
pub struct UploadLimits {
    /// Most open bytes of all members together.
    pub max_open_bytes: usize,
    /// Silence after which missing chunks are asked for.
    pub need_after: Duration,
    /// Age at which an unfinished upload is dropped.
    pub max_age: Duration,
}

/// One chunk as it arrived.
#[derive(Clone, Debug)]
pub struct Part {
    /// The update it belongs to.
    pub update_id: UpdateId,
    /// The round that its topic names.
    pub round: RoundId,
    /// Bytes of the whole.
    pub total_bytes: usize,
    /// Chunks of the whole.
    pub total_chunks: usize,
    /// Digest of the whole.
    pub digest: Digest,
    /// Which chunk, from 0.
    pub index: usize,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// What a chunk, or time, leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadEffect<M> {
    /// All chunks are here. Whether the bytes are the right ones is for the holder of the digest function to say.
    Complete {
        /// Who sent it.
        member: M,
        /// Which update.
        update_id: UpdateId,
        /// The round that its topic names.
        round: RoundId,
        /// What the bytes must hash to.
        digest: Digest,
        /// The whole.
        bytes: Vec<u8>,
        /// When its first chunk arrived.
        first_chunk: Timestamp,
    },
    /// Ask for these chunks.
    Need {
        /// Whom to ask.
        member: M,
        /// Which update.
        update_id: UpdateId,
        /// Chunks that are not here.
        missing: Vec<u32>,
    },
    /// The upload is refused and forgotten.
    Reject {
        /// Who sent it.
        member: M,
        /// Which update.
        update_id: UpdateId,
        /// The round that its topic names.
        round: RoundId,
        /// Why.
        reason: RejectReason,
    },
}

#[derive(Clone, Debug)]
struct Upload {
    update_id: UpdateId,
    round: RoundId,
    total_bytes: usize,
    digest: Digest,
    chunks: Vec<Option<Vec<u8>>>,
    arrived: usize,
    held_bytes: usize,
    first_chunk: Timestamp,
    last_news: Timestamp,
}

/// All open uploads of one unit.
#[derive(Clone, Debug)]
pub struct Uploads<M> {
    limits: UploadLimits,
    open: BTreeMap<M, Upload>,
    open_bytes: usize,
    turned_away: u64,
}

impl<M: Ord + Clone> Uploads<M> {
    /// No uploads yet.
    pub fn new(limits: UploadLimits) -> Self {
        Self {
            limits,
            open: BTreeMap::new(),
            open_bytes: 0,
            turned_away: 0,
        }
    }

    /// Takes in one chunk.
    ///
    /// `max_bytes` is what the job's schema allows for one whole update. A new update of a member replaces its
    /// unfinished one. Where `max_open_bytes` has no room, the chunk is dropped and counted; the sender tries again.
    pub fn on_part(
        &mut self,
        now: Timestamp,
        member: &M,
        max_bytes: usize,
        part: Part,
    ) -> Option<UploadEffect<M>> {
        let (update_id, round) = (part.update_id, part.round);
        let most_chunks = part.total_bytes.div_ceil(MIN_CHUNK_BYTES).max(1);
        if part.total_bytes == 0 || part.total_chunks == 0 || part.index >= part.total_chunks {
            return Some(self.reject(member, update_id, round, RejectReason::Inconsistent));
        }
        if part.total_bytes > max_bytes
            || part.total_bytes > self.limits.max_open_bytes
            || part.total_chunks > most_chunks
            || part.data.len() > part.total_bytes
        {
            return Some(self.reject(member, update_id, round, RejectReason::TooLarge));
        }
        if self
            .open
            .get(member)
            .is_some_and(|upload| upload.update_id != update_id)
        {
            self.close(member);
        }
        if !self.open.contains_key(member) {
            if self.open_bytes + part.total_bytes > self.limits.max_open_bytes {
                self.turned_away += 1;
                return None;
            }
            self.open_bytes += part.total_bytes;
            let upload = Upload {
                update_id,
                round,
                total_bytes: part.total_bytes,
                digest: part.digest,
                chunks: vec![None; part.total_chunks],
                arrived: 0,
                held_bytes: 0,
                first_chunk: now,
                last_news: now,
            };
            self.open.insert(member.clone(), upload);
        }
        let upload = self.open.get_mut(member)?;
        let agrees = upload.round == round
            && upload.digest == part.digest
            && upload.total_bytes == part.total_bytes
            && upload.chunks.len() == part.total_chunks
            && upload.chunks[part.index]
                .as_ref()
                .is_none_or(|known| *known == part.data);
        if !agrees {
            return Some(self.reject(member, update_id, round, RejectReason::Inconsistent));
        }
        upload.last_news = now;
        if upload.chunks[part.index].is_none() {
            upload.arrived += 1;
            upload.held_bytes += part.data.len();
            upload.chunks[part.index] = Some(part.data);
        }
        let complete = upload.arrived == upload.chunks.len();
        if upload.held_bytes > upload.total_bytes
            || (complete && upload.held_bytes != upload.total_bytes)
        {
            return Some(self.reject(member, update_id, round, RejectReason::Inconsistent));
        }
        if !complete {
            return None;
        }
        let upload = self.close(member)?;
        Some(UploadEffect::Complete {
            member: member.clone(),
            update_id,
            round,
            digest: upload.digest,
            bytes: join(upload.chunks.into_iter().flatten()),
            first_chunk: upload.first_chunk,
        })
    }

    fn reject(
        &mut self,
        member: &M,
        update_id: UpdateId,
        round: RoundId,
        reason: RejectReason,
    ) -> UploadEffect<M> {
        if self
            .open
            .get(member)
            .is_some_and(|upload| upload.update_id == update_id)
        {
            self.close(member);
        }
        UploadEffect::Reject {
            member: member.clone(),
            update_id,
            round,
            reason,
        }
    }

    fn close(&mut self, member: &M) -> Option<Upload> {
        let upload = self.open.remove(member)?;
        self.open_bytes -= upload.total_bytes;
        Some(upload)
    }

    /// When [`Uploads::on_tick`] is next worth calling.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let limits = self.limits;
        self.open
            .values()
            .map(|upload| {
                (upload.last_news + limits.need_after).min(upload.first_chunk + limits.max_age)
            })
            .min()
    }

    /// Asks for what is missing and drops what is too old.
    pub fn on_tick(&mut self, now: Timestamp) -> Vec<UploadEffect<M>> {
        let limits = self.limits;
        let old: Vec<M> = self
            .open
            .iter()
            .filter(|(_, upload)| now >= upload.first_chunk + limits.max_age)
            .map(|(member, _)| member.clone())
            .collect();
        for member in &old {
            self.close(member);
        }
        let mut effects = Vec::new();
        for (member, upload) in &mut self.open {
            if now >= upload.last_news + limits.need_after {
                upload.last_news = now;
                let missing = upload
                    .chunks
                    .iter()
                    .zip(0u32..)
                    .filter(|(chunk, _)| chunk.is_none());
                effects.push(UploadEffect::Need {
                    member: member.clone(),
                    update_id: upload.update_id,
                    missing: missing.map(|(_, index)| index).take(1024).collect(),
                });
            }
        }
        effects
    }

    /// Bytes that all open uploads may come to hold.
    pub fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    /// Chunks dropped since the start because there was no room.
    pub fn turned_away(&self) -> u64 {
        self.turned_away
    }
}

/// Chunks as one; a single one is not copied.
pub fn join(mut chunks: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut whole = chunks.next().unwrap_or_default();
    for chunk in chunks {
        whole.extend_from_slice(&chunk);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uploads() -> Uploads<u32> {
        Uploads::new(UploadLimits {
            max_open_bytes: 10_000,
            need_after: Duration::from_millis(100),
            max_age: Duration::from_millis(1000),
        })
    }

    fn part(index: usize, total_chunks: usize, whole: &[u8], chunk: usize) -> Part {
        let data = whole.chunks(chunk).nth(index).unwrap_or_default().to_vec();
        Part {
            update_id: UpdateId([1; 16]),
            round: RoundId(1),
            total_bytes: whole.len(),
            total_chunks,
            digest: Digest([3; 32]),
            index,
            data,
        }
    }

    fn whole(len: usize) -> Vec<u8> {
        (0..=250u8).cycle().take(len).collect()
    }

    #[test]
    fn missing_chunks_are_asked_for_and_then_forgotten() {
        let (mut uploads, whole) = (uploads(), whole(1500));
        for index in [0, 1, 3, 4] {
            assert_eq!(
                uploads.on_part(Timestamp(0), &1, 2000, part(index, 5, &whole, 300)),
                None
            );
        }
        assert!(uploads.on_tick(Timestamp(99)).is_empty());
        let need = UploadEffect::Need {
            member: 1,
            update_id: UpdateId([1; 16]),
            missing: vec![2],
        };
        assert_eq!(uploads.on_tick(Timestamp(100)), [need]);
        assert_eq!(uploads.next_deadline(), Some(Timestamp(200)));
        assert!(uploads.on_tick(Timestamp(1000)).is_empty());
        assert_eq!((uploads.open_bytes(), uploads.next_deadline()), (0, None));
    }

    #[test]
    fn declared_totals_are_checked_before_anything_is_held() {
        let check = |change: fn(&mut Part), expected| {
            let mut uploads = uploads();
            let mut bad = part(0, 5, &whole(1500), 300);
            change(&mut bad);
            let effect = uploads.on_part(Timestamp(0), &1, 2000, bad);
            assert!(
                matches!(effect, Some(UploadEffect::Reject { reason, .. }) if reason == expected),
                "{effect:?}"
            );
            assert_eq!(uploads.open_bytes(), 0);
        };
        check(|p| p.total_chunks = 4_294_967_295, RejectReason::TooLarge);
        check(|p| p.total_bytes = 2001, RejectReason::TooLarge);
        check(|p| p.total_bytes = usize::MAX, RejectReason::TooLarge);
        check(|p| p.total_chunks = 0, RejectReason::Inconsistent);
        check(|p| p.total_bytes = 0, RejectReason::Inconsistent);
        check(|p| p.index = 5, RejectReason::Inconsistent);
        check(|p| p.data = vec![0; 1501], RejectReason::TooLarge);
    }

    #[test]
    fn a_thousand_uploads_with_one_chunk_each_stay_within_the_bound() {
        let mut uploads = uploads();
        for member in 0..1000 {
            uploads.on_part(Timestamp(0), &member, 2000, part(0, 5, &whole(1500), 300));
            assert!(uploads.open_bytes() <= 10_000);
        }
        assert_eq!(uploads.turned_away(), 994);
        uploads.on_tick(Timestamp(1000));
        assert_eq!(uploads.open_bytes(), 0);
    }

    #[test]
    fn chunks_that_disagree_end_the_upload() {
        let mut uploads = uploads();
        uploads.on_part(Timestamp(0), &1, 2000, part(0, 5, &whole(1500), 300));
        let mut other = part(0, 5, &whole(1500), 300);
        other.data[0] ^= 1;
        let effect = uploads.on_part(Timestamp(0), &1, 2000, other);
        assert!(matches!(
            effect,
            Some(UploadEffect::Reject {
                reason: RejectReason::Inconsistent,
                ..
            })
        ));
    }

    proptest! {
        /// Any order, any repetition: complete exactly when the last missing chunk arrives, with the right bytes.
        #[test]
        fn order_and_repetition_do_not_matter(
            len in 1usize..3000, chunk in 256usize..700, order in proptest::collection::vec(0usize..12, 0..40),
        ) {
            let whole = whole(len);
            let total = len.div_ceil(chunk);
            let (mut uploads, mut seen) = (uploads(), std::collections::BTreeSet::new());
            for index in order.into_iter().filter(|index| *index < total).chain(0..total) {
                let before = seen.len();
                seen.insert(index);
                match uploads.on_part(Timestamp(0), &1, 3000, part(index, total, &whole, chunk)) {
                    Some(UploadEffect::Complete { bytes, .. }) => {
                        prop_assert_eq!(seen.len(), total);
                        prop_assert_eq!(bytes, whole);
                        prop_assert_eq!(uploads.open_bytes(), 0);
                        return Ok(());
                    }
                    other => {
                        prop_assert_eq!(other, None);
                        prop_assert!(seen.len() < total || before == seen.len());
                    }
                }
            }
            prop_assert!(false, "never complete");
        }
    }
}
