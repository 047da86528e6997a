//! `bulk --server NAME`: puts into a server whose flushes and merges write to the same slow disk: by itself, under
//! `pagekeeper run` with its table files as bulk files, and under `run` with them left alone.
//!
//! A put is the client's smallest unit: a value, a request of documents, an insertion. Its latency runs from when it
//! was due to its acknowledgement, so that a put that is held up also delays those behind it in the figures.
//!
//! Invariants: all subjects of a round use one file system, one rate and one pair of dirty limits; each sample has a
//! new server and begins with nothing dirty. Fails where a server is not installed or does not start.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use pagekeeper_testing::servers::{
    Cassandra, ClickHouse, Flushes, Launcher, LoggedServer, OpenSearch, Search,
};

use super::{FULL, RATE, WHOLE_MACHINE};
use crate::Run;
use crate::data::{GIB, MIB};
use crate::peers::{Program, run as run_process};
use crate::report::Unit;
use crate::rounds::{Plan, Samples, Subject, run as run_rounds};
use crate::scratch::Stop;
use crate::stall::disk::SlowDisk;
use crate::stall::limits::Limits;
use crate::stall::{Latency, settle};

const ITSELF: &str = "by itself";
const BULK: &str = "under run, tables as bulk files";
const LOGS: &str = "under run, tables left alone";
const TRICKLED: &str = "by itself, trickle_fsync";

/// A subject.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// Its name in tables.
    name: &'static str,
    /// The configuration of `run`.
    config: Option<&'static str>,
    /// The way in which Cassandra flushes.
    flushes: Flushes,
}

const CASES: [Case; 4] = [
    Case { name: ITSELF, config: None, flushes: Flushes::Usual },
    Case { name: BULK, config: Some("bulk"), flushes: Flushes::Usual },
    Case { name: LOGS, config: Some("plain"), flushes: Flushes::Usual },
    Case { name: TRICKLED, config: None, flushes: Flushes::Trickled },
];

/// A server, with a function that makes puts visible to searches, if the server needs a request for that.
type Started = (Box<dyn LoggedServer>, Option<Box<dyn Fn() + Send>>);

/// A server that merges files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// A table of large values; `PAGEKEEPER_CASSANDRA` names the directory of its jars
    Cassandra,
    /// An index of one shard; `PAGEKEEPER_OPENSEARCH` names the directory of its jars
    #[value(name = "opensearch")]
    OpenSearch,
    /// A table of `MergeTree`
    #[value(name = "clickhouse")]
    ClickHouse,
}

impl Name {
    fn profile(self) -> &'static str {
        match self {
            Self::Cassandra => "cassandra",
            Self::OpenSearch => "opensearch",
            Self::ClickHouse => "clickhouse",
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Cassandra => &Cassandra::PROGRAMS,
            Self::OpenSearch => &OpenSearch::PROGRAMS,
            Self::ClickHouse => &ClickHouse::PROGRAMS,
        }
    }

    /// Whether the server has to be fetched first, because no variable names its jars.
    fn is_missing(self) -> bool {
        match self {
            Self::Cassandra => Cassandra::jars().is_none(),
            Self::OpenSearch => Search::OpenSearch.jars().is_none(),
            Self::ClickHouse => false,
        }
    }

    /// Bytes put per second: all writes that follow (log, tables, merges) stay below the disk's rate.
    fn rate(self) -> u64 {
        match self {
            Self::Cassandra | Self::ClickHouse => 16_000_000,
            // It waits for the disk at each put.
            Self::OpenSearch => 8_000_000,
        }
    }

    /// Bytes of a put.
    fn at_once(self) -> u64 {
        match self {
            Self::Cassandra => 128 << 10,
            Self::OpenSearch => MIB,
            Self::ClickHouse => 4 * MIB,
        }
    }

    fn start(self, home: &Path, launcher: Launcher, flushes: Flushes) -> Started {
        match self {
            Self::Cassandra => (Box::new(Cassandra::start_by(home, launcher, flushes)), None),
            Self::OpenSearch => {
                let server = OpenSearch::start_by(home, Search::OpenSearch, launcher);
                let refresh = server.refresher();
                (Box::new(server), Some(Box::new(refresh)))
            }
            Self::ClickHouse => (Box::new(ClickHouse::start_by(home, launcher)), None),
        }
    }
}

/// The figures of a sample.
#[derive(Debug, Default)]
struct Sample {
    puts: Latency,
    refreshes: Latency,
    /// MiB per second.
    rate: f64,
}

/// The surroundings of a sample.
struct SampleSetup<'a> {
    name: Name,
    disk: SlowDisk,
    pagekeeper: &'a Program,
    /// The directory of both configurations.
    configs: &'a Path,
    length: Duration,
    stop: &'a Stop,
}

/// Runs the benchmark; `rounds` comes from the command line.
pub(super) fn run(run: &mut Run, name: Name, rounds: Option<u16>) -> Result<()> {
    if let Some(missing) = name.programs().iter().find(|program| !Program::is_installed(program)) {
        bail!("{missing} is not installed");
    }
    if name.is_missing() {
        bail!(
            "the environment does not say where it is. This fetches it, and sets that:\n  \
             eval \"$(scripts/fetch-servers.sh {})\"",
            name.profile()
        );
    }
    let length = Duration::from_secs(if run.quick { 12 } else { 60 });
    run.note(&format!(
        "{} on an ext4 on a loop device held to {} MB/s; dirty limits {} and {} MiB (background, writers); {} s of puts of {} KiB in each sample, {} MB a second",
        name.profile(),
        RATE / 1_000_000,
        FULL.limits.0 / MIB,
        FULL.limits.1 / MIB,
        length.as_secs(),
        name.at_once() >> 10,
        name.rate() / 1_000_000,
    ));
    run.note(WHOLE_MACHINE);
    let configs = run.scratch.path().join("configs");
    write_configs(&run.pagekeeper, name, &configs)?;
    run.say("making a slow disk")?;
    let disk = SlowDisk::new(&run.scratch, "ext4", 8 * GIB, RATE)?;
    let limits = Limits::lower(FULL.limits.0, FULL.limits.1)?;
    let stop = run.stop.clone();
    let setup =
        SampleSetup { name, disk, pagekeeper: &run.pagekeeper, configs: &configs, length, stop: &stop };
    // The last case is a setting that only Cassandra has.
    let cases = if name == Name::Cassandra { &CASES[..] } else { &CASES[..3] };
    let seen: Vec<RefCell<Vec<Sample>>> = cases.iter().map(|_| RefCell::default()).collect();
    let rounds = usize::from(rounds.unwrap_or(if run.quick { 1 } else { 3 }));
    let began = run.began;
    let mut subjects: Vec<Subject> = cases
        .iter()
        .zip(&seen)
        .map(|(case, seen)| {
            let setup = &setup;
            Subject::new(case.name, move || {
                eprintln!("{:>5.1} s  {}", began.elapsed().as_secs_f64(), case.name);
                let sample = setup.sample(case)?;
                let longest = sample.puts.longest / 1e3;
                seen.borrow_mut().push(sample);
                Ok(longest)
            })
        })
        .collect();
    let plan = Plan { rounds, until: None, warm_up: false };
    let longest = run_rounds(&mut subjects, plan, &mut run.random, &stop)?;
    drop(subjects);
    drop(setup);
    drop(limits);
    let figure = |of: &dyn Fn(&Sample) -> f64| -> Vec<Samples> {
        let of_subject = |(samples, seen): (&Samples, &RefCell<Vec<Sample>>)| Samples {
            subject: samples.subject,
            values: seen.borrow().iter().map(of).collect(),
        };
        longest.iter().zip(&seen).map(of_subject).collect()
    };
    let rates = figure(&|sample| sample.rate);
    let report = &mut run.report;
    report.add_case("the longest put", Unit::Milliseconds, &longest);
    report.add_case("put p99", Unit::Milliseconds, &figure(&|sample| sample.puts.p99 / 1e3));
    report.add_case("put p50", Unit::Milliseconds, &figure(&|sample| sample.puts.p50 / 1e3));
    report.add_case("puts", Unit::MibPerSecond, &rates);
    if name == Name::OpenSearch {
        let longest = figure(&|sample| sample.refreshes.longest / 1e3);
        report.add_case("the longest refresh", Unit::Milliseconds, &longest);
        report.add_case("refresh p50", Unit::Milliseconds, &figure(&|sample| sample.refreshes.p50 / 1e3));
    }
    report.add_ratio("bulk_server_max_put", Unit::Milliseconds, &longest, BULK, ITSELF);
    report.add_ratio("bulk_server_max_put_vs_alone", Unit::Milliseconds, &longest, BULK, LOGS);
    if name == Name::Cassandra {
        report.add_ratio("bulk_server_max_put_vs_trickle", Unit::Milliseconds, &longest, BULK, TRICKLED);
    }
    report.add_ratio("bulk_server_rate", Unit::MibPerSecond, &rates, BULK, ITSELF);
    Ok(())
}

/// Writes two configurations: the built-in profile with all tables as bulk files, and with none.
fn write_configs(pagekeeper: &Program, name: Name, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    let text = run_process(pagekeeper.command().args(["guard", "--print-profile", name.profile()]))?.stdout;
    for (config, is_bulk) in [("bulk", true), ("plain", false)] {
        let profile = directory.join(format!("{config}-profile.toml"));
        std::fs::write(&profile, with_bulk(&text, config, is_bulk))?;
        let names = format!("profiles = [\"{config}-profile.toml\"]\n");
        std::fs::write(directory.join(format!("{config}.toml")), names)?;
    }
    Ok(())
}

/// Renames a profile and makes all of its data and temporary files bulk files, or none.
fn with_bulk(profile: &str, name: &str, is_bulk: bool) -> String {
    let mut text = String::new();
    for line in profile.lines() {
        let is_of_tables = line == "class = \"data\"" || line == "class = \"temp\"";
        let line = match line {
            line if line.starts_with("bulk = ") => continue,
            line if line.starts_with("name = ") => format!("name = \"{name}\"\n"),
            line => format!("{line}\n"),
        };
        text += &line;
        if is_of_tables && is_bulk {
            text += "bulk = \"keep\"\n";
        }
    }
    text
}

impl SampleSetup<'_> {
    /// Puts into a new server and removes it at the end.
    fn sample(&self, case: &Case) -> Result<Sample> {
        let home = self.disk.path().join("server");
        let launcher = case.config.map_or_else(Launcher::default, |config| {
            let file = self.configs.join(format!("{config}.toml"));
            let words: [OsString; 8] = [
                self.pagekeeper.path.clone().into(),
                "run".into(),
                "--require".into(),
                "--profile".into(),
                config.into(),
                "--config".into(),
                file.into(),
                "--".into(),
            ];
            Launcher::new(words)
        });
        let (mut server, refresh) = self.name.start(&home, launcher, case.flushes);
        // Absorbs the cost of the start and of classes that are not yet compiled.
        server.put(32 * MIB);
        settle(self.disk.path())?;
        let done = AtomicBool::new(false);
        let sample = std::thread::scope(|scope| {
            let refreshes = refresh.map(|refresh| scope.spawn(|| refresh_until(refresh, &done)));
            let sample = self.put(server.as_mut());
            done.store(true, Ordering::Relaxed);
            let refreshes = refreshes
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            sample.map(|sample| Sample { refreshes: refreshes.unwrap_or_default(), ..sample })
        })?;
        drop(server);
        std::fs::remove_dir_all(&home).context("can't remove the server's files")?;
        settle(self.disk.path())?;
        Ok(sample)
    }

    fn put(&self, server: &mut dyn LoggedServer) -> Result<Sample> {
        let (began, mut took, mut bytes) = (Instant::now(), Vec::new(), 0);
        while began.elapsed() < self.length {
            let due = Duration::from_secs_f64(bytes as f64 / self.name.rate() as f64);
            self.stop.sleep(due.saturating_sub(began.elapsed()))?;
            bytes += server.put(self.name.at_once());
            took.push(began.elapsed().saturating_sub(due).as_secs_f64() * 1e6);
        }
        let rate = bytes as f64 / MIB as f64 / began.elapsed().as_secs_f64();
        Ok(Sample { puts: Latency::of_times(took), rate, ..Sample::default() })
    }
}

/// Refreshes once per second until `done` and returns the latencies.
fn refresh_until(refresh: impl Fn(), done: &AtomicBool) -> Latency {
    let mut took = Vec::new();
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        refresh();
        took.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Latency::of_times(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_a_profile_are_bulk_files_or_not() {
        let profile = "name = \"x\"\n[[log]]\nclass = \"wal\"\n[[file]]\nclass = \"data\"\nbulk = \"keep\"\nfiles = \"*.x\"\n";
        let with = with_bulk(profile, "y", true);
        assert_eq!(with, profile.replace("\"x\"\n[[log", "\"y\"\n[[log"));
        let without = with_bulk(profile, "y", false);
        assert_eq!(without, with.replace("bulk = \"keep\"\n", ""));
    }
}
