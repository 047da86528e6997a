//! Restoring: a store is made of a backup and the increments that go on from it.
//!
//! Invariants:
//! 1. Each increment begins at the commit that the copy before it is as of, and is of the same store: that is checked before anything is made.
//! 2. Each increment is whole: all of its bytes have the checksum that its header says, and each page has its own. Else nothing
//!    becomes a store.
//! 3. Backup and increments are read only.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pagekeeper_io::{AlignedBuf, Io, IoFile, open_past_cache};

use crate::backup::{Backup, Base, Copied};
use crate::data::Run;
use crate::destination::{Destination, Like, Writer};
use crate::format::increment::{CHUNK_HEADER, ChunkHeader, HEADER, IncrementFault, IncrementHeader, VERSION};
use crate::format::page;
use crate::format::superblock::Superblock;
use crate::options::{Create, StoreOptions};
use crate::{Error, PageNo, Seq};

impl StoreOptions {
    /// Makes a store in `to`, which is made, of a backup and of increments that go on from it, in order; of the backup alone, if
    /// there are none. Each page is checked as it is read. `to` is as of the last increment's commit, and a store when this returns, durably.
    ///
    /// Fails with [`Error::IncrementGap`] where an increment does not begin at the commit that the one before it ends at; with
    /// [`Error::IncrementOfOther`] where it is of another store, and [`Error::OtherPageSize`] for pages of another size; with
    /// [`Error::NoIncrement`] where it is not whole; with [`Error::Damaged`] where a page of the backup is; and with [`Error::Exists`] where `to` is there. What
    /// was made until then is removed. If the process ends before this returns, `to` is missing, or a store that was never
    /// finished ([`Error::Unfinished`]).
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let at = |name: &str| temp.path().join(name);
    /// let store = Store::options().journal_bytes(1 << 20).open(&at("store"))?;
    /// let backup = store.backup(&at("sunday"))?;
    /// let mut txn = store.begin()?;
    /// let page = txn.allocate()?;
    /// txn.commit(Durability::Sync)?;
    /// store.backup_since(&backup.base(), &at("monday"))?;
    ///
    /// Store::options().restore(&at("sunday"), &[at("monday")], &at("again"))?;
    /// assert_eq!(Store::options().open(&at("again"))?.begin_read()?.read(page)?[0], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore(
        &self,
        backup: &Path,
        increments: &[impl AsRef<Path>],
        to: &Path,
    ) -> Result<Backup, Error> {
        let began = Instant::now();
        let io = self.io_or_best();
        let source = self.clone().read_only(true).create(Create::Never).open(backup)?;
        let config = &source.core().config;
        let store = config.store_id;
        let mut before = (Base { store, seq: source.stat().seq }, backup.to_path_buf());
        let mut like =
            Like { store, page_size: config.page_size, max_journal_bytes: config.max_journal_bytes };
        let mut opened = Vec::with_capacity(increments.len());
        for path in increments {
            let increment = Reader::open(&io, path.as_ref())?;
            increment.check_follows(&before, config.page_size)?;
            before = (increment.base(), increment.path.clone());
            like.max_journal_bytes = increment.header.superblock.max_journal_bytes;
            opened.push(increment);
        }
        let destination = Destination::create(self, &io, to, like)?;
        let Copied { live, mut bytes, snapshots } = source.core().copy_to(&mut destination.writer())?;
        let (mut seq, mut meta) = (live.seq, (*live.meta).clone());
        for increment in opened {
            bytes += increment.put_over(destination.writer())?;
            let Superblock { checkpoint_seq, meta: now, .. } = increment.header.superblock;
            (seq, meta) = (checkpoint_seq, now);
        }
        let pages = meta.pages;
        destination.finish(seq, meta)?;
        let page_size = config.page_size;
        Ok(Backup { store, page_size, seq, pages, bytes, snapshots, took: began.elapsed() })
    }

    /// What a copy is as of, for an increment that begins at it: `copy` is a backup's directory, or an increment.
    ///
    /// Fails as opening a store to read only does, and with [`Error::NoIncrement`].
    pub fn base(&self, copy: &Path) -> Result<Base, Error> {
        let io = self.io_or_best();
        match io.list(copy) {
            Err(error) if error.errno() == Some(libc::ENOTDIR) => Ok(Reader::open(&io, copy)?.base()),
            Err(error) => Err(error.into()),
            Ok(_) => {
                let store = self.clone().read_only(true).create(Create::Never).open(copy)?;
                Ok(Base { store: store.core().config.store_id, seq: store.stat().seq })
            }
        }
    }
}

/// An increment, open.
struct Reader {
    path: PathBuf,
    file: Arc<dyn IoFile>,
    header: IncrementHeader,
}

impl Reader {
    /// Reads the header.
    fn open(io: &Arc<dyn Io>, path: &Path) -> Result<Self, Error> {
        let file = open_past_cache(&**io, path)?;
        let found = file.stat()?.size;
        let mut bytes = AlignedBuf::new(HEADER);
        let got = file.read_at(0, &mut bytes)?;
        let path = path.to_path_buf();
        match IncrementHeader::decode(&bytes[..got.min(HEADER)]) {
            Ok(header) if header.bytes == found => Ok(Self { path, file, header }),
            Ok(header) => {
                let what = format!("{found} bytes long, and it had {}", header.bytes);
                Err(Error::NoIncrement { path, what })
            }
            Err(IncrementFault::Version(version)) => {
                Err(Error::UnknownVersion { path, version, known: VERSION })
            }
            Err(fault) => Err(Error::NoIncrement { path, what: fault.to_string() }),
        }
    }

    fn base(&self) -> Base {
        let Superblock { store, checkpoint_seq: seq, .. } = self.header.superblock;
        Base { store, seq }
    }

    /// Whether it goes on from this copy.
    fn check_follows(&self, (before, at): &(Base, PathBuf), page_size: usize) -> Result<(), Error> {
        let (path, found) = (self.path.clone(), self.header.superblock.page_size as usize);
        let store = self.header.superblock.store;
        if store != before.store {
            return Err(Error::IncrementOfOther {
                path,
                found: store,
                before: at.clone(),
                wanted: before.store,
            });
        }
        if found != page_size {
            return Err(Error::OtherPageSize { path, found, wanted: page_size });
        }
        let since = self.header.since;
        if since == before.seq {
            Ok(())
        } else {
            Err(Error::IncrementGap { path, since, before: at.clone(), seq: before.seq })
        }
    }

    /// Writes what it has over a copy that it goes on from; gives the bytes that were written.
    fn put_over(&self, mut writer: Writer<'_>) -> Result<u64, Error> {
        let (pages, seq) = (self.header.superblock.meta.pages, self.header.superblock.checkpoint_seq);
        let page_size = self.header.superblock.page_size as usize;
        let (mut at, mut crc, mut images) = (HEADER as u64, 0, 0);
        let mut last = None;
        writer.begin(pages, seq)?;
        while at < self.header.bytes {
            let head = self.read(&mut at, CHUNK_HEADER)?;
            crc = crc32c::crc32c_append(crc, &head);
            let chunk = ChunkHeader::decode(&head, page_size).map_err(|fault| self.fault(fault))?;
            let bytes = self.read(&mut at, chunk.images * page_size)?;
            crc = crc32c::crc32c_append(crc, &bytes);
            images += chunk.images as u64;
            let found = bytes.chunks(page_size).map(|image| self.check(image));
            let found = found.collect::<Result<Vec<_>, _>>()?;
            if !found.is_sorted_by(|(a, _), (b, _)| a < b) {
                return Err(self.fault("pages of a chunk do not ascend"));
            }
            // What was written to the same pages must have ended.
            if !chunk.blank.is_empty() || found.first().is_some_and(|(page, _)| Some(*page) <= last) {
                writer.begin(pages, seq)?;
            }
            last = found.last().map(|(page, _)| *page).or(last);
            for range in &chunk.blank {
                writer.blank(range.start..range.end.min(pages).max(range.start))?;
            }
            // What later commits took away is none any more.
            let counting = found.partition_point(|(page, _)| *page < pages);
            let runs = runs(&found[..counting]).map(|run| {
                let mut room = AlignedBuf::new(run.len() * page_size);
                room.copy_from_slice(&bytes[run.start * page_size..run.end * page_size]);
                Run { first: found[run.start].0, seqs: Vec::new(), bytes: room }
            });
            writer.write(runs.collect(), found[..counting].to_vec())?;
        }
        if crc != self.header.body_crc {
            return Err(self.fault("its checksum does not hold"));
        }
        if images != self.header.images {
            return Err(self.fault("it does not have the pages that it says"));
        }
        writer.end()
    }

    /// The next bytes.
    fn read(&self, at: &mut u64, len: usize) -> Result<AlignedBuf, Error> {
        let mut bytes = AlignedBuf::new(len);
        if len > 0 && self.file.read_at(*at, &mut bytes)? < len {
            return Err(self.fault("it was cut off"));
        }
        *at += len as u64;
        Ok(bytes)
    }

    /// Number and checksum of a page, which is whole and of a commit that the increment may have.
    fn check(&self, image: &[u8]) -> Result<(PageNo, u32), Error> {
        let number = page::number(image);
        let found = page::check(image, number, self.header.superblock.store);
        let header = found.map_err(|fault| self.fault(format_args!("page {number}: {fault}")))?;
        let seqs: Range<Seq> = self.header.since + 1..self.header.superblock.checkpoint_seq + 1;
        if seqs.contains(&header.seq) {
            Ok((number, header.crc))
        } else {
            Err(self.fault(format_args!("page {number}: of commit {}, which it can't have", header.seq)))
        }
    }

    fn fault(&self, what: impl std::fmt::Display) -> Error {
        Error::NoIncrement { path: self.path.clone(), what: what.to_string() }
    }
}

/// Where pages stand in a row.
fn runs(pages: &[(PageNo, u32)]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        let first = pages.get(start)?.0;
        while pages.get(at).is_some_and(|(page, _)| *page == first + (at - start) as u64) {
            at += 1;
        }
        Some(start..at)
    })
}
