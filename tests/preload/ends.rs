//! Exit codes and signals of `pagekeeper run`. It ends as the command ended, however the command
//! left its process group, with a report or without, also as the first process of a container. It
//! starts the command even if it can't write the report.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::command::{Outcome, finish, pagekeeper, pagekeeper_by_library, program};
use crate::support::pseudo_terminal::PseudoTerminal;
use crate::support::{can_run, can_start, copy_program, scratch};

/// A program that leaves its process group in a given way, or stays, and ends in a given way.
const ENDS: &str = "\
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
int main(int count, char **arguments) {
    const struct rlimit none = {0, 0};
    const int number = atoi(arguments[3]);
    setrlimit(RLIMIT_CORE, &none);
    if (!strcmp(arguments[1], \"session\") && setsid() < 0) return 201;
    if (!strcmp(arguments[1], \"group\") && setpgid(0, 0) < 0) return 202;
    if (!strcmp(arguments[1], \"fork\") && fork() == 0) {
        if (fork() == 0) usleep(20000);
        _exit(7);
    }
    if (!strcmp(arguments[2], \"exit\")) _exit(number);
    signal(number, SIG_DFL);
    raise(number);
    return count == 4 ? 200 : 203;
}
";

/// Ways in which a command leaves its process group, as the program and the book call them.
const LEAVING: [(&str, &str); 4] = [
    ("stay", "stays in its process group"),
    ("session", "begins a session (`setsid`)"),
    ("group", "begins a process group (`timeout`, `setpgid`)"),
    ("fork", "leaves processes behind (double fork)"),
];

/// Signals that end a process.
fn signals() -> impl Iterator<Item = i32> {
    let others = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    (1..32).filter(move |signal| !others.contains(signal))
}

/// The surroundings in which a command is started.
#[derive(Clone, Copy)]
struct StartPlace {
    has_report: bool,
    is_first: bool,
}

impl StartPlace {
    /// Runs the program, and returns its exit code as a shell reports it.
    fn exit_code_of(self, ends: &Path, leaving: &str, how: &str, number: i32) -> i32 {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(program());
        if !self.is_first {
            command = pagekeeper();
        }
        command.args(["run", "--as", "bulk"]);
        if self.has_report {
            command.arg("--report");
        }
        let outcome = finish(command.arg("--").arg(ends).args([leaving, how, &number.to_string()]));
        // The report exists, whatever ended the command.
        assert_eq!(
            outcome.stderr.contains("pagekeeper: "),
            self.has_report,
            "{leaving} {how} {number}: {outcome:?}"
        );
        outcome.code
    }

    /// Compares the exit codes with the command's.
    fn codes(self, ends: &Path, leaving: &str, numbers: impl Iterator<Item = i32>) -> String {
        let kinds: BTreeSet<String> = numbers
            .map(|number| match self.exit_code_of(ends, leaving, "exit", number) {
                code if code == number => "the command's".to_owned(),
                code => format!("{code} for {number}"),
            })
            .collect();
        kinds.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Compares the ends by a signal with the command's.
    fn signals(self, ends: &Path, leaving: &str) -> String {
        let kinds: BTreeSet<String> = signals()
            .map(|signal| match self.exit_code_of(ends, leaving, "signal", signal) {
                code if code == 128 + signal && self.is_first => "exit code 128 + the signal".to_owned(),
                code if code == 128 + signal => "the same signal".to_owned(),
                code => format!("{code} for {signal}"),
            })
            .collect();
        kinds.into_iter().collect::<Vec<_>>().join(", ")
    }
}

/// Prints the table in the book.
#[test]
fn run_ends_as_the_command_ends_by_exit_or_signal() {
    if !can_run("ends of commands", &["cc", "unshare"]) {
        return;
    }
    let dir = scratch();
    let (text, ends) = (dir.path().join("ends.c"), dir.path().join("ends"));
    std::fs::write(&text, ENDS).unwrap();
    finish(Command::new("cc").arg("-o").arg(&ends).arg(&text)).expect_success();
    let mut table = String::from(
        "| the command | code | code, `--report` | code, `--report`, as process 1 | signal | signal, `--report` | signal, `--report`, as process 1 |\n|---|---|---|---|---|---|---|\n",
    );
    let some = [0, 1, 2, 77, 126, 127, 128, 143, 254, 255];
    for (nth, (leaving, said)) in (0..).zip(LEAVING) {
        let (plain, reported) = (
            StartPlace { has_report: false, is_first: false },
            StartPlace { has_report: true, is_first: false },
        );
        let first = StartPlace { is_first: true, ..reported };
        write!(table, "| {said}").unwrap();
        // All codes, each with another way to leave.
        let all = (0..256).filter(|code| code % 4 == nth || some.contains(code));
        for cell in [
            plain.codes(&ends, leaving, some.into_iter()),
            reported.codes(&ends, leaving, all),
            first.codes(&ends, leaving, some.into_iter()),
            plain.signals(&ends, leaving),
            reported.signals(&ends, leaving),
            first.signals(&ends, leaving),
        ] {
            write!(table, " | {cell}").unwrap();
        }
        table.push_str(" |\n");
    }
    println!("{table}");
    let book = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/reference/run.md"),
    )
    .unwrap();
    assert!(book.contains(&table), "the table in docs/src/reference/run.md is another:\n{table}");
}

/// These programs start jobs in another process group.
#[test]
fn timeout_and_setsid_end_with_a_report() {
    if !can_start("timeout and setsid", &["timeout", "setsid"]) {
        return;
    }
    for (words, code) in [
        (&["timeout", "2h", "sh", "-c", "exit 9"][..], 9),
        (&["timeout", "0.1", "sleep", "60"], 124),
        (&["setsid", "-w", "sh", "-c", "exit 9"], 9),
        (&["setsid", "sh", "-c", "exit 9"], 0),
    ] {
        let outcome = finish(pagekeeper().args(["run", "--report", "--"]).args(words));
        // setsid(1) forks only if it is a group leader.
        let is_forked = words[1] == "sh" && outcome.code == 9;
        assert!(outcome.code == code || is_forked, "{words:?}: {outcome:?}");
        assert!(
            outcome.stderr.contains("pagekeeper: ") && !outcome.stderr.contains("child processes"),
            "{outcome:?}"
        );
    }
}

/// This process forwards a terminal's signals to a command that is not in the foreground group.
#[test]
fn a_terminals_key_reaches_a_command_of_another_group() {
    if !can_start("a key for another group", &["setsid", "timeout"]) {
        return;
    }
    let text = "trap 'echo got it; exit 5' INT; echo ready; n=0; while [ $n -lt 3000 ]; do sleep 0.02; n=$((n+1)); done; exit 6";
    let line = format!("exec {} run --report=/dev/null -- timeout 1h sh -c \"{text}\"", program().display())
        .replace('$', "\\$");
    let mut terminal = PseudoTerminal::start(&line);
    terminal.read_until("ready\r\n");
    terminal.type_keys(b"\x03");
    let (status, shown) = terminal.finish();
    // `timeout` ends as its command did.
    assert!(shown.contains("got it") && status.code() == Some(5), "{status}: {shown}");
}

/// Runs a shell's text, in which `$RUN` is this program.
fn shell(text: &str, directory: &Path) -> Outcome {
    finish(Command::new("bash").args(["-c", text]).env("RUN", program()).current_dir(directory))
}

#[test]
fn the_command_is_started_even_without_a_report() {
    if !can_start("reports that can't be", &["bash", "mkfifo", "cat"]) {
        return;
    }
    let dir = scratch();
    let here = dir.path();
    let start = "run --as bulk";
    let done = "&& echo started";
    // Nobody reads the pipe.
    let nobody = shell(&format!("mkfifo fifo && $RUN {start} --report=fifo -- true {done}"), here);
    assert!(nobody.code == 0 && nobody.stdout == "started\n", "{nobody:?}");
    assert!(
        nobody.stderr.contains("can't write fifo")
            && nobody.stderr.contains("the report goes to standard error"),
        "{nobody:?}"
    );
    // A reader reads from the start, or only at the end.
    for reader in [
        "cat fifo & sleep 0.2; $RUN OPTIONS true; wait",
        "$RUN OPTIONS sh -c 'cat fifo >&2 & sleep 0.2'; wait",
    ] {
        let text = reader.replace("OPTIONS", &format!("{start} --report=fifo --"));
        let read = shell(&text, here);
        let all = read.stdout.clone() + &read.stderr;
        assert!(read.code == 0 && all.starts_with("pagekeeper: ") && !all.contains("can't"), "{read:?}");
    }
    for (limit, what, expected) in [
        ("-f 1", "-f", "1"),
        ("-f 0", "-f", "0"),
        ("-s 64", "-s", "64"),
        ("-S -s 128", "-s", "128"),
        ("-n 16", "-n", "16"),
    ] {
        for options in ["", "--report", "--report=report", "--report=json"] {
            let outcome = shell(
                &format!("ulimit {limit}; $RUN {start} {options} -- bash -c 'ulimit {what}; exit 7'"),
                here,
            );
            assert!(outcome.code == 7 && outcome.stdout.trim() == expected, "{limit} {options}: {outcome:?}");
        }
    }
    // Limits that end the command end it as without `run`.
    let killed =
        shell(&format!("ulimit -f 1; $RUN {start} --report -- sh -c 'exec cat /proc/self/exe > big'"), here);
    assert_eq!(killed.code, 128 + libc::SIGXFSZ, "{killed:?}");
}

#[test]
fn json_alone_is_a_report() {
    let outcome = finish(pagekeeper_by_library().args(["run", "--json", "--", "sh", "-c", "exit 7"]));
    let report: serde_json::Value = serde_json::from_str(&outcome.stderr).expect("JSON");
    assert!(outcome.code == 7 && report["counted"] == true, "{report:#}");
}

#[test]
fn a_truncated_report_changes_no_exit_code() {
    // The shell that truncates it has no library that writes counters to it.
    let text = "report=$(echo \"$PAGEKEEPER_RUN\" | sed -n 's/^report //p'); \
                LD_PRELOAD= exec sh -c ': >\"$0\"; exit 7' \"$report\"";
    let outcome = finish(pagekeeper_by_library().args(["run", "--report", "--", "sh", "-c", text]));
    assert!(outcome.code == 7 && outcome.stderr.contains("the counts can't be read"), "{outcome:?}");
}

/// Only root may raise this limit of the stack.
#[test]
fn run_works_with_another_users_small_stack() {
    if !can_run("a small stack", &["bash", "setpriv"]) {
        return;
    }
    let dir = scratch();
    let own = dir.path().join("pagekeeper");
    copy_program(&program(), &own);
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    for options in ["", "--report=json"] {
        let text = format!(
            "ulimit -s 64; HOME=$PWD exec setpriv --reuid=65534 --regid=65534 --clear-groups ./pagekeeper run --as bulk {options} -- sh -c 'ulimit -s; kill -TERM $$'"
        );
        let outcome = finish(
            Command::new("bash")
                .args(["-c", &text])
                .current_dir(dir.path())
                .env_remove("XDG_RUNTIME_DIR")
                .env_remove("XDG_CACHE_HOME"),
        );
        assert!(outcome.code == 128 + libc::SIGTERM && outcome.stdout == "64\n", "{options}: {outcome:?}");
    }
}

/// As sudo without `--set-home` leaves it, where root's own directories can't be written.
#[test]
fn root_creates_nothing_in_another_users_home() {
    if !can_run("another's home", &["unshare", "mount"]) {
        return;
    }
    let dir = scratch();
    let home = dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    let text = "mkdir -p /run/pagekeeper /var/lib/pagekeeper; for at in /run/pagekeeper /var/lib/pagekeeper; do mount -t tmpfs -o noexec none $at; done\n\
                exec \"$RUN\" run --as bulk --report -- sh -c 'echo $LD_PRELOAD'";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--", "sh", "-c", text])
        .env("RUN", program())
        .env("HOME", &home)
        .env_remove("XDG_CACHE_HOME");
    let outcome = finish(&mut command);
    assert!(outcome.code == 0 && outcome.stdout.contains("/libpagekeeper-"), "{outcome:?}");
    let made: Vec<_> = std::fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(made.is_empty(), "{made:?}, of {}", made[0].metadata().unwrap().uid());
}
