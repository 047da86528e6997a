//! The reads that each database's processes asked for during the doctor's watch: by calls and by
//! page faults.
//!
//! Invariants: the watch only reads. A process counts only if it ran throughout the watch, so none
//! of its requests are missing. A process that can't be read is left out.

use std::collections::{BTreeMap, BTreeSet};

use pagekeeper_kernel::page_size;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_observe::{Database, Snapshot};

/// Maximum of bytes that one page fault maps of pages in memory (`fault_around_bytes`).
const FAULT_AROUND_BYTES: u64 = 64 << 10;

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
    pub fn start(before: &Snapshot, proc: &ProcRoot) -> Self {
        let pids = before.databases.iter().flat_map(pids);
        Self { proc: proc.clone(), before: pids.filter_map(|pid| counters(proc, pid)).collect() }
    }

    /// Returns the reads of each database of `after`, in its order.
    pub fn finish(&self, after: &Snapshot) -> Vec<AskedReads> {
        let of = |database: &Database| {
            let mut asked = AskedReads::default();
            for pid in pids(database) {
                let Some((process, now)) = counters(&self.proc, pid) else { continue };
                if let Some(before) = self.before.get(&process) {
                    asked.add(pid, before, &now);
                }
            }
            asked
        };
        after.databases.iter().map(of).collect()
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
        ..AskedReads::default()
    };
    Some(((pid, stat.start_time), counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

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
            let io = format!("rchar: {bytes}\nwchar: 0\nread_bytes: 1\nwrite_bytes: 2\n");
            std::fs::write(directory.join("io"), io).unwrap();
        };
        let mut snapshot = sample();
        snapshot.databases[0].workers = vec![101, 102, 103];
        for pid in 100..103 {
            write(pid, 7, 10, 1000);
        }
        let watch = ReadWatch::start(&snapshot, &proc);
        write(100, 7, 15, 1500);
        write(101, 8, 99, 9000);
        std::fs::remove_dir_all(tree.path().join("102")).unwrap();
        write(103, 9, 99, 9000);
        let asked = AskedReads {
            processes: BTreeSet::from([100]),
            call_bytes: 500,
            major_faults: 5,
            minor_faults: 10,
        };
        assert_eq!(watch.finish(&snapshot), std::slice::from_ref(&asked));
        assert_eq!(asked.bytes_max(), 500 + 5 * page_size() + 10 * FAULT_AROUND_BYTES);
    }
}
