//! System calls that neither the standard library nor rustix offers safely.
//!
//! All `unsafe` code of this crate is here. Each function is a thin, safe wrapper: it checks the
//! call's preconditions and returns the kernel's own error. Nothing here makes decisions.

pub(crate) mod cachestat;
pub(crate) mod fiemap;
pub(crate) mod file_handle;
pub(crate) mod mapping;
pub(crate) mod nsfs;
pub(crate) mod peer;
pub(crate) mod process_advice;
pub(crate) mod ptrace;
pub(crate) mod scheduling;
pub(crate) mod sync_range;
