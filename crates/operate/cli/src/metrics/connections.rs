//! The connections of the server, and which one is closed to make room for another.
//!
//! Invariants: there are at most [`MAX_CONNECTIONS`] connections, and at most [`MAX_UNREAD`] bytes of possibly
//! unread responses, apart from the last one. The connection that was silent longest is closed first. So clients
//! that send nothing, send slowly or read nothing keep nobody out, including health checks. Up to [`HEALTH`]
//! connections that have begun a health request stay until they are answered, however many newer ones arrive.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pagekeeper_kernel::mutex::lock;
use tokio::task::AbortHandle;

/// Maximum number of connections at a time.
const MAX_CONNECTIONS: usize = 32;
/// Up to this many of them, with health requests, are closed only for others of that kind.
const HEALTH: usize = 8;
/// Maximum bytes of responses that may not have been read yet.
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
    /// The time of its arrival or last request.
    heard: Instant,
    /// Whether it has begun a health request that is not answered yet.
    health: bool,
    /// The size of its last response, which may not have been read yet.
    unread: usize,
}

/// The slot of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Entry {
    connections: Arc<Connections>,
    number: u64,
}

impl Connections {
    /// Takes a slot for a new connection. Closes another one if none is free.
    pub(super) fn enter(self: &Arc<Self>) -> Entry {
        let mut known = lock(&self.0);
        while known.open.len() >= MAX_CONNECTIONS && known.make_room() {}
        known.last += 1;
        let number = known.last;
        known.open.insert(number, Connection { task: None, heard: Instant::now(), health: false, unread: 0 });
        Entry { connections: Arc::clone(self), number }
    }

    /// Sets how a connection is closed.
    pub(super) fn can_end(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = lock(&self.0).open.get_mut(&number) {
            connection.task = Some(task);
        }
    }
}

impl Known {
    /// Closes a connection for another. Returns whether there was one.
    fn make_room(&mut self) -> bool {
        let stay = self.open.values().filter(|connection| connection.health).count() <= HEALTH;
        self.end_most_silent(|_, connection| !(stay && connection.health))
    }

    /// Closes the one of the selected connections that was silent longest. Returns whether there was one.
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
    /// Returns the connection's number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Records that it has begun a health request.
    pub(super) fn asks_for_health(&self) {
        if let Some(connection) = lock(&self.connections.0).open.get_mut(&self.number) {
            connection.health = true;
        }
    }

    /// Records that it is answered with `bytes`. Closes others if that is too much together with their possibly
    /// unread responses.
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
        // A connection that is already closed does not close another one.
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
