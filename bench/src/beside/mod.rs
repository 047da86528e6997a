//! `beside`: commits on a slow disk beside a stream that writes to it: plain, under
//! `pagekeeper run`, by the remedies of others, and without a stream. The [loads] are two
//! logs, three servers, and appends that are never synced.
//!
//! Invariants:
//! - All subjects of a case use one disk and one source.
//! - The count runs from the start of the stream until its output is durable.
//! - Each copy is compared with its source, and each sample begins with nothing dirty.
//!
//! Fails with a plain message without root.

mod loads;

use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_bulk::{BulkMode, BulkWriter};
use pagekeeper_testing::{LowDirtyLimits, ThrottledDisk};

use crate::BenchRun;
use crate::clients::TimedCommit;
use crate::data::{GIB, MIB};
use crate::drive::join;
use crate::latencies::Latencies;
use crate::pattern;
use crate::peers::{InstalledProgram, run as run_program};
use crate::report::{FigureUnit, Report};
use crate::rounds::{RoundPlan, SubjectSamples, ratio};
use crate::scratch::StopRequest;
use crate::slow_device::{self, settle};
use crate::stream::{NO_STREAM_NAME, PLAIN_NAME, UNDER_RUN_NAME};
use loads::{BesideLoad, RunningLoad};

/// Bytes that the bulk writer is given at a time.
const BULK_WRITE_BYTES: usize = 1 << 20;
/// Dirty bytes at which background writeback begins, and at which writers wait, beside appends that
/// are never synced.
const DIRTY_LIMITS_BYTES: (u64, u64) = (8 * MIB, 16 * MIB);

/// Time between two points of a timeline.
const TIMELINE_STEP: Duration = Duration::from_millis(500);

const PACED_WRITER_NAME: &str = "the library's bulk writer, paced";
const DIRECT_WRITER_NAME: &str = "the library's bulk writer, direct";

/// A program that writes `$BYTES`, or copies `$FROM` or the server at `$SERVER`, to `$TO`. `$RUN`
/// runs it.
struct StreamCommand {
    name: &'static str,
    needs: &'static [&'static str],
    line: &'static str,
}

const fn stream(name: &'static str, needs: &'static [&'static str], line: &'static str) -> StreamCommand {
    StreamCommand { name, needs, line }
}

const CP_COMMAND: &str = "$RUN cp \"$FROM\" \"$TO/copy\"";
const STREAM_COMMANDS: [StreamCommand; 9] = [
    stream("cp", &[], CP_COMMAND),
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
const REMEDY_COMMANDS: [StreamCommand; 7] = [
    stream(PACED_WRITER_NAME, &[], ""),
    stream(DIRECT_WRITER_NAME, &[], ""),
    stream("ionice -c3 cp", &["ionice"], "ionice -c3 cp \"$FROM\" \"$TO/copy\""),
    stream("nocache cp", &["nocache"], "nocache cp \"$FROM\" \"$TO/copy\""),
    // An operator has to guess the limit.
    stream(
        "rsync --bwlimit, half the disk",
        &["rsync"],
        "rsync --inplace --whole-file --bwlimit=\"$HALF\" \"$FROM\" \"$TO/copy\"",
    ),
    // The least that writes at this rate: one short request at a time, and nothing is dirty.
    stream(
        "least work: 64 KiB direct, 80 % of the disk",
        &["fio"],
        "fio --name=w --filename=\"$TO/file\" --size=\"$BYTES\" --rw=write --bs=64k --output=/dev/null --direct=1 --fallocate=none \
         --rate=\"$MOST\"",
    ),
    // The doctor's fix.
    stream(
        "cp, 16 MiB dirty at most (strict_limit)",
        &[],
        "trap 'echo 0 >$BDI/strict_limit; echo 100 >$BDI/max_ratio' EXIT
         echo 16777216 >$BDI/max_bytes && echo 1 >$BDI/strict_limit && cp \"$FROM\" \"$TO/copy\"",
    ),
];

/// The measurements to make.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BesideOptions {
    /// Names of streams, as in the table; cp also runs with the peers
    #[arg(long, value_name = "NAME", default_value = "cp", value_parser = clap::builder::PossibleValuesParser::new(STREAM_COMMANDS.map(|stream| stream.name)))]
    stream: Vec<String>,
    /// These loads [default: one-writer and due; with --quick: due]
    #[arg(long, value_enum)]
    load: Vec<BesideLoad>,
    /// These file systems
    #[arg(long, value_name = "KIND", default_values = ["ext4", "xfs", "btrfs"])]
    kind: Vec<String>,
    /// Write rate of the disk, in MB/s
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    rate: u64,
    /// Append to FILE, for each sample, a line of JSON with the commits of each half second
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
}

/// The figures of a sample.
struct BesideSample {
    /// Commits per second.
    rate: f64,
    took: Latencies,
    /// MiB/s of the stream, until its output was durable.
    stream: f64,
}

/// The surroundings of a sample.
struct BesideSetup<'a> {
    disk: &'a ThrottledDisk,
    load: RunningLoad,
    source: &'a Path,
    bytes: u64,
    /// Bytes a second of the disk.
    rate: u64,
    line: &'static str,
    /// The file for timelines.
    timeline: Option<&'a Path>,
    pagekeeper: InstalledProgram,
    stop: StopRequest,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun, choice: &BesideOptions, rounds: Option<u16>) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this bench makes a slow disk, and follows programs by events of the kernel: run it as root"
    );
    // A sample takes as long as its stream.
    run.rounds = rounds.map_or(if run.quick { 1 } else { 3 }, usize::from);
    let rate = choice.rate * 1_000_000;
    // A multiple of a MiB, and enough that a quick disk writes for some seconds.
    let bytes = if run.quick { 256 * MIB } else { (rate * 4 / MIB * MIB).clamp(GIB, 8 * GIB) };
    run.note(&format!(
        "a disk of {} MB/s (a loop device under a throttle); {} MiB are written to it, until they are durable",
        choice.rate,
        bytes / MIB
    ));
    let source = run.scratch.path().join("source");
    pattern::make_file(&source, bytes, 1)?;
    let kinds = if run.quick { &choice.kind[..1] } else { &choice.kind };
    let usual: &[BesideLoad] =
        if run.quick { &[BesideLoad::Due] } else { &[BesideLoad::OneWriter, BesideLoad::Due] };
    let loads = if choice.load.is_empty() { usual } else { &choice.load };
    for kind in kinds {
        for load in loads {
            let disk = slow_device::new(&run.scratch, kind, 4 * bytes + GIB, rate)?;
            let Some(started) = RunningLoad::start(run, *load, disk.path(), bytes)? else { continue };
            let (pagekeeper, stop) = (run.pagekeeper.clone(), run.stop.clone());
            let mut site = BesideSetup {
                disk: &disk,
                load: started,
                source: &source,
                bytes,
                rate,
                line: CP_COMMAND,
                timeline: choice.timeline.as_deref(),
                pagekeeper,
                stop,
            };
            let _limits = (*load == BesideLoad::Appends)
                .then(|| LowDirtyLimits::new(DIRTY_LIMITS_BYTES.0, DIRTY_LIMITS_BYTES.1));
            for stream in
                STREAM_COMMANDS.iter().filter(|stream| choice.stream.iter().any(|name| name == stream.name))
            {
                // A backup is compared with its own server.
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

/// Returns the names of the subjects for this stream.
fn subjects(run: &mut BenchRun, line: &str, disk: &ThrottledDisk) -> Vec<&'static str> {
    let mut names = vec![UNDER_RUN_NAME, NO_STREAM_NAME, PLAIN_NAME];
    let peers = if line == CP_COMMAND && !run.quick { &REMEDY_COMMANDS[..] } else { &[] };
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

fn case(run: &mut BenchRun, site: &BesideSetup<'_>, title: &str, load: BesideLoad) -> Result<()> {
    let names = subjects(run, site.line, site.disk);
    let plan = RoundPlan { rounds: run.rounds, until: None, warm_up: false };
    let measured = run.measure(&names, plan, |turn| site.sample(names[turn.subject]))?;
    let report = &mut run.report;
    let commits = measured.figure(|sample| sample.rate);
    report.add_case(title, FigureUnit::CommitsPerSecond, &commits);
    let mut add = |name: &str, percentile: f64| {
        let samples = measured.figure(|sample| sample.took.ms(percentile));
        report.add_case(&format!("{title}: {name}"), FigureUnit::Milliseconds, &samples);
        samples
    };
    add("median", 50.0);
    let p99 = add("p99", 99.0);
    add("p99.9", 99.9);
    let longest = add("longest", 100.0);
    let mut streams = measured.figure(|sample| sample.stream);
    streams.retain(|samples| samples.subject != NO_STREAM_NAME);
    report.add_case(&format!("{title}: the stream, until it is on disk"), FigureUnit::MibPerSecond, &streams);
    let (ms, rate) = (FigureUnit::Milliseconds, FigureUnit::CommitsPerSecond);
    match load {
        BesideLoad::Due => {
            add_worst(report, "beside_due_vs_alone", rate, &commits, NO_STREAM_NAME);
            add_worst(report, "beside_p99_vs_alone", ms, &p99, NO_STREAM_NAME);
            add_worst(report, "beside_longest_vs_alone", ms, &longest, NO_STREAM_NAME);
            add_worst(report, "beside_longest_vs_plain", ms, &longest, PLAIN_NAME);
        }
        BesideLoad::Appends => {}
        _ => {
            add_worst(report, "beside_commits_vs_alone", rate, &commits, NO_STREAM_NAME);
            add_worst(report, "beside_commits_vs_plain", rate, &commits, PLAIN_NAME);
        }
    }
    add_worst(report, "beside_copy_vs_plain", FigureUnit::MibPerSecond, &streams, PLAIN_NAME);
    Ok(())
}

/// Adds the ratio of the case with the worst result.
fn add_worst(
    report: &mut Report,
    name: &'static str,
    unit: FigureUnit,
    samples: &[SubjectSamples],
    theirs: &'static str,
) {
    let of =
        |subject| samples.iter().find(|samples| samples.subject == subject).map(|found| &found.values[..]);
    let new =
        of(UNDER_RUN_NAME).zip(of(theirs)).and_then(|(ours, theirs)| ratio(ours, theirs, unit.better()));
    if new.is_some_and(|new| report.ratios.get(name).is_none_or(|known| new < *known)) {
        report.add_ratio(name, unit, samples, UNDER_RUN_NAME, theirs);
    }
}

impl BesideSetup<'_> {
    /// Measures commits beside one stream.
    fn sample(&self, subject: &'static str) -> Result<BesideSample> {
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
        self.add_timeline(subject, from, &commits)?;
        let within = commits.iter().filter(|commit| (from..=to).contains(&commit.end)).count();
        // A commit that was due in time counts even if it ended later.
        let is_within =
            |commit: &&TimedCommit| commit.end >= from && commit.end - commit.took.as_secs_f64() <= to;
        Ok(BesideSample {
            rate: within as f64 / (to - from),
            took: commits.iter().filter(is_within).map(|commit| commit.took).collect(),
            stream: self.bytes as f64 / MIB as f64 / (to - from),
        })
    }

    /// Appends the commits of each half second to the file for timelines.
    fn add_timeline(&self, subject: &str, from: f64, commits: &[TimedCommit]) -> Result<()> {
        let Some(path) = self.timeline else { return Ok(()) };
        let mut counts: Vec<u32> = Vec::new();
        for commit in commits {
            let end = Duration::from_secs_f64(commit.end);
            let at = usize::try_from(end.as_millis() / TIMELINE_STEP.as_millis())?;
            counts.resize(counts.len().max(at + 1), 0);
            counts[at] += 1;
        }
        let line = serde_json::json!({ "subject": subject, "stream_began": from, "commits": counts });
        let mut file =
            File::options().create(true).append(true).open(path).context("can't open the timeline")?;
        writeln!(file, "{line}").context("can't write the timeline")
    }

    /// Copies in the way of an engine that writes its own output.
    fn write_in_bulk(&self, mode: BulkMode, copy: &Path) -> Result<()> {
        let mut source = File::open(self.source).context("can't open the source")?;
        let mut output = BulkWriter::options().mode(mode).create(copy)?;
        let mut piece = vec![0; BULK_WRITE_BYTES];
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

    /// Runs the stream, one second after the load has begun, and makes its output durable. Returns
    /// when it began and ended, in seconds since the load's start.
    fn stream(&self, subject: &'static str, output: &Path, began: Instant) -> Result<(f64, f64)> {
        self.stop.sleep(Duration::from_secs(1))?;
        let from = began.elapsed().as_secs_f64();
        match subject {
            NO_STREAM_NAME => self.stop.sleep(Duration::from_secs(self.bytes / self.rate + 1))?,
            PACED_WRITER_NAME => self.write_in_bulk(BulkMode::Paced, &output.join("copy"))?,
            DIRECT_WRITER_NAME => self.write_in_bulk(BulkMode::Direct, &output.join("copy"))?,
            _ => {
                let peer = REMEDY_COMMANDS.iter().find(|peer| peer.name == subject);
                let line = peer.map_or(self.line, |peer| peer.line);
                run_program(&mut self.shell(line, subject == UNDER_RUN_NAME, output)).context(subject)?;
            }
        }
        if subject != NO_STREAM_NAME {
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
        shell.env("MOST", (self.rate / 5 * 4).to_string());
        shell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_of_two_file_systems_sets_the_ratio() {
        let samples = |ours: f64| {
            [(UNDER_RUN_NAME, ours), (NO_STREAM_NAME, 10.0)]
                .map(|(subject, rate)| SubjectSamples { subject, values: vec![rate, rate] })
        };
        let mut report = crate::report::tests::example();
        for ours in [9.0, 8.0, 9.5] {
            add_worst(
                &mut report,
                "beside_due_vs_alone",
                FigureUnit::CommitsPerSecond,
                &samples(ours),
                NO_STREAM_NAME,
            );
        }
        assert!((report.ratios["beside_due_vs_alone"] - 0.8).abs() < 1e-9, "{:?}", report.ratios);
    }
}
