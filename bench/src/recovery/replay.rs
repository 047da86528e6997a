//! Replay into a mapped file, as in a store that leaves its pages to the kernel: nothing is open
//! before the replay ends.
//!
//! The journal is minimal, the changed bytes and their places, and is read with the disk's full
//! width, so that the replay is what is compared. Serially, each change waits for its page;
//! otherwise the kernel is first asked for every page. Fails as the file system does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::RecoveryTimes;
use super::changes::{CHANGE_BYTES, ChangeLoad};
use super::journal::read_file;
use crate::drive::FILE_PAGE_BYTES;
use crate::map::MemoryMap;
use crate::scratch::StopRequest;

/// Bytes of a record: page number, offset in the page, the bytes.
const REPLAY_RECORD_BYTES: usize = 8 + 4 + CHANGE_BYTES;

/// The way pages are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayLoading {
    /// One after the other, each alone (`MADV_RANDOM`).
    Serial,
    /// `MADV_WILLNEED` for every page, then one after the other.
    WillNeed,
}

/// Creates the data file, with its pages before the changes, and the journal.
pub(super) fn prepare(dir: &Path, load: &ChangeLoad) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let data = File::options().write(true).create(true).truncate(false).open(dir.join("data"))?;
        data.set_len(load.pages * FILE_PAGE_BYTES)?;
        let changed = load.changed();
        let mut page_bytes = [0; 4096];
        let mut journal = Vec::with_capacity(changed.len() * REPLAY_RECORD_BYTES + 4096);
        for page in changed {
            load.base(page, &mut page_bytes);
            data.write_all_at(&page_bytes, page * FILE_PAGE_BYTES)?;
            let (offset, bytes) = load.change(page);
            journal.extend(page.to_le_bytes());
            journal.extend(u32::try_from(offset).unwrap_or(u32::MAX).to_le_bytes());
            journal.extend(bytes);
        }
        journal.resize(journal.len().next_multiple_of(4096), 0);
        std::fs::write(dir.join("journal"), journal)
    };
    write().with_context(|| format!("can't write in {}", dir.display()))
}

/// Replays the journal. With `part` above 1 it replays only the changes in the first part of the
/// file, and scales the times.
pub(super) fn recover(
    dir: &Path,
    load: &ChangeLoad,
    way: ReplayLoading,
    part: u64,
    stop: &StopRequest,
) -> Result<RecoveryTimes> {
    let end = load.pages / part;
    let began = Instant::now();
    let io = pagekeeper_io::best();
    let journal = read_file(&*io, &dir.join("journal"))?;
    let records = || {
        journal
            .chunks_exact(REPLAY_RECORD_BYTES)
            .take(load.changes)
            .map(parse)
            .filter(|change| change.0 < end)
    };
    let file =
        File::options().read(true).write(true).open(dir.join("data")).context("can't open the data")?;
    let mut map = MemoryMap::to_change(&file)?;
    map.expect_random().context("madvise")?;
    let prepared = began.elapsed();
    if way == ReplayLoading::WillNeed {
        for (page, ..) in records() {
            let at = usize::try_from(page * FILE_PAGE_BYTES)?;
            map.will_need(at..at + 4096).context("madvise")?;
        }
    }
    let mut done = 0_usize;
    for (page, offset, bytes) in records() {
        if done.is_multiple_of(100) {
            stop.check()?;
        }
        map.write(usize::try_from(page * FILE_PAGE_BYTES)? + offset, bytes);
        done += 1;
    }
    ensure!(done > 0, "nothing was to be replayed");
    let replayed = began.elapsed();
    let scale = load.changes as f64 / done as f64;
    let open = prepared.as_secs_f64() + replayed.saturating_sub(prepared).as_secs_f64() * scale;
    let mut first = [0; 4096];
    let began_read = Instant::now();
    let (page, ..) = records().next().context("nothing was to be replayed")?;
    map.read(usize::try_from(page * FILE_PAGE_BYTES)?, &mut first);
    let first_read = open + began_read.elapsed().as_secs_f64();
    load.check(page, &first)?;
    let applied = if part == 1 {
        map.sync().context("msync")?;
        Some(began.elapsed().as_secs_f64() * 1e3)
    } else {
        None
    };
    Ok(RecoveryTimes { open: open * 1e3, first: first_read * 1e3, applied, ours: None })
}

/// Compares the replayed pages.
pub(super) fn check(dir: &Path, load: &ChangeLoad, part: u64) -> Result<()> {
    let data = File::open(dir.join("data")).context("can't open the data")?;
    let mut bytes = [0; 4096];
    for page in load.changed().into_iter().filter(|page| *page < load.pages / part) {
        data.read_exact_at(&mut bytes, page * FILE_PAGE_BYTES).context("can't read the data")?;
        load.check(page, &bytes)?;
    }
    Ok(())
}

/// Returns page number, offset and bytes of a record.
fn parse(record: &[u8]) -> (u64, usize, &[u8]) {
    let (page, rest) = record.split_first_chunk().unwrap_or((&[0; 8], &[]));
    let (offset, bytes) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
    (u64::from_le_bytes(*page), u32::from_le_bytes(*offset) as usize, bytes)
}
