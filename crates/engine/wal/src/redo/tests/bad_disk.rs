//! A disk that loses one write, misdirects it, or fails a sync and drops its data. The log is then
//! read correctly, or an error reports the loss.

use std::ops::Range;

use pagekeeper_simdisk::{Persistence, SimDisk, Times, WriteFault};
use pagekeeper_testing::{Rng, Seed};

use super::super::options::FlushPolicy;
use super::super::{RedoLog, RedoOptions};
use super::{dir, small};
use crate::injected_fault::InjectedFault;
use crate::record::{BLOCK, size};
use crate::testing::{lives, require_found};
use crate::{Error, Lsn};

const FILE: u64 = 16 << 10;

/// A committed record and its position.
struct Committed {
    lsns: Range<Lsn>,
    body: Vec<u8>,
}

/// A log on the faulty disk, with its history.
struct Life {
    disk: SimDisk,
    committed: Vec<Committed>,
    /// The record that was committed when the fault struck. It is gone if that was a write of the
    /// ring.
    struck: Option<Range<Lsn>>,
    /// A checkpoint that would have released everything failed.
    given_up: bool,
}

impl Life {
    fn commit(&mut self, log: &RedoLog, rng: &mut Rng) -> Result<(), Error> {
        let faults = self.disk.stats().faults;
        let len = [50, 500, 5000][rng.index(3)];
        let body: Vec<u8> = (0..rng.of(1..len)).map(|_| rng.number().to_le_bytes()[0]).collect();
        let end = match log.try_append(&body) {
            Err(Error::RingFull { .. }) => {
                self.given_up = true;
                log.checkpoint(self.committed.last().map_or(Lsn::new(0), |last| last.lsns.end))?;
                self.committed.clear();
                self.given_up = false;
                log.try_append(&body)?
            }
            appended => appended?,
        };
        let lsns = end - size(body.len())..end;
        log.wait_flushed(end)?;
        if self.disk.stats().faults > faults {
            self.struck.get_or_insert(lsns.clone());
        }
        self.committed.push(Committed { lsns, body });
        Ok(())
    }
}

/// Runs a life in which one write or sync goes wrong.
fn bad_write(mut rng: Rng, injected_fault: Option<InjectedFault>) -> Result<(), String> {
    let options = |disk: &SimDisk| -> RedoOptions {
        let mut options = small(disk).without_threads().flush_policy(FlushPolicy::EachCommit);
        options.injected_fault = injected_fault;
        options
    };
    let disk = SimDisk::new();
    let mut life = Life { disk, committed: Vec::new(), struck: None, given_up: false };
    let mut log = options(&life.disk).create(dir()).unwrap();
    if rng.one_in(2) {
        (0..rng.of(1..8)).for_each(|_| life.commit(&log, &mut rng).unwrap());
        let disk = life.disk.after_kill();
        if rng.one_in(2) {
            log.close().unwrap();
            life.disk = life.disk.after_kill();
        } else {
            life.disk = disk;
        }
        log = options(&life.disk).open(dir()).map_err(|error| format!("before the fault: {error}"))?;
    }
    let name = ["control", "redo.000", "redo.000", "redo.001"][rng.index(4)];
    let places = if name == "control" { 2 } else { FILE / BLOCK };
    let fault = match rng.of(0..3) {
        0 => WriteFault::Misdirected { to: rng.of(0..places) * BLOCK },
        1 => WriteFault::SyncDrop(libc::EIO),
        _ => WriteFault::Lost,
    };
    life.disk.inject(format!("/redo/{name}"), 0..u64::MAX, fault, Times::Nth(rng.of(0..6))).unwrap();
    let is_reported = matches!(fault, WriteFault::SyncDrop(_));
    let mut failed = false;
    for _ in 0..rng.of(1..12) {
        if let Err(error) = life.commit(&log, &mut rng) {
            assert!(is_reported, "{error}");
            failed = true;
            break;
        }
    }
    let crashed =
        if rng.one_in(2) { life.disk.after_kill() } else { life.disk.after_power_cut(Persistence::None, 0) };
    let closed = rng.one_in(2) && log.close().is_ok();
    let disk = if closed { life.disk.after_kill() } else { crashed };
    let context = |what: String| Err(format!("{what}; {name}: {fault:?}, closed: {closed}"));
    let found = match options(&disk).recover(dir(), None) {
        Ok((_, found)) => found,
        Err(Error::Corrupt { .. }) if name != "control" && !is_reported => return Ok(()),
        Err(error) => return context(error.to_string()),
    };
    // A failed record may be there, or may have been released before.
    let kept: Vec<_> = life.committed.iter().map(|committed| &committed.body[..]).collect();
    let same = found.iter().zip(&kept).all(|(found, kept)| found.body[..] == **kept);
    if !failed && (!same || found.len() > kept.len()) {
        return context("not what was committed".to_owned());
    }
    let is_gone = |lsns: &Range<Lsn>| {
        let is_overwritten = |to: u64| {
            let struck = life.struck.as_ref().map_or(0, |struck| struck.end - struck.start);
            let hit = to..to + struck + 2 * BLOCK;
            (lsns.start.get()..lsns.end.get().next_multiple_of(BLOCK))
                .step_by(8)
                .any(|lsn| name == format!("redo.{:03}", lsn / FILE % 4) && hit.contains(&(lsn % FILE)))
        };
        life.struck.as_ref() == Some(lsns)
            || matches!(fault, WriteFault::Misdirected { to } if is_overwritten(to))
    };
    let lost = &life.committed[found.len().min(kept.len())..];
    let is_excused = !closed && !is_reported && name != "control";
    if lost.is_empty() || life.given_up || is_excused && lost.iter().all(|lost| is_gone(&lost.lsns)) {
        Ok(())
    } else {
        context(format!("{} of {} lost", lost.len(), kept.len()))
    }
}

#[test]
fn writes_that_are_lost_or_go_elsewhere_are_found_or_do_no_harm() {
    let seed = Seed::new();
    for which in 0..lives(6000) {
        bad_write(seed.rng(which), None).unwrap_or_else(|error| panic!("life {which}: {error}"));
    }
}

#[test]
fn injected_faults_that_a_bad_disk_shows_are_found() {
    let seed = Seed(8);
    for fault in [InjectedFault::SettledNotKept, InjectedFault::NoSearchBehindEnd, InjectedFault::SyncRetried]
    {
        require_found(fault, 6000, |which| bad_write(seed.rng(which), Some(fault)));
    }
}
