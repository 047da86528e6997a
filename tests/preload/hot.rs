//! Pages that other programs brought into the page cache while a stream had the file open: they
//! stay, however the stream reads. Pages that a stream brought in itself go. Residency is
//! `fincore`'s.
//!
//! The disk is quick, since after two seconds the rules attribute pages ahead of a reader to
//! others.

use crate::support;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::command::finish;
use crate::support::compare::{Way, built};
use crate::support::loop_images::QuickDisk;
use crate::support::{MIB, evict};

/// Bytes of the file that is read.
const FILE_BYTES: u64 = 200 * MIB;

/// An age at which a sample of two seconds' validity is stale.
const STALE_SAMPLE_AGE: Duration = Duration::from_millis(2500);

/// Runs `tests/preload/programs_in_c/hot.c` on a file, as a stream.
fn hot_command(file: &Path, how: &str) -> Command {
    let mut command = Way::stream_by_library().command(&built("hot", &["-O1"]));
    command.arg(file).arg(how);
    command
}

/// Returns a file with no resident page.
fn cold_file(directory: &Path, name: &str, size: u64) -> PathBuf {
    let path = directory.join(name);
    let bytes = vec![0x5a; usize::try_from(size).expect("small")];
    std::fs::write(&path, bytes).expect("write");
    evict(&path);
    path
}

/// Reads all of a file, as another program does.
fn warm(path: &Path) {
    let mut file = std::fs::File::open(path).expect("open");
    std::io::copy(&mut file, &mut std::io::sink()).expect("read");
}

fn resident(path: &Path) -> u64 {
    support::resident_bytes(&[path.to_owned()])
}

/// Runs it to its end. While it waits, another program reads the whole file, and `pause` passes.
/// Returns the bytes that are resident in the end.
fn resident_after_others(path: &Path, how: &str, pause: Duration) -> u64 {
    evict(path);
    let mut child =
        hot_command(path, how).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a program");
    let mut said = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut said).expect("read what it says");
    assert_eq!(said, "ready\n", "{how}");
    warm(path);
    std::thread::sleep(pause);
    // Rereads the pages that the kernel evicted meanwhile.
    warm(path);
    assert!(resident(path) > FILE_BYTES - MIB, "{how}: it is hot");
    child.stdin.take().expect("piped").write_all(b"\n").expect("have it continue");
    assert!(child.wait().expect("wait").success(), "{how}");
    resident(path)
}

#[test]
fn pages_that_others_read_during_a_run_stay() {
    if !support::can_start("pages that others read meanwhile", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let path = cold_file(scratch.path(), "file", FILE_BYTES);
    let now = Duration::ZERO;
    for (how, pause, gone) in [
        // Read-ahead at the first read may reach this far.
        ("fread", now, MIB),
        ("update", now, 0),
        ("header", now, 5 * MIB),
        ("header", STALE_SAMPLE_AGE, MIB),
        ("fread", STALE_SAMPLE_AGE, MIB),
        // If it continues, read-ahead may reach this far.
        ("pause", STALE_SAMPLE_AGE, 10 * MIB),
    ] {
        let left = resident_after_others(&path, how, pause);
        assert!(
            left >= FILE_BYTES - gone,
            "{how} {pause:?}: {} of {FILE_BYTES} bytes went",
            FILE_BYTES - left
        );
    }
}

#[test]
fn pages_read_by_the_c_library_itself_go() {
    if !support::can_start("reads of the C library", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    for (name, size) in [("large", FILE_BYTES), ("small", 900_000), ("odd", 5 * MIB + 1)] {
        let path = cold_file(scratch.path(), name, size);
        finish(&mut hot_command(&path, "all")).expect_success();
        let left = resident(&path);
        assert!(left <= size / 20, "{name}: {left} of {size} bytes stay");
        warm(&path);
        finish(&mut hot_command(&path, "all")).expect_success();
        assert!(resident(&path) >= size, "{name}: it was hot");
    }
}

#[test]
fn pages_of_standard_input_and_output_go() {
    if !support::can_start("standard input and output", &["sh", "sed", "cut", "expand", "paste", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let (lines, out) = (scratch.path().join("lines"), scratch.path().join("out"));
    std::fs::write(
        &lines,
        "something of sixty-four bytes, the same again and again: a line\n".repeat(1 << 20),
    )
    .expect("write");
    for script in
        ["sed -n '$=' < lines", "cut -b1-60 < lines > out", "expand lines > out", "paste lines lines > out"]
    {
        evict(&lines);
        let mut shell = Way::stream_by_library().command(Path::new("sh"));
        finish(shell.args(["-c", script]).current_dir(scratch.path())).expect_success();
        let left = resident(&lines) + resident(&out);
        assert!(left <= 4 * MIB, "{script}: {left} bytes stay");
    }
}

#[test]
fn a_prefetch_is_read_once() {
    if !support::can_start("a prefetch", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let path = cold_file(scratch.path(), "file", FILE_BYTES);
    let read: u64 =
        finish(&mut hot_command(&path, "prefetch")).expect_success().trim().parse().expect("a number");
    assert!(read <= FILE_BYTES + FILE_BYTES / 10, "{read} bytes were read for {FILE_BYTES}");
    let left = resident(&path);
    assert!(left <= FILE_BYTES / 20, "{left} bytes stay");
}

#[test]
fn a_programs_own_advice_stands_where_the_rule_does_nothing() {
    if !support::can_start("a program's own advice", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let path = cold_file(scratch.path(), "file", FILE_BYTES);
    for how in ["map", "random"] {
        finish(&mut hot_command(&path, how)).expect_success();
        let left = resident(&path);
        assert!(left <= MIB, "{how}: {left} bytes stay");
    }
    // A program that does nothing else with the file.
    warm(&path);
    let mut dd = Way::run(&["--as", "stream"], "").command(Path::new("dd"));
    dd.arg(format!("if={}", path.display())).args(["iflag=nocache", "count=0", "status=none"]);
    finish(&mut dd).expect_success();
    let left = resident(&path);
    assert!(left <= MIB, "{left} bytes stay");
}

#[test]
fn sampling_loads_nothing_into_locked_memory() {
    if !support::can_run("locked memory", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let path = cold_file(scratch.path(), "file", FILE_BYTES);
    let file = std::fs::File::open(&path).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("advise");
    for at in (0..FILE_BYTES).step_by(2 << 20) {
        file.read_at(&mut [0], at).expect("read");
    }
    drop(file);
    let before = resident(&path);
    let said = finish(&mut hot_command(&path, "locked")).expect_success();
    assert!(said.is_empty(), "root may lock memory: {said}");
    let after = resident(&path);
    assert!(before > 0 && after <= before + MIB, "{before} bytes were resident, {after} are");
}

/// An overlay, unmounted when dropped.
struct OverlayMount(PathBuf);

impl OverlayMount {
    fn new(parent: &Path) -> Self {
        for name in ["lower", "upper", "work", "whole"] {
            std::fs::create_dir_all(parent.join(name)).expect("make a directory");
        }
        let mut mount = Command::new("mount");
        mount.current_dir(parent).args(["-t", "overlay", "overlay", "whole", "-o"]);
        finish(mount.arg("lowerdir=lower,upperdir=upper,workdir=work")).expect_success();
        Self(parent.join("whole"))
    }
}

impl Drop for OverlayMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn on_an_overlay_hot_pages_stay_and_others_go() {
    if !support::can_run("an overlay", &["cc", "fincore", "mount", "umount"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    std::fs::create_dir(scratch.path().join("lower")).expect("make a directory");
    // Files of the overlay have no pages; files of the layers have them.
    let lower = cold_file(&scratch.path().join("lower"), "low", 64 * MIB);
    let overlay = OverlayMount::new(scratch.path());
    cold_file(&overlay.0, "up", 64 * MIB);
    let upper = scratch.path().join("upper/up");
    for (layer, name) in [(lower, "low"), (upper, "up")] {
        let file = overlay.0.join(name);
        for how in ["read", "all"] {
            // If resident pages can't be counted, pages that are read before the helper's first
            // sample count as others'. On a busy machine that sample may come late.
            let left: Vec<u64> = (0..20)
                .map(|_| {
                    evict(&layer);
                    finish(&mut hot_command(&file, how)).expect_success();
                    resident(&layer)
                })
                .take_while(|left| *left > 4 * MIB)
                .collect();
            assert!(left.len() < 20, "{name} {how}: {left:?} bytes of a cold file stay");
            warm(&file);
            finish(&mut hot_command(&file, how)).expect_success();
            assert_eq!(resident(&layer), 64 * MIB, "{name} {how}: it was hot");
        }
    }
}
