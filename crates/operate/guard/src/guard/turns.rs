//! Turns: the order in which databases are served in a tick, and how much each may still spend.
//!
//! Each tick begins with another database, so that none is always the last. A turn takes at most
//! the database's part of its user's bucket, so that a database that could use all of it leaves the
//! others of its user theirs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;

use crate::budget::{
    CpuBudget, NAMES_MAX, NAMES_PER_DATABASE, Quota, Slice, WINDOWS_MAX, WINDOWS_PER_DATABASE,
};
use crate::directory::{DatabaseKey, Directory};

/// The ticks that a database has to wait before that is reported.
const WAITED_TICKS: u32 = 8;
/// Releases may be paid for later, up to this much: otherwise samples alone could use up a small
/// budget.
const CREDIT_CPU_MAX: Duration = Duration::from_millis(50);

/// The users of all databases, and what these may still spend.
pub(super) struct Turns {
    budget: CpuBudget,
    /// The databases that were known when the tick began.
    users: BTreeMap<DatabaseKey, Party>,
    /// The databases that have directories.
    present: BTreeMap<DatabaseKey, Party>,
    /// The number of these, by user.
    counts: BTreeMap<Party, u32>,
    names: Quota,
    windows: Quota,
    first: Option<DatabaseKey>,
    /// For how many ticks each database has had no time for samples.
    waited: BTreeMap<DatabaseKey, u32>,
}

impl Turns {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            budget: CpuBudget::new(now),
            users: BTreeMap::new(),
            present: BTreeMap::new(),
            counts: BTreeMap::new(),
            names: Quota::new(NAMES_MAX, NAMES_PER_DATABASE),
            windows: Quota::new(WINDOWS_MAX, WINDOWS_PER_DATABASE),
            first: None,
            waited: BTreeMap::new(),
        }
    }

    /// Begins a tick: each user gets their share of the time. `databases` are those that run, also
    /// without directories.
    pub(super) fn begin_tick(
        &mut self,
        directories: &[Box<Directory>],
        databases: impl Iterator<Item = (DatabaseKey, Party)>,
        now: Instant,
    ) {
        self.users = databases.collect();
        self.present.clear();
        self.counts.clear();
        for directory in directories {
            self.note(directory);
        }
        let mut counts = self.counts.clone();
        // Only the operator names directories, which may be away.
        counts.entry(Party::Operator).or_insert(0);
        for user in self.users.values() {
            counts.entry(*user).or_insert(0);
        }
        self.budget.fill(&counts, now);
        self.waited.retain(|key, _| self.present.contains_key(key));
        let next = self.order(directories).into_iter().nth(1);
        self.first = next.map(|(key, _)| key).or_else(|| self.first.take());
    }

    /// Returns the databases and their directories, by index, in the order of this tick.
    pub(super) fn order(&self, directories: &[Box<Directory>]) -> Vec<(DatabaseKey, Vec<usize>)> {
        let mut groups: BTreeMap<DatabaseKey, Vec<usize>> = BTreeMap::new();
        for (index, directory) in directories.iter().enumerate() {
            groups.entry(directory.database()).or_default().push(index);
        }
        let Some(first) = &self.first else { return groups.into_iter().collect() };
        let from = groups.split_off(first);
        from.into_iter().chain(groups).collect()
    }

    /// Returns what a database may spend now; `None` if it has to wait.
    pub(super) fn slice(&mut self, key: &DatabaseKey) -> Option<Slice> {
        self.part(key, 1, Duration::ZERO)
    }

    /// Returns what a database may spend on finding its files: half of what it has, so that names
    /// without end leave time for samples.
    pub(super) fn slice_to_find(&mut self, key: &DatabaseKey) -> Option<Slice> {
        self.part(key, 2, Duration::ZERO)
    }

    /// Returns what a database may spend on samples now; `None` if it has to wait.
    pub(super) fn slice_to_sample(&mut self, key: &DatabaseKey) -> Option<Slice> {
        let slice = self.slice(key);
        let waited = self.waited.entry(key.clone()).or_default();
        *waited = if slice.is_some() { 0 } else { *waited + 1 };
        slice
    }

    /// Returns what a database may spend on releases now, in part on credit.
    pub(super) fn slice_on_account(&mut self, key: &DatabaseKey) -> Option<Slice> {
        self.part(key, 1, CREDIT_CPU_MAX)
    }

    /// Returns one of `parts` of what a database may spend, with `beside` on credit.
    fn part(&mut self, key: &DatabaseKey, parts: u32, beside: Duration) -> Option<Slice> {
        let user = self.user(key);
        let left = self.budget.available(user, beside)?;
        let databases = self.counts.get(&user).copied().unwrap_or(0).max(1);
        Some(Slice::of(left / databases.saturating_mul(parts)))
    }

    /// Returns whether a database has waited for so long that it is to be reported.
    pub(super) fn has_waited(&self, key: &DatabaseKey) -> bool {
        self.waited.get(key).is_some_and(|ticks| *ticks >= WAITED_TICKS)
    }

    /// Returns whether a database with directories had no time for samples in this tick.
    pub(super) fn anyone_waits(&self) -> bool {
        self.waited.iter().any(|(key, ticks)| *ticks > 0 && self.present.contains_key(key))
    }

    /// Deducts processor time that a database spent.
    pub(super) fn spend(&mut self, key: &DatabaseKey, cpu: Duration) {
        self.budget.spend(self.user(key), cpu);
    }

    /// Returns whether a user has time left for a first look at another process.
    pub(super) fn has_time(&self, user: Party) -> bool {
        !self.budget.has_used_up(user)
    }

    /// Deducts processor time that a first look at a user's process took.
    pub(super) fn charge(&mut self, user: Party, cpu: Duration) {
        self.budget.spend(user, cpu);
    }

    /// Gives back the part of `cpu`, spent on releasing `bytes`, that these bytes earned.
    pub(super) fn earn(&mut self, key: &DatabaseKey, cpu: Duration, bytes: u64) {
        self.budget.earn(self.user(key), cpu, bytes);
    }

    /// Returns how many log files may be watched in each of the directories of one database.
    pub(super) fn names(&mut self, own: &[Box<Directory>]) -> usize {
        let user = self.user_of(own);
        (self.names.share(&self.counts, user) / own.len().max(1)).max(1)
    }

    /// Returns how many windows are kept for the database of these directories.
    pub(super) fn windows(&mut self, own: &[Box<Directory>]) -> usize {
        let user = self.user_of(own);
        self.windows.share(&self.counts, user)
    }

    /// Returns the user of a database.
    pub(super) fn user(&self, key: &DatabaseKey) -> Party {
        self.present.get(key).or_else(|| self.users.get(key)).copied().unwrap_or(match key {
            DatabaseKey::Named(_) => Party::Operator,
            DatabaseKey::Process(_) => Party::Unknown,
        })
    }

    /// Returns the user of the database of these directories, which may have been found in this
    /// tick.
    fn user_of(&mut self, own: &[Box<Directory>]) -> Party {
        own.first().map_or(Party::Unknown, |first| self.note(first))
    }

    /// Records that the database of a directory is present, and its user in this tick.
    fn note(&mut self, directory: &Directory) -> Party {
        match self.present.entry(directory.database()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let user = *new.insert(directory.right.party());
                *self.counts.entry(user).or_default() += 1;
                self.names.forget();
                self.windows.forget();
                user
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Arc;

    use pagekeeper_catalog::Profile;

    use crate::budget::DIRECTORIES_PER_USER;
    use crate::directory::Directories;
    use pagekeeper_catalog::ownership::{FileOwnership, ProcessOwnership};

    #[test]
    fn what_is_owed_stays_owed_while_the_directories_are_away() {
        let now = Instant::now();
        let mut turns = Turns::new(now);
        let key = DatabaseKey::Process(7);
        let is_there = || [(DatabaseKey::Process(7), Party::User(1))].into_iter();
        turns.begin_tick(&[], is_there(), now);
        assert!(turns.slice(&key).is_some());
        turns.spend(&key, Duration::from_secs(30));
        assert!(turns.slice(&key).is_none());
        // Its directory is renamed, and back.
        turns.begin_tick(&[], is_there(), now + Duration::from_secs(1));
        assert!(turns.slice(&key).is_none(), "it has another bucket");
        // Otherwise its claims could never be examined again.
        turns.begin_tick(&[], is_there(), now + Duration::from_secs(4000));
        assert!(turns.slice(&key).is_some(), "it was given nothing meanwhile");
    }

    #[test]
    fn listings_without_end_leave_half_of_the_time_to_samples() {
        let now = Instant::now();
        let (key, tick) = (DatabaseKey::Process(7), Duration::from_millis(500));
        let pass = |turns: &mut Turns, number: u32, spend: bool, claims: bool| -> [Duration; 2] {
            let databases = [(DatabaseKey::Process(7), Party::User(1))].into_iter();
            turns.begin_tick(&[], databases, now + number * tick);
            let spent = |slice: Option<Slice>, turns: &mut Turns| {
                let spent = slice.map_or(Duration::ZERO, |slice| slice.cpu);
                turns.spend(&key, if spend { spent } else { Duration::ZERO });
                spent
            };
            let slice = turns.slice_to_find(&key);
            let listing = spent(slice, turns);
            if claims && let Some(slice) = turns.slice_to_find(&key) {
                turns.spend(&key, slice.cpu);
            }
            let slice = turns.slice_to_sample(&key);
            [listing, spent(slice, turns)]
        };
        let mut turns = Turns::new(now);
        let mut all = [Duration::ZERO; 2];
        for number in 1..=1000 {
            let spent = pass(&mut turns, number, true, false);
            all = [all[0] + spent[0], all[1] + spent[1]];
        }
        let half = Duration::from_millis(2500) * 9 / 10;
        assert!(all.iter().all(|spent| *spent >= half), "{all:?}");
        // Claims without end displace neither.
        for number in 1001..=1100 {
            assert!(pass(&mut turns, number, true, true).iter().all(|spent| !spent.is_zero()));
        }
        // With time for both, each runs in every tick.
        pass(&mut turns, 2000, false, false);
        for number in 2001..=2003 {
            assert!(pass(&mut turns, number, false, false).iter().all(|spent| !spent.is_zero()));
            assert!(!turns.has_waited(&key));
        }
    }

    #[test]
    fn one_of_a_users_databases_leaves_the_others_their_part() {
        let now = Instant::now();
        let (profile, mut turns) = (Arc::new(Profile::built_in().swap_remove(0)), Turns::new(now));
        let of = |pid: u32| {
            let right = ProcessOwnership::new(None, Party::User(1), HashSet::new());
            let right = FileOwnership::Process(Arc::new(right));
            let path = format!("/var/lib/{pid}").into();
            Box::new(Directory::new(path, Some(pid), None, Arc::clone(&profile), right))
        };
        let directories: Directories = vec![of(1), of(2)];
        let keys = [1, 2].map(DatabaseKey::Process);
        for tick in 1..=100 {
            turns.begin_tick(&directories, std::iter::empty(), now + tick * Duration::from_millis(500));
            let greedy = turns.slice_to_sample(&keys[0]).expect("it waits");
            turns.spend(&keys[0], greedy.cpu);
            let other = turns.slice_to_sample(&keys[1]).expect("it waits for the other");
            assert!(other.cpu >= greedy.cpu / 2 && other.cpu >= Duration::from_millis(1), "{other:?}");
            turns.spend(&keys[1], Duration::from_millis(1));
        }
    }

    #[test]
    fn a_server_beside_very_many_databases_of_another_user_keeps_its_names() {
        let profile = Arc::new(Profile::built_in().swap_remove(0));
        let of = |pid: u32, party| {
            let right = FileOwnership::Process(Arc::new(ProcessOwnership::new(None, party, HashSet::new())));
            let path = format!("/var/lib/{pid}").into();
            Box::new(Directory::new(path, Some(pid), None, Arc::clone(&profile), right))
        };
        let others = 0..u32::try_from(DIRECTORIES_PER_USER).unwrap();
        let mut directories: Directories = others.map(|pid| of(pid, Party::User(1))).collect();
        directories.push(of(1 << 20, Party::User(2)));
        let now = Instant::now();
        let mut turns = Turns::new(now);
        turns.begin_tick(&directories, std::iter::empty(), now);
        let (others, own) = directories.split_at(DIRECTORIES_PER_USER);
        assert_eq!((turns.names(own), turns.windows(own)), (NAMES_PER_DATABASE, WINDOWS_PER_DATABASE));
        let of_another = (turns.names(&others[..1]), turns.windows(&others[..1]));
        assert!(of_another.0 * others.len() + NAMES_PER_DATABASE <= NAMES_MAX, "{of_another:?}");
        assert!(of_another.1 * others.len() + WINDOWS_PER_DATABASE <= WINDOWS_MAX, "{of_another:?}");
        // A database that has spent its budget is waited for, as long as it has directories.
        let key = own[0].database();
        assert!(turns.slice_to_sample(&key).is_some() && !turns.anyone_waits());
        turns.spend(&key, Duration::from_secs(30));
        assert!(turns.slice_to_sample(&key).is_none() && turns.anyone_waits());
        turns.begin_tick(others, std::iter::empty(), now);
        assert!(!turns.anyone_waits());
        turns.begin_tick(&directories, std::iter::empty(), now);
        // A database that is found in this tick has its share at once.
        let late = [of(1 << 21, Party::Container(7))];
        assert_eq!(turns.names(&late), NAMES_PER_DATABASE);
    }
}
