//! Where a process is likely to have its new logs open, found without a listing of all that it has open.
//!
//! A server that rotates a log closes one descriptor and opens another, which mostly gets the number of the first, or of one
//! before it. So before all are listed because files came, or because a descriptor is closed or became another file, the numbers
//! are looked at where logs were. A check takes some microseconds, a listing of a server with hundreds of descriptors a millisecond.
//!
//! What must not happen is that a log is released in front of a follower, or at its writer, because a check was taken for a listing
//! and missed one. A check counts only where it shows what a listing would:
//! 1. All that is known to be open was read at this tick: nothing that is counted as a log's is another's by now.
//! 2. The last of each log in which files came is open for writing. Else its writer is elsewhere.
//! 3. The process has as many descriptors *beside* those of logs as when all were listed ([`ProcRoot::fd_count`]), and of what looked
//!    like a log then none was another file. Whoever has opened a log where it was not looked for, an old one at a rotation for
//!    instance, makes one more, and all are listed. They were counted before they were listed: what came in between is one more too.
//! 4. The kernel says how many there are (since Linux 6.2). Without, all are listed.
//!
//! A follower that opens a log just when as many other descriptors are closed as it opens beside that is not seen by the count. It is
//! seen by the next listing of all, which a check never puts off, as one is that comes while nothing rotates. And a check is no
//! listing: what waits for one ([`Schedule::listed`](super::Schedule::listed), claims, removed logs) waits on.

use std::os::fd::RawFd;
use std::path::Path;

use pagekeeper_kernel::process::{Access, ProcRoot, Selection};
use pagekeeper_policy::FileId;

use super::poll::Polled;
use super::{Descriptor, Extent, descriptor};
use crate::known_names::KnownNames;

/// Numbers that are looked at.
const NUMBERS: usize = 16;
/// Files that are expected, at most; of more all are listed.
const EXPECTED: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Likely {
    /// Where it had logs open and has not now, as far as is known: the last ones.
    numbers: Vec<RawFd>,
    /// How many descriptors it had when the last listing of all began.
    count: Option<u64>,
    /// How many of these are beside those of logs, if what was listed was all known.
    beside: Option<u64>,
    expected: Vec<FileId>,
    /// Whether all that is known was read at this tick.
    all_read: bool,
}

impl Likely {
    /// Takes note that all are going to be listed.
    pub(super) fn begin_all(&mut self) {
        self.expected.clear();
    }

    /// Takes in that all were listed; what that shows is not known yet.
    pub(super) fn listed(&mut self, count: Option<u64>) {
        self.count = count;
        self.beside = None;
    }

    /// Takes in that so many were listed that look like logs, and which of them are known; and the numbers of those that were
    /// known before.
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

    /// Takes in what was read again.
    pub(super) fn polled(&mut self, polled: &Polled) {
        self.all_read = polled.all;
        for number in &polled.lost {
            self.remember(*number);
        }
    }

    fn remember(&mut self, number: RawFd) {
        self.numbers.retain(|other| *other != number);
        if self.numbers.len() >= NUMBERS {
            self.numbers.remove(0);
        }
        self.numbers.push(number);
    }

    /// Takes note of new files, each the last of its log; what is to be listed then.
    pub(super) fn expect(&mut self, files: impl Iterator<Item = FileId>) -> Extent {
        self.expected.extend(files.take(EXPECTED + 1));
        if self.expected.len() <= EXPECTED {
            return Extent::Changes;
        }
        self.expected.clear();
        Extent::All
    }

    /// Looks at the likely numbers, and adds what is found there to what is known; whether that is what a listing would show.
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
        let selection = Selection { name: Some(&wanted), ..Selection::default() };
        self.numbers.retain(|number| {
            let file = proc.selected_file_at(pid, *number, &selection).filter(|file| !file.deleted);
            let found = file.and_then(|file| descriptor(pid, &file, names));
            let is_found = found.is_some();
            known.extend(found);
            !is_found
        });
        let writes = |file: &FileId| {
            let mut of_file = known.iter().filter(|known| known.file == *file);
            of_file.any(|known| matches!(known.access, Access::WriteOnly | Access::ReadWrite))
        };
        // Counted after the check: what was opened meanwhile is one more.
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
    use crate::budget::{Slice, Turn};
    use crate::directory::{Directories, Directory, Ids};
    use crate::ownership::Right;

    const PID: u32 = 7;

    /// A server in a tree of plain files, with its logs, and what is known of it.
    struct Server {
        tree: tempfile::TempDir,
        directories: Directories,
        names: KnownNames,
        ids: Ids,
        descriptors: Descriptors,
        /// How many descriptors it has, if the kernel says it.
        count: Option<u64>,
    }

    impl Server {
        /// One that writes its first log, at descriptor 30, and has 100 others.
        fn new() -> Self {
            let tree = tempfile::tempdir().unwrap();
            let data = tree.path().join("data");
            for directory in ["data", "7/fd", "7/fdinfo"] {
                std::fs::create_dir_all(tree.path().join(directory)).unwrap();
            }
            symlink("/", tree.path().join("7/root")).unwrap();
            std::fs::write(data.join("binlog.index"), "").unwrap();
            let profile = Arc::new(find_profile(&Profile::built_in(), "mariadb").unwrap().clone());
            let directory = Directory::new(data, None, None, profile, Right::Operator);
            let descriptors = Descriptors::new(Instant::now());
            let (names, ids, count) = (KnownNames::default(), Ids::default(), Some(100));
            let mut server =
                Self { tree, directories: vec![Box::new(directory)], names, ids, descriptors, count };
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
            let grown = directory.list(fd.as_fd(), &self.ids, &turn).unwrap().grown;
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
            self.descriptors.likely.begin_all();
            self.descriptors.listed(Duration::ZERO, self.count);
            self.descriptors.settle(PID, &listed, &self.names);
        }

        /// Whether a check shows all.
        fn check(&mut self) -> bool {
            let proc = self.proc();
            self.descriptors.poll(&proc, usize::MAX);
            self.check_alone()
        }

        fn check_alone(&mut self) -> bool {
            let (proc, count) = (self.proc(), self.count);
            let Descriptors { known, likely, .. } = &mut self.descriptors;
            likely.check(known, PID, &proc, &self.names, || count)
        }

        /// At which descriptors logs are known to be open, and which.
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
    fn a_new_log_is_found_where_the_one_before_was() {
        let mut server = Server::new();
        for number in 2..9 {
            server.rotate(number, 30, 30);
            assert!(server.check(), "{number}");
            assert_eq!(server.known(), [(30, number.into())]);
        }
    }

    #[test]
    fn a_server_that_opens_before_it_closes_goes_back_and_forth() {
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
    fn who_opens_its_logs_at_ever_other_numbers_is_listed_each_time() {
        let mut server = Server::new();
        for number in 2..20 {
            let at = |number: u32| i32::try_from(29 + number).unwrap();
            server.rotate(number, at(number - 1), at(number));
            assert!(!server.check(), "{number}");
            server.list_all();
            assert_eq!(server.known(), [(at(number), number.into())]);
        }
        assert_eq!(server.descriptors.likely.numbers.len(), NUMBERS);
    }

    #[test]
    fn a_follower_that_opens_an_old_log_at_a_rotation_is_not_missed() {
        // Anywhere, or where the writer was.
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
    fn a_follower_that_goes_on_to_the_next_log_is_found_at_its_number() {
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
        // At another number it is not found, but one more is open than is known.
        server.close(40);
        assert!(server.check());
        server.open(41, 2, false);
        assert!(!server.check());
    }

    #[test]
    fn a_check_counts_only_where_all_else_is_known() {
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

        // Listed between its opening and the listing of its directory.
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
    fn of_very_many_new_logs_none_is_looked_for() {
        let mut likely = Likely::default();
        assert_eq!(likely.expect((0..64).map(FileId)), Extent::Changes);
        assert_eq!(likely.expect((0..1_000_000).map(FileId)), Extent::All);
        assert!(likely.expected.is_empty() && likely.expected.capacity() < 1000);
    }
}
