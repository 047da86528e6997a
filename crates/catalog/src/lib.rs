//! What is known of databases: what their files and processes are called, what the files are to them, how to find them
//! on a host, and what was measured of disks.
//!
//! Data, and how to read it; nothing here acts on a file of a database. A [`Profile`] describes one kind of database,
//! [`Finder`] finds the processes that fit one, [`logs_below`] the profile that fits a directory, [`disks`] the saved
//! measurements of a file system. What can't be read is refused with file, line and key; what can't be seen of a process
//! counts as not there.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod checkpoint;
mod claim;
mod config_file;
mod discover;
pub mod disks;
mod finder;
mod markers;
mod named_directory;
mod party;
pub mod postgresql;
mod process_table;
mod profile;
mod rule;
pub mod settings;
mod spelled;
mod streaming;
#[cfg(test)]
mod testing;
pub mod units;

pub use claim::{Contest, Strength, known_user, one_user};
pub use config_file::{CONFIG_BYTES_MAX, parse_config, read_config};
pub use discover::{Budget, Discovery, FoundProcess, KnownProcess, Recognised, recognise};
pub use finder::{Finder, FoundDatabase, find_databases, recognise_process, workers_of};
pub use markers::MarkerCheck;
pub use named_directory::logs_below;
pub use party::Party;
pub use process_table::{Process, ProcessTable};
pub use profile::{
    BUILT_IN, CheckpointSpec, FileSpec, LogSpec, NewestSpec, PositionSpec, Profile, ProfileError, RecycledIf,
    find_profile,
};
pub use rule::Rules;
pub use spelled::Spelled;
pub use streaming::{STREAMING_PROGRAMS, streaming_programs};
