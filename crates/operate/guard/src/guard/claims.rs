//! Claims: decides which of the directories that databases name, or hold files in, are watched, and for which
//! database.
//!
//! Any process can have a database's name, and can name or open whatever it may read. So a claim counts only
//! if the directory is the process's own by `ownership`. The better of two claims to one directory wins:
//! 1. files open for writing in it beat a name;
//! 2. a certain database beats a process that only has the name of one;
//! 3. the directory's owner beats another user.
//!
//! Only databases of one kind share a directory, which is watched once. A refused claim is examined again
//! when the process's claims change, and at least every [`REEXAMINE_AFTER`]. A directory that is out of reach
//! is reported, and retried.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_catalog::{Contest, Party, Strength};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::{OpenFile, ProcRoot, thread_cpu_time};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

use super::directory_eviction::{DirectoryRoom, room_for};
use super::report::Report;
use super::watched::{Database, Watched};
use crate::budget::Budget;
use crate::config::Settings;
use crate::descriptors::{Extent, is_written};
use crate::directory::{DatabaseKey, Directory};
use crate::event::{Event, Refusal};
use crate::ownership::{self, FileOwnership, Identity, ProcessRight};
use crate::server_settings::ServerSettings;
use crate::targets::{ProcessTraits, Targets};

/// A refused claim is examined again after this time.
const REEXAMINE_AFTER: Duration = Duration::from_secs(10);
/// Time for examining claims in one tick. The rest waits for the next tick, so that signals are heeded in
/// between.
const CLAIMS_SLICE: Duration = Duration::from_millis(100);

/// The outcome of a claim.
#[derive(Debug)]
pub(super) enum Claim {
    /// The directory is watched for it.
    Held(Strength),
    /// The directory is watched for another database of the same kind, or because the operator named it.
    Shared,
    /// The directory is not watched for this database. The claim is examined again at this time.
    Refused(Instant),
}

impl Claim {
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    fn is_due(&self, changed: bool, now: Instant) -> bool {
        match self {
            Self::Held(_) => false,
            Self::Shared => changed,
            Self::Refused(due) => changed || now >= *due,
        }
    }
}

/// The evidence that a database's process shows for its claims.
#[derive(Default)]
pub(super) struct Claimant {
    right: Arc<ProcessRight>,
    /// The properties by which selectors match it.
    traits: ProcessTraits,
    /// The descriptors from its last listing, until those of watched files are known.
    listed: Vec<OpenFile>,
    /// Text logs that its loggers write: a server may have a process for that alone.
    logged: BTreeMap<u32, Vec<OpenFile>>,
    /// Directories whose claims are to be examined, as the process sees them.
    todo: BTreeSet<PathBuf>,
    /// The basis on which these are examined, until the process shows something else.
    examined: Option<Arc<ExaminedDatabase>>,
}

impl Claimant {
    /// Returns a process that has shown nothing yet but its user.
    pub(super) fn of(proc: &ProcRoot, pid: u32) -> Self {
        let right = ProcessRight::new(proc.users(pid).ok(), Party::of(proc, pid), HashSet::new());
        Self { right: Arc::new(right), ..Self::default() }
    }

    pub(super) fn right(&self) -> Arc<ProcessRight> {
        Arc::clone(&self.right)
    }

    /// Takes in the text logs that one of its loggers writes. Returns whether they have changed.
    pub(super) fn note_logged(&mut self, logger: u32, files: Vec<OpenFile>) -> bool {
        let inodes = |files: &[OpenFile]| files.iter().map(|file| file.inode).collect::<BTreeSet<_>>();
        let known = self.logged.insert(logger, files);
        known.is_none_or(|known| inodes(&known) != inodes(&self.logged[&logger]))
    }

    /// Forgets its loggers, which have changed.
    pub(super) fn forget_loggers(&mut self) {
        self.logged.clear();
    }

    /// Returns the files that it or one of its loggers has open.
    fn open(&self) -> impl Iterator<Item = &OpenFile> {
        self.listed.iter().chain(self.logged.values().flatten())
    }

    /// Discards the basis on which its claims are examined.
    pub(super) fn examine_anew(&mut self) {
        self.examined = None;
    }

    /// Returns whether it is never to be touched, as a whole or in one of these directories, or that can't be
    /// ruled out.
    pub(super) fn is_never<'a>(&self, targets: &Targets, claims: impl Iterator<Item = &'a PathBuf>) -> bool {
        let mut places = claims.map(PathBuf::as_path).chain([Path::new("")]);
        !targets.never.is_empty() && places.any(|place| targets.never(Some(&self.traits), place))
    }

    /// Returns whether its last listing was fully taken in.
    pub(super) fn is_settled(&self) -> bool {
        self.todo.is_empty() && self.listed.is_empty()
    }

    /// Returns whether claims of it wait to be examined.
    pub(super) fn waits(&self) -> bool {
        !self.todo.is_empty()
    }
}

impl Watched {
    /// Takes in the descriptors of a database; its claims are examined later.
    pub(super) fn note_claims(
        &mut self,
        index: usize,
        listed: Vec<OpenFile>,
        settings: &Settings,
        report: &mut Report,
        now: Instant,
    ) {
        let (proc, database) = (&self.proc, &mut self.databases[index]);
        database.claimant.listed = listed;
        let is_log = |file: &&OpenFile| database.profile.is_open_log(&file.path, is_written(file));
        let mut shown = BTreeSet::new();
        let mut writes = HashSet::new();
        for file in database.claimant.open().filter(is_log) {
            shown.extend(file.path.parent().map(Path::to_path_buf));
            if is_written(file) {
                writes.insert(file.inode);
            }
        }
        let view = proc.view_of(database.pid);
        let held = shown.iter().map(|path| view.path(path));
        let named = named_directories(proc, database).into_iter().map(|(_, named)| named);
        let found: BTreeSet<PathBuf> = held.chain(named).collect();
        let party = Party::of(proc, database.pid);
        let right = ProcessRight::new(proc.users(database.pid).ok(), party, writes);
        let traits = settings.options.targets.traits_of(proc, database.pid);
        let selects_other = traits != database.claimant.traits;
        database.claimant.traits = traits;
        let changed = right != *database.claimant.right || selects_other;
        if changed {
            database.claimant.right = Arc::new(right);
            for directory in self.directories.iter_mut().filter(|other| other.owner == Some(database.pid)) {
                directory.right = FileOwnership::Process(Arc::clone(&database.claimant.right));
                directory.stale |= directory.refused;
            }
        }
        database.claims.retain(|path, claim| claim.is_held() || found.contains(path));
        let claims = &database.claims;
        let due = |path: &PathBuf| claims.get(path).is_none_or(|claim| claim.is_due(changed, now));
        database.claimant.todo = found.into_iter().filter(due).collect();
        database.claimant.examine_anew();
        if selects_other {
            self.select_again(index, settings, report, now);
        }
    }

    /// Decides anew which of a database's directories are watched and acted on, now that its process has
    /// another user or group.
    pub(super) fn select_again(
        &mut self,
        index: usize,
        settings: &Settings,
        report: &mut Report,
        now: Instant,
    ) {
        let (database, targets) = (&self.databases[index], &settings.options.targets);
        let (pid, traits) = (database.pid, database.claimant.traits.clone());
        let named = settings.options.pids.contains(&pid);
        let mut given_up = false;
        for at in (0..self.directories.len()).rev() {
            let directory = &mut self.directories[at];
            if directory.owner != Some(pid) {
                continue;
            }
            directory.acts = targets.acts_on(Some(&traits), &directory.path);
            if let Some(reason) = targets.refusal(Some(&traits), &directory.path, named) {
                report.refused(Some(pid), &directory.profile.name, directory.path.clone(), reason);
                self.give_up(at, now);
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

    /// Examines as many claims as there is time for. Then the descriptors of watched files are known.
    pub(super) fn examine_claims(&mut self, settings: &Settings, report: &mut Report, now: Instant) {
        let began = Instant::now();
        let mut by_inode: HashMap<Inode, usize> = HashMap::new();
        let mut is_new = false;
        // Begins after the database that had more claims than there was time for, so that it keeps no other
        // waiting.
        let count = self.databases.len();
        let from = std::mem::take(&mut self.claims_from).min(count);
        for index in (from..count).chain(0..from) {
            let key = DatabaseKey::Process(self.databases[index].pid);
            if !self.databases[index].claimant.waits() || self.turns.slice(&key).is_none() {
                continue;
            }
            let Database { pid, started, .. } = self.databases[index];
            if self.proc.start_time(pid).ok() != Some(started) {
                // Another process may have its number by now; the next listing of processes shows that.
                continue;
            }
            let claimant = self.examined(index);
            let todo = std::mem::take(&mut self.databases[index].claimant.todo);
            let (mut left, mut taken) = (BTreeSet::new(), Vec::new());
            for path in todo {
                if began.elapsed() >= CLAIMS_SLICE || self.turns.slice(&key).is_none() {
                    left.insert(path);
                    continue;
                }
                if by_inode.is_empty() {
                    let pins = self.directories.iter().enumerate();
                    by_inode = pins.filter_map(|(at, other)| Some((other.pin?.inode, at))).collect();
                }
                let claim = self.examine(&claimant, path.clone(), &mut by_inode, settings, report, now);
                if claim.is_held() {
                    taken.push(path.clone());
                }
                self.databases[index].reported |= !matches!(claim, Claim::Refused(_));
                self.databases[index].claims.insert(path, claim);
            }
            if !left.is_empty() && self.claims_from == 0 {
                self.claims_from = index + 1;
            }
            self.databases[index].claimant.todo = left;
            if !self.databases[index].claimant.waits() {
                self.databases[index].claimant.examine_anew();
            }
            if !taken.is_empty() {
                is_new = true;
                self.list_stale(report, now, Some(&DatabaseKey::Process(claimant.pid)));
                by_inode.clear();
                let profile = &self.databases[index].profile;
                report.events.push(Event::Found {
                    pid: Some(claimant.pid),
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
            if claimant.todo.is_empty() {
                claimant.listed = Vec::new();
            }
        }
    }

    /// Returns the basis on which a database's claims are examined. It is made once for all evidence, which
    /// may take several ticks.
    fn examined(&mut self, index: usize) -> Arc<ExaminedDatabase> {
        let known = self.databases[index].claimant.examined.take();
        let examined = known.unwrap_or_else(|| Arc::new(ExaminedDatabase::of(self, index)));
        self.databases[index].claimant.examined = Some(Arc::clone(&examined));
        examined
    }

    /// Examines one claim, and takes up the directory if the claim is good.
    fn examine(
        &mut self,
        claimant: &Arc<ExaminedDatabase>,
        path: PathBuf,
        by_inode: &mut HashMap<Inode, usize>,
        settings: &Settings,
        report: &mut Report,
        now: Instant,
    ) -> Claim {
        let profile = &claimant.profile;
        let (targets, traits) = (&settings.options.targets, Some(&claimant.traits));
        let named = settings.options.pids.contains(&claimant.pid);
        if let Some(reason) = targets.refusal(traits, &path, named) {
            report.refused(Some(claimant.pid), &profile.name, path, reason);
            return Claim::Refused(now + REEXAMINE_AFTER);
        }
        let right = FileOwnership::Process(Arc::clone(&claimant.right));
        let mut directory =
            Directory::new(path, Some(claimant.pid), claimant.through, Arc::clone(profile), right);
        directory.server = Arc::clone(&claimant.server);
        directory.acts = targets.acts_on(traits, &directory.path);
        let refused = Claim::Refused(now + REEXAMINE_AFTER);
        let key = DatabaseKey::Process(claimant.pid);
        if self.room_for(claimant) == DirectoryRoom::Full {
            report.in_part(&directory, Budget::Directories);
            return refused;
        }
        let (proc, examined, asked) = (self.proc.clone(), Arc::clone(claimant), directory.path.clone());
        let opened = self.find_out(key.clone(), &asked, move || {
            let before = thread_cpu_time();
            let opened = directory.resolve(&proc).map(|(found, identity)| {
                let evidence = examined.evidence(&proc, found.as_fd(), &directory.path);
                (identity, evidence)
            });
            (directory, opened, thread_cpu_time().saturating_sub(before))
        });
        // The job hangs, because its path or its file system does.
        let Some((opened_directory, opened, spent)) = opened else { return refused };
        self.turns.spend(&key, spent);
        let mut directory = opened_directory;
        let (identity, evidence) = match opened {
            Ok(opened) => opened,
            Err(error) if error.is_gone() => return refused,
            Err(error) => {
                report.problem(directory.path, &error);
                return refused;
            }
        };
        let strength = Strength {
            writes: evidence == Some(Evidence::Writes),
            certain: claimant.certain,
            owner: claimant.right.is(identity.user),
        };
        let holder = by_inode.get(&identity.pin.inode).copied();
        let holder = holder.filter(|at| self.directories[*at].pin.is_some_and(|pin| pin.is(&identity.pin)));
        let of_one_kind =
            holder.is_some_and(|at| self.directories[at].profile.name == directory.profile.name);
        if !strength.writes && (evidence.is_none() || !claimant.right.has_rights_of(identity.user)) {
            if evidence.is_none() && !claimant.names(&directory.path) {
                // The files that it held there are gone by now: the next listing shows more.
                return Claim::Refused(now);
            }
            if of_one_kind {
                // It reads files that another database of its kind writes.
                return Claim::Shared;
            }
            report.refused(Some(claimant.pid), &profile.name, directory.path, Refusal::NotOwner);
            return refused;
        }
        if let Some(at) = holder {
            let Some(held_by) = self.directories[at].owner else { return Claim::Shared };
            match strength.against(self.strength_of(at), of_one_kind) {
                Contest::Shared => {
                    report.events.push(Event::Shared {
                        pid: claimant.pid,
                        profile: profile.name.clone(),
                        path: directory.path,
                        with: Some(held_by),
                    });
                    return Claim::Shared;
                }
                Contest::Lost => {
                    report.refused(Some(claimant.pid), &profile.name, directory.path, Refusal::OtherDatabase);
                    return refused;
                }
                Contest::Won => {}
            }
            self.give_up_known(at, by_inode, now);
            report.events.push(Event::TakenOver {
                pid: claimant.pid,
                profile: profile.name.clone(),
                path: directory.path.clone(),
                from: held_by,
            });
        }
        // Another directory is given up only for a good claim.
        if let DirectoryRoom::InPlaceOf(at) = self.room_for(claimant) {
            report.in_part(&self.directories[at], Budget::Directories);
            self.give_up_known(at, by_inode, now);
        }
        directory.pin = Some(identity.pin);
        by_inode.insert(identity.pin.inode, self.directories.len());
        self.directories.push(Box::new(directory));
        Claim::Held(strength)
    }

    /// Returns whether there is room for one more directory of this database, which pays for the computation.
    fn room_for(&mut self, claimant: &ExaminedDatabase) -> DirectoryRoom {
        self.room(claimant.pid, claimant.right.party())
    }

    /// Returns the same for a process and its party.
    fn room(&mut self, pid: u32, party: Party) -> DirectoryRoom {
        let before = thread_cpu_time();
        let of = |directory: &Directory| (directory.owner, directory.right.party());
        let watched: Vec<_> = self.directories.iter().map(|directory| of(directory)).collect();
        let room = room_for(&watched, pid, party);
        let spent = thread_cpu_time().saturating_sub(before);
        self.turns.spend(&DatabaseKey::Process(pid), spent);
        room
    }

    /// Returns whether there is room for a directory that was away, whose place another may have taken
    /// meanwhile. Makes room as for a new directory. Without room, its claim is examined again later.
    pub(super) fn has_room_again(
        &mut self,
        directory: &Directory,
        report: &mut Report,
        now: Instant,
    ) -> bool {
        let Some(pid) = directory.owner else { return true };
        match self.room(pid, directory.right.party()) {
            DirectoryRoom::Free => true,
            DirectoryRoom::InPlaceOf(at) => {
                report.in_part(&self.directories[at], Budget::Directories);
                self.give_up(at, now);
                true
            }
            DirectoryRoom::Full => {
                report.in_part(directory, Budget::Directories);
                self.forget_claim(directory, now);
                false
            }
        }
    }

    /// Returns the strength of the claim by which a directory is watched; `None` if its database has ended.
    fn strength_of(&self, at: usize) -> Option<Strength> {
        let directory = &self.directories[at];
        let database = self.databases.iter().find(|other| Some(other.pid) == directory.owner)?;
        let Claim::Held(strength) = database.claims.get(&directory.path)? else { return None };
        let right = &database.claimant.right;
        // It may have opened files for writing since.
        let writes =
            strength.writes || directory.entries.values().any(|entry| right.writes.contains(&entry.inode));
        Some(Strength { writes, certain: database.certain, ..*strength })
    }

    /// Stops watching a directory for its database, whose claim is examined again later.
    fn give_up(&mut self, at: usize, now: Instant) {
        let directory = self.directories.swap_remove(at);
        self.forget_claim(&directory, now);
    }

    /// Records that a directory is not watched any more; its claim is examined again later.
    fn forget_claim(&mut self, directory: &Directory, now: Instant) {
        self.notifications.unwatch(&directory.key());
        let database = self.databases.iter_mut().find(|database| Some(database.pid) == directory.owner);
        if let Some(database) = database {
            database.claims.insert(directory.path.clone(), Claim::Refused(now + REEXAMINE_AFTER));
        }
    }

    /// Does the same as [`Watched::give_up`], and updates the index by inode.
    fn give_up_known(&mut self, at: usize, by_inode: &mut HashMap<Inode, usize>, now: Instant) {
        self.give_up(at, now);
        by_inode.clear();
        let others = self.directories.iter().enumerate();
        by_inode.extend(others.filter_map(|(at, other)| Some((other.pin?.inode, at))));
    }

    /// Forgets directories whose path now leads elsewhere. The new target is another claim, examined as such.
    pub(super) fn forget_changed(&mut self, changed: &[(u32, PathBuf)], report: &mut Report) {
        for (pid, path) in changed {
            let is_changed = |directory: &Directory| directory.owner == Some(*pid) && directory.path == *path;
            for directory in self.directories.extract_if(.., |directory| is_changed(directory)) {
                self.notifications.unwatch(&directory.key());
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

/// A snapshot of a database, on the basis of which its claims are examined.
struct ExaminedDatabase {
    pid: u32,
    profile: Arc<pagekeeper_catalog::Profile>,
    certain: bool,
    right: Arc<ProcessRight>,
    traits: ProcessTraits,
    through: Option<u32>,
    server: Arc<ServerSettings>,
    /// The logs that it has open, by directory as it sees it: their names, their inodes, and whether it
    /// writes.
    held: HashMap<PathBuf, Vec<(PathBuf, Inode, bool)>>,
    /// The directories that its profile names below its working directory: as named, and as it sees them.
    named: Vec<(PathBuf, PathBuf)>,
}

/// The evidence for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// The directory is named, below a working directory that nobody else can have made.
    Named,
    /// A log file there is open.
    Reads,
    /// A log file there is open for writing.
    Writes,
}

impl ExaminedDatabase {
    fn of(watched: &Watched, index: usize) -> Self {
        let (proc, database) = (&watched.proc, &watched.databases[index]);
        let pid = database.pid;
        let (right, view) = (Arc::clone(&database.claimant.right), proc.view_of(pid));
        let mut held: HashMap<PathBuf, Vec<(PathBuf, Inode, bool)>> = HashMap::new();
        for file in database.claimant.open() {
            let (Some(parent), Some(name)) = (file.path.parent(), file.path.file_name()) else { continue };
            let (name, writes) = (PathBuf::from(name), right.writes.contains(&file.inode));
            held.entry(view.path(parent)).or_default().push((name, file.inode, writes));
        }
        Self {
            pid,
            profile: Arc::clone(&database.profile),
            certain: database.certain,
            traits: database.claimant.traits.clone(),
            through: proc.through(pid),
            server: Arc::clone(&database.server),
            named: named_directories(proc, database),
            right,
            held,
        }
    }

    /// Returns the best evidence for its claim to this directory. The path may lead elsewhere by now than
    /// when the process showed it, so the files that it holds must be in the directory.
    fn evidence(&self, proc: &ProcRoot, directory: BorrowedFd<'_>, path: &Path) -> Option<Evidence> {
        let is_there = |(name, inode, _): &&(PathBuf, Inode, bool)| {
            rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
                .is_ok_and(|stat| ownership::inode(&stat) == *inode)
        };
        let mut held: Vec<_> = self.held.get(path).into_iter().flatten().collect();
        held.sort_by_key(|(_, _, writes)| !writes);
        if let Some((_, _, writes)) = held.into_iter().find(is_there) {
            return Some(if *writes { Evidence::Writes } else { Evidence::Reads });
        }
        self.is_named(proc, directory, path).unwrap_or(false).then_some(Evidence::Named)
    }

    /// Whether its profile names this path.
    fn names(&self, path: &Path) -> bool {
        self.named.iter().any(|(_, named)| named == path)
    }

    /// Returns whether the directory is the target of a named entry in the trusted working directory itself.
    fn is_named(&self, proc: &ProcRoot, directory: BorrowedFd<'_>, path: &Path) -> Option<bool> {
        let (name, _) = self.named.iter().find(|(_, named)| named == path)?;
        let base = trusted_base(proc, self.pid, &self.right)?;
        let stat = rustix::fs::statx(&base, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS).ok()?;
        let is_link = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink;
        Some(is_link || ownership::inode(&stat) == Identity::of(directory).ok()?.pin.inode)
    }
}

/// Returns the working directory of a process, if it belongs to the process's user or to root and is not
/// writable by everybody. Whoever starts a setuid program chooses its working directory, and a link in it
/// leads anywhere.
#[allow(clippy::disallowed_methods, reason = "only a reference to it, and it is judged at once")]
fn trusted_base(proc: &ProcRoot, pid: u32, right: &ProcessRight) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::open(proc.path().join(format!("{pid}/cwd")), flags, Mode::empty()).ok()?;
    let identity = Identity::of(&base).ok()?;
    (!identity.open_to_all && (identity.user == 0 || right.is(identity.user))).then_some(base)
}

/// Returns the directories that a database's profile names below its working directory: as named, and as the
/// database sees them.
fn named_directories(proc: &ProcRoot, database: &Database) -> Vec<(PathBuf, PathBuf)> {
    let named = &database.profile.directories;
    if named.is_empty() {
        return Vec::new();
    }
    // If the process may not be inspected, that is reported when its descriptors are listed.
    let Ok(base) = proc.working_directory(database.pid) else { return Vec::new() };
    let seen = |directory: &PathBuf| proc.as_seen_by(database.pid, &base.join(directory));
    named.iter().map(|directory| (directory.clone(), seen(directory))).collect()
}
