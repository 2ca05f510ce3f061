//! The world that simulated vehicles drive in: where each one is, which roadside unit covers it by which link, whether
//! its computer has power, how fast that is, and how wrong its clock is.
//!
//! Invariants:
//! - The same spec, seed and numbers give the same world, and a vehicle's course does not depend on any other's. Each
//!   vehicle draws from its own stream of `SplitMix64`, started from (seed, purpose, vehicle): eight bytes of state, so
//!   that a million vehicles fit. Only [`LinkSpec::transfer`] draws from a generator of the caller.
//! - A [`World`] never changes. A [`Traveller`] has at most 96 bytes and computes its next change only when asked.
//! - Coverage is decided at crossings, or at the samples of a trace, and holds until the next one; a tunnel shorter than
//!   a block that holds no crossing is therefore not noticed. Between them only [`Traveller::position`] moves.
//!
//! Left to others: the event queue, what is sent, and who waits for whom on a shared link.

mod check;
mod coverage;
mod days;
mod dice;
mod error;
mod link;
mod spec;
mod streets;
mod trace;
mod traveller;

#[cfg(test)]
mod tests;

use std::path::Path;

use coverage::{Place, UnitMap, metres};
use days::Days;
use dice::{Dice, Purpose, stream};
use streets::{Crossing, Streets};
use trace::Trace;

pub use coverage::UnitPlace;
pub use error::WorldError;
pub use link::{LinkSpec, Transfer};
pub use spec::{
    Activity, ActivityKind, Area, Battery, Clocks, Compute, ComputeClass, Coverage, DEFAULT_LINK,
    Mobility, MobilityKind, Roads, TUNNEL, WorldSpec,
};
pub use traveller::{Status, Traveller};

/// Milliseconds since the start of the simulation, or a length of time.
pub type Millis = u64;

/// Everything about the world that all vehicles share.
#[derive(Debug)]
pub struct World {
    seed: u64,
    vehicles: u32,
    kind: MobilityKind,
    activity: Activity,
    battery: Battery,
    compute: Compute,
    skew_ms: u32,
    links: Vec<(String, LinkSpec)>,
    streets: Streets,
    days: Days,
    map: UnitMap,
    /// What each crossing offers, by its number; empty unless vehicles drive on the grid.
    places: Vec<Place>,
    /// Rows of a file, if vehicles drive by one.
    trace: Option<Trace>,
    extent: (f64, f64),
}

impl World {
    /// Makes the world of so many vehicles and roadside units.
    ///
    /// - `base`: folder that a relative path of a trace starts from; `None` for the current one.
    ///
    /// # Errors
    /// [`WorldError::Value`] for a bad field or no units; for a trace also [`WorldError::Trace`], [`WorldError::Row`]
    /// and [`WorldError::TooFewTracks`].
    pub fn new(
        spec: &WorldSpec,
        seed: u64,
        vehicles: u32,
        units: u32,
        base: Option<&Path>,
    ) -> Result<Self, WorldError> {
        spec.check()?;
        let trace = if spec.mobility.kind == MobilityKind::Trace {
            let file = &spec.mobility.trace;
            let file = base.map_or_else(|| file.clone(), |base| base.join(file));
            let gap_ms = millis(spec.mobility.gap_s * 1000.0);
            Some(Trace::open(&file, gap_ms)?)
        } else {
            None
        };
        Self::with_trace(spec, seed, vehicles, units, trace)
    }

    /// The same with the trace read; `spec` is checked.
    fn with_trace(
        spec: &WorldSpec,
        seed: u64,
        vehicles: u32,
        units: u32,
        trace: Option<Trace>,
    ) -> Result<Self, WorldError> {
        if units == 0 {
            return Err(WorldError::Value {
                field: "units".to_owned(),
                got: "0".to_owned(),
                allowed: "1 or more".to_owned(),
            });
        }
        if let Some(trace) = &trace
            && trace.vehicles() < vehicles as usize
        {
            return Err(WorldError::TooFewTracks {
                got: trace.vehicles(),
                wanted: vehicles,
            });
        }
        let mut links = spec.links.clone();
        links.entry(DEFAULT_LINK.to_owned()).or_default();
        let links: Vec<(String, LinkSpec)> = links.into_iter().collect();
        let streets = Streets::new(spec.roads.clone());
        let extent = trace
            .as_ref()
            .map_or_else(|| streets.extent(), Trace::extent);
        let map = UnitMap::new(
            units,
            extent,
            (spec.coverage.radius_m, spec.coverage.handover_margin_m),
            class_of(&links, &spec.coverage.link).expect("checked: the class is there"),
            &spec.areas,
            |name| class_of(&links, name),
        );
        let places = if spec.mobility.kind == MobilityKind::Grid {
            let points = streets.crossings().map(|at| streets.point(at));
            points.map(|(x, y)| map.place(x, y)).collect()
        } else {
            Vec::new()
        };
        Ok(Self {
            seed,
            vehicles,
            kind: spec.mobility.kind,
            activity: spec.activity.clone(),
            battery: spec.battery.clone(),
            compute: spec.compute.clone(),
            skew_ms: spec.clocks.skew_ms,
            links,
            days: Days::new(&spec.activity, &spec.mobility, seed),
            streets,
            map,
            places,
            trace,
            extent,
        })
    }

    /// The roadside units by their numbers.
    pub fn units(&self) -> &[UnitPlace] {
        self.map.units()
    }

    /// Vehicles, numbered from 0.
    pub fn vehicles(&self) -> u32 {
        self.vehicles
    }

    /// Width and height of the map in metres; its south-west corner is (0, 0).
    pub fn extent(&self) -> (f32, f32) {
        (metres(self.extent.0), metres(self.extent.1))
    }

    /// A vehicle at time 0. Panics for a number not below [`World::vehicles`].
    pub fn start(&self, vehicle: u32) -> Traveller {
        assert!(
            vehicle < self.vehicles,
            "vehicle {vehicle} of {}",
            self.vehicles
        );
        Traveller::new(self, vehicle)
    }

    /// The link class of this number, which comes from a [`Status`] or [`World::link_class`]. Panics for any other.
    pub fn link(&self, class: u8) -> &LinkSpec {
        &self.links[usize::from(class)].1
    }

    /// Number of the link class of this name.
    pub fn link_class(&self, name: &str) -> Option<u8> {
        class_of(&self.links, name)
    }

    /// Least delay of all link classes in milliseconds, at least 1: no message is ever faster.
    pub fn least_delay_ms(&self) -> Millis {
        let delays = self.links.iter().map(|(_, link)| link.delay_ms);
        Millis::from(delays.min().unwrap_or(1))
    }

    /// Speed of a vehicle's computer as a multiple of the nominal one, by the shares of the classes.
    pub fn compute_speed(&self, vehicle: u32) -> f64 {
        let classes = &self.compute.classes;
        let total: f64 = classes.iter().map(|class| class.share).sum();
        let mut left = self.dice(Purpose::Compute, vehicle).unit() * total;
        for class in classes {
            if left < class.share {
                return class.speed;
            }
            left -= class.share;
        }
        // Only rounding leads here; a class without share must not be the one.
        let mut possible = classes.iter().rev().filter(|class| class.share > 0.0);
        possible.next().map_or(1.0, |class| class.speed)
    }

    /// What a vehicle's own clock shows less the true time, in milliseconds.
    pub fn clock_offset_ms(&self, vehicle: u32) -> i64 {
        let drawn = self
            .dice(Purpose::Clock, vehicle)
            .below(2 * self.skew_ms + 1);
        i64::from(drawn) - i64::from(self.skew_ms)
    }

    fn dice(&self, purpose: Purpose, vehicle: u32) -> Dice {
        Dice::new(stream(self.seed, purpose, u64::from(vehicle)))
    }

    /// Where a vehicle lives.
    fn home(&self, vehicle: u32) -> Crossing {
        self.streets.draw(&mut self.dice(Purpose::Home, vehicle))
    }

    /// Start of the stream for the blocks of the trip that a vehicle begins at `depart`.
    fn trip(&self, vehicle: u32, depart: Millis) -> u64 {
        let own = stream(self.seed, Purpose::Trip, u64::from(vehicle));
        stream(own, Purpose::Trip, depart)
    }
}

fn class_of(links: &[(String, LinkSpec)], name: &str) -> Option<u8> {
    let class = links.iter().position(|(known, _)| known == name)?;
    Some(u8::try_from(class).expect("checked: at most 255 classes"))
}

/// Whole milliseconds nearest to `value`; 0 for a negative one, the largest for one too large.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
fn millis(value: f64) -> Millis {
    value.round() as Millis
}
