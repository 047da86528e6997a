//! The environment of a command: the library in `LD_PRELOAD`, beside what was there, and the
//! settings of its rules.
//!
//! Invariants: other libraries stay, in their order. Inside another `pagekeeper run` the library is
//! there already, and comes once. If it is not to be loaded, the environment stays as it is, but
//! for the library of an outer run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use pagekeeper_preload::settings::VARIABLE;

use crate::library;
use crate::reach::LibraryAbsence;

/// The variable that names libraries to a loader, separated by colons or spaces (ld.so(8)).
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Sets the command's environment.
pub(crate) fn set(command: &mut Command, library: &Result<PathBuf, LibraryAbsence>, settings: &OsStr) {
    let before = std::env::var_os(PRELOAD_VARIABLE).unwrap_or_default();
    match library {
        Ok(library) => {
            let threads = library::keeps_threads_apart(library::glibc().as_deref());
            let all = others(&before).chain(own(library, threads));
            command.env(PRELOAD_VARIABLE, joined(all)).env(VARIABLE, settings);
        }
        // This process runs inside another `pagekeeper run`.
        Err(LibraryAbsence::TakenOut) if has_library(&before) => {
            match joined(others(&before)) {
                none if none.is_empty() => command.env_remove(PRELOAD_VARIABLE),
                others => command.env(PRELOAD_VARIABLE, others),
            };
            command.env_remove(VARIABLE);
        }
        Err(_) => {}
    }
}

/// Returns the other preloaded libraries. Inside another `pagekeeper run` the library itself is
/// already there, and must come once.
fn others(before: &OsStr) -> impl Iterator<Item = &[u8]> {
    let parted = before.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    parted.filter(|name| !name.is_empty() && !library::is_library(name) && *name != library::THREADS_LIBRARY)
}

fn has_library(before: &OsStr) -> bool {
    before.as_bytes().split(|byte| matches!(byte, b':' | b' ')).any(library::is_library)
}

/// Returns the library, followed by the threads library if the C library lacks threads.
fn own(library: &Path, threads: bool) -> impl Iterator<Item = &[u8]> {
    [library.as_os_str().as_bytes()].into_iter().chain(threads.then_some(library::THREADS_LIBRARY))
}

fn joined<'a>(names: impl Iterator<Item = &'a [u8]>) -> OsString {
    OsString::from_vec(names.collect::<Vec<_>>().join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_preloads_stay_and_the_library_is_added_once() {
        let library = "/run/pagekeeper/libpagekeeper-0123456789abcdef.so";
        let preloaded =
            |before: &OsStr, threads| joined(others(before).chain(own(Path::new(library), threads)));
        let older = "/tmp/pagekeeper-0/libpagekeeper-fedcba9876543210.so";
        for (before, expected) in [
            (String::new(), library.to_owned()),
            ("libfaketime.so".to_owned(), format!("libfaketime.so:{library}")),
            (" /a.so:/b.so ".to_owned(), format!("/a.so:/b.so:{library}")),
            (library.to_owned(), library.to_owned()),
            (format!("{library}:/a.so:{older}"), format!("/a.so:{library}")),
        ] {
            assert_eq!(preloaded(OsStr::new(&before), false), OsStr::new(&expected), "{before}");
            let before = preloaded(OsStr::new(&before), true);
            assert_eq!(before, OsStr::new(&format!("{expected}:libpthread.so.0")));
            assert_eq!(preloaded(&before, true), before, "once");
        }
    }
}
