//! Estimates how much of its journal a database would read if it had to recover now.
//!
//! Invariants: an upper bound is reported as such, with its derivation. Nothing is counted twice.
//! An unknown amount is `None`.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagekeeper_catalog::checkpoint::postgresql::{self, ControlFile};
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_observe::{File, Snapshot};
use pagekeeper_policy::FileClass;
use pagekeeper_policy::names::WalSegment;
use pagekeeper_text::unescaped;

use crate::settings::{self, Engine, ServerRoot, Settings};

/// The amount that a recovery would read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// The amount in bytes, or an upper bound of it.
    pub bytes: u64,
    /// Whether `bytes` is exact to a few pages; otherwise it is an upper bound.
    pub exact: bool,
    /// The derivation in words: "from the redo position of the last checkpoint, 0/15D4A90, …".
    pub how: String,
}

/// Returns what a recovery of a database (an index into `snapshot`) would read now; `None` if that
/// is unknown.
///
/// It reads a few pages of `PostgreSQL`'s control file and WAL; nothing for other databases.
pub fn journal(
    database: usize,
    snapshot: &Snapshot,
    settings: &Settings,
    roots: &SysRoots,
) -> Option<Journal> {
    let whose = snapshot.databases.get(database)?;
    let files: Vec<&File> = snapshot.files.iter().filter(|file| file.database == Some(database)).collect();
    match settings.engine {
        Engine::PostgreSql => {
            let root = ServerRoot::of(&settings::server(whose, snapshot), &roots.proc);
            let directory = match whose.pid {
                Some(_) => root.absolute(Path::new("")),
                None => whose.directories.first()?.clone(),
            };
            wal_after_redo(&root, &directory, &files).or_else(|| all_wal(&files))
        }
        Engine::MariaDb | Engine::MySql | Engine::RocksDb | Engine::TiKv => whole_logs(&files),
        Engine::MongoDb | Engine::Other => None,
    }
}

/// Returns the total size of everything that a recovery of InnoDB, `RocksDB` or raft-engine reads.
fn whole_logs(files: &[&File]) -> Option<Journal> {
    let mut kinds: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for file in files {
        let Some(kind) = kind_of_log(file) else { continue };
        let (bytes, count) = kinds.entry(kind).or_default();
        *bytes += file.size;
        *count += 1;
    }
    let parts: Vec<String> =
        kinds.iter().map(|(kind, (_, count))| format!("{kind} ({count} {})", files_word(*count))).collect();
    (!kinds.is_empty()).then(|| Journal {
        bytes: kinds.values().map(|(bytes, _)| bytes).sum(),
        exact: false,
        how: format!("the size of {}", parts.join(" and ")),
    })
}

fn files_word(count: usize) -> &'static str {
    if count == 1 { "file" } else { "files" }
}

/// Returns the journal that a file belongs to.
pub(crate) fn kind_of_log(file: &File) -> Option<&'static str> {
    let name = unescaped(file.path.file_name()?);
    let ending = file.path.extension().map(unescaped);
    match file.class {
        Some(FileClass::Redo) if name.starts_with("ib_logfile") => Some("InnoDB's redo log"),
        Some(FileClass::Redo) if name.starts_with("#ib_redo") && !name.ends_with("_tmp") => {
            Some("InnoDB's redo log")
        }
        Some(FileClass::Wal) if ending.as_deref() == Some("log") => Some("RocksDB's WAL"),
        Some(FileClass::Wal) if matches!(ending.as_deref(), Some("raftlog" | "rewrite")) => {
            Some("raft-engine's log")
        }
        _ => None,
    }
}

/// Counts all WAL segments, for the case that the control file can't be read.
fn all_wal(files: &[&File]) -> Option<Journal> {
    let segments: Vec<u64> =
        files.iter().filter(|file| segment(file).is_some()).map(|file| file.size).collect();
    (!segments.is_empty()).then(|| Journal {
        bytes: segments.iter().sum(),
        exact: false,
        how: format!("the size of all {} segments of WAL, those that wait for use included", segments.len()),
    })
}

/// Returns the WAL segment of a file, by its name.
fn segment(file: &File) -> Option<WalSegment> {
    WalSegment::of_name(file.path.file_name()?.as_bytes())
}

/// Counts from the redo position of the last checkpoint to the last written page.
fn wal_after_redo(root: &ServerRoot<'_>, directory: &Path, files: &[&File]) -> Option<Journal> {
    let control = root.read_at(&directory.join("global/pg_control"), 0, postgresql::CONTROL_FILE_BYTES)?;
    let control = ControlFile::parse(&control).ok()?;
    let position = format!("{:X}/{:X}", control.redo >> 32, control.redo & 0xffff_ffff);
    if control.clean {
        let how = "it was shut down: the control file says that there is nothing to recover".to_owned();
        return Some(Journal { bytes: 0, exact: true, how });
    }
    let size = control.segment_size;
    let (first, _) = control.place();
    // In log order. A segment that ends beyond the log's last position is not valid.
    let mut segments: Vec<(u64, &Path)> = Vec::new();
    for file in files {
        let Some(segment) = segment(file).filter(|segment| segment.timeline == control.timeline) else {
            continue;
        };
        if file.size != size.bytes() {
            return None;
        }
        let sequence = segment.sequence(Some(size));
        let end = (sequence + 1).checked_mul(size.bytes());
        if let Some(end) = end.filter(|_| sequence >= first) {
            segments.push((end - size.bytes(), &file.path));
        }
    }
    segments.sort_unstable();
    if segments.first()?.0 > control.redo {
        return None;
    }
    let page = page_size(root, segments.first()?.1)?;
    let written = |at: u64, path: &Path| page_address(root, path, at % size.bytes()) == Some(at);
    // Segments ahead were recycled or created in advance and hold old pages or none, so both binary
    // searches are valid.
    let used = segments.partition_point(|(start, path)| written(*start, path));
    let (start, newest) = segments.get(used.checked_sub(1)?)?;
    let (mut low, mut high) = (1, size.bytes() / page);
    while low < high {
        let middle = low.midpoint(high);
        if written(start + middle * page, newest) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let end = start + low * page;
    Some(Journal {
        bytes: end.saturating_sub(control.redo),
        exact: true,
        how: format!(
            "from the redo position of the last checkpoint, {position} in global/pg_control, to the last page of WAL \
             that was written"
        ),
    })
}

/// Returns the size of WAL pages, from the long header at the start of each segment
/// (`access/xlog_internal.h`).
fn page_size(root: &ServerRoot<'_>, segment: &Path) -> Option<u64> {
    let bytes = root.read_at(segment, 36, 4)?;
    let size = u64::from(u32::from_le_bytes(bytes.try_into().ok()?));
    (size.is_power_of_two() && (1024..=65536).contains(&size)).then_some(size)
}

/// Returns the position stored in a WAL page (`xlp_pageaddr`).
fn page_address(root: &ServerRoot<'_>, segment: &Path, offset: u64) -> Option<u64> {
    let bytes = root.read_at(segment, offset + 8, 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MIB, database, file, sample};
    use std::os::unix::fs::FileExt;

    fn journal_of(engine: Engine, files: Vec<File>) -> Option<Journal> {
        let mut snapshot = sample();
        snapshot.files = files;
        journal(0, &snapshot, &Settings::new(engine), &SysRoots::default())
    }

    #[test]
    fn logs_are_counted_once_and_spare_files_not() {
        let redo = |name: &str, size| file(&format!("/d/#innodb_redo/{name}"), FileClass::Redo, size, 0);
        let found = journal_of(
            Engine::MySql,
            vec![redo("#ib_redo5", 10), redo("#ib_redo6", 20), redo("#ib_redo7_tmp", 40)],
        );
        let found = found.unwrap();
        assert_eq!((found.bytes, found.exact), (30, false));
        assert_eq!(found.how, "the size of InnoDB's redo log (2 files)");
        let both = vec![
            file("/d/ib_logfile0", FileClass::Redo, 100, 0),
            file("/d/#rocksdb/000012.log", FileClass::Wal, 7, 0),
            file("/d/aria_log.00000001", FileClass::Redo, 1000, 0),
            file("/d/t.ibd", FileClass::Data, 1000, 0),
        ];
        let found = journal_of(Engine::MariaDb, both).unwrap();
        assert_eq!(found.bytes, 107);
        assert_eq!(found.how, "the size of InnoDB's redo log (1 file) and RocksDB's WAL (1 file)");
        assert_eq!(journal_of(Engine::RocksDb, Vec::new()), None);
    }

    /// Creates a data directory whose WAL is written from segment 1 to `end`, with recycled
    /// segments after it.
    fn cluster(redo: u64, end: u64, state: u32) -> (tempfile::TempDir, Vec<File>) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("global")).unwrap();
        std::fs::create_dir(dir.path().join("pg_wal")).unwrap();
        let mut control = vec![0; 8192];
        control[8..12].copy_from_slice(&1300_u32.to_le_bytes());
        control[228..232].copy_from_slice(&(1_u32 << 20).to_le_bytes());
        control[16..20].copy_from_slice(&state.to_le_bytes());
        control[32..40].copy_from_slice(&(redo + 100).to_le_bytes());
        control[40..48].copy_from_slice(&redo.to_le_bytes());
        control[48..52].copy_from_slice(&1_u32.to_le_bytes());
        let sum = crc32c::crc32c(&control[..288]);
        control[288..292].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(dir.path().join("global/pg_control"), control).unwrap();
        let mut files = Vec::new();
        for segment in 1..6_u64 {
            let path = dir.path().join(format!("pg_wal/{:08X}{:016X}", 1, segment));
            let wal = std::fs::File::create(&path).unwrap();
            wal.set_len(MIB).unwrap();
            for page in 0..MIB / 8192 {
                let at = segment * MIB + page * 8192;
                // Recycled: the contents of 3 segments before.
                let address = if at < end { at } else { at.wrapping_sub(3 * MIB) };
                wal.write_all_at(&address.to_le_bytes(), page * 8192 + 8).unwrap();
                wal.write_all_at(&8192_u32.to_le_bytes(), page * 8192 + 36).unwrap();
            }
            files.push(file(path.to_str().unwrap(), FileClass::Wal, MIB, 0));
        }
        (dir, files)
    }

    fn journal_in(dir: &tempfile::TempDir, files: Vec<File>) -> Option<Journal> {
        let mut snapshot = sample();
        let mut whose = database("postgresql", 1, dir.path().to_str().unwrap());
        whose.pid = None;
        snapshot.databases = vec![whose];
        snapshot.files = files;
        journal(0, &snapshot, &Settings::new(Engine::PostgreSql), &SysRoots::default())
    }

    #[test]
    fn wal_is_counted_from_the_redo_position_to_the_last_page_written() {
        for (redo, end) in [
            (MIB + 500, MIB + 8192),
            (MIB + 500, 3 * MIB),
            (2 * MIB + 9000, 4 * MIB + 5 * 8192),
            (MIB, 6 * MIB),
            (2 * MIB, 2 * MIB + 8192),
        ] {
            let (dir, files) = cluster(redo, end, 6);
            let found = journal_in(&dir, files).unwrap();
            assert!(found.exact);
            assert_eq!(found.bytes, end - redo, "from {redo} to {end}: {}", found.how);
        }
        let (dir, files) = cluster(MIB + 500, 3 * MIB, 1);
        assert_eq!(journal_in(&dir, files).unwrap().bytes, 0);
    }

    #[test]
    fn without_a_control_file_all_wal_is_the_bound() {
        let (dir, files) = cluster(MIB, 3 * MIB, 6);
        std::fs::write(dir.path().join("global/pg_control"), b"short").unwrap();
        let found = journal_in(&dir, files).unwrap();
        assert_eq!((found.bytes, found.exact), (5 * MIB, false));
        // A redo position outside of all segments gives no basis for counting.
        let (dir, files) = cluster(100 * MIB, 3 * MIB, 6);
        assert!(!journal_in(&dir, files).unwrap().exact);
    }

    #[test]
    fn a_segment_at_the_end_of_all_positions_is_none() {
        let (dir, mut files) = cluster(2 * MIB, 3 * MIB, 6);
        for low in ["FFE", "FFF"] {
            let last = dir.path().join(format!("pg_wal/00000001FFFFFFFF00000{low}"));
            std::fs::copy(&files[0].path, &last).unwrap();
            files.push(file(last.to_str().unwrap(), FileClass::Wal, MIB, 0));
        }
        assert_eq!(journal_in(&dir, files).unwrap().bytes, MIB);
    }

    #[test]
    fn a_name_that_is_not_utf8_hides_no_journal() {
        let name = std::ffi::OsStr::from_bytes(b"/d/000007\xff.log");
        let log = File { path: name.into(), ..file("/d/000007.log", FileClass::Wal, MIB, 0) };
        assert_eq!(kind_of_log(&log), Some("RocksDB's WAL"));
    }
}
