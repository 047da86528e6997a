//! Reads a database's settings files in the file system as its process sees it.
//!
//! Invariants: a symbolic link is followed inside the process's root and never leads out of it.
//! Only regular files are opened, read-only and without blocking, and within the
//! [`limits`](super::limits). Failures are a sentence for
//! [`Settings::unread`](super::Settings::unread), or state that the file does not exist.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use pagekeeper_kernel::hang::announce_from;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, ExpectedFile, Inode, InspectedFile, Links};
use pagekeeper_text::unescaped_bytes;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::limits::{
    BRIEF_NAMES_MAX, LimitHit, OPENED_FILES_MAX, READ_BYTES_MAX, READ_NAMES_MAX, SETTINGS_FILE_BYTES_MAX,
};
use super::{CHANGED_DOUBT, HIDDEN_DOUBT, ServerFacts};

/// Upper limit of the difference between the clocks of files and of processes.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(1);

/// The file system as a database's process, or this one, sees it.
pub struct ServerRoot<'a> {
    proc: &'a ProcRoot,
    pid: Option<u32>,
    started: Option<SystemTime>,
    left: RemainingLimits,
}

/// The limits that are left for this database.
#[derive(Debug)]
struct RemainingLimits {
    opened: Cell<u32>,
    bytes: Cell<u64>,
    names: Cell<u32>,
}

impl Default for RemainingLimits {
    fn default() -> Self {
        Self {
            opened: Cell::new(OPENED_FILES_MAX),
            bytes: Cell::new(READ_BYTES_MAX),
            names: Cell::new(READ_NAMES_MAX),
        }
    }
}

impl RemainingLimits {
    fn count_open(&self) -> Result<(), ReadFailure> {
        let left = self.opened.get().checked_sub(1).ok_or(ReadFailure::Limit(LimitHit::Files))?;
        self.opened.set(left);
        Ok(())
    }
}

/// The text of a file.
pub(crate) struct FileText {
    pub(crate) content: String,
    /// The reason for which the server may have read another text, or none.
    pub(crate) doubt: Option<&'static str>,
    /// Whether anybody may write it.
    pub(crate) world_writable: bool,
    /// The file it came from.
    pub(crate) inode: Inode,
}

/// The reason for which a file was not read.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    /// There is no such file.
    Missing,
    /// The file exists, but was not read for this reason.
    Because(String),
    /// A limit was hit: the file was not read, or not in full.
    Limit(LimitHit),
}

impl<'a> ServerRoot<'a> {
    /// Creates the root of a server.
    pub fn of(server: &ServerFacts, proc: &'a ProcRoot) -> Self {
        let left = RemainingLimits::default();
        if server.is_brief {
            left.names.set(BRIEF_NAMES_MAX);
        }
        Self { proc, pid: server.pid, started: server.started, left }
    }

    /// Resolves a relative path against the process's working directory, as a path from its root.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        if path.is_absolute() {
            return path.to_path_buf();
        }
        self.working_directory().unwrap_or_default().join(path)
    }

    /// Returns the process's working directory, empty without a process; or why it can't be seen.
    pub(crate) fn working_directory(&self) -> Result<PathBuf, String> {
        let Some(pid) = self.pid else { return Ok(PathBuf::new()) };
        let shown = self.proc.working_directory(pid).map_err(|error| explain_denial(&error))?;
        Ok(self.proc.as_seen_by(pid, &shown))
    }

    /// Returns the process's environment as it was at its start; an error if it may not be read.
    #[allow(clippy::disallowed_methods, reason = "of /proc")]
    pub(crate) fn variables(&self) -> Result<Vec<(String, String)>, String> {
        let Some(pid) = self.pid else { return Ok(Vec::new()) };
        let path = self.proc.path().join(format!("{pid}/environ"));
        let mut bytes = Vec::new();
        std::fs::File::open(&path)
            .and_then(|file| file.take(SETTINGS_FILE_BYTES_MAX).read_to_end(&mut bytes))
            .map_err(|error| error.to_string())?;
        let entries = bytes.split(|&byte| byte == 0).filter_map(|entry| {
            let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        Ok(entries.collect())
    }

    /// Reads a file by its path as the process sees it.
    pub(crate) fn read(&self, path: &Path) -> Result<FileText, ReadFailure> {
        self.left.count_open()?;
        let file = self.open(path)?;
        let size = file.size().min(SETTINGS_FILE_BYTES_MAX);
        let left = self.left.bytes.get().checked_sub(size).ok_or(ReadFailure::Limit(LimitHit::Bytes))?;
        let content = content_of(&file)?;
        self.left.bytes.set(left);
        let because = |error: std::io::Error| ReadFailure::Because(error.to_string());
        let _call = file.announce_call().map_err(|error| read_failure(&error))?;
        let metadata = file.file().metadata().map_err(because)?;
        let is_changed = match (self.started, metadata.modified()) {
            (Some(started), Ok(modified)) => modified > started + CLOCK_DIFFERENCE_MAX,
            _ => false,
        };
        let is_hidden = || !self.pid.is_none_or(|pid| may_read(self.proc, pid, &metadata));
        let doubt = if is_changed { Some(CHANGED_DOUBT) } else { is_hidden().then_some(HIDDEN_DOUBT) };
        Ok(FileText { content, doubt, world_writable: metadata.mode() & 0o002 != 0, inode: file.inode() })
    }

    /// Reads at most `max` bytes at an offset of a file; `None` if it can't be read.
    pub fn read_at(&self, path: &Path, offset: u64, max: usize) -> Option<Vec<u8>> {
        use std::os::unix::fs::FileExt as _;
        let file = self.open(path).ok()?;
        let mut bytes = vec![0; max];
        let _call = file.announce_call().ok()?;
        let read = file.file().read_at(&mut bytes, offset).ok()?;
        bytes.truncate(read);
        Some(bytes)
    }

    /// Returns the wanted names in a directory, sorted by bytes.
    pub(crate) fn names(
        &self,
        directory: &Path,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<std::ffi::OsString>, ReadFailure> {
        self.left.count_open()?;
        let fd = match self.pid {
            Some(pid) => self.proc.open_directory_in_namespace(pid, directory),
            None => pagekeeper_kernel::open_directory(directory, Links::Follow),
        }
        .map_err(|error| read_failure(&error))?;
        let because = |error: Errno| ReadFailure::Because(error.to_string());
        let mut names = Vec::new();
        let _call = announce_from(fd.as_fd(), directory).map_err(|error| read_failure(&error))?;
        for entry in rustix::fs::Dir::read_from(&fd).map_err(because)? {
            let left = self.left.names.get().checked_sub(1).ok_or(ReadFailure::Limit(LimitHit::Names))?;
            self.left.names.set(left);
            let name = entry.map_err(because)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." && wanted(&name) {
                names.push(std::ffi::OsString::from_vec(name));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, path: &Path) -> Result<InspectedFile, ReadFailure> {
        let Some(pid) = self.pid else {
            return InspectedFile::open(path, Links::Follow).map_err(|error| read_failure(&error));
        };
        let opened = self.proc.handle_in_namespace(pid, &self.absolute(path));
        opened.and_then(|handle| handle.open(ExpectedFile::Any)).map_err(|error| {
            let of_its_own = error.path().starts_with(self.proc.path());
            if error.is_denied() && of_its_own {
                ReadFailure::Because(explain_denial(&error))
            } else {
                read_failure(&error)
            }
        })
    }
}

/// Whether a file's mode lets the user of a process read it. Group membership is unknown, so group
/// permission counts.
fn may_read(proc: &ProcRoot, pid: u32, metadata: &Metadata) -> bool {
    let Ok(users) = proc.users(pid) else { return true };
    let mode = metadata.mode();
    users.file_system == 0 || mode & 0o044 != 0 || users.file_system == metadata.uid() && mode & 0o400 != 0
}

/// Returns the text of a settings file, or an error if it is too long. Invalid UTF-8 in it is
/// replaced.
pub(super) fn content_of(file: &InspectedFile) -> Result<String, ReadFailure> {
    if file.size() > SETTINGS_FILE_BYTES_MAX {
        return Err(ReadFailure::Because(format!(
            "{} bytes long, and settings files of more than {SETTINGS_FILE_BYTES_MAX} bytes are not read",
            file.size()
        )));
    }
    let mut bytes = Vec::new();
    let read = file.reader().take(SETTINGS_FILE_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| ReadFailure::Because(error.to_string()))?;
    Ok(unescaped_bytes(&bytes).into_owned())
}

/// Explains why a process's view of the file system is not accessible, and which capability is
/// missing.
fn explain_denial(error: &Error) -> String {
    let may = || {
        let ours = rustix::thread::capabilities(None);
        ours.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
    };
    match error.is_denied() {
        true if may() => {
            "its process is in another user namespace, or protected by a security module".to_owned()
        }
        true => "what its process sees is not shown to this user: needs CAP_SYS_PTRACE".to_owned(),
        false => error.to_string(),
    }
}

fn read_failure(error: &Error) -> ReadFailure {
    if error.is_gone() { ReadFailure::Missing } else { ReadFailure::Because(error.to_string()) }
}

/// Returns a path without `.` and `..`, by its text alone, so that one file has one name.
pub(crate) fn normalized_path(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if out.file_name().is_some() => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// Returns the newest of the files `PREFIX-NNNNNN`, by number.
pub(crate) fn newest_numbered<'n>(names: &'n [std::ffi::OsString], prefix: &str) -> Option<&'n OsStr> {
    let numbered = names.iter().filter_map(|name| {
        let number = name.as_bytes().strip_prefix(prefix.as_bytes())?;
        let number: u64 = unescaped_bytes(number).parse().ok()?;
        Some((number, name.as_os_str()))
    });
    numbered.max_by_key(|(number, _)| *number).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode};

    fn root(proc: &ProcRoot, pid: Option<u32>) -> ServerRoot<'_> {
        let started = Some(SystemTime::now() - Duration::from_secs(60));
        ServerRoot { proc, pid, started, left: RemainingLimits::default() }
    }

    #[test]
    fn a_file_is_read_through_a_processs_root_and_over_links() {
        let proc = ProcRoot::default();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my.cnf");
        std::fs::write(&path, "x=1\n").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for pid in [None, Some(std::process::id())] {
            let root = root(&proc, pid);
            let text = root.read(&link).unwrap();
            assert_eq!(text.content, "x=1\n");
            assert_eq!((text.doubt, text.world_writable), (Some(CHANGED_DOUBT), false));
            assert!(matches!(root.read(&dir.path().join("none")), Err(ReadFailure::Missing)));
            assert!(matches!(root.read(dir.path()), Err(ReadFailure::Because(_))));
            assert_eq!(root.names(dir.path(), |_| true).unwrap(), ["link", "my.cnf"]);
            assert_eq!(root.read_at(&path, 2, 9).unwrap(), b"1\n");
        }
    }

    #[test]
    fn a_container_has_its_own_files_and_links() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: reading another mount namespace needs root.");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(dir.path().join("my.cnf"), "x=outside\n").unwrap();
        // A separate root, in which the link to an absolute path stays.
        let script = format!(
            "mount -t tmpfs none {0} && echo x=inside > {0}/my.cnf && ln -s /my.cnf {0}/link && \
             mkdir {0}/proc {0}/bin && mount --rbind /bin {0}/bin && for lib in lib lib64 usr; do \
             mkdir {0}/$lib && mount --rbind /$lib {0}/$lib; done && echo ready && exec chroot {0} /bin/sleep 60",
            inside.display()
        );
        let mut child = std::process::Command::new("unshare")
            .args(["--mount", "--", "sh", "-c", &script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        let proc = ProcRoot::default();
        let pid = Some(child.id());
        let began = std::time::Instant::now();
        let found = loop {
            // A root with all its limits left.
            let found = root(&proc, pid).read(Path::new("/link")).ok().map(|text| text.content);
            if found.is_some() || began.elapsed() > Duration::from_secs(20) {
                break found;
            }
        };
        let outside = root(&proc, pid).read(&dir.path().join("my.cnf")).is_ok();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.as_deref(), Some("x=inside\n"));
        assert!(!outside);
    }

    /// A file of another user, which this process can read and the server can't.
    #[test]
    fn a_file_that_the_servers_user_may_not_read_is_doubtful() {
        use std::os::unix::fs::PermissionsExt as _;
        if !rustix::process::geteuid().is_root() {
            pagekeeper_testing::skip("only root can be another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my.cnf");
        std::fs::write(&path, "x=1\n").unwrap();
        let mut process = std::process::Command::new("setpriv")
            .args(["--reuid=61234", "--regid=61234", "--clear-groups", "sleep", "1000"])
            .spawn()
            .unwrap();
        let proc = ProcRoot::default();
        let is_other = || proc.users(process.id()).is_ok_and(|users| users.file_system == 61234);
        while !is_other() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let doubt = |mode: u32| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let root = ServerRoot { started: None, ..root(&proc, Some(process.id())) };
            root.read(&path).unwrap().doubt
        };
        let found = [0o600, 0o400, 0o640, 0o644].map(doubt);
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(found, [Some(HIDDEN_DOUBT), Some(HIDDEN_DOUBT), None, None]);
    }

    #[test]
    fn text_of_any_encoding_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcRoot::default();
        let path = dir.path().join("my.cnf");
        for bytes in
            [&b"[mysqld]\r\n# caf\xe9\r\nx = 1\r\n"[..], b"\0\0[mysqld]\nx=1\n", b"\xff\xfe[\0m\0", b""]
        {
            std::fs::write(&path, bytes).unwrap();
            let content = root(&proc, None).read(&path).unwrap().content;
            assert_eq!(content.contains("x = 1"), bytes.contains(&b'\r'), "{content:?}");
        }
    }

    #[test]
    fn a_fifo_and_a_huge_file_are_not_read() {
        let proc = ProcRoot::default();
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let huge = dir.path().join("huge");
        std::fs::File::create(&huge).unwrap().set_len(1 << 30).unwrap();
        for pid in [None, Some(std::process::id())] {
            for path in [fifo.as_path(), &huge, Path::new("/dev/zero"), Path::new("/dev/null")] {
                assert!(matches!(root(&proc, pid).read(path), Err(ReadFailure::Because(_))));
            }
        }
    }

    #[test]
    fn names_are_made_plain_and_the_newest_is_by_number() {
        assert_eq!(normalized_path(Path::new("/a/./b/../c")), Path::new("/a/c"));
        let names = ["OPTIONS-000009", "OPTIONS-000010", "OPTIONS-000011.dbtmp", "LOG"].map(Into::into);
        assert_eq!(newest_numbered(&names, "OPTIONS-"), Some(OsStr::new("OPTIONS-000010")));
        assert_eq!(newest_numbered(&names, "MANIFEST-"), None);
    }
}
