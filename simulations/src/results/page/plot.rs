//! What every drawing needs: a frame of two axes, lines and bars in it, an SVG element that says what it shows, and the
//! legend, note and table beside it.

use std::fmt::Write as _;

use super::super::format::{escape, trim};
use super::axis::Axis;

/// Size of a plot in SVG units; it is scaled to the column it stands in.
pub(super) const SIZE: (f64, f64) = (480.0, 300.0);
/// Left, right, top and bottom edge of the area inside the axes.
pub(super) const EDGES: [f64; 4] = [46.0, 460.0, 24.0, 256.0];

/// Two axes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame {
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
}

impl Frame {
    /// Where `value` lies from the left.
    pub(super) fn x(&self, value: f64) -> f64 {
        EDGES[0] + self.x.share(value) * (EDGES[1] - EDGES[0])
    }

    /// Where `value` lies from the top.
    pub(super) fn y(&self, value: f64) -> f64 {
        EDGES[3] - self.y.share(value) * (EDGES[3] - EDGES[2])
    }

    /// Grid lines, ticks and titles.
    pub(super) fn axes(&self) -> String {
        let [left, right, top, bottom] = EDGES;
        let mut text = String::from("<g class=\"axes\">");
        for (value, label) in self.y.ticks() {
            let y = px(self.y(value));
            let _ = write!(
                text,
                "<path class=\"grid\" d=\"M{left} {y}H{right}\"/>\
                 <text x=\"{}\" y=\"{y}\" dy=\".32em\" text-anchor=\"end\">{label}</text>",
                left - 7.0
            );
        }
        for (value, label) in self.x.ticks() {
            let x = px(self.x(value));
            let _ = write!(
                text,
                "<path class=\"tick\" d=\"M{x} {bottom}v4\"/>\
                 <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 17.0
            );
        }
        let _ = write!(
            text,
            "<path class=\"base\" d=\"M{left} {bottom}H{right}\"/>\
             <text class=\"title\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text></g>",
            bottom + 36.0,
            escape(&self.x.title)
        );
        if !self.y.title.is_empty() {
            let _ = write!(
                text,
                "<text class=\"title\" x=\"2\" y=\"{}\">{}</text>",
                top - 13.0,
                escape(&self.y.title)
            );
        }
        text
    }

    /// A line through these points.
    pub(super) fn line(&self, class: &str, points: impl Iterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        for (x, y) in points {
            let pen = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{pen}{} {}", px(self.x(x)), px(self.y(y)));
        }
        if path.is_empty() {
            return path;
        }
        format!("<path class=\"line {class}\" d=\"{path}\"/>")
    }

    /// A bar from `low` to `high` over the values `from` to `to`, less a gap, with words for who points at it.
    pub(super) fn bar(
        &self,
        class: &str,
        (from, to): (f64, f64),
        (low, high): (f64, f64),
        words: &str,
    ) -> String {
        let (x, width) = (self.x(from), self.x(to) - self.x(from));
        let gap = (0.15 * width).min(2.0);
        let (top, bottom) = (self.y(high), self.y(low));
        if bottom - top < 0.05 {
            return String::new();
        }
        format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
            px(x + gap / 2.0),
            px(top),
            px((width - gap).max(0.5)),
            px(bottom - top),
            escape(words)
        )
    }
}

/// A length with one decimal, as short as it can be.
pub(super) fn px(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = trim(format!("{value:.1}"));
    if text == "-0" { "0".to_owned() } else { text }
}

/// An SVG element with a title and a description, both for those who cannot see it.
pub(super) fn svg(id: &str, size: (f64, f64), title: &str, words: &str, body: &str) -> String {
    format!(
        "<svg id=\"{id}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\
         <title id=\"{id}-title\">{}</title><desc id=\"{id}-desc\">{}</desc>{body}</svg>",
        px(size.0),
        px(size.1),
        escape(title),
        escape(words)
    )
}

/// A drawing with its heading and a line below it, which may hold HTML.
pub(super) fn figure(heading: &str, svg: &str, note: &str) -> String {
    let note = if note.is_empty() {
        String::new()
    } else {
        format!("<p class=\"note\">{note}</p>")
    };
    format!(
        "<figure><figcaption>{}</figcaption>{svg}{note}</figure>",
        escape(heading)
    )
}

/// Entries of a legend: class of the swatch (`line s0`, `bar accepted`) and words.
pub(super) fn legend<'a>(entries: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut text = String::from("<ul class=\"legend\">");
    for (class, words) in entries {
        let shape = if class.starts_with("line") {
            format!("<path class=\"{class}\" d=\"M1 6H21\"/>")
        } else if class.starts_with("bar") {
            let class = class.trim_start_matches("bar ");
            format!("<rect class=\"{class}\" x=\"5\" y=\"0\" width=\"12\" height=\"12\" rx=\"2\"/>")
        } else {
            format!("<circle class=\"{class}\" cx=\"11\" cy=\"6\" r=\"4.5\"/>")
        };
        let _ = write!(
            text,
            "<li><svg viewBox=\"0 0 22 12\" width=\"22\" height=\"12\" aria-hidden=\"true\">{shape}</svg>{}</li>",
            escape(&words)
        );
    }
    text.push_str("</ul>");
    text
}

/// A table: names of its columns, then rows; the first cell of a row names it.
pub(super) fn table<const N: usize>(
    class: &str,
    names: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut text = format!("<div class=\"scroll\"><table class=\"{class}\"><thead><tr>");
    for name in names {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escape(name));
    }
    text.push_str("</tr></thead><tbody>");
    for row in rows {
        text.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = match i {
                0 => write!(text, "<th scope=\"row\">{cell}</th>"),
                _ => write!(text, "<td>{cell}</td>"),
            };
        }
        text.push_str("</tr>");
    }
    text.push_str("</tbody></table></div>");
    text
}

/// At most `most` of `items`, evenly chosen, the last always among them.
pub(super) fn thinned<T>(items: &[T], most: usize) -> impl Iterator<Item = &T> {
    let stride = items.len().div_ceil(most.max(1)).max(1);
    let last = items.len().saturating_sub(1);
    let chosen = move |i: usize| (last - i).is_multiple_of(stride);
    items
        .iter()
        .enumerate()
        .filter(move |(i, _)| chosen(*i))
        .map(|(_, item)| item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_last() {
        let items: Vec<u32> = (0..10).collect();
        let thin = |most| thinned(&items, most).copied().collect::<Vec<_>>();
        assert_eq!(thin(20), items);
        assert_eq!(thin(4), [0, 3, 6, 9]);
        assert_eq!(thin(3), [1, 5, 9]);
        assert_eq!(thinned(&[] as &[u32], 3).count(), 0);
    }
}
