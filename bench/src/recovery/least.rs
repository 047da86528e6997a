//! The least that an opening must do with a journal: learn where its current part begins, read it, sum every byte, note where each page
//! stands, and make durable what was found.
//!
//! One round trip for the first block of the control file, since what follows can't be judged without it; then direct reads, as many as
//! the disk takes, of which the sums are made as they come, by all processors; for each page an entry in a hash table; and a sync of the
//! file that is read last, behind all, since what was found is what a power cut may not take any more. Its memory was touched before. It
//! follows no records, compares no sum, and keeps no byte of what it read: no opening could do with that.
//! Fails where a read or the sync fails, or a read comes short.

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

/// Requests that a worker has under way at once, and workers: twice as many requests as the disk serves, so that it has work while sums
/// are made.
const AT_ONCE: usize = 8;
const WORKERS: usize = 16;

/// A request.
struct Piece<'a> {
    file: &'a dyn IoFile,
    offset: u64,
    bytes: usize,
}

/// The least time that it takes for the first `bytes` of the files of a directory, in which so many pages stand.
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
            // Its part of them, wherever they stand in it.
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

/// The first `bytes` of a file.
fn pieces(file: &dyn IoFile, bytes: usize, piece: usize) -> impl Iterator<Item = Piece<'_>> {
    (0..bytes).step_by(piece).map(move |at| Piece { file, offset: at as u64, bytes: piece.min(bytes - at) })
}

/// Reads them, one behind the other; how many bytes they have.
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
