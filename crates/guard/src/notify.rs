//! inotify(7) on the watched directories: new, renamed and removed log files are known at the next tick.
//!
//! Watches follow the directory, not its name, and hold neither open. Where no watch can be had
//! (`max_user_watches`) or events were lost, directories are listed at intervals instead.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};

/// The watches. The key of a directory is the caller's.
pub(crate) struct Notifications<K> {
    inotify: Option<Inotify>,
    keys: HashMap<WatchDescriptor, K>,
}

/// What happened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<'a, K> {
    /// This name came or went in this directory; without a name, the directory itself went.
    In(&'a K, Option<&'a OsStr>),
    /// Events were lost: anything may have changed.
    Anywhere,
}

impl<K: PartialEq> Notifications<K> {
    pub(crate) fn new() -> Self {
        Self { inotify: Inotify::init().ok(), keys: HashMap::new() }
    }

    /// Watches a directory that is open, also if it is watched already; whether a watch could be had.
    pub(crate) fn watch(&mut self, directory: BorrowedFd<'_>, key: K) -> bool {
        let Some(inotify) = &mut self.inotify else {
            return false;
        };
        let wanted = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::MOVED_TO;
        // Through the descriptor: the very directory, whatever its name leads to by now.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        match inotify.watches().add(path, wanted | WatchMask::ONLYDIR) {
            Ok(descriptor) => {
                self.keys.insert(descriptor, key);
                true
            }
            Err(_) => false,
        }
    }

    /// Ends the watches of a directory.
    pub(crate) fn unwatch(&mut self, key: &K) {
        let Some(inotify) = &mut self.inotify else { return };
        let ended: Vec<WatchDescriptor> = self
            .keys
            .iter()
            .filter(|(_, other)| *other == key)
            .map(|(descriptor, _)| descriptor.clone())
            .collect();
        for descriptor in ended {
            self.keys.remove(&descriptor);
            // The kernel has ended it already if the directory is gone.
            let _ = inotify.watches().remove(descriptor);
        }
    }

    /// Gives what happened since the last call to `each`; never waits.
    pub(crate) fn changes(&mut self, mut each: impl FnMut(Change<'_, K>)) {
        let Some(inotify) = &mut self.inotify else { return };
        let mut buffer = [0; 16 << 10];
        while let Ok(events) = inotify.read_events(&mut buffer) {
            for event in events {
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    each(Change::Anywhere);
                } else if let Some(key) = self.keys.get(&event.wd) {
                    each(Change::In(key, event.name));
                }
                if event.mask.contains(EventMask::IGNORED) {
                    self.keys.remove(&event.wd);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;
    use std::os::fd::AsFd;

    fn changes_of<K: Debug + PartialEq>(notifications: &mut Notifications<K>) -> Vec<String> {
        let mut changes = Vec::new();
        notifications.changes(|change| changes.push(format!("{change:?}")));
        changes
    }

    #[test]
    fn coming_and_going_names_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let mut notifications = Notifications::new();
        assert!(notifications.watch(fd.as_fd(), 7));
        drop(fd);
        assert_eq!(changes_of(&mut notifications), [""; 0]);
        let name = dir.path().join("a");
        std::fs::write(&name, b"x").unwrap();
        assert_eq!(changes_of(&mut notifications), ["In(7, Some(\"a\"))"]);
        std::fs::write(&name, b"y").unwrap();
        assert_eq!(changes_of(&mut notifications), [""; 0], "writes are no news");
        std::fs::remove_file(&name).unwrap();
        assert_eq!(changes_of(&mut notifications), ["In(7, Some(\"a\"))"]);
        notifications.unwatch(&7);
        std::fs::write(&name, b"x").unwrap();
        assert_eq!(changes_of(&mut notifications), [""; 0]);
    }

    #[test]
    fn a_directory_that_goes_away_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let mut notifications = Notifications::new();
        notifications.watch(fd.as_fd(), "gone");
        drop(fd);
        dir.close().unwrap();
        assert_eq!(changes_of(&mut notifications), ["In(\"gone\", None)"]);
    }
}
