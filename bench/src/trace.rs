//! `trace`: the cost of tracing for reads through the page cache, and for a database; windows with and without a tracer
//! in turn.
//!
//! The adds are reads of a file that is one hole: no disk takes part, so the share of tracing is the largest possible.
//! Their time is the reading thread's CPU time, in which tracing is done. Every page that came must be in the counts,
//! else the run ends with an error. A tracer begins and ends outside of the timed part; the time it takes to begin is
//! shown beside. The server counts queries.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagekeeper_kernel::{Advice, InspectedFile, Links, advise};
use pagekeeper_trace::{TraceLevel, TraceOptions, Tracer, traced_inode};
use rustix::time::{ClockId, clock_gettime};

use crate::Run;
use crate::data::{GIB, MIB, make_cold, make_sparse, open};
use crate::drive::PAGE;
use crate::guard::server::{HELPERS, Load, Server};
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::{Plan, Random, Samples, Subject, median, run as run_rounds};
use crate::scratch::Stop;

const BPF: &str = "programs in the kernel";
const TRACEFS: &str = "lines of tracefs";
const WITHOUT: &str = "without";

/// Times that the file is read and dropped per sample.
const PASSES: usize = 4;
/// The second by which the last window of a quick run ends.
const QUICK_END: u64 = 40;
/// Bytes per read.
const READ_BYTES: usize = 16 << 10;

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let tracer = Tracer::start(&options(TraceLevel::Bpf))?;
    if tracer.source().level() != TraceLevel::Bpf {
        bail!("{}; run this as root", tracer.source());
    }
    drop(tracer);
    run.note(
        "adds are reads of a hole, in CPU time: no disk takes part, so the share of tracing is the greatest there can be",
    );
    let begun = RefCell::new((Vec::new(), Vec::new()));
    let cases = [
        ("sequential reads of 16 KiB, with read-ahead", false, "trace_add_cost_percent"),
        ("reads of single pages in random order", true, "trace_page_add_cost_percent"),
    ];
    for (case, pages, name) in cases {
        adds(run, case, pages, name, &begun)?;
    }
    let (bpf, tracefs) = begun.into_inner();
    if let Some(milliseconds) = median(&bpf) {
        run.report.ratios.insert("trace_attach_ms", milliseconds);
    }
    let mut begins = vec![Samples { subject: BPF, values: bpf }];
    if !tracefs.is_empty() {
        begins.push(Samples { subject: TRACEFS, values: tracefs });
    }
    run.report.add_case("until a tracer has begun", Unit::Milliseconds, &begins);
    queries(run)
}

/// Returns options to trace everything, by this means or not at all.
fn options(best: TraceLevel) -> TraceOptions {
    TraceOptions { block: true, best, ..TraceOptions::default() }
}

/// Starts a tracer, and returns it with the milliseconds it took to begin.
fn begin(level: TraceLevel) -> Result<(Tracer, f64)> {
    let began = Instant::now();
    let tracer = Tracer::start(&options(level))?;
    let milliseconds = began.elapsed().as_secs_f64() * 1e3;
    ensure!(tracer.source().level() == level, "{}", tracer.source());
    Ok((tracer, milliseconds))
}

type Begun = RefCell<(Vec<f64>, Vec<f64>)>;

fn adds(run: &mut Run, case: &'static str, pages: bool, name: &'static str, begun: &Begun) -> Result<()> {
    run.say(case)?;
    let size = if pages { 128 * MIB } else { 512 * MIB } / if run.quick { 2 } else { 1 };
    let path = run.scratch.path().join("hole");
    make_sparse(&path, size)?;
    let reader = Reader { path, size, pages, seed: run.random.next_u64() };
    let mut subjects = vec![
        Subject::new(BPF, || {
            let (mut tracer, milliseconds) = begin(TraceLevel::Bpf)?;
            begun.borrow_mut().0.push(milliseconds);
            reader.traced(&mut tracer)
        }),
        Subject::new(WITHOUT, || reader.time(&mut || Ok(()))),
    ];
    match begin(TraceLevel::Tracefs) {
        Ok(_) => subjects.push(Subject::new(TRACEFS, || {
            let (mut tracer, milliseconds) = begin(TraceLevel::Tracefs)?;
            begun.borrow_mut().1.push(milliseconds);
            reader.traced(&mut tracer)
        })),
        Err(_) => run.report.add_missing("tracefs that can be written"),
    }
    let samples = run.rounds(&mut subjects, if pages { 14 } else { 8 })?;
    drop(subjects);
    run.report.add_case(case, Unit::SecondsPerGib, &samples);
    for traced in samples.iter().filter(|samples| samples.subject != WITHOUT) {
        let within = traced.values.iter().zip(&samples[1].values);
        let values: Vec<f64> = within.map(|(with, without)| (with / without - 1.0) * 100.0).collect();
        if traced.subject == BPF
            && let Some(percent) = median(&values)
        {
            run.report.ratios.insert(name, percent);
        }
        let case = format!("what that adds to {case}");
        run.report.add_case(&case, Unit::PercentOfTime, &[Samples { subject: traced.subject, values }]);
    }
    Ok(())
}

/// A reader of a file that is one hole.
struct Reader {
    path: PathBuf,
    size: u64,
    /// Single pages in random order, the same each time; else everything in order.
    pages: bool,
    seed: u64,
}

impl Reader {
    /// Returns the reading thread's CPU time in s/GiB; the file is cold before each pass. `between` is called after
    /// each.
    fn time(&self, between: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let mut places: Vec<u64> = (0..self.size / PAGE).collect();
        if self.pages {
            Random::new(self.seed).shuffle(&mut places);
        }
        let mut took = Duration::ZERO;
        for _ in 0..PASSES {
            make_cold(&self.path)?;
            let file = open(&self.path)?;
            took += if self.pages { read_pages(&file, &places)? } else { read_all(&file, self.size)? };
            between()?;
        }
        Ok(took.as_secs_f64() / (self.size * PASSES as u64) as f64 * GIB as f64)
    }

    /// Returns the time under a tracer, whose counts must have every page that came.
    fn traced(&self, tracer: &mut Tracer) -> Result<f64> {
        let file = InspectedFile::open(&self.path, Links::Refuse)?;
        let inode = traced_inode(&TraceOptions::default().roots, &file, &self.path)?;
        tracer.take()?;
        let (mut came, mut lost) = (0, 0);
        let time = self.time(&mut || {
            let counts = tracer.take()?;
            came += counts.of_file(inode).context("pages are not traced")?.added.bytes;
            lost += counts.losses.total();
            Ok(())
        })?;
        let all = self.size * PASSES as u64;
        ensure!(came >= all || lost > 0, "{came} of {all} bytes were counted, and none was lost");
        ensure!(lost < 1000, "{lost} events were lost");
        Ok(time)
    }
}

fn read_all(file: &InspectedFile, size: u64) -> Result<Duration> {
    let mut buffer = vec![0; READ_BYTES];
    let before = thread_time();
    for offset in (0..size).step_by(READ_BYTES) {
        read(file.file(), &mut buffer, offset)?;
    }
    Ok(thread_time().saturating_sub(before))
}

fn read_pages(file: &InspectedFile, places: &[u64]) -> Result<Duration> {
    advise(file, Advice::Random, 0..u64::MAX, file.path())?;
    let mut buffer = [0; 64];
    let before = thread_time();
    for place in places {
        read(file.file(), &mut buffer, place * PAGE)?;
    }
    Ok(thread_time().saturating_sub(before))
}

/// Returns this thread's CPU time, including the kernel's: a tracer's work is done there, by the traced thread. Other
/// users of the processors do not count.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn read(file: &File, buffer: &mut [u8], offset: u64) -> Result<()> {
    file.read_exact_at(buffer, offset).context("can't read the file")
}

/// Measures sysbench on `MariaDB` with everything traced, and without.
fn queries(run: &mut Run) -> Result<()> {
    let found = (run.peer("mariadbd"), run.peer("sysbench"));
    for helper in HELPERS.into_iter().filter(|helper| Program::find(helper).is_none()) {
        run.report.add_missing(helper);
    }
    let helpers = HELPERS.iter().all(|helper| Program::find(helper).is_some());
    let (Some(mariadbd), Some(_), true) = (found.0, found.1, helpers) else {
        return Ok(());
    };
    let (settle, window) = if run.quick { (500, 2) } else { (2000, 12) };
    let (settle, window) = (Duration::from_millis(settle), Duration::from_secs(window));
    run.say("a MariaDB server")?;
    let server = Server::start(&mariadbd, run.scratch.path(), &run.stop)?;
    server.prepare()?;
    let load = RefCell::new(server.load(None)?);
    run.stop.sleep(if run.quick { settle } else { 5 * settle })?;
    run.say("windows with and without tracing")?;
    let stop = run.stop.clone();
    let count =
        |tracer: Option<Tracer>| count(&server, &mut load.borrow_mut(), tracer, settle, window, &stop);
    let mut subjects = vec![
        Subject::new(BPF, || count(Some(begin(TraceLevel::Bpf)?.0))),
        Subject::new(WITHOUT, || count(None)),
    ];
    let tracefs = !run.quick && begin(TraceLevel::Tracefs).is_ok();
    if tracefs {
        subjects.push(Subject::new(TRACEFS, || count(Some(begin(TraceLevel::Tracefs)?.0))));
    }
    let rounds = if run.quick { run.rounds.min(3) } else { run.rounds };
    let until = run.quick.then(|| run.began + Duration::from_secs(QUICK_END));
    let plan = Plan { rounds, until, warm_up: false };
    let samples = run_rounds(&mut subjects, plan, &mut run.random, &run.stop)?;
    drop(subjects);
    let case = "queries of sysbench oltp_read_write, everything traced";
    run.report.add_case(case, Unit::QueriesPerSecond, &samples);
    run.report.add_ratio("trace_qps", Unit::QueriesPerSecond, &samples, BPF, WITHOUT);
    Ok(())
}

/// Measures queries per second in a window, and reads the tracer each second.
fn count(
    server: &Server,
    load: &mut Load,
    mut tracer: Option<Tracer>,
    settle: Duration,
    window: Duration,
    stop: &Stop,
) -> Result<f64> {
    stop.sleep(settle)?;
    let (first, began) = server.questions()?;
    while began.elapsed() < window {
        stop.sleep(Duration::from_secs(1).min(window.saturating_sub(began.elapsed())))?;
        if let Some(tracer) = &mut tracer {
            let counts = tracer.take()?;
            ensure!(counts.block.is_some() && counts.pauses.is_some(), "not everything is traced");
        }
    }
    let (last, ended) = server.questions()?;
    load.check()?;
    Ok((last - first) / (ended - began).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(path: &std::path::Path, pages: bool) -> Reader {
        make_sparse(path, 4 * MIB).unwrap();
        Reader { path: path.to_path_buf(), size: 4 * MIB, pages, seed: 1 }
    }

    #[test]
    fn each_pass_brings_all_pages_in() {
        // Not on tmpfs, whose pages cannot be dropped.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("hole");
        for pages in [false, true] {
            let mut passes = 0;
            let time = reader(&path, pages).time(&mut || {
                passes += 1;
                ensure!(crate::data::resident(&path)? == 4 * MIB, "not all of it is resident");
                Ok(())
            });
            assert!(time.unwrap() > 0.0);
            assert_eq!(passes, PASSES);
        }
    }
}
