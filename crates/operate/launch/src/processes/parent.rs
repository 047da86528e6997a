//! The parent of a command with a report: it passes signals on, stops when the command stops, and
//! ends as it ended.
//!
//! The command is started in this process's group, so that a terminal's keys reach it directly.
//! Signals from the kernel are thus not passed on, unless the command has left that group since.
//! Signals from processes always are. Signals are blocked and taken one by one, so nothing runs in
//! a handler.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use libc::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGWINCH,
};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpgrp, getpid, kill_process, wait, waitpid,
};

use crate::processes::signals::{self, BlockedSignals};

/// The signals passed on to the command.
const FORWARDED_SIGNALS: [libc::c_int; 9] =
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP];

/// The end of the command.
#[derive(Debug)]
pub enum CommandEnd {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(libc::c_int),
    /// In a way that can't be known.
    Unknown(io::Error),
}

impl CommandEnd {
    /// Ends this process in the same way: does not return if a signal ended the command.
    pub fn pass_on(self) -> ExitCode {
        match self {
            Self::Code(code) => ExitCode::from(code),
            Self::Unknown(_) => ExitCode::FAILURE,
            Self::Signal(signal) => {
                signals::die_of(signal);
                // If even that fails: a shell's exit code.
                ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
            }
        }
    }
}

/// Runs the command to its end. Fails if it could not be started.
pub(crate) fn run(command: &mut Command) -> io::Result<CommandEnd> {
    let held = BlockedSignals::hold(&[&FORWARDED_SIGNALS[..], &[SIGCHLD]].concat());
    let child = command.spawn()?;
    let pid = Pid::from_child(&child);
    // Only the session leader is notified of the terminal's end.
    let leads_session = signals::leads_session();
    let has_left = || getpgid(Some(pid)).is_ok_and(|group| group != getpgrp());
    loop {
        let Ok(came) = held.next() else { return Ok(waited_for(pid)) };
        if came.signal == SIGCHLD {
            if let Some(ended) = self::ended(pid) {
                return Ok(ended);
            }
        } else if (came.sent || (came.signal == SIGHUP && leads_session) || has_left())
            && let Some(signal) = Signal::from_named_raw(came.signal)
        {
            // The child may have ended meanwhile, which the next SIGCHLD reports.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Returns how the command ended, if it has. Also reaps all other children: if this is the first
/// process of a container, orphans become its children.
fn ended(command: Pid) -> Option<CommandEnd> {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == command => {
                if let Some(ended) = is_ended(command, status) {
                    return Some(ended);
                }
            }
            Ok(None) => return None,
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Some(waited_for(command)),
        }
    }
}

/// Waits for the command alone, without regard to signals: the last resort.
fn waited_for(command: Pid) -> CommandEnd {
    loop {
        match waitpid(Some(command), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                if let Some(ended) = is_ended(command, status) {
                    return ended;
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return CommandEnd::Unknown(error.into()),
        }
    }
}

/// Returns how the command ended, if it did; stops as it stopped.
fn is_ended(command: Pid, status: WaitStatus) -> Option<CommandEnd> {
    let status = std::process::ExitStatus::from_raw(status.as_raw());
    if let Some(signal) = status.stopped_signal() {
        // Stopped by the terminal, or for lack of it: the shell waits for this process. After
        // SIGSTOP, somebody is inspecting the command.
        if matches!(signal, SIGTSTP | SIGTTIN | SIGTTOU) {
            let _ = kill_process(getpid(), Signal::STOP);
            // Whoever continues this process means the command. The signal is sent here, since an
            // immediately following stop cancels a pending continue signal.
            let _ = kill_process(command, Signal::CONT);
        }
        return None;
    }
    match (status.code(), status.signal()) {
        (Some(code), _) => Some(CommandEnd::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX))),
        (None, Some(signal)) => Some(CommandEnd::Signal(signal)),
        (None, None) => None,
    }
}
