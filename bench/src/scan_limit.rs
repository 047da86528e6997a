//! The limit of `scan`: what is left of a walk when everything but the system calls that each file takes is left out: open,
//! fstat, cachestat, close, from as many threads as there are processors, each with directories of its own. Opens and closes are
//! made one by one, or by `io_uring` in batches, which has no cachestat; or each file is resolved first, asked for what it is, and opened
//! by what was resolved, so that nothing else can take its name meanwhile.
//!
//! It prints no table, keeps no names, and looks neither for links nor for what is opened; so it is no program that anyone
//! should use. Fails with the first call's error.

#![expect(
    unsafe_code,
    reason = "a system call that the C library has no function for, and entries of io_uring"
)]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use io_uring::{IoUring, opcode, types};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, fstat, openat};
use rustix::path::DecInt;

/// How files are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum How {
    /// By their names.
    Named,
    /// By their names, and closed, by `io_uring` in batches.
    Batches,
    /// By what their names were resolved to.
    Resolved,
}

/// Files that are opened at once.
const BATCH: usize = 64;
/// What tells that a file was closed.
const CLOSED: u64 = u64::MAX;

/// The hidden command `scan-limit`: resident bytes of the files of each directory in `root`.
pub(crate) fn scan_limit(root: &Path, how: How) -> Result<()> {
    let directories: Result<Vec<_>, _> = std::fs::read_dir(root)
        .context("can't list the tree")?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let left = Mutex::new(directories.context("can't list the tree")?);
    let pages = AtomicU64::new(0);
    let work = || -> Result<()> {
        let mut ring = (how == How::Batches).then(Batches::new).transpose()?;
        loop {
            let next = left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
            let Some(directory) = next else { return Ok(()) };
            let found = match &mut ring {
                Some(ring) => ring.pages_in(&directory)?,
                None => pages_in(&directory, how)?,
            };
            pages.fetch_add(found, Ordering::Relaxed);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        work()?;
        others
            .into_iter()
            .try_for_each(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    println!("{}", pages.into_inner() * pagekeeper_kernel::page_size());
    Ok(())
}

fn open_directory(directory: &Path) -> Result<OwnedFd> {
    Ok(openat(CWD, directory, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())?)
}

/// Opens by `io_uring` that wait in one system call, with the closes of those before.
struct Batches {
    ring: IoUring,
    closing: Vec<OwnedFd>,
}

impl Batches {
    fn new() -> Result<Self> {
        // Room for the closes of a batch beside the opens of the next.
        let entries = u32::try_from(BATCH * 2)?;
        Ok(Self { ring: IoUring::new(entries).context("io_uring_setup")?, closing: Vec::new() })
    }

    /// Resident pages of the files in one directory.
    fn pages_in(&mut self, directory: &Path) -> Result<u64> {
        let listed = open_directory(directory)?;
        let mut buffer = Vec::with_capacity(64 << 10);
        let mut entries = RawDir::new(listed.as_fd(), buffer.spare_capacity_mut());
        let (mut names, mut pages) = (Vec::with_capacity(BATCH), 0);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if entry.file_type() == FileType::RegularFile {
                names.push(entry.file_name().to_owned());
            }
            if names.len() == BATCH {
                pages += self.pages_of(listed.as_fd(), &names)?;
                names.clear();
            }
        }
        Ok(pages + self.pages_of(listed.as_fd(), &names)?)
    }

    fn pages_of(&mut self, directory: BorrowedFd<'_>, names: &[CString]) -> Result<u64> {
        let mut pages = 0;
        for file in self.open(directory, names)? {
            fstat(&file)?;
            pages += resident_pages(file.as_raw_fd())?;
            self.closing.push(file);
        }
        Ok(pages)
    }

    fn open(&mut self, directory: BorrowedFd<'_>, names: &[CString]) -> Result<Vec<OwnedFd>> {
        let closes = self
            .closing
            .drain(..)
            .map(|file| opcode::Close::new(types::Fd(file.into_raw_fd())).build().user_data(CLOSED));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opens = names.iter().map(|name| {
            let open = opcode::OpenAt::new(types::Fd(directory.as_raw_fd()), name.as_ptr());
            open.flags(flags.bits().cast_signed()).build()
        });
        for entry in closes.chain(opens) {
            // SAFETY: the directory and the names live until all opens are complete, which is waited for below; what is to be closed is
            // nobody else's.
            unsafe { self.ring.submission().push(&entry) }.context("io_uring has no room")?;
        }
        let mut files = Vec::with_capacity(names.len());
        while files.len() < names.len() {
            self.ring.submit_and_wait(names.len() - files.len()).context("io_uring_enter")?;
            for done in self.ring.completion() {
                if done.user_data() != CLOSED {
                    let failed = || std::io::Error::from_raw_os_error(-done.result());
                    anyhow::ensure!(done.result() >= 0, "openat: {}", failed());
                    // SAFETY: the kernel has just opened it for this alone.
                    files.push(unsafe { OwnedFd::from_raw_fd(done.result()) });
                }
            }
        }
        Ok(files)
    }
}

/// Resident pages of the files in one directory.
fn pages_in(directory: &Path, how: How) -> Result<u64> {
    let own = match how {
        How::Resolved => {
            Some(openat(CWD, c"/proc/thread-self/fd", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
        }
        How::Named | How::Batches => None,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let listed = open_directory(directory)?;
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut entries = RawDir::new(listed.as_fd(), buffer.spare_capacity_mut());
    let mut pages = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if entry.file_type() == FileType::RegularFile {
            let at_first = if own.is_some() { OFlags::PATH | OFlags::CLOEXEC } else { flags };
            let found = openat(&listed, entry.file_name(), at_first | OFlags::NOFOLLOW, Mode::empty())?;
            fstat(&found)?;
            let file = match &own {
                Some(own) => openat(own, DecInt::from_fd(&found), flags, Mode::empty())?,
                None => found,
            };
            pages += resident_pages(file.as_raw_fd())?;
        }
    }
    Ok(pages)
}

/// The number of cachestat(2) on every architecture but alpha.
const SYS_CACHESTAT: libc::c_long = 451;

/// cachestat(2) of a whole file.
fn resident_pages(file: i32) -> Result<u64> {
    let range = [0_u64; 2];
    let mut counts = [0_u64; 5];
    // SAFETY: the call reads the 16 bytes of a range and writes the 40 of the counts, both of which live through it
    // (struct cachestat_range and struct cachestat of linux/mman.h).
    let done = unsafe { libc::syscall(SYS_CACHESTAT, file, &range, &mut counts, 0) };
    if done == 0 { Ok(counts[0]) } else { Err(std::io::Error::last_os_error()).context("cachestat") }
}
