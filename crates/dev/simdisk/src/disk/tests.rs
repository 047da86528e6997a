//! Virtual time, faults and holds: each run repeats exactly.

#![expect(unsafe_code, reason = "reads in the background name their memory by address")]

use std::io::IoSliceMut;
use std::ptr::NonNull;
use std::sync::{Mutex, mpsc};

use super::*;
use crate::content::pattern;
use crate::faults::Fault;
use pagekeeper_io::ReadTarget;

const MICROSECOND: Duration = Duration::from_micros(1);

/// Reads a batch of pages. Returns the results in the order of completion.
fn read_pages(disk: &SimDisk, file: &dyn IoFile, pages: &[u64]) -> Vec<(usize, Result<usize, Error>)> {
    let mut memory = vec![[0; 4096]; pages.len()];
    let mut reads: Vec<_> = pages
        .iter()
        .zip(&mut memory)
        .map(|(n, page)| BatchRead { file, offset: n * 4096, bufs: vec![IoSliceMut::new(page)] })
        .collect();
    let mut completed = Vec::new();
    disk.read_batch(&mut reads, &mut |index, result| completed.push((index, result)));
    completed
}

fn submit(
    disk: &SimDisk,
    file: &Arc<dyn IoFile>,
    page: u64,
    done: impl FnOnce(Result<usize, Error>) + Send + 'static,
) {
    let memory = vec![0_u8; 4096].leak();
    disk.submit(vec![OwnedRead {
        file: Arc::clone(file),
        offset: page * 4096,
        // SAFETY: leaked, and known to nobody else.
        targets: vec![unsafe { ReadTarget::new(NonNull::from(memory).cast(), 4096) }],
        done: Box::new(done),
    }]);
}

fn disk_with(builder: SimDiskBuilder, len: usize) -> (SimDisk, Arc<dyn IoFile>) {
    let disk = builder.build();
    disk.create("/file", vec![1; len]).unwrap();
    let file = disk.open("/file".as_ref(), Access::Buffered).unwrap();
    (disk, file)
}

#[test]
fn time_passes_by_latency_and_width() {
    for (width, reads, rounds) in [(1, 5, 5), (4, 5, 2), (4, 8, 2), (32, 32, 1), (32, 33, 2)] {
        let (disk, file) = disk_with(SimDisk::builder().latency(100 * MICROSECOND).width(width), 1 << 20);
        read_pages(&disk, &*file, &(0..reads).collect::<Vec<_>>());
        assert_eq!(disk.now(), 100 * MICROSECOND * rounds, "{reads} reads, {width} wide");
        let stats = disk.stats();
        assert_eq!((stats.reads, stats.requests, stats.bytes), (reads, reads, reads * 4096));
        assert_eq!(stats.peak_width, width.min(usize::try_from(reads).unwrap()));
        file.read_at(0, &mut [0; 4096]).unwrap();
        assert_eq!(disk.now(), 100 * MICROSECOND * (rounds + 1));
    }
}

#[test]
fn completions_come_in_the_order_of_virtual_time() {
    let order = |seed| {
        let builder = SimDisk::builder().latency(MICROSECOND).jitter(100 * MICROSECOND).seed(seed);
        let (disk, file) = disk_with(builder, 1 << 20);
        let mut last = Duration::ZERO;
        let mut memory = vec![[0; 4096]; 32];
        let mut reads: Vec<_> = (0..)
            .zip(&mut memory)
            .map(|(n, page)| BatchRead { file: &*file, offset: n * 4096, bufs: vec![IoSliceMut::new(page)] })
            .collect();
        let mut order = Vec::new();
        disk.read_batch(&mut reads, &mut |index, _| {
            assert!(disk.now() >= last, "time ran backwards");
            last = disk.now();
            order.push((index, last));
        });
        order
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert!(!order(1).is_sorted_by_key(|(index, _)| *index), "jitter changes no order");
}

#[test]
fn faults_repeat_from_their_seed() {
    let run = |seed| {
        let faults = RandomFaults { short_per_mille: 200, interrupted_per_mille: 100, failing_per_mille: 50 };
        let (disk, file) = disk_with(SimDisk::builder().random_faults(faults).seed(seed), 1 << 20);
        let pages: Vec<_> = (0..256).collect();
        let results = read_pages(&disk, &*file, &pages);
        (results, disk.stats(), disk.now())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    let (results, stats, _) = run(5);
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    assert!((1..100).contains(&failed), "{failed} of 256 failed");
    assert!(results.iter().all(|(_, result)| *result == Ok(4096) || result.is_err()));
    assert!(stats.requests > stats.reads);
}

#[test]
fn the_order_of_reads_does_not_change_their_faults() {
    let run = |pages: &[u64]| {
        let faults = RandomFaults { failing_per_mille: 500, ..RandomFaults::default() };
        let (disk, file) = disk_with(SimDisk::builder().random_faults(faults).seed(3), 1 << 20);
        let mut results: Vec<_> = read_pages(&disk, &*file, pages)
            .into_iter()
            .map(|(index, result)| (pages[index], result))
            .collect();
        results.sort_by_key(|(page, _)| *page);
        results
    };
    let pages: Vec<_> = (0..200).collect();
    let backwards: Vec<_> = pages.iter().rev().copied().collect();
    assert_eq!(run(&pages), run(&backwards));
}

#[test]
fn planned_faults_strike_where_and_as_often_as_planned() {
    let (disk, file) = disk_with(SimDisk::builder(), 1 << 20);
    let mut page = [0; 4096];
    disk.inject("/file", 8192..8193, Fault::EIO, Times::Once).unwrap();
    assert_eq!(file.read_at(4096, &mut page), Ok(4096));
    let failed = Err(Error::Read { path: "/file".into(), range: 8192..12288, errno: libc::EIO });
    assert_eq!(file.read_at(8192, &mut page), failed);
    assert_eq!(file.read_at(8192, &mut page), Ok(4096));
    disk.inject("/file", 0..u64::MAX, Fault::EIO, Times::Always).unwrap();
    for _ in 0..3 {
        assert_eq!(file.read_at(8192, &mut page), failed);
    }
    disk.heal("/file").unwrap();
    // Retried; 96 raw reads of 43 bytes.
    disk.inject("/file", 0..u64::MAX, Fault::Short(43), Times::Always).unwrap();
    let before = disk.stats().requests;
    assert_eq!(file.read_at(8192, &mut page), Ok(4096));
    assert_eq!(disk.stats().requests - before, 4096_u64.div_ceil(43));
    disk.heal("/file").unwrap();
    disk.inject("/file", 0..u64::MAX, Fault::INTERRUPTED, Times::Once).unwrap();
    assert_eq!(file.read_at(8192, &mut page), Ok(4096));
    // A fault that never ends makes the read fail in the end.
    disk.inject("/file", 0..u64::MAX, Fault::INTERRUPTED, Times::Always).unwrap();
    assert_eq!(file.read_at(0, &mut page).unwrap_err().errno(), Some(libc::EINTR));
    disk.heal("/file").unwrap();
    disk.inject("/file", 0..u64::MAX, Fault::Cut(8200), Times::Once).unwrap();
    assert_eq!(file.read_at(8192, &mut page), Ok(8));
    assert_eq!(file.stat().unwrap().size, 8200);
}

#[test]
fn short_direct_reads_are_continued() {
    let disk = SimDisk::new();
    disk.create_patterned("/file", 100_000, 9).unwrap();
    let file = disk.open("/file".as_ref(), Access::Direct).unwrap();
    // Memory that is aligned to 512 bytes, as the disk requires.
    let mut memory = vec![0; (1 << 17) + 512];
    let skip = memory.as_ptr().align_offset(512);
    let memory = &mut memory[skip..skip + (1 << 17)];
    disk.inject("/file", 0..u64::MAX, Fault::Short(5000), Times::Always).unwrap();
    assert_eq!(file.read_at(0, memory), Ok(100_000));
    let mut expected = vec![0; 100_000];
    pattern(9, 0, &mut expected);
    assert_eq!(memory[..100_000], expected);
    let error = file.read_at(100, &mut memory[..512]).unwrap_err();
    assert_eq!(error, Error::Unaligned { path: "/file".into(), range: 100..612 });
}

#[test]
fn a_file_lives_as_long_as_it_is_open() {
    let (disk, old) = disk_with(SimDisk::builder(), 4096);
    disk.replace("/file", [2; 100]);
    let new = disk.open("/file".as_ref(), Access::Buffered).unwrap();
    let mut page = [0; 4096];
    assert_eq!((old.read_at(0, &mut page), page[0]), (Ok(4096), 1));
    assert_eq!((new.read_at(0, &mut page), page[0]), (Ok(100), 2));
    let (old_stat, new_stat) = (old.stat().unwrap(), new.stat().unwrap());
    assert_eq!(old_stat.device, new_stat.device);
    assert_ne!(old_stat.inode, new_stat.inode);
    disk.remove("/file").unwrap();
    assert_eq!(new.read_at(0, &mut page), Ok(100));
    assert_eq!(disk.open("/file".as_ref(), Access::Buffered).err().unwrap().errno(), Some(libc::ENOENT));
    assert_eq!(disk.remove("/file").unwrap_err().errno(), Some(libc::ENOENT));
}

#[test]
fn each_change_shows_in_the_times() {
    let (disk, file) = disk_with(SimDisk::builder(), 4096);
    let mut seen = vec![file.stat().unwrap().changed];
    for change in [
        |disk: &SimDisk| disk.truncate("/file", 100),
        |disk: &SimDisk| disk.grow("/file", 200),
        |disk: &SimDisk| disk.remove("/file"),
    ] {
        change(&disk).unwrap();
        seen.push(file.stat().unwrap().changed);
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert_eq!(file.stat().unwrap().modified, seen[2], "losing its name is no change of its content");
    let mut page = [9; 4096];
    assert_eq!(file.read_at(0, &mut page), Ok(200));
    assert_eq!((page[99], page[100]), (1, 0));
}

#[test]
fn direct_access_can_be_refused() {
    let disk = SimDisk::builder().without_direct().build();
    disk.create("/file", [1; 10]).unwrap();
    assert!(matches!(disk.open("/file".as_ref(), Access::Direct), Err(Error::NoDirect { .. })));
    assert!(disk.open("/file".as_ref(), Access::Buffered).is_ok());
    assert_eq!(disk.create("/file", []).unwrap_err().errno(), Some(libc::EEXIST));
}

#[test]
fn a_test_chooses_the_order_of_completions_by_steps() {
    let run = || {
        let builder = SimDisk::builder().by_steps().jitter(Duration::from_millis(1)).width(3).seed(8);
        let (disk, file) = disk_with(builder, 1 << 20);
        let order = Arc::new(Mutex::new(Vec::new()));
        for page in 0..20 {
            let (order, clock) = (Arc::clone(&order), disk.clone());
            submit(&disk, &file, page, move |_| order.lock().unwrap().push((page, clock.now())));
        }
        assert!(order.lock().unwrap().is_empty(), "nothing is done before a step");
        let mut steps = 0;
        while disk.step() {
            steps += 1;
            assert_eq!(order.lock().unwrap().len(), steps);
        }
        assert_eq!(disk.stats().peak_width, 3);
        Arc::into_inner(order).unwrap().into_inner().unwrap()
    };
    let order = run();
    assert_eq!(order.len(), 20);
    assert!(order.is_sorted_by_key(|(_, time)| *time));
    assert_eq!(order, run());
}

#[test]
fn stepwise_submissions_finish_when_the_disk_is_dropped() {
    let (disk, file) = disk_with(SimDisk::builder().by_steps(), 8192);
    let (sender, ended) = mpsc::channel();
    let hold = disk.hold("/file", 0..1).unwrap();
    for page in 0..2 {
        let sender = sender.clone();
        submit(&disk, &file, page, move |result| sender.send(result).unwrap());
    }
    assert!(disk.step());
    assert!(!disk.step(), "the other one is held");
    assert_eq!(hold.held(), 1);
    drop((disk, sender));
    assert_eq!(ended.iter().collect::<Vec<_>>(), [Ok(4096), Ok(4096)]);
}

#[test]
fn a_hold_stops_only_the_operations_it_covers() {
    let (disk, file) = disk_with(SimDisk::builder(), 1 << 20);
    let hold = disk.hold("/file", 4096..8192).unwrap();
    let (sender, ended) = mpsc::channel();
    for page in 0..3 {
        let sender = sender.clone();
        submit(&disk, &file, page, move |result| sender.send((page, result)).unwrap());
    }
    let mut others = [ended.recv().unwrap().0, ended.recv().unwrap().0];
    others.sort_unstable();
    assert_eq!(others, [0, 2]);
    assert_eq!((hold.held(), disk.stats().in_flight), (1, 1));
    // A blocking read and a batch wait as well. A file that was truncated meanwhile is read in its
    // new state.
    std::thread::scope(|scope| {
        let alone = scope.spawn(|| file.read_at(5000, &mut [0; 100]));
        let batch = scope.spawn(|| read_pages(&disk, &*file, &[1, 7, 0]));
        hold.wait_for(3);
        assert!(ended.try_recv().is_err());
        disk.truncate("/file", 5050).unwrap();
        drop(hold);
        assert_eq!(alone.join().unwrap(), Ok(50));
        let mut batch = batch.join().unwrap();
        batch.sort_by_key(|(index, _)| *index);
        assert_eq!(batch[0], (0, Ok(5050 - 4096)));
        assert_eq!(batch[2], (2, Ok(4096)));
    });
    assert_eq!(ended.recv().unwrap(), (1, Ok(5050 - 4096)));
    assert_eq!(disk.stats().in_flight, 0);
}

#[test]
fn another_disks_file_is_foreign() {
    let (_one, file) = disk_with(SimDisk::builder(), 4096);
    let (other, _) = disk_with(SimDisk::builder(), 4096);
    assert_eq!(read_pages(&other, &*file, &[0]), [(0, Err(Error::Foreign { path: "/file".into() }))]);
    assert!(matches!(
        other.adopt(File::open("/dev/null").unwrap(), Access::Buffered),
        Err(Error::Foreign { .. })
    ));
}
