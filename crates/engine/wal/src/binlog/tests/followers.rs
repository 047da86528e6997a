//! Followers read in order, without a gap, immediately and across rotations, and are woken when
//! there is more.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use pagekeeper_io::{Io, Threads};
use pagekeeper_simdisk::SimDisk;

use super::support::{DIR, append, group, options, read_groups};
use crate::{BinLog, BinLogOptions, Error, Event, Follower, LogMode, Position, PurgeMode};
use pagekeeper_testing::disk_dir;

/// Counts its wakeups.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs a future on this thread without a runtime. The thread sleeps while there is nothing to do.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn read_to_end(follower: Follower) -> Vec<Event> {
    follower.map(Result::unwrap).collect()
}

async fn read_to_end_async(mut follower: Follower) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = follower.next_async().await {
        events.push(event.unwrap());
    }
    events
}

/// Runs appending threads with followers of each kind, from the start and from the current end,
/// during rotations.
fn run_appenders_and_followers(
    io: Arc<dyn Io>,
    options: BinLogOptions,
    dir: &std::path::Path,
    writers: u64,
    groups: u64,
) {
    let log = options.io(io).open(dir).unwrap();
    let start = log.first();
    let (expected, seen) = thread::scope(|scope| {
        let mut followers = vec![
            scope.spawn(|| read_to_end(log.follow(start).unwrap())),
            scope.spawn(|| block_on(read_to_end_async(log.follow(start).unwrap()))),
            scope.spawn(|| read_to_end(log.follow_durable(start).unwrap())),
        ];
        let writers: Vec<_> = (0..writers)
            .map(|writer| {
                let log = &log;
                scope.spawn(move || {
                    let append = |at| {
                        let which = writer << 32 | at;
                        let group = group(which, 1 + usize::try_from(which % 3).unwrap(), 500);
                        let position = append(log, &group).unwrap();
                        if at % 16 == 0 {
                            thread::yield_now();
                        }
                        (position, group)
                    };
                    let mine: Vec<_> = (0..groups).map(append).collect();
                    assert!(mine.is_sorted_by_key(|(position, _)| *position));
                    mine
                })
            })
            .collect();
        // These followers come and go.
        for _ in 0..20 {
            let mut follower = log.follow(log.end()).unwrap();
            let from = follower.position();
            let first = follower.next_timeout(Duration::from_millis(2)).unwrap();
            assert!(first.is_none_or(|event| event.position >= from));
        }
        followers.push(scope.spawn(|| read_to_end(log.follow(start).unwrap())));
        let mut all: Vec<_> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        all.sort_by_key(|(position, _)| *position);
        log.sync().unwrap();
        log.shared.progress.closed();
        (all, followers.into_iter().map(|follower| follower.join().unwrap()).collect::<Vec<_>>())
    });
    for events in seen {
        let mut events = events.into_iter();
        for (position, group) in &expected {
            for (at, record) in group.iter().enumerate() {
                let event = events.next().unwrap();
                assert!(event.bytes == *record, "{position}");
                assert_eq!(event.ends_group, at + 1 == group.len());
                assert!(!event.ends_group || event.next == *position);
            }
        }
        assert_eq!(events.next(), None);
    }
}

#[test]
fn followers_see_all_appends_of_many_threads_across_rotations() {
    for (mode, every) in
        [(LogMode::Buffered, 1), (LogMode::Buffered, 0), (LogMode::Direct, 0), (LogMode::Direct, 1)]
    {
        let options = BinLog::options().max_segment_bytes(64 << 10).mode(mode).sync_every(every);
        run_appenders_and_followers(Arc::new(SimDisk::new()), options, DIR.as_ref(), 6, 100);
    }
}

#[test]
fn followers_see_all_appends_on_real_files() {
    for (mode, every) in
        [(LogMode::Buffered, 8), (LogMode::Buffered, 0), (LogMode::Direct, 0), (LogMode::Uncached, 0)]
    {
        let dir = disk_dir();
        let options = BinLog::options().max_segment_bytes(256 << 10).mode(mode).sync_every(every);
        run_appenders_and_followers(Arc::new(Threads::new()), options, &dir.path().join("binlog"), 4, 400);
    }
}

#[test]
fn a_waiting_follower_is_woken_by_an_append_and_by_the_end() {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    let mut follower = log.follow(log.end()).unwrap();
    assert_eq!(follower.next_timeout(Duration::from_millis(1)).unwrap(), None);
    let reader = thread::spawn(move || (follower.next().unwrap().unwrap().bytes, follower.next().is_none()));
    append(&log, &group(1, 1, 10)).unwrap();
    log.close().unwrap();
    assert_eq!(reader.join().unwrap(), (group(1, 1, 10)[0].clone(), true));
}

#[test]
fn a_waker_is_called_once_for_news_and_the_last_one_counts() {
    let disk = SimDisk::new();
    let log = options(&disk).sync_every(0).open(DIR).unwrap();
    let mut follower = log.follow(log.first()).unwrap();
    let (early, late) = (Arc::<WakeCount>::default(), Arc::<WakeCount>::default());
    let count = |woken: &Arc<WakeCount>| woken.0.load(Ordering::SeqCst);
    let mut poll = |woken: &Arc<WakeCount>| {
        let waker = Waker::from(Arc::clone(woken));
        follower
            .poll_next(&mut Context::from_waker(&waker))
            .map(|event| event.map(|event| event.unwrap().bytes))
    };
    assert!(poll(&early).is_pending() && poll(&late).is_pending());
    append(&log, &group(1, 2, 10)).unwrap();
    append(&log, &group(2, 1, 10)).unwrap();
    assert_eq!((count(&early), count(&late)), (0, 1));
    for record in group(1, 2, 10).into_iter().chain(group(2, 1, 10)) {
        assert_eq!(poll(&late), Poll::Ready(Some(record)));
    }
    assert!(poll(&late).is_pending());
    // A new segment alone is no news; a record in it is.
    log.rotate().unwrap();
    while poll(&late).is_ready() {}
    let before = count(&late);
    append(&log, &group(3, 1, 10)).unwrap();
    assert_eq!(count(&late), before + 1);
    assert_eq!(poll(&late), Poll::Ready(Some(group(3, 1, 10).remove(0))));
    assert!(poll(&late).is_pending());
    drop(log);
    assert_eq!(count(&late), before + 2);
    assert_eq!(poll(&late), Poll::Ready(None));
}

#[test]
fn a_durable_follower_waits_for_the_sync() {
    let disk = SimDisk::new();
    let log = options(&disk).sync_every(0).open(DIR).unwrap();
    let mut follower = log.follow_durable(log.first()).unwrap();
    let mut early = log.follow(log.first()).unwrap();
    append(&log, &group(1, 1, 10)).unwrap();
    assert_eq!(follower.try_next().unwrap(), None);
    assert_eq!(early.try_next().unwrap().unwrap().bytes, group(1, 1, 10)[0]);
    log.sync().unwrap();
    assert_eq!(follower.try_next().unwrap().unwrap().bytes, group(1, 1, 10)[0]);
    // A follower that begins past the durable end waits for it.
    append(&log, &group(2, 1, 10)).unwrap();
    let mut follower = log.follow_durable(log.end()).unwrap();
    append(&log, &group(3, 1, 10)).unwrap();
    assert_eq!(follower.try_next().unwrap(), None);
    log.rotate().unwrap();
    assert_eq!(follower.try_next().unwrap().unwrap().bytes, group(3, 1, 10)[0]);
}

#[test]
fn a_follower_keeps_its_segments_until_it_is_dropped() {
    let disk = SimDisk::new();
    let log = options(&disk).open(DIR).unwrap();
    let groups: Vec<_> = (0..12).map(|which| group(which, 1, 3000)).collect();
    for group in &groups {
        append(&log, group).unwrap();
    }
    let mut follower = log.follow(log.first()).unwrap();
    let last = Position { segment: 4, offset: 0 };
    assert!(log.purge_to(last, PurgeMode::UnlessFollowed).is_err());
    for group in &groups {
        assert_eq!(follower.try_next().unwrap().unwrap().bytes, group[0]);
    }
    // The follower has moved on to the last segment.
    assert_eq!(log.purge_to(last, PurgeMode::UnlessFollowed), Ok(3));
    log.rotate().unwrap();
    let next = log.end();
    assert!(log.purge_to(next, PurgeMode::UnlessFollowed).is_err());
    drop(follower);
    assert_eq!(log.purge_to(next, PurgeMode::UnlessFollowed), Ok(1));
    assert!(read_groups(&log, log.first()).unwrap().is_empty());
}

#[test]
fn records_larger_than_the_read_buffer_are_returned_whole() {
    let disk = SimDisk::new();
    for mode in [LogMode::Buffered, LogMode::Direct] {
        let log = options(&disk).max_segment_bytes(32 << 20).sync_every(0).mode(mode);
        let log = log.open(format!("/{mode}")).unwrap();
        let groups: Vec<_> = [10, 3 << 20, 100, (256 << 10) - 24, 256 << 10, 5 << 20]
            .map(|len| group(len as u64, 2, len))
            .into();
        for group in &groups {
            append(&log, group).unwrap();
        }
        assert!(read_groups(&log, log.first()).unwrap() == groups);
    }
}

/// A forced purge cuts followers off and then removes the segment, perhaps before a new follower
/// has opened it.
#[test]
fn a_follower_that_comes_during_a_forced_purge_gets_an_error() {
    let disk = SimDisk::new();
    let log = BinLog::options().max_segment_bytes(16 << 10).io(Arc::new(disk)).open(DIR).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let followed = log.follow(log.first()).and_then(|mut follower| {
                        while follower.try_next()?.is_some() {}
                        Ok(())
                    });
                    assert!(matches!(followed, Ok(()) | Err(Error::Purged { .. })), "{followed:?}");
                }
            });
        }
        for _ in 0..500 {
            log.append_group(&[b"one", b"two"]).unwrap();
            let end = log.rotate().unwrap();
            log.purge_to(end, PurgeMode::Forced).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
}
