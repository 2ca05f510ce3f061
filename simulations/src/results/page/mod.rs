//! One HTML page on one or several runs: a single file that asks for nothing else, to be opened from disk, sent by mail
//! or printed.
//!
//! Every drawing is made here, as SVG, so that the page is complete without JavaScript; its small script only tells the
//! figures under the pointer. All text from a record is escaped.

mod axis;
mod curves;
mod map;
mod overview;
mod plot;
mod stragglers;
mod vehicles;

use std::fmt::Write as _;

use super::format::escape;
use super::record::RunRecord;

/// Runs whose details are on the page; of more runs only curves and comparison.
const MOST_DETAILS: usize = 8;

/// The page. Runs of one name share a colour; each run has its details below, up to eight of them.
///
/// Ids of the drawings: `accuracy-by-version`, `accuracy-by-time`, `accuracy-by-bytes`, `accuracy-by-energy`; for the
/// first run `fleet-map`, `stragglers`, `rounds`, `connected-share`, `handovers`, `contributions`; for the second the
/// same with `-2` behind, and so on.
pub fn html(runs: &[RunRecord]) -> String {
    let title = overview::title(runs);
    let (learning, data) = curves::section(runs);
    let body = overview::section(runs) + &learning + &details(runs);
    // JSON may hold `<` in strings only, where `\u003c` means the same and ends no script.
    let data = data.to_string().replace('<', "\\u003c");
    fill(
        include_str!("page.html"),
        &[
            ("title", &escape(&title)),
            ("style", include_str!("page.css")),
            ("body", &body),
            ("data", &data),
            ("script", include_str!("page.js")),
        ],
    )
}

/// What is shown of each run on its own.
fn details(runs: &[RunRecord]) -> String {
    let mut text = String::new();
    for (i, run) in runs.iter().take(MOST_DETAILS).enumerate() {
        let suffix = if i == 0 {
            String::new()
        } else {
            format!("-{}", i + 1)
        };
        let sections = map::section(run, &suffix)
            + &stragglers::section(run, &suffix)
            + &vehicles::links(run, &suffix)
            + &vehicles::contributions(run, &suffix)
            + &overview::particulars(run);
        if runs.len() == 1 {
            text += &sections;
        } else {
            let open = if i == 0 { " open" } else { "" };
            let _ = write!(
                text,
                "<details class=\"run\"{open}><summary>{}, seed {}</summary>{}{}{sections}</details>",
                escape(&run.name),
                run.seed,
                curves::numbers(run),
                overview::expectations(run)
            );
        }
    }
    if runs.len() > MOST_DETAILS {
        let _ = write!(
            text,
            "<p class=\"note\">Details of the first {MOST_DETAILS} runs; each run has a page of its own.</p>"
        );
    }
    text
}

/// Puts values where `{{name}}` stands; what is put in is not looked at again.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after
            .split_once("}}")
            .expect("the template closes what it opens");
        let value = values.iter().find(|(known, _)| *known == name);
        text.push_str(before);
        text.push_str(value.expect("the template names what there is").1);
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests;
