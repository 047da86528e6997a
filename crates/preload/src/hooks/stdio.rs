//! Hooks of the C library's streams (`FILE`), which read and write by internal calls that no hook sees: the rules treat their files as
//! read or written by such calls.
//!
//! Streams that the program opens are noted then. Whether the three that it is started with are used is not known: the first call that
//! reads or writes one shows it.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering};

use super::{closing, keeping_errno, opened};
use crate::process::Concern;
use crate::rules::{FILES, Slot};
use crate::{process, real, rules};

pub(super) type Stream = *mut c_void;

/// Descriptors that the process was started with, and that a stream of the C library may be for: a bit for each, until it is known.
pub(super) static STARTED: AtomicU8 = AtomicU8::new(0);
/// How many there are: standard input, output and error.
const STARTED_COUNT: c_int = 3;

/// The process was started with a descriptor.
pub(crate) fn started_with(fd: c_int) {
    if (0..STARTED_COUNT).contains(&fd) && FILES.is_followed(fd) {
        STARTED.fetch_or(1 << fd, Ordering::Relaxed);
    }
}

/// A stream is about to be read or written.
///
/// # Safety
///
/// It is open.
#[inline]
pub(super) unsafe fn used(stream: Stream) {
    if STARTED.load(Ordering::Relaxed) != 0 {
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
    if !(0..STARTED_COUNT).contains(&fd) || !process::is_on() {
        return;
    }
    let bit = 1 << fd;
    if STARTED.fetch_and(!bit, Ordering::Relaxed) & bit != 0
        && let Some(slot) = FILES.slot_of(fd)
    {
        keeping_errno(|| rules::passed_by(slot, fd));
    }
}

/// The descriptor of a stream that is open; negative where it has none.
///
/// # Safety
///
/// The stream is open.
unsafe fn descriptor(stream: Stream) -> c_int {
    // SAFETY: by this function's contract.
    keeping_errno(|| unsafe { real::fileno.get()(stream) })
}

#[cold]
#[inline(never)]
fn unseen(slot: &Slot, fd: c_int) {
    if process::is_on() {
        keeping_errno(|| rules::passed_by(slot, fd));
    }
}

/// Flags of open(2) for a mode of fopen(3), as far as the rules need them.
fn flags_of(mode: &[u8]) -> c_int {
    let update = mode.contains(&b'+');
    let access = |alone| if update { libc::O_RDWR } else { alone };
    match mode.first() {
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => access(libc::O_RDONLY),
    }
}

/// A stream was opened.
///
/// # Safety
///
/// The stream is null or open, and what it was opened with is as it was; `path` may be null.
unsafe fn began(stream: Stream, path: *const c_char, mode: *const c_char) {
    if stream.is_null() || mode.is_null() || process::concern() == Concern::Nothing {
        return;
    }
    // SAFETY: it is open; what opened it was a string.
    let (fd, mode) = unsafe { (descriptor(stream), core::ffi::CStr::from_ptr(mode)) };
    let flags = flags_of(mode.to_bytes());
    // SAFETY: likewise.
    unsafe { opened(fd, path, flags) };
    if let Some(slot) = FILES.slot_of(fd) {
        unseen(slot, fd);
    }
}

macro_rules! open {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> Stream {
            // SAFETY: with what the program gave.
            let stream = unsafe { real::$name.get()(path, mode) };
            // SAFETY: it has just been opened with them.
            unsafe { began(stream, path, mode) };
            stream
        }
    )*};
}
open!(fopen fopen64);

macro_rules! reopen {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char, stream: Stream) -> Stream {
            // SAFETY: the program's stream is open, by freopen's contract.
            unsafe { ends(stream) };
            // SAFETY: with what the program gave.
            let stream = unsafe { real::$name.get()(path, mode, stream) };
            // SAFETY: it has just been opened with them.
            unsafe { began(stream, path, mode) };
            stream
        }
    )*};
}
reopen!(freopen freopen64);

/// A stream is about to be closed.
///
/// # Safety
///
/// It is open.
unsafe fn ends(stream: Stream) {
    if process::concern() == Concern::Nothing || stream.is_null() {
        return;
    }
    // SAFETY: by this function's contract.
    let fd = unsafe { descriptor(stream) };
    if FILES.is_followed(fd) {
        closing(fd);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> Stream {
    // SAFETY: with what the program gave.
    let stream = unsafe { real::fdopen.get()(fd, mode) };
    if !stream.is_null()
        && let Some(slot) = FILES.slot_of(fd)
    {
        unseen(slot, fd);
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: Stream) -> c_int {
    // SAFETY: the program's stream is open, by fclose's contract.
    unsafe { ends(stream) };
    // SAFETY: with what the program gave.
    unsafe { real::fclose.get()(stream) }
}

// What streams are read and written by most; the stream is the last argument of all. What the C library's headers put into programs
// in place of a call (`getc_unlocked`) comes to `__uflow` and `__overflow` as a buffer ends.
macro_rules! using {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type,)* stream: Stream) -> $result {
            // SAFETY: the program's stream is open, by the function's contract; with what the program gave.
            unsafe {
                used(stream);
                real::$name.get()($($arg,)* stream)
            }
        }
    )*};
}
using! {
    fread(to: *mut c_void, size: usize, count: usize) -> usize;
    fread_unlocked(to: *mut c_void, size: usize, count: usize) -> usize;
    fgets(to: *mut c_char, size: c_int) -> *mut c_char;
    getline(line: *mut *mut c_char, room: *mut usize) -> isize;
    getdelim(line: *mut *mut c_char, room: *mut usize, end: c_int) -> isize;
    __getdelim(line: *mut *mut c_char, room: *mut usize, end: c_int) -> isize;
    fgets_unlocked(to: *mut c_char, size: c_int) -> *mut c_char;
    __fread_chk(to: *mut c_void, room: usize, size: usize, count: usize) -> usize;
    __fread_unlocked_chk(to: *mut c_void, room: usize, size: usize, count: usize) -> usize;
    __fgets_chk(to: *mut c_char, room: usize, size: c_int) -> *mut c_char;
    __fgets_unlocked_chk(to: *mut c_char, room: usize, size: c_int) -> *mut c_char;
    getc() -> c_int;
    getc_unlocked() -> c_int;
    fgetc_unlocked() -> c_int;
    fgetc() -> c_int;
    _IO_getc() -> c_int;
    __uflow() -> c_int;
    putc(byte: c_int) -> c_int;
    fputc(byte: c_int) -> c_int;
    putc_unlocked(byte: c_int) -> c_int;
    fputc_unlocked(byte: c_int) -> c_int;
    _IO_putc(byte: c_int) -> c_int;
    fwrite(from: *const c_void, size: usize, count: usize) -> usize;
    fwrite_unlocked(from: *const c_void, size: usize, count: usize) -> usize;
    fputs(text: *const c_char) -> c_int;
    fputs_unlocked(text: *const c_char) -> c_int;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __overflow(stream: Stream, byte: c_int) -> c_int {
    // SAFETY: the program's stream is open, by the function's contract; with what the program gave.
    unsafe {
        used(stream);
        real::__overflow.get()(stream, byte)
    }
}

// Of standard input or output, whose stream is not an argument. A program that has put another stream there has it noted all the
// same: of that it is known already.
macro_rules! using_standard {
    ($($name:ident($($arg:ident: $type:ty)?) -> $result:ty, of $fd:literal;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type)?) -> $result {
            if STARTED.load(Ordering::Relaxed) != 0 {
                used_descriptor($fd);
            }
            // SAFETY: with what the program gave.
            unsafe { real::$name.get()($($arg)?) }
        }
    )*};
}
using_standard! {
    getchar() -> c_int, of 0;
    getchar_unlocked() -> c_int, of 0;
    putchar(byte: c_int) -> c_int, of 1;
    putchar_unlocked(byte: c_int) -> c_int, of 1;
    puts(text: *const c_char) -> c_int, of 1;
}
