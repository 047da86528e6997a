//! Tests of snapshots of real files and processes.

#[cfg(test)]
pub(crate) mod limit_tests;

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::Error;
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_policy::FileClass;
use pagekeeper_testing::OpenCounter;

use crate::testing::{HoldingProcess, as_nobody, disk_dir, open_direct, skip};
use crate::{
    DirectoryFilter, ObserveError, Observer, ObserverOptions, ObserverScope, Opener, OpenerKind, Snapshot,
};

fn snapshot(scope: ObserverScope) -> Snapshot {
    Observer::start(ObserverOptions { scope, ..ObserverOptions::default() }).unwrap().snapshot().unwrap()
}

pub(crate) fn file<'a>(snapshot: &'a Snapshot, path: &Path) -> &'a crate::File {
    let mut found = snapshot.files.iter().filter(|file| file.path == path);
    let file = found.next().unwrap_or_else(|| panic!("{} is listed: {snapshot:#?}", path.display()));
    assert!(found.next().is_none(), "{} is listed once", path.display());
    file
}

pub(crate) fn write(path: &Path, len: usize) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, vec![7; len]).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

/// Makes a directory as RocksDB leaves it.
fn rocksdb_dir() -> (tempfile::TempDir, PathBuf) {
    let dir = disk_dir();
    let base = dir.path().join("data");
    write(&base.join("MANIFEST-000004"), 100);
    write(&base.join("000005.log"), 64 << 10);
    write(&base.join("000006.sst"), 1 << 20);
    write(&base.join("deep/er/000007.sst"), 4096);
    write(&base.join("LOG"), 10);
    (dir, base)
}

fn kinds(openers: &[Opener], pid: u32) -> Vec<OpenerKind> {
    openers.iter().filter(|opener| opener.pid == pid).map(|opener| opener.kind).collect()
}

#[test]
fn a_database_is_found_with_its_files_and_their_openers() {
    let (dir, base) = rocksdb_dir();
    let Some(direct) = open_direct(&base.join("000006.sst")) else { return };
    // The database, whose name is its program's.
    let database = HoldingProcess::start(
        &dir.path().join("own-service"),
        File::open(base.join("MANIFEST-000004")).unwrap(),
        File::options().append(true).open(base.join("000005.log")).unwrap(),
    );
    // A backup beside it, and a process that maps one of the files.
    let backup = HoldingProcess::start(
        &dir.path().join("backup"),
        direct,
        File::open(base.join("000005.log")).unwrap(),
    );
    let mapped = base.join("000008.sst");
    let null = || File::options().read(true).write(true).open("/dev/null").unwrap();
    let runner = HoldingProcess::start(&mapped, null(), null());
    let seen = snapshot(ObserverScope::All);
    let index = seen.databases.iter().position(|found| found.pid == Some(database.pid())).unwrap();
    let found = &seen.databases[index];
    assert_eq!((found.name.as_str(), found.profile.name.as_str()), ("own-service", "rocksdb"));
    assert_eq!(found.directories, [base.as_path()]);
    assert_eq!(found.command_line[1], "1000");
    assert!(found.uptime.unwrap().as_secs() < 1000);
    assert!(!seen.databases.iter().any(|found| found.pid == Some(backup.pid())));

    let log = file(&seen, &base.join("000005.log"));
    assert_eq!((log.database, log.class, log.size), (Some(index), Some(FileClass::Wal), 64 << 10));
    assert_eq!(kinds(&log.openers, database.pid()), [OpenerKind::Buffered(AccessMode::WriteOnly)]);
    assert_eq!(kinds(&log.openers, backup.pid()), [OpenerKind::Buffered(AccessMode::ReadOnly)]);
    assert_eq!(log.openers.iter().find(|opener| opener.pid == backup.pid()).unwrap().name, "backup");
    let table = file(&seen, &base.join("000006.sst"));
    assert_eq!(kinds(&table.openers, backup.pid()), [OpenerKind::Direct(AccessMode::ReadOnly)]);
    assert_eq!(table.class, Some(FileClass::Data));
    assert!(table.residency.unwrap().resident <= 1 << 20);
    let program = file(&seen, &mapped);
    let of_runner = program.openers.iter().find(|opener| opener.pid == runner.pid()).unwrap();
    assert_eq!(of_runner.kind, OpenerKind::Mapped { writable: false });
    assert!(of_runner.count > 1, "a program is mapped in several pieces");
    assert_eq!(file(&seen, &base.join("deep/er/000007.sst")).class, Some(FileClass::Data));
    assert_eq!(file(&seen, &base.join("LOG")).class, Some(FileClass::Text));
    assert!(seen.host.devices.is_sorted_by_key(|(dev, _)| *dev));
}

#[test]
fn a_process_that_has_ended_is_no_database_though_its_parent_does_not_know() {
    let dir = disk_dir();
    let program = dir.path().join("mariadbd");
    let null = || File::options().read(true).write(true).open("/dev/null").unwrap();
    let holder = HoldingProcess::start(&program, null(), null());
    let pid = holder.pid();
    let mut named = Observer::start(ObserverOptions {
        scope: ObserverScope::Pids(vec![pid]),
        ..ObserverOptions::default()
    })
    .unwrap();
    assert_eq!(named.snapshot().unwrap().databases.len(), 1);
    let is_database = || snapshot(ObserverScope::All).databases.iter().any(|found| found.pid == Some(pid));
    assert!(is_database());
    let process = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    let began = std::time::Instant::now();
    while pagekeeper_kernel::process::ProcRoot::default().stat(pid).unwrap().state != 'Z' {
        assert!(began.elapsed().as_secs() < 60, "it ends");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(!is_database());
    let seen = named.snapshot().unwrap();
    assert!(seen.databases.is_empty());
    assert!(seen.visibility_gaps.iter().any(|gap| gap.why == "it has ended"), "{:?}", seen.visibility_gaps);
    let failed = Observer::start(ObserverOptions {
        scope: ObserverScope::Pids(vec![pid]),
        ..ObserverOptions::default()
    })
    .unwrap()
    .snapshot();
    assert!(matches!(failed, Err(ObserveError::NoProcess { .. })), "{failed:?}");
}

#[test]
fn a_fake_that_claimed_a_servers_directory_first_is_not_its_database() {
    let dir = disk_dir();
    let (data, redo) = (dir.path().join("data"), dir.path().join("data/ib_logfile0"));
    write(&redo, 8192);
    // A file that only mongod holds, by which the directory above would be its own.
    let journal = data.join("journal/WiredTigerLog.0000000001");
    write(&journal, 8192);
    let reads = || File::open(&journal).unwrap();
    let fake = HoldingProcess::start(&dir.path().join("mongod"), reads(), reads());
    let open = || File::options().read(true).write(true).open(&redo).unwrap();
    let server = HoldingProcess::start(&dir.path().join("mariadbd"), open(), open());
    assert!(fake.pid() < server.pid(), "else this shows nothing");
    for scope in [
        ObserverScope::All,
        ObserverScope::Pids(vec![fake.pid(), server.pid()]),
        ObserverScope::Directories(vec![data.clone()]),
    ] {
        let seen = snapshot(scope.clone());
        let of = file(&seen, &redo).database.map(|index| &seen.databases[index]);
        assert_eq!(of.and_then(|database| database.pid), Some(server.pid()), "{scope:?}: {seen:#?}");
        assert_eq!(of.map(|database| database.profile.name.as_str()), Some("mariadb"));
        let fakes = seen.databases.iter().filter(|database| database.pid == Some(fake.pid()));
        assert!(fakes.flat_map(|database| &database.directories).next().is_none(), "{seen:#?}");
        if !matches!(scope, ObserverScope::Directories(_)) {
            let winner = format!("process {} (mariadb) has the better claim", server.pid());
            assert!(seen.visibility_gaps.iter().any(|gap| gap.why.ends_with(&winner)), "{seen:#?}");
        }
    }
}

#[test]
fn a_named_process_need_be_no_database() {
    let dir = disk_dir();
    let path = dir.path().join("some.file");
    write(&path, 8192);
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let mut holder = HoldingProcess::start(&dir.path().join("program"), open(), open());
    let mut observer = Observer::start(ObserverOptions {
        scope: ObserverScope::Pids(vec![holder.pid()]),
        ..ObserverOptions::default()
    })
    .unwrap();
    let seen = observer.snapshot().unwrap();
    assert_eq!(seen.databases[0].profile.name, "generic");
    let found = file(&seen, &path);
    let opener = Opener {
        pid: holder.pid(),
        name: "program".into(),
        kind: OpenerKind::Buffered(AccessMode::ReadWrite),
        count: 2,
    };
    assert_eq!(found.openers, [opener]);
    assert_eq!((found.class, found.size, found.reach.as_path()), (None, 8192, path.as_path()));
    // Neither the program nor its libraries count as its files.
    assert_eq!(seen.files.iter().filter(|file| file.path.starts_with(dir.path())).count(), 1);

    std::fs::remove_file(&path).unwrap();
    let seen = observer.snapshot().unwrap();
    let deleted = file(&seen, &path);
    assert_eq!(deleted.open().unwrap().size(), 8192);
    assert_eq!((found.directory(), deleted.directory()), (Some(dir.path()), None));

    holder.end();
    let after = observer.snapshot().unwrap();
    assert!(after.databases.is_empty() && after.files.is_empty());
    assert!(after.visibility_gaps.iter().any(|gap| gap.why == "it has ended"), "{:?}", after.visibility_gaps);
    let options =
        ObserverOptions { scope: ObserverScope::Pids(vec![holder.pid()]), ..ObserverOptions::default() };
    let error = Observer::start(options).unwrap().snapshot().unwrap_err();
    assert!(matches!(error, ObserveError::NoProcess { pid } if pid == holder.pid()), "{error}");
}

#[test]
fn in_another_mount_namespace_files_are_reached_through_the_process() {
    if !rustix::process::geteuid().is_root() {
        skip("in_another_mount_namespace_files_are_reached_through_the_process: needs root");
        return;
    }
    let (_dir, base) = rocksdb_dir();
    let open = |name: &str| std::process::Stdio::from(File::open(base.join(name)).unwrap());
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sleep", "1000"]).stdin(open("MANIFEST-000004")).stdout(open("000005.log"));
    let holder = match command.spawn() {
        Ok(child) => HoldingProcess::of(child),
        Err(error) => return skip(format_args!("no unshare(1): {error}")),
    };
    let proc = pagekeeper_kernel::process::ProcRoot::default();
    let began = std::time::Instant::now();
    while proc.name(holder.pid()).unwrap() != "sleep" {
        if began.elapsed().as_secs() > 60 {
            return skip("no mount namespace of one's own may be made here");
        }
        std::thread::yield_now();
    }
    assert!(!proc.same_mount_namespace(holder.pid()).unwrap());
    let seen = snapshot(ObserverScope::Pids(vec![holder.pid()]));
    assert_eq!(seen.databases[0].directories, [base.as_path()]);
    let table = file(&seen, &base.join("000006.sst"));
    assert!(table.reach.starts_with(format!("/proc/{}/root", holder.pid())), "{}", table.reach.display());
    assert_eq!(table.open().unwrap().size(), table.size);
    assert_eq!(table.class, Some(FileClass::Data));
    assert!(table.residency.is_some());
    assert_eq!(kinds(&file(&seen, &base.join("000005.log")).openers, holder.pid()).len(), 1);
}

#[test]
fn a_file_under_a_mount_is_counted_and_opened_itself() {
    let what = "a_file_under_a_mount_is_counted_and_opened_itself";
    if !rustix::process::geteuid().is_root() {
        return skip(format_args!("{what}: needs root"));
    }
    let (dir, base) = rocksdb_dir();
    let (log, other) = (base.join("000005.log"), dir.path().join("other"));
    write(&other, 4 << 20);
    let ready = dir.path().join("ready");
    // In a mount namespace of its own; by then the process holds the log.
    let script = "mount --bind \"$1\" \"$2\" && touch \"$3\" && exec sleep 1000";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).args([&other, &log, &ready]);
    command.stdin(File::open(base.join("MANIFEST-000004")).unwrap());
    command.stdout(File::options().append(true).open(&log).unwrap());
    let holder = match command.spawn() {
        Ok(child) => HoldingProcess::of(child),
        Err(error) => return skip(format_args!("{what}: no unshare(1): {error}")),
    };
    let began = std::time::Instant::now();
    while !ready.exists() {
        if began.elapsed().as_secs() > 60 {
            return skip(format_args!("{what}: nothing can be mounted here"));
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let seen = snapshot(ObserverScope::Pids(vec![holder.pid()]));
    let at_the_name: Vec<_> = seen.files.iter().filter(|file| file.path == log).collect();
    let with_size = |size| at_the_name.iter().find(|file| file.size == size).copied();
    let (held, covers) = (with_size(64 << 10).unwrap(), with_size(4 << 20).unwrap());
    assert_eq!(kinds(&held.openers, holder.pid()), [OpenerKind::Buffered(AccessMode::WriteOnly)]);
    assert_eq!(kinds(&covers.openers, holder.pid()), []);
    for (file, size) in [(held, 64 << 10), (covers, 4 << 20)] {
        assert!(file.residency.unwrap().resident <= size);
        let opened = file.open().unwrap();
        assert_eq!((opened.inode(), opened.size()), (file.stat_inode, size));
    }
}

#[test]
fn a_directory_belongs_to_the_process_that_has_its_files_open() {
    let (dir, base) = rocksdb_dir();
    let named = || snapshot(ObserverScope::Directories(vec![base.clone()]));
    let alone = named();
    assert_eq!((alone.databases[0].pid, alone.databases[0].profile.name.as_str()), (None, "rocksdb"));
    assert_eq!(file(&alone, &base.join("000006.sst")).openers, []);
    assert_eq!(alone.files.len(), 5);

    let log = || File::open(base.join("000005.log")).unwrap();
    let reader = HoldingProcess::start(&dir.path().join("tail"), log(), log());
    let read = named();
    assert_eq!(read.databases[0].pid, None, "a reader is not an owner");
    assert_eq!(kinds(&file(&read, &base.join("000005.log")).openers, reader.pid()).len(), 1);

    let writer = File::options().append(true).open(base.join("000005.log")).unwrap();
    let owner = HoldingProcess::start(&dir.path().join("engine"), log(), writer);
    let written = named();
    assert_eq!((written.databases[0].pid, written.databases[0].name.as_str()), (Some(owner.pid()), "engine"));
    assert_eq!(written.files.len(), 5);

    // Two directories of one process are one database.
    let other = dir.path().join("other");
    write(&other.join("000001.log"), 10);
    let (first, second) = (
        File::options().append(true).open(base.join("000005.log")).unwrap(),
        File::options().append(true).open(other.join("000001.log")).unwrap(),
    );
    drop(owner);
    let both = HoldingProcess::start(&dir.path().join("engine"), first, second);
    let seen = snapshot(ObserverScope::Directories(vec![base.clone(), other.clone()]));
    assert_eq!(seen.databases.len(), 1);
    assert_eq!(seen.databases[0].pid, Some(both.pid()));
    assert_eq!(seen.databases[0].directories, [base, other]);
    assert!(seen.files.iter().all(|file| file.database == Some(0)));
}

#[test]
fn a_missing_directory_is_an_error() {
    let dir = disk_dir();
    for path in [dir.path().join("missing"), std::env::current_exe().unwrap()] {
        let options = ObserverOptions {
            scope: ObserverScope::Directories(vec![path.clone()]),
            ..ObserverOptions::default()
        };
        let error = Observer::start(options).unwrap().snapshot().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_directory_that_goes_away_between_snapshots_is_no_failure() {
    let (_dir, base) = rocksdb_dir();
    let scope = ObserverScope::Directories(vec![base.clone()]);
    let mut observer = Observer::start(ObserverOptions { scope, ..ObserverOptions::default() }).unwrap();
    assert_eq!(observer.snapshot().unwrap().files.len(), 5);
    std::fs::remove_dir_all(&base).unwrap();
    let after = observer.snapshot().unwrap();
    assert!(after.files.is_empty());
    assert!(after.visibility_gaps.iter().any(|gap| gap.what.contains(base.to_str().unwrap())));
}

#[test]
fn a_later_snapshot_reports_changed_and_new_files() {
    let (_dir, base) = rocksdb_dir();
    let mut observer = Observer::start(ObserverOptions {
        scope: ObserverScope::Directories(vec![base.clone()]),
        ..ObserverOptions::default()
    })
    .unwrap();
    let first = observer.snapshot().unwrap();
    assert!(first.change.is_none());
    write(&base.join("000009.sst"), 1 << 20);
    write(&base.join("000005.log"), 128 << 10);
    std::fs::remove_file(base.join("LOG")).unwrap();
    let second = observer.snapshot().unwrap();
    let change = second.change.unwrap();
    assert!(change.trace.is_none());
    assert!(change.machine.dirtied.unwrap() >= 1 << 20);
    let mut names: Vec<_> = second.files.iter().map(|file| file.path.file_name().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["000005.log", "000006.sst", "000007.sst", "000009.sst", "MANIFEST-000004"]);
    let size = |name: &str| second.files.iter().find(|file| file.path == base.join(name)).unwrap().size;
    assert_eq!((size("000009.sst"), size("000005.log")), (1 << 20, 128 << 10));
}

#[test]
fn files_are_named_as_tracing_names_them() {
    use pagekeeper_trace::{TraceLevel, TraceOptions};
    let (_dir, base) = rocksdb_dir();
    let mut observer = Observer::start(ObserverOptions {
        scope: ObserverScope::Directories(vec![base.clone()]),
        trace: Some(TraceOptions::default()),
        ..ObserverOptions::default()
    })
    .unwrap();
    if observer.source().unwrap().level() == TraceLevel::Counters {
        skip(format_args!("no events here: {}", observer.source().unwrap()));
        return;
    }
    observer.snapshot().unwrap();
    // The kernel skips a program while another one is running, and counts that: another tracer may
    // be at work here.
    for number in 10..30 {
        let name = format!("{number:06}.sst");
        write(&base.join(&name), 3 << 20);
        let seen = observer.snapshot().unwrap();
        let written = file(&seen, &base.join(&name));
        let trace = seen.change.as_ref().unwrap().trace.as_ref().unwrap();
        if trace.losses.skipped > 0 {
            continue;
        }
        let (_, flow) = trace.by_file().into_iter().find(|(file, _)| *file == written.inode).unwrap();
        assert_eq!(flow.added.bytes, 3 << 20);
        return;
    }
    panic!("events were skipped each time");
}

#[test]
fn an_ordinary_user_learns_which_right_would_show_more() {
    if !rustix::process::geteuid().is_root() {
        skip("an_ordinary_user_learns_which_right_would_show_more: needs root to become another");
        return;
    }
    let (dir, base) = rocksdb_dir();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(base.join("deep"), closed).unwrap();
    let holder = HoldingProcess::start(
        &dir.path().join("own-service"),
        File::open(base.join("MANIFEST-000004")).unwrap(),
        File::options().append(true).open(base.join("000005.log")).unwrap(),
    );
    let seen = as_nobody(|| snapshot(ObserverScope::Pids(vec![holder.pid()])));
    let needs = |seen: &Snapshot, what: &str| {
        let found = seen.visibility_gaps.iter().find(|gap| gap.what.contains(what));
        found.unwrap_or_else(|| panic!("{what}: {:#?}", seen.visibility_gaps)).needs.clone()
    };
    assert_eq!(needs(&seen, "open files of the database's process").as_deref(), Some("CAP_SYS_PTRACE"));
    assert_eq!((seen.databases[0].name.as_str(), seen.files.len()), ("own-service", 0));

    for ancestor in base.ancestors().skip(1).filter(|ancestor| ancestor.starts_with(dir.path())) {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(ancestor, open).unwrap();
    }
    if as_nobody(|| std::fs::read_dir(&base).is_err()) {
        skip("the rest of it: only root may read this directory");
        return;
    }
    let seen = as_nobody(|| snapshot(ObserverScope::Directories(vec![base.clone()])));
    let table = file(&seen, &base.join("000006.sst"));
    assert_eq!((table.residency, table.class), (None, Some(FileClass::Data)));
    assert_eq!(needs(&seen, "cached pages").as_deref(), Some("CAP_FOWNER"));
    assert_eq!(needs(&seen, "directory").as_deref(), Some("CAP_DAC_READ_SEARCH"));
    assert_eq!(needs(&seen, "open files of other processes").as_deref(), Some("CAP_SYS_PTRACE"));
}

#[test]
fn a_replacement_of_a_file_after_a_snapshot_is_not_opened() {
    let dir = disk_dir();
    let [data, secret, moved] = ["data", "secret", "moved"].map(|name| dir.path().join(name));
    let [path, hidden] = [&data, &secret].map(|directory| directory.join("table.ibd"));
    write(&path, 8192);
    write(&hidden, 4096);
    std::fs::set_permissions(&hidden, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let seen = snapshot(ObserverScope::Directories(vec![data.clone()]));
    let found = file(&seen, &path);
    assert_eq!(found.open().unwrap().inode(), found.stat_inode);

    let opens = OpenCounter::of(&hidden);
    // A directory above it.
    std::fs::rename(&data, &moved).unwrap();
    symlink(&secret, &data).unwrap();
    assert!(matches!(found.open(), Err(Error::SymbolicLink { .. })));
    std::fs::remove_file(&data).unwrap();
    std::fs::rename(&moved, &data).unwrap();
    assert!(found.open().is_ok());
    // The file itself: by a link, and by another file.
    std::fs::remove_file(&path).unwrap();
    symlink(&hidden, &path).unwrap();
    assert!(matches!(found.open(), Err(Error::SymbolicLink { .. })));
    std::fs::remove_file(&path).unwrap();
    std::fs::hard_link(&hidden, &path).unwrap();
    assert!(matches!(found.open(), Err(Error::OtherFile { .. })));
    assert!(!opens.any());
}

#[test]
fn files_of_a_directory_that_was_named_by_a_link_are_opened() {
    let dir = disk_dir();
    let [data, link] = ["data", "link"].map(|name| dir.path().join(name));
    write(&data.join("table.ibd"), 8192);
    symlink(&data, &link).unwrap();
    let seen = snapshot(ObserverScope::Directories(vec![link]));
    let found = file(&seen, &data.join("table.ibd"));
    assert_eq!((found.reach.as_path(), found.open().unwrap().size()), (found.path.as_path(), 8192));
}

#[test]
fn excluded_files_are_not_touched() {
    let (dir, private) = (disk_dir(), disk_dir());
    let (path, elsewhere) = (dir.path().to_path_buf(), private.path().to_path_buf());
    std::fs::create_dir(path.join("private")).unwrap();
    for name in ["1.ibd", "private/2.ibd"] {
        std::fs::write(path.join(name), [1; 4096]).unwrap();
    }
    std::fs::write(elsewhere.join("3.ibd"), [1; 4096]).unwrap();
    let left_out = [path.join("private"), elsewhere.clone()];
    let opens = left_out.each_ref().map(|path| pagekeeper_testing::OpenCounter::of(path));
    let scope = ObserverScope::Directories(vec![path.clone(), elsewhere.clone()]);
    let selects =
        DirectoryFilter::new(move |_, directory| !left_out.iter().any(|left| directory.starts_with(left)));
    let options = ObserverOptions { scope, selects, ..ObserverOptions::default() };
    let snapshot = Observer::start(options).unwrap().snapshot().unwrap();
    let names: Vec<_> = snapshot.files.iter().map(|file| file.path.strip_prefix(&path).unwrap()).collect();
    assert_eq!(names, [Path::new("1.ibd")]);
    assert!(!opens.iter().any(pagekeeper_testing::OpenCounter::any), "it was opened or listed");
}
