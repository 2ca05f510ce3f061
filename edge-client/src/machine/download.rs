//! Putting a model together from its chunks, in any order, within the announced size.

use std::collections::BTreeMap;

use wayside_domain::upload::{MIN_CHUNK_BYTES, join};

/// The chunks of one model that have arrived.
///
/// Invariant: never holds more than the announced bytes.
#[derive(Clone, Debug)]
pub struct Download {
    total_bytes: usize,
    total_chunks: usize,
    held_bytes: usize,
    chunks: BTreeMap<usize, Vec<u8>>,
}

impl Download {
    /// Nothing has arrived yet; `None` if such totals cannot be or exceed `max_bytes`.
    pub fn new(total_bytes: usize, total_chunks: usize, max_bytes: usize) -> Option<Self> {
        let most_chunks = total_bytes.div_ceil(MIN_CHUNK_BYTES);
        let fits =
            (1..=max_bytes).contains(&total_bytes) && (1..=most_chunks).contains(&total_chunks);
        fits.then(|| Self {
            total_bytes,
            total_chunks,
            held_bytes: 0,
            chunks: BTreeMap::new(),
        })
    }

    /// Takes in one chunk. Returns the whole once the last one is there; whether these are the right bytes is for the
    /// holder of the digest function to say. Chunks that cannot belong are ignored, and chunks whose sizes do not add
    /// up to the whole are forgotten together.
    pub fn on_part(&mut self, index: usize, data: Vec<u8>) -> Option<Vec<u8>> {
        let known = self.chunks.contains_key(&index);
        if known || index >= self.total_chunks || data.len() > self.total_bytes - self.held_bytes {
            return None;
        }
        self.held_bytes += data.len();
        self.chunks.insert(index, data);
        if self.chunks.len() < self.total_chunks {
            return None;
        }
        let whole = self.held_bytes == self.total_bytes;
        let chunks = std::mem::take(&mut self.chunks);
        self.held_bytes = 0;
        whole.then(|| join(chunks.into_values()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn totals_are_checked_before_anything_is_held() {
        for (bytes, chunks, fits) in [
            (3000, 1, true),
            (3000, 12, true),
            (3000, 13, false),
            (3001, 1, false),
            (0, 0, false),
            (0, 1, false),
            (3000, 0, false),
            (3000, usize::MAX, false),
            (usize::MAX, 1, false),
        ] {
            assert_eq!(
                Download::new(bytes, chunks, 3000).is_some(),
                fits,
                "{bytes} {chunks}"
            );
        }
    }

    #[test]
    fn wrong_chunks_hold_nothing_back() {
        let mut download = Download::new(600, 2, 600).unwrap();
        assert_eq!(download.on_part(2, vec![0; 10]), None);
        assert_eq!(download.on_part(0, vec![0; 601]), None);
        assert_eq!(download.on_part(0, vec![1; 300]), None);
        assert_eq!(
            download.on_part(1, vec![1; 299]),
            None,
            "sizes do not add up"
        );
        assert_eq!(download.on_part(0, vec![2; 300]), None);
        assert_eq!(
            download.on_part(0, vec![3; 300]),
            None,
            "a chunk comes twice"
        );
        let whole = download.on_part(1, vec![2; 300]);
        assert_eq!(whole, Some(vec![2; 600]));
    }

    proptest! {
        #[test]
        fn order_and_repetition_do_not_matter(
            len in 1_usize..3000,
            chunk in 256_usize..700,
            order in prop::collection::vec(0_usize..12, 0..40),
        ) {
            let whole: Vec<u8> = (0..=250_u8).cycle().take(len).collect();
            let total = len.div_ceil(chunk);
            let mut download = Download::new(len, total, 3000).unwrap();
            for index in order.into_iter().filter(|index| *index < total).chain(0..total) {
                let part = whole.chunks(chunk).nth(index).unwrap().to_vec();
                if let Some(got) = download.on_part(index, part) {
                    prop_assert_eq!(got, whole);
                    return Ok(());
                }
                prop_assert!(download.held_bytes <= len);
            }
            prop_assert!(false, "never complete");
        }
    }
}
