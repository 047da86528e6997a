//! Which file system a file is on: how tracing names it, and which backing device it has.
//!
//! Found out by one file of each, since stat(2) shows for each subvolume of a btrfs a device of its own.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use pagekeeper_kernel::pressure::{BackingDevice, SysRoots};
use pagekeeper_kernel::{Inode, InspectedFile, Links};
use pagekeeper_trace::traced_inode;

use crate::visibility::{GapKind, VisibilityGaps};

/// The file systems met so far, by `st_dev` of their files.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    traced: HashMap<u64, u64>,
    /// A file of each, in this snapshot.
    examples: BTreeMap<u64, PathBuf>,
}

impl Devices {
    /// How tracing names a file; `reach` is a path by which it can be opened.
    pub(crate) fn traced(&mut self, roots: &SysRoots, inode: Inode, reach: &Path) -> Inode {
        if self.examples.contains_key(&inode.dev)
            && let Some(&dev) = self.traced.get(&inode.dev)
        {
            return Inode { dev, ..inode };
        }
        // If it can't be opened, perhaps the next file of the file system can.
        let Ok(file) = InspectedFile::open(reach, Links::Follow) else { return inode };
        self.examples.insert(inode.dev, reach.to_path_buf());
        // On overlayfs no name is right: its own does no harm.
        let find = || traced_inode(roots, &file, reach).map_or(inode.dev, |traced| traced.dev);
        let dev = *self.traced.entry(inode.dev).or_insert_with(find);
        Inode { dev, ..inode }
    }

    /// The backing devices of the files of this snapshot, by the device that tracing names.
    pub(crate) fn take_backing(
        &mut self,
        roots: &SysRoots,
        gaps: &mut VisibilityGaps,
    ) -> Vec<(u64, BackingDevice)> {
        let mut found = BTreeMap::new();
        for (dev, path) in std::mem::take(&mut self.examples) {
            let traced = self.traced.get(&dev).copied().unwrap_or(dev);
            let device = InspectedFile::open(&path, Links::Follow)
                .and_then(|file| BackingDevice::for_file(roots, &file, &path));
            match device {
                Ok(Some(device)) => drop(found.insert(traced, device)),
                Ok(None) => {}
                Err(error) => gaps.failed(GapKind::Other, &error),
            }
        }
        found.into_iter().collect()
    }
}
