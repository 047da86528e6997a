//! Tests of the on-disk formats for random input: hidden, and built only with the feature
//! `fuzzing`.
//!
//! Each takes any bytes, and panics if a parser does or if its result can't be right.

mod entry;
mod page;
mod page_map;
mod superblock;
mod warm;

pub use entry::fuzz_one as entry;
pub use page::fuzz_one as page;
pub use page_map::fuzz_one as page_map;
pub use superblock::fuzz_one as superblock;
pub use warm::fuzz_one as warm;
