//! The place of a process in the hierarchy of control groups that has the memory controller.
//!
//! The kernel names groups and mounts relative to the root of the reader's cgroup namespace, with
//! `..` for groups above it. A container may see only a part of the hierarchy, bound to the usual
//! place. It may also have the host's hierarchy mounted beside its own. It then sees that root as
//! `/../../..`, and other containers' groups as `/../../pod/container`, so the names of the groups
//! in between have to be searched.
//!
//! Invariants: no path with `..` is ever opened. A group found by a search contains the process. If
//! not everything could be searched, a missing group is an error, never "not mounted": a user who
//! creates thousands of groups must not hide the groups of others.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{CgroupVersion, MemoryCgroup, SysRoots};
use crate::process::{CgroupPath, Mount, read_text};
use crate::{Error, Result};

/// Maximum number of levels searched.
const SEARCH_LEVELS_MAX: usize = 4;
/// Maximum number of groups searched per level.
const LEVEL_GROUPS_MAX: usize = 4096;
const TOO_DEEP_REASON: &str =
    "a process's control group, looked for from 4 levels above this one's at most, was not found";
const TOO_MANY_REASON: &str = "a process's control group was not found among the first 4096 of a level";

/// The place of a process in the hierarchy with the memory controller, or in the one that would
/// have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlace {
    /// The version of that hierarchy.
    pub version: CgroupVersion,
    /// The directory of the process's own group, whether the controller is enabled there or not.
    pub directory: PathBuf,
    /// The mount point of the hierarchy: the topmost visible group.
    pub top: PathBuf,
    /// The path of the group from the hierarchy's root: the root of this process's cgroup
    /// namespace, or that of a mount that reaches higher.
    pub group: PathBuf,
}

impl MemoryPlace {
    /// Returns the group that the process's memory is charged to, given its `figures`: its own, or
    /// the nearest one above with the controller.
    pub fn charged(&self, figures: &MemoryCgroup) -> PathBuf {
        let below =
            self.directory.strip_prefix(&figures.directory).map_or(0, |rest| rest.components().count());
        self.group.ancestors().nth(below).unwrap_or(&self.group).to_path_buf()
    }

    /// Returns the place of a process; `None` if its hierarchy is not mounted here.
    ///
    /// # Errors
    ///
    /// If the process has ended, if its groups or the mounts can't be read, or if not all groups
    /// could be searched for its own.
    pub fn of(roots: &SysRoots, pid: u32) -> Result<Option<Self>> {
        Self::among(roots, pid, &roots.proc.own_mounts()?)
    }

    /// Returns the same with mounts that the caller has read once for many processes.
    ///
    /// # Errors
    ///
    /// If the process has ended, if its groups can't be read, or if not all of them could be
    /// searched for its own.
    pub fn among(roots: &SysRoots, pid: u32, mounts: &[Mount]) -> Result<Option<Self>> {
        let paths = roots.proc.cgroup_paths(pid)?;
        let Some(path) = CgroupPath::charged(&paths) else { return Ok(None) };
        let version = if path.is_v2() { CgroupVersion::V2 } else { CgroupVersion::V1 };
        let has_it = |mount: &&Mount| match version {
            CgroupVersion::V1 => mount.kind == "cgroup" && mount.has_option("memory"),
            CgroupVersion::V2 => mount.kind == "cgroup2",
        };
        let mut limit = None;
        for mount in mounts.iter().filter(has_it) {
            match beneath(mount, &path.path, pid) {
                Ok(Some((directory, group))) => {
                    return Ok(Some(Self { version, directory, top: mount.point.clone(), group }));
                }
                Ok(None) => {}
                // Another mount may have it.
                Err(error) => limit = Some(error),
            }
        }
        limit.map_or(Ok(None), Err)
    }
}

/// Returns the group's directory under a mount, and its path from the mount's root.
fn beneath(mount: &Mount, group: &Path, pid: u32) -> Result<Option<(PathBuf, PathBuf)>> {
    let (Some((above, root)), Some((up, rest))) = (split_path(&mount.root), split_path(group)) else {
        return Ok(None);
    };
    let below = if above == up {
        // Both start at one group: compare their names.
        rest.strip_prefix(&root).ok().map(Path::to_path_buf)
    } else if root == Path::new("")
        && let Some(levels) = above.checked_sub(up)
    {
        search_group(&mount.point, levels, &rest, pid, LEVEL_GROUPS_MAX)?
    } else {
        None
    };
    let Some(below) = below else { return Ok(None) };
    // An empty path would add a trailing slash.
    let directory = if below == Path::new("") { mount.point.clone() } else { mount.point.join(&below) };
    let group = if above == 0 { group.to_path_buf() } else { Path::new("/").join(root).join(below) };
    Ok(directory.is_dir().then_some((directory, group)))
}

/// Returns how many levels above the namespace's root a path starts, and the rest of it; `None` if
/// it goes up again later.
fn split_path(path: &Path) -> Option<(usize, PathBuf)> {
    let path = path.strip_prefix("/").ok()?;
    let up = path.components().take_while(|name| *name == Component::ParentDir).count();
    let rest: PathBuf = path.components().skip(up).collect();
    rest.components().all(|name| matches!(name, Component::Normal(_))).then_some((up, rest))
}

/// Searches for a group `levels` below a directory, by the end of its path, that contains the
/// process. Considers at most `most` groups per level.
#[allow(clippy::disallowed_methods, reason = "directories of the kernel's own")]
fn search_group(top: &Path, levels: usize, rest: &Path, pid: u32, most: usize) -> Result<Option<PathBuf>> {
    let holds = |group: &Path| {
        let listed = read_text(&group.join("cgroup.procs"));
        listed.is_ok_and(|listed| listed.lines().any(|line| line.parse() == Ok(pid)))
    };
    let not_found = |reason| Err(Error::Unsupported { path: top.to_path_buf(), reason });
    if levels > SEARCH_LEVELS_MAX {
        return not_found(TOO_DEEP_REASON);
    }
    let mut level = vec![PathBuf::new()];
    let mut are_all = true;
    for _ in 0..levels {
        let entries = level.iter().filter_map(|above| Some((above, fs::read_dir(top.join(above)).ok()?)));
        let names = entries.flat_map(|(above, entries)| {
            let directories =
                entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            directories.map(|entry| above.join(entry.file_name())).collect::<Vec<_>>()
        });
        level = names.take(most + 1).collect();
        are_all &= level.len() <= most;
        level.truncate(most);
    }
    let found = level.into_iter().map(|above| above.join(rest)).find(|group| holds(&top.join(group)));
    if found.is_none() && !are_all { not_found(TOO_MANY_REASON) } else { Ok(found) }
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
        let found = |group: &str, pid| beneath(&host, Path::new(group), pid).unwrap().map(|(_, group)| group);
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
        let found = |group: &str| beneath(&part, Path::new(group), 7).unwrap();
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
    fn groups_are_searched_up_to_a_depth() {
        let tree = tree(&[("a/b/c/d/e/db", "7\n")]);
        let look = |top: &str, levels| {
            search_group(&tree.path().join(top), levels, Path::new("db"), 7, LEVEL_GROUPS_MAX)
        };
        assert_eq!(look("a", 4).unwrap(), Some("b/c/d/e/db".into()));
        let said = look("", 5).unwrap_err().to_string();
        assert_eq!(said, format!("{}/: {TOO_DEEP_REASON}", tree.path().display()));
        assert!(
            TOO_DEEP_REASON.contains(&format!(" {SEARCH_LEVELS_MAX} levels"))
                && TOO_MANY_REASON.contains(&format!(" {LEVEL_GROUPS_MAX} "))
        );
    }

    #[test]
    fn a_group_hidden_among_too_many_is_reported() {
        let tree = tree(&[("pods/a/db", "7\n"), ("pods/b/db", "8\n"), ("pods/c/db", "9\n"), ("one/d", "")]);
        let look = |pid, most| search_group(tree.path(), 2, Path::new("db"), pid, most);
        for pid in [7, 8, 9] {
            assert!(look(pid, 4).unwrap().is_some(), "as many as there are");
        }
        assert_eq!(look(6, 4).unwrap(), None, "all were looked through");
        let found: Vec<_> = [7, 8, 9].into_iter().map(|pid| look(pid, 2)).collect();
        assert!(found.iter().flatten().all(Option::is_some), "never as if there were none: {found:?}");
        let said: Vec<_> = found.into_iter().filter_map(|found| Some(found.err()?.to_string())).collect();
        assert!(!said.is_empty());
        assert!(
            said.iter().all(|said| *said == format!("{}: {TOO_MANY_REASON}", tree.path().display())),
            "{said:?}"
        );
        // Another mount of the hierarchy with the group is enough. Without one it is an error,
        // which the guard and the doctor report.
        let roots = SysRoots::at(tree.path());
        fs::create_dir_all(tree.path().join("proc/7")).unwrap();
        fs::write(tree.path().join("proc/7/cgroup"), "0::/../../../../../out\n").unwrap();
        let deep = mount("/../../../../../../../../../..", &tree.path().join("one"));
        let said = MemoryPlace::among(&roots, 7, std::slice::from_ref(&deep)).unwrap_err().to_string();
        assert!(said.ends_with(TOO_DEEP_REASON), "{said}");
        let near = mount("/../../../../..", &tree.path().join("pods"));
        fs::create_dir_all(tree.path().join("pods/out")).unwrap();
        let place = MemoryPlace::among(&roots, 7, &[deep, near]).unwrap().unwrap();
        assert_eq!(place.directory, tree.path().join("pods/out"));
    }

    #[test]
    fn no_path_leads_out_of_a_mount() {
        let tree = tree(&[("own/below", "1\n"), ("else", "1\n")]);
        let own = mount("/", &tree.path().join("own"));
        let found = |mount: &Mount, group: &str| beneath(mount, Path::new(group), 1).unwrap();
        assert_eq!(found(&own, "/../else"), None);
        assert_eq!(found(&own, "/below/../../else"), None);
        assert!(found(&own, "/below").is_some());
        assert_eq!(found(&mount("/docker/a", tree.path()), "/docker/b"), None);
    }
}
