//! A private instance of the kernel's tracing: a directory of its own under `instances`, with its
//! own buffer and choice of events, which no other user of tracing sees or disturbs.
//!
//! Invariants: the directory is removed when this value is dropped. If the process ends without
//! that, even by `kill -9`, a small shell that waits for its end removes it. If there is no shell,
//! or it was killed as well, the next instance that is made does. A directory that is in use can't
//! be removed (EBUSY), so nobody else's ever is. Fails with the refused call.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::TraceError;
use super::error::PermissionKind;
use super::event::TracepointKind;
use super::tracefs::Tracefs;
use pagekeeper_kernel::process::ProcRoot;

/// The prefix of the names of all instances.
const INSTANCE_PREFIX: &str = "pagekeeper-";

/// Waits for the end of the process, which closes its end of the pipe. Retries for ten seconds,
/// because the process's own descriptors close a little later. Ignores signals that stop the
/// process's whole group or service.
const REMOVAL_SCRIPT: &str = "trap '' HUP INT TERM; read -r _; i=0; \
    while [ -d \"$1\" ] && ! rmdir \"$1\" 2>/dev/null && [ $i -lt 100 ]; do i=$((i+1)); sleep 0.1; done";

/// The instance.
#[derive(Debug)]
pub(super) struct TraceInstance {
    path: PathBuf,
    guard: Option<Child>,
    _own_mount: Option<Arc<OwnedFd>>,
}

impl TraceInstance {
    /// Makes an instance, and opens its output. Instances of processes that have ended are removed
    /// first.
    pub(super) fn create(tracefs: &Tracefs, proc: &ProcRoot) -> Result<(Self, File), TraceError> {
        let instances = tracefs.instances();
        remove_stale(&instances, proc);
        let name = own_name(proc)?;
        let path = instances.join(&name);
        // The guard is started first, so that there is no moment without it.
        let guard = start_guard(&instances, &name);
        let instance = match std::fs::create_dir(&path) {
            Ok(()) => Self { path, guard, _own_mount: tracefs.own() },
            Err(error) => {
                end_guard(guard);
                return Err(TraceError::file(PermissionKind::Writing, "mkdir", &path, &error));
            }
        };
        let pipe = instance.path.join("trace_pipe");
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&pipe)
            .map_err(|error| TraceError::file(PermissionKind::Writing, "open", &pipe, &error))?;
        Ok((instance, pipe))
    }

    /// Writes one of its settings.
    fn set(&self, name: impl AsRef<Path>, value: &str) -> Result<(), TraceError> {
        let path = self.path.join(name);
        std::fs::write(&path, value)
            .map_err(|error| TraceError::file(PermissionKind::Writing, "write", &path, &error))
    }

    /// Gives it a buffer of this many bytes, divided among the processors, and a clock that all of
    /// them share.
    pub(super) fn prepare(&self, buffer_bytes: u64) -> Result<(), TraceError> {
        let per_cpu = self.path.join("per_cpu");
        let cpus = std::fs::read_dir(&per_cpu)
            .map_err(|error| TraceError::file(PermissionKind::Writing, "readdir", &per_cpu, &error))?;
        let each = buffer_bytes / 1024 / (cpus.count() as u64).max(1);
        self.set("buffer_size_kb", &each.max(64).to_string())?;
        self.set("trace_clock", "mono")
    }

    /// Makes it record an event, if the filter (if any) matches.
    pub(super) fn enable(&self, event: TracepointKind, filter: Option<&str>) -> Result<(), TraceError> {
        let event = Path::new("events").join(event.category()).join(event.name());
        if let Some(filter) = filter {
            self.set(event.join("filter"), filter)?;
        }
        self.set(event.join("enable"), "1")
    }
}

impl Drop for TraceInstance {
    fn drop(&mut self) {
        // The guard retries if somebody else is reading the instance right now.
        if std::fs::remove_dir(&self.path).is_ok() {
            end_guard(self.guard.take());
        }
    }
}

/// Ends the guard, and waits for it.
fn end_guard(guard: Option<Child>) {
    if let Some(mut guard) = guard {
        // It may have been killed already; there is nothing to report.
        let _ = guard.kill();
        let _ = guard.wait();
    }
}

/// Returns `None` if there is no shell. Its working directory is that of the instances, which may
/// be reachable only for this process.
fn start_guard(instances: &Path, name: &str) -> Option<Child> {
    Command::new("/bin/sh")
        .args(["-c", REMOVAL_SCRIPT, "pagekeeper-trace", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir(instances)
        .process_group(0)
        .spawn()
        .ok()
}

/// Returns `pagekeeper-PID-START-N`: the process, its start time (ids are reused), and the number
/// of the instance.
fn own_name(proc: &ProcRoot) -> Result<String, TraceError> {
    static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(0);
    let pid = std::process::id();
    let start = proc.start_time(pid)?;
    Ok(format!("{INSTANCE_PREFIX}{pid}-{start}-{}", NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed)))
}

/// Returns the process that a name stands for, and its start time.
fn parse_name(name: &str) -> Option<(u32, u64)> {
    let mut numbers = name.strip_prefix(INSTANCE_PREFIX)?.split('-');
    let of = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    numbers.next()?.parse::<u64>().ok()?;
    numbers.next().is_none().then_some(of)
}

/// Removes what ended processes left. A directory that can't be removed stays: it is in use, or not
/// ours.
fn remove_stale(instances: &Path, proc: &ProcRoot) {
    let names = std::fs::read_dir(instances).into_iter().flatten().flatten();
    for entry in names {
        let name = entry.file_name();
        let Some((pid, start)) = name.to_str().and_then(parse_name) else {
            continue;
        };
        let stale = match proc.start_time(pid) {
            Ok(now) => now != start,
            Err(error) => error.is_gone(),
        };
        if stale {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Reads the available bytes; returns 0 if there are none now.
pub(super) fn read_some(pipe: &mut impl io::Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match pipe.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contain_the_process() {
        let proc = ProcRoot::default();
        let own = (std::process::id(), proc.start_time(std::process::id()).unwrap());
        assert_eq!(parse_name(&own_name(&proc).unwrap()), Some(own));
        for other in
            ["pagekeeper-1", "pagekeeper-1-2", "pagekeeper-1-2-3-4", "pagekeeper-a-2-3", "foo", "1-2-3"]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn only_instances_of_ended_processes_are_removed() {
        let tree = tempfile::tempdir().unwrap();
        let proc = ProcRoot::default();
        let own = own_name(&proc).unwrap();
        // Process 1 has not started at tick 999999999999; 4294967295 is nobody.
        let stale = ["pagekeeper-1-999999999999-0", "pagekeeper-4294967295-5-0"];
        for name in stale.into_iter().chain([own.as_str(), "other", "pagekeeper-x"]) {
            std::fs::create_dir(tree.path().join(name)).unwrap();
        }
        remove_stale(tree.path(), &proc);
        let mut left: Vec<_> =
            std::fs::read_dir(tree.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["other", own.as_str(), "pagekeeper-x"]);
    }

    #[test]
    fn the_guard_removes_the_directory_when_the_pipe_closes() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("with a space");
        std::fs::create_dir(&path).unwrap();
        let mut guard = start_guard(tree.path(), "with a space").unwrap();
        assert_eq!(guard.try_wait().unwrap(), None);
        drop(guard.stdin.take());
        assert!(guard.wait().unwrap().success());
        assert!(!path.exists());
    }
}
