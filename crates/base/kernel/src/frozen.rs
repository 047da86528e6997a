//! Waiting for a frozen file system (`fsfreeze -f`) before a program writes to it.
//!
//! A write to a frozen file system sleeps until it is thawed; no signal ends that sleep, and no
//! call tells that it is coming. So a child process begins a write that changes nothing, and this
//! process waits for the child, which any signal ends.
//!
//! Invariants: the child removes an extended attribute that no file can have. It holds no
//! descriptor of this process, because it may outlast it until the thaw. Not covered: a file system
//! that is frozen later, while the command writes.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The first argument of the child, by which this program knows its part.
const CHILD_NAME: &str = "pagekeeper-begin-write";

/// An attribute outside all namespaces: file systems refuse it, after they have begun a write
/// (xattr(7)).
const INVALID_ATTRIBUTE: &str = "pagekeeper";

/// Time after which a wait is reported: far longer than the child takes otherwise.
const SILENT_WAIT_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Waits until a file at `path`, or one that is created there, can be written. After a second it
/// says why it waits, once. Call it before signals are caught, in a program that begins with
/// [`play_child`].
pub fn wait_while_frozen(path: &Path, say: impl FnOnce(&'static str)) {
    // Without a child, the command waits by itself.
    let Ok(mut child) = start_child(path) else { return };
    if let Some(end) = &child.stdout
        && poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&SILENT_WAIT_MAX)) == Ok(0)
    {
        say(find_cause(&child));
    }
    // Fails only if somebody else has waited for it.
    let _ = child.wait();
}

fn start_child(path: &Path) -> std::io::Result<Child> {
    let mut child = Command::new("/proc/self/exe");
    child.arg0(CHILD_NAME).arg(std::path::absolute(path)?);
    child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// Returns why the child has not ended, by the kernel function that it sleeps in: writes wait for a
/// thaw on a per-CPU semaphore.
#[allow(clippy::disallowed_methods, reason = "of /proc")]
fn find_cause(child: &Child) -> &'static str {
    let function = std::fs::read_to_string(format!("/proc/{}/wchan", child.id()));
    if function.is_ok_and(|name| name.contains("percpu")) {
        "the file system is frozen"
    } else {
        "the file system does not answer"
    }
}

/// Plays the child's part, if this process is one; returns whether it was.
pub fn play_child() -> bool {
    let mut arguments = std::env::args_os();
    if arguments.next().is_none_or(|name| name != CHILD_NAME) {
        return false;
    }
    let path = arguments.next().unwrap_or_default();
    // A file that is to be created is created in the nearest directory that exists.
    for place in Path::new(&path).ancestors() {
        if rustix::fs::removexattr(place, INVALID_ATTRIBUTE) != Err(Errno::NOENT) {
            break;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_system_has_the_attribute() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let given = rustix::fs::XattrFlags::empty();
        assert!(rustix::fs::setxattr(dir.path(), INVALID_ATTRIBUTE, b"", given).is_err());
    }
}
