//! File systems that do not answer, and how to go on without them.
//!
//! Some file systems are answered for by a server or a program (NFS, FUSE), which may never do so: a call into one holds
//! its thread for good, and no signal ends it. So what looks at files of others does it as a job ([`patiently`]) in a
//! thread that may be left behind. In a job, each call that may ask a file system is announced ([`asking`]), as this
//! crate's are that find, open, list, read and measure files. What changes a file's pages is not (advice, writeback,
//! release), for a slow disk makes it take longer than that, nor are extents and `cachestat` on an opened file: a job
//! waits for these as long as they take. If an announced one is not back within [`PATIENCE`], its file system counts as *unanswered* in the whole process until
//! that call returns: whatever would ask it is refused ([`Error::NoAnswer`]), and the job is begun anew without it, be it
//! that it answers again by then: one that takes a little longer than that each time would have it begun without end.
//!
//! Invariants: no lock is held over a call; to find out on which file system a path lies none is asked: names are looked
//! up in the kernel's cache alone (`RESOLVE_CACHED`), and a mount's root needs no look-up. Once [`MOST`] threads are left
//! behind every file system that needs somebody's answer is refused, and at twice as many (a disk hangs, or whose
//! answer is needed could not be found out) every one. Outside of jobs nothing changes.

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
use crate::text::unescaped;
use crate::{Error, Result};

pub use crew::Crew;

/// How long one call may take before its file system counts as unanswered.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Calls that may hang at once before no file system is asked any more that needs somebody's answer.
pub const MOST: usize = 8;
/// And before none is asked at all.
const MOST_OF_ANY: usize = 2 * MOST;
/// Between two looks at what a job does.
const PAUSE: Duration = Duration::from_millis(100);

/// A file system that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// Where it is mounted; what was asked for, where no mount is known.
    pub point: PathBuf,
    /// Its type (`fuse.sshfs`), where it is known.
    pub kind: Option<String>,
    /// For how long by now.
    pub time: Duration,
}

/// A call that did not come back.
struct Entry {
    call: u64,
    asked: Asked,
    mount: Option<Mount>,
    since: Instant,
}

/// What a call asked that took too long.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    path: PathBuf,
    /// Of its file system, where that is one that needs somebody's answer.
    dev: Option<u64>,
}

impl Asked {
    /// Whether a call asks it, too.
    fn is_asked_by(&self, devices: &[u64], path: &Path) -> bool {
        match self.dev {
            Some(hung) => devices.contains(&hung),
            None => path.starts_with(self.path.parent().unwrap_or(&self.path)),
        }
    }
}

static UNANSWERED: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static CALLS: AtomicU64 = AtomicU64::new(1);

/// A call that is under way.
#[derive(Debug, Clone)]
struct Call {
    path: PathBuf,
    /// The device of what it begins at, where that is open.
    from: Option<u64>,
    since: Instant,
}

/// The calls that are under way in one job, in whichever of its threads.
#[derive(Debug, Default)]
pub(crate) struct Job {
    under_way: Mutex<BTreeMap<u64, Call>>,
    /// What took too long when the job was begun before, even if it answers by now.
    refused: Vec<Asked>,
}

thread_local! {
    static JOB: RefCell<Option<Arc<Job>>> = const { RefCell::new(None) };
}

/// The job that this thread works on.
pub(crate) fn current() -> Option<Arc<Job>> {
    JOB.with_borrow(Clone::clone)
}

/// Whether this thread works on a job, so that it may hang.
pub fn is_in_job() -> bool {
    current().is_some()
}

/// Works on a job in this thread from now on.
pub(crate) fn work_on(job: Option<Arc<Job>>) {
    JOB.set(job);
}

impl Job {
    /// The innermost call that has taken too long.
    fn overdue(&self) -> Option<(u64, Call)> {
        let under_way = lock(&self.under_way);
        let overdue = under_way.iter().rev().find(|(_, call)| call.since.elapsed() >= PATIENCE);
        overdue.map(|(number, call)| (*number, call.clone()))
    }
}

/// A call that was announced; it is over when this is dropped.
#[derive(Debug)]
#[must_use = "the call is under way until this is dropped"]
pub struct Asking(Option<(Arc<Job>, u64)>);

impl Drop for Asking {
    fn drop(&mut self) {
        let Some((job, call)) = self.0.take() else { return };
        let began = lock(&job.under_way).remove(&call);
        if began.is_some_and(|call| call.since.elapsed() >= PATIENCE) {
            // It answers again.
            lock(&UNANSWERED).retain(|entry| entry.call != call);
        }
    }
}

/// Announces a call that may ask the file system of a path. Fails with [`Error::NoAnswer`] where that does not answer.
pub fn asking(path: &Path) -> Result<Asking> {
    announce(path, || None)
}

/// The same where what the call begins at is open; the path may be one of another mount namespace.
pub fn asking_from(open: BorrowedFd<'_>, path: &Path) -> Result<Asking> {
    announce(path, || device_of_open(open))
}

/// The same where the device is known.
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

/// Whether somebody has to answer for a device; where its mount is not known, whether that may be.
fn is_remote(dev: u64, mount: Option<&Mount>) -> bool {
    mount.map_or(rustix::fs::major(dev) == 0, Mount::may_never_answer)
}

/// The file systems that do not answer now, each once, that for longest first.
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

/// Does a job that `begin` prepares, and begins it anew each time that a file system does not answer in it, without that.
///
/// What a job that was left behind gives in the end is dropped, so it is to change nothing but what it owns. Fails with
/// [`Error::NoAnswer`] if it hangs again and again.
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
/// If the job does.
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

/// Notes that the file system that a call asks does not answer, and gives which one that is.
fn give_up(job: &Job, number: u64, call: Call) -> Asked {
    // Where even that can't be asked (NFS may be asked for the end of a link of the kernel's), the path alone counts.
    let asked = call.clone();
    let found = Crew::default().run(Duration::from_secs(1), move || {
        let devices = asked.from.into_iter().chain(device_without_asking(&asked.path));
        let mut found = devices.map(|dev| (dev, mount_of(dev, &asked.path)));
        // A name may lead to another file system than the kernel's cache knows: one on disk is never refused as a whole.
        found.find(|(dev, mount)| is_remote(*dev, mount.as_ref()))
    });
    let (dev, mount) = found.ok().flatten().map_or((None, None), |(dev, mount)| (Some(dev), mount));
    let asked = Asked { path: call.path, dev };
    let mut unanswered = lock(&UNANSWERED);
    // Unless it came back at this moment.
    if lock(&job.under_way).contains_key(&number) {
        unanswered.push(Entry { call: number, asked: asked.clone(), mount, since: call.since });
    }
    asked
}

/// The mount of a device, as this process or the one that a path begins with sees it.
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

    /// Asks for a file, which takes until the other end is gone.
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
        // It answers.
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
                // The slow one is left at the first, and is back before the job begun anew gets there.
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
