//! A command that is ready to start, with its means.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::settings::{Launcher, Settings};
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_preload::open_readers::TABLE_BYTES;
use pagekeeper_text::escaped;
use rustix::fs::FallocateFlags;

use crate::counting::{self, CounterFile};
use crate::find::{self, StartError};
use crate::follower::Follower;
use crate::library::{self, PlacementError};
use crate::processes::parent::{self, CommandEnd};
use crate::processes::start_state::StartState;
use crate::reach::{CommandReach, ReachProblem};
use crate::report::LaunchReport;
use crate::{classify, environment};

/// A command that is ready to start, by this process or in its place.
pub struct PreparedCommand {
    command: Command,
    name: OsString,
    reach: CommandReach,
    /// `None` for a process whose settings can't be read.
    settings: Option<Settings>,
    /// The settings, as its processes get them.
    encoded: OsString,
    warning: Option<String>,
    counting: Option<CounterFile>,
}

/// A command that has ended, and what was counted in it.
pub struct EndedCommand {
    /// Its end.
    pub end: CommandEnd,
    /// The report; an error if a process has damaged its file.
    pub report: io::Result<LaunchReport>,
}

impl PreparedCommand {
    /// Prepares the command of these words, and starts its means. With `is_required`, fails where
    /// the rules don't reach the command; with another pace than [`StreamPace::Auto`], where it is
    /// not followed by events.
    pub fn new(
        words: &[OsString],
        settings: Settings,
        pace: StreamPace,
        is_required: bool,
        start: StartState,
    ) -> Result<Self, StartError> {
        let (name, arguments) = words.split_first().ok_or_else(StartError::nameless)?;
        let file = find::find(name)?;
        let settings = Settings { command: classify::unlisted(words, &settings), ..settings };
        let reach = CommandReach::of(&file, words, &settings, pace, |_| true);
        if let Some(sentence) = reach.unpaced(pace) {
            return Err(StartError::refused(sentence));
        }
        let warning = match &reach.problem {
            Some(ReachProblem::All(sentence)) if is_required => return Err(StartError::required(sentence)),
            Some(problem) => Some(problem.to_string()),
            None => settings.command.as_deref().map(taken_for_stream),
        };
        let library = reach.library.as_deref().ok();
        library.and_then(Path::parent).into_iter().for_each(counting::remove_left);
        let readers = library.and_then(|library| library::create_in_memory(library, make_readers).ok());
        // The descendants of a followed command are followed, too.
        let launcher = reach.follower.is_none().then(|| launcher(is_required)).flatten();
        let settings = Settings { readers, launcher, ..settings };
        let mut command = Command::new(name);
        command.args(arguments);
        let encoded = settings.encode().into();
        Ok(Self::ready(command, name, reach, (Some(settings), encoded), warning, start))
    }

    /// Joins the parts. `settings` come with their text, as processes get it.
    pub(crate) fn ready(
        mut command: Command,
        name: &OsStr,
        reach: CommandReach,
        (settings, encoded): (Option<Settings>, OsString),
        warning: Option<String>,
        start: StartState,
    ) -> Self {
        start.pass_on(&mut command);
        if let Some(follower) = &reach.follower {
            follower.attach(&mut command);
        }
        Self { command, name: name.to_owned(), reach, settings, encoded, warning, counting: None }
    }

    /// Returns a sentence for the user before the command is started: the part that is not reached,
    /// or how an unknown command is treated.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Becomes the command; returns only if that fails.
    pub fn exec(mut self) -> StartError {
        environment::set(&mut self.command, &self.reach.library, &self.encoded);
        let error = self.command.exec();
        StartError::of(&self.name, &error)
    }

    /// Has the command's processes count what the rules do, if they get the library.
    pub fn count(&mut self) -> Result<(), PlacementError> {
        if let (Ok(library), Some(settings)) = (&self.reach.library, &mut self.settings) {
            let counting = CounterFile::begin(library)?;
            settings.report = Some(counting.path());
            self.encoded = settings.encode().into();
            self.counting = Some(counting);
        }
        Ok(())
    }

    /// Runs the command to its end, as its parent. Fails if it could not be started.
    pub fn run(mut self) -> Result<EndedCommand, StartError> {
        environment::set(&mut self.command, &self.reach.library, &self.encoded);
        let end = parent::run(&mut self.command).map_err(|error| StartError::of(&self.name, &error))?;
        let (events, no_events) = match self.reach.follower.map(Follower::end) {
            Some(Ok(pages)) => (Some(pages), None),
            Some(Err(why)) => (None, Some(why.to_owned())),
            None => (None, self.reach.refusal.map(|refusal| refusal.to_string())),
        };
        let report = match &self.counting {
            Some(counting) => counting.report().map(|report| LaunchReport::counted(&report)),
            None => Ok(LaunchReport::uncounted(self.reach.library.is_ok())),
        };
        Ok(EndedCommand { end, report: report.map(|report| LaunchReport { events, no_events, ..report }) })
    }
}

/// Returns this program, as the launcher of programs that the library does not reach.
fn launcher(is_required: bool) -> Option<Launcher> {
    std::env::current_exe().ok().map(|path| Launcher { path, is_required })
}

/// Returns how a command that no list knows is treated.
fn taken_for_stream(command: &str) -> String {
    let command = escaped(command);
    format!(
        "{command} is taken for a stream: pages that it brings in are released, and servers that it starts have no rules (--as stream: it is a stream; --profile NAME: it is or starts a server)"
    )
}

/// Creates the file that commands share, or finds it, and allocates its blocks. The directory
/// should be on tmpfs: elsewhere a disk that is full later may end a process by a signal.
fn make_readers(directory: &Path) -> io::Result<PathBuf> {
    // Another version of this program may have another layout.
    let path = directory.join(format!("readers-1-{TABLE_BYTES}"));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    rustix::fs::fallocate(options.open(&path)?, FallocateFlags::empty(), 0, TABLE_BYTES)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_made_once_with_its_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = make_readers(directory.path()).unwrap();
        assert_eq!(make_readers(directory.path()).unwrap(), path);
        assert!(std::fs::metadata(&path).unwrap().len() >= TABLE_BYTES);
    }
}
