//! Turns: in which order the databases are served in a tick, and what each may still spend.
//!
//! Each tick begins with another database, so that none is always the last.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::budget::{ALL_NAMES, ALL_WINDOWS, Credit, NAMES, Purse, Slice, WINDOWS, share};
use crate::directory::{DatabaseKey, Directory};

/// Ticks for which a database has to wait before that is worth a word.
const WAITED: u32 = 8;
/// What is released may be paid for later, up to so much: else samples alone could take all of a small budget.
const ON_ACCOUNT: Duration = Duration::from_millis(50);

/// The accounts of all databases that have or had directories.
pub(super) struct Turns {
    purse: Purse,
    accounts: BTreeMap<DatabaseKey, Account>,
    first: Option<DatabaseKey>,
    /// How many databases have directories.
    present: usize,
}

#[derive(Clone, Copy)]
struct Account {
    credit: Credit,
    /// Ticks since it last had time for a sample.
    waited: u32,
}

impl Turns {
    pub(super) fn new(now: Instant) -> Self {
        Self { purse: Purse::new(now), accounts: BTreeMap::new(), first: None, present: 0 }
    }

    /// Begins a tick: those with directories get what they may spend. Databases that have ended lose their account; one whose
    /// directories are away keeps what it owes.
    pub(super) fn begin_tick(
        &mut self,
        directories: &[Directory],
        has_ended: impl Fn(&DatabaseKey) -> bool,
        now: Instant,
    ) {
        let present: BTreeSet<DatabaseKey> = directories.iter().map(Directory::database).collect();
        self.accounts.retain(|key, _| present.contains(key) || !has_ended(key));
        self.present = present.len();
        let accounts = self.accounts.iter_mut().filter(|(key, _)| present.contains(*key));
        self.purse.fill(accounts.map(|(_, account)| &mut account.credit), now);
        let next = self.order(directories).into_iter().nth(1);
        self.first = next.map(|(key, _)| key).or_else(|| self.first.take());
    }

    /// The databases and their directories, by index, in the order of this tick.
    pub(super) fn order(&self, directories: &[Directory]) -> Vec<(DatabaseKey, Vec<usize>)> {
        let mut groups: BTreeMap<DatabaseKey, Vec<usize>> = BTreeMap::new();
        for (index, directory) in directories.iter().enumerate() {
            groups.entry(directory.database()).or_default().push(index);
        }
        let Some(first) = &self.first else { return groups.into_iter().collect() };
        let from = groups.split_off(first);
        from.into_iter().chain(groups).collect()
    }

    /// What a database may spend on samples now; `None` if it has to wait.
    pub(super) fn slice(&mut self, key: &DatabaseKey) -> Option<Slice> {
        let account = self.account(key);
        let slice = account.credit.slice(Duration::ZERO);
        account.waited = if slice.is_some() { 0 } else { account.waited + 1 };
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

    /// Takes off what a database spent.
    pub(super) fn spend(&mut self, key: &DatabaseKey, cpu: Duration) {
        self.account(key).credit.spend(cpu);
    }

    /// Takes off what a database spent on releasing so many bytes.
    pub(super) fn spend_on_release(&mut self, key: &DatabaseKey, cpu: Duration, bytes: u64) {
        let unpaid = self.purse.unpaid(cpu, bytes);
        self.spend(key, unpaid);
    }

    /// How many log files may be watched in each of so many directories of one database.
    pub(super) fn names(&self, directories: usize) -> usize {
        (share(ALL_NAMES, NAMES, self.present) / directories.max(1)).max(1)
    }

    /// How many windows are kept of one database.
    pub(super) fn windows(&self) -> usize {
        share(ALL_WINDOWS, WINDOWS, self.present)
    }

    /// The account of a database; one that was found in this tick opens it.
    fn account(&mut self, key: &DatabaseKey) -> &mut Account {
        if !self.accounts.contains_key(key) {
            let credit = self.purse.open();
            self.accounts.insert(key.clone(), Account { credit, waited: 0 });
            self.present += 1;
        }
        self.accounts.get_mut(key).expect("it was just inserted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_stays_owed_while_the_directories_are_away() {
        let now = Instant::now();
        let mut turns = Turns::new(now);
        let key = DatabaseKey::Process(7);
        assert!(turns.slice(&key).is_some());
        turns.spend(&key, Duration::from_secs(30));
        assert!(turns.slice(&key).is_none());
        // Its directory is renamed, and back.
        turns.begin_tick(&[], |_| false, now + Duration::from_secs(1));
        assert!(turns.slice(&key).is_none(), "it opened a new account");
        turns.begin_tick(&[], |_| true, now + Duration::from_secs(2));
        assert!(turns.accounts.is_empty(), "it has ended");
    }
}
