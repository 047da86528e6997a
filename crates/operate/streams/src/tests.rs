//! Tests of the loop on real files, with events made by hand. Residency is counted by cachestat(2)
//! itself.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{InodeId, InspectedFile, Links, residency};
use pagekeeper_testing::{HangingMount, Mounted, OpenCounter, skip};
use pagekeeper_trace::TraceError;
use pagekeeper_trace::page_events::{EventFile, LostEvents, PageEvent};

use super::*;
use crate::source::EventSource;

mod requests;

const MIB: u64 = 1 << 20;
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(60);

/// Events made by hand.
#[derive(Clone, Default)]
struct Hand {
    events: Arc<Mutex<VecDeque<PageEvent>>>,
    forgotten: Arc<Mutex<Vec<EventFile>>>,
    unfollowed: Arc<Mutex<Vec<u32>>>,
    lost: Arc<Mutex<LostEvents>>,
    sees_use: bool,
}

impl EventSource for Hand {
    fn follow(&self, _process: u32) -> Result<(), TraceError> {
        Ok(())
    }

    fn unfollow(&self, process: u32) {
        lock(&self.unfollowed).push(process);
    }

    fn watch(&self, file: &EventFile) {
        lock(&self.forgotten).retain(|other| other != file);
    }

    fn forget(&self, file: &EventFile) {
        lock(&self.forgotten).push(*file);
    }

    fn sees_use(&self) -> bool {
        self.sees_use
    }

    fn drain(&mut self, take: &mut dyn FnMut(PageEvent)) {
        lock(&self.events).drain(..).for_each(take);
    }

    fn wait(&self, timeout: Duration) {
        std::thread::sleep(timeout);
    }

    fn lost(&self) -> LostEvents {
        *lock(&self.lost)
    }
}

/// A follower, and the source of its events.
struct Run {
    hand: Hand,
    follower: Follower,
    said: Vec<StreamEvent>,
}

impl Run {
    fn new(verdict: Verdict) -> Self {
        Self::with(Hand { sees_use: true, ..Hand::default() }, verdict)
    }

    fn with(hand: Hand, verdict: Verdict) -> Self {
        let follower = Follower::new(
            Box::new(hand.clone()),
            Box::new(move |_, _| verdict),
            Vec::new(),
            StreamPace::Auto,
        );
        Self { hand, follower, said: Vec::new() }
    }

    fn send(&self, event: PageEvent) {
        lock(&self.hand.events).push_back(event);
    }

    fn began(&self, process: u32) {
        self.send(PageEvent::Began { process, parent: 0, name: "reader".to_owned() });
    }

    fn added(&self, process: u32, file: EventFile, bytes: std::ops::Range<u64>) {
        self.send(PageEvent::Added { process, file, bytes, is_alone: false });
    }

    fn used(&self, process: u32, is_followed: bool, file: EventFile, bytes: std::ops::Range<u64>) {
        self.send(PageEvent::Used { process, is_followed, file, bytes });
    }

    fn ended(&self, process: u32) {
        self.send(PageEvent::Ended { process });
    }

    fn step(&mut self) {
        self.said.extend(self.follower.step());
        let totals = self.follower.report().totals;
        let parts = totals.released + totals.handed_on + totals.gone + totals.resident;
        assert_eq!(totals.added, parts, "{totals:?}");
    }

    /// Steps until the condition holds.
    fn until(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + FOLLOW_TIMEOUT;
        loop {
            self.step();
            if is_so(self) {
                return;
            }
            assert!(Instant::now() < until, "{:?} {:?}", self.follower.report(), self.said);
            self.follower.wait(Duration::from_millis(10));
        }
    }

    fn until_done(&mut self) {
        self.until(|run| run.follower.running() == 0 && !run.follower.is_busy());
    }

    fn totals(&self) -> StreamTotals {
        self.follower.report().totals
    }
}

/// A file with its identity in events.
struct Subject {
    path: PathBuf,
    name: EventFile,
}

impl Subject {
    /// Makes a file on a file system: written, clean and fully resident.
    fn clean(mounted: &Mounted, name: &str, bytes: u64) -> Self {
        let path = mounted.path().join(name);
        std::fs::write(&path, vec![7; usize::try_from(bytes).unwrap()]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        Self::at(mounted, &path)
    }

    fn at(mounted: &Mounted, path: &Path) -> Self {
        let mounts = ProcRoot::default().own_mounts().unwrap();
        let dev = mounts.iter().find(|mount| mount.point == mounted.path()).unwrap().dev;
        let id = InodeId::of(File::open(path).unwrap()).unwrap();
        let InodeId { ino, generation, subvolume } = id;
        let name = EventFile { dev, ino, generation, subvolume, is_block_device: false, mapping: ino };
        Self { path: path.to_path_buf(), name }
    }

    fn resident(&self) -> u64 {
        residency(&InspectedFile::open(&self.path, Links::Refuse).unwrap(), 0..u64::MAX).unwrap().resident
    }
}

/// Returns the file systems that are available here.
fn places() -> impl Iterator<Item = Mounted> {
    ["ext4", "xfs", "btrfs"].into_iter().filter_map(Mounted::new)
}

#[test]
fn pages_that_a_stream_added_go_and_no_others() {
    for place in places() {
        let subject = Subject::clean(&place, "file", 16 * MIB);
        let mut run = Run::new(Verdict::Release);
        run.began(1);
        run.added(1, subject.name, 0..8 * MIB);
        run.used(1, true, subject.name, 0..8 * MIB);
        run.used(2, false, subject.name, 2 * MIB..4 * MIB);
        run.ended(1);
        run.until_done();
        assert_eq!(subject.resident(), 10 * MIB, "{:?}", run.totals());
        let wanted =
            StreamTotals { added: 8 * MIB, released: 6 * MIB, handed_on: 2 * MIB, gone: 0, resident: 0 };
        assert_eq!(run.totals(), wanted);
        let [StreamEvent::Began { program, .. }, StreamEvent::Ended { files: 1, totals, .. }] = &run.said[..]
        else {
            panic!("{:?}", run.said)
        };
        assert_eq!((program.as_str(), *totals), ("reader", wanted));
        assert_eq!(run.follower.report().released_by_program["reader"], 6 * MIB);
        assert_eq!(*lock(&run.hand.forgotten), [subject.name]);
    }
}

#[test]
fn dirty_pages_are_written_and_released() {
    for place in places() {
        let path = place.path().join("file");
        let content: Vec<u8> = (0..24 * MIB).map(|at| u8::try_from(at % 251).unwrap()).collect();
        std::fs::write(&path, &content).unwrap();
        let subject = Subject::at(&place, &path);
        let mut run = Run::new(Verdict::Release);
        run.began(1);
        run.added(1, subject.name, 0..24 * MIB);
        run.ended(1);
        run.until_done();
        assert_eq!((subject.resident(), run.totals().resident), (0, 0), "{:?}", run.totals());
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[test]
fn many_small_events_open_a_file_once() {
    for place in places() {
        let subject = Subject::clean(&place, "file", 5000 * 4096);
        let opens = OpenCounter::of(&subject.path);
        let mut run = Run::new(Verdict::Release);
        run.began(1);
        for page in 0..5000 {
            run.added(1, subject.name, page * 4096..(page + 1) * 4096);
            run.used(1, true, subject.name, page * 4096..(page + 1) * 4096);
        }
        run.step();
        run.until(|run| run.follower.report().totals.released >= 16 * MIB);
        // The file's last window is a second job.
        run.ended(1);
        run.until_done();
        assert!((1..=2).contains(&opens.count()));
        assert_eq!(run.totals().released, 5000 * 4096);
    }
}

#[test]
fn each_of_many_files_is_opened_once() {
    let Some(place) = Mounted::new("ext4") else { return };
    let files: Vec<Subject> =
        (0..50).map(|number| Subject::clean(&place, &number.to_string(), 16_384)).collect();
    let opens: Vec<OpenCounter> = files.iter().map(|file| OpenCounter::of(&file.path)).collect();
    let mut run = Run::new(Verdict::Release);
    run.began(1);
    for file in &files {
        run.added(1, file.name, 0..16_384);
        run.used(1, true, file.name, 0..16_384);
    }
    // Their reader is still running.
    run.until(|run| run.follower.report().totals.released == 50 * 16_384);
    assert!(opens.iter().all(|opens| opens.count() == 1));
    run.until(|run| !run.follower.is_busy());
    assert_eq!(files.iter().map(Subject::resident).sum::<u64>(), 0);
}

#[test]
fn a_file_of_two_streams_counts_for_the_remaining_one() {
    let Some(place) = Mounted::new("xfs") else { return };
    let subject = Subject::clean(&place, "file", 8 * MIB);
    let mut run = Run::new(Verdict::Release);
    for process in [1, 2] {
        run.began(process);
        let start = u64::from(process - 1) * 4 * MIB;
        run.added(process, subject.name, start..start + 4 * MIB);
    }
    run.ended(1);
    run.step();
    run.step();
    assert!(
        run.said.iter().any(|event| matches!(event, StreamEvent::Ended { pid: 1, .. })),
        "{:?}",
        run.said
    );
    run.ended(2);
    run.until_done();
    assert_eq!((subject.resident(), run.totals().released), (0, 8 * MIB));
    let of_all = run.said.iter().filter_map(|event| match event {
        StreamEvent::Ended { totals, .. } => Some(totals.released),
        _ => None,
    });
    assert_eq!(of_all.sum::<u64>(), 8 * MIB);
}

#[test]
fn a_file_that_is_left_or_reported_keeps_its_pages() {
    let Some(place) = Mounted::new("ext4") else { return };
    for verdict in [Verdict::Leave, Verdict::Report] {
        let subject = Subject::clean(&place, "file", 8 * MIB);
        let mut run = Run::new(verdict);
        run.began(1);
        run.added(1, subject.name, 0..8 * MIB);
        run.ended(1);
        run.until_done();
        assert_eq!((subject.resident(), run.totals().resident), (8 * MIB, 8 * MIB));
        let report = run.follower.report();
        assert_eq!(
            (report.stayed[0].why, report.stayed[0].path.as_path()),
            (Some(StayReason::Left), &*subject.path)
        );
        let would: u64 = run
            .said
            .iter()
            .map(|event| match event {
                StreamEvent::Would { path, start, end } if *path == subject.path => end - start,
                _ => 0,
            })
            .sum();
        assert_eq!(would, if verdict == Verdict::Report { 8 * MIB } else { 0 }, "{:?}", run.said);
    }
}

#[test]
fn a_replacement_of_a_file_is_left() {
    for place in places() {
        let subject = Subject::clean(&place, "file", 4 * MIB);
        let mut run = Run::new(Verdict::Release);
        run.began(1);
        run.added(1, subject.name, 0..4 * MIB);
        // On ext4 and XFS the new file has the old one's inode number.
        std::fs::remove_file(&subject.path).unwrap();
        let other = Subject::clean(&place, "file", 4 * MIB);
        run.ended(1);
        run.until_done();
        assert_eq!(other.resident(), 4 * MIB);
        assert_eq!((run.totals().gone, run.totals().released), (4 * MIB, 0));
    }
}

#[test]
fn a_renamed_file_is_found() {
    for place in places() {
        let subject = Subject::clean(&place, "file", 4 * MIB);
        let mut run = Run::new(Verdict::Release);
        run.began(1);
        run.added(1, subject.name, 0..4 * MIB);
        let path = place.path().join("renamed");
        std::fs::rename(&subject.path, &path).unwrap();
        let other = Subject::clean(&place, "file", 4 * MIB);
        run.ended(1);
        run.until_done();
        assert_eq!((other.resident(), Subject { path, ..subject }.resident()), (4 * MIB, 0));
    }
}

#[test]
fn a_file_that_can_not_be_opened_is_given_up_and_named_once() {
    let mut run = Run::new(Verdict::Release);
    let nowhere = rustix::fs::makedev(0, 0xf_fff0);
    for ino in 1..4 {
        let file = EventFile {
            dev: nowhere,
            ino,
            generation: 1,
            subvolume: None,
            is_block_device: false,
            mapping: ino,
        };
        run.began(1);
        run.added(1, file, 0..MIB);
    }
    run.ended(1);
    run.until_done();
    let report = run.follower.report();
    assert_eq!((report.totals.added, report.totals.resident), (3 * MIB, 3 * MIB));
    assert!(report.stayed.iter().all(|file| file.why == Some(StayReason::NotOpened)), "{report:?}");
    let problems = run.said.iter().filter(|event| matches!(event, StreamEvent::Problem { .. }));
    assert_eq!(problems.count(), 1, "{:?}", run.said);
}

#[test]
fn one_user_fills_neither_the_log_nor_the_table() {
    let mut run = Run::new(Verdict::Release);
    let file = |ino| EventFile {
        dev: rustix::fs::makedev(0, 0xf_fff0),
        ino,
        generation: 1,
        subvolume: None,
        is_block_device: false,
        mapping: ino,
    };
    // Numbers that no process has: all count for one unknown user.
    let first = 1 << 23;
    for process in first..first + 100 {
        run.began(process);
        run.added(process, file(1), 0..MIB);
    }
    for ino in 0..6000 {
        run.added(first, file(ino), 0..4096);
    }
    run.step();
    assert!(run.follower.report().stayed.len() <= 64);
    let began = run.said.iter().filter(|event| matches!(event, StreamEvent::Began { .. })).count();
    assert_eq!(began, 64);
    // Files that were given up are no longer kept.
    assert!(lock(&run.hand.forgotten).len() >= 6000 - 4096);
    for process in first..first + 100 {
        run.ended(process);
    }
    run.until_done();
    let ended = run.said.iter().filter(|event| matches!(event, StreamEvent::Ended { .. })).count();
    assert_eq!(ended, 64);
}

#[test]
fn lost_events_are_counted_and_their_processes_end() {
    let mut run = Run::new(Verdict::Release);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    run.began(child.id());
    run.step();
    assert_eq!(run.follower.running(), 1);
    child.wait().unwrap();
    *lock(&run.hand.lost) = LostEvents { pages: 10, others: 1, ..LostEvents::default() };
    run.step();
    assert_eq!((run.follower.running(), run.follower.report().lost_bytes), (0, 10 * 4096));
}

#[test]
fn lost_additions_are_found_where_nobody_else_had_pages() {
    for (is_alone, is_used, stays) in [(true, false, 0), (false, false, 4 * MIB), (true, true, 8 * MIB)] {
        for place in places() {
            let subject = Subject::clean(&place, "file", 8 * MIB);
            let mut run = Run::new(Verdict::Release);
            run.began(1);
            let (process, file) = (1, subject.name);
            run.send(PageEvent::Added { process, file, bytes: 0..4 * MIB, is_alone });
            if is_used {
                run.used(2, false, subject.name, 0..4 * MIB);
            }
            *lock(&run.hand.lost) = LostEvents { pages: 4 * MIB / 4096, ..LostEvents::default() };
            run.ended(1);
            run.until_done();
            let (totals, lost) = (run.totals(), run.follower.report().lost_bytes);
            assert_eq!(subject.resident(), stays, "{totals:?}");
            let found = if stays == 0 { 4 * MIB } else { 0 };
            assert_eq!((totals.added, lost), (4 * MIB + found, 4 * MIB - found));
        }
    }
}

#[test]
fn pages_with_unknown_users_stay() {
    let Some(place) = Mounted::new("ext4") else { return };
    let subject = Subject::clean(&place, "file", 4 * MIB);
    let mut run = Run::new(Verdict::Release);
    run.began(1);
    run.added(1, subject.name, 0..4 * MIB);
    *lock(&run.hand.lost) = LostEvents { uses: 1, ..LostEvents::default() };
    run.ended(1);
    run.until_done();
    assert_eq!((subject.resident(), run.totals().resident), (4 * MIB, 4 * MIB));
}

#[test]
fn a_process_that_has_ended_is_not_followed() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let mut run = Run::new(Verdict::Release);
    run.follower.follow(child.id()).unwrap();
    assert_eq!(run.follower.running(), 0);
    assert_eq!(*lock(&run.hand.unfollowed), [child.id()], "a later process may get its number");
    run.follower.follow(std::process::id()).unwrap();
    assert_eq!(run.follower.running(), 1);
}

#[test]
fn metadata_does_not_count_as_a_streams() {
    let Some(place) = Mounted::new("ext4") else { return };
    let mut run = Run::new(Verdict::Release);
    let dev = rustix::fs::stat(place.path()).unwrap().st_dev;
    let file = EventFile { dev, ino: 0, generation: 0, subvolume: None, is_block_device: true, mapping: 1 };
    run.added(1, file, 0..MIB);
    run.added(1, EventFile { ino: 1, subvolume: Some(5), is_block_device: false, ..file }, 0..MIB);
    run.step();
    assert_eq!(run.totals(), StreamTotals::default());
    assert!(!run.follower.is_busy() || run.said.is_empty());
}

#[test]
fn a_file_system_that_does_not_answer_keeps_no_other_waiting() {
    let Some(place) = Mounted::new("ext4") else { return };
    if std::process::Command::new("bindfs").arg("--version").output().is_err() {
        return skip("a file system in user space needs bindfs");
    }
    let below = place.path().join("below");
    let point = place.path().join("point");
    std::fs::create_dir(&below).unwrap();
    std::fs::write(below.join("shown"), vec![1; 1 << 20]).unwrap();
    let hanging = HangingMount::mount(&below, &point, "shown");
    let held = File::open(point.join("shown")).unwrap();
    let stat = rustix::fs::fstat(&held).unwrap();
    let shown = EventFile {
        dev: stat.st_dev,
        ino: stat.st_ino,
        generation: 0,
        subvolume: None,
        is_block_device: false,
        mapping: 1,
    };
    hanging.stop();
    let subject = Subject::clean(&place, "file", 4 * MIB);
    let mut run = Run::new(Verdict::Release);
    // This process has it open.
    run.added(std::process::id(), shown, 0..MIB);
    run.ended(std::process::id());
    run.step();
    run.added(1, subject.name, 0..4 * MIB);
    run.ended(1);
    run.until(|run| run.follower.report().totals.released == 4 * MIB);
    assert_eq!((subject.resident(), run.totals().resident), (0, MIB));
    hanging.go_on();
    drop(held);
    drop(hanging);
}
