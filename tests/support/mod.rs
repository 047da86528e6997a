//! The shared parts of end-to-end tests: skipping, scratch directories, an independent count of the
//! page cache, waiting.
//!
//! Invariants: nothing here asks the program under test for the truth; residency comes from
//! util-linux's `fincore`. A missing package skips a test in plain words, or fails it where
//! `PAGEKEEPER_REQUIRE_ALL=1`.

// Each of the test programs compiles all of these modules and uses its own part of them.
#![allow(dead_code)]

pub(crate) mod command;
pub(crate) mod compare;
pub(crate) mod configured;
pub(crate) mod container;
pub(crate) mod deadline;
pub(crate) mod decoys;
pub(crate) mod doctor_report;
pub(crate) mod fake;
pub(crate) mod guard;
pub(crate) mod hostile;
pub(crate) mod idle_tables;
pub(crate) mod logs;
pub(crate) mod loop_images;
pub(crate) mod mariadb;
pub(crate) mod mariadb_test;
pub(crate) mod memory_group;
pub(crate) mod mysql;
pub(crate) mod pod;
pub(crate) mod podman;
pub(crate) mod postgresql;
pub(crate) mod prometheus;
pub(crate) mod pseudo_terminal;
pub(crate) mod rocksdb;
pub(crate) mod schemas;
pub(crate) mod signals;
pub(crate) mod sysbench;
pub(crate) mod tmux;
pub(crate) mod unit;
pub(crate) mod versions;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use pagekeeper_testing::skip;

/// Bytes in a MiB.
pub(crate) const MIB: u64 = 1 << 20;

/// One load at a time: these tests measure the machine's page cache, and each needs all processors.
///
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other test of this binary runs a load.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    begin();
    alone
}

/// Gives the children of a test a deadline and default signals. Every entry point of tests calls
/// it.
fn begin() {
    static SIGNALS: Once = Once::new();
    SIGNALS.call_once(signals::reset_for_children);
    deadline::renew();
}

/// Returns true if this process is root and all of `programs` can be started.
///
/// Otherwise prints one sentence and returns false; panics with that sentence where
/// `PAGEKEEPER_REQUIRE_ALL=1`.
pub(crate) fn can_run(test: &str, programs: &[&str]) -> bool {
    let root = rustix::process::geteuid().is_root();
    is_there(test, missing_programs(programs).chain((!root).then(|| "root".to_owned())))
}

/// Like [`can_run`], for tests that also follow processes by kernel events:
/// Linux 5.16 with BTF, its initial PID namespace, and the permission to load BPF programs.
///
pub(crate) fn can_follow(test: &str, programs: &[&str]) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let status = read("/proc/self/status");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:\t"));
    let capabilities = capabilities.and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0);
    let needs = [
        (version >= (5, 9), "Linux 5.9"),
        (Path::new("/sys/kernel/btf/vmlinux").exists(), "BTF of the kernel"),
        // PROC_PID_INIT_INO of the kernel.
        (
            std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new("pid:[4026531836]")),
            "the first namespace of processes",
        ),
        // CAP_PERFMON and CAP_BPF.
        (capabilities >> 38 & 3 == 3, "the permission to load programs into the kernel"),
    ];
    let missing = needs.iter().filter(|(is_there, _)| !is_there).map(|(_, what)| (*what).to_owned());
    is_there(test, missing_programs(programs).chain(missing))
}

/// Like [`can_run`], but does not require root.
pub(crate) fn can_start(test: &str, programs: &[&str]) -> bool {
    is_there(test, missing_programs(programs))
}

fn missing_programs(programs: &[&str]) -> impl Iterator<Item = String> {
    programs.iter().filter(|name| !is_on_path(name)).map(|name| format!("program {name}"))
}

fn is_there(test: &str, missing: impl Iterator<Item = String>) -> bool {
    begin();
    let missing: Vec<String> = missing.collect();
    if missing.is_empty() {
        return true;
    }
    skip(format_args!("{test} needs {}.", missing.join(", ")));
    false
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns a new directory on a disk (`PAGEKEEPER_TEST_DIR`, else `/var/tmp`: `/tmp` is often a
/// tmpfs, which has nothing to release) that other users may enter.
pub(crate) fn scratch() -> tempfile::TempDir {
    begin();
    let parent =
        std::env::var_os("PAGEKEEPER_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let directory = tempfile::Builder::new()
        .prefix("pagekeeper-test-")
        .tempdir_in(parent)
        .expect("make a scratch directory");
    open_to_others(directory.path());
    directory
}

/// Lets other users enter a directory, or start a program.
pub(crate) fn open_to_others(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set permissions");
}

/// Returns bytes of these files in the page cache, by `fincore`; a file that was removed
/// meanwhile counts as 0.
pub(crate) fn resident_bytes(files: &[PathBuf]) -> u64 {
    let present: Vec<&PathBuf> = files.iter().filter(|file| file.exists()).collect();
    if present.is_empty() {
        return 0;
    }
    let output = Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .args(present)
        .output()
        .expect("run fincore");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.trim().parse::<u64>().expect("fincore prints bytes"))
        .sum()
}

/// Returns bytes of these files that are resident, or that the kernel took by itself (`nr_evicted`
/// of cachestat(2)): some machines page out idle pages. Pages that are released by advice are
/// neither.
pub(crate) fn kept_bytes(files: &[PathBuf]) -> u64 {
    use pagekeeper_kernel::{InspectedFile, Links, residency};
    let present = files.iter().filter_map(|file| InspectedFile::open(file, Links::Follow).ok());
    present
        .map(|file| {
            let counts = residency(&file, 0..u64::MAX).expect("root may read it");
            counts.resident + counts.evicted.expect("cachestat is there")
        })
        .sum()
}

/// Evicts a file, after writing its dirty pages.
pub(crate) fn evict(path: &Path) {
    evict_all(&[path.to_owned()]);
}

/// Evicts these files by one command, after writing their dirty pages.
pub(crate) fn evict_all(files: &[PathBuf]) {
    // Syncs only these files: a global sync would wait for others' writes.
    for file in files {
        std::fs::File::open(file).and_then(|file| file.sync_all()).expect("sync");
    }
    // Repeats it, since the kernel may be using a page at any moment.
    eventually("all is cold", Duration::from_secs(120), || {
        command::run(std::iter::once(Path::new("evict")).chain(files.iter().map(PathBuf::as_path)));
        (resident_bytes(files) == 0).then_some(())
    });
}

/// Copies a program, to where others may start it. Another process makes the copy: a child that
/// another thread of this one forks would briefly hold it open for writing, and an exec would fail
/// with "text file busy".
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--").arg(from).arg(to).status().expect("run cp");
    assert!(status.success(), "cp: {status}");
    open_to_others(to);
}

/// Returns a counter of `/proc/PID/io` or `/proc/PID/task/TID/io`, such as `read_bytes`, the bytes
/// read from a device.
pub(crate) fn io_counter(file: &Path, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.expect("always there").parse().expect("a number")
}

/// Returns the fields of `/proc/PID/stat` after the name, which begin with the third; `None` if
/// the process has ended.
pub(crate) fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

/// Returns a process's CPU time so far in seconds, user and system, to a hundredth (`USER_HZ`).
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let fields = stat_fields(pid).expect("the process runs");
    // utime and stime: fields 14 and 15 of all.
    fields[11..=12].iter().map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0).sum()
}

/// Returns the files below a directory, without links. Reads none of them.
pub(crate) fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("list a directory");
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.expect("list a directory").path()) {
        let kind = path.symlink_metadata().expect("stat a file").file_type();
        if kind.is_dir() {
            files.extend(files_in(&path));
        } else if kind.is_file() {
            files.push(path);
        }
    }
    files
}

/// Returns the sum of the sizes of these files, in bytes.
pub(crate) fn size_bytes(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Repeats `check` until it returns a value; panics with `what` after `deadline`.
pub(crate) fn eventually<T>(what: &str, deadline: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Polls residency of `files` until it is below `limit` bytes, and returns it; panics with the last
/// figure.
pub(crate) fn wait_until_resident_below(files: &[PathBuf], limit: u64, deadline: Duration) -> u64 {
    let start = Instant::now();
    loop {
        let resident = resident_bytes(files);
        if resident < limit {
            return resident;
        }
        assert!(
            start.elapsed() < deadline,
            "{resident} bytes are still resident after {deadline:?}, not under {limit}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns a command that starts a program, by a launcher with its arguments if one is given.
pub(crate) fn started_by(starter: &[OsString], program: &str) -> Command {
    match starter {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}
