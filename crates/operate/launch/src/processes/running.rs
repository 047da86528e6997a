//! Follows running processes and their children, until they end or a signal arrives.
//!
//! Invariants: none of them is a database, a kernel thread, the first process, or one that the
//! caller could not kill. Nothing is done to them, and pages brought in earlier stay. Fails with a
//! sentence before it follows any.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::settings::Settings;
use libc::{SIGHUP, SIGINT, SIGTERM};
use pagekeeper_catalog::{Profile, recognise_process};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_streams::Streams;
use pagekeeper_text::escaped;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::follower::{BUSY_INTERVAL, FollowPlan, FollowRefusal, FollowedPages, ServiceError, is_permitted};
use crate::means::FollowScope;
use crate::processes::signals::BlockedSignals;

/// Maximum delay of a signal while no pages come in.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Processes that are followed, and the signals that end that.
pub struct RunningProcesses {
    streams: Streams,
    signals: BlockedSignals,
}

impl RunningProcesses {
    /// Follows all of these processes, or none. `config` is the guard's configuration, whose
    /// profiles identify databases.
    pub fn follow(
        pids: &[u32],
        config: Option<&Path>,
        settings: &Settings,
        pace: StreamPace,
    ) -> Result<Self, String> {
        // Before a thread is started that would receive them.
        let signals = BlockedSignals::hold(&[SIGINT, SIGTERM, SIGHUP]);
        let plan = FollowPlan::new(FollowScope::All, settings, pace);
        Ok(Self { streams: start(pids, &plan, config)?, signals })
    }

    /// Releases their pages until they have ended or a signal arrives, and returns the totals.
    pub fn until_end(mut self) -> FollowedPages {
        while !self.signals.has_come() && (self.streams.running() > 0 || self.streams.is_busy()) {
            drop(self.streams.step());
            self.streams.wait(if self.streams.is_busy() { BUSY_INTERVAL } else { SIGNAL_POLL_INTERVAL });
        }
        FollowedPages::of(&self.streams.report(), false)
    }
}

/// Follows all of them, or none.
fn start(pids: &[u32], plan: &FollowPlan, config: Option<&Path>) -> Result<Streams, String> {
    let proc = ProcRoot::default();
    let profiles = profiles(config)?;
    for &pid in pids {
        check(&proc, pid, &profiles)?;
    }
    let refused = |why: String| format!("processes can't be followed by events: {why}");
    if !is_permitted() {
        return Err(refused(FollowRefusal::NotPermitted(ServiceError::Unasked).to_string()));
    }
    let mut streams = plan.start().map_err(|error| refused(error.to_string()))?;
    // Repeated for processes that were started before their parent was followed.
    for _ in 0..2 {
        for pid in with_children(&proc, pids).into_iter().filter(|pid| !plan.is_never(*pid)) {
            plan.follow(&mut streams, pid).map_err(|error| refused(error.to_string()))?;
        }
    }
    Ok(streams)
}

/// Returns the profiles that identify databases.
fn profiles(config: Option<&Path>) -> Result<Vec<Arc<Profile>>, String> {
    let options =
        config.map(pagekeeper_guard::Options::read).transpose().map_err(|error| error.to_string())?;
    Ok(options.unwrap_or_default().profiles.into_iter().map(Arc::new).collect())
}

/// Checks that a process may be followed.
fn check(proc: &ProcRoot, pid: u32, profiles: &[Arc<Profile>]) -> Result<(), String> {
    let stat = proc.stat(pid).map_err(|error| {
        if error.is_gone() { format!("no process {pid} runs") } else { error.to_string() }
    })?;
    let process = format!("process {pid} ({})", escaped(Path::new(&stat.name)));
    if stat.state == 'Z' {
        return Err(format!("{process} has ended"));
    }
    if proc.pids().is_ok_and(|pids| !pids.contains(&pid)) {
        return Err(format!("{pid} is a thread: give the number of its process"));
    }
    if stat.kernel_thread {
        return Err(format!("{process} is a thread of the kernel, which streams for others"));
    }
    if pid == 1 {
        return Err(format!("{process} has started all others: give the numbers of those that stream"));
    }
    if pid == proc.own_pid() {
        return Err(format!("{process} is this one"));
    }
    if let Some(profile) = recognise_process(proc, pid, profiles) {
        return Err(format!(
            "{process} is a database (profile {}), which would lose its cache: pagekeeper guard keeps its logs out of memory",
            profile.name
        ));
    }
    let number = Pid::from_raw(pid.cast_signed()).ok_or_else(|| format!("{pid} is no process"))?;
    match test_kill_process(number) {
        Err(Errno::PERM) => Err(format!("{process} is another user's, and may not be followed")),
        Err(Errno::SRCH) => Err(format!("no process {pid} runs")),
        _ => Ok(()),
    }
}

/// Returns the processes and their descendants.
fn with_children(proc: &ProcRoot, pids: &[u32]) -> BTreeSet<u32> {
    let all = proc.pids().unwrap_or_default();
    let parents: Vec<(u32, u32)> =
        all.into_iter().filter_map(|pid| Some((pid, proc.stat(pid).ok()?.parent))).collect();
    let mut found: BTreeSet<u32> = pids.iter().copied().collect();
    loop {
        let is_new = |(pid, parent): &(u32, u32)| found.contains(parent) && !found.contains(pid);
        let children: Vec<u32> = parents.iter().filter(|pair| is_new(pair)).map(|(pid, _)| *pid).collect();
        if children.is_empty() {
            return found;
        }
        found.extend(children);
    }
}
