//! The leases that processes hold on files (fcntl(2), "Leases"): to open such a file interrupts its holder.

use std::collections::HashSet;

use super::ProcRoot;
use super::reading::each_line;
use crate::text::unescaped_bytes;
use crate::{Inode, Result};

/// The files on which somebody had a lease when it was asked: file servers, for what their clients keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leases(HashSet<Inode>);

impl Leases {
    /// Whether somebody has one on an inode. Its device is the file system's, which on btrfs stat(2) does not show.
    pub fn is_on(&self, inode: Inode) -> bool {
        self.0.contains(&inode)
    }
}

impl ProcRoot {
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
}
