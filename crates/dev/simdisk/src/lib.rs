//! A simulated disk on virtual time: deterministic, with faults on demand, for tests of code that
//! uses [`pagekeeper_io::Io`].
//!
//! No clock is read and no time passes: a call advances the disk's own clock to the end of the
//! request, and returns at once. The calls of one thread repeat exactly. With several threads, a
//! request's time depends on when it arrives; contents and faults still repeat.
//!
//! Data, sizes and names are on the medium only after a sync. [`Persistence`] decides which
//! unsynced ones survive a power cut.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod builder;
mod content;
mod crash;
mod damage;
mod disk;
mod faults;
mod hold;
mod inode;
mod names;
mod open_file;
mod pages;
mod request;
mod schedule;
mod state;

pub use builder::{SimDiskBuilder, SimStats};
pub use content::pattern;
pub use crash::Persistence;
pub use damage::Damage;
pub use disk::SimDisk;
pub use faults::{AnyFault, Fault, RandomFaults, RandomWriteFaults, Times, WriteFault};
pub use hold::Hold;
