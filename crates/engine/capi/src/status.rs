//! Conversion of library errors to a status, a message and errno. Each error is mapped once, by the
//! caller's possible reactions.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};

use pagekeeper_cache as cache;
use pagekeeper_io as io;
use pagekeeper_kernel as kernel;
use pagekeeper_store as store;
use pagekeeper_wal as wal;

/// `pk_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    Ok = 0,
    Misuse = 1,
    Io = 2,
    Corrupt = 3,
    NotFound = 4,
    Exists = 5,
    Locked = 6,
    Changed = 7,
    TooLarge = 8,
    Full = 9,
    Poisoned = 10,
    ReadOnly = 11,
    TooOld = 12,
    NoMemory = 13,
    Unsupported = 14,
    Rejected = 15,
    End = 16,
    TimedOut = 17,
    Internal = 18,
    Forked = 19,
}

/// The names of the statuses, by number.
const STATUS_NAMES: [&CStr; 20] = [
    c"PK_OK",
    c"PK_MISUSE",
    c"PK_IO",
    c"PK_CORRUPT",
    c"PK_NOT_FOUND",
    c"PK_EXISTS",
    c"PK_LOCKED",
    c"PK_CHANGED",
    c"PK_TOO_LARGE",
    c"PK_FULL",
    c"PK_POISONED",
    c"PK_READ_ONLY",
    c"PK_TOO_OLD",
    c"PK_NO_MEMORY",
    c"PK_UNSUPPORTED",
    c"PK_REJECTED",
    c"PK_END",
    c"PK_TIMED_OUT",
    c"PK_INTERNAL",
    c"PK_FORKED",
];

// An int: C may pass any value.
#[unsafe(no_mangle)]
pub extern "C" fn pk_status_name(status: std::ffi::c_int) -> *const c_char {
    let name = usize::try_from(status).ok().and_then(|status| STATUS_NAMES.get(status).copied());
    name.unwrap_or(c"unknown").as_ptr()
}

/// The reason of a failed call.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) status: Status,
    pub(crate) errno: i32,
    pub(crate) message: Cow<'static, str>,
}

impl CallFailure {
    pub(crate) fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, errno: 0, message: message.into() }
    }

    pub(crate) fn misuse(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Status::Misuse, message)
    }

    fn of(status: Status, errno: Option<i32>, error: &dyn std::error::Error) -> Self {
        Self { status, errno: errno.unwrap_or(0), message: error.to_string().into() }
    }
}

/// Maps an error number of the system.
fn of_errno(errno: i32) -> Status {
    match errno {
        libc::ENOENT | libc::ENOTDIR => Status::NotFound,
        libc::EEXIST => Status::Exists,
        libc::ENOSPC | libc::EDQUOT => Status::Full,
        libc::ENOMEM => Status::NoMemory,
        _ => Status::Io,
    }
}

fn of_io(error: &io::Error) -> Status {
    match error {
        io::Error::Locked { .. } => Status::Locked,
        io::Error::NotARegularFile { .. } | io::Error::Unaligned { .. } => Status::Misuse,
        io::Error::NoDirect { .. } | io::Error::Unavailable { .. } => Status::Unsupported,
        io::Error::Foreign { .. } => Status::Internal,
        io::Error::Forked => Status::Forked,
        _ => error.errno().map_or(Status::Io, of_errno),
    }
}

fn of_cache(error: &cache::Error) -> Status {
    match error {
        cache::Error::Io(error) => of_io(error),
        cache::Error::Closed { .. } | cache::Error::WithinVerifier { .. } => Status::Misuse,
        cache::Error::Cut { .. }
        | cache::Error::Grew { .. }
        | cache::Error::Changed { .. }
        | cache::Error::Replaced { .. } => Status::Changed,
        cache::Error::Rejected { .. } => Status::Rejected,
        cache::Error::NoSuchPage { .. } | cache::Error::PastEnd { .. } => Status::NotFound,
        cache::Error::TooLarge { .. } => Status::TooLarge,
        cache::Error::NoMemory { .. } => Status::NoMemory,
        _ => Status::Internal,
    }
}

fn of_build(error: &cache::BuildError) -> Status {
    match error {
        cache::BuildError::NoMemory { .. } | cache::BuildError::NoHugePages { .. } => Status::NoMemory,
        cache::BuildError::Backend(error) => of_io(error),
        _ => Status::Misuse,
    }
}

fn of_log(error: &wal::Error) -> Status {
    use wal::Error;
    match error {
        Error::Io(error) => of_io(error),
        Error::Corrupt { .. }
        | Error::BrokenControl { .. }
        | Error::MissingFile { .. }
        | Error::WrongSize { .. }
        | Error::BrokenIndex { .. }
        | Error::NotASegment { .. }
        | Error::Unlisted { .. }
        | Error::Damaged { .. }
        | Error::Unfinished { .. } => Status::Corrupt,
        Error::NoLog { .. } | Error::NotInLog { .. } | Error::NotARecord { .. } | Error::NoRecord { .. } => {
            Status::NotFound
        }
        Error::PastEnd { .. } => Status::NotFound,
        Error::NotEmpty { .. } => Status::Exists,
        Error::UnknownVersion { .. } | Error::OldVersion { .. } | Error::UnknownRecord { .. } => {
            Status::Unsupported
        }
        Error::ReadOnly => Status::ReadOnly,
        Error::Setting { .. } | Error::EmptyGroup => Status::Misuse,
        Error::RecordTooLarge { .. } | Error::GroupTooLarge { .. } => Status::TooLarge,
        Error::RingFull { .. } => Status::Full,
        Error::Overtaken { .. } | Error::Purged { .. } | Error::Truncated { .. } => Status::TooOld,
        Error::Poisoned { .. } | Error::Abandoned => Status::Poisoned,
        Error::NoThread { .. } => Status::NoMemory,
        Error::Followed { .. } => Status::Locked,
        _ => Status::Internal,
    }
}

fn of_store(error: &store::Error) -> Status {
    use store::Error;
    match error {
        Error::Io(error) => of_io(error),
        Error::Journal(error) => of_log(error),
        Error::Cache(error) => of_cache(error),
        Error::CacheSetting(error) => of_build(error),
        Error::NoStore { .. }
        | Error::OutOfRange { .. }
        | Error::NotAllocated { .. }
        | Error::NeverWritten { .. } => Status::NotFound,
        Error::NotEmpty { .. } | Error::Exists { .. } => Status::Exists,
        Error::Unfinished { .. }
        | Error::BrokenSuperblock { .. }
        | Error::LostSuperblock { .. }
        | Error::LostFile { .. }
        | Error::CutOff { .. }
        | Error::Corrupt { .. }
        | Error::Damaged { .. } => Status::Corrupt,
        Error::UnknownVersion { .. } | Error::OldVersion { .. } | Error::NotAtomic { .. } => {
            Status::Unsupported
        }
        Error::ReadOnly => Status::ReadOnly,
        Error::OtherPageSize { .. }
        | Error::Setting { .. }
        | Error::PayloadSize { .. }
        | Error::MetadataTooLong { .. }
        | Error::OwnTransaction => Status::Misuse,
        Error::WriteTimeout => Status::TimedOut,
        Error::TransactionTooLarge { .. } => Status::TooLarge,
        Error::SnapshotTooOld => Status::TooOld,
        Error::Poisoned { .. } => Status::Poisoned,
        _ => Status::Internal,
    }
}

impl From<io::Error> for CallFailure {
    fn from(error: io::Error) -> Self {
        Self::of(of_io(&error), error.errno(), &error)
    }
}

impl From<cache::Error> for CallFailure {
    fn from(error: cache::Error) -> Self {
        let errno = match &error {
            cache::Error::Io(error) => error.errno(),
            cache::Error::NoMemory { errno, .. } => Some(*errno),
            _ => None,
        };
        Self::of(of_cache(&error), errno, &error)
    }
}

impl From<cache::BuildError> for CallFailure {
    fn from(error: cache::BuildError) -> Self {
        let errno = match &error {
            cache::BuildError::NoMemory { errno } | cache::BuildError::NoHugePages { errno, .. } => {
                Some(*errno)
            }
            cache::BuildError::Backend(error) => error.errno(),
            _ => None,
        };
        Self::of(of_build(&error), errno, &error)
    }
}

impl From<wal::Error> for CallFailure {
    fn from(error: wal::Error) -> Self {
        let errno = match &error {
            wal::Error::Io(error) => error.errno(),
            _ => None,
        };
        Self::of(of_log(&error), errno, &error)
    }
}

impl From<store::Error> for CallFailure {
    fn from(error: store::Error) -> Self {
        Self::of(of_store(&error), error.errno(), &error)
    }
}

impl From<pagekeeper_tree::TreeError> for CallFailure {
    fn from(error: pagekeeper_tree::TreeError) -> Self {
        use pagekeeper_tree::TreeError;
        let status = match error {
            // A page that refers to this one is not a tree's. This must not look like a missing
            // key.
            TreeError::Store(
                store::Error::OutOfRange { .. }
                | store::Error::NotAllocated { .. }
                | store::Error::NeverWritten { .. },
            )
            | TreeError::NotATree { .. } => Status::Corrupt,
            TreeError::Store(error) => return error.into(),
            TreeError::KeyTooLong { .. } | TreeError::ValueTooLong { .. } => Status::TooLarge,
            TreeError::NotInOrder { .. } => Status::Misuse,
            _ => Status::Internal,
        };
        Self::of(status, None, &error)
    }
}

impl From<kernel::Error> for CallFailure {
    fn from(error: kernel::Error) -> Self {
        let status = match &error {
            kernel::Error::Unsupported { .. } => Status::Unsupported,
            kernel::Error::NotRegular { .. } | kernel::Error::SymbolicLink { .. } => Status::Misuse,
            _ => error.errno().map_or(Status::Io, of_errno),
        };
        Self::of(status, error.errno(), &error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_under_their_numbers() {
        for (number, name) in
            [(Status::Ok, "PK_OK"), (Status::Full, "PK_FULL"), (Status::Forked, "PK_FORKED")]
        {
            assert_eq!(STATUS_NAMES[number as usize].to_str(), Ok(name));
        }
    }

    #[test]
    fn a_full_disk_is_called_so_by_all() {
        let full = || io::Error::Call { call: "write", path: "/file".into(), errno: libc::ENOSPC };
        let failures: [CallFailure; 3] =
            [full().into(), wal::Error::from(full()).into(), store::Error::from(full()).into()];
        for failure in failures {
            assert_eq!((failure.status, failure.errno), (Status::Full, libc::ENOSPC));
            assert!(failure.message.contains("/file"), "{}", failure.message);
        }
    }
}
