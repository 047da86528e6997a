//! Finds the file of a command's name, as execvp(3) does.
//!
//! Invariants: a name with a `/` is a path. Otherwise each directory of PATH is tried; an empty one
//! is the working directory. A file that may not be executed is skipped, and remembered in case
//! nothing else is found. Fails with a shell's message and exit code: 127 for a command that is not
//! found, 126 for one that can't be executed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_text::escaped;
use rustix::fs::Access;

/// The search path without PATH (confstr(3), `_CS_PATH`).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The reason why a command was not started.
#[derive(Debug)]
pub struct StartError {
    /// The exit code: 127 for a command that is not found, 126 for one that can't be executed, 1
    /// where it was refused, 64 for wrong usage.
    pub code: u8,
    /// A sentence for the user.
    pub sentence: String,
}

impl StartError {
    /// Converts the kernel's answer to execve(2).
    pub(crate) fn of(command: &OsStr, error: &io::Error) -> Self {
        let command = escaped(Path::new(command));
        match error.kind() {
            io::ErrorKind::NotFound => Self { code: 127, sentence: format!("{command}: command not found") },
            _ => Self { code: 126, sentence: format!("{command} can't be executed: {error}") },
        }
    }

    /// Returns a command without a name.
    pub(crate) fn nameless() -> Self {
        Self { code: 64, sentence: "name a command".to_owned() }
    }

    pub(crate) fn refused(sentence: String) -> Self {
        Self { code: 1, sentence }
    }

    /// Returns the error for a command that the rules don't reach, although `--require` was given.
    pub(crate) fn required(sentence: &str) -> Self {
        Self::refused(format!("{sentence}; not started, by --require"))
    }
}

/// Returns the file of a command, by this process's PATH.
pub(crate) fn find(command: &OsStr) -> Result<PathBuf, StartError> {
    find_in(command, std::env::var_os("PATH"))
}

fn find_in(command: &OsStr, path: Option<OsString>) -> Result<PathBuf, StartError> {
    let refuse = |error: io::Error| StartError::of(command, &error);
    if command.is_empty() {
        return Err(refuse(io::ErrorKind::NotFound.into()));
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return check_executable(&file).map(|()| file).map_err(refuse);
    }
    let mut denied = None;
    for directory in std::env::split_paths(&path.unwrap_or_else(|| DEFAULT_PATH.into())) {
        let file = directory.join(command);
        // A bare name would be searched in PATH again.
        let file = if directory.as_os_str().is_empty() { Path::new(".").join(file) } else { file };
        match check_executable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => denied = Some(error),
            Err(_) => {}
        }
    }
    Err(refuse(denied.unwrap_or_else(|| io::ErrorKind::NotFound.into())))
}

/// Checks that this process may execute the file.
fn check_executable(file: &Path) -> io::Result<()> {
    if std::fs::metadata(file)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is a directory"));
    }
    Ok(rustix::fs::accessat(rustix::fs::CWD, file, Access::EXEC_OK, rustix::fs::AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_that_can_be_executed_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        place("a/tool", 0o644);
        place("b/tool", 0o755);
        place("a/plain", 0o644);
        std::fs::create_dir(dir.path().join("b/plain")).unwrap();
        let path = std::env::join_paths([dir.path().join("no"), dir.path().join("a"), dir.path().join("b")]);
        let find = |name: &str| find_in(OsStr::new(name), Some(path.as_ref().unwrap().clone()));
        assert_eq!(find("tool").unwrap(), dir.path().join("b/tool"));
        let denied = find("plain").unwrap_err();
        assert!(denied.code == 126 && denied.sentence.contains("plain can't be executed"), "{denied:?}");
        for name in ["tolo", ""] {
            let missing = find(name).unwrap_err();
            assert!(missing.code == 127 && missing.sentence.contains("not found"), "{missing:?}");
        }
        let direct = dir.path().join("a/tool");
        assert_eq!(find(direct.to_str().unwrap()).unwrap_err().code, 126);
        let directory = find_in(dir.path().as_os_str(), None).unwrap_err();
        assert!(directory.code == 126 && directory.sentence.contains("directory"), "{directory:?}");
        assert_eq!(find_in(OsStr::new("sh"), None).unwrap(), Path::new("/bin/sh"));
    }
}
