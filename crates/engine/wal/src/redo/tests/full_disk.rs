//! A disk that is full, or can't be read, for a while, at any operation. Acknowledged records are
//! there, and each failure names its cause. With room, or when the disk can be read, the log
//! continues, unless it has reported that it ended.
//!
//! A ring takes its room at its creation. If blocks are shared or compressed, overwriting them can
//! still need room.

use pagekeeper_simdisk::{Fault, Persistence, SimDisk, Times, WriteFault};
use pagekeeper_testing::{Rng, Seed};

use super::super::options::FlushPolicy;
use super::super::{RedoLog, RedoOptions};
use super::{dir, small};
use crate::injected_fault::InjectedFault;
use crate::testing::{lives, require_found};
use crate::{Error, LogMode, Lsn};

/// A log and its expected state.
struct Life {
    disk: SimDisk,
    mode: LogMode,
    injected_fault: Option<InjectedFault>,
    /// The records committed since the checkpoint, each with its end.
    kept: Vec<(Lsn, Vec<u8>)>,
    checkpoint: Lsn,
    /// The doubtful state after a failure that ended the log: a last record, and a checkpoint.
    doubtful: (Option<Vec<u8>>, Lsn),
    is_full: bool,
}

impl Life {
    fn options(&self) -> RedoOptions {
        let mut options = small(&self.disk).without_threads().flush_policy(FlushPolicy::EachCommit);
        options.injected_fault = self.injected_fault;
        options.mode(self.mode)
    }

    /// Fills the disk: writes fail, or only the sync.
    fn fill(&mut self, rng: &mut Rng) {
        self.is_full = true;
        let (fault, times) = match rng.of(0..4) {
            0 => (WriteFault::NO_SPACE, Times::Always),
            1 => (WriteFault::SyncDrop(libc::ENOSPC), Times::Nth(rng.of(0..6))),
            2 => (WriteFault::Sync(libc::ENOSPC), Times::Nth(rng.of(0..6))),
            _ => (WriteFault::NO_SPACE, Times::Nth(rng.of(0..6))),
        };
        self.disk.inject_all(fault, times);
    }

    fn make_room(&mut self) {
        self.is_full = false;
        self.disk.heal_all();
    }

    /// Returns whether the log has ended. Fails if the cause is not a lack of space, or if there
    /// was room.
    fn ended(&self, error: &Error) -> Result<bool, String> {
        let (cause, ended) = match error {
            Error::Poisoned { cause } => (&**cause, true),
            other => (other, false),
        };
        let is_honest = matches!(cause, Error::Io(error) if error.errno() == Some(libc::ENOSPC));
        if self.is_full && is_honest { Ok(ended) } else { Err(format!("full: {}: {error}", self.is_full)) }
    }

    fn check_point(&mut self, log: &RedoLog, to: Lsn) -> Result<(), Error> {
        self.doubtful.1 = to;
        log.checkpoint(to)?;
        (self.doubtful.1, self.checkpoint) = (Lsn::new(0), to);
        self.kept.retain(|(end, _)| *end > to);
        Ok(())
    }

    fn commit(&mut self, log: &RedoLog, body: Vec<u8>) -> Result<(), Error> {
        let appended = match log.try_append(&body) {
            Err(Error::RingFull { .. }) => {
                self.check_point(log, self.kept.last().map_or(self.checkpoint, |(end, _)| *end))?;
                log.try_append(&body)
            }
            appended => appended,
        };
        let end = appended?;
        self.doubtful.0 = Some(body.clone());
        log.wait_flushed(end)?;
        self.doubtful.0 = None;
        self.kept.push((end, body));
        Ok(())
    }

    /// Does one random action. Returns false if the log has ended.
    fn act(&mut self, log: &RedoLog, rng: &mut Rng) -> Result<bool, String> {
        let done = if rng.one_in(5) && !self.kept.is_empty() {
            let to = self.kept[rng.index(self.kept.len())].0;
            self.check_point(log, to)
        } else {
            let body = (0..rng.of(1..6000)).map(|_| rng.number().to_le_bytes()[0]).collect();
            self.commit(log, body)
        };
        let Err(error) = done else { return Ok(true) };
        let ended = self.ended(&error)?;
        if !ended {
            self.doubtful = (None, Lsn::new(0));
        }
        Ok(!ended)
    }

    /// Opens the log after a kill, a power cut or a close, also on a full disk.
    fn open(&mut self, rng: &mut Rng) -> Result<RedoLog, String> {
        if rng.one_in(4) {
            self.make_room();
            self.disk.inject_all(Fault::EIO, Times::Nth(rng.of(0..6)));
            if let Err(error) = self.options().open(dir())
                && !matches!(&error, Error::Io(error) if error.errno() == Some(libc::EIO))
                && !matches!(&error, Error::Corrupt { .. })
            {
                return Err(format!("read with EIO: {error}"));
            }
            self.make_room();
        }
        let opened = match self.options().recover(dir(), None) {
            Err(error) if self.is_full => {
                self.ended(&error)?;
                self.make_room();
                self.options().recover(dir(), None)
            }
            opened => opened,
        };
        let (log, found) = opened.map_err(|error| format!("opened: {error}"))?;
        let (last, given_up) = std::mem::take(&mut self.doubtful);
        let checkpoint = log.checkpoint_lsn();
        if checkpoint != self.checkpoint && checkpoint != given_up {
            return Err(format!("the checkpoint is {checkpoint}, and was {} or {given_up}", self.checkpoint));
        }
        self.checkpoint = checkpoint;
        self.kept.retain(|(end, _)| *end > checkpoint);
        let count = self.kept.len();
        let same = found.iter().zip(&self.kept).all(|(found, (_, kept))| found.body[..] == kept[..]);
        let more = found.get(count..).unwrap_or_default();
        let excused = more.iter().all(|more| last.as_ref().is_some_and(|last| more.body[..] == last[..]));
        if !same || found.len() < count || more.len() > 1 || !excused {
            return Err(format!("found {} of {count}", found.len()));
        }
        self.kept.extend(more.iter().map(|record| (record.end, record.body.to_vec())));
        Ok(log)
    }
}

fn life(mut rng: Rng, injected_fault: Option<InjectedFault>) -> Result<(), String> {
    let mode = [LogMode::Buffered, LogMode::Direct, LogMode::Uncached][rng.index(3)];
    let mut life = Life {
        disk: SimDisk::new(),
        mode,
        injected_fault,
        kept: Vec::new(),
        checkpoint: Lsn::new(0),
        doubtful: (None, Lsn::new(0)),
        is_full: false,
    };
    let mut log = life.options().create(dir()).map_err(|error| error.to_string())?;
    for _ in 0..rng.of(4..24) {
        match rng.of(0..5) {
            0 => life.fill(&mut rng),
            1 => life.make_room(),
            _ => {}
        }
        let goes_on = life.act(&log, &mut rng)?;
        if goes_on && !rng.one_in(8) {
            continue;
        }
        let crashed = if rng.one_in(2) {
            life.disk.after_kill()
        } else {
            life.disk.after_power_cut(Persistence::None, 0)
        };
        if goes_on && rng.one_in(2) {
            if let Err(error) = log.close() {
                life.ended(&error)?;
            }
            life.disk = life.disk.after_kill();
        } else {
            life.disk = crashed;
            drop(log);
        }
        // The disk is as full as before the crash; the simulated disk forgets that.
        if life.is_full {
            life.fill(&mut rng);
        }
        log = life.open(&mut rng)?;
    }
    life.make_room();
    // With room the log continues.
    life.commit(&log, vec![7; 3000]).map_err(|error| format!("with room: {error}"))?;
    life.disk = life.disk.after_power_cut(Persistence::None, 0);
    drop(log);
    life.open(&mut rng).map(drop)
}

#[test]
fn a_temporarily_full_disk_loses_nothing_and_the_log_continues() {
    let seed = Seed::new();
    for which in 0..lives(4000) {
        life(seed.rng(which), None).unwrap_or_else(|error| panic!("life {which}: {error}"));
    }
}

#[test]
fn injected_faults_that_a_full_disk_shows_are_found() {
    let seed = Seed(9);
    let faults = [InjectedFault::SyncRetried, InjectedFault::WriteErrorIgnored, InjectedFault::AckBeforeSync];
    for fault in faults {
        require_found(fault, 4000, |which| life(seed.rng(which), Some(fault)));
    }
}

/// Files that a failed creation removed may partly reappear after a power cut. They must never
/// prevent the creation of a log.
#[test]
fn a_log_that_had_no_space_is_created_later_despite_power_cuts() {
    let seed = Seed::new();
    let mut op = 0;
    loop {
        let mut made = 0;
        for persistence in Persistence::ALL {
            for cut in 0..12 {
                let disk = SimDisk::new();
                disk.fail_operation_at(op, libc::ENOSPC);
                made += usize::from(small(&disk).create(dir()).is_ok());
                let disk = disk.after_power_cut(persistence, cut);
                // The power is cut again, during the next attempt.
                disk.cut_power_at(disk.ops() + seed.rng(op * 100 + cut).of(0..24));
                let second = small(&disk).create(dir());
                let disk = disk.after_power_cut(persistence, cut);
                let third = if second.is_ok() { second } else { small(&disk).create(dir()) };
                if let Err(error) = third
                    && let Err(unopened) = small(&disk).open(dir())
                {
                    panic!(
                        "no room at operation {op}, {persistence:?}, cut {cut}, {seed:?}: {error}; {unopened}"
                    );
                }
            }
        }
        if made == Persistence::ALL.len() * 12 {
            break;
        }
        op += 1;
    }
    assert!(op > 8, "{op} operations");
}
