//! Readers of logs: where each is, and which files are to go when it was read. In memory that a process shares with those that it forks: a
//! server's WAL senders and its archiver read what other processes of it write.
//!
//! An archiver starts other programs that read. What it has archived is seen by a name that it changes (`rules::archive`): it has an
//! entry for each series of logs, as a reader at the first file that is yet to be archived.
//!
//! Invariants: nobody waits; where there is no room, a reader is not known, and what it reads may be gone from memory. A reader whose
//! process has ended is none.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use pagekeeper_policy::allowance::is_near;

use crate::sys::{self, Errno};

/// Readers that are known at a time.
const READERS: usize = 64;
/// Files that are to go.
const OWED: usize = 64;
/// An entry that is being made.
const BUSY: u32 = u32::MAX;
/// The entry of an archiver, which is no process's.
const ARCHIVER: u32 = u32::MAX - 1;

/// A reader.
struct Reader {
    /// Its process, or what else the entry is; 0: free.
    owner: AtomicU32,
    inode: AtomicU64,
    series: AtomicU64,
    sequence: AtomicU64,
    place: AtomicU64,
}

impl Reader {
    #[allow(clippy::declare_interior_mutable_const, reason = "what an entry begins with")]
    const NONE: Self = Self {
        owner: AtomicU32::new(0),
        inode: AtomicU64::new(0),
        series: AtomicU64::new(0),
        sequence: AtomicU64::new(0),
        place: AtomicU64::new(0),
    };

    /// Whether it is one: the entry of a process that has ended is freed.
    fn is_there(&self) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        match owner {
            0 | BUSY => false,
            ARCHIVER => true,
            _ if owner == sys::getpid() || sys::is_process(owner) => true,
            _ => {
                let _ = self.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
                false
            }
        }
    }
}

/// All that is known.
pub struct Followers {
    readers: [Reader; READERS],
    /// Inodes of files that are to go when their last reader has read them.
    owed: [AtomicU64; OWED],
}

static OWN: Followers = Followers::NEW;
/// Memory of the kernel's, shared with children of fork, or [`OWN`].
static SHARED: AtomicPtr<Followers> = AtomicPtr::new((&raw const OWN).cast_mut());

/// Has what is known be shared with the children of this process.
///
/// # Errors
///
/// Where there is no memory: each process knows its own.
#[allow(unsafe_code, reason = "a mapping of shared memory")]
pub fn share() -> Result<(), Errno> {
    let at = sys::take_shared_memory(size_of::<Followers>())?;
    // Zeroes are what it begins with.
    SHARED.store(at.cast(), Ordering::Release);
    Ok(())
}

/// What this process knows.
#[allow(unsafe_code, reason = "follows the pointer to it")]
pub fn all() -> &'static Followers {
    // SAFETY: `OWN`, or memory of that size that is never given back, of which all bits are valid and all is atomic.
    unsafe { &*SHARED.load(Ordering::Acquire) }
}

impl Followers {
    /// Nobody.
    #[allow(clippy::declare_interior_mutable_const, reason = "the start of a static")]
    pub const NEW: Self =
        Self { readers: [Reader::NONE; READERS], owed: [const { AtomicU64::new(0) }; OWED] };

    /// Somebody begins to read a file. `None`: there is no room.
    pub fn begin(&self, inode: u64, series: u64, sequence: u64) -> Option<usize> {
        self.enter(sys::getpid(), inode, series, sequence)
    }

    fn enter(&self, owner: u32, inode: u64, series: u64, sequence: u64) -> Option<usize> {
        // Those whose process has ended are freed where there is no other room.
        for frees in [false, true] {
            for (nth, reader) in self.readers.iter().enumerate() {
                if frees {
                    reader.is_there();
                }
                if reader.owner.compare_exchange(0, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                    continue;
                }
                reader.inode.store(inode, Ordering::Relaxed);
                reader.series.store(series, Ordering::Relaxed);
                reader.sequence.store(sequence, Ordering::Relaxed);
                reader.place.store(0, Ordering::Relaxed);
                reader.owner.store(owner, Ordering::Release);
                return Some(nth);
            }
        }
        None
    }

    /// It has come so far.
    pub fn comes_to(&self, reader: usize, place: u64) {
        if let Some(reader) = self.readers.get(reader) {
            reader.place.store(place, Ordering::Relaxed);
        }
    }

    /// It reads no more.
    pub fn end(&self, reader: usize) {
        if let Some(reader) = self.readers.get(reader) {
            let _ = reader.owner.compare_exchange(sys::getpid(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Readers that are near the writer in that file of the series: in which of its files, and where.
    pub fn near(&self, series: u64, sequence: u64, near_files: u64) -> impl Iterator<Item = (u64, u64)> {
        self.readers.iter().filter_map(move |reader| {
            let at = reader.sequence.load(Ordering::Relaxed);
            let is_meant = reader.owner.load(Ordering::Acquire) != 0
                && reader.series.load(Ordering::Relaxed) == series
                && is_near(sequence, at, near_files);
            (is_meant && reader.is_there()).then(|| (at, reader.place.load(Ordering::Relaxed)))
        })
    }

    /// Whether somebody reads that file.
    pub fn reads(&self, inode: u64) -> bool {
        self.readers.iter().any(|reader| {
            reader.owner.load(Ordering::Acquire) != ARCHIVER
                && reader.inode.load(Ordering::Relaxed) == inode
                && reader.is_there()
        })
    }

    /// All files of the series up to that one were archived.
    pub fn archived(&self, series: u64, sequence: u64) {
        let next = sequence.saturating_add(1);
        let known = self.readers.iter().find(|reader| {
            reader.owner.load(Ordering::Acquire) == ARCHIVER
                && reader.series.load(Ordering::Relaxed) == series
        });
        match known {
            Some(archiver) => drop(archiver.sequence.fetch_max(next, Ordering::AcqRel)),
            None => drop(self.enter(ARCHIVER, 0, series, next)),
        }
    }

    /// A file is to go when it was read.
    pub fn owes(&self, inode: u64) {
        remember(&self.owed, inode);
    }

    /// Takes back that a file is to go: whether it was.
    pub fn pays(&self, inode: u64) -> bool {
        take(&self.owed, inode)
    }
}

/// Keeps a number in a list, in the place of another where it is full.
pub fn remember(list: &[AtomicU64], number: u64) {
    if list.iter().any(|kept| kept.load(Ordering::Relaxed) == number) {
        return;
    }
    let free = list
        .iter()
        .find(|kept| kept.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    if free.is_none()
        && let Some(first) = list.get(number as usize % list.len())
    {
        first.store(number, Ordering::Release);
    }
}

/// Takes a number out of a list. Whether it was there.
fn take(list: &[AtomicU64], number: u64) -> bool {
    list.iter().any(|kept| kept.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn readers_are_near_until_they_end() {
        let followers = Followers::NEW;
        let near = |series, sequence| followers.near(series, sequence, 3).collect::<Vec<_>>();
        let one = followers.begin(11, 1, 7).unwrap();
        let two = followers.begin(12, 1, 9).unwrap();
        followers.comes_to(one, 4096);
        assert_eq!((near(1, 10), near(1, 11), near(2, 10)), (vec![(7, 4096), (9, 0)], vec![(9, 0)], vec![]));
        assert!(followers.reads(11) && !followers.reads(13));
        followers.end(one);
        assert!(!followers.reads(11) && near(1, 10) == [(9, 0)]);
        followers.end(two);
        assert!(near(1, 10).is_empty());
    }

    #[test]
    fn a_reader_whose_process_has_ended_is_none() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let followers = Followers::NEW;
        followers.enter(child.id(), 11, 1, 7).unwrap();
        child.wait().unwrap();
        assert!(followers.near(1, 8, 3).next().is_none() && !followers.reads(11));
        // Where there is no room, theirs is taken.
        for _ in 0..READERS {
            followers.enter(child.id(), 11, 1, 7).unwrap();
        }
        assert_eq!(followers.begin(12, 1, 8), Some(0));
    }

    #[test]
    fn an_archiver_is_at_the_first_file_that_is_not_archived() {
        let followers = Followers::NEW;
        for archived in [7, 9, 8] {
            followers.archived(1, archived);
        }
        assert_eq!(followers.near(1, 11, 3).collect::<Vec<_>>(), [(10, 0)]);
        assert_eq!(followers.near(1, 14, 3).collect::<Vec<_>>(), []);
        assert!(!followers.reads(0));
    }

    #[test]
    fn lists_keep_what_they_have_room_for() {
        let list = [const { AtomicU64::new(0) }; 4];
        for number in 1..=4 {
            remember(&list, number);
            remember(&list, number);
        }
        assert!(take(&list, 3) && !take(&list, 3));
        remember(&list, 5);
        remember(&list, 6);
        // In the place of the fifth.
        assert!(take(&list, 6) && !take(&list, 5) && take(&list, 1) && take(&list, 4));
    }
}
