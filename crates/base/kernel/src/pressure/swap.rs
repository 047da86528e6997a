//! Swap of a memory cgroup, and the settings that decide whether the kernel swaps
//! (`Documentation/admin-guide/cgroup-v2.rst`, `Documentation/admin-guide/sysctl/vm.rst`).
//!
//! A figure that this kernel does not count (`swapaccount=0`), or that may not be read, is `None`.

use std::path::{Path, PathBuf};

use super::cgroup::{MemoryStat, parse_limit_v1};
use super::{CgroupVersion, MemoryCgroup, SysRoots, read_optional};

/// Swap of a memory cgroup with its descendants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSwap {
    /// Bytes in swap, shared memory and tmpfs included.
    pub used: Option<u64>,
    /// Number of pages that came back from swap since the group's creation. Counts only pages that
    /// the kernel still remembered as recently used (since Linux 5.9).
    pub refaults: Option<u64>,
    /// The lowest limit of swap in bytes, of it and the visible groups above; `None` if there is
    /// none. On version 1 the memory that `memory.memsw.limit_in_bytes` allows beyond the group's
    /// own limit.
    pub limit: Option<u64>,
    /// The group's own limit of swap in bytes, without the groups above; `None` if it has none
    /// (`max`).
    pub own_limit: Option<u64>,
    /// Whether a visible group above it limits memory, so that it shares that limit with others.
    /// Always false on version 1.
    pub has_memory_limit_above: bool,
}

impl GroupSwap {
    /// Reads the figures of a group.
    pub fn of(group: &MemoryCgroup) -> Self {
        let directory = &group.directory;
        let stat = MemoryStat::read(directory).ok();
        let counted = |name: &str| stat.as_ref()?.get(name).ok()?;
        match group.version {
            CgroupVersion::V1 => {
                let limit = number(&directory.join("memory.memsw.limit_in_bytes"))
                    .and_then(parse_limit_v1)
                    .zip(group.limit)
                    .map(|(both, memory)| both.saturating_sub(memory));
                Self {
                    used: counted("total_swap"),
                    refaults: counted("total_workingset_refault_anon"),
                    limit,
                    own_limit: limit,
                    has_memory_limit_above: false,
                }
            }
            CgroupVersion::V2 => {
                let limit_of = |group: &Path| number(&group.join("memory.swap.max"));
                let mut above = directory.ancestors().skip(1);
                Self {
                    used: number(&directory.join("memory.swap.current")),
                    refaults: counted("workingset_refault_anon"),
                    limit: directory.ancestors().filter_map(limit_of).min(),
                    own_limit: limit_of(directory),
                    has_memory_limit_above: above.any(|group| number(&group.join("memory.max")).is_some()),
                }
            }
        }
    }
}

/// The tendency of the kernel to swap rather than to drop page cache: 0 to 200, 60 by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swappiness {
    /// The value in force.
    pub value: u64,
    /// The file that has it, if it is a group's own; `None` for the host's `vm.swappiness`.
    pub group_file: Option<PathBuf>,
}

impl Swappiness {
    /// Returns the value in force for a group: its own on version 1, else the host's.
    pub fn of(roots: &SysRoots, group: Option<&MemoryCgroup>) -> Option<Self> {
        let own = group.filter(|group| group.version == CgroupVersion::V1);
        let own = own.map(|group| group.directory.join("memory.swappiness"));
        if let Some((path, value)) = own.and_then(|path| Some((path.clone(), number(&path)?))) {
            return Some(Self { value, group_file: Some(path) });
        }
        Some(Self { value: number(&roots.proc_file("sys/vm/swappiness"))?, group_file: None })
    }
}

/// Returns the number in a file; `None` if there is none (`max`).
fn number(path: &Path) -> Option<u64> {
    read_optional(path).ok()??.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    fn group(version: CgroupVersion, directory: PathBuf, limit: Option<u64>) -> MemoryCgroup {
        MemoryCgroup {
            version,
            directory,
            usage: 0,
            limit,
            effective_limit: limit,
            file: 0,
            shmem: None,
            dirty: None,
            writeback: None,
            inactive_file: 0,
            active_file: 0,
            file_refaults: None,
            limited_by: None,
            events: super::super::MemoryEvents::default(),
        }
    }

    #[test]
    fn version_1_has_its_own_swappiness_and_one_limit_for_both() {
        let (tree, roots) = tree(&[
            ("sys/m/db/memory.stat", "swap 1\ntotal_swap 4096\ntotal_workingset_refault_anon 7\n"),
            ("sys/m/db/memory.memsw.limit_in_bytes", "9000000\n"),
            ("sys/m/db/memory.swappiness", "10\n"),
            ("proc/sys/vm/swappiness", "60\n"),
        ]);
        let db = group(CgroupVersion::V1, tree.path().join("sys/m/db"), Some(8_000_000));
        let swap = GroupSwap {
            used: Some(4096),
            refaults: Some(7),
            limit: Some(1_000_000),
            own_limit: Some(1_000_000),
            has_memory_limit_above: false,
        };
        assert_eq!(GroupSwap::of(&db), swap);
        let own = Swappiness::of(&roots, Some(&db)).unwrap();
        assert_eq!((own.value, own.group_file), (10, Some(db.directory.join("memory.swappiness"))));
        let host = Swappiness { value: 60, group_file: None };
        assert_eq!(Swappiness::of(&roots, None), Some(host));
    }

    #[test]
    fn version_2_has_limits_above_and_the_hosts_swappiness() {
        let (tree, roots) = tree(&[
            ("sys/pod/memory.swap.max", "5000\n"),
            ("sys/pod/memory.max", "max\n"),
            ("sys/pod/db/memory.max", "70000\n"),
            ("sys/pod/db/memory.swap.max", "max\n"),
            ("sys/pod/db/memory.swap.current", "4096\n"),
            ("sys/pod/db/memory.stat", "workingset_refault_anon 3\n"),
            ("sys/pod/db/memory.swappiness", "10\n"),
            ("proc/sys/vm/swappiness", "60\n"),
        ]);
        let db = group(CgroupVersion::V2, tree.path().join("sys/pod/db"), None);
        let mut swap = GroupSwap {
            used: Some(4096),
            refaults: Some(3),
            limit: Some(5000),
            own_limit: None,
            has_memory_limit_above: false,
        };
        assert_eq!(GroupSwap::of(&db), swap);
        std::fs::write(db.directory.join("memory.swap.max"), "9000\n").unwrap();
        std::fs::write(tree.path().join("sys/pod/memory.max"), "80000\n").unwrap();
        (swap.own_limit, swap.has_memory_limit_above) = (Some(9000), true);
        assert_eq!(GroupSwap::of(&db), swap, "its own limit is not the one of the pod");
        assert_eq!(Swappiness::of(&roots, Some(&db)).map(|own| own.value), Some(60));
    }

    #[test]
    fn missing_figures_are_unknown() {
        let (tree, roots) = tree(&[("sys/db/memory.stat", "cache 1\n")]);
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            let db = group(version, tree.path().join("sys/db"), None);
            assert_eq!(GroupSwap::of(&db), GroupSwap::default());
            assert_eq!(Swappiness::of(&roots, Some(&db)), None);
        }
    }
}
