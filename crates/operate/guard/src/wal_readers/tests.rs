use std::os::unix::fs::symlink;

use pagekeeper_policy::{StepAction, StepState, step};

use super::*;
use crate::facts::tests::{directory, facts};

const MIB: u64 = 1 << 20;
const LIMITS: WalReaderLimits = WalReaderLimits { standby: 0, archiver: 0 };

/// The data directory of a server whose segments changed in this order; all are resident and
/// written.
struct Data {
    tree: tempfile::TempDir,
}

impl Data {
    fn new(size: u64, segments: &[&str]) -> Self {
        let data = Self { tree: pagekeeper_testing::disk_dir() };
        std::fs::create_dir_all(data.path("pg_wal/archive_status")).unwrap();
        for name in segments {
            let path = data.path("pg_wal").join(name);
            std::fs::File::create(&path).unwrap().set_len(size).unwrap();
            std::fs::read(&path).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        data
    }

    fn path(&self, below: &str) -> PathBuf {
        self.tree.path().join(below)
    }

    fn note(&self, name: &str) {
        std::fs::write(self.path("pg_wal/archive_status").join(name), "").unwrap();
    }

    fn slot(&self, name: &str, database: u32, restart_lsn: u64) {
        let mut bytes = vec![0; 200];
        for (at, number) in [(0, 0x105_1ca1), (8, 2), (12, 184), (80, database)] {
            bytes[at..at + 4].copy_from_slice(&u32::to_ne_bytes(number));
        }
        bytes[96..104].copy_from_slice(&restart_lsn.to_ne_bytes());
        let checksum = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&checksum.to_ne_bytes());
        std::fs::create_dir_all(self.path("pg_replslot").join(name)).unwrap();
        std::fs::write(self.path("pg_replslot").join(name).join("state"), bytes).unwrap();
    }

    fn watched(&self) -> Directory {
        directory(&self.path("pg_wal"), "postgresql")
    }

    /// Returns the readers that are seen beside processes of these titles, and what could not be
    /// read.
    fn read(&self, titles: &[&str], limits: &WalReaderLimits) -> (StepFacts, Vec<(PathBuf, String)>) {
        let (watched, mut readers, now) = (self.watched(), WalReaders::default(), Instant::now());
        assert!(readers.are_due(&watched, now));
        readers.read(&watched, &ProcRoot::default(), limits, now, &|_| {});
        assert!(!readers.are_due(&watched, now));
        let titles: Vec<_> = (10..).zip(titles.iter().map(ToString::to_string)).collect();
        let (mut seen, mut problems) = (facts(&watched, &[]), Vec::new());
        readers.add(&watched, &titles, limits, &mut seen, &mut |path, text| problems.push((path, text)));
        (seen, problems)
    }

    /// Returns where readers are seen: segments and offsets.
    fn places(&self, titles: &[&str], limits: &WalReaderLimits) -> Vec<(u64, FilePosition)> {
        let (seen, problems) = self.read(titles, limits);
        assert_eq!(problems, []);
        seen.followers.iter().map(|follower| (follower.sequence, follower.position)).collect()
    }

    /// Returns the sequences of segments of which something is released, in two steps; in the
    /// second no reader has moved.
    fn released(&self, titles: &[&str], limits: &WalReaderLimits) -> Vec<u64> {
        let (seen, problems) = self.read(titles, limits);
        assert_eq!(problems, []);
        let mut state = StepState::default();
        let acts = [step(&mut state, &seen), step(&mut state, &seen)].concat();
        let released = acts.iter().filter_map(|act| match act {
            StepAction::Release { file, .. } => Some(*file),
            _ => None,
        });
        let sequence = |id| seen.files.iter().find(|file| file.id == id).unwrap().sequence;
        let mut released: Vec<u64> = released.map(sequence).collect();
        released.sort_unstable();
        released.dedup();
        released
    }
}

fn segment(number: u32) -> String {
    format!("{:08X}{:016X}", 1, number)
}

/// Makes segments 1 to `last`, of 2 MiB.
fn series(last: u32) -> Data {
    let names: Vec<String> = (1..=last).map(segment).collect();
    Data::new(2 * MIB, &names.iter().map(String::as_str).collect::<Vec<_>>())
}

fn start_of(sequence: u64) -> (u64, FilePosition) {
    (sequence, FilePosition::At(0))
}

#[test]
fn a_wal_sender_one_segment_behind_is_near_across_4_gib_and_timelines() {
    // The segment before the end of 4 GiB, where a sender still reads, and the writer's, on the
    // next timeline.
    for (size, read, written, title) in [
        (16 * MIB, "0000000100000000000000FF", "000000010000000100000000", "0/FF500000"),
        (16 * MIB, "0000000100000000000000FF", "000000020000000100000000", "0/FF500000"),
        (MIB, "000000010000000000000FFF", "000000010000000100000000", "0/FFF50000"),
        (64 * MIB, "00000001000000000000003F", "000000010000000100000000", "0/FC500000"),
    ] {
        let data = Data::new(size, &[read, written]);
        let title = format!("postgres: walsender replicator 10.0.0.7(51234) streaming {title}");
        let (seen, _) = data.read(&[&title], &LIMITS);
        let [sender] = &seen.followers[..] else { panic!("{seen:?}") };
        let FilePosition::At(offset) = sender.position else { panic!("{sender:?}") };
        let file = |written: bool| seen.files.iter().find(|file| file.writer.is_some() == written).unwrap();
        let (read, written) = (file(false), file(true));
        assert_eq!((sender.sequence, written.sequence - read.sequence), (read.sequence, 1), "{size}");
        let mut state = StepState::default();
        // The reader stands still in the second step, where a distant reader would hold nothing.
        for act in [step(&mut state, &seen), step(&mut state, &seen)].concat() {
            if let StepAction::Release { file, range } = act {
                assert!(file == read.id && range.end <= offset, "{range:?} of {file:?} is yet to be read");
            }
        }
    }
}

#[test]
fn segments_to_archive_stay_while_the_archiver_is_near() {
    let data = series(8);
    assert_eq!(data.released(&[], &LIMITS), [1, 2, 3, 4, 5, 6, 7], "nobody archives");
    // Without an archiver that is seen, as for a directory that was named, a note decides.
    for number in 1..=6 {
        data.note(&format!("{}.done", segment(number)));
    }
    data.note(&format!("{}.ready", segment(7)));
    assert_eq!(data.places(&[], &LIMITS), [start_of(7)]);
    assert_eq!(data.released(&[], &LIMITS), [1, 2, 3, 4, 5, 6]);
    // The note decides, whatever the archiver's title says meanwhile.
    for state in ["archiving", "failed on", "last was"] {
        let title = format!("postgres: archiver {state} {}", segment(3));
        assert_eq!(data.places(&[&title], &LIMITS), [start_of(7)], "{state}");
    }
    // All segments are archived except the one being written, which has no note yet.
    std::fs::rename(
        data.path("pg_wal/archive_status").join(format!("{}.ready", segment(7))),
        data.path("pg_wal/archive_status").join(format!("{}.done", segment(7))),
    )
    .unwrap();
    assert_eq!(data.places(&[], &LIMITS), []);
    assert_eq!(data.places(&["postgres: archiver last was 00000002.history"], &LIMITS), [start_of(8)]);
}

#[test]
fn a_lagging_archiver_is_waited_for_up_to_the_configured_limit() {
    let data = series(8);
    for number in 1..=8 {
        data.note(&format!("{}.{}", segment(number), if number < 3 { "done" } else { "ready" }));
    }
    let archiver = format!("postgres: main: archiver failed on {}", segment(3));
    let near = |archiver: u64| WalReaderLimits { archiver, ..LIMITS };
    // Three files behind the writer by the rule; then by bytes.
    for (limit, released) in [(0, vec![1, 2, 3, 4]), (8 * MIB, vec![1, 2, 3]), (1 << 40, vec![1, 2])] {
        assert_eq!(data.released(&[&archiver], &near(limit)), released, "{limit}");
    }
}

#[test]
fn the_process_title_counts_where_status_files_are_unreadable() {
    let data = series(6);
    std::fs::remove_dir(data.path("pg_wal/archive_status")).unwrap();
    let title = |state: &str, number| format!("postgres: archiver {state} {}", segment(number));
    assert_eq!(data.places(&[&title("archiving", 5)], &LIMITS), [start_of(5)]);
    assert_eq!(data.places(&[&title("last was", 5)], &LIMITS), [start_of(6)]);
    // A link to a directory of notes elsewhere is not followed, and is reported.
    std::fs::create_dir(data.path("elsewhere")).unwrap();
    std::fs::write(data.path("elsewhere").join(format!("{}.ready", segment(4))), "").unwrap();
    symlink(data.path("elsewhere"), data.path("pg_wal/archive_status")).unwrap();
    let (seen, problems) = data.read(&[&title("archiving", 5)], &LIMITS);
    assert_eq!((seen.followers.len(), seen.followers[0].sequence), (1, 5));
    assert!(problems[0].1.contains("known only in part"), "{problems:?}");
}

#[test]
fn lagging_replay_is_waited_for_up_to_a_limit() {
    let data = series(8);
    let title = format!("postgres: standby: startup recovering {}", segment(2));
    let standby = |standby: u64| WalReaderLimits { standby, ..LIMITS };
    assert_eq!(data.places(&[&title], &LIMITS), [(2, FilePosition::Unknown)]);
    for (limit, released) in [
        // Too far behind: the file that it has open stays.
        (0, vec![1, 3, 4, 5, 6, 7]),
        (10 * MIB, vec![1, 3, 4, 5, 6, 7]),
        (10 * MIB + 1, vec![1]),
        (1 << 30, vec![1]),
    ] {
        assert_eq!(data.released(&[&title], &standby(limit)), released, "{limit}");
    }
}

#[test]
fn a_slot_is_a_reader_at_its_position() {
    let data = series(8);
    data.slot("polled", 5, 6 * 2 * MIB + 100);
    data.slot("none_yet", 5, 0);
    assert_eq!(data.places(&[], &LIMITS), [(6, FilePosition::At(100))]);
    assert_eq!(data.released(&[], &LIMITS), [1, 2, 3, 4, 5]);
    // Too far behind, like a reader that stands still.
    data.slot("polled", 5, 2 * 2 * MIB);
    assert_eq!(data.released(&[], &LIMITS), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_physical_slot_counts_beside_wal_senders_that_may_use_no_slot() {
    let data = series(8);
    data.slot("standby", 0, 5 * 2 * MIB);
    let sender = "postgres: walsender replicator [local] streaming 0/E00010";
    assert_eq!(data.places(&[], &LIMITS), [start_of(5)]);
    assert_eq!(data.places(&[sender], &LIMITS), [(7, FilePosition::At(16)), start_of(5)]);
    assert_eq!(data.released(&[sender], &LIMITS), [1, 2, 3, 4], "the standby is away, and near");
    let starting = "postgres: walsender replicator [local] START_REPLICATION";
    assert_eq!(data.places(&[starting], &LIMITS), [start_of(5)]);
}

#[test]
fn odd_slots_hold_nothing_and_one_of_them_is_reported() {
    let data = series(3);
    data.slot("good", 5, 2 * 2 * MIB);
    let slots = data.path("pg_replslot");
    let state = |name: &str| {
        std::fs::create_dir(slots.join(name)).unwrap();
        slots.join(name).join("state")
    };
    symlink(slots.join("good/state"), state("link")).unwrap();
    symlink(slots.join("good"), slots.join("linked")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        state("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    std::fs::File::create(state("huge")).unwrap().set_len(1 << 40).unwrap();
    std::fs::write(state("empty"), "").unwrap();
    std::fs::create_dir(state("directory")).unwrap();
    // A slot that is being made or dropped.
    std::fs::create_dir(slots.join("dropped")).unwrap();
    let (watched, mut readers) = (data.watched(), WalReaders::default());
    let mut read = || {
        let proc = ProcRoot::default();
        let data = DataDirectory { proc: &proc, pid: watched.owner, wal: &watched.path };
        readers.slots.read(&data);
        let names = readers.slots.found.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        (names, std::mem::take(&mut readers.slots.problems))
    };
    let (names, problems) = read();
    assert_eq!(names, ["good"]);
    assert_eq!(problems.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&slots]);
    // Their owner makes others in their place.
    for name in ["link", "fifo", "huge", "empty"] {
        std::fs::rename(slots.join(name), slots.join(format!("another_{name}"))).unwrap();
    }
    std::fs::remove_file(slots.join("linked")).unwrap();
    std::fs::remove_dir_all(slots.join("directory")).unwrap();
    assert_eq!(read().1, problems);
}

#[test]
fn slots_above_the_limit_are_not_read() {
    let data = series(3);
    for number in 0..300 {
        data.slot(&format!("slot_{number}"), 5, 2 * MIB);
    }
    let (seen, problems) = data.read(&[], &LIMITS);
    assert_eq!(seen.followers.len(), 256);
    assert!(problems[0].1.contains("more than 256 slots"), "{problems:?}");
}

#[test]
fn a_log_whose_rule_ignores_followers_is_left_alone() {
    let data = series(3);
    let mut watched = data.watched();
    let readers = WalReaders::default();
    assert!(readers.are_due(&watched, Instant::now()));
    std::sync::Arc::make_mut(&mut watched.profile).logs[0].rule = Rule::ReleaseBehindWriter { slack: 0 };
    assert!(!readers.are_due(&watched, Instant::now()));
}
