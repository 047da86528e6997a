//! The commands, one module each.

pub(crate) mod completions;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod evict;
pub(crate) mod guard;
pub(crate) mod hint;
pub(crate) mod manuals;
pub(crate) mod probe;
pub(crate) mod run;
pub(crate) mod size;
pub(crate) mod snapshot;
pub(crate) mod stat;
#[cfg(feature = "store")]
pub(crate) mod store;
pub(crate) mod top;
pub(crate) mod warm;
