//! Large sequential output (a compaction, a backup, a flush) that disturbs no one: it leaves neither dirty pages that
//! make others' writes wait, nor resident pages that push others' out.
//!
//! | mode | how | leaves |
//! |---|---|---|
//! | [`BulkMode::Direct`] | past the page cache, in pieces, one at a time, with pauses while others wait | nothing |
//! | [`BulkMode::Paced`] | in the same pieces, through the page cache | at most the budget |
//! | [`BulkMode::Uncached`] | as paced, but the kernel drops the pages by itself (`RWF_DONTCACHE`) | at most the budget |
//! | [`BulkMode::Buffered`] | as any write(2) | everything, and stalls others on the disk |
//!
//! Invariants: a file is written from its start to its end, once. What a write or writeback failed with is returned by every call
//! from then on, and by [`BulkWriter::finish`] at the latest; nothing is tried again. No lock is held over I/O.
//! Fails with the file and the byte range that could not be written (`EIO`, `ENOSPC`).

mod budget;
mod choose;
mod direct;
mod mode;
mod pages;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pagekeeper_io::{Access, Create, Io, IoFile, Process};
use pagekeeper_kernel::file_system_id;
use pagekeeper_policy::DiskProfile;

use crate::Error;
use crate::layout::{self, DiskKey, DiskLayout};
use crate::mode::has_real_files;
use budget::{Budget, Share};
use direct::Direct;
pub use mode::BulkMode;
use pages::Pages;

/// Takes a warning, in plain words.
type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of a [`BulkWriter`].
#[derive(Clone, Default)]
#[must_use]
pub struct BulkOptions {
    mode: BulkMode,
    io: Option<Arc<dyn Io>>,
    expected: u64,
    budget: Option<u64>,
    logs: Vec<PathBuf>,
    warn: Option<Warn>,
    disk: Option<DiskProfile>,
}

impl fmt::Debug for BulkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkOptions")
            .field("mode", &self.mode)
            .field("io", &self.io.as_ref().map(|io| io.name()))
            .field("expected", &self.expected)
            .field("budget", &self.budget)
            .field("logs", &self.logs)
            .finish_non_exhaustive()
    }
}

impl BulkOptions {
    /// The mode [default: `Auto`]; where it is not available the next best is taken, and [`BulkWriter::why`] says so.
    pub fn mode(mut self, mode: BulkMode) -> Self {
        self.mode = mode;
        self
    }

    /// The I/O back-end [default: [`pagekeeper_io::best`]].
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = Some(io);
        self
    }

    /// The expected length in bytes: room is allocated at once, so that a full disk is found before hours of work. The file may
    /// become longer or shorter.
    pub fn expected_bytes(mut self, bytes: u64) -> Self {
        self.expected = bytes;
        self
    }

    /// Bytes that may be unwritten at a time, of all direct, paced and uncached writers of the disk together; at least 256 KiB. The first
    /// of the writers that are open at the same time decides. Default: half of the room that others leave between the kernel's
    /// background limit of dirty pages and where it begins to throttle writers, but at most 16 MiB.
    pub fn budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// What `pagekeeper probe` measured of the disk (`pagekeeper_catalog::disks::saved`). Of what works there, [`BulkMode::Auto`] then takes the
    /// mode that did best: direct, unless paced output (or uncached) was half as fast again, or small writes beside it
    /// waited less. The budget is what the disk takes in 20 ms, where nothing else is said and the kernel's limits leave
    /// room for more. A profile of another file system, by its number, is not used, and [`BulkWriter::why`] says so.
    ///
    /// ```
    /// use pagekeeper_log::{BulkMode, BulkWriter};
    /// use pagekeeper_policy::{BulkProfile, DiskProfile};
    ///
    /// let directory = tempfile::tempdir_in("/var/tmp")?;
    /// let disk = DiskProfile {
    ///     // As `pagekeeper probe` has it: `pagekeeper_catalog::disks::saved(directory)`, or `read(file)`.
    ///     file_system_id: pagekeeper_kernel::file_system_id(directory.path())?.unwrap_or_default(),
    ///     bulk: Some(BulkProfile { paced_us: 30.0, bytes_per_second: 1e8, ..BulkProfile::default() }),
    ///     ..DiskProfile::default()
    /// };
    /// let output = BulkWriter::options().disk(&disk).create(directory.path().join("000013.sst"))?;
    /// assert_eq!(output.mode(), BulkMode::Paced);
    /// println!("{}", output.why()); // the disk's profile has no direct output; …
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn disk(mut self, disk: &DiskProfile) -> Self {
        self.disk = Some(disk.clone());
        self
    }

    /// The directory of a log whose writes must not wait: [`Self::on_warning`] is called if it shares a disk with this
    /// output. May be given for several.
    pub fn log_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.logs.push(directory.into());
        self
    }

    /// Called, once in the process for each pair of directories, with a warning that log and bulk output share a disk.
    pub fn on_warning(mut self, warn: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.warn = Some(Arc::new(warn));
        self
    }

    /// Creates the file, which must not exist yet. Fails with `ENOSPC` where there is no room for the expected bytes, and
    /// leaves no file then.
    pub fn create(self, path: impl AsRef<Path>) -> Result<BulkWriter, Error> {
        let path = path.as_ref();
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let io = self.io.clone().unwrap_or_else(default_io);
        let is_real = has_real_files(&*io);
        if let (true, Some(warn)) = (is_real, &self.warn) {
            for log in &self.logs {
                layout::warn_once(log, directory, &**warn);
            }
        }
        let is_of_another = |disk: &DiskProfile| is_real && !is_of(disk, directory);
        let is_foreign = self.disk.as_ref().is_some_and(is_of_another);
        let disk = self.disk.as_ref().filter(|_| !is_foreign);
        let mut chosen = choose::choose(self.mode, is_real, directory, disk)?;
        if is_foreign {
            chosen.why.push_str("; the disk's profile is not used: it is of another file system");
        }
        let (mode, why, file) = match chosen.mode {
            BulkMode::Direct => match io.open_writable(path, Access::Direct, Create::New) {
                Err(error @ pagekeeper_io::Error::NoDirect { .. }) => {
                    let file = io.open_writable(path, Access::Buffered, Create::New)?;
                    (BulkMode::Paced, error.to_string(), file)
                }
                opened => (BulkMode::Direct, chosen.why, opened?),
            },
            mode => (mode, chosen.why, io.open_writable(path, Access::Buffered, Create::New)?),
        };
        if let Err(error) = reserve(&*file, self.expected) {
            // The file is ours alone, and empty.
            let _ = io.remove(path);
            return Err(error.into());
        }
        let budget = match mode {
            BulkMode::Direct | BulkMode::Paced | BulkMode::Uncached => {
                let key = if is_real {
                    DiskLayout::of([directory]).ok().and_then(|layout| layout.key(directory))
                } else {
                    None
                };
                let key = match key {
                    Some(key) => key,
                    None => DiskKey::of_device(file.stat()?.device),
                };
                Some(Budget::of(key, self.budget, disk.and_then(choose::budget)))
            }
            BulkMode::Auto | BulkMode::Buffered => None,
        };
        let size = budget.as_ref().map(|budget| budget.limit());
        let way = match (mode, budget) {
            (BulkMode::Direct, Some(budget)) => {
                Way::Direct(Direct::new(Arc::clone(&io), Arc::clone(&file), budget, self.expected))
            }
            (mode, Some(budget)) => {
                let share = Share::new(budget, Arc::clone(&file), mode == BulkMode::Paced);
                Way::Pages(Pages::new(Arc::clone(&file), Some(share), mode == BulkMode::Uncached))
            }
            (_, None) => Way::Pages(Pages::new(Arc::clone(&file), None, false)),
        };
        Ok(BulkWriter {
            io,
            file,
            directory: directory.to_path_buf(),
            mode,
            why,
            budget: size,
            expected: self.expected,
            way,
            process: Process::current(),
            failed: None,
            began: Instant::now(),
        })
    }
}

/// Whether a profile is of the file system that the directory is on.
fn is_of(disk: &DiskProfile, directory: &Path) -> bool {
    matches!(file_system_id(directory), Ok(Some(id)) if id == disk.file_system_id)
}

/// Takes room for so many bytes. Only that there is none is an error: it is no more than a hint.
fn reserve(file: &dyn IoFile, bytes: u64) -> Result<(), pagekeeper_io::Error> {
    if bytes == 0 {
        return Ok(());
    }
    match file.allocate(0..bytes) {
        Err(error) if error.errno() == Some(libc::ENOSPC) => Err(error),
        _ => Ok(()),
    }
}

/// One for all writers of the process that are given none.
fn default_io() -> Arc<dyn Io> {
    static IO: OnceLock<Arc<dyn Io>> = OnceLock::new();
    Arc::clone(IO.get_or_init(pagekeeper_io::best))
}

/// A file that is being written, from its start on.
///
/// Dropped before [`Self::finish`], it leaves the file incomplete and not durable, maybe with zeros past the end: the caller
/// removes it. In a forked child every call fails with [`Forked`](pagekeeper_io::Error::Forked), and a drop does nothing.
///
/// ```
/// use std::io::Write;
/// use pagekeeper_log::{BulkMode, BulkWriter};
///
/// let directory = tempfile::tempdir_in("/var/tmp")?;
/// let mut output = BulkWriter::options().create(directory.path().join("000012.sst"))?;
/// for block in 0..300_u32 {
///     output.write_all(&block.to_le_bytes().repeat(1024))?;
/// }
/// let report = output.finish()?;
/// assert_eq!(report.bytes, 300 * 4096);
/// println!("{}: {}; waited {:?}", report.mode, report.why, report.waited);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BulkWriter {
    io: Arc<dyn Io>,
    file: Arc<dyn IoFile>,
    directory: PathBuf,
    mode: BulkMode,
    why: String,
    budget: Option<u64>,
    expected: u64,
    way: Way,
    process: Process,
    failed: Option<Error>,
    began: Instant,
}

/// The two ways that there are.
enum Way {
    Direct(Direct),
    Pages(Pages),
}

impl Way {
    fn written(&self) -> u64 {
        match self {
            Self::Direct(direct) => direct.written(),
            Self::Pages(pages) => pages.written(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::Direct(direct) => direct.write(bytes),
            Self::Pages(pages) => pages.write(bytes),
        }
    }

    /// Writes what is left and waits for all writes; returns how long the file has become, which may be more than was
    /// written.
    fn end(&mut self) -> Result<u64, Error> {
        match self {
            Self::Direct(direct) => direct.end(),
            Self::Pages(pages) => pages.end(),
        }
    }

    fn waited(&self) -> Duration {
        match self {
            Self::Direct(direct) => direct.waited(),
            Self::Pages(pages) => pages.waited(),
        }
    }
}

/// The result of a bulk output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkReport {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// How it was written; never [`BulkMode::Auto`].
    pub mode: BulkMode,
    /// Why so, in plain words.
    pub why: String,
    /// How many bytes could be unwritten, of all direct, paced and uncached writers of the disk together; `None` for buffered ones.
    pub budget: Option<u64>,
    /// From when it was made to when it was durable.
    pub took: Duration,
    /// The part of it that the writer waited for the disk: for a free buffer, or for writeback.
    pub waited: Duration,
    /// The part of it that the last sync took.
    pub synced: Duration,
    /// Bytes of it that are in the kernel's page cache at the end; `None` where that can't be known.
    pub resident: Option<u64>,
}

impl BulkWriter {
    /// The settings, to create one with.
    pub fn options() -> BulkOptions {
        BulkOptions::default()
    }

    /// How it writes; never [`BulkMode::Auto`].
    pub fn mode(&self) -> BulkMode {
        self.mode
    }

    /// Why it writes so, in plain words.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Bytes that were given to it so far.
    pub fn written(&self) -> u64 {
        self.way.written()
    }

    /// Writes all of the bytes, and waits where the disk lags. After an error every call fails with it.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.check()?;
        let done = self.way.write(bytes);
        self.settle(done)
    }

    /// Writes what is left, cuts the file to what was written, makes it and its name durable, and releases its pages
    /// (not of a buffered one, whose pages stay).
    pub fn finish(mut self) -> Result<BulkReport, Error> {
        self.check()?;
        let bytes = self.written();
        let ended = self.way.end();
        let length = self.settle(ended)?.max(self.expected);
        if length > bytes {
            self.file.set_len(bytes)?;
        }
        let syncing = Instant::now();
        self.file.sync_data()?;
        self.io.sync_dir(&self.directory)?;
        let synced = syncing.elapsed();
        if self.mode != BulkMode::Buffered {
            self.file.release(0..u64::MAX)?;
        }
        let resident = self.file.residency(0..u64::MAX)?.map(|found| found.resident);
        Ok(BulkReport {
            path: self.file.path().to_path_buf(),
            bytes,
            mode: self.mode,
            why: self.why,
            budget: self.budget,
            took: self.began.elapsed(),
            waited: self.way.waited(),
            synced,
            resident,
        })
    }

    fn check(&self) -> Result<(), Error> {
        self.process.require()?;
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn settle<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &done {
            self.failed = Some(error.clone());
        }
        done
    }
}

impl fmt::Debug for BulkWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkWriter")
            .field("path", &self.file.path())
            .field("mode", &self.mode)
            .field("written", &self.written())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl io::Write for BulkWriter {
    /// Takes all of `buf`.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.write_all(buf) {
            Ok(()) => Ok(buf.len()),
            Err(Error::Io(error)) => Err(error.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Does nothing: what was given is written when there is a step of it, and durable after [`BulkWriter::finish`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
