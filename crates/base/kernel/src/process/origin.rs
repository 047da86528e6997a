//! The origin of a process: a container created by root, or a user namespace.
//!
//! Root inside a container or user namespace has as many user IDs as the namespace was given, or
//! all of them. Per-user limits could thus be multiplied by thousands, unless these IDs count as
//! one: the container, or the user who created the namespace.
//!
//! Only the outermost namespace below this process's own counts: anybody inside may create further
//! ones.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::ProcRoot;
use crate::sys::nsfs;
use crate::{Error, Inode, Result};

/// The origin of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessOrigin {
    /// This process's namespaces, or none below them.
    Here,
    /// A PID namespace created with root's privileges here: a container. Contains its inode number.
    Container(u64),
    /// A user namespace.
    UserNamespace {
        /// Its inode number.
        namespace: u64,
        /// The user who created it, in this process's user IDs; the overflow ID if they have none
        /// here.
        owner: u32,
    },
}

impl ProcRoot {
    /// Returns the origin of a process. See the module.
    pub fn origin(&self, pid: u32) -> Result<ProcessOrigin> {
        let own_users = self.inode_of_namespace(None, "user")?;
        if let Some(pids) = self.outermost(pid, "pid")? {
            let made_in = nsfs::user_namespace(pids.as_fd()).map_err(|e| self.failed(pid, "pid", e))?;
            if Some(inode(&made_in).map_err(|e| self.failed(pid, "pid", e))?) == own_users {
                return inode(&pids)
                    .map(|inode| ProcessOrigin::Container(inode.ino))
                    .map_err(|e| self.failed(pid, "pid", e));
            }
        }
        let Some(users) = self.outermost(pid, "user")? else { return Ok(ProcessOrigin::Here) };
        let of = || Ok((inode(&users)?.ino, nsfs::owner(users.as_fd())?));
        let (namespace, owner) = of().map_err(|e| self.failed(pid, "user", e))?;
        Ok(ProcessOrigin::UserNamespace { namespace, owner })
    }

    /// Returns a process's outermost namespace below this one's own; `None` if it is in the same,
    /// or in one above.
    #[allow(clippy::disallowed_methods, reason = "of /proc")]
    fn outermost(&self, pid: u32, kind: &str) -> Result<Option<OwnedFd>> {
        let own = self.inode_of_namespace(None, kind)?;
        if own.is_none() || self.inode_of_namespace(Some(pid), kind)? == own {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = self.of(pid, &format!("ns/{kind}"));
        let mut namespace =
            rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| self.failed(pid, kind, e))?;
        // Linux nests at most 32 of them.
        loop {
            let above = match nsfs::parent(namespace.as_fd()) {
                Ok(above) => above,
                Err(Errno::PERM) => return Ok(None),
                Err(error) => return Err(self.failed(pid, kind, error)),
            };
            if Some(inode(&above).map_err(|e| self.failed(pid, kind, e))?) == own {
                return Ok(Some(namespace));
            }
            namespace = above;
        }
    }

    /// Returns the namespace of a kind that a process, or this one, is in; `None` if the kernel
    /// lacks that kind.
    fn inode_of_namespace(&self, pid: Option<u32>, kind: &str) -> Result<Option<Inode>> {
        let path = match pid {
            Some(pid) => self.of(pid, &format!("ns/{kind}")),
            None => self.path().join("self/ns").join(kind),
        };
        match rustix::fs::stat(&path) {
            Ok(stat) => Ok(Some(Inode { dev: stat.st_dev, ino: stat.st_ino })),
            Err(Errno::NOENT) if pid.is_none_or(|pid| self.exists(pid)) => Ok(None),
            Err(error) => Err(Error::call("stat", path, error)),
        }
    }

    fn failed(&self, pid: u32, kind: &str, error: Errno) -> Error {
        Error::call("ioctl", self.of(pid, &format!("ns/{kind}")), error)
    }
}

fn inode(namespace: &OwnedFd) -> rustix::io::Result<Inode> {
    rustix::fs::fstat(namespace).map(|stat| Inode { dev: stat.st_dev, ino: stat.st_ino })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    /// A program started by `words`, and the process that prints its ID (in a mounted `/proc`) once
    /// it is ready.
    struct Started(Child);

    impl Drop for Started {
        fn drop(&mut self) {
            // Both calls fail only if the process has ended already.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Returns the origin of a command's final process, which prints a line once it is ready.
    fn origin(words: &[&str]) -> (Started, u32, ProcessOrigin) {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).args(words).args(["sh", "-c", "echo; exec sleep 600"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let child = Started(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "{words:?}");
        // The sleeping process is the last of its descendants.
        let proc = ProcRoot::default();
        let mut pid = child.0.id();
        let parent = |pid: u32| proc.stat(pid).map(|stat| stat.parent);
        while let Some(below) =
            proc.pids().unwrap().into_iter().find(|other| parent(*other).ok() == Some(pid))
        {
            pid = below;
        }
        let origin = proc.origin(pid).unwrap();
        (child, pid, origin)
    }

    fn can_run(what: &str) -> bool {
        let root = rustix::process::geteuid().is_root();
        let made = Command::new("setpriv")
            .args(["--reuid", "54321", "--regid", "54321", "--clear-groups", "--", "unshare", "-U", "true"])
            .output();
        let can = root && made.is_ok_and(|made| made.status.success());
        if !can {
            crate::testing::skip(format_args!("{what}: needs root, setpriv, and unshare for any user"));
        }
        can
    }

    #[test]
    fn the_root_of_a_user_namespace_is_its_creator() {
        if !can_run("origins of processes") {
            return;
        }
        let proc = ProcRoot::default();
        assert_eq!(proc.origin(std::process::id()).unwrap(), ProcessOrigin::Here);
        let user = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "--"];
        let (_user, _, found) = origin(&user);
        assert_eq!(found, ProcessOrigin::Here);
        let owner = |found| match found {
            ProcessOrigin::UserNamespace { owner, .. } => owner,
            ProcessOrigin::Here | ProcessOrigin::Container(_) => panic!("{found:?}"),
        };
        // With nested namespaces, which do not matter.
        let (_one, _, found) = origin(&[&user[..], &["unshare", "-U", "-r", "unshare", "-U", "-r"]].concat());
        assert_eq!(owner(found), 54321);
        let (_two, _, found) =
            origin(&[&user[..], &["unshare", "-U", "-r", "-p", "-f", "--kill-child"]].concat());
        assert_eq!(owner(found), 54321, "a PID namespace of a user's own is no container of root's");
    }

    #[test]
    fn all_ids_that_a_container_was_given_are_one_container() {
        if !can_run("origins of processes in containers") {
            return;
        }
        // Created by root, with its own IDs: another user in it may create another namespace.
        let (child, first, found) = origin(&["unshare", "-U"]);
        let ProcessOrigin::UserNamespace { owner: 0, .. } = found else { panic!("{found:?}") };
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{first}/{map}"), "0 100000 65536").unwrap();
        }
        let first = first.to_string();
        let seven = ["nsenter", "-t", &first, "-U", "-S", "7", "-G", "0"];
        let (_seven, pid, other) = origin(&seven);
        assert_eq!(ProcRoot::default().users(pid).unwrap().one(), Some(100_007));
        assert_eq!(other, found);
        let within = ["unshare", "-U", "-r", "-p", "-f", "--kill-child"];
        let (_own, _, other) = origin(&[&seven[..], &within].concat());
        assert_eq!(other, found);
        drop(child);
        // With all IDs: what it does with them is up to the container.
        let (_child, first, found) = origin(&["unshare", "-p", "-f", "--kill-child"]);
        let ProcessOrigin::Container(_) = found else { panic!("{found:?}") };
        let first = first.to_string();
        let user = ["setpriv", "--reuid", "7", "--regid", "7", "--clear-groups", "--"];
        let seven = [&["nsenter", "-t", &first, "-p"][..], &user].concat();
        let (_seven, pid, other) = origin(&seven);
        assert_eq!(ProcRoot::default().users(pid).unwrap().one(), Some(7));
        assert_eq!(other, found);
        let (_own, _, other) = origin(&[&seven[..], &within].concat());
        assert_eq!(other, found);
    }
}
