//! Pages that the guard leaves for crash recovery, by the rule `release-before-checkpoint`: beside
//! PostgreSQL, whose WAL is a series of segments, and MariaDB, whose redo log is a ring. The guard
//! reads the start of recovery from the servers' files; it must be the one that the servers report.
//!
//! Needs root and Debian's packages of both; skips with a sentence otherwise, and fails instead
//! where `PAGEKEEPER_REQUIRE_ALL=1`.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagekeeper_catalog::checkpoint::innodb::{self, RedoHeader};
use pagekeeper_catalog::checkpoint::postgresql::ControlFile;

use crate::support;
use crate::support::guard::{EndedGuard, Guard};
use crate::support::mariadb::{self, Options};
use crate::support::{MIB, eventually, kept_bytes, postgresql, wait_until_resident_below};

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Returns a guard with this rule for a class of logs, beside one server.
fn guard(home: &Path, class: &str, pid: &str) -> Guard {
    let config = home.join("guard.toml");
    let text = format!("[rules.{class}]\nrule = \"release-before-checkpoint\"\n");
    std::fs::write(&config, text).expect("write a configuration");
    let config = config.to_str().expect("a path in UTF-8");
    Guard::spawn(&["--tick", "250ms", "--config", config, "--pid", pid])
}

/// Panics if the guard reported an error for a file below `home`.
fn assert_untroubled(ended: &EndedGuard, home: &Path) {
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let is_trouble = |event: &&serde_json::Value| event["event"] == "problem" || event["event"] == "warning";
    let own = |event: &&serde_json::Value| {
        event["path"].as_str().is_some_and(|path| Path::new(path).starts_with(home))
    };
    let troubles: Vec<_> = ended.events.iter().filter(is_trouble).filter(own).collect();
    assert!(troubles.is_empty(), "{troubles:#?}");
}

#[test]
#[ignore = "long: make test-stories"]
fn the_wal_from_the_checkpoint_on_stays() {
    let programs = postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("reads of PostgreSQL's recovery", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = postgresql::Server::start(scratch.path());
    let guard = guard(scratch.path(), "wal", &server.pid().to_string());
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());

    server.query("CHECKPOINT");
    let control = control_file(&server);
    let says = |column: &str| server.query(&format!("SELECT {column} FROM pg_control_checkpoint()"));
    assert_eq!(says("redo_lsn - '0/0'::pg_lsn"), control.redo.to_string());
    assert_eq!(says("checkpoint_lsn - '0/0'::pg_lsn"), control.checkpoint.to_string());
    assert_eq!(says("timeline_id"), control.timeline.to_string());
    let system = server.query("SELECT system_identifier FROM pg_control_system()");
    assert_eq!(system, control.system_identifier.to_string());

    // Too little to make the server begin the next segment.
    server.write(80 * MIB, None, || ());
    guard.wait_for_ticks(8);
    let needed = written_since(&server, &control);
    assert_eq!(control_file(&server).redo, control.redo, "it took a checkpoint, so this run shows nothing");
    let full = &needed[1..needed.len() - 1];
    assert!(full.len() >= 3, "{needed:?}");
    let resident = kept_bytes(full);
    let size = full.len() as u64 * postgresql::SEGMENT_BYTES;
    assert!(resident >= size / 100 * 95, "{resident} of {size} bytes that recovery reads are resident");

    // Log pages before the checkpoint are released.
    server.query("CHECKPOINT");
    wait_until_resident_below(&server.segments(), 2 * postgresql::SEGMENT_BYTES, WAIT_TIMEOUT);
    assert_untroubled(&guard.stop(), scratch.path());
}

fn control_file(server: &postgresql::Server) -> ControlFile {
    let path = server.wal().with_file_name("global").join("pg_control");
    eventually("pg_control is whole", WAIT_TIMEOUT, || ControlFile::parse(&std::fs::read(&path).ok()?).ok())
}

/// Returns the segments from the checkpoint's to the one being written.
fn written_since(server: &postgresql::Server, control: &ControlFile) -> Vec<PathBuf> {
    let name = |lsn: &str| server.query(&format!("SELECT pg_walfile_name({lsn})"));
    let first = name(&format!("'0/0'::pg_lsn + {}", control.redo));
    let last = name("pg_current_wal_lsn()");
    let between = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        (first.as_str()..=last.as_str()).contains(&name)
    };
    server.segments().into_iter().filter(between).collect()
}

#[test]
fn redo_after_the_checkpoint_stays_and_earlier_redo_goes() {
    if !support::can_run("reads of MariaDB's recovery", &mariadb::REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = mariadb::Server::start(scratch.path(), Options::primary().redo_buffered(true));
    server.query("CREATE DATABASE shop");
    server.query("CREATE TABLE shop.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(2000))");
    // Only necessary writeback happens, so the checkpoint stays.
    server.query("SET GLOBAL innodb_max_dirty_pages_pct = 99, innodb_adaptive_flushing = OFF");
    let ring = server.data().join("ib_logfile0");
    let guard = guard(scratch.path(), "redo", &server.pid().to_string());
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());

    let mut needed = 0;
    for _ in 0..400 {
        server.query("INSERT INTO shop.t (v) SELECT REPEAT(MD5(RAND()), 40) FROM shop.seq_1_to_400");
        let (lsn, checkpoint) = log_status(&server);
        needed = lsn - checkpoint;
        if needed > 27 * MIB {
            break;
        }
    }
    assert!(needed > 27 * MIB, "the checkpoint is {needed} bytes behind");
    guard.wait_for_ticks(8);
    // The server may write a checkpoint between the two looks.
    let (lsn, checkpoint) = eventually("the header has the server's checkpoint", WAIT_TIMEOUT, || {
        let (lsn, checkpoint) = log_status(&server);
        (header_of(&ring).checkpoint == Some(checkpoint)).then_some((lsn, checkpoint))
    });
    let resident = kept_bytes(std::slice::from_ref(&ring));
    assert!(
        resident >= (lsn - checkpoint) / 100 * 95,
        "{resident} bytes of {} are resident",
        lsn - checkpoint
    );

    // Log pages before the checkpoint are released.
    server.query("SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0, innodb_max_dirty_pages_pct = 0");
    eventually("all is in the tables", WAIT_TIMEOUT, || {
        let (lsn, checkpoint) = log_status(&server);
        (lsn - checkpoint < MIB).then_some(())
    });
    wait_until_resident_below(&[ring], 20 * MIB, WAIT_TIMEOUT);
    assert_untroubled(&guard.stop(), scratch.path());
}

/// Reads the header of a redo log. It reads nothing else: to the guard, read pages would look
/// written.
fn header_of(ring: &Path) -> RedoHeader {
    let mut bytes = [0; innodb::REDO_HEADER_BYTES];
    let file = std::fs::File::open(ring).expect("open the log");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("advise");
    file.read_exact_at(&mut bytes, 0).expect("read the log");
    RedoHeader::parse(&bytes).expect("a header that is known")
}

/// Returns the LSN and that of the last checkpoint, as the server says.
fn log_status(server: &mariadb::Server) -> (u64, u64) {
    let rows = server.query("SHOW ENGINE INNODB STATUS");
    let text = rows[0]["Status"].replace("\\n", "\n");
    let figure = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line of the status");
        line.trim().parse().expect("a number")
    };
    (figure("Log sequence number"), figure("Last checkpoint at"))
}
