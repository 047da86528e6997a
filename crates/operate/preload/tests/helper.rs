//! Tests the helper in its own process, which is this one: the descriptors it leaves in the
//! process's table, its work on files, the loss of its descriptor, and children of fork.

#![allow(unsafe_code, clippy::cast_possible_truncation, reason = "sets the library up; forks")]

mod support;

use std::ffi::{CStr, c_int, c_void};
use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use pagekeeper_preload::counters::Count;
use pagekeeper_preload::helper::{self, HelperRequest};
use pagekeeper_preload::settings::Plan;
use pagekeeper_preload::{process, sys};
use support::comes;

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: `name` ends in a NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Returns the process's descriptors and the files they name.
fn descriptors() -> Vec<(c_int, String)> {
    let mut all: Vec<_> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.unwrap();
            let name = std::fs::read_link(entry.path()).ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, name.to_str()?.to_owned()))
        })
        .filter(|(_, name): &(c_int, String)| !name.starts_with("/proc/"))
        .collect();
    all.sort();
    all
}

/// Returns the number of descriptors in the helper's own table.
fn of_the_helper() -> Option<usize> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| Some(task.ok()?.path()));
    let mut helper = tasks.filter(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == "pagekeeper")
    });
    // The helper may be about to end.
    helper.next().and_then(|task| Some(std::fs::read_dir(task.join("fd")).ok()?.count()))
}

fn resident(file: &File) -> u64 {
    sys::cachestat(file.as_raw_fd(), 0..u64::MAX).unwrap().cached
}

fn written(path: &Path, bytes: usize) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![7; bytes]).unwrap();
    file
}

fn send_after_close(file: &File) -> bool {
    let request =
        HelperRequest::AfterClose { range: 0..u64::MAX, release: true, count: Count::StreamReleased };
    helper::send(file.as_raw_fd(), &request)
}

// One test, since the helper and the descriptor table belong to the process.
#[test]
fn the_helper_holds_nothing_of_the_program() {
    // On a disk: tmpfs keeps pages that are dropped.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = directory.path().join("a");
    if sys::cachestat(File::create(&path).unwrap().as_raw_fd(), 0..1).is_err() {
        return pagekeeper_testing::skip("no cachestat(2) here");
    }
    assert!(!send_after_close(&File::open(&path).unwrap()) && !helper::is_off(), "nothing is set up yet");
    // SAFETY: the only calls in this process, which nobody else calls into; the functions are the C
    // library's.
    unsafe {
        process::set_up(&Plan::NONE);
        helper::set_up(find);
    }
    assert!(helper::ours().is_none() && !helper::is_ours(-1));
    let before = descriptors();
    assert!(helper::prepare() && helper::prepare());

    // One socket more, at a high number.
    let ours = helper::ours().unwrap();
    let mut now = descriptors();
    let socket = now.iter().position(|(fd, _)| *fd == ours).unwrap();
    assert!(now.remove(socket).1.starts_with("socket:") && ours >= 500, "{now:?}");
    assert_eq!(now, before);
    assert!(send_after_close(&written(&path, 1)));
    helper::drain();
    assert!(comes(|| of_the_helper() == Some(1)), "its end of the socket: {:?}", of_the_helper());

    can_be_used_at_once(&directory.path().join("program"));

    // Many files, one after another: all go.
    let files: Vec<_> = (0..200).map(|number| directory.path().join(number.to_string())).collect();
    for path in &files {
        let file = written(path, 300_000);
        while !send_after_close(&file) {
            std::thread::yield_now();
        }
    }
    helper::drain();
    for path in &files {
        assert!(comes(|| resident(&File::open(path).unwrap()) == 0), "{}", path.display());
    }
    assert!(comes(|| of_the_helper() == Some(1)), "{:?}", of_the_helper());

    // The pages behind a writer go, those ahead stay.
    let file = written(&path, 8 << 20);
    let request = HelperRequest::Release { range: 0..4 << 20, count: Count::LogReleased };
    assert!(helper::send(file.as_raw_fd(), &request));
    helper::drain();
    assert!(comes(|| resident(&file) == (4 << 20) / sys::page_size()), "{}", resident(&file));

    is_nothing_to_a_file_without_a_name(&directory.path().join("gone"));
    is_let_go_of(&directory.path().join("unwanted"));
    is_waited_for(&path);
    its_number_is_taken(&path);

    in_a_child(|| has_none_until_it_opens_a_file(&directory.path().join("child")));
    in_a_child(is_not_made_in_a_handler);
    in_a_child(|| goes_on_without_rights(&directory.path().join("secret")));
    assert!(send_after_close(&file), "the child has taken nothing");

    // The helper leaves: its requests are done, and nothing of it remains.
    helper::leave_now();
    assert!(
        comes(|| (resident(&file), of_the_helper()) == (0, None)),
        "{} {:?}",
        resident(&file),
        of_the_helper()
    );
    let socket = descriptors().into_iter().find(|(_, name)| name.starts_with("socket:"));
    assert_eq!(socket, None);
    assert!(helper::is_off() && helper::ours().is_none() && !helper::prepare() && !send_after_close(&file));
    helper::leave_now();
}

/// Checks that the pages of a nameless file are dropped with it, and not even written.
fn is_nothing_to_a_file_without_a_name(path: &Path) {
    let file = written(path, 1 << 20);
    std::fs::remove_file(path).unwrap();
    assert!(send_after_close(&file) && !helper::holds_some());
}

/// Checks that the helper closes a file that is about to lose its last name, and no other.
fn is_let_go_of(path: &Path) {
    let other = written(&path.with_extension("other"), 1 << 20);
    // Tries again if the helper had finished with the file by then.
    assert!(comes(|| {
        let file = written(path, 16 << 20);
        assert!(send_after_close(&file) && send_after_close(&other));
        helper::let_go(helper::FileHash::of(&sys::fstat(file.as_raw_fd()).unwrap()));
        helper::drain();
        resident(&file) > 0
    }));
    assert!(comes(|| resident(&other) == 0 && !helper::holds_some()));
}

/// Checks that a writer learns when its output is on disk and dropped, or that this cannot be seen.
fn is_waited_for(path: &Path) {
    let most = 30_000_000_000;
    let file = written(path, (6 << 20) + 100);
    // Tries again if the helper gave up, since no page went for a second: the disk hangs.
    let goes = |range: std::ops::Range<u64>| {
        comes(|| helper::wait_dropped(file.as_raw_fd(), &range, Count::StreamReleased, most))
    };
    assert!(goes(100..(4 << 20) + 5));
    // Whole windows go. In the window where the range ends, a folio may reach beyond the range, and
    // stays.
    let left = resident(&file) * sys::page_size();
    assert!((2 << 20..=6 << 20).contains(&left), "{left}");
    assert!(goes(0..u64::MAX));
    assert_eq!(resident(&file), 0);
    let mut name = [0; 64];
    // SAFETY: `name` has room for the name and its terminating null.
    let memory = unsafe {
        name[..4].copy_from_slice(b"none");
        libc::memfd_create(name.as_ptr().cast(), libc::MFD_CLOEXEC)
    };
    // SAFETY: it was just created, and belongs to nobody else.
    let mut memory = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(memory) };
    memory.write_all(&[7; 8192]).unwrap();
    assert!(!helper::wait_dropped(memory.as_raw_fd(), &(0..u64::MAX), Count::StreamReleased, most));
}

/// Checks that a written program can be executed at once, and a lock is free at once, although the
/// helper has files open.
fn can_be_used_at_once(program: &Path) {
    for _ in 0..20 {
        std::fs::copy("/bin/true", program).unwrap();
        let file = File::options().append(true).open(program).unwrap();
        // SAFETY: no pointers.
        let lock = |file: &File| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        assert_eq!(lock(&file), 0);
        assert!(send_after_close(&file));
        drop(file);
        assert_eq!(lock(&File::open(program).unwrap()), 0);
        std::fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
        assert!(std::process::Command::new(program).status().unwrap().success());
    }
}

fn its_number_is_taken(path: &Path) {
    // The program wants it.
    let ours = helper::ours().unwrap();
    helper::make_room(ours);
    let moved = helper::ours().unwrap();
    assert!(moved != ours && descriptors().iter().any(|(fd, _)| *fd == moved));
    // SAFETY: no pointers; the helper gave it up.
    unsafe { libc::close(ours) };
    let file = written(path, 1 << 20);
    assert!(send_after_close(&file));
    helper::drain();
    assert!(comes(|| resident(&file) == 0));

    // It is closed by a call that the library does not see, and its number names another file: no
    // message reaches that file.
    let other = File::open("/dev/null").unwrap();
    // SAFETY: no pointers; nobody misses `moved`.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), moved) }, moved);
    let file = written(path, 1 << 20);
    assert!(!send_after_close(&file) && !send_after_close(&file), "it is not made where a file is closed");
    assert!(helper::prepare() && send_after_close(&file), "a new one");
    helper::drain();
    assert!(comes(|| resident(&file) == 0));
    // SAFETY: no pointers; it was opened above.
    unsafe { libc::close(moved) };
}

/// Runs `holds` in a child of fork, and asserts it.
fn in_a_child(holds: impl FnOnce() -> bool) {
    // SAFETY: the C library makes the child's allocator usable; the child does not run the rest of
    // the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        process::entered_child();
        let inherited = helper::ours().unwrap_or(-1);
        helper::after_fork();
        let has_none = helper::ours().is_none() && sys::fstat(inherited).is_err();
        let status = c_int::from(!(has_none && holds()));
        // SAFETY: ends the process.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: `status` lives for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn has_none_until_it_opens_a_file(path: &Path) -> bool {
    let file = written(path, 1 << 20);
    let is_sent = !send_after_close(&file) && helper::prepare() && send_after_close(&file);
    helper::drain();
    is_sent && comes(|| resident(&file) == 0)
}

/// Checks that in a process that gave up its privileges the helper leaves a file alone that cannot
/// be opened again, and takes others.
fn goes_on_without_rights(path: &Path) -> bool {
    let other = written(&path.with_extension("other"), 1 << 20);
    // Without privileges, the writeback of another user's file cannot be seen.
    other.sync_all().unwrap();
    let file = written(path, 1 << 20);
    std::fs::set_permissions(path, Permissions::from_mode(0o200)).unwrap();
    let was_on = helper::prepare() && !helper::is_off();
    // SAFETY: no pointers.
    let is_dropped = unsafe { libc::geteuid() } != 0 || unsafe { libc::setresuid(65534, 65534, 65534) } == 0;
    let is_sent = send_after_close(&file);
    // Nor is a file sent that is not open any more.
    let is_closed_sent =
        helper::send(9999, &HelperRequest::Release { range: 0..1, count: Count::LogReleased });
    let is_other_sent = send_after_close(&other);
    helper::drain();
    let is_refused = was_on && is_dropped && !is_sent && !is_closed_sent;
    is_refused && !helper::is_off() && is_other_sent && comes(|| resident(&other) == 0)
}

/// Checks that a signal handler may open files, but creates no thread. A blocked signal is not a
/// handler.
fn is_not_made_in_a_handler() -> bool {
    extern "C" fn handler(_: c_int) {
        assert!(!helper::prepare());
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    extern "C" fn unblocking(signal: c_int) {
        // SAFETY: a set of signals, which is initialised first.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
        handler(signal);
    }
    static HANDLED: AtomicU32 = AtomicU32::new(0);
    type Handler = extern "C" fn(c_int);
    let set = |handler: Handler, flags: c_int| {
        // SAFETY: all bits are valid in it; the handler makes system calls only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler as usize, flags);
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        }
    };
    let kinds: [(Handler, c_int); 6] = [
        (handler, libc::SA_RESTART),
        (handler, libc::SA_NODEFER),
        (handler, libc::SA_RESETHAND),
        (handler, libc::SA_RESETHAND | libc::SA_NODEFER | libc::SA_SIGINFO),
        (handler, libc::SA_ONSTACK | libc::SA_NODEFER),
        (unblocking, 0),
    ];
    for (handler, flags) in kinds {
        set(handler, flags);
        // SAFETY: no pointers.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    let is_refused = HANDLED.load(Ordering::Relaxed) == 6 && helper::ours().is_none();
    // As servers have it, on a stack that no handler was on.
    set(handler, libc::SA_NODEFER);
    let made = std::thread::spawn(|| {
        // SAFETY: a set of signals, which is set up first.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        }
        helper::prepare()
    });
    is_refused && made.join().unwrap()
}
