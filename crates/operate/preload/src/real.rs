//! The C library's own functions, as the hooks call them: the next definitions of the same names.
//!
//! Each function is looked up on its first call, which takes no memory and no lock
//! ([`crate::symbols`]): a small program calls few of them. If that lookup cannot tell, dlsym(3)
//! looks up all of them while the library is loaded, since it allocates. A call before that (from
//! the constructor of another library, or from an allocator's first steps) makes the system call
//! itself, as the C library would. Only functions that are not system calls (streams of the C
//! library, temporary files) are then looked up by dlsym(3).
//!
//! Invariants: a function is never missing. One that an older C library does not have remains the
//! system call itself. `errno` is set as the C library sets it.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::marker::PhantomData;
use core::mem::{size_of, transmute_copy};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::launcher::Words;
use crate::symbols::{Found, Objects};
use crate::sys::Errno;

// The version in the oldest supported C library (2.31); without this, the newest version would be
// linked. The reference is weak, since 2.31 has dlsym in a library of its own: the address is null
// if that is not loaded.
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

type DlsymFunction = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    #[link_name = "pagekeeper_dlsym"]
    static DLSYM_WEAK: Option<DlsymFunction>;
    fn __errno_location() -> *mut c_int;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The objects of the process, to find the definitions next to this library's. Filled once, in the
/// library's memory.
struct KnownObjects(UnsafeCell<Objects>);

// SAFETY: written by the thread that set `OBJECTS_STATE` to `OBJECTS_FILLING`, and only read after
// that one set it to `OBJECTS_READY`.
unsafe impl Sync for KnownObjects {}

static KNOWN_OBJECTS: KnownObjects = KnownObjects(UnsafeCell::new(Objects::NONE));
static OBJECTS_STATE: AtomicU8 = AtomicU8::new(OBJECTS_EMPTY);
const OBJECTS_EMPTY: u8 = 0;
const OBJECTS_FILLING: u8 = 1;
const OBJECTS_READY: u8 = 2;

/// Calls `act` with the objects. `None` if another thread is filling them in, or this is a handler
/// that interrupted the one that does.
fn with_objects<R>(act: impl FnOnce(&Objects) -> R) -> Option<R> {
    if OBJECTS_STATE
        .compare_exchange(OBJECTS_EMPTY, OBJECTS_FILLING, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
    {
        // SAFETY: no other thread has it.
        unsafe { &mut *KNOWN_OBJECTS.0.get() }.fill(must_find_all as *const () as usize);
        OBJECTS_STATE.store(OBJECTS_READY, Ordering::Release);
    }
    // SAFETY: never written again.
    (OBJECTS_STATE.load(Ordering::Acquire) == OBJECTS_READY).then(|| act(unsafe { &*KNOWN_OBJECTS.0.get() }))
}

/// Returns the definition of a name next to this library's; null if there is none.
fn next(name: &CStr) -> *mut c_void {
    settled(with_objects(|objects| objects.next(name)), libc::RTLD_NEXT, name)
}

/// Returns the first definition of a name in the whole program.
fn first(name: &CStr) -> *mut c_void {
    settled(with_objects(|objects| objects.first(name)), libc::RTLD_DEFAULT, name)
}

fn settled(found: Option<Found>, handle: *mut c_void, name: &CStr) -> *mut c_void {
    match found {
        Some(Found::At(address)) => address,
        Some(Found::Nowhere) => core::ptr::null_mut(),
        // SAFETY: set by the loader; the name ends with a null byte.
        Some(Found::Unknown) | None => unsafe {
            DLSYM_WEAK.map_or(core::ptr::null_mut(), |dlsym| dlsym(handle, name.as_ptr()))
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
        // SAFETY: `F` is the type of a function and as large as a pointer (`new`); `at` is a
        // function of that type: `first`, or the C library's function of that name.
        unsafe { transmute_copy(&at) }
    }

    /// Looks the function up if it still is `first`. A missing one does nothing, and returns an
    /// error.
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

    /// Looks the function up without dlsym(3), for a call that may be in a signal handler or an
    /// allocator.
    #[cold]
    #[inline(never)]
    pub(crate) fn find_here(&self) -> bool {
        match with_objects(|objects| objects.next(self.name)) {
            Some(Found::At(address)) => self.keep(address),
            Some(Found::Nowhere | Found::Unknown) | None => false,
        }
    }

    fn keep(&self, at: *mut c_void) -> bool {
        if !at.is_null() {
            self.at.store(at.cast(), Ordering::Relaxed);
        }
        !at.is_null()
    }
}

/// Returns the C library's function of that name, not the program's own: that of a garbage
/// collector would make the helper one of the threads that it stops. A sanitizer's function is
/// used, since it must know all threads. Null if there is none.
pub(crate) fn address(name: &CStr) -> *mut c_void {
    let sanitizers = [c"__asan_init", c"__tsan_init", c"__msan_init", c"__hwasan_init"];
    let is_sanitized = sanitizers.iter().any(|name| !first(name).is_null());
    let next = if is_sanitized { core::ptr::null_mut() } else { next(name) };
    if next.is_null() { first(name) } else { next }
}

/// Returns the environment of the process, as the C library has it; null if there is none. Looked
/// up once, in the constructor.
pub(crate) fn environment() -> Words {
    static ENVIRONMENT_AT: AtomicPtr<Words> = AtomicPtr::new(core::ptr::null_mut());
    if ENVIRONMENT_AT.load(Ordering::Relaxed).is_null() {
        // The C library itself uses the program's copy, if there is one.
        ENVIRONMENT_AT.store(first(c"environ").cast(), Ordering::Relaxed);
    }
    // SAFETY: null, or the C library's variable, or the program's of the same name, which takes its
    // place.
    unsafe { ENVIRONMENT_AT.load(Ordering::Relaxed).as_ref() }.copied().unwrap_or(core::ptr::null())
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

/// Whether the C library is the one that this library is made for, by two names that only that one
/// has together. Another one (musl) starts constructors without the arguments of `main`; its
/// compatibility layer (gcompat) has only the first name. Neither name is linked to, so that
/// programs with another C library can be started.
pub(crate) fn is_for_this() -> bool {
    [c"__register_atfork", c"__libc_stack_end"].iter().all(|name| !first(name).is_null())
}

/// Registers handlers for each fork: before it, after it in the parent, and in the child. Returns
/// `false` if that fails.
pub(crate) fn around_forks(
    before: unsafe extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) -> bool {
    type ForkHandler = Option<unsafe extern "C" fn()>;
    type RegisterForks = unsafe extern "C" fn(ForkHandler, ForkHandler, ForkHandler, *mut c_void) -> c_int;
    let register = address(c"__register_atfork");
    // SAFETY: the C library's function of that name has this type. It takes functions, and a null
    // pointer; the library is never unloaded, since it was loaded at the program's start.
    !register.is_null()
        && unsafe {
            let register = core::mem::transmute::<*mut c_void, RegisterForks>(register);
            register(Some(before), Some(parent), Some(child), core::ptr::null_mut()) == 0
        }
}

/// Sets whether the calling thread can be cancelled (`PTHREAD_CANCEL_ENABLE` 0,
/// `PTHREAD_CANCEL_DISABLE` 1); returns the previous state.
pub(crate) fn set_cancellable(state: c_int) -> c_int {
    let mut old = 0;
    // SAFETY: `old` lives for the call.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

/// Converts a system call's result to the C library's form.
pub(crate) fn settle(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(Errno(number)) => {
            set_errno(number);
            -1
        }
    }
}

/// Converts a name that ends in a null byte.
pub(crate) const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name holds a null byte"),
    }
}

/// Whether all functions must be looked up before the program's own code runs, because that may
/// take dlsym(3), which allocates.
pub(crate) fn must_find_all() -> bool {
    with_objects(Objects::are_all) != Some(true)
}
