//! The background thread: rescans all files, takes snapshots of all processes, and searches changed
//! directories for files without a known name. It works slowly, within its share of one processor.
//!
//! Invariants: over seconds it takes at most [`CPU_SHARE`](super::CPU_SHARE) of the time of one
//! processor. No lock is held over I/O. It ends when it is dropped, after the current file, or when
//! it is known to hang there.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::hang;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::process::{ProcRoot, thread_cpu_time};
use pagekeeper_kernel::{Inode, stat_of_name};

use super::processes::{self, ProcessSnapshot};
use super::table::DirectoryIndex;
use super::walk::{SharedScope, WalkResult, change_of, visit_directory};

/// Shortest time between the starts of two rescans of all files.
const RESCAN_INTERVAL: Duration = Duration::from_secs(10);
/// The same for all processes.
const PROCESS_SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// The thread waits while more messages than this are unread.
const UNREAD_MESSAGES_MAX: usize = 4096;

/// A report of the thread.
#[derive(Debug)]
pub(super) enum WorkerMessage {
    /// Files of a directory.
    Directory(WalkResult),
    /// A process.
    Process(Box<ProcessSnapshot>),
    /// All processes were inspected; those in the set are alive.
    Processes(HashSet<u32>),
    /// All files were visited.
    RescanDone {
        known: DirectoryIndex,
        files: u64,
        /// The duration of the rescan.
        took: Duration,
    },
    /// All changed directories were searched.
    Searched,
    /// Mount points of file systems that were mounted since the census began.
    Mounted(Vec<PathBuf>),
}

#[derive(Debug, Default)]
struct MessageQueue {
    messages: Vec<WorkerMessage>,
    search: bool,
}

#[derive(Debug, Default)]
struct Mailbox {
    queue: Mutex<MessageQueue>,
    wakeup: Condvar,
    /// Set under the lock of `queue`, so that no waiter misses it.
    stopped: AtomicBool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, MessageQueue> {
        lock(&self.queue)
    }

    /// Waits. Returns whether the thread is to stop.
    fn wait(&self, time: Duration) -> bool {
        drop(ignore_poison(self.wakeup.wait_timeout_while(self.lock(), time, |_| !self.is_stopped())));
        self.is_stopped()
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        let queue = self.lock();
        self.stopped.store(true, Ordering::Relaxed);
        drop(queue);
        self.wakeup.notify_all();
    }
}

/// The thread.
#[derive(Debug)]
pub(super) struct BackgroundThread {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's tasks and their parameters.
#[derive(Clone)]
pub(super) struct BackgroundWork {
    pub(super) proc: ProcRoot,
    pub(super) scope: SharedScope,
    pub(super) profiles: Vec<Arc<Profile>>,
    /// Whether open files are counted as well, because nothing is traced.
    pub(super) counts_open: bool,
    /// Whether network file systems are walked as well.
    pub(super) network: bool,
    /// The share of one processor's time.
    pub(super) share: f64,
}

impl BackgroundThread {
    pub(super) fn start(work: BackgroundWork) -> std::io::Result<Self> {
        let mailbox = Arc::new(Mailbox::default());
        let its = Arc::clone(&mailbox);
        let thread = std::thread::Builder::new().name("pk-census".to_owned()).spawn(move || {
            // If a file system hangs, the thread starts over without it.
            let _ended = hang::run_job(|| {
                let (work, mailbox) = (work.clone(), Arc::clone(&its));
                let worker =
                    BackgroundWorker { work, mailbox, queue: Vec::new(), known: Vec::new(), search: None };
                move || worker.run()
            });
        })?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    pub(super) fn take(&self) -> Vec<WorkerMessage> {
        std::mem::take(&mut self.mailbox.lock().messages)
    }

    /// Requests a search of changed directories.
    pub(super) fn search(&self) {
        self.mailbox.lock().search = true;
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.mailbox.stop();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, only its figures are missing.
            let _ = thread.join();
        }
    }
}

struct BackgroundWorker {
    work: BackgroundWork,
    mailbox: Arc<Mailbox>,
    /// Directories still to be visited in this rescan.
    queue: Vec<PathBuf>,
    /// Files of this rescan.
    known: Vec<(Inode, u32)>,
    /// The next directory to be checked for changes.
    search: Option<u32>,
}

impl BackgroundWorker {
    fn run(mut self) {
        let mut rescan_began = Instant::now();
        let mut processes_began = Instant::now();
        let mut pids: Vec<u32> = Vec::new();
        let mut alive = HashSet::new();
        let mut pace = CpuPacer::new(self.work.share);
        loop {
            let now = Instant::now();
            let mut idle = true;
            if pids.is_empty() && now.duration_since(processes_began) >= PROCESS_SCAN_INTERVAL {
                processes_began = now;
                if self.work.scope.has_more_mounts(&self.work.proc) {
                    self.find_new_mounts();
                }
                pids = self.work.proc.pids().unwrap_or_default();
                alive = pids.iter().copied().collect();
            }
            if let Some(pid) = pids.pop() {
                idle = false;
                self.inspect_process(pid);
                if pids.is_empty() {
                    self.report(WorkerMessage::Processes(std::mem::take(&mut alive)));
                }
            }
            if self.is_searching() {
                idle = false;
                self.continue_search();
            } else if !self.queue.is_empty() {
                idle = false;
                self.visit_next_directory();
                if self.queue.is_empty() {
                    let files = self.known.len() as u64;
                    let known = DirectoryIndex::of(std::mem::take(&mut self.known));
                    self.report(WorkerMessage::RescanDone { known, files, took: rescan_began.elapsed() });
                }
            } else if now.duration_since(rescan_began) >= RESCAN_INTERVAL {
                rescan_began = now;
                self.find_new_mounts();
                self.queue.extend(
                    self.work.scope.file_systems.walked.iter().map(|file_system| file_system.point.clone()),
                );
                continue;
            }
            let unread = self.mailbox.lock().messages.len() > UNREAD_MESSAGES_MAX;
            let pause =
                pace.due().max(if idle || unread { Duration::from_millis(250) } else { Duration::ZERO });
            if !pause.is_zero() && self.mailbox.wait(pause) {
                return;
            }
        }
    }

    fn report(&self, message: WorkerMessage) {
        self.mailbox.lock().messages.push(message);
    }

    fn find_new_mounts(&self) {
        let BackgroundWork { proc, scope, network, .. } = &self.work;
        self.report(WorkerMessage::Mounted(scope.find_new_mounts(proc, *network)));
    }

    fn inspect_process(&self, pid: u32) {
        let BackgroundWork { proc, scope, profiles, counts_open, .. } = &self.work;
        if let Some(snapshot) = processes::snapshot(proc, pid, profiles, scope, *counts_open) {
            self.report(WorkerMessage::Process(Box::new(snapshot)));
        }
    }

    fn visit_next_directory(&mut self) {
        let Some(path) = self.queue.pop() else { return };
        let scope = &self.work.scope;
        let is_root = scope.file_systems.walked.iter().any(|file_system| file_system.point == path);
        // Something may have been mounted there since it was queued.
        if !is_root && !scope.enters(&path) {
            return;
        }
        let (mut result, below) = visit_directory(scope, &path, &|| self.mailbox.is_stopped());
        self.queue.extend(below);
        self.known.append(&mut result.known);
        self.report(WorkerMessage::Directory(result));
    }

    /// Returns whether changed directories are being searched.
    fn is_searching(&mut self) -> bool {
        if self.search.is_none() && std::mem::take(&mut self.mailbox.lock().search) {
            self.search = Some(0);
        }
        self.search.is_some()
    }

    /// Checks a few directories for changes. Visits those that changed, and new ones below them.
    fn continue_search(&mut self) {
        const DIRECTORIES_PER_STEP: u32 = 64;
        let from = self.search.unwrap_or(0);
        let (asked, to, all): (Vec<_>, _, _) = {
            let directories = self.work.scope.directories();
            let to = directories.end().min(from.saturating_add(DIRECTORIES_PER_STEP));
            (
                (from..to).filter_map(|number| directories.get(number).cloned()).collect(),
                to,
                directories.end(),
            )
        };
        for directory in &asked {
            let changed = change_of(&directory.path);
            let gone = changed.is_none() && stat_of_name(&directory.path).is_err_and(|error| error.is_gone());
            if gone || (changed.is_some() && changed == directory.changed) {
                continue;
            }
            let mut new = vec![directory.path.to_path_buf()];
            while let Some(path) = new.pop() {
                let (result, below) = visit_directory(&self.work.scope, &path, &|| self.mailbox.is_stopped());
                // A directory without a number was never listed.
                new.extend(below.into_iter().filter(|path| !self.work.scope.directories().is_known(path)));
                self.report(WorkerMessage::Directory(result));
            }
        }
        self.search = (to < all).then_some(to);
        if self.search.is_none() {
            self.report(WorkerMessage::Searched);
        }
    }
}

/// Keeps a thread within its share of a processor's time.
struct CpuPacer {
    share: f64,
    began: Instant,
    used: Duration,
}

impl CpuPacer {
    /// A shorter pause is put off, since each pause has a cost.
    const PAUSE_MIN: Duration = Duration::from_millis(100);
    /// Unused time is forgotten after this.
    const UNUSED_TIME_MAX: Duration = Duration::from_secs(5);

    fn new(share: f64) -> Self {
        Self { share: share.clamp(1e-4, 1.0), began: Instant::now(), used: thread_cpu_time() }
    }

    /// Returns how long to wait before continuing.
    fn due(&mut self) -> Duration {
        let owed = (thread_cpu_time().saturating_sub(self.used)).div_f64(self.share);
        let passed = self.began.elapsed();
        if passed > owed + Self::UNUSED_TIME_MAX {
            *self = Self::new(self.share);
        }
        Some(owed.saturating_sub(passed)).filter(|pause| *pause >= Self::PAUSE_MIN).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::file_systems::FileSystems;
    use super::super::walk::WalkScope;
    use super::*;

    #[test]
    fn files_are_found_again_and_new_ones_by_their_directories() {
        let dir = tempfile::tempdir_in(".").unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/old"), vec![1; 4096]).unwrap();
        let proc = ProcRoot::default();
        let file_systems = FileSystems::of_directories(&proc, &[dir.path().to_path_buf()], false).unwrap();
        let scope = Arc::new(WalkScope::new(file_systems));
        let result = super::super::walk::walk_all(&scope, 1, &super::super::WalkProgress::default());
        assert_eq!(result.known.len(), 1);
        let work = BackgroundWork {
            proc,
            scope,
            profiles: Vec::new(),
            counts_open: false,
            network: false,
            share: 1.0,
        };
        let background = BackgroundThread::start(work).unwrap();
        std::fs::create_dir(dir.path().join("a/new")).unwrap();
        std::fs::write(dir.path().join("a/new/file"), vec![1; 8192]).unwrap();
        background.search();
        let mut found = Vec::new();
        'waiting: loop {
            for message in background.take() {
                match message {
                    WorkerMessage::Directory(result) => found.extend(result.found),
                    WorkerMessage::Searched => break 'waiting,
                    _ => {}
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(found.iter().any(|found| found.residency.resident == 8192), "{found:?}");
    }

    #[test]
    fn a_thread_that_works_has_to_wait() {
        let mut pace = CpuPacer::new(0.01);
        let from = thread_cpu_time();
        while thread_cpu_time().saturating_sub(from) < Duration::from_millis(20) {
            std::hint::black_box(0);
        }
        let due = pace.due();
        assert!(due > Duration::from_secs(1), "{due:?}");
        assert!(CpuPacer::new(1.0).due().is_zero());
    }
}
