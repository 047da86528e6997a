//! Commands under `pagekeeper run` that are followed by kernel events. They behave as
//! without it, both while the follower runs and after its end; commands that can't be followed
//! are reported or refused. Residency is `fincore`'s.

mod held;
mod kinds;
mod plain;

use crate::support;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::command::{finish, pagekeeper};
use crate::support::{
    MIB, copy_program, eventually, evict, open_to_others, resident_bytes, scratch, stat_fields,
};

/// Bytes of a stream.
const STREAM_BYTES: u64 = 512 * MIB;
/// A disk may be slow to write dirty pages.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Writes a file whose blocks all differ, so that it can't be deduplicated.
fn write(path: &Path, bytes: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let block: Vec<u8> = words.by_ref().take((MIB / 8) as usize).flatten().collect();
    let mut file = fs::File::create(path).unwrap();
    for nth in 0..bytes / MIB {
        let mut block = block.clone();
        block[..8].copy_from_slice(&nth.to_le_bytes());
        std::io::Write::write_all(&mut file, &block).unwrap();
    }
}

/// Starts a static program that holds file pages until it reads a line.
fn holder(options: &[&str], file: &Path) -> Child {
    let line = format!("busybox cat {} >/dev/null; read line", file.display());
    let mut run = pagekeeper();
    run.arg("run").args(options).args(["--as=stream", "--", "busybox", "sh", "-c", &line]);
    run.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns the follower of a command: a process in another session with the parent's command line.
///
fn follower(parent: &Child) -> Option<Pid> {
    let line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let own = line(parent.id());
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // Field 6; 0 is a session of another PID namespace.
    let session = |pid: u32| stat_fields(pid)?.get(3)?.parse::<u32>().ok();
    // The command has that line, too, until it is executed.
    let is_beside = |pid: u32| line(pid) == own && session(pid) != session(parent.id());
    let pid = pids.find(|&pid| pid != parent.id() && !own.is_empty() && is_beside(pid))?;
    Pid::from_raw(pid.cast_signed())
}

/// Signals that end a service or a terminal also reach the follower.
#[test]
fn a_follower_outlives_the_end_of_its_terminal() {
    if !support::can_follow("a follower is sent signals", &["busybox", "fincore"]) {
        return;
    }
    let dir = scratch();
    let file = dir.path().join("file");
    write(&file, STREAM_BYTES);
    evict(&file);
    // With a report, the parent has the command line by which it is found.
    let mut child = holder(&["--report"], &file);
    let pid = eventually("it is followed", WAIT_TIMEOUT, || follower(&child));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(pid, signal).unwrap();
    }
    eventually("pages it read go while it waits", WAIT_TIMEOUT, || {
        (resident_bytes(std::slice::from_ref(&file)) <= MIB).then_some(())
    });
    assert_eq!(follower(&child), Some(pid));
    drop(child.stdin.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "read(1) of a shell fails at the end: {ended:?}");
    let report = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        report.contains("followed by kernel events") && report.contains(", released 512 MiB"),
        "{report}"
    );
    eventually("nobody is beside it", WAIT_TIMEOUT, || {
        kill_process(pid, Signal::CONT).is_err().then_some(())
    });
}

#[test]
fn a_command_continues_without_its_follower() {
    if !support::can_follow("a follower is killed", &["busybox"]) {
        return;
    }
    let dir = scratch();
    let file = dir.path().join("file");
    write(&file, MIB);
    let mut child = holder(&["--report"], &file);
    let pid = eventually("it is followed", WAIT_TIMEOUT, || follower(&child));
    // Before it answers, or after that.
    kill_process(pid, Signal::KILL).unwrap();
    drop(child.stdin.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "read(1) of a shell fails at the end: {ended:?}");
    let report = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(report.contains("the process that follow"), "{report}");
}

#[test]
fn the_command_is_as_without_a_follower() {
    if !support::can_follow("the_command_is_as_without_a_follower", &["busybox"]) {
        return;
    }
    for options in [&["--as=stream"][..], &["--as=stream", "--report=/dev/null"]] {
        let run = |text: &str| {
            finish(pagekeeper().arg("run").args(options).args(["--", "busybox", "sh", "-c", text]))
        };
        assert_eq!(run("exit 7").code, 7);
        assert_eq!(run("kill -KILL $$").code, 137);
        // The command sees no child that it did not start, and only its own descriptors.
        for text in
            ["cd /proc/$$/fd && echo *", "ulimit -a; busybox nice; umask; pwd", "exec busybox pgrep -P $$"]
        {
            let alone = finish(Command::new("busybox").args(["sh", "-c", text]));
            let run = run(text);
            assert_eq!((run.code, run.stdout), (alone.code, alone.stdout), "{options:?} {text}");
        }
        // The follower does not keep its output open: finish() reads to the end.
        assert_eq!(run("echo one; echo two").expect_success(), "one\ntwo\n");
    }
    let missing = finish(pagekeeper().args(["run", "--as=stream", "--", "no-such-command"]));
    assert_eq!(missing.code, 127, "{missing:?}");
}

#[test]
fn users_without_permission_to_follow_are_warned_and_refused_by_require() {
    if !support::can_run("who_may_not_follow_is_warned", &["busybox", "setpriv"]) {
        return;
    }
    let dir = scratch();
    let program = dir.path().join("pagekeeper");
    copy_program(&support::command::program(), &program);
    open_to_others(dir.path());
    let as_nobody = |options: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program).arg("run");
        finish(command.args(options).args(["--as=stream", "--", "busybox", "echo", "here"]))
    };
    let warned = as_nobody(&[]);
    assert_eq!((warned.code, warned.stdout.as_str()), (0, "here\n"), "{warned:?}");
    assert!(
        warned.stderr.contains("linked statically")
            && warned.stderr.contains("can't be followed by events: ")
            && warned.stderr.contains("it is started without the rules"),
        "{warned:?}"
    );
    assert_eq!(warned.stderr.lines().count(), 1, "{warned:?}");
    // Programs that the library covers have the rules, and the report lists the missing means.
    let reached = |options: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program).arg("run");
        // Children are covered as their parents are.
        let line = "env -i cat /etc/hostname >/dev/null; echo here";
        finish(command.args(options).args(["--as=stream", "--", "sh", "-c", line]))
    };
    assert_eq!(reached(&["--require"]).expect_success(), "here\n");
    let reported = reached(&["--report"]);
    assert!(reported.stderr.contains("not covered calls that the library does not see"), "{reported:?}");
    let unpaced = reached(&["--pace=off"]);
    assert!(unpaced.code == 1 && unpaced.stdout.is_empty(), "{unpaced:?}");
    assert!(unpaced.stderr.contains("--pace needs a stream that is followed by events"), "{unpaced:?}");
    let refused = as_nobody(&["--require"]);
    assert!(
        refused.code == 1 && refused.stdout.is_empty() && refused.stderr.contains("--require"),
        "{refused:?}"
    );
}

#[test]
fn work_done_by_other_processes_is_reported() {
    let dir = scratch();
    let docker = dir.path().join("docker");
    fs::write(&docker, "#!/bin/sh\necho elsewhere\n").unwrap();
    open_to_others(&docker);
    let outcome = finish(pagekeeper().args(["run", "--"]).arg(&docker).args(["exec", "db", "tar"]));
    assert!(outcome.code == 0 && outcome.stderr.contains("started by another process"), "{outcome:?}");
    let refused = finish(pagekeeper().args(["run", "--require", "--"]).arg(&docker));
    assert_eq!(refused.code, 1, "{refused:?}");
}

/// A process that outlives the command is followed as before, which is reported.
#[test]
fn children_that_outlive_the_command_are_still_followed() {
    if !support::can_follow("children that outlive the command", &["busybox", "fincore", "mkfifo"]) {
        return;
    }
    let _alone = support::alone();
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let files = [at("file"), at("copy")];
    write(&files[0], STREAM_BYTES);
    evict(&files[0]);
    finish(Command::new("mkfifo").args([at("begin"), at("end")])).expect_success();
    let line = "(cat begin; cat file >copy; echo >done; cat end) </dev/null >/dev/null 2>&1 & echo $!";
    let mut run = pagekeeper();
    run.args(["run", "--report", "--as=stream", "--", "busybox", "sh", "-c", line]).current_dir(dir.path());
    let ended = finish(&mut run);
    assert!(ended.code == 0 && ended.stderr.contains("some of its processes run"), "{ended:?}");
    fs::write(at("begin"), "").unwrap();
    eventually("it has copied", WAIT_TIMEOUT, || at("done").exists().then_some(()));
    eventually("all of it goes while it waits", WAIT_TIMEOUT, || {
        (resident_bytes(&files) <= MIB).then_some(())
    });
    fs::write(at("end"), "").unwrap();
}

/// A file that only its creator may read looks like a temporary one, which the library keeps; a
/// static program has no library.
#[test]
fn private_output_of_a_static_program_is_released() {
    if !support::can_follow("private output of a static program", &["busybox", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let dir = scratch();
    let files = [dir.path().join("file"), dir.path().join("copy")];
    write(&files[0], STREAM_BYTES / 4);
    evict(&files[0]);
    let line = "umask 077; busybox cp file copy";
    finish(pagekeeper().args(["run", "--as=stream", "--", "sh", "-c", line]).current_dir(dir.path()))
        .expect_success();
    eventually("all of it goes", WAIT_TIMEOUT, || (resident_bytes(&files) <= MIB).then_some(()));
}
