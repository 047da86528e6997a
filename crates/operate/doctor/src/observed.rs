//! Facts that are read beside the snapshots, and what follows from them alone.

pub(crate) mod attribution;
pub(crate) mod journal;
pub(crate) mod leftovers;
pub(crate) mod syncs;
