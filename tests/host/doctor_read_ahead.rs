//! The doctor beside a real LMDB that is read at random on a device with a large read-ahead:
//! without an argument the doctor finds the program, which no profile knows, and names the
//! read-ahead and not more memory. Both of its fixes are applied, with the bytes that storage reads
//! for each get before and after.
//!
//! Needs root, Debian's `python3-lmdb`, a loop device and a memory cgroup; skips with a sentence
//! otherwise.

use crate::support;
use crate::support::MIB;
use crate::support::command::run;
use crate::support::doctor_report;
use crate::support::loop_images::LoopImage;
use crate::support::memory_group::MemoryGroup;
use pagekeeper_testing::skip;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Debian's Python, to which the package belongs.
const PYTHON: &str = "/usr/bin/python3";
const KEYS: &str = "150000";
/// A limit, in bytes, of a third of the database.
const MEMORY_LIMIT_BYTES: u64 = 128 * MIB;
const LARGE_READ_AHEAD_KIB: u64 = 8192;
const WATCH_DURATION: &str = "3s";
/// The seconds after which the doctor has ended.
const WATCHED_SECONDS: u32 = 12;
const MEASURED_SECONDS: u32 = 3;
/// Several times the bytes of the database: a program without a profile is found once it has read
/// its files that often.
const READ_BYTES: u64 = 3 << 30;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/host/lmdb_reader.py")
}

/// A program that reads the database when it is told to.
struct Reader {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Reader {
    fn start(group: &MemoryGroup, database: &Path, read_ahead: &str) -> Self {
        let mut command = group.command(PYTHON);
        command.arg(script()).arg(database).args([KEYS, read_ahead]);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a reader");
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, orders, answers }
    }

    fn order(&mut self, seconds: u32) {
        writeln!(self.orders, "{seconds}").expect("tell the reader");
    }

    fn gets(&mut self) -> u64 {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the reader answers");
        line.trim().parse().expect("a number")
    }

    fn read_bytes(&self) -> u64 {
        let io = PathBuf::from(format!("/proc/{}/io", self.process.id()));
        support::io_counter(&io, "read_bytes")
    }

    /// Returns the gets of some seconds, and the bytes that storage read for each.
    fn measure(&mut self) -> (u64, u64) {
        let before = self.read_bytes();
        self.order(MEASURED_SECONDS);
        let gets = self.gets();
        (gets, (self.read_bytes() - before) / gets.max(1))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The read-ahead of a device, put back when dropped.
struct ReadAhead {
    file: PathBuf,
    was: String,
}

impl ReadAhead {
    fn of(directory: &Path) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let dev = std::fs::metadata(directory).expect("stat").dev();
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        let file = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
        let was = std::fs::read_to_string(&file).expect("read the read-ahead");
        Self { file, was }
    }

    fn set(&self, kib: u64) {
        std::fs::write(&self.file, kib.to_string()).expect("set the read-ahead");
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        std::fs::write(&self.file, &self.was).expect("put the read-ahead back");
    }
}

fn shell(act: &str) {
    assert!(Command::new("sh").args(["-c", act]).status().expect("start a shell").success(), "{act}");
}

#[test]
#[ignore = "long: make test-stories"]
fn too_large_a_read_ahead_of_a_program_that_no_profile_knows_is_named_before_memory() {
    let test = "LMDB on a device with a large read-ahead";
    let programs = LoopImage::programs("ext4");
    let programs: Vec<&str> = programs.iter().map(String::as_str).chain(["setpriv", "sh"]).collect();
    if !support::can_run(test, &programs) {
        return;
    }
    let has_lmdb = Command::new(PYTHON).args(["-c", "import lmdb"]).stderr(Stdio::null()).status();
    if !has_lmdb.is_ok_and(|status| status.success()) {
        return skip(format!("{test} needs python3-lmdb."));
    }
    let _alone = support::alone();
    let Some(group) = MemoryGroup::new(test, MEMORY_LIMIT_BYTES) else { return };
    let image = LoopImage::new("ext4", 2 << 30);
    let database = image.path().join("database");
    let filled = Command::new(PYTHON).arg(script()).arg(&database).args([KEYS, "ahead"]).status();
    assert!(filled.expect("start python").success(), "fill the database");
    support::evict(&database.join("data.mdb"));
    let read_ahead = ReadAhead::of(&database);
    read_ahead.set(LARGE_READ_AHEAD_KIB);

    let mut reader = Reader::start(&group, &database, "ahead");
    let (gets, bytes) = reader.measure();
    support::eventually("its files were read several times", Duration::from_secs(300), || {
        reader.measure();
        (reader.read_bytes() > READ_BYTES).then_some(())
    });
    reader.order(WATCHED_SECONDS);
    let outcome = run(["doctor", "--json", "--watch", WATCH_DURATION]);
    reader.gets();
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let report = doctor_report::of(&outcome);
    let name = format!("python3 (process {})", reader.process.id());
    let of_reader = |kind: &str| -> Option<&Value> {
        let findings = report["findings"].as_array().expect("findings");
        findings.iter().find(|finding| finding["kind"] == kind && finding["database"] == name.as_str())
    };
    let found = of_reader("read-ahead").unwrap_or_else(|| panic!("not found: {report:#}"));
    let fixes = found["fixes"].as_array().expect("fixes");
    assert!(fixes[0]["act"].as_str().is_some_and(|act| act.contains("readahead=False")), "{found:#}");
    let set = fixes[1]["act"].as_str().expect("an act");
    assert!(set.contains(read_ahead.file.to_str().expect("plain")), "{found:#}");
    if let Some(short) = of_reader("memory-short") {
        let limits = short["fixes"].as_array().expect("fixes").iter();
        let limits = limits.filter(|fix| fix["act"].as_str().is_some_and(|act| act.starts_with("echo")));
        assert_eq!(limits.count(), 0, "{short:#}");
    }

    // Each fix alone, for a reader that opens the database again.
    drop(reader);
    let by_engine = Reader::start(&group, &database, "page by page").measure();
    shell(set);
    let by_device = Reader::start(&group, &database, "ahead").measure();
    shell(fixes[1]["undo"].as_str().expect("an undo"));
    let back = Reader::start(&group, &database, "ahead").measure();
    println!(
        "gets and bytes for each: {gets}, {bytes}; page by page {by_engine:?}; by {set:?} {by_device:?}; \
         taken back {back:?}"
    );
    for (fixed_gets, fixed_bytes) in [by_engine, by_device] {
        assert!(fixed_bytes < bytes / 4 && fixed_gets > gets, "{fixed_gets}, {fixed_bytes}: {found:#}");
    }
    assert!(back.1 > bytes / 4, "{back:?}");
}
