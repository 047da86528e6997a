//! Disks: their measured properties, and their time, which streams share with others.

#[cfg(feature = "std")]
pub(crate) mod disk;
pub mod disk_contention;
pub mod disk_turn;
