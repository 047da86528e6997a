//! Handles file systems that do not answer.
//!
//! A server or a user-space program behind a file system (NFS, FUSE) may never answer. A call into such a file
//! system then blocks its thread forever, and no signal ends the call. So code that looks at foreign files runs as
//! a job ([`patiently`]) in a thread that can be abandoned.
//!
//! In a job, each call that may contact a file system is announced ([`asking`]). The calls of this crate that
//! find, open, list, read and stat files do so. Calls that change a file's page cache (advice, writeback, release)
//! do not, since a slow disk makes them take long; neither do extents and `cachestat` on an open file. A job waits
//! for these as long as they take. If an announced call does not return within [`PATIENCE`], its file system
//! counts as *unanswered* in the whole process until the call returns. Calls that would contact it fail with
//! [`Error::NoAnswer`], and the job is restarted without it. The restarted job avoids it even if it answers again
//! by then: otherwise a file system that is slightly too slow each time would cause restarts without end.
//!
//! Invariants:
//! * No lock is held over a call.
//! * Determining the file system of a path contacts no file system: names are looked up in the kernel's cache only
//!   (`RESOLVE_CACHED`), and a mount's root needs no lookup.
//! * Once [`MOST`] threads are abandoned, every file system that depends on a server or program is refused. At
//!   twice as many (a disk hangs, or the file system could not be determined), every file system is.
//! * Outside of jobs nothing changes.

mod crew;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::mutex::lock;
use crate::open::{device_of_open, device_without_asking};
use crate::process::{Mount, ProcRoot};
use crate::{Error, Result};

pub use crew::Crew;
use pagekeeper_text::unescaped;

/// Time limit of a call before its file system counts as unanswered.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Number of hanging calls from which on no file system is contacted that depends on a server or program.
pub const MOST: usize = 8;
/// Number of hanging calls from which on no file system is contacted at all.
const MOST_OF_ANY: usize = 2 * MOST;
/// Interval between two checks of a job.
const PAUSE: Duration = Duration::from_millis(100);

/// A file system that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// Its mount point, or the path of the call if the mount is unknown.
    pub point: PathBuf,
    /// Its type (`fuse.sshfs`), if known.
    pub kind: Option<String>,
    /// How long it has not answered.
    pub time: Duration,
}

/// A call that did not return.
struct Entry {
    call: u64,
    asked: Asked,
    mount: Option<Mount>,
    since: Instant,
}

/// The target of a call that took too long.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    path: PathBuf,
    /// The device of its file system, if that depends on a server or program.
    dev: Option<u64>,
}

impl Asked {
    /// Whether another call has the same target.
    fn is_asked_by(&self, devices: &[u64], path: &Path) -> bool {
        match self.dev {
            Some(hung) => devices.contains(&hung),
            None => path.starts_with(self.path.parent().unwrap_or(&self.path)),
        }
    }
}

static UNANSWERED: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static CALLS: AtomicU64 = AtomicU64::new(1);

/// A call in progress.
#[derive(Debug, Clone)]
struct Call {
    path: PathBuf,
    /// The device of its starting point, if that is open.
    from: Option<u64>,
    since: Instant,
}

/// The calls in progress in one job, in any of its threads.
#[derive(Debug, Default)]
pub(crate) struct Job {
    under_way: Mutex<BTreeMap<u64, Call>>,
    /// The targets that took too long in earlier runs of the job, even if they answer by now.
    refused: Vec<Asked>,
}

thread_local! {
    static JOB: RefCell<Option<Arc<Job>>> = const { RefCell::new(None) };
}

/// Returns the job that this thread works on.
pub(crate) fn current() -> Option<Arc<Job>> {
    JOB.with_borrow(Clone::clone)
}

/// Whether this thread works on a job, so that it may hang.
pub fn is_in_job() -> bool {
    current().is_some()
}

/// Assigns this thread to a job.
pub(crate) fn work_on(job: Option<Arc<Job>>) {
    JOB.set(job);
}

impl Job {
    /// Returns the innermost call that has taken too long.
    fn overdue(&self) -> Option<(u64, Call)> {
        let under_way = lock(&self.under_way);
        let overdue = under_way.iter().rev().find(|(_, call)| call.since.elapsed() >= PATIENCE);
        overdue.map(|(number, call)| (*number, call.clone()))
    }
}

/// An announced call, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "the call is under way until this is dropped"]
pub struct Asking(Option<(Arc<Job>, u64)>);

impl Drop for Asking {
    fn drop(&mut self) {
        let Some((job, call)) = self.0.take() else { return };
        let began = lock(&job.under_way).remove(&call);
        if began.is_some_and(|call| call.since.elapsed() >= PATIENCE) {
            // The file system answers again.
            lock(&UNANSWERED).retain(|entry| entry.call != call);
        }
    }
}

/// Announces a call that may contact the file system of a path. Fails with [`Error::NoAnswer`] if that does not
/// answer.
pub fn asking(path: &Path) -> Result<Asking> {
    announce(path, || None)
}

/// Announces a call that starts at an open file; the path may be one of another mount namespace.
pub fn asking_from(open: BorrowedFd<'_>, path: &Path) -> Result<Asking> {
    announce(path, || device_of_open(open))
}

/// Announces a call on a known device.
pub(crate) fn asking_device(dev: u64, path: &Path) -> Result<Asking> {
    announce(path, || Some(dev))
}

fn announce(path: &Path, from: impl FnOnce() -> Option<u64>) -> Result<Asking> {
    let Some(job) = current() else { return Ok(Asking(None)) };
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    let from = from();
    lock(&job.under_way).insert(number, Call { path: path.to_path_buf(), from, since: Instant::now() });
    let asking = Asking(Some((Arc::clone(&job), number)));
    if job.refused.is_empty() && lock(&UNANSWERED).is_empty() {
        return Ok(asking);
    }
    let devices: Vec<u64> = from.into_iter().chain(device_without_asking(path)).collect();
    let is_asked = |asked: &Asked| asked.is_asked_by(&devices, path);
    let (is_hung, left) = {
        let unanswered = lock(&UNANSWERED);
        (unanswered.iter().any(|entry| is_asked(&entry.asked)), unanswered.len())
    };
    let may_hang = |dev: &u64| is_remote(*dev, mount_of(*dev, path).as_ref());
    let are_too_many = left >= MOST_OF_ANY || (left >= MOST && devices.iter().any(may_hang));
    if is_hung || are_too_many || job.refused.iter().any(is_asked) {
        return Err(Error::NoAnswer { path: path.to_path_buf() });
    }
    Ok(asking)
}

/// Whether a device depends on a server or program; if its mount is unknown, whether it may.
fn is_remote(dev: u64, mount: Option<&Mount>) -> bool {
    mount.map_or(rustix::fs::major(dev) == 0, Mount::may_never_answer)
}

/// Returns the file systems that do not answer now, each once, the longest-hanging first.
pub fn unanswered() -> Vec<Unanswered> {
    let mut found: Vec<Unanswered> = Vec::new();
    for entry in lock(&UNANSWERED).iter() {
        let point = entry.mount.as_ref().map_or(&entry.asked.path, |mount| &mount.point).clone();
        let kind = entry.mount.as_ref().map(|mount| mount.kind.clone());
        if found.iter().all(|known| (&known.point, &known.kind) != (&point, &kind)) {
            found.push(Unanswered { point, kind, time: entry.since.elapsed() });
        }
    }
    found
}

/// Runs a job that `begin` creates. Each time a file system does not answer in it, restarts the job without that
/// file system.
///
/// The result of an abandoned job is dropped, so a job must not change anything but its own data. Fails with
/// [`Error::NoAnswer`] if it hangs too often.
///
/// ```
/// use pagekeeper_kernel::{InspectedFile, Links, hang};
/// let read = || Ok::<_, pagekeeper_kernel::Error>(InspectedFile::open("/etc/passwd", Links::Refuse)?.size());
/// let size = hang::patiently(|| read)??;
/// assert!(size > 0);
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
///
/// # Panics
///
/// If the job panics.
pub fn patiently<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
    mut begin: impl FnMut() -> J,
) -> Result<T> {
    let mut crew = Crew::default();
    let mut refused: Vec<Asked> = Vec::new();
    for _ in 0..=MOST {
        let (job, work) = (Job { refused: refused.clone(), ..Job::default() }, begin());
        let job = Arc::new(job);
        let mut overdue = None;
        let wait_on = || {
            overdue = job.overdue();
            overdue.is_none()
        };
        let its = Arc::clone(&job);
        let done = crew.run_while(PAUSE, wait_on, move || {
            work_on(Some(its));
            let done = work();
            work_on(None);
            done
        });
        match done {
            Ok(done) => return Ok(done),
            Err(_left) => {
                if let Some((number, call)) = overdue {
                    refused.push(give_up(&job, number, call));
                }
            }
        }
    }
    Err(Error::NoAnswer { path: refused.pop().map(|asked| asked.path).unwrap_or_default() })
}

/// Records that the file system of a call does not answer, and returns the call's target.
fn give_up(job: &Job, number: u64, call: Call) -> Asked {
    // If even this lookup hangs (the end of a kernel link may need a request to NFS), the path alone counts.
    let asked = call.clone();
    let found = Crew::default().run(Duration::from_secs(1), move || {
        let devices = asked.from.into_iter().chain(device_without_asking(&asked.path));
        let mut found = devices.map(|dev| (dev, mount_of(dev, &asked.path)));
        // A name may lead to another file system than the kernel's cache knows. A file system on disk is never
        // refused as a whole.
        found.find(|(dev, mount)| is_remote(*dev, mount.as_ref()))
    });
    let (dev, mount) = found.ok().flatten().map_or((None, None), |(dev, mount)| (Some(dev), mount));
    let asked = Asked { path: call.path, dev };
    let mut unanswered = lock(&UNANSWERED);
    // Unless the call has just returned.
    if lock(&job.under_way).contains_key(&number) {
        unanswered.push(Entry { call: number, asked: asked.clone(), mount, since: call.since });
    }
    asked
}

/// Returns the mount of a device, as seen by this process or by the process that a path begins with.
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
        let _asking = asking(path)?;
        let _gone = lock(question).recv();
        Ok(())
    }

    #[test]
    fn a_job_that_hangs_is_begun_anew_without_what_does_not_answer() {
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
        let (asked, size) = patiently(job).unwrap();
        assert!(matches!(asked, Err(Error::NoAnswer { path: refused }) if refused == path));
        assert_eq!(size.unwrap(), 5, "all else is done");
        let named = unanswered();
        assert!(named.iter().any(|one| one.point == path && one.time >= PATIENCE), "{named:?}");
        // The file system answers.
        drop(answer);
        let until = Instant::now() + Duration::from_secs(60);
        while !unanswered().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(patiently(job).unwrap().0.is_ok());
    }

    #[test]
    fn what_answers_late_each_time_is_asked_once() {
        let (here, asked) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(0)));
        let job = || {
            let (path, asked) = (here.path().join("file"), Arc::clone(&asked));
            move || {
                // The slow one is abandoned at its first call, and answers before the restarted job gets there.
                std::thread::sleep(Duration::from_millis(500));
                let _asking = asking(&path)?;
                asked.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PATIENCE + Duration::from_millis(300));
                Ok(())
            }
        };
        let done: Result<()> = patiently(job).unwrap();
        assert!(matches!(done, Err(Error::NoAnswer { .. })), "{done:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn outside_of_a_job_nothing_is_refused() {
        assert!(!is_in_job() && asking(Path::new("/nowhere")).is_ok());
        assert!(patiently(|| is_in_job).unwrap());
    }
}
