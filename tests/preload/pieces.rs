//! Writeback of output under `pagekeeper run`: in pieces, one in flight at a time, with so few
//! dirty pages that the kernel's flusher does not start. Bytes in flight are observed
//! from outside, by cachestat(2); pieces by strace(1).

use std::path::Path;
use std::process::{Child, Command};

use pagekeeper_kernel::{InspectedFile, Links, residency};
use pagekeeper_testing::ThrottledDisk;

use crate::support;
use crate::support::command::{finish, pagekeeper_by_library};
use crate::support::{MIB, scratch};

/// Bytes of the file that is written, and bytes a second of its disk.
const WRITTEN_BYTES: u64 = 96 * MIB;
const DISK_BYTES_PER_SECOND: u64 = 100_000_000;
/// Maximum bytes in flight: 3 ms of this disk are 0.3 MB, but the device accepts more before its
/// throttle takes effect.
const IN_FLIGHT_BYTES_MAX: u64 = MIB;
/// Maximum dirty bytes: 16 MiB, plus one call and one step.
const UNWRITTEN_BYTES_MAX: u64 = 17 * MIB;

/// Number of copies, of which one must pass.
const ATTEMPTS: usize = 3;

/// Observations of a file while it was written.
#[derive(Debug, Default)]
struct FileObservations {
    /// Maximum dirty bytes.
    unwritten: u64,
    /// Observations with bytes in flight, and those with more than a piece.
    looks: usize,
    beyond: usize,
    /// Bytes of the longest piece.
    longest: u64,
}

impl FileObservations {
    /// Whether it went in pieces. Another process's sync(2) writes everything at once, and where
    /// other programs keep the writer from its processor, it measures the disk's bursts alone.
    fn is_in_pieces(&self) -> bool {
        self.beyond * 4 <= self.looks && self.longest <= IN_FLIGHT_BYTES_MAX
    }
}

/// Observes a file repeatedly until the command has ended.
fn watch(command: &mut Child, path: &Path) -> FileObservations {
    let mut seen = FileObservations::default();
    while command.try_wait().expect("wait for a command").is_none() {
        if let Ok(file) = InspectedFile::open(path, Links::Follow) {
            let counts = residency(&file, 0..u64::MAX).expect("root may read it");
            let writeback = counts.writeback.expect("cachestat is there");
            seen.looks += usize::from(writeback > 0);
            seen.beyond += usize::from(writeback > IN_FLIGHT_BYTES_MAX);
            seen.unwritten = seen.unwritten.max(counts.unwritten());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    seen
}

/// Returns the lengths of the ranges whose writeback was started, from strace's output.
fn pieces(log: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(log).expect("read what strace wrote");
    let calls = text.lines().filter_map(|line| line.split_once("sync_file_range(")?.1.split(", ").nth(2));
    calls.map(|length| length.parse().expect("a length")).collect()
}

/// Checks a stream and bulk output, on the file systems that order data before their journal's
/// commits.
#[test]
fn output_goes_to_its_disk_in_pieces() {
    let needed = [&ThrottledDisk::REQUIRED_PROGRAMS[..], &["mkfs.xfs", "strace", "cp"]].concat();
    if !support::can_run("output in pieces", &needed) {
        return;
    }
    let scratch = scratch();
    let source = scratch.path().join("source");
    std::fs::write(&source, vec![0x5a; usize::try_from(WRITTEN_BYTES).expect("not that much")])
        .expect("write");
    for kind in ["ext4", "xfs"] {
        let Some(disk) = ThrottledDisk::new(kind, "output in pieces", 1 << 30, DISK_BYTES_PER_SECOND) else {
            return;
        };
        for role in ["stream", "bulk"] {
            let mut all: Vec<FileObservations> = Vec::new();
            while !all.last().is_some_and(FileObservations::is_in_pieces) {
                assert!(all.len() < ATTEMPTS, "{kind} {role}: {all:?}");
                all.push(copied_in_pieces((kind, role), &disk, &source, scratch.path()));
            }
        }
    }
}

/// Copies a file under `run`, and returns the observations.
fn copied_in_pieces(
    (kind, role): (&str, &str),
    disk: &ThrottledDisk,
    source: &Path,
    scratch: &Path,
) -> FileObservations {
    let (copy, log) = (disk.path().join(role), scratch.join("calls"));
    let run = pagekeeper_by_library();
    let mut command = Command::new("strace");
    // With --seccomp-bpf only this call stops the writer, which stays quicker than its disk.
    command.args(["-f", "-qq", "--seccomp-bpf", "-e", "trace=sync_file_range", "-o"]).arg(&log);
    command.arg(run.get_program()).args(run.get_args()).args(["run", "--as", role, "--", "cp"]);
    let mut child = command.arg(source).arg(&copy).spawn().expect("start strace");
    let mut seen = watch(&mut child, &copy);
    assert!(child.wait().expect("wait for strace").success(), "{kind} {role}");
    let pieces = pieces(&log);
    seen.longest = pieces.iter().copied().max().unwrap_or_default();
    eprintln!("{kind} {role}: {seen:?}, {} pieces", pieces.len());
    // The file was observed during the write, and the rules wrote its pages.
    assert!(
        seen.unwritten > MIB && pieces.iter().sum::<u64>() >= WRITTEN_BYTES / 2,
        "{kind} {role}: {pieces:?}"
    );
    assert!(seen.looks > 0 && seen.unwritten <= UNWRITTEN_BYTES_MAX, "{kind} {role}: {seen:?}");
    finish(Command::new("cmp").arg(source).arg(&copy)).expect_success();
    std::fs::remove_file(&copy).expect("remove a file");
    seen
}
