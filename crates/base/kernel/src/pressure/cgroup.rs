//! The memory cgroup of a process: its memory use, and the page cache in it (versions 1 and 2:
//! `Documentation/admin-guide/cgroup-v1/memory.rst`, `Documentation/admin-guide/cgroup-v2.rst`).
//!
//! Page cache is charged to the group that first touched it, whoever uses it later. A group's
//! figures include those of its descendants.

use std::path::{Path, PathBuf};

use super::{MemoryEvents, MemoryPlace, SysRoots, read_number, read_optional};
use crate::Result;
use crate::process::{malformed, read_text};

/// The version of the control groups that have the memory controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CgroupVersion {
    /// Version 1. Dirty memory is limited for the whole machine only.
    V1,
    /// Version 2. Each group has its own dirty thresholds.
    V2,
}

/// The figures of a memory cgroup, in bytes unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryCgroup {
    /// The version.
    pub version: CgroupVersion,
    /// The directory of its files.
    pub directory: PathBuf,
    /// All memory charged to it.
    pub usage: u64,
    /// Its own limit; `None` if unlimited.
    pub limit: Option<u64>,
    /// The lowest limit among it and the visible groups above it; `None` if all are unlimited.
    pub effective_limit: Option<u64>,
    /// Page cache, including tmpfs and shared memory.
    pub file: u64,
    /// tmpfs and shared memory, if reported.
    pub shmem: Option<u64>,
    /// Dirty page cache, if reported.
    pub dirty: Option<u64>,
    /// Page cache under writeback, if reported.
    pub writeback: Option<u64>,
    /// File pages that are reclaimed next.
    pub inactive_file: u64,
    /// File pages used more than once. Kubernetes and others count them as used memory.
    pub active_file: u64,
    /// Number of file pages read again after they were reclaimed, since the group's creation, if
    /// reported.
    pub file_refaults: Option<u64>,
    /// The directory of the group above it whose limit is the effective one. `None` if that is its
    /// own limit, if there is none, and on version 1.
    pub limited_by: Option<PathBuf>,
    /// The number of times that limits took effect. On version 2 of the group whose limit is the
    /// effective one, where the kernel counts.
    pub events: MemoryEvents,
}

impl MemoryCgroup {
    /// Returns the bytes of its page cache, without shared memory and tmpfs.
    pub fn page_cache(&self) -> u64 {
        self.file.saturating_sub(self.shmem.unwrap_or(0))
    }

    /// Returns the bytes that page cache may have beside all other memory; `None` without a limit.
    pub fn room(&self) -> Option<u64> {
        Some(self.effective_limit?.saturating_sub(self.usage.saturating_sub(self.file)))
    }

    /// Returns the memory cgroup of a process.
    ///
    /// Returns `None` if no such group is visible: in the root group of version 2 (which has no
    /// figures), with the memory controller off, or if its hierarchy is not mounted here.
    ///
    /// ```
    /// use pagekeeper_kernel::pressure::{MemoryCgroup, SysRoots};
    /// if let Some(group) = MemoryCgroup::of(&SysRoots::default(), std::process::id())? {
    ///     println!("{} of {:?} bytes, {} of them page cache", group.usage, group.effective_limit, group.file);
    /// }
    /// # Ok::<(), pagekeeper_kernel::Error>(())
    /// ```
    pub fn of(roots: &SysRoots, pid: u32) -> Result<Option<Self>> {
        MemoryPlace::of(roots, pid)?.map_or(Ok(None), |place| Self::charged_in(&place))
    }

    /// Returns the group that memory at a place is charged to, with the limits above it; `None` if
    /// the memory controller is off there.
    ///
    /// # Errors
    ///
    /// If the files of that directory can't be read.
    pub fn charged_in(place: &MemoryPlace) -> Result<Option<Self>> {
        match place.version {
            CgroupVersion::V1 => read_v1(place.directory.clone()).map(Some),
            CgroupVersion::V2 => read_v2(&place.directory, &place.top),
        }
    }

    /// Returns the figures of the group in this directory, without the hierarchy above it: its
    /// effective limit is its own.
    ///
    /// # Errors
    ///
    /// If its files can't be read, or differ in form from those of Linux up to 6.18, or if it has
    /// no memory controller.
    pub(super) fn at(version: CgroupVersion, directory: &Path) -> Result<Self> {
        match version {
            CgroupVersion::V1 => read_v1(directory.to_path_buf()),
            CgroupVersion::V2 => read_v2(directory, directory)?
                .ok_or_else(|| malformed(&directory.join("cgroup.controllers"), "no memory controller")),
        }
    }
}

fn read_v1(directory: PathBuf) -> Result<MemoryCgroup> {
    let stat = MemoryStat::read(&directory)?;
    // The plain fields exclude the descendants; the usage and the `total_` fields include them.
    let total = |name: &str| stat.get(&format!("total_{name}"));
    let required = |name: &str| total(name)?.ok_or_else(|| malformed(&stat.path, format!("total_{name}")));
    let file_refaults = match total("workingset_refault_file")? {
        None => total("workingset_refault")?,
        found => found,
    };
    Ok(MemoryCgroup {
        version: CgroupVersion::V1,
        usage: read_number(&directory.join("memory.usage_in_bytes"))?,
        limit: parse_limit_v1(read_number(&directory.join("memory.limit_in_bytes"))?),
        effective_limit: stat.get("hierarchical_memory_limit")?.and_then(parse_limit_v1),
        file: required("cache")?,
        shmem: total("shmem")?,
        dirty: total("dirty")?,
        writeback: total("writeback")?,
        inactive_file: required("inactive_file")?,
        active_file: required("active_file")?,
        file_refaults,
        limited_by: None,
        events: MemoryEvents::read(CgroupVersion::V1, &directory),
        directory,
    })
}

/// Version 1 expresses "unlimited" by the largest number of whole pages below 2^63.
pub(super) fn parse_limit_v1(limit: u64) -> Option<u64> {
    let max_pages = i64::MAX.cast_unsigned() / crate::page_size();
    (limit / crate::page_size() < max_pages).then_some(limit)
}

/// Reads the nearest group at or above `group` with the memory controller, which the process is
/// charged to.
fn read_v2(group: &Path, top: &Path) -> Result<Option<MemoryCgroup>> {
    let up_to_top = || group.ancestors().take_while(|directory| directory.starts_with(top));
    let Some(directory) = up_to_top().find(|directory| directory.join("memory.current").exists()) else {
        return Ok(None);
    };
    let stat = MemoryStat::read(directory)?;
    let required = |name: &str| stat.get(name)?.ok_or_else(|| malformed(&stat.path, name));
    let limit = limit_v2(directory)?;
    let (mut effective_limit, mut limiting) = (limit, directory);
    for above in directory.ancestors().skip(1).take_while(|above| above.starts_with(top)) {
        if let Some(lower) =
            limit_v2(above)?.filter(|found| effective_limit.is_none_or(|lowest| *found < lowest))
        {
            (effective_limit, limiting) = (Some(lower), above);
        }
    }
    let file_refaults = match stat.get("workingset_refault_file")? {
        None => stat.get("workingset_refault")?,
        found => found,
    };
    Ok(Some(MemoryCgroup {
        version: CgroupVersion::V2,
        directory: directory.to_path_buf(),
        usage: read_number(&directory.join("memory.current"))?,
        limit,
        effective_limit,
        file: required("file")?,
        shmem: stat.get("shmem")?,
        dirty: stat.get("file_dirty")?,
        writeback: stat.get("file_writeback")?,
        inactive_file: required("inactive_file")?,
        active_file: required("active_file")?,
        file_refaults,
        limited_by: (limiting != directory).then(|| limiting.to_path_buf()),
        events: MemoryEvents::read(CgroupVersion::V2, limiting),
    }))
}

/// Returns a group's limit of version 2; the root group has none.
fn limit_v2(directory: &Path) -> Result<Option<u64>> {
    let path = directory.join("memory.max");
    match read_optional(&path)?.as_deref().map(str::trim) {
        None | Some("max") => Ok(None),
        Some(limit) => limit.parse().map(Some).map_err(|_| malformed(&path, limit)),
    }
}

/// The file `memory.stat`: one name and number per line.
pub(super) struct MemoryStat {
    path: PathBuf,
    text: String,
}

impl MemoryStat {
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join("memory.stat");
        Ok(Self { text: read_text(&path)?, path })
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<u64>> {
        let value = self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .map(|value| value.parse().map_err(|_| malformed(&self.path, format!("{name} {value}"))))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    const V1: &str = "cache 1\ndirty 1\ninactive_file 1\nhierarchical_memory_limit 1048576\ntotal_cache 40960\n\
        total_shmem 4096\ntotal_dirty 8192\ntotal_writeback 0\ntotal_workingset_refault_file 7\n\
        total_inactive_file 12288\ntotal_active_file 16384\n";
    const V2: &str = "anon 1\nfile 40960\nshmem 4096\nfile_dirty 8192\nfile_writeback 0\ninactive_file 12288\n\
        active_file 16384\nworkingset_refault_anon 3\nworkingset_refault_file 7\n";

    /// Returns a process 7 in these groups, with the hierarchies mounted inside the tree.
    fn machine(
        cgroup: &str,
        mounts: &[(&str, &str, &str)],
        files: &[(&str, &str)],
    ) -> (tempfile::TempDir, SysRoots) {
        let mut all = vec![("proc/7/cgroup", cgroup)];
        all.extend(files);
        let (tree, roots) = tree(&all);
        let lines: Vec<String> = mounts
            .iter()
            .map(|(root, point, kind)| {
                format!("31 23 0:28 {root} {}/{point} rw - {kind}\n", tree.path().display())
            })
            .collect();
        std::fs::create_dir_all(tree.path().join("proc/self")).unwrap();
        std::fs::write(tree.path().join("proc/self/mountinfo"), lines.concat()).unwrap();
        (tree, roots)
    }

    const HYBRID: &[(&str, &str, &str)] = &[
        ("/", "sys/fs/cgroup/cpu", "cgroup cgroup rw,cpu"),
        ("/", "sys/fs/cgroup/memory", "cgroup cgroup rw,memory"),
        ("/", "sys/fs/cgroup/unified", "cgroup2 cgroup2 rw"),
    ];

    #[test]
    fn version_1_with_its_groups_below() {
        let files = [
            ("sys/fs/cgroup/memory/db/memory.stat", V1),
            ("sys/fs/cgroup/memory/db/memory.usage_in_bytes", "65536\n"),
            ("sys/fs/cgroup/memory/db/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let (tree, roots) = machine("4:memory:/db\n1:cpu:/\n0::/x\n", HYBRID, &files);
        let group = MemoryCgroup::of(&roots, 7).unwrap().unwrap();
        assert_eq!(group.version, CgroupVersion::V1);
        assert_eq!(group.directory, tree.path().join("sys/fs/cgroup/memory/db"));
        assert_eq!((group.usage, group.limit, group.effective_limit), (65536, None, Some(1 << 20)));
        assert_eq!((group.file, group.dirty, group.file_refaults), (40960, Some(8192), Some(7)));
    }

    #[test]
    fn version_2_with_limits_above() {
        let top = "sys/fs/cgroup";
        let file = |name: &str| format!("{top}/{name}");
        let names = [
            file("pod/memory.max"),
            file("pod/memory.current"),
            file("pod/db/memory.max"),
            file("pod/db/memory.current"),
            file("pod/db/memory.stat"),
            file("pod/db/memory.events"),
            file("pod/db/leaf/cgroup.procs"),
            file("pod/memory.events"),
        ];
        let own = "low 0\nhigh 0\nmax 0\noom 0\n";
        let of_the_pod = "low 0\nhigh 3\nmax 5\noom 0\n";
        let values = ["524288\n", "70000\n", "max\n", "65536\n", V2, own, "", of_the_pod];
        let files: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(values).collect();
        // The leaf has no memory controller: the group above it is charged.
        let (tree, roots) = machine("0::/pod/db/leaf\n", &[("/", top, "cgroup2 cgroup2 rw")], &files);
        let group = MemoryCgroup::of(&roots, 7).unwrap().unwrap();
        assert_eq!(group.version, CgroupVersion::V2);
        assert_eq!(group.directory, tree.path().join(top).join("pod/db"));
        assert_eq!((group.usage, group.limit, group.effective_limit), (65536, None, Some(524_288)));
        assert_eq!((group.file, group.writeback, group.file_refaults), (40960, Some(0), Some(7)));
        let hits = (group.events.high, group.events.max, group.events.oom_kill);
        assert_eq!(hits, (Some(3), Some(5), None), "of the pod, whose limit it is");
        assert_eq!(group.limited_by, Some(tree.path().join(top).join("pod")));
        let alone = MemoryCgroup::at(CgroupVersion::V2, &group.directory).unwrap();
        assert_eq!((alone.events.max, alone.effective_limit, alone.limited_by), (Some(0), None, None));
        let place = MemoryPlace::of(&roots, 7).unwrap().unwrap();
        assert_eq!(place.group, PathBuf::from("/pod/db/leaf"));
        assert_eq!(place.charged(&group), PathBuf::from("/pod/db"), "a rule for it has to name this one");
    }

    #[test]
    fn a_part_of_a_hierarchy_bound_into_a_container() {
        let files = [
            ("sys/fs/cgroup/memory/inner/memory.stat", V1),
            ("sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "4096\n"),
        ];
        let mounts = [("/docker/a", "sys/fs/cgroup/memory", "cgroup cgroup rw,memory")];
        let (_tree, roots) = machine("4:memory:/docker/a/inner\n", &mounts, &files);
        assert_eq!(MemoryCgroup::of(&roots, 7).unwrap().unwrap().limit, Some(4096));
        std::fs::write(roots.proc.path().join("7/cgroup"), "4:memory:/docker/b\n").unwrap();
        assert_eq!(MemoryCgroup::of(&roots, 7).unwrap(), None);
    }

    #[test]
    fn no_memory_cgroup_at_all() {
        let (_tree, roots) = machine("0::/\n", &[("/", "sys/fs/cgroup", "cgroup2 cgroup2 rw")], &[]);
        assert_eq!(MemoryCgroup::of(&roots, 7).unwrap(), None);
        let (_tree, roots) = machine("4:memory:/db\n", &[], &[]);
        assert_eq!(MemoryCgroup::of(&roots, 7).unwrap(), None);
        assert!(MemoryCgroup::of(&roots, 8).unwrap_err().is_gone());
    }

    #[test]
    fn malformed_figures_are_named() {
        let stat = V1.replace("total_dirty 8192", "total_dirty some");
        for (stat, usage, what) in
            [(stat.as_str(), "1", "total_dirty some"), (V1, "x", "x"), ("", "1", "total_cache")]
        {
            let files = [
                ("sys/fs/cgroup/memory/db/memory.stat", stat),
                ("sys/fs/cgroup/memory/db/memory.usage_in_bytes", usage),
                ("sys/fs/cgroup/memory/db/memory.limit_in_bytes", "4096\n"),
            ];
            let (_tree, roots) = machine("4:memory:/db\n", HYBRID, &files);
            assert!(MemoryCgroup::of(&roots, 7).unwrap_err().to_string().contains(what));
        }
    }

    #[test]
    fn this_process_is_charged_for_its_memory() {
        match MemoryCgroup::of(&SysRoots::default(), std::process::id()).unwrap() {
            Some(group) => {
                assert!(group.usage > 0);
                assert!(
                    group.limit.is_none_or(|limit| group.effective_limit.is_some_and(|least| least <= limit))
                );
            }
            None => crate::testing::skip(
                "this_process_is_charged_for_its_memory: this process is in no memory cgroup that can be seen",
            ),
        }
    }
}
