//! The least work of an opening with a journal: find where its current part begins, read it, checksum every byte,
//! record each page's place, and make the findings durable.
//!
//! The steps are:
//!
//! - One round trip for the control file's first block, without which the rest cannot be validated.
//! - Direct reads, with as many in flight as the disk takes; all processors compute the checksums as data arrives.
//! - For each page, an entry in a hash table.
//! - A sync of the file that is read last, after everything else, because a power cut must not remove what was found.
//!
//! Its memory was touched before. It follows no records, verifies no checksum, and keeps no data, which a real opening
//! has to do. Fails where a read or the sync fails, or a read is short.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_io::{Access, AlignedBuf, BatchRead, Io, IoFile};

use super::wide::{self, PIECES, touched};

/// Requests per worker in flight, and workers. Their product is twice what the disk serves, so that the disk has work
/// while checksums are computed.
const AT_ONCE: usize = 8;
const WORKERS: usize = 16;

/// A request.
struct Piece<'a> {
    file: &'a dyn IoFile,
    offset: u64,
    bytes: usize,
}

/// Returns the least time for the first `bytes` of a directory's files, in which these pages are recorded.
pub(super) fn least_time(io: &dyn Io, dir: &Path, bytes: u64, pages: &[u64]) -> Result<Duration> {
    let files = wide::first_bytes(io, dir, bytes)?;
    let control = io.open(&dir.join("control"), Access::Direct)?;
    let mut least = Duration::MAX;
    for piece in PIECES {
        least = least.min(once(io, &*control, &files, piece, pages)?);
    }
    Ok(least)
}

fn once(
    io: &dyn Io,
    control: &dyn IoFile,
    files: &[(Arc<dyn IoFile>, usize)],
    piece: usize,
    pages: &[u64],
) -> Result<Duration> {
    let pieces: Vec<Piece<'_>> =
        files.iter().flat_map(|(file, bytes)| pieces(&**file, *bytes, piece)).collect();
    let groups: Vec<&[Piece<'_>]> = pieces.chunks(AT_ONCE).collect();
    let mut memory: Vec<AlignedBuf> = (0..WORKERS).map(|_| touched(AT_ONCE * piece)).collect();
    let mut first = touched(AlignedBuf::ALIGN);
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    read(io, &[Piece { file: control, offset: 0, bytes: first.len() }], &mut first)?;
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
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()
    })?;
    files.last().map_or(Ok(()), |(file, _)| file.sync_data())?;
    Ok(began.elapsed())
}

/// Returns requests for the first `bytes` of a file.
fn pieces(file: &dyn IoFile, bytes: usize, piece: usize) -> impl Iterator<Item = Piece<'_>> {
    (0..bytes).step_by(piece).map(move |at| Piece { file, offset: at as u64, bytes: piece.min(bytes - at) })
}

/// Reads pieces in order and returns their number of bytes.
fn read(io: &dyn Io, pieces: &[Piece<'_>], memory: &mut [u8]) -> Result<usize> {
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
    fn every_byte_is_asked_for_once() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let bytes: Vec<u8> = (0..300_u32 << 10).flat_map(u32::to_le_bytes).collect();
        std::fs::write(dir.path().join("control"), &bytes[..4096]).unwrap();
        std::fs::write(dir.path().join("redo.0"), &bytes).unwrap();
        let io = pagekeeper_io::best();
        let file = io.open(&dir.path().join("redo.0"), Access::Direct).unwrap();
        let asked: Vec<Piece<'_>> = pieces(&*file, bytes.len(), 256 << 10).collect();
        let mut memory = AlignedBuf::new(bytes.len());
        assert_eq!(read(&*io, &asked, &mut memory).unwrap(), bytes.len());
        assert!(memory[..] == bytes[..]);
        let all = bytes.len() as u64 + 4096;
        least_time(&*io, dir.path(), all, &[3, 1, 4, 1, 5]).unwrap();
        assert!(least_time(&*io, dir.path(), all + 1, &[]).is_err());
    }
}
