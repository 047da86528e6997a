//! Streams of an ordinary user, who gets no kernel events: the pages that the library alone
//! releases and rereads, and its report. Residency is `fincore`'s, device reads are from
//! `/proc/PID/io`.

use std::io::Read as _;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagekeeper_testing::ThrottledDisk;
use serde_json::Value;

use crate::support;
use crate::support::command::{Outcome, finish};
use crate::support::{MIB, evict};

/// Bytes of the file that is read.
const FILE_BYTES: u64 = 300 * MIB;
/// Bytes that may stay: pages that the kernel was using when they were dropped.
const LEFT_BYTES_MAX: u64 = MIB / 16;
/// Bytes in a report for a program's own files.
const PROGRAM_FILES_BYTES: u64 = 16 * MIB;
/// An ordinary user.
const USER_ID: u32 = 65534;

/// The beginning of every program: a file, calls on it, and the positions of its pieces.
const BEGIN: &str = r"
import os, random, sys, threading
path, size = sys.argv[1], 300 << 20
def piece_order(piece):
    order = list(range(size // piece))
    random.Random(1).shuffle(order)
    return order
def read_on(fd, call, length=1 << 62):
    done = 0
    while done < length:
        more = len(os.read(fd, call))
        done += more
        if not more: break
";

/// The end of every program: it prints the bytes that it read from the device.
const END: &str = r#"
print(next(line.split()[1] for line in open("/proc/self/io") if line.startswith("read_bytes")))
"#;

/// A directory of an ordinary user, with a file in it, and the program under test where that user
/// may start it.
struct UserDirectory {
    directory: tempfile::TempDir,
    program: PathBuf,
}

impl UserDirectory {
    /// Returns `None` if a needed program is missing.
    fn new(test: &str) -> Option<Self> {
        if !support::can_start(test, &["python3", "fincore", "setpriv", "cat"]) {
            return None;
        }
        let directory = support::scratch();
        let program = directory.path().join("pagekeeper");
        support::copy_program(&support::command::program(), &program);
        let place = Self { directory, program };
        std::fs::write(place.file(), vec![0x5a; usize::try_from(FILE_BYTES).expect("small")]).expect("write");
        if is_root() {
            chown(place.directory.path(), Some(USER_ID), Some(USER_ID)).expect("chown");
            chown(place.file(), Some(USER_ID), Some(USER_ID)).expect("chown");
        }
        Some(place)
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("file")
    }

    /// Runs `pagekeeper run` as an ordinary user, with every program as a stream by the library.
    fn run(&self) -> Command {
        let mut command = if is_root() {
            let user = USER_ID.to_string();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        command.args(["run", "--as", "stream"]).current_dir(self.directory.path());
        command
    }

    /// Runs a program in Python. Returns the bytes that it read from the device, and the report.
    fn python(&self, text: &str) -> (u64, Value) {
        let text = [BEGIN, text, END].concat();
        let mut command = self.run();
        command.args(["--report=report", "--json", "--", "python3", "-c", &text]).arg(self.file());
        let outcome: Outcome = finish(&mut command);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        let report = std::fs::read(self.directory.path().join("report")).expect("a report");
        let read = outcome.stdout.trim().parse().expect("a number");
        (read, serde_json::from_slice(&report).expect("JSON"))
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn resident(path: &Path) -> u64 {
    support::resident_bytes(&[path.to_owned()])
}

/// Reads this much of a file, and no page more.
fn warm(path: &Path, length: u64) {
    let mut file = std::fs::File::open(path).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("advise");
    file.read_exact(&mut vec![0; usize::try_from(length).expect("small")]).expect("read");
}

fn bytes(report: &Value, name: &str) -> u64 {
    report["total"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn pages_read_out_of_order_go_and_are_read_once() {
    let Some(place) = UserDirectory::new("files read out of order") else { return };
    let _alone = support::alone();
    let file = place.file();
    // Orders: an archive with a directory at its end; pieces in any order; records.
    for text in [
        "fd = os.open(path, os.O_RDONLY)\nos.lseek(fd, size - 65536, 0)\nread_on(fd, 32768)\nos.lseek(fd, 0, 0)\nread_on(fd, 32768)",
        "fd = os.open(path, os.O_RDONLY)\nfor at in piece_order(1 << 20): os.pread(fd, 1 << 20, at << 20)",
        "fd = os.open(path, os.O_RDONLY)\nfor at in piece_order(4 << 20):\n  os.lseek(fd, at << 22, 0)\n  read_on(fd, 131072, 4 << 20)",
        "fd = os.open(path, os.O_RDONLY)\nfor at in piece_order(1 << 20):\n  os.lseek(fd, at << 20, 0)\n  read_on(fd, 8192, 1 << 20)",
        "fd = os.open(path, os.O_RDONLY)\nfor at in piece_order(16384): os.pread(fd, 16384, at * 16384)",
    ] {
        evict(&file);
        let (read, report) = place.python(text);
        let left = resident(&file);
        eprintln!("{text}: {} MiB read from the device, {left} bytes stay", read / MIB);
        assert!(left <= LEFT_BYTES_MAX, "{left} bytes stay: {text}\n{report}");
        assert!(
            read <= FILE_BYTES + FILE_BYTES / 8 + PROGRAM_FILES_BYTES,
            "{} MiB read from the device: {text}",
            read / MIB
        );
    }
}

/// A slow disk still reads ahead when the file is closed; the pages are dropped once they have
/// arrived.
#[test]
fn pages_under_read_ahead_at_a_close_go_later() {
    let Some(place) = UserDirectory::new("a slow disk's read-ahead") else { return };
    let Some(disk) = ThrottledDisk::new("ext4", "a slow disk's read-ahead", 128 * MIB, 1 << 30) else {
        return;
    };
    let _alone = support::alone();
    let file = disk.path().join("file");
    std::fs::write(&file, vec![0x5a; 64 << 20]).expect("write");
    chown(&file, Some(USER_ID), Some(USER_ID)).expect("chown");
    evict(&file);
    disk.read_at(2 * MIB);
    let text = format!(
        "import time\nfd = os.open('{}', os.O_RDONLY)\nread_on(fd, 65536, 1 << 20)\nos.close(fd)\ntime.sleep(3)",
        file.display()
    );
    let (_, report) = place.python(&text);
    assert_eq!(resident(&file), 0, "{report}");
}

/// The readers are threads with their own open files, or independent commands.
#[test]
fn several_readers_of_a_file_leave_nothing() {
    let Some(place) = UserDirectory::new("several readers of a file") else { return };
    let _alone = support::alone();
    let file = place.file();
    for _ in 0..3 {
        evict(&file);
        let text = "
import time
def client(nth):
    fd = os.open(path, os.O_RDONLY)
    time.sleep(nth * 0.02)
    while os.read(fd, 65536 << nth): time.sleep(0.001 * (nth % 2))
    os.close(fd)
clients = [threading.Thread(target=client, args=(nth,)) for nth in range(4)]
for client in clients: client.start()
for client in clients: client.join()
time.sleep(0.2)
";
        let (_, report) = place.python(text);
        let left = resident(&file);
        assert!(left <= LEFT_BYTES_MAX, "threads: {left} bytes stay\n{report}");
        evict(&file);
        let start = || place.run().args(["--", "cat", "file"]).stdout(Stdio::null()).spawn().expect("start");
        let readers: Vec<_> = (0..4)
            .map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                start()
            })
            .collect();
        for mut reader in readers {
            assert!(reader.wait().expect("wait").success());
        }
        let left = resident(&file);
        assert!(left <= LEFT_BYTES_MAX, "commands: {left} bytes stay");
    }
}

/// A file that a stream created had no resident page before.
#[test]
fn a_stream_releases_its_own_output_when_it_reads_it() {
    let Some(place) = UserDirectory::new("a file that is written and read back") else { return };
    let _alone = support::alone();
    let (_, report) = place.python(
        "fd = os.open('new', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
for _ in range(100): os.write(fd, bytes(1 << 20))
os.lseek(fd, 0, 0)
read_on(fd, 1 << 20)
for at in range(0, 100, 7): os.pwrite(fd, bytes(4096), at << 20); os.pread(fd, 65536, at << 20)
other = os.open('new', os.O_RDONLY)
read_on(other, 1 << 20)
",
    );
    let left = resident(&place.directory.path().join("new"));
    assert!(left <= LEFT_BYTES_MAX, "{left} bytes stay\n{report}");
    let before = bytes(&report, "stream_left_resident_bytes");
    assert!(before <= PROGRAM_FILES_BYTES, "{before} bytes are said to have been there before\n{report}");
}

/// The bytes read equal those released and those resident before, for every way to read the file;
/// the released bytes came from the device.
#[test]
fn read_bytes_are_released_or_were_resident_before() {
    let Some(place) = UserDirectory::new("reports that add up") else { return };
    let _alone = support::alone();
    let file = place.file();
    for (text, hot) in [
        ("fd = os.open(path, os.O_RDONLY)\nread_on(fd, 65536)", 0),
        ("fd = os.open(path, os.O_RDONLY)\nread_on(fd, 65536)", 100 * MIB),
        (
            "fd = os.open(path, os.O_RDONLY)\nfor at in piece_order(4 << 20): os.pread(fd, 4 << 20, at << 22)",
            100 * MIB,
        ),
        ("fd = os.open(path, os.O_RDONLY)\nfor at in piece_order(16384): os.pread(fd, 16384, at * 16384)", 0),
        (
            "fd = os.open(path, os.O_RDONLY)\nfor at in (200, 100, 0):\n  os.lseek(fd, at << 20, 0)\n  read_on(fd, 65536, 100 << 20)",
            0,
        ),
        ("fd = os.open(path, os.O_RDONLY)\nos.read(fd, 4096)", 100 * MIB),
    ] {
        evict(&file);
        warm(&file, hot);
        let was = resident(&file);
        let (device, report) = place.python(text);
        let left = resident(&file);
        let sum = |name| bytes(&report, name);
        let (read, released, before) =
            (sum("stream_read_bytes"), sum("stream_released_bytes"), sum("stream_left_resident_bytes"));
        eprintln!("{text}: read {read}, released {released}, before {before} of {was}, device {device}");
        assert!(
            left <= was + LEFT_BYTES_MAX && was <= left + LEFT_BYTES_MAX,
            "{was} bytes were resident, {left} are: {text}"
        );
        assert!(released <= device + LEFT_BYTES_MAX, "released {released}, from the device {device}: {text}");
        assert!(before <= read, "read {read}, there before {before}: {text}");
        // Pages that were read ahead, and dropped before the reader came to them, are read from the
        // device and released twice.
        let accounted = released + before;
        assert!(
            accounted + PROGRAM_FILES_BYTES >= read && accounted <= device + before + LEFT_BYTES_MAX,
            "read {read}, released {released}, there before {before}: {text}\n{report}"
        );
    }
}
