//! One axis of a plot: its range, and ticks at figures that people would choose.

use super::super::format::{count, trim};

/// What one direction of a plot shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    /// Value at the left or lower end.
    pub from: f64,
    /// Value at the right or upper end; always more than `from`.
    pub to: f64,
    /// Distance of ticks.
    pub step: f64,
    /// What stands behind each tick's figure, such as `%`.
    pub suffix: &'static str,
    /// What is shown, with its unit.
    pub title: String,
}

impl Axis {
    /// From `from` to `to` as they are, with about `ticks` ticks.
    pub(super) fn new(from: f64, to: f64, ticks: u32, title: &str) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        Self {
            from,
            to,
            step: step((to - from) / f64::from(ticks)),
            suffix: "",
            title: title.to_owned(),
        }
    }

    /// The same, widened to whole steps at both ends.
    pub(super) fn rounded(mut self) -> Self {
        self.from = (self.from / self.step + 1e-9).floor() * self.step;
        self.to = (self.to / self.step - 1e-9).ceil() * self.step;
        self
    }

    /// The same, with ticks at whole numbers only.
    pub(super) fn whole(mut self) -> Self {
        self.step = self.step.max(1.0);
        self
    }

    /// The same, for percent.
    pub(super) fn percent(mut self) -> Self {
        self.suffix = " %";
        self
    }

    /// Where ticks are, and what stands at them.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let slack = 1e-6 * self.step;
        let first = ((self.from - slack) / self.step).ceil();
        // None where a step is longer than the axis and leaps over it.
        let room = (self.to + slack) / self.step - first + 1.0;
        let count = if room < 1.0 { 0 } else { whole(room).min(51) };
        (0..count).map(move |i| {
            let value = (first + i as f64) * self.step;
            let text = trim(format!("{value:.6}"));
            let text = if text == "-0" { "0" } else { &text };
            (value, format!("{}{}", grouped(text), self.suffix))
        })
    }

    /// How far `value` lies from the lower end, 0 to 1 inside.
    pub(super) fn share(&self, value: f64) -> f64 {
        (value - self.from) / (self.to - self.from)
    }
}

/// Commas into long figures of an axis.
fn grouped(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(value) if value >= 10_000 => count(value),
        _ => text.to_owned(),
    }
}

/// 1, 2 or 5 times a power of ten, the smallest that is not less than `least`.
fn step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let mut power = 1.0;
    while power > least {
        power /= 10.0;
    }
    while power * 10.0 <= least {
        power *= 10.0;
    }
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|f| f * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// A value that is not negative, without its fraction; the largest there is where it does not fit.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturating is what is wanted, and NaN becomes 0"
)]
pub(super) fn whole(value: f64) -> usize {
    value as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_figures_that_people_would_choose() {
        for (axis, expected) in [
            (Axis::new(0.0, 40.0, 5, ""), "0 10 20 30 40"),
            (Axis::new(0.0, 19.9, 5, ""), "0 5 10 15"),
            (Axis::new(0.0, 0.7, 5, ""), "0 0.2 0.4 0.6"),
            (Axis::new(3.1, 87.0, 5, "").rounded(), "0 20 40 60 80 100"),
            (
                Axis::new(81.0, 83.5, 5, "").rounded(),
                "81 81.5 82 82.5 83 83.5",
            ),
            (Axis::new(0.0, 2.0, 5, "").whole(), "0 1 2"),
            (Axis::new(5.0, 5.0, 2, ""), "5 5.5 6"),
            (Axis::new(0.0, 40_000.0, 2, ""), "0 20,000 40,000"),
        ] {
            assert_eq!(labels(&axis).join(" "), expected);
        }
        assert_eq!(
            labels(&Axis::new(0.0, 100.0, 2, "").percent()),
            ["0 %", "50 %", "100 %"]
        );
    }

    /// Found by the property below: a step as long as the axis put a tick behind its end.
    #[test]
    fn a_step_that_leaps_over_the_axis_leaves_no_tick() {
        let axis = Axis::new(48_410_234.3, 493_018_098.2, 2, "");
        assert_eq!(labels(&axis), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn an_axis_has_a_few_ticks_inside(from in -1e9..1e9, range in 1e-3..1e9, n in 2u32..8) {
            let axis = Axis::new(from, from + range, n, "");
            let ticks: Vec<f64> = axis.ticks().map(|(value, _)| value).collect();
            prop_assert!(ticks.len() <= n as usize + 1);
            let slack = 1e-5 * axis.step;
            prop_assert!(ticks.iter().all(|t| *t >= axis.from - slack && *t <= axis.to + slack));
            let wide = axis.clone().rounded();
            prop_assert!(wide.from <= axis.from + slack && wide.to >= axis.to - slack);
            prop_assert!(wide.ticks().count() >= 2);
        }
    }
}
