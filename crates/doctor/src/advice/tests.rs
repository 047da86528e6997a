use super::*;
use crate::FixKind;

const GOALS: [Goal; 6] = [
    Goal::LogsOutOfCache,
    Goal::LessPageCache,
    Goal::NoMixedIo,
    Goal::SteadyWriteback,
    Goal::WarmStart,
    Goal::ShortRecovery,
];

fn settings(engine: Engine, pairs: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::new(engine);
    for (name, value) in pairs {
        let from = Origin::File { path: "/etc/my.cnf".into(), line: 7 };
        settings.add(name, *value, from);
    }
    settings
}

fn acts(goal: Goal, settings: &Settings) -> Vec<String> {
    fixes(goal, settings).into_iter().filter(|fix| fix.kind == FixKind::Setting).map(|fix| fix.act).collect()
}

#[test]
fn what_is_set_so_already_is_left_out() {
    let good = settings(
        Engine::RocksDb,
        &[
            ("use_direct_io_for_flush_and_compaction", "true"),
            ("bytes_per_sync", "1048576"),
            ("wal_bytes_per_sync", "524288"),
            ("recycle_log_file_num", "0"),
        ],
    );
    assert_eq!(acts(Goal::SteadyWriteback, &good), [""; 0]);
    assert_eq!(acts(Goal::LogsOutOfCache, &good), [""; 0]);
    let bad = settings(Engine::RocksDb, &[("bytes_per_sync", "0"), ("recycle_log_file_num", "4")]);
    assert_eq!(
        acts(Goal::SteadyWriteback, &bad),
        [
            "use_direct_io_for_flush_and_compaction=true",
            "bytes_per_sync=1048576",
            "wal_bytes_per_sync=524288"
        ]
    );
    // The later two stand in for the first.
    let instead = |settings: &Settings| {
        let fixes = fixes(Goal::SteadyWriteback, settings);
        fixes.iter().map(|fix| fix.note.starts_with("or, if direct I/O can't be: ")).collect::<Vec<_>>()
    };
    assert_eq!(instead(&bad), [false, true, true]);
    let direct = settings(Engine::RocksDb, &[("use_direct_io_for_flush_and_compaction", "true")]);
    assert_eq!(instead(&direct), [false]);
    assert_eq!(acts(Goal::LogsOutOfCache, &bad), ["recycle_log_file_num=0"]);
}

#[test]
fn each_engine_has_its_own_words() {
    let mut myrocks = settings(Engine::MariaDb, &[("rocksdb_bytes_per_sync", "0")]);
    myrocks.myrocks = true;
    assert_eq!(
        acts(Goal::SteadyWriteback, &myrocks),
        [
            "rocksdb_use_direct_io_for_flush_and_compaction=ON",
            "rocksdb_bytes_per_sync=1048576",
            "rocksdb_wal_bytes_per_sync=524288"
        ]
    );
    let note = &fixes(Goal::SteadyWriteback, &myrocks)[1].note;
    let place = "or, if direct I/O can't be: in /etc/my.cnf, line 7, where it is 0; SET GLOBAL";
    assert!(note.starts_with(place), "{note}");
    let tikv = settings(Engine::TiKv, &[("rocksdb.bytes-per-sync", "0KB")]);
    assert_eq!(
        acts(Goal::SteadyWriteback, &tikv),
        [
            "[rocksdb] use-direct-io-for-flush-and-compaction = true",
            "[rocksdb] bytes-per-sync = \"1MB\"",
            "[rocksdb] wal-bytes-per-sync = \"512KB\""
        ]
    );
    let postgresql = settings(Engine::PostgreSql, &[("checkpoint_flush_after", "0")]);
    assert_eq!(
        acts(Goal::SteadyWriteback, &postgresql),
        ["checkpoint_flush_after = '256kB'", "backend_flush_after = '256kB'"]
    );
}

#[test]
fn innodb_shows_what_makes_it_buffered() {
    let buffered = settings(Engine::MariaDb, &[("innodb_flush_method", "fsync")]);
    assert_eq!(acts(Goal::LessPageCache, &buffered), ["innodb_flush_method=O_DIRECT"]);
    let direct = settings(Engine::MariaDb, &[("innodb_flush_method", "o_direct_no_fsync")]);
    assert_eq!(acts(Goal::LessPageCache, &direct), [""; 0]);
    let redo = settings(Engine::MariaDb, &[("innodb_log_file_buffering", "1")]);
    assert_eq!(acts(Goal::LogsOutOfCache, &redo), ["innodb_log_file_buffering=OFF"]);
    let commit = settings(Engine::MariaDb, &[("innodb_flush_log_at_trx_commit", "2")]);
    assert_eq!(acts(Goal::LogsOutOfCache, &commit), ["innodb_flush_log_at_trx_commit=1"]);
    // MySQL has no such setting.
    let mysql = settings(Engine::MySql, &[("innodb_flush_log_at_trx_commit", "2")]);
    assert_eq!(acts(Goal::LogsOutOfCache, &mysql), [""; 0]);
    assert_eq!(fixes(Goal::LogsOutOfCache, &mysql).len(), 1);
}

#[test]
fn libraries_that_are_loaded_stay() {
    let some = settings(Engine::PostgreSql, &[("shared_preload_libraries", "pg_stat_statements")]);
    assert_eq!(acts(Goal::WarmStart, &some), ["shared_preload_libraries = 'pg_stat_statements,pg_prewarm'"]);
    let there = settings(Engine::PostgreSql, &[("shared_preload_libraries", "pg_prewarm")]);
    assert_eq!(acts(Goal::WarmStart, &there), [""; 0]);
}

#[test]
fn what_a_server_keeps_itself_is_set_by_its_own_statement() {
    let kept = |engine, file: &str, name: &str, value: &str| {
        let mut settings = settings(engine, &[(name, "1")]);
        settings.add(name, value, Origin::File { path: format!("/d/{file}").into(), line: 3 });
        settings
    };
    let postgresql = |name, value| kept(Engine::PostgreSql, "postgresql.auto.conf", name, value);
    let mysql = |name, value| kept(Engine::MySql, "mysqld-auto.cnf", name, value);
    let mut redo = mysql("innodb_redo_log_capacity", "8589934592");
    redo.redo_directory = true;
    for (kind, settings, act, effect) in [
        (
            Goal::ShortRecovery,
            postgresql("max_wal_size", "8GB"),
            "ALTER SYSTEM SET max_wal_size = '512MB'",
            "; SELECT pg_reload_conf() puts it in force; ",
        ),
        (
            Goal::WarmStart,
            postgresql("shared_preload_libraries", "a, b"),
            "ALTER SYSTEM SET shared_preload_libraries = 'a', 'b', 'pg_prewarm'",
            "; needs a restart; ",
        ),
        (Goal::ShortRecovery, redo, "SET PERSIST innodb_redo_log_capacity = 536870912", "; at once, "),
        (
            Goal::LessPageCache,
            mysql("innodb_flush_method", "fsync"),
            "SET PERSIST_ONLY innodb_flush_method = 'O_DIRECT'",
            "; needs a restart; ",
        ),
        (
            Goal::WarmStart,
            mysql("innodb_buffer_pool_dump_at_shutdown", "OFF"),
            "SET PERSIST_ONLY innodb_buffer_pool_dump_at_shutdown = 'ON'",
            "; needs a restart; ",
        ),
    ] {
        let fixes = fixes(kind, &settings);
        assert_eq!(fixes[0].act, act);
        assert!(fixes[0].note.contains(", line 3, which the server writes itself; "), "{fixes:?}");
        assert!(fixes[0].note.contains(effect), "{fixes:?}");
    }
    // The command line counts more.
    let mut settings = postgresql("max_wal_size", "8GB");
    settings.add("max_wal_size", "9GB", Origin::CommandLine);
    assert_eq!(acts(Goal::ShortRecovery, &settings), ["max_wal_size = '512MB'"]);
}

#[test]
fn every_fix_says_where_it_goes() {
    for engine in [
        Engine::MariaDb,
        Engine::MySql,
        Engine::PostgreSql,
        Engine::RocksDb,
        Engine::TiKv,
        Engine::MongoDb,
        Engine::Other,
    ] {
        let mut empty = Settings::new(engine);
        for myrocks in [false, true] {
            empty.myrocks = myrocks && matches!(engine, Engine::MariaDb | Engine::MySql);
            for fix in GOALS.into_iter().flat_map(|goal| fixes(goal, &empty)) {
                assert!(!fix.act.is_empty());
                assert!(fix.kind == FixKind::Advice || fix.note.contains(';'), "{fix:?}");
            }
        }
    }
}

#[test]
fn only_options_that_the_program_has_are_named() {
    // As `mariadbd --verbose --help --plugin-load-add=ha_rocksdb` of 10.11 lists them, of those that are named here.
    let known = [
        "rocksdb_bytes_per_sync",
        "rocksdb_max_total_wal_size",
        "rocksdb_use_direct_io_for_flush_and_compaction",
        "rocksdb_use_direct_reads",
        "rocksdb_wal_bytes_per_sync",
        "rocksdb_wal_dir",
    ];
    let pairs = [
        ("default.write_buffer_size", "1073741824"),
        ("avoid_flush_during_shutdown", "true"),
        ("recycle_log_file_num", "4"),
        ("use_direct_reads", "true"),
        ("use_direct_io_for_flush_and_compaction", "false"),
    ];
    let mut myrocks = settings(Engine::MariaDb, &[("innodb_log_file_size", "96M")]);
    myrocks.myrocks = true;
    for (name, value) in pairs {
        let prefixed = match name.split_once('.') {
            Some((family, option)) => format!("{family}.rocksdb_{option}"),
            None => format!("rocksdb_{name}"),
        };
        myrocks.add(&prefixed, value, Origin::CommandLine);
    }
    let named: Vec<String> = GOALS.into_iter().flat_map(|goal| acts(goal, &myrocks)).collect();
    assert!(!named.is_empty());
    for act in named {
        let (name, _) = act.split_once('=').unwrap();
        assert!(known.contains(&name), "{act}");
    }
    assert!(
        fixes(Goal::ShortRecovery, &myrocks)
            .iter()
            .any(|fix| fix.kind == FixKind::Advice && fix.act.contains("rocksdb_default_cf_options")),
        "{:?}",
        fixes(Goal::ShortRecovery, &myrocks)
    );
    let tikv = settings(Engine::TiKv, &pairs);
    assert_eq!(acts(Goal::LogsOutOfCache, &tikv), [""; 0]);
    assert_eq!(
        acts(Goal::ShortRecovery, &tikv),
        ["[rocksdb] max-total-wal-size = \"256MB\"", "[rocksdb.defaultcf] write-buffer-size = \"64MB\""]
    );
    assert_eq!(
        acts(Goal::ShortRecovery, &settings(Engine::RocksDb, &pairs)),
        ["max_total_wal_size=268435456", "write_buffer_size=67108864", "avoid_flush_during_shutdown=false"]
    );
}

#[test]
fn a_recovery_is_bounded_by_what_the_version_has() {
    let recovery = |settings: &Settings| fixes(Goal::ShortRecovery, settings);
    let large = [("innodb_log_file_size", "2G"), ("innodb_redo_log_capacity", "2G")];
    let mut mysql = settings(Engine::MySql, &large);
    assert_eq!(recovery(&mysql)[0].act, "innodb_log_file_size=256M");
    assert!(recovery(&mysql)[0].note.contains("needs a restart"));
    mysql.redo_directory = true;
    assert_eq!(recovery(&mysql)[0].act, "innodb_redo_log_capacity=512M");
    let mariadb = settings(Engine::MariaDb, &large);
    assert_eq!(recovery(&mariadb).len(), 1);
    assert_eq!(recovery(&mariadb)[0].act, "innodb_log_file_size=512M");
    let note = &recovery(&mariadb)[0].note;
    assert!(note.contains("MariaDB 10.9 and later; before, it needs a restart"), "{note}");
    assert_eq!(recovery(&settings(Engine::MariaDb, &[("innodb_log_file_size", "512M")])), []);
}
