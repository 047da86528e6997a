//! Tests files that are read and written by unhooked calls: which pages stay, on a real disk, while
//! the helper of this process watches them.

#![allow(unsafe_code, reason = "sets the library up")]

mod support;

use std::ffi::{CStr, c_void};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagekeeper_preload::counters::Count;
use pagekeeper_preload::helper::{self, HelperRequest, closings};
use pagekeeper_preload::residency::STALE_NS;
use pagekeeper_preload::settings::Plan;
use pagekeeper_preload::{process, sys};
use pagekeeper_testing::skip;
use support::comes;

const MIB: u64 = 1 << 20;

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: `name` ends in a NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Waits until the helper has done something.
fn until(what: &str, is_so: impl Fn() -> bool) {
    assert!(comes(is_so), "{what}");
}

fn cached(file: &File, range: std::ops::Range<u64>) -> u64 {
    sys::cachestat(file.as_raw_fd(), range).unwrap().cached
}

/// Returns the directory of the helper's thread in /proc.
fn helpers_task() -> PathBuf {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_it = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == "pagekeeper")
    };
    tasks.filter(is_it).last().unwrap()
}

/// Whether the helper has the file in its own descriptor table.
fn is_in_hand(path: &Path) -> bool {
    let path = path.canonicalize().unwrap();
    let descriptors = std::fs::read_dir(helpers_task().join("fd")).unwrap();
    descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).any(|name| name == path)
}

/// Has the helper watch a file that it does not have, and waits until it does so: then it sleeps
/// until the next check.
fn watch(file: &File, path: &Path, flags: i32) {
    until("watches of it before have ended", || !is_in_hand(path));
    let request =
        HelperRequest::Watch { flags, count: Count::StreamReleased, used: Count::StreamRead, kept: None };
    assert!(helper::send(file.as_raw_fd(), &request));
    until("the watch begins", || {
        let stat = |task: PathBuf| std::fs::read_to_string(task.join("stat")).unwrap();
        is_in_hand(path) && stat(helpers_task()).contains(") S ")
    });
}

/// Drops the pages of a written file until none is left: the kernel may use one at any moment.
fn make_cold(file: &File) {
    until("it is cold", || {
        sys::drop_pages(file.as_raw_fd(), 0..u64::MAX).unwrap();
        cached(file, 0..u64::MAX) == 0
    });
}

#[test]
fn a_file_whose_calls_are_not_seen_is_watched() {
    // SAFETY: the only calls in this process, before any other into the library; the functions are
    // the C library's.
    unsafe {
        process::set_up(&Plan::NONE);
        helper::set_up(find);
    }
    // On a disk: tmpfs keeps pages that are dropped.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = File::create(directory.path().join("a")).unwrap();
    if sys::cachestat(file.as_raw_fd(), 0..1).is_err() {
        skip("no cachestat(2) here");
        return;
    }
    let path = directory.path().join("written");
    let mut file = File::create(&path).unwrap();
    assert!(helper::prepare());
    watch(&file, &path, libc::O_WRONLY);
    file.write_all(&vec![7; 16 << 20]).unwrap();
    until("pages behind the writer go", || cached(&file, 0..12 * MIB) == 0);
    assert!(cached(&file, 14 * MIB..16 * MIB) > 0, "the writer is here");
    // Keep a descriptor with another number: the watched number must name nothing.
    let writer = std::mem::replace(&mut file, File::open(&path).unwrap());
    drop(writer);
    until("all goes once it is closed", || cached(&file, 0..u64::MAX) == 0);

    // A reader: pages that were resident at its start stay.
    file.read_exact_at(&mut vec![0; 1 << 20], 8 * MIB).unwrap();
    let there = cached(&file, 8 * MIB..10 * MIB);
    let mut reader = File::open(&path).unwrap();
    watch(&reader, &path, libc::O_RDONLY);
    reader.seek(SeekFrom::Start(0)).unwrap();
    reader.read_to_end(&mut Vec::new()).unwrap();
    until("pages it read go", || cached(&file, 0..8 * MIB) == 0);
    assert!(cached(&file, 8 * MIB..10 * MIB) >= there);
    drop(reader);
    until("all of it", || cached(&file, 12 * MIB..u64::MAX) == 0);
    assert!(cached(&file, 8 * MIB..10 * MIB) >= there);

    other_readers_keep_pages_that_no_reader_passed(directory.path());
    all_but_the_pages_of_others_goes(directory.path());
    more_files_than_watches(directory.path());
}

/// Enough time for the helper to look at a watched file, even on a busy machine: nothing shows that
/// it has.
const WATCH_START_TIME: Duration = Duration::from_millis(600);

/// Reads all of it, as another program does.
fn warm(path: &Path) -> u64 {
    std::io::copy(&mut File::open(path).unwrap(), &mut std::io::sink()).unwrap()
}

/// Waits until nobody watches the file any more: all earlier requests are done.
fn settle() {
    helper::drain();
}

/// Checks that pages stay that another program reads after the watch has begun on a file without
/// pages.
fn other_readers_keep_pages_that_no_reader_passed(directory: &Path) {
    let path = directory.join("read");
    std::fs::write(&path, vec![7; 64 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    for (flags, read) in [(libc::O_RDONLY, 4096), (libc::O_RDWR, 4096), (libc::O_RDONLY, 10 << 20)] {
        file.sync_all().unwrap();
        make_cold(&file);
        let mut user = OpenOptions::new().read(true).write(flags == libc::O_RDWR).open(&path).unwrap();
        watch(&user, &path, flags);
        user.read_exact(&mut vec![0; read]).unwrap();
        std::thread::sleep(WATCH_START_TIME);
        warm(&path);
        let passed = if flags == libc::O_RDWR { 0 } else { read as u64 };
        // Longer than the stream's read-ahead counts as its own.
        std::thread::sleep(Duration::from_nanos(STALE_NS + 500_000_000));
        drop(user);
        settle();
        let gone = (64 * MIB).saturating_sub(cached(&file, 0..u64::MAX) * sys::page_size());
        assert!(gone <= passed + 64 * 1024, "{flags} {read}: {gone} bytes went");
    }
    // Written pages go, even within a file that was laid out before, and no others.
    make_cold(&file);
    let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    watch(&writer, &path, libc::O_RDWR);
    writer.write_all_at(&vec![8; 8 << 20], 20 * MIB).unwrap();
    std::thread::sleep(WATCH_START_TIME);
    warm(&path);
    drop(writer);
    settle();
    // A slow disk has some left to write after the wait for the helper has ended.
    until("written pages go", || cached(&file, 20 * MIB..28 * MIB) == 0);
    assert_eq!(cached(&file, 0..20 * MIB) * sys::page_size(), 20 * MIB);
    assert_eq!(cached(&file, 28 * MIB..64 * MIB) * sys::page_size(), 36 * MIB);
}

/// Checks that other users' scattered pages of a file stay, and all others that the reader brings
/// in are dropped.
fn all_but_the_pages_of_others_goes(directory: &Path) {
    const FILE_BYTES: u64 = 192 * MIB;
    let path = directory.join("hot");
    std::fs::write(&path, vec![7; usize::try_from(FILE_BYTES).unwrap()]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    make_cold(&file);
    // SAFETY: advice on a descriptor that is open.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) }, 0);
    for window in (0..FILE_BYTES).step_by(2 << 20) {
        file.read_exact_at(&mut [0; 100], window + 300 * 4096).unwrap();
    }
    let there = cached(&file, 0..u64::MAX);
    assert!(there * sys::page_size() < FILE_BYTES / 8, "{there} pages");
    let mut user = File::open(&path).unwrap();
    watch(&user, &path, libc::O_RDONLY);
    user.read_to_end(&mut Vec::new()).unwrap();
    until("all but what was there goes", || cached(&file, 0..u64::MAX) <= there);
    drop(user);
    settle();
    for window in (0..FILE_BYTES).step_by(2 << 20) {
        let page = window + 300 * 4096;
        assert!(cached(&file, page..page + 1) > 0, "the page at {page} was there before");
    }
}

/// Checks that files that are closed one after another make room for the next at once, and that
/// their offsets at the close are known.
fn more_files_than_watches(directory: &Path) {
    let paths: Vec<_> = (0..40).map(|nth| directory.join(format!("small-{nth}"))).collect();
    for path in &paths {
        std::fs::write(path, vec![7; 1 << 20]).unwrap();
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        make_cold(&file);
    }
    for path in &paths {
        let mut user = File::open(path).unwrap();
        // The helper has it by then; otherwise its pages would stay.
        watch(&user, path, libc::O_RDONLY);
        user.read_to_end(&mut Vec::new()).unwrap();
        closings::closing(user.as_raw_fd());
    }
    settle();
    let left = || paths.iter().filter(|path| cached(&File::open(path).unwrap(), 0..u64::MAX) > 0).count();
    until("4 of 40 files stay at the most", || left() <= 4);
}
