//! Watches running databases from outside and keeps their log files out of the page cache.
//!
//! [`Guard`] finds databases by their processes and open files, or is told of them; a [`Profile`] says what
//! their files are; the rules are those of `pagekeeper-policy`, the acts those of `pagekeeper-kernel`. Nothing
//! it does can change a byte of a watched file.

mod config;
mod descriptors;
mod directory;
mod discover;
mod disks;
mod event;
mod facts;
mod finder;
mod guard;
mod limits;
mod named;
mod notify;
mod pattern;
mod postgresql;
mod profile;
mod sample;
mod settings;
mod streams;
#[cfg(test)]
mod testing;
mod trail;
pub mod units;
mod usage;

pub use config::{Options, STREAMING_PROGRAMS, Streams};
pub use event::{Done, Event, Summary, Tick};
pub use finder::{Finder, FoundDatabase, find_databases, recognise_process, workers_of};
pub use guard::{Control, Guard};
pub use named::logs_below;
pub use pattern::{Matched, Pattern, PatternError};
pub use profile::{
    BUILT_IN, BulkSpec, FileSpec, LogSpec, NewestSpec, PositionSpec, Profile, ProfileError, RecycledIf,
    RewriteSpec, find_profile,
};
