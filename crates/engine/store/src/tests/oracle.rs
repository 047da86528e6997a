//! The oracle: knows what was done to a store, and so what must be found in it.
//!
//! Invariant: `states` has every commit that may be found from now on, each with the whole store
//! after it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pagekeeper_simdisk::SimDisk;

use crate::{Durability, Error, PageNo, ReadTxn, Seq, Store, WriteTxn};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_testing::Rng;

/// Bytes of a payload.
pub(super) const PAYLOAD: usize = 4096 - 32;

/// The content of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    /// In a run, and not written yet.
    Blank,
    Data(Arc<[u8]>),
}

/// The whole store after a commit.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreState {
    pub(super) seq: Seq,
    pub(super) pages: Vec<Slot>,
    root: Option<PageNo>,
    metadata: Vec<u8>,
}

/// The knowledge about a store.
pub(super) struct Oracle {
    pub(super) disk: SimDisk,
    /// The operation at which the power is cut.
    pub(super) cut: Option<u64>,
    pub(super) states: BTreeMap<Seq, Arc<StoreState>>,
    /// This commit and all earlier ones must be found.
    pub(super) durable: Seq,
    /// Whether a commit failed so that it may be there or not.
    pub(super) doubt: bool,
    /// Pages whose place in the data file was damaged, with the commit from which on they are
    /// intact again.
    pub(super) rot: BTreeMap<PageNo, Seq>,
    /// Whether any page's place may be damaged, since the result of a write is unknown.
    pub(super) all_may_rot: bool,
    /// Whether space of free pages may have been given back.
    compacted: bool,
    /// Maximum number of pages.
    pub(super) max_pages: usize,
    /// The best known length of metadata with which a commit takes [`EVEN`] bytes of the journal,
    /// if commits are to be equally long.
    even: Option<usize>,
}

/// Bytes of the journal of each such commit: a part of a block.
const EVEN: u64 = 1024;

impl Oracle {
    pub(super) fn new(disk: SimDisk, max_pages: usize, even: bool) -> Self {
        let states = BTreeMap::from([(Seq::NONE, Arc::default())]);
        Self {
            disk,
            cut: None,
            states,
            durable: Seq::NONE,
            doubt: false,
            rot: BTreeMap::new(),
            all_may_rot: false,
            compacted: false,
            max_pages,
            even: even.then_some(900),
        }
    }

    /// Returns the state after the last commit.
    pub(super) fn last(&self) -> &Arc<StoreState> {
        self.states.last_key_value().expect("there is always one").1
    }

    /// Whether the disk has failed by now.
    pub(super) fn has_failed(&self) -> bool {
        self.disk.stats().faults > 0 || self.power_is_off()
    }

    pub(super) fn power_is_off(&self) -> bool {
        self.cut.is_some_and(|cut| self.disk.ops() > cut)
    }

    /// Whether a page as of a commit may be damaged.
    fn is_rotten(&self, page: PageNo, seq: Seq) -> bool {
        self.all_may_rot || self.rot.get(&page).is_some_and(|healed| seq < *healed)
    }

    /// Panics if this error is not expected, with the store as of `seq`.
    pub(super) fn excuse(&self, error: &Error, seq: Seq) {
        let is_excused = match error {
            Error::Damaged { page, .. } => self.is_rotten(*page, seq),
            Error::Poisoned { cause } => {
                self.has_failed()
                    || matches!(**cause, Error::Damaged { page, .. } if self.is_rotten(page, seq))
            }
            Error::Io(_) | Error::Journal(_) | Error::Cache(_) => self.has_failed(),
            Error::TransactionTooLarge { bytes, max } => bytes > max,
            _ => false,
        };
        assert!(is_excused, "commit {seq}: {error}");
    }

    fn durable_upto(&mut self, seq: Seq) {
        self.durable = self.durable.max(seq);
    }
}

/// A store and its oracle, as they are also used in the middle of its checkpoints.
#[derive(Clone)]
pub(super) struct Subject {
    pub(super) store: Arc<Store>,
    pub(super) oracle: Arc<Mutex<Oracle>>,
}

/// The reason why a transaction is not committed.
enum Stop {
    /// The disk failed, or a page is damaged.
    Failed,
}

impl Subject {
    /// Whether a commit has room without a checkpoint.
    pub(super) fn has_room(&self) -> bool {
        let stat = self.store.stats();
        let end = PageNo::new(stat.pages);
        let is_clear = self.store.core().is_clear(&(end..end + 100));
        is_clear.is_ok_and(|is_clear| is_clear)
            && stat.journal_bytes + (60 << 10) < stat.max_journal_bytes
            && stat.unapplied_bytes + (80 << 10) < stat.memory / 4
    }

    /// Runs a random transaction; `None` drops it.
    pub(super) fn transact(&self, seed: u64, durability: Option<Durability>) {
        let mut oracle = lock(&self.oracle);
        let mut rng = Rng::from_seed(seed);
        let before = Arc::clone(oracle.last());
        let mut txn = match self.store.begin_write() {
            Ok(txn) => txn,
            Err(error) => return oracle.excuse(&error, before.seq),
        };
        assert!(!oracle.doubt, "a transaction begins after a commit that failed");
        let mut after = StoreState { seq: before.seq + 1, ..StoreState::clone(&before) };
        let mut changed = Vec::new();
        let even = oracle.even.filter(|_| !rng.one_in(40));
        let journal = even.map(|_| self.store.stats().journal_bytes);
        if let Some(len) = even {
            after.metadata = bytes(&mut rng, len);
            txn.set_metadata(&after.metadata).expect("it is short enough");
        }
        // Most change little.
        for _ in 0..even.map_or_else(|| 1 + rng.of(0..3) * rng.of(0..3), |_| 0) {
            match act(&mut txn, &oracle, &mut after, &mut rng, &mut changed) {
                Ok(()) => {}
                Err(Stop::Failed) => return,
            }
        }
        assert_eq!(
            (txn.root(), txn.metadata(), txn.pages()),
            (after.root, &after.metadata[..], after.pages.len() as u64)
        );
        let Some(mut durability) = durability else { return };
        if even.is_some() && !rng.one_in(12) {
            // Many writes at once, so that a part in the middle of them may be lost.
            durability = Durability::None;
        }
        if changed.is_empty()
            && (after.root, &after.metadata, after.pages.len())
                == (before.root, &before.metadata, before.pages.len())
        {
            after.seq = before.seq;
        }
        let checked = txn.check_size();
        match txn.commit(durability) {
            Ok(seq) => {
                assert_eq!(seq, after.seq, "the number of a commit");
                if durability != Durability::None {
                    oracle.durable_upto(seq);
                }
                oracle.committed(after, &changed);
                if let (Some(len), Some(before), Durability::None) = (even, journal, durability) {
                    oracle.level(len, before, self.store.stats().journal_bytes);
                }
            }
            Err(Error::TransactionTooLarge { bytes, max }) => {
                assert!(bytes > max && changed.len() > 4);
                assert!(checked.is_err(), "the commit is too large, and the changes were not");
            }
            Err(error) => {
                oracle.excuse(&error, before.seq);
                if matches!(error, Error::Poisoned { .. }) && after.seq > before.seq {
                    oracle.committed(after, &changed);
                    oracle.doubt = true;
                } else {
                    assert_eq!(self.store.stats().seq, before.seq, "{error}, and yet it was committed");
                }
            }
        }
    }

    /// Runs a background checkpoint.
    pub(super) fn checkpoint(&self) {
        let last = lock(&self.oracle).last().seq;
        let stepped = self.store.step();
        let mut oracle = lock(&self.oracle);
        match stepped {
            Ok(_) if oracle.doubt => {}
            Ok(_) => {
                let synced = self.store.stats().checkpoint_seq;
                assert!(synced >= last, "a checkpoint to {synced} of {last}");
                oracle.durable_upto(last);
            }
            // Also if a commit beside it has written the page again.
            Err(error) => oracle.excuse(&error, last),
        }
    }

    /// Frees many pages, as far as possible.
    pub(super) fn free_many(&self, seed: u64) {
        let mut oracle = lock(&self.oracle);
        let mut rng = Rng::from_seed(seed);
        let before = Arc::clone(oracle.last());
        let mut txn = match self.store.begin_write() {
            Ok(txn) => txn,
            Err(error) => return oracle.excuse(&error, before.seq),
        };
        let mut after = StoreState { seq: before.seq + 1, ..StoreState::clone(&before) };
        let mut changed = Vec::new();
        let end = rng.index(before.pages.len() + 1);
        for (index, slot) in after.pages.iter_mut().enumerate() {
            if *slot == Slot::Free || (index < end && rng.one_in(2)) {
                continue;
            }
            let page = PageNo::new(index as u64);
            if let Err(error) = txn.free(page) {
                return oracle.excuse(&error, before.seq);
            }
            *slot = Slot::Free;
            changed.push(page);
        }
        if changed.is_empty() {
            return;
        }
        match txn.commit(Durability::Sync) {
            Ok(seq) => {
                oracle.durable_upto(seq);
                oracle.committed(after, &changed);
            }
            Err(error) => {
                oracle.excuse(&error, before.seq);
                if matches!(error, Error::Poisoned { .. }) {
                    oracle.committed(after, &changed);
                    oracle.doubt = true;
                }
            }
        }
    }

    /// Cuts off the free pages at the end, and gives the space of others back.
    pub(super) fn compact(&self) {
        let mut oracle = lock(&self.oracle);
        oracle.compacted = true;
        let before = Arc::clone(oracle.last());
        let mut after = StoreState::clone(&before);
        while after.pages.last() == Some(&Slot::Free) {
            after.pages.pop();
        }
        let is_shorter = after.pages.len() < before.pages.len();
        after.seq = before.seq + 1;
        let done = self.store.compact();
        if oracle.doubt {
            let error = done.expect_err("a store that has failed is not compacted");
            return oracle.excuse(&error, before.seq);
        }
        let seq = self.store.stats().seq;
        match &done {
            Ok(found) => {
                // Or only the free list was sorted.
                assert!(found.seq == after.seq || !is_shorter && found.seq == before.seq);
                assert_eq!((found.seq, found.pages), (seq, after.pages.len() as u64));
                assert_eq!(found.pages_before, before.pages.len() as u64);
            }
            // Also if a page of the free list is damaged.
            Err(error) => oracle.excuse(error, before.seq),
        }
        if seq == after.seq {
            oracle.committed(after, &[]);
        } else {
            assert_eq!(seq, before.seq);
        }
        match done {
            Ok(_) => oracle.durable_upto(seq),
            Err(Error::Poisoned { .. }) => oracle.doubt = true,
            Err(_) => {}
        }
    }

    /// Begins to read, and returns what readers should see.
    pub(super) fn begin_read(&self) -> (ReadTxn<'_>, Arc<StoreState>) {
        let oracle = lock(&self.oracle);
        let read = self.store.begin_read().expect("readers are not refused");
        let (durable, last) = (oracle.durable, oracle.last().seq);
        let is_due = if oracle.doubt { (durable..=last).contains(&read.seq()) } else { read.seq() == last };
        assert!(is_due, "commit {} is seen of {durable}..={last}", read.seq());
        let state = Arc::clone(&oracle.states[&read.seq()]);
        (read, state)
    }
}

impl Oracle {
    /// Adjusts the length after the journal grew from `before` to `now` with metadata of this
    /// length.
    fn level(&mut self, len: usize, before: u64, now: u64) {
        // If there was no checkpoint in between.
        if let Some(taken) = now.checked_sub(before).filter(|taken| *taken < 2 * EVEN) {
            let wanted = (len as u64 + EVEN).saturating_sub(taken);
            self.even = usize::try_from(wanted).ok().map(|wanted| wanted.min(1024));
        }
    }

    fn committed(&mut self, after: StoreState, changed: &[PageNo]) {
        for page in changed {
            if let Some(healed) = self.rot.get_mut(page) {
                *healed = (*healed).min(after.seq);
            }
        }
        self.states.insert(after.seq, after.into());
    }

    /// Records that the store was opened and shows this commit. Later commits are lost.
    pub(super) fn opened(&mut self, seq: Seq) -> Arc<StoreState> {
        let last = self.last().seq;
        assert!(seq >= self.durable, "commit {seq} is found, and {} was acknowledged", self.durable);
        assert!(seq <= last, "commit {seq} is found, and {last} was the last");
        self.states = self.states.split_off(&seq);
        self.states.split_off(&(seq + 1));
        for healed in self.rot.values_mut().filter(|healed| **healed > seq) {
            *healed = Seq::MAX;
        }
        (self.durable, self.doubt) = (seq, false);
        Arc::clone(&self.states[&seq])
    }

    /// Compares a page.
    pub(super) fn compare_page(&self, read: &ReadTxn<'_>, state: &StoreState, page: PageNo) {
        let seq = state.seq;
        let Some(slot) = usize::try_from(page.get()).ok().and_then(|index| state.pages.get(index)) else {
            assert!(matches!(read.read(page), Err(Error::OutOfRange { .. })), "page {page} of commit {seq}");
            return;
        };
        match (read.read(page), slot) {
            (Ok(found), Slot::Data(bytes)) => {
                assert!(found[..] == bytes[..], "page {page} of commit {seq} has other bytes");
            }
            (Err(Error::NotAllocated { .. }), Slot::Free)
            | (Err(Error::NeverWritten { .. }), Slot::Blank) => {}
            (Err(Error::NeverWritten { .. }), Slot::Free) if self.compacted => {}
            (Err(Error::NeverWritten { .. }), _) if self.is_rotten(page, seq) => {}
            (Ok(_), slot) => panic!("page {page} of commit {seq} can be read, and is {slot:?}"),
            (Err(error @ (Error::NotAllocated { .. } | Error::NeverWritten { .. })), _) => {
                panic!("page {page} of commit {seq}: {error}");
            }
            (Err(error), _) => self.excuse(&error, seq),
        }
    }

    /// Compares everything.
    pub(super) fn compare(&self, read: &ReadTxn<'_>, state: &StoreState) {
        assert_eq!(
            (read.seq(), read.root(), read.metadata(), read.pages()),
            (state.seq, state.root, &state.metadata[..], state.pages.len() as u64)
        );
        let all = PageNo::each(PageNo::new(0)..PageNo::new(read.pages() + 1));
        all.for_each(|page| self.compare_page(read, state, page));
    }
}

/// Runs one step of a transaction.
fn act(
    txn: &mut WriteTxn<'_>,
    oracle: &Oracle,
    after: &mut StoreState,
    rng: &mut Rng,
    changed: &mut Vec<PageNo>,
) -> Result<(), Stop> {
    let seq = oracle.last().seq;
    let pages = after.pages.len();
    let index = rng.index(pages + 1);
    let page = PageNo::new(index as u64);
    let stop = |error: Error| {
        oracle.excuse(&error, seq);
        Err(Stop::Failed)
    };
    let slot = after.pages.get(index).cloned();
    match rng.of(0..20) {
        0..3 if pages < oracle.max_pages || after.pages.contains(&Slot::Free) => {
            let page = match txn.allocate() {
                Ok(page) => page,
                Err(error) => return stop(error),
            };
            let index = usize::try_from(page.get()).expect("few pages");
            let is_free = after.pages.contains(&Slot::Free);
            assert!(
                index < pages && is_free || index == pages && !is_free,
                "page {page} of {pages} is allocated"
            );
            if index == pages {
                after.pages.push(Slot::Free);
            }
            assert_eq!(after.pages[index], Slot::Free, "page {page} is in use, and allocated");
            after.pages[index] = Slot::Data(Arc::from([0; PAYLOAD]));
            changed.push(page);
        }
        3 if pages < oracle.max_pages => {
            let count = 1 + rng.of(0..4);
            match txn.allocate_run(count) {
                Ok(first) => assert_eq!(first.get(), pages as u64),
                Err(error) => return stop(error),
            }
            after.pages.extend((0..count).map(|_| Slot::Blank));
        }
        0..9 => {
            let payload = payload(rng);
            match (txn.write(page, &payload), slot) {
                (Ok(()), Some(Slot::Data(_) | Slot::Blank)) => {
                    after.pages[index] = Slot::Data(payload.into());
                    changed.push(page);
                }
                (Err(Error::OutOfRange { .. }), None)
                | (Err(Error::NotAllocated { .. }), Some(Slot::Free)) => {}
                // Nobody can know any more that it is free.
                (Ok(()), Some(Slot::Free)) if oracle.is_rotten(page, seq) => return Err(Stop::Failed),
                (Ok(()), slot) => panic!("page {page} can be written, and is {slot:?}"),
                (Err(error), _) => return stop(error),
            }
        }
        9..15 => {
            let from = rng.index(PAYLOAD - 100);
            let len = 1 + rng.index(99);
            let byte = rng.number().to_le_bytes()[0];
            match (txn.page_mut(page), slot) {
                (Ok(bytes), Some(Slot::Data(before))) => {
                    assert!(
                        bytes[..] == before[..],
                        "page {page} has other bytes for a writer of commit {}",
                        after.seq
                    );
                    bytes[from..from + len].fill(byte);
                    after.pages[index] = Slot::Data(Arc::from(&*bytes));
                    changed.push(page);
                }
                (Ok(_), slot) => panic!("page {page} can be changed, and is {slot:?}"),
                (Err(error), slot) => return refused(oracle, &error, slot.as_ref(), page, seq),
            }
        }
        15..17 => match (txn.free(page), slot) {
            (Ok(()), Some(Slot::Data(_) | Slot::Blank)) => {
                after.pages[index] = Slot::Free;
                changed.push(page);
            }
            (Ok(()), Some(Slot::Free)) if oracle.is_rotten(page, seq) => return Err(Stop::Failed),
            (Ok(()), slot) => panic!("page {page} can be freed, and is {slot:?}"),
            (Err(error), Some(Slot::Blank)) => return stop(error),
            (Err(error), slot) => return refused(oracle, &error, slot.as_ref(), page, seq),
        },
        17 => {
            after.root = (!rng.one_in(3)).then_some(page);
            txn.set_root(after.root);
        }
        18 => {
            let len = if rng.one_in(4) { rng.index(1025) } else { rng.index(20) };
            after.metadata = bytes(rng, len);
            txn.set_metadata(&after.metadata).expect("it is short enough");
        }
        _ => match (txn.read(page), slot) {
            (Ok(found), Some(Slot::Data(bytes))) => {
                assert!(found[..] == bytes[..], "page {page} has other bytes for a writer");
            }
            (Ok(_), slot) => panic!("page {page} can be read, and is {slot:?}"),
            (Err(error), slot) => return refused(oracle, &error, slot.as_ref(), page, seq),
        },
    }
    Ok(())
}

/// Checks that a page is refused as it should be, or for a known reason.
fn refused(oracle: &Oracle, error: &Error, slot: Option<&Slot>, page: PageNo, seq: Seq) -> Result<(), Stop> {
    match (error, slot) {
        (Error::OutOfRange { .. }, None)
        | (Error::NotAllocated { .. }, Some(Slot::Free))
        | (Error::NeverWritten { .. }, Some(Slot::Blank)) => Ok(()),
        (Error::NeverWritten { .. }, _) if oracle.is_rotten(page, seq) => Err(Stop::Failed),
        (error, _) => {
            oracle.excuse(error, seq);
            Err(Stop::Failed)
        }
    }
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.number().to_le_bytes()[0]).collect()
}

/// Returns a payload of few or many bytes, surrounded by zeros.
fn payload(rng: &mut Rng) -> Vec<u8> {
    let mut payload = vec![0; PAYLOAD];
    let (from, len) = match rng.of(0..8) {
        0 => (0, PAYLOAD),
        1 => (0, rng.index(PAYLOAD)),
        _ => (rng.index(PAYLOAD - 200), rng.index(200)),
    };
    for bytes in payload[from..from + len].chunks_mut(8) {
        bytes.copy_from_slice(&rng.number().to_le_bytes()[..bytes.len()]);
    }
    payload
}
