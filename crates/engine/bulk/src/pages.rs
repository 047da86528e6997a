//! Bulk writes through the page cache, in steps: paced, uncached, or plainly buffered.
//!
//! Invariants: a step is written in one call, at a multiple of its length, so that the kernel can
//! build large folios and a release covers whole ones. A paced step is admitted to the budget
//! before it becomes dirty, and is then handed over to the budget.

use std::sync::Arc;
use std::time::Duration;

use pagekeeper_io::{Error, IoFile, WriteMode};

use crate::budget::BudgetShare;

/// Bytes of a step of a buffered file.
const BUFFERED_STEP_BYTES: usize = 1 << 20;

/// A file that is written through the page cache.
pub(crate) struct PageOutput {
    file: Arc<dyn IoFile>,
    /// Its share of the budget; `None` if it is buffered.
    share: Option<BudgetShare>,
    mode: WriteMode,
    step: usize,
    /// Bytes that do not fill a step yet.
    rest: Vec<u8>,
    /// Bytes of the written steps: a multiple of `step`, except at the end.
    offset: u64,
    waited: Duration,
}

impl PageOutput {
    pub(crate) fn new(file: Arc<dyn IoFile>, share: Option<BudgetShare>, uncached: bool) -> Self {
        let step = share.as_ref().map_or(BUFFERED_STEP_BYTES, |share| share.step_at(0));
        let mode = if uncached { WriteMode::Uncached } else { WriteMode::Plain };
        Self { file, share, mode, step, rest: Vec::new(), offset: 0, waited: Duration::ZERO }
    }

    pub(crate) fn written(&self) -> u64 {
        self.offset + self.rest.len() as u64
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if !self.rest.is_empty() {
            let now = bytes.len().min(self.step - self.rest.len());
            self.rest.extend_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
            if self.rest.len() < self.step {
                return Ok(());
            }
            self.write_rest()?;
        }
        loop {
            self.step = self.next_step();
            let Some((step, rest)) = bytes.split_at_checked(self.step) else { break };
            self.write_step(step)?;
            bytes = rest;
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the bytes of the step that begins at the offset, from what is known of the disk now.
    fn next_step(&self) -> usize {
        self.share.as_ref().map_or(BUFFERED_STEP_BYTES, |share| share.step_at(self.offset))
    }

    pub(crate) fn end(&mut self) -> Result<u64, Error> {
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
        // Whether it failed or not, some of it may be dirty now.
        admitted.hand_over(range.clone());
        written?;
        self.offset = range.end;
        share.check()
    }
}
