//! `stream`: the cost of a backup's stream for a database whose data just fits a memory cgroup that
//! the stream shares: plain, under `pagekeeper run`, under nocache, and without a stream.
//!
//! Invariants: one server serves all windows of its cases; the stream's own program holds it to one
//! rate; every window begins in the same state. No cgroups, servers or files are left at the end.
//! Needs root and a memory cgroup. Fails where a stream ends early, where its output is wrong, or
//! where the hot set does not fit.

mod child;
mod database;
mod myrocks;
pub(crate) mod postgresql;
mod programs;
mod site;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::BenchRun;
use crate::data::{GIB, MIB};
use crate::memory_group::{GroupParent, MemoryGroup};
use crate::peers::InstalledProgram;
use crate::report::{FigureUnit, Report};
use crate::rounds::{BetterDirection, RoundPlan, SubjectSamples, ratio};
use database::DatabaseServer;
use myrocks::MyRocks;
use postgresql::PostgreSql;
use site::{STREAM_ROOM_BYTES, StreamScale, StreamSetup, StreamWay, StreamWork};

pub(crate) use child::{StreamChildArguments, run as be_a_stream};
pub(crate) use programs::open_to_others;

pub(crate) const UNDER_RUN_NAME: &str = "under run";
const GUARD_STREAMS_NAME: &str = "guard --streams";
pub(crate) const PLAIN_NAME: &str = "plain";
pub(crate) const NO_STREAM_NAME: &str = "no stream";
const NOCACHE_NAME: &str = "nocache";
const DIRECT_STREAM_NAME: &str = "direct I/O, the limit";

/// A case: the stream's work, its subjects, the ratio of the database under `run` against no
/// stream, and the limit.
struct StreamCase {
    case: StreamWork,
    name: &'static str,
    kept: &'static str,
    limit: StreamLimit,
}

/// A stream that leaves the page cache unchanged, whatever runs it. The first ratio is the database
/// beside it against no stream, the second the database under `run` against this stream.
struct StreamLimit {
    subject: &'static str,
    kept: &'static str,
    against: &'static str,
}

const STREAM_WAYS: [(&str, StreamWay); 5] = [
    (UNDER_RUN_NAME, StreamWay::Run),
    (GUARD_STREAMS_NAME, StreamWay::Guard),
    (NO_STREAM_NAME, StreamWay::NoStream),
    (PLAIN_NAME, StreamWay::Plain),
    (NOCACHE_NAME, StreamWay::Nocache),
];

const STREAM_CASES: [StreamCase; 3] = [
    StreamCase {
        case: StreamWork::Read,
        name: "reads cold files",
        kept: "stream_read_kept",
        limit: StreamLimit {
            subject: DIRECT_STREAM_NAME,
            kept: "stream_read_limit_kept",
            against: "stream_read_vs_limit",
        },
    },
    StreamCase {
        case: StreamWork::Write,
        name: "writes a new file",
        kept: "stream_write_kept",
        limit: StreamLimit {
            subject: DIRECT_STREAM_NAME,
            kept: "stream_write_limit_kept",
            against: "stream_write_vs_limit",
        },
    },
    StreamCase {
        case: StreamWork::OwnHotFiles,
        name: "reads the server's own hot files",
        kept: "stream_own_hot_files_kept",
        // Everything is in memory and stays there: it is only copied.
        limit: StreamLimit {
            subject: PLAIN_NAME,
            kept: "stream_own_hot_files_limit_kept",
            against: "stream_own_hot_files_vs_limit",
        },
    },
];

/// The measurements to make.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StreamOptions {
    /// One server only [default: both; with --quick: postgresql]
    #[arg(long, value_enum)]
    server: Option<ServerChoice>,
    /// One case only [default: all; with --quick: read]
    #[arg(long, value_enum)]
    case: Option<StreamWork>,
    /// Rate of the stream, in MB/s
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=2000))]
    rate: u64,
    /// Instead: what whole programs leave in memory, of what they read and wrote and of a hot file
    #[arg(long, conflicts_with_all = ["server", "case", "rate"])]
    programs: bool,
    /// Only these programs, as the table names them
    #[arg(long, value_name = "NAME", requires = "programs")]
    program: Vec<String>,
    /// On these file systems: that of --dir, new ones on loop devices, an overlay as a container
    /// has
    #[arg(long, value_name = "KIND", requires = "programs", default_value = programs::SCRATCH_FILE_SYSTEM, value_parser = programs::FILE_SYSTEM_KINDS)]
    on: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ServerChoice {
    Postgresql,
    Myrocks,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun, choice: &StreamOptions) -> Result<()> {
    let setting = if run.quick {
        StreamScale { rate: choice.rate * 1_000_000, settle: 1, window: 1, tree: GIB }
    } else {
        StreamScale { rate: choice.rate * 1_000_000, settle: 1, window: 6, tree: 3 * GIB }
    };
    let groups = GroupParent::find()?;
    if choice.programs {
        return programs::run(run, &groups, &choice.program, &choice.on);
    }
    run.scratch.require_space(setting.tree + 2 * setting.written() + 2 * GIB)?;
    run.note(&format!(
        "server and stream of {} MB/s in one memory cgroup (version {}), limited to what the warm server takes and {} MiB",
        choice.rate,
        groups.version(),
        STREAM_ROOM_BYTES / MIB
    ));
    let nocache = run.peer("nocache").is_some();
    let wanted = match (choice.server, run.quick) {
        (Some(server), _) => vec![server],
        (None, true) => vec![ServerChoice::Postgresql],
        (None, false) => vec![ServerChoice::Postgresql, ServerChoice::Myrocks],
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
        let quick = run.quick.then_some(StreamWork::Read);
        let case = choice.case.or(quick);
        for plot in STREAM_CASES.iter().filter(|plot| case.is_none_or(|case| case == plot.case)) {
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
fn start(
    run: &mut BenchRun,
    server: ServerChoice,
    home: &Path,
    group: &MemoryGroup,
) -> Result<Option<Box<dyn DatabaseServer>>> {
    let stop = run.stop.clone();
    match server {
        ServerChoice::Postgresql => {
            let (postgres, pgbench) = (run.peer("postgres"), InstalledProgram::find("pgbench"));
            let (Some(postgres), Some(_)) = (postgres, pgbench) else { return Ok(None) };
            let scale = if run.quick { 20 } else { 50 };
            Ok(Some(Box::new(PostgreSql::start(&postgres, home, group, scale, &stop)?)))
        }
        ServerChoice::Myrocks => {
            let (mariadbd, sysbench) = (run.peer("mariadbd"), run.peer("sysbench"));
            if !Path::new(myrocks::PLUGIN_PATH).exists() {
                run.report.add_missing("mariadb-plugin-rocksdb");
                return Ok(None);
            }
            let (Some(mariadbd), Some(_)) = (mariadbd, sysbench) else { return Ok(None) };
            let rows = if run.quick { 1_200_000 } else { 3_200_000 };
            Ok(Some(Box::new(MyRocks::start(&mariadbd, home, group, rows, &stop)?)))
        }
    }
}

/// Adds the ratios of a case, within the rounds; of two servers, those of the one with the worse
/// result.
fn add_ratios(report: &mut Report, plot: &StreamCase, rates: &[SubjectSamples]) {
    let find = |subject| rates.iter().find(|samples| samples.subject == subject);
    let of = |ours, theirs| ratio(&find(ours)?.values, &find(theirs)?.values, BetterDirection::More);
    if plot.case == StreamWork::Read {
        for (name, ours, theirs) in [
            ("stream_plain_kept", PLAIN_NAME, NO_STREAM_NAME),
            ("stream_kept_vs_nocache", UNDER_RUN_NAME, NOCACHE_NAME),
        ] {
            if let Some(value) = of(ours, theirs) {
                report.add_least(name, value);
            }
        }
    }
    let Some(kept) = of(UNDER_RUN_NAME, NO_STREAM_NAME) else { return };
    if report.ratios.get(plot.kept).is_some_and(|before| *before <= kept) {
        return;
    }
    let mut add =
        |name, ours, theirs| report.add_ratio(name, FigureUnit::QueriesPerSecond, rates, ours, theirs);
    add(plot.kept, UNDER_RUN_NAME, NO_STREAM_NAME);
    // The limit is that of the same server.
    let limit = &plot.limit;
    add(limit.kept, limit.subject, NO_STREAM_NAME);
    add(limit.against, UNDER_RUN_NAME, limit.subject);
}

fn windows(
    run: &mut BenchRun,
    site: &StreamSetup<'_>,
    server: &'static str,
    plot: &StreamCase,
    nocache: bool,
) -> Result<()> {
    let limit = [(DIRECT_STREAM_NAME, StreamWay::Direct)];
    let has_limit = plot.limit.subject == DIRECT_STREAM_NAME && !run.quick;
    let ways = STREAM_WAYS.into_iter().chain(limit.into_iter().filter(|_| has_limit));
    let ways: Vec<(&'static str, StreamWay)> =
        ways.filter(|(_, way)| nocache || *way != StreamWay::Nocache).collect();
    let names: Vec<&'static str> = ways.iter().map(|(name, _)| *name).collect();
    // Every window warms the server up, so no uncounted round is needed.
    let until = run.quick.then(|| run.began + Duration::from_secs(42));
    let rounds = if run.quick { run.rounds.min(3) } else { run.rounds };
    let plan = RoundPlan { rounds, until, warm_up: false };
    let measured = run.measure(&names, plan, |turn| site.window(plot.case, ways[turn.subject].1))?;
    let rates = measured.figure(|seen| seen.transactions);
    let title = format!("{server}, the stream {}", plot.name);
    run.report.add_case(&format!("{title}: transactions"), FigureUnit::QueriesPerSecond, &rates);
    add_ratios(&mut run.report, plot, &rates);
    let report = &mut run.report;
    let hot = measured.figure(|seen| seen.hot_percent);
    report.add_case(&format!("{title}: hot files in memory at the end"), FigureUnit::Percent, &hot);
    let back = measured.figure(|seen| seen.back_mib);
    report.add_case(&format!("{title}: read back in a window"), FigureUnit::Mib, &back);
    let without_none = |mut samples: Vec<SubjectSamples>| {
        samples.retain(|samples| samples.subject != NO_STREAM_NAME);
        samples
    };
    let moved = without_none(measured.figure(|seen| seen.stream_mib));
    report.add_case(&format!("{title}: the stream itself"), FigureUnit::MibPerSecond, &moved);
    let cpu = without_none(measured.figure(|seen| seen.stream_cpu));
    report.add_case(&format!("{title}: the stream's CPU time"), FigureUnit::PercentOfCore, &cpu);
    let mut own = measured.figure(|seen| seen.follower_cpu);
    own.retain(|samples| [UNDER_RUN_NAME, GUARD_STREAMS_NAME].contains(&samples.subject));
    report.add_case(&format!("{title}: the CPU time of who follows it"), FigureUnit::PercentOfCore, &own);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_of_two_servers_sets_ratio_and_limit() {
        let rates = |under_run: f64, direct: f64| {
            [(UNDER_RUN_NAME, under_run), (NO_STREAM_NAME, 10.0), (DIRECT_STREAM_NAME, direct)]
                .map(|(subject, rate)| SubjectSamples { subject, values: vec![rate, rate] })
        };
        let write = &STREAM_CASES[1];
        assert_eq!(write.case, StreamWork::Write);
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
