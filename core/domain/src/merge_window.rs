//! When the cloud merges: once a period by the wall clock, also after a sleep, and once only.
//!
//! The date of the last merge is stored by the caller; a process or machine that slept through one or more windows
//! merges once and starts a new window. Early merges (all contributions are in) restart the window as well.

use crate::time::Timestamp;
use std::time::Duration;

/// A window has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEnd {
    /// Whole windows that passed unnoticed before this one; more than 0 means that the process slept.
    pub missed: u64,
}

/// The merge window of one job.
#[derive(Clone, Debug)]
pub struct MergeWindow {
    period: Duration,
    last_merge: Timestamp,
}

impl MergeWindow {
    /// A window of `period` that began with the stored last merge, or begins `now` where there was none.
    pub fn new(period: Duration, last_merge: Option<Timestamp>, now: Timestamp) -> Self {
        Self {
            period: period.max(Duration::from_millis(1)),
            last_merge: last_merge.unwrap_or(now),
        }
    }

    /// When the window ends.
    pub fn ends(&self) -> Timestamp {
        self.last_merge + self.period
    }

    /// Date of the last merge, to be stored.
    pub fn last_merge(&self) -> Timestamp {
        self.last_merge
    }

    /// Looks at the clock; to be called at least once a minute, since timers do not count time asleep.
    ///
    /// A last merge that lies ahead of the clock (it was wrong when stored, or is wrong now) begins the window anew.
    pub fn on_tick(&mut self, now: Timestamp) -> Option<WindowEnd> {
        if self.last_merge > now {
            self.last_merge = now;
            return None;
        }
        let periods = now.since(self.last_merge).as_millis() / self.period.as_millis();
        if periods == 0 {
            return None;
        }
        self.last_merge = now;
        Some(WindowEnd {
            missed: u64::try_from(periods - 1).unwrap_or(u64::MAX),
        })
    }

    /// A merge took place before the window's end; the next window begins now.
    pub fn merged_early(&mut self, now: Timestamp) {
        self.last_merge = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: u64 = 3_600_000;
    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn once_a_day_and_once_after_a_long_sleep() {
        let mut window = MergeWindow::new(DAY, None, Timestamp(0));
        assert_eq!(window.on_tick(Timestamp(24 * HOUR - 1)), None);
        assert_eq!(
            window.on_tick(Timestamp(24 * HOUR)),
            Some(WindowEnd { missed: 0 })
        );
        assert_eq!(window.on_tick(Timestamp(24 * HOUR + 1)), None);
        assert_eq!(
            window.on_tick(Timestamp(200 * HOUR)),
            Some(WindowEnd { missed: 6 }),
            "one catch-up for all"
        );
        assert_eq!(window.on_tick(Timestamp(200 * HOUR + 1)), None);
        assert_eq!(window.ends(), Timestamp(224 * HOUR));
    }

    #[test]
    fn a_stored_date_is_gone_on_from_and_one_from_the_future_is_not_believed() {
        let mut window = MergeWindow::new(DAY, Some(Timestamp(10 * HOUR)), Timestamp(40 * HOUR));
        assert_eq!(
            window.on_tick(Timestamp(40 * HOUR)),
            Some(WindowEnd { missed: 0 })
        );
        let mut window = MergeWindow::new(DAY, Some(Timestamp(1000 * HOUR)), Timestamp(40 * HOUR));
        assert_eq!(window.on_tick(Timestamp(40 * HOUR)), None);
        assert_eq!(window.ends(), Timestamp(64 * HOUR));
    }

    proptest! {
        /// Two ends are never closer than a period while the clock goes forward, and none is later than the first
        /// look after it was due.
        #[test]
        fn ends_are_a_period_apart(steps in proptest::collection::vec(0u64..50 * HOUR, 1..60)) {
            let mut window = MergeWindow::new(DAY, None, Timestamp(0));
            let (mut now, mut last) = (0, 0);
            for step in steps {
                now += step;
                let due = now - last >= 24 * HOUR;
                let end = window.on_tick(Timestamp(now));
                prop_assert_eq!(end.is_some(), due);
                if due { last = now; }
            }
        }
    }
}
