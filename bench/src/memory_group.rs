//! A private memory cgroup, version 1 or 2: creates, limits, queries and removes it.
//!
//! Invariants: it has no swap, so that memory over the limit is reclaimed from files alone; it is
//! removed with its value, and so is the memory controller of the version-2 root if this run
//! enabled it. Its processes must have ended. Fails with a plain message where there is no memory
//! controller, or no permission to use it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

/// The hierarchy in which memory cgroups can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CgroupHierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

/// The place where groups are created.
#[derive(Debug)]
pub(crate) struct GroupParent {
    hierarchy: CgroupHierarchy,
    /// Whether the controller of the version-2 root must be disabled again.
    switched_on: bool,
}

impl GroupParent {
    /// Finds the hierarchy, and creates a group as a test.
    pub(crate) fn find() -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("can't read the mounts")?;
        let Some(hierarchy) = hierarchy_in(&mounts, &controllers_of) else {
            bail!(
                "no memory controller of cgroups is mounted, neither version 1 nor 2; this bench needs one"
            );
        };
        let mut groups = Self { hierarchy, switched_on: false };
        groups.switch_on()?;
        groups.create(1 << 30)?;
        Ok(groups)
    }

    /// Returns the cgroup version, 1 or 2.
    pub(crate) fn version(&self) -> u8 {
        match self.hierarchy {
            CgroupHierarchy::V1(_) => 1,
            CgroupHierarchy::V2(_) => 2,
        }
    }

    /// Enables the controller for children of the version-2 root.
    fn switch_on(&mut self) -> Result<()> {
        let CgroupHierarchy::V2(root) = &self.hierarchy else { return Ok(()) };
        let enabled = std::fs::read_to_string(root.join(SUBTREE_CONTROL))
            .context("can't read the cgroup's controllers")?;
        if !has_memory(&enabled) {
            std::fs::write(root.join(SUBTREE_CONTROL), "+memory").with_context(|| {
                format!("can't switch on the memory controller in {}; this bench needs root", root.display())
            })?;
            self.switched_on = true;
        }
        Ok(())
    }

    /// Creates a group with a limit in bytes and without swap.
    pub(crate) fn create(&self, limit: u64) -> Result<MemoryGroup> {
        let (root, limit_file, swap_file, swap) = match &self.hierarchy {
            CgroupHierarchy::V1(root) => (root, "memory.limit_in_bytes", "memory.swappiness", "0"),
            CgroupHierarchy::V2(root) => (root, "memory.max", "memory.swap.max", "0"),
        };
        let directory = root.join(format!("pagekeeper-bench-{}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| {
            format!("can't make the memory cgroup {}; this bench needs root", directory.display())
        })?;
        let group = MemoryGroup { directory, version: self.version() };
        group.set(limit_file, &limit.to_string())?;
        // Missing where the kernel has no swap.
        if group.directory.join(swap_file).exists() {
            group.set(swap_file, swap)?;
        }
        Ok(group)
    }
}

impl Drop for GroupParent {
    fn drop(&mut self) {
        if let (CgroupHierarchy::V2(root), true) = (&self.hierarchy, self.switched_on)
            && let Err(error) = std::fs::write(root.join(SUBTREE_CONTROL), "-memory")
        {
            eprintln!(
                "pagekeeper-bench: can't switch off the memory controller in {}: {error}",
                root.display()
            );
        }
    }
}

/// A memory cgroup.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    directory: PathBuf,
    version: u8,
}

impl MemoryGroup {
    /// Returns the file to which a process writes 0 to enter the group.
    pub(crate) fn entrance(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Returns its processes of pagekeeper: those that follow streams.
    pub(crate) fn followers(&self) -> Result<Vec<u32>> {
        let processes = std::fs::read_to_string(self.entrance()).context("can't list a group's processes")?;
        let is_ours = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "pagekeeper")
        };
        Ok(processes.lines().filter_map(|pid| pid.parse().ok()).filter(is_ours).collect())
    }

    /// Returns a command that enters the group and then runs this program; arguments can be added.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(self.entrance()).arg(program);
        command
    }

    /// Returns the bytes charged to the group.
    pub(crate) fn usage(&self) -> Result<u64> {
        self.number(if self.version == 1 { "memory.usage_in_bytes" } else { "memory.current" })
    }

    /// Returns the charged bytes that belong to no file: heaps and stacks.
    pub(crate) fn anonymous(&self) -> Result<u64> {
        let name = if self.version == 1 { "rss" } else { "anon" };
        field_of(&self.get("memory.stat")?, name).with_context(|| format!("memory.stat has no {name}"))
    }

    fn limit_file(&self) -> &'static str {
        if self.version == 1 { "memory.limit_in_bytes" } else { "memory.max" }
    }

    /// Returns its limit, in bytes.
    pub(crate) fn limit(&self) -> Result<u64> {
        self.number(self.limit_file())
    }

    /// Sets another limit, in bytes.
    pub(crate) fn set_limit(&self, limit: u64) -> Result<()> {
        self.set(self.limit_file(), &limit.to_string())
    }

    /// Returns the number of file pages that came back after reclaim had taken them.
    pub(crate) fn refaults(&self) -> Result<u64> {
        Ok(field_of(&self.get("memory.stat")?, "workingset_refault_file").unwrap_or(0))
    }

    fn get(&self, file: &str) -> Result<String> {
        let path = self.directory.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))
    }

    fn number(&self, file: &str) -> Result<u64> {
        self.get(file)?.trim().parse().with_context(|| format!("{file} is no number"))
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.directory.join(file);
        std::fs::write(&path, value).with_context(|| format!("can't write {value} to {}", path.display()))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The group is busy for a moment after the last process has ended.
        for _ in 0..100 {
            match std::fs::remove_dir(&self.directory) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    eprintln!("pagekeeper-bench: can't remove {}: {error}", self.directory.display());
                    return;
                }
                _ => return,
            }
        }
        eprintln!("pagekeeper-bench: can't remove {}: still busy", self.directory.display());
    }
}

/// Returns the controllers of the version-2 root at this mount.
fn controllers_of(mount: &Path) -> String {
    std::fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default()
}

fn has_memory(controllers: &str) -> bool {
    controllers.split_whitespace().any(|name| name == "memory")
}

/// Finds the hierarchy in the text of /proc/self/mountinfo (proc(5)): optional fields end with a
/// dash, then come type, source, options.
fn hierarchy_in(mounts: &str, controllers_of: &dyn Fn(&Path) -> String) -> Option<CgroupHierarchy> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mount = PathBuf::from(mount.split(' ').nth(4)?);
        let mut kind = kind.split(' ');
        match (kind.next()?, kind.nth(1)?) {
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => {
                Some(CgroupHierarchy::V1(mount))
            }
            ("cgroup2", _) if has_memory(&controllers_of(&mount)) => Some(CgroupHierarchy::V2(mount)),
            _ => None,
        }
    })
}

/// Returns the number after a name, in lines of a name and a number each.
pub(crate) fn field_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "30 23 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
                      36 23 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
    const V2: &str = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_version_with_the_memory_controller_is_found() {
        let none = |_: &Path| "cpu io".to_owned();
        let memory = |_: &Path| "cpu memory".to_owned();
        let first = Some(CgroupHierarchy::V1("/sys/fs/cgroup/memory".into()));
        assert_eq!(hierarchy_in(V1, &none), first);
        assert_eq!(hierarchy_in(&format!("{V2}{V1}"), &none), first, "memory is of version 1 there");
        assert_eq!(hierarchy_in(V2, &memory), Some(CgroupHierarchy::V2("/sys/fs/cgroup".into())));
        assert_eq!(hierarchy_in(V2, &none), None);
        assert_eq!(hierarchy_in("", &memory), None);
    }

    #[test]
    fn fields_are_distinguished_by_their_whole_name() {
        let text = "oom 0\noom_kill 2\nmax 17\n";
        assert_eq!(field_of(text, "max"), Some(17));
        assert_eq!(field_of(text, "oom"), Some(0));
        assert_eq!(field_of(text, "oom_kill"), Some(2));
        assert_eq!(field_of(text, "low"), None);
    }
}
