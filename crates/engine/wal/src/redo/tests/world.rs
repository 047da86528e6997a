//! A log on a simulated disk, its appended records, and the records that must therefore be found
//! after a crash.

use pagekeeper_simdisk::{Persistence, SimDisk, Times, WriteFault};

use super::super::options::FlushPolicy;
use super::super::{RedoLog, RedoOptions};
use super::{dir, small};
use crate::injected_fault::InjectedFault;
use crate::{Error, LogMode, Lsn};
use pagekeeper_testing::Rng;

/// One operation on the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Append this many bytes.
    Append(u64),
    /// Wait for the last record.
    Commit,
    /// Write whole blocks, as the log writer does.
    Write,
    /// Release the oldest records, this many percent of the log.
    Checkpoint(u64),
    /// Close and open.
    Reopen,
    /// Make the next sync fail.
    FailSync,
}

/// An appended record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Appended {
    end: Lsn,
    body: Vec<u8>,
}

/// The kind of a crash.
#[derive(Debug, Clone, Copy)]
pub(super) enum Crash {
    Kill,
    PowerCut(Persistence, u64),
}

pub(super) struct World {
    pub(super) disk: SimDisk,
    injected_fault: Option<InjectedFault>,
    policy: FlushPolicy,
    mode: LogMode,
    /// Whether unsynced bytes are bounded.
    bounded: bool,
    log: Option<RedoLog>,
    /// All records that may be found, at least since the last checkpoint.
    appended: Vec<Appended>,
    /// Everything before this survives a power cut.
    durable: Lsn,
    /// Everything before this survives a kill.
    written: Lsn,
    /// The checkpoint, and the one that was last attempted.
    checkpoint: [Lsn; 2],
    number: u64,
}

impl World {
    pub(super) fn new(
        policy: FlushPolicy,
        mode: LogMode,
        injected_fault: Option<InjectedFault>,
        bounded: bool,
    ) -> Self {
        let disk = SimDisk::new();
        let mut world = Self {
            injected_fault,
            policy,
            mode,
            bounded,
            log: None,
            appended: Vec::new(),
            durable: Lsn::new(0),
            written: Lsn::new(0),
            checkpoint: [Lsn::new(0); 2],
            number: 0,
            disk,
        };
        world.log = Some(world.options().create(dir()).unwrap());
        world
    }

    fn options(&self) -> RedoOptions {
        let mut options = small(&self.disk).without_threads().flush_policy(self.policy).mode(self.mode);
        options.injected_fault = self.injected_fault;
        // A ring much larger than the search past an end.
        if self.bounded { options.file_bytes(64 << 10).max_unsynced(32 << 10) } else { options }
    }

    /// Runs an operation, and derives from it what must be found. Fails if the log did.
    pub(super) fn run(&mut self, op: Op) -> Result<(), Error> {
        let done = self.do_it(op);
        if done.is_err() {
            // After a failed sync, written records may exist only in the page cache, which recovery
            // does not trust.
            self.written = self.durable;
        }
        done
    }

    fn do_it(&mut self, op: Op) -> Result<(), Error> {
        match op {
            Op::Append(len) => self.append(len),
            Op::Commit => self.commit(),
            Op::Write => self.log().core.write_whole_blocks().map(|_| ()),
            Op::Checkpoint(percent) => {
                let log = self.log();
                let (from, end) = (log.checkpoint_lsn(), log.end());
                let upto = from + (end - from) * percent / 100;
                let lsn = self.appended.iter().map(|appended| appended.end).filter(|end| *end <= upto).max();
                self.checkpoint(lsn.unwrap_or(from).max(from))
            }
            Op::Reopen => {
                let log = self.log.take().expect("a log");
                log.close()?;
                self.durable = self.end();
                self.open()
            }
            Op::FailSync => {
                self.disk.inject_all(WriteFault::SYNC_EIO, Times::Once);
                Ok(())
            }
        }
    }

    fn log(&self) -> &RedoLog {
        self.log.as_ref().expect("a log")
    }

    fn end(&self) -> Lsn {
        self.appended.last().map_or(self.checkpoint[0], |appended| appended.end)
    }

    fn append(&mut self, len: u64) -> Result<(), Error> {
        self.number += 1;
        let mut rng = Rng::from_seed(self.number);
        let body: Vec<u8> = (0..len).map(|_| rng.number().to_le_bytes()[0]).collect();
        let end = match self.log().try_append(&body) {
            Err(Error::RingFull { .. }) => {
                self.checkpoint(self.end())?;
                self.log().try_append(&body)?
            }
            appended => appended?,
        };
        assert!(end > self.end(), "LSNs ascend");
        self.appended.push(Appended { end, body });
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        let end = self.end();
        self.log().wait_flushed(end)?;
        self.written = self.written.max(end);
        if self.policy == FlushPolicy::EachCommit {
            self.durable = self.durable.max(end);
        }
        Ok(())
    }

    fn checkpoint(&mut self, lsn: Lsn) -> Result<(), Error> {
        self.checkpoint[1] = lsn;
        self.log().checkpoint(lsn)?;
        self.checkpoint = [lsn; 2];
        self.durable = self.durable.max(lsn);
        Ok(())
    }

    /// Replaces the disk by its state after a crash.
    pub(super) fn crash(&mut self, crash: Crash) {
        let found = match crash {
            Crash::Kill => self.disk.after_kill(),
            Crash::PowerCut(persistence, seed) => {
                self.written = self.durable;
                self.disk.after_power_cut(persistence, seed)
            }
        };
        // The log is dropped last: closing it must not do what the crash prevented.
        self.disk = found;
        self.log = None;
    }

    /// Opens the existing log, and compares.
    pub(super) fn open(&mut self) -> Result<(), Error> {
        let (log, recovered) = self.options().recover(dir(), None)?;
        let from = log.checkpoint_lsn();
        assert!(
            self.checkpoint.contains(&from),
            "the checkpoint is {from}, and none of {:?}",
            self.checkpoint
        );
        let found: Vec<_> = log.read_from(from)?.collect::<Result<_, _>>()?;
        assert!(
            recovered
                .iter()
                .map(|record| (record.lsn, record.end, &record.body[..]))
                .eq(found.iter().map(|record| (record.lsn, record.end, &record.body[..]))),
            "reading gives other records than opening"
        );
        self.appended.retain(|appended| appended.end > from);
        let kept = self
            .appended
            .iter()
            .take_while(|appended| appended.end <= self.durable.max(self.written))
            .count();
        assert!(found.len() >= kept, "{} records of {kept} that were acknowledged", found.len());
        assert!(found.len() <= self.appended.len(), "more than was appended");
        for (found, appended) in found.iter().zip(&self.appended) {
            assert_eq!(
                (found.end, &found.body),
                (appended.end, &appended.body),
                "another record than was appended"
            );
        }
        assert!(found.is_sorted_by(|a, b| a.end <= b.lsn));
        // Reading from any record on gives the same records.
        if let Some(middle) = found.get(found.len() / 2) {
            let again: Vec<_> = log.read_from(middle.lsn)?.collect::<Result<_, _>>()?;
            assert_eq!(again, found[found.len() / 2..]);
        }
        self.appended.truncate(found.len());
        self.checkpoint = [from; 2];
        self.durable = self.end();
        self.written = self.durable;
        self.log = Some(log);
        Ok(())
    }
}

/// Returns a random operation between two crashes.
pub(super) fn random_op(rng: &mut Rng) -> Op {
    match rng.of(0..20) {
        0..8 => Op::Append(match rng.of(0..10) {
            0..6 => rng.of(0..300),
            6..9 => rng.of(3000..6000),
            _ => rng.of(0..12_000),
        }),
        8..14 => Op::Commit,
        14..16 => Op::Write,
        16..19 => Op::Checkpoint(rng.of(0..101)),
        _ if rng.one_in(3) => Op::FailSync,
        _ => Op::Reopen,
    }
}

/// Runs a whole life: a few crashes, each after some work, some of them while the log is opened
/// again.
pub(super) fn live(mut rng: Rng, injected_fault: Option<InjectedFault>, crashes: u64) {
    let policy = match rng.of(0..4) {
        0 => FlushPolicy::Os,
        _ => FlushPolicy::EachCommit,
    };
    let mode = if rng.one_in(3) { LogMode::Direct } else { LogMode::Buffered };
    let mut world = World::new(policy, mode, injected_fault, rng.one_in(3));
    for _ in 0..crashes {
        let mut cut = rng.one_in(3);
        if cut {
            world.disk.cut_power_at(world.disk.ops() + rng.of(0..60));
        }
        for _ in 0..rng.of(1..40) {
            let op = random_op(&mut rng);
            if world.run(op).is_err() {
                break;
            }
        }
        loop {
            // A kill, too, may interrupt an operation: its writes are then visible, but not synced.
            let crash = if rng.of(0..3) == 0 {
                Crash::Kill
            } else {
                let all = Persistence::ALL;
                let which = usize::try_from(rng.of(0..all.len() as u64)).unwrap();
                Crash::PowerCut(all[which], rng.number())
            };
            world.crash(crash);
            cut = rng.one_in(3);
            if cut {
                world.disk.cut_power_at(rng.of(0..16));
            }
            match world.open() {
                Ok(()) => break,
                Err(error) if !cut => panic!("can't be opened: {error}"),
                Err(_) => {}
            }
        }
    }
}
