//! Users who asked for a process to be followed, and the files that may be released for them.
//!
//! Invariant: nothing of a file is released for a user who may not read it by its owner, group and
//! mode. If these do not decide, as with an access control list, nothing is released either.

use std::collections::HashMap;
use std::sync::Arc;

use pagekeeper_kernel::InspectedFile;
use pagekeeper_policy::stream_pages::StreamTotals;

use crate::processes::ProcessId;

/// A user for whom a process is followed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requester {
    /// The user's number.
    pub user: u32,
    /// The user's groups.
    pub groups: Vec<u32>,
}

impl Requester {
    /// Returns whether the user may read a file. Checks the very inode that is open, so that no
    /// name can be exchanged in between.
    pub(crate) fn may_read(&self, file: &InspectedFile) -> bool {
        const READ: u32 = 0o4;
        const ACCESS_LIST: &str = "system.posix_acl_access";
        if self.user == 0 {
            return true;
        }
        let Ok(stat) = rustix::fs::fstat(file.file()) else { return false };
        if stat.st_uid == self.user {
            return stat.st_mode & (READ << 6) != 0;
        }
        let list = rustix::fs::fgetxattr(file.file(), ACCESS_LIST, &mut [0; 0]);
        let has_no_list = matches!(list, Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP));
        let class = if self.groups.contains(&stat.st_gid) { READ << 3 } else { READ };
        has_no_list && stat.st_mode & class != 0
    }
}

/// The reason why a process is followed.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// The configuration of this process.
    Configured,
    /// A user's request for it, or for one of its ancestors.
    Asked(RequestId, Arc<Requester>),
    /// Unknown: the event of its beginning was lost.
    Unknown,
}

/// The users on whose behalf pages of a file are released.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beneficiaries {
    users: Vec<Arc<Requester>>,
    is_unknown: bool,
}

impl Beneficiaries {
    /// Adds the user for whom a process is followed. Returns whether that is new.
    pub(crate) fn add(&mut self, origin: &Origin) -> bool {
        match origin {
            Origin::Configured => false,
            Origin::Asked(_, user) if self.users.contains(user) => false,
            Origin::Asked(_, user) => {
                self.users.push(Arc::clone(user));
                true
            }
            Origin::Unknown => !std::mem::replace(&mut self.is_unknown, true),
        }
    }

    /// Returns whether each of them may read the file.
    pub(crate) fn may_read(&self, file: &InspectedFile) -> bool {
        !self.is_unknown && self.users.iter().all(|user| user.may_read(file))
    }
}

/// The id of a user's request; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

/// The fate of the pages that a request's processes brought in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestReport {
    /// The totals of all its processes.
    pub totals: StreamTotals,
    /// Processes that are running and followed, not counting the one that was asked for.
    pub running: usize,
    /// Files of which pages may yet be released.
    pub files: usize,
}

/// The requests whose totals are kept.
#[derive(Default)]
pub(crate) struct Requests {
    all: HashMap<RequestId, Request>,
    made: u64,
}

/// A request, with the totals of its processes that are no longer kept.
pub(crate) struct Request {
    pub(crate) root: ProcessId,
    pub(crate) totals: StreamTotals,
}

impl Requests {
    /// Returns whether any request was ever made: then a process of unknown origin may be a user's.
    pub(crate) fn were_made(&self) -> bool {
        self.made > 0
    }

    pub(crate) fn next_id(&mut self) -> RequestId {
        self.made += 1;
        RequestId(self.made)
    }

    pub(crate) fn insert(&mut self, id: RequestId, root: ProcessId) {
        self.all.insert(id, Request { root, totals: StreamTotals::default() });
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&Request> {
        self.all.get(&id)
    }

    /// Adds the totals of a process that is no longer kept.
    pub(crate) fn add(&mut self, origin: &Origin, totals: StreamTotals) {
        let Origin::Asked(id, _) = origin else { return };
        if let Some(request) = self.all.get_mut(id) {
            crate::report::add(&mut request.totals, totals);
        }
    }

    /// Forgets the totals. The processes are still followed.
    pub(crate) fn forget(&mut self, id: RequestId) {
        self.all.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::process::Command;

    use pagekeeper_kernel::Links;
    use pagekeeper_testing::skip;

    use super::*;

    /// Makes a file of a user and group that only its mode gives access to.
    fn file(owner: u32, group: u32, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        chown(file.path(), Some(owner), Some(group)).unwrap();
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
        file
    }

    fn may_read(user: &Requester, file: &tempfile::NamedTempFile) -> bool {
        user.may_read(&InspectedFile::open(file.path(), Links::Refuse).unwrap())
    }

    /// Returns the kernel's answer.
    fn can_open(user: &Requester, file: &tempfile::NamedTempFile) -> bool {
        let groups: Vec<String> = user.groups.iter().map(ToString::to_string).collect();
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid", &user.user.to_string(), "--regid", &groups[0]]);
        setpriv.args(["--groups", &groups.join(",")]).args(["head", "-c1"]).arg(file.path());
        setpriv.output().unwrap().status.success()
    }

    #[test]
    fn users_may_read_files_that_the_kernel_lets_them_open() {
        if !rustix::process::geteuid().is_root() {
            return skip("files of others need root.");
        }
        let user = Requester { user: 1001, groups: vec![1002, 1003] };
        for (owner, group) in [(1001, 1), (1, 1002), (1, 1003), (1, 1)] {
            for mode in [0o000, 0o004, 0o040, 0o400, 0o044, 0o404, 0o440, 0o444, 0o222, 0o111] {
                let file = file(owner, group, mode);
                let expected = can_open(&user, &file);
                assert_eq!(may_read(&user, &file), expected, "{owner}:{group} {mode:o}");
            }
        }
        assert!(may_read(&Requester { user: 0, groups: vec![0] }, &file(1, 1, 0)));
    }

    #[test]
    fn only_the_owner_of_a_file_with_an_acl_has_pages_released() {
        if !rustix::process::geteuid().is_root() {
            return skip("files of others need root.");
        }
        let file = file(1001, 1002, 0o644);
        // Version 2: the owner, user 1003 without permissions, the group, the mask, and the others,
        // who may read.
        let entry = |tag: u16, permission: u16, id: u32| {
            [&tag.to_le_bytes()[..], &permission.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let none = u32::MAX;
        let list = [
            2_u32.to_le_bytes().to_vec(),
            [(1, 6, none), (2, 0, 1003), (4, 4, none), (0x10, 4, none), (0x20, 4, none)]
                .map(|(tag, permission, id)| entry(tag, permission, id))
                .concat(),
        ]
        .concat();
        let set = rustix::fs::setxattr(
            file.path(),
            "system.posix_acl_access",
            &list,
            rustix::fs::XattrFlags::empty(),
        );
        if set.is_err() {
            return skip("the temporary directory's file system has no access control lists.");
        }
        let user = |user, group| Requester { user, groups: vec![group] };
        assert!(!can_open(&user(1003, 1003), &file), "the access control list decides, not the mode");
        assert!(!may_read(&user(1003, 1003), &file));
        assert!(!may_read(&user(1004, 1002), &file), "the mode does not decide");
        assert!(may_read(&user(1001, 1), &file));
    }
}
