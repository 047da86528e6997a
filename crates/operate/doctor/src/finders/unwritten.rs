//! Memory cgroups whose page cache is mostly dirty: none of it can be reclaimed before it is
//! written.

use std::collections::BTreeMap;

use pagekeeper_kernel::pressure::{CgroupVersion, MemoryCgroup};

use super::logs::RELEASABLE_MIN;
use super::throttled::help;
use crate::observed::attribution::database_of;
use crate::texts::text;
use crate::{Advised, Goal, Observation, Streamer};

/// Returns the unwritten bytes of a group's page cache.
pub(super) fn unwritten(group: &MemoryCgroup) -> u64 {
    group.dirty.unwrap_or(0) + group.writeback.unwrap_or(0)
}

/// Returns the advice for a group whose page cache is mostly dirty.
pub(super) fn of_unwritten(observation: &Observation<'_>, index: usize, group: &MemoryCgroup) -> Advised {
    let mut advised = observation.advise(Goal::SteadyWriteback, index);
    if let Some(name) = largest_stream(observation, group) {
        advised.fixes.splice(0..0, help::of_another(&name));
    }
    advised.remarks.push(match group.version {
        CgroupVersion::V1 => text("unwritten.v1", &[]),
        CgroupVersion::V2 => text("unwritten.v2", &[]),
    });
    advised
}

/// Returns the program in the group, other than a database, that brought in most during the watch.
pub(super) fn largest_stream(observation: &Observation<'_>, group: &MemoryCgroup) -> Option<String> {
    let pages = observation.trace()?.pages.as_ref()?;
    let mut programs: BTreeMap<&str, u64> = BTreeMap::new();
    for counts in pages {
        let Some(task) = &counts.task else { continue };
        let is_in = |streamer: &&Streamer| {
            streamer.pid == task.process
                && streamer.cgroup.as_ref().is_some_and(|other| other.directory == group.directory)
        };
        if observation.streamers.iter().any(|streamer| is_in(&streamer))
            && database_of(observation, task).is_none()
        {
            *programs.entry(&task.name).or_default() += counts.flow.added.bytes;
        }
    }
    let (name, _) =
        programs.into_iter().max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes >= RELEASABLE_MIN)?;
    Some(name.to_owned())
}
