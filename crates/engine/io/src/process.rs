//! Detects a fork. A forked child cannot use what its parent opened: it lacks the parent's threads,
//! may find their locks held forever, and shares rings, positions and file locks with the parent.
//!
//! A mark in its own page detects that. The kernel clears this page in a forked child
//! (`MADV_WIPEONFORK`), however it was forked, and the child takes a new number. If the kernel
//! cannot, a handler of `pthread_atfork(3)` clears the mark; `_Fork` and a raw clone(2) do not call
//! it. A child of vfork(2) or `posix_spawn(3)` shares the parent's memory until it executes another
//! program, so it looks like the parent.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::{fmt, ptr};

use crate::Error;

/// The mark if it has no page of its own.
static FALLBACK_MARK: AtomicU32 = AtomicU32::new(0);

/// The process that created a value.
///
/// ```
/// use pagekeeper_io::Process;
/// let maker = Process::current();
/// assert!(maker.is_current() && maker.require().is_ok());
/// ```
#[derive(Clone, Copy)]
pub struct Process {
    /// The number of the current process; 0 in a child that has not taken a number yet.
    mark: &'static AtomicU32,
    number: u32,
}

impl Process {
    /// Returns the current process.
    pub fn current() -> Self {
        // A fork copies this counter, so a process and its descendants never use the same number
        // twice.
        static LAST_NUMBER: AtomicU32 = AtomicU32::new(0);
        let mark = mark();
        let found = mark.load(Ordering::Relaxed);
        if found != 0 {
            return Self { mark, number: found };
        }
        let new = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let number = match mark.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new,
            Err(of_another_thread) => of_another_thread,
        };
        Self { mark, number }
    }

    /// Whether this is the current process, and not one that it was forked from. Costs one load and
    /// a comparison, without a system call.
    #[inline]
    pub fn is_current(self) -> bool {
        self.mark.load(Ordering::Relaxed) == self.number
    }

    /// Fails with [`Error::Forked`] in a child.
    #[inline]
    pub fn require(self) -> Result<(), Error> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Returns a number that differs from those of all ancestors from which the process was forked.
    pub fn number(self) -> u32 {
        self.number
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.number).finish()
    }
}

impl PartialEq for Process {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Process {}

/// Returns the mark. It takes no lock to create it: a child may be forked while another thread does
/// so. Threads that create it at the same time leave their pages unused.
#[expect(unsafe_code, reason = "a reference that lives as long as the program")]
fn mark() -> &'static AtomicU32 {
    static PROCESS_MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: NULL, or the address of a mark, stored below.
    if let Some(mark) = unsafe { PROCESS_MARK.load(Ordering::Acquire).as_ref() } {
        return mark;
    }
    let new = ptr::from_ref(create_mark()).cast_mut();
    let stored = PROCESS_MARK.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: this mark, or that of another thread; both live as long as the program.
    unsafe { &*stored.map_or_else(|other| other, |_| new) }
}

/// Creates a mark that is cleared in each forked child.
fn create_mark() -> &'static AtomicU32 {
    map_mark_page().unwrap_or_else(|| {
        clear_mark_in_children();
        &FALLBACK_MARK
    })
}

/// Allocates a page that the kernel clears in a child.
#[cfg(not(miri))]
#[expect(unsafe_code, reason = "a mapping of its own")]
fn map_mark_page() -> Option<&'static AtomicU32> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // The kernel rounds the length up to a page.
    let len = size_of::<AtomicU32>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping that is never unmapped. The advice covers only this mapping. Its first
    // bytes are zero and aligned, and only used as an atomic number.
    unsafe {
        let address = mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE).ok()?;
        // If the advice is refused (before Linux 4.14), the page stays allocated; this happens
        // once.
        madvise(address, len, Advice::LinuxWipeOnFork).ok()?;
        Some(&*address.cast::<AtomicU32>())
    }
}

#[cfg(miri)]
fn map_mark_page() -> Option<&'static AtomicU32> {
    None
}

extern "C" fn clear_fallback_mark() {
    FALLBACK_MARK.store(0, Ordering::Relaxed);
}

/// Makes the C library clear the mark in a child. If it lacks memory for that, forks are not
/// detected.
#[expect(unsafe_code, reason = "a function that the C library is to call")]
fn clear_mark_in_children() {
    // SAFETY: the handler only stores a number, which is safe in the child of a process with
    // threads. It lives as long as the program.
    unsafe {
        libc::pthread_atfork(None, None, Some(clear_fallback_mark));
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_testing::{ChildEnd, forked, forked_past_libc};

    use super::*;

    #[test]
    fn a_child_is_another_process_however_it_was_forked() {
        let maker = Process::current();
        let is_another = || {
            let own = Process::current();
            !maker.is_current() && maker.require() == Err(Error::Forked) && own != maker && own.is_current()
        };
        assert_eq!(forked(is_another).end(), ChildEnd::Well);
        assert_eq!(forked_past_libc(is_another).end(), ChildEnd::Well);
        let of_child = || {
            let own = Process::current();
            forked(|| !own.is_current() && is_another() && Process::current() != own).ends_well()
        };
        assert_eq!(forked(of_child).end(), ChildEnd::Well);
        assert!(maker.is_current() && Process::current() == maker);
    }

    #[test]
    fn without_wipe_on_fork_the_c_library_detects_a_fork() {
        clear_mark_in_children();
        FALLBACK_MARK.store(7, Ordering::Relaxed);
        let maker = Process { mark: &FALLBACK_MARK, number: 7 };
        assert!(maker.is_current());
        assert_eq!(forked(|| !maker.is_current()).end(), ChildEnd::Well);
        assert!(maker.is_current());
    }

    #[test]
    fn a_child_lets_go_of_its_copy_and_not_of_a_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = crate::files::directory::lock(&path).unwrap();
        let is_held =
            || crate::files::directory::lock(&path).err() == Some(Error::Locked { path: path.clone() });
        let mut held = Some(lock);
        let lets_go = || {
            drop(held.take());
            is_held()
        };
        assert_eq!(forked(lets_go).end(), ChildEnd::Well);
        assert!(is_held());
        drop(held);
        assert!(!is_held());
    }
}
