//! The words of a command line: its program behind prefixes (`nice`, `env A=b`), wrappers and
//! shells.
//!
//! Everything here looks at words and files alone. Never fails.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_preload::launcher::{ELSEWHERE, WRAPPERS};

use crate::find;

/// Programs that execute another one, with the library if that can have it.
const PREFIX_COMMANDS: [&str; 13] = [
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
const PREFIX_DEPTH_MAX: usize = 4;

/// Multi-call programs: their first word names the applet.
pub(crate) const MULTI_CALL_PROGRAMS: [&str; 2] = ["busybox", "toybox"];

/// Bytes of a process name that the kernel keeps.
pub(crate) const COMM_BYTES_MAX: usize = 15;

/// Programs that only start the ones that do the work.
pub(crate) const SHELL_NAMES: [&str; 10] =
    ["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "csh", "tcsh"];

pub(crate) fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|known| OsStr::new(known) == name)
}

/// env(1) may clear the environment.
pub(crate) fn is_wrapper(name: &OsStr) -> bool {
    is_one_of(name, &WRAPPERS) || name == "env"
}

pub(crate) fn base(word: &OsStr) -> &OsStr {
    Path::new(word).file_name().unwrap_or(word)
}

/// Returns a program's name as the kernel keeps it for its process.
pub(crate) fn comm(name: &OsStr) -> &[u8] {
    let name = name.as_bytes();
    name.get(..COMM_BYTES_MAX).unwrap_or(name)
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
pub(crate) fn behind_prefixes<'a>(file: &Path, mut command: &'a [OsString]) -> (PathBuf, &'a [OsString]) {
    let mut file = file.to_path_buf();
    for _ in 0..PREFIX_DEPTH_MAX {
        match behind_prefix(command) {
            Some((inner, rest)) => (file, command) = (inner, rest),
            None => break,
        }
    }
    (file, command)
}

/// Returns the command that a prefix executes: it starts at the first word that is a program.
/// Options and their values are not.
fn behind_prefix(command: &[OsString]) -> Option<(PathBuf, &[OsString])> {
    let (name, rest) = command.split_first()?;
    let name = base(name);
    let loses =
        name == "env" && !keeps_environment(name, rest) || name == "systemd-run" && !is_in_scope(rest);
    if is_one_of(name, &PREFIX_COMMANDS) && !loses { first_program(rest) } else { None }
}

/// Returns the first word that is a program, with its file; options and variables are skipped.
pub(crate) fn first_program(words: &[OsString]) -> Option<(PathBuf, &[OsString])> {
    words.iter().enumerate().find_map(|(at, word)| {
        let is_option = word.as_bytes().starts_with(b"-") || word.as_bytes().contains(&b'=');
        let file = (!is_option).then(|| find::find(word).ok())??;
        Some((file, &words[at..]))
    })
}

/// Returns the command behind all its starters; `None` if another process starts it, or if it can't
/// be determined.
pub(crate) fn behind_starters(mut command: &[OsString]) -> Option<&[OsString]> {
    for _ in 0..=PREFIX_DEPTH_MAX {
        let (name, rest) = command.split_first()?;
        let name = base(name);
        if is_one_of(name, &ELSEWHERE) && !is_in_scope(rest) {
            return None;
        }
        if !is_one_of(name, &PREFIX_COMMANDS) && !is_one_of(name, &WRAPPERS) {
            return Some(command);
        }
        (_, command) = first_program(rest)?;
    }
    None
}

/// `systemd-run --scope` executes its command itself.
pub(crate) fn is_in_scope(rest: &[OsString]) -> bool {
    rest.iter().any(|word| word == "--scope")
}

/// Whether a program keeps the library's environment. env(1) does, unless it clears the environment
/// or removes that variable. unshare(1) and nsenter(1) do, unless they enter another root or mount
/// namespace, where the library may be missing.
pub(crate) fn keeps_environment(name: &OsStr, rest: &[OsString]) -> bool {
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
}
