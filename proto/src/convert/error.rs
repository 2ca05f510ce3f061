//! Why a message from outside is refused.

use wayside_domain::head::StandardisationError;
use wayside_domain::ids::IdError;
use wayside_domain::job::JobError;
use wayside_domain::schema::SchemaError;
use wayside_domain::update::RejectReason;

/// Why a message from outside is refused. `message` and `field` are the names in the `.proto` files.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConvertError {
    /// More bytes than such a message can have.
    #[error("{message} of {got} bytes, the limit is {limit}")]
    TooLarge {
        /// The message.
        message: &'static str,
        /// Its length.
        got: usize,
        /// The most allowed.
        limit: usize,
    },
    /// No protobuf, or fields of other types.
    #[error("{message} is not readable: {detail}")]
    Malformed {
        /// The message.
        message: &'static str,
        /// What the decoder says.
        detail: String,
    },
    /// A field that must be there is not.
    #[error("{message} lacks {field}")]
    Missing {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field that should be an id is none.
    #[error("{field} of {message}: {source}")]
    Id {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        #[source]
        source: IdError,
    },
    /// A field of another length than its meaning asks for.
    #[error("{field} of {message} has length {got}, expected {expected}")]
    Length {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// Its length.
        got: usize,
        /// The length that fits.
        expected: usize,
    },
    /// A repeated field with too many elements.
    #[error("{field} of {message} has {got} elements, the limit is {limit}")]
    TooMany {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// Its elements, as far as they were counted.
        got: usize,
        /// The most allowed.
        limit: usize,
    },
    /// A number or text out of its range.
    #[error("{field} of {message} is {got}, allowed is {allowed}")]
    Range {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// What came.
        got: String,
        /// The range in words.
        allowed: &'static str,
    },
    /// NaN or infinity.
    #[error("{field} of {message} is {got}")]
    NotFinite {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// What came.
        got: f64,
    },
    /// A job with a value out of its range.
    #[error("job: {0}")]
    Job(#[from] JobError),
    /// Feature statistics that cannot be used.
    #[error("feature statistics: {0}")]
    Standardisation(#[from] StandardisationError),
    /// Tensors that are no schema.
    #[error("schema: {0}")]
    Schema(#[from] SchemaError),
    /// Two places that must say the same do not.
    #[error("{field} of {message} is {body}, {place} says {other}")]
    Disagree {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// As the field says.
        body: String,
        /// The other place: `topic`, or a neighbouring field.
        place: &'static str,
        /// As the other place says.
        other: String,
    },
}

impl ConvertError {
    /// The short answer for the sender; the detail stays in our log.
    pub fn reason(&self) -> RejectReason {
        match self {
            Self::TooLarge { .. } | Self::TooMany { .. } => RejectReason::TooLarge,
            Self::NotFinite { .. } => RejectReason::NotFinite,
            Self::Disagree { .. } => RejectReason::Inconsistent,
            Self::Job(_) | Self::Schema(_) => RejectReason::WrongSchema,
            _ => RejectReason::Damaged,
        }
    }

    /// Sending the same bytes again cannot help.
    pub fn is_transient(&self) -> bool {
        false
    }
}
