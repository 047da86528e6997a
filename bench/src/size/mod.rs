//! `size`: the hit ratio that `pagekeeper size` predicts for other sizes of page cache, against the
//! one that the same load then has there, and the throughput that watching costs.
//!
//! Each load runs in a memory cgroup all the time. It is watched once, at one limit; then the limit
//! changes. Where each read is one page the true hit ratio is that of `/proc/PID/io`: bytes
//! that were read, and those of them that came from the disk. Elsewhere it is that of the accesses
//! that `size` counts at the new limit, which no simulation is part of. The cost compares windows
//! with and without a watch, in turn. Fails where a load ends by itself.

mod loads;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::BenchRun;
use crate::memory_group::{GroupParent, MemoryGroup};
use crate::peers::run as run_process;
use crate::report::FigureUnit;
use crate::rounds::{SubjectSamples, median};

/// The sizes that are compared, as parts of the watched one.
const PARTS: [(&str, f64); 6] =
    [("1/4", 0.25), ("1/2", 0.5), ("3/4", 0.75), ("1", 1.0), ("3/2", 1.5), ("2", 2.0)];
/// Windows with a watch for its cost, each between two without one.
const COST_WINDOWS: usize = 3;
/// A group that uses this part of its limit is full: the kernel frees some pages ahead.
const FILLED_PERCENT: u64 = 97;
const FILL_INTERVAL: Duration = Duration::from_millis(200);

/// A load that is to be watched.
struct LoadCase {
    name: &'static str,
    /// Names of the worst error and of the cost.
    error: &'static str,
    cost: &'static str,
    /// Whether each of its reads is one whole page.
    has_whole_pages: bool,
}

/// The lengths of a case's phases.
struct Phases {
    warm: Duration,
    watched: Duration,
    window: Duration,
}

/// Bytes that the processes of a group have read, and those of them that came from the disk.
#[derive(Clone, Copy)]
struct ReadCounts {
    read: f64,
    from_disk: f64,
}

impl ReadCounts {
    fn now(group: &MemoryGroup) -> Result<Self> {
        let processes =
            std::fs::read_to_string(group.entrance()).context("can't list a group's processes")?;
        let mut sum = Self { read: 0.0, from_disk: 0.0 };
        for pid in processes.lines() {
            // A process may have ended meanwhile.
            let text = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            let of = |name: &str| {
                let number =
                    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
                number.unwrap_or(0.0)
            };
            sum = Self { read: sum.read + of("rchar:"), from_disk: sum.from_disk + of("read_bytes:") };
        }
        Ok(sum)
    }

    fn since(self, before: Self) -> Self {
        Self { read: self.read - before.read, from_disk: self.from_disk - before.from_disk }
    }

    fn hit_ratio(self) -> f64 {
        1.0 - self.from_disk / self.read.max(1.0)
    }
}

/// A load whose accesses are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SizedLoad {
    Fio,
    Readrandom,
    Readwhilewriting,
    Pgbench,
    Lmdb,
}

/// The loads of a run.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SizeOptions {
    /// Only this load, may be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    load: Vec<SizedLoad>,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun, choice: &SizeOptions) -> Result<()> {
    let groups = GroupParent::find()?;
    let seconds = |quick: u64, whole: u64| Duration::from_secs(if run.quick { quick } else { whole });
    let phases = Phases { warm: seconds(5, 30), watched: seconds(30, 120), window: seconds(4, 20) };
    run.note("an error is that of the prediction, in points of hit ratio; the cost is lost throughput");
    for load in <SizedLoad as clap::ValueEnum>::value_variants() {
        if choice.load.is_empty() || choice.load.contains(load) {
            match load {
                SizedLoad::Fio => loads::fio(run, &groups, &phases)?,
                SizedLoad::Readrandom | SizedLoad::Readwhilewriting => {
                    loads::rocksdb(run, &groups, &phases, *load)?;
                }
                SizedLoad::Pgbench => loads::postgresql(run, &groups, &phases)?,
                SizedLoad::Lmdb => loads::lmdb(run, &groups, &phases)?,
            }
        }
    }
    Ok(())
}

/// Watches the load of a group, then lets it run at each size.
fn compare(run: &mut BenchRun, group: &MemoryGroup, phases: &Phases, case: &LoadCase) -> Result<()> {
    run.say(case.name)?;
    run.stop.sleep(phases.warm)?;
    let costs = costs(run, group, phases)?;
    run.report.ratios.insert(case.cost, median(&costs).context("no cost")?);
    let samples = [SubjectSamples { subject: "throughput lost", values: costs }];
    run.report.add_case(&format!("{}: cost of watching", case.name), FigureUnit::Percent, &samples);
    run.say(&format!("{}: watch", case.name))?;
    let report = watch(run, group, phases.watched)?;
    let present = report["present"]["page_cache_bytes"].as_f64().context("no present size")?;
    let other = report["other_bytes"].as_u64().context("no other memory")?;
    let percent = |at| Some(report.pointer(at)?.as_f64()? * 100.0);
    let meanwhile = [
        ("predicted", percent("/present/hit_ratio").context("no hit ratio")?),
        ("counted", percent("/counted_hit_ratio").context("no accesses")?),
    ];
    add_plain(run, &format!("{}: while it was watched", case.name), FigureUnit::Percent, &meanwhile);
    let mut worst = 0.0_f64;
    for (name, part) in PARTS {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of memory")]
        group.set_limit(other + (present * part) as u64)?;
        run.say(&format!("{}: {name} of the page cache", case.name))?;
        fill(run, group, phases.warm)?;
        let real = true_hit_ratio(run, group, phases, case)?;
        let predicted = predicted(&report, "hit_ratio", present * part).context("no prediction")?;
        worst = worst.max((predicted - real).abs() * 100.0);
        let figures =
            [("predicted", predicted * 100.0), ("true", real * 100.0), ("error", (predicted - real) * 100.0)];
        add_plain(run, &format!("{}: {name} of the page cache", case.name), FigureUnit::Percent, &figures);
    }
    run.report.ratios.insert(case.error, worst);
    Ok(())
}

/// Waits until a group has filled its limit, and as long again: at least `warm`, and about four
/// times that at most.
fn fill(run: &BenchRun, group: &MemoryGroup, warm: Duration) -> Result<()> {
    let began = Instant::now();
    while group.usage()? < group.limit()? / 100 * FILLED_PERCENT && began.elapsed() < 3 * warm {
        run.stop.sleep(FILL_INTERVAL)?;
    }
    let elapsed = began.elapsed();
    run.stop.sleep(warm.max(elapsed).min((4 * warm).saturating_sub(elapsed)))
}

/// Returns the throughput that is lost in each window with a watch, in percent of the mean of the
/// windows before and after it.
fn costs(run: &BenchRun, group: &MemoryGroup, phases: &Phases) -> Result<Vec<f64>> {
    // The start of a watch takes a part of each.
    let window = 2 * phases.window;
    let mut before = rate(group, || run.stop.sleep(window))?;
    let mut costs = Vec::new();
    for _ in 0..COST_WINDOWS {
        let watched = rate(group, || watch(run, group, window).map(drop))?;
        let after = rate(group, || run.stop.sleep(window))?;
        costs.push(100.0 * (1.0 - watched / before.midpoint(after)));
        before = after;
    }
    Ok(costs)
}

fn true_hit_ratio(run: &BenchRun, group: &MemoryGroup, phases: &Phases, case: &LoadCase) -> Result<f64> {
    if case.has_whole_pages {
        let before = ReadCounts::now(group)?;
        run.stop.sleep(phases.window)?;
        return Ok(ReadCounts::now(group)?.since(before).hit_ratio());
    }
    // As long as some compactions take.
    let report = watch(run, group, 4 * phases.window)?;
    report["counted_hit_ratio"].as_f64().context("no counted hit ratio")
}

/// Returns the bytes that a group reads a second meanwhile.
fn rate(group: &MemoryGroup, meanwhile: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (began, before) = (Instant::now(), ReadCounts::now(group)?);
    meanwhile()?;
    let read = ReadCounts::now(group)?.since(before).read;
    ensure!(read > 0.0, "the load does not read");
    Ok(read / began.elapsed().as_secs_f64())
}

/// Watches a group, and returns the report.
fn watch(run: &BenchRun, group: &MemoryGroup, length: Duration) -> Result<Value> {
    let directory = group.entrance().parent().map(Path::to_path_buf).context("a group's directory")?;
    let mut command = run.pagekeeper.command();
    command.args(["size", "--json", "--duration", &format!("{}s", length.as_secs()), "--cgroup"]);
    let text = run_process(command.arg(&directory))?.stdout;
    serde_json::from_str(&text).context("size's output is not understood")
}

/// Returns a figure that is predicted for a size, between two points on a straight line.
fn predicted(report: &Value, figure: &str, bytes: f64) -> Option<f64> {
    let point = |value: &Value| Some((value["page_cache_bytes"].as_f64()?, value[figure].as_f64()?));
    let points = report["points"].as_array()?.iter().chain([&report["present"]]);
    let mut points: Vec<(f64, f64)> = points.filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let above = points.iter().position(|point| point.0 >= bytes)?;
    // Nothing is known of sizes below the smallest one.
    let below = if points[above].0 > bytes { above.checked_sub(1)? } else { above };
    let (low, high) = (points[below], points[above]);
    let share = if high.0 > low.0 { (bytes - low.0) / (high.0 - low.0) } else { 1.0 };
    Some(low.1 + share * (high.1 - low.1))
}

fn add_plain(run: &mut BenchRun, case: &str, unit: FigureUnit, figures: &[(&'static str, f64)]) {
    for &(subject, value) in figures {
        run.report.add_case(case, unit, &[SubjectSamples { subject, values: vec![value] }]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_lie_between_points() {
        let report = serde_json::json!({"points": [
            {"page_cache_bytes": 100, "hit_ratio": 0.5}, {"page_cache_bytes": 200, "hit_ratio": 0.7},
        ]});
        for (bytes, hits) in
            [(99.0, None), (100.0, Some(0.5)), (150.0, Some(0.6)), (200.0, Some(0.7)), (201.0, None)]
        {
            let found = predicted(&report, "hit_ratio", bytes);
            assert!(found.zip(hits).is_some_and(|(a, b)| (a - b).abs() < 1e-9) || found == hits, "{bytes}");
        }
        assert_eq!(predicted(&report, "reads", 150.0), None);
    }
}
