//! Wall time that never steps back within a process, and sleeping that notices a suspended machine.
//!
//! Linux's monotonic clock stands still while the machine sleeps, and its wall clock can be set back. The time told
//! here is the monotonic clock plus the largest distance to the wall clock ever seen: it follows a wall clock that jumps
//! forward at the next reading, and keeps counting when the wall clock is set back.
//! A wall clock that is clearly not set (before 2024, from 2099 on) is not followed, so that one wrong reading does not
//! move every deadline for the life of the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use wayside_domain::time::Timestamp;

/// 2024-01-01T00:00:00Z: earlier than any build of this software.
const EARLIEST: Timestamp = Timestamp(1_704_067_200_000);
/// 2099-01-01T00:00:00Z: where a clock with a flat battery or a broken time source ends up.
const LATEST: Timestamp = Timestamp(4_070_908_800_000);
/// The longest sleep before the wall clock is read again.
const RECHECK: Duration = Duration::from_secs(30);

/// Tells the time. Cheap to clone; clones tell the same time.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System(Arc<System>),
    Manual(Arc<watch::Sender<Timestamp>>),
    Runtime {
        start: Timestamp,
        at: tokio::time::Instant,
    },
}

struct System {
    anchor: Instant,
    ratchet: Ratchet,
}

/// The wall clock shows a time that cannot be right; certificates and dates cannot be judged until it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "clock not set: it shows {shown} since 1970, expected a date from 2024 to 2098: set the date or wait for time synchronisation"
)]
pub struct ClockNotSet {
    /// What the wall clock shows.
    pub shown: Timestamp,
}

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self(Source::System(Arc::new(System {
            anchor: Instant::now(),
            ratchet: Ratchet::default(),
        })))
    }

    /// A clock that follows the async runtime's time from `start`, for drivers tested under paused time.
    pub fn following_runtime(start: Timestamp) -> Self {
        Self(Source::Runtime {
            start,
            at: tokio::time::Instant::now(),
        })
    }

    /// The time now; never earlier than an earlier answer.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            // The wall is read first: a pause between the readings then makes the distance too small, never too large.
            Source::System(system) => {
                let wall = wall_time();
                system.ratchet.observe(wall, system.anchor.elapsed())
            }
            Source::Manual(time) => *time.borrow(),
            Source::Runtime { start, at } => *start + at.elapsed(),
        }
    }

    /// Whether the wall clock can be right. It is read anew each time, so a caller may ask again until it is set.
    pub fn check(&self) -> Result<(), ClockNotSet> {
        let shown = match &self.0 {
            Source::System(_) => wall_time(),
            Source::Manual(_) | Source::Runtime { .. } => self.now(),
        };
        if is_plausible(shown) {
            Ok(())
        } else {
            Err(ClockNotSet { shown })
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

/// Moves the time of a [`Clock`] in tests.
#[derive(Clone)]
pub struct ManualClock(Arc<watch::Sender<Timestamp>>);

impl ManualClock {
    /// Stands at `start`.
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(watch::Sender::new(start)))
    }

    /// A clock that shows this time.
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(Arc::clone(&self.0)))
    }

    /// Moves on by `span` and wakes whoever sleeps past its deadline.
    pub fn advance(&self, span: Duration) {
        self.0.send_modify(|now| *now = *now + span);
    }

    /// Moves to `time`, or stays where that lies behind.
    pub fn set(&self, time: Timestamp) {
        self.0.send_modify(|now| *now = time.max(*now));
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({})", *self.0.borrow())
    }
}

/// Sleeps until `clock` shows `deadline`. The wall clock is read at least twice a minute, so a deadline that passed
/// while the machine was suspended is noticed then. Dropping the future cancels it.
pub async fn sleep_until(clock: &Clock, deadline: Timestamp) {
    if let Source::Manual(time) = &clock.0 {
        // The sender lives in the clock, so the channel stays open.
        let _ = time.subscribe().wait_for(|now| *now >= deadline).await;
        return;
    }
    loop {
        let left = deadline.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(RECHECK)).await;
    }
}

fn is_plausible(time: Timestamp) -> bool {
    (EARLIEST..LATEST).contains(&time)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
fn wall_time() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Timestamp(millis(since))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The largest distance between the wall clock and the monotonic one.
#[derive(Default)]
struct Ratchet {
    distance_ms: AtomicU64,
}

impl Ratchet {
    /// Takes in one reading of both clocks and tells the time.
    fn observe(&self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        let usable = if is_plausible(wall) { wall } else { EARLIEST };
        let distance = usable.since(Timestamp(0)).saturating_sub(elapsed);
        let largest = self
            .distance_ms
            .fetch_max(millis(distance), Ordering::SeqCst)
            .max(millis(distance));
        Timestamp(largest) + elapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-01T00:00:00Z.
    const Y2026: u64 = 1_767_225_600_000;
    const HOUR: u64 = 3_600_000;

    fn run(readings: &[(u64, u64)]) -> Vec<u64> {
        let ratchet = Ratchet::default();
        readings
            .iter()
            .map(|&(wall, up)| {
                ratchet
                    .observe(Timestamp(wall), Duration::from_millis(up))
                    .0
            })
            .collect()
    }

    #[test]
    fn follows_the_wall_clock() {
        assert_eq!(
            run(&[(Y2026, 0), (Y2026 + 10, 10), (Y2026 + 500, 500)]),
            [Y2026, Y2026 + 10, Y2026 + 500]
        );
    }

    #[test]
    fn jumps_forward_after_a_suspend() {
        assert_eq!(
            run(&[(Y2026, 0), (Y2026 + 10 * HOUR, 5)]),
            [Y2026, Y2026 + 10 * HOUR]
        );
    }

    #[test]
    fn counts_on_when_the_wall_clock_is_set_back() {
        assert_eq!(
            run(&[
                (Y2026, 0),
                (Y2026 - HOUR, 1_000),
                (Y2026 - HOUR + 500, 1_500)
            ]),
            [Y2026, Y2026 + 1_000, Y2026 + 1_500]
        );
    }

    #[test]
    fn is_not_carried_away_by_a_clock_that_is_not_set() {
        let Timestamp(y2024) = EARLIEST;
        let Timestamp(y2099) = LATEST;
        let times = run(&[
            (0, 0),
            (y2099 + HOUR, 100),
            (Y2026, 200),
            (y2099, 300),
            (0, 400),
        ]);
        assert_eq!(times, [y2024, y2024 + 100, Y2026, Y2026 + 100, Y2026 + 200]);
    }

    #[test]
    fn an_unset_clock_is_named() {
        for (time, fine) in [
            (0, false),
            (EARLIEST.0 - 1, false),
            (EARLIEST.0, true),
            (Y2026, true),
            (LATEST.0, false),
        ] {
            let checked = ManualClock::new(Timestamp(time)).clock().check();
            assert_eq!(checked.is_ok(), fine, "{time}");
            if let Err(error) = checked {
                assert!(error.to_string().starts_with("clock not set"), "{error}");
            }
        }
        Clock::system().check().unwrap();
    }

    #[test]
    fn many_threads_never_see_a_step_back() {
        let clock = Clock::system();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let clock = clock.clone();
                scope.spawn(move || {
                    let mut last = clock.now();
                    for _ in 0..20_000 {
                        let now = clock.now();
                        assert!(now >= last);
                        last = now;
                    }
                });
            }
        });
    }

    #[tokio::test]
    async fn a_sleeper_wakes_at_its_deadline_and_not_before() {
        let manual = ManualClock::new(Timestamp(Y2026));
        let clock = manual.clock();
        let sleeper =
            tokio::spawn(async move { sleep_until(&clock, Timestamp(Y2026 + 100)).await });
        manual.advance(Duration::from_millis(99));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        manual.set(Timestamp(Y2026 + 10 * HOUR));
        sleeper.await.unwrap();
        manual.set(Timestamp(0));
        assert_eq!(manual.clock().now(), Timestamp(Y2026 + 10 * HOUR));
    }

    #[tokio::test]
    async fn a_clock_can_follow_the_runtime() {
        let clock = Clock::following_runtime(Timestamp(Y2026));
        sleep_until(&clock, Timestamp(Y2026 + 20)).await;
        assert!(clock.now() >= Timestamp(Y2026 + 20));
        assert!(clock.now() < Timestamp(Y2026 + HOUR));
    }

    #[tokio::test]
    async fn the_system_clock_sleeps() {
        let clock = Clock::system();
        let deadline = clock.now() + Duration::from_millis(20);
        sleep_until(&clock, deadline).await;
        assert!(clock.now() >= deadline);
        sleep_until(&clock, Timestamp(0)).await;
    }
}
