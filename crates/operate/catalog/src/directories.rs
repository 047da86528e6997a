//! Directories of databases: who has a claim to one, and what proves it.

pub(crate) mod claim_evidence;
pub(crate) mod markers;
pub(crate) mod named_directory;
pub mod ownership;
