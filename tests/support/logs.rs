//! Log files without a database: `NAME.NNNNNN` beside `NAME.index`, like those of a binlog, clean
//! and resident.
//!
//! Invariant: written bytes are synced, so that their pages can be released immediately.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A directory of log files.
pub(crate) struct Logs {
    directory: PathBuf,
    name: OsString,
}

impl Logs {
    /// Makes the directory, with an empty index.
    pub(crate) fn new(directory: &Path, name: impl AsRef<OsStr>) -> Self {
        std::fs::create_dir_all(directory).expect("make a directory of logs");
        super::open_to_others(directory);
        let logs = Self { directory: directory.to_path_buf(), name: name.as_ref().to_owned() };
        File::create(logs.named("index")).expect("make an index");
        logs
    }

    /// Creates logs of one MiB each with the first `count` numbers.
    pub(crate) fn filled(directory: &Path, count: u32) -> Self {
        let logs = Self::new(directory, "binlog");
        for number in 1..=count {
            logs.append(number, super::MIB);
        }
        logs
    }

    /// Returns their directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the file with this number.
    pub(crate) fn path(&self, number: u32) -> PathBuf {
        self.named(&format!("{number:06}"))
    }

    /// Returns the files with these numbers.
    pub(crate) fn paths(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<PathBuf> {
        numbers.into_iter().map(|number| self.path(number)).collect()
    }

    /// Appends bytes to the file with this number, creates it if needed, and syncs it.
    pub(crate) fn append(&self, number: u32, bytes: u64) {
        let path = self.path(number);
        let mut file = File::options().append(true).create(true).open(path).expect("open a log");
        let length = usize::try_from(bytes).expect("fits memory");
        file.write_all(&vec![b'x'; length]).expect("append to a log");
        file.sync_all().expect("sync a log");
    }

    fn named(&self, end: &str) -> PathBuf {
        let mut name = self.name.clone();
        name.push(".");
        name.push(end);
        self.directory.join(name)
    }
}
