//! The control groups of a process (cgroups(7)): one line per hierarchy of version 1, and one for
//! version 2.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use pagekeeper_text::unescaped_bytes;

use super::{ProcRoot, malformed};
use crate::Result;

/// A process's place in one cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupPath {
    /// The hierarchy's number; 0 for version 2.
    pub hierarchy: u32,
    /// The controllers of a version 1 hierarchy (`memory`, `cpu` …, or `name=systemd`); empty for
    /// version 2.
    pub controllers: Vec<String>,
    /// The group's path from the hierarchy's root, as this process's cgroup namespace shows it:
    /// `/system.slice/x.service`.
    pub path: PathBuf,
}

impl CgroupPath {
    /// Whether it is the unified hierarchy of version 2.
    pub fn is_v2(&self) -> bool {
        self.hierarchy == 0 && self.controllers.is_empty()
    }

    /// Returns the group that memory is charged to, among those of a process: that of the memory
    /// controller of version 1, or of version 2.
    pub fn charged(paths: &[Self]) -> Option<&Self> {
        let memory = |path: &&Self| path.controllers.iter().any(|name| name == "memory");
        paths.iter().find(memory).or_else(|| paths.iter().find(|path| path.is_v2()))
    }
}

impl ProcRoot {
    /// Returns the control groups of the process, as the kernel lists them.
    pub fn cgroup_paths(&self, pid: u32) -> Result<Vec<CgroupPath>> {
        let content = self.read_optional(pid, "cgroup", "this kernel has no control groups")?;
        let lines = || content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let paths: Vec<CgroupPath> = lines().filter_map(parse_line).collect();
        match lines().next() {
            Some(first) if paths.is_empty() => Err(malformed(&self.of(pid, "cgroup"), first)),
            _ => Ok(paths),
        }
    }
}

fn parse_line(line: &[u8]) -> Option<CgroupPath> {
    // The group's name may contain colons, and any bytes except newlines.
    let mut fields = line.splitn(3, |byte| *byte == b':');
    let mut text = || Some(unescaped_bytes(fields.next()?));
    let hierarchy = text()?.parse().ok()?;
    let controllers = text()?.split(',').filter(|name| !name.is_empty()).map(String::from).collect();
    Some(CgroupPath { hierarchy, controllers, path: OsString::from_vec(fields.next()?.to_vec()).into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

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
        std::fs::write(&file, b"9:name=\xff:/a\n0::/pod\xff\n").unwrap();
        let paths = proc.cgroup_paths(3).unwrap();
        assert_eq!((paths.len(), paths[1].path.as_os_str().as_bytes()), (2, &b"/pod\xff"[..]));
        assert!(!paths[0].is_v2(), "{paths:?}");
        std::fs::write(&file, "nonsense\n").unwrap();
        assert!(proc.cgroup_paths(3).unwrap_err().to_string().contains("nonsense"));
    }
}
