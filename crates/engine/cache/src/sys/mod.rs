//! What needs `unsafe`: memory from the kernel and the barrier that reaches all threads of the process.
//!
//! Each module states what it rests on; nothing in here decides anything.

pub(crate) mod arena;
pub(crate) mod barrier;
pub(crate) mod memory;
pub(crate) mod table;
