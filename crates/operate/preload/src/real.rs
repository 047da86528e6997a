//! The C library's own functions, as the hooks call them: the next definitions of the same names.
//!
//! Each function is looked up on its first call, which takes no memory and no lock ([`crate::symbols`]): a small program calls few of them.
//! If that lookup cannot tell, dlsym(3) looks up all of them while the library is loaded, since it allocates. A call before that (from the
//! constructor of another library, or from an allocator's first steps) makes the system call itself, as the C library would. Only functions
//! that are not system calls (streams of the C library, temporary files) are then looked up by dlsym(3).
//!
//! Invariants: a function is never missing. One that an older C library does not have remains the system call itself. `errno` is set as the
//! C library sets it.

#![allow(unsafe_code, reason = "calls and names functions of the C library")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::marker::PhantomData;
use core::mem::{size_of, transmute_copy};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::introspection;
use crate::launcher::Words;
use crate::symbols::{Found, Objects};
use crate::sys::{self, Errno};

// The version in the oldest supported C library (2.31); without this, the newest version would be linked. The reference is weak, since 2.31
// has dlsym in a library of its own: the address is null if that is not loaded.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".symver dlsym, dlsym@GLIBC_2.2.5");
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(".symver dlsym, dlsym@GLIBC_2.17");
core::arch::global_asm!(
    ".weak dlsym",
    ".pushsection .data.rel.ro, \"aw\"",
    ".balign 8",
    ".globl pagekeeper_dlsym",
    ".hidden pagekeeper_dlsym",
    "pagekeeper_dlsym:",
    ".quad dlsym",
    ".popsection",
);

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    #[link_name = "pagekeeper_dlsym"]
    static DLSYM: Option<Dlsym>;
    fn __errno_location() -> *mut c_int;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The objects of the process, to find the definitions next to this library's. Filled once, in the library's memory.
struct Known(UnsafeCell<Objects>);

// SAFETY: written by the thread that set `STATE` to `FILLING`, and only read after that one set it to `READY`.
unsafe impl Sync for Known {}

static KNOWN: Known = Known(UnsafeCell::new(Objects::NONE));
static STATE: AtomicU8 = AtomicU8::new(EMPTY);
const EMPTY: u8 = 0;
const FILLING: u8 = 1;
const READY: u8 = 2;

#[inline(never)]
fn with_objects<R>(act: impl FnOnce(&Objects) -> R) -> R {
    if STATE.compare_exchange(EMPTY, FILLING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        // SAFETY: no other thread has it.
        unsafe { &mut *KNOWN.0.get() }.fill(find_all as *const () as usize);
        STATE.store(READY, Ordering::Release);
    }
    if STATE.load(Ordering::Acquire) == READY {
        // SAFETY: never written again.
        return act(unsafe { &*KNOWN.0.get() });
    }
    // Another thread is filling it, or this is a handler that interrupted the one that does.
    with_own_objects(act)
}

/// A function of its own, since the list is on the stack.
#[cold]
#[inline(never)]
fn with_own_objects<R>(act: impl FnOnce(&Objects) -> R) -> R {
    let mut objects = Objects::NONE;
    objects.fill(find_all as *const () as usize);
    act(&objects)
}

/// Returns the definition of a name next to this library's; null if there is none.
fn next(name: &CStr) -> *mut c_void {
    settled(with_objects(|objects| objects.next(name)), libc::RTLD_NEXT, name)
}

/// Returns the first definition of a name in the whole program.
fn first(name: &CStr) -> *mut c_void {
    settled(with_objects(|objects| objects.first(name)), libc::RTLD_DEFAULT, name)
}

fn settled(found: Found, handle: *mut c_void, name: &CStr) -> *mut c_void {
    match found {
        Found::At(address) => address,
        Found::Nowhere => core::ptr::null_mut(),
        // SAFETY: set by the loader; the name ends with a null byte.
        Found::Unknown => unsafe {
            DLSYM.map_or(core::ptr::null_mut(), |dlsym| dlsym(handle, name.as_ptr()))
        },
    }
}

/// The next definition of a function of type `F`.
#[repr(C)]
pub(crate) struct Next<F> {
    /// The first field: formatted output jumps there.
    at: AtomicPtr<()>,
    name: &'static CStr,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// Creates one that calls `first` until it is looked up.
    pub(crate) const fn new(name: &'static CStr, first: *const ()) -> Self {
        assert!(size_of::<F>() == size_of::<*mut ()>());
        Self { at: AtomicPtr::new(first.cast_mut()), name, kind: PhantomData }
    }

    /// Returns the function.
    #[inline]
    pub(crate) fn get(&self) -> F {
        let at = self.at.load(Ordering::Relaxed);
        // SAFETY: `F` is the type of a function and as large as a pointer (`new`); `at` is a function of that type: `first`, or the C
        // library's function of that name.
        unsafe { transmute_copy(&at) }
    }

    /// Looks the function up if it still is `first`. A missing one does nothing, and returns an error.
    pub(crate) fn find_unless_found(&self, first: *const ()) {
        unsafe extern "C" fn missing() -> c_int {
            set_errno(libc::ENOSYS);
            -1
        }
        if self.at.load(Ordering::Relaxed).cast_const() == first && !self.find() {
            self.at.store((missing as *const ()).cast_mut(), Ordering::Relaxed);
        }
    }

    /// Looks the function up; returns whether there is one.
    #[cold]
    #[inline(never)]
    pub(crate) fn find(&self) -> bool {
        self.keep(next(self.name))
    }

    /// Looks the function up without dlsym(3), for a call that may be in a signal handler or an allocator.
    #[cold]
    #[inline(never)]
    fn find_here(&self) -> bool {
        match with_objects(|objects| objects.next(self.name)) {
            Found::At(address) => self.keep(address),
            Found::Nowhere | Found::Unknown => false,
        }
    }

    fn keep(&self, at: *mut c_void) -> bool {
        if !at.is_null() {
            self.at.store(at.cast(), Ordering::Relaxed);
        }
        !at.is_null()
    }
}

/// Returns the C library's function of that name, not the program's own: that of a garbage collector would make the helper one of the
/// threads that it stops. A sanitizer's function is used, since it must know all threads. Null if there is none.
pub(crate) fn address(name: &CStr) -> *mut c_void {
    let sanitizers = [c"__asan_init", c"__tsan_init", c"__msan_init", c"__hwasan_init"];
    let is_sanitized = sanitizers.iter().any(|name| !first(name).is_null());
    let next = if is_sanitized { core::ptr::null_mut() } else { next(name) };
    if next.is_null() { first(name) } else { next }
}

/// Returns the environment of the process, as the C library has it; null if there is none. Looked up once, in the constructor.
pub(crate) fn environment() -> Words {
    static AT: AtomicPtr<Words> = AtomicPtr::new(core::ptr::null_mut());
    if AT.load(Ordering::Relaxed).is_null() {
        // The C library itself uses the program's copy, if there is one.
        AT.store(first(c"environ").cast(), Ordering::Relaxed);
    }
    // SAFETY: null, or the C library's variable, or the program's of the same name, which takes its place.
    unsafe { AT.load(Ordering::Relaxed).as_ref() }.copied().unwrap_or(core::ptr::null())
}

/// Returns the calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: memory of the thread's own, which is always there.
    unsafe { *__errno_location() }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(to: c_int) {
    // SAFETY: memory of the thread's own, which is always there.
    unsafe { *__errno_location() = to }
}

/// Ends the program as the C library does if a buffer is too small for the data.
pub(crate) fn overflowed() -> ! {
    __chk_fail.find_here();
    // SAFETY: it takes no arguments, and does not return.
    unsafe { (__chk_fail.get())() }
}

#[allow(non_upper_case_globals, reason = "named as the function that it stands for")]
static __chk_fail: Next<unsafe extern "C" fn() -> !> = Next::new(c"__chk_fail", libc::abort as *const ());

/// Whether the C library is the one that this library is made for, by two names that only that one has together. Another one (musl) starts
/// constructors without the arguments of `main`; its compatibility layer (gcompat) has only the first name. Neither name is linked to, so
/// that programs with another C library can be started.
pub(crate) fn is_for_this() -> bool {
    [c"__register_atfork", c"__libc_stack_end"].iter().all(|name| !first(name).is_null())
}

/// Registers handlers for each fork: before it, after it in the parent, and in the child. Returns `false` if that fails.
pub(crate) fn around_forks(
    before: unsafe extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) -> bool {
    type Act = Option<unsafe extern "C" fn()>;
    type Register = unsafe extern "C" fn(Act, Act, Act, *mut c_void) -> c_int;
    let register = address(c"__register_atfork");
    // SAFETY: the C library's function of that name has this type. It takes functions, and a null pointer; the library is never unloaded,
    // since it was loaded at the program's start.
    !register.is_null()
        && unsafe {
            let register = core::mem::transmute::<*mut c_void, Register>(register);
            register(Some(before), Some(parent), Some(child), core::ptr::null_mut()) == 0
        }
}

/// Sets whether the calling thread can be cancelled (`PTHREAD_CANCEL_ENABLE` 0, `PTHREAD_CANCEL_DISABLE` 1); returns the previous state.
pub(crate) fn set_cancellable(state: c_int) -> c_int {
    let mut old = 0;
    // SAFETY: `old` lives for the call.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

/// Converts a system call's result to the C library's form.
fn settle(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(Errno(number)) => {
            set_errno(number);
            -1
        }
    }
}

/// Defines the next definition of a function. Until it is looked up, `first` stands for it: it looks the function up by `$find`, or else is
/// `$else`.
macro_rules! next {
    (@of $kind:ty: $name:ident($($arg:ident: $type:ty),*) -> $result:ty, $find:ident else $else:expr) => {
        #[allow(non_upper_case_globals, reason = "named as the function that it stands for")]
        pub(crate) static $name: Next<$kind> = {
            unsafe extern "C" fn first($($arg: $type),*) -> $result {
                if $name.$find() {
                    // SAFETY: the caller keeps the contract of the C library's function, which this is.
                    unsafe { ($name.get())($($arg),*) }
                } else {
                    $else
                }
            }
            Next::new(name(concat!(stringify!($name), "\0")), first as *const ())
        };
    };
    ($name:ident($($arg:ident: $type:ty),*) -> $result:ty, $find:ident else $else:expr) => {
        next! {
            @of unsafe extern "C" fn($($type),*) -> $result:
            $name($($arg: $type),*) -> $result, $find else $else
        }
    };
    (@call $name:ident $args:tt -> $result:ty = $number:expr, [$($given:expr),*]) => {
        next! {
            $name $args -> $result, find_here else
            // SAFETY: the caller keeps the contract of the C library's function, which is the system call's.
            settle(unsafe { sys::call($number, [$($given as usize),*]) }) as $result
        }
    };
}

/// Defines functions that are system calls: names of one signature, and the call's number and arguments.
macro_rules! calls {
    ($([$($name:ident)+] $args:tt -> $result:ty = $number:expr, $given:tt;)*) => {
        $($(next! { @call $name $args -> $result = $number, $given })+)*

        fn find_calls() {
            $($($name.find();)+)*
        }
    };
}

/// Defines functions that are more than a system call.
macro_rules! functions {
    ($([$($name:ident)+] $args:tt -> $result:ty, else $failed:expr;)*) => {
        $($(next! {
            $name $args -> $result, find else {
                set_errno(libc::ENOSYS);
                $failed
            }
        })+)*

        fn find_functions() {
            $($($name.find();)+)*
        }
    };
}

/// Defines functions whose system calls need more than a number, with the types in which their variable arguments are passed.
macro_rules! others {
    ($([$($name:ident)+] $args:tt -> $result:ty, $kind:ty = $first:expr;)*) => {
        $($(next! {
            @of $kind: $name $args -> $result, find_here else
            // SAFETY: the caller keeps the contract of the C library's function, which this one replaces.
            unsafe { $first }
        })+)*

        fn find_others() {
            $($($name.find();)+)*
        }
    };
}

/// Converts a name that ends in a null byte.
pub(crate) const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name holds a null byte"),
    }
}

/// Looks up all functions if that must not be done later; returns whether it did. Called once, before the program's own code runs.
pub(crate) fn find_all() -> bool {
    let must_find = !with_objects(Objects::are_all);
    if must_find {
        find_calls();
        find_functions();
        find_others();
        __chk_fail.find();
    }
    must_find
}

/// `open`, which takes a mode if the flags require one.
pub(crate) type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
/// `openat`, which takes a mode if the flags require one.
pub(crate) type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
/// `fcntl`, whose last argument depends on the command.
pub(crate) type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
/// `prctl`, whose arguments depend on the option.
pub(crate) type Prctl = unsafe extern "C" fn(c_int, ...) -> c_int;
/// `syscall`, declared with a fixed number of arguments: on both architectures variable integer arguments are passed like fixed ones.
pub(crate) type Syscall =
    unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// Files are opened as 64-bit ones on both architectures, as the C library's 64-bit functions do.
const LARGE: c_int = if cfg!(target_arch = "x86_64") { 0 } else { libc::O_LARGEFILE };

unsafe extern "C" fn first_openat(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let mode = if flags & (libc::O_CREAT | libc::O_TMPFILE) == 0 { 0 } else { mode };
    let args = [at as usize, path as usize, (flags | LARGE) as usize, mode as usize];
    // SAFETY: the caller keeps openat's contract, which is the system call's.
    settle(unsafe { sys::call(libc::SYS_openat, args) }) as c_int
}

unsafe extern "C" fn first_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let args = [fd as usize, command as usize, argument as usize];
    // SAFETY: the caller keeps fcntl's contract, which is the system call's.
    settle(unsafe { sys::call(libc::SYS_fcntl, args) }) as c_int
}

unsafe extern "C" fn first_prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int {
    let args = [option as usize, a as usize, b as usize, c as usize, d as usize];
    // SAFETY: the caller keeps prctl's contract, which is the system call's.
    settle(unsafe { sys::call(libc::SYS_prctl, args) }) as c_int
}

#[allow(clippy::many_single_char_names, reason = "the arguments of any system call")]
unsafe extern "C" fn first_syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let args = [a as usize, b as usize, c as usize, d as usize, e as usize, f as usize];
    // SAFETY: the caller keeps the contract of the system call that it names.
    settle(unsafe { sys::call(number, args) }) as c_long
}

/// libaio's function: it returns the error and leaves `errno`.
unsafe extern "C" fn first_submit(context: *mut c_void, count: c_long, list: *mut *mut c_void) -> c_int {
    let args = [context as usize, count as usize, list as usize];
    // SAFETY: the caller keeps io_submit's contract, which is the system call's.
    match unsafe { sys::call(libc::SYS_io_submit, args) } {
        Ok(submitted) => submitted as c_int,
        Err(Errno(number)) => -number,
    }
}

/// Replaces `closefrom`, which C libraries before 2.34 lack.
unsafe extern "C" fn first_closefrom(first: c_int) {
    let first = first.max(0);
    let all = [first as usize, c_uint::MAX as usize];
    // SAFETY: the caller wants all descriptors from that one on closed.
    if unsafe { sys::call(libc::SYS_close_range, all) }.is_ok() {
        return;
    }
    // Before Linux 5.9.
    let named = introspection::named_descriptors(|fd| {
        if fd >= first {
            sys::close(fd);
        }
    });
    if !named {
        (first..sys::descriptor_limit().min(1 << 20) as c_int).for_each(sys::close);
    }
}

unsafe extern "C" fn first_exit(status: c_int) -> ! {
    loop {
        // SAFETY: no pointers; it does not return.
        let _ = unsafe { sys::call(libc::SYS_exit_group, [status as usize]) };
    }
}

others! {
    [open open64](path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int,
        Open = first_openat(libc::AT_FDCWD, path, flags, mode);
    [openat openat64](at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int,
        OpenAt = first_openat(at, path, flags, mode);
    [fcntl fcntl64](fd: c_int, command: c_int, argument: c_long) -> c_int,
        Fcntl = first_fcntl(fd, command, argument);
    [prctl](option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int, Prctl = first_prctl(option, a, b, c, d);
    [syscall](number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long,
        Syscall = first_syscall(number, a, b, c, d, e, f);
    [closefrom](first: c_int) -> (), unsafe extern "C" fn(c_int) = first_closefrom(first);
    [io_submit](context: *mut c_void, count: c_long, list: *mut *mut c_void) -> c_int,
        unsafe extern "C" fn(*mut c_void, c_long, *mut *mut c_void) -> c_int = first_submit(context, count, list);
    [_exit _Exit](status: c_int) -> !, unsafe extern "C" fn(c_int) -> ! = first_exit(status);
}

const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC | LARGE;

/// Returns the number of a call that reads `length` bytes into a buffer of `room` bytes. Ends the program if the buffer is too small.
fn checked(length: usize, room: usize, number: c_long) -> c_long {
    if length > room { overflowed() } else { number }
}

// Offsets as preadv(2) takes them: on 64-bit architectures the low half has all 64 bits, and the high half is left out.
calls! {
    [__open_2 __open64_2](path: *const c_char, flags: c_int) -> c_int =
        libc::SYS_openat, [libc::AT_FDCWD, path, flags | LARGE];
    [__openat_2 __openat64_2](at: c_int, path: *const c_char, flags: c_int) -> c_int =
        libc::SYS_openat, [at, path, flags | LARGE];
    [creat creat64](path: *const c_char, mode: libc::mode_t) -> c_int =
        libc::SYS_openat, [libc::AT_FDCWD, path, CREATE, mode];

    [execveat](at: c_int, path: *const c_char, words: Words, environment: Words, flags: c_int) -> c_int =
        libc::SYS_execveat, [at, path, words, environment, flags];

    [read](fd: c_int, to: *mut c_void, length: usize) -> isize = libc::SYS_read, [fd, to, length];
    [__read_chk](fd: c_int, to: *mut c_void, length: usize, room: usize) -> isize =
        checked(length, room, libc::SYS_read), [fd, to, length];
    [pread pread64](fd: c_int, to: *mut c_void, length: usize, at: i64) -> isize =
        libc::SYS_pread64, [fd, to, length, at];
    [__pread_chk __pread64_chk](fd: c_int, to: *mut c_void, length: usize, at: i64, room: usize) -> isize =
        checked(length, room, libc::SYS_pread64), [fd, to, length, at];
    [readv](fd: c_int, parts: *const libc::iovec, count: c_int) -> isize = libc::SYS_readv, [fd, parts, count];
    [preadv preadv64](fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize =
        libc::SYS_preadv, [fd, parts, count, at];
    [preadv2 preadv64v2](fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize =
        libc::SYS_preadv2, [fd, parts, count, at, 0, flags];

    [write](fd: c_int, from: *const c_void, length: usize) -> isize = libc::SYS_write, [fd, from, length];
    [pwrite pwrite64](fd: c_int, from: *const c_void, length: usize, at: i64) -> isize =
        libc::SYS_pwrite64, [fd, from, length, at];
    [writev](fd: c_int, parts: *const libc::iovec, count: c_int) -> isize = libc::SYS_writev, [fd, parts, count];
    [pwritev pwritev64](fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize =
        libc::SYS_pwritev, [fd, parts, count, at];
    [pwritev2 pwritev64v2](fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize =
        libc::SYS_pwritev2, [fd, parts, count, at, 0, flags];

    [fsync](fd: c_int) -> c_int = libc::SYS_fsync, [fd];
    [fdatasync](fd: c_int) -> c_int = libc::SYS_fdatasync, [fd];
    [readahead](fd: c_int, at: i64, length: usize) -> isize = libc::SYS_readahead, [fd, at, length];
    [fallocate fallocate64](fd: c_int, mode: c_int, at: i64, length: i64) -> c_int =
        libc::SYS_fallocate, [fd, mode, at, length];
    [ftruncate ftruncate64](fd: c_int, length: i64) -> c_int = libc::SYS_ftruncate, [fd, length];

    [close](fd: c_int) -> c_int = libc::SYS_close, [fd];
    [dup](fd: c_int) -> c_int = libc::SYS_dup, [fd];
    [dup3](from: c_int, to: c_int, flags: c_int) -> c_int = libc::SYS_dup3, [from, to, flags];
    [close_range](first: c_uint, last: c_uint, flags: c_int) -> c_int = libc::SYS_close_range, [first, last, flags];

    [unlink](path: *const c_char) -> c_int = libc::SYS_unlinkat, [libc::AT_FDCWD, path, 0];
    [unlinkat](at: c_int, path: *const c_char, flags: c_int) -> c_int = libc::SYS_unlinkat, [at, path, flags];
    [rename](from: *const c_char, to: *const c_char) -> c_int =
        libc::SYS_renameat2, [libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0];
    [renameat](from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char) -> c_int =
        libc::SYS_renameat2, [from_at, from, to_at, to, 0];
    [renameat2](from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_uint) -> c_int =
        libc::SYS_renameat2, [from_at, from, to_at, to, flags];
    [link](from: *const c_char, to: *const c_char) -> c_int =
        libc::SYS_linkat, [libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0];
    [linkat](from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_int) -> c_int =
        libc::SYS_linkat, [from_at, from, to_at, to, flags];
    [umount](path: *const c_char) -> c_int = libc::SYS_umount2, [path, 0];
    [umount2](path: *const c_char, flags: c_int) -> c_int = libc::SYS_umount2, [path, flags];

    [unshare](flags: c_int) -> c_int = libc::SYS_unshare, [flags];
    [setns](fd: c_int, kind: c_int) -> c_int = libc::SYS_setns, [fd, kind];
    [capset](header: *mut c_void, data: *const c_void) -> c_int = libc::SYS_capset, [header, data];

    [mmap mmap64](at: *mut c_void, length: usize, access: c_int, flags: c_int, fd: c_int, from: i64) -> isize =
        libc::SYS_mmap, [at, length, access, flags, fd, from];
    [sendfile sendfile64](to: c_int, from: c_int, at: *mut i64, length: usize) -> isize =
        libc::SYS_sendfile, [to, from, at, length];
    [copy_file_range](from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, length: usize, flags: c_uint) -> isize =
        libc::SYS_copy_file_range, [from, from_at, to, to_at, length, flags];
    [splice](from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, length: usize, flags: c_uint) -> isize =
        libc::SYS_splice, [from, from_at, to, to_at, length, flags];
}

type Stream = *mut c_void;

functions! {
    [fopen fopen64](path: *const c_char, mode: *const c_char) -> Stream, else core::ptr::null_mut();
    [freopen freopen64](path: *const c_char, mode: *const c_char, stream: Stream) -> Stream, else core::ptr::null_mut();
    [fdopen](fd: c_int, mode: *const c_char) -> Stream, else core::ptr::null_mut();
    [fclose fileno](stream: Stream) -> c_int, else -1;
    [fread fread_unlocked](to: *mut c_void, size: usize, count: usize, stream: Stream) -> usize, else 0;
    [fgets fgets_unlocked](to: *mut c_char, size: c_int, stream: Stream) -> *mut c_char, else core::ptr::null_mut();
    [getline](line: *mut *mut c_char, room: *mut usize, stream: Stream) -> isize, else -1;
    [getdelim __getdelim](line: *mut *mut c_char, room: *mut usize, end: c_int, stream: Stream) -> isize, else -1;
    [getc fgetc _IO_getc getc_unlocked fgetc_unlocked __uflow](stream: Stream) -> c_int, else libc::EOF;
    [getchar getchar_unlocked]() -> c_int, else libc::EOF;
    [__fgets_chk __fgets_unlocked_chk](to: *mut c_char, room: usize, size: c_int, stream: Stream) -> *mut c_char,
        else core::ptr::null_mut();
    [__fread_chk __fread_unlocked_chk](to: *mut c_void, room: usize, size: usize, count: usize, stream: Stream) -> usize,
        else 0;
    [vprintf](format: *const c_char, arguments: *mut c_void) -> c_int, else -1;
    [__vprintf_chk](flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int, else -1;
    [vfprintf](stream: Stream, format: *const c_char, arguments: *mut c_void) -> c_int, else -1;
    [__vfprintf_chk](stream: Stream, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int, else -1;
    [putc fputc _IO_putc putc_unlocked fputc_unlocked](byte: c_int, stream: Stream) -> c_int, else libc::EOF;
    [putchar putchar_unlocked](byte: c_int) -> c_int, else libc::EOF;
    [puts](text: *const c_char) -> c_int, else libc::EOF;
    [__overflow](stream: Stream, byte: c_int) -> c_int, else libc::EOF;
    [fwrite fwrite_unlocked](from: *const c_void, size: usize, count: usize, stream: Stream) -> usize, else 0;
    [fputs fputs_unlocked](text: *const c_char, stream: Stream) -> c_int, else libc::EOF;
    [mkstemp mkstemp64](template: *mut c_char) -> c_int, else -1;
    [mkostemp mkostemp64](template: *mut c_char, flags: c_int) -> c_int, else -1;
    [mkstemps mkstemps64](template: *mut c_char, suffix: c_int) -> c_int, else -1;
    [mkostemps mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, else -1;
    [posix_fadvise posix_fadvise64](fd: c_int, at: i64, length: i64, advice: c_int) -> c_int, else libc::ENOSYS;
    [posix_fallocate posix_fallocate64](fd: c_int, at: i64, length: i64) -> c_int, else libc::ENOSYS;
    [dup2](from: c_int, to: c_int) -> c_int, else -1;
    [remove](path: *const c_char) -> c_int, else -1;
    [execve](path: *const c_char, words: Words, environment: Words) -> c_int, else -1;
    [execv](path: *const c_char, words: Words) -> c_int, else -1;
    [execvp](name: *const c_char, words: Words) -> c_int, else -1;
    [execvpe](name: *const c_char, words: Words, environment: Words) -> c_int, else -1;
    [fexecve](fd: c_int, words: Words, environment: Words) -> c_int, else -1;
    [posix_spawn](pid: *mut c_int, path: *const c_char, acts: *const c_void, how: *const c_void, words: Words, environment: Words) -> c_int,
        else libc::ENOSYS;
    [posix_spawnp](pid: *mut c_int, name: *const c_char, acts: *const c_void, how: *const c_void, words: Words, environment: Words) -> c_int,
        else libc::ENOSYS;
}
