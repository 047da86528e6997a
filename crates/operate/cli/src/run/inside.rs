//! The launcher for programs into which the library can't be loaded, started by a command's process under `run`
//! (`pagekeeper_preload::launcher`). It finds the means by which the rules reach that program, and executes it.
//!
//! Invariants: the program gets what the process would have given it, plus the library's variables if it can have
//! the library. Anything not reached is reported once, or refused, and counted for the report. Fails as exec does:
//! 127 if the program is not found, 126 if it can't be executed.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use pagekeeper_preload::counters::{self, Count};
use pagekeeper_preload::settings::Settings;
use pagekeeper_streams::StreamPace;

use super::cover::{Cover, Hindrance};
use super::find::NotFound;
use super::means::ProgramKind;
use super::{Problem, Reach, prepare, refuse, refuse_as_required, sys};

/// Executes the program of `words`: the mode, the settings, and its file.
pub(super) fn run(words: &[OsString], command: &[OsString], found: sys::Found) -> ExitCode {
    let ([how, text, file], Some((name, arguments))) = (words, command.split_first()) else {
        return ExitCode::from(2);
    };
    let path = Path::new(file);
    let mut program = Command::new(path);
    program.arg0(name).args(arguments);
    // Without valid settings the command would have no rules either.
    if let Some(settings) = Settings::decode(text.as_bytes()) {
        // Whatever a script starts comes here by itself, unless it loses the library.
        let may_follow = |cover: &Cover| {
            cover.kind == ProgramKind::Stream || matches!(cover.hindrance, Some(Hindrance::Wrapper(_)))
        };
        let Reach { library, follower, problem, .. } =
            Reach::of(path, command, &settings, StreamPace::Auto, may_follow);
        if let Some(problem) = &problem {
            if matches!(problem, Problem::All(_)) {
                note(&settings, path, Count::NotReached);
            }
            if let (Problem::All(sentence), "require") = (problem, how.to_str().unwrap_or_default()) {
                return refuse_as_required(sentence);
            }
            if how != "quiet" {
                problem.say();
            }
        }
        if follower.is_some() {
            note(&settings, path, Count::Followed);
        }
        prepare(&mut program, &library, text);
        found.pass_on(&mut program);
        if let Some(follower) = &follower {
            follower.attach(&mut program);
        }
        return refuse(&NotFound::of(file, &program.exec()));
    }
    found.pass_on(&mut program);
    refuse(&NotFound::of(file, &program.exec()))
}

/// Counts a process in the report, if there is one that this user may write.
fn note(settings: &Settings, program: &Path, count: Count) {
    let Some(report) = &settings.report else { return };
    let Ok(file) = File::options().read(true).write(true).open(report) else { return };
    let Ok(mapped) = counters::map_report(file.as_raw_fd()) else { return };
    let name = program.file_name().unwrap_or_default().as_bytes();
    if let Some(record) = mapped.claim(std::process::id(), name) {
        record.add(count, 1);
    }
}
