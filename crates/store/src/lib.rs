//! A page store that opens at once after a crash: a file of pages with atomic commits of many, on a redo log and a page cache.

#[allow(dead_code, unused_imports, reason = "used as the modules above it are written")]
mod format;
