//! The processes that are followed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::stream_pages::StreamTotals;
use pagekeeper_text::unescaped;
use pagekeeper_trace::page_events::EventFile;

use crate::StreamEvent;
use crate::disks::hold::HoldTarget;
use crate::limits::{PROCESSES_PER_USER, REPORTED_BYTES_MIN, REPORTED_PER_USER};
use crate::report::add;
use crate::requests::{Origin, RequestId};

/// The id of a process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId(u64);

/// A process that is followed, or has ended and has files whose pages are not released yet.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// The user who runs it.
    pub(crate) user: u32,
    /// The reason why it is followed.
    pub(crate) origin: Origin,
    began: Duration,
    ended: Option<Duration>,
    /// Files that it uses.
    pub(crate) uses: HashSet<EventFile>,
    /// Files that count as its own: kept now, and in all.
    pub(crate) owns: usize,
    pub(crate) files: u64,
    /// The totals of its files that are no longer kept.
    pub(crate) totals: StreamTotals,
    added: u64,
    is_reported: bool,
}

impl Process {
    pub(crate) fn is_running(&self) -> bool {
        self.ended.is_none()
    }
}

/// All these processes.
#[derive(Default)]
pub(crate) struct Processes {
    proc: ProcRoot,
    all: HashMap<ProcessId, Process>,
    /// The ids of those that are running.
    running: HashMap<u32, ProcessId>,
    /// The number of them that each user runs.
    running_of: HashMap<u32, usize>,
    /// The number that are reported, by user.
    reported: HashMap<u32, usize>,
    next: u64,
}

impl Processes {
    /// Returns the process of that number, which is followed from now on. Its origin is that of its
    /// parent, or `origin` without a followed parent.
    pub(crate) fn of(
        &mut self,
        pid: u32,
        parent: u32,
        name: Option<String>,
        origin: Origin,
        now: Duration,
    ) -> ProcessId {
        if let Some(id) = self.running.get(&pid) {
            return *id;
        }
        let users = self.proc.users(pid).map(|users| users.real);
        let parent = self.running.get(&parent).and_then(|id| self.all.get(id));
        let user = users.ok().or_else(|| Some(parent?.user)).unwrap_or(u32::MAX);
        let origin = parent.map_or(origin, |parent| parent.origin.clone());
        let process = Process {
            pid,
            program: name.or_else(|| self.name_of(pid)).unwrap_or_else(|| "?".to_owned()),
            user,
            origin,
            began: now,
            ended: None,
            uses: HashSet::new(),
            owns: 0,
            files: 0,
            totals: StreamTotals::default(),
            added: 0,
            is_reported: false,
        };
        let id = ProcessId(self.next);
        self.next += 1;
        self.all.insert(id, process);
        self.running.insert(pid, id);
        *self.running_of.entry(user).or_default() += 1;
        id
    }

    /// Returns whether a process is followed.
    pub(crate) fn is_running(&self, pid: u32) -> bool {
        self.running.contains_key(&pid)
    }

    /// Returns the present name of a process.
    pub(crate) fn name_of(&self, pid: u32) -> Option<String> {
        self.proc.name(pid).map(|name| unescaped(&name).into_owned()).ok()
    }

    /// Returns whether the user of a process, unless root, has more of them than are followed.
    pub(crate) fn is_beyond_limit(&self, id: ProcessId) -> bool {
        let user = self.all.get(&id).map_or(0, |process| process.user);
        user != 0 && self.running_of.get(&user).is_some_and(|count| *count > PROCESSES_PER_USER)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ProcessId, &Process)> {
        self.all.iter().map(|(id, process)| (*id, process))
    }

    /// Returns the running processes that are followed because of a request.
    pub(crate) fn running_for(&self, request: RequestId) -> Vec<u32> {
        let is_of =
            |process: &&Process| matches!(process.origin, Origin::Asked(other, _) if other == request);
        self.all
            .values()
            .filter(|process| process.is_running())
            .filter(is_of)
            .map(|process| process.pid)
            .collect()
    }

    /// Records that a process has become another program.
    pub(crate) fn rename(&mut self, id: ProcessId, name: String) {
        if let Some(process) = self.all.get_mut(&id) {
            process.program = name;
        }
    }

    pub(crate) fn get(&self, id: ProcessId) -> Option<&Process> {
        self.all.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.all.get_mut(&id)
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns processes that seem to run but do not, where events of their end may be missing.
    pub(crate) fn vanished(&self) -> Vec<u32> {
        self.running.keys().copied().filter(|pid| self.has_ended(*pid)).collect()
    }

    /// Returns the identity by which a running process can be held, unless it has one of these
    /// names.
    pub(crate) fn hold_target(&self, pid: u32, never: &[String]) -> Option<HoldTarget> {
        let stat = self.proc.stat(pid).ok()?;
        let is_free = !is_called(&unescaped(&stat.name), never);
        is_free.then_some(HoldTarget { pid, start_time: stat.start_time })
    }

    /// Returns whether no such process is running.
    pub(crate) fn has_ended(&self, pid: u32) -> bool {
        match self.proc.stat(pid) {
            Ok(stat) => stat.state == 'Z',
            Err(error) => error.is_gone(),
        }
    }

    /// Stops following a process. Returns the files that it used.
    pub(crate) fn end(&mut self, pid: u32, now: Duration) -> Option<(ProcessId, Vec<EventFile>)> {
        let id = self.running.remove(&pid)?;
        let process = self.all.get_mut(&id)?;
        process.ended = Some(now);
        if let Some(count) = self.running_of.get_mut(&process.user) {
            *count -= 1;
            if *count == 0 {
                self.running_of.remove(&process.user);
            }
        }
        Some((id, process.uses.drain().collect()))
    }

    /// Records bytes that it brought in. Returns the event of its beginning once that is worth
    /// reporting.
    pub(crate) fn brought_in(&mut self, id: ProcessId, bytes: u64) -> Option<StreamEvent> {
        let process = self.all.get_mut(&id)?;
        process.added += bytes;
        if process.is_reported || process.added < REPORTED_BYTES_MIN {
            return None;
        }
        let reported = self.reported.entry(process.user).or_default();
        if *reported >= REPORTED_PER_USER {
            return None;
        }
        *reported += 1;
        process.is_reported = true;
        Some(StreamEvent::Began { pid: process.pid, program: process.program.clone() })
    }

    /// Records that one of its files counts as another's from now on, or is no longer kept;
    /// `totals` are its part of the file's.
    pub(crate) fn lose(&mut self, id: ProcessId, totals: StreamTotals) {
        if let Some(process) = self.all.get_mut(&id) {
            process.owns = process.owns.saturating_sub(1);
            add(&mut process.totals, totals);
        }
    }

    /// Takes out a process that has ended and has no files any more.
    pub(crate) fn take_finished(&mut self, id: ProcessId) -> Option<Process> {
        let process = self.all.get(&id)?;
        if process.ended.is_none() || process.owns > 0 {
            return None;
        }
        self.all.remove(&id)
    }

    /// Returns the report of a process that has ended, if its beginning was reported.
    pub(crate) fn report_end(&mut self, process: Process) -> Option<StreamEvent> {
        let ended = process.ended.filter(|_| process.is_reported)?;
        if let Some(reported) = self.reported.get_mut(&process.user) {
            *reported -= 1;
            if *reported == 0 {
                self.reported.remove(&process.user);
            }
        }
        Some(StreamEvent::Ended {
            pid: process.pid,
            program: process.program,
            seconds: ended.saturating_sub(process.began).as_secs_f64(),
            files: process.files,
            totals: process.totals,
        })
    }
}

/// Returns whether a name matches one of these, which may end in `*`.
pub(crate) fn is_called(name: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    })
}

/// Returns the running processes that are to be followed, and their descendants, except those that
/// are never followed.
pub(crate) fn running_wanted(is_wanted: impl Fn(u32, &str) -> bool, never: &[String]) -> Vec<u32> {
    let proc = ProcRoot::default();
    let own = proc.own_pid();
    // Number, parent and name of each that may be followed.
    let mut others: Vec<(u32, u32, String)> = Vec::new();
    for pid in proc.pids().unwrap_or_default() {
        let Ok(stat) = proc.stat(pid) else { continue };
        let name = unescaped(&stat.name).into_owned();
        if pid != own && !stat.kernel_thread && stat.state != 'Z' && !is_called(&name, never) {
            others.push((pid, stat.parent, name));
        }
    }
    let mut found: Vec<u32> =
        others.iter().filter(|(pid, _, name)| is_wanted(*pid, name)).map(|(pid, ..)| *pid).collect();
    let mut known: HashSet<u32> = found.iter().copied().collect();
    loop {
        let children: Vec<u32> = others
            .iter()
            .filter(|(pid, parent, _)| known.contains(parent) && !known.contains(pid))
            .map(|(pid, ..)| *pid)
            .collect();
        if children.is_empty() {
            return found;
        }
        known.extend(&children);
        found.extend(children);
    }
}
