//! Stops other processes for a moment, by ptrace(2).
//!
//! Invariants: if the tracer ends, even by `kill -9`, the kernel lets all of them go. Their memory
//! and registers are neither read nor written. A signal that arrives at a stopped process is
//! delivered when it is let go; SIGKILL ends it at once. A process stopped by a signal stays
//! stopped.
//!
//! A system call that the kernel does not restart returns EINTR after a hold, as after a debugger's
//! stop. Starting a hold blocks while the process is in execve(2). That is checked before, but a
//! process may enter execve just then, and the hold starts late. Fails if another process traces it
//! already, or if the kernel refuses tracing (`CAP_SYS_PTRACE`, Yama, a seccomp filter). If the
//! tracer is another holder ([`ProcessHolds::THREAD_NAME`]), the process is held anyway, and the
//! failure is [`Error::Unsupported`].

use std::collections::HashMap;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use pagekeeper_text::unescaped_bytes;
use rustix::io::Errno;

use super::{ProcRoot, malformed, read};
use crate::sys::ptrace::{TraceEvent, detach, interrupt, next_event, seize};
use crate::sys::scheduling::set_real_time_priority;
use crate::{Error, Result};

/// Time that each round waits for stops: a thread in a long call stops at the call's end.
const STOP_TIMEOUT: Duration = Duration::from_millis(2);
/// Interval between two checks for stops.
const STOP_POLL_INTERVAL: Duration = Duration::from_micros(50);
/// The highest priority below real time.
const NICE_MIN: i32 = -20;
/// Maximum number of passes over a process's threads: each finds the threads started during the
/// previous one.
const SEIZE_ROUNDS_MAX: usize = 3;
/// Maximum attempts to trace a thread: another holder may let it go after an attempt.
const SEIZE_ATTEMPTS_MAX: usize = 10;

/// A traced thread.
#[derive(Debug, Clone, Copy)]
struct Tracee {
    /// The process that it is held for; 0 if it is let go as soon as it stops.
    pid: u32,
    /// The signal that it receives when it continues, or 0; `None` while it runs.
    stopped: Option<i32>,
}

/// The processes held by the calling thread.
///
/// A thread inside a long call, or one that waits for a disk, continues until that call ends. Call
/// [`Self::poll`] every few milliseconds while [`Self::is_settled`] is false, so that such a thread
/// is let go soon after it has stopped.
///
/// Only for threads that start no process, and not for children of the calling process: wait(2)
/// would receive their stops. The thread that drops this value must end soon: the kernel then lets
/// go the threads that had not stopped.
#[derive(Debug, Default)]
pub struct ProcessHolds {
    proc: ProcRoot,
    threads: HashMap<i32, Tracee>,
    /// A tracer is a thread.
    not_send: PhantomData<*const ()>,
}

impl ProcessHolds {
    /// The name of each thread that holds processes. A process that two of them follow, such as a
    /// guard and a `run` below it, is held by one at a time.
    pub const THREAD_NAME: &str = "streams-hold";

    /// Creates holds without any process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the calling thread's priority as far as it may (`CAP_SYS_NICE`), so that it runs as
    /// soon as it has work. Processes to be stopped continue for as long as it waits for a
    /// processor. The thread must use little processor time.
    pub fn run_first() {
        if set_real_time_priority().is_err() {
            // For this thread only.
            let _ = rustix::process::setpriority_process(None, NICE_MIN);
        }
    }

    /// Stops all threads of a process that can stop within some milliseconds.
    ///
    /// # Errors
    ///
    /// If it has ended ([`Error::is_gone`]) or may not be traced ([`Error::is_denied`]). Nothing of
    /// it is held then.
    pub fn hold(&mut self, pid: u32) -> Result<()> {
        let held = self.seize_all(pid);
        if held.is_err() {
            self.let_go(pid);
        }
        held
    }

    fn seize_all(&mut self, pid: u32) -> Result<()> {
        for _ in 0..SEIZE_ROUNDS_MAX {
            let threads = self.proc.threads(pid)?;
            // The kernel lets nobody trace it until execve is over, and a tracer would block.
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

    /// Seizes a thread. Returns whether it is newly traced.
    fn seize(&mut self, pid: u32, thread: i32) -> Result<bool> {
        let failed = |errno| Error::call("ptrace(PTRACE_SEIZE)", self.proc.of(pid, ""), errno);
        if let Some(known) = self.threads.get_mut(&thread) {
            if known.stopped.is_some() || interrupt(thread).is_ok() {
                known.pid = pid;
                return Ok(false);
            }
            // The previous thread has ended, or its process has become another program.
            self.threads.remove(&thread);
        }
        match self.trace(thread) {
            Ok(true) => {}
            Ok(false) => {
                return Err(Error::Unsupported { path: self.proc.of(pid, ""), reason: "another holds it" });
            }
            // The thread has just ended; its process may continue.
            Err(Errno::SRCH) => return Ok(false),
            Err(Errno::PERM) if self.proc.has_ended(pid) => return Err(failed(Errno::SRCH)),
            Err(Errno::PERM) if self.proc.has_ended(thread.unsigned_abs()) => return Ok(false),
            Err(errno) => return Err(failed(errno)),
        }
        self.threads.insert(thread, Tracee { pid, stopped: None });
        // If this fails, the thread is about to end.
        let _ = interrupt(thread);
        Ok(true)
    }

    /// Traces a thread. Returns `false` if another holder does.
    fn trace(&self, thread: i32) -> std::result::Result<bool, Errno> {
        let mut other = None;
        for _ in 1..SEIZE_ATTEMPTS_MAX {
            match seize(thread) {
                Err(Errno::PERM) => {}
                outcome => return outcome.map(|()| true),
            }
            match self.proc.tracer(thread) {
                Some(0) => {}
                Some(tracer) if self.is_holder(tracer) => return Ok(false),
                // While a tracer lets the thread go, the kernel shows its parent for a moment.
                Some(tracer) if other != Some(tracer) => other = Some(tracer),
                _ => break,
            }
        }
        seize(thread).map(|()| true)
    }

    fn is_holder(&self, tracer: u32) -> bool {
        self.proc.name(tracer).is_ok_and(|name| name == Self::THREAD_NAME)
    }

    fn wait_for_stops(&mut self, pid: u32) {
        let until = Instant::now() + STOP_TIMEOUT;
        loop {
            self.poll();
            let runs = |tracee: &Tracee| tracee.pid == pid && tracee.stopped.is_none();
            if !self.threads.values().any(runs) || Instant::now() >= until {
                return;
            }
            std::thread::sleep(STOP_POLL_INTERVAL);
        }
    }

    /// Lets a process go.
    pub fn let_go(&mut self, pid: u32) {
        for (thread, tracee) in &mut self.threads {
            if tracee.pid == pid {
                tracee.pid = 0;
                // A killed thread stays listed until its end is seen; otherwise its parent would
                // wait for that forever.
                if tracee.stopped.is_some_and(|signal| detach(*thread, signal).is_err()) {
                    tracee.stopped = None;
                }
            }
        }
        self.threads.retain(|_, tracee| tracee.pid != 0 || tracee.stopped.is_none());
    }

    /// Records threads that have stopped or ended, and lets those go that are no longer held.
    pub fn poll(&mut self) {
        loop {
            match next_event() {
                Ok(Some((thread, TraceEvent::Ended))) => drop(self.threads.remove(&thread)),
                Ok(Some((thread, TraceEvent::Stopped { signal }))) => self.record_stop(thread, signal),
                Ok(None) => return,
                // Nothing is traced any more: a thread that executes another program takes its
                // process's ID.
                Err(_) => return self.threads.clear(),
            }
        }
    }

    fn record_stop(&mut self, thread: i32, signal: i32) {
        match self.threads.get_mut(&thread) {
            Some(tracee) if tracee.pid != 0 => tracee.stopped = Some(signal),
            _ if detach(thread, signal).is_ok() => drop(self.threads.remove(&thread)),
            _ => drop(self.threads.insert(thread, Tracee { pid: 0, stopped: None })),
        }
    }

    /// Whether every traced thread has stopped.
    pub fn is_settled(&self) -> bool {
        self.threads.values().all(|tracee| tracee.stopped.is_some())
    }

    /// Whether a held process was stopped while receiving a signal.
    pub fn has_signal(&self, pid: u32) -> bool {
        self.threads
            .values()
            .any(|tracee| tracee.pid == pid && tracee.stopped.is_some_and(|signal| signal > 0))
    }

    /// Whether a process is held: at least one of its threads has stopped.
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
    /// Returns the IDs of a process's threads.
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

    /// Whether a thread is in execve(2), as far as that is visible.
    fn is_becoming_another(&self, thread: i32) -> bool {
        let call = read(&self.of(thread.unsigned_abs(), "syscall")).unwrap_or_default();
        let call = unescaped_bytes(&call);
        let number = call.split_ascii_whitespace().next().and_then(|number| number.parse().ok());
        number.is_some_and(|number: i64| [libc::SYS_execve, libc::SYS_execveat].contains(&number))
            // A thread stops when it leaves the call, which is still shown then.
            && self.stat(thread.unsigned_abs()).is_ok_and(|stat| !matches!(stat.state, 'T' | 't'))
    }

    /// Whether a process has ended, including while its parent has not waited for it yet.
    fn has_ended(&self, pid: u32) -> bool {
        self.stat(pid).map_or(true, |stat| matches!(stat.state, 'Z' | 'X'))
    }

    /// Whether a signal is pending for a process that its first thread does not block. A held
    /// process receives it when it is let go.
    pub fn has_pending_signal(&self, pid: u32) -> Result<bool> {
        let path = self.of(pid, "status");
        let text = read(&path)?;
        let field = |name: &str| field(&text, name, 16);
        let pending = || Some((field("SigPnd:")? | field("ShdPnd:")?) & !field("SigBlk:")?);
        pending().map(|signals| signals != 0).ok_or_else(|| malformed(&path, "SigPnd, ShdPnd and SigBlk"))
    }

    /// Returns the thread that traces a thread, or 0; `None` if it has ended.
    fn tracer(&self, thread: i32) -> Option<u32> {
        let text = read(&self.of(thread.unsigned_abs(), "status")).ok()?;
        field(&text, "TracerPid:", 10).and_then(|tracer| u32::try_from(tracer).ok())
    }
}

/// Returns a number of `/proc/PID/status`.
fn field(text: &[u8], name: &str, radix: u32) -> Option<u64> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
    u64::from_str_radix(unescaped_bytes(value.trim_ascii()).as_ref(), radix).ok()
}

#[cfg(test)]
mod tests;
