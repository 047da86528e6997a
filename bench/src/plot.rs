//! An SVG picture of a report: its curves, then for each case a bar per subject and a whisker from the smallest to the
//! greatest sample.
//!
//! Each case has its own scale: bars start at zero, curves are in powers of ten without empty labels. Names are
//! escaped; nothing is loaded from elsewhere.

use std::fmt::Write as _;

use crate::report::{Curve, Report, Row, number};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 220.0;
const RIGHT: f64 = 110.0;
const BAR: f64 = 20.0;
const STEP: f64 = 28.0;
const HEAD: f64 = 34.0;
const OURS: &str = "#2563a8";
const THEIRS: &str = "#a9b2bd";
/// Colours and dashes of curves. The first is ours; the others also differ in grey, by their dashes.
const CURVES: [(&str, &str); 6] = [
    (OURS, "none"),
    ("#b3542d", "7 3"),
    ("#4d7d4d", "2 3"),
    ("#6f6f6f", "9 3 2 3"),
    ("#8a4f9e", "12 4"),
    ("#c09a1c", "4 2 1 2"),
];
/// Height of the field of a case's curves.
const FIELD: f64 = 190.0;

/// Draws all curves and rows of the report.
pub(crate) fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = 56.0;
    for case in report.curves.chunk_by(|a, b| a.case == b.case) {
        draw_curves(&mut body, case, y);
        y += HEAD + FIELD + 40.0;
    }
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

fn draw_curves(out: &mut String, curves: &[Curve], top: f64) {
    let field_top = top + HEAD;
    let values = || curves.iter().flat_map(|curve| &curve.points).map(|(_, value)| value.max(1e-3).log10());
    let (lowest, highest) =
        (values().fold(f64::MAX, f64::min).floor(), values().fold(f64::MIN, f64::max).ceil());
    let height = |value: f64| {
        let share = (value.max(1e-3).log10() - lowest) / (highest - lowest).max(1.0);
        field_top + FIELD * (1.0 - share)
    };
    let steps = curves[0].points.len();
    let place = |step: usize| 80.0 + (WIDTH - 300.0) * step as f64 / (steps.max(2) - 1) as f64;
    let title = escape(&curves[0].case);
    let _ = writeln!(out, "<text x=\"12\" y=\"{:.1}\" font-weight=\"bold\">{title}</text>", top + 18.0);
    let mut power = lowest;
    while power <= highest {
        let y = height(10_f64.powf(power));
        let _ = writeln!(
            out,
            "<path d=\"M72 {y:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"64\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - 210.0,
            y + 4.5,
            10_f64.powf(power)
        );
        power += 1.0;
    }
    let labelled = curves[0].points.iter().enumerate().filter(|(_, (label, _))| !label.is_empty());
    for (step, (label, _)) in labelled {
        let (x, y) = (place(step), field_top + FIELD + 20.0);
        let _ =
            writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>", escape(label));
    }
    for (index, (curve, (colour, dashes))) in curves.iter().zip(CURVES.iter().cycle()).enumerate() {
        let points: Vec<String> = (0..steps)
            .zip(&curve.points)
            .map(|(step, (_, value))| format!("{:.1},{:.1}", place(step), height(*value)))
            .collect();
        let y = field_top + 14.0 + 20.0 * index as f64;
        let _ = writeln!(
            out,
            "<g stroke=\"{colour}\" stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\" fill=\"none\">\
             <polyline points=\"{}\"/><path d=\"M{:.1} {:.1}h24\"/></g><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            points.join(" "),
            WIDTH - 202.0,
            y - 4.5,
            WIDTH - 172.0,
            escape(&curve.subject)
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
        // 430 units of width represent the greatest sample, 26; the medians are 11 and 22.
        assert!(drawn.contains(&format!("width=\"{:.1}\"", 430.0 * 11.0 / 26.0)), "{drawn}");
        assert!(drawn.contains(&format!("width=\"{:.1}\"", 430.0 * 22.0 / 26.0)), "{drawn}");
        assert_eq!(drawn.matches(OURS).count(), 2, "one bar of each case is ours");
        assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    }

    #[test]
    fn curves_are_drawn_in_powers_of_ten() {
        let mut report = example();
        let curve = |subject: &str, values: [f64; 2]| Curve {
            case: "latency <µs>".to_owned(),
            subject: subject.to_owned(),
            points: vec![("p50", values[0]), ("max", values[1])],
        };
        report.curves = vec![curve("ours", [100.0, 1000.0]), curve("theirs", [10.0, 10_000.0])];
        let drawn = svg(&report);
        // From 10 to 10,000: ours lies at a third and two thirds of the field.
        let y = |share: f64| 56.0 + HEAD + FIELD * (1.0 - share);
        let ours = format!("points=\"80.0,{:.1} {:.1},{:.1}\"", y(1.0 / 3.0), WIDTH - 220.0, y(2.0 / 3.0));
        assert!(drawn.contains(&ours), "{ours}\n{drawn}");
        assert!(drawn.contains(&format!("80.0,{:.1} {:.1},{:.1}", y(0.0), WIDTH - 220.0, y(1.0))));
        assert!(drawn.contains("latency &lt;µs&gt;") && drawn.contains(">10000</text>"));
    }
}
