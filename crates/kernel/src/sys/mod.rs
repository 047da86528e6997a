//! The system calls that neither the standard library nor rustix offers safely.
//!
//! The only `unsafe` code of this crate is here. Each function is a thin, safe wrapper: it checks what the call
//! needs, and hands back the kernel's own error. Nothing in here decides anything.

pub(crate) mod cachestat;
pub(crate) mod file_handle;
pub(crate) mod mapping;
pub(crate) mod nsfs;
pub(crate) mod process_advice;
pub(crate) mod ptrace;
pub(crate) mod scheduling;
pub(crate) mod sync_range;
