//! Knowledge about databases: the names of their files and processes, the role of each file, how to
//! find them on a host, and measurements of disks.
//!
//! The crate holds data and reads it; nothing here acts on a file of a database. A [`Profile`]
//! describes one kind of database. [`DatabaseFinder`] finds the processes that fit one,
//! [`logs_below`] finds the profile that fits a directory, and [`disks`] the saved measurements of
//! a file system. Unreadable configuration is refused with file, line and key. Facts about a
//! process that can't be seen count as absent.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod checkpoint;
mod config_file;
mod directories;
mod discovery;
pub mod disks;
mod log_files;
mod log_names;
mod party;
pub mod postgresql;
mod profile;
mod rule;
pub mod settings;
mod streaming;
mod targets;
#[cfg(test)]
mod testing;
mod text_value;
pub mod units;

pub use config_file::{CONFIG_BYTES_MAX, parse_config, read_config};
pub use directories::claim_evidence::{ClaimEvidence, Evidence, named_directories};
pub use directories::named_directory::logs_below;
pub use directories::ownership;
pub use directories::ownership::{ClaimOutcome, ClaimStrength, known_user, one_user};
pub use discovery::discover::{
    DatabaseDiscovery, FoundProcess, InspectionBudget, ProfileMatch, recognise, recognise_by_files,
};
pub use discovery::finder::{DatabaseFinder, FoundDatabase, find_databases, recognise_process, workers_of};
pub use discovery::process_table::{ProcessEntry, ProcessTable};
pub use log_files::{Inspection, LogFormat, LogSettings, NewFile, of_unknown_format, of_unknown_name};
pub use log_names::{LogKey, NameListing, Names};
pub use party::Party;
pub use profile::{
    BUILT_IN_PROFILES, CheckpointSpec, FileSpec, LogSpec, NewestSpec, PositionSpec, Profile, ProfileError,
    RecycledIf, find_profile,
};
pub use rule::RuleOverrides;
pub use streaming::{STREAMING_PROGRAMS, streaming_programs};
pub use targets::{Exclusion, ProcessTraits, Selector, Targets, named_id, path_glob};
pub use text_value::TextValue;
