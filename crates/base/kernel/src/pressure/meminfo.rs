//! The machine's memory by use (`proc_meminfo(5)`).

use super::SysRoots;
use crate::Result;
use crate::process::{malformed, read_text};

/// The fields of `/proc/meminfo` that matter to page caching, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemInfo {
    /// All memory that the kernel manages.
    pub total: u64,
    /// Unused memory.
    pub free: u64,
    /// The kernel's estimate of memory available to programs without swapping (since Linux 3.14).
    pub available: u64,
    /// Page cache of block devices, and file system metadata in it.
    pub buffers: u64,
    /// Page cache of files; `shmem` is part of it, `buffers` is not.
    pub cached: u64,
    /// Changed in memory and not yet under writeback.
    pub dirty: u64,
    /// Under writeback.
    pub writeback: u64,
    /// tmpfs and shared memory, which can't be dropped.
    pub shmem: u64,
    /// File pages used more than once: reclaimed last.
    pub active_file: u64,
    /// File pages that are reclaimed next.
    pub inactive_file: u64,
    /// All swap space.
    pub swap_total: u64,
    /// Unused swap space.
    pub swap_free: u64,
    /// In memory and also in swap.
    pub swap_cached: u64,
}

impl MemInfo {
    /// Reads `/proc/meminfo`.
    pub fn read(roots: &SysRoots) -> Result<Self> {
        let path = roots.proc_file("meminfo");
        let text = read_text(&path)?;
        let field = |name: &str| parse_field(&text, name).ok_or_else(|| malformed(&path, name));
        Ok(Self {
            total: field("MemTotal")?,
            free: field("MemFree")?,
            available: field("MemAvailable")?,
            buffers: field("Buffers")?,
            cached: field("Cached")?,
            dirty: field("Dirty")?,
            writeback: field("Writeback")?,
            shmem: field("Shmem")?,
            active_file: field("Active(file)")?,
            inactive_file: field("Inactive(file)")?,
            swap_total: field("SwapTotal")?,
            swap_free: field("SwapFree")?,
            swap_cached: field("SwapCached")?,
        })
    }
}

/// Returns a field in bytes: the file counts KiB, labelled "kB".
fn parse_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    #[test]
    fn this_machine_adds_up() {
        let memory = MemInfo::read(&SysRoots::default()).unwrap();
        assert!(memory.free <= memory.total && memory.available <= memory.total);
        assert!(memory.active_file + memory.inactive_file <= memory.total);
        assert!(memory.shmem <= memory.cached + memory.swap_cached);
    }

    #[test]
    fn names_that_begin_alike_are_distinguished() {
        let text =
            "Cached: 1 kB\nSwapCached: 2 kB\nWritebackTmp: 3 kB\nWriteback: 4 kB\nActive(file): 5 kB\n";
        assert_eq!(parse_field(text, "Cached"), Some(1024));
        assert_eq!(parse_field(text, "Writeback"), Some(4096));
        assert_eq!(parse_field(text, "Active(file)"), Some(5120));
        assert_eq!(parse_field(text, "Active"), None);
        assert_eq!(parse_field("HugePages_Total: 0\n", "HugePages_Total"), None);
    }

    #[test]
    fn a_missing_field_is_named() {
        let (_tree, roots) = tree(&[("proc/meminfo", "MemTotal: 5 kB\nMemFree: x kB\n")]);
        assert!(MemInfo::read(&roots).unwrap_err().to_string().contains("MemFree"));
        let (_tree, roots) = tree(&[]);
        assert!(MemInfo::read(&roots).unwrap_err().is_gone());
    }
}
