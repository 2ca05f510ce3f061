//! Names and numbers of things. A value of one of these types has been checked.

use std::fmt;
use std::str::FromStr;

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text has no characters, or more than [`MAX_ID_LEN`] bytes.
    #[error("an id has 1 to {MAX_ID_LEN} characters, got {got}")]
    Length {
        /// Bytes of the text that was refused.
        got: usize,
    },
    /// The text holds a character outside the pattern.
    #[error(
        "an id is letters, digits, `_` and `-` and begins with a letter or digit, got {got:?} at position {at}"
    )]
    Character {
        /// The first character that does not fit.
        got: char,
        /// Its position in characters, from 0.
        at: usize,
    },
}

/// Longest id in bytes. Ids become topic levels and file names.
pub const MAX_ID_LEN: usize = 64;

/// Checks `text` against the one pattern for ids, `^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`.
pub fn check_id(text: &str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > MAX_ID_LEN {
        return Err(IdError::Length { got: text.len() });
    }
    for (at, got) in text.chars().enumerate() {
        let fits = got.is_ascii_alphanumeric() || (at > 0 && (got == '_' || got == '-'));
        if !fits {
            return Err(IdError::Character { got, at });
        }
    }
    Ok(())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Takes a text that fits the pattern of [`check_id`].
            pub fn new(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                check_id(&text)?;
                Ok(Self(text))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// Name of a vehicle, unique in the fleet.
    VehicleId
}
text_id! {
    /// Name of a roadside unit, unique in the fleet.
    RoadsideId
}
text_id! {
    /// Name of a job: what is trained, on what terms.
    JobId
}
text_id! {
    /// Kubernetes namespace in which KubeEdge knows the fleet's devices.
    Namespace
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The number after this one; stays at the largest number.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number! {
    /// Number of a training round at one roadside unit, or of a merge at the cloud; counted from 1 within a job,
    /// later rounds have larger numbers, also after a restart.
    RoundId, "r"
}
number! {
    /// Number of a global model that the cloud made; 0 is the initial model.
    ModelVersion, "v"
}
number! {
    /// Which connection or start of a peer a message belongs to; later ones are larger.
    Generation, "g"
}

macro_rules! bytes_id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Takes exactly the right number of bytes; `None` for any other.
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }

            /// Reads the hexadecimal form that [`fmt::Display`] of the whole value gives (`{:#}`).
            pub fn from_hex(text: &str) -> Option<Self> {
                if text.len() != 2 * $len || !text.is_ascii() {
                    return None;
                }
                let mut bytes = [0; $len];
                for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
                    *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
                }
                Some(Self(bytes))
            }

            /// All bytes in hexadecimal, for file names, topics and wire texts.
            pub fn to_hex(self) -> String {
                use fmt::Write as _;
                self.0.iter().fold(String::with_capacity(2 * $len), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                })
            }
        }

        /// The first six bytes, as a log line wants them; `{:#}` gives all.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let hex = self.to_hex();
                f.write_str(if f.alternate() { &hex } else { &hex[..12] })
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

bytes_id! {
    /// Identity of one update: made once when the update is sealed, the same in every delivery of it.
    UpdateId, 16
}
bytes_id! {
    /// BLAKE3 of some bytes: a model, a payload, a schema. Whoever holds the bytes computes it; the domain only compares.
    Digest, 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_one_pattern() {
        for good in ["v1", "V1", "a", "0", "car-7_b", &"x".repeat(64)] {
            assert!(VehicleId::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "+",
            "#",
            "a/b",
            "../x",
            "-a",
            "_a",
            "a b",
            "é",
            "a\0",
            "$hw",
            &"x".repeat(65),
            &"x".repeat(300),
        ] {
            assert!(VehicleId::new(bad).is_err(), "{bad}");
        }
        assert_eq!(
            VehicleId::new("v/1"),
            Err(IdError::Character { got: '/', at: 1 })
        );
    }

    #[test]
    fn hex_goes_both_ways() {
        let id = UpdateId([0xab; 16]);
        assert_eq!(UpdateId::from_hex(&id.to_hex()), Some(id));
        assert_eq!(id.to_string(), "abababababab");
        assert_eq!(UpdateId::from_hex("zz"), None);
        assert_eq!(UpdateId::from_hex(&"é".repeat(16)), None);
        assert_eq!(UpdateId::from_slice(&[0; 15]), None);
    }
}
