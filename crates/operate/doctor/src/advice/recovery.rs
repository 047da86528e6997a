//! Settings that shorten a recovery, for a target that the operator gave.
//!
//! Invariants: no value is below the vendor's default, however short the target. If the defaults do
//! not reach it, that is stated. Without a target this module is not used: longer recoveries are
//! the price of fewer checkpoints, which is the operator's choice.

use super::advised::{Advised, uncertain};
use super::apply::fix;
use super::rocksdb_options;
use super::table::{Product, find};
use crate::Fix;
use crate::settings::{Engine, Settings};

/// Sizes are multiples of this: a WAL segment (16 MiB).
const WAL_SEGMENT_BYTES: u64 = 16 << 20;

const NOTHING_LEFT: &str = "no setting shortens it further: none is offered below the vendor's default";
const MEMTABLE_REMARK: &str = "a memtable that is flushed earlier bounds its log, too: write_buffer_size in \
                         rocksdb_default_cf_options, whose default is 64m";

/// Returns the settings with which a recovery reads at most about `most` bytes.
pub(crate) fn shorten(settings: &Settings, most: u64) -> Advised {
    let mut advised = Advised::default();
    if let Some(remark) = uncertain(settings) {
        advised.remarks.push(remark);
        return advised;
    }
    match settings.engine {
        Engine::MariaDb => {
            advised.fixes.extend(bounded(settings, Product::MariaDb, "innodb_log_file_size", most));
        }
        Engine::MySql if settings.redo_directory => {
            advised.fixes.extend(bounded(settings, Product::MySql, "innodb_redo_log_capacity", most));
        }
        Engine::MySql => {
            // The setting is the size of each file.
            let files = settings.bytes("innodb_log_files_in_group").unwrap_or(2).max(1);
            advised.fixes.extend(bounded(settings, Product::MySql, "innodb_log_file_size", most / files));
        }
        Engine::PostgreSql => {
            let own = |name| fix(settings, Product::PostgreSql, name);
            if settings.seconds("checkpoint_timeout").is_some_and(|seconds| seconds > 300) {
                advised.fixes.extend(own("checkpoint_timeout"));
            }
            advised.fixes.extend(bounded(settings, Product::PostgreSql, "max_wal_size", most));
            if settings.get("recovery_prefetch").is_some_and(|setting| setting.value == "off") {
                advised.fixes.extend(own("recovery_prefetch"));
            }
        }
        Engine::RocksDb | Engine::TiKv | Engine::MongoDb | Engine::Other => {}
    }
    if settings.holds_rocksdb() {
        logs_of_rocksdb(settings, most, &mut advised);
    }
    if advised.fixes.is_empty() {
        advised.remarks.push(NOTHING_LEFT.to_owned());
    }
    advised
}

fn logs_of_rocksdb(settings: &Settings, most: u64, advised: &mut Advised) {
    let product = Product::with_rocksdb(settings.engine);
    let now = rocksdb_options::size(settings, "max_total_wal_size").filter(|bytes| *bytes > 0);
    advised.fixes.extend(bounded_from(settings, product, "max_total_wal_size", now, most));
    let buffer = rocksdb_options::size(settings, "default.write_buffer_size");
    if product == Product::MyRocks {
        if buffer.is_some_and(|bytes| bytes > most.max(64 << 20)) {
            advised.remarks.push(MEMTABLE_REMARK.to_owned());
        }
    } else if buffer.is_some() {
        advised.fixes.extend(bounded_from(settings, product, "write_buffer_size", buffer, most));
    }
    let at_shutdown = "avoid_flush_during_shutdown";
    if settings.engine == Engine::RocksDb && rocksdb_options::is_on(settings, at_shutdown) == Some(true) {
        advised.fixes.extend(fix(settings, product, at_shutdown));
    }
}

/// Returns the fix for a size that bounds a recovery; `None` if it is not larger now.
fn bounded(settings: &Settings, product: Product, name: &str, most: u64) -> Option<Fix> {
    bounded_from(settings, product, name, settings.bytes(name), most)
}

fn bounded_from(
    settings: &Settings,
    product: Product,
    option: &str,
    now: Option<u64>,
    most: u64,
) -> Option<Fix> {
    let row = find(settings, product, option)?;
    let default = row.default_bytes().unwrap_or_default();
    let bytes = (most / WAL_SEGMENT_BYTES * WAL_SEGMENT_BYTES).max(default).max(WAL_SEGMENT_BYTES);
    let is_larger = now.map_or(bytes != default, |now| now > bytes);
    is_larger.then(|| row.fix_to(settings, &size(settings.engine, bytes)))
}

/// Formats a size in the engine's own syntax; a whole number of MiB.
fn size(engine: Engine, bytes: u64) -> String {
    let mib = bytes >> 20;
    match engine {
        Engine::PostgreSql | Engine::TiKv if mib.is_multiple_of(1024) => format!("{}GB", mib / 1024),
        Engine::PostgreSql | Engine::TiKv => format!("{mib}MB"),
        Engine::MariaDb | Engine::MySql => format!("{mib}M"),
        Engine::RocksDb | Engine::MongoDb | Engine::Other => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingOrigin;
    use crate::testing::MIB;

    fn settings(engine: Engine, version: &str, pairs: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::new(engine);
        settings.version = Some(version.to_owned());
        for (name, value) in pairs {
            settings.add(name, *value, SettingOrigin::File { path: "/etc/its.conf".into(), line: 7 });
        }
        settings
    }

    fn acts(settings: &Settings, mib: u64) -> Vec<String> {
        shorten(settings, mib * MIB).fixes.into_iter().map(|fix| fix.act).collect()
    }

    #[test]
    fn no_target_goes_below_the_vendors_default() {
        let large = [("max_wal_size", "8GB"), ("checkpoint_timeout", "1h")];
        let postgresql = settings(Engine::PostgreSql, "15", &large);
        assert_eq!(acts(&postgresql, 1), ["checkpoint_timeout = '5min'", "max_wal_size = '1GB'"]);
        assert_eq!(acts(&postgresql, 3000)[1], "max_wal_size = '2992MB'");
        for size in ["1GB", "2GB"] {
            let usual = settings(Engine::PostgreSql, "15", &[("max_wal_size", size)]);
            assert_eq!(acts(&usual, 4096), [""; 0], "it is met");
        }
        let default = settings(Engine::PostgreSql, "15", &[("max_wal_size", "1GB")]);
        let advised = shorten(&default, MIB);
        assert_eq!((advised.fixes.len(), advised.remarks), (0, vec![NOTHING_LEFT.to_owned()]));
        let tikv = settings(Engine::TiKv, "8", &[("max_total_wal_size", "16GB")]);
        assert_eq!(acts(&tikv, 100), ["[rocksdb] max-total-wal-size = \"4GB\""]);
    }

    #[test]
    fn a_redo_log_is_bounded_by_what_the_version_has() {
        let large = [("innodb_log_file_size", "2G"), ("innodb_redo_log_capacity", "2G")];
        let mut mysql = settings(Engine::MySql, "5.7.44", &large);
        assert_eq!(acts(&mysql, 512), ["innodb_log_file_size=256M"]);
        assert_eq!(acts(&mysql, 1), ["innodb_log_file_size=48M"]);
        mysql.version = Some("8.0.36".to_owned());
        mysql.redo_directory = true;
        assert_eq!(acts(&mysql, 512), ["innodb_redo_log_capacity=512M"]);
        for (version, effect) in
            [("10.6.1", "needs a restart"), ("10.11.14", "SET GLOBAL innodb_log_file_size")]
        {
            let mariadb = settings(Engine::MariaDb, version, &large);
            let fix = &shorten(&mariadb, 512 * MIB).fixes[0];
            assert_eq!(fix.act, "innodb_log_file_size=512M");
            assert!(fix.does.contains(effect), "{}", fix.does);
            assert_eq!(fix.terms.undo.split(',').next(), Some("innodb_log_file_size=2G"));
            assert!(fix.terms.risk.costs.contains("less throughput"), "{fix:?}");
        }
    }

    #[test]
    fn each_program_has_its_own_names() {
        let pairs = [
            ("default.write_buffer_size", "1073741824"),
            ("avoid_flush_during_shutdown", "true"),
            ("max_total_wal_size", "0"),
        ];
        let expected = [
            "max_total_wal_size=268435456",
            "write_buffer_size=268435456",
            "avoid_flush_during_shutdown=false",
        ];
        assert_eq!(acts(&settings(Engine::RocksDb, "7.8.3", &pairs), 256), expected);
        assert_eq!(
            acts(&settings(Engine::TiKv, "8", &pairs), 256),
            ["[rocksdb.defaultcf] write-buffer-size = \"256MB\""]
        );
        let mut myrocks = settings(Engine::MariaDb, "10.11.14", &[("innodb_log_file_size", "96M")]);
        myrocks.myrocks = true;
        myrocks.add("default.rocksdb_write_buffer_size", "1073741824", SettingOrigin::CommandLine);
        let advised = shorten(&myrocks, 256 * MIB);
        assert_eq!(advised.fixes[0].act, "rocksdb_max_total_wal_size=256M");
        assert_eq!(advised.remarks, [MEMTABLE_REMARK]);
    }
}
