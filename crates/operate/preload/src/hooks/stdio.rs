//! Hooks of the C library's streams (`FILE`), which read and write by internal calls that cannot be
//! hooked. The rules treat their files as read or written by such calls.
//!
//! Streams that the program opens are noted when it opens them. The use of the three standard
//! streams is not known at the start: the first call that reads or writes one shows it.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering};

use super::{closing, keeping_errno, opened};
use crate::process::HookScope;
use crate::rules::{FILES, Slot};
use crate::{process, rules};

type Stream = *mut c_void;
/// Variable arguments that were already taken (`va_list`): an address on both architectures.
type VariadicArguments = *mut c_void;

/// Followed descriptors that may belong to a standard stream: a bit for each, until its use is
/// known.
pub(super) static STANDARD_STREAMS: AtomicU8 = AtomicU8::new(0);
/// The standard descriptors: input, output and error.
const STANDARD_COUNT: c_int = 3;

/// Notes a descriptor that the process was started with, opened or duplicated: a standard stream
/// may use its number.
#[inline]
pub(crate) fn may_be_standard(fd: c_int) {
    if (0..STANDARD_COUNT).contains(&fd) && FILES.is_followed(fd) {
        STANDARD_STREAMS.fetch_or(1 << fd, Ordering::Relaxed);
    }
}

/// Notifies the rules before a stream is read or written.
///
/// # Safety
///
/// The stream is open.
#[inline]
pub(super) unsafe fn used(stream: Stream) {
    if STANDARD_STREAMS.load(Ordering::Relaxed) != 0 {
        // SAFETY: by this function's contract.
        unsafe { used_first(stream) };
    }
}

#[cold]
#[inline(never)]
unsafe fn used_first(stream: Stream) {
    // SAFETY: by this function's contract.
    used_descriptor(unsafe { descriptor(stream) });
}

#[cold]
#[inline(never)]
pub(super) fn used_descriptor(fd: c_int) {
    if !(0..STANDARD_COUNT).contains(&fd) || !process::is_on() {
        return;
    }
    let bit = 1 << fd;
    if STANDARD_STREAMS.fetch_and(!bit, Ordering::Relaxed) & bit != 0
        && let Some(slot) = FILES.slot_of(fd)
    {
        keeping_errno(|| rules::passed_by(slot, fd));
    }
}

/// Notifies the rules before a standard stream is read or written.
#[inline]
fn used_standard(fd: c_int) {
    if STANDARD_STREAMS.load(Ordering::Relaxed) != 0 {
        used_descriptor(fd);
    }
}

/// Returns the descriptor of an open stream; negative if it has none.
///
/// # Safety
///
/// The stream is open.
unsafe fn descriptor(stream: Stream) -> c_int {
    // SAFETY: by this function's contract.
    keeping_errno(|| unsafe { fileno::NEXT.get()(stream) })
}

#[cold]
#[inline(never)]
fn unseen(slot: &Slot, fd: c_int) {
    if process::is_on() {
        keeping_errno(|| rules::passed_by(slot, fd));
    }
}

/// Returns flags of open(2) for a mode of fopen(3), as far as the rules need them.
fn flags_of(mode: &[u8]) -> c_int {
    let update = mode.contains(&b'+');
    let access = |alone| if update { libc::O_RDWR } else { alone };
    match mode.first() {
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => access(libc::O_RDONLY),
    }
}

/// Notifies the rules that a stream was opened.
///
/// # Safety
///
/// The stream is null or open, and the strings that it was opened with are unchanged; `path` may be
/// null.
unsafe fn began(stream: Stream, path: *const c_char, mode: *const c_char) {
    if stream.is_null() || mode.is_null() || process::hook_scope() == HookScope::Nothing {
        return;
    }
    // SAFETY: it is open, and was opened with a string as its mode.
    let (fd, mode) = unsafe { (descriptor(stream), core::ffi::CStr::from_ptr(mode)) };
    let flags = flags_of(mode.to_bytes());
    // SAFETY: likewise.
    unsafe { opened(fd, path, flags) };
    if let Some(slot) = FILES.slot_of(fd) {
        unseen(slot, fd);
    }
}

/// Notifies the rules before a stream is closed.
///
/// # Safety
///
/// The stream is open.
unsafe fn ends(stream: Stream) {
    if process::hook_scope() == HookScope::Nothing || stream.is_null() {
        return;
    }
    // SAFETY: by this function's contract.
    let fd = unsafe { descriptor(stream) };
    if FILES.is_followed(fd) {
        closing(fd);
    }
}

next! { fileno(stream: Stream) -> c_int, or(-1) }

// The most used functions that read and write streams. The inline code of the C library's headers
// (`getc_unlocked`) calls `__uflow` and `__overflow` at a buffer's end. Functions on standard input
// or output do not take the stream as an argument. If the program replaced the standard stream,
// that one was already noted when it was opened.
hooks! {
    fn [fopen fopen64](path: *const c_char, mode: *const c_char) -> Stream, or(core::ptr::null_mut()), (next) => {
        let stream = next(path, mode);
        // SAFETY: it was just opened with them.
        unsafe { began(stream, path, mode) };
        stream
    };
    fn [freopen freopen64](path: *const c_char, mode: *const c_char, stream: Stream) -> Stream,
    or(core::ptr::null_mut()), (next) => {
        // SAFETY: the program's stream is open, by freopen's contract.
        unsafe { ends(stream) };
        let stream = next(path, mode, stream);
        // SAFETY: it was just opened with them.
        unsafe { began(stream, path, mode) };
        stream
    };
    fn [fdopen](fd: c_int, mode: *const c_char) -> Stream, or(core::ptr::null_mut()), (next) => {
        let stream = next(fd, mode);
        if !stream.is_null()
            && let Some(slot) = FILES.slot_of(fd)
        {
            unseen(slot, fd);
        }
        stream
    };
    fn [fclose](stream: Stream) -> c_int, or(-1), (first) => ends(stream);
    fn [__overflow](stream: Stream, byte: c_int) -> c_int, or(libc::EOF), (first) => used(stream);
    fn [vfprintf](stream: Stream, format: *const c_char, arguments: VariadicArguments) -> c_int, or(-1),
    (first) => used(stream);
    fn [__vfprintf_chk](stream: Stream, flag: c_int, format: *const c_char, arguments: VariadicArguments) -> c_int, or(-1),
    (first) => used(stream);
    fn [getchar getchar_unlocked]() -> c_int, or(libc::EOF), (first) => used_standard(0);
    fn [putchar putchar_unlocked](byte: c_int) -> c_int, or(libc::EOF), (first) => used_standard(1);
    fn [puts](text: *const c_char) -> c_int, or(libc::EOF), (first) => used_standard(1);
    fn [vprintf](format: *const c_char, arguments: VariadicArguments) -> c_int, or(-1), (first) => used_standard(1);
    fn [__vprintf_chk](flag: c_int, format: *const c_char, arguments: VariadicArguments) -> c_int, or(-1),
    (first) => used_standard(1);
    fn [fread fread_unlocked](to: *mut c_void, size: usize, count: usize, stream: Stream) -> usize, or(0),
    (first) => used(stream);
    fn [__fread_chk __fread_unlocked_chk](to: *mut c_void, room: usize, size: usize, count: usize, stream: Stream) -> usize,
    or(0), (first) => used(stream);
    fn [fgets fgets_unlocked](to: *mut c_char, size: c_int, stream: Stream) -> *mut c_char, or(core::ptr::null_mut()),
    (first) => used(stream);
    fn [__fgets_chk __fgets_unlocked_chk](to: *mut c_char, room: usize, size: c_int, stream: Stream) -> *mut c_char,
    or(core::ptr::null_mut()), (first) => used(stream);
    fn [getline](line: *mut *mut c_char, room: *mut usize, stream: Stream) -> isize, or(-1),
    (first) => used(stream);
    fn [getdelim __getdelim](line: *mut *mut c_char, room: *mut usize, end: c_int, stream: Stream) -> isize, or(-1),
    (first) => used(stream);
    fn [getc getc_unlocked fgetc_unlocked fgetc _IO_getc __uflow](stream: Stream) -> c_int, or(libc::EOF),
    (first) => used(stream);
    fn [putc fputc putc_unlocked fputc_unlocked _IO_putc](byte: c_int, stream: Stream) -> c_int, or(libc::EOF),
    (first) => used(stream);
    fn [fwrite fwrite_unlocked](from: *const c_void, size: usize, count: usize, stream: Stream) -> usize, or(0),
    (first) => used(stream);
    fn [fputs fputs_unlocked](text: *const c_char, stream: Stream) -> c_int, or(libc::EOF),
    (first) => used(stream);
}
