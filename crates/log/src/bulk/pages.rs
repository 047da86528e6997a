//! Bulk writes through the page cache, in steps: paced, uncached, or plainly buffered.
//!
//! Invariants: a step is written in one call, at a multiple of its length, so that the kernel can build large folios and
//! a release covers whole ones. A paced step is admitted to the budget before it becomes dirty, and its writeback is
//! started before anybody waits for it.

use std::sync::Arc;
use std::time::Duration;

use pagekeeper_io::{IoFile, WriteMode};

use super::budget::Share;
use crate::Error;

/// Bytes of a step of a buffered file.
const STEP: usize = 1 << 20;

/// A file that is written through the page cache.
pub(super) struct Pages {
    file: Arc<dyn IoFile>,
    /// Its part in the budget; `None` if it is not paced.
    share: Option<Share>,
    mode: WriteMode,
    step: usize,
    /// What is no step yet.
    rest: Vec<u8>,
    /// Bytes of the steps that were written.
    offset: u64,
    waited: Duration,
}

impl Pages {
    pub(super) fn new(file: Arc<dyn IoFile>, share: Option<Share>, uncached: bool) -> Self {
        let step = share.as_ref().map_or(STEP, Share::step);
        let mode = if uncached { WriteMode::Uncached } else { WriteMode::Plain };
        Self { file, share, mode, step, rest: Vec::new(), offset: 0, waited: Duration::ZERO }
    }

    pub(super) fn written(&self) -> u64 {
        self.offset + self.rest.len() as u64
    }

    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if !self.rest.is_empty() {
            let now = bytes.len().min(self.step - self.rest.len());
            self.rest.extend_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
            if self.rest.len() < self.step {
                return Ok(());
            }
            self.write_rest()?;
        }
        let mut steps = bytes.chunks_exact(self.step);
        for step in steps.by_ref() {
            self.write_step(step)?;
        }
        self.rest.extend_from_slice(steps.remainder());
        Ok(())
    }

    pub(super) fn end(&mut self) -> Result<u64, Error> {
        if !self.rest.is_empty() {
            self.write_rest()?;
        }
        if let Some(share) = &self.share {
            self.waited += share.end()?;
        }
        Ok(self.offset)
    }

    fn write_rest(&mut self) -> Result<(), Error> {
        let mut rest = std::mem::take(&mut self.rest);
        let done = self.write_step(&rest);
        rest.clear();
        self.rest = rest;
        done
    }

    fn write_step(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let range = self.offset..self.offset + bytes.len() as u64;
        let Some(share) = &self.share else {
            self.file.write_at(range.start, bytes, self.mode)?;
            self.offset = range.end;
            return Ok(());
        };
        let (admitted, waited) = share.admit(bytes.len() as u64);
        self.waited += waited;
        let written = self.file.write_at(range.start, bytes, self.mode);
        let started = written.and_then(|()| self.file.start_writeback(range.clone()));
        // Failed or not, some of it may be dirty now.
        admitted.hand_over(range.clone());
        started?;
        self.offset = range.end;
        share.check()
    }
}
