//! Committing: turns a transaction's pages into a journal entry, adds versions to the index, and
//! makes both durable.
//!
//! Invariants: entries are appended in the order of their seqs. Each has the full image of a page
//! at its first change after a checkpoint start. A refused entry (too large, no room) leaves no
//! trace. Once a part of an entry was appended, nothing refuses the rest, or the store is poisoned.

use std::sync::Arc;

use pagekeeper_kernel::mutex::lock;

use crate::core::{Core, JournalTail};
use crate::format::entry::{EntryWriter, PART_HEADER, diff_ranges, parts};
use crate::format::page::{self, HEADER_BYTES, PageKind};
use crate::txn::{PageEdit, WriteTxn};
use crate::version::{VersionContent, WholePage, kind_and_seq};
use crate::writer::BeginWrite;
use crate::{Error, PageNo, Seq};
use pagekeeper_wal::Lsn;

/// When a commit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// When it is durable. All commits at the same time share one sync.
    #[default]
    Sync,
    /// When it is durable, but it leaves the sync to another commit within
    /// [`group_delay`](crate::StoreOptions::group_delay).
    Group,
    /// At once. It becomes durable with the next commit that does, or after a second if the store
    /// has threads. Until then a crash may lose it as a whole, with all later commits. It is
    /// visible before it is durable, as are all earlier commits.
    None,
}

/// Maximum bytes of padding.
const MAX_PADDING: u64 = 8 << 10;
/// Bytes of the journal behind the last commit that belong to no commit: padding, and the rest of
/// the block at which the next opening continues.
pub(crate) const TAIL_OVERHEAD: u64 = 16 << 10;
/// Bytes of a record beside its body, including alignment.
const RECORD_OVERHEAD: u64 = 32;
/// Maximum bytes of an entry beside one page: the meta with the user's part, and the head of a
/// change.
const MAX_META: u64 = 2048;
/// Maximum bytes of a change beside the page's payload.
const CHANGE_OVERHEAD: u64 = 32;

impl WriteTxn<'_> {
    /// Commits all changes or none. Returns the number of the commit, which is visible to readers
    /// that begin after this call.
    ///
    /// Waits while the journal has no room below its limit. After [`Error::Poisoned`] it is unknown
    /// whether the commit is durable, and no commit follows it. After any other error nothing was
    /// committed.
    pub fn commit(self, durability: Durability) -> Result<Seq, Error> {
        commit(self, durability)
    }
}

fn commit(txn: WriteTxn<'_>, durability: Durability) -> Result<Seq, Error> {
    txn.core.process.require()?;
    // Fields are dropped in reverse order: the room of a refused commit goes first, under the
    // writer's lock.
    let WriteTxn { core, writer, base, meta, mut changed, mut room, .. } = txn;
    let core: &Core = &core;
    if changed.is_empty() && meta == *base {
        let (seq, lsn) = {
            let tail = lock(&core.tail);
            (tail.seq, tail.lsn)
        };
        drop(writer);
        return finish(core, seq, lsn, durability);
    }
    let mut tail;
    let (entry, pages) = loop {
        tail = lock(&core.tail);
        let (entry, pages) = encode(core, &tail, &mut changed, &meta);
        core.check()?;
        let bytes = journal_bytes(&entry);
        let max = max_entry_bytes(core.config.max_journal_bytes);
        if bytes > max {
            return Err(Error::TransactionTooLarge { bytes, max });
        }
        if core.bytes_to_recover() + bytes + TAIL_OVERHEAD <= core.config.max_journal_bytes {
            break (entry, pages);
        }
        // If a checkpoint starts meanwhile, other pages may need a full-page image.
        drop(tail);
        core.wait_for_room(bytes + TAIL_OVERHEAD, BeginWrite::within(true, None))?;
    };
    let seq = tail.seq + 1;
    let mut lsn = tail.lsn;
    room.keep();
    for body in &entry {
        // Does not wait for a log checkpoint, which would wait for the tail: by the limit, there is
        // room.
        lsn = core.journal.try_append(body).map_err(|error| core.poison(error.into()))?;
    }
    core.changes.note(seq, pages.iter().map(|(page, _, _)| *page));
    let needed = core.snapshots.needed();
    for (page, whole, is_whole) in pages {
        if is_whole {
            tail.logged_since_checkpoint.insert(page);
        }
        core.index.push(page, seq, VersionContent::Whole(whole), &needed);
    }
    debug_assert!(lsn > tail.lsn, "an entry of no bytes");
    debug_assert!(core.bytes_to_recover() <= core.config.max_journal_bytes, "the journal is above its limit");
    let meta = Arc::new(meta);
    (tail.seq, tail.lsn, tail.meta) = (seq, lsn, Arc::clone(&meta));
    core.snapshots.committed(seq, lsn, meta);
    drop(tail);
    drop(writer);
    core.request_checkpoint_if_due();
    finish(core, seq, lsn, durability)
}

/// Returns the maximum journal bytes of one commit. Even if everything before it is checkpointed,
/// the last padding is still there.
pub(crate) fn max_entry_bytes(max_journal_bytes: u64) -> u64 {
    max_journal_bytes - 2 * TAIL_OVERHEAD
}

/// Returns the maximum journal bytes of a one-page commit, for records of at most `longest_record`
/// bytes.
pub(crate) fn max_page_entry(page_size: u64, longest_record: u64) -> u64 {
    let body = page_size + MAX_META;
    let parts = body.div_ceil(longest_record);
    let padding = if parts > 1 { parts * MAX_PADDING } else { 0 };
    body + parts * RECORD_OVERHEAD + padding
}

/// Returns the maximum journal bytes of one change in a large entry: with its part of what belongs
/// to records. Two consecutive records are more than half full together.
pub(crate) fn max_change_bytes(page_size: u64, longest_record: u64) -> u64 {
    let body = page_size + CHANGE_OVERHEAD;
    body + (2 * body * (MAX_PADDING + RECORD_OVERHEAD)).div_ceil(longest_record)
}

/// Returns the maximum journal bytes of an entry whose items, the meta and the changes, have these
/// sizes in bytes.
pub(crate) fn entry_bytes(items: impl Iterator<Item = usize>, longest_record: usize) -> u64 {
    let mut end = PART_HEADER;
    let ends: Vec<_> = items
        .map(|len| {
            end += len;
            end
        })
        .collect();
    let parts = parts(&ends, longest_record);
    with_padding(parts.iter().map(|part| (PART_HEADER + part.len()) as u64).sum(), parts.len() as u64)
}

/// Returns the maximum journal bytes of an entry, without what follows it: padding may follow each
/// of its parts.
fn journal_bytes(entry: &[Vec<u8>]) -> u64 {
    with_padding(entry.iter().map(|body| body.len() as u64).sum(), entry.len() as u64)
}

fn with_padding(bytes: u64, parts: u64) -> u64 {
    bytes + parts * (RECORD_OVERHEAD + if parts > 1 { MAX_PADDING } else { 0 })
}

fn finish(core: &Core, seq: Seq, lsn: Lsn, durability: Durability) -> Result<Seq, Error> {
    match durability {
        Durability::Sync => core.make_durable(lsn)?,
        Durability::Group => core.join_group(lsn)?,
        Durability::None => {
            core.snapshots.show(seq);
            return Ok(seq);
        }
    }
    Ok(seq)
}

type EncodedPages = Vec<(PageNo, WholePage, bool)>;

/// Returns the entry's records, and its pages, each with whether the entry has its full image.
fn encode(
    core: &Core,
    tail: &JournalTail,
    changed: &mut std::collections::BTreeMap<PageNo, PageEdit>,
    meta: &crate::format::superblock::StoreMeta,
) -> (Vec<Vec<u8>>, EncodedPages) {
    let seq = tail.seq + 1;
    let mut entry = EntryWriter::new(seq, meta);
    let mut pages = Vec::with_capacity(changed.len());
    for (page, edit) in changed {
        let page = *page;
        let mut free;
        let (kind, bytes) = match edit {
            PageEdit::Page { kind, bytes, .. } => (*kind, bytes),
            PageEdit::Free => {
                free = core.buffers.zeroed();
                (PageKind::Free, &mut free)
            }
        };
        let crc = page::seal(bytes.make_mut(), kind, page, seq, core.config.store_id);
        let bytes = bytes.clone();
        let may_differ = core.config.diffs_first
            || tail.logged_since_checkpoint.contains(&page)
            || injected!(core.config.options, NoFullPages);
        let is_whole = write_change(core, &mut entry, page, edit, (crc, may_differ));
        pages.push((page, WholePage::new(kind, bytes), is_whole));
    }
    let longest = core.journal.longest_record();
    (entry.finish(longest), pages)
}

/// Adds a page's change to an entry, with its checksum, and returns whether that is its full image.
/// It is, unless it may be a diff, and that takes at most half of the payload.
pub(crate) fn write_change(
    core: &Core,
    entry: &mut EntryWriter,
    page: PageNo,
    edit: &PageEdit,
    (crc, may_differ): (u32, bool),
) -> bool {
    let PageEdit::Page { kind, bytes, in_part } = edit else {
        entry.free(page, crc);
        return true;
    };
    let payload = &bytes[HEADER_BYTES..];
    if let Some(before) = if *in_part && may_differ { before(core, page) } else { None }
        && before.kind == *kind
        && let Some(ranges) = diff_ranges(before.payload(), payload, payload.len() / 2)
    {
        let offset =
            |at: usize| u32::try_from(at).unwrap_or_else(|_| unreachable!("pages have at most 64 KiB"));
        let ranges: Vec<_> = ranges.into_iter().map(|range| (offset(range.start), &payload[range])).collect();
        let base_seq = kind_and_seq(before.bytes()).map_or(Seq::NONE, |(_, seq)| seq);
        entry.diff(page, *kind, crc, base_seq, &ranges);
        return false;
    }
    entry.full_page_image(page, *kind, crc, payload);
    true
}

/// Returns the page as it is before the commit, from memory, where a partial change left it. If it
/// is not in memory, the full page is journaled, which is always right.
fn before(core: &Core, page: PageNo) -> Option<WholePage> {
    match core.index.get(page, Seq::MAX) {
        Some(version) if !matches!(version.content, VersionContent::InFile) => core.whole(page, version).ok(),
        _ if core.config.diffs_first => {
            let (page, _) = core.page_in_file(page).ok()??;
            Some(core.copied(&page))
        }
        _ => None,
    }
}

impl Core {
    /// Appends an empty record so that the checkpoint LSN can move up to it: epochs, and parts of
    /// an unfinished commit, take up room that belongs to no commit.
    pub(crate) fn mark_end(&self) -> Result<(), Error> {
        let mut tail = lock(&self.tail);
        tail.lsn = self.journal.try_append(&[]).map_err(|error| self.poison(error.into()))?;
        Ok(())
    }

    /// Returns the LSN behind the last appended commit.
    pub(crate) fn last_lsn(&self) -> Lsn {
        lock(&self.tail).lsn
    }

    /// Whether the data file has the last commit.
    pub(crate) fn is_checkpointed(&self) -> bool {
        lock(&self.tail).seq == self.checkpoints.seq()
    }
}
