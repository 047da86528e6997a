//! Turns observations into the facts that the policy asks for: which file is the writer's and where
//! the writer is, and which followers there are.
//!
//! Positions as seen from outside (measured on MariaDB 10.11, MySQL 9.7 and PostgreSQL 15):
//! `/proc/PID/fdinfo` shows the positions of users of read(2) and write(2). For users of pread and
//! pwrite it shows 0, or the position left from when the file was made. A log that only grows has
//! its writer at its end, whatever a descriptor says, unless its profile says that files are
//! preallocated and written by write(2).

use std::collections::{BTreeMap, HashMap, HashSet};

use pagekeeper_catalog::{LogSpec, NewestSpec, PositionSpec};
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_policy::follower_history::forget_rotated_files;
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::{
    DatabaseId, FileClass, FileFacts, FileId, FilePosition, FollowerFacts, FollowerId, LogId, RewriteKind,
    RewriteSource, StepFacts,
};

use crate::descriptors::Descriptor;
use crate::directory::{Directory, Log};
use crate::entry::Entry;
use crate::facts_cache::state_of;
use crate::ids::hash_of;

/// The descriptors of each file.
type ByFile<'a> = HashMap<FileId, Vec<&'a Descriptor>>;

/// Updates where the writers of a directory's logs are, and adds the directory's facts: the cached
/// ones, if nothing has changed since. `strangers` are processes that neither are a database nor
/// were started by one.
pub(crate) fn see(
    directory: &mut Directory,
    descriptors: &[&Descriptor],
    strangers: &HashSet<u32>,
    facts: &mut StepFacts,
) {
    let state = state_of(directory.tight, descriptors, strangers);
    if cfg!(debug_assertions) || !directory.facts_cache.is_of(state) {
        let by_file = by_file(descriptors.iter().copied());
        for log in overwritten_logs(directory, &by_file) {
            directory.overwrites(log);
        }
        recognise_relay_logs(directory, &by_file);
        let mut seen = StepFacts::default();
        add(directory, &by_file, strangers, &mut seen);
        directory.facts_cache.take(state, seen);
    }
    directory.facts_cache.add_to(facts);
}

/// Groups descriptors by file.
fn by_file<'a>(descriptors: impl Iterator<Item = &'a Descriptor>) -> ByFile<'a> {
    let mut grouped: ByFile<'a> = HashMap::new();
    for descriptor in descriptors {
        grouped.entry(descriptor.file).or_default().push(descriptor);
    }
    grouped
}

/// Records where the writers of the directory's logs are. Returns the logs whose writer overwrites
/// a file that it was thought to append to: it has moved since the tick before, and is still short
/// of the end that the file had then.
///
/// A write in progress moves the end first and the position last. So a throttled write looks the
/// same, but its position does not move.
fn overwritten_logs(directory: &mut Directory, by_file: &ByFile<'_>) -> Vec<LogId> {
    let mut overwritten = Vec::new();
    let detected = |log: &Log| directory.profile.logs[log.spec].rewrite == RewriteSource::Detect;
    if by_file.is_empty() || !directory.logs.values().any(detected) {
        return overwritten;
    }
    for entry in directory.entries.values_mut() {
        let Some(position) = short_of_end(entry, by_file) else {
            entry.writer_was_at = None;
            continue;
        };
        if entry.writer_was_at.replace(position).is_some_and(|was| was != position) {
            overwritten.push(entry.log);
        }
    }
    overwritten.retain(|log| directory.spec(*log).position == PositionSpec::Descriptor);
    overwritten
}

/// Finds relay logs among logs that are named like binary logs. A server writes its binary log
/// through descriptors that can't read, and its relay log through ones that can, whatever an
/// operator named it.
fn recognise_relay_logs(directory: &mut Directory, by_file: &ByFile<'_>) {
    let logs = &directory.profile.logs;
    let Some(relay) = logs.iter().position(|log| log.class == FileClass::Relay && log.indexed) else {
        return;
    };
    let may_be = |log: &Log| logs[log.spec].class == FileClass::Binlog && logs[log.spec].indexed;
    let reads_too = |file: &FileId| {
        let descriptors = by_file.get(file).into_iter().flatten();
        descriptors
            .filter(|descriptor| Some(descriptor.pid) == directory.owner)
            .any(|descriptor| descriptor.access == AccessMode::ReadWrite)
    };
    let found: Vec<LogId> = directory
        .entries
        .values()
        .filter(|entry| directory.logs.get(&entry.log).is_some_and(may_be) && reads_too(&entry.id))
        .map(|entry| entry.log)
        .collect();
    for log in found {
        if let Some(log) = directory.logs.get_mut(&log) {
            log.spec = relay;
        }
    }
}

/// Returns where a file's writer is, if that is short of the end that the file had in the sample
/// before.
fn short_of_end(entry: &Entry, by_file: &ByFile<'_>) -> Option<u64> {
    let descriptors = by_file.get(&entry.id)?.iter();
    let writers = descriptors.filter(|descriptor| descriptor.access == AccessMode::WriteOnly);
    let position = writers.map(|descriptor| descriptor.position).max()?;
    (position > 0 && position < entry.previous_size).then_some(position)
}

/// The files of one log that matter now.
struct ActiveLog<'a> {
    /// The files with resident pages, or open in some process.
    active: Vec<&'a Entry>,
    /// The file with the highest number.
    highest: &'a Entry,
    /// The file that changed last.
    latest: &'a Entry,
    /// All files in the order of their last change, where no number orders them.
    by_change: Vec<&'a Entry>,
}

impl ActiveLog<'_> {
    /// Returns a file's place in the log.
    fn sequence(&self, entry: &Entry) -> u64 {
        if entry.number != FileNumber::None {
            return entry.sequence;
        }
        let place =
            self.by_change.partition_point(|other| (other.changed, other.id) < (entry.changed, entry.id));
        u64::try_from(place).unwrap_or(u64::MAX)
    }
}

/// Adds the facts of one directory: the files that matter now, and the followers among `by_file`.
fn add(directory: &Directory, by_file: &ByFile<'_>, strangers: &HashSet<u32>, facts: &mut StepFacts) {
    let mut logs: BTreeMap<LogId, ActiveLog<'_>> = BTreeMap::new();
    for entry in directory.entries.values() {
        let group = logs.entry(entry.log).or_insert_with(|| ActiveLog {
            active: Vec::new(),
            highest: entry,
            latest: entry,
            by_change: Vec::new(),
        });
        if entry.number == FileNumber::None {
            group.by_change.push(entry);
        }
        if !entry.sample.windows.is_empty() || by_file.contains_key(&entry.id) {
            group.active.push(entry);
        }
        if entry.sequence > group.highest.sequence {
            group.highest = entry;
        }
        if (entry.changed, entry.sequence) > (group.latest.changed, group.latest.sequence) {
            group.latest = entry;
        }
    }
    let database = DatabaseId(hash_of(&directory.database()));
    for (log, mut group) in logs {
        let spec = directory.spec(log);
        let rewrite = directory.logs[&log].rewrite;
        let newest = newest(spec.newest, &mut group, by_file);
        group.by_change.sort_unstable_by_key(|entry| (entry.changed, entry.id));
        let mut readers = Vec::new();
        for entry in std::mem::take(&mut group.active) {
            let sequence = group.sequence(entry);
            // The name of a text log does not say whose it is.
            let is_strangers = spec.class == FileClass::Text && is_written_by(strangers, entry, by_file);
            if is_strangers && directory.owner.is_some() {
                continue;
            }
            let written = newest.contains(&entry.id);
            for descriptor in by_file.get(&entry.id).into_iter().flatten() {
                let follower = follower(spec, (entry, sequence), descriptor);
                let is_finished = !written && descriptor.position >= entry.size;
                readers.extend(follower.map(|follower| (descriptor.pid, is_finished, follower)));
            }
            if entry.sample.windows.is_empty() && !written {
                continue;
            }
            // The file may be recycled. The next tick shows that, and until then the file is left
            // alone.
            let may_be_recycled = spec.rewrite == RewriteSource::Detect
                && spec.position == PositionSpec::Descriptor
                && rewrite == RewriteKind::Never;
            if may_be_recycled && short_of_end(entry, by_file).is_some() {
                continue;
            }
            facts.files.push(FileFacts {
                id: entry.id,
                database,
                log,
                sequence,
                class: spec.class,
                rule: directory.rule(log),
                rewrite,
                size: entry.size,
                changed: entry.changed,
                writer: written.then(|| position(spec, rewrite, entry, by_file)),
                windows: entry.sample.windows.as_slice().into(),
            });
        }
        if spec.class == FileClass::Text {
            forget_rotated_files(&mut readers);
        }
        facts.followers.extend(readers.into_iter().map(|(_, _, follower)| follower));
    }
}

/// Returns the files of a log that its writer may be writing, and adds them to the active ones.
fn newest(by: NewestSpec, group: &mut ActiveLog<'_>, by_file: &ByFile<'_>) -> Vec<FileId> {
    let open_for_writing =
        |entry: &&&Entry| by_file.get(&entry.id).into_iter().flatten().any(|descriptor| descriptor.writes());
    let open = group.active.iter().filter(open_for_writing);
    let newest = match by {
        NewestSpec::Number if group.latest.number == FileNumber::None => {
            let mut newest: Vec<FileId> = open.map(|entry| entry.id).collect();
            // A new file, whose descriptor was not seen yet.
            if !newest.contains(&group.latest.id) {
                newest.push(group.latest.id);
            }
            if group.active.iter().all(|entry| entry.id != group.latest.id) {
                group.active.push(group.latest);
            }
            return newest;
        }
        NewestSpec::Number => *open.max_by_key(|entry| entry.sequence).unwrap_or(&group.highest),
        NewestSpec::Changed => group.latest,
        NewestSpec::Open => {
            let open: Vec<FileId> = open.map(|entry| entry.id).collect();
            // No process is seen to have one open: it may be any.
            let any = || group.active.iter().map(|entry| entry.id).collect();
            return if open.is_empty() { any() } else { open };
        }
    };
    if group.active.iter().all(|entry| entry.id != newest.id) {
        group.active.push(newest);
    }
    vec![newest.id]
}

fn position(spec: &LogSpec, rewrite: RewriteKind, entry: &Entry, by_file: &ByFile<'_>) -> FilePosition {
    match spec.position {
        PositionSpec::Hidden => return FilePosition::Unknown,
        PositionSpec::Descriptor if rewrite == RewriteKind::Never => return FilePosition::At(entry.size),
        PositionSpec::Descriptor | PositionSpec::Preallocated => {}
    }
    let writers = by_file.get(&entry.id).into_iter().flatten().filter(|other| other.writes());
    match writers.map(|descriptor| descriptor.position).max() {
        Some(position) if position > 0 => FilePosition::At(position),
        _ => FilePosition::Unknown,
    }
}

/// Returns whether one of these processes has a file open for writing.
fn is_written_by(processes: &HashSet<u32>, entry: &Entry, by_file: &ByFile<'_>) -> bool {
    let mut descriptors = by_file.get(&entry.id).into_iter().flatten();
    descriptors.any(|descriptor| descriptor.writes() && processes.contains(&descriptor.pid))
}

/// Returns the follower that a descriptor of a file at this sequence stands for, if it stands for
/// one.
fn follower(
    spec: &LogSpec,
    (entry, sequence): (&Entry, u64),
    descriptor: &Descriptor,
) -> Option<FollowerFacts> {
    let position = match descriptor.access {
        // If the writer uses pwrite, the server's own readers use pread, which moves no
        // descriptor.
        AccessMode::ReadOnly if spec.position == PositionSpec::Hidden && descriptor.position == 0 => {
            FilePosition::Unknown
        }
        AccessMode::ReadOnly => FilePosition::At(descriptor.position),
        // The threads of a replica share one descriptor while the reader keeps up; its position is
        // that of either.
        AccessMode::ReadWrite if spec.class == FileClass::Relay || spec.indexed => FilePosition::Unknown,
        AccessMode::ReadWrite | AccessMode::WriteOnly | AccessMode::Neither => return None,
    };
    let id = FollowerId(hash_of(&(descriptor.pid, descriptor.fd)));
    Some(FollowerFacts { id, log: entry.log, sequence, position, near_files: 0 })
}

#[cfg(test)]
pub(crate) mod tests;
