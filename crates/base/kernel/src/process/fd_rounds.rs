//! Reads the descriptors of many processes in slices of processor time.
//!
//! A process may have very many descriptors. These are read in pieces, in turns with other such
//! processes, and after all processes with few. So no process delays others by the number of its
//! descriptors. The cost of a slice is measured in processor time of the calling thread, so a busy
//! machine does not lengthen it.
//!
//! A process that ends meanwhile yields an error for which [`Error::is_gone`] holds. Only `/proc`
//! is read, and nothing in it stays open between two pieces, however many processes have many
//! descriptors.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::ProcRoot;
use crate::{Error, Result};

/// Minimum number of descriptors in a piece: a process with fewer is read at once.
const PIECE_DESCRIPTORS_MIN: usize = 256;
/// Number of turns of which one goes to a process that is not urgent.
const OTHER_TURN_INTERVAL: u32 = 4;

/// Returns the processor time used by the calling thread so far (`CLOCK_THREAD_CPUTIME_ID` of
/// `clock_gettime(2)`).
///
/// ```
/// let before = pagekeeper_kernel::process::thread_cpu_time();
/// assert!(pagekeeper_kernel::process::thread_cpu_time() >= before);
/// ```
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // It is never negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Runs a job. Returns its result, and the processor time of this thread that it took.
pub fn measured<R>(job: impl FnOnce() -> R) -> (R, Duration) {
    let before = thread_cpu_time();
    let result = job();
    (result, thread_cpu_time().saturating_sub(before))
}

/// The descriptors of one process, read in pieces.
#[derive(Debug)]
pub(super) struct FdPieces {
    pid: u32,
    path: PathBuf,
    /// The start of the next piece, and the start time of the process: its ID may be reused.
    next: Option<(u64, Option<u64>)>,
}

impl FdPieces {
    pub(super) fn of(proc: &ProcRoot, pid: u32) -> Self {
        Self { pid, path: proc.of(pid, "fd"), next: None }
    }

    /// Passes the next few hundred descriptors with their link targets to `each`. Returns whether
    /// there may be more.
    #[allow(clippy::disallowed_methods, reason = "of /proc")]
    pub(super) fn next(&mut self, proc: &ProcRoot, each: &mut dyn FnMut(RawFd, &Path)) -> Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&self.path, flags, Mode::empty())
            .map_err(|e| Error::call("open", &self.path, e))?;
        if let Some((position, started)) = self.next {
            if proc.start_time(self.pid).ok() != started {
                return Err(Error::call("open", &self.path, Errno::SRCH));
            }
            rustix::fs::seek(&directory, SeekFrom::Start(position))
                .map_err(|e| Error::call("lseek", &self.path, e))?;
        }
        let mut entries_buffer = [MaybeUninit::<u8>::uninit(); 8192];
        // The kernel prints a link's target into one page of 4 KiB or more, and refuses longer
        // ones.
        let mut target_buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut entries = RawDir::new(&directory, &mut entries_buffer);
        let mut seen = 0;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|e| Error::call("readdir", &self.path, e))?;
            let Some(fd) = entry.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok()) else {
                continue;
            };
            seen += 1;
            let position = entry.next_entry_cookie();
            match rustix::fs::readlinkat_raw(&directory, entry.file_name(), &mut target_buffer) {
                Ok((target, _)) => each(fd, Path::new(std::ffi::OsStr::from_bytes(target))),
                Err(Errno::NAMETOOLONG) => each(fd, &proc.fd_path(self.pid, fd)),
                // Closed meanwhile; if the process has ended, the list is gone, too.
                Err(Errno::NOENT | Errno::SRCH) => {}
                Err(error) => return Err(Error::call("readlink", proc.fd_path(self.pid, fd), error)),
            }
            // Entries left in the buffer would be read twice.
            if seen >= PIECE_DESCRIPTORS_MIN && entries.is_buffer_empty() {
                self.next = Some((position, proc.start_time(self.pid).ok()));
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A visitor of the descriptors of processes.
pub trait FdVisitor {
    /// The state kept for a process while it is read.
    type Process;

    /// Starts a process; `None` if it should not be read after all.
    fn begin(&mut self, pid: u32) -> Option<Self::Process>;

    /// Visits a descriptor with its link target, as in [`ProcRoot::fd_links`].
    fn visit(&mut self, process: &mut Self::Process, fd: RawFd, target: &Path);

    /// Pauses a process of which a part was read; the rest follows later, possibly much later.
    fn pause(&mut self, _pid: u32, _process: &Self::Process) {}

    /// Ends a process. `read` tells whether everything could be read, `cost` the processor time it
    /// took.
    fn end(&mut self, pid: u32, process: Self::Process, read: Result<()>, cost: Duration);
}

/// Waiting processes, in one lane for each party. The lanes take turns.
#[derive(Debug)]
struct FairQueue<L> {
    /// No lane is empty.
    waiting: BTreeMap<L, VecDeque<u32>>,
    /// The lane that had the last turn.
    last: Option<L>,
}

impl<L: Ord + Copy> FairQueue<L> {
    const fn new() -> Self {
        Self { waiting: BTreeMap::new(), last: None }
    }

    fn push(&mut self, lane: L, pid: u32) {
        self.waiting.entry(lane).or_default().push_back(pid);
    }

    fn pop(&mut self) -> Option<u32> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range((after, Bound::Unbounded)).next();
        let lane = *next.or_else(|| self.waiting.first_key_value())?.0;
        self.last = Some(lane);
        let Entry::Occupied(mut waiting) = self.waiting.entry(lane) else { return None };
        let pid = waiting.get_mut().pop_front();
        if waiting.get().is_empty() {
            waiting.remove();
        }
        pid
    }

    fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}

/// The processes whose descriptors are to be read or are being read.
///
/// Each waits in the lane of a party `L`, such as its user. Whoever has very many processes makes
/// only their own wait.
#[derive(Debug)]
pub struct FdRounds<S, L = ()> {
    /// Urgent processes.
    first: FairQueue<L>,
    next: FairQueue<L>,
    large: VecDeque<LargeProcess<S>>,
    /// The number of processes started.
    steps: u32,
}

/// A process with many descriptors.
#[derive(Debug)]
struct LargeProcess<S> {
    pieces: FdPieces,
    process: S,
    cost: Duration,
}

impl<S, L: Ord + Copy> Default for FdRounds<S, L> {
    fn default() -> Self {
        Self { first: FairQueue::new(), next: FairQueue::new(), large: VecDeque::new(), steps: 0 }
    }
}

impl<S> FdRounds<S> {
    /// Queues this process after all waiting ones.
    pub fn push(&mut self, pid: u32) {
        self.push_in((), pid);
    }

    /// Queues this process before the other waiting ones, and after those queued here earlier. A
    /// user who creates processes without end delays the others, but keeps none of them waiting
    /// forever.
    pub fn push_first(&mut self, pid: u32) {
        self.push_first_in((), pid);
    }
}

impl<S, L: Ord + Copy> FdRounds<S, L> {
    /// Queues this process in a lane as [`push`](FdRounds::push) does in the only one.
    pub fn push_in(&mut self, lane: L, pid: u32) {
        self.next.push(lane, pid);
    }

    /// Queues this process in a lane as [`push_first`](FdRounds::push_first) does in the only one.
    pub fn push_first_in(&mut self, lane: L, pid: u32) {
        self.first.push(lane, pid);
    }

    /// Returns the number of processes that wait and were not started.
    pub fn waiting(&self) -> usize {
        self.first.len() + self.next.len()
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.waiting() == 0 && self.large.is_empty()
    }

    /// Returns the processes of which a part was read.
    pub fn begun(&self) -> impl Iterator<Item = u32> {
        self.large.iter().map(|process| process.pieces.pid)
    }

    /// Returns the next process to start: an urgent one, except in one of [`OTHER_TURN_INTERVAL`]
    /// turns.
    fn pop(&mut self) -> Option<u32> {
        self.steps = self.steps.wrapping_add(1);
        let (first, then) = if self.steps.is_multiple_of(OTHER_TURN_INTERVAL) {
            (&mut self.next, &mut self.first)
        } else {
            (&mut self.first, &mut self.next)
        };
        first.pop().or_else(|| then.pop())
    }

    /// Forgets all queued processes.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Reads until `budget` of processor time is used: at least some hundred descriptors of two
    /// processes. Returns whether everything was read.
    ///
    /// A piece is not interrupted: it takes a microsecond per descriptor, plus the visitor's time.
    pub fn advance<V: FdVisitor<Process = S>>(
        &mut self,
        proc: &ProcRoot,
        visitor: &mut V,
        budget: Duration,
    ) -> bool {
        let began = thread_cpu_time();
        let mut before = began;
        for step in 0_u64.. {
            if self.is_empty() {
                break;
            }
            // First a process with few descriptors, then one with many, which thus progress however
            // many with few arrive; then the other ones with few.
            let of_many = step == 1 && !self.large.is_empty();
            let next = if of_many { None } else { self.pop() };
            let current = match next {
                Some(pid) => visitor.begin(pid).map(|process| {
                    let pieces = FdPieces::of(proc, pid);
                    LargeProcess { pieces, process, cost: Duration::ZERO }
                }),
                None => self.large.pop_front(),
            };
            let Some(mut current) = current else { continue };
            let each = &mut |fd, target: &Path| visitor.visit(&mut current.process, fd, target);
            let more = current.pieces.next(proc, each);
            let after = thread_cpu_time();
            current.cost += after.saturating_sub(before);
            match more {
                Ok(true) => {
                    visitor.pause(current.pieces.pid, &current.process);
                    self.large.push_back(current);
                }
                Ok(false) => visitor.end(current.pieces.pid, current.process, Ok(()), current.cost),
                Err(error) => visitor.end(current.pieces.pid, current.process, Err(error), current.cost),
            }
            before = after;
            if step > 0 && after.saturating_sub(began) >= budget {
                break;
            }
        }
        self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A visitor that counts descriptors and records the processes that ended, in order.
    #[derive(Default)]
    struct Counting(Vec<(u32, usize, bool)>);

    impl FdVisitor for Counting {
        type Process = usize;

        fn begin(&mut self, pid: u32) -> Option<usize> {
            (pid != 4).then_some(0)
        }

        fn visit(&mut self, process: &mut usize, _: RawFd, _: &Path) {
            *process += 1;
        }

        fn end(&mut self, pid: u32, process: usize, read: Result<()>, _: Duration) {
            self.0.push((pid, process, read.is_ok()));
        }
    }

    fn tree(processes: &[(u32, usize)]) -> (tempfile::TempDir, ProcRoot) {
        let tree = tempfile::tempdir().unwrap();
        for (pid, count) in processes {
            let fds = tree.path().join(format!("{pid}/fd"));
            std::fs::create_dir_all(&fds).unwrap();
            for fd in 0..*count {
                symlink("/nowhere", fds.join(fd.to_string())).unwrap();
            }
        }
        let proc = ProcRoot::at(tree.path());
        (tree, proc)
    }

    #[test]
    fn a_process_with_many_descriptors_delays_no_other() {
        let (_tree, proc) = tree(&[(1, 5000), (2, 3), (3, 4000), (4, 1), (5, 0)]);
        let (mut rounds, mut seen) = (FdRounds::default(), Counting::default());
        for pid in [1, 2, 3, 4, 5, 6] {
            rounds.push(pid);
        }
        rounds.push_first(2);
        assert_eq!(rounds.waiting(), 7);
        let mut slices = 1;
        while !rounds.advance(&proc, &mut seen, Duration::ZERO) {
            slices += 1;
        }
        assert!(slices > 10, "{slices}");
        let few: Vec<_> = seen.0.iter().take(4).copied().collect();
        assert_eq!(few, [(2, 3, true), (2, 3, true), (5, 0, true), (6, 0, false)], "{:?}", seen.0);
        let mut many: Vec<_> = seen.0.split_off(4);
        many.sort_unstable();
        assert_eq!(many, [(1, 5000, true), (3, 4000, true)]);
        assert!(rounds.is_empty() && rounds.begun().next().is_none());
    }

    #[test]
    fn processes_made_without_end_keep_no_other_waiting() {
        let (_tree, proc) = tree(&[(1, 1), (2, 1), (3, 1)]);
        let (mut rounds, mut seen) = (FdRounds::default(), Counting::default());
        rounds.push(1);
        rounds.push_first(2);
        for _ in 0..20 {
            // More processes arrive in each turn than are read.
            (0..4).for_each(|_| rounds.push_first(3));
            rounds.advance(&proc, &mut seen, Duration::ZERO);
        }
        let read = |pid| seen.0.iter().any(|(other, ..)| *other == pid);
        assert!(read(1) && read(2), "{:?}", seen.0);
    }

    #[test]
    fn a_lane_of_very_many_processes_keeps_no_other_lane_waiting() {
        let processes: Vec<(u32, usize)> = (1..=100).map(|pid| (pid, 1)).collect();
        let (_tree, proc) = tree(&processes);
        let (mut rounds, mut seen) = (FdRounds::default(), Counting::default());
        (1..=99).for_each(|pid| rounds.push_first_in("many", pid));
        rounds.push_first_in("one", 100);
        assert_eq!(rounds.waiting(), 100);
        rounds.advance(&proc, &mut seen, Duration::ZERO);
        let read: Vec<u32> = seen.0.iter().map(|(pid, ..)| *pid).collect();
        assert_eq!(read, [1, 100]);
        while !rounds.advance(&proc, &mut seen, Duration::ZERO) {}
        // One was left out by the visitor.
        assert_eq!((seen.0.len(), rounds.waiting()), (99, 0));
    }

    #[test]
    fn a_process_that_ends_meanwhile_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let proc = ProcRoot::default();
        let mut pieces = FdPieces::of(&proc, child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut count = 0;
        match pieces.next(&proc, &mut |_, _| count += 1) {
            Ok(more) => assert!(!more && count == 0),
            Err(error) => assert!(error.is_gone(), "{error}"),
        }
    }

    #[test]
    fn a_process_of_the_same_id_is_another_one() {
        let (tree, proc) = tree(&[(7, 1000)]);
        let started_at = |time: u32| {
            let stat = format!("7 (sh) S 1 {}{time} 0 0\n", "0 ".repeat(17));
            std::fs::write(tree.path().join("7/stat"), stat).unwrap();
            assert_eq!(proc.start_time(7).unwrap(), u64::from(time));
        };
        started_at(5);
        let mut pieces = FdPieces::of(&proc, 7);
        let mut count = 0;
        assert!(pieces.next(&proc, &mut |_, _| count += 1).unwrap());
        assert!(pieces.next(&proc, &mut |_, _| count += 1).unwrap());
        started_at(6);
        let error = pieces.next(&proc, &mut |_, _| count += 1).unwrap_err();
        assert!(error.is_gone() && count < 1000, "{error}, {count}");
    }
}
