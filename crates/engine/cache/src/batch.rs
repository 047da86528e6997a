//! Reads of many pages at once: absent pages go to the device together, neighbours as one read.
//!
//! Invariants: a thread begins all loads that it does itself, finishes them, and only then waits
//! for those of other threads. So two batches never wait for each other. Each request has its own
//! outcome.

use pagekeeper_io::{IoFile, ReadStream, StreamRead};

use crate::frames::{self, LoadingFrame};
use crate::handle::FileHandle;
use crate::lookup::LookupAttempt;
use crate::pool::{BeginOutcome, BusyPolicy, LoadReason};
use crate::{CachedFile, Error};

/// Maximum number of neighbouring pages in one read of the device.
pub(crate) const RUN_PAGES_MAX: usize = 16;

/// Maximum number of pages that one call has in flight.
const BATCH_PAGES_IN_FLIGHT_MAX: usize = 256;

/// After this many absent pieces, the rest of a list is probed while the reads of these are in
/// flight, so that the device does not idle.
const PROBED_PIECES_MAX: usize = 64;

/// Number of reads ahead for which the processor fetches the page's entry.
const ENTRIES_AHEAD: usize = 16;

/// Number of reads ahead for which the processor fetches the page's bytes.
const READS_AHEAD: usize = 4;

/// Maximum bytes of a read that are fetched ahead: the processor itself continues from there.
const FETCHED_BYTES_MAX: usize = 256;

/// One of many reads of a file.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    offset: u64,
    buf: &'a mut [u8],
    outcome: Result<usize, Error>,
}

impl<'a> ReadRequest<'a> {
    /// Creates a request that reads from `offset` on into `buf`.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, outcome: Ok(0) }
    }

    /// Returns the number of bytes read, fewer than the buffer holds only at the end of the file,
    /// or the error. `Ok(0)` before the request was made.
    pub fn outcome(&self) -> &Result<usize, Error> {
        &self.outcome
    }

    /// Returns the offset of the read, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the buffer.
    pub fn bytes(&self) -> &[u8] {
        self.buf
    }
}

/// The part of a request that lies in one page.
#[derive(Debug)]
struct PagePiece<'a> {
    page: u32,
    from: usize,
    buf: &'a mut [u8],
    request: usize,
}

/// Cuts a read within the file into pieces.
fn cut<'a>(
    handle: &FileHandle,
    offset: u64,
    mut buf: &'a mut [u8],
    request: usize,
    pieces: &mut Vec<PagePiece<'a>>,
) {
    let shift = handle.shared.settings.page_shift;
    let mut at = offset;
    while !buf.is_empty() {
        let from = handle.offset_in_page(at);
        let len = buf.len().min((1 << shift) - from);
        let (first, rest) = buf.split_at_mut(len);
        #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
        let page = (at >> shift) as u32;
        pieces.push(PagePiece { page, from, buf: first, request });
        buf = rest;
        at += len as u64;
    }
}

/// Returns the length of the first run: of pages that are neighbours in the file, at most
/// [`RUN_PAGES_MAX`].
pub(crate) fn run_len(pages: impl IntoIterator<Item = u32>) -> usize {
    let mut pages = pages.into_iter();
    let Some(mut last) = pages.next() else { return 0 };
    let mut len = 1;
    for page in pages {
        if len == RUN_PAGES_MAX || page != last.wrapping_add(1) {
            break;
        }
        (last, len) = (page, len + 1);
    }
    len
}

impl CachedFile {
    /// Makes many reads at once. All absent pages go to the device together, with as much
    /// concurrency as the back-end has. Lists of at least 16 reads are faster than single reads if
    /// the processor's caches do not hold the pages.
    ///
    /// Each request has its own [outcome](ReadRequest::outcome); a request that fails does not stop
    /// the others.
    ///
    /// # Errors
    ///
    /// The first error among the requests' outcomes, like that of [`read_at`](Self::read_at).
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), Error> {
        let handle = &**self.handle();
        if let Err(error) = handle.shared.require_own_process() {
            for request in requests {
                request.outcome = Err(error.clone());
            }
            return Err(error);
        }
        for request in requests.iter().take(ENTRIES_AHEAD) {
            handle.fast_path.fetch_entry(request.offset);
        }
        for request in requests.iter().take(READS_AHEAD) {
            handle.fast_path.fetch_bytes(request.offset, request.buf.len().min(FETCHED_BYTES_MAX));
        }
        let (mut pieces, mut outcomes, mut rest) = (Vec::new(), Vec::new(), requests);
        while let Some((ReadRequest { offset, buf, outcome }, later)) = rest.split_first_mut() {
            if let Some(ahead) = later.get(ENTRIES_AHEAD - 1) {
                handle.fast_path.fetch_entry(ahead.offset);
            }
            if let Some(ahead) = later.get(READS_AHEAD - 1) {
                handle.fast_path.fetch_bytes(ahead.offset, ahead.buf.len().min(FETCHED_BYTES_MAX));
            }
            rest = later;
            *outcome = Ok(buf.len());
            if handle.fast_path.copy(*offset, buf) {
                continue;
            }
            *outcome = handle.len_within(*offset, buf.len());
            if let Ok(len @ 1..) = *outcome {
                cut(handle, *offset, &mut buf[..len], outcomes.len(), &mut pieces);
            }
            outcomes.push(outcome);
        }
        if outcomes.is_empty() {
            return Ok(());
        }
        handle.read_all(pieces, &mut |request, error| {
            if outcomes[request].is_ok() {
                *outcomes[request] = Err(error);
            }
        });
        outcomes.into_iter().try_for_each(|outcome| outcome.clone().map(drop))
    }

    /// Reads within the file, across pages.
    pub(crate) fn read_pieces(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let handle = &**self.handle();
        // Pages in the cache need no list of pieces.
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

impl FileHandle {
    /// Copies from `offset` on up to the first absent page. Returns the number of bytes.
    fn read_found(&self, offset: u64, buf: &mut [u8]) -> usize {
        let shift = self.shared.settings.page_shift;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let from = self.offset_in_page(at);
            let end = buf.len().min(done + (1 << shift) - from);
            #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
            let page = (at >> shift) as u32;
            if !frames::copy(self, page, from, &mut buf[done..end], LookupAttempt::First) {
                break;
            }
            done = end;
        }
        done
    }

    /// Reads all pieces; `failed` is called for each piece that can't be read.
    fn read_all(&self, mut pieces: Vec<PagePiece<'_>>, failed: &mut dyn FnMut(usize, Error)) {
        let mut absent = 0;
        pieces.retain_mut(|piece| {
            let stays = absent == PROBED_PIECES_MAX || !self.find_piece(piece);
            absent += usize::from(stays && absent < PROBED_PIECES_MAX);
            stays
        });
        pieces.sort_unstable_by_key(|piece| piece.page);
        let several = pieces.first().map(|piece| piece.page) != pieces.last().map(|piece| piece.page);
        let io = self.io();
        let others = match &io {
            Ok(io) if several => {
                let is_probed = absent < PROBED_PIECES_MAX;
                let mut loads = BatchLoads::new(self, &***io, &mut pieces, is_probed, failed);
                self.shared.settings.io.read_stream(&mut loads);
                loads.others
            }
            // A single page is loaded alone; a closed file fails each piece.
            Ok(_) | Err(_) => vec![&mut pieces[..]],
        };
        for piece in others.into_iter().flatten() {
            if let Err(error) = self.read_missed(piece.page, piece.from, piece.buf) {
                failed(piece.request, error);
            }
        }
    }

    /// Copies a piece, if its page can be read.
    fn find_piece(&self, piece: &mut PagePiece<'_>) -> bool {
        frames::copy(self, piece.page, piece.from, piece.buf, LookupAttempt::First)
    }

    /// Takes a frame for an absent page. `None` if the page must be read alone: another caller
    /// loads it, or no frame is free.
    fn begin_load(&self, page: u32) -> Option<LoadingFrame<&Self>> {
        let attempt = || self.shared.pool.begin(&self.page_table, page, BusyPolicy::Leave);
        let mut begun = attempt();
        if matches!(begun, BeginOutcome::Full) && self.shared.make_room_patiently() {
            begun = attempt();
        }
        match begun {
            BeginOutcome::Load(ticket) => Some(LoadingFrame::new(self, ticket)),
            BeginOutcome::Readable | BeginOutcome::Busy(_) | BeginOutcome::Full | BeginOutcome::Closed => {
                None
            }
        }
    }

    /// Reads one page into its frame.
    fn read_alone(&self, filling: &mut LoadingFrame<&Self>) -> Result<usize, Error> {
        let start = self.range(filling.page()).start;
        let io = self.io()?;
        let read = io.read_at(start, filling.bytes_mut())?;
        self.shared.device.add(read);
        self.check_unchanged(&**io, self.range(filling.page()))?;
        Ok(read)
    }
}

/// Neighbouring pages that one read loads, each with the pieces that need it.
type PageRun<'a, 'b> = Vec<(LoadingFrame<&'a FileHandle>, &'a mut [PagePiece<'b>])>;

/// The loads of one call. Each begins when the device has room, and is settled soon after its read
/// has ended, while others are in flight.
struct BatchLoads<'a, 'b, 'f> {
    handle: &'a FileHandle,
    io: &'a dyn IoFile,
    /// The pieces whose loads have not begun, by page.
    rest: &'a mut [PagePiece<'b>],
    /// Whether all of these were found absent when the call began.
    is_probed: bool,
    /// Runs in flight, by token.
    runs: Vec<Option<PageRun<'a, 'b>>>,
    free: Vec<usize>,
    /// Pages in flight.
    pages: usize,
    /// Reads that have ended since the last turn.
    ended: Vec<(usize, Result<usize, Error>)>,
    /// Pieces of pages that must be read alone.
    others: Vec<&'a mut [PagePiece<'b>]>,
    failed: &'f mut dyn FnMut(usize, Error),
}

impl<'a, 'b, 'f> BatchLoads<'a, 'b, 'f> {
    fn new(
        handle: &'a FileHandle,
        io: &'a dyn IoFile,
        pieces: &'a mut [PagePiece<'b>],
        is_probed: bool,
        failed: &'f mut dyn FnMut(usize, Error),
    ) -> Self {
        Self {
            handle,
            io,
            rest: pieces,
            is_probed,
            runs: Vec::new(),
            free: Vec::new(),
            pages: 0,
            ended: Vec::new(),
            others: Vec::new(),
            failed,
        }
    }

    /// Begins the load of the next page that this thread can load. With `after`, only if the page
    /// is that page's next neighbour.
    fn begin(
        &mut self,
        after: Option<u32>,
    ) -> Option<(LoadingFrame<&'a FileHandle>, &'a mut [PagePiece<'b>])> {
        loop {
            let page = self.rest.first()?.page;
            if after.is_some_and(|last| last.checked_add(1) != Some(page)) {
                return None;
            }
            let len = self.rest.iter().take_while(|piece| piece.page == page).count();
            let (group, rest) = std::mem::take(&mut self.rest).split_at_mut(len);
            self.rest = rest;
            if !self.is_probed && group.iter_mut().all(|piece| self.handle.find_piece(piece)) {
                // The next page no longer follows the last one, so it begins its own run.
                continue;
            }
            if let Some(filling) = self.handle.begin_load(page) {
                return Some((filling, group));
            }
            self.others.push(group);
        }
    }

    /// Settles the pages of a read that has ended. `unchanged` is the state of the file after the
    /// read.
    fn settle(&mut self, run: PageRun<'a, 'b>, read: &Result<usize, Error>, unchanged: Result<(), &Error>) {
        let page_size = 1 << self.handle.shared.settings.page_shift;
        let alone = run.len() == 1;
        for (place, (mut filling, pieces)) in run.into_iter().enumerate() {
            let mut read = read
                .as_ref()
                .copied()
                .map_err(Error::clone)
                .map(|read| read.saturating_sub(place * page_size).min(page_size));
            if read.is_err() && !alone && unchanged.is_ok() {
                // One page of a run may be bad, and the others good.
                read = self.handle.read_alone(&mut filling);
            }
            let bytes = filling.bytes(self.handle.page_len(filling.page()));
            let range = self.handle.range(filling.page());
            let checked = unchanged
                .map_err(|error| error.clone().of_range(&range))
                .and(read)
                .and_then(|read| self.handle.check_page(filling.page(), read, bytes));
            match checked {
                Ok(()) => {
                    for piece in pieces {
                        piece.buf.copy_from_slice(&bytes[piece.from..piece.from + piece.buf.len()]);
                    }
                    filling.publish(LoadReason::Read);
                }
                Err(error) => {
                    if filling.abandon(&error) {
                        for piece in pieces {
                            (self.failed)(piece.request, error.clone());
                        }
                    } else {
                        // The page was written meanwhile, and must be loaded again.
                        self.others.push(pieces);
                    }
                }
            }
        }
    }
}

impl<'a> ReadStream<'a> for BatchLoads<'a, '_, '_> {
    fn next(&mut self) -> Option<StreamRead<'a>> {
        // A bound that leaves frames for others.
        let at_once = BATCH_PAGES_IN_FLIGHT_MAX.min(self.handle.shared.pool.limit() as usize / 8).max(1);
        if self.pages >= at_once {
            return None;
        }
        let mut run = vec![self.begin(None)?];
        while run.len() < RUN_PAGES_MAX.min(at_once - self.pages) {
            let Some(next) = self.begin(run.last().map(|(filling, _)| filling.page())) else { break };
            run.push(next);
        }
        let offset = self.handle.range(run[0].0.page()).start;
        let targets = run.iter_mut().map(|(filling, _)| filling.target()).collect();
        self.pages += run.len();
        let token = self.free.pop().unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() - 1
        });
        self.runs[token] = Some(run);
        Some(StreamRead { file: self.io, offset, targets, token })
    }

    fn ended(&mut self, token: usize, result: Result<usize, pagekeeper_io::Error>) {
        if let Ok(bytes) = result {
            self.handle.shared.device.add(bytes);
        }
        self.ended.push((token, result.map_err(Error::from)));
    }

    fn turn(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let unchanged = self.handle.check_unchanged(self.io, 0..self.handle.stat.size);
        let mut ended = std::mem::take(&mut self.ended);
        for (token, read) in ended.drain(..) {
            let Some(run) = self.runs[token].take() else { continue };
            self.free.push(token);
            self.pages -= run.len();
            self.settle(run, &read, unchanged.as_ref().copied());
        }
        self.ended = ended;
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
        assert_eq!(run_len(0..100), RUN_PAGES_MAX);
    }
}
