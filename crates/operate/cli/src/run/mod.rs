//! `pagekeeper run`: starts a command with its rules, followed by kernel events or with a library that its loader
//! preloads ([`means`] decides); or follows running processes ([`running`]).
//!
//! Without a report this process becomes the command, by execve(2): same process ID, nothing in between. With a
//! report it stays as the parent ([`parent`]). Invariants: the command is started even if neither means is
//! available, unless `--require` is given. It ends as the command ends, whatever happens to the report. The
//! command gets what this process was given (arguments, descriptors, signals, the rest of its environment).
//!
//! Fails as shells and env(1) do: 127 if the command is not found, 126 if it can't be executed.

mod budget;
mod choice;
mod counting;
mod cover;
mod elf;
mod find;
mod follower;
mod inside;
mod left;
mod library;
mod means;
mod obstacle;
mod parent;
mod report;
mod report_file;
mod running;
mod sys;
mod typed;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use pagekeeper_kernel::text::escaped;
use pagekeeper_preload::open_readers;
use pagekeeper_preload::settings::{Launcher, Settings, VARIABLE};
use pagekeeper_streams::StreamPace;

use crate::output;
use crate::pace::PaceArgs;
use choice::{As, Choice};
use cover::{Cover, Hindrance};
use find::NotFound;
use follower::{FollowPlan, Follower, Refusal};
use means::Means;
use obstacle::Why;

pub(crate) use sys::hold_all as hold_all_signals;

/// The variable that names libraries to a loader, separated by colons or spaces (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";

/// Run a command so that it does not evict others' pages from the page cache
///
/// Pages that a streaming program (tar, cp, rsync, mariabackup, mysqldump and others) brings in are released behind it, never
/// those that were there before. A command that no list and no profile knows is taken for a stream, and one line says so. A
/// script is none: the streams that it starts are known by their names.
///
/// As root, on Linux 5.9 and later, a stream is followed by events of the kernel, by a process beside it. For other users,
/// and for databases, a library is preloaded into the command and what it starts: databases release their logs once they
/// are synced, and write compactions at the disk's pace. What neither reaches is said.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "pagekeeper run [OPTIONS] -- COMMAND [ARGS]…",
    after_help = "Examples:
  pagekeeper run -- pg_basebackup -D /backup/base     back up without evicting the database
  pagekeeper run --report -- tar -cf /backup/d.tar /d report at the end what was released
  pagekeeper run --as stream -- ./own-backup.sh       treat all its processes as streams
  pagekeeper run --profile mariadb -- mariadbd        a server; its logs leave the page cache
  pagekeeper run --as bulk -- ./load-tables           large files, written out at the disk's pace
  pagekeeper run --pid 4711 --pid 4712                follow what runs already, until it ends

Exit codes: the command's own; if a signal ended the command, the same signal ends pagekeeper.
127: not found, 126: can't be executed, 1: refused (also a --pace without events), 2: wrong usage. With --pid: 0 once the processes
have ended, or as SIGINT, SIGTERM or SIGHUP comes; 1 where they can't be followed."
)]
pub(crate) struct Args {
    /// Profile for every process that is no streaming program, instead of the one that its name selects
    #[arg(long, value_name = "NAME", conflicts_with = "role")]
    profile: Option<String>,
    /// Role of every process of the command, whatever its name
    #[arg(long = "as", value_name = "WHAT", value_enum)]
    role: Option<As>,
    /// Follow this process, which runs already, and its children, until they end or a signal comes; no command is started.
    /// May be given several times
    #[arg(long = "pid", value_name = "PID", conflicts_with_all = ["command", "profile", "role", "require"])]
    pids: Vec<u32>,
    #[command(flatten)]
    pace: PaceArgs,
    /// The guard's configuration file: profiles, rules and streaming programs
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Report at the end what each rule did and what stayed resident, on standard error or in FILE; "json": as one JSON object, on
    /// standard error; pagekeeper stays as the command's parent until then
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = report::STANDARD_ERROR, value_hint = clap::ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Print the report as one JSON object; without --report on standard error
    #[arg(long)]
    json: bool,
    /// Fail rather than start the command without the rules
    #[arg(long)]
    require: bool,
    /// What a process of a command under `run` becomes instead of a program that its library does not reach
    #[arg(long, hide = true, num_args = 3, allow_hyphen_values = true, value_names = ["HOW", "SETTINGS", "FILE"])]
    inside: Option<Vec<OsString>>,
    /// The command and its arguments
    #[arg(required_unless_present = "pids", trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Starts the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = sys::Found::now();
    sys::survive_size_limit();
    if let Some(inside) = &args.inside {
        return Ok(inside::run(inside, &args.command, found));
    }
    // Before the command or a follower is started.
    args.report_to().and_then(report::file).into_iter().for_each(crate::frozen::wait_while_frozen);
    let choice = Choice { profile: args.profile.clone(), role: args.role, config: args.config.clone() };
    let settings = choice.settings(budget::budget_here())?;
    if !args.pids.is_empty() {
        return Ok(running::run(args, &settings));
    }
    let Some((name, arguments)) = args.command.split_first() else {
        return Err(output::UsageError("name a command".to_owned()).into());
    };
    let file = match find::find(name) {
        Ok(file) => file,
        Err(error) => return Ok(refuse(&error)),
    };
    let settings = Settings { command: typed::unlisted(&args.command, &settings), ..settings };
    let Reach { library, follower, refusal, problem } =
        Reach::of(&file, &args.command, &settings, args.pace.pace, |_| true);
    if let Some(sentence) = unpaced(args.pace.pace, follower.is_some(), refusal.as_ref()) {
        output::complain(sentence);
        return Ok(ExitCode::FAILURE);
    }
    match &problem {
        Some(Problem::All(sentence)) if args.require => {
            return Ok(refuse_as_required(sentence));
        }
        Some(problem) => problem.say(),
        None => settings.command.as_deref().into_iter().for_each(typed::say),
    }
    if let Some(directory) = library.as_deref().ok().and_then(Path::parent) {
        counting::remove_left(directory);
    }
    // The descendants of a followed command are followed, too.
    let launcher = follower.is_none().then(|| launcher(args.require)).flatten();
    let readers =
        library.as_deref().ok().and_then(|library| library::in_memory(library, open_readers::make).ok());
    let settings = Settings { launcher, readers, ..settings };
    let mut command = Command::new(name);
    command.args(arguments);
    found.pass_on(&mut command);
    if let Some(follower) = &follower {
        follower.attach(&mut command);
    }
    if let Some(to) = args.report_to() {
        let report = report::Pending::begin(library.as_deref().ok(), to, args.json);
        prepare(&mut command, &library, Settings { report: report.path(), ..settings }.encode());
        return match parent::run(&mut command) {
            Ok(ended) => {
                let (pages, refusal) = match follower.map(Follower::end) {
                    Some(Ok(pages)) => (Some(pages), None),
                    Some(Err(why)) => (None, Some(why.to_owned())),
                    None => (None, refusal.map(|refusal| refusal.to_string())),
                };
                report.end(pages, refusal);
                Ok(ended.pass_on())
            }
            Err(error) => Ok(refuse(&NotFound::of(name, &error))),
        };
    }
    prepare(&mut command, &library, settings.encode());
    Ok(refuse(&NotFound::of(name, &command.exec())))
}

impl Args {
    /// Returns the destination of the report, if there is one.
    fn report_to(&self) -> Option<&Path> {
        self.report.as_deref().or(self.json.then_some(Path::new(report::STANDARD_ERROR)))
    }
}

/// Returns a sentence why a requested pace can't be kept, if it can't.
fn unpaced(pace: StreamPace, is_followed: bool, refusal: Option<&Refusal>) -> Option<String> {
    if pace == StreamPace::Auto || is_followed {
        return None;
    }
    let why = refusal.map_or_else(|| "no rule takes it for a stream".to_owned(), Refusal::to_string);
    Some(format!(
        "--pace needs a stream that is followed by events, which this command is not ({why}): leave it out, and the library paces the \
         command by itself"
    ))
}

/// The means for a command.
struct Reach {
    /// The library's stored path.
    library: Result<PathBuf, NoLibrary>,
    /// A process that follows it by events.
    follower: Option<Follower>,
    /// Why it has no follower, if it should have one.
    refusal: Option<Refusal>,
    /// The part that the rules do not reach, and why.
    problem: Option<Problem>,
}

/// Why a command is started without the library.
enum NoLibrary {
    /// It could not be stored anywhere; contains a sentence.
    Nowhere(String),
    /// The command has no use for it, but its descendants may.
    Unused,
    /// The command's descendants must not have it either: they are followed, or would not find it.
    TakenOut,
}

/// The part of a command that the rules do not reach.
enum Problem {
    /// Everything; contains a sentence.
    All(String),
    /// The part that the library does not see, of a command that can't be followed by events; contains a sentence.
    Unseen(String),
}

impl Problem {
    fn say(&self) {
        match self {
            Self::All(sentence) => {
                output::complain(format_args!("{sentence}; it is started without the rules"));
            }
            Self::Unseen(sentence) => output::complain(sentence),
        }
    }
}

impl Reach {
    /// Prepares and starts the means for the command. `may_follow` says which commands may have a follower.
    fn of(
        file: &Path,
        command: &[OsString],
        settings: &Settings,
        pace: StreamPace,
        may_follow: fn(&Cover) -> bool,
    ) -> Self {
        let cover = cover::cover(file, command, settings);
        let processes = cover.kind.followed().filter(|_| may_follow(&cover));
        let tried = processes.map(|processes| Follower::start(&FollowPlan::new(processes, settings, pace)));
        let (follower, refusal) = match tried.transpose() {
            Ok(started) => (started, None),
            Err(refusal) => (None, Some(refusal)),
        };
        match means::choose(cover.kind, follower.is_some(), cover.hindrance.is_none()) {
            Means::Events(_) => {
                Self { library: Err(NoLibrary::TakenOut), follower, refusal: None, problem: None }
            }
            Means::Library => Self::by_library(file, command, &cover, refusal),
            Means::Nothing => Self::by_nothing(command, &cover, refusal),
        }
    }

    fn by_library(file: &Path, command: &[OsString], cover: &Cover, refusal: Option<Refusal>) -> Self {
        let library = library().map_err(NoLibrary::Nowhere).and_then(|library| below(command, library));
        let problem = match (&library, &refusal) {
            (Err(NoLibrary::Nowhere(sentence)), _) => Some(Problem::All(sentence.clone())),
            (Ok(_), Some(refusal)) if cover.maps => Some(Problem::Unseen(format!(
                "what {} uses by mappings stays, and can't be followed by events: {refusal}",
                escaped(file)
            ))),
            _ => None,
        };
        Self { library, follower: None, refusal, problem }
    }

    fn by_nothing(command: &[OsString], cover: &Cover, refusal: Option<Refusal>) -> Self {
        let library = match &cover.hindrance {
            // It may still reach what a wrapper starts.
            Some(Hindrance::Wrapper(_)) => {
                library().map_err(NoLibrary::Nowhere).and_then(|library| below(command, library))
            }
            _ => Err(NoLibrary::Unused),
        };
        let problem = cover.hindrance.as_ref().map(|hindrance| match &refusal {
            Some(refusal) => {
                Problem::All(format!("{hindrance}, and its pages can't be followed by events: {refusal}"))
            }
            None => Problem::All(format!("{hindrance} ({})", instead(hindrance))),
        });
        Self { library, follower: None, refusal, problem }
    }
}

/// Returns the library, unless the command's descendants would not find it below their root: their loader would
/// complain.
fn below(command: &[OsString], library: PathBuf) -> Result<PathBuf, NoLibrary> {
    let has = |root: PathBuf| root.join(library.strip_prefix("/").unwrap_or(&library)).exists();
    if cover::other_root(command).is_none_or(has) { Ok(library) } else { Err(NoLibrary::TakenOut) }
}

/// Returns this program, as the launcher of programs that the library does not reach.
fn launcher(is_required: bool) -> Option<Launcher> {
    std::env::current_exe().ok().map(|path| Launcher { path, is_required })
}

/// Stores the library, or returns a sentence.
fn library() -> Result<PathBuf, String> {
    library::lay_out().map_err(|error| error.to_string())
}

/// Returns an alternative.
fn instead(hindrance: &Hindrance) -> &'static str {
    match hindrance {
        Hindrance::Program(obstacle) => match obstacle.why {
            Why::Privileged => {
                "as the user whose rights it gets it can be run with them; if it is a stream, --as stream says so"
            }
            Why::Static | Why::Go | Why::Musl | Why::Foreign => {
                "if it is a stream, --as stream says so; pagekeeper guard --streams releases from outside what it brings into the page cache"
            }
        },
        Hindrance::Wrapper(_) => "start pagekeeper run inside; if it is a stream, --as stream says so",
        Hindrance::Elsewhere(_) => "start pagekeeper run inside",
    }
}

/// Sets the command's environment.
fn prepare(command: &mut Command, library: &Result<PathBuf, NoLibrary>, settings: impl AsRef<OsStr>) {
    let before = std::env::var_os(PRELOAD).unwrap_or_default();
    match library {
        Ok(library) => {
            let threads = library::keeps_threads_apart(library::glibc().as_deref());
            let all = others(&before).chain(own(library, threads));
            command.env(PRELOAD, joined(all)).env(VARIABLE, settings);
        }
        // This process runs inside another `pagekeeper run`. Otherwise the environment is passed on unchanged, in
        // its order.
        Err(NoLibrary::TakenOut) if has_library(&before) => {
            match joined(others(&before)) {
                none if none.is_empty() => command.env_remove(PRELOAD),
                others => command.env(PRELOAD, others),
            };
            command.env_remove(VARIABLE);
        }
        Err(_) => {}
    }
}

/// Returns the other preloaded libraries. Inside another `pagekeeper run` the library itself is already there, and
/// must come once.
fn others(before: &OsStr) -> impl Iterator<Item = &[u8]> {
    let parted = before.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    parted.filter(|name| !name.is_empty() && !library::is_library(name) && *name != library::THREADS)
}

fn has_library(before: &OsStr) -> bool {
    before.as_bytes().split(|byte| matches!(byte, b':' | b' ')).any(library::is_library)
}

/// Returns the library, followed by the threads library if the C library lacks threads.
fn own(library: &Path, threads: bool) -> impl Iterator<Item = &[u8]> {
    [library.as_os_str().as_bytes()].into_iter().chain(threads.then_some(library::THREADS))
}

fn joined<'a>(names: impl Iterator<Item = &'a [u8]>) -> OsString {
    OsString::from_vec(names.collect::<Vec<_>>().join(&b':'))
}

/// Reports that a command is not started because the rules don't reach it.
fn refuse_as_required(sentence: &str) -> ExitCode {
    output::complain(format_args!("{sentence}; not started, by --require"));
    ExitCode::FAILURE
}

fn refuse(error: &NotFound) -> ExitCode {
    output::complain(&error.sentence);
    ExitCode::from(error.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_needs_events() {
        assert_eq!(unpaced(StreamPace::Auto, false, None), None);
        assert_eq!(unpaced(StreamPace::Idle, true, None), None);
        for (refusal, said) in [(None, "no rule takes it"), (Some(Refusal::Silent), "does not answer")] {
            let sentence = unpaced(StreamPace::Off, false, refusal.as_ref()).unwrap();
            assert!(sentence.contains(said) && sentence.contains("leave it out"), "{sentence}");
        }
    }

    #[test]
    fn what_was_preloaded_stays_and_the_library_comes_once() {
        let library = "/run/pagekeeper/libpagekeeper-0123456789abcdef.so";
        let preloaded =
            |before: &OsStr, threads| joined(others(before).chain(own(Path::new(library), threads)));
        let older = "/tmp/pagekeeper-0/libpagekeeper-fedcba9876543210.so";
        for (before, expected) in [
            (String::new(), library.to_owned()),
            ("libfaketime.so".to_owned(), format!("libfaketime.so:{library}")),
            (" /a.so:/b.so ".to_owned(), format!("/a.so:/b.so:{library}")),
            (library.to_owned(), library.to_owned()),
            (format!("{library}:/a.so:{older}"), format!("/a.so:{library}")),
        ] {
            assert_eq!(preloaded(OsStr::new(&before), false), OsStr::new(&expected), "{before}");
            let before = preloaded(OsStr::new(&before), true);
            assert_eq!(before, OsStr::new(&format!("{expected}:libpthread.so.0")));
            assert_eq!(preloaded(&before, true), before, "once");
        }
    }
}
