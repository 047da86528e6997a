//! Reads the process and its memory for the hooks, by system calls, which report a bad address.
//!
//! Invariant: nothing here reads the program's memory directly, so that a bad address of the
//! program fails in its own call.

use core::mem::MaybeUninit;

use libc::{c_int, c_long};
use pagekeeper_policy::number;

use crate::files::paths::DescriptorPath;
use crate::sys::{self, Errno};

/// Copies `count` values, at most `N`, from an address of the process; `None` unless all of them
/// can be read.
///
/// # Safety
///
/// All bits are valid for `T`.
pub unsafe fn peek<T: Copy, const N: usize>(address: usize, count: usize) -> Option<[T; N]> {
    let mut to = MaybeUninit::<[T; N]>::zeroed();
    let length = count.min(N) * size_of::<T>();
    let ours = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: length };
    let theirs = libc::iovec { iov_base: address as *mut _, iov_len: length };
    let args = [sys::getpid() as usize, (&raw const ours) as usize, 1, (&raw const theirs) as usize, 1, 0];
    // SAFETY: `ours` has room for the bytes read; `theirs` is read by the kernel, which reports a
    // bad address.
    let done = unsafe { sys::call(libc::SYS_process_vm_readv, args) };
    // SAFETY: all of it was zeroed, and then set as far as it was read; all bits are valid by this
    // function's contract.
    (done == Ok(length)).then(|| unsafe { to.assume_init() })
}

/// Returns the bytes of a vectored call's buffers; 0 if they cannot be read.
pub fn length_of(parts: *const libc::iovec, count: c_int) -> u64 {
    const PARTS_MAX: usize = 16;
    let Ok(count) = usize::try_from(count) else { return 0 };
    // SAFETY: all bits are valid for two numbers, which are struct iovec's layout.
    let Some(parts) = (unsafe { peek::<[usize; 2], PARTS_MAX>(parts as usize, count) }) else { return 0 };
    parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part[1] as u64))
}

/// Returns the offset that a call was given by reference, or the file offset if that is null;
/// `None` if it cannot be known.
pub fn position(fd: c_int, given: *const i64) -> Option<u64> {
    if given.is_null() {
        return sys::position(fd).ok();
    }
    // SAFETY: all bits are valid for a number.
    let [at] = unsafe { peek::<i64, 1>(given as usize, 1) }?;
    u64::try_from(at).ok()
}

/// Returns the name of the calling thread (`comm`), without its null byte. The first thread's name
/// is the process's.
pub fn comm(to: &mut [u8; 16]) -> &[u8] {
    // SAFETY: `to` has the 16 bytes that are written.
    let done = unsafe { sys::call(libc::SYS_prctl, [libc::PR_GET_NAME as usize, to.as_mut_ptr() as usize]) };
    let length = to.iter().position(|&byte| byte == 0).unwrap_or(0);
    if done.is_ok() { to.get(..length).unwrap_or_default() } else { &[] }
}

/// Returns the process's name, which is its first thread's, from any thread.
pub fn process_name(to: &mut [u8; 16]) -> &[u8] {
    match sys::text_of(c"/proc/self/comm", to).len().checked_sub(1) {
        Some(length) => to.get(..length).unwrap_or_default(),
        None => comm(to),
    }
}

/// Returns the program's offset in the file that its descriptor names, from /proc.
pub fn position_of(fd: c_int) -> Option<u64> {
    position_in(sys::text_of(DescriptorPath::new(b"/proc/self/fdinfo/", fd).as_c_str(), &mut [0; 64]))
}

/// Parses the offset from the text of /proc/PID/fdinfo: its first line is `pos:`, blanks, and the
/// number.
fn position_in(text: &[u8]) -> Option<u64> {
    number(text.strip_prefix(b"pos:")?.split(|&byte| byte == b'\n').next()?.trim_ascii())
}

/// Whether the system started the program with privileges that its caller does not have.
pub fn is_secure() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether a seccomp filter that the process was started under would kill it for the rules' system
/// calls. Tests this in a child. A filter that refuses the calls is handled like a kernel without
/// them.
pub fn is_deadly() -> bool {
    const MODE_FILTER: usize = 2;
    // SAFETY: no pointers.
    let is_filtered =
        unsafe { sys::call(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize]) } == Ok(MODE_FILTER);
    is_filtered && !is_survived(try_calls)
}

/// Runs `act` in a child with a copy of all memory, which leaves no core dump however it ends.
/// Returns whether the child reached the end. `act` makes system calls only.
pub fn is_survived(act: impl FnOnce()) -> bool {
    // SAFETY: a child with a copy of all memory and no signal at its end. It continues from here,
    // on a copy of this stack, and makes system calls only. The status is written to a variable
    // that has room for it; a limit is two numbers.
    unsafe {
        let child = match sys::call(libc::SYS_clone, [0]) {
            Ok(0) => {
                let no_core = [0_u64; 2];
                let limit = [0, libc::RLIMIT_CORE as usize, no_core.as_ptr() as usize];
                let _ = sys::call(libc::SYS_prlimit64, limit);
                act();
                loop {
                    let _ = sys::call(libc::SYS_exit_group, [0]);
                }
            }
            Ok(child) => child,
            Err(_) => return false,
        };
        let mut status: c_int = -1;
        let wait = [child, (&raw mut status) as usize, libc::__WALL as usize];
        while sys::call(libc::SYS_wait4, wait) == Err(Errno(libc::EINTR)) {}
        status == 0
    }
}

/// Makes each kind of call that the rules, their helper, and the C library for it make, on no file.
#[rustfmt::skip]
fn try_calls() {
    const NONE: usize = usize::MAX;
    /// Bytes of the kernel's set of signals.
    const SIGNAL_SET_BYTES: usize = 8;
    let zeros = [0_u64; 2];
    let nothing = zeros.as_ptr() as usize;
    let name = c"pagekeeper".as_ptr() as usize;
    let monotonic = libc::CLOCK_MONOTONIC as usize;
    let wake = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    let (read_only, shared) = (libc::PROT_READ as usize, libc::MAP_SHARED as usize);
    let on_no_file = [
        libc::SYS_fadvise64, libc::SYS_sync_file_range, libc::SYS_lseek, libc::SYS_preadv2, libc::SYS_pread64,
        libc::SYS_readlinkat, libc::SYS_openat, libc::SYS_faccessat2, libc::SYS_read, libc::SYS_close, libc::SYS_fstat,
        libc::SYS_fstatfs, libc::SYS_newfstatat, libc::SYS_getdents64 as c_long, libc::SYS_sendmsg, libc::SYS_recvmsg,
    ];
    let on_nothing = [
        libc::SYS_mincore, libc::SYS_process_vm_readv, libc::SYS_unshare, libc::SYS_socketpair, libc::SYS_gettid,
        libc::SYS_tgkill, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_madvise, libc::SYS_clone3,
        libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_sigaltstack,
    ];
    let others = [
        (libc::SYS_close_range, [1, 0, 0, 0, 0, 0]),
        (libc::SYS_fcntl, [NONE, libc::F_GETFL as usize, 0, 0, 0, 0]),
        (libc::SYS_fcntl, [NONE, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0]),
        (libc::SYS_clock_gettime, [monotonic, 0, 0, 0, 0, 0]),
        (libc::SYS_clock_nanosleep, [monotonic, 0, nothing, 0, 0, 0]),
        (libc::SYS_futex, [nothing, wake, 0, 0, 0, 0]),
        (libc::SYS_ppoll, [0, 0, nothing, 0, 0, 0]),
        (libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0]),
        (libc::SYS_mmap, [0, 4096, read_only, shared, NONE, 0]),
        (libc::SYS_rt_sigprocmask, [0, 0, 0, SIGNAL_SET_BYTES, 0, 0]),
        (libc::SYS_rt_sigaction, [0, 0, 0, SIGNAL_SET_BYTES, 0, 0]),
    ];
    let on_no_file = on_no_file.into_iter().map(|number| (number, [NONE, 0, 0, 0, 0, 0]));
    let on_nothing = on_nothing.into_iter().map(|number| (number, [0; 6]));
    for (number, args) in on_no_file.chain(on_nothing).chain(others) {
        // SAFETY: no descriptor, nothing to read, or valid arguments: limits of two numbers, a zero
        // time, a name.
        let _ = unsafe { sys::call(number, args) };
    }
    let _ = sys::cachestat(-1, 0..1);
    // The helper's thread ends by this call; in a process with one thread, it ends the process.
    // SAFETY: no pointers; the process is the child created for this.
    let _ = unsafe { sys::call(libc::SYS_exit, [0]) };
}

/// Calls `each` for all descriptors of the process, from /proc; for the first few numbers without
/// /proc.
pub fn descriptors(mut each: impl FnMut(c_int)) {
    const TRIED_MAX: c_int = 64;
    if !named_descriptors(&mut each) {
        (0..TRIED_MAX).for_each(each);
    }
}

/// Calls `each`, which may close it, for all descriptors of the process. Returns `false` without
/// /proc.
pub fn named_descriptors(mut each: impl FnMut(c_int)) -> bool {
    let Ok(directory) = sys::open(c"/proc/self/fd", libc::O_RDONLY | libc::O_DIRECTORY) else { return false };
    let mut names = [0_u64; 256];
    loop {
        let args = [directory as usize, names.as_mut_ptr() as usize, size_of_val(&names)];
        // SAFETY: `names` has room for this many bytes.
        let Ok(length @ 1..) = (unsafe { sys::call(libc::SYS_getdents64 as c_long, args) }) else { break };
        // SAFETY: numbers, read as bytes.
        let bytes = unsafe { core::slice::from_raw_parts(names.as_ptr().cast::<u8>(), size_of_val(&names)) };
        entries(bytes.get(..length).unwrap_or_default(), |fd| {
            if fd != directory {
                each(fd);
            }
        });
    }
    sys::close(directory);
    true
}

/// Calls `each` for the numbers among the names of directory entries (`struct linux_dirent64`: its
/// length is at offset 16, its name at 19).
fn entries(mut bytes: &[u8], mut each: impl FnMut(c_int)) {
    while let Some(&[low, high]) = bytes.get(16..18) {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some((entry, rest)) = bytes.split_at_checked(length) else { return };
        let name = entry.get(19..).unwrap_or_default();
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        if let Some(number) = name.get(..end).and_then(number).and_then(|number| c_int::try_from(number).ok())
        {
            each(number);
        }
        if length == 0 {
            return;
        }
        bytes = rest;
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn memory_is_read_where_there_is_some() {
        let there = [7_i64, 8];
        // SAFETY: all bits are valid for a number.
        unsafe {
            assert_eq!(peek::<i64, 2>(there.as_ptr() as usize, 2), Some([7, 8]));
            assert_eq!(peek::<i64, 2>(there.as_ptr() as usize, 1), Some([7, 0]));
            assert_eq!(peek::<i64, 2>(8, 2), None);
        }
        let buffer = [0_u8; 300];
        let part = |length| libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: length };
        let parts = [part(100), part(200)];
        assert_eq!(length_of(parts.as_ptr(), 2), 300);
        assert_eq!(length_of(parts.as_ptr(), 1), 100);
        assert_eq!((length_of(parts.as_ptr(), -1), length_of(core::ptr::null(), 3)), (0, 0));
    }

    #[test]
    fn positions_are_reported() {
        use std::io::{Seek, SeekFrom};

        let mut file = tempfile::tempfile().unwrap();
        file.seek(SeekFrom::Start(77)).unwrap();
        let fd = file.as_raw_fd();
        assert_eq!(position(fd, core::ptr::null()), Some(77));
        let (given, below) = (5_i64, -5_i64);
        assert_eq!(position(fd, &raw const given), Some(5));
        let nowhere = core::ptr::without_provenance(4096 - 8);
        assert_eq!((position(fd, &raw const below), position(fd, nowhere)), (None, None));
    }

    #[test]
    fn the_position_is_read_from_proc() {
        assert_eq!(position_in(b"pos:\t4096\nflags:\t0100002\n"), Some(4096));
        for text in [&b""[..], b"pos:", b"pos:\t\nflags", b"pos:\tx\n", b"flags:\t1\n"] {
            assert_eq!(position_in(text), None);
        }
    }

    #[test]
    fn all_descriptors_are_found() {
        let files: Vec<_> = (0..100).map(|_| tempfile::tempfile().unwrap()).collect();
        let mut seen = Vec::new();
        descriptors(|fd| seen.push(fd));
        for file in files {
            assert!(seen.contains(&file.as_raw_fd()));
        }
        entries(&[0; 40], |_| panic!("no names"));
        entries(&[1; 40], |_| panic!("too long"));
    }

    #[test]
    fn a_filter_that_kills_is_found_by_a_child() {
        const NUMBER_OFFSET: u32 = 0;
        let under = |action: u32, call: u32| {
            let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
            let mut filter = [
                statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER_OFFSET),
                libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call) },
                statement(libc::BPF_RET | libc::BPF_K, action),
                statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
            ];
            // A filter applies to its thread.
            let filtered = std::thread::spawn(move || {
                let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
                // SAFETY: a program of four statements, which lives for the call.
                let set = unsafe {
                    libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                    libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                };
                (set == 0).then(is_deadly)
            });
            filtered.join().unwrap()
        };
        assert!(!is_deadly());
        let cachestat = 451;
        for call in [cachestat, libc::SYS_clock_nanosleep as u32, libc::SYS_recvmsg as u32] {
            let actions = [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32];
            let seen = actions.map(|action| under(action, call));
            if seen.contains(&None) {
                return eprintln!("skipped: no filters can be set here");
            }
            assert_eq!(seen, [Some(true), Some(false)], "call {call}");
        }
    }

    #[test]
    fn a_thread_has_a_name() {
        let named = std::thread::Builder::new().name("a-name".to_owned());
        let seen = named.spawn(|| comm(&mut [0; 16]).to_vec()).unwrap().join().unwrap();
        assert_eq!(seen, b"a-name");
        let name = std::fs::read("/proc/self/comm").unwrap();
        assert_eq!(process_name(&mut [0; 16]), name.trim_ascii_end());
        assert!(!is_secure());
    }
}
