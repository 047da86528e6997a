//! The output of `pagekeeper` without arguments: what it would do on this host, and which commands to use next.
//!
//! Invariants: it takes about a second at most, whatever the size of the host, and says "at least" and "not all"
//! if that was too short. It changes nothing, needs no privileges, and sends no requests to a file system that
//! depends on another machine or process: Kafka, or an engine within another program, is not named if its files
//! are on one. Names given by others are escaped. Fails only if writing to standard output fails.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use pagekeeper_catalog::{Budget, Discovery, KnownProcess, Profile};
use pagekeeper_kernel::hang;
use pagekeeper_kernel::pressure::{MemInfo, SysRoots};
use pagekeeper_kernel::process::{Mount, ProcRoot};
use pagekeeper_observe::{Observer, ObserverOptions, Scope, Selects, Snapshot};
use pagekeeper_text::{Size, count, escaped};

use crate::output;

/// The limit for the whole command, and the part of it for the search for databases.
const PATIENCE: Duration = Duration::from_secs(1);
const SEARCH: Duration = Duration::from_millis(400);
/// Processor time after which the results so far are passed on.
const STEP: Duration = Duration::from_millis(20);
/// Files that are counted for one database.
const FILES: usize = 20_000;
/// Databases whose files are counted, those of system users first; and the number that are shown.
const COUNTED: usize = 8;
const SHOWN: usize = 5;
/// System users have lower IDs than people.
const FIRST_PERSON: u32 = 1000;

/// A database, and the page cache of its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Found {
    pid: u32,
    kind: String,
    held: Held,
}

/// The page cache of a database's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Held {
    /// There was no time to count it.
    #[default]
    Uncounted,
    /// Its files can't be seen.
    Unseen,
    /// They are on a file system that depends on another machine or process.
    Elsewhere { directory: Option<PathBuf> },
    /// In bytes; more if `is_cut`.
    Counted { directory: Option<PathBuf>, logs: u64, others: u64, is_cut: bool },
}

/// The whole output.
#[derive(Debug, Clone, Default)]
struct Hint {
    /// By process ID; `None` until the search has begun to report.
    found: Option<BTreeMap<u32, Found>>,
    /// All processes were inspected.
    is_complete: bool,
    /// Other users' processes can't be seen at all.
    is_hidden: bool,
    is_root: bool,
    memory: Option<MemInfo>,
}

/// A partial result of the search.
enum News {
    Databases { found: BTreeMap<u32, Found>, is_complete: bool },
    Counted(u32, Held),
}

/// Runs the command.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let until = Instant::now() + PATIENCE;
    let roots = SysRoots::default();
    let (send, news) = channel();
    let search_roots = roots.clone();
    // A file system may block it for ever; it ends with the process.
    let searching = std::thread::Builder::new().name("search".to_owned());
    let hint = Hint {
        is_hidden: roots.proc.name(1).is_err(),
        is_root: rustix::process::geteuid().is_root(),
        memory: MemInfo::read(&roots).ok(),
        ..Hint::default()
    };
    let hint = match searching.spawn(move || search(&search_roots, &send)) {
        Ok(_) => hint.heard(&news, until),
        Err(_) => hint,
    };
    let mut out = output::stdout();
    write!(out, "{hint}")?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Searches, and sends its results; the receiver may be gone.
fn search(roots: &SysRoots, send: &Sender<News>) {
    let profiles: Vec<Arc<Profile>> = Profile::built_in().into_iter().map(Arc::new).collect();
    let Some(found) = databases(&roots.proc, &profiles, send) else { return };
    let mut order: Vec<(bool, u32)> = found
        .keys()
        .map(|&pid| {
            let users = roots.proc.users(pid).ok().and_then(|users| users.one());
            (users.is_none_or(|user| user >= FIRST_PERSON), pid)
        })
        .collect();
    order.sort_unstable();
    for (_, pid) in order.into_iter().take(COUNTED) {
        if send.send(News::Counted(pid, held(roots, pid))).is_err() {
            return;
        }
    }
}

/// Finds databases for [`SEARCH`], and sends them as they are found. `None` if the receiver is gone.
fn databases(
    proc: &ProcRoot,
    profiles: &[Arc<Profile>],
    send: &Sender<News>,
) -> Option<BTreeMap<u32, Found>> {
    let (mut discovery, began) = (Discovery::of_own_disks(), Instant::now());
    let mut known: BTreeMap<u32, KnownProcess> = BTreeMap::new();
    loop {
        let budget = Budget { new: STEP, old: Duration::ZERO };
        let found = discovery.advance(proc, &known, profiles, budget, Instant::now());
        let is_over = found.is_err() || discovery.has_seen_all() || began.elapsed() >= SEARCH;
        for found in found.into_iter().flatten() {
            let (profile, certain) = (found.recognised.profile, found.recognised.certain);
            known.insert(found.pid, KnownProcess { profile, certain });
        }
        let found = without_workers(&discovery, &known);
        let news = News::Databases { found: found.clone(), is_complete: discovery.has_seen_all() };
        send.send(news).ok()?;
        if is_over {
            return Some(found);
        }
    }
}

fn without_workers(discovery: &Discovery, known: &BTreeMap<u32, KnownProcess>) -> BTreeMap<u32, Found> {
    // A worker may have been met before the process that started it.
    let is_worker = |pid: &u32, profile: &Profile| {
        let parent = discovery.processes().get(*pid).map(|process| process.parent);
        parent.and_then(|parent| known.get(&parent)).is_some_and(|known| known.profile.name == profile.name)
    };
    let own = known.iter().filter(|(pid, known)| !is_worker(pid, &known.profile));
    own.map(|(&pid, known)| (pid, Found { pid, kind: known.profile.name.clone(), held: Held::default() }))
        .collect()
}

/// Returns the page cache of one database's files.
fn held(roots: &SysRoots, pid: u32) -> Held {
    let mounts = roots.proc.mounts(pid).or_else(|_| roots.proc.own_mounts()).unwrap_or_default();
    let is_elsewhere = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_elsewhere);
    let selects = Selects::new(move |_, directory| {
        let may_hang = may_never_answer(&mounts, directory);
        noted.fetch_or(may_hang, Ordering::Relaxed);
        !may_hang
    });
    let options = ObserverOptions {
        roots: roots.clone(),
        scope: Scope::Pids(vec![pid]),
        selects,
        max_files: FILES,
        ..ObserverOptions::default()
    };
    let snapshot = Observer::start(options).and_then(|mut observer| observer.snapshot());
    let is_elsewhere = is_elsewhere.load(Ordering::Relaxed) || !hang::unanswered().is_empty();
    snapshot.map_or(Held::Unseen, |snapshot| of_snapshot(&snapshot, is_elsewhere))
}

/// Whether a directory is on a file system that depends on another machine or process; no file system is asked.
fn may_never_answer(mounts: &[Mount], directory: &Path) -> bool {
    Mount::of_path(mounts, directory).is_some_and(Mount::may_never_answer)
}

fn of_snapshot(snapshot: &Snapshot, is_elsewhere: bool) -> Held {
    let directories = snapshot.databases.iter().flat_map(|database| &database.directories);
    let directory = directories.min_by_key(|path| path.as_os_str().len()).cloned();
    let of_database = snapshot.files.iter().filter(|file| file.database.is_some());
    let (mut logs, mut others, mut seen, mut unseen) = (0_u64, 0_u64, 0_u64, 0_u64);
    for file in of_database {
        let Some(residency) = file.residency else {
            unseen += 1;
            continue;
        };
        seen += 1;
        let is_log = file.class.is_some_and(pagekeeper_policy::FileClass::is_log);
        let sum = if is_log { &mut logs } else { &mut others };
        *sum = sum.saturating_add(residency.resident);
    }
    match (seen, is_elsewhere) {
        (0, true) => Held::Elsewhere { directory },
        (0, false) => Held::Unseen,
        _ => {
            let is_cut = unseen > 0 || is_elsewhere || !snapshot.visibility_gaps.is_empty();
            Held::Counted { directory, logs, others, is_cut }
        }
    }
}

impl Hint {
    /// Adds the results that arrive until then.
    fn heard(mut self, news: &Receiver<News>, until: Instant) -> Self {
        loop {
            match news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(News::Databases { found, is_complete }) => {
                    (self.found, self.is_complete) = (Some(found), is_complete);
                }
                Ok(News::Counted(pid, held)) => {
                    if let Some(found) = self.found.as_mut().and_then(|found| found.get_mut(&pid)) {
                        found.held = held;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return self,
            }
        }
    }

    /// Returns the databases, those with the most in logs first.
    fn in_order(&self) -> Vec<&Found> {
        let mut found: Vec<&Found> = self.found.iter().flat_map(BTreeMap::values).collect();
        let rank = |held: &Held| match held {
            Held::Counted { logs, .. } => (0, u64::MAX - logs),
            Held::Elsewhere { .. } => (1, 0),
            Held::Uncounted => (2, 0),
            Held::Unseen => (3, 0),
        };
        found.sort_by_key(|found| (rank(&found.held), found.pid));
        found
    }

    fn list(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.in_order();
        for one in found.iter().take(SHOWN) {
            writeln!(f, "  {one}")?;
        }
        if found.len() > SHOWN {
            writeln!(f, "  and {} more", count((found.len() - SHOWN) as u64))?;
        }
        if found.is_empty() {
            let none = if self.found.is_some() && self.is_complete && !self.is_hidden && self.is_root {
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
        if !self.is_complete {
            writeln!(f, "  not all processes could be looked at in a second")?;
        }
        Ok(())
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pagekeeper releases what logs and backups leave in the page cache")?;
        match &self.memory {
            Some(memory) => {
                let (held, all) = (memory.cached.saturating_sub(memory.shmem), memory.total);
                writeln!(f, ", which holds {} of {} of memory here.", Size(held), Size(all))?;
            }
            None => writeln!(f, ".")?,
        }
        self.list(f)?;
        let has_databases = self.found.as_ref().is_some_and(|found| !found.is_empty());
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

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, process {}", escaped(&self.kind), self.pid)?;
        let directory = match &self.held {
            Held::Counted { directory, .. } | Held::Elsewhere { directory } => directory.as_deref(),
            Held::Uncounted | Held::Unseen => None,
        };
        if let Some(directory) = directory {
            write!(f, ", {}", escaped(directory))?;
        }
        match self.held {
            Held::Uncounted => f.write_str(": not counted within a second"),
            Held::Unseen => f.write_str(": its files can't be seen"),
            Held::Elsewhere { .. } => f.write_str(": on a network file system, which is not asked here"),
            Held::Counted { logs, others, is_cut, .. } => {
                let least = if is_cut { "at least " } else { "" };
                write!(f, ": logs hold {least}{} in memory, other files {least}{}", Size(logs), Size(others))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pid: u32, directory: &str, logs: u64) -> (u32, Found) {
        let held = Held::Counted { directory: Some(directory.into()), logs, others: 0, is_cut: false };
        (pid, Found { pid, kind: "mariadb".to_owned(), held })
    }

    fn hint(found: impl IntoIterator<Item = (u32, Found)>) -> Hint {
        Hint { found: Some(found.into_iter().collect()), is_complete: true, is_root: true, ..Hint::default() }
    }

    #[test]
    fn those_that_hold_most_come_first_and_the_rest_is_counted() {
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
    fn five_lines_do_for_one_database_and_for_none() {
        let one = hint([counted(7, "/d", 1 << 20)]).to_string();
        assert_eq!((one.lines().count(), hint([]).to_string().lines().count()), (5, 5), "{one}");
    }

    #[test]
    fn without_a_database_it_says_what_it_saw() {
        let none = hint([]);
        let text = none.to_string();
        assert!(text.contains("no database that it knows is running"), "{text}");
        assert!(text.contains("\nNext: pagekeeper demo ") && !text.contains("guard"), "{text}");
        // Kafka, and engines within other programs, are recognised only by their open files.
        let text = Hint { is_root: false, ..none.clone() }.to_string();
        assert!(text.contains("no database was found") && text.contains("without root, and some"), "{text}");
        let hidden = Hint { is_hidden: true, is_root: false, is_complete: false, ..none };
        let text = hidden.to_string();
        assert!(text.contains("no database was found") && text.contains("are hidden"), "{text}");
        assert!(text.contains("not all processes"), "{text}");
    }

    #[test]
    fn what_hangs_is_not_waited_for() {
        let (send, news) = channel();
        let (pid, found) = counted(9, "/d", 1);
        let uncounted = Found { held: Held::Uncounted, ..found };
        let found = BTreeMap::from([(pid, uncounted)]);
        send.send(News::Databases { found, is_complete: true }).unwrap();
        // The sender is kept: the search never ends.
        let heard = Hint { is_root: false, ..hint([]) }.heard(&news, Instant::now());
        let heard = heard.heard(&news, Instant::now() + Duration::from_millis(10));
        let text = heard.to_string();
        assert!(text.contains("mariadb, process 9: not counted within a second"), "{text}");
        assert!(text.contains("\nNext: sudo pagekeeper guard --dry-run"), "{text}");
        drop(send);
    }

    #[test]
    fn what_somebody_else_answers_for_is_not_asked() {
        let mounts = |line: &str| {
            let proc = tempfile::tempdir().unwrap();
            std::fs::create_dir(proc.path().join("5")).unwrap();
            std::fs::write(proc.path().join("5/mountinfo"), line).unwrap();
            ProcRoot::at(proc.path()).mounts(5).unwrap()
        };
        let mounts = mounts(
            "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /srv/net rw - nfs4 host:/ rw\n\
             3 2 8:2 / /srv/net/disk rw - xfs /dev/b rw\n",
        );
        let asked = |path: &str| !may_never_answer(&mounts, Path::new(path));
        assert!(asked("/srv") && asked("/srv/network") && asked("/srv/net/disk/d"));
        assert!(!asked("/srv/net") && !asked("/srv/net/mysql"));
    }
}
