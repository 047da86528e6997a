//! Programs that back up, under `pagekeeper run`: Python's (borg, bup), Go's (rclone), those of a
//! server's client (mydumper, myloader), and pgbackrest, which has several processes copy. The
//! restored data equals the backed-up data, and little of what they read and wrote stays in memory,
//! by `fincore`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support;
use crate::support::command::{finish, pagekeeper};
use crate::support::compare::files_below;
use crate::support::mariadb::{Options, Server};
use crate::support::postgresql;
use crate::support::sysbench::LoadedServer as _;
use crate::support::{MIB, eventually, files_in, resident_bytes, size_bytes};

/// Bytes of the large file that is backed up.
const LARGE_FILE_BYTES: usize = 48 << 20;
/// A slow disk may take this long to write a command's dirty pages.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);
/// Homes and caches of the programs are the test's own.
const HOME: &str = "export HOME=\"$PWD\" BORG_BASE_DIR=\"$PWD/home\" BUP_DIR=\"$PWD/repository\" RCLONE_CONFIG=/dev/null \
                    BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes; ";

/// Shell lines that back `source` up to `repository`, and restore it to `back`.
struct BackupCommands {
    name: &'static str,
    make: &'static str,
    save: &'static str,
    restore: &'static str,
}

const BACKUPS: [BackupCommands; 3] = [
    BackupCommands {
        name: "borg",
        make: "borg init -e none repository",
        save: "borg create --compression none repository::one source",
        restore: "mkdir back; cd back; borg extract ../repository::one; mv source/* .; rmdir source",
    },
    BackupCommands {
        name: "bup",
        make: "bup init",
        save: "bup index source; bup save -q -n one source",
        restore: "bup restore -q -C back \"one/latest$PWD/source/.\"",
    },
    BackupCommands {
        name: "rclone",
        make: "mkdir repository",
        save: "rclone copy source repository",
        restore: "rclone copy repository back",
    },
];

pub(crate) fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-euc", &format!("{HOME}{line}")]);
    command
}

pub(crate) fn shell_under_run(line: &str) -> Command {
    let mut command = pagekeeper();
    command.args(["run", "--require", "--", "sh", "-euc", &format!("{HOME}{line}")]);
    command
}

/// Runs a command in a directory, and checks that it succeeds silently.
pub(crate) fn run_silently(command: &mut Command, directory: &Path) {
    let outcome = finish(command.current_dir(directory));
    assert!(outcome.code == 0 && !outcome.stderr.contains("pagekeeper: "), "{command:?}: {outcome:#?}");
}

pub(crate) fn resident_in(directories: &[&Path]) -> u64 {
    directories.iter().map(|directory| resident_bytes(&files_in(directory))).sum()
}

/// Waits until at most two percent of some directories is in memory, and a little.
pub(crate) fn wait_until_little_resident(what: &str, directories: &[&Path]) {
    let size: u64 = directories.iter().map(|directory| size_bytes(&files_in(directory))).sum();
    assert!(size > 16 * MIB, "{what}: there are only {size} bytes");
    eventually(&format!("little of {what} stays"), WAIT_TIMEOUT, || {
        let stays = resident_in(directories);
        if stays > size / 50 + MIB {
            eprintln!("{what}: {stays} of {size} bytes stay");
        }
        (stays <= size / 50 + MIB).then_some(())
    });
}

pub(crate) fn evict_all(directory: &Path) {
    support::evict_all(&files_in(directory));
}

/// Returns incompressible bytes from a seed.
pub(crate) fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut rng = pagekeeper_testing::Rng::from_seed(seed);
    std::iter::repeat_with(|| rng.number().to_le_bytes()).flatten().take(count).collect()
}

#[test]
#[ignore = "long: make test-stories"]
fn backups_come_back_whole_and_leave_little_in_memory() {
    if !support::can_run("backups of borg, bup and rclone", &["borg", "bup", "rclone", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    for backup in &BACKUPS {
        let scratch = support::scratch();
        let here = scratch.path();
        let (source, repository) = (here.join("source"), here.join("repository"));
        std::fs::create_dir_all(source.join("small")).expect("make a directory");
        std::fs::write(source.join("large"), bytes(LARGE_FILE_BYTES, 1)).expect("write");
        for index in 0..40 {
            std::fs::write(source.join(format!("small/{index}")), bytes(index * 1777, index as u64))
                .expect("write");
        }
        run_silently(&mut shell(backup.make), here);
        evict_all(&source);
        run_silently(&mut shell_under_run(backup.save), here);
        wait_until_little_resident(backup.name, &[&source, &repository]);
        run_silently(&mut shell(backup.restore), here);
        assert!(
            files_below(&here.join("back")) == files_below(&source),
            "{}: what comes back differs",
            backup.name
        );
    }
}

/// A table of some 30 MiB.
const TABLE: &str = "CREATE DATABASE a; USE a; CREATE TABLE t (id INT PRIMARY KEY, b VARCHAR(300)) AS \
                     SELECT seq AS id, REPEAT(MD5(seq), 8) AS b FROM seq_1_to_120000";

#[test]
#[ignore = "long: make test-stories"]
fn a_dump_of_a_server_is_the_same_and_leaves_little_in_memory() {
    let needed = ["mydumper", "myloader", "fincore", "mariadbd", "mariadb-install-db", "mariadb"];
    if !support::can_run("mydumper and myloader", &needed) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let here = scratch.path();
    let server = Server::start(here, Options::primary());
    server.execute(TABLE);
    let common = format!("--socket={} --user=root --threads=2", server.socket().display());
    let dump = |to: &str| format!("mydumper {common} --database=a --rows=30000 --outputdir={to}");
    run_silently(&mut shell(&dump("plain")), here);
    run_silently(&mut shell_under_run(&dump("dumped")), here);
    let dumped = here.join("dumped");
    wait_until_little_resident("mydumper", &[&dumped]);
    let of = |directory: &Path| {
        let mut files = files_below(directory);
        // The file `metadata` has the times of the dump.
        assert!(files.remove("metadata").is_some(), "{files:?}");
        files
    };
    assert!(of(&dumped) == of(&here.join("plain")), "mydumper writes something else");
    // Without `run` all pages stay, so the test can fail.
    assert!(resident_in(&[&here.join("plain")]) > 16 * MIB);
    evict_all(&dumped);
    let load = format!("myloader {common} --threads=1 --database=again --directory=dumped");
    run_silently(&mut shell_under_run(&load), here);
    wait_until_little_resident("myloader", &[&dumped]);
    let sum = |table: &str| server.query(&format!("CHECKSUM TABLE {table}"))[0]["Checksum"].clone();
    assert_eq!(sum("a.t"), sum("again.t"));
}

/// pgbackrest's own processes read the files of the stopped server.
#[test]
fn a_backup_of_postgresql_is_the_same_and_leaves_little_in_memory() {
    let initdb = postgresql::program("initdb").display().to_string();
    if !support::can_run("a backup by pgbackrest", &["pgbackrest", &initdb, "setpriv", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let here = scratch.path();
    let make = format!(
        "mkdir data; chown postgres: . data
         setpriv --reuid=postgres --regid=postgres --clear-groups '{initdb}' --auth=trust --no-sync --pgdata=data
         chown --recursive root: . data; mkdir -m 700 back"
    );
    run_silently(&mut shell(&make), here);
    // Its settings without a file: each command accepts only its own options.
    let pgbackrest = |pages: &str, what: &str| {
        format!(
            "pgbackrest --config=/dev/null --stanza=one --pg1-path=\"$PWD/{pages}\" --repo1-path=\"$PWD/repository\" \
             --lock-path=\"$PWD/lock\" --log-level-file=off --log-level-console=error {what}"
        )
    };
    run_silently(&mut shell(&pgbackrest("data", "--no-online stanza-create")), here);
    let (data, repository, back) = (here.join("data"), here.join("repository"), here.join("back"));
    evict_all(&data);
    let backup = pgbackrest("data", "--no-online --compress-type=none --process-max=2 backup");
    run_silently(&mut shell_under_run(&backup), here);
    wait_until_little_resident("pgbackrest's backup", &[&data, &repository]);
    run_silently(&mut shell_under_run(&pgbackrest("back", "--process-max=2 restore")), here);
    wait_until_little_resident("pgbackrest's restored files", &[&repository, &back]);
    let of = |directory: &Path| {
        let mut files = files_below(directory);
        // The server creates these again.
        files.retain(|path, _| !path.starts_with("pg_subtrans"));
        files
    };
    assert!(of(&back) == of(&data), "the restored data differs");
}
