//! `RocksDB` over the page cache, by the C interface: Debian's own `db_bench` and `ldb` with the
//! library preloaded, and a program that compares a database with a model in memory. The kernel
//! reports what is resident.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use pagekeeper_kernel::{InspectedFile, Links, residency};
use pagekeeper_testing::{Mounted, built_beside, disk_dir, skip};

const URI: &str = "pagekeeper://?cache=2m";
const MIB: u64 = 1 << 20;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Whether `RocksDB` and everything needed to build against it are installed.
fn can_build() -> bool {
    let has = Path::new("/usr/include/rocksdb/file_system.h").exists()
        && ["db_bench", "ldb", "c++"].iter().all(|program| {
            Command::new("which").arg(program).output().is_ok_and(|found| found.status.success())
        });
    if !has {
        skip("RocksDB's tools and headers, or a C++ compiler, are not installed");
    }
    has
}

fn succeeded(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}\n{said}");
    said
}

/// Returns the library and the program with the model, built once.
fn built() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rocksdb");
        let mut build = Command::new(repository().join("scripts/build-rocksdb.sh"));
        build.arg(&to).arg(built_beside("libpagekeeper_capi-", ".a")).env("CARGO", env!("CARGO"));
        succeeded(&mut build);
        let story = to.join("story");
        let source = repository().join("integrations/rocksdb/tests/story.cc");
        let mut compile = Command::new("c++");
        compile
            .args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            .arg(source)
            .arg("-o")
            .arg(&story);
        succeeded(compile.args(["-lrocksdb", "-lpthread"]));
        (to.join("librocksdb_pagekeeper.so"), story)
    })
}

fn preloaded(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env("LD_PRELOAD", &built().0);
    command
}

fn story(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = preloaded(&built().1);
    command.arg(URI).arg(directory).args(arguments);
    command
}

/// Returns the bytes of table files that are in the kernel's page cache, and their total size.
fn resident_tables(directory: &Path) -> (u64, u64) {
    let (mut resident, mut all) = (0, 0);
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "sst" || end == "blob") {
            let file = InspectedFile::open(&path, Links::Refuse).unwrap();
            resident += residency(&file, 0..u64::MAX).unwrap().resident;
            all += file.size();
        }
    }
    (resident, all)
}

/// Returns a `db_bench` command for a database in a directory.
fn db_bench(directory: &Path, benchmarks: &str) -> Command {
    let mut command = preloaded("db_bench");
    command.arg(format!("--db={}", directory.display())).arg(format!("--benchmarks={benchmarks}"));
    command.args([
        "--num=20000",
        "--value_size=400",
        "--write_buffer_size=1000000",
        "--compression_type=none",
    ]);
    command.args(["--target_file_size_base=1000000", "--verify_checksum=true", "--seed=7"]);
    command
}

#[test]
fn random_operations_match_a_model() {
    if !can_build() {
        return;
    }
    // Values in tables, and in blob files.
    for seed in ["1", "2"] {
        let dir = disk_dir();
        let said = succeeded(&mut story(dir.path(), &[seed, "3000"]));
        assert!(said.ends_with("right\n"), "seed {seed}: {said}");
        let (resident, all) = resident_tables(&dir.path().join("db"));
        assert!(all > 0 && resident == 0, "seed {seed}: {resident} of {all} bytes of tables are resident");
    }
}

#[test]
fn acknowledged_commits_survive_kills() {
    if !can_build() {
        return;
    }
    let dir = disk_dir();
    let mut last = 0;
    for round in 0..5 {
        let mut writer = story(dir.path(), &["write"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let until = Instant::now() + Duration::from_millis(300 + 70 * round);
        // At least some, however slow the disk is.
        for nth in 0.. {
            last = lines.next().expect("it writes").unwrap().parse().unwrap();
            if nth > 20 && Instant::now() > until {
                break;
            }
        }
        writer.kill().unwrap();
        last = lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).last().unwrap_or(last);
        writer.wait().unwrap();
        let said = succeeded(&mut story(dir.path(), &["check", &u64::to_string(&last)]));
        assert!(said.ends_with("right\n"), "round {round}, {last}: {said}");
    }
    succeeded(
        preloaded("ldb").arg("checkconsistency").arg(format!("--db={}", dir.path().join("db").display())),
    );
}

#[test]
fn a_forked_child_is_refused_and_its_parents_files_still_work() {
    if !can_build() {
        return;
    }
    for way in ["fork", "twice", "threads", "exec"] {
        let dir = disk_dir();
        let output = story(dir.path(), &["fork", way]).output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{way}: {output:?}");
        for name in ["000001.log", "000002.sst"] {
            let written = std::fs::read(dir.path().join(name)).unwrap();
            assert_eq!(String::from_utf8_lossy(&written), "a record".repeat(8), "{way}: {name}");
        }
    }
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing_acknowledged() {
    if !can_build() {
        return;
    }
    let Some(mounted) = Mounted::new("xfs") else { return };
    let (filler, directory) = (mounted.path().join("filler"), mounted.path().join("data"));
    std::fs::create_dir(&directory).unwrap();
    // Everything except a few MiB.
    let free = rustix::fs::statvfs(mounted.path()).unwrap();
    let taken = free.f_bavail * free.f_frsize - (12 << 20);
    let file = std::fs::File::create(&filler).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    let output = story(&directory, &["write"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("No space left on device"), "{said}");
    let acknowledged = String::from_utf8_lossy(&output.stdout);
    let last = acknowledged.lines().last().expect("some were acknowledged before").to_owned();
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    let said = succeeded(&mut story(&directory, &["check", &last]));
    assert!(said.ends_with("right\n"), "{said}");
}

/// A program that prints "ready" and waits for a line.
struct Waiting {
    story: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Waiting {
    fn start(mut story: Command) -> Self {
        let mut story = story.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(story.stdout.take().unwrap()).lines();
        Self { story, lines }
    }

    /// Waits until it prints this line; its errors are on standard error.
    fn until(&mut self, said: &str) {
        let line = self.lines.next().expect("the story continues").unwrap();
        assert_eq!(line, said);
    }

    fn go_on(&mut self) {
        self.story.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.story.kill();
        let _ = self.story.wait();
    }
}

/// The disk is a loop device over a file. Bytes that are cut off that file cannot be read until
/// they are back.
#[test]
fn a_failing_disk_is_an_error_until_it_works_again() {
    if !can_build() {
        return;
    }
    let Some(mounted) = Mounted::new("ext4") else { return };
    let directory = mounted.path().join("data");
    std::fs::create_dir(&directory).unwrap();
    let mut command = story(&directory, &["faults"]);
    command.stderr(Stdio::inherit());
    let mut story = Waiting::start(command);
    story.until("ready");

    // No page of the tables is dirty, and nothing is written while the device fails: it would be
    // lost.
    let frozen = mounted.freeze();
    let copy = mounted.image().with_extension("copy");
    succeeded(Command::new("cp").arg("--sparse=always").arg(mounted.image()).arg(&copy));
    let image = File::options().read(true).write(true).open(mounted.image()).unwrap();
    let size = image.metadata().unwrap().len();
    image.set_len(4096).unwrap();
    story.go_on();
    story.until("ready");

    image.set_len(size).unwrap();
    let mut put_back = Command::new("dd");
    put_back.args(["bs=1M", "conv=notrunc,sparse", "status=none"]);
    put_back.arg(format!("if={}", copy.display())).arg(format!("of={}", mounted.image().display()));
    succeeded(&mut put_back);
    drop(frozen);
    story.go_on();
    story.until("right");
    assert!(story.story.wait().unwrap().success());
    let checked = preloaded("ldb")
        .arg("checkconsistency")
        .arg(format!("--db={}", directory.join("db").display()))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

/// Returns the bytes of logs that are in the kernel's page cache, and their total size.
fn resident_logs(directory: &Path) -> (u64, u64) {
    let (mut resident, mut all) = (0, 0);
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "log") {
            let file = InspectedFile::open(&path, Links::Refuse).unwrap();
            resident += residency(&file, 0..u64::MAX).unwrap().resident;
            all += file.size();
        }
    }
    (resident, all)
}

/// Whether a guard runs on this machine, as other tests start them: it releases the logs of every
/// RocksDB.
fn a_guard_runs() -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok()).any(|line| {
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|program| program.ends_with(b"pagekeeper"))
            && words.any(|word| word == b"guard")
    })
}

#[test]
fn a_log_is_released_as_it_is_synced_but_for_one_that_will_be_written_over() {
    if !can_build() {
        return;
    }
    for (uri, recycled, kept) in [
        ("pagekeeper://?cache=2m", "0", false),
        ("pagekeeper://?cache=2m", "2", true),
        ("pagekeeper://?cache=2m&wal=keep", "0", true),
    ] {
        let dir = disk_dir();
        let mut command = preloaded(&built().1);
        command.arg(uri).arg(dir.path()).args(["log", recycled]).stderr(Stdio::inherit());
        let guarded = a_guard_runs();
        let mut story = Waiting::start(command);
        story.until("ready");
        // While it is open, its last page is being written.
        let (resident, all) = resident_logs(&dir.path().join("db"));
        assert!(all > 24 * MIB, "{uri}, {recycled} recycled: logs of {all} bytes");
        let wrong = format!("{uri}, {recycled} recycled: {resident} of {all} bytes are resident");
        let guarded = guarded || a_guard_runs();
        assert!(if kept { guarded || resident > 16 * MIB } else { resident < 4 * MIB }, "{wrong}");
        story.go_on();
        story.until("right");
    }
}

#[test]
fn an_unmodified_program_takes_it_by_a_uri() {
    if !can_build() {
        return;
    }
    let dir = disk_dir();
    let said = succeeded(
        db_bench(dir.path(), "fillrandom,compact,readrandom,multireadrandom").arg(format!("--fs_uri={URI}")),
    );
    assert!(said.contains("multireadrandom"), "{said}");
    let (resident, all) = resident_tables(dir.path());
    assert!(all > 1_000_000 && resident == 0, "{resident} of {all} bytes of tables are resident");
    let checked =
        succeeded(preloaded("ldb").args(["checkconsistency"]).arg(format!("--db={}", dir.path().display())));
    assert!(checked.contains("OK"), "{checked}");
}

/// Returns the file system's lines in the info log of a database of `db_bench`.
fn logged(directory: &Path, uri: &str) -> Vec<String> {
    succeeded(db_bench(directory, "fillrandom,compact,readrandom").arg(format!("--fs_uri={uri}")));
    let log = std::fs::read_to_string(directory.join("LOG")).unwrap();
    let said =
        log.lines().filter_map(|line| line.split_once("pagekeeper: ")).map(|(_, said)| said.to_owned());
    said.collect()
}

/// Returns `HOW through ...: WHY` of each line about a table.
fn logged_of_tables(directory: &Path, uri: &str) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for line in logged(directory, uri) {
        let (table, how) = line.split_once(" is ").unwrap_or_else(|| panic!("{line}"));
        assert!(
            table.starts_with(directory.to_str().unwrap())
                && Path::new(table).extension() == Some("sst".as_ref()),
            "{line}"
        );
        said.push(how.to_owned());
    }
    said.sort();
    said
}

#[test]
fn tables_in_the_kernels_page_cache_are_named_in_the_info_log() {
    if !can_build() {
        return;
    }
    let Some(mounted) = Mounted::with_blocks(16 << 10) else { return };
    let because =
        "through the kernel's page cache: direct I/O needs blocks of 16384 bytes here, more than 4096";
    let (read, written) = (format!("read {because}"), format!("written {because}"));
    let (small, large) = (mounted.path().join("small"), mounted.path().join("large"));
    assert_eq!(logged_of_tables(&small, URI), [read, written.clone()]);
    assert_eq!(logged_of_tables(&large, "pagekeeper://?cache=2m&page=16k"), [written]);
    let Some(memory) = Mounted::new("tmpfs") else { return };
    let because = "through the kernel's page cache: the file system offers no direct I/O for it";
    let wanted = [format!("read {because}"), format!("written {because}")];
    assert_eq!(logged_of_tables(memory.path(), URI), wanted);
    // Nothing to say.
    let disk = Mounted::new("ext4").unwrap();
    assert_eq!(logged(&disk.path().join("db"), URI), [""; 0]);
}

#[test]
fn a_program_without_a_uri_takes_it_by_the_environment() {
    if !can_build() {
        return;
    }
    let dir = disk_dir();
    // First with its own file system: then tables are resident.
    succeeded(db_bench(dir.path(), "fillrandom,compact").env_remove("LD_PRELOAD"));
    let (before, all) = resident_tables(dir.path());
    assert!(before > all / 2, "{before} of {all} bytes were resident");
    let mut read = db_bench(dir.path(), "readrandom,compact");
    succeeded(read.arg("--use_existing_db").env("PAGEKEEPER_ROCKSDB", "all"));
    let (after, all) = resident_tables(dir.path());
    assert!(all > 0 && after == 0, "{after} of {all} bytes stay");

    let mut wrong = db_bench(dir.path(), "readrandom");
    let said = succeeded(wrong.arg("--use_existing_db").env("PAGEKEEPER_ROCKSDB", "pagekeeper://?cash=1"));
    assert!(
        said.contains("PAGEKEEPER_ROCKSDB=pagekeeper://?cash=1 is not used: \"cash=1\" is no setting"),
        "{said}"
    );
}

#[test]
fn an_unknown_setting_is_refused_with_a_message() {
    if !can_build() {
        return;
    }
    let dir = disk_dir();
    for (uri, wanted) in [
        ("pagekeeper://?cache=much", "\"cache=much\" is no setting"),
        ("pagekeeper://?cache=1", "1 bytes of memory are too few"),
        ("pagekeeper://?page=5000", "a page of 5000 bytes"),
    ] {
        let output = db_bench(dir.path(), "readrandom").arg(format!("--fs_uri={uri}")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{uri}: {said}");
    }
}
