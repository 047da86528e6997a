//! Programs that outrun their disk are held: at most about the bound of what they write is
//! unwritten, and they are as without it.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pagekeeper_kernel::{InspectedFile, Links, residency};
use pagekeeper_streams::{StreamEvent, StreamOptions, StreamPace, Streams, Verdict};
use pagekeeper_testing::{Grandchild, Mounted, ThrottledDisk, skip};

const MIB: u64 = 1 << 20;
/// Maximum dirty bytes while 256 MiB or more are written: twelve times the bound, since the
/// follower may have to wait for a processor.
const UNWRITTEN_MAX: u64 = 192 * MIB;
/// The same beside a follower that is late by 0.3 s each time.
const UNWRITTEN_LATE_MAX: u64 = 128 * MIB;
/// A program may write hundreds of megabytes before its follower gets a processor for the first
/// time: the bound has to be kept in one of these attempts.
const ATTEMPTS: usize = 3;
/// A deadline longer than any of it takes on a busy machine.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(120);

/// Makes a file system on a device of some MiB a second.
fn slow_disk(mib_per_second: u64) -> Option<ThrottledDisk> {
    ThrottledDisk::new("ext4", "a program that outruns its disk", 1 << 30, mib_per_second * MIB)
}

fn streams(pace: StreamPace) -> Option<Streams> {
    // As `run` does: other tests want the processor, too.
    let _ = rustix::process::setpriority_process(None, -20);
    let decide = Box::new(|_, _: Option<&Path>| Verdict::Release);
    let options = StreamOptions {
        names: Vec::new(),
        members: None,
        never: vec!["pk-database".to_owned()],
        decide,
        pace,
    };
    Streams::start(options).map_err(skip).ok()
}

/// Lets a program start, followed.
fn begin(program: &mut Grandchild, streams: &mut Streams) {
    streams.follow(program.pid()).unwrap();
    program.begin();
}

fn is_held(program: &Grandchild) -> bool {
    program.status("State:").starts_with('t')
}

/// Steps until that is so.
fn until(streams: &mut Streams, mut is_so: impl FnMut(&Streams) -> bool) -> Vec<StreamEvent> {
    let end = Instant::now() + FOLLOW_TIMEOUT;
    let mut events = Vec::new();
    loop {
        events.extend(streams.step());
        if is_so(streams) {
            return events;
        }
        assert!(Instant::now() < end, "{:?} {events:?}", streams.report());
        streams.wait(Duration::from_millis(10));
    }
}

/// Returns the bytes of a file that are dirty or in writeback.
fn unwritten(path: &Path) -> u64 {
    InspectedFile::open(path, Links::Refuse)
        .and_then(|file| residency(&file, 0..u64::MAX))
        .map_or(0, |counted| counted.unwritten())
}

fn noise(path: &Path, bytes: u64) {
    let mut random = File::open("/dev/urandom").unwrap().take(bytes);
    std::io::copy(&mut random, &mut File::create(path).unwrap()).unwrap();
}

/// Fails unless an attempt leaves at most `bound` unwritten. An attempt returns the most
/// it saw, and its report.
fn is_bounded(what: &str, bound: u64, mut attempt: impl FnMut() -> (u64, String)) {
    let mut failed = Vec::new();
    for _ in 0..ATTEMPTS {
        let (most, report) = attempt();
        if most <= bound {
            return;
        }
        failed.push(format!("{most} unwritten, {report}"));
    }
    panic!("{what}: {failed:#?}");
}

/// Steps until the program has ended and nothing of it is left. Returns the maximum of unwritten
/// bytes of these files.
fn most_unwritten(streams: &mut Streams, files: &[PathBuf]) -> (u64, Vec<StreamEvent>) {
    let mut most = 0;
    let events = until(streams, |streams| {
        most = most.max(files.iter().map(|file| unwritten(file)).sum());
        streams.running() == 0 && !streams.is_busy()
    });
    (most, events)
}

#[test]
fn a_copy_never_has_much_more_than_the_bound_unwritten() {
    let Some(disk) = slow_disk(60) else { return };
    let Some(_) = streams(StreamPace::Auto) else { return };
    let dir = pagekeeper_testing::disk_dir();
    let (from, to) = (dir.path().join("from"), disk.path().join("to"));
    noise(&from, 512 * MIB);
    is_bounded("cp", UNWRITTEN_MAX, || {
        let mut streams = streams(StreamPace::Auto).unwrap();
        let mut program = Grandchild::later(&["cp", from.to_str().unwrap(), to.to_str().unwrap()]);
        begin(&mut program, &mut streams);
        let (most, events) = most_unwritten(&mut streams, std::slice::from_ref(&to));
        assert_eq!(program.end(), "code 0");
        let report = streams.report();
        assert!(most > 0 && report.held > Duration::ZERO, "{most} {report:?}");
        assert!(!events.iter().any(|event| matches!(event, StreamEvent::Problem { .. })), "{events:?}");
        assert!(Command::new("cmp").arg(&from).arg(&to).status().unwrap().success());
        let totals = report.totals;
        // On a busy machine the kernel drops a part of it before the release does.
        assert!(totals.resident == 0 && totals.released >= totals.added / 2, "{report:?}");
        std::fs::remove_file(&to).unwrap();
        (most, format!("{report:?}"))
    });
}

#[test]
fn several_files_overwrites_and_mappings_are_bounded_too() {
    if Command::new("fio").arg("--version").output().is_err() {
        return skip("writers of several kinds need fio");
    }
    let Some(disk) = slow_disk(60) else { return };
    let Some(mut streams) = streams(StreamPace::Auto) else { return };
    let directory = format!("--directory={}", disk.path().display());
    let files: Vec<PathBuf> = (0..4).map(|job| disk.path().join(format!("pk.{job}.0"))).collect();
    for (engine, overwrite) in [("psync", "1"), ("mmap", "1"), ("psync", "0")] {
        let words = [
            "fio",
            "--thread",
            "--name=pk",
            &directory,
            "--numjobs=4",
            "--size=64m",
            "--rw=write",
            "--bs=64k",
            "--rate=200m",
            "--invalidate=0",
            "--fallocate=none",
            &format!("--ioengine={engine}"),
            &format!("--overwrite={overwrite}"),
        ];
        is_bounded(&format!("{engine} {overwrite}"), UNWRITTEN_MAX, || {
            let mut program = Grandchild::later(&words);
            begin(&mut program, &mut streams);
            let (most, _) = most_unwritten(&mut streams, &files);
            assert!(program.end().ends_with("code 0"));
            (most, format!("{:?}", streams.report()))
        });
    }
    assert!(streams.report().held > Duration::ZERO);
}

#[test]
fn a_held_program_is_ended_by_its_signals_and_outlives_its_holder() {
    let Some(disk) = slow_disk(4) else { return };
    let to = format!("of={}", disk.path().join("to").display());
    for (signal, code) in [("TERM", "code 143"), ("INT", "code 130"), ("KILL", "code 137")] {
        let Some(mut streams) = streams(StreamPace::Auto) else { return };
        let mut program = Grandchild::later(&["dd", "if=/dev/zero", &to, "bs=1M"]);
        begin(&mut program, &mut streams);
        until(&mut streams, |_| is_held(&program));
        program.kill(signal);
        let pid = program.pid();
        let ended = std::thread::spawn(move || program.end());
        until(&mut streams, |_| ended.is_finished());
        assert_eq!(ended.join().unwrap(), code, "{signal}");
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        std::fs::remove_file(disk.path().join("to")).unwrap();
    }
    let Some(mut streams) = streams(StreamPace::Auto) else { return };
    let mut program = Grandchild::later(&["dd", "if=/dev/zero", &to, "bs=1M"]);
    begin(&mut program, &mut streams);
    until(&mut streams, |_| is_held(&program));
    drop(streams);
    let end = Instant::now() + FOLLOW_TIMEOUT;
    while is_held(&program) {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    program.kill("KILL");
    assert_eq!(program.end(), "code 137");
}

#[test]
fn a_program_whose_follower_is_late_is_bounded() {
    let Some(disk) = slow_disk(60) else { return };
    let Some(_) = streams(StreamPace::Auto) else { return };
    let to = disk.path().join("to");
    let output = format!("of={}", to.display());
    is_bounded("dd", UNWRITTEN_LATE_MAX, || {
        let mut streams = streams(StreamPace::Auto).unwrap();
        let mut program = Grandchild::later(&["dd", "if=/dev/zero", &output, "bs=1M", "count=384"]);
        begin(&mut program, &mut streams);
        until(&mut streams, |streams| streams.report().held > Duration::ZERO);
        let mut most = 0;
        until(&mut streams, |streams| {
            std::thread::sleep(Duration::from_millis(300));
            most = most.max(unwritten(&to));
            streams.running() == 0 && !streams.is_busy()
        });
        assert_eq!(program.end(), "code 0");
        (most, format!("{:?}", streams.report()))
    });
}

#[test]
fn a_program_with_two_followers_is_bounded_and_ends_as_without() {
    let Some(disk) = slow_disk(60) else { return };
    let (Some(mut outer), Some(mut inner)) = (streams(StreamPace::Auto), streams(StreamPace::Auto)) else {
        return;
    };
    let to = disk.path().join("to");
    let output = format!("of={}", to.display());
    is_bounded("dd", UNWRITTEN_MAX, || {
        let mut program = Grandchild::later(&["dd", "if=/dev/zero", &output, "bs=1M", "count=384"]);
        outer.follow(program.pid()).unwrap();
        begin(&mut program, &mut inner);
        let mut most = 0;
        until(&mut outer, |outer| {
            inner.step();
            most = most.max(unwritten(&to));
            [outer, &inner].iter().all(|streams| streams.running() == 0 && !streams.is_busy())
        });
        assert_eq!(program.end(), "code 0");
        assert!(most > 0);
        (most, format!("{:?}, {:?}", outer.report(), inner.report()))
    });
    let (outer, inner) = (outer.report(), inner.report());
    assert!(outer.held + inner.held > Duration::ZERO, "{outer:?}, {inner:?}");
    assert_eq!(outer.totals.resident + inner.totals.resident, 0, "{outer:?}, {inner:?}");
}

#[test]
fn unpaced_and_traced_processes_and_holders_of_awaited_locks_are_not_held() {
    let Some(disk) = slow_disk(60) else { return };
    let to = format!("of={}", disk.path().join("to").display());
    let dd = ["dd", "if=/dev/zero", &to, "bs=1M", "count=128"];
    let dir = pagekeeper_testing::disk_dir();
    let [lock, number, go] = ["lock", "number", "go"].map(|name| dir.path().join(name));
    let of_lock = format!(":{} ", File::create(&lock).unwrap().metadata().unwrap().ino());
    let is_awaited = || {
        let is_waiter = |line: &str| line.contains("->") && line.contains(&of_lock);
        std::fs::read_to_string("/proc/locks").unwrap().lines().any(is_waiter)
    };
    let wait = "echo $$ >\"$0\"; until [ -e \"$1\" ]; do sleep 0.1; done; shift; exec \"$@\"";
    let waits = [&["sh", "-c", wait, number.to_str().unwrap(), go.to_str().unwrap()][..], &dd].concat();
    let cases: [(StreamPace, &[&str]); 3] = [
        (StreamPace::Off, &["env"]),
        (StreamPace::Auto, &["flock", lock.to_str().unwrap()]),
        (StreamPace::Auto, &["strace", "-f", "-o", "/dev/null"]),
    ];
    for (pace, under) in cases {
        if Command::new(under[0]).arg("--help").output().is_err() {
            skip(format_args!("a program under {} needs it", under[0]));
            continue;
        }
        let Some(mut streams) = streams(pace) else { return };
        let program = Grandchild::start(&[under, &waits].concat());
        let mut line = String::new();
        until(&mut streams, |_| {
            line = std::fs::read_to_string(&number).unwrap_or_default();
            line.ends_with('\n')
        });
        // Not flock and strace, which may be held as readers of a disk on which other tests wait.
        streams.follow(line.trim().parse().unwrap()).unwrap();
        let waiter = (under[0] == "flock").then(|| {
            let waiter = Command::new("flock").arg(&lock).arg("true").spawn().unwrap();
            until(&mut streams, |_| is_awaited());
            waiter
        });
        File::create(&go).unwrap();
        let events = until(&mut streams, |streams| streams.running() == 0 && !streams.is_busy());
        assert_eq!(program.end(), "code 0", "{under:?}");
        let report = streams.report();
        assert!(report.held.is_zero() && report.totals.added >= 128 * MIB, "{under:?} {report:?}");
        let problems = events.iter().filter(|event| matches!(event, StreamEvent::Problem { .. })).count();
        assert_eq!(problems, usize::from(under[0] == "strace"), "{events:?}");
        waiter.map(|mut waiter| waiter.wait().unwrap());
        for path in [&number, &go] {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn a_rate_holds_faster_writers() {
    let Some(mounted) = Mounted::new("ext4") else { return };
    let Some(mut streams) = streams(StreamPace::BytesPerSecond(32 * MIB)) else { return };
    let to = format!("of={}", mounted.path().join("to").display());
    let mut program = Grandchild::later(&["dd", "if=/dev/zero", &to, "bs=64k", "count=1536"]);
    begin(&mut program, &mut streams);
    until(&mut streams, |streams| streams.running() == 0 && !streams.is_busy());
    assert_eq!(program.end(), "code 0");
    // 96 MiB at that rate, of which a tenth of a second's may go at once: held for most of three
    // seconds.
    assert!(streams.report().held > Duration::from_millis(1500), "{:?}", streams.report());
}

#[test]
fn a_pipeline_and_a_program_under_timeout_are_as_without() {
    let Some(disk) = slow_disk(60) else { return };
    let Some(mut streams) = streams(StreamPace::Auto) else { return };
    let dir = pagekeeper_testing::disk_dir();
    noise(&dir.path().join("from"), 96 * MIB);
    let (from, to) = (dir.path().to_str().unwrap(), disk.path().join("to"));
    let script = "tar -C \"$1\" -cf - from | gzip -1 >\"$2\" && timeout 100 sh -c 'gzip -dc \"$1\" >\"$1.tar\"; exit 6' sh \"$2\"";
    let mut program = Grandchild::later(&["sh", "-c", script, "sh", from, to.to_str().unwrap()]);
    begin(&mut program, &mut streams);
    until(&mut streams, |streams| streams.running() == 0 && !streams.is_busy());
    assert_eq!(program.end(), "code 6");
    let unpacked =
        Command::new("tar").args(["-xOf"]).arg(disk.path().join("to.tar")).arg("from").output().unwrap();
    assert!(unpacked.stdout == std::fs::read(dir.path().join("from")).unwrap());
}
