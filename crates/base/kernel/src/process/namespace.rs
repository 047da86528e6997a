//! Paths as another process sees them: mount namespaces (containers) and chroots.
//!
//! `/proc/PID/root` leads to the process's root directory in its own mount namespace. A path
//! appended to it is correct as long as it contains no absolute symbolic link: **the kernel
//! resolves absolute links against the root of the caller, not of that process**, so
//! `/proc/PID/root/var/lib/mysql` may end in our own `/data`.
//!
//! Paths that the kernel shows (of descriptors and maps) start at the root of a mount namespace,
//! not of a process: see [`ProcRoot::as_seen_by`]. [`ProcRoot::in_namespace`] serves such paths,
//! which contain no links. [`ProcRoot::open_directory_in_namespace`] serves all others: it resolves
//! links inside the process's root and can't be led out of it.

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use pagekeeper_text::unescaped;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::fds::{inode_of, stat_quietly};
use super::{ProcRoot, malformed};
use crate::hang::announce;
use crate::open::descend;
use crate::{Error, ExpectedFile, PathHandle, Result};

/// Paths as a process sees them; see [`ProcRoot::as_seen_by`].
#[derive(Debug, Clone)]
pub struct PathView {
    /// Its root as the kernel shows it; empty if that can't be read.
    root: PathBuf,
}

impl PathView {
    /// Converts a path that the kernel shows for the process to the process's own view.
    pub fn path(&self, shown: &Path) -> PathBuf {
        match shown.strip_prefix(&self.root) {
            Ok(below) if self.root.has_root() => Path::new("/").join(below),
            _ => shown.to_path_buf(),
        }
    }
}

impl ProcRoot {
    /// Returns the ID of the process's mount namespace.
    pub fn mount_namespace(&self, pid: u32) -> Result<u64> {
        namespace(&self.of(pid, "ns/mnt"))
    }

    /// Whether the process is in the same mount namespace as this one.
    pub fn same_mount_namespace(&self, pid: u32) -> Result<bool> {
        Ok(self.mount_namespace(pid)? == namespace(&self.path().join("self/ns/mnt"))?)
    }

    /// Returns the link to the process's root directory, in whatever namespace or chroot.
    pub fn root(&self, pid: u32) -> PathBuf {
        self.of(pid, "root")
    }

    /// Whether a path means the same to that process and to this one: same mount namespace, same
    /// root directory.
    pub fn same_root(&self, pid: u32) -> Result<bool> {
        let inode = |path: PathBuf| {
            stat_quietly(&path).map(|stat| inode_of(&stat)).map_err(|e| Error::call("stat", path, e))
        };
        Ok(self.same_mount_namespace(pid)? && inode(self.root(pid))? == inode(self.path().join("self/root"))?)
    }

    /// Returns the process if its paths have to be opened through its root, or `None` if they
    /// certainly mean the same to this process. For some processes that is not visible: their paths
    /// then count as different.
    pub fn through(&self, pid: u32) -> Option<u32> {
        (!self.same_root(pid).is_ok_and(|same| same)).then_some(pid)
    }

    /// Converts a path that the kernel shows for the process (of a descriptor, or its working
    /// directory) to the process's own view, from its own root on.
    ///
    /// The kernel shows paths from the root of the mount namespace, even for a process in a
    /// chroot(2).
    pub fn as_seen_by(&self, pid: u32, shown: &Path) -> PathBuf {
        self.view_of(pid).path(shown)
    }

    /// Returns the process's view, for converting several paths: its root is read once.
    ///
    /// ```
    /// use pagekeeper_kernel::process::ProcRoot;
    /// let view = ProcRoot::default().view_of(std::process::id());
    /// assert_eq!(view.path("/etc/passwd".as_ref()), std::path::Path::new("/etc/passwd"));
    /// ```
    pub fn view_of(&self, pid: u32) -> PathView {
        // A process whose root can't be read is not inspected any further either.
        PathView { root: std::fs::read_link(self.root(pid)).unwrap_or_default() }
    }

    /// Converts a path as the process sees it to one that this process can open: unchanged if both
    /// see the same, else behind `/proc/PID/root`. A relative path starts at the process's working
    /// directory.
    ///
    /// Only for paths of [`ProcRoot::as_seen_by`], which contain no symbolic links; see the module
    /// for paths that may. `..` never climbs above the process's root.
    pub fn in_namespace(&self, pid: u32, path: &Path) -> Result<PathBuf> {
        if path.is_relative() {
            let cwd = self.of(pid, "cwd");
            stat_quietly(&cwd).map_err(|e| Error::call("stat", &cwd, e))?;
            return Ok(cwd.join(path));
        }
        if self.same_root(pid)? {
            return Ok(path.to_path_buf());
        }
        let mut seen = self.root(pid);
        let mut depth = 0_usize;
        for component in path.components() {
            match component {
                Component::ParentDir if depth == 0 => continue,
                Component::ParentDir => depth -= 1,
                Component::Normal(_) => depth += 1,
                _ => continue,
            }
            seen.push(component);
        }
        Ok(seen)
    }

    /// Opens a directory by an absolute path as the process sees it, following symbolic links as
    /// the process would: inside its root, never out of it (openat2(2) `RESOLVE_IN_ROOT`, Linux
    /// 5.6).
    ///
    /// A relative path starts at the process's working directory and must not lead out of it. If
    /// openat2 is missing or blocked by a sandbox, no symbolic link is followed, unless the process
    /// has the same root as this one.
    ///
    /// ```
    /// # use pagekeeper_kernel::process::ProcRoot;
    /// # use std::path::Path;
    /// use pagekeeper_kernel::{ExpectedFile, InspectedFile};
    /// use std::os::fd::AsFd;
    ///
    /// let pid = std::process::id();
    /// let directory = ProcRoot::default().open_directory_in_namespace(pid, Path::new("/etc"))?;
    /// let file = InspectedFile::open_in(directory.as_fd(), "passwd", ExpectedFile::Any, "/etc/passwd".into())?;
    /// # Ok::<(), pagekeeper_kernel::Error>(())
    /// ```
    pub fn open_directory_in_namespace(&self, pid: u32, path: &Path) -> Result<OwnedFd> {
        self.handle_in_namespace(pid, path)?.open_directory(ExpectedFile::Any)
    }

    /// Resolves a path of a file or directory as the process sees it, without opening anything.
    /// Works as [`ProcRoot::open_directory_in_namespace`], also with a link at the end.
    #[allow(clippy::disallowed_methods, reason = "only references to it, inside the root of the process")]
    pub fn handle_in_namespace(&self, pid: u32, path: &Path) -> Result<PathHandle> {
        let (start, resolve) = if path.is_absolute() {
            (self.root(pid), ResolveFlags::IN_ROOT)
        } else {
            (self.of(pid, "cwd"), ResolveFlags::BENEATH)
        };
        let handle = OFlags::PATH | OFlags::CLOEXEC;
        let base = rustix::fs::openat(CWD, &start, handle | OFlags::DIRECTORY, Mode::empty())
            .map_err(|e| Error::call("open", &start, e))?;
        let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
        let _call = announce(&start.join(path.strip_prefix("/").unwrap_or(path)))?;
        let found = match rustix::fs::openat2(&base, path, handle, Mode::empty(), resolve) {
            // Without openat2, the targets of links are certain in one case only: the process sees
            // the same as this one.
            Err(Errno::NOSYS | Errno::PERM)
                if path.is_absolute() && self.same_root(pid).is_ok_and(|same| same) =>
            {
                rustix::fs::openat(CWD, path, handle, Mode::empty())
            }
            Err(Errno::NOSYS | Errno::PERM) => descend(base, path),
            other => other,
        };
        PathHandle::of(found.map_err(|e| Error::call("openat2", path, e))?, path.to_path_buf())
    }
}

/// Returns the ID in a namespace link, `mnt:[4026531841]`.
fn namespace(link: &Path) -> Result<u64> {
    let target = std::fs::read_link(link).map_err(|e| Error::call("readlink", link, e))?;
    let text = unescaped(&target);
    let id = text.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']')).and_then(|id| id.parse().ok());
    id.ok_or_else(|| malformed(link, text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InspectedFile, Links, open_directory};
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    /// Creates a process 5 with its own root, beside a `self` with another.
    fn tree(namespaces: (&str, &str)) -> (tempfile::TempDir, ProcRoot) {
        let tree = tempfile::tempdir().unwrap();
        for dir in ["5/ns", "5/root/data/real", "5/cwd/sub", "self/ns", "self/root/data/real", "real"] {
            std::fs::create_dir_all(tree.path().join(dir)).unwrap();
        }
        symlink(namespaces.0, tree.path().join("self/ns/mnt")).unwrap();
        symlink(namespaces.1, tree.path().join("5/ns/mnt")).unwrap();
        std::fs::write(tree.path().join("5/root/data/real/theirs"), b"x").unwrap();
        symlink("/data/real", tree.path().join("5/root/link")).unwrap();
        symlink("../../../../../data/real", tree.path().join("5/root/climbing")).unwrap();
        let proc = ProcRoot::at(tree.path());
        (tree, proc)
    }

    #[test]
    fn own_paths_stay_as_they_are() {
        let proc = ProcRoot::default();
        let own = std::process::id();
        assert!(proc.same_mount_namespace(own).unwrap());
        assert!(proc.mount_namespace(own).unwrap() > 0);
        assert_eq!(proc.in_namespace(own, Path::new("/var/lib")).unwrap(), Path::new("/var/lib"));
        let relative = proc.in_namespace(own, Path::new("src")).unwrap();
        assert_eq!(std::fs::canonicalize(relative).unwrap(), std::env::current_dir().unwrap().join("src"));
    }

    #[test]
    fn another_namespace_or_root_is_behind_the_link() {
        // The same namespace, but another root directory: a chroot.
        for theirs in ["mnt:[2]", "mnt:[1]"] {
            let (tree, proc) = tree(("mnt:[1]", theirs));
            assert_eq!(proc.same_mount_namespace(5).unwrap(), theirs == "mnt:[1]");
            let root = tree.path().join("5/root");
            assert_eq!(proc.in_namespace(5, Path::new("/data/x")).unwrap(), root.join("data/x"));
            assert_eq!(proc.in_namespace(5, Path::new("/../../a/../../b")).unwrap(), root.join("a/../b"));
            assert_eq!(proc.in_namespace(5, Path::new("sub")).unwrap(), tree.path().join("5/cwd/sub"));
        }
    }

    #[test]
    fn an_error_about_a_root_is_never_a_yes() {
        let (tree, proc) = tree(("mnt:[1]", "mnt:[1]"));
        std::fs::remove_dir_all(tree.path().join("self/root")).unwrap();
        symlink(tree.path().join("5/root"), tree.path().join("self/root")).unwrap();
        assert_eq!(proc.through(5), None, "it is known to be the same");
        std::fs::remove_file(tree.path().join("5/ns/mnt")).unwrap();
        assert!(proc.same_root(5).is_err());
        assert_eq!(proc.through(5), Some(5));
        assert!(proc.in_namespace(5, Path::new("/data")).is_err());
    }

    #[test]
    fn shown_paths_begin_at_the_root_of_their_process() {
        let tree = tempfile::tempdir().unwrap();
        for (pid, root) in [("5", "/jail/inner"), ("6", "/")] {
            std::fs::create_dir(tree.path().join(pid)).unwrap();
            symlink(root, tree.path().join(pid).join("root")).unwrap();
        }
        let proc = ProcRoot::at(tree.path());
        for (pid, shown, seen) in [
            (5, "/jail/inner/data", "/data"),
            (5, "/jail/inner", "/"),
            (5, "/jail/inner2/data", "/jail/inner2/data"),
            (6, "/data", "/data"),
            (7, "/data", "/data"),
        ] {
            assert_eq!(proc.as_seen_by(pid, Path::new(shown)), Path::new(seen));
        }
    }

    #[test]
    fn absolute_links_are_resolved_inside_their_root() {
        let (_tree, proc) = tree(("mnt:[1]", "mnt:[2]"));
        for path in ["/data/real", "/link", "/climbing", "/../../link"] {
            let directory = proc.open_directory_in_namespace(5, Path::new(path)).unwrap();
            InspectedFile::open_in(directory.as_fd(), "theirs", ExpectedFile::Any, path.into()).unwrap();
        }
        assert!(proc.open_directory_in_namespace(5, Path::new("sub")).is_ok());
        assert!(proc.open_directory_in_namespace(5, Path::new("../root")).is_err());
        assert!(proc.open_directory_in_namespace(5, Path::new("/missing")).unwrap_err().is_gone());
    }

    #[test]
    fn without_openat2_links_are_not_followed() {
        let (tree, _proc) = tree(("mnt:[1]", "mnt:[2]"));
        let base = open_directory(&tree.path().join("5/root"), Links::Refuse).unwrap();
        let open = |path: &str| {
            let found = descend(base.try_clone().unwrap(), Path::new(path))
                .map_err(|errno| Error::call("open", path, errno))?;
            PathHandle::of(found, path.into())?.open_directory(ExpectedFile::Any)
        };
        open("/data/./real").unwrap();
        for path in ["/link", "/climbing", "/data/../data"] {
            assert!(open(path).is_err());
        }
    }

    #[test]
    fn a_real_container_and_chroot() {
        if !rustix::process::geteuid().is_root() {
            crate::testing::skip("a_real_container_and_chroot: only root may unshare a mount namespace");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("inner")).unwrap();
        // A tmpfs over `inner`, only in the child's namespace.
        let script =
            "mount -t tmpfs none \"$0/inner\" && touch \"$0/inner/theirs\" && echo ready && read -r _";
        let child = std::process::Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .arg(dir.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            crate::testing::skip("a_real_container_and_chroot: unshare(1) is not installed");
            return;
        };
        let mut ready = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut ready)
            .unwrap();
        let proc = ProcRoot::default();
        let pid = child.id();
        let path = dir.path().join("inner/theirs");
        let entered = ready == "ready\n" && !proc.same_mount_namespace(pid).unwrap();
        let seen = proc.in_namespace(pid, &path);
        let opened = proc.open_directory_in_namespace(pid, &dir.path().join("inner"));
        if entered {
            assert!(!path.exists());
            assert!(seen.unwrap().exists());
            InspectedFile::open_in(opened.unwrap().as_fd(), "theirs", ExpectedFile::Any, path).unwrap();
        } else {
            crate::testing::skip("a_real_container_and_chroot: a mount namespace can't be made here");
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
