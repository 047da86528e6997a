//! How much is kept, and how long is waited: each with its reason.

use std::time::Duration;

/// Shortest time between two steps. A stream of 1 GB/s adds 10 MiB in it, and a hundred steps a second cost next to nothing.
pub(crate) const STEP: Duration = Duration::from_millis(10);
/// A step may look at one file's pages for this part of the time until the next look at it, at most.
pub(crate) const LOOK_SHARE: u32 = 20;
/// Less than this that is due of a file waits while the file gets events: a job costs some system calls, however short it is.
pub(crate) const DUE_MIN: u64 = 1 << 20;
/// A file without an event for this long is idle: what is due of it goes, however little, and one with nothing left is forgotten.
pub(crate) const IDLE: Duration = Duration::from_millis(50);
/// A process is reported once it has brought in this much: those that a script starts by the hundred for a moment bring in less.
pub(crate) const REPORTED_BYTES: u64 = 1 << 20;
/// Processes of one user that are reported at a time: more than an administrator reads, and one user does not fill the log.
pub(crate) const REPORTED_PER_USER: usize = 64;
/// Processes of one user other than root that are followed at a time: a quarter of the kernel's table.
pub(crate) const PROCESSES_PER_USER: usize = 4096;
/// Events of a process that is no longer followed may still come for this long.
pub(crate) const UNFOLLOWED_FOR: Duration = Duration::from_secs(1);
/// Users that are distinguished in the report; further ones count together.
pub(crate) const USERS_MAX: usize = 256;
/// Files that are kept at a time: 16 MB of memory if each has a window or two.
pub(crate) const FILES_MAX: usize = 16_384;
/// Files of one user other than root: a quarter, so that one user leaves room for three.
pub(crate) const FILES_PER_USER: usize = FILES_MAX / 4;
/// Windows of 2 MiB in which pages of one user's files are kept: 14 MB of memory. A file that brings its user above this is given up.
pub(crate) const WINDOWS_PER_USER: usize = 65_536;
/// And of all users together.
pub(crate) const WINDOWS_MAX: usize = 4 * WINDOWS_PER_USER;
/// Ranges of one job, so that a file of many scattered pages keeps no other waiting for long.
pub(crate) const RANGES_PER_JOB: usize = 1024;
/// Once a user has this many, in fourths of what is allowed, what is left of the oldest is due at once.
pub(crate) const HURRY_FOURTHS: usize = 3;
/// When there is no room, this part of a user's files goes together, so that looking for the oldest is rare.
pub(crate) const GIVEN_UP_SHARE: usize = 16;
/// Bytes that one job writes of a file beside what it releases, so that no file keeps the others of its device waiting.
pub(crate) const WRITE_PER_JOB: u64 = 4 << 20;
/// What was written to a file goes to the disk after this long, however little it is: long before the kernel's own flusher comes.
pub(crate) const WRITE_AFTER: Duration = Duration::from_secs(1);
/// Processes that are distinguished as users of one file: more share it as libraries are shared, which are not streamed.
pub(crate) const USERS_PER_FILE: usize = 64;
/// After its streams have ended, a file's clean pages are tried for this long: seven attempts.
pub(crate) const CLEAN_AFTER_END: Duration = Duration::from_secs(2);
/// And its pages that are being written: twice what the kernel leaves dirty pages alone for.
pub(crate) const WRITTEN_AFTER_END: Duration = Duration::from_secs(60);
/// A file of ended streams whose job has not even begun after this long is on a device that does not answer.
pub(crate) const HUNG_AFTER: Duration = Duration::from_secs(10);
/// Files of which something stayed that are reported, the most first.
pub(crate) const STAYED_MAX: usize = 64;
/// Programs that are distinguished in the report; a process may call itself anything. Further ones are [`OTHER_PROGRAMS`].
pub(crate) const PROGRAMS_MAX: usize = 256;
/// The name of programs beyond [`PROGRAMS_MAX`].
pub(crate) const OTHER_PROGRAMS: &str = "(others)";
/// Problems that are said: one of each kind for each device.
pub(crate) const PROBLEMS_MAX: usize = 256;
/// A process that read nothing from a disk for this long is none of its readers: some turns of reading and being held.
pub(crate) const READER_FOR: Duration = Duration::from_millis(200);
/// Time between two looks at what others ask of disks while no followed process reads.
pub(crate) const LOOK_IDLE: Duration = Duration::from_millis(50);
