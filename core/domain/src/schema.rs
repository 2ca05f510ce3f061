//! What a model's trained part looks like: names and shapes of its tensors, in a fixed order.

use crate::ids::check_id;

/// Most parameters that a schema may have; lengths from a wire are checked against it before anything is allocated.
pub const MAX_PARAMETERS: usize = 1 << 26;
/// Most tensors of a schema.
pub const MAX_TENSORS: usize = 1024;

/// One tensor of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, such as `head-weight`; follows the pattern of ids.
    pub name: String,
    /// Extents; the last one is contiguous.
    pub shape: Vec<usize>,
}

/// Why a list of tensors is no schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// No tensor, or too many.
    #[error("a schema has 1 to {MAX_TENSORS} tensors, got {got}")]
    Tensors {
        /// Tensors given.
        got: usize,
    },
    /// A name that is not allowed or stands twice.
    #[error("tensor name {name:?} is not allowed or stands twice")]
    Name {
        /// The name, cut to 64 characters.
        name: String,
    },
    /// A shape with a zero, with overflow, or too large in sum.
    #[error("tensor {name} brings the schema to no parameters or more than {MAX_PARAMETERS}")]
    Size {
        /// The tensor at which it was noticed.
        name: String,
    },
}

/// Names and shapes of all trained tensors in order. Values travel as one flat slice in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    tensors: Vec<TensorSpec>,
    num_parameters: usize,
}

impl Schema {
    /// Checks names and sizes.
    pub fn new(tensors: Vec<TensorSpec>) -> Result<Self, SchemaError> {
        if tensors.is_empty() || tensors.len() > MAX_TENSORS {
            return Err(SchemaError::Tensors { got: tensors.len() });
        }
        let mut num_parameters = 0usize;
        for (i, tensor) in tensors.iter().enumerate() {
            let twice = tensors[..i]
                .iter()
                .any(|earlier| earlier.name == tensor.name);
            if twice || check_id(&tensor.name).is_err() {
                let name = tensor.name.chars().take(64).collect();
                return Err(SchemaError::Name { name });
            }
            let elements = tensor
                .shape
                .iter()
                .try_fold(1usize, |n, extent| n.checked_mul(*extent));
            num_parameters = elements
                .filter(|n| *n > 0)
                .and_then(|n| num_parameters.checked_add(n))
                .filter(|n| *n <= MAX_PARAMETERS)
                .ok_or_else(|| SchemaError::Size {
                    name: tensor.name.clone(),
                })?;
        }
        Ok(Self {
            tensors,
            num_parameters,
        })
    }

    /// The linear head on `features` features: `head-weight` `[features, classes]`, then `head-bias` `[classes]`.
    pub fn linear_head(features: usize, classes: usize) -> Result<Self, SchemaError> {
        Self::new(vec![
            TensorSpec {
                name: "head-weight".into(),
                shape: vec![features, classes],
            },
            TensorSpec {
                name: "head-bias".into(),
                shape: vec![classes],
            },
        ])
    }

    /// The tensors in order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Parameters of all tensors together.
    pub fn num_parameters(&self) -> usize {
        self.num_parameters
    }

    /// The range of each tensor in the flat slice.
    pub fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.tensors.iter().scan(0, |start, tensor| {
            let range = *start..*start + tensor.shape.iter().product::<usize>();
            *start = range.end;
            Some(range)
        })
    }

    /// One byte string for one schema: what the schema digest is taken over.
    /// For each tensor: name, a zero byte, number of extents, each extent (u64 little-endian).
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for tensor in &self.tensors {
            bytes.extend_from_slice(tensor.name.as_bytes());
            bytes.push(0);
            bytes.extend_from_slice(&(tensor.shape.len() as u64).to_le_bytes());
            for extent in &tensor.shape {
                bytes.extend_from_slice(&(*extent as u64).to_le_bytes());
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_has_weight_then_bias() {
        let schema = Schema::linear_head(480, 3).expect("a head");
        assert_eq!(schema.num_parameters(), 1443);
        assert_eq!(schema.ranges().collect::<Vec<_>>(), [0..1440, 1440..1443]);
    }

    #[test]
    fn sizes_and_names_are_checked_before_anything_is_allocated() {
        let spec = |name: &str, shape: &[usize]| TensorSpec {
            name: name.into(),
            shape: shape.to_vec(),
        };
        assert_eq!(Schema::new(vec![]), Err(SchemaError::Tensors { got: 0 }));
        assert!(matches!(
            Schema::new(vec![spec("a", &[usize::MAX, 2])]),
            Err(SchemaError::Size { .. })
        ));
        assert!(matches!(
            Schema::new(vec![spec("a", &[0])]),
            Err(SchemaError::Size { .. })
        ));
        assert!(matches!(
            Schema::new(vec![spec("a", &[1]), spec("a", &[1])]),
            Err(SchemaError::Name { .. })
        ));
        assert!(matches!(
            Schema::new(vec![spec(&"n".repeat(10_000), &[1])]),
            Err(SchemaError::Name { .. })
        ));
    }
}
