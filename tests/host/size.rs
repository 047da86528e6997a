//! `pagekeeper size` against the kernel's own accounting: what it predicts for twice the page cache
//! is what `/proc/PID/io` counts once the group has that much.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::command::{finish, pagekeeper, program, run};
use crate::support::memory_group::MemoryGroup;
use crate::support::{MIB, can_run, schemas, scratch};

/// The group's limit at first.
const LIMIT: u64 = 96 * MIB;
const FILE_BYTES: u64 = 512 * MIB;
/// The largest accepted difference of two hit ratios.
const TOLERANCE: f64 = 0.08;
/// The BPF programs of `size`: six for pages, two for the lives of processes.
const PROGRAMS: usize = 8;

/// fio that reads a file at random places, some far more often than others.
struct Reader {
    process: Child,
}

impl Reader {
    fn start(group: &MemoryGroup, directory: &Path) -> Self {
        let mut command = group.command("fio");
        command.args(["--name=read", "--rw=randread", "--bs=4k", "--random_distribution=zipf:0.9"]);
        command.args(["--norandommap", "--thread", "--time_based", "--runtime=600", "--randrepeat=0"]);
        command.arg(format!("--filename={}", directory.join("file").display()));
        command.arg(format!("--size={FILE_BYTES}")).stdout(Stdio::null()).stdin(Stdio::null());
        Self { process: command.spawn().expect("start fio") }
    }

    /// Returns the bytes that it read, and those of them that came from the disk.
    fn counts(&self) -> (u64, u64) {
        let text = std::fs::read_to_string(format!("/proc/{}/io", self.process.id())).expect("it is running");
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a count");
            line.trim().parse().expect("a number")
        };
        (of("rchar:"), of("read_bytes:"))
    }

    /// Returns the hit ratio of the next `bytes` bytes of reads.
    fn hit_ratio(&self, bytes: u64) -> f64 {
        let before = self.counts();
        self.wait(bytes);
        let after = self.counts();
        1.0 - (after.1 - before.1) as f64 / (after.0 - before.0) as f64
    }

    /// Waits until it has read so many bytes more; returns how long that took.
    fn wait(&self, bytes: u64) -> Duration {
        let (began, until) = (Instant::now(), self.counts().0 + bytes);
        wait_until("fio reads", || self.counts().0 >= until);
        began.elapsed()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits for a condition. The limit is far longer than any test may take.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(600), "not so yet: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a process has attached its programs to all tracepoints.
fn wait_until_attached(pid: u32) {
    wait_until("the programs are attached", || {
        let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let links = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let is_link = |link: &std::path::PathBuf| {
            let name = link.to_string_lossy();
            name.contains("bpf") && name.contains("link") || name.contains("raw-tracepoint")
        };
        links.filter(is_link).count() >= PROGRAMS
    });
}

fn write_file(directory: &Path) {
    let block = vec![7; 1 << 20];
    let mut file = std::fs::File::create(directory.join("file")).expect("make a file");
    for _ in 0..FILE_BYTES / MIB {
        std::io::Write::write_all(&mut file, &block).expect("write it");
    }
    file.sync_all().expect("sync it");
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Returns the hit ratio that is predicted for the size nearest to this one.
fn predicted(report: &Value, bytes: f64) -> f64 {
    let points = report["points"].as_array().expect("points");
    let distance = |point: &&Value| (number(&point["page_cache_bytes"]) - bytes).abs();
    let nearest = points.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).expect("a point");
    number(&nearest["hit_ratio"])
}

#[test]
fn the_prediction_for_twice_the_page_cache_is_measured() {
    if !can_run("size beside fio", &["fio"]) {
        return;
    }
    let Some(group) = MemoryGroup::new("size beside fio", LIMIT) else { return };
    let directory = scratch();
    write_file(directory.path());
    let reader = Reader::start(&group, directory.path());
    // As long as two reads of the whole file take, so that half of that fills the simulations.
    let time = (reader.wait(FILE_BYTES / 2) * 4).clamp(Duration::from_secs(16), Duration::from_secs(120));
    let duration = format!("{}s", time.as_secs());
    let path = group.path().to_str().expect("text");
    let picture = directory.path().join("curve.svg");
    let mut command = pagekeeper();
    command.args(["size", "--cgroup", path, "--duration", &duration, "--json", "--plot"]).arg(&picture);
    let outcome = finish(&mut command);
    if outcome.code != 0 && outcome.stderr.contains("no tracepoint") {
        return pagekeeper_testing::skip("size beside fio needs Linux 6.12");
    }
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let report = outcome.json();
    schemas::check("size", &report);
    let present = number(&report["present"]["page_cache_bytes"]);
    let (simulated, counted) =
        (number(&report["present"]["hit_ratio"]), number(&report["counted_hit_ratio"]));
    let measured = reader.hit_ratio(FILE_BYTES / 2);
    assert!(
        (counted - measured).abs() < TOLERANCE,
        "counted {counted}, by the kernel {measured}: {report:#}"
    );
    assert!((simulated - measured).abs() < TOLERANCE, "simulated {simulated}, by the kernel {measured}");
    assert_eq!(report["lost_events"], 0);
    assert!(number(&report["least"]["limit_bytes"]) <= LIMIT as f64, "{report:#}");
    assert!(report["least"]["commands"][0].as_str().expect("a command").contains(path), "{report:#}");
    assert!(std::fs::read_to_string(&picture).expect("a picture").starts_with("<svg"));

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of memory")]
    group.set_limit(LIMIT + present as u64);
    reader.wait(2 * FILE_BYTES);
    let (doubled, expected) = (reader.hit_ratio(FILE_BYTES / 2), predicted(&report, 2.0 * present));
    assert!(
        (doubled - expected).abs() < TOLERANCE,
        "{doubled} at twice the size, not {expected}: {report:#}"
    );
    assert!(expected > measured + 0.02, "a larger one hits more: {report:#}");

    // By the process, for people; it ends meanwhile. Another one is in its group.
    let pid = reader.process.id();
    let mut other = group.command_with(pid, "sleep").arg("1000").spawn().expect("start another process");
    wait_until("two are in the group", || group.processes().len() == 2);
    let mut command = pagekeeper();
    command.args(["size", "--pid", &pid.to_string(), "--duration", "10m"]).stdout(Stdio::piped());
    let watcher = command.spawn().expect("start size");
    wait_until_attached(watcher.id());
    reader.wait(64 * MIB);
    drop(reader);
    let output = watcher.wait_with_output().expect("it ends");
    // Both calls fail only if the process has ended already.
    let _ = other.kill();
    let _ = other.wait();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for words in
        ["the processes ended before", "At half the page cache: ", "another process is in the memory"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_directory_of_many_files_is_watched_for_all_readers() {
    if !can_run("size of a directory", &["cat"]) {
        return;
    }
    let directory = scratch();
    for number in 0..3000 {
        let below = directory.path().join(format!("{}", number % 30));
        std::fs::create_dir_all(&below).expect("make a directory");
        std::fs::write(below.join(number.to_string()), [7; 5000]).expect("write a file");
    }
    let marks = scratch();
    let script = "while :; do find \"$0\" -type f -exec cat {} + >/dev/null; : >\"$1\"; done";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(directory.path()).arg(marks.path().join("read"));
    let mut reader = command.spawn().expect("start a reader");
    wait_until("all was read once", || marks.path().join("read").exists());
    let path = directory.path().to_str().expect("text");
    let outcome = run(["size", path, "--duration", "5s", "--json"]);
    // Both calls fail only if the process has ended already.
    let _ = reader.kill();
    let _ = reader.wait();
    if outcome.code != 0 {
        assert!(
            !rustix::process::geteuid().is_root() || outcome.stderr.contains("no tracepoint"),
            "{outcome:?}"
        );
        return pagekeeper_testing::skip("size of a directory needs root and Linux 6.12");
    }
    let report = outcome.json();
    assert!(number(&report["present"]["hit_ratio"]) > 0.9, "{report:#}");
    assert!(number(&report["accesses_per_second"]) > 0.0, "{report:#}");
    schemas::check("size", &report);
    assert!(report["least"].is_null() || report["least"]["limit_bytes"].is_null(), "{report:#}");
}

#[test]
fn a_missing_permission_or_process_is_reported_in_one_line() {
    let own = std::process::id().to_string();
    let said = |outcome: crate::support::command::Outcome, code: i32, words: &str| {
        assert_eq!(outcome.code, code, "{outcome:?}");
        assert!(outcome.stdout.is_empty() && outcome.stderr.lines().count() == 1, "{outcome:?}");
        assert!(outcome.stderr.contains(words), "{outcome:?}");
    };
    said(run(["size"]), 64, "give --pid, --cgroup or a directory");
    said(run(["size", "--pid", "4194305"]), 1, "there is no process 4194305");
    said(run(["size", "--cgroup", "/no/such"]), 1, "no process is in the memory cgroup /no/such");
    // Before anything is measured.
    said(
        run(["size", "--pid", &own, "--plot", "/dev/null"]),
        1,
        "can't write /dev/null: it is not a regular",
    );
    let mut command = Command::new(program());
    if rustix::process::geteuid().is_root() {
        command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin,-bpf,-perfmon", "--"]).arg(program());
    }
    let outcome = finish(command.args(["size", "--duration", "1s", "--pid", &own]));
    said(outcome, 1, "can't see accesses to the page cache: ");
}
