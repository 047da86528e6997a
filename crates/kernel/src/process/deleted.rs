//! Whether a name that the kernel shows for an open or mapped file still leads to it.
//!
//! The kernel appends ` (deleted)` to the path of an unlinked file, and a file may really be named so.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const MARK: &[u8] = b" (deleted)";

/// The name without the kernel's mark, if it ends in it.
pub(super) fn strip_mark(text: &[u8]) -> Option<&[u8]> {
    text.strip_suffix(MARK)
}

/// The path that `text` means, and whether that name no longer leads to inode number `ino`.
///
/// `links` is the inode's link count where known; `root` is the process's root directory.
pub(super) fn named(text: &[u8], ino: u64, links: Option<u32>, root: &Path) -> (PathBuf, bool) {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let Some(stripped) = strip_mark(text) else {
        return (path(text), links == Some(0));
    };
    if links != Some(0) {
        // Either the file is really named so, or this one of its names was removed. The kernel's paths hold no
        // symbolic links, so that this lookup can't leave `root`.
        if rustix::fs::lstat(beneath(root, text)).is_ok_and(|stat| stat.st_ino == ino) {
            return (path(text), false);
        }
    }
    (path(stripped), true)
}

/// `path` beneath `root`.
pub(super) fn beneath(root: &Path, path: &[u8]) -> PathBuf {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    root.join(OsStr::from_bytes(&path[start..]))
}

/// Whether a path shown by the kernel can't be a file with a page cache of its own: sockets, pipes, anonymous inodes
/// (none of which start with a slash) and device nodes. `/dev/shm` holds files.
pub(super) fn is_no_file(text: &[u8]) -> bool {
    !text.starts_with(b"/") || (text.starts_with(b"/dev/") && !text.starts_with(b"/dev/shm/"))
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
        let ino = std::fs::metadata(&name).unwrap().ino();
        assert_eq!(named(b"/x (deleted)", ino, Some(1), root.path()), ("/x (deleted)".into(), false));
        assert_eq!(named(b"/x (deleted)", ino, None, root.path()), ("/x (deleted)".into(), false));
        // Another file took that name, or none has it: the mark was the kernel's.
        assert_eq!(named(b"/x (deleted)", ino + 1, Some(1), root.path()), ("/x".into(), true));
        assert_eq!(named(b"/y (deleted)", ino, Some(1), root.path()), ("/y".into(), true));
        // It was really named so and is deleted now: one mark goes.
        assert_eq!(named(b"/x (deleted) (deleted)", 1, Some(0), root.path()), ("/x (deleted)".into(), true));
    }

    #[test]
    fn an_unmarked_name_is_gone_only_without_links() {
        let root = Path::new("/");
        assert_eq!(named(b"/y", 1, Some(0), root), ("/y".into(), true));
        assert_eq!(named(b"/y", 1, Some(1), root), ("/y".into(), false));
        assert_eq!(named(b"/y", 1, None, root), ("/y".into(), false));
    }

    #[test]
    fn what_can_be_no_file() {
        for text in [
            &b"socket:[12]"[..],
            b"pipe:[3]",
            b"anon_inode:[eventpoll]",
            b"/dev/null",
            b"/dev/zero (deleted)",
        ] {
            assert!(is_no_file(text));
        }
        for text in [&b"/dev/shm/x"[..], b"/var/lib/mysql/ibdata1", b"/memfd:x (deleted)"] {
            assert!(!is_no_file(text));
        }
    }
}
