//! Watches running databases from outside and keeps their log files out of the page cache.
//!
//! [`Guard`] finds databases by their processes and open files, or watches those that the caller
//! names. A [`Profile`](pagekeeper_catalog::Profile) says what their files are; the rules are those
//! of `pagekeeper-policy`, the acts those of `pagekeeper-kernel`. Nothing it does can change a byte
//! of a watched file.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod budget;
mod checkpoints;
mod config;
mod decision;
mod descriptor;
mod descriptors;
mod directory;
mod entry;
mod event;
mod facts;
mod facts_cache;
mod guard;
mod ids;
mod known_names;
mod sample;
mod state_files;
mod visibility;
mod wal_readers;

pub use budget::Budget;
pub use config::{Groups, Options, Streams, WalReaderLimits};
pub use decision::{Action, Decision, FileAct, FileWarning};
pub use event::{Done, Event, GroupNews, Refusal, Summary, Tick};
pub use guard::{Control, Guard};
pub use pagekeeper_catalog::{ProcessTraits, Selector, Targets};
pub use pagekeeper_streams::StreamReport;
