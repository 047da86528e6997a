//! Ownership: which directories and files count as a process's own. Tools that act on files and
//! tools that only look share these rules.
//!
//! A process chooses its name, its working directory and the files that it opens for reading. So
//! whoever starts one could make a tool act on files of others. Therefore a claim to a directory
//! counts only in one of these cases ([`ClaimStrength::of_claim`]):
//!
//! - the directory belongs to the process's one user;
//! - the directory belongs to anybody and that user is root;
//! - the process has a file there open for writing.
//!
//! The stronger of two claims wins, whichever came first. A file in a watched directory counts as a
//! database's ([`FileOwnership`]) only if
//!
//! 1. its owner is the one user that the database's process runs as, or that process is root's, or
//! 2. the process has that very file open for writing, or
//! 3. the process has a file of the same log open for writing, in a directory that is not writable
//!    by everybody, and the file has no other name. By another name it may be somebody else's: with
//!    `fs.protected_hardlinks=0` any user can link to any file of the same file system.
//!
//! In directories that the operator named all files count. Everything below such a directory was
//! put there by its owner: there only files of the first owner on the way down who is not root
//! count. A directory is known by its [`DirectoryPin`], not by its path, which may lead elsewhere
//! at any moment.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use pagekeeper_kernel::process::ProcessUsers;
use pagekeeper_kernel::{Inode, stat_of_name};
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};

use crate::party::Party;

/// The ID that stands for users without one in this user namespace
/// (`/proc/sys/kernel/overflowuid`), and for `nobody`.
const OVERFLOW_USER: u32 = 65534;

/// The strength of a claim: the greater, the stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimStrength {
    /// The process has a file of its profile there open for writing.
    pub writes: bool,
    /// The process is known by more than its name.
    pub certain: bool,
    /// The directory belongs to the process's user.
    pub owner: bool,
}

/// The outcome of a claim to a directory that another database holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// Both hold it.
    Shared,
    /// The other one keeps it.
    Lost,
    /// The other one loses it.
    Won,
}

impl ClaimStrength {
    /// Returns the strength of the claim of a process that runs as `user` to a directory of
    /// `owner`; `None` if the claim does not count. `writes` and `certain` as in the fields.
    pub fn of_claim(user: Option<u32>, owner: u32, writes: bool, certain: bool) -> Option<Self> {
        let strength = Self { writes, certain, owner: user == Some(owner) };
        (writes || has_permissions_of(user, owner)).then_some(strength)
    }

    /// Decides a claim against a holder with the strength `holder`, or `None` if the holder has
    /// ended. Two databases of one kind share a directory unless only the newer one writes there.
    ///
    /// ```
    /// use pagekeeper_catalog::{ClaimOutcome, ClaimStrength};
    ///
    /// let by_name = ClaimStrength { writes: false, certain: false, owner: true };
    /// let writer = ClaimStrength { writes: true, certain: true, owner: true };
    /// assert_eq!(writer.against(Some(by_name), false), ClaimOutcome::Won);
    /// assert_eq!(by_name.against(Some(writer), false), ClaimOutcome::Lost);
    /// assert_eq!(by_name.against(Some(writer), true), ClaimOutcome::Shared);
    /// ```
    pub fn against(self, holder: Option<Self>, of_one_kind: bool) -> ClaimOutcome {
        let better = holder.is_none_or(|held| self > held);
        if of_one_kind && (!better || self.writes == holder.is_some_and(|held| held.writes)) {
            ClaimOutcome::Shared
        } else if better {
            ClaimOutcome::Won
        } else {
            ClaimOutcome::Lost
        }
    }
}

/// Returns the one user that a process runs as, if there is one and it is known.
pub fn one_user(users: ProcessUsers) -> Option<u32> {
    users.one().and_then(known_user)
}

/// Returns the user, unless the ID may stand for any user.
pub fn known_user(user: u32) -> Option<u32> {
    (user != OVERFLOW_USER || all_users_are_known()).then_some(user)
}

/// Returns whether files of `owner` count as those of a process that runs as `user`, if that is
/// known.
pub fn has_permissions_of(user: Option<u32>, owner: u32) -> bool {
    user == Some(0) || user == Some(owner)
}

/// Whether this process is in the first user namespace, or in one with the same IDs. Otherwise
/// `nobody` may be anybody.
#[allow(clippy::disallowed_methods, reason = "of /proc")]
fn all_users_are_known() -> bool {
    static ALL_KNOWN: OnceLock<bool> = OnceLock::new();
    *ALL_KNOWN.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
    })
}

/// The identity of a directory, for as long as it exists. Inode numbers are reused; times of birth,
/// where the file system records them, are not.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryPin {
    /// Its device and inode number.
    pub inode: Inode,
    /// In nanoseconds of the epoch.
    born: Option<i128>,
}

impl DirectoryPin {
    /// Returns whether it is the same directory.
    pub fn is_same(&self, other: &Self) -> bool {
        let born = self.born.zip(other.born);
        self.inode == other.inode && born.is_none_or(|(one, other)| one == other)
    }
}

/// The relevant attributes of an opened directory.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryAttributes {
    /// Its identity.
    pub pin: DirectoryPin,
    /// Its owner.
    pub user: u32,
    /// Whether everybody may create files in it.
    pub open_to_all: bool,
}

impl DirectoryAttributes {
    /// Reads them from an opened directory.
    pub fn of(directory: impl AsFd) -> rustix::io::Result<Self> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, wanted)?;
        let pin = DirectoryPin { inode: inode(&stat), born: born(&stat) };
        Ok(Self { pin, user: stat.stx_uid, open_to_all: stat.stx_mode & 0o002 != 0 })
    }
}

/// Returns the inode of a stat.
pub fn inode(stat: &Statx) -> Inode {
    Inode { dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), ino: stat.stx_ino }
}

/// Returns the time of birth of a stat in nanoseconds of the epoch, where the file system records
/// it.
pub fn born(stat: &Statx) -> Option<i128> {
    (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| nanoseconds(stat.stx_btime))
}

/// Returns a time in nanoseconds of the epoch.
pub fn nanoseconds(time: StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// The rule by which files of a directory count as the database's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOwnership {
    /// All files: the operator named the directory.
    Operator,
    /// Files of this user, if the directory is that user's as well; it lies below one that the
    /// operator named. For root, all files. `None` if the user is not known: no file counts.
    Owner(Option<u32>),
    /// Files of a database's process.
    Process(Arc<ProcessOwnership>),
}

impl FileOwnership {
    /// Returns the rule for a directory that was found by its name at or below one that the
    /// operator named, by a path that holds no links. The owner of a directory on the way decides
    /// where the next name leads, and a link counts as its maker's.
    pub fn below(named: &Path, directory: &Path) -> Self {
        let Ok(rest) = directory.strip_prefix(named) else { return Self::Owner(None) };
        if rest.as_os_str().is_empty() {
            return Self::Operator;
        }
        let mut path = named.to_path_buf();
        let mut components = rest.components();
        loop {
            match stat_of_name(&path) {
                Ok(stat) if stat.st_uid != 0 => return Self::Owner(known_user(stat.st_uid)),
                Ok(_) => {}
                Err(_) => return Self::Owner(None),
            }
            match components.next() {
                Some(component) => path.push(component),
                None => return Self::Owner(Some(0)),
            }
        }
    }

    /// Returns whether a directory that this user owns may be entered.
    pub fn may_enter(&self, user: u32) -> bool {
        match self {
            // A process's claim to the directory was examined before.
            Self::Operator | Self::Process(_) => true,
            Self::Owner(owner) => *owner == Some(0) || *owner == Some(user),
        }
    }

    /// Returns whether a file of this user counts by itself, whatever other files of its log are.
    pub fn owns(&self, file: Inode, user: u32) -> bool {
        match self {
            Self::Operator | Self::Owner(_) => self.may_enter(user),
            Self::Process(ownership) => {
                ownership.has_permissions_of(user) || ownership.writes.contains(&file)
            }
        }
    }

    /// Returns the party whose budget it counts towards.
    pub fn party(&self) -> Party {
        match self {
            Self::Operator | Self::Owner(_) => Party::Operator,
            Self::Process(ownership) => ownership.party(),
        }
    }
}

/// The files that count as a process's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOwnership {
    /// The user that it runs as, if that is exactly one and known.
    user: Option<u32>,
    party: Party,
    /// Log files that it has open for writing.
    pub writes: HashSet<Inode>,
}

impl Default for ProcessOwnership {
    fn default() -> Self {
        Self::new(None, Party::Unknown, HashSet::new())
    }
}

impl ProcessOwnership {
    /// Returns the rights of a process with these users, if they could be seen.
    pub fn new(users: Option<ProcessUsers>, party: Party, writes: HashSet<Inode>) -> Self {
        Self { user: users.and_then(one_user), party, writes }
    }

    /// Returns whether files of this user are the process's as well.
    pub fn has_permissions_of(&self, user: u32) -> bool {
        has_permissions_of(self.user, user)
    }

    /// Returns the party whose budget the process's directories count towards.
    pub fn party(&self) -> Party {
        self.party
    }

    /// Returns whether it runs as this user.
    pub fn runs_as(&self, user: u32) -> bool {
        self.user == Some(user)
    }

    /// Returns the strength of its claim to a directory of this owner, as
    /// [`ClaimStrength::of_claim`] does.
    pub fn claim(&self, owner: u32, writes: bool, certain: bool) -> Option<ClaimStrength> {
        ClaimStrength::of_claim(self.user, owner, writes, certain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_permissions_of_one_user_only() {
        let users = |real, effective| {
            Some(ProcessUsers { real, effective, saved: effective, file_system: effective })
        };
        let ownership = |users| ProcessOwnership::new(users, Party::Unknown, HashSet::new());
        assert!(
            ownership(users(999, 999)).has_permissions_of(999)
                && !ownership(users(999, 999)).has_permissions_of(0)
        );
        assert!(ownership(users(0, 0)).has_permissions_of(999), "root");
        assert!(
            !ownership(users(1000, 0)).has_permissions_of(0),
            "the caller of a setuid program is not root"
        );
        assert!(!ownership(users(1000, 0)).has_permissions_of(1000));
        assert!(!ownership(None).has_permissions_of(0), "an unknown user owns nothing");
    }

    #[test]
    fn a_directory_that_is_made_again_is_another() {
        let parent = pagekeeper_testing::disk_dir();
        let path = parent.path().join("data");
        let pin = || {
            std::fs::create_dir(&path).unwrap();
            DirectoryAttributes::of(std::fs::File::open(&path).unwrap()).unwrap().pin
        };
        let first = pin();
        assert!(first.is_same(&DirectoryAttributes::of(std::fs::File::open(&path).unwrap()).unwrap().pin));
        std::fs::remove_dir(&path).unwrap();
        // Directories that are made in the same tick of the kernel's clock, of up to 10 ms, have
        // the same time of birth.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let second = pin();
        let differ = first.born.is_some() || first.inode != second.inode;
        assert!(!differ || !first.is_same(&second), "{first:?} {second:?}");
    }
}
