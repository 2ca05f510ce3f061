//! What a scenario says about its world; one struct a section.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::link::LinkSpec;

/// Name of the link class that is always there.
pub const DEFAULT_LINK: &str = "cell";

/// The kind of an [`Area`] without any link.
pub const TUNNEL: &str = "tunnel";

/// Everything about the world. Each section and field may be left out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorldSpec {
    /// The streets.
    pub roads: Roads,
    /// How far the roadside units reach.
    pub coverage: Coverage,
    /// How vehicles move.
    pub mobility: Mobility,
    /// When they move, and when their computers run.
    pub activity: Activity,
    /// How fast their computers are.
    pub compute: Compute,
    /// Their batteries.
    pub battery: Battery,
    /// Link classes by name; their numbers follow the order of the names. `cell` is there with default values if it
    /// is not given. Default none further.
    pub links: BTreeMap<String, LinkSpec>,
    /// Rectangles with another link or none. Default none.
    pub areas: Vec<Area>,
    /// How wrong the vehicles' clocks are.
    pub clocks: Clocks,
}

/// `[roads]`: a grid of streets like Manhattan's, with a crossing wherever two of them meet.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Roads {
    /// Streets that run north, 1 to 1000; at least two crossings in all. Default 20.
    pub columns: u16,
    /// Streets that run east, 1 to 1000. Default 20.
    pub rows: u16,
    /// Metres from a crossing to the next, 10 to 10000. Default 200.
    pub block_m: f64,
    /// Mean speed on a street in m/s, stops included, 0.5 to 100. Default 9.
    pub speed_m_s: f64,
    /// The speed of one vehicle on one block is drawn evenly from the mean less this to the mean plus this, in m/s; 0
    /// to less than `speed_m_s`. Default 4.
    pub spread_m_s: f64,
    /// Every so many streets one is an arterial, from the first; 0 for none. Default 5.
    pub arterial_every: u16,
    /// Mean speed on an arterial in m/s, 0.5 to 100 and more than `spread_m_s`. Default 15.
    pub arterial_speed_m_s: f64,
}

impl Default for Roads {
    fn default() -> Self {
        Self {
            columns: 20,
            rows: 20,
            block_m: 200.0,
            speed_m_s: 9.0,
            spread_m_s: 4.0,
            arterial_every: 5,
            arterial_speed_m_s: 15.0,
        }
    }
}

/// `[coverage]`: roadside units stand in a regular pattern over the map.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Coverage {
    /// How far a unit reaches in metres, above 0 and at most 1000000. Default 500.
    pub radius_m: f64,
    /// A vehicle stays with its unit until another is nearer by more than this, in metres, 0 to 1000000. Default 30.
    pub handover_margin_m: f64,
    /// Link class wherever no area says otherwise. Default `cell`.
    pub link: String,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            radius_m: 500.0,
            handover_margin_m: 30.0,
            link: DEFAULT_LINK.to_owned(),
        }
    }
}

/// How vehicles move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MobilityKind {
    /// Not at all: vehicle v is parked and plugged in at unit v modulo the number of units, for ever.
    Still,
    /// Trips between crossings along the streets, and dwells between them.
    #[default]
    Grid,
    /// As a file says. While it has no rows for a vehicle, that is parked without power.
    Trace,
}

/// `[mobility]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mobility {
    /// `still`, `grid` or `trace`. Default `grid`.
    pub kind: MobilityKind,
    /// Mean time parked between two trips of a day in seconds, for `grid`, 1 to 10000000; drawn from 0 to twice that,
    /// at least a second. The longer, the more the peaks of `daily` stand out. Default 10800.
    pub dwell_s: f64,
    /// CSV file for `trace` with rows `time,vehicle,x,y` in seconds and metres, with or without a header, such as SUMO's
    /// FCD output reduced to these. Default empty.
    pub trace: PathBuf,
    /// A vehicle without a row for longer than this counts as parked, in seconds, 1 to 1000000. Default 60.
    pub gap_s: f64,
}

impl Default for Mobility {
    fn default() -> Self {
        Self {
            kind: MobilityKind::Grid,
            dwell_s: 10_800.0,
            trace: PathBuf::new(),
            gap_s: 60.0,
        }
    }
}

/// When vehicles move and have power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivityKind {
    /// Around the clock; a parked vehicle is plugged in.
    #[default]
    Always,
    /// From home in the morning, about town by day, home again in the evening, there overnight. A parked vehicle's
    /// ignition is off, so it has power only if it is plugged in, which it is at home or nowhere.
    Daily,
}

/// `[activity]`, for `grid`; drop-outs for `trace` too.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Activity {
    /// `always` or `daily`. Default `always`.
    pub kind: ActivityKind,
    /// Hour of the day at the start of the simulation, 0 to less than 24. Default 6.
    pub start_h: f64,
    /// Hour at which most leave home, 0 to 24. Default 8.
    pub morning_peak_h: f64,
    /// Hour at which most go home, 0 to 24. Default 17.5.
    pub evening_peak_h: f64,
    /// How many hours before and after a peak the first and the last leave, 0 to 6; mornings must end before evenings
    /// begin, both within one day. Default 1.5.
    pub peak_spread_h: f64,
    /// Share of the nights on which a vehicle is plugged in, 0 to 1. Default 0.7.
    pub night_plugged: f64,
    /// Share of the trips on which the vehicle's process dies, 0 to 1. Default 0.08.
    pub dropout: f64,
    /// Mean time until it runs again in milliseconds, 2 to 86400000; drawn evenly from half to one and a half of that.
    /// Default 120000.
    pub dropout_ms: u32,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            kind: ActivityKind::Always,
            start_h: 6.0,
            morning_peak_h: 8.0,
            evening_peak_h: 17.5,
            peak_spread_h: 1.5,
            night_plugged: 0.7,
            dropout: 0.08,
            dropout_ms: 120_000,
        }
    }
}

/// `[compute]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compute {
    /// Kinds of computers; each vehicle has one, drawn by the shares. Default 0.6 at speed 1, 0.3 at 0.5, 0.1 at 0.2
    /// (the stragglers).
    pub classes: Vec<ComputeClass>,
}

impl Default for Compute {
    fn default() -> Self {
        let classes = [(0.6, 1.0), (0.3, 0.5), (0.1, 0.2)];
        Self {
            classes: classes
                .map(|(share, speed)| ComputeClass { share, speed })
                .to_vec(),
        }
    }
}

/// `[[compute.classes]]`: both fields must be given.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeClass {
    /// Weight of the class among all, 0 to 1000000; the sum must be above 0.
    pub share: f64,
    /// Speed as a multiple of the nominal one, 0.001 to 1000.
    pub speed: f64,
}

/// `[battery]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Battery {
    /// Energy when full in kWh, 0.01 to 10000. Default 60.
    pub capacity_kwh: f64,
    /// Energy for a kilometre in kWh, 0 to 100. Default 0.17.
    pub use_kwh_per_km: f64,
    /// Energy for a second of training in kWh, 0 to 100. Default 0.00002, which is about 70 W.
    pub train_kwh_per_s: f64,
    /// Power of the charger in kW, 0 to 10000. Default 7.4.
    pub charge_kw: f64,
    /// Share of the capacity below which the vehicle's computer gets no power, 0 to 1. Driving goes on. Default 0.15.
    pub min_share: f64,
    /// At the start each battery is drawn evenly from this share to full, 0 to 1. Default 0.6.
    pub start_share: f64,
}

impl Default for Battery {
    fn default() -> Self {
        Self {
            capacity_kwh: 60.0,
            use_kwh_per_km: 0.17,
            train_kwh_per_s: 0.000_02,
            charge_kw: 7.4,
            min_share: 0.15,
            start_share: 0.6,
        }
    }
}

/// `[[areas]]`: a rectangle of the map; every field must be given. Any tunnel over a place takes its link; of several
/// other areas over it the last one counts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Area {
    /// `tunnel`, where there is no link, or the name of a link class.
    pub kind: String,
    /// West edge in metres.
    pub x_m: f64,
    /// South edge in metres.
    pub y_m: f64,
    /// Metres from west to east, above 0; both edges belong to the area.
    pub width_m: f64,
    /// Metres from south to north, above 0; both edges belong to the area.
    pub height_m: f64,
}

/// `[clocks]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clocks {
    /// Each vehicle's clock is wrong by an offset drawn evenly from minus this to this, in milliseconds, 0 to 86400000.
    /// Default 0.
    pub skew_ms: u32,
}
