//! Settings of a binlog.

use std::sync::Arc;

use pagekeeper_io::Io;

#[cfg(test)]
use super::injected_fault::InjectedFault;
use super::segment::HEADER;
use crate::record::BLOCK;
use crate::{Error, LogMode};

/// Least size of a segment, in bytes: the header and three blocks.
const MIN_SEGMENT: u64 = HEADER + 3 * BLOCK;

/// Settings of a [`BinLog`](crate::BinLog), and how it is opened.
///
/// ```
/// use pagekeeper_io::SimDisk;
/// use pagekeeper_log::BinLogOptions;
/// use std::sync::Arc;
///
/// let disk = Arc::new(SimDisk::new());
/// let log = BinLogOptions::new().max_segment_bytes(1 << 20).sync_every(0).io(disk).open("/binlog")?;
/// log.append_group(&[b"begin", b"insert", b"commit"])?;
/// # Ok::<(), pagekeeper_log::Error>(())
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
    pub(super) injected_fault: Option<InjectedFault>,
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
    /// The defaults, as given with each setting.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that a segment's file may have [default: 1 GiB]: a multiple of 4096, at least 16 KiB. A group that takes up
    /// more than what a segment has beside its header can't be appended.
    #[must_use]
    pub fn max_segment_bytes(mut self, bytes: u64) -> Self {
        self.max_segment_bytes = bytes;
        self
    }

    /// After how many groups the log is synced [default: 1, each is durable when its append returns]. With 0 the log is synced
    /// only at rotation, by [`BinLog::sync`](crate::BinLog::sync) and [`BinLog::close`](crate::BinLog::close); writeback is started as segments grow.
    #[must_use]
    pub fn sync_every(mut self, groups: u64) -> Self {
        self.sync_every = groups;
        self
    }

    /// A follower at most this many segments behind the writer's is near: what it has yet to read stays resident
    /// [default: 3].
    #[must_use]
    pub fn keep_segments(mut self, segments: u64) -> Self {
        self.keep_segments = segments;
        self
    }

    /// Bytes behind the writer that stay resident [default: 6 MiB], so that nobody waits for the writeback of what was
    /// just written.
    #[must_use]
    pub fn slack(mut self, bytes: u64) -> Self {
        self.slack = bytes;
        self
    }

    /// How many bytes ahead zeros are written where groups of up to 64 KiB are synced one by one [default: 1 MiB]: a sync of what
    /// only overwrites takes two thirds of the time, and the device writes twice as much. 0: none.
    #[must_use]
    pub fn zero_ahead(mut self, bytes: u64) -> Self {
        self.zero_ahead = bytes;
        self
    }

    /// How segments are written [default: [`LogMode::Auto`], which is buffered].
    #[must_use]
    pub fn mode(mut self, mode: LogMode) -> Self {
        self.mode = mode;
        self
    }

    /// Whether the log gives its pages back [default: yes]. Else it leaves them to the kernel, as logs of today's databases
    /// do: for comparison, and for those who keep pages by other means. Writeback is the kernel's to start then.
    #[must_use]
    pub fn release(mut self, release: bool) -> Self {
        self.release = release;
        self
    }

    /// Opens the log to read only [default: no]: not one byte is written, and no file made, so that it can also be read on a
    /// read-only or full file system. Others may read it at the same time; while it is open for writing it is
    /// [`pagekeeper_io::Error::Locked`]. What would change it fails with [`Error::ReadOnly`].
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// A back-end of one's own: one that is shared, or the simulated disk [default: [`pagekeeper_io::best`]].
    #[must_use]
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = Some(io);
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let bytes = self.max_segment_bytes;
        if bytes < MIN_SEGMENT || !bytes.is_multiple_of(BLOCK) {
            let wanted = "a multiple of 4096 bytes, at least 16384";
            return Err(Error::Setting { what: "a segment", given: bytes, wanted });
        }
        Ok(())
    }

    /// Bytes that the largest group may take up.
    pub(super) fn room(&self) -> u64 {
        self.max_segment_bytes - HEADER
    }
}
