//! The settings that `pagekeeper doctor` reads from real servers' files, its fixes, and its
//! report after a restart.

use crate::support::command::run;
use crate::support::configured::{DbBench, MARIADB, MariaDb, PostgreSql, postgresql};
use crate::support::{MIB, alone, can_run, doctor_report, eventually, scratch};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Runs the doctor on a process.
fn doctor(pid: u32, more: &[&str]) -> Value {
    let pid = pid.to_string();
    let mut arguments = vec!["doctor", "--pid", &pid, "--watch", "200ms", "--json"];
    arguments.extend(more);
    let outcome = run(&arguments);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    doctor_report::of(&outcome)
}

/// Returns its findings of one kind.
fn findings(reported: &Value, kind: &str) -> Vec<Value> {
    let all = reported["findings"].as_array().expect("a list");
    all.iter().filter(|finding| finding["kind"] == kind).cloned().collect()
}

/// Returns the evidence of all findings about settings, by the setting.
fn evidence(reported: &Value, setting: &str) -> Option<Value> {
    let found = findings(reported, "setting");
    let mut all = found.iter().flat_map(|finding| finding["evidence"].as_array().expect("a list"));
    all.find(|evidence| evidence["figures"]["setting"] == setting).map(|evidence| evidence["figures"].clone())
}

/// Returns the settings that findings of a kind name as their fixes.
fn acts(reported: &Value, kind: &str) -> Vec<String> {
    let found = findings(reported, kind);
    let fixes = found.iter().flat_map(|finding| finding["fixes"].as_array().expect("a list"));
    fixes
        .filter(|fix| fix["kind"] == "setting")
        .map(|fix| fix["act"].as_str().expect("text").to_owned())
        .collect()
}

/// A disk profile for the file system of a directory.
struct DiskProfile(String);

fn measured(directory: &Path) -> DiskProfile {
    let profile = directory.join("disk.toml").to_str().expect("plain").to_owned();
    run(["probe", "--quick", "--output", &profile, directory.to_str().expect("plain")]).expect_success();
    DiskProfile(profile)
}

impl DiskProfile {
    /// Returns the arguments that use it and set a target.
    fn arguments<'a>(&'a self, target: &'a str) -> [&'a str; 4] {
        ["--disk-profile", &self.0, "--recovery-target", target]
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("write settings");
}

#[test]
fn mariadbs_buffered_files_are_reported_with_the_line_and_fixed() {
    let _alone = alone();
    if !can_run("doctor on MariaDB's settings", &MARIADB) {
        return;
    }
    let scratch = scratch();
    let mut server = MariaDb::start(
        scratch.path(),
        "# of the test\n[mariadb]\nloose-innodb-flush-method = fsync # slow\ninnodb-log-file-buffering\n",
    );
    let reported = doctor(server.pid(), &[]);
    let file = server.settings();
    let method = evidence(&reported, "innodb_flush_method").expect("reported");
    assert_eq!(method["value"], "fsync");
    assert_eq!((method["file"].as_str(), method["line"].as_u64()), (file.to_str(), Some(3)));
    let buffering = evidence(&reported, "innodb_log_file_buffering").expect("reported");
    assert_eq!((buffering["value"].as_str(), buffering["line"].as_u64()), (Some("ON"), Some(4)));
    let read = reported["inspected"]["databases"][0]["settings_from"].as_array().expect("a list").len();
    assert_eq!(read, 2, "{}", reported["inspected"]);

    let fixes = acts(&reported, "setting");
    assert_eq!(fixes, ["innodb_flush_method=O_DIRECT", "innodb_log_file_buffering=OFF"]);
    write(&file, &format!("[mariadb]\n{}\n", fixes.join("\n")));
    server.restart();
    assert_eq!(server.query("SELECT @@innodb_flush_method, @@innodb_log_file_buffering"), "O_DIRECT\t0");
    assert_eq!(findings(&doctor(server.pid(), &[]), "setting"), [Value::Null; 0]);

    // The running setting takes precedence over the file's; a file that was changed since is
    // reported.
    write(&file, "[mariadb]\ninnodb_flush_method=fsync\n");
    filetime_later(&file);
    let reported = doctor(server.pid(), &[]);
    assert_eq!(findings(&reported, "setting"), [Value::Null; 0]);
    let unread = reported["inspected"]["databases"][0]["settings_unread"].to_string();
    assert!(unread.contains("changed after the server started"), "{unread}");
}

/// Sets a file's time clearly after its server's start.
fn filetime_later(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).expect("open settings");
    file.set_modified(std::time::SystemTime::now() + Duration::from_secs(5)).expect("set a time");
}

#[test]
fn myrocks_options_in_force_are_reported_and_fixed() {
    let _alone = alone();
    let plugin = Path::new("/usr/lib/mysql/plugin/ha_rocksdb.so");
    if !can_run("doctor on MyRocks' settings", &MARIADB) {
        return;
    }
    if !plugin.exists() {
        println!("SKIPPED: doctor on MyRocks' settings needs mariadb-plugin-rocksdb.");
        return;
    }
    let scratch = scratch();
    let settings = "[mysqld]\nplugin-load-add=ha_rocksdb\n";
    let mut server = MariaDb::start(scratch.path(), settings);
    // Without tables of its own there is nothing to set.
    assert!(evidence(&doctor(server.pid(), &[]), "rocksdb_use_direct_io_for_flush_and_compaction").is_none());
    server.query("CREATE DATABASE d; CREATE TABLE d.t (n INT PRIMARY KEY, b BLOB) ENGINE=ROCKSDB");
    server.query("INSERT INTO d.t SELECT seq, RANDOM_BYTES(1024) FROM d.seq_1_to_4000");
    server.query("SET GLOBAL rocksdb_force_flush_memtable_now = 1");
    let reported = doctor(server.pid(), &[]);
    let direct = evidence(&reported, "rocksdb_use_direct_io_for_flush_and_compaction").expect("reported");
    assert_eq!(direct["value"], "false");
    let file = direct["file"].as_str().expect("a file");
    let line = usize::try_from(direct["line"].as_u64().expect("a line")).expect("small");
    let text = std::fs::read_to_string(file).expect("read the options");
    assert_eq!(
        text.lines().nth(line - 1).map(str::trim),
        Some("use_direct_io_for_flush_and_compaction=false")
    );

    let fixes = acts(&reported, "setting");
    assert_eq!(fixes.len(), 3, "{fixes:?}");
    write(&server.settings(), &format!("{settings}{}\n", fixes.join("\n")));
    server.restart();
    assert_eq!(server.query("SELECT @@rocksdb_use_direct_io_for_flush_and_compaction"), "1");
    assert_eq!(findings(&doctor(server.pid(), &[]), "setting"), [Value::Null; 0]);
}

#[test]
fn rocksdbs_options_are_reported_and_fixed() {
    let _alone = alone();
    if !can_run("doctor on RocksDB's settings", &["db_bench", "setpriv"]) {
        return;
    }
    let scratch = scratch();
    let bench = DbBench::start(scratch.path(), "  bytes_per_sync=0", "", MIB);
    let reported = doctor(bench.pid(), &[]);
    let synced = evidence(&reported, "bytes_per_sync").expect("reported");
    assert_eq!(synced["value"], "0");
    assert!(synced["file"].as_str().expect("a file").contains("/OPTIONS-"), "{synced}");
    let fixes = acts(&reported, "setting");
    assert_eq!(fixes[0], "use_direct_io_for_flush_and_compaction=true");
    drop(bench);

    let bench = DbBench::start(scratch.path(), &format!("  {}", fixes.join("\n  ")), "", MIB);
    assert_eq!(findings(&doctor(bench.pid(), &[]), "setting"), [Value::Null; 0]);
}

#[test]
#[ignore = "long: make test-stories"]
fn rocksdbs_recovery_is_shortened_for_a_target_alone() {
    let _alone = alone();
    if !can_run("doctor on RocksDB's recovery", &["db_bench", "setpriv"]) {
        return;
    }
    let scratch = scratch();
    let (long, short) = (scratch.path().join("long"), scratch.path().join("short"));
    std::fs::create_dir(&long).expect("make a directory");
    std::fs::create_dir(&short).expect("make a directory");
    let disk = measured(scratch.path());
    let bench = DbBench::start(&long, "", "  write_buffer_size=2147483648", 400 * MIB);
    eventually("600 MiB of WAL", Duration::from_secs(400), || (bench.wal() > 600 * MIB).then_some(()));
    // 600 MiB are no problem while no recovery time is set.
    assert_eq!(findings(&doctor(bench.pid(), &disk.arguments("1h")), "long-recovery"), [Value::Null; 0]);
    let reported = doctor(bench.pid(), &disk.arguments("1ms"));
    let found = findings(&reported, "long-recovery");
    assert_eq!(found.len(), 1, "{reported}");
    let figures = &found[0]["evidence"][0]["figures"];
    assert!(figures["journal_bytes"].as_u64() >= Some(512 * MIB), "{figures}");
    assert_eq!(figures["exact"], false);
    let estimate = &found[0]["evidence"][1];
    assert!(estimate["figures"]["recovery_seconds"].as_f64() > Some(0.001), "{estimate}");
    assert_eq!(estimate["confidence"], "estimated");
    let fixes = acts(&reported, "long-recovery");
    // However short the target is, a memtable is no smaller than by default.
    assert_eq!(fixes, ["max_total_wal_size=16777216", "write_buffer_size=67108864"]);
    drop(bench);

    let bench = DbBench::start(&short, &format!("  {}", fixes[0]), &format!("  {}", fixes[1]), 400 * MIB);
    eventually("as many tables", Duration::from_secs(400), || (bench.tables() > 400 * MIB).then_some(()));
    assert!(bench.wal() < 256 * MIB, "{}", bench.wal());
}

#[test]
fn postgresqls_settings_are_reported_with_the_line_and_fixed() {
    let _alone = alone();
    let programs = postgresql();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !can_run("doctor on PostgreSQL's settings", &programs) {
        return;
    }
    let scratch = scratch();
    let server = PostgreSql::start(
        scratch.path(),
        "# of the test\nmax_wal_size = '4GB'\ncheckpoint_flush_after = 0\t# all at once\ncheckpoint_timeout = 1h\n",
    );
    let reported = doctor(server.pid(), &[]);
    let after = evidence(&reported, "checkpoint_flush_after").expect("reported");
    assert_eq!((after["value"].as_str(), after["line"].as_u64()), (Some("0"), Some(3)));
    assert_eq!(after["file"].as_str(), server.settings().to_str());
    let fixes = acts(&reported, "setting");
    assert_eq!(fixes, ["checkpoint_flush_after = '256kB'"]);

    // WAL that a recovery would read, also counted by the server.
    server.query("CREATE TABLE t AS SELECT g, repeat('x', 1000) AS x FROM generate_series(1, 550000) g");
    let redo = "SELECT (pg_current_wal_flush_lsn() - redo_lsn)::bigint FROM pg_control_checkpoint()";
    let expected: u64 = server.query(redo).parse().expect("a number");
    assert!(expected > 520 * MIB, "{expected}");
    assert_eq!(findings(&doctor(server.pid(), &[]), "long-recovery"), [Value::Null; 0]);
    let disk = measured(scratch.path());
    let reported = doctor(server.pid(), &disk.arguments("1ms"));
    let found = findings(&reported, "long-recovery");
    assert_eq!(found.len(), 1, "{reported}");
    let figures = &found[0]["evidence"][0]["figures"];
    let bytes = figures["journal_bytes"].as_u64().expect("a number");
    assert_eq!(figures["exact"], true);
    assert!(bytes.abs_diff(expected) <= MIB, "{bytes} instead of {expected}");

    let more = acts(&reported, "long-recovery");
    assert_eq!(more, ["checkpoint_timeout = '5min'", "max_wal_size = '1GB'"]);
    write(&server.settings(), &format!("{}\n{}\n", fixes.join("\n"), more.join("\n")));
    server.query("SELECT pg_reload_conf()");
    // Forces the next checkpoint, which would otherwise come later.
    server.query("CHECKPOINT");
    let reported = doctor(server.pid(), &disk.arguments("10s"));
    assert_eq!(findings(&reported, "setting"), [Value::Null; 0]);
    assert_eq!(findings(&reported, "long-recovery"), [Value::Null; 0]);

    // The file that the server writes itself takes precedence over the administrator's line.
    server.query("ALTER SYSTEM SET checkpoint_flush_after = 0");
    let fixes = acts(&doctor(server.pid(), &[]), "setting");
    assert_eq!(fixes, ["ALTER SYSTEM SET checkpoint_flush_after = '256kB'"]);
    server.query(&fixes[0]);
    assert_eq!(findings(&doctor(server.pid(), &[]), "setting"), [Value::Null; 0]);
    server.query("ALTER SYSTEM SET shared_preload_libraries = 'auto_explain', 'pg_prewarm'");
    let own = std::fs::read_to_string(server.settings().with_file_name("postgresql.auto.conf"));
    assert!(own.expect("its own file").contains("shared_preload_libraries = 'auto_explain, pg_prewarm'"));
}

#[test]
fn a_cold_start_is_reported_against_a_snapshot_and_gone_when_warm() {
    let _alone = alone();
    let programs = postgresql();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !can_run("doctor on a cold start", &programs) {
        return;
    }
    let scratch = scratch();
    let mut server = PostgreSql::start(scratch.path(), "shared_buffers = 16MB\n");
    server.query("CREATE TABLE t AS SELECT g, repeat('x', 1000) AS x FROM generate_series(1, 100000) g");
    server.query("CHECKPOINT");
    let (data, snapshot) = (server.data(), scratch.path().join("before.snapshot"));
    let base = data.join("base");
    let path = |path: &Path| path.to_str().expect("plain").to_owned();
    run(["warm", &path(&base)]);
    run(["snapshot", &path(&base), "--output", &path(&snapshot)]).expect_success();
    server.restart(|| {
        let evicted = run(["evict", &path(&base)]);
        assert_eq!(evicted.code, 0, "{evicted:?}");
    });
    // A missing one is reported.
    let reported = doctor(server.pid(), &[]);
    assert_eq!(findings(&reported, "cold-start"), [Value::Null; 0]);
    assert!(
        reported["visibility_gaps"].to_string().contains("no snapshot to compare with"),
        "{}",
        reported["visibility_gaps"]
    );

    let with = ["--snapshot", &path(&snapshot)];
    let reported = doctor(server.pid(), &with);
    let found = findings(&reported, "cold-start");
    assert_eq!(found.len(), 1, "{reported}");
    let figures = &found[0]["evidence"][0]["figures"];
    assert!(figures["missing_bytes"].as_u64() > Some(80 * MIB), "{figures}");
    assert!(acts(&reported, "cold-start").contains(&"shared_preload_libraries = 'pg_prewarm'".to_owned()));
    let fix = found[0]["fixes"][0]["act"].as_str().expect("text");
    let arguments: Vec<&str> = fix.split(' ').skip(1).collect();
    assert_eq!(arguments, ["warm", "--from", &path(&snapshot)]);
    let warmed = run(&arguments);
    assert_eq!(warmed.code, 0, "{warmed:?}");
    assert_eq!(findings(&doctor(server.pid(), &with), "cold-start"), [Value::Null; 0]);
}
