//! `pagekeeper guard`: the daemon, its status line and its summary.
//!
//! SIGINT and SIGTERM end it at once, with the summary. SIGHUP makes it read its configuration
//! again, and keep the old one if the new one can't be read. If the reader of its output leaves, it
//! ends silently. A service manager is notified when the guard is ready, reads its configuration,
//! is alive and ends ([`service`](crate::service)).

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use pagekeeper_catalog::{BUILT_IN_PROFILES, ProfileError};
use pagekeeper_guard::{Control, Event, GroupNews, Guard, Options, Selector, Streams, Summary, Tick};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_metrics::{Metrics, MetricsError, parse_address};
use pagekeeper_policy::group::GroupReason;
use pagekeeper_text::{ByteSize, counted, escaped, listed_up_to, parse_period};
use signal_hook::consts::SIGHUP;

use crate::arguments::DirArgs;
use crate::output::{self, ConfigError, SCHEMA_VERSION, UsageError};
use crate::service::Manager;
use crate::signals::Stop;

/// The configuration file of a guard that watches the whole host.
const CONFIG_FILE: &str = "/etc/pagekeeper/guard.toml";
/// Interval of the status line without a terminal, if anything was released since the last.
const STATUS_EVERY: Duration = Duration::from_secs(60);

/// Keep the log files of running databases out of the page cache
///
/// Finds MySQL, MariaDB, PostgreSQL, RocksDB, TiKV, MongoDB, etcd, Prometheus, NATS, Kafka,
/// RabbitMQ, Cassandra and OpenSearch by their processes and open files, recognizes their log
/// files, and releases the pages that nobody will read again: those behind the writer, and behind
/// followers such as replicas. It reads, starts writeback and advises the kernel; it can't change a
/// byte of a database's files.
#[derive(Debug, clap::Args)]
#[command(mut_arg("dirs", |dirs| dirs.help("Watch the logs in this directory only; may be given several times")),
          after_help = crate::help::of!("guard"))]
#[allow(clippy::struct_excessive_bools, clippy::option_option, reason = "each is as it can be typed")]
pub(crate) struct GuardArgs {
    /// Watch this process only; may be given several times
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    #[command(flatten)]
    dirs: DirArgs,
    /// Profile to use, instead of the one that matches
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Configuration file [default: /etc/pagekeeper/guard.toml, if it is there and neither PID nor
    /// DIR is given]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Check the configuration with all other options, and exit: with 0 if it is valid, 1 if a file
    /// can't be read, 2 if it is wrong [default: that of --config]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    check_config: Option<Option<PathBuf>>,
    /// Time between ticks [default: 500ms]
    #[arg(long, alias = "tick", value_name = "TIME", value_parser = parse_period)]
    interval: Option<Duration>,
    /// Watch these databases only, of those that are found: user:NAME, unit:GLOB, cgroup:GLOB,
    /// dir:PATH or pid:PID
    #[arg(long, value_name = "SELECTOR")]
    only: Vec<Selector>,
    /// Never watch these, not even if they are named; as --only
    #[arg(long, value_name = "SELECTOR")]
    never: Vec<Selector>,
    /// Act on this database alone, and only report what would be done to all others; as --only
    #[arg(long, value_name = "SELECTOR")]
    canary: Option<Selector>,
    /// Follow streaming programs, and release what they bring into the page cache
    ///
    /// For backups, dumps and copies: tar, rsync, mariabackup, restic and others; the section
    /// `streams` of the configuration names more. The kernel reports which pages such a program and
    /// its children bring in, and the guard releases them behind it. Pages that were in the page
    /// cache before, and pages that other programs use, stay. It needs Linux 5.8 with BTF and the
    /// capabilities at the end of this help; without them the guard says that streams are not
    /// followed, and serves the databases.
    #[arg(long, conflicts_with = "once")]
    streams: bool,
    /// Only report what would be released
    #[arg(long)]
    dry_run: bool,
    /// Release once, and exit
    #[arg(long, conflicts_with = "duration")]
    once: bool,
    /// Exit after this time
    #[arg(long, value_name = "TIME", value_parser = parse_period)]
    duration: Option<Duration>,
    /// Print events as JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Serve metrics for Prometheus and a web page, on a port of 127.0.0.1 or on ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address, conflicts_with = "once")]
    metrics: Option<SocketAddr>,
    /// Add metrics of single files: the N (at most 1000) with the most resident bytes
    #[arg(long, value_name = "N", requires = "metrics", value_parser = clap::value_parser!(u16).range(0..=1000))]
    metrics_files: Option<u16>,
    /// Print a built-in profile and exit
    #[arg(long, value_name = "NAME", exclusive = true)]
    print_profile: Option<String>,
}

impl GuardArgs {
    /// Returns the options of this configuration file, overridden by the command line.
    fn options(&self, config: Option<&Path>) -> Result<Options, ProfileError> {
        let mut options = match config {
            Some(path) => Options::read(path)?,
            None => Options::default(),
        };
        if let Some(interval) = self.interval {
            options.tick = interval;
            options.idle_tick = options.idle_tick.max(interval);
        }
        options.dry_run |= self.dry_run;
        // A configuration that turns streams on says which, and maybe none by name.
        if self.streams && !options.streams.on {
            options.streams.on = true;
            if options.streams.processes.is_empty() {
                options.streams.processes = Streams::default().processes;
            }
        }
        // A single pass ends before any stream does.
        options.streams.on &= !self.once;
        options.targets.only.extend(self.only.iter().cloned());
        options.targets.never.extend(self.never.iter().cloned());
        if self.canary.is_some() {
            options.targets.canary.clone_from(&self.canary);
        }
        if self.is_named() {
            options.pids.clone_from(&self.pid);
            options.directories = self.dirs.all();
            options.find = false;
        }
        if self.profile.is_some() {
            options.profile.clone_from(&self.profile);
        }
        Ok(options)
    }

    /// Whether processes or directories are named.
    fn is_named(&self) -> bool {
        !self.pid.is_empty() || !self.dirs.all().is_empty()
    }

    /// Returns the configuration file, if there is one. A file of the host's that can't be seen is
    /// an error when it is read.
    fn config(&self) -> Option<&Path> {
        let given = self.check_config.as_ref().and_then(|file| file.as_deref()).or(self.config.as_deref());
        let is_absent = |path: &Path| {
            path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        let of_host = || Some(Path::new(CONFIG_FILE)).filter(|path| !self.is_named() && !is_absent(path));
        given.or_else(of_host)
    }

    /// Returns the error of a configuration, or of the arguments alone, with a hint if a
    /// configuration may be missing.
    fn refused(config: Option<&Path>, error: ProfileError) -> anyhow::Error {
        let is_wrong = |path| Options::read(path).and_then(Guard::check).is_err();
        let hint = "; a profile of your own is known by a file for --config that lists it under \"profiles\"";
        match error {
            ProfileError::Io { .. } => error.into(),
            error if config.is_some_and(is_wrong) => ConfigError(error.to_string()).into(),
            ProfileError::Unknown { .. } => UsageError(format!("{error}{hint}")).into(),
            error => UsageError(error.to_string()).into(),
        }
    }

    /// Starts the metrics server; fails if the address is not available.
    fn start_metrics(&self, options: &Options) -> Result<Option<Metrics>, MetricsError> {
        let top = usize::from(self.metrics_files.unwrap_or(0));
        self.metrics.map(|address| Metrics::start(address, options, top)).transpose()
    }
}

/// Runs the guard until a signal stops it.
pub(crate) fn run(args: &GuardArgs) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.print_profile {
        return print_profile(name);
    }
    // A file that goes or comes later changes nothing: a reload then keeps what is in force.
    let config = args.config();
    let refused = |error| GuardArgs::refused(config, error);
    if args.check_config.is_some() {
        args.options(config).and_then(Guard::check).map_err(refused)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Stop::on_signals().context("catch signals")?;
    let reload = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, Arc::clone(&reload)).context("catch SIGHUP")?;
    let options = args.options(config).map_err(refused)?;
    let mut guard = Guard::new(options.clone(), ProcRoot::default()).map_err(refused)?;
    let metrics = args.start_metrics(&options)?;
    let mut manager = Manager::of_this_process().unwrap_or_else(|error| {
        output::complain(format_args!("the service manager can't be reached by NOTIFY_SOCKET: {error}"));
        Manager::default()
    });
    // Not after the first tick: that tick may wait for file systems that do not answer.
    manager.ready();
    let mut printer = Printer::new(args.json);
    let began = Instant::now();
    let mut ticks = 0;
    let unheard = Cell::new(false);
    let summary = guard.run(
        |guard, pause| {
            // With very many processes, it takes more than one tick to find all.
            ticks += u32::from(ticks > 0 || guard.has_seen_all());
            if let Some(metrics) = &metrics {
                metrics.ticked(guard.done(), &guard.streams(), guard.tick_by_process());
            }
            // After all files are found, they are sampled at the next tick; the tick after that
            // releases pages that had to be written first.
            if (args.once && ticks >= 3 && !guard.is_behind()) || guard.is_done() || unheard.get() {
                return Control::Stop;
            }
            if reload.swap(false, Ordering::Relaxed) {
                manager.reloading();
                let reloaded = args.options(config).and_then(|options| {
                    guard.reload(options.clone())?;
                    Ok(options)
                });
                if let Err(error) = &reloaded {
                    output::complain(format_args!("the configuration stays as it was: {error}"));
                }
                if let Some(metrics) = &metrics {
                    metrics.reconfigured(reloaded.as_ref().ok());
                }
                manager.ready();
            }
            let left = args.duration.map(|duration| duration.saturating_sub(began.elapsed()));
            if is_stopped(&stop, &mut manager, left.map_or(pause, |left| pause.min(left)))
                || left.is_some_and(|left| left <= pause)
            {
                return Control::Stop;
            }
            if let Some(metrics) = &metrics {
                metrics.resumed();
            }
            Control::Continue
        },
        &mut |event| {
            printer.print(event);
            for limit in metrics.iter().flat_map(|metrics| metrics.record(event)) {
                printer.print(&limit);
            }
            unheard.set(printer.reader_left());
        },
    );
    manager.stopping();
    printer.print(&Event::Summary(summary));
    match printer.failed {
        Some(error) => Err(error.into()),
        // In a long run, problems appear and disappear; a single pass either has met some or has
        // not.
        None if (args.is_named() && !printer.watched) || (args.once && printer.problems) => {
            Ok(ExitCode::FAILURE)
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Waits, and meanwhile notifies the manager that the guard is alive; returns whether a signal has
/// arrived.
fn is_stopped(stop: &Stop, manager: &mut Manager, pause: Duration) -> bool {
    let until = Instant::now() + pause;
    loop {
        manager.alive();
        let left = until.saturating_duration_since(Instant::now());
        match stop.wait(manager.pause(left)) {
            Ok(false) if Instant::now() < until => {}
            Ok(stopped) => return stopped,
            Err(_) => return true,
        }
    }
}

fn print_profile(name: &str) -> anyhow::Result<ExitCode> {
    let Some((_, text)) = BUILT_IN_PROFILES.iter().find(|(other, _)| *other == name) else {
        let known: Vec<&str> = BUILT_IN_PROFILES.iter().map(|(name, _)| *name).collect();
        return Err(
            UsageError(format!("no profile is called \"{name}\"; there are {}", known.join(", "))).into()
        );
    };
    output::print(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints events: as JSON lines, or for people.
#[allow(clippy::struct_excessive_bools, reason = "each says one thing about the output")]
struct Printer {
    json: bool,
    /// Standard output is a terminal: the status line is redrawn in place.
    terminal: bool,
    status_drawn: bool,
    last_status: Instant,
    released: u64,
    released_at_last_status: u64,
    /// Something was found to watch.
    watched: bool,
    /// Something could not be seen or done.
    problems: bool,
    /// The first write that failed; nothing is written after it.
    failed: Option<io::Error>,
}

impl Printer {
    fn new(json: bool) -> Self {
        Self {
            json,
            terminal: !json && io::stdout().is_terminal(),
            status_drawn: false,
            last_status: Instant::now(),
            released: 0,
            released_at_last_status: 0,
            watched: false,
            problems: false,
            failed: None,
        }
    }

    fn print(&mut self, event: &Event) {
        self.watched |= matches!(event, Event::Found { .. });
        self.problems |= matches!(event, Event::Problem { .. });
        if self.failed.is_some() {
            return;
        }
        let printed = if self.json { output::json(SCHEMA_VERSION, event) } else { self.print_text(event) };
        self.failed = printed.err();
    }

    /// Whether standard output is a pipe without a reader.
    fn reader_left(&self) -> bool {
        self.failed.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    fn print_text(&mut self, event: &Event) -> io::Result<()> {
        let line = match event {
            Event::Tick(tick) => return self.status(tick),
            Event::Start { dry_run: true, .. } => "dry run: nothing is released".to_owned(),
            Event::Found { pid, profile, also, directories } => {
                let profiles = [std::slice::from_ref(profile), also.as_slice()].concat().join(" and ");
                format!("watching {profiles}{}: {}", process_text(*pid), directories_text(directories))
            }
            Event::Lost { pid, profile } => format!("{profile} (process {pid}) has ended"),
            Event::Refused { pid, profile, path, reason } => {
                let (path, process) = (escaped(path), process_text(*pid));
                return self.warn(&format!("{path} is not watched for {profile}{process}: {reason}"));
            }
            Event::Setting { pid: _, profile: _, path, setting } => {
                format!("{} is not overwritten in parts of pages: {}", escaped(path), escaped(setting))
            }
            Event::Shared { pid, profile, path, with } => {
                let with = process_text(*with);
                format!("{profile} (process {pid}) shares {} with another{with}", escaped(path))
            }
            Event::TakenOver { pid, profile, path, from } => format!(
                "{} is watched for {profile} (process {pid}) from now on: its claim is better than that of process {from}",
                escaped(path)
            ),
            Event::Stream { pid, program } => {
                format!("following the stream {} (process {pid})", escaped(program))
            }
            Event::StreamEnded { pid, program, seconds, files, released_bytes, .. } => {
                let (released, files) = (ByteSize(*released_bytes), output::files(*files));
                format!(
                    "the stream {} (process {pid}) has ended: released {released} behind it, {files}, {seconds:.0} s",
                    escaped(program)
                )
            }
            Event::Cgroup { path, file_bytes, limit_bytes, news } => {
                match group_text(path, *file_bytes, *limit_bytes, *news) {
                    Some(text) => text,
                    None => return Ok(()),
                }
            }
            Event::Would { path, action, start, end } => {
                format!("would {action} {}..{} of {}", ByteSize(*start), ByteSize(*end), escaped(path))
            }
            Event::Summary(summary) => summary_text(summary),
            Event::InPart { pid: _, profile: _, path, budget } => {
                return self.warn(&format!("{}: {}", escaped(path), escaped(&budget.to_string())));
            }
            Event::Hung { pid: _, profile: _, path, seconds } => {
                return self.warn(&format!(
                    "{}: the file system has not answered for {seconds:.0} s: the logs there are left alone until it does, all others are served",
                    escaped(path)
                ));
            }
            Event::Answers { pid: _, profile: _, path, seconds } => {
                format!("{}: the file system answers again after {seconds:.0} s", escaped(path))
            }
            Event::VisibilityGap { gap } => return self.warn(&escaped(gap).to_string()),
            Event::Warning { path, warning } => {
                return self.warn(&format!("{}: {}", escaped(path), escaped(warning)));
            }
            Event::Problem { path, problem } => {
                // Most errors of the kernel crate name the path themselves.
                let (path, problem) = (escaped(path).to_string(), escaped(problem).to_string());
                let named = problem.contains(&path);
                return self.complain(&if named { problem } else { format!("{path}: {problem}") });
            }
            Event::Start { dry_run: false, .. } => return Ok(()),
        };
        self.clear_status()?;
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    }

    fn complain(&mut self, text: &str) -> io::Result<()> {
        self.clear_status()?;
        output::complain(text);
        Ok(())
    }

    fn warn(&mut self, text: &str) -> io::Result<()> {
        self.clear_status()?;
        output::warn(text);
        Ok(())
    }

    fn status(&mut self, tick: &Tick) -> io::Result<()> {
        self.released += tick.released_bytes;
        let has_news = self.released > self.released_at_last_status;
        if !(self.terminal || has_news && self.last_status.elapsed() >= STATUS_EVERY) {
            return Ok(());
        }
        let mut line = format!(
            "{} log files, resident {}, released {}",
            tick.files,
            ByteSize(tick.resident_bytes),
            ByteSize(self.released),
        );
        if tick.followers > 0 {
            let _ = write!(line, ", {}", counted(tick.followers as u64, "follower", "followers"));
        }
        if tick.kept_logs > 0 {
            let logs = counted(tick.kept_logs as u64, "log is", "logs are");
            let _ = write!(line, ", {logs} read back and kept");
        }
        self.last_status = Instant::now();
        self.released_at_last_status = self.released;
        self.clear_status()?;
        self.status_drawn = self.terminal;
        let mut out = io::stdout().lock();
        write!(out, "{line}{}", if self.terminal { "" } else { "\n" })?;
        out.flush()
    }

    fn clear_status(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.status_drawn) {
            io::stdout().lock().write_all(b"\r\x1b[K")?;
        }
        Ok(())
    }
}

/// Returns " (process 7)", or nothing.
fn process_text(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

/// Returns the first directory, and the number of others: a database may have a thousand.
fn directories_text(directories: &[PathBuf]) -> String {
    const DIRECTORIES_SHOWN_MAX: usize = 8;
    listed_up_to(&directories.iter().map(|path| escaped(path)).collect::<Vec<_>>(), DIRECTORIES_SHOWN_MAX)
}

/// Returns the message about a memory cgroup; single steps have none.
fn group_text(path: &Path, file: u64, limit: Option<u64>, news: GroupNews) -> Option<String> {
    let of = limit.map(|limit| format!(" of {}", ByteSize(limit))).unwrap_or_default();
    let what = match news {
        GroupNews::Reclaimed { .. } | GroupNews::LimitsHit { oom_kill: 0, .. } => return None,
        GroupNews::LimitsHit { oom_kill, .. } => {
            let killed = counted(oom_kill, "process was", "processes were");
            format!("out of memory: {killed} killed for it")
        }
        GroupNews::Over => "over its share: the logs of its databases are kept tighter".to_owned(),
        GroupNews::Within => "within its share again".to_owned(),
        GroupNews::WouldReclaim { bytes } => {
            format!("would reclaim file pages of it, in steps, the first of {}", ByteSize(bytes))
        }
        GroupNews::Stopped { reason } => match reason {
            GroupReason::Refaults => "file pages are read again: it is left alone for a while",
            GroupReason::Stalls => "its tasks wait for memory: it is left alone for a while",
            GroupReason::Exhausted => "the kernel finds no more to reclaim: it is left alone for a while",
            _ => "this kernel does not count what is read again: nothing is reclaimed",
        }
        .to_owned(),
    };
    Some(format!("cgroup {}: page cache {}{of}: {what}", escaped(path), ByteSize(file)))
}

fn summary_text(summary: &Summary) -> String {
    let mut text = format!(
        "released {} in {:.0} s, {}",
        ByteSize(summary.released_total_bytes),
        summary.seconds,
        counted(summary.ticks, "tick", "ticks")
    );
    for (class, bytes) in &summary.released_bytes {
        let _ = write!(text, "\n  {class:<8} {}", ByteSize(*bytes));
    }
    for (class, bytes) in &summary.read_back_bytes {
        let _ = write!(text, "\n  of {class} {} were read back by others", ByteSize(*bytes));
    }
    for (program, bytes) in &summary.released_behind_streams_bytes {
        let _ = write!(text, "\n  behind {} {}", escaped(program), ByteSize(*bytes));
    }
    for (group, bytes) in &summary.reclaimed_in_cgroups_bytes {
        let _ = write!(text, "\n  reclaimed in {} {}", escaped(group), ByteSize(*bytes));
    }
    let _ = write!(
        text,
        "\nresident in log files: {} before, {} after, {} at most",
        ByteSize(summary.resident_before_bytes),
        ByteSize(summary.resident_after_bytes),
        ByteSize(summary.resident_peak_bytes)
    );
    let _ = write!(
        text,
        "\nthe guard itself: {:.2} s of CPU time ({:.2} % of a core)",
        summary.cpu_seconds, summary.cpu_percent
    );
    if let Some(bytes) = summary.memory_peak_bytes {
        let _ = write!(text, ", {} of memory at most", ByteSize(bytes));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct GuardAlone {
        #[command(flatten)]
        args: GuardArgs,
    }

    fn parsed(words: &[&str]) -> GuardArgs {
        <GuardAlone as clap::Parser>::parse_from(["guard"].iter().chain(words)).args
    }

    #[test]
    fn a_configuration_without_names_of_streams_follows_none_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("guard.toml");
        let processes = |text: &str, words: &[&str]| {
            std::fs::write(&path, text).unwrap();
            let streams = parsed(words).options(Some(&path)).unwrap().streams;
            (streams.on, streams.processes)
        };
        let default = Streams::default().processes;
        let of_users = "[streams]\nprocesses = []\nsocket = \"/run/s\"\n";
        let of_unit = "[streams]\nprocesses = [\"unit:backup.service\"]\n";
        for text in [of_users, of_unit] {
            assert_eq!(processes(text, &[]), (true, Vec::new()), "{text}");
            assert_eq!(processes(text, &["--streams"]), (true, Vec::new()), "{text}");
        }
        assert!(!processes("[streams]\nprocesses = []\n", &[]).0);
        for text in ["", "[streams]\n", "[streams]\nprocesses = []\n"] {
            assert_eq!(processes(text, &["--streams"]), (true, default.clone()), "{text}");
        }
    }

    #[test]
    fn the_hosts_configuration_is_for_a_guard_that_names_nothing() {
        let config = |words: &[&str]| parsed(words).config().map(Path::to_path_buf);
        let of_host = Path::new(CONFIG_FILE).exists().then(|| CONFIG_FILE.into());
        assert_eq!((config(&[]), config(&["--check-config"])), (of_host.clone(), of_host));
        assert_eq!((config(&["/logs"]), config(&["--pid", "7", "--check-config"])), (None, None));
        assert_eq!(config(&["--config", "a", "/logs"]), Some("a".into()));
        assert_eq!(config(&["--config", "a", "--check-config"]), Some("a".into()));
        assert_eq!(config(&["--config", "a", "--check-config", "b"]), Some("b".into()));
    }

    #[test]
    fn the_first_of_very_many_directories_are_shown() {
        let directories =
            |count: usize| (1..=count).map(|at| PathBuf::from(format!("/d{at}"))).collect::<Vec<_>>();
        assert_eq!(directories_text(&directories(2)), "/d1, /d2");
        assert!(directories_text(&directories(8)).ends_with("/d7, /d8"));
        assert!(directories_text(&directories(1000)).ends_with("/d8 and 992 more"));
    }
}
