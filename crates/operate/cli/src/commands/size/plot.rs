//! The curve as a picture (SVG 1.1): the hit ratio by the size of the page cache, whose scale is
//! logarithmic.

use std::fmt::Write as _;

use pagekeeper_text::ByteSize;

use super::report::{ShownPoint, SizeOutput};

/// The picture's size, and the corners of the plotted area.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 350.0;
/// The least distance of two labels.
const PLOT_LABEL_WIDTH: f64 = 80.0;

/// Returns the picture; without the points that are not known.
pub(super) fn svg(output: &SizeOutput) -> String {
    let known: Vec<ShownPoint> =
        output.points.iter().copied().filter(|point| point.hit_ratio.is_some()).collect();
    let log = |point: &ShownPoint| (point.page_cache_bytes as f64).log2();
    let first = known.first().map_or(0.0, log);
    let span = (known.last().map_or(1.0, log) - first).max(1.0);
    let across = |point: &ShownPoint| LEFT + (log(point) - first) / span * (RIGHT - LEFT);
    let down = |ratio: f64| BOTTOM - ratio * (BOTTOM - TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    for quarter in 0..=4 {
        let ratio = f64::from(quarter) / 4.0;
        let y = down(ratio);
        line(&mut out, (LEFT, y), (RIGHT, y), "#ddd");
        text(&mut out, (LEFT - 8.0, y + 4.0), "end", &format!("{:.0} %", ratio * 100.0));
    }
    let mut last = f64::NEG_INFINITY;
    for point in &known {
        if across(point) - last < PLOT_LABEL_WIDTH {
            continue;
        }
        last = across(point);
        text(
            &mut out,
            (across(point), BOTTOM + 18.0),
            "middle",
            &ByteSize(point.page_cache_bytes).to_string(),
        );
    }
    let present = across(&output.present).clamp(LEFT, RIGHT);
    line(&mut out, (present, TOP), (present, BOTTOM), "#c33");
    text(&mut out, (present, BOTTOM + 36.0), "middle", "now");
    let places = known
        .iter()
        .map(|point| format!("{:.1},{:.1}", across(point), down(point.hit_ratio.unwrap_or_default())));
    let places = places.collect::<Vec<_>>().join(" ");
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<polyline points=\"{places}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"2\"/>\n</svg>"
    );
    out
}

fn line(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}
