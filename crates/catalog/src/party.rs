//! Whose part of what there is for all a process counts to: so that who starts many, under ever new ids too, makes its own
//! shares small and nobody else's.

use std::fmt;

use pagekeeper_kernel::process::{Origin, ProcRoot};

use crate::claim::{known_user, one_user};

/// Whose part of what there is for all of them something counts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The operator, who named it or a directory above it.
    Operator,
    /// The one user that a process is, or who made the user namespace that it is in.
    User(u32),
    /// A container or a user namespace of root's making, whoever a process is in it: who is root there is any of its users.
    Container(u64),
    /// All processes that are not known to be of one user.
    Unknown,
}

impl Party {
    /// Whose part a process counts to.
    pub fn of(proc: &ProcRoot, pid: u32) -> Self {
        let of_user = |user: Option<u32>| user.map_or(Self::Unknown, Self::User);
        match proc.origin(pid) {
            Ok(Origin::Here) => of_user(proc.users(pid).ok().and_then(one_user)),
            Ok(Origin::Container(container)) => Self::Container(container),
            Ok(Origin::UserNamespace { namespace, owner: 0 }) => Self::Container(namespace),
            Ok(Origin::UserNamespace { owner, .. }) => of_user(known_user(owner)),
            // It has ended, or may not be seen.
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
