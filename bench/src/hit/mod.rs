//! `hit`: reads of a fully cached file: pagekeeper, from Rust and from C, beside the kernel's page cache, beside the
//! caches that engines use today, and beside the limit.
//!
//! All subjects are in this process and hold the same file at once, so that the samples of a round follow each other
//! closely. Where memory is short the file is smaller, and a note reports it. Before the first sample every byte of
//! every subject is compared, and every read is checked in part while it is measured. Fails where a subject has lost a
//! page, because only hits are measured.

mod by_c;
pub(crate) mod caches;
pub(crate) mod map;
pub(crate) mod ours;
pub(crate) mod plain;
pub(crate) mod reader;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Run;
use crate::data::{GIB, MIB, open, read_through, require_resident, resident};
use crate::pattern;
use crate::report::Unit;
use crate::rounds::{self, Plan, Random, Samples, Subject, median};
use by_c::{ByC, LimitByC};
use caches::{Cache, FileIn, QuickCache};
use ours::Ours;
use plain::{Limit, Mapped, Pread};
use reader::{Load, PAGE, Reader, SEED, rate, verify};

pub(crate) const OURS: &str = "pagekeeper-cache";
const BY_C: &str = "pagekeeper-cache, by C";
const PREAD: &str = "pread";
const MMAP: &str = "mmap, populated";
const LIMIT: &str = "the limit";
const LIMIT_BY_C: &str = "the limit, by a C call";
/// Pages of the case that fits the processor's caches.
const HOT_PAGES: u64 = 16;
/// The second of a quick run by which the last round ends.
const QUICK_END: u64 = 42;

/// The durations of a sample.
struct Pace {
    window: Duration,
    until: Option<Instant>,
}

/// A subject with its cached pages.
trait Compared {
    fn name(&self) -> &'static str;
    fn rate(&self, load: Load, threads: usize, window: Duration, seed: u64) -> Result<f64>;
    fn verify(&self, pages: u64) -> Result<()>;
}

struct Named<R> {
    name: &'static str,
    reader: R,
}

impl<R: Reader> Compared for Named<R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn rate(&self, load: Load, threads: usize, window: Duration, seed: u64) -> Result<f64> {
        rate(&self.reader, load, threads, window, seed)
    }

    fn verify(&self, pages: u64) -> Result<()> {
        verify(&self.reader, pages)
    }
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let peers = if run.quick { quick_peers(run) } else { all_peers(run) };
    // pagekeeper, the limit and the kernel's page cache hold the file, too.
    let size = affordable(run, 2 * GIB, 3 + peers.len() as u64)?;
    run.scratch.require_space(size)?;
    let path = run.scratch.path().join("file");
    run.say("writing the file")?;
    pattern::make_file(&path, size, SEED)?;
    run.say(&format!("filling {OURS}"))?;
    // First, because opening drops the kernel's cached pages of the file.
    let huge_before = huge_bytes();
    let ours = Ours::holding(&path, size)?;
    note_huge(run, OURS, huge_before, size);
    let subjects = fill(run, &ours, &path, size, &peers)?;
    for subject in &subjects {
        run.say(&format!("comparing every byte: {}", subject.name()))?;
        subject.verify(size / PAGE as u64).with_context(|| subject.name())?;
    }
    measure(run, &ours, &subjects, &path, size)
}

/// A function that creates a peer and fills it.
type Fill = fn(u64) -> Result<Box<dyn Compared>>;

fn filled<C: Cache + 'static>(pages: u64) -> Result<Box<dyn Compared>> {
    let cache = Arc::new(C::with_room_for(pages)?);
    Ok(Box::new(Named { name: C::NAME, reader: FileIn::fill(&cache, 0, pages)? }))
}

fn quick_peers(run: &mut Run) -> Vec<(&'static str, Fill)> {
    run.note("a quick run has one peer, quick_cache: of those that the full run compares it is the fastest at one thread");
    note_version(run, "quick_cache");
    vec![(QuickCache::NAME, filled::<QuickCache>)]
}

/// Returns the peers that this program was built with, and names the others as missing.
fn all_peers(run: &mut Run) -> Vec<(&'static str, Fill)> {
    let mut peers = Vec::new();
    note_version(run, "quick_cache");
    peers.push((QuickCache::NAME, filled::<QuickCache> as Fill));
    #[cfg(feature = "moka")]
    {
        note_version(run, "moka");
        peers.push((caches::Moka::NAME, filled::<caches::Moka>));
    }
    #[cfg(feature = "foyer")]
    {
        note_version(run, "foyer-memory");
        peers.push((caches::Foyer::NAME, filled::<caches::Foyer>));
    }
    #[cfg(feature = "rocksdb")]
    {
        run.report.machine.versions.insert("rocksdb".to_owned(), rocksdb::version());
        peers.push((rocksdb::Lru::NAME, filled::<rocksdb::Lru>));
        peers.push((rocksdb::HyperClock::NAME, filled::<rocksdb::HyperClock>));
    }
    note_missing(run);
    peers
}

/// Names the peers that this program was built without.
pub(crate) fn note_missing(run: &mut Run) {
    let peers = [
        ("moka", cfg!(feature = "moka")),
        ("foyer", cfg!(feature = "foyer")),
        ("rocksdb", cfg!(feature = "rocksdb")),
    ];
    for (name, _) in peers.into_iter().filter(|(_, there)| !there) {
        run.report.add_missing(name);
        run.note(&format!("built without the feature `{name}`; `make bench` builds with it"));
    }
}

/// Notes the version of a crate that was built in.
pub(crate) fn note_version(run: &mut Run, name: &'static str) {
    let version = version_in(include_str!("../../../Cargo.lock"), name).unwrap_or("unknown");
    run.report.machine.versions.insert(name.to_owned(), version.to_owned());
}

fn version_in<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{name}\""));
    lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')
}

/// Returns `whole`, or the largest smaller size that `holders` can hold at once while a tenth of the available memory
/// stays free.
pub(crate) fn affordable(run: &mut Run, whole: u64, holders: u64) -> Result<u64> {
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

fn fill(
    run: &mut Run,
    ours: &Ours,
    path: &Path,
    size: u64,
    peers: &[(&'static str, Fill)],
) -> Result<Vec<Box<dyn Compared>>> {
    let pages = size / PAGE as u64;
    let mut subjects: Vec<Box<dyn Compared>> = Vec::new();
    subjects.push(Box::new(Named { name: OURS, reader: ours.file.clone() }));
    subjects.push(Box::new(Named { name: BY_C, reader: ByC::new(ours.file.clone()) }));
    run.say("filling the kernel's page cache")?;
    read_through(&open(path)?, 0..size)?;
    let file = File::open(path).context("can't open the file")?;
    subjects.push(Box::new(Named { name: MMAP, reader: Mapped::new(&file, pages)? }));
    subjects.push(Box::new(Named { name: PREAD, reader: Pread(file) }));
    run.say(&format!("filling {LIMIT}"))?;
    let huge_before = huge_bytes();
    let mut order = Random::new(run.random.next_u64());
    let limit = Arc::new(Limit::new(pages, pages, SEED, &mut order)?);
    subjects.push(Box::new(Named { name: LIMIT, reader: Arc::clone(&limit) }));
    subjects.push(Box::new(Named { name: LIMIT_BY_C, reader: LimitByC::new(limit) }));
    note_huge(run, LIMIT, huge_before, size);
    for (name, fill) in peers {
        run.say(&format!("filling {name}"))?;
        subjects.push(fill(pages).with_context(|| *name)?);
    }
    Ok(subjects)
}

/// Notes how many bytes of a subject that holds `size` bytes are in huge pages.
fn note_huge(run: &mut Run, name: &str, before: u64, size: u64) {
    let huge = huge_bytes().saturating_sub(before) / MIB;
    run.note(&format!("{name}: {huge} MiB in huge pages, for {} MiB of file", size / MIB));
}

/// Returns this process's bytes in transparent huge pages.
fn huge_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    crate::machine::kib_field(&text, "AnonHugePages").unwrap_or(0)
}

fn measure(run: &mut Run, ours: &Ours, subjects: &[Box<dyn Compared>], path: &Path, size: u64) -> Result<()> {
    let pages = size / PAGE as u64;
    let uniform = |len| Load { pages, stride: 1, len };
    // Odd, so that the hot pages do not fall into the same sets of the processor's caches.
    let hot = Load { pages: HOT_PAGES, stride: (pages / HOT_PAGES - 1) | 1, len: 500 };
    let small = ("500 B, uniform", uniform(500));
    let whole = ("4 KiB, uniform", uniform(PAGE));
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
        let pace = pace(run, cases.len() - index);
        let samples = sample(run, subjects, *load, *threads, &pace)?;
        require_resident(resident(path)?, size)?;
        ours.require_hits_only()?;
        run.report.add_case(&case, Unit::MillionReadsPerSecond, &samples);
        add_ratios(run, *load, *threads, &samples);
    }
    Ok(())
}

/// Returns the windows of a sample, and the end of this case if `left` cases share the rest of a quick run.
fn pace(run: &Run, left: usize) -> Pace {
    if !run.quick {
        return Pace { window: Duration::from_millis(400), until: None };
    }
    let end = run.began + Duration::from_secs(QUICK_END);
    let now = Instant::now();
    let share = end.saturating_duration_since(now) / u32::try_from(left).unwrap_or(1);
    Pace { window: Duration::from_millis(250), until: Some(now + share) }
}

fn sample(
    run: &mut Run,
    subjects: &[Box<dyn Compared>],
    load: Load,
    threads: usize,
    pace: &Pace,
) -> Result<Vec<Samples>> {
    // All subjects of a round get the same random choices.
    let seed = run.random.next_u64();
    let mut measured: Vec<Subject<'_>> = subjects
        .iter()
        .map(|subject| {
            let mut seeds = Random::new(seed);
            Subject::new(subject.name(), move || {
                Ok(subject.rate(load, threads, pace.window, seeds.next_u64())? / 1e6)
            })
        })
        .collect();
    let plan = Plan { rounds: run.rounds, until: pace.until, warm_up: true };
    rounds::run(&mut measured, plan, &mut run.random, &run.stop)
}

/// Adds the ratios of a case.
fn add_ratios(run: &mut Run, load: Load, threads: usize, samples: &[Samples]) {
    if (load.len, threads) == (500, 1) && load.pages != HOT_PAGES {
        run.report.add_ratio("hit_500B_1T_by_c", Unit::MillionReadsPerSecond, samples, BY_C, OURS);
        run.report.add_ratio("limit_500B_1T_by_c", Unit::MillionReadsPerSecond, samples, LIMIT_BY_C, LIMIT);
    }
    let best = best_peer(samples);
    let hot = load.pages == HOT_PAGES;
    let ratios: &[(&'static str, Option<&str>)] = match (hot, load.len, threads) {
        (false, 500, 1) => &[("hit_500B_1T_vs_best_peer", best)],
        (false, 500, 2) => &[("hit_500B_2T_vs_pread", Some(PREAD)), ("hit_500B_2T_vs_limit", Some(LIMIT))],
        (false, 500, 32) => &[("hit_500B_32T_vs_best_peer", best), ("hit_500B_32T_vs_limit", Some(LIMIT))],
        (false, PAGE, 1) => &[("hit_4K_1T_vs_limit", Some(LIMIT))],
        (true, _, 2) => &[("hit_hot_2T_vs_pread", Some(PREAD))],
        _ => &[],
    };
    for &(name, theirs) in ratios {
        let Some(theirs) = theirs else { continue };
        run.report.add_ratio(name, Unit::MillionReadsPerSecond, samples, OURS, theirs);
        if name.ends_with("best_peer") {
            run.note(&format!("{name} is against {theirs}"));
        }
    }
}

/// Returns the fastest of the other caches.
fn best_peer(samples: &[Samples]) -> Option<&'static str> {
    let peers = samples
        .iter()
        .filter(|samples| ![OURS, BY_C, PREAD, MMAP, LIMIT, LIMIT_BY_C].contains(&samples.subject));
    let rated = peers.filter_map(|samples| Some((samples.subject, median(&samples.values)?)));
    rated.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(subject, _)| subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = "[[package]]\nname = \"moka\"\nversion = \"0.12.16\"\n\n[[package]]\nname = \"x\"\nversion = \"1\"\n";
        assert_eq!(version_in(lock, "moka"), Some("0.12.16"));
        assert_eq!(version_in(lock, "mok"), None);
        assert!(version_in(include_str!("../../../Cargo.lock"), "quick_cache").is_some());
    }

    #[test]
    fn the_best_peer_is_no_kernel_and_no_limit() {
        let samples = |subject, values: &[f64]| Samples { subject, values: values.to_vec() };
        let all = [
            samples(OURS, &[9.0]),
            samples(LIMIT, &[10.0]),
            samples("a", &[1.0, 1.0, 8.0]),
            samples("b", &[2.0, 2.0, 2.0]),
        ];
        assert_eq!(best_peer(&all), Some("b"));
        assert_eq!(best_peer(&all[..2]), None);
    }
}
