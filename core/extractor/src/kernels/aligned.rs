//! Numbers that begin at a cache line, so that no register's load takes two.

/// A slice at a multiple of 64 bytes.
#[derive(Debug)]
pub(crate) struct Aligned<T> {
    values: Vec<T>,
    start: usize,
    length: usize,
}

const LINE: usize = 64;

impl<T: Copy + Default> Aligned<T> {
    /// A copy.
    pub(crate) fn new(values: &[T]) -> Self {
        let mut aligned = Self::zeroed(values.len());
        aligned.copy_from_slice(values);
        aligned
    }

    /// So many zeros.
    pub(crate) fn zeroed(length: usize) -> Self {
        let values = vec![T::default(); length + LINE / size_of::<T>().max(1)];
        // Where no offset is known the numbers stand unaligned: slower, not wrong.
        let start = values.as_ptr().align_offset(LINE);
        Self {
            start: start.min(values.len() - length),
            values,
            length,
        }
    }
}

impl<T: Copy + Default> Clone for Aligned<T> {
    fn clone(&self) -> Self {
        Self::new(self)
    }
}

impl<T> std::ops::Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[self.start..self.start + self.length]
    }
}

impl<T> std::ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values[self.start..self.start + self.length]
    }
}
