//! `beside`: commits on a slow disk beside a stream that writes to it: plain, under `pagekeeper run`, by the remedies of
//! others, and without a stream. The [loads](loads) are two logs, three servers, and appends that are never synced.
//!
//! Invariants:
//! - All subjects of a case use one disk and one source.
//! - The count runs from the start of the stream until its output is durable.
//! - Each copy is compared with its source, and each sample begins with nothing dirty.
//!
//! Fails with a plain message without root.

mod loads;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_bulk::{BulkMode, BulkWriter};
use pagekeeper_testing::{LowDirtyLimits, ThrottledDisk};

use crate::Run;
use crate::clients::Commit;
use crate::data::{GIB, MIB};
use crate::drive::join;
use crate::latencies::Latencies;
use crate::pattern;
use crate::peers::{Program, run as run_program};
use crate::report::{Report, Unit};
use crate::rounds::{Plan, Samples, ratio};
use crate::scratch::Stop;
use crate::slow_device::{self, settle};
use loads::{Load, RunningLoad};

/// Bytes that the bulk writer is given at a time.
const PIECE: usize = 1 << 20;
/// Dirty bytes at which background writeback begins, and at which writers wait, beside appends that are never synced.
const LIMITS: (u64, u64) = (8 * MIB, 16 * MIB);

const UNDER_RUN: &str = "under run";
const ALONE: &str = "no stream";
const PLAIN: &str = "plain";
const BULK: &str = "the library's bulk writer, paced";
const BULK_DIRECT: &str = "the library's bulk writer, direct";

/// A program that writes `$BYTES`, or copies `$FROM` or the server at `$SERVER`, to `$TO`. `$RUN` runs it.
struct StreamCommand {
    name: &'static str,
    needs: &'static [&'static str],
    line: &'static str,
}

const fn stream(name: &'static str, needs: &'static [&'static str], line: &'static str) -> StreamCommand {
    StreamCommand { name, needs, line }
}

const CP: &str = "$RUN cp \"$FROM\" \"$TO/copy\"";
const STREAMS: [StreamCommand; 9] = [
    stream("cp", &[], CP),
    stream("static cp", &["busybox"], "$RUN busybox cp \"$FROM\" \"$TO/copy\""),
    stream("rsync", &["rsync"], "$RUN rsync --whole-file \"$FROM\" \"$TO/copy\""),
    stream(
        "restic",
        &["restic"],
        "export RESTIC_PASSWORD=x; restic -q --no-cache -r \"$TO/restic\" init >/dev/null &&
         $RUN restic -q --no-cache -r \"$TO/restic\" backup \"$FROM\"",
    ),
    stream("tar | zstd", &["zstd"], "$RUN sh -c 'tar -cPf - \"$FROM\" | zstd -q -1 >\"$TO/tar.zst\"'"),
    stream(
        "fio, mmap",
        &["fio"],
        "$RUN fio --name=w --filename=\"$TO/file\" --size=\"$BYTES\" --rw=write --bs=256k --output=/dev/null --ioengine=mmap",
    ),
    stream(
        "fio, io_uring",
        &["fio"],
        "$RUN fio --name=w --filename=\"$TO/file\" --size=\"$BYTES\" --rw=write --bs=256k --output=/dev/null --ioengine=io_uring \
         --iodepth=32",
    ),
    stream(
        "pg_basebackup",
        &["pg_basebackup"],
        "$RUN pg_basebackup --checkpoint=fast -h127.0.0.1 -Upostgres -p \"$SERVER\" -D \"$TO/base\"",
    ),
    stream(
        "mariabackup",
        &["mariabackup"],
        "$RUN mariabackup --backup --user=root --socket=\"$SERVER\" --target-dir=\"$TO/full\" 2>/dev/null",
    ),
];

/// Other remedies, for `cp`.
const PEERS: [StreamCommand; 6] = [
    stream(BULK, &[], ""),
    stream(BULK_DIRECT, &[], ""),
    stream("ionice -c3 cp", &["ionice"], "ionice -c3 cp \"$FROM\" \"$TO/copy\""),
    stream("nocache cp", &["nocache"], "nocache cp \"$FROM\" \"$TO/copy\""),
    // An operator has to guess the limit.
    stream(
        "rsync --bwlimit, half the disk",
        &["rsync"],
        "rsync --inplace --whole-file --bwlimit=\"$HALF\" \"$FROM\" \"$TO/copy\"",
    ),
    // The doctor's fix.
    stream(
        "cp, 16 MiB dirty at most (strict_limit)",
        &[],
        "trap 'echo 0 >$BDI/strict_limit; echo 100 >$BDI/max_ratio' EXIT
         echo 16777216 >$BDI/max_bytes && echo 1 >$BDI/strict_limit && cp \"$FROM\" \"$TO/copy\"",
    ),
];

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BesideOptions {
    /// These streams, as the table names them; cp has its peers beside it
    #[arg(long, value_name = "NAME", default_value = "cp", value_parser = clap::builder::PossibleValuesParser::new(STREAMS.map(|stream| stream.name)))]
    stream: Vec<String>,
    /// These loads [default: one-writer and due; with --quick: due]
    #[arg(long, value_enum)]
    load: Vec<Load>,
    /// These file systems
    #[arg(long, value_name = "KIND", default_values = ["ext4", "xfs", "btrfs"])]
    kind: Vec<String>,
    /// Write rate of the disk, in MB/s
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    rate: u64,
}

/// The figures of a sample.
struct Sample {
    /// Commits per second.
    rate: f64,
    took: Latencies,
    /// MiB/s of the stream, until its output was durable.
    stream: f64,
}

/// The surroundings of a sample.
struct Site<'a> {
    disk: &'a ThrottledDisk,
    load: RunningLoad,
    source: &'a Path,
    bytes: u64,
    /// Bytes a second of the disk.
    rate: u64,
    line: &'static str,
    pagekeeper: Program,
    stop: Stop,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run, choice: &BesideOptions, rounds: Option<u16>) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this bench makes a slow disk, and follows programs by events of the kernel: run it as root"
    );
    // A sample takes as long as its stream.
    run.rounds = rounds.map_or(if run.quick { 1 } else { 3 }, usize::from);
    let rate = choice.rate * 1_000_000;
    // A multiple of a MiB that a quick disk writes for some seconds, too.
    let bytes = if run.quick { 256 * MIB } else { (rate * 4 / MIB * MIB).clamp(GIB, 8 * GIB) };
    run.note(&format!(
        "a disk of {} MB/s (a loop device under a throttle); {} MiB are written to it, until they are durable",
        choice.rate,
        bytes / MIB
    ));
    let source = run.scratch.path().join("source");
    pattern::make_file(&source, bytes, 1)?;
    let kinds = if run.quick { &choice.kind[..1] } else { &choice.kind };
    let usual: &[Load] = if run.quick { &[Load::Due] } else { &[Load::OneWriter, Load::Due] };
    let loads = if choice.load.is_empty() { usual } else { &choice.load };
    for kind in kinds {
        for load in loads {
            let disk = slow_device::new(&run.scratch, kind, 4 * bytes + GIB, rate)?;
            let Some(started) = RunningLoad::start(run, *load, disk.path(), bytes)? else { continue };
            let (pagekeeper, stop) = (run.pagekeeper.clone(), run.stop.clone());
            let mut site =
                Site { disk: &disk, load: started, source: &source, bytes, rate, line: CP, pagekeeper, stop };
            let _limits = (*load == Load::Appends).then(|| LowDirtyLimits::new(LIMITS.0, LIMITS.1));
            for stream in STREAMS.iter().filter(|stream| choice.stream.iter().any(|name| name == stream.name))
            {
                // A backup is that of its own server.
                let is_backup = stream.line.contains("$SERVER");
                if !run.has(stream.needs) || (is_backup && stream.name != site.load.backup().0) {
                    continue;
                }
                site.line = stream.line;
                let title = format!("{kind}, {load:?}, {}", stream.name);
                run.say(&title)?;
                case(run, &site, &title, *load)?;
            }
        }
    }
    Ok(())
}

/// Returns the names of what runs beside this stream.
fn subjects(run: &mut Run, line: &str, disk: &ThrottledDisk) -> Vec<&'static str> {
    let mut names = vec![UNDER_RUN, ALONE, PLAIN];
    let peers = if line == CP && !run.quick { &PEERS[..] } else { &[] };
    for peer in peers {
        let is_known = !peer.line.contains("$BDI") || bdi(disk).join("max_bytes").exists();
        if is_known && run.has(peer.needs) {
            names.push(peer.name);
        }
    }
    names
}

fn bdi(disk: &ThrottledDisk) -> PathBuf {
    Path::new("/sys/class/bdi").join(disk.device())
}

fn case(run: &mut Run, site: &Site<'_>, title: &str, load: Load) -> Result<()> {
    let names = subjects(run, site.line, site.disk);
    let plan = Plan { rounds: run.rounds, until: None, warm_up: false };
    let measured = run.measure(&names, plan, |turn| site.sample(names[turn.subject]))?;
    let report = &mut run.report;
    let commits = measured.figure(|sample| sample.rate);
    report.add_case(title, Unit::CommitsPerSecond, &commits);
    let mut add = |name: &str, percentile: f64| {
        let samples = measured.figure(|sample| sample.took.ms(percentile));
        report.add_case(&format!("{title}: {name}"), Unit::Milliseconds, &samples);
        samples
    };
    add("median", 50.0);
    let p99 = add("p99", 99.0);
    add("p99.9", 99.9);
    let longest = add("longest", 100.0);
    let mut streams = measured.figure(|sample| sample.stream);
    streams.retain(|samples| samples.subject != ALONE);
    report.add_case(&format!("{title}: the stream, until it is on disk"), Unit::MibPerSecond, &streams);
    let (ms, rate) = (Unit::Milliseconds, Unit::CommitsPerSecond);
    match load {
        Load::Due => {
            add_worst(report, "beside_due_vs_alone", rate, &commits, ALONE);
            add_worst(report, "beside_p99_vs_alone", ms, &p99, ALONE);
            add_worst(report, "beside_longest_vs_alone", ms, &longest, ALONE);
            add_worst(report, "beside_longest_vs_plain", ms, &longest, PLAIN);
        }
        Load::Appends => {}
        _ => {
            add_worst(report, "beside_commits_vs_alone", rate, &commits, ALONE);
            add_worst(report, "beside_commits_vs_plain", rate, &commits, PLAIN);
        }
    }
    add_worst(report, "beside_copy_vs_plain", Unit::MibPerSecond, &streams, PLAIN);
    Ok(())
}

/// Adds the ratio of the case with the worst result.
fn add_worst(report: &mut Report, name: &'static str, unit: Unit, samples: &[Samples], theirs: &'static str) {
    let of =
        |subject| samples.iter().find(|samples| samples.subject == subject).map(|found| &found.values[..]);
    let new = of(UNDER_RUN).zip(of(theirs)).and_then(|(ours, theirs)| ratio(ours, theirs, unit.better()));
    if new.is_some_and(|new| report.ratios.get(name).is_none_or(|known| new < *known)) {
        report.add_ratio(name, unit, samples, UNDER_RUN, theirs);
    }
}

impl Site<'_> {
    /// Measures commits beside one stream.
    fn sample(&self, subject: &'static str) -> Result<Sample> {
        let output = self.disk.path().join("output");
        std::fs::create_dir(&output).context("can't make a directory")?;
        settle(self.disk)?;
        let ended = AtomicBool::new(false);
        let began = Instant::now();
        let (commits, (from, to)) = std::thread::scope(|scope| -> Result<_> {
            let committer = scope.spawn(|| self.load.commit_until(&ended, began));
            let streamed = self.stream(subject, &output, began);
            ended.store(true, Ordering::Relaxed);
            let commits = join(committer)?;
            Ok((commits, streamed?))
        })?;
        let copy = output.join("copy");
        if copy.exists() {
            run_program(Command::new("cmp").arg(self.source).arg(&copy))?;
        }
        std::fs::remove_dir_all(&output).context("can't remove what was written")?;
        self.load.clean_up()?;
        let within = commits.iter().filter(|commit| (from..=to).contains(&commit.end)).count();
        // A commit that was due within the time and ended after it was waited for, too.
        let is_within = |commit: &&Commit| commit.end >= from && commit.end - commit.took.as_secs_f64() <= to;
        Ok(Sample {
            rate: within as f64 / (to - from),
            took: commits.iter().filter(is_within).map(|commit| commit.took).collect(),
            stream: self.bytes as f64 / MIB as f64 / (to - from),
        })
    }

    /// Copies as an engine does that writes its own output.
    fn write_in_bulk(&self, mode: BulkMode, copy: &Path) -> Result<()> {
        let mut source = File::open(self.source).context("can't open the source")?;
        let mut output = BulkWriter::options().mode(mode).create(copy)?;
        let mut piece = vec![0; PIECE];
        loop {
            self.stop.check()?;
            let length = source.read(&mut piece).context("can't read the source")?;
            if length == 0 {
                break;
            }
            output.write_all(&piece[..length])?;
        }
        output.finish()?;
        Ok(())
    }

    /// Runs the stream, one second after the load has begun, and makes its output durable. Returns when it began and
    /// ended, in seconds since the load's start.
    fn stream(&self, subject: &'static str, output: &Path, began: Instant) -> Result<(f64, f64)> {
        self.stop.sleep(Duration::from_secs(1))?;
        let from = began.elapsed().as_secs_f64();
        match subject {
            ALONE => self.stop.sleep(Duration::from_secs(self.bytes / self.rate + 1))?,
            BULK => self.write_in_bulk(BulkMode::Paced, &output.join("copy"))?,
            BULK_DIRECT => self.write_in_bulk(BulkMode::Direct, &output.join("copy"))?,
            _ => {
                let peer = PEERS.iter().find(|peer| peer.name == subject);
                let line = peer.map_or(self.line, |peer| peer.line);
                run_program(&mut self.shell(line, subject == UNDER_RUN, output)).context(subject)?;
            }
        }
        if subject != ALONE {
            settle(self.disk)?;
        }
        Ok((from, began.elapsed().as_secs_f64()))
    }

    fn shell(&self, line: &str, is_under_run: bool, output: &Path) -> Command {
        let run = format!("{} run --as=stream --", self.pagekeeper.path.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("RUN", if is_under_run { &run } else { "" });
        shell.env("FROM", self.source).env("TO", output).env("BDI", bdi(self.disk));
        shell.env("BYTES", self.bytes.to_string()).env("SERVER", self.load.backup().1);
        shell.env("HALF", (self.rate / 2 / 1024).to_string());
        shell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_file_systems_the_ratio_is_that_of_the_worse() {
        let samples = |ours: f64| {
            [(UNDER_RUN, ours), (ALONE, 10.0)]
                .map(|(subject, rate)| Samples { subject, values: vec![rate, rate] })
        };
        let mut report = crate::report::tests::example();
        for ours in [9.0, 8.0, 9.5] {
            add_worst(&mut report, "beside_due_vs_alone", Unit::CommitsPerSecond, &samples(ours), ALONE);
        }
        assert!((report.ratios["beside_due_vs_alone"] - 0.8).abs() < 1e-9, "{:?}", report.ratios);
    }
}
