//! The Rust of the book's pages and of the crates' READMEs, as doctests: what stands there compiles
//! and runs.
#![cfg_attr(not(doctest), allow(unused))]

/// One page, with its blocks as doctests.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        $(#[cfg(doctest)] #[doc = include_str!($page)] struct $name;)*
    };
}

pages! {
    Bulk: "src/libraries/bulk.md",
    Cache: "src/libraries/cache.md",
    Catalog: "src/libraries/catalog.md",
    FileTable: "src/libraries/file-table.md",
    Io: "src/libraries/io.md",
    Kernel: "src/libraries/kernel.md",
    Observe: "src/libraries/observe.md",
    Probe: "src/libraries/probe.md",
    Simdisk: "src/libraries/simdisk.md",
    Store: "src/libraries/store.md",
    Trace: "src/libraries/trace.md",
    Wal: "src/libraries/wal.md",
    BulkReadme: "../crates/engine/bulk/README.md",
    CacheReadme: "../crates/engine/cache/README.md",
    FileTableReadme: "../crates/engine/file-table/README.md",
    IoReadme: "../crates/engine/io/README.md",
    KernelReadme: "../crates/base/kernel/README.md",
    SimdiskReadme: "../crates/dev/simdisk/README.md",
    StoreReadme: "../crates/engine/store/README.md",
    TreeReadme: "../crates/engine/tree/README.md",
    WalReadme: "../crates/engine/wal/README.md",
}
