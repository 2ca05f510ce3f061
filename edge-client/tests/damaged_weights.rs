//! Files of weights that were damaged on the way, or made to harm: always an error that names what is wrong.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::Path;
use std::sync::LazyLock;

use edge_client::backbone::{BackboneError, read_float_bytes};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};
use wayside_extractor::float::FloatNetwork;

static GOOD: LazyLock<File> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    File::parse(&std::fs::read(folder.join("torchvision_small.safetensors")).unwrap())
});

/// A file in parts that can be changed one by one.
#[derive(Clone)]
struct File {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl File {
    fn parse(bytes: &[u8]) -> Self {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let start = 8 + usize::try_from(length).unwrap();
        Self {
            header: serde_json::from_slice(&bytes[8..start]).unwrap(),
            data: bytes[start..].to_vec(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let header = serde_json::to_vec(&self.header).unwrap();
        let length = (header.len() as u64).to_le_bytes();
        [&length[..], &header, &self.data].concat()
    }

    fn name(&self, index: Index) -> String {
        let names: Vec<&String> = self
            .header
            .keys()
            .filter(|key| *key != "__metadata__")
            .collect();
        (*index.get(&names)).clone()
    }

    fn extent(&self, name: &str) -> (usize, usize) {
        let number = |at| self.header[name]["data_offsets"][at].as_u64().unwrap();
        let number = |at| usize::try_from(number(at)).unwrap();
        (number(0), number(1))
    }

    /// The error of the changed file.
    fn error(&self) -> String {
        read_within(&self.bytes()).unwrap_err().to_string()
    }
}

/// What a parsed header takes beside the network.
const SLACK_BYTES: u64 = 256 * 1024;

/// Reads while counting: whatever a file claims, it never costs more than twice its size.
fn read_within(bytes: &[u8]) -> Result<FloatNetwork, BackboneError> {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(read_float_bytes(bytes)));
    let length = u64::try_from(bytes.len()).unwrap();
    let peak = counted.bytes_max;
    assert!(
        peak <= 2 * length + SLACK_BYTES,
        "{peak} bytes for {length}"
    );
    result.unwrap()
}

#[test]
fn the_undamaged_file_is_read() {
    assert!(read_within(&GOOD.bytes()).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn a_truncated_file_is_an_error(at in any::<Index>()) {
        let bytes = GOOD.bytes();
        let error = read_within(&bytes[..at.index(bytes.len())]).unwrap_err().to_string();
        prop_assert!(error.starts_with("damaged safetensors file"), "{}", error);
    }

    #[test]
    fn a_wrong_header_length_is_an_error(
        length in prop_oneof![Just(1_u64 << 63), Just(u64::MAX), any::<u64>(), 0_u64..400_000],
    ) {
        let mut bytes = GOOD.bytes();
        prop_assume!(bytes[..8] != length.to_le_bytes());
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let error = read_within(&bytes).unwrap_err().to_string();
        prop_assert!(error.starts_with("damaged safetensors file"), "{}", error);
    }

    #[test]
    fn a_swapped_shape_names_the_tensor(index in any::<Index>()) {
        let mut file = GOOD.clone();
        let name = file.name(index);
        let before = file.header[&name]["shape"].clone();
        file.header[&name]["shape"].as_array_mut().unwrap().reverse();
        prop_assume!(file.header[&name]["shape"] != before);
        let error = file.error();
        prop_assert!(error.starts_with(&format!("tensor {name} has shape")), "{}", error);
    }

    #[test]
    fn a_shape_of_another_size_names_the_tensor(
        index in any::<Index>(),
        side in prop_oneof![0_u64..100, Just(u64::MAX), Just(1 << 62)],
    ) {
        let mut file = GOOD.clone();
        let name = file.name(index);
        let shape = json!([side, 3, side]);
        file.header[&name]["shape"] = shape;
        let error = file.error();
        prop_assert!(error.contains(&format!("tensor {name} ")), "{}", error);
    }

    #[test]
    fn a_value_that_is_not_finite_names_the_tensor(
        index in any::<Index>(),
        place in any::<Index>(),
        value in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let mut file = GOOD.clone();
        let name = file.name(index);
        prop_assume!(file.header[&name]["dtype"] == "F32");
        let (from, to) = file.extent(&name);
        let at = from + 4 * place.index((to - from) / 4);
        file.data[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let expected = format!("tensor {name} holds a value that is not finite");
        prop_assert_eq!(file.error(), expected);
    }

    #[test]
    fn offsets_beyond_the_file_name_the_tensor(
        index in any::<Index>(),
        beyond in prop_oneof![Just(u64::MAX), Just(1 << 63), 170_000_u64..1 << 40],
    ) {
        let mut file = GOOD.clone();
        let name = file.name(index);
        file.header[&name]["data_offsets"][1] = json!(beyond);
        let error = file.error();
        prop_assert!(error.contains(&format!("tensor {name} ")), "{}", error);
    }

    #[test]
    fn overlapping_tensors_name_one(index in any::<Index>(), by in 1_usize..40) {
        let mut file = GOOD.clone();
        let name = file.name(index);
        let (from, to) = file.extent(&name);
        prop_assume!(from > 0);
        let by = by.min(from);
        file.header[&name]["data_offsets"] = json!([from - by, to - by]);
        let error = file.error();
        prop_assert!(error.starts_with("damaged safetensors file: tensor "), "{}", error);
        if by == 1 {
            prop_assert!(error.contains(&format!("tensor {name} ")), "{}", error);
        }
    }

    #[test]
    fn a_wrong_type_names_the_tensor(
        index in any::<Index>(),
        dtype in prop::sample::select(vec!["U8", "I8", "I32", "BF16", "F64", "I64", "F32", "F4"]),
    ) {
        let mut file = GOOD.clone();
        let name = file.name(index);
        prop_assume!(file.header[&name]["dtype"] != dtype);
        file.header[&name]["dtype"] = json!(dtype);
        let error = file.error();
        prop_assert!(error.contains(&format!("tensor {name} ")), "{}", error);
    }

    /// Some wrong bytes anywhere: an error or another network, never a panic.
    #[test]
    fn any_damage_is_an_error_or_another_network(
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 1..8),
        in_header in any::<bool>(),
    ) {
        let mut bytes = GOOD.bytes();
        let end = if in_header { bytes.len() - GOOD.data.len() } else { bytes.len() };
        for (at, byte) in damage {
            bytes[at.index(end)] = byte;
        }
        if let Ok(network) = read_within(&bytes) {
            prop_assert!(network.stem.weight.iter().all(|x| x.is_finite()));
        }
    }
}
