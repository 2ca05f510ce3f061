//! safetensors files whose bytes depend on their content alone.
//!
//! The `safetensors` crate keeps metadata in a map of random order, so that the same version would have another digest
//! in each run. The format is a length, a JSON header and the data; writing it takes these few lines. Reading is left to
//! the crate.

use std::collections::BTreeMap;

/// One tensor to write.
pub(super) struct Tensor<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<u8>,
}

/// Values as F32, little-endian.
pub(super) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Values as F64, little-endian.
pub(super) fn f64_bytes(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// The file as bytes; tensors lie in the order given, which must be that of their alignment.
pub(super) fn write(tensors: &[Tensor<'_>], metadata: &BTreeMap<&str, String>) -> Vec<u8> {
    let mut header = BTreeMap::from([("__metadata__", serde_json::json!(metadata))]);
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.data.len();
        let entry = serde_json::json!({
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [start, end],
        });
        header.insert(tensor.name, entry);
    }
    let mut text = serde_json::json!(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    for tensor in tensors {
        bytes.extend_from_slice(&tensor.data);
    }
    bytes
}

/// Values of an F64 tensor of one dimension; `None` if it is missing or something else.
pub(super) fn read_f64(file: &safetensors::SafeTensors<'_>, name: &str) -> Option<Vec<f64>> {
    let view = file.tensor(name).ok()?;
    if view.dtype() != safetensors::Dtype::F64 || view.shape().len() != 1 {
        return None;
    }
    let (chunks, _) = view.data().as_chunks::<8>();
    Some(
        chunks
            .iter()
            .map(|bytes| f64::from_le_bytes(*bytes))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crate_reads_what_is_written() {
        let tensors = [
            Tensor {
                name: "b",
                dtype: "F64",
                shape: vec![2],
                data: f64_bytes(&[1.5, -0.0]),
            },
            Tensor {
                name: "a",
                dtype: "F32",
                shape: vec![1, 3],
                data: f32_bytes(&[1.0, 2.0, 3.0]),
            },
        ];
        let metadata = BTreeMap::from([("z", "1".to_owned()), ("classes", "red,\"q\"".to_owned())]);
        let bytes = write(&tensors, &metadata);
        assert_eq!(bytes, write(&tensors, &metadata));
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.tensor("a").unwrap().shape(), [1, 3]);
        assert_eq!(read_f64(&file, "b"), Some(vec![1.5, 0.0]));
        assert_eq!(read_f64(&file, "a"), None);
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["classes"], "red,\"q\"");
    }
}
