//! The leases that processes hold on files (fcntl(2), "Leases"), whose holders are interrupted if
//! such a file is opened; and the locks and leases that other processes wait for.

use std::collections::HashSet;

use pagekeeper_text::unescaped_bytes;

use super::ProcRoot;
use super::read;
use super::reading::each_line;
use crate::{Inode, Result};

/// Maximum number of descriptors of a process checked for locks.
const LOCK_DESCRIPTORS_MAX: usize = 256;
/// Maximum number of descriptors of a process checked for open files.
const OPEN_DESCRIPTORS_MAX: usize = 4096;

/// The files with a lease at the time of the query: file servers take leases for their clients'
/// caches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileLeases(HashSet<Inode>);

impl FileLeases {
    /// Whether somebody has a lease on an inode. Its device is that of the file system, which
    /// stat(2) does not show on btrfs.
    pub fn is_on(&self, inode: Inode) -> bool {
        self.0.contains(&inode)
    }
}

/// The files that somebody waits for because another process has a lock or a lease on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AwaitedLocks {
    holders: HashSet<u32>,
    inodes: HashSet<u64>,
}

impl ProcRoot {
    /// Returns the locks and leases that others wait for now (`/proc/locks`), as far as this
    /// process can see their holders.
    pub fn awaited_locks(&self) -> Result<AwaitedLocks> {
        let mut awaited = AwaitedLocks::default();
        let mut held = None;
        each_line(&self.path().join("locks"), |line| add_awaited(line, &mut held, &mut awaited))?;
        Ok(awaited)
    }

    /// Whether others wait for a process: it holds an awaited lock or lease. A process that has the
    /// file open counts too, since a lock may be shared with a child.
    pub fn is_awaited(&self, pid: u32, awaited: &AwaitedLocks) -> bool {
        if awaited.inodes.is_empty() || awaited.holders.contains(&pid) {
            return !awaited.inodes.is_empty();
        }
        let mut is_open = false;
        // On btrfs the device in /proc/locks differs from that of stat(2), so only inode numbers
        // are compared.
        let listed = self.first_fd_links(pid, OPEN_DESCRIPTORS_MAX, |fd, path| {
            let is_file = !is_open && path.is_absolute();
            is_open |= is_file
                && self.inode_behind(pid, fd).is_some_and(|inode| awaited.inodes.contains(&inode.ino));
        });
        is_open || listed.is_err()
    }

    /// Whether a process may have a lock or a lease, by `/proc/PID/fdinfo` (Linux 4.1). This is
    /// cheaper than [`Self::awaited_locks`], for which the kernel stops all lock operations.
    /// Returns true if that is unknown.
    #[allow(clippy::disallowed_methods, reason = "of /proc")]
    pub fn may_have_locks(&self, pid: u32) -> bool {
        let Ok(descriptors) = std::fs::read_dir(self.of(pid, "fdinfo")) else { return true };
        for (count, descriptor) in descriptors.enumerate() {
            let Ok(descriptor) = descriptor else { return true };
            let is_closed = |error: &crate::Error| error.is_gone();
            let has_lock = match read(&descriptor.path()) {
                Ok(text) => text.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"lock:")),
                Err(error) => !is_closed(&error),
            };
            if has_lock || count == LOCK_DESCRIPTORS_MAX {
                return true;
            }
        }
        false
    }

    /// Returns the leases and delegations held now (`/proc/locks`) by processes that this one can
    /// see.
    pub fn leases(&self) -> Result<FileLeases> {
        let mut leases = HashSet::new();
        each_line(&self.path().join("locks"), |line| add_leased(line, &mut leases))?;
        Ok(FileLeases(leases))
    }
}

/// Adds the file of a line if that describes a lease; `None` for a line of another form.
fn add_leased(line: &[u8], leases: &mut HashSet<Inode>) -> Option<()> {
    let line = unescaped_bytes(line);
    let mut fields = line.split_ascii_whitespace().skip(1).skip_while(|field| *field == "->");
    if !matches!(fields.next()?, "LEASE" | "DELEG") {
        return Some(());
    }
    // Skips the state of the lease's recall, its type, and its holder.
    let mut numbers = fields.nth(3)?.split(':');
    let mut hex = || u32::from_str_radix(numbers.next()?, 16).ok();
    let dev = rustix::fs::makedev(hex()?, hex()?);
    leases.insert(Inode { dev, ino: numbers.next()?.parse().ok()? });
    Some(())
}

/// Adds the lock that a waiting line follows, and a lease being recalled; `None` for a line of
/// another form.
fn add_awaited(line: &[u8], held: &mut Option<(u32, u64)>, awaited: &mut AwaitedLocks) -> Option<()> {
    let line = unescaped_bytes(line);
    let mut fields = line.split_ascii_whitespace().skip(1).peekable();
    let is_waiting = fields.peek() == Some(&"->");
    let mut is_asked_back = false;
    if !is_waiting {
        fields.next()?;
        is_asked_back = fields.next()? == "BREAKING";
        // A lock of an open file description has no holder: -1.
        let holder = fields.nth(1)?.parse().unwrap_or(0);
        *held = Some((holder, fields.next()?.rsplit(':').next()?.parse().ok()?));
    }
    if let Some((holder, inode)) = held.filter(|_| is_waiting || is_asked_back) {
        awaited.holders.insert(holder);
        awaited.inodes.insert(inode);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_distinguished_from_locks() {
        let tree = tempfile::tempdir().unwrap();
        let lines = "1: FLOCK  ADVISORY  WRITE 321 00:1a:77 0 EOF\n\
            2: LEASE  ACTIVE    WRITE 4711 fe:0a:4242 0 EOF\n\
            2: -> POSIX  ADVISORY  READ 12 08:01:9 0 EOF\n\
            3: DELEG  BREAKING  READ 5 103:03:18446744073709551615 0 EOF\n\
            3: LEASE  what\n";
        std::fs::write(tree.path().join("locks"), lines).unwrap();
        let leases = ProcRoot::at(tree.path()).leases().unwrap();
        let is_on = |major, minor, ino| leases.is_on(Inode { dev: rustix::fs::makedev(major, minor), ino });
        assert!(is_on(0xfe, 0xa, 4242) && is_on(0x103, 3, u64::MAX));
        assert!(!is_on(0, 0x1a, 77) && !is_on(8, 1, 9));
    }

    #[test]
    fn a_holder_that_others_wait_for_is_not_one_that_waits() {
        let tree = tempfile::tempdir().unwrap();
        let lines = "1: POSIX  ADVISORY  WRITE 321 00:1a:77 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 5 fe:0a:4242 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 6 fe:0a:4242 0 EOF\n\
            2:  -> FLOCK  ADVISORY  WRITE 7 fe:0a:4242 0 EOF\n\
            3: LEASE  BREAKING  READ 8 fe:0a:99 0 EOF\n\
            4: OFDLCK ADVISORY  READ -1 fe:0a:100 0 EOF\n\
            4: -> OFDLCK ADVISORY  WRITE -1 fe:0a:100 0 EOF\n";
        std::fs::write(tree.path().join("locks"), lines).unwrap();
        for pid in ["6", "321"] {
            std::fs::create_dir_all(tree.path().join(pid).join("fd")).unwrap();
        }
        let proc = ProcRoot::at(tree.path());
        let awaited = proc.awaited_locks().unwrap();
        assert_eq!(awaited.inodes, HashSet::from([4242, 99, 100]));
        assert!(proc.is_awaited(5, &awaited) && proc.is_awaited(8, &awaited));
        assert!(!proc.is_awaited(6, &awaited) && !proc.is_awaited(321, &awaited));
        assert!(proc.is_awaited(4711, &awaited), "its open files are unknown");
        assert!(!proc.is_awaited(4711, &AwaitedLocks::default()));
    }

    #[test]
    fn a_holder_of_an_awaited_lock_and_sharers_of_its_file_are_awaited() {
        // Closed, so that this process does not share it.
        let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let flock = |script: &str| {
            let mut command = std::process::Command::new("flock");
            command.arg(&*file).args(["sh", "-c", script]).stdout(std::process::Stdio::piped());
            command.stdin(std::process::Stdio::piped()).spawn().unwrap()
        };
        let mut holder = flock("echo $$; read go");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        let proc = ProcRoot::default();
        let child: u32 = line.trim().parse().unwrap();
        assert!(!proc.is_awaited(child, &proc.awaited_locks().unwrap()));
        assert!(proc.may_have_locks(child) && !proc.may_have_locks(std::process::id()));
        let mut waiting = flock("true");
        let is_awaited = |pid| {
            (0..500).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                proc.is_awaited(pid, &proc.awaited_locks().unwrap())
            })
        };
        assert!(is_awaited(holder.id()) && is_awaited(child));
        assert!(!proc.is_awaited(std::process::id(), &proc.awaited_locks().unwrap()));
        drop(holder.stdin.take());
        holder.wait().unwrap();
        waiting.wait().unwrap();
    }
}
