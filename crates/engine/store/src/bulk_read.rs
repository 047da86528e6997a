//! Reads many pages as a snapshot has them: in wide reads of the data file past the cache, and page
//! by page where the index has a newer one.
//!
//! Invariant: a page that counts as read from the data file was checked against its own checksum
//! and the page map, and is as the snapshot has it. Any other page is read as the snapshot's
//! readers read it, and its cached copy does not count.

use std::io::IoSliceMut;

use pagekeeper_cache::PageRef;
use pagekeeper_io::{BatchRead, Error as IoError, IoFile};

use crate::core::Core;
use crate::format::page::{self, PageFault, PageHeader};
use crate::page::FoundPage;
use crate::snapshots::LiveSnapshot;
use crate::{Error, PageNo};

/// Bytes of one read; whole pages of any size.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Memory for consecutive pages of the data file.
pub(crate) struct PieceBuf<'b> {
    pub(crate) first: PageNo,
    pub(crate) bytes: &'b mut [u8],
}

/// The result of reading a piece.
pub(crate) struct PieceRead {
    /// For each page, whether the index had a version of it.
    newer: Vec<bool>,
    /// The reason why it could not be read.
    failed: Option<IoError>,
}

/// A page as a snapshot has it.
pub(crate) enum PageAt {
    /// The data file has it, with this header.
    InFile(PageHeader),
    /// It was read by itself. The data file has it only if it is `applied`.
    Elsewhere {
        page: FoundPage<PageRef>,
        applied: bool,
    },
    NeverWritten,
    /// Its piece could not be read.
    Unreadable(IoError),
}

/// Divides memory into pieces for consecutive pages.
pub(crate) fn pieces(first: PageNo, page_size: usize, bytes: &mut [u8]) -> Vec<PieceBuf<'_>> {
    let firsts = first.onward().step_by(PIECE_BYTES / page_size);
    firsts.zip(bytes.chunks_mut(PIECE_BYTES)).map(|(first, bytes)| PieceBuf { first, bytes }).collect()
}

impl Core {
    fn pages_of(&self, piece: &PieceBuf<'_>) -> impl Iterator<Item = PageNo> + use<> {
        piece.first.onward().take(piece.bytes.len() / self.config.page_size)
    }

    /// Reads pieces of the data file, all at once. Bytes behind its end are zeros.
    pub(crate) fn read_pieces(&self, file: &dyn IoFile, pieces: &mut [PieceBuf<'_>]) -> Vec<PieceRead> {
        // Before the pages are read: a version that leaves the index later is newer than what is
        // read.
        let newer = |piece: &PieceBuf<'_>| self.pages_of(piece).map(|page| self.index.has(page)).collect();
        let newer: Vec<_> = pieces.iter().map(newer).collect();
        let mut got = vec![Ok(0); pieces.len()];
        let reads = pieces.iter_mut().map(|piece| BatchRead {
            file,
            offset: piece.first.offset(self.config.page_size as u64),
            bufs: vec![IoSliceMut::new(piece.bytes)],
        });
        self.config.io.read_batch(&mut reads.collect::<Vec<_>>(), &mut |at, result| got[at] = result);
        let read = newer.into_iter().zip(got).zip(pieces).map(|((newer, got), piece)| {
            piece.bytes[*got.as_ref().unwrap_or(&0)..].fill(0);
            PieceRead { newer, failed: got.err() }
        });
        read.collect()
    }

    /// Calls `see` with each page of the pieces, its bytes in the data file, and the page as the
    /// snapshot has it.
    pub(crate) fn each_page(
        &self,
        live: &LiveSnapshot,
        pieces: &mut [PieceBuf<'_>],
        read: Vec<PieceRead>,
        mut see: impl FnMut(PageNo, &mut [u8], Result<PageAt, Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let pages: Vec<_> = pieces.iter().flat_map(|piece| self.pages_of(piece)).collect();
        let mut brought_in = self.load_places(pages, live.seq);
        for (PieceBuf { first, bytes }, PieceRead { newer, failed }) in pieces.iter_mut().zip(read) {
            for ((page, newer), bytes) in
                first.onward().zip(newer).zip(bytes.chunks_mut(self.config.page_size))
            {
                brought_in.reach(page);
                let found = match &failed {
                    Some(error) => Ok(PageAt::Unreadable(error.clone())),
                    None => self.page_as_of(live, page, bytes, newer),
                };
                see(page, bytes, found)?;
            }
        }
        Ok(())
    }

    /// Returns the page as the snapshot has it, from its bytes in the data file if the index had no
    /// newer one.
    fn page_as_of(
        &self,
        live: &LiveSnapshot,
        page: PageNo,
        bytes: &[u8],
        newer: bool,
    ) -> Result<PageAt, Error> {
        let read = page::check(bytes, page, self.config.store_id);
        if !newer && self.map.check(page, &read).is_ok() {
            let newest = live.seq.min(self.checkpoints.newest_in_file());
            match read {
                Ok(header) if header.seq <= newest => return Ok(PageAt::InFile(header)),
                Err(PageFault::NeverWritten) if self.is_blank(live, page) => return Ok(PageAt::NeverWritten),
                Ok(_) | Err(_) => {}
            }
        }
        // Not applied yet, being written, or damaged.
        self.read_by_itself(live, page, !newer)
    }

    /// Reads the page as the snapshot has it, from the data file again if that has it.
    pub(crate) fn read_by_itself(
        &self,
        live: &LiveSnapshot,
        page: PageNo,
        applied: bool,
    ) -> Result<PageAt, Error> {
        self.cached.discard(page);
        let found = self.page_of(live, page)?;
        Ok(found.map_or(PageAt::NeverWritten, |page| PageAt::Elsewhere { page, applied }))
    }
}
