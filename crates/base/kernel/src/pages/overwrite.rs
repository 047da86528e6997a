//! Whether writes over the blocks of a file go in place or take new blocks, which a full disk does
//! not have.
//!
//! Sources of the facts: `FS_NOCOW_FL` of `ioctl_iflags`(2) and `FIEMAP_EXTENT_SHARED` of
//! `linux/fiemap.h`. Btrfs writes every overwrite to new blocks, except in files with
//! `FS_NOCOW_FL`. XFS, and btrfs in such files, do so for blocks that a snapshot or another file
//! (`cp --reflink`) shares.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::IFlags;

use crate::hang::announce_from;
use crate::sys::fiemap;
use crate::{Error, FileSystem, Result};

const FIEMAP_EXTENT_LAST: u32 = 0x1;
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

/// Returns whether writes over the blocks that the file has are known to go in place: on ext4, on
/// XFS, and on btrfs if the file is exempt from copying on write, as long as no block is shared.
/// False for all file systems of which nothing is known.
///
/// A snapshot or a copy with `--reflink` may share the blocks at any time later. `path` is used in
/// errors only.
///
/// ```
/// let file = std::fs::File::open("/dev/shm")?;
/// assert!(!pagekeeper_kernel::is_overwritten_in_place(&file, "/dev/shm".as_ref())?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn is_overwritten_in_place(file: impl AsFd, path: &Path) -> Result<bool> {
    match FileSystem::of(&file, path)? {
        FileSystem::Ext => Ok(true),
        FileSystem::Xfs => Ok(!has_shared_extents(file, path)?),
        FileSystem::Btrfs => {
            let _call = announce_from(file.as_fd(), path)?;
            let flags =
                rustix::fs::ioctl_getflags(&file).map_err(|e| Error::call("FS_IOC_GETFLAGS", path, e))?;
            Ok(flags.contains(IFlags::NOCOW) && !has_shared_extents(file, path)?)
        }
        _ => Ok(false),
    }
}

fn has_shared_extents(file: impl AsFd, path: &Path) -> Result<bool> {
    let _call = announce_from(file.as_fd(), path)?;
    let mut start = 0;
    loop {
        let extents =
            fiemap::extents_from(file.as_fd(), start).map_err(|e| Error::call("FS_IOC_FIEMAP", path, e))?;
        if extents.iter().any(|extent| extent.flags & FIEMAP_EXTENT_SHARED != 0) {
            return Ok(true);
        }
        match extents.last() {
            Some(last) if last.flags & FIEMAP_EXTENT_LAST == 0 => start = last.logical + last.length,
            _ => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use pagekeeper_testing::Mounted;
    use rustix::fs::IFlags;

    use super::*;

    fn is_in_place(path: &Path) -> bool {
        is_overwritten_in_place(File::open(path).unwrap(), path).unwrap()
    }

    #[test]
    fn blocks_are_the_files_own_until_it_is_copied() {
        for kind in ["ext4", "xfs", "btrfs"] {
            let Some(mounted) = Mounted::new(kind) else { continue };
            let at = |name: &str| mounted.path().join(name);
            std::fs::create_dir(at("exempt")).unwrap();
            if kind == "btrfs" {
                std::fs::write(at("plain"), vec![1; 1 << 20]).unwrap();
                assert!(!is_in_place(&at("plain")));
                // Both files get the flag of their directory.
                rustix::fs::ioctl_setflags(File::open(at("exempt")).unwrap(), IFlags::NOCOW).unwrap();
            }
            let [file, copy] = ["exempt/file", "exempt/copy"].map(at);
            std::fs::write(&file, vec![1; 1 << 20]).unwrap();
            File::open(&file).unwrap().sync_all().unwrap();
            assert!(is_in_place(&file), "{kind}");
            let copied = Command::new("cp").arg("--reflink=always").args([&file, &copy]).output().unwrap();
            assert_eq!(copied.status.success(), kind != "ext4", "{copied:?}");
            if kind == "ext4" {
                continue;
            }
            assert!(!is_in_place(&file) && !is_in_place(&copy), "{kind}");
        }
    }

    #[test]
    fn files_with_many_extents_are_read_to_their_end() {
        use std::os::unix::fs::FileExt;
        let Some(mounted) = Mounted::new("xfs") else { return };
        let [file, copy] = ["file", "copy"].map(|name| mounted.path().join(name));
        let holes = File::create(&file).unwrap();
        for block in 0..300 {
            holes.write_all_at(&[1; 4096], block * 8192).unwrap();
        }
        holes.sync_all().unwrap();
        assert!(is_in_place(&file));
        std::fs::write(&copy, vec![2; 4096]).unwrap();
        let mut xfs_io = Command::new("xfs_io");
        xfs_io.args(["-c", &format!("reflink {} 0 {} 4096", copy.display(), 300 * 8192)]).arg(&file);
        let Ok(status) = xfs_io.status() else { return pagekeeper_testing::skip("xfs_io is not installed.") };
        assert!(status.success());
        assert!(!is_in_place(&file));
    }
}
