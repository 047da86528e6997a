//! Detects a fork. What was opened before can't be used in a forked child: it has none of the parent's threads, may find locks held
//! by one of them for ever, and shares rings, positions and locks on files with the parent.
//!
//! A mark in a page of its own: the kernel clears that page in a forked child (`MADV_WIPEONFORK`), however it was forked, and the child
//! takes a new number. Where the kernel can't, a handler of `pthread_atfork(3)` clears it, which `_Fork` and a raw clone(2) don't call.
//! A child of vfork(2) or `posix_spawn(3)` shares the parent's memory until it executes another program, and looks like it.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

/// Where the mark is if it has no page of its own.
static PLAIN: AtomicU32 = AtomicU32::new(0);

/// The process that something was made in.
///
/// ```
/// use pagekeeper_io::Process;
/// let maker = Process::current();
/// assert!(maker.is_current() && maker.require().is_ok());
/// ```
#[derive(Clone, Copy)]
pub struct Process {
    /// This process's number; 0 in a child that nobody asked yet.
    mark: &'static AtomicU32,
    number: u32,
}

impl Process {
    /// This process.
    pub fn current() -> Self {
        static MARK: OnceLock<&AtomicU32> = OnceLock::new();
        // Copied by a fork, so that no number is given twice among a process and its children.
        static LAST: AtomicU32 = AtomicU32::new(0);
        let mark = *MARK.get_or_init(mark);
        let found = mark.load(Ordering::Relaxed);
        if found != 0 {
            return Self { mark, number: found };
        }
        let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let number = match mark.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new,
            Err(of_another_thread) => of_another_thread,
        };
        Self { mark, number }
    }

    /// Whether this is it, and not a child that was forked from it since. One load and a comparison; no system call.
    #[inline]
    pub fn is_current(self) -> bool {
        self.mark.load(Ordering::Relaxed) == self.number
    }

    /// [`Error::Forked`] in a child.
    #[inline]
    pub fn require(self) -> Result<(), Error> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// A number that neither the process that it was forked from has, nor any before that.
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

/// A mark that is cleared in each forked child.
fn mark() -> &'static AtomicU32 {
    page().unwrap_or_else(|| {
        follow();
        &PLAIN
    })
}

/// A page that the kernel clears in a child.
#[cfg(not(miri))]
#[expect(unsafe_code, reason = "a mapping of its own")]
fn page() -> Option<&'static AtomicU32> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // The kernel rounds it up to a page.
    let len = size_of::<AtomicU32>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which the advice is about and which is never unmapped; its first bytes are zero, aligned, and used as
    // an atomic number alone.
    unsafe {
        let address = mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE).ok()?;
        // Where it is refused (before Linux 4.14) the page stays: it is done once.
        madvise(address, len, Advice::LinuxWipeOnFork).ok()?;
        Some(&*address.cast::<AtomicU32>())
    }
}

#[cfg(miri)]
fn page() -> Option<&'static AtomicU32> {
    None
}

extern "C" fn forked() {
    PLAIN.store(0, Ordering::Relaxed);
}

/// Has the C library clear the mark in a child. Without memory for that forks go unnoticed.
#[expect(unsafe_code, reason = "a function that the C library is to call")]
fn follow() {
    // SAFETY: the handler stores a number, which is safe in a child of many threads; it is there as long as the program.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
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
    fn where_the_kernel_clears_no_page_the_c_library_says_so() {
        follow();
        PLAIN.store(7, Ordering::Relaxed);
        let maker = Process { mark: &PLAIN, number: 7 };
        assert!(maker.is_current());
        assert_eq!(forked(|| !maker.is_current()).end(), ChildEnd::Well);
        assert!(maker.is_current());
    }

    #[test]
    fn a_child_lets_go_of_its_copy_and_not_of_a_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = crate::directory::lock(&path).unwrap();
        let is_held = || crate::directory::lock(&path).err() == Some(Error::Locked { path: path.clone() });
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
