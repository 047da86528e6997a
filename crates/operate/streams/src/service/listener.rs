//! The socket on which users ask for their processes to be followed.
//!
//! Invariants: the path belongs to this process's user, in a directory that nobody else may write
//! to. Anything that is already there is removed only if it is a socket of this user that nobody
//! listens on. Otherwise listening fails with a sentence.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use pagekeeper_kernel::{Links, open_directory};
use pagekeeper_text::escaped;
use rustix::fs::{AtFlags, FileType, Gid, Mode, chownat, fstat, statat, unlinkat};

use super::StreamSocket;
use crate::stream_request::connect;

/// A listening socket; its path is removed when this is dropped.
pub(super) struct Listener {
    pub(super) socket: UnixListener,
    directory: OwnedFd,
    name: OsString,
    /// The socket at the path, by device and inode.
    made: (u64, u64),
}

impl Listener {
    pub(super) fn bind(socket: &StreamSocket) -> Result<Self, String> {
        let fail = |why: &dyn std::fmt::Display| {
            format!("requests for streams can't be heard at {}: {why}", escaped(&socket.path))
        };
        let (Some(parent), Some(name)) = (socket.path.parent(), socket.path.file_name()) else {
            return Err(fail(&"it is no path of a file"));
        };
        let directory = open_directory(parent, Links::Follow).map_err(|error| fail(&error))?;
        let stat = fstat(&directory).map_err(|error| fail(&io::Error::from(error)))?;
        let own = rustix::process::geteuid().as_raw();
        if stat.st_mode & 0o022 != 0 || (stat.st_uid != own && stat.st_uid != 0) {
            let why = format!(
                "other users may write its directory; a directory that only {} may write will do",
                if own == 0 { "root" } else { "root or this user" }
            );
            return Err(fail(&why));
        }
        remove_stale(&directory, name, &socket.path, own).map_err(|why| fail(&why))?;
        let listener = bind_with_mode(&socket.path, socket.mode).map_err(|error| fail(&error))?;
        let made = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let made = made.map_err(|error| fail(&io::Error::from(error)))?;
        let bound =
            Self { socket: listener, directory, name: name.to_owned(), made: (made.st_dev, made.st_ino) };
        if let Some(group) = socket.group.filter(|group| *group != made.st_gid) {
            let given =
                chownat(&bound.directory, name, None, Some(Gid::from_raw(group)), AtFlags::SYMLINK_NOFOLLOW);
            given.map_err(|error| fail(&format!("its group can't be set: {}", io::Error::from(error))))?;
        }
        Ok(bound)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let now = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if now.is_ok_and(|now| (now.st_dev, now.st_ino) == self.made) {
            // If it stays behind, the next guard recognises it as stale.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Removes a socket left by a process that ended.
fn remove_stale(directory: &OwnedFd, name: &std::ffi::OsStr, path: &Path, own: u32) -> Result<(), String> {
    let Ok(there) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
    if FileType::from_raw_mode(there.st_mode) != FileType::Socket {
        return Err("something else than a socket is there: remove it, or name another path".to_owned());
    }
    if there.st_uid != own {
        return Err(format!("the socket that is there belongs to user {}", there.st_uid));
    }
    // A socket whose queue of connections is full has a listener as well.
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => return Err("another process listens there: is a second guard running?".to_owned()),
    }
    unlinkat(directory, name, AtFlags::empty()).map_err(|error| {
        format!(
            "the socket that was there before can't be removed ({}): restart the guard, whose unit removes it",
            io::Error::from(error)
        )
    })
}

/// Creates the socket with these permissions from the start. The mask applies to the whole process,
/// which creates no other files.
fn bind_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let before = rustix::process::umask(Mode::from_raw_mode(0o777 & !mode));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use pagekeeper_testing::skip;

    use super::*;

    fn place() -> (tempfile::TempDir, StreamSocket) {
        let directory = tempfile::tempdir().unwrap();
        let socket = StreamSocket { path: directory.path().join("s"), mode: 0o666, group: None };
        (directory, socket)
    }

    fn refusal(socket: &StreamSocket) -> String {
        Listener::bind(socket).err().expect("it is refused")
    }

    #[test]
    fn the_socket_has_its_mode_and_goes_with_the_listener() {
        for mode in [0o666, 0o660, 0o600] {
            let (_directory, mut socket) = place();
            socket.mode = mode;
            let listener = Listener::bind(&socket).unwrap();
            let there = socket.path.symlink_metadata().unwrap();
            assert!(there.file_type().is_socket());
            assert_eq!(there.mode() & 0o7777, mode);
            assert!(UnixStream::connect(&socket.path).is_ok());
            drop(listener);
            assert!(socket.path.symlink_metadata().is_err());
        }
    }

    #[test]
    fn the_socket_has_its_group() {
        if !rustix::process::geteuid().is_root() {
            return skip("a group of one's choice needs root.");
        }
        let (_directory, mut socket) = place();
        socket.group = Some(1234);
        let _listener = Listener::bind(&socket).unwrap();
        assert_eq!(socket.path.symlink_metadata().unwrap().gid(), 1234);
    }

    #[test]
    fn the_socket_of_an_ended_guard_is_replaced_and_that_of_a_running_one_stays() {
        let (_directory, socket) = place();
        let first = Listener::bind(&socket).unwrap();
        assert!(refusal(&socket).contains("second guard"));
        // As after SIGKILL.
        std::fs::rename(&socket.path, socket.path.with_extension("kept")).unwrap();
        drop(first);
        std::fs::rename(socket.path.with_extension("kept"), &socket.path).unwrap();
        let second = Listener::bind(&socket).unwrap();
        assert!(UnixStream::connect(&socket.path).is_ok());
        drop(second);
    }

    #[test]
    fn a_guard_whose_queue_is_full_is_no_wait() {
        let (_directory, socket) = place();
        let first = Listener::bind(&socket).unwrap();
        rustix::net::listen(&first.socket, 0).unwrap();
        let queued: Vec<UnixStream> = (0..8).map_while(|_| connect(&socket.path).ok()).collect();
        assert!(queued.len() < 8, "the queue is never full");
        assert!(refusal(&socket).contains("second guard"));
    }

    #[test]
    fn a_stale_socket_that_cannot_be_removed_is_reported() {
        let (directory, socket) = place();
        drop(UnixListener::bind(&socket.path).unwrap());
        let chattr = |flag| Command::new("chattr").arg(flag).arg(directory.path()).status();
        if !chattr("+i").is_ok_and(|status| status.success()) {
            return skip(
                "a directory that can't be changed needs root, chattr and a file system that knows it.",
            );
        }
        let bound = Listener::bind(&socket).map(drop);
        assert!(chattr("-i").unwrap().success());
        let why = bound.unwrap_err();
        assert!(why.contains("restart the guard") && why.contains("not permitted"), "{why}");
    }

    #[test]
    fn neither_a_file_nor_a_link_nor_a_directory_gives_way() {
        let (directory, socket) = place();
        let target = directory.path().join("target");
        std::fs::write(&socket.path, "kept").unwrap();
        assert!(refusal(&socket).contains("something else"));
        assert_eq!(std::fs::read(&socket.path).unwrap(), b"kept");
        std::fs::remove_file(&socket.path).unwrap();
        symlink(&target, &socket.path).unwrap();
        assert!(refusal(&socket).contains("something else"));
        assert!(!target.exists() && socket.path.is_symlink());
        std::fs::remove_file(&socket.path).unwrap();
        std::fs::create_dir(&socket.path).unwrap();
        assert!(refusal(&socket).contains("something else"));
    }

    #[test]
    fn nothing_of_another_user_is_removed_nor_anything_bound_where_others_write() {
        if !rustix::process::geteuid().is_root() {
            return skip("files of others need root.");
        }
        let (directory, socket) = place();
        drop(UnixListener::bind(&socket.path).unwrap());
        chown(&socket.path, Some(1001), None).unwrap();
        assert!(refusal(&socket).contains("belongs to user 1001"));
        std::fs::remove_file(&socket.path).unwrap();
        for mode in [0o777, 0o1777, 0o770] {
            std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert!(refusal(&socket).contains("may write its directory"));
        }
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        chown(directory.path(), Some(1001), None).unwrap();
        assert!(refusal(&socket).contains("may write its directory"));
    }

    #[test]
    fn a_replacement_of_the_socket_is_not_removed() {
        let (_directory, socket) = place();
        let listener = Listener::bind(&socket).unwrap();
        std::fs::remove_file(&socket.path).unwrap();
        std::fs::write(&socket.path, "another's").unwrap();
        drop(listener);
        assert_eq!(std::fs::read(&socket.path).unwrap(), b"another's");
    }
}
