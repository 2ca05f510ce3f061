//! The curve as an event file that `TensorBoard` reads.
//!
//! An event file is a row of records: length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data, all
//! little-endian. Each record is one `Event` message, of which only five fields are written here, so they are put down
//! by hand.
//!
//! # Source
//! TensorFlow, `tensorflow/core/lib/io/record_writer.h` and `tensorflow/core/util/event.proto`.

use super::record::{Point, RunRecord};

/// Name of the file; `TensorBoard` looks for `tfevents` in it. The number is where TensorFlow has the time of writing.
pub const FILE_NAME: &str = "events.out.tfevents.0000000000.wayside";

/// The event file of a run: the scalars `accuracy`, `macro_recall`, `up_bytes`, `down_bytes`, `energy_j` and
/// `contributors` of each version.
///
/// The step is the version; the time is the simulated time in seconds, so that the file depends on nothing else.
pub fn events(run: &RunRecord) -> Vec<u8> {
    let mut file = Vec::new();
    // Readers want the version of the format first: `Event.file_version`, field 3.
    let mut head = event(0.0, 0);
    put_bytes(&mut head, 3, b"brain.Event:2");
    put_record(&mut file, &head);
    for point in &run.curve {
        let mut event = event(point.simulated_s, point.version);
        put_bytes(&mut event, 5, &summary(point)); // `Event.summary`
        put_record(&mut file, &event);
    }
    file
}

/// An `Event` with `wall_time` (field 1, double) and `step` (field 2, int64), each left out where it is 0.
fn event(wall_time: f64, step: u64) -> Vec<u8> {
    let mut message = Vec::new();
    if wall_time != 0.0 {
        message.push(1 << 3 | 1);
        message.extend_from_slice(&wall_time.to_le_bytes());
    }
    if step > 0 {
        message.push(2 << 3);
        put_varint(&mut message, step);
    }
    message
}

/// A `Summary`: one `value` (field 1) for each figure that is there.
fn summary(point: &Point) -> Vec<u8> {
    let figures = [
        ("accuracy", point.accuracy),
        ("macro_recall", point.macro_recall),
        ("up_bytes", Some(point.up_bytes as f64)),
        ("down_bytes", Some(point.down_bytes as f64)),
        ("energy_j", Some(point.energy_j)),
        ("contributors", Some(point.contributors as f64)),
    ];
    let mut message = Vec::new();
    for (tag, figure) in figures {
        let Some(figure) = figure else { continue };
        let mut value = Vec::new();
        put_bytes(&mut value, 1, tag.as_bytes()); // `tag`
        value.push(2 << 3 | 5); // `simple_value`, float
        #[allow(clippy::cast_possible_truncation, reason = "the format has no doubles")]
        value.extend_from_slice(&(figure as f32).to_le_bytes());
        put_bytes(&mut message, 1, &value);
    }
    message
}

fn put_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    put_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn put_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(seven_bits(value) | 0x80);
        value >>= 7;
    }
    message.push(seven_bits(value));
}

/// The lowest seven bits.
fn seven_bits(value: u64) -> u8 {
    value.to_le_bytes()[0] & 0x7f
}

fn put_record(file: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    file.extend_from_slice(&length);
    file.extend_from_slice(&masked(crc32c(&length)).to_le_bytes());
    file.extend_from_slice(data);
    file.extend_from_slice(&masked(crc32c(data)).to_le_bytes());
}

/// A checksum of data that holds checksums is weak, so that they are stored rotated and with a constant added.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: an event file is small, and a table would be longer than this.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::record;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Takes `n` bytes off the front.
    fn take<'a>(data: &mut &'a [u8], n: usize) -> &'a [u8] {
        let (front, rest) = data.split_at(n);
        *data = rest;
        front
    }

    fn varint(data: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = take(data, 1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }

    /// The fields of a message, each with its raw bytes; varints are written out as eight bytes.
    fn fields(mut data: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut fields = Vec::new();
        while !data.is_empty() {
            let key = varint(&mut data);
            let bytes = match key & 7 {
                0 => varint(&mut data).to_le_bytes().to_vec(),
                1 => take(&mut data, 8).to_vec(),
                2 => {
                    let length = usize::try_from(varint(&mut data)).unwrap();
                    take(&mut data, length).to_vec()
                }
                5 => take(&mut data, 4).to_vec(),
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, bytes));
        }
        fields
    }

    fn checked(crc: &[u8], data: &[u8]) {
        let stored = u32::from_le_bytes(crc.try_into().unwrap());
        let unmasked = stored.wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(unmasked, crc32c(data));
    }

    fn records(mut file: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while !file.is_empty() {
            let length = take(&mut file, 8);
            checked(take(&mut file, 4), length);
            let length = u64::from_le_bytes(length.try_into().unwrap());
            let data = take(&mut file, usize::try_from(length).unwrap());
            checked(take(&mut file, 4), data);
            records.push(data.to_vec());
        }
        records
    }

    fn check(run: &RunRecord) {
        let records = records(&events(run));
        assert_eq!(records.len(), run.curve.len() + 1);
        assert_eq!(fields(&records[0])[0], (3, b"brain.Event:2".to_vec()));
        for (record, point) in records[1..].iter().zip(&run.curve) {
            let (mut time, mut step, mut scalars) = (0.0, 0, BTreeMap::new());
            for (field, bytes) in fields(record) {
                match field {
                    1 => time = f64::from_le_bytes(bytes.try_into().unwrap()),
                    2 => step = u64::from_le_bytes(bytes.try_into().unwrap()),
                    5 => {
                        for (_, value) in fields(&bytes) {
                            let value = fields(&value);
                            let tag = String::from_utf8(value[0].1.clone()).unwrap();
                            let bits: [u8; 4] = value[1].1.clone().try_into().unwrap();
                            scalars.insert(tag, f32::from_le_bytes(bits));
                        }
                    }
                    other => panic!("field {other}"),
                }
            }
            assert_eq!((time, step), (point.simulated_s, point.version));
            #[allow(clippy::cast_possible_truncation, reason = "as in the file")]
            let single = |value: f64| value as f32;
            assert_eq!(scalars.get("accuracy").copied(), point.accuracy.map(single));
            assert_eq!(
                scalars.get("macro_recall").copied(),
                point.macro_recall.map(single)
            );
            for (tag, expected) in [
                ("up_bytes", point.up_bytes as f64),
                ("down_bytes", point.down_bytes as f64),
                ("energy_j", point.energy_j),
                ("contributors", point.contributors as f64),
            ] {
                assert_eq!(scalars.get(tag).copied(), Some(single(expected)));
            }
        }
    }

    #[test]
    fn a_sample_is_read_back() {
        check(&record(1));
    }

    proptest! {
        #[test]
        fn any_point_is_read_back(version: u64, up: u64, accuracy: Option<f32>, s in 0.0..1e9) {
            let curve = vec![Point {
                version: version >> 1,
                simulated_s: s,
                accuracy: accuracy.map(|a| if a.is_finite() { f64::from(a) } else { 0.0 }),
                up_bytes: up,
                ..Point::default()
            }];
            check(&RunRecord { curve, ..RunRecord::default() });
        }
    }

    #[test]
    fn the_checksum_is_that_of_castagnoli() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283); // the check value of the catalogue of CRCs
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa); // RFC 3720, B.4
    }

    // Both records as TensorBoard 2.21 writes them itself (`tensorboard.summary.writer.record_writer`).
    #[test]
    fn the_bytes_are_golden() {
        let run = RunRecord {
            curve: vec![Point {
                version: 300,
                simulated_s: 1.5,
                accuracy: Some(0.75),
                up_bytes: 1000,
                down_bytes: 2000,
                energy_j: 2.5,
                contributors: 3,
                ..Point::default()
            }],
            ..RunRecord::default()
        };
        let golden = concat!(
            "0f 00 00 00 00 00 00 00 6d 53 2b 09 1a 0d 62 72 61 69 6e 2e 45 76 65 6e 74 3a 32 fc 98 51 29 ",
            "69 00 00 00 00 00 00 00 36 0b 3c 6e 09 00 00 00 00 00 00 f8 3f 10 ac 02 \
             2a 5b 0a 0f 0a 08 61 63 63 75 72 61 63 79 15 00 00 40 3f 0a 0f 0a 08 75 \
             70 5f 62 79 74 65 73 15 00 00 7a 44 0a 11 0a 0a 64 6f 77 6e 5f 62 79 74 \
             65 73 15 00 00 fa 44 0a 0f 0a 08 65 6e 65 72 67 79 5f 6a 15 00 00 20 40 \
             0a 13 0a 0c 63 6f 6e 74 72 69 62 75 74 6f 72 73 15 00 00 40 40 17 81 96 \
             c3",
        );
        let hex: Vec<String> = events(&run).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex.join(" "), golden);
    }
}
