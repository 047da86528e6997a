//! Writes metric families as text: `OpenMetrics` 1.0, or Prometheus' own format 0.0.4, which names
//! counters with `_total` and has neither units nor `info`.
//!
//! Invariants: a name says all that is written about its family apart from the help text: `_total`
//! makes a counter, `_info` an info, and `_bytes` or `_seconds` is the unit. A family without
//! samples is left out. Integers are exact.

use std::fmt::Write as _;
use std::time::Duration;

use crate::histogram::TickHistogram;
use crate::web::headers::ExpositionFormat;

/// The help text of each family, after its name, one family a line.
const FAMILY_HELP: &str = include_str!("families.txt");

/// The labels of a sample.
pub(crate) type SampleLabels = Vec<(&'static str, String)>;

/// The value of a sample.
pub(crate) trait SampleValue {
    /// Formats it; `None` if it is unknown.
    fn text(&self) -> Option<String>;
}

impl SampleValue for u64 {
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl SampleValue for usize {
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl SampleValue for bool {
    fn text(&self) -> Option<String> {
        u64::from(*self).text()
    }
}

impl SampleValue for f64 {
    fn text(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }
}

impl SampleValue for Duration {
    fn text(&self) -> Option<String> {
        self.as_secs_f64().text()
    }
}

impl<V: SampleValue> SampleValue for Option<V> {
    fn text(&self) -> Option<String> {
        self.as_ref().and_then(V::text)
    }
}

/// An exposition in the making.
#[derive(Debug)]
pub(crate) struct ExpositionText {
    format: ExpositionFormat,
    /// Families that are left out.
    excluded: &'static [&'static str],
    text: String,
}

impl ExpositionText {
    /// Creates an empty one.
    pub(crate) fn new(format: ExpositionFormat) -> Self {
        Self { format, excluded: &[], text: String::with_capacity(16 << 10) }
    }

    /// Leaves out these families.
    pub(crate) fn without(self, excluded: &'static [&'static str]) -> Self {
        Self { excluded, ..self }
    }

    /// Writes a family, by its name in the samples without prefix. Unknown values are left out.
    /// Names that begin with `process_` have no prefix, as every exporter has these.
    pub(crate) fn put<V: SampleValue>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = (SampleLabels, V)>,
    ) {
        let known = |(labels, value): (SampleLabels, V)| Some((labels, value.text()?));
        let mut samples = samples.into_iter().filter_map(known).peekable();
        if samples.peek().is_none() || self.excluded.contains(&name) {
            return;
        }
        let (kind, plain_kind) = match name.rsplit('_').next() {
            Some("total") => ("counter", "counter"),
            Some("info") => ("info", "gauge"),
            _ => ("gauge", "gauge"),
        };
        match self.format {
            ExpositionFormat::OpenMetrics => self.write_head(name, kind),
            ExpositionFormat::Plain => self.write_head(name, plain_kind),
        }
        for (labels, value) in samples {
            self.write_sample(name, &labels, &value);
        }
    }

    /// Writes a family with one sample without labels.
    pub(crate) fn put_one<V: SampleValue>(&mut self, name: &str, value: V) {
        self.put(name, [(SampleLabels::new(), value)]);
    }

    /// Writes a histogram.
    pub(crate) fn put_histogram(&mut self, name: &str, histogram: &TickHistogram) {
        self.write_head(name, "histogram");
        let mut sum = 0;
        for (end, count) in histogram.buckets() {
            sum += count;
            let end = if end.is_finite() { format!("{end:?}") } else { "+Inf".to_owned() };
            self.write_sample(&format!("{name}_bucket"), &vec![("le", end)], &sum.to_string());
        }
        self.write_sample(&format!("{name}_count"), &SampleLabels::new(), &histogram.count().to_string());
        self.write_sample(&format!("{name}_sum"), &SampleLabels::new(), &format!("{:?}", histogram.sum()));
    }

    /// Returns the text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn write_head(&mut self, name: &str, kind: &str) {
        let family = match self.format {
            ExpositionFormat::OpenMetrics => name.trim_end_matches("_total").trim_end_matches("_info"),
            ExpositionFormat::Plain => name,
        };
        let (text, help, prefix) = (&mut self.text, help(name).unwrap_or_default(), prefix(name));
        // Writing to a String can't fail.
        let _ = write!(text, "# HELP {prefix}{family} {help}\n# TYPE {prefix}{family} {kind}\n");
        let unit = ["bytes", "seconds"].into_iter().find(|unit| family.ends_with(unit));
        if let Some(unit) = unit.filter(|_| self.format == ExpositionFormat::OpenMetrics) {
            let _ = writeln!(text, "# UNIT {prefix}{family} {unit}");
        }
    }

    fn write_sample(&mut self, name: &str, labels: &SampleLabels, value: &str) {
        let text = &mut self.text;
        let _ = write!(text, "{}{name}", prefix(name));
        for (at, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
            let _ = write!(text, "{}{label}=\"{value}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// Returns the prefix of a family's name.
fn prefix(name: &str) -> &'static str {
    if name.starts_with("process_") { "" } else { "pagekeeper_" }
}

/// Returns the help text of a family.
fn help(name: &str) -> Option<&'static str> {
    FAMILY_HELP.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

/// Returns the names of all families.
#[cfg(test)]
pub(crate) fn family_names() -> impl Iterator<Item = &'static str> {
    FAMILY_HELP.lines().filter_map(|line| line.split(' ').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: ExpositionFormat) -> String {
        let mut text = ExpositionText::new(format);
        text.put_one("kept_bytes_total", u64::MAX);
        text.put("build_info", [(vec![("version", "a \"b\"\n\\".to_owned()), ("x", String::new())], 1_u64)]);
        text.put_one("guard_hung_seconds", None::<f64>);
        text.put_one("process_cpu_seconds_total", Duration::from_millis(1500));
        let mut ticks = TickHistogram::default();
        for milliseconds in [1, 40_000] {
            ticks.add(Duration::from_millis(milliseconds));
        }
        text.put_histogram("guard_tick_duration_seconds", &ticks);
        text.finish()
    }

    fn lines(text: &str, is_head: bool) -> Vec<&str> {
        text.lines().filter(|line| line.starts_with('#') == is_head).collect()
    }

    #[test]
    fn the_plain_format_has_the_same_samples() {
        let (open, plain) = (text(ExpositionFormat::OpenMetrics), text(ExpositionFormat::Plain));
        assert_eq!(lines(&open, false), lines(&plain, false));
        assert_eq!(
            lines(&plain, false)[..4],
            [
                "pagekeeper_kept_bytes_total 18446744073709551615",
                "pagekeeper_build_info{version=\"a \\\"b\\\"\\n\\\\\",x=\"\"} 1",
                "process_cpu_seconds_total 1.5",
                "pagekeeper_guard_tick_duration_seconds_bucket{le=\"0.001\"} 1",
            ]
        );
        for line in [
            "pagekeeper_guard_tick_duration_seconds_bucket{le=\"30.0\"} 1",
            "pagekeeper_guard_tick_duration_seconds_bucket{le=\"+Inf\"} 2",
            "pagekeeper_guard_tick_duration_seconds_sum 40.001",
            "pagekeeper_guard_tick_duration_seconds_count 2",
        ] {
            assert!(lines(&plain, false).contains(&line), "{line}:\n{plain}");
        }
    }

    #[test]
    fn a_family_is_described_as_its_format_wants() {
        let open = text(ExpositionFormat::OpenMetrics);
        for line in [
            "# HELP pagekeeper_build Version of pagekeeper.",
            "# TYPE pagekeeper_build info",
            "# TYPE pagekeeper_kept_bytes counter",
            "# UNIT pagekeeper_kept_bytes bytes",
            "# TYPE pagekeeper_guard_tick_duration_seconds histogram",
            "# EOF",
        ] {
            assert!(lines(&open, true).contains(&line), "{line}:\n{open}");
        }
        let plain = text(ExpositionFormat::Plain);
        for line in [
            "# HELP pagekeeper_build_info Version of pagekeeper.",
            "# TYPE pagekeeper_build_info gauge",
            "# TYPE pagekeeper_kept_bytes_total counter",
            "# TYPE pagekeeper_guard_tick_duration_seconds histogram",
        ] {
            assert!(lines(&plain, true).contains(&line), "{line}:\n{plain}");
        }
        assert!(!plain.contains("# UNIT") && !plain.contains("# EOF"));
    }
}
