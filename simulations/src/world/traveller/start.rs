//! Where vehicles are at time 0.

use super::super::dice::Purpose;
use super::super::streets::{Crossing, Way};
use super::super::{MobilityKind, World};
use super::energy::share;
use super::{Course, NEVER, Status, Traveller, trace_of};

impl Traveller {
    pub(in super::super) fn new(world: &World, vehicle: u32) -> Self {
        let mut dice = world.dice(Purpose::Travel, vehicle);
        let start = world.battery.start_share;
        let battery = start + (1.0 - start) * dice.unit();
        let mut traveller = Self {
            dice,
            now: 0,
            until: NEVER,
            depart: 0,
            dark_until: 0,
            status: Status {
                powered: true,
                parked: true,
                unit: None,
                link: 0,
                x_m: 0.0,
                y_m: 0.0,
                battery: share(battery),
            },
            vehicle,
            step: 0,
            dies: u32::MAX,
            day: 0,
            course: Course::Still,
            plugged: true,
        };
        match world.kind {
            MobilityKind::Still => traveller.start_still(world),
            MobilityKind::Grid => traveller.start_on_grid(world),
            MobilityKind::Trace => traveller.start_in_trace(world),
        }
        traveller.status.powered = traveller.has_power(world);
        traveller
    }

    fn start_still(&mut self, world: &World) {
        let units = world.units();
        let number = self.vehicle % u32::try_from(units.len()).expect("made from a u32");
        let unit = units[number as usize];
        let place = world.map.place(f64::from(unit.x_m), f64::from(unit.y_m));
        self.status.unit = (!place.tunnel).then_some(number);
        self.status.link = place.link;
        (self.status.x_m, self.status.y_m) = (unit.x_m, unit.y_m);
        self.status.battery = 1.0;
    }

    fn start_on_grid(&mut self, world: &World) {
        let days = &world.days;
        if days.nightly() {
            let morning = days.morning(self.vehicle, 0);
            let evening = days.evening(self.vehicle, 0);
            let abroad = morning == 0 && evening > 0;
            let at = if abroad {
                world.streets.draw(&mut self.dice)
            } else {
                world.home(self.vehicle)
            };
            self.stand_at(world, at);
            if abroad {
                self.park(world, at);
            } else {
                self.stay_overnight(world);
            }
        } else {
            let at = world.streets.draw(&mut self.dice);
            self.stand_at(world, at);
            self.park(world, at);
        }
    }

    fn start_in_trace(&mut self, world: &World) {
        let trace = trace_of(world);
        let trips = trace.trips_of(self.vehicle);
        let first = trace.first_sample(self.vehicle);
        self.course = Course::Trace(trips.start);
        self.arrive_at(world, None, (f64::from(first.x), f64::from(first.y)));
        self.park_in_trace(trace, trips.start);
        if self.until == 0 {
            self.leave(world);
        }
    }

    /// Begins on the grid, at this crossing.
    fn stand_at(&mut self, world: &World, at: Crossing) {
        self.course = Course::Grid(Way::nowhere(at));
        self.stand_at_crossing(world, at);
    }
}
