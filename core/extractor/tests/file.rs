//! The quantized file: what is written is read, the same network gives the same bytes, and no damage makes a panic.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;
use safetensors::SafeTensors;
use wayside_extractor::file::{FORMAT, FileError, MAX_HEADER_BYTES, Provenance, read, write};
use wayside_extractor::quantized::{QuantConv, QuantNetwork};
use wayside_extractor::random::Widths;
use wayside_extractor::topology::{Family, Padding};

fn provenance() -> Provenance {
    Provenance {
        input_size: (128, 64),
        calibration: [0x1F; 32],
        source: std::array::from_fn(|index| u8::try_from(index * 8).unwrap()),
        origin: Some("somewhere, \"quoted\" \\ and\nover two lines \u{1F6A6}".into()),
        licence: Some("MIT".into()),
    }
}

/// A network of few channels, some of them the same so that residuals and absent expansions occur.
fn tiny(family: Family, widths: &[usize], pooled: Option<usize>, seed: u64) -> QuantNetwork {
    let mut widths = widths.iter().copied().cycle();
    let mut next = || widths.next().unwrap();
    let mut all = Widths::torchvision(family, 0.1);
    all.stem = next();
    for block in &mut all.blocks {
        (block.expansion, block.squeeze, block.output) = (next(), next(), next());
    }
    all.last = next();
    all.pooled = pooled;
    QuantNetwork::random_with(family, &all, seed, Padding::Same)
}

#[test]
fn what_is_written_is_read() {
    for family in [Family::Small, Family::Large] {
        for padding in [Padding::Same, Padding::Symmetric] {
            let mut network = QuantNetwork::random(family, 0.35, 7, padding);
            network.normalisation.scale = [1.0 / 255.0 / 0.229, 1e-30, f32::MAX];
            network.sixth = 1365.0 / 8192.0;
            network.border = [124, 0, 255];
            network.check().unwrap();
            let bytes = write(&network, &provenance());
            let (got, from) = read(&bytes).unwrap();
            assert!(got == network);
            assert_eq!(from, provenance());
        }
    }
}

#[test]
fn a_file_without_texts_has_none() {
    let mut from = provenance();
    (from.origin, from.licence) = (None, None);
    let network = tiny(Family::Small, &[3, 5], Some(4), 1);
    let (got, got_from) = read(&write(&network, &from)).unwrap();
    assert!(got == network && got_from == from);
}

/// Benchmarks of two versions compare only if they run the same networks.
#[test]
fn random_networks_and_files_are_always_the_same() {
    let check = |network: &QuantNetwork, digest: &str| {
        let bytes = write(network, &provenance());
        assert_eq!(bytes, write(network, &provenance()));
        assert_eq!(blake3::hash(&bytes).to_hex()[..16], *digest);
    };
    let small = QuantNetwork::random(Family::Small, 1.0, 0, Padding::Same);
    check(&small, "209c1656b8893484");
    let large = QuantNetwork::random(Family::Large, 0.75, 1, Padding::Symmetric);
    check(&large, "5b6dcb0884aae58c");
}

#[test]
fn random_networks_have_torchvisions_widths() {
    let small = QuantNetwork::random(Family::Small, 1.0, 3, Padding::Same);
    assert_eq!(small.last.output, 576);
    assert!(small.blocks[0].expand.is_none() && small.blocks[1].expand.is_some());
    let gate = small.blocks[10].gate.as_ref().unwrap();
    assert_eq!((gate.squeeze.output, gate.squeeze.input), (144, 576));
    let large = QuantNetwork::random(Family::Large, 1.0, 3, Padding::Same);
    assert_eq!(large.last.output, 960);
    assert_eq!(large.blocks[4].gate.as_ref().unwrap().squeeze.output, 32);
    let narrow = QuantNetwork::random(Family::Large, 0.75, 3, Padding::Same);
    assert_eq!((narrow.stem.output, narrow.last.output), (16, 720));
    for network in [small, large, narrow] {
        network.check().unwrap();
    }
}

#[test]
fn other_readers_understand_the_file() {
    let network = tiny(Family::Large, &[3, 5], None, 1);
    let bytes = write(&network, &provenance());
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    assert_eq!(metadata["format"], FORMAT);
    assert_eq!(metadata["network"], "large");
    assert_eq!(Some(&metadata["origin"]), provenance().origin.as_ref());
    let weight = file.tensor("features.0.0.weight").unwrap();
    assert_eq!(weight.shape(), [3, 3, 3, 3]);
    for (name, view) in file.tensors() {
        let width = view.dtype().bitsize() / 8;
        let start = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!(start % width, 0, "{name} is not aligned");
    }
}

/// Names of the parts of blocks with and without expansion and squeeze-excite, as in torchvision.
#[test]
fn parts_are_numbered_without_gaps() {
    let network = QuantNetwork::random(Family::Small, 0.5, 3, Padding::Same);
    let bytes = write(&network, &provenance());
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let check = |name: &str, shape: &[usize]| {
        assert_eq!(file.tensor(name).unwrap().shape(), shape, "{name}");
    };
    check("features.1.block.0.0.weight", &[8, 1, 3, 3]);
    check("features.1.block.1.fc1.weight", &[8, 8]);
    check("features.1.block.1.out_zero", &[8]);
    check("features.1.block.2.0.weight", &[8, 8, 1, 1]);
    check("features.2.block.0.0.weight", &[40, 8, 1, 1]);
    check("features.2.block.1.0.weight", &[40, 1, 3, 3]);
    check("features.2.block.2.0.out_scale", &[16]);
    check("features.4.block.2.fc2.low", &[1]);
    check("features.4.block.3.0.bias", &[24]);
    check("features.12.0.scale", &[288]);
}

type Tensors = BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)>;

/// Reads a good file's tensors and metadata, has them changed, and says what the reader thinks of the outcome.
fn after(change: impl FnOnce(&mut Tensors, &mut BTreeMap<String, String>)) -> FileError {
    let network = QuantNetwork::random(Family::Small, 0.25, 3, Padding::Same);
    let bytes = write(&network, &provenance());
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut metadata = header.metadata().clone().unwrap().into_iter().collect();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Tensors = file
        .iter()
        .map(|(name, view)| {
            let tensor = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            (name.to_owned(), tensor)
        })
        .collect();
    change(&mut tensors, &mut metadata);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), data);
        (name, view.unwrap())
    });
    let metadata = metadata.into_iter().collect();
    read(&safetensors::serialize(views, Some(metadata)).unwrap()).unwrap_err()
}

#[test]
fn what_is_wrong_is_named() {
    let check = |error: FileError, expected: &str| assert_eq!(error.to_string(), expected);
    let set = |name: &'static str, at: usize, value: f32| {
        after(move |tensors, _| {
            let data = &mut tensors.get_mut(name).unwrap().2;
            data[4 * at..][..4].copy_from_slice(&value.to_le_bytes());
        })
    };
    check(
        after(|tensors, _| drop(tensors.remove("features.3.block.1.0.bias"))),
        "tensor features.3.block.1.0.bias is missing",
    );
    check(
        after(|tensors, _| {
            let tensor = tensors["features.0.0.bias"].clone();
            tensors.insert("features.0.1.bias".into(), tensor);
        }),
        "tensor features.0.1.bias does not belong to the network",
    );
    check(
        after(|tensors, _| tensors.get_mut("features.0.0.weight").unwrap().1 = vec![8, 27]),
        "tensor features.0.0.weight is I8 [8, 27], expected I8 [8, 3, 3, 3]",
    );
    check(
        after(|tensors, _| {
            tensors.get_mut("features.0.0.out_zero").unwrap().0 = safetensors::Dtype::I8;
        }),
        "tensor features.0.0.out_zero is I8 [8], expected U8 [8]",
    );
    check(
        set("features.2.block.0.0.scale", 3, f32::NAN),
        "tensor features.2.block.0.0.scale: value NaN at 3 is no usable scale",
    );
    check(
        set("features.2.block.0.0.out_scale", 0, 1e-40),
        "tensor features.2.block.0.0.out_scale: value 1e-40 at 0 is no usable scale",
    );
    check(
        set("features.5.block.2.fc2.low", 0, f32::INFINITY),
        "tensor features.5.block.2.fc2.low: value inf at 0 is out of range",
    );
    check(
        set("features.5.block.2.fc2.step", 0, 1e-30),
        "tensor features.5.block.2.fc2.step: value 1e-30 at 0 is no usable scale",
    );
    check(
        set("features.5.block.2.fc1.bias", 1, f32::NEG_INFINITY),
        "tensor features.5.block.2.fc1.bias: value -inf at 1 is out of range",
    );
    check(
        set("features.1.block.1.out_scale", 1, 1e-10),
        "tensor features.1.block.1.out_scale: value 1e-10 at 1 is no usable scale",
    );
    // The largest integer as a bias, bit by bit.
    check(
        set("features.12.0.bias", 2, f32::from_bits(0x7FFF_FFFF)),
        "tensor features.12.0.weight: output channel 2 could overflow",
    );
    check(
        set("features.6.block.3.0.scale", 0, 1e-15),
        "tensor features.6.block.3.0.weight: output channel 0 could overflow",
    );
    check(
        after(|tensors, _| tensors.get_mut("features.12.0.weight").unwrap().2[5] = 0x80),
        "tensor features.12.0.weight: weight -128 at 5",
    );
    check(
        after(|tensors, _| tensors.get_mut("features.1.block.0.0.out_zero").unwrap().2[2] = 1),
        "tensor features.1.block.0.0.out_zero: zero point 1 in channel 2, expected 0 behind a ReLU",
    );
    let entry = |key: &'static str, text: &'static str| {
        after(move |_, metadata| drop(metadata.insert(key.into(), text.into())))
    };
    check(
        entry("format", "wayside-int8-2"),
        "metadata \"format\" is \"wayside-int8-2\", expected \"wayside-int8-1\"",
    );
    check(
        entry("padding", "valid"),
        "metadata \"padding\" is \"valid\", expected same or symmetric",
    );
    check(
        entry("border", "0 1 256"),
        "metadata \"border\" is \"0 1 256\", expected three bytes",
    );
    check(
        entry("scale", "1 2 3 4"),
        "metadata \"scale\" is \"1 2 3 4\", expected three numbers",
    );
    check(
        entry("shift", "1 NaN 3"),
        "tensor normalisation shift: value NaN at 1 is out of range",
    );
    check(
        entry("sixth", "6"),
        "tensor sixth: value 6.0 at 0 is out of range",
    );
    check(
        entry("input_size", "0x64"),
        "metadata \"input_size\" is \"0x64\", expected HEIGHTxWIDTH, 1 to 4096 each",
    );
    check(
        entry("source", "12"),
        "metadata \"source\" is \"12\", expected 64 hex digits",
    );
}

#[test]
fn a_huge_header_is_refused_before_it_is_read() {
    let mut bytes = write(&tiny(Family::Small, &[4], None, 1), &provenance());
    for length in [1 << 63, u64::MAX, MAX_HEADER_BYTES + 1] {
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let error = read_within(&bytes).unwrap_err();
        let FileError::HeaderTooLarge { got, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(got, length);
    }
}

/// What a network that was not read from a file may get wrong beside.
#[test]
fn check_finds_what_does_not_fit_together() {
    let good = || tiny(Family::Large, &[4, 6, 5], Some(3), 2);
    let check = |change: &dyn Fn(&mut QuantNetwork), expected: &str| {
        let mut network = good();
        change(&mut network);
        assert_eq!(network.check().unwrap_err().to_string(), expected);
    };
    good().check().unwrap();
    check(
        &|network| drop(network.blocks.pop()),
        "tensor blocks: 14 numbers, expected 15",
    );
    check(
        &|network| network.blocks[4].gate = None,
        "tensor features.5.block squeeze-excite: missing",
    );
    check(
        &|network| network.blocks[0].gate = network.blocks[4].gate.clone(),
        "tensor features.1.block squeeze-excite: does not belong to the network",
    );
    check(
        &|network| network.blocks[1].residual = true,
        "tensor features.2.block residual: does not belong to the network",
    );
    check(
        &|network| network.stem.weight.truncate(107),
        "tensor features.0.0.weight: 107 numbers, expected 108",
    );
    check(
        &|network| network.last.input = 9,
        "tensor features.16.0.weight: width or kernel 9, expected 4",
    );
    check(
        &|network| network.blocks[2].depthwise.kernel = 5,
        "tensor features.3.block.1.0.weight: width or kernel 5, expected 3",
    );
    check(
        &|network| network.last = empty(&network.last),
        "tensor features.16.0.weight: width or kernel 0, expected 1",
    );
    check(
        &|network| network.pooled.as_mut().unwrap().step = f32::MIN_POSITIVE,
        "tensor classifier.0.step: value 1.1754944e-38 at 0 is no usable scale",
    );
}

fn empty(layer: &QuantConv) -> QuantConv {
    QuantConv {
        output: 0,
        weight: vec![],
        bias: vec![],
        scale: vec![],
        ..layer.clone()
    }
}

/// Where the header ends.
fn data_start(bytes: &[u8]) -> usize {
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    8 + usize::try_from(length).unwrap()
}

/// What a parsed header takes beside the network.
const SLACK_BYTES: u64 = 256 * 1024;

/// Reads while counting: whatever a file claims, it never costs more than twice its size.
fn read_within(bytes: &[u8]) -> Result<(QuantNetwork, Provenance), FileError> {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(read(bytes)));
    let length = u64::try_from(bytes.len()).unwrap();
    // The bytes themselves are the first time.
    let peak = length + counted.bytes_max;
    assert!(
        peak <= 2 * length + SLACK_BYTES,
        "{peak} bytes for {length}"
    );
    result.unwrap()
}

/// A damaged file is refused, or what came of it can be run.
fn survive(bytes: &[u8]) {
    match read_within(bytes) {
        Ok((network, _)) => network.check().unwrap(),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_widths_are_read_back(
        widths in prop::collection::vec(1_usize..20, 1..9),
        pooled in prop::option::of(1_usize..20),
        large in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let family = if large { Family::Large } else { Family::Small };
        let network = tiny(family, &widths, pooled, seed);
        network.check().unwrap();
        let (got, _) = read(&write(&network, &provenance())).unwrap();
        prop_assert!(got == network);
    }

    #[test]
    fn a_file_cut_short_is_refused(keep in any::<Index>()) {
        let bytes = write(&tiny(Family::Small, &[3, 4], Some(2), 1), &provenance());
        prop_assert!(read_within(&bytes[..keep.index(bytes.len())]).is_err());
    }

    #[test]
    fn flipped_bytes_make_no_panic(
        flips in prop::collection::vec((any::<Index>(), 1_u8..), 1..6),
        in_header in any::<bool>(),
    ) {
        let mut bytes = write(&tiny(Family::Small, &[3, 4], Some(2), 1), &provenance());
        let header = data_start(&bytes);
        let range = if in_header { header } else { bytes.len() };
        for (at, flip) in flips {
            bytes[at.index(range)] ^= flip;
        }
        survive(&bytes);
    }

    /// Digits of the header swapped for others: shapes, offsets and names that are still JSON.
    #[test]
    fn other_digits_in_the_header_make_no_panic(changes in prop::collection::vec((any::<Index>(), b'0'..=b'9'), 1..4)) {
        let mut bytes = write(&tiny(Family::Small, &[3, 4], Some(2), 1), &provenance());
        let header = data_start(&bytes);
        let digits: Vec<usize> = (8..header).filter(|at| bytes[*at].is_ascii_digit()).collect();
        for (at, digit) in changes {
            bytes[digits[at.index(digits.len())]] = digit;
        }
        survive(&bytes);
    }

    /// Any number in place of any scale, bias, low or step.
    #[test]
    fn other_numbers_make_no_panic(at in any::<Index>(), bits in any::<u32>()) {
        let mut bytes = write(&tiny(Family::Large, &[3, 4], Some(2), 1), &provenance());
        let start = data_start(&bytes);
        let words = (bytes.len() - start) / 4;
        let word = start + 4 * at.index(words);
        bytes[word..word + 4].copy_from_slice(&bits.to_le_bytes());
        survive(&bytes);
    }

    #[test]
    fn noise_makes_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read_within(&bytes).is_err());
    }
}
