//! Reads with the disk's full width: the limit of reading a journal.
//!
//! Reads are direct, all at once, into memory that exists already; nothing is checked. Fails where a read fails or is
//! short.

use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_io::{Access, AlignedBuf, BatchRead, Io, IoFile};

/// Request sizes to try, in bytes; the kernel decides which is best.
pub(super) const PIECES: [usize; 4] = [64 << 10, 128 << 10, 256 << 10, 1 << 20];

/// Reads a whole file at once; its length must be a multiple of 4 KiB.
pub(super) fn read_file(io: &dyn Io, path: &Path) -> Result<AlignedBuf> {
    let file = io.open(path, Access::Direct)?;
    let mut memory = AlignedBuf::new(usize::try_from(file.stat()?.size)?);
    read(io, &[(file, memory.len())], &mut memory, 256 << 10)?;
    Ok(memory)
}

/// Returns the files of a directory in the order of their names, and how much of each belongs to its first `bytes`,
/// rounded up to whole blocks.
pub(super) fn first_bytes(io: &dyn Io, dir: &Path, bytes: u64) -> Result<Vec<(Arc<dyn IoFile>, usize)>> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            paths.push(entry?.path());
        }
        paths.sort();
        Ok(paths)
    };
    let mut left = usize::try_from(bytes)?.next_multiple_of(AlignedBuf::ALIGN);
    let mut files = Vec::new();
    for path in list().with_context(|| format!("can't list {}", dir.display()))? {
        let file = io.open(&path, Access::Direct)?;
        let size = usize::try_from(file.stat()?.size)? / AlignedBuf::ALIGN * AlignedBuf::ALIGN;
        let take = size.min(left);
        left -= take;
        if take > 0 {
            files.push((file, take));
        }
    }
    ensure!(left == 0, "{} has {left} bytes less than were read of it", dir.display());
    Ok(files)
}

/// Allocates bytes and touches them, so that no read waits for memory.
pub(super) fn touched(bytes: usize) -> AlignedBuf {
    let mut memory = AlignedBuf::new(bytes);
    memory.fill(1);
    memory
}

/// Returns the least time to read the first `bytes` of a directory's files, one file after the other in the order of
/// their names.
pub(super) fn least_time(io: &dyn Io, dir: &Path, bytes: u64) -> Result<Duration> {
    let files = first_bytes(io, dir, bytes)?;
    let mut memory = touched(files.iter().map(|(_, bytes)| bytes).sum());
    let mut least = Duration::MAX;
    for piece in PIECES {
        least = least.min(read(io, &files, &mut memory, piece)?);
    }
    Ok(least)
}

/// Reads this many bytes from the beginning of each file, in pieces.
fn read(
    io: &dyn Io,
    files: &[(Arc<dyn IoFile>, usize)],
    memory: &mut [u8],
    piece: usize,
) -> Result<Duration> {
    let mut reads = Vec::new();
    let mut rest = memory;
    for (file, bytes) in files {
        let (mine, behind) = rest.split_at_mut(*bytes);
        rest = behind;
        reads.extend(mine.chunks_mut(piece).zip(0_u64..).map(|(chunk, number)| BatchRead {
            file: &**file,
            offset: number * piece as u64,
            bufs: vec![IoSliceMut::new(chunk)],
        }));
    }
    let mut count = 0;
    let mut failed = None;
    let began = Instant::now();
    io.read_batch(&mut reads, &mut |_, result| match result {
        Ok(bytes) => count += bytes,
        Err(error) => failed = Some(error),
    });
    let took = began.elapsed();
    if let Some(error) = failed {
        return Err(error.into());
    }
    let wanted: usize = files.iter().map(|(_, bytes)| bytes).sum();
    ensure!(count == wanted, "{count} of {wanted} bytes were read");
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_file_is_read_and_no_more_than_there_is() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let bytes: Vec<u8> = (0..300_u32 << 10).flat_map(u32::to_le_bytes).collect();
        std::fs::write(dir.path().join("a"), &bytes).unwrap();
        std::fs::write(dir.path().join("b"), &bytes[..8192]).unwrap();
        let io = pagekeeper_io::best();
        assert!(read_file(&*io, &dir.path().join("a")).unwrap()[..] == bytes[..]);
        let all = bytes.len() as u64 + 8192;
        least_time(&*io, dir.path(), all - 1).unwrap();
        assert!(least_time(&*io, dir.path(), all + 1).is_err());
    }
}
