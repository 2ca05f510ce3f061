//! Which roadside unit covers a place, and by what link.

use super::spec::{Area, TUNNEL};

/// Where a roadside unit stands and how far it reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitPlace {
    /// Metres from the west edge of the map.
    pub x_m: f32,
    /// Metres from the south edge.
    pub y_m: f32,
    /// Reach in metres.
    pub radius_m: f32,
}

/// What a place offers to whoever comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The nearest unit within reach; `None` in a tunnel.
    pub nearest: Option<u32>,
    /// No link at all, whichever unit is near.
    pub tunnel: bool,
    /// The link class.
    pub link: u8,
}

/// A rectangle with its kind looked up.
#[derive(Clone, Copy, Debug)]
struct Zone {
    /// West, south, east, north.
    edges: [f64; 4],
    /// The link class; `None` for a tunnel.
    link: Option<u8>,
}

/// The units and areas of the map.
///
/// Units stand in rows, as many as make the pattern about square; rows differ by at most one unit and spread theirs
/// evenly, so any number of units covers the map evenly and the nearest one is found without a search.
#[derive(Clone, Debug)]
pub(super) struct UnitMap {
    units: Vec<UnitPlace>,
    rows: u32,
    width_m: f64,
    height_m: f64,
    radius_m: f64,
    margin_m: f64,
    link: u8,
    zones: Vec<Zone>,
}

impl UnitMap {
    /// - `units`: at least 1.
    /// - `extent`: width and height of the map in metres, 0 allowed.
    /// - `link`: the class outside all areas.
    /// - `class`: number of a link class by name; knows every kind in `areas` but `tunnel`.
    pub(super) fn new(
        units: u32,
        extent: (f64, f64),
        (radius_m, margin_m): (f64, f64),
        link: u8,
        areas: &[Area],
        class: impl Fn(&str) -> Option<u8>,
    ) -> Self {
        let (width_m, height_m) = extent;
        let rows = row_count(units, width_m, height_m);
        let mut map = Self {
            units: Vec::with_capacity(units as usize),
            rows,
            width_m,
            height_m,
            radius_m,
            margin_m,
            link,
            zones: areas
                .iter()
                .map(|area| Zone {
                    edges: [
                        area.x_m,
                        area.y_m,
                        area.x_m + area.width_m,
                        area.y_m + area.height_m,
                    ],
                    link: (area.kind != TUNNEL).then(|| class(&area.kind).unwrap_or(link)),
                })
                .collect(),
        };
        for row in 0..rows {
            let (_, count) = map.row(row, units);
            for i in 0..count {
                map.units.push(UnitPlace {
                    x_m: metres((f64::from(i) + 0.5) * width_m / f64::from(count)),
                    y_m: metres((f64::from(row) + 0.5) * height_m / f64::from(rows)),
                    radius_m: metres(radius_m),
                });
            }
        }
        map
    }

    pub(super) fn units(&self) -> &[UnitPlace] {
        &self.units
    }

    /// What the place (x, y) offers.
    pub(super) fn place(&self, x: f64, y: f64) -> Place {
        let mut link = self.link;
        let mut tunnel = false;
        for zone in &self.zones {
            let [west, south, east, north] = zone.edges;
            if (west..=east).contains(&x) && (south..=north).contains(&y) {
                match zone.link {
                    Some(class) => link = class,
                    None => tunnel = true,
                }
            }
        }
        Place {
            nearest: if tunnel { None } else { self.nearest(x, y) },
            tunnel,
            link,
        }
    }

    /// The unit of a vehicle that comes to (x, y), which offers `place`, from `current`: the nearest, unless the current
    /// one still reaches it and is not farther by more than the margin.
    pub(super) fn choose(&self, place: Place, x: f64, y: f64, current: Option<u32>) -> Option<u32> {
        let nearest = place.nearest?;
        match current {
            Some(current) if current != nearest => {
                let from_current = self.square(current, x, y).sqrt();
                let from_nearest = self.square(nearest, x, y).sqrt();
                let stays =
                    from_current <= self.radius_m && from_current <= from_nearest + self.margin_m;
                Some(if stays { current } else { nearest })
            }
            _ => Some(nearest),
        }
    }

    /// The nearest unit within the radius; of two equally near ones that with the lower number.
    fn nearest(&self, x: f64, y: f64) -> Option<u32> {
        let total = u32::try_from(self.units.len()).expect("made from a u32");
        let home = cell(y, self.height_m, self.rows);
        let mut best: Option<u32> = None;
        let mut square = self.radius_m * self.radius_m;
        let mut look = |row: u32| {
            let (first, count) = self.row(row, total);
            let off = f64::from(self.units[first as usize].y_m) - y;
            if off * off > square {
                return false;
            }
            let unit = first + cell(x, self.width_m, count);
            let got = self.square(unit, x, y);
            if got < square || (got <= square && best.is_none_or(|best| unit < best)) {
                (best, square) = (Some(unit), got);
            }
            true
        };
        // Rows away from the home row only get farther: stop at the first that cannot be better.
        let _ = (0..=home).rev().all(&mut look);
        let _ = (home + 1..self.rows).all(&mut look);
        best
    }

    /// Square of the distance from a unit, in square metres.
    fn square(&self, unit: u32, x: f64, y: f64) -> f64 {
        let place = self.units[unit as usize];
        let (dx, dy) = (f64::from(place.x_m) - x, f64::from(place.y_m) - y);
        dx * dx + dy * dy
    }

    /// First unit of a row and how many it has.
    fn row(&self, row: u32, total: u32) -> (u32, u32) {
        let (each, more) = (total / self.rows, total % self.rows);
        (row * each + row.min(more), each + u32::from(row < more))
    }
}

/// Rows for so many units that the pattern is about square.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and the result is clamped"
)]
fn row_count(units: u32, width_m: f64, height_m: f64) -> u32 {
    // A map without width is one column, one without height one row.
    let rows = (f64::from(units) * height_m / width_m).sqrt().round();
    (rows as u32).clamp(1, units)
}

/// In which of `count` equal cells of `0..length` a coordinate lies; those outside count as at the edge.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and the result is clamped"
)]
fn cell(at: f64, length: f64, count: u32) -> u32 {
    ((at * f64::from(count) / length) as u32).min(count - 1)
}

/// For the map, an `f32` is exact to a millimetre over 10 km.
#[expect(
    clippy::cast_possible_truncation,
    reason = "places are shown, not computed with, at this precision"
)]
pub(super) fn metres(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(units: u32, extent: (f64, f64), radius: f64, areas: &[Area]) -> UnitMap {
        UnitMap::new(units, extent, (radius, 50.0), 0, areas, |name| {
            (name == "slow").then_some(1)
        })
    }

    fn area(kind: &str, x_m: f64, width_m: f64) -> Area {
        Area {
            kind: kind.to_owned(),
            x_m,
            y_m: 0.0,
            width_m,
            height_m: 1000.0,
        }
    }

    #[test]
    fn a_square_of_units_is_a_square() {
        let map = map(4, (1000.0, 1000.0), 300.0, &[]);
        let places: Vec<(f32, f32)> = map.units().iter().map(|u| (u.x_m, u.y_m)).collect();
        assert_eq!(
            places,
            [
                (250.0, 250.0),
                (750.0, 250.0),
                (250.0, 750.0),
                (750.0, 750.0)
            ]
        );
    }

    #[test]
    fn areas_decide_the_link() {
        let areas = [area("slow", 0.0, 400.0), area("tunnel", 300.0, 100.0)];
        let map = map(1, (1000.0, 1000.0), 1000.0, &areas);
        let check = |x: f64, unit: Option<u32>, link: u8| {
            let place = map.place(x, 500.0);
            assert_eq!((place.nearest, place.link), (unit, link), "at {x}");
        };
        check(0.0, Some(0), 1);
        check(299.0, Some(0), 1);
        check(300.0, None, 1);
        check(401.0, Some(0), 0);
    }

    #[test]
    fn a_vehicle_stays_with_its_unit_within_the_margin() {
        // Units at 250 and 750; the margin of 50 m is used up 25 m beyond the middle.
        let map = map(2, (1000.0, 0.0), 300.0, &[]);
        let check = |x: f64, current: Option<u32>, expected: Option<u32>| {
            let got = map.choose(map.place(x, 0.0), x, 0.0, current);
            assert_eq!(got, expected, "at {x} from {current:?}");
        };
        check(490.0, None, Some(0));
        check(510.0, None, Some(1));
        check(520.0, Some(0), Some(0));
        check(530.0, Some(0), Some(1));
        check(480.0, Some(1), Some(1));
        check(470.0, Some(1), Some(0));
        check(-60.0, Some(0), None);
    }

    proptest! {
        #[test]
        fn the_nearest_unit_is_that_of_a_full_search(
            units in 1u32..200, width in 0.0f64..5000.0, height in 0.0f64..5000.0, radius in 1.0f64..2000.0,
            x in -500.0f64..5500.0, y in -500.0f64..5500.0,
        ) {
            let map = map(units, (width, height), radius, &[]);
            prop_assert_eq!(map.units().len(), units as usize);
            let least = (0..units).map(|u| map.square(u, x, y)).fold(f64::INFINITY, f64::min);
            match map.nearest(x, y) {
                // Places are rounded to f32, so two units may be equally near but for that.
                Some(unit) => prop_assert!(map.square(unit, x, y).sqrt() <= least.sqrt() + 0.01),
                None => prop_assert!(least.sqrt() > radius - 0.01),
            }
        }
    }
}
