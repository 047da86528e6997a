//! The databases that have series of their own.
//!
//! Invariants: there are at most [`DATABASES_MAX`] of them, and [`DATABASES_OF_USER_MAX`] of one
//! user. Further ones are counted together as `other`. So no user's databases displace another
//! user's series, and databases that come and go do not create new series forever.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::names::DatabaseName;

/// Maximum number of databases with their own series. Each takes some 10 KB of a response.
const DATABASES_MAX: usize = 1000;
/// Maximum per user. If there is no room, the user with the most loses one to a user with fewer.
pub(crate) const DATABASES_OF_USER_MAX: usize = 250;
/// Time for which the counters of a database that has ended are kept.
const COUNTER_RETENTION: Duration = Duration::from_secs(15 * 60);

/// The names of these databases, each with the time of its last use and its user.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeriesNames(BTreeMap<DatabaseName, (Instant, u32)>);

impl SeriesNames {
    /// Returns the name under which a database's figures are kept.
    pub(crate) fn name_for(&mut self, name: &DatabaseName, user: u32, now: Instant) -> DatabaseName {
        let has_room = self.0.contains_key(name) || self.has_room_for(user);
        let kept = if has_room { name.clone() } else { DatabaseName::others() };
        self.0.insert(kept.clone(), (now, user));
        kept
    }

    /// Whether a name has series.
    pub(crate) fn contains(&self, name: &DatabaseName) -> bool {
        self.0.contains_key(name)
    }

    /// Removes databases that ended long ago.
    pub(crate) fn forget(&mut self, now: Instant) {
        let others = DatabaseName::others();
        self.0.retain(|name, (used, _)| now.duration_since(*used) < COUNTER_RETENTION || *name == others);
    }

    /// Whether a user has room for one more database. If needed, removes one of the user who has
    /// the most.
    fn has_room_for(&mut self, user: u32) -> bool {
        let others = DatabaseName::others();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, (_, user)) in self.0.iter().filter(|(name, _)| **name != others) {
            *counts.entry(*user).or_default() += 1;
        }
        let own = counts.get(&user).copied().unwrap_or_default();
        if own >= DATABASES_OF_USER_MAX || counts.values().sum::<usize>() < DATABASES_MAX {
            return own < DATABASES_OF_USER_MAX;
        }
        let Some((most, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return true };
        if count <= own + 1 {
            return false;
        }
        let of_most = self.0.iter().filter(|(name, (_, user))| *user == most && **name != others);
        if let Some(oldest) = of_most.min_by_key(|(_, (used, _))| *used).map(|(name, _)| name.clone()) {
            self.0.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(directory: &str) -> DatabaseName {
        DatabaseName { engine: "mariadb".to_owned(), directory: directory.to_owned(), cgroup: String::new() }
    }

    #[test]
    fn no_users_databases_take_the_series_of_another() {
        let mut series = SeriesNames::default();
        // More users than there is room for, each with the maximum, and new ones in each sample.
        for round in 0..3 {
            for (user, number) in
                (1000..1006).flat_map(|user| (0..DATABASES_OF_USER_MAX).map(move |n| (user, n)))
            {
                series.name_for(&name(&format!("/fake/{user}/{round}/{number}")), user, Instant::now());
            }
            assert!(series.0.len() <= DATABASES_MAX + 1 && series.contains(&DatabaseName::others()));
        }
        // A late user still gets series, and keeps them.
        for _ in 0..2 {
            for number in 0..DATABASES_OF_USER_MAX {
                series.name_for(&name(&format!("/late/{number}")), 1000, Instant::now());
            }
            let real = name("/var/lib/mysql");
            assert_eq!(series.name_for(&real, 113, Instant::now()), real);
        }
    }
}
