//! Checks that the rule for memory cgroups finds the groups that it names. A glob that matches
//! nothing is reported once, a minute after the start.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use globset::GlobMatcher;

use super::report::Report;
use pagekeeper_text::escaped;

/// The report comes this long after the first look.
const REPORT_AFTER: Duration = Duration::from_secs(60);

/// Observations so far.
#[derive(Default)]
pub(super) struct GroupSight {
    since: Option<Instant>,
    said: bool,
    /// Whether any process's group was seen.
    visible: bool,
    /// A group that the rule would name if it had the memory controller.
    off: Option<PathBuf>,
    /// A group that the rule does not name.
    other: Option<PathBuf>,
    /// Indices of the globs that have matched.
    matched: BTreeSet<usize>,
}

impl GroupSight {
    /// Records that a process is in this group.
    pub(super) fn saw(&mut self, group: &Path, is_off: bool) {
        self.visible = true;
        let seen = if is_off { &mut self.off } else { &mut self.other };
        seen.get_or_insert_with(|| group.to_path_buf());
    }

    /// Records that a process's memory is charged to this group. Returns whether a glob matches
    /// that.
    pub(super) fn matches(&mut self, globs: &[GlobMatcher], charged: &Path) -> bool {
        let matching = globs.iter().enumerate().filter(|(_, glob)| glob.is_match(charged));
        let before: Vec<usize> = matching.map(|(index, _)| index).collect();
        self.visible = true;
        self.matched.extend(&before);
        !before.is_empty()
    }

    /// Reports globs that matched nothing, once, when it is time.
    pub(super) fn report(&mut self, globs: &[GlobMatcher], report: &mut Report, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if self.said || now.saturating_duration_since(since) < REPORT_AFTER {
            return;
        }
        self.said = true;
        if !self.visible {
            let problem = "[cgroup] does nothing: the control groups of watched databases can't be seen here. Their hierarchy has to be \
                           mounted (cgroup.mount of the chart), and to have the memory controller";
            report.problem(PathBuf::from("/sys/fs/cgroup"), &problem);
            return;
        }
        for (_, glob) in globs.iter().enumerate().filter(|(index, _)| !self.matched.contains(index)) {
            let glob = glob.glob().glob();
            let of_off = self
                .off
                .as_ref()
                .map(|off| format!("{} is one, but the memory controller is off there", escaped(off)));
            let of_other = || self.other.as_ref().map(|other| format!("one is in {}", escaped(other)));
            let where_to = of_off.or_else(of_other).map(|text| format!(" ({text})")).unwrap_or_default();
            let problem = format!(
                "[cgroup] has done nothing for this glob so far: no watched database's memory is charged to such a group{where_to}"
            );
            report.problem(PathBuf::from(glob), &problem);
        }
    }
}
