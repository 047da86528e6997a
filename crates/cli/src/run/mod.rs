//! `pagekeeper run`: starts a command with the rules inside it, by a library that its loader preloads.
//!
//! Without a report this process becomes the command, by execve(2): same process id, nothing left between. With a report it stays as the
//! parent ([`parent`]). Invariants: whatever keeps the library out, the command is started all the same, unless `--require` says
//! otherwise; whatever becomes of the report, it ends as the command ends; what the command is given (arguments, descriptors, signals, the rest of its environment) is what this process was given.
//!
//! Fails as shells and env(1) do: 127 where the command is not found, 126 where it can't be executed.

mod choice;
mod elf;
mod find;
mod library;
mod obstacle;
mod parent;
mod report;
mod sys;
mod window;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use pagekeeper_preload::settings::{Settings, VARIABLE};

use crate::output;
use choice::{As, Choice};
use find::NotFound;
use obstacle::{Obstacle, Why};

/// The variable that names libraries to a loader, separated by colons or spaces (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";

/// Start a command that leaves the page cache to others: backups, databases
///
/// The command is not changed: a library that is loaded into it, and into what it starts, applies the rules at its
/// system calls. Without options each process is known by its name: programs that stream (tar, cp, rsync,
/// mariabackup, mysqldump and others) release what they themselves brought into the page cache, never what was
/// there before; databases have their logs released behind the flush, and their compactions paced.
///
/// A program that no library can be loaded into (linked statically, made by Go, setuid) is started without it,
/// and that is said.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "pagekeeper run [OPTIONS] -- COMMAND [ARGS]…",
    after_help = "Examples:
  pagekeeper run -- pg_basebackup -D /backup/base     back up beside a database that keeps its cache
  pagekeeper run --report -- tar -cf /backup/d.tar /d say at the end what was released
  pagekeeper run --as stream -- ./own-backup.sh       take every process of it for a stream
  pagekeeper run --profile mariadb -- mariadbd        a server; its logs leave the page cache
  pagekeeper run --as bulk -- ./load-tables           large files, written out at the disk's pace

Exit codes: the command's own; where a signal ended it, this ends by the same. 127 it is not
found, 126 it can't be executed, 1 --require refused it, 2 pagekeeper was called wrongly.

Not covered: programs whose C library is not glibc. io_uring and io_submit pass the C library by:
their files are watched by size and residency. For what can't be started anew, or can't have the
library, there is pagekeeper guard --streams: it releases from outside, with less effect."
)]
pub(crate) struct Args {
    /// The profile to go by in every process that is no streaming program; else the one of its name
    #[arg(long, value_name = "NAME", conflicts_with = "role")]
    profile: Option<String>,
    /// What every process of the command is, whatever its name
    #[arg(long = "as", value_name = "WHAT", value_enum)]
    role: Option<As>,
    /// The guard's configuration file: profiles, rules and streaming programs
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Say at the end what each rule did in processes of this user, on standard error or in FILE; stays as the command's parent for that
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = report::STANDARD_ERROR, value_hint = clap::ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// The report as one JSON object
    #[arg(long, requires = "report")]
    json: bool,
    /// Fail rather than start the command without the rules
    #[arg(long)]
    require: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Starts the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = sys::Found::now();
    let choice = Choice { profile: args.profile.clone(), role: args.role, config: args.config.clone() };
    let settings = choice.settings(window::window_here())?;
    let Some((name, arguments)) = args.command.split_first() else {
        return Err(output::UsageError("name a command".to_owned()).into());
    };
    let file = match find::find(name) {
        Ok(file) => file,
        Err(error) => return Ok(refuse(&error)),
    };
    let library = obstacle::obstacle(&file).map_or_else(library, |obstacle| Err(hindered(&obstacle)));
    if let Err(sentence) = &library {
        if args.require {
            output::complain(format_args!("{sentence}; not started, by --require"));
            return Ok(ExitCode::FAILURE);
        }
        output::complain(format_args!("{sentence}; it is started without the rules"));
    }
    let mut command = Command::new(name);
    command.args(arguments);
    found.pass_on(&mut command);
    if let Some(to) = &args.report {
        let report = report::Pending::begin(library.as_deref().ok(), to, args.json);
        if let Ok(library) = &library {
            prepare(&mut command, library, &Settings { report: report.path(), ..settings });
        }
        return match parent::run(&mut command)? {
            Ok(ended) => {
                report.end();
                Ok(ended.pass_on())
            }
            Err(error) => Ok(refuse(&NotFound::of(name, &error))),
        };
    }
    if let Ok(library) = &library {
        prepare(&mut command, library, &settings);
    }
    Ok(refuse(&NotFound::of(name, &command.exec())))
}

/// The library, laid out; or a sentence.
fn library() -> Result<PathBuf, String> {
    library::lay_out().map_err(|error| error.to_string())
}

/// A sentence on a program without the library, and what can be done instead.
fn hindered(obstacle: &Obstacle) -> String {
    let instead = match obstacle.why {
        Why::Static | Why::Go | Why::Musl | Why::Foreign => {
            "pagekeeper guard --streams releases from outside what it brings into the page cache"
        }
        Why::Privileged => "as the user whose rights it gets it can be run with them",
    };
    format!("{obstacle} ({instead})")
}

/// Sets the command's environment.
fn prepare(command: &mut Command, library: &Path, settings: &Settings) {
    let preload = std::env::var_os(PRELOAD).unwrap_or_default();
    command.env(PRELOAD, preloaded(&preload, library)).env(VARIABLE, settings.encode());
}

/// What is preloaded already, and the library behind it: once, where this process runs inside another `pagekeeper run`.
fn preloaded(before: &OsStr, library: &Path) -> OsString {
    let parted = before.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    let others = parted.filter(|name| !name.is_empty() && !library::is_library(name));
    let all: Vec<&[u8]> = others.chain([library.as_os_str().as_bytes()]).collect();
    OsString::from_vec(all.join(&b':'))
}

fn refuse(error: &NotFound) -> ExitCode {
    output::complain(&error.sentence);
    ExitCode::from(error.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_stays_and_the_library_comes_once() {
        let own = "/run/pagekeeper/libpagekeeper-0123456789abcdef.so";
        let older = "/tmp/pagekeeper-0/libpagekeeper-fedcba9876543210.so";
        for (before, expected) in [
            (String::new(), own.to_owned()),
            ("libfaketime.so".to_owned(), format!("libfaketime.so:{own}")),
            (" /a.so:/b.so ".to_owned(), format!("/a.so:/b.so:{own}")),
            (own.to_owned(), own.to_owned()),
            (format!("{own}:/a.so:{older}"), format!("/a.so:{own}")),
        ] {
            assert_eq!(preloaded(OsStr::new(&before), Path::new(own)), OsStr::new(&expected), "{before}");
        }
    }
}
