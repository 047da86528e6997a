//! Reads of many pages at once: what is absent goes to the device together, neighbours as one read.
//!
//! Invariants: a thread begins all loads that it will do itself, finishes them, and only then waits for those of others, so
//! that two batches never wait for each other. Each request has an outcome of its own.

use std::io::IoSliceMut;

use pagekeeper_io::{BatchRead, IoFile};

use crate::file::Handle;
use crate::find::Look;
use crate::frames::{self, Filling};
use crate::pool::{Begin, OnBusy, Wish};
use crate::{CachedFile, Error};

/// Neighbouring pages in one read of the device, at most.
pub(crate) const RUN: usize = 16;

/// Pages that one call loads at once, at most; more come after them.
const AT_ONCE: usize = 256;

/// One of many reads of a file.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    offset: u64,
    buf: &'a mut [u8],
    outcome: Result<usize, Error>,
}

impl<'a> ReadRequest<'a> {
    /// Reads from `offset` on into `buf`.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, outcome: Ok(0) }
    }

    /// How many bytes were read, fewer than the buffer holds only at the end of the file; or why they could not be. `Ok(0)`
    /// before the request was made.
    pub fn outcome(&self) -> &Result<usize, Error> {
        &self.outcome
    }

    /// Where it reads from, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The buffer.
    pub fn bytes(&self) -> &[u8] {
        self.buf
    }
}

/// The part of a request that lies in one page.
#[derive(Debug)]
struct Piece<'a> {
    page: u32,
    from: usize,
    buf: &'a mut [u8],
    request: usize,
}

/// Cuts a read within the file into pieces.
fn cut<'a>(handle: &Handle, offset: u64, mut buf: &'a mut [u8], request: usize, pieces: &mut Vec<Piece<'a>>) {
    let shift = handle.shared.settings.page_shift;
    let mut at = offset;
    while !buf.is_empty() {
        let from = usize::try_from(at & ((1 << shift) - 1)).unwrap_or(0);
        let len = buf.len().min((1 << shift) - from);
        let (first, rest) = buf.split_at_mut(len);
        #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
        let page = (at >> shift) as u32;
        pieces.push(Piece { page, from, buf: first, request });
        buf = rest;
        at += len as u64;
    }
}

/// Splits pages that follow each other into groups that are neighbours in the file: the length of the first.
pub(crate) fn run_len(pages: impl IntoIterator<Item = u32>) -> usize {
    let mut pages = pages.into_iter();
    let Some(mut last) = pages.next() else { return 0 };
    let mut len = 1;
    for page in pages {
        if len == RUN || page != last.wrapping_add(1) {
            break;
        }
        (last, len) = (page, len + 1);
    }
    len
}

impl CachedFile {
    /// Makes many reads at once. All pages that are absent go to the device together, as wide as the back-end can.
    ///
    /// Each request has an [outcome](ReadRequest::outcome) of its own; one that fails does not keep others from being read.
    ///
    /// # Errors
    ///
    /// The first error among the requests' outcomes, as of [`read_at`](Self::read_at).
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), Error> {
        let handle = &**self.handle();
        let size = handle.stat.size;
        let mut pieces = Vec::with_capacity(requests.len());
        let mut outcomes = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter_mut().enumerate() {
            if request.offset >= size {
                outcomes.push(self.read_at(request.offset, request.buf));
                continue;
            }
            let left = usize::try_from(size - request.offset).unwrap_or(usize::MAX);
            let len = left.min(request.buf.len());
            outcomes.push(Ok(len));
            cut(handle, request.offset, &mut request.buf[..len], index, &mut pieces);
        }
        handle.read_all(pieces, &mut |request, error| {
            if outcomes[request].is_ok() {
                outcomes[request] = Err(error);
            }
        });
        for (request, outcome) in requests.iter_mut().zip(outcomes) {
            request.outcome = outcome;
        }
        requests.iter().try_for_each(|request| request.outcome.clone().map(drop))
    }

    /// A read within the file across pages.
    pub(crate) fn read_pieces(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let handle = &**self.handle();
        // What is there needs no list of pieces.
        let found = handle.read_found(offset, buf);
        let (offset, buf) = (offset + found as u64, &mut buf[found..]);
        if buf.is_empty() {
            return Ok(());
        }
        let mut pieces = Vec::with_capacity((buf.len() >> handle.shared.settings.page_shift) + 2);
        cut(handle, offset, buf, 0, &mut pieces);
        let mut result = Ok(());
        handle.read_all(pieces, &mut |_, error| {
            if result.is_ok() {
                result = Err(error);
            }
        });
        result
    }
}

impl Handle {
    /// Copies from `offset` on up to the first page that is absent; how many bytes.
    fn read_found(&self, offset: u64, buf: &mut [u8]) -> usize {
        let shift = self.shared.settings.page_shift;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let from = usize::try_from(at & ((1 << shift) - 1)).unwrap_or(0);
            let end = buf.len().min(done + (1 << shift) - from);
            #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
            let page = (at >> shift) as u32;
            if !frames::copy(self, page, from, &mut buf[done..end], Look::First) {
                break;
            }
            done = end;
        }
        done
    }

    /// Reads all pieces; `failed` is told of each that can't be.
    fn read_all(&self, mut pieces: Vec<Piece<'_>>, failed: &mut dyn FnMut(usize, Error)) {
        let found =
            |piece: &mut Piece<'_>| frames::copy(self, piece.page, piece.from, piece.buf, Look::First);
        pieces.retain_mut(|piece| !found(piece));
        pieces.sort_by_key(|piece| piece.page);
        let mut rest = &mut pieces[..];
        while !rest.is_empty() {
            // Whole pages only, and so few that frames are left for others.
            let at_once = AT_ONCE.min(self.shared.pool.limit() as usize / 8).max(1);
            let pages = rest.chunk_by(|a, b| a.page == b.page).take(at_once);
            let (now, later) = rest.split_at_mut(pages.map(<[_]>::len).sum());
            self.read_chunk(now, failed);
            rest = later;
        }
    }

    /// Reads pieces that are sorted by page: those of pages that this thread can load together, then the others.
    fn read_chunk(&self, pieces: &mut [Piece<'_>], failed: &mut dyn FnMut(usize, Error)) {
        let mut fillings = Vec::new();
        let mut others = Vec::new();
        for group in pieces.chunk_by_mut(|a, b| a.page == b.page) {
            match self.begin_load(group[0].page) {
                Some(filling) => fillings.push((filling, group)),
                None => others.push(group),
            }
        }
        others.append(&mut self.load_together(fillings, failed));
        for piece in others.into_iter().flatten() {
            if let Err(error) = self.read_missed(piece.page, piece.from, piece.buf) {
                failed(piece.request, error);
            }
        }
    }

    /// Takes a frame for an absent page; `None` if that is to be done alone: another loads it, or no frame is free.
    fn begin_load(&self, page: u32) -> Option<Filling<&Self>> {
        let attempt = || self.shared.pool.begin(&self.translation, page, OnBusy::Leave);
        let mut begun = attempt();
        if matches!(begun, Begin::Full) && self.shared.make_room_patiently() {
            begun = attempt();
        }
        match begun {
            Begin::Load(ticket) => Some(Filling::new(self, ticket)),
            _ => None,
        }
    }

    /// Loads pages into their frames. Those that are to be loaded anew, since they were written meanwhile, are given back.
    fn load_together<'p, 'b>(
        &self,
        mut fillings: Vec<(Filling<&Self>, &'p mut [Piece<'b>])>,
        failed: &mut dyn FnMut(usize, Error),
    ) -> Vec<&'p mut [Piece<'b>]> {
        let mut again = Vec::new();
        if fillings.is_empty() {
            return again;
        }
        let mut results = Vec::new();
        let unchanged = self.io().and_then(|io| {
            self.read_runs(&**io, &mut fillings, &mut results);
            let whole = 0..self.stat.size;
            self.check_unchanged(&**io, whole)
        });
        let page_size = 1 << self.shared.settings.page_shift;
        let mut fillings = fillings.into_iter();
        if let Err(error) = &unchanged {
            results.resize_with(fillings.len(), || (1, Err(error.clone())));
        }
        for (len, result) in results {
            for (place, (mut filling, pieces)) in fillings.by_ref().take(len).enumerate() {
                let mut result =
                    result.clone().map(|read| read.saturating_sub(place * page_size).min(page_size));
                if result.is_err() && len > 1 && unchanged.is_ok() {
                    // One page of a run may be bad, and the others not.
                    result = self.read_alone(&mut filling);
                }
                let bytes = filling.bytes(self.page_len(filling.page()));
                let checked = unchanged
                    .clone()
                    .and(result)
                    .and_then(|read| self.check_page(filling.page(), read, bytes));
                match checked {
                    Ok(()) => {
                        for piece in pieces {
                            piece.buf.copy_from_slice(&bytes[piece.from..piece.from + piece.buf.len()]);
                        }
                        filling.publish(Wish::Read);
                    }
                    Err(error) => {
                        if filling.abandon(&error) {
                            for piece in pieces {
                                failed(piece.request, error.clone());
                            }
                        } else {
                            again.push(pieces);
                        }
                    }
                }
            }
        }
        again
    }

    /// Reads one page into its frame.
    fn read_alone(&self, filling: &mut Filling<&Self>) -> Result<usize, Error> {
        let start = self.range(filling.page()).start;
        let io = self.io()?;
        let read = io.read_at(start, filling.bytes_mut())?;
        self.shared.device.add(read);
        self.check_unchanged(&**io, self.range(filling.page()))?;
        Ok(read)
    }

    /// Reads all frames at once, neighbours as one read. For each read, in order: how many pages, and the outcome.
    fn read_runs(
        &self,
        io: &dyn IoFile,
        fillings: &mut [(Filling<&Self>, &mut [Piece<'_>])],
        results: &mut Vec<(usize, Result<usize, Error>)>,
    ) {
        let mut reads = Vec::new();
        let mut rest = fillings;
        while !rest.is_empty() {
            let len = run_len(rest.iter().map(|(filling, _)| filling.page()));
            let (run, after) = rest.split_at_mut(len);
            rest = after;
            let offset = self.range(run[0].0.page()).start;
            let bufs = run.iter_mut().map(|(filling, _)| IoSliceMut::new(filling.bytes_mut())).collect();
            // Overwritten by its completion; a read that has none, since the back-end panicked, unwinds past it.
            results.push((len, Ok(0)));
            reads.push(BatchRead { file: io, offset, bufs });
        }
        self.shared.settings.io.read_batch(&mut reads, &mut |index, read| {
            if let Ok(bytes) = read {
                self.shared.device.add(bytes);
            }
            results[index].1 = read.map_err(Error::from);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_neighbours_and_not_too_long() {
        assert_eq!(run_len([]), 0);
        assert_eq!(run_len([7]), 1);
        assert_eq!(run_len([7, 8, 9, 11]), 3);
        assert_eq!(run_len([7, 9]), 1);
        assert_eq!(run_len(0..100), RUN);
    }
}
