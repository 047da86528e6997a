//! `--json` of every command: what is printed is as the schema in `docs/schemas` says. The doctor's
//! has tests of its own.

use std::path::Path;

use pagekeeper_store::{Create, Store};
use serde_json::Value;

use crate::support::command::{Outcome, finish, pagekeeper, run};
use crate::support::{alone, schemas, scratch};

/// Checks the one object that a command printed, and returns it.
fn checked(name: &str, outcome: &Outcome) -> Value {
    let report = outcome.json();
    schemas::check(name, &report);
    report
}

/// Runs a command with `--json`, and checks what it prints.
fn check(name: &str, words: &[&str], code: i32) -> Value {
    let outcome = run(name.split('-').chain(["--json"]).chain(words.iter().copied()));
    assert_eq!(outcome.code, code, "{name} {words:?}: {outcome:?}");
    checked(name, &outcome)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain")
}

#[test]
fn reports_on_files_follow_their_schemas() {
    let dir = scratch();
    let (file, saved) = (dir.path().join("file"), dir.path().join("saved"));
    std::fs::write(&file, vec![1; 100_000]).unwrap();
    check("stat", &["--map", "--dir", text(dir.path()), "/nonexistent"], 1);
    check("snapshot", &[text(&file), "/nonexistent", "-o", text(&saved)], 1);
    let evicted = check("evict", &[text(&file), "/nonexistent"], 1);
    assert_eq!((&evicted["schema_version"], &evicted["total"]["files"]), (&1.into(), &1.into()));
    check("warm", &[text(&file), "/nonexistent"], 1);
    std::fs::write(dir.path().join("other"), vec![1; 5000]).unwrap();
    check("snapshot", &[text(dir.path()), "-o", text(&saved), "--force"], 0);
    std::fs::remove_file(dir.path().join("other")).unwrap();
    std::fs::write(&file, vec![2; 200_000]).unwrap();
    let restored = check("warm", &["--from", text(&saved)], 0);
    assert_eq!(restored["total"]["missing_files"], 1, "{restored}");
    check("top", &["--once", "--interval", "100ms", text(dir.path())], 0);
    check("top", &["--once", "--interval", "100ms", "--group", "process", text(dir.path())], 0);
}

#[test]
fn events_of_the_guard_follow_their_schema() {
    let dir = scratch();
    std::fs::write(dir.path().join("binlog.000001"), vec![1; 8 << 20]).unwrap();
    std::fs::write(dir.path().join("binlog.000002"), vec![1; 1 << 20]).unwrap();
    std::fs::write(dir.path().join("binlog.index"), "./binlog.000001\n./binlog.000002\n").unwrap();
    let mut kinds = Vec::new();
    for more in [&["--dry-run"][..], &["/nonexistent"], &[]] {
        let mut guard = pagekeeper();
        guard.args(["guard", "--json", "--once", "--profile", "generic", "--interval", "50ms"]);
        let outcome = finish(guard.arg(dir.path()).args(more));
        for line in outcome.stdout.lines() {
            let event: Value = serde_json::from_str(line).expect("a line of JSON");
            schemas::check("guard", &event);
            kinds.push(event["event"].as_str().expect("a name").to_owned());
        }
    }
    for kind in ["start", "found", "would", "problem", "tick", "summary"] {
        assert!(kinds.iter().any(|other| other == kind), "no {kind} in {kinds:?}");
    }
}

#[test]
fn reports_of_run_follow_their_schema() {
    let dir = scratch();
    let (file, report) = (dir.path().join("file"), dir.path().join("report"));
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let to = format!("--report={}", text(&report));
    let copy = dir.path().join("copy");
    run(["run", "--json", &to, "--as", "bulk", "--", "cp", text(&file), text(&copy)]).expect_success();
    let report = std::fs::read(&report).expect("a report");
    schemas::check("run", &serde_json::from_slice(&report).expect("one object"));
}

#[test]
fn reports_on_stores_follow_their_schemas() {
    let _alone = alone();
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let store = Store::options().create(Create::New).journal_bytes(1 << 20).open(at("store")).unwrap();
    let mut txn = store.begin_write().unwrap();
    let pages: Vec<_> = (0..8).map(|_| txn.allocate().unwrap()).collect();
    txn.free(pages[5]).unwrap();
    txn.commit(pagekeeper_store::Durability::Sync).unwrap();
    store.close().unwrap();
    let source = at("store");
    let source = text(&source);
    for name in ["store-stat", "store-verify", "store-dump"] {
        check(name, &[source], 0);
        check(name, &["--dir", source], 0);
    }
    check("store-dump", &["--page", "2", source], 0);
    check("store-backup", &[source, text(&at("backup"))], 0);
    check("store-restore", &[text(&at("backup")), text(&at("restored"))], 0);
    check("store-repair", &[source, text(&at("repaired"))], 0);
    let before = std::fs::read(at("store").join("data")).unwrap();
    check("store-compact", &[source, text(&at("small"))], 0);
    assert!(std::fs::read(at("store").join("data")).unwrap() == before, "the source is only read");
    check("store-verify", &[text(&at("small"))], 0);
    check("store-compact", &[source], 0);
}
