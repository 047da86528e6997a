//! Classifies a command, and finds what keeps the library out: by its name, by `--as`, by a profile, or by a word
//! of a command line that starts something else (`sudo -u db tar …`). [`super::means`] decides from that.
//!
//! Everything that a followed process brings in is released, so a database is never classified as a stream: it
//! would lose its cache. Never fails.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::text::escaped;
use pagekeeper_policy::names;
use pagekeeper_preload::launcher::{ELSEWHERE, MAPPING, WRAPPERS};
use pagekeeper_preload::settings::{Role, Settings};

use super::find;
use super::means::ProgramKind;
use super::obstacle::{self, Obstacle};
use super::typed::{self, SHELLS};

/// Programs that execute another one, with the library if that can have it.
pub(super) const PREFIXES: [&str; 13] = [
    "env",
    "nice",
    "ionice",
    "chrt",
    "taskset",
    "timeout",
    "nohup",
    "setsid",
    "stdbuf",
    "time",
    "setpriv",
    "flock",
    "systemd-run",
];
/// Maximum depth of nested prefixes.
pub(super) const DEPTH_MAX: usize = 4;

/// Multi-call programs: their first word names the applet.
pub(super) const MANY_IN_ONE: [&str; 2] = ["busybox", "toybox"];

/// Bytes of a process name that the kernel keeps.
const COMM_MAX: usize = 15;

/// A reason why the library does not reach the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// The program itself.
    Program(Obstacle),
    /// It starts another program, which does not get the library.
    Wrapper(OsString),
    /// It makes another process start the program.
    Elsewhere(OsString),
}

impl std::fmt::Display for Hindrance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Program(obstacle) => obstacle.fmt(f),
            Self::Wrapper(name) => {
                write!(f, "{} starts its command without the library", escaped(Path::new(name)))
            }
            Self::Elsewhere(name) => {
                write!(
                    f,
                    "{} has its command started by another process, which the rules do not reach",
                    escaped(Path::new(name))
                )
            }
        }
    }
}

/// The classification of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cover {
    pub(crate) kind: ProgramKind,
    /// Why the library does not reach it.
    pub(crate) hindrance: Option<Hindrance>,
    /// Whether it is a stream known to map its input, which the library does not see.
    pub(crate) maps: bool,
}

/// Classifies the command whose program is this file.
pub(crate) fn cover(file: &Path, command: &[OsString], settings: &Settings) -> Cover {
    let (file, command) = behind_prefixes(file, command);
    let name = command.first().map_or(OsStr::new(""), |name| base(name));
    let hindrance = hindrance(&file, name, command.get(1..).unwrap_or_default());
    let kind = match hindrance {
        Some(Hindrance::Elsewhere(_)) => ProgramKind::Elsewhere,
        _ => kind(command, settings),
    };
    let maps = kind == ProgramKind::Stream && is_one_of(name, &MAPPING);
    Cover { kind, hindrance, maps }
}

/// Returns the directory that chroot(1) makes the root of its command, if the command is chroot.
pub(crate) fn other_root(command: &[OsString]) -> Option<PathBuf> {
    let (_, command) = behind_prefixes(Path::new(""), command);
    let (name, rest) = command.split_first()?;
    // Options may have separate values: `--groups users`.
    let is_value = |at: usize| at > 0 && (rest[at - 1] == "--groups" || rest[at - 1] == "--userspec");
    let is_root = |&(at, word): &(usize, &OsString)| {
        !word.as_bytes().starts_with(b"-") && !is_value(at) && Path::new(word).is_dir()
    };
    let (_, root) = (base(name) == "chroot").then(|| rest.iter().enumerate().find(is_root))??;
    Some(PathBuf::from(root))
}

/// Returns the command behind its prefixes, and its file.
fn behind_prefixes<'a>(file: &Path, mut command: &'a [OsString]) -> (PathBuf, &'a [OsString]) {
    let mut file = file.to_path_buf();
    for _ in 0..DEPTH_MAX {
        match behind_prefix(command) {
            Some((inner, rest)) => (file, command) = (inner, rest),
            None => break,
        }
    }
    (file, command)
}

/// Returns the command that a prefix executes: it starts at the first word that is a program. Options and their
/// values are not.
fn behind_prefix(command: &[OsString]) -> Option<(PathBuf, &[OsString])> {
    let (name, rest) = command.split_first()?;
    let name = base(name);
    let is_prefix = PREFIXES.iter().any(|prefix| OsStr::new(prefix) == name);
    let loses =
        name == "env" && !keeps_environment(name, rest) || name == "systemd-run" && !is_in_scope(rest);
    if is_prefix && !loses { first_program(rest) } else { None }
}

/// Returns the first word that is a program, with its file; options and variables are skipped.
pub(super) fn first_program(words: &[OsString]) -> Option<(PathBuf, &[OsString])> {
    words.iter().enumerate().find_map(|(at, word)| {
        let is_option = word.as_bytes().starts_with(b"-") || word.as_bytes().contains(&b'=');
        let file = (!is_option).then(|| find::find(word).ok())??;
        Some((file, &words[at..]))
    })
}

fn hindrance(file: &Path, name: &OsStr, rest: &[OsString]) -> Option<Hindrance> {
    if is_one_of(name, &ELSEWHERE) && !is_in_scope(rest) {
        Some(Hindrance::Elsewhere(name.to_owned()))
    } else if is_wrapper(name) && !keeps_environment(name, rest) {
        Some(Hindrance::Wrapper(name.to_owned()))
    } else {
        obstacle::obstacle(file).map(Hindrance::Program)
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
    let applet = rest.first().filter(|_| is_one_of(name, &MANY_IN_ONE)).map(|word| base(word));
    if is_streaming(name, settings) || applet.is_some_and(|applet| is_streaming(applet, settings)) {
        ProgramKind::Stream
    } else if is_wrapper(name) {
        kind_behind_wrapper(rest, settings)
    } else if typed::is_server(comm(name), settings)
        || name == "java"
        || (is_one_of(name, &SHELLS) && starts_server(rest, settings))
        || typed::are_given_a_server(rest, settings)
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
    if let Some(inner) = inner.filter(|_| inner_name.is_some_and(|name| is_one_of(name, &SHELLS))) {
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

/// Whether a shell with these words starts a server: as its script, or as the first word of a command in its text.
fn starts_server(words: &[OsString], settings: &Settings) -> bool {
    let is_option = |word: &&OsString| word.as_bytes().starts_with(b"-");
    let Some(text) = words.iter().find(|word| !is_option(word)) else { return false };
    let mut commands = text.as_bytes().split(|byte| matches!(byte, b';' | b'|' | b'&' | b'(' | b'\n'));
    commands.any(|command| {
        let words = command.split(u8::is_ascii_whitespace);
        let mut words = words.filter(|word| !word.is_empty() && word != b"exec");
        words.next().is_some_and(|word| {
            let name = base(OsStr::from_bytes(word));
            !is_streaming(name, settings) && typed::is_server(comm(name), settings)
        })
    })
}

fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|known| OsStr::new(known) == name)
}

/// env(1) may clear the environment.
fn is_wrapper(name: &OsStr) -> bool {
    is_one_of(name, &WRAPPERS) || name == "env"
}

pub(super) fn base(word: &OsStr) -> &OsStr {
    Path::new(word).file_name().unwrap_or(word)
}

/// Returns a program's name as the kernel keeps it for its process.
pub(super) fn comm(name: &OsStr) -> &[u8] {
    let name = name.as_bytes();
    name.get(..COMM_MAX).unwrap_or(name)
}

pub(super) fn is_streaming(name: &OsStr, settings: &Settings) -> bool {
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

/// `systemd-run --scope` executes its command itself.
pub(super) fn is_in_scope(rest: &[OsString]) -> bool {
    rest.iter().any(|word| word == "--scope")
}

/// Whether a program keeps the library's environment. env(1) does, unless it clears the environment or removes
/// that variable. unshare(1) and nsenter(1) do, unless they enter another root or mount namespace, where the
/// library may be missing.
fn keeps_environment(name: &OsStr, rest: &[OsString]) -> bool {
    // Up to the program: option values and variables come before it.
    let end = rest.iter().position(|word| {
        let is_option = word.as_bytes().starts_with(b"-") || word.as_bytes().contains(&b'=');
        !is_option && find::find(word).is_ok()
    });
    let before = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
    let options = || before.iter().map(|word| word.as_bytes()).filter(|word| word.starts_with(b"-"));
    let has = |letters: &[u8], words: &[&[u8]]| {
        options().any(|option| match option {
            [b'-', b'-', ..] => words.iter().any(|word| option.starts_with(word)),
            [b'-'] => letters.contains(&b'-'),
            [_, given @ ..] => given.iter().any(|letter| letters.contains(letter)),
            [] => false,
        })
    };
    match name.as_bytes() {
        b"env" => !has(b"-iu", &[b"--ignore-environment", b"--unset"]),
        b"unshare" => !has(b"RS", &[b"--root", b"--setuid"]),
        b"nsenter" => !has(b"mrSaF", &[b"--mount", b"--root", b"--setuid", b"--all"]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_preload::settings::ProfileRules;

    fn covered(role: Role, words: &[&str]) -> Cover {
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
        cover(Path::new("/bin/sh"), &words, &settings)
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
    fn what_the_library_misses_is_known() {
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
            assert!(matches!(cover.hindrance, Some(Hindrance::Wrapper(_))), "{words:?}");
        }
    }

    #[test]
    fn the_root_that_a_command_enters_is_found() {
        let root = |words: &[&str]| other_root(&words.iter().map(OsString::from).collect::<Vec<_>>());
        for words in
            [&["chroot", "/tmp", "ls"][..], &["nice", "chroot", "--userspec", "0:0", "/tmp", "ls", "/"]]
        {
            assert_eq!(root(words), Some(PathBuf::from("/tmp")), "{words:?}");
        }
        for words in [&["ls", "/tmp"][..], &["chroot", "/no/such/root"], &["chroot"], &[]] {
            assert_eq!(root(words), None, "{words:?}");
        }
    }

    #[test]
    fn what_runs_elsewhere_is_said() {
        for words in [&["docker", "exec", "db", "tar"][..], &["systemd-run", "tar"]] {
            let cover = covered(Role::Stream, words);
            assert!(matches!(cover.hindrance, Some(Hindrance::Elsewhere(_))), "{words:?}");
        }
        assert_eq!(covered(Role::Auto, &["systemd-run", "--scope", "tar"]).hindrance, None);
    }
}
