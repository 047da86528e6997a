//! Claims: decides which of the directories that databases name, or hold files in, are watched, and
//! for which database.
//!
//! Any process can have a database's name, and can name or open whatever it may read. So a claim
//! counts only if the directory is the process's own by
//! [`ownership`](pagekeeper_catalog::ownership). The better of two claims to one directory wins:
//! 1. files open for writing in it beat a name;
//! 2. a certain database beats a process that only has the name of one;
//! 3. the directory's owner beats another user.
//!
//! Only databases of one kind share a directory, which is watched once. A refused claim is examined
//! again when the process's claims change, and at least every [`REEXAMINE_AFTER`]. A directory that
//! is out of reach is reported, and retried.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_catalog::ownership::{DirectoryAttributes, FileOwnership, ProcessOwnership};
use pagekeeper_catalog::{ClaimOutcome, ClaimStrength, Evidence, Party, named_directories};
use pagekeeper_kernel::process::{OpenFile, measured};
use pagekeeper_policy::quota::{DirectoryRoom, room_for};

use super::claimant::{Claim, ExaminedDatabase};
use super::report::{Report, TickContext};
use super::watched::{Database, WatchList};
use crate::budget::Budget;
use crate::descriptors::Extent;
use crate::directory::{DatabaseKey, Directory};
use crate::event::{Event, Refusal};

/// A refused claim is examined again after this time.
const REEXAMINE_AFTER: Duration = Duration::from_secs(10);
/// Time for examining claims in one tick. The rest waits for the next tick, so that signals are
/// heeded in between.
const CLAIMS_SLICE: Duration = Duration::from_millis(100);

impl WatchList {
    /// Records the descriptors of a database; its claims are examined later.
    pub(super) fn note_claims(&mut self, index: usize, listed: Vec<OpenFile>, tick: &mut TickContext<'_>) {
        let (proc, database) = (&self.proc, &mut self.databases[index]);
        database.claimant.listed = listed;
        let is_log = |file: &&OpenFile| database.profile.is_open_log(&file.path, file.access.writes());
        let mut shown = BTreeSet::new();
        let mut writes = HashSet::new();
        for file in database.claimant.open().filter(is_log) {
            shown.extend(file.path.parent().map(Path::to_path_buf));
            if file.access.writes() {
                writes.insert(file.inode);
            }
        }
        let view = proc.view_of(database.pid);
        let held = shown.iter().map(|path| view.path(path));
        let named =
            named_directories(proc, database.pid, &database.profile).into_iter().map(|(_, named)| named);
        let found: BTreeSet<PathBuf> = held.chain(named).collect();
        let party = Party::of(proc, database.pid);
        let ownership = ProcessOwnership::new(proc.users(database.pid).ok(), party, writes);
        let traits = tick.settings.options.targets.traits_of(proc, database.pid);
        let selects_other = traits != database.claimant.traits;
        database.claimant.traits = traits;
        let changed = ownership != *database.claimant.ownership || selects_other;
        if changed {
            database.claimant.ownership = Arc::new(ownership);
            for directory in self.directories.iter_mut().filter(|other| other.owner == Some(database.pid)) {
                directory.ownership = FileOwnership::Process(Arc::clone(&database.claimant.ownership));
                directory.stale |= directory.refused;
            }
        }
        database.claims.retain(|path, claim| claim.is_held() || found.contains(path));
        let claims = &database.claims;
        let due = |path: &PathBuf| claims.get(path).is_none_or(|claim| claim.is_due(changed, tick.now));
        let todo: BTreeSet<PathBuf> = found.into_iter().filter(due).collect();
        let is_any = !todo.is_empty();
        database.claimant.waiting = is_any.then(|| {
            let Database { pid, certain, profile, server, claimant, .. } = &*database;
            let of = ExaminedDatabase::of(proc, (*pid, *certain), profile, server, claimant);
            (Arc::new(of), todo)
        });
        if selects_other {
            self.select_again(index, tick);
        }
    }

    /// Decides again which of a database's directories are watched and acted on, now that its
    /// process has another user or group.
    pub(super) fn select_again(&mut self, index: usize, tick: &mut TickContext<'_>) {
        let (database, targets) = (&self.databases[index], &tick.settings.options.targets);
        let (pid, traits) = (database.pid, database.claimant.traits.clone());
        let named = tick.settings.options.pids.contains(&pid);
        let mut given_up = false;
        for at in (0..self.directories.len()).rev() {
            let directory = &mut self.directories[at];
            if directory.owner != Some(pid) {
                continue;
            }
            directory.acts = targets.acts_on(Some(&traits), &directory.path);
            if let Some(reason) = targets.refusal(Some(&traits), &directory.path, named) {
                tick.report.refused(
                    Some(pid),
                    &directory.profile.name,
                    directory.path.clone(),
                    reason.into(),
                );
                self.give_up(at, tick.now);
                given_up = true;
            }
        }
        if given_up {
            // A database that shared it with this one may have it alone.
            for other in &mut self.databases {
                other.claims.retain(|_, claim| !matches!(claim, Claim::Shared));
                other.descriptors.schedule.ask(Extent::All);
            }
        }
    }

    /// Examines as many claims as there is time for. Then the descriptors of watched files are
    /// known.
    pub(super) fn examine_claims(&mut self, tick: &mut TickContext<'_>) {
        let began = Instant::now();
        let mut is_new = false;
        // Begins after the database that had more claims than there was time for, so that it keeps
        // no other waiting.
        let count = self.databases.len();
        let from = std::mem::take(&mut self.claims_from).min(count);
        for index in (from..count).chain(0..from) {
            let key = DatabaseKey::Process(self.databases[index].pid);
            if !self.databases[index].claimant.waits() || self.jobs.turns.slice_to_find(&key).is_none() {
                continue;
            }
            let Database { pid, started, .. } = self.databases[index];
            if self.proc.start_time(pid).ok() != Some(started) {
                // Another process may have its number by now; the next listing of processes shows
                // that.
                continue;
            }
            let Some((claimant, todo)) = self.databases[index].claimant.waiting.take() else { continue };
            let (mut left, mut taken) = (BTreeSet::new(), Vec::new());
            for path in todo {
                if began.elapsed() >= CLAIMS_SLICE || self.jobs.turns.slice_to_find(&key).is_none() {
                    left.insert(path);
                    continue;
                }
                let examine = || self.examine(&claimant, path.clone(), tick);
                let (claim, spent) = measured(examine);
                self.jobs.turns.spend(&key, spent);
                if claim.is_held() {
                    taken.push(path.clone());
                }
                self.databases[index].reported |= !matches!(claim, Claim::Refused(_));
                self.databases[index].claims.insert(path, claim);
            }
            if !left.is_empty() {
                if self.claims_from == 0 {
                    self.claims_from = index + 1;
                }
                self.databases[index].claimant.waiting = Some((claimant, left));
            }
            if !taken.is_empty() {
                is_new = true;
                self.list_stale(tick, Some(&key));
                let profile = &self.databases[index].profile;
                tick.report.events.push(Event::Found {
                    pid: Some(pid),
                    profile: profile.name.clone(),
                    also: profile.also.clone(),
                    directories: taken,
                });
            }
        }
        if is_new {
            // Their followers are to be seen at once.
            self.others.schedule.ask(Extent::All);
        }
        let is_waiting = |database: &Database| !database.claimant.listed.is_empty();
        if !self.databases.iter().any(is_waiting) {
            return;
        }
        self.names.update(&self.directories);
        let names = &self.names;
        for database in self.databases.iter_mut().filter(|database| is_waiting(database)) {
            let claimant = &mut database.claimant;
            database.descriptors.settle(database.pid, &claimant.listed, names);
            if !claimant.waits() {
                claimant.listed = Vec::new();
            }
        }
    }

    /// Examines one claim: whether the directory may be watched, and what the process shows for it.
    fn examine(
        &mut self,
        claimant: &Arc<ExaminedDatabase>,
        path: PathBuf,
        tick: &mut TickContext<'_>,
    ) -> Claim {
        let profile = &claimant.profile;
        let (targets, traits) = (&tick.settings.options.targets, Some(&claimant.traits));
        let named = tick.settings.options.pids.contains(&claimant.pid);
        if let Some(reason) = targets.refusal(traits, &path, named) {
            return refuse(claimant, path, reason.into(), tick);
        }
        let ownership = FileOwnership::Process(Arc::clone(&claimant.ownership));
        let mut directory =
            Directory::new(path, Some(claimant.pid), claimant.through, Arc::clone(profile), ownership);
        directory.server = Arc::clone(&claimant.server);
        directory.acts = targets.acts_on(traits, &directory.path);
        let refused = Claim::Refused(tick.now + REEXAMINE_AFTER);
        let key = DatabaseKey::Process(claimant.pid);
        if self.room(claimant.pid, claimant.ownership.party()) == DirectoryRoom::Full {
            tick.report.in_part(&directory, Budget::Directories);
            return refused;
        }
        let (proc, examined, asked) = (self.proc.clone(), Arc::clone(claimant), directory.path.clone());
        let opened = self.jobs.find_out(&key, &asked, move || {
            let opened = directory.resolve(&proc).map(|(found, identity)| {
                let evidence = examined.evidence.best(&proc, found.as_fd(), &directory.path);
                (identity, evidence)
            });
            (directory, opened)
        });
        // The job hangs, because its path or its file system does.
        let Some((directory, opened)) = opened else { return refused };
        let (identity, evidence) = match opened {
            Ok(opened) => opened,
            Err(error) if error.is_gone() => return refused,
            Err(error) => {
                tick.report.problem(directory.path, &error);
                return refused;
            }
        };
        self.judge(claimant, directory, identity, evidence, tick)
    }

    /// Judges a claim to a directory that was found, and takes up the directory if the claim is
    /// good.
    fn judge(
        &mut self,
        claimant: &ExaminedDatabase,
        mut directory: Directory,
        identity: DirectoryAttributes,
        evidence: Option<Evidence>,
        tick: &mut TickContext<'_>,
    ) -> Claim {
        let profile = &claimant.profile;
        let writes = evidence == Some(Evidence::Writes);
        let strength = claimant.ownership.claim(identity.user, writes, claimant.certain);
        let strength = strength.filter(|_| evidence.is_some());
        let is_it = |other: &Directory| other.pin.is_some_and(|pin| pin.is_same(&identity.pin));
        let holder = self.directories.iter().position(|other| is_it(other));
        let of_one_kind =
            holder.is_some_and(|at| self.directories[at].profile.name == directory.profile.name);
        let Some(strength) = strength else {
            if evidence.is_none() && !claimant.evidence.names(&directory.path) {
                // The files that it held there are gone by now: the next listing shows more.
                return Claim::Refused(tick.now);
            }
            if of_one_kind {
                // The claimant reads files that another database of its kind writes.
                return Claim::Shared;
            }
            return refuse(claimant, directory.path, Refusal::NotOwner, tick);
        };
        if let Some(at) = holder {
            let Some(held_by) = self.directories[at].owner else { return Claim::Shared };
            match strength.against(self.strength_of(at), of_one_kind) {
                ClaimOutcome::Shared => {
                    tick.report.events.push(Event::Shared {
                        pid: claimant.pid,
                        profile: profile.name.clone(),
                        path: directory.path,
                        with: Some(held_by),
                    });
                    return Claim::Shared;
                }
                ClaimOutcome::Lost => return refuse(claimant, directory.path, Refusal::OtherDatabase, tick),
                ClaimOutcome::Won => {}
            }
            self.give_up(at, tick.now);
            tick.report.events.push(Event::TakenOver {
                pid: claimant.pid,
                profile: profile.name.clone(),
                path: directory.path.clone(),
                from: held_by,
            });
        }
        // Another directory is given up only for a good claim.
        self.make_room(claimant.pid, claimant.ownership.party(), tick);
        directory.pin = Some(identity.pin);
        self.directories.push(Box::new(directory));
        Claim::Held(strength)
    }

    /// Returns whether there is room for one more directory of a process of this party.
    fn room(&self, pid: u32, party: Party) -> DirectoryRoom {
        let of = |directory: &Directory| (directory.owner, directory.ownership.party());
        let watched: Vec<_> = self.directories.iter().map(|directory| of(directory)).collect();
        room_for(&watched, pid, party)
    }

    /// Makes room for a directory of a process of this party, if it has to replace another. Returns
    /// whether there is room.
    fn make_room(&mut self, pid: u32, party: Party, tick: &mut TickContext<'_>) -> bool {
        let room = self.room(pid, party);
        if let DirectoryRoom::InPlaceOf(at) = room {
            tick.report.in_part(&self.directories[at], Budget::Directories);
            self.give_up(at, tick.now);
        }
        room != DirectoryRoom::Full
    }

    /// Makes room for a directory that was away, whose place another may have taken meanwhile.
    /// Returns whether there is room; without, its claim is examined again later.
    pub(super) fn has_room_again(&mut self, directory: &Directory, tick: &mut TickContext<'_>) -> bool {
        let Some(pid) = directory.owner else { return true };
        let has_room = self.make_room(pid, directory.ownership.party(), tick);
        if !has_room {
            tick.report.in_part(directory, Budget::Directories);
            self.forget_claim(directory, tick.now);
        }
        has_room
    }

    /// Returns the strength of the claim by which a directory is watched; `None` if its database
    /// has ended.
    fn strength_of(&self, at: usize) -> Option<ClaimStrength> {
        let directory = &self.directories[at];
        let database = self.databases.iter().find(|other| Some(other.pid) == directory.owner)?;
        let Claim::Held(strength) = database.claims.get(&directory.path)? else { return None };
        let ownership = &database.claimant.ownership;
        // The claimant may have opened files for writing since.
        let writes = strength.writes
            || directory.entries.values().any(|entry| ownership.writes.contains(&entry.inode));
        Some(ClaimStrength { writes, certain: database.certain, ..*strength })
    }

    /// Stops watching a directory for its database, whose claim is examined again later.
    fn give_up(&mut self, at: usize, now: Instant) {
        let directory = self.directories.swap_remove(at);
        self.forget_claim(&directory, now);
    }

    /// Records that a directory is not watched any more; its claim is examined again later.
    fn forget_claim(&mut self, directory: &Directory, now: Instant) {
        self.notifications.unwatch(&directory.id);
        let database = self.databases.iter_mut().find(|database| Some(database.pid) == directory.owner);
        if let Some(database) = database {
            database.claims.insert(directory.path.clone(), Claim::Refused(now + REEXAMINE_AFTER));
        }
    }

    /// Forgets directories whose path now leads elsewhere. The new target is another claim,
    /// examined as such.
    pub(super) fn forget_changed(&mut self, changed: &[(u32, PathBuf)], report: &mut Report) {
        for (pid, path) in changed {
            let is_changed = |directory: &Directory| directory.owner == Some(*pid) && directory.path == *path;
            for directory in self.directories.extract_if(.., |directory| is_changed(directory)) {
                self.notifications.unwatch(&directory.id);
                report.refused(
                    Some(*pid),
                    &directory.profile.name,
                    directory.path,
                    Refusal::DirectoryChanged,
                );
            }
            if let Some(database) = self.databases.iter_mut().find(|database| database.pid == *pid) {
                database.claims.remove(path);
                database.descriptors.schedule.ask(Extent::All);
            }
        }
    }
}

/// Refuses a claim, and reports that once.
fn refuse(claimant: &ExaminedDatabase, path: PathBuf, reason: Refusal, tick: &mut TickContext<'_>) -> Claim {
    tick.report.refused(Some(claimant.pid), &claimant.profile.name, path, reason);
    Claim::Refused(tick.now + REEXAMINE_AFTER)
}
