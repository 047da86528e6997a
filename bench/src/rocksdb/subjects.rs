//! Who is compared: ways to give one RocksDB the same memory, each with the settings that are best for it.

use crate::data::MIB;

/// The first of ours: all memory is the page cache's.
pub(super) const OURS: &str = "pagekeeper, no block cache";
/// Half of the memory holds whole blocks.
pub(super) const OURS_HALF: &str = "pagekeeper, half to the block cache";
pub(super) const BUFFERED: &str = "buffered, small block cache";
pub(super) const BUFFERED_ALONE: &str = "buffered, no block cache";
pub(super) const MMAP: &str = "mmap reads";
pub(super) const DIRECT_LRU: &str = "direct, LRU block cache";
pub(super) const DIRECT_CLOCK: &str = "direct, HyperClockCache";

/// What the kernel's page cache is helped out with: room for index blocks of a level or two.
const SMALL: u64 = 8 * MIB;

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// As the table names it.
    pub(super) name: &'static str,
    /// Whether the library is loaded.
    pub(super) is_ours: bool,
    /// Whether a quick run has it.
    pub(super) in_quick: bool,
    /// The options that give it `budget` bytes.
    options: fn(u64) -> Vec<String>,
}

impl Way {
    /// Options of `db_bench`, for caches of so many bytes together.
    pub(super) fn options(&self, budget: u64) -> Vec<String> {
        (self.options)(budget)
    }
}

/// All of them, ours first.
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

/// Of a block cache that has `bytes` of memory: each block is an allocation of its own, which costs room between them. With one arena that
/// was a tenth.
fn blocks(bytes: u64) -> u64 {
    bytes / 8 * 7
}

fn uri(bytes: u64) -> String {
    format!("--fs_uri=pagekeeper://?cache={bytes}")
}

/// 0: `db_bench` sets `no_block_cache`.
fn block_cache(bytes: u64) -> String {
    format!("--cache_size={bytes}")
}

fn direct(budget: u64, kind: &str) -> Vec<String> {
    let fixed = ["--use_direct_reads=true", "--use_direct_io_for_flush_and_compaction=true"];
    let mut options: Vec<String> = fixed.map(str::to_owned).into();
    options.extend([format!("--cache_type={kind}"), block_cache(blocks(budget))]);
    options
}
