//! The command typed after `run --`: if no list and no profile knows it, it counts as a stream.
//!
//! Whoever types `run --` before a command wants it to stream, unless it is a server. Shells, and the runtime of
//! servers whose profiles name no process (Java), only start the programs that do the work: there each process is
//! judged by itself. Never fails.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use pagekeeper_kernel::text::escaped;
use pagekeeper_policy::names;
use pagekeeper_preload::launcher::{ELSEWHERE, WRAPPERS};
use pagekeeper_preload::settings::{Role, Settings};

use super::cover::{self, PREFIXES};
use crate::output;

/// Programs that only start the ones that do the work.
pub(super) const SHELLS: [&str; 10] =
    ["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "csh", "tcsh"];

/// Programs that start a server, but have none of its names.
const STARTERS: [&str; 5] = ["pg_ctl", "pg_ctlcluster", "supervisord", "s6-svscan", "runsvdir"];

/// Parts of names that a server's name does not have, whatever else it starts with: `mysql-backup.sh`.
const NO_SERVER: [&[u8]; 2] = [b"backup", b"dump"];

/// Returns the name of the command (`comm`) if it is on no list and in no profile, and its processes count as what
/// they are called.
pub(super) fn unlisted(command: &[OsString], settings: &Settings) -> Option<String> {
    if settings.role != Role::Auto {
        return None;
    }
    let (name, rest) = behind_starters(command)?.split_first()?;
    let name = cover::base(name);
    let comm = cover::comm(name);
    let is_one_of = |known: &[&str]| known.iter().any(|known| OsStr::new(known) == name);
    if is_one_of(&SHELLS)
        || is_one_of(&cover::MANY_IN_ONE)
        || name == "java"
        || cover::is_streaming(name, settings)
        || is_server(comm, settings)
        || are_given_a_server(rest, settings)
    {
        return None;
    }
    std::str::from_utf8(comm).ok().filter(|comm| !comm.contains('\n')).map(str::to_owned)
}

/// Reports how it is treated.
pub(super) fn say(command: &str) {
    let command = escaped(Path::new(command));
    output::complain(format_args!(
        "{command} is taken for a stream: pages that it brings in are released, and servers that it starts have no rules (--as stream: it is a stream; --profile NAME: it is or starts a server)"
    ));
}

/// Returns the command behind all its starters; `None` if another process starts it, or if it can't be determined.
fn behind_starters(mut command: &[OsString]) -> Option<&[OsString]> {
    for _ in 0..=cover::DEPTH_MAX {
        let (name, rest) = command.split_first()?;
        let name = cover::base(name);
        let is_one_of = |names: &[&str]| names.iter().any(|known| OsStr::new(known) == name);
        if is_one_of(&ELSEWHERE) && !cover::is_in_scope(rest) {
            return None;
        }
        if !is_one_of(&PREFIXES) && !is_one_of(&WRAPPERS) {
            return Some(command);
        }
        (_, command) = cover::first_program(rest)?;
    }
    None
}

/// Whether a profile applies to it: one for processes of that name, or whose name is part of it (`cassandra`,
/// `kafka-server-start.sh`, `mariadbd-safe`).
pub(super) fn is_server(comm: &[u8], settings: &Settings) -> bool {
    if STARTERS.iter().any(|starter| starter.as_bytes() == comm) {
        return true;
    }
    let is_no_server = NO_SERVER.iter().any(|part| comm.windows(part.len()).any(|bytes| bytes == *part));
    settings.profiles.iter().any(|profile| {
        let mut names = profile.processes.iter().map(String::as_str).chain([profile.name.as_str()]);
        names.any(|name| {
            // A truncated name may match only by its pattern.
            (comm.starts_with(name.as_bytes()) && !is_no_server)
                || names::matches_name(name.as_bytes(), comm).is_some()
        })
    })
}

/// Whether a word names a server's program, as in the words of an entry point: `docker-entrypoint.sh mariadbd`.
pub(super) fn are_given_a_server(words: &[OsString], settings: &Settings) -> bool {
    let is_program = |word: &OsString| {
        let comm = cover::comm(cover::base(word));
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
    use crate::run::choice::Choice;

    fn taken(words: &[&str], choice: &Choice) -> Option<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        unlisted(&words, &choice.settings(1 << 20).unwrap())
    }

    #[test]
    fn a_command_on_no_list_is_taken_for_a_stream() {
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
    fn a_server_and_what_was_chosen_are_not() {
        for server in
            ["/usr/sbin/mariadbd", "mysqld_safe", "etcd", "cassandra", "kafka-server-start.sh", "java"]
        {
            assert_eq!(taken(&[server], &Choice::default()), None, "{server}");
        }
        let profile = Choice { profile: Some("rocksdb".to_owned()), ..Choice::default() };
        assert_eq!(taken(&["own-server"], &profile), None);
    }
}
