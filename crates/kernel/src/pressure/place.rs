//! Where a process is in the hierarchy of control groups that has the memory controller.
//!
//! The kernel names groups and mounts from the root of the reader's cgroup namespace, with `..` for what is above it. A container may see a
//! part of the hierarchy only, bound to the usual place; or have the host's mounted beside its own, whose root it sees as `/../../..`, and
//! other containers' groups as `/../../pod/container`: then the names of the groups in between have to be looked for.
//!
//! Invariants: no path with `..` in it is ever opened; a group that was looked for is one that holds the process.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{CgroupVersion, MemoryCgroup, SysRoots};
use crate::Result;
use crate::process::{CgroupPath, Mount, read_text};

/// So many levels of groups are looked through, and so many groups in all.
const LEVELS: usize = 4;
const GROUPS: usize = 4096;

/// Where a process is in the hierarchy that has the memory controller, or would have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlace {
    /// The version of that hierarchy.
    pub version: CgroupVersion,
    /// The directory of the process's own group, whether the controller is on there or not.
    pub directory: PathBuf,
    /// Where the hierarchy is mounted: the topmost group that can be seen.
    pub top: PathBuf,
    /// The group, from the hierarchy's root: of this process's cgroup namespace, or where a mount goes higher up, of that.
    pub group: PathBuf,
}

impl MemoryPlace {
    /// The group that the process's memory is charged to, of which `figures` are: its own, or the nearest above that has the controller.
    pub fn charged(&self, figures: &MemoryCgroup) -> PathBuf {
        let below =
            self.directory.strip_prefix(&figures.directory).map_or(0, |rest| rest.components().count());
        self.group.ancestors().nth(below).unwrap_or(&self.group).to_path_buf()
    }

    /// The place of a process; `None` where its hierarchy is not mounted here.
    ///
    /// # Errors
    ///
    /// Where the process is gone, or its groups or the mounts can't be read.
    pub fn of(roots: &SysRoots, pid: u32) -> Result<Option<Self>> {
        Self::among(roots, pid, &roots.proc.own_mounts()?)
    }

    /// The same by this process's mounts, which whoever asks for many processes reads once.
    ///
    /// # Errors
    ///
    /// Where the process is gone, or its groups can't be read.
    pub fn among(roots: &SysRoots, pid: u32, mounts: &[Mount]) -> Result<Option<Self>> {
        let paths = roots.proc.cgroup_paths(pid)?;
        let memory = |path: &&CgroupPath| path.controllers.iter().any(|name| name == "memory");
        let place = |version, path: &CgroupPath, wanted: &dyn Fn(&&Mount) -> bool| {
            let mut places = mounts.iter().filter(wanted).filter_map(|mount| {
                let (directory, group) = beneath(mount, &path.path, pid)?;
                Some(Self { version, directory, top: mount.point.clone(), group })
            });
            places.next()
        };
        if let Some(path) = paths.iter().find(memory) {
            let mount = |mount: &&Mount| mount.kind == "cgroup" && mount.has_option("memory");
            return Ok(place(CgroupVersion::V1, path, &mount));
        }
        let unified = paths.iter().find(|path| path.is_v2());
        let mount = |mount: &&Mount| mount.kind == "cgroup2";
        Ok(unified.and_then(|path| place(CgroupVersion::V2, path, &mount)))
    }
}

/// The group's directory under a mount, and its path from the root of that.
fn beneath(mount: &Mount, group: &Path, pid: u32) -> Option<(PathBuf, PathBuf)> {
    let (above, root) = split(&mount.root)?;
    let (up, rest) = split(group)?;
    let below = if above == up {
        // Both begin at one group: by the names of both.
        rest.strip_prefix(&root).ok()?.to_path_buf()
    } else if root == Path::new("") {
        look_for(&mount.point, above.checked_sub(up)?, &rest, pid)?
    } else {
        return None;
    };
    // A path of no components would end in a slash.
    let directory = if below == Path::new("") { mount.point.clone() } else { mount.point.join(&below) };
    let group = if above == 0 { group.to_path_buf() } else { Path::new("/").join(root).join(below) };
    directory.is_dir().then_some((directory, group))
}

/// How many levels above the root of the namespace a path begins, and the rest of it; `None` where it goes up again.
fn split(path: &Path) -> Option<(usize, PathBuf)> {
    let path = path.strip_prefix("/").ok()?;
    let up = path.components().take_while(|name| *name == Component::ParentDir).count();
    let rest: PathBuf = path.components().skip(up).collect();
    rest.components().all(|name| matches!(name, Component::Normal(_))).then_some((up, rest))
}

/// Looks for a group so many levels below a directory, by the end of its path, that holds the process.
#[allow(clippy::disallowed_methods, reason = "directories of the kernel's own")]
fn look_for(top: &Path, levels: usize, rest: &Path, pid: u32) -> Option<PathBuf> {
    let holds = |group: &Path| {
        let listed = read_text(&group.join("cgroup.procs"));
        listed.is_ok_and(|listed| listed.lines().any(|line| line.parse() == Ok(pid)))
    };
    if levels > LEVELS {
        return None;
    }
    let mut level = vec![PathBuf::new()];
    for _ in 0..levels {
        let entries = level.iter().filter_map(|above| Some((above, fs::read_dir(top.join(above)).ok()?)));
        let names = entries.flat_map(|(above, entries)| {
            let directories =
                entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            directories.map(|entry| above.join(entry.file_name())).collect::<Vec<_>>()
        });
        level = names.take(GROUPS).collect();
    }
    level.into_iter().map(|above| above.join(rest)).find(|group| holds(&top.join(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(groups: &[(&str, &str)]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (group, pids) in groups {
            fs::create_dir_all(tree.path().join(group)).unwrap();
            fs::write(tree.path().join(group).join("cgroup.procs"), pids).unwrap();
        }
        tree
    }

    fn mount(root: &str, point: &Path) -> Mount {
        Mount {
            id: 1,
            dev: 1,
            root: root.into(),
            point: point.to_path_buf(),
            kind: "cgroup2".to_owned(),
            source: "cgroup2".into(),
            options: "rw".into(),
        }
    }

    #[test]
    fn another_pod_is_found_in_the_hosts_hierarchy_mounted_into_this_one() {
        let tree = tree(&[
            ("kubepods.slice/a.slice/own", "1\n"),
            ("kubepods.slice/b.slice/db", "7\n8\n"),
            ("system.slice/b.slice/db", "9\n"),
            ("init.scope", "5\n"),
        ]);
        let host = mount("/../../..", tree.path());
        let found = |group: &str, pid| beneath(&host, Path::new(group), pid).map(|(_, group)| group);
        assert_eq!(found("/../../b.slice/db", 7), Some("/kubepods.slice/b.slice/db".into()));
        assert_eq!(
            found("/../../b.slice/db", 9),
            Some("/system.slice/b.slice/db".into()),
            "by who is in it, too"
        );
        assert_eq!(found("/../../b.slice/db", 4), None);
        assert_eq!(found("/../../../init.scope", 5), Some("/init.scope".into()));
        assert_eq!(found("/", 1), Some("/kubepods.slice/a.slice/own".into()));
        assert_eq!(found("/../../../../out", 5), None);
    }

    #[test]
    fn a_part_of_the_hierarchy_above_the_namespace_is_found_in_by_name() {
        let tree = tree(&[("mariadb.service", "7\n")]);
        let part = mount("/../../system.slice", tree.path());
        let found = |group: &str| beneath(&part, Path::new(group), 7);
        let (directory, group) = found("/../../system.slice/mariadb.service").unwrap();
        assert_eq!(directory, tree.path().join("mariadb.service"));
        assert_eq!(group, PathBuf::from("/system.slice/mariadb.service"), "as the node names it");
        assert_eq!(found("/../../system.slice").unwrap().0, tree.path());
        for other in
            ["/../../other.slice/mariadb.service", "/../system.slice/mariadb.service", "/mariadb.service"]
        {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn groups_are_looked_for_so_many_levels_deep_alone() {
        let tree = tree(&[("a/b/c/d/e/db", "7\n")]);
        let look = |levels: usize| look_for(tree.path(), levels, Path::new("db"), 7);
        assert_eq!(look(5), None, "{LEVELS} levels");
        assert_eq!(look_for(&tree.path().join("a"), 4, Path::new("db"), 7), Some("b/c/d/e/db".into()));
    }

    #[test]
    fn no_path_leads_out_of_a_mount() {
        let tree = tree(&[("own/below", "1\n"), ("else", "1\n")]);
        let own = mount("/", &tree.path().join("own"));
        assert_eq!(beneath(&own, Path::new("/../else"), 1), None);
        assert_eq!(beneath(&own, Path::new("/below/../../else"), 1), None);
        assert!(beneath(&own, Path::new("/below"), 1).is_some());
        assert_eq!(beneath(&mount("/docker/a", tree.path()), Path::new("/docker/b"), 1), None);
    }
}
