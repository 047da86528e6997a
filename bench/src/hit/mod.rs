//! `hit`: reads of a fully cached file: pagekeeper, from Rust and from C, beside the kernel's page
//! cache, beside a cache that engines use today, and beside the limit.
//!
//! All subjects are in this process and hold the same file at once, so that the samples of a round
//! follow each other closely. If memory is short, the file is smaller, and a note reports it.
//! Before the first sample every byte of every subject is compared, and every read is checked in
//! part while it is measured. Fails where a subject has lost a page, because only hits are
//! measured.

mod by_c;
mod caches;
pub(crate) mod ours;
pub(crate) mod plain;
pub(crate) mod reader;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::BenchRun;
use crate::data::{GIB, MIB, open, read_through, require_resident, resident};
use crate::pattern;
use crate::report::FigureUnit;
use crate::rounds::{RoundPlan, SplitMix, SubjectSamples};
use by_c::{FileByC, LimitByC};
use caches::QuickCache;
use ours::{ListReader, OurCache};
use plain::{ArrayLimit, MappedFile, PreadFile};
use reader::{FILE_SEED, PAGE_BYTES, PageReader, ReadLoad, rate, verify};

pub(crate) const CACHE_NAME: &str = "pagekeeper-cache";
const CACHE_LISTS_NAME: &str = "pagekeeper-cache, lists of 32";
const CACHE_BY_C_NAME: &str = "pagekeeper-cache, by C";
pub(crate) const PREAD_NAME: &str = "pread";
const QUICK_CACHE_NAME: &str = "quick_cache";
const MMAP_NAME: &str = "mmap, populated";
const HIT_LIMIT_NAME: &str = "the limit";
const LIMIT_BY_C_NAME: &str = "the limit, by a C call";
/// Pages of the case that fits the processor's caches.
const HOT_PAGES: u64 = 16;
/// The time after which a quick run begins no more rounds.
const HIT_QUICK_END: Duration = Duration::from_secs(42);

/// A subject with its cached pages.
trait CachedSubject {
    fn name(&self) -> &'static str;
    fn rate(&self, load: ReadLoad, threads: usize, window: Duration, seed: u64) -> Result<f64>;
    fn verify(&self, pages: u64) -> Result<()>;
}

struct NamedReader<R> {
    name: &'static str,
    reader: R,
}

impl<R: PageReader> CachedSubject for NamedReader<R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn rate(&self, load: ReadLoad, threads: usize, window: Duration, seed: u64) -> Result<f64> {
        rate(&self.reader, load, threads, window, seed)
    }

    fn verify(&self, pages: u64) -> Result<()> {
        verify(&self.reader, pages)
    }
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    run.note_version("quick_cache");
    // pagekeeper, the limit, the peer and the kernel's page cache hold the file.
    let size = affordable(run, 2 * GIB, 4)?;
    run.scratch.require_space(size)?;
    let path = run.scratch.path().join("file");
    run.say("writing the file")?;
    pattern::make_file(&path, size, FILE_SEED)?;
    run.say(&format!("filling {CACHE_NAME}"))?;
    // First, because opening drops the kernel's cached pages of the file.
    let ours = OurCache::holding(&path, size)?;
    let subjects = fill(run, &ours, &path, size)?;
    for subject in &subjects {
        run.say(&format!("comparing every byte: {}", subject.name()))?;
        subject.verify(size / PAGE_BYTES as u64).with_context(|| subject.name())?;
    }
    measure(run, &ours, &subjects, &path, size)
}

/// Returns `whole`, or the largest smaller size that `holders` can hold at once while a tenth of
/// the available memory stays free.
pub(crate) fn affordable(run: &mut BenchRun, whole: u64, holders: u64) -> Result<u64> {
    let available = crate::machine::available_bytes();
    // Caches need up to a tenth more than the pages.
    let fits = |size: u64| size / 10 * 11 * holders <= available / 10 * 9;
    let size = std::iter::successors(Some(whole), |size| Some(size / 2))
        .take_while(|&size| size >= 128 * MIB)
        .find(|&size| fits(size))
        .with_context(|| format!("{holders} times 128 MiB of memory are needed"))?;
    if size < whole {
        run.note(&format!("memory for {} of {} MiB in each subject: scaled down", size / MIB, whole / MIB));
    }
    Ok(size)
}

fn fill(run: &mut BenchRun, ours: &OurCache, path: &Path, size: u64) -> Result<Vec<Box<dyn CachedSubject>>> {
    let pages = size / PAGE_BYTES as u64;
    let mut subjects: Vec<Box<dyn CachedSubject>> = Vec::new();
    subjects.push(Box::new(NamedReader { name: CACHE_NAME, reader: ours.file.clone() }));
    subjects.push(Box::new(NamedReader { name: CACHE_LISTS_NAME, reader: ListReader(ours.file.clone()) }));
    subjects.push(Box::new(NamedReader { name: CACHE_BY_C_NAME, reader: FileByC::new(ours.file.clone()) }));
    run.say("filling the kernel's page cache")?;
    read_through(&open(path)?, 0..size)?;
    let file = File::open(path).context("can't open the file")?;
    subjects.push(Box::new(NamedReader { name: MMAP_NAME, reader: MappedFile::new(&file, pages)? }));
    subjects.push(Box::new(NamedReader { name: PREAD_NAME, reader: PreadFile(file) }));
    run.say(&format!("filling {HIT_LIMIT_NAME}"))?;
    let mut order = SplitMix::new(run.random.next_u64());
    let limit = Arc::new(ArrayLimit::new(pages, FILE_SEED, &mut order)?);
    subjects.push(Box::new(NamedReader { name: HIT_LIMIT_NAME, reader: Arc::clone(&limit) }));
    subjects.push(Box::new(NamedReader { name: LIMIT_BY_C_NAME, reader: LimitByC::new(limit) }));
    run.say(&format!("filling {QUICK_CACHE_NAME}"))?;
    subjects.push(Box::new(NamedReader { name: QUICK_CACHE_NAME, reader: QuickCache::holding(pages)? }));
    Ok(subjects)
}

fn measure(
    run: &mut BenchRun,
    ours: &OurCache,
    subjects: &[Box<dyn CachedSubject>],
    path: &Path,
    size: u64,
) -> Result<()> {
    let pages = size / PAGE_BYTES as u64;
    let uniform = |len| ReadLoad { pages, stride: 1, len };
    // Odd, so that the hot pages do not fall into the same sets of the processor's caches.
    let hot = ReadLoad { pages: HOT_PAGES, stride: (pages / HOT_PAGES - 1) | 1, len: 500 };
    let small = ("500 B, uniform", uniform(500));
    let whole = ("4 KiB, uniform", uniform(PAGE_BYTES));
    let hot = ("500 B, 16 hot pages", hot);
    let cases = if run.quick {
        vec![(small, 2), (small, 1), (hot, 2)]
    } else {
        [small, whole, hot].into_iter().flat_map(|load| [1, 2, 32].map(|threads| (load, threads))).collect()
    };
    for (index, ((name, load), threads)) in cases.iter().enumerate() {
        let case = format!(
            "{name}, {} MiB cached, {threads} {}",
            size / MIB,
            if *threads == 1 { "thread" } else { "threads" }
        );
        run.say(&case)?;
        let samples = sample(run, subjects, *load, *threads, cases.len() - index)?;
        require_resident(resident(path)?, size)?;
        ours.require_hits_only()?;
        run.report.add_case(&case, FigureUnit::MillionReadsPerSecond, &samples);
        add_ratios(run, *load, *threads, &samples);
    }
    Ok(())
}

/// Measures a case; `left` cases share the rest of a quick run.
fn sample(
    run: &mut BenchRun,
    subjects: &[Box<dyn CachedSubject>],
    load: ReadLoad,
    threads: usize,
    left: usize,
) -> Result<Vec<SubjectSamples>> {
    let (window, now) = (Duration::from_millis(if run.quick { 250 } else { 400 }), Instant::now());
    let share = (run.began + HIT_QUICK_END).saturating_duration_since(now) / u32::try_from(left)?;
    let plan = RoundPlan { rounds: run.rounds, until: run.quick.then(|| now + share), warm_up: true };
    let names: Vec<&'static str> = subjects.iter().map(|subject| subject.name()).collect();
    // All subjects of a round get the same random choices.
    let seed = run.random.next_u64();
    let measured = run.measure(&names, plan, |turn| {
        let seed = SplitMix::new(seed ^ turn.round as u64).next_u64();
        Ok(subjects[turn.subject].rate(load, threads, window, seed)? / 1e6)
    })?;
    Ok(measured.figure(|rate| *rate))
}

/// Adds the ratios of a case.
fn add_ratios(run: &mut BenchRun, load: ReadLoad, threads: usize, samples: &[SubjectSamples]) {
    if (load.len, threads) == (500, 1) && load.pages != HOT_PAGES {
        run.report.add_ratio(
            "hit_500B_1T_by_c",
            FigureUnit::MillionReadsPerSecond,
            samples,
            CACHE_BY_C_NAME,
            CACHE_NAME,
        );
        run.report.add_ratio(
            "limit_500B_1T_by_c",
            FigureUnit::MillionReadsPerSecond,
            samples,
            LIMIT_BY_C_NAME,
            HIT_LIMIT_NAME,
        );
    }
    let hot = load.pages == HOT_PAGES;
    if (load.len, threads, hot) == (500, 2, false) {
        for (name, theirs) in
            [("hit_many_2T_vs_limit", HIT_LIMIT_NAME), ("hit_many_2T_vs_single", CACHE_NAME)]
        {
            run.report.add_ratio(name, FigureUnit::MillionReadsPerSecond, samples, CACHE_LISTS_NAME, theirs);
        }
    }
    let ratios: &[(&'static str, &str)] = match (hot, load.len, threads) {
        (false, 500, 1) => &[("hit_500B_1T_vs_peer", QUICK_CACHE_NAME)],
        (false, 500, 2) => &[("hit_500B_2T_vs_pread", PREAD_NAME), ("hit_500B_2T_vs_limit", HIT_LIMIT_NAME)],
        (false, 500, 32) => {
            &[("hit_500B_32T_vs_peer", QUICK_CACHE_NAME), ("hit_500B_32T_vs_limit", HIT_LIMIT_NAME)]
        }
        (false, PAGE_BYTES, 1) => &[("hit_4K_1T_vs_limit", HIT_LIMIT_NAME)],
        (true, _, 2) => &[("hit_hot_2T_vs_pread", PREAD_NAME)],
        _ => &[],
    };
    for (name, theirs) in ratios {
        run.report.add_ratio(name, FigureUnit::MillionReadsPerSecond, samples, CACHE_NAME, theirs);
    }
}
