//! The virtual memory counters (`/proc/vmstat`; `mm/vmstat.c` names them).
//!
//! One read is one snapshot. The counters stay text and are looked up by name, so reading is cheap
//! and any counter of any kernel can be queried.

use super::SysRoots;
use crate::process::{malformed, read_text};
use crate::{Result, page_size};

/// A snapshot of `/proc/vmstat`.
///
/// Names starting with `nr_` are current amounts, the others count since boot. A counter that this
/// kernel lacks is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmStat {
    text: String,
}

impl VmStat {
    /// Reads `/proc/vmstat`.
    pub fn read(roots: &SysRoots) -> Result<Self> {
        let path = roots.proc_file("vmstat");
        let text = read_text(&path)?;
        match text.lines().find(|line| parse_line(line).is_none()) {
            Some(line) => Err(malformed(&path, line)),
            None => Ok(Self { text }),
        }
    }

    /// Returns all counters in the kernel's order. Most are pages or events.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.text.lines().filter_map(parse_line)
    }

    /// Returns one counter by the kernel's name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find_map(|(key, value)| (key == name).then_some(value))
    }

    fn sum(&self, wanted: impl Fn(&str) -> bool) -> Option<u64> {
        let values = self.iter().filter_map(|(key, value)| wanted(key).then_some(value));
        values.fold(None, |sum, value| Some(sum.unwrap_or(0_u64).saturating_add(value)))
    }

    fn bytes(&self, name: &str) -> Option<u64> {
        Some(self.get(name)?.saturating_mul(page_size()))
    }

    /// Returns the kernel's current limit at which writers wait, in bytes. It is at least a quarter
    /// higher if the reading thread has real-time priority.
    pub fn dirty_threshold(&self) -> Option<u64> {
        self.bytes("nr_dirty_threshold")
    }

    /// Returns the kernel's current threshold of background writeback, in bytes.
    pub fn dirty_background_threshold(&self) -> Option<u64> {
        self.bytes("nr_dirty_background_threshold")
    }

    /// Returns the number of file pages read again after they were reclaimed, since boot. Before
    /// Linux 5.9 it includes anonymous memory.
    pub fn file_refaults(&self) -> Option<u64> {
        self.get("workingset_refault_file").or_else(|| self.get("workingset_refault"))
    }

    /// Returns the pages reclaimed by background reclaim (kswapd), since boot.
    pub fn reclaimed_in_background(&self) -> Option<u64> {
        self.sum(|name| is_or_has_zone(name, "pgsteal_kswapd"))
    }

    /// Returns the pages reclaimed by programs for themselves, since boot.
    pub fn reclaimed_directly(&self) -> Option<u64> {
        self.sum(|name| is_or_has_zone(name, "pgsteal_direct"))
    }

    /// Returns how often a program had to wait for memory, summed over all zones, since boot.
    pub fn allocation_stalls(&self) -> Option<u64> {
        self.sum(|name| is_or_has_zone(name, "allocstall"))
    }

    /// Returns the page faults that had to read from storage, since boot.
    pub fn major_faults(&self) -> Option<u64> {
        self.get("pgmajfault")
    }
}

/// Before Linux 4.8 reclaim counters were per zone; since then stalls are.
fn is_or_has_zone(name: &str, counter: &str) -> bool {
    name.strip_prefix(counter).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn parse_line(line: &str) -> Option<(&str, u64)> {
    let (name, value) = line.split_once(' ')?;
    Some((name, value.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    #[test]
    fn this_machine_has_the_counters() {
        let vmstat = VmStat::read(&SysRoots::default()).unwrap();
        assert!(vmstat.dirty_threshold().unwrap() > vmstat.dirty_background_threshold().unwrap());
        assert!(vmstat.allocation_stalls().is_some() && vmstat.file_refaults().is_some());
        assert!(vmstat.reclaimed_directly().is_some() && vmstat.reclaimed_in_background().is_some());
        assert!(vmstat.major_faults().is_some());
        assert!(vmstat.iter().count() > 50);
    }

    #[test]
    fn zones_are_summed_and_alike_names_left_out() {
        let (_tree, roots) = tree(&[(
            "proc/vmstat",
            "pgsteal_kswapd_dma 1\npgsteal_kswapd_normal 2\npgsteal_kswapdx 5\nallocstall_dma 1\nallocstall_movable 4\nworkingset_refault 9\n",
        )]);
        let vmstat = VmStat::read(&roots).unwrap();
        assert_eq!(vmstat.reclaimed_in_background(), Some(3));
        assert_eq!(vmstat.allocation_stalls(), Some(5));
        assert_eq!(vmstat.file_refaults(), Some(9));
        assert_eq!(vmstat.reclaimed_directly(), None);
        assert_eq!(vmstat.dirty_threshold(), None);
    }

    #[test]
    fn a_malformed_line_is_named() {
        let (_tree, roots) = tree(&[("proc/vmstat", "nr_dirty 3\nnr_writeback many\n")]);
        assert!(VmStat::read(&roots).unwrap_err().to_string().contains("nr_writeback many"));
    }
}
