//! A page store that opens at once after a crash: a file of pages with atomic commits of many, on a redo log and a page cache.

mod format;
