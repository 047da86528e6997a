//! Tests of the facts for the policy, on directories of plain files.

use super::*;
use crate::budget::Turn;
use crate::descriptors::FilesInUse;
use crate::sample::WindowRoom;
use pagekeeper_catalog::ownership::FileOwnership;
use pagekeeper_catalog::{Profile, find_profile};
use pagekeeper_kernel::Inode;
use pagekeeper_policy::Rule;
use pagekeeper_policy::turns::Slice;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process that is not a database's.
const STRANGER: u32 = 2;

pub(crate) fn directory(path: &Path, profile: &str) -> Directory {
    let profile = find_profile(&Profile::built_in(), profile).unwrap().clone();
    let mut directory =
        Directory::new(path.to_path_buf(), None, None, Arc::new(profile), FileOwnership::Operator);
    take_samples(&mut directory);
    directory
}

fn take_samples(directory: &mut Directory) {
    let fd = std::fs::File::open(&directory.path).unwrap();
    let endless = Duration::from_secs(3600);
    let turn = Turn::begin(Slice { cpu: endless, wall: endless });
    directory.stale = true;
    assert!(directory.begin_listing(usize::MAX, Instant::now() + endless));
    directory.list(fd.as_fd(), &turn).unwrap();
    let mut room = WindowRoom { left: usize::MAX, least: 1 };
    directory.begin_tick(&FilesInUse::default());
    let due = directory.due();
    directory.sample(fd.as_fd(), due, &mut room, &turn, |path, error| panic!("{}: {error}", path.display()));
}

fn descriptor(directory: &Directory, name: &str, access: AccessMode, position: u64) -> Descriptor {
    let entry = &directory.entries[std::ffi::OsStr::new(name)];
    let inode = Inode { dev: 0, ino: 0 };
    Descriptor {
        pid: 1,
        fd: 3,
        file: entry.id,
        directory: directory.id,
        shown_inode: None,
        inode,
        access,
        position,
        moved: false,
        lively: false,
    }
}

pub(crate) fn facts(directory: &Directory, descriptors: &[Descriptor]) -> StepFacts {
    let mut facts = StepFacts::default();
    add(directory, &by_file(descriptors.iter()), &HashSet::from([STRANGER]), &mut facts);
    facts
}

#[test]
fn the_files_of_a_text_log_are_one_log_in_the_order_of_their_last_change() {
    let dir = pagekeeper_testing::disk_dir();
    let names = ["db-Tue.csv", "db-Wed.csv", "db-Mon.csv", "db.json"];
    for name in names {
        std::fs::write(dir.path().join(name), vec![1; 9000]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut directory = directory(dir.path(), "postgresql");
    directory.owner = Some(1);
    let reader = descriptor(&directory, "db-Wed.csv", AccessMode::ReadOnly, 4096);
    let of = |seen: &StepFacts, name: &str| {
        let id = directory.entries[std::ffi::OsStr::new(name)].id;
        let file = seen.files.iter().find(|file| file.id == id).cloned();
        file.map(|file| (file.sequence, file.writer))
    };
    let end = Some(FilePosition::At(9000));
    // No process is seen to have a file open: the writer may be in the one that changed last.
    let seen = facts(&directory, std::slice::from_ref(&reader));
    let expected = [Some((0, None)), Some((1, None)), Some((2, end)), Some((0, end))];
    assert_eq!(names.map(|name| of(&seen, name)), expected);
    assert_eq!((seen.followers[0].sequence, seen.followers[0].position), (1, FilePosition::At(4096)));
    // A file that is open for writing is a writer's as well.
    let writer = descriptor(&directory, "db-Tue.csv", AccessMode::WriteOnly, 0);
    assert_eq!(of(&facts(&directory, &[writer]), "db-Tue.csv"), Some((0, end)));
    // A file that another program writes is left alone.
    let stranger =
        Descriptor { pid: STRANGER, ..descriptor(&directory, "db-Tue.csv", AccessMode::WriteOnly, 0) };
    let seen = facts(&directory, &[stranger]);
    assert_eq!((of(&seen, "db-Tue.csv"), of(&seen, "db-Wed.csv")), (None, Some((1, None))));
}

#[test]
fn a_reader_of_rotated_files_that_has_a_later_one_open_has_left_them() {
    let dir = pagekeeper_testing::disk_dir();
    let names = ["db-Mon.csv", "db-Tue.csv", "db-Wed.csv"];
    for name in names {
        std::fs::write(dir.path().join(name), vec![1; 9000]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let directory = directory(dir.path(), "postgresql");
    let reader = |pid: u32, file: usize, position: u64| Descriptor {
        pid,
        ..descriptor(&directory, names[file], AccessMode::ReadOnly, position)
    };
    let places = |readers: &[Descriptor]| {
        let seen = facts(&directory, readers).followers.into_iter();
        let mut places: Vec<_> = seen.map(|follower| (follower.sequence, follower.position)).collect();
        places.sort_unstable_by_key(|(sequence, _)| *sequence);
        places
    };
    let at = FilePosition::At;
    let of_all = [reader(7, 0, 9000), reader(7, 1, 9000), reader(7, 2, 9000)];
    assert_eq!(places(&of_all), [(2, at(9000))]);
    // The reader moves on to the next file, or has yet to read the rest of one.
    assert_eq!(places(&of_all[..2]), [(1, at(9000))]);
    assert_eq!(places(&[reader(7, 0, 4096), reader(7, 2, 9000)]), [(0, at(4096)), (2, at(9000))]);
    // The later file is another process's.
    assert_eq!(places(&[reader(7, 0, 9000), reader(8, 2, 9000)]), [(0, at(9000)), (2, at(9000))]);
}

#[test]
fn text_logs_of_different_names_are_different_logs() {
    let dir = pagekeeper_testing::disk_dir();
    for name in ["error.log.1", "error.log", "general.log", "slow.log"] {
        std::fs::write(dir.path().join(name), vec![1; 9000]).unwrap();
    }
    let mut directory = directory(dir.path(), "mariadb");
    directory.owner = Some(1);
    let writers = ["error.log", "general.log", "slow.log"]
        .map(|name| descriptor(&directory, name, AccessMode::WriteOnly, 9000));
    let shipper =
        Descriptor { pid: STRANGER, ..descriptor(&directory, "error.log", AccessMode::ReadOnly, 4096) };
    let descriptors = [writers.as_slice(), &[shipper]].concat();
    let seen = facts(&directory, &descriptors);
    let log = |name: &str| directory.entries[std::ffi::OsStr::new(name)].log;
    let logs: std::collections::BTreeSet<LogId> = seen.files.iter().map(|file| file.log).collect();
    assert_eq!((seen.files.len(), logs.len()), (4, 3));
    assert_eq!(log("error.log"), log("error.log.1"), "a rotated file");
    // The reader holds no page of the other logs, and read-back of one log does not keep another.
    assert_eq!((seen.followers.len(), seen.followers[0].log), (1, log("error.log")));
}

#[test]
fn a_binlog_has_its_writer_at_the_end_of_its_newest_file() {
    let dir = pagekeeper_testing::disk_dir();
    for (name, len) in
        [("binlog.000001", 9000), ("binlog.000002", 5000), ("binlog.index", 10), ("t.000009", 1)]
    {
        std::fs::write(dir.path().join(name), vec![1; len]).unwrap();
    }
    let directory = directory(dir.path(), "mariadb");
    assert_eq!(directory.entries.len(), 2, "t.000009 has no index: no log");
    let seen = facts(
        &directory,
        &[
            descriptor(&directory, "binlog.000002", AccessMode::WriteOnly, 5000),
            descriptor(&directory, "binlog.000001", AccessMode::ReadOnly, 4096),
        ],
    );
    let writer = seen.files.iter().find_map(|file| Some((file.sequence, file.writer?)));
    assert_eq!(writer, Some((2, FilePosition::At(5000))));
    assert_eq!(seen.followers.len(), 1);
    assert_eq!((seen.followers[0].sequence, seen.followers[0].position), (1, FilePosition::At(4096)));
    assert!(matches!(seen.files[0].rule, Rule::ReleaseBehindFollowers { near_files: 3, .. }));
}

/// Builds with assertions detect a cached fact that is outdated.
#[test]
fn cached_facts_of_a_directory_hold_until_a_change() {
    let dir = pagekeeper_testing::disk_dir();
    let log = |number: u32| dir.path().join(format!("binlog.{number:06}"));
    for path in [log(1), log(2), dir.path().join("binlog.index")] {
        std::fs::write(path, vec![1; 9000]).unwrap();
    }
    let mut directory = directory(dir.path(), "mariadb");
    // A rule that can be tightened.
    let rule = Rule::ReleaseBehindFollowers { near_files: 3, slack: 64 << 20 };
    Arc::make_mut(&mut directory.profile).logs.iter_mut().for_each(|log| log.rule = rule);
    let at = |directory: &Directory, follower: u64| {
        let writer = descriptor(directory, "binlog.000002", AccessMode::WriteOnly, 9000);
        [writer, descriptor(directory, "binlog.000001", AccessMode::ReadOnly, follower)]
    };
    let seen = |directory: &mut Directory, descriptors: &[Descriptor]| {
        let mut facts = StepFacts::default();
        see(directory, &descriptors.iter().collect::<Vec<_>>(), &HashSet::new(), &mut facts);
        facts
    };
    let size = |facts: &StepFacts| facts.files.iter().map(|file| file.size).max();
    let descriptors = at(&directory, 4096);
    let first = seen(&mut directory, &descriptors);
    assert_eq!((first.files.len(), size(&first)), (2, Some(9000)));
    assert_eq!(seen(&mut directory, &descriptors), first);
    // A follower moves, and ends.
    let moved = at(&directory, 8192);
    let after = seen(&mut directory, &moved);
    assert_eq!(after.followers[0].position, FilePosition::At(8192));
    assert_eq!(seen(&mut directory, &moved[..1]).followers, []);
    // The directory's group has too much page cache.
    directory.tight = true;
    let tight = seen(&mut directory, &moved);
    assert_ne!(tight.files[0].rule, first.files[0].rule);
    directory.tight = false;
    // The writer continues.
    std::fs::write(log(2), vec![1; 20_000]).unwrap();
    directory.sample_now(|_| true);
    take_samples(&mut directory);
    assert_eq!(size(&seen(&mut directory, &moved)), Some(20_000));
    assert_eq!(directory.sums().resident, resident_of(&[log(1), log(2)]));
    // A file is removed.
    directory.changed(Some(log(1).file_name().unwrap()));
    assert_eq!(seen(&mut directory, &moved[..1]).files.len(), 1);
    assert_eq!(directory.sums().resident, resident_of(&[log(2)]));
}

/// Builds with assertions detect facts that stayed cached despite the change.
#[test]
fn cached_facts_are_dropped_once_a_writer_is_known_as_a_stranger() {
    let dir = pagekeeper_testing::disk_dir();
    std::fs::write(dir.path().join("host-slow.log"), vec![1; 9000]).unwrap();
    let mut directory = directory(dir.path(), "mariadb");
    directory.owner = Some(1);
    let writer = descriptor(&directory, "host-slow.log", AccessMode::WriteOnly, 9000);
    let descriptors = [Descriptor { pid: STRANGER, ..writer }];
    let mut files = |strangers: &[u32]| {
        let mut facts = StepFacts::default();
        let strangers = strangers.iter().copied().collect();
        see(&mut directory, &descriptors.iter().collect::<Vec<_>>(), &strangers, &mut facts);
        facts.files.len()
    };
    assert_eq!((files(&[]), files(&[STRANGER]), files(&[])), (1, 0, 1));
}

/// Returns the resident bytes of fully resident files.
fn resident_of(paths: &[PathBuf]) -> u64 {
    paths.iter().map(|path| std::fs::metadata(path).unwrap().len().next_multiple_of(4096)).sum()
}

#[test]
fn a_shared_descriptor_of_a_relay_log_is_a_follower_somewhere_in_it() {
    let dir = pagekeeper_testing::disk_dir();
    for (name, len) in [("host-relay-bin.000001", 9000), ("host-relay-bin.index", 10)] {
        std::fs::write(dir.path().join(name), vec![1; len]).unwrap();
    }
    let directory = directory(dir.path(), "mariadb");
    let seen =
        facts(&directory, &[descriptor(&directory, "host-relay-bin.000001", AccessMode::ReadWrite, 700)]);
    assert_eq!(seen.files[0].writer, Some(FilePosition::At(9000)));
    assert_eq!(seen.followers[0].position, FilePosition::Unknown);
}

#[test]
fn a_relay_log_of_any_name_is_one_by_how_it_is_open() {
    let dir = pagekeeper_testing::disk_dir();
    for name in ["received.000001", "received.000002", "received.index", "bin.000001", "bin.index"] {
        std::fs::write(dir.path().join(name), vec![1; 9000]).unwrap();
    }
    let mut directory = directory(dir.path(), "mariadb");
    // The directory belongs to a process; it was not named.
    directory.owner = Some(1);
    let descriptors = [
        descriptor(&directory, "received.000002", AccessMode::ReadWrite, 700),
        descriptor(&directory, "bin.000001", AccessMode::WriteOnly, 9000),
    ];
    recognise_relay_logs(&mut directory, &by_file(descriptors.iter()));
    let seen = facts(&directory, &descriptors);
    let mut classes: Vec<_> = seen.files.iter().map(|file| (file.sequence, file.class)).collect();
    classes.sort_unstable();
    let expected = [(1, FileClass::Binlog), (1, FileClass::Relay), (2, FileClass::Relay)];
    assert_eq!(classes, expected);
    assert_eq!(seen.followers.len(), 1, "what has yet to be applied is waited for");
    assert_eq!((seen.followers[0].sequence, seen.followers[0].position), (2, FilePosition::Unknown));
}

#[test]
fn a_redo_log_is_kept_once_its_format_is_seen_to_be_unknown() {
    let dir = pagekeeper_testing::disk_dir();
    let redo = dir.path().join("#innodb_redo");
    std::fs::create_dir(&redo).unwrap();
    // The files have only holes: nothing of them is in memory.
    for name in ["#ib_redo1", "#ib_redo2"] {
        std::fs::File::create(redo.join(name)).unwrap().set_len(1 << 20).unwrap();
    }
    let mut directory = directory(&redo, "mysql");
    let is_kept = |directory: &Directory| directory.logs.values().all(|log| log.rewrite.needs_old_pages());
    assert!(!is_kept(&directory) && directory.logs.len() == 1);
    let file = std::fs::File::options().write(true).open(redo.join("#ib_redo1")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"Tape", 0).unwrap();
    take_samples(&mut directory);
    assert!(is_kept(&directory));
}

#[test]
fn a_log_of_a_named_directory_is_kept_once_reloaded_settings_say_so() {
    let dir = pagekeeper_testing::disk_dir();
    let (data, wal) = (dir.path().join("data"), dir.path().join("wal"));
    std::fs::create_dir(&data).unwrap();
    std::fs::create_dir(&wal).unwrap();
    let set = |files: u32| {
        let options = format!("[DBOptions]\n  recycle_log_file_num={files}\n");
        std::fs::write(data.join("OPTIONS-000005"), options).unwrap();
    };
    set(0);
    std::fs::write(wal.join("000003.log"), b"x").unwrap();
    let mut directory = directory(&wal, "rocksdb");
    let proc = pagekeeper_kernel::process::ProcRoot::default();
    directory.server =
        pagekeeper_catalog::settings::ServerSettings::of(&proc, None, data.clone(), &directory.profile, true);
    let is_kept = |directory: &Directory| directory.logs.values().all(|log| log.rewrite.needs_old_pages());
    for (files, expected) in [(0, false), (2, true), (0, true)] {
        set(files);
        take_samples(&mut directory);
        assert_eq!(is_kept(&directory), expected, "{files}");
    }
}

#[test]
fn a_wal_written_short_of_its_end_is_recycled() {
    let dir = pagekeeper_testing::disk_dir();
    std::fs::write(dir.path().join("000007.log"), vec![1; 1 << 20]).unwrap();
    let mut directory = directory(dir.path(), "rocksdb");
    take_samples(&mut directory);
    let seen_at = |directory: &mut Directory, position| {
        let descriptors = [descriptor(directory, "000007.log", AccessMode::WriteOnly, position)];
        for log in overwritten_logs(directory, &by_file(descriptors.iter())) {
            directory.overwrites(log);
        }
        facts(directory, &descriptors)
    };
    assert_eq!(seen_at(&mut directory, 1 << 20).files[0].rewrite, RewriteKind::Never, "at the end");
    assert_eq!(seen_at(&mut directory, 70_000).files, [], "a throttled write, or recycled: left alone");
    assert_eq!(seen_at(&mut directory, 70_000).files, [], "still");
    let seen = seen_at(&mut directory, 80_000);
    assert_eq!(seen.files[0].rewrite, RewriteKind::SubPages, "it moved: recycled");
    assert_eq!(seen.files[0].writer, Some(FilePosition::At(80_000)));
}

#[test]
fn a_preallocated_wal_has_its_writer_where_the_descriptor_is_and_is_not_recycled() {
    let dir = pagekeeper_testing::disk_dir();
    let wal = dir.path().join("wal");
    std::fs::create_dir(&wal).unwrap();
    let name = "0000000000000001-0000000000000225.wal";
    // The older file first: a file that is older than its predecessor by number counts as recycled.
    std::fs::write(wal.join("0000000000000000-0000000000000000.wal"), vec![0; 6 << 20]).unwrap();
    std::fs::write(wal.join(name), vec![0; 6 << 20]).unwrap();
    let text = include_str!("../../../catalog/profiles/etcd.toml");
    // A writer short of the end is what "preallocated" says, whether or not recycling is to be
    // detected.
    let detected = text.replace("rewrite = \"never\"", "rewrite = \"detect\"");
    assert_ne!(text, detected);
    for text in [text, &detected] {
        let profile = Profile::parse(text, Path::new("etcd.toml")).unwrap();
        let mut directory =
            Directory::new(wal.clone(), None, None, Arc::new(profile), FileOwnership::Operator);
        take_samples(&mut directory);
        take_samples(&mut directory);
        for position in [70_000, 80_000, 4_323_816] {
            let descriptors = [descriptor(&directory, name, AccessMode::WriteOnly, position)];
            assert_eq!(overwritten_logs(&mut directory, &by_file(descriptors.iter())), []);
            let seen = facts(&directory, &descriptors);
            let newest = seen.files.iter().find(|file| file.sequence == 1).unwrap();
            assert_eq!(
                (newest.rewrite, newest.writer),
                (RewriteKind::Never, Some(FilePosition::At(position)))
            );
            let oldest = seen.files.iter().find(|file| file.sequence == 0).unwrap();
            assert_eq!((oldest.log, oldest.writer), (newest.log, None));
        }
    }
}

#[test]
fn a_wal_renamed_to_a_later_number_is_recycled() {
    let dir = pagekeeper_testing::disk_dir();
    let write = |name: &str| std::fs::write(dir.path().join(name), b"x").unwrap();
    write("000003.log");
    std::thread::sleep(std::time::Duration::from_millis(20));
    write("000004.log");
    let mut directory = directory(dir.path(), "rocksdb");
    assert!(directory.logs.values().all(|log| log.rewrite == RewriteKind::Never));
    std::fs::rename(dir.path().join("000003.log"), dir.path().join("000005.log")).unwrap();
    take_samples(&mut directory);
    assert!(directory.logs.values().all(|log| log.rewrite == RewriteKind::SubPages));
}

#[test]
fn binlogs_restored_in_another_order_are_not_recycled() {
    let dir = pagekeeper_testing::disk_dir();
    std::fs::write(dir.path().join("binlog.index"), b"").unwrap();
    std::fs::write(dir.path().join("binlog.000004"), b"x").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(dir.path().join("binlog.000003"), b"x").unwrap();
    let directory = directory(dir.path(), "mysql");
    assert!(directory.logs.values().all(|log| log.rewrite == RewriteKind::Never));
}

#[test]
fn a_rocksdb_that_says_it_recycles_is_believed_from_the_start() {
    let dir = pagekeeper_testing::disk_dir();
    std::fs::write(dir.path().join("000003.log"), b"x").unwrap();
    std::fs::write(dir.path().join("OPTIONS-000005"), "[DBOptions]\n  recycle_log_file_num=2\n").unwrap();
    let directory = directory(dir.path(), "rocksdb");
    assert!(directory.logs.values().all(|log| log.rewrite == RewriteKind::SubPages));
}

#[test]
fn the_postgresql_segment_changed_last_is_the_writers() {
    let dir = pagekeeper_testing::disk_dir();
    let wal = dir.path().join("pg_wal");
    std::fs::create_dir(&wal).unwrap();
    std::fs::write(wal.join("000000010000000000000009"), vec![0; 4096]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(wal.join("000000010000000000000004"), vec![0; 4096]).unwrap();
    let directory = directory(&wal, "postgresql");
    let seen = facts(&directory, &[]);
    let writers: Vec<u64> =
        seen.files.iter().filter(|file| file.writer.is_some()).map(|file| file.sequence).collect();
    assert_eq!(writers, [4]);
    assert_eq!(seen.files[0].rewrite, RewriteKind::WholePages);
}

/// A server reads its WAL by pread, which shows no position. A program that copies the WAL shows
/// one.
#[test]
fn a_reader_without_a_position_may_be_anywhere_in_its_segment() {
    let dir = pagekeeper_testing::disk_dir();
    let wal = dir.path().join("pg_wal");
    std::fs::create_dir(&wal).unwrap();
    let name = "000000010000000000000009";
    std::fs::write(wal.join(name), vec![0; 4096]).unwrap();
    let directory = directory(&wal, "postgresql");
    for (position, expected) in [(0, FilePosition::Unknown), (700, FilePosition::At(700))] {
        let seen = facts(&directory, &[descriptor(&directory, name, AccessMode::ReadOnly, position)]);
        assert_eq!(seen.followers[0].position, expected);
    }
}

#[test]
fn segment_sequences_follow_the_most_common_file_size() {
    let dir = pagekeeper_testing::disk_dir();
    let wal = dir.path().join("pg_wal");
    std::fs::create_dir(&wal).unwrap();
    let (last, first) = ("00000001000000000000003F", "000000010000000100000000");
    std::fs::write(wal.join(last), b"").unwrap();
    std::fs::write(wal.join(first), b"").unwrap();
    let mut directory = directory(&wal, "postgresql");
    let distance = |directory: &Directory| {
        let sequence = |name: &str| directory.entries[std::ffi::OsStr::new(name)].sequence;
        sequence(first) - sequence(last)
    };
    assert_eq!(distance(&directory), 193, "of no known size: as if they were of 16 MiB");
    std::fs::File::options().write(true).open(wal.join(last)).unwrap().set_len(64 << 20).unwrap();
    // An idle file is not sampled at every tick.
    (0..4).for_each(|_| take_samples(&mut directory));
    assert_eq!(distance(&directory), 1);
}
