//! Determines which server a process of the `MySQL` family is, `MySQL` or `MariaDB`, and its
//! version.
//!
//! Both are called `mysqld`, and up to `MySQL` 8.0.29 both have their redo log in `ib_logfileN`, so
//! neither name nor log distinguishes them. The program itself does. `MariaDB` contains its version
//! as `10.11.14-MariaDB`. `MySQL` contains the name of its group `mysqld-8.0`, and an option that
//! `MariaDB` only ignores. If the program can't be read, files that only one of them creates
//! decide. Otherwise the server stays uncertain.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use pagekeeper_kernel::InspectedFile;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::{unescaped, unescaped_bytes};

use super::program_search::ProgramSearch;
use super::{Engine, ServerFacts};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Maximum length in bytes of a text to find, including its context.
const SEARCH_TEXT_BYTES_MAX: usize = 64;

/// The server that a program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerProgram {
    pub(super) engine: Engine,
    /// "10.11.14", or the part of it that is certain: "8.0".
    pub(super) version: Option<String>,
}

/// Determines which server it is; `None` if that is uncertain.
pub(super) fn detect(
    server: &ServerFacts,
    proc: &ProcRoot,
    searched: &mut ProgramSearch<Option<ServerProgram>>,
) -> Option<ServerProgram> {
    let exe = server.pid.map(|pid| proc.path().join(format!("{pid}/exe")));
    exe.and_then(|exe| searched.of(&exe, search_signs)?.clone()).or_else(|| by_files(server))
}

/// Searches a program for signs of its server.
fn search_signs(program: &InspectedFile, most: u64) -> Option<ServerProgram> {
    let mut signs = ProgramSigns::default();
    scan_for(program, most, b"-", |text, at| signs.record(text, at))?;
    if let Some(version) = signs.mariadb {
        return Some(ServerProgram { engine: Engine::MariaDb, version: Some(version) });
    }
    if !signs.mysql_option {
        return None;
    }
    let version = signs.base.and_then(|base| {
        let mut full = BTreeSet::new();
        scan_for(program, most, format!("{base}.").as_bytes(), |text, at| {
            let patch = digits(&text[at..]);
            if !patch.is_empty() && full.len() < 2 {
                full.insert(format!("{base}.{patch}"));
            }
        })?;
        // Two different versions are ambiguous.
        Some(full.pop_first().filter(|_| full.is_empty()).unwrap_or(base))
    });
    Some(ServerProgram { engine: Engine::MySql, version })
}

/// The signs to search for, all of them around a hyphen.
#[derive(Debug, Default)]
struct ProgramSigns {
    mariadb: Option<String>,
    mysql_option: bool,
    base: Option<String>,
}

impl ProgramSigns {
    /// Records a text with a hyphen just before `at`.
    fn record(&mut self, text: &[u8], at: usize) {
        let (before, after) = (&text[..at - 1], &text[at..]);
        if after.starts_with(b"MariaDB") {
            let length =
                before.iter().rev().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
            let version = unescaped_bytes(&before[before.len() - length..]).into_owned();
            if version.split('.').filter(|part| !part.is_empty()).count() == 3 {
                self.mariadb.get_or_insert(version);
            }
        } else if before.ends_with(b"enforce") && after.starts_with(b"gtid-consistency") {
            self.mysql_option = true;
        } else if before.ends_with(b"mysqld") {
            let major = digits(after);
            let minor = after
                .get(major.len()..)
                .filter(|rest| rest.first() == Some(&b'.'))
                .map(|rest| digits(&rest[1..]));
            if let Some(minor) = minor.filter(|minor| !minor.is_empty() && !major.is_empty()) {
                self.base.get_or_insert(format!("{major}.{minor}"));
            }
        }
    }
}

/// Returns the digits at the start of a text.
fn digits(text: &[u8]) -> String {
    text.iter().take_while(|byte| byte.is_ascii_digit()).take(4).map(|byte| char::from(*byte)).collect()
}

/// Calls `found` for each occurrence of `needle`, with the surrounding text and the index behind
/// it. Returns `None` if the program can't be read. Stops after `most` bytes.
fn scan_for(
    program: &InspectedFile,
    most: u64,
    needle: &[u8],
    mut found: impl FnMut(&[u8], usize),
) -> Option<()> {
    let mut buffer = vec![0; CHUNK_BYTES + 2 * SEARCH_TEXT_BYTES_MAX];
    let mut offset = 0;
    while offset < most {
        // Each chunk is read with its context.
        let start = offset.saturating_sub(SEARCH_TEXT_BYTES_MAX as u64);
        let read = {
            let _call = program.announce_call().ok()?;
            program.file().read_at(&mut buffer, start).ok()?
        };
        let (text, first) = (&buffer[..read], usize::try_from(offset - start).ok()?);
        let mut at = first;
        while let Some(next) = text.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == needle[0]))
        {
            let here = at + next;
            if here >= first + CHUNK_BYTES {
                break;
            }
            if text[here..].starts_with(needle) {
                found(text, here + needle.len());
            }
            at = here + 1;
        }
        if read <= first {
            break;
        }
        offset += CHUNK_BYTES as u64;
    }
    Some(())
}

/// Decides by files that only one of them creates: Aria's logs, or `MySQL`'s dictionary,
/// doublewrite files and redo directory.
fn by_files(server: &ServerFacts) -> Option<ServerProgram> {
    let own = server
        .files
        .iter()
        .filter(|file| server.directories.iter().any(|directory| file.path.starts_with(directory)));
    let (mut mariadb, mut mysql) = (false, false);
    for file in own {
        let Some(name) = file.path.file_name().map(unescaped) else { continue };
        mariadb |= name.starts_with("aria_log");
        let doublewrite = file.path.extension().is_some_and(|ending| ending == "dblwr");
        mysql |= name == "mysql.ibd" || doublewrite || name.starts_with("#ib_redo");
    }
    let engine = match (mariadb, mysql) {
        (true, false) => Engine::MariaDb,
        (false, true) => Engine::MySql,
        (true, true) | (false, false) => return None,
    };
    Some(ServerProgram { engine, version: None })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::settings::ServerFile;
    use crate::settings::testing::server;

    /// Searches a program with these texts in it, far apart.
    fn program(texts: &[&[u8]]) -> Option<ServerProgram> {
        let dir = tempfile::tempdir().unwrap();
        let mut content = Vec::new();
        for text in texts {
            // One of them then lies across the border of two chunks.
            content.resize(content.len().next_multiple_of(CHUNK_BYTES) + CHUNK_BYTES - 5, 0);
            content.extend_from_slice(text);
        }
        let path = dir.path().join("mysqld");
        std::fs::write(&path, content).unwrap();
        let link = dir.path().join("exe");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        ProgramSearch::default().of(&link, search_signs).cloned().flatten()
    }

    #[test]
    fn a_program_tells_its_version() {
        let is = |engine, version: &str| Some(ServerProgram { engine, version: Some(version.to_owned()) });
        let mariadb: [&[u8]; 3] =
            [b"\0mysqld-10.11\0", b"enforce-gtid-consistency", b"\x0010.11.14-MariaDB\0"];
        assert_eq!(program(&mariadb), is(Engine::MariaDb, "10.11.14"));
        let mysql: [&[u8]; 3] = [b"\0enforce-gtid-consistency\0", b"\0mysqld-5.7\0", b"\x005.7.44-log\0"];
        assert_eq!(program(&mysql), is(Engine::MySql, "5.7.44"));
        let two: [&[u8]; 4] = [b"\0enforce-gtid-consistency\0", b"\0mysqld-8.0\0", b"8.0.29", b"8.0.30"];
        assert_eq!(program(&two), is(Engine::MySql, "8.0"));
        let other: [&[u8]; 2] = [b"mysqld-fake", b"1.2.3-Maria"];
        assert_eq!(program(&other), None);
        assert_eq!(ProgramSearch::default().of(Path::new("/nonexistent/exe"), search_signs), None);
    }

    /// Tests on real programs: Debian's, and those that `make test-mysql` or `make test-advice`
    /// fetched.
    #[test]
    fn real_programs_are_recognized() {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target");
        let (mut found, mut mariadb) = (0, vec![PathBuf::from("/usr/sbin/mariadbd")]);
        mariadb.push(target.join("servers/mariadb-11.4.5/bin/mariadbd"));
        mariadb.push(target.join("servers/debian-mariadb/usr/sbin/mariadbd"));
        let mysql =
            ["mysql", "mysql-8.0", "mysql-8.4"].map(|name| target.join(name).join("root/usr/sbin/mysqld"));
        for (engine, paths) in [(Engine::MariaDb, mariadb), (Engine::MySql, mysql.to_vec())] {
            for path in paths.iter().filter(|path| path.exists()) {
                let program = ProgramSearch::default().of(path, search_signs).cloned().flatten();
                let ServerProgram { engine: is, version } = program.unwrap_or_else(|| panic!("{path:?}"));
                assert_eq!(is, engine, "{path:?}");
                assert!(version.is_some_and(|version| version.contains('.')), "{path:?}");
                found += 1;
            }
        }
        if found == 0 {
            pagekeeper_testing::skip("no server of MariaDB or MySQL is here to be examined");
        }
    }

    #[test]
    fn files_of_one_product_decide_where_the_program_does_not() {
        let with = |names: &[&str]| {
            let data = Path::new("/var/lib/mysql");
            let file = |name: &&str| ServerFile { path: data.join(name), opened: Vec::new() };
            let files = names.iter().map(file).collect();
            let whose = ServerFacts { files, ..server(Engine::MariaDb, data, "") };
            detect(&whose, &ProcRoot::default(), &mut ProgramSearch::default()).map(|program| program.engine)
        };
        assert_eq!(with(&["ib_logfile0", "aria_log_control"]), Some(Engine::MariaDb));
        assert_eq!(with(&["ib_logfile0", "ib_logfile1", "mysql.ibd"]), Some(Engine::MySql));
        assert_eq!(with(&["ib_logfile0", "ib_logfile1", "ibdata1"]), None, "MySQL 5.7, or an old MariaDB");
        assert_eq!(with(&["aria_log_control", "mysql.ibd"]), None);
    }
}
