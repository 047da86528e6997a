//! Finds readers of PostgreSQL's WAL that no descriptor shows:
//!
//! - WAL senders, the archiver and replay, by the titles of their processes;
//! - segments that are yet to be archived, by the notes in `archive_status`;
//! - replication slots, by their files in `pg_replslot`.
//!
//! Invariants:
//! 1. An old observation holds too much, never too little: a segment counts as archived once its
//!    note says so, and a slot only advances.
//! 2. A directory is read at most every [`WAL_READERS_INTERVAL`], with at most [`NOTES_MAX`] notes
//!    and a bounded number of [slots](ReplicationSlots). More would take the processor time that
//!    its database has for samples.
//! 3. Nothing is read unless the log's rule depends on followers. Only [`WalReaders::read`] does
//!    I/O, in a thread that may be left behind.
//!
//! A note or slot that can't be read holds nothing. That is reported, unless it has disappeared
//! meanwhile. If `archive_status` can't be read, only the archiver's title counts.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagekeeper_catalog::postgresql::slot::ReplicationSlot;
use pagekeeper_catalog::postgresql::{
    ArchiveNote, DataDirectory, ReplicationSlots, WalReaderKind, known_in_part, wal_reader,
};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{ExpectedFile, PathHandle};
use pagekeeper_policy::names::{FileNumber, SegmentSize};
use pagekeeper_policy::{FileId, FilePosition, FollowerFacts, FollowerId, LogId, Rule, StepFacts};

use crate::config::WalReaderLimits;
use crate::directory::Directory;
use crate::entry::Entry;
use crate::ids::hash_of;

/// Time between two looks.
const WAL_READERS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of segments whose notes are looked up at once.
const NOTES_MAX: usize = 256;

/// The readers of the WAL in a directory, as far as files show them.
#[derive(Default)]
pub(crate) struct WalReaders {
    slots: ReplicationSlots,
    read: Option<Instant>,
    /// The notes of segments, unless `archive_status` can't be read, or the server has no archiver.
    notes: Option<HashMap<FileId, ArchiveNote>>,
    /// Whether the server had an archiver at the last look.
    has_archiver: Option<bool>,
    problems: Vec<(PathBuf, String)>,
}

impl WalReaders {
    /// Returns whether [`Self::read`] is due.
    pub(crate) fn are_due(&self, directory: &Directory, now: Instant) -> bool {
        let is_due = |read| now.saturating_duration_since(read) >= WAL_READERS_INTERVAL;
        FollowedWal::of(directory).is_some() && self.read.is_none_or(is_due)
    }

    /// Reads slots and notes; a file system may block that for any time. Calls `begins` before
    /// each, and says whether it may be on another file system than the directory.
    pub(crate) fn read(
        &mut self,
        directory: &Directory,
        proc: &ProcRoot,
        limits: &WalReaderLimits,
        now: Instant,
        begins: &dyn Fn(bool),
    ) {
        let Some(wal) = FollowedWal::of(directory) else { return };
        self.read = Some(now);
        begins(true);
        let (pid, wal_directory) = (directory.owner, directory.path.as_path());
        self.slots.read(&DataDirectory { proc, pid, wal: wal_directory });
        begins(false);
        // For a directory that was named no process is known.
        let may_archive = directory.owner.is_none() || self.has_archiver != Some(false);
        let writer = wal.entries(directory).max_by_key(|(_, entry)| (entry.changed, entry.sequence));
        match writer.filter(|_| may_archive) {
            Some((_, writer)) => self.read_notes(&wal, directory, proc, (writer.sequence, limits)),
            None => self.notes = None,
        }
    }

    /// Reads the notes of the segments up to the writer's that are yet to be archived, as far as is
    /// known.
    fn read_notes(
        &mut self,
        wal: &FollowedWal,
        directory: &Directory,
        proc: &ProcRoot,
        (writer, limits): (u64, &WalReaderLimits),
    ) {
        let path = directory.path_of(OsStr::new("archive_status"));
        let opened = directory.find(proc).and_then(|wal| {
            PathHandle::in_directory(wal.as_fd(), "archive_status", path.clone())?
                .open_directory(ExpectedFile::Any)
        });
        let status = match opened {
            Ok(status) => status,
            Err(error) => {
                self.notes = None;
                if !error.is_gone() {
                    self.problems.push((path, known_in_part(&error)));
                }
                return;
            }
        };
        let notes = self.notes.get_or_insert_default();
        let is_open = |entry: &Entry| notes.get(&entry.id) != Some(&ArchiveNote::Done);
        let mut segments: Vec<_> = wal.unarchived_near(directory, writer, limits, is_open).collect();
        segments.sort_unstable_by_key(|(_, entry)| entry.sequence);
        segments.truncate(NOTES_MAX);
        for (name, entry) in segments {
            notes.insert(entry.id, ArchiveNote::of(status.as_fd(), &path, name));
        }
    }

    /// Adds the readers of the WAL in the directory, whose files are among the facts already.
    /// `titles` are those of the server's processes. Calls `problem` for what could not be read.
    pub(crate) fn add(
        &mut self,
        directory: &Directory,
        titles: &[(u32, String)],
        limits: &WalReaderLimits,
        facts: &mut StepFacts,
        problem: &mut dyn FnMut(PathBuf, String),
    ) {
        let Some(wal) = FollowedWal::of(directory) else { return };
        let problems = self.slots.problems.drain(..).chain(self.problems.drain(..));
        problems.for_each(|(path, text)| problem(path, text));
        let files = facts.files.iter().filter(|file| file.log == wal.log && file.writer.is_some());
        let writer = files.map(|file| file.sequence).max();
        let mut readers = Vec::new();
        let mut archiver = None;
        for (pid, title) in titles {
            let Some(reader) = wal_reader(title, wal.segment_size) else { continue };
            let near_files = match reader.kind {
                WalReaderKind::Sender => 0,
                WalReaderKind::Replay => wal.files_in(limits.standby),
                WalReaderKind::Archiver => {
                    archiver = Some(reader.place);
                    continue;
                }
            };
            let id = FollowerId(u64::from(*pid));
            readers.extend(reader.place.map(|place| wal.follower(id, place, near_files)));
        }
        let place = match self.notes.as_ref().zip(writer) {
            Some((notes, writer)) => {
                let is_open = |entry: &Entry| match notes.get(&entry.id) {
                    Some(ArchiveNote::Done) => false,
                    Some(ArchiveNote::Ready) => true,
                    // The server makes the note once the segment is full.
                    Some(ArchiveNote::Missing) => archiver.is_some(),
                    // Its note was not looked up after the segment became full.
                    None => archiver.is_some() || (directory.owner.is_none() && entry.sequence < writer),
                };
                let open = wal.unarchived_near(directory, writer, limits, is_open);
                open.map(|(_, entry)| (entry.sequence, FilePosition::At(0)))
                    .min_by_key(|(sequence, _)| *sequence)
            }
            None => archiver.flatten(),
        };
        let id = FollowerId(hash_of(&("archiver", wal.log.0)));
        readers.extend(place.map(|place| wal.follower(id, place, wal.files_in(limits.archiver))));
        readers.extend(wal.followers_of_slots(&self.slots.found));
        facts.followers.extend(readers);
        self.has_archiver = self.read.map(|_| archiver.is_some());
        if let Some(notes) = self.notes.as_mut().filter(|notes| notes.len() > directory.entries.len()) {
            notes.retain(|file, _| directory.entries.values().any(|entry| entry.id == *file));
        }
    }
}

/// The WAL in a directory, if its rule depends on followers.
struct FollowedWal {
    log: LogId,
    segment_size: Option<SegmentSize>,
    near_files: u64,
}

impl FollowedWal {
    fn of(directory: &Directory) -> Option<Self> {
        if !directory.profile.postgresql_titles {
            return None;
        }
        let is_segment = |entry: &&Entry| matches!(entry.number, FileNumber::WalSegment(_));
        let log = directory.entries.values().find(is_segment)?.log;
        match directory.rule(log) {
            Rule::ReleaseBehindFollowers { near_files, .. }
            | Rule::ReleaseBeforeCheckpoint { near_files, .. } => {
                Some(Self { log, segment_size: directory.logs[&log].segment_size, near_files })
            }
            Rule::Keep
            | Rule::ReleaseBehindWriter { .. }
            | Rule::ReleaseOnRotation
            | Rule::Budget { .. }
            | Rule::Direct => None,
        }
    }

    /// Returns how many segments `bytes` may reach into.
    fn files_in(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.segment_size.unwrap_or(SegmentSize::DEFAULT).bytes())
    }

    fn entries<'a>(&self, directory: &'a Directory) -> impl Iterator<Item = (&'a OsStr, &'a Entry)> {
        let log = self.log;
        let entries = directory.entries.iter().map(|(name, entry)| (name.as_os_str(), entry));
        entries.filter(move |(_, entry)| entry.log == log)
    }

    /// Returns the segments up to the writer's that have resident pages, are yet to be archived by
    /// `is_open`, and are near enough to be waited for.
    fn unarchived_near<'a>(
        &self,
        directory: &'a Directory,
        writer: u64,
        limits: &WalReaderLimits,
        is_open: impl Fn(&Entry) -> bool,
    ) -> impl Iterator<Item = (&'a OsStr, &'a Entry)> {
        let first = writer.saturating_sub(self.near_files.max(self.files_in(limits.archiver)));
        let near =
            self.entries(directory).filter(move |(_, entry)| (first..=writer).contains(&entry.sequence));
        near.filter(move |(_, entry)| !entry.sample.windows.is_empty() && is_open(entry))
    }

    fn follower(
        &self,
        id: FollowerId,
        (sequence, position): (u64, FilePosition),
        near_files: u64,
    ) -> FollowerFacts {
        FollowerFacts { id, log: self.log, sequence, position, near_files }
    }

    /// Returns a follower for each slot, where its reader may begin. A physical slot counts in
    /// addition to any WAL senders: no title says whether a sender uses a slot. Its file lags
    /// behind its sender until the next checkpoint, which holds at most `near_files` segments more.
    fn followers_of_slots(&self, slots: &[(OsString, ReplicationSlot)]) -> Vec<FollowerFacts> {
        let size = self.segment_size.unwrap_or(SegmentSize::DEFAULT);
        let follower = |(name, slot): &(OsString, ReplicationSlot)| {
            let (sequence, offset) = size.place_of(slot.restart_lsn?);
            let id = FollowerId(hash_of(&("slot", name, self.log.0)));
            Some(self.follower(id, (sequence, FilePosition::At(offset)), 0))
        };
        slots.iter().filter_map(follower).collect()
    }
}

#[cfg(test)]
mod tests;
