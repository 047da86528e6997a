//! Where the command's group is made, in the hierarchy that has the memory controller.
//!
//! On version 1 it is made below this process's own. On version 2 a group with processes has no groups below it that count memory ("no
//! internal processes", `cgroup-v2.rst`), so that this process's own has to be left to it: the host's topmost, which is excepted; or
//! one in which it is alone and that its manager leaves to it (a unit with `Delegate=yes`, in which this process then has a group for
//! the command and one for the governor). From a scope, which is what a login has, systemd moves it into a new scope of that kind. A
//! service's other processes are left where their manager put them, and so is this one there.
//!
//! Invariant: what can't be used is not left behind. Fails by a [`Refusal`], with this process where it was, or in a scope of its own.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagekeeper_kernel::pressure::{CgroupVersion, MemoryPlace, SysRoots};
use rustix::fs::getxattr;

/// How long systemd may take to make a scope.
const SCOPE_WITHIN: Duration = Duration::from_secs(5);

/// Why there is no group.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The host has no memory cgroups, or they are not mounted here.
    NoCgroups,
    /// Version 2 before Linux 5.19.
    NoReclaim,
    /// Version 2, and the group has other processes, or is not left to this one.
    NotDelegated,
    /// Processes whose parent has ended become this one's children, which the command would not know.
    Inherits,
    /// This process may not make one.
    Denied(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCgroups => f.write_str("no memory cgroup can be seen here"),
            Self::NoReclaim => f.write_str("this kernel has no memory.reclaim (Linux 5.19)"),
            Self::NotDelegated => f.write_str(
                "no memory cgroup can be made beside others' processes; a unit of its own with Delegate=yes has one",
            ),
            Self::Inherits => f.write_str("no memory cgroup is made for the first process of a container"),
            Self::Denied(error) => write!(f, "no memory cgroup can be made: {error}"),
        }
    }
}

/// The directories of a new group.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) version: CgroupVersion,
    /// For the command.
    pub(super) group: PathBuf,
    /// Where this process's own group, on version 2, is left to the new one.
    pub(super) parted: Option<Parted>,
}

/// A group that hands memory on to two below it, and has no process itself meanwhile.
#[derive(Debug)]
pub(super) struct Parted {
    own: PathBuf,
    governor: PathBuf,
}

/// Makes the directories of a group.
pub(super) fn make() -> Result<Place, Refusal> {
    if std::process::id() == 1
        || rustix::process::child_subreaper().is_ok_and(|subreaper| subreaper.is_some())
    {
        return Err(Refusal::Inherits);
    }
    let own = own()?;
    match own.version {
        CgroupVersion::V1 => {
            let group = below(&own.directory, "run")?;
            Ok(Place { version: own.version, group, parted: None })
        }
        CgroupVersion::V2 => make_v2(own),
    }
}

fn own() -> Result<MemoryPlace, Refusal> {
    MemoryPlace::of(&SysRoots::default(), std::process::id()).ok().flatten().ok_or(Refusal::NoCgroups)
}

fn make_v2(own: MemoryPlace) -> Result<Place, Refusal> {
    let version = own.version;
    if is_topmost(&own.directory) {
        let lists_memory = |name: &str| {
            std::fs::read_to_string(own.directory.join(name))
                .is_ok_and(|text| text.split_whitespace().any(|controller| controller == "memory"))
        };
        if !lists_memory("cgroup.controllers") {
            return Err(Refusal::NoCgroups);
        }
        // The topmost group hands it on as soon as there is any group below that counts memory.
        if !lists_memory("cgroup.subtree_control") {
            hand_memory_on(&own.directory, true).map_err(Refusal::Denied)?;
        }
        let group = below(&own.directory, "run")?;
        if !group.join("memory.reclaim").exists() {
            super::remove(&group);
            return Err(Refusal::NoReclaim);
        }
        return Ok(Place { version, group, parted: None });
    }
    let own = if is_left_to_us(&own.directory) { own.directory } else { new_scope(&own.directory)? };
    if !own.join("memory.current").exists() {
        return Err(Refusal::NoCgroups);
    }
    if !own.join("memory.reclaim").exists() {
        return Err(Refusal::NoReclaim);
    }
    let group = below(&own, "run")?;
    match below(&own, "governor") {
        Ok(governor) => Ok(Place { version, group, parted: Some(Parted { own, governor }) }),
        Err(refusal) => {
            super::remove(&group);
            Err(refusal)
        }
    }
}

fn below(own: &Path, what: &str) -> Result<PathBuf, Refusal> {
    let directory = own.join(format!("pagekeeper-{what}-{}", std::process::id()));
    match std::fs::create_dir(&directory) {
        Ok(()) => Ok(directory),
        // One of a process that had the same id, and whose governor was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && super::is_unused(&directory, None) => {
            Ok(directory)
        }
        Err(error) => Err(Refusal::Denied(error)),
    }
}

/// Whether it is the host's topmost group, which alone may have processes and groups that count memory.
fn is_topmost(group: &Path) -> bool {
    !group.join("cgroup.type").exists()
}

/// Whether this process is alone in it, and systemd, where that made it, leaves it alone.
fn is_left_to_us(group: &Path) -> bool {
    is_alone(group) && (!has_systemd() || is_delegated(group))
}

fn is_alone(group: &Path) -> bool {
    std::fs::read_to_string(group.join("cgroup.procs"))
        .is_ok_and(|text| text.split_whitespace().eq([std::process::id().to_string().as_str()]))
}

fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The system's manager marks what it delegates: for itself from version 236 on, for everybody from 251 on. A user's does not
/// (systemd 252).
fn is_delegated(group: &Path) -> bool {
    ["trusted.delegate", "user.delegate"].iter().any(|name| {
        let mut value = [0; 8];
        getxattr(group, *name, &mut value[..]).is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

/// Has systemd move this process into a scope of its own, in the slice that it is in.
fn new_scope(own: &Path) -> Result<PathBuf, Refusal> {
    let has_suffix = |directory: &Path, suffix| directory.extension() == Some(OsStr::new(suffix));
    if !(has_systemd() && has_suffix(own, "scope")) {
        return Err(Refusal::NotDelegated);
    }
    let slice = own.ancestors().find(|above| has_suffix(above, "slice"));
    let slice = slice.and_then(Path::file_name).and_then(OsStr::to_str);
    let is_root = rustix::process::geteuid().is_root();
    let pid = std::process::id().to_string();
    let name = format!("pagekeeper-run-{pid}.scope");
    let mut call = Command::new("busctl");
    if !is_root {
        call.arg("--user");
    }
    let manager =
        ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
    call.args(["--quiet", "call"]).args(manager).args(["StartTransientUnit", "ssa(sv)a(sa(sv))"]);
    // The manager of a user has slices of its own, and takes the one for programs.
    let properties: &[&[&str]] = &[
        &["PIDs", "au", "1", &pid],
        &["Delegate", "b", "true"],
        &["CollectMode", "s", "inactive-or-failed"],
        &["Description", "s", "A command under pagekeeper run"],
        &["Slice", "s", slice.unwrap_or_default()],
    ];
    let given = if is_root && slice.is_some() { properties } else { &properties[..properties.len() - 1] };
    call.args([name.as_str(), "fail", &given.len().to_string()]);
    call.args(given.iter().copied().flatten()).arg("0");
    call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !call.status().is_ok_and(|status| status.success()) {
        return Err(Refusal::NotDelegated);
    }
    let asked = Instant::now();
    while asked.elapsed() < SCOPE_WITHIN {
        let directory = self::own()?.directory;
        if directory.file_name() == Some(OsStr::new(&name)) && is_alone(&directory) {
            return Ok(directory);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Refusal::NotDelegated)
}

/// Has the groups below count memory, or no longer.
fn hand_memory_on(group: &Path, on: bool) -> io::Result<()> {
    let text = if on { "+memory" } else { "-memory" };
    File::options().write(true).open(group.join("cgroup.subtree_control"))?.write_all(text.as_bytes())
}

impl Parted {
    /// Has this process, and so the governor that it starts, wait in a group of its own.
    pub(super) fn step_aside(&self) -> io::Result<()> {
        super::join(&self.governor)
    }

    /// Has the groups below count memory, once no process is in this one.
    pub(super) fn hand_on(&self) -> io::Result<()> {
        hand_memory_on(&self.own, true)
    }

    /// Takes this process back, and leaves nothing below.
    pub(super) fn unite(&self) {
        let _ = hand_memory_on(&self.own, false);
        let _ = super::join(&self.own);
        let _ = std::fs::remove_dir(&self.governor);
    }
}
