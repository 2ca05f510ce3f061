//! When vehicles leave home and come back, and how long they dwell.

use super::Millis;
use super::dice::{Dice, Purpose, stream};
use super::millis;
use super::spec::{Activity, ActivityKind, Mobility};

/// Milliseconds of an hour.
const HOUR_MS: f64 = 3_600_000.0;

/// Milliseconds of a day.
const DAY_MS: Millis = 86_400_000;

/// Least time that a vehicle stays parked.
const LEAST_DWELL_MS: Millis = 1000;

/// The course of a day.
#[derive(Clone, Debug)]
pub(super) struct Days {
    kind: ActivityKind,
    start_ms: Millis,
    morning_ms: f64,
    evening_ms: f64,
    spread_ms: f64,
    dwell_ms: f64,
    seed: u64,
}

impl Days {
    /// - `activity`, `mobility`: checked.
    pub(super) fn new(activity: &Activity, mobility: &Mobility, seed: u64) -> Self {
        Self {
            kind: activity.kind,
            start_ms: millis(activity.start_h * HOUR_MS),
            morning_ms: activity.morning_peak_h * HOUR_MS,
            evening_ms: activity.evening_peak_h * HOUR_MS,
            spread_ms: activity.peak_spread_h * HOUR_MS,
            dwell_ms: mobility.dwell_s * 1000.0,
            seed,
        }
    }

    /// Whether vehicles go home at night.
    pub(super) fn nightly(&self) -> bool {
        self.kind == ActivityKind::Daily
    }

    /// The day that a moment lies in. Day 0 began before the simulation, at its midnight.
    pub(super) fn day_of(&self, now: Millis) -> u32 {
        u32::try_from(now.saturating_add(self.start_ms) / DAY_MS).unwrap_or(u32::MAX)
    }

    /// When a vehicle leaves home on a day; 0 if that was before the start.
    pub(super) fn morning(&self, vehicle: u32, day: u32) -> Millis {
        self.moment(vehicle, day, 0, self.morning_ms)
    }

    /// When it sets out for home on a day, later than that day's morning; 0 if that was before the start.
    pub(super) fn evening(&self, vehicle: u32, day: u32) -> Millis {
        self.moment(vehicle, day, 2, self.evening_ms)
    }

    /// How long a vehicle stays where it has just parked.
    pub(super) fn dwell(&self, dice: &mut Dice) -> Millis {
        millis(self.dwell_ms * dice.triangle()).max(LEAST_DWELL_MS)
    }

    /// A moment around `peak`, drawn for this vehicle and day: the same whenever asked.
    fn moment(&self, vehicle: u32, day: u32, number: u64, peak: f64) -> Millis {
        let index = u64::from(vehicle) << 32 | u64::from(day);
        let mut dice = Dice::from_number(stream(self.seed, Purpose::Day, index), number);
        let hour = peak + self.spread_ms * (dice.triangle() - 1.0);
        (Millis::from(day) * DAY_MS + millis(hour)).saturating_sub(self.start_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days() -> Days {
        let activity = Activity {
            kind: ActivityKind::Daily,
            ..Activity::default()
        };
        Days::new(&activity, &Mobility::default(), 5)
    }

    #[test]
    fn mornings_and_evenings_are_around_their_peaks() {
        let days = days();
        let hour = |at: Millis| at as f64 / HOUR_MS + 6.0;
        let mut sum = 0.0;
        for vehicle in 0..1000 {
            for day in 0..3 {
                let morning = hour(days.morning(vehicle, day)) - 24.0 * f64::from(day);
                let evening = hour(days.evening(vehicle, day)) - 24.0 * f64::from(day);
                assert!((6.5..=9.5).contains(&morning), "{morning}");
                assert!((16.0..=19.0).contains(&evening), "{evening}");
                sum += morning / 3000.0;
            }
        }
        assert!((sum - 8.0).abs() < 0.05, "{sum}");
    }

    #[test]
    fn days_begin_at_midnight() {
        let days = days();
        assert_eq!(days.day_of(0), 0);
        assert_eq!(days.day_of(18 * 3_600_000 - 1), 0);
        assert_eq!(days.day_of(18 * 3_600_000), 1);
    }
}
