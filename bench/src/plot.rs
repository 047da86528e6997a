//! A picture of a report as SVG: a bar for each subject, a whisker from the least to the greatest sample.
//!
//! Each case has a scale of its own, from zero. Names are escaped; nothing is loaded from elsewhere.

use std::fmt::Write as _;

use crate::report::{Report, Row, number};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 220.0;
const RIGHT: f64 = 110.0;
const BAR: f64 = 20.0;
const STEP: f64 = 28.0;
const HEAD: f64 = 34.0;
const OURS: &str = "#2563a8";
const THEIRS: &str = "#a9b2bd";

/// Draws all rows of the report.
pub(crate) fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = 56.0;
    for case in report.rows.chunk_by(|a, b| a.case == b.case && a.unit == b.unit) {
        draw_case(&mut body, case, y);
        y += HEAD + STEP * case.len() as f64 + 14.0;
    }
    let machine = &report.machine;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
         <text x=\"12\" y=\"42\" fill=\"#555\">{}</text>\n{body}</svg>\n",
        escape(&format!("pagekeeper-bench {}", report.bench)),
        escape(&format!(
            "{}, {} cores, Linux {}, {}; bars: medians, whiskers: least to greatest",
            machine.cpu, machine.cores, machine.kernel, machine.file_system
        )),
    )
}

fn draw_case(out: &mut String, rows: &[Row], top: f64) {
    let most = rows.iter().map(|row| row.range.1).fold(f64::MIN_POSITIVE, f64::max);
    let scale = |value: f64| LEFT + (value.max(0.0) / most) * (WIDTH - LEFT - RIGHT);
    let title = escape(&format!("{} ({})", rows[0].case, rows[0].unit.label()));
    let _ = writeln!(out, "<text x=\"12\" y=\"{:.1}\" font-weight=\"bold\">{title}</text>", top + 18.0);
    for (index, row) in rows.iter().enumerate() {
        let y = top + HEAD + STEP * index as f64 - 6.0;
        let middle = y + BAR / 2.0;
        let end = scale(row.value);
        let (least, greatest) = (scale(row.range.0), scale(row.range.1));
        let colour = if row.against.is_none() && index == 0 { OURS } else { THEIRS };
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\n\
             <path d=\"M{least:.1} {middle:.1}H{greatest:.1}M{least:.1} {:.1}v8M{greatest:.1} {:.1}v8\" stroke=\"black\" fill=\"none\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            middle + 4.5,
            escape(&row.subject),
            end - LEFT,
            middle - 4.0,
            middle - 4.0,
            greatest + 8.0,
            middle + 4.5,
            number(row.value),
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn bars_are_to_scale_and_names_escaped() {
        let mut report = example();
        report.rows[1].subject = "a<b>&\"c\"".to_owned();
        let drawn = svg(&report);
        assert!(drawn.contains("a&lt;b&gt;&amp;&quot;c&quot;") && !drawn.contains("a<b>"), "{drawn}");
        // 430 units of width stand for the greatest sample, 26: the medians are 11 and 22.
        assert!(drawn.contains(&format!("width=\"{:.1}\"", 430.0 * 11.0 / 26.0)), "{drawn}");
        assert!(drawn.contains(&format!("width=\"{:.1}\"", 430.0 * 22.0 / 26.0)), "{drawn}");
        assert_eq!(drawn.matches(OURS).count(), 2, "one bar of each case is ours");
        assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    }
}
