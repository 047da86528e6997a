//! The databases to observe, their processes, and their directories.

pub(crate) mod claims;
pub(crate) mod directories;
pub(crate) mod subjects;
pub(crate) mod unknown_databases;
