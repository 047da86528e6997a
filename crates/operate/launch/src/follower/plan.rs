//! The scope of a process that follows a command.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::names;
use pagekeeper_streams::{StreamOptions, StreamPace, Streams, Unavailable, Verdict, stream_name};

use crate::command_line::MULTI_CALL_PROGRAMS;
use crate::means::FollowScope;
use crate::settings::{Role, Settings};

/// The processes to follow, and the way to follow them.
#[derive(Debug)]
pub(crate) struct FollowPlan {
    /// The names of streams, if only those are followed; `None` for all processes.
    names: Option<Vec<String>>,
    /// Patterns of database names, which are not followed; `*` stands for any characters.
    never: Vec<String>,
    pace: StreamPace,
}

impl FollowPlan {
    pub(crate) fn new(followed: FollowScope, settings: &Settings, pace: StreamPace) -> Self {
        let names = match followed {
            FollowScope::All => None,
            // The kernel does not see which applet of a multi-call program runs.
            FollowScope::ByName => {
                let streams = settings.streams.iter().filter_map(|name| stream_name(name).ok());
                Some(streams.chain(MULTI_CALL_PROGRAMS.map(str::to_owned)).collect())
            }
        };
        Self { names, never: databases(settings), pace }
    }

    /// Starts following, without any process yet.
    pub(crate) fn start(&self) -> Result<Streams, Unavailable> {
        let databases = self.never.clone();
        let decide = move |pid, _: Option<&Path>| {
            if is_called(pid, &databases) { Verdict::Leave } else { Verdict::Release }
        };
        let never = self.never.iter().filter_map(|pattern| kernel_name(pattern)).collect();
        let names = self.names.clone().unwrap_or_default();
        let options =
            StreamOptions { names, members: None, never, decide: Box::new(decide), pace: self.pace };
        if self.names.is_some() { Streams::start_below(options) } else { Streams::start(options) }
    }

    /// Whether the guard's service can do the same: it supports neither names nor other paces.
    pub(crate) fn suits_service(&self) -> bool {
        self.names.is_none() && self.pace == StreamPace::Auto
    }

    /// Follows this process and its children.
    pub(crate) fn follow(&self, streams: &mut Streams, pid: u32) -> Result<(), Unavailable> {
        if self.names.is_some() { streams.heed_names_below(pid) } else { streams.follow(pid) }
    }

    /// Whether a process with this name is never followed.
    pub(crate) fn is_never(&self, pid: u32) -> bool {
        is_called(pid, &self.never)
    }
}

/// Returns the programs that a followed command may start and that are not followed.
fn databases(settings: &Settings) -> Vec<String> {
    if settings.role == Role::Stream {
        return Vec::new();
    }
    let names = settings.profiles.iter().flat_map(|profile| &profile.processes);
    // With --profile it applies to every process that is not a stream.
    names.filter(|name| *name != "*").cloned().collect()
}

/// Returns a name pattern in the kernel's form: up to its first `*`. One that starts with `*` can't
/// be compared there.
fn kernel_name(pattern: &str) -> Option<String> {
    let name = pattern.split_once('*').map_or_else(|| pattern.to_owned(), |(begin, _)| format!("{begin}*"));
    stream_name(&name).ok().filter(|name| name != "*")
}

/// Whether a process's name matches one of these patterns.
fn is_called(pid: u32, patterns: &[String]) -> bool {
    ProcRoot::default().name(pid).is_ok_and(|name| {
        patterns.iter().any(|pattern| names::matches_name(pattern.as_bytes(), name.as_bytes()).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::Choice;

    fn plan(followed: FollowScope, choice: &Choice) -> FollowPlan {
        FollowPlan::new(followed, &choice.settings(1 << 20).unwrap(), StreamPace::Auto)
    }

    #[test]
    fn databases_are_not_followed() {
        let never = |choice: Choice| plan(FollowScope::All, &choice).never;
        let all = never(Choice::default());
        assert!(
            ["mariadbd", "postgres", "mongod"].iter().all(|&name| all.contains(&name.to_owned())),
            "{all:?}"
        );
        assert_eq!(never(Choice { profile: Some("mariadb".to_owned()), ..Choice::default() }), [""; 0]);
        assert_eq!(never(Choice { role: Some(Role::Stream), ..Choice::default() }), [""; 0]);
    }

    #[test]
    fn every_name_of_a_stream_is_one_for_the_kernel() {
        let names = plan(FollowScope::ByName, &Choice::default()).names.unwrap();
        let settings = Choice::default().settings(1 << 20).unwrap();
        assert_eq!(names.len(), settings.streams.len() + MULTI_CALL_PROGRAMS.len());
        assert!(["tar", "cat", "busybox"].iter().all(|&name| names.contains(&name.to_owned())), "{names:?}");
        assert_eq!(plan(FollowScope::All, &Choice::default()).names, None);
    }
}
