use std::collections::BTreeSet;
use std::path::Path;

use super::*;

/// Settings that durability, replication or recovery depend on, which no advice may concern.
const NEVER: [&str; 27] = [
    "innodb_flush_log_at_trx_commit",
    "innodb_flush_log_at_timeout",
    "innodb_doublewrite",
    "innodb_force_recovery",
    "sync_binlog",
    "sync_relay_log",
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "max_binlog_size",
    "relay_log_purge",
    "aria_checkpoint_interval",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "wal_sync_method",
    "wal_level",
    "wal_keep_size",
    "max_slot_wal_keep_size",
    "archive_mode",
    "archive_command",
    "hot_standby",
    "wal_init_zero",
    "sync",
    "disable_wal",
    "wal_recovery_mode",
    "wal_ttl_seconds",
    "enable_log_recycle",
];

#[test]
fn no_row_touches_durability_replication_or_recovery() {
    for row in TABLE.iter() {
        assert!(!NEVER.contains(&option_of(&row.setting).as_str()), "{}", row.id);
        // Settings of recovery may only move a log, or bound it for a target that the operator
        // gave.
        let for_recovery = [Goal::ShortRecovery, Goal::LogOnItsOwnDisk];
        assert!(
            row.recovery.is_none() || row.goals.iter().all(|goal| for_recovery.contains(goal)),
            "{}: for the page cache alone it would touch recovery",
            row.id
        );
    }
}

#[test]
fn no_value_is_below_the_vendors_default() {
    for row in TABLE.iter() {
        let documented = row.default.split(' ').next().unwrap_or_default();
        match (&row.why_not_default, &row.offer) {
            (None, Offer::Value(value)) => assert_eq!(value, documented, "{}", row.id),
            (None, Offer::Computed(how)) => {
                assert!(how.ends_with("at least the default"), "{}: {how}", row.id);
                assert!(row.default_bytes().is_some_and(|bytes| bytes > 0), "{}: {}", row.id, row.default);
            }
            (Some(why), Offer::Value(value)) => {
                assert!(!why.is_empty() && value != documented, "{}", row.id);
                // If both are sizes, the larger one is advised.
                if let (Some(value), Some(default)) = (bytes_of(value), bytes_of(documented)) {
                    assert!(value >= default, "{}", row.id);
                }
            }
            (Some(why), Offer::Computed(_)) => assert!(!why.is_empty(), "{}", row.id),
        }
    }
}

#[test]
fn every_row_is_complete() {
    assert_eq!(TABLE.len(), 49);
    let ids: BTreeSet<&str> = TABLE.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids.len(), TABLE.len(), "each id once");
    for row in TABLE.iter() {
        for text in [&row.id, &row.setting, &row.does, &row.costs] {
            assert!(!text.is_empty(), "{row:?}");
        }
        assert!(!row.goals.is_empty(), "{}", row.id);
        let since = parts(row.first());
        assert!(since.is_some(), "{}", row.id);
        assert!(row.before.as_deref().is_none_or(|before| parts(before) > since), "{}", row.id);
        assert!(
            row.since.is_none() || since > parts(row.product.oldest()),
            "{}: `since` says nothing",
            row.id
        );
        assert!(row.offer != Offer::Value(String::new()), "{}", row.id);
        let vendor = match row.product {
            Product::MariaDb | Product::MyRocks => "https://mariadb.com/kb/",
            Product::MySql => "https://dev.mysql.com/doc/",
            Product::PostgreSql => "https://www.postgresql.org/docs/",
            Product::RocksDb => "https://github.com/facebook/rocksdb/",
            Product::TiKv => "https://docs.pingcap.com/tidb/",
        };
        assert!(row.source.starts_with(vendor), "{}: {}", row.id, row.source);
    }
}

#[test]
fn an_incomplete_row_is_refused() {
    let text = TABLE_TEXTS[1];
    for (part, instead, error) in [
        ("like = \"postgresql-checkpoint-flush-after\"", "like = \"no-such-row\"", "missing field `product`"),
        ("costs = ", "cost = ", "unknown field `cost`"),
        ("[\"warm-start\"]", "[\"warm\"]", "unknown variant `warm`"),
    ] {
        assert!(text.contains(part), "{part}");
        let refused = parsed(&text.replacen(part, instead, 1)).unwrap_err().to_string();
        assert!(refused.contains(error), "{refused}");
    }
}

#[test]
fn tikv_is_given_no_key_that_it_does_not_have() {
    // The keys named here, from its documentation (tikv-configuration-file).
    let documented = [
        "raft-engine.dir",
        "rocksdb.bytes-per-sync",
        "rocksdb.defaultcf.write-buffer-size",
        "rocksdb.max-total-wal-size",
        "rocksdb.use-direct-io-for-flush-and-compaction",
        "rocksdb.wal-bytes-per-sync",
        "rocksdb.wal-dir",
    ];
    let of_tikv = TABLE.iter().filter(|row| row.product == Product::TiKv);
    let mut named: Vec<&str> = of_tikv.map(|row| row.setting.as_str()).collect();
    named.sort_unstable();
    assert_eq!(named, documented);
}

/// Returns a row as the book shows it.
fn documented(row: &Advice) -> String {
    let offer = match &row.offer {
        Offer::Value(value) => format!("`{value}`"),
        Offer::Computed(how) => how.clone(),
    };
    let restart = match row.effect {
        Effect::Restart => "restart",
        Effect::Reload => "reload",
        Effect::SetGlobal | Effect::SetDbOptions => "at once",
    };
    let recovery = row.recovery.as_ref().map(|what| format!("; recovery: {what}")).unwrap_or_default();
    format!(
        "| {} {} | [`{}`]({}) | {offer} | {} | {restart} | {}{recovery} |",
        row.product.name(),
        row.versions(),
        row.setting,
        row.source,
        row.shown_default(),
        row.costs
    )
}

#[test]
fn the_book_shows_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/reference/doctor.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let shown: Vec<&str> = page
        .lines()
        .skip_while(|line| !line.starts_with("| holds for | setting |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let expected: Vec<String> = TABLE.iter().map(documented).collect();
    assert!(shown == expected, "the table of advice in the book should be\n{}\n", expected.join("\n"));
}
