//! The writer of bulk output, and its settings.

#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_io::{Access, Create, Error, Io, IoFile, PerProcess, Process, has_real_files};
use pagekeeper_kernel::file_system_id;
use pagekeeper_policy::DiskProfile;

use crate::budget::{BudgetShare, DiskBudget};
use crate::choose;
use crate::direct::DirectOutput;
use crate::layout::{self, DiskKey, DiskLayout};
use crate::mode::BulkMode;
use crate::pages::PageOutput;

/// A callback that receives a warning in plain words.
type WarningCallback = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of a [`BulkWriter`].
#[derive(Clone, Default)]
#[must_use]
pub struct BulkOptions {
    mode: BulkMode,
    io: Option<Arc<dyn Io>>,
    expected: u64,
    budget: Option<u64>,
    logs: Vec<PathBuf>,
    warn: Option<WarningCallback>,
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
    /// Sets the mode [default: `Auto`]. If it is not available, the next best is used, and
    /// [`BulkWriter::why`] reports that.
    pub fn mode(mut self, mode: BulkMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the I/O back-end [default: [`pagekeeper_io::best`]].
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = Some(io);
        self
    }

    /// Sets the expected length in bytes. Space is allocated at once, so that a full disk is found
    /// before hours of work. The file may become longer or shorter.
    pub fn expected_bytes(mut self, bytes: u64) -> Self {
        self.expected = bytes;
        self
    }

    /// Sets how many bytes all direct, paced and uncached writers of the disk together may leave
    /// unwritten at a time; at least 256 KiB. The first of several concurrent writers decides.
    /// Default: half of the room that others leave between the kernel's background limit of dirty
    /// pages and the point where it throttles writers, but at most 16 MiB.
    pub fn budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Sets the disk's profile from `pagekeeper probe` (`pagekeeper_catalog::disks::saved`).
    ///
    /// [`BulkMode::Auto`] then uses the mode that did best, among the modes that work there. That
    /// is direct, unless paced (or uncached) output was faster by half, or small writes beside it
    /// waited less. Without a set budget, the budget is what the disk writes in 20 ms, if the
    /// kernel's limits leave that much room. A profile of a file system with another ID is not
    /// used, and [`BulkWriter::why`] reports that.
    ///
    /// ```
    /// use pagekeeper_bulk::{BulkMode, BulkWriter};
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

    /// Adds the directory of a log whose writes must not wait: [`Self::on_warning`] is called if it
    /// shares a disk with this output. May be called for several logs.
    pub fn log_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.logs.push(directory.into());
        self
    }

    /// Sets a callback for the warning that log and bulk output share a disk. It is called once per
    /// process for each pair of directories.
    pub fn on_warning(mut self, warn: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.warn = Some(Arc::new(warn));
        self
    }

    /// Creates the file, which must not exist yet. Fails with `ENOSPC` if there is no room for the
    /// expected bytes, and then leaves no file.
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
                Err(error @ Error::NoDirect { .. }) => {
                    let file = io.open_writable(path, Access::Buffered, Create::New)?;
                    (BulkMode::Paced, error.to_string(), file)
                }
                opened => (BulkMode::Direct, chosen.why, opened?),
            },
            mode => (mode, chosen.why, io.open_writable(path, Access::Buffered, Create::New)?),
        };
        if let Err(error) = reserve(&*file, self.expected) {
            // Nobody else uses the file, and it is empty.
            let _ = io.remove(path);
            return Err(error);
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
                Some(DiskBudget::of(key, self.budget, disk.and_then(choose::budget)))
            }
            BulkMode::Auto | BulkMode::Buffered => None,
        };
        let way = match (mode, budget.clone()) {
            (BulkMode::Direct, Some(budget)) => OutputFile::Direct(DirectOutput::new(
                Arc::clone(&io),
                Arc::clone(&file),
                budget,
                self.expected,
            )),
            (mode, Some(budget)) => {
                let share = BudgetShare::new(budget, Arc::clone(&file), mode == BulkMode::Paced);
                OutputFile::Pages(PageOutput::new(Arc::clone(&file), Some(share), mode == BulkMode::Uncached))
            }
            (_, None) => OutputFile::Pages(PageOutput::new(Arc::clone(&file), None, false)),
        };
        Ok(BulkWriter {
            io,
            file,
            directory: directory.to_path_buf(),
            mode,
            why,
            budget,
            expected: self.expected,
            way,
            process: Process::current(),
            failed: None,
            began: Instant::now(),
        })
    }
}

/// Whether a profile belongs to the directory's file system.
fn is_of(disk: &DiskProfile, directory: &Path) -> bool {
    matches!(file_system_id(directory), Ok(Some(id)) if id == disk.file_system_id)
}

/// Allocates this many bytes. Only a lack of space is an error; any other failure is ignored, since
/// this is a hint.
fn reserve(file: &dyn IoFile, bytes: u64) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    match file.allocate(0..bytes) {
        Err(error) if matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT)) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the back-end of all writers in the process that have no other.
fn default_io() -> Arc<dyn Io> {
    static DEFAULT_IO: PerProcess<Option<Arc<dyn Io>>> = PerProcess::new();
    Arc::clone(DEFAULT_IO.lock().get_or_insert_with(pagekeeper_io::best))
}

/// A file that is being written, from its start on.
///
/// Dropped before [`Self::finish`], it leaves the file incomplete and not durable, possibly with
/// zeros past the end: the caller removes it. In a forked child every call fails with
/// [`Forked`](pagekeeper_io::Error::Forked), and a drop does nothing.
///
/// ```
/// use std::io::Write;
/// use pagekeeper_bulk::{BulkMode, BulkWriter};
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
    budget: Option<Arc<DiskBudget>>,
    expected: u64,
    way: OutputFile,
    process: Process,
    failed: Option<Error>,
    began: Instant,
}

/// The two ways of writing.
enum OutputFile {
    Direct(DirectOutput),
    Pages(PageOutput),
}

impl OutputFile {
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

    /// Writes the rest and waits for all writes. Returns the resulting length of the file, which
    /// may exceed the bytes written.
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
    /// The mode it was written in; never [`BulkMode::Auto`].
    pub mode: BulkMode,
    /// The reason for the mode, in plain words.
    pub why: String,
    /// The maximum of unwritten bytes of all direct, paced and uncached writers of the disk
    /// together; `None` for buffered output.
    pub budget: Option<u64>,
    /// The time from its creation until it was durable.
    pub took: Duration,
    /// The part of `took` that the writer waited for the disk: for a free buffer, or for writeback.
    pub waited: Duration,
    /// The part of `took` that the last sync needed.
    pub synced: Duration,
    /// Bytes of the file in the kernel's page cache at the end; `None` if that can't be determined.
    pub resident: Option<u64>,
}

impl BulkWriter {
    /// Returns the settings with which a writer is created.
    pub fn options() -> BulkOptions {
        BulkOptions::default()
    }

    /// Returns the mode of writing; never [`BulkMode::Auto`].
    pub fn mode(&self) -> BulkMode {
        self.mode
    }

    /// Returns the reason for the mode, in plain words.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Returns the number of bytes accepted so far.
    pub fn written(&self) -> u64 {
        self.way.written()
    }

    /// Writes all of the bytes, and waits if the disk lags. After an error every call fails with
    /// that error.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.check()?;
        let done = self.way.write(bytes);
        self.settle(done)
    }

    /// Writes the rest, cuts the file to the bytes written, and makes it and its name durable.
    /// Releases its pages, except those of buffered output.
    pub fn finish(mut self) -> Result<BulkReport, Error> {
        self.check()?;
        let bytes = self.written();
        let ended = self.way.end();
        let length = self.settle(ended)?.max(self.expected);
        if length > bytes {
            self.file.set_len(bytes)?;
        }
        let syncing = Instant::now();
        let sync = || self.file.sync_data().and_then(|()| self.io.sync_dir(&self.directory));
        match &self.budget {
            Some(budget) => budget.during_sync(sync)?,
            None => sync()?,
        }
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
            budget: self.budget.map(|budget| budget.limit()),
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
    /// Accepts all of `buf`.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.write_all(buf) {
            Ok(()) => Ok(buf.len()),
            Err(error) => Err(error.into()),
        }
    }

    /// Does nothing: bytes are written once they fill a step, and are durable after
    /// [`BulkWriter::finish`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
