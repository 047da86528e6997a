//! A deadline for every child that a test starts.
//!
//! A watchdog kills the children of a test's thread that outlast their deadline, and says so:
//! waits for them end, and the test fails by its own assertions. The kernel lists the children
//! of each thread (`proc_pid_task_tid_children(5)`), so no test registers its children, and
//! children of other tests are never killed. The deadline counts from the last call of [`renew`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// A deadline far longer than any story of `make test` waits for one child.
const CHILD_TIMEOUT: Duration = Duration::from_secs(900);

/// Ignored stories run for as long as requested.
const LONG_CHILD_TIMEOUT: Duration = Duration::from_secs(6 * 3600);

/// The deadline of each test's children, by the thread that runs the test.
static CHILD_DEADLINES: Mutex<BTreeMap<PathBuf, Instant>> = Mutex::new(BTreeMap::new());

thread_local! {
    static HERE: RefCell<Option<WatchedThread>> = const { RefCell::new(None) };
}

/// A thread whose children have a deadline, until it ends.
struct WatchedThread(PathBuf);

impl Drop for WatchedThread {
    fn drop(&mut self) {
        CHILD_DEADLINES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Gives the children of this thread a new deadline.
pub(crate) fn renew() {
    let is_long = std::env::args().any(|argument| argument.ends_with("ignored"));
    renew_for(if is_long { LONG_CHILD_TIMEOUT } else { CHILD_TIMEOUT });
}

/// Gives the children of this thread this much time from now on.
pub(crate) fn renew_for(time: Duration) {
    static WATCHDOG: Once = Once::new();
    WATCHDOG.call_once(|| drop(std::thread::spawn(watch)));
    HERE.with_borrow_mut(|here| {
        let thread = here.get_or_insert_with(|| WatchedThread(this_thread()));
        let mut watched = CHILD_DEADLINES.lock().unwrap_or_else(PoisonError::into_inner);
        watched.insert(thread.0.clone(), Instant::now() + time);
    });
}

/// Returns `/proc/PID/task/TID` of this thread.
fn this_thread() -> PathBuf {
    let link = std::fs::read_link("/proc/thread-self").expect("proc(5) is mounted");
    Path::new("/proc").join(link)
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let mut watched = CHILD_DEADLINES.lock().unwrap_or_else(PoisonError::into_inner);
        for (thread, end) in watched.iter_mut().filter(|(_, end)| **end <= Instant::now()) {
            children(thread).into_iter().for_each(kill);
            *end += CHILD_TIMEOUT;
        }
    }
}

/// Kills a process and all its descendants, which would keep its pipes open.
fn kill(pid: u32) {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let all: Vec<u32> = threads.flat_map(|thread| children(&thread.path())).collect();
    let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
    eprintln!("{} (process {pid}), which a test started, hangs: it is killed", name.trim_end());
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
    // Fails only if it has ended already.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    all.into_iter().for_each(kill);
}

/// Returns processes that a thread started.
fn children(thread: &Path) -> Vec<u32> {
    let listed = std::fs::read_to_string(thread.join("children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
