//! Offsets of the fields that the programs read in this kernel's structs, and the layout of the
//! records that they write.
//!
//! Invariant: a field that a kernel lacks and that is optional (large folios before 5.16, btrfs) is
//! `None`, never a guess.

use std::io;
use std::path::Path;

use super::btf::{Btf, BtfError};
use crate::TraceError;

/// The kernel's description of its types.
const KERNEL_BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

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
pub(crate) struct SubvolumeOffsets {
    /// From the inode to the address of its root, which precedes the inode.
    pub(crate) root: i32,
    /// From the root to the number.
    pub(crate) number: u32,
}

/// Offsets of fields, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StructOffsets {
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
    pub(crate) subvolume: Option<SubvolumeOffsets>,
    pub(crate) task_thread: u32,
    pub(crate) task_process: u32,
    pub(crate) task_signal: u32,
    pub(crate) signal_live: u32,
}

impl StructOffsets {
    /// Returns the offsets for the running kernel.
    pub(crate) fn of_this_kernel() -> Result<Self, TraceError> {
        Self::read(Path::new(KERNEL_BTF_PATH))
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
    described(Path::new(KERNEL_BTF_PATH), ask)
}

fn described<T>(path: &Path, ask: impl FnOnce(&Btf<'_>) -> Result<T, BtfError>) -> Result<T, TraceError> {
    let bytes = std::fs::read(path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            return TraceError::NoTypes { path: path.to_owned() };
        }
        TraceError::Call { call: "read", what: KERNEL_BTF_PATH.to_owned(), source: error }
    })?;
    let answer = Btf::parse(&bytes).and_then(|btf| ask(&btf));
    answer.map_err(|source| TraceError::Types { path: path.to_owned(), source })
}

/// Returns the location of a folio's size. Kernels without folios have no large ones in files on
/// disks.
fn folio_order(btf: &Btf<'_>) -> Result<FolioOrder, BtfError> {
    // Linux 6.6 moved it into the flags of the second page.
    let order = btf.offset("folio", &["_folio_order"]).or_else(|_| btf.offset("folio", &["_flags_1"]))?;
    Ok(FolioOrder { head_bit: btf.constant("PG_head")?, order })
}

/// Returns `None` if btrfs is a module, whose types are described elsewhere: its files are not
/// opened then.
fn subvolume(btf: &Btf<'_>) -> Option<SubvolumeOffsets> {
    let root = i32::try_from(btf.offset("btrfs_inode", &["root"]).ok()?).ok()?;
    let inode = i32::try_from(btf.offset("btrfs_inode", &["vfs_inode"]).ok()?).ok()?;
    let number = btf.offset("btrfs_root", &["root_key", "objectid"]).ok()?;
    Some(SubvolumeOffsets { root: root - inode, number })
}

/// A record of the ring buffer about pages of a file.
#[repr(C)]
pub(crate) struct PageRecord {
    /// The event: [`record_kind`].
    pub(crate) kind: u32,
    pub(crate) process: u32,
    /// The file's device, in the kernel's form.
    pub(crate) dev: u32,
    pub(crate) generation: u32,
    pub(crate) ino: u64,
    pub(crate) first_page: u64,
    /// The number of pages, or, for a use, the last of them.
    pub(crate) pages: u64,
    pub(crate) subvolume: u64,
    pub(crate) mapping: u64,
    /// The inode's type and permissions.
    pub(crate) mode: u32,
    /// For an addition, whether the file had no other pages; for a use, whether its process is
    /// followed.
    pub(crate) flag: u32,
}

/// A record of the ring buffer about a process, of the same size.
#[repr(C)]
pub(crate) struct ProcessRecord {
    _kind_and_process: [u32; 2],
    _padding: u64,
    pub(crate) name: [u8; COMM_BYTES],
    _rest: [u32; 7],
    pub(crate) parent: u32,
}

/// The size of a process's name with its end, as the kernel keeps it (`TASK_COMM_LEN`).
pub(crate) const COMM_BYTES: usize = 16;

/// Kinds of records.
pub(crate) mod record_kind {
    pub(crate) const PAGES_ADDED: i32 = 1;
    pub(crate) const PAGES_USED: i32 = 2;
    pub(crate) const PROCESS_BEGAN: i32 = 3;
    pub(crate) const PROCESS_LEFT: i32 = 4;
    pub(crate) const PROCESS_ENDED: i32 = 5;
    pub(crate) const PAGES_DIRTIED: i32 = 6;
    // Of a sample: `pages` is the last page, `flag` the thread, or whether memory is reclaimed.
    pub(crate) const SAMPLE_ADDED: i32 = 7;
    pub(crate) const SAMPLE_REMOVED: i32 = 8;
    pub(crate) const SAMPLE_DIRTIED: i32 = 9;
    pub(crate) const SAMPLE_READ: i32 = 10;
    pub(crate) const SAMPLE_MAPPED: i32 = 11;
    pub(crate) const SAMPLE_FAULTED: i32 = 12;
}

/// In the table of names: processes of this name are followed.
pub(crate) const NAME_FOLLOWED: u32 = 1;
/// In the table of names: processes of this name are never followed.
pub(crate) const NAME_NEVER_FOLLOWED: u32 = 2;

/// The counter of added pages that were lost for lack of room.
pub(crate) const LOST_PAGES: i32 = 0;
/// The counter of lost events of processes, and of lost uses by followed processes.
pub(crate) const LOST_OTHERS: i32 = 1;
/// The counter of lost uses by processes that are not followed.
pub(crate) const LOST_USES: i32 = 2;
/// The counter of lost writes to clean pages by followed processes.
pub(crate) const LOST_WRITES: i32 = 3;
/// The number of these counters.
pub(crate) const LOST_COUNTERS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_describes_the_fields() {
        if !Path::new(KERNEL_BTF_PATH).exists() {
            eprintln!("SKIPPED: the_running_kernel_describes_the_fields needs a kernel with BTF");
            return;
        }
        let offsets = StructOffsets::of_this_kernel().unwrap();
        assert!(offsets.folio_order.is_some() && offsets.inode_ino > 0, "{offsets:?}");
        let missing = StructOffsets::read(Path::new("/no/such/vmlinux")).unwrap_err();
        assert!(missing.to_string().contains("/no/such/vmlinux"), "{missing}");
    }
}
