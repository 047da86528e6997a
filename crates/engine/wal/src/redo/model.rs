//! Models of the interaction of the log's threads. Loom runs the real sources of the log buffer and
//! of group commit in every order of two or three threads, and with every value that the memory
//! model lets a load see. A thread is preempted at most [`REDO_PREEMPTIONS_MAX`] times.
//!
//! A model fails in one of these ways:
//! - an assertion;
//! - loom's "Causality violation", if a part of the buffer is written while another thread may read
//!   or write it;
//! - loom's "deadlock", if a thread that waits for a sync is never woken.
//!
//! Nothing is random. Not modelled: event counts as futexes (they are a lock and a condition
//! variable here), the writes and syncs.
//!
//! Each model was seen to fail. The table lists the injected mutations, and the models that found
//! them:
//!
//! | mutation | found by |
//! |---|---|
//! | two threads may reserve the same room (a load and a store) | appends side by side, padding |
//! | `fill` counts before it copies, or does not release | appends side by side, room given back, many blocks |
//! | `ready` does not acquire the counts | the same |
//! | `taken` is not released, or `reserve` does not acquire it | room given back, many blocks, padding |
//! | blocks are given back while they are still read | many blocks, padding |
//! | the counts are zeroed after `taken` is raised | many blocks, padding |
//! | padding does not acquire what its neighbour saw, or the neighbour does not release it | padding |
//! | the ticket is taken after trying to lead | commits in groups |
//! | the syncer's lock is released only after the event counts were notified | commits in groups |
//! | nobody is woken to lead the next round, or none of those that a round covered | commits in groups |

mod event_count;
mod sync;

macro_rules! modelled {
    ($($path:literal $module:ident)*) => {$(
        #[path = $path]
        #[allow(clippy::duplicate_mod, reason = "the very source that the log runs, with loom's atomics and locks")]
        #[allow(dead_code, reason = "a model needs no more than it shows")]
        mod $module;
    )*};
}

modelled! {
    "buffer.rs" buffer
    "group_commit.rs" group_commit
}

use loom::thread;

use buffer::{BlockTaker, LogBuffer, NoRoom};
use group_commit::{GroupCommit, Turn};
use sync::{Arc, AtomicU64, Ordering};

/// Preemptions per thread in models of two and of three threads. Trying all orders would take too
/// long.
const REDO_PREEMPTIONS_MAX: [usize; 2] = [3, 2];
const KIB: u64 = 1024;
const BLOCK_BYTES: u64 = 4 * KIB;
const CAPACITY_BYTES: usize = 16 << 10;

/// Runs a model of this many threads in every order.
fn check(threads: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(REDO_PREEMPTIONS_MAX[threads - 2]);
    builder.check(model);
}

/// Appends this many KiB, all of one byte.
fn append(buffer: &LogBuffer, kib: u64, byte: u8) -> Result<u64, NoRoom> {
    let span = buffer.reserve(kib * KIB)?;
    let lsn = span.lsn();
    let body = vec![byte; usize::try_from(kib * KIB).unwrap()];
    buffer.fill(span, [&body, &[]]);
    Ok(lsn)
}

fn append_padding(buffer: &LogBuffer) -> u64 {
    let (span, end) = buffer.reserve_padding();
    if let Some(span) = span {
        let body = vec![0xff; usize::try_from(span.end() - span.lsn()).unwrap()];
        buffer.fill(span, [&body, &[]]);
    }
    end
}

/// Takes the whole blocks once, and gives them back. Keeps one byte of each KiB.
fn take(taker: &mut BlockTaker, bytes: &mut Vec<u8>) {
    let ready = taker.ready(u64::MAX);
    let len = ready.len();
    bytes.extend(ready.iter().step_by(1024));
    taker.give_back(len);
}

#[test]
fn appends_side_by_side() {
    check(3, || {
        let (buffer, mut taker) = LogBuffer::new(CAPACITY_BYTES, 0, 1 << 20);
        let threads: Vec<_> = [(3, 1), (2, 2)]
            .into_iter()
            .map(|(kib, byte)| {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || append(&buffer, kib, byte).unwrap())
            })
            .collect();
        let mut bytes = Vec::new();
        take(&mut taker, &mut bytes);
        let lsns: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(append_padding(&buffer), 2 * BLOCK_BYTES);
        take(&mut taker, &mut bytes);
        let expected =
            if lsns[0] == 0 { [1, 1, 1, 2, 2, 255, 255, 255] } else { [2, 2, 1, 1, 1, 255, 255, 255] };
        assert_eq!(bytes, expected);
    });
}

/// Appends like [`append`], once there is room.
fn append_waiting(buffer: &LogBuffer, kib: u64, byte: u8) {
    while let Err(why) = append(buffer, kib, byte) {
        assert_eq!(why, NoRoom::LogBuffer);
        thread::yield_now();
    }
}

/// Takes until this many KiB were taken.
fn take_until(taker: &mut BlockTaker, kib: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < kib {
        let before = bytes.len();
        take(taker, &mut bytes);
        if bytes.len() == before {
            thread::yield_now();
        }
    }
    bytes
}

#[test]
fn returned_reservations() {
    check(2, || {
        let (buffer, mut taker) = LogBuffer::new(CAPACITY_BYTES, 0, 1 << 20);
        // With the slack the buffer is full. Only the third append reaches the memory of the first.
        assert_eq!(append(&buffer, 8, 1), Ok(0));
        let appends = Arc::clone(&buffer);
        let appender = thread::spawn(move || {
            append_waiting(&appends, 8, 2);
            append_waiting(&appends, 4, 3);
        });
        let bytes = take_until(&mut taker, 20);
        appender.join().unwrap();
        assert!(bytes[..8].iter().all(|byte| *byte == 1));
        assert!(bytes[8..16].iter().all(|byte| *byte == 2));
        assert!(bytes[16..].iter().all(|byte| *byte == 3));
    });
}

#[test]
fn padding_into_a_returned_reservation() {
    check(3, || {
        let (buffer, mut taker) = LogBuffer::new(2 * CAPACITY_BYTES, 0, 1 << 20);
        assert_eq!(append(&buffer, 24, 1), Ok(0));
        let appends = Arc::clone(&buffer);
        let appender = thread::spawn(move || append_waiting(&appends, 11, 2));
        let appends = Arc::clone(&buffer);
        let padder = thread::spawn(move || append_padding(&appends));
        let mut bytes = take_until(&mut taker, 24);
        appender.join().unwrap();
        padder.join().unwrap();
        // The padding may have come too early.
        append_padding(&buffer);
        take(&mut taker, &mut bytes);
        // Takes up to the end of the memory, then from its front.
        take(&mut taker, &mut bytes);
        assert!(bytes[24..35].iter().all(|byte| *byte == 2) && bytes[35..] == [255]);
    });
}

#[test]
fn many_blocks_given_back_at_once() {
    check(2, || {
        let (buffer, mut taker) = LogBuffer::new(2 * CAPACITY_BYTES, 0, 1 << 20);
        // With the slack the buffer is full. The next append reaches the memory of its first block.
        assert_eq!(append(&buffer, 24, 1), Ok(0));
        let appends = Arc::clone(&buffer);
        let appender = thread::spawn(move || append_waiting(&appends, 12, 2));
        let bytes = take_until(&mut taker, 36);
        appender.join().unwrap();
        assert!(bytes[..24].iter().all(|byte| *byte == 1) && bytes[24..].iter().all(|byte| *byte == 2));
    });
}

#[test]
fn commits_in_groups() {
    check(3, || {
        let reserved = Arc::new(AtomicU64::new(0));
        let durable = Arc::new(AtomicU64::new(0));
        let group_commit = Arc::new(GroupCommit::default());
        let commit = move || {
            let lsn = reserved.fetch_add(8, Ordering::AcqRel) + 8;
            // Acts like `Core::wait_durable`.
            let result = || (durable.load(Ordering::Acquire) >= lsn).then_some(());
            if let Turn::Leads(leader) = group_commit.wait(lsn, result) {
                let upto = reserved.load(Ordering::Acquire);
                leader.begin(upto);
                durable.store(upto, Ordering::Release);
            }
        };
        let others: Vec<_> = (0..2).map(|_| thread::spawn(commit.clone())).collect();
        commit();
        for other in others {
            other.join().unwrap();
        }
    });
}
