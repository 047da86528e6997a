//! `guard`: the guard's cost and benefit for a database: MariaDB under sysbench, in alternating
//! windows with the guard, without it, and with the [least work](least) that a guard could do, on
//! one server under one continuous load.
//!
//! Before each window without the guard the log files are read back in, as they would be on a
//! server that never had a guard. The guard's window begins from that state, so its account
//! includes its first release. The guard watches this server alone. The server counts queries,
//! residency is that of the redo log and all binlogs at a window's end, and a [separate
//! client](crate::clients) times commits.

mod directories;
mod least;
pub(crate) mod other;
mod processor_time;
mod watcher;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::BenchRun;
use crate::clients;
use crate::data::{GIB, MIB, open, read_through, resident};
use crate::drive::join;
use crate::latencies::Latencies;
use crate::mariadb::{self, MariaDbServer, REQUIRED_PROGRAMS, SysbenchLoad};
use crate::peers::InstalledProgram;
use crate::report::FigureUnit;
use crate::rounds::{MeasuredSamples, RoundPlan, SubjectSamples, median};
use crate::scratch::StopRequest;
pub(crate) use directories::{WriterArguments, write_logs};
use least::LeastGuard;
pub(crate) use processor_time::cpu_seconds;
use watcher::{GuardUsage, RunningGuard};

const WITH_GUARD_NAME: &str = "with the guard";
const WITHOUT_GUARD_NAME: &str = "without";
const LEAST_WORK_NAME: &str = "the least work";
const AFTER_START_NAME: &str = "after its start";
const GUARD_SUBJECTS: [&str; 3] = [WITH_GUARD_NAME, WITHOUT_GUARD_NAME, LEAST_WORK_NAME];

/// Binlogs at the start of a window, at most. They make a GiB, which is far less than servers
/// usually keep.
const KEPT_BINLOGS_MAX: u64 = GIB / mariadb::BINLOG_BYTES;

/// The lengths of a run's parts.
#[derive(Debug, Clone, Copy)]
struct RunLengths {
    /// The load alone, before the first window, to create logs.
    history: Duration,
    /// From a change to the start of the count.
    settle: Duration,
    /// The count.
    window: Duration,
}

/// Default number of pairs in a quick run.
const QUICK_ROUNDS: u16 = 3;

/// Runs only the case with very many log files, which needs no `MariaDB`.
pub(crate) fn run_many(run: &mut BenchRun) -> Result<()> {
    directories::run(run)
}

/// Runs the benchmark; `rounds` and `transactions` per second come from the command line.
pub(crate) fn run(run: &mut BenchRun, rounds: Option<u16>, transactions: Option<NonZeroU32>) -> Result<()> {
    if run.quick {
        run.rounds = usize::from(rounds.unwrap_or(QUICK_ROUNDS));
    }
    let lengths = if run.quick {
        RunLengths {
            history: Duration::from_secs(2),
            settle: Duration::from_millis(500),
            window: Duration::from_secs(3),
        }
    } else {
        RunLengths {
            history: Duration::from_secs(15),
            settle: Duration::from_secs(3),
            window: Duration::from_secs(12),
        }
    };
    run.note("one server under one load throughout; windows with and without the guard in turn");
    run.note("before a window at most 1 GiB of binlogs is kept; before one without the guard all logs are read back in, as on a server that never had it");
    let has_helpers = run.has(&REQUIRED_PROGRAMS);
    let (Some(mariadbd), Some(_), true) = (run.peer("mariadbd"), run.peer("sysbench"), has_helpers) else {
        bail!("not installed: {}; `make bench-setup` installs it", run.report.missing.join(", "));
    };
    windows(run, &mariadbd, lengths, transactions)?;
    if transactions.is_some() || run.quick {
        return Ok(());
    }
    run_many(run)
}

/// The figures of a window.
#[derive(Debug, Clone)]
struct WindowSample {
    /// Queries per second.
    queries: f64,
    commits: Latencies,
    /// Resident bytes of all logs, at the end.
    resident_mib: f64,
    /// Processor time of the releasing process within the count, in percent of a core, without its
    /// start and first release; 0 if there is no such process.
    settled_percent: f64,
    /// The guard's own account.
    used: Option<GuardUsage>,
}

/// The surroundings of the windows.
struct WindowSetup<'a> {
    server: MariaDbServer,
    load: SysbenchLoad,
    pagekeeper: InstalledProgram,
    stop: &'a StopRequest,
    lengths: RunLengths,
}

fn windows(
    run: &mut BenchRun,
    mariadbd: &InstalledProgram,
    lengths: RunLengths,
    transactions: Option<NonZeroU32>,
) -> Result<()> {
    run.say("a MariaDB server")?;
    let server = MariaDbServer::with_logs(mariadbd, run.scratch.path(), &run.stop)?;
    server.prepare()?;
    server.prepare_committer()?;
    let (load, stop) = (server.load(transactions)?, run.stop.clone());
    let mut bench = WindowSetup { server, load, pagekeeper: run.pagekeeper.clone(), stop: &stop, lengths };
    run.say("logs to begin with")?;
    run.stop.sleep(lengths.history)?;

    run.say("windows with and without the guard")?;
    // The load has run for a while, so no uncounted round is needed.
    let plan = RoundPlan { rounds: run.rounds, until: None, warm_up: false };
    let measured = run.measure(&GUARD_SUBJECTS, plan, |turn| match GUARD_SUBJECTS[turn.subject] {
        WITHOUT_GUARD_NAME => bench.alone(),
        LEAST_WORK_NAME => bench.beside_least(),
        _ => bench.guarded(),
    })?;
    report(run, &measured, transactions.is_none());
    Ok(())
}

impl WindowSetup<'_> {
    fn guarded(&mut self) -> Result<WindowSample> {
        self.server.purge(KEPT_BINLOGS_MAX)?;
        let guard = RunningGuard::start(&self.pagekeeper, &["--pid", &self.server.pid().to_string()])?;
        let window = self.window(|| cpu_seconds(guard.pid()))?;
        Ok(WindowSample { used: Some(guard.stop()?), ..window })
    }

    fn alone(&mut self) -> Result<WindowSample> {
        self.server.purge(KEPT_BINLOGS_MAX)?;
        read_logs(&self.server)?;
        self.window(|| Ok(0.0))
    }

    fn beside_least(&mut self) -> Result<WindowSample> {
        self.server.purge(KEPT_BINLOGS_MAX)?;
        let least = LeastGuard::start(self.server.logs()?)?;
        let window = self.window(|| Ok(least.used().as_secs_f64()))?;
        least.stop()?;
        Ok(window)
    }

    /// Measures a window; `used` returns the processor time so far of whoever releases pages, in
    /// seconds.
    fn window(&mut self, used: impl Fn() -> Result<f64>) -> Result<WindowSample> {
        self.stop.sleep(self.lengths.settle)?;
        let (before, began) = (used()?, Instant::now());
        let over = AtomicBool::new(false);
        let (queries, commits) = std::thread::scope(|scope| -> Result<_> {
            let commit = || {
                let client = clients::of_row(self.server.committer(), 1)?;
                clients::commit_until(&over, vec![client], Duration::ZERO, began)
            };
            let commits = scope.spawn(commit);
            let queries = self.queries();
            over.store(true, Ordering::Relaxed);
            let commits = join(commits)?;
            Ok((queries?, commits.iter().map(|commit| commit.took).collect()))
        })?;
        self.load.check()?;
        let settled_percent = (used()? - before) / began.elapsed().as_secs_f64() * 100.0;
        Ok(WindowSample {
            queries,
            commits,
            resident_mib: resident_mib(&self.server)?,
            settled_percent,
            used: None,
        })
    }

    /// Returns queries per second within a window.
    fn queries(&self) -> Result<f64> {
        let (first, counted_from) = self.server.questions()?;
        self.stop.sleep(self.lengths.window)?;
        let (last, counted_to) = self.server.questions()?;
        Ok((last - first) / (counted_to - counted_from).as_secs_f64())
    }
}

fn resident_mib(server: &MariaDbServer) -> Result<f64> {
    let bytes = server.logs()?.iter().try_fold(0, |sum, path| resident(path).map(|bytes| sum + bytes))?;
    Ok(bytes as f64 / MIB as f64)
}

/// Makes all pages of the logs resident.
fn read_logs(server: &MariaDbServer) -> Result<()> {
    for path in server.logs()? {
        let file = open(&path)?;
        read_through(&file, 0..file.size())?;
    }
    Ok(())
}

/// Reports the figures. Queries are compared unless the load had a rate of its own.
fn report(run: &mut BenchRun, measured: &MeasuredSamples<WindowSample>, are_compared: bool) {
    let report = &mut run.report;
    let queries = measured.figure(|window| window.queries);
    report.add_case("queries of sysbench oltp_read_write", FigureUnit::QueriesPerSecond, &queries);
    if are_compared {
        report.add_ratio(
            "guard_qps",
            FigureUnit::QueriesPerSecond,
            &queries,
            WITH_GUARD_NAME,
            WITHOUT_GUARD_NAME,
        );
    }
    let commits = measured.figure(|window| window.commits.us(99.0));
    report.add_case(
        "commits of one row by a client beside the load: p99",
        FigureUnit::Microseconds,
        &commits,
    );
    report.add_ratio(
        "guard_commit_p99",
        FigureUnit::Microseconds,
        &commits,
        WITH_GUARD_NAME,
        WITHOUT_GUARD_NAME,
    );
    let resident = measured.figure(|window| window.resident_mib);
    report.add_case("log files in the page cache at a window's end", FigureUnit::Mib, &resident);
    let guarded = measured.of(WITH_GUARD_NAME);
    let of = |subject, windows: &[WindowSample], of: fn(&WindowSample) -> f64| SubjectSamples {
        subject,
        values: windows.iter().map(of).collect(),
    };
    let percent = |window: &WindowSample| window.used.map_or(0.0, |used| used.cpu_percent);
    let memory = |window: &WindowSample| window.used.map_or(0.0, |used| used.memory_bytes / MIB as f64);
    let cpu = [
        of(AFTER_START_NAME, guarded, |window| window.settled_percent),
        of(LEAST_WORK_NAME, measured.of(LEAST_WORK_NAME), |window| window.settled_percent),
        of("with its start", guarded, percent),
    ];
    report.add_case("the guard's CPU beside the database", FigureUnit::PercentOfCore, &cpu);
    report.add_ratio(
        "guard_cpu_vs_least",
        FigureUnit::PercentOfCore,
        &cpu,
        AFTER_START_NAME,
        LEAST_WORK_NAME,
    );
    for (name, samples) in [("guard_settled_cpu_percent", &cpu[0]), ("guard_cpu_percent", &cpu[2])] {
        report.ratios.extend(median(&samples.values).map(|percent| (name, percent)));
    }
    let memory = [of("the guard itself", guarded, memory)];
    report.add_case("the guard's memory beside the database", FigureUnit::Mib, &memory);
}
