//! The connections of the server, and who goes when there is no room for another.
//!
//! Invariants: at most [`MAX_CONNECTIONS`], and answers that may not have been read yet of at most [`MAX_UNREAD`] bytes but
//! for the last one; whoever was silent longest goes first. So none is kept out, also not a check of health, by clients
//! that say nothing, slowly, or read nothing. [`HEALTH`] that have begun to ask for health stay until they are answered,
//! however many newer ones come.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pagekeeper_kernel::mutex::lock;
use tokio::task::AbortHandle;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 32;
/// Of these, so many that ask for health go only for others that do.
const HEALTH: usize = 8;
/// Bytes of answers that may not have been read yet.
const MAX_UNREAD: usize = 64 << 20;

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    last: u64,
    open: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    task: Option<AbortHandle>,
    /// When it came, or asked last.
    heard: Instant,
    /// It asks for health, and is not answered yet.
    health: bool,
    /// The size of its last answer, which may not have been read yet.
    unread: usize,
}

/// One connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Entry {
    connections: Arc<Connections>,
    number: u64,
}

impl Connections {
    /// A place for one more. Another goes if there is none.
    pub(super) fn enter(self: &Arc<Self>) -> Entry {
        let mut known = lock(&self.0);
        while known.open.len() >= MAX_CONNECTIONS && known.make_room() {}
        known.last += 1;
        let number = known.last;
        known.open.insert(number, Connection { task: None, heard: Instant::now(), health: false, unread: 0 });
        Entry { connections: Arc::clone(self), number }
    }

    /// How a connection is ended.
    pub(super) fn can_end(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = lock(&self.0).open.get_mut(&number) {
            connection.task = Some(task);
        }
    }
}

impl Known {
    /// Ends one for another; whether there was one.
    fn make_room(&mut self) -> bool {
        let stay = self.open.values().filter(|connection| connection.health).count() <= HEALTH;
        self.end_most_silent(|_, connection| !(stay && connection.health))
    }

    /// Ends that one of some connections that was silent longest; whether there was one.
    fn end_most_silent(&mut self, of: impl Fn(u64, &Connection) -> bool) -> bool {
        let some = self.open.iter().filter(|(number, connection)| of(**number, connection));
        let Some(number) = some.min_by_key(|(_, connection)| connection.heard).map(|(number, _)| *number)
        else {
            return false;
        };
        if let Some(task) = self.open.remove(&number).and_then(|connection| connection.task) {
            task.abort();
        }
        true
    }
}

impl Entry {
    /// Which connection it is.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// It has begun to ask for health.
    pub(super) fn asks_for_health(&self) {
        if let Some(connection) = lock(&self.connections.0).open.get_mut(&self.number) {
            connection.health = true;
        }
    }

    /// It has asked, and is answered with so many bytes. Others go if that is too much with what they may not have read.
    pub(super) fn answers(&self, bytes: usize) {
        let mut known = lock(&self.connections.0);
        if let Some(connection) = known.open.get_mut(&self.number) {
            (connection.heard, connection.health, connection.unread) = (Instant::now(), false, bytes);
        }
        while known.open.values().map(|connection| connection.unread).sum::<usize>() > MAX_UNREAD
            && known.end_most_silent(|number, other| number != self.number && other.unread > 0)
        {}
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.connections.0).open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(connections: &Connections) -> Vec<u64> {
        lock(&connections.0).open.keys().copied().collect()
    }

    #[test]
    fn who_was_silent_longest_goes() {
        let connections = Arc::new(Connections::default());
        let mut entries: Vec<Entry> = (0..MAX_CONNECTIONS).map(|_| connections.enter()).collect();
        entries[0].answers(1);
        let new = connections.enter();
        assert_eq!(open(&connections).len(), MAX_CONNECTIONS);
        assert!(!open(&connections).contains(&2) && open(&connections).contains(&1));
        // One that has gone already takes nobody else's place with it.
        drop(entries.remove(1));
        assert_eq!(open(&connections).len(), MAX_CONNECTIONS);
        drop((entries, new));
        assert!(open(&connections).is_empty());
    }

    #[test]
    fn who_asks_for_health_goes_for_others_that_do_alone() {
        let connections = Arc::new(Connections::default());
        let first: Vec<Entry> = (0..HEALTH).map(|_| connections.enter()).collect();
        first.iter().for_each(Entry::asks_for_health);
        let storm: Vec<Entry> = (0..10 * MAX_CONNECTIONS).map(|_| connections.enter()).collect();
        assert_eq!(open(&connections).len(), MAX_CONNECTIONS);
        assert_eq!(open(&connections)[..HEALTH], [1, 2, 3, 4, 5, 6, 7, 8]);
        storm[storm.len() - 1].asks_for_health();
        let new = connections.enter();
        assert_eq!(open(&connections)[0], 2, "one too many asked");
        first[1].answers(1);
        // It was silent for less time than all of the storm.
        let more: Vec<Entry> = (0..MAX_CONNECTIONS).map(|_| connections.enter()).collect();
        assert_eq!(open(&connections)[0], 3, "what was answered has no place of its own");
        drop((new, more));
    }

    #[test]
    fn answers_that_nobody_reads_are_bounded() {
        let connections = Arc::new(Connections::default());
        let entries: Vec<Entry> = (0..10).map(|_| connections.enter()).collect();
        for entry in &entries {
            entry.answers(MAX_UNREAD / 4);
        }
        assert_eq!(open(&connections), [7, 8, 9, 10]);
        let new = connections.enter();
        entries[9].answers(MAX_UNREAD * 2);
        assert_eq!(open(&connections), [10, new.number()], "who has no answer yet stays");
    }
}
