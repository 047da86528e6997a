//! Finds the processes that may have opened a log since their descriptors were read, by the number
//! of their descriptors. The number takes one stat per process; reading the descriptors takes a
//! call for each.
//!
//! A process that has had a log open since all were read is always among them, because it closes
//! one log and opens the next, and has as many descriptors as before. A process that opens its
//! first log has one descriptor more, unless it closed something else. In that case it is found
//! when all are read.

use std::collections::BTreeMap;
use std::time::Instant;

use pagekeeper_kernel::process::ProcRoot;

/// With more processes than this, all of them are read: they are counted in one go.
const COUNTED_PROCESSES_MAX: usize = 4096;

/// The number of descriptors of each process. See the module.
#[derive(Debug, Default)]
pub(super) struct DescriptorCounts {
    /// The number of descriptors of each process before it was last read.
    counts: BTreeMap<u32, u64>,
    /// Processes that lost a descriptor of a log since all were read, and when.
    lost: BTreeMap<u32, Instant>,
}

impl DescriptorCounts {
    /// Returns whether changes of this many processes can be seen. The kernel reports the number of
    /// descriptors since Linux 6.2.
    pub(super) fn are_seen(proc: &ProcRoot, processes: usize) -> bool {
        processes <= COUNTED_PROCESSES_MAX && proc.fd_count(std::process::id()).is_some()
    }

    /// Returns whether this process may have opened a log.
    pub(super) fn may_have(&self, pid: u32, proc: &ProcRoot) -> bool {
        let count = self.counts.get(&pid);
        self.lost.contains_key(&pid) || count.is_none() || proc.fd_count(pid).as_ref() != count
    }

    /// Records that a process closed a log, or has another file at that descriptor.
    pub(super) fn lost(&mut self, pid: u32, now: Instant) {
        self.lost.insert(pid, now);
    }

    /// Records that a process was read, and how many descriptors it had before.
    pub(super) fn read(&mut self, pid: u32, count: Option<u64>) {
        match count {
            Some(count) => self.counts.insert(pid, count),
            None => self.counts.remove(&pid),
        };
    }

    /// Records that all processes were read since then.
    pub(super) fn all_read(&mut self, since: Instant) {
        self.lost.retain(|_, lost| *lost >= since);
    }

    /// Forgets all processes but these, which are in ascending order.
    pub(super) fn keep(&mut self, pids: &[u32]) {
        self.counts.retain(|pid, _| pids.binary_search(pid).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_that_closed_a_log_is_read_until_a_full_listing() {
        let tree = tempfile::tempdir().unwrap();
        // An empty directory has no size on some file systems.
        std::fs::create_dir_all(tree.path().join("7/fd/3")).unwrap();
        let (proc, now) = (ProcRoot::at(tree.path()), Instant::now());
        let mut changes = DescriptorCounts::default();
        assert!(changes.may_have(7, &proc), "it was never read");
        changes.read(7, proc.fd_count(7));
        changes.lost(7, now);
        changes.all_read(now.checked_sub(Duration::from_secs(1)).unwrap());
        assert!(changes.may_have(7, &proc), "it may have opened one behind the one who reads");
        changes.all_read(now + Duration::from_secs(1));
        assert!(!changes.may_have(7, &proc));
        changes.read(7, proc.fd_count(7).map(|count| count + 1));
        assert!(changes.may_have(7, &proc));
        changes.read(7, None);
        assert!(changes.may_have(7, &proc), "the kernel does not say how many it has");
    }

    #[test]
    fn very_many_processes_are_not_counted_and_ended_ones_not_kept() {
        let (proc, mut changes) = (ProcRoot::default(), DescriptorCounts::default());
        assert!(!DescriptorCounts::are_seen(&proc, COUNTED_PROCESSES_MAX + 1));
        (0..1000).for_each(|pid| changes.read(pid, Some(3)));
        changes.keep(&[7, 500, 2000]);
        assert_eq!(changes.counts.into_keys().collect::<Vec<_>>(), [7, 500]);
    }
}
