//! The guard in a container with the permissions that `deploy/kubernetes-daemonset.yaml` gives its
//! pod, beside a `MariaDB` in another one. These permissions suffice to see that server's
//! files and release its binlogs. With the mount of the chart's `cgroup.reclaim` it has the
//! server's group reclaimed.
//!
//! Needs root, Debian's `podman`, `crun`, `mariadb-server` and `python3-yaml`, and minutes:
//! `make test-cgroup-v2` runs it in a virtual machine. The container has no network but its own
//! loopback, as a pod has an address of its own.

use crate::guard_cgroups::Group;
use crate::support;
use crate::support::guard::{EndedGuard, Guard, program};
use crate::support::pod::{self, Pod, RECLAIM};
use crate::support::podman::{Container, DATA, Engine, FILLED_BYTES_MIN, REQUIRED_PROGRAMS};
use crate::support::{MIB, eventually};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Deadline for an emulated machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// The memory limit of the server's container.
const MEMORY_LIMIT_BYTES: u64 = 288 * MIB;

/// Maximum resident bytes of the current binlog: twice the profile's slack.
const IDLE_LIMIT: u64 = 8 * MIB;

/// A metric's line that shows that pauses are counted by BPF programs.
const COUNTED: &str = "pagekeeper_trace_source{source=\"bpf\"} 1";

/// `kernel.perf_event_paranoid`, put back when dropped. Above 2, which only some distributions'
/// kernels know and Debian's have by default, `perf_event_open` is refused in spite of
/// `CAP_PERFMON`.
struct PerfParanoia(String);

impl PerfParanoia {
    const FILE: &str = "/proc/sys/kernel/perf_event_paranoid";

    fn read() -> String {
        std::fs::read_to_string(Self::FILE).expect("it is there")
    }

    fn is_high() -> bool {
        Self::read().trim().parse::<i32>().expect("a number") > 2
    }

    fn lowered() -> Self {
        let was = Self(Self::read());
        std::fs::write(Self::FILE, "2").expect("set it");
        was
    }
}

impl Drop for PerfParanoia {
    fn drop(&mut self) {
        std::fs::write(Self::FILE, &self.0).expect("put it back");
    }
}

/// Imports an image of only the program, at the manifest's path, and its C library.
///
fn import(engine: &Engine, scratch: &Path, pod: &Pod) {
    let image = scratch.join("guard-image");
    let put = |from: &Path, at: &Path| {
        let to = image.join(at.strip_prefix("/").expect("a whole path"));
        std::fs::create_dir_all(to.parent().expect("it is in a directory")).expect("make a directory");
        std::fs::copy(from, to).expect("copy a file");
    };
    put(&program(), &pod.program());
    let linked = Command::new("ldd").arg(program()).output().expect("run ldd");
    for word in String::from_utf8_lossy(&linked.stdout).split_whitespace() {
        if word.starts_with('/') {
            put(Path::new(word), Path::new(word));
        }
    }
    engine.import(&image, pod.image());
}

/// Starts it, and waits for its process, which is visible because it shares the node's PID
/// namespace.
fn start(engine: &Engine, name: &'static str, arguments: &[String]) -> (Guard, u32) {
    let mut command = engine.podman();
    let (run, rest) = arguments.split_first().expect("podman run");
    command.args([run, "--name", name]).args(rest).arg("--json");
    let guard = Guard::spawn_command(&mut command);
    guard.wait_for("tick", WAIT_TIMEOUT, |_| true);
    let pid = engine.pid(name);
    (guard, pid)
}

/// Returns the lines of a status, by their names.
fn status(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("a line of each status").trim().to_owned()
}

/// Asserts that the process has the permissions of the manifest, and no more.
fn assert_permissions(pid: u32, pod: &Pod) {
    let named = |set: &str| -> BTreeSet<String> {
        let shown = Command::new("capsh").arg(format!("--decode={set}")).output().expect("run capsh");
        let names = String::from_utf8_lossy(&shown.stdout).trim().to_uppercase();
        names.split_once('=').expect("a set and its names").1.split(',').map(str::to_owned).collect()
    };
    let wanted: BTreeSet<String> = pod.capabilities().into_iter().collect();
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(named(&status(pid, set)), wanted, "{set}");
    }
    assert_eq!((&*status(pid, "NoNewPrivs"), &*status(pid, "Seccomp")), ("1", "0"));
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("it runs");
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).expect("it has a root");
    assert!(
        root.split(' ').nth(5).is_some_and(|options| options.split(',').any(|option| option == "ro")),
        "{root}"
    );
    let namespace =
        |pid: &str, kind: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("it runs");
    let pid = pid.to_string();
    assert_eq!(namespace(&pid, "pid"), namespace("self", "pid"));
    for kind in ["mnt", "net", "cgroup"] {
        assert_ne!(namespace(&pid, kind), namespace("self", kind), "{kind}");
    }
}

/// Returns the response to a kubelet or Prometheus in the container's network.
fn http_response(pid: u32, port: u64, path: &str) -> String {
    let ask = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET {path} HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && cat <&3"
    );
    let answer = Command::new("nsenter")
        .arg(format!("--net=/proc/{pid}/ns/net"))
        .args(["bash", "-c", &ask])
        .output()
        .expect("run nsenter");
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

fn ends_well(guard: Guard, released: u64) -> EndedGuard {
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let binlogs = ended.summary()["released_bytes"]["binlog"].as_u64().unwrap_or(0);
    assert!(binlogs >= released, "{}", ended.summary());
    let refused: Vec<_> = ended
        .events
        .iter()
        .filter(|event| event["event"] == "refused" || event["path"] == DATA && event["event"] == "problem")
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    println!("  {}; {}", ended.summary(), ended.stderr);
    ended
}

fn check_served(guard: &Guard, container: &Container<'_>) {
    let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == container.pid());
    let directories = found["directories"].as_array().expect("a list");
    assert!(found["profile"] == "mariadb" && directories.contains(&DATA.into()), "{found}");
    eventually("its binlogs are released", WAIT_TIMEOUT, || {
        (container.resident_binlogs() < IDLE_LIMIT).then_some(())
    });
}

#[test]
#[ignore = "minutes: make test-cgroup-v2"]
fn the_pod_of_the_manifest_serves_a_database_in_another_container() {
    let programs = [&REQUIRED_PROGRAMS[..], &pod::REQUIRED_PROGRAMS, &["ldd", "capsh", "nsenter"]].concat();
    if !support::can_run("the manifest's pod in a container of podman", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let engine = Engine::new(scratch.path());
    let mut pod = Pod::of_the_manifest();
    import(&engine, scratch.path(), &pod);
    let container = engine.start("database", &[&format!("--memory={MEMORY_LIMIT_BYTES}")]);
    container.fill_binlogs();
    assert!(container.resident_binlogs() >= FILLED_BYTES_MIN, "{}", container.resident_binlogs());

    // Returns the shipped manifest.
    let arguments = pod.arguments(scratch.path(), &[]);
    println!("podman {}", arguments.join(" "));
    let (guard, pid) = start(&engine, "guard", &arguments);
    assert_permissions(pid, &pod);
    assert_eq!(Group::of(pid).limit(), pod.memory());
    check_served(&guard, &container);
    let (port, path) = pod.probe();
    let healthy = http_response(pid, port, &path);
    assert!(healthy.starts_with("HTTP/1.1 200") || healthy.starts_with("HTTP/1.0 200"), "{healthy}");
    let metrics = http_response(pid, port, "/metrics");
    let ended = ends_well(guard, FILLED_BYTES_MIN - IDLE_LIMIT);
    // Counts by BPF programs, with CAP_BPF and CAP_PERFMON; Debian's kernels require
    // more by default.
    if PerfParanoia::is_high() {
        let gap = |event: &&Value| event["gap"].as_str().is_some_and(|gap| gap.contains("perf_event_open"));
        assert_eq!(ended.events.iter().filter(gap).count(), 1, "{:#?}", ended.events);
    } else {
        assert!(metrics.contains(COUNTED), "{:#?}", ended.events);
    }

    // With the node's cgroups mounted for writing, and that default lowered.
    let _lowered = PerfParanoia::lowered();
    container.fill_file(120 * MIB);
    let group = Group::of(container.pid());
    let (cache, share) = (group.file(), MEMORY_LIMIT_BYTES * 3 / 10);
    assert!(cache > share + 16 * MIB, "{cache}");
    pod.configure(&format!(
        "[cgroup]\ngroups = [{:?}]\nshare = \"30%\"\nreclaim = \"file\"\ntick = \"1s\"\n",
        group.path
    ));
    let (guard, pid) = start(&engine, "guard-reclaim", &pod.arguments(scratch.path(), &[RECLAIM]));
    assert_permissions(pid, &pod);
    eventually("pauses are counted in the kernel", WAIT_TIMEOUT, || {
        http_response(pid, port, "/metrics").contains(COUNTED).then_some(())
    });
    eventually("its group is at its share", WAIT_TIMEOUT, || (group.file() <= share + 2 * MIB).then_some(()));
    let ended = ends_well(guard, 0);
    let reclaimed = &ended.summary()["reclaimed_in_cgroups_bytes"];
    assert!(reclaimed[&group.path].as_u64() > Some(0), "{reclaimed}");
    println!("  page cache of the server's group: {} MiB, then {} MiB", cache / MIB, group.file() / MIB);
}
