//! Small programs under `pagekeeper run`: the additional system calls at their start and end,
//! and the pages they leave.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support;
use crate::support::command::{finish, pagekeeper_by_library};
use crate::support::compare::Way;
use crate::support::loop_images::QuickDisk;
use crate::support::{MIB, resident_bytes, scratch};

/// Returns the names of the system calls of a command's last program and all its threads, from its
/// start to its end.
fn calls(words: &[&str], under_run: bool, directory: &Path) -> Vec<String> {
    let log = directory.join("calls");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "signal=none", "-o"]).arg(&log);
    if under_run {
        let run = pagekeeper_by_library();
        command.arg(run.get_program()).args(run.get_args()).args(["run", "--"]);
    }
    // Other search paths for libraries would count for each program.
    command.args(words).current_dir(directory).stdin(Stdio::null()).env_remove("LD_LIBRARY_PATH");
    finish(&mut command).expect_success();
    let text = std::fs::read_to_string(&log).expect("read what strace wrote");
    let lines: Vec<&str> = text.lines().collect();
    let is_start = |line: &&str| line.contains(" execve(") && line.ends_with("= 0");
    let start = lines.iter().rposition(is_start).expect("a program is started");
    let name = |line: &&str| Some(line.split_once(' ')?.1.trim_start().split_once('(')?.0.to_owned());
    lines[start..].iter().filter_map(name).collect()
}

/// A thread, and a wait for it, would take longer than all else that a small program does.
#[test]
fn a_small_program_makes_few_additional_calls_and_no_thread() {
    if !support::can_start("calls of small programs", &["strace", "cp", "gzip", "cat", "true"]) {
        return;
    }
    let scratch = scratch();
    let here = scratch.path();
    std::fs::write(here.join("a"), vec![7; 20_000]).expect("write");
    // Programs without a rule, and streams that read, and read and write.
    for (words, most) in [
        (&["sh", "-c", "exec true"][..], 20),
        (&["sh", "-c", "true"], 20),
        (&["cat", "a"], 60),
        (&["cp", "a", "b"], 110),
        (&["gzip", "-k", "-f", "a"], 110),
    ] {
        let (plain, ours) = (calls(words, false, here), calls(words, true, here));
        let more = ours.len().saturating_sub(plain.len());
        eprintln!("{words:?}: {} calls, {more} more", plain.len());
        assert!(more > 0 && more <= most, "{words:?}: {more} calls more than {}: {ours:#?}", plain.len());
        let makes_tasks =
            |calls: &[String]| calls.iter().any(|call| call.contains("clone") || call == "fork");
        assert!(!makes_tasks(&plain) && !makes_tasks(&ours), "{words:?}: {ours:#?}");
    }
}

/// Output of small programs is released on a fast disk, as are files that are open when their
/// process ends.
#[test]
fn pages_of_small_and_still_open_files_are_released() {
    if !support::can_start("small programs' files", &["cp", "gzip", "cat", "sh", "python3", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    std::fs::write(here.join("a"), vec![7; 20_000]).expect("write");
    std::fs::create_dir(here.join("tree")).expect("make a directory");
    for nth in 0..40 {
        std::fs::write(here.join(format!("tree/{nth}")), vec![7; 64 << 10]).expect("write");
    }
    let open_at_its_end = |how: &str| {
        format!(
            "import os; f = os.open('open', os.O_CREAT | os.O_WRONLY); [os.write(f, bytes(1 << 20)) for _ in range(12)]; {how}"
        )
    };
    let (by_return, by_exit) = (open_at_its_end(""), open_at_its_end("os._exit(0)"));
    for (words, made) in [
        (&["cp", "a", "copy"][..], "copy"),
        (&["gzip", "-k", "a"], "a.gz"),
        (&["sh", "-c", "cat < a > copy"], "copy"),
        (&["cp", "-r", "tree", "copies"], "copies"),
        (&["python3", "-c", &by_return], "open"),
        (&["python3", "-c", &by_exit], "open"),
    ] {
        // Repeats the test if the machine was too busy for the time limits.
        support::eventually(
            &format!("nothing stays of what {words:?} writes"),
            Duration::from_secs(60),
            || {
                let mut stream = Way::stream_by_library().command(Path::new(words[0]));
                finish(stream.args(&words[1..]).current_dir(here).stdin(Stdio::null())).expect_success();
                let made = here.join(made);
                let files: Vec<_> = if made.is_dir() {
                    made.read_dir().expect("list").map(|entry| entry.expect("an entry").path()).collect()
                } else {
                    vec![made.clone()]
                };
                assert!(support::size_bytes(&files) > 0);
                let left = resident_bytes(&files);
                if made.is_dir() {
                    std::fs::remove_dir_all(&made).expect("remove");
                } else {
                    std::fs::remove_file(&made).expect("remove");
                }
                eprintln!("{words:?}: {left} bytes stay");
                assert!(left <= MIB / 2, "{words:?}: {left} bytes stay");
                (left == 0).then_some(())
            },
        );
    }
}
