//! Runs on a disk that loses a write, misdirects it, fails a sync and drops its data, or fills up.
//! Reads return the right data or a clear error. A full disk refuses only what it has no room for.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pagekeeper_simdisk::{Persistence, SimDisk, Times, WriteFault};

use super::damage_lives::{Life, expects_the_right_content, is_in_ring, random_op, ring_file, size};
use super::life::{Made, crashes};
use super::world::{Crash, Setting, World, dir};
use crate::Error;
use crate::injected_fault::InjectedFault;
use pagekeeper_kernel::mutex::lock;
use pagekeeper_testing::{Rng, Seed, expect_found};
use pagekeeper_wal::Lsn;

/// The unit of writes.
const BLOCK: u64 = 4096;

/// Runs `count` lives, and prints a failing one.
fn all(count: u64, life: impl Fn(&mut Life, &mut Rng)) {
    let (seed, made) = (Seed::new(), Made::new());
    for which in 0..crashes(count) {
        let lived = catch_unwind(AssertUnwindSafe(|| one(seed.rng(which), &made, &life, None)));
        if let Err(panic) = lived {
            eprintln!("life {which}");
            resume_unwind(panic);
        }
    }
}

fn one(
    mut rng: Rng,
    made: &Made,
    life: &impl Fn(&mut Life, &mut Rng),
    injected_fault: Option<InjectedFault>,
) {
    let (setting, disk) = made.any(&mut rng);
    let setting = Setting { max_pages: 8 + rng.index(30), is_new: rng.one_in(10), ..*setting };
    let world = World::new(setting, injected_fault, (!setting.is_new).then_some(disk));
    let mut of = Life::new(world);
    let lived = catch_unwind(AssertUnwindSafe(|| life(&mut of, &mut rng)));
    if let Err(panic) = lived {
        if injected_fault.is_none() {
            eprintln!("{setting:?}");
            of.world.story.iter().for_each(|step| eprintln!("{step:?}"));
        }
        resume_unwind(panic);
    }
}

/// The fault of one write, and its file.
#[derive(Debug)]
struct Bad {
    name: &'static str,
    fault: WriteFault,
    after: u64,
}

impl Bad {
    fn random(rng: &mut Rng, disk: &SimDisk) -> Self {
        let name = match rng.of(0..8) {
            0 => "superblock",
            1 => "journal/control",
            2..4 => "data",
            4 => "map",
            _ => ring_file(rng.of(0..2)),
        };
        let places = (size(disk, name) / BLOCK).max(1);
        let fault = match rng.of(0..3) {
            0 => WriteFault::Misdirected { to: rng.of(0..places) * BLOCK },
            1 => WriteFault::SyncDrop(libc::EIO),
            _ => WriteFault::Lost,
        };
        Self { name, fault, after: rng.of(0..6) }
    }

    /// Whether a record may be lost by it. Records written meanwhile are at `written` in the
    /// journal.
    fn takes(&self, lsns: &Range<Lsn>, written: &Range<Lsn>, file_bytes: u64) -> bool {
        if !self.name.starts_with("journal/redo") {
            return false;
        }
        let len = written.end.get().next_multiple_of(BLOCK) + 2 * BLOCK - written.start.get() / BLOCK * BLOCK;
        let is_overwritten = match self.fault {
            WriteFault::Misdirected { to } => is_in_ring(lsns, self.name, &(to..to + len), file_bytes),
            _ => false,
        };
        is_overwritten || lsns.start < written.end && written.start < lsns.end
    }

    fn is_reported(&self) -> bool {
        matches!(self.fault, WriteFault::SyncDrop(_))
    }
}

/// Works on this disk. Returns the LSNs that were being written to the journal when the fault
/// struck.
fn work(life: &mut Life, rng: &mut Rng, bad: &Bad) -> Range<Lsn> {
    let disk = life.world.disk();
    let subject = life.world.subject.clone().expect("it is open");
    let core = subject.store.core();
    let mut struck = None;
    for _ in 0..rng.of(1..25) {
        let from = core.journal.durable_lsn();
        life.run(&subject, random_op(rng));
        if disk.stats().faults > 0 && struck.is_none() {
            struck = Some(from..core.last_lsn());
            if bad.is_reported() {
                break;
            }
        }
    }
    let at_end = core.journal.durable_lsn()..Lsn::new(u64::MAX >> 1);
    drop(subject);
    life.crash(rng);
    struck.unwrap_or(at_end)
}

/// Makes one write or sync fail, and ends the store some time after that.
fn bad_write(life: &mut Life, rng: &mut Rng) {
    for _ in 0..rng.of(0..2) {
        life.world.open().expect("nothing fails");
        life.session(rng);
    }
    life.world.open().expect("nothing fails");
    let disk = life.world.disk();
    let bad = Bad::random(rng, &disk);
    disk.inject(dir().join(bad.name), 0..u64::MAX, bad.fault, Times::Nth(bad.after)).expect("it is there");
    // Page changes in the journal are read from its file again, too.
    let is_of_pages = matches!(bad.name, "data" | "map") || bad.name.starts_with("journal/redo");
    lock(&life.world.oracle).all_may_rot = is_of_pages && !bad.is_reported();
    let written = work(life, rng, &bad);
    let store = match life.world.options().open(dir()) {
        Ok(store) => store,
        Err(error) => {
            let is_of_ring = bad.name.starts_with("journal/redo") && !bad.is_reported();
            let is_clear = is_of_ring && matches!(error, Error::Journal(_) | Error::Corrupt { .. });
            assert!(is_clear, "{bad:?}: {error}");
            return;
        }
    };
    let file_bytes = size(&life.world.disk(), ring_file(0));
    let found = store.stats().visible_seq;
    life.accept_loss(found, |lsns| !bad.is_reported() && bad.takes(lsns, &written, file_bytes));
    life.opened(store);
    if !expects_the_right_content(life, false) {
        life.session(rng);
        life.world.open().expect("it was opened before");
        expects_the_right_content(life, false);
    }
}

#[test]
fn writes_that_are_lost_or_go_elsewhere_are_found_or_do_no_harm() {
    all(4000, bad_write);
}

/// Makes the disk full from some operation on: while the store is created, or in a commit, a
/// checkpoint, a compaction or an opening.
fn full(life: &mut Life, rng: &mut Rng) {
    let is_new = life.world.setting.is_new;
    for session in 0..rng.of(1..4) {
        // A store whose files have their room is opened.
        life.world.disk().fill_up_at(rng.of(0..if is_new && session == 0 { 60 } else { 30 }));
        if let Err(error) = life.world.open() {
            assert!(is_new && session == 0, "{error}");
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
            let persistence = Persistence::ALL[rng.index(Persistence::ALL.len())];
            let cut = Crash::PowerCut(persistence, rng.number());
            life.world.crash(if rng.one_in(2) { Crash::Kill } else { cut });
            life.world.open().expect("there is room again");
        }
        let disk = life.world.disk();
        let subject = life.world.subject.clone().expect("it is open");
        let ops = rng.of(1..25);
        let room_from = rng.of(0..ops + 5);
        for op in 0..ops {
            if op == room_from {
                disk.make_room();
            }
            life.run(&subject, random_op(rng));
            let poison = subject.store.core().poison.get();
            assert!(poison.is_none(), "a full disk ended the store: {poison:?}");
        }
        disk.make_room();
        if rng.one_in(2) {
            subject.store.sync().expect("there is room");
            lock(&life.world.oracle).durable = subject.store.stats().seq;
        }
        drop(subject);
        life.crash(rng);
    }
    life.world.open().expect("there is room");
    assert!(!expects_the_right_content(life, false));
}

#[test]
fn a_full_disk_refuses_only_operations_that_need_space() {
    all(3000, full);
}

#[test]
fn injected_faults_that_only_a_bad_disk_shows_are_found() {
    let (seed, made) = (Seed(6), Made::new());
    let of_full_disks = [(InjectedFault::OpenNeedsRoom, 111), (InjectedFault::RefusedRoomPoisons, 1)];
    expect_found(4000, &of_full_disks, |fault, which| one(seed.rng(which), &made, &full, Some(fault)));
    expect_found(4000, &[(InjectedFault::NoPageMap, 27)], |fault, which| {
        one(seed.rng(which), &made, &bad_write, Some(fault));
    });
}
