//! `pagekeeper probe` on real file systems: its reports and refusals, that it leaves no
//! files, and that its profiles can be read. No time is asserted.

use crate::support;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::command::{Outcome, finish, pagekeeper};
use crate::support::loop_images::LoopImage;
use crate::support::pseudo_terminal::PseudoTerminal;
use crate::support::{MIB, alone, can_run, can_start, eventually, scratch};
use rustix::process::{Pid, Signal, kill_process};

/// Probes for the shortest possible time.
fn probe(directory: &Path) -> Command {
    let mut command = pagekeeper();
    command.args(["probe", "--quick", "--size", "64M"]).arg(directory);
    command
}

fn names_in(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).expect("list a directory");
    let mut names: Vec<String> =
        names.map(|entry| entry.expect("list").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Checks the keys that every report has, on any file system.
fn check_keys(report: &serde_json::Value) {
    for part in ["direct", "uncached", "atomic", "reads", "read_ahead", "sync", "release", "bulk"] {
        assert!(report[part].is_object(), "{part}: {report}");
    }
    for key in ["directory", "took_seconds", "events", "notes", "summary"] {
        assert!(!report[key].is_null(), "{key}: {report}");
    }
    let profile = &report["profile"];
    assert_eq!(profile["version"], 1);
    assert_eq!(profile["file_bytes"], 64 * MIB);
    assert_eq!(profile["reads"].as_array().expect("depths").len(), 5);
    assert!(profile["sync_us"].is_number() && profile["bulk"]["paced_us"].is_number(), "{profile}");
    let depths: Vec<u64> = report["reads"]["depths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|depth| depth["depth"].as_u64().unwrap())
        .collect();
    assert_eq!(depths, [1, 4, 16, 64, 256]);
    let sentence = report["summary"].as_str().expect("a sentence");
    assert!(sentence.ends_with('.') && !sentence.trim_end_matches('.').contains(". "), "{sentence}");
    if let Some(mixed) = report["mixed"].as_object() {
        let cases = mixed["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 24);
        for case in cases {
            assert!(case["per_second"].as_f64().unwrap() > 0.0, "{case}");
            assert!(case["events"].is_object(), "{case}");
        }
    }
}

/// Checks the tables in the text output, and the sentence about the disk.
fn check_tables(shown: &str) {
    for text in ["Direct I/O", "Uncached writes", "Atomic writes", "fdatasync", "Read-ahead", "Release"] {
        assert!(shown.contains(&format!("\n{text}")), "{text}: {shown}");
    }
    for text in ["Random reads of 4 KiB", "Appends of 4 KiB", "\nIn short: "] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let kinds = ["Wide but slow", "Slow and narrow", "Fast and wide", "Fast and narrow"];
    assert!(shown.lines().any(|line| kinds.iter().any(|kind| line.starts_with(kind))), "{shown}");
    assert!(!shown.contains('\x1b'), "no screen control where there is no terminal");
}

/// Checks the report's direct I/O on file systems with known support.
fn check_direct(report: &serde_json::Value) {
    let kind = report["profile"]["file_system"].as_str().expect("a kind");
    if !["ext4", "xfs", "btrfs"].contains(&kind) {
        return;
    }
    // By the kernel's documentation, the same file may be used both ways, with care.
    assert_eq!(report["direct"]["dirty_is_seen"], true, "{kind}");
    assert_eq!(report["direct"]["write_is_seen"], true, "{kind}");
    if kind == "btrfs" {
        assert_eq!(report["direct"].get("reported"), Some(&serde_json::Value::Null), "{}", report["direct"]);
    } else {
        assert_eq!(report["direct"]["kind"], "real", "{}", report["direct"]);
        assert!(report["profile"]["direct"]["offset_alignment"].as_u64().unwrap() >= 512);
        let notes = report["notes"].to_string();
        let answered = report["profile"]["mixed"]["leftover_read"].is_number();
        assert!(answered || notes.contains("leftover pages cost direct reads"), "{notes}");
    }
}

#[test]
#[ignore = "long: make test-stories"]
fn file_systems_are_distinguished() {
    for kind in ["xfs", "btrfs"] {
        let programs = LoopImage::programs(kind);
        let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
        if !can_run("file_systems_are_distinguished", &programs) {
            continue;
        }
        let _alone = alone();
        let image = LoopImage::new(kind, 1024 * MIB);
        let before = names_in(image.path());
        let report = finish(probe(image.path()).arg("--json")).json();
        support::schemas::check("probe", &report);
        check_keys(&report);
        assert_eq!(report["profile"]["file_system"], kind);
        assert_eq!(names_in(image.path()), before);
        check_direct(&report);
    }
}

fn refused(outcome: &Outcome, why: &str) {
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
    assert!(outcome.stderr.contains(why), "{outcome:?}");
    assert_eq!(outcome.stderr.trim_end().lines().count(), 1, "one sentence: {outcome:?}");
}

#[test]
fn a_directory_that_cannot_be_measured_is_refused_in_a_sentence() {
    let dir = scratch();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    refused(&finish(&mut probe(&file)), "not a directory");
    refused(&finish(&mut probe(Path::new("/nowhere"))), "No such file or directory");
    refused(&finish(&mut probe(Path::new("/dev/shm"))), "on tmpfs");
    refused(&finish(&mut probe(Path::new("/proc"))), "keeps no data");
    let usage = finish(pagekeeper().args(["probe", "--size", "1M"]).arg(dir.path()));
    assert!(usage.code == 64 && usage.stderr.contains("64 MiB"), "{usage:?}");
    let usage = finish(pagekeeper().arg("probe"));
    assert!(usage.code == 64 && usage.stderr.contains("<DIR>"), "{usage:?}");
    let large = finish(pagekeeper().args(["probe", "--size", "900T"]).arg(dir.path()));
    refused(&large, "are needed");
    // Before anything is measured.
    let nowhere = finish(probe(dir.path()).args(["--output", "/nowhere/disk.toml"]));
    refused(&nowhere, "no file can be made in /nowhere");
    assert_eq!(names_in(dir.path()), ["file"]);
}

#[test]
fn a_file_system_without_room_or_rights_is_refused() {
    if !can_run(
        "a_file_system_without_room_or_rights_is_refused",
        &["mkfs.ext4", "mount", "umount", "setpriv"],
    ) {
        return;
    }
    let _alone = alone();
    let image = LoopImage::new("ext4", 100 * MIB);
    refused(&finish(&mut probe(image.path())), "make room, or measure with a smaller file");
    let remount = |how: &str| {
        let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(image.path()).status();
        assert!(done.expect("run mount").success());
    };
    remount("ro");
    refused(&finish(&mut probe(image.path())), "the file system is read-only");
    remount("rw");
    let own = scratch();
    let mut denied = Command::new("setpriv");
    denied.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(support::command::program());
    let denied = finish(denied.args(["probe", "--quick", "--size", "64M"]).arg(own.path()));
    refused(&denied, "no permission to make a file there");
}

#[test]
fn a_signal_ends_it_and_nothing_stays() {
    let _alone = alone();
    let dir = scratch();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut command = pagekeeper();
        // Long enough to be in the middle of it.
        command.args(["probe", "--size", "256M"]).arg(dir.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start it");
        let pid = Pid::from_child(&child);
        let open = format!("/proc/{}/fd", pid.as_raw_nonzero());
        let has_files = || {
            let descriptors = std::fs::read_dir(&open).ok()?;
            let target =
                |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
            descriptors.filter_map(target).find(|target| target.starts_with(dir.path()))
        };
        eventually("it has a file open", Duration::from_secs(120), has_files);
        assert!(names_in(dir.path()).is_empty(), "its files have no names");
        kill_process(pid, signal).expect("signal it");
        let status = child.wait().expect("it ends");
        let said: Vec<String> =
            BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap).collect();
        if signal == Signal::KILL {
            assert_eq!(status.code(), None);
        } else {
            assert_eq!(status.code(), Some(1), "{said:?}");
            assert!(said.len() == 1 && said[0].contains("interrupted; nothing stays behind"), "{said:?}");
        }
        assert!(names_in(dir.path()).is_empty(), "{signal:?}: {:?}", names_in(dir.path()));
    }
}

#[test]
#[ignore = "long: make test-stories"]
fn progress_is_for_terminals() {
    if !can_start("progress_is_for_terminals", &["setsid"]) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    let line = format!(
        "{} probe --quick --size 64M --json {} > {}",
        support::command::program().display(),
        dir.path().display(),
        dir.path().join("report").display()
    );
    let (status, shown) = PseudoTerminal::start(&line).finish();
    assert!(status.success() && shown.contains("direct I/O beside buffered"), "{shown:?}");
    let report = std::fs::read_to_string(dir.path().join("report")).unwrap();
    let report = serde_json::from_str(&report).unwrap();
    check_keys(&report);
    check_direct(&report);
    assert_eq!(names_in(dir.path()), ["report"]);
}

#[test]
fn people_get_tables_and_the_profile_is_written_and_the_guard_reads_it() {
    let _alone = alone();
    let (dir, watched) = (scratch(), scratch());
    let toml = dir.path().join("disk.toml");
    let shown = finish(probe(dir.path()).arg("--output").arg(&toml)).expect_success();
    assert!(shown.contains(&format!("The profile is in {}.", toml.display())), "{shown}");
    check_tables(&shown);
    assert_eq!(names_in(dir.path()), ["disk.toml"]);
    let text = std::fs::read_to_string(&toml).unwrap();
    assert!(
        text.starts_with('#') && text.contains("\nversion = 1\n") && text.contains("[[reads]]"),
        "{text}"
    );

    let config = dir.path().join("guard.toml");
    std::fs::write(&config, "disk_profiles = [\"disk.toml\"]\n").unwrap();
    std::fs::write(watched.path().join("binlog.000001"), "x").unwrap();
    let guard = || {
        let mut command = pagekeeper();
        command.args(["guard", "--once", "--profile", "generic", "--config"]).arg(&config);
        finish(command.arg("--dir").arg(watched.path()))
    };
    let read = guard();
    assert!(!read.stderr.contains("disk"), "{read:?}");
    assert_eq!(read.code, 0, "{read:?}");
    for (from, to, said) in [
        ("version = 1", "version = 2", "version 2, which this pagekeeper does not know"),
        ("sync_us", "sink_us", "sink_us"),
    ] {
        std::fs::write(&toml, text.replace(from, to)).unwrap();
        let refused = guard();
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(said) && refused.stderr.contains("disk.toml"), "{refused:?}");
    }
}
