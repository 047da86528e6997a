//! Who opens a file, by whatever name.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify;

/// Every open of a file, as inotify(7) reports it: not that a descriptor of `O_PATH` refers to it.
#[derive(Debug)]
pub struct Opens(OwnedFd);

impl Opens {
    /// Counts from now on.
    ///
    /// # Panics
    ///
    /// Where the file can't be watched.
    pub fn of(path: &Path) -> Self {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let watch = inotify::init(flags).unwrap();
        inotify::add_watch(&watch, path, inotify::WatchFlags::OPEN).unwrap();
        Self(watch)
    }

    /// Whether there was one since the last call.
    pub fn any(&self) -> bool {
        self.count() > 0
    }

    /// How many there were since the last call.
    pub fn count(&self) -> usize {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        let mut found = 0;
        // That the file is gone is an event, too.
        while let Ok(event) = events.next() {
            found += usize::from(event.events().contains(inotify::ReadFlags::OPEN));
        }
        found
    }
}
