//! The thread in the background: walks all files again and again, looks at all processes, and searches changed
//! directories for files whose name is wanted; slowly, within its share of one processor.
//!
//! Invariants: of the time of one processor it takes [`SHARE`](super::SHARE) at most, seen over seconds; no lock is held
//! while it looks; it ends when it is dropped, after the directory it is at.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::ProcRoot;
use rustix::time::{ClockId, clock_gettime};

use super::processes::{self, ProcessLook};
use super::table::Known;
use super::walk::{Seen, SharedGround, change_of, visit_directory};

/// A round of all files begins no sooner after the last one began.
const ROUND_EACH: Duration = Duration::from_secs(10);
/// The same of all processes.
const PROCESSES_EACH: Duration = Duration::from_secs(2);
/// Messages that nobody has taken, at which it waits.
const UNREAD: usize = 4096;

/// What it has to say.
#[derive(Debug)]
pub(super) enum Message {
    /// Files of a directory.
    Directory(Seen),
    /// A process.
    Process(Box<ProcessLook>),
    /// All processes were looked at; these are alive.
    Processes(HashSet<u32>),
    /// All files were looked at.
    Round {
        known: Known,
        files: u64,
        /// How long the round took.
        took: Duration,
    },
    /// All changed directories were searched.
    Hunted,
    /// Where file systems were mounted since the census began.
    Mounted(Vec<PathBuf>),
}

#[derive(Debug, Default)]
struct Mail {
    messages: Vec<Message>,
    hunt: bool,
    stop: bool,
}

#[derive(Debug, Default)]
struct Post {
    mail: Mutex<Mail>,
    bell: Condvar,
}

impl Post {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits; returns whether it is to stop.
    fn wait(&self, time: Duration) -> bool {
        let waited = self.bell.wait_timeout_while(self.lock(), time, |mail| !mail.stop);
        waited.unwrap_or_else(PoisonError::into_inner).0.stop
    }
}

/// The thread.
#[derive(Debug)]
pub(super) struct Background {
    post: Arc<Post>,
    thread: Option<JoinHandle<()>>,
}

/// What it works on.
pub(super) struct Work {
    pub(super) proc: ProcRoot,
    pub(super) ground: SharedGround,
    pub(super) profiles: Vec<Arc<Profile>>,
    /// Count open files as well: nobody traces.
    pub(super) counts_open: bool,
    /// Network file systems are walked, too.
    pub(super) network: bool,
    /// Of one processor's time.
    pub(super) share: f64,
}

impl Background {
    pub(super) fn start(work: Work) -> std::io::Result<Self> {
        let post = Arc::new(Post::default());
        let its = Arc::clone(&post);
        let thread = std::thread::Builder::new().name("pk-census".to_owned()).spawn(move || {
            Worker { work, post: its, queue: Vec::new(), known: Vec::new(), hunt: None }.run();
        })?;
        Ok(Self { post, thread: Some(thread) })
    }

    pub(super) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.post.lock().messages)
    }

    /// Asks to search changed directories.
    pub(super) fn hunt(&self) {
        self.post.lock().hunt = true;
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.post.lock().stop = true;
        self.post.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of it was its own; its figures are missing, no more.
            let _ = thread.join();
        }
    }
}

/// Processor time of this thread.
pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

struct Worker {
    work: Work,
    post: Arc<Post>,
    /// Directories still to be looked at in this round.
    queue: Vec<PathBuf>,
    /// Files of this round.
    known: Vec<(Inode, u32)>,
    /// The next directory to be asked whether it changed.
    hunt: Option<u32>,
}

impl Worker {
    fn run(mut self) {
        let mut round_began = Instant::now();
        let mut processes_began = Instant::now();
        let mut pids: Vec<u32> = Vec::new();
        let mut alive = HashSet::new();
        let mut pace = Pace::new(self.work.share);
        loop {
            let now = Instant::now();
            let mut idle = true;
            if pids.is_empty() && now.duration_since(processes_began) >= PROCESSES_EACH {
                processes_began = now;
                if self.work.ground.has_more_mounts(&self.work.proc) {
                    self.look_for_mounts();
                }
                pids = self.work.proc.pids().unwrap_or_default();
                alive = pids.iter().copied().collect();
            }
            if let Some(pid) = pids.pop() {
                idle = false;
                self.process(pid);
                if pids.is_empty() {
                    self.say(Message::Processes(std::mem::take(&mut alive)));
                }
            }
            if self.hunts() {
                idle = false;
                self.hunt_on();
            } else if !self.queue.is_empty() {
                idle = false;
                self.directory();
                if self.queue.is_empty() {
                    let files = self.known.len() as u64;
                    let known = Known::of(std::mem::take(&mut self.known));
                    self.say(Message::Round { known, files, took: round_began.elapsed() });
                }
            } else if now.duration_since(round_began) >= ROUND_EACH {
                round_began = now;
                self.look_for_mounts();
                self.queue.extend(self.work.ground.places.walked.iter().map(|place| place.point.clone()));
                continue;
            }
            let unread = self.post.lock().messages.len() > UNREAD;
            let pause =
                pace.due().max(if idle || unread { Duration::from_millis(250) } else { Duration::ZERO });
            if !pause.is_zero() && self.post.wait(pause) {
                return;
            }
        }
    }

    fn say(&self, message: Message) {
        self.post.lock().messages.push(message);
    }

    fn look_for_mounts(&self) {
        let Work { proc, ground, network, .. } = &self.work;
        self.say(Message::Mounted(ground.look_for_mounts(proc, *network)));
    }

    fn process(&self, pid: u32) {
        let Work { proc, ground, profiles, counts_open, .. } = &self.work;
        if let Some(look) = processes::look(proc, pid, profiles, ground, *counts_open) {
            self.say(Message::Process(Box::new(look)));
        }
    }

    fn directory(&mut self) {
        let Some(path) = self.queue.pop() else { return };
        let ground = &self.work.ground;
        let is_root = ground.places.walked.iter().any(|place| place.point == path);
        // Something may have been mounted there since it was queued.
        if !is_root && !ground.enters(&path) {
            return;
        }
        let (mut seen, below) = visit_directory(ground, &path);
        self.queue.extend(below);
        self.known.append(&mut seen.known);
        self.say(Message::Directory(seen));
    }

    /// Whether changed directories are being searched.
    fn hunts(&mut self) -> bool {
        if self.hunt.is_none() && std::mem::take(&mut self.post.lock().hunt) {
            self.hunt = Some(0);
        }
        self.hunt.is_some()
    }

    /// Asks a few directories whether they changed, and looks into those that did and what is new below them.
    fn hunt_on(&mut self) {
        const AT_ONCE: u32 = 64;
        let from = self.hunt.unwrap_or(0);
        let (asked, to, all): (Vec<_>, _, _) = {
            let directories = self.work.ground.directories();
            let to = directories.end().min(from.saturating_add(AT_ONCE));
            (
                (from..to).filter_map(|number| directories.get(number).cloned()).collect(),
                to,
                directories.end(),
            )
        };
        for directory in &asked {
            let changed = change_of(&directory.path);
            let gone = changed.is_none() && !directory.path.exists();
            if gone || (changed.is_some() && changed == directory.changed) {
                continue;
            }
            let mut new = vec![directory.path.to_path_buf()];
            while let Some(path) = new.pop() {
                let (seen, below) = visit_directory(&self.work.ground, &path);
                // Those without a number nobody has listed.
                new.extend(below.into_iter().filter(|path| !self.work.ground.directories().is_known(path)));
                self.say(Message::Directory(seen));
            }
        }
        self.hunt = (to < all).then_some(to);
        if self.hunt.is_none() {
            self.say(Message::Hunted);
        }
    }
}

/// Keeps a thread within its share of a processor's time.
struct Pace {
    share: f64,
    began: Instant,
    used: Duration,
}

impl Pace {
    /// A pause shorter than this is put off: each costs something too.
    const LEAST: Duration = Duration::from_millis(100);
    /// Time that was not used is forgotten after this.
    const MEMORY: Duration = Duration::from_secs(5);

    fn new(share: f64) -> Self {
        Self { share: share.clamp(1e-4, 1.0), began: Instant::now(), used: processor_time() }
    }

    /// How long to wait before going on.
    fn due(&mut self) -> Duration {
        let owed = (processor_time().saturating_sub(self.used)).div_f64(self.share);
        let passed = self.began.elapsed();
        if passed > owed + Self::MEMORY {
            *self = Self::new(self.share);
        }
        Some(owed.saturating_sub(passed)).filter(|pause| *pause >= Self::LEAST).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::Places;
    use super::super::walk::Ground;
    use super::*;

    #[test]
    fn files_are_found_again_and_new_ones_by_their_directories() {
        let dir = tempfile::tempdir_in(".").unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/old"), vec![1; 4096]).unwrap();
        let proc = ProcRoot::default();
        let places = Places::of_directories(&proc, &[dir.path().to_path_buf()], false).unwrap();
        let ground = Arc::new(Ground::new(places));
        let seen = super::super::walk::walk_all(&ground, 1, &super::super::Progress::default());
        assert_eq!(seen.known.len(), 1);
        let work =
            Work { proc, ground, profiles: Vec::new(), counts_open: false, network: false, share: 1.0 };
        let background = Background::start(work).unwrap();
        std::fs::create_dir(dir.path().join("a/new")).unwrap();
        std::fs::write(dir.path().join("a/new/file"), vec![1; 8192]).unwrap();
        background.hunt();
        let mut found = Vec::new();
        'waiting: loop {
            for message in background.take() {
                match message {
                    Message::Directory(seen) => found.extend(seen.found),
                    Message::Hunted => break 'waiting,
                    _ => {}
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(found.iter().any(|found| found.residency.resident == 8192), "{found:?}");
    }

    #[test]
    fn a_thread_that_works_has_to_wait() {
        let mut pace = Pace::new(0.01);
        let from = processor_time();
        while processor_time().saturating_sub(from) < Duration::from_millis(20) {
            std::hint::black_box(0);
        }
        let due = pace.due();
        assert!(due > Duration::from_secs(1), "{due:?}");
        assert!(Pace::new(1.0).due().is_zero());
    }
}
