//! Files to measure on: creates them, makes them resident page by page, and makes them cold.
//!
//! Pages of holes in a sparse file are cached like any others, so residency patterns need no disk
//! space. Invariants: a file that is made clean is on disk (fsync); a file that is made cold is
//! verified. Fails with the file's name.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pagekeeper_kernel::{Advice, InspectedFile, Links, advise, page_size, residency};

use crate::rounds::SplitMix;

/// Bytes in a MiB.
pub(crate) const MIB: u64 = 1 << 20;
/// Bytes read or written per call.
const CALL_BYTES: usize = 1 << 20;
/// Bytes in a GiB.
pub(crate) const GIB: u64 = 1 << 30;

/// Creates a file of `size` bytes that is one hole.
pub(crate) fn make_sparse(path: &Path, size: u64) -> Result<()> {
    let file = File::create(path).with_context(|| format!("can't make {}", path.display()))?;
    file.set_len(size).with_context(|| format!("can't extend {}", path.display()))
}

/// Creates a file of `size` bytes (a multiple of a MiB) of random bytes, written in calls of 1 MiB
/// and synced. It is clean, resident, and in large folios where the file system has them.
pub(crate) fn write_synced(path: &Path, size: u64) -> Result<()> {
    let mut noise = SplitMix::new(size);
    let block: Vec<u8> =
        std::iter::repeat_with(|| noise.next_u64().to_le_bytes()).take(CALL_BYTES / 8).flatten().collect();
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        for _ in 0..size / MIB {
            file.write_all(&block)?;
        }
        file.sync_all()
    };
    write().with_context(|| format!("can't write {}", path.display()))
}

/// Opens a file to inspect or read it.
pub(crate) fn open(path: &Path) -> Result<InspectedFile> {
    Ok(InspectedFile::open(path, Links::Refuse)?)
}

/// Returns the resident bytes of a file.
pub(crate) fn resident(path: &Path) -> Result<u64> {
    Ok(residency(&open(path)?, 0..u64::MAX)?.resident)
}

/// Returns the resident bytes of all files below a directory. Files that vanish meanwhile are left
/// out.
pub(crate) fn resident_in(dir: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(dir).with_context(|| format!("can't list {}", dir.display()))? {
        let path = entry?.path();
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            total += resident_in(&path)?;
        } else if metadata.len() > 0 {
            total += match resident(&path) {
                Err(_) if !path.exists() => 0,
                resident => resident?,
            };
        }
    }
    Ok(total)
}

/// Fails unless `wanted` bytes are resident. Up to 2 % may be missing, because the kernel may
/// reclaim pages where memory is short.
pub(crate) fn require_resident(found: u64, wanted: u64) -> Result<()> {
    ensure!(
        found >= wanted - wanted / 50,
        "{found} of {wanted} bytes are resident after it; is memory short on this machine?"
    );
    Ok(())
}

/// Reads single pages without read-ahead; `pages` are indices.
pub(crate) fn touch_pages(file: &InspectedFile, pages: impl IntoIterator<Item = u64>) -> Result<()> {
    advise(file, Advice::Random, 0..u64::MAX, file.path())?;
    let mut byte = [0];
    for page in pages {
        file.file()
            .read_exact_at(&mut byte, page * page_size())
            .with_context(|| format!("can't read {}", file.path().display()))?;
    }
    Ok(())
}

/// Reads a range of a file completely, in calls of 1 MiB.
pub(crate) fn read_through(file: &InspectedFile, range: std::ops::Range<u64>) -> Result<()> {
    let mut buffer = vec![0; usize::try_from(MIB.min(range.end - range.start))?];
    let mut at = range.start;
    while at < range.end {
        let want = usize::try_from(MIB.min(range.end - at)).unwrap_or(buffer.len());
        file.file()
            .read_exact_at(&mut buffer[..want], at)
            .with_context(|| format!("can't read {}", file.path().display()))?;
        at += want as u64;
    }
    Ok(())
}

/// Drops the pages of a clean file and verifies that they are gone.
pub(crate) fn make_cold(path: &Path) -> Result<()> {
    let file = open(path)?;
    // A page that was locked, or on its way to an LRU list, is dropped by the next call.
    for pause_ms in [0, 20, 200] {
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
        advise(&file, Advice::DontNeed, 0..u64::MAX, path)?;
        if residency(&file, 0..u64::MAX)?.resident == 0 {
            return Ok(());
        }
    }
    let left = residency(&file, 0..u64::MAX)?.resident;
    ensure!(left == 0, "{left} bytes of {} can't be dropped from the page cache", path.display());
    Ok(())
}
