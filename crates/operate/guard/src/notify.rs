//! inotify(7) on the watched directories: new, renamed and removed log files are known at the next
//! tick.
//!
//! Watches follow the directory, not its name, and hold neither open. If no watch can be had
//! (`max_user_watches`) or events were lost, directories are listed at intervals instead.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};

/// Maximum number of reads of 16 KiB in one call: 1 MiB, some thousand events.
const READS_MAX: usize = 64;

/// The watches. The caller chooses the key of a directory.
pub(crate) struct Notifications<K> {
    inotify: Option<Inotify>,
    keys: HashMap<WatchDescriptor, K>,
}

/// Creates watches.
#[derive(Debug, Clone)]
pub(crate) struct WatchMaker {
    watches: Option<Watches>,
}

impl WatchMaker {
    /// Watches an open directory, also if it is watched already. Returns `None` if no watch can be
    /// had.
    pub(crate) fn watch(&mut self, directory: BorrowedFd<'_>) -> Option<MadeWatch> {
        let of_names = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::MOVED_TO;
        let wanted = of_names | WatchMask::MOVE_SELF;
        // Through the descriptor: it is this very directory, wherever its name leads by now.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let watches = self.watches.as_mut()?;
        let watch = watches.add(path, wanted | WatchMask::ONLYDIR).ok()?;
        Some(MadeWatch(Some((watches.clone(), watch))))
    }
}

/// A new watch. It ends when it is dropped, unless it was [registered](Notifications::made).
#[derive(Debug)]
pub(crate) struct MadeWatch(Option<(Watches, WatchDescriptor)>);

impl Drop for MadeWatch {
    fn drop(&mut self) {
        if let Some((mut watches, watch)) = self.0.take() {
            // If the directory is gone, the kernel has already ended the watch.
            let _ = watches.remove(watch);
        }
    }
}

/// A change in watched directories.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectoryChange<'a, K> {
    /// This name came or went in this directory; without a name, the directory itself went.
    In(&'a K, Option<&'a OsStr>),
    /// This directory changed so often that it is not watched any more.
    Storm(&'a K),
    /// Events were lost: anything may have changed.
    Anywhere,
}

impl<K: PartialEq> Notifications<K> {
    pub(crate) fn new() -> Self {
        Self { inotify: Inotify::init().ok(), keys: HashMap::new() }
    }

    /// Returns a maker of watches for another thread: a file system may block it for any time.
    pub(crate) fn maker(&self) -> WatchMaker {
        WatchMaker { watches: self.inotify.as_ref().map(Inotify::watches) }
    }

    /// Registers a new watch under a key.
    pub(crate) fn made(&mut self, mut watch: MadeWatch, key: K) {
        if let Some((_, watch)) = watch.0.take() {
            self.keys.insert(watch, key);
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
            // If the directory is gone, the kernel has already ended the watch.
            let _ = inotify.watches().remove(descriptor);
        }
    }

    /// Passes the changes since the last call to `each`; never waits. Stops watching a directory
    /// with more than `storm` changes since then, whose events would keep the guard from everything
    /// else.
    pub(crate) fn changes(&mut self, storm: usize, mut each: impl FnMut(DirectoryChange<'_, K>)) {
        let Some(inotify) = &mut self.inotify else { return };
        let mut buffer = [0; 16 << 10];
        let mut counts: HashMap<WatchDescriptor, usize> = HashMap::new();
        // Further events are left for the next call, or the kernel drops them and reports the
        // overflow.
        for _ in 0..READS_MAX {
            let Ok(events) = inotify.read_events(&mut buffer) else { break };
            for event in events {
                let count = counts.entry(event.wd.clone()).or_default();
                *count += 1;
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    each(DirectoryChange::Anywhere);
                } else if let Some(key) = self.keys.get(&event.wd) {
                    if *count <= storm {
                        each(DirectoryChange::In(key, event.name));
                    } else {
                        each(DirectoryChange::Storm(key));
                    }
                }
                if *count > storm && self.keys.remove(&event.wd).is_some() {
                    // If the directory is gone, the kernel has already ended the watch.
                    let _ = inotify.watches().remove(event.wd.clone());
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
    use std::path::Path;

    fn watch<K: PartialEq>(notifications: &mut Notifications<K>, directory: &Path, key: K) {
        let fd = std::fs::File::open(directory).unwrap();
        let made = notifications.maker().watch(fd.as_fd()).unwrap();
        notifications.made(made, key);
    }

    fn changes_of<K: Debug + PartialEq>(notifications: &mut Notifications<K>) -> Vec<String> {
        let mut changes = Vec::new();
        notifications.changes(1000, |change| changes.push(format!("{change:?}")));
        changes
    }

    #[test]
    fn coming_and_going_names_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = Notifications::new();
        watch(&mut notifications, dir.path(), 7);
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
    fn a_storm_of_changes_ends_the_watch_of_its_directory_alone() {
        let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut notifications = Notifications::new();
        for (dir, key) in [(&calm, "calm"), (&stormy, "stormy")] {
            watch(&mut notifications, dir.path(), key);
        }
        let change = |dir: &tempfile::TempDir| {
            for number in 0..200 {
                std::fs::write(dir.path().join(number.to_string()), b"").unwrap();
            }
        };
        change(&stormy);
        std::fs::write(calm.path().join("a"), b"").unwrap();
        let mut seen = Vec::new();
        notifications.changes(100, |change| seen.push(format!("{change:?}")));
        assert_eq!(seen.len(), 102);
        assert_eq!(seen[100..], ["Storm(\"stormy\")", "In(\"calm\", Some(\"a\"))"]);
        change(&stormy);
        assert_eq!(changes_of(&mut notifications), [""; 0]);
        std::fs::write(calm.path().join("b"), b"").unwrap();
        assert_eq!(changes_of(&mut notifications).len(), 1);
    }

    #[test]
    fn a_watch_that_nobody_takes_note_of_ends() {
        let watches_of = |notifications: &Notifications<u8>| {
            let fd = notifications.inotify.as_ref().unwrap().as_raw_fd();
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            info.lines().filter(|line| line.starts_with("inotify ")).count()
        };
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = Notifications::new();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let made = notifications.maker().watch(fd.as_fd()).unwrap();
        assert_eq!(watches_of(&notifications), 1);
        drop(made);
        assert_eq!(watches_of(&notifications), 0);
        watch(&mut notifications, dir.path(), 7);
        assert_eq!(watches_of(&notifications), 1);
    }

    #[test]
    fn a_directory_that_goes_away_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = Notifications::new();
        watch(&mut notifications, dir.path(), "gone");
        dir.close().unwrap();
        assert_eq!(changes_of(&mut notifications), ["In(\"gone\", None)"]);
    }
}
