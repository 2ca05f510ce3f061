//! Live progress of a run on standard error: a bar on a terminal, now and then a line elsewhere.

use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::engine::Window;
use crate::engine::event::Millis;
use crate::engine::tally::Tally;

/// Between two looks at a terminal, and two lines elsewhere.
const LOOK: Duration = Duration::from_millis(200);
const LINE: Duration = Duration::from_secs(10);

/// Shows how far a run is.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    began: Instant,
    next: Instant,
    accuracy: Option<f64>,
}

impl Progress {
    /// For a run that ends at `ends` at the latest; `quiet` shows nothing.
    pub fn new(ends: Millis, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {msg}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(ends).with_style(style.progress_chars("=> "))
        });
        let began = Instant::now();
        Self {
            bar,
            quiet,
            began,
            next: began,
            accuracy: None,
        }
    }

    /// Shows how things are after a window.
    pub fn show(&mut self, now: Millis, tally: &Tally, window: &Window) {
        let mut tested = (window.made.iter()).filter_map(|made| made.evaluation.as_ref());
        if let Some(evaluation) = tested.next_back() {
            self.accuracy = Some(evaluation.accuracy);
        }
        let time = Instant::now();
        if self.quiet || time < self.next {
            return;
        }
        let wait = if self.bar.is_some() { LOOK } else { LINE };
        self.next = time + wait;
        let wall = self.began.elapsed().as_secs_f64().max(1e-3);
        let accuracy = self
            .accuracy
            .map_or("-".to_owned(), |a| format!("{:.1} %", 100.0 * a));
        let text = format!(
            "{} simulated, {} rounds, {} versions, accuracy {accuracy}, {:.0} fits/s, {:.0}x real time",
            clock(now),
            tally.rounds_with_result(),
            tally.versions,
            tally.fits as f64 / wall,
            now as f64 / 1000.0 / wall,
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(now);
                bar.set_message(text);
            }
            // Nobody reads it if this fails.
            None => drop(writeln!(std::io::stderr(), "{text}")),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Hours, minutes and seconds.
fn clock(at: Millis) -> String {
    let s = at / 1000;
    format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}
