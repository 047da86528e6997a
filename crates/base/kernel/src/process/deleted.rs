//! Determines whether a name that the kernel shows for an open or mapped file still leads to it.
//!
//! The kernel appends ` (deleted)` to the path of an unlinked file, but a file's real name may also
//! end so.
//!
//! Invariant: no file system that might never answer is contacted. While an open file has its name,
//! that name and those of the directories above it are in the kernel's cache, and are looked up
//! there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::Inode;

const DELETED_MARK: &[u8] = b" (deleted)";

/// Returns the name without the kernel's mark, if it ends with it.
pub(super) fn strip_mark(text: &[u8]) -> Option<&[u8]> {
    text.strip_suffix(DELETED_MARK)
}

/// Returns the path that `text` means, and whether it no longer leads to that inode.
///
/// `links` is the inode's link count if known; `root` is the process's root directory.
pub(super) fn resolve_name(text: &[u8], inode: Inode, links: Option<u32>, root: &Path) -> (PathBuf, bool) {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let Some(stripped) = strip_mark(text) else {
        return (path(text), links == Some(0));
    };
    if links != Some(0) {
        // Either the file really has this name, or this one of its names was removed. The kernel's
        // paths contain no symbolic links, so this lookup can't leave `root`.
        if look_up(root, text, inode.dev).is_some_and(|stat| stat.stx_ino == inode.ino) {
            return (path(text), false);
        }
    }
    (path(stripped), true)
}

/// Looks up the current target of an open or mapped file's name, without contacting a file system
/// that might never answer; `dev` is the file's device.
#[allow(clippy::disallowed_methods, reason = "only references to it, inside the root of the process")]
pub(super) fn look_up(root: &Path, text: &[u8], dev: u64) -> Option<Statx> {
    let handle = OFlags::PATH | OFlags::CLOEXEC;
    let base = rustix::fs::openat(CWD, root, handle | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let below = beneath(Path::new("."), text);
    let look_up = |resolve: ResolveFlags| {
        let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(&base, &below, handle | OFlags::NOFOLLOW, Mode::empty(), resolve)
    };
    let found = match look_up(ResolveFlags::CACHED) {
        // On a disk, an uncached name may be read. Other devices have no major number (FUSE, NFS)
        // and would need a request to a server each time: the name then counts as gone.
        Err(Errno::AGAIN | Errno::INVAL) if rustix::fs::major(dev) != 0 => look_up(ResolveFlags::empty()),
        found => found,
    };
    match found {
        Ok(found) => {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            rustix::fs::statx(found, c"", flags, StatxFlags::BASIC_STATS).ok()
        }
        // The call is missing before Linux 5.6, or blocked by a filter that does not know it.
        Err(Errno::NOSYS | Errno::PERM) if rustix::fs::major(dev) != 0 => {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::statx(base, &below, flags, StatxFlags::BASIC_STATS).ok()
        }
        Err(_) => None,
    }
}

/// Returns `path` beneath `root`.
pub(super) fn beneath(root: &Path, path: &[u8]) -> PathBuf {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    root.join(OsStr::from_bytes(&path[start..]))
}

/// Whether a path shown by the kernel can't be a file with its own page cache: sockets, pipes,
/// anonymous inodes and device nodes. None of these start with a slash, except for asynchronous I/O
/// rings, device buffers and nodes in `/dev`; `/dev/shm` contains files.
pub(super) fn is_no_file(text: &[u8]) -> bool {
    let name = strip_mark(text).unwrap_or(text);
    !text.starts_with(b"/")
        || (text.starts_with(b"/dev/") && !text.starts_with(b"/dev/shm/"))
        || name == b"/[aio]"
        || name.starts_with(b"/dmabuf:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_really_named_deleted_is_there() {
        let root = tempfile::tempdir().unwrap();
        let name = root.path().join("x (deleted)");
        std::fs::write(&name, b"1").unwrap();
        let meta = std::fs::metadata(&name).unwrap();
        let ino = |ino| Inode { dev: meta.dev(), ino };
        let (same, other) = (ino(meta.ino()), ino(meta.ino() + 1));
        assert_eq!(resolve_name(b"/x (deleted)", same, Some(1), root.path()), ("/x (deleted)".into(), false));
        assert_eq!(resolve_name(b"/x (deleted)", same, None, root.path()), ("/x (deleted)".into(), false));
        // Another file took that name, or none has it: the mark was the kernel's.
        assert_eq!(resolve_name(b"/x (deleted)", other, Some(1), root.path()), ("/x".into(), true));
        assert_eq!(resolve_name(b"/y (deleted)", same, Some(1), root.path()), ("/y".into(), true));
        // The file really had this name and is deleted now: one mark is removed.
        assert_eq!(
            resolve_name(b"/x (deleted) (deleted)", same, Some(0), root.path()),
            ("/x (deleted)".into(), true)
        );
    }

    #[test]
    fn an_unmarked_name_is_gone_only_without_links() {
        let (root, inode) = (Path::new("/"), Inode { dev: 1, ino: 1 });
        assert_eq!(resolve_name(b"/y", inode, Some(0), root), ("/y".into(), true));
        assert_eq!(resolve_name(b"/y", inode, Some(1), root), ("/y".into(), false));
        assert_eq!(resolve_name(b"/y", inode, None, root), ("/y".into(), false));
    }

    #[test]
    fn names_that_belong_to_no_file() {
        for text in [
            &b"socket:[12]"[..],
            b"pipe:[3]",
            b"anon_inode:[eventpoll]",
            b"/dev/null",
            b"/dev/zero (deleted)",
            b"/[aio] (deleted)",
            b"/dmabuf:",
        ] {
            assert!(is_no_file(text));
        }
        for text in [&b"/dev/shm/x"[..], b"/var/lib/mysql/ibdata1", b"/memfd:x (deleted)", b"/d/[aio]"] {
            assert!(!is_no_file(text));
        }
    }
}
