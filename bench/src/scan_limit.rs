//! The limit of `scan`: what is left of a walk when everything but the system calls that each file takes is left out: open,
//! fstat, cachestat, close, from as many threads as there are processors, each with directories of its own.
//!
//! It prints no table, keeps no names, and looks neither for links nor for what is opened; so it is no program that anyone
//! should use. Fails with the first call's error.

#![expect(unsafe_code, reason = "a system call that the C library has no function for")]

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, fstat, openat};

/// The hidden command `scan-limit`: resident bytes of the files of each directory in `root`.
pub(crate) fn scan_limit(root: &Path) -> Result<()> {
    let directories: Result<Vec<_>, _> = std::fs::read_dir(root)
        .context("can't list the tree")?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let left = Mutex::new(directories.context("can't list the tree")?);
    let pages = AtomicU64::new(0);
    let work = || -> Result<()> {
        loop {
            let next = left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
            let Some(directory) = next else { return Ok(()) };
            pages.fetch_add(pages_in(&directory)?, Ordering::Relaxed);
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

/// Resident pages of the files in one directory.
fn pages_in(directory: &Path) -> Result<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let listed = openat(CWD, directory, flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut entries = RawDir::new(listed.as_fd(), buffer.spare_capacity_mut());
    let mut pages = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if entry.file_type() == FileType::RegularFile {
            let file = openat(&listed, entry.file_name(), flags | OFlags::NOFOLLOW, Mode::empty())?;
            fstat(&file)?;
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
