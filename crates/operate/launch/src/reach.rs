//! The means by which the rules reach a command, prepared and started: a follower by events, or the
//! library.
//!
//! Never fails: the part of the command that is not reached is a [`ReachProblem`], which the caller
//! says.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::settings::Settings;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_text::escaped;

use crate::classify::{self, CommandClass, LibraryHindrance};
use crate::follower::{FollowPlan, FollowRefusal, Follower};
use crate::means::{self, CommandMeans};
use crate::obstacle::ObstacleReason;
use crate::{command_line, library};

/// The means for a command.
pub(crate) struct CommandReach {
    /// The library's stored path.
    pub(crate) library: Result<PathBuf, LibraryAbsence>,
    /// A process that follows it by events.
    pub(crate) follower: Option<Follower>,
    /// The reason why it has no follower, if it should have one.
    pub(crate) refusal: Option<FollowRefusal>,
    /// The part that the rules do not reach, and why.
    pub(crate) problem: Option<ReachProblem>,
}

/// The reason why a command is started without the library.
pub(crate) enum LibraryAbsence {
    /// It could not be stored anywhere; contains a sentence.
    Nowhere(String),
    /// The command has no use for it, but its descendants may.
    Unused,
    /// The command's descendants must not have it either: they are followed, or would not find it.
    TakenOut,
}

/// The part of a command that the rules do not reach; contains a sentence.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReachProblem {
    /// Everything.
    #[error("{0}; it is started without the rules")]
    All(String),
    /// The part that the library does not see, of a command that can't be followed by events.
    #[error("{0}")]
    Unseen(String),
}

impl CommandReach {
    /// Prepares and starts the means for the command. `may_follow` says which commands may have a
    /// follower.
    pub(crate) fn of(
        file: &Path,
        command: &[OsString],
        settings: &Settings,
        pace: StreamPace,
        may_follow: fn(&CommandClass) -> bool,
    ) -> Self {
        let cover = classify::classify_command(file, command, settings);
        let processes = cover.kind.followed().filter(|_| may_follow(&cover));
        let tried = processes.map(|processes| Follower::start(&FollowPlan::new(processes, settings, pace)));
        let (follower, refusal) = match tried.transpose() {
            Ok(started) => (started, None),
            Err(refusal) => (None, Some(refusal)),
        };
        match means::choose(cover.kind, follower.is_some(), cover.hindrance.is_none()) {
            CommandMeans::Events(_) => {
                Self { library: Err(LibraryAbsence::TakenOut), follower, refusal: None, problem: None }
            }
            CommandMeans::Library => Self::by_library(file, command, &cover, refusal),
            CommandMeans::Nothing => Self::by_nothing(command, &cover, refusal),
        }
    }

    /// Returns no means, for a process whose settings can't be read.
    pub(crate) fn none() -> Self {
        Self { library: Err(LibraryAbsence::Unused), follower: None, refusal: None, problem: None }
    }

    fn by_library(
        file: &Path,
        command: &[OsString],
        cover: &CommandClass,
        refusal: Option<FollowRefusal>,
    ) -> Self {
        let library = library_for(command);
        let problem = match (&library, &refusal) {
            (Err(LibraryAbsence::Nowhere(sentence)), _) => Some(ReachProblem::All(sentence.clone())),
            (Ok(_), Some(refusal)) if cover.maps => Some(ReachProblem::Unseen(format!(
                "pages that {} uses by mappings stay, and can't be followed by events: {refusal}",
                escaped(file)
            ))),
            _ => None,
        };
        Self { library, follower: None, refusal, problem }
    }

    fn by_nothing(command: &[OsString], cover: &CommandClass, refusal: Option<FollowRefusal>) -> Self {
        let library = match &cover.hindrance {
            // The library may still reach the program that a wrapper starts.
            Some(LibraryHindrance::Wrapper(_)) => library_for(command),
            _ => Err(LibraryAbsence::Unused),
        };
        let problem = cover.hindrance.as_ref().map(|hindrance| {
            ReachProblem::All(match &refusal {
                Some(refusal) => {
                    format!("{hindrance}, and its pages can't be followed by events: {refusal}")
                }
                None => format!("{hindrance} ({})", suggest_alternative(hindrance)),
            })
        });
        Self { library, follower: None, refusal, problem }
    }

    /// Returns a sentence why a requested pace can't be kept, if it can't.
    pub(crate) fn unpaced(&self, pace: StreamPace) -> Option<String> {
        if pace == StreamPace::Auto || self.follower.is_some() {
            return None;
        }
        let why = self
            .refusal
            .as_ref()
            .map_or_else(|| "no rule takes it for a stream".to_owned(), FollowRefusal::to_string);
        Some(format!(
            "--pace needs a stream that is followed by events, which this command is not ({why}): leave it out, and the library paces the \
             command by itself"
        ))
    }
}

/// Stores the library, unless the command's descendants would not find it below their root: their
/// loader would complain.
fn library_for(command: &[OsString]) -> Result<PathBuf, LibraryAbsence> {
    let library = library::lay_out().map_err(|error| LibraryAbsence::Nowhere(error.to_string()))?;
    let has = |root: PathBuf| root.join(library.strip_prefix("/").unwrap_or(&library)).exists();
    if command_line::other_root(command).is_none_or(has) {
        Ok(library)
    } else {
        Err(LibraryAbsence::TakenOut)
    }
}

/// Returns an alternative.
fn suggest_alternative(hindrance: &LibraryHindrance) -> &'static str {
    match hindrance {
        LibraryHindrance::Program(obstacle) => match obstacle.why {
            ObstacleReason::Privileged => {
                "as the user whose rights it gets it can be run with them; if it is a stream, --as stream says so"
            }
            ObstacleReason::Static | ObstacleReason::Go | ObstacleReason::Musl | ObstacleReason::Foreign => {
                "if it is a stream, --as stream says so; pagekeeper guard --streams releases from outside what it brings into the page cache"
            }
        },
        LibraryHindrance::Wrapper(_) => "start pagekeeper run inside; if it is a stream, --as stream says so",
        LibraryHindrance::Elsewhere(_) => "start pagekeeper run inside",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_needs_events() {
        assert_eq!(CommandReach::none().unpaced(StreamPace::Auto), None);
        for (refusal, said) in [(None, "no rule takes it"), (Some(FollowRefusal::Silent), "does not answer")]
        {
            let sentence = CommandReach { refusal, ..CommandReach::none() }.unpaced(StreamPace::Off).unwrap();
            assert!(sentence.contains(said) && sentence.contains("leave it out"), "{sentence}");
        }
    }
}
