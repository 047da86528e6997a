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

/// Whether a file beside the log says that the log's files are recycled.
pub fn are_recycled(directory: BorrowedFd<'_>, names: &[OsString], spec: &RecycledIf) -> bool {
    let Some(name) = newest(names, &spec.file) else {
        return false;
    };
    let Ok(file) =
        InspectedFile::open_in(directory.as_fd(), name, Expected::Any, Path::new(name).to_path_buf())
    else {
        return false;
    };
    if file.size() > MAX_LEN {
        return false;
    }
    let mut text = Vec::new();
    if file.file().take(MAX_LEN).read_to_end(&mut text).is_err() {
        return false;
    }
    unescaped_bytes(&text).lines().any(|line| {
        line.split_once('=')
            .is_some_and(|(key, value)| key.trim() == spec.key && !matches!(value.trim(), "" | "0" | "false"))
    })
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
        assert!(are_recycled(fd.as_fd(), &names(), &spec));
        write("OPTIONS-000009", "[DBOptions]\n  recycle_log_file_num=0\n");
        assert!(!are_recycled(fd.as_fd(), &names(), &spec));
        assert!(!are_recycled(fd.as_fd(), &[], &spec));
    }
}
