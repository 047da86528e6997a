//! Log files that were removed while somebody has them open: no name leads to them, and their pages stay until the last descriptor is
//! closed. A backend of `PostgreSQL` keeps the segment that it wrote last open for as long as it lives, and a purged binlog stays for
//! its reader.
//!
//! They are known by descriptors of a watched database and of its children, and opened through these for one look alone.
//!
//! Invariants:
//! 1. Nothing is done to a file that has a name, or got one again: who reads by that is not seen here. Nor to one that is not the
//!    database's by [the rules of ownership](crate::ownership), that is on another file system than the watched directory it was
//!    in, or that is called as no log of that directory is.
//! 2. One that was written or changed in the last [`QUIET`] is left alone, and so is what lies at or behind a reader.
//! 3. No descriptor of one is held between ticks: its space comes back with the last of the database's own.
//!
//! What can't be seen of one leaves it alone.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::process::{Access, OpenFile, ProcRoot, thread_cpu_time};
use pagekeeper_kernel::{Error, Expected, Flush, Handle, Inode, ReleaseOptions, release, residency};
use pagekeeper_policy::shares::shares_by_party;
use pagekeeper_policy::{FileId, Rule, WINDOW};

use super::report::Report;
use super::watched::Watched;
use crate::config::Settings;
use crate::decision::{Action, FileAct};
use crate::directory::DatabaseKey;
use crate::event::Event;
use crate::ownership::Right;

/// They are looked at so often.
const LOOK: Duration = Duration::from_secs(2);
/// One that was not changed for so long is written no more.
const QUIET: Duration = Duration::from_secs(5);
/// Descriptors of them that are kept in mind of one process, and of all together, by shares.
const MOST_HELD: (usize, usize) = (256, 4096);
/// Files of one database that are looked at in one look.
const MOST_LOOKED_AT: usize = 16;
/// One that was not looked at in so many looks is forgotten: with as many as there may be, its turn would have come.
const LOOKS: u64 = 2 * (MOST_HELD.1 / MOST_LOOKED_AT) as u64;
/// What resists so often is left.
const TRIES: u32 = 3;
/// How long one release may take.
const PATIENCE: Duration = Duration::from_millis(250);

/// A descriptor of one.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pid: u32,
    fd: RawFd,
    inode: Inode,
    writes: bool,
    /// Where it was, as the kernel shows it to this process.
    path: PathBuf,
}

/// What was seen of one at a look.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    size: u64,
    /// The times of its last change of content and of anything else, in seconds and nanoseconds.
    changed: [i64; 4],
    /// Behind which nothing may go: where readers are.
    readers: Option<u64>,
}

/// What is remembered of one.
#[derive(Debug)]
struct Known {
    size: u64,
    changed: [i64; 4],
    since: Instant,
    /// Up to where it was released, or that was given up.
    released_to: u64,
    tries: u32,
    look: u64,
}

/// All of them. See the module.
#[derive(Debug)]
pub(super) struct Removed {
    /// By process, and whose that is.
    held: BTreeMap<u32, (Party, Vec<Held>)>,
    names: HashSet<OsString>,
    known: BTreeMap<Inode, Known>,
    due: Instant,
    look: u64,
    /// [`QUIET`].
    pub(super) quiet: Duration,
}

impl Removed {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            held: BTreeMap::new(),
            names: HashSet::new(),
            known: BTreeMap::new(),
            due: now,
            look: 0,
            quiet: QUIET,
        }
    }

    /// Takes in which of them a process was seen to have open.
    pub(super) fn note(&mut self, proc: &ProcRoot, pid: u32, open: Vec<OpenFile>) {
        let of = |file: OpenFile| Held {
            pid,
            fd: file.fd,
            inode: file.inode,
            writes: matches!(file.access, Access::WriteOnly | Access::ReadWrite),
            path: file.path,
        };
        let held: Vec<Held> = open.into_iter().take(MOST_HELD.0).map(of).collect();
        if held.is_empty() {
            self.held.remove(&pid);
        } else {
            self.held.insert(pid, (Party::of(proc, pid), held));
        }
    }

    /// Whether a file of this name is one of them, as far as that is known.
    pub(super) fn has_name(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| self.names.contains(name))
    }

    /// Begins a look: forgets what is gone, and what there are too many of.
    fn begin(&mut self, proc: &ProcRoot, now: Instant) {
        self.due = now + LOOK;
        self.look += 1;
        self.held.retain(|pid, _| proc.start_time(*pid).is_ok());
        let wanted: Vec<_> = self.held.values().map(|(party, held)| (*party, held.len())).collect();
        for ((_, held), share) in self.held.values_mut().zip(shares_by_party(MOST_HELD.1, &wanted)) {
            held.truncate(share);
        }
        self.names = self.all().filter_map(|held| Some(held.path.file_name()?.to_os_string())).collect();
        let look = self.look;
        self.known.retain(|_, known| known.look.saturating_add(LOOKS) > look);
    }

    fn all(&self) -> impl Iterator<Item = &Held> {
        self.held.values().flat_map(|(_, held)| held)
    }
}

impl Known {
    /// Up to where it may be released now, if anywhere; `u64::MAX` for all of it.
    fn end(&mut self, seen: &Seen, quiet: Duration, now: Instant) -> Option<u64> {
        if (self.size, self.changed) != (seen.size, seen.changed) {
            // Or it is another one with the same number.
            (self.size, self.changed, self.since) = (seen.size, seen.changed, now);
            (self.released_to, self.tries) = (0, 0);
        }
        if now.saturating_duration_since(self.since) < quiet {
            return None;
        }
        let end = match seen.readers {
            Some(at) if at < seen.size => at / WINDOW * WINDOW,
            _ => u64::MAX,
        };
        (end > self.released_to).then_some(end)
    }

    /// Takes in what came of a release up to there.
    fn released(&mut self, end: u64, kept: u64) {
        self.tries += 1;
        if kept == 0 || self.tries >= TRIES {
            (self.released_to, self.tries) = (end, 0);
        }
    }
}

/// One that may be acted on, and through which descriptors it is seen.
#[derive(Debug, Clone)]
struct Candidate {
    inode: Inode,
    path: PathBuf,
    /// The database's, or its children's.
    through: (u32, RawFd),
    /// Whether the database itself has it open for writing.
    writes: bool,
    /// All that are known.
    held: Vec<(u32, RawFd)>,
    directory: usize,
}

impl Watched {
    /// Releases what may go of them, or reports that it would; how many bytes went.
    pub(super) fn release_removed(&mut self, settings: &Settings, report: &mut Report, now: Instant) -> u64 {
        if now < self.removed.due {
            return 0;
        }
        self.removed.begin(&self.proc, now);
        let mut released = 0;
        for (key, candidate) in self.candidates() {
            released += self.release_one(&key, &candidate, settings, report, now).unwrap_or(0);
        }
        released
    }

    /// Those of each database that lie in its watched directories: some in each look, in turns.
    fn candidates(&self) -> Vec<(DatabaseKey, Candidate)> {
        let table = self.discovery.processes();
        let mut all = Vec::new();
        for database in &self.databases {
            let is_own = |pid: u32| {
                pid == database.pid || table.get(pid).is_some_and(|process| process.parent == database.pid)
            };
            let own = self.removed.all().filter(|held| is_own(held.pid));
            let mut found: BTreeMap<Inode, Candidate> = BTreeMap::new();
            for held in own {
                let writes = held.writes && held.pid == database.pid;
                if let Some(candidate) = found.get_mut(&held.inode) {
                    candidate.writes |= writes;
                } else if let Some(directory) = self.directory_of(database.pid, held) {
                    let (path, through) = (held.path.clone(), (held.pid, held.fd));
                    let candidate =
                        Candidate { inode: held.inode, path, through, writes, held: Vec::new(), directory };
                    found.insert(held.inode, candidate);
                }
            }
            let turn = usize::try_from(self.removed.look).unwrap_or(0).wrapping_mul(MOST_LOOKED_AT);
            let skipped = turn % found.len().max(1);
            let in_turn = found.len().min(MOST_LOOKED_AT);
            let mut found: Vec<Candidate> = found.into_values().collect();
            found.rotate_left(skipped);
            found.truncate(in_turn);
            for candidate in &mut found {
                let of_it = self.removed.all().filter(|held| held.inode == candidate.inode);
                candidate.held = of_it.map(|held| (held.pid, held.fd)).collect();
            }
            all.extend(found.into_iter().map(|one| (DatabaseKey::Process(database.pid), one)));
        }
        all
    }

    /// The watched directory of a database that a file was in, if it was a log there.
    fn directory_of(&self, pid: u32, held: &Held) -> Option<usize> {
        let parent = self.proc.as_seen_by(held.pid, held.path.parent()?);
        self.directories.iter().position(|directory| {
            directory.owner == Some(pid)
                && directory.path == parent
                && directory.pin.is_some_and(|pin| pin.inode.dev == held.inode.dev)
                && directory.log_like(&held.path).is_some_and(|log| directory.rule(log) != Rule::Keep)
        })
    }

    /// Looks at one, and releases what may go of it.
    fn release_one(
        &mut self,
        key: &DatabaseKey,
        candidate: &Candidate,
        settings: &Settings,
        report: &mut Report,
        now: Instant,
    ) -> Option<u64> {
        self.turns.slice_on_account(key)?;
        let (proc, one) = (self.proc.clone(), candidate.clone());
        let right = self.directories[candidate.directory].right.clone();
        let seen = self.find_out(key.clone(), &candidate.path, move || {
            let before = thread_cpu_time();
            let seen = look_at(&proc, &one, &right);
            (seen, thread_cpu_time().saturating_sub(before))
        });
        let (seen, spent) = seen?;
        self.turns.spend(key, spent);
        let Some(seen) = seen else {
            self.removed.known.remove(&candidate.inode);
            return None;
        };
        let (look, quiet) = (self.removed.look, self.removed.quiet);
        let known = self.removed.known.entry(candidate.inode).or_insert_with(|| Known {
            size: seen.size,
            changed: seen.changed,
            since: now,
            released_to: 0,
            tries: 0,
            look,
        });
        known.look = look;
        let end = known.end(&seen, quiet, now)?;
        let act = self.act(candidate, end)?;
        if settings.options.dry_run || !self.directories[candidate.directory].acts {
            let (path, action) = (act.path, act.action);
            report.events.push(Event::Would { path, action, start: 0, end: end.min(seen.size) });
            self.known_of(candidate)?.released(end, 0);
            return None;
        }
        let (proc, one) = (self.proc.clone(), candidate.clone());
        let right = self.directories[candidate.directory].right.clone();
        let done = self.find_out(key.clone(), &candidate.path, move || {
            let before = thread_cpu_time();
            let done = release_to(&proc, &one, &right, &seen, end);
            (done, thread_cpu_time().saturating_sub(before))
        });
        let (done, spent) = done?;
        match done {
            Ok(Some((released, kept))) => {
                self.turns.spend_on_release(key, spent, released);
                self.known_of(candidate)?.released(end, kept);
                report.act_done(&act, &self.directories[candidate.directory], released, kept);
                Some(released)
            }
            Ok(None) => None,
            Err(error) => {
                self.known_of(candidate)?.released(u64::MAX, 0);
                if !error.is_gone() {
                    report.problem(act.path, &error);
                }
                None
            }
        }
    }

    fn known_of(&mut self, candidate: &Candidate) -> Option<&mut Known> {
        self.removed.known.get_mut(&candidate.inode)
    }

    fn act(&self, candidate: &Candidate, end: u64) -> Option<FileAct> {
        let directory = &self.directories[candidate.directory];
        let log = directory.log_like(&candidate.path)?;
        Some(FileAct {
            path: candidate.path.clone(),
            inode: candidate.inode,
            range: 0..end,
            action: Action::Release,
            class: directory.spec(log).class,
            rule: directory.rule(log),
            file: FileId(self.ids.next()),
            directory: candidate.directory,
        })
    }
}

/// Looks at one; `None` where it is none any more, or not the database's.
fn look_at(proc: &ProcRoot, one: &Candidate, right: &Right) -> Option<Seen> {
    let (pid, fd) = one.through;
    let found = Handle::of_magic_link(&proc.fd_path(pid, fd), one.path.clone()).ok()?;
    let stat = found.stat();
    let is_its_own = match right {
        Right::Process(right) => one.writes || right.has_rights_of(stat.st_uid),
        Right::Operator | Right::Owner(_) => false,
    };
    if found.inode() != one.inode || stat.st_nlink != 0 || !is_its_own {
        return None;
    }
    let mut readers = None;
    for (pid, fd) in &one.held {
        // One that is closed or another file by now reads no more.
        if proc.inode_behind(*pid, *fd) != Some(one.inode) {
            continue;
        }
        let info = proc.fd_info(*pid, *fd).ok()?;
        let at = match info.access() {
            Access::ReadOnly => info.position,
            // Who writes by pwrite(2) has it at 0, and who reads has moved it.
            Access::ReadWrite if info.position > 0 => info.position,
            Access::ReadWrite | Access::WriteOnly | Access::Neither => continue,
        };
        readers = Some(readers.map_or(at, |other: u64| other.min(at)));
    }
    let changed =
        [stat.st_mtime, stat.st_mtime_nsec.cast_signed(), stat.st_ctime, stat.st_ctime_nsec.cast_signed()];
    Some(Seen { size: u64::try_from(stat.st_size).ok()?, changed, readers })
}

/// Releases one up to there: the bytes released, and those that resisted; `None` where it is another than was seen, or has yet to
/// be written: pages that are thrown away with the last descriptor are not worth a write.
fn release_to(
    proc: &ProcRoot,
    one: &Candidate,
    right: &Right,
    seen: &Seen,
    end: u64,
) -> Result<Option<(u64, u64)>, Error> {
    if look_at(proc, one, right).as_ref() != Some(seen) {
        return Ok(None);
    }
    let (pid, fd) = one.through;
    let file =
        Handle::of_magic_link(&proc.fd_path(pid, fd), one.path.clone())?.open(Expected::Inode(one.inode))?;
    let found = residency(&file, 0..end)?;
    if found.resident == 0 {
        return Ok(Some((0, 0)));
    }
    if found.unwritten() > 0 {
        return Ok(None);
    }
    let options = ReleaseOptions {
        flush: Flush::Watch,
        patience: PATIENCE,
        retry_pause: Duration::ZERO,
        explain: false,
    };
    let report = release(&file, 0..end, &options)?;
    Ok(Some((report.released, report.kept())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_all_readers_goes_once_it_is_quiet() {
        let now = Instant::now();
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        let seen = |size: u64, readers: Option<u64>| Seen { size, changed: [0; 4], readers };
        let mut known = Known { size: 0, changed: [0; 4], since: now, released_to: 0, tries: 0, look: 0 };
        let mut end = |seen: &Seen, second: u64| known.end(seen, QUIET, at(second));
        let size = 5 * WINDOW + 7;
        // Its size is news at first, and again when it grows.
        assert_eq!(end(&seen(size - 1, None), 0), None);
        assert_eq!(end(&seen(size, None), 4), None);
        assert_eq!(end(&seen(size, Some(0)), 8), None);
        assert_eq!(end(&seen(size, Some(WINDOW - 1)), 9), None);
        assert_eq!(end(&seen(size, Some(3 * WINDOW + 5)), 9), Some(3 * WINDOW), "whole windows");
        assert_eq!(end(&seen(size, Some(size)), 9), Some(u64::MAX), "the reader is at the end");
        assert_eq!(end(&seen(size, None), 9), Some(u64::MAX));
        // A change that leaves the size as it is.
        assert_eq!(end(&Seen { changed: [0, 1, 0, 1], ..seen(size, None) }, 20), None);
        known.released(3 * WINDOW, 0);
        let seen = |readers| Seen { changed: [0, 1, 0, 1], ..seen(size, Some(readers)) };
        assert_eq!(known.end(&seen(3 * WINDOW), QUIET, at(30)), None, "that has gone");
        assert_eq!(known.end(&seen(4 * WINDOW), QUIET, at(30)), Some(4 * WINDOW));
    }

    #[test]
    fn what_resists_again_and_again_is_left() {
        let now = Instant::now();
        let mut known = Known { size: 9, changed: [0; 4], since: now, released_to: 0, tries: 0, look: 0 };
        let seen = Seen { size: 9, changed: [0; 4], readers: None };
        for _ in 0..TRIES {
            assert_eq!(known.end(&seen, Duration::ZERO, now), Some(u64::MAX));
            known.released(u64::MAX, 4096);
        }
        assert_eq!(known.end(&seen, Duration::ZERO, now), None);
    }
}
