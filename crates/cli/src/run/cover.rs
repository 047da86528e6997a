//! By what means the rules reach a command: the library, events of the kernel ([`Follower`](super::follower::Follower)), both, or neither.
//!
//! All that a followed process brings in is released, so only streams are followed: a database would lose its cache. What a command
//! streams is known by its name, by `--as stream`, or by a word of a command line that starts something else (`sudo -u db tar …`).
//! Invariant: what neither reaches is said, before it starts. Never fails.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::text::escaped;
use pagekeeper_policy::names;
use pagekeeper_preload::launcher::{ELSEWHERE, MAPPING, WRAPPERS};
use pagekeeper_preload::settings::{Role, Settings};

use super::find;
use super::obstacle::{self, Obstacle};

/// Programs that become another, with the library if that can have it.
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
/// Prefixes of prefixes that are followed.
pub(super) const DEPTH_MAX: usize = 4;

/// Programs that are many in one: which one their first word says.
const MANY_IN_ONE: [&str; 2] = ["busybox", "toybox"];

/// Bytes of a process's name that the kernel keeps.
const COMM_MAX: usize = 15;

/// What is in the library's way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// The program itself.
    Program(Obstacle),
    /// It starts another, which does not get the library.
    Wrapper(OsString),
    /// It has somebody else start another.
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

/// How a command is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cover {
    /// Why the library alone is not enough.
    pub(crate) hindrance: Option<Hindrance>,
    /// Whether it is a stream that is to be followed by events.
    pub(crate) wants_events: bool,
}

/// How the command is reached whose program is this file.
pub(crate) fn cover(file: &Path, command: &[OsString], settings: &Settings) -> Cover {
    let (file, command) = behind_prefixes(file, command);
    cover_plain(&file, command, settings)
}

/// The directory that chroot(1) makes the root of what it starts, if the command is that.
pub(crate) fn other_root(command: &[OsString]) -> Option<PathBuf> {
    let (_, command) = behind_prefixes(Path::new(""), command);
    let (name, rest) = command.split_first()?;
    // Options may have values of their own: `--groups users`.
    let is_value = |at: usize| at > 0 && (rest[at - 1] == "--groups" || rest[at - 1] == "--userspec");
    let is_root = |&(at, word): &(usize, &OsString)| {
        !word.as_bytes().starts_with(b"-") && !is_value(at) && Path::new(word).is_dir()
    };
    let (_, root) = (base(name) == "chroot").then(|| rest.iter().enumerate().find(is_root))??;
    Some(PathBuf::from(root))
}

/// What the command becomes behind what it only passes through, and its file.
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

/// What a prefix becomes: the first of its words that is a program, which its options and their values are not.
fn behind_prefix(command: &[OsString]) -> Option<(PathBuf, &[OsString])> {
    let (name, rest) = command.split_first()?;
    let name = base(name);
    let is_prefix = PREFIXES.iter().any(|prefix| OsStr::new(prefix) == name);
    let loses =
        name == "env" && !keeps_environment(name, rest) || name == "systemd-run" && !is_in_scope(rest);
    if is_prefix && !loses { first_program(rest) } else { None }
}

/// The first word that is a program, and its file; words of options, and variables, are none.
pub(super) fn first_program(words: &[OsString]) -> Option<(PathBuf, &[OsString])> {
    words.iter().enumerate().find_map(|(at, word)| {
        let is_option = word.as_bytes().starts_with(b"-") || word.as_bytes().contains(&b'=');
        let file = (!is_option).then(|| find::find(word).ok())??;
        Some((file, &words[at..]))
    })
}

fn cover_plain(file: &Path, command: &[OsString], settings: &Settings) -> Cover {
    let name = command.first().map_or(OsStr::new(""), |name| base(name));
    let is_one_of = |names: &[&str]| names.iter().any(|known| OsStr::new(known) == name);
    let rest = command.get(1..).unwrap_or_default();
    // env(1) may clear the environment.
    let is_wrapper = is_one_of(&WRAPPERS) || name == "env";
    let hindrance = if is_one_of(&ELSEWHERE) && !is_in_scope(rest) {
        Some(Hindrance::Elsewhere(name.to_owned()))
    } else if is_wrapper && !keeps_environment(name, rest) {
        Some(Hindrance::Wrapper(name.to_owned()))
    } else {
        obstacle::obstacle(file).map(Hindrance::Program)
    };
    let is_stream = settings.role == Role::Stream
        || is_streaming(name, settings)
        || (is_one_of(&MANY_IN_ONE) && rest.first().is_some_and(|word| is_streaming(base(word), settings)))
        || (is_wrapper && rest.iter().any(|word| starts_stream(word, settings)));
    let wants_events = match hindrance {
        Some(Hindrance::Elsewhere(_)) => false,
        Some(Hindrance::Program(_) | Hindrance::Wrapper(_)) => is_stream,
        // It may use io_uring or mappings, or start what no library can be loaded into.
        None => settings.role == Role::Stream || is_stream && is_one_of(&MAPPING),
    };
    Cover { hindrance, wants_events }
}

pub(super) fn base(word: &OsStr) -> &OsStr {
    Path::new(word).file_name().unwrap_or(word)
}

/// A program's name as the kernel keeps it of its process.
pub(super) fn comm(name: &OsStr) -> &[u8] {
    let name = name.as_bytes();
    name.get(..COMM_MAX).unwrap_or(name)
}

pub(super) fn is_streaming(name: &OsStr, settings: &Settings) -> bool {
    let comm = comm(name);
    settings.command.as_ref().is_some_and(|command| command.as_bytes() == comm)
        || settings.streams.iter().any(|stream| names::matches_name(stream.as_bytes(), comm).is_some())
}

/// Whether a word of a command line names a stream, or is a shell's text in which a word does.
fn starts_stream(word: &OsStr, settings: &Settings) -> bool {
    let words =
        word.as_bytes().split(|byte| byte.is_ascii_whitespace() || matches!(byte, b';' | b'|' | b'&' | b'('));
    words.filter(|word| !word.is_empty()).any(|word| is_streaming(base(OsStr::from_bytes(word)), settings))
}

/// `systemd-run --scope` becomes its command.
pub(super) fn is_in_scope(rest: &[OsString]) -> bool {
    rest.iter().any(|word| word == "--scope")
}

/// env(1) starts its command with the library unless it is to clear the environment, or take that variable out;
/// unshare(1) and nsenter(1) unless they enter another root or tree of files, where the library may not be.
fn keeps_environment(name: &OsStr, rest: &[OsString]) -> bool {
    // Up to the program: values of options, and variables, stand between.
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

    fn covered(role: Role, words: &[&str]) -> Cover {
        let settings = Settings {
            role,
            streams: ["tar", "pg_*", "b3sum"].map(str::to_owned).to_vec(),
            command: None,
            budget: 0,
            report: None,
            launcher: None,
            profiles: Vec::new(),
        };
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        cover(Path::new("/bin/sh"), &words, &settings)
    }

    #[test]
    fn the_library_does_for_most() {
        for words in
            [&["tar", "-c"][..], &["sh", "-c", "tar"], &["env", "A=b", "tar"], &["unshare", "-p", "tar"]]
        {
            assert_eq!(
                covered(Role::Auto, words),
                Cover { hindrance: None, wants_events: false },
                "{words:?}"
            );
        }
        assert!(covered(Role::Stream, &["sh"]).wants_events);
        let mapping = Cover { hindrance: None, wants_events: true };
        assert_eq!(covered(Role::Auto, &["nice", "b3sum"]), mapping);
        assert!(!covered(Role::Bulk, &["b3sum-of-others"]).wants_events);
    }

    #[test]
    fn what_loses_the_library_is_followed_where_it_streams() {
        for (words, wants_events) in [
            (&["sudo", "-u", "db", "/usr/bin/tar", "-c"][..], true),
            (&["/usr/bin/sudo", "pg_dump"], true),
            (&["su", "-", "db", "-c", "cd /d; tar -c ."], true),
            (&["env", "-i", "tar"], true),
            (&["env", "-", "tar"], true),
            (&["env", "-C", "/", "-i", "A=b", "tar"], true),
            (&["nice", "sudo", "tar"], true),
            (&["chroot", "/r", "tar"], true),
            (&["unshare", "-pR", "/r", "tar"], true),
            (&["nsenter", "-t1", "-m", "tar"], true),
            (&["sudo", "mariadbd"], false),
            (&["su", "db", "-c", "start tarred"], false),
        ] {
            let cover = covered(Role::Auto, words);
            assert!(matches!(cover.hindrance, Some(Hindrance::Wrapper(_))), "{words:?}");
            assert_eq!(cover.wants_events, wants_events, "{words:?}");
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
            assert!(
                matches!(cover.hindrance, Some(Hindrance::Elsewhere(_))) && !cover.wants_events,
                "{words:?}"
            );
        }
        assert_eq!(covered(Role::Auto, &["systemd-run", "--scope", "tar"]).hindrance, None);
    }
}
