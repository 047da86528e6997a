//! Chooses and starts the means for `pagekeeper run`: a command is followed by kernel events, or
//! gets a library that its loader preloads (`means` decides). Processes that run already are
//! followed by events ([`RunningProcesses`]).
//!
//! A [`PreparedCommand`] becomes the command by execve(2) (same process ID, nothing in between), or
//! stays as its parent and counts what the rules did ([`LaunchReport`]). A [`WatchedCommand`] gets
//! no rules: a process beside it sees its start. Invariants: the command is started even if neither
//! means is available, unless `--require` forbids it. It ends as the command ends, whatever happens
//! to the report. It gets what this process was given: arguments, descriptors, signals, the rest of
//! its environment.
//!
//! Nothing is printed: sentences are returned. Fails as shells and env(1) do ([`StartError`]): 127
//! if the command is not found, 126 if it can't be executed.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod budget;
mod choice;
mod classify;
mod command_line;
mod counting;
mod detached;
mod environment;
mod find;
mod follower;
mod inside;
mod left;
mod library;
mod means;
mod obstacle;
mod parent;
mod prepared;
mod reach;
mod report;
mod report_file;
mod report_text;
mod running;
mod settings;
mod signals;
pub mod stack;
mod start_state;
mod sys;
mod watched;

pub use choice::{Choice, ChoiceError};
pub use find::StartError;
pub use follower::{FollowedFileReport, FollowedPages};
pub use left::{LeftFileReport, LeftPages};
pub use library::{IS_LIBRARY_OF_ANOTHER_BUILD, PlacementError};
pub use pagekeeper_preload::counters::Count;
pub use parent::CommandEnd;
pub use prepared::{EndedCommand, PreparedCommand};
pub use report::{LaunchReport, ProcessReport, RuleSums};
pub use report_file::ReportFile;
pub use running::RunningProcesses;
pub use settings::{FileRule, Launcher, ProfileRules, Role, Settings};
pub use signals::survive_size_limit;
pub use start_state::StartState;
pub use watched::{CommandWatcher, WatchedCommand};
