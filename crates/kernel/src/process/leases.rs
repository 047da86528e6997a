//! The leases that processes hold on files (fcntl(2), "Leases"): to open such a file interrupts its holder. And the locks and leases that
//! others wait for.

use std::collections::HashSet;

use super::ProcRoot;
use super::read;
use super::reading::each_line;
use crate::text::unescaped_bytes;
use crate::{Inode, Result};

/// Descriptors of a process that are looked at for locks.
const LOOKED_AT_MAX: usize = 256;
/// Descriptors of a process that are looked at.
const DESCRIPTORS_MAX: usize = 4096;

/// The files on which somebody had a lease when it was asked: file servers, for what their clients keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leases(HashSet<Inode>);

impl Leases {
    /// Whether somebody has one on an inode. Its device is the file system's, which on btrfs stat(2) does not show.
    pub fn is_on(&self, inode: Inode) -> bool {
        self.0.contains(&inode)
    }
}

/// The files that somebody waits for, because another process has a lock or a lease on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AwaitedLocks {
    holders: HashSet<u32>,
    inodes: HashSet<u64>,
}

impl ProcRoot {
    /// The locks and leases that others wait for now (`/proc/locks`), as far as this process can see their holders.
    pub fn awaited_locks(&self) -> Result<AwaitedLocks> {
        let mut awaited = AwaitedLocks::default();
        let mut held = None;
        each_line(&self.path().join("locks"), |line| add_awaited(line, &mut held, &mut awaited))?;
        Ok(awaited)
    }

    /// Whether others wait for a process: it has such a lock or lease, or has the file open, since a lock may be shared with a child.
    pub fn is_awaited(&self, pid: u32, awaited: &AwaitedLocks) -> bool {
        if awaited.inodes.is_empty() || awaited.holders.contains(&pid) {
            return !awaited.inodes.is_empty();
        }
        let mut is_open = false;
        // On btrfs the device of /proc/locks is not the one of stat(2), so inode numbers alone are compared.
        let listed = self.first_fd_links(pid, DESCRIPTORS_MAX, |fd, path| {
            let is_file = !is_open && path.is_absolute();
            is_open |= is_file
                && self.inode_behind(pid, fd).is_some_and(|inode| awaited.inodes.contains(&inode.ino));
        });
        is_open || listed.is_err()
    }

    /// Whether a process may have a lock or a lease, by `/proc/PID/fdinfo` (Linux 4.1): cheaper than [`Self::awaited_locks`], for which the
    /// kernel stops all that take locks. What can't be known may be.
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
            if has_lock || count == LOOKED_AT_MAX {
                return true;
            }
        }
        false
    }

    /// The leases and delegations that are held now (`/proc/locks`), by processes that this one can see.
    pub fn leases(&self) -> Result<Leases> {
        let mut leases = HashSet::new();
        each_line(&self.path().join("locks"), |line| add_leased(line, &mut leases))?;
        Ok(Leases(leases))
    }
}

/// Adds the file of a line, if that is of a lease; `None` for a line of another form.
fn add_leased(line: &[u8], leases: &mut HashSet<Inode>) -> Option<()> {
    let line = unescaped_bytes(line);
    let mut fields = line.split_ascii_whitespace().skip(1).skip_while(|field| *field == "->");
    if !matches!(fields.next()?, "LEASE" | "DELEG") {
        return Some(());
    }
    // How far the holder is asked to give it back, its kind, and the holder.
    let mut numbers = fields.nth(3)?.split(':');
    let mut hex = || u32::from_str_radix(numbers.next()?, 16).ok();
    let dev = rustix::fs::makedev(hex()?, hex()?);
    leases.insert(Inode { dev, ino: numbers.next()?.parse().ok()? });
    Some(())
}

/// Adds the lock before a line that waits for it, and a lease that is asked back; `None` for a line of another form.
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
        assert!(proc.is_awaited(4711, &awaited), "what it has open can't be known");
        assert!(!proc.is_awaited(4711, &AwaitedLocks::default()));
    }

    #[test]
    fn who_has_an_awaited_lock_or_shares_its_file_is_awaited() {
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
