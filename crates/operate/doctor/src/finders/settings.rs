//! Settings that make a database use the page cache unnecessarily: findings of kind
//! [`Kind::Setting`].
//!
//! Only settings that are known or seen to be so are reported: a setting that was not found is no
//! finding.

use pagekeeper_observe::{Database, File};
use pagekeeper_policy::FileClass;
use pagekeeper_text::unescaped;

use super::EarlierFindings;
use crate::advice::innodb::{self, TableBuffering};
use crate::advice::postgresql::shared_buffers;
use crate::advice::rocksdb::{is_rocksdb, recycled};
use crate::advice::rocksdb_options::{is_on, rocks_setting, size};
use crate::advice::{fix, uncertain};
use crate::observed::syncs::SYNC_AT_COMMIT;
use crate::settings::BUFFERED_METHOD;
use crate::settings::{Engine, Setting, SettingOrigin, Settings};
use crate::texts::{known, text};
use crate::{
    Advised, Confidence, Cost, Evidence, Finding, Goal, Kind, Observation, Product, Severity, advise,
};

/// Minimum bytes of pages of a log or of tables to be reported.
const REPORTED_BYTES_MIN: u64 = 16 << 20;
/// Minimum bytes that have a cost.
const COSTLY_BYTES_MIN: u64 = 64 << 20;

/// `MyRocks` without user tables has only smaller files, for its own dictionary.
const DICTIONARY_BYTES_MAX: u64 = 1 << 20;

/// Returns the questionable settings of the databases.
pub(super) fn find(observation: &Observation<'_>, earlier: EarlierFindings<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, database) in observation.databases() {
        let Some(settings) = observation.settings_of(index) else { continue };
        let about = SettingSubject { observation, earlier, index, database, settings };
        findings.extend([
            about.tables_in_cache(),
            about.redo_in_cache(),
            about.unsynced_tables(),
            about.recycled_wal(),
            about.checkpoint_at_once(),
            about.zeroed_wal(),
            about.large_shared_buffers(),
        ]);
    }
    findings.into_iter().flatten().collect()
}

/// One database of an observation.
struct SettingSubject<'a> {
    observation: &'a Observation<'a>,
    earlier: EarlierFindings<'a>,
    index: usize,
    database: &'a Database,
    settings: &'a Settings,
}

impl SettingSubject<'_> {
    fn finding(&self, severity: Severity, section: &str) -> Finding {
        Finding {
            kind: Kind::Setting,
            severity,
            database: Some(self.observation.subject(self.index)),
            title: text(&format!("{section}.title"), &[]),
            evidence: Vec::new(),
            cost: Cost::estimated(text(&format!("{section}.cost"), &[])),
            fixes: Vec::new(),
            remarks: uncertain(self.settings).into_iter().collect(),
            pagekeeper: None,
        }
    }

    /// Returns the resident bytes of some of its files.
    fn resident(&self, which: impl Fn(&File) -> bool) -> u64 {
        let files = self.observation.files_of(self.index).filter(|file| which(file));
        files.map(File::resident).sum()
    }

    fn tables_in_cache(&self) -> Option<Finding> {
        if !matches!(self.settings.engine, Engine::MariaDb | Engine::MySql) {
            return None;
        }
        let tables = innodb::tables(self.settings)?;
        let resident = self.resident(|file| {
            let name = unescaped(file.path.file_name().unwrap_or_default());
            name.ends_with(".ibd") || name.starts_with("ibdata") || name.starts_with("undo")
        });
        let severity = if resident >= COSTLY_BYTES_MIN { Severity::Warning } else { Severity::Note };
        let mut finding = self.finding(severity, "setting-tables");
        if tables == TableBuffering::Refused {
            finding.evidence.extend(self.settings.written("innodb_flush_method").map(evidence_of));
        }
        for name in ["innodb_flush_method", "innodb_data_file_buffering"] {
            finding.evidence.extend(self.settings.get(name).map(evidence_of));
        }
        finding.evidence.push(Evidence::of("setting-tables.evidence").with("resident_bytes", resident));
        finding.fixes = tables.fix(self.settings).into_iter().collect();
        if tables == TableBuffering::Refused {
            finding.remarks.push(text("setting-tables.refused", &[]));
        }
        Some(finding)
    }

    fn redo_in_cache(&self) -> Option<Finding> {
        if self.settings.engine != Engine::MariaDb {
            return None;
        }
        let (fix, by_commit) = (innodb::redo(self.settings), innodb::by_commit(self.settings));
        let buffering = self.settings.get("innodb_log_file_buffering");
        // The observed state counts: a server that has it open with O_DIRECT is fine, whatever is
        // configured.
        let seen_direct =
            buffering.is_some_and(|setting| setting.from == SettingOrigin::Seen && setting.value == "OFF");
        // A finding about all of its logs names the same settings and fixes.
        if (fix.is_none() && by_commit.is_none())
            || seen_direct
            || self.earlier.of(Kind::LogsInCache, self.index).is_some()
        {
            return None;
        }
        let resident = self.resident(|file| file.class == Some(FileClass::Redo) && is_innodb_redo(file));
        let severity = if resident >= COSTLY_BYTES_MIN { Severity::Warning } else { Severity::Note };
        let mut finding = self.finding(severity, "setting-redo");
        finding.evidence = redo_settings(self.settings);
        finding.evidence.push(Evidence::of("setting-redo.evidence").with("resident_bytes", resident));
        finding.fixes = fix.into_iter().collect();
        finding.remarks.extend(by_commit);
        finding.pagekeeper = Some(text("setting-redo.pagekeeper", &[]));
        Some(finding)
    }

    fn unsynced_tables(&self) -> Option<Finding> {
        let settings = self.settings;
        let direct = "use_direct_io_for_flush_and_compaction";
        if !settings.holds_rocksdb()
            || is_on(settings, direct) != Some(false)
            || size(settings, "bytes_per_sync") != Some(0)
            // A finding about the waiting writers names the same fixes.
            || self.earlier.of(Kind::WritersThrottled, self.index).is_some()
            || self.is_without_rocksdb_tables()
        {
            return None;
        }
        let mut finding = self.finding(Severity::Note, "setting-unsynced");
        for option in [direct, "bytes_per_sync", "wal_bytes_per_sync"] {
            finding.evidence.extend(rocks_setting(settings, option).map(evidence_of));
        }
        let Advised { fixes, remarks } = advise(Goal::SteadyWriteback, settings);
        (finding.fixes, finding.remarks) = (fixes, remarks);
        Some(finding)
    }

    /// Whether it is a server that has `MyRocks` but keeps next to nothing there.
    fn is_without_rocksdb_tables(&self) -> bool {
        let tables = self.observation.files_of(self.index).filter(|file| is_rocksdb(file));
        self.settings.myrocks && tables.map(|file| file.size).sum::<u64>() < DICTIONARY_BYTES_MAX
    }

    fn recycled_wal(&self) -> Option<Finding> {
        let number = size(self.settings, "recycle_log_file_num")?;
        let resident = self.resident(|file| {
            let name = unescaped(file.path.file_name().unwrap_or_default());
            file.class == Some(FileClass::Wal) && name.ends_with(".log")
        });
        if !self.settings.holds_rocksdb() || number == 0 || resident < REPORTED_BYTES_MIN {
            return None;
        }
        let mut finding = self.finding(Severity::Note, "setting-recycled");
        finding.evidence.extend(rocks_setting(self.settings, "recycle_log_file_num").map(evidence_of));
        finding.evidence.push(Evidence::of("setting-recycled.evidence").with("resident_bytes", resident));
        finding.fixes = recycled(self.settings).into_iter().collect();
        Some(finding)
    }

    fn checkpoint_at_once(&self) -> Option<Finding> {
        let settings = self.settings;
        if settings.engine != Engine::PostgreSql || settings.bytes("checkpoint_flush_after") != Some(0) {
            return None;
        }
        let mut finding = self.finding(Severity::Note, "setting-checkpoint");
        finding.evidence.extend(settings.get("checkpoint_flush_after").map(evidence_of));
        finding.fixes = fix(settings, Product::PostgreSql, "checkpoint_flush_after").into_iter().collect();
        Some(finding)
    }

    fn zeroed_wal(&self) -> Option<Finding> {
        let settings = self.settings;
        if settings.engine != Engine::PostgreSql
            || settings.is_on("wal_recycle") != Some(false)
            || settings.is_on("wal_init_zero") != Some(true)
        {
            return None;
        }
        let mut finding = self.finding(Severity::Note, "setting-zeroed");
        finding.evidence.extend(
            ["wal_recycle", "wal_init_zero"].iter().filter_map(|name| settings.get(name)).map(evidence_of),
        );
        finding.fixes = fix(settings, Product::PostgreSql, "wal_recycle").into_iter().collect();
        Some(finding)
    }

    fn large_shared_buffers(&self) -> Option<Finding> {
        let settings = self.settings;
        if settings.engine != Engine::PostgreSql {
            return None;
        }
        let buffers = settings.bytes("shared_buffers")?;
        let host = self.observation.after.host.memory.total;
        let memory = self
            .database
            .cgroup
            .as_ref()
            .and_then(|group| group.effective_limit)
            .map_or(host, |limit| limit.min(host));
        // The manual's own limit: "unlikely that an allocation of more than 40% of RAM … will work
        // better".
        if memory == 0 || buffers <= memory / 5 * 2 {
            return None;
        }
        let mut finding = self.finding(Severity::Note, "setting-buffers");
        finding.evidence.extend(settings.get("shared_buffers").map(evidence_of));
        finding.evidence.push(Evidence::of("setting-buffers.evidence").with("memory_bytes", memory));
        finding.fixes = shared_buffers(settings, memory).into_iter().collect();
        Some(finding)
    }
}

/// Returns the known settings because of which `MariaDB`'s redo log goes through the page cache, if
/// it does.
pub(super) fn redo_settings(settings: &Settings) -> Vec<Evidence> {
    if innodb::redo(settings).is_none() && innodb::by_commit(settings).is_none() {
        return Vec::new();
    }
    let names = [SYNC_AT_COMMIT, "innodb_log_file_buffering"];
    names.iter().filter_map(|name| settings.get(name)).map(evidence_of).collect()
}

fn is_innodb_redo(file: &File) -> bool {
    file.path.file_name().is_some_and(|name| unescaped(name).starts_with("ib_"))
}

/// Returns a setting as evidence, with the place where it was read.
fn evidence_of(setting: &Setting) -> Evidence {
    let Setting { name, value, from, doubt } = setting;
    let id = match from {
        SettingOrigin::Seen if value == BUFFERED_METHOD => "setting.buffered",
        SettingOrigin::Seen if name == SYNC_AT_COMMIT => "setting.synced",
        SettingOrigin::Seen => "setting.seen",
        SettingOrigin::Default => "setting.default",
        SettingOrigin::CommandLine | SettingOrigin::File { .. } | SettingOrigin::Environment => "setting.set",
    };
    let confidence =
        if *from == SettingOrigin::Seen { Confidence::Measured } else { Confidence::FromSettings };
    let evidence = Evidence::of(id)
        .known(confidence)
        .with("setting", name.as_str())
        .with("value", value.as_str())
        .say("from", from)
        .say("doubt", known(doubt.as_ref()));
    match from {
        SettingOrigin::File { path, line } => {
            evidence.with("file", unescaped(path).into_owned()).with("line", *line)
        }
        _ => evidence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examine;
    use crate::testing::{GIB, MIB, database, file, pauses, sample};
    use pagekeeper_trace::DirtyLevels;

    fn found_of(kind: Kind, observation: &Observation<'_>) -> Vec<Finding> {
        examine(observation).into_iter().filter(|finding| finding.kind == kind).collect()
    }

    fn find(observation: &Observation<'_>) -> Vec<Finding> {
        found_of(Kind::Setting, observation)
    }

    fn found(profile: &str, engine: Engine, pairs: &[(&str, &str)], files: Vec<File>) -> Vec<Finding> {
        let mut after = sample();
        after.databases = vec![database(profile, 100, "/data")];
        after.files = files;
        let before = sample();
        let mut observation = Observation::new(&before, &after);
        let mut settings = Settings::new(engine);
        for (name, value) in pairs {
            settings.add(name, *value, SettingOrigin::File { path: "/etc/its.conf".into(), line: 3 });
        }
        observation.settings = vec![settings];
        find(&observation)
    }

    #[test]
    fn innodb_without_o_direct_is_reported_with_its_cost() {
        let table = file("/data/db/t.ibd", FileClass::Data, GIB, 100 * MIB);
        let all = found("mariadb", Engine::MariaDb, &[("innodb_flush_method", "fsync")], vec![table]);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].severity, Severity::Warning);
        assert_eq!(all[0].evidence[0].text, "innodb_flush_method is fsync: /etc/its.conf, line 3");
        assert_eq!(all[0].evidence[0].figures["line"], 3);
        assert_eq!(all[0].evidence[1].figures["resident_bytes"], 100 * MIB);
        assert_eq!(all[0].fixes[0].act, "innodb_flush_method=O_DIRECT");
        assert_eq!(found("mariadb", Engine::MariaDb, &[("innodb_flush_method", "O_DIRECT")], Vec::new()), []);
        assert_eq!(found("mariadb", Engine::MariaDb, &[], Vec::new()), []);
    }

    #[test]
    fn a_file_system_that_refuses_direct_io_is_reported_instead_of_a_setting() {
        let after = sample();
        let mut observation = Observation::new(&after, &after);
        let mut settings = Settings::new(Engine::MariaDb);
        let from = SettingOrigin::File { path: "/etc/my.cnf".into(), line: 7 };
        settings.add("innodb_flush_method", "O_DIRECT", from);
        settings.add("innodb_flush_method", BUFFERED_METHOD, SettingOrigin::Seen);
        observation.settings = vec![settings];
        let all = find(&observation);
        assert_eq!(all.len(), 1);
        let said: Vec<&str> = all[0].evidence.iter().map(|evidence| evidence.text.as_str()).collect();
        assert_eq!(said[0], "innodb_flush_method is O_DIRECT: /etc/my.cnf, line 7");
        assert_eq!(said[1], "it has table files open without O_DIRECT");
        assert_eq!(all[0].fixes, []);
        assert!(all[0].remarks[0].starts_with("no setting helps"), "{:?}", all[0].remarks);
        // Other findings do not advise what is already set either.
        assert_eq!(advise(Goal::NoMixedIo, &observation.settings[0]).fixes, []);
    }

    #[test]
    fn data_file_buffering_is_fixed_by_itself() {
        let pairs = [("innodb_flush_method", "O_DIRECT"), ("innodb_data_file_buffering", "ON")];
        let all = found("mariadb", Engine::MariaDb, &pairs, Vec::new());
        assert_eq!(all[0].fixes[0].act, "innodb_data_file_buffering=OFF");
    }

    #[test]
    fn a_buffered_redo_log_is_reported_once() {
        let pairs = [("innodb_log_file_buffering", "ON")];
        let mut after = sample();
        after.files = vec![file("/var/lib/mysql/ib_logfile0", FileClass::Redo, GIB, 200 * MIB)];
        let mut observation = Observation::new(&after, &after);
        let mut settings = Settings::new(Engine::MariaDb);
        settings.add(pairs[0].0, pairs[0].1, SettingOrigin::CommandLine);
        observation.settings = vec![settings];
        assert_eq!(find(&observation), []);
        let logs = found_of(Kind::LogsInCache, &observation);
        assert_eq!(logs[0].fixes[0].act, "innodb_log_file_buffering=OFF");
        let said: Vec<&str> = logs[0].evidence.iter().map(|evidence| evidence.text.as_str()).collect();
        assert!(said.contains(&"innodb_log_file_buffering is ON: the command line"), "{said:?}");
    }

    #[test]
    fn a_buffered_redo_log_is_found_unless_it_is_seen_direct() {
        let pairs = [("innodb_log_file_buffering", "ON")];
        assert_eq!(found("mariadb", Engine::MariaDb, &pairs, Vec::new()).len(), 1);
        let mut after = sample();
        after.files.clear();
        let mut observation = Observation::new(&after, &after);
        let mut settings = Settings::new(Engine::MariaDb);
        settings.add("innodb_flush_log_at_trx_commit", "2", SettingOrigin::CommandLine);
        settings.add("innodb_log_file_buffering", "OFF", SettingOrigin::Seen);
        observation.settings = vec![settings];
        assert_eq!(find(&observation), []);
    }

    #[test]
    fn rocksdb_is_found_only_where_nothing_bounds_its_dirty_pages() {
        let direct = "use_direct_io_for_flush_and_compaction";
        let kinds = |pairs: &[(&str, &str)]| found("rocksdb", Engine::RocksDb, pairs, Vec::new()).len();
        assert_eq!(kinds(&[(direct, "false"), ("bytes_per_sync", "0")]), 1);
        assert_eq!(kinds(&[(direct, "true"), ("bytes_per_sync", "0")]), 0);
        assert_eq!(kinds(&[(direct, "false"), ("bytes_per_sync", "1048576")]), 0);
        assert_eq!(kinds(&[]), 0);
    }

    #[test]
    fn unsynced_tables_are_left_out_where_a_finding_on_waits_has_them() {
        let before = sample();
        let mut after = sample();
        after.databases = vec![database("rocksdb", 100, "/data")];
        let mut observation = Observation::new(&before, &after);
        let mut settings = Settings::new(Engine::RocksDb);
        for (name, value) in [("use_direct_io_for_flush_and_compaction", "false"), ("bytes_per_sync", "0")] {
            settings.add(name, value, SettingOrigin::CommandLine);
        }
        observation.settings = vec![settings.clone()];
        assert_eq!(find(&observation).len(), 1);
        let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
        trace.pauses = Some(vec![pauses(100, "db_bench", &[60], DirtyLevels::default())]);
        let mut observation = Observation::new(&before, &after);
        observation.settings = vec![settings];
        assert_eq!(find(&observation), []);
        let throttled = found_of(Kind::WritersThrottled, &observation);
        assert_eq!(throttled[0].fixes[0].act, "use_direct_io_for_flush_and_compaction=true");
    }

    #[test]
    fn myrocks_without_tables_leaves_nothing_to_the_kernel() {
        let found = |size| {
            let mut after = sample();
            after.files = vec![file("/var/lib/mysql/#rocksdb/000012.sst", FileClass::Data, size, 0)];
            let mut observation = Observation::new(&after, &after);
            let mut settings = Settings::new(Engine::MariaDb);
            settings.myrocks = true;
            let direct = "rocksdb_use_direct_io_for_flush_and_compaction";
            for (name, value) in [(direct, "OFF"), ("rocksdb_bytes_per_sync", "0")] {
                settings.add(name, value, SettingOrigin::Default);
            }
            observation.settings = vec![settings];
            find(&observation).len()
        };
        assert_eq!((found(2000), found(64 * MIB)), (0, 1));
    }

    #[test]
    fn a_recycled_wal_is_found_where_it_holds_memory() {
        let pairs = [("recycle_log_file_num", "4")];
        let wal = |resident| vec![file("/data/000012.log", FileClass::Wal, GIB, resident)];
        assert_eq!(found("rocksdb", Engine::RocksDb, &pairs, wal(100 * MIB)).len(), 1);
        assert_eq!(found("rocksdb", Engine::RocksDb, &pairs, wal(MIB)), []);
    }

    #[test]
    fn postgresql_is_found_by_how_it_is_configured() {
        let titles =
            |pairs: &[(&str, &str)]| found("postgresql", Engine::PostgreSql, pairs, Vec::new()).len();
        assert_eq!(titles(&[("checkpoint_flush_after", "0")]), 1);
        assert_eq!(titles(&[("checkpoint_flush_after", "32")]), 0);
        assert_eq!(titles(&[("wal_recycle", "off"), ("wal_init_zero", "on")]), 1);
        assert_eq!(titles(&[("wal_recycle", "off"), ("wal_init_zero", "off")]), 0);
        assert_eq!(titles(&[("shared_buffers", "12GB")]), 1);
        assert_eq!(titles(&[("shared_buffers", "6GB")]), 0);
    }
}
