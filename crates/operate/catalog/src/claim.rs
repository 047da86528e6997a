//! Decides which of the databases that claim a directory gets it. Tools that act on files there and tools that
//! only look share this rule.
//!
//! Any process can have a database's name, and open any file that it may read. Therefore a claim only counts in
//! one of these cases:
//!
//! - the directory belongs to the process's one user;
//! - the directory belongs to anybody and that user is root;
//! - the process has a file there open for writing.
//!
//! The stronger of two claims wins, whichever came first.

use std::sync::OnceLock;

use pagekeeper_kernel::process::ProcessUsers;

/// The ID that stands for users without one in this user namespace (`/proc/sys/kernel/overflowuid`), and for
/// `nobody`.
const NOBODY: u32 = 65534;

/// The strength of a claim: the greater, the stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Strength {
    /// The process has a file of its profile there open for writing.
    pub writes: bool,
    /// The process is known by more than its name.
    pub certain: bool,
    /// The directory belongs to the process's user.
    pub owner: bool,
}

/// The outcome of a claim to a directory that another database holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contest {
    /// Both hold it.
    Shared,
    /// The other one keeps it.
    Lost,
    /// The other one loses it.
    Won,
}

impl Strength {
    /// Decides a claim against a holder with the strength `holder`, or `None` if the holder has ended. Two
    /// databases of one kind share a directory unless only the newer one writes there.
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

/// Returns the one user that a process runs as, if there is one and it is known.
pub fn one_user(users: ProcessUsers) -> Option<u32> {
    users.one().and_then(known_user)
}

/// Returns the user, unless the ID may stand for any user.
pub fn known_user(user: u32) -> Option<u32> {
    (user != NOBODY || all_users_are_known()).then_some(user)
}

/// Whether this process is in the first user namespace, or in one with the same IDs. Otherwise `nobody` may be
/// anybody.
#[allow(clippy::disallowed_methods, reason = "of /proc")]
fn all_users_are_known() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
    })
}
