//! The data path: reading files through one trait with three back-ends.
