//! Bulk writes that bypass the page cache: steps of the length that the disk's budget gives, in
//! flight while the next one is filled.
//!
//! Invariants:
//! - A step is admitted to the budget before it is submitted.
//! - There are at most [`BUFFERS_MAX`] buffers, one of them being filled.
//! - Writes are whole blocks at multiples of their length. The last one is padded with zeros, which
//!   are cut off at the end.
//! - Space is allocated ahead, since writes that extend a file run one after another on ext4 and
//!   XFS. If it can't be allocated, the write reports that.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use pagekeeper_io::{AlignedBuf, Error, Io, IoFile, OwnedWrite, Process, WriteMode};

use crate::budget::{DiskBudget, STEP_BYTES_MAX};

/// The maximum number of buffers.
const BUFFERS_MAX: usize = 5;
/// Bytes of space that are allocated at a time.
const ALLOCATED_AHEAD_BYTES: u64 = 64 << 20;

/// A finished write: its buffer and its result.
type FinishedWrite = (AlignedBuf, Result<(), Error>);

/// A file that is written past the page cache.
pub(crate) struct DirectOutput {
    io: Arc<dyn Io>,
    file: Arc<dyn IoFile>,
    budget: Arc<DiskBudget>,
    /// The buffer that is being filled, and its fill level. There may be none after an error.
    filling: Option<AlignedBuf>,
    filled: usize,
    /// The file offset of that buffer, and its final length.
    offset: u64,
    step: usize,
    free: Vec<AlignedBuf>,
    made: usize,
    in_flight: usize,
    /// The channel for finished writes.
    ended: Option<(Sender<FinishedWrite>, Receiver<FinishedWrite>)>,
    process: Process,
    /// The end of the allocated space; `None` if none can be allocated ahead.
    room: Option<u64>,
    /// The length of the file once everything is written.
    length: u64,
    waited: Duration,
}

impl DirectOutput {
    pub(crate) fn new(io: Arc<dyn Io>, file: Arc<dyn IoFile>, budget: Arc<DiskBudget>, room: u64) -> Self {
        Self {
            io,
            file,
            step: budget.step_at(0),
            budget,
            filling: None,
            filled: 0,
            offset: 0,
            free: Vec::new(),
            made: 0,
            in_flight: 0,
            ended: Some(channel()),
            process: Process::current(),
            room: Some(room),
            length: 0,
            waited: Duration::ZERO,
        }
    }

    pub(crate) fn written(&self) -> u64 {
        self.offset + self.filled as u64
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let mut buf = match self.filling.take() {
                Some(buf) => buf,
                None => self.buffer()?,
            };
            let now = bytes.len().min(self.step - self.filled);
            buf[self.filled..self.filled + now].copy_from_slice(&bytes[..now]);
            self.filled += now;
            bytes = &bytes[now..];
            if self.filled == self.step {
                buf.set_len(self.step);
                self.submit(buf);
            } else {
                self.filling = Some(buf);
            }
        }
        Ok(())
    }

    pub(crate) fn end(&mut self) -> Result<u64, Error> {
        if let Some(mut buf) = self.filling.take() {
            let whole = self.filled.next_multiple_of(AlignedBuf::ALIGN);
            buf[self.filled..whole].fill(0);
            buf.set_len(whole);
            self.submit(buf);
        }
        while self.in_flight > 0 {
            self.take_ended()?;
        }
        Ok(self.length)
    }

    /// Returns a free buffer for the next step. Waits for one if necessary.
    fn buffer(&mut self) -> Result<AlignedBuf, Error> {
        self.step = self.budget.step_at(self.offset);
        while self.free.is_empty() && self.made == BUFFERS_MAX {
            self.take_ended()?;
        }
        Ok(self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            AlignedBuf::new(STEP_BYTES_MAX)
        }))
    }

    fn ended(&self) -> &(Sender<FinishedWrite>, Receiver<FinishedWrite>) {
        self.ended.as_ref().expect("it is there until the drop")
    }

    fn take_ended(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        let (mut buf, result) = self.ended().1.recv().expect("this end holds a sender, too");
        self.waited += began.elapsed();
        self.in_flight -= 1;
        result?;
        buf.set_len(STEP_BYTES_MAX);
        self.free.push(buf);
        Ok(())
    }

    fn submit(&mut self, buf: AlignedBuf) {
        let end = self.offset + buf.len() as u64;
        if let Some(room) = self.room
            && room < end
        {
            let new_room = end.max(room.saturating_add(ALLOCATED_AHEAD_BYTES));
            self.room = self.file.allocate(room..new_room).is_ok().then_some(new_room);
            self.length = self.length.max(self.room.unwrap_or(0));
        }
        self.length = self.length.max(end);
        let began = Instant::now();
        let step = self.budget.admit_direct(buf.len() as u64);
        self.waited += began.elapsed();
        self.in_flight += 1;
        let sender = self.ended().0.clone();
        self.io.submit_writes(vec![OwnedWrite {
            file: Arc::clone(&self.file),
            offset: self.offset,
            buf,
            mode: WriteMode::Plain,
            done: Box::new(move |buf, result| {
                if result.is_ok() {
                    step.written();
                } else {
                    drop(step);
                }
                // After an error, or when the writer was dropped, nobody receives this.
                drop(sender.send((buf, result)));
            }),
        }]);
        self.offset += self.filled as u64;
        self.filled = 0;
    }
}

impl Drop for DirectOutput {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The drop would wait for a thread that was sending when this process was forked.
            std::mem::forget(self.ended.take());
        }
    }
}
