//! The guard beside two real `MariaDB` servers, of which the configuration selects one as canary,
//! or leaves one out.
//!
//! Needs root and Debian's `mariadb-server`; skips with a sentence otherwise, and fails instead
//! where `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::support;
use crate::support::guard::Guard;
use crate::support::mariadb::{Options, REQUIRED_PROGRAMS, Server};
use crate::support::{MIB, resident_bytes, wait_until_resident_below};
use std::path::{Path, PathBuf};
use std::time::Duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Returns a server with a binlog of 4 MiB that it no longer writes to.
fn server(home: &Path) -> (Server, PathBuf) {
    std::fs::create_dir(home).expect("make a directory");
    support::open_to_others(home);
    let server = Server::start(home, Options::primary());
    let old = server.binlogs().pop().expect("it writes one");
    server.query("CREATE DATABASE bulk");
    server.query("CREATE TABLE bulk.t (b LONGBLOB)");
    for _ in 0..4 {
        server.query("INSERT INTO bulk.t VALUES (REPEAT('x', 1 << 20))");
    }
    server.query("FLUSH BINARY LOGS");
    (server, old)
}

#[test]
fn only_the_canary_is_acted_on_until_the_configuration_changes() {
    if !support::can_run("a canary", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let (one, old_of_one) = server(&scratch.path().join("one"));
    let (two, old_of_two) = server(&scratch.path().join("two"));
    let (of_one, of_two) = (vec![old_of_one], vec![old_of_two]);
    let before = resident_bytes(&of_two);
    assert!(before >= 4 * MIB, "{before}");

    let config = scratch.path().join("guard.toml");
    let path = config.to_str().expect("a path of this test's own");
    let write = |section: &str| {
        let text = format!("tick = \"100ms\"\nidle_tick = \"100ms\"\n[guard]\n{section}");
        std::fs::write(&config, text).expect("write the configuration");
    };
    write(&format!("canary = \"dir:{}\"\n", one.data().display()));
    let pids = [one.pid(), two.pid()].map(|pid| pid.to_string());
    let guard = Guard::spawn(&["--config", path, "--pid", &pids[0], "--pid", &pids[1]]);
    wait_until_resident_below(&of_one, 1, WAIT_TIMEOUT);
    let is_of = |event: &serde_json::Value, server: &Server| {
        Path::new(event["path"].as_str().expect("a path")).starts_with(server.data())
    };
    guard.wait_for("would", WAIT_TIMEOUT, |event| is_of(event, &two));
    guard.wait_for_ticks(5);
    assert_eq!(resident_bytes(&of_two), before, "the other's stays");

    write(&format!("never = [\"dir:{}\"]\n", two.data().display()));
    guard.hang_up();
    let refused = guard.wait_for("refused", WAIT_TIMEOUT, |event| event["pid"] == two.pid());
    assert_eq!(refused["reason"], "never", "{refused}");
    guard.wait_for_ticks(5);
    assert_eq!(resident_bytes(&of_two), before);

    write("");
    guard.hang_up();
    wait_until_resident_below(&of_two, 1, WAIT_TIMEOUT);
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let would = ended.events.iter().filter(|event| event["event"] == "would");
    assert!(would.clone().all(|event| is_of(event, &two)), "{:#?}", would.collect::<Vec<_>>());
}
