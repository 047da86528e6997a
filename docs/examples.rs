//! The Rust of the book's pages and of the crates' READMEs, as doctests: what stands there compiles and runs.
#![cfg_attr(not(doctest), allow(unused))]

/// One page, with its blocks as doctests.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        $(#[cfg(doctest)] #[doc = include_str!($page)] struct $name;)*
    };
}

pages! {
    Cache: "src/libraries/cache.md",
    Catalog: "src/libraries/catalog.md",
    FileTable: "src/libraries/file-table.md",
    Io: "src/libraries/io.md",
    Kernel: "src/libraries/kernel.md",
    Log: "src/libraries/log.md",
    Observe: "src/libraries/observe.md",
    Probe: "src/libraries/probe.md",
    Store: "src/libraries/store.md",
    Trace: "src/libraries/trace.md",
    CacheReadme: "../crates/engine/cache/README.md",
    FileTableReadme: "../crates/engine/file-table/README.md",
    IoReadme: "../crates/engine/io/README.md",
    KernelReadme: "../crates/base/kernel/README.md",
    LogReadme: "../crates/engine/log/README.md",
    StoreReadme: "../crates/engine/store/README.md",
}
