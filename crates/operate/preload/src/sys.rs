//! System calls by hand. The C library's functions would change `errno`, pass through hooks, or be
//! cancellation points. rustix does none of these, but it lacks cachestat(2), `sync_file_range(2)`,
//! mincore(2) and more, checks each descriptor by an assertion that could end the program, and
//! chooses the numbers of its calls itself, where [`crate::introspection`] must try exactly those
//! that are made.
//!
//! Each function is a thin wrapper that returns the kernel's result: a value or an error number.
//! Unless its description says otherwise, a call here changes no byte of a file and none of the
//! program's descriptors.

use core::arch::asm;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{c_int, c_long};

/// An error number, as in `errno`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// cachestat(2), Linux 6.5.
const SYS_CACHESTAT: c_long = 451;
/// `RWF_DONTCACHE` of preadv2(2), Linux 6.14.
pub const UNCACHED: c_int = 0x80;

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

/// Makes a system call. Arguments that are left out are 0.
///
/// # Safety
///
/// The arguments must be what the call `number` takes: pointers must be valid for what it reads and
/// writes there.
#[inline]
pub unsafe fn call<const N: usize>(number: c_long, given: [usize; N]) -> Result<usize, Errno> {
    let mut args = [0; 6];
    for (to, from) in args.iter_mut().zip(given) {
        *to = from;
    }
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the calling convention of Linux on x86-64 (syscall(2)): rcx and r11 are overwritten,
    // all else is kept; the caller vouches for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the calling convention of Linux on aarch64 (syscall(2)): all but x0 is kept; the
    // caller vouches for the arguments.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => result, in("x1") args[1], in("x2") args[2],
            in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("system calls are written for x86-64 and aarch64");
    if (-4095..0).contains(&result) { Err(Errno(-result as c_int)) } else { Ok(result as usize) }
}

/// Makes a system call that takes no pointers and changes nothing but what its arguments name.
fn by_numbers<const N: usize>(number: c_long, args: [usize; N]) -> Result<usize, Errno> {
    // SAFETY: no pointers, by this function's contract, which this module keeps.
    unsafe { call(number, args) }
}

/// Returns what `make` fills in at the address that it is given.
///
/// # Safety
///
/// All bits are valid in a `T`, and `make` writes at most a `T`.
unsafe fn filled<T>(make: impl FnOnce(usize) -> Result<usize, Errno>) -> Result<T, Errno> {
    let mut filled = MaybeUninit::<T>::zeroed();
    make(filled.as_mut_ptr() as usize)?;
    // SAFETY: by this function's contract.
    Ok(unsafe { filled.assume_init() })
}

/// Copies a register, or a word of the thread's own, by one instruction of each architecture.
macro_rules! register_value {
    ($x86_64:literal, $aarch64:literal) => {{
        let value: usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the callers read what user space may always read, and change nothing.
        unsafe {
            asm!($x86_64, out(reg) value, options(nostack, readonly, preserves_flags));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            asm!($aarch64, out(reg) value, options(nostack, readonly, preserves_flags));
        }
        value
    }};
}

/// Returns a value that distinguishes the calling thread from the process's others, without a
/// system call: the address of its thread-local storage. Never 0; the same in a child of fork.
#[inline]
pub fn thread() -> usize {
    // On x86-64 fs points to a word that holds its own address (the ABI of thread-local storage).
    register_value!("mov {}, fs:0", "mrs {}, tpidr_el0") | 1
}

/// Returns the calling thread's stack pointer.
#[inline]
pub fn stack_pointer() -> usize {
    register_value!("mov {}, rsp", "mov {}, sp")
}

/// Whether the calling thread is on a stack for signal handlers (`sigaltstack(2)`).
pub fn is_on_other_stack() -> bool {
    // SAFETY: nothing is changed; the structure is the C library's.
    unsafe { filled::<libc::stack_t>(|to| call(libc::SYS_sigaltstack, [0, to])) }
        .is_ok_and(|stack| stack.ss_flags & libc::SS_ONSTACK != 0)
}

/// Blocks all signals of the calling thread while it exists, so that no handler interrupts it,
/// which might never return.
pub struct SignalsBlocked(u64);

impl SignalsBlocked {
    /// Blocks all signals.
    pub fn begin() -> Self {
        Self(set_signal_mask(u64::MAX))
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_signal_mask(self.0);
    }
}

/// Sets the signals that the calling thread blocks, and returns those before.
fn set_signal_mask(mask: u64) -> u64 {
    let (how, mask) = (libc::SIG_SETMASK as usize, (&raw const mask) as usize);
    // SAFETY: both are sets of signals in the kernel's form, of 8 bytes, and live for the call.
    unsafe { filled(|before| call(libc::SYS_rt_sigprocmask, [how, mask, before, size_of::<u64>()])) }
        .unwrap_or(0)
}

/// Returns the bytes of a range as a call takes them: 0, which stands for all, if it has no end.
fn length(range: &Range<u64>) -> usize {
    if range.end == u64::MAX { 0 } else { range.end.saturating_sub(range.start) as usize }
}

/// Converts a descriptor to an argument.
fn of(fd: c_int) -> usize {
    fd as usize
}

/// Counts the pages of the range; up to the end of the file if `range.end` is `u64::MAX`.
pub fn cachestat(fd: c_int, range: Range<u64>) -> Result<Resident, Errno> {
    let wanted = [range.start, length(&range) as u64];
    // SAFETY: `wanted` and the result have the layout of struct cachestat_range and struct
    // cachestat.
    unsafe { filled(|seen| call(SYS_CACHESTAT, [of(fd), wanted.as_ptr() as usize, seen])) }
}

fn advise(fd: c_int, range: &Range<u64>, advice: c_int) -> Result<(), Errno> {
    let args = [of(fd), range.start as usize, length(range), advice as usize];
    by_numbers(libc::SYS_fadvise64, args).map(drop)
}

/// Drops pages that are clean, unmapped and wholly in the range (`POSIX_FADV_DONTNEED`).
pub fn drop_pages(fd: c_int, range: Range<u64>) -> Result<(), Errno> {
    advise(fd, &range, libc::POSIX_FADV_DONTNEED)
}

/// Advises how the open file is read: by `POSIX_FADV_RANDOM` reads bring in single pages, by
/// `POSIX_FADV_NORMAL` the kernel reads ahead again.
pub fn advise_order(fd: c_int, advice: c_int) {
    let _ = advise(fd, &(0..0), advice);
}

/// Starts to read a range, in parts: for one call the kernel reads at most its read-ahead
/// size.
pub fn read_soon(fd: c_int, range: &Range<u64>) {
    /// The read-ahead size of most disks.
    const READ_AHEAD_BYTES: u64 = 128 << 10;
    let mut start = range.start;
    while start < range.end {
        let end = start.saturating_add(READ_AHEAD_BYTES).min(range.end);
        let _ = advise(fd, &(start..end), libc::POSIX_FADV_WILLNEED);
        start = end;
    }
}

/// Starts the writeback of a range: `sync_file_range(2)` without a wait; up to the end of the file
/// if `range.end` is `u64::MAX`.
pub fn begin_writeback(fd: c_int, range: &Range<u64>) -> Result<(), Errno> {
    let flags = libc::SYNC_FILE_RANGE_WRITE as usize;
    by_numbers(libc::SYS_sync_file_range, [of(fd), range.start as usize, length(range), flags]).map(drop)
}

/// Returns the file offset.
pub fn position(fd: c_int) -> Result<u64, Errno> {
    by_numbers(libc::SYS_lseek, [of(fd), 0, libc::SEEK_CUR as usize]).map(|at| at as u64)
}

/// Calls fstat(2); for a block device returns also its size.
pub fn fstat(fd: c_int) -> Result<libc::stat, Errno> {
    /// `BLKGETSIZE64` of linux/fs.h.
    const GET_SIZE64: usize = 0x8008_1272;
    // SAFETY: the kernel's structure is the C library's on both architectures; all bits are valid.
    let mut stat: libc::stat = unsafe { filled(|to| call(libc::SYS_fstat, [of(fd), to])) }?;
    if is_block_device(&stat) {
        // SAFETY: the call only queries, and writes a number of 8 bytes.
        let size = unsafe { filled::<u64>(|to| call(libc::SYS_ioctl, [of(fd), GET_SIZE64, to])) };
        stat.st_size = size.map_or(stat.st_size, |size| size as i64);
    }
    Ok(stat)
}

/// Returns the size of an open file, or of a block device, in bytes; 0 if the query fails.
pub fn size(fd: c_int) -> u64 {
    fstat(fd).map_or(0, |stat| size_in(&stat))
}

/// Returns the size that `stat` tells.
pub fn size_in(stat: &libc::stat) -> u64 {
    stat.st_size.max(0) as u64
}

/// Calls stat(2).
pub fn stat(path: &CStr) -> Result<libc::stat, Errno> {
    stat_at(libc::AT_FDCWD, path.as_ptr().addr(), 0)
}

/// Calls lstat(2) on a path in the program's memory, which only the kernel reads.
pub fn lstat_at(at: c_int, path: usize) -> Result<libc::stat, Errno> {
    stat_at(at, path, libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT)
}

fn stat_at(at: c_int, path: usize, flags: c_int) -> Result<libc::stat, Errno> {
    // SAFETY: the kernel itself checks whether there is a path at that address; the structure is as
    // for `fstat`.
    unsafe { filled(|to| call(libc::SYS_newfstatat, [of(at), path, to, flags as usize])) }
}

/// Whether a file is a regular one.
pub fn is_regular(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Whether a file is a block device, whose pages are like those of a file of its size.
pub fn is_block_device(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFBLK
}

/// Returns the type of a file's file system (statfs(2)); `None` if the query fails.
pub fn file_system(fd: c_int) -> Option<u64> {
    // SAFETY: the kernel's structure is the C library's on both architectures; all bits are valid.
    let system = unsafe { filled::<libc::statfs>(|to| call(libc::SYS_fstatfs, [of(fd), to])) };
    system.ok().map(|system| system.f_type as u64)
}

/// Whether cachestat(2) counts the file's pages. Not on overlayfs, where it counts none for any
/// file, since their pages belong to the layer below. True if unknown.
pub fn has_counts(fd: c_int) -> bool {
    counts_pages(file_system(fd))
}

/// Whether cachestat(2) counts pages on a type of file system.
pub fn counts_pages(kind: Option<u64>) -> bool {
    /// `OVERLAYFS_SUPER_MAGIC`.
    const OVERLAY_MAGIC: u64 = 0x794c_7630;
    kind != Some(OVERLAY_MAGIC)
}

/// Whether the kernel generates the files of that type of file system (proc, sysfs, cgroups and
/// similar ones): they have no cached pages, and opening one may have an effect.
#[rustfmt::skip]
pub fn is_of_the_kernel(kind: Option<u64>) -> bool {
    /// linux/magic.h: proc, sysfs, tracefs, debugfs, cgroup, cgroup2, configfs, securityfs, pstore,
    /// efivarfs, bpf, `SELinux`, smackfs, resctrl, `binfmt_misc`, functionfs.
    const GENERATED_MAGICS: [u64; 16] = [
        0x9fa0, 0x6265_6572, 0x7472_6163, 0x6462_6720, 0x0027_e0eb, 0x6367_7270, 0x6265_6570, 0x7363_6673,
        0x6165_676c, 0xde5e_81e4, 0xcafe_4a11, 0xf97c_ff8c, 0x4341_5d53, 0x0765_5821, 0x4249_4e4d, 0x0a64_7361,
    ];
    kind.is_some_and(|kind| GENERATED_MAGICS.contains(&kind))
}

/// Whether closing the file may take a write error, even that of another writer. FUSE does so in
/// its flush. A file system that does not tell its type may be FUSE, since its program need not
/// answer statfs(2).
pub fn close_takes_errors(fd: c_int) -> bool {
    /// `FUSE_SUPER_MAGIC`.
    const FUSE_MAGIC: u64 = 0x6573_5546;
    file_system(fd).is_none_or(|kind| kind == FUSE_MAGIC)
}

fn control(fd: c_int, command: c_int, argument: c_int) -> Result<c_int, Errno> {
    by_numbers(libc::SYS_fcntl, [of(fd), command as usize, of(argument)]).map(|result| result as c_int)
}

/// Whether the program has a lease on the open file, which another opener would break (fcntl(2),
/// `F_GETLEASE`).
pub fn has_lease(fd: c_int) -> bool {
    control(fd, libc::F_GETLEASE, 0).is_ok_and(|lease| lease != libc::F_UNLCK)
}

/// Returns the flags of the open file: fcntl(2), `F_GETFL`.
pub fn flags(fd: c_int) -> Result<c_int, Errno> {
    control(fd, libc::F_GETFL, 0)
}

/// Whether flags of open(2) allow writing.
pub fn may_write(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Duplicates a descriptor to the lowest free number from `from` on, close-on-exec.
pub fn duplicate(fd: c_int, from: c_int) -> Result<c_int, Errno> {
    control(fd, libc::F_DUPFD_CLOEXEC, from)
}

/// Opens a file, close-on-exec.
pub fn open(path: &CStr, flags: c_int) -> Result<c_int, Errno> {
    let args = [of(libc::AT_FDCWD), path.as_ptr() as usize, (flags | libc::O_CLOEXEC) as usize];
    // SAFETY: `path` ends in a NUL and lives for the call.
    unsafe { call(libc::SYS_openat, args) }.map(|fd| fd as c_int)
}

/// Closes a descriptor of the calling thread's table.
pub fn close(fd: c_int) {
    let _ = by_numbers(libc::SYS_close, [of(fd)]);
}

/// A descriptor of the calling thread's table, which is closed when dropped.
#[derive(Debug)]
pub struct OwnedDescriptor(pub c_int);

impl OwnedDescriptor {
    /// Returns its number, for an owner that closes it.
    pub fn into_number(self) -> c_int {
        let number = self.0;
        core::mem::forget(self);
        number
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Calls `close_range(2)` (Linux 5.9) on the calling thread's table.
pub fn close_range(from: u32, to: u32, flags: u32) -> Result<(), Errno> {
    by_numbers(libc::SYS_close_range, [from as usize, to as usize, flags as usize]).map(drop)
}

/// Gives the calling thread a descriptor table of its own, a copy.
pub fn unshare_descriptors() -> Result<(), Errno> {
    by_numbers(libc::SYS_unshare, [libc::CLONE_FILES as usize]).map(drop)
}

/// Returns the process's limit of descriptors: the highest possible number plus one.
pub fn descriptor_limit() -> u64 {
    limit(libc::RLIMIT_NOFILE as usize).unwrap_or(0)
}

/// Whether a write may end by a signal at a limit of the file size (`RLIMIT_FSIZE`).
pub fn has_size_limit() -> bool {
    limit(libc::RLIMIT_FSIZE as usize) != Ok(libc::RLIM64_INFINITY)
}

fn limit(resource: usize) -> Result<u64, Errno> {
    // SAFETY: two numbers have the layout of struct rlimit64.
    unsafe { filled(|to| call(libc::SYS_prlimit64, [0, resource, 0, to])) }.map(|[limit, _]: [u64; 2]| limit)
}

/// Calls read(2).
pub fn read(fd: c_int, into: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: `into` is valid for the bytes read into it.
    unsafe { call(libc::SYS_read, [of(fd), into.as_mut_ptr() as usize, into.len()]) }
}

/// Calls pread(2).
pub fn read_at(fd: c_int, into: &mut [u8], at: u64) -> Result<usize, Errno> {
    // SAFETY: `into` is valid for the bytes read into it.
    unsafe { call(libc::SYS_pread64, [of(fd), into.as_mut_ptr() as usize, into.len(), at as usize]) }
}

/// Returns the start of a file's text, as far as `into` has room for it; an empty one if it cannot
/// be read.
pub fn text_of<'a>(path: &CStr, into: &'a mut [u8]) -> &'a [u8] {
    let file = open(path, libc::O_RDONLY).map(OwnedDescriptor);
    let length = file.and_then(|file| read(file.0, into)).unwrap_or(0);
    into.get(..length).unwrap_or_default()
}

/// Calls readlink(2). Returns the part of `into` that it filled.
pub fn read_link<'a>(path: &CStr, into: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let args = [of(libc::AT_FDCWD), path.as_ptr() as usize, into.as_mut_ptr() as usize, into.len()];
    // SAFETY: `path` ends in a NUL; `into` has as much room as its length says.
    let length = unsafe { call(libc::SYS_readlinkat, args) }?;
    into.get(..length).ok_or(Errno(libc::ENAMETOOLONG))
}

/// Reads a byte with those flags of preadv2(2). Returns how many bytes were read.
pub fn read_byte(fd: c_int, at: u64, flags: c_int) -> Result<usize, Errno> {
    let mut byte = 0_u8;
    let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let args = [of(fd), (&raw const part) as usize, 1, at as usize, 0, flags as usize];
    // SAFETY: `part` names one byte that lives for the call.
    unsafe { call(libc::SYS_preadv2, args) }
}

/// Whether reads of the file can be uncached (`RWF_DONTCACHE`). Tries one behind its end, where
/// nothing is read.
pub fn reads_uncached(fd: c_int, size: u64) -> bool {
    // Far behind the end, so that nothing is read if the file grows meanwhile.
    read_byte(fd, size.saturating_add(1 << 40).min(i64::MAX as u64 - 4096), UNCACHED).is_ok()
}

/// Reads a part of a file uncached, keeps none of its bytes, and returns their number; at most 128
/// KiB. The pages that it brings in are marked, and the next read of them drops them; it drops
/// marked pages that it finds. With `begins` it does not wait: if the first page is missing, it
/// starts to read all missing pages and fails with `EAGAIN`; otherwise it ends before the first
/// missing one.
pub fn read_nowhere(fd: c_int, at: u64, length: u64, begins: bool) -> Result<u64, Errno> {
    const PART_BYTES: usize = 4096;
    const PARTS_MAX: usize = 32;
    let mut bytes = [0_u8; PART_BYTES];
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: PART_BYTES };
    let parts = [part; PARTS_MAX];
    let count = (length as usize).div_ceil(PART_BYTES).min(PARTS_MAX);
    let flags = UNCACHED | if begins { libc::RWF_NOWAIT } else { 0 };
    let args = [of(fd), parts.as_ptr() as usize, count, at as usize, 0, flags as usize];
    // SAFETY: each part is the whole of `bytes`, which lives for the call and is read by nobody.
    unsafe { call(libc::SYS_preadv2, args) }.map(|done| done as u64)
}

/// Maps memory where there is none; `at` is a hint.
pub fn map(
    at: usize,
    length: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    from: u64,
) -> Result<usize, Errno> {
    if flags & libc::MAP_FIXED != 0 {
        // The call would replace another mapping.
        return Err(Errno(libc::EINVAL));
    }
    by_numbers(libc::SYS_mmap, [at, length, access as usize, flags as usize, of(fd), from as usize])
}

/// Unmaps memory.
///
/// # Safety
///
/// [`map`] returned it with that length, and nobody uses it.
pub unsafe fn unmap(at: usize, length: usize) -> Result<(), Errno> {
    // SAFETY: by this function's contract.
    unsafe { call(libc::SYS_munmap, [at, length]) }.map(drop)
}

/// Allocates zeroed memory in whole pages: private memory (`MAP_PRIVATE`), or memory that children
/// of fork share (`MAP_SHARED`).
pub fn take_memory(size: usize, kind: c_int) -> Result<*mut u8, Errno> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    map(0, size, access, kind | libc::MAP_ANONYMOUS, -1, 0).map(core::ptr::with_exposed_provenance_mut)
}

/// Frees memory.
///
/// # Safety
///
/// It was allocated with that size, and nobody uses it.
pub unsafe fn give_back(memory: *mut u8, size: usize) {
    // SAFETY: by this function's contract.
    let _ = unsafe { unmap(memory as usize, size) };
}

/// madvise(2).
///
/// # Safety
///
/// It is a mapping of the caller's own, and the advice leaves its contents alone.
pub unsafe fn advise_memory(at: usize, length: usize, advice: c_int) {
    // SAFETY: by this function's contract.
    let _ = unsafe { call(libc::SYS_madvise, [at, length, advice as usize]) };
}

/// mincore(2) of a range that begins at a page: whether each of its pages is resident, in the
/// lowest bit of a byte. Maps the range for the call; no child of fork inherits the mapping. A user
/// who neither owns the file nor may write to it gets all pages as resident.
pub fn mincore(fd: c_int, range: &Range<u64>, pages: &mut [u8]) -> Result<(), Errno> {
    let length = length(range);
    if (pages.len() as u64) < (length as u64).div_ceil(page_size()) {
        return Err(Errno(libc::EINVAL));
    }
    // Without access rights, so that a process that locks all its memory (mlockall(2)) does not
    // read the range in here.
    let at = map(0, length, libc::PROT_NONE, libc::MAP_SHARED, fd, range.start)?;
    // SAFETY: a mapping that nobody else knows, and which is not accessed; `pages` has a byte for
    // each of its pages.
    unsafe {
        advise_memory(at, length, libc::MADV_DONTFORK);
        let seen = call(libc::SYS_mincore, [at, length, pages.as_mut_ptr() as usize]);
        let _ = unmap(at, length);
        seen.map(drop)
    }
}

/// Returns the process id.
pub fn getpid() -> u32 {
    by_numbers(libc::SYS_getpid, []).map_or(0, |pid| pid as u32)
}

/// Whether there is a process with that id.
pub fn is_process(pid: u32) -> bool {
    by_numbers(libc::SYS_kill, [pid as usize, 0]) != Err(Errno(libc::ESRCH))
}

/// Returns the kernel's id of the calling thread.
pub fn thread_id() -> u32 {
    by_numbers(libc::SYS_gettid, []).map_or(0, |id| id as u32)
}

/// Whether the process has a thread with that id.
pub fn is_thread(id: u32) -> bool {
    by_numbers(libc::SYS_tgkill, [getpid() as usize, id as usize, 0]).is_ok()
}

/// Names the calling thread.
pub fn name_thread(name: &CStr) {
    // SAFETY: `name` ends in a NUL and lives for the call.
    let _ = unsafe { call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize]) };
}

/// Yields the processor to another thread.
pub fn give_way() {
    let _ = by_numbers(libc::SYS_sched_yield, []);
}

/// Returns the monotonic clock in nanoseconds.
pub fn now() -> u64 {
    // SAFETY: the kernel's structure is the C library's.
    let time: Result<libc::timespec, _> =
        unsafe { filled(|to| call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, to])) };
    time.map_or(0, |time| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Sleeps for `ns` nanoseconds, or less if a signal comes. Uses the same system call as the C
/// library, which filters know.
pub fn sleep(ns: u64) {
    let time = timespec(ns);
    let args = [libc::CLOCK_MONOTONIC as usize, 0, (&raw const time) as usize];
    // SAFETY: `time` lives for the call.
    let _ = unsafe { call(libc::SYS_clock_nanosleep, args) };
}

/// Waits while `word` is `value`, for at most `ns` nanoseconds. May wake spuriously.
pub fn futex_wait(word: &AtomicU32, value: u32, ns: u64) {
    let time = timespec(ns);
    let op = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let args = [word.as_ptr() as usize, op, value as usize, (&raw const time) as usize];
    // SAFETY: `word` and `time` live for the call.
    let _ = unsafe { call(libc::SYS_futex, args) };
}

/// Waits until `done` returns something, for at most `max` nanoseconds. It is called with the value
/// of `word` whenever that changes, and after `poll` nanoseconds.
pub fn wait_until<R>(
    word: &AtomicU32,
    poll: u64,
    max: u64,
    mut done: impl FnMut(u32) -> Option<R>,
) -> Option<R> {
    let mut end = None;
    loop {
        let value = word.load(Ordering::SeqCst);
        if let Some(result) = done(value) {
            return Some(result);
        }
        let now = now();
        if now >= *end.get_or_insert(now.saturating_add(max)) {
            return None;
        }
        futex_wait(word, value, poll);
    }
}

/// Wakes all threads that wait for `word`.
pub fn futex_wake(word: &AtomicU32) {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the kernel uses the address as a key only.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, op, c_int::MAX as usize]) };
}

/// Waits until `fd` has something to read or has ended, for at most `ns` nanoseconds (`None`: no
/// limit). Returns whether it has.
pub fn readable(fd: c_int, ns: Option<u64>) -> bool {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = timespec(ns.unwrap_or_default());
    let limit = if ns.is_some() { (&raw const time) as usize } else { 0 };
    // SAFETY: `wanted` and `time` live for the call.
    unsafe { call(libc::SYS_ppoll, [(&raw mut wanted) as usize, 1, limit]) }.is_ok_and(|ready| ready > 0)
}

/// Returns the bytes of a page.
pub fn page_size() -> u64 {
    static PAGE_BYTES: AtomicU64 = AtomicU64::new(0);
    let known = PAGE_BYTES.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: it reads a value that the kernel passed to the process at its start, which is always
    // there, and allocates nothing.
    let size = unsafe { libc::getauxval(libc::AT_PAGESZ) }.max(4096);
    PAGE_BYTES.store(size, Ordering::Relaxed);
    size
}

/// Lengthens a file to `length` bytes and allocates its blocks: `fallocate(2)`.
pub fn take_room(fd: c_int, length: u64) -> Result<(), Errno> {
    by_numbers(libc::SYS_fallocate, [of(fd), 0, 0, length as usize]).map(drop)
}
