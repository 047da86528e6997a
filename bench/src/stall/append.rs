//! The victim: a log to which 4 KiB are appended about each millisecond, never synced.
//!
//! Each append is one write(2) into the page cache, which would return at once if nobody else wrote. Only the call is
//! timed, not the wait until it was due.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::latencies::Latencies;
use crate::pattern;

const BYTES: usize = 4096;
const EVERY: Duration = Duration::from_millis(1);

/// Appends until it is asked to stop.
pub(super) fn append_until(stop: &AtomicBool, path: &Path, seed: u64) -> Result<Latencies> {
    let mut file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(path)
        .with_context(|| format!("can't make {}", path.display()))?;
    let mut appends = Latencies::new();
    let mut bytes = [0; BYTES];
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        pattern::fill(seed, appends.count() * BYTES as u64, &mut bytes);
        let began = Instant::now();
        file.write_all(&bytes).with_context(|| format!("can't append to {}", path.display()))?;
        appends.record(began.elapsed());
        // Delays by a stall are not caught up, because a burst would be another load.
        due = (due + EVERY).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    check(path, seed, appends.count() * BYTES as u64)?;
    Ok(appends)
}

/// Fails unless the file has this many bytes of the pattern.
fn check(path: &Path, seed: u64, len: u64) -> Result<()> {
    let found = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    ensure!(found.len() as u64 == len, "{} has {} bytes instead of {len}", path.display(), found.len());
    pattern::check(seed, 0, &found).with_context(|| path.display().to_string())
}
