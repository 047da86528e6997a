//! `pagekeeper-bench-scan`: the subjects of the benchmark `scan` that need only a few lines. Each is timed as a whole
//! process; `pagekeeper-bench` itself starts some milliseconds later because it links the libraries of its peers.
//!
//! The limit is a walk that makes only the system calls each file needs (open, fstat, cachestat, close), from as many
//! threads as there are processors, each with directories of its own. Opens and closes are made one by one, or by
//! `io_uring` in batches, which has no cachestat. The "resolved" subjects resolve each file first, inspect it, and open
//! the resolved file, so that nothing else can take its name meanwhile. One large file is counted in parts by as many
//! threads. Mincore(2) of every file stands beside them, as other tools do it.
//!
//! The program prints a sum, keeps no names, and checks neither links nor the type of what it opens, so nobody should
//! use it as a tool. Fails with the first call's error.

#![expect(
    unsafe_code,
    reason = "a system call that the C library has no function for, and entries of io_uring"
)]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use io_uring::{IoUring, opcode, types};
use pagekeeper_kernel::{WalkOptions, residency_by_mincore, walk};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, fstat, openat};
use rustix::path::DecInt;

/// Prints how many bytes are resident of the files in the directories of PATH, or of the file PATH
#[derive(Debug, Parser)]
struct Arguments {
    /// How they are counted.
    how: How,
    /// Directory or file.
    path: PathBuf,
}

/// How files are opened and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum How {
    /// Mapped, one after the other, and asked of mincore(2).
    Mincore,
    /// By their names.
    Named,
    /// By their names, and closed, by `io_uring` in batches.
    Batches,
    /// By what their names were resolved to.
    Resolved,
    /// The same, resolved, opened and closed by `io_uring` in batches.
    ResolvedBatches,
}

/// Files opened in one batch.
const BATCH: usize = 64;
/// Bytes of one file that a thread counts at once, as in `pagekeeper stat`.
const PART: u64 = 64 << 20;
/// The user data that marks the completion of a close.
const CLOSED: u64 = u64::MAX;

fn main() -> ExitCode {
    let Arguments { how, path } = Arguments::parse();
    let counted = match how {
        How::Mincore => by_mincore(&path),
        _ if path.is_dir() => of_directories(&path, how),
        _ => of_file(&path),
    };
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

/// Maps each file and calls mincore(2), one file after the other, as pcstat does.
fn by_mincore(root: &Path) -> Result<u64> {
    let total = Mutex::new(Ok(0));
    let options = WalkOptions { threads: 1, ..WalkOptions::default() };
    walk(&[root.to_path_buf()], &options, &|visited| {
        let mut total = total.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let counted = visited.and_then(|file| residency_by_mincore(&file, 0..u64::MAX));
        if let (Ok(sum), Ok(counts)) = (&mut *total, &counted) {
            *sum += counts.resident;
        } else if let Err(error) = counted {
            *total = Err(error);
        }
    });
    Ok(total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)?)
}

fn of_directories(root: &Path, how: How) -> Result<u64> {
    let directories: Result<Vec<_>, _> = std::fs::read_dir(root)
        .context("can't list the tree")?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let left = Mutex::new(directories.context("can't list the tree")?);
    let pages = AtomicU64::new(0);
    let work = || -> Result<()> {
        let mut ring = match how {
            How::Mincore | How::Named | How::Resolved => None,
            How::Batches => Some(Batches::new(None)?),
            How::ResolvedBatches => Some(Batches::new(Some(own_descriptors()?))?),
        };
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
    on_all_processors(work)?;
    Ok(pages.into_inner() * pagekeeper_kernel::page_size())
}

fn of_file(path: &Path) -> Result<u64> {
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let size = u64::try_from(fstat(&file)?.st_size)?;
    let (next, pages) = (AtomicU64::new(0), AtomicU64::new(0));
    on_all_processors(|| {
        loop {
            let at = next.fetch_add(PART, Ordering::Relaxed);
            if at >= size {
                return Ok(());
            }
            pages.fetch_add(resident_pages(file.as_raw_fd(), [at, PART])?, Ordering::Relaxed);
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

/// Opens by `io_uring`, submitted in one system call together with the closes of the batch before.
struct Batches {
    ring: IoUring,
    closing: Vec<OwnedFd>,
    /// The directory of own descriptors, if files are resolved first.
    own: Option<OwnedFd>,
}

impl Batches {
    fn new(own: Option<OwnedFd>) -> Result<Self> {
        // Room for the closes of a batch, up to two per file, beside the opens of the next.
        let entries = u32::try_from(BATCH * 4)?;
        Ok(Self { ring: IoUring::new(entries).context("io_uring_setup")?, closing: Vec::new(), own })
    }

    /// Returns the resident pages of the files in one directory.
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
        let at_first = if self.own.is_some() { OFlags::PATH } else { OFlags::RDONLY };
        let mut files = self.open(directory, names, at_first | OFlags::NOFOLLOW)?;
        for file in &files {
            fstat(file)?;
        }
        if let Some(own) = self.own.take() {
            let again = |file: &OwnedFd| DecInt::from_fd(file).as_c_str().to_owned();
            let again: Vec<CString> = files.iter().map(again).collect();
            let opened = self.open(own.as_fd(), &again, OFlags::RDONLY)?;
            self.closing.extend(std::mem::replace(&mut files, opened));
            self.own = Some(own);
        }
        let mut pages = 0;
        for file in files {
            pages += resident_pages(file.as_raw_fd(), WHOLE)?;
            self.closing.push(file);
        }
        Ok(pages)
    }

    fn open(&mut self, directory: BorrowedFd<'_>, names: &[CString], flags: OFlags) -> Result<Vec<OwnedFd>> {
        let closes = self
            .closing
            .drain(..)
            .map(|file| opcode::Close::new(types::Fd(file.into_raw_fd())).build().user_data(CLOSED));
        let flags = flags | OFlags::CLOEXEC;
        let opens = names.iter().map(|name| {
            let open = opcode::OpenAt::new(types::Fd(directory.as_raw_fd()), name.as_ptr());
            open.flags(flags.bits().cast_signed()).build()
        });
        for entry in closes.chain(opens) {
            // SAFETY: the kernel copies the names as they are submitted, which happens below while they and the
            // directory are alive; after an error the ring is dropped without submitting. Nobody else owns what is
            // closed.
            unsafe { self.ring.submission().push(&entry) }.context("io_uring has no room")?;
        }
        let mut files = Vec::with_capacity(names.len());
        while files.len() < names.len() {
            self.ring.submit_and_wait(names.len() - files.len()).context("io_uring_enter")?;
            for done in self.ring.completion() {
                if done.user_data() != CLOSED {
                    let failed = || std::io::Error::from_raw_os_error(-done.result());
                    anyhow::ensure!(done.result() >= 0, "openat: {}", failed());
                    // SAFETY: the kernel has just opened this descriptor for this call alone.
                    files.push(unsafe { OwnedFd::from_raw_fd(done.result()) });
                }
            }
        }
        Ok(files)
    }
}

/// Returns the resident pages of the files in one directory.
fn pages_in(directory: &Path, how: How) -> Result<u64> {
    let own = (how == How::Resolved).then(own_descriptors).transpose()?;
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
            pages += resident_pages(file.as_raw_fd(), WHOLE)?;
        }
    }
    Ok(pages)
}

/// The number of cachestat(2) on every architecture except alpha.
const SYS_CACHESTAT: libc::c_long = 451;

/// The range of cachestat(2) that means a whole file.
const WHOLE: [u64; 2] = [0; 2];

/// Calls cachestat(2) on a range of a file, given as offset and length.
fn resident_pages(file: i32, range: [u64; 2]) -> Result<u64> {
    let mut counts = [0_u64; 5];
    // SAFETY: the call reads the 16 bytes of a range and writes the 40 of the counts, both of which live through it
    // (struct cachestat_range and struct cachestat of linux/mman.h).
    let done = unsafe { libc::syscall(SYS_CACHESTAT, file, &range, &mut counts, 0) };
    if done == 0 { Ok(counts[0]) } else { Err(std::io::Error::last_os_error()).context("cachestat") }
}
