//! Locks of one database file between the connections of this process, with the levels of SQLite's
//! own VFS: SHARED, RESERVED, PENDING, EXCLUSIVE.
//!
//! They are kept here and not in the underlying VFS, because the process holds the file's lock
//! against *other* processes while its log has commits.
//!
//! Invariants: at most one connection has more than SHARED. A connection with EXCLUSIVE is the only
//! one with a lock. With PENDING no connection newly gets SHARED.

use std::collections::HashMap;

/// The lock level of a connection or of the process. Numbers as in SQLite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    None = 0,
    Shared = 1,
    Reserved = 2,
    Pending = 3,
    Exclusive = 4,
}

impl Level {
    pub(crate) fn of(number: i32) -> Self {
        match number {
            ..=0 => Self::None,
            1 => Self::Shared,
            2 => Self::Reserved,
            3 => Self::Pending,
            4.. => Self::Exclusive,
        }
    }
}

/// The lock of each connection. A connection without an entry has none.
#[derive(Debug, Default)]
pub(crate) struct Locks(HashMap<u64, Level>);

impl Locks {
    pub(crate) fn of(&self, connection: u64) -> Level {
        self.0.get(&connection).copied().unwrap_or(Level::None)
    }

    /// Returns the strongest lock of all connections.
    pub(crate) fn strongest(&self) -> Level {
        self.0.values().copied().max().unwrap_or(Level::None)
    }

    /// Takes a lock if the other connections allow it. A refused request for EXCLUSIVE leaves
    /// PENDING, so that the readers eventually finish.
    pub(crate) fn try_take(&mut self, connection: u64, level: Level) -> bool {
        let mut others = self.0.iter().filter(|&(&other, _)| other != connection).map(|(_, &level)| level);
        let strongest = others.clone().max().unwrap_or(Level::None);
        let is_free = match level {
            Level::None => true,
            Level::Shared => strongest < Level::Pending,
            Level::Reserved => strongest < Level::Reserved,
            Level::Pending | Level::Exclusive => {
                if strongest >= Level::Reserved {
                    return false;
                }
                if others.any(|level| level >= Level::Shared) {
                    self.set(connection, Level::Pending);
                    return false;
                }
                true
            }
        };
        if is_free {
            self.set(connection, level);
        }
        is_free
    }

    pub(crate) fn set(&mut self, connection: u64, level: Level) {
        if level == Level::None {
            self.0.remove(&connection);
        } else {
            self.0.insert(connection, level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_for_readers_and_keeps_new_ones_out() {
        let mut locks = Locks::default();
        assert!(locks.try_take(1, Level::Shared) && locks.try_take(2, Level::Shared));
        assert!(locks.try_take(1, Level::Reserved) && !locks.try_take(2, Level::Reserved));
        assert!(locks.try_take(3, Level::Shared), "a reserved lock keeps no reader out");
        assert!(!locks.try_take(1, Level::Exclusive) && locks.of(1) == Level::Pending);
        assert!(!locks.try_take(4, Level::Shared));
        locks.set(2, Level::None);
        assert!(!locks.try_take(1, Level::Exclusive));
        locks.set(3, Level::None);
        assert!(locks.try_take(1, Level::Exclusive) && locks.strongest() == Level::Exclusive);
        assert!(!locks.try_take(4, Level::Shared) && locks.of(4) == Level::None);
        locks.set(1, Level::Shared);
        assert!(locks.try_take(4, Level::Shared));
    }

    #[test]
    fn one_of_two_writers_is_refused() {
        let mut locks = Locks::default();
        assert!(locks.try_take(1, Level::Shared) && locks.try_take(2, Level::Shared));
        assert!(locks.try_take(1, Level::Reserved));
        assert!(!locks.try_take(2, Level::Exclusive) && locks.of(2) == Level::Shared);
    }
}
