//! Readers of `PostgreSQL`'s WAL in processes other than the writers: the archiver's command and
//! a WAL sender read WAL from memory, and it is released after that.
//! Reads from the disk are the kernel's counts for the reader; residency is `fincore`'s.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support;
use crate::support::command::program;
use crate::support::postgresql::{SEGMENT_BYTES, Server};
use crate::support::{MIB, eventually, io_counter, open_to_others, resident_bytes};

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// Transactions a second, of some 100 KiB of WAL: less than a busy disk takes.
const TRANSACTIONS_PER_SECOND: u32 = 150;

/// Archives a segment, and records the bytes read from the disk for it.
const ARCHIVE: &str = "#!/bin/sh
cp \"$1\" \"$2\" && sed -n 's/^read_bytes: //p' /proc/$$/io >>read-by-archiver
";

fn start(parent: &Path) -> Server {
    let words = ["run", "--profile", "postgresql", "--"].map(OsString::from);
    Server::start_by(parent, [program().into_os_string()].into_iter().chain(words).collect())
}

/// Returns the archived segments that still exist.
fn archived(server: &Server) -> Vec<PathBuf> {
    let notes = std::fs::read_dir(server.wal().join("archive_status")).expect("list a directory");
    let names = notes.filter_map(|note| note.expect("list").file_name().into_string().ok());
    names.filter_map(|name| Some(server.wal().join(name.strip_suffix(".done")?))).collect()
}

/// Waits until all full segments are archived.
fn wait_until_archived(server: &Server) {
    eventually("all is archived", WAIT_TIMEOUT, || {
        let ready = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
        (server.query(ready) == "0").then_some(())
    });
}

#[test]
fn wal_stays_until_it_is_archived() {
    let programs = support::postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("PostgreSQL's archiver", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = start(scratch.path());
    let script = scratch.path().join("archive");
    std::fs::write(&script, ARCHIVE).expect("write a script");
    open_to_others(&script);
    let to = server.wal().join("../archived");
    std::fs::create_dir(&to).expect("make a directory");
    std::os::unix::fs::chown(&to, Some(owner(&server.wal())), None).expect("give it away");
    server.query("ALTER SYSTEM SET archive_mode = on");
    server.query(&format!(
        "ALTER SYSTEM SET archive_command = '{} %p {}/%f'",
        script.display(),
        to.display()
    ));
    server.crash();
    // The rule recognises an archiver once a segment is archived.
    server.write(2 * SEGMENT_BYTES, Some(TRANSACTIONS_PER_SECOND), || ());
    wait_until_archived(&server);
    let read = server.wal().join("../read-by-archiver");
    std::fs::remove_file(&read).expect("something was archived");
    server.write(9 * SEGMENT_BYTES, Some(TRANSACTIONS_PER_SECOND), || ());
    wait_until_archived(&server);
    let bytes: Vec<u64> = std::fs::read_to_string(&read)
        .expect("read")
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    println!("read back by the archiver: {bytes:?}");
    let gone = archived(&server);
    let left = resident_bytes(&gone);
    println!("{left} bytes of {} archived segments stay", gone.len());
    assert!(bytes.len() >= 8, "{bytes:?}");
    // The first segment may have been begun before.
    let sum: u64 = bytes.iter().skip(1).sum();
    assert!(sum <= MIB, "{bytes:?} bytes were read back");
    assert!(gone.len() >= 2 && left <= SEGMENT_BYTES / 8, "{left} bytes of {gone:?} stay");
}

#[test]
fn wal_that_a_wal_sender_has_yet_to_send_stays() {
    let programs = support::postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("PostgreSQL's WAL sender", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = start(scratch.path());
    let follower = server.follow();
    let io = PathBuf::from(format!("/proc/{}/io", server.wal_sender()));
    let sent = || eventually("all is sent", WAIT_TIMEOUT, || (server.lag() == 0).then_some(()));
    server.write(2 * SEGMENT_BYTES, Some(TRANSACTIONS_PER_SECOND), || ());
    sent();
    // The stopped WAL sender is some files behind, and catches up.
    let before = io_counter(&io, "read_bytes");
    follower.freeze();
    server.write(2 * SEGMENT_BYTES, Some(TRANSACTIONS_PER_SECOND), || ());
    let lag = server.lag();
    follower.thaw();
    sent();
    let read = io_counter(&io, "read_bytes") - before;
    server.write(2 * SEGMENT_BYTES, Some(TRANSACTIONS_PER_SECOND), || ());
    sent();
    let left = resident_bytes(&server.segments());
    println!("{read} bytes were read back of {lag}, {left} stay");
    assert!(lag >= SEGMENT_BYTES && read <= MIB, "{read} bytes were read back of {lag}");
    // The current segment, and the sender's position.
    assert!(left <= 3 * SEGMENT_BYTES, "{left} bytes stay");
}

fn owner(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().expect("stat").uid()
}
