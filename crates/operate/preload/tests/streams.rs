//! Tests streams and bulk output in this process, calling the rules as its hooks would. Measures
//! the page cache itself, page by page.

#![allow(
    unsafe_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::naive_bytecount,
    reason = "sets the library up; small numbers"
)]

mod support;

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pagekeeper_preload::rules::{self, FILES, ReadMode, Slot};
use pagekeeper_preload::settings::Plan;
use pagekeeper_preload::table::FileRole;
use pagekeeper_preload::{process, sys};
use pagekeeper_testing::{disk_dir, skip};

const MIB: u64 = 1 << 20;

/// Creates a synced file without resident pages.
fn cold(dir: &Path, name: &str, size: u64) -> PathBuf {
    let path = dir.join(name);
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![0x5a; size as usize]).unwrap();
    file.sync_all().unwrap();
    drop_all(&file);
    path
}

fn drop_all(file: &File) {
    for _ in 0..100 {
        sys::drop_pages(file.as_raw_fd(), 0..u64::MAX).unwrap();
        if sys::cachestat(file.as_raw_fd(), 0..u64::MAX).unwrap().cached == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("pages stay");
}

/// Returns a 1 for each resident page.
fn pages(path: &Path) -> Vec<u8> {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut pages = vec![0; size.div_ceil(sys::page_size()) as usize];
    if size > 0 {
        sys::mincore(file.as_raw_fd(), &(0..size), &mut pages).unwrap();
    }
    pages.into_iter().map(|page| page & 1).collect()
}

fn opened(file: &File, flags: i32) -> &'static Slot {
    rules::opened(file.as_raw_fd(), None, flags);
    FILES.slot_of(file.as_raw_fd()).unwrap()
}

fn closed(slot: &Slot, file: File) {
    rules::before_close(slot, file.as_raw_fd());
    FILES.forget(file.as_raw_fd());
    drop(file);
}

/// Reads at the file offset as a program does, and returns the bytes read.
fn read(slot: &Slot, file: &mut File, length: usize) -> usize {
    let fd = file.as_raw_fd();
    rules::before_read(slot, fd, None, length as u64);
    let done = file.read(&mut vec![0; length]).unwrap();
    rules::after_read(slot, fd, None, done as isize);
    done
}

fn write_at(slot: &Slot, file: &File, at: u64, length: u64) {
    file.write_all_at(&vec![1; length as usize], at).unwrap();
    rules::after_write(slot, file.as_raw_fd(), Some(at), length as isize);
}

fn reads_leave_the_cache_as_it_was(dir: &Path) {
    for (name, size, length) in
        [("large", 40 * MIB + 777, 128 << 10), ("odd", 7 * MIB, 10_240), ("small", 5000, 4096)]
    {
        for is_warm in [false, true] {
            let path = cold(dir, name, size);
            let mut file = File::open(&path).unwrap();
            if is_warm {
                // Scattered pages, without read-ahead, and a contiguous range.
                // SAFETY: no pointers.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
                for at in (0..size).step_by(700_000) {
                    file.read_at(&mut [0; 1], at).unwrap();
                }
                file.read_at(&mut vec![0; 3 << 20], 3 * MIB).unwrap();
                // SAFETY: no pointers.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
            }
            let before = pages(&path);
            let slot = opened(&file, libc::O_RDONLY);
            assert_eq!(slot.role(), Some(FileRole::Stream));
            assert!(!rules::leaves_out(slot, libc::POSIX_FADV_DONTNEED), "nothing was read yet");
            let mut sum = 0;
            loop {
                let done = read(slot, &mut file, length) as u64;
                sum += done;
                if done == 0 {
                    break;
                }
                assert!(rules::leaves_out(slot, libc::POSIX_FADV_DONTNEED));
                // Few pages behind the reader are resident that were not before.
                if sum.is_multiple_of(16 * MIB) {
                    let of_all = pages(&path);
                    let behind = ..((sum - 8 * MIB) / sys::page_size()) as usize;
                    assert!(of_all[behind] == before[behind], "{name} {is_warm}: pages stay behind");
                }
            }
            assert_eq!(sum, size);
            closed(slot, file);
            assert!(pages(&path) == before, "{name} {is_warm}: the cache is not as it was");
        }
    }
}

/// Reads a cold file at `places`, with the given lengths at each, closes it, and returns how many
/// of its pages are resident. Repeats if many are: without a helper, what a busy disk still reads
/// ahead then stays.
fn left_of(path: &Path, places: &[(u64, &[usize])]) -> usize {
    let read_once = || {
        drop_all(&File::open(path).unwrap());
        let mut file = File::open(path).unwrap();
        let slot = opened(&file, libc::O_RDONLY);
        for &(at, lengths) in places {
            file.seek(SeekFrom::Start(at)).unwrap();
            for &length in lengths {
                assert_eq!(read(slot, &mut file, length), length);
            }
        }
        closed(slot, file);
        pages(path).iter().filter(|&&page| page == 1).count()
    };
    (0..100).map(|_| read_once()).find(|&left| left <= 3).unwrap_or_else(read_once)
}

fn a_part_that_was_read_is_released(dir: &Path) {
    let path = cold(dir, "part", 64 * MIB);
    // Several places, and pages that are read ahead and left behind.
    let some = [100_000; 40];
    let places =
        [(0, &some[..30]), (50 * MIB, &some[..20]), (20 * MIB, &some[..3]), (20 * MIB + 5, &some[..])];
    assert_eq!(left_of(&path, &places), 0);
    // Few bytes by small reads: at the beginning, and at further places.
    let small: &[usize] = &[4096, 80_000];
    let places = [(0, small), (50 * MIB, small), (30 * MIB, small), (10 * MIB, &small[..1])];
    // The file offset is not queried at each small read: the first one at a new place is not
    // sampled.
    let left = left_of(&path, &places);
    assert!(left <= 3, "{left} pages stay");
    assert_eq!(left_of(&path, &[(0, &small[..1])]), 0);
}

fn pages_of_unknown_residency_are_left_or_read_uncached(dir: &Path) {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can read as another user");
    }
    let path = cold(dir, "strange", 4 * MIB);
    let file = File::open(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: no pointers; for this thread alone, since it bypasses the C library's
            // wrapper.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
            let fd = file.as_raw_fd();
            let slot = opened(&file, libc::O_RDONLY);
            let mode = rules::before_read(slot, fd, Some(0), 65536);
            let can = sys::reads_uncached(fd, 4 * MIB);
            assert_eq!(mode, if can { ReadMode::Uncached } else { ReadMode::Plain });
            rules::uncached_refused(slot);
            assert_eq!(rules::before_read(slot, fd, Some(65536), 65536), ReadMode::Plain);
            file.read_at(&mut vec![0; 65536], 0).unwrap();
            rules::after_read(slot, fd, Some(0), 65536);
            rules::before_close(slot, fd);
            FILES.forget(fd);
        });
    });
    assert!(pages(&path)[..16].iter().all(|&page| page == 1), "it can't be known whose it is");
}

fn output_is_released_once_written(dir: &Path) {
    let path = dir.join("output");
    let file = File::create(&path).unwrap();
    let slot = opened(&file, libc::O_WRONLY);
    for nth in 0..48 {
        write_at(slot, &file, nth * MIB, MIB);
        let unwritten = sys::cachestat(file.as_raw_fd(), 0..u64::MAX).unwrap();
        let bytes = (unwritten.dirty + unwritten.writeback) * sys::page_size();
        assert!(bytes <= 10 * MIB, "{bytes} unwritten after {nth} MiB");
        assert!(unwritten.cached * sys::page_size() <= 14 * MIB, "{} pages stay", unwritten.cached);
    }
    // A header, written last.
    write_at(slot, &file, 0, 4096);
    closed(slot, file);
    let left = pages(&path).iter().filter(|&&page| page == 1).count();
    assert!(left <= 1, "{left} pages stay");

    // Synced output is dropped without a wait, and small output, too.
    for size in [3000, 3 * MIB + 5] {
        let file = File::create(&path).unwrap();
        let slot = opened(&file, libc::O_WRONLY);
        write_at(slot, &file, 0, size);
        file.sync_all().unwrap();
        rules::after_sync(slot, file.as_raw_fd(), 0);
        closed(slot, file);
        assert!(pages(&path).iter().all(|&page| page == 0), "pages of {size} bytes stay");
    }
}

/// Checks that a child of fork that ends leaves its parent's output to the parent.
fn a_child_finishes_nothing_of_its_parent(dir: &Path) {
    let path = dir.join("parent");
    let file = File::create(&path).unwrap();
    let slot = opened(&file, libc::O_WRONLY);
    write_at(slot, &file, 0, 4 * MIB);
    let before = pages(&path);
    // SAFETY: the child makes system calls only, and does not run the rest of the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        process::entered_child();
        rules::after_fork();
        rules::before_exit();
        rules::before_close(slot, file.as_raw_fd());
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: `status` lives for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(before.contains(&1) && pages(&path) == before);
    closed(slot, file);
    assert!(!pages(&path).contains(&1));
}

// One test, since a process takes its settings once.
#[test]
fn streams_keep_out_of_the_page_cache() {
    let dir = disk_dir();
    let probe = File::create(dir.path().join("probe")).unwrap();
    if sys::cachestat(probe.as_raw_fd(), 0..u64::MAX).is_err() {
        return skip("cachestat isn't there");
    }
    let plan = Plan::decode(b"as stream\nbudget 8388608", b"streams").unwrap();
    // SAFETY: the only test of this process, which has not called the library yet.
    unsafe { process::set_up(&plan) };

    reads_leave_the_cache_as_it_was(dir.path());
    a_part_that_was_read_is_released(dir.path());
    output_is_released_once_written(dir.path());
    a_child_finishes_nothing_of_its_parent(dir.path());
    pages_of_unknown_residency_are_left_or_read_uncached(dir.path());
}
