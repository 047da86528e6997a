//! A decaying medium: after any damage the log is read correctly, or an error reports it. Opening a
//! log uses nothing up.

use std::ops::Range;
use std::path::Path;

use pagekeeper_io::{Access, Create, Io, WriteMode};
use pagekeeper_simdisk::{Damage, Persistence, SimDisk};
use pagekeeper_testing::{Rng, Seed};

use super::super::options::FlushPolicy;
use super::super::{RedoLog, RedoOptions};
use super::{all, dir, small};
use crate::injected_fault::InjectedFault;
use crate::record::{BLOCK, RecordKind, encode};
use crate::testing::{lives, require_found};
use crate::{Error, Lsn};

const FILE: u64 = 16 << 10;

fn place(lsn: u64) -> (String, u64) {
    (format!("/redo/redo.{:03}", lsn / FILE % 4), lsn % FILE)
}

fn flip(disk: &SimDisk, lsn: u64) {
    let (path, at) = place(lsn);
    disk.damage(path, &Damage::Bit { at, bit: 0 }).unwrap();
}

/// Flips all of these bits of a byte.
fn flip_all(disk: &SimDisk, lsn: u64, bits: u8) {
    let (path, at) = place(lsn);
    for bit in (0..8).filter(|bit| bits & 1 << bit != 0) {
        disk.damage(&path, &Damage::Bit { at, bit }).unwrap();
    }
}

fn commit(log: &RedoLog, body: &[u8]) -> u64 {
    let end = log.append(body).unwrap();
    log.wait_flushed(end).unwrap();
    end.get()
}

fn opened(disk: &SimDisk) -> Result<RedoLog, Error> {
    small(disk).without_threads().open(dir())
}

/// The first append after a crash records its start in the control file, so no single record holds
/// that fact.
#[test]
fn a_bit_in_the_first_record_after_a_crash_loses_nothing_in_silence() {
    let disk = SimDisk::new();
    let log = small(&disk).without_threads().create(dir()).unwrap();
    commit(&log, b"before");
    let disk = disk.after_kill();
    drop(log);
    let log = opened(&disk).unwrap();
    let first = log.end().get();
    let committed: Vec<_> = (0..10).map(|number| (log.end().get(), commit(&log, &[number; 100]))).collect();
    let last = committed[9];
    let killed = disk.after_kill();
    log.close().unwrap();
    for (disk, closed) in [(killed, false), (disk, true)] {
        for lsn in (first..last.1).step_by(64) {
            let rotten = disk.after_kill();
            flip(&rotten, lsn);
            let is_padding = !committed.iter().any(|(from, upto)| (*from..*upto).contains(&lsn));
            match opened(&rotten) {
                Err(Error::Corrupt { .. }) => assert!(!closed || !is_padding, "{lsn}"),
                Ok(log) if is_padding && closed => assert_eq!(all(&log).len(), 11, "{lsn}"),
                // While the log is in use, nothing proves the last record: no later append confirms
                // it.
                Ok(log) => {
                    assert!(!closed && lsn >= last.0 && all(&log).len() >= 10, "{lsn}: {:?}", all(&log));
                }
                Err(error) => panic!("{lsn}: {error}"),
            }
        }
    }
}

/// Damages each byte that opening a closed log reads.
#[test]
fn every_byte_of_a_closed_log_except_padding_is_checked() {
    let disk = SimDisk::new();
    let log = small(&disk).without_threads().create(dir()).unwrap();
    // Behind the third record there is only room for the header of a padding, and behind the fourth
    // not even for that.
    let ends: Vec<_> = [900, 2000, 4048, 4056, 1000].map(|len| commit(&log, &vec![7; len])).into();
    assert_eq!((ends[2] % BLOCK, ends[3] % BLOCK), (BLOCK - 24, BLOCK - 16));
    log.checkpoint(Lsn::new(ends[0])).unwrap();
    log.close().unwrap();
    let lens = [2000, 4048, 4056, 1000].map(crate::record::size);
    let records: Vec<_> = lens.iter().zip(&ends[1..]).map(|(len, end)| end - len..*end).collect();
    let end = ends[4].next_multiple_of(BLOCK);
    for lsn in ends[0]..end {
        let is_record = records.iter().any(|record| record.contains(&lsn));
        let rotten = disk.after_kill();
        // These bits turn the kind of data into that of padding.
        flip_all(&rotten, lsn, 0x30);
        let written = rotten.stats().written;
        match opened(&rotten) {
            Err(Error::Corrupt { .. }) => assert!(is_record, "{lsn}"),
            Ok(log) => {
                assert!(!is_record && all(&log).len() == 4, "{lsn}");
                assert_eq!(log.damaged_paddings().len(), 1, "{lsn}");
            }
            Err(error) => panic!("{lsn}: {error}"),
        }
        assert_eq!(rotten.stats().written, written, "{lsn}");
    }
    // Bytes before the checkpoint and behind the end do not count.
    for lsn in [0, end + 100] {
        let rotten = disk.after_kill();
        flip(&rotten, lsn);
        let log = opened(&rotten).unwrap();
        assert_eq!((all(&log).len(), log.damaged_paddings()), (4, Vec::new()), "{lsn}");
    }
}

/// A log that continues behind a damaged padding keeps all its records, also if the checkpoint is
/// there, and after a crash.
#[test]
fn a_log_continues_behind_a_damaged_padding() {
    for (at, flips) in [(0, 1), (7, 0x30), (12, 0xff), (18, 1), (22, 1), (100, 0xff)] {
        for checkpointed in [false, true] {
            let mut disk = SimDisk::new();
            let log = small(&disk).without_threads().create(dir()).unwrap();
            let end = commit(&log, b"one");
            if checkpointed {
                log.checkpoint(Lsn::new(end)).unwrap();
            }
            log.close().unwrap();
            flip_all(&disk, end + at, flips);
            for (kept, closed) in (usize::from(!checkpointed)..).zip([false, true, false]) {
                let log = opened(&disk).unwrap();
                assert_eq!(all(&log).len(), kept, "{at}");
                assert_eq!(log.damaged_paddings(), [("/redo/redo.000".into(), end)], "{at}");
                commit(&log, b"more");
                if closed {
                    log.close().unwrap();
                } else {
                    disk = disk.after_kill();
                }
            }
            let log = opened(&disk).unwrap();
            log.checkpoint(Lsn::new(end)).unwrap();
            assert_eq!(log.damaged_paddings().len(), 1);
            log.checkpoint(log.end()).unwrap();
            assert_eq!(log.damaged_paddings(), []);
            log.close().unwrap();
            assert_eq!(opened(&disk).unwrap().damaged_paddings(), []);
        }
    }
}

#[test]
fn openings_that_append_nothing_use_nothing_up() {
    let disk = SimDisk::new();
    let log = small(&disk).without_threads().create(dir()).unwrap();
    let end = commit(&log, b"kept");
    for disk in [disk.after_kill(), {
        log.close().unwrap();
        disk.after_kill()
    }] {
        let written = disk.stats().written;
        for _ in 0..200 {
            let log = opened(&disk).unwrap();
            assert_eq!((all(&log).len(), log.end()), (1, Lsn::new(BLOCK)));
            log.close().unwrap();
        }
        assert_eq!(disk.stats().written, written);
        let log = opened(&disk).unwrap();
        let next = commit(&log, b"more");
        assert!(next > end && next <= 2 * BLOCK);
    }
}

/// A process appends and crashes repeatedly, without a checkpoint: the room for epochs is limited.
#[test]
fn crashes_without_a_checkpoint_fill_the_log_and_break_nothing() {
    let options = |disk: &SimDisk| small(disk).file_bytes(4 << 20).without_threads();
    let mut disk = SimDisk::new();
    drop(options(&disk).create(dir()).unwrap());
    let mut kept = 0;
    loop {
        let log = options(&disk).open(dir()).unwrap();
        assert_eq!(all(&log).len(), kept);
        match log.try_append(b"x") {
            Ok(end) => log.wait_flushed(end).unwrap(),
            Err(error) => {
                assert!(matches!(error, Error::RingFull { .. }), "{error}");
                break;
            }
        }
        kept += 1;
        disk = disk.after_kill();
    }
    assert!(kept >= 256, "{kept}");
    // Epochs without records do not count.
    let log = options(&disk).open(dir()).unwrap();
    log.checkpoint(all(&log)[kept - 1].end).unwrap();
    commit(&log, b"continues");
    disk = disk.after_kill();
    for _ in 0..600 {
        let log = options(&disk).open(dir()).unwrap();
        log.append(b"never written").unwrap();
        disk = disk.after_power_cut(Persistence::None, 0);
    }
    let log = options(&disk).open(dir()).unwrap();
    assert_eq!(all(&log).len(), 1);
    commit(&log, b"and on");
}

#[test]
fn a_read_only_log_is_read_beside_others_and_on_a_full_disk_and_nothing_is_written() {
    let disk = SimDisk::new();
    let read_only = || small(&disk).read_only(true);
    assert!(matches!(read_only().create(dir()), Err(Error::ReadOnly)));
    assert_eq!(disk.ops(), 0);
    let log = small(&disk).create(dir()).unwrap();
    let end = commit(&log, b"one");
    assert!(matches!(read_only().open(dir()), Err(Error::Io(pagekeeper_io::Error::Locked { .. }))));
    log.close().unwrap();
    disk.fill_up_at(0);
    let operations = disk.ops();
    let logs = [read_only().open(dir()).unwrap(), read_only().open(dir()).unwrap()];
    for log in &logs {
        assert_eq!(all(log).len(), 1);
        assert_eq!(log.append(b"two"), Err(Error::ReadOnly));
        assert_eq!(log.try_append(b"two"), Err(Error::ReadOnly));
        assert_eq!(log.checkpoint(Lsn::new(end)), Err(Error::ReadOnly));
        log.sync_upto(Lsn::new(end)).unwrap();
    }
    assert!(matches!(small(&disk).open(dir()), Err(Error::Io(pagekeeper_io::Error::Locked { .. }))));
    drop(logs);
    assert_eq!(disk.ops(), operations);
    // An existing ring needs no room.
    let log = small(&disk).open(dir()).unwrap();
    commit(&log, b"two");
    log.close().unwrap();
    assert_eq!(all(&read_only().open(dir()).unwrap()).len(), 2);
}

#[test]
fn files_of_another_format_version_are_left_alone() {
    let disk = SimDisk::new();
    let log = small(&disk).without_threads().create(dir()).unwrap();
    commit(&log, b"one");
    let (lsn, salt) = (log.end(), log.core.epoch.salt.load(std::sync::atomic::Ordering::Relaxed));
    let killed = disk.after_kill();
    drop(log);
    let (path, at) = place(lsn.get());
    let file = killed.open_writable(path.as_ref(), Access::Buffered, Create::Never).unwrap();
    file.write_at(at, &encode(RecordKind::Unknown(7), b"?", lsn.get(), salt, 0), WriteMode::Plain).unwrap();
    let before = killed.ops();
    let error = opened(&killed).unwrap_err();
    assert!(matches!(error, Error::UnknownRecord { offset, .. } if offset == at), "{error}");
    assert!(error.to_string().contains("written by a newer pagekeeper"));
    assert_eq!(killed.ops(), before);

    for version in [2_u8, 4] {
        let other = killed.after_kill();
        let path = Path::new("/redo/control");
        let file = other.open_writable(path, Access::Buffered, Create::Never).unwrap();
        for slot in [0, BLOCK] {
            // The part that all versions share, followed by its checksum.
            let mut head = [0; 56];
            file.read_at(slot, &mut head).unwrap();
            head[6] = version;
            let crc = crc32c::crc32c(&head[..52]);
            head[52..].copy_from_slice(&crc.to_le_bytes());
            file.write_at(slot, &head, WriteMode::Plain).unwrap();
        }
        let before = other.ops();
        match opened(&other).unwrap_err() {
            Error::OldVersion { version: 2, .. } if version == 2 => {}
            Error::UnknownVersion { version: 4, .. } if version == 4 => {}
            error => panic!("{version}: {error}"),
        }
        assert_eq!(other.ops(), before);
    }
}

/// A committed record and its position.
struct Committed {
    lsns: Range<Lsn>,
    body: Vec<u8>,
}

/// Runs a life that ends in damage. The log must then be read correctly, or fail. The returned
/// error names the damage.
fn damaged(mut rng: Rng, injected_fault: Option<InjectedFault>) -> Result<(), String> {
    let options = |disk: &SimDisk| -> RedoOptions {
        let mut options = small(disk).without_threads().flush_policy(FlushPolicy::EachCommit);
        options.injected_fault = injected_fault;
        options
    };
    let mut disk = SimDisk::new();
    let mut log = options(&disk).create(dir()).unwrap();
    let mut committed: Vec<Committed> = Vec::new();
    let mut closed = false;
    for session in 0..rng.of(1..4) {
        if session > 0 {
            log = options(&disk).open(dir()).map_err(|error| format!("undamaged: {error}"))?;
            closed = false;
        }
        for _ in 0..rng.of(1..10) {
            let len = [50, 500, 5000][rng.index(3)];
            let body: Vec<u8> = (0..rng.of(1..len)).map(|_| rng.number().to_le_bytes()[0]).collect();
            let end = match log.try_append(&body) {
                Err(Error::RingFull { .. }) => {
                    log.checkpoint(committed.last().map_or(Lsn::new(0), |last| last.lsns.end)).unwrap();
                    committed.clear();
                    log.try_append(&body).unwrap()
                }
                appended => appended.unwrap(),
            };
            log.wait_flushed(end).unwrap();
            committed.push(Committed { lsns: end - crate::record::size(body.len())..end, body });
            if rng.one_in(6) {
                let upto = rng.index(committed.len());
                log.checkpoint(committed[upto].lsns.end).unwrap();
                committed.drain(..=upto);
            }
        }
        let crashed =
            if rng.one_in(2) { disk.after_kill() } else { disk.after_power_cut(Persistence::None, 0) };
        if rng.one_in(2) {
            log.close().unwrap();
            closed = true;
        } else {
            // The close must not change what the crash left.
            drop(log);
            disk = crashed;
        }
        log = options(&SimDisk::new()).create(dir()).unwrap();
    }
    drop(log);
    let disk = disk.after_kill();
    let names = ["control", "redo.000", "redo.001", "redo.002", "redo.003"];
    let name = names[rng.index(names.len())];
    let damage = Damage::random(rng.number(), if name == "control" { 8192 } else { FILE });
    let path = format!("/redo/{name}");
    disk.damage(&path, &damage).unwrap();
    let context = |what: String| format!("{what}; {name}: {damage:?}, closed: {closed}");
    let found = match options(&disk).recover(dir(), None) {
        Ok((_, found)) => found,
        Err(Error::Corrupt { .. } | Error::Io(_)) if name != "control" => return Ok(()),
        Err(error) => {
            // One damage may cover both slots.
            let both = matches!(&damage, Damage::Shifted { range, .. } | Damage::Zeros(range) | Damage::Garbage { range, .. } | Damage::Unreadable(range) if range.start < BLOCK && range.end > BLOCK);
            return if name == "control" && both { Ok(()) } else { Err(context(error.to_string())) };
        }
    };
    let bodies = || committed.iter().map(|committed| &committed.body[..]);
    if !found.iter().map(|record| &record.body[..]).eq(bodies().take(found.len()))
        || found.len() > committed.len()
    {
        return Err(context("not what was committed".to_owned()));
    }
    // Each missing record must have been hit, or the padding behind it: nothing else could have
    // proven it.
    let is_hit = |lsns: &Range<Lsn>| {
        let damaged = match &damage {
            Damage::Bit { at, .. } => *at..*at + 1,
            Damage::Shifted { range, .. }
            | Damage::Zeros(range)
            | Damage::Garbage { range, .. }
            | Damage::Unreadable(range) => range.clone(),
            _ => 0..FILE,
        };
        (lsns.start.get()..lsns.end.get().next_multiple_of(BLOCK)).step_by(8).any(|lsn| {
            let (path, at) = place(lsn);
            path.ends_with(name) && damaged.start < at + 8 && at < damaged.end
        })
    };
    let lost = &committed[found.len()..];
    // Unreadable bytes never count as bytes that were never written.
    let readable = !matches!(damage, Damage::Unreadable(_));
    let excused = !closed && readable && lost.iter().all(|lost| is_hit(&lost.lsns));
    if lost.is_empty() || excused {
        Ok(())
    } else {
        Err(context(format!("{} of {} lost", lost.len(), committed.len())))
    }
}

#[test]
fn damages_are_found_or_do_no_harm() {
    let seed = Seed::new();
    for which in 0..lives(12_000) {
        damaged(seed.rng(which), None).unwrap_or_else(|error| panic!("life {which}: {error}"));
    }
}

#[test]
fn injected_faults_that_only_damage_shows_are_found() {
    let seed = Seed(7);
    for fault in [
        InjectedFault::SettledNotKept,
        InjectedFault::EpochNotNoted,
        InjectedFault::NoSearchBehindEnd,
        InjectedFault::OneSlotIsEnough,
        InjectedFault::UnreadableIsEmpty,
    ] {
        require_found(fault, 8000, |which| damaged(seed.rng(which), Some(fault)));
    }
}
