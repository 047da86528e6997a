//! Classifies a command, and finds what keeps the library out: by its name, by `--as`, by a
//! profile, or by a word of a command line that starts something else (`sudo -u db tar …`).
//! [`crate::means`] decides from that.
//!
//! Whoever types `run --` before a command wants it to stream: a command that no list and no
//! profile knows counts as a stream, unless it is a server. Shells, and the runtime of servers
//! whose profiles name no process (Java), only start the programs that do the work: there each
//! process is judged by itself. Everything that a followed process brings in is released, so a
//! database is never classified as a stream: it would lose its cache. Never fails.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::settings::{Role, Settings};
use pagekeeper_policy::names;
use pagekeeper_preload::launcher::{ELSEWHERE, MAPPING};
use pagekeeper_text::escaped;

use crate::command_line::{
    MULTI_CALL_PROGRAMS, SHELL_NAMES, base, behind_prefixes, behind_starters, comm, first_program,
    is_in_scope, is_one_of, is_wrapper, keeps_environment,
};
use crate::means::ProgramKind;
use crate::obstacle::{self, Obstacle};

/// Programs that start a server, but have none of its names.
const SERVER_STARTERS: [&str; 5] = ["pg_ctl", "pg_ctlcluster", "supervisord", "s6-svscan", "runsvdir"];

/// Parts of names that a server's name does not have, whatever else it starts with:
/// `mysql-backup.sh`.
const BACKUP_NAME_PARTS: [&[u8]; 2] = [b"backup", b"dump"];

/// A reason why the library does not reach the program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LibraryHindrance {
    /// The program itself.
    #[error("{0}")]
    Program(Obstacle),
    /// It starts another program, which does not get the library.
    #[error("{} starts its command without the library", escaped(.0))]
    Wrapper(OsString),
    /// It makes another process start the program.
    #[error("{} has its command started by another process, which the rules do not reach", escaped(.0))]
    Elsewhere(OsString),
}

/// The classification of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandClass {
    pub(crate) kind: ProgramKind,
    /// The reason why the library does not reach it.
    pub(crate) hindrance: Option<LibraryHindrance>,
    /// Whether it is a stream known to map its input, which the library does not see.
    pub(crate) maps: bool,
}

/// Classifies the command whose program is this file.
pub(crate) fn classify_command(file: &Path, command: &[OsString], settings: &Settings) -> CommandClass {
    let (file, command) = behind_prefixes(file, command);
    let name = command.first().map_or(OsStr::new(""), |name| base(name));
    let hindrance = find_hindrance(&file, name, command.get(1..).unwrap_or_default());
    let kind = match hindrance {
        Some(LibraryHindrance::Elsewhere(_)) => ProgramKind::Elsewhere,
        _ => kind(command, settings),
    };
    let maps = kind == ProgramKind::Stream && is_one_of(name, &MAPPING);
    CommandClass { kind, hindrance, maps }
}

/// Returns the name of the command (`comm`) if it is on no list and in no profile, and its
/// processes count as what they are called.
pub(crate) fn unlisted(command: &[OsString], settings: &Settings) -> Option<String> {
    if settings.role != Role::Auto {
        return None;
    }
    let (name, rest) = behind_starters(command)?.split_first()?;
    let name = base(name);
    let comm = comm(name);
    if is_one_of(name, &SHELL_NAMES)
        || is_one_of(name, &MULTI_CALL_PROGRAMS)
        || name == "java"
        || is_streaming(name, settings)
        || is_server(comm, settings)
        || are_given_a_server(rest, settings)
    {
        return None;
    }
    std::str::from_utf8(comm).ok().filter(|comm| !comm.contains('\n')).map(str::to_owned)
}

fn find_hindrance(file: &Path, name: &OsStr, rest: &[OsString]) -> Option<LibraryHindrance> {
    if is_one_of(name, &ELSEWHERE) && !is_in_scope(rest) {
        Some(LibraryHindrance::Elsewhere(name.to_owned()))
    } else if is_wrapper(name) && !keeps_environment(name, rest) {
        Some(LibraryHindrance::Wrapper(name.to_owned()))
    } else {
        obstacle::find_obstacle(file).map(LibraryHindrance::Program)
    }
}

/// Classifies a command behind its prefixes, with its processes on this host.
fn kind(command: &[OsString], settings: &Settings) -> ProgramKind {
    match settings.role {
        Role::Stream => return ProgramKind::Stream,
        Role::Bulk | Role::Logs => return ProgramKind::Server,
        Role::Auto => {}
    }
    let Some((name, rest)) = command.split_first() else { return ProgramKind::Script };
    let name = base(name);
    let applet = rest.first().filter(|_| is_one_of(name, &MULTI_CALL_PROGRAMS)).map(|word| base(word));
    if is_streaming(name, settings) || applet.is_some_and(|applet| is_streaming(applet, settings)) {
        ProgramKind::Stream
    } else if is_wrapper(name) {
        kind_behind_wrapper(rest, settings)
    } else if is_server(comm(name), settings)
        || name == "java"
        || (is_one_of(name, &SHELL_NAMES) && starts_server(rest, settings))
        || are_given_a_server(rest, settings)
    {
        ProgramKind::Server
    } else {
        ProgramKind::Script
    }
}

/// Classifies what sudo(8) and similar programs start.
fn kind_behind_wrapper(rest: &[OsString], settings: &Settings) -> ProgramKind {
    let inner = first_program(rest).map(|(_, inner)| inner).filter(|inner| !inner.is_empty());
    let inner_name = inner.and_then(|inner| inner.first()).map(|name| base(name));
    let starts_stream = rest.iter().any(|word| starts_stream(word, settings));
    if let Some(inner) = inner.filter(|_| inner_name.is_some_and(|name| is_one_of(name, &SHELL_NAMES))) {
        return if starts_stream { ProgramKind::Script } else { kind(inner, settings) };
    }
    if starts_stream {
        return ProgramKind::Stream;
    }
    // With --profile the rules apply to everything that is not a stream.
    let is_ruled = settings.profiles.iter().any(|profile| profile.processes.iter().any(|name| name == "*"));
    let unknown = if is_ruled { ProgramKind::Server } else { ProgramKind::Script };
    inner.map_or(unknown, |inner| kind(inner, settings))
}

/// Whether a shell with these words starts a server: as its script, or as the first word of a
/// command in its text.
fn starts_server(words: &[OsString], settings: &Settings) -> bool {
    let is_option = |word: &&OsString| word.as_bytes().starts_with(b"-");
    let Some(text) = words.iter().find(|word| !is_option(word)) else { return false };
    let mut commands = text.as_bytes().split(|byte| matches!(byte, b';' | b'|' | b'&' | b'(' | b'\n'));
    commands.any(|command| {
        let words = command.split(u8::is_ascii_whitespace);
        let mut words = words.filter(|word| !word.is_empty() && word != b"exec");
        words.next().is_some_and(|word| {
            let name = base(OsStr::from_bytes(word));
            !is_streaming(name, settings) && is_server(comm(name), settings)
        })
    })
}

fn is_streaming(name: &OsStr, settings: &Settings) -> bool {
    let comm = comm(name);
    settings.command.as_ref().is_some_and(|command| command.as_bytes() == comm)
        || settings.streams.iter().any(|stream| names::matches_name(stream.as_bytes(), comm).is_some())
}

/// Whether a word of a command line names a stream, or is shell text that contains such a word.
fn starts_stream(word: &OsStr, settings: &Settings) -> bool {
    let words =
        word.as_bytes().split(|byte| byte.is_ascii_whitespace() || matches!(byte, b';' | b'|' | b'&' | b'('));
    words.filter(|word| !word.is_empty()).any(|word| is_streaming(base(OsStr::from_bytes(word)), settings))
}

/// Whether a profile applies to it: one for processes of that name, or whose name is part of it
/// (`cassandra`, `kafka-server-start.sh`, `mariadbd-safe`).
fn is_server(comm: &[u8], settings: &Settings) -> bool {
    if is_one_of(OsStr::from_bytes(comm), &SERVER_STARTERS) {
        return true;
    }
    let is_no_server =
        BACKUP_NAME_PARTS.iter().any(|part| comm.windows(part.len()).any(|bytes| bytes == *part));
    settings.profiles.iter().any(|profile| {
        let mut names = profile.processes.iter().map(String::as_str).chain([profile.name.as_str()]);
        names.any(|name| {
            // A truncated name may match only by its pattern.
            (comm.starts_with(name.as_bytes()) && !is_no_server)
                || names::matches_name(name.as_bytes(), comm).is_some()
        })
    })
}

/// Whether a word names a server's program, as in the words of an entry point:
/// `docker-entrypoint.sh mariadbd`.
fn are_given_a_server(words: &[OsString], settings: &Settings) -> bool {
    let is_program = |word: &OsString| {
        let comm = comm(base(word));
        let mut names = settings.profiles.iter().flat_map(|profile| &profile.processes);
        names.any(|name| name != "*" && names::matches_name(name.as_bytes(), comm).is_some())
    };
    let is_path = |word: &OsString| word.as_encoded_bytes().contains(&b'/');
    // Directories of servers have their names, too.
    words.iter().any(|word| is_program(word) && (!is_path(word) || Path::new(word).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::Choice;
    use crate::settings::ProfileRules;

    fn covered(role: Role, words: &[&str]) -> CommandClass {
        let settings = Settings {
            role,
            streams: ["tar", "pg_*", "b3sum"].map(str::to_owned).to_vec(),
            command: None,
            budget: 0,
            report: None,
            readers: None,
            launcher: None,
            profiles: vec![ProfileRules {
                name: "db".to_owned(),
                processes: vec!["dbd".to_owned()],
                files: Vec::new(),
            }],
        };
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        classify_command(Path::new("/bin/sh"), &words, &settings)
    }

    use ProgramKind::{Elsewhere, Script, Server, Stream};

    #[test]
    fn each_kind_is_known() {
        for (role, words, kind) in [
            (Role::Auto, &["tar", "-c"][..], Stream),
            (Role::Auto, &["env", "A=b", "tar"], Stream),
            (Role::Auto, &["nice", "b3sum"], Stream),
            (Role::Auto, &["busybox", "tar"], Stream),
            (Role::Auto, &["sudo", "-u", "db", "/usr/bin/tar", "-c"], Stream),
            (Role::Auto, &["su", "-", "db", "-c", "cd /d; tar -c ."], Stream),
            (Role::Auto, &["unshare", "-p", "tar"], Stream),
            (Role::Stream, &["sh"], Stream),
            (Role::Auto, &["sh", "-c", "tar"], Script),
            (Role::Auto, &["sh", "-c", "tar -c /var/lib/dbd; echo dbd"], Script),
            (Role::Auto, &["sudo", "sh", "-c", "tar"], Script),
            (Role::Auto, &["busybox", "sh"], Script),
            (Role::Auto, &["sudo", "-u", "nobody-here", "sh", "backup.sh"], Script),
            (Role::Auto, &["dbd"], Server),
            (Role::Auto, &["sh", "-ec", "cd /; exec /usr/sbin/dbd --x"], Server),
            (Role::Auto, &["sh", "/usr/bin/db-start"], Server),
            (Role::Auto, &["sh", "/usr/bin/db-backup.sh"], Script),
            (Role::Auto, &["java", "-jar", "x"], Server),
            (Role::Auto, &["entry-point.sh", "dbd", "--x"], Server),
            (Role::Auto, &["gosu", "db", "dbd"], Server),
            (Role::Auto, &["su", "db", "-s", "/bin/sh", "-c", "dbd"], Server),
            (Role::Auto, &["su", "db", "-s", "/bin/sh", "-c", "tar -c /var/lib/dbd"], Script),
            (Role::Auto, &["entry-point.sh", "/var/lib/dbd"], Script),
            (Role::Bulk, &["tar"], Server),
            (Role::Stream, &["docker", "exec", "db", "tar"], Elsewhere),
        ] {
            assert_eq!(covered(role, words).kind, kind, "{role:?} {words:?}");
        }
    }

    #[test]
    fn programs_that_the_library_misses_are_known() {
        assert!(covered(Role::Auto, &["nice", "b3sum"]).maps);
        assert!(covered(Role::Stream, &["b3sum"]).maps);
        assert!(!covered(Role::Auto, &["tar"]).maps);
        assert!(!covered(Role::Bulk, &["b3sum"]).maps);
        for words in
            [&["tar", "-c"][..], &["sh", "-c", "tar"], &["env", "A=b", "tar"], &["unshare", "-p", "tar"]]
        {
            assert_eq!(covered(Role::Auto, words).hindrance, None, "{words:?}");
        }
        for words in [
            &["sudo", "pg_dump"][..],
            &["su", "db", "-c", "start tarred"],
            &["env", "-i", "tar"],
            &["env", "-", "tar"],
            &["env", "-C", "/", "-i", "A=b", "tar"],
            &["nice", "sudo", "tar"],
            &["chroot", "/r", "tar"],
            &["unshare", "-pR", "/r", "tar"],
            &["nsenter", "-t1", "-m", "tar"],
        ] {
            let cover = covered(Role::Auto, words);
            assert!(matches!(cover.hindrance, Some(LibraryHindrance::Wrapper(_))), "{words:?}");
        }
    }

    #[test]
    fn work_done_by_other_processes_is_reported() {
        for words in [&["docker", "exec", "db", "tar"][..], &["systemd-run", "tar"]] {
            let cover = covered(Role::Stream, words);
            assert!(matches!(cover.hindrance, Some(LibraryHindrance::Elsewhere(_))), "{words:?}");
        }
        assert_eq!(covered(Role::Auto, &["systemd-run", "--scope", "tar"]).hindrance, None);
    }

    fn taken(words: &[&str], choice: &Choice) -> Option<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        unlisted(&words, &choice.settings(1 << 20).unwrap())
    }

    #[test]
    fn an_unlisted_command_counts_as_a_stream() {
        for (words, expected) in [
            (&["/opt/own-backup", "-x"][..], Some("own-backup")),
            (&["a-name-of-too-many-letters"], Some("a-name-of-too-m")),
            (&["timeout", "2h", "env", "A=b", "ls"], Some("ls")),
            (&["sudo", "-u", "nobody-here", "ls"], Some("ls")),
            (&["env", "-i", "ls"], Some("ls")),
            (&["setsid", "-w", "tar"], None),
            (&["tar", "-c"], None),
            (&["sh", "-c", "ls"], None),
            (&["sudo", "sh", "-c", "ls"], None),
            (&["su", "nobody-here", "-c", "start it all"], None),
            (&["env"], None),
            (&["docker", "exec", "db", "ls"], None),
            (&["./mysql-backup.sh"], Some("mysql-backup.sh")),
            (&["busybox", "sh"], None),
            (&["a\nb"], None),
            (&[], None),
        ] {
            assert_eq!(taken(words, &Choice::default()).as_deref(), expected, "{words:?}");
        }
    }

    #[test]
    fn servers_and_chosen_programs_are_not_classified() {
        for server in
            ["/usr/sbin/mariadbd", "mysqld_safe", "etcd", "cassandra", "kafka-server-start.sh", "java"]
        {
            assert_eq!(taken(&[server], &Choice::default()), None, "{server}");
        }
        let profile = Choice { profile: Some("rocksdb".to_owned()), ..Choice::default() };
        assert_eq!(taken(&["own-server"], &profile), None);
    }
}
