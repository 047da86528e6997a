//! A disk that loses one write, misdirects it, or fails a sync and drops its data. The log is then
//! read correctly, or an error reports the loss.

use std::ops::Range;

use pagekeeper_simdisk::{Persistence, SimDisk, Times, WriteFault};
use pagekeeper_testing::{Rng, Seed};

use super::support::{DIR, append, group, options, read_groups};
use crate::binlog::injected_fault::BinLogFault;
use crate::testing::{lives, require_found};
use crate::{Error, Position};

/// The unit of writes, in bytes.
const BLOCK: u64 = 4096;

/// Runs a life in which one write or sync goes wrong.
fn bad_write(mut rng: Rng, injected_fault: Option<BinLogFault>) -> Result<(), String> {
    let options = |disk: &SimDisk| {
        let mut options = options(disk);
        options.injected_fault = injected_fault;
        options
    };
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    let fault = match rng.of(0..3) {
        0 => WriteFault::Misdirected { to: rng.of(0..4) * BLOCK },
        1 => WriteFault::SyncDrop(libc::EIO),
        _ => WriteFault::Lost,
    };
    let is_reported = matches!(fault, WriteFault::SyncDrop(_));
    let mut appended: Vec<(Vec<Vec<u8>>, Position, Position)> = Vec::new();
    let mut struck: Option<usize> = None;
    let at = rng.of(0..6);
    let count = rng.of(1..14);
    for which in 0..count {
        if which == at {
            disk.inject_all(fault, Times::Nth(rng.of(0..4)));
        }
        let (faults, from) = (disk.stats().faults, log.end());
        let group = group(which, 1 + rng.index(3), rng.index(2500));
        let done = if rng.one_in(6) { log.rotate().map(drop) } else { Ok(()) };
        match done.and_then(|()| append(&log, &group)) {
            Ok(end) => {
                if disk.stats().faults > faults {
                    struck.get_or_insert(appended.len());
                }
                appended.push((group, from, end));
            }
            Err(error) if is_reported => {
                assert!(matches!(error, Error::Poisoned { .. }), "{error}");
                break;
            }
            Err(error) => return Err(format!("{fault:?}: {error}")),
        }
    }
    let crashed = if rng.one_in(2) { disk.after_kill() } else { disk.after_power_cut(Persistence::None, 0) };
    let closed = rng.one_in(2) && log.close().is_ok();
    let disk = if closed { disk.after_kill() } else { crashed };
    // Opening finds everything that was acknowledged, or fails. After a failed sync, which was
    // reported, it must not fail.
    let found = match options(&disk).open(DIR).and_then(|log| read_groups(&log, log.first())) {
        Ok(found) => found,
        Err(error) if is_reported => return Err(format!("{fault:?}: {error}")),
        Err(_) => return Ok(()),
    };
    let context = |what: &str| {
        Err(format!("{what}: {} of {}; {fault:?}, closed: {closed}", found.len(), appended.len()))
    };
    let same = found.iter().zip(&appended).all(|(found, (group, ..))| found == group);
    if !same || found.len() > appended.len() + usize::from(is_reported) {
        return context("not what was appended");
    }
    let overwritten = |range: Range<u64>| matches!(fault, WriteFault::Misdirected { to } if to < range.end && range.start < to + 3 * BLOCK);
    let is_gone = |at: usize| {
        let (_, from, end) = &appended[at];
        let start = if from.segment == end.segment { from.offset } else { BLOCK };
        struck == Some(at) || overwritten(start..end.offset.next_multiple_of(BLOCK))
    };
    let is_excused = !closed && !is_reported && (found.len()..appended.len()).all(is_gone);
    if found.len() >= appended.len() || is_excused { Ok(()) } else { context("lost in silence") }
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
    for fault in
        [BinLogFault::NoSearchBehindEnd, BinLogFault::SyncErrorIgnored, BinLogFault::SealedEndIgnored]
    {
        require_found(fault, 6000, |which| bad_write(seed.rng(which), Some(fault)));
    }
}
