//! Where vehicles were, from a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;

use super::Millis;
use super::error::WorldError;
use super::millis;

/// Latest time in a trace, in seconds: about 30 years.
const LATEST_S: f64 = 1e9;

/// Largest coordinate in metres.
const FARTHEST_M: f64 = 1e6;

/// One row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub at: Millis,
    pub x: f32,
    pub y: f32,
}

/// One vehicle: its samples and its trips, as ranges of the trace's.
#[derive(Clone, Debug)]
struct Track {
    samples: Range<u32>,
    trips: Range<u32>,
}

/// A whole file. A trip is a row of samples without a gap, two of them or more.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    samples: Vec<Sample>,
    /// First and last sample of each trip.
    trips: Vec<(u32, u32)>,
    tracks: Vec<Track>,
    gap_ms: Millis,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// [`WorldError::Trace`], [`WorldError::Row`].
    pub(super) fn open(path: &Path, gap_ms: Millis) -> Result<Self, WorldError> {
        let file = File::open(path).map_err(|source| WorldError::Trace {
            path: path.to_owned(),
            source,
        })?;
        Self::read(BufReader::new(file), path, gap_ms)
    }

    /// Reads rows `time,vehicle,x,y`; `path` is for messages only.
    pub(super) fn read(
        rows: impl BufRead,
        path: &Path,
        gap_ms: Millis,
    ) -> Result<Self, WorldError> {
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        let mut vehicles: Vec<Vec<Sample>> = Vec::new();
        for (i, row) in rows.lines().enumerate() {
            let row = row.map_err(|source| WorldError::Trace {
                path: path.to_owned(),
                source,
            })?;
            let row = row.trim();
            if row.is_empty() || (i == 0 && row.starts_with("time")) {
                continue;
            }
            let refuse = |reason| WorldError::Row {
                path: path.to_owned(),
                line: i + 1,
                reason,
            };
            let (name, sample) = parse(row).map_err(refuse)?;
            let vehicle = if let Some(known) = names.get(name) {
                *known
            } else {
                names.insert(name.to_owned(), vehicles.len());
                vehicles.push(Vec::new());
                vehicles.len() - 1
            };
            let track = &mut vehicles[vehicle];
            if track.last().is_some_and(|last| last.at >= sample.at) {
                return Err(refuse(format!(
                    "time is not later than in the last row of vehicle {name:?}"
                )));
            }
            track.push(sample);
        }
        Ok(Self::new(vehicles, gap_ms))
    }

    fn new(vehicles: Vec<Vec<Sample>>, gap_ms: Millis) -> Self {
        let number = |count: usize| u32::try_from(count).expect("fewer than 2^32 rows fit memory");
        let mut trace = Self {
            samples: Vec::new(),
            trips: Vec::new(),
            tracks: Vec::new(),
            gap_ms,
        };
        for samples in vehicles {
            let first = number(trace.samples.len());
            let first_trip = number(trace.trips.len());
            let mut start = first;
            for (i, sample) in (first..).zip(&samples) {
                let ends = samples
                    .get((i - first) as usize + 1)
                    .is_none_or(|next| next.at - sample.at > gap_ms);
                if ends {
                    if start < i {
                        trace.trips.push((start, i));
                    }
                    start = i + 1;
                }
            }
            trace.samples.extend(samples);
            trace.tracks.push(Track {
                samples: first..number(trace.samples.len()),
                trips: first_trip..number(trace.trips.len()),
            });
        }
        trace
    }

    /// Vehicles in the file.
    pub(super) fn vehicles(&self) -> usize {
        self.tracks.len()
    }

    /// Largest x and largest y of all samples, in metres.
    pub(super) fn extent(&self) -> (f64, f64) {
        self.samples.iter().fold((0.0, 0.0), |(x, y), sample| {
            (f64::from(sample.x).max(x), f64::from(sample.y).max(y))
        })
    }

    pub(super) fn sample(&self, number: u32) -> Sample {
        self.samples[number as usize]
    }

    /// First and last sample of a trip.
    pub(super) fn trip(&self, number: u32) -> (u32, u32) {
        self.trips[number as usize]
    }

    /// Numbers of a vehicle's trips.
    pub(super) fn trips_of(&self, vehicle: u32) -> Range<u32> {
        self.tracks[vehicle as usize].trips.clone()
    }

    /// A vehicle's first sample.
    pub(super) fn first_sample(&self, vehicle: u32) -> Sample {
        self.sample(self.tracks[vehicle as usize].samples.start)
    }

    /// Where a vehicle is, in metres: straight from sample to sample, at the earlier one throughout a gap.
    pub(super) fn position(&self, vehicle: u32, now: Millis) -> (f64, f64) {
        let Range { start, end } = self.tracks[vehicle as usize].samples;
        let samples = &self.samples[start as usize..end as usize];
        let next = samples.partition_point(|sample| sample.at <= now);
        let before = samples[next.saturating_sub(1)];
        let (x, y) = (f64::from(before.x), f64::from(before.y));
        match samples.get(next) {
            Some(after) if next > 0 && after.at - before.at <= self.gap_ms => {
                let share = (now - before.at) as f64 / (after.at - before.at) as f64;
                (
                    x + (f64::from(after.x) - x) * share,
                    y + (f64::from(after.y) - y) * share,
                )
            }
            _ => (x, y),
        }
    }
}

/// One row's vehicle and sample, or what is wrong with it.
fn parse(row: &str) -> Result<(&str, Sample), String> {
    let fields: Vec<&str> = row.split(',').map(str::trim).collect();
    let [time, name, x, y] = fields[..] else {
        return Err(format!("{} fields instead of 4", fields.len()));
    };
    if name.is_empty() {
        return Err("vehicle is empty".to_owned());
    }
    let number = |field: &str, text: &str, most: f64| {
        text.parse()
            .ok()
            .filter(|value| (0.0..=most).contains(value))
            .ok_or_else(|| format!("{field} is {text:?}, must be a number from 0 to {most}"))
    };
    let at = number("time", time, LATEST_S)?;
    let sample = Sample {
        at: millis(at * 1000.0),
        x: super::metres(number("x", x, FARTHEST_M)?),
        y: super::metres(number("y", y, FARTHEST_M)?),
    };
    Ok((name, sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, WorldError> {
        Trace::read(text.as_bytes(), Path::new("t.csv"), 60_000)
    }

    #[test]
    fn vehicles_come_in_order_of_first_appearance() {
        let trace = read(
            "time,vehicle,x,y\n0,b,1,2\n0.5, a ,3,4\n\n1,b,2,2\n100,b,9,9\n101,b,10,9\n300,b,0,0\n",
        )
        .expect("good rows");
        assert_eq!(trace.vehicles(), 2);
        assert_eq!(trace.extent(), (10.0, 9.0));
        assert_eq!(trace.first_sample(1).at, 500);
        // The lone last row is a place, not a trip.
        assert_eq!(trace.trips_of(0), 0..2);
        assert_eq!(trace.trips_of(1), 2..2);
        let check = |now, expected| assert_eq!(trace.position(0, now), expected, "at {now}");
        check(0, (1.0, 2.0));
        check(500, (1.5, 2.0));
        check(50_000, (2.0, 2.0));
        check(100_250, (9.25, 9.0));
        check(u64::MAX, (0.0, 0.0));
    }

    #[test]
    fn bad_rows_are_named_by_line() {
        let check = |text: &str, line: usize, reason: &str| match read(text) {
            Err(WorldError::Row {
                line: got,
                reason: why,
                ..
            }) => {
                assert_eq!(got, line, "{text}");
                assert!(why.contains(reason), "{why}");
            }
            other => panic!("{text}: {other:?}"),
        };
        check("0,a,1", 1, "3 fields");
        check("time,vehicle,x,y\n0,,1,1", 2, "vehicle is empty");
        check("0,a,1,1\n\n-1,a,1,1", 3, "time is \"-1\"");
        check("0,a,NaN,1", 1, "x is");
        check("0,a,1,-3", 1, "y is");
        check("1,a,1,1\n1,b,1,1\n1,a,1,1", 3, "not later");
        check("0;a;1;1", 1, "1 fields");
    }
}
