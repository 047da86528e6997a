//! Readers of logs: the position of each, and the files to release once they are read. They are in
//! memory that a process shares with its forked children, because a server's WAL senders and its
//! archiver read what its other processes write.
//!
//! An archiver starts other programs that read. It renames a file to show what it has archived
//! (`rules::archive`). It has one entry for each series of logs, as a reader at the first file that
//! is not archived yet.
//!
//! Invariants: nobody waits; without a free entry, a reader is unknown, and pages that it is about
//! to read may be released. The entry of a process that has ended does not count.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use pagekeeper_policy::allowance::is_near;

use crate::sys::{self, Errno};

/// Readers known at a time.
const FOLLOWERS_MAX: usize = 64;
/// Files waiting to be released.
const PENDING_RELEASE_MAX: usize = 64;
/// The owner of an entry that is being filled in.
const BUSY_OWNER: u32 = u32::MAX;
/// The owner of an archiver's entry, which belongs to no process.
const ARCHIVER_OWNER: u32 = u32::MAX - 1;

/// A reader, as others see it.
#[derive(Debug)]
struct LogReader {
    /// Its process, or [`BUSY_OWNER`] or [`ARCHIVER_OWNER`]; 0 if the entry is free.
    owner: AtomicU32,
    inode: AtomicU64,
    series: AtomicU64,
    sequence: AtomicU64,
    place: AtomicU64,
}

impl LogReader {
    /// Whether the entry is in use. Frees the entry of a process that has ended.
    fn is_there(&self) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        match owner {
            0 | BUSY_OWNER => false,
            ARCHIVER_OWNER => true,
            _ if owner == sys::getpid() || sys::is_process(owner) => true,
            _ => {
                let _ = self.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
                false
            }
        }
    }
}

/// The entry of a reader, which others see until it is dropped. The state of a descriptor that the
/// program closed by a call we do not see is replaced, and so dropped.
#[derive(Debug)]
pub struct ReaderEntry<'a>(&'a LogReader);

impl ReaderEntry<'_> {
    /// Records the reader's position.
    pub fn comes_to(&self, place: u64) {
        self.0.place.store(place, Ordering::Relaxed);
    }
}

impl Drop for ReaderEntry<'_> {
    // In a child of fork, the entry is the parent's.
    fn drop(&mut self) {
        let _ = self.0.owner.compare_exchange(sys::getpid(), 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// All readers and files.
pub struct LogFollowers {
    readers: [LogReader; FOLLOWERS_MAX],
    /// Inodes of files to release once their last reader has read them.
    owed: [AtomicU64; PENDING_RELEASE_MAX],
}

static OWN_FOLLOWERS: LogFollowers = LogFollowers::NEW;
/// Memory shared with children of fork, or [`OWN_FOLLOWERS`].
static SHARED_FOLLOWERS: AtomicPtr<LogFollowers> = AtomicPtr::new((&raw const OWN_FOLLOWERS).cast_mut());

/// Shares the entries with the children of this process.
///
/// # Errors
///
/// If there is no memory. Then each process knows its own readers alone.
pub fn share() -> Result<(), Errno> {
    let at = sys::take_memory(size_of::<LogFollowers>(), libc::MAP_SHARED)?;
    // Zeroes are the initial state.
    SHARED_FOLLOWERS.store(at.cast(), Ordering::Release);
    Ok(())
}

/// Returns the readers and files that this process knows.
pub fn all() -> &'static LogFollowers {
    // SAFETY: `OWN_FOLLOWERS`, or memory of that size that is never freed, in which all bits are
    // valid and all fields are atomic.
    unsafe { &*SHARED_FOLLOWERS.load(Ordering::Acquire) }
}

impl LogFollowers {
    /// No readers and no files.
    // SAFETY: numbers.
    pub const NEW: Self = unsafe { core::mem::zeroed() };

    /// Adds a reader at the start of a file. `None` if there is no free entry.
    pub fn begin(&self, inode: u64, series: u64, sequence: u64) -> Option<ReaderEntry<'_>> {
        self.enter(sys::getpid(), inode, series, sequence).map(ReaderEntry)
    }

    fn enter(&self, owner: u32, inode: u64, series: u64, sequence: u64) -> Option<&LogReader> {
        // If no entry is free, the second round frees those whose process has ended.
        for frees in [false, true] {
            for reader in &self.readers {
                if frees {
                    reader.is_there();
                }
                if reader.owner.compare_exchange(0, BUSY_OWNER, Ordering::AcqRel, Ordering::Relaxed).is_err()
                {
                    continue;
                }
                reader.inode.store(inode, Ordering::Relaxed);
                reader.series.store(series, Ordering::Relaxed);
                reader.sequence.store(sequence, Ordering::Relaxed);
                reader.place.store(0, Ordering::Relaxed);
                reader.owner.store(owner, Ordering::Release);
                return Some(reader);
            }
        }
        None
    }

    /// Returns the readers near the writer, which is at file `sequence` of the series: the file
    /// each reads, and its position there.
    pub fn near(&self, series: u64, sequence: u64, near_files: u64) -> impl Iterator<Item = (u64, u64)> {
        self.readers.iter().filter_map(move |reader| {
            let at = reader.sequence.load(Ordering::Relaxed);
            let is_meant = reader.owner.load(Ordering::Acquire) != 0
                && reader.series.load(Ordering::Relaxed) == series
                && is_near(sequence, at, near_files);
            (is_meant && reader.is_there()).then(|| (at, reader.place.load(Ordering::Relaxed)))
        })
    }

    /// Whether a reader has that file.
    pub fn reads(&self, inode: u64) -> bool {
        self.readers.iter().any(|reader| {
            reader.owner.load(Ordering::Acquire) != ARCHIVER_OWNER
                && reader.inode.load(Ordering::Relaxed) == inode
                && reader.is_there()
        })
    }

    /// Records that all files of the series up to that one were archived.
    pub fn archived(&self, series: u64, sequence: u64) {
        let next = sequence.saturating_add(1);
        let known = self.readers.iter().find(|reader| {
            reader.owner.load(Ordering::Acquire) == ARCHIVER_OWNER
                && reader.series.load(Ordering::Relaxed) == series
        });
        match known {
            Some(archiver) => drop(archiver.sequence.fetch_max(next, Ordering::AcqRel)),
            None => drop(self.enter(ARCHIVER_OWNER, 0, series, next)),
        }
    }

    /// Records that a file is to be released once it was read.
    pub fn owes(&self, inode: u64) {
        remember(&self.owed, inode);
    }

    /// Takes a file off the list of files to release; returns whether it was on it.
    pub fn pays(&self, inode: u64) -> bool {
        take(&self.owed, inode)
    }
}

/// Adds a number to a list. In a full list it replaces another one.
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

/// Removes a number from a list; returns whether it was there.
fn take(list: &[AtomicU64], number: u64) -> bool {
    list.iter().any(|kept| kept.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn readers_are_near_until_they_end() {
        let followers = LogFollowers::NEW;
        let near = |series, sequence| followers.near(series, sequence, 3).collect::<Vec<_>>();
        let one = followers.begin(11, 1, 7).unwrap();
        let two = followers.begin(12, 1, 9).unwrap();
        one.comes_to(4096);
        assert_eq!((near(1, 10), near(1, 11), near(2, 10)), (vec![(7, 4096), (9, 0)], vec![(9, 0)], vec![]));
        assert!(followers.reads(11) && !followers.reads(13));
        drop(one);
        assert!(!followers.reads(11) && near(1, 10) == [(9, 0)]);
        drop(two);
        assert!(near(1, 10).is_empty());
    }

    #[test]
    fn a_reader_whose_process_has_ended_does_not_count() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let followers = LogFollowers::NEW;
        followers.enter(child.id(), 11, 1, 7).unwrap();
        child.wait().unwrap();
        assert!(followers.near(1, 8, 3).next().is_none() && !followers.reads(11));
        // Without a free entry, those of ended processes are reused.
        for _ in 0..FOLLOWERS_MAX {
            followers.enter(child.id(), 11, 1, 7).unwrap();
        }
        let entry = followers.begin(12, 1, 8).unwrap();
        assert!(core::ptr::eq(entry.0, &raw const followers.readers[0]));
    }

    #[test]
    fn an_archiver_is_at_the_first_file_that_is_not_archived() {
        let followers = LogFollowers::NEW;
        for archived in [7, 9, 8] {
            followers.archived(1, archived);
        }
        assert_eq!(followers.near(1, 11, 3).collect::<Vec<_>>(), [(10, 0)]);
        assert_eq!(followers.near(1, 14, 3).collect::<Vec<_>>(), []);
        assert!(!followers.reads(0));
    }

    #[test]
    fn lists_keep_entries_up_to_their_size() {
        let list = [const { AtomicU64::new(0) }; 4];
        for number in 1..=4 {
            remember(&list, number);
            remember(&list, number);
        }
        assert!(take(&list, 3) && !take(&list, 3));
        remember(&list, 5);
        remember(&list, 6);
        // The sixth entry replaced the fifth.
        assert!(take(&list, 6) && !take(&list, 5) && take(&list, 1) && take(&list, 4));
    }
}
