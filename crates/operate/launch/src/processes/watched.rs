//! A command that this process becomes, without rules, and a process beside it that watches its
//! start.
//!
//! Invariants: as for a follower, the process beside the command is not its child, and holds none
//! of its descriptors but standard error, on which it reports; it closes that, too, if it can't
//! watch. The command waits at most 20 s for it, and is started in any case.
#![allow(unsafe_code, reason = "a descriptor that is kept across a fork; the block states its proof")]

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::follower::{READY_MESSAGE, answer, followed_process, start_beside};
use crate::processes::detached;
use crate::processes::start_state::StartState;
use crate::{StartError, find};

/// A command that is ready to start in this process's place.
pub struct WatchedCommand {
    command: Command,
    name: OsString,
}

/// The end of the process that watches, towards the command.
#[derive(Debug)]
pub struct CommandWatcher<'a> {
    socket: &'a UnixStream,
    /// The process that becomes the command; `None` before Linux 5.3.
    command: Option<OwnedFd>,
}

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
        let command = getpid();
        let socket = start_beside(&[kept.as_fd()], |socket| {
            // Without it, nothing is reported.
            let _ = rustix::stdio::dup2_stderr(&kept);
            // SAFETY: this is the process that was forked to do this work. It ends without a look
            // at `kept` and without its destructor, so nothing uses or closes this number again.
            unsafe { rustix::io::close(kept.as_raw_fd()) };
            // The command waits for an answer, so no other process has its ID.
            let command = pidfd_open(command, PidfdFlags::empty()).ok();
            work(&CommandWatcher { socket, command });
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
        answer(self.socket, READY_MESSAGE);
        followed_process(self.socket)
    }

    /// Lets the command start.
    pub fn let_start(&self) {
        answer(self.socket, "followed");
    }

    /// Reports why the command is not watched, instead of waiting for it, and closes its standard
    /// error.
    pub fn refuse(&self, sentence: &str) {
        self.leave_stderr();
        answer(self.socket, sentence);
    }

    /// Closes the command's standard error: whoever reads it to its end does not wait for this
    /// process.
    pub fn leave_stderr(&self) {
        // If /dev/null can't be opened, it stays open.
        if let Ok(null) = File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stderr(&null);
        }
    }

    /// Returns whether the command has ended; false if the kernel does not say so (before Linux
    /// 5.3).
    pub fn is_gone(&self) -> bool {
        let Some(command) = &self.command else { return false };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(command, PollFlags::IN)], Some(&at_once)).is_ok_and(|ended| ended > 0)
    }
}
