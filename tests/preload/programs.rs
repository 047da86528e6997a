//! Real programs under `pagekeeper run`: archivers, git, `SQLite`, `RocksDB`, fio. Each checks its
//! own data, or its output is compared with a plain run's; and the rules act where they should, by
//! `fincore`'s residency.
//!
//! Long runs, larger sizes and other file systems are ignored by default: `make test-preload`
//! runs them.

use crate::support;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::command::{Outcome, finish, pagekeeper_by_library};
use crate::support::loop_images::{LoopImage, QuickDisk};
use crate::support::mariadb_test;
use crate::support::postgresql::{SEGMENT_BYTES, Server, WAL_BYTES};
use crate::support::{MIB, evict};

/// Returns a command under `pagekeeper run` with these arguments.
fn command_under_run(arguments: &[&str], command: &[&str]) -> Command {
    let mut run = pagekeeper_by_library();
    run.arg("run").args(arguments).arg("--").args(command);
    run
}

/// Returns the words that start a command under `pagekeeper run`.
fn starter(arguments: &[&str]) -> Vec<OsString> {
    let command = command_under_run(arguments, &[]);
    [command.get_program()].into_iter().chain(command.get_args()).map(OsStr::to_owned).collect()
}

/// Runs a command in a directory, and checks that it succeeds.
fn run_successfully(mut command: Command, directory: &Path) -> Outcome {
    let outcome = finish(command.current_dir(directory));
    assert!(outcome.code == 0, "{command:?}: {outcome:#?}");
    outcome
}

/// Returns a shell line without `run`.
fn shell(line: &str, directory: &Path) -> String {
    let mut command = Command::new("sh");
    command.args(["-euc", line]);
    run_successfully(command, directory).stdout
}

/// Returns bytes that depend on their offset.
fn bytes(count: u64, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33).to_le_bytes()
    };
    (0..count.div_ceil(4))
        .flat_map(|_| next().into_iter().take(4))
        .take(usize::try_from(count).expect("small"))
        .collect()
}

/// Creates a tree as a backup meets it: one large file, many small ones, holes, links, odd names
/// and sizes.
fn make_tree(directory: &Path, large: u64) {
    std::fs::create_dir_all(directory.join("small")).expect("make a directory");
    std::fs::write(directory.join("large"), bytes(large, 1)).expect("write");
    for (index, size) in [0, 1, 4095, 4096, 4097, 100_000, 3 * MIB + 17].into_iter().enumerate() {
        std::fs::write(directory.join(format!("size-{size}")), bytes(size, index as u64)).expect("write");
    }
    for index in 0..150 {
        std::fs::write(directory.join(format!("small/{index}")), bytes(index * 37, index)).expect("write");
    }
    let holes = std::fs::File::create(directory.join("holes")).expect("make a file");
    holes.set_len(24 * MIB + 5).expect("make a hole");
    std::os::unix::fs::FileExt::write_all_at(&holes, b"data", 9 * MIB + 3).expect("write");
    std::os::unix::fs::symlink("large", directory.join("link")).expect("link");
    std::fs::hard_link(directory.join("size-4097"), directory.join("linked")).expect("link");
    std::fs::write(directory.join(OsStr::from_bytes(b"odd \xff\n name")), b"odd").expect("write");
}

/// Returns the files of a tree with sizes and checksums, read by coreutils.
fn tree_of(directory: &Path) -> String {
    shell(
        "find . -type f -print0 | sort -z | xargs -0 sha256sum; find . -printf '%P %y %m %n %l\\n' | sort; find . -type f -printf '%P %s\\n' | sort",
        directory,
    )
}

/// Copies a tree by each of these shell lines, which stand for the command.
fn copied_by_all(parent: &Path, large: u64) {
    let source = parent.join("source");
    make_tree(&source, large);
    let expected = tree_of(&source);
    let lines = [
        "mkdir a; tar -C source -cf a.tar . && tar -C a -xf a.tar",
        "mkdir b; tar -C source -cf - . | tar -C b -xf -",
        "mkdir c; tar -C source -S --format=posix -cf c.tar . && tar -C c -xf c.tar && tar -df c.tar -C source",
        "cp -a source d",
        "cp -a --sparse=always source e",
        "cp -a --reflink=auto source f; cp --reflink=auto f/large f/large.2 && cmp f/large f/large.2 && rm f/large.2",
        "rsync -aH source/ g/",
        "cp -a source h && printf x | dd of=h/large bs=1 seek=5000000 conv=notrunc status=none && touch h/large && rsync -aH --inplace --no-whole-file source/ h/",
        "cp -a source i && rm i/large && dd if=source/large of=i/large bs=1M conv=fsync status=none",
        "cp -a source j && rm j/large && dd if=source/large of=j/large bs=7777 iflag=fullblock status=none",
        "cp -a source k && rm k/large && dd if=source/large of=k/large bs=64k conv=sparse status=none",
        "cp -a source l && rm l/large && dd if=source/large of=l/large bs=1M count=2 status=none && dd if=source/large of=l/large bs=1M skip=2 oflag=append conv=notrunc status=none",
        "cp -a source m && rm m/large && dd if=source/large of=m/large bs=1M iflag=direct status=none",
        "cp -a source n && rm n/large && cat source/large > n/large",
        "cp -a source o && rm o/large && split -b 5M source/large part. && cat part.* > o/large && rm part.*",
    ];
    for (line, name) in lines.iter().zip('a'..) {
        for way in [&[][..], &["--as", "stream"][..]] {
            let outcome = run_successfully(command_under_run(way, &["sh", "-euc", line]), parent);
            assert!(outcome.stdout.is_empty() && outcome.stderr.is_empty(), "{line}: {outcome:#?}");
            let copy = parent.join(name.to_string());
            // A directory's times and a copy's modes depend on the tool; bytes, kinds, links
            // and sizes are compared.
            let got = tree_of(&copy);
            assert!(got == expected, "{line} under run {way:?} left something else");
            std::fs::remove_dir_all(&copy).expect("remove a tree");
            let _ = std::fs::remove_file(parent.join(format!("{name}.tar")));
        }
    }
}

#[test]
fn archives_and_copies_come_back_whole() {
    if !support::can_start("archives and copies", &["tar", "rsync", "sha256sum"]) {
        return;
    }
    let scratch = support::scratch();
    copied_by_all(scratch.path(), 12 * MIB);
}

/// Returns the lines of standard error that the command itself wrote.
fn own_stderr_lines(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| !line.starts_with("pagekeeper: ")).collect()
}

/// A file system in user space writes late and reports errors at close(2). The program must get
/// that error, not another closer of the file. Python's traceback names the failing line and so the
/// call.
#[test]
fn a_write_error_of_fuse_is_reported_as_the_file_is_closed() {
    if !support::can_run("write errors of FUSE", &["python3", "dd", "cp", "umount"])
        || !Path::new("/dev/fuse").exists()
    {
        return;
    }
    let scratch = support::scratch();
    let (point, small) = (scratch.path().join("full"), scratch.path().join("small"));
    std::fs::create_dir(&point).expect("make a directory");
    std::fs::write(&small, bytes(10_000, 5)).expect("write");
    let file = point.join("file").display().to_string();
    for says in ["says", "hides"] {
        let mut server = Command::new("python3");
        server.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/preload/full_fuse.py")).arg(&point);
        let mut server = server.arg(says).stdout(Stdio::piped()).spawn().expect("start");
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(server.stdout.take().expect("piped")),
            &mut line,
        )
        .expect("read");
        assert_eq!(line, "mounted\n");
        let to = format!("of={file}");
        let commands: [&[&str]; 3] = [
            &["dd", "if=/dev/zero", &to, "bs=1M", "count=6", "status=none"],
            &["cp", small.to_str().expect("a plain path"), &file],
            &[
                "python3",
                "-c",
                "import os, sys\nfd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\nos.write(fd, bytes(1 << 22))\nos.close(fd)",
                &file,
            ],
        ];
        let mut failures = Vec::new();
        for command in commands {
            let mut plain = Command::new(command[0]);
            let plain = finish(plain.args(&command[1..]));
            if plain.code != 1 || !plain.stderr.contains("No space left") {
                failures.push(format!("{says}, plain: {plain:?}"));
            }
            for way in [&[][..], &["--as", "stream"][..], &["--as", "bulk"][..]] {
                let got = finish(&mut command_under_run(way, command));
                if (got.code, own_stderr_lines(&got.stderr)) != (1, own_stderr_lines(&plain.stderr)) {
                    failures.push(format!("{says}, {command:?}: {got:?}"));
                }
            }
        }
        finish(Command::new("umount").arg(&point)).expect_success();
        assert!(server.wait().expect("wait").success());
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

/// Returns the bytes in the page cache once the kernel's read-ahead has finished.
fn resident_after_read_ahead(files: &[PathBuf]) -> u64 {
    let mut last = 0;
    support::eventually("nothing more is read ahead", Duration::from_secs(20), || {
        let now = support::resident_bytes(files);
        (std::mem::replace(&mut last, now) == now).then_some(now)
    })
}

/// Pages of cold files are dropped; pages that were hot before stay.
#[test]
fn a_backup_leaves_the_page_cache_as_it_was() {
    if !support::can_start("a backup that leaves the page cache alone", &["tar", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    // `run` waits for writeback for up to two seconds after a command, which a slow disk may
    // exceed.
    let scratch = QuickDisk::new();
    let here = scratch.path();
    std::fs::write(here.join("large"), bytes(64 * MIB, 3)).expect("write");
    let source = [here.join("large")];
    for (command, copy) in [
        (&["cp", "large", "copy"][..], "copy"),
        (&["tar", "-cf", "copy", "large"][..], "copy"),
        (&["dd", "if=large", "of=copy", "bs=1M", "status=none"][..], "copy"),
    ] {
        evict(&source[0]);
        run_successfully(command_under_run(&[], command), here);
        let left = support::resident_bytes(&source);
        assert!(left <= MIB, "{command:?}: {left} bytes of a cold file stay");
        let copy = [here.join(copy)];
        let left = support::resident_bytes(&copy);
        assert!(left <= 4 * MIB, "{command:?}: {left} bytes of the copy stay");
        std::fs::remove_file(&copy[0]).expect("remove the copy");
        // Hot pages of another program: the first quarter.
        shell("head -c 16777216 large >/dev/null", here);
        let hot = resident_after_read_ahead(&source);
        assert!((16 * MIB..40 * MIB).contains(&hot), "{hot} bytes are hot");
        run_successfully(command_under_run(&[], command), here);
        let after = support::resident_bytes(&source);
        assert!(after >= 16 * MIB && after <= hot + MIB, "{command:?}: {hot} bytes were hot, {after} are");
        std::fs::remove_file(&copy[0]).expect("remove the copy");
    }
    // Without `run` all pages stay, so the test can fail.
    evict(&source[0]);
    shell("cp large copy", here);
    assert!(support::resident_bytes(&source) >= 60 * MIB);
}

/// Runs a shell script in a directory, in its own mount namespace, and unmounts in reverse order at
/// its end. If the kernel released an image and the tmpfs below it together, they would keep each
/// other alive forever.
fn run_in_mount_namespace(script: &str, arguments: &[OsString], directory: &Path) -> Outcome {
    const UNMOUNT: &str = r#"trap 'tac /proc/self/mounts | while read -r _ point _; do
        case $point in "$PWD"/*) umount --lazy "$point" ;; esac
    done' EXIT; "#;
    let script = [UNMOUNT, script].concat();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", &script, "sh"]).args(arguments);
    finish(command.current_dir(directory))
}

/// A process that opens a file after its writer has closed it, and syncs it, gets the error of the
/// failed write. This holds also without cachestat(2), where the rules wait in other ways. (The
/// image's disk is full, which is found after the writer has ended.) The kernel forgets an error
/// with the file's inode, which it may drop as soon as no process has the file open. On a busy
/// machine this happens now and then when a group's pages are reclaimed, so one success in a few
/// attempts is enough.
#[test]
fn a_write_error_is_reported_to_a_later_opener() {
    if !support::can_run("write errors", &["cc", "unshare", "mkfs.ext4", "mount"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let script = "mkdir disk; mount -t tmpfs -o size=40m none disk; truncate -s 300m disk/image
        mkfs.ext4 -q -F -O ^has_journal -E nodiscard,lazy_itable_init=1 disk/image
        mkdir disk/files; mount -o loop disk/image disk/files
        \"$@\" dd if=/dev/zero of=disk/files/large bs=1M count=100 status=none
        sync disk/files/large || exit 7";
    let without = support::compare::built("without", &["-O1"]).into_os_string();
    for cachestat in [true, false] {
        let mut words = vec![without.clone(), OsString::from(if cachestat { "-1" } else { "451" })];
        for way in [None, Some(["--as", "stream"]), Some(["--as", "bulk"])] {
            let start = words.len();
            words.extend(way.iter().flat_map(|way| starter(way)));
            let reported = (0..4).any(|_| {
                let directory = tempfile::tempdir_in(scratch.path()).expect("make a directory");
                let outcome = run_in_mount_namespace(script, &words, directory.path());
                let is_reported = outcome.code == 7 && outcome.stderr.contains("No space left on device");
                if !is_reported {
                    eprintln!("{way:?}, cachestat {cachestat}: {outcome:#?}");
                }
                is_reported
            });
            assert!(reported, "{way:?}, cachestat {cachestat}");
            words.truncate(start);
        }
    }
}

/// Pages written to an overlay (a container's root) are dropped, though cachestat(2) counts no
/// resident or dirty pages there; also without cachestat(2).
#[test]
fn output_of_a_stream_goes_without_page_counts() {
    if !support::can_run("writers without counts", &["cc", "unshare", "mount", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    // If pages are not counted, the rules give up on a disk that writes nothing for a second.
    let scratch = QuickDisk::new();
    let here = scratch.path();
    shell("mkdir lower upper work all; head -c 67108864 /dev/urandom > lower/large", here);
    let script = "mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work all; \"$@\" all/large all/copy; cmp all/large all/copy";
    let stream = [starter(&["--as", "stream"]), vec!["cp".into(), "--reflink=never".into()]].concat();
    let copy = [here.join("upper/copy")];
    let outcome = run_in_mount_namespace(
        "mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work all",
        &[],
        here,
    );
    if outcome.code == 0 {
        // Compared before it is written: the comparison would leave it resident.
        let left = min_resident(&copy, || {
            run_in_mount_namespace(script.trim_end_matches("; cmp all/large all/copy"), &stream, here)
                .expect_success();
        });
        assert!(left <= 4 * MIB, "{left} bytes stay");
        run_in_mount_namespace(script, &stream, here).expect_success();
    } else {
        eprintln!("SKIPPED: no overlay here: {}", outcome.stderr);
    }
    let without = [support::compare::built("without", &["-O1"]).into_os_string(), "451".into()];
    let left = min_resident(&copy, || {
        run_in_mount_namespace("\"$@\" lower/large upper/copy", &[&without[..], &stream[..]].concat(), here)
            .expect_success();
    });
    assert!(left <= 4 * MIB, "{left} bytes stay without cachestat(2)");
}

/// Returns the minimum resident bytes over several runs, within three minutes. A writer without
/// page counts gives up on pages that are not written within a second, as happens on a busy
/// machine.
fn min_resident(written: &[PathBuf], run: impl Fn()) -> u64 {
    let begin = Instant::now();
    let mut least = u64::MAX;
    while least > 4 * MIB && begin.elapsed() < Duration::from_secs(180) {
        run();
        least = least.min(support::resident_bytes(written));
    }
    least
}

/// The pages of written and closed files are dropped although the process executes another program
/// immediately.
#[test]
fn pages_written_before_an_exec_are_released() {
    if !support::can_start("exec", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    // Pages that are still dirty two seconds after the exec stay.
    let scratch = QuickDisk::new();
    let program = support::compare::built("becomes", &["-O1"]);
    let calls = ["execve", "execv", "execvp", "execvpe", "fexecve", "execl", "execlp", "execle", "execveat"];
    for by in calls.into_iter().chain(["SYS_execve", "SYS_execveat"]) {
        support::compare::assert_same(&program, &[by], &support::compare::ways(), scratch.path());
        let program = program.to_str().expect("a path");
        let said =
            run_successfully(command_under_run(&["--as", "stream"], &[program, by, by]), scratch.path())
                .stdout;
        assert!(said.ends_with("another\n"), "{said}");
        let files: Vec<PathBuf> =
            (0..24).map(|file| scratch.path().join(format!("{by}-{}-{}", file / 12, file % 12))).collect();
        assert!(files.iter().all(|file| file.exists()));
        assert_eq!(support::resident_bytes(&files), 0, "{by}");
    }
}

#[test]
fn a_clone_is_sound() {
    if !support::can_start("a clone", &["git"]) {
        return;
    }
    let scratch = support::scratch();
    let here = scratch.path();
    let make = "git init -q origin; cd origin; git config user.name a; git config user.email a@example.org
        for i in 1 2 3 4 5 6; do head -c 900000 /dev/urandom > binary.$i; seq $((i * 20000)) > text; git add .; git commit -qm $i; done
        cd ..; git clone -q --no-local origin first; git -C first rev-parse HEAD";
    let head = shell(make, here);
    for (index, way) in
        [&[][..], &["--as", "stream"], &["--as", "bulk"], &["--as", "logs"]].iter().enumerate()
    {
        let name = format!("clone-{index}");
        run_successfully(
            command_under_run(way, &["git", "clone", "-q", "--no-local", "origin", &name]),
            here,
        );
        run_successfully(command_under_run(way, &["git", "-C", &name, "repack", "-qadf"]), here);
        assert_eq!(
            shell(
                &format!(
                    "git -C {name} fsck --full 2>&1 >&2; git -C {name} rev-parse HEAD; git -C {name} status --short"
                ),
                here
            ),
            head
        );
    }
}

const SQLITE: &str = "
PRAGMA journal_mode=MODE; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=200; PRAGMA cache_size=200; PRAGMA mmap_size=MAPPED;
CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
  INSERT INTO t SELECT i, 'row ' || i, zeroblob(i % 700) FROM n;
CREATE INDEX ta ON t(a);
BEGIN; UPDATE t SET a = a || ' changed' WHERE id % 3 = 0; ROLLBACK;
UPDATE t SET a = a || ' again', b = zeroblob(id % 900) WHERE id % 5 = 0;
DELETE FROM t WHERE id % 7 = 0;
PRAGMA wal_checkpoint(TRUNCATE);
VACUUM;
PRAGMA integrity_check;
SELECT count(*), sum(length(a)), sum(length(b)), sum(id) FROM t;
";

#[test]
fn sqlite_keeps_its_tables() {
    if !support::can_start("SQLite", &["sqlite3"]) {
        return;
    }
    let scratch = support::scratch();
    let mut round = 0;
    for mode in ["wal", "delete", "truncate"] {
        for mapped in ["0", "100000000"] {
            let script = SQLITE.replace("MODE", mode).replace("MAPPED", mapped);
            let mut result = |run: Option<&[&str]>| {
                round += 1;
                let name = format!("{round}.db");
                let mut command =
                    run.map_or_else(|| Command::new("sqlite3"), |run| command_under_run(run, &["sqlite3"]));
                command.args(["-bail", &name, &script]);
                run_successfully(command, scratch.path()).expect_success()
            };
            let plain = result(None);
            assert!(plain.contains("\nok\n"), "{plain}");
            for way in [&["--as", "stream"], &["--as", "logs"], &["--as", "bulk"]] {
                assert_eq!(result(Some(way)), plain, "{way:?}, {mode}");
            }
        }
    }
}

/// Puts random keys until it is killed, and checks that synced data survives and a later run
/// continues.
fn rocksdb(parent: &Path, keys: u32) {
    let database = parent.join("database");
    let options = [
        format!("--db={}", database.display()),
        format!("--num={keys}"),
        "--value_size=1000".to_owned(),
        "--compression_type=none".to_owned(),
        "--write_buffer_size=4194304".to_owned(),
        "--target_file_size_base=4194304".to_owned(),
        "--verify_checksum=1".to_owned(),
        "--seed=7".to_owned(),
    ];
    let bench = |more: &[&str]| {
        let mut command = command_under_run(&["--profile", "rocksdb"], &["db_bench"]);
        command.args(&options).args(more);
        command
    };
    let text = run_successfully(
        bench(&["--benchmarks=fillrandom,overwrite,compact,readrandom,verifychecksum,stats"]),
        parent,
    )
    .stdout;
    assert!(text.contains("readrandom"), "{text}");
    check_consistency(&database, parent);
    // Killed in the middle of writing, several times.
    for round in 0..3_u64 {
        let mut child =
            bench(&["--benchmarks=overwrite", "--use_existing_db=1", "--sync=0", "--duration=60"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("start db_bench");
        std::thread::sleep(Duration::from_millis(700 + 300 * round));
        child.kill().expect("kill db_bench");
        child.wait().expect("wait for db_bench");
        run_successfully(
            bench(&["--benchmarks=readrandom,verifychecksum", "--use_existing_db=1", "--reads=20000"]),
            parent,
        );
        check_consistency(&database, parent);
    }
    let keep = |count: &str| count.lines().filter(|line| line.contains("==>")).count();
    let plain = run_successfully(ldb(&database, &["scan", "--max_keys=1000"]), parent).stdout;
    assert!(keep(&plain) > 0 || !plain.is_empty(), "an empty database");
}

fn ldb(database: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("ldb");
    command.arg(format!("--db={}", database.display())).args(arguments);
    command
}

fn check_consistency(database: &Path, parent: &Path) {
    let said = run_successfully(ldb(database, &["checkconsistency"]), parent).stdout;
    assert!(said.trim() == "OK", "{said}");
}

#[test]
fn rocksdb_survives_kills() {
    if support::can_start("RocksDB", &["db_bench", "ldb"]) {
        let _alone = support::alone();
        let scratch = support::scratch();
        rocksdb(scratch.path(), 40_000);
    }
}

/// Kills a server under load several times, and checks that all tables and indexes are whole and
/// sums agree.
fn postgresql(seconds: u64) {
    let programs = support::postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("PostgreSQL", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let starter = command_under_run(&["--profile", "postgresql"], &[]);
    let starter =
        [starter.get_program()].into_iter().chain(starter.get_args()).map(std::ffi::OsStr::to_owned);
    let mut server = Server::start_by(scratch.path(), starter.collect());
    let mut acknowledged = 0;
    for _ in 0..2 {
        let mut load = server.pgbench(&["--no-vacuum", "--client=4", "--time=600"]);
        let mut load = load
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start pgbench");
        std::thread::sleep(Duration::from_secs(seconds));
        // At least one more: a disk may hang for as long.
        let seen = support::eventually("the load commits", Duration::from_secs(300), || {
            let seen = server.query("SELECT count(*) FROM pgbench_history");
            let seen: u64 = seen.parse().expect("a number");
            (seen > acknowledged).then_some(seen)
        });
        server.crash();
        load.kill().expect("kill pgbench");
        load.wait().expect("wait for pgbench");
        let now: u64 = server.query("SELECT count(*) FROM pgbench_history").parse().expect("a number");
        assert!(now >= seen, "{seen} commits were there, {now} are");
        acknowledged = now;
        let sums =
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
            AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)
            AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)";
        assert_eq!(server.query(sums), "t");
        server.check();
    }
}

#[test]
#[ignore = "minutes: make test-preload"]
fn the_wal_of_postgresql_stays_out_of_the_page_cache() {
    let programs = support::postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("PostgreSQL and its WAL", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = Server::start_by(scratch.path(), starter(&["--profile", "postgresql"]));
    server.write(2 * WAL_BYTES, None, || ());
    let (size, resident) =
        (support::size_bytes(&server.segments()), support::resident_bytes(&server.segments()));
    println!("WAL {resident} of {size}");
    // The current segment, the three that a follower may be reading, and newly created ones.
    //
    assert!(
        size >= WAL_BYTES && resident < 6 * SEGMENT_BYTES,
        "{resident} of {size} bytes of WAL are resident"
    );
}

#[test]
fn postgresql_recovers_from_crashes() {
    postgresql(3);
}

/// Writes and verifies with each I/O engine of fio.
fn fio(parent: &Path, size: &str) {
    for engine in ["psync", "libaio", "io_uring", "mmap", "sync", "pvsync2"] {
        for (way, direct) in [
            (&["--as", "stream"], 0),
            (&["--as", "bulk"], 0),
            (&["--as", "logs"], 0),
            (&["--as", "stream"], 1),
        ] {
            if engine == "mmap" && direct == 1 {
                continue;
            }
            for pattern in ["write", "randwrite"] {
                let mut command = command_under_run(way, &["fio"]);
                command
                    .args([
                        "--name=verified",
                        "--filename=verified",
                        "--verify=crc32c",
                        "--do_verify=1",
                        "--verify_fatal=1",
                    ])
                    .args(["--bs=16k", "--iodepth=8", "--end_fsync=1", "--randseed=3", "--minimal"])
                    .args([format!("--size={size}"), format!("--ioengine={engine}")])
                    .args([format!("--rw={pattern}"), format!("--direct={direct}")]);
                let outcome = run_successfully(command, parent);
                assert!(!outcome.stderr.contains("verify"), "{engine} {way:?}: {outcome:#?}");
                let file = parent.join("verified");
                assert!(file.exists(), "{engine}");
                std::fs::remove_file(&file).expect("remove a file");
            }
        }
    }
}

#[test]
#[ignore = "long: make test-stories"]
fn fio_verifies_its_writes() {
    if support::can_start("fio", &["fio"]) {
        let scratch = support::scratch();
        fio(scratch.path(), "8m");
    }
}

#[test]
#[ignore = "minutes: make test-preload"]
fn other_file_systems_are_the_same() {
    let programs: Vec<String> = ["xfs", "btrfs"].iter().flat_map(|kind| LoopImage::programs(kind)).collect();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("other file systems", &programs) {
        return;
    }
    for kind in ["xfs", "btrfs", "ext4"] {
        let image = LoopImage::new(kind, 2048 * MIB);
        for name in
            ["read", "write", "sync", "names", "descriptors", "held", "moves", "maps", "rings", "stdio"]
        {
            let program = support::compare::built(name, &["-O1", "-U_FORTIFY_SOURCE"]);
            support::compare::assert_same(&program, &[], &support::compare::ways(), image.path());
        }
        let place: PathBuf = image.path().join("copies");
        std::fs::create_dir(&place).expect("make a directory");
        copied_by_all(&place, 100 * MIB);
        let place = image.path().join("verified");
        std::fs::create_dir(&place).expect("make a directory");
        fio(&place, "32m");
    }
}

#[test]
#[ignore = "minutes: make test-preload"]
fn larger_archives_databases_and_files_are_sound() {
    let scratch = support::scratch();
    copied_by_all(scratch.path(), 200 * MIB);
    let _alone = support::alone();
    rocksdb(scratch.path(), 300_000);
    fio(scratch.path(), "128m");
}

/// Test programs of `MariaDB` that write binary and relay logs in various ways, or kill a server
/// during its work.
const MARIADB_TESTS: &str = "
    binlog.binlog_checksum binlog.binlog_delete_and_flush_index binlog.binlog_innodb binlog.binlog_innodb_row
    binlog.binlog_invalid_read_in_rotate binlog.binlog_mixed_load_data binlog.binlog_mysqlbinlog2
    binlog.binlog_mysqlbinlog_raw_flush binlog.binlog_mysqlbinlog_row_innodb binlog.binlog_mysqlbinlog_stop_never
    binlog.binlog_no_uniqfile_crash binlog.binlog_rotate_perf binlog.binlog_row_binlog binlog.binlog_row_mix_innodb_myisam
    binlog.binlog_stm_mix_innodb_myisam binlog.binlog_truncate_innodb binlog.binlog_xa_prepared_disconnect binlog.flashback
    rpl.kill_hard-6290 rpl.rpl_checksum_cache rpl.rpl_flush_logs rpl.rpl_flushlog_loop rpl.rpl_gtid_basic rpl.rpl_gtid_startpos
    rpl.rpl_gtid_stop_start rpl.rpl_innodb_mixed_dml rpl.rpl_parallel_optimistic_xa rpl.rpl_relay_max_extension
    rpl.rpl_relay_space_innodb rpl.rpl_relayrotate rpl.rpl_rotate_logs rpl.rpl_row_basic_3innodb
    rpl.rpl_row_max_relay_size rpl.rpl_row_show_relaylog_events rpl.rpl_semi_sync rpl.rpl_stm_max_relay_size
    rpl.rpl_stm_relay_ign_space rpl.rpl_xa_survive_disconnect
    innodb.doublewrite innodb.group_commit_force_recovery innodb.innodb-64k-crash innodb.innodb_force_recovery
    innodb.innodb_force_recovery_rollback innodb.innodb-truncate innodb.innodb-xa innodb.log_corruption_recovery innodb.log_file
    innodb.log_file_name innodb.log_file_size_online innodb.read_only_recovery innodb.recovery_shutdown innodb.restart
    innodb.truncate_missing innodb.undo_log innodb.undo_truncate innodb.xa_recovery";

#[test]
#[ignore = "minutes: make test-preload"]
fn mariadb_passes_its_own_tests() {
    if !support::can_run("MariaDB's own tests", &["mariadbd", "perl", "setpriv"]) {
        return;
    }
    assert!(Path::new(mariadb_test::DIRECTORY).exists(), "Debian's mariadb-test is not installed");
    let _alone = support::alone();
    let scratch = support::scratch();
    let tests: Vec<String> = MARIADB_TESTS.split_whitespace().map(str::to_owned).collect();
    let starter = starter(&["--profile", "mariadb"]);
    let now = mariadb_test::results(&starter, &tests, scratch.path());
    assert!(now.passed.len() > 30, "few ran: {}", now.output);
    if !now.failed.is_empty() {
        let plain = mariadb_test::results(&[], &now.failed, scratch.path());
        assert!(
            now.failed.iter().all(|name| plain.failed.contains(name)),
            "{:?} fail under run, {:?} of them plain: {}",
            now.failed,
            plain.failed,
            now.output
        );
    }
    println!("{} passed, {:?} fail plain, too", now.passed.len(), now.failed);
}
