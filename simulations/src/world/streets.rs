//! The grid of streets: ways between crossings and the time that each block takes.

use super::Millis;
use super::dice::Dice;
use super::millis;
use super::spec::Roads;

/// A crossing by its column and row, from the south-west corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crossing {
    pub column: u16,
    pub row: u16,
}

/// A way with one turn at most: along one street, then along another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub from: Crossing,
    pub to: Crossing,
    /// East or west first, then north or south; else the other way round.
    pub along_row_first: bool,
}

impl Way {
    /// A way that ends where it begins.
    pub(super) fn nowhere(at: Crossing) -> Self {
        Self {
            from: at,
            to: at,
            along_row_first: true,
        }
    }

    /// Blocks from end to end.
    pub(super) fn blocks(self) -> u32 {
        self.blocks_along_row() + u32::from(self.from.row.abs_diff(self.to.row))
    }

    /// The crossing after so many blocks; the last one beyond the end.
    pub(super) fn crossing(self, blocks: u32) -> Crossing {
        let (along_row, along_column) = if self.along_row_first {
            let turn = self.blocks_along_row();
            (blocks.min(turn), blocks.saturating_sub(turn))
        } else {
            let turn = self.blocks() - self.blocks_along_row();
            (blocks.saturating_sub(turn), blocks.min(turn))
        };
        Crossing {
            column: toward(self.from.column, self.to.column, along_row),
            row: toward(self.from.row, self.to.row, along_column),
        }
    }

    fn blocks_along_row(self) -> u32 {
        u32::from(self.from.column.abs_diff(self.to.column))
    }
}

/// `from`, moved by so many steps toward `to` but not beyond.
fn toward(from: u16, to: u16, steps: u32) -> u16 {
    let steps = u16::try_from(steps).unwrap_or(u16::MAX);
    if from <= to {
        from.saturating_add(steps).min(to)
    } else {
        from.saturating_sub(steps).max(to)
    }
}

/// The grid.
#[derive(Clone, Debug)]
pub(super) struct Streets {
    roads: Roads,
}

impl Streets {
    /// - `roads`: checked.
    pub(super) fn new(roads: Roads) -> Self {
        Self { roads }
    }

    /// Width and height in metres.
    pub(super) fn extent(&self) -> (f64, f64) {
        self.point(Crossing {
            column: self.roads.columns - 1,
            row: self.roads.rows - 1,
        })
    }

    pub(super) fn block_m(&self) -> f64 {
        self.roads.block_m
    }

    /// All crossings in the order of their numbers.
    pub(super) fn crossings(&self) -> impl Iterator<Item = Crossing> {
        let columns = self.roads.columns;
        (0..self.roads.rows)
            .flat_map(move |row| (0..columns).map(move |column| Crossing { column, row }))
    }

    /// A crossing's number.
    pub(super) fn number(&self, at: Crossing) -> usize {
        usize::from(at.row) * usize::from(self.roads.columns) + usize::from(at.column)
    }

    /// Where a crossing is, in metres.
    pub(super) fn point(&self, at: Crossing) -> (f64, f64) {
        (
            f64::from(at.column) * self.roads.block_m,
            f64::from(at.row) * self.roads.block_m,
        )
    }

    /// Any crossing.
    pub(super) fn draw(&self, dice: &mut Dice) -> Crossing {
        let mut below =
            |bound: u16| u16::try_from(dice.below(u32::from(bound))).expect("below a u16");
        Crossing {
            column: below(self.roads.columns),
            row: below(self.roads.rows),
        }
    }

    /// Any crossing but `at`.
    pub(super) fn draw_other(&self, dice: &mut Dice, at: Crossing) -> Crossing {
        let drawn = self.draw(dice);
        if drawn != at {
            return drawn;
        }
        // Rare enough that the next one does: with two streets or more in a direction it is another.
        if self.roads.columns > 1 {
            Crossing {
                column: (at.column + 1) % self.roads.columns,
                ..at
            }
        } else {
            Crossing {
                row: (at.row + 1) % self.roads.rows,
                ..at
            }
        }
    }

    /// The way from one crossing to another with one turn, by the faster streets; `coin` decides if they are equal.
    pub(super) fn way(&self, from: Crossing, to: Crossing, coin: bool) -> Way {
        let across = f64::from(from.column.abs_diff(to.column));
        let up = f64::from(from.row.abs_diff(to.row));
        let time = |row: u16, column: u16| across / self.speed(row) + up / self.speed(column);
        let row_first = time(from.row, to.column);
        let column_first = time(to.row, from.column);
        Way {
            from,
            to,
            along_row_first: row_first < column_first || (row_first <= column_first && coin),
        }
    }

    /// Milliseconds for one block of a way, the first being 0; at least 1.
    ///
    /// - `trip`: start of the trip's random stream. The same trip always gives the same times, so that they need not be
    ///   kept.
    pub(super) fn block_ms(&self, way: Way, block: u32, trip: u64) -> Millis {
        let (at, next) = (way.crossing(block), way.crossing(block + 1));
        let street = if at.row == next.row {
            at.row
        } else {
            at.column
        };
        let drawn = 2.0 * Dice::from_number(trip, u64::from(block)).unit() - 1.0;
        let speed = self.speed(street) + self.roads.spread_m_s * drawn;
        millis(self.roads.block_m / speed * 1000.0).max(1)
    }

    /// Where a vehicle is that began this trip at `depart`, in metres.
    pub(super) fn position(&self, way: Way, trip: u64, depart: Millis, now: Millis) -> (f64, f64) {
        let mut left = now.saturating_sub(depart);
        for block in 0..way.blocks() {
            let takes = self.block_ms(way, block, trip);
            if left < takes {
                let (x, y) = self.point(way.crossing(block));
                let (next_x, next_y) = self.point(way.crossing(block + 1));
                let share = left as f64 / takes as f64;
                return (x + (next_x - x) * share, y + (next_y - y) * share);
            }
            left -= takes;
        }
        self.point(way.to)
    }

    /// Mean speed in m/s on the street of this number, which is a row's or a column's.
    fn speed(&self, street: u16) -> f64 {
        let every = self.roads.arterial_every;
        if every > 0 && street.is_multiple_of(every) {
            self.roads.arterial_speed_m_s
        } else {
            self.roads.speed_m_s
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(column: u16, row: u16) -> Crossing {
        Crossing { column, row }
    }

    #[test]
    fn a_way_turns_once() {
        let check = |row_first: bool, expected: &[(u16, u16)]| {
            let way = Way {
                from: at(2, 1),
                to: at(0, 2),
                along_row_first: row_first,
            };
            let got: Vec<_> = (0..=way.blocks())
                .map(|i| way.crossing(i))
                .map(|c| (c.column, c.row))
                .collect();
            assert_eq!(got, expected);
            assert_eq!(way.crossing(99), way.to);
        };
        check(true, &[(2, 1), (1, 1), (0, 1), (0, 2)]);
        check(false, &[(2, 1), (2, 2), (1, 2), (0, 2)]);
    }

    #[test]
    fn ways_prefer_arterials() {
        // Streets 0 and 5 are arterials.
        let streets = Streets::new(Roads::default());
        assert!(streets.way(at(3, 5), at(8, 7), false).along_row_first);
        assert!(!streets.way(at(3, 6), at(8, 10), true).along_row_first);
        assert!(streets.way(at(1, 1), at(3, 3), true).along_row_first);
        assert!(!streets.way(at(1, 1), at(3, 3), false).along_row_first);
    }

    #[test]
    fn blocks_take_their_length_at_the_street_s_speed() {
        let roads = Roads {
            spread_m_s: 0.0,
            ..Roads::default()
        };
        let streets = Streets::new(roads);
        let way = streets.way(at(1, 1), at(1, 2), true);
        assert_eq!(streets.block_ms(way, 0, 7), 22_222);
        let way = streets.way(at(5, 1), at(5, 2), true);
        assert_eq!(streets.block_ms(way, 0, 7), 13_333);
    }

    proptest! {
        #[test]
        fn positions_move_no_faster_than_the_fastest_street(
            from in (0u16..20, 0u16..20), to in (0u16..20, 0u16..20), trip: u64, coin: bool,
        ) {
            let streets = Streets::new(Roads::default());
            let way = streets.way(at(from.0, from.1), at(to.0, to.1), coin);
            let mut last = streets.position(way, trip, 1000, 0);
            prop_assert_eq!(last, streets.point(way.from));
            for second in 1..1000 {
                let next = streets.position(way, trip, 1000, second * 1000);
                let moved = (next.0 - last.0).abs() + (next.1 - last.1).abs();
                prop_assert!(moved <= 19.1, "{} m in a second", moved);
                last = next;
            }
            prop_assert_eq!(last, streets.point(way.to));
        }
    }
}
