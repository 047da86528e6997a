//! Stopping other processes for a moment, by ptrace(2).
//!
//! Invariants: whoever traces them ends, by `kill -9` too, and the kernel lets all of them go. No memory or register of theirs is read
//! or written. A signal that arrives at a stopped process is delivered when it is let go; SIGKILL ends it at once. A process that a
//! signal has stopped stays so.
//! A system call that the kernel does not restart returns EINTR after a hold, as after a debugger's stop. To begin a hold waits while the process
//! is in execve(2), which is looked at before: a hold may begin late where it enters that just then.
//! Fails where another process traces it already, and where the kernel refuses that (`CAP_SYS_PTRACE`, Yama, a seccomp filter).

use std::collections::HashMap;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{ProcRoot, malformed, read};
use crate::sys::ptrace::{TraceEvent, detach, interrupt, next_event, seize};
use crate::sys::scheduling::be_of_real_time;
use crate::text::unescaped_bytes;
use crate::{Error, Result};

/// How long each round waits for stops: a thread inside of a long call stops at its end.
const STOP_PATIENCE: Duration = Duration::from_millis(2);
/// Between two looks for stops.
const STOP_POLL: Duration = Duration::from_micros(50);
/// The highest priority of those that are not of real time.
const NICE_MIN: i32 = -20;
/// Looks at a process's threads: those that start meanwhile are found by the next.
const ROUNDS: usize = 3;

/// A thread that is traced.
#[derive(Debug, Clone, Copy)]
struct Tracee {
    /// The process that it is held for; 0: it is let go as soon as it stops.
    pid: u32,
    /// The signal that it takes when it goes on, or 0; `None` while it runs.
    stopped: Option<i32>,
}

/// The processes that the calling thread holds.
///
/// A thread that is inside of a long call, or waits for a disk, goes on until that call ends. To be polled every few
/// milliseconds while [`Self::is_settled`] is false, so that such a thread is let go soon after it has stopped.
///
/// Only for threads that start no process, and not for children of the calling process: wait(2) would take their stops.
/// The thread that drops it must end soon: the kernel then lets go the threads that had not stopped.
#[derive(Debug, Default)]
pub struct ProcessHolds {
    proc: ProcRoot,
    threads: HashMap<i32, Tracee>,
    /// A tracer is a thread.
    not_send: PhantomData<*const ()>,
}

impl ProcessHolds {
    /// Holds no process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has the calling thread run as soon as it has something to do, as far as it may (`CAP_SYS_NICE`): processes that are to be stopped
    /// go on for as long as it waits for a processor. It must need little of one.
    pub fn run_first() {
        if be_of_real_time().is_err() {
            // Of this thread alone.
            let _ = rustix::process::setpriority_process(None, NICE_MIN);
        }
    }

    /// Stops all threads of a process, as far as they stop within some milliseconds.
    ///
    /// # Errors
    ///
    /// If it has ended ([`Error::is_gone`]), or may not be traced ([`Error::is_denied`]): nothing of it is held then.
    pub fn hold(&mut self, pid: u32) -> Result<()> {
        let held = self.seize_all(pid);
        if held.is_err() {
            self.let_go(pid);
        }
        held
    }

    fn seize_all(&mut self, pid: u32) -> Result<()> {
        for _ in 0..ROUNDS {
            let threads = self.proc.threads(pid)?;
            // The kernel lets nobody trace it until that is over, and who asks waits.
            if threads.iter().any(|thread| self.proc.is_becoming_another(*thread)) {
                return Err(Error::Unsupported { path: self.proc.of(pid, ""), reason: "it is in execve(2)" });
            }
            let mut is_new = false;
            for thread in threads {
                is_new |= self.seize(pid, thread)?;
            }
            self.wait_for_stops(pid);
            if !is_new {
                break;
            }
        }
        Ok(())
    }

    /// Whether a thread is traced from now on.
    fn seize(&mut self, pid: u32, thread: i32) -> Result<bool> {
        let failed = |errno| Error::call("ptrace(PTRACE_SEIZE)", self.proc.of(pid, ""), errno);
        if let Some(known) = self.threads.get_mut(&thread) {
            if known.stopped.is_some() || interrupt(thread).is_ok() {
                known.pid = pid;
                return Ok(false);
            }
            // The thread of before has ended, or its process has become another program.
            self.threads.remove(&thread);
        }
        match seize(thread) {
            Ok(()) => {}
            // It has just ended; its process may go on.
            Err(Errno::SRCH) => return Ok(false),
            Err(Errno::PERM) if self.proc.has_ended(pid) => return Err(failed(Errno::SRCH)),
            Err(Errno::PERM) if self.proc.has_ended(thread.unsigned_abs()) => return Ok(false),
            Err(errno) => return Err(failed(errno)),
        }
        self.threads.insert(thread, Tracee { pid, stopped: None });
        // Without effect it is about to end.
        let _ = interrupt(thread);
        Ok(true)
    }

    fn wait_for_stops(&mut self, pid: u32) {
        let until = Instant::now() + STOP_PATIENCE;
        loop {
            self.poll();
            let runs = |tracee: &Tracee| tracee.pid == pid && tracee.stopped.is_none();
            if !self.threads.values().any(runs) || Instant::now() >= until {
                return;
            }
            std::thread::sleep(STOP_POLL);
        }
    }

    /// Lets a process go.
    pub fn let_go(&mut self, pid: u32) {
        for (thread, tracee) in &mut self.threads {
            if tracee.pid == pid {
                tracee.pid = 0;
                // One that was killed stays in hand until its end is seen, or its parent would wait for that for ever.
                if tracee.stopped.is_some_and(|signal| detach(*thread, signal).is_err()) {
                    tracee.stopped = None;
                }
            }
        }
        self.threads.retain(|_, tracee| tracee.pid != 0 || tracee.stopped.is_none());
    }

    /// Takes note of threads that have stopped or ended, and lets those go that are not to be held any more.
    pub fn poll(&mut self) {
        loop {
            match next_event() {
                Ok(Some((thread, TraceEvent::Ended))) => drop(self.threads.remove(&thread)),
                Ok(Some((thread, TraceEvent::Stopped { signal }))) => self.stopped(thread, signal),
                Ok(None) => return,
                // Nobody is traced, whatever was thought: a thread that becomes another program takes its process's number.
                Err(_) => return self.threads.clear(),
            }
        }
    }

    fn stopped(&mut self, thread: i32, signal: i32) {
        match self.threads.get_mut(&thread) {
            Some(tracee) if tracee.pid != 0 => tracee.stopped = Some(signal),
            _ if detach(thread, signal).is_ok() => drop(self.threads.remove(&thread)),
            _ => drop(self.threads.insert(thread, Tracee { pid: 0, stopped: None })),
        }
    }

    /// Whether every thread that is traced has stopped.
    pub fn is_settled(&self) -> bool {
        self.threads.values().all(|tracee| tracee.stopped.is_some())
    }

    /// Whether a held process was stopped on its way to take a signal.
    pub fn has_signal(&self, pid: u32) -> bool {
        self.threads
            .values()
            .any(|tracee| tracee.pid == pid && tracee.stopped.is_some_and(|signal| signal > 0))
    }

    /// Whether a process is held: at least one thread of it has stopped.
    pub fn is_held(&self, pid: u32) -> bool {
        self.threads.values().any(|tracee| tracee.pid == pid && tracee.stopped.is_some())
    }
}

impl Drop for ProcessHolds {
    fn drop(&mut self) {
        self.poll();
        let mut pids: Vec<u32> = self.threads.values().map(|tracee| tracee.pid).collect();
        pids.dedup();
        for pid in pids {
            self.let_go(pid);
        }
    }
}

impl ProcRoot {
    /// The numbers of a process's threads.
    #[allow(clippy::disallowed_methods, reason = "of /proc")]
    fn threads(&self, pid: u32) -> Result<Vec<i32>> {
        let path = self.of(pid, "task");
        let failed = |error: std::io::Error| Error::call("readdir", path.clone(), error);
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            threads.extend(
                entry.map_err(failed)?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()),
            );
        }
        Ok(threads)
    }

    /// Whether a thread is in execve(2), as far as that can be seen.
    fn is_becoming_another(&self, thread: i32) -> bool {
        let call = read(&self.of(thread.unsigned_abs(), "syscall")).unwrap_or_default();
        let call = unescaped_bytes(&call);
        let number = call.split_ascii_whitespace().next().and_then(|number| number.parse().ok());
        number.is_some_and(|number: i64| [libc::SYS_execve, libc::SYS_execveat].contains(&number))
    }

    /// Whether a process has ended, or is about to be taken note of by its parent.
    fn has_ended(&self, pid: u32) -> bool {
        self.stat(pid).map_or(true, |stat| matches!(stat.state, 'Z' | 'X'))
    }

    /// Whether a signal waits for a process that its first thread does not block. A process that is held takes it when it is let go.
    pub fn has_pending_signal(&self, pid: u32) -> Result<bool> {
        let path = self.of(pid, "status");
        let text = read(&path)?;
        let field = |name: &str| -> Option<u64> {
            let mut lines = text.split(|byte| *byte == b'\n');
            let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
            u64::from_str_radix(unescaped_bytes(value.trim_ascii()).as_ref(), 16).ok()
        };
        let pending = || Some((field("SigPnd:")? | field("ShdPnd:")?) & !field("SigBlk:")?);
        pending().map(|signals| signals != 0).ok_or_else(|| malformed(&path, "SigPnd, ShdPnd and SigBlk"))
    }
}

#[cfg(test)]
mod tests;
