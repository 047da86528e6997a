//! Predicts which descriptors a process's new logs have, so that they are found without listing all
//! of its descriptors.
//!
//! A server that rotates a log closes one descriptor and opens another, which mostly gets the same
//! number, or that of an earlier log. So when files came, or a descriptor was closed or became
//! another file, the numbers where logs were are checked first. A check takes some microseconds;
//! listing a server with hundreds of descriptors takes a millisecond.
//!
//! A check that counts as a listing and misses a log could get pages released in front of a
//! follower, or at the writer. Therefore a check counts only where it shows what a listing would:
//! 1. All descriptors known to be open were read at this tick, so none that counts as a log's is
//!    another file by now.
//! 2. The last file of each log in which files came is open for writing. Otherwise its writer is
//!    elsewhere.
//! 3. The process has as many descriptors *beside* those of logs as at the last full listing
//!    ([`ProcRoot::fd_count`]), and at that listing each descriptor that looked like a log's was
//!    one. A process that opened a log at an unchecked number, such as an old log at a rotation,
//!    has one descriptor more, and all are listed. The count was taken before the listing, so
//!    descriptors that came in between are one more too.
//! 4. The kernel reports the number of descriptors (since Linux 6.2). Otherwise all are listed.
//!
//! Not covered: a follower that opens a log just when as many other descriptors are closed as it
//! opens beside it. The next full listing shows it. A check never postpones that listing, and
//! neither does one that comes while nothing rotates. A check is not a listing: whatever waits for
//! a listing ([`Schedule::listed`](super::Schedule::listed), claims, removed logs) keeps waiting.

use std::os::fd::RawFd;
use std::path::Path;

use pagekeeper_kernel::process::{FileSelection, ProcRoot};
use pagekeeper_policy::FileId;

use super::lister::descriptor;
use super::poll::PollResult;
use super::schedule::Extent;
use crate::descriptor::Descriptor;
use crate::known_names::KnownNames;

/// Maximum number of descriptor numbers that are checked.
const NUMBERS_MAX: usize = 16;
/// Maximum number of files that are expected; with more, all descriptors are listed.
const EXPECTED_FILES_MAX: usize = 64;

/// The likely descriptor numbers of one process. See the module.
#[derive(Debug, Default)]
pub(super) struct LogFdPredictor {
    /// The last numbers at which it had logs open, and has none now as far as is known.
    numbers: Vec<RawFd>,
    /// The number of its descriptors when the last full listing began.
    count: Option<u64>,
    /// The number of these that are not of logs, if every listed descriptor that looked like a
    /// log's was known.
    beside: Option<u64>,
    expected: Vec<FileId>,
    /// Whether all known descriptors were read at this tick.
    all_read: bool,
}

impl LogFdPredictor {
    /// Records that a full listing begins.
    pub(super) fn begin_all(&mut self) {
        self.expected.clear();
    }

    /// Records that a full listing ended; [`Self::settled`] is given its result.
    pub(super) fn listed(&mut self, count: Option<u64>) {
        self.count = count;
        self.beside = None;
    }

    /// Records the result of a full listing: how many descriptors looked like a log's, which of
    /// them are known, and the numbers of those known before.
    pub(super) fn settled(
        &mut self,
        before: impl Iterator<Item = RawFd>,
        known: &[Descriptor],
        listed: usize,
    ) {
        let is_known = |number: &RawFd| known.iter().any(|known| known.fd == *number);
        for number in before.filter(|number| !is_known(number)) {
            self.remember(number);
        }
        self.numbers.retain(|number| !is_known(number));
        let count = self.count.filter(|_| known.len() == listed);
        self.beside = count.and_then(|count| count.checked_sub(known.len() as u64));
    }

    /// Records the result of reading known descriptors again.
    pub(super) fn polled(&mut self, polled: &PollResult) {
        self.all_read = polled.all;
        for number in &polled.lost {
            self.remember(*number);
        }
    }

    fn remember(&mut self, number: RawFd) {
        self.numbers.retain(|other| *other != number);
        if self.numbers.len() >= NUMBERS_MAX {
            self.numbers.remove(0);
        }
        self.numbers.push(number);
    }

    /// Expects new files, each the last of its log. Returns the extent of the listing that this
    /// needs.
    pub(super) fn expect(&mut self, files: impl Iterator<Item = FileId>) -> Extent {
        self.expected.extend(files.take(EXPECTED_FILES_MAX + 1));
        if self.expected.len() <= EXPECTED_FILES_MAX {
            return Extent::Changes;
        }
        self.expected.clear();
        Extent::All
    }

    /// Checks the likely numbers, and adds the logs found there to `known`. Returns whether that
    /// shows what a listing would.
    pub(super) fn check(
        &mut self,
        known: &mut Vec<Descriptor>,
        pid: u32,
        proc: &ProcRoot,
        names: &KnownNames,
        count: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let Some(beside) = self.beside.filter(|_| self.all_read) else { return false };
        let wanted = |path: &Path| names.has(path);
        let selection = FileSelection { name: Some(&wanted), ..FileSelection::default() };
        self.numbers.retain(|number| {
            let file = proc.selected_file_at(pid, *number, &selection).filter(|file| !file.deleted);
            let found = file.and_then(|file| descriptor(pid, &file, names));
            let is_found = found.is_some();
            known.extend(found);
            !is_found
        });
        let writes = |file: &FileId| {
            let mut of_file = known.iter().filter(|known| known.file == *file);
            of_file.any(Descriptor::writes)
        };
        // Counted after the check: a descriptor that was opened meanwhile is one more.
        let is_explained = self.expected.iter().all(writes)
            && count().is_some_and(|count| count == beside + known.len() as u64);
        if is_explained {
            self.expected.clear();
        }
        is_explained
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use pagekeeper_catalog::{Profile, find_profile};

    use super::super::Descriptors;
    use super::*;
    use crate::budget::Turn;
    use crate::directory::{Directories, Directory};
    use pagekeeper_catalog::ownership::FileOwnership;
    use pagekeeper_policy::turns::Slice;

    const PID: u32 = 7;

    /// A server in a tree of plain files, with its logs, and what is known of it.
    struct Server {
        tree: tempfile::TempDir,
        directories: Directories,
        names: KnownNames,
        descriptors: Descriptors,
        /// The number of its descriptors, if the kernel reports it.
        count: Option<u64>,
    }

    impl Server {
        /// Makes a server that writes its first log at descriptor 30 and has 100 other descriptors.
        fn new() -> Self {
            let tree = tempfile::tempdir().unwrap();
            let data = tree.path().join("data");
            for directory in ["data", "7/fd", "7/fdinfo"] {
                std::fs::create_dir_all(tree.path().join(directory)).unwrap();
            }
            symlink("/", tree.path().join("7/root")).unwrap();
            std::fs::write(data.join("binlog.index"), "").unwrap();
            let profile = Arc::new(find_profile(&Profile::built_in(), "mariadb").unwrap().clone());
            let directory = Directory::new(data, None, None, profile, FileOwnership::Operator);
            let descriptors = Descriptors::new(Instant::now());
            let (names, count) = (KnownNames::default(), Some(100));
            let mut server = Self { tree, directories: vec![Box::new(directory)], names, descriptors, count };
            server.make(1);
            server.open(30, 1, true);
            server.list_all();
            server
        }

        fn proc(&self) -> ProcRoot {
            ProcRoot::at(self.tree.path())
        }

        fn log(&self, number: u32) -> PathBuf {
            self.tree.path().join(format!("data/binlog.{number:06}"))
        }

        fn make(&mut self, number: u32) {
            std::fs::write(self.log(number), "x").unwrap();
            let (directory, endless) = (&mut self.directories[0], Duration::from_secs(3600));
            directory.stale = true;
            assert!(directory.begin_listing(usize::MAX, Instant::now() + endless));
            let turn = Turn::begin(Slice { cpu: endless, wall: endless });
            let fd = std::fs::File::open(&directory.path).unwrap();
            let grown = directory.list(fd.as_fd(), &turn).unwrap().grown;
            assert_eq!(grown.len(), 1, "it has one log");
            self.descriptors.expect(grown.into_iter());
            self.names.update(&self.directories);
        }

        fn open(&mut self, fd: RawFd, number: u32, writes: bool) {
            let (path, process) = (self.log(number), self.tree.path().join("7"));
            let inode = std::fs::metadata(&path).unwrap().ino();
            symlink(path, process.join(format!("fd/{fd}"))).unwrap();
            let flags = u32::from(writes);
            let info = format!("pos:\t0\nflags:\t0{flags}\nmnt_id:\t9\nino:\t{inode}\n");
            std::fs::write(process.join(format!("fdinfo/{fd}")), info).unwrap();
            self.count = self.count.map(|count| count + 1);
        }

        fn close(&mut self, fd: RawFd) {
            for of in ["fd", "fdinfo"] {
                std::fs::remove_file(self.tree.path().join(format!("7/{of}/{fd}"))).unwrap();
            }
            self.count = self.count.map(|count| count - 1);
        }

        fn list_all(&mut self) {
            let listed = self.proc().open_files(PID).unwrap();
            self.descriptors.predictor.begin_all();
            self.descriptors.listed(Duration::ZERO, self.count);
            self.descriptors.settle(PID, &listed, &self.names);
        }

        /// Returns whether a check shows all.
        fn check(&mut self) -> bool {
            let proc = self.proc();
            self.descriptors.poll(&proc, usize::MAX);
            self.check_alone()
        }

        fn check_alone(&mut self) -> bool {
            let (proc, count) = (self.proc(), self.count);
            let Descriptors { known, predictor, .. } = &mut self.descriptors;
            predictor.check(known, PID, &proc, &self.names, || count)
        }

        /// Returns the descriptors at which logs are known to be open, with the numbers of these
        /// logs.
        fn known(&self) -> Vec<(RawFd, u64)> {
            let entries = &self.directories[0].entries;
            let number = |known: &Descriptor| {
                entries.values().find(|entry| entry.id == known.file).map_or(0, |entry| entry.sequence)
            };
            let mut known: Vec<_> =
                self.descriptors.known.iter().map(|known| (known.fd, number(known))).collect();
            known.sort_unstable();
            known
        }

        fn rotate(&mut self, to: u32, from: RawFd, at: RawFd) {
            self.close(from);
            self.make(to);
            self.open(at, to, true);
        }
    }

    #[test]
    fn a_new_log_is_found_at_the_number_of_the_one_before() {
        let mut server = Server::new();
        for number in 2..9 {
            server.rotate(number, 30, 30);
            assert!(server.check(), "{number}");
            assert_eq!(server.known(), [(30, number.into())]);
        }
    }

    #[test]
    fn a_server_that_opens_before_it_closes_alternates_two_numbers() {
        let mut server = Server::new();
        server.make(2);
        server.open(31, 2, true);
        server.close(30);
        assert!(!server.check(), "it was never seen at 31");
        server.list_all();
        assert_eq!(server.known(), [(31, 2)]);
        for (number, fd) in [(3, 30), (4, 31), (5, 30)] {
            server.make(number);
            server.open(fd, number, true);
            server.close(61 - fd);
            assert!(server.check(), "{number}");
            assert_eq!(server.known(), [(fd, number.into())]);
        }
    }

    #[test]
    fn a_server_that_opens_logs_at_new_numbers_is_listed_each_time() {
        let mut server = Server::new();
        for number in 2..20 {
            let at = |number: u32| i32::try_from(29 + number).unwrap();
            server.rotate(number, at(number - 1), at(number));
            assert!(!server.check(), "{number}");
            server.list_all();
            assert_eq!(server.known(), [(at(number), number.into())]);
        }
        assert_eq!(server.descriptors.predictor.numbers.len(), NUMBERS_MAX);
    }

    #[test]
    fn a_follower_that_opens_an_old_log_at_a_rotation_is_not_missed() {
        // The follower is anywhere, or where the writer was.
        for (follower, writer) in [(77, 30), (30, 77)] {
            let mut server = Server::new();
            server.rotate(2, 30, 30);
            assert!(server.check());
            server.close(30);
            server.make(3);
            server.open(follower, 1, false);
            server.open(writer, 3, true);
            assert!(!server.check(), "{follower}");
            server.list_all();
            let mut known = [(follower, 1), (writer, 3)];
            known.sort_unstable();
            assert_eq!(server.known(), known);
        }
    }

    #[test]
    fn a_follower_that_moves_to_the_next_log_is_found_at_its_number() {
        let mut server = Server::new();
        server.open(40, 1, false);
        server.list_all();
        server.rotate(2, 30, 30);
        assert!(server.check());
        assert_eq!(server.known(), [(30, 2), (40, 1)]);
        server.close(40);
        assert!(server.check(), "it has none open");
        assert_eq!(server.known(), [(30, 2)]);
        server.open(40, 2, false);
        assert!(server.check());
        assert_eq!(server.known(), [(30, 2), (40, 2)]);
        // At another number it is not found, but one descriptor more is open than is known.
        server.close(40);
        assert!(server.check());
        server.open(41, 2, false);
        assert!(!server.check());
    }

    #[test]
    fn a_check_counts_only_if_all_other_descriptors_are_known() {
        let rotated = || {
            let mut server = Server::new();
            server.rotate(2, 30, 30);
            server
        };
        let mut without_count = rotated();
        without_count.count = None;
        assert!(!without_count.check());

        let mut not_read = rotated();
        let proc = not_read.proc();
        not_read.descriptors.poll(&proc, 0);
        assert!(!not_read.check_alone(), "of very many descriptors not all are read in a tick");

        let mut written_elsewhere = rotated();
        written_elsewhere.close(30);
        written_elsewhere.open(30, 2, false);
        assert!(!written_elsewhere.check());

        // Descriptors are listed between the opening of a log and the listing of its directory.
        let mut unknown = Server::new();
        std::fs::write(unknown.log(2), "x").unwrap();
        unknown.open(40, 2, false);
        unknown.list_all();
        unknown.make(2);
        assert_eq!(unknown.known(), [(30, 1)]);
        unknown.rotate(3, 30, 30);
        assert!(!unknown.check());
        unknown.list_all();
        assert_eq!(unknown.known(), [(30, 3), (40, 2)]);
    }

    #[test]
    fn very_many_new_logs_are_not_predicted() {
        let mut predictor = LogFdPredictor::default();
        assert_eq!(predictor.expect((0..64).map(FileId)), Extent::Changes);
        assert_eq!(predictor.expect((0..1_000_000).map(FileId)), Extent::All);
        assert!(predictor.expected.is_empty() && predictor.expected.capacity() < 1000);
    }
}
