//! The engine's compaction: it writes a large output file at intervals, beside the commits.
//!
//! Invariants: when an output is begun, at most [`config::BULK_FILES_MAX`] outputs exist, the newest; at most
//! [`config::BULK_BYTES_PER_SECOND`] is written in a second. Fails permanently when an output can't be written.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use pagekeeper_kernel::text::escaped;
use pagekeeper_log::{BulkMode, BulkReport, BulkWriter};

use super::config;
use super::logs::Pages;
use super::transaction::fill;

/// Bytes that are passed to the writer at once.
const STEP: usize = 1 << 20;

/// Writes outputs to a directory.
pub(super) struct Compaction {
    dir: PathBuf,
    mode: BulkMode,
    /// Bytes written to all outputs.
    written: AtomicU64,
    /// The way in which they are written; unknown before the first.
    how: OnceLock<BulkMode>,
}

impl Compaction {
    /// Makes the directory.
    pub(super) fn create(dir: &Path, pages: Pages) -> anyhow::Result<Self> {
        let dir = dir.join("bulk");
        std::fs::create_dir(&dir).with_context(|| format!("can't create {}", escaped(&dir)))?;
        let mode = match pages {
            Pages::Left => BulkMode::Buffered,
            Pages::Released => BulkMode::Auto,
        };
        Ok(Self { dir, mode, written: AtomicU64::new(0), how: OnceLock::new() })
    }

    /// Returns the bytes written to all outputs so far.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns how outputs are written, once that is known.
    pub(super) fn how(&self) -> Option<BulkMode> {
        self.how.get().copied()
    }

    /// Begins an output each [`config::BULK_EACH`], until the process ends.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        for number in 1.. {
            let begun = Instant::now();
            self.write(number, config::BULK_FILE_BYTES)?;
            self.remove_old(number)?;
            thread::sleep(config::BULK_EACH.saturating_sub(begun.elapsed()));
        }
        Ok(())
    }

    fn write(&self, number: u64, bytes: u64) -> anyhow::Result<BulkReport> {
        let path = self.path(number);
        let begun = Instant::now();
        let write = || {
            let mut output = BulkWriter::options().mode(self.mode).create(&path)?;
            let _ = self.how.set(output.mode());
            let (mut random, mut step) = (number, vec![0; STEP]);
            while output.written() < bytes {
                fill(&mut step, &mut random);
                output.write_all(&step)?;
                self.written.fetch_add(STEP as u64, Ordering::Relaxed);
                let due =
                    Duration::from_secs_f64(output.written() as f64 / config::BULK_BYTES_PER_SECOND as f64);
                thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            output.finish()
        };
        write().with_context(|| format!("can't write {}", escaped(&path)))
    }

    fn remove_old(&self, newest: u64) -> anyhow::Result<()> {
        let Some(old) = newest.checked_sub(config::BULK_FILES_MAX).filter(|&old| old > 0) else {
            return Ok(());
        };
        let path = self.path(old);
        std::fs::remove_file(&path).with_context(|| format!("can't remove {}", escaped(&path)))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:06}.sst"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_whole_and_only_the_newest_stay() {
        for (pages, mode) in [(Pages::Left, Some(BulkMode::Buffered)), (Pages::Released, None)] {
            let dir = tempfile::tempdir_in("/var/tmp").unwrap();
            let compaction = Compaction::create(dir.path(), pages).unwrap();
            for number in 1..=config::BULK_FILES_MAX + 2 {
                let report = compaction.write(number, 2 * STEP as u64).unwrap();
                assert_eq!(report.bytes, 2 * STEP as u64);
                assert_eq!(compaction.how(), Some(report.mode));
                assert!(mode.is_none_or(|mode| mode == report.mode));
                compaction.remove_old(number).unwrap();
            }
            let mut names: Vec<_> =
                std::fs::read_dir(&compaction.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["000003.sst", "000004.sst", "000005.sst", "000006.sst"]);
            assert_eq!(compaction.written(), 12 * STEP as u64);
        }
    }

    #[test]
    fn an_output_that_is_there_already_is_named() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let compaction = Compaction::create(dir.path(), Pages::Left).unwrap();
        std::fs::write(compaction.path(1), b"").unwrap();
        let error = compaction.write(1, 1).unwrap_err().to_string();
        assert!(error.contains("000001.sst"), "{error}");
    }
}
