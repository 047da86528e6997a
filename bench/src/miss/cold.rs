//! Cold direct reads of whole pages: by one thread, by 32, and by one with 32 reads in flight: in long lists, in
//! batches of which each ends before the next begins, and by futures.
//!
//! The pages come from a shuffled list of all pages of the file. After half of the list the next sample closes the
//! file, which frees its cached pages, and starts the list anew, so no read hits. Fails where a device is so fast that
//! one sample would read the other half, too.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagekeeper_cache::{CachedFile, PageCache, ReadRequest};
use pagekeeper_io::Uring;

use super::fio::{self, How};
use super::tasks::{Task, Tasks};
use super::{Cost, CpuTimes, Data, PAGE_LEN, add_case, duration};
use crate::Run;
use crate::drive::{Driven, Judge, PAGE, drive};
use crate::gauges::{PROCESS, device_bytes};
use crate::pattern;
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::{Random, Subject, median};
use crate::scratch::Stop;

/// Memory of the cache, which is small against the file.
const CACHE_BYTES: u64 = 64 << 20;
/// Reads in flight.
const WIDE: usize = 32;

const READ_AT: &str = "pagekeeper, read_at";
const READ_AT_ASYNC: &str = "pagekeeper, read_at_async";
const BATCHES: &str = "pagekeeper, read_many of 32";
const LISTS: &str = "pagekeeper, read_many of 8,192";
/// Reads in a long list.
const LONG: usize = 8192;

/// Measures all cases; with `--quick` only the batches.
pub(super) fn run(run: &mut Run, fio: Option<&Program>, data: &Data<'_>) -> Result<()> {
    let cache = PageCache::builder().memory(CACHE_BYTES).build().context("can't make a cache")?;
    let file = RefCell::new(cache.open(data.path).context("can't open the file through the cache")?);
    // The same number in flight as fio has; the back-end's default is 128.
    let narrow = Arc::new(Uring::with_depth(u32::try_from(WIDE)?)?);
    let judge = Judge::new(data.seed);
    let narrow = PageCache::builder().memory(CACHE_BYTES).io(narrow).verifier(move |page| {
        if judge.ends_are_right(page.offset(), page.bytes()) { Ok(()) } else { Err("other bytes".to_owned()) }
    });
    let narrow = narrow.build()?;
    let narrow_file = RefCell::new(narrow.open(data.path)?);
    let deck = Deck::new(data.size / PAGE, &mut run.random);
    let (duration, stop) = (duration(run), run.stop.clone());
    let setting = Setting { data, cache: &cache, file, deck: &deck, duration, stop: stop.clone() };
    let narrow = Setting { data, cache: &narrow, file: narrow_file, deck: &deck, duration, stop };
    run.note(&format!(
        "cold reads: {} GiB, a cache of {} MiB, direct I/O",
        data.size >> 30,
        CACHE_BYTES >> 20
    ));

    if !run.quick {
        let name = "cold 4 KiB, one thread";
        let one = |setting: &Setting<'_>| setting.read_at(1);
        measure(run, fio, name, &setting, (READ_AT, &one, 0), &[fio::DEPTH_1], &["miss_1T_vs_fio"])?;
        let name = "cold 4 KiB, 32 threads";
        let many = |setting: &Setting<'_>| setting.read_at(WIDE);
        let peers = [fio::DEPTH_32, fio::THREADS_32];
        measure(
            run,
            fio,
            name,
            &setting,
            (READ_AT, &many, 0),
            &peers,
            &["miss_32T_vs_fio", "miss_32T_vs_psync"],
        )?;
        let name = "cold 4 KiB, one thread, 32 under way";
        let tasks = |setting: &Setting<'_>| setting.read_at_async();
        let peers = [fio::DEPTH_32];
        measure(run, fio, name, &setting, (READ_AT_ASYNC, &tasks, 0), &peers, &["miss_async32_vs_fio"])?;
    }
    // `--quick` leaves no time for all.
    let peers = [fio::DEPTH_32, fio::DEPTH_32_FIXED];
    let peers = if run.quick { &peers[..1] } else { &peers };
    let lists = |setting: &Setting<'_>| setting.read_lists();
    let name = "cold 4 KiB, one thread, long lists, 32 under way";
    let ratios = ["miss_qd32_vs_fio", "miss_qd32_vs_fio_fixed"];
    let cpu_us = measure(run, fio, name, &narrow, (LISTS, &lists, 15), peers, &ratios)?;
    run.report.ratios.extend(cpu_us.map(|cpu_us| ("miss_cpu_us", cpu_us)));
    let batches = |setting: &Setting<'_>| setting.read_many(WIDE);
    let name = "cold 4 KiB, one thread, batches of 32";
    let peers = [fio::BATCHES_OF_32];
    measure(run, fio, name, &setting, (BATCHES, &batches, 28), &peers, &["miss_batches_vs_fio_batches"])?;
    Ok(())
}

/// A subject: its name, its way of reading, and the second of a quick run by which it ends.
type Ours<'a> = (&'static str, &'a dyn Fn(&Setting<'_>) -> Result<Cost>, u64);

/// Measures our subject beside fio in several ways, each with a ratio, and returns the CPU time of our reads.
fn measure(
    run: &mut Run,
    fio: Option<&Program>,
    name: &str,
    setting: &Setting<'_>,
    (ours, read, quick_end): Ours<'_>,
    peers: &[How],
    ratios: &[&'static str],
) -> Result<Option<f64>> {
    run.say(name)?;
    let cpu_times: Vec<CpuTimes> = (0..=peers.len()).map(|_| CpuTimes::default()).collect();
    let mut seeds = Random::new(run.random.next_u64());
    let mut subjects = vec![Subject::new(ours, || Ok(cpu_times[0].note(read(setting)?)))];
    for (how, cpu_times) in peers.iter().zip(&cpu_times[1..]) {
        let Some(fio) = fio else { break };
        let mut seeds = Random::new(seeds.next_u64());
        subjects.push(Subject::new(how.name, move || {
            let (path, seed) = (setting.data.path, seeds.next_u64());
            Ok(cpu_times.note(fio::random_reads(fio, path, *how, setting.duration, seed)?))
        }));
    }
    let rates = run.rounds(&mut subjects, quick_end)?;
    drop(subjects);
    let cpu = add_case(run, name, &rates, &cpu_times);
    for (how, ratio) in peers.iter().zip(ratios) {
        run.report.add_ratio(ratio, Unit::ReadsPerSecond, &rates, ours, how.name);
    }
    Ok(median(&cpu[0].values))
}

/// The surroundings of our samples.
struct Setting<'a> {
    data: &'a Data<'a>,
    cache: &'a PageCache,
    /// The file as of the last start of the deck.
    file: RefCell<CachedFile>,
    deck: &'a Deck,
    duration: Duration,
    stop: Stop,
}

impl Setting<'_> {
    /// Returns the file, and its pages to read, none of which is cached.
    fn begin(&self) -> Result<(CachedFile, &Deck)> {
        let mut file = self.file.borrow_mut();
        if self.deck.is_half_drawn() {
            file.close();
            *file = self.cache.open(self.data.path).context("can't open the file again")?;
            self.deck.start_anew();
        }
        Ok((file.clone(), self.deck))
    }

    /// Measures single reads by this many threads.
    fn read_at(&self, threads: usize) -> Result<Cost> {
        let (file, deck) = self.begin()?;
        let workers = (0..threads).map(|_| {
            let file = &file;
            let (mut judge, mut page) = (Judge::new(self.data.seed), vec![0; PAGE_LEN]);
            move || {
                let offset = deck.draw()? * PAGE;
                let read = file.read_at(offset, &mut page)?;
                judge.check(offset, &page[..read])?;
                ensure!(read == page.len(), "a short read at {offset}");
                Ok(1)
            }
        });
        self.drive(workers.collect())
    }

    /// Measures reads of `count` pages per call by one thread.
    fn read_many(&self, count: usize) -> Result<Cost> {
        let (mut judge, mut pages) = (Judge::new(self.data.seed), vec![0; count * PAGE_LEN]);
        let (file, deck) = self.begin()?;
        let mut offsets = vec![0; count];
        self.drive(vec![move || {
            read_list(&file, deck, &mut offsets, &mut pages)?;
            for (offset, page) in offsets.iter().zip(pages.chunks_exact(PAGE_LEN)) {
                judge.check(*offset, page)?;
            }
            Ok(count as u64)
        }])
    }

    /// Measures lists so long that a read starts as soon as another ends, by one thread. Each page is checked as it is
    /// loaded, while others are in flight, because fio checks none between two reads; of the copies one in 64 is
    /// checked, and all of the last list.
    fn read_lists(&self) -> Result<Cost> {
        // Not zeros: untouched memory would be allocated within the measurement.
        let mut pages = vec![1; LONG * PAGE_LEN];
        let (file, deck) = self.begin()?;
        let mut offsets = vec![0; LONG];
        let check = |offsets: &[u64], pages: &[u8], each: usize| {
            let mut copies = offsets.iter().zip(pages.chunks_exact(PAGE_LEN)).step_by(each);
            copies.try_for_each(|(offset, page)| pattern::check(self.data.seed, *offset, page))
        };
        let cost = self.drive(vec![|| {
            read_list(&file, deck, &mut offsets, &mut pages)?;
            check(&offsets, &pages, 64)?;
            Ok(LONG as u64)
        }])?;
        check(&offsets, &pages, 1)?;
        Ok(cost)
    }

    /// Measures futures on one thread, with a new read for each that ends.
    fn read_at_async(&self) -> Result<Cost> {
        let reads_of_all = Arc::new(AtomicU64::new(0));
        let (file, deck) = self.begin()?;
        let mut tasks = Tasks::new((0..WIDE).map(|_| {
            let file = &file;
            let (mut judge, mut page) = (Judge::new(self.data.seed), vec![0; PAGE_LEN]);
            let reads = Arc::clone(&reads_of_all);
            let task = async move {
                loop {
                    let offset = deck.draw()? * PAGE;
                    let found = file.read_at_async(offset, &mut page).await?;
                    judge.check(offset, &page[..found])?;
                    ensure!(found == page.len(), "a short read at {offset}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            };
            Box::pin(task) as Task<'_>
        }));
        self.drive(vec![move || {
            tasks.step()?;
            Ok(reads_of_all.swap(0, Ordering::Relaxed))
        }])
    }

    /// Drives workers and verifies that all data was read from the device.
    fn drive<W: FnMut() -> Result<u64> + Send>(&self, workers: Vec<W>) -> Result<Cost> {
        let before = device_bytes(PROCESS)?;
        let driven = drive(workers, self.duration, &self.stop)?;
        require_missed(driven, device_bytes(PROCESS)? - before)?;
        Ok(Cost { rate: driven.rate(), cpu_us: driven.cpu_us() })
    }
}

/// Draws offsets and reads a page from each with one call.
fn read_list(file: &CachedFile, deck: &Deck, offsets: &mut [u64], pages: &mut [u8]) -> Result<()> {
    for offset in &mut *offsets {
        *offset = deck.draw()? * PAGE;
    }
    let parts = offsets.iter().zip(pages.chunks_exact_mut(PAGE_LEN));
    let mut requests: Vec<_> = parts.map(|(offset, page)| ReadRequest::new(*offset, page)).collect();
    Ok(file.read_many(&mut requests)?)
}

/// Fails unless the kernel's account shows that nearly all reads went to the device.
fn require_missed(driven: Driven, device_bytes: u64) -> Result<()> {
    let wanted = driven.reads * PAGE;
    ensure!(
        device_bytes >= wanted - wanted / 100,
        "{device_bytes} bytes came from the device for {wanted} bytes read: not all reads missed"
    );
    Ok(())
}

/// All pages of a file in random order.
struct Deck {
    pages: Vec<u32>,
    next: AtomicUsize,
}

impl Deck {
    fn new(pages: u64, random: &mut Random) -> Self {
        let mut pages: Vec<u32> = (0..).take(usize::try_from(pages).unwrap_or(usize::MAX)).collect();
        random.shuffle(&mut pages);
        Self { pages, next: AtomicUsize::new(0) }
    }

    /// Returns the offset of the next page.
    fn draw(&self) -> Result<u64> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let page = self.pages.get(next).context("the device is too fast for a file of this size")?;
        Ok(u64::from(*page))
    }

    fn is_half_drawn(&self) -> bool {
        self.next.load(Ordering::Relaxed) > self.pages.len() / 2
    }

    fn start_anew(&self) {
        self.next.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_drawn_once_until_the_deck_starts_anew() {
        let deck = Deck::new(1000, &mut Random::new(1));
        let mut drawn: Vec<u64> = (0..500).map(|_| deck.draw().unwrap()).collect();
        assert!(!deck.is_half_drawn());
        drawn.extend((500..1000).map(|_| deck.draw().unwrap()));
        assert!(deck.is_half_drawn() && deck.draw().is_err());
        deck.start_anew();
        assert_eq!(deck.draw().unwrap(), drawn[0]);
        drawn.sort_unstable();
        assert_eq!(drawn, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn reads_that_did_not_miss_are_seen() {
        let driven = Driven { reads: 1000, seconds: 1.0, cpu_seconds: 1.0 };
        require_missed(driven, 995 * PAGE).unwrap();
        let error = require_missed(driven, 980 * PAGE).unwrap_err().to_string();
        assert!(error.contains("not all reads missed"), "{error}");
    }
}
