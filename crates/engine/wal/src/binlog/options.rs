//! Settings of a binlog.

use std::sync::Arc;

use pagekeeper_io::Io;

#[cfg(test)]
use super::injected_fault::BinLogFault;
use super::segment::SEGMENT_HEADER_BYTES;
use crate::record::BLOCK;
use crate::{Error, LogMode};

/// The smallest size of a segment, in bytes: the header and three blocks.
const SEGMENT_BYTES_MIN: u64 = SEGMENT_HEADER_BYTES + 3 * BLOCK;

/// Settings of a [`BinLog`](crate::BinLog), with which it is opened; from
/// [`BinLog::options`](crate::BinLog::options).
///
/// ```
/// use pagekeeper_simdisk::SimDisk;
/// use pagekeeper_wal::BinLog;
/// use std::sync::Arc;
///
/// let disk = Arc::new(SimDisk::new());
/// let log = BinLog::options().max_segment_bytes(1 << 20).sync_every(0).io(disk).open("/binlog")?;
/// log.append_group(&[b"begin", b"insert", b"commit"])?;
/// # Ok::<(), pagekeeper_wal::Error>(())
/// ```
#[derive(Clone)]
pub struct BinLogOptions {
    pub(super) max_segment_bytes: u64,
    pub(super) sync_every: u64,
    pub(super) keep_segments: u64,
    pub(super) slack: u64,
    pub(super) zero_ahead: u64,
    pub(super) mode: LogMode,
    pub(super) release: bool,
    pub(super) read_only: bool,
    pub(super) io: Option<Arc<dyn Io>>,
    #[cfg(test)]
    pub(super) injected_fault: Option<BinLogFault>,
}

impl Default for BinLogOptions {
    fn default() -> Self {
        Self {
            max_segment_bytes: 1 << 30,
            sync_every: 1,
            keep_segments: 3,
            slack: 6 << 20,
            zero_ahead: 1 << 20,
            mode: LogMode::Auto,
            release: true,
            read_only: false,
            io: None,
            #[cfg(test)]
            injected_fault: None,
        }
    }
}

impl BinLogOptions {
    /// Sets the maximum size of a segment's file in bytes [default: 1 GiB]: a multiple of 4096, at
    /// least 16 KiB. A group that is larger than a segment without its header can't be appended.
    #[must_use]
    pub fn max_segment_bytes(mut self, bytes: u64) -> Self {
        self.max_segment_bytes = bytes;
        self
    }

    /// Sets after how many groups the log is synced [default: 1, each group is durable when its
    /// append returns]. With 0 the log is synced only at rotation, by
    /// [`BinLog::sync`](crate::BinLog::sync) and by [`BinLog::close`](crate::BinLog::close);
    /// writeback is started as segments grow.
    #[must_use]
    pub fn sync_every(mut self, groups: u64) -> Self {
        self.sync_every = groups;
        self
    }

    /// Sets how many segments a follower may be behind the writer's to be near [default: 3]. The
    /// pages that a near follower has yet to read stay resident.
    #[must_use]
    pub fn keep_segments(mut self, segments: u64) -> Self {
        self.keep_segments = segments;
        self
    }

    /// Sets how many bytes behind the writer stay resident [default: 6 MiB]. Nobody then waits for
    /// the writeback of bytes that were just written.
    #[must_use]
    pub fn slack(mut self, bytes: u64) -> Self {
        self.slack = bytes;
        self
    }

    /// Sets how many bytes of zeros are written ahead if groups of up to 64 KiB are synced one by
    /// one [default: 1 MiB]. A sync after pure overwrites takes two thirds of the time, but the
    /// device writes twice as much. 0 disables it.
    #[must_use]
    pub fn zero_ahead(mut self, bytes: u64) -> Self {
        self.zero_ahead = bytes;
        self
    }

    /// Sets how segments are written [default: [`LogMode::Auto`], which is buffered].
    #[must_use]
    pub fn mode(mut self, mode: LogMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets whether the log releases its pages [default: yes]. Otherwise it leaves pages and
    /// writeback to the kernel, as the logs of today's databases do. This is for comparisons, and
    /// for callers that keep pages by other means.
    #[must_use]
    pub fn release(mut self, release: bool) -> Self {
        self.release = release;
        self
    }

    /// Opens the log read-only [default: no]. No byte is written and no file created, so the log
    /// can also be read on a read-only or full file system. Several readers may have it open at the
    /// same time. While it is open for writing, opening it fails with
    /// [`pagekeeper_io::Error::Locked`]. Calls that would change the log fail with
    /// [`Error::ReadOnly`].
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets the I/O back-end, such as a shared one or the simulated disk [default:
    /// [`pagekeeper_io::best`]].
    #[must_use]
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = Some(io);
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let bytes = self.max_segment_bytes;
        if bytes < SEGMENT_BYTES_MIN || !bytes.is_multiple_of(BLOCK) {
            let wanted = "a multiple of 4096 bytes, at least 16384";
            return Err(Error::Setting { what: "a segment", given: bytes, wanted });
        }
        Ok(())
    }

    /// Returns the size of the largest possible group, in bytes.
    pub(super) fn room(&self) -> u64 {
        self.max_segment_bytes - SEGMENT_HEADER_BYTES
    }
}
