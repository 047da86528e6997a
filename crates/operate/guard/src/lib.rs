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
mod disks;
mod entry;
mod event;
mod facts;
mod facts_cache;
mod follower_history;
mod guard;
mod ids;
mod known_names;
mod listing;
mod notify;
mod sample;
mod server_settings;
mod state_files;
mod targets;
mod visibility;
mod wal_readers;
mod warning_dedup;

pub use budget::Budget;
pub use config::{Groups, Options, Streams, WalReaderLimits};
pub use decision::{Action, Decision, FileAct, FileWarning};
pub use event::{Done, Event, GroupNews, Refusal, Summary, Tick};
pub use guard::{Control, Guard};
pub use pagekeeper_streams::StreamReport;
pub use targets::{ProcessTraits, Selector, Targets};
