//! System calls by hand. The C library's functions would change `errno`, pass through hooks, or be cancellation points.
//!
//! Each function is a thin wrapper that returns the kernel's result: a value or an error number. Unless its description says otherwise, a
//! call here changes no byte of a file and none of the program's descriptors.

use core::arch::asm;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{c_int, c_long};

/// An error number, as in `errno`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// cachestat(2), Linux 6.5.
const CACHESTAT: c_long = 451;

/// Residency of a range in pages, as cachestat(2) counts it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// Resident pages.
    pub cached: u64,
    /// Dirty pages.
    pub dirty: u64,
    /// Pages under writeback.
    pub writeback: u64,
    /// Evicted pages.
    pub evicted: u64,
    /// Recently evicted pages.
    pub recently_evicted: u64,
}

/// Makes a system call.
///
/// # Safety
///
/// The arguments must be what the call `number` takes: pointers must be valid for what it reads and writes there.
#[allow(unsafe_code, reason = "the one door to the kernel")]
#[inline]
pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the calling convention of Linux on x86-64 (syscall(2)): rcx and r11 are overwritten, all else is kept; the caller
    // vouches for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the calling convention of Linux on aarch64 (syscall(2)): all but x0 is kept; the caller vouches for the arguments.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => result, in("x1") args[1], in("x2") args[2],
            in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("system calls are written for x86-64 and aarch64");
    if (-4095..0).contains(&result) { Err(Errno(-result as c_int)) } else { Ok(result as usize) }
}

/// Returns a value that distinguishes the calling thread from the process's others, without a system call: the address of its thread-local
/// storage. Never 0; the same in a child of fork.
#[allow(unsafe_code, reason = "reads a register")]
#[inline]
pub fn thread() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: fs points to a word that holds its own address (the ABI of thread-local storage on x86-64).
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register that user space may read.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer | 1
}

/// Returns the calling thread's stack pointer.
#[allow(unsafe_code, reason = "reads a register")]
#[inline]
pub fn stack_pointer() -> usize {
    let at: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: copies a register.
    unsafe {
        asm!("mov {}, rsp", out(reg) at, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: copies a register.
    unsafe {
        asm!("mov {}, sp", out(reg) at, options(nomem, nostack, preserves_flags));
    }
    at
}

/// Whether the calling thread is on a stack for signal handlers (`sigaltstack(2)`).
#[allow(unsafe_code, reason = "a system call")]
pub fn is_on_other_stack() -> bool {
    let mut stack = core::mem::MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: nothing is changed; `stack` has room for the result, in which all bits are valid.
    unsafe {
        call(libc::SYS_sigaltstack, [0, stack.as_mut_ptr() as usize, 0, 0, 0, 0]).is_ok()
            && stack.assume_init().ss_flags & libc::SS_ONSTACK != 0
    }
}

/// Blocks all signals of the calling thread while it exists, so that no handler interrupts it, which might never return.
pub struct SignalsBlocked(u64);

impl SignalsBlocked {
    /// Blocks all signals.
    #[allow(unsafe_code, reason = "a system call")]
    pub fn begin() -> Self {
        let (all, mut before) = (u64::MAX, 0_u64);
        let args =
            [libc::SIG_SETMASK as usize, (&raw const all) as usize, (&raw mut before) as usize, 8, 0, 0];
        // SAFETY: both are sets of signals in the kernel's form, of 8 bytes, and live for the call.
        let _ = unsafe { call(libc::SYS_rt_sigprocmask, args) };
        Self(before)
    }
}

impl Drop for SignalsBlocked {
    #[allow(unsafe_code, reason = "a system call")]
    fn drop(&mut self) {
        let args = [libc::SIG_SETMASK as usize, (&raw const self.0) as usize, 0, 8, 0, 0];
        // SAFETY: a set of signals in the kernel's form.
        let _ = unsafe { call(libc::SYS_rt_sigprocmask, args) };
    }
}

fn length(range: &Range<u64>) -> usize {
    range.end.saturating_sub(range.start) as usize
}

/// Converts a descriptor to an argument.
fn of(fd: c_int) -> usize {
    fd as usize
}

/// Counts the pages of the range; up to the end of the file if `range.end` is `u64::MAX`.
#[allow(unsafe_code, reason = "a system call")]
pub fn cachestat(fd: c_int, range: Range<u64>) -> Result<Resident, Errno> {
    let wanted = [range.start, if range.end == u64::MAX { 0 } else { range.end.saturating_sub(range.start) }];
    let mut seen = Resident::default();
    // SAFETY: `wanted` and `seen` have the layout of struct cachestat_range and struct cachestat, and live for the call.
    unsafe { call(CACHESTAT, [of(fd), wanted.as_ptr() as usize, (&raw mut seen) as usize, 0, 0, 0]) }?;
    Ok(seen)
}

/// `posix_fadvise(2)` with `POSIX_FADV_DONTNEED`: drops pages that are clean, unmapped and wholly in the range.
#[allow(unsafe_code, reason = "a system call")]
pub fn drop_pages(fd: c_int, range: Range<u64>) -> Result<(), Errno> {
    let length = if range.end == u64::MAX { 0 } else { length(&range) };
    let advice = libc::POSIX_FADV_DONTNEED as usize;
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_fadvise64, [of(fd), range.start as usize, length, advice, 0, 0]) }.map(drop)
}

/// `sync_file_range(2)` with the flags of its three steps; up to the end of the file if `range.end` is `u64::MAX`.
#[allow(unsafe_code, reason = "a system call")]
pub fn sync_file_range(fd: c_int, range: Range<u64>, flags: u32) -> Result<(), Errno> {
    let length = if range.end == u64::MAX { 0 } else { length(&range) };
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_sync_file_range, [of(fd), range.start as usize, length, flags as usize, 0, 0]) }
        .map(drop)
}

/// Returns the file offset.
#[allow(unsafe_code, reason = "a system call")]
pub fn position(fd: c_int) -> Result<u64, Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_lseek, [of(fd), 0, libc::SEEK_CUR as usize, 0, 0, 0]) }.map(|at| at as u64)
}

/// fstat(2); for a block device also its size.
#[allow(unsafe_code, reason = "system calls")]
pub fn fstat(fd: c_int) -> Result<libc::stat, Errno> {
    /// `BLKGETSIZE64` of linux/fs.h.
    const SIZE: usize = 0x8008_1272;
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` has room for the kernel's structure, which is the C library's on both architectures; all bits are valid.
    let mut stat = unsafe {
        call(libc::SYS_fstat, [of(fd), stat.as_mut_ptr() as usize, 0, 0, 0, 0])?;
        stat.assume_init()
    };
    if is_block_device(&stat) {
        let mut size = 0_u64;
        // SAFETY: `size` lives for the call, which only queries.
        if unsafe { call(libc::SYS_ioctl, [of(fd), SIZE, (&raw mut size) as usize, 0, 0, 0]) }.is_ok() {
            stat.st_size = size as i64;
        }
    }
    Ok(stat)
}

/// Whether a file is a block device, whose pages are like those of a file of its size.
pub fn is_block_device(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFBLK
}

/// Returns the type of a file's file system (statfs(2)); `None` if the query fails.
#[allow(unsafe_code, reason = "a system call")]
pub fn file_system(fd: c_int) -> Option<u64> {
    let mut system = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `system` has room for the kernel's structure, which is the C library's on both architectures; all bits are valid.
    unsafe {
        call(libc::SYS_fstatfs, [of(fd), system.as_mut_ptr() as usize, 0, 0, 0, 0]).ok()?;
        Some(system.assume_init().f_type as u64)
    }
}

/// Whether cachestat(2) counts the file's pages. Not on overlayfs, where it counts none for any file, since their pages belong to the layer
/// below. True if unknown.
pub fn has_counts(fd: c_int) -> bool {
    counts_pages(file_system(fd))
}

/// Whether cachestat(2) counts pages on a type of file system.
pub fn counts_pages(kind: Option<u64>) -> bool {
    /// `OVERLAYFS_SUPER_MAGIC`.
    const OVERLAY: u64 = 0x794c_7630;
    kind != Some(OVERLAY)
}

/// Whether the kernel generates the files of that type of file system (proc, sysfs, cgroups and similar ones): they have no cached pages,
/// and opening one may have an effect.
pub fn is_of_the_kernel(kind: Option<u64>) -> bool {
    /// linux/magic.h: proc, sysfs, tracefs, debugfs, cgroup, cgroup2, configfs, securityfs, pstore, efivarfs, bpf, `SELinux`, smackfs,
    /// resctrl, `binfmt_misc`, functionfs.
    const MADE: [u64; 16] = [
        0x9fa0,
        0x6265_6572,
        0x7472_6163,
        0x6462_6720,
        0x0027_e0eb,
        0x6367_7270,
        0x6265_6570,
        0x7363_6673,
        0x6165_676c,
        0xde5e_81e4,
        0xcafe_4a11,
        0xf97c_ff8c,
        0x4341_5d53,
        0x0765_5821,
        0x4249_4e4d,
        0x0a64_7361,
    ];
    kind.is_some_and(|kind| MADE.contains(&kind))
}

/// Whether closing the file may take a write error, even that of another writer. FUSE does so in its flush. A file system that does not
/// tell its type may be FUSE, since its program need not answer statfs(2).
pub fn close_takes_errors(fd: c_int) -> bool {
    /// `FUSE_SUPER_MAGIC`.
    const FUSE: u64 = 0x6573_5546;
    file_system(fd).is_none_or(|kind| kind == FUSE)
}

/// Whether the program has a lease on the open file, which another opener would break (fcntl(2), `F_GETLEASE`).
#[allow(unsafe_code, reason = "a system call")]
pub fn has_lease(fd: c_int) -> bool {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_fcntl, [of(fd), libc::F_GETLEASE as usize, 0, 0, 0, 0]) }
        .is_ok_and(|lease| lease as c_int != libc::F_UNLCK)
}

/// Returns the flags of the open file: fcntl(2), `F_GETFL`.
#[allow(unsafe_code, reason = "a system call")]
pub fn flags(fd: c_int) -> Result<c_int, Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_fcntl, [of(fd), libc::F_GETFL as usize, 0, 0, 0, 0]) }.map(|flags| flags as c_int)
}

/// Returns the process id.
#[allow(unsafe_code, reason = "a system call")]
pub fn getpid() -> u32 {
    // SAFETY: no arguments; it can't fail.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.map_or(0, |pid| pid as u32)
}

/// Returns the monotonic clock in nanoseconds.
#[allow(unsafe_code, reason = "a system call")]
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives for the call.
    let done = unsafe {
        call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, (&raw mut time) as usize, 0, 0, 0, 0])
    };
    done.map_or(0, |_| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// pread(2).
#[allow(unsafe_code, reason = "a system call")]
pub fn read_at(fd: c_int, into: &mut [u8], at: u64) -> Result<usize, Errno> {
    let args = [of(fd), into.as_mut_ptr() as usize, into.len(), at as usize, 0, 0];
    // SAFETY: `into` is valid for the bytes read into it.
    unsafe { call(libc::SYS_pread64, args) }
}

/// Allocates private, zeroed memory in whole pages.
#[allow(unsafe_code, reason = "a system call")]
pub fn take_memory(size: usize) -> Result<*mut u8, Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new mapping, where there is none.
    unsafe { call(libc::SYS_mmap, [0, size, protection, flags, usize::MAX, 0]) }.map(|at| at as *mut u8)
}

/// Allocates zeroed memory that children of fork share and that is never freed.
#[allow(unsafe_code, reason = "a system call")]
pub fn take_shared_memory(size: usize) -> Result<*mut u8, Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new mapping, where there is none.
    unsafe { call(libc::SYS_mmap, [0, size, protection, flags, usize::MAX, 0]) }.map(|at| at as *mut u8)
}

/// Whether there is a process with that id.
#[allow(unsafe_code, reason = "a system call")]
pub fn is_process(pid: u32) -> bool {
    // SAFETY: no pointers; no signal is sent.
    let asked = unsafe { call(libc::SYS_kill, [pid as usize, 0, 0, 0, 0, 0]) };
    asked != Err(Errno(libc::ESRCH))
}

/// Frees memory.
///
/// # Safety
///
/// It was allocated with that size, and nobody uses it.
#[allow(unsafe_code, reason = "a system call")]
pub unsafe fn give_back(memory: *mut u8, size: usize) {
    // SAFETY: by this function's contract.
    let _ = unsafe { call(libc::SYS_munmap, [memory as usize, size, 0, 0, 0, 0]) };
}

/// Yields the processor to another thread.
#[allow(unsafe_code, reason = "a system call")]
pub fn give_way() {
    // SAFETY: no pointers.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Closes a descriptor of the calling thread's table.
#[allow(unsafe_code, reason = "a system call")]
pub fn close(fd: c_int) {
    // SAFETY: no pointers.
    let _ = unsafe { call(libc::SYS_close, [of(fd), 0, 0, 0, 0, 0]) };
}

/// `close_range(2)`, Linux 5.9, on the calling thread's table.
#[allow(unsafe_code, reason = "a system call")]
pub fn close_range(from: u32, to: u32, flags: u32) -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_close_range, [from as usize, to as usize, flags as usize, 0, 0, 0]) }.map(drop)
}

/// Gives the calling thread a descriptor table of its own, a copy.
#[allow(unsafe_code, reason = "a system call")]
pub fn unshare_descriptors() -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Duplicates a descriptor to the lowest free number from `from` on, close-on-exec.
#[allow(unsafe_code, reason = "a system call")]
pub fn duplicate(fd: c_int, from: c_int) -> Result<c_int, Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_fcntl, [of(fd), libc::F_DUPFD_CLOEXEC as usize, of(from), 0, 0, 0]) }
        .map(|fd| fd as c_int)
}

/// Returns the process's limit of descriptors: the highest possible number plus one.
#[allow(unsafe_code, reason = "a system call")]
pub fn descriptor_limit() -> u64 {
    let mut limit = [0_u64; 2];
    let resource = libc::RLIMIT_NOFILE as usize;
    // SAFETY: `limit` has the layout of struct rlimit64, and lives for the call.
    let done = unsafe { call(libc::SYS_prlimit64, [0, resource, 0, (&raw mut limit) as usize, 0, 0]) };
    if done.is_ok() { limit[0] } else { 0 }
}

/// Opens a file, close-on-exec.
#[allow(unsafe_code, reason = "a system call")]
pub fn open(path: &CStr, flags: c_int) -> Result<c_int, Errno> {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    // SAFETY: `path` ends in a NUL and lives for the call.
    unsafe { call(libc::SYS_openat, [of(libc::AT_FDCWD), path.as_ptr() as usize, flags, 0, 0, 0]) }
        .map(|fd| fd as c_int)
}

/// stat(2).
#[allow(unsafe_code, reason = "a system call")]
pub fn stat(path: &CStr) -> Result<libc::stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `path` ends in a NUL; `stat` is as for `fstat`.
    unsafe {
        call(
            libc::SYS_newfstatat,
            [of(libc::AT_FDCWD), path.as_ptr() as usize, stat.as_mut_ptr() as usize, 0, 0, 0],
        )?;
        Ok(stat.assume_init())
    }
}

/// lstat(2) of a path in the program's memory, which only the kernel reads.
#[allow(unsafe_code, reason = "a system call")]
pub fn stat_at(at: c_int, path: usize) -> Result<libc::stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let flags = (libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT) as usize;
    // SAFETY: the kernel itself checks whether there is a path at that address; `stat` is as for `fstat`.
    unsafe {
        call(libc::SYS_newfstatat, [of(at), path, stat.as_mut_ptr() as usize, flags, 0, 0])?;
        Ok(stat.assume_init())
    }
}

/// read(2).
#[allow(unsafe_code, reason = "a system call")]
pub fn read(fd: c_int, into: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: `into` is valid for the bytes read into it.
    unsafe { call(libc::SYS_read, [of(fd), into.as_mut_ptr() as usize, into.len(), 0, 0, 0]) }
}

/// A path in /proc that ends in a descriptor number.
pub struct DescriptorPath([u8; 48]);

impl DescriptorPath {
    /// Creates the path; `directory` ends in `/`.
    pub fn new(directory: &[u8], fd: c_int) -> Self {
        let mut path = [0; 48];
        let mut digits = [0; 10];
        let mut left = fd.unsigned_abs();
        let mut from = digits.len();
        loop {
            from -= 1;
            digits[from] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        let bytes = directory.iter().chain(&digits[from..]);
        for (to, &byte) in path.iter_mut().take(47).zip(bytes) {
            *to = byte;
        }
        Self(path)
    }

    /// Returns the path.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Opens the file that `fd` names in the calling thread's table anew, read-only. Leaves the file's access time alone if the user may have
/// that.
pub fn reopen(fd: c_int) -> Result<c_int, Errno> {
    let path = DescriptorPath::new(b"/proc/thread-self/fd/", fd);
    let flags = libc::O_RDONLY | libc::O_NONBLOCK;
    match open(path.as_c_str(), flags | libc::O_NOATIME) {
        Err(Errno(libc::EPERM)) => open(path.as_c_str(), flags),
        opened => opened,
    }
}

/// Opens a descriptor that only names the file of another (`O_PATH`). Closing it keeps the process's record locks on the file, which
/// closing any other descriptor of it would release (fcntl(2)).
pub fn name_of(fd: c_int) -> Result<c_int, Errno> {
    let path = DescriptorPath::new(b"/proc/thread-self/fd/", fd);
    open(path.as_c_str(), libc::O_PATH)
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Waits while `word` is `value`, for at most `ns` nanoseconds. May wake spuriously.
#[allow(unsafe_code, reason = "a system call")]
pub fn futex_wait(word: &AtomicU32, value: u32, ns: u64) {
    let time = timespec(ns);
    let op = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: `word` and `time` live for the call.
    let _ = unsafe {
        call(libc::SYS_futex, [word.as_ptr() as usize, op, value as usize, (&raw const time) as usize, 0, 0])
    };
}

/// Wakes all threads that wait for `word`.
#[allow(unsafe_code, reason = "a system call")]
pub fn futex_wake(word: &AtomicU32) {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the kernel uses the address as a key only.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, op, c_int::MAX as usize, 0, 0, 0]) };
}

/// Waits until `fd` has something to read or has ended, for at most `ns` nanoseconds (`None`: no limit). Returns whether it has.
#[allow(unsafe_code, reason = "a system call")]
pub fn readable(fd: c_int, ns: Option<u64>) -> bool {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = timespec(ns.unwrap_or_default());
    let limit = if ns.is_some() { (&raw const time) as usize } else { 0 };
    // SAFETY: `wanted` and `time` live for the call.
    unsafe { call(libc::SYS_ppoll, [(&raw mut wanted) as usize, 1, limit, 0, 0, 0]) }
        .is_ok_and(|ready| ready > 0)
}

/// Returns the bytes of a page.
#[allow(unsafe_code, reason = "a call of the C library")]
pub fn page_size() -> u64 {
    static SIZE: AtomicU64 = AtomicU64::new(0);
    let known = SIZE.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: it reads a value that the kernel passed to the process at its start, which is always there, and allocates nothing.
    let size = unsafe { libc::getauxval(libc::AT_PAGESZ) }.max(4096);
    SIZE.store(size, Ordering::Relaxed);
    size
}

/// Names the calling thread.
#[allow(unsafe_code, reason = "a system call")]
pub fn name_thread(name: &CStr) {
    // SAFETY: `name` ends in a NUL and lives for the call.
    let _ =
        unsafe { call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// mincore(2) of a range that begins at a page: whether each of its pages is resident, in the lowest bit of a byte. Maps the range for the
/// call; no child of fork inherits the mapping. A user who neither owns the file nor may write to it gets all pages as resident.
#[allow(unsafe_code, reason = "system calls")]
pub fn mincore(fd: c_int, range: &Range<u64>, pages: &mut [u8]) -> Result<(), Errno> {
    let length = length(range);
    if (pages.len() as u64) < (length as u64).div_ceil(page_size()) {
        return Err(Errno(libc::EINVAL));
    }
    // Without access rights, so that a process that locks all its memory (mlockall(2)) does not read the range in here.
    let protection = libc::PROT_NONE as usize;
    // SAFETY: a new mapping, which nobody else knows, and which is not accessed; `pages` has a byte for each of its pages.
    unsafe {
        let at = call(
            libc::SYS_mmap,
            [0, length, protection, libc::MAP_SHARED as usize, of(fd), range.start as usize],
        )?;
        let _ = call(libc::SYS_madvise, [at, length, libc::MADV_DONTFORK as usize, 0, 0, 0]);
        let seen = call(libc::SYS_mincore, [at, length, pages.as_mut_ptr() as usize, 0, 0, 0]);
        let _ = call(libc::SYS_munmap, [at, length, 0, 0, 0, 0]);
        seen.map(drop)
    }
}

/// Whether reads of the file can be uncached (`RWF_DONTCACHE`, Linux 6.14). Tries one behind its end, where nothing is read.
#[allow(unsafe_code, reason = "a system call")]
pub fn reads_uncached(fd: c_int, size: u64) -> bool {
    let mut byte = 0_u8;
    let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // Far behind the end, so that nothing is read if the file grows meanwhile.
    let at = size.saturating_add(1 << 40).min(i64::MAX as u64 - 4096) as usize;
    // SAFETY: `part` names one byte that lives for the call.
    unsafe { call(libc::SYS_preadv2, [of(fd), (&raw const part) as usize, 1, at, 0, DONTCACHE]) }.is_ok()
}

/// `RWF_DONTCACHE`.
const DONTCACHE: usize = 0x80;

/// Reads a part of a file uncached, keeps none of its bytes, and returns their number; at most 128 KiB. The pages that it brings in are
/// marked, and the next read of them drops them; it drops marked pages that it finds. With `begins` it does not wait: if the first page is
/// missing, it starts to read all missing pages and fails with `EAGAIN`; otherwise it ends before the first missing one.
#[allow(unsafe_code, reason = "a system call")]
pub fn read_nowhere(fd: c_int, at: u64, length: u64, begins: bool) -> Result<u64, Errno> {
    const EACH: usize = 4096;
    const PARTS: usize = 32;
    let mut bytes = [0_u8; EACH];
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: EACH };
    let parts = [part; PARTS];
    let count = (length as usize).div_ceil(EACH).min(PARTS);
    let flags = DONTCACHE | if begins { libc::RWF_NOWAIT as usize } else { 0 };
    let args = [of(fd), parts.as_ptr() as usize, count, at as usize, 0, flags];
    // SAFETY: each part is the whole of `bytes`, which lives for the call and is read by nobody.
    unsafe { call(libc::SYS_preadv2, args) }.map(|done| done as u64)
}

/// The kernel maps the resident pages among this many bytes around an accessed page: the default of `fault_around_bytes`.
const AROUND: u64 = 64 << 10;

/// Finds which pages of a window were resident, each in the lowest bit of a byte, for a user who may not use cachestat(2) or mincore(2).
/// The open file must have `POSIX_FADV_RANDOM`.
///
/// It brings in the first page of each 64 KiB, by reads that do not wait and that return whether the page was there. Then it maps the
/// window and accesses these pages, whereupon the kernel maps the resident ones of the 64 KiB (`fault_around_bytes`). /proc/self/pagemap
/// shows which these were. No child of fork inherits the mapping, which would keep the file.
#[allow(unsafe_code, reason = "system calls")]
pub fn probe(fd: c_int, window: &Range<u64>, pages: &mut [u8]) -> Result<(), Errno> {
    const BLOCKS: usize = 32;
    const PAGES: usize = 512;
    const PRESENT: u64 = 1 << 63;
    let page = page_size();
    // With larger pages, fewer are mapped around one.
    let each = (AROUND / page).max(1) as usize;
    let count = (window.end.saturating_sub(window.start)).div_ceil(page) as usize;
    let (Some(pages), true) = (pages.get_mut(..count), count <= (each * BLOCKS).min(PAGES)) else {
        return Err(Errno(libc::EINVAL));
    };
    let mut byte = 0_u8;
    let one = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    for (nth, block) in pages.chunks_mut(each).enumerate() {
        let at = window.start as usize + nth * each * page as usize;
        let args = [of(fd), (&raw const one) as usize, 1, at, 0, libc::RWF_NOWAIT as usize];
        // SAFETY: `one` names one byte that lives for the call.
        let was_there = match unsafe { call(libc::SYS_preadv2, args) } {
            Ok(_) => 1,
            Err(Errno(libc::EAGAIN)) => 0,
            Err(error) => return Err(error),
        };
        block.fill(0);
        block.iter_mut().take(1).for_each(|first| *first = was_there);
    }
    if each == 1 {
        // With pages of 64 KiB, each was queried by itself.
        return Ok(());
    }
    let map = open(c"/proc/self/pagemap", libc::O_RDONLY)?;
    let length = length(window);
    let mut seen = [0_u64; PAGES];
    // SAFETY: a new mapping, which nobody else knows, and which only the kernel reads, into bytes that live for the call; `seen` has a
    // number for each of its pages.
    let done = unsafe {
        map_at_around(fd, window.start, length).map(|at| {
            for advice in [libc::MADV_DONTFORK, libc::MADV_RANDOM] {
                let _ = call(libc::SYS_madvise, [at, length, advice as usize, 0, 0, 0]);
            }
            let mut bytes = [0_u8; BLOCKS];
            let ours = libc::iovec { iov_base: (&raw mut bytes).cast(), iov_len: BLOCKS };
            let firsts: [libc::iovec; BLOCKS] = core::array::from_fn(|nth| libc::iovec {
                iov_base: (at + nth * each * page as usize) as *mut _,
                iov_len: 1,
            });
            let blocks = count.div_ceil(each);
            let (ours, theirs) = ((&raw const ours) as usize, firsts.as_ptr() as usize);
            let read = call(libc::SYS_process_vm_readv, [getpid() as usize, ours, 1, theirs, blocks, 0]);
            let from = at / page as usize * size_of::<u64>();
            let into = seen.as_mut_ptr() as usize;
            let got = call(libc::SYS_pread64, [of(map), into, count * size_of::<u64>(), from, 0, 0]);
            let _ = call(libc::SYS_munmap, [at, length, 0, 0, 0, 0]);
            read == Ok(blocks) && got == Ok(count * size_of::<u64>())
        })
    };
    close(map);
    if !done? {
        return Err(Errno(libc::EIO));
    }
    for (nth, (page, seen)) in pages.iter_mut().zip(seen).enumerate() {
        if !nth.is_multiple_of(each) {
            *page = u8::from(seen & PRESENT != 0);
        }
    }
    Ok(())
}

/// Maps a part of a file for reading at a multiple of [`AROUND`]; otherwise the last pages would not be mapped with the first of their 64
/// KiB. The address is a hint: it replaces nothing that other threads have mapped meanwhile. Fails with `EAGAIN` if they were quicker each
/// time.
#[allow(unsafe_code, reason = "system calls")]
fn map_at_around(fd: c_int, start: u64, length: usize) -> Result<usize, Errno> {
    const TRIES: usize = 4;
    let (access, shared) = (libc::PROT_READ as usize, libc::MAP_SHARED as usize);
    let reserved = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let around = AROUND as usize;
    for _ in 0..TRIES {
        // SAFETY: only mappings made just before are unmapped, at the address that the kernel returned, and nobody else knows of them; no
        // mapping replaces another one.
        unsafe {
            let whole = length + around;
            let room = call(libc::SYS_mmap, [0, whole, libc::PROT_NONE as usize, reserved, usize::MAX, 0])?;
            call(libc::SYS_munmap, [room, whole, 0, 0, 0, 0])?;
            let wish = room.next_multiple_of(around);
            let at = call(libc::SYS_mmap, [wish, length, access, shared, of(fd), start as usize])?;
            if at.is_multiple_of(around) {
                return Ok(at);
            }
            call(libc::SYS_munmap, [at, length, 0, 0, 0, 0])?;
        }
    }
    Err(Errno(libc::EAGAIN))
}

/// `POSIX_FADV_RANDOM`: reads of the open file bring in single pages.
pub fn read_in_no_order(fd: c_int) {
    advise(fd, &(0..0), libc::POSIX_FADV_RANDOM);
}

/// `POSIX_FADV_NORMAL`: the kernel reads ahead again.
pub fn read_in_order(fd: c_int) {
    advise(fd, &(0..0), libc::POSIX_FADV_NORMAL);
}

/// Starts to read a range, in parts: for one call the kernel reads no more than its read-ahead size.
pub fn read_soon(fd: c_int, range: &Range<u64>) {
    /// The read-ahead size of most disks.
    const PART: u64 = 128 << 10;
    let mut start = range.start;
    while start < range.end {
        let end = start.saturating_add(PART).min(range.end);
        advise(fd, &(start..end), libc::POSIX_FADV_WILLNEED);
        start = end;
    }
}

#[allow(unsafe_code, reason = "a system call")]
fn advise(fd: c_int, range: &Range<u64>, advice: c_int) {
    let (start, length) = (range.start as usize, range.end.saturating_sub(range.start) as usize);
    // SAFETY: no pointers.
    let _ = unsafe { call(libc::SYS_fadvise64, [of(fd), start, length, advice as usize, 0, 0]) };
}

/// Sleeps for `ns` nanoseconds, or less if a signal comes. Uses the same system call as the C library, which filters know.
#[allow(unsafe_code, reason = "a system call")]
pub fn sleep(ns: u64) {
    let time = timespec(ns);
    // SAFETY: `time` lives for the call.
    let _ = unsafe {
        call(
            libc::SYS_clock_nanosleep,
            [libc::CLOCK_MONOTONIC as usize, 0, (&raw const time) as usize, 0, 0, 0],
        )
    };
}

/// readlink(2): returns the part of `into` that it filled.
#[allow(unsafe_code, reason = "a system call")]
pub fn read_link<'a>(path: &CStr, into: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let args = [of(libc::AT_FDCWD), path.as_ptr() as usize, into.as_mut_ptr() as usize, into.len(), 0, 0];
    // SAFETY: `path` ends in a NUL; `into` has as much room as its length says.
    let length = unsafe { call(libc::SYS_readlinkat, args) }?;
    into.get(..length).ok_or(Errno(libc::ENAMETOOLONG))
}

/// Lengthens a file to `length` bytes and allocates its blocks: `fallocate(2)`.
#[cfg(not(feature = "interpose"))]
#[allow(unsafe_code, reason = "a system call")]
pub fn take_room(fd: c_int, length: u64) -> Result<(), Errno> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_fallocate, [of(fd), 0, 0, length as usize, 0, 0]) }.map(drop)
}
