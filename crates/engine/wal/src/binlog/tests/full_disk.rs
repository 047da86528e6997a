//! A disk that is full, or can't be read, for a while, at any operation. Acknowledged groups are
//! there, and each failure names its cause. With room, or when the disk can be read, the log
//! continues, unless it has reported that it ended.

use pagekeeper_simdisk::{Fault, Persistence, RandomFaults, RandomWriteFaults, SimDisk, Times, WriteFault};
use pagekeeper_testing::{Rng, Seed};

use super::support::{DIR, append, group, options, read_groups};
use crate::binlog::injected_fault::BinLogFault;
use crate::testing::{lives, require_found};
use crate::{BinLog, BinLogOptions, Error, LogMode, Position, PurgeMode};

/// The appended groups, each with its end.
type Groups = Vec<(Vec<Vec<u8>>, Position)>;

/// A log and its expected state.
struct Life {
    disk: SimDisk,
    mode: LogMode,
    injected_fault: Option<BinLogFault>,
    kept: Groups,
    /// The doubtful state after a failure that ended the log: a last group, and the segment before
    /// which segments were to be purged.
    doubtful: (Option<Vec<Vec<u8>>>, u64),
    is_full: bool,
}

impl Life {
    fn options(&self) -> BinLogOptions {
        let mut options = options(&self.disk).mode(self.mode);
        options.injected_fault = self.injected_fault;
        options
    }

    /// Fills the disk: at once, or after a few more writes.
    fn fill(&mut self, rng: &mut Rng) {
        self.is_full = true;
        let short = RandomWriteFaults { short_per_mille: 400, ..RandomWriteFaults::default() };
        self.disk.set_random_faults(RandomFaults::default(), short);
        if rng.one_in(2) {
            self.disk.inject_all(WriteFault::NO_SPACE, Times::Nth(rng.of(0..6)));
        } else {
            self.disk.inject_all(WriteFault::NO_SPACE, Times::Always);
            self.disk.inject_all(WriteFault::Allocate(libc::ENOSPC), Times::Always);
        }
    }

    fn make_room(&mut self) {
        self.is_full = false;
        self.disk.set_random_faults(RandomFaults::default(), RandomWriteFaults::default());
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

    /// Does one random action. Returns false if the log has ended.
    fn act(&mut self, log: &BinLog, which: u64, rng: &mut Rng) -> Result<bool, String> {
        let group = group(which, 1 + rng.index(3), rng.index(6000));
        let (failed, doubtful) = match rng.of(0..8) {
            0 => (log.rotate().err(), (None, 0)),
            1 => (log.sync().err(), (None, 0)),
            2 => {
                let to = log.end();
                match log.purge_to(to, PurgeMode::UnlessFollowed) {
                    Ok(_) => {
                        self.kept.retain(|(_, end)| end.segment >= to.segment);
                        (None, (None, 0))
                    }
                    Err(error) => (Some(error), (None, to.segment)),
                }
            }
            _ => match append(log, &group) {
                Ok(end) => {
                    self.kept.push((group, end));
                    (None, (None, 0))
                }
                Err(error) => (Some(error), (Some(group), 0)),
            },
        };
        let Some(error) = failed else { return Ok(true) };
        let ended = self.ended(&error)?;
        if ended {
            self.doubtful = doubtful;
        }
        Ok(!ended)
    }

    /// Opens the log after a kill, a power cut or a close, also on a full disk.
    fn open(&mut self, rng: &mut Rng) -> Result<BinLog, String> {
        let mut opened = self.options().open(DIR);
        if rng.one_in(4) {
            drop(opened);
            self.make_room();
            self.disk.inject_all(Fault::EIO, Times::Nth(rng.of(0..4)));
            if let Err(error) = self.options().open(DIR)
                && !matches!(&error, Error::Io(error) if error.errno() == Some(libc::EIO))
                && !matches!(&error, Error::Corrupt { .. })
            {
                return Err(format!("read with EIO: {error}"));
            }
            self.make_room();
            opened = self.options().open(DIR);
        }
        let log = opened.map_err(|error| format!("opened, full: {}: {error}", self.is_full))?;
        let found = read_groups(&log, log.first()).map_err(|error| format!("read: {error}"))?;
        self.check(&found, log.first())?;
        Ok(log)
    }

    fn check(&mut self, found: &[Vec<Vec<u8>>], first: Position) -> Result<(), String> {
        let (last, purged) = std::mem::take(&mut self.doubtful);
        if first.segment >= purged {
            self.kept.retain(|(_, end)| end.segment >= purged);
        }
        let count = self.kept.len();
        let same = found.iter().zip(&self.kept).all(|(found, (kept, _))| found == kept);
        let more = found.get(count..).unwrap_or_default();
        if !same
            || found.len() < count
            || !(more.is_empty() || last.as_ref() == Some(&more[0]))
            || more.len() > 1
        {
            return Err(format!("found {} of {count}", found.len()));
        }
        let at = Position { segment: u64::MAX, offset: 0 };
        self.kept.extend(more.iter().map(|group| (group.clone(), at)));
        Ok(())
    }
}

fn life(mut rng: Rng, injected_fault: Option<BinLogFault>) -> Result<(), String> {
    let mode = [LogMode::Buffered, LogMode::Direct, LogMode::Uncached][rng.index(3)];
    let mut life = Life {
        disk: SimDisk::new(),
        mode,
        injected_fault,
        kept: Vec::new(),
        doubtful: (None, 0),
        is_full: false,
    };
    let mut log = life.options().open(DIR).map_err(|error| error.to_string())?;
    for which in 0..rng.of(4..24) {
        match rng.of(0..5) {
            0 => life.fill(&mut rng),
            1 => life.make_room(),
            _ => {}
        }
        let goes_on = life.act(&log, which, &mut rng)?;
        if goes_on && !rng.one_in(8) {
            continue;
        }
        let crashed = if rng.one_in(2) {
            life.disk.after_kill()
        } else {
            life.disk.after_power_cut(Persistence::None, 0)
        };
        if goes_on && rng.one_in(2) {
            match log.close() {
                Ok(()) => life.disk = life.disk.after_kill(),
                Err(error) => {
                    life.ended(&error)?;
                    life.disk = life.disk.after_kill();
                }
            }
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
    let last = group(99, 2, 3000);
    let end = append(&log, &last).map_err(|error| format!("with room: {error}"))?;
    life.kept.push((last, end));
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
    for fault in [BinLogFault::RaggedEnd, BinLogFault::PurgeFilesFirst, BinLogFault::WriteErrorIgnored] {
        require_found(fault, 4000, |which| life(seed.rng(which), Some(fault)));
    }
}
