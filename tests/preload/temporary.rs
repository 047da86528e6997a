//! Temporary files under `pagekeeper run`: a file that a process soon rereads is not read back
//! from the disk, and one that only looks temporary leaves no pages. Residency is `fincore`'s,
//! bytes of the disk are `/proc/PID/io`'s.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support;
use crate::support::MIB;
use crate::support::command::{Outcome, finish, words_by_library};
use crate::support::loop_images::QuickDisk;

/// Runs a shell line with every process as a stream. Returns its report, the resident bytes, and
/// the bytes read from a disk.
fn run_as_stream(line: &str, here: &Path) -> (Value, Outcome, u64) {
    let outside = support::scratch();
    let (to, io) = (outside.path().join("report"), outside.path().join("io"));
    // The children's reads are added to their parent's when it waits for them.
    let script = "\"$@\" || exit; grep ^read_bytes /proc/$$/io >\"$IO\"";
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).args(words_by_library());
    command.arg("run").arg(format!("--report={}", to.display())).args(["--json", "--as", "stream", "--"]);
    command.args(["sh", "-euc", line]).env("IO", &io).env("LC_ALL", "C").current_dir(here);
    let outcome = finish(&mut command);
    assert!(outcome.code == 0, "{line}: {outcome:#?}");
    let report = serde_json::from_slice(&std::fs::read(&to).expect("a report")).expect("JSON");
    (report, outcome, support::io_counter(&io, "read_bytes"))
}

/// Writes random text of that many bytes.
fn write_text(path: &Path, count: u64) {
    let mut state = 7_u64;
    let mut text = Vec::new();
    for _ in 0..count / 17 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        writeln!(text, "{:016x}", state ^ state >> 29).expect("there is memory");
    }
    std::fs::write(path, text).expect("write");
}

/// Returns all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let found = finish(Command::new("find").arg(directory).args(["-type", "f"])).expect_success();
    found.lines().map(PathBuf::from).collect()
}

#[test]
fn sort_does_not_read_its_temporary_files_from_the_disk() {
    if !support::can_start("temporary files of sort", &["sort", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let text = here.join("text");
    write_text(&text, 40 * MIB);
    // Once for files that are merged once, and once for those that are merged again.
    for buffer in ["6M", "1M"] {
        support::evict(&text);
        let (report, _, read) = run_as_stream(&format!("sort -S {buffer} -T . -o sorted text"), here);
        let checked =
            finish(Command::new("sort").args(["-c", "sorted"]).env("LC_ALL", "C").current_dir(here));
        assert!(checked.code == 0 && support::size_bytes(&[here.join("sorted")]) == 40 * MIB / 17 * 17);
        assert!(read <= 44 * MIB, "{buffer}: {read} bytes were read of 40 MiB; {report}");
        let kept = report["total"]["stream_kept_bytes"].as_u64().expect("bytes");
        assert!(kept >= 30 * MIB, "{buffer}: {report}");
        assert_eq!(files(here).len(), 2, "temporary files are left");
        support::evict(&text);
        std::fs::remove_file(here.join("sorted")).expect("remove");
    }
    support::evict(&text);
    let (report, ..) = run_as_stream("sort -S 6M -T . -o sorted text", here);
    let left = support::resident_bytes(&files(here));
    assert!(left <= MIB, "{left} bytes stay; {report}");
    // Removed files are not reported as staying.
    let stayed = report["stayed"].as_array().expect("a list").iter();
    let removed = stayed.filter(|file| {
        let path = Path::new(file["path"].as_str().expect("text"));
        path.starts_with(here) && !path.exists()
    });
    assert_eq!(removed.count(), 0, "{:?}", report["stayed"]);
}

/// These files are created like temporary ones (mkstemp(3)) and stay: results with another name, or
/// with the same.
#[test]
#[ignore = "long: make test-stories"]
fn files_that_only_look_temporary_leave_nothing() {
    let needed = ["rsync", "git", "xz", "python3", "fincore"];
    if !support::can_start("results that look temporary", &needed) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let python = |text: &str| format!("python3 -c 'import os, tempfile, time\n{text}'");
    let make = "fd, name = tempfile.mkstemp(dir=\".\")\nos.write(fd, bytes(8 << 20)); os.write(fd, bytes(1 << 20))\n";
    let lines = [
        "rsync --whole-file text text.2 copies/".to_owned(),
        "git init -q . && git add text text.2 && git -c user.name=a -c user.email=a@b commit -q -m m && git repack -q -a -d -f".to_owned(),
        "xz -0 -k text".to_owned(),
        // Never removed.
        python(make),
        python(&format!("{make}os.close(fd)")),
        // With another name, with two, and with a name given by another program.
        python(&format!("{make}os.close(fd); os.rename(name, \"result\")")),
        python(&format!("{make}os.rename(name, \"result\"); os.write(fd, bytes(4 << 20)); os.close(fd)")),
        python(&format!("{make}os.close(fd); os.link(name, \"result\"); os.unlink(name)")),
        python(&format!("{make}os.close(fd); os.system(\"mv \" + name + \" result\")")),
        // Kept over a fork, by a child that exits normally or not.
        python(&format!("{make}os.close(fd)\nif os.fork() == 0: raise SystemExit\nos.wait()")),
        python(&format!("{make}os.close(fd)\nif os.fork() == 0: os._exit(0)\nos.wait()")),
        // Many files, one of which is reread and stays.
        python(&format!("for _ in range(5):\n  {}", make.replace('\n', "; "))),
        python(&format!("{make}os.lseek(fd, 0, 0); assert not any(os.read(fd, 9 << 20)); os.close(fd)")),
        // Without a name from the start, and later.
        python("f = tempfile.TemporaryFile(dir=\".\"); f.write(bytes(9 << 20)); f.seek(0); assert len(f.read()) == 9 << 20"),
        python(&format!("{make}os.unlink(name); os.lseek(fd, 0, 0); assert len(os.read(fd, 9 << 20)) == 9 << 20")),
        // As exec ends the process.
        python(&format!("{make}os.close(fd); os.execlp(\"true\", \"true\")")),
    ];
    for line in &lines {
        let (text, other) = (here.join("text"), here.join("text.2"));
        write_text(&text, 9 * MIB);
        write_text(&other, 3 * MIB);
        support::evict(&text);
        support::evict(&other);
        std::fs::create_dir(here.join("copies")).expect("make a directory");
        let (report, outcome, _) = run_as_stream(line, here);
        let files_left = files(here);
        let left = support::resident_bytes(&files_left);
        // git maps what it adds, its packs and its index, which the library does not see.
        let small = if line.starts_with("git") { 18 * MIB } else { MIB };
        assert!(left <= small, "{line}: {left} bytes of {files_left:?} stay; {report}; {outcome:#?}");
        for entry in std::fs::read_dir(here).expect("list").flatten() {
            let path = entry.path();
            let is_directory = entry.file_type().expect("a kind").is_dir();
            if is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
                .expect("remove");
        }
    }
}

/// While the process runs, pages of renamed files are dropped, and removed files need no disk
/// space.
#[test]
fn pages_of_a_result_are_released_while_its_process_runs() {
    if !support::can_start("results of a process that continues", &["python3", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let text = "
import os, subprocess, tempfile, time
def made():
    fd, name = tempfile.mkstemp(dir='.')
    os.write(fd, bytes(8 << 20)); os.write(fd, bytes(4 << 20)); os.close(fd)
    return name
def resident(name):
    return int(subprocess.run(['env', '-u', 'LD_PRELOAD', 'fincore', '-bno', 'RES', name], capture_output=True, check=True).stdout)
def held(name):
    found = []
    for thread in os.listdir('/proc/self/task'):
        for fd in os.listdir('/proc/self/task/%s/fd' % thread):
            try: found.append(os.readlink('/proc/self/task/%s/fd/%s' % (thread, fd)))
            except OSError: pass
    return [path for path in found if os.path.basename(name) in path]
# Removed at once: as it has no name, nobody has it open.
for _ in range(60):
    name = made()
    os.unlink(name)
    assert not held(name), held(name)
first = made()
time.sleep(0.2)
free = os.statvfs('.').f_bfree
os.unlink(first)
# The file that is held open no more is no room less (delayed allocation gives it back later).
subprocess.run(['env', '-u', 'LD_PRELOAD', 'sync', '--file-system', '.'], check=True)
assert os.statvfs('.').f_bfree >= free, 'the room is not free'
held = made()
time.sleep(0.2)
os.rename(held, 'result')
for _ in range(600):
    if resident('result') == 0: break
    time.sleep(0.1)
else: raise SystemExit('the result stays')
# From here on none is kept.
another = made()
for _ in range(600):
    if resident(another) == 0: break
    time.sleep(0.1)
else: raise SystemExit('another one stays')
";
    std::fs::write(here.join("script.py"), text).expect("write");
    run_as_stream("python3 script.py", here);
}

/// A file that gets a name is a result, however it was named: its pages are resident when it is
/// named, and are dropped while its process continues. In the last line another process names it.
#[test]
fn pages_of_a_file_that_gets_a_name_are_released_while_its_process_runs() {
    // As root: linkat(2) of a descriptor requires a capability before Linux 6.10.
    if !support::can_run("files that get names", &["python3", "ln"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let begin = "
import ctypes, os, tempfile, time
libc = ctypes.CDLL(None, use_errno=True)
def resident(fd):
    asked, seen = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    assert libc.syscall(451, fd, asked, seen, 0) == 0
    return seen[0] * 4096
def written(fd):
    os.write(fd, bytes(8 << 20)); os.write(fd, bytes(1 << 20))
    assert resident(fd) >= 8 << 20, 'it is not kept'
    return fd
def named():
    fd, name = tempfile.mkstemp(dir='.')
    return written(fd), name.encode()
def unnamed():
    return written(os.open('.', os.O_TMPFILE | os.O_RDWR, 0o644))
HERE = -100
";
    let end = "
fd = os.open('result', os.O_PATH)
seen = os.open('/proc/self/fd/%d' % fd, os.O_RDONLY | os.O_NOATIME)
for _ in range(600):
    if resident(seen) == 0: break
    time.sleep(0.1)
else: raise SystemExit('the result stays')
";
    let (linkat, rename) = (libc::SYS_linkat, libc::SYS_renameat2);
    let lines = [
        "fd, name = named(); os.close(fd); os.link(name, 'result')".to_owned(),
        "fd, name = named(); os.link(name, 'result'); os.close(fd)".to_owned(),
        "fd, name = named(); os.close(fd); os.link(name, 'result'); os.unlink(name)".to_owned(),
        format!("fd, name = named(); os.close(fd); assert libc.syscall({linkat}, HERE, name, HERE, b'result', 0) == 0"),
        format!("fd, name = named(); os.close(fd); assert libc.syscall({rename}, HERE, name, HERE, b'result', 1) == 0"),
        "fd, name = named(); os.close(fd); assert libc.renameat2(HERE, name, HERE, b'result', 1) == 0".to_owned(),
        "fd = unnamed(); assert libc.linkat(HERE, b'/proc/self/fd/%d' % fd, HERE, b'result', 0x400) == 0; os.close(fd)".to_owned(),
        "fd = unnamed(); assert libc.linkat(fd, b'', HERE, b'result', 0x1000) == 0; os.close(fd)".to_owned(),
        format!("fd = unnamed(); assert libc.syscall({linkat}, fd, b'', HERE, b'result', 0x1000) == 0; os.close(fd)"),
        "fd, name = named(); os.close(fd); assert os.posix_spawn('/bin/ln', ['ln', name, 'result'], os.environ) > 0\nwhile not os.path.exists('result'): time.sleep(0.01)".to_owned(),
    ];
    for line in &lines {
        std::fs::write(here.join("script.py"), [begin, line, end].concat()).expect("write");
        let (report, ..) = run_as_stream("python3 script.py", here);
        let stayed = report["stayed"].as_array().expect("a list").iter();
        let of_here: Vec<_> =
            stayed.filter(|file| Path::new(file["path"].as_str().expect("text")).starts_with(here)).collect();
        assert!(of_here.is_empty(), "{line}: {of_here:?}");
        for entry in std::fs::read_dir(here).expect("list").flatten().filter(|entry| entry.path().is_file()) {
            std::fs::remove_file(entry.path()).expect("remove");
        }
    }
}
