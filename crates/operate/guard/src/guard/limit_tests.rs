//! Tests of limits, and of jobs that do not come back.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagekeeper_kernel::ExpectedFile;
use pagekeeper_kernel::process::{AccessMode, ProcRoot};
use pagekeeper_policy::WindowFacts;
use pagekeeper_policy::quota::DIRECTORIES_PER_DATABASE;
use pagekeeper_policy::turns::Slice;
use pagekeeper_testing::{HangingMount, disk_dir};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Guard;
use super::carry_out::carry_out;
use super::claim_tests::{Watch, scratch};
use crate::budget::Turn;
use crate::config::Options;
use crate::descriptors::{Descriptor, FilesInUse};
use crate::directory::{DatabaseKey, Directories, Directory};
use crate::event::Event;
use crate::sample::WindowRoom;

/// A process holds a log open in each of more directories than are watched per database.
#[test]
fn directories_above_the_limit_are_left_out_and_reported_once() {
    let Some(scratch) = scratch("a database of very many directories") else { return };
    let wanted = DIRECTORIES_PER_DATABASE + 40;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 2 * wanted as u64) {
        return pagekeeper_testing::skip(format_args!("this process may have no {} descriptors", 2 * wanted));
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let held: Vec<File> = (0..wanted)
        .map(|number| {
            let directory = scratch.path().join(number.to_string());
            std::fs::create_dir(&directory).unwrap();
            let log = File::create_new(directory.join("ib_logfile0")).unwrap();
            fcntl_setfd(&log, FdFlags::empty()).unwrap();
            log
        })
        .collect();
    let program = scratch.path().join("mariadbd");
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig=KILL", "--"])
        .arg(&program)
        .arg("600")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(held);
    let mut watch = Watch::with(Options { find: false, pids: vec![child.id()], ..Options::default() });
    let began = Instant::now();
    while watch.guard.watched.directories.len() < DIRECTORIES_PER_DATABASE
        && began.elapsed() < Duration::from_secs(120)
    {
        watch.tick();
    }
    // Its descriptors are listed for all new directories together, not for each of them.
    let listed = watch.guard.watched.databases[0].descriptors.schedule.ended;
    watch.tick_past_listing();
    let watched = watch.guard.watched.directories.len();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(watched, DIRECTORIES_PER_DATABASE);
    assert!((1..DIRECTORIES_PER_DATABASE / 20).contains(&listed), "{listed} listings");
    let reports = watch.reports.iter().filter(|said| said.contains("InPart") && said.contains("Directories"));
    assert_eq!(reports.count(), 1, "{:#?}", watch.reports);
}

/// Returns a guard on directories with logs that may be released.
fn guard_on(directories: &[&tempfile::TempDir]) -> Guard {
    for directory in directories {
        std::fs::write(directory.path().join("binlog.index"), "").unwrap();
        for number in 1..=2 {
            let log = directory.path().join(format!("binlog.{number:06}"));
            std::fs::write(&log, vec![1; 4 << 20]).unwrap();
            File::open(&log).unwrap().sync_all().unwrap();
        }
    }
    let options = Options {
        find: false,
        directories: directories.iter().map(|dir| dir.path().canonicalize().unwrap()).collect(),
        profile: Some("generic".to_owned()),
        ..Options::default()
    };
    Guard::new(options, ProcRoot::default()).unwrap()
}

fn take(guard: &mut Guard) -> (DatabaseKey, Directories) {
    let directory = guard.watched.directories.remove(0);
    (directory.database(), vec![directory])
}

#[test]
fn a_job_that_fails_late_is_reported_and_its_database_is_found_again() {
    let dir = disk_dir();
    let mut guard = guard_on(&[&dir]);
    guard.tick(&mut |_| {});
    let (key, own) = take(&mut guard);
    let fails = Box::new(|_: &mut Directories, _: &_| {
        std::thread::sleep(Duration::from_secs(3));
        panic!("like a failing job");
    });
    assert!(guard.watched.jobs.attempt::<()>(&key, own, fails).is_none());
    assert_eq!((guard.watched.directories.len(), guard.watched.jobs.hung_databases()), (0, 1));
    let mut said = Vec::new();
    let began = Instant::now();
    while guard.watched.directories.is_empty() && began.elapsed() < Duration::from_secs(60) {
        guard.tick(&mut |event| said.push(event.clone()));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((guard.watched.directories.len(), guard.watched.jobs.hung_databases()), (1, 0));
    let failed =
        |event: &Event| matches!(event, Event::Problem { problem, .. } if problem.contains("failed"));
    assert_eq!(said.iter().filter(|event| failed(event)).count(), 1, "{said:#?}");
}

#[test]
fn decisions_for_a_hung_database_are_not_counted_as_done() {
    let (hangs, beside) = (disk_dir(), disk_dir());
    let mut guard = guard_on(&[&hangs, &beside]);
    let (facts, _) = guard.sample(false, Instant::now());
    assert!(facts.resident() > 0, "nothing to release");
    let (key, own) = take(&mut guard);
    let (answer, question) = std::sync::mpsc::channel::<()>();
    let waits = Box::new(move |_: &mut Directories, _: &_| question.recv().unwrap_or(()));
    assert!(guard.watched.jobs.attempt(&key, own, waits).is_none());
    let decision = guard.decider.decide(&facts, &mut guard.watched, &guard.settings);
    let decided = decision.acts.len();
    assert!(decided > 0, "nothing was decided");
    let done = carry_out(decision, &mut guard.watched, &guard.settings, &mut guard.report);
    assert_eq!(
        (done.released, done.not_done.len()),
        (0, decided),
        "on the same device as the hung directory"
    );
    drop(answer);
}

#[test]
fn a_hung_job_is_known_by_the_device_of_its_directory() {
    let (hangs, beside) = (disk_dir(), disk_dir());
    let Ok(other_device) = tempfile::tempdir_in("/dev/shm") else {
        return pagekeeper_testing::skip("another file system at /dev/shm");
    };
    let mut guard = guard_on(&[&hangs, &beside, &other_device]);
    guard.tick(&mut |_| {});
    let on = |guard: &Guard, dir: &tempfile::TempDir| {
        let path = dir.path().canonicalize().unwrap();
        guard.watched.directories.iter().position(|directory| directory.path == path).unwrap()
    };
    // One database has a directory on each device, and hangs at the second.
    let second = on(&guard, &other_device);
    let second = guard.watched.directories.remove(second);
    let (key, mut own) = take(&mut guard);
    own.push(second);
    let (answer, question) = std::sync::mpsc::channel::<()>();
    let waits = Box::new(move |_: &mut Directories, place: &super::jobs::JobPlace| {
        place.at(1);
        question.recv().unwrap_or(());
    });
    assert!(guard.watched.jobs.attempt(&key, own, waits).is_none());
    let mut served = 0;
    let watched = &mut guard.watched;
    watched.jobs.serve::<()>(
        &mut watched.directories,
        |_, _, _, _| {
            served += 1;
            None
        },
        |_, _, _, ()| {},
    );
    assert_eq!(served, 1, "the other directory is on a file system that answers");
    drop(answer);
}

#[test]
fn a_warning_does_not_wait_for_a_file_system_that_does_not_answer() {
    let has_bindfs = Command::new("bindfs").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !rustix::process::geteuid().is_root() || !has_bindfs {
        return pagekeeper_testing::skip("a warning of a file system that hangs: it needs root and bindfs");
    }
    let (scratch, below) = (disk_dir(), disk_dir());
    let point = scratch.path().canonicalize().unwrap().join("point");
    let (profile, log) = (scratch.path().join("own.toml"), below.path().join("redo.1"));
    let text = "name = \"own\"\n[[log]]\nclass = \"redo\"\nfiles = \"redo.{n}\"\nrule = \"direct\"\n";
    std::fs::write(&profile, text).unwrap();
    std::fs::write(&log, vec![1; 1 << 20]).unwrap();
    let hanging = HangingMount::mount(below.path(), &point, "redo.1");
    let options = Options {
        find: false,
        directories: vec![point],
        profile: Some("own".to_owned()),
        profiles: vec![pagekeeper_catalog::Profile::read(&profile).unwrap()],
        dry_run: true,
        ..Options::default()
    };
    let (give, take) = std::sync::mpsc::channel();
    let decision = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
            guard.sample(false, Instant::now());
            // FUSE forgets a file's pages when the file is reopened, as by the guard.
            let window = WindowFacts { start: 0, end: 1 << 20, resident: 1 << 20, unwritten: 0 };
            for directory in &mut guard.watched.directories {
                directory.touch();
                let entries = directory.entries.values_mut();
                entries.for_each(|entry| entry.sample.replace(&(0..1 << 20), vec![window.clone()]));
            }
            hanging.stop();
            let facts =
                guard.decider.facts(&mut guard.watched, &guard.settings, &mut guard.report, Instant::now());
            give.send(guard.decider.decide(&facts, &mut guard.watched, &guard.settings)).unwrap();
        });
        let decision = take.recv_timeout(Duration::from_secs(60));
        hanging.go_on();
        decision
    });
    let decision = decision.expect("it waits for the file system");
    assert_eq!(decision.warnings.len(), 1, "{decision:?}");
}

#[test]
fn an_idle_reader_elsewhere_has_not_moved_when_it_is_listed_again() {
    let dir = disk_dir();
    let mut guard = guard_on(&[&dir]);
    let log = File::open(dir.path().join("binlog.000001")).unwrap();
    let mut reader = Command::new("sleep").arg("600").stdin(log).spawn().unwrap();
    let (now, mut moved) = (Instant::now(), Vec::<Vec<bool>>::new());
    for tick in 0..1000 {
        guard.sample(false, now + tick * Duration::from_secs(20));
        let others = &guard.watched.others;
        moved.push(others.known().map(|descriptor| descriptor.moved).collect());
        if others.schedule.ended == 4 {
            break;
        }
    }
    reader.kill().unwrap();
    reader.wait().unwrap();
    let first = moved.iter().position(|moved| !moved.is_empty()).expect("it is not seen");
    assert_eq!((moved[first].as_slice(), guard.watched.others.schedule.ended), (&[true][..], 4));
    assert!(moved[first + 1..].iter().all(|moved| moved == &[false]), "{moved:?}");
}

#[test]
fn readers_of_wal_are_seen_as_long_as_their_database_may_release_pages() {
    let dir = disk_dir();
    let path = dir.path().canonicalize().unwrap().join("pg_wal");
    let note = path.join("archive_status/000000010000000000000002.ready");
    std::fs::create_dir_all(note.parent().unwrap()).unwrap();
    for number in 1..=3 {
        let segment = path.join(format!("00000001000000000000000{number}"));
        std::fs::write(&segment, vec![1; 2 << 20]).unwrap();
        File::open(&segment).unwrap().sync_all().unwrap();
    }
    let profile = Some("postgresql".to_owned());
    let options = Options { find: false, directories: vec![path], profile, ..Options::default() };
    let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
    let now = Instant::now();
    assert_eq!(guard.sample(false, now).0.followers, []);
    let key = guard.watched.directories[0].database();
    let sample_in_debt = |guard: &mut Guard, debt: Duration, at: Duration| {
        let turns = &mut guard.watched.jobs.turns;
        while let Some(slice) = turns.slice(&key) {
            turns.spend(&key, slice.cpu);
        }
        turns.spend(&key, debt);
        let (facts, _) = guard.sample(false, now + at);
        assert!(guard.watched.jobs.turns.slice(&key).is_none());
        facts.followers.len()
    };
    std::fs::write(&note, "").unwrap();
    let second = Duration::from_secs(1);
    assert_eq!(sample_in_debt(&mut guard, Duration::from_millis(40), second), 1);
    std::fs::remove_file(&note).unwrap();
    // Nothing is read or released now.
    assert_eq!(sample_in_debt(&mut guard, second, 2 * second), 1);
    assert!(guard.watched.jobs.turns.slice_on_account(&key).is_none());
}

/// Samples the files of a directory that are due at a tick, and returns their names.
fn sampled(directory: &mut Directory, in_use: &FilesInUse) -> Vec<OsString> {
    let found = directory.find(&ProcRoot::default()).unwrap();
    let endless = Duration::from_secs(3600);
    let turn = Turn::begin(Slice { cpu: endless, wall: endless });
    let mut room = WindowRoom { left: usize::MAX, least: 1 };
    let mut names = Vec::new();
    if !directory.begin_tick(in_use) {
        return names;
    }
    loop {
        let mut due = directory.due();
        if due.is_empty() {
            return names;
        }
        names.extend(due.iter().map(|due| due.name.clone()));
        directory.take_unchanged(&mut due);
        directory.sample(found.as_fd(), due, &mut room, &turn, |_, error| panic!("{error}"));
    }
}

#[test]
fn a_turn_takes_only_as_many_due_files_as_it_has_time_for() {
    let dir = disk_dir();
    for number in 3..=600 {
        File::create_new(dir.path().join(format!("binlog.{number:06}"))).unwrap();
    }
    let mut guard = guard_on(&[&dir]);
    while guard.watched.directories[0].entries.len() < 600 {
        guard.tick(&mut |_| {});
    }
    let directory = &mut guard.watched.directories[0];
    directory.came_back();
    while !sampled(directory, &FilesInUse::default()).is_empty() || directory.has_more_due() {}
    directory.came_back();
    // If a turn has no time for them, the next one begins with the first.
    assert!(directory.begin_tick(&FilesInUse::default()) && directory.begin_tick(&FilesInUse::default()));
    let first = directory.due();
    assert!(first.len() < 300 && directory.has_more_due(), "{}", first.len());
    // A turn that is over as it begins has time for one file.
    let found = directory.find(&ProcRoot::default()).unwrap();
    let over = Turn::begin(Slice { cpu: Duration::ZERO, wall: Duration::ZERO });
    let mut room = WindowRoom { left: usize::MAX, least: 1 };
    directory.sample(found.as_fd(), first, &mut room, &over, |_, error| panic!("{error}"));
    // All others follow, each once.
    let mut names = sampled(directory, &FilesInUse::default());
    assert_eq!(names.first().unwrap(), "binlog.000002");
    assert!(!directory.has_more_due());
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!((all, names.len()), (599, 599));
}

#[test]
fn idle_logs_of_a_process_with_very_many_are_sampled_rarely() {
    let dir = disk_dir();
    let mut guard = guard_on(&[&dir]);
    guard.tick(&mut |_| {});
    let directory = &mut guard.watched.directories[0];
    let samples = |directory: &mut Directory, moved: bool| {
        let files: Vec<_> = directory.entries.values().map(|entry| entry.id).collect();
        let at = |number: usize, file| Descriptor {
            pid: 1,
            fd: i32::try_from(number).unwrap(),
            file,
            directory: directory.id,
            shown_inode: None,
            inode: directory.entries.values().next().unwrap().inode,
            access: AccessMode::WriteOnly,
            position: 0,
            moved,
            lively: moved,
        };
        let descriptors: Vec<_> = (0..100).map(|number| at(number, files[number % files.len()])).collect();
        let mut in_use = FilesInUse::default();
        in_use.add(&descriptors);
        sampled(directory, &in_use).len()
    };
    let moving: usize = (0..64).map(|_| samples(directory, true)).sum();
    assert_eq!(moving, 2 * 64, "two logs at each tick");
    let resting: usize = (0..64).map(|_| samples(directory, false)).sum();
    assert!((16..=40).contains(&resting), "{resting}");
    assert_eq!(samples(directory, true), 2, "at once when they move");
}

#[test]
fn released_logs_of_a_database_with_many_are_sampled_very_rarely() {
    let dir = disk_dir();
    let mut guard = guard_on(&[&dir]);
    guard.tick(&mut |_| {});
    guard.tick(&mut |_| {});
    let directory = &mut guard.watched.directories[0];
    let samples = |directory: &mut Directory, ticks: usize| -> usize {
        let all = (0..ticks).flat_map(|_| sampled(directory, &FilesInUse::default()));
        all.filter(|name| name == "binlog.000001").count()
    };
    directory.of_database_with(10, true);
    samples(directory, 200);
    assert_eq!(samples(directory, 512), 16, "nothing is resident of it, and it is one of few");
    directory.of_database_with(10_000, true);
    samples(directory, 200);
    assert_eq!(samples(directory, 512), 4);
}

#[test]
fn pages_of_an_idle_log_among_many_are_counted_in_every_fourth_sample() {
    let dir = disk_dir();
    let mut guard = guard_on(&[&dir]);
    guard.tick(&mut |_| {});
    let directory = &mut guard.watched.directories[0];
    let name = OsStr::new("binlog.000002");
    // Returns in how many of `samples` samples its pages were counted, and the last count.
    let sample = |directory: &mut Directory, samples: usize| -> (usize, u64) {
        let mut counted = 0;
        for _ in 0..samples {
            while !sampled(directory, &FilesInUse::default()).iter().any(|found| found == name) {}
            counted += usize::from(directory.entries[name].schedule.is_counted());
        }
        (counted, directory.entries[name].sample.resident)
    };
    let log = File::options().append(true).open(dir.path().join(name)).unwrap();
    let size = log.metadata().unwrap().len();
    directory.of_database_with(10, true);
    sample(directory, 20);
    assert_eq!(sample(directory, 8), (8, size), "one of few");
    directory.of_database_with(10_000, true);
    assert_eq!(sample(directory, 8), (2, size));
    // Only its pages show that.
    rustix::fs::fadvise(&log, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert_eq!(sample(directory, 4), (1, 0));
    assert_eq!(sample(directory, 8), (2, 0), "few pages are not counted more often");
    while !directory.entries[name].schedule.is_counted() {
        sample(directory, 1);
    }
    std::io::Write::write_all(&mut &log, &[1; 4096]).unwrap();
    let (counted, resident) = sample(directory, 1);
    assert_eq!((counted, resident > 0), (1, true), "a change shows in the next");
}

#[test]
fn an_idle_directory_is_sampled_for_a_requested_log() {
    let dir = disk_dir();
    let mut guard = guard_on(&[&dir]);
    guard.tick(&mut |_| {});
    let directory = &mut guard.watched.directories[0];
    let tick = |directory: &mut Directory| sampled(directory, &FilesInUse::default());
    (0..200).for_each(|_| drop(tick(directory)));
    while !tick(directory).is_empty() {}
    let second = directory.entries["binlog.000002".as_ref() as &OsStr].id;
    directory.sample_now(|entry| entry.id == second);
    // The other file may be due just then.
    assert!(tick(directory).contains(&"binlog.000002".into()));
    while !tick(directory).is_empty() {}
    directory.came_back();
    assert_eq!(tick(directory), ["binlog.000001", "binlog.000002"]);
}

#[test]
fn a_new_empty_log_of_a_database_with_many_is_sampled_soon() {
    let dir = disk_dir();
    let mut guard = guard_on(&[&dir]);
    for new in ["binlog.000003", "binlog.000004"] {
        File::create_new(dir.path().join(new)).unwrap();
    }
    let directory = &mut guard.watched.directories[0];
    let endless = Duration::from_secs(3600);
    let turn = Turn::begin(Slice { cpu: endless, wall: endless });
    let found = directory.find(&ProcRoot::default()).unwrap();
    let fd = found.open_directory(ExpectedFile::Any).unwrap();
    assert!(directory.begin_listing(100, Instant::now()));
    assert_eq!(directory.list(fd.as_fd(), &turn).unwrap().grown.len(), 1);
    let samples = |directory: &mut Directory, ticks: usize| -> [usize; 2] {
        let mut counts = [0; 2];
        for _ in 0..ticks {
            let names = sampled(directory, &FilesInUse::default());
            for (count, wanted) in counts.iter_mut().zip(["binlog.000003", "binlog.000004"]) {
                *count += names.iter().filter(|name| *name == wanted).count();
            }
        }
        counts
    };
    directory.of_database_with(10_000, true);
    let soon = samples(directory, 32);
    assert!(soon.iter().all(|count| *count >= 5), "its first pages are seen soon: {soon:?}");
    samples(directory, 400);
    assert_eq!(samples(directory, 512), [4, 16], "the last file of a log is where its writer continues");
    directory.of_database_with(10_000, false);
    samples(directory, 400);
    assert_eq!(samples(directory, 512), [16, 16], "opening it would not be noticed");
}
