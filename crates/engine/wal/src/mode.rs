//! The ways in which a log leaves no pages in the cache: they are released after each sync, dropped
//! by the kernel, or never made. [`WriteSupport`] finds the ways that work on a file system.
//!
//! These measurements decide `Auto` (Linux 6.18, ext4 and XFS on a virtual disk, writes at depth
//! 1):
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
//! Fails if a probe fails: no file can be created or written in the directory.

use std::fmt;
use std::fs::File;
use std::path::Path;

use pagekeeper_io::{Io, ProbeResult, WriteSupport, has_real_files};
use pagekeeper_kernel::FileSystem;

use crate::Error;

/// The way in which a log writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LogMode {
    /// The best mode for this use of the log, of those that work here.
    #[default]
    Auto,
    /// Through the page cache; pages are released once they are synced and no near follower needs
    /// them.
    Buffered,
    /// Through the page cache, which drops each page as soon as it is written (`RWF_DONTCACHE`,
    /// Linux 6.14). Followers read from the device.
    Uncached,
    /// Past the page cache (`O_DIRECT`). Followers read from the device.
    Direct,
}

/// The way in which a log uses its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileUse {
    /// Extends them, with readers close behind.
    Append,
    /// Overwrites data from before the last wraparound.
    Overwrite,
}

/// The sync frequency of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SyncFrequency {
    /// At each commit: many small writes, each of which is waited for.
    EachCommit,
    /// At intervals of milliseconds or bytes, or never.
    Seldom,
}

/// A mode, with the reason for it.
///
/// ```
/// use pagekeeper_wal::{LogMode, SyncFrequency, FileUse};
/// let io = pagekeeper_io::best();
/// let chosen = LogMode::Auto.choose(&*io, "/var/tmp", FileUse::Overwrite, SyncFrequency::EachCommit)?;
/// println!("{}: {}", chosen.mode, chosen.why);
/// assert_ne!(chosen.mode, LogMode::Auto);
/// # Ok::<(), pagekeeper_wal::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenMode {
    /// The mode; never [`LogMode::Auto`].
    pub mode: LogMode,
    /// The reason, in plain words.
    pub why: String,
}

impl LogMode {
    /// Returns the mode for files in a directory: the requested one if it is real there, otherwise
    /// the next best.
    ///
    /// A simulated disk is not probed: on it `Auto` is `Buffered`, and every other request is
    /// granted.
    pub fn choose(
        self,
        io: &dyn Io,
        directory: impl AsRef<Path>,
        purpose: FileUse,
        syncs: SyncFrequency,
    ) -> Result<ChosenMode, Error> {
        let chosen = |mode, why: String| Ok(ChosenMode { mode, why });
        if !has_real_files(io) {
            let mode = if self == Self::Auto { Self::Buffered } else { self };
            return chosen(mode, format!("the {} is not probed", io.name()));
        }
        match (self, purpose, syncs) {
            (Self::Buffered, ..) => chosen(Self::Buffered, "as asked for".to_owned()),
            (Self::Auto, FileUse::Append, _) => chosen(
                Self::Buffered,
                "followers read from memory what was just written, and appending is fastest with pages that are \
                 released after a sync"
                    .to_owned(),
            ),
            (Self::Auto, FileUse::Overwrite, SyncFrequency::Seldom) => chosen(
                Self::Buffered,
                "seldom synced: large writes are fastest with pages that are released after a sync".to_owned(),
            ),
            (Self::Auto, FileUse::Overwrite, SyncFrequency::EachCommit) => match WriteSupport::probe(&directory)?.direct.why_not() {
                None => chosen(
                    Self::Direct,
                    "synced at each commit: a direct write and its sync are the fastest, and leave no page".to_owned(),
                ),
                Some(why) => chosen(Self::Buffered, format!("direct I/O {why}")),
            },
            (Self::Direct, ..) => match WriteSupport::probe(&directory)?.direct {
                ProbeResult::NoPages | ProbeResult::Unconfirmed => {
                    chosen(Self::Direct, "as asked for, and no page stays here".to_owned())
                }
                other => {
                    chosen(Self::Buffered, format!("direct I/O {}", other.why_not().unwrap_or_default()))
                }
            },
            (Self::Uncached, ..) => {
                let probed = WriteSupport::probe(&directory)?;
                let (offer, what) = match purpose {
                    FileUse::Append => (probed.uncached_append, "uncached writing"),
                    FileUse::Overwrite => (probed.uncached_overwrite, "uncached writing over what was written before"),
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
    pub(crate) fn is_tried(self, io: &dyn Io, purpose: FileUse, syncs: SyncFrequency) -> bool {
        let is_known = match self {
            Self::Buffered => true,
            Self::Auto => (purpose, syncs) != (FileUse::Overwrite, SyncFrequency::EachCommit),
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

/// Whether a durable write (`RWF_DSYNC`) past the page cache is durable when it returns, on the
/// directory's file system.
///
/// No call reports that, and only a power cut would reveal it. It is known of ext4, XFS and btrfs,
/// which sync the data and metadata of such a write. FUSE passes the flag on and nothing obeys it
/// (Linux 6.18: a write is one request, and no fsync follows). Other file systems are unknown. On
/// those and FUSE, a sync has to follow.
pub(crate) fn honours_durable_writes(io: &dyn Io, directory: &Path) -> bool {
    if !has_real_files(io) {
        return true;
    }
    let found = File::open(directory).ok().and_then(|opened| FileSystem::of(&opened, directory).ok());
    matches!(found, Some(FileSystem::Ext | FileSystem::Xfs | FileSystem::Btrfs))
}

#[cfg(test)]
mod tests {
    use pagekeeper_io::Threads;
    use pagekeeper_simdisk::SimDisk;

    use super::*;
    use pagekeeper_testing::{Mounted, disk_dir};

    const REPORTED_USES: [(FileUse, SyncFrequency); 4] = [
        (FileUse::Append, SyncFrequency::EachCommit),
        (FileUse::Append, SyncFrequency::Seldom),
        (FileUse::Overwrite, SyncFrequency::EachCommit),
        (FileUse::Overwrite, SyncFrequency::Seldom),
    ];

    #[test]
    fn modes_in_memory_are_reported_as_not_real() {
        let memory = Path::new("/dev/shm");
        let probed = WriteSupport::probe(memory).unwrap();
        assert_eq!((probed.direct, probed.release), (ProbeResult::PagesStay, ProbeResult::PagesStay));
        for mode in [LogMode::Auto, LogMode::Uncached, LogMode::Direct] {
            let chosen =
                mode.choose(&Threads::new(), memory, FileUse::Overwrite, SyncFrequency::EachCommit).unwrap();
            assert_eq!(chosen.mode, LogMode::Buffered);
            assert!(chosen.why.contains("leaves its pages"), "{}", chosen.why);
        }
    }

    #[test]
    fn a_disk_is_probed_and_nothing_left_there() {
        let dir = disk_dir();
        let probed = WriteSupport::probe(dir.path()).unwrap();
        assert_eq!(WriteSupport::probe(dir.path()).unwrap(), probed);
        for (purpose, syncs) in REPORTED_USES {
            for mode in [LogMode::Auto, LogMode::Buffered, LogMode::Uncached, LogMode::Direct] {
                let chosen = mode.choose(&Threads::new(), dir.path(), purpose, syncs).unwrap();
                assert!(chosen.mode == mode || mode == LogMode::Auto || chosen.mode == LogMode::Buffered);
                assert_ne!(chosen.mode, LogMode::Auto);
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn each_mode_keeps_its_promises() {
        for kind in ["ext4", "xfs", "btrfs"] {
            let Some(mounted) = Mounted::new(kind) else { continue };
            let probed = WriteSupport::probe(mounted.path()).unwrap();
            assert_eq!(probed.release, ProbeResult::NoPages, "{kind}");
            if kind == "btrfs" {
                assert_ne!(probed.direct, ProbeResult::NoPages, "it reports nothing of it");
            } else {
                assert_eq!(probed.direct, ProbeResult::NoPages, "{kind}");
                let choose = |syncs| {
                    LogMode::Auto
                        .choose(&Threads::new(), mounted.path(), FileUse::Overwrite, syncs)
                        .unwrap()
                        .mode
                };
                assert_eq!(choose(SyncFrequency::EachCommit), LogMode::Direct);
                assert_eq!(choose(SyncFrequency::Seldom), LogMode::Buffered);
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
            let chosen = mode.choose(&disk, nowhere, FileUse::Overwrite, SyncFrequency::EachCommit).unwrap();
            assert_eq!((chosen.mode, chosen.why.contains("simulated disk")), (expected, true));
        }
        assert!(has_real_files(&Threads::new()) && !has_real_files(&disk));
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = LogMode::Direct
            .choose(&Threads::new(), Path::new("/nowhere"), FileUse::Overwrite, SyncFrequency::Seldom)
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
}
