//! Checks that all messages share.

use super::ConvertError;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use wayside_domain::ids::{Digest, IdError, UpdateId};
use wayside_domain::schema::MAX_TENSORS;

/// Where a value stands: message and field.
#[derive(Clone, Copy, Debug)]
pub(super) struct At(pub(super) &'static str, pub(super) &'static str);

impl At {
    pub(super) fn id<T: FromStr<Err = IdError>>(self, text: &str) -> Result<T, ConvertError> {
        text.parse().map_err(|source| ConvertError::Id {
            message: self.0,
            field: self.1,
            source,
        })
    }

    pub(super) fn present<T>(self, value: Option<T>) -> Result<T, ConvertError> {
        let Self(message, field) = self;
        value.ok_or(ConvertError::Missing { message, field })
    }

    pub(super) fn length(self, got: usize, expected: usize) -> Result<(), ConvertError> {
        let Self(message, field) = self;
        if got == expected {
            return Ok(());
        }
        Err(ConvertError::Length {
            message,
            field,
            got,
            expected,
        })
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Result<Digest, ConvertError> {
        self.length(bytes.len(), 32)?;
        self.present(Digest::from_slice(bytes))
    }

    pub(super) fn update_id(self, bytes: &[u8]) -> Result<UpdateId, ConvertError> {
        self.length(bytes.len(), 16)?;
        self.present(UpdateId::from_slice(bytes))
    }

    pub(super) fn range(
        self,
        fits: bool,
        got: impl ToString,
        allowed: &'static str,
    ) -> Result<(), ConvertError> {
        if fits {
            return Ok(());
        }
        Err(ConvertError::Range {
            message: self.0,
            field: self.1,
            got: got.to_string().chars().take(128).collect(),
            allowed,
        })
    }

    pub(super) fn at_most(self, got: usize, limit: usize) -> Result<(), ConvertError> {
        let Self(message, field) = self;
        if got <= limit {
            return Ok(());
        }
        Err(ConvertError::TooMany {
            message,
            field,
            got,
            limit,
        })
    }

    pub(super) fn finite(self, got: f64) -> Result<f64, ConvertError> {
        let Self(message, field) = self;
        if got.is_finite() {
            return Ok(got);
        }
        Err(ConvertError::NotFinite {
            message,
            field,
            got,
        })
    }

    /// A finite number of at least 0.
    pub(super) fn magnitude(self, got: f64) -> Result<f64, ConvertError> {
        let got = self.finite(got)?;
        self.range(got >= 0.0, got, "0 or more")?;
        Ok(got)
    }

    /// Scale exponents, one a tensor.
    pub(super) fn exponents(self, wide: &[i32]) -> Result<Vec<i8>, ConvertError> {
        self.at_most(wide.len(), MAX_TENSORS)?;
        self.range(!wide.is_empty(), "an empty list", "one exponent a tensor")?;
        wide.iter()
            .map(|e| {
                self.range(i8::try_from(*e).is_ok(), e, "-128 to 127")?;
                Ok(i8::try_from(*e).unwrap_or_default())
            })
            .collect()
    }

    /// A short printable text that may go into a log.
    pub(super) fn label(self, text: String, max: usize) -> Result<String, ConvertError> {
        let fits = text.len() <= max && text.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        self.range(fits, &text, "short printable ASCII text")?;
        Ok(text)
    }

    /// Two places that must say the same.
    pub(super) fn agrees<T: PartialEq + fmt::Display>(
        self,
        body: &T,
        place: &'static str,
        other: &T,
    ) -> Result<(), ConvertError> {
        if body == other {
            return Ok(());
        }
        Err(ConvertError::Disagree {
            message: self.0,
            field: self.1,
            body: body.to_string(),
            place,
            other: other.to_string(),
        })
    }

    /// The topic is of another kind than the body.
    pub(super) fn wrong_topic(self, topic: &crate::topics::Topic) -> ConvertError {
        ConvertError::Disagree {
            message: self.0,
            field: self.1,
            body: self.0.to_owned(),
            place: "topic",
            other: topic.to_string(),
        }
    }
}

pub(super) fn wide(exponents: &[i8]) -> Vec<i32> {
    exponents.iter().map(|e| i32::from(*e)).collect()
}

/// Whole milliseconds, at most what the field holds.
pub(super) fn millis<T: TryFrom<u128> + Bounded>(span: Duration) -> T {
    T::try_from(span.as_millis()).unwrap_or(T::MAX)
}

pub(super) trait Bounded {
    const MAX: Self;
}

impl Bounded for u32 {
    const MAX: Self = u32::MAX;
}

impl Bounded for u64 {
    const MAX: Self = u64::MAX;
}

/// A repeated field that is counted before anything is decoded: the field numbers on the way to it from the outermost
/// message, its name, the most elements allowed in the whole message.
pub type Limit = (&'static [u32], &'static str, usize);

/// Counts repeated fields without decoding them: an empty element takes two bytes on the wire and up to hundreds in
/// memory. Bytes that make no sense are left for the decoder to refuse.
pub(super) fn count_repeated(
    message: &'static str,
    bytes: &[u8],
    limits: &[Limit],
) -> Result<(), ConvertError> {
    count(message, bytes, limits, |_| 1)
}

/// Counts repeated varints as [`count_repeated`] does: packed, each takes one byte or more on the wire and up to eight
/// in memory.
pub(super) fn count_numbers(
    message: &'static str,
    bytes: &[u8],
    limits: &[Limit],
) -> Result<(), ConvertError> {
    count(message, bytes, limits, |field| match field.kind {
        Kind::Delimited => field.content.iter().filter(|b| **b < 0x80).count(),
        Kind::Other => 1,
    })
}

fn count(
    message: &'static str,
    bytes: &[u8],
    limits: &[Limit],
    elements: fn(&Field<'_>) -> usize,
) -> Result<(), ConvertError> {
    for (path, field, limit) in limits {
        let mut count = 0;
        count_at(bytes, path, *limit, elements, &mut count);
        At(message, field).at_most(count, *limit)?;
    }
    Ok(())
}

/// Adds up the elements at the end of the path; stops behind the limit.
fn count_at(
    bytes: &[u8],
    path: &[u32],
    limit: usize,
    elements: fn(&Field<'_>) -> usize,
    count: &mut usize,
) {
    let Some((wanted, further)) = path.split_first() else {
        return;
    };
    let mut rest = bytes;
    while let Some(field) = next_field(rest) {
        rest = field.rest;
        if field.number == u64::from(*wanted) {
            if further.is_empty() {
                *count += elements(&field);
            } else {
                count_at(field.content, further, limit, elements, count);
            }
            if *count > limit {
                return;
            }
        }
    }
}

/// How a field's content is written.
enum Kind {
    /// With its length in front: a message, a text, bytes, or packed numbers.
    Delimited,
    Other,
}

struct Field<'a> {
    number: u64,
    kind: Kind,
    /// Content of a message, text or byte field; empty for numbers.
    content: &'a [u8],
    rest: &'a [u8],
}

/// The first field; `None` at the end or at the first byte that makes no sense.
fn next_field(bytes: &[u8]) -> Option<Field<'_>> {
    let (key, rest) = varint(bytes)?;
    let (content, rest) = match key & 7 {
        0 => (&[][..], varint(rest)?.1),
        1 => (&[][..], rest.get(8..)?),
        2 => {
            let (len, rest) = varint(rest)?;
            rest.split_at_checked(usize::try_from(len).ok()?)?
        }
        5 => (&[][..], rest.get(4..)?),
        // The decoder passes over groups that it does not know. Their fields are counted as if they stood outside:
        // that can only count too many.
        3 | 4 => (&[][..], rest),
        _ => return None,
    };
    let number = key >> 3;
    let kind = match key & 7 {
        2 => Kind::Delimited,
        _ => Kind::Other,
    };
    Some(Field {
        number,
        kind,
        content,
        rest,
    })
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_before_they_are_decoded() {
        let limits: &[Limit] = &[(&[8], "contributions", 3)];
        let three = [0x42, 0].repeat(3);
        assert_eq!(count_repeated("m", &three, limits), Ok(()));
        let mut four = three.clone();
        four.extend([0x08, 0x80, 0x01, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0x42, 1, 9]);
        assert_eq!(
            count_repeated("m", &four, limits),
            Err(ConvertError::TooMany {
                message: "m",
                field: "contributions",
                got: 4,
                limit: 3
            })
        );
        assert_eq!(count_repeated("m", &[0xff; 40], limits), Ok(()));
        let behind_a_group = [&[0x7b, 0x7c], four.as_slice()].concat();
        assert!(count_repeated("m", &behind_a_group, limits).is_err());
        assert_eq!(
            count_repeated("m", &[0x42, 0xff, 0xff, 0x7f], limits),
            Ok(())
        );
    }

    #[test]
    fn numbers_are_counted_packed_or_not() {
        let limits: &[Limit] = &[(&[2], "missing", 3)];
        let three = [0x12, 3, 5, 0x80, 0x01, 0x10, 7];
        assert_eq!(count_numbers("m", &three, limits), Ok(()));
        for four in [
            [&three[..], &[0x10, 0x80, 0x01]].concat(),
            [&three[..], &[0x12, 1, 0]].concat(),
            vec![0x12, 4, 0, 0, 0, 0],
        ] {
            assert_eq!(
                count_numbers("m", &four, limits),
                Err(ConvertError::TooMany {
                    message: "m",
                    field: "missing",
                    got: 4,
                    limit: 3
                })
            );
        }
        assert_eq!(count_numbers("m", &[0x12, 9, 0], limits), Ok(()));
    }

    #[test]
    fn elements_of_elements_are_counted_in_sum() {
        let limits: &[Limit] = &[(&[9, 4], "rounds.cohort", 3)];
        let two = [0x4a, 6, 0x08, 1, 0x22, 0, 0x22, 0];
        assert_eq!(count_repeated("m", &two, limits), Ok(()));
        assert!(count_repeated("m", &two.repeat(2), limits).is_err());
        assert_eq!(
            count_repeated("m", &[0x48, 6, 0x4a, 2, 0x22], limits),
            Ok(())
        );
    }
}
