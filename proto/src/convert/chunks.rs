//! Cutting bytes into chunks.

/// Smallest chunk that a sender may use, in bytes: it bounds how many chunks a total can have.
pub const MIN_CHUNK_BYTES: usize = 256;

/// The chunks of `bytes`, all of `chunk_bytes` (at least 1) but for a shorter last one; none for no bytes.
pub fn split(bytes: &[u8], chunk_bytes: usize) -> impl ExactSizeIterator<Item = &[u8]> {
    bytes.chunks(chunk_bytes.max(1))
}

/// How many chunks [`split`] gives for that many bytes.
pub fn chunk_count(bytes: usize, chunk_bytes: usize) -> usize {
    bytes.div_ceil(chunk_bytes.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_make_up_the_whole() {
        for len in [0, 1, 255, 256, 257, 3000] {
            let bytes: Vec<u8> = (0..len).map(|i: usize| i.to_le_bytes()[0]).collect();
            for size in [0, 1, 256, 5000] {
                let chunks: Vec<&[u8]> = split(&bytes, size).collect();
                assert_eq!(chunks.len(), chunk_count(len, size));
                assert_eq!(chunks.concat(), bytes);
            }
        }
    }
}
