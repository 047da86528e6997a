//! A writer that only keeps the disk busy, with a few milliseconds of its work in flight at a time: the least that a
//! writer of tables can put in the way of others.
//!
//! It makes one direct write of [`STEP`] bytes after the other, to new files of the length of a table, and keeps one
//! such file at a time. Invariant: at most one write is in flight. It ends on request and fails as open(2) and
//! pwrite(2) do.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use pagekeeper_io::AlignedBuf;

use super::RATE;

/// Milliseconds of the disk's work in one write.
pub(super) const AT_ONCE_MS: u64 = 4;
/// Bytes of a write: the whole pages that the disk writes in [`AT_ONCE_MS`].
#[expect(clippy::cast_possible_truncation, reason = "less than a MiB")]
const STEP: usize = (RATE * AT_ONCE_MS / 1000 / 4096 * 4096) as usize;
/// Approximate bytes of a file: those of a table of `db_bench`.
const FILE: u64 = 32 << 20;

/// Writes in a directory, which it creates, until `done`. Returns the number of bytes.
pub(super) fn write(directory: &Path, done: &AtomicBool) -> Result<u64> {
    std::fs::create_dir(directory).context("can't make the plain writer's directory")?;
    let mut block = AlignedBuf::new(STEP);
    block.fill(0x5a);
    let mut bytes = 0;
    for number in 0_u64.. {
        let path = directory.join(format!("{number}"));
        let file = OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_DIRECT).open(&path);
        let file = file.with_context(|| format!("can't make {}", path.display()))?;
        for offset in (0..FILE).step_by(STEP) {
            if done.load(Ordering::Relaxed) {
                return Ok(bytes);
            }
            file.write_all_at(&block, offset).context("can't write past the page cache")?;
            bytes += STEP as u64;
        }
        std::fs::remove_file(&path).context("can't remove what was written")?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_writes_until_it_is_asked_to_end() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (at, done) = (dir.path().join("plain"), AtomicBool::new(false));
        let bytes = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&at, &done));
            while !at.join("1").exists() && !writer.is_finished() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            done.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        match bytes {
            Ok(bytes) => assert!(bytes >= FILE && bytes.is_multiple_of(STEP as u64), "{bytes}"),
            Err(error) => eprintln!("skipped: {error:#}"),
        }
        assert!(!at.join("0").exists());
    }
}
