//! `pagekeeper guard --json` as a child process whose lines are collected while it runs.
//!
//! Fails loudly: a line that is not JSON, or a missing event panics with all output so far.
//!

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) use super::command::program;

#[derive(Default)]
struct GuardOutput {
    events: Mutex<Vec<Value>>,
    more: Condvar,
}

/// A running guard.
pub(crate) struct Guard {
    child: Child,
    received: Arc<GuardOutput>,
    output: Option<JoinHandle<()>>,
    complaints: Option<JoinHandle<String>>,
}

/// The output of a guard that has ended.
pub(crate) struct EndedGuard {
    /// Its exit status.
    pub(crate) status: ExitStatus,
    /// All JSON lines, in order.
    pub(crate) events: Vec<Value>,
    /// All of its standard error.
    pub(crate) stderr: String,
}

impl EndedGuard {
    /// Returns the last summary.
    pub(crate) fn summary(&self) -> &Value {
        self.events
            .iter()
            .rfind(|event| event["event"] == "summary")
            .unwrap_or_else(|| panic!("no summary: {:?} {}", self.events.last(), self.stderr))
    }
}

impl Guard {
    /// Starts `pagekeeper guard --json` with more arguments; it does not outlive the thread that
    /// started it.
    pub(crate) fn spawn(arguments: &[&str]) -> Self {
        Self::spawn_command(
            Command::new("setpriv")
                .args(["--pdeathsig=KILL", "--"])
                .arg(program())
                .args(["guard", "--json"])
                .args(arguments),
        )
    }

    /// Starts a guard by a command that only lacks its standard streams.
    pub(crate) fn spawn_command(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start pagekeeper guard");
        let received = Arc::new(GuardOutput::default());
        let stdout = child.stdout.take().expect("piped");
        let mut stderr = child.stderr.take().expect("piped");
        let output = {
            let received = Arc::clone(&received);
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines() {
                    let line = line.expect("read the guard's output");
                    let event = serde_json::from_str(&line)
                        .unwrap_or_else(|error| panic!("not a JSON line ({error}): {line}"));
                    received.events.lock().expect("no panic while held").push(event);
                    received.more.notify_all();
                }
            })
        };
        let complaints = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).expect("read the guard's complaints");
            text
        });
        Self { child, received, output: Some(output), complaints: Some(complaints) }
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the last tick so far.
    pub(crate) fn latest_tick(&self) -> Option<Value> {
        let events = self.received.events.lock().expect("no panic while held");
        events.iter().rfind(|event| event["event"] == "tick").cloned()
    }

    /// Panics unless fewer than `limit` bytes are resident, at `first` or in its next samples. On
    /// a busy machine or a slow disk more may be resident for a moment.
    pub(crate) fn assert_bounded(&self, limit: u64, first: u64, resident: impl Fn() -> u64) {
        let mut found = first;
        for _ in 0..5 {
            if found < limit {
                return;
            }
            self.wait_for_ticks(2);
            found = resident();
        }
        let tick = self.latest_tick();
        assert!(
            found < limit,
            "{found} bytes of logs are resident, more than {limit}; the guard's last tick: {tick:?}"
        );
    }

    /// Waits for an event of this name that `matches`; earlier events count, too.
    pub(crate) fn wait_for(&self, name: &str, deadline: Duration, matches: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        let mut events = self.received.events.lock().expect("no panic while held");
        loop {
            if let Some(event) = events.iter().find(|event| event["event"] == name && matches(event)) {
                return event.clone();
            }
            let left = deadline.saturating_sub(start.elapsed());
            assert!(!left.is_zero(), "no such {name} within {deadline:?}, only {:#?}", last(&events, 20));
            events = self.received.more.wait_timeout(events, left).expect("no panic while held").0;
        }
    }

    /// Whether it has emitted an event of this name that `matches`.
    pub(crate) fn has_event(&self, name: &str, matches: impl Fn(&Value) -> bool) -> bool {
        let events = self.received.events.lock().expect("no panic while held");
        events.iter().any(|event| event["event"] == name && matches(event))
    }

    /// Returns the number of its ticks so far.
    pub(crate) fn ticks(&self) -> usize {
        let events = self.received.events.lock().expect("no panic while held");
        events.iter().filter(|event| event["event"] == "tick").count()
    }

    /// Waits for this many ticks more.
    pub(crate) fn wait_for_ticks(&self, count: usize) {
        let seconds = |event: &Value| event["seconds"].as_f64().expect("each tick says when");
        for _ in 0..count {
            let last = self.latest_tick().map_or(0.0, |tick| seconds(&tick));
            self.wait_for("tick", Duration::from_secs(60), |tick| seconds(tick) > last);
        }
    }

    /// Returns the highest memory use so far, in bytes, as counted by the kernel.
    pub(crate) fn memory_peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the guard runs");
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM is always there");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// Returns the CPU time so far in seconds, user and system, to a hundredth (`USER_HZ`).
    pub(crate) fn cpu_seconds(&self) -> f64 {
        super::cpu_seconds(self.pid())
    }

    /// Tells the guard to read its configuration again, by SIGHUP.
    pub(crate) fn hang_up(&self) {
        self.signal(rustix::process::Signal::HUP);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal the guard");
    }

    /// Ends the guard by SIGTERM.
    pub(crate) fn stop(self) -> EndedGuard {
        self.signal(rustix::process::Signal::TERM);
        self.wait()
    }

    /// Waits until the guard ends by itself.
    pub(crate) fn wait(mut self) -> EndedGuard {
        let status = self.child.wait().expect("wait for the guard");
        self.output.take().expect("taken once").join().expect("each line is JSON");
        let stderr = self.complaints.take().expect("taken once").join().expect("standard error is text");
        let events = self.received.events.lock().expect("no panic while held").clone();
        EndedGuard { status, events, stderr }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last(events: &[Value], count: usize) -> &[Value] {
    &events[events.len().saturating_sub(count)..]
}
