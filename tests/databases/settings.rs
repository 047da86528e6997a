//! A server's settings in its start-up files decide how the guard treats its logs, like those on
//! its command line.
//!
//! Needs root and Debian's `mariadb-server`, `sysbench` and `util-linux`; skips with a sentence
//! otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s, reads
//! are the kernel's own counts.

use crate::support;
use crate::support::guard::{EndedGuard, Guard};
use crate::support::loop_images::LoopImage;
use crate::support::mariadb::{Options, REDO_BYTES, REQUIRED_PROGRAMS, Server};
use crate::support::{MIB, eventually, io_counter, kept_bytes, postgresql, wait_until_resident_below};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Maximum resident bytes of a released redo log: its tail, and the bytes of one tick.
const RELEASED_REDO_LIMIT: u64 = 16 * MIB;

/// Returns an option file that sets the redo log's block size in an included file.
fn option_file(scratch: &Path, name: &str, line: &str) -> PathBuf {
    let included = scratch.join(format!("{name}.d"));
    std::fs::create_dir(&included).expect("make a directory");
    std::fs::write(included.join("50-redo.cnf"), format!("[mysqld]\n# as the manual says\n{line}\n"))
        .expect("write an option file");
    let file = scratch.join(format!("{name}.cnf"));
    let main = format!("[client]\nsocket=/none\n!includedir {}\n", included.display());
    std::fs::write(&file, main).expect("write an option file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("open it to the server");
    file
}

fn redo(server: &Server) -> [PathBuf; 1] {
    [server.data().join("ib_logfile0")]
}

/// Returns the texts about the redo log in events of this kind.
fn redo_messages<'a>(ended: &'a EndedGuard, event: &str, key: &str) -> Vec<&'a str> {
    let of_redo = ended
        .events
        .iter()
        .filter(|said| said["event"] == event)
        .filter(|said| said["path"].as_str().is_some_and(|path| path.ends_with("/ib_logfile0")));
    of_redo.filter_map(|said| said[key].as_str()).collect()
}

/// Makes the server write its redo log around once, and returns the bytes that it read from the
/// device for that.
fn wrap_redo_once(server: &Server) -> u64 {
    let io = format!("/proc/{}/io", server.pid());
    let read = || io_counter(Path::new(&io), "read_bytes");
    let (before, begun) = (read(), lsn(server));
    eventually("the redo log goes round", Duration::from_secs(300), || {
        server.query("REPLACE INTO shop.t SELECT seq, REPEAT(MD5(RAND()), 120) FROM shop.seq_1_to_1500");
        (lsn(server) - begun > REDO_BYTES).then_some(())
    });
    read() - before
}

/// Returns the bytes of redo log that the server has written.
fn lsn(server: &Server) -> u64 {
    server.query("SHOW STATUS LIKE 'innodb_lsn_current'")[0]["Value"].parse().expect("a number")
}

/// On a device with blocks of 512 bytes the setting decides: blocks of 4 KiB are whole pages,
/// which are not read back.
#[test]
#[ignore = "long: make test-stories"]
fn the_size_of_the_redo_logs_blocks_counts_wherever_it_is_set() {
    let programs =
        [REQUIRED_PROGRAMS.map(str::to_owned).to_vec(), LoopImage::programs("ext4").to_vec()].concat();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("settings in an option file of MariaDB", &programs) {
        return;
    }
    let _alone = support::alone();
    let image = LoopImage::new("ext4", 3 << 30);
    let (place, files) = (image.path(), support::scratch());
    for directory in [image.outside(), place, files.path()] {
        support::open_to_others(directory);
    }
    let whole = option_file(files.path(), "whole", "loose_innodb-log_write_ahead_size = 4k # whole pages");
    let options = Options::primary().redo_buffered(true);
    let mut server = Server::start(place, options.clone().option_file(whole.clone()));
    let in_force = &server.query("SELECT @@innodb_log_write_ahead_size AS size")[0]["size"];
    assert_eq!(in_force, "4096", "the server reads the file");
    server.query("CREATE DATABASE shop");
    server.query("CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(4000))");
    wrap_redo_once(&server);
    assert!(kept_bytes(&redo(&server)) > REDO_BYTES / 10 * 9);

    let guard = Guard::spawn(&["--pid", &server.pid().to_string(), "--tick", "200ms"]);
    wait_until_resident_below(&redo(&server), RELEASED_REDO_LIMIT, WAIT_TIMEOUT);
    let read = wrap_redo_once(&server);
    wait_until_resident_below(&redo(&server), RELEASED_REDO_LIMIT, WAIT_TIMEOUT);
    let ended = guard.stop();
    assert!(read < REDO_BYTES / 8, "{read} bytes were read from the device beside the guard");
    assert_eq!(redo_messages(&ended, "warning", "warning"), [""; 0]);
    let settings = redo_messages(&ended, "setting", "setting");
    let place_of = files.path().join("whole.d/50-redo.cnf").display().to_string();
    assert_eq!(settings, [format!("innodb_log_write_ahead_size is 4k ({place_of}, line 3)")]);

    // The server's settings in force are unknown now.
    let changed = files.path().join("whole.d/50-redo.cnf");
    let text = std::fs::read(&changed).expect("read an option file");
    std::fs::write(&changed, text).expect("write an option file");
    let warned = warning_beside(&server);
    assert!(warned.contains("is 4k (") && warned.contains("changed after the server started"), "{warned}");

    let parts = option_file(files.path(), "parts", "innodb_log_write_ahead_size=512");
    server.restart_with(options.option_file(parts));
    let warned = warning_beside(&server);
    assert!(warned.contains("innodb_log_write_ahead_size is 512 (") && warned.contains("=4096"), "{warned}");
    assert!(kept_bytes(&redo(&server)) > REDO_BYTES / 10 * 9, "it is kept");
}

/// Returns a guard's warning about the redo log while the log is written around once. The guard
/// releases none of it.
fn warning_beside(server: &Server) -> String {
    // New pages show the writer's position.
    for file in redo(server) {
        support::evict(&file);
    }
    let guard = Guard::spawn(&["--pid", &server.pid().to_string(), "--tick", "200ms"]);
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    wrap_redo_once(server);
    guard.wait_for("warning", WAIT_TIMEOUT, |event| {
        event["path"].as_str().is_some_and(|path| path.ends_with("ib_logfile0"))
    });
    let ended = guard.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(ended.summary()["released_bytes"]["redo"], serde_json::Value::Null, "{}", ended.summary());
    redo_messages(&ended, "warning", "warning").join("; ")
}

/// The operator's own profile for the same processes is used beside the built-in one.
#[test]
fn a_custom_profile_does_not_take_postgresqls_wal_over() {
    let programs = postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("a second profile that fits PostgreSQL", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = postgresql::Server::start(scratch.path());
    let own = "name = \"own\"\nprocesses = [\"postgres\"]\n[[log]]\nclass = \"messages\"\nfiles = \"audit-{n}.log\"\n\
               rule = \"release-behind-writer\"\nrewrite = \"never\"\n";
    std::fs::write(scratch.path().join("own.toml"), own).expect("write a profile");
    let config = scratch.path().join("guard.toml");
    std::fs::write(&config, "profiles = [\"own.toml\"]\n").expect("write a configuration");
    server.write(8 * postgresql::SEGMENT_BYTES, None, || ());
    assert!(kept_bytes(&server.segments()) > 6 * postgresql::SEGMENT_BYTES);

    let config = config.to_str().expect("a path of this test's own");
    // Found by its name; with --pid the best fitting profile would apply anyway.
    let only = format!("pid:{}", server.pid());
    let guard = Guard::spawn(&["--config", config, "--only", &only]);
    let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    assert_eq!((&found["profile"], &found["also"]), (&"own".into(), &serde_json::json!(["postgresql"])));
    wait_until_resident_below(&server.segments(), 4 * postgresql::SEGMENT_BYTES, WAIT_TIMEOUT);
    let ended = guard.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    let released = ended.summary()["released_bytes"]["wal"].as_u64();
    assert!(released > Some(2 * postgresql::SEGMENT_BYTES), "{}", ended.summary());
}
