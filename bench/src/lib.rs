//! Side-by-side measurements of pagekeeper against its peers and its limits.
//!
//! Invariants: every subject of a case runs once in each round, in an order that is reshuffled;
//! results are checked while they are measured; a run undoes all its changes when it ends, also
//! after Ctrl-C. A quick run ends within 45 seconds on a machine with two free cores. Fails where a
//! subject fails or is wrong.

mod beside;
mod bulk;
mod clients;
mod close;
mod commit;
mod data;
mod drive;
mod goals;
mod guard;
mod hit;
mod latencies;
mod log;
mod machine;
mod map;
mod mariadb;
mod memory_group;
mod miss;
mod pattern;
mod peers;
mod recovery;
mod release;
mod report;
mod restart;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod rounds;
mod running;
mod scan;
mod scratch;
mod size;
mod slow_device;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stream;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use machine::MachineFacts;
use pagekeeper_text::shell_quoted;
use peers::InstalledProgram;
use report::Report;
use rounds::{MeasuredSamples, RoundPlan, SplitMix, SubjectTurn};
use scratch::{RunInterrupted, ScratchDirectory, StopRequest};

/// Measures pagekeeper side by side with its peers and its limits
#[derive(Debug, Parser)]
#[command(name = "pagekeeper-bench", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    bench: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Telling how much of files is resident: stat against vmtouch, fincore, pagers and plain
    /// mincore
    Scan(MeasureOptions),
    /// Releasing clean pages: evict and the library's call against the bare advice and vmtouch -e
    Release(MeasureOptions),
    /// MariaDB under sysbench with and without the guard, or another server under its client
    Guard {
        /// Another server, whose logs' residency, reads and rate are compared
        #[arg(long, value_enum, value_name = "NAME")]
        server: Option<guard::other::ServerName>,
        /// Partitions of Kafka's topic [default: 1]
        #[arg(long, value_name = "N", requires = "server")]
        partitions: Option<std::num::NonZeroU32>,
        /// MiB of a segment of Kafka's log [default: 16, 2 with more than one partition]
        #[arg(long, value_name = "MIB", requires = "server", value_parser = clap::value_parser!(u32).range(1..=2047))]
        segment: Option<u32>,
        /// Instead: what it costs beside that server, whose client puts so many MiB a second
        #[arg(long, value_name = "MIB", requires = "server")]
        rate: Option<std::num::NonZeroU32>,
        /// Instead: what it costs beside 10,000 log files in 2,000 directories
        #[arg(long, conflicts_with = "server")]
        many: bool,
        /// Transactions a second that MariaDB's clients begin, instead of all that it can take
        #[arg(long, value_name = "N", conflicts_with_all = ["server", "many"])]
        transactions: Option<std::num::NonZeroU32>,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// Reads of a cached file: the cache against pread, mmap, another cache and the limit
    Hit(MeasureOptions),
    /// Letting go of a file with many cached pages, while others read on
    Close(MeasureOptions),
    /// A cache of 90 % of the data against pread
    Miss(MeasureOptions),
    /// Durable commits of random pages: the page store against other stores and fio
    Commit(MeasureOptions),
    /// Records through the redo log and the binlog, against plain files, raft-engine, RocksDB's log
    /// and fio
    Log(MeasureOptions),
    /// Commits on a slow disk beside a stream that writes to it, under run and without; as root
    Beside {
        #[command(flatten)]
        choice: beside::BesideOptions,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// A database whose data just fits its memory cgroup, beside a backup's stream, under run and
    /// without; as root
    Stream {
        #[command(flatten)]
        choice: stream::StreamOptions,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// Puts into RocksDB while it writes tables to the same slow disk, under run and by itself; as
    /// root
    Bulk(MeasureOptions),
    /// Commits and reads of SQLite with pagekeeper's VFS, and with its own
    #[cfg(feature = "sqlite")]
    Sqlite(MeasureOptions),
    /// Predictions of `size` against the hit ratio that a load has with more and less memory; as root
    Size {
        #[command(flatten)]
        choice: size::SizeOptions,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// Opening a store after a kill on a slow but wide disk, against replay and other stores; as
    /// root
    Recovery(MeasureOptions),
    /// The start of a killed server on a slow but wide disk: plain, and with what it reads loaded
    /// ahead; as root
    Restart {
        #[command(flatten)]
        choice: restart::RestartOptions,
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// A disk that is slow but wide, until Ctrl-C; as root
    Slowdisk(pagekeeper_slow_disk::SlowDiskArguments),
    /// Reads or writes files at a rate
    #[command(hide = true)]
    StreamChild(stream::StreamChildArguments),
    /// Changes pages of a store until it is killed
    #[command(hide = true)]
    RecoveryChild(recovery::ChildArguments),
    /// Writes log files in many directories until it is killed
    #[command(hide = true)]
    GuardWriter(guard::WriterArguments),
    /// Opens something once, or makes what is to be opened
    #[command(hide = true)]
    OpeningChild(recovery::OpeningArguments),
}

/// The conditions of a run.
#[derive(Debug, Clone, clap::Args)]
struct MeasureOptions {
    /// Fewer cases and rounds: ends within 45 seconds (rocksdb, size: some minutes)
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Rounds that count [default: 5 with --quick, else 9]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Seed of the random choices [default: of the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Directory for temporary files; on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// The pagekeeper to measure [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    bin: Option<PathBuf>,
}

/// Returns the command that repeats a run of these arguments with the same choices.
fn command(given: impl Iterator<Item = OsString>, options: &MeasureOptions, seed: u64) -> String {
    let mut words = vec![OsString::from("pagekeeper-bench")];
    words.extend(given.filter(|word| word != "--json"));
    if options.seed.is_none() {
        words.extend(["--seed".into(), seed.to_string().into()]);
    }
    if !words.iter().any(|word| word == "--dir" || word.to_string_lossy().starts_with("--dir=")) {
        words.extend(["--dir".into(), options.dir.clone().into_os_string()]);
    }
    let quoted: Vec<String> = words.iter().map(|word| shell_quoted(word).to_string()).collect();
    quoted.join(" ")
}

/// A benchmark's run and its results so far.
struct BenchRun {
    quick: bool,
    rounds: usize,
    began: Instant,
    stop: StopRequest,
    random: SplitMix,
    scratch: ScratchDirectory,
    pagekeeper: InstalledProgram,
    report: Report,
}

impl BenchRun {
    fn new(bench: &'static str, options: &MeasureOptions) -> Result<Self> {
        if cfg!(debug_assertions) {
            bail!("this program was built without optimisation: add --release");
        }
        let began = Instant::now();
        let stop = StopRequest::on_signals()?;
        let clock = || {
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(1, |since| u64::from(since.subsec_nanos()) ^ since.as_secs())
        };
        let seed = options.seed.unwrap_or_else(clock);
        let pagekeeper = InstalledProgram::pagekeeper(options.bin.as_deref())?;
        let mut machine = MachineFacts::of(&options.dir);
        machine.versions.insert(pagekeeper.name.to_owned(), pagekeeper.version.clone());
        Ok(Self {
            quick: options.quick,
            rounds: usize::from(options.rounds.unwrap_or(if options.quick { 5 } else { 9 })),
            began,
            stop,
            random: SplitMix::new(seed),
            scratch: ScratchDirectory::new(&options.dir)?,
            pagekeeper,
            report: Report {
                bench,
                command: command(std::env::args_os().skip(1), options, seed),
                seed,
                machine,
                missing: Vec::new(),
                notes: Vec::new(),
                rows: Vec::new(),
                ratios: std::collections::BTreeMap::new(),
                ranges: std::collections::BTreeMap::new(),
            },
        })
    }

    /// Finds a peer and notes its version. Returns `None` and notes it as missing if it is not
    /// installed.
    fn peer(&mut self, name: &'static str) -> Option<InstalledProgram> {
        let found = InstalledProgram::find(name);
        match &found {
            Some(program) => {
                self.report.machine.versions.insert(name.to_owned(), program.version.clone());
            }
            None => self.report.add_missing(name),
        }
        found
    }

    /// Returns whether these programs are installed, and notes one that is missing.
    fn has(&mut self, needs: &[&'static str]) -> bool {
        let missing = needs.iter().find(|name| !InstalledProgram::is_installed(name));
        missing.map(|name| self.report.add_missing(name)).is_none()
    }

    /// Notes the version of a crate that was built in.
    fn note_version(&mut self, name: &'static str) {
        let mut lines =
            include_str!("../../Cargo.lock").lines().skip_while(|line| *line != format!("name = \"{name}\""));
        let version = lines.nth(1).and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
        self.report.machine.versions.insert(name.to_owned(), version.unwrap_or("unknown").to_owned());
    }

    /// Adds a note for readers, unless it is there already.
    fn note(&mut self, text: &str) {
        if !self.report.notes.iter().any(|note| note == text) {
            self.report.notes.push(text.to_owned());
        }
    }

    /// Prints the next step to standard error.
    fn say(&self, text: &str) -> Result<()> {
        eprintln!("{:>5.1} s  {text}", self.began.elapsed().as_secs_f64());
        self.stop.check()
    }

    /// Returns the rounds of a case; a quick run begins no round that would end after its second
    /// `quick_end`.
    ///
    /// One more, uncounted round runs first.
    fn plan(&self, quick_end: u64) -> RoundPlan {
        let until = self.quick.then(|| self.began + Duration::from_secs(quick_end));
        RoundPlan { rounds: self.rounds, until, warm_up: true }
    }

    /// Runs the named subjects in turn; `sample` takes a sample of several figures.
    fn measure<S>(
        &mut self,
        names: &[&'static str],
        plan: RoundPlan,
        sample: impl FnMut(SubjectTurn) -> Result<S>,
    ) -> Result<MeasuredSamples<S>> {
        rounds::measure(names, plan, &mut self.random, &self.stop, sample)
    }
}

/// Runs the benchmark of the command line.
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.bench {
        BenchCommand::Scan(options) => bench("scan", &options, scan::run),
        BenchCommand::Release(options) => bench("release", &options, release::run),
        BenchCommand::Guard { many: true, options, .. } => bench("guard", &options, guard::run_many),
        BenchCommand::Guard { server: None, transactions, options, .. } => {
            bench("guard", &options, |run| guard::run(run, options.rounds, transactions))
        }
        BenchCommand::Guard { server: Some(server), partitions, segment, rate, options, .. } => {
            let topic = guard::other::KafkaTopic { partitions, segment };
            bench("guard", &options, |run| guard::other::run(run, server, &topic, rate))
        }
        BenchCommand::Hit(options) => bench("hit", &options, hit::run),
        BenchCommand::Close(options) => bench("close", &options, close::run),
        BenchCommand::Commit(options) => bench("commit", &options, commit::run),
        BenchCommand::Log(options) => bench("log", &options, log::run),
        BenchCommand::Miss(options) => bench("miss", &options, miss::run),
        BenchCommand::Beside { choice, options } => {
            bench("beside", &options, |run| beside::run(run, &choice, options.rounds))
        }
        BenchCommand::Stream { choice, options } => {
            bench("stream", &options, |run| stream::run(run, &choice))
        }
        BenchCommand::StreamChild(arguments) => stream::be_a_stream(&arguments),
        BenchCommand::Bulk(options) => bench("bulk", &options, |run| bulk::run(run, options.rounds)),
        #[cfg(feature = "sqlite")]
        BenchCommand::Sqlite(options) => bench("sqlite", &options, sqlite::run),
        BenchCommand::Size { choice, options } => bench("size", &options, |run| size::run(run, &choice)),
        BenchCommand::Recovery(options) => bench("recovery", &options, recovery::run),
        BenchCommand::Restart { choice, options } => {
            bench("restart", &options, |run| restart::run(run, &choice))
        }
        BenchCommand::RecoveryChild(arguments) => recovery::be_killed(&arguments),
        BenchCommand::OpeningChild(arguments) => recovery::open_once(&arguments),
        BenchCommand::GuardWriter(arguments) => guard::write_logs(&arguments),
        BenchCommand::Slowdisk(arguments) => pagekeeper_slow_disk::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<RunInterrupted>() => ExitCode::from(130),
        Err(error) => {
            eprintln!("pagekeeper-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(
    name: &'static str,
    options: &MeasureOptions,
    measure: impl FnOnce(&mut BenchRun) -> Result<()>,
) -> Result<()> {
    let mut run = BenchRun::new(name, options)?;
    measure(&mut run)?;
    let report = &run.report;
    if options.json {
        println!("{}", serde_json::to_string(&report.with_goals())?);
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_sound_and_repeat_themselves() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        let repeated = |given: &[&str]| {
            let BenchCommand::Stream { options, .. } =
                Cli::parse_from([&["pagekeeper-bench"], given].concat()).bench
            else {
                panic!("not stream");
            };
            command(given.iter().map(OsString::from), &options, 5)
        };
        let given = ["stream", "--server", "myrocks", "--json", "--rounds", "3"];
        let once = repeated(&given);
        assert_eq!(once, "pagekeeper-bench stream --server myrocks --rounds 3 --seed 5 --dir /var/tmp");
        let again: Vec<&str> = once.split(' ').skip(1).collect();
        assert_eq!(repeated(&again), once);
        let other = repeated(&["stream", "--seed=9", "--dir", "/a b"]);
        assert_eq!(other, "pagekeeper-bench stream --seed=9 --dir '/a b'");
    }
}
