//! Handles file systems that do not answer.
//!
//! A server or a user-space program behind a file system (NFS, FUSE) may never answer. A call into
//! such a file system then blocks its thread forever, and no signal ends the call. So code that
//! looks at foreign files runs as a job ([`run_job`]) in a thread that can be abandoned.
//!
//! In a job, each call that may contact a file system is announced ([`announce`]). The calls of
//! this crate that find, open, list, read and stat files do so. Calls that change a file's page
//! cache (advice, writeback, release) do not, since a slow disk makes them take long; neither do
//! extents and `cachestat` on an open file. A job waits for these as long as they take. If an
//! announced call does not return within [`ANSWER_TIMEOUT`], its file system counts as *hung* in
//! the whole process until the call returns. Calls that would contact it fail with
//! [`Error::NoAnswer`], and the job is restarted without it. The restarted job avoids it even if it
//! answers again by then: otherwise a file system that is slightly too slow each time would cause
//! restarts without end.
//!
//! Invariants:
//! * No lock is held over a call.
//! * Determining the file system of a path contacts no file system: names are looked up in the
//!   kernel's cache only (`RESOLVE_CACHED`), and a mount's root needs no lookup.
//! * Once [`HANGING_CALLS_MAX`] threads are abandoned, every file system that depends on a server
//!   or program is refused. At twice as many (a disk hangs, or the file system could not be
//!   determined), every file system is.
//! * Outside of jobs nothing changes.

mod job_worker;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::mutex::lock;
use crate::open::{cached_device_of, device_of_open};
use crate::process::{Mount, ProcRoot};
use crate::{Error, Result};

pub use job_worker::JobWorker;
use pagekeeper_text::unescaped;

/// Time limit of a call before its file system counts as hung.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of hanging calls: from it on, file systems that depend on a server or program are
/// refused.
pub const HANGING_CALLS_MAX: usize = 8;
/// Maximum number of hanging calls for all other file systems.
const LOCAL_HANGING_CALLS_MAX: usize = 2 * HANGING_CALLS_MAX;
/// Interval between two checks of a job.
const JOB_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A file system that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HungFileSystem {
    /// Its mount point, or the path of the call if the mount is unknown.
    pub point: PathBuf,
    /// Its type (`fuse.sshfs`), if known.
    pub kind: Option<String>,
    /// The time since the call that hangs began.
    pub time: Duration,
}

/// A call that did not return.
struct HungCall {
    number: u64,
    target: CallTarget,
    mount: Option<Mount>,
    since: Instant,
}

/// The target of a call that took too long.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CallTarget {
    path: PathBuf,
    /// The device of its file system, if that depends on a server or program.
    dev: Option<u64>,
}

impl CallTarget {
    /// Whether another call has the same target.
    fn is_also_of(&self, devices: &[u64], path: &Path) -> bool {
        match self.dev {
            Some(hung) => devices.contains(&hung),
            None => path.starts_with(self.path.parent().unwrap_or(&self.path)),
        }
    }
}

static HUNG_CALLS: Mutex<Vec<HungCall>> = Mutex::new(Vec::new());
static NEXT_CALL_NUMBER: AtomicU64 = AtomicU64::new(1);

/// An announced call that has not returned.
#[derive(Debug, Clone)]
struct PendingCall {
    path: PathBuf,
    /// The device of its starting point, if that is open.
    from: Option<u64>,
    since: Instant,
}

/// The state of one job, which all of its threads share.
#[derive(Debug, Default)]
pub(crate) struct JobState {
    /// By their numbers.
    pending: Mutex<BTreeMap<u64, PendingCall>>,
    /// The targets that took too long in earlier runs of the job, even if they answer by now.
    refused_targets: Vec<CallTarget>,
}

thread_local! {
    static CURRENT_JOB: RefCell<Option<Arc<JobState>>> = const { RefCell::new(None) };
}

/// Returns the job that this thread works on.
pub(crate) fn current() -> Option<Arc<JobState>> {
    CURRENT_JOB.with_borrow(Clone::clone)
}

/// Whether this thread works on a job, so that it may hang.
pub fn is_in_job() -> bool {
    current().is_some()
}

/// Assigns this thread to a job.
pub(crate) fn work_on(job: Option<Arc<JobState>>) {
    CURRENT_JOB.set(job);
}

impl JobState {
    /// Returns the innermost call that has taken too long.
    fn overdue(&self) -> Option<(u64, PendingCall)> {
        let pending = lock(&self.pending);
        let overdue = pending.iter().rev().find(|(_, call)| call.since.elapsed() >= ANSWER_TIMEOUT);
        overdue.map(|(number, call)| (*number, call.clone()))
    }
}

/// An announced call, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "the call counts as pending until this is dropped"]
pub struct AnnouncedCall(Option<(Arc<JobState>, u64)>);

impl Drop for AnnouncedCall {
    fn drop(&mut self) {
        let Some((job, number)) = self.0.take() else { return };
        let ended = lock(&job.pending).remove(&number);
        if ended.is_some_and(|call| call.since.elapsed() >= ANSWER_TIMEOUT) {
            // The file system answers again.
            lock(&HUNG_CALLS).retain(|hung| hung.number != number);
        }
    }
}

/// Announces a call that may contact the file system of a path. Fails with [`Error::NoAnswer`] if
/// that does not answer.
pub fn announce(path: &Path) -> Result<AnnouncedCall> {
    announce_call(path, || None)
}

/// Announces a call that starts at an open file; the path may be one of another mount namespace.
pub fn announce_from(open: BorrowedFd<'_>, path: &Path) -> Result<AnnouncedCall> {
    announce_call(path, || device_of_open(open))
}

/// Announces a call on a known device.
pub(crate) fn announce_on_device(dev: u64, path: &Path) -> Result<AnnouncedCall> {
    announce_call(path, || Some(dev))
}

fn announce_call(path: &Path, from: impl FnOnce() -> Option<u64>) -> Result<AnnouncedCall> {
    let Some(job) = current() else { return Ok(AnnouncedCall(None)) };
    let number = NEXT_CALL_NUMBER.fetch_add(1, Ordering::Relaxed);
    let from = from();
    lock(&job.pending).insert(number, PendingCall { path: path.to_path_buf(), from, since: Instant::now() });
    let call = AnnouncedCall(Some((Arc::clone(&job), number)));
    if job.refused_targets.is_empty() && lock(&HUNG_CALLS).is_empty() {
        return Ok(call);
    }
    let devices: Vec<u64> = from.into_iter().chain(cached_device_of(path)).collect();
    let is_target = |target: &CallTarget| target.is_also_of(&devices, path);
    let (is_hung, hung_count) = {
        let hung = lock(&HUNG_CALLS);
        (hung.iter().any(|call| is_target(&call.target)), hung.len())
    };
    let may_hang = |dev: &u64| is_remote(*dev, mount_of(*dev, path).as_ref());
    let are_too_many = hung_count >= LOCAL_HANGING_CALLS_MAX
        || (hung_count >= HANGING_CALLS_MAX && devices.iter().any(may_hang));
    if is_hung || are_too_many || job.refused_targets.iter().any(is_target) {
        return Err(Error::NoAnswer { path: path.to_path_buf() });
    }
    Ok(call)
}

/// Whether a device depends on a server or program; if its mount is unknown, whether it may.
fn is_remote(dev: u64, mount: Option<&Mount>) -> bool {
    mount.map_or(rustix::fs::major(dev) == 0, Mount::may_never_answer)
}

/// Returns the file systems that do not answer now, each once, the longest-hanging first.
pub fn hung_file_systems() -> Vec<HungFileSystem> {
    let mut found: Vec<HungFileSystem> = Vec::new();
    for call in lock(&HUNG_CALLS).iter() {
        let point = call.mount.as_ref().map_or(&call.target.path, |mount| &mount.point).clone();
        let kind = call.mount.as_ref().map(|mount| mount.kind.clone());
        if found.iter().all(|known| (&known.point, &known.kind) != (&point, &kind)) {
            found.push(HungFileSystem { point, kind, time: call.since.elapsed() });
        }
    }
    found
}

/// Runs a job that `begin` creates. Each time a file system does not answer in it, restarts the job
/// without that file system.
///
/// The result of an abandoned job is dropped, so a job must not change anything but its own data.
/// Fails with [`Error::NoAnswer`] if it hangs too often.
///
/// ```
/// use pagekeeper_kernel::{InspectedFile, Links, hang};
/// let read = || Ok::<_, pagekeeper_kernel::Error>(InspectedFile::open("/etc/passwd", Links::Refuse)?.size());
/// let size = hang::run_job(|| read)??;
/// assert!(size > 0);
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
///
/// # Panics
///
/// If the job panics.
pub fn run_job<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
    mut begin: impl FnMut() -> J,
) -> Result<T> {
    let mut worker = JobWorker::default();
    let mut refused_targets: Vec<CallTarget> = Vec::new();
    for _ in 0..=HANGING_CALLS_MAX {
        let (job, work) =
            (JobState { refused_targets: refused_targets.clone(), ..JobState::default() }, begin());
        let job = Arc::new(job);
        let mut overdue = None;
        let wait_on = || {
            overdue = job.overdue();
            overdue.is_none()
        };
        let job_of_worker = Arc::clone(&job);
        let done = worker.run_while(JOB_CHECK_INTERVAL, wait_on, move || {
            work_on(Some(job_of_worker));
            let done = work();
            work_on(None);
            done
        });
        match done {
            Ok(done) => return Ok(done),
            Err(_abandoned) => {
                if let Some((number, call)) = overdue {
                    refused_targets.push(mark_hung(&job, number, call));
                }
            }
        }
    }
    Err(Error::NoAnswer { path: refused_targets.pop().map(|target| target.path).unwrap_or_default() })
}

/// Records that the file system of a call does not answer, and returns the call's target.
fn mark_hung(job: &JobState, number: u64, call: PendingCall) -> CallTarget {
    // If even this lookup hangs (the end of a kernel link may need a request to NFS), the path
    // alone counts.
    let hung = call.clone();
    let found = JobWorker::default().run(Duration::from_secs(1), move || {
        let devices = hung.from.into_iter().chain(cached_device_of(&hung.path));
        let mut found = devices.map(|dev| (dev, mount_of(dev, &hung.path)));
        // A name may lead to another file system than the kernel's cache knows. A file system on
        // disk is never refused as a whole.
        found.find(|(dev, mount)| is_remote(*dev, mount.as_ref()))
    });
    let (dev, mount) = found.ok().flatten().map_or((None, None), |(dev, mount)| (Some(dev), mount));
    let target = CallTarget { path: call.path, dev };
    let mut hung_calls = lock(&HUNG_CALLS);
    // Unless the call has just returned.
    if lock(&job.pending).contains_key(&number) {
        hung_calls.push(HungCall { number, target: target.clone(), mount, since: call.since });
    }
    target
}

/// Returns the mount of a device, as seen by this process or by the process that a path begins
/// with.
fn mount_of(dev: u64, path: &Path) -> Option<Mount> {
    let proc = ProcRoot::default();
    let pid = path.strip_prefix(proc.path()).ok().and_then(|below| {
        let first = below.components().next()?;
        unescaped(first.as_os_str()).parse().ok()
    });
    let theirs = pid.and_then(|pid| proc.mounts(pid).ok()).unwrap_or_default();
    let mounts = proc.own_mounts().unwrap_or_default().into_iter().chain(theirs);
    mounts.into_iter().find(|mount| mount.dev == dev)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InspectedFile, Links};
    use std::sync::mpsc::{Receiver, channel};

    /// Accesses a file, which blocks until the other end is closed.
    fn ask(path: &Path, question: &Arc<Mutex<Receiver<()>>>) -> Result<()> {
        let _call = announce(path)?;
        let _gone = lock(question).recv();
        Ok(())
    }

    #[test]
    fn a_hung_job_restarts_without_the_paths_that_hang() {
        let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, other) = (here.path().join("file"), elsewhere.path().join("file"));
        std::fs::write(&other, b"12345").unwrap();
        let (answer, question) = channel();
        let question = Arc::new(Mutex::new(question));
        let job = || {
            let (path, other, question) = (path.clone(), other.clone(), Arc::clone(&question));
            move || {
                (ask(&path, &question), InspectedFile::open(&other, Links::Refuse).map(|file| file.size()))
            }
        };
        let (asked, size) = run_job(job).unwrap();
        assert!(matches!(asked, Err(Error::NoAnswer { path: refused }) if refused == path));
        assert_eq!(size.unwrap(), 5, "all else is done");
        let named = hung_file_systems();
        assert!(named.iter().any(|one| one.point == path && one.time >= ANSWER_TIMEOUT), "{named:?}");
        // The file system answers.
        drop(answer);
        let until = Instant::now() + Duration::from_secs(60);
        while !hung_file_systems().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(run_job(job).unwrap().0.is_ok());
    }

    #[test]
    fn a_path_that_always_answers_late_is_asked_once() {
        let (here, asked) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(0)));
        let job = || {
            let (path, asked) = (here.path().join("file"), Arc::clone(&asked));
            move || {
                // The slow one is abandoned at its first call, and answers before the restarted job
                // gets there.
                std::thread::sleep(Duration::from_millis(500));
                let _call = announce(&path)?;
                asked.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(ANSWER_TIMEOUT + Duration::from_millis(300));
                Ok(())
            }
        };
        let done: Result<()> = run_job(job).unwrap();
        assert!(matches!(done, Err(Error::NoAnswer { .. })), "{done:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn outside_of_a_job_nothing_is_refused() {
        assert!(!is_in_job() && announce(Path::new("/nowhere")).is_ok());
        assert!(run_job(|| is_in_job).unwrap());
    }
}
