//! Limits on memory and waiting times, each with its reason.

use std::time::Duration;

/// Shortest time between two steps. A stream of 1 GB/s adds 10 MiB in that time, and a hundred
/// steps a second cost next to nothing.
pub(crate) const STEP_INTERVAL: Duration = Duration::from_millis(10);
/// The same if a device has nothing more to write. Many small files are still written in batches,
/// and a disk of 1 GB/s rests for 2 MB at most.
pub(crate) const DRAINED_STEP_INTERVAL: Duration = Duration::from_millis(2);
/// Examining one file's pages takes at most 1/`LOOK_COST_DIVISOR` of the time until the next
/// examination.
pub(crate) const LOOK_COST_DIVISOR: u32 = 20;
/// Below this, due pages of a file wait while the file gets events: a job costs some system calls,
/// however short it is.
pub(crate) const DUE_BYTES_MIN: u64 = 1 << 20;
/// A file without an event for this long is idle: its due pages go, however few, and a file with
/// none left is forgotten.
pub(crate) const FILE_IDLE_AFTER: Duration = Duration::from_millis(50);
/// A process is reported once it has brought in this much. Short-lived processes that a script
/// starts by the hundred bring in less.
pub(crate) const REPORTED_BYTES_MIN: u64 = 1 << 20;
/// Maximum number of processes of one user that are reported at a time: more than an administrator
/// reads, and one user does not fill the log.
pub(crate) const REPORTED_PER_USER: usize = 64;
/// Maximum number of processes of one user other than root that are followed at a time: a quarter
/// of the kernel's table.
pub(crate) const PROCESSES_PER_USER: usize = 4096;
/// Events of a process that is no longer followed may still come for this long.
pub(crate) const LATE_EVENTS_TIME: Duration = Duration::from_secs(1);
/// Maximum number of users that are listed in the report; all others count together.
pub(crate) const USERS_MAX: usize = 256;
/// Maximum number of files that are kept at a time: 16 MB of memory if each has a window or two.
pub(crate) const FILES_MAX: usize = 16_384;
/// Maximum number of files of one user other than root: a quarter, so that one user leaves room for
/// three.
pub(crate) const FILES_PER_USER: usize = FILES_MAX / 4;
/// Maximum windows of 2 MiB in which pages of one user's files are kept: 14 MB of memory. A file
/// that brings its user above this is given up.
pub(crate) const WINDOWS_PER_USER: usize = 65_536;
/// The same for all users together.
pub(crate) const WINDOWS_MAX: usize = 4 * WINDOWS_PER_USER;
/// Maximum number of ranges of one job, so that a file of many scattered pages keeps no other
/// waiting for long.
pub(crate) const RANGES_PER_JOB: usize = 1024;
/// Once a user has this many fourths of their limit of files, the remaining pages of the oldest
/// files are due at once.
pub(crate) const HURRY_FOURTHS: usize = 3;
/// If there is no room, 1/`GIVEN_UP_DIVISOR` of a user's files go together, so that the search for
/// the oldest is rare.
pub(crate) const GIVEN_UP_DIVISOR: usize = 16;
/// One job writes at most 1/`JOB_PART` of the bytes that may be unwritten, in addition to those it
/// releases, so that no file keeps the others of its device waiting.
pub(crate) const JOB_PART: u64 = 2;
/// Written pages of a file go to the disk after this long, however few: long before the kernel's
/// own flusher.
pub(crate) const WRITE_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of processes that are distinguished as users of one file. Files with more users
/// are shared like libraries, which are not streamed.
pub(crate) const USERS_PER_FILE: usize = 64;
/// After a file's streams have ended, releasing its clean pages is attempted for this long: seven
/// attempts.
pub(crate) const CLEAN_RELEASE_MAX: Duration = Duration::from_secs(2);
/// The same for its pages that are being written: twice the time that the kernel leaves dirty pages
/// alone.
pub(crate) const WRITTEN_RELEASE_MAX: Duration = Duration::from_secs(60);
/// If the job of a file of ended streams has not even begun after this long, its device does not
/// answer.
pub(crate) const HUNG_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of files with pages that stayed that are reported, largest first.
pub(crate) const STAYED_FILES_MAX: usize = 64;
/// Maximum number of programs that are listed in the report, since a process may choose any name.
/// All others are [`OTHER_PROGRAMS`].
pub(crate) const PROGRAMS_MAX: usize = 256;
/// The name of programs beyond [`PROGRAMS_MAX`].
pub(crate) const OTHER_PROGRAMS: &str = "(others)";
/// Maximum number of problems that are reported: one of each kind per device.
pub(crate) const PROBLEMS_MAX: usize = 256;
/// A process that read nothing from a disk for this long does not count as its reader: some turns
/// of reading and being held.
pub(crate) const READER_IDLE_MAX: Duration = Duration::from_millis(200);
/// Time between two looks at other processes' disk requests while no followed process reads.
pub(crate) const LOOK_IDLE: Duration = Duration::from_millis(50);
