//! Reads from a file beside a log how the log is written. It only reads; what can't be found is
//! unknown, never guessed.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use pagekeeper_kernel::{ExpectedFile, InspectedFile};
use pagekeeper_policy::names::NamePattern;

use super::Settings;
use super::server_root::content_of;
use crate::profile::RecycledIf;

/// Whether a file beside the log states that the log's files are recycled. If there is no such
/// file, the server's settings decide. Returns `None` if neither has the setting.
pub fn are_recycled<'a>(
    directory: BorrowedFd<'_>,
    names: &[OsString],
    spec: &RecycledIf,
    settings: impl FnOnce() -> &'a Settings,
) -> Option<bool> {
    let Some(name) = newest(names, &spec.file) else {
        return settings().get(&spec.key).map(|setting| is_set(&setting.value));
    };
    let path = Path::new(name).to_path_buf();
    let file = InspectedFile::open_in(directory.as_fd(), name, ExpectedFile::Any, path).ok()?;
    let text = content_of(&file).ok()?;
    let set = text.lines().filter_map(|line| line.split_once('='));
    let values = set.filter(|(key, _)| key.trim() == spec.key);
    values.map(|(_, value)| is_set(value)).reduce(|one, other| one || other)
}

/// Whether a value is other than empty, 0 and false.
fn is_set(value: &str) -> bool {
    !matches!(value.trim(), "" | "0" | "false")
}

fn newest<'a>(names: &'a [OsString], pattern: &NamePattern) -> Option<&'a OsStr> {
    let numbered =
        names.iter().filter_map(|name| Some((pattern.matches_name(name)?.number.sequence(None), name)));
    numbered.max().map(|(_, name)| name.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Engine, SettingOrigin};
    use pagekeeper_kernel::{Links, open_directory};

    #[test]
    fn the_newest_options_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("OPTIONS-000007", "[DBOptions]\n  recycle_log_file_num=4\n");
        write("OPTIONS-000005", "[DBOptions]\n  recycle_log_file_num=0\n");
        let spec =
            RecycledIf { file: "OPTIONS-{n}".parse().unwrap(), key: "recycle_log_file_num".to_owned() };
        let fd = open_directory(dir.path(), Links::Refuse).unwrap();
        let names = || -> Vec<OsString> {
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        let mut settings = Settings::new(Engine::RocksDb);
        let asked = |names: &[OsString]| are_recycled(fd.as_fd(), names, &spec, || unreachable!());
        assert_eq!(asked(&names()), Some(true));
        write("OPTIONS-000009", "[DBOptions]\n  recycle_log_file_num=0\n");
        assert_eq!(asked(&names()), Some(false));
        // Pebble recycles its logs, and has no such setting.
        write("OPTIONS-000010", "[Version]\n  pebble_version=0.1\n\n[Options]\n  bytes_per_sync=524288\n");
        assert_eq!(asked(&names()), None);
        // A log in its own directory (wal_dir).
        assert_eq!(are_recycled(fd.as_fd(), &[], &spec, || &settings), None);
        settings.add(&spec.key, "2", SettingOrigin::File { path: "/db/OPTIONS-000007".into(), line: 3 });
        assert_eq!(are_recycled(fd.as_fd(), &[], &spec, || &settings), Some(true));
    }
}
