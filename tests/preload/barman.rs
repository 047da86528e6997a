//! barman under `pagekeeper run`, beside a running PostgreSQL: WAL received and archived, backups
//! by rsync and by `pg_basebackup`, and a recovery. The restored data equals the server's, and
//! little of what was read and written stays in memory, by `fincore`.
//!
//! Invariants: nothing of barman outlives the test; the server itself is not under run, so its
//! reads for `pg_basebackup` are not judged. rsync reads the server's files itself, by a script in
//! place of ssh.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::backups::{resident_in, run_silently, shell, shell_under_run, wait_until_little_resident};
use crate::support;
use crate::support::command::{program, run};
use crate::support::compare::files_below;
use crate::support::postgresql::{self, SEGMENT_BYTES, Server};
use crate::support::{MIB, eventually, files_in};

/// A deadline far longer than any wait for a server or barman.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);
/// Segments that the load writes, in bytes.
const WAL_BYTES: u64 = 3 * SEGMENT_BYTES;

/// Replaces ssh: the named host is this one.
const LOCAL: &str = r#"#!/bin/sh
words=
while [ $# -gt 0 ]; do
    case $1 in -o) shift ;; here) ;; *) words="$words $1" ;; esac
    shift
done
exec sh -c "$words"
"#;

/// A private barman that backs up one server in two ways.
struct Barman {
    here: PathBuf,
}

impl Barman {
    fn new(here: &Path) -> Self {
        let of_servers = postgresql::program("pg_basebackup").parent().expect("a directory").to_owned();
        let (local, socket) = (here.join("local"), here.join("postgresql"));
        std::fs::write(&local, LOCAL).expect("write a script");
        std::fs::set_permissions(&local, std::fs::Permissions::from_mode(0o755)).expect("set permissions");
        for name in ["barman", "barman.d"] {
            std::fs::create_dir(here.join(name)).expect("make a directory");
        }
        let (here_name, of_servers, socket) = (here.display(), of_servers.display(), socket.display());
        let server = |name: &str, method: &str| {
            format!(
                "[{name}]\ndescription = {name}\nconninfo = host={socket} user=postgres dbname=postgres\n\
                 streaming_conninfo = host={socket} user=postgres\nstreaming_archiver = on\nslot_name = {name}\n\
                 create_slot = auto\nbackup_options = concurrent_backup\n{method}\n"
            )
        };
        let settings = format!(
            "[barman]\nbarman_user = root\nbarman_home = {here_name}/barman\nlog_file = {here_name}/barman.log\n\
             configuration_files_directory = {here_name}/barman.d\npath_prefix = {of_servers}\n{}{}",
            server("copied", &format!("backup_method = rsync\nssh_command = {} here", local.display())),
            server("streamed", "backup_method = postgres"),
        );
        std::fs::write(here.join("barman.conf"), settings).expect("write settings");
        Self { here: here.to_owned() }
    }

    fn plain(&self, what: &str) {
        run_silently(&mut shell(&format!("barman -c barman.conf {what}")), &self.here);
    }

    fn under_run(&self, what: &str) {
        run_silently(&mut shell_under_run(&format!("barman -c barman.conf {what}")), &self.here);
    }

    /// Returns barman's directory for one of the two servers.
    fn of(&self, name: &str, what: &str) -> PathBuf {
        self.here.join("barman").join(name).join(what)
    }

    /// Returns the only backup's files.
    fn backup(&self, name: &str) -> PathBuf {
        let backups = std::fs::read_dir(self.of(name, "base")).expect("list backups");
        let all: Vec<PathBuf> = backups.map(|entry| entry.expect("list backups").path()).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].join("data")
    }

    /// Returns the segments that are archived: their names begin with a timeline.
    fn archived(&self, name: &str) -> Vec<PathBuf> {
        let mut files = files_in(&self.of(name, "wals"));
        files.retain(|file| file.metadata().is_ok_and(|metadata| metadata.len() == SEGMENT_BYTES));
        files
    }
}

/// A running `barman receive-wal` under run.
struct WalReceiver(Child);

impl WalReceiver {
    /// Waits until there are this many.
    fn start(barman: &Barman, name: &str, server: &Server, count: &str) -> Self {
        barman.plain(&format!("receive-wal --create-slot {name}"));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).arg(program());
        command.args(["run", "--require", "--", "barman", "-c", "barman.conf", "receive-wal", name]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut receiving = Self(command.current_dir(&barman.here).spawn().expect("start barman"));
        let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        eventually("barman receives", WAIT_TIMEOUT, || {
            let ended = receiving.0.try_wait().expect("wait for barman");
            assert!(ended.is_none(), "barman ended: {ended:?}");
            (server.query(streaming) == count).then_some(())
        });
        receiving
    }
}

impl Drop for WalReceiver {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already; its own child ends with the
        // server.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Evicts the files of a directory.
fn evict_below(directory: &Path) {
    eventually("it is cold", WAIT_TIMEOUT, || {
        run([OsStr::new("evict"), directory.as_os_str()]);
        (resident_in(&[directory]) < MIB).then_some(())
    });
}

#[test]
#[ignore = "long: make test-stories"]
fn barman_backs_up_the_same_and_leaves_little_in_memory() {
    let mut programs = vec!["barman".to_owned(), "rsync".to_owned(), "setpriv".to_owned()];
    programs.extend(postgresql::programs());
    programs.push(postgresql::program("pg_verifybackup").display().to_string());
    if !support::can_run("barman", &programs.iter().map(String::as_str).collect::<Vec<_>>()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let here = scratch.path();
    let server = Server::start(here);
    let barman = Barman::new(here);
    let tables = here.join("postgresql/data/base");
    let mut receiving = Vec::new();
    for (name, count) in [("copied", "1"), ("streamed", "2")] {
        receiving.push(WalReceiver::start(&barman, name, &server, count));
        server.write(WAL_BYTES, None, || {});
        eventually("barman archives", WAIT_TIMEOUT, || {
            barman.plain(&format!("switch-wal --force {name}"));
            barman.under_run(&format!("archive-wal {name}"));
            (barman.archived(name).len() as u64 * SEGMENT_BYTES >= WAL_BYTES).then_some(())
        });
        wait_until_little_resident(&format!("WAL, {name}"), &[&barman.of(name, "wals")]);
        let segments = barman.archived(name);
        let mut compared = 0;
        for segment in &segments {
            let of_server = server.wal().join(segment.file_name().expect("a name"));
            // The segment may have been recycled under another name.
            if let Ok(bytes) = std::fs::read(of_server) {
                assert!(std::fs::read(segment).expect("read") == bytes, "{}", segment.display());
                compared += 1;
            }
        }
        assert!(compared > 0, "{segments:?}");
        // The load's dirty pages are written, and nobody writes any more.
        server.query("CHECKPOINT");
        evict_below(&tables);
        barman.under_run(&format!("backup {name}"));
        let backup = barman.backup(name);
        wait_until_little_resident(&format!("the backup, {name}"), &[&backup]);
        if name == "copied" {
            wait_until_little_resident("the backup", &[&tables]);
        } else {
            let verify = postgresql::program("pg_verifybackup").display().to_string();
            run_silently(&mut shell(&format!("'{verify}' --no-parse-wal '{}'", backup.display())), here);
        }
        let base = backup.join("base");
        for table in ["pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_accounts_pkey"] {
            let path = server.query(&format!("SELECT pg_relation_filepath('{table}')"));
            let path = path.strip_prefix("base/").expect("in the default tablespace");
            let read = |directory: &Path| std::fs::read(directory.join(path)).expect("read a table");
            assert!(read(&base) == read(&tables), "{name}: {table} differs");
        }
    }
    let (backup, back) = (barman.backup("copied"), here.join("back"));
    evict_below(&backup);
    // The backup is complete once its last segment is archived and a check has seen it. barman's
    // cron runs the check; archiving does not.
    eventually("the backup is complete", WAIT_TIMEOUT, || {
        barman.plain("switch-wal --force copied");
        barman.plain("archive-wal copied");
        barman.plain("check-backup copied latest");
        let list = shell("barman -c barman.conf list-backups copied").current_dir(here).output();
        let list = String::from_utf8_lossy(&list.expect("run barman").stdout).into_owned();
        (!list.contains("WAITING_FOR_WALS")).then_some(())
    });
    barman.under_run("recover copied latest back");
    wait_until_little_resident("barman's recovered files", &[&backup, &back]);
    assert!(
        files_below(&back.join("base")) == files_below(&backup.join("base")),
        "the restored data differs"
    );
    // Without `run` all pages stay, so the test can fail.
    barman.plain("recover copied latest plain");
    assert!(resident_in(&[&here.join("plain/base")]) > 16 * MIB);
}
