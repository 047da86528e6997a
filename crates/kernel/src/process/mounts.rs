//! The mounts a process sees (`proc_pid_mountinfo(5)`).

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{ProcRoot, malformed, read};
use crate::Result;

/// One mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount's id, as `mnt_id` of [`FdInfo`](super::FdInfo) names it.
    pub id: u64,
    /// The file system's device as `st_dev` encodes it. On btrfs the files of a subvolume show another.
    pub dev: u64,
    /// The directory of the file system that is mounted: `/` unless a bind mount.
    pub root: PathBuf,
    /// Where it is mounted, as the process sees it.
    pub point: PathBuf,
    /// The file system's type: `ext4`, `cgroup2` …
    pub kind: String,
    /// The device or other source: `/dev/sda1`.
    pub source: OsString,
    /// The file system's own options, by commas.
    pub options: String,
}

impl Mount {
    /// Whether the file system has this option.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }
}

impl ProcRoot {
    /// The mounts a process sees.
    pub fn mounts(&self, pid: u32) -> Result<Vec<Mount>> {
        read_mounts(&self.of(pid, "mountinfo"))
    }

    /// The mounts this process sees.
    pub fn own_mounts(&self) -> Result<Vec<Mount>> {
        read_mounts(&self.path().join("self/mountinfo"))
    }

    /// The mount that a file or directory is on which this process has open; nothing where it has no `/proc`.
    pub fn own_mount_of(&self, open: impl AsFd) -> Option<Mount> {
        let id = self.fd_info(std::process::id(), open.as_fd().as_raw_fd()).ok()?.mount_id?;
        self.own_mounts().ok()?.into_iter().find(|mount| mount.id == id)
    }
}

fn read_mounts(path: &Path) -> Result<Vec<Mount>> {
    read(path)?
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| parse_line(line).ok_or_else(|| malformed(path, line)))
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let text = |field: &[u8]| std::str::from_utf8(field).ok().map(String::from);
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    // Optional fields stand between the mount's options and a lone dash.
    let dash = 6 + fields.get(6..)?.iter().position(|field| *field == b"-")?;
    Some(Mount {
        id: text(fields[0])?.parse().ok()?,
        dev: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
        root: OsString::from_vec(unescape(fields.get(3)?)).into(),
        point: OsString::from_vec(unescape(fields.get(4)?)).into(),
        kind: text(fields.get(dash + 1)?)?,
        source: OsString::from_vec(unescape(fields.get(dash + 2)?)),
        options: text(fields.get(dash + 3).copied().unwrap_or_default())?,
    })
}

/// Undoes the kernel's octal escapes: `\040` is a space.
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
    fn broken_lines_are_malformed() {
        for line in
            [&b"36 35 98:0 / /x rw"[..], b"36 35 98 / /x rw - ext4 a rw", b"36 35 98:0 / /x rw - ext4"]
        {
            assert_eq!(parse_line(line), None);
        }
    }

    #[test]
    fn a_backslash_that_escapes_nothing_stays() {
        assert_eq!(unescape(b"a\\9\\012\\"), b"a\\9\n\\");
    }
}
