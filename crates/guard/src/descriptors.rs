//! Who has which log file open, and where in it: writers and followers, from `/proc/PID/fd` and
//! `/proc/PID/fdinfo`.
//!
//! Listing all descriptors of a process is the expensive part (some microseconds each), so it is done seldom: when
//! a descriptor turned out to be another file than before, and else at intervals that keep its cost under
//! [`SHARE`] of the time, at least every [`MOST`], as far as there is [`ListingTime`]. It goes in slices of processor time, so a
//! process with very many takes some ticks, and keeps no other waiting. In between only the descriptors known to be of log
//! files are read, at most [`POLLED`] in one tick, by shares, and of many those first that moved. No more of one process than [`DESCRIPTORS`] are kept in mind,
//! and of all that are no databases together [`DESCRIPTORS_OF_OTHERS`], by shares. A process that ended has no descriptors; one
//! that may not be inspected is reported by its error.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::process::{Access, FdRounds, FdVisitor, OpenFile, ProcRoot, thread_cpu_time};
use pagekeeper_kernel::{Inode, Result};
use pagekeeper_policy::FileId;
use pagekeeper_policy::shares::shares_by_party;

use crate::budget::{DESCRIPTORS, DESCRIPTORS_OF_OTHERS, ListingTime};
use crate::directory::Directory;
use crate::ids::IdSet;
use crate::known_names::KnownNames;

/// A listing that takes a millisecond is repeated after this many.
const SHARE: u32 = 1000;
/// One that is asked for, after this many.
const URGENT_SHARE: u32 = 50;
/// The least time between two listings that nothing asked for.
const LEAST: Duration = Duration::from_secs(1);
/// The most time between two listings.
const MOST: Duration = Duration::from_secs(15);
/// Descriptors of databases whose positions are read in one tick, and of other processes; of more in turns.
pub(crate) const POLLED: usize = 256;
/// Of a process with more than [`FEW_HELD`], so many that did not move are read in one tick.
const RESTING: usize = 64;
/// The files of a process with no more descriptors are sampled at each tick, whether these are seen to move or not: not all
/// that is written moves one.
const FEW_HELD: usize = 64;
/// Processor time for listings in one tick, where something is to be seen at once, and else.
const SLICE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(3));

/// A descriptor of a log file.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    pub(crate) pid: u32,
    pub(crate) fd: RawFd,
    pub(crate) file: FileId,
    /// Its inode number as fdinfo shows it, which on overlayfs is not always stat's; none before Linux 5.14.
    pub(crate) shown_inode: Option<u64>,
    pub(crate) inode: Inode,
    pub(crate) access: Access,
    pub(crate) position: u64,
    /// Whether it was seen elsewhere at this tick than before, or for the first time.
    pub(crate) moved: bool,
    /// The same of when it was looked at last.
    pub(crate) lively: bool,
}

/// At which files processes are.
#[derive(Debug, Default)]
pub(crate) struct FilesInUse {
    /// To be sampled at each tick.
    pub(crate) busy: IdSet<FileId>,
    /// Open, but of a process with very many, and no descriptor was seen to move at this tick.
    pub(crate) held: IdSet<FileId>,
}

impl FilesInUse {
    /// Takes in the descriptors of one process.
    pub(crate) fn add(&mut self, of_process: &[Descriptor]) {
        let are_few = of_process.len() <= FEW_HELD;
        for descriptor in of_process {
            let set = if are_few || descriptor.moved { &mut self.busy } else { &mut self.held };
            set.insert(descriptor.file);
        }
    }
}

/// When descriptors are listed.
#[derive(Debug)]
pub(crate) struct Schedule {
    due: Instant,
    asked: bool,
    /// However urgently it is asked for, not before.
    earliest: Instant,
    /// Whether the listing that is under way was asked for; none if there is none.
    running: Option<bool>,
    /// When the last one began.
    began: Instant,
    /// When the last one began that has ended.
    pub(crate) listed: Option<Instant>,
    /// How many have ended.
    #[cfg(test)]
    pub(crate) ended: usize,
}

impl Schedule {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            due: now,
            asked: true,
            earliest: now,
            running: None,
            began: now,
            listed: None,
            #[cfg(test)]
            ended: 0,
        }
    }

    /// Asks for a listing at the next tick.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// Begins a listing, if one is due.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let due = self.running.is_none() && now >= self.earliest && (self.asked || now >= self.due);
        if due {
            self.running = Some(std::mem::take(&mut self.asked));
            self.began = now;
        }
        due
    }

    /// How long what is under way may take in one tick.
    pub(crate) fn slice(&self) -> Duration {
        if self.running == Some(true) { SLICE.0 } else { SLICE.1 }
    }

    /// Ends a listing that took so much processor time.
    pub(crate) fn end(&mut self, cost: Duration) {
        #[cfg(test)]
        {
            self.ended += 1;
        }
        let now = Instant::now();
        self.running = None;
        self.listed = Some(self.began);
        self.due = now + (cost * SHARE).clamp(LEAST, MOST);
        self.earliest = now + (cost * URGENT_SHARE).min(MOST);
    }
}

/// The descriptors of a database's process, kept up to date.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pub(crate) known: Vec<Descriptor>,
    pub(crate) schedule: Schedule,
    turn: usize,
}

impl Descriptors {
    pub(crate) fn new(now: Instant) -> Self {
        Self { known: Vec::new(), schedule: Schedule::new(now), turn: 0 }
    }

    /// Knows those of the listed descriptors that are of watched files.
    pub(crate) fn settle(&mut self, pid: u32, listed: &[OpenFile], names: &KnownNames) {
        let before: HashMap<RawFd, (FileId, u64)> =
            self.known.iter().map(|known| (known.fd, (known.file, known.position))).collect();
        self.known = listed.iter().filter_map(|file| descriptor(pid, file, names)).collect();
        for known in &mut self.known {
            known.moved = before.get(&known.fd) != Some(&(known.file, known.position));
        }
    }

    /// Reads the positions of so many of the known descriptors again. One that is closed or became another file asks for
    /// a listing.
    pub(crate) fn poll(&mut self, proc: &ProcRoot, share: usize) {
        self.schedule.asked |= poll(&mut self.known, &mut self.turn, proc, share);
    }
}

/// The descriptors of watched files in processes that are no watched database, kept up to date.
#[derive(Debug)]
pub(crate) struct Others {
    known: BTreeMap<u32, Known>,
    pub(crate) schedule: Schedule,
    rounds: FdRounds<Listing>,
    time: ListingTime,
    cost: Duration,
    /// Processes that have more of them open than are kept in mind, since the last [`Others::left_out`].
    left_out: Vec<u32>,
    whole: Whole,
}

/// Since when all of them have been read: with very many descriptors some are read for longer than a listing.
#[derive(Debug, Default)]
struct Whole {
    since: Option<Instant>,
    /// What comes next: when a listing began that has ended, and who has yet to be read from then on.
    next: Option<(Instant, BTreeSet<u32>)>,
}

impl Whole {
    /// Takes in a listing that began at that time and has ended, but for these.
    fn listed(&mut self, began: Instant, but: BTreeSet<u32>) {
        // Else who has very many would put it off without end.
        self.next.get_or_insert((began, but));
        self.settle();
    }

    /// Takes in that a process was read, or has ended; it was begun with at that time.
    fn read(&mut self, pid: u32, began: Instant) {
        if let Some((_, waiting)) = self.next.as_mut().filter(|(since, _)| began >= *since) {
            waiting.remove(&pid);
            self.settle();
        }
    }

    /// Forgets those that have ended.
    fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        if let Some((_, waiting)) = &mut self.next {
            waiting.retain(|pid| is_there(*pid));
            self.settle();
        }
    }

    fn settle(&mut self) {
        if let Some((since, _)) = self.next.take_if(|(_, waiting)| waiting.is_empty()) {
            self.since = Some(since);
        }
    }
}

/// What is known of one of these processes.
#[derive(Debug)]
struct Known {
    descriptors: Vec<Descriptor>,
    party: Party,
    turn: usize,
}

impl Others {
    pub(crate) fn new(now: Instant) -> Self {
        let (known, cost, left_out) = (BTreeMap::new(), Duration::ZERO, Vec::new());
        let (schedule, rounds, time) = (Schedule::new(now), FdRounds::default(), ListingTime::new(now));
        Self { known, schedule, rounds, time, cost, left_out, whole: Whole::default() }
    }

    /// Lists them soon.
    pub(crate) fn hurry(&mut self) {
        self.time.hurry();
    }

    /// All descriptors that are known.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Descriptor> {
        self.known.values().flat_map(|known| &known.descriptors)
    }

    /// The same, by process.
    pub(crate) fn by_process(&self) -> impl Iterator<Item = &[Descriptor]> {
        self.known.values().map(|known| &*known.descriptors)
    }

    /// Whether a listing of all processes is under way, but for those with very many descriptors.
    pub(crate) fn is_listing(&self) -> bool {
        self.schedule.running.is_some()
    }

    /// Since when all of them have been read that may be.
    pub(crate) fn all_read_since(&self) -> Option<Instant> {
        self.whole.since
    }

    /// Which processes were found to have more of them open than are kept in mind.
    pub(crate) fn left_out(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.left_out)
    }

    /// As [`Descriptors::poll`].
    pub(crate) fn poll(&mut self, proc: &ProcRoot) {
        let shares = self.shares(POLLED);
        for (known, share) in self.known.values_mut().zip(shares) {
            self.schedule.asked |= poll(&mut known.descriptors, &mut known.turn, proc, share);
        }
        self.known.retain(|_, known| !known.descriptors.is_empty());
    }

    /// The share of each process in so many descriptors.
    fn shares(&self, all: usize) -> Vec<usize> {
        let wanted: Vec<_> =
            self.known.values().map(|known| (known.party, known.descriptors.len())).collect();
        shares_by_party(all, &wanted)
    }

    /// Lists the descriptors of these processes, if that is due, or goes on with it: those that were listed, and which logs that
    /// were removed they have open.
    pub(crate) fn list(
        &mut self,
        proc: &ProcRoot,
        pids: impl Iterator<Item = u32>,
        wanted: Wanted<'_>,
        now: Instant,
    ) -> Vec<ListedProcess> {
        if self.schedule.begin(now) {
            self.whole.keep(|pid| proc.start_time(pid).is_ok());
            // Those with very many are still being read.
            let begun: Vec<u32> = self.rounds.begun().collect();
            pids.filter(|pid| !begun.contains(pid)).for_each(|pid| self.rounds.push(pid));
        }
        if self.rounds.is_empty() && self.schedule.running.is_none() {
            return Vec::new();
        }
        let Some(slice) = self.time.slice(self.schedule.slice(), now) else { return Vec::new() };
        let before = thread_cpu_time();
        let Wanted { directories, names, was_log } = wanted;
        names.update(directories);
        let names = &*names;
        let wanted = |pid: u32, path: &Path| {
            names.has(path) || name_of_removed(path).is_some_and(|name| was_log(pid, name))
        };
        let kept = |file: &OpenFile| {
            file.deleted || file.path.file_name().is_some_and(|name| names.find(name, file.inode).is_some())
        };
        let mut lister = Lister::new(proc, &wanted, &kept);
        self.rounds.advance(proc, &mut lister, slice);
        let mut all_removed = Vec::new();
        // That some may not be inspected was reported at the start.
        for mut done in lister.done {
            self.cost += done.cost;
            self.whole.read(done.pid, done.began);
            let (removed, open): (Vec<_>, Vec<_>) =
                std::mem::take(&mut done.open).into_iter().partition(|file| file.deleted);
            let descriptors: Vec<Descriptor> =
                open.iter().filter_map(|file| descriptor(done.pid, file, names)).collect();
            if done.left_out {
                self.left_out.push(done.pid);
            }
            if descriptors.is_empty() {
                self.known.remove(&done.pid);
            } else {
                let party = Party::of(proc, done.pid);
                self.known.insert(done.pid, Known { descriptors, party, turn: 0 });
            }
            all_removed.push(ListedProcess { open: removed, ..done });
        }
        let shares = self.shares(DESCRIPTORS_OF_OTHERS);
        for ((pid, known), share) in self.known.iter_mut().zip(shares) {
            if known.descriptors.len() > share {
                known.descriptors.truncate(share);
                self.left_out.push(*pid);
            }
        }
        self.time.spend(thread_cpu_time().saturating_sub(before));
        if self.schedule.running.is_some() && self.rounds.waiting() == 0 {
            self.schedule.end(std::mem::take(&mut self.cost));
            self.whole.listed(self.schedule.began, self.rounds.begun().collect());
        }
        all_removed
    }
}

/// What the kernel appends to the name of a removed file that is open.
const MARK: &[u8] = b" (deleted)";

/// The name that a removed file had, where what the kernel shows of a descriptor may be one's.
pub(crate) fn name_of_removed(shown: &Path) -> Option<&Path> {
    let name = shown.as_os_str().as_bytes().strip_suffix(MARK)?;
    Some(Path::new(OsStr::from_bytes(name)))
}

/// By which names files matter.
pub(crate) struct Wanted<'a> {
    /// The directories of the watched files.
    pub(crate) directories: &'a [Directory],
    /// These files' names.
    pub(crate) names: &'a mut KnownNames,
    /// Whether a file of this name that was removed was a log, where this process has it open.
    pub(crate) was_log: &'a dyn Fn(u32, &Path) -> bool,
}

/// What was listed of a process that is being read.
#[derive(Debug)]
pub(crate) struct Listing {
    pid: u32,
    began: Instant,
    open: Vec<OpenFile>,
    left_out: bool,
}

/// What was listed of a process.
#[derive(Debug)]
pub(crate) struct ListedProcess {
    pub(crate) pid: u32,
    /// When that began.
    pub(crate) began: Instant,
    /// Its descriptors of regular files whose names passed.
    pub(crate) open: Vec<OpenFile>,
    /// Whether it has more of them than are kept in mind.
    pub(crate) left_out: bool,
    /// Whether all could be read.
    pub(crate) read: Result<()>,
    /// The processor time that it took.
    pub(crate) cost: Duration,
}

impl ListedProcess {
    /// Whether it is there and could not be read.
    pub(crate) fn is_unread(&self) -> bool {
        self.read.as_ref().is_err_and(|error| !error.is_gone())
    }
}

/// Lists descriptors of files whose names pass.
pub(crate) struct Lister<'a> {
    proc: &'a ProcRoot,
    wanted: &'a dyn Fn(u32, &Path) -> bool,
    kept: &'a dyn Fn(&OpenFile) -> bool,
    pub(crate) done: Vec<ListedProcess>,
}

impl<'a> Lister<'a> {
    /// Of the names that are wanted, those files that are kept.
    pub(crate) fn new(
        proc: &'a ProcRoot,
        wanted: &'a dyn Fn(u32, &Path) -> bool,
        kept: &'a dyn Fn(&OpenFile) -> bool,
    ) -> Self {
        Self { proc, wanted, kept, done: Vec::new() }
    }
}

impl FdVisitor for Lister<'_> {
    type Process = Listing;

    fn begin(&mut self, pid: u32) -> Option<Listing> {
        Some(Listing { pid, began: Instant::now(), open: Vec::new(), left_out: false })
    }

    fn descriptor(&mut self, listing: &mut Listing, fd: RawFd, target: &Path) {
        if (self.wanted)(listing.pid, target) {
            if listing.open.len() >= DESCRIPTORS {
                listing.left_out = true;
                return;
            }
            let file = self.proc.open_file_at(listing.pid, fd, target);
            listing.open.extend(file.filter(|file| (self.kept)(file)));
        }
    }

    fn end(&mut self, pid: u32, listing: Listing, read: Result<()>, cost: Duration) {
        let Listing { open, left_out, began, .. } = listing;
        self.done.push(ListedProcess { pid, began, open, left_out, read, cost });
    }
}

/// Reads so many positions again; whether one is closed or became another file, which is forgotten. Of many, those that moved
/// when they were looked at last come first, and of the rest some in turns.
fn poll(known: &mut Vec<Descriptor>, turn: &mut usize, proc: &ProcRoot, share: usize) -> bool {
    let count = known.len();
    let in_turn = if count > FEW_HELD { share.min(RESTING) } else { share };
    // Some have been forgotten since.
    let first = if *turn < count { *turn } else { 0 };
    *turn = if count > in_turn { (first + in_turn) % count } else { 0 };
    let (mut at, mut changed, mut lively) = (0, false, share.saturating_sub(in_turn));
    known.retain_mut(|descriptor| {
        let is_in_turn = (at + count - first) % count < in_turn;
        let is_due = is_in_turn || (descriptor.lively && lively > 0);
        lively -= usize::from(is_due && !is_in_turn);
        at += 1;
        descriptor.moved = false;
        if !is_due {
            return true;
        }
        let same = proc.fd_info(descriptor.pid, descriptor.fd).ok().filter(|info| match info.inode_number {
            Some(number) => descriptor.shown_inode == Some(number),
            // Before Linux 5.14 fdinfo has no inode.
            None => proc.inode_behind(descriptor.pid, descriptor.fd) == Some(descriptor.inode),
        });
        changed |= same.is_none();
        if let Some(info) = &same {
            descriptor.moved = descriptor.position != info.position;
            descriptor.lively = descriptor.moved;
            descriptor.position = info.position;
            descriptor.access = info.access();
        }
        same.is_some()
    });
    changed
}

/// A descriptor of one of the log files; `None` if another file has such a name.
fn descriptor(pid: u32, file: &OpenFile, names: &KnownNames) -> Option<Descriptor> {
    let id = names.find(file.path.file_name()?, file.inode)?;
    Some(Descriptor {
        pid,
        fd: file.fd,
        file: id,
        shown_inode: file.shown_inode,
        inode: file.inode,
        access: file.access,
        position: file.position,
        moved: true,
        lively: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_policy::FileId;

    #[test]
    fn who_has_very_many_descriptors_is_waited_for_and_puts_it_off_no_longer() {
        let now = Instant::now();
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        let mut whole = Whole::default();
        whole.listed(at(1), BTreeSet::new());
        assert_eq!(whole.since, Some(at(1)));
        // 7 was begun with before this listing, and 8 in it.
        whole.listed(at(10), BTreeSet::from([7, 8]));
        whole.read(8, at(11));
        whole.read(7, at(5));
        assert_eq!(whole.since, Some(at(1)), "of 7 a part was read before");
        // There are ever new ones of them.
        for second in [20, 30] {
            whole.listed(at(second), BTreeSet::from([7, 9]));
        }
        whole.read(7, at(21));
        assert_eq!(whole.since, Some(at(10)));
        whole.listed(at(40), BTreeSet::from([9]));
        whole.keep(|pid| pid != 9);
        assert_eq!(whole.since, Some(at(40)), "it has ended");
    }

    #[test]
    fn of_many_descriptors_those_that_move_are_read_at_each_tick() {
        let tree = tempfile::tempdir().unwrap();
        let infos = tree.path().join("7/fdinfo");
        std::fs::create_dir_all(&infos).unwrap();
        let put = |fd: RawFd, position: u64| {
            let text = format!("pos:\t{position}\nflags:\t01\nmnt_id:\t9\nino:\t{fd}\n");
            std::fs::write(infos.join(fd.to_string()), text).unwrap();
        };
        let of = |fd: RawFd| Descriptor {
            pid: 7,
            fd,
            file: FileId(1),
            shown_inode: u64::try_from(fd).ok(),
            inode: Inode { dev: 1, ino: 1 },
            access: Access::WriteOnly,
            position: 0,
            moved: false,
            lively: false,
        };
        let count = 300;
        (0..count).for_each(|fd| put(fd, 0));
        let mut known: Vec<Descriptor> = (0..count).map(of).collect();
        let (proc, mut turn) = (ProcRoot::at(tree.path()), 0);
        let mut seen_at = Vec::new();
        for tick in 0..40 {
            // One moves all the time, and is met in its turn at first.
            put(299, tick + 1);
            // Others rest; one of them wakes once.
            if tick == 20 {
                put(10, 1);
            }
            assert!(!poll(&mut known, &mut turn, &proc, POLLED));
            seen_at.push((known[299].position, known[10].position));
        }
        let first = seen_at.iter().position(|(position, _)| *position > 0).unwrap();
        assert!(first < 5, "{first}");
        assert!(
            seen_at.iter().enumerate().skip(first).all(|(tick, (position, _))| *position == tick as u64 + 1)
        );
        let woken = seen_at.iter().position(|(_, position)| *position > 0).unwrap();
        assert!((20..25).contains(&woken), "{woken}");
        // One that is another file by now is forgotten, whenever its turn comes.
        std::fs::write(infos.join("5"), "pos:\t0\nflags:\t01\nmnt_id:\t9\nino:\t77\n").unwrap();
        let changed = (0..6).filter(|_| poll(&mut known, &mut turn, &proc, POLLED)).count();
        assert_eq!((changed, known.len()), (1, 299));
    }
}
