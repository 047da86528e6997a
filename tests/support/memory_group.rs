//! A memory cgroup of one's own, of whichever version holds the memory controller here.
//!
//! On version 2 a group has either processes or groups below it that count memory: each command has
//! a group of its own below this one.
//!
//! Invariants: it is removed when dropped, also by a panic, once its processes have ended. Needs
//! root.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A memory cgroup with a limit.
pub(crate) struct MemoryGroup {
    directory: PathBuf,
    /// The child cgroups, on version 2.
    below: Option<RefCell<Vec<PathBuf>>>,
}

impl MemoryGroup {
    /// Creates a cgroup. If that is impossible here, prints a sentence and returns `None`, or
    /// panics with it where `PAGEKEEPER_REQUIRE_ALL=1`.
    pub(crate) fn new(test: &str, limit: u64) -> Option<Self> {
        Self::below(test, limit, "")
    }

    /// Creates a cgroup like the one that kubelet makes for a pod.
    pub(crate) fn of_pod(test: &str, limit: u64) -> Option<Self> {
        Self::below(test, limit, "kubepods")
    }

    /// Creates a cgroup below a group of this name, or in the root.
    fn below(test: &str, limit: u64, parent: &str) -> Option<Self> {
        let made = places().into_iter().find_map(|(root, limit_file)| {
            let is_v2 = limit_file == "memory.max";
            if is_v2 {
                std::fs::write(root.join("cgroup.subtree_control"), "+memory").ok()?;
            }
            let root = root.join(parent);
            // The parent group stays for the next test.
            std::fs::create_dir_all(&root).ok()?;
            if is_v2 {
                std::fs::write(root.join("cgroup.subtree_control"), "+memory").ok()?;
            }
            // The name is unique; process IDs are not, since tests may have their own PID
            // namespaces.
            let directory = tempfile::Builder::new().prefix("pagekeeper-test-").tempdir_in(root).ok()?.keep();
            let group = Self { directory, below: is_v2.then(RefCell::default) };
            std::fs::write(group.directory.join(limit_file), limit.to_string()).ok()?;
            if is_v2 {
                std::fs::write(group.directory.join("cgroup.subtree_control"), "+memory").ok()?;
            }
            Some(group)
        });
        if made.is_none() {
            super::is_there(test, std::iter::once("a memory cgroup, which can't be made here".to_owned()));
        }
        made
    }

    /// Returns the directory of its files.
    pub(crate) fn path(&self) -> &Path {
        &self.directory
    }

    /// Sets another limit, in bytes.
    pub(crate) fn set_limit(&self, limit: u64) {
        let files = ["memory.max", "memory.limit_in_bytes"].map(|name| self.directory.join(name));
        let file = files.iter().find(|path| path.exists()).expect("a limit");
        std::fs::write(file, limit.to_string()).expect("set it");
    }

    /// Returns the bytes of its memory that belong to no file.
    pub(crate) fn anonymous(&self) -> u64 {
        let stat = std::fs::read_to_string(self.directory.join("memory.stat")).expect("read its figures");
        let figure =
            |line: &str| line.strip_prefix("total_rss ").or(line.strip_prefix("anon "))?.parse().ok();
        stat.lines().find_map(figure).expect("a figure for anonymous memory")
    }

    /// Moves a process into it, unless it has ended. Later children will be in it, too.
    pub(crate) fn add(&self, pid: u32) {
        let moved = std::fs::write(self.entrance(), pid.to_string());
        let ended = rustix::io::Errno::SRCH.raw_os_error();
        if let Err(error) = moved {
            assert_eq!(error.raw_os_error(), Some(ended), "move a process: {error}");
        }
    }

    /// Returns a command that enters the group before it runs this program. Arguments can be added.
    pub(crate) fn command(&self, program: &str) -> Command {
        command_by(&self.entrance(), program)
    }

    /// Returns a command that joins the child cgroup of a captured process, which version 2
    /// requires.
    pub(crate) fn command_with(&self, pid: u32, program: &str) -> Command {
        command_by(&self.entrance_of(pid), program)
    }

    /// Returns the processes in it.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let below = self.below.iter().flat_map(|below| below.borrow().clone());
        let texts = below.chain([self.directory.clone()]).filter_map(|directory| {
            // On version 2 the parent of the commands' cgroups has no processes of its own.
            //
            std::fs::read_to_string(directory.join("cgroup.procs")).ok()
        });
        texts.flat_map(|text| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }

    /// Returns the file to which the number of an entering process is written.
    fn entrance(&self) -> PathBuf {
        let Some(below) = &self.below else { return self.directory.join("cgroup.procs") };
        let mut below = below.borrow_mut();
        let leaf = self.directory.join(format!("leaf-{}", below.len()));
        std::fs::create_dir(&leaf).expect("make a group for one command");
        below.push(leaf.clone());
        leaf.join("cgroup.procs")
    }

    /// Returns the file by which a process enters the group of another one that is in it.
    fn entrance_of(&self, pid: u32) -> PathBuf {
        let Some(below) = &self.below else { return self.directory.join("cgroup.procs") };
        let mut entrances = below.borrow().iter().map(|leaf| leaf.join("cgroup.procs")).collect::<Vec<_>>();
        let pid = pid.to_string();
        entrances.retain(|entrance| {
            std::fs::read_to_string(entrance).expect("read who is in a group").lines().any(|line| line == pid)
        });
        entrances.pop().expect("it was taken in")
    }
}

/// Returns a command that enters a group here before it runs this program.
fn command_by(entrance: &Path, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", "sh", "-c", "echo $$ >\"$0\" && exec \"$@\""]);
    command.arg(entrance).arg(program);
    command
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Busy for a moment, where a process in it is just ending.
        for _ in 0..50 {
            for leaf in self.below.iter().flat_map(|below| below.borrow().clone()) {
                let _ = std::fs::remove_dir(leaf);
            }
            if std::fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{} is left behind", self.directory.display());
    }
}

/// Roots of memory controllers, each with the name of a group's limit.
fn places() -> Vec<(PathBuf, &'static str)> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
    let places = mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let point = PathBuf::from(mount.split(' ').nth(4)?);
        let kind: Vec<&str> = kind.split(' ').collect();
        let has = |option: &str| kind.last().is_some_and(|all| all.split(',').any(|other| other == option));
        match kind[0] {
            "cgroup" if has("memory") => Some((point, "memory.limit_in_bytes")),
            "cgroup2" => Some((point, "memory.max")),
            _ => None,
        }
    });
    places.collect()
}
