//! Reads of 500 bytes with a cache of nine tenths of the data, while the kernel caches all of it: a hit is a copy, a
//! miss a pread of a page.
//!
//! All subjects find the file fully resident, and each sample must leave it so. The 500 bytes lie within one page and
//! begin at any multiple of 8. There are two limits: an array that cannot evict, and [the least cache that
//! can](evicting).

use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagekeeper_cache::{Backend, CachedFile, PageCache};

use super::evicting::Evicting;
use super::{Cost, CpuTimes, Data, PAGE_LEN, add_case, duration};
use crate::Run;
use crate::data::{open, read_through, require_resident, resident};
use crate::drive::{Judge, PAGE, drive, place};
use crate::hit::plain::Limit;
use crate::hit::reader::Reader;
use crate::report::Unit;
use crate::rounds::{Random, Subject};
use crate::scratch::Stop;

/// Bytes of a read.
const READ_BYTES: usize = 500;
/// Reads of a worker between two checks of the clock.
const AT_ONCE: u64 = 64;

const OURS: &str = "pagekeeper";
const PREAD: &str = "pread";
const LIMIT: &str = "the limit: an array, pread for the rest";
const EVICTING: &str = "the least that evicts";
/// Percent of pages that the limits hold in memory: as many as the cache's share of hits, or a little more. Only its
/// array tells which ones, as in any cache.
const LIMIT_PERCENT: u64 = 90;

/// Threads, and the ratios of ours and the two limits, in the order of `pairs` below.
const CASES: &[(usize, [&str; 5])] = &[
    (
        1,
        [
            "mix90_1T_vs_pread",
            "mix90_1T_vs_limit",
            "mix90_1T_limit_vs_pread",
            "mix90_1T_vs_least",
            "mix90_1T_least_vs_pread",
        ],
    ),
    (
        2,
        [
            "mix90_2T_vs_pread",
            "mix90_2T_vs_limit",
            "mix90_2T_limit_vs_pread",
            "mix90_2T_vs_least",
            "mix90_2T_least_vs_pread",
        ],
    ),
    (
        32,
        [
            "mix90_32T_vs_pread",
            "mix90_32T_vs_limit",
            "mix90_32T_limit_vs_pread",
            "mix90_32T_vs_least",
            "mix90_32T_least_vs_pread",
        ],
    ),
];

/// Measures all cases; with `--quick` only two threads.
pub(super) fn run(run: &mut Run, data: &Data<'_>) -> Result<()> {
    let budget = data.size / 10 * 9;
    let cache = PageCache::builder().memory(budget).backend(Backend::Buffered).build()?;
    let file = cache.open(data.path).context("can't open the file through the cache")?;
    fill(&file, data.size)?;
    let plain = open(data.path)?;
    let pages = data.size / PAGE;
    let limit =
        Limit::new(pages, pages * LIMIT_PERCENT / 100, data.seed, &mut Random::new(run.random.next_u64()))?;
    let mut order: Vec<u32> = (0..u32::try_from(pages)?).collect();
    run.random.shuffle(&mut order);
    let frames = usize::try_from(pages * LIMIT_PERCENT / 100)?;
    let evicting = Evicting::new(plain.file(), &order, frames)?;
    run.note(&format!(
        "mixed reads: {} MiB, all in the kernel's page cache; the cache's memory is {} MiB with its bookkeeping, and its misses are buffered reads",
        data.size >> 20,
        budget >> 20
    ));
    for &(threads, ratios) in CASES {
        if run.quick && threads != 2 {
            continue;
        }
        let name =
            format!("500 B, cache of 90 % of the data, {threads} threads").replace(" 1 threads", " 1 thread");
        run.say(&name)?;
        let load = Load { data, threads, duration: duration(run), stop: run.stop.clone() };
        // All subjects of a round get the same random choices, which differ between rounds. Otherwise a cache would
        // keep the pages that happen to be read more often in all of them.
        let seed = run.random.next_u64();
        let [mut of_ours, mut of_pread, mut of_limit, mut of_evicting] = [(); 4].map(|()| Random::new(seed));
        let before = cache.stats();
        let cpu_times = [(); 4].map(|()| CpuTimes::default());
        let evicted_before = evicting.counts();
        let mut subjects = [
            Subject::new(OURS, || {
                let read = |offset, buf: &mut [u8]| Ok(file.read_at(offset, buf)?);
                Ok(cpu_times[0].note(load.sample(&mut of_ours, || Ok(read))?))
            }),
            Subject::new(PREAD, || {
                let read = |offset, buf: &mut [u8]| Ok(plain.file().read_at(buf, offset)?);
                Ok(cpu_times[1].note(load.sample(&mut of_pread, || Ok(read))?))
            }),
            Subject::new(LIMIT, || {
                let read = |offset: u64, buf: &mut [u8]| {
                    let at = usize::try_from(offset % PAGE)?;
                    let found = limit.read(offset / PAGE, at, buf);
                    if found { Ok(buf.len()) } else { Ok(plain.file().read_at(buf, offset)?) }
                };
                Ok(cpu_times[2].note(load.sample(&mut of_limit, || Ok(read))?))
            }),
            Subject::new(EVICTING, || {
                let reader = || {
                    let mut reader = evicting.reader()?;
                    Ok(move |offset, buf: &mut [u8]| reader.read(offset, buf))
                };
                Ok(cpu_times[3].note(load.sample(&mut of_evicting, reader)?))
            }),
        ];
        let rates = run.rounds(&mut subjects, 43)?;
        drop(subjects);
        add_case(run, &name, &rates, &cpu_times);
        let pairs = [(OURS, PREAD), (OURS, LIMIT), (LIMIT, PREAD), (OURS, EVICTING), (EVICTING, PREAD)];
        for (name, (ours, theirs)) in ratios.into_iter().zip(pairs) {
            run.report.add_ratio(name, Unit::ReadsPerSecond, &rates, ours, theirs);
        }
        let after = cache.stats();
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        let percent = |part: u64, of: u64| part as f64 * 100.0 / (of as f64).max(1.0);
        let [reads, not_held] = [0, 1].map(|which| evicting.counts()[which] - evicted_before[which]);
        run.note(&format!(
            "{name}: {:.1} % of pagekeeper's reads were hits, {:.1} % of those of {EVICTING}",
            percent(hits, hits + misses),
            percent(reads - not_held, reads)
        ));
    }
    Ok(())
}

/// Reads all of it once, so that the cache is full.
fn fill(file: &CachedFile, size: u64) -> Result<()> {
    let mut page = vec![0; PAGE_LEN];
    for offset in (0..size).step_by(page.len()) {
        ensure!(file.read_at(offset, &mut page)? == page.len(), "a short read at {offset}");
    }
    Ok(())
}

/// Random reads by some threads.
struct Load<'a> {
    data: &'a Data<'a>,
    threads: usize,
    duration: Duration,
    stop: Stop,
}

impl Load<'_> {
    /// Takes one sample of a way of reading, which is created anew for each thread.
    fn sample<R>(&self, seeds: &mut Random, way: impl Fn() -> Result<R>) -> Result<Cost>
    where
        R: FnMut(u64, &mut [u8]) -> Result<usize> + Send,
    {
        let Data { path, seed, size } = *self.data;
        if resident(path)? < size {
            read_through(&open(path)?, 0..size)?;
        }
        let workers = (0..self.threads).map(|_| {
            let mut read = way()?;
            let mut random = Random::new(seeds.next_u64());
            let (mut judge, mut buf) = (Judge::new(seed), [0; READ_BYTES]);
            Ok(move || {
                for _ in 0..AT_ONCE {
                    let offset = place(&mut random, size / PAGE, READ_BYTES);
                    ensure!(read(offset, &mut buf)? == READ_BYTES, "a short read at {offset}");
                    judge.check(offset, &buf)?;
                }
                Ok(AT_ONCE)
            })
        });
        let workers = workers.collect::<Result<Vec<_>>>()?;
        let driven = drive(workers, self.duration, &self.stop)?;
        require_resident(resident(path)?, size)?;
        Ok(Cost { rate: driven.rate(), cpu_us: driven.cpu_us() })
    }
}
