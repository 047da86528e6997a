//! The demo's report: figures of the three parts side by side, a chart, and a conclusion drawn only
//! from them.
//!
//! The JSON has all figures; the text shows some, each in the unit that its name ends with. The
//! parts run one after another, so a drift of the disk could look like an effect: a difference
//! counts only if it is greater than that between single seconds of one part.

use std::io::{self, Write};

use pagekeeper_text::{ByteSize, count};
use serde_json::{Value, json};

use super::chart;
use super::engine::EngineSample;
use crate::output::Screen;

/// The parts, as the report calls them.
const PART_NAMES: [&str; 3] = ["alone", "under the guard", "inside"];
/// The rows of the table of parts, with the names of their figures.
const PART_ROWS: [(&str, &str); 7] = [
    ("commits per second", "commits_per_second"),
    ("  least in a second", "commits_per_second_min"),
    ("  most", "commits_per_second_max"),
    ("commit, p99", "commit_p99_us"),
    ("log pages in memory, at the end", "log_resident_end_bytes"),
    ("written by the compaction", "bulk_written_bytes"),
    ("  in memory, at the end", "bulk_resident_end_bytes"),
];
/// The rows of the table of the store's recovery.
const RECOVERY_ROWS: [(&str, &str); 8] = [
    ("opened for reads and writes in", "open_seconds"),
    ("  journal read for it", "journal_bytes"),
    ("  commits found in it", "commits_in_journal"),
    ("  pages that they change", "pages_to_apply"),
    ("first read of a row in one", "first_read_seconds"),
    ("all in the data file after", "applied_seconds"),
    ("pages verified then", "pages_verified"),
    ("  rows in them checked", "rows_checked"),
];
const SAMPLES_PER_SECOND: usize = 4;
/// With fewer seconds in a part, their spread means nothing.
const SECONDS_MIN: u64 = 3;

/// All that was measured in one part.
#[derive(Debug, Default)]
pub(super) struct MeasuredPart {
    pub(super) samples: Vec<EngineSample>,
    pub(super) commits_us: Vec<u32>,
    pub(super) modes: Value,
}

/// All that the demo measured.
#[derive(Debug, Default)]
pub(super) struct DemoReport {
    /// Total seconds of the three parts.
    pub(super) seconds: u64,
    pub(super) parts: [MeasuredPart; 3],
    /// The guard's summary, as it printed it.
    pub(super) guard: Value,
    pub(super) recovery: Value,
}

impl MeasuredPart {
    fn log_resident_bytes(&self) -> Vec<u64> {
        self.samples.iter().map(|sample| sample.log_resident_bytes).collect()
    }

    fn figures(&self) -> Value {
        let samples = &self.samples;
        let first = samples.first().cloned().unwrap_or_default();
        let last = samples.last().cloned().unwrap_or_default();
        let seconds: Vec<&EngineSample> = samples.iter().step_by(SAMPLES_PER_SECOND).collect();
        let rates: Vec<f64> = seconds.windows(2).map(|pair| rate(pair[0], pair[1])).collect();
        let mut commits_us = self.commits_us.clone();
        commits_us.sort_unstable();
        let p99_us = commits_us.get(commits_us.len() * 99 / 100).copied().unwrap_or_default();
        json!({
            "seconds": last.seconds - first.seconds,
            "commits": last.commits - first.commits,
            "commits_per_second": rate(&first, &last),
            "whole_seconds": rates.len(),
            "commits_per_second_min": rates.iter().copied().reduce(f64::min),
            "commits_per_second_max": rates.iter().copied().reduce(f64::max),
            "commit_p99_us": p99_us,
            "log_written_bytes": last.log_written_bytes - first.log_written_bytes,
            "log_resident_end_bytes": last.log_resident_bytes,
            "log_resident_max_bytes": self.log_resident_bytes().into_iter().max(),
            "bulk_written_bytes": last.bulk_written_bytes - first.bulk_written_bytes,
            "bulk_resident_end_bytes": last.bulk_resident_bytes,
            "follower_events_checked": last.follower_events - first.follower_events,
            "modes": self.modes,
        })
    }
}

/// Returns the commits per second between two samples.
fn rate(first: &EngineSample, last: &EngineSample) -> f64 {
    let seconds = last.seconds - first.seconds;
    if seconds > 0.0 { (last.commits - first.commits) as f64 / seconds } else { 0.0 }
}

/// Returns the throughput of a part divided by that of the first, if anything was committed there.
/// Also returns whether they differ by at most single seconds of either, if there were enough
/// of these.
fn compare(alone: &Value, other: &Value) -> (Option<f64>, Option<bool>) {
    let figure = |part: &Value, name: &str| part[name].as_f64().unwrap_or_default();
    let [before, after] = [alone, other].map(|part| figure(part, "commits_per_second"));
    let spread = |part| figure(part, "commits_per_second_max") - figure(part, "commits_per_second_min");
    let is_long_enough =
        [alone, other].iter().all(|part| part["whole_seconds"].as_u64() >= Some(SECONDS_MIN));
    let is_within_noise = (after - before).abs() <= spread(alone).max(spread(other));
    ((before > 0.0).then(|| after / before), is_long_enough.then_some(is_within_noise))
}

/// Returns the comparison as a sentence. It names no cause, since a drift of the machine is
/// possible, too.
fn compared(alone: &Value, other: &Value, name: &str) -> String {
    let (Some(ratio), is_within_noise) = compare(alone, other) else {
        return format!("Nothing was committed alone, so the throughput {name} is compared with nothing.");
    };
    let verdict = match is_within_noise {
        None => "so short a run has too few seconds to measure its noise",
        Some(true) => "the difference is within this run's noise",
        Some(false) => {
            "the difference is more than this run's noise; another run shows if the machine changed"
        }
    };
    format!("Throughput {name} was {ratio:.2} of that alone: {verdict}.")
}

/// Returns a figure in the unit of its name.
fn shown(figures: &Value, name: &str) -> String {
    let (float, number) =
        (figures[name].as_f64().unwrap_or_default(), figures[name].as_u64().unwrap_or_default());
    match name {
        _ if name.ends_with("_bytes") => ByteSize(number).to_string(),
        _ if name.ends_with("_seconds") => format!("{:.2} ms", float * 1e3),
        _ if name.ends_with("_us") => format!("{:.2} ms", float / 1e3),
        _ if name.contains("_per_second") => format!("{float:.0}"),
        _ => count(number),
    }
}

impl DemoReport {
    /// Returns one JSON object with everything.
    pub(super) fn json(&self) -> Value {
        let [alone, guarded, inside] = self.parts.each_ref().map(MeasuredPart::figures);
        let [guarded_ratio, inside_ratio] = [&guarded, &inside]
            .map(|other| compare(&alone, other))
            .map(|(ratio, is_within_noise)| json!({ "ratio": ratio, "within_noise": is_within_noise }));
        let samples = self.parts.each_ref().map(|part| &part.samples);
        json!({
            "seconds": self.seconds,
            "alone": alone,
            "guarded": guarded,
            "inside": inside,
            "throughput": { "guarded": guarded_ratio, "inside": inside_ratio },
            "guard": self.guard,
            "samples": { "alone": samples[0], "guarded": samples[1], "inside": samples[2] },
            "recovery": self.recovery,
        })
    }

    /// Writes the table, the chart, the conclusion, and the store's recovery.
    pub(super) fn write_text(&self, screen: Screen, out: &mut impl Write) -> io::Result<()> {
        let parts = self.parts.each_ref().map(MeasuredPart::figures);
        let mut row = |name: &str, [alone, guarded, inside]: [String; 3]| {
            writeln!(out, "{name:<32}{alone:>16}{guarded:>16}{inside:>16}")
        };
        row("", PART_NAMES.map(str::to_owned))?;
        for (label, name) in PART_ROWS {
            row(label, parts.each_ref().map(|part| shown(part, name)))?;
        }
        let cpu = format!("{:.2} %", self.guard["cpu_percent"].as_f64().unwrap_or_default());
        row("the guard's CPU, of one core", ["-".to_owned(), cpu, "-".to_owned()])?;
        let logs = self.parts.each_ref().map(MeasuredPart::log_resident_bytes);
        let chart = chart::draw(&logs, PART_NAMES, screen.width.unwrap_or(80).min(120), screen.colour);
        writeln!(out, "\nLog pages in memory over {} s\n\n{chart}", self.seconds)?;
        for (part, name) in parts.iter().zip(PART_NAMES).skip(1) {
            writeln!(out, "{}", compared(&parts[0], part, name))?;
        }
        self.write_recovery(out)
    }

    fn write_recovery(&self, out: &mut impl Write) -> io::Result<()> {
        let figure = |name| shown(&self.recovery, name);
        let size = figure("data_bytes");
        writeln!(out, "\nA page store with a table of {size}, killed while it committed\n")?;
        for (label, name) in RECOVERY_ROWS {
            writeln!(out, "{label:<32}{:>16}", figure(name))?;
        }
        let (found, acknowledged) = (figure("commits_found"), figure("commits_acknowledged"));
        writeln!(
            out,
            "\nNothing was lost: of {found} commits the killed process had reported {acknowledged}, and all rows are as they left them."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a part with this many commits in each second.
    fn part(commits: &[usize], resident: u64) -> MeasuredPart {
        let sample = |number: usize| EngineSample {
            seconds: number as f64 / 4.0,
            commits: (0..number).map(|quarter| commits[quarter / 4] / 4).sum(),
            log_resident_bytes: resident,
            ..EngineSample::default()
        };
        let samples = (0..=4 * commits.len()).map(sample).collect();
        MeasuredPart { samples, ..MeasuredPart::default() }
    }

    #[test]
    fn a_difference_is_compared_with_the_noise_and_has_no_cause() {
        let (steady, unsteady) = ([4000; 3], [3600, 4000, 4400]);
        for (alone, other, expected) in [
            (&steady[..], &[2000; 3][..], "0.50 of that alone: the difference is more than"),
            (&steady, &[5200; 3], "1.30 of that alone: the difference is more than"),
            (&unsteady, &[3400; 3], "0.85 of that alone: the difference is within"),
            (&[3400; 3], &unsteady, "1.18 of that alone: the difference is within"),
            (&steady, &steady, "1.00 of that alone: the difference is within"),
            (&steady, &[3600; 2], "0.90 of that alone: so short a run"),
            (&[0; 3], &steady, "Nothing was committed alone"),
        ] {
            let [alone, other] = [alone, other].map(|commits| part(commits, 0).figures());
            let sentence = compared(&alone, &other, "inside");
            assert!(sentence.contains(expected), "{sentence}");
        }
    }

    #[test]
    fn the_text_fits_a_screen_and_the_json_has_all_samples() {
        let parts = [part(&[40], 8 << 20), part(&[40], 4096), part(&[40], 0)];
        let recovery = json!({ "data_bytes": 64 << 20, "open_seconds": 0.0123, "commits_in_journal": 5412 });
        let report = DemoReport { seconds: 9, parts, recovery, ..DemoReport::default() };
        let mut text = Vec::new();
        report.write_text(Screen { terminal: false, colour: false, width: None }, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in
            ["8 MiB           4 KiB             0 B\n", "█", "a table of 64 MiB", " 12.30 ms\n", " 5,412\n"]
        {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
        assert!(text.lines().count() < 45, "{text}");
        let json = report.json();
        assert_eq!(json["samples"]["alone"][0]["log_resident_bytes"], 8 << 20);
        assert_eq!((&json["guarded"]["commits"], &json["inside"]["seconds"]), (&40.into(), &1.0.into()));
    }
}
