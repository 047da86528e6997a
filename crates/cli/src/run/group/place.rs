//! Where the command's group is made: on version 1 below this process's own; on version 2, where a group with processes can't have
//! groups below it that count memory ("no internal processes", `cgroup-v2.rst`), where the host's manager lets us.
//!
//! Invariant: what can't be used is not left behind. On version 2, in this order: below the own group where this process is alone in
//! it (a unit with `Delegate=`, a container's first process), or it is the host's topmost; beside it, where the group above hands memory on to
//! its groups and is no systemd's; else in a scope that systemd makes (`systemd-run --scope`), as which this process starts anew.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagekeeper_kernel::pressure::{CgroupVersion, MemoryPlace, SysRoots};

/// What tells a process that it was started anew in a scope: it tries once. Its value is what [`INVOCATION`] was before.
const SCOPED: &str = "PAGEKEEPER_SCOPE";
/// What systemd-run(1) adds to an environment.
const INVOCATION: &str = "INVOCATION_ID";

/// Why there is no group.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The host has no memory cgroups, or they are not mounted here.
    NoCgroups,
    /// Version 2 before Linux 5.19.
    NoReclaim,
    /// Where other processes are, there can be no groups below.
    Shared,
    /// This process may not make one.
    Denied(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCgroups => f.write_str("no memory cgroup can be seen here"),
            Self::NoReclaim => f.write_str("this kernel has no memory.reclaim (Linux 5.19)"),
            Self::Shared => f.write_str(
                "other processes are in this one's cgroup, so none can be made below it: a unit with Delegate=yes, or systemd-run --scope, has one",
            ),
            Self::Denied(error) => write!(f, "no memory cgroup can be made: {error}"),
        }
    }
}

/// Makes the directory of a group.
pub(super) fn make() -> Result<(CgroupVersion, PathBuf), Refusal> {
    let place = MemoryPlace::of(&SysRoots::default(), std::process::id());
    let place = place.ok().flatten().ok_or(Refusal::NoCgroups)?;
    match place.version {
        CgroupVersion::V1 => new_group(&place.directory).map(|made| (CgroupVersion::V1, made)),
        CgroupVersion::V2 => make_v2(&place).map(|made| (CgroupVersion::V2, made)),
    }
}

fn new_group(above: &Path) -> Result<PathBuf, Refusal> {
    let directory = above.join(format!("pagekeeper-run-{}", std::process::id()));
    match std::fs::create_dir(&directory) {
        Ok(()) => Ok(directory),
        // One of a process that had the same id, and whose governor was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && super::is_unused(&directory, None) => {
            Ok(directory)
        }
        Err(error) => Err(Refusal::Denied(error)),
    }
}

fn make_v2(place: &MemoryPlace) -> Result<PathBuf, Refusal> {
    let own = &place.directory;
    if !has_memory(own) && !place.top.join("cgroup.controllers").exists() {
        return Err(Refusal::NoCgroups);
    }
    if hands_memory_on(own) || is_topmost(own) {
        hand_memory_on(own).map_err(Refusal::Denied)?;
        return new_group(own);
    }
    if is_alone_in(own) {
        let made = new_group(own)?;
        // Once this process is below, nothing stands in the controller's way.
        return match super::join(&made).and_then(|()| hand_memory_on(own)) {
            Ok(()) => Ok(made),
            Err(error) => {
                let _ = super::join(own);
                let _ = std::fs::remove_dir(&made);
                Err(Refusal::Denied(error))
            }
        };
    }
    if has_systemd() {
        return Err(in_scope());
    }
    match own.parent().filter(|above| above.starts_with(&place.top) && hands_memory_on(above)) {
        Some(above) => new_group(above),
        None => Err(Refusal::Shared),
    }
}

fn listed(file: PathBuf, controller: &str) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|name| name == controller))
}

/// Whether the group has the memory controller itself.
fn has_memory(group: &Path) -> bool {
    listed(group.join("cgroup.controllers"), "memory")
}

/// Whether the groups below have it.
fn hands_memory_on(group: &Path) -> bool {
    listed(group.join("cgroup.subtree_control"), "memory")
}

fn hand_memory_on(group: &Path) -> io::Result<()> {
    if hands_memory_on(group) {
        return Ok(());
    }
    File::options().write(true).open(group.join("cgroup.subtree_control"))?.write_all(b"+memory")
}

/// Whether it is the host's topmost group, which alone may have processes and groups that count memory.
fn is_topmost(group: &Path) -> bool {
    !group.join("cgroup.type").exists()
}

fn is_alone_in(group: &Path) -> bool {
    std::fs::read_to_string(group.join("cgroup.procs"))
        .is_ok_and(|text| text.split_whitespace().eq([std::process::id().to_string().as_str()]))
}

fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Starts this process anew in a scope of its own. Returns where that fails.
fn in_scope() -> Refusal {
    if std::env::var_os(SCOPED).is_some() {
        return Refusal::Shared;
    }
    // Once this process has become systemd-run, nobody is left to start the command without a scope.
    let tried =
        systemd_run().arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        return Refusal::Shared;
    }
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("pagekeeper"));
    let mut command = systemd_run();
    command.arg(program).args(std::env::args_os().skip(1));
    command.env(SCOPED, std::env::var_os(INVOCATION).unwrap_or_default());
    Refusal::Denied(command.exec())
}

fn systemd_run() -> Command {
    let mut command = Command::new("systemd-run");
    if !rustix::process::geteuid().is_root() {
        command.arg("--user");
    }
    command.args(["--scope", "--quiet", "--collect", "--property=Delegate=yes", "--"]);
    command
}

/// What the way here put into the environment, which is none of the command's business.
pub(crate) fn forget_scope(command: &mut Command) {
    match std::env::var_os(SCOPED) {
        None => {}
        Some(before) if before.is_empty() => {
            command.env_remove(SCOPED).env_remove(INVOCATION);
        }
        Some(before) => {
            command.env_remove(SCOPED).env(INVOCATION, before);
        }
    }
}
