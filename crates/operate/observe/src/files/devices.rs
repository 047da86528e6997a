//! File systems of files: the name of each in tracing, and its backing device.
//!
//! One file of each file system is examined, because stat(2) shows a separate device for each
//! subvolume of a btrfs.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use pagekeeper_catalog::Party;
use pagekeeper_kernel::pressure::{BackingDevice, SysRoots};
use pagekeeper_kernel::{Inode, Links, PathHandle};
use pagekeeper_trace::traced_inode;

use crate::visibility::{GapKind, VisibilityGaps};

/// The file systems seen so far, by `st_dev` of their files.
///
/// No file is opened: a reference to one is enough.
#[derive(Debug, Default)]
pub(crate) struct DeviceTable {
    traced: HashMap<u64, u64>,
    /// A file of each file system, in this snapshot.
    examples: BTreeMap<u64, PathHandle>,
}

impl DeviceTable {
    /// Returns a file's identity in tracing. `reach` is a path that leads to it, without links
    /// except those of `/proc/PID` itself.
    pub(crate) fn traced(&mut self, roots: &SysRoots, inode: Inode, reach: &Path) -> Inode {
        if self.examples.contains_key(&inode.dev)
            && let Some(&dev) = self.traced.get(&inode.dev)
        {
            return Inode { dev, ..inode };
        }
        // If it can't be reached, or another file has its name now, perhaps the next one of the
        // file system can.
        let handle = PathHandle::at(reach, Links::RefuseAll).ok().filter(|handle| handle.inode() == inode);
        let Some(handle) = handle else { return inode };
        // On overlayfs no name is right; its own does no harm.
        let find = || traced_inode(roots, &handle, reach).map_or(inode.dev, |traced| traced.dev);
        let dev = *self.traced.entry(inode.dev).or_insert_with(find);
        self.examples.insert(inode.dev, handle);
        Inode { dev, ..inode }
    }

    /// Returns the backing devices of the files of this snapshot, by the device in tracing.
    pub(crate) fn take_backing(
        &mut self,
        roots: &SysRoots,
        gaps: &mut VisibilityGaps,
    ) -> Vec<(u64, BackingDevice)> {
        let mut found = BTreeMap::new();
        for (dev, handle) in std::mem::take(&mut self.examples) {
            let traced = self.traced.get(&dev).copied().unwrap_or(dev);
            match BackingDevice::for_file(roots, &handle, handle.path()) {
                Ok(Some(device)) => drop(found.insert(traced, device)),
                Ok(None) => {}
                Err(error) => gaps.failed(Party::Unknown, GapKind::Other, &error),
            }
        }
        found.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::disk_dir;
    use pagekeeper_kernel::InspectedFile;
    use pagekeeper_testing::OpenCounter;

    #[test]
    fn the_device_under_a_file_is_found_without_opening_any() {
        let dir = disk_dir();
        let [path, decoy] = ["table", "decoy"].map(|name| dir.path().join(name));
        std::fs::write(&path, b"rows").unwrap();
        std::fs::write(&decoy, b"secret").unwrap();
        let [inode, other] =
            [&path, &decoy].map(|path| InspectedFile::open(path, Links::Refuse).unwrap().inode());
        let opens = [&path, &decoy].map(|path| OpenCounter::of(path));
        let (roots, mut devices) = (SysRoots::default(), DeviceTable::default());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&decoy, &path).unwrap();
        assert_eq!(devices.traced(&roots, inode, &path), inode, "a link has its name now");
        assert_eq!(devices.traced(&roots, inode, &decoy), inode, "another file is there");
        assert!(devices.examples.is_empty());
        assert_eq!(devices.traced(&roots, other, &decoy).ino, other.ino);
        assert_eq!(devices.examples.len(), 1);
        let mut gaps = VisibilityGaps::default();
        devices.take_backing(&roots, &mut gaps);
        assert!(gaps.into_gaps().is_empty());
        assert!(!opens.iter().any(OpenCounter::any));
    }
}
