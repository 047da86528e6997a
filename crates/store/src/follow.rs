//! Shipping the journal: a follower reads the commits of a store in order, and a replica, which began as a backup of it, takes them.
//!
//! Invariants:
//! 1. A follower gives durable commits only, each once, in order and without a gap; or says that the next one is gone from the journal.
//! 2. A replica takes a commit only if it is the next one, and only as a whole; each page is then, bit by bit, what it is in the source,
//!    if each of its commits was the source's: a restored or repaired source gives the same numbers to other commits, and that is not
//!    noticed but by the checksum of a page that is changed in part.
//!
//! Fails as reading the journal does.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use pagekeeper_kernel::mutex::lock;
use pagekeeper_log::{Error as LogError, RedoReader};

use crate::core::Core;
use crate::format::entry::{Change, Entry, PartHeader};
use crate::format::page::{self, HEADER, PageKind};
use crate::format::shipped::{Shipped, ShippedFault};
use crate::format::superblock::Meta;
use crate::handle::Handle;
use crate::txn::{Changed, WriteTxn};
use crate::{Durability, Error, PageNo, Seq, Store};

/// Reads the commits of a store in order; from [`Store::follow`]. Nothing is kept for it: what of the journal the data file has by then may be
/// given up at any time, so that who does not keep up has to begin with a backup again.
pub struct Follower<'a> {
    core: Handle<'a>,
    reader: Option<RedoReader>,
    /// Where the next record begins.
    lsn: u64,
    /// The last commit that was given, or is not wanted.
    after: Seq,
    /// The parts of the next one, as far as they were read.
    parts: Vec<Bytes>,
}

impl Store {
    /// Follows the store: the commits behind `after`, in order, as they become durable. A replica gives its own
    /// [`seq`](crate::StoreStat::seq). For one that is to be made, begin to follow before the backup that it begins with: what was
    /// committed meanwhile may be gone from the journal when the backup is made.
    ///
    /// Fails with [`Error::TooOld`] where the next one is no longer in the journal, and with [`Error::NotTheNext`] where the store has not
    /// come as far as `after`.
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Shipped, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let (dir, to) = (temp.path().join("store"), temp.path().join("replica"));
    /// # let store = Store::options().journal_bytes(1 << 20).open(&dir)?;
    /// # let mut txn = store.begin()?;
    /// # let page = txn.allocate()?;
    /// # txn.commit(Durability::Sync)?;
    /// let mut follower = store.follow(store.stat().seq)?;
    /// store.backup(&to)?;
    /// let replica = Store::options().open(&to)?;
    /// # let mut txn = store.begin()?;
    /// # txn.page_mut(page)?[0] = 7;
    /// # txn.commit(Durability::Sync)?;
    /// while let Some(commit) = follower.next()? {
    ///     let bytes = commit.encode(); // … over a network …
    ///     replica.apply(&Shipped::decode(&bytes)?, Durability::Sync)?;
    /// }
    /// assert_eq!(replica.begin_read()?.read(page)?[0], 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn follow(&self, after: Seq) -> Result<Follower<'_>, Error> {
        Follower::new(Handle::Borrowed(self.core()), after)
    }

    /// As [`follow`](Self::follow), with a follower that has a share of the store: it can be kept in a struct, or moved into a task or a
    /// thread that outlives the caller. Whoever drops the last share closes the store, which may take a sync.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Arc::new(Store::options().open(dir)?);
    /// let mut follower = store.follow_owned(store.stat().seq)?;
    /// let mut txn = store.begin()?;
    /// txn.allocate()?;
    /// txn.commit(Durability::Sync)?;
    ///
    /// let sender = std::thread::spawn(move || follower.next());
    /// assert_eq!(sender.join().expect("no panic")?.map(|commit| commit.seq()), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn follow_owned(self: &Arc<Self>, after: Seq) -> Result<Follower<'static>, Error> {
        Follower::new(Handle::Shared(Arc::clone(self)), after)
    }

    /// Takes a commit of the store that this one is a replica of: a [`backup`](Self::backup) that only ever took that one's commits.
    /// One that it has already is passed over. Gives the number of its last commit.
    ///
    /// Fails with [`Error::NotTheNext`] where commits between are missing, with [`Error::OtherStore`] for a commit of another store,
    /// with [`Error::Diverged`] where the page that is changed is not what it is in the source, and as [`WriteTxn::commit`] does; then
    /// nothing was changed. Its journal must have room for the commit with all of its pages as a whole, which may be more than the source's
    /// needed: [`Error::TransactionTooLarge`] else.
    ///
    /// That both have the same commits up to there is not checked. A replica that took commits of its own, or whose source was restored or
    /// repaired, has to begin with a backup again: it would differ without an error.
    pub fn apply(&self, commit: &Shipped, durability: Durability) -> Result<Seq, Error> {
        let core = self.core();
        core.process.require()?;
        if commit.store != core.config.store_id {
            return Err(Error::OtherStore { found: commit.store, wanted: core.config.store_id });
        }
        let entry = commit.entry(core.payload_size()).map_err(not_shipped)?;
        let mut txn = self.begin()?;
        let due = lock(&core.tail).seq + 1;
        if entry.seq < due {
            return Ok(due - 1);
        }
        if entry.seq > due {
            return Err(Error::NotTheNext { found: entry.seq, due });
        }
        txn.take(entry)?;
        txn.commit(durability)
    }
}

impl Shipped {
    /// From bytes. Fails with [`Error::NotShipped`] where they are not those of a commit, all of them.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes).map_err(not_shipped)
    }
}

fn not_shipped(fault: ShippedFault) -> Error {
    Error::NotShipped { what: fault.to_string() }
}

impl<'a> Follower<'a> {
    fn new(core: Handle<'a>, after: Seq) -> Result<Self, Error> {
        core.process.require()?;
        let (seq, lsn) = core.checkpoint_position();
        if after < seq {
            return Err(Error::TooOld { after, oldest: seq });
        }
        let last = lock(&core.tail).seq;
        if after > last {
            return Err(Error::NotTheNext { found: after, due: last + 1 });
        }
        Ok(Self { core, reader: None, lsn, after, parts: Vec::new() })
    }
}

impl Follower<'_> {
    /// The next commit; `None` where none is durable yet: ask again.
    ///
    /// Fails with [`Error::TooOld`] where it is no longer in the journal.
    #[expect(clippy::should_implement_trait, reason = "after `None` there may be more")]
    pub fn next(&mut self) -> Result<Option<Shipped>, Error> {
        self.core.process.require()?;
        loop {
            let Some(body) = self.next_record()? else { return Ok(None) };
            // One that says nothing: the end was marked.
            if body.is_empty() {
                continue;
            }
            let header = PartHeader::of(&body).map_err(|fault| self.corrupt(&fault.to_string()))?;
            if header.seq <= self.after {
                continue;
            }
            if header.seq != self.after + 1 {
                return Err(Error::TooOld { after: self.after, oldest: header.seq - 1 });
            }
            // Of one that never ended, which this one is in place of.
            if header.ordinal == 0 {
                self.parts.clear();
            }
            if header.ordinal as usize != self.parts.len() {
                return Err(self.corrupt("a part of a commit is missing"));
            }
            self.parts.push(body);
            if !header.goes_on {
                self.after = header.seq;
                let parts = std::mem::take(&mut self.parts);
                return Ok(Some(Shipped { store: self.core.config.store_id, seq: header.seq, parts }));
            }
        }
    }

    /// The commit that was given last.
    pub fn seq(&self) -> Seq {
        self.after
    }

    /// The body of the next record that is durable.
    fn next_record(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match self.read_record() {
                Ok(found) => return Ok(found),
                Err(error) => {
                    if !self.go_on_behind(error)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The same, from where it is.
    fn read_record(&mut self) -> Result<Option<Bytes>, LogError> {
        // A second time with a reader that is new.
        for _ in 0..2 {
            let is_new = self.reader.is_none();
            if is_new {
                if self.core.journal.durable_lsn() <= self.lsn {
                    return Ok(None);
                }
                self.reader = Some(self.core.journal.read_from(self.lsn)?);
            }
            match self.reader.as_mut().and_then(Iterator::next) {
                Some(Ok(record)) => {
                    self.lsn = record.end;
                    return Ok(Some(record.body.into()));
                }
                Some(Err(error)) => {
                    self.reader = None;
                    return Err(error);
                }
                None => self.reader = None,
            }
            if is_new {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// The journal can't be read: if that was given up, and had no commit that is wanted, it goes on behind that. Gives whether it does
    /// by now: the checkpoint may not have ended.
    ///
    /// Fails with [`Error::TooOld`] where commits that are wanted are gone, and as reading did where nothing was given up.
    fn go_on_behind(&mut self, error: LogError) -> Result<bool, Error> {
        let is_given_up = self.core.journal.checkpoint_lsn() > self.lsn;
        match error {
            LogError::NotInLog { .. } | LogError::Overtaken { .. } | LogError::Corrupt { .. }
                if is_given_up => {}
            error => return Err(error.into()),
        }
        let (oldest, lsn) = self.core.checkpoint_position();
        if self.after < oldest {
            return Err(Error::TooOld { after: self.after, oldest });
        }
        let goes_on = lsn > self.lsn;
        if goes_on {
            self.lsn = lsn;
            self.parts.clear();
        }
        Ok(goes_on)
    }

    fn corrupt(&self, what: &str) -> Error {
        let path = self.core.config.journal_path.clone();
        Error::Corrupt { path, what: format!("at LSN {}: {what}", self.lsn) }
    }
}

impl fmt::Debug for Follower<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("after", &self.after).field("lsn", &self.lsn).finish_non_exhaustive()
    }
}

impl WriteTxn<'_> {
    /// Makes it the change that another store made.
    fn take(&mut self, entry: Entry) -> Result<(), Error> {
        let Entry { seq, meta, changes } = entry;
        // A compaction takes free pages alone.
        let in_use = |meta: &Meta| meta.pages - meta.free_pages;
        if meta.pages < self.meta.pages && in_use(&meta) != in_use(&self.meta) {
            return Err(Error::Diverged { page: meta.pages, seq });
        }
        for (page, change) in changes {
            let changed = self.taken(page, seq, change)?;
            self.changed.insert(page, changed);
        }
        if let Some(head) = meta.free_head.filter(|head| self.meta.free_head != Some(*head))
            && !self.is_trunk(head)?
        {
            return Err(Error::Diverged { page: head, seq });
        }
        // When all else was found to fit.
        if meta.pages > self.meta.pages {
            self.room.before.get_or_insert(self.core.data.bytes());
            self.grow(meta.pages, true)?;
        }
        if meta.pages < self.meta.pages {
            self.core.forget_given_back();
        }
        self.meta = meta;
        Ok(())
    }

    /// Whether a page is one of the free list's after this transaction.
    fn is_trunk(&self, page: PageNo) -> Result<bool, Error> {
        Ok(match self.changed.get(&page) {
            Some(Changed::Page { kind, .. }) => *kind == PageKind::Trunk,
            Some(Changed::Free) => false,
            None => self.core.page_at(page, Seq::MAX)?.is_some_and(|page| page.kind() == PageKind::Trunk),
        })
    }

    fn taken(&self, page: PageNo, seq: Seq, change: Change) -> Result<Changed, Error> {
        let core = &self.core;
        let mut bytes = core.buffers.zeroed();
        let (kind, crc, in_part) = match change {
            Change::FullPageImage { kind, crc, first, bytes: image } => {
                let first = HEADER + first as usize;
                bytes.make_mut()[first..first + image.len()].copy_from_slice(&image);
                (kind, crc, false)
            }
            Change::Diff { kind, crc, ranges, .. } => {
                let before = core.page_at(page, Seq::MAX)?.ok_or(Error::Diverged { page, seq })?;
                bytes = core.buffers.copy(before.bytes());
                let payload = &mut bytes.make_mut()[HEADER..];
                for (at, changed) in ranges.iter() {
                    let at = at as usize;
                    payload[at..at + changed.len()].copy_from_slice(changed);
                }
                (kind, crc, true)
            }
            Change::Free { crc } => (PageKind::Free, crc, false),
            Change::Placed(_) => unreachable!("what is shipped is all there"),
        };
        if page::seal(bytes.make_mut(), kind, page, seq, core.config.store_id) != crc {
            return Err(Error::Diverged { page, seq });
        }
        Ok(if kind == PageKind::Free { Changed::Free } else { Changed::Page { kind, bytes, in_part } })
    }
}

impl Core {
    /// How far the data file is known to be: a commit, and where in the journal those behind it begin, or one before it.
    fn checkpoint_position(&self) -> (Seq, u64) {
        use std::sync::atomic::Ordering::Acquire;
        // The LSN is set last: it is never that of a later commit, or `next` finds the gap.
        let lsn = self.checkpoints.lsn.load(Acquire);
        (self.checkpoints.seq.load(Acquire), lsn)
    }
}
