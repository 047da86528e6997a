//! The mounts that a process sees (`proc_pid_mountinfo(5)`).
//!
//! Whoever may mount, even in their own user namespace or by fusermount(1), chooses names and
//! options, which may not be UTF-8.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use pagekeeper_text::unescaped_bytes;
use rustix::fs::FileType;

use super::ProcRoot;
use super::reading::each_line;
use crate::{Links, PathHandle, Result};

/// One mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount's ID, as in `mnt_id` of [`FdInfo`](super::FdInfo).
    pub id: u64,
    /// The file system's device as encoded in `st_dev`. On btrfs the files of a subvolume show
    /// another one.
    pub dev: u64,
    /// The mounted directory of the file system: `/` unless it is a bind mount.
    pub root: PathBuf,
    /// The mount point as the process sees it.
    pub point: PathBuf,
    /// The file system's type: `ext4`, `cgroup2` … Invalid UTF-8 (in `fuse.NAME`) is replaced.
    pub kind: String,
    /// The device or other source: `/dev/sda1`.
    pub source: OsString,
    /// The file system's own options, comma-separated, as the kernel escapes them.
    pub options: OsString,
}

impl Mount {
    /// Whether its contents are elsewhere, or produced by a program on reading.
    pub fn is_remote(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "nfs"
                | "nfs4"
                | "cifs"
                | "smb3"
                | "smbfs"
                | "ceph"
                | "9p"
                | "afs"
                | "lustre"
                | "gpfs"
                | "beegfs"
                | "virtiofs"
                | "fuse"
                | "autofs"
        ) || self.kind.starts_with("fuse.")
    }

    /// Whether it depends on a server or a program, which may never answer. `fuseblk` is a local
    /// disk served by a program.
    pub fn may_never_answer(&self) -> bool {
        self.is_remote() || self.kind == "fuseblk" || self.kind.starts_with("fuseblk.")
    }

    /// Whether its file system is on the block device with this number. Of a btrfs on several
    /// devices only one is known.
    pub fn is_on_device(&self, device: u64) -> bool {
        // A FUSE mount may state any source.
        let is_named = || {
            let source = Path::new(&self.source);
            let is_local = source.starts_with("/dev") && !self.may_never_answer();
            is_local.then(|| PathHandle::at(source, Links::Follow).ok()).flatten().is_some_and(|handle| {
                handle.kind() == FileType::BlockDevice && handle.stat().st_rdev == device
            })
        };
        self.dev == device || is_named()
    }

    /// Returns the mount of a path, by its name alone, without contacting a file system.
    pub fn of_path<'a>(mounts: &'a [Self], path: &Path) -> Option<&'a Self> {
        let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
        // Of several mounts at one place the last is visible.
        above.max_by_key(|mount| mount.point.as_os_str().len())
    }

    /// Whether the file system has this option.
    pub fn has_option(&self, name: &str) -> bool {
        self.each_option().any(|option| option == name.as_bytes())
    }

    /// Returns the value of an option written as `NAME=VALUE`.
    pub fn option(&self, name: &str) -> Option<OsString> {
        let value =
            self.each_option().find_map(|option| option.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(OsString::from_vec(unescape(value)))
    }

    fn each_option(&self) -> impl Iterator<Item = &[u8]> {
        self.options.as_bytes().split(|byte| *byte == b',')
    }
}

impl ProcRoot {
    /// Returns the mounts that a process sees.
    pub fn mounts(&self, pid: u32) -> Result<Vec<Mount>> {
        read_mounts(&self.of(pid, "mountinfo"))
    }

    /// Returns the mounts that this process sees.
    pub fn own_mounts(&self) -> Result<Vec<Mount>> {
        read_mounts(&self.path().join("self/mountinfo"))
    }

    /// Returns the mount points of the file system on this block device, as seen by this process
    /// and by the host's first process; empty if there are none.
    pub fn mount_points_of(&self, device: u64) -> Result<Vec<PathBuf>> {
        // Only root can see the first process's mounts.
        let others = self.mounts(1).unwrap_or_default();
        let all = self.own_mounts()?.into_iter().chain(others);
        let mut points: Vec<PathBuf> =
            all.filter(|mount| mount.is_on_device(device)).map(|mount| mount.point).collect();
        points.sort();
        points.dedup();
        Ok(points)
    }

    /// Returns the mount of a file or directory that this process has open; `None` without `/proc`.
    pub fn own_mount_of(&self, open: impl AsFd) -> Option<Mount> {
        let id = self.fd_info(std::process::id(), open.as_fd().as_raw_fd()).ok()?.mount_id?;
        self.own_mounts().ok()?.into_iter().find(|mount| mount.id == id)
    }
}

fn read_mounts(path: &Path) -> Result<Vec<Mount>> {
    let mut mounts = Vec::new();
    each_line(path, |line| {
        mounts.push(parse_line(line)?);
        Some(())
    })?;
    Ok(mounts)
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dev = unescaped_bytes(fields.get(2)?);
    let (major, minor) = dev.split_once(':')?;
    // Optional fields are between the mount's options and a single dash.
    let dash = 6 + fields.get(6..)?.iter().position(|field| *field == b"-")?;
    Some(Mount {
        id: unescaped_bytes(fields[0]).parse().ok()?,
        dev: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
        root: OsString::from_vec(unescape(fields.get(3)?)).into(),
        point: OsString::from_vec(unescape(fields.get(4)?)).into(),
        kind: unescaped_bytes(fields.get(dash + 1)?).into_owned(),
        source: OsString::from_vec(unescape(fields.get(dash + 2)?)),
        options: OsString::from_vec(fields.get(dash + 3)?.to_vec()),
    })
}

/// Decodes the kernel's octal escapes: `\040` is a space.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        if let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = rest {
            plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            plain.push(*first);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_root_is_mounted() {
        let proc = ProcRoot::default();
        let mounts = || proc.own_mounts().unwrap();
        assert!(mounts().iter().any(|mount| mount.point == Path::new("/")));
        // Other tests mount and unmount in between.
        let by_number = || proc.mounts(std::process::id()).unwrap().len();
        assert!((0..1000).any(|_| mounts().len() == by_number()));
    }

    #[test]
    fn optional_fields_and_escapes() {
        let line = b"36 35 98:0 /mnt1 /mnt\\0402\\134x rw,noatime master:1 shared:2 - ext3 /dev/a\\040b rw,errors=continue";
        let mount = parse_line(line).unwrap();
        assert_eq!((mount.id, mount.dev), (36, rustix::fs::makedev(98, 0)));
        assert_eq!(mount.root, Path::new("/mnt1"));
        assert_eq!(mount.point, Path::new("/mnt 2\\x"));
        assert_eq!((mount.kind.as_str(), mount.source.to_str().unwrap()), ("ext3", "/dev/a b"));
        assert!(mount.has_option("rw") && !mount.has_option("errors"));
    }

    #[test]
    fn file_systems_served_by_programs_or_servers_may_hang() {
        for (kind, is_remote, may_never_answer) in [
            ("ext4", false, false),
            ("fuseblk", false, true),
            ("fuseblk.ntfs", false, true),
            ("fuse.sshfs", true, true),
            ("nfs4", true, true),
        ] {
            let mount = parse_line(format!("36 35 98:0 / /mnt rw - {kind} source rw").as_bytes()).unwrap();
            assert_eq!(
                (mount.is_remote(), mount.may_never_answer()),
                (is_remote, may_never_answer),
                "{kind}"
            );
        }
    }

    #[test]
    fn broken_lines_are_malformed() {
        for line in
            [&b"36 35 98:0 / /x rw"[..], b"36 35 98 / /x rw - ext4 a rw", b"36 35 98:0 / /x rw - ext4"]
        {
            assert_eq!(parse_line(line), None);
        }
    }

    #[test]
    fn names_may_be_any_bytes_and_an_odd_line_hides_no_other() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("3")).unwrap();
        let lines = b"36 35 0:40 / /a\xff rw - overlay over\xfflay rw,lowerdir=/l\xff,workdir=/w\\054\n\
            what is this\n37 35 0:41 / /x rw - fuse.\xff f rw\n";
        std::fs::write(tree.path().join("3/mountinfo"), lines).unwrap();
        let mounts = ProcRoot::at(tree.path()).mounts(3).unwrap();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].point.as_os_str().as_bytes(), b"/a\xff");
        assert_eq!(mounts[0].source.as_bytes(), b"over\xfflay");
        assert_eq!(mounts[0].option("lowerdir").unwrap().as_bytes(), b"/l\xff");
        assert_eq!((mounts[0].option("workdir").unwrap(), mounts[0].option("rw")), ("/w,".into(), None));
        assert_eq!(mounts[1].kind, "fuse.\u{fffd}");
        // A kernel with an entirely different format.
        std::fs::write(tree.path().join("3/mountinfo"), "what is this\n").unwrap();
        assert!(ProcRoot::at(tree.path()).mounts(3).unwrap_err().to_string().contains("what is this"));
    }

    #[test]
    fn a_backslash_that_escapes_nothing_stays() {
        assert_eq!(unescape(b"a\\9\\012\\"), b"a\\9\n\\");
    }
}
