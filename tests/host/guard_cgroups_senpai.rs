//! The guard with `[cgroup]` and `reclaim = "file"` compared with Meta's senpai (`senpai.py` of
//! facebookincubator/senpai, which is not part of this project), whose method it follows, and
//! without either. Each runs beside a fresh server that has idle tables in its group.
//!
//! The test produces figures. It asserts the guard's own promises, that no row is lost, and that
//! the group's own limit is restored.
//!
//! Needs control groups of version 2, Python and `SENPAI`: the program's path, optionally
//! followed by arguments for it.
//! `SENPAI=/path/senpai.py make test-cgroup-v2 ARGS=guard` runs it in a virtual machine; without,
//! it is left out.

use super::guard_cgroups::{Group, RUN_TIMEOUT, config};
use crate::support::guard::Guard;
use crate::support::idle_tables::IdleTables;
use crate::support::{self, MIB, postgresql};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const TEST: &str = "[cgroup] beside senpai";
/// Limit of the group, not far above senpai's own minimum (100 MiB of all its memory).
const GROUP_LIMIT_BYTES: u64 = 340 * MIB;
const SHARE: &str = "30%";
/// Both reclaim at most 1 % at once. By default the guard does so every 5 s, senpai every 6 s; here
/// both do every second.
const TICK: &str = "1s";
/// Senpai's target pressure is counted over its interval: 10 ms in 6 s by default, but 10 ms in 1 s
/// here, so it tolerates six times as much. `--pressure=1667` after the program's path restores the
/// default.
const SENPAI_ARGUMENTS: &str = "--interval=1";
/// Seconds of a round of scans, and the minimum and maximum number of rounds for senpai.
const ROUND_SECONDS: u64 = 10;
const ROUNDS_RANGE: (usize, usize) = (24, 60);
/// The method has settled if this many rounds lowered the limit by less than a hundredth.
const SETTLED_ROUNDS: usize = 6;

/// A server with its cgroup, and measurements from here on.
struct GroupServer {
    tables: IdleTables,
    group: Group,
    scratch: tempfile::TempDir,
}

/// The measurements of one method.
struct SenpaiSample {
    rounds: usize,
    /// Bytes of page cache, before and at the end, and those that were read again.
    file: (u64, u64),
    refaulted: u64,
}

impl GroupServer {
    fn start() -> Option<Self> {
        let scratch = support::scratch();
        let tables = IdleTables::start(TEST, scratch.path(), GROUP_LIMIT_BYTES)?;
        let group = Group::of(tables.server.pid());
        assert!(group.is_v2, "this test is for version 2");
        Some(Self { tables, group, scratch })
    }

    fn high(&self) -> PathBuf {
        self.group.directory.join("memory.high")
    }

    /// Returns the group's present limit, in bytes; the maximum if it has no limit of its own.
    fn own_limit(&self) -> u64 {
        let text = std::fs::read_to_string(self.high()).expect("version 2 has it");
        if text.trim() == "max" { u64::MAX } else { text.trim().parse().expect("a number") }
    }

    fn show(&self, when: &str) {
        let stat = self.group.stat();
        let mib = |name: &str| stat.get(name).map_or(0, |bytes| bytes / MIB);
        println!(
            "  {when}: {} MiB in all, page cache {} MiB, active_file {}, inactive_file {}, anon {}, shmem {}",
            self.group.usage() / MIB,
            self.group.file() / MIB,
            mib("active_file"),
            mib("inactive_file"),
            mib("anon"),
            mib("shmem")
        );
    }

    /// Scans the hot table in rounds until `is_done`, beside the program with this process ID.
    /// Returns the number of rounds.
    fn measure(
        &self,
        name: &str,
        program: Option<u32>,
        mut is_done: impl FnMut(usize) -> bool,
    ) -> SenpaiSample {
        println!("{name}:");
        self.show("before");
        let (file, refaulted, waited) = (self.group.file(), self.group.refaulted(), self.group.waited());
        let (began, mut rounds) = (Instant::now(), Vec::new());
        while !is_done(rounds.len()) {
            rounds.push(self.tables.scans(ROUND_SECONDS));
        }
        let seconds = began.elapsed().as_secs_f64();
        self.show("at the end");
        let (refaulted, waited) = (self.group.refaulted() - refaulted, self.group.waited() - waited);
        println!(
            "  in {seconds:.0} s: read again {} KiB, waited for memory {:.0} ms; {rounds:.1?} scans a minute",
            refaulted / 1024,
            waited * 1e3
        );
        if let Some(pid) = program {
            let cpu = support::cpu_seconds(pid);
            println!(
                "  the program took {cpu:.2} s of the processor, {:.0} % of a core",
                100.0 * cpu / seconds
            );
        }
        SenpaiSample { rounds: rounds.len(), file: (file, self.group.file()), refaulted }
    }

    /// Measures the group after the program has ended.
    fn measure_end(&self) {
        let (refaulted, waited) = (self.group.refaulted(), self.group.waited());
        let scans = self.tables.scans(6 * ROUND_SECONDS);
        println!(
            "  after it: read again {} KiB, waited for memory {:.0} ms; {scans:.1} scans a minute",
            (self.group.refaulted() - refaulted) / 1024,
            (self.group.waited() - waited) * 1e3
        );
        let text = std::fs::read_to_string(self.group.directory.join("memory.events"));
        let events = text.expect("version 2 has it");
        println!("  memory.events: {}", events.trim().replace('\n', ", "));
        assert!(events.contains("oom_kill 0"), "{events}");
        self.tables.assert_nothing_is_lost();
    }

    /// Lets the guard shrink the cgroup to its share. Returns the number of rounds.
    fn guard(&self) -> usize {
        let (share, pid) =
            (self.tables.memory_max() * 3 / 10 + 2 * MIB, self.tables.server.pid().to_string());
        let config = config(self.scratch.path(), &self.group.path, SHARE, TICK);
        let guard = Guard::spawn(&["--config", &config, "--pid", &pid, "--duration", "20m"]);
        let began = Instant::now();
        let stopped = || guard.has_event("cgroup", |event| event["news"] == "stopped");
        let name = format!("the guard, share {SHARE}, a step each {TICK}");
        let measured = self.measure(&name, Some(guard.pid()), |_| {
            self.group.file() <= share || stopped() || began.elapsed() > RUN_TIMEOUT
        });
        let ended = guard.stop();
        let is_stop = |event: &&serde_json::Value| event["event"] == "cgroup" && event["news"] == "stopped";
        if let Some(stop) = ended.events.iter().find(is_stop) {
            println!("  it stopped before the share: {stop}");
        }
        let summary = ended.summary();
        let reclaimed = summary["reclaimed_in_cgroups_bytes"][&self.group.path].as_u64().unwrap_or(0);
        let released = summary["released_total_bytes"].as_u64().unwrap_or(0);
        println!("  reclaimed {} MiB, released {} MiB of logs", reclaimed / MIB, released / MIB);
        self.measure_end();
        let said = || format!("{:?}: {}", ended.events.last(), ended.stderr);
        assert!(reclaimed > 16 * MIB, "{}", said());
        assert!(measured.file.1 < measured.file.0, "{:?}: {}", measured.file, said());
        // Hot pages stay.
        let again = measured.refaulted;
        assert!(again <= reclaimed / 4, "{again} of {reclaimed} came back: {}", said());
        measured.rounds
    }

    /// Runs senpai on the cgroup for at least this many rounds, until it has settled. Then
    /// restores the cgroup's limit.
    fn senpai(&self, given: &str, least: usize) {
        let own = std::fs::read_to_string(self.high()).expect("version 2 has it");
        let senpai = Senpai::start(given, &self.group.directory, self.scratch.path());
        let mut limits = Vec::new();
        self.measure(&format!("senpai: {}", senpai.line), Some(senpai.child.id()), |rounds| {
            limits.push(self.own_limit());
            rounds >= ROUNDS_RANGE.1 || (rounds >= least.max(ROUNDS_RANGE.0) && has_settled(&limits))
        });
        let set = limits.iter().filter(|limit| **limit < u64::MAX).map(|limit| limit / MIB);
        println!("  memory.high, MiB: {:?}", set.collect::<Vec<_>>());
        let log = senpai.stop();
        let factors = log.lines().filter_map(|line| line.split_once("adjust: ")?.1.parse::<f64>().ok());
        let (tighter, wider): (Vec<f64>, Vec<f64>) = factors.partition(|factor| *factor <= 0.0);
        println!("  made tighter {} times, wider {} times", tighter.len(), wider.len());
        let waits = log
            .lines()
            .filter_map(|line| line.split_once("delta=")?.1.split(' ').next()?.parse::<u64>().ok());
        let (waited, calm): (Vec<u64>, Vec<u64>) = waits.partition(|micros| *micros > 0);
        println!("  of {} looks it saw waiting in {}", waited.len() + calm.len(), waited.len());
        println!("  its last line: {}", log.lines().last().unwrap_or_default());
        std::fs::write(self.high(), own.trim()).expect("set memory.high");
        assert_eq!(std::fs::read_to_string(self.high()).expect("version 2 has it"), own);
        self.measure_end();
    }
}

/// Whether the last rounds took the limit no lower than those before.
fn has_settled(limits: &[u64]) -> bool {
    let (earlier, last) = limits.split_at(limits.len().saturating_sub(SETTLED_ROUNDS));
    let lowest = |limits: &[u64]| limits.iter().copied().min().unwrap_or(u64::MAX);
    lowest(last) > lowest(earlier) - lowest(earlier) / 100
}

/// A running senpai that ends with its handle.
struct Senpai {
    child: Child,
    line: String,
    log: PathBuf,
}

impl Senpai {
    fn start(given: &str, group: &Path, scratch: &Path) -> Self {
        let (mut given, log) = (given.split_whitespace(), scratch.join("senpai.log"));
        let mut command = Command::new("python3");
        // Given arguments come later, so they take precedence.
        command.arg("-u").args(given.next()).arg(SENPAI_ARGUMENTS).args(given).arg(group);
        let line = format!("{command:?}").replace('"', "");
        let output = std::fs::File::create(&log).expect("make a file");
        command.stdin(Stdio::null()).stderr(output.try_clone().expect("a second handle")).stdout(output);
        Self { child: command.spawn().expect("start senpai"), line, log }
    }

    /// Ends it, and returns its output.
    fn stop(mut self) -> String {
        let log = std::fs::read_to_string(&self.log).expect("read what senpai said");
        assert!(self.child.try_wait().expect("wait for senpai").is_none(), "senpai ended by itself: {log}");
        log
    }
}

impl Drop for Senpai {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program to compare with, which is optional; `None`, with a printed sentence, if
/// none is named.
fn program_to_compare() -> Option<String> {
    let named = std::env::var("SENPAI").ok().filter(|named| !named.is_empty());
    if named.is_none() {
        eprintln!("SKIPPED: {TEST} needs SENPAI, the path of senpai.py.");
    }
    named
}

#[test]
#[ignore = "minutes, version 2, and a foreign program: SENPAI=/path/senpai.py make test-cgroup-v2"]
fn the_guard_and_senpai_shrink_the_same_group() {
    let Some(senpai) = program_to_compare() else { return };
    let programs = postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).chain(["python3"]).collect();
    if !support::can_run(TEST, &programs) {
        return;
    }
    let _alone = support::alone();
    let about = std::fs::read_to_string("/proc/meminfo").expect("read what memory there is");
    println!("{}", about.lines().find(|line| line.starts_with("SwapTotal")).expect("always there"));

    let Some(beside) = GroupServer::start() else { return };
    beside.measure("nothing", None, |rounds| rounds >= ROUNDS_RANGE.0 / 2);
    beside.measure_end();
    drop(beside);
    let Some(beside) = GroupServer::start() else { return };
    let rounds = beside.guard();
    drop(beside);
    let Some(beside) = GroupServer::start() else { return };
    beside.senpai(&senpai, rounds);
}
