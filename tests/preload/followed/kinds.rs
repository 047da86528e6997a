//! Each kind of program that streams, under `pagekeeper run`, including those that can't load a
//! library or use calls that it does not see. The pages that the program brings into the page cache
//! go, hot pages stay, and no remains of the means stay. Residency is `fincore`'s, and of block
//! devices cachestat's.
//!
//! The test prints the table of docs/src/internals/measurements.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use serde_json::Value;

use super::{STREAM_BYTES, WAIT_TIMEOUT, write};
use crate::support;
use crate::support::command::finish;
use crate::support::loop_images::Device;
use crate::support::memory_group::MemoryGroup;
use crate::support::{MIB, copy_program, eventually, evict, io_counter, resident_bytes, scratch};

/// Bytes of the hot file, which others use.
const HOT_BYTES: u64 = 128 * MIB;
/// The memory of everything in a test. It is less than the stream's reads and writes and the hot
/// file together. It has room for all writes, which wait for a busy disk and are bounded only by
/// the host's dirty limits.
const MEMORY_LIMIT_BYTES: u64 = HOT_BYTES + STREAM_BYTES + 384 * MIB;

/// Copies a file by read and write, whatever its C library.
const COPY: &str = "\
#include <fcntl.h>
#include <unistd.h>
static char buffer[1 << 16];
int main(int count, char **arguments) {
    int from = open(arguments[1], O_RDONLY), to = open(arguments[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ssize_t got;
    while ((got = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, got) != got) return 2;
    return got < 0 || from < 0 || to < 0;
}
";

/// A kind of program, and its command, in which `SRC` and `DST` stand for the files.
struct CopyKind {
    name: &'static str,
    options: &'static [&'static str],
    command: Vec<String>,
}

fn kind(name: &'static str, options: &'static [&'static str], command: &str) -> CopyKind {
    CopyKind { name, options, command: command.split(' ').map(str::to_owned).collect() }
}

/// Returns all copying programs; `container` is a process in its own namespaces.
fn kinds(directory: &Path, container: u32) -> Vec<CopyKind> {
    let text = directory.join("copy.c");
    fs::write(&text, COPY).unwrap();
    let musl = directory.join("musl-copy");
    finish(Command::new("musl-gcc").arg("-o").arg(&musl).arg(&text)).expect_success();
    let root = directory.join("root");
    fs::create_dir(&root).unwrap();
    copy_program(Path::new("/bin/busybox"), &root.join("busybox"));
    let setuid = directory.join("setuid");
    fs::create_dir(&setuid).unwrap();
    let program = setuid.join("cp");
    copy_program(Path::new("/bin/cp"), &program);
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let at = directory.display();
    vec![
        kind("glibc, dynamic", &[], "cp SRC DST"),
        kind("static", &[], "busybox cp SRC DST"),
        kind("musl", &["--as=stream"], &format!("{at}/musl-copy SRC DST")),
        kind("sudo to another user", &[], "sudo -u nobody cp SRC DST"),
        kind("cleared environment (`env -i`)", &[], "env -i cp SRC DST"),
        kind("setuid", &[], &format!("{at}/setuid/cp SRC DST")),
        kind("another root (`chroot`)", &[], &format!("chroot {at} /root/busybox cp /source /target/file")),
        kind("container (`nsenter`)", &[], &format!("nsenter -t {container} -m cp SRC DST")),
        // Without disk statistics: fio inspects all lower devices, and fails if another test's loop
        // device has just gone.
        kind(
            "io_uring (fio)",
            &["--as=stream"],
            "fio --disk_util=0 --name=r --filename=SRC --rw=read --bs=256k --ioengine=io_uring --iodepth=32 --output=/dev/null \
             --name=w --stonewall --filename=DST --rw=write --size=512m --bs=256k --ioengine=io_uring --iodepth=32",
        ),
        kind(
            "mmap (fio)",
            &["--as=stream"],
            "fio --disk_util=0 --name=r --filename=SRC --rw=read --bs=256k --ioengine=mmap --output=/dev/null \
             --name=w --stonewall --filename=DST --rw=write --size=512m --bs=256k --ioengine=mmap",
        ),
    ]
}

fn percent(part: u64, whole: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let of = |bytes: u64| bytes as f64;
    100.0 * of(part) / of(whole)
}

/// Returns the means that a report gives for released pages.
fn means(report: &Value) -> &'static str {
    let bytes = |value: &Value| value.as_u64().unwrap_or_default();
    let total = &report["total"];
    let library = bytes(&total["stream_released_bytes"]) + bytes(&total["stream_uncached_bytes"]) > MIB;
    let events = bytes(&report["events"]["released_bytes"]) > MIB || bytes(&total["processes_followed"]) > 0;
    match (library, events) {
        (true, true) => "library, events",
        (true, false) => "library",
        (false, true) => "events",
        (false, false) => "none",
    }
}

/// The files that all kinds are tested with.
struct CopySite {
    group: MemoryGroup,
    hot: PathBuf,
    report: PathBuf,
    failures: Vec<String>,
}

impl CopySite {
    /// Runs a command beside a user of the hot file, and prints its row: `read` and
    /// `written` are the percent that stays.
    fn try_out(
        &mut self,
        name: &str,
        options: &[&str],
        command: &[String],
        read: impl FnOnce() -> f64,
        written: impl FnOnce() -> f64,
    ) {
        evict(&self.hot);
        // Used again and again, as by a database, in the group that the stream is in.
        let mut user = self.group.command("sh");
        user.args(["-c", "while cat \"$0\" >/dev/null; do sleep 0.2; done"]).arg(&self.hot);
        let user = RunningProgram(user.spawn().unwrap());
        eventually("it is hot", WAIT_TIMEOUT, || {
            (resident_bytes(std::slice::from_ref(&self.hot)) == HOT_BYTES).then_some(())
        });
        // Reads of a child count as its own once it has waited for the child.
        let io = PathBuf::from(format!("/proc/{}/io", user.0.id()));
        eventually("it is read", WAIT_TIMEOUT, || (io_counter(&io, "read_bytes") >= HOT_BYTES).then_some(()));
        let read_before = io_counter(&io, "read_bytes");
        let mut run = self.group.command(support::command::program().to_str().unwrap());
        run.args(["run", "--require", "--json"]).arg(format!("--report={}", self.report.display()));
        let outcome = finish(run.args(options).arg("--").args(command));
        assert_eq!(outcome.code, 0, "{name}: {outcome:?}");
        // The last pages of a program inside go after its end.
        let program = support::command::program();
        let is_beside =
            |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == program);
        eventually("nobody is beside it", WAIT_TIMEOUT, || {
            (!self.group.processes().iter().any(is_beside)).then_some(())
        });
        let again = io_counter(&io, "read_bytes") - read_before;
        let kept = percent(HOT_BYTES.saturating_sub(again), HOT_BYTES);
        drop(user);
        let report = serde_json::from_slice(&fs::read(&self.report).unwrap()).unwrap();
        let (means, read, written) = (means(&report), read(), written());
        let row = format!("| {name} | {means} | {read:.1} % | {written:.1} % | {kept:.1} % |");
        println!("{row}");
        if read > 2.0 || written > 2.0 || kept < 95.0 || means == "none" {
            self.failures.push(row);
        }
    }
}

/// A process that ends with the value.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "long: make test-stories"]
fn every_kind_of_stream_is_covered() {
    let needed = [
        "cc", "fincore", "busybox", "musl-gcc", "sudo", "fio", "setpriv", "restic", "unshare", "nsenter",
        "losetup", "blockdev", "python3",
    ];
    if !support::can_follow("every_kind_of_stream_is_covered", &needed) {
        return;
    }
    let _alone = support::alone();
    let Some(group) = MemoryGroup::new("every_kind_of_stream_is_covered", MEMORY_LIMIT_BYTES) else { return };
    let dir = scratch();
    let (source, hot) = (dir.path().join("source"), dir.path().join("hot"));
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    // Other users write there, too.
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&target, anybody).unwrap();
    write(&source, STREAM_BYTES);
    write(&hot, HOT_BYTES);
    let mut site = CopySite { group, hot, report: dir.path().join("report"), failures: Vec::new() };
    println!("| program | means | of what it read stays | of what it wrote stays | of what was hot stays |");
    println!("|---|---|---|---|---|");
    let of_source = || percent(resident_bytes(std::slice::from_ref(&source)), STREAM_BYTES);
    let of_copy = |copy: &Path| {
        let whole = fs::metadata(copy).map_or(STREAM_BYTES, |metadata| metadata.len().max(STREAM_BYTES));
        percent(resident_bytes(&files_below(copy)), whole)
    };
    let mut container = Command::new("unshare");
    container.args(["--mount", "sleep", "100000"]);
    let container = RunningProgram(container.spawn().unwrap());
    let copy = target.join("file");
    for CopyKind { name, options, command } in kinds(dir.path(), container.0.id()) {
        evict(&source);
        let _ = fs::remove_file(&copy);
        let word = |word: &String| match word.as_str() {
            "SRC" => source.display().to_string(),
            "DST" => copy.display().to_string(),
            _ => word
                .replace("=SRC", &format!("={}", source.display()))
                .replace("=DST", &format!("={}", copy.display())),
        };
        let command: Vec<String> = command.iter().map(word).collect();
        site.try_out(name, options, &command, of_source, || of_copy(&copy));
        if !name.contains("io_uring") && !name.contains("mmap") {
            assert!(fs::read(&source).unwrap() == fs::read(&copy).unwrap(), "{name}: the copy is the same");
        }
    }
    drop(container);
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
    // From one device to another.
    let (from, to) = (
        Device::new(STREAM_BYTES).expect("a loop device"),
        Device::new(STREAM_BYTES).expect("a loop device"),
    );
    let (input, output) = (format!("if={}", from.path().display()), format!("of={}", to.path().display()));
    finish(
        Command::new("dd")
            .args(["bs=1M", "status=none"])
            .arg(format!("if={}", source.display()))
            .arg(format!("of={}", from.path().display())),
    )
    .expect_success();
    from.evict();
    let of_device = |device: &Device| percent(device.resident(), STREAM_BYTES);
    site.try_out(
        "block device (dd)",
        &[],
        &words(&["dd", "bs=1M", "status=none", &input, &output]),
        || of_device(&from),
        || of_device(&to),
    );
    finish(Command::new("cmp").args([from.path(), to.path()])).expect_success();
    drop((from, to));
    // A real program of Go's.
    let (repository, password) = (dir.path().join("repository"), dir.path().join("password"));
    fs::write(&password, "none").unwrap();
    let restic = |arguments: &[&str]| -> Vec<String> {
        let (repository, password) = (repository.to_str().unwrap(), password.to_str().unwrap());
        let common = ["restic", "--quiet", "--no-cache", "--repo", repository, "--password-file", password];
        words(&[&common, arguments].concat())
    };
    finish(&mut plain(&restic(&["init"]))).expect_success();
    evict(&source);
    let backup = restic(&["backup", source.to_str().unwrap()]);
    site.try_out("Go (restic backup)", &[], &backup, of_source, || of_copy(&repository));
    finish(&mut plain(&restic(&["check", "--read-data"]))).expect_success();
    assert!(site.failures.is_empty(), "{:#?}", site.failures);
}

fn plain(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

fn files_below(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    entries.flatten().flat_map(|entry| files_below(&entry.path())).collect()
}
