//! Which pairs to compare so that any number of values is sorted, whatever they are.

/// A sorting network: comparisons that sort every input of its length.
///
/// # Source
/// Batcher 1968, "Sorting networks and their applications": odd-even merge sort, in the form for any length of Knuth,
/// "The Art of Computer Programming" volume 3, 5.2.2, algorithm M.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    len: usize,
    pairs: Vec<(usize, usize)>,
}

impl Network {
    /// The network for `len` values.
    pub fn new(len: usize) -> Self {
        let mut pairs = Vec::new();
        let top = len.next_power_of_two() / 2;
        let mut p = top;
        while p > 0 {
            let (mut q, mut r, mut d) = (top, 0, p);
            loop {
                for i in (0..len.saturating_sub(d)).filter(|i| i & p == r) {
                    pairs.push((i, i + d));
                }
                if q == p {
                    break;
                }
                (d, q, r) = (q - p, q / 2, p);
            }
            p /= 2;
        }
        Self { len, pairs }
    }

    /// Values that it sorts.
    pub fn len(&self) -> usize {
        self.len
    }

    /// It sorts nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pairs in order: afterwards the first is not larger than the second.
    pub fn pairs(&self) -> &[(usize, usize)] {
        &self.pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network that sorts every row of zeros and ones sorts everything (Knuth, 5.3.4, theorem Z).
    #[test]
    fn zeros_and_ones_of_every_length_are_sorted() {
        for len in 0..=14 {
            let network = Network::new(len);
            for bits in 0u32..1 << len {
                let mut row: Vec<u32> = (0..len).map(|i| bits >> i & 1).collect();
                for &(i, j) in network.pairs() {
                    if row[i] > row[j] {
                        row.swap(i, j);
                    }
                }
                assert!(row.is_sorted(), "{len}: {bits:b}");
            }
        }
    }
}
