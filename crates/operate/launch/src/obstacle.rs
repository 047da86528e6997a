//! Finds what keeps the library out of a program before it is started: programs without a loader,
//! or with another one, that make their own system calls, or that get another user's privileges.
//!
//! Invariants: a script is judged by its interpreter, and `env NAME` by NAME. An unreadable program
//! counts as an ordinary one: the library is offered, and the loader omits it if it has to. Never
//! fails.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pagekeeper_text::escaped;

use pagekeeper_preload::program::{self, ExecutableKind};
use pagekeeper_preload::sys as preload_sys;
use rustix::fs::StatVfsMountFlags;

use crate::find;

/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`).
const FIRST_LINE_BYTES_MAX: u64 = 256;
/// Depth of interpreters that are scripts: the kernel follows five (`exec_binprm`), and `env` is
/// followed as often here.
const INTERPRETER_DEPTH_MAX: usize = 5;

/// The reason why the library can't be loaded into a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ObstacleReason {
    #[error("is linked statically, so no library can be loaded into it")]
    Static,
    #[error("is a Go program, which calls the kernel by itself")]
    Go,
    #[error("is for another kind of processor than this pagekeeper")]
    Foreign,
    #[error("uses musl for its C library, and the library needs glibc")]
    Musl,
    #[error("runs with rights of its own (setuid, setgid or capabilities), and loads no library of others")]
    Privileged,
}

/// A program that the library can't be loaded into, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {why}", escaped(program))]
pub(crate) struct Obstacle {
    /// The program; for a script, its interpreter.
    pub(crate) program: PathBuf,
    pub(crate) why: ObstacleReason,
}

/// Returns what keeps the library out of the program that this file starts.
pub(crate) fn find_obstacle(path: &Path) -> Option<Obstacle> {
    let mut path = path.to_path_buf();
    for _ in 0..INTERPRETER_DEPTH_MAX {
        // Opening a FIFO would block until somebody writes to it.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let why = match program::kind(&|at, into| file.read_at(into, at).unwrap_or(0)) {
            ExecutableKind::Foreign => ObstacleReason::Foreign,
            ExecutableKind::Other => {
                path = interpreter(&file)?;
                continue;
            }
            ExecutableKind::Go => ObstacleReason::Go,
            ExecutableKind::Static => ObstacleReason::Static,
            ExecutableKind::Musl => ObstacleReason::Musl,
            ExecutableKind::Loads if is_privileged(&file) => ObstacleReason::Privileged,
            ExecutableKind::Loads => return None,
        };
        return Some(Obstacle { program: path, why });
    }
    None
}

/// Whether the loader of this program will run in secure mode (`AT_SECURE`): execve(2) changes the
/// user or group, or adds capabilities to a user other than root (`cap_bprm_creds_from_file` of
/// `security/commoncap.c`).
fn is_privileged(file: &File) -> bool {
    let mount = rustix::fs::fstatvfs(file);
    let is_ignored = mount.is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID))
        || rustix::thread::no_new_privs().unwrap_or(false);
    let fd = file.as_raw_fd();
    !is_ignored && preload_sys::fstat(fd).is_ok_and(|stat| program::is_privileged(&stat, Some(fd)))
}

/// Returns the program that a script's first line names.
fn interpreter(file: &File) -> Option<PathBuf> {
    let mut start = Vec::new();
    file.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut start).ok()?;
    // execvp(3) passes a text without that line to the shell; a binary file is not a program at
    // all.
    let Some(line) = start.strip_prefix(b"#!") else {
        return (!start.contains(&0)).then(|| PathBuf::from("/bin/sh"));
    };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let program = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program);
    }
    // env(1): options and variables come before the name.
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find::find(OsStr::from_bytes(name)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_script_leads_to_its_interpreter() {
        let interpreter = |text: &str| interpreter(&File::open(script(text).path()).unwrap());
        let sh = Some(PathBuf::from("/bin/sh"));
        assert_eq!(interpreter("#!/bin/sh\nexit"), sh);
        assert_eq!(interpreter("#! /bin/sh -e"), sh);
        assert_eq!(interpreter("echo no first line\n"), sh);
        assert_eq!(interpreter("binary\0"), None);
        assert_eq!(interpreter("#!\n/bin/sh"), None);
        let found = find::find(OsStr::new("sh")).ok();
        for text in ["#!/usr/bin/env sh\n", "#!/usr/bin/env -S A=b sh -e\n", "#!/usr/bin/env\tsh"] {
            assert_eq!(interpreter(text), found, "{text}");
        }
        assert_eq!(interpreter("#!/usr/bin/env no-such-program-here\n"), None);
    }

    #[test]
    fn plain_programs_have_no_obstacle() {
        assert_eq!(find_obstacle(Path::new("/bin/sh")), None);
        assert_eq!(find_obstacle(script("#!/bin/sh\n").path()), None);
        assert_eq!(find_obstacle(Path::new("/no/such/file")), None);
        assert_eq!(find_obstacle(Path::new("/dev/null")), None);
        // A script that is its own interpreter.
        let own = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(own.path(), format!("#!{}\n", own.path().display())).unwrap();
        assert_eq!(find_obstacle(own.path()), None);
    }

    #[test]
    fn a_setuid_program_of_the_callers_own_user_is_no_obstacle() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::copy("/bin/true", file.path()).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(find_obstacle(file.path()), None);
    }
}
