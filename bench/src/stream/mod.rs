//! `stream`: the cost of a backup's stream for a database whose data just fits a memory cgroup that the stream shares:
//! plain, under `pagekeeper run`, under nocache, and without a stream.
//!
//! Invariants: one server serves all windows of its cases; the stream's own program holds it to one rate; every window
//! begins in the same state. No cgroups, servers or files are left at the end. Needs root and a memory cgroup. Fails
//! where a stream ends early, where its output is wrong, or where the hot set does not fit.

mod child;
mod database;
mod myrocks;
mod postgresql;
mod programs;
mod site;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::Run;
use crate::data::{GIB, MIB};
use crate::memory_group::{Group, Groups};
use crate::peers::Program;
use crate::report::{Report, Unit};
use crate::rounds::{Better, Plan, Samples, ratio};
use database::Database;
use myrocks::MyRocks;
use postgresql::PostgreSql;
use site::{Case, ROOM, Setting, StreamSetup, Way};

pub(crate) use child::{Arguments as ChildArguments, run as be_a_stream};
pub(crate) use programs::open_to_others;

const UNDER_RUN: &str = "under run";
const GUARD: &str = "guard --streams";
const PLAIN: &str = "plain";
const NO_STREAM: &str = "no stream";
const NOCACHE: &str = "nocache";
const DIRECT: &str = "direct I/O, the limit";

/// A case: the stream's work, its subjects, the ratio of the database under `run` against no stream, and the limit.
struct Plot {
    case: Case,
    name: &'static str,
    kept: &'static str,
    limit: Limit,
}

/// A stream that leaves the page cache unchanged, whatever runs it. The first ratio is the database beside it against
/// no stream, the second the database under `run` against this stream.
struct Limit {
    subject: &'static str,
    kept: &'static str,
    against: &'static str,
}

const WAYS: [(&str, Way); 5] = [
    (UNDER_RUN, Way::Run),
    (GUARD, Way::Guard),
    (NO_STREAM, Way::NoStream),
    (PLAIN, Way::Plain),
    (NOCACHE, Way::Nocache),
];

const PLOTS: [Plot; 3] = [
    Plot {
        case: Case::Read,
        name: "reads cold files",
        kept: "stream_read_kept",
        limit: Limit { subject: DIRECT, kept: "stream_read_limit_kept", against: "stream_read_vs_limit" },
    },
    Plot {
        case: Case::Write,
        name: "writes a new file",
        kept: "stream_write_kept",
        limit: Limit { subject: DIRECT, kept: "stream_write_limit_kept", against: "stream_write_vs_limit" },
    },
    Plot {
        case: Case::OwnHotFiles,
        name: "reads the server's own hot files",
        kept: "stream_own_hot_files_kept",
        // Everything is in memory and stays there: it is only copied.
        limit: Limit {
            subject: PLAIN,
            kept: "stream_own_hot_files_limit_kept",
            against: "stream_own_hot_files_vs_limit",
        },
    },
];

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Choice {
    /// One server only [default: both; with --quick: postgresql]
    #[arg(long, value_enum)]
    server: Option<Server>,
    /// One case only [default: all; with --quick: read]
    #[arg(long, value_enum)]
    case: Option<Case>,
    /// Rate of the stream, in MB/s
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=2000))]
    rate: u64,
    /// Instead: what whole programs leave in memory, of what they read and wrote and of a hot file
    #[arg(long, conflicts_with_all = ["server", "case", "rate"])]
    programs: bool,
    /// Of these programs alone, as the table names them
    #[arg(long, value_name = "NAME", requires = "programs")]
    program: Vec<String>,
    /// On these file systems: that of --dir, new ones on loop devices, an overlay as a container has
    #[arg(long, value_name = "KIND", requires = "programs", default_value = programs::HERE, value_parser = programs::KINDS)]
    on: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Server {
    Postgresql,
    Myrocks,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run, choice: &Choice) -> Result<()> {
    let setting = if run.quick {
        Setting { rate: choice.rate * 1_000_000, settle: 1, window: 1, tree: GIB }
    } else {
        Setting { rate: choice.rate * 1_000_000, settle: 1, window: 6, tree: 3 * GIB }
    };
    let groups = Groups::find()?;
    if choice.programs {
        return programs::run(run, &groups, &choice.program, &choice.on);
    }
    run.scratch.require_space(setting.tree + 2 * setting.written() + 2 * GIB)?;
    run.note(&format!(
        "server and stream of {} MB/s in one memory cgroup (version {}), limited to what the warm server takes and {} MiB",
        choice.rate,
        groups.version(),
        ROOM / MIB
    ));
    let nocache = run.peer("nocache").is_some();
    let wanted = match (choice.server, run.quick) {
        (Some(server), _) => vec![server],
        (None, true) => vec![Server::Postgresql],
        (None, false) => vec![Server::Postgresql, Server::Myrocks],
    };
    let mut served = 0;
    for server in wanted {
        let home = run.scratch.path().to_path_buf();
        run.say("a server is made and filled")?;
        // Enough for filling it; limited once it is warm.
        let group = groups.create(8 * GIB)?;
        let Some(database) = start(run, server, &home, &group)? else { continue };
        let pagekeeper = run.pagekeeper.clone();
        let site = StreamSetup::new(&*database, &group, &pagekeeper, &home, setting, &run.stop)?;
        served += 1;
        run.note(&format!(
            "{}: {} MiB of files that its load reads, limit {} MiB",
            database.name(),
            site.hot_bytes()? / MIB,
            group.limit()? / MIB
        ));
        let quick = run.quick.then_some(Case::Read);
        let case = choice.case.or(quick);
        for plot in PLOTS.iter().filter(|plot| case.is_none_or(|case| case == plot.case)) {
            run.say(&format!("{}, the stream {}", database.name(), plot.name))?;
            windows(run, &site, database.name(), plot, nocache)?;
        }
    }
    if served == 0 {
        bail!("not installed: {}; `make bench-setup` installs it", run.report.missing.join(", "));
    }
    Ok(())
}

/// Starts and fills a server; returns `None` and notes it as missing where it is not installed.
fn start(run: &mut Run, server: Server, home: &Path, group: &Group) -> Result<Option<Box<dyn Database>>> {
    let stop = run.stop.clone();
    match server {
        Server::Postgresql => {
            let (postgres, pgbench) = (run.peer("postgres"), Program::find("pgbench"));
            let (Some(postgres), Some(_)) = (postgres, pgbench) else { return Ok(None) };
            let scale = if run.quick { 20 } else { 50 };
            Ok(Some(Box::new(PostgreSql::start(&postgres, home, group, scale, &stop)?)))
        }
        Server::Myrocks => {
            let (mariadbd, sysbench) = (run.peer("mariadbd"), run.peer("sysbench"));
            if !Path::new(myrocks::PLUGIN).exists() {
                run.report.add_missing("mariadb-plugin-rocksdb");
                return Ok(None);
            }
            let (Some(mariadbd), Some(_)) = (mariadbd, sysbench) else { return Ok(None) };
            let rows = if run.quick { 1_200_000 } else { 3_200_000 };
            Ok(Some(Box::new(MyRocks::start(&mariadbd, home, group, rows, &stop)?)))
        }
    }
}

/// Adds the ratios of a case, within the rounds; of two servers, those of the one with the worse result.
fn add_ratios(report: &mut Report, plot: &Plot, rates: &[Samples]) {
    let find = |subject| rates.iter().find(|samples| samples.subject == subject);
    let of = |ours, theirs| ratio(&find(ours)?.values, &find(theirs)?.values, Better::More);
    if plot.case == Case::Read {
        for (name, ours, theirs) in
            [("stream_plain_kept", PLAIN, NO_STREAM), ("stream_kept_vs_nocache", UNDER_RUN, NOCACHE)]
        {
            if let Some(value) = of(ours, theirs) {
                report.add_least(name, value);
            }
        }
    }
    let Some(kept) = of(UNDER_RUN, NO_STREAM) else { return };
    if report.ratios.get(plot.kept).is_some_and(|before| *before <= kept) {
        return;
    }
    let mut add = |name, ours, theirs| report.add_ratio(name, Unit::QueriesPerSecond, rates, ours, theirs);
    add(plot.kept, UNDER_RUN, NO_STREAM);
    // The limit is that of the same server.
    let limit = &plot.limit;
    add(limit.kept, limit.subject, NO_STREAM);
    add(limit.against, UNDER_RUN, limit.subject);
}

fn windows(
    run: &mut Run,
    site: &StreamSetup<'_>,
    server: &'static str,
    plot: &Plot,
    nocache: bool,
) -> Result<()> {
    let limit = [(DIRECT, Way::Direct)];
    let has_limit = plot.limit.subject == DIRECT && !run.quick;
    let ways = WAYS.into_iter().chain(limit.into_iter().filter(|_| has_limit));
    let ways: Vec<(&'static str, Way)> = ways.filter(|(_, way)| nocache || *way != Way::Nocache).collect();
    let names: Vec<&'static str> = ways.iter().map(|(name, _)| *name).collect();
    // Every window warms the server up, so no uncounted round is needed.
    let until = run.quick.then(|| run.began + Duration::from_secs(42));
    let rounds = if run.quick { run.rounds.min(3) } else { run.rounds };
    let plan = Plan { rounds, until, warm_up: false };
    let measured = run.measure(&names, plan, |turn| site.window(plot.case, ways[turn.subject].1))?;
    let rates = measured.figure(|seen| seen.transactions);
    let title = format!("{server}, the stream {}", plot.name);
    run.report.add_case(&format!("{title}: transactions"), Unit::QueriesPerSecond, &rates);
    add_ratios(&mut run.report, plot, &rates);
    let report = &mut run.report;
    let hot = measured.figure(|seen| seen.hot_percent);
    report.add_case(&format!("{title}: hot files in memory at the end"), Unit::Percent, &hot);
    let back = measured.figure(|seen| seen.back_mib);
    report.add_case(&format!("{title}: read back in a window"), Unit::Mib, &back);
    let without_none = |mut samples: Vec<Samples>| {
        samples.retain(|samples| samples.subject != NO_STREAM);
        samples
    };
    let moved = without_none(measured.figure(|seen| seen.stream_mib));
    report.add_case(&format!("{title}: the stream itself"), Unit::MibPerSecond, &moved);
    let cpu = without_none(measured.figure(|seen| seen.stream_cpu));
    report.add_case(&format!("{title}: the stream's CPU time"), Unit::PercentOfCore, &cpu);
    let mut own = measured.figure(|seen| seen.follower_cpu);
    own.retain(|samples| [UNDER_RUN, GUARD].contains(&samples.subject));
    report.add_case(&format!("{title}: the CPU time of who follows it"), Unit::PercentOfCore, &own);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_servers_ratio_and_limit_are_those_of_the_one_that_fares_worse() {
        let rates = |under_run: f64, direct: f64| {
            [(UNDER_RUN, under_run), (NO_STREAM, 10.0), (DIRECT, direct)]
                .map(|(subject, rate)| Samples { subject, values: vec![rate, rate] })
        };
        let write = &PLOTS[1];
        assert_eq!(write.case, Case::Write);
        for order in [[rates(9.0, 9.5), rates(8.0, 8.2)], [rates(8.0, 8.2), rates(9.0, 9.5)]] {
            let mut report = crate::report::tests::example();
            for server in &order {
                add_ratios(&mut report, write, server);
            }
            let is = |name: &str, value: f64| (report.ratios[name] - value).abs() < 1e-9;
            assert!(is(write.kept, 0.8) && is("stream_write_limit_kept", 0.82), "{:?}", report.ratios);
            assert!(is("stream_write_vs_limit", 8.0 / 8.2), "{:?}", report.ratios);
        }
    }
}
