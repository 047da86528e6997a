//! The modules that need `unsafe`: memory from the kernel, and the barrier that reaches all threads
//! of the process.
//!
//! Each module states what it relies on; no policy is decided here.

pub(crate) mod arena;
pub(crate) mod barrier;
pub(crate) mod memory;
pub(crate) mod table;
