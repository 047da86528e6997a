//! `guard`: the guard's cost and benefit for a database: MariaDB under sysbench, in alternating windows with the guard,
//! without it, and with the [least work](least) that a guard could do, on one server under one continuous load.
//!
//! Before each window without the guard the log files are read back in, as they would be on a server that never had a
//! guard. The guard's window begins from that state, so its account includes its first release. The guard watches this
//! server alone. The server counts queries, residency is that of the redo log and all binlogs at a window's end, and a
//! [separate client](commits) times commits.

mod commits;
mod directories;
mod least;
mod many;
pub(crate) mod other;
pub(crate) mod server;
mod watcher;

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::Run;
use crate::data::{GIB, MIB, open, read_through, resident};
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::{Plan, Samples, Subject, median, run as run_rounds};
use crate::scratch::Stop;
use commits::{Commits, Latencies};
pub(crate) use directories::{Arguments as WriterArguments, write_logs};
use least::Least;
use server::{HELPERS, Load, Server};
use watcher::Watcher;

const WITH: &str = "with the guard";
const WITHOUT: &str = "without";
const LEAST: &str = "the least work";
const SETTLED: &str = "after its start";

/// Binlogs at the start of a window, at most. They make a GiB, which is far less than servers usually keep.
const KEPT_BINLOGS: u64 = GIB / server::BINLOG_BYTES;

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

/// Runs only the cases with very many log files, which need no `MariaDB`.
pub(crate) fn run_many(run: &mut Run) -> Result<()> {
    many::run(run)?;
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
    let found = (run.peer("mariadbd"), run.peer("sysbench"));
    for helper in HELPERS.into_iter().filter(|helper| Program::find(helper).is_none()) {
        run.report.add_missing(helper);
    }
    let (Some(mariadbd), Some(_), []) = (found.0, found.1, run.report.missing.as_slice()) else {
        bail!("not installed: {}; `make bench-setup` installs it", run.report.missing.join(", "));
    };
    windows(run, &mariadbd, lengths, transactions)?;
    if transactions.is_some() {
        return Ok(());
    }
    if run.quick { many::run(run) } else { run_many(run) }
}

/// The figures of the windows of one kind, beside their queries.
#[derive(Debug, Default)]
struct Seen {
    resident_mib: Vec<f64>,
    commits: Vec<Latencies>,
    cpu_percent: Vec<f64>,
    /// Within the count of a window, without the guard's start and first release.
    settled_percent: Vec<f64>,
    memory_mib: Vec<f64>,
}

fn windows(
    run: &mut Run,
    mariadbd: &Program,
    lengths: Lengths,
    transactions: Option<NonZeroU32>,
) -> Result<()> {
    run.say("a MariaDB server")?;
    let server = Server::start(mariadbd, run.scratch.path(), &run.stop)?;
    server.prepare()?;
    server.prepare_committer()?;
    let load = RefCell::new(server.load(transactions)?);
    run.say("logs to begin with")?;
    run.stop.sleep(lengths.history)?;

    run.say("windows with and without the guard")?;
    let [guarded, alone, least] = [(); 3].map(|()| RefCell::new(Seen::default()));
    let (pagekeeper, stop) = (run.pagekeeper.clone(), run.stop.clone());
    let mut subjects = [
        Subject::new(WITH, || {
            guarded_window(
                &server,
                &mut load.borrow_mut(),
                &pagekeeper,
                &stop,
                lengths,
                &mut guarded.borrow_mut(),
            )
        }),
        Subject::new(WITHOUT, || {
            server.purge(KEPT_BINLOGS)?;
            read_logs(&server)?;
            stop.sleep(lengths.settle)?;
            let mut alone = alone.borrow_mut();
            let queries = count(&server, &mut load.borrow_mut(), &stop, lengths, &mut alone)?;
            alone.resident_mib.push(resident_mib(&server)?);
            Ok(queries)
        }),
        Subject::new(LEAST, || {
            least_window(&server, &mut load.borrow_mut(), &stop, lengths, &mut least.borrow_mut())
        }),
    ];
    // The load has run for a while, so no uncounted round is needed.
    let plan = Plan { rounds: run.rounds, until: None, warm_up: false };
    let queries = run_rounds(&mut subjects, plan, &mut run.random, &run.stop)?;
    drop(subjects);
    report(
        run,
        &queries,
        transactions.is_none(),
        guarded.into_inner(),
        alone.into_inner(),
        least.into_inner(),
    );
    Ok(())
}

fn guarded_window(
    server: &Server,
    load: &mut Load,
    pagekeeper: &Program,
    stop: &Stop,
    lengths: Lengths,
    seen: &mut Seen,
) -> Result<f64> {
    server.purge(KEPT_BINLOGS)?;
    let guard = Watcher::start(pagekeeper, &["--pid", &server.pid().to_string()])?;
    let queries = watched_window(server, load, stop, lengths, seen, || many::cpu_seconds(guard.pid()))?;
    let used = guard.stop()?;
    seen.cpu_percent.push(used.cpu_percent);
    seen.memory_mib.push(used.memory_bytes / MIB as f64);
    Ok(queries)
}

fn least_window(
    server: &Server,
    load: &mut Load,
    stop: &Stop,
    lengths: Lengths,
    seen: &mut Seen,
) -> Result<f64> {
    server.purge(KEPT_BINLOGS)?;
    let least = Least::start(server.logs()?)?;
    let queries = watched_window(server, load, stop, lengths, seen, || Ok(least.used().as_secs_f64()))?;
    least.stop()?;
    Ok(queries)
}

/// Measures queries per second in a window beside a process that releases pages, and its leftovers and use; `used`
/// returns its processor time so far, in seconds.
fn watched_window(
    server: &Server,
    load: &mut Load,
    stop: &Stop,
    lengths: Lengths,
    seen: &mut Seen,
    used: impl Fn() -> Result<f64>,
) -> Result<f64> {
    stop.sleep(lengths.settle)?;
    let (before, began) = (used()?, Instant::now());
    let queries = count(server, load, stop, lengths, seen)?;
    seen.settled_percent.push((used()? - before) / began.elapsed().as_secs_f64() * 100.0);
    seen.resident_mib.push(resident_mib(server)?);
    Ok(queries)
}

/// Measures queries per second and commit latencies in a window.
fn count(server: &Server, load: &mut Load, stop: &Stop, lengths: Lengths, seen: &mut Seen) -> Result<f64> {
    let commits = Commits::start(server.committer(), lengths.window)?;
    let (first, began) = server.questions()?;
    stop.sleep(lengths.window)?;
    let (last, ended) = server.questions()?;
    load.check()?;
    seen.commits.push(commits.wait()?);
    Ok((last - first) / (ended - began).as_secs_f64())
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
fn report(run: &mut Run, queries: &[Samples], are_compared: bool, guarded: Seen, alone: Seen, least: Seen) {
    let report = &mut run.report;
    report.add_case("queries of sysbench oltp_read_write", Unit::QueriesPerSecond, queries);
    if are_compared {
        report.add_ratio("guard_qps", Unit::QueriesPerSecond, queries, WITH, WITHOUT);
        let within = queries[0].values.iter().zip(&queries[1].values).map(|(with, without)| with / without);
        let within = Samples { subject: "with against without, each pair", values: within.collect() };
        report.add_case("queries of sysbench oltp_read_write", Unit::Ratio, &[within]);
    }
    report_commits(run, [&guarded, &alone, &least]);

    let report = &mut run.report;
    let gone: Vec<f64> = guarded
        .resident_mib
        .iter()
        .zip(&alone.resident_mib)
        .map(|(with, without)| drop_share(*with, *without))
        .collect();
    let resident = [
        Samples { subject: WITH, values: guarded.resident_mib },
        Samples { subject: WITHOUT, values: alone.resident_mib },
        Samples { subject: LEAST, values: least.resident_mib },
    ];
    report.add_case("log files in the page cache at a window's end", Unit::Mib, &resident);
    if let Some(share) = median(&gone) {
        report.ratios.insert("guard_residency_drop", share);
    }
    if let Some(percent) = median(&guarded.cpu_percent) {
        report.ratios.insert("guard_cpu_percent", percent);
    }
    if let Some(percent) = median(&guarded.settled_percent) {
        report.ratios.insert("guard_settled_cpu_percent", percent);
    }
    let cpu = [
        (SETTLED, guarded.settled_percent),
        (LEAST, least.settled_percent),
        ("with its start", guarded.cpu_percent),
    ];
    let cpu = cpu.map(|(subject, values)| Samples { subject, values });
    report.add_case("the guard's CPU beside the database", Unit::PercentOfCore, &cpu);
    report.add_ratio("guard_cpu_vs_least", Unit::PercentOfCore, &cpu, SETTLED, LEAST);
    let memory = [Samples { subject: "the guard itself", values: guarded.memory_mib }];
    report.add_case("the guard's memory beside the database", Unit::Mib, &memory);
}

/// A figure of a window's commits: its name, its ratio, and how to get it.
type CommitFigure = (&'static str, &'static str, fn(&Latencies) -> f64);

fn report_commits(run: &mut Run, seen: [&Seen; 3]) {
    let figures: [CommitFigure; 3] = [
        ("median", "guard_commit_median", |commits| commits.median),
        ("p99", "guard_commit_p99", |commits| commits.p99),
        ("longest of a window", "guard_commit_longest", |commits| commits.longest),
    ];
    for (name, ratio, of) in figures {
        let subjects = [WITH, WITHOUT, LEAST].into_iter().zip(seen);
        let samples: Vec<Samples> = subjects
            .map(|(subject, seen)| Samples { subject, values: seen.commits.iter().map(of).collect() })
            .collect();
        run.report.add_case(
            &format!("commits of one row by a client beside the load: {name}"),
            Unit::Microseconds,
            &samples,
        );
        run.report.add_ratio(ratio, Unit::Microseconds, &samples, WITH, WITHOUT);
    }
}

/// Returns the share of `without` that is gone.
fn drop_share(with: f64, without: f64) -> f64 {
    if without > 0.0 { 1.0 - with / without } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_gone_is_one_when_nothing_is_left() {
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-12;
        assert!(near(drop_share(0.0, 200.0), 1.0));
        assert!(near(drop_share(10.0, 200.0), 0.95));
        assert!(near(drop_share(5.0, 0.0), 0.0));
    }
}
