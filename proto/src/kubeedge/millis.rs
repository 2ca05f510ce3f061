//! Times on the wire: milliseconds since the Unix epoch, or 0 for "not known".

use serde::de::{self, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;
use wayside_domain::time::Timestamp;

/// The earliest time that is taken for milliseconds (March 1973). What is smaller, but for 0, is in seconds or from a
/// clock that was never set.
pub const EARLIEST: Timestamp = Timestamp(100_000_000_000);
/// Integers up to here are exact in JSON numbers with a point.
const LARGEST_FLOAT: f64 = 9_007_199_254_740_992.0;

/// A time from a clock that was never set is written as 0.
#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "shape that serde asks for"
)]
pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(if *time < EARLIEST { 0 } else { time.0 })
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    from.deserialize_any(Millis)
}

struct Millis;

impl Visitor<'_> for Millis {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time in milliseconds since 1970, or 0")
    }

    fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Timestamp, E> {
        let time = Timestamp(millis);
        if millis != 0 && time < EARLIEST {
            return Err(E::invalid_value(de::Unexpected::Unsigned(millis), &self));
        }
        Ok(time)
    }

    fn visit_i64<E: de::Error>(self, millis: i64) -> Result<Timestamp, E> {
        let unsigned = u64::try_from(millis)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(millis), &self))?;
        self.visit_u64(unsigned)
    }

    /// Some encoders write every number with a point: whole numbers pass.
    fn visit_f64<E: de::Error>(self, millis: f64) -> Result<Timestamp, E> {
        if !(0.0..=LARGEST_FLOAT).contains(&millis) || millis.fract() != 0.0 {
            return Err(E::invalid_value(de::Unexpected::Float(millis), &self));
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number from 0 to 2^53, checked just above"
        )]
        let whole = millis as u64;
        self.visit_u64(whole)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Timestamp, E> {
        Ok(Timestamp(0))
    }
}
