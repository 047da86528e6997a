//! Tests of the built-in profiles on files of real servers, and of refused profiles.

use super::*;

fn error_of(text: &str) -> String {
    Profile::parse(text, Path::new("p.toml")).unwrap_err().to_string()
}

#[test]
fn built_in_profiles_are_complete() {
    let profiles = Profile::built_in();
    let names: Vec<_> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    let listed: Vec<_> = BUILT_IN_PROFILES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, listed, "a profile's file is called after it");
    assert_eq!(names.last(), Some(&"generic"), "specific profiles come before it");
    let mut files: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/profiles"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected: Vec<String> = names.iter().map(|name| format!("{name}.toml")).collect();
    files.sort_unstable();
    expected.sort_unstable();
    assert_eq!(files, expected, "every profile is listed");
    for profile in &profiles {
        assert_eq!(profile.can_be_found(), profile.name != "generic", "{} is found by itself", profile.name);
    }
}

#[test]
fn log_files_of_real_servers_are_distinguished() {
    let profiles = Profile::built_in();
    let class = |profile: &str, path: &str| {
        let profile = find_profile(&profiles, profile).unwrap();
        profile.log_of(Path::new(path)).map(|(index, _)| profile.logs[index].class)
    };
    assert_eq!(class("mysql", "/d/#innodb_redo/#ib_redo12"), Some(FileClass::Redo));
    assert_eq!(class("mysql", "/d/#innodb_redo/#ib_redo13_tmp"), Some(FileClass::Redo));
    assert_eq!(class("mysql", "/d/binlog.000003"), Some(FileClass::Binlog));
    assert_eq!(class("mysql", "/d/host-relay-bin.000003"), Some(FileClass::Relay));
    assert_eq!(class("mysql", "/d/t1.ibd"), None);
    assert_eq!(class("mysql", "/d/#ib_16384_0.dblwr"), None);
    assert_eq!(class("mariadb", "/d/ib_logfile0"), Some(FileClass::Redo));
    assert_eq!(class("mariadb", "/d/mysqld-bin.000001"), Some(FileClass::Binlog));
    assert_eq!(class("mariadb", "/d/mysqld-relay-bin.000001"), Some(FileClass::Relay));
    assert_eq!(class("postgresql", "/d/pg_wal/00000001000000000000000A"), Some(FileClass::Wal));
    assert_eq!(class("postgresql", "/d/pg_wal/00000001.history"), None);
    assert_eq!(class("rocksdb", "/d/000123.log"), Some(FileClass::Wal));
    assert_eq!(class("rocksdb", "/d/0000000000000007.raftlog"), Some(FileClass::Wal));
    assert_eq!(class("rocksdb", "/d/000124.sst"), None);
    assert_eq!(class("mongodb", "/d/journal/WiredTigerLog.0000000001"), Some(FileClass::Wal));
    let segment = "/d/wal/0000000000000001-0000000000002f4a.wal";
    assert_eq!(class("etcd", segment), Some(FileClass::Wal));
    assert_eq!(class("etcd", "/fast/raft/0000000000000001-0000000000002f4a.wal"), Some(FileClass::Wal));
    assert_eq!(class("etcd", "/d/wal/0000000000000001.wal"), None);
    assert_eq!(class("prometheus", "/d/wal/00000012"), Some(FileClass::Wal));
    assert_eq!(class("prometheus", "/d/wbl/00000012"), Some(FileClass::Wal));
    assert_eq!(class("prometheus", "/d/chunks_head/000012"), None);
    assert_eq!(class("nats", "/d/jetstream/$G/streams/S/msgs/12.blk"), Some(FileClass::Messages));
    assert_eq!(class("kafka", "/d/topic-0/00000000000000016382.log"), Some(FileClass::Messages));
    assert_eq!(class("kafka", "/d/topic-0/00000000000000016382.timeindex"), None);
    assert_eq!(class("kafka", "/d/topic-0/00000000000000016382.log.deleted"), None);
    assert_eq!(class("rabbitmq", "/d/quorum/rabbit@host/00000012.wal"), Some(FileClass::Wal));
    assert_eq!(
        class("rabbitmq", "/d/quorum/rabbit@host/2F_LOAD/00000003.segment"),
        Some(FileClass::Messages)
    );
    assert_eq!(
        class("rabbitmq", "/d/msg_stores/vhosts/X/msg_store_persistent/7.rdq"),
        Some(FileClass::Messages)
    );
    assert_eq!(class("rabbitmq", "/d/msg_stores/vhosts/X/queues/Q/7.qs"), Some(FileClass::Messages));
    assert_eq!(class("cassandra", "/d/commitlog/CommitLog-8-1732600000123.log"), Some(FileClass::Wal));
    assert_eq!(class("cassandra", "/d/commitlog/CommitLog-8-1732600000123_cdc.idx"), None);
    assert_eq!(class("scylladb", "/d/commitlog/CommitLog-4-1732600000123.log"), Some(FileClass::Wal));
    assert_eq!(class("opensearch", "/d/indices/U/0/translog/translog-12.tlog"), Some(FileClass::Wal));
    assert_eq!(class("opensearch", "/d/indices/U/0/translog/translog-12.ckp"), None);
    assert_eq!(class("clickhouse", "/d/coordination/log/changelog_1_100000.bin.zstd"), Some(FileClass::Wal));
    assert_eq!(class("clickhouse", "/d/store/a/b/all_1_1_0/data.bin"), None);
    assert_eq!(class("generic", "/d/binlog.000007"), Some(FileClass::Binlog));
    assert_eq!(class("generic", "/d/redo.003"), Some(FileClass::Redo));
    assert_eq!(class("generic", "/d/redo.control"), None);
}

#[test]
fn hexadecimal_numbers_order_the_segments_of_etcd() {
    let profiles = Profile::built_in();
    let etcd = find_profile(&profiles, "etcd").unwrap();
    let sequence = |name: &str| {
        let path = Path::new("/d/wal").join(name);
        let (log, matched) = etcd.log_of(&path).unwrap();
        (log, matched.stem().concat(), matched.number.sequence(None))
    };
    let first = sequence("000000000000000f-0000000000002f4a.wal");
    let next = sequence("0000000000000010-00000000000101c3.wal");
    assert_eq!((first.0, &first.1, first.2 + 1), (next.0, &next.1, next.2), "neighbours in one log");
}

#[test]
fn all_files_of_real_servers_have_their_class() {
    use FileClass::{Binlog, Data, Redo, Temp, Text, Wal};
    let profiles = Profile::built_in();
    let class = |profile: &str, path: &str| {
        find_profile(&profiles, profile).unwrap().class_of(&Path::new("/d").join(path))
    };
    for (profile, path, expected) in [
        ("mariadb", "ibdata1", Some(Data)),
        ("mariadb", "undo001", Some(Data)),
        ("mariadb", "shop/orders#P#p1.ibd", Some(Data)),
        ("mariadb", "shop/orders.MAD", Some(Data)),
        ("mariadb", "ibtmp1", Some(Temp)),
        ("mariadb", "shop/#sql-alter-2a-5.ibd", Some(Temp)),
        ("mariadb", "ib_logfile101", Some(Redo)),
        ("mariadb", "#rocksdb/000012.log", Some(Wal)),
        ("mariadb", "#rocksdb/000013.sst", Some(Data)),
        ("mariadb", "galera.cache", Some(Data)),
        ("mariadb", "server.cnf", None),
        ("mariadb", "shop/orders.frm", None),
        ("mysql", "#innodb_redo/#ib_redo9_tmp", Some(Redo)),
        ("mysql", "ib_logfile1", Some(Redo)),
        ("mysql", "#ib_16384_0.dblwr", Some(Data)),
        ("mysql", "#ib_16384_1.bdblwr", Some(Data)),
        ("mysql", "undo_001", Some(Data)),
        ("mysql", "mysql.ibd", Some(Data)),
        ("mysql", "#innodb_temp/temp_3.ibt", Some(Temp)),
        ("mysql", "#rocksdb/000013.sst", Some(Data)),
        ("postgresql", "base/5/2619", Some(Data)),
        ("postgresql", "base/5/16384.1", Some(Data)),
        ("postgresql", "base/5/16384_vm", Some(Data)),
        ("postgresql", "base/5/t3_16390", Some(Temp)),
        ("postgresql", "base/pgsql_tmp/pgsql_tmp812.0", Some(Temp)),
        ("postgresql", "base/pgsql_tmp/pgsql_tmp812.0.fileset/i1of8.p0.0", Some(Temp)),
        ("postgresql", "global/1262", Some(Data)),
        ("postgresql", "global/pg_control", None),
        ("postgresql", "ts/PG_15_202209061/5/16384", Some(Data)),
        ("postgresql", "ts/PG_15_202209061/pgsql_tmp/pgsql_tmp9.1", Some(Temp)),
        ("postgresql", "pg_wal/000000010000000000000001", Some(Wal)),
        ("postgresql", "pg_wal/xlogtemp.77", Some(Wal)),
        ("postgresql", "pg_xact/0000", Some(Data)),
        ("postgresql", "postgresql.conf", None),
        ("rocksdb", "000012.sst", Some(Data)),
        ("rocksdb", "000014.blob", Some(Data)),
        ("rocksdb", "000015.ldb", Some(Data)),
        ("rocksdb", "000016.dbtmp", Some(Temp)),
        ("rocksdb", "0000000000000001.raftlog.reserved", Some(Wal)),
        ("rocksdb", "LOG", Some(Text)),
        ("rocksdb", "LOG.old.1764406800000000", Some(Text)),
        ("rocksdb", "LOCK", None),
        ("mongodb", "mongod.log.2026-11-29T09-05-11", Some(Text)),
        ("mongodb", "journal/WiredTigerLog.0000000002", Some(Wal)),
        ("postgresql", "log/postgresql-2026-11-29_090511.csv", Some(Text)),
        ("postgresql", "log/postgresql-Mon.log", Some(Text)),
        ("mariadb", "host-slow.log", Some(Text)),
        ("mariadb", "server_audit.log.1", Some(Text)),
        ("mariadb", "host.err", Some(Text)),
        ("mariadb", "aria_log.00000001", Some(Redo)),
        ("mysql", "#rocksdb/000012.log", Some(Wal)),
        ("mysql", "#rocksdb/LOG", Some(Text)),
        ("mongodb", "collection-0-77.wt", Some(Data)),
        ("mongodb", "journal/WiredTigerPreplog.0000000002", Some(Wal)),
        ("mongodb", "_tmp/extsort.1", Some(Temp)),
        ("etcd", "member/wal/1.tmp", Some(Wal)),
        ("etcd", "raft/1.tmp", Some(Wal)),
        ("etcd", "member/snap/db", Some(Data)),
        ("etcd", "member/snap/0000000000000002-0000000000002711.snap", Some(Data)),
        ("etcd", "member/snap/0000000000002711.snap.db", Some(Data)),
        ("etcd", "member/wal", None),
        ("prometheus", "wal/checkpoint.00000007/00000000", Some(Wal)),
        ("prometheus", "chunks_head/000003", Some(Data)),
        ("prometheus", "01BKGV7JBM69T2G1BGBGM6KB12/chunks/000001", Some(Data)),
        ("prometheus", "01BKGV7JBM69T2G1BGBGM6KB12/index", Some(Data)),
        ("prometheus", "queries.active", None),
        ("nats", "msgs/3.idx", Some(Data)),
        ("nats", "msgs/3.fss", Some(Data)),
        ("nats", "meta.inf", None),
        ("kafka", "topic-0/00000000000000000000.timeindex", Some(Data)),
        ("kafka", "topic-0/leader-epoch-checkpoint", None),
        ("rabbitmq", "quorum/rabbit@host/meta.dets", Some(Data)),
        ("rabbitmq", "msg_stores/vhosts/X/queues/Q/12.idx", Some(Data)),
        ("rabbitmq", "stream/S/00000000000000000000.index", Some(Data)),
        ("rabbitmq", "nodes_running_at_shutdown", None),
        ("cassandra", "data/load/load-5a1/nb-12-big-Data.db", Some(Data)),
        ("cassandra", "data/load/load-5a1/da-12-bti-Rows.db", Some(Data)),
        ("cassandra", "data/load/load-5a1/nb-12-big-TOC.txt", None),
        ("scylladb", "data/load/load-5a1/me-12-big-Data.db", Some(Data)),
        ("opensearch", "nodes/0/indices/U/0/index/_12.cfs", Some(Data)),
        ("opensearch", "nodes/0/indices/U/0/index/_12_Lucene90_0.dvd", Some(Data)),
        ("opensearch", "nodes/0/indices/U/0/index/segments_7", Some(Data)),
        ("opensearch", "nodes/0/indices/U/0/index/_4_bkd_0.tmp", Some(Temp)),
        ("opensearch", "nodes/0/indices/U/0/index/write.lock", None),
        ("clickhouse", "data/default/load/all_1_1_0/value.bin", Some(Data)),
        ("clickhouse", "store/5a1/5a1f/all_1_1_0/data.cmrk4", Some(Data)),
        ("clickhouse", "store/5a1/5a1f/all_1_1_0/primary.cidx", Some(Data)),
        ("clickhouse", "store/5a1/5a1f/tmp_merge_all_1_2_1/data.bin", Some(Temp)),
        ("clickhouse", "store/5a1/5a1f/all_1_1_0/checksums.txt", None),
        ("generic", "x/000012.sst", Some(Data)),
        ("generic", "binlog.000003", Some(Binlog)),
    ] {
        assert_eq!(class(profile, path), expected, "{profile}: {path}");
    }
}

#[test]
fn relay_and_binary_logs_are_not_text_logs_for_any_host_name() {
    use FileClass::{Binlog, Relay, Text};
    let profiles = Profile::built_in();
    for profile in ["mariadb", "mysql"].map(|name| find_profile(&profiles, name).unwrap()) {
        for (name, expected) in [
            ("general.log", Text),
            ("slow.log", Text),
            ("host-slow.log", Text),
            ("server_audit.log", Text),
            ("slow.log.1", Text),
            ("slow.log-20261129", Text),
            ("host.err", Text),
            ("host.err.1", Text),
            ("db1.logistics.example-relay-bin.000002", Relay),
            ("db1.log.example-relay-bin-channel1.000002", Relay),
            ("received-relay.000001", Relay),
            ("a.logs-bin.000001", Binlog),
            ("db1.errands.example-bin.000001", Binlog),
            ("binlog.000001", Binlog),
        ] {
            let path = Path::new("/d").join(name);
            let (log, _) = profile.log_of(&path).unwrap();
            assert_eq!(profile.logs[log].class, expected, "{}: {name}", profile.name);
            assert_eq!(profile.class_of(&path), Some(expected), "{}: {name}", profile.name);
        }
    }
}

#[test]
fn files_that_readers_return_to_stay_by_default() {
    let profiles = Profile::built_in();
    for name in ["nats", "rabbitmq"] {
        let profile = profiles.iter().find(|profile| profile.name == name).unwrap();
        let mut messages = profile.logs.iter().filter(|log| log.class == FileClass::Messages);
        assert!(messages.all(|log| log.rule == Rule::Keep), "{name}");
    }
    // Two or three full files of 32 MiB, for readers that copy them then.
    let cassandra = profiles.iter().find(|profile| profile.name == "cassandra").unwrap();
    assert!(matches!(cassandra.logs[0].rule, Rule::Budget { bytes, .. } if bytes == 128 << 20));
    // The same for everything that was not tested.
    for name in ["scylladb", "clickhouse"] {
        let profile = profiles.iter().find(|profile| profile.name == name).unwrap();
        assert!(profile.logs.iter().all(|log| log.rule == Rule::Keep), "{name}");
    }
}

#[test]
fn output_of_compactions_is_bulk_output() {
    for profile in Profile::built_in() {
        let bulk: Vec<&str> = profile
            .files
            .iter()
            .filter(|file| file.bulk == Some(BulkPages::Keep))
            .map(|file| file.files.as_str())
            .collect();
        let expected: &[&str] = match profile.name.as_str() {
            "mariadb" | "mysql" => &["#rocksdb/*.sst"],
            "rocksdb" => &["*.sst", "*.ldb", "*.blob"],
            "generic" => &["*.sst"],
            "opensearch" => &["index/_*.*"],
            "cassandra" => {
                assert_eq!(bulk.len(), profile.files.len(), "all parts of tables");
                continue;
            }
            _ => &[],
        };
        assert_eq!(bulk, expected, "{}", profile.name);
    }
}

#[test]
fn whole_pages_means_kernel_pages() {
    for profile in Profile::built_in() {
        for log in &profile.logs {
            let name = format!("{}: {}", profile.name, log.files.as_str());
            let whole = RewriteSource::Known(RewriteKind::WholePages);
            if log.rewrite == whole {
                assert!(log.block.is_some(), "{name}: blocks of which size?");
                assert_eq!(log.rewrite_on(4096), whole, "{name}");
                assert_eq!(log.rewrite_on(65536), RewriteSource::Known(RewriteKind::SubPages), "{name}");
            } else {
                assert_eq!(log.rewrite_on(65536), log.rewrite, "{name}");
            }
        }
    }
}

#[test]
fn an_indexed_log_needs_its_index() {
    let profiles = Profile::built_in();
    let mariadb = find_profile(&profiles, "mariadb").unwrap();
    let class =
        |path: &str, index: &str| mariadb.class_beside(Path::new(path), |beside| beside == Path::new(index));
    assert_eq!(class("/d/bin.000001", "/d/bin.index"), Some(FileClass::Binlog));
    assert_eq!(class("/d/slow.1", "/d/bin.index"), None);
}

#[test]
fn a_file_leads_to_the_directory_of_its_database() {
    let profiles = Profile::built_in();
    let base = |profile: &str, path: &'static str| {
        find_profile(&profiles, profile).unwrap().base_of(Path::new(path))
    };
    assert_eq!(base("postgresql", "/d/base/5/2619"), Some(Path::new("/d")));
    assert_eq!(base("postgresql", "/ts/PG_15_1/5/7"), Some(Path::new("/ts")));
    assert_eq!(base("mariadb", "/d/#rocksdb/000012.sst"), Some(Path::new("/d")));
    assert_eq!(base("mariadb", "/d/shop/t.ibd"), Some(Path::new("/d/shop")));
    assert_eq!(base("mariadb", "/d/my.cnf"), None);
    assert_eq!(base("cassandra", "/d/data/shop/orders-5a1/nb-1-big-Data.db"), Some(Path::new("/d/data")));
}

#[test]
fn errors_point_at_line_and_key() {
    let error = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiels = \"a\"\nrule = \"keep\"\n");
    assert!(error.contains("line 4") && error.contains("fiels"), "{error}");
    let error = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"{q}\"\nrule = \"keep\"\n");
    assert!(error.contains("line 4") && error.contains("in braces"), "{error}");
    let error = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"a\"\nrule = \"burn\"\n");
    assert!(error.contains("line 5") && error.contains("release-behind-writer"), "{error}");
    let error = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"a\"\nrule = \"budget\"\n");
    assert!(error.contains("needs the key \"budget\""), "{error}");
    let error =
        error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"a\"\nrule = \"keep\"\nslack = \"4M\"\n");
    assert!(error.contains("\"slack\" has no meaning"), "{error}");
    let wide = error_of("name = \"x\"\n[[log]]\nclass = \"wal\"\nfiles = \"a/*/{n}\"\nrule = \"keep\"\n");
    assert!(wide.contains("one plain directory"), "{wide}");
    let rule = error_of("name = \"x\"\n[[file]]\nclass = \"data\"\nfiles = \"a\"\nrule = \"keep\"\n");
    assert!(rule.contains("line 5") && rule.contains("rule"), "{rule}");
    let bulk = error_of("name = \"x\"\n[[file]]\nclass = \"data\"\nfiles = \"a\"\nbulk = \"drop\"\n");
    assert!(bulk.contains("line 5") && bulk.contains("`keep` or `release`"), "{bulk}");
    assert!(error_of("name = \"x\"\n").contains("nothing to watch"));
}

#[test]
fn an_unknown_name_lists_the_known() {
    let error = find_profile(&Profile::built_in(), "oracle").unwrap_err().to_string();
    assert!(error.contains("mariadb, mysql, postgresql"), "{error}");
}
