//! The guard behind streaming programs: pages they bring into the page cache go, pages that were
//! there before stay.
//!
//! Needs root, a kernel whose events can be followed, `dd`, `cat` and `setpriv`; skips with a
//! sentence otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. The streams' pace is set
//! by what is resident: each continues when the guard has released the pages behind it, however
//! busy the host is. A page counts as lost if it is neither resident nor reclaimed by the kernel
//! (`nr_evicted` of cachestat(2)).

use crate::support;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::MIB;
use crate::support::guard::{EndedGuard, Guard};
use pagekeeper_kernel::{InspectedFile, Links, residency, resident_extents};

const REQUIRED_PROGRAMS: [&str; 3] = ["dd", "cat", "setpriv"];
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Size of a stream's file.
const FILE_BYTES: u64 = 128 * MIB;
/// Bytes of a stream between two samples of the test.
const STEP_BYTES: u64 = 8 * MIB;
/// Maximum resident bytes of its file while it runs.
const RESIDENT_BYTES_MAX: u64 = 32 * MIB;

fn written(path: PathBuf, size: u64) -> PathBuf {
    let mut file = File::create(&path).expect("make a file");
    let piece: Vec<u8> = (0..MIB).map(|at| u8::try_from(at % 251).expect("less than 256")).collect();
    for _ in 0..size / MIB {
        file.write_all(&piece).expect("write a file");
    }
    file.sync_all().expect("sync a file");
    path
}

/// Returns a file with no page in the page cache.
fn cold_file(path: PathBuf, size: u64) -> PathBuf {
    let path = written(path, size);
    drop_pages(&path);
    path
}

fn drop_pages(path: &Path) {
    let file = File::open(path).expect("open a file");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("give advice");
    assert_eq!(resident(path), 0);
}

/// Reads a part of a file into the page cache, without read-ahead.
fn warm(path: &Path, start: u64, end: u64) {
    let file = File::open(path).expect("open a file");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("give advice");
    let mut piece = vec![0; 1 << 20];
    for at in (start..end).step_by(1 << 20) {
        file.read_exact_at(&mut piece, at).expect("read a file");
    }
}

fn resident(path: &Path) -> u64 {
    let file = InspectedFile::open(path, Links::Refuse).expect("open a file");
    residency(&file, 0..u64::MAX).expect("root may read it").resident
}

fn extents(path: &Path) -> Vec<Range<u64>> {
    let file = InspectedFile::open(path, Links::Refuse).expect("open a file");
    let extents = resident_extents(&file, 0..u64::MAX).expect("root may read it");
    extents.collect::<Result<_, _>>().expect("root may read it")
}

/// Returns the bytes in a part of a file that are neither resident nor reclaimed by the kernel.
fn lost_bytes(path: &Path, start: u64, end: u64) -> u64 {
    let file = InspectedFile::open(path, Links::Refuse).expect("open a file");
    let counts = residency(&file, start..end).expect("root may read it");
    (end - start).saturating_sub(counts.resident + counts.evicted.expect("cachestat is there"))
}

fn wait_until(path: &Path, what: &str, enough: impl Fn(u64) -> bool) {
    let began = Instant::now();
    while !enough(resident(path)) {
        assert!(began.elapsed() < WAIT_TIMEOUT, "{what}: resident is {:?}", extents(path));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a configuration that only follows the streams of one program.
fn configure(directory: &Path, program: Option<&str>) -> PathBuf {
    let streams = program.map(|name| format!("[streams]\nprocesses = [\"{name}\"]\n")).unwrap_or_default();
    let nowhere = directory.join("nowhere");
    let nowhere = nowhere.display();
    let text = format!("tick = \"250ms\"\nidle_tick = \"250ms\"\ndirectories = [\"{nowhere}\"]\n{streams}");
    let config = directory.join("guard.toml");
    std::fs::write(&config, text).expect("write the configuration");
    config
}

/// Starts a guard that only follows the streams of one program; `None` if this kernel does not
/// allow that.
fn guard(directory: &Path, program: &str) -> Option<Guard> {
    let config = configure(directory, Some(program));
    let guard = Guard::spawn(&["--config", config.to_str().expect("a path of this test's own")]);
    guard.wait_for("tick", WAIT_TIMEOUT, |_| true);
    let gap = |event: &serde_json::Value| {
        event["gap"].as_str().is_some_and(|gap| gap.starts_with("streams are not"))
    };
    if guard.has_event("visibility_gap", gap) {
        pagekeeper_testing::skip("streams from outside need a kernel whose events can be followed.");
        return None;
    }
    Some(guard)
}

fn reader(program: &str, path: &Path) -> Child {
    let mut command = Command::new(program);
    match program {
        "dd" => command.arg(format!("if={}", path.display())).args(["bs=1M", "status=none"]),
        _ => command.arg(path),
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start a reader")
}

/// Lets a reader go through its file in steps, and calls `each` after every step.
fn read_through(reader: &mut Child, mut each: impl FnMut()) {
    let output = reader.stdout.as_mut().expect("piped");
    let mut piece = vec![0; usize::try_from(STEP_BYTES).expect("it is small")];
    for _ in 0..FILE_BYTES / STEP_BYTES {
        output.read_exact(&mut piece).expect("read what it reads");
        each();
    }
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).expect("read what it reads");
    assert!(rest.is_empty());
    assert!(reader.wait().expect("wait for the reader").success());
}

fn released(ended: &EndedGuard, program: &str) -> u64 {
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    ended.summary()["released_behind_streams_bytes"][program].as_u64().unwrap_or(0)
}

#[test]
#[ignore = "long: make test-stories"]
fn a_reader_s_file_goes_behind_it_and_others_files_stay() {
    if !support::can_run("a stream that reads", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let hot = written(scratch.path().join("hot"), 64 * MIB);
    let of_another = cold_file(scratch.path().join("of-another"), FILE_BYTES);
    let stream = cold_file(scratch.path().join("stream"), FILE_BYTES);
    warm(&hot, 0, 64 * MIB);
    let Some(guard) = guard(scratch.path(), "dd") else { return };
    let mut reader_of_another = reader("cat", &of_another);
    read_through(&mut reader_of_another, || ());
    let mut dd = reader("dd", &stream);
    read_through(&mut dd, || {
        wait_until(&stream, "behind the reader", |resident| resident <= RESIDENT_BYTES_MAX);
    });
    wait_until(&stream, "after the reader", |resident| resident == 0);
    guard.wait_for("stream_ended", WAIT_TIMEOUT, |event| event["pid"] == dd.id());
    assert_eq!(lost_bytes(&hot, 0, 64 * MIB), 0);
    assert_eq!(lost_bytes(&of_another, 0, FILE_BYTES), 0, "cat is no streaming program");
    let ended = guard.stop();
    assert!(released(&ended, "dd") > 0, "{}", ended.summary());
    assert_eq!(released(&ended, "cat"), 0);
}

#[test]
fn the_hot_half_of_a_file_stays() {
    if !support::can_run("a stream of a hot file", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let stream = cold_file(scratch.path().join("stream"), FILE_BYTES);
    // The second half, and every other page of a window of the first.
    warm(&stream, FILE_BYTES / 2, FILE_BYTES);
    let file = File::open(&stream).expect("open a file");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("give advice");
    for at in (48 * MIB..50 * MIB).step_by(8192) {
        file.read_exact_at(&mut [0; 4096], at).expect("read a file");
    }
    let Some(guard) = guard(scratch.path(), "dd") else { return };
    let hot = FILE_BYTES / 2 + MIB;
    let mut dd = reader("dd", &stream);
    read_through(&mut dd, || {
        wait_until(&stream, "behind the reader", |resident| resident <= RESIDENT_BYTES_MAX + hot);
    });
    guard.wait_for("stream_ended", WAIT_TIMEOUT, |event| event["pid"] == dd.id());
    wait_until(&stream, "after the reader", |resident| resident <= hot + MIB);
    // The stream reread pages that the kernel had evicted: single pages, on a machine that
    // returns unused memory.
    let lost_pages = lost_bytes(&stream, FILE_BYTES / 2, FILE_BYTES);
    assert!(lost_pages < MIB, "{lost_pages} bytes of the hot half are lost");
    let hot_pages = (48 * MIB..50 * MIB).step_by(8192);
    let lost_pages: Vec<u64> = hot_pages.filter(|at| lost_bytes(&stream, *at, at + 4096) > 0).collect();
    assert!(lost_pages.len() < 16, "the pages at {lost_pages:?} were hot");
    assert!(released(&guard.stop(), "dd") > 0);
}

#[test]
fn pages_others_read_behind_a_reader_stay() {
    if !support::can_run("others behind a stream", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let stream = cold_file(scratch.path().join("stream"), FILE_BYTES);
    let Some(guard) = guard(scratch.path(), "dd") else { return };
    let mut dd = reader("dd", &stream);
    let warmed = 32 * MIB;
    let mut steps = 0;
    read_through(&mut dd, || {
        steps += 1;
        let others = if steps > 8 { warmed } else { 0 };
        wait_until(&stream, "behind the reader", |resident| resident <= RESIDENT_BYTES_MAX + others);
        if steps == 8 {
            // Also where pages ahead of the reader can't be counted.
            let here = InspectedFile::open(&stream, Links::Refuse).expect("open a file");
            let behind = || residency(&here, 0..warmed).expect("root may read it").resident;
            let began = Instant::now();
            while behind() > 0 && began.elapsed() < WAIT_TIMEOUT {
                std::thread::sleep(Duration::from_millis(10));
            }
            warm(&stream, 0, warmed);
        }
    });
    guard.wait_for("stream_ended", WAIT_TIMEOUT, |event| event["pid"] == dd.id());
    wait_until(&stream, "after the reader", |resident| resident <= warmed);
    guard.wait_for_ticks(3);
    assert_eq!(lost_bytes(&stream, 0, warmed), 0);
    assert!(released(&guard.stop(), "dd") > 0);
}

#[test]
fn pages_others_read_ahead_of_a_reader_stay() {
    if !support::can_run("others ahead of a stream", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let stream = cold_file(scratch.path().join("stream"), FILE_BYTES);
    let Some(guard) = guard(scratch.path(), "dd") else { return };
    let mut dd = reader("dd", &stream);
    // Pages next to the stream's position were read ahead for it.
    let far = 48 * MIB;
    let mut is_first = true;
    read_through(&mut dd, || {
        if std::mem::take(&mut is_first) {
            guard.wait_for("stream", WAIT_TIMEOUT, |_| true);
            read_through(&mut reader("cat", &stream), || ());
        }
    });
    guard.wait_for("stream_ended", WAIT_TIMEOUT, |event| event["pid"] == dd.id());
    guard.wait_for_ticks(3);
    assert_eq!(lost_bytes(&stream, far, FILE_BYTES), 0);
    assert!(released(&guard.stop(), "dd") > 0);
}

#[test]
fn pages_of_a_writer_are_written_out_and_go() {
    if !support::can_run("a stream that writes", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let path = scratch.path().join("stream");
    let Some(guard) = guard(scratch.path(), "dd") else { return };
    let mut writer = Command::new("dd")
        .arg(format!("of={}", path.display()))
        .args(["bs=1M", "iflag=fullblock", "status=none"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("start a writer");
    let mut input = writer.stdin.take().expect("piped");
    let piece: Vec<u8> = (0..STEP_BYTES).map(|at| u8::try_from(at % 241).expect("less than 256")).collect();
    for _ in 0..FILE_BYTES / STEP_BYTES {
        input.write_all(&piece).expect("write what it writes");
        if path.exists() {
            wait_until(&path, "behind the writer", |resident| resident <= RESIDENT_BYTES_MAX);
        }
    }
    drop(input);
    assert!(writer.wait().expect("wait for the writer").success());
    wait_until(&path, "after the writer", |resident| resident == 0);
    assert!(released(&guard.stop(), "dd") > 0);
    let wrong =
        std::fs::read(&path).expect("read it").chunks(piece.len()).filter(|part| *part != piece).count();
    assert_eq!((wrong, std::fs::metadata(&path).expect("it is there").len()), (0, FILE_BYTES));
}

#[test]
fn a_running_reader_without_a_position_is_followed() {
    if !support::can_run("a stream that reads by pread", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let stream = cold_file(scratch.path().join("stream"), FILE_BYTES);
    let hot = 16 * MIB;
    warm(&stream, FILE_BYTES - hot, FILE_BYTES);
    // This process itself is the stream.
    let name = std::fs::read_to_string("/proc/self/comm").expect("a process has a name");
    let Some(guard) = guard(scratch.path(), name.trim()) else { return };
    let file = File::open(&stream).expect("open a file");
    let mut piece = vec![0; 1 << 20];
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        file.read_exact_at(&mut piece, at).expect("read a file");
        if at % STEP_BYTES == 0 {
            wait_until(&stream, "behind the reader", |resident| resident <= RESIDENT_BYTES_MAX + hot);
        }
    }
    drop(file);
    wait_until(&stream, "after the reader", |resident| resident <= hot);
    assert_eq!(lost_bytes(&stream, FILE_BYTES - hot, FILE_BYTES), 0);
    guard.wait_for("stream", WAIT_TIMEOUT, |event| event["pid"] == std::process::id());
    guard.stop();
}

/// Runs `cp` and a program with a database's name, both started by a stream.
fn copy_beside_a_database(directory: &Path, from: &[PathBuf], of_database: &Path) {
    let (into, database) = (directory.join("copies"), directory.join("mariadbd"));
    std::fs::create_dir_all(&into).expect("make a directory");
    let _ = std::os::unix::fs::symlink("/bin/cat", &database);
    let script =
        "into=$1 database=$2 file=$3; shift 3; cp \"$@\" \"$into\"; \"$database\" \"$file\" >/dev/null; :";
    let mut shell = Command::new("dash");
    let shell = shell.args(["-c", script, "dash"]).args([&into, &database]).arg(of_database).args(from);
    assert!(shell.status().expect("start a shell").success());
}

#[test]
fn children_of_a_stream_are_followed_except_databases_until_a_reload() {
    const FILE_COUNT: u64 = 100;
    if !support::can_run("children of a stream", &["dash", "cp", "setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let small: Vec<PathBuf> = (0..FILE_COUNT)
        .map(|number| cold_file(scratch.path().join(format!("small-{number}")), MIB))
        .collect();
    let of_database = cold_file(scratch.path().join("table"), 16 * MIB);
    let Some(guard) = guard(scratch.path(), "dash") else { return };
    copy_beside_a_database(scratch.path(), &small, &of_database);
    let copies: Vec<PathBuf> =
        (0..FILE_COUNT).map(|number| scratch.path().join(format!("copies/small-{number}"))).collect();
    // Each was open for a moment.
    let all_resident = |paths: &[PathBuf]| paths.iter().map(|path| resident(path)).sum::<u64>();
    support::eventually("all that was copied is released", WAIT_TIMEOUT, || {
        (all_resident(&small) + all_resident(&copies) == 0).then_some(())
    });
    assert_eq!(lost_bytes(&of_database, 0, 16 * MIB), 0, "a database is no stream");

    configure(scratch.path(), None);
    guard.hang_up();
    guard.wait_for_ticks(4);
    copy_beside_a_database(scratch.path(), &small, &of_database);
    guard.wait_for_ticks(8);
    let lost_bytes: u64 = small.iter().map(|path| lost_bytes(path, 0, MIB)).sum();
    assert_eq!(lost_bytes, 0, "no stream is followed any more");

    configure(scratch.path(), Some("cp"));
    guard.hang_up();
    guard.wait_for_ticks(4);
    for path in &small {
        drop_pages(path);
    }
    copy_beside_a_database(scratch.path(), &small, &of_database);
    support::eventually("it is released again", WAIT_TIMEOUT, || (all_resident(&small) == 0).then_some(()));
    let ended = guard.stop();
    assert!(released(&ended, "cp") >= 3 * FILE_COUNT * MIB, "{}", ended.summary());
    assert_eq!(released(&ended, "mariadbd"), 0, "{}", ended.summary());
}

/// Starts an idle process of another user with the name of a streaming program and this many
/// descriptors of a file.
fn start_impostor(program: &Path, file: &Path, descriptors: u32) -> Child {
    const HOLD: &str =
        "ulimit -n 20000; for ((at = 0; at < $2; at++)); do exec {held}< \"$0\"; done; exec \"$1\" 1000";
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--pdeathsig=KILL", "--"]);
    command.args(["bash", "-c", HOLD]).arg(file).arg(program).arg(descriptors.to_string());
    command.stdin(Stdio::null()).spawn().expect("start a program")
}

#[test]
fn many_impostors_of_streams_cost_little_and_delay_no_other_user() {
    const MEASURED_TIME: Duration = Duration::from_secs(10);
    if !support::can_run("processes that are called as streams", &["dd", "setpriv", "bash"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let stream = cold_file(scratch.path().join("stream"), FILE_BYTES);
    let (program, held) = (scratch.path().join("dd"), scratch.path().join("held"));
    std::os::unix::fs::symlink("/bin/sleep", &program).expect("make a link");
    let held = written(held, 8 * MIB);
    let mut hostile: Vec<Child> =
        (0..100).map(|at| start_impostor(&program, &held, if at == 0 { 16_000 } else { 1 })).collect();
    for process in &hostile {
        support::eventually("it is called as a stream", WAIT_TIMEOUT, || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", process.id())).ok()?;
            (name.trim() == "dd").then_some(())
        });
    }

    let Some(guard) = guard(scratch.path(), "dd") else { return };
    let before = support::cpu_seconds(guard.pid());
    std::thread::sleep(MEASURED_TIME);
    let share = (support::cpu_seconds(guard.pid()) - before) / MEASURED_TIME.as_secs_f64();
    assert!(share < 0.1, "{share} of a core");

    let mut dd = reader("dd", &stream);
    read_through(&mut dd, || {
        wait_until(&stream, "behind the reader", |resident| resident <= RESIDENT_BYTES_MAX);
    });
    guard.wait_for("stream_ended", WAIT_TIMEOUT, |event| event["pid"] == dd.id());
    for process in &mut hostile {
        process.kill().and_then(|()| process.wait()).expect("end it");
    }
    assert!(released(&guard.stop(), "dd") > 0);
}

#[test]
fn streams_are_followed_only_on_request() {
    if !support::can_run("streams that are left alone", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let stream = cold_file(scratch.path().join("stream"), FILE_BYTES);
    let config = scratch.path().join("guard.toml");
    std::fs::write(&config, "tick = \"50ms\"\n").expect("write the configuration");
    let config = config.to_str().expect("a path of this test's own");
    for arguments in [vec!["--config", config], vec!["--streams", "--dry-run", "--tick", "50ms"]] {
        let guard = Guard::spawn(&arguments);
        guard.wait_for("tick", WAIT_TIMEOUT, |_| true);
        drop_pages(&stream);
        let mut dd = reader("dd", &stream);
        read_through(&mut dd, || guard.wait_for_ticks(1));
        assert_eq!(lost_bytes(&stream, 0, FILE_BYTES), 0);
        let ended = guard.stop();
        assert_eq!(released(&ended, "dd"), 0);
        let reported =
            ended.events.iter().filter(|event| event["event"] == "stream" && event["pid"] == dd.id()).count();
        let would = ended.events.iter().any(|event| {
            event["event"] == "would" && event["path"].as_str().map(Path::new) == Some(stream.as_path())
        });
        let is_followed = arguments.contains(&"--streams");
        assert_eq!((reported, would), (usize::from(is_followed), is_followed));
    }
}
