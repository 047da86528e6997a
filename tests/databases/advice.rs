//! Each row of the doctor's table of advice on real servers. The server accepts the setting, and it
//! is in force. It has its effect, if descriptors or processes show that. After the undo the
//! setting has the vendor's default in the table.
//!
//! Every run tests Debian's servers; `make test-advice` fetches and tests the other versions. The
//! test prints its rows of the table in the book.

use crate::support::command::run;
use crate::support::configured::postgresql;
use crate::support::versions::{Kind, Server, Version, fetched, installed};
use crate::support::{alone, can_run, doctor_report, scratch};
use pagekeeper_doctor::{Advice, Effect, Product, TABLE};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A deadline far longer than a setting takes to be in force.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the values to test a row with: the value before, and the offered one.
fn values(id: &str) -> Option<(&'static str, &'static str)> {
    Some(match id {
        "mariadb-flush-method" | "mysql-flush-method" => ("fsync", "O_DIRECT"),
        "mariadb-data-file-buffering" | "mariadb-log-file-buffering" => ("ON", "OFF"),
        "mariadb-buffer-pool-dump"
        | "mariadb-buffer-pool-load"
        | "mysql-buffer-pool-dump"
        | "mysql-buffer-pool-load"
        | "myrocks-direct-flush-and-compaction"
        | "myrocks-direct-reads" => ("OFF", "ON"),
        "mariadb-log-file-size-at-start"
        | "mariadb-log-file-size"
        | "mysql-log-file-size"
        | "mysql-redo-log-capacity" => ("256M", "128M"),
        "mariadb-redo-directory" | "mysql-redo-directory" => ("./", "redo"),
        "mariadb-aria-log-directory" => (".", "aria"),
        "mariadb-binlog-directory" | "mysql-binlog-directory" => ("binlog", "binlogs/binlog"),
        "mariadb-relay-log-directory" | "mysql-relay-log-directory" => ("relay", "relays/relay"),
        "postgresql-checkpoint-flush-after" => ("0", "256kB"),
        "postgresql-bgwriter-flush-after" => ("0", "512kB"),
        "postgresql-wal-recycle" => ("off", "on"),
        "postgresql-shared-buffers" => ("512MB", "160MB"),
        "postgresql-autoprewarm" => ("auto_explain", "auto_explain,pg_prewarm"),
        "postgresql-checkpoint-timeout" => ("1h", "5min"),
        "postgresql-max-wal-size" => ("8GB", "2GB"),
        "postgresql-recovery-prefetch" => ("off", "try"),
        "myrocks-bytes-per-sync" => ("0", "1048576"),
        "myrocks-wal-bytes-per-sync" => ("0", "524288"),
        "myrocks-max-total-wal-size" => ("2G", "256M"),
        "myrocks-wal-directory" => ("", "rocksdb-wal"),
        _ => return None,
    })
}

/// Whether a row belongs to another test, or to a program that no registry has.
fn is_of_another_test(row: &Advice) -> bool {
    matches!(row.product, Product::RocksDb | Product::TiKv)
}

#[test]
fn every_row_is_tried() {
    for row in TABLE.iter() {
        assert_ne!(values(&row.id).is_some(), is_of_another_test(row), "{}", row.id);
    }
}

#[test]
fn advice_is_accepted_and_taken_back_by_debians_servers() {
    let _alone = alone();
    let postgresql = postgresql();
    let programs: Vec<&str> =
        postgresql.iter().map(String::as_str).chain(["mariadbd", "mariadb", "psql"]).collect();
    if can_run("the doctor's advice on real servers", &programs) {
        for version in installed() {
            try_all(&version);
        }
    }
}

#[test]
#[ignore = "make test-advice fetches the servers"]
fn advice_is_accepted_and_taken_back_by_fetched_servers() {
    let _alone = alone();
    if can_run("the doctor's advice on other versions", &["mariadb", "psql", "setpriv"]) {
        let all = fetched();
        assert!(!all.is_empty(), "PAGEKEEPER_SERVERS names a directory with no server that runs here");
        for version in all {
            try_all(&version);
        }
    }
}

/// Returns the rows for a version.
fn rows(version: &Version) -> Vec<&'static Advice> {
    let myrocks = version.from == "Debian" && Path::new("/usr/lib/mysql/plugin/ha_rocksdb.so").exists();
    let mine = |row: &&'static Advice| match row.product {
        Product::MariaDb => version.kind == Kind::MariaDb,
        Product::MyRocks => version.kind == Kind::MariaDb && myrocks,
        Product::MySql => version.kind == Kind::MySql,
        Product::PostgreSql => version.kind == Kind::PostgreSql,
        Product::RocksDb | Product::TiKv => false,
    };
    TABLE.iter().filter(mine).filter(|row| row.holds_for(&version.number)).collect()
}

fn try_all(version: &Version) {
    let rows = rows(version);
    let scratch = scratch();
    let mut plain: Vec<String> = Vec::new();
    if rows.iter().any(|row| row.product == Product::MyRocks) {
        plain.push("plugin-load-add=ha_rocksdb".to_owned());
    }
    if version.kind == Kind::MySql {
        // The server requires one for its binary log.
        plain.push("server-id=1".to_owned());
    }
    let with = |offered: bool, home: &Path| -> Vec<String> {
        let lines = rows.iter().filter_map(|row| {
            let (before, after) = values(&row.id)?;
            let value = if offered { value_in_home(row, after, home) } else { before.to_owned() };
            Some(format!("{} = '{value}'", row.setting))
        });
        plain.iter().cloned().chain(lines).collect()
    };
    let before = with(false, scratch.path());
    let mut server = Server::start(version, scratch.path(), &before);
    let home = server.home().to_path_buf();
    for row in &rows {
        check(&server, row, values(&row.id).map(|(before, _)| before).unwrap_or_default());
    }
    if version.kind == Kind::MariaDb {
        assert_eq!(server.is_direct("ibdata1"), Some(false), "{}", version.name());
    }
    check_doctor_names(&server, version);

    // Settings that take effect without a restart.
    server.configure(&with(true, &home));
    if version.kind == Kind::PostgreSql {
        server.query("SELECT pg_reload_conf()");
    }
    for row in &rows {
        let offered = values(&row.id).map(|(_, offered)| offered).unwrap_or_default();
        match row.effect {
            Effect::SetGlobal => {
                server.query(&format!("SET GLOBAL {} = {}", row.setting, bytes(offered).unwrap_or_default()));
                check(&server, row, offered);
            }
            Effect::Reload => eventually_is(&server, row, offered),
            Effect::Restart | Effect::SetDbOptions => {}
        }
    }

    // All settings, from the file.
    server.restart(&with(true, &home), |data| move_logs(&rows, data, &home, true));
    for row in &rows {
        check(
            &server,
            row,
            &value_in_home(row, values(&row.id).map(|(_, offered)| offered).unwrap_or_default(), &home),
        );
    }
    effects(&server, version, &home);
    check_log_places(version, &rows, &home);

    // The undo.
    server.restart(&plain, |data| {
        if version.kind != Kind::PostgreSql {
            let dumped = data.join("ib_buffer_pool").is_file();
            assert!(dumped, "{}: which pages it had cached was written down", version.name());
        }
        move_logs(&rows, data, &home, false);
    });
    for row in rows.iter().filter(|row| !is_place(row)) {
        check(&server, row, default_of(row, &version.number));
    }
    println!("| {} | {} | {} | accepted, in force, taken back |", version.name(), version.from, rows.len());
}

/// Checks that the doctor names settings of this product, each with its full description.
fn check_doctor_names(server: &Server, version: &Version) {
    let outcome = run(["doctor", "--pid", &server.pid().to_string(), "--watch", "200ms", "--json"]);
    let reported = doctor_report::of(&outcome);
    let findings = reported["findings"].as_array().expect("a list");
    let fixes: Vec<&serde_json::Value> =
        findings.iter().flat_map(|finding| finding["fixes"].as_array().expect("a list")).collect();
    let ids: Vec<&str> = fixes.iter().filter_map(|fix| fix["id"].as_str()).collect();
    // If MariaDB 11 has a setting for the tables alone, it takes precedence over the older one.
    let newer = ids.contains(&"mariadb-data-file-buffering");
    let tables = if newer { "mariadb-data-file-buffering" } else { "mariadb-flush-method" };
    let (own, expected): (&[&str], &str) = match version.kind {
        Kind::MariaDb => (&["mariadb-", "myrocks-"], tables),
        Kind::MySql => (&["mysql-"], "mysql-flush-method"),
        Kind::PostgreSql => (&["postgresql-"], "postgresql-checkpoint-flush-after"),
    };
    assert!(ids.contains(&expected), "{}: {reported:#}", version.name());
    assert!(ids.iter().all(|id| own.iter().any(|own| id.starts_with(own))), "{}: {ids:?}", version.name());
    for fix in fixes {
        for field in ["act", "does", "undo", "evidence", "confidence"] {
            assert!(fix[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {fix:#}");
        }
        assert!(fix["risk"]["costs"].is_string() && fix["holds_for"]["versions"].is_string(), "{fix:#}");
        assert!(fix["risk"]["durability"].is_null() && fix["risk"]["replication"].is_null(), "{fix:#}");
    }
}

/// Checks the effects that descriptors and processes show.
fn effects(server: &Server, version: &Version, home: &Path) {
    match version.kind {
        Kind::MariaDb => {
            assert_eq!(server.is_direct("ibdata1"), Some(true), "{}: its tables are direct", version.name());
            assert_eq!(server.is_direct("ib_logfile0"), Some(true), "{}: so is its redo log", version.name());
        }
        Kind::MySql => {
            assert_eq!(server.is_direct("ibdata1"), Some(true), "{}: its tables are direct", version.name());
            assert!(home.join("redo/#innodb_redo").is_dir(), "{}: its redo log has moved", version.name());
        }
        Kind::PostgreSql => {
            crate::support::eventually("autoprewarm runs", WAIT_TIMEOUT, || {
                server.has_child("autoprewarm").then_some(())
            });
        }
    }
}

/// Checks that logs are at the places and of the sizes that the rows set.
///
fn check_log_places(version: &Version, rows: &[&Advice], home: &Path) {
    const OFFERED: u64 = 128 << 20;
    let is_tried = |id: &str| rows.iter().any(|row| row.id == id);
    let bytes_of = |directory: &str, begins: &str, ends: &str| -> Option<u64> {
        let entries = std::fs::read_dir(home.join(directory)).expect("list it").flatten();
        let is_log = |name: &str| name.starts_with(begins) && name.ends_with(ends);
        let logs = entries.filter(|entry| is_log(&entry.file_name().to_string_lossy()));
        logs.map(|log| log.metadata().expect("its size").len()).reduce(|one, other| one + other)
    };
    for (id, directory, begins, ends) in [
        ("mariadb-redo-directory", "redo", "ib_logfile", ""),
        ("mysql-redo-directory", "redo/#innodb_redo", "#ib_redo", ""),
        ("mariadb-aria-log-directory", "aria", "aria_log", ""),
        ("mariadb-binlog-directory", "binlogs", "binlog", ""),
        ("mysql-binlog-directory", "binlogs", "binlog", ""),
        ("myrocks-wal-directory", "rocksdb-wal", "", ".log"),
    ] {
        if is_tried(id) {
            let bytes = bytes_of(directory, begins, ends);
            let bytes = bytes.unwrap_or_else(|| panic!("{}: no log in {directory}", version.name()));
            // MySQL's spare files do not count in its capacity.
            let is_redo = begins == "ib_logfile" || begins == "#ib_redo";
            assert!(
                !is_redo || bytes <= OFFERED + (8 << 20),
                "{}: {bytes} bytes of redo log",
                version.name()
            );
        }
    }
}

/// Whether a setting is a log's place.
fn is_place(row: &Advice) -> bool {
    row.id.ends_with("-directory")
}

/// Returns the value for the file: a path is put below the server's own directory.
fn value_in_home(row: &Advice, value: &str, home: &Path) -> String {
    if is_place(row) { home.join(value).display().to_string() } else { value.to_owned() }
}

/// Moves the logs to the places in the rows, or back; the directories stay.
fn move_logs(rows: &[&Advice], data: &Path, home: &Path, there: bool) {
    for row in rows.iter().filter(|row| is_place(row)) {
        let Some((before, after)) = values(&row.id) else { continue };
        let (base, directory) = match row.setting.as_str() {
            "log_bin" | "relay_log" => (before, home.join(after).parent().expect("a parent").to_path_buf()),
            "aria_log_dir_path" => ("aria_log", home.join(after)),
            // The WAL of MyRocks is flushed when it stops.
            "rocksdb_wal_dir" => ("\0", home.join(after)),
            _ => ("ib_logfile", home.join(after)),
        };
        std::fs::create_dir_all(&directory).expect("make a directory");
        let (from, to) = if there { (data, directory.as_path()) } else { (directory.as_path(), data) };
        for entry in std::fs::read_dir(from).expect("list it").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(base) || (base == "ib_logfile" && name == "#innodb_redo") {
                // The places could be on different file systems; here they are on the same one.
                std::fs::rename(entry.path(), to.join(&name)).expect("move it");
                if Path::new(&name).extension().is_some_and(|extension| extension == "index") {
                    rename_places(&to.join(&name), to);
                }
            }
        }
    }
}

/// Gives the files that an index names their new places.
fn rename_places(index: &Path, directory: &Path) {
    let text = std::fs::read_to_string(index).expect("read the index");
    let named = |line: &str| {
        let file = Path::new(line).file_name().expect("a name").to_owned();
        directory.join(file).display().to_string() + "\n"
    };
    std::fs::write(index, text.lines().map(named).collect::<String>()).expect("write the index");
}

/// Returns the vendor's default for a version: `O_DIRECT (fsync before 10.6)`.
fn default_of<'a>(row: &'a Advice, number: &str) -> &'a str {
    let (default, older) = row.default.split_once(" (").unwrap_or((&row.default, ""));
    match older.trim_end_matches(')').split_once(" before ") {
        Some((older, first)) if numbers(number) < numbers(first) => older,
        _ => default,
    }
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// Checks that a setting has a value.
fn check(server: &Server, row: &Advice, value: &str) {
    let now = shown(server, row);
    assert!(is_same(row, &now, value), "{}: {} is {now}, not {value}", server.version.name(), row.setting);
}

fn eventually_is(server: &Server, row: &Advice, value: &str) {
    crate::support::eventually(&row.setting, WAIT_TIMEOUT, || {
        is_same(row, &shown(server, row), value).then_some(())
    });
}

fn shown(server: &Server, row: &Advice) -> String {
    let variable = match row.setting.as_str() {
        "log_bin" => "log_bin_basename",
        other => other,
    };
    match server.version.kind {
        Kind::PostgreSql => server.query(&format!("SHOW {variable}")),
        Kind::MariaDb | Kind::MySql => server.query(&format!("SELECT @@{variable}")),
    }
}

fn is_same(row: &Advice, now: &str, value: &str) -> bool {
    if is_place(row) {
        return now.trim_end_matches('/').ends_with(value.trim_start_matches("./").trim_end_matches('/'));
    }
    let plain = |text: &str| {
        let bare = text.replace(' ', "");
        match bare.to_ascii_lowercase().as_str() {
            "on" | "true" => "1".to_owned(),
            "off" | "false" => "0".to_owned(),
            other => bytes(other).map_or_else(|| other.to_owned(), |bytes| bytes.to_string()),
        }
    };
    plain(now) == plain(value)
}

/// Returns a size in bytes, with or without a unit.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// The options of a program that embeds `RocksDB`: before, and as offered.
const ROCKSDB: [(&str, &str, &str); 9] = [
    ("use_direct_io_for_flush_and_compaction", "false", "true"),
    ("use_direct_reads", "false", "true"),
    ("bytes_per_sync", "0", "1048576"),
    ("wal_bytes_per_sync", "0", "524288"),
    ("recycle_log_file_num", "4", "0"),
    ("max_total_wal_size", "0", "268435456"),
    ("write_buffer_size", "1073741824", "67108864"),
    ("avoid_flush_during_shutdown", "true", "false"),
    ("wal_dir", "", "wal"),
];

#[test]
fn advice_is_accepted_and_taken_back_by_rocksdb() {
    let _alone = alone();
    if !can_run("the doctor's advice on RocksDB", &["db_bench", "fincore"]) {
        return;
    }
    let rows: Vec<&Advice> = TABLE.iter().filter(|row| row.product == Product::RocksDb).collect();
    let mut tried: Vec<&str> = ROCKSDB.iter().map(|(option, _, _)| *option).collect();
    let mut named: Vec<&str> = rows.iter().map(|row| row.setting.as_str()).collect();
    tried.sort_unstable();
    named.sort_unstable();
    assert_eq!(tried, named);
    let scratch = scratch();
    let database = scratch.path().join("database");
    // In its default recovery mode it recycles no log, whatever the setting.
    let in_force = |values: &[(&str, String)]| {
        let of = |family: bool| {
            let own = values.iter().filter(|(option, _)| (*option == "write_buffer_size") == family);
            own.map(|(option, value)| format!("  {option}={value}\n")).collect::<Vec<_>>().concat()
        };
        let file = scratch.path().join("options.ini");
        let text = format!(
            "[Version]\n  rocksdb_version=7.8.3\n  options_file_version=1.1\n[DBOptions]\n  create_if_missing=true\n  \
             wal_recovery_mode=kSkipAnyCorruptedRecords\n{}\
             [CFOptions \"default\"]\n  compression=kNoCompression\n{}[TableOptions/BlockBasedTable \"default\"]\n",
            of(false),
            of(true)
        );
        std::fs::write(&file, text).expect("write options");
        let mut bench = Command::new("db_bench");
        bench.args(["--benchmarks=fillrandom,flush", "--num=20000", "--value_size=1000"]);
        bench.arg(format!("--options_file={}", file.display())).arg(format!("--db={}", database.display()));
        let output = bench.output().expect("run db_bench");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let newest = newest_options(&database);
        ROCKSDB.map(|(option, _, _)| {
            let value = newest.lines().find_map(|line| line.trim().strip_prefix(&format!("{option}=")));
            // The option file records the WAL's directory if it is not the database's own.
            value.map(|value| value.trim_end_matches('/').to_owned()).unwrap_or_default()
        })
    };
    let place = |option: &str, value: &str| match (option, value) {
        ("wal_dir", "wal") => database.join(value).display().to_string(),
        _ => value.to_owned(),
    };
    let before = ROCKSDB.map(|(option, before, _)| (option, place(option, before)));
    assert_eq!(
        in_force(&before).each_ref().map(String::as_str),
        before.each_ref().map(|(_, value)| value.as_str())
    );
    let offered = ROCKSDB.map(|(option, _, offered)| (option, place(option, offered)));
    // Each run creates its database again.
    assert_eq!(
        in_force(&offered).each_ref().map(String::as_str),
        offered.each_ref().map(|(_, value)| value.as_str())
    );
    let tables: Vec<_> = std::fs::read_dir(&database)
        .expect("list it")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "sst"))
        .collect();
    assert!(!tables.is_empty());
    assert_eq!(crate::support::resident_bytes(&tables), 0, "direct output leaves nothing resident");
    let defaults = in_force(&[]);
    for ((option, _, _), value) in ROCKSDB.iter().zip(&defaults) {
        let row = rows.iter().find(|row| row.setting == *option).expect("a row");
        let expected = bytes(&row.default).map_or_else(|| row.default.clone(), |bytes| bytes.to_string());
        assert!(*option == "wal_dir" || *value == expected, "{option} is {value} by default, not {expected}");
    }
    let text = newest_options(&database);
    let version =
        text.lines().find_map(|line| line.trim().strip_prefix("rocksdb_version=")).expect("a version");
    println!("| RocksDB {version} | Debian | {} | accepted, in force, taken back |", rows.len());
}

fn newest_options(database: &Path) -> String {
    let files = std::fs::read_dir(database).expect("list it").flatten().map(|entry| entry.path());
    let mut options: Vec<_> = files
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("OPTIONS-")))
        .collect();
    options.sort();
    std::fs::read_to_string(options.pop().expect("an options file")).expect("read it")
}
