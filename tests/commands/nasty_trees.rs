//! Trees that make peers hang, lie or eat memory: special files, loops, files that change or vanish
//! while they are read, files of 15 TiB, names that are not text, files of others. No command may
//! hang, fail as a whole, or guess.

use crate::support;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::command::{Outcome, finish, pagekeeper, program, run};
use crate::support::loop_images::LoopImage;
use crate::support::{MIB, scratch};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use serde_json::Value;

/// `pagekeeper stat --json` with more arguments.
fn stat(arguments: &[&OsStr]) -> Outcome {
    finish(pagekeeper().args(["stat", "--json"]).args(arguments))
}

fn stat_of(path: &Path) -> Value {
    let outcome = stat(&[path.as_os_str()]);
    let json = outcome.json();
    outcome.expect_success();
    json
}

/// Returns the last names of the files in a report, sorted.
fn names(report: &Value) -> Vec<String> {
    let files = report["files"].as_array().expect("a list of files");
    let name =
        |file: &Value| file["path"].as_str().and_then(|path| path.rsplit('/').next()).map(str::to_owned);
    let mut names: Vec<String> = files.iter().map(|file| name(file).expect("a path")).collect();
    names.sort();
    names
}

fn fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("make a FIFO");
}

#[test]
fn special_files_are_passed_over_and_never_block() {
    let dir = scratch();
    std::fs::write(dir.path().join("file"), b"x").unwrap();
    fifo(&dir.path().join("fifo"));
    let _socket = UnixListener::bind(dir.path().join("socket")).unwrap();
    if support::can_run("the device node of special_files_are_passed_over_and_never_block", &[]) {
        // The numbers of /dev/null.
        let device = rustix::fs::makedev(1, 3);
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(CWD, dir.path().join("device"), FileType::CharacterDevice, mode, device).unwrap();
    }
    assert_eq!(names(&stat_of(dir.path())), ["file"]);
    run([OsStr::new("evict"), dir.path().as_os_str()]).expect_success();
}

#[test]
fn a_named_special_file_is_reported_and_others_are_walked() {
    let dir = scratch();
    let (pipe, file) = (dir.path().join("fifo"), dir.path().join("file"));
    fifo(&pipe);
    std::fs::write(&file, b"x").unwrap();
    for command in ["stat", "evict"] {
        let outcome = run([OsStr::new(command), pipe.as_os_str(), file.as_os_str()]);
        assert_eq!(outcome.code, 1);
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        assert!(
            outcome.stderr.starts_with(&format!("pagekeeper: {}: a FIFO", pipe.display())),
            "{outcome:?}"
        );
        assert!(outcome.stdout.contains("1 file"), "{outcome:?}");
    }
}

#[test]
fn links_are_followed_when_asked_and_loops_end() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("sub")).unwrap();
    std::fs::write(dir.path().join("outside"), b"x").unwrap();
    std::fs::write(tree.join("inside"), b"x").unwrap();
    symlink("../outside", tree.join("link")).unwrap();
    symlink("nowhere", tree.join("dangling")).unwrap();
    symlink("self", tree.join("self")).unwrap();
    symlink("..", tree.join("sub/up")).unwrap();
    symlink("/", tree.join("sub/root")).unwrap();
    assert_eq!(names(&stat_of(&tree)), ["inside"]);

    std::fs::remove_file(tree.join("sub/root")).unwrap();
    let outcome = stat(&[OsStr::new("-L"), tree.as_os_str()]);
    let report = outcome.json();
    assert_eq!(names(&report), ["inside", "link"]);
    // Each link that leads nowhere is reported once.
    let reported: Vec<&str> =
        report["errors"].as_array().unwrap().iter().filter_map(|e| e["path"].as_str()).collect();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(reported[0].ends_with("/dangling") && reported[1].ends_with("/self"), "{reported:?}");
    assert_eq!(outcome.code, 1);
}

#[test]
fn hard_links_and_paths_named_twice_count_once() {
    let dir = scratch();
    let file = dir.path().join("a");
    std::fs::write(&file, vec![1; 65_536]).unwrap();
    std::fs::hard_link(&file, dir.path().join("b")).unwrap();
    let report = stat(&[dir.path().as_os_str(), file.as_os_str(), dir.path().as_os_str()]).json();
    assert_eq!((&report["total"]["files"], &report["total"]["resident"]), (&1.into(), &65_536.into()));
}

#[test]
fn sparse_files_of_any_size_cost_neither_time_nor_memory() {
    let dir = scratch();
    for (name, size) in [("one", 1_u64 << 40), ("fifteen", 15 << 40)] {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(size)
            .unwrap_or_else(|error| panic!("a file system that can't hold {size} bytes: {error}"));
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], size / 2).unwrap();
        file.sync_all().unwrap();
    }
    // 1 GiB of address space, stacks and all; mincore of the larger file alone would fill 3.75 GiB.
    let limited = |arguments: &[&str]| {
        let script = "ulimit -v 1048576 && exec \"$0\" \"$@\"";
        finish(Command::new("sh").args(["-c", script]).arg(program()).args(arguments).arg(dir.path()))
    };
    let report = limited(&["stat", "--json", "--map"]).json();
    assert_eq!(report["total"]["size"], 16_u64 << 40);
    assert_eq!(report["total"]["resident"], 8192);
    let cells = report["files"][0]["map"]["eighths"].as_array().unwrap();
    assert_eq!(cells.iter().filter(|&cell| *cell != 0).count(), 1, "one page somewhere");
    let shown = limited(&["stat", "--map"]).expect_success();
    assert!(shown.contains("<0.1 %"), "{shown}");
    limited(&["evict"]).expect_success();
    assert_eq!(stat_of(dir.path())["total"]["resident"], 0);
}

#[test]
fn empty_files_and_names_that_are_not_text() {
    let dir = scratch();
    let odd = OsString::from_vec(b"\xff\xfe\x1b[2J\n".to_vec());
    std::fs::write(dir.path().join(&odd), [1; 5000]).unwrap();
    std::fs::write(dir.path().join("empty"), b"").unwrap();
    let report = stat_of(dir.path());
    assert_eq!(report["total"]["files"], 2);
    assert_eq!(report["total"]["size"], 5000);
    let empty = report["files"].as_array().unwrap().iter().find(|file| file["size"] == 0).unwrap();
    assert_eq!(empty["resident"], 0);
    // The same in a pipe, which may end in a log.
    let shown = finish(pagekeeper().arg("stat").arg(dir.path())).expect_success();
    assert!(shown.contains(r"\xff\xfe\x1b[2J\n"), "{shown}");
    // A named path that is wrong: the message must not contain terminal sequences.
    let missing = dir.path().join(OsStr::from_bytes(b"missing\x1b[2J"));
    let outcome = run([OsStr::new("stat"), missing.as_os_str()]);
    assert!(outcome.stderr.contains("missing\\x1b[2J: no such file"), "{outcome:?}");
    run([OsStr::new("evict"), dir.path().as_os_str()]).expect_success();
}

#[test]
fn trees_deeper_than_the_longest_path_are_walked() {
    /// The path is longer than `PATH_MAX` (4096), and has more levels than the process may have
    /// descriptors.
    const LEVELS: usize = 600;
    let dir = scratch();
    let mut at = rustix::fs::open(dir.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for _ in 0..LEVELS {
        rustix::fs::mkdirat(&at, "deeper", Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, "deeper", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&at, "file", flags, Mode::from_raw_mode(0o644)).unwrap();
    rustix::io::write(&file, b"x").unwrap();
    drop((file, at));
    let limited = |arguments: &[&str]| {
        let script = "ulimit -n 100 && exec \"$0\" \"$@\"";
        finish(Command::new("sh").args(["-c", script]).arg(program()).args(arguments).arg(dir.path()))
    };
    assert_eq!(names(&limited(&["stat", "--json"]).json()), ["file"]);
    limited(&["evict"]).expect_success();
    assert_eq!(stat_of(dir.path())["total"]["resident"], 0);
}

#[test]
fn files_that_grow_shrink_and_vanish_during_the_scan() {
    const FILE_COUNT: usize = 40;
    let dir = scratch();
    std::fs::write(dir.path().join("steady"), vec![1; 1 << 20]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_usize.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let path = dir.path().join(format!("file{}", round % FILE_COUNT));
                match round / FILE_COUNT % 4 {
                    0 => std::fs::write(&path, vec![1; 100_000]).unwrap(),
                    1 => {
                        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
                        std::io::Write::write_all(&mut file, &vec![2; 50_000]).unwrap();
                    }
                    2 => std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap(),
                    _ => std::fs::remove_file(&path).unwrap(),
                }
            }
        });
        // Stops the writer even if an assertion fails: the scope would wait for it forever.
        let checked = std::panic::catch_unwind(|| {
            for _ in 0..30 {
                let report = stat_of(dir.path());
                let known = |file: &Value| file["resident"].is_u64() && file["source"] == "cachestat";
                assert!(report["files"].as_array().unwrap().iter().all(known), "{report:#}");
                assert!(names(&report).contains(&"steady".to_owned()));
                let drawn =
                    finish(pagekeeper().args(["stat", "--map", "--all"]).arg(dir.path())).expect_success();
                assert!(drawn.contains("steady"), "{drawn}");
            }
            for _ in 0..5 {
                let outcome = run([OsStr::new("evict"), OsStr::new("--json"), dir.path().as_os_str()]);
                assert_eq!(outcome.json()["errors"], Value::Array(Vec::new()));
                outcome.expect_success();
            }
        });
        stop.store(true, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn figures_are_unknown_and_never_the_whole_to_other_users() {
    if !support::can_run("figures_are_unknown_and_never_the_whole_to_other_users", &["setpriv"]) {
        return;
    }
    let dir = scratch();
    let size = 8 * MIB;
    let write = |name: &str, mode: u32| {
        let path = dir.path().join(name);
        std::fs::write(&path, vec![1; usize::try_from(size).unwrap()]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let readable = write("readable", 0o644);
    write("secret", 0o600);
    let own = write("own", 0o644);
    std::os::unix::fs::chown(&own, Some(65_534), Some(65_534)).unwrap();
    run([OsStr::new("evict"), dir.path().as_os_str()]).expect_success();
    let locked = dir.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::write(locked.join("inner"), b"x").unwrap();
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o700)).unwrap();

    // A copy: the build's own directory may be closed to others.
    let bin = scratch();
    let copy = bin.path().join("pagekeeper");
    support::copy_program(&program(), &copy);
    let as_nobody = |arguments: &[&str]| {
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];
        finish(Command::new("setpriv").args(nobody).arg(&copy).args(arguments).arg(dir.path()))
    };

    let outcome = as_nobody(&["stat", "--json"]);
    assert_eq!(outcome.code, 1);
    let report = outcome.json();
    assert_eq!(names(&report), ["own", "readable"]);
    for file in report["files"].as_array().unwrap() {
        if file["path"].as_str().unwrap().ends_with("own") {
            assert_eq!((&file["resident"], &file["source"]), (&0.into(), &"cachestat".into()));
        } else {
            for figure in ["resident", "dirty", "writeback", "evicted", "recently_evicted"] {
                assert_eq!(file[figure], Value::Null, "{figure} of {file}");
            }
            assert_eq!((&file["source"], &file["size"]), (&"unknown".into(), &size.into()));
        }
    }
    assert_eq!((&report["total"]["unknown_files"], &report["total"]["resident"]), (&1.into(), &0.into()));
    let errors = report["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 2, "the secret file and the locked directory: {errors:?}");
    assert!(errors.iter().all(|error| error["error"].as_str().unwrap().starts_with("permission denied: ")));

    let outcome = as_nobody(&["stat", "--map"]);
    let row = outcome.stdout.lines().find(|line| line.ends_with("readable")).expect("a row");
    assert_eq!(row.matches('?').count(), 5, "{row}");
    assert!(!outcome.stdout.contains("100 %"), "{outcome:?}");
    assert!(outcome.stdout.contains("unknown 1 file"), "{outcome:?}");
    assert!(outcome.stderr.contains("run as root, as the owner, or with CAP_FOWNER"), "{outcome:?}");

    let outcome = as_nobody(&["evict", "--json"]);
    let reported = outcome.json()["errors"].to_string();
    assert!(
        outcome.code == 1 && reported.contains("readable") && reported.contains("CAP_FOWNER"),
        "{outcome:?}"
    );
    assert_eq!(support::resident_bytes(&[readable]), 0);
}

#[test]
fn stat_reports_tmpfs_and_evict_refuses_it() {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    std::fs::write(file.path(), vec![1; 1 << 20]).unwrap();
    assert_eq!(stat_of(file.path())["total"]["resident"], 1 << 20);
    let outcome = run([OsStr::new("evict"), file.path().as_os_str()]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("the page cache is the file itself"), "{outcome:?}");
    assert_eq!(std::fs::read(file.path()).unwrap(), vec![1; 1 << 20]);
}

#[test]
fn the_last_page_of_the_largest_file_is_saved_counted_and_evicted() {
    let test = "the_last_page_of_the_largest_file_is_saved_counted_and_evicted";
    let programs = LoopImage::programs("xfs");
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run(test, &programs) {
        return;
    }
    let image = LoopImage::new("xfs", 400 * MIB);
    let (largest, saved) = (image.path().join("largest"), image.outside().join("saved"));
    let file = std::fs::File::create(&largest).unwrap();
    file.write_all_at(b"end", i64::MAX.unsigned_abs() - 3).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), i64::MAX.unsigned_abs());
    assert_eq!(stat_of(&largest)["total"]["resident"], 4096);
    run([OsStr::new("snapshot"), OsStr::new("-o"), saved.as_os_str(), largest.as_os_str()]).expect_success();
    run([OsStr::new("evict"), largest.as_os_str()]).expect_success();
    assert_eq!(stat_of(&largest)["total"]["resident"], 0);
    run([OsStr::new("warm"), OsStr::new("--from"), saved.as_os_str()]).expect_success();
    assert_eq!(stat_of(&largest)["total"]["resident"], 4096);
}

#[test]
fn one_file_system_is_not_left() {
    let programs = LoopImage::programs("ext4");
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("one_file_system_is_not_left", &programs) {
        return;
    }
    let image = LoopImage::new("ext4", 16 * MIB);
    std::fs::write(image.path().join("within"), b"x").unwrap();
    assert_eq!(names(&stat_of(image.outside())), ["image", "within"]);
    let here = stat(&[OsStr::new("-x"), image.outside().as_os_str()]).json();
    assert_eq!(names(&here), ["image"]);
    let there = stat(&[OsStr::new("-x"), image.path().as_os_str()]).json();
    assert_eq!(names(&there), ["within"]);
}

/// An overlay, unmounted when dropped.
struct OverlayMount(std::path::PathBuf);

impl Drop for OverlayMount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        assert!(std::thread::panicking() || unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn on_overlayfs_the_pages_of_the_layers_are_seen_and_released() {
    let programs = LoopImage::programs("ext4");
    let mut programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    programs.push("fincore");
    if !support::can_run("on_overlayfs_the_pages_of_the_layers_are_seen_and_released", &programs) {
        return;
    }
    let image = LoopImage::new("ext4", 64 * MIB);
    let layer = |name: &str| {
        let path = image.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let (lower, upper, work) = (layer("lower"), layer("upper"), layer("work"));
    std::fs::write(lower.join("from-lower"), vec![1; 1 << 20]).unwrap();
    std::fs::File::open(lower.join("from-lower")).unwrap().sync_all().unwrap();
    let mount = layer("mount");
    let layers =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    finish(Command::new("mount").args(["-t", "overlay", "-o", &layers, "overlay"]).arg(&mount))
        .expect_success();
    let overlay = OverlayMount(mount.clone());
    std::fs::write(mount.join("from-upper"), vec![1; 2 << 20]).unwrap();

    let report = stat_of(&mount);
    assert_eq!(report["total"]["resident"], 3 << 20, "{report:#}");
    run([OsStr::new("evict"), mount.as_os_str()]).expect_success();
    assert_eq!(stat_of(&mount)["total"]["resident"], 0);
    assert_eq!(support::resident_bytes(&[lower.join("from-lower"), upper.join("from-upper")]), 0);
    drop(overlay);
}
