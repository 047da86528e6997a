//! The result of the run: figures of each part, side by side, and a conclusion drawn only from them.
//!
//! Percentiles are by nearest rank over every commit of a part. The conclusion states what was measured: it never
//! attributes to the guard or the library a throughput that may be due to a drifting machine, and never hides a
//! loss. The parts run one after another, so a drift of the disk could look like an effect: a difference counts
//! only if it is greater than that between single seconds of the same part.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

use super::chart::Chart;
use super::config;
use super::engine::{self, Modes};
use super::stage::{Part, Run, Sample};
use crate::output::{Screen, count};
use crate::size::Size;

/// Reports in about a second.
const REPORTS_PER_SECOND: usize = 4;
/// With fewer seconds in a part, their spread means nothing.
const SECONDS_MIN: usize = 3;

/// Figures of one part.
#[derive(Debug, Clone, Default, Serialize)]
struct Figures {
    seconds: f64,
    commits: usize,
    commits_per_second: f64,
    /// The number of whole seconds that the next three fields cover.
    whole_seconds: usize,
    /// The least, the median and the greatest of the rates of each second.
    commits_per_second_min: f64,
    commits_per_second_median: f64,
    commits_per_second_max: f64,
    commit_p50_us: u32,
    commit_p99_us: u32,
    commit_max_us: u32,
    log_written_bytes: u64,
    log_resident_end_bytes: u64,
    log_resident_median_bytes: u64,
    log_resident_max_bytes: u64,
    log_unwritten_end_bytes: u64,
    bulk_written_bytes: u64,
    bulk_resident_end_bytes: u64,
    bulk_resident_max_bytes: u64,
    memory_free_end_bytes: u64,
    memory_available_end_bytes: u64,
    follower_lag_median_ms: f64,
    follower_lag_max_ms: f64,
    follower_events_checked: u64,
    /// The ways in which the files were written.
    modes: Modes,
}

impl Figures {
    fn of(part: &Part) -> Self {
        let reports = &part.engine;
        let (commits, ns) = tally(reports);
        let each_second = reports.chunks_exact(REPORTS_PER_SECOND).map(tally);
        let rates = sorted(each_second.map(|(commits, ns)| rate(commits, ns)), f64::total_cmp);
        let taken_us = sorted(reports.iter().flat_map(|r| r.commits_us.iter().copied()), u32::cmp);
        let resident = sorted(part.samples.iter().map(Sample::resident_bytes), u64::cmp);
        let lags_ms = sorted(reports.iter().map(|r| r.lag_max_ns as f64 / 1e6), f64::total_cmp);
        let last = part.samples.last().cloned().unwrap_or_default();
        let bulk_resident = part.samples.iter().map(|sample| sample.bulk_resident_bytes);
        Self {
            seconds: ns as f64 / 1e9,
            commits,
            commits_per_second: rate(commits, ns),
            whole_seconds: rates.len(),
            commits_per_second_min: percentile(&rates, 0),
            commits_per_second_median: percentile(&rates, 50),
            commits_per_second_max: percentile(&rates, 100),
            commit_p50_us: percentile(&taken_us, 50),
            commit_p99_us: percentile(&taken_us, 99),
            commit_max_us: percentile(&taken_us, 100),
            log_written_bytes: growth(reports, |report| report.redo_bytes + report.binlog_bytes),
            log_resident_end_bytes: last.resident_bytes(),
            log_resident_median_bytes: percentile(&resident, 50),
            log_resident_max_bytes: percentile(&resident, 100),
            log_unwritten_end_bytes: last.unwritten_bytes,
            bulk_written_bytes: growth(reports, |report| report.bulk_bytes),
            bulk_resident_end_bytes: last.bulk_resident_bytes,
            bulk_resident_max_bytes: bulk_resident.max().unwrap_or_default(),
            memory_free_end_bytes: last.memory_free_bytes,
            memory_available_end_bytes: last.memory_available_bytes,
            follower_lag_median_ms: percentile(&lags_ms, 50),
            follower_lag_max_ms: percentile(&lags_ms, 100),
            follower_events_checked: growth(reports, |report| report.events),
            modes: reports.last().map(|report| report.modes.clone()).unwrap_or_default(),
        }
    }

    /// Returns the spread of the single seconds, in commits per second.
    fn spread(&self) -> f64 {
        self.commits_per_second_max - self.commits_per_second_min
    }
}

/// Returns the number of commits in the reports, and their nanoseconds in total.
fn tally(reports: &[engine::Report]) -> (usize, u64) {
    reports.iter().fold((0, 0), |(commits, ns), report| {
        (commits + report.commits_us.len(), ns + report.to_ns - report.from_ns)
    })
}

fn rate(commits: usize, ns: u64) -> f64 {
    commits as f64 * 1e9 / ns.max(1) as f64
}

/// Returns the growth of a running total from the first report to the last.
fn growth<T>(reports: &[T], total: fn(&T) -> u64) -> u64 {
    reports.last().map_or(0, total) - reports.first().map_or(0, total)
}

fn sorted<T>(values: impl Iterator<Item = T>, order: fn(&T, &T) -> std::cmp::Ordering) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable_by(order);
    values
}

/// Returns the nearest rank of a sorted slice; the default for an empty one.
fn percentile<T: Copy + Default>(sorted: &[T], percent: usize) -> T {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// The whole report.
pub(super) struct Report<'a> {
    run: &'a Run,
    alone: Figures,
    guarded: Figures,
    inside: Figures,
}

impl<'a> Report<'a> {
    /// Computes the figures of a run.
    pub(super) fn new(run: &'a Run) -> Self {
        let [alone, guarded, inside] = [&run.alone, &run.guarded, &run.inside].map(Figures::of);
        Self { run, alone, guarded, inside }
    }

    /// Returns one JSON object with everything.
    pub(super) fn json(&self) -> serde_json::Value {
        let throughput = |other: &Figures| {
            let versus = Versus { alone: &self.alone, other };
            json!({ "ratio": versus.ratio(), "within_noise": versus.within_noise() })
        };
        json!({
            "seconds": self.run.seconds,
            "config": {
                "committers": config::COMMITTERS,
                "redo_files": config::REDO_FILES,
                "redo_file_bytes": config::REDO_FILE_BYTES,
                "redo_per_commit_bytes": config::REDO_PER_COMMIT_BYTES,
                "binlog_files_max": config::BINLOG_FILES_MAX,
                "binlog_file_bytes": config::BINLOG_FILE_BYTES,
                "binlog_per_commit_bytes": config::BINLOG_PER_COMMIT_BYTES,
                "bulk_files_max": config::BULK_FILES_MAX,
                "bulk_file_bytes": config::BULK_FILE_BYTES,
                "bulk_each_seconds": config::BULK_EACH.as_secs(),
                "bulk_bytes_per_second": config::BULK_BYTES_PER_SECOND,
            },
            "alone": self.alone,
            "guarded": self.guarded,
            "inside": self.inside,
            "throughput": { "guarded": throughput(&self.guarded), "inside": throughput(&self.inside) },
            "guard": self.run.guard_summary,
            "guard_problems": self.run.guard_problems,
            "samples": {
                "alone": self.run.alone.samples,
                "guarded": self.run.guarded.samples,
                "inside": self.run.inside.samples,
            },
            "conclusion": self.conclusion(),
            "recovery": self.run.recovery,
        })
    }

    /// Writes the table, the chart, the conclusion, and the store's recovery.
    pub(super) fn write_text(&self, screen: Screen, out: &mut impl Write) -> io::Result<()> {
        self.write_table(out)?;
        let resident =
            |part: &Part| -> Vec<u64> { part.samples.iter().map(Sample::resident_bytes).collect() };
        let chart = Chart {
            parts: [
                (&resident(&self.run.alone), "alone"),
                (&resident(&self.run.guarded), "under the guard"),
                (&resident(&self.run.inside), "inside"),
            ],
            width: screen.width.unwrap_or(80).min(120),
            colour: screen.colour,
        };
        write!(out, "\nLog pages in memory over {} s\n\n{}\n", self.run.seconds, chart.draw())?;
        for problem in &self.run.guard_problems {
            writeln!(out, "The guard said: {problem}")?;
        }
        self.conclusion().iter().try_for_each(|sentence| writeln!(out, "{sentence}"))?;
        writeln!(out)?;
        self.run.recovery.write_text(out)
    }

    fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let all = |show: &dyn Fn(&Figures) -> String| [&self.alone, &self.guarded, &self.inside].map(show);
        let ms = |us: u32| format!("{:.2} ms", f64::from(us) / 1e3);
        let size = |bytes: u64| Size(bytes).to_string();
        let cpu = self.run.guard_summary["cpu_percent"].as_f64();
        let cpu = cpu.map_or("unknown".into(), |cpu| format!("{cpu:.2} %"));
        let rows = [
            ("", ["alone".into(), "under the guard".into(), "inside".into()]),
            ("commits per second", all(&|f| format!("{:.0}", f.commits_per_second))),
            ("  least in a second", all(&|f| format!("{:.0}", f.commits_per_second_min))),
            ("  median", all(&|f| format!("{:.0}", f.commits_per_second_median))),
            ("  most", all(&|f| format!("{:.0}", f.commits_per_second_max))),
            ("commit, p50", all(&|f| ms(f.commit_p50_us))),
            ("commit, p99", all(&|f| ms(f.commit_p99_us))),
            ("commit, longest", all(&|f| ms(f.commit_max_us))),
            ("written to the logs", all(&|f| size(f.log_written_bytes))),
            ("log pages in memory, at the end", all(&|f| size(f.log_resident_end_bytes))),
            ("  median", all(&|f| size(f.log_resident_median_bytes))),
            ("  most", all(&|f| size(f.log_resident_max_bytes))),
            ("  not yet on disk, at the end", all(&|f| size(f.log_unwritten_end_bytes))),
            ("written by the compaction", all(&|f| size(f.bulk_written_bytes))),
            ("  in memory, at the end", all(&|f| size(f.bulk_resident_end_bytes))),
            ("free memory, at the end", all(&|f| size(f.memory_free_end_bytes))),
            ("available memory, at the end", all(&|f| size(f.memory_available_end_bytes))),
            ("follower's lag, median", all(&|f| format!("{:.1} ms", f.follower_lag_median_ms))),
            ("follower's lag, greatest", all(&|f| format!("{:.1} ms", f.follower_lag_max_ms))),
            ("events the follower checked", all(&|f| count(f.follower_events_checked))),
            ("the guard's CPU, of one core", ["-".into(), cpu, "-".into()]),
        ];
        rows.iter().try_for_each(|(name, [alone, guarded, inside])| {
            writeln!(out, "{name:<32}{alone:>16}{guarded:>16}{inside:>16}")
        })
    }

    /// Returns the conclusion in sentences.
    fn conclusion(&self) -> Vec<String> {
        let (alone, guarded, inside) = (&self.alone, &self.guarded, &self.inside);
        let before = alone.log_resident_end_bytes;
        let held = |after: u64| {
            let less = before.checked_sub(after).filter(|&less| less > 0);
            let share = less.map(|less| format!("{} % less", 100 * less / before));
            format!("{} ({})", Size(after), share.unwrap_or_else(|| "no less".into()))
        };
        let Modes { redo, binlog, bulk } = &inside.modes;
        let mut sentences = vec![
            format!(
                "The logs held {} of memory at the end of the part alone, {} under the guard and {} inside.",
                Size(before),
                held(guarded.log_resident_end_bytes),
                held(inside.log_resident_end_bytes)
            ),
            format!(
                "The compaction's files held {} alone, {} under the guard, which manages logs only, and {} inside.",
                Size(alone.bulk_resident_end_bytes),
                Size(guarded.bulk_resident_end_bytes),
                Size(inside.bulk_resident_end_bytes)
            ),
            format!(
                "Inside, the redo log was written {redo}, the binlog {binlog} and the compaction's files {bulk}."
            ),
        ];
        sentences.extend(Versus { alone, other: guarded }.in_words(
            "under the guard",
            "It is the guard's cost, or the machine grew slower meanwhile: another run shows.",
            "The guard frees memory and does not raise throughput: the machine grew faster meanwhile.",
        ));
        sentences.extend(Versus { alone, other: inside }.in_words(
            "inside",
            "It is what writing and releasing so costs, or the machine grew slower meanwhile: another run shows.",
            "It is what writing so gains, or the machine grew faster meanwhile: another run shows.",
        ));
        sentences
    }
}

/// The throughput of a part compared with the first.
struct Versus<'a> {
    alone: &'a Figures,
    other: &'a Figures,
}

impl Versus<'_> {
    /// Returns the part's throughput divided by that of the first; `None` if nothing was committed in the first.
    fn ratio(&self) -> Option<f64> {
        let (alone, other) = (self.alone.commits_per_second, self.other.commits_per_second);
        (self.alone.commits > 0).then(|| other / alone)
    }

    /// Whether the parts differ by no more than single seconds of either; `None` if there were too few seconds.
    fn within_noise(&self) -> Option<bool> {
        let (alone, other) = (self.alone, self.other);
        let difference = (other.commits_per_second - alone.commits_per_second).abs();
        let enough = alone.whole_seconds.min(other.whole_seconds) >= SECONDS_MIN;
        enough.then(|| difference <= alone.spread().max(other.spread()))
    }

    /// Returns the comparison in sentences; `loss` and `gain` name the possible reason of a difference that
    /// exceeds noise.
    fn in_words(&self, name: &str, loss: &str, gain: &str) -> Vec<String> {
        let Some(ratio) = self.ratio() else {
            return vec![format!(
                "Nothing was committed alone: there is no throughput {name} to compare with that."
            )];
        };
        let percent = 100.0 * (ratio - 1.0).abs();
        let difference = match ratio {
            _ if percent < 0.5 => "as good as the same".to_owned(),
            below if below < 1.0 => format!("{percent:.0} % less"),
            _ => format!("{percent:.0} % more"),
        };
        let measured = format!("Throughput {name} was {ratio:.2} of that alone: {difference}.");
        let verdict = match self.within_noise() {
            None => {
                return vec![
                    measured,
                    "So short a run has too few seconds to measure noise: give it more.".into(),
                ];
            }
            Some(true) => "the difference is within this run's noise.".to_owned(),
            Some(false) => {
                let cause = if ratio < 1.0 { loss } else { gain };
                format!("the difference is more than this run's noise. {cause}")
            }
        };
        let seconds = |figures: &Figures| {
            format!("from {:.0} to {:.0}", figures.commits_per_second_min, figures.commits_per_second_max)
        };
        let (alone, other) = (seconds(self.alone), seconds(self.other));
        vec![measured, format!("Commits in single seconds went {alone} alone and {other} {name}: {verdict}")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Returns a part of three seconds with this many commits in each quarter of a second.
    fn part(commits: usize, resident: u64) -> Part {
        uneven_part([commits; 3], resident)
    }

    /// Returns a part with a different number of commits in each second.
    fn uneven_part(commits: [usize; 3], resident: u64) -> Part {
        let report = |number: u64| engine::Report {
            from_ns: number * SECOND / 4,
            to_ns: (number + 1) * SECOND / 4,
            commits_us: vec![1000; commits[usize::try_from(number / 4).unwrap()]],
            redo_bytes: number * 2000,
            binlog_bytes: number * 1000,
            bulk_bytes: number * 500,
            events: number * 10,
            lag_max_ns: 2_000_000,
            modes: Modes { redo: "direct".into(), binlog: "buffered".into(), bulk: "paced".into() },
        };
        let sample =
            Sample { redo_resident_bytes: resident, bulk_resident_bytes: resident / 2, ..Sample::default() };
        Part { samples: vec![sample], engine: (0..12).map(report).collect() }
    }

    fn run(alone: Part, guarded: Part, inside: Part) -> Run {
        Run { seconds: 9, alone, guarded, inside, ..Run::default() }
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let values: Vec<u32> = (1..=200).collect();
        assert_eq!([0, 50, 99, 100].map(|percent| percentile(&values, percent)), [1, 100, 198, 200]);
        assert_eq!(percentile(&[7], 99), 7);
        assert_eq!(percentile::<u32>(&[], 99), 0);
    }

    #[test]
    fn figures_follow_from_the_reports() {
        let figures = Figures::of(&part(250, 4096));
        assert_eq!(
            (figures.commits, figures.commit_p99_us, figures.log_resident_end_bytes),
            (3000, 1000, 4096)
        );
        assert!((figures.commits_per_second - 1000.0).abs() < 1e-9, "{}", figures.commits_per_second);
        assert!((figures.commits_per_second_max - 1000.0).abs() < 1e-9);
        assert_eq!((figures.log_written_bytes, figures.bulk_written_bytes), (11 * 3000, 11 * 500));
        assert_eq!((figures.bulk_resident_end_bytes, figures.follower_events_checked), (2048, 110));
    }

    #[test]
    fn a_loss_is_said_plainly() {
        let run = run(part(1000, 100 << 20), part(900, 1 << 20), part(500, 100 << 20));
        let conclusion = Report::new(&run).conclusion();
        assert_eq!(
            conclusion,
            [
                "The logs held 100 MiB of memory at the end of the part alone, 1 MiB (99 % less) under the guard \
                 and 100 MiB (no less) inside.",
                "The compaction's files held 50 MiB alone, 512 KiB under the guard, which manages logs only, \
                 and 50 MiB inside.",
                "Inside, the redo log was written direct, the binlog buffered and the compaction's files paced.",
                "Throughput under the guard was 0.90 of that alone: 10 % less.",
                "Commits in single seconds went from 4000 to 4000 alone and from 3600 to 3600 under the guard: the \
                 difference is more than this run's noise. It is the guard's cost, or the machine grew slower meanwhile: \
                 another run shows.",
                "Throughput inside was 0.50 of that alone: 50 % less.",
                "Commits in single seconds went from 4000 to 4000 alone and from 2000 to 2000 inside: the difference \
                 is more than this run's noise. It is what writing and releasing so costs, or the machine grew slower \
                 meanwhile: another run shows.",
            ]
        );
    }

    #[test]
    fn a_gain_is_not_the_guards_and_not_surely_the_librarys() {
        let run = run(part(1000, 1 << 20), part(1200, 2 << 20), part(1300, 0));
        let conclusion = Report::new(&run).conclusion();
        assert!(conclusion[0].contains("2 MiB (no less) under the guard"), "{}", conclusion[0]);
        assert_eq!(conclusion[3], "Throughput under the guard was 1.20 of that alone: 20 % more.");
        assert!(conclusion[4].contains("does not raise throughput"), "{}", conclusion[4]);
        assert_eq!(conclusion[5], "Throughput inside was 1.30 of that alone: 30 % more.");
        assert!(conclusion[6].contains("or the machine grew faster"), "{}", conclusion[6]);
    }

    #[test]
    fn a_difference_that_seconds_of_one_part_have_too_is_noise() {
        // Either part may be the unsteady one, and either the faster.
        let unsteady = || uneven_part([900, 1000, 1100], 1 << 20);
        for (alone, other, ratio) in [
            (unsteady(), part(850, 1 << 20), "0.85 of that alone: 15 % less."),
            (part(850, 1 << 20), unsteady(), "1.18 of that alone: 18 % more."),
            (part(1000, 1 << 20), part(1000, 1 << 20), "1.00 of that alone: as good as the same."),
        ] {
            let run = run(alone, part(1, 0), other);
            let report = Report::new(&run);
            let conclusion = report.conclusion();
            assert!(conclusion[5].ends_with(ratio), "{conclusion:?}");
            assert!(conclusion[6].ends_with("the difference is within this run's noise."), "{conclusion:?}");
            let json = report.json();
            assert_eq!(json["throughput"]["inside"]["within_noise"], true);
            assert_eq!(json["throughput"]["guarded"]["within_noise"], false);
        }
    }

    #[test]
    fn no_verdict_is_given_on_too_little() {
        let mut short = run(part(1000, 1 << 20), part(900, 1 << 20), part(900, 0));
        short.guarded.engine.truncate(8);
        let report = Report::new(&short);
        assert!(report.json()["throughput"]["guarded"]["within_noise"].is_null());
        assert!(report.conclusion()[4].contains("So short a run"));
        assert!(report.conclusion()[6].contains("this run's noise"));
        let idle = run(part(0, 1 << 20), part(900, 1 << 20), part(900, 0));
        let report = Report::new(&idle);
        assert!(report.json()["throughput"]["inside"]["ratio"].is_null());
        assert!(report.conclusion()[3].contains("Nothing was committed alone"));
    }

    #[test]
    fn the_text_has_a_chart_and_the_json_all_samples() {
        let run = run(part(10, 8 << 20), part(10, 4096), part(10, 0));
        let report = Report::new(&run);
        let screen = Screen { terminal: false, colour: false, width: None };
        let mut text = Vec::new();
        report.write_text(screen, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains('█') && text.contains("under the guard") && text.contains("inside"), "{text}");
        assert!(text.contains("killed while it committed"), "{text}");
        let json = report.json();
        assert_eq!(json["samples"]["alone"][0]["redo_resident_bytes"], 8 << 20);
        assert_eq!(
            (&json["guarded"]["commits"], &json["inside"]["modes"]["redo"]),
            (&120.into(), &"direct".into())
        );
    }
}
