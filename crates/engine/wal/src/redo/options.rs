//! Settings of a redo log.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_io::Io;

use super::lsn::Lsn;
use super::ring;
use crate::record::{BLOCK, BLOCK_LEN};
use crate::{Error, LogMode};

/// The smallest ring, in bytes.
pub(super) const MIN_RING: u64 = 16 * BLOCK;
/// The smallest log buffer, in bytes.
pub(super) const MIN_BUFFER: usize = 8 * BLOCK_LEN;
const MAX_BUFFER: usize = 1 << 32;

/// The point at which records are durable, and for which
/// [`RedoLog::wait_flushed`](crate::RedoLog::wait_flushed) waits.
///
/// It corresponds to MySQL's `innodb_flush_log_at_trx_commit`, whose value is given in parentheses.
///
/// ```
/// use std::time::Duration;
/// use pagekeeper_wal::{FlushPolicy, RedoLog};
/// // A power cut may cost the last 100 ms, a crash of the process nothing that was waited for.
/// let options = RedoLog::options().flush_policy(FlushPolicy::Every(Duration::from_millis(100)));
/// # drop(options);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FlushPolicy {
    /// `wait_flushed` returns when the record is durable (1). Records that no caller waits for are
    /// synced each second.
    #[default]
    EachCommit,
    /// `wait_flushed` returns when the record is written: it survives a crash of the process but
    /// not of the machine. It is synced at this interval (2, with `innodb_flush_log_at_timeout`).
    Every(Duration),
    /// Like `Every`, but the kernel alone decides when anything is durable (`sync_binlog = 0`). The
    /// log syncs only for a checkpoint and when it is closed.
    Os,
}

/// The reason why an append waits.
///
/// ```
/// use pagekeeper_wal::RedoLog;
/// let options = RedoLog::options().on_backpressure(|full| {
///     eprintln!("{full}: checkpoint now");
/// });
/// # drop(options);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backpressure {
    /// Records from here on are still needed.
    pub checkpoint: Lsn,
    /// The position of the next record.
    pub end: Lsn,
    /// Bytes of the ring.
    pub capacity: u64,
}

impl fmt::Display for Backpressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.end - self.checkpoint;
        write!(
            f,
            "redo ring full: {used} of {} bytes since the checkpoint at LSN {}",
            self.capacity, self.checkpoint
        )
    }
}

/// A callback that receives [`Backpressure`].
pub(super) type OnBackpressure = Arc<dyn Fn(Backpressure) + Send + Sync>;

/// Settings for creating and opening a [`RedoLog`](crate::RedoLog); from
/// [`RedoLog::options`](crate::RedoLog::options).
#[derive(Clone)]
pub struct RedoOptions {
    pub(super) files: u32,
    pub(super) file_bytes: u64,
    pub(super) buffer_bytes: usize,
    pub(super) flush_policy: FlushPolicy,
    pub(super) mode: LogMode,
    pub(super) max_unsynced: Option<u64>,
    pub(super) release: bool,
    pub(super) io: Option<Arc<dyn Io>>,
    pub(super) on_backpressure: Option<OnBackpressure>,
    pub(super) threads: bool,
    pub(super) read_only: bool,
    #[cfg(any(test, feature = "injected-faults"))]
    pub(super) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

impl Default for RedoOptions {
    fn default() -> Self {
        Self {
            files: 4,
            file_bytes: 256 << 20,
            buffer_bytes: 4 << 20,
            flush_policy: FlushPolicy::default(),
            mode: LogMode::default(),
            max_unsynced: None,
            release: true,
            io: None,
            on_backpressure: None,
            threads: true,
            read_only: false,
            #[cfg(any(test, feature = "injected-faults"))]
            injected_fault: None,
        }
    }
}

impl RedoOptions {
    /// Sets the number of files of the ring, 1 to 4096 [default: 4]. For [`Self::create`].
    #[must_use]
    pub fn files(mut self, files: u32) -> Self {
        self.files = files;
        self
    }

    /// Sets the bytes of each file, a multiple of 4096 [default: 256 MiB]. All files together have
    /// at least 64 KiB. For [`Self::create`].
    #[must_use]
    pub fn file_bytes(mut self, bytes: u64) -> Self {
        self.file_bytes = bytes;
        self
    }

    /// Sets the bytes of the log buffer, in which records wait to be written: a power of two from
    /// 32 KiB to 4 GiB [default: 4 MiB]. No record can be longer. Its memory is allocated in the
    /// background once appending begins (Linux 5.14).
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// Sets the bytes that may be appended and not yet synced: a multiple of 4096 from 32 KiB to 4
    /// GiB, or 0 for no bound [default: 0]. For [`Self::create`]: the log keeps the bound forever.
    ///
    /// With a bound, the log syncs by itself when half of it is reached. An append that would
    /// exceed it waits for a sync, whatever the policy. No record can be longer than the bound,
    /// less five blocks. In return less can be lost, and opening has less to read: the search past
    /// the end covers the length of the longest possible record.
    #[must_use]
    pub fn max_unsynced(mut self, bytes: u64) -> Self {
        self.max_unsynced = (bytes > 0).then_some(bytes);
        self
    }

    /// Sets when records are durable [default: at each commit].
    #[must_use]
    pub fn flush_policy(mut self, policy: FlushPolicy) -> Self {
        self.flush_policy = policy;
        self
    }

    /// Sets how the files are written [default: the best way on this file system].
    #[must_use]
    pub fn mode(mut self, mode: LogMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets whether the log releases its pages [default: yes]. Otherwise it leaves them to the
    /// kernel, as most databases' logs do: for comparison, or if something else manages them.
    #[must_use]
    pub fn release(mut self, release: bool) -> Self {
        self.release = release;
        self
    }

    /// Sets the I/O back-end [default: [`pagekeeper_io::best`]].
    #[must_use]
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = Some(io);
        self
    }

    /// Leaves all work to the callers: the log has no threads, not even while it is opened. On a
    /// deterministic disk (`SimDisk` of `pagekeeper-simdisk`) all operations then repeat, in order.
    /// For tests, and for engines with one thread.
    ///
    /// Records that no caller waits for are then synced neither each second nor by
    /// [`FlushPolicy::Every`], and an append writes them when the buffer is full.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pagekeeper_simdisk::SimDisk;
    /// use pagekeeper_wal::RedoLog;
    /// let disk = Arc::new(SimDisk::new());
    /// let options = RedoLog::options().files(1).file_bytes(64 << 10).buffer_bytes(32 << 10).io(disk).without_threads();
    /// let log = options.create("/redo")?;
    /// log.wait_flushed(log.append(b"x")?)?;
    /// # Ok::<(), pagekeeper_wal::Error>(())
    /// ```
    #[must_use]
    pub fn without_threads(mut self) -> Self {
        self.threads = false;
        self
    }

    /// Opens the log read-only [default: no]. No byte is written and no file created, so the log
    /// can also be read on a read-only or full file system. Several readers may have it open at the
    /// same time. While it is open for writing, opening it fails with
    /// [`pagekeeper_io::Error::Locked`]. Appends and checkpoints fail with [`Error::ReadOnly`].
    ///
    /// After a crash, the records found are those on the device at the time. They are not made
    /// durable.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pagekeeper_simdisk::SimDisk;
    /// use pagekeeper_wal::{Error, Lsn, RedoLog};
    /// let disk = SimDisk::new();
    /// let options = RedoLog::options().files(1).file_bytes(64 << 10).buffer_bytes(32 << 10).io(Arc::new(disk.clone()));
    /// options.clone().create("/redo")?.append(b"x")?;
    /// let changes = disk.ops();
    /// let log = options.read_only(true).open("/redo")?;
    /// assert_eq!(log.read_from(Lsn::new(0))?.count(), 1);
    /// assert_eq!(log.append(b"y"), Err(Error::ReadOnly));
    /// drop(log);
    /// assert_eq!(disk.ops(), changes);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Injects a fault, for tests of crates built on the log: they must detect it.
    #[cfg(any(test, feature = "injected-faults"))]
    #[must_use]
    pub fn injected_fault(mut self, fault: crate::injected_fault::InjectedFault) -> Self {
        self.injected_fault = Some(fault);
        self
    }

    /// Sets a callback for an append that finds the ring full up to the checkpoint. It is called
    /// before the append waits, once for each such wait, on the thread of the append. It must not
    /// append; it may move the checkpoint, or wake the thread that does.
    #[must_use]
    pub fn on_backpressure(mut self, callback: impl Fn(Backpressure) + Send + Sync + 'static) -> Self {
        self.on_backpressure = Some(Arc::new(callback));
        self
    }

    pub(super) fn io_or_best(&self) -> Arc<dyn Io> {
        self.io.clone().unwrap_or_else(pagekeeper_io::best)
    }

    pub(super) fn geometry(&self) -> ring::Geometry {
        ring::Geometry { file_bytes: self.file_bytes, files: self.files }
    }

    pub(super) fn check_from(from: Option<Lsn>) -> Result<(), Error> {
        match from {
            Some(lsn) if !lsn.get().is_multiple_of(8) => Err(Error::NotARecord { lsn }),
            _ => Ok(()),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let files = u64::from(self.files);
        if !(1..=super::control::MAX_FILES).contains(&self.files) {
            return Err(Error::Setting { what: "a number of files", given: files, wanted: "give 1 to 4096" });
        }
        if !self.file_bytes.is_multiple_of(BLOCK) || self.file_bytes > 1 << 44 {
            let (what, given) = ("a file size", self.file_bytes);
            return Err(Error::Setting { what, given, wanted: "give a multiple of 4096 up to 16 TiB" });
        }
        if self.geometry().capacity() < MIN_RING {
            let given = self.geometry().capacity();
            return Err(Error::Setting { what: "a ring", given, wanted: "give 65536 bytes or more in all" });
        }
        if let Some(given) = self.max_unsynced
            && !(given.is_multiple_of(BLOCK) && super::control::MAX_UNSYNCED_RANGE.contains(&given))
        {
            let (what, wanted) =
                ("a bound on what is not synced", "give a multiple of 4096 from 32 KiB to 4 GiB");
            return Err(Error::Setting { what, given, wanted });
        }
        if !self.buffer_bytes.is_power_of_two() || !(MIN_BUFFER..=MAX_BUFFER).contains(&self.buffer_bytes) {
            let (what, given) = ("a log buffer", self.buffer_bytes as u64);
            return Err(Error::Setting { what, given, wanted: "give a power of two from 32 KiB to 4 GiB" });
        }
        Ok(())
    }
}

impl fmt::Debug for RedoOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedoOptions")
            .field("files", &self.files)
            .field("file_bytes", &self.file_bytes)
            .field("buffer_bytes", &self.buffer_bytes)
            .field("flush_policy", &self.flush_policy)
            .field("mode", &self.mode)
            .field("max_unsynced", &self.max_unsynced)
            .field("release", &self.release)
            .finish_non_exhaustive()
    }
}
