//! Logs that give their pages back, and bulk writes that disturb no one.

mod error;
#[allow(dead_code, reason = "the builders that warn are being built")]
mod layout;
#[allow(dead_code, reason = "the builders that choose are being built")]
mod mode;
#[allow(dead_code, reason = "the logs that use it are being built")]
mod record;
#[cfg(test)]
mod testing;

pub use error::Error;
pub use layout::{Backing, Disk, DiskLayout};
pub use mode::{Chosen, LogMode, Syncs, Use};
