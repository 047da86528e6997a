//! The journal of a damaged store: its readable commits, on top of the superblock or, if there is
//! none, of nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::Io;
use pagekeeper_wal::Error as LogError;

use super::Repair;
use crate::format::superblock::{StoreMeta, Superblock};
use crate::names::JOURNAL_NAME;
use crate::options::StoreOptions;
use crate::replay::{JournalContent, journal_options, replay_to_fault};
use crate::resize;
use crate::{Error, Seq};
use pagekeeper_wal::Lsn;

/// Returns a substitute for a missing superblock.
pub(super) fn made_up(options: &StoreOptions, store: u64, page_size: usize) -> Superblock {
    Superblock {
        number: 0,
        store,
        page_size: u32::try_from(page_size).unwrap_or_else(|_| unreachable!("at most 65536")),
        checkpoint_seq: Seq::NONE,
        checkpoint_lsn: Lsn::new(0),
        max_journal_bytes: options.new_journal_bytes(),
        // So that every change in the journal counts.
        first_diffs: true,
        journal: 0,
        meta: StoreMeta::default(),
    }
}

/// Reads the commits of the journal that can be read.
pub(super) fn read_journal(
    options: &StoreOptions,
    io: &Arc<dyn Io>,
    from: &Path,
    superblock: &Superblock,
    is_known: bool,
    found: &mut Repair,
) -> Result<JournalContent, Error> {
    let mut superblock = superblock.clone();
    let salvage_in =
        |path: &Path, lsn| journal_options(options, io, superblock.max_journal_bytes).salvage(path, lsn);
    let path = if is_known {
        resize::journal_path(io, from, superblock.journal)?
    } else {
        // If there are two, one replaced the other and was empty then. Its commits are the newest.
        let places = resize::places(&**io, from)?;
        let newest =
            |path: &PathBuf| salvage_in(path, None).records.iter().find_map(|record| seq_of(&record.body));
        places.into_iter().max_by_key(newest).unwrap_or_else(|| from.join(JOURNAL_NAME))
    };
    let salvage = |lsn| salvage_in(&path, lsn);
    let mut salvaged = salvage(is_known.then_some(superblock.checkpoint_lsn));
    if matches!(salvaged.fault, Some(LogError::NotInLog { .. } | LogError::NotARecord { .. })) {
        // The superblock is older than the remaining journal.
        salvaged = salvage(None);
    }
    if let Some(
        fault @ (LogError::UnknownVersion { .. }
        | LogError::UnknownRecord { .. }
        | LogError::OldVersion { .. }
        | LogError::Io(pagekeeper_io::Error::Locked { .. })),
    ) = salvaged.fault
    {
        return Err(fault.into());
    }
    if is_known && salvaged.id.is_some_and(|id| id != superblock.journal) {
        found.notes.push("journal: it is another store's".to_owned());
        salvaged.records.clear();
    }
    // The journal may begin anywhere; everything behind that follows without gaps.
    let first = salvaged.records.iter().find_map(|record| Some((seq_of(&record.body)?, record.lsn)));
    if let Some((seq, lsn)) = first
        && (!is_known || seq > superblock.checkpoint_seq + 1)
    {
        if is_known {
            let (from, upto) = (superblock.checkpoint_seq + 1, seq.get() - 1);
            found.notes.push(format!("journal: commits {from} to {upto} are lost"));
        }
        (superblock.checkpoint_seq, superblock.checkpoint_lsn) = (Seq::new(seq.get().saturating_sub(1)), lsn);
    }
    let page_size = superblock.page_size as usize;
    let (journal, fault) = replay_to_fault(&salvaged.records, &superblock, page_size, &path);
    if let Some(fault @ Error::UnknownVersion { .. }) = fault {
        return Err(fault);
    }
    for fault in fault.into_iter().chain(salvaged.fault.map(Error::from)) {
        let seq = journal.seq;
        found.notes.push(format!("{fault}; if there were commits behind commit {seq} they are lost"));
    }
    if !is_known && first.is_none() {
        let what = "root page and metadata are lost: the journal has no commit that says what they were";
        found.notes.push(what.to_owned());
    }
    Ok(journal)
}

/// Returns the commit of a record.
fn seq_of(body: &[u8]) -> Option<Seq> {
    body.get(8..16)?.try_into().ok().map(u64::from_le_bytes).map(Seq::new)
}
