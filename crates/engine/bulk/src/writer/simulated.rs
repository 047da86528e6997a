//! Bulk writes on a simulated disk: failures, and the number of unwritten bytes.

use std::sync::atomic::{AtomicBool, Ordering};

use pagekeeper_simdisk::{RandomFaults, RandomWriteFaults, SimDisk, Times, WriteFault};
use proptest::prelude::*;

use super::*;

const ALL_MODES: [BulkMode; 4] = [BulkMode::Direct, BulkMode::Paced, BulkMode::Uncached, BulkMode::Buffered];
const KIB: u64 = 1 << 10;
/// The smallest budget, and a step of it.
const BUDGET_BYTES: u64 = 256 * KIB;
const STEP_BYTES: usize = 64 << 10;

fn options(disk: &SimDisk, mode: BulkMode) -> BulkOptions {
    BulkWriter::options().io(Arc::new(disk.clone())).mode(mode).budget(BUDGET_BYTES)
}

/// Returns bytes that depend on their file and offset.
fn content(file: usize, range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| ((at >> 12) ^ at ^ file as u64).to_le_bytes()[0]).collect()
}

fn read(disk: &SimDisk, path: &str) -> Vec<u8> {
    let file = disk.open(path.as_ref(), Access::Buffered).unwrap();
    let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[test]
fn finished_output_is_durable_and_not_resident() {
    for mode in ALL_MODES {
        let disk = SimDisk::new();
        let mut output = options(&disk, mode).create("/file").unwrap();
        let bytes = content(0, 0..3_000_001);
        output.write_all(&bytes).unwrap();
        let report = output.finish().unwrap();
        assert_eq!((report.mode, report.bytes), (mode, 3_000_001));
        assert_eq!(report.budget, (mode != BulkMode::Buffered).then_some(BUDGET_BYTES));
        assert_eq!(report.resident == Some(0), mode != BulkMode::Buffered, "{report:?}");
        let after = disk.after_power_cut(pagekeeper_simdisk::Persistence::None, 0);
        assert!(read(&after, "/file") == bytes, "{mode}");
    }
}

#[test]
fn short_writes_and_signals_are_continued() {
    for mode in ALL_MODES {
        let faults = RandomWriteFaults {
            short_per_mille: 300,
            interrupted_per_mille: 200,
            ..RandomWriteFaults::default()
        };
        let disk = SimDisk::builder().random_write_faults(faults).seed(5).build();
        let mut output = options(&disk, mode).create("/file").unwrap();
        let bytes = content(0, 0..3_000_001);
        output.write_all(&bytes).unwrap();
        output.finish().unwrap();
        assert!(read(&disk, "/file") == bytes, "{mode}");
    }
}

#[test]
fn a_failed_write_is_reported_with_its_range_for_good() {
    for mode in ALL_MODES {
        for fault in [WriteFault::EIO, WriteFault::NO_SPACE] {
            let disk = SimDisk::new();
            let mut output = options(&disk, mode).create("/file").unwrap();
            let place = 5 << 20;
            disk.inject("/file", place..place + 1, fault, Times::Once).unwrap();
            let piece = content(0, 0..1 << 20);
            let failed = (0..20).find_map(|_| output.write_all(&piece).err());
            // A direct writer may see the error only at the end.
            let at_end = failed.is_none().then(|| output.finish().unwrap_err());
            let error = failed.or(at_end).unwrap();
            let Error::Write { path, range, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(path, Path::new("/file"));
            assert!(range.contains(&place), "{mode}: {error}");
        }
    }
}

#[test]
fn after_an_error_finish_fails_too() {
    for mode in ALL_MODES {
        let disk = SimDisk::new();
        let mut output = options(&disk, mode).create("/file").unwrap();
        disk.inject("/file", 0..u64::MAX, WriteFault::EIO, Times::Once).unwrap();
        let piece = content(0, 0..1 << 20);
        let failed = (0..20).find_map(|_| output.write_all(&piece).err()).unwrap();
        assert_eq!(output.write_all(&piece).unwrap_err(), failed);
        // Other writes were in flight when it failed.
        while disk.stats().in_flight > 0 {
            std::thread::yield_now();
        }
        let ops = disk.ops();
        assert_eq!(output.finish().unwrap_err(), failed);
        assert_eq!(disk.ops(), ops, "nothing is tried any more");
    }
}

#[test]
fn a_failed_sync_fails_the_end() {
    for mode in ALL_MODES {
        let disk = SimDisk::new();
        let mut output = options(&disk, mode).create("/file").unwrap();
        output.write_all(&content(0, 0..1000)).unwrap();
        disk.inject("/file", 0..u64::MAX, WriteFault::SYNC_EIO, Times::Once).unwrap();
        let error = output.finish().unwrap_err();
        assert!(error.to_string().contains("/file"), "{error}");
    }
}

/// The kernel reports a failed writeback once, to whoever waits first.
#[test]
fn a_failed_writeback_is_reported_to_its_writer_only() {
    let disk = SimDisk::new();
    let mut first = options(&disk, BulkMode::Paced).create("/first").unwrap();
    let mut second = options(&disk, BulkMode::Paced).create("/second").unwrap();
    first.write_all(&content(0, 0..2 * STEP_BYTES as u64)).unwrap();
    disk.inject("/first", 0..u64::MAX, WriteFault::SYNC_EIO, Times::Once).unwrap();
    second.write_all(&content(1, 0..20 * STEP_BYTES as u64)).unwrap();
    assert_eq!(second.finish().unwrap().bytes, 20 * STEP_BYTES as u64);
    let error = first.finish().unwrap_err();
    assert_eq!(error.to_string(), "write of bytes 0..65536 of /first: Input/output error (os error 5)");
}

#[test]
fn room_that_is_expected_is_taken_at_once_or_the_file_not_made() {
    for mode in ALL_MODES {
        let disk = SimDisk::new();
        disk.inject_all(WriteFault::Allocate(libc::ENOSPC), Times::Once);
        let error = options(&disk, mode).expected_bytes(1 << 30).create("/file").unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert!(disk.open("/file".as_ref(), Access::Buffered).is_err());
        // A mere hint may be refused for other reasons.
        disk.inject_all(WriteFault::Allocate(libc::EOPNOTSUPP), Times::Always);
        let mut output = options(&disk, mode).expected_bytes(1 << 30).create("/file").unwrap();
        output.write_all(&content(0, 0..5000)).unwrap();
        assert_eq!(output.finish().unwrap().bytes, 5000);
        assert_eq!(read(&disk, "/file").len(), 5000);
    }
}

#[test]
fn output_is_paced_without_direct_io() {
    let disk = SimDisk::builder().without_direct().build();
    let mut output = options(&disk, BulkMode::Auto).create("/file").unwrap();
    assert_eq!(output.mode(), BulkMode::Paced);
    assert!(output.why().contains("no direct I/O"), "{}", output.why());
    output.write_all(&content(0, 0..5000)).unwrap();
    output.finish().unwrap();
}

/// The next action of one of the writers.
#[derive(Debug, Clone)]
enum WriterAction {
    Write { writer: usize, len: usize },
    Finish { writer: usize },
    GiveUp { writer: usize },
}

fn actions() -> impl Strategy<Value = Vec<WriterAction>> {
    let action = (0..20, 0..4_usize, 1..=STEP_BYTES).prop_map(|(what, writer, len)| match what {
        0 => WriterAction::Finish { writer },
        1 => WriterAction::GiveUp { writer },
        _ => WriterAction::Write { writer, len },
    });
    prop::collection::vec(action, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Uses one thread, so that a writer that had to wait for an idle one would hang. No action
    /// writes more than a step, so that the unwritten bytes are checked as often as they grow.
    #[test]
    fn no_more_than_the_budget_is_ever_unwritten(actions in actions(), uncached in any::<bool>()) {
        let mode = if uncached { BulkMode::Uncached } else { BulkMode::Paced };
        let disk = SimDisk::new();
        let mut writers: [Option<BulkWriter>; 4] = Default::default();
        let (mut made, mut files) = (0, Vec::new());
        for action in actions {
            let (WriterAction::Write { writer, .. } | WriterAction::Finish { writer } | WriterAction::GiveUp { writer }) = action;
            let output = writers[writer].get_or_insert_with(|| {
                made += 1;
                let path = format!("/{made}");
                let output = options(&disk, mode).create(&path).unwrap();
                files.push(disk.open(path.as_ref(), Access::Buffered).unwrap());
                output
            });
            match action {
                WriterAction::Write { len, .. } => output.write_all(&vec![7; len]).unwrap(),
                WriterAction::Finish { .. } => {
                    let output = writers[writer].take().unwrap();
                    let bytes = output.written();
                    let report = output.finish().unwrap();
                    prop_assert_eq!((report.bytes, report.resident), (bytes, Some(0)));
                }
                WriterAction::GiveUp { .. } => drop(writers[writer].take()),
            }
            let unwritten = |file: &Arc<dyn IoFile>| file.residency(0..u64::MAX).unwrap().unwrap().unwritten;
            // Once the last writer is gone, abandoned bytes belong to no budget.
            if writers.iter().any(Option::is_some) {
                let sum: u64 = files.iter().map(unwritten).sum();
                prop_assert!(sum <= BUDGET_BYTES, "{} bytes unwritten", sum);
            } else {
                files.clear();
            }
        }
    }
}

#[test]
fn many_threads_share_a_budget() {
    let faults =
        RandomWriteFaults { short_per_mille: 50, interrupted_per_mille: 50, ..RandomWriteFaults::default() };
    let disk = SimDisk::builder().random_faults(RandomFaults::default()).random_write_faults(faults).build();
    // Keeps the budget alive while the others come and go.
    let mut idle = options(&disk, BulkMode::Paced).create("/idle").unwrap();
    idle.write_all(&vec![1; 3 * STEP_BYTES]).unwrap();
    let device = disk.open("/idle".as_ref(), Access::Buffered).unwrap().stat().unwrap().device;
    let budget = DiskBudget::of(DiskKey::of_device(device), None, None);
    assert_eq!(budget.limit(), BUDGET_BYTES);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = 0;
            while !ended.load(Ordering::Relaxed) {
                peak = peak.max(budget.unwritten());
                std::thread::yield_now();
            }
            peak
        });
        let writers: Vec<_> = (0..6)
            .map(|thread| {
                let disk = &disk;
                scope.spawn(move || {
                    for round in 0..4_u64 {
                        let path = format!("/{thread}-{round}");
                        let mode = ALL_MODES[usize::try_from(round % 3).unwrap()];
                        let mut output = options(disk, mode).create(&path).unwrap();
                        let bytes = content(thread, 0..30 * STEP_BYTES as u64 + round);
                        for piece in bytes.chunks(50_000 + thread * 7001) {
                            output.write_all(piece).unwrap();
                        }
                        if round == 3 {
                            continue; // given up
                        }
                        assert_eq!(output.finish().unwrap().resident, Some(0));
                        assert!(read(disk, &path) == bytes, "{path}");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        ended.store(true, Ordering::Relaxed);
        let peak = watcher.join().unwrap();
        assert!(peak > 0 && peak <= BUDGET_BYTES, "{peak} bytes");
    });
    idle.finish().unwrap();
}
