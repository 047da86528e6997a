//! Turns: the order in which databases are served in a tick, and how much each may still spend.
//!
//! Each tick begins with another database, so that none is always the last.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;

use crate::budget::{
    CpuScheduler, Credit, NAMES_MAX, NAMES_PER_DATABASE, Slice, WINDOWS_MAX, WINDOWS_PER_DATABASE,
};
use crate::directory::{DatabaseKey, Directory};
use crate::shares::Databases;

/// The ticks that a database has to wait before that is reported.
const WAITED_TICKS: u32 = 8;
/// Releases may be paid for later, up to this much: otherwise samples alone could use up a small budget.
const ON_ACCOUNT: Duration = Duration::from_millis(50);

/// The accounts of all databases that have or had directories.
pub(super) struct Turns {
    scheduler: CpuScheduler,
    accounts: BTreeMap<DatabaseKey, Account>,
    first: Option<DatabaseKey>,
    /// The databases that have directories, with their parties.
    present: BTreeMap<DatabaseKey, Party>,
    names: Databases,
    windows: Databases,
}

#[derive(Clone, Copy)]
struct Account {
    credit: Credit,
    /// Ticks since it last had time for samples, and for a listing if one is in progress.
    waited: u32,
    /// Whether it had time for a listing since it last had time for samples.
    listed: bool,
    /// Number of times that a listing made way for samples since then.
    made_way: u32,
    /// Whether a listing has to wait in this tick.
    waits_to_list: bool,
}

impl Turns {
    pub(super) fn new(now: Instant) -> Self {
        let (scheduler, accounts, first) = (CpuScheduler::new(now), BTreeMap::new(), None);
        let (names, windows) = (
            Databases::new(NAMES_MAX, NAMES_PER_DATABASE),
            Databases::new(WINDOWS_MAX, WINDOWS_PER_DATABASE),
        );
        Self { scheduler, accounts, first, present: BTreeMap::new(), names, windows }
    }

    /// Begins a tick: each database gets its share. That includes databases without directories, whose claims
    /// are yet to be examined. For these `party` returns the party, and `None` if the database has ended:
    /// then it loses its account. A database whose directories are away keeps its debt.
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
        self.scheduler.fill(credits, now);
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
        self.account(key).credit.slice(Duration::ZERO)
    }

    /// Returns what a database may spend on continuing its listings; `None` if it has to wait. If there is
    /// too little time for both, listings and samples alternate: listings of very many names would otherwise
    /// leave none for samples. If something other than samples takes the time, listings continue after
    /// [`WAITED_TICKS`] ticks.
    pub(super) fn slice_to_list(&mut self, key: &DatabaseKey) -> Option<Slice> {
        let slice = self.slice(key);
        let account = self.account(key);
        let makes_way = account.listed && account.made_way < WAITED_TICKS;
        account.made_way += u32::from(slice.is_some() && makes_way);
        let slice = slice.filter(|_| !makes_way);
        if slice.is_some() {
            (account.listed, account.made_way) = (true, 0);
        }
        account.waits_to_list = slice.is_none();
        slice
    }

    /// Returns what a database may spend on samples now; `None` if it has to wait.
    pub(super) fn slice_to_sample(&mut self, key: &DatabaseKey) -> Option<Slice> {
        let slice = self.slice(key);
        let account = self.account(key);
        account.listed &= slice.is_none();
        account.waited = if slice.is_some() && !account.waits_to_list { 0 } else { account.waited + 1 };
        slice
    }

    /// Returns what a database may spend on releases now, in part on credit.
    pub(super) fn slice_on_account(&mut self, key: &DatabaseKey) -> Option<Slice> {
        self.account(key).credit.slice(ON_ACCOUNT)
    }

    /// Returns whether a database has waited for so long that it is to be reported.
    pub(super) fn has_waited(&self, key: &DatabaseKey) -> bool {
        self.accounts.get(key).is_some_and(|account| account.waited >= WAITED_TICKS)
    }

    /// Returns whether a database with directories had no time in this tick for samples, or for a listing in
    /// progress.
    pub(super) fn anyone_waits(&self) -> bool {
        self.accounts.iter().any(|(key, account)| account.waited > 0 && self.present.contains_key(key))
    }

    /// Deducts processor time that a database spent.
    pub(super) fn spend(&mut self, key: &DatabaseKey, cpu: Duration) {
        self.account(key).credit.spend(cpu);
    }

    /// Deducts processor time that a database spent on releasing so many bytes.
    pub(super) fn spend_on_release(&mut self, key: &DatabaseKey, cpu: Duration, bytes: u64) {
        let unpaid = self.scheduler.unpaid(cpu, bytes);
        self.spend(key, unpaid);
    }

    /// Returns how many log files may be watched in each of the directories of one database.
    pub(super) fn names(&mut self, own: &[Box<Directory>]) -> usize {
        let party = self.party(own);
        (self.names.share(party) / own.len().max(1)).max(1)
    }

    /// Returns how many windows are kept for the database of these directories.
    pub(super) fn windows(&mut self, own: &[Box<Directory>]) -> usize {
        let party = self.party(own);
        self.windows.share(party)
    }

    /// Returns the party of the database of these directories, which may have been found in this tick.
    fn party(&mut self, own: &[Box<Directory>]) -> Party {
        own.first().map_or(Party::Unknown, |first| self.note(first))
    }

    /// Records that the database of a directory is present, and its party in this tick.
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

    /// Returns the account of a database. Opens one for a database that was found in this tick.
    fn account(&mut self, key: &DatabaseKey) -> &mut Account {
        if !self.accounts.contains_key(key) {
            let credit = self.scheduler.open();
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

    use crate::budget::DIRECTORIES_PER_USER;
    use crate::directory::Directories;
    use crate::ownership::{FileOwnership, ProcessRight};

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
        // Otherwise its claims could never be examined again.
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
        // Claims that take all the time displace samples, but no listing for long.
        let listed = (1001..=1100).map(|number| pass(&mut turns, number, true, true)[0]);
        assert!(listed.filter(|spent| !spent.is_zero()).count() >= 10);
        // With time for both, each runs in every tick.
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
            let right = FileOwnership::Process(Arc::new(ProcessRight::new(None, party, HashSet::new())));
            let path = format!("/var/lib/{pid}").into();
            Box::new(Directory::new(path, Some(pid), None, Arc::clone(&profile), right))
        };
        let others = 0..u32::try_from(DIRECTORIES_PER_USER).unwrap();
        let mut directories: Directories = others.map(|pid| of(pid, Party::User(1))).collect();
        directories.push(of(1 << 20, Party::User(2)));
        let now = Instant::now();
        let mut turns = Turns::new(now);
        turns.begin_tick(&directories, |_| Some(Party::Unknown), now);
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
        turns.begin_tick(others, |_| Some(Party::Unknown), now);
        assert!(!turns.anyone_waits());
        turns.begin_tick(&directories, |_| Some(Party::Unknown), now);
        // A database that is found in this tick has its share at once.
        let late = [of(1 << 21, Party::Container(7))];
        assert_eq!(turns.names(&late), NAMES_PER_DATABASE);
    }
}
