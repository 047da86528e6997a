//! Files that nobody may open: FIFOs, devices and files of others, each watched by inotify(7),
//! which reports every open of its inode, by whatever name, but not that a descriptor of `O_PATH`
//! refers to it.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, inotify};

/// A set of decoys.
pub(crate) struct Decoys {
    watch: OwnedFd,
    paths: Vec<(i32, PathBuf)>,
}

impl Decoys {
    /// Creates an empty list.
    pub(crate) fn new() -> Self {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        Self { watch: inotify::init(flags).expect("watch"), paths: Vec::new() }
    }

    /// Makes a device, of /dev/null, which does no harm when it is opened.
    pub(crate) fn device(&mut self, path: &Path) {
        self.make(path, FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    }

    /// Makes a FIFO.
    pub(crate) fn fifo(&mut self, path: &Path) {
        self.make(path, FileType::Fifo, 0);
    }

    fn make(&mut self, path: &Path, kind: FileType, device: u64) {
        rustix::fs::mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, device).expect("make a special file");
        self.add(path);
    }

    /// Watches a file or directory that is there.
    pub(crate) fn add(&mut self, path: &Path) {
        let number = inotify::add_watch(&self.watch, path, inotify::WatchFlags::OPEN).expect("watch a file");
        self.paths.push((number, path.to_owned()));
    }

    /// Returns the decoys that were opened since the last call, by their first names.
    pub(crate) fn opened(&self) -> BTreeSet<PathBuf> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.watch, &mut buffer);
        let mut opened = BTreeSet::new();
        while let Ok(event) = reader.next() {
            let path = self.paths.iter().find(|(number, _)| *number == event.wd());
            opened.insert(path.map_or_else(|| PathBuf::from("events were lost"), |(_, path)| path.clone()));
        }
        opened
    }
}
