//! The connections of the server, and who goes when there is no room for another.
//!
//! Invariants: at most [`MAX_CONNECTIONS`], and answers that may not have been read yet of at most [`MAX_UNREAD`] bytes but
//! for the last one; whoever was silent longest goes first. So none is kept out, also not a check of health, by clients
//! that say nothing, slowly, or read nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pagekeeper_kernel::mutex::lock;
use tokio::task::AbortHandle;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 32;
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
        while known.open.len() >= MAX_CONNECTIONS && known.end_most_silent(|_, _| true) {}
        known.last += 1;
        let number = known.last;
        known.open.insert(number, Connection { task: None, heard: Instant::now(), unread: 0 });
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

    /// It has asked, and is answered with so many bytes. Others go if that is too much with what they may not have read.
    pub(super) fn answers(&self, bytes: usize) {
        let mut known = lock(&self.connections.0);
        if let Some(connection) = known.open.get_mut(&self.number) {
            (connection.heard, connection.unread) = (Instant::now(), bytes);
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
