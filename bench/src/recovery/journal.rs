//! Two limits of an opening: reading its journal, and doing the least with what was read.
//!
//! *Wide* reads all bytes at once and checks nothing. *Least* takes these steps:
//!
//! - One round trip for the control file's first block, without which the rest cannot be validated.
//! - Direct reads, with as many in flight as the disk takes; all processors compute the checksums
//!   as data arrives.
//! - For each page, an entry in a hash table.
//! - A sync of the file that is read last, after everything else, because a power cut must not
//!   remove what was found.
//!
//! It follows no records, verifies no checksum, and keeps no data, which a real opening has to do.
//! Both read directly, into memory that was touched before. Fails where a read or the sync fails,
//! or a read is short.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_io::{Access, AlignedBuf, BatchRead, Io, IoFile};

use crate::drive::join;

/// Request sizes to try, in bytes; the kernel decides which is best.
const REQUEST_BYTES_TESTED: [usize; 4] = [64 << 10, 128 << 10, 256 << 10, 1 << 20];
/// Requests per worker in flight, and workers. Their product is twice what the disk serves, so that
/// the disk has work while checksums are computed.
const REQUESTS_PER_WORKER: usize = 8;
const JOURNAL_WORKERS: usize = 16;

/// A file, and how many of its first bytes belong to the journal.
type JournalPart = (Arc<dyn IoFile>, usize);

/// A request.
struct JournalRequest<'a> {
    file: &'a dyn IoFile,
    offset: u64,
    bytes: usize,
}

/// Reads a whole file at once; its length must be a multiple of 4 KiB.
pub(super) fn read_file(io: &dyn Io, path: &Path) -> Result<AlignedBuf> {
    let file = io.open(path, Access::Direct)?;
    let mut memory = AlignedBuf::new(usize::try_from(file.stat()?.size)?);
    let pieces: Vec<JournalRequest<'_>> = pieces(&*file, memory.len(), 256 << 10).collect();
    read(io, &pieces, &mut memory)?;
    Ok(memory)
}

/// Returns the minimal time to read the first `bytes` of a directory's files, in the order of their
/// names.
pub(super) fn wide_time(io: &dyn Io, dir: &Path, bytes: u64) -> Result<Duration> {
    let files = first_bytes(io, dir, bytes)?;
    let mut memory = touched(files.iter().map(|(_, bytes)| bytes).sum());
    least_of(|piece| {
        let pieces = all_pieces(&files, piece);
        let began = Instant::now();
        read(io, &pieces, &mut memory)?;
        Ok(began.elapsed())
    })
}

/// Returns the minimal time of an opening with the first `bytes` of a directory's files, in which
/// these pages are recorded.
pub(super) fn least_time(io: &dyn Io, dir: &Path, bytes: u64, pages: &[u64]) -> Result<Duration> {
    let files = first_bytes(io, dir, bytes)?;
    let control = io.open(&dir.join("control"), Access::Direct)?;
    least_of(|piece| once(io, &*control, &files, piece, pages))
}

fn least_of(mut once: impl FnMut(usize) -> Result<Duration>) -> Result<Duration> {
    REQUEST_BYTES_TESTED.into_iter().try_fold(Duration::MAX, |least, piece| Ok(least.min(once(piece)?)))
}

/// Returns the files of a directory in the order of their names, and how much of each belongs to
/// its first `bytes`, rounded up to whole blocks.
fn first_bytes(io: &dyn Io, dir: &Path, bytes: u64) -> Result<Vec<JournalPart>> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
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
fn touched(bytes: usize) -> AlignedBuf {
    let mut memory = AlignedBuf::new(bytes);
    memory.fill(1);
    memory
}

fn once(
    io: &dyn Io,
    control: &dyn IoFile,
    files: &[JournalPart],
    piece: usize,
    pages: &[u64],
) -> Result<Duration> {
    let pieces = all_pieces(files, piece);
    let groups: Vec<&[JournalRequest<'_>]> = pieces.chunks(REQUESTS_PER_WORKER).collect();
    let mut memory: Vec<AlignedBuf> =
        (0..JOURNAL_WORKERS).map(|_| touched(REQUESTS_PER_WORKER * piece)).collect();
    let mut first = touched(AlignedBuf::ALIGN);
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    read(io, &[JournalRequest { file: control, offset: 0, bytes: first.len() }], &mut first)?;
    let work = |memory: &mut AlignedBuf| -> Result<()> {
        let (mut sum, mut index) = (0, HashMap::new());
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = groups.get(at) else { break };
            let bytes = read(io, group, memory)?;
            sum = crc32c::crc32c_append(sum, &memory[..bytes]);
            // Its part of the pages, at any place in the files.
            let part = pages.len() * at / groups.len()..pages.len() * (at + 1) / groups.len();
            index.extend(pages[part].iter().map(|page| (*page, (group[0].offset, bytes))));
        }
        black_box((sum, index));
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = memory.iter_mut().map(|memory| scope.spawn(|| work(memory))).collect();
        workers.into_iter().map(join).collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()
    })?;
    files.last().map_or(Ok(()), |(file, _)| file.sync_data())?;
    Ok(began.elapsed())
}

fn all_pieces(files: &[JournalPart], piece: usize) -> Vec<JournalRequest<'_>> {
    files.iter().flat_map(|(file, bytes)| pieces(&**file, *bytes, piece)).collect()
}

/// Returns requests for the first `bytes` of a file.
fn pieces(file: &dyn IoFile, bytes: usize, piece: usize) -> impl Iterator<Item = JournalRequest<'_>> {
    (0..bytes).step_by(piece).map(move |at| JournalRequest {
        file,
        offset: at as u64,
        bytes: piece.min(bytes - at),
    })
}

/// Reads pieces in order and returns their number of bytes.
fn read(io: &dyn Io, pieces: &[JournalRequest<'_>], memory: &mut [u8]) -> Result<usize> {
    let mut reads = Vec::new();
    let mut rest = memory;
    for piece in pieces {
        let (mine, behind) = rest.split_at_mut(piece.bytes);
        rest = behind;
        reads.push(BatchRead { file: piece.file, offset: piece.offset, bufs: vec![IoSliceMut::new(mine)] });
    }
    let mut came = Ok(0);
    io.read_batch(&mut reads, &mut |_, result| {
        came = match (std::mem::replace(&mut came, Ok(0)), result) {
            (Ok(before), Ok(bytes)) => Ok(before + bytes),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
    });
    let came = came.context("can't read the journal")?;
    let wanted: usize = pieces.iter().map(|piece| piece.bytes).sum();
    ensure!(came == wanted, "{came} of {wanted} bytes were read");
    Ok(came)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_once_and_no_more_than_there_is() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let bytes: Vec<u8> = (0..300_u32 << 10).flat_map(u32::to_le_bytes).collect();
        std::fs::write(dir.path().join("control"), &bytes[..4096]).unwrap();
        std::fs::write(dir.path().join("redo.0"), &bytes).unwrap();
        let io = pagekeeper_io::best();
        assert!(read_file(&*io, &dir.path().join("redo.0")).unwrap()[..] == bytes[..]);
        let all = bytes.len() as u64 + 4096;
        least_time(&*io, dir.path(), all, &[3, 1, 4, 1, 5]).unwrap();
        wide_time(&*io, dir.path(), all - 1).unwrap();
        assert!(least_time(&*io, dir.path(), all + 1, &[]).is_err());
        assert!(wide_time(&*io, dir.path(), all + 1).is_err());
    }
}
