//! `pagekeeper-bench-scan`: the subjects of the benchmark `scan` that need only a few lines. Each
//! is timed as a whole process; `pagekeeper-bench` itself starts some milliseconds later because it
//! links the libraries of its peers.
//!
//! The limit is a walk that makes only the system calls each file needs (open, fstat, cachestat,
//! close), from as many threads as there are processors, each with directories of its own. The
//! "resolved" subject resolves each file first, inspects it, and opens the resolved file, so that
//! nothing else can take its name meanwhile. One large file is counted in parts by as many threads.
//!
//! The program prints a sum, keeps no names, and checks neither links nor the type of what it
//! opens, so nobody should use it as a tool. Fails with the first call's error.

#![expect(unsafe_code, reason = "a system call that the C library has no function for")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, fstat, openat};
use rustix::path::DecInt;

/// Prints how many bytes are resident of the files in the directories of PATH, or of the file PATH
#[derive(Debug, Parser)]
struct ScanArguments {
    /// The way to count them
    how: ScanMethod,
    /// Directory or file.
    path: PathBuf,
}

/// The way to open and count files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScanMethod {
    /// By their names.
    Named,
    /// By their resolved names.
    Resolved,
}

/// Bytes of one file that a thread counts at once, as in `pagekeeper stat`.
const FILE_PART_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let ScanArguments { how, path } = ScanArguments::parse();
    let counted = if path.is_dir() { of_directories(&path, how) } else { of_file(&path) };
    match counted {
        Ok(bytes) => {
            println!("{bytes}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("pagekeeper-bench-scan: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn of_directories(root: &Path, how: ScanMethod) -> Result<u64> {
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
            pages.fetch_add(pages_in(&directory, how)?, Ordering::Relaxed);
        }
    };
    on_all_processors(work)?;
    Ok(pages.into_inner() * pagekeeper_kernel::page_size())
}

fn of_file(path: &Path) -> Result<u64> {
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let size = u64::try_from(fstat(&file)?.st_size)?;
    let (next, pages) = (AtomicU64::new(0), AtomicU64::new(0));
    on_all_processors(|| {
        loop {
            let at = next.fetch_add(FILE_PART_BYTES, Ordering::Relaxed);
            if at >= size {
                return Ok(());
            }
            pages.fetch_add(resident_pages(file.as_raw_fd(), [at, FILE_PART_BYTES])?, Ordering::Relaxed);
        }
    })?;
    Ok(pages.into_inner() * pagekeeper_kernel::page_size())
}

fn on_all_processors(work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(&work)).collect();
        work()?;
        others
            .into_iter()
            .try_for_each(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Opens the directory of a thread's descriptors, through which a resolved file is opened again.
fn own_descriptors() -> Result<OwnedFd> {
    Ok(openat(CWD, c"/proc/thread-self/fd", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

fn open_directory(directory: &Path) -> Result<OwnedFd> {
    Ok(openat(CWD, directory, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())?)
}

/// Returns the resident pages of the files in one directory.
fn pages_in(directory: &Path, how: ScanMethod) -> Result<u64> {
    let own = (how == ScanMethod::Resolved).then(own_descriptors).transpose()?;
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
            pages += resident_pages(file.as_raw_fd(), WHOLE_FILE_RANGE)?;
        }
    }
    Ok(pages)
}

/// The number of cachestat(2) on every architecture except alpha.
const SYS_CACHESTAT: libc::c_long = 451;

/// The range of cachestat(2) that means a whole file.
const WHOLE_FILE_RANGE: [u64; 2] = [0; 2];

/// Calls cachestat(2) on a range of a file, given as offset and length.
fn resident_pages(file: i32, range: [u64; 2]) -> Result<u64> {
    let mut counts = [0_u64; 5];
    // SAFETY: the call reads the 16 bytes of a range and writes the 40 of the counts, both of which
    // live through it (struct cachestat_range and struct cachestat of linux/mman.h).
    let done = unsafe { libc::syscall(SYS_CACHESTAT, file, &range, &mut counts, 0) };
    if done == 0 { Ok(counts[0]) } else { Err(std::io::Error::last_os_error()).context("cachestat") }
}
