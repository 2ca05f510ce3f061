//! Where tensors lie in the flat values, and in a block of them.

use std::ops::Range;
use wayside_domain::schema::Schema;

/// Where each tensor ends in the flat values.
#[derive(Clone, Debug)]
pub(super) struct Tensors {
    ends: Vec<usize>,
}

impl Tensors {
    /// Number of tensors.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Values of all tensors together.
    pub(super) fn values(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(super) fn of(schema: &Schema) -> Self {
        Self {
            ends: schema.ranges().map(|range| range.end).collect(),
        }
    }

    /// The first value of a tensor.
    pub(super) fn begin(&self, tensor: usize) -> usize {
        if tensor == 0 {
            0
        } else {
            self.ends[tensor - 1]
        }
    }

    /// The parts of tensors that some values consist of: tensor, and range within these values.
    pub(super) fn parts(
        &self,
        values: Range<usize>,
    ) -> impl Iterator<Item = (usize, Range<usize>)> {
        let first = self.ends.partition_point(|end| *end <= values.start);
        (first..self.ends.len())
            .map(move |tensor| {
                let begin = self.begin(tensor).max(values.start);
                let end = self.ends[tensor].min(values.end);
                (tensor, begin, end)
            })
            .take_while(|(_, begin, end)| begin < end)
            .map(move |(tensor, begin, end)| (tensor, begin - values.start..end - values.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wayside_domain::schema::TensorSpec;

    #[test]
    fn blocks_are_cut_at_tensors() {
        let tensor = |i: usize, len| TensorSpec {
            name: format!("t{i}"),
            shape: vec![len],
        };
        let lengths = [3, 1, 4, 2];
        let tensors = lengths.iter().enumerate().map(|(i, len)| tensor(i, *len));
        let tensors = Tensors::of(&Schema::new(tensors.collect()).unwrap());
        let parts = |range| tensors.parts(range).collect::<Vec<_>>();
        assert_eq!(parts(0..10), [(0, 0..3), (1, 3..4), (2, 4..8), (3, 8..10)]);
        assert_eq!(parts(1..4), [(0, 0..2), (1, 2..3)]);
        assert_eq!(parts(3..5), [(1, 0..1), (2, 1..2)]);
        assert_eq!(parts(5..7), [(2, 0..2)]);
        assert_eq!(parts(9..10), [(3, 0..1)]);
    }
}
