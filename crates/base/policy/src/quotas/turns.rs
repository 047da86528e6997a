//! Turns: the order in which databases are served in a tick, and how much each may still spend.
//!
//! Each tick begins with another database, so that none is always the last. A turn takes at most
//! the database's part of its user's bucket, so that a database that could use all of it leaves the
//! others of its user theirs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::quotas::cpu_budget::{CpuBudget, TURN_CPU_MAX};
use crate::quotas::quota::{NAMES_MAX, NAMES_PER_DATABASE, Quota, WINDOWS_MAX, WINDOWS_PER_DATABASE};

/// The most wall-clock time that a database takes in one turn.
const TURN_WALL_MAX: Duration = Duration::from_millis(250);
/// The ticks that a database has to wait before that is reported.
const WAITED_TICKS: u32 = 8;
/// Releases may be paid for later, up to this much: otherwise samples alone could use up a small
/// budget.
const CREDIT_CPU_MAX: Duration = Duration::from_millis(50);

/// The limits of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Processor time.
    pub cpu: Duration,
    /// Wall-clock time.
    pub wall: Duration,
}

impl Slice {
    /// Returns the limits of a turn of at most `cpu`.
    pub fn of(cpu: Duration) -> Self {
        Self { cpu: cpu.min(TURN_CPU_MAX), wall: TURN_WALL_MAX }
    }
}

/// The users (`U`) of all databases (`K`), and what these may still spend.
pub struct Turns<K, U> {
    budget: CpuBudget<U>,
    /// The user who named directories, which may be away.
    operator: U,
    /// Returns the user of a database that is not known.
    unknown: fn(&K) -> U,
    /// The databases that were known when the tick began.
    users: BTreeMap<K, U>,
    /// The databases that have directories.
    present: BTreeMap<K, U>,
    /// The number of these, by user.
    counts: BTreeMap<U, u32>,
    names: Quota<U>,
    windows: Quota<U>,
    first: Option<K>,
    /// For how many ticks each database has had no time for samples.
    waited: BTreeMap<K, u32>,
}

impl<K: Ord + Clone, U: Ord + Copy> Turns<K, U> {
    /// Knows no database yet. `operator` names directories; `unknown` returns the user of a
    /// database that is not known.
    pub fn new(now: Instant, operator: U, unknown: fn(&K) -> U) -> Self {
        Self {
            budget: CpuBudget::new(now),
            operator,
            unknown,
            users: BTreeMap::new(),
            present: BTreeMap::new(),
            counts: BTreeMap::new(),
            names: Quota::new(NAMES_MAX, NAMES_PER_DATABASE),
            windows: Quota::new(WINDOWS_MAX, WINDOWS_PER_DATABASE),
            first: None,
            waited: BTreeMap::new(),
        }
    }

    /// Begins a tick: each user gets their share of the time. `directories` are the databases and
    /// users of all watched directories, `databases` those that run, also without directories.
    pub fn begin_tick(
        &mut self,
        directories: impl Iterator<Item = (K, U)>,
        databases: impl Iterator<Item = (K, U)>,
        now: Instant,
    ) {
        self.users = databases.collect();
        self.present.clear();
        self.counts.clear();
        directories.for_each(|(key, user)| _ = self.note(&key, user));
        let mut counts = self.counts.clone();
        for user in self.users.values().chain([&self.operator]) {
            counts.entry(*user).or_insert(0);
        }
        self.budget.fill(&counts, now);
        self.waited.retain(|key, _| self.present.contains_key(key));
        let next = self.order(self.present.keys().cloned()).into_iter().nth(1);
        self.first = next.map(|(key, _)| key).or_else(|| self.first.take());
    }

    /// Returns the databases and their directories, by index, in the order of this tick. `keys` are
    /// the databases of the directories.
    pub fn order(&self, keys: impl Iterator<Item = K>) -> Vec<(K, Vec<usize>)> {
        let mut groups: BTreeMap<K, Vec<usize>> = BTreeMap::new();
        for (index, key) in keys.enumerate() {
            groups.entry(key).or_default().push(index);
        }
        let Some(first) = &self.first else { return groups.into_iter().collect() };
        let from = groups.split_off(first);
        from.into_iter().chain(groups).collect()
    }

    /// Returns what a database may spend now; `None` if it has to wait.
    pub fn slice(&mut self, key: &K) -> Option<Slice> {
        self.part(key, 1, Duration::ZERO)
    }

    /// Returns what a database may spend on finding its files: half of what it has, so that names
    /// without end leave time for samples.
    pub fn slice_to_find(&mut self, key: &K) -> Option<Slice> {
        self.part(key, 2, Duration::ZERO)
    }

    /// Returns what a database may spend on samples now; `None` if it has to wait.
    pub fn slice_to_sample(&mut self, key: &K) -> Option<Slice> {
        let slice = self.slice(key);
        let waited = self.waited.entry(key.clone()).or_default();
        *waited = if slice.is_some() { 0 } else { *waited + 1 };
        slice
    }

    /// Returns what a database may spend on releases now, in part on credit.
    pub fn slice_on_account(&mut self, key: &K) -> Option<Slice> {
        self.part(key, 1, CREDIT_CPU_MAX)
    }

    /// Returns one of `parts` of what a database may spend, with `beside` on credit.
    fn part(&mut self, key: &K, parts: u32, beside: Duration) -> Option<Slice> {
        let user = self.user(key);
        let left = self.budget.available(user, beside)?;
        let databases = self.counts.get(&user).copied().unwrap_or(0).max(1);
        Some(Slice::of(left / databases.saturating_mul(parts)))
    }

    /// Returns whether a database has waited for so long that it is to be reported.
    pub fn has_waited(&self, key: &K) -> bool {
        self.waited.get(key).is_some_and(|ticks| *ticks >= WAITED_TICKS)
    }

    /// Returns whether a database with directories had no time for samples in this tick.
    pub fn anyone_waits(&self) -> bool {
        self.waited.iter().any(|(key, ticks)| *ticks > 0 && self.present.contains_key(key))
    }

    /// Deducts processor time that a database spent.
    pub fn spend(&mut self, key: &K, cpu: Duration) {
        self.budget.spend(self.user(key), cpu);
    }

    /// Returns whether a user has time left for a first look at another process.
    pub fn has_time(&self, user: U) -> bool {
        !self.budget.has_used_up(user)
    }

    /// Deducts processor time that a first look at a user's process took.
    pub fn charge(&mut self, user: U, cpu: Duration) {
        self.budget.spend(user, cpu);
    }

    /// Gives back the part of `cpu`, spent on releasing `bytes`, that these bytes earned.
    pub fn earn(&mut self, key: &K, cpu: Duration, bytes: u64) {
        self.budget.earn(self.user(key), cpu, bytes);
    }

    /// Returns how many log files may be watched in each of the directories of one database.
    pub fn names(&mut self, key: &K, user: U, directories: usize) -> usize {
        let user = self.note(key, user);
        (self.names.share(&self.counts, user) / directories.max(1)).max(1)
    }

    /// Returns how many windows are kept for a database.
    pub fn windows(&mut self, key: &K, user: U) -> usize {
        let user = self.note(key, user);
        self.windows.share(&self.counts, user)
    }

    /// Returns the user of a database.
    pub fn user(&self, key: &K) -> U {
        let known = self.present.get(key).or_else(|| self.users.get(key));
        known.copied().unwrap_or_else(|| (self.unknown)(key))
    }

    /// Records that a database has directories, and its user in this tick. It may have been found
    /// in this tick.
    fn note(&mut self, key: &K, user: U) -> U {
        if let Some(known) = self.present.get(key) {
            return *known;
        }
        self.present.insert(key.clone(), user);
        *self.counts.entry(user).or_default() += 1;
        self.names.forget();
        self.windows.forget();
        user
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quotas::quota::DIRECTORIES_PER_USER;
    use std::iter::empty;

    /// Turns of databases and users that are numbers.
    fn turns(now: Instant) -> Turns<u32, u32> {
        Turns::new(now, 0, |_| u32::MAX)
    }

    #[test]
    fn a_debt_stays_while_the_directories_are_away() {
        let now = Instant::now();
        let mut turns = turns(now);
        let key = 7;
        let is_there = || [(7, 1)].into_iter();
        turns.begin_tick(empty(), is_there(), now);
        assert!(turns.slice(&key).is_some());
        turns.spend(&key, Duration::from_secs(30));
        assert!(turns.slice(&key).is_none());
        // The database's directory is renamed, and back.
        turns.begin_tick(empty(), is_there(), now + Duration::from_secs(1));
        assert!(turns.slice(&key).is_none(), "it has another bucket");
        // Otherwise its claims could never be examined again.
        turns.begin_tick(empty(), is_there(), now + Duration::from_secs(4000));
        assert!(turns.slice(&key).is_some(), "it was given nothing meanwhile");
    }

    #[test]
    fn listings_without_end_leave_half_of_the_time_to_samples() {
        let now = Instant::now();
        let (key, tick) = (7, Duration::from_millis(500));
        let pass = |turns: &mut Turns<u32, u32>, number: u32, spend: bool, claims: bool| -> [Duration; 2] {
            let databases = [(7, 1)].into_iter();
            turns.begin_tick(empty(), databases, now + number * tick);
            let spent = |slice: Option<Slice>, turns: &mut Turns<u32, u32>| {
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
        let mut turns = turns(now);
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
        let mut turns = turns(now);
        for tick in 1..=100 {
            let directories = [(1, 1), (2, 1)].into_iter();
            turns.begin_tick(directories, empty(), now + tick * Duration::from_millis(500));
            let greedy = turns.slice_to_sample(&1).expect("it waits");
            turns.spend(&1, greedy.cpu);
            let other = turns.slice_to_sample(&2).expect("it waits for the other");
            assert!(other.cpu >= greedy.cpu / 2 && other.cpu >= Duration::from_millis(1), "{other:?}");
            turns.spend(&2, Duration::from_millis(1));
        }
    }

    #[test]
    fn a_server_beside_very_many_databases_of_another_user_keeps_its_names() {
        let count = u32::try_from(DIRECTORIES_PER_USER).unwrap();
        let (now, key) = (Instant::now(), 1 << 20);
        let (others, own) = ((0..count).map(|pid| (pid, 1)), [(key, 2)].into_iter());
        let mut turns = turns(now);
        turns.begin_tick(others.clone().chain(own.clone()), empty(), now);
        assert_eq!(
            (turns.names(&key, 2, 1), turns.windows(&key, 2)),
            (NAMES_PER_DATABASE, WINDOWS_PER_DATABASE)
        );
        let of_another = (turns.names(&1, 1, 1), turns.windows(&1, 1));
        assert!(of_another.0 * DIRECTORIES_PER_USER + NAMES_PER_DATABASE <= NAMES_MAX, "{of_another:?}");
        assert!(of_another.1 * DIRECTORIES_PER_USER + WINDOWS_PER_DATABASE <= WINDOWS_MAX, "{of_another:?}");
        // A database that has spent its budget is waited for, as long as it has directories.
        assert!(turns.slice_to_sample(&key).is_some() && !turns.anyone_waits());
        turns.spend(&key, Duration::from_secs(30));
        assert!(turns.slice_to_sample(&key).is_none() && turns.anyone_waits());
        turns.begin_tick(others.clone(), empty(), now);
        assert!(!turns.anyone_waits());
        turns.begin_tick(others.chain(own), empty(), now);
        // A database that is found in this tick has its share at once.
        assert_eq!(turns.names(&(1 << 21), 7, 1), NAMES_PER_DATABASE);
    }
}
