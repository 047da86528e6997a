//! Turns: in which order the databases are served in a tick, and what each may still spend.
//!
//! Each tick begins with another database, so that none is always the last.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;

use crate::budget::{ALL_NAMES, ALL_WINDOWS, Credit, NAMES, Purse, Slice, WINDOWS};
use crate::directory::{DatabaseKey, Directory};
use crate::shares::Databases;

/// Ticks for which a database has to wait before that is worth a word.
const WAITED: u32 = 8;
/// What is released may be paid for later, up to so much: else samples alone could take all of a small budget.
const ON_ACCOUNT: Duration = Duration::from_millis(50);

/// The accounts of all databases that have or had directories.
pub(super) struct Turns {
    purse: Purse,
    accounts: BTreeMap<DatabaseKey, Account>,
    first: Option<DatabaseKey>,
    /// The databases that have directories, and whose they are.
    present: BTreeMap<DatabaseKey, Party>,
    names: Databases,
    windows: Databases,
}

#[derive(Clone, Copy)]
struct Account {
    credit: Credit,
    /// Ticks since it last had time for samples, and for a listing if it has one under way.
    waited: u32,
    /// Whether it had time for a listing since it last had for samples.
    listed: bool,
    /// How often a listing made way for samples since.
    made_way: u32,
    /// Whether a listing has to wait in this tick.
    waits_to_list: bool,
}

impl Turns {
    pub(super) fn new(now: Instant) -> Self {
        let (purse, accounts, first) = (Purse::new(now), BTreeMap::new(), None);
        let (names, windows) = (Databases::new(ALL_NAMES, NAMES), Databases::new(ALL_WINDOWS, WINDOWS));
        Self { purse, accounts, first, present: BTreeMap::new(), names, windows }
    }

    /// Begins a tick: each database gets what it may spend, those without directories too, whose claims are yet to be examined. `party`
    /// says whose one is that has none, and nothing of one that has ended, which loses its account; one whose directories are away
    /// keeps what it owes.
    pub(super) fn begin_tick(
        &mut self,
        directories: &[Box<Directory>],
        party: impl Fn(&DatabaseKey) -> Option<Party>,
        now: Instant,
    ) {
        self.present.clear();
        self.names.clear();
        self.windows.clear();
        for directory in directories {
            self.note(directory);
        }
        let of = |key: &DatabaseKey| self.present.get(key).copied().or_else(|| party(key));
        self.accounts.retain(|key, _| of(key).is_some());
        self.accounts.values_mut().for_each(|account| account.waits_to_list = false);
        let accounts = self.accounts.iter_mut();
        let credits = accounts.filter_map(|(key, account)| Some((of(key)?, &mut account.credit)));
        self.purse.fill(credits, now);
        let next = self.order(directories).into_iter().nth(1);
        self.first = next.map(|(key, _)| key).or_else(|| self.first.take());
    }

    /// The databases and their directories, by index, in the order of this tick.
    pub(super) fn order(&self, directories: &[Box<Directory>]) -> Vec<(DatabaseKey, Vec<usize>)> {
        let mut groups: BTreeMap<DatabaseKey, Vec<usize>> = BTreeMap::new();
        for (index, directory) in directories.iter().enumerate() {
            groups.entry(directory.database()).or_default().push(index);
        }
        let Some(first) = &self.first else { return groups.into_iter().collect() };
        let from = groups.split_off(first);
        from.into_iter().chain(groups).collect()
    }

    /// What a database may spend now; `None` if it has to wait.
    pub(super) fn slice(&mut self, key: &DatabaseKey) -> Option<Slice> {
        self.account(key).credit.slice(Duration::ZERO)
    }

    /// What a database may spend on going on with its listings; `None` if it has to wait. Where there is too little for both it
    /// makes way for samples every other time: listings of very many names would leave nothing for them, time after time. If others
    /// than samples take the time it goes on after [`WAITED`] ticks.
    pub(super) fn slice_to_list(&mut self, key: &DatabaseKey) -> Option<Slice> {
        let slice = self.slice(key);
        let account = self.account(key);
        let makes_way = account.listed && account.made_way < WAITED;
        account.made_way += u32::from(slice.is_some() && makes_way);
        let slice = slice.filter(|_| !makes_way);
        if slice.is_some() {
            (account.listed, account.made_way) = (true, 0);
        }
        account.waits_to_list = slice.is_none();
        slice
    }

    /// What a database may spend on samples now; `None` if it has to wait.
    pub(super) fn slice_to_sample(&mut self, key: &DatabaseKey) -> Option<Slice> {
        let slice = self.slice(key);
        let account = self.account(key);
        account.listed &= slice.is_none();
        account.waited = if slice.is_some() && !account.waits_to_list { 0 } else { account.waited + 1 };
        slice
    }

    /// What a database may spend on releasing now.
    pub(super) fn slice_on_account(&mut self, key: &DatabaseKey) -> Option<Slice> {
        self.account(key).credit.slice(ON_ACCOUNT)
    }

    /// Whether a database has had to wait for so long that it is to be reported.
    pub(super) fn has_waited(&self, key: &DatabaseKey) -> bool {
        self.accounts.get(key).is_some_and(|account| account.waited >= WAITED)
    }

    /// Whether one that has directories had no time for samples, or for a listing that is under way, in this tick.
    pub(super) fn anyone_waits(&self) -> bool {
        self.accounts.iter().any(|(key, account)| account.waited > 0 && self.present.contains_key(key))
    }

    /// Takes off what a database spent.
    pub(super) fn spend(&mut self, key: &DatabaseKey, cpu: Duration) {
        self.account(key).credit.spend(cpu);
    }

    /// Takes off what a database spent on releasing so many bytes.
    pub(super) fn spend_on_release(&mut self, key: &DatabaseKey, cpu: Duration, bytes: u64) {
        let unpaid = self.purse.unpaid(cpu, bytes);
        self.spend(key, unpaid);
    }

    /// How many log files may be watched in each of the directories of one database.
    pub(super) fn names(&mut self, own: &[Box<Directory>]) -> usize {
        let party = self.party(own);
        (self.names.share(party) / own.len().max(1)).max(1)
    }

    /// How many windows are kept of the database of these directories.
    pub(super) fn windows(&mut self, own: &[Box<Directory>]) -> usize {
        let party = self.party(own);
        self.windows.share(party)
    }

    /// Whose a database with these directories is, which may have been found in this tick.
    fn party(&mut self, own: &[Box<Directory>]) -> Party {
        own.first().map_or(Party::Unknown, |first| self.note(first))
    }

    /// Takes note that the database of a directory is there, and whose it is in this tick.
    fn note(&mut self, directory: &Directory) -> Party {
        match self.present.entry(directory.database()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let party = *new.insert(directory.right.party());
                self.names.add(party);
                self.windows.add(party);
                party
            }
        }
    }

    /// The account of a database; one that was found in this tick opens it.
    fn account(&mut self, key: &DatabaseKey) -> &mut Account {
        if !self.accounts.contains_key(key) {
            let credit = self.purse.open();
            self.accounts.insert(
                key.clone(),
                Account { credit, waited: 0, listed: false, made_way: 0, waits_to_list: false },
            );
        }
        self.accounts.get_mut(key).expect("it was just inserted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Arc;

    use pagekeeper_catalog::Profile;

    use crate::budget::DIRECTORIES_OF_USER;
    use crate::directory::Directories;
    use crate::ownership::{ProcessRight, Right};

    #[test]
    fn what_is_owed_stays_owed_while_the_directories_are_away() {
        let now = Instant::now();
        let mut turns = Turns::new(now);
        let key = DatabaseKey::Process(7);
        assert!(turns.slice(&key).is_some());
        turns.spend(&key, Duration::from_secs(30));
        assert!(turns.slice(&key).is_none());
        // Its directory is renamed, and back.
        let is_there = |_: &DatabaseKey| Some(Party::User(1));
        turns.begin_tick(&[], is_there, now + Duration::from_secs(1));
        assert!(turns.slice(&key).is_none(), "it opened a new account");
        // Its claims could never be examined again.
        turns.begin_tick(&[], is_there, now + Duration::from_secs(4000));
        assert!(turns.slice(&key).is_some(), "it was given nothing meanwhile");
        turns.begin_tick(&[], |_| None, now + Duration::from_secs(4001));
        assert!(turns.accounts.is_empty(), "it has ended");
    }

    #[test]
    fn listings_without_end_leave_half_of_the_time_to_samples() {
        let now = Instant::now();
        let (key, tick) = (DatabaseKey::Process(7), Duration::from_millis(500));
        let pass = |turns: &mut Turns, number: u32, spend: bool, claims: bool| -> [Duration; 2] {
            turns.begin_tick(&[], |_| Some(Party::User(1)), now + number * tick);
            let spent = |slice: Option<Slice>, turns: &mut Turns| {
                let spent = slice.map_or(Duration::ZERO, |slice| slice.cpu);
                turns.spend(&key, if spend { spent } else { Duration::ZERO });
                spent
            };
            let slice = turns.slice_to_list(&key);
            let listing = spent(slice, turns);
            if claims && let Some(slice) = turns.slice(&key) {
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
            assert!(number < 100 || turns.has_waited(&key), "it has no time for both, which is worth a word");
        }
        let half = Duration::from_millis(2500) * 9 / 10;
        assert!(all.iter().all(|spent| *spent >= half), "{all:?}");
        // Claims that take all keep samples away, and no listing for long.
        let listed = (1001..=1100).map(|number| pass(&mut turns, number, true, true)[0]);
        assert!(listed.filter(|spent| !spent.is_zero()).count() >= 10);
        // With time for both each has its own in every tick.
        pass(&mut turns, 2000, false, false);
        for number in 2001..=2003 {
            assert!(pass(&mut turns, number, false, false).iter().all(|spent| !spent.is_zero()));
            assert!(!turns.has_waited(&key));
        }
    }

    #[test]
    fn a_server_beside_very_many_databases_of_another_user_keeps_its_names() {
        let profile = Arc::new(Profile::built_in().swap_remove(0));
        let of = |pid: u32, party| {
            let right = Right::Process(Arc::new(ProcessRight::new(None, party, HashSet::new())));
            let path = format!("/var/lib/{pid}").into();
            Box::new(Directory::new(path, Some(pid), None, Arc::clone(&profile), right))
        };
        let others = 0..u32::try_from(DIRECTORIES_OF_USER).unwrap();
        let mut directories: Directories = others.map(|pid| of(pid, Party::User(1))).collect();
        directories.push(of(1 << 20, Party::User(2)));
        let now = Instant::now();
        let mut turns = Turns::new(now);
        turns.begin_tick(&directories, |_| Some(Party::Unknown), now);
        let (others, own) = directories.split_at(DIRECTORIES_OF_USER);
        assert_eq!((turns.names(own), turns.windows(own)), (NAMES, WINDOWS));
        let of_another = (turns.names(&others[..1]), turns.windows(&others[..1]));
        assert!(of_another.0 * others.len() + NAMES <= ALL_NAMES, "{of_another:?}");
        assert!(of_another.1 * others.len() + WINDOWS <= ALL_WINDOWS, "{of_another:?}");
        // One that has spent what it has is waited for, as long as it has directories.
        let key = own[0].database();
        assert!(turns.slice_to_sample(&key).is_some() && !turns.anyone_waits());
        turns.spend(&key, Duration::from_secs(30));
        assert!(turns.slice_to_sample(&key).is_none() && turns.anyone_waits());
        turns.begin_tick(others, |_| Some(Party::Unknown), now);
        assert!(!turns.anyone_waits());
        turns.begin_tick(&directories, |_| Some(Party::Unknown), now);
        // One that is found in this tick has its share at once.
        let late = [of(1 << 21, Party::Container(7))];
        assert_eq!(turns.names(&late), NAMES);
    }
}
