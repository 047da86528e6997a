//! What the journal has that the data file may not have: read once, wide, and kept in the index.
//!
//! Of a long journal only its beginning is kept in memory; of all behind that the index has where it stands ([`crate::places`]). So an
//! opening takes no more memory than its share, and what it reads it reads into memory that was touched before.
//!
//! Invariant: every commit of the journal behind the checkpoint LSN is in the index, in order and without a gap. No page of the data
//! file is read: whether it is newer or older does not matter.
//!
//! Fails where commits that were acknowledged are lost, and where a newer version wrote one.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_io::Io;
use pagekeeper_kernel::text::escaped;
use pagekeeper_log::{LogMode, Recovered, RedoLog, RedoOptions};

use crate::budget::{buffer_bytes, held_share};
use crate::format::entry::{self, Change, EntryFault, EntryReader};
use crate::format::page::HEADER;
use crate::format::superblock::{Meta, Superblock};
use crate::index::Index;
use crate::options::StoreOptions;
use crate::{Error, PageNo};

/// Bytes of the journal that may be appended and not synced: the most that a crash takes of commits that do not wait. It bounds a record
/// too, and with that what an opening searches behind the end.
const MAX_UNSYNCED_BYTES: u64 = 4 << 20;
/// Bytes of the longest record that the journal of a new store takes, or less.
pub(crate) fn longest_record(options: &StoreOptions, max_journal_bytes: u64) -> u64 {
    let buffer = buffer_bytes(options.memory, max_journal_bytes) as u64;
    // As the journal has it: less five blocks.
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
    // Read once, by a recovery: a mode that keeps its pages out of the page cache, and syncs with the write.
    let journal = journal.mode(LogMode::Auto);
    #[cfg(test)]
    let journal = with_injected_fault(journal, options);
    if options.threads { journal } else { journal.without_threads() }
}

/// The journal's options for a test.
#[cfg(test)]
fn with_injected_fault(journal: RedoOptions, options: &StoreOptions) -> RedoOptions {
    let journal = match options.injected_fault {
        Some(crate::injected_fault::InjectedFault::Journal(bug)) => journal.injected_fault(bug),
        Some(_) | None => journal,
    };
    journal.mode(options.journal_mode)
}

/// The journal, and what it says.
pub(crate) struct JournalRead {
    pub(crate) log: RedoLog,
    pub(crate) took: Duration,
    pub(crate) bytes: u64,
    pub(crate) found: Replayed,
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
    // What one step of it says is taken in while the next ones are read.
    let held_upto = newest.checkpoint_lsn.saturating_add(held_share(options));
    let mut replay = Replay::new(newest, held_upto, page_size, path);
    let log = journal.recover_into(path, Some(newest.checkpoint_lsn), |record| replay.take(&record))?;
    if log.id() != newest.journal {
        let what = "it is the journal of another store".to_owned();
        return Err(Error::Corrupt { path: path.to_path_buf(), what });
    }
    if log.checkpoint_lsn() > newest.checkpoint_lsn {
        let what = "the superblock is older than what of the journal is left".to_owned();
        return Err(Error::Corrupt { path: path.to_path_buf(), what });
    }
    for (path, offset) in log.damaged_paddings() {
        let file = escaped(&path);
        tracing::warn!(%file, offset, "a padding of the journal is damaged: it holds nothing, and no commit is lost");
    }
    let took = began.elapsed();
    let Replay { found, end, fault, .. } = replay;
    let bytes = end - newest.checkpoint_lsn;
    match fault {
        None => Ok(JournalRead { log, took, bytes, found }),
        Some(Error::UnknownVersion { .. }) if injected!(options, UnknownVersionIsEnd) => {
            Ok(JournalRead { log, took, bytes, found })
        }
        Some(fault) => Err(fault),
    }
}

/// What the journal says.
pub(crate) struct Replayed {
    pub(crate) index: Index,
    pub(crate) seq: u64,
    /// Just behind its last entry.
    pub(crate) lsn: u64,
    pub(crate) meta: Meta,
}

/// What is made of records, one after the other.
struct Replay<'a> {
    found: Replayed,
    /// Just behind the last record.
    end: u64,
    /// Why the first that says something that makes no sense makes none. Those behind it count for nothing.
    fault: Option<Error>,
    reader: EntryReader,
    /// What ends before is kept in memory.
    held_upto: u64,
    newest: &'a Superblock,
    path: &'a Path,
}

impl<'a> Replay<'a> {
    fn new(newest: &'a Superblock, held_upto: u64, page_size: usize, path: &'a Path) -> Self {
        let found = Replayed {
            index: Index::default(),
            seq: newest.checkpoint_seq,
            lsn: newest.checkpoint_lsn,
            meta: newest.meta.clone(),
        };
        let reader = EntryReader::new(page_size - HEADER);
        Self { found, end: newest.checkpoint_lsn, fault: None, reader, held_upto, newest, path }
    }

    fn take(&mut self, record: &Recovered) {
        self.end = record.end;
        if self.fault.is_none() {
            self.fault = self.take_sound(record).err();
        }
    }
}

/// What the commits up to the first say that makes no sense; and why that one does not.
pub(crate) fn replay_to_fault(
    records: &[Recovered],
    newest: &Superblock,
    page_size: usize,
    path: &Path,
) -> (Replayed, Option<Error>) {
    let mut replay = Replay::new(newest, u64::MAX, page_size, path);
    for record in records {
        replay.take(record);
    }
    (replay.found, replay.fault)
}

impl Replay<'_> {
    /// Takes in a record; a commit, if that ends with it.
    fn take_sound(&mut self, record: &Recovered) -> Result<(), Error> {
        let Self { found, reader, held_upto, newest, path, .. } = self;
        let corrupt = |what: String| Error::Corrupt { path: path.to_path_buf(), what };
        if record.body.is_empty() {
            // It says nothing: the end was marked.
            found.lsn = record.end;
            return Ok(());
        }
        let read = if record.end <= *held_upto {
            reader.read(&record.body)
        } else {
            reader.read_places(&record.body, record.body_lsn())
        };
        let read = read.map_err(|fault| match fault {
            EntryFault::Version(version) if version > entry::VERSION => Error::UnknownVersion {
                path: path.to_path_buf(),
                version: version.into(),
                known: entry::VERSION.into(),
            },
            fault => corrupt(format!("at LSN {}: {fault}", record.lsn)),
        })?;
        let Some(entry) = read else { return Ok(()) };
        if entry.seq != found.seq + 1 {
            let (lsn, due) = (record.lsn, found.seq + 1);
            return Err(corrupt(format!("commit {} at LSN {lsn} where commit {due} is due", entry.seq)));
        }
        let lacks = |(page, change): &&(PageNo, Change)| change.is_part() && !found.index.has(*page);
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
