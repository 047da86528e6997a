//! A store on a simulated disk, and operations on it: transactions, checkpoints, snapshots, disk
//! faults, crashes.

use std::path::Path;
use std::sync::{Arc, Mutex};

use pagekeeper_io::{Access, AlignedBuf, Create, Io, WriteMode};
use pagekeeper_simdisk::{Damage, Fault, Persistence, SimDisk, Times, WriteFault};
use pagekeeper_wal::LogMode;

use super::disk::{Meanwhile, Prompt};
use super::oracle::{Oracle, StoreState, Subject};
use crate::format::superblock::{SLOT_BYTES, SlotContent, Superblock};
use crate::injected_fault::InjectedFault;
use crate::superblocks;
use crate::{Durability, Error, PageNo, ReadTxn, Seq, Store, StoreOptions};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_testing::Rng;

const PAGE: usize = 4096;

pub(super) fn dir() -> &'static Path {
    Path::new("/store")
}

/// One operation, whose details come from its seed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    /// Runs a transaction; `None` drops it.
    Transact(u64, Option<Durability>),
    /// Runs a checkpoint, with this many transactions while its pages are written.
    Checkpoint(u64, u64),
    /// Applies all commits so far.
    Sync,
    /// Takes and keeps a snapshot.
    Keep,
    /// Compares a kept snapshot, in part or as a whole.
    Compare(u64),
    /// Drops a snapshot.
    Release(u64),
    /// Compares everything that is visible.
    CompareAll,
    /// The same, after reading all pages again.
    CompareAgain,
    Verify,
    /// Shrinks the data file.
    Compact,
    /// Frees many pages in one transaction: all at the end, and some of the others.
    FreeMany(u64),
    Fail(Failing),
}

/// A single failure of the disk.
#[derive(Debug, Clone, Copy)]
pub(super) enum Failing {
    /// The data file's next sync.
    DataSync,
    /// The same, and the kernel's cache drops the data that it could not write.
    DataSyncDrop,
    /// A sync, after this many.
    Sync(u64),
    /// A write, after this many.
    Write(u64),
    /// A write of the data file: the device is full.
    Full,
    /// The data file can't grow: the device is full.
    Grow,
    /// A read, after this many.
    Read(u64),
}

/// The kind of a crash.
#[derive(Debug, Clone, Copy)]
pub(super) enum Crash {
    Kill,
    PowerCut(Persistence, u64),
    /// The store is dropped, and the machine keeps running.
    Drop,
    /// The store is closed, after applying everything or not.
    Close(bool),
}

/// An event, for printing.
#[derive(Debug)]
#[expect(dead_code, reason = "it is printed")]
pub(super) enum Step {
    Open,
    CutAt(u64),
    Op(Op),
    Crash(Crash),
    Rot(PageNo),
    RotSuperblock(usize),
    Damage(&'static str, Damage),
}

/// The kind of a store and its disk.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each of them goes with each other")]
pub(super) struct Setting {
    pub(super) journal_bytes: u64,
    pub(super) memory: u64,
    /// Maximum number of pages.
    pub(super) max_pages: usize,
    pub(super) journal_mode: LogMode,
    pub(super) warm: bool,
    /// Whether the disk writes pages atomically, so that their first changes may be diffs.
    pub(super) atomic: bool,
    /// Whether most commits take the same room in the journal, so that an older epoch's remains
    /// begin where a newer one ends.
    pub(super) even: bool,
    /// Whether it is made within the life, with crashes during that.
    pub(super) is_new: bool,
    /// Whether it is compacted now and then.
    pub(super) compacts: bool,
}

impl Setting {
    pub(super) const SMALL: Self = Self {
        journal_bytes: 64 << 10,
        memory: 1 << 20,
        max_pages: 24,
        journal_mode: LogMode::Buffered,
        warm: false,
        atomic: false,
        even: false,
        is_new: true,
        compacts: false,
    };
}

/// A snapshot, and its expected content.
type Kept<'s> = (ReadTxn<'s>, Arc<StoreState>);

pub(super) struct World {
    pub(super) setting: Setting,
    injected_fault: Option<InjectedFault>,
    meanwhile: Meanwhile,
    pub(super) subject: Option<Subject>,
    pub(super) oracle: Arc<Mutex<Oracle>>,
    pub(super) story: Vec<Step>,
    pub(super) crashes: u64,
    /// The data file as it was at an earlier crash.
    earlier: Vec<u8>,
}

impl World {
    /// Creates a disk without a store, or with the given empty one.
    pub(super) fn new(
        setting: Setting,
        injected_fault: Option<InjectedFault>,
        made: Option<&SimDisk>,
    ) -> Self {
        let atomic = if setting.atomic { PAGE as u64 } else { 0 };
        let empty = || SimDisk::builder().by_steps().atomic_writes(atomic).build();
        let disk = made.map_or_else(empty, |made| made.after_power_cut(Persistence::All, 0));
        Self {
            setting,
            injected_fault,
            meanwhile: Meanwhile::default(),
            subject: None,
            oracle: Arc::new(Mutex::new(Oracle::new(disk, setting.max_pages, setting.even))),
            story: Vec::new(),
            crashes: 0,
            earlier: Vec::new(),
        }
    }

    pub(super) fn disk(&self) -> SimDisk {
        lock(&self.oracle).disk.clone()
    }

    pub(super) fn power_is_off(&self) -> bool {
        lock(&self.oracle).power_is_off()
    }

    pub(super) fn options(&self) -> StoreOptions {
        let Setting { journal_bytes, memory, max_pages, journal_mode, warm, .. } = self.setting;
        let io = Arc::new(Prompt::new(self.disk(), self.meanwhile.clone()));
        let options = Store::options().journal_bytes(journal_bytes).memory(memory).warm(warm).io(io);
        let mut options = options.without_threads();
        options.injected_fault = self.injected_fault;
        options.journal_mode = journal_mode;
        // For every other setting, all journal content that an opening finds is read again.
        options.held_journal_bytes = max_pages.is_multiple_of(2).then_some(0);
        options
    }

    /// Cuts the power at this operation of the disk.
    pub(super) fn cut_at(&mut self, op: u64) {
        let mut oracle = lock(&self.oracle);
        if oracle.power_is_off() {
            return;
        }
        self.story.push(Step::CutAt(op));
        oracle.disk.cut_power_at(op);
        oracle.cut = Some(op);
    }

    /// Opens the store and checks its content. Returns the disk's error, if it may fail.
    pub(super) fn open(&mut self) -> Result<(), Error> {
        self.story.push(Step::Open);
        match self.options().open(dir()) {
            Ok(store) => self.opened(store),
            Err(error) => {
                assert!(lock(&self.oracle).has_failed(), "it can't be opened: {error}");
                return Err(error);
            }
        }
        Ok(())
    }

    /// Continues with a store that was opened, and checks its content.
    pub(super) fn opened(&mut self, store: Store) {
        let seq = store.stats().visible_seq;
        let state = lock(&self.oracle).opened(seq);
        let stat = store.stats();
        let free = state.pages.iter().filter(|slot| **slot == super::oracle::Slot::Free).count();
        assert_eq!((stat.seq, stat.pages, stat.free_pages), (seq, state.pages.len() as u64, free as u64));
        assert!(stat.checkpoint_seq <= seq && stat.journal_bytes <= stat.max_journal_bytes);
        self.subject = Some(Subject { store: Arc::new(store), oracle: Arc::clone(&self.oracle) });
    }

    /// Runs one operation. Returns false if the disk has failed.
    pub(super) fn run<'s>(&mut self, subject: &'s Subject, kept: &mut Vec<Kept<'s>>, op: Op) -> bool {
        self.story.push(Step::Op(op));
        let of = |seed: u64, len: usize| usize::try_from(seed % len as u64).expect("few");
        match op {
            Op::Transact(seed, durability) => subject.transact(seed, durability),
            Op::Checkpoint(_, 0) => subject.checkpoint(),
            Op::Checkpoint(seed, transactions) => self.checkpoint_amid(subject, seed, transactions),
            Op::Sync => {
                let last = lock(&self.oracle).last().seq;
                let synced = subject.store.sync();
                let mut oracle = lock(&self.oracle);
                match synced {
                    Ok(()) if !oracle.doubt => oracle.durable = oracle.durable.max(last),
                    Ok(()) => {}
                    Err(error) => oracle.excuse(&error, last),
                }
            }
            Op::Keep => kept.push(subject.begin_read()),
            Op::Compare(seed) if !kept.is_empty() => {
                let (read, state) = &kept[of(seed, kept.len())];
                let oracle = lock(&self.oracle);
                let mut pages = 0..read.pages() + 1;
                if !seed.is_multiple_of(3) {
                    let page = (seed >> 8) % (read.pages() + 1);
                    pages = page..page + 1;
                }
                for page in pages.map(PageNo::new) {
                    if matches!(read.read(page), Err(Error::SnapshotTooOld)) {
                        break;
                    }
                    oracle.compare_page(read, state, page);
                }
            }
            Op::Release(seed) if !kept.is_empty() => drop(kept.swap_remove(of(seed, kept.len()))),
            Op::Compare(_) | Op::Release(_) | Op::CompareAll => {
                let (read, state) = subject.begin_read();
                lock(&self.oracle).compare(&read, &state);
            }
            Op::CompareAgain => {
                subject.store.drop_cached();
                let (read, state) = subject.begin_read();
                lock(&self.oracle).compare(&read, &state);
            }
            Op::Verify => self.verify(subject),
            Op::Compact => subject.compact(),
            Op::FreeMany(seed) => subject.free_many(seed),
            Op::Fail(how) => self.plan(how),
        }
        !lock(&self.oracle).has_failed()
    }

    fn checkpoint_amid(&self, subject: &Subject, seed: u64, transactions: u64) {
        let (amid, mut rng, mut left) = (subject.clone(), Rng::from_seed(seed), transactions);
        self.meanwhile.set(move || {
            while left > 0 && amid.has_room() {
                left -= 1;
                amid.transact(rng.number(), Some(random_durability(&mut rng)));
            }
        });
        subject.checkpoint();
        self.meanwhile.clear();
    }

    fn verify(&self, subject: &Subject) {
        let found = subject.store.verify();
        let oracle = lock(&self.oracle);
        match found {
            Ok(found) if oracle.rot.is_empty() && !oracle.has_failed() => {
                assert!(found.is_sound(), "{found}");
            }
            Ok(_) => {}
            Err(error) => oracle.excuse(&error, oracle.last().seq),
        }
    }

    /// Makes the disk fail, also while the store is opened.
    pub(super) fn fail(&mut self, how: Failing) {
        self.story.push(Step::Op(Op::Fail(how)));
        self.plan(how);
    }

    fn plan(&self, how: Failing) {
        let disk = self.disk();
        let data = dir().join("data");
        match how {
            Failing::DataSync => {
                disk.inject(data, 0..u64::MAX, WriteFault::SYNC_EIO, Times::Once).expect("it is there");
            }
            Failing::DataSyncDrop => {
                let fault = WriteFault::SyncDrop(libc::EIO);
                disk.inject(data, 0..u64::MAX, fault, Times::Once).expect("it is there");
            }
            Failing::Sync(after) => disk.inject_all(WriteFault::SYNC_EIO, Times::Nth(after)),
            Failing::Write(after) => disk.inject_all(WriteFault::EIO, Times::Nth(after)),
            Failing::Full => {
                disk.inject(data, 0..u64::MAX, WriteFault::NO_SPACE, Times::Once).expect("it is there");
            }
            Failing::Grow => disk.inject_all(WriteFault::Allocate(libc::ENOSPC), Times::Once),
            Failing::Read(after) => disk.inject_all(Fault::EIO, Times::Nth(after)),
        }
    }

    /// Ends the store in this way, and continues with the disk as it is after that.
    pub(super) fn crash(&mut self, crash: Crash) {
        self.story.push(Step::Crash(crash));
        self.crashes += 1;
        let disk = self.disk();
        let subject = self
            .subject
            .take()
            .map(|Subject { store, .. }| Arc::into_inner(store).expect("nobody else has it"));
        let found = match (crash, subject) {
            (Crash::Kill, subject) => {
                // Only then: dropping it must not do what the crash prevented.
                let found = disk.after_kill();
                drop(subject);
                found
            }
            (Crash::PowerCut(persistence, seed), subject) => {
                let found = disk.after_power_cut(persistence, seed);
                drop(subject);
                found
            }
            (Crash::Drop, subject) => {
                drop(subject);
                disk.after_kill()
            }
            (Crash::Close(sync), subject) => {
                if let Some(store) = subject {
                    self.close(store, sync);
                }
                disk.after_kill()
            }
        };
        let mut oracle = lock(&self.oracle);
        oracle.disk = found;
        oracle.cut = None;
    }

    fn close(&self, store: Store, sync: bool) {
        let closed = if sync { store.close_and_sync() } else { store.close() };
        let mut oracle = lock(&self.oracle);
        match closed {
            Ok(()) => {
                assert!(!oracle.doubt, "a store that has failed is closed without a word");
                oracle.durable = oracle.last().seq;
            }
            Err(error) => oracle.excuse(&error, oracle.last().seq),
        }
    }

    /// Keeps a copy of the data file, so that its current pages can be put back later.
    pub(super) fn keep_data(&mut self) {
        let Ok(file) = self.disk().open(&dir().join("data"), Access::Direct) else { return };
        let mut bytes = AlignedBuf::new(PAGE * self.setting.max_pages);
        let got = file.read_at(0, &mut bytes).expect("no fault is planned");
        self.earlier = bytes[..got - got % PAGE].to_vec();
    }

    /// Damages a page of the data file on the medium.
    pub(super) fn rot(&mut self, rng: &mut Rng) {
        let mut oracle = lock(&self.oracle);
        let Ok(file) = oracle.disk.open_writable(&dir().join("data"), Access::Direct, Create::Never) else {
            return;
        };
        let in_use = (oracle.last().pages.len() as u64).min(file.stat().expect("a file").size / PAGE as u64);
        if in_use < 2 {
            return;
        }
        let page = rng.of(0..in_use);
        let mut bytes = AlignedBuf::new(PAGE);
        let offset = page * PAGE as u64;
        let read = |offset: u64, bytes: &mut [u8]| {
            file.read_at(offset, bytes).expect("no fault is planned");
        };
        match rng.of(0..8) {
            // Another page, whose write went astray.
            0..2 => {
                let other = (page + 1 + rng.of(0..in_use - 1)) % in_use;
                read(other * PAGE as u64, &mut bytes);
            }
            // The page as it was: its last write was lost.
            2..6 if self.earlier.len() as u64 > offset => {
                let at = usize::try_from(offset).expect("small");
                bytes.copy_from_slice(&self.earlier[at..at + PAGE]);
            }
            // Zeros.
            6 => {}
            _ => {
                read(offset, &mut bytes);
                let bit = rng.index(PAGE * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        file.write_at(page * PAGE as u64, &bytes, WriteMode::Plain).expect("no fault is planned");
        file.sync_data().expect("no fault is planned");
        oracle.rot.insert(PageNo::new(page), Seq::MAX);
        drop(oracle);
        self.story.push(Step::Rot(PageNo::new(page)));
    }
}

impl World {
    /// Damages one superblock on the medium, if both are intact.
    pub(super) fn rot_superblock(&mut self, rng: &mut Rng) {
        let path = dir().join(superblocks::SUPERBLOCK_NAME);
        let Ok(file) = self.disk().open_writable(&path, Access::Direct, Create::Never) else { return };
        let mut bytes = AlignedBuf::new(2 * SLOT_BYTES);
        file.read_at(0, &mut bytes).expect("no fault is planned");
        if bytes.chunks(SLOT_BYTES).any(|slot| matches!(Superblock::decode(slot), SlotContent::Nothing(_))) {
            return;
        }
        let slot = rng.index(2);
        let room = &mut bytes[slot * SLOT_BYTES..(slot + 1) * SLOT_BYTES];
        if rng.one_in(3) {
            room.fill(0);
        } else {
            let bit = rng.index(SLOT_BYTES * 8);
            room[bit / 8] ^= 1 << (bit % 8);
        }
        file.write_at(0, &bytes, WriteMode::Plain).expect("no fault is planned");
        file.sync_data().expect("no fault is planned");
        self.story.push(Step::RotSuperblock(slot));
    }
}

pub(super) fn random_durability(rng: &mut Rng) -> Durability {
    match rng.of(0..6) {
        0..3 => Durability::Sync,
        3 => Durability::Group,
        _ => Durability::None,
    }
}
