//! `miss`: reads of 500 bytes with a cache of nine tenths of the data, while the kernel caches all
//! of it: a hit is a copy, a miss a pread of a page.
//!
//! All subjects find the file fully resident, and each sample must leave it so. All bytes are
//! verified. The 500 bytes lie within one page and begin at any multiple of 8. The limit is [a
//! minimal cache that evicts](evicting). Fails where bytes are wrong.

mod evicting;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagekeeper_cache::{Backend, CachedFile, PageCache};

use crate::BenchRun;
use crate::data::{open, read_through, require_resident, resident};
use crate::drive::{DriveResult, FILE_PAGE_BYTES, ReadChecker, drive, place};
use crate::hit::PREAD_NAME;
use crate::pattern;
use crate::report::FigureUnit;
use crate::rounds::SplitMix;
use crate::scratch::StopRequest;
use evicting::EvictingCache;

/// Bytes of a page.
const CACHE_PAGE_BYTES: usize = 4096;
/// Bytes of a read.
const READ_BYTES: usize = 500;
/// Reads of a worker between two checks of the clock.
const READS_PER_CLOCK_CHECK: u64 = 64;
/// The second of a quick run by which the last round ends.
const MISS_QUICK_END_SECONDS: u64 = 43;

const OUR_CACHE_NAME: &str = "pagekeeper";
const EVICTING_CACHE_NAME: &str = "the least that evicts";
const MISS_SUBJECTS: [&str; 3] = [OUR_CACHE_NAME, PREAD_NAME, EVICTING_CACHE_NAME];
/// Percent of pages that the limit holds in memory: as many as the cache's share of hits, or a
/// little more.
const LIMIT_PERCENT: u64 = 90;

/// Threads, and the ratios of ours and the limit, in the order of `pairs` below.
const MISS_CASES: [(usize, [&str; 3]); 3] = [
    (2, ["mix90_2T_vs_pread", "mix90_2T_vs_least", "mix90_2T_least_vs_pread"]),
    (1, ["mix90_1T_vs_pread", "mix90_1T_vs_least", "mix90_1T_least_vs_pread"]),
    (32, ["mix90_32T_vs_pread", "mix90_32T_vs_least", "mix90_32T_least_vs_pread"]),
];

/// Runs the benchmark; with `--quick` only two threads.
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    let size = if run.quick { 512 << 20 } else { 1 << 30 };
    run.scratch.require_space(size)?;
    let path = run.scratch.path().join("file");
    let seed = run.random.next_u64();
    run.say("writing the file")?;
    pattern::make_file(&path, size, seed)?;
    let budget = size / 10 * 9;
    let cache = PageCache::options().memory(budget).backend(Backend::Buffered).build()?;
    let file = cache.open(&path).context("can't open the file through the cache")?;
    fill(&file, size)?;
    run.note(&format!(
        "{} MiB, all in the kernel's page cache; the cache's memory is {} MiB with its bookkeeping, and its misses are buffered reads",
        size >> 20,
        budget >> 20
    ));
    let cases = if run.quick { &MISS_CASES[..1] } else { &MISS_CASES };
    let duration = Duration::from_millis(if run.quick { 700 } else { 2000 });
    for &(threads, ratios) in cases {
        let load = MissLoad { path: &path, seed, size, threads, duration, stop: run.stop.clone() };
        measure(run, &load, &cache, &file, ratios)?;
    }
    Ok(())
}

fn measure(
    run: &mut BenchRun,
    load: &MissLoad<'_>,
    cache: &PageCache,
    file: &CachedFile,
    ratios: [&'static str; 3],
) -> Result<()> {
    let plural = if load.threads == 1 { "" } else { "s" };
    let name = format!("500 B, cache of 90 % of the data, {} thread{plural}", load.threads);
    run.say(&name)?;
    let plain = open(load.path)?;
    let mut order: Vec<u32> = (0..u32::try_from(load.size / FILE_PAGE_BYTES)?).collect();
    run.random.shuffle(&mut order);
    let frames = usize::try_from(load.size / FILE_PAGE_BYTES * LIMIT_PERCENT / 100)?;
    let evicting = EvictingCache::new(plain.file(), &order, frames)?;
    // All subjects of a round get the same random choices, which differ between rounds. Otherwise a
    // cache would keep the pages that happen to be read more often in all of them.
    let seed = run.random.next_u64();
    let before = cache.stats();
    let measured = run.measure(&MISS_SUBJECTS, run.plan(MISS_QUICK_END_SECONDS), |turn| {
        let seeds = SplitMix::new(seed ^ turn.round as u64);
        match MISS_SUBJECTS[turn.subject] {
            PREAD_NAME => {
                load.sample(seeds, || Ok(|offset, buf: &mut [u8]| Ok(plain.file().read_at(buf, offset)?)))
            }
            EVICTING_CACHE_NAME => load.sample(seeds, || {
                let mut reader = evicting.reader()?;
                Ok(move |offset, buf: &mut [u8]| reader.read(offset, buf))
            }),
            _ => load.sample(seeds, || Ok(|offset, buf: &mut [u8]| Ok(file.read_at(offset, buf)?))),
        }
    })?;
    let rates = measured.figure(DriveResult::rate);
    run.report.add_case(&name, FigureUnit::ReadsPerSecond, &rates);
    let cpu = measured.figure(DriveResult::cpu_us);
    run.report.add_case(&format!("{name}: CPU time of a read"), FigureUnit::Microseconds, &cpu);
    let pairs = [
        (OUR_CACHE_NAME, PREAD_NAME),
        (OUR_CACHE_NAME, EVICTING_CACHE_NAME),
        (EVICTING_CACHE_NAME, PREAD_NAME),
    ];
    for (ratio, (ours, theirs)) in ratios.into_iter().zip(pairs) {
        run.report.add_ratio(ratio, FigureUnit::ReadsPerSecond, &rates, ours, theirs);
    }
    let after = cache.stats();
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    let percent = |part: u64, of: u64| part as f64 * 100.0 / (of as f64).max(1.0);
    let [reads, not_held] = evicting.counts();
    run.note(&format!(
        "{name}: {:.1} % of pagekeeper's reads were hits, {:.1} % of those of {EVICTING_CACHE_NAME}",
        percent(hits, hits + misses),
        percent(reads - not_held, reads)
    ));
    Ok(())
}

/// Reads all of it once, so that the cache is full.
fn fill(file: &CachedFile, size: u64) -> Result<()> {
    let mut page = vec![0; CACHE_PAGE_BYTES];
    for offset in (0..size).step_by(page.len()) {
        ensure!(file.read_at(offset, &mut page)? == page.len(), "a short read at {offset}");
    }
    Ok(())
}

/// Random reads of a file by some threads.
struct MissLoad<'a> {
    path: &'a Path,
    /// Seed of its pattern.
    seed: u64,
    /// Length in bytes, a multiple of a page.
    size: u64,
    threads: usize,
    duration: Duration,
    stop: StopRequest,
}

impl MissLoad<'_> {
    /// Takes one sample of a way of reading, which is created again for each thread.
    fn sample<R>(&self, mut seeds: SplitMix, way: impl Fn() -> Result<R>) -> Result<DriveResult>
    where
        R: FnMut(u64, &mut [u8]) -> Result<usize> + Send,
    {
        if resident(self.path)? < self.size {
            read_through(&open(self.path)?, 0..self.size)?;
        }
        let workers = (0..self.threads).map(|_| {
            let mut read = way()?;
            let mut random = SplitMix::new(seeds.next_u64());
            let (mut judge, mut buf) = (ReadChecker::new(self.seed), [0; READ_BYTES]);
            Ok(move || {
                for _ in 0..READS_PER_CLOCK_CHECK {
                    let offset = place(&mut random, self.size / FILE_PAGE_BYTES, READ_BYTES);
                    ensure!(read(offset, &mut buf)? == READ_BYTES, "a short read at {offset}");
                    judge.check(offset, &buf)?;
                }
                Ok(READS_PER_CLOCK_CHECK)
            })
        });
        let workers = workers.collect::<Result<Vec<_>>>()?;
        let driven = drive(workers, self.duration, &self.stop)?;
        require_resident(resident(self.path)?, self.size)?;
        Ok(driven)
    }
}
