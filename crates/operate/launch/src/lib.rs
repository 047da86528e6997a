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
mod environment;
mod find;
mod follower;
mod left;
mod library;
mod means;
mod obstacle;
mod prepared;
mod processes;
mod reach;
mod report;
mod settings;
mod sys;

pub use choice::{Choice, ChoiceError};
pub use find::StartError;
pub use follower::{FollowedFileReport, FollowedPages};
pub use left::{LeftFileReport, LeftPages};
pub use library::{IS_LIBRARY_OF_ANOTHER_BUILD, PlacementError};
pub use pagekeeper_preload::counters::Count;
pub use prepared::{EndedCommand, PreparedCommand};
pub use processes::parent::CommandEnd;
pub use processes::running::RunningProcesses;
pub use processes::signals::survive_size_limit;
pub use processes::stack;
pub use processes::start_state::StartState;
pub use processes::watched::{CommandWatcher, WatchedCommand};
pub use report::file::ReportFile;
pub use report::{LaunchReport, ProcessReport, RuleSums};
pub use settings::{FileRule, Launcher, ProfileRules, Role, Settings};
