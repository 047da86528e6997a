//! The doctor beside a real `VictoriaMetrics`, a large database that no profile knows: a bare
//! `doctor` inspects it as *generic*, by its name, with the files that it has mapped.
//!
//! Needs root and Debian's `victoria-metrics`; skips with a sentence otherwise.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pagekeeper_testing::http::{ask, ask_with, free_port};
use serde_json::{Value, json};

use crate::support::command::run;
use crate::support::{self, MIB, doctor_report};

/// The kernel keeps 15 bytes of a program's name.
const NAME: &str = "victoria-metric";
/// Digits that don't compress: some seven bytes on the disk for each sample.
const SAMPLES_PER_SERIES: u64 = 10_000;
const SERIES_PER_REQUEST: u64 = 100;
/// Page cache that makes the doctor look at a program that no profile knows, and some more.
const HELD_BYTES: u64 = 288 * MIB;
const REQUESTS_MAX: u64 = 200;
/// The time of the first sample, in milliseconds.
const FIRST_TIME_MS: u64 = 1_700_000_000_000;

/// A running `VictoriaMetrics`, which ends with its value.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(home: &Path) -> Self {
        let port = free_port();
        let log = std::fs::File::create(home.join("log")).expect("make its log");
        let child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", "victoria-metrics", "-retentionPeriod=100y"])
            .arg(format!("-storageDataPath={}", home.join("data").display()))
            .arg(format!("-httpListenAddr=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start victoria-metrics");
        let server = Self { child, port };
        support::eventually("victoria-metrics is ready", Duration::from_secs(300), || {
            ask(port, "GET", "/health", &[]).filter(|answer| answer.status == 200)
        });
        server
    }

    /// Imports series of random values.
    fn import(&self, request: u64) {
        let mut lines = String::new();
        for series in 0..SERIES_PER_REQUEST {
            let name = request * SERIES_PER_REQUEST + series;
            write!(lines, "{{\"metric\":{{\"__name__\":\"m\",\"n\":\"{name}\"}},\"values\":[")
                .expect("memory");
            let numbers = |of: &dyn Fn(u64) -> u64| {
                let all: Vec<String> = (0..SAMPLES_PER_SERIES).map(|at| of(at).to_string()).collect();
                all.join(",")
            };
            let value = |at: u64| mixed(name * SAMPLES_PER_SERIES + at) >> 14;
            let time = |at: u64| FIRST_TIME_MS + 1000 * at;
            writeln!(lines, "{}],\"timestamps\":[{}]}}", numbers(&value), numbers(&time)).expect("memory");
        }
        let answer = ask_with(self.port, "POST", "/api/v1/import", &[], lines.as_bytes());
        assert!(answer.as_ref().is_some_and(|answer| answer.status < 300), "{answer:?}");
    }

    fn get(&self, path: &str) {
        let answer = ask(self.port, "GET", path, &[]);
        assert!(answer.as_ref().is_some_and(|answer| answer.status < 300), "{path}: {answer:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Mixes the bits of a number (the finalizer of `SplitMix64`).
fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The bytes of files below a directory.
fn bytes_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            // One that was merged meanwhile is gone.
            metadata => metadata.map_or(0, |metadata| metadata.len()),
        })
        .sum()
}

/// Returns the server among the databases that a bare `doctor` inspects.
fn inspected(server: &Server) -> Option<Value> {
    let report = doctor_report::of(&run(["doctor", "--json", "--watch", "100ms"]));
    let databases = report["inspected"]["databases"].as_array().expect("databases");
    databases.iter().find(|database| database["pid"] == json!(server.child.id())).cloned()
}

#[test]
#[ignore = "long: make test-stories"]
fn a_large_database_without_a_profile_is_inspected_by_its_name() {
    if !support::can_run("the doctor beside VictoriaMetrics", &["victoria-metrics", "setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = Server::start(scratch.path());
    let data = scratch.path().join("data");
    server.import(0);
    assert_eq!(inspected(&server), None, "a small one is left alone");
    let requests = (1..REQUESTS_MAX).take_while(|_| bytes_below(&data) < HELD_BYTES);
    requests.for_each(|request| server.import(request));
    assert!(bytes_below(&data) >= HELD_BYTES, "{}", bytes_below(&data));
    server.get("/internal/force_flush");

    // Parts that are being merged are counted once they are whole.
    let found = support::eventually("it is inspected", Duration::from_secs(180), || inspected(&server));
    let name = format!("{NAME} (process {})", server.child.id());
    assert_eq!((&found["name"], &found["profile"]), (&json!(name), &json!("generic")), "{found:#}");
    assert!(found["files"].as_u64() > Some(0), "{found:#}");
    // A person finds it in the list of what was inspected.
    let said = run(["doctor", "--watch", "100ms"]).stdout;
    assert!(said.contains(&name), "{said}");
}
