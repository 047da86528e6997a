//! The reader: one subject in a process of its own inside the cgroup. It reads until its memory is full, and then for
//! the counted time.
//!
//! Threads read in closed loops: the next read begins when the last has ended, so a latency includes the wait for a
//! processor. All subjects copy into the caller's buffer, and all reads are verified.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use pagekeeper_cache::PageCache;
use pagekeeper_kernel::{Advice, advise};
use serde::{Deserialize, Serialize};

use super::helper::{Part, say_ready, say_result};
use super::map::FileMap;
use crate::data::open;
use crate::drive::{Driven, Judge, PAGE, drive, place};
use crate::rounds::Random;
use crate::scratch::Stop;

/// Threads that fill the memory.
const FILLING_THREADS: usize = 32;
/// The longest measurable latency, in ns: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// How to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Way {
    /// Through the cache, direct.
    Pagekeeper,
    /// mmap, advised to expect random reads.
    Mmap,
    /// pread, advised likewise.
    Pread,
}

/// The hidden command `pressure-reader`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    part: Part,
    /// How to read.
    #[arg(long)]
    way: Way,
    /// What to read; a whole number of pages.
    #[arg(long)]
    file: PathBuf,
    /// The seed of its pattern.
    #[arg(long)]
    pattern: u64,
    /// The seed of the places.
    #[arg(long)]
    seed: u64,
    /// Bytes of a read.
    #[arg(long)]
    bytes: usize,
    /// Threads.
    #[arg(long)]
    threads: usize,
    /// Memory of pagekeeper's cache, in bytes.
    #[arg(long)]
    budget: u64,
    /// Reads before those that count.
    #[arg(long)]
    fill: u64,
}

/// The reader's figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Reads per second.
    pub(super) rate: f64,
    /// Number of reads.
    pub(super) reads: u64,
    /// CPU time of a read in µs, user and system.
    pub(super) cpu_us: f64,
    /// Latencies in µs.
    pub(super) latency: Latency,
}

/// Latencies in µs, with an error of at most 1 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) longest: f64,
}

/// Runs the reader.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    arguments.part.enter()?;
    let file = open(&arguments.file)?;
    let measured = match arguments.way {
        Way::Pagekeeper => {
            let cache =
                PageCache::builder().memory(arguments.budget).build().context("can't make a cache")?;
            let file = cache.open(&arguments.file).context("can't open the file through the cache")?;
            measure(arguments, |offset, buf| Ok(file.read_at(offset, buf)?))
        }
        Way::Mmap => {
            let map = FileMap::new(file.file()).context("can't map the file")?;
            measure(arguments, |offset, buf| Ok(map.read_at(offset, buf)))
        }
        Way::Pread => {
            advise(&file, Advice::Random, 0..u64::MAX, &arguments.file)?;
            measure(arguments, |offset, buf| Ok(file.file().read_at(buf, offset)?))
        }
    };
    say_result(&measured?)
}

fn measure<R>(arguments: &Arguments, read: R) -> Result<Measured>
where
    R: Fn(u64, &mut [u8]) -> Result<usize> + Sync,
{
    let stop = Stop::on_signals()?;
    let pages = arguments.file.metadata().context("can't stat the file")?.len() / PAGE;
    let bytes = arguments.bytes;
    ensure!(pages > 0 && (1..=PAGE).contains(&(bytes as u64)), "reads must fit into a page of the file");
    let mut random = Random::new(arguments.seed);
    let (read, pattern) = (&read, arguments.pattern);
    let mut reader = || {
        let mut random = Random::new(random.next_u64());
        let (mut judge, mut buf) = (Judge::new(pattern), vec![0; bytes]);
        move || -> Result<Duration> {
            let offset = place(&mut random, pages, bytes);
            let began = Instant::now();
            let found = read(offset, &mut buf)?;
            let took = began.elapsed();
            ensure!(found == bytes, "a short read at {offset}");
            judge.check(offset, &buf)?;
            Ok(took)
        }
    };

    let filling: Vec<_> = (0..FILLING_THREADS).map(|_| reader()).collect();
    fill(filling, arguments.fill)?;
    let mut readers: Vec<_> = (0..arguments.threads).map(|_| reader()).collect();
    let mut latencies: Vec<Histogram<u64>> =
        readers.iter().map(|_| Histogram::new_with_bounds(1, LONGEST_NS, 2)).collect::<Result<_, _>>()?;
    let workers = readers.iter_mut().zip(&mut latencies).map(|(read, latencies)| {
        move || {
            let took = read()?;
            latencies.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            Ok(1)
        }
    });
    let workers: Vec<_> = workers.collect();
    say_ready()?;
    let driven = drive(workers, arguments.part.window(), &stop)?;
    let mut all = Histogram::new_with_bounds(1, LONGEST_NS, 2)?;
    latencies.iter().try_for_each(|latencies| all.add(latencies))?;
    Ok(measured(driven, &all))
}

/// Makes this many reads, divided among all readers.
fn fill<R: FnMut() -> Result<Duration> + Send>(readers: Vec<R>, reads: u64) -> Result<()> {
    let each = reads / readers.len().max(1) as u64;
    std::thread::scope(|scope| {
        let threads: Vec<_> = readers
            .into_iter()
            .map(|mut read| scope.spawn(move || (0..each).try_for_each(|_| read().map(drop))))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().try_for_each(join)
    })
}

fn measured(driven: Driven, latencies: &Histogram<u64>) -> Measured {
    let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Measured {
        rate: driven.rate(),
        reads: driven.reads,
        cpu_us: driven.cpu_us(),
        latency: Latency {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            longest: latencies.max() as f64 / 1e3,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut latencies = Histogram::new_with_bounds(1, LONGEST_NS, 2).unwrap();
        (1..=10_000).for_each(|us| latencies.record(us * 1000).unwrap());
        let driven = Driven { reads: 10_000, seconds: 2.0, cpu_seconds: 0.1 };
        let measured = measured(driven, &latencies);
        let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 1e-2;
        let Latency { p50, p90, p99, p999, longest } = measured.latency;
        assert!(near(p50, 5000.0) && near(p90, 9000.0) && near(p99, 9900.0), "{measured:?}");
        assert!(near(p999, 9990.0) && near(longest, 10_000.0), "{measured:?}");
        assert!(near(measured.rate, 5000.0) && near(measured.cpu_us, 10.0), "{measured:?}");
    }

    #[test]
    fn all_fill_together() {
        let count = std::sync::atomic::AtomicU64::new(0);
        let reader = || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(Duration::ZERO)
        };
        fill(vec![reader, reader, reader, reader], 100).unwrap();
        assert_eq!(count.into_inner(), 100);
    }
}
