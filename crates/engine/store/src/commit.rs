//! Committing: from a transaction's pages to an entry of the journal, versions in the index, and durability.
//!
//! Invariants: entries are appended in the order of their seqs, each with the whole of a page at its first change after a checkpoint start.
//! An entry that is refused (too large, no room) leaves no trace. Once a part of one was appended nothing refuses it any more, or the
//! store is poisoned.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagekeeper_kernel::mutex::lock;

use crate::core::{Core, Tail};
use crate::format::entry::{EntryWriter, diff_ranges};
use crate::format::page::{self, HEADER, PageKind};
use crate::txn::{Changed, WriteTxn};
use crate::version::{Content, Whole, kind_and_seq};
use crate::{Error, PageNo, Seq};

/// When a commit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// When it is durable. All who commit at the same time share one sync.
    #[default]
    Sync,
    /// When it is durable; but it leaves the sync to another who commits within
    /// [`group_delay`](crate::StoreOptions::group_delay).
    Group,
    /// At once. It is durable with the next commit that is, or after a second where the store has threads; until then a crash may lose it, as a whole, and
    /// those after it. It can be seen before it is durable, as all before it.
    None,
}

/// Maximum bytes of padding.
const MAX_PADDING: u64 = 8 << 10;
/// Bytes of the journal that no commit owns, behind the last one: padding, and the rest of the block at which the next opening goes on.
pub(crate) const TAIL_OVERHEAD: u64 = 16 << 10;
/// What a record takes up beside its body, and to be aligned.
const RECORD: u64 = 32;
/// Bytes of an entry beside one page: the meta with the user's part, and what a change begins with.
const MAX_META: u64 = 2048;

impl WriteTxn<'_> {
    /// Commits all or nothing, and gives the number of the commit. It can be seen by readers that begin when this has returned.
    ///
    /// Waits, as long as the journal has no room below its limit. After [`Error::Poisoned`] it is not known whether the commit is durable, and
    /// none comes after it; with any other error nothing was committed.
    pub fn commit(self, durability: Durability) -> Result<Seq, Error> {
        commit(self, durability)
    }
}

fn commit(txn: WriteTxn<'_>, durability: Durability) -> Result<Seq, Error> {
    txn.core.process.require()?;
    // What comes last goes first: the room of a commit that is refused, under the writer's lock.
    let WriteTxn { core, writer, base, meta, mut changed, mut room } = txn;
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
        if bytes > core.max_entry_bytes() {
            return Err(Error::TransactionTooLarge { bytes, max: core.max_entry_bytes() });
        }
        if core.bytes_to_recover() + bytes + TAIL_OVERHEAD <= core.config.max_journal_bytes {
            break (entry, pages);
        }
        // What has to be a full-page image may change when a checkpoint starts meanwhile.
        drop(tail);
        core.wait_for_room(bytes + TAIL_OVERHEAD)?;
    };
    let seq = tail.seq + 1;
    let mut lsn = tail.lsn;
    room.keep();
    for body in &entry {
        // Not to wait for a log checkpoint, which would wait for the tail: there is room, by the limit.
        lsn = core.journal.try_append(body).map_err(|error| core.poison(error.into()))?;
    }
    core.changes.note(seq, pages.iter().map(|(page, _, _)| *page));
    let needed = core.snapshots.needed();
    for (page, whole, is_whole) in pages {
        if is_whole {
            tail.logged_since_checkpoint.insert(page);
        }
        core.index.push(page, seq, Content::Whole(whole), &needed);
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

/// Bytes of the journal that one commit may take up in one of so many: also when all before it is checkpointed, the last padding is still
/// there.
pub(crate) fn max_entry_bytes(max_journal_bytes: u64) -> u64 {
    max_journal_bytes - 2 * TAIL_OVERHEAD
}

/// Bytes of the journal that a commit of one page takes up at most, where no record is longer than that.
pub(crate) fn max_page_entry(page_size: u64, longest_record: u64) -> u64 {
    let body = page_size + MAX_META;
    let parts = body.div_ceil(longest_record);
    let padding = if parts > 1 { parts * MAX_PADDING } else { 0 };
    body + parts * RECORD + padding
}

/// Bytes of the journal that an entry takes up at most, but for what comes behind it: each part may be followed by padding.
fn journal_bytes(entry: &[Vec<u8>]) -> u64 {
    let padding = if entry.len() > 1 { entry.len() as u64 * MAX_PADDING } else { 0 };
    entry.iter().map(|body| body.len() as u64 + RECORD).sum::<u64>() + padding
}

fn finish(core: &Core, seq: Seq, lsn: u64, durability: Durability) -> Result<Seq, Error> {
    match durability {
        Durability::Sync => core.make_durable(lsn)?,
        Durability::Group => core.join_group(lsn)?,
        Durability::None => {
            core.snapshots.show(seq);
            return Ok(seq);
        }
    }
    core.group.notify_flushed();
    Ok(seq)
}

type Pages = Vec<(PageNo, Whole, bool)>;

/// The entry's records, and the pages with whether the entry has the whole of them.
fn encode(
    core: &Core,
    tail: &Tail,
    changed: &mut std::collections::BTreeMap<PageNo, Changed>,
    meta: &crate::format::superblock::Meta,
) -> (Vec<Vec<u8>>, Pages) {
    let seq = tail.seq + 1;
    let mut entry = EntryWriter::new(seq, meta);
    let mut pages = Vec::with_capacity(changed.len());
    for (page, changed) in changed {
        let page = *page;
        let (kind, in_part, crc, bytes) = match changed {
            Changed::Page { kind, bytes, in_part } => {
                let crc = page::seal(bytes.make_mut(), *kind, page, seq, core.config.store_id);
                (*kind, *in_part, crc, bytes.clone())
            }
            Changed::Free => {
                let mut bytes = core.buffers.zeroed();
                let crc = page::seal(bytes.make_mut(), PageKind::Free, page, seq, core.config.store_id);
                (PageKind::Free, false, crc, bytes)
            }
        };
        let payload = &bytes[HEADER..];
        let mut is_whole = true;
        let may_differ = core.config.diffs_first
            || tail.logged_since_checkpoint.contains(&page)
            || injected!(core.config.options, NoFullPages);
        if kind == PageKind::Free {
            entry.free(page, crc);
        } else if let Some(before) = if in_part && may_differ { before(core, page) } else { None }
            && before.kind == kind
            && let Some(ranges) = diff_ranges(before.payload(), payload, payload.len() / 2)
        {
            let ranges: Vec<_> = ranges
                .into_iter()
                .map(|range| {
                    (
                        u32::try_from(range.start)
                            .unwrap_or_else(|_| unreachable!("pages have at most 64 KiB")),
                        &payload[range],
                    )
                })
                .collect();
            let base_seq = kind_and_seq(before.bytes()).map_or(0, |(_, seq)| seq);
            entry.diff(page, kind, crc, base_seq, &ranges);
            is_whole = false;
        } else {
            entry.full_page_image(page, kind, crc, payload);
        }
        pages.push((page, Whole::new(kind, bytes), is_whole));
    }
    let longest = core.journal.longest_record();
    (entry.finish(longest), pages)
}

/// The page as it is before the commit: from memory, where a change of a part left it. Where it can't be had the whole page is
/// journaled, which is always right.
fn before(core: &Core, page: PageNo) -> Option<Whole> {
    match core.index.get(page, Seq::MAX) {
        Some(version) => core.whole(page, version).ok(),
        None if core.config.diffs_first => {
            let (page, _) = core.page_in_file(page).ok()??;
            Some(Whole::new(page.kind(), core.buffers.copy(page.bytes())))
        }
        None => None,
    }
}

impl Core {
    /// Appends a record that says nothing, so that the checkpoint LSN can move up to it: epochs, and the parts of a commit that never was,
    /// take up room that no commit owns.
    pub(crate) fn mark_end(&self) -> Result<(), Error> {
        let mut tail = lock(&self.tail);
        tail.lsn = self.journal.try_append(&[]).map_err(|error| self.poison(error.into()))?;
        Ok(())
    }

    /// Bytes of the journal that one commit may take up.
    pub(crate) fn max_entry_bytes(&self) -> u64 {
        max_entry_bytes(self.config.max_journal_bytes)
    }

    /// The last commit that was appended.
    pub(crate) fn last_lsn(&self) -> u64 {
        lock(&self.tail).lsn
    }

    /// The last commit that the data file has.
    pub(crate) fn is_checkpointed(&self) -> bool {
        lock(&self.tail).seq == self.checkpoints.seq.load(Ordering::Acquire)
    }
}
