//! A command that this process becomes, without rules, and a process beside it that watches its
//! start.
//!
//! Invariants: as for a follower, the process beside the command is not its child, and holds none of
//! its descriptors but standard error, on which it reports. The command waits at most 20 s for it,
//! and is started in any case.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use crate::follower::{READY_MESSAGE, answer, followed_process, start_beside};
use crate::start_state::StartState;
use crate::{StartError, detached, find};

/// A command that is ready to start in this process's place.
pub struct WatchedCommand {
    command: Command,
    name: OsString,
}

/// The end of the process that watches, towards the command.
#[derive(Debug)]
pub struct CommandWatcher<'a>(&'a UnixStream);

impl WatchedCommand {
    /// Prepares the command of these words.
    ///
    /// # Errors
    ///
    /// If there is no such program.
    pub fn new(words: &[OsString], start: StartState) -> Result<Self, StartError> {
        let (name, arguments) = words.split_first().ok_or_else(StartError::nameless)?;
        find::find(name)?;
        let mut command = Command::new(name);
        command.args(arguments);
        start.pass_on(&mut command);
        Ok(Self { command, name: name.clone() })
    }

    /// Starts a process that does `work`, which calls [`CommandWatcher::wait_for_command`] first.
    ///
    /// # Errors
    ///
    /// A sentence, if the process can't be started or does not watch.
    pub fn watch(&mut self, work: impl FnOnce(&CommandWatcher<'_>)) -> Result<(), String> {
        let stderr = std::io::stderr();
        // A number above those of the standard descriptors, which it loses.
        let kept = rustix::io::fcntl_dupfd_cloexec(&stderr, 3).map_err(|error| error.to_string())?;
        let socket = start_beside(&[kept.as_fd()], |socket| {
            // Without it, nothing is reported.
            let _ = rustix::stdio::dup2_stderr(&kept);
            work(&CommandWatcher(socket));
        });
        detached::announce(&mut self.command, Arc::new(socket.map_err(|refusal| refusal.to_string())?));
        Ok(())
    }

    /// Becomes the command; returns only if that fails.
    pub fn exec(mut self) -> StartError {
        let error = self.command.exec();
        StartError::of(&self.name, &error)
    }
}

impl CommandWatcher<'_> {
    /// Says that this process is ready, and returns the ID of the process that becomes the command;
    /// `None` if that has ended. It waits for [`Self::let_start`].
    pub fn wait_for_command(&self) -> Option<u32> {
        answer(self.0, READY_MESSAGE);
        followed_process(self.0)
    }

    /// Lets the command start.
    pub fn let_start(&self) {
        answer(self.0, "followed");
    }

    /// Says, instead of waiting for the command, why it is not watched.
    pub fn refuse(&self, sentence: &str) {
        answer(self.0, sentence);
    }
}
