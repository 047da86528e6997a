//! Side-by-side measurements of pagekeeper against its peers and its limits.
//!
//! Invariants: every subject of a case runs once in each round, in an order that is shuffled anew; results are checked
//! while they are measured; a run undoes all its changes when it ends, also after Ctrl-C. A quick run ends within 45
//! seconds on a machine with two free cores. Fails where a subject fails or is wrong.

mod beside;
mod bulk;
mod close;
mod commit;
mod data;
mod db_bench;
mod drive;
mod follow;
mod gauges;
mod goals;
mod guard;
mod hit;
mod hitratio;
mod image;
mod log;
mod machine;
mod miss;
mod mixed;
mod pattern;
mod peers;
mod plot;
mod preload;
mod pressure;
mod recovery;
mod release;
mod report;
mod rocksdb;
mod rounds;
mod running;
mod scan;
mod scratch;
pub mod slowdisk;
mod speedtest1;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stall;
mod stream;
mod trace;
mod warm;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use pagekeeper_kernel::text::shell_quoted;

use machine::Machine;
use peers::Program;
use report::Report;
use rounds::{Plan, Random, Samples, Subject};
use scratch::{Interrupted, Scratch, Stop};

/// Measures pagekeeper side by side with its peers and its limits
#[derive(Debug, Parser)]
#[command(name = "pagekeeper-bench", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Telling how much of files is resident: stat against vmtouch, fincore, pagers and plain mincore
    Scan(Options),
    /// Releasing clean pages: evict and the library's call against the bare advice and vmtouch -e
    Release(Options),
    /// Loading a cold file, and restoring scattered pages, against vmtouch -t, pread and fio
    Warm(Options),
    /// MariaDB under sysbench with and without the guard, or another server under its client
    Guard {
        /// Another server, whose logs' residency, reads and rate are compared
        #[arg(long, value_enum, value_name = "NAME")]
        server: Option<guard::other::Name>,
        /// Partitions of Kafka's topic [default: 1]
        #[arg(long, value_name = "N", requires = "server")]
        partitions: Option<std::num::NonZeroU32>,
        /// MiB of a segment of Kafka's log [default: 16, 2 with more than one partition]
        #[arg(long, value_name = "MIB", requires = "server", value_parser = clap::value_parser!(u32).range(1..=2047))]
        segment: Option<u32>,
        /// Instead: what it costs beside that server, whose client puts so many MiB a second
        #[arg(long, value_name = "MIB", requires = "server")]
        rate: Option<std::num::NonZeroU32>,
        /// Instead: what it costs beside 10,000 log files, in one directory and in 2,000
        #[arg(long, conflicts_with = "server")]
        many: bool,
        /// Transactions a second that MariaDB's clients begin, instead of all that it can take
        #[arg(long, value_name = "N", conflicts_with_all = ["server", "many"])]
        transactions: Option<std::num::NonZeroU32>,
        #[command(flatten)]
        options: Options,
    },
    /// Reads of a cached file: the cache against pread, mmap, other caches and the limit
    Hit(Options),
    /// Letting go of a file with many cached pages, while others read on
    Close(Options),
    /// Reads of a trace that are hits: the cache against simulated LRU, CLOCK, SIEVE, S3-FIFO and ARC
    Hitratio {
        /// Traces to read, plain or zstd: a line for each request, first block and number of blocks
        #[arg(value_name = "TRACE")]
        traces: Vec<PathBuf>,
        #[command(flatten)]
        options: Options,
    },
    /// Cold direct reads against fio at the same depth, and a cache of 90 % of the data against pread
    Miss(Options),
    /// Direct I/O while others use the file's page cache, on ext4, XFS and btrfs; as root
    Mixed(Options),
    /// Durable commits of random pages: the page store against other stores and fio
    Commit(Options),
    /// Read transactions of random pages: the page store against other stores
    Read(Options),
    /// Commits of random pages for minutes over data of many times the memory: latency, journal and memory over time
    Sustained {
        /// How long [with --quick: half a minute at most]
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        minutes: u64,
        #[command(flatten)]
        options: Options,
    },
    /// A binlog with a near follower and one ten segments behind: reads of the device, and residency
    Follow(Options),
    /// Records through the redo log and the binlog, against plain files, raft-engine, RocksDB's log and fio
    Log(Options),
    /// Reads of four times the memory of a cgroup, against mmap and pread, and what a bystander feels; as root
    Pressure(Options),
    /// Small appends to a log beside a bulk writer on one slow disk, in each of its modes; as root
    Stall {
        /// File system of the slow disk
        #[arg(long, value_enum, default_value = "xfs")]
        fs: stall::Kind,
        #[command(flatten)]
        options: Options,
    },
    /// Commits of a synced log beside a copy to the same slow disk, under run and without; as root
    Beside(Options),
    /// A database whose data just fits its memory cgroup, beside a backup's stream, under run and without; as root
    Stream {
        #[command(flatten)]
        choice: stream::Choice,
        #[command(flatten)]
        options: Options,
    },
    /// Puts into RocksDB, or into another server, while it writes tables to the same slow disk, under run and by itself; as root
    Bulk {
        /// Another server, with its tables as bulk files and without
        #[arg(long, value_enum, value_name = "NAME")]
        server: Option<bulk::server::Name>,
        #[command(flatten)]
        options: Options,
    },
    /// Gets of RocksDB with pagekeeper's page cache, the kernel's, and RocksDB's block caches, in the same memory; as root
    Rocksdb {
        #[command(flatten)]
        choice: rocksdb::Choice,
        #[command(flatten)]
        options: Options,
    },
    /// Commits, reads and openings of SQLite with pagekeeper's VFS, and with its own
    #[cfg(feature = "sqlite")]
    Sqlite(Options),
    /// SQLite's own speedtest1 with pagekeeper's VFS as the default one, and with its own
    Speedtest1(Options),
    /// What run adds to calls that no rule concerns, to the start of a process, and to a stream's read
    #[command(alias = "shim")]
    Preload(Options),
    /// What tracing costs page-cache adds, and a MariaDB under sysbench; as root
    Trace(Options),
    /// Opening a store after a kill on a slow but wide disk, against replay and other stores; as root
    Recovery {
        /// Put an XFS on the slow disk
        #[arg(long)]
        xfs: bool,
        #[command(flatten)]
        options: Options,
    },
    /// A disk that is slow but wide, until Ctrl-C; as root
    Slowdisk(slowdisk::Arguments),
    /// Reads extents of PATH one after the other
    #[command(hide = true)]
    Pread {
        /// File.
        path: PathBuf,
        /// A line "OFFSET LENGTH" in bytes for each extent.
        list: PathBuf,
    },
    /// Reads inside a cgroup
    #[command(hide = true)]
    PressureReader(pressure::ReaderArguments),
    /// Reads or writes files at a rate
    #[command(hide = true)]
    StreamChild(stream::ChildArguments),
    /// Makes calls in a loop
    #[command(hide = true)]
    PreloadChild(preload::ChildArguments),
    /// Changes pages of a store until it is killed
    #[command(hide = true)]
    RecoveryChild(recovery::ChildArguments),
    /// Writes log files in many directories until it is killed
    #[command(hide = true)]
    GuardWriter(guard::WriterArguments),
    /// Opens something once, or makes what is to be opened
    #[command(hide = true)]
    OpeningChild(recovery::OpeningArguments),
    /// Changes rows of a database until it is killed
    #[cfg(feature = "sqlite")]
    #[command(hide = true)]
    SqliteChild(sqlite::ChildArguments),
    /// Takes memory inside a cgroup
    #[command(hide = true)]
    PressureBystander(pressure::BystanderArguments),
}

/// How to measure.
#[derive(Debug, Clone, clap::Args)]
struct Options {
    /// Fewer cases and rounds: ends within 45 seconds (rocksdb: some minutes)
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Rounds that count [default: 5 with --quick, else 9]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Draw the figures, too
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Seed of the random choices [default: of the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Where to put files meanwhile; on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// The pagekeeper to measure [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    bin: Option<PathBuf>,
}

/// Returns the command that repeats a run of these arguments with the same choices.
fn command(given: impl Iterator<Item = OsString>, options: &Options, seed: u64) -> String {
    let mut words = vec![OsString::from("pagekeeper-bench")];
    let mut is_plot = false;
    let mut given = given.peekable();
    while let Some(word) = given.next_if(|word| word != "--") {
        let text = word.to_string_lossy();
        if std::mem::take(&mut is_plot) || text == "--json" || text.starts_with("--plot=") {
            continue;
        }
        is_plot = text == "--plot";
        if !is_plot {
            words.push(word);
        }
    }
    if options.seed.is_none() {
        words.extend(["--seed".into(), seed.to_string().into()]);
    }
    if !words.iter().any(|word| word == "--dir" || word.to_string_lossy().starts_with("--dir=")) {
        words.extend(["--dir".into(), options.dir.clone().into_os_string()]);
    }
    // Arguments behind `--` are not options.
    words.extend(given);
    let quoted: Vec<String> = words.iter().map(|word| shell_quoted(word).to_string()).collect();
    quoted.join(" ")
}

/// A benchmark's run and its results so far.
struct Run {
    quick: bool,
    rounds: usize,
    began: Instant,
    stop: Stop,
    random: Random,
    scratch: Scratch,
    pagekeeper: Program,
    report: Report,
}

impl Run {
    fn new(bench: &'static str, options: &Options) -> Result<Self> {
        if cfg!(debug_assertions) {
            bail!("this program was built without optimisation: add --release");
        }
        let began = Instant::now();
        let stop = Stop::on_signals()?;
        let clock = || {
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(1, |since| u64::from(since.subsec_nanos()) ^ since.as_secs())
        };
        let seed = options.seed.unwrap_or_else(clock);
        let pagekeeper = Program::pagekeeper(options.bin.as_deref())?;
        let mut machine = Machine::of(&options.dir);
        machine.versions.insert(pagekeeper.name.to_owned(), pagekeeper.version.clone());
        Ok(Self {
            quick: options.quick,
            rounds: usize::from(options.rounds.unwrap_or(if options.quick { 5 } else { 9 })),
            began,
            stop,
            random: Random::new(seed),
            scratch: Scratch::new(&options.dir)?,
            pagekeeper,
            report: Report {
                bench,
                command: command(std::env::args_os().skip(1), options, seed),
                seed,
                machine,
                missing: Vec::new(),
                notes: Vec::new(),
                rows: Vec::new(),
                curves: Vec::new(),
                ratios: std::collections::BTreeMap::new(),
                ranges: std::collections::BTreeMap::new(),
            },
        })
    }

    /// Finds a peer and notes its version. Returns `None` and notes it as missing if it is not installed.
    fn peer(&mut self, name: &'static str) -> Option<Program> {
        let found = Program::find(name);
        match &found {
            Some(program) => {
                self.report.machine.versions.insert(name.to_owned(), program.version.clone());
            }
            None => self.report.add_missing(name),
        }
        found
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

    /// Runs the subjects in turn; a quick run begins no round that would end after its second `quick_end`.
    ///
    /// One more, uncounted round runs first.
    fn rounds(&mut self, subjects: &mut [Subject<'_>], quick_end: u64) -> Result<Vec<Samples>> {
        let until = self.quick.then(|| self.began + Duration::from_secs(quick_end));
        let plan = Plan { rounds: self.rounds, until, warm_up: true };
        rounds::run(subjects, plan, &mut self.random, &self.stop)
    }
}

/// Runs the benchmark of the command line.
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.bench {
        Bench::Scan(options) => bench("scan", &options, scan::run),
        Bench::Release(options) => bench("release", &options, release::run),
        Bench::Warm(options) => bench("warm", &options, warm::run),
        Bench::Guard { many: true, options, .. } => bench("guard", &options, guard::run_many),
        Bench::Guard { server: None, transactions, options, .. } => {
            bench("guard", &options, |run| guard::run(run, options.rounds, transactions))
        }
        Bench::Guard { server: Some(server), partitions, segment, rate, options, .. } => {
            let topic = guard::other::Topic { partitions, segment };
            bench("guard", &options, |run| guard::other::run(run, server, &topic, rate))
        }
        Bench::Hit(options) => bench("hit", &options, hit::run),
        Bench::Close(options) => bench("close", &options, close::run),
        Bench::Hitratio { traces, options } => bench("hitratio", &options, |run| hitratio::run(run, &traces)),
        Bench::Commit(options) => bench("commit", &options, commit::run),
        Bench::Read(options) => bench("read", &options, commit::read::run),
        Bench::Sustained { minutes, options } => {
            bench("sustained", &options, |run| commit::sustained::run(run, minutes))
        }
        Bench::Follow(options) => bench("follow", &options, follow::run),
        Bench::Log(options) => bench("log", &options, log::run),
        Bench::Miss(options) => bench("miss", &options, miss::run),
        Bench::Mixed(options) => bench("mixed", &options, mixed::run),
        Bench::Pressure(options) => bench("pressure", &options, pressure::run),
        Bench::Stall { fs, options } => bench("stall", &options, |run| stall::run(run, fs)),
        Bench::Beside(options) => bench("beside", &options, |run| beside::run(run, options.rounds)),
        Bench::Stream { choice, options } => bench("stream", &options, |run| stream::run(run, &choice)),
        Bench::StreamChild(arguments) => stream::be_a_stream(&arguments),
        Bench::Bulk { server, options } => {
            bench("bulk", &options, |run| bulk::run(run, server, options.rounds))
        }
        Bench::Rocksdb { choice, options } => {
            bench("rocksdb", &options, |run| rocksdb::run(run, &choice, options.rounds))
        }
        #[cfg(feature = "sqlite")]
        Bench::Sqlite(options) => bench("sqlite", &options, sqlite::run),
        #[cfg(feature = "sqlite")]
        Bench::SqliteChild(arguments) => sqlite::be_killed(&arguments),
        Bench::Speedtest1(options) => {
            bench("speedtest1", &options, |run| speedtest1::run(run, options.rounds))
        }
        Bench::Preload(options) => bench("preload", &options, |run| preload::run(run, options.rounds)),
        Bench::PreloadChild(arguments) => preload::be_timed(&arguments),
        Bench::Trace(options) => bench("trace", &options, trace::run),
        Bench::Recovery { xfs, options } => bench("recovery", &options, |run| recovery::run(run, xfs)),
        Bench::RecoveryChild(arguments) => recovery::be_killed(&arguments),
        Bench::OpeningChild(arguments) => recovery::open_once(&arguments),
        Bench::GuardWriter(arguments) => guard::write_logs(&arguments),
        Bench::Slowdisk(arguments) => slowdisk::run(&arguments),
        Bench::Pread { path, list } => warm::pread(&path, &list),
        Bench::PressureReader(arguments) => pressure::read(&arguments),
        Bench::PressureBystander(arguments) => pressure::take_memory(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(130),
        Err(error) => {
            eprintln!("pagekeeper-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(name: &'static str, options: &Options, measure: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
    let mut run = Run::new(name, options)?;
    measure(&mut run)?;
    let report = &run.report;
    if let Some(path) = &options.plot {
        std::fs::write(path, plot::svg(report)).with_context(|| format!("can't write {}", path.display()))?;
    }
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
            let Bench::Stream { options, .. } =
                Cli::parse_from([&["pagekeeper-bench"], given].concat()).bench
            else {
                panic!("not stream");
            };
            command(given.iter().map(OsString::from), &options, 5)
        };
        let given = ["stream", "--server", "myrocks", "--json", "--rounds", "3", "--plot", "a.svg"];
        let once = repeated(&given);
        assert_eq!(once, "pagekeeper-bench stream --server myrocks --rounds 3 --seed 5 --dir /var/tmp");
        let again: Vec<&str> = once.split(' ').skip(1).collect();
        assert_eq!(repeated(&again), once);
        let other = repeated(&["stream", "--plot=a.svg", "--seed=9", "--dir", "/a b"]);
        assert_eq!(other, "pagekeeper-bench stream --seed=9 --dir '/a b'");
        let Bench::Scan(options) = Cli::parse_from(["pagekeeper-bench", "scan"]).bench else {
            panic!("not scan");
        };
        let traces = ["hitratio", "--quick", "--", "--json"].map(OsString::from);
        let command = command(traces.into_iter(), &options, 5);
        assert_eq!(command, "pagekeeper-bench hitratio --quick --seed 5 --dir /var/tmp -- --json");
    }
}
