//! One vehicle on its way through the world.

use super::coverage::{Place, metres};
use super::dice::Dice;
use super::streets::{Crossing, Way};
use super::trace::Trace;
use super::{Millis, World, millis};

mod energy;
mod start;

/// A time that never comes.
const NEVER: Millis = Millis::MAX;

/// Crossings or samples that one call of [`Traveller::next_change`] looks ahead at most.
const LOOK_AHEAD: u32 = 4096;

/// How things stand with a vehicle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// Its computer runs.
    pub powered: bool,
    /// It stands, and will for a while; false also at a red light.
    pub parked: bool,
    /// The roadside unit that covers it, whether it has power or not; `None` in a tunnel or out of reach of all.
    pub unit: Option<u32>,
    /// Its link class, for [`World::link`]; without meaning while there is no unit.
    pub link: u8,
    /// Metres from the west edge of the map, at the last crossing or sample.
    pub x_m: f32,
    /// Metres from the south edge, at the last crossing or sample.
    pub y_m: f32,
    /// What is left in its battery as a share of the capacity, 0 to 1, at the last crossing, sample or other event.
    pub battery: f32,
}

impl Status {
    /// Whether the engine must know: anything differs but place and battery.
    fn matters_beside(&self, other: &Self) -> bool {
        (self.powered, self.parked, self.unit, self.link)
            != (other.powered, other.parked, other.unit, other.link)
    }
}

/// What a vehicle follows.
#[derive(Clone, Copy, Debug)]
enum Course {
    Still,
    /// The way of the trip under way, or of the last one if it is parked.
    Grid(Way),
    /// Number of the trip to begin next.
    Trace(u32),
}

/// State of one vehicle: at most 96 bytes. It belongs to the [`World`] that made it.
///
/// It is one change ahead of the simulation: [`Traveller::next_change`] moves it to the next change and says when that
/// is. Between two calls all that it says about the time before is where the vehicle is.
#[derive(Clone, Debug)]
pub struct Traveller {
    dice: Dice,
    /// When it got into this state.
    now: Millis,
    /// The next crossing or sample; if parked, the departure. Never in the past.
    until: Millis,
    /// When the trip of `course` began.
    depart: Millis,
    /// No power before this: its process has died, or its battery must charge first. Forgotten at the next departure.
    dark_until: Millis,
    status: Status,
    vehicle: u32,
    /// Blocks driven of this trip; in a trace the number of the last sample.
    step: u32,
    /// The step at which its process dies; `u32::MAX` for none.
    dies: u32,
    /// The day after whose evening it goes home.
    day: u32,
    course: Course,
    plugged: bool,
}

const _: () = assert!(
    size_of::<Traveller>() <= 96,
    "a million of these must be small"
);

impl Traveller {
    /// The vehicle's number.
    pub fn vehicle(&self) -> u32 {
        self.vehicle
    }

    /// As of the change last returned, or of time 0.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Moves on to the next change and returns when it comes and what then holds; `None` if nothing will ever change.
    ///
    /// Each time is strictly later than the last. A change is one of power, parking, unit or link; place and battery
    /// come along. If there is none within 4096 crossings or samples, the status of that time is returned, equal but for
    /// place and battery, so that a call never takes long.
    pub fn next_change(&mut self, world: &World) -> Option<(Millis, Status)> {
        let before = self.status;
        for _ in 0..LOOK_AHEAD {
            if !self.advance(world) {
                return None;
            }
            if self.status.matters_beside(&before) {
                break;
            }
        }
        Some((self.now, self.status))
    }

    /// Where the vehicle is, in metres from the south-west corner, for the map.
    ///
    /// - `now`: between the change last returned and the one before it, or later up to the next departure. The way in
    ///   between is exact; further back it is where the last trip began.
    pub fn position(&self, world: &World, now: Millis) -> (f32, f32) {
        let (x, y) = match (self.course, &world.trace) {
            (Course::Grid(way), _) => {
                let trip = world.trip(self.vehicle, self.depart);
                world.streets.position(way, trip, self.depart, now)
            }
            (Course::Trace(_), Some(trace)) => trace.position(self.vehicle, now),
            _ => return (self.status.x_m, self.status.y_m),
        };
        (metres(x), metres(y))
    }

    /// Takes the energy for so much training from the battery. Whether the rest is enough to stay powered shows at the
    /// next crossing, sample or other event, so with the change after the one last returned. Nothing for a `still`
    /// vehicle, which is always plugged in.
    pub fn spend_training(&mut self, world: &World, busy_ms: Millis) {
        if !matches!(self.course, Course::Still) {
            let used = busy_ms as f64 / 1000.0 * world.battery.train_kwh_per_s;
            self.use_energy(world, used);
        }
    }

    /// Goes to the next event, whatever it is; false if there is none.
    fn advance(&mut self, world: &World) -> bool {
        let light = if self.dark_until > self.now {
            self.dark_until
        } else {
            NEVER
        };
        let next = self.until.min(light);
        if next == NEVER {
            return false;
        }
        if self.plugged && self.status.parked {
            let hours = (next - self.now) as f64 / 3_600_000.0;
            self.use_energy(world, -hours * world.battery.charge_kw);
        }
        self.now = next;
        if next == self.until {
            if self.status.parked {
                self.leave(world);
            } else {
                self.move_on(world);
            }
        }
        self.status.powered = self.has_power(world);
        true
    }

    /// The time to depart has come.
    fn leave(&mut self, world: &World) {
        match self.course {
            Course::Still => {}
            Course::Grid(way) => {
                let at = way.to;
                let homeward =
                    world.days.nightly() && self.now >= world.days.evening(self.vehicle, self.day);
                let to = if homeward {
                    world.home(self.vehicle)
                } else {
                    world.streets.draw_other(&mut self.dice, at)
                };
                if to == at {
                    return self.stay_overnight(world);
                }
                let way = world.streets.way(at, to, self.dice.below(2) == 0);
                self.course = Course::Grid(way);
                self.depart = self.now;
                self.step = 0;
                self.until = self.now
                    + world
                        .streets
                        .block_ms(way, 0, world.trip(self.vehicle, self.now));
                self.set_off(world, 1, way.blocks());
            }
            Course::Trace(trip) => {
                let (first, last) = trace_of(world).trip(trip);
                let sample = trace_of(world).sample(first);
                self.course = Course::Trace(trip + 1);
                self.depart = self.now;
                self.step = first;
                self.until = trace_of(world).sample(first + 1).at;
                self.set_off(world, first + 1, last);
                self.arrive_at(world, None, (f64::from(sample.x), f64::from(sample.y)));
            }
        }
    }

    /// Turns the key, which also starts the process anew. It may die at a step from `first` to before `last`.
    fn set_off(&mut self, world: &World, first: u32, last: u32) {
        self.status.parked = false;
        self.dark_until = self.now;
        let dies = self.dice.unit() < world.activity.dropout;
        let step = first + self.dice.below((last - first).max(1));
        self.dies = if dies { step } else { u32::MAX };
    }

    /// The next crossing or sample has come.
    fn move_on(&mut self, world: &World) {
        self.step += 1;
        if self.step == self.dies {
            let factor = 0.5 + self.dice.unit();
            self.dark_until = self.now + millis(f64::from(world.activity.dropout_ms) * factor);
        }
        match self.course {
            Course::Still => {}
            Course::Grid(way) => {
                let at = way.crossing(self.step);
                self.drive(world, world.streets.block_m());
                self.stand_at_crossing(world, at);
                if self.step == way.blocks() {
                    self.park(world, at);
                } else {
                    let trip = world.trip(self.vehicle, self.depart);
                    self.until = self.now + world.streets.block_ms(way, self.step, trip);
                }
            }
            Course::Trace(next_trip) => {
                let trace = trace_of(world);
                let sample = trace.sample(self.step);
                let (x, y) = (f64::from(sample.x), f64::from(sample.y));
                let dx = x - f64::from(self.status.x_m);
                let dy = y - f64::from(self.status.y_m);
                self.drive(world, (dx * dx + dy * dy).sqrt());
                self.arrive_at(world, None, (x, y));
                if self.step == trace.trip(next_trip - 1).1 {
                    self.park_in_trace(trace, next_trip);
                } else {
                    self.until = trace.sample(self.step + 1).at;
                }
            }
        }
    }

    /// Parks at a crossing, overnight if that is home and the evening has come.
    fn park(&mut self, world: &World, at: Crossing) {
        let days = &world.days;
        self.status.parked = true;
        self.until = self.now + days.dwell(&mut self.dice);
        if days.nightly() {
            let evening = days.evening(self.vehicle, self.day);
            if self.now >= evening && at == world.home(self.vehicle) {
                return self.stay_overnight(world);
            }
            // By evening at the latest; who is still out then goes home with the next trip.
            self.until = self.until.min(evening).max(self.now + 1);
            self.plugged = false;
        } else {
            self.plug_in(world);
        }
    }

    /// Stays at home until the next morning.
    fn stay_overnight(&mut self, world: &World) {
        let days = &world.days;
        self.day = days.day_of(self.now);
        self.until = days.morning(self.vehicle, self.day);
        if self.until <= self.now {
            self.day += 1;
            self.until = days.morning(self.vehicle, self.day);
        }
        if self.dice.unit() < world.activity.night_plugged {
            self.plug_in(world);
        } else {
            self.plugged = false;
        }
    }

    /// Is gone until its next trip.
    fn park_in_trace(&mut self, trace: &Trace, next_trip: u32) {
        self.status.parked = true;
        self.plugged = false;
        self.until = if next_trip < trace.trips_of(self.vehicle).end {
            trace.sample(trace.trip(next_trip).0).at
        } else {
            NEVER
        };
    }

    fn stand_at_crossing(&mut self, world: &World, at: Crossing) {
        let place = world.places[world.streets.number(at)];
        self.arrive_at(world, Some(place), world.streets.point(at));
    }

    /// Takes over what a place offers; `known` saves looking it up.
    fn arrive_at(&mut self, world: &World, known: Option<Place>, (x, y): (f64, f64)) {
        let place = known.unwrap_or_else(|| world.map.place(x, y));
        self.status.unit = world.map.choose(place, x, y, self.status.unit);
        self.status.link = place.link;
        (self.status.x_m, self.status.y_m) = (metres(x), metres(y));
    }
}

/// The trace of a world whose vehicles follow one.
fn trace_of(world: &World) -> &Trace {
    world
        .trace
        .as_ref()
        .expect("a world made for a trace has it")
}
