//! Opening a log: the width, amount and start of its reads, and the damage that it refuses.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_io::{Access, Create, Io, WriteMode};
use pagekeeper_simdisk::{Damage, SimDisk};

use super::super::options::FlushPolicy;
use super::super::{RedoLog, RedoOptions};
use super::{all, dir, small};
use crate::injected_fault::InjectedFault;
use crate::{Error, LogMode, Lsn};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of one read.
const PIECE_BYTES: u64 = 512 * KIB;
const LATENCY: Duration = Duration::from_millis(2);

/// Returns a slow disk of practically unlimited width, once closed and once killed. On it is a log
/// of 160 MiB with a record of 1 MiB and `more` like it.
fn wide(more: u64) -> ([SimDisk; 2], RedoOptions) {
    let disk = SimDisk::builder().latency(LATENCY).width(1024).build();
    let options = RedoLog::options()
        .files(5)
        .file_bytes(32 * MIB)
        .mode(LogMode::Direct)
        .io(Arc::new(disk.clone()))
        .without_threads();
    let log = options.clone().create(dir()).unwrap();
    for number in 0..=more {
        let end = log.append(&vec![number.to_le_bytes()[0] + 1; usize::try_from(MIB).unwrap()]).unwrap();
        log.wait_flushed(end).unwrap();
    }
    let killed = disk.after_kill();
    log.close().unwrap();
    ([disk.after_kill(), killed], options)
}

/// Opens the log. Returns the number of reads, their bytes, their width, and the number of
/// latencies it took.
fn opened(disk: &SimDisk, options: &RedoOptions, records: usize) -> (u64, u64, usize, u32) {
    let (log, found) = options.clone().io(Arc::new(disk.clone())).recover(dir(), None).unwrap();
    assert!(found.len() == records && found.iter().all(|record| record.body.len() as u64 == MIB));
    let stats = disk.stats();
    let took = disk.now().as_nanos() / LATENCY.as_nanos();
    assert_eq!(stats.writes, 0);
    drop(log);
    assert_eq!(disk.stats().writes, 0);
    (stats.reads, stats.bytes, stats.peak_width, u32::try_from(took).unwrap())
}

/// Opening takes one read of the control file, one wide read of the records, and one sync of the
/// control file, which a close that was killed may have left unsynced.
#[test]
fn a_closed_log_is_opened_by_one_wide_read_of_its_content() {
    let ([closed, _], options) = wide(0);
    let live = MIB + 4096;
    assert_eq!(opened(&closed, &options, 1), (1 + live.div_ceil(PIECE_BYTES), 8192 + live, 3, 3));
    let ([closed, _], options) = wide(35);
    let (reads, bytes, width, latencies) = opened(&closed, &options, 36);
    assert_eq!((bytes, reads, width), (8192 + 36 * live, 1 + (36 * live).div_ceil(PIECE_BYTES), 64));
    assert!(latencies <= 4, "{latencies}");
}

/// Opening also searches as many bytes as the longest record has, or twice that. Then it syncs one
/// file and the control file.
#[test]
fn opening_a_killed_log_reads_little_more_than_its_content() {
    let ([_, killed], options) = wide(0);
    // This is twice the longest possible record.
    assert_eq!(opened(&killed, &options, 1), (1 + 4 * MIB / PIECE_BYTES, 8192 + 4 * MIB, 8, 4));
    let ([_, killed], options) = wide(35);
    let (_, bytes, width, latencies) = opened(&killed, &options, 36);
    assert!(bytes > 8192 + 38 * MIB && bytes <= 8192 + (36 + 32) * MIB, "{bytes}");
    assert!(width >= 32 && latencies <= 8, "{width} {latencies}");
}

/// Blocks that were read ahead uselessly may be unreadable; a block that may have held a record may
/// not.
#[test]
fn only_needed_blocks_must_be_readable() {
    let ([closed, killed], options) = wide(0);
    let end = MIB + 4096;
    for (block, of_closed, of_killed) in [
        (100 * 4096, false, false),
        (end - 4096, false, false),
        (end, true, false),
        (end + 4096, true, true),
        (31 * MIB, true, true),
    ] {
        for (disk, opens) in [(&closed, of_closed), (&killed, of_killed)] {
            let disk = disk.after_kill();
            disk.damage("/redo/redo.000", &Damage::Unreadable(block + 600..block + 601)).unwrap();
            let opened = options.clone().io(Arc::new(disk.clone())).recover(dir(), None);
            match opened {
                Ok((_, records)) => assert!(opens && records.len() == 1, "{block}"),
                Err(error) => assert!(!opens && matches!(error, Error::Io(_)), "{block}: {error}"),
            }
        }
    }
}

#[test]
fn records_are_given_from_where_they_are_wanted_with_threads_and_without() {
    let disk = SimDisk::new();
    let options = || {
        let options = RedoLog::options().files(3).file_bytes(24 * MIB).buffer_bytes(16 << 20);
        options.max_unsynced(4 * MIB).io(Arc::new(disk.clone()))
    };
    let log = options().create(dir()).unwrap();
    let mut ends = vec![Lsn::new(0)];
    for number in 0..3000_usize {
        // Some records span chunks of memory, some are empty.
        let len = if number % 500 == 7 { 3_000_000 } else { number * 37 % 20_000 };
        ends.push(log.append(&vec![number.to_le_bytes()[0]; len]).unwrap());
    }
    log.close().unwrap();
    let log = options().open(dir()).unwrap();
    let whole = all(&log);
    assert_eq!(whole.len(), 3000);
    log.append(b"of another epoch").unwrap();
    log.close().unwrap();
    for (threads, from) in [(true, 0), (false, 0), (true, 1500), (false, 2999), (true, 3000)] {
        let options = if threads { options() } else { options().without_threads() };
        let (log, found) = options.recover(dir(), Some(ends[from])).unwrap();
        assert_eq!(found.len(), 3001 - from);
        for (found, whole) in found.iter().zip(&whole[from..]) {
            assert_eq!((found.lsn, found.end, &found.body[..]), (whole.lsn, whole.end, &whole.body[..]));
        }
        assert_eq!(found.last().unwrap().body, b"of another epoch"[..]);
        drop(log);
    }
    let before = disk.stats().writes;
    let wrong = |from| options().recover(dir(), Some(from)).unwrap_err();
    assert!(matches!(wrong(Lsn::new(1 << 40)), Error::NotInLog { from, .. } if from == Lsn::new(0)));
    assert_eq!(wrong(ends[5] + 8), Error::NotARecord { lsn: ends[5] + 8 });
    assert_eq!(wrong(ends[5] + 1), Error::NotARecord { lsn: ends[5] + 1 });
    assert_eq!(disk.stats().writes, before, "nothing was changed");
}

#[test]
fn records_are_given_before_later_ones_are_read() {
    const MIB: u64 = 1 << 20;
    let disk = SimDisk::new();
    let options = || RedoLog::options().files(3).file_bytes(24 * MIB).io(Arc::new(disk.clone()));
    let log = options().create(dir()).unwrap();
    for _ in 0..600 {
        log.append(&vec![7; 100_000]).unwrap();
    }
    log.close().unwrap();
    let (mut count, mut reads) = (0, Vec::new());
    let take = |_| {
        count += 1;
        reads.push(disk.stats().reads);
    };
    let before = disk.stats().reads;
    let log = options().without_threads().recover_into(dir(), None, take).unwrap();
    assert_eq!((count, log.checkpoint_lsn()), (600, Lsn::new(0)));
    // The first step is about half of the log.
    assert!((reads[0] - before) * 3 < (reads[599] - before) * 2, "{before}, {reads:?}");
}

#[test]
fn memory_of_bodies_that_nobody_keeps_is_read_into_again() {
    let disk = SimDisk::new();
    let options = || RedoLog::options().files(3).file_bytes(64 * MIB).io(Arc::new(disk.clone()));
    let log = options().create(dir()).unwrap();
    for _ in 0..1500 {
        log.append(&vec![7; 100_000]).unwrap();
    }
    log.close().unwrap();
    let of = |body: &bytes::Bytes| body.as_ptr().addr() >> 22;
    for options in [options(), options().without_threads()] {
        let mut memory = std::collections::HashSet::new();
        let take = |record: crate::RecoveredRecord| memory.extend([of(&record.body)]);
        let log = options.recover_into(dir(), None, take).unwrap();
        // The log has 143 MiB, in steps of 32 and 16 MiB. Three are in memory at once: chunks of 4
        // MiB, and the copies that join two of them.
        assert!(memory.len() < 32, "{} pieces of memory", memory.len());
        drop(log);
    }
    // A kept body stays as it is.
    let mut kept = Vec::new();
    let take = |record: crate::RecoveredRecord| {
        kept.extend(Some(record.body).filter(|_| record.lsn.get().is_multiple_of(80)));
    };
    drop(options().recover_into(dir(), None, take).unwrap());
    assert!(kept.len() > 50 && kept.iter().all(|body| body.iter().all(|byte| *byte == 7)));
}

#[test]
fn places_are_read_again_as_long_as_they_are_in_the_log() {
    let disk = SimDisk::new();
    let options = || small(&disk).file_bytes(64 * KIB).without_threads();
    let log = options().create(dir()).unwrap();
    let append = |log: &RedoLog, number: u64| {
        let len = usize::try_from(number * 37 % 3000 + 2).unwrap();
        log.append(&vec![number.to_le_bytes()[0]; len]).unwrap()
    };
    let mut released = Lsn::new(0);
    for number in 0..300 {
        let end = append(&log, number);
        if log.end() - released > 64 * KIB {
            released = end;
            log.checkpoint(released).unwrap();
        }
    }
    log.close().unwrap();
    let (log, found) = options().recover(dir(), None).unwrap();
    assert!(
        found.len() > 10 && found.last().unwrap().end > Lsn::new(4 * 64 * KIB),
        "the ring was filled more than once"
    );
    let mut places: Vec<_> = found
        .iter()
        .map(|record| record.body_lsn() + 1..record.body_lsn() + record.body.len() as u64)
        .collect();
    let mut bodies: Vec<_> = found.iter().map(|record| record.body.slice(1..)).collect();
    places.push(places[0].start..places[0].start);
    bodies.push(bytes::Bytes::new());
    places.reverse();
    bodies.reverse();
    for at_once in [1, 10_000, 1 << 20] {
        assert_eq!(log.read_again(&places, at_once).unwrap(), bodies);
    }
    assert_eq!(log.read_again(&[], 1).unwrap(), Vec::<bytes::Bytes>::new());
    // Small parts do not keep all the memory that was read.
    let parts: Vec<_> = places[1..].iter().rev().map(|place| place.start..place.start + 1).collect();
    let read = log.read_again(&parts, 1 << 20).unwrap();
    assert!(read.iter().rev().zip(&bodies[1..]).all(|(read, body)| read[..] == body[..1]));
    let ends = |bytes: &bytes::Bytes| bytes.as_ptr().wrapping_add(bytes.len());
    assert!(read.windows(2).all(|pair| ends(&pair[0]) == pair[1].as_ptr()), "they are copied, side by side");
    let before = disk.stats();
    log.read_again(&places[1..2], 1 << 20).unwrap();
    assert!(disk.stats().bytes - before.bytes <= 8192, "no more than its blocks");
    // Places behind the end, and before the checkpoint.
    let behind = log.durable_lsn()..log.durable_lsn() + 1;
    assert!(matches!(log.read_again(&[behind], 1 << 20), Err(Error::NotInLog { .. })));
    let first = places.pop().unwrap();
    places.remove(0);
    log.checkpoint(found[1].lsn).unwrap();
    let error = log.read_again(std::slice::from_ref(&first), 1 << 20).unwrap_err();
    assert!(matches!(error, Error::NotInLog { lsn, .. } if lsn == first.start), "{error}");
    log.read_again(&places, 1 << 20).unwrap();
    // An unreadable place is an error, but does not affect others.
    let (file, offset) = (found[1].body_lsn().get() / (64 * KIB) % 4, found[1].body_lsn().get() % (64 * KIB));
    let path = format!("/redo/redo.{file:03}");
    disk.damage(&path, &Damage::Unreadable(offset..offset + 1)).unwrap();
    assert!(matches!(log.read_again(&places, 1 << 20), Err(Error::Io(_))));
    log.read_again(&places[..places.len() - 8], 1 << 20).unwrap();
}

fn flip(disk: &SimDisk, lsn: u64, file_bytes: u64) {
    let path = format!("/redo/redo.{:03}", lsn / file_bytes);
    let file = disk.open_writable(Path::new(&path), Access::Buffered, Create::Never).unwrap();
    let mut byte = [0];
    file.read_at(lsn % file_bytes, &mut byte).unwrap();
    file.write_at(lsn % file_bytes, &[byte[0] ^ 1], WriteMode::Plain).unwrap();
}

/// A changed byte in any record but the last is not a torn tail, whether it was synced by commits
/// or by the bound.
#[test]
fn a_damaged_record_is_refused_within_the_bound() {
    let file_bytes = 256 * KIB;
    let options = |disk: &SimDisk| {
        let options = small(disk).file_bytes(file_bytes).max_unsynced(32 * KIB).without_threads();
        options.flush_policy(FlushPolicy::Os)
    };
    for commits in [true, false] {
        let disk = SimDisk::new();
        let log = options(&disk).create(dir()).unwrap();
        let mut places = Vec::new();
        for number in 0..150_usize {
            let at = log.end();
            let end = log.append(&vec![1; number * 531 % 9000]).unwrap();
            places.push(at..end);
            if commits && number % 3 == 0 {
                log.sync_upto(end).unwrap();
            }
            assert!(log.end() - log.durable_lsn() <= 32 * KIB);
        }
        // A record behind the next sync proves that earlier ones are durable.
        let known = places[120].end;
        assert!(known + 64 * KIB < log.durable_lsn() && known > Lsn::new(400 * KIB));
        if commits {
            log.close().unwrap();
        }
        let disk = disk.after_kill();
        for place in places.iter().filter(|place| place.end <= known) {
            // In the header's LSN, then in its distance to the durable end.
            let rotten = disk.after_kill();
            flip(&rotten, (place.start + 9).get(), file_bytes);
            let error = options(&rotten).open(dir()).unwrap_err();
            assert!(matches!(error, Error::Corrupt { lsn, .. } if lsn <= place.start), "{place:?}: {error}");
            let rotten = disk.after_kill();
            flip(&rotten, (place.start + 20).get(), file_bytes);
            assert!(matches!(options(&rotten).open(dir()), Err(Error::Corrupt { .. })), "{place:?}");
        }
        // Behind that it is a torn tail.
        let (log, found) = options(&disk).recover(dir(), None).unwrap();
        assert!(found.len() >= 121);
        drop(log);
    }
}

#[test]
fn every_opening_keeps_the_bound() {
    let disk = SimDisk::new();
    let log = small(&disk).file_bytes(MIB).max_unsynced(32 * KIB).create(dir()).unwrap();
    assert!(log.longest_record() < 16 << 10);
    log.close().unwrap();
    let options = small(&disk).buffer_bytes(1 << 20).flush_policy(FlushPolicy::Os);
    let log = options.open(dir()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    log.append(&[1; 3000]).unwrap();
                    // Read in this order, the difference is at most one that existed at some time.
                    let end = log.end();
                    assert!(end.saturating_sub(log.durable_lsn()) <= 32 * KIB);
                }
            });
        }
    });
    assert!(log.stats().syncs >= 1_200_000 / (32 * KIB));
    for wrong in [4096, 40_000, 1 << 33] {
        assert!(matches!(small(&disk).max_unsynced(wrong).open(dir()), Err(Error::Setting { .. })));
    }
}

/// An injected fault affects only this log, and there is none by default.
#[test]
fn faults_can_be_injected_by_tests_of_crates_built_on_the_log() {
    let disk = SimDisk::new();
    let log = small(&disk).injected_fault(InjectedFault::NoSync).create(dir()).unwrap();
    let end = log.append(b"x").unwrap();
    // Both slots of the control file were synced already.
    let syncs = disk.stats().syncs;
    log.wait_flushed(end).unwrap();
    assert_eq!((disk.stats().syncs, log.durable_lsn()), (syncs, Lsn::new(4096)));
}
