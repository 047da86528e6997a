//! Tests of the whole guard, on directories.

use std::sync::Arc;
use std::time::Instant;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Inode, InspectedFile};
use pagekeeper_kernel::{Links, residency};
use pagekeeper_policy::{DiskProfile, FileClass, MixedProfile, Rule};
use pagekeeper_testing::disk_dir;

use super::Guard;
use super::carry_out::carry_out;
use super::report::Report;
use super::watched::WatchList;
use crate::config::{Options, Settings};
use crate::decision::{Action, Decision, FileWarning};
use crate::directory::Directory;
use crate::event::{Done, Event};
use pagekeeper_catalog::ownership::FileOwnership;

#[test]
fn acts_of_a_tick_are_reported_by_directory_and_class() {
    let dir = disk_dir();
    let path = dir.path().canonicalize().unwrap();
    std::fs::write(path.join("binlog.index"), "").unwrap();
    for number in 1..=3 {
        let name = path.join(format!("binlog.{number:06}"));
        std::fs::write(&name, vec![1; 1 << 20]).unwrap();
        std::fs::File::open(&name).unwrap().sync_all().unwrap();
    }
    let options = Options {
        find: false,
        directories: vec![path.clone()],
        profile: Some("generic".to_owned()),
        ..Options::default()
    };
    let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
    assert!(guard.done().is_empty());
    guard.tick(&mut |_| {});
    let released = guard.summary().released_total_bytes;
    assert_eq!(released, 2 << 20, "all but the writer's file");
    let done = Done {
        pid: None,
        profile: "generic".to_owned(),
        directory: path,
        class: FileClass::Binlog,
        acts: 2,
        released_bytes: released,
        kept_bytes: 0,
        read_back_bytes: 0,
    };
    assert_eq!(guard.done(), [done]);
    guard.tick(&mut |_| {});
    assert!(guard.done().is_empty(), "the next tick had nothing to do");
}

/// Returns the guard's warnings about a directory of a `RocksDB` with these options, in which logs
/// are reused under later numbers.
fn warnings_of_recycled_logs(options: &str) -> Vec<String> {
    let dir = disk_dir();
    let path = dir.path().canonicalize().unwrap();
    std::fs::write(path.join("OPTIONS-000001"), options).unwrap();
    let name = |number: u64| path.join(format!("{number:06}.log"));
    for number in 3..=5 {
        std::fs::write(name(number), vec![1; 4 << 20]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let options = Options {
        find: false,
        directories: vec![path.clone()],
        profile: Some("rocksdb".to_owned()),
        dry_run: true,
        ..Options::default()
    };
    let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
    let mut warnings = Vec::new();
    for number in 6..=9 {
        std::fs::rename(name(number - 3), name(number)).unwrap();
        // A listing is not repeated at once.
        std::thread::sleep(std::time::Duration::from_millis(100));
        guard.tick(&mut |event| {
            if let Event::Warning { warning, .. } = event {
                warnings.push(warning.clone());
            }
        });
    }
    warnings
}

#[test]
fn logs_that_are_used_again_and_again_are_warned_of_once() {
    let rocksdb = "[Version]\n  rocksdb_version=9.11.2\n[DBOptions]\n  recycle_log_file_num=2\n";
    let warnings = warnings_of_recycled_logs(rocksdb);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("recycle_log_file_num=0"), "{warnings:#?}");
}

#[test]
fn a_setting_is_not_offered_to_a_database_that_has_none_of_that_name() {
    let pebble = "[Version]\n  pebble_version=0.1\n[Options]\n  bytes_per_sync=524288\n";
    let warnings = warnings_of_recycled_logs(pebble);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(!warnings[0].contains("recycle_log_file_num"), "{warnings:#?}");
}

#[test]
fn a_named_directory_without_a_log_is_reported() {
    let dir = disk_dir();
    std::fs::write(dir.path().join("passwd"), "").unwrap();
    let options = Options {
        find: false,
        directories: vec![dir.path().to_owned()],
        profile: Some("mariadb".to_owned()),
        ..Options::default()
    };
    let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
    let mut said = Vec::new();
    (0..2).for_each(|_| guard.tick(&mut |event| said.push(event.clone())));
    let is_said = |event: &&Event| matches!(event, Event::Warning { warning, .. } if warning.contains("no file in it has a name of a log"));
    assert_eq!(said.iter().filter(is_said).count(), 1, "{said:#?}");
}

#[test]
fn logs_of_an_unknown_form_are_reported_once_by_name() {
    let dir = disk_dir();
    let touch = |name: &str| std::fs::write(dir.path().join(name), "Tape: no redo log of today").unwrap();
    for name in ["ib_logfile0", "ib_000000000000c000.log", "binlog-000001.ibb", "binlog-000002.ibb"] {
        touch(name);
    }
    let options = Options {
        find: false,
        directories: vec![dir.path().to_owned()],
        profile: Some("mariadb".to_owned()),
        dry_run: true,
        ..Options::default()
    };
    let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
    let mut said = Vec::new();
    for number in 3..6 {
        guard.tick(&mut |event| {
            if let Event::Warning { path, warning } = event
                && warning.contains("unknown form")
            {
                said.push((path.file_name().unwrap().to_str().unwrap().to_owned(), warning.clone()));
            }
        });
        touch(&format!("binlog-{number:06}.ibb"));
        touch(&format!("ib_00000000000{number}c000.log"));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(said.len(), 3, "{said:#?}");
    assert!(said.iter().any(|(name, text)| name == "ib_logfile0" && text.contains("format 0x54617065")));
    assert!(said.iter().any(|(name, text)| name == "ib_000000000000c000.log" && text.contains("ib_{h}.log")));
    assert!(said.iter().any(|(name, text)| name.starts_with("binlog-") && text.contains("\"*-{n}.ibb\"")));
}

#[test]
fn a_named_process_without_a_log_is_reported() {
    let options = Options {
        find: false,
        pids: vec![std::process::id()],
        profile: Some("mongodb".to_owned()),
        profiles: vec![pagekeeper_catalog::Profile::parse(
            "name = \"mongodb\"\n[[log]]\nclass = \"wal\"\nfiles = \"nobody-has-this.{n}\"\nrule = \"keep\"\n",
            std::path::Path::new("own.toml"),
        )
        .unwrap()],
        ..Options::default()
    };
    let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
    let mut said = Vec::new();
    (0..3).for_each(|_| guard.tick(&mut |event| said.push(event.clone())));
    let is_said = |event: &&Event| matches!(event, Event::Warning { warning, .. } if warning.contains("has no file open whose name is a log's"));
    assert_eq!(said.iter().filter(is_said).count(), 1, "{said:#?}");
}

#[test]
fn a_named_process_that_does_not_exist_is_reported() {
    // Above every process id that a kernel assigns.
    let pid = 1 << 30;
    for profile in [None, Some("generic"), Some("mariadb")] {
        let profile = profile.map(str::to_owned);
        let options = Options { find: false, pids: vec![pid], profile, ..Options::default() };
        let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
        let mut said = Vec::new();
        (0..2).for_each(|_| guard.tick(&mut |event| said.push(event.clone())));
        let is_said = |event: &&Event| matches!(event, Event::Problem { problem, .. } if *problem == format!("there is no process {pid}"));
        assert_eq!(said.iter().filter(is_said).count(), 1, "{said:#?}");
        assert!(guard.is_done());
    }
}

#[test]
fn decisions_are_left_to_the_caller() {
    let dir = disk_dir();
    let path = dir.path().canonicalize().unwrap();
    let name = |number: u64| path.join(format!("binlog.{number:06}"));
    std::fs::write(path.join("binlog.index"), "").unwrap();
    for number in 1..=2 {
        std::fs::write(name(number), vec![1; 1 << 20]).unwrap();
        std::fs::File::open(name(number)).unwrap().sync_all().unwrap();
    }
    let options = Options {
        find: false,
        directories: vec![path.clone()],
        profile: Some("generic".to_owned()),
        ..Options::default()
    };
    let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
    let first = InspectedFile::open(name(1), Links::Refuse).unwrap();
    let mut found = Vec::new();
    let decision = guard.decide(&mut |event| {
        if let Event::Found { directories, .. } = event {
            found.extend(directories.clone());
        }
    });
    assert_eq!((found, guard.watched_files().count()), (vec![path.clone()], 2));
    let [act] = &decision.acts[..] else { panic!("{decision:?}") };
    assert_eq!((&act.path, act.inode, act.action), (&name(1), first.inode(), Action::Release));
    assert_eq!((act.range.clone(), act.class), (0..1 << 20, FileClass::Binlog));
    assert!(matches!(act.rule, Rule::ReleaseBehindFollowers { .. }), "{act:?}");
    assert_eq!(residency(&first, 0..u64::MAX).unwrap().resident, 1 << 20);
    assert_eq!(guard.decide(&mut |_| {}), Decision::default(), "it is taken to be done");
}

#[test]
fn leftover_pages_are_released_on_every_disk_and_warned_of_where_they_cost() {
    let dir = disk_dir();
    let path = dir.path().canonicalize().unwrap();
    let name = path.join("redo.1");
    let profile = path.join("own.toml");
    let text = "name = \"own\"\n[[log]]\nclass = \"redo\"\nfiles = \"redo.{n}\"\nrule = \"direct\"\n";
    std::fs::write(&profile, text).unwrap();
    let Some(file_system_id) = pagekeeper_kernel::file_system_id(&path).unwrap() else {
        eprintln!("SKIPPED: this file system has no number");
        return;
    };
    let mounts = ProcRoot::default().own_mounts().unwrap();
    let fits = |mount: &&pagekeeper_kernel::process::Mount| path.starts_with(&mount.point);
    let mount = mounts.iter().filter(fits).max_by_key(|mount| mount.point.as_os_str().len()).unwrap();
    let disk = |leftover_read| DiskProfile {
        file_system: mount.kind.clone(),
        file_system_id: file_system_id.clone(),
        mixed: Some(MixedProfile { leftover_read, leftover_write: leftover_read, ..MixedProfile::default() }),
        ..DiskProfile::default()
    };
    let foreign = DiskProfile { file_system_id: "0123456789abcdef".to_owned(), ..disk(Some(1.0)) };
    for (disk, warned) in [
        (disk(None), Some("maps it")),
        (disk(Some(0.2)), Some("20 % of its rate")),
        (disk(Some(1.0)), None),
        // A measurement of another disk: unless this machine has been measured, nothing is known.
        (foreign, Some("maps it")),
    ] {
        if disk.file_system_id != file_system_id
            && pagekeeper_catalog::disks::of(&[], &path).is_ok_and(|saved| saved.is_some())
        {
            continue;
        }
        std::fs::write(&name, vec![1; 1 << 20]).unwrap();
        std::fs::File::open(&name).unwrap().sync_all().unwrap();
        let options = Options {
            find: false,
            directories: vec![path.clone()],
            profile: Some("own".to_owned()),
            profiles: vec![pagekeeper_catalog::Profile::read(&profile).unwrap()],
            disk_profiles: vec![disk],
            ..Options::default()
        };
        let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
        let mut warnings = Vec::new();
        guard.tick(&mut |event| {
            if let Event::Warning { warning, .. } = event {
                warnings.push(warning.clone());
            }
        });
        assert_eq!(guard.summary().released_total_bytes, 1 << 20);
        match warned {
            Some(text) => assert!(warnings.len() == 1 && warnings[0].contains(text), "{warnings:?}"),
            None => assert!(warnings.is_empty(), "{warnings:?}"),
        }
    }
}

#[test]
fn two_databases_with_the_same_path_are_warned_of_each() {
    let path = std::path::PathBuf::from("/var/lib/mysql");
    let profile = Arc::new(pagekeeper_catalog::Profile::built_in().remove(0));
    let now = Instant::now();
    let (mut watched, mut report) = (WatchList::new(ProcRoot::default(), now), Report::new(now));
    // Each in a mount namespace of its own.
    for pid in [10, 11] {
        let ownership = FileOwnership::Process(Arc::default());
        let profile = Arc::clone(&profile);
        let directory = Directory::new(path.clone(), Some(pid), Some(pid), profile, ownership);
        watched.directories.push(Box::new(directory));
    }
    let settings = Settings::new(Options { find: false, ..Options::default() }).unwrap();
    let mut warn = |watched: &mut WatchList, directory| {
        let warning = FileWarning {
            path: path.join("ib_logfile0"),
            inode: Inode { dev: 1, ino: 1 },
            warning: pagekeeper_policy::LogWarning::RecycledSubPages,
            text: "it is kept".to_owned(),
            directory,
        };
        let decision = Decision { warnings: vec![warning], ..Decision::default() };
        carry_out(decision, watched, &settings, &mut report);
        report.events.drain(..).count()
    };
    assert_eq!(warn(&mut watched, 0), 1);
    assert_eq!(warn(&mut watched, 1), 1, "it is another's, whoever has the same path");
    assert_eq!((warn(&mut watched, 0), warn(&mut watched, 1)), (0, 0), "once each");
    *watched.directories[1] = watched.directories[1].without_files();
    assert_eq!(warn(&mut watched, 1), 1, "a database that was started again is warned of again");
}
