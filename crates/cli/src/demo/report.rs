//! What came of the run: figures of each half, side by side, and a conclusion drawn from the figures alone.
//!
//! Percentiles are by nearest rank over every commit of a half. The conclusion says what was measured: it never
//! credits the guard with throughput, and never hides a loss. The halves follow each other, so a disk that drifts
//! looks like an effect: a difference counts only if it is greater than that of single seconds of the same half.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

use super::chart::Chart;
use super::stage::{Half, Run, Sample};
use super::{config, engine, follower};
use crate::output::{Screen, count};
use crate::size::Size;

/// Reports in about a second.
const REPORTS_PER_SECOND: usize = 4;
/// With fewer seconds in a half, their spread says nothing.
const SECONDS_MIN: usize = 3;

/// Figures of one half.
#[derive(Debug, Clone, Default, Serialize)]
struct Figures {
    seconds: f64,
    commits: usize,
    commits_per_second: f64,
    /// Of how many whole seconds the next three are.
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
    memory_free_end_bytes: u64,
    memory_available_end_bytes: u64,
    follower_lag_median_ms: f64,
    follower_lag_max_ms: f64,
    follower_events_checked: u64,
}

impl Figures {
    fn of(half: &Half) -> Self {
        let (commits, ns) = tally(&half.engine);
        let each_second = half.engine.chunks_exact(REPORTS_PER_SECOND).map(tally);
        let rates = sorted(each_second.map(|(commits, ns)| rate(commits, ns)), f64::total_cmp);
        let taken_us = sorted(half.engine.iter().flat_map(|r| r.commits_us.iter().copied()), u32::cmp);
        let resident = sorted(half.samples.iter().map(Sample::resident_bytes), u64::cmp);
        let lags_ms = sorted(half.follower.iter().map(|r| r.lag_max_ns as f64 / 1e6), f64::total_cmp);
        let written = |report: &engine::Report| report.redo_bytes + report.binlog_bytes;
        let events = |report: &follower::Report| report.events;
        let last = half.samples.last().cloned().unwrap_or_default();
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
            log_written_bytes: growth(&half.engine, written),
            log_resident_end_bytes: last.resident_bytes(),
            log_resident_median_bytes: percentile(&resident, 50),
            log_resident_max_bytes: percentile(&resident, 100),
            log_unwritten_end_bytes: last.unwritten_bytes,
            memory_free_end_bytes: last.memory_free_bytes,
            memory_available_end_bytes: last.memory_available_bytes,
            follower_lag_median_ms: percentile(&lags_ms, 50),
            follower_lag_max_ms: percentile(&lags_ms, 100),
            follower_events_checked: growth(&half.follower, events),
        }
    }

    fn rates(&self) -> String {
        let rates =
            [self.commits_per_second_min, self.commits_per_second_median, self.commits_per_second_max];
        rates.map(|rate| format!("{rate:.0}")).join(", ")
    }

    /// How far single seconds went apart, in commits per second.
    fn spread(&self) -> f64 {
        self.commits_per_second_max - self.commits_per_second_min
    }
}

/// Commits of the reports, and the nanoseconds they took.
fn tally(reports: &[engine::Report]) -> (usize, u64) {
    reports.iter().fold((0, 0), |(commits, ns), report| {
        (commits + report.commits_us.len(), ns + report.to_ns - report.from_ns)
    })
}

fn rate(commits: usize, ns: u64) -> f64 {
    commits as f64 * 1e9 / ns.max(1) as f64
}

/// How much a running total grew from the first report to the last.
fn growth<T>(reports: &[T], total: fn(&T) -> u64) -> u64 {
    reports.last().map_or(0, total) - reports.first().map_or(0, total)
}

fn sorted<T>(values: impl Iterator<Item = T>, order: fn(&T, &T) -> std::cmp::Ordering) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable_by(order);
    values
}

/// The nearest rank of a sorted slice; the default for an empty one.
fn percentile<T: Copy + Default>(sorted: &[T], percent: usize) -> T {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// All that is shown.
pub(super) struct Report<'a> {
    run: &'a Run,
    alone: Figures,
    guarded: Figures,
}

impl<'a> Report<'a> {
    /// Computes the figures of a run.
    pub(super) fn new(run: &'a Run) -> Self {
        Self { run, alone: Figures::of(&run.alone), guarded: Figures::of(&run.guarded) }
    }

    /// One JSON object with everything.
    pub(super) fn json(&self) -> serde_json::Value {
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
            },
            "alone": self.alone,
            "guarded": self.guarded,
            "throughput_ratio": self.ratio(),
            "throughput_within_noise": self.within_noise(),
            "guard": self.run.guard_summary,
            "guard_problems": self.run.guard_problems,
            "samples": { "alone": self.run.alone.samples, "guarded": self.run.guarded.samples },
            "conclusion": self.conclusion(),
        })
    }

    /// The table, the chart and the conclusion.
    pub(super) fn write_text(&self, screen: Screen, out: &mut impl Write) -> io::Result<()> {
        self.write_table(out)?;
        let resident =
            |half: &Half| -> Vec<u64> { half.samples.iter().map(Sample::resident_bytes).collect() };
        let chart = Chart {
            halves: [
                (&resident(&self.run.alone), "alone"),
                (&resident(&self.run.guarded), "under the guard"),
            ],
            width: screen.width.unwrap_or(80).min(120),
            colour: screen.colour,
        };
        write!(out, "\nLog pages in memory over {} s\n\n{}\n", self.run.seconds, chart.draw())?;
        for problem in &self.run.guard_problems {
            writeln!(out, "The guard said: {problem}")?;
        }
        self.conclusion().iter().try_for_each(|sentence| writeln!(out, "{sentence}"))
    }

    fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let both = |show: &dyn Fn(&Figures) -> String| [show(&self.alone), show(&self.guarded)];
        let ms = |us: u32| format!("{:.2} ms", f64::from(us) / 1e3);
        let size = |bytes: u64| Size(bytes).to_string();
        let cpu = self.run.guard_summary["cpu_percent"].as_f64();
        let rows = [
            ("", ["alone".into(), "under the guard".into()]),
            ("commits per second", both(&|f| format!("{:.0}", f.commits_per_second))),
            ("  least, median, most in a second", both(&Figures::rates)),
            ("commit, p50", both(&|f| ms(f.commit_p50_us))),
            ("commit, p99", both(&|f| ms(f.commit_p99_us))),
            ("written to the logs", both(&|f| size(f.log_written_bytes))),
            ("log pages in memory, at the end", both(&|f| size(f.log_resident_end_bytes))),
            ("  median", both(&|f| size(f.log_resident_median_bytes))),
            ("  not yet on disk, at the end", both(&|f| size(f.log_unwritten_end_bytes))),
            ("free memory, at the end", both(&|f| size(f.memory_free_end_bytes))),
            ("available memory, at the end", both(&|f| size(f.memory_available_end_bytes))),
            ("follower's lag, median", both(&|f| format!("{:.1} ms", f.follower_lag_median_ms))),
            ("follower's lag, greatest", both(&|f| format!("{:.1} ms", f.follower_lag_max_ms))),
            ("events the follower checked", both(&|f| count(f.follower_events_checked))),
            (
                "the guard's CPU, of one core",
                ["-".into(), cpu.map_or("unknown".into(), |cpu| format!("{cpu:.2} %"))],
            ),
        ];
        rows.iter()
            .try_for_each(|(name, [alone, guarded])| writeln!(out, "{name:<36}{alone:>20}{guarded:>20}"))
    }

    /// Throughput under the guard by that alone; `None` if nothing was committed alone.
    fn ratio(&self) -> Option<f64> {
        let (alone, guarded) = (self.alone.commits_per_second, self.guarded.commits_per_second);
        (self.alone.commits > 0).then(|| guarded / alone)
    }

    /// Whether the halves differ by no more than single seconds of either; `None` if there were too few to tell.
    fn within_noise(&self) -> Option<bool> {
        let (alone, guarded) = (&self.alone, &self.guarded);
        let difference = (guarded.commits_per_second - alone.commits_per_second).abs();
        let enough = alone.whole_seconds.min(guarded.whole_seconds) >= SECONDS_MIN;
        enough.then(|| difference <= alone.spread().max(guarded.spread()))
    }

    /// What the figures say, in sentences.
    fn conclusion(&self) -> Vec<String> {
        let (alone, guarded) = (&self.alone, &self.guarded);
        let (before, after) = (alone.log_resident_end_bytes, guarded.log_resident_end_bytes);
        let memory = if after < before {
            let share = 100.0 * (before - after) as f64 / before as f64;
            format!(
                "The logs held {} of memory at the end of the half alone and {} under the guard: {share:.0} % less.",
                Size(before),
                Size(after)
            )
        } else {
            format!(
                "The guard freed nothing: the logs held {} of memory alone and {} under it.",
                Size(before),
                Size(after)
            )
        };
        let mut sentences = vec![memory];
        sentences.extend(self.throughput_in_words());
        sentences
    }

    fn throughput_in_words(&self) -> Vec<String> {
        let Some(ratio) = self.ratio() else {
            return vec!["Nothing was committed alone, so there is no throughput to compare with.".into()];
        };
        let percent = 100.0 * (ratio - 1.0).abs();
        let difference = match ratio {
            _ if percent < 0.5 => "as good as the same".to_owned(),
            less if less < 1.0 => format!("{percent:.0} % less"),
            _ => format!("{percent:.0} % more"),
        };
        let seconds = |figures: &Figures| {
            format!("from {:.0} to {:.0}", figures.commits_per_second_min, figures.commits_per_second_max)
        };
        let measured = format!("Throughput under the guard was {ratio:.2} of that alone: {difference}.");
        let spread = format!(
            "Commits in single seconds went {} alone and {} under the guard",
            seconds(&self.alone),
            seconds(&self.guarded)
        );
        let verdict = match self.within_noise() {
            None => {
                return vec![
                    measured,
                    "So short a run has no seconds to tell noise by: give it more.".into(),
                ];
            }
            Some(true) => "the difference is within this run's noise.",
            Some(false) if ratio < 1.0 => {
                "the difference is more than this run's noise. It is the guard's cost, or the disk grew slower \
                 meanwhile: another run tells."
            }
            Some(false) => {
                "the difference is more than this run's noise, but no gain of the guard's, which frees memory and \
                 does not raise throughput: the machine grew faster meanwhile."
            }
        };
        vec![measured, format!("{spread}: {verdict}")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A half of three seconds with these commits in each quarter of a second.
    fn half(commits: usize, resident: u64) -> Half {
        uneven_half([commits; 3], resident)
    }

    /// The same with other commits in each second.
    fn uneven_half(commits: [usize; 3], resident: u64) -> Half {
        let report = |number: u64| engine::Report {
            from_ns: number * SECOND / 4,
            to_ns: (number + 1) * SECOND / 4,
            commits_us: vec![1000; commits[usize::try_from(number / 4).unwrap()]],
            redo_bytes: number * 2000,
            binlog_bytes: number * 1000,
        };
        Half {
            samples: vec![Sample { redo_resident_bytes: resident, ..Sample::default() }],
            engine: (0..12).map(report).collect(),
            follower: vec![follower::Report { at_ns: 0, events: 5, lag_max_ns: 2_000_000 }],
        }
    }

    fn run(alone: Half, guarded: Half) -> Run {
        Run { seconds: 4, alone, guarded, ..Run::default() }
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
        let figures = Figures::of(&half(250, 4096));
        assert_eq!(
            (figures.commits, figures.commit_p99_us, figures.log_resident_end_bytes),
            (3000, 1000, 4096)
        );
        assert!((figures.commits_per_second - 1000.0).abs() < 1e-9, "{}", figures.commits_per_second);
        assert!((figures.commits_per_second_max - 1000.0).abs() < 1e-9);
        assert_eq!(figures.log_written_bytes, 11 * 3000);
    }

    #[test]
    fn a_loss_is_said_plainly() {
        let run = run(half(1000, 100 << 20), half(900, 1 << 20));
        let conclusion = Report::new(&run).conclusion();
        assert!(
            conclusion[0].contains("100 MiB") && conclusion[0].contains("99 % less"),
            "{}",
            conclusion[0]
        );
        assert_eq!(conclusion[1], "Throughput under the guard was 0.90 of that alone: 10 % less.");
        assert_eq!(
            conclusion[2],
            "Commits in single seconds went from 4000 to 4000 alone and from 3600 to 3600 under the guard: the \
             difference is more than this run's noise. It is the guard's cost, or the disk grew slower meanwhile: \
             another run tells."
        );
    }

    #[test]
    fn a_gain_is_not_the_guards() {
        let run = run(half(1000, 1 << 20), half(1200, 2 << 20));
        let conclusion = Report::new(&run).conclusion();
        assert!(conclusion[0].starts_with("The guard freed nothing"), "{}", conclusion[0]);
        assert_eq!(conclusion[1], "Throughput under the guard was 1.20 of that alone: 20 % more.");
        assert!(conclusion[2].contains("no gain of the guard's"), "{}", conclusion[2]);
    }

    #[test]
    fn a_difference_that_seconds_of_one_half_have_too_is_noise() {
        // Either half may be the unsteady one, and either the faster.
        let unsteady = || uneven_half([900, 1000, 1100], 1 << 20);
        for (alone, guarded, ratio) in [
            (unsteady(), half(850, 1 << 20), "0.85 of that alone: 15 % less."),
            (half(850, 1 << 20), unsteady(), "1.18 of that alone: 18 % more."),
            (half(1000, 1 << 20), half(1000, 1 << 20), "1.00 of that alone: as good as the same."),
        ] {
            let run = run(alone, guarded);
            let report = Report::new(&run);
            let conclusion = report.conclusion();
            assert!(conclusion[1].ends_with(ratio), "{conclusion:?}");
            assert!(conclusion[2].ends_with("the difference is within this run's noise."), "{conclusion:?}");
            assert_eq!(report.json()["throughput_within_noise"], true);
        }
        let run = run(unsteady(), half(700, 1 << 20));
        assert_eq!(Report::new(&run).within_noise(), Some(false));
    }

    #[test]
    fn no_verdict_is_given_on_too_little() {
        let mut short = run(half(1000, 1 << 20), half(900, 1 << 20));
        short.guarded.engine.truncate(8);
        let report = Report::new(&short);
        assert_eq!((report.within_noise(), report.conclusion().len()), (None, 3));
        assert!(report.conclusion()[2].contains("So short a run"));
        let idle = run(half(0, 1 << 20), half(900, 1 << 20));
        let report = Report::new(&idle);
        assert!(report.json()["throughput_ratio"].is_null());
        assert!(report.conclusion()[1].contains("Nothing was committed alone"));
    }

    #[test]
    fn the_text_has_a_chart_and_the_json_all_samples() {
        let run = run(half(10, 8 << 20), half(10, 4096));
        let report = Report::new(&run);
        let screen = Screen { terminal: false, colour: false, width: None };
        let mut text = Vec::new();
        report.write_text(screen, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains('█') && text.contains("under the guard"), "{text}");
        let json = report.json();
        assert_eq!(json["samples"]["alone"][0]["redo_resident_bytes"], 8 << 20);
        assert_eq!(json["guarded"]["commits"], 120);
    }
}
