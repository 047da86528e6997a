//! The way of output to its disk under `pagekeeper run`: in pieces, one in flight at a time, with
//! so little unwritten that the kernel's own flusher does not start. Bytes in flight are observed
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
/// Bytes on their way at once: 3 ms of such a disk are 0.3 MB, and what a device of the machine
/// takes before its throttle holds it is more.
const ON_THEIR_WAY_MAX: u64 = MIB;
/// Bytes unwritten: 16 MiB, and what one call and one step add.
const UNWRITTEN_MAX: u64 = 17 * MIB;

/// Copies of which one has to be as it should.
const ATTEMPTS: usize = 3;

/// Observations of a file while it was written.
#[derive(Debug, Default)]
struct FileObservations {
    /// Bytes that were unwritten, at most.
    unwritten: u64,
    /// Looks at which something was on its way to the disk, and those at which it was more than a
    /// piece.
    looks: usize,
    beyond: usize,
}

/// Looks at a file again and again until the command has ended.
fn watch(command: &mut Child, path: &Path) -> FileObservations {
    let mut seen = FileObservations::default();
    while command.try_wait().expect("wait for a command").is_none() {
        if let Ok(file) = InspectedFile::open(path, Links::Follow) {
            let counts = residency(&file, 0..u64::MAX).expect("root may read it");
            let writeback = counts.writeback.expect("cachestat is there");
            seen.looks += usize::from(writeback > 0);
            seen.beyond += usize::from(writeback > ON_THEIR_WAY_MAX);
            seen.unwritten = seen.unwritten.max(counts.unwritten());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    seen
}

/// The lengths of the ranges that were begun to be written, as strace wrote them.
fn pieces(log: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(log).expect("read what strace wrote");
    let calls = text.lines().filter_map(|line| line.split_once("sync_file_range(")?.1.split(", ").nth(2));
    calls.map(|length| length.parse().expect("a length")).collect()
}

/// A stream and bulk output, on the file systems that order data before their journal's commits.
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
            // Somebody else's sync(2) has all be written at once, which is seen as more than a
            // piece.
            let mut all: Vec<FileObservations> = Vec::new();
            while all.last().is_none_or(|seen| seen.beyond * 4 > seen.looks) {
                assert!(all.len() < ATTEMPTS, "{kind} {role}: {all:?}");
                all.push(copied_in_pieces((kind, role), &disk, &source, scratch.path()));
            }
        }
    }
}

/// Copies a file under `run`, and says what was seen of the copy.
fn copied_in_pieces(
    (kind, role): (&str, &str),
    disk: &ThrottledDisk,
    source: &Path,
    scratch: &Path,
) -> FileObservations {
    let (copy, log) = (disk.path().join(role), scratch.join("calls"));
    let run = pagekeeper_by_library();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=sync_file_range", "-o"]).arg(&log);
    command.arg(run.get_program()).args(run.get_args()).args(["run", "--as", role, "--", "cp"]);
    let mut child = command.arg(source).arg(&copy).spawn().expect("start strace");
    let seen = watch(&mut child, &copy);
    assert!(child.wait().expect("wait for strace").success(), "{kind} {role}");
    let pieces = pieces(&log);
    eprintln!("{kind} {role}: {seen:?}, {} pieces", pieces.len());
    // It was looked at while it was written, and its pages were written by the rules.
    assert!(
        seen.unwritten > MIB && pieces.iter().sum::<u64>() >= WRITTEN_BYTES / 2,
        "{kind} {role}: {pieces:?}"
    );
    assert!(seen.looks > 0 && seen.unwritten <= UNWRITTEN_MAX, "{kind} {role}: {seen:?}");
    assert!(pieces.iter().all(|&length| length <= ON_THEIR_WAY_MAX), "{kind} {role}: {pieces:?}");
    finish(Command::new("cmp").arg(source).arg(&copy)).fine();
    std::fs::remove_file(&copy).expect("remove a file");
    seen
}
