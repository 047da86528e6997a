//! Tests the rules for logs and data files in direct I/O, called as hooks call them, in this
//! process and on a real disk: which pages stay.

#![allow(
    unsafe_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "sets the library up; small numbers"
)]

mod support;

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagekeeper_preload::counters::{Count, Record};
use pagekeeper_preload::helper;
use pagekeeper_preload::rules::{FILES, Slot};
use pagekeeper_preload::settings::Plan;
use pagekeeper_preload::{process, rules, sys};
use pagekeeper_testing::skip;
use support::comes;

const MIB: u64 = 1 << 20;
const TEXT: &[u8] = b"as auto\nbudget 8388608\nprofile x\nprocess test\n\
    file log release-behind-followers:1:0 detect log.{n}\nfile log release-behind-writer:3145728 never slack\nfile data direct-only *.ibd\nfile data direct-and-buffered *.bin\nfile bulk release *.out\n";

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: `name` ends in a NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

static COUNTS: Record = Record::EMPTY;

/// Sets up the process, for one test at a time, since they share the helper. Returns a directory on
/// a disk, since tmpfs keeps pages that are dropped; `None` if residency cannot be seen.
fn set_up() -> Option<(tempfile::TempDir, MutexGuard<'static, bool>)> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        let (sender, receiver) = std::sync::mpsc::channel();
        // In a thread that stays: the thread that sets the library up counts as the process's
        // first, and ends the helper when it leaves.
        std::thread::spawn(move || {
            // SAFETY: the only calls in this process, before any other into the library; the
            // functions are the C library's.
            unsafe {
                process::set_up(&Plan::decode(TEXT, b"test").unwrap());
                helper::set_up(find);
            }
            sender.send(()).unwrap();
            loop {
                std::thread::park();
            }
        });
        receiver.recv().unwrap();
        process::count_in(&COUNTS);
        *done = true;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = File::create(directory.path().join("a")).unwrap();
    if sys::cachestat(file.as_raw_fd(), 0..1).is_err() {
        skip("no cachestat(2) here");
        return None;
    }
    Some((directory, done))
}

/// An open file of the program, followed as its hooks do.
struct Followed {
    file: File,
    slot: &'static Slot,
}

impl Followed {
    fn open(path: &Path, flags: c_int) -> Self {
        let access = flags & libc::O_ACCMODE;
        let file = File::options()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .custom_flags(flags & !libc::O_ACCMODE)
            .open(path)
            .unwrap();
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        rules::opened(file.as_raw_fd(), Some(&name), flags);
        let slot = FILES.slot_of(file.as_raw_fd()).unwrap();
        Self { file, slot }
    }

    fn append(&mut self, bytes: u64) {
        self.file.write_all(&vec![7; usize::try_from(bytes).unwrap()]).unwrap();
        rules::after_write(self.slot, self.file.as_raw_fd(), None, bytes as isize);
    }

    fn sync(&self) {
        self.file.sync_data().unwrap();
        rules::after_sync(self.slot, self.file.as_raw_fd(), 0);
    }

    fn read(&mut self, bytes: u64) {
        self.file.read_exact(&mut vec![0; usize::try_from(bytes).unwrap()]).unwrap();
        rules::after_read(self.slot, self.file.as_raw_fd(), None, bytes as isize);
    }

    fn close(self) {
        let fd = self.file.as_raw_fd();
        rules::before_close(self.slot, fd);
        FILES.forget(fd);
    }
}

/// Has the helper finish its work, and asserts which windows of 1 MiB are resident: `#` wholly, `+`
/// in part, `-` not at all.
#[track_caller]
fn assert_resident(path: &Path, expected: &str, why: &str) {
    helper::drain();
    // The wait ends after two seconds, and a slow disk takes longer.
    comes(|| resident(path) == expected);
    assert_eq!(resident(path), expected, "{why}");
}

/// Returns a sign for each window of 1 MiB.
fn resident(path: &Path) -> String {
    let file = File::open(path).unwrap();
    let windows = file.metadata().unwrap().len().div_ceil(MIB);
    let page = sys::page_size();
    let of = |at: u64| sys::cachestat(file.as_raw_fd(), at * MIB..(at + 1) * MIB).unwrap().cached * page;
    let sign = |bytes| {
        if bytes == 0 {
            '-'
        } else if bytes >= MIB {
            '#'
        } else {
            '+'
        }
    };
    (0..windows).map(|at| sign(of(at))).collect()
}

const NEW: c_int = libc::O_WRONLY | libc::O_CREAT;

#[test]
fn a_log_goes_behind_its_flush_and_whole_as_it_is_closed() {
    let Some((directory, _alone)) = set_up() else { return };
    let path = directory.path().join("log.1");
    let mut log = Followed::open(&path, NEW);
    for _ in 0..70 {
        log.append(104_858);
    }
    assert_resident(&path, "#######+", "nothing was synced");
    log.sync();
    assert_resident(&path, "------#+", "");
    log.append(2 * MIB);
    // A failed sync.
    rules::after_sync(log.slot, log.file.as_raw_fd(), -1);
    assert_resident(&path, "------###+", "");
    log.close();
    assert_resident(&path, "----------", "");

    let path = directory.path().join("slack");
    let mut log = Followed::open(&path, NEW);
    log.append(9 * MIB);
    log.sync();
    assert_resident(&path, "------###", "");

    // Each write is synced.
    let path = directory.path().join("log.1000");
    let mut log = Followed::open(&path, NEW | libc::O_DSYNC);
    log.append(5 * MIB);
    assert_resident(&path, "----#", "");
}

#[test]
fn a_log_that_nobody_syncs_is_written_behind_its_writer() {
    let Some((directory, _alone)) = set_up() else { return };
    let path = directory.path().join("log.5000");
    let mut log = Followed::open(&path, NEW);
    for _ in 0..13 {
        log.append(MIB);
    }
    assert_resident(&path, "----#########", "8 MiB trail");
}

#[test]
fn near_readers_keep_the_pages_they_have_yet_to_read() {
    let Some((directory, _alone)) = set_up() else { return };
    let file = |number: u32| -> PathBuf { directory.path().join(format!("log.{number}")) };
    let mut log = Followed::open(&file(11), NEW);
    log.append(8 * MIB);
    let mut reader = Followed::open(&file(11), libc::O_RDONLY);
    reader.read(5 * MIB);
    log.sync();
    assert_resident(&file(11), "----####", "");
    log.close();
    assert_resident(&file(11), "----####", "the reader is there");

    let mut log = Followed::open(&file(12), NEW);
    log.append(8 * MIB);
    log.sync();
    assert_resident(&file(12), "########", "the reader will come there");
    reader.read(3 * MIB);
    let mut next = Followed::open(&file(12), libc::O_RDONLY);
    reader.close();
    assert_resident(&file(11), "--------", "");
    next.read(3 * MIB);
    log.sync();
    assert_resident(&file(12), "--######", "");
    log.close();

    // Two files behind is not near.
    let mut log = Followed::open(&file(14), NEW);
    log.append(8 * MIB);
    log.sync();
    log.close();
    assert_resident(&file(14), "--------", "");
    next.close();
    assert_resident(&file(12), "--------", "");
}

#[test]
fn a_recycled_log_stays_once_parts_of_its_pages_are_overwritten() {
    let Some((directory, _alone)) = set_up() else { return };
    let path = directory.path().join("log.21");
    let fill = |step: u64, after: &str| {
        let kept = COUNTS.get(Count::LogsKept);
        let mut log = Followed::open(&path, NEW);
        for _ in 0..5 * MIB / step {
            log.append(step);
        }
        log.sync();
        assert_resident(&path, after, &step.to_string());
        log.close();
        helper::drain();
        COUNTS.get(Count::LogsKept) - kept
    };
    assert_eq!(fill(65536, "----#"), 0, "it is new");
    assert_eq!(fill(65536, "----#"), 0, "whole pages");
    File::open(&path).unwrap().read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(fill(65536 + 512, "#####"), 1);
    assert_eq!(fill(65536, "#####"), 1, "known from before");
}

#[test]
fn a_write_that_may_not_wait_leaves_that_to_the_next() {
    let Some((directory, _alone)) = set_up() else { return };
    let path = directory.path().join("t.out");
    let mut output = Followed::open(&path, NEW);
    for _ in 0..24 {
        output.slot.with(|state| state.writer.hurry());
        output.append(MIB);
    }
    assert_resident(&path, &"#".repeat(24), "");
    output.append(MIB);
    helper::drain();
    assert!(resident(&path).starts_with(&"-".repeat(14)), "{}", resident(&path));
    output.close();
    assert_resident(&path, &"-".repeat(25), "");
}

#[test]
fn resident_pages_go_when_a_file_is_opened_for_direct_io() {
    let Some((directory, _alone)) = set_up() else { return };
    let path = directory.path().join("t.ibd");
    let mut buffered = Followed::open(&path, NEW);
    buffered.append(4 * MIB);
    buffered.close();
    assert_resident(&path, "####", "nobody uses it otherwise");
    if File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).is_err() {
        skip("no direct I/O here");
        return;
    }
    let direct = Followed::open(&path, libc::O_RDWR | libc::O_DIRECT);
    assert_resident(&path, "----", "");

    let before = COUNTS.get(Count::MixedWriters);
    let mut buffered = Followed::open(&path, libc::O_RDWR);
    buffered.append(2 * MIB);
    buffered.append(2 * MIB);
    assert_eq!(COUNTS.get(Count::MixedWriters) - before, 1, "once for each file");
    let second = Followed::open(&path, libc::O_RDONLY | libc::O_DIRECT);
    assert_resident(&path, "####", "it is being written");
    buffered.close();
    assert_resident(&path, "----", "");
    second.close();
    direct.close();
}

/// Some engines use direct and buffered I/O on one file on purpose.
#[test]
fn pages_of_buffered_readers_stay_at_a_direct_open() {
    let Some((directory, _alone)) = set_up() else { return };
    let path = directory.path().join("column.bin");
    let mut buffered = Followed::open(&path, NEW);
    buffered.append(4 * MIB);
    buffered.close();
    if File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).is_err() {
        skip("no direct I/O here");
        return;
    }
    let counts = || (COUNTS.get(Count::MixedReleased), COUNTS.get(Count::MixedKeptOpens));
    let (released, kept) = counts();
    let direct = Followed::open(&path, libc::O_RDONLY | libc::O_DIRECT);
    assert_resident(&path, "####", "it is hot");
    Followed::open(&path, libc::O_RDONLY).close();
    helper::drain();
    assert_resident(&path, "####", "nor is it read once alone");
    direct.close();
    assert_eq!(counts(), (released, kept + 1));
}

#[test]
fn direct_opens_by_several_threads_are_counted_once() {
    const FILE_BYTES: u64 = 64 * MIB;
    let Some((directory, _alone)) = set_up() else { return };
    let path = directory.path().join("t.ibd");
    if File::options().create(true).append(true).custom_flags(libc::O_DIRECT).open(&path).is_err() {
        skip("no direct I/O here");
        return;
    }
    for round in 0..10 {
        let mut buffered = Followed::open(&path, NEW);
        for _ in 0..FILE_BYTES / MIB {
            buffered.append(MIB);
        }
        buffered.file.sync_all().unwrap();
        buffered.close();
        // Pages that the kernel itself evicts are not counted.
        let resident = sys::cachestat(File::open(&path).unwrap().as_raw_fd(), 0..u64::MAX).unwrap().cached;
        let before = COUNTS.get(Count::MixedReleased);
        let all = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    all.wait();
                    Followed::open(&path, libc::O_RDONLY | libc::O_DIRECT).close();
                });
            }
        });
        let counted = COUNTS.get(Count::MixedReleased) - before;
        assert!(
            counted > 0 && counted <= resident * sys::page_size(),
            "round {round}: {counted} bytes of {resident} pages"
        );
    }
}
