//! Events of memory pressure in the error log of `MariaDB`, by which `InnoDB` gives memory of its
//! buffer pool away (pressure stall information, 10.11.7 and later).
//!
//! Invariants: only the end of the log is read, from the last start of the server on. The log is
//! the file behind the server's standard error; a log that is no file, as the journal, has no
//! events.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pagekeeper_kernel::pressure::{CgroupVersion, HeldGroup, SysRoots};
use pagekeeper_observe::{Database, File, Snapshot};
use pagekeeper_text::unescaped_bytes;

use crate::settings::{Engine, Settings};

/// Bytes read from the end of the log.
const TAIL_BYTES: u64 = 256 << 10;
/// Descriptor of standard error, which the server reopens on its log.
const STDERR: i32 = 2;
/// Text that the server writes when it has started.
const STARTED: &str = ": ready for connections.";
/// Texts of events that gave memory away: of 10.11.12, 11.4.6, 11.8.2 and later, and of versions
/// before.
const GIVEN_AWAY: [&str; 2] = [
    "[Note] InnoDB: Memory pressure event shrunk innodb_buffer_pool_size=",
    "[Note] InnoDB: Memory pressure event freed ",
];

/// The events by which a server gave memory of its buffer pool away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolPressure {
    /// The log.
    pub log: PathBuf,
    /// Their number.
    pub events: usize,
    /// The log's line of the last one.
    pub last: String,
    /// `memory.high` of the server's memory cgroup in bytes; `None` if there is none.
    pub high: Option<u64>,
}

impl PoolPressure {
    /// Reads them; `None` if there are none, or if they can't be read.
    pub(crate) fn of(
        database: &Database,
        snapshot: &Snapshot,
        settings: &Settings,
        roots: &SysRoots,
    ) -> Option<Self> {
        if settings.engine != Engine::MariaDb {
            return None;
        }
        let inode = roots.proc.inode_behind(database.pid?, STDERR)?;
        let log = snapshot.files.iter().find(|file| file.stat_inode == inode)?;
        let (events, last) = events(&tail(log)?)?;
        Some(Self { log: log.path.clone(), events, last, high: high(database) })
    }

    /// Whether the pool stays smaller until somebody sets its size.
    pub(crate) fn is_lasting(&self) -> bool {
        self.last.contains(GIVEN_AWAY[0])
    }
}

/// Returns the last lines of a file; `None` if it can't be read.
fn tail(log: &File) -> Option<String> {
    let file = log.open().ok()?;
    let size = file.size_now().ok()?;
    let mut bytes = vec![0; usize::try_from(size.min(TAIL_BYTES)).ok()?];
    let count = file.file().read_at(&mut bytes, size.saturating_sub(TAIL_BYTES)).ok()?;
    Some(unescaped_bytes(&bytes[..count]).into_owned())
}

/// Returns the number of events since the last start, and the last one's line; `None` if there are
/// none.
fn events(text: &str) -> Option<(usize, String)> {
    let since = text.rfind(STARTED).map_or(0, |at| at + STARTED.len());
    let is_event = |line: &&str| GIVEN_AWAY.iter().any(|given_away| line.contains(given_away));
    let lines: Vec<&str> = text[since..].lines().filter(is_event).collect();
    Some((lines.len(), (*lines.last()?).to_owned()))
}

fn high(database: &Database) -> Option<u64> {
    let group = database.cgroup.as_ref().filter(|group| group.version == CgroupVersion::V2)?;
    HeldGroup::open(group.version, &group.directory).ok()?.high().ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_since_the_last_start_count() {
        let shrunk = "2026-11-30 14:00:00 0 [Note] InnoDB: Memory pressure event shrunk \
                      innodb_buffer_pool_size=96m (6144 pages) from 128m (8192 pages)";
        let freed = "2026-11-30 14:00:00 0 [Note] InnoDB: Memory pressure event freed 812 pages";
        let started = "2026-11-30 13:00:00 0 [Note] /usr/sbin/mariadbd: ready for connections.";
        let none = "2026-11-30 14:00:00 0 [Note] InnoDB: Memory pressure event disregarded; \
                    innodb_buffer_pool_size=128m, innodb_buffer_pool_size_auto_min=128m";
        let text = format!("{freed}\n{started}\n{none}\n{shrunk}\n{shrunk}\nmore\n");
        assert_eq!(events(&text), Some((2, shrunk.to_owned())));
        assert_eq!(events(&format!("x\n{freed}\n")), Some((1, freed.to_owned())), "its start is far back");
        assert_eq!(events(&format!("{shrunk}\n{started}\n{none}\n")), None);
    }
}
