//! Figures as people read them.

use std::fmt::Write as _;

/// A count with commas: `1,234,567`.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three figures or so: `0.042`, `4.2`, `42`, `4,200`.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "-".to_owned()
    } else if size >= 1000.0 {
        grouped(value)
    } else {
        let decimals = decimals(size);
        trim(format!("{value:.decimals$}"))
    }
}

fn decimals(size: f64) -> usize {
    match size {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    }
}

/// A mean and how far values lie from it, with as many decimals: `81.2 ± 0.4`.
pub(super) fn spread(mean: f64, deviation: f64) -> String {
    if mean.abs() >= 1000.0 {
        return format!("{} ± {}", number(mean), grouped(deviation));
    }
    let decimals = decimals(mean.abs());
    format!("{mean:.decimals$} ± {deviation:.decimals$}")
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    if digits.len() > 15 {
        return format!("{value:.2e}");
    }
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(digits.parse().unwrap_or(0)))
}

/// Without zeros at the end of the fraction.
pub(super) fn trim(mut text: String) -> String {
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    text
}

/// A share of 1 in percent: `81.3 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The same where it may be missing: `-`.
pub(super) fn maybe_percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), percent)
}

/// `part` of `whole` in percent; nothing of nothing is 0 %.
pub(super) fn share(part: u64, whole: u64) -> String {
    percent(part as f64 / whole.max(1) as f64)
}

/// A unit of measurement: its name and how many of the base unit it is.
pub(super) type Unit = (&'static str, f64);

/// Decimal multiples of a byte.
const BYTES: [Unit; 6] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("PB", 1e15),
];
/// Decimal multiples of a joule.
const JOULES: [Unit; 5] = [
    ("J", 1.0),
    ("kJ", 1e3),
    ("MJ", 1e6),
    ("GJ", 1e9),
    ("TJ", 1e12),
];
/// What simulated time is measured in.
const SECONDS: [Unit; 4] = [("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// The largest unit of which `value` is at least `least`.
fn fitting(units: &[Unit], value: f64, least: f64) -> Unit {
    units
        .iter()
        .rev()
        .find(|(_, size)| value.abs() >= size * least)
        .copied()
        .unwrap_or(units[0])
}

/// The unit for an axis of bytes up to `largest`.
pub(super) fn byte_unit(largest: f64) -> Unit {
    fitting(&BYTES, largest, 1.0)
}

/// The unit for an axis of joules up to `largest`.
pub(super) fn joule_unit(largest: f64) -> Unit {
    fitting(&JOULES, largest, 1.0)
}

/// The unit for an axis of seconds up to `largest`: at least two of it.
pub(super) fn time_unit(largest: f64) -> Unit {
    fitting(&SECONDS, largest, 2.0)
}

fn with_unit(value: f64, (name, size): Unit) -> String {
    format!("{} {name}", number(value / size))
}

/// Bytes: `1.23 GB`.
pub(super) fn bytes(value: f64) -> String {
    with_unit(value, byte_unit(value))
}

/// Joules: `4.2 MJ`.
pub(super) fn joules(value: f64) -> String {
    with_unit(value, joule_unit(value))
}

/// Seconds: `12.3 s`, `3.5 h`.
pub(super) fn seconds(value: f64) -> String {
    with_unit(value, time_unit(value))
}

/// The beginning of a digest.
pub(super) fn short(digest: &str) -> String {
    digest.chars().take(12).collect()
}

/// `word`, with an s unless there is one of it.
pub(super) fn plural(n: u64, word: &str) -> String {
    let mut text = format!("{} {word}", count(n));
    if n != 1 {
        text.push('s');
    }
    text
}

/// Text for HTML and SVG, in elements and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Not allowed in HTML, not even as references.
            c if c.is_control() && !matches!(c, '\n' | '\t' | '\r') => {
                let _ = write!(escaped, "\\x{:02x}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_commas() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn figures_have_units_that_fit() {
        for (got, text) in [
            (number(0.0), "0"),
            (number(0.0421), "0.042"),
            (number(4.2), "4.2"),
            (number(-1234.4), "-1,234"),
            (number(f64::NAN), "-"),
            (bytes(999.0), "999 B"),
            (bytes(1.23e9), "1.23 GB"),
            (joules(4.2e6), "4.2 MJ"),
            (seconds(0.25), "0.25 s"),
            (seconds(90.0), "90 s"),
            (seconds(12_600.0), "3.5 h"),
            (percent(0.8125), "81.2 %"),
            (spread(85.0, 7.07), "85.0 ± 7.1"),
            (spread(12_345.6, 7.07), "12,346 ± 7"),
            (share(0, 0), "0.0 %"),
            (plural(1, "seed"), "1 seed"),
            (plural(2, "seed"), "2 seeds"),
        ] {
            assert_eq!(got, text);
        }
    }

    #[test]
    fn nothing_escapes() {
        assert_eq!(
            escape("<a b='c' d=\"e\">&\0"),
            "&lt;a b=&#39;c&#39; d=&quot;e&quot;&gt;&amp;\\x00"
        );
    }
}
