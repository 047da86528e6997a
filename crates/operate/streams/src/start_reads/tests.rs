#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]

use std::sync::{Arc, Mutex};

use pagekeeper_trace::TraceError;
use pagekeeper_trace::page_events::LostEvents;
use proptest::prelude::*;
use rustix::fs::{Mode, OFlags};

use super::*;

const PAGE: u64 = 4096;
/// The command's process in these tests: its descriptors are this process's own.
const COMMAND: u32 = 1;

/// Events that a test makes.
#[derive(Default, Clone)]
struct Made(Arc<Mutex<Vec<PageEvent>>>);

impl EventSource for Made {
    fn follow(&self, _: u32) -> Result<(), TraceError> {
        Ok(())
    }
    fn unfollow(&self, _: u32) {}
    fn watch(&self, _: &EventFile) {}
    fn forget(&self, _: &EventFile) {}
    fn sees_use(&self) -> bool {
        true
    }
    fn drain(&mut self, take: &mut dyn FnMut(PageEvent)) {
        self.0.lock().unwrap().drain(..).for_each(take);
    }
    fn wait(&self, _: Duration) {}
    fn lost(&self) -> LostEvents {
        LostEvents::default()
    }
}

/// Returns a recording whose files are known by their numbers, without being opened.
fn recording() -> (StartReads<u64>, Made) {
    let made = Made::default();
    let mut reads = StartReads::with_events(Box::new(made.clone()), Box::new(|_| None));
    reads.follow(COMMAND).unwrap();
    for ino in 1..=3 {
        let file = ReadFile { described: Some(ino), seen: BTreeMap::new(), fresh: Vec::new() };
        reads.files.insert((9, ino, 0), file);
    }
    (reads, made)
}

fn file(ino: u64) -> EventFile {
    EventFile { dev: 9, ino, generation: 0, subvolume: None, is_block_device: false, mapping: ino }
}

fn added(ino: u64, pages: Range<u64>) -> PageEvent {
    let bytes = pages.start * PAGE..pages.end * PAGE;
    PageEvent::Added { process: COMMAND, file: file(ino), bytes, is_alone: false }
}

#[test]
fn windows_are_in_the_order_of_the_reads_and_ranges_in_that_of_the_file() {
    let (mut reads, made) = recording();
    let window = ORDER_WINDOW_BYTES / PAGE;
    made.0.lock().unwrap().extend([
        added(2, 10..20),
        added(1, 0..1),
        added(2, 0..5),
        added(2, 5..6),
        added(1, 1..window),
        added(3, 7..8),
        added(2, 15..25),
    ]);
    let recorded = reads_ended(&mut reads);
    let pages = |(file, ranges): &ReadStep<u64>| {
        (*file, ranges.iter().map(|range| range.start / PAGE..range.end / PAGE).collect::<Vec<_>>())
    };
    assert_eq!(
        recorded.iter().map(pages).collect::<Vec<_>>(),
        [(2, vec![0..6, 10..20]), (1, vec![0..window]), (3, vec![7..8]), (2, vec![20..25])]
    );
}

fn reads_ended(reads: &mut StartReads<u64>) -> Vec<ReadStep<u64>> {
    reads.step();
    reads.flush();
    std::mem::take(&mut reads.steps)
}

#[test]
fn pages_loaded_ahead_count_once_the_command_uses_them() {
    let (mut reads, made) = recording();
    let own = std::process::id();
    let bytes = 0..8 * PAGE;
    let used = |process, is_followed, bytes| PageEvent::Used { process, is_followed, file: file(1), bytes };
    made.0.lock().unwrap().extend([
        PageEvent::Added { process: own, file: file(1), bytes: bytes.clone(), is_alone: true },
        used(own, true, bytes.clone()),
        used(77, false, bytes),
        used(COMMAND, true, 2 * PAGE..4 * PAGE),
    ]);
    assert_eq!(reads_ended(&mut reads), [(1, vec![2 * PAGE..4 * PAGE])]);
    assert_eq!(used_of(&mut reads), [(1, 2 * PAGE)]);
    // Again, and beside pages that the command brought in itself.
    made.0.lock().unwrap().extend([added(1, 4..6), used(COMMAND, true, 2 * PAGE..7 * PAGE)]);
    reads.step();
    assert_eq!(used_of(&mut reads), [(1, PAGE)]);
    assert!(used_of(&mut reads).is_empty(), "taken");
}

fn used_of(reads: &mut StartReads<u64>) -> Vec<(u64, u64)> {
    let mut used = Vec::new();
    reads.take_used(|file, bytes| used.push((*file, bytes)));
    used
}

#[test]
fn recording_continues_until_the_last_process_has_ended() {
    let (mut reads, made) = recording();
    let began = PageEvent::Began { process: 5, parent: COMMAND, name: "child".to_owned() };
    made.0.lock().unwrap().extend([began, PageEvent::Ended { process: COMMAND }]);
    reads.step();
    assert!(reads.is_running(), "its child");
    assert_eq!(reads.gone_for(), None);
    made.0.lock().unwrap().push(PageEvent::Ended { process: 5 });
    reads.step();
    assert!(!reads.is_running());
    assert!(reads.gone_for().is_some() && reads.begun_for() >= reads.gone_for());
    reads.begin(6);
    assert_eq!(reads.gone_for(), None, "it continues");
}

#[test]
fn a_full_recording_ends_and_is_not_exact() {
    let (mut reads, made) = recording();
    reads.steps.resize_with(READ_STEPS_MAX - 1, || (1, Vec::new()));
    made.0.lock().unwrap().extend([added(1, 0..ORDER_WINDOW_BYTES / PAGE)]);
    reads.step();
    assert_eq!((reads.steps.len(), reads.is_cut), (READ_STEPS_MAX, false), "the last step");
    assert_eq!(reads.quiet_for(), Duration::MAX);
    made.0.lock().unwrap().extend([added(2, 0..1)]);
    let recorded = reads.end();
    assert_eq!((recorded.steps.len(), recorded.is_exact), (READ_STEPS_MAX, false));
}

#[test]
fn only_members_and_their_children_count() {
    let (mut reads, made) = recording();
    (reads.first, reads.running) = (None, HashSet::new());
    reads.members = Some(Box::new(|pid| pid == COMMAND));
    let began = |process, parent| PageEvent::Began { process, parent, name: "program".to_owned() };
    let of = |process, event| match event {
        PageEvent::Added { file, bytes, is_alone, .. } => PageEvent::Added { process, file, bytes, is_alone },
        other => other,
    };
    made.0.lock().unwrap().extend([began(9, 0), of(9, added(1, 0..4))]);
    assert_eq!(reads_ended(&mut reads), []);
    assert_eq!((reads.is_running(), reads.quiet_for()), (false, Duration::ZERO));
    assert_eq!((reads.begun_for(), reads.gone_for()), (None, None), "none of it was seen yet");
    made.0.lock().unwrap().extend([
        began(COMMAND, 0),
        added(1, 4..5),
        began(6, COMMAND),
        of(6, added(1, 6..7)),
    ]);
    assert_eq!(reads_ended(&mut reads), [(1, vec![4 * PAGE..5 * PAGE, 6 * PAGE..7 * PAGE])]);
}

#[test]
fn a_file_is_named_when_it_is_first_read() {
    let directory = pagekeeper_testing::disk_dir();
    let path = directory.path().join("log");
    std::fs::write(&path, [1; 5000]).unwrap();
    // If files can't be opened by number, a descriptor of the command's leads to it.
    let _open = rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).unwrap();
    let made = Made::default();
    let described = |file: &InspectedFile| Some(file.path().to_path_buf());
    let mut reads = StartReads::with_events(Box::new(made), Box::new(described));
    let inspected = InspectedFile::open(&path, pagekeeper_kernel::Links::Refuse).unwrap();
    let id = pagekeeper_kernel::InodeId::of(inspected.file());
    let event = EventFile {
        dev: inspected.inode().dev,
        ino: inspected.inode().ino,
        generation: id.map_or(0, |id| id.generation),
        ..file(0)
    };
    assert_eq!(reads.describe(std::process::id(), &event), Some(path));
}

proptest! {
    #[test]
    fn each_page_is_new_once(ranges in prop::collection::vec((0_u64..60, 1_u64..20), 1..40)) {
        let (mut seen, mut pages) = (BTreeMap::new(), HashSet::new());
        for (start, length) in ranges {
            let expected: Vec<u64> = (start..start + length).filter(|page| pages.insert(*page)).collect();
            let new: Vec<u64> = add_range(&mut seen, start..start + length).into_iter().flatten().collect();
            prop_assert_eq!(new, expected);
            let held: HashSet<u64> = seen.iter().flat_map(|(start, end)| *start..*end).collect();
            prop_assert_eq!(&held, &pages);
            prop_assert!(seen.iter().zip(seen.iter().skip(1)).all(|((_, end), (start, _))| end < start));
        }
    }
}
