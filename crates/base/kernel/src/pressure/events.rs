//! Counts of how often a memory cgroup's limits took effect: `memory.events` of version 2,
//! `memory.failcnt` and `memory.oom_control` of version 1.
//!
//! Version 2 includes descendants, version 1 does not.

use std::path::Path;

use super::{CgroupVersion, read_optional};

/// The number of times that a group's limits took effect since its creation. `None`: this kernel
/// does not count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// It was reclaimed below its protection (`memory.low`).
    pub low: Option<u64>,
    /// Its tasks were slowed down over `memory.high`.
    pub high: Option<u64>,
    /// Its usage was about to exceed `memory.max` (version 1: `memory.failcnt`, of that group
    /// alone).
    pub max: Option<u64>,
    /// It was at its limit, and an allocation was about to fail.
    pub oom: Option<u64>,
    /// Processes killed because of it.
    pub oom_kill: Option<u64>,
}

impl MemoryEvents {
    /// Reads the events of the group in this directory. A file that is missing, unreadable or not a
    /// number counts as `None`, so that the group's other figures remain usable.
    pub(super) fn read(version: CgroupVersion, directory: &Path) -> Self {
        let text = |name| read_optional(&directory.join(name)).ok().flatten().unwrap_or_default();
        match version {
            CgroupVersion::V1 => Self {
                max: text("memory.failcnt").trim().parse().ok(),
                oom_kill: counter_of(&text("memory.oom_control"), "oom_kill"),
                ..Self::default()
            },
            CgroupVersion::V2 => {
                let text = text("memory.events");
                let of = |name| counter_of(&text, name);
                Self {
                    low: of("low"),
                    high: of("high"),
                    max: of("max"),
                    oom: of("oom"),
                    oom_kill: of("oom_kill"),
                }
            }
        }
    }

    /// Returns the increase since `before`; `None` for a counter that is missing in either, or that
    /// belongs to another group and is lower.
    ///
    /// ```
    /// use pagekeeper_kernel::pressure::MemoryEvents;
    /// let at = |max| MemoryEvents { max: Some(max), ..MemoryEvents::default() };
    /// assert_eq!(at(9).since(&at(4)), at(5));
    /// assert_eq!(at(4).since(&at(9)).max, None);
    /// ```
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let more = |of: fn(&Self) -> Option<u64>| of(self)?.checked_sub(of(before)?);
        Self {
            low: more(|events| events.low),
            high: more(|events| events.high),
            max: more(|events| events.max),
            oom: more(|events| events.oom),
            oom_kill: more(|events| events.oom_kill),
        }
    }
}

/// Returns a counter of a file with one name and number per line.
fn counter_of(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_as_kernels_have_written_them() {
        // Linux 6.1, and 4.14, which had no oom_kill.
        let text = "low 0\nhigh 12\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(counter_of(text, "oom"), Some(1));
        assert_eq!(counter_of(text, "high"), Some(12));
        assert_eq!(counter_of("low 0\nhigh 0\nmax 0\noom 0\n", "oom_kill"), None);
        assert_eq!(counter_of("max many\n", "max"), None);
    }

    #[test]
    fn events_that_a_group_does_not_count_are_unknown() {
        let directory = tempfile::tempdir().unwrap();
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            assert_eq!(MemoryEvents::read(version, directory.path()), MemoryEvents::default());
        }
        std::fs::write(directory.path().join("memory.failcnt"), "12\n").unwrap();
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        std::fs::write(directory.path().join("memory.oom_control"), control).unwrap();
        let events = MemoryEvents::read(CgroupVersion::V1, directory.path());
        assert_eq!((events.max, events.oom_kill, events.oom), (Some(12), Some(3), None));
    }
}
