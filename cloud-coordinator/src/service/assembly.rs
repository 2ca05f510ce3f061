//! Pieces of one partial aggregate put together.
//!
//! Memory: what has arrived, never what was announced; pieces come in order on one stream.

use wayside_domain::ids::{Digest, UpdateId};
use wayside_proto::codec;
use wayside_proto::convert::PartialPart;

/// Why pieces do not make a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AssemblyError {
    #[error("no pieces")]
    Empty,
    #[error("{got} bytes announced, at most {limit} are taken")]
    TooLarge { got: u64, limit: u64 },
    #[error("pieces of one stream do not agree, or are not in order")]
    Inconsistent,
    #[error("{got} of {expected} bytes arrived")]
    Short { got: u64, expected: u64 },
    #[error("digest of the whole differs from the announced one")]
    Digest,
}

#[derive(Debug)]
struct Head {
    partial_id: UpdateId,
    total_bytes: u64,
    digest: Digest,
}

/// The pieces so far.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    head: Option<Head>,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Adds the next piece.
    pub(super) fn push(&mut self, part: &PartialPart, limit: u64) -> Result<(), AssemblyError> {
        let head = self.head.get_or_insert(Head {
            partial_id: part.partial_id,
            total_bytes: part.total_bytes,
            digest: part.digest,
        });
        if head.total_bytes > limit {
            let got = head.total_bytes;
            return Err(AssemblyError::TooLarge { got, limit });
        }
        let agrees = head.partial_id == part.partial_id
            && head.total_bytes == part.total_bytes
            && head.digest == part.digest
            && part.offset == self.bytes.len() as u64
            && part.data.len() as u64 <= head.total_bytes - part.offset;
        if !agrees {
            return Err(AssemblyError::Inconsistent);
        }
        self.bytes.extend_from_slice(&part.data);
        Ok(())
    }

    /// Whose pieces they are, once there is one.
    pub(super) fn partial_id(&self) -> Option<UpdateId> {
        self.head.as_ref().map(|head| head.partial_id)
    }

    /// The whole, checked.
    pub(super) fn finish(self) -> Result<(UpdateId, Vec<u8>), AssemblyError> {
        let head = self.head.ok_or(AssemblyError::Empty)?;
        let got = self.bytes.len() as u64;
        if got != head.total_bytes {
            let expected = head.total_bytes;
            return Err(AssemblyError::Short { got, expected });
        }
        if codec::digest(&self.bytes) != head.digest {
            return Err(AssemblyError::Digest);
        }
        Ok((head.partial_id, self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(whole: &[u8], size: usize) -> Vec<PartialPart> {
        let part = |(i, data): (usize, &[u8])| PartialPart {
            partial_id: UpdateId([1; 16]),
            total_bytes: whole.len() as u64,
            digest: codec::digest(whole),
            offset: (i * size) as u64,
            data: data.to_vec(),
        };
        whole.chunks(size).enumerate().map(part).collect()
    }

    fn put_together(parts: &[PartialPart], limit: u64) -> Result<Vec<u8>, AssemblyError> {
        let mut assembly = Assembly::default();
        for part in parts {
            assembly.push(part, limit)?;
        }
        Ok(assembly.finish()?.1)
    }

    #[test]
    fn pieces_in_order_make_the_whole() {
        let whole: Vec<u8> = (0..=255).collect();
        for size in [1, 7, 256] {
            assert_eq!(put_together(&parts(&whole, size), 256), Ok(whole.clone()));
        }
    }

    #[test]
    fn each_fault_is_named() {
        let whole: Vec<u8> = (0..=255).collect();
        let check = |change: fn(&mut Vec<PartialPart>), expected: AssemblyError| {
            let mut parts = parts(&whole, 100);
            change(&mut parts);
            assert_eq!(put_together(&parts, 1000), Err(expected));
        };
        check(std::vec::Vec::clear, AssemblyError::Empty);
        check(
            |p| p.truncate(2),
            AssemblyError::Short {
                got: 200,
                expected: 256,
            },
        );
        check(|p| p.swap(0, 1), AssemblyError::Inconsistent);
        check(|p| p.push(p[2].clone()), AssemblyError::Inconsistent);
        check(
            |p| p[1].partial_id = UpdateId([2; 16]),
            AssemblyError::Inconsistent,
        );
        check(|p| p[1].total_bytes += 1, AssemblyError::Inconsistent);
        check(|p| p[1].data[0] ^= 1, AssemblyError::Digest);
        check(
            |p| p.iter_mut().for_each(|p| p.total_bytes = u64::MAX),
            AssemblyError::TooLarge {
                got: u64::MAX,
                limit: 1000,
            },
        );
    }
}
