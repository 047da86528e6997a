//! A program into which the library can't be loaded, started by a process of a command under `run`
//! (`pagekeeper_preload::launcher`): this process finds the means by which the rules reach it, and
//! becomes it.
//!
//! Invariants: the program gets what the process would have given it, plus the library's variables
//! if it can have the library. Anything not reached is reported once, or refused, and counted for
//! the report.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::settings::Settings;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_preload::counters::{self, Count};

use crate::classify::{CommandClass, LibraryHindrance};
use crate::find::StartError;
use crate::means::ProgramKind;
use crate::prepared::PreparedCommand;
use crate::processes::start_state::StartState;
use crate::reach::{CommandReach, ReachProblem};

impl PreparedCommand {
    /// Prepares the program of a process under `run`. `inside` has the mode ("quiet" or "require"
    /// or another), the settings, and the program's file.
    pub fn inside(inside: &[OsString], command: &[OsString], start: StartState) -> Result<Self, StartError> {
        let ([mode, text, file], Some((name, arguments))) = (inside, command.split_first()) else {
            return Err(StartError::nameless());
        };
        let path = Path::new(file);
        let mut program = Command::new(path);
        program.arg0(name).args(arguments);
        // Without valid settings the command would have no rules either.
        let Some(settings) = Settings::decode(text.as_bytes()) else {
            return Ok(Self::ready(program, file, CommandReach::none(), (None, text.clone()), None, start));
        };
        // Each program that a script starts comes here by itself, unless the script loses the
        // library.
        let may_follow = |cover: &CommandClass| {
            cover.kind == ProgramKind::Stream || matches!(cover.hindrance, Some(LibraryHindrance::Wrapper(_)))
        };
        let reach = CommandReach::of(path, command, &settings, StreamPace::Auto, may_follow);
        if let Some(ReachProblem::All(sentence)) = &reach.problem {
            note(&settings, path, Count::NotReached);
            if mode == "require" {
                return Err(StartError::required(sentence));
            }
        }
        if reach.follower.is_some() {
            note(&settings, path, Count::Followed);
        }
        let warning = reach.problem.as_ref().filter(|_| mode != "quiet").map(ToString::to_string);
        Ok(Self::ready(program, file, reach, (Some(settings), text.clone()), warning, start))
    }
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
