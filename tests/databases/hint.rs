//! `pagekeeper` without arguments: its output on a host with a real database, with none, with
//! hidden processes, beside a hostile user, and beside a hung file system.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pagekeeper_testing::HangingMount;

use crate::support;
use crate::support::command::{Outcome, finish, pagekeeper, program};
use crate::support::fake::{Database, Program};
use crate::support::mariadb::{Options, REQUIRED_PROGRAMS, Server};
use crate::support::sysbench::LoadedServer as _;

/// A deadline far longer than a run takes; without one a failed test would hang.
const TIMEOUT_SECONDS: &str = "60";

/// A user ID without processes.
const AS_UNUSED_USER: [&str; 4] = ["setpriv", "--reuid=61234", "--regid=61234", "--clear-groups"];

fn hint() -> Outcome {
    finish(Command::new("timeout").args(["--signal=KILL", TIMEOUT_SECONDS]).arg(program()))
}

/// Repeats until the output has a text: on a busy machine its one second may not suffice.
///
fn wait_for_output(what: &str, ask: impl Fn() -> Outcome, says: impl Fn(&str) -> Option<()>) -> String {
    support::eventually(what, Duration::from_secs(180), || {
        let text = ask().expect_success();
        let found = says(&text);
        if found.is_none() {
            eprintln!("{text}");
        }
        found.map(|()| text)
    })
}

/// Runs in a private PID namespace, after a shell's commands; as a user if `starter` says so.
///
fn run_in_pid_namespace(line: &str, starter: &[&str]) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "--", "sh", "-ec"]);
    command.arg(format!("{line}\n{} \"$0\"", starter.join(" "))).arg(program());
    finish(&mut command)
}

#[test]
fn a_server_is_named_with_its_cached_logs_and_the_next_command() {
    if !support::can_run("the hint beside MariaDB", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = Server::start(scratch.path(), Options::primary());
    server.execute(
        "CREATE DATABASE a; CREATE TABLE a.t (b LONGBLOB); INSERT INTO a.t VALUES (REPEAT('x', 9000000))",
    );
    let data = scratch.path().join("primary/data").display().to_string();
    let named = format!("  mariadb, process {}, {data}", server.pid());
    let text = wait_for_output("what its binlog of 9 MB holds", hint, |text| {
        let mut lines = text.lines();
        let figures = lines.find(|line| line.starts_with(&named))?.split_once(": logs hold ")?.1;
        figures.contains(" MiB in memory").then_some(())
    });
    assert!(
        text.contains("\nNext: pagekeeper guard --dry-run") && text.ends_with("pagekeeper --help\n"),
        "{text}"
    );
    // An unused user can't see the server's files, but its process name.
    let program = copied_program(scratch.path());
    let by_nobody = || finish(Command::new(AS_UNUSED_USER[0]).args(&AS_UNUSED_USER[1..]).arg(&program));
    let unseen = format!("process {}: its files can't be seen", server.pid());
    let text = wait_for_output(&unseen, by_nobody, |text| {
        (text.contains(&unseen) && text.contains("without root")).then_some(())
    });
    assert!(text.contains("\nNext: sudo pagekeeper guard --dry-run"), "{text}");
}

/// Returns a copy of the program that other users may start.
fn copied_program(scratch: &Path) -> std::path::PathBuf {
    let to = scratch.join("pagekeeper");
    support::copy_program(&program(), &to);
    to
}

#[test]
fn a_missing_or_hidden_database_is_reported() {
    if !support::can_run("the hint on a host of its own", &["unshare", "setpriv", "mount"]) {
        return;
    }
    let known = "no database that it knows is running";
    let none =
        wait_for_output(known, || run_in_pid_namespace("", &[]), |text| text.contains(known).then_some(()));
    assert!(none.contains("\nNext: pagekeeper demo ") && !none.contains("guard"), "{none}");
    let scratch = support::scratch();
    let program = copied_program(scratch.path());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "--", "sh", "-ec"]);
    let line = format!("mount -o remount,hidepid=2 /proc\n{} \"$0\"", AS_UNUSED_USER.join(" "));
    let hidden = finish(command.arg(line).arg(program)).expect_success();
    assert!(hidden.contains("processes of other users are hidden"), "{hidden}");
    assert!(hidden.contains("no database was found"), "{hidden}");
    // Without /proc at all.
    let blind = run_in_pid_namespace("umount --lazy /proc", &[]);
    assert!(blind.code == 0 && blind.stdout.ends_with("pagekeeper --help\n"), "{blind:#?}");
    // Output that nobody reads is not a failure; output that can't be written is.
    let full = finish(Command::new("sh").args(["-c", "\"$0\" > /dev/full"]).arg(support::command::program()));
    assert!(full.code == 1 && full.stderr.contains("standard output"), "{full:#?}");
}

#[test]
fn a_hostile_neighbour_neither_controls_the_terminal_nor_delays_the_output() {
    if !support::can_run("the hint beside a hostile user", &["setpriv", "bash", "timeout"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let odd = scratch.path().join(std::ffi::OsStr::from_bytes(b"\x1b[2Jodd\nNext: \xff"));
    for number in 0..3000 {
        let directory = odd.join(format!("{number}"));
        std::fs::create_dir_all(&directory).expect("make a directory");
        for name in ["binlog.000001", "binlog.index", "x"] {
            std::fs::write(directory.join(name), b"1").expect("write");
        }
    }
    for entry in [scratch.path(), &odd] {
        support::open_to_others(entry);
    }
    let chown = Command::new("chown").args(["-R", "61234"]).arg(&odd).status().expect("run chown");
    assert!(chown.success());
    let gate = scratch.path().join("gate");
    std::fs::write(&gate, b"").expect("write");
    let hostile = Database::of_many(scratch.path(), &odd, 61234, &gate);
    let line = format!(" process {}", hostile.pid());
    support::eventually("it is found", Duration::from_secs(180), || {
        let outcome = hint();
        let text = outcome.expect_success();
        let next = text.lines().filter(|line| line.starts_with("Next:")).count();
        assert!(!text.contains('\x1b') && next == 1, "{text}");
        text.contains(&line).then_some(())
    });
}

#[test]
fn a_hung_file_system_does_not_delay_the_output() {
    if !support::can_run("the hint beside a file system that hangs", &["setpriv", "bindfs", "timeout"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let (below, point) = (scratch.path().join("below"), scratch.path().join("point"));
    std::fs::create_dir(&below).expect("make a directory");
    for name in ["binlog.000001", "binlog.index"] {
        std::fs::write(below.join(name), vec![1; 1 << 20]).expect("write a log");
    }
    // A file that may belong to an engine, by the files beside it. It must hide no database.
    std::fs::write(below.join("MANIFEST-000004"), b"").expect("write");
    let hanging = HangingMount::mount(&below, &point, "binlog.index");
    let engines: Vec<Program> = (0..4).map(|_| Program::holding(&point.join("MANIFEST-000004"))).collect();
    let database = Database::start(scratch.path(), &point.join("binlog.000001"));
    hanging.stop();
    // On a busy machine the time that it takes for all databases may be over before this one.
    let name = format!("process {}", database.pid());
    let line = support::eventually("it is listed", Duration::from_secs(60), || {
        let outcome = hint();
        assert_ne!(outcome.code, 137, "it hangs: {outcome:#?}");
        outcome.expect_success().lines().find(|line| line.contains(&name)).map(str::to_owned)
    });
    hanging.go_on();
    assert!(line.contains("network") || line.contains("not counted"), "{line}");
    drop((database, engines));
    // The program takes options and arguments as before.
    assert_eq!(finish(pagekeeper().arg("--no-such")).code, 64);
}
