//! Processes: those that `run` starts, follows or becomes, and their signals.

pub(crate) mod detached;
pub(crate) mod inside;
pub(crate) mod parent;
pub(crate) mod running;
pub(crate) mod signals;
pub mod stack;
pub(crate) mod start_state;
pub(crate) mod watched;
