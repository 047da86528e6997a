//! The output of `pagekeeper` without arguments: what it would do on this host, and which commands
//! to use next.
//!
//! Invariants: it takes about a second at most, whatever the size of the host, and says "at least"
//! and "not all" if that was too short. It changes nothing and needs no privileges. Names given by
//! others are escaped. Fails only if writing to standard output fails.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use pagekeeper_kernel::pressure::{MemInfo, SysRoots};
use pagekeeper_observe::{HeldPages, Overview, RunningDatabase};
use pagekeeper_text::{ByteSize, count, escaped};

use crate::output;

/// The limit for the whole command.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(1);
/// Databases that are shown.
const SHOWN_MAX: usize = 5;

/// The whole output.
#[derive(Debug, Clone, Default)]
struct HostHint {
    overview: Overview,
    /// Other users' processes can't be seen at all.
    is_hidden: bool,
    is_root: bool,
    memory: Option<MemInfo>,
}

/// Runs the command.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let roots = SysRoots::default();
    let hint = HostHint {
        overview: Overview::within(SEARCH_TIME_MAX, &roots),
        is_hidden: roots.proc.name(1).is_err(),
        is_root: rustix::process::geteuid().is_root(),
        memory: MemInfo::read(&roots).ok(),
    };
    output::print(|out| write!(out, "{hint}"))?;
    Ok(ExitCode::SUCCESS)
}

impl HostHint {
    /// Returns the databases, those with the most in logs first.
    fn in_order(&self) -> Vec<(&u32, &RunningDatabase)> {
        let mut found: Vec<_> = self.overview.databases.iter().collect();
        let rank = |held: &HeldPages| match held {
            HeldPages::Counted { logs, .. } => (0, u64::MAX - logs),
            HeldPages::Elsewhere { .. } => (1, 0),
            HeldPages::Uncounted => (2, 0),
            HeldPages::Unseen => (3, 0),
        };
        found.sort_by_key(|(pid, database)| (rank(&database.held), **pid));
        found
    }

    fn list(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.in_order();
        for (pid, database) in found.iter().take(SHOWN_MAX) {
            writeln!(f, "  {}, process {pid}{}", escaped(&database.kind), held_in_words(&database.held))?;
        }
        if found.len() > SHOWN_MAX {
            writeln!(f, "  and {} more", count((found.len() - SHOWN_MAX) as u64))?;
        }
        if found.is_empty() {
            let none = if self.overview.is_complete && !self.is_hidden && self.is_root {
                "no database that it knows is running"
            } else {
                "no database was found"
            };
            writeln!(f, "  {none}")?;
        }
        if self.is_hidden {
            writeln!(f, "  processes of other users are hidden from this one")?;
        } else if !self.is_root {
            writeln!(
                f,
                "  open files of other users can't be seen without root, and some databases are known by these alone"
            )?;
        }
        if !self.overview.is_complete {
            writeln!(f, "  not all processes could be looked at in a second")?;
        }
        Ok(())
    }
}

impl fmt::Display for HostHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pagekeeper releases pages that logs and backups leave in the page cache")?;
        match &self.memory {
            Some(memory) => {
                let (held, all) = (memory.cached.saturating_sub(memory.shmem), memory.total);
                writeln!(f, ", which holds {} of {} of memory here.", ByteSize(held), ByteSize(all))?;
            }
            None => writeln!(f, ".")?,
        }
        self.list(f)?;
        let has_databases = !self.overview.databases.is_empty();
        let next = if has_databases {
            [
                ("pagekeeper guard --dry-run --duration 10s", "what would be released; does nothing"),
                ("pagekeeper doctor", "what the page cache costs these databases, and the fix"),
            ]
        } else {
            [
                ("pagekeeper demo", "half a minute with a small built-in engine"),
                ("pagekeeper run -- COMMAND", "a backup or copy that evicts nothing of others"),
            ]
        };
        let sudo = if has_databases && !self.is_root { "sudo " } else { "" };
        for (label, (line, what)) in ["Next:", ""].into_iter().zip(next) {
            writeln!(f, "{label:<5} {:<46} {what}", format!("{sudo}{line}"))?;
        }
        writeln!(f, "All commands: pagekeeper --help")
    }
}

/// Returns the words behind the name of a database.
fn held_in_words(held: &HeldPages) -> String {
    let in_directory = match held {
        HeldPages::Counted { directory, .. } | HeldPages::Elsewhere { directory } => directory.as_deref(),
        HeldPages::Uncounted | HeldPages::Unseen => None,
    };
    let place = in_directory.map(|directory| format!(", {}", escaped(directory))).unwrap_or_default();
    match held {
        HeldPages::Uncounted => ": not counted within a second".to_owned(),
        HeldPages::Unseen => ": its files can't be seen".to_owned(),
        HeldPages::Elsewhere { .. } => format!("{place}: on a network file system, which is not asked here"),
        HeldPages::Counted { logs, others, is_cut, .. } => {
            let least = if *is_cut { "at least " } else { "" };
            let (logs, others) = (ByteSize(*logs), ByteSize(*others));
            format!("{place}: logs hold {least}{logs} in memory, other files {least}{others}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pid: u32, directory: &str, logs: u64) -> (u32, RunningDatabase) {
        let held = HeldPages::Counted { directory: Some(directory.into()), logs, others: 0, is_cut: false };
        (pid, RunningDatabase { kind: "mariadb".to_owned(), held })
    }

    fn hint(found: impl IntoIterator<Item = (u32, RunningDatabase)>) -> HostHint {
        let overview = Overview { databases: found.into_iter().collect(), is_complete: true };
        HostHint { overview, is_root: true, ..HostHint::default() }
    }

    #[test]
    fn the_largest_holders_come_first_and_others_are_counted() {
        let text = hint((1..=8).map(|pid| counted(pid, "/d", u64::from(pid) << 20))).to_string();
        let first = text.lines().nth(1).unwrap();
        assert_eq!(first, "  mariadb, process 8, /d: logs hold 8 MiB in memory, other files 0 B");
        assert!(text.contains("  and 3 more\n") && !text.contains("process 3,"), "{text}");
        assert!(text.ends_with("All commands: pagekeeper --help\n"), "{text}");
    }

    #[test]
    fn names_of_others_steer_no_terminal() {
        let text = hint([counted(7, "/d/\x1b[2J\nNext: rm", 1)]).to_string();
        assert!(!text.contains('\x1b') && text.lines().count() == 5, "{text}");
    }

    #[test]
    fn the_hint_takes_at_most_five_lines() {
        let one = hint([counted(7, "/d", 1 << 20)]).to_string();
        assert_eq!((one.lines().count(), hint([]).to_string().lines().count()), (5, 5), "{one}");
    }

    #[test]
    fn the_hint_without_a_database_names_the_next_step() {
        let none = hint([]);
        let text = none.to_string();
        assert!(text.contains("no database that it knows is running"), "{text}");
        assert!(text.contains("\nNext: pagekeeper demo ") && !text.contains("guard"), "{text}");
        // Kafka, and engines within other programs, are recognised only by their open files.
        let text = HostHint { is_root: false, ..none }.to_string();
        assert!(text.contains("no database was found") && text.contains("without root, and some"), "{text}");
        let hidden = HostHint { is_hidden: true, ..HostHint::default() };
        let text = hidden.to_string();
        assert!(text.contains("no database was found") && text.contains("are hidden"), "{text}");
        assert!(text.contains("not all processes"), "{text}");
    }

    #[test]
    fn users_other_than_root_are_told_the_command_with_sudo() {
        let uncounted = (9, RunningDatabase { kind: "mariadb".to_owned(), ..RunningDatabase::default() });
        let text = HostHint { is_root: false, ..hint([uncounted]) }.to_string();
        assert!(text.contains("mariadb, process 9: not counted within a second"), "{text}");
        assert!(text.contains("\nNext: sudo pagekeeper guard --dry-run"), "{text}");
    }
}
