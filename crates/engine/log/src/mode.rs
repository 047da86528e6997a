//! The ways in which a log leaves no pages in the cache: they are released after each sync, dropped by the kernel,
//! or never made. The ways that work on a file system are found by testing them on an unnamed file in the directory
//! itself; neither the kernel's version nor a flag is trusted.
//!
//! These measurements decide `Auto` (Linux 6.18, ext4 and XFS on a virtual disk, writes at depth 1):
//!
//! | | overwriting a ring | appending |
//! |---|---|---|
//! | synced at each commit of 4 KiB | direct 1.2 to 1.3 x buffered | all alike |
//! | synced each MiB | XFS: buffered 1.2 to 1.8 x direct; ext4: alike | buffered 1.2 to 1.7 x direct |
//! | not synced | buffered 1.8 to 3.5 x direct | buffered 2 to 3 x direct |
//! | uncached on ext4 | all pages stay | none stays |
//!
//! "Buffered" includes the release of its pages after each sync, which made it faster than without.
//!
//! Invariants: a probe leaves nothing behind; each file system is probed once in a process. Fails if no file can be
//! created or written in the directory.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use pagekeeper_io::{Access, AlignedBuf, Error as IoError, Io};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::{FileSystem, InspectedFile, residency};
use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::Error;

/// `RWF_DONTCACHE` of pwritev2(2), Linux 6.14.
const UNCACHED: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// Bytes of a probe's write.
const SAMPLE: usize = 256 << 10;

/// The way in which a log writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LogMode {
    /// The best mode for this use of the log, of those that work here.
    #[default]
    Auto,
    /// Through the page cache; pages are released once they are synced and no near follower needs them.
    Buffered,
    /// Through the page cache, which drops each page as soon as it is written (`RWF_DONTCACHE`, Linux 6.14). Followers
    /// read from the device.
    Uncached,
    /// Past the page cache (`O_DIRECT`). Followers read from the device.
    Direct,
}

/// The way in which a log uses its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Use {
    /// Extends them, with readers close behind.
    Append,
    /// Overwrites data from before the last wraparound.
    Overwrite,
}

/// The sync frequency of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syncs {
    /// At each commit: many small writes, each of which is waited for.
    EachCommit,
    /// At intervals of milliseconds or bytes, or never.
    Seldom,
}

/// A mode, with the reason for it.
///
/// ```
/// use pagekeeper_log::{LogMode, Syncs, Use};
/// let io = pagekeeper_io::best();
/// let chosen = LogMode::Auto.choose(&*io, "/var/tmp".as_ref(), Use::Overwrite, Syncs::EachCommit)?;
/// println!("{}: {}", chosen.mode, chosen.why);
/// assert_ne!(chosen.mode, LogMode::Auto);
/// # Ok::<(), pagekeeper_log::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The mode; never [`LogMode::Auto`].
    pub mode: LogMode,
    /// The reason, in plain words.
    pub why: String,
}

impl LogMode {
    /// Returns the mode for files in a directory: the requested one if it is real there, otherwise the next best.
    ///
    /// A simulated disk is not probed: on it `Auto` is `Buffered`, and every other request is granted.
    pub fn choose(self, io: &dyn Io, directory: &Path, purpose: Use, syncs: Syncs) -> Result<Chosen, Error> {
        let chosen = |mode, why: String| Ok(Chosen { mode, why });
        if !has_real_files(io) {
            let mode = if self == Self::Auto { Self::Buffered } else { self };
            return chosen(mode, format!("the {} is not probed", io.name()));
        }
        match (self, purpose, syncs) {
            (Self::Buffered, ..) => chosen(Self::Buffered, "as asked for".to_owned()),
            (Self::Auto, Use::Append, _) => chosen(
                Self::Buffered,
                "followers read from memory what was just written, and appending is fastest with pages that are \
                 released after a sync"
                    .to_owned(),
            ),
            (Self::Auto, Use::Overwrite, Syncs::Seldom) => chosen(
                Self::Buffered,
                "seldom synced: large writes are fastest with pages that are released after a sync".to_owned(),
            ),
            (Self::Auto, Use::Overwrite, Syncs::EachCommit) => match Probed::of(directory)?.direct.why_not() {
                None => chosen(
                    Self::Direct,
                    "synced at each commit: a direct write and its sync are the fastest, and leave no page".to_owned(),
                ),
                Some(why) => chosen(Self::Buffered, format!("direct I/O {why}")),
            },
            (Self::Direct, ..) => match Probed::of(directory)?.direct {
                Offer::Real | Offer::Unconfirmed => {
                    chosen(Self::Direct, "as asked for, and no page stays here".to_owned())
                }
                other => {
                    chosen(Self::Buffered, format!("direct I/O {}", other.why_not().unwrap_or_default()))
                }
            },
            (Self::Uncached, ..) => {
                let probed = Probed::of(directory)?;
                let (offer, what) = match purpose {
                    Use::Append => (probed.uncached_append, "uncached writing"),
                    Use::Overwrite => (probed.uncached_overwrite, "uncached writing over what was written before"),
                };
                match offer.why_not() {
                    None => chosen(Self::Uncached, "as asked for, and no page stays here".to_owned()),
                    Some(why) => chosen(Self::Buffered, format!("{what} {why}")),
                }
            }
        }
    }
}

impl LogMode {
    /// Whether [`Self::choose`] has to run a test, which needs room on the disk.
    pub(crate) fn is_tried(self, io: &dyn Io, purpose: Use, syncs: Syncs) -> bool {
        let is_known = match self {
            Self::Buffered => true,
            Self::Auto => (purpose, syncs) != (Use::Overwrite, Syncs::EachCommit),
            Self::Uncached | Self::Direct => false,
        };
        !is_known && has_real_files(io)
    }
}

impl fmt::Display for LogMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Buffered => "buffered",
            Self::Uncached => "uncached",
            Self::Direct => "direct",
        })
    }
}

/// Whether a durable write (`RWF_DSYNC`) past the page cache is durable when it returns, on the directory's file
/// system.
///
/// No call reports that, and only a power cut would reveal it. It is known of ext4, XFS and btrfs, which sync the
/// data and metadata of such a write. FUSE passes the flag on and nothing obeys it (Linux 6.18: a write is one
/// request, and no fsync follows). Other file systems are unknown. On those and FUSE, a sync has to follow.
pub(crate) fn honours_durable_writes(io: &dyn Io, directory: &Path) -> bool {
    if !has_real_files(io) {
        return true;
    }
    let found = File::open(directory).ok().and_then(|opened| FileSystem::of(&opened, directory).ok());
    matches!(found, Some(FileSystem::Ext | FileSystem::Xfs | FileSystem::Btrfs))
}

/// Whether this back-end's files are real files of this machine.
pub(crate) fn has_real_files(io: &dyn Io) -> bool {
    let taken = File::open("/proc/self/exe").map(|file| io.adopt(file, Access::Buffered));
    !matches!(taken, Ok(Err(IoError::Foreign { .. })))
}

/// The test result of a way of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// No page stays.
    Real,
    /// The call fails with this error.
    Refused(Errno),
    /// No page stays, but the file system does not confirm it: statx(2) reports no `STATX_DIOALIGN`. On btrfs
    /// (Linux 6.18) such writes are copied through the page cache, at half the rate of buffered ones.
    Unconfirmed,
    /// It works, but its pages stay.
    Stays,
    /// It works, but residency can't be observed here.
    Unseen,
}

impl Offer {
    /// Returns the text to put behind the name of the way, unless it is real.
    pub(crate) fn why_not(self) -> Option<String> {
        match self {
            Self::Real => None,
            Self::Refused(errno) => Some(format!("is refused here ({errno})")),
            Self::Unconfirmed => {
                Some("is not vouched for by the file system here, which may copy".to_owned())
            }
            Self::Stays => Some("leaves its pages in the page cache here".to_owned()),
            Self::Unseen => Some("works here, but what it leaves in the page cache can't be seen".to_owned()),
        }
    }
}

/// The test results of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probed {
    /// Direct writes.
    pub(crate) direct: Offer,
    /// Uncached writes past the end.
    pub(crate) uncached_append: Offer,
    /// Uncached writes over written extents: on ext4 the pages stay (Linux 6.18).
    pub(crate) uncached_overwrite: Offer,
    /// Dropping clean pages: in memory file systems they stay.
    pub(crate) release: Offer,
}

impl Probed {
    /// Returns the results for the directory's file system.
    pub(crate) fn of(directory: &Path) -> Result<Self, Error> {
        static KNOWN: Mutex<Option<HashMap<u64, Probed>>> = Mutex::new(None);
        let known = || lock(&KNOWN);
        let device = rustix::fs::stat(directory).map_err(|errno| call("stat", directory, errno))?.st_dev;
        if let Some(found) = known().as_ref().and_then(|known| known.get(&device)) {
            return Ok(*found);
        }
        let found = Probe::new(directory)?.run()?;
        known().get_or_insert_default().insert(device, found);
        Ok(found)
    }
}

/// The file that a probe writes to.
struct Probe<'a> {
    file: File,
    inspected: InspectedFile,
    directory: &'a Path,
    bytes: AlignedBuf,
}

impl<'a> Probe<'a> {
    fn new(directory: &'a Path) -> Result<Self, Error> {
        let file = tempfile::tempfile_in(directory).map_err(|error| {
            call("create a file in", directory, Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let same = rustix::io::dup(&file).map_err(|errno| call("dup", directory, errno))?;
        let inspected = InspectedFile::from_fd(same, directory.to_path_buf()).map_err(|error| {
            call("stat", directory, Errno::from_raw_os_error(error.errno().unwrap_or(libc::EIO)))
        })?;
        let mut bytes = AlignedBuf::new(SAMPLE);
        bytes.fill(1);
        Ok(Self { file, inspected, directory, bytes })
    }

    fn run(&self) -> Result<Probed, Error> {
        let refuses = |file_system: FileSystem| file_system.release_refusal().is_some();
        if FileSystem::of(&self.file, self.directory).is_ok_and(refuses) {
            // The page cache is the file itself.
            let all = Offer::Stays;
            return Ok(Probed { direct: all, uncached_append: all, uncached_overwrite: all, release: all });
        }
        let uncached_append = self.try_write(&self.file, UNCACHED)?;
        self.write(&self.file, ReadWriteFlags::empty()).map_err(|errno| self.failed(errno))?;
        self.drop_pages()?;
        let release = self.offer();
        let uncached_overwrite = self.try_write(&self.file, UNCACHED)?;
        self.drop_pages()?;
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
        let direct = match rustix::fs::openat(CWD, link, flags, Mode::empty()) {
            Ok(direct) => match self.try_write(&direct.into(), ReadWriteFlags::empty())? {
                Offer::Real if !self.is_reported() => Offer::Unconfirmed,
                offer => offer,
            },
            Err(errno) => Offer::Refused(errno),
        };
        Ok(Probed { direct, uncached_append, uncached_overwrite, release })
    }

    /// Writes the sample at the start, syncs, and checks whether pages stay resident.
    fn try_write(&self, file: &File, flags: ReadWriteFlags) -> Result<Offer, Error> {
        match self.write(file, flags) {
            Ok(()) => {}
            Err(errno @ (Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)) => {
                return Ok(Offer::Refused(errno));
            }
            Err(errno) => return Err(self.failed(errno)),
        }
        rustix::fs::fdatasync(file).map_err(|errno| self.failed(errno))?;
        Ok(self.offer())
    }

    fn write(&self, file: &File, flags: ReadWriteFlags) -> Result<(), Errno> {
        let mut done = 0;
        while done < SAMPLE {
            // The first block is written alone, because a log's writes are that small.
            let end = if done < AlignedBuf::ALIGN { AlignedBuf::ALIGN } else { SAMPLE };
            let rest = [IoSlice::new(&self.bytes[done..end])];
            match rustix::io::pwritev2(file, &rest, done as u64, flags) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Whether the file system reports its direct I/O alignment (statx(2), Linux 6.1).
    fn is_reported(&self) -> bool {
        let stat = rustix::fs::statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        stat.is_ok_and(|stat| {
            StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN)
                && stat.stx_dio_offset_align > 0
        })
    }

    fn drop_pages(&self) -> Result<(), Error> {
        rustix::fs::fdatasync(&self.file)
            .and_then(|()| rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed))
            .map_err(|errno| self.failed(errno))
    }

    /// Tests whether pages stay. The kernel drops uncached pages a moment after they are written.
    fn offer(&self) -> Offer {
        for _ in 0..20 {
            match residency(&self.inspected, 0..SAMPLE as u64) {
                Ok(found) if found.resident <= SAMPLE as u64 / 8 => return Offer::Real,
                Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return Offer::Unseen,
            }
        }
        Offer::Stays
    }

    fn failed(&self, errno: Errno) -> Error {
        call("probe a file in", self.directory, errno)
    }
}

fn call(call: &'static str, path: &Path, errno: Errno) -> Error {
    Error::Io(IoError::Call { call, path: path.to_path_buf(), errno: errno.raw_os_error() })
}

#[cfg(test)]
mod tests {
    use pagekeeper_io::{SimDisk, Threads};

    use super::*;
    use pagekeeper_testing::{Mounted, disk_dir};

    const SEEN: [(Use, Syncs); 4] = [
        (Use::Append, Syncs::EachCommit),
        (Use::Append, Syncs::Seldom),
        (Use::Overwrite, Syncs::EachCommit),
        (Use::Overwrite, Syncs::Seldom),
    ];

    #[test]
    fn in_memory_nothing_is_real_and_it_says_so() {
        let memory = Path::new("/dev/shm");
        let probed = Probed::of(memory).unwrap();
        assert_eq!((probed.direct, probed.release), (Offer::Stays, Offer::Stays));
        for mode in [LogMode::Auto, LogMode::Uncached, LogMode::Direct] {
            let chosen = mode.choose(&Threads::new(), memory, Use::Overwrite, Syncs::EachCommit).unwrap();
            assert_eq!(chosen.mode, LogMode::Buffered);
            assert!(chosen.why.contains("leaves its pages"), "{}", chosen.why);
        }
    }

    #[test]
    fn a_disk_is_probed_and_nothing_left_there() {
        let dir = disk_dir();
        let probed = Probed::of(dir.path()).unwrap();
        assert_eq!(Probed::of(dir.path()).unwrap(), probed);
        for (purpose, syncs) in SEEN {
            for mode in [LogMode::Auto, LogMode::Buffered, LogMode::Uncached, LogMode::Direct] {
                let chosen = mode.choose(&Threads::new(), dir.path(), purpose, syncs).unwrap();
                assert!(chosen.mode == mode || mode == LogMode::Auto || chosen.mode == LogMode::Buffered);
                assert_ne!(chosen.mode, LogMode::Auto);
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_promised_of_a_mode_is_so() {
        for kind in ["ext4", "xfs", "btrfs"] {
            let Some(mounted) = Mounted::new(kind) else { continue };
            let probed = Probed::of(mounted.path()).unwrap();
            assert_eq!(probed.release, Offer::Real, "{kind}");
            if kind == "btrfs" {
                assert_ne!(probed.direct, Offer::Real, "it reports nothing of it");
            } else {
                assert_eq!(probed.direct, Offer::Real, "{kind}");
                let choose = |syncs| {
                    LogMode::Auto.choose(&Threads::new(), mounted.path(), Use::Overwrite, syncs).unwrap().mode
                };
                assert_eq!(choose(Syncs::EachCommit), LogMode::Direct);
                assert_eq!(choose(Syncs::Seldom), LogMode::Buffered);
            }
        }
    }

    #[test]
    fn a_simulated_disk_is_not_probed() {
        let (disk, nowhere) = (SimDisk::new(), Path::new("/nowhere"));
        for (mode, expected) in [
            (LogMode::Auto, LogMode::Buffered),
            (LogMode::Direct, LogMode::Direct),
            (LogMode::Uncached, LogMode::Uncached),
        ] {
            let chosen = mode.choose(&disk, nowhere, Use::Overwrite, Syncs::EachCommit).unwrap();
            assert_eq!((chosen.mode, chosen.why.contains("simulated disk")), (expected, true));
        }
        assert!(has_real_files(&Threads::new()) && !has_real_files(&disk));
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = LogMode::Direct
            .choose(&Threads::new(), Path::new("/nowhere"), Use::Overwrite, Syncs::Seldom)
            .unwrap_err();
        assert_eq!(error.to_string(), "stat /nowhere: No such file or directory (os error 2)");
    }

    #[test]
    fn durable_writes_are_believed_only_where_they_are_known_to_be() {
        let io = Threads::new();
        assert!(!honours_durable_writes(&io, Path::new("/dev/shm")));
        assert!(!honours_durable_writes(&io, Path::new("/proc")));
        assert!(!honours_durable_writes(&io, Path::new("/nowhere")));
        assert!(honours_durable_writes(&SimDisk::new(), Path::new("/nowhere")));
        for kind in ["ext4", "xfs", "btrfs"] {
            let Some(mounted) = Mounted::new(kind) else { continue };
            assert!(honours_durable_writes(&io, mounted.path()), "{kind}");
        }
    }

    #[test]
    fn reasons_are_sentences() {
        assert_eq!(Offer::Real.why_not(), None);
        for offer in [Offer::Refused(Errno::INVAL), Offer::Unconfirmed, Offer::Stays, Offer::Unseen] {
            assert!(offer.why_not().unwrap().contains("here"));
        }
    }
}
