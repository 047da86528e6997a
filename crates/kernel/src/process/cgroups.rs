//! Which control groups a process is in (cgroups(7)): one line a hierarchy of version 1, one for version 2.

use std::path::PathBuf;

use super::{ProcRoot, malformed};
use crate::Result;

/// A process's place in one cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupPath {
    /// The hierarchy's number; 0 is that of version 2.
    pub hierarchy: u32,
    /// The controllers of a version 1 hierarchy (`memory`, `cpu` …, or `name=systemd`); empty for version 2.
    pub controllers: Vec<String>,
    /// The group, from the hierarchy's root as this process's cgroup namespace sees it: `/system.slice/x.service`.
    pub path: PathBuf,
}

impl CgroupPath {
    /// Whether it is the unified hierarchy of version 2.
    pub fn is_v2(&self) -> bool {
        self.hierarchy == 0 && self.controllers.is_empty()
    }
}

impl ProcRoot {
    /// The control groups of the process, as the kernel lists them.
    pub fn cgroup_paths(&self, pid: u32) -> Result<Vec<CgroupPath>> {
        let content = self.read_optional(pid, "cgroup", "this kernel has no control groups")?;
        let text = String::from_utf8_lossy(&content);
        text.lines()
            .map(|line| parse_line(line).ok_or_else(|| malformed(&self.of(pid, "cgroup"), line)))
            .collect()
    }
}

fn parse_line(line: &str) -> Option<CgroupPath> {
    // The group's name may hold colons.
    let mut fields = line.splitn(3, ':');
    let hierarchy = fields.next()?.parse().ok()?;
    let controllers = fields.next()?.split(',').filter(|name| !name.is_empty()).map(String::from).collect();
    Some(CgroupPath { hierarchy, controllers, path: PathBuf::from(fields.next()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_and_colons_in_names() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("3")).unwrap();
        let file = tree.path().join("3/cgroup");
        std::fs::write(&file, "9:name=systemd:/a\n4:memory:/db\n1:cpu,cpuacct:/\n0::/pod:1/x\n").unwrap();
        let proc = ProcRoot::at(tree.path());
        let paths = proc.cgroup_paths(3).unwrap();
        assert_eq!(paths.len(), 4);
        assert_eq!(paths[2].controllers, ["cpu", "cpuacct"]);
        assert!(paths[3].is_v2() && !paths[1].is_v2());
        assert_eq!(paths[3].path, PathBuf::from("/pod:1/x"));
        std::fs::write(&file, "nonsense\n").unwrap();
        assert!(proc.cgroup_paths(3).unwrap_err().to_string().contains("nonsense"));
    }
}
