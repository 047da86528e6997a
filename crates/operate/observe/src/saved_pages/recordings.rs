//! Recordings of what a service's start reads: a directory with one file for each name, in the
//! format of a snapshot. Its files are in the order in which the start read them; a file is listed
//! once for each time that it was read from.
//!
//! Invariants: only root and the user of this process can have written what is used. A recording is
//! replaced as a whole. A name is a plain file name.

#![allow(clippy::disallowed_methods, reason = "the directory of this program's own files")]

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::file::is_own;
use super::{SavedPages, SavedPagesError, SnapshotTarget};

/// The directory of the recordings.
pub const RECORDING_DIRECTORY: &str = "/var/lib/pagekeeper/restarts";

/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 128;

/// The name of a recording: letters, digits, and `@ . _ - :` and `\` as in names of units, not
/// beginning with a dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingName(String);

impl RecordingName {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RecordingName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@._-:\\".contains(&byte);
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.starts_with(['.', '-']);
        if fits && text.bytes().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err("a name has letters, digits, and @ . _ - : alone, at most 128, and begins with no dot")
        }
    }
}

/// The recordings in a directory.
#[derive(Debug, Clone)]
pub struct Recordings(PathBuf);

impl Recordings {
    /// Returns the recordings in this directory, which is created by the first write. A relative
    /// path counts from the present directory, also after a change of that.
    pub fn new(directory: &Path) -> Self {
        Self(std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf()))
    }

    /// Returns the file of a name.
    pub fn path(&self, name: &RecordingName) -> PathBuf {
        self.0.join(&name.0)
    }

    /// Reads a recording; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If it can't be read, is damaged, or another user could have written it.
    pub fn read(&self, name: &RecordingName) -> Result<Option<SavedPages>, SavedPagesError> {
        match self.require_own().and_then(|()| SavedPages::read_own(&self.path(name))) {
            Err(SavedPagesError::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Writes a recording durably, in place of an older one, whatever state that is in.
    ///
    /// # Errors
    ///
    /// If it can't be written, or another user could change it.
    pub fn write(&self, name: &RecordingName, recording: &SavedPages) -> Result<(), SavedPagesError> {
        self.create_directory()?;
        self.require_own()?;
        let path = self.path(name);
        if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
            return Err(SavedPagesError::NotRegular);
        }
        SnapshotTarget::new(&path, true)?.write(recording).map(drop)
    }

    /// Creates the directory. It is readable only by its owner: it holds names of files that
    /// others may not list. Those above it may hold other files, and are readable.
    fn create_directory(&self) -> std::io::Result<()> {
        let create = |mode, directory| DirBuilder::new().recursive(true).mode(mode).create(directory);
        self.0.parent().map_or(Ok(()), |above| create(0o755, above))?;
        create(0o700, &self.0)
    }

    fn require_own(&self) -> Result<(), SavedPagesError> {
        if is_own(&self.0.symlink_metadata()?) { Ok(()) } else { Err(SavedPagesError::NotOwn) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::saved_pages::encode;

    fn name(text: &str) -> RecordingName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_plain_file_names() {
        for good in ["mariadb", "postgresql@15-main", "etcd.service", "var-lib-my\\x2dsql"] {
            assert_eq!(name(good).as_str(), good);
        }
        for bad in ["", ".", "..", ".x", "-x", "a/b", "a b", "a\n", "ä", &"x".repeat(129)] {
            assert!(bad.parse::<RecordingName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_relative_directory_is_that_of_now() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(Recordings::new(Path::new("a")).path(&name("x")), here.join("a/x"));
    }

    #[test]
    fn a_recording_is_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let recordings = Recordings::new(&dir.path().join("a/b"));
        assert_eq!(recordings.read(&name("x")).unwrap(), None);
        let content = SavedPages { page_size: 4096, ..SavedPages::begin() };
        recordings.write(&name("x"), &content).unwrap();
        let mode = |below: &str| dir.path().join(below).metadata().unwrap().permissions().mode() & 0o777;
        std::fs::create_dir(dir.path().join("usual")).unwrap();
        assert_eq!((mode("a"), mode("a/b")), (mode("usual") & 0o755, 0o700));
        assert_eq!(recordings.read(&name("x")).unwrap(), Some(content.clone()));
        // Damaged, it is refused, and replaced.
        std::fs::write(recordings.path(&name("x")), "other").unwrap();
        assert!(matches!(recordings.read(&name("x")), Err(SavedPagesError::Format(_))));
        recordings.write(&name("x"), &content).unwrap();
        assert_eq!(recordings.read(&name("x")).unwrap(), Some(content));
    }

    #[test]
    fn recordings_that_others_could_have_written_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let recordings = Recordings::new(dir.path());
        let content = SavedPages::begin();
        let refused = |recordings: &Recordings, text: &str| {
            matches!(recordings.read(&name(text)), Err(SavedPagesError::NotOwn))
        };
        recordings.write(&name("x"), &content).unwrap();
        let path = recordings.path(&name("x"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o622)).unwrap();
        assert!(refused(&recordings, "x"));
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            assert!(refused(&recordings, "x"));
        }
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, encode(&content)).unwrap();
        symlink(&elsewhere, recordings.path(&name("link"))).unwrap();
        assert!(matches!(recordings.read(&name("link")), Err(SavedPagesError::Io(_))));
        assert!(matches!(recordings.write(&name("link"), &content), Err(SavedPagesError::NotRegular)));
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(refused(&recordings, "x"), "anybody may have put it there");
        assert!(matches!(recordings.write(&name("x"), &content), Err(SavedPagesError::NotOwn)));
    }
}
