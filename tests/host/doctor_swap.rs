//! The doctor beside a real `MariaDB` that fits its memory cgroup until `cat` reads a file there
//! again and again: page cache of the file pushes the idle server into swap. The doctor names the
//! program and two fixes. With each of them less of the server goes to swap.
//!
//! Needs root, Debian's `mariadb-server` and a memory cgroup; skips with a sentence otherwise, and
//! where the kernel refuses swap on a file. The swap file is there for the test alone, and only the
//! cgroup is short of memory.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::command::{program, run};
use crate::support::doctor_report::{self, finding};
use crate::support::mariadb::{Options, Server};
use crate::support::memory_group::MemoryGroup;
use crate::support::sysbench::LoadedServer as _;
use crate::support::{self, MIB};

const PROGRAMS: [&str; 9] =
    ["mariadbd", "mariadb-install-db", "mariadb", "setpriv", "cat", "sh", "mkswap", "swapon", "swapoff"];
/// The server's buffer pool, which a table of about 120 MiB fills.
const POOL_BYTES: u64 = 128 * MIB;
/// The limit of the memory cgroup until the server has filled its pool.
const FIRST_LIMIT_BYTES: u64 = 1 << 30;
/// Memory that the final limit leaves beside the server's own.
const SPARE_BYTES: u64 = 96 * MIB;
/// Larger than the spare memory, so that each pass of `cat` finds pages gone that it read in the
/// pass before; the kernel counts their return against page cache, and reclaims other memory.
const FILE_BYTES: u64 = 160 * MIB;
/// Passes of `cat` over the file. Then it waits.
const PASSES: usize = 12;
const SWAP_BYTES: u64 = 256 * MIB;
const WATCH_DURATION: &str = "8s";
/// The time after which the doctor has inspected the server.
const LOOKED: Duration = Duration::from_secs(3);
/// The least growth that the doctor reports as a warning.
const GROWN_BYTES_MIN: u64 = 16 * MIB;
const ATTEMPTS_MAX: usize = 3;

/// Swap on a file. A shell takes it off when its input ends: when this value is dropped, or the
/// test is killed. The shell is in a group of its own, so that a signal to the test's group, as by
/// Ctrl-C, does not end it before that.
struct SwapFile {
    path: PathBuf,
    keeper: Child,
}

impl SwapFile {
    /// Returns `None` where it is refused.
    fn new(path: PathBuf) -> Option<Self> {
        // swapon(2) refuses holes.
        std::fs::write(&path, vec![0; usize::try_from(SWAP_BYTES).expect("it fits")]).expect("write it");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("chmod");
        let script = "mkswap \"$0\" >&2 && swapon \"$0\" && { echo on; cat; exec swapoff \"$0\"; }";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command.stderr(Stdio::null()).process_group(0).spawn().expect("start a shell");
        let mut line = String::new();
        let output = keeper.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("read its output");
        let is_on = line == "on\n";
        let swap = Self { path, keeper };
        is_on.then_some(swap)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        let is_left = swaps.contains(&*self.path.to_string_lossy());
        if is_left {
            eprintln!("{} is left in use as swap", self.path.display());
        }
        assert!(!is_left || std::thread::panicking(), "swap is left on");
    }
}

/// Bytes of the server's memory that are in swap.
fn swapped(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("read its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:")).expect("a figure for swap");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

/// Starts a server with all of its buffer pool in use, in a group that has some memory left.
fn start(directory: &Path, group: &MemoryGroup) -> Server {
    let options = Options::primary().argument(format!("--innodb-buffer-pool-size={POOL_BYTES}"));
    let server = Server::start(directory, options);
    group.add(server.pid());
    server.execute("CREATE DATABASE d");
    server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v VARBINARY(1000)) ENGINE=InnoDB");
    server
        .execute("SET sql_log_bin=0; INSERT INTO d.t SELECT seq, RANDOM_BYTES(1000) FROM d.seq_1_to_100000");
    // Pages that it touched before it entered the group are charged elsewhere.
    group.set_limit(group.anonymous() + SPARE_BYTES);
    server
}

/// Watches the server while `cat`, started by these words, reads the file in its group. Returns the
/// report, and the growth of the server's swap.
fn beside(server: &Server, group: &MemoryGroup, starter: &[OsString], file: &Path) -> (Value, u64) {
    assert_eq!(run(["evict", file.to_str().expect("plain")]).code, 0);
    // The pool comes back from swap.
    assert_eq!(server.query("SELECT SUM(CRC32(v)) AS sum FROM d.t").len(), 1);
    let before = swapped(server);
    let pid = server.pid().to_string();
    let arguments = ["doctor", "--json", "--duration", WATCH_DURATION, "--pid", &pid];
    let outcome = std::thread::scope(|scope| {
        let doctor = scope.spawn(|| run(arguments));
        std::thread::sleep(LOOKED);
        // Only `cat` enters the group.
        let cat = group.command_with(server.pid(), "cat");
        let mut reader = support::started_by(starter, &cat.get_program().to_string_lossy());
        reader.args(cat.get_args()).args(std::iter::repeat_n(file, PASSES)).arg("-");
        let mut reader = reader.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start a reader");
        let outcome = doctor.join();
        drop(reader.stdin.take());
        assert!(reader.wait().expect("wait for the reader").success());
        outcome.expect("the doctor")
    });
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let grown = swapped(server).saturating_sub(before);
    println!("{starter:?}: {before} bytes in swap, {grown} more");
    (doctor_report::of(&outcome), grown)
}

/// Runs the act of a fix, or its undo.
fn shell(act: &str) {
    assert!(Command::new("sh").args(["-c", act]).status().expect("start a shell").success(), "{act}");
}

#[test]
#[ignore = "long: make test-stories"]
fn page_cache_that_pushes_a_database_into_swap_is_named_and_its_fixes_leave_more_of_it() {
    let test = "MariaDB and cat in one memory cgroup, with swap";
    if !support::can_run(test, &PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let Some(group) = MemoryGroup::new(test, FIRST_LIMIT_BYTES) else { return };
    let Some(_swap) = SwapFile::new(scratch.path().join("swap")) else {
        return pagekeeper_testing::skip(format!("{test}: swap on a file is refused here."));
    };
    let server = start(scratch.path(), &group);
    let file = scratch.path().join("file");
    // Holes fill the page cache like data.
    std::fs::File::create(&file).and_then(|file| file.set_len(FILE_BYTES)).expect("make a file");

    // Other programs run on this machine, too.
    let is_found =
        |(report, grown): &(Value, u64)| *grown >= GROWN_BYTES_MIN && finding(report, "swapped").is_some();
    let mut tries = (0..ATTEMPTS_MAX).map(|_| beside(&server, &group, &[], &file));
    let (report, grown) = tries.find(is_found).expect("it is found in one of some tries");
    let found = finding(&report, "swapped").expect("a finding");
    let title = found["title"].as_str().expect("a title");
    assert!(title.starts_with("cat (process ") && title.contains("went to swap"), "{found:#}");
    assert!(found["severity"] == "warning" || found["severity"] == "serious", "{found:#}");
    let figure = |name: &str| {
        let evidence = found["evidence"].as_array().expect("evidence");
        evidence
            .iter()
            .find_map(|one| one["figures"][name].as_u64())
            .unwrap_or_else(|| panic!("{name}: {found:#}"))
    };
    assert!(figure("swapped_growth_bytes") >= grown / 2, "{grown}: {found:#}");
    assert!(figure("group_swapped_bytes") >= grown / 2, "{grown}: {found:#}");
    assert!(figure("added_bytes") >= FILE_BYTES && figure("swappiness") > 1, "{found:#}");
    assert!(figure("swap_total_bytes") >= SWAP_BYTES - MIB, "{found:#}");
    assert!(!report.to_string().contains("No throughput by itself"), "{report:#}");

    // The first fix: the program releases what it brings in.
    let fixes = found["fixes"].as_array().expect("fixes");
    assert_eq!(fixes[0]["act"], "pagekeeper run --as stream -- cat ...", "{found:#}");
    let words = ["run", "--as", "stream", "--"].map(OsString::from);
    let words = [&[program().into_os_string()], &words[..]].concat();
    let (_, beside_run) = beside(&server, &group, &words, &file);

    // The group's own setting, which is taken back at the end.
    let path = group.path().display().to_string();
    let own = fixes.iter().find(|fix| fix["act"].as_str().is_some_and(|act| act.contains(&path)));
    let own = own.unwrap_or_else(|| panic!("no setting of the group: {found:#}"));
    assert!(own["risk"]["costs"].as_str().is_some_and(|costs| !costs.is_empty()), "{own:#}");
    shell(own["act"].as_str().expect("an act"));
    let (_, beside_setting) = beside(&server, &group, &[], &file);
    shell(own["undo"].as_str().expect("an undo"));
    println!("grown: {grown} bytes; by run {beside_run}; by {} {beside_setting}", own["act"]);
    assert!(
        beside_run < grown / 2 && beside_setting < grown / 10 * 9,
        "{grown}: {beside_run}, {beside_setting}: {found:#}"
    );
}
