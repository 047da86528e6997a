//! `pagekeeper demo`: a small engine with real log files, in three parts of equal length: alone,
//! under the guard, and with logs that release their own pages. Finally a page store is killed
//! while it commits, and opened again.
//!
//! The [`engine`] runs in threads of this process, the guard and the [`store`] in processes of
//! their own. The first two parts differ only in the guard; the third begins on new files.
//! Invariants: all figures are measured in this run. Files are removed and processes ended at the
//! end, also on SIGINT, SIGTERM and SIGHUP. If this process is killed, the guard ends with it, and
//! the store at its next line.
//!
//! Fails when the directory is unsuitable (tmpfs, too little space), and when the engine, the guard
//! or the store fails.

mod chart;
mod engine;
mod report;
mod store;

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pagekeeper_kernel::FileSystem;
use pagekeeper_text::{ByteSize, escaped};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::engine::{Engine, EngineSample};
use self::report::{DemoReport, MeasuredPart};
use crate::arguments::parse_time;
use crate::output::{self, Screen};

/// Time between samples.
const SAMPLE_EACH: Duration = Duration::from_millis(250);
/// Time before the first and the third part that is not measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// Time for which the store commits before it is killed.
const STORE_COMMIT_TIME: Duration = Duration::from_secs(2);
/// Limit for the guard to find the logs: this takes some seconds on a busy emulated processor.
const GUARD_LIMIT: Duration = Duration::from_secs(60);
/// The directory for temporary files on a disk (file-hierarchy(7)).
const ON_DISK: &str = "/var/tmp";

/// Show what the guard and the libraries do, in half a minute
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("demo"))]
pub(crate) struct DemoArgs {
    /// How long to measure: a third alone, a third under the guard, a third with the library's own
    /// releases
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "30s", value_parser = parse_length)]
    duration: Duration,
    /// Print one JSON object with all figures and samples
    #[arg(long)]
    json: bool,
    /// Put the temporary files in DIR, which must be on a disk [default: the system's temporary
    /// directory]
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    place: Option<PathBuf>,
    /// The same as the argument DIR
    #[arg(long, value_name = "DIR", conflicts_with = "place", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
    /// Commit to a page store in DIR until the demo kills this process
    #[arg(long, hide = true, requires = "dir")]
    store: bool,
}

fn parse_length(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_secs(6))
}

/// Runs the demo, or the process that commits to its store.
#[allow(clippy::needless_pass_by_value, reason = "all commands are run in this form")]
pub(crate) fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    if let (true, Some(dir)) = (args.store, &args.dir) {
        store::run(dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = perform(args.duration.as_secs(), args.place.or(args.dir).as_deref())?;
    output::show(args.json, || report.json(), |out| report.write_text(Screen::of_stdout(), out))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs all parts in a new directory inside `wanted` or a chosen place, and removes it.
fn perform(seconds: u64, wanted: Option<&Path>) -> anyhow::Result<DemoReport> {
    let parent = match wanted {
        Some(wanted) => wanted.to_path_buf(),
        None if refusal(&std::env::temp_dir())?.is_some() => ON_DISK.into(),
        None => std::env::temp_dir(),
    };
    output::wait_while_frozen(&parent);
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("can't catch signals")?;
    }
    let scratch = directory_in(&parent)?;
    let report = Stage { scratch: scratch.path(), interrupted, begun: Instant::now() }.play(seconds);
    show_progress("");
    scratch.close().context("can't remove the temporary directory")?;
    report
}

fn directory_in(parent: &Path) -> anyhow::Result<tempfile::TempDir> {
    if let Some(reason) = refusal(parent)? {
        bail!("{}: {reason}; name a directory on a disk with --dir", escaped(parent));
    }
    let space =
        rustix::fs::statvfs(parent).with_context(|| format!("can't ask for space in {}", escaped(parent)))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    ensure!(
        free >= engine::DISK_BYTES_MAX,
        "{}: the demo needs up to {}, only {} are free; name another directory with --dir",
        escaped(parent),
        ByteSize(engine::DISK_BYTES_MAX),
        ByteSize(free)
    );
    let made = tempfile::Builder::new().prefix("pagekeeper-demo-").tempdir_in(parent);
    made.with_context(|| format!("can't make a directory in {}", escaped(parent)))
}

/// Returns why pages of files there can't be released, if they can't.
fn refusal(dir: &Path) -> anyhow::Result<Option<&'static str>> {
    let open = File::open(dir).with_context(|| format!("can't open {}", escaped(dir)))?;
    Ok(FileSystem::of(open, dir)?.release_refusal())
}

/// The place of the play, and the signals that end it.
struct Stage<'a> {
    scratch: &'a Path,
    interrupted: Arc<AtomicBool>,
    begun: Instant,
}

impl Stage<'_> {
    fn play(&self, seconds: u64) -> anyhow::Result<DemoReport> {
        let third = Duration::from_secs(seconds) / 3;
        let (alone, (guarded, guard)) = self.with_engine("left", false, |engine| {
            Ok((self.watch(engine, third, "alone")?, self.watch_guarded(engine, third)?))
        })?;
        let inside = self.with_engine("released", true, |engine| self.watch(engine, third, "inside"))?;
        let recovery = self.kill_a_store()?;
        Ok(DemoReport { seconds, parts: [alone, guarded, inside], guard, recovery })
    }

    /// Measures an engine on new files after a warm-up, then removes the files, and so their pages.
    fn with_engine<T>(
        &self,
        name: &str,
        releases: bool,
        measure: impl FnOnce(&Engine) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        show_progress("preparing the log files");
        let dir = self.scratch.join(name);
        let engine = Engine::create(&dir, releases)?;
        let measured = engine.run_during(|| {
            self.pause(WARM_UP)?;
            measure(&engine)
        })?;
        drop(engine);
        show_progress("removing the engine's files");
        std::fs::remove_dir_all(&dir).with_context(|| format!("can't remove {}", escaped(&dir)))?;
        Ok(measured)
    }

    /// Samples the engine for `time`.
    fn watch(&self, engine: &Engine, time: Duration, name: &str) -> anyhow::Result<MeasuredPart> {
        let begun = Instant::now();
        let first = engine.sample(self.begun)?;
        let commits = first.commits;
        let mut samples: Vec<EngineSample> = vec![first];
        while begun.elapsed() < time {
            show_progress(&format!("{name}: {} of {} s", begun.elapsed().as_secs(), time.as_secs()));
            self.pause(SAMPLE_EACH.min(time.saturating_sub(begun.elapsed())))?;
            ensure!(!engine.is_over(), "the engine has failed");
            samples.push(engine.sample(self.begun)?);
        }
        let commits = commits..samples.last().map_or(commits, |last| last.commits);
        Ok(MeasuredPart { samples, commits_us: engine.commits_us(commits), modes: engine.modes() })
    }

    /// Does the same with the guard beside it, and returns the guard's summary as well.
    fn watch_guarded(&self, engine: &Engine, time: Duration) -> anyhow::Result<(MeasuredPart, Value)> {
        let output = self.scratch.join("guard.json");
        let file = File::create(&output).with_context(|| format!("can't create {}", escaped(&output)))?;
        let pid = format!("--pid={}", std::process::id());
        let mut guard = this_program(["guard", "--json", "--profile", "generic", &pid]);
        let mut guard = guard.stdout(file).spawn().context("can't start the guard")?;
        let part =
            self.await_event(&output, "found").and_then(|_| self.watch(engine, time, "under the guard"));
        // The signal fails only if the guard has ended.
        let _ = rustix::process::kill_process(Pid::from_child(&guard), Signal::TERM);
        guard.wait()?;
        Ok((part?, self.await_event(&output, "summary")?))
    }

    /// Waits until the guard has reported an event of this kind.
    fn await_event(&self, output: &Path, kind: &str) -> anyhow::Result<Value> {
        let begun = Instant::now();
        loop {
            let events = std::fs::read_to_string(output).context("can't read what the guard reported")?;
            let mut events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(event) = events.find(|event| event["event"] == kind) {
                return Ok(event);
            }
            ensure!(begun.elapsed() < GUARD_LIMIT, "the guard reported no event \"{kind}\"");
            self.pause(SAMPLE_EACH)?;
        }
    }

    /// Kills a process that commits to a store, and opens the store.
    fn kill_a_store(&self) -> anyhow::Result<Value> {
        show_progress("committing to a page store");
        let dir = self.scratch.join("store");
        let mut child = this_program(["demo", "--store", "--dir"]);
        let mut child = child.arg(&dir).stdout(Stdio::piped()).spawn().context("can't start the store")?;
        let reports = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        let (mut acknowledged, mut first) = (0, None);
        for report in reports.map_while(Result::ok) {
            // A kill may cut off a line.
            acknowledged = report.parse().unwrap_or(0).max(acknowledged);
            let first = (acknowledged > 0).then(|| *first.get_or_insert_with(Instant::now));
            let is_interrupted = self.interrupted.load(Ordering::Relaxed);
            if is_interrupted || first.is_some_and(|first| first.elapsed() > STORE_COMMIT_TIME) {
                child.kill().context("can't kill the store")?;
            }
        }
        let status = child.wait()?;
        self.pause(Duration::ZERO)?;
        ensure!(acknowledged > 0, "the store ended before its first commit ({status})");
        show_progress("opening the store");
        store::recover(&dir, acknowledged)
    }

    /// Sleeps for `time`; a signal ends the play.
    fn pause(&self, time: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let is_interrupted = self.interrupted.load(Ordering::Relaxed);
            ensure!(!is_interrupted, "interrupted; the demo's processes are ended and its files removed");
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(SAMPLE_EACH));
        }
    }
}

/// Returns a command of this program, even if its file was replaced or removed.
fn this_program<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pagekeeper").args(arguments).stdin(Stdio::null());
    command
}

/// Shows the progress of the run, only on a terminal.
fn show_progress(text: &str) {
    let mut out = std::io::stderr().lock();
    if out.is_terminal() {
        // The run continues if the terminal is gone.
        let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsuitable_directory_is_refused_with_its_reason() {
        let refused = |dir| directory_in(Path::new(dir)).unwrap_err().to_string();
        assert!(refused("/dev/shm").starts_with("/dev/shm: on tmpfs"), "{}", refused("/dev/shm"));
        assert_eq!(refused("/nonexistent"), "can't open /nonexistent");
    }
}
