//! Decides: turns observations into facts for the policy, and the policy's actions into acts on
//! files.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagekeeper_catalog::disks;
use pagekeeper_catalog::postgresql::process_title;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::follower_history::FollowerHistory;
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::{
    DiskProfile, FileId, Leftovers, LogId, LogWarning, StepAction, StepFacts, StepState, step,
};

use super::carry_out::ReleasedRange;
use super::report::Report;
use super::sampling::descriptors;
use super::watched::WatchList;
use crate::config::Settings;
use crate::decision::{Action, Decision, FileAct, FileWarning};
use crate::descriptors::Descriptor;
use crate::directory::Directory;
use crate::entry::Entry;
use crate::facts::see;
use crate::ids::DirectoryId;
use crate::state_files::with_state_files;

/// Releases that were not complete are retried this often.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The state that decisions carry over.
pub(super) struct Decider {
    policy: StepState,
    followers: FollowerHistory,
    retry: u64,
    retry_due: Instant,
}

impl Decider {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            policy: StepState::default(),
            followers: FollowerHistory::default(),
            retry: 0,
            retry_due: now + RETRY_INTERVAL,
        }
    }

    /// Returns whether it is time to retry incomplete releases.
    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        now >= self.retry_due
    }

    /// Takes back acts that were decided and not done.
    pub(super) fn not_done(&mut self, acts: &[(FileId, Range<u64>)]) {
        for (file, range) in acts {
            self.policy.not_done(*file, range);
        }
    }

    /// Records the ranges that were released, after the decision on these facts.
    pub(super) fn released(&mut self, facts: &StepFacts, released: &[ReleasedRange]) {
        let ids: HashSet<FileId> = released.iter().map(|released| released.file).collect();
        for file in facts.files.iter().filter(|file| !ids.is_empty() && ids.contains(&file.id)) {
            for released in released.iter().filter(|released| released.file == file.id) {
                self.policy.released(file, &released.range, &released.left);
            }
        }
    }

    /// Reports released bytes that readers read back, as of the last decision. Returns the bytes,
    /// and the number of logs that are kept because they are read back.
    pub(super) fn report_read_back(&self, watched: &WatchList, report: &mut Report) -> (u64, usize) {
        let read_back = self.policy.read_back();
        let files = find_files(read_back.iter().map(|(file, _)| *file), watched);
        for (file, bytes) in read_back {
            if let Some(&(index, _, entry)) = files.get(file) {
                let directory = &watched.directories[index];
                report.read_back(directory, directory.spec(entry.log).class, *bytes);
            }
        }
        (read_back.iter().map(|(_, bytes)| bytes).sum(), self.policy.kept_logs())
    }

    /// Returns the facts for the policy.
    pub(super) fn facts(
        &mut self,
        watched: &mut WatchList,
        settings: &Settings,
        report: &mut Report,
        now: Instant,
    ) -> StepFacts {
        if self.is_retry_due(now) {
            self.retry += 1;
            self.retry_due = now + RETRY_INTERVAL;
            let entries = watched.directories.iter().flat_map(|directory| directory.entries.values());
            let files: HashSet<FileId> = entries.map(|entry| entry.id).collect();
            self.policy.retain_files(|file| files.contains(&file));
        }
        let limits = settings.options.wal_readers;
        let mut facts = StepFacts { retry: self.retry, ..StepFacts::default() };
        let (strangers, titles) = (strangers(watched), titles(watched));
        let WatchList { databases, others, directories, .. } = watched;
        let mut by_directory: HashMap<DirectoryId, Vec<&Descriptor>> = HashMap::new();
        for descriptor in descriptors(databases, others) {
            by_directory.entry(descriptor.directory).or_default().push(descriptor);
        }
        for directory in directories {
            let own = by_directory.get(&directory.id).map_or(&[][..], Vec::as_slice);
            see(directory, own, &strangers, &mut facts);
            let of_owner = directory.owner.and_then(|owner| titles.get(&owner));
            let titles = of_owner.map_or(&[][..], Vec::as_slice);
            with_state_files(directory, |files, directory| {
                files.add(directory, titles, &limits, &mut facts, &mut |path, problem| {
                    report.problem(path, &problem);
                });
            });
        }
        // Files that followers went through since the last tick have pages that nothing else shows.
        let mut passed: HashMap<LogId, Vec<RangeInclusive<u64>>> = HashMap::new();
        for (log, sequences) in self.followers.passed(&facts.followers) {
            passed.entry(log).or_default().push(sequences);
        }
        if !passed.is_empty() {
            let is_wanted = |entry: &Entry| is_passed(&passed, entry);
            watched.directories.iter_mut().for_each(|directory| directory.sample_now(is_wanted));
        }
        facts
    }

    /// Returns the acts that the policy's rules decide on.
    pub(super) fn decide(
        &mut self,
        facts: &StepFacts,
        watched: &mut WatchList,
        settings: &Settings,
    ) -> Decision {
        let acts = step(&mut self.policy, facts);
        if acts.is_empty() {
            return Decision::default();
        }
        let leftovers = leftovers(&acts, watched, settings);
        let files = find_files(acts.iter().map(file_of), watched);
        let mut decision = Decision::default();
        for act in acts {
            let Some(&(index, name, entry)) = files.get(&file_of(&act)) else { continue };
            let directory = &watched.directories[index];
            let (path, inode, spec) = (directory.path_of(name), entry.inode, directory.spec(entry.log));
            let (range, action) = match act {
                StepAction::StartWriteback { range, .. } => (range, Action::StartWriteback),
                StepAction::Release { range, .. } => (range, Action::Release),
                StepAction::Warn { warning, .. } => {
                    let leftovers = leftovers.get(&index).copied().unwrap_or(Leftovers::Unknown);
                    if let Some(mut text) = warning.text(leftovers) {
                        if warning != LogWarning::ReadBack {
                            let settings = &directory.logs[&entry.log].settings;
                            let hint = spec.hint.as_deref().filter(|_| settings.has_setting);
                            for more in [settings.by.as_deref(), hint].into_iter().flatten() {
                                text = format!("{text}; {more}");
                            }
                        }
                        decision.warnings.push(FileWarning { path, inode, warning, text, directory: index });
                    }
                    continue;
                }
            };
            let (class, rule) = (spec.class, directory.rule(entry.log));
            decision.acts.push(FileAct {
                path,
                inode,
                range,
                action,
                class,
                rule,
                file: entry.id,
                directory: index,
            });
        }
        decision
    }
}

/// Returns the titles of PostgreSQL's processes that show readers of WAL, by server.
fn titles(watched: &WatchList) -> HashMap<u32, Vec<(u32, String)>> {
    let with_titles = watched.databases.iter().filter(|database| !database.titled.is_empty());
    let titles = with_titles.map(|database| {
        let titles = database.titled.iter().map(|&pid| (pid, process_title(&watched.proc, pid)));
        (database.pid, titles.collect())
    });
    titles.collect()
}

/// Returns the processes that write a watched file and neither are a database nor were started by
/// one.
fn strangers(watched: &WatchList) -> HashSet<u32> {
    let table = watched.discovery.processes();
    let mut strangers: HashSet<u32> =
        watched.others.known().filter(|known| known.writes()).map(|descriptor| descriptor.pid).collect();
    if !strangers.is_empty() {
        let databases: HashSet<u32> = watched.databases.iter().map(|database| database.pid).collect();
        let parent = |pid| table.get(pid).map(|process| process.parent);
        strangers.retain(|pid| !parent(*pid).is_some_and(|parent| databases.contains(&parent)));
    }
    strangers
}

/// Returns files by their ids: the index of their directory, their name and entry.
fn find_files(
    ids: impl Iterator<Item = FileId>,
    watched: &WatchList,
) -> HashMap<FileId, (usize, &OsStr, &Entry)> {
    let wanted: HashSet<FileId> = ids.collect();
    if wanted.is_empty() {
        return HashMap::new();
    }
    let directories = watched.directories.iter().enumerate();
    let theirs = directories.filter(|(_, directory)| directory.facts_cache.has_any(&wanted));
    let entries = theirs.flat_map(|(index, directory)| {
        directory.entries.iter().map(move |(name, entry)| (index, name.as_os_str(), entry))
    });
    entries.filter(|(_, _, entry)| wanted.contains(&entry.id)).map(|found| (found.2.id, found)).collect()
}

/// Returns the cost of leftovers for the directories for which a warning states it. A directory
/// whose file system does not answer is left alone, and its cost is unknown.
fn leftovers(acts: &[StepAction], watched: &mut WatchList, settings: &Settings) -> HashMap<usize, Leftovers> {
    let warns =
        |act: &&StepAction| matches!(act, StepAction::Warn { warning: LogWarning::DirectButResident, .. });
    let warned = find_files(acts.iter().filter(warns).map(file_of), watched);
    let directories: HashSet<usize> = warned.into_values().map(|(index, _, _)| index).collect();
    let mut found = HashMap::new();
    for index in directories {
        let directory = &watched.directories[index];
        let (key, path, same) = (directory.database(), directory.path.clone(), directory.without_files());
        let (proc, given) = (watched.proc.clone(), settings.options.disk_profiles.clone());
        let disk = watched.jobs.find_out(&key, &path, move || disk_of(&given, &same, &proc));
        found.insert(index, Leftovers::of(disk.flatten().as_ref()));
    }
    found
}

/// Returns the profile of the disk that a directory is on: one of `given`, else the saved one. A
/// profile that can't be read counts as none. May hang if the file system hangs.
fn disk_of(given: &[DiskProfile], directory: &Directory, proc: &ProcRoot) -> Option<DiskProfile> {
    let found = directory.find(proc).ok()?;
    // Through the descriptor: the path may be one of another namespace.
    let link = PathBuf::from(format!("/proc/self/fd/{}", found.as_fd().as_raw_fd()));
    disks::of(given, &link).ok().flatten()
}

/// Returns whether followers passed a file. Without a number, a file's place changes with each
/// write, so a range of places says nothing.
fn is_passed(passed: &HashMap<LogId, Vec<RangeInclusive<u64>>>, entry: &Entry) -> bool {
    let of_log = passed.get(&entry.log).filter(|_| entry.number != FileNumber::None);
    of_log.is_some_and(|all| all.iter().any(|sequences| sequences.contains(&entry.sequence)))
}

/// Returns the file that an act is about.
fn file_of(act: &StepAction) -> FileId {
    match *act {
        StepAction::StartWriteback { file, .. }
        | StepAction::Release { file, .. }
        | StepAction::Warn { file, .. } => file,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::directory;

    #[test]
    fn only_numbered_files_can_be_passed_by_a_follower() {
        let dir = pagekeeper_testing::disk_dir();
        for name in ["general.log", "general.log.1", "binlog.index", "binlog.000003", "binlog.000004"] {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        let directory = directory(dir.path(), "mariadb");
        let passed = |name: &str, sequences: RangeInclusive<u64>| {
            let entry = &directory.entries[OsStr::new(name)];
            is_passed(&HashMap::from([(entry.log, vec![sequences])]), entry)
        };
        assert!(passed("binlog.000003", 1..=3) && !passed("binlog.000004", 1..=3));
        assert!(!passed("general.log", 0..=1) && !passed("general.log.1", 0..=1));
    }
}
