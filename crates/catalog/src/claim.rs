//! Whose a directory is, of the databases that claim it: one rule for who acts on files there, and for who only looks.
//!
//! Any process can be called as a database is, and open what it may read. So a claim counts if the directory belongs to the one
//! user that the process is, or to anybody where that is root, or if the process has a file there open for writing; and of two
//! claims the better one wins, whoever came first.

use std::sync::OnceLock;

use pagekeeper_kernel::process::ProcessUsers;

/// The id that stands for users that have none in this user namespace (`/proc/sys/kernel/overflowuid`), and for `nobody`.
const NOBODY: u32 = 65534;

/// How good a claim is: the better, the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Strength {
    /// The process has a file of its profile there open for writing.
    pub writes: bool,
    /// It is known by more than its name.
    pub certain: bool,
    /// The directory belongs to its user.
    pub owner: bool,
}

/// What becomes of a claim to a directory that another database has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contest {
    /// Both have it.
    Shared,
    /// The other one keeps it.
    Lost,
    /// It is taken from the other one.
    Won,
}

impl Strength {
    /// What becomes of the claim where the other's is as good as `holder`; `None` if that one has ended. Two of one kind of
    /// database share a directory unless only the newer one writes there.
    ///
    /// ```
    /// use pagekeeper_catalog::{Contest, Strength};
    ///
    /// let by_name = Strength { writes: false, certain: false, owner: true };
    /// let writer = Strength { writes: true, certain: true, owner: true };
    /// assert_eq!(writer.against(Some(by_name), false), Contest::Won);
    /// assert_eq!(by_name.against(Some(writer), false), Contest::Lost);
    /// assert_eq!(by_name.against(Some(writer), true), Contest::Shared);
    /// ```
    pub fn against(self, holder: Option<Self>, of_one_kind: bool) -> Contest {
        let better = holder.is_none_or(|held| self > held);
        if of_one_kind && (!better || self.writes == holder.is_some_and(|held| held.writes)) {
            Contest::Shared
        } else if better {
            Contest::Won
        } else {
            Contest::Lost
        }
    }
}

/// The one user that a process is, if it is one and is known.
pub fn one_user(users: ProcessUsers) -> Option<u32> {
    users.one().and_then(known_user)
}

/// The user, unless the id may stand for any.
pub fn known_user(user: u32) -> Option<u32> {
    (user != NOBODY || all_users_are_known()).then_some(user)
}

/// Whether this process lives in the first user namespace, or one with the same ids: else `nobody` may be anybody.
#[allow(clippy::disallowed_methods, reason = "of /proc")]
fn all_users_are_known() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
    })
}
