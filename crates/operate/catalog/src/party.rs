//! The party to whose fair share a process counts. A user who starts many processes, even under
//! ever new IDs, thus makes only their own shares small.

use std::fmt;

use pagekeeper_kernel::process::{ProcRoot, ProcessOrigin};

use crate::directories::ownership::{known_user, one_user};

/// The party to whose fair share something counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The operator, who named it or a directory above it.
    Operator,
    /// The one user that a process runs as, or the creator of its user namespace.
    User(u32),
    /// A container, or a user namespace created by root, whatever the process's user in it: root
    /// there can act as any of its users.
    Container(u64),
    /// All processes that are not known to have a single user.
    Unknown,
}

impl Party {
    /// Returns the party of a process.
    pub fn of(proc: &ProcRoot, pid: u32) -> Self {
        let of_user = |user: Option<u32>| user.map_or(Self::Unknown, Self::User);
        match proc.origin(pid) {
            Ok(ProcessOrigin::Here) => of_user(proc.users(pid).ok().and_then(one_user)),
            Ok(ProcessOrigin::Container(container)) => Self::Container(container),
            Ok(ProcessOrigin::UserNamespace { namespace, owner: 0 }) => Self::Container(namespace),
            Ok(ProcessOrigin::UserNamespace { owner, .. }) => of_user(known_user(owner)),
            // The process has ended, or may not be inspected.
            Err(_) => Self::Unknown,
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => f.write_str("the operator"),
            Self::User(user) => write!(f, "user {user}"),
            Self::Container(namespace) => write!(f, "the container of namespace {namespace}"),
            Self::Unknown => f.write_str("users that are not known"),
        }
    }
}
