use super::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagekeeper_testing::disk_dir;

const FILE_PAGES: u64 = 2048;
const SAMPLE: PageSample = PageSample::one_in_power(4);

fn opened(scope: &SampleScope) -> Option<PageSamples> {
    match PageSamples::open(SAMPLE, scope) {
        Ok(samples) => Some(samples),
        Err(error) if !rustix::process::geteuid().is_root() => {
            eprintln!("SKIPPED: needs root: {error}");
            None
        }
        Err(error @ TraceError::NoEvent { .. }) => {
            eprintln!("SKIPPED: needs Linux 6.12: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn drained(samples: &mut PageSamples) -> Vec<PageSampleEvent> {
    let mut all = Vec::new();
    samples.drain(&mut |event| all.push(event));
    all
}

/// Returns how often each sampled page of a file had such an event.
fn pages(events: &[PageSampleEvent], path: &Path, is: impl Fn(CacheEvent) -> bool) -> BTreeMap<u64, u32> {
    let ino = std::fs::metadata(path).unwrap().ino();
    let mut counts = BTreeMap::new();
    for event in events.iter().filter(|event| event.file.ino == ino && is(event.event)) {
        for page in SAMPLE.pages(ino, event.pages.clone()) {
            *counts.entry(page).or_default() += 1;
        }
    }
    counts
}

/// Returns the count of one for each sampled page of a file.
fn each_once(path: &Path) -> BTreeMap<u64, u32> {
    let ino = std::fs::metadata(path).unwrap().ino();
    SAMPLE.pages(ino, 0..=FILE_PAGES - 1).map(|page| (page, 1)).collect()
}

fn is_used(event: CacheEvent) -> bool {
    event == CacheEvent::Used { is_continued: false }
}

/// Makes a synced file that is not resident.
fn cold_file(path: &Path) {
    std::fs::write(path, vec![7; usize::try_from(FILE_PAGES).unwrap() << 12]).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Starts a shell that waits for a line first; the path is its first argument.
fn shell(script: &str, path: &Path) -> Child {
    let script = format!("read go; {script}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(path).stdin(Stdio::piped()).spawn().unwrap()
}

fn finish(mut shell: Child) {
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(shell.wait().unwrap().success());
}

#[test]
fn the_kernel_takes_the_pages_that_the_sample_has() {
    let Some(mut samples) = opened(&SampleScope::Processes) else { return };
    let dir = disk_dir();
    let (own, others) = (dir.path().join("own"), dir.path().join("others"));
    cold_file(&own);
    cold_file(&others);
    let reader = shell("cat \"$1\" >/dev/null; dd if=\"$1\" of=/dev/null bs=4k 2>/dev/null", &own);
    samples.follow(reader.id()).unwrap();
    std::fs::read(&others).unwrap();
    finish(reader);
    let all = drained(&mut samples);
    assert_eq!(pages(&all, &own, |event| event == CacheEvent::Added), each_once(&own));
    let twice: BTreeMap<u64, u32> = each_once(&own).into_keys().map(|page| (page, 2)).collect();
    assert_eq!(pages(&all, &own, is_used), twice, "by cat and by dd");
    assert!(pages(&all, &others, |event| event == CacheEvent::Added || is_used(event)).is_empty());
    let counts = samples.counts().unwrap();
    assert!(counts.used > FILE_PAGES && counts.used < 3 * FILE_PAGES, "{counts:?}");
    assert_eq!((samples.lost().unwrap(), samples.has_processes().unwrap()), (0, false));
}

#[test]
fn files_below_a_directory_count_whoever_reads_them() {
    let dir = disk_dir();
    let (inside, beside) = (dir.path().join("inside"), dir.path().join("beside"));
    std::fs::create_dir_all(inside.join("a/b")).unwrap();
    std::fs::create_dir(&beside).unwrap();
    let stat = std::fs::metadata(&inside).unwrap();
    let scope = SampleScope::Directories(vec![SampledDirectory { dev: stat.dev(), ino: stat.ino() }]);
    let Some(mut samples) = opened(&scope) else { return };
    let (deep, other) = (inside.join("a/b/file"), beside.join("file"));
    cold_file(&deep);
    cold_file(&other);
    drained(&mut samples);
    for _ in 0..2 {
        std::fs::read(&deep).unwrap();
        std::fs::read(&other).unwrap();
    }
    let all = drained(&mut samples);
    assert_eq!(pages(&all, &deep, |event| event == CacheEvent::Added), each_once(&deep));
    assert!(pages(&all, &deep, is_used).values().all(|count| *count == 2));
    assert!(pages(&all, &other, is_used).is_empty());
    // A file that came after, and its removal.
    let late = inside.join("late");
    cold_file(&late);
    let ino = std::fs::metadata(&late).unwrap().ino();
    std::fs::read(&late).unwrap();
    std::fs::remove_file(&late).unwrap();
    let all = drained(&mut samples);
    let removed = CacheEvent::Removed { is_reclaim: false };
    assert!(all.iter().any(|event| event.file.ino == ino && is_used(event.event)));
    assert!(all.iter().any(|event| event.file.ino == ino && event.event == removed));
    let of_a_write = |event: &&PageSampleEvent| event.event == CacheEvent::Written;
    assert!(all.iter().filter(of_a_write).any(|event| event.file.ino == ino));
}

#[test]
fn a_page_that_a_fault_brings_in_comes_before_its_use() {
    let Some(mut samples) = opened(&SampleScope::Processes) else { return };
    let dir = disk_dir();
    let path = dir.path().join("file");
    cold_file(&path);
    let reader = shell(
        "exec python3 -c 'import mmap, sys
f = open(sys.argv[1], \"rb\"); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
sum(m[at] for at in range(0, len(m), 4096))' \"$1\"",
        &path,
    );
    samples.follow(reader.id()).unwrap();
    finish(reader);
    let all = drained(&mut samples);
    assert_eq!(pages(&all, &path, |event| event == CacheEvent::Added), each_once(&path));
    let ino = std::fs::metadata(&path).unwrap().ino();
    for (at, used) in
        all.iter().enumerate().filter(|(_, event)| event.file.ino == ino && is_used(event.event))
    {
        let comes_later = |event: &&PageSampleEvent| {
            event.event == CacheEvent::Added
                && event.file.ino == ino
                && event.pages.contains(used.pages.start())
        };
        assert_eq!(all[at..].iter().find(comes_later), None, "{used:?}");
    }
    assert!(samples.counts().unwrap().mapped > 0);
}

#[test]
fn a_kernel_without_the_tracepoints_is_an_error() {
    let error = no_tracepoint(SamplePoint::Read).to_string();
    assert!(error.starts_with("this kernel has no tracepoint filemap:mm_filemap_get_pages"), "{error}");
}

#[test]
fn continued_reads_count_once() {
    let mut threads = Threads::default();
    let file = CachedFile { dev: 1, ino: 2 };
    for (thread, first, is_continued) in
        [(7, 0, false), (7, 31, true), (8, 62, false), (7, 62, true), (7, 0, false)]
    {
        assert_eq!(threads.is_continued(thread, file, &(first..=99)), is_continued, "{thread} {first}");
    }
    assert!(!threads.is_continued(7, CachedFile { dev: 1, ino: 3 }, &(50..=99)));
}

#[test]
fn a_read_ends_with_its_file_and_memory_is_no_file() {
    let Some(mut samples) = opened(&SampleScope::Processes) else { return };
    let dir = disk_dir();
    let path = dir.path().join("file");
    cold_file(&path);
    // One call whose buffer is far larger than the file.
    let reader = shell("dd if=\"$1\" of=/dev/null bs=64M count=1 2>/dev/null", &path);
    samples.follow(reader.id()).unwrap();
    finish(reader);
    let all = drained(&mut samples);
    let ino = std::fs::metadata(&path).unwrap().ino();
    let ends =
        all.iter().filter(|event| event.file.ino == ino && matches!(event.event, CacheEvent::Used { .. }));
    assert_eq!(ends.map(|event| *event.pages.end()).max(), Some(FILE_PAGES - 1));
    assert_eq!(pages(&all, &path, is_used), each_once(&path));

    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    if rustix::fs::statfs(memory.path()).unwrap().f_type != 0x0102_1994 {
        return;
    }
    let path = memory.path().join("file");
    cold_file(&path);
    let reader = shell("cat \"$1\" >/dev/null", &path);
    samples.follow(reader.id()).unwrap();
    finish(reader);
    let (dev, ino) = std::fs::metadata(&path).map(|stat| (stat.dev(), stat.ino())).unwrap();
    let all = drained(&mut samples);
    assert!(all.iter().all(|event| event.file != CachedFile { dev, ino }), "{all:?}");
}
