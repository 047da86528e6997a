//! The syncs seen during the watch: the durations of groups of them, and whose commits they are.
//!
//! A sync waits behind everything that was in the device's queue before it. On ext4 and XFS it also
//! waits behind the data that the journal's transaction orders before it. None of that is
//! throttling because of dirty pages, so it shows in no count of throttled writers.
//!
//! Invariant: times count from the start of the observation. A sync still running at its end lasts
//! at least until then.

use std::time::Duration;

use pagekeeper_observe::{File, SeenSync, SyncedFile, Syncs};
use pagekeeper_policy::FileClass;

use crate::finders::is_background;
use crate::observation::Observation;
use crate::observed::attribution::{database_of, device_name};
use crate::settings::{Engine, SettingOrigin};

/// Number of syncs during an observation from which on a program other than a database counts as
/// one that syncs.
const FREQUENT_SYNCS_MIN: usize = 10;

/// The setting that determines when InnoDB syncs its redo log.
pub(crate) const SYNC_AT_COMMIT: &str = "innodb_flush_log_at_trx_commit";
/// With any value other than 1, InnoDB syncs its redo log once per second, and at checkpoints.
const REDO_SYNCS_A_SECOND: f64 = 5.0;

/// The call that waits for a written range, and makes nothing durable.
const RANGE_SYNC: &str = "sync_file_range";

/// The durations of some syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncTimes {
    pub(crate) count: usize,
    /// Time during which at least one of them was running.
    pub(crate) waited: Duration,
    /// The 99th percentile of the durations.
    pub(crate) p99: Duration,
    pub(crate) longest: Duration,
    pub(crate) go_on: usize,
}

impl SyncTimes {
    pub(crate) fn of(calls: &[&SeenSync]) -> Self {
        let mut lengths: Vec<Duration> = calls.iter().map(|call| call.took).collect();
        lengths.sort_unstable();
        let at = (lengths.len() * 99).div_ceil(100).saturating_sub(1);
        Self {
            count: lengths.len(),
            waited: covered(calls),
            p99: lengths.get(at).copied().unwrap_or_default(),
            longest: lengths.last().copied().unwrap_or_default(),
            go_on: calls.iter().filter(|call| call.goes_on).count(),
        }
    }
}

/// Returns the time covered by at least one of these syncs.
fn covered(calls: &[&SeenSync]) -> Duration {
    let mut spans: Vec<(Duration, Duration)> =
        calls.iter().map(|call| (call.began, call.began + call.took)).collect();
    spans.sort_unstable();
    let (mut sum, mut until) = (Duration::ZERO, Duration::ZERO);
    for (began, ended) in spans {
        sum += ended.saturating_sub(began.max(until));
        until = until.max(ended);
    }
    sum
}

impl Observation<'_> {
    /// Adds the syncs that were seen. A server's behaviour takes precedence over its configuration:
    /// one that syncs its redo log far more often than once per second does so at each commit,
    /// whatever its settings files say.
    #[must_use]
    pub fn with_syncs(mut self, syncs: Option<Syncs>) -> Self {
        self.syncs = syncs;
        for index in 0..self.settings.len() {
            let is_innodb = matches!(self.settings[index].engine, Engine::MariaDb | Engine::MySql);
            if is_innodb && self.syncs_redo_at_commits(index) {
                self.settings[index].add(SYNC_AT_COMMIT, "1", SettingOrigin::Seen);
            }
        }
        self
    }

    fn syncs_redo_at_commits(&self, database: usize) -> bool {
        let Some(syncs) = &self.syncs else { return false };
        let files = syncs.by_file().into_iter().filter(|(file, _)| {
            let known = self.synced_file(file);
            known.is_some_and(|file| file.database == Some(database) && file.class == Some(FileClass::Redo))
        });
        let count: usize = files.map(|(_, calls)| calls.len()).sum();
        count as f64 > syncs.looked.as_secs_f64() * REDO_SYNCS_A_SECOND
    }

    /// Returns the kernel's name for the device of a synced file.
    pub(crate) fn device_of(&self, synced: &SyncedFile) -> String {
        // On btrfs stat shows another device than the kernel's own.
        device_name(self, self.synced_file(synced).map_or(synced.inode.dev, |file| file.inode.dev))
    }

    /// Returns a synced file from the snapshots; `None` if they do not have it.
    pub(crate) fn synced_file(&self, synced: &SyncedFile) -> Option<&File> {
        let mut all = self.after.files.iter().chain(&self.before.files);
        all.find(|file| file.stat_inode == synced.inode)
    }

    /// Whether commits are synced on this device: by a database at all, or by others often. False
    /// if syncs were not observed.
    pub(crate) fn is_synced(&self, device: &str) -> bool {
        self.is_any_synced(|name| name == device)
    }

    /// Whether commits are synced on any device that `wanted` selects.
    pub(crate) fn is_any_synced(&self, wanted: impl Fn(&str) -> bool) -> bool {
        let mut of_others = 0;
        self.syncs.iter().flat_map(Syncs::by_file).any(|(file, calls)| {
            let commits = calls.iter().filter(|call| self.is_commit(call)).count();
            if commits == 0 || !wanted(&self.device_of(file)) {
                return false;
            }
            of_others += commits;
            of_others >= FREQUENT_SYNCS_MIN || database_of(self, &calls[0].task).is_some()
        })
    }

    /// Whether somebody may wait for a sync as a commit. Excluded are syncs by which a program
    /// bounds its own dirty pages, as a copy may, and syncs in the background, where flushes and
    /// checkpoints sync their output.
    fn is_commit(&self, call: &SeenSync) -> bool {
        call.call != RANGE_SYNC && !is_background(self, &call.task)
    }

    /// Returns how long a database's threads were in syncs, except background ones; `None` if syncs
    /// were not observed.
    pub(crate) fn sync_times_of(&self, database: usize) -> Option<SyncTimes> {
        let files = self.syncs.as_ref()?.by_file().into_iter();
        let own = files.filter(|(_, calls)| database_of(self, &calls[0].task) == Some(database));
        let calls = own.flat_map(|(_, calls)| calls).filter(|call| self.is_commit(call));
        Some(SyncTimes::of(&calls.collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::innodb::by_commit;
    use crate::settings::Settings;
    use crate::testing::{file, sample, sync};
    use proptest::prelude::*;

    #[test]
    fn time_in_several_syncs_at_once_counts_once() {
        let calls = [
            sync(100, "/log", 0, 10),
            sync(100, "/log", 5, 10),
            sync(100, "/log", 20, 1),
            sync(100, "/log", 21, 0),
        ];
        let calls: Vec<&SeenSync> = calls.iter().collect();
        let times = SyncTimes::of(&calls);
        assert_eq!((times.count, times.waited), (4, Duration::from_millis(16)));
        assert_eq!((times.p99, times.longest), (Duration::from_millis(10), Duration::from_millis(10)));
        assert_eq!(SyncTimes::of(&[]).longest, Duration::ZERO);
    }

    #[test]
    fn a_database_syncs_with_one_and_others_with_many() {
        let snapshot = sample();
        let mut observation = Observation::new(&snapshot, &snapshot);
        assert!(!observation.is_synced("8:0"), "not looked at");
        let synced =
            |pid, count| Some(Syncs { calls: vec![sync(pid, "/log", 0, 1); count], ..Syncs::default() });
        observation.syncs = synced(100, 1);
        assert!(observation.is_synced("8:0") && !observation.is_synced("7:0"));
        observation.syncs = synced(7, FREQUENT_SYNCS_MIN - 1);
        assert!(!observation.is_synced("8:0"));
        observation.syncs = synced(7, FREQUENT_SYNCS_MIN);
        assert!(observation.is_synced("8:0"));
        for call in &mut observation.syncs.as_mut().unwrap().calls {
            call.call = RANGE_SYNC;
        }
        assert!(!observation.is_synced("8:0"));
        observation.syncs = synced(100, FREQUENT_SYNCS_MIN);
        for call in &mut observation.syncs.as_mut().unwrap().calls {
            call.task.name = "rocksdb:low".to_owned();
        }
        assert!(!observation.is_synced("8:0"), "what merges syncs its tables");
        assert_eq!(observation.sync_times_of(0).unwrap().count, 0);
    }

    #[test]
    fn observed_syncs_at_commits_outweigh_the_command_line() {
        let mut snapshot = sample();
        snapshot.files = vec![file("/var/lib/mysql/ib_logfile0", FileClass::Redo, 0, 0)];
        let mut settings = Settings::new(Engine::MariaDb);
        settings.add(SYNC_AT_COMMIT, "2", SettingOrigin::CommandLine);
        let by_commit_after = |syncs: usize| {
            let calls = vec![sync(100, "/var/lib/mysql/ib_logfile0", 0, 1); syncs];
            let mut observation = Observation::new(&snapshot, &snapshot);
            observation.settings = vec![settings.clone()];
            let syncs = Syncs { looked: Duration::from_secs(10), calls, lost: 0 };
            by_commit(&observation.with_syncs(Some(syncs)).settings[0])
        };
        let said = by_commit_after(10).expect("once a second");
        assert!(said.contains("SET GLOBAL may have changed it"), "{said}");
        assert_eq!(by_commit_after(51), None);
    }

    proptest! {
        #[test]
        fn covered_time_is_between_the_longest_and_the_sum(spans in prop::collection::vec((0_u64..1000, 0_u64..100), 1..30)) {
            let calls: Vec<SeenSync> = spans.iter().map(|&(began, took)| sync(1, "/log", began, took)).collect();
            let calls: Vec<&SeenSync> = calls.iter().collect();
            let times = SyncTimes::of(&calls);
            let sum: Duration = calls.iter().map(|call| call.took).sum();
            prop_assert!(times.longest <= times.waited && times.waited <= sum && times.p99 <= times.longest);
        }
    }
}
