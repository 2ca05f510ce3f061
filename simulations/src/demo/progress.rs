//! Live progress on standard error: bars on a terminal, now and then a line elsewhere.

use super::tally::Tally;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Lines printed where there is no terminal: one each so many versions.
const LINE_EVERY: usize = 10;

/// Shows a [`Tally`] while it grows.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    merges: u64,
    pictures: usize,
    lines: usize,
    quiet: bool,
}

impl Progress {
    /// For a job of so many merges; `quiet` shows nothing.
    pub(super) fn new(merges: u64, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(1);
            let style = ProgressStyle::with_template("{prefix:<11} [{bar:30}] {pos}/{len} {msg}");
            bar.set_style(
                style
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .progress_chars("=> "),
            );
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self {
            bar,
            merges,
            pictures: 0,
            lines: 0,
            quiet,
        }
    }

    /// Says how many pictures the vehicles have together.
    pub(super) fn expect(&mut self, pictures: usize) {
        self.pictures = pictures;
    }

    /// Says what begins now.
    pub(super) fn phase(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.println(text);
        } else if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Shows how far things are.
    pub(super) fn show(&mut self, tally: &Tally, parameters: usize) {
        let versions = tally.versions.iter().filter(|v| v.version.0 > 0).count();
        let text = Self::message(tally, parameters);
        if let Some(bar) = &self.bar {
            if tally.all_ready() {
                bar.set_prefix("federation");
                bar.set_length(self.merges);
                bar.set_position(versions as u64);
                bar.set_message(text);
            } else {
                let done = tally.features_done();
                bar.set_prefix("features");
                bar.set_length(self.pictures.max(1) as u64);
                bar.set_position(done as u64);
            }
        } else if !self.quiet && versions / LINE_EVERY > self.lines {
            self.lines = versions / LINE_EVERY;
            let _ = writeln!(
                std::io::stderr(),
                "  round {versions}/{}: {text}",
                self.merges
            );
        }
    }

    fn message(tally: &Tally, parameters: usize) -> String {
        let accuracy = tally.versions.last().map_or(0.0, |v| v.accuracy);
        let rounds = tally.sum(|v| v.accepted).max(1) as f64 * parameters.max(1) as f64;
        format!(
            "accuracy {:.1} % (held back), waiting for {}, late {}, {:.2} B up, {:.2} B down a parameter",
            100.0 * accuracy,
            tally.waiting_text(),
            tally.late,
            tally.sum(|v| v.up_bytes) as f64 / rounds,
            tally.sum(|v| v.down_bytes) as f64 / rounds,
        )
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
