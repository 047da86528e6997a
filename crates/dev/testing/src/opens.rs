//! Counts how often a file is opened, by any of its names.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify;

/// Counts every open of a file, as inotify(7) reports it. Descriptors with `O_PATH` are not
/// reported.
#[derive(Debug)]
pub struct OpenCounter(OwnedFd);

impl OpenCounter {
    /// Starts counting.
    ///
    /// # Panics
    ///
    /// If the file cannot be watched.
    pub fn of(path: &Path) -> Self {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let watch = inotify::init(flags).unwrap();
        inotify::add_watch(&watch, path, inotify::WatchFlags::OPEN).unwrap();
        Self(watch)
    }

    /// Whether the file was opened since the last call.
    pub fn any(&self) -> bool {
        self.count() > 0
    }

    /// Returns how often the file was opened since the last call.
    pub fn count(&self) -> usize {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        let mut found = 0;
        // The removal of the file is an event, too.
        while let Ok(event) = events.next() {
            found += usize::from(event.events().contains(inotify::ReadFlags::OPEN));
        }
        found
    }
}
