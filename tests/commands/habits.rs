//! Conventions of command-line programs: help that helps, usage errors that name the fix, silence
//! on success and after a closed pipe, parsable output, and an end on Ctrl-C.

use crate::support;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use crate::support::command::{Outcome, finish, pagekeeper, program, run};
use crate::support::pseudo_terminal::PseudoTerminal;
use crate::support::{MIB, scratch};
use rustix::process::{Pid, Signal, kill_process};

/// Commands that take paths or do something; each has its help and its man page.
const COMMANDS: [&str; 14] = [
    "stat",
    "evict",
    "warm",
    "snapshot",
    "guard",
    "run",
    "top",
    "doctor",
    "probe",
    "size",
    "store",
    "demo",
    "completions",
    "man",
];

#[test]
fn help_and_version() {
    let help = run(["--help"]).expect_success();
    for command in COMMANDS {
        assert!(help.contains(&format!("  {command} ")), "{help}");
        let its_help = run([command, "--help"]).expect_success();
        assert!(its_help.contains("Usage: pagekeeper "), "{its_help}");
        assert!(its_help.contains("Examples:"), "{its_help}");
        assert!(run([command, "-h"]).expect_success().contains("Usage: pagekeeper "));
    }
    assert!(help.contains("Examples:") && help.contains("Exit status:"), "{help}");
    let (_, listed) = help.split_once("Commands:\n").expect("a list");
    let (listed, _) = listed.split_once("\n\n").expect("its end");
    // Long descriptions continue below.
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(' '));
    let listed: Vec<&str> = names.map(|(name, _)| name).filter(|name| !name.is_empty()).collect();
    assert_eq!(listed.len(), COMMANDS.len() + 1, "{listed:?}");
    assert!(listed.iter().all(|name| *name == "help" || COMMANDS.contains(name)), "{listed:?}");
    assert_eq!(run(["--version"]).expect_success(), format!("pagekeeper {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn usage_errors_end_with_64_and_name_the_fix() {
    for (arguments, fix) in [
        (&["--all"][..], "Usage:"),
        (&["stta"], "similar subcommand exists: 'stat'"),
        (&["stat"], "name files or directories, or use --files-from"),
        (&["evict"], "name files or directories, or use --files-from"),
        (&["stat", "--one-filesystem", "."], "similar argument exists: '--one-file-system'"),
        (&["stat", "--top", "few", "."], "give a number, or \"all\""),
        (&["stat", "--min", "5X", "."], "bytes, or a number with K, M, G or T, like 64M"),
        (&["stat", "--sort", "name", "."], "possible values: size, resident, dirty, evicted, path"),
        (&["stat", "--watch=soon", "."], "\"soon\" is not a length of time"),
        (&["stat", "--include", "[", "."], "missing ']'"),
        (&["stat", "-0", "."], "--files-from <FILE>"),
        (&["evict", "--range", "64M", "."], "give A..B, A.. or ..B"),
        (&["evict", "--range", "2M..1M", "."], "its end is not after its start"),
        (&["evict", "--jobs", "0", "."], "0 is not in 1..=1024"),
        (&["warm", "90%", "/etc/passwd"], "\"90%\" is no file: for a part of each file, give --range ..90%"),
        (&["warm", "--range", "90%", "/etc/passwd"], "give ..90% for the first 90% of each file"),
        (
            &["warm", "--pace", "slow", "."],
            "\"slow\" is not a pace: give auto, off, idle, or a rate, like 64M/s",
        ),
        (&["store", "backup", "--pace", "0", "a", "b"], "\"0\" is not a pace"),
        (&["probe", "--pace", "idle", "."], "can't keep to this pace: give --pace auto or off"),
        (&["probe", "--pace", "64M", "."], "can't keep to this pace"),
        (&["doctor", "--elsewhere", "/etc"], "\n       pagekeeper doctor --elsewhere [OPTIONS]\n"),
        (&["completions", "dos"], "possible values: bash"),
        (&["man", "woman"], "pagekeeper --help lists all"),
        (&["man", "store", "woman"], "there is no command \"store woman\""),
    ] {
        let outcome = run(arguments);
        assert_eq!(outcome.code, 64, "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.starts_with("pagekeeper: "), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(fix), "{arguments:?}: {outcome:?}");
        assert!(outcome.stdout.is_empty(), "{arguments:?}: {outcome:?}");
    }
}

#[test]
fn a_configuration_is_checked_by_exit_code() {
    let dir = scratch();
    let path = dir.path().join("guard.toml");
    let check = || finish(pagekeeper().args(["guard", "--check-config"]).arg(&path));
    assert_eq!(check().code, 1);
    for (text, code) in [("tick = \"1s\"\n", 0), ("tick = 1\n", 2), ("profile = \"none\"\n", 2)] {
        std::fs::write(&path, text).unwrap();
        let outcome = check();
        assert_eq!((outcome.code, outcome.stderr.is_empty()), (code, code == 0), "{text}: {outcome:?}");
        assert!(outcome.stdout.is_empty(), "{outcome:?}");
    }
}

#[test]
fn sizes_and_ranges_are_taken_as_people_write_them() {
    let dir = scratch();
    std::fs::write(dir.path().join("small"), vec![1; 1 << 20]).unwrap();
    std::fs::write(dir.path().join("large"), vec![1; 8 << 20]).unwrap();
    let shown =
        finish(pagekeeper().args(["stat", "--sort", "size", "--min", "2M"]).arg(dir.path())).expect_success();
    assert!(
        shown.contains("/large") && !shown.contains("/small") && shown.contains("1 below --min"),
        "{shown}"
    );
    let report =
        finish(pagekeeper().args(["evict", "--json", "--range", "2MiB..4m"]).arg(dir.path().join("large")))
            .json();
    assert_eq!(report["total"]["requested"], 2 << 20);
}

#[test]
fn paths_come_from_lists_too() {
    let dir = scratch();
    for name in ["with space", "with\nnewline", "other"] {
        std::fs::write(dir.path().join(name), b"x").unwrap();
    }
    let list = dir.path().join("list");
    let listed = [dir.path().join("with space"), dir.path().join("with\nnewline")];
    std::fs::write(&list, listed.map(|path| path.display().to_string()).join("\0")).unwrap();
    let report = finish(pagekeeper().args(["stat", "--json", "-0", "--files-from"]).arg(&list)).json();
    assert_eq!((&report["total"]["files"], &report["errors"]), (&2.into(), &serde_json::json!([])));
    let missing = run([OsStr::new("stat"), OsStr::new("--files-from"), dir.path().join("no").as_os_str()]);
    assert!(missing.code == 1 && missing.stderr.contains("can't read paths from"), "{missing:?}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let dir = scratch();
    // More output than a pipe holds.
    for index in 0..2000 {
        std::fs::write(dir.path().join(format!("{index:0100}")), b"").unwrap();
    }
    for arguments in [&["stat", "--all"][..], &["stat", "--json"], &["evict", "--json"]] {
        let mut child = pagekeeper()
            .args(arguments)
            .arg(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // As `head -1` does.
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        drop(reader);
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
        assert_eq!(output.status.signal(), Some(Signal::PIPE.as_raw()), "{arguments:?}: {:?}", output.status);
    }
}

#[test]
fn a_full_disk_behind_standard_output_is_reported() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = pagekeeper()
        .args(["stat", "/dev/null/../../etc/passwd", "/etc/passwd"])
        .stdout(full)
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(reported.contains("standard output: No space left on device"), "{reported}");
}

#[test]
fn messages_to_the_journal_have_priorities() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = scratch();
    let log = dir.path().join("log");
    let logged = |stream: &str| {
        let file = std::fs::File::create(&log).unwrap();
        let mut stat = pagekeeper();
        stat.args(["stat", "/nonexistent"]).env("JOURNAL_STREAM", stream).stderr(file);
        stat.output().unwrap();
        std::fs::read_to_string(&log).unwrap()
    };
    assert!(logged("1:1").starts_with("pagekeeper: /nonexistent: "), "{}", logged("1:1"));
    let file = log.metadata().unwrap();
    let said = logged(&format!("{}:{}", file.dev(), file.ino()));
    assert!(said.starts_with("<3>pagekeeper: /nonexistent: "), "{said}");
}

#[test]
fn a_full_disk_behind_standard_error_is_no_panic() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = pagekeeper().args(["stat", "/no/such/file"]).stderr(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{:?}", output.status);
}

#[test]
fn a_file_that_cannot_be_written_is_not_called_standard_output() {
    let outcome = run(["snapshot", "/etc/passwd", "-o", "/no/such/directory/file"]);
    assert!(outcome.code == 1 && outcome.stderr.starts_with("pagekeeper: can't write /no/"), "{outcome:?}");
}

#[test]
fn a_guard_whose_reader_leaves_ends() {
    let dir = scratch();
    let mut guard = pagekeeper()
        .args(["guard", "--json", "--profile", "generic", "--tick", "10ms", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(guard.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    let output = guard.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.signal(), Some(Signal::PIPE.as_raw()), "{:?}", output.status);
}

#[test]
fn guard_once_fails_if_a_named_directory_is_missing() {
    let dir = scratch();
    for named in [vec!["/no/such/directory"], vec!["/no/such/directory", dir.path().to_str().unwrap()]] {
        let mut guard = pagekeeper();
        guard.args(["guard", "--once", "--profile", "generic", "--tick", "10ms"]);
        let Outcome { code, stderr, .. } = finish(guard.args(named.iter().flat_map(|name| ["--dir", name])));
        assert!(code == 1 && stderr.contains("/no/such/directory"), "{code}: {stderr}");
    }
}

#[test]
fn json_output_is_valid_and_contains_errors() {
    let dir = scratch();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![1; 10_000]).unwrap();
    let outcome = finish(pagekeeper().args(["stat", "--json", "/nonexistent"]).arg(&file));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (1, ""));
    let report = outcome.json();
    assert_eq!(report["files"][0]["path"], file.to_str().unwrap());
    assert_eq!(report["files"][0]["size"], 10_000);
    assert_eq!(report["files"][0]["resident"], 12_288);
    assert_eq!(report["errors"][0]["path"], "/nonexistent");
    assert_eq!(report["errors"][0]["error"], "no such file or directory");
    for figure in
        ["files", "size", "resident", "dirty", "writeback", "evicted", "recently_evicted", "unknown_files"]
    {
        assert!(report["total"][figure].is_u64(), "{figure}: {report}");
    }

    let outcome = finish(pagekeeper().args(["evict", "--json"]).arg(&file));
    let report = outcome.json();
    outcome.expect_success();
    for figure in
        ["requested", "resident_before", "released", "kept_dirty", "kept_mapped", "kept_edge", "kept_busy"]
    {
        assert!(
            report["files"][0][figure].is_u64() && report["total"][figure].is_u64(),
            "{figure}: {report}"
        );
    }
    assert_eq!(report["total"]["released"], 12_288);
}

#[test]
fn files_whose_figures_are_not_for_this_user_are_a_failure_of_every_command() {
    let name = "files_whose_figures_are_not_for_this_user_are_a_failure_of_every_command";
    if !support::can_run(name, &["setpriv"]) {
        return;
    }
    let dir = scratch();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![1; 10_000]).unwrap();
    // Everybody may enter and read it; root owns it.
    for (path, mode) in [(dir.path(), 0o755), (file.as_path(), 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let bin = scratch();
    std::fs::set_permissions(bin.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = bin.path().join("pagekeeper");
    support::copy_program(&program(), &copy);
    for command in ["stat", "evict", "warm"] {
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];
        let outcome = finish(Command::new("setpriv").args(nobody).arg(&copy).arg(command).arg(&file));
        assert_eq!(outcome.code, 1, "{command}: {outcome:?}");
        assert!(outcome.stderr.contains("run as root, as the owner, or with CAP_FOWNER"), "{outcome:?}");
    }
}

#[test]
fn man_pages_are_printed_and_written() {
    let dir = scratch();
    finish(pagekeeper().args(["man", "--dir"]).arg(dir.path())).expect_success();
    for command in COMMANDS {
        let page = run(["man", command]).expect_success();
        let version = format!("\"pagekeeper {}\"", env!("CARGO_PKG_VERSION"));
        assert!(page.lines().any(|line| line.starts_with(".TH ") && line.contains(&version)), "{page}");
        let written = dir.path().join(format!("pagekeeper-{command}.1"));
        assert_eq!(std::fs::read_to_string(&written).unwrap(), page);
    }
    assert!(dir.path().join("pagekeeper.1").is_file());
    for below in ["stat", "verify", "dump"] {
        let page = run(["man", "store", below]).expect_success();
        let written = dir.path().join(format!("pagekeeper-store-{below}.1"));
        assert_eq!(std::fs::read_to_string(&written).unwrap(), page);
    }
    if !support::can_start("the check of man_pages_are_printed_and_written", &["man"]) {
        return;
    }
    let written = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let of_the_configuration =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/pagekeeper-guard.toml.5");
    for page in written.chain([of_the_configuration]) {
        let mut man = Command::new("man");
        man.args(["--warnings", "-l"])
            .arg(&page)
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8")
            .env("PAGER", "cat");
        let Outcome { code, stdout, stderr } = finish(&mut man);
        assert!(code == 0 && stderr.is_empty(), "{}: {stderr}", page.display());
        assert!(stdout.contains("SYNOPSIS"), "{stdout}");
    }
}

/// `stat --watch` of a directory, running.
fn watch(dir: &std::path::Path, more: &[&str]) -> Child {
    pagekeeper()
        .args(["stat", "--watch=0.05"])
        .args(more)
        .arg(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_watch_shows_changes_and_ends_on_a_signal() {
    let dir = scratch();
    std::fs::write(dir.path().join("file"), vec![1; 1 << 20]).unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let mut child = watch(dir.path(), &["--bytes"]);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        lines.find(|line| line.starts_with("1 file")).expect("a first sample");
        std::fs::write(dir.path().join("new"), vec![1; 1 << 20]).unwrap();
        // The previous sample may have been taken during the write.
        let grown = lines.find(|line| line.starts_with("2 files") && line.contains(" [+"));
        assert!(grown.is_some(), "no sample shows the growth");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let rest: Vec<String> = lines.collect();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{signal:?}: {:?}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert!(!rest.concat().contains('\x1b'), "no screen control where there is no terminal");
        std::fs::remove_file(dir.path().join("new")).unwrap();
    }
}

#[test]
fn a_watch_in_json_is_one_object_a_line() {
    let dir = scratch();
    std::fs::write(dir.path().join("file"), b"x").unwrap();
    let mut child = watch(dir.path(), &["--json"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for _ in 0..3 {
        let line = lines.next().expect("a line");
        let report: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(report["total"]["files"], 1);
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    drop(lines);
    // A write may have met the closed pipe before the signal was seen.
    let status = child.wait().unwrap();
    assert!(status.success() || status.signal() == Some(Signal::PIPE.as_raw()), "{status:?}");
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    if !support::can_start("colour_is_for_terminals_that_want_it", &["setsid"]) {
        return;
    }
    let dir = scratch();
    std::fs::write(dir.path().join("bell\x07"), vec![1; usize::try_from(MIB).unwrap()]).unwrap();
    let on_a_terminal = |environment: &str| {
        let command = format!("{environment} {} stat {}", program().display(), dir.path().display());
        let (status, shown) = PseudoTerminal::start(&command).finish();
        assert!(status.success(), "{shown}");
        shown
    };
    let plain = on_a_terminal("TERM=xterm NO_COLOR=1");
    assert!(plain.contains("RESIDENT") && !plain.contains('\x1b'), "{plain:?}");
    assert!(!on_a_terminal("TERM=dumb").contains('\x1b'));
    let coloured = on_a_terminal("TERM=xterm");
    assert!(coloured.contains("\x1b[1m"), "{coloured:?}");
    assert!(coloured.contains("bell\\x07") && !coloured.contains('\x07'), "{coloured:?}");
}
