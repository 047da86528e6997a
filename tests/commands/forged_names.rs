//! Hostile names: line feeds that would forge log lines, terminal sequences, bytes that are not
//! text, and shell syntax. Every command prints as many lines as with tame names, and no control
//! character.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::command::{Outcome, finish, pagekeeper};
use crate::support::prometheus::{ask, free_port};
use crate::support::{can_run, copy_program, eventually, scratch};

/// Names of files, each with something that must not be printed verbatim.
const NASTY: [&[u8]; 6] = [
    b"a\npagekeeper: forged",
    b"b\x1b[2J\x1b]0;owned\x07",
    b"c\xff\xfe\x9b31m",
    "d\u{9b}31m\u{202e}gpj\u{2066}\u{2028}".as_bytes(),
    b"e$(id>x)`id`'\"; exit",
    b"f\r\t\x7f\x08",
];

/// The same number of ordinary names.
const TAME: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];

/// Returns a tree with these files, in a directory with a nasty name.
fn tree(parent: &Path, directory: &[u8], names: &[&[u8]]) -> PathBuf {
    let directory = parent.join(OsStr::from_bytes(directory));
    std::fs::create_dir(&directory).unwrap();
    for name in names {
        std::fs::write(directory.join(OsStr::from_bytes(name)), [1; 5000]).unwrap();
    }
    directory
}

/// Asserts that the output has no terminal sequence, and only lines of the program.
///
fn assert_safe(outcome: &Outcome) {
    for text in [&outcome.stdout, &outcome.stderr] {
        assert_plain(text);
        assert!(!text.lines().any(|line| line.starts_with("pagekeeper: forged")), "{outcome:#?}");
    }
}

/// Asserts that text of any number of lines has no terminal sequence.
fn assert_plain(text: &str) {
    let odd = text.chars().find(|c| is_odd(*c));
    assert_eq!(odd, None, "{text}");
}

/// Whether a character is neither visible nor a line feed.
fn is_odd(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// Runs the program with these words before the directory, and more behind it, in a tree with these
/// names.
fn run_in(directory: &Path, before: &[&str], behind: &[OsString]) -> Outcome {
    finish(pagekeeper().args(before).arg(directory).args(behind))
}

#[test]
fn forged_names_add_no_lines_or_control_characters_to_any_command() {
    let (nasty_place, tame_place) = (scratch(), scratch());
    let nasty = tree(nasty_place.path(), b"db\npagekeeper: forged \x1b[31m", &NASTY);
    let tame = tree(tame_place.path(), b"db", &TAME);
    let none: Vec<OsString> = Vec::new();
    let saved = |place: &Path| vec![OsString::from("-o"), place.join("s\x1b\n").into_os_string()];
    let (nasty_saved, tame_saved) = (saved(nasty_place.path()), saved(tame_place.path()));
    for (before, of_nasty, of_tame) in [
        (&["stat", "--all"][..], &none, &none),
        (&["stat", "--map"], &none, &none),
        (&["snapshot"], &nasty_saved, &tame_saved),
        // The files exist already. They may be replaced, since they are snapshots.
        (&["snapshot"], &nasty_saved, &tame_saved),
        (&["warm"], &none, &none),
        (&["top", "--once"], &none, &none),
        (&["evict"], &none, &none),
        (&["guard", "--once", "--dry-run", "--dir"], &none, &none),
        (&["doctor", "--watch", "100ms"], &none, &none),
    ] {
        let outcome = run_in(&nasty, before, of_nasty);
        assert_safe(&outcome);
        let expected = run_in(&tame, before, of_tame);
        assert_eq!(outcome.code, expected.code, "{outcome:#?} {expected:#?}");
        // Doctor wraps its text: longer names make more lines, none of them forged.
        if before[0] != "doctor" {
            let lines = |outcome: &Outcome| (outcome.stdout.lines().count(), outcome.stderr.lines().count());
            assert_eq!(lines(&outcome), lines(&expected), "{before:?}: {outcome:#?} {expected:#?}");
        }
    }
}

/// Names that JSON's own rules leave as they are: DEL, a control character of C1, and one that
/// turns the direction.
const RAW_IN_JSON: &[u8] = "db\u{7f}\u{9b}31m\u{202e}".as_bytes();

#[test]
fn json_steers_no_terminal_and_has_the_names_as_they_are() {
    let place = scratch();
    let directory = tree(place.path(), RAW_IN_JSON, &NASTY);
    let shown = directory.to_str().unwrap();
    for (before, behind) in [
        (&["stat", "--all", "--json"][..], None),
        (&["warm", "--json"], None),
        (&["snapshot", "--json"], Some("-o")),
        (&["evict", "--json"], None),
        (&["doctor", "--watch", "100ms", "--json"], None),
        (&["guard", "--once", "--dry-run", "--json", "--dir"], None),
    ] {
        let saved = behind.map(|option| [option.into(), place.path().join("s\u{9b}\u{7f}").into_os_string()]);
        let outcome = run_in(&directory, before, &saved.map(Vec::from).unwrap_or_default());
        assert_safe(&outcome);
        assert!(!outcome.stdout.is_empty(), "{before:?}: {outcome:#?}");
        let values = serde_json::Deserializer::from_str(&outcome.stdout).into_iter::<serde_json::Value>();
        let values: Vec<_> = values.map(|value| value.unwrap()).collect();
        let has = |value: &serde_json::Value| strings(value).iter().any(|text| text.contains(shown));
        // `warm` and `evict` print only figures.
        if matches!(before[0], "stat" | "doctor" | "guard") {
            assert!(values.iter().any(has), "{before:?}: {outcome:#?}");
        }
    }
}

/// Returns all strings in a value.
fn strings(value: &serde_json::Value) -> Vec<&str> {
    match value {
        serde_json::Value::String(text) => vec![text],
        serde_json::Value::Array(values) => values.iter().flat_map(strings).collect(),
        serde_json::Value::Object(fields) => fields.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn metrics_steer_no_terminal() {
    let place = scratch();
    let directory =
        tree(place.path(), b"db\x1b[2J\x7f\xc2\x9b31m\xe2\x80\xae\xff", &[b"ib_logfile0", b"ibdata1"]);
    let port = free_port();
    let mut guard = pagekeeper();
    guard.args(["guard", "--dry-run", "--tick", "100ms", "--metrics", &port.to_string(), "--dir"]);
    let guard = guard.arg(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _guard = NamedProcess(guard.spawn().unwrap());
    let get = |path: &str| ask(port, "GET", path, &[]);
    let named =
        || get("/metrics").filter(|answer| answer.body.contains(r"db\\x1b[2J\\x7f\\u{9b}31m\\u{202e}\\xff"));
    eventually("the directory has a series", Duration::from_secs(120), named);
    for path in ["/metrics", "/data.json"] {
        assert_plain(&get(path).unwrap().body);
    }
}

#[test]
fn missing_and_unusable_paths_are_named_in_one_line() {
    let place = scratch();
    let missing = place.path().join(OsStr::from_bytes(b"no\npagekeeper: forged \x1b[31m\xff"));
    let not_a_snapshot = place.path().join("text\n\x1b[2J");
    std::fs::write(&not_a_snapshot, b"not a snapshot of anything").unwrap();
    for arguments in [
        vec![OsStr::new("stat"), missing.as_os_str()],
        vec![OsStr::new("evict"), missing.as_os_str()],
        vec![OsStr::new("warm"), missing.as_os_str()],
        vec![OsStr::new("warm"), OsStr::new("--from"), missing.as_os_str()],
        vec![OsStr::new("warm"), OsStr::new("--from"), not_a_snapshot.as_os_str()],
        vec![OsStr::new("snapshot"), place.path().as_os_str(), OsStr::new("-o"), not_a_snapshot.as_os_str()],
        vec![OsStr::new("top"), OsStr::new("--once"), missing.as_os_str()],
        vec![OsStr::new("probe"), missing.as_os_str()],
        vec![OsStr::new("doctor"), OsStr::new("--snapshot"), missing.as_os_str()],
        vec![OsStr::new("doctor"), OsStr::new("--disk-profile"), not_a_snapshot.as_os_str()],
        vec![OsStr::new("guard"), OsStr::new("--once"), OsStr::new("--dir"), missing.as_os_str()],
        vec![OsStr::new("guard"), OsStr::new("--once"), OsStr::new("--config"), missing.as_os_str()],
        vec![OsStr::new("store"), OsStr::new("stat"), missing.as_os_str()],
        vec![OsStr::new("store"), OsStr::new("verify"), missing.as_os_str()],
        vec![OsStr::new("run"), OsStr::new("--"), missing.as_os_str()],
    ] {
        let outcome = finish(pagekeeper().args(&arguments));
        assert_safe(&outcome);
        assert!(outcome.code != 0 && outcome.code < 128, "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(r"\n"), "{arguments:?}: {outcome:?}");
    }
}

/// A process with a name of its own, ended when dropped.
struct NamedProcess(Child);

impl Drop for NamedProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_with_sequences_in_its_name_steers_no_terminal() {
    if !can_run("a_process_with_sequences_in_its_name_steers_no_terminal", &["tail"]) {
        return;
    }
    let place = scratch();
    let directory = tree(place.path(), b"db$(id>x)'\n\x1b[31m", &NASTY);
    let program = place.path().join("x\x1b[31mred\ny");
    copy_program(Path::new("/usr/bin/tail"), &program);
    let mut tail = Command::new(&program);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let tail = tail.arg("-qf").args(files).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let holder = NamedProcess(tail.spawn().unwrap());
    let pid = holder.0.id().to_string();
    // Its cgroup and name show that it has its files open.
    let is_of_tree = |entry: std::io::Result<std::fs::DirEntry>| {
        entry
            .and_then(|entry| std::fs::read_link(entry.path()))
            .is_ok_and(|link| link.starts_with(&directory))
    };
    let opened = |_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
        open.map(is_of_tree).filter(|is_it| *is_it).count() >= NASTY.len()
    };
    assert!((0..600).any(opened));
    for arguments in [
        &["doctor", "--watch", "100ms", "--pid", &pid][..],
        &["top", "--once", "--group", "process"],
        &["guard", "--once", "--dry-run", "--pid", &pid],
    ] {
        assert_safe(&finish(pagekeeper().args(arguments)));
    }
    let shown = finish(pagekeeper().args(["doctor", "--watch", "100ms", "--pid", &pid]));
    assert!(shown.stdout.contains(r"x\x1b[31mred"), "{shown:#?}");
}
