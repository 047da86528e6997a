//! One memory cgroup, held by a descriptor of its directory: its figures and stalls, and requests
//! to the kernel to reclaim its file pages (`Documentation/admin-guide/cgroup-v2.rst`:
//! `memory.pressure`, `memory.reclaim`).
//!
//! Invariants:
//! 1. All reads and requests apply to the very group that was opened. No link is followed on the
//!    way, directories other than control groups are refused, and a new group at the same path
//!    counts as another one ([`HeldGroup::id`]). A user who may create groups (a delegated part of
//!    the tree) can't have another user's group reclaimed.
//! 2. The only file ever written is `memory.reclaim`, which changes no byte of any file and no
//!    setting. Anonymous memory is not reclaimed: if the kernel can't exclude it, nothing is
//!    requested.
//!
//! A missing kernel feature is a sentence ([`ReclaimResult::Refused`]), not an error. Fails as the
//! calls do; the error for a removed group [is gone](Error::is_gone).

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{CgroupVersion, MemInfo, MemoryCgroup, Pressure, SysRoots, read_optional};
use crate::open::descend;
use crate::process::malformed;
use crate::{Error, Result};

/// Flags for opening a group's directory.
const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Magic numbers of the two file systems (`include/uapi/linux/magic.h`).
const CGROUP_V1_MAGIC: u64 = 0x0027_e0eb;
const CGROUP_V2_MAGIC: u64 = 0x6367_7270;

/// The result of a reclaim request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReclaimResult {
    /// The requested amount was reclaimed, or more.
    All,
    /// Less was reclaimed: the kernel found no more to reclaim now.
    Part,
    /// Nothing was requested. The sentence says why, and what would help.
    Refused(String),
}

/// A memory cgroup, held open.
#[derive(Debug)]
pub struct HeldGroup {
    version: CgroupVersion,
    path: PathBuf,
    directory: OwnedFd,
    id: u64,
}

impl HeldGroup {
    /// Opens the group in the directory `path`, an absolute path without links.
    ///
    /// # Errors
    ///
    /// If there is none, if a link is on the way, or if the directory is not a control group of
    /// that version.
    #[allow(
        clippy::disallowed_methods,
        reason = "a directory of the kernel's own, which is checked below; no link is followed"
    )]
    pub fn open(version: CgroupVersion, path: &Path) -> Result<Self> {
        let failed = |call, error: Errno| Error::call(call, path, error);
        let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let directory = match rustix::fs::openat2(CWD, path, DIRECTORY_FLAGS, Mode::empty(), no_links) {
            // Missing (before Linux 5.6), or blocked by a filter that does not know it.
            Err(Errno::NOSYS | Errno::PERM) => open_by_names(path).map_err(|error| failed("open", error))?,
            other => other.map_err(|error| failed("openat2", error))?,
        };
        let kind = rustix::fs::fstatfs(&directory).map_err(|error| failed("fstatfs", error))?;
        let expected = match version {
            CgroupVersion::V1 => CGROUP_V1_MAGIC,
            CgroupVersion::V2 => CGROUP_V2_MAGIC,
        };
        if u64::try_from(kind.f_type).ok() != Some(expected) {
            return Err(malformed(path, "a directory that is no control group"));
        }
        let id = rustix::fs::fstat(&directory).map_err(|error| failed("fstat", error))?.st_ino;
        Ok(Self { version, path: path.to_path_buf(), directory, id })
    }

    /// Returns the group's number: a later group at the same path has another one.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the group's figures. The effective limit is its own; groups above are not
    /// considered.
    pub fn figures(&self) -> Result<MemoryCgroup> {
        let figures = MemoryCgroup::at(self.version, &self.descriptor_path())?;
        Ok(MemoryCgroup { directory: self.path.clone(), ..figures })
    }

    /// Returns `memory.high` in bytes, at which its tasks are slowed down; `None` if there is none,
    /// and on version 1.
    pub fn high(&self) -> Result<Option<u64>> {
        self.limit("memory.high")
    }

    fn limit(&self, name: &str) -> Result<Option<u64>> {
        let path = self.descriptor_path().join(name);
        match read_optional(&path)?.as_deref().map(str::trim) {
            None | Some("max") => Ok(None),
            Some(limit) => limit.parse().map(Some).map_err(|_| malformed(&self.path.join(name), limit)),
        }
    }

    /// Returns the time that its tasks lost waiting for memory; `None` if that is not measured
    /// (version 1, `psi=0`).
    pub fn memory_pressure(&self) -> Result<Option<Pressure>> {
        match self.version {
            CgroupVersion::V1 => Ok(None),
            CgroupVersion::V2 => Pressure::read_file(&self.descriptor_path().join("memory.pressure")),
        }
    }

    /// Requests the kernel to reclaim about `bytes` of file pages from the group and its
    /// descendants, but no anonymous memory. Waits for the result.
    ///
    /// The kernel takes the pages that it considers least used, clean ones first.
    pub fn reclaim_file(&self, roots: &SysRoots, bytes: u64) -> Result<ReclaimResult> {
        if self.version == CgroupVersion::V1 {
            let why = "control groups of version 1 have no memory.reclaim; version 2 has, since Linux 5.19";
            return Ok(ReclaimResult::Refused(why.to_owned()));
        }
        // Since a release between Linux 6.1 and 6.12 the kernel can exclude anonymous memory. Older
        // ones return "invalid argument".
        let asked = self.write_reclaim(&format!("{bytes} swappiness=0"))?;
        match asked {
            ReclaimReply::Invalid if self.may_swap(roots)? => Ok(ReclaimResult::Refused(
                "this kernel's memory.reclaim knows no swappiness (6.1 does not, 6.12 does), and would page out the program's own memory: \
                 memory.swap.max=0 for the group, or no swap space, keeps it from that"
                    .to_owned(),
            )),
            // Without swap only file pages can be reclaimed.
            ReclaimReply::Invalid => Ok(self.write_reclaim(&bytes.to_string())?.outcome()),
            other => Ok(other.outcome()),
        }
    }

    /// Whether anonymous memory of the group could be paged out.
    fn may_swap(&self, roots: &SysRoots) -> Result<bool> {
        Ok(MemInfo::read(roots)?.swap_total > 0 && self.limit("memory.swap.max")? != Some(0))
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a file of the kernel's own, beneath the directory that was checked"
    )]
    fn write_reclaim(&self, what: &str) -> Result<ReclaimReply> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = || self.path.join("memory.reclaim");
        let opened = rustix::fs::openat(self.directory.as_fd(), "memory.reclaim", flags, Mode::empty());
        let file = match opened {
            Ok(file) => file,
            // A removed group has no files, either.
            Err(Errno::NOENT) if self.exists() => return Ok(ReclaimReply::Missing),
            Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
                return Ok(ReclaimReply::Denied(error));
            }
            Err(error) => return Err(Error::call("open", path(), error)),
        };
        match rustix::io::write(&file, what.as_bytes()) {
            Ok(_) => Ok(ReclaimReply::All),
            Err(Errno::AGAIN) => Ok(ReclaimReply::Part),
            Err(Errno::INVAL) => Ok(ReclaimReply::Invalid),
            // The group of the file was removed meanwhile.
            Err(Errno::NODEV) => Err(Error::call("write", path(), Errno::NOENT)),
            Err(error) => Err(Error::call("write", path(), error)),
        }
    }

    fn exists(&self) -> bool {
        rustix::fs::accessat(
            &self.directory,
            "memory.stat",
            rustix::fs::Access::EXISTS,
            rustix::fs::AtFlags::empty(),
        )
        .is_ok()
    }

    /// Returns the path of the directory by its descriptor, wherever the original path leads now.
    fn descriptor_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }
}

/// Opens a directory one name at a time, without following links.
#[allow(
    clippy::disallowed_methods,
    reason = "a directory of the kernel's own, which is checked by who asks for it; no link is followed"
)]
fn open_by_names(path: &Path) -> rustix::io::Result<OwnedFd> {
    let above = rustix::fs::openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::openat(descend(above, path)?, c".", DIRECTORY_FLAGS, Mode::empty())
}

/// The kernel's answer to a write.
enum ReclaimReply {
    All,
    Part,
    Invalid,
    Missing,
    Denied(Errno),
}

impl ReclaimReply {
    fn outcome(self) -> ReclaimResult {
        match self {
            Self::All => ReclaimResult::All,
            Self::Part => ReclaimResult::Part,
            Self::Invalid => {
                ReclaimResult::Refused("this kernel's memory.reclaim takes no plain number".to_owned())
            }
            Self::Missing => ReclaimResult::Refused(
                "this kernel has no memory.reclaim (Linux 5.19), or the group is the topmost".to_owned(),
            ),
            Self::Denied(error) => ReclaimResult::Refused(format!(
                "memory.reclaim may not be written ({error}): it takes root, whose it is, and control groups that are mounted \
                 for writing"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::MemoryPlace;
    use crate::testing::skip;

    /// Creates a group for this test beside this process's own; `None`, with a sentence, if none
    /// can be created.
    fn own_group(test: &str) -> Option<(CgroupVersion, PathBuf)> {
        let place = MemoryPlace::of(&SysRoots::default(), std::process::id()).unwrap();
        let made = place.and_then(|place| {
            let path = place.top.join(format!("pagekeeper-kernel-{test}-{}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            let has_memory = path.join("memory.stat").exists();
            if !has_memory {
                let _ = std::fs::remove_dir(&path);
            }
            has_memory.then_some((place.version, path))
        });
        if made.is_none() {
            skip(format_args!("{test}: no memory cgroup can be made here"));
        }
        made
    }

    #[test]
    fn a_real_group_is_read_and_asked_and_known_from_its_successor() {
        let Some((version, path)) = own_group("read") else { return };
        let group = HeldGroup::open(version, &path).unwrap();
        let figures = group.figures().unwrap();
        assert_eq!((figures.version, &figures.directory, figures.file), (version, &path, 0));
        // The same values as in the file, line by line.
        let text = std::fs::read_to_string(path.join("memory.stat")).unwrap();
        let prefix = if version == CgroupVersion::V1 { "total_" } else { "" };
        for (name, figure) in [("inactive_file", figures.inactive_file), ("active_file", figures.active_file)]
        {
            assert!(text.lines().any(|line| line == format!("{prefix}{name} {figure}")), "{name}: {text}");
        }
        assert_eq!((figures.events.oom_kill, figures.events.max), (Some(0), Some(0)));
        assert_eq!(group.high().unwrap(), None);
        match (version, group.reclaim_file(&SysRoots::default(), 1 << 20).unwrap()) {
            (CgroupVersion::V1, ReclaimResult::Refused(why)) => {
                assert!(why.contains("version 1"), "{why}");
                assert_eq!(group.memory_pressure().unwrap(), None);
            }
            // The group is empty.
            (CgroupVersion::V2, ReclaimResult::Part | ReclaimResult::Refused(_)) => {}
            other => panic!("{other:?}"),
        }
        std::fs::remove_dir(&path).unwrap();
        assert!(group.figures().is_err());
        assert!(HeldGroup::open(version, &path).unwrap_err().is_gone());
        if version == CgroupVersion::V2 {
            assert!(group.reclaim_file(&SysRoots::default(), 1 << 20).unwrap_err().is_gone());
        }
        std::fs::create_dir(&path).unwrap();
        assert_ne!(HeldGroup::open(version, &path).unwrap().id(), group.id());
        std::fs::remove_dir(&path).unwrap();
    }

    /// A child process that is killed on drop, along with its groups.
    struct Child(std::process::Child, Vec<PathBuf>);

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
            for group in &self.1 {
                let _ = std::fs::remove_dir(group);
            }
        }
    }

    /// The part of `a_group_beside_the_root_of_a_namespace_is_found` that runs inside.
    #[test]
    #[ignore = "runs in another test"]
    fn inside_a_namespace() {
        let pid: u32 = std::env::var("OTHER").unwrap().parse().unwrap();
        let roots = SysRoots::default();
        let shown = roots.proc.cgroup_paths(pid).unwrap();
        assert!(shown.iter().any(|group| group.path.starts_with("/..")), "no namespace: {shown:?}");
        let place = MemoryPlace::of(&roots, pid).unwrap().expect("it is found");
        assert_eq!(place.group, PathBuf::from(std::env::var("GROUP").unwrap()));
        let group = HeldGroup::open(place.version, &place.directory).unwrap();
        assert_eq!(group.id().to_string(), std::env::var("ID").unwrap());
    }

    #[test]
    fn a_group_beside_the_root_of_a_namespace_is_found() {
        let Some((version, path)) = own_group("namespace") else { return };
        let place = MemoryPlace::of(&SysRoots::default(), std::process::id()).unwrap().unwrap();
        let (inner, other) = (path.with_extension("inner"), path);
        std::fs::create_dir(&inner).unwrap();
        let sleep = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let child = Child(sleep, vec![inner.clone(), other.clone()]);
        std::fs::write(other.join("cgroup.procs"), child.0.id().to_string()).unwrap();
        let id = HeldGroup::open(version, &other).unwrap().id();
        let output = std::process::Command::new("sh")
            .args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec unshare --cgroup \"$@\""])
            .arg(&inner)
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "pressure::group::tests::inside_a_namespace"])
            .env("OTHER", child.0.id().to_string())
            .env("GROUP", Path::new("/").join(other.strip_prefix(&place.top).unwrap()))
            .env("ID", id.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn a_link_to_another_group_and_a_directory_like_one_are_refused() {
        let Some((version, path)) = own_group("link") else { return };
        let tree = tempfile::tempdir().unwrap();
        let link = tree.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(HeldGroup::open(version, &link).is_err());
        assert!(HeldGroup::open(version, &link.join("..")).is_err());
        std::fs::write(tree.path().join("memory.reclaim"), "").unwrap();
        let error = HeldGroup::open(version, tree.path()).unwrap_err().to_string();
        assert!(error.contains("no control group"), "{error}");
        assert_eq!(std::fs::read(tree.path().join("memory.reclaim")).unwrap(), b"");
        std::fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn groups_are_opened_by_name_without_links_where_openat2_is_missing() {
        let tree = tempfile::tempdir().unwrap();
        let tree_path = tree.path().canonicalize().unwrap();
        let group = tree_path.join("slice/db");
        std::fs::create_dir_all(&group).unwrap();
        std::os::unix::fs::symlink(tree_path.join("slice"), tree_path.join("link")).unwrap();
        std::os::unix::fs::symlink(&group, tree_path.join("slice/last")).unwrap();
        std::fs::write(tree_path.join("file"), "").unwrap();
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        let opened = open_by_names(&group).unwrap();
        assert_eq!(inode(&opened), std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&group).unwrap()));
        for refused in ["link/db", "slice/last", "slice/../slice/db", "file", "slice/none"] {
            assert!(open_by_names(&tree_path.join(refused)).is_err(), "{refused}");
        }
        // The same result as by the other way of opening.
        if let Some((version, path)) = own_group("names") {
            let id = HeldGroup::open(version, &path).unwrap().id();
            assert_eq!(inode(&open_by_names(&path).unwrap()), id);
            std::fs::remove_dir(&path).unwrap();
        }
    }
}
