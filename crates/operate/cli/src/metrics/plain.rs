//! Converts `OpenMetrics` to Prometheus' own text format 0.0.4, which names counters with `_total`, and has
//! neither units nor `info`.

use std::fmt;

/// Returns all samples of an exposition in the older format.
pub(super) fn plain(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut help = "";
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            // Writing to a String can't fail.
            let _ = fmt::Write::write_fmt(
                &mut text,
                format_args!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"),
            );
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::metrics::exposition::tests::full;
    use crate::metrics::exposition::write;
    use crate::metrics::format::Format;
    use crate::metrics::own::Own;

    #[test]
    fn the_plain_format_has_the_same_samples() {
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let (known, own) = (full(), Own::read());
        let open = write(known.clone(), own, Format::OpenMetrics).unwrap();
        let plain = write(known, own, Format::Plain).unwrap();
        assert_eq!(samples(&open), samples(&plain));
        for line in [
            "# TYPE pagekeeper_throttle_pause_seconds_total counter",
            "# TYPE pagekeeper_build_info gauge",
            "# HELP pagekeeper_build_info Version of pagekeeper.",
            "# TYPE pagekeeper_guard_tick_duration_seconds histogram",
        ] {
            assert!(plain.lines().any(|other| other == line), "{line}:\n{plain}");
        }
        assert!(!plain.contains("# UNIT") && !plain.contains("# EOF"));
    }
}
