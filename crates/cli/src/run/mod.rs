//! `pagekeeper run`: starts a command with the rules inside it, by a library that its loader preloads.
//!
//! Without a report this process becomes the command, by execve(2): same process id, nothing left between. With a report it stays as the
//! parent ([`parent`]). Invariants: whatever keeps the library out, the command is started all the same, unless `--require` says
//! otherwise; whatever becomes of the report, it ends as the command ends; what the command is given (arguments, descriptors, signals, the rest of its environment) is what this process was given.
//!
//! Fails as shells and env(1) do: 127 where the command is not found, 126 where it can't be executed.

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
mod obstacle;
mod parent;
mod report;
mod report_file;
mod sys;
mod typed;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use pagekeeper_kernel::text::escaped;
use pagekeeper_preload::settings::{Launcher, Role, Settings, VARIABLE};

use crate::output;
use choice::{As, Choice};
use cover::{Cover, Hindrance};
use find::NotFound;
use follower::{Follower, Refusal};
use obstacle::Why;

pub(crate) use sys::hold_all as hold_all_signals;

/// The variable that names libraries to a loader, separated by colons or spaces (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";

/// Run a command so that it does not evict others' pages from the page cache
///
/// The command itself is not changed: a library is preloaded into it and into the processes that it starts, and applies
/// rules at their system calls. Without options the name of a process decides: streaming programs (tar, cp, rsync,
/// mariabackup, mysqldump and others) release the pages that they brought in themselves, never those that were there
/// before; databases release their logs once they are synced, and write compactions at the disk's pace. A command that no
/// list and no profile knows is taken for a stream, and one line says so; what it starts becomes one once it has gone
/// through 64 MiB of files without coming back.
///
/// A stream that no library can be loaded into (statically linked, written in Go, under sudo) is followed by events of the
/// kernel, by a process beside it that releases its pages: as root, on Linux 5.9 and later. Without events, and for other
/// programs, a message says that the command runs without the rules.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "pagekeeper run [OPTIONS] -- COMMAND [ARGS]…",
    after_help = "Examples:
  pagekeeper run -- pg_basebackup -D /backup/base     back up without evicting the database
  pagekeeper run --report -- tar -cf /backup/d.tar /d report at the end what was released
  pagekeeper run --as stream -- ./own-backup.sh       treat all its processes as streams
  pagekeeper run --profile mariadb -- mariadbd        a server; its logs leave the page cache
  pagekeeper run --as bulk -- ./load-tables           large files, written out at the disk's pace

Exit codes: the command's own; if a signal ended the command, the same signal ends pagekeeper.
127: not found, 126: can't be executed, 1: refused by --require, 2: wrong usage.

io_uring and io_submit bypass the C library: files used that way are watched by their size and residency, and with --as stream all that the command brings in is
released by events. For programs that can't be restarted, or can't load the library, use
pagekeeper guard --streams, which releases from outside."
)]
pub(crate) struct Args {
    /// Profile for every process that is no streaming program, instead of the one that its name selects
    #[arg(long, value_name = "NAME", conflicts_with = "role")]
    profile: Option<String>,
    /// Role of every process of the command, whatever its name
    #[arg(long = "as", value_name = "WHAT", value_enum)]
    role: Option<As>,
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
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Starts the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = sys::Found::now();
    sys::survive_size_limit();
    if let Some(inside) = &args.inside {
        return Ok(inside::run(inside, &args.command, found));
    }
    let choice = Choice { profile: args.profile.clone(), role: args.role, config: args.config.clone() };
    let settings = choice.settings(budget::budget_here())?;
    let Some((name, arguments)) = args.command.split_first() else {
        return Err(output::UsageError("name a command".to_owned()).into());
    };
    let file = match find::find(name) {
        Ok(file) => file,
        Err(error) => return Ok(refuse(&error)),
    };
    let settings = Settings { command: typed::unlisted(&args.command, &settings), ..settings };
    let report = args.report.as_deref().or(args.json.then_some(Path::new(report::STANDARD_ERROR)));
    let Means { library, follower, problem } = Means::of(&file, &args.command, &settings);
    if let Some(problem) = &problem {
        if args.require {
            problem.refuse();
            return Ok(ExitCode::FAILURE);
        }
        problem.say();
    } else if let Some(command) = &settings.command {
        typed::say(command);
    }
    if let Some(directory) = library.as_deref().ok().and_then(Path::parent) {
        counting::remove_left(directory);
    }
    let (follower, refusal) = match follower {
        Some(Ok(follower)) => (Some(follower), None),
        Some(Err(refusal)) => (None, Some(refusal.to_string())),
        None => (None, None),
    };
    // What a followed command starts is followed, too.
    let launcher = follower.is_none().then(|| launcher(args.require)).flatten();
    let settings = Settings { launcher, ..settings };
    let mut command = Command::new(name);
    command.args(arguments);
    found.pass_on(&mut command);
    if let Some(follower) = &follower {
        follower.attach(&mut command);
    }
    if let Some(to) = report {
        let report = report::Pending::begin(library.as_deref().ok(), to, args.json);
        prepare(&mut command, &library, Settings { report: report.path(), ..settings }.encode());
        return match parent::run(&mut command) {
            Ok(ended) => {
                let (pages, refusal) = match follower.map(Follower::end) {
                    Some(Ok(pages)) => (Some(pages), refusal),
                    Some(Err(why)) => (None, Some(why.to_owned())),
                    None => (None, refusal),
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

/// By what the rules reach a command.
struct Means {
    /// The library, laid out.
    library: Result<PathBuf, NoLibrary>,
    /// A process that follows it by events, where it is to have one.
    follower: Option<Result<Follower, Refusal>>,
    /// What they do not reach, and why.
    problem: Option<Problem>,
}

/// Why a command is started without the library.
enum NoLibrary {
    /// It could be laid out nowhere: a sentence.
    Nowhere(String),
    /// The command has no use for it; what it starts may.
    Unused,
    /// What the command starts would not find it.
    Hidden,
}

/// What the rules do not reach of a command.
enum Problem {
    /// All: a sentence.
    All(String),
    /// What the library does not see, of a command that can't be followed by events: a sentence.
    Unseen(String),
}

impl Problem {
    fn sentence(&self) -> &str {
        match self {
            Self::All(sentence) | Self::Unseen(sentence) => sentence,
        }
    }

    fn refuse(&self) {
        output::complain(format_args!("{}; not started, by --require", self.sentence()));
    }

    fn say(&self) {
        match self {
            Self::All(sentence) => {
                output::complain(format_args!("{sentence}; it is started without the rules"));
            }
            Self::Unseen(sentence) => output::complain(sentence),
        }
    }
}

impl Means {
    /// Lays out and starts what the command is to have.
    fn of(file: &Path, command: &[OsString], settings: &Settings) -> Self {
        let Cover { hindrance, wants_events } = cover::cover(file, command, settings);
        let library = match &hindrance {
            // It may yet reach what a wrapper starts.
            None | Some(Hindrance::Wrapper(_)) => {
                library().map_err(NoLibrary::Nowhere).and_then(|library| below(command, library))
            }
            Some(Hindrance::Program(_) | Hindrance::Elsewhere(_)) => Err(NoLibrary::Unused),
        };
        let reaches = hindrance.is_none() && library.is_ok();
        let follower = wants_events.then(|| Follower::start(&never_followed(settings)));
        let problem = match (&hindrance, &follower) {
            (_, Some(Ok(_))) => None,
            (None, Some(Err(refusal))) if reaches => Some(Problem::Unseen(format!(
                "what {} uses by io_uring or mappings stays, and can't be followed by events: {refusal}",
                escaped(file)
            ))),
            (None, None | Some(Err(_))) => match &library {
                Err(NoLibrary::Nowhere(sentence)) => Some(Problem::All(sentence.clone())),
                Ok(_) | Err(NoLibrary::Unused | NoLibrary::Hidden) => None,
            },
            (Some(hindrance), Some(Err(refusal))) => Some(Problem::All(format!(
                "{hindrance}, and its pages can't be followed by events: {refusal}"
            ))),
            (Some(hindrance), None) => Some(Problem::All(format!("{hindrance} ({})", instead(hindrance)))),
        };
        Self { library, follower, problem }
    }
}

/// The library, unless what the command starts would not find it below its root: its loader would complain.
fn below(command: &[OsString], library: PathBuf) -> Result<PathBuf, NoLibrary> {
    let has = |root: PathBuf| root.join(library.strip_prefix("/").unwrap_or(&library)).exists();
    if cover::other_root(command).is_none_or(has) { Ok(library) } else { Err(NoLibrary::Hidden) }
}

/// This program, by which what the library does not reach is started.
fn launcher(is_required: bool) -> Option<Launcher> {
    std::env::current_exe().ok().map(|path| Launcher { path, is_required })
}

/// The programs that a followed command may start, and that are not followed: databases, by their profiles.
fn never_followed(settings: &Settings) -> Vec<String> {
    if settings.role == Role::Stream {
        return Vec::new();
    }
    let names = settings.profiles.iter().flat_map(|profile| &profile.processes);
    // By --profile it is for every process that is no stream.
    names.filter(|name| *name != "*").cloned().collect()
}

/// The library, laid out; or a sentence.
fn library() -> Result<PathBuf, String> {
    library::lay_out().map_err(|error| error.to_string())
}

/// What can be done instead.
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
        // Where this process runs inside another `pagekeeper run`.
        Err(NoLibrary::Hidden) => {
            match joined(others(&before)) {
                none if none.is_empty() => command.env_remove(PRELOAD),
                others => command.env(PRELOAD, others),
            };
        }
        Err(NoLibrary::Nowhere(_) | NoLibrary::Unused) => {}
    }
}

/// What is preloaded already, but for the library, which comes once where this process runs inside another `pagekeeper run`.
fn others(before: &OsStr) -> impl Iterator<Item = &[u8]> {
    let parted = before.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    parted.filter(|name| !name.is_empty() && !library::is_library(name) && *name != library::THREADS)
}

/// The library, and behind it, where the C library does not have them itself, threads.
fn own(library: &Path, threads: bool) -> impl Iterator<Item = &[u8]> {
    [library.as_os_str().as_bytes()].into_iter().chain(threads.then_some(library::THREADS))
}

fn joined<'a>(names: impl Iterator<Item = &'a [u8]>) -> OsString {
    OsString::from_vec(names.collect::<Vec<_>>().join(&b':'))
}

fn refuse(error: &NotFound) -> ExitCode {
    output::complain(&error.sentence);
    ExitCode::from(error.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_not_followed() {
        let names = |choice: Choice| never_followed(&choice.settings(1 << 20).unwrap());
        let all = names(Choice::default());
        assert!(
            ["mariadbd", "postgres", "mongod"].iter().all(|&name| all.contains(&name.to_owned())),
            "{all:?}"
        );
        assert_eq!(names(Choice { profile: Some("mariadb".to_owned()), ..Choice::default() }), [""; 0]);
        assert_eq!(names(Choice { role: Some(As::Stream), ..Choice::default() }), [""; 0]);
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
