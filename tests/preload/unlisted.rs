//! Unlisted programs under `pagekeeper run`: the typed command is a stream, as is a child that
//! reads or writes much data once. Residency is `fincore`'s.

use std::path::Path;
use std::process::Command;

use crate::backups::{bytes as random_bytes, evict_all, wait_until_little_resident};
use crate::support;
use crate::support::command::{finish, pagekeeper, pagekeeper_by_library};
use crate::support::loop_images::QuickDisk;
use crate::support::{MIB, copy_program, evict, files_in, resident_bytes};

/// Bytes of the large file of a source.
const LARGE_FILE_BYTES: usize = 48 << 20;

/// Shell lines that pack `source`, and check the result.
struct PackProgram {
    name: &'static str,
    arguments: &'static [&'static str],
    check: &'static str,
}

const PACKERS: [PackProgram; 3] = [
    PackProgram {
        name: "mksquashfs",
        arguments: &["source", "made/image", "-noI", "-noD", "-noF", "-noX", "-no-progress"],
        check: "unsquashfs -no-progress -d back made/image && diff -r source back",
    },
    PackProgram {
        name: "rdiff-backup",
        arguments: &["source", "made/mirror"],
        check: "diff -r --exclude=rdiff-backup-data source made/mirror",
    },
    PackProgram {
        name: "7z",
        arguments: &["a", "-mx0", "made/archive.7z", "source"],
        check: "mkdir back && cd back && 7z x ../made/archive.7z && diff -r ../source source",
    },
];

/// Creates a source with a large file, some small ones, and a hot one.
fn make_source(here: &Path) {
    let source = here.join("source");
    std::fs::create_dir_all(source.join("tree")).expect("make a directory");
    std::fs::create_dir(here.join("made")).expect("make a directory");
    std::fs::write(source.join("large"), random_bytes(LARGE_FILE_BYTES, 1)).expect("write");
    std::fs::write(source.join("hot"), random_bytes(8 << 20, 2)).expect("write");
    for nth in 0..50 {
        std::fs::write(source.join(format!("tree/{nth}")), random_bytes(nth * 3000, nth as u64))
            .expect("write");
    }
    evict_all(&source);
    std::fs::read(source.join("hot")).expect("read");
}

#[test]
fn the_typed_command_is_a_stream() {
    if !support::can_start(
        "programs on no list",
        &["mksquashfs", "unsquashfs", "rdiff-backup", "7z", "diff", "fincore"],
    ) {
        return;
    }
    let _alone = support::alone();
    for PackProgram { name, arguments, check } in PACKERS {
        let scratch = QuickDisk::new();
        let here = scratch.path();
        make_source(here);
        let mut command = pagekeeper();
        command.args(["run", "--require", "--", name]).args(arguments).current_dir(here);
        let outcome = finish(&mut command);
        assert_eq!(outcome.code, 0, "{name}: {outcome:?}");
        let said: Vec<&str> =
            outcome.stderr.lines().filter(|line| line.starts_with("pagekeeper: ")).collect();
        assert!(
            said.len() == 1 && said[0].starts_with(&format!("pagekeeper: {name} is taken for a stream")),
            "{name}: {outcome:?}"
        );
        let (source, hot) = (here.join("source"), here.join("source/hot"));
        assert_eq!(resident_bytes(std::slice::from_ref(&hot)), 8 * MIB, "{name}: what was hot");
        evict(&hot);
        wait_until_little_resident(name, &[&source, &here.join("made")]);
        let check = finish(Command::new("sh").args(["-euc", check]).current_dir(here));
        assert_eq!(check.code, 0, "{name}: {check:?}");
    }
}

/// A line names an unlisted program; an explicit choice suppresses the line.
#[test]
fn the_line_about_an_unlisted_program_is_printed_once() {
    let said = |options: &[&str], words: &[&str]| {
        let outcome = finish(pagekeeper().arg("run").args(options).arg("--").args(words));
        assert_eq!(outcome.code, 0, "{outcome:?}");
        outcome.stderr
    };
    for words in [
        &["true"][..],
        &["env", "A=b", "true"],
        &["nice", "timeout", "60", "true"],
        &["setsid", "-w", "true"],
    ] {
        let line = said(&["--require"], words);
        assert!(
            line.starts_with("pagekeeper: true is taken for a stream") && line.lines().count() == 1,
            "{words:?}: {line}"
        );
    }
    for (options, words) in [
        (&[][..], &["cat", "/dev/null"][..]),
        (&[], &["sh", "-c", "true; true"]),
        (&["--as", "bulk"], &["true"]),
        (&["--profile", "rocksdb"], &["true"]),
        (&[], &["env", "cat", "/dev/null"]),
    ] {
        assert_eq!(said(options, words), "", "{options:?} {words:?}");
    }
}

/// A server that a profile knows by its name keeps what it reads.
#[test]
fn a_typed_server_is_not_a_stream() {
    if !support::can_start("a server that was typed", &["cat", "fincore"]) {
        return;
    }
    let scratch = support::scratch();
    let (server, file) = (scratch.path().join("mongod"), scratch.path().join("data"));
    copy_program(Path::new("/bin/cat"), &server);
    std::fs::write(&file, random_bytes(LARGE_FILE_BYTES, 3)).expect("write");
    evict(&file);
    let outcome =
        finish(pagekeeper().args(["run", "--"]).arg(&server).arg(&file).stdout(std::process::Stdio::null()));
    assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{:?} {}", outcome.code, outcome.stderr);
    assert_eq!(resident_bytes(&[file]), LARGE_FILE_BYTES as u64);
}

/// Bytes that a process reads or writes before it counts as a stream.
const UNDECIDED_BYTES: u64 = 64 * MIB;

#[test]
fn a_child_that_reads_much_data_once_is_a_stream() {
    if !support::can_start("a child on no list", &["mksquashfs", "python3", "fincore", "sh"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    std::fs::create_dir(here.join("source")).expect("make a directory");
    let file = here.join("source/large");
    std::fs::write(&file, random_bytes(256 << 20, 4)).expect("write");
    let under = |line: &str, report: &str| {
        let mut command = pagekeeper_by_library();
        command.args(["run", "--require", report, "--", "sh", "-euc", line]).current_dir(here);
        let outcome = finish(&mut command);
        assert_eq!(outcome.code, 0, "{line}: {outcome:?}");
        outcome.stderr
    };
    let read = "import os; f = os.open('source/large', 0); n = 1\nwhile n: n = len(os.read(f, 1 << 20))";
    let write = "import os; f = os.open('made', os.O_CREAT | os.O_WRONLY); b = os.urandom(1 << 20); [os.write(f, b) for _ in range(256)]";
    let pack = "mksquashfs source made -noI -noD -noF -noX -no-progress";
    for line in [&format!("python3 -c \"{read}\""), &format!("python3 -c \"{write}\""), pack] {
        evict(&file);
        let _ = std::fs::remove_file(here.join("made"));
        under(line, "--report=/dev/null");
        let files = files_in(here);
        support::eventually(&format!("little stays of {line}"), std::time::Duration::from_secs(120), || {
            let left = resident_bytes(&files);
            eprintln!("{line}: {left} bytes stay");
            // Read-ahead of 8 MiB may be under way twice when it is decided.
            (left <= UNDECIDED_BYTES + 16 * MIB).then_some(())
        });
    }
    // A process that reads its pages again keeps them; they are neither reported nor counted.
    evict(&file);
    let again = "import os; f = os.open('source/large', 0)\nfor n in range(16): [os.pread(f, 1 << 20, at << 20) for at in range(12 * n, 12 * n + 24)]";
    let report = under(&format!("python3 -c \"{again}\""), "--report=json");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert!(report["processes"].as_array().is_some_and(Vec::is_empty), "{report:#}");
    assert!(resident_bytes(std::slice::from_ref(&file)) >= 200 * MIB, "reread pages went");
}

/// Copies a file.
const PACKS: &str = "\
#include <fcntl.h>
#include <unistd.h>
static char buffer[1 << 20];
int main(int count, char **arguments) {
    int from = open(arguments[1], O_RDONLY), to = open(arguments[2], O_WRONLY | O_CREAT, 0644);
    for (ssize_t length; (length = read(from, buffer, sizeof buffer)) != 0;)
        if (length < 0 || write(to, buffer, length) != length) return 1;
    return count != 3;
}
";

/// A program that can't load a library is followed by events, like known streams.
#[test]
fn a_typed_static_command_is_followed() {
    if !support::can_follow("a static command that was typed", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let text = here.join("packs.c");
    std::fs::write(&text, PACKS).expect("write");
    finish(Command::new("cc").args(["-static", "-O1", "-o", "packs", "packs.c"]).current_dir(here))
        .expect_success();
    let file = here.join("file");
    std::fs::write(&file, random_bytes(160 << 20, 5)).expect("write");
    evict(&file);
    let outcome =
        finish(pagekeeper().args(["run", "--require", "--", "./packs", "file", "copy"]).current_dir(here));
    assert!(
        outcome.code == 0
            && outcome.stderr.starts_with("pagekeeper: packs is taken for a stream")
            && outcome.stderr.lines().count() == 1,
        "{outcome:?}"
    );
    support::eventually("little stays", std::time::Duration::from_secs(120), || {
        (resident_bytes(&[file.clone(), here.join("copy")]) <= 8 * MIB).then_some(())
    });
}
