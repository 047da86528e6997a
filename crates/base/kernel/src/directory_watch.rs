//! inotify(7) on directories: names that come, go or are renamed are known without a listing.
//!
//! Watches follow the directory, not its name, and hold neither open. If no watch is available
//! (`max_user_watches`) or events were lost, the caller lists directories at intervals instead.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};

/// Maximum number of reads of 16 KiB in one call: 1 MiB, some thousand events.
const READS_MAX: usize = 64;

/// The watches. The caller chooses the key of a directory.
pub struct Notifications<K> {
    inotify: Option<Arc<OwnedFd>>,
    keys: HashMap<i32, K>,
}

/// Creates watches.
#[derive(Debug, Clone)]
pub struct WatchMaker(Option<Arc<OwnedFd>>);

impl WatchMaker {
    /// Watches an open directory, also if it is watched already. Returns `None` if no watch can be
    /// had.
    pub fn watch(&self, directory: BorrowedFd<'_>) -> Option<MadeWatch> {
        let of_names =
            WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        let wanted = of_names | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        // Through the descriptor: it is this very directory, wherever its name leads by now.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let inotify = self.0.clone()?;
        let watch = add_watch(&inotify, path, wanted).ok()?;
        Some(MadeWatch(Some((inotify, watch))))
    }
}

/// A new watch. It ends when it is dropped, unless it was [registered](Notifications::made).
#[derive(Debug)]
pub struct MadeWatch(Option<(Arc<OwnedFd>, i32)>);

impl Drop for MadeWatch {
    fn drop(&mut self) {
        if let Some((inotify, watch)) = self.0.take() {
            end(&inotify, watch);
        }
    }
}

/// Ends a watch. If its directory is gone, the kernel has already done so.
fn end(inotify: &OwnedFd, watch: i32) {
    let _ = remove_watch(inotify, watch);
}

/// A change in watched directories.
#[derive(Debug, PartialEq, Eq)]
pub enum DirectoryChange<'a, K> {
    /// This name came or went in this directory; without a name, the directory itself went.
    In(&'a K, Option<&'a OsStr>),
    /// This directory changed so often that it is not watched any more.
    Storm(&'a K),
    /// Events were lost: anything may have changed.
    Anywhere,
}

impl<K: PartialEq> Default for Notifications<K> {
    fn default() -> Self {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok().map(Arc::new);
        Self { inotify, keys: HashMap::new() }
    }
}

impl<K: PartialEq> Notifications<K> {
    /// Returns a maker of watches for another thread: a file system may block it for any time.
    pub fn maker(&self) -> WatchMaker {
        WatchMaker(self.inotify.clone())
    }

    /// Registers a new watch under a key.
    pub fn made(&mut self, mut watch: MadeWatch, key: K) {
        if let Some((_, watch)) = watch.0.take() {
            self.keys.insert(watch, key);
        }
    }

    /// Ends the watches of a directory.
    pub fn unwatch(&mut self, key: &K) {
        let Some(inotify) = &self.inotify else { return };
        for (watch, _) in self.keys.extract_if(|_, other| other == key) {
            end(inotify, watch);
        }
    }

    /// Passes the changes since the last call to `each`; never waits. Stops watching a directory
    /// with more than `storm` changes since then, whose events would keep the caller from
    /// everything else.
    pub fn changes(&mut self, storm: usize, mut each: impl FnMut(DirectoryChange<'_, K>)) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(&**inotify, &mut buffer);
        let (mut counts, mut reads): (HashMap<i32, usize>, usize) = (HashMap::new(), 0);
        loop {
            reads += usize::from(reader.is_buffer_empty());
            // Further events are left for the next call, or the kernel drops them and reports the
            // overflow.
            if reads > READS_MAX {
                return;
            }
            let Ok(event) = reader.next() else { return };
            let (watch, flags) = (event.wd(), event.events());
            let count = counts.entry(watch).or_default();
            *count += 1;
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                each(DirectoryChange::Anywhere);
            } else if let Some(key) = self.keys.get(&watch) {
                let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                let is_storm = *count > storm;
                each(if is_storm { DirectoryChange::Storm(key) } else { DirectoryChange::In(key, name) });
            }
            if *count > storm && self.keys.remove(&watch).is_some() {
                end(inotify, watch);
            }
            if flags.contains(ReadFlags::IGNORED) {
                self.keys.remove(&watch);
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
        let mut notifications = Notifications::default();
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
        let mut notifications = Notifications::default();
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
        let mut notifications = Notifications::default();
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
        let mut notifications = Notifications::default();
        watch(&mut notifications, dir.path(), "gone");
        dir.close().unwrap();
        assert_eq!(changes_of(&mut notifications), ["In(\"gone\", None)"]);
    }
}
