//! Offsets of the fields that the programs read in this kernel's structs, and the layout of the records that
//! they write.
//!
//! Invariant: a field that a kernel lacks and that is optional (large folios before 5.16, btrfs) is `None`,
//! never a guess.

use std::io;
use std::path::Path;

use super::btf::{Btf, BtfError};
use crate::TraceError;

/// The kernel's description of its types.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// The location of a folio's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolioOrder {
    /// The bit of the flags that marks a folio of several pages.
    pub(crate) head_bit: u32,
    /// The offset of the logarithm of its pages, in the lower five bits of a byte.
    pub(crate) order: u32,
}

/// The location of a subvolume's number, from its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subvolume {
    /// From the inode to the address of its root, which precedes the inode.
    pub(crate) root: i32,
    /// From the root to the number.
    pub(crate) number: u32,
}

/// Offsets of fields, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) folio_mapping: u32,
    pub(crate) folio_index: u32,
    pub(crate) folio_flags: u32,
    pub(crate) folio_order: Option<FolioOrder>,
    pub(crate) mapping_host: u32,
    pub(crate) mapping_pages: u32,
    pub(crate) inode_ino: u32,
    pub(crate) inode_generation: u32,
    pub(crate) inode_mode: u32,
    pub(crate) inode_device: u32,
    pub(crate) inode_super: u32,
    pub(crate) super_dev: u32,
    pub(crate) super_magic: u32,
    pub(crate) subvolume: Option<Subvolume>,
    pub(crate) task_thread: u32,
    pub(crate) task_process: u32,
    pub(crate) task_signal: u32,
    pub(crate) signal_live: u32,
}

impl Offsets {
    /// Returns the offsets for the running kernel.
    pub(crate) fn of_this_kernel() -> Result<Self, TraceError> {
        Self::read(Path::new(VMLINUX))
    }

    fn read(path: &Path) -> Result<Self, TraceError> {
        described(path, Self::of)
    }

    fn of(btf: &Btf<'_>) -> Result<Self, BtfError> {
        // Before Linux 5.16 the tracepoint gives a page.
        let folio = if btf.offset("folio", &["mapping"]).is_ok() { "folio" } else { "page" };
        Ok(Self {
            folio_mapping: btf.offset(folio, &["mapping"])?,
            folio_index: btf.offset(folio, &["index"]).or_else(|_| btf.offset(folio, &["__folio_index"]))?,
            folio_flags: btf.offset(folio, &["flags"])?,
            folio_order: folio_order(btf).ok(),
            mapping_host: btf.offset("address_space", &["host"])?,
            mapping_pages: btf.offset("address_space", &["nrpages"])?,
            inode_ino: btf.offset("inode", &["i_ino"])?,
            inode_generation: btf.offset("inode", &["i_generation"])?,
            inode_mode: btf.offset("inode", &["i_mode"])?,
            inode_device: btf.offset("inode", &["i_rdev"])?,
            inode_super: btf.offset("inode", &["i_sb"])?,
            super_dev: btf.offset("super_block", &["s_dev"])?,
            super_magic: btf.offset("super_block", &["s_magic"])?,
            subvolume: subvolume(btf),
            task_thread: btf.offset("task_struct", &["pid"])?,
            task_process: btf.offset("task_struct", &["tgid"])?,
            task_signal: btf.offset("task_struct", &["signal"])?,
            signal_live: btf.offset("signal_struct", &["live"])?,
        })
    }
}

/// Returns the result of a query of the running kernel's description of its types.
pub(crate) fn described_by_this_kernel<T>(
    ask: impl FnOnce(&Btf<'_>) -> Result<T, BtfError>,
) -> Result<T, TraceError> {
    described(Path::new(VMLINUX), ask)
}

fn described<T>(path: &Path, ask: impl FnOnce(&Btf<'_>) -> Result<T, BtfError>) -> Result<T, TraceError> {
    let bytes = std::fs::read(path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            return TraceError::NoTypes { path: path.to_owned() };
        }
        TraceError::Call { call: "read", what: VMLINUX.to_owned(), source: error }
    })?;
    let answer = Btf::parse(&bytes).and_then(|btf| ask(&btf));
    answer.map_err(|source| TraceError::Types { path: path.to_owned(), source })
}

/// Returns the location of a folio's size. Kernels without folios have no large ones in files on disks.
fn folio_order(btf: &Btf<'_>) -> Result<FolioOrder, BtfError> {
    // Linux 6.6 moved it into the flags of the second page.
    let order = btf.offset("folio", &["_folio_order"]).or_else(|_| btf.offset("folio", &["_flags_1"]))?;
    Ok(FolioOrder { head_bit: btf.constant("PG_head")?, order })
}

/// Returns `None` if btrfs is a module, whose types are described elsewhere: its files are not opened then.
fn subvolume(btf: &Btf<'_>) -> Option<Subvolume> {
    let root = i32::try_from(btf.offset("btrfs_inode", &["root"]).ok()?).ok()?;
    let inode = i32::try_from(btf.offset("btrfs_inode", &["vfs_inode"]).ok()?).ok()?;
    let number = btf.offset("btrfs_root", &["root_key", "objectid"]).ok()?;
    Some(Subvolume { root: root - inode, number })
}

/// A record of the ring buffer: offsets in bytes.
pub(crate) mod record {
    /// The event: [`kind`](super::kind).
    pub(crate) const KIND: i16 = 0;
    pub(crate) const PROCESS: i16 = 4;
    /// The file: device in the kernel's form, generation, inode number.
    pub(crate) const DEV: i16 = 8;
    pub(crate) const GENERATION: i16 = 12;
    pub(crate) const INO: i16 = 16;
    /// In pages.
    pub(crate) const FIRST: i16 = 24;
    /// In pages, or, for a use, the last of them.
    pub(crate) const PAGES: i16 = 32;
    pub(crate) const SUBVOLUME: i16 = 40;
    pub(crate) const MAPPING: i16 = 48;
    /// The inode's type and permissions.
    pub(crate) const MODE: i16 = 56;
    /// For an addition, whether the file had no other pages; for a use, whether its process is followed; for a
    /// beginning, the parent.
    pub(crate) const OTHER: i16 = 60;
    pub(crate) const SIZE: i16 = 64;
    /// For a process's event its name, at the place of the file in other records.
    pub(crate) const NAME: i16 = 16;
    pub(crate) const NAME_BYTES: i16 = 16;
}

/// Kinds of records.
pub(crate) mod kind {
    pub(crate) const ADDED: i32 = 1;
    pub(crate) const USED: i32 = 2;
    pub(crate) const BEGAN: i32 = 3;
    pub(crate) const LEFT: i32 = 4;
    pub(crate) const ENDED: i32 = 5;
    pub(crate) const DIRTIED: i32 = 6;
}

/// The values in the table of names.
pub(crate) mod named {
    pub(crate) const STREAM: u32 = 1;
    pub(crate) const NEVER: u32 = 2;
}

/// Counters of events lost for lack of room: indexes.
pub(crate) mod lost {
    /// Pages that were added.
    pub(crate) const PAGES: i32 = 0;
    /// Events of processes, and uses by followed processes.
    pub(crate) const OTHERS: i32 = 1;
    /// Uses by processes that are not followed.
    pub(crate) const USES: i32 = 2;
    /// Writes to clean pages by followed processes.
    pub(crate) const WRITES: i32 = 3;
    pub(crate) const COUNT: u32 = 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_describes_what_is_read() {
        if !Path::new(VMLINUX).exists() {
            eprintln!("SKIPPED: this_kernel_describes_what_is_read needs a kernel with BTF");
            return;
        }
        let offsets = Offsets::of_this_kernel().unwrap();
        assert!(offsets.folio_order.is_some() && offsets.inode_ino > 0, "{offsets:?}");
        let missing = Offsets::read(Path::new("/no/such/vmlinux")).unwrap_err();
        assert!(missing.to_string().contains("/no/such/vmlinux"), "{missing}");
    }
}
