//! Settings of `RocksDB`, of `MyRocks` and of `TiKV`: the newest `OPTIONS-NNNNNN` beside each
//! database that a process has open, and `TiKV`'s own files. `RocksDB` writes its options file
//! itself, so the file has the options in force.
//!
//! Options of a column family are named `family.option`. Those of `MyRocks` begin with `rocksdb_`,
//! as its server's variables do. `TiKV`'s keys are joined by dots: `rocksdb.bytes_per_sync`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::unescaped;
use toml::de::{DeTable, DeValue};

use super::limits::{LimitHit, SETTING_NAME_BYTES_MAX, TOML_BYTES_MAX, without_long_lines};
use super::server_root::{ReadFailure, ServerRoot, newest_numbered};
use super::{Engine, ServerFacts, SettingOrigin, Settings, options};

/// Maximum depth of nested tables in a file.
const TABLE_DEPTH_MAX: u32 = 8;

/// Reads all settings into `settings`.
pub(super) fn read(server: &ServerFacts, proc: &ProcRoot, settings: &mut Settings) {
    let root = ServerRoot::of(server, proc);
    if settings.engine == Engine::TiKv {
        read_tikv(server, &root, settings);
    }
    let directories = directories(server);
    if directories.is_empty() {
        settings.record_unread("OPTIONS", "no directory of a RocksDB database is known");
    }
    for directory in directories {
        newest_options(&root, &directory, settings);
    }
}

/// Returns the directories of the databases: those of its open MANIFEST files, or the given ones
/// without a process.
fn directories(server: &ServerFacts) -> Vec<PathBuf> {
    if server.pid.is_none() {
        return server.directories.clone();
    }
    let manifests = server.files.iter().filter(|file| {
        let name = file.path.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b"MANIFEST-") && file.is_open()
    });
    let mut found: Vec<PathBuf> =
        manifests.filter_map(|file| Some(file.path.parent()?.to_path_buf())).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn newest_options(root: &ServerRoot<'_>, directory: &Path, settings: &mut Settings) {
    let names: Vec<OsString> = match root.names(directory, |name| name.starts_with(b"OPTIONS-")) {
        Ok(names) => names,
        Err(unread) => return settings.record_failure(directory, unread),
    };
    let Some(name) = newest_numbered(&names, "OPTIONS-") else {
        return settings.record_unread(directory.join("OPTIONS"), "there is no such file");
    };
    let path = directory.join(name);
    let text = match root.read(&path) {
        Ok(text) => text.content,
        Err(unread) => return settings.record_failure(path, unread),
    };
    let (text, long) = without_long_lines(&text);
    if long {
        settings.record_limit(&path, LimitHit::Line);
    }
    settings.read_from.push(path.clone());
    let prefix = if settings.myrocks { "rocksdb_" } else { "" };
    for entry in options::entries(&text) {
        if entry.name == "pebble_version" && settings.engine == Engine::RocksDb {
            // Pebble names its files as RocksDB does, but has other options.
            settings.engine = Engine::Other;
        }
        if entry.name == "rocksdb_version" {
            // The embedding program has its own version.
            if !settings.myrocks && settings.engine != Engine::TiKv {
                settings.version = Some(entry.value);
            }
            continue;
        }
        let family = entry.family.map(|family| format!("{family}.")).unwrap_or_default();
        let origin = SettingOrigin::File { path: path.clone(), line: entry.line };
        settings.add(&format!("{family}{prefix}{}", entry.name), entry.value, origin);
    }
}

/// Reads the configuration that `TiKV` was given (`--config`), and the one it recorded as in use
/// (`last_tikv.toml`).
fn read_tikv(server: &ServerFacts, root: &ServerRoot<'_>, settings: &mut Settings) {
    let arguments: Vec<String> =
        server.command_line.iter().map(|word| unescaped(word).into_owned()).collect();
    let argument = |names: [&str; 2]| -> Option<PathBuf> {
        arguments.iter().enumerate().find_map(|(at, word)| {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), arguments.get(at + 1).cloned()),
            };
            names.contains(&name).then_some(value)?.map(PathBuf::from)
        })
    };
    if let Some(path) = argument(["--config", "-C"]) {
        let path = root.absolute(&path);
        read_toml(root, &path, settings, true);
        settings.home = Some(path);
    }
    let configured = settings.get("storage.data_dir").map(|setting| PathBuf::from(&setting.value));
    if let Some(directory) = argument(["--data-dir", "-s"]).or(configured) {
        read_toml(root, &root.absolute(&directory).join("last_tikv.toml"), settings, false);
    }
}

fn read_toml(root: &ServerRoot<'_>, path: &Path, settings: &mut Settings, given: bool) {
    let text = match root.read(path) {
        Ok(text) => text,
        Err(ReadFailure::Missing) => return settings.record_unread(path, "it is not there"),
        Err(unread) => return settings.record_failure(path, unread),
    };
    if text.content.len() > TOML_BYTES_MAX {
        let why = format!(
            "{} bytes long, and files of TOML of more than {TOML_BYTES_MAX} bytes are not read",
            text.content.len()
        );
        return settings.record_unread(path, why);
    }
    let found = match keys(&text.content) {
        Ok(found) => found,
        Err(why) => return settings.record_unread(path, why),
    };
    settings.read_from.push(path.to_path_buf());
    // TiKV writes the other file itself, at its start and when its settings change at run time.
    let doubt = text.doubt.filter(|_| given);
    if let Some(doubt) = doubt {
        settings.record_unread(path, doubt);
    }
    for (name, value, line) in found {
        settings.add_doubted(&name, value, SettingOrigin::File { path: path.to_path_buf(), line }, doubt);
    }
}

/// Returns all values of a TOML text other than tables and arrays, with their keys joined by dots
/// and their line numbers, from 1. Values nested more than 8 tables deep, and those whose joined
/// keys exceed 256 bytes, are left out. Returns an error message if the text is not TOML.
///
/// ```
/// use pagekeeper_catalog::settings::toml_keys;
///
/// let found = toml_keys("[rocksdb]\nbytes-per-sync = \"1MB\"\n").unwrap();
/// assert_eq!(found, [("rocksdb.bytes-per-sync".to_owned(), "1MB".to_owned(), 2)]);
/// ```
pub fn keys(text: &str) -> Result<Vec<(String, String, u32)>, String> {
    let table = DeTable::parse(text).map_err(|error| format!("not TOML: {}", error.message()))?;
    let mut found = Vec::new();
    collect_keys(table.get_ref(), "", 0, &mut found);
    found.sort_unstable_by_key(|(at, _, _)| *at);
    let (mut counted, mut line) = (0, 1_u32);
    let numbered = found.into_iter().map(|(at, name, value)| {
        let lines = text.get(counted..at).unwrap_or_default().matches('\n').count();
        line = line.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
        counted = at;
        (name, value, line)
    });
    Ok(numbered.collect())
}

/// Collects the values with the offsets of their keys.
fn collect_keys(table: &DeTable<'_>, above: &str, depth: u32, found: &mut Vec<(usize, String, String)>) {
    for (key, value) in table {
        if above.len() + key.get_ref().len() > SETTING_NAME_BYTES_MAX {
            continue;
        }
        let name = format!("{above}{}", key.get_ref());
        let said = match value.get_ref() {
            DeValue::String(said) => said.to_string(),
            DeValue::Integer(said) => said.to_string(),
            DeValue::Float(said) => said.to_string(),
            DeValue::Boolean(said) => said.to_string(),
            DeValue::Table(inner) if depth < TABLE_DEPTH_MAX => {
                collect_keys(inner, &format!("{name}."), depth + 1, found);
                continue;
            }
            _ => continue,
        };
        found.push((key.span().start, name, said));
    }
}

/// Parses a size as `TiKV` writes it: `1MB`, `512KiB`; its units are powers of 1024
/// (`ReadableSize`).
pub(crate) fn tikv_size(value: &str) -> Option<u64> {
    let value = value.trim();
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(digits);
    let power = match unit.trim_start() {
        "" | "B" => 0,
        "K" | "KB" | "KiB" => 1,
        "M" | "MB" | "MiB" => 2,
        "G" | "GB" | "GiB" => 3,
        "T" | "TB" | "TiB" => 4,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1024_u64.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::testing::server;
    use proptest::prelude::*;

    fn read(server: &ServerFacts, settings: &mut Settings) {
        super::read(server, &ProcRoot::default(), settings);
    }

    #[test]
    fn the_newest_options_are_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let text = "[Version]\n rocksdb_version=7.8.3\n[DBOptions]\n bytes_per_sync=0\n[CFOptions \"cf\"]\n num_levels=7\n";
        std::fs::write(dir.path().join("OPTIONS-000007"), "[DBOptions]\n bytes_per_sync=1\n").unwrap();
        std::fs::write(dir.path().join("OPTIONS-000011"), text).unwrap();
        let mut settings = Settings::new(Engine::RocksDb);
        read(&server(Engine::RocksDb, dir.path(), ""), &mut settings);
        let found = settings.get("bytes_per_sync").unwrap();
        assert_eq!(found.value, "0");
        assert_eq!(found.from, SettingOrigin::File { path: dir.path().join("OPTIONS-000011"), line: 4 });
        assert_eq!(settings.get("cf.num_levels").unwrap().value, "7");
        assert_eq!(settings.version.as_deref(), Some("7.8.3"));
        assert_eq!(settings.unread, []);
    }

    #[test]
    fn options_of_pebble_are_no_rocksdbs() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            "[Version]\n  pebble_version=0.1\n\n[Options]\n  bytes_per_sync=524288\n  max_open_files=1000\n";
        std::fs::write(dir.path().join("OPTIONS-000007"), text).unwrap();
        let mut settings = Settings::new(Engine::RocksDb);
        read(&server(Engine::RocksDb, dir.path(), ""), &mut settings);
        assert_eq!(settings.engine, Engine::Other);
    }

    #[test]
    fn a_directory_without_options_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::new(Engine::RocksDb);
        read(&server(Engine::RocksDb, dir.path(), ""), &mut settings);
        assert_eq!(settings.unread, [(dir.path().join("OPTIONS"), "there is no such file".to_owned())]);
    }

    #[test]
    fn tikvs_settings_in_force_win_over_its_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let given = dir.path().join("tikv.toml");
        std::fs::write(&given, "[rocksdb]\nbytes-per-sync = \"2MB\"\nmax-background-jobs = 4\n").unwrap();
        std::fs::write(
            dir.path().join("last_tikv.toml"),
            "[raft-engine]\nenable-log-recycle = true\n\n[rocksdb]\nbytes-per-sync = \"1MiB\"\n",
        )
        .unwrap();
        std::fs::write(dir.path().join("OPTIONS-000007"), "[Version]\n rocksdb_version=6.29.5\n").unwrap();
        let line = format!("tikv-server --config={} --data-dir {}", given.display(), dir.path().display());
        let mut settings = Settings::new(Engine::TiKv);
        read(&server(Engine::TiKv, dir.path(), &line), &mut settings);
        let found = settings.get("rocksdb.bytes-per-sync").unwrap();
        assert_eq!((found.value.as_str(), tikv_size(&found.value)), ("1MiB", Some(1 << 20)));
        assert!(matches!(found.from, SettingOrigin::File { line: 5, .. }));
        assert_eq!(settings.get("rocksdb.max_background_jobs").unwrap().value, "4");
        assert_eq!(settings.is_on("raft-engine.enable-log-recycle"), Some(true));
        assert_eq!(settings.home(), Some(given.as_path()));
        assert_eq!(settings.version, None, "RocksDB's version is not TiKV's");
    }

    #[test]
    fn invalid_toml_is_reported() {
        assert!(keys("x =").unwrap_err().starts_with("not TOML"));
        assert_eq!(keys("a.b = 1\n[c]\nd = [1]\n").unwrap(), [("a.b".to_owned(), "1".to_owned(), 1)]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in r#"(?s)(.|[\[\]="'.\n]|rocksdb){0,120}"#) {
            let _ = keys(&text);
            tikv_size(&text);
        }
    }
}
