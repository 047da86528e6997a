use super::*;
use crate::settings::SettingOrigin;
use crate::{Confidence, Fix, FixKind, Restart};

const GOALS: [Goal; 8] = [
    Goal::LogsOutOfCache,
    Goal::LessPageCache,
    Goal::LessDoubleCaching,
    Goal::NoMixedIo,
    Goal::SteadyWriteback,
    Goal::WarmStart,
    Goal::LogOnItsOwnDisk,
    Goal::ShortRecovery,
];

fn settings(engine: Engine, pairs: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::new(engine);
    for (name, value) in pairs {
        let from = SettingOrigin::File { path: "/etc/my.cnf".into(), line: 7 };
        settings.add(name, *value, from);
    }
    settings
}

fn fixes(goal: Goal, settings: &Settings) -> Vec<Fix> {
    advise(goal, settings).fixes
}

fn acts(goal: Goal, settings: &Settings) -> Vec<String> {
    fixes(goal, settings).into_iter().filter(|fix| fix.kind == FixKind::Setting).map(|fix| fix.act).collect()
}

#[test]
fn wal_that_a_standby_may_need_is_kept() {
    let keeps = [("wal_keep_size", "4GB"), ("max_wal_size", "16GB"), ("wal_level", "logical")];
    let advised = advise(Goal::LogsOutOfCache, &settings(Engine::PostgreSql, &keeps));
    assert_eq!(advised.fixes, []);
    assert!(advised.remarks[0].contains("pagekeeper guard releases it"), "{:?}", advised.remarks);
}

#[test]
fn a_recovery_is_not_shortened_without_a_target() {
    let large = [("max_wal_size", "2GB"), ("innodb_log_file_size", "2G"), ("checkpoint_timeout", "1h")];
    for engine in [Engine::PostgreSql, Engine::MariaDb, Engine::MySql, Engine::RocksDb, Engine::TiKv] {
        assert_eq!(acts(Goal::ShortRecovery, &settings(engine, &large)), [""; 0]);
    }
}

#[test]
fn settings_of_durability_are_left_alone() {
    for engine in [Engine::MariaDb, Engine::MySql] {
        let commit = settings(engine, &[("innodb_flush_log_at_trx_commit", "2")]);
        assert_eq!(fixes(Goal::LogsOutOfCache, &commit), []);
    }
    let commit = settings(Engine::MariaDb, &[("innodb_flush_log_at_trx_commit", "2")]);
    let remark = &advise(Goal::LogsOutOfCache, &commit).remarks[0];
    assert!(remark.contains("a choice of durability against speed"), "{remark}");
}

#[test]
fn no_setting_is_named_for_an_uncertain_engine() {
    let pairs = [("innodb_flush_method", "fsync"), ("innodb_log_file_buffering", "ON")];
    let mut either = settings(Engine::MariaDb, &pairs);
    either.engine_doubt = Some("it is one of two".to_owned());
    for goal in GOALS {
        let advised = advise(goal, &either);
        assert_eq!((advised.fixes.len(), advised.remarks.len()), (0, 1), "{goal:?}");
        assert_eq!(advised.remarks[0], "no setting is named: it is one of two");
    }
    assert_eq!(shorten(&either, 1 << 30).fixes, []);
}

#[test]
fn a_setting_is_not_offered_to_a_version_that_lacks_it() {
    let named = |version: Option<&str>, pairs| {
        let mut settings = settings(Engine::MariaDb, pairs);
        settings.version = version.map(str::to_owned);
        acts(Goal::LessPageCache, &settings).len() + acts(Goal::LogsOutOfCache, &settings).len()
    };
    let buffering: &[(&str, &str)] = &[("innodb_log_file_buffering", "ON")];
    assert_eq!(named(Some("10.11.14"), buffering), 1);
    assert_eq!(named(Some("10.6.21"), buffering), 0);
    assert_eq!(named(None, buffering), 1, "it is set, so the server has it");
    let method: &[(&str, &str)] = &[("innodb_flush_method", "fsync")];
    assert_eq!((named(None, method), named(Some("5.5.68"), method)), (1, 0));
}

#[test]
fn each_fix_has_its_reason_its_cost_and_its_undo() {
    let mut set = settings(Engine::MariaDb, &[("innodb_flush_method", "fsync")]);
    set.version = Some("10.11.14".to_owned());
    let fix = &fixes(Goal::LessPageCache, &set)[0];
    assert_eq!(fix.id, Some("mariadb-flush-method"));
    assert_eq!(fix.terms.evidence, "innodb_flush_method is fsync: /etc/my.cnf, line 7");
    assert_eq!((fix.terms.confidence, fix.terms.risk.restart), (Confidence::FromSettings, Restart::Database));
    assert_eq!(fix.terms.undo, "innodb_flush_method=fsync, and restart");
    let json = serde_json::to_value(fix).unwrap();
    assert_eq!(json["confidence"], "from-settings");
    assert_eq!(json["holds_for"]["product"], "MariaDB");
    assert_eq!(json["holds_for"]["versions"], "10.5 and later");
    assert_eq!(json["risk"]["restart"], "database");
    assert_eq!(json["risk"]["durability"], serde_json::Value::Null);
    assert!(json["source"].as_str().unwrap().starts_with("https://mariadb.com/"), "{json}");
    // A setting that is not known to be set is reverted by removing it.
    let fix = &fixes(Goal::SteadyWriteback, &Settings::new(Engine::RocksDb))[0];
    assert_eq!(fix.terms.undo, "remove it (the default is false), and restart");
    assert_eq!(fix.terms.confidence, Confidence::Estimated);
}

#[test]
fn settings_that_are_already_in_force_are_left_out() {
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
    // The last two replace the first.
    let instead = |settings: &Settings| {
        let fixes = fixes(Goal::SteadyWriteback, settings);
        fixes.iter().map(|fix| fix.does.starts_with("or, without direct I/O: ")).collect::<Vec<_>>()
    };
    assert_eq!(instead(&bad), [false, true, true]);
    let direct = settings(Engine::RocksDb, &[("use_direct_io_for_flush_and_compaction", "true")]);
    assert_eq!(instead(&direct), [false]);
    assert_eq!(acts(Goal::LogsOutOfCache, &bad), ["recycle_log_file_num=0"]);
}

#[test]
fn each_engine_has_its_own_setting_names() {
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
    let note = &fixes(Goal::SteadyWriteback, &myrocks)[1].does;
    let place = "or, without direct I/O: in /etc/my.cnf, line 7, where it is 0; SET GLOBAL";
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
    assert_eq!(acts(Goal::SteadyWriteback, &postgresql), ["checkpoint_flush_after = '256kB'"]);
}

#[test]
fn innodb_names_the_setting_that_makes_it_buffered() {
    let buffered = settings(Engine::MariaDb, &[("innodb_flush_method", "fsync")]);
    assert_eq!(acts(Goal::LessPageCache, &buffered), ["innodb_flush_method=O_DIRECT"]);
    let direct = settings(Engine::MariaDb, &[("innodb_flush_method", "o_direct_no_fsync")]);
    assert_eq!(acts(Goal::LessPageCache, &direct), [""; 0]);
    let redo = settings(Engine::MariaDb, &[("innodb_log_file_buffering", "1")]);
    assert_eq!(acts(Goal::LogsOutOfCache, &redo), ["innodb_log_file_buffering=OFF"]);
    // MySQL has no such setting.
    let mysql = settings(Engine::MySql, &[("innodb_log_file_buffering", "1")]);
    assert_eq!(acts(Goal::LogsOutOfCache, &mysql), [""; 0]);
}

#[test]
fn loaded_libraries_are_kept_in_the_fix() {
    let some = settings(Engine::PostgreSql, &[("shared_preload_libraries", "pg_stat_statements")]);
    assert_eq!(acts(Goal::WarmStart, &some), ["shared_preload_libraries = 'pg_stat_statements,pg_prewarm'"]);
    let there = settings(Engine::PostgreSql, &[("shared_preload_libraries", "pg_prewarm")]);
    assert_eq!(acts(Goal::WarmStart, &there), [""; 0]);
}

#[test]
fn persisted_settings_are_changed_by_the_servers_own_statement() {
    let kept = |engine, file: &str, name: &str, value: &str| {
        let mut settings = settings(engine, &[(name, "1")]);
        settings.add(name, value, SettingOrigin::File { path: format!("/d/{file}").into(), line: 3 });
        settings
    };
    let postgresql = |name, value| kept(Engine::PostgreSql, "postgresql.auto.conf", name, value);
    let mysql = |name, value| kept(Engine::MySql, "mysqld-auto.cnf", name, value);
    for (kind, settings, act, effect) in [
        (
            Goal::SteadyWriteback,
            postgresql("checkpoint_flush_after", "0"),
            "ALTER SYSTEM SET checkpoint_flush_after = '256kB'",
            "; SELECT pg_reload_conf() puts it in force; ",
        ),
        (
            Goal::WarmStart,
            postgresql("shared_preload_libraries", "a, b"),
            "ALTER SYSTEM SET shared_preload_libraries = 'a', 'b', 'pg_prewarm'",
            "; needs a restart; ",
        ),
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
        assert!(fixes[0].does.contains(", line 3, which the server writes itself; "), "{fixes:?}");
        assert!(fixes[0].does.contains(effect), "{fixes:?}");
    }
    // The command line takes precedence.
    let mut settings = postgresql("checkpoint_flush_after", "0");
    settings.add("checkpoint_flush_after", "0", SettingOrigin::CommandLine);
    assert_eq!(acts(Goal::SteadyWriteback, &settings), ["checkpoint_flush_after = '256kB'"]);
    // A size is given in bytes there.
    let mut redo = mysql("innodb_redo_log_capacity", "8589934592");
    redo.redo_directory = true;
    redo.version = Some("8.0.36".to_owned());
    let fix = &shorten(&redo, 512 << 20).fixes[0];
    assert_eq!(fix.act, "SET PERSIST innodb_redo_log_capacity = 536870912");
    assert!(fix.does.contains("; at once, "), "{fix:?}");
}

#[test]
fn every_fix_names_its_file() {
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
                assert!(fix.kind == FixKind::Advice || fix.does.contains(';'), "{fix:?}");
                let terms = &fix.terms;
                for text in [&terms.undo, &terms.evidence, &terms.risk.costs, &terms.holds_for.versions] {
                    assert!(!text.is_empty(), "{fix:?}");
                }
            }
        }
    }
}

#[test]
fn only_options_that_the_program_has_are_named() {
    // The options named here, as listed by `mariadbd --verbose --help --plugin-load-add=ha_rocksdb`
    // of 10.11.
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
        myrocks.add(&prefixed, value, SettingOrigin::CommandLine);
    }
    let named: Vec<String> = GOALS.into_iter().flat_map(|goal| acts(goal, &myrocks)).collect();
    assert!(!named.is_empty());
    for act in named {
        let (name, _) = act.split_once('=').unwrap();
        assert!(known.contains(&name), "{act}");
    }
    let tikv = settings(Engine::TiKv, &pairs);
    assert_eq!(acts(Goal::LogsOutOfCache, &tikv), [""; 0]);
    // TiKV has no use-direct-reads.
    let mixed = [("rocksdb.use-direct-io-for-flush-and-compaction", "true"), ("use_direct_reads", "false")];
    let advised = advise(Goal::NoMixedIo, &settings(Engine::TiKv, &mixed));
    assert_eq!(advised.fixes, []);
    assert!(advised.remarks[0].starts_with("TiKV has no setting that makes its reads direct"), "{advised:?}");
}
