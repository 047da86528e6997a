//! The directory trees of databases: the files in them, and whose they are.

pub(crate) mod directory_owners;
pub(crate) mod directory_trees;
pub(crate) mod fair_shares;
pub(crate) mod tree;
