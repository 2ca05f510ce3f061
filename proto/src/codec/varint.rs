//! Unsigned LEB128 numbers in their shortest form.

/// Most bytes of a number.
pub(super) const MAX_VARINT: usize = 5;

pub(super) fn put_varint(to: &mut Vec<u8>, value: usize) {
    let mut value = value;
    while value >= 0x80 {
        to.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    to.push(value.to_le_bytes()[0]);
}

/// What stands at the front of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Varint {
    /// A number, and the bytes that it takes.
    Number(usize, usize),
    /// The bytes end within it.
    Short,
    /// Longer than [`MAX_VARINT`], or not in its shortest form.
    Malformed,
}

pub(super) fn read_varint(from: &[u8]) -> Varint {
    let mut value = 0_u64;
    for i in 0..MAX_VARINT {
        let Some(byte) = from.get(i) else {
            return Varint::Short;
        };
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            if i > 0 && *byte == 0 {
                return Varint::Malformed;
            }
            return usize::try_from(value).map_or(Varint::Malformed, |v| Varint::Number(v, i + 1));
        }
    }
    Varint::Malformed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for value in [0, 1, 127, 128, 16_383, 16_384, (1 << 32) - 1, (1 << 35) - 1] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(read_varint(&bytes), Varint::Number(value, bytes.len()));
            assert_eq!(read_varint(&bytes[..bytes.len() - 1]), Varint::Short);
            if let Some(last) = bytes.last_mut() {
                *last |= 0x80;
            }
            bytes.push(0);
            assert_eq!(read_varint(&bytes), Varint::Malformed, "{value}");
        }
        assert_eq!(read_varint(&[0xff; 9]), Varint::Malformed);
    }
}
