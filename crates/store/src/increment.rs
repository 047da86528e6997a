//! Increments: a file with the pages that commits changed since a copy was made, while commits and checkpoints go on.
//!
//! Pages are read and checked as for a backup, all of them: which of them are newer than the base their headers say. What the file
//! saves is writing and room.
//!
//! Invariants:
//! 1. The file has its name when all of it is durable; until then it has another one (`.new` behind it). Nothing that is there is written over.
//! 2. Put over a copy that is as of the base's commit it makes one that is as of its own: it has each page that is newer, and
//!    each that is zeros.
//! 3. What fails takes away what it made.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_io::{AlignedBuf, Io, WriteMode};

use crate::backup::{Base, Copied, Piece, Sink};
use crate::core::Core;
use crate::create::above;
use crate::data::{DataFile, Run, Use, WritesInFlight};
use crate::depth::Depth;
use crate::format::increment::{
    CHUNK_HEADER, ChunkHeader, HEADER, IncrementHeader, MAX_IMAGE_BYTES, MAX_RANGES,
};
use crate::format::page;
use crate::format::superblock::{Meta, Superblock};
use crate::{Error, PageNo, Seq};

/// Writes at once, of a chunk each: few, since the syncs of commits wait behind them.
const DEPTH: usize = 4;
/// Bytes of a chunk's images; in tests few, so that there are several in small stores.
const IMAGE_BYTES: usize = if cfg!(test) { 64 << 10 } else { MAX_IMAGE_BYTES };
/// The same of its ranges.
const RANGES: usize = if cfg!(test) { 2 } else { MAX_RANGES };

/// An increment that was made; from [`Store::backup_since`](crate::Store::backup_since).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Increment {
    /// The id of the store.
    pub store: u64,
    /// Bytes of a page.
    pub page_size: usize,
    /// The commit that it begins at: that of its base.
    pub since: Seq,
    /// The commit that it is as of.
    pub seq: Seq,
    /// Pages in it. One that was changed again while it was made may count twice.
    pub pages: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Snapshots that it took. With each one after the first, what was changed meanwhile was written again.
    pub snapshots: u64,
    /// From the call to its end.
    pub took: Duration,
}

impl Increment {
    /// For the next increment, which begins at it.
    pub fn base(&self) -> Base {
        Base { store: self.store, seq: self.seq }
    }
}

impl Core {
    pub(crate) fn backup_since(&self, base: &Base, to: &Path) -> Result<Increment, Error> {
        let began = Instant::now();
        base.check_source(self.config.store_id, self.snapshots.visible().0)?;
        let page_size = self.config.page_size;
        let file = NewFile::create(&self.config.io, to)?;
        let mut writer = file.writer(page_size, base.seq);
        let Copied { live, snapshots, .. } = self.copy_to(&mut writer)?;
        let (bytes, images, body_crc) = (writer.at, writer.images, writer.crc);
        drop(writer);
        let superblock = self.superblock_of(live.seq, (*live.meta).clone());
        file.finish(&IncrementHeader { since: base.seq, bytes, images, body_crc, superblock })?;
        let (store, since, seq, pages) = (base.store, base.seq, live.seq, images);
        Ok(Increment { store, page_size, since, seq, pages, bytes, snapshots, took: began.elapsed() })
    }

    /// What the increment says of the store as of this commit.
    fn superblock_of(&self, seq: Seq, meta: Meta) -> Superblock {
        Superblock {
            number: 0,
            store: self.config.store_id,
            page_size: u32::try_from(self.config.page_size).unwrap_or_else(|_| unreachable!("at most 65536")),
            checkpoint_seq: seq,
            checkpoint_lsn: 0,
            max_journal_bytes: self.config.max_journal_bytes,
            first_diffs: false,
            journal: 0,
            meta,
        }
    }
}

impl Base {
    /// Whether pages that are newer than this copy are all that it lacks of a store with this id, whose last commit is `seq`.
    fn check_source(&self, store: u64, seq: Seq) -> Result<(), Error> {
        if self.store != store {
            return Err(Error::OtherStore { found: self.store, wanted: store });
        }
        if self.seq > seq { Err(Error::BaseAhead { base: self.seq, seq }) } else { Ok(()) }
    }
}

/// A file that is made: it goes again unless it is finished.
struct NewFile {
    io: Arc<dyn Io>,
    file: DataFile,
    to: PathBuf,
    /// Its name so far.
    name: PathBuf,
    is_finished: bool,
}

impl NewFile {
    fn create(io: &Arc<dyn Io>, to: &Path) -> Result<Self, Error> {
        refuse_if_there(&**io, to)?;
        let mut name = to.as_os_str().to_owned();
        name.push(".new");
        let name = PathBuf::from(name);
        let file = match DataFile::at(io, &name, Use::Make, CHUNK_HEADER) {
            Err(error) if error.errno() == Some(libc::EEXIST) => {
                return Err(Error::Exists { path: name, is_unfinished: true });
            }
            made => made,
        };
        match file {
            Ok(file) => Ok(Self { io: Arc::clone(io), file, to: to.to_path_buf(), name, is_finished: false }),
            Err(error) => {
                // It may have been made before it could not be opened. What another has made meanwhile is refused above.
                let _ = io.remove(&name);
                Err(error)
            }
        }
    }

    fn writer(&self, page_size: usize, since: Seq) -> Writer<'_> {
        Writer {
            writes: WritesInFlight::new(&self.file, Depth::fixed(DEPTH)),
            page_size,
            since,
            at: HEADER as u64,
            crc: 0,
            count: 0,
            images: 0,
            chunk: Vec::new(),
            blank: Vec::new(),
            last: None,
        }
    }

    /// Writes the header, and gives it its name when all is durable.
    fn finish(mut self, header: &IncrementHeader) -> Result<(), Error> {
        let mut bytes = AlignedBuf::new(HEADER);
        bytes.copy_from_slice(&header.encode());
        self.file.file.write_at(0, &bytes, WriteMode::Plain)?;
        self.file.file.sync_all()?;
        refuse_if_there(&*self.io, &self.to)?;
        self.io.rename(&self.name, &self.to)?;
        self.name.clone_from(&self.to);
        self.io.sync_dir(above(&self.to))?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = self.io.remove(&self.name);
        }
    }
}

/// Fails where anything has this name, if only a link to nothing.
fn refuse_if_there(io: &dyn Io, path: &Path) -> Result<(), Error> {
    let names: Vec<OsString> = io.list(above(path))?;
    let is_there = path.file_name().is_none_or(|name| names.iter().any(|found| found == name));
    if is_there { Err(Error::Exists { path: path.to_path_buf(), is_unfinished: false }) } else { Ok(()) }
}

/// Writes chunk behind chunk.
struct Writer<'a> {
    writes: WritesInFlight<'a>,
    page_size: usize,
    since: Seq,
    /// Where the next chunk begins.
    at: u64,
    /// Of all chunks before it.
    crc: u32,
    /// Images of the next chunk.
    count: usize,
    /// All of them.
    images: u64,
    /// Images of the next chunk.
    chunk: Vec<u8>,
    /// Pages without one.
    blank: Vec<Range<PageNo>>,
    /// The last page of the next chunk.
    last: Option<PageNo>,
}

impl Writer<'_> {
    fn add_image(&mut self, page: &[u8]) -> Result<(), Error> {
        if self.chunk.len() + page.len() > IMAGE_BYTES {
            self.flush()?;
        }
        self.chunk.extend_from_slice(page);
        self.count += 1;
        Ok(())
    }

    fn add_blank(&mut self, page: PageNo) -> Result<(), Error> {
        if let Some(last) = self.blank.last_mut().filter(|last| last.end == page) {
            last.end += 1;
            return Ok(());
        }
        if self.blank.len() == RANGES {
            self.flush()?;
        }
        self.blank.push(page..page + 1);
        Ok(())
    }

    /// Starts to write what there is.
    fn flush(&mut self) -> Result<(), Error> {
        self.last = None;
        if self.chunk.is_empty() && self.blank.is_empty() {
            return Ok(());
        }
        let mut bytes = AlignedBuf::new(CHUNK_HEADER + self.chunk.len());
        let header = ChunkHeader { images: self.count, blank: std::mem::take(&mut self.blank) };
        header.encode(&mut bytes[..CHUNK_HEADER]);
        bytes[CHUNK_HEADER..].copy_from_slice(&self.chunk);
        self.chunk.clear();
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.images += std::mem::take(&mut self.count) as u64;
        let first = self.at / CHUNK_HEADER as u64;
        self.at += bytes.len() as u64;
        self.writes.start(vec![Run { first, seqs: Vec::new(), bytes }])?;
        while self.writes.next_done().is_some() {}
        Ok(())
    }
}

impl Sink for Writer<'_> {
    /// What comes later in the file counts.
    fn begin(&mut self, _pages: u64, _seq: Seq) -> Result<(), Error> {
        self.flush()
    }

    fn write(&mut self, pieces: Vec<Piece>) -> Result<(), Error> {
        for Piece { first, bytes, crcs } in pieces {
            for ((number, crc), bytes) in (first..).zip(crcs).zip(bytes.chunks(self.page_size)) {
                // Within a chunk pages ascend, so that each is there once.
                if self.last.is_some_and(|last| number <= last) {
                    self.flush()?;
                }
                self.last = Some(number);
                match crc {
                    None => self.add_blank(number)?,
                    Some(_) if page::seq(bytes) > self.since => self.add_image(bytes)?,
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<u64, Error> {
        self.flush()?;
        self.writes.wait(0);
        self.writes.check()?;
        Ok(self.at)
    }
}
