//! The stream's own program: it reads files, or writes one, at a rate, with the calls that any
//! program makes: open, read or write, close.
//!
//! The rate is part of this program, and so equal for every subject: it sleeps where it is ahead,
//! and is as late as its calls are. Each written block holds its offset, so that a file can be
//! checked afterwards. Invariants: reading reopens every file in each pass, as a backup does.
//! Writing never ends a file early: it fails.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_io::AlignedBuf;
use rustix::fs::OFlags;

use crate::rounds::SplitMix;

/// Bytes of a read or a write: at least the default of tar and cp.
pub(super) const STREAM_CALL_BYTES: usize = 128 << 10;
/// Shorter sleeps are not worth a call.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// The stream, as the bench that starts it asks for it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StreamChildArguments {
    /// Files to read, in this order, again and again
    #[arg(long, value_name = "FILE", num_args = 1..)]
    read: Vec<PathBuf>,
    /// Ends after this many passes [default: never]
    #[arg(long)]
    passes: Option<u64>,
    /// Past the page cache
    #[arg(long)]
    direct: bool,
    /// File to write
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Bytes to write
    #[arg(long, default_value_t = 0)]
    bytes: u64,
    /// Bytes a second at most [default: as fast as it goes]
    #[arg(long)]
    rate: Option<u64>,
}

/// Runs the stream.
pub(crate) fn run(arguments: &StreamChildArguments) -> Result<()> {
    let mut pace = StreamPace { began: Instant::now(), moved: 0, rate: arguments.rate };
    match &arguments.write {
        Some(path) => write(path, arguments, &mut pace),
        None => (0..arguments.passes.unwrap_or(u64::MAX)).try_for_each(|_| {
            arguments.read.iter().try_for_each(|path| read(path, arguments.direct, &mut pace))
        }),
    }
}

/// The stream's progress, and its limit.
struct StreamPace {
    began: Instant,
    moved: u64,
    rate: Option<u64>,
}

impl StreamPace {
    fn moved(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(self.moved as f64 / rate as f64);
        let early = due.saturating_sub(self.began.elapsed());
        if early >= SLEEP_MIN {
            std::thread::sleep(early);
        }
    }
}

fn read(path: &Path, direct: bool, pace: &mut StreamPace) -> Result<()> {
    let shown = || format!("can't read {}", path.display());
    let mut options = options(direct);
    options.read(true);
    let mut file = options.open(path).with_context(shown)?;
    let mut block = AlignedBuf::new(STREAM_CALL_BYTES);
    block.set_len(STREAM_CALL_BYTES);
    loop {
        match file.read(&mut block).with_context(shown)? {
            0 => return Ok(()),
            bytes => pace.moved(bytes),
        }
    }
}

fn write(path: &Path, arguments: &StreamChildArguments, pace: &mut StreamPace) -> Result<()> {
    let shown = || format!("can't write {}", path.display());
    let mut options = options(arguments.direct);
    options.write(true).create(true).truncate(true);
    let mut file = options.open(path).with_context(shown)?;
    let mut block = AlignedBuf::new(STREAM_CALL_BYTES);
    block.set_len(STREAM_CALL_BYTES);
    block.copy_from_slice(&template());
    let mut at = 0;
    while at < arguments.bytes {
        stamp(&mut block, at);
        file.write_all(&block).with_context(shown)?;
        at += STREAM_CALL_BYTES as u64;
        pace.moved(STREAM_CALL_BYTES);
    }
    Ok(())
}

fn options(direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    if direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    options
}

/// Returns random bytes.
fn template() -> Vec<u8> {
    let mut noise = SplitMix::new(1);
    std::iter::repeat_with(|| noise.next_u64().to_le_bytes()).take(STREAM_CALL_BYTES / 8).flatten().collect()
}

/// Writes its offset into a block.
fn stamp(block: &mut [u8], at: u64) {
    block[..8].copy_from_slice(&at.to_le_bytes());
}

/// Fails unless the file's first `bytes` bytes, in whole blocks, are the stream's output.
pub(super) fn check(path: &Path, bytes: u64) -> Result<()> {
    let shown = || format!("can't read {}", path.display());
    let mut file = File::open(path).with_context(shown)?;
    let (mut wanted, mut found) = (template(), vec![0; STREAM_CALL_BYTES]);
    for at in (0..bytes / STREAM_CALL_BYTES as u64).map(|index| index * STREAM_CALL_BYTES as u64) {
        stamp(&mut wanted, at);
        file.read_exact(&mut found).with_context(shown)?;
        ensure!(found == wanted, "{} has other bytes than were written, from {at} on", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> StreamChildArguments {
        use clap::Parser;
        #[derive(Parser)]
        struct PaceLine {
            #[command(flatten)]
            arguments: StreamChildArguments,
        }
        PaceLine::parse_from([&["stream-child"], words].concat()).arguments
    }

    #[test]
    fn every_written_byte_is_compared() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        let shown = path.display().to_string();
        let bytes = 3 * STREAM_CALL_BYTES as u64;
        let measured = bytes.to_string();
        run(&arguments(&["--write", &shown, "--bytes", &measured])).unwrap();
        check(&path, bytes).unwrap();
        let mut content = std::fs::read(&path).unwrap();
        // Blocks in each other's place, one wrong byte, one byte too few.
        content.rotate_left(STREAM_CALL_BYTES);
        std::fs::write(&path, &content).unwrap();
        assert!(check(&path, bytes).is_err());
        content.rotate_right(STREAM_CALL_BYTES);
        content[2 * STREAM_CALL_BYTES + 77] ^= 1;
        std::fs::write(&path, &content).unwrap();
        assert!(check(&path, bytes).unwrap_err().to_string().contains(&(2 * STREAM_CALL_BYTES).to_string()));
        check(&path, 2 * STREAM_CALL_BYTES as u64).unwrap();
        for way in [&[][..], &["--direct"]] {
            std::fs::write(&path, &content).unwrap();
            let words = [&["--write", &shown, "--bytes", &measured], way].concat();
            run(&arguments(&words)).unwrap();
            check(&path, bytes).unwrap();
        }
        File::options().write(true).open(&path).unwrap().set_len(bytes - 1).unwrap();
        assert!(check(&path, bytes).is_err());
    }

    #[test]
    fn reading_ends_after_its_passes_and_is_never_ahead_of_its_rate() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 5 * STREAM_CALL_BYTES]).unwrap();
        let shown = path.display().to_string();
        let began = Instant::now();
        run(&arguments(&["--read", &shown, &shown, "--passes", "2", "--rate", "26214400"])).unwrap();
        // 20 blocks at 25 MiB per second.
        assert!(began.elapsed() >= Duration::from_millis(98));
        run(&arguments(&["--read", &shown, "--passes", "1", "--direct"])).unwrap();
        assert!(run(&arguments(&["--read", "/nonexistent", "--passes", "1"])).is_err());
    }
}
