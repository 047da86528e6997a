//! The reads that each database's processes asked for during the watch: by calls and by
//! page faults.
//!
//! Invariants: the watch only reads. A process counts only if it ran throughout the watch, so none
//! of its requests are missing. A process that can't be read is left out. Bytes of asynchronous
//! reads are counted nowhere: a process that may make them is marked.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use pagekeeper_kernel::page_size;
use pagekeeper_kernel::process::ProcRoot;

use crate::Database;

/// Maximum of bytes that one page fault maps of pages in memory (`fault_around_bytes`).
const FAULT_AROUND_BYTES: u64 = 64 << 10;
/// Maximum number of descriptors of a process that are searched for asynchronous reads.
const SEARCHED_DESCRIPTORS_MAX: usize = 1 << 16;
/// Maximum of bytes of a process's list of mappings that are searched for them.
const SEARCHED_MAPPINGS_BYTES: u64 = 16 << 20;
/// The link of an `io_uring` descriptor, and the name of its mapping.
const IO_URING: &str = "anon_inode:[io_uring]";
/// The name of the mapping that belongs to asynchronous I/O by `io_submit(2)`.
const AIO: &str = "/[aio]";

/// The reads that one database asked for during a watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedReads {
    /// The processes that are counted.
    pub processes: BTreeSet<u32>,
    /// Bytes that read calls returned, also from the page cache, pipes and sockets.
    pub call_bytes: u64,
    /// Page faults that waited for storage: a page each.
    pub major_faults: u64,
    /// Page faults that did not, also of memory that belongs to no file.
    pub minor_faults: u64,
    /// Bytes that storage read for the processes, read-ahead included.
    pub storage_bytes: u64,
    /// Whether a process may read by asynchronous calls, whose bytes [`Self::call_bytes`] lacks.
    pub may_lack_calls: bool,
}

impl AskedReads {
    /// Returns an upper bound of the bytes of files that were used.
    pub fn bytes_max(&self) -> u64 {
        let faults = self.major_faults * page_size() + self.minor_faults * FAULT_AROUND_BYTES;
        self.call_bytes.saturating_add(faults)
    }

    fn add(&mut self, pid: u32, before: &Self, now: &Self) {
        self.processes.insert(pid);
        self.call_bytes += now.call_bytes.saturating_sub(before.call_bytes);
        self.major_faults += now.major_faults.saturating_sub(before.major_faults);
        self.minor_faults += now.minor_faults.saturating_sub(before.minor_faults);
        self.storage_bytes += now.storage_bytes.saturating_sub(before.storage_bytes);
    }
}

/// The counters of the databases' processes when a watch began, by process and its start time.
#[derive(Debug)]
pub struct ReadWatch {
    proc: ProcRoot,
    before: BTreeMap<(u32, u64), AskedReads>,
}

impl ReadWatch {
    /// Begins the watch.
    pub fn start(before: &[Database], proc: &ProcRoot) -> Self {
        let pids = before.iter().flat_map(pids);
        Self { proc: proc.clone(), before: pids.filter_map(|pid| counters(proc, pid)).collect() }
    }

    /// Returns the reads of each database, in their order.
    pub fn finish(&self, after: &[Database]) -> Vec<AskedReads> {
        let of = |database: &Database| {
            let mut asked = AskedReads::default();
            for pid in pids(database) {
                let Some((process, now)) = counters(&self.proc, pid) else { continue };
                let Some(before) = self.before.get(&process) else { continue };
                asked.add(pid, before, &now);
                // Storage read nothing for the others, so a search is not worth its time.
                if now.storage_bytes > before.storage_bytes {
                    asked.may_lack_calls |= may_read_asynchronously(&self.proc, pid);
                }
            }
            asked
        };
        after.iter().map(of).collect()
    }
}

fn pids(database: &Database) -> impl Iterator<Item = u32> {
    database.pid.into_iter().chain(database.workers.iter().copied())
}

/// Returns a process's counters since its start.
fn counters(proc: &ProcRoot, pid: u32) -> Option<((u32, u64), AskedReads)> {
    let (stat, io) = (proc.stat(pid).ok()?, proc.io(pid).ok()?);
    let counters = AskedReads {
        call_bytes: io.by_calls,
        major_faults: stat.major_faults,
        minor_faults: stat.minor_faults,
        storage_bytes: io.from_storage,
        ..AskedReads::default()
    };
    Some(((pid, stat.start_time), counters))
}

/// Whether a process has `io_uring` or asynchronous I/O (`io_submit(2)`) set up, or may have.
fn may_read_asynchronously(proc: &ProcRoot, pid: u32) -> bool {
    let (mut seen, mut has_ring) = (0, false);
    let links = proc.first_fd_links(pid, SEARCHED_DESCRIPTORS_MAX, |_, target| {
        seen += 1;
        has_ring |= target.as_os_str() == IO_URING;
    });
    // A ring can be used without a descriptor (IORING_REGISTER_RING_FDS): its mapping stays.
    has_ring || links.is_err() || seen >= SEARCHED_DESCRIPTORS_MAX || may_map_ring(proc, pid)
}

/// Whether a process maps the memory of one of them, or may do so.
#[allow(clippy::disallowed_methods, reason = "of /proc")]
fn may_map_ring(proc: &ProcRoot, pid: u32) -> bool {
    let mut maps = Vec::new();
    let opened = std::fs::File::open(proc.path().join(format!("{pid}/maps")));
    let read = opened.and_then(|file| file.take(SEARCHED_MAPPINGS_BYTES).read_to_end(&mut maps));
    let has = |name: &str| maps.windows(name.len()).any(|part| part == name.as_bytes());
    read.is_err() || maps.len() as u64 == SEARCHED_MAPPINGS_BYTES || has(IO_URING) || has(AIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn only_processes_that_ran_throughout_the_watch_are_counted() {
        let tree = tempfile::tempdir().unwrap();
        let proc = ProcRoot::at(tree.path());
        let write = |pid: u32, started: u64, faults: u64, bytes: u64| {
            let directory = tree.path().join(pid.to_string());
            std::fs::create_dir_all(&directory).unwrap();
            let faults = format!("{} 0 {faults} 0", 2 * faults);
            let stat =
                format!("{pid} (db) S 1 1 1 0 -1 0 {faults} 0 0 0 0 20 0 1 0 {started} {}", "0 ".repeat(9));
            std::fs::write(directory.join("stat"), stat).unwrap();
            let io = format!("rchar: {bytes}\nwchar: 0\nread_bytes: {bytes}\nwrite_bytes: 2\n");
            std::fs::write(directory.join("io"), io).unwrap();
            std::fs::create_dir_all(directory.join("fd")).unwrap();
            std::fs::write(directory.join("maps"), "").unwrap();
        };
        let databases = [Database {
            pid: Some(100),
            name: String::new(),
            profile: Arc::new(pagekeeper_catalog::Profile::built_in().remove(0)),
            directories: Vec::new(),
            command_line: Vec::new(),
            uptime: None,
            cgroup: None,
            workers: vec![101, 102, 103],
        }];
        for pid in 100..103 {
            write(pid, 7, 10, 1000);
        }
        let watch = ReadWatch::start(&databases, &proc);
        write(100, 7, 15, 1500);
        write(101, 8, 99, 9000);
        std::fs::remove_dir_all(tree.path().join("102")).unwrap();
        write(103, 9, 99, 9000);
        let asked = AskedReads {
            processes: BTreeSet::from([100]),
            call_bytes: 500,
            major_faults: 5,
            minor_faults: 10,
            storage_bytes: 500,
            may_lack_calls: false,
        };
        assert_eq!(watch.finish(&databases), std::slice::from_ref(&asked));
        assert_eq!(asked.bytes_max(), 500 + 5 * page_size() + 10 * FAULT_AROUND_BYTES);
        let ring = tree.path().join("100/fd/7");
        std::os::unix::fs::symlink(IO_URING, &ring).unwrap();
        assert!(watch.finish(&databases)[0].may_lack_calls);
        std::fs::remove_file(ring).unwrap();
        for (text, may_lack) in [
            ("7f00-8f00 rw-s 00000000 00:0e 77   /[aio] (deleted)\n", true),
            ("7f00-8f00 rw-s 00000000 00:0e 77   anon_inode:[io_uring]\n", true),
            ("7f00-8f00 rw-s 00000000 08:01 77   /data/x\n", false),
        ] {
            std::fs::write(tree.path().join("100/maps"), text).unwrap();
            assert_eq!(watch.finish(&databases)[0].may_lack_calls, may_lack, "{text}");
        }
        std::fs::remove_file(tree.path().join("100/maps")).unwrap();
        assert!(watch.finish(&databases)[0].may_lack_calls, "it can't be read");
    }
}
