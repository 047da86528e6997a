//! Settings that decide how a log is written, and so whether its pages can be released.
//!
//! Invariant: an uncertain setting never causes the release of a log that would be kept without it.

use pagekeeper_policy::{RewriteKind, RewriteSource};

use super::limits::beginning;
use super::{Setting, Settings};
use crate::profile::LogSpec;

/// The known facts about the writing of a log, before its writer was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewriteDecision {
    /// The way in which its writer overwrites old bytes; `None` if that must be observed.
    pub rewrite: Option<RewriteKind>,
    /// The settings that decide it, each with its location and any doubt:
    /// "`innodb_log_write_ahead_size` is 4096 (/etc/my.cnf, line 3)". `None` if there are none, or
    /// if the result would be the same without them.
    pub by: Option<String>,
}

/// Decides how a log is written on a device with physical blocks of `device` bytes and a kernel
/// with pages of `page` bytes. `settings` is called only if a setting matters.
///
/// ```
/// use pagekeeper_catalog::settings::{Engine, SettingOrigin, Settings, decide_rewrite};
/// use pagekeeper_catalog::{Profile, find_profile};
/// use pagekeeper_policy::RewriteKind;
///
/// let profiles = Profile::built_in();
/// let redo = &find_profile(&profiles, "mariadb")?.logs[0];
/// let mut settings = Settings::new(Engine::MariaDb);
/// assert_eq!(decide_rewrite(redo, 512, 4096, || &settings).rewrite, Some(RewriteKind::SubPages));
/// settings.add("innodb_log_write_ahead_size", "4k", SettingOrigin::CommandLine);
/// assert_eq!(decide_rewrite(redo, 512, 4096, || &settings).rewrite, Some(RewriteKind::WholePages));
/// # Ok::<(), pagekeeper_catalog::ProfileError>(())
/// ```
pub fn decide_rewrite<'a>(
    log: &LogSpec,
    device: u64,
    page: u64,
    settings: impl Fn() -> &'a Settings,
) -> RewriteDecision {
    let plain = match log.rewrite_on(page) {
        RewriteSource::Known(rewrite) => rewrite,
        RewriteSource::DeviceBlocks => RewriteKind::of_blocks(device, page),
        RewriteSource::Detect => return RewriteDecision { rewrite: None, by: None },
    };
    let by_block = log.block_option.as_deref().filter(|_| may_differ(log, plain));
    let by_block = by_block.and_then(|name| decide_by_block(log, device, page, name, settings()));
    let decided = by_block.unwrap_or(RewriteDecision { rewrite: Some(plain), by: None });
    if decided.rewrite == Some(RewriteKind::SubPages) && !log.overwritten_if.is_empty() {
        return decide_append_only(log, settings()).unwrap_or(decided);
    }
    decided
}

/// Whether a block size can make a difference: a setting only ever enlarges the device's blocks.
fn may_differ(log: &LogSpec, plain: RewriteKind) -> bool {
    match log.rewrite {
        RewriteSource::DeviceBlocks => plain == RewriteKind::SubPages,
        RewriteSource::Known(_) => log.block.is_some(),
        RewriteSource::Detect => false,
    }
}

/// Returns the result of the block size setting, if it is set.
fn decide_by_block(
    log: &LogSpec,
    device: u64,
    page: u64,
    name: &str,
    settings: &Settings,
) -> Option<RewriteDecision> {
    let setting = settings.get(name)?;
    let set = settings.bytes(name)?;
    let plain = log.block.unwrap_or(device);
    let block = match (log.rewrite, settings.doubt_of(setting)) {
        (RewriteSource::DeviceBlocks, None) => device.max(set),
        (RewriteSource::DeviceBlocks, Some(_)) => device,
        (_, None) => set,
        (_, Some(_)) => plain.min(set),
    };
    let rewrite = RewriteKind::of_blocks(block, page);
    let is_said = rewrite == RewriteKind::SubPages || rewrite != RewriteKind::of_blocks(plain, page);
    Some(RewriteDecision { rewrite: Some(rewrite), by: is_said.then(|| describe_setting(settings, setting)) })
}

/// Returns that a log is only appended to, if all settings that cause overwriting are certainly
/// off.
fn decide_append_only(log: &LogSpec, settings: &Settings) -> Option<RewriteDecision> {
    let mut by = Vec::new();
    for name in &log.overwritten_if {
        let setting = settings.get(name)?;
        if setting.is_on() != Some(false) || settings.doubt_of(setting).is_some() {
            return None;
        }
        by.push(describe_setting(settings, setting));
    }
    Some(RewriteDecision { rewrite: Some(RewriteKind::Never), by: Some(by.join(" and ")) })
}

/// Formats a setting with its location and any doubt.
fn describe_setting(settings: &Settings, setting: &Setting) -> String {
    let Setting { name, value, from, .. } = setting;
    let doubt = settings.doubt_of(setting);
    let doubt = doubt.map(|doubt| format!(", which may not be in force: {doubt}")).unwrap_or_default();
    format!("{name} is {} ({from}){doubt}", beginning(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{CHANGED_DOUBT, Engine, SettingOrigin};
    use crate::{Profile, find_profile};

    const WRITE_AHEAD_OPTION: &str = "innodb_log_write_ahead_size";

    fn log(profile: &str) -> LogSpec {
        find_profile(&Profile::built_in(), profile).unwrap().logs[0].clone()
    }

    fn in_file(engine: Engine, all: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::new(engine);
        for (line, (name, value)) in (1..).zip(all) {
            settings.add(name, *value, SettingOrigin::File { path: "/etc/my.cnf".into(), line });
        }
        settings
    }

    #[test]
    fn a_larger_block_size_than_the_devices_counts() {
        let redo = log("mariadb");
        let decided = |device, page, value: &str| {
            let settings = in_file(Engine::MariaDb, &[(WRITE_AHEAD_OPTION, value)]);
            let decided = decide_rewrite(&redo, device, page, || &settings);
            (decided.rewrite.unwrap(), decided.by.is_some())
        };
        for whole in ["4096", "4k", "4K", "16K", "8192"] {
            assert_eq!(decided(512, 4096, whole), (RewriteKind::WholePages, true), "{whole}");
        }
        for parts in ["512", "1k", "2048"] {
            assert_eq!(decided(512, 4096, parts), (RewriteKind::SubPages, true), "{parts}");
        }
        assert_eq!(decided(512, 4096, "all"), (RewriteKind::SubPages, false), "no size");
        assert_eq!(decided(4096, 4096, "512"), (RewriteKind::WholePages, false), "the device's are larger");
        assert_eq!(decided(512, 16384, "4096"), (RewriteKind::SubPages, true));
    }

    #[test]
    fn a_size_of_blocks_takes_the_place_of_the_profiles() {
        let redo = log("mysql");
        let with = |settings: &Settings| {
            let decided = decide_rewrite(&redo, 512, 4096, || settings);
            (decided.rewrite.unwrap(), decided.by)
        };
        assert_eq!(with(&in_file(Engine::MySql, &[])), (RewriteKind::WholePages, None));
        assert_eq!(
            with(&in_file(Engine::MySql, &[(WRITE_AHEAD_OPTION, "16K")])),
            (RewriteKind::WholePages, None)
        );
        let (rewrite, by) = with(&in_file(Engine::MySql, &[("x", "1"), (WRITE_AHEAD_OPTION, "1024")]));
        assert_eq!(rewrite, RewriteKind::SubPages);
        assert_eq!(by.unwrap(), "innodb_log_write_ahead_size is 1024 (/etc/my.cnf, line 2)");
        // Whole pages of 16 KiB.
        let larger = in_file(Engine::MySql, &[(WRITE_AHEAD_OPTION, "16K")]);
        assert_eq!(decide_rewrite(&redo, 512, 16384, || &larger).rewrite, Some(RewriteKind::WholePages));
    }

    #[test]
    fn a_doubtful_setting_keeps_a_log() {
        for (profile, value) in [("mariadb", "4096"), ("mysql", "512")] {
            let mut settings = in_file(Engine::MySql, &[(WRITE_AHEAD_OPTION, value)]);
            settings.is_partial = true;
            let decided = decide_rewrite(&log(profile), 512, 4096, || &settings);
            assert_eq!(decided.rewrite, Some(RewriteKind::SubPages), "{profile}");
            assert!(decided.by.unwrap().contains("may not be in force"));
        }
        // A file can't override the command line.
        let mut settings = in_file(Engine::MariaDb, &[(WRITE_AHEAD_OPTION, "512")]);
        settings.is_partial = true;
        settings.add(WRITE_AHEAD_OPTION, "4096", SettingOrigin::CommandLine);
        let decided = decide_rewrite(&log("mariadb"), 512, 4096, || &settings);
        assert_eq!(decided.rewrite, Some(RewriteKind::WholePages));
        assert_eq!(decided.by.unwrap(), "innodb_log_write_ahead_size is 4096 (the command line)");
        let mut settings = Settings::new(Engine::MariaDb);
        settings.add_doubted(
            WRITE_AHEAD_OPTION,
            "4096",
            SettingOrigin::File { path: "/f".into(), line: 1 },
            Some(CHANGED_DOUBT),
        );
        let decided = decide_rewrite(&log("mariadb"), 512, 4096, || &settings);
        assert_eq!(decided.rewrite, Some(RewriteKind::SubPages));
        assert!(decided.by.unwrap().ends_with(CHANGED_DOUBT));
    }

    #[test]
    fn wal_that_is_neither_recycled_nor_filled_is_released_with_any_page_size() {
        let wal = log("postgresql");
        let on = |page, all: &[(&str, &str)]| {
            let settings = in_file(Engine::PostgreSql, all);
            decide_rewrite(&wal, 512, page, || &settings).rewrite.unwrap()
        };
        let off = [("wal_recycle", "off"), ("wal_init_zero", "no")];
        assert_eq!(on(65536, &off), RewriteKind::Never);
        assert_eq!(on(4096, &off), RewriteKind::WholePages);
        for kept in [&off[..1], &off[1..], &[], &[off[0], ("wal_init_zero", "on")]] {
            assert_eq!(on(65536, kept), RewriteKind::SubPages, "{kept:?}");
        }
    }
}
