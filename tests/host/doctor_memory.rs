//! The doctor beside a real `PostgreSQL` at the limit of its memory cgroup: if the server's data
//! does not fit, the doctor reports it, and no longer does after the limit is raised. If another
//! program in the group repeatedly reads data that does not fit, the doctor names that program and
//! no other limit.
//!
//! Needs root, Debian's `postgresql` and a memory cgroup; skips with a sentence otherwise, and
//! fails instead where `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::support;
use crate::support::MIB;
use crate::support::command::run;
use crate::support::doctor_report;
use crate::support::memory_group::MemoryGroup;
use crate::support::postgresql::{Server, programs};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A limit, in bytes, below the size of the table of [`SCALE`].
const MEMORY_LIMIT_BYTES: u64 = 260 * MIB;
/// A table of about 390 MiB with an index of 64.
const SCALE: &str = "--scale=30";
const WATCH_DURATION: &str = "3s";
/// Attempts until the database runs undisturbed: other programs run on this machine, too, and a
/// slow disk takes minutes to read evicted pages in again.
const ATTEMPTS_MAX: usize = 40;

/// The memory of a server with enough memory and of another program, in bytes.
const PROGRAM_MEMORY_BYTES: u64 = 160 * MIB;
/// The size of the file that the other program reads repeatedly: its start is evicted before its
/// end is reached.
const REREAD_FILE_BYTES: u64 = 2 * PROGRAM_MEMORY_BYTES;

/// A `tar` in the cgroup of a process that repeatedly reads one file: 80 MiB a second
/// at most, for an hour.
struct TarLoop(Child);

impl TarLoop {
    fn start(group: &MemoryGroup, with: u32, directory: &Path) -> Self {
        let (file, list) = (directory.join("again"), directory.join("list"));
        // A sparse file, whose holes fill the page cache like data.
        std::fs::File::create(&file).and_then(|file| file.set_len(REREAD_FILE_BYTES)).expect("make a file");
        std::fs::write(&list, format!("{}\n", file.display()).repeat(1000)).expect("write a list");
        let mut command = group.command_with(with, "tar");
        // Reads it in full each time, not as a hard link to the first. With output to /dev/null it
        // would not even read.
        command.args(["--hard-dereference", "--create", "--file=/dev/zero"]);
        // tar sleeps for a second each time that it has written this many records of 10 KiB.
        command.args(["--checkpoint=8192", "--checkpoint-action=sleep=1", "--files-from"]).arg(list);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("start tar"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for TarLoop {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the finding about the server's memory, if there is one.
fn examine(server: &Server) -> Option<Value> {
    let pid = server.pid().to_string();
    let outcome = run(["doctor", "--pid", &pid, "--watch", WATCH_DURATION, "--json"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let report = doctor_report::of(&outcome);
    let findings = report["findings"].as_array().expect("findings");
    let of_server = |finding: &&Value| finding["kind"] == "memory-short" && !finding["database"].is_null();
    findings.iter().find(of_server).cloned()
}

/// Returns the finding's command that changes the limit, if it has one.
fn other_limit(found: &Value) -> Option<&str> {
    let fixes = found["fixes"].as_array().expect("fixes");
    fixes.iter().filter_map(|fix| fix["act"].as_str()).find(|act| act.starts_with("echo "))
}

/// Applies the finding's fix. Returns false if it has no limit to set.
fn fix(group: &MemoryGroup, found: &Value) -> bool {
    let Some(act) = other_limit(found) else { return false };
    assert!(act.contains(&group.path().display().to_string()), "{act}");
    let done = Command::new("sh").args(["-c", act]).status().expect("start a shell");
    assert!(done.success(), "{act}");
    true
}

#[test]
fn a_database_larger_than_its_memory_cgroup_is_reported() {
    let test = "PostgreSQL at the limit of its memory cgroup";
    let programs = programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run(test, &programs) {
        return;
    }
    let _alone = support::alone();
    let Some(group) = MemoryGroup::new(test, MEMORY_LIMIT_BYTES) else { return };
    let scratch = support::scratch();
    let server = Server::start(scratch.path());
    let _load = server.read_in(&group, SCALE);

    let found = support::eventually("the limit is reported", Duration::from_secs(180), || {
        examine(&server).filter(|found| {
            let evidence = found["evidence"].as_array().expect("evidence");
            evidence.iter().any(|one| one["figures"]["refaulted_bytes"].as_u64() > Some(MIB))
        })
    });
    assert!(found["severity"] == "warning" || found["severity"] == "serious", "{found:#}");
    assert!(found["database"].as_str().is_some_and(|name| name.contains(&server.pid().to_string())));
    assert!(
        found["title"].as_str().is_some_and(|title| title.contains("at its limit of 260 MiB")),
        "{found:#}"
    );
    assert!(
        found["cost"]["text"].as_str().is_some_and(|cost| cost.contains("read from storage again")),
        "{found:#}"
    );

    // Applies the fix, and once more if the limit was still too small.
    assert!(fix(&group, &found), "no other limit is named: {found:#}");
    let tries: Vec<Value> = (0..ATTEMPTS_MAX)
        .map_while(|_| {
            // Evicted pages are read first. A full group without rereads gets only a note.
            //
            std::thread::sleep(Duration::from_secs(2));
            let found = examine(&server).filter(|found| found["severity"] != "note")?;
            fix(&group, &found);
            Some(found)
        })
        .collect();
    assert!(tries.len() < ATTEMPTS_MAX, "it is still said to be short: {:#}", tries[ATTEMPTS_MAX - 1]);
}

#[test]
#[ignore = "long: make test-stories"]
fn a_neighbour_in_the_memory_cgroup_of_a_database_is_named_and_no_other_limit() {
    let test = "PostgreSQL and tar in one memory cgroup";
    let programs = programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).chain(["tar", "sh"]).collect();
    if !support::can_run(test, &programs) {
        return;
    }
    let _alone = support::alone();
    let Some(group) = MemoryGroup::new(test, PROGRAM_MEMORY_BYTES) else { return };
    let scratch = support::scratch();
    let server = Server::start(scratch.path());
    server.enter(&group);
    let tar = TarLoop::start(&group, server.pid(), scratch.path());

    let by = format!("the database's, by tar (process {}), which brought in ", tar.pid());
    let is_named = |found: &Value| found["cost"]["text"].as_str().is_some_and(|cost| cost.contains(&by));
    // The group has to fill first, and after lost events the reader is unknown.
    let found = support::eventually("the rereading program is named", Duration::from_secs(180), || {
        examine(&server).filter(is_named)
    });
    assert!(
        found["title"].as_str().is_some_and(|title| title.contains("at its limit of 160 MiB")),
        "{found:#}"
    );
    assert_eq!(other_limit(&found), None, "{found:#}");
}
