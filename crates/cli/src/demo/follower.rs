//! The demo's follower: reads the binlog as a replica does, near the writer, and checks every event.
//!
//! Invariants: every event is seen once, in order, with a right checksum, or the follower fails and says which.
//! Fails too when the file it wants next was purged before it came there.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use super::binlog::{Event, file_name, listed};
use super::{REPORT_EACH, monotonic_ns, send_line};

/// How long the follower rests at the end of the binlog.
const REST: Duration = Duration::from_millis(2);
const READ_BYTES: usize = 64 << 10;

/// What the follower tells its parent each [`REPORT_EACH`].
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Report {
    /// When, in nanoseconds of the monotonic clock.
    pub(super) at_ns: u64,
    /// Events read and found right, of all.
    pub(super) events: u64,
    /// The longest time from an event's writing to its reading since the last report, in nanoseconds.
    pub(super) lag_max_ns: u64,
}

/// Follows the binlog in `dir` until the parent is gone.
pub(super) fn run(dir: &Path) -> anyhow::Result<()> {
    let mut tail = Tail::open(dir)?;
    let mut report = Report { at_ns: monotonic_ns(), ..Report::default() };
    let each = u64::try_from(REPORT_EACH.as_nanos())?;
    loop {
        let written_ns = tail.next()?;
        let now = monotonic_ns();
        match written_ns {
            Some(written_ns) => {
                report.events += 1;
                report.lag_max_ns = report.lag_max_ns.max(now.saturating_sub(written_ns));
            }
            None => std::thread::sleep(REST),
        }
        if now >= report.at_ns + each {
            report.at_ns = now;
            if !send_line(&report)? {
                return Ok(());
            }
            report.lag_max_ns = 0;
        }
    }
}

/// The reading end of a binlog.
pub(super) struct Tail {
    dir: PathBuf,
    number: u64,
    file: File,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    sequence: u64,
    file_ended: bool,
}

impl Tail {
    /// Starts at the first event.
    pub(super) fn open(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(file_name(1));
        let file = File::open(&path).with_context(|| format!("can't open {}", path.display()))?;
        let buffer = vec![0; Event::LEN_MAX + READ_BYTES];
        Ok(Self {
            dir: dir.into(),
            number: 1,
            file,
            buffer,
            start: 0,
            end: 0,
            sequence: 0,
            file_ended: false,
        })
    }

    /// Takes the next event with a payload and returns when it was written; `None` at the end of what is written.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<u64>> {
        loop {
            if self.file_ended && !self.open_next()? {
                return Ok(None);
            }
            let name = || file_name(self.number);
            let unread = &self.buffer[self.start..self.end];
            let Some((event, len)) =
                Event::decode(unread).map_err(|reason| anyhow!("{}: {reason}", name()))?
            else {
                if self.read_more()? {
                    continue;
                }
                return Ok(None);
            };
            let expected = self.sequence + 1;
            ensure!(
                event.sequence == expected,
                "{}: event {} stands where event {expected} should",
                name(),
                event.sequence
            );
            let written_ns = event.written_ns;
            self.file_ended = event.payload.is_empty();
            self.sequence = expected;
            self.start += len;
            if !self.file_ended {
                return Ok(Some(written_ns));
            }
        }
    }

    /// Reads on; `false` at the end of the file.
    fn read_more(&mut self) -> anyhow::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let room = &mut self.buffer[self.end..self.end + READ_BYTES];
        let read = self.file.read(room).with_context(|| format!("can't read {}", file_name(self.number)))?;
        self.end += read;
        Ok(read > 0)
    }

    /// Goes on to the next file; `false` while it is still to be created.
    fn open_next(&mut self) -> anyhow::Result<bool> {
        ensure!(
            self.start == self.end,
            "{}: bytes after the event that ends the file",
            file_name(self.number)
        );
        let next = self.number + 1;
        match File::open(self.dir.join(file_name(next))) {
            Ok(file) => {
                (self.file, self.number, self.file_ended) = (file, next, false);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if listed(&self.dir)?.first().is_some_and(|&oldest| oldest > next) {
                    bail!("{} was purged before the follower came to it", file_name(next));
                }
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("can't open {}", file_name(next))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::binlog::Binlog;
    use super::*;

    /// The times of all events up to the end of what is written.
    fn drain(tail: &mut Tail) -> anyhow::Result<Vec<u64>> {
        std::iter::from_fn(|| tail.next().transpose()).collect()
    }

    #[test]
    fn a_near_follower_sees_every_event_across_rotations_and_purges() {
        let dir = tempfile::tempdir().unwrap();
        let mut binlog = Binlog::create(dir.path(), 1000, 3).unwrap();
        let mut tail = Tail::open(dir.path()).unwrap();
        for number in 1..=20 {
            binlog.commit([[1; 600].as_slice(), &[2; 300]].into_iter(), number).unwrap();
            assert_eq!(drain(&mut tail).unwrap(), [number, number]);
        }
        assert!(listed(dir.path()).unwrap()[0] > 3, "files were purged on the way");
    }

    #[test]
    fn a_follower_that_comes_too_late_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut binlog = Binlog::create(dir.path(), 1000, 3).unwrap();
        let mut tail = Tail::open(dir.path()).unwrap();
        for _ in 0..5 {
            binlog.commit(std::iter::once([1; 1000].as_slice()), 0).unwrap();
        }
        // The first file is open still, though its name is gone.
        let error = drain(&mut tail).unwrap_err();
        assert_eq!(error.to_string(), "binlog.000002 was purged before the follower came to it");
    }

    #[test]
    fn a_changed_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut binlog = Binlog::create(dir.path(), 10_000, 3).unwrap();
        binlog.commit(std::iter::once([1; 1000].as_slice()), 0).unwrap();
        let path = dir.path().join("binlog.000001");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[500] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
        let error = drain(&mut Tail::open(dir.path()).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "binlog.000001: the checksum of event 1 is wrong");
    }
}
