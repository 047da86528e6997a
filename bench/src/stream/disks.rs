//! The rate of programs that write to slow disks, until everything is on disk: plain and under `run`, by the disk's
//! latency and width.
//!
//! The disk is [`SlowDisk`] with an XFS, in memory, created anew for each case. Invariants: written files are new,
//! compared with their source where they are copies, and on disk when the time ends; read files are resident before and
//! are on another disk. At most 2 % of the output stays resident under `run`. Fails where more stays, or where a byte
//! differs.

use std::fs::File;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{PLAIN, UNDER_RUN};
use crate::Run;
use crate::data::{MIB, resident, write_synced};
use crate::peers::{Program, run as run_process};
use crate::report::Unit;
use crate::rounds::{Better, Plan, Subject, median, ratio, run as run_rounds};
use crate::slowdisk::{Settings, SlowDisk};

/// A wide disk's requests at once, and its bytes per second.
const WIDTH: u16 = 64;
const BANDWIDTH: u64 = 250 * MIB;
/// Bytes of the largest request.
const REQUEST: u64 = MIB;
/// Capacity of a disk, which is in memory.
const DISK: u64 = 3 << 30;
/// Seconds of the disk's work that are written, within bounds. A program that writes less is done while the first
/// request is in flight.
const SECONDS: u64 = 6;
const LEAST: u64 = 32 * MIB;
const MOST: u64 = 1 << 30;
/// The share of the output that may stay resident, in percent.
const STAYS: u64 = 2;

/// Latencies in ms, and the name of the worst ratio at each.
const LATENCIES: [(f64, &str); 6] = [
    (0.1, "slow_disk_0.1_ms"),
    (1.0, "slow_disk_1_ms"),
    (5.0, "slow_disk_5_ms"),
    (15.0, "slow_disk_15_ms"),
    (40.0, "slow_disk_40_ms"),
    (100.0, "slow_disk_100_ms"),
];
/// Programs: `$0` is a new path, `$1` a file to read, `$2` its size in MiB.
const TOOLS: [(&str, &str); 4] = [
    ("dd bs=1M", "dd if=\"$1\" of=\"$0\" bs=1M status=none"),
    ("cp", "cp \"$1\" \"$0\""),
    ("tar", "tar -cPf \"$0\" \"$1\""),
    ("dd bs=16k", "dd if=\"$1\" of=\"$0\" bs=16k status=none"),
];

/// Runs the benchmark.
pub(super) fn run(run: &mut Run) -> Result<()> {
    for width in [WIDTH, 1] {
        for (latency, ratio_name) in LATENCIES {
            if run.quick && ![1.0, 40.0].contains(&latency) {
                continue;
            }
            let width = NonZero::new(width).context("a disk has a width")?;
            let settings = Settings {
                bandwidth: NonZero::new(BANDWIDTH),
                size: DISK,
                xfs: Some(run.scratch.path().join("xfs")),
                ..Settings::new(Duration::from_secs_f64(latency / 1e3), width)
            };
            let worst = on_disk(run, &settings)?;
            let known = run.report.ratios.entry(ratio_name).or_insert(worst);
            *known = known.min(worst);
        }
    }
    Ok(())
}

/// Returns the bytes that a disk of these settings writes in [`SECONDS`], within bounds.
fn bytes_for(settings: &Settings) -> u64 {
    let transfer = Duration::from_micros(REQUEST * 1_000_000 / BANDWIDTH);
    let micros = u64::try_from((settings.latency + transfer).as_micros()).unwrap_or(u64::MAX).max(1);
    let rate = (u64::from(settings.width.get()) * REQUEST * 1_000_000 / micros).min(BANDWIDTH);
    (rate * SECONDS).clamp(LEAST, MOST).next_multiple_of(MIB)
}

/// Returns the worst ratio of all programs on one disk.
fn on_disk(run: &mut Run, settings: &Settings) -> Result<f64> {
    let mount = run.scratch.path().join("slow");
    for path in settings.xfs.iter().chain([&mount]) {
        std::fs::create_dir_all(path).with_context(|| format!("can't make {}", path.display()))?;
    }
    let source = run.scratch.path().join("source");
    let bytes = bytes_for(settings);
    write_synced(&source, bytes)?;
    let program = std::env::current_exe().context("can't find this program")?;
    let disk = SlowDisk::start(&program, &mount, settings)?;
    let pagekeeper = run.pagekeeper.clone();
    let site = Site { pagekeeper: &pagekeeper, source, new: disk.dir().join("new"), bytes };
    let mut worst = f64::INFINITY;
    for (tool, line) in if run.quick { &TOOLS[..1] } else { &TOOLS[..] } {
        let case = format!("{tool} of {} MiB to a disk of {settings}", bytes / MIB);
        run.say(&case)?;
        let unsynced = std::cell::RefCell::new([Vec::new(), Vec::new()]);
        let once = |under_run: bool| {
            let (ended, synced) = site.once(line, under_run)?;
            unsynced.borrow_mut()[usize::from(!under_run)].push(ended);
            Ok(synced)
        };
        let mut subjects = [Subject::new(UNDER_RUN, || once(true)), Subject::new(PLAIN, || once(false))];
        let rounds = if run.quick { 1 } else { run.rounds.min(3) };
        let plan = Plan { rounds, until: None, warm_up: false };
        let rates = run_rounds(&mut subjects, plan, &mut run.random, &run.stop)?;
        drop(subjects);
        worst = ratio(&rates[0].values, &rates[1].values, Better::More).map_or(worst, |it| it.min(worst));
        run.report.add_case(&format!("{case}, until it is on disk"), Unit::MibPerSecond, &rates);
        if let [Some(ours), Some(plain)] = unsynced.into_inner().map(|values| median(&values)) {
            run.note(&format!("{case}: the program itself ended at {ours:.0} MiB/s, plain at {plain:.0}"));
        }
    }
    disk.end()?;
    Ok(worst)
}

struct Site<'a> {
    pagekeeper: &'a Program,
    source: PathBuf,
    new: PathBuf,
    bytes: u64,
}

impl Site<'_> {
    /// Runs a program once and returns MiB/s until it ended, and until everything was on disk.
    fn once(&self, line: &str, under_run: bool) -> Result<(f64, f64)> {
        run_process(Command::new("cat").arg(&self.source).stdout(std::process::Stdio::null()))?;
        let mut command =
            Command::new(if under_run { self.pagekeeper.path.as_path() } else { Path::new("env") });
        if under_run {
            command.args(["run", "--as=stream", "--"]);
        }
        command.args(["sh", "-c", line]).arg(&self.new).arg(&self.source);
        let began = Instant::now();
        let ended = run_process(&mut command)?.seconds;
        File::open(&self.new).and_then(|file| file.sync_all()).context("can't sync what was written")?;
        let synced = began.elapsed().as_secs_f64();
        if under_run {
            let left = resident(&self.new)?;
            ensure!(
                left <= self.bytes / 100 * STAYS,
                "{} of {} MiB that were written stay",
                left / MIB,
                self.bytes / MIB
            );
        }
        if !line.starts_with("tar") {
            // Many requests at once.
            let compare = "dd if=\"$0\" bs=64M iflag=direct status=none | cmp - \"$1\"";
            run_process(Command::new("sh").args(["-c", compare]).arg(&self.new).arg(&self.source))?;
        }
        std::fs::remove_file(&self.new).context("can't remove what was written")?;
        let mib = (self.bytes / MIB) as f64;
        Ok((mib / ended, mib / synced))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_writes_for_some_seconds() {
        let of = |ms, width| {
            bytes_for(&Settings::new(Duration::from_millis(ms), NonZero::new(width).unwrap())) / MIB
        };
        assert_eq!((of(1, 64), of(100, 64), of(40, 1), of(1000, 1)), (1024, 1024, 137, 32));
    }
}
