//! The subjects: ways to give one RocksDB the same memory, each with its best settings.

use crate::data::MIB;

/// The first of ours, whose page cache has all memory.
pub(super) const OURS: &str = "pagekeeper, no block cache";
/// The second of ours, where half of the memory holds whole blocks.
pub(super) const OURS_HALF: &str = "pagekeeper, half to the block cache";
pub(super) const BUFFERED: &str = "buffered, small block cache";
pub(super) const BUFFERED_ALONE: &str = "buffered, no block cache";
pub(super) const MMAP: &str = "mmap reads";
pub(super) const DIRECT_LRU: &str = "direct, LRU block cache";
pub(super) const DIRECT_CLOCK: &str = "direct, HyperClockCache";

/// The block cache that helps the kernel's page cache: room for index blocks of a level or two.
const SMALL: u64 = 8 * MIB;

/// A way to use the memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// Its name in tables.
    pub(super) name: &'static str,
    /// Whether the library is loaded.
    pub(super) is_ours: bool,
    /// Whether a quick run has it.
    pub(super) in_quick: bool,
    /// The options that give it `budget` bytes.
    options: fn(u64) -> Vec<String>,
}

impl Way {
    /// Returns options of `db_bench`, for caches of `budget` bytes in all.
    pub(super) fn options(&self, budget: u64) -> Vec<String> {
        (self.options)(budget)
    }
}

/// All ways, ours first.
pub(super) const WAYS: [Way; 7] = [
    Way { name: OURS, is_ours: true, in_quick: true, options: |budget| vec![uri(budget), block_cache(0)] },
    Way {
        name: OURS_HALF,
        is_ours: true,
        in_quick: false,
        options: |budget| vec![uri(budget / 2), block_cache(blocks(budget / 2))],
    },
    Way { name: BUFFERED, is_ours: false, in_quick: true, options: |_| vec![block_cache(SMALL)] },
    Way { name: BUFFERED_ALONE, is_ours: false, in_quick: false, options: |_| vec![block_cache(0)] },
    Way {
        name: MMAP,
        is_ours: false,
        in_quick: false,
        options: |_| vec!["--mmap_read=true".to_owned(), block_cache(SMALL)],
    },
    Way { name: DIRECT_LRU, is_ours: false, in_quick: true, options: |budget| direct(budget, "lru_cache") },
    Way {
        name: DIRECT_CLOCK,
        is_ours: false,
        in_quick: true,
        options: |budget| direct(budget, "hyper_clock_cache"),
    },
];

/// Returns the capacity of a block cache with `bytes` of memory. Each block is an allocation, whose overhead was a
/// tenth with one arena.
fn blocks(bytes: u64) -> u64 {
    bytes / 8 * 7
}

fn uri(bytes: u64) -> String {
    format!("--fs_uri=pagekeeper://?cache={bytes}")
}

/// With 0, `db_bench` sets `no_block_cache`.
fn block_cache(bytes: u64) -> String {
    format!("--cache_size={bytes}")
}

fn direct(budget: u64, kind: &str) -> Vec<String> {
    let fixed = ["--use_direct_reads=true", "--use_direct_io_for_flush_and_compaction=true"];
    let mut options: Vec<String> = fixed.map(str::to_owned).into();
    options.extend([format!("--cache_type={kind}"), block_cache(blocks(budget))]);
    options
}
