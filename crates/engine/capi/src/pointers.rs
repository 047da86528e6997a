//! Pointers from C. Each kind is a type that only C creates, and the header specifies the data
//! behind it.
//!
//! All blocks depend on that contract: a pointer is NULL, or points to as many readable (writable)
//! bytes as the header says, which nobody changes (uses) during the call. References to single
//! values (`Option<&T>`, `Option<&mut MaybeUninit<T>>`, `Option<ClosingHandle<T>>`) are taken as
//! they are.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::status::{CallFailure, Status};

/// Whether the use of a closed handle is found: in the checked build its memory is marked, and
/// never used again.
const MARKS_CLOSED: bool = cfg!(any(debug_assertions, feature = "checked"));
/// Each byte of a closed handle. No pointer has such bytes.
const CLOSED_BYTE: u8 = 0xc5;

/// Memory of a closed handle, in a list: a checker of leaks finds all of it.
struct ClosedMemory {
    _memory: *const u8,
    _next: *mut ClosedMemory,
}

static CLOSED: AtomicPtr<ClosedMemory> = AtomicPtr::new(std::ptr::null_mut());

fn is_closed<T>(handle: *const T) -> bool {
    let len = size_of::<T>().min(16);
    // SAFETY: where handles are marked, none is freed.
    let is_marked = |at| unsafe { handle.cast::<u8>().add(at).read_volatile() } == CLOSED_BYTE;
    MARKS_CLOSED && len > 0 && (0..len).all(is_marked)
}

fn keep_closed(memory: *const u8) {
    let mut next = CLOSED.load(Ordering::Acquire);
    let closed = Box::into_raw(Box::new(ClosedMemory { _memory: memory, _next: next }));
    while let Err(changed) = CLOSED.compare_exchange(next, closed, Ordering::AcqRel, Ordering::Acquire) {
        next = changed;
        // SAFETY: nobody else has it yet.
        unsafe { closed.write(ClosedMemory { _memory: memory, _next: next }) };
    }
}

/// Returns a handle that is required.
#[inline]
pub(crate) fn given<'a, T>(handle: Option<&'a T>, what: &'static str) -> Result<&'a T, CallFailure> {
    match handle {
        Some(handle) if is_closed(handle) => Err(CallFailure::misuse(format!("{what} was closed before"))),
        Some(handle) => Ok(handle),
        None => Err(CallFailure::misuse(format!("{what} is NULL"))),
    }
}

/// A handle that its caller closes. Unless it is opened, it stays as it is.
#[repr(transparent)]
pub struct ClosingHandle<T>(ManuallyDrop<Box<T>>);

impl<T> ClosingHandle<T> {
    /// Returns the handle, which stays open.
    pub(crate) fn get(&self) -> Result<&T, CallFailure> {
        given(Some(&**self.0), "the handle")
    }

    /// Takes the value out of the handle, which is closed then.
    pub(crate) fn open(self) -> Result<T, CallFailure> {
        self.get()?;
        let handle = ManuallyDrop::into_inner(self.0);
        if !MARKS_CLOSED {
            return Ok(*handle);
        }
        let memory = Box::into_raw(handle);
        // SAFETY: it was just a box, whose value is moved out before its bytes are overwritten.
        let value = unsafe {
            let value = memory.read();
            memory.cast::<u8>().write_bytes(CLOSED_BYTE, size_of::<T>());
            value
        };
        keep_closed(memory.cast());
        Ok(value)
    }
}

#[cfg(test)]
impl<T> From<Box<T>> for ClosingHandle<T> {
    fn from(handle: Box<T>) -> Self {
        Self(ManuallyDrop::new(handle))
    }
}

/// Returns the place for an output value that is required.
pub(crate) fn wanted<'a, T>(
    out: Option<&'a mut MaybeUninit<T>>,
    what: &'static str,
) -> Result<&'a mut MaybeUninit<T>, CallFailure> {
    out.ok_or_else(|| CallFailure::misuse(format!("the pointer to where {what} is put is NULL")))
}

/// Stores an output value, if its caller wants it.
pub(crate) fn put<T>(out: Option<&mut MaybeUninit<T>>, value: T) {
    if let Some(out) = out {
        out.write(value);
    }
}

/// Fails unless a field without a meaning is 0, so that it can get a meaning later.
pub(crate) fn is_zero(reserved: u32) -> Result<(), CallFailure> {
    if reserved == 0 { Ok(()) } else { Err(CallFailure::misuse("reserved is not 0")) }
}

/// `const char *`: a string of bytes that ends with a zero byte.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct TextPointer(*const c_char);

impl TextPointer {
    pub(crate) fn path<'a>(self) -> Result<&'a Path, CallFailure> {
        if self.0.is_null() {
            return Err(CallFailure::misuse("the path is NULL"));
        }
        // SAFETY: the header's contract: a string that ends with a zero byte and lives during the
        // call.
        let bytes = unsafe { CStr::from_ptr(self.0) }.to_bytes();
        if bytes.is_empty() {
            return Err(CallFailure::misuse("the path is empty"));
        }
        Ok(Path::new(OsStr::from_bytes(bytes)))
    }
}

/// `const void *` or `const T *`, with a separate count.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct ArrayPointer<T>(*const T);

impl<T> ArrayPointer<T> {
    /// Returns the values as a slice.
    #[inline]
    pub(crate) fn slice<'a>(self, count: usize, what: &'static str) -> Result<&'a [T], CallFailure> {
        if count == 0 {
            return Ok(&[]);
        }
        if !is_memory(self.0.cast(), count, size_of::<T>()) {
            return Err(no_memory(count, what));
        }
        // SAFETY: not NULL, and the header's contract: `count` values, which nobody changes during
        // the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

/// `void *` or `T *` for output, with a separate count.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct MutArrayPointer<T>(*mut T);

// SAFETY: only an address; whoever makes a slice of it on another thread relies on the contract
// that nobody else uses it.
unsafe impl<T: Send> Send for MutArrayPointer<T> {}

impl<T> MutArrayPointer<T> {
    /// Returns the address of the first value, unless it is NULL.
    #[inline]
    pub(crate) fn start(self) -> Option<NonNull<T>> {
        NonNull::new(self.0)
    }

    /// Returns the values as a slice.
    #[inline]
    pub(crate) fn slice<'a>(self, count: usize, what: &'static str) -> Result<&'a mut [T], CallFailure> {
        if count == 0 {
            return Ok(&mut []);
        }
        if !is_memory(self.0.cast(), count, size_of::<T>()) {
            return Err(no_memory(count, what));
        }
        // SAFETY: not NULL, and the header's contract: `count` values that belong to the library
        // until the call, or the read that it starts, is over. For Rust, memory from C counts as
        // initialised: no compiler saw its creation.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) })
    }
}

/// Whether memory can hold this many values.
#[inline]
fn is_memory(pointer: *const u8, count: usize, each: usize) -> bool {
    !pointer.is_null() && count <= isize::MAX as usize / each
}

#[cold]
fn no_memory(count: usize, what: &'static str) -> CallFailure {
    CallFailure::misuse(format!("{what} is NULL, or no memory has its size of {count}"))
}

/// A structure that begins with its size as the caller knows it.
///
/// # Safety
///
/// It is `repr(C)`, its first field is a `usize` with its size, and any bytes are a valid value:
/// integers, and pointers or functions for which the header's contract holds.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Its name in the header.
    const STRUCT_NAME: &'static str;
}

const SIZE_BYTES: usize = size_of::<usize>();
/// Maximum size of a structure in any version, in bytes.
const STRUCT_BYTES_MAX: usize = 4096;

/// `const T *`: options, NULL for all defaults.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct OptionsPointer<T>(*const T);

impl<T: SizedStruct> OptionsPointer<T> {
    /// Reads the options. Fields that the caller does not know are zero, their default.
    pub(crate) fn read(self) -> Result<T, CallFailure> {
        let mut read = MaybeUninit::<T>::zeroed();
        if !self.0.is_null() {
            has_nothing_unknown(self.0)?;
            let bytes = known(self.0)?;
            // SAFETY: the caller promises this many bytes, and there is room for as many.
            unsafe { std::ptr::copy_nonoverlapping(self.0.cast::<u8>(), read.as_mut_ptr().cast(), bytes) };
        }
        // SAFETY: any bytes are a valid value.
        Ok(unsafe { read.assume_init() })
    }
}

/// `T *`: an output structure.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct OutPointer<T>(*mut T);

impl<T: SizedStruct> OutPointer<T> {
    pub(crate) fn is_wanted(self) -> bool {
        !self.0.is_null()
    }

    /// Checks whether it can be written, before an operation that cannot be undone.
    pub(crate) fn check(self) -> Result<(), CallFailure> {
        known(self.0).map(drop)
    }

    /// Writes all fields that the caller knows, except the size.
    pub(crate) fn write(self, value: T) -> Result<(), CallFailure> {
        let bytes = known(self.0)?;
        let rest = bytes - SIZE_BYTES;
        let (from, to) = (std::ptr::from_ref(&value).cast::<u8>(), self.0.cast::<u8>());
        // SAFETY: the caller promises this many bytes, and the value has as many.
        unsafe { std::ptr::copy_nonoverlapping(from.add(SIZE_BYTES), to.add(SIZE_BYTES), rest) };
        Ok(())
    }
}

/// Returns how many bytes of a structure both caller and library know.
fn known<T: SizedStruct>(pointer: *const T) -> Result<usize, CallFailure> {
    Ok(given_size(pointer)?.min(size_of::<T>()))
}

/// Returns the size of a structure as the caller knows it.
fn given_size<T: SizedStruct>(pointer: *const T) -> Result<usize, CallFailure> {
    if pointer.is_null() {
        return Err(CallFailure::misuse(format!("{} is NULL", T::STRUCT_NAME)));
    }
    // SAFETY: not NULL; each of them begins with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if !(SIZE_BYTES..=STRUCT_BYTES_MAX).contains(&size) {
        return Err(CallFailure::misuse(format!(
            "{}: a struct_size of {size}: begin with its _INIT, or zero it and set struct_size",
            T::STRUCT_NAME
        )));
    }
    Ok(size)
}

/// Fails unless the fields of a later version of the header have their defaults.
fn has_nothing_unknown<T: SizedStruct>(pointer: *const T) -> Result<(), CallFailure> {
    let beyond = size_of::<T>()..given_size(pointer)?;
    // SAFETY: the caller promises this many bytes.
    let is_set = beyond.into_iter().any(|at| unsafe { pointer.cast::<u8>().add(at).read() } != 0);
    if is_set {
        let version = env!("CARGO_PKG_VERSION");
        let message =
            format!("{}: an option that version {version} of the library does not have", T::STRUCT_NAME);
        return Err(CallFailure::new(Status::Unsupported, message));
    }
    Ok(())
}

#[cfg(test)]
impl From<&[u8; 3]> for ArrayPointer<u8> {
    fn from(bytes: &[u8; 3]) -> Self {
        Self(bytes.as_ptr())
    }
}

#[cfg(test)]
impl From<&mut [u8; 100]> for MutArrayPointer<u8> {
    fn from(bytes: &mut [u8; 100]) -> Self {
        Self(bytes.as_mut_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[repr(C)]
    struct Old {
        struct_size: usize,
        first: u64,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[repr(C)]
    struct New {
        struct_size: usize,
        first: u64,
        second: u64,
    }

    // SAFETY: only integers, the size first.
    unsafe impl SizedStruct for Old {
        const STRUCT_NAME: &'static str = "old";
    }

    // SAFETY: only integers, the size first.
    unsafe impl SizedStruct for New {
        const STRUCT_NAME: &'static str = "new";
    }

    #[test]
    fn an_older_caller_gets_defaults_for_fields_it_does_not_know() {
        let old = Old { struct_size: size_of::<Old>(), first: 7 };
        let read = OptionsPointer::<New>(std::ptr::from_ref(&old).cast()).read().unwrap();
        assert_eq!((read.first, read.second), (7, 0));
        assert_eq!(OptionsPointer::<New>(std::ptr::null()).read().unwrap().first, 0);
    }

    #[test]
    fn a_newer_caller_is_refused_for_unknown_fields() {
        let mut new = New { struct_size: size_of::<New>(), first: 7, second: 0 };
        assert_eq!(OptionsPointer::<Old>(std::ptr::from_ref(&new).cast()).read().unwrap().first, 7);
        new.second = 1;
        let refused = OptionsPointer::<Old>(std::ptr::from_ref(&new).cast()).read().unwrap_err();
        assert_eq!(refused.status, Status::Unsupported);
    }

    #[test]
    fn no_more_is_written_than_the_caller_knows() {
        let value = New { struct_size: 0, first: 1, second: 2 };
        let mut new = New { struct_size: size_of::<Old>(), first: 0, second: 9 };
        OutPointer(&raw mut new).write(value).unwrap();
        assert_eq!(new, New { struct_size: size_of::<Old>(), first: 1, second: 9 });
        let mut later = [size_of::<New>() as u64 + 8, 5, 5, 5];
        OutPointer(later.as_mut_ptr().cast::<New>()).write(value).unwrap();
        assert_eq!(later[1..], [1, 2, 5]);
    }

    #[test]
    fn a_size_that_was_not_set_is_misuse() {
        for struct_size in [0, 4, usize::MAX] {
            let new = New { struct_size, first: 7, second: 0 };
            assert_eq!(OptionsPointer(&raw const new).read().unwrap_err().status, Status::Misuse);
        }
    }

    #[test]
    fn null_and_sizes_beyond_memory_are_misuse() {
        let one = 1_u64;
        assert!(ArrayPointer::<u64>(std::ptr::null()).slice(1, "it").is_err());
        assert!(ArrayPointer(&raw const one).slice(usize::MAX, "it").is_err());
        assert!(ArrayPointer::<u64>(std::ptr::null()).slice(0, "it").unwrap().is_empty());
        assert!(TextPointer(std::ptr::null()).path().is_err() && TextPointer(c"".as_ptr()).path().is_err());
    }
}
