//! Changes in the journal that the data file may not have: read once, in wide reads, and kept in
//! the index.
//!
//! Only the beginning of a long journal is kept in memory. For the rest, the index has its place in
//! the journal ([`crate::places`]). So an opening takes no more memory than its share, and reads
//! into memory that is already resident.
//!
//! Invariant: every commit of the journal behind the checkpoint LSN is in the index, in order and
//! without gaps. No page of the data file is read: it does not matter whether it is newer or older.
//!
//! Fails if acknowledged commits are lost, and if a newer version wrote one of the commits.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_io::Io;
use pagekeeper_text::escaped;
use pagekeeper_wal::{LogMode, Lsn, RecoveredRecord, RedoLog, RedoOptions};

use crate::budget::{buffer_bytes, held_share};
use crate::format::entry::{self, EntryFault, EntryReader, PageChange};
use crate::format::page::HEADER_BYTES;
use crate::format::superblock::{StoreMeta, Superblock};
use crate::index::Index;
use crate::options::StoreOptions;
use crate::{Error, PageNo, Seq};

/// Maximum bytes of the journal that are appended but not synced: the maximum that a crash takes
/// from commits that do not wait. It also limits a record, and so how far an opening searches
/// behind the end.
const MAX_UNSYNCED_BYTES: u64 = 4 << 20;
/// Returns the bytes of the longest record that a new store's journal takes, or less.
pub(crate) fn longest_record(options: &StoreOptions, max_journal_bytes: u64) -> u64 {
    let buffer = buffer_bytes(options.memory, max_journal_bytes) as u64;
    // Like the journal's own limit: five blocks less.
    MAX_UNSYNCED_BYTES.min(buffer) - 5 * 4096
}

pub(crate) fn journal_options(
    options: &StoreOptions,
    io: &Arc<dyn Io>,
    max_journal_bytes: u64,
) -> RedoOptions {
    let buffer = buffer_bytes(options.memory, max_journal_bytes);
    let journal = RedoLog::options().io(Arc::clone(io)).buffer_bytes(buffer);
    let journal = journal.max_unsynced(MAX_UNSYNCED_BYTES.min(buffer as u64));
    // The journal is read only once, by a recovery: a mode that keeps its pages out of the page
    // cache, and syncs with the write.
    let journal = journal.mode(LogMode::Auto);
    #[cfg(test)]
    let journal = with_injected_fault(journal, options);
    if options.threads { journal } else { journal.without_threads() }
}

/// Returns the journal's options for a test.
#[cfg(test)]
fn with_injected_fault(journal: RedoOptions, options: &StoreOptions) -> RedoOptions {
    let journal = match options.injected_fault {
        Some(crate::injected_fault::InjectedFault::Journal(bug)) => journal.injected_fault(bug),
        Some(_) | None => journal,
    };
    journal.mode(options.journal_mode)
}

/// The journal and its content.
pub(crate) struct JournalRead {
    pub(crate) log: RedoLog,
    pub(crate) took: Duration,
    pub(crate) bytes: u64,
    pub(crate) found: JournalContent,
}

pub(crate) fn read_journal(
    options: &StoreOptions,
    io: &Arc<dyn Io>,
    newest: &Superblock,
    path: &Path,
    page_size: usize,
) -> Result<JournalRead, Error> {
    let began = Instant::now();
    let journal = journal_options(options, io, newest.max_journal_bytes).read_only(options.is_read_only());
    // The records of one step are taken in while the next ones are read.
    let held_upto = Lsn::new(newest.checkpoint_lsn.get().saturating_add(held_share(options)));
    let mut replay = JournalReplay::new(newest, held_upto, page_size, path);
    let log = journal.recover_into(path, Some(newest.checkpoint_lsn), |record| replay.take(&record))?;
    if log.id() != newest.journal {
        let what = "it is the journal of another store".to_owned();
        return Err(Error::Corrupt { path: path.to_path_buf(), what });
    }
    if log.checkpoint_lsn() > newest.checkpoint_lsn {
        let what = "the superblock is older than the remaining journal".to_owned();
        return Err(Error::Corrupt { path: path.to_path_buf(), what });
    }
    for (path, offset) in log.damaged_paddings() {
        let file = escaped(&path);
        tracing::warn!(%file, offset, "a padding of the journal is damaged: it holds nothing, and no commit is lost");
    }
    let took = began.elapsed();
    let JournalReplay { found, end, fault, .. } = replay;
    let bytes = end - newest.checkpoint_lsn;
    match fault {
        None => Ok(JournalRead { log, took, bytes, found }),
        Some(Error::UnknownVersion { .. }) if injected!(options, UnknownVersionIsEnd) => {
            Ok(JournalRead { log, took, bytes, found })
        }
        Some(fault) => Err(fault),
    }
}

/// The content of the journal.
pub(crate) struct JournalContent {
    pub(crate) index: Index,
    pub(crate) seq: Seq,
    /// The LSN just behind its last entry.
    pub(crate) lsn: Lsn,
    pub(crate) meta: StoreMeta,
}

/// The state after each record.
struct JournalReplay<'a> {
    found: JournalContent,
    /// The LSN just behind the last record.
    end: Lsn,
    /// The reason why the first invalid record is invalid. Later records do not count.
    fault: Option<Error>,
    reader: EntryReader,
    /// Changes that end before this LSN are kept in memory.
    held_upto: Lsn,
    newest: &'a Superblock,
    path: &'a Path,
}

impl<'a> JournalReplay<'a> {
    fn new(newest: &'a Superblock, held_upto: Lsn, page_size: usize, path: &'a Path) -> Self {
        let found = JournalContent {
            index: Index::default(),
            seq: newest.checkpoint_seq,
            lsn: newest.checkpoint_lsn,
            meta: newest.meta.clone(),
        };
        let reader = EntryReader::new(page_size - HEADER_BYTES);
        Self { found, end: newest.checkpoint_lsn, fault: None, reader, held_upto, newest, path }
    }

    fn take(&mut self, record: &RecoveredRecord) {
        self.end = record.end;
        if self.fault.is_none() {
            self.fault = self.take_sound(record).err();
        }
    }
}

/// Returns the content of the commits before the first invalid one, and why that is invalid.
pub(crate) fn replay_to_fault(
    records: &[RecoveredRecord],
    newest: &Superblock,
    page_size: usize,
    path: &Path,
) -> (JournalContent, Option<Error>) {
    let mut replay = JournalReplay::new(newest, Lsn::new(u64::MAX), page_size, path);
    for record in records {
        replay.take(record);
    }
    (replay.found, replay.fault)
}

impl JournalReplay<'_> {
    /// Adds a record, and the commit that ends with it, if any.
    fn take_sound(&mut self, record: &RecoveredRecord) -> Result<(), Error> {
        let Self { found, reader, held_upto, newest, path, .. } = self;
        let corrupt = |what: String| Error::Corrupt { path: path.to_path_buf(), what };
        if record.body.is_empty() {
            // An empty record: it marks the end.
            found.lsn = record.end;
            return Ok(());
        }
        let read = if record.end <= *held_upto {
            reader.read(&record.body)
        } else {
            reader.read_places(&record.body, record.body_lsn())
        };
        let read = read.map_err(|fault| match fault {
            EntryFault::Version(version) if version > entry::ENTRY_VERSION => Error::UnknownVersion {
                path: path.to_path_buf(),
                version: version.into(),
                known: entry::ENTRY_VERSION.into(),
            },
            fault => corrupt(format!("at LSN {}: {fault}", record.lsn)),
        })?;
        let Some(entry) = read else { return Ok(()) };
        if entry.seq != found.seq + 1 {
            let (lsn, due) = (record.lsn, found.seq + 1);
            return Err(corrupt(format!("commit {} at LSN {lsn} where commit {due} is due", entry.seq)));
        }
        let lacks = |(page, change): &&(PageNo, PageChange)| change.is_part() && !found.index.has(*page);
        if !newest.first_diffs
            && let Some((page, _)) = entry.changes.iter().find(lacks)
        {
            let seq = entry.seq;
            return Err(corrupt(format!(
                "commit {seq} changes a part of page {page}, whose whole is missing"
            )));
        }
        for (page, change) in entry.changes {
            found.index.replay(page, entry.seq, change);
        }
        (found.seq, found.lsn, found.meta) = (entry.seq, record.end, entry.meta);
        Ok(())
    }
}
