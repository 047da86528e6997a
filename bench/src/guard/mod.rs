//! `guard`: the guard's cost and benefit for a database: MariaDB under sysbench, in alternating windows with the guard,
//! without it, and with the [least work](least) that a guard could do, on one server under one continuous load.
//!
//! Before each window without the guard the log files are read back in, as they would be on a server that never had a
//! guard. The guard's window begins from that state, so its account includes its first release. The guard watches this
//! server alone. The server counts queries, residency is that of the redo log and all binlogs at a window's end, and a
//! [separate client](crate::clients) times commits.

mod directories;
mod least;
pub(crate) mod other;
mod processor_time;
mod watcher;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::Run;
use crate::clients;
use crate::data::{GIB, MIB, open, read_through, resident};
use crate::drive::join;
use crate::latencies::Latencies;
use crate::mariadb::{self, HELPERS, Load, Server};
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::{Measured, Plan, Samples, median};
use crate::scratch::Stop;
pub(crate) use directories::{Arguments as WriterArguments, write_logs};
use least::Least;
pub(crate) use processor_time::cpu_seconds;
use watcher::{Used, Watcher};

const WITH: &str = "with the guard";
const WITHOUT: &str = "without";
const LEAST: &str = "the least work";
const SETTLED: &str = "after its start";
const SUBJECTS: [&str; 3] = [WITH, WITHOUT, LEAST];

/// Binlogs at the start of a window, at most. They make a GiB, which is far less than servers usually keep.
const KEPT_BINLOGS: u64 = GIB / mariadb::BINLOG_BYTES;

/// The lengths of a run's parts.
#[derive(Debug, Clone, Copy)]
struct Lengths {
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
pub(crate) fn run_many(run: &mut Run) -> Result<()> {
    directories::run(run)
}

/// Runs the benchmark; `rounds` and `transactions` per second come from the command line.
pub(crate) fn run(run: &mut Run, rounds: Option<u16>, transactions: Option<NonZeroU32>) -> Result<()> {
    if run.quick {
        run.rounds = usize::from(rounds.unwrap_or(QUICK_ROUNDS));
    }
    let lengths = if run.quick {
        Lengths {
            history: Duration::from_secs(2),
            settle: Duration::from_millis(500),
            window: Duration::from_secs(3),
        }
    } else {
        Lengths {
            history: Duration::from_secs(15),
            settle: Duration::from_secs(3),
            window: Duration::from_secs(12),
        }
    };
    run.note("one server under one load throughout; windows with and without the guard in turn");
    run.note("before a window at most 1 GiB of binlogs is kept; before one without the guard all logs are read back in, as on a server that never had it");
    let has_helpers = run.has(&HELPERS);
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
struct Window {
    /// Queries per second.
    queries: f64,
    commits: Latencies,
    /// Of all logs, at the end.
    resident_mib: f64,
    /// Processor time within the count, without the start and the first release of whoever releases; 0 without.
    settled_percent: f64,
    /// The guard's own account.
    used: Option<Used>,
}

/// The surroundings of the windows.
struct Bench<'a> {
    server: Server,
    load: Load,
    pagekeeper: Program,
    stop: &'a Stop,
    lengths: Lengths,
}

fn windows(
    run: &mut Run,
    mariadbd: &Program,
    lengths: Lengths,
    transactions: Option<NonZeroU32>,
) -> Result<()> {
    run.say("a MariaDB server")?;
    let server = Server::with_logs(mariadbd, run.scratch.path(), &run.stop)?;
    server.prepare()?;
    server.prepare_committer()?;
    let (load, stop) = (server.load(transactions)?, run.stop.clone());
    let mut bench = Bench { server, load, pagekeeper: run.pagekeeper.clone(), stop: &stop, lengths };
    run.say("logs to begin with")?;
    run.stop.sleep(lengths.history)?;

    run.say("windows with and without the guard")?;
    // The load has run for a while, so no uncounted round is needed.
    let plan = Plan { rounds: run.rounds, until: None, warm_up: false };
    let measured = run.measure(&SUBJECTS, plan, |turn| match SUBJECTS[turn.subject] {
        WITHOUT => bench.alone(),
        LEAST => bench.beside_least(),
        _ => bench.guarded(),
    })?;
    report(run, &measured, transactions.is_none());
    Ok(())
}

impl Bench<'_> {
    fn guarded(&mut self) -> Result<Window> {
        self.server.purge(KEPT_BINLOGS)?;
        let guard = Watcher::start(&self.pagekeeper, &["--pid", &self.server.pid().to_string()])?;
        let window = self.window(|| cpu_seconds(guard.pid()))?;
        Ok(Window { used: Some(guard.stop()?), ..window })
    }

    fn alone(&mut self) -> Result<Window> {
        self.server.purge(KEPT_BINLOGS)?;
        read_logs(&self.server)?;
        self.window(|| Ok(0.0))
    }

    fn beside_least(&mut self) -> Result<Window> {
        self.server.purge(KEPT_BINLOGS)?;
        let least = Least::start(self.server.logs()?)?;
        let window = self.window(|| Ok(least.used().as_secs_f64()))?;
        least.stop()?;
        Ok(window)
    }

    /// Measures a window; `used` returns the processor time so far of whoever releases pages, in seconds.
    fn window(&mut self, used: impl Fn() -> Result<f64>) -> Result<Window> {
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
        Ok(Window {
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

fn resident_mib(server: &Server) -> Result<f64> {
    let bytes = server.logs()?.iter().try_fold(0, |sum, path| resident(path).map(|bytes| sum + bytes))?;
    Ok(bytes as f64 / MIB as f64)
}

/// Makes all pages of the logs resident.
fn read_logs(server: &Server) -> Result<()> {
    for path in server.logs()? {
        let file = open(&path)?;
        read_through(&file, 0..file.size())?;
    }
    Ok(())
}

/// Reports the figures. Queries are compared unless the load had a rate of its own.
fn report(run: &mut Run, measured: &Measured<Window>, are_compared: bool) {
    let report = &mut run.report;
    let queries = measured.figure(|window| window.queries);
    report.add_case("queries of sysbench oltp_read_write", Unit::QueriesPerSecond, &queries);
    if are_compared {
        report.add_ratio("guard_qps", Unit::QueriesPerSecond, &queries, WITH, WITHOUT);
    }
    let commits = measured.figure(|window| window.commits.us(99.0));
    report.add_case("commits of one row by a client beside the load: p99", Unit::Microseconds, &commits);
    report.add_ratio("guard_commit_p99", Unit::Microseconds, &commits, WITH, WITHOUT);
    let resident = measured.figure(|window| window.resident_mib);
    report.add_case("log files in the page cache at a window's end", Unit::Mib, &resident);
    let guarded = measured.of(WITH);
    let of = |subject, windows: &[Window], of: fn(&Window) -> f64| Samples {
        subject,
        values: windows.iter().map(of).collect(),
    };
    let percent = |window: &Window| window.used.map_or(0.0, |used| used.cpu_percent);
    let memory = |window: &Window| window.used.map_or(0.0, |used| used.memory_bytes / MIB as f64);
    let cpu = [
        of(SETTLED, guarded, |window| window.settled_percent),
        of(LEAST, measured.of(LEAST), |window| window.settled_percent),
        of("with its start", guarded, percent),
    ];
    report.add_case("the guard's CPU beside the database", Unit::PercentOfCore, &cpu);
    report.add_ratio("guard_cpu_vs_least", Unit::PercentOfCore, &cpu, SETTLED, LEAST);
    for (name, samples) in [("guard_settled_cpu_percent", &cpu[0]), ("guard_cpu_percent", &cpu[2])] {
        report.ratios.extend(median(&samples.values).map(|percent| (name, percent)));
    }
    let memory = [of("the guard itself", guarded, memory)];
    report.add_case("the guard's memory beside the database", Unit::Mib, &memory);
}
