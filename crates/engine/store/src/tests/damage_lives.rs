//! Lives that end in damage of any file of a killed or closed store: reads return the right data or
//! a clear error. A store that cannot be opened is left as it is.
//!
//! There is one exception, which `docs/src/store-format.md` describes: at the end of a journal in
//! use, an incomplete record may have been torn by the crash. Such a record must have been hit, and
//! so must everything that shows that it was complete.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use pagekeeper_io::{Access, Io};
use pagekeeper_simdisk::{Damage, Persistence, SimDisk};

use super::life::{Made, crashes};
use super::oracle::{StoreState, Subject};
use super::world::{Crash, Op, Setting, Step, World, dir, random_durability};
use crate::injected_fault::InjectedFault;
use crate::{Error, PageNo, Seq, Store};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_testing::{Rng, Seed, expect_found};
use pagekeeper_wal::Lsn;

/// A slot of the superblock or control file, a place of the map, a page of the data file, a block
/// of the journal.
const BLOCK: u64 = 4096;
/// Number of journal files.
const RING: u64 = 4;

/// The place of a commit in the journal, and the LSN known to be durable when it was made.
struct Mark {
    lsns: Range<Lsn>,
    known: Lsn,
}

/// A store, with the places of its commits.
pub(super) struct Life {
    pub(super) world: World,
    marks: BTreeMap<Seq, Mark>,
    /// The store after each commit.
    states: BTreeMap<Seq, Arc<StoreState>>,
    pub(super) closed: bool,
    /// Whether the last crash interrupted something: what it tore is one fault already.
    pub(super) amid: bool,
}

impl Life {
    pub(super) fn new(world: World) -> Self {
        Self { world, marks: BTreeMap::new(), states: BTreeMap::new(), closed: false, amid: false }
    }

    /// Runs one operation, which commits at most once.
    pub(super) fn run(&mut self, subject: &Subject, op: Op) -> bool {
        let core = subject.store.core();
        let known = core.journal.durable_lsn();
        let (seq, from) = (subject.store.stats().seq, core.last_lsn());
        let goes_on = self.world.run(subject, &mut Vec::new(), op);
        if subject.store.stats().seq > seq {
            self.marks.insert(seq + 1, Mark { lsns: from..core.last_lsn(), known });
        }
        goes_on
    }

    /// Runs operations while the store is open.
    pub(super) fn session(&mut self, rng: &mut Rng) {
        let subject = self.world.subject.clone().expect("it is open");
        if rng.one_in(4) {
            self.world.cut_at(self.world.disk().ops() + rng.of(0..40));
        }
        for _ in 0..rng.of(1..25) {
            if !self.run(&subject, random_op(rng)) {
                break;
            }
        }
        drop(subject);
        self.crash(rng);
    }

    /// Ends the store in a random way.
    pub(super) fn crash(&mut self, rng: &mut Rng) {
        self.states.extend(lock(&self.world.oracle).states.clone());
        let crash = match rng.of(0..5) {
            _ if self.world.power_is_off() => Crash::Kill,
            0 => Crash::PowerCut(Persistence::None, 0),
            1 => Crash::Close(true),
            2 => Crash::Close(false),
            _ => Crash::Kill,
        };
        let (disk, cut) = (self.world.disk(), lock(&self.world.oracle).cut);
        self.world.crash(crash);
        self.amid = cut.is_some_and(|cut| disk.ops() > cut);
        self.closed = matches!(crash, Crash::Close(_)) && !self.amid;
    }

    /// Accepts a store opened at `found` although later commits were acknowledged. According to
    /// `is_hit`, the damage must have hit the first lost commit, so that it looks torn by the
    /// crash. It must also have hit each lost commit that was made when the first one was known to
    /// be durable.
    pub(super) fn accept_loss(&self, found: Seq, is_hit: impl Fn(&Range<Lsn>) -> bool) {
        let mut oracle = lock(&self.world.oracle);
        // Pages of lost commits may have been written, which each read of them reports.
        oracle.all_may_rot |= found < oracle.last().seq;
        if found >= oracle.durable {
            return;
        }
        let mut lost = (found.get() + 1..=oracle.durable.get()).map(|seq| &self.marks[&Seq::new(seq)]);
        assert!(!self.closed, "commit {found} is found, and {} was acknowledged", oracle.durable);
        let first = &self.marks[&(found + 1)];
        let is_hidden = |mark: &Mark| is_hit(&mark.lsns) || mark.known < first.lsns.end;
        let are_hidden = is_hit(&first.lsns) && lost.all(is_hidden);
        assert!(are_hidden, "commit {found} of {}", oracle.durable);
        oracle.durable = found;
        if let Some(state) = self.states.get(&found) {
            oracle.states.entry(found).or_insert_with(|| Arc::clone(state));
        }
    }

    /// Continues with a store that was opened.
    pub(super) fn opened(&mut self, store: Store) {
        let seq = store.stats().visible_seq;
        self.world.opened(store);
        self.marks.split_off(&(seq + 1));
    }
}

/// Returns a random operation, which commits at most once.
pub(super) fn random_op(rng: &mut Rng) -> Op {
    match rng.of(0..20) {
        0..13 => Op::Transact(rng.number(), Some(random_durability(rng))),
        13..16 => Op::Checkpoint(rng.number(), 0),
        16 => Op::Sync,
        17 => Op::FreeMany(rng.number()),
        18 => Op::Compact,
        _ => Op::CompareAll,
    }
}

/// Whether a part of a journal file has bytes of records at these LSNs, or of the padding behind
/// them.
pub(super) fn is_in_ring(lsns: &Range<Lsn>, name: &str, part: &Range<u64>, file_bytes: u64) -> bool {
    (lsns.start.get()..lsns.end.get().next_multiple_of(BLOCK)).step_by(8).any(|lsn| {
        let at = lsn % file_bytes;
        name == ring_file(lsn / file_bytes % RING) && part.start < at + 8 && at < part.end
    })
}

pub(super) fn ring_file(number: u64) -> &'static str {
    ["journal/redo.000", "journal/redo.001", "journal/redo.002", "journal/redo.003"]
        [usize::try_from(number).expect("four files")]
}

pub(super) fn size(disk: &SimDisk, name: &str) -> u64 {
    disk.open(&dir().join(name), Access::Buffered).and_then(|file| file.stat()).expect("it is there").size
}

/// Returns the part of the file that was changed.
fn part(damage: &Damage) -> Range<u64> {
    match damage {
        Damage::Bit { at, .. } => *at..*at + 1,
        Damage::Shifted { range, .. } | Damage::Zeros(range) | Damage::Garbage { range, .. } => range.clone(),
        Damage::Unreadable(range) => range.start / 512 * 512..range.end.next_multiple_of(512),
        Damage::Cut(len) => *len..u64::MAX,
        damage => panic!("{damage:?} is a new one"),
    }
}

/// Whether it hits both of the first two blocks.
fn hits_both(part: &Range<u64>) -> bool {
    part.start < BLOCK && part.end > BLOCK
}

/// Runs a life, and its end.
fn damaged(mut rng: Rng, made: &Made, injected_fault: Option<InjectedFault>) {
    let (setting, disk) = made.any(&mut rng);
    let memory = if rng.one_in(3) { 2 << 20 } else { 1 << 20 };
    let setting = Setting { max_pages: 8 + rng.index(30), memory, is_new: false, ..*setting };
    let world = World::new(setting, injected_fault, Some(disk));
    let mut life = Life::new(world);
    let lived = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..rng.of(1..4) {
            life.world.open().expect("nothing fails");
            life.session(&mut rng);
        }
        end(&mut life, &mut rng);
    }));
    if let Err(panic) = lived {
        if injected_fault.is_none() {
            eprintln!("{setting:?}");
            life.world.story.iter().for_each(|step| eprintln!("{step:?}"));
        }
        resume_unwind(panic);
    }
}

/// Checks that the store is refused with this error, and left as it is.
fn is_refused(life: &Life, is_expected: impl Fn(&Error) -> bool) {
    let disk = life.world.disk();
    let changes = || disk.ops() - disk.stats().syncs;
    let before = changes();
    let error = life.world.options().open(dir()).map(drop).expect_err("it is opened");
    assert!(is_expected(&error), "{error}");
    assert_eq!(changes(), before, "something was written: {error}");
}

/// Appends an entry of a newer version to the journal.
fn append_newer(disk: &SimDisk) -> bool {
    let journal = pagekeeper_wal::RedoLog::options().io(Arc::new(disk.clone())).without_threads();
    let (log, _) = journal.recover(dir().join("journal"), None).expect("it is whole");
    let is_appended = log.try_append(&[2; 16]).is_ok_and(|end| log.sync_upto(end).is_ok());
    log.close().expect("nothing fails");
    is_appended
}

/// Damages a file, and checks the store.
fn end(life: &mut Life, rng: &mut Rng) {
    let disk = life.world.disk();
    match rng.of(0..60) {
        0 => {
            disk.remove(dir().join("superblock")).expect("it is there");
            return is_refused(life, |error| matches!(error, Error::LostSuperblock { .. }));
        }
        1 if append_newer(&disk) => {
            return is_refused(life, |error| matches!(error, Error::UnknownVersion { version: 2, .. }));
        }
        _ => {}
    }
    let name = match rng.of(0..20) {
        // One of their two slots may be torn already.
        0..2 if !life.amid => "superblock",
        2..4 if !life.amid => "journal/control",
        4..7 => "data",
        7..9 => "map",
        _ => ring_file(rng.of(0..RING)),
    };
    let len = size(&disk, name);
    if len == 0 {
        return;
    }
    let damage = if rng.one_in(14) { Damage::Cut(rng.of(0..len)) } else { Damage::random(rng.number(), len) };
    life.world.story.push(Step::Damage(name, damage.clone()));
    disk.damage(dir().join(name), &damage).expect("it is there");
    let hit = part(&damage);
    let read_only = rng.one_in(4);
    let changes = || disk.ops() - disk.stats().syncs;
    let before = changes();
    let store = match life.world.options().read_only(read_only).open(dir()) {
        Ok(store) => store,
        Err(error) => {
            let is_clear = match name {
                "superblock" => {
                    matches!(error, Error::BrokenSuperblock { .. }) && (hits_both(&hit) || life.amid)
                }
                "journal/control" => matches!(error, Error::Journal(_)) && hits_both(&hit),
                "data" | "map" => matches!((&error, &damage), (Error::CutOff { .. }, Damage::Cut(_))),
                _ => matches!(error, Error::Journal(_) | Error::Corrupt { .. }),
            };
            assert!(is_clear, "{error}");
            assert_eq!(changes(), before, "the opening failed, and something was written: {error}");
            return;
        }
    };
    excuse(life, &store, name, &damage, &hit);
    life.opened(store);
    let pages = lock(&life.world.oracle).last().pages.len() as u64;
    assert!(size(&disk, "data") >= pages * BLOCK, "the data file was cut off, and nothing was said");
    let may_fail = matches!(damage, Damage::Unreadable(_));
    let finds = expects_the_right_content(life, may_fail);
    if read_only {
        assert_eq!(changes(), before, "something was written");
        life.world.crash(Crash::Kill);
        return;
    }
    if finds {
        return;
    }
    // The repaired store works, whatever was lost, and keeps later commits.
    life.session(rng);
    match life.world.open() {
        // A record may be there now.
        Err(Error::Journal(_)) if may_fail => return,
        opened => opened.expect("it was opened before"),
    }
    expects_the_right_content(life, may_fail);
}

/// Records what may be wrong after this damage. Acknowledged commits that are lost must have been
/// hit by it.
fn excuse(life: &Life, store: &Store, name: &str, damage: &Damage, hit: &Range<u64>) {
    let file_bytes = size(&life.world.disk(), name);
    // Unreadable records are never mistaken for missing ones.
    let is_readable = !matches!(damage, Damage::Unreadable(_));
    life.accept_loss(store.stats().visible_seq, |lsns| {
        is_readable && is_in_ring(lsns, name, hit, file_bytes)
    });
    let mut oracle = lock(&life.world.oracle);
    match name {
        "data" => {
            let pages = hit.start / BLOCK..hit.end.min(1 << 30).div_ceil(BLOCK);
            oracle.rot.extend(pages.map(|page| (PageNo::new(page), Seq::MAX)));
        }
        // If both places of a block are zeros, it says that no page was ever written. If the second
        // is zeros and the first is unreadable, nobody knows which was written last.
        "map" => {
            let is_unknown = matches!(damage, Damage::Unreadable(_)) && hit.start < BLOCK;
            oracle.all_may_rot |= hits_both(hit) || life.amid || is_unknown;
        }
        _ => {}
    }
}

/// Reads and verifies everything. Returns whether some of it is damaged.
pub(super) fn expects_the_right_content(life: &mut Life, may_fail: bool) -> bool {
    let subject = life.world.subject.clone().expect("it is open");
    let (read, state) = subject.begin_read();
    lock(&life.world.oracle).compare(&read, &state);
    let is_damage = |error| !matches!(error, Error::NotAllocated { .. } | Error::NeverWritten { .. });
    let all = (0..read.pages()).map(PageNo::new);
    let refused = all.filter(|page| read.read(*page).is_err_and(is_damage)).count();
    match subject.store.verify() {
        Ok(found) => assert!(refused == 0 || !found.is_sound(), "{refused} pages can't be read, and {found}"),
        Err(error) => assert!(may_fail, "{error}"),
    }
    refused > 0
}

/// Runs the life with this number.
fn life(seed: &Seed, which: u64, made: &Made, injected_fault: Option<InjectedFault>) {
    damaged(seed.rng(which), made, injected_fault);
}

#[test]
fn damages_are_found_or_do_no_harm() {
    let seed = Seed::new();
    let made = Made::new();
    for which in 0..crashes(6000) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| life(&seed, which, &made, None))) {
            eprintln!("life {which}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn injected_faults_that_damage_shows_are_found() {
    use pagekeeper_wal::InjectedFault as OfJournal;
    let (seed, made) = (Seed(5), Made::new());
    let faults = [
        (InjectedFault::WrittenBeforeChecked, 2),
        (InjectedFault::LengthNotChecked, 660),
        (InjectedFault::MadeAnewOverLost, 94),
        (InjectedFault::MapInOnePlace, 3150),
        (InjectedFault::UnknownVersionIsEnd, 192),
        (InjectedFault::NoPageChecksum, 63),
        (InjectedFault::OneSuperblockSlot, 18),
        (InjectedFault::OneSlotOfTwo, 26),
        (InjectedFault::Journal(OfJournal::SettledNotKept), 360),
        (InjectedFault::Journal(OfJournal::EpochNotNoted), 0),
        (InjectedFault::Journal(OfJournal::NoSearchBehindEnd), 490),
        (InjectedFault::Journal(OfJournal::OneSlotIsEnough), 145),
        (InjectedFault::Journal(OfJournal::UnreadableIsEmpty), 268),
    ];
    expect_found(12_000, &faults, |fault, which| life(&seed, which, &made, Some(fault)));
}
