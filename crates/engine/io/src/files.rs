//! Real files and directories: opened, tested for what works, and operated on by plain system calls.

pub(crate) mod atomic;
pub(crate) mod atomic_limits;
pub(crate) mod directory;
pub(crate) mod lock;
pub(crate) mod open;
pub(crate) mod pages;
pub(crate) mod past_cache;
pub(crate) mod probe;
pub(crate) mod syscall;
pub(crate) mod write_support;
