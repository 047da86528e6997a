//! What a database's own command line and files say about how it writes its logs. Only reads; what can't be
//! found is unknown, never guessed.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagekeeper_kernel::text::unescaped_bytes;
use pagekeeper_kernel::{Expected, InspectedFile};
use pagekeeper_policy::names::Pattern;

use crate::profile::RecycledIf;

/// Options files are a few KiB; more than this many bytes is something else.
const MAX_LEN: u64 = 1 << 20;

/// The size that `--NAME=SIZE` gives, with `-` and `_` alike as MySQL and MariaDB have them; the last one
/// counts.
pub fn size_option(command_line: &[OsString], name: &str) -> Option<u64> {
    let same = |byte: u8| if byte == b'-' { b'_' } else { byte };
    command_line.iter().rev().find_map(|argument| {
        let option = argument.as_bytes().strip_prefix(b"--")?;
        let equals = option.iter().position(|&byte| byte == b'=')?;
        let (key, value) = (&option[..equals], &option[equals + 1..]);
        let matches =
            key.len() == name.len() && key.iter().zip(name.bytes()).all(|(&a, b)| same(a) == same(b));
        if !matches {
            return None;
        }
        crate::units::parse_size(&unescaped_bytes(value)).ok()
    })
}

/// Whether a file beside the log says that the log's files are recycled; `None` where there is no such file, or the database
/// has no such setting.
pub fn are_recycled(directory: BorrowedFd<'_>, names: &[OsString], spec: &RecycledIf) -> Option<bool> {
    let name = newest(names, &spec.file)?;
    let path = Path::new(name).to_path_buf();
    let file = InspectedFile::open_in(directory.as_fd(), name, Expected::Any, path).ok()?;
    if file.size() > MAX_LEN {
        return None;
    }
    let mut text = Vec::new();
    file.file().take(MAX_LEN).read_to_end(&mut text).ok()?;
    let text = unescaped_bytes(&text);
    let set = text.lines().filter_map(|line| line.split_once('='));
    let values = set.filter(|(key, _)| key.trim() == spec.key);
    values.map(|(_, value)| !matches!(value.trim(), "" | "0" | "false")).reduce(|one, other| one || other)
}

fn newest<'a>(names: &'a [OsString], pattern: &Pattern) -> Option<&'a OsStr> {
    let numbered =
        names.iter().filter_map(|name| Some((pattern.matches_name(name)?.number.sequence(None), name)));
    numbered.max().map(|(_, name)| name.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::{Links, open_directory};

    #[test]
    fn sizes_of_options_are_read_as_the_server_does() {
        let line: Vec<OsString> =
            ["mariadbd", "--innodb-log_write_ahead-size=512", "--innodb_log_write_ahead_size=4K"]
                .map(OsString::from)
                .to_vec();
        assert_eq!(size_option(&line, "innodb_log_write_ahead_size"), Some(4096));
        assert_eq!(size_option(&line[..2], "innodb_log_write_ahead_size"), Some(512));
        assert_eq!(size_option(&line[..1], "innodb_log_write_ahead_size"), None);
        assert_eq!(
            size_option(&["--innodb_log_write_ahead_size_x=4096".into()], "innodb_log_write_ahead_size"),
            None
        );
    }

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
        assert_eq!(are_recycled(fd.as_fd(), &names(), &spec), Some(true));
        write("OPTIONS-000009", "[DBOptions]\n  recycle_log_file_num=0\n");
        assert_eq!(are_recycled(fd.as_fd(), &names(), &spec), Some(false));
        assert_eq!(are_recycled(fd.as_fd(), &[], &spec), None);
        // Pebble recycles its logs, and has no such setting.
        write("OPTIONS-000010", "[Version]\n  pebble_version=0.1\n\n[Options]\n  bytes_per_sync=524288\n");
        assert_eq!(are_recycled(fd.as_fd(), &names(), &spec), None);
    }
}
