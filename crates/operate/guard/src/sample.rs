//! Samples: the resident pages of a file, window by window ([`resident_windows`]).
//!
//! A sample stops early if it takes too long or has more windows than there is room for; the next
//! one continues from there. A file whose stat(2) shows no change need not even be opened.

use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use pagekeeper_kernel::{
    ExpectedFile, FileSystem, Inode, InspectedFile, ResidentWindow, ResidentWindows, Result, WindowSearch,
    resident_windows, resident_windows_in, stat_in, status_changed,
};
use pagekeeper_policy::{WINDOW, WindowFacts};
use rustix::fs::Stat;

use crate::budget::Turn;

/// The pages of a file that were seen in the page cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Resident bytes.
    pub(crate) resident: u64,
    /// Bytes dirty or under writeback.
    pub(crate) unwritten: u64,
    /// The windows that have resident pages, ascending.
    pub(crate) windows: Vec<WindowFacts>,
}

impl Sample {
    /// Replaces all windows in a range by newly sampled ones.
    pub(crate) fn replace(&mut self, range: &Range<u64>, new: Vec<WindowFacts>) {
        let first = self.windows.partition_point(|window| window.end <= range.start);
        let last = self.windows.partition_point(|window| window.start < range.end).max(first);
        let (was, is) = (sums(&self.windows[first..last]), sums(&new));
        self.resident = self.resident.saturating_sub(was.0) + is.0;
        self.unwritten = self.unwritten.saturating_sub(was.1) + is.1;
        self.windows.splice(first..last, new);
    }
}

/// Returns the resident and unwritten bytes of windows.
fn sums(windows: &[WindowFacts]) -> (u64, u64) {
    windows.iter().fold((0, 0), |(resident, unwritten), window| {
        (resident + window.resident, unwritten + window.unwritten)
    })
}

/// The state of a file in stat(2) when it was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastStat {
    /// In bytes.
    pub(crate) size: u64,
    /// `st_ctime`, in nanoseconds of the epoch. Unlike the time of the last change of the contents,
    /// nobody sets it back.
    pub(crate) status_changed: i128,
}

impl LastStat {
    /// Returns whether `stat` shows the same file in the same state.
    pub(crate) fn is(self, inode: Inode, stat: &Stat) -> bool {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Inode::of(stat) == inode && self == Self { size, status_changed: status_changed(stat) }
    }
}

/// A file that is due to be sampled.
#[derive(Debug)]
pub(crate) struct DueFile {
    pub(crate) name: OsString,
    /// The file's inode. Another file of that name is left alone.
    pub(crate) inode: Inode,
    /// The offset at which the sample begins.
    pub(crate) from: u64,
    /// The number of its windows that are kept already.
    pub(crate) windows: usize,
    /// The file is not even opened while stat(2) shows this.
    pub(crate) unless: Option<LastStat>,
}

/// Room for windows of all files of a database. All databases together keep fewer than twice the
/// maximum of windows, and one more for each directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowRoom {
    /// Room for this many more windows.
    pub(crate) left: usize,
    /// The windows that each file may have in any case, so that none fills the room for good.
    pub(crate) least: usize,
}

/// A sample of a file.
#[derive(Debug)]
pub(crate) struct FileSample {
    /// As of before the sample.
    pub(crate) stat: LastStat,
    /// Time of the last change, in nanoseconds of the epoch, as of before the sample.
    pub(crate) changed: i128,
    pub(crate) sample: Sample,
    /// The offset at which the next sample continues, if this one did not reach the end.
    pub(crate) next: Option<u64>,
    /// Whether it stopped for lack of room.
    pub(crate) no_room: bool,
}

/// The result of sampling files of a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SamplingResult {
    /// Whether anything has changed.
    pub(crate) changed: bool,
    /// Whether there was no room for all windows.
    pub(crate) no_room: bool,
}

/// The file system of a device, once a file on that device was asked for it.
pub(crate) type KnownFileSystem = Option<(u64, FileSystem)>;

/// Samples a file of a directory; `None` if it was not opened, see [`DueFile::unless`]. `known` is
/// the file system of the directory's files, and is learned from them.
pub(crate) fn sample_file(
    fd: BorrowedFd<'_>,
    path: &Path,
    known: &mut KnownFileSystem,
    due: &DueFile,
    room: &mut WindowRoom,
    turn: &Turn,
) -> Result<Option<FileSample>> {
    let (name, inode) = (due.name.as_os_str(), due.inode);
    let is_unchanged =
        |last: LastStat| stat_in(fd, name, inode, path).is_ok_and(|stat| last.is(inode, &stat));
    if due.unless.is_some_and(is_unchanged) {
        return Ok(None);
    }
    room.left = room.left.saturating_add(due.windows);
    let file = InspectedFile::open_in(fd, name, ExpectedFile::Inode(inode), path.join(name))?;
    let dev = file.inode().dev;
    let file = file.on(known.filter(|known| known.0 == dev).map(|known| known.1));
    let (had_some, most) = (due.windows > 0, room.left.max(room.least));
    let is_over = || turn.step();
    let search = WindowSearch { window: WINDOW, from: due.from, had_some, room: most, is_over: &is_over };
    let ResidentWindows { resident, unwritten, windows, next, no_room } = resident_windows(&file, &search)?;
    let sample = Sample { resident, unwritten, windows: facts(windows) };
    *known = file.known_file_system().map(|found| (dev, found)).or(*known);
    room.left = room.left.saturating_sub(sample.windows.len());
    let stat = LastStat { size: file.size(), status_changed: file.status_changed() };
    Ok(Some(FileSample { stat, changed: file.modified(), sample, next, no_room }))
}

/// Returns the windows with resident pages in a range of a file.
pub(crate) fn sample_again(file: &InspectedFile, range: Range<u64>) -> Result<Vec<WindowFacts>> {
    Ok(facts(resident_windows_in(file, range, WINDOW)?))
}

fn facts(windows: Vec<ResidentWindow>) -> Vec<WindowFacts> {
    let facts = |ResidentWindow { range, resident, unwritten }| WindowFacts {
        start: range.start,
        end: range.end,
        resident,
        unwritten,
    };
    windows.into_iter().map(facts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::{Error, Links, ResidencySource, residency};
    use pagekeeper_policy::turns::Slice;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    fn turn(cpu: Duration) -> Turn {
        Turn::begin(Slice { cpu, wall: Duration::from_secs(3600) })
    }

    /// Makes a sparse file with a page in each of this many windows.
    fn sparse_file(path: &Path, windows: u64) -> InspectedFile {
        let out = std::fs::File::create(path).unwrap();
        for window in 0..windows {
            out.write_all_at(b"x", window * WINDOW).unwrap();
        }
        InspectedFile::open(path, Links::Refuse).unwrap()
    }

    /// The file system is needed if no page is resident: on an overlay the kernel always reports 0
    /// resident pages.
    #[test]
    fn the_file_system_of_a_device_is_queried_once() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("log");
        std::fs::File::create(&path).unwrap().set_len(WINDOW).unwrap();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        let (fd, inode) =
            (pagekeeper_kernel::open_directory(dir.path(), Links::Refuse).unwrap(), file.inode());
        // A kernel without cachestat(2) uses mincore(2) everywhere, so no file system is asked for.
        let found = file.file_system().unwrap();
        let is_asked = found == FileSystem::Overlay
            || residency(&file, 0..u64::MAX).unwrap().source != ResidencySource::Mincore;
        let of = is_asked.then_some((inode.dev, found));
        let turn = turn(Duration::from_secs(3600));
        let learned = |mut known: KnownFileSystem| {
            let due = DueFile { name: "log".into(), inode, from: 0, windows: 0, unless: None };
            let mut room = WindowRoom { left: 60, least: 20 };
            let seen = sample_file(fd.as_fd(), dir.path(), &mut known, &due, &mut room, &turn);
            assert_eq!(seen.unwrap().unwrap().sample, Sample::default());
            known
        };
        assert_eq!(learned(None), of);
        let another = Some((inode.dev, FileSystem::Other(1)));
        assert_eq!(learned(another), another, "what is known is believed");
        let elsewhere = Some((inode.dev + 1, FileSystem::Overlay));
        assert_eq!(learned(elsewhere), of.or(elsewhere), "another device says nothing of this one");
    }

    #[test]
    fn a_file_is_not_opened_while_its_stat_shows_no_change() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("log");
        std::fs::write(&path, vec![b'x'; 8192]).unwrap();
        let fd = pagekeeper_kernel::open_directory(dir.path(), Links::Refuse).unwrap();
        let turn = turn(Duration::from_secs(3600));
        let seen = |inode: Inode, unless: Option<LastStat>| {
            let due = DueFile { name: "log".into(), inode, from: 0, windows: 0, unless };
            let mut room = WindowRoom { left: 60, least: 20 };
            sample_file(fd.as_fd(), dir.path(), &mut None, &due, &mut room, &turn)
        };
        let inode = InspectedFile::open(&path, Links::Refuse).unwrap().inode();
        let last = seen(inode, None).unwrap().unwrap().stat;
        assert_eq!(last.size, 8192);
        assert!(seen(inode, Some(last)).unwrap().is_none());
        let is_sampled = |why: &str| {
            let sample = seen(inode, Some(last)).unwrap();
            assert!(sample.is_some_and(|sample| sample.stat != last), "{why}");
        };
        // As cp --preserve and rsync do: the size and the time of the contents are the same as
        // before.
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        // If the kernel's clock for files ticks slowly, the next write would have the same time
        // as the first.
        std::thread::sleep(Duration::from_millis(20));
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"y", 0).unwrap();
        std::fs::File::open(&path).unwrap().set_modified(modified).unwrap();
        is_sampled("what its time of change hides");
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(4096).unwrap();
        is_sampled("another size");
        // A link to it is another file, and so is a new file of its name.
        std::fs::rename(&path, dir.path().join("aside")).unwrap();
        std::os::unix::fs::symlink("aside", &path).unwrap();
        let last = LastStat { size: 5, ..last };
        assert!(matches!(seen(inode, Some(last)), Err(Error::SymbolicLink { .. })));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"other").unwrap();
        assert!(matches!(seen(inode, Some(last)), Err(Error::OtherFile { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(seen(inode, Some(last)).unwrap_err().is_gone());
    }

    #[test]
    fn one_file_does_not_take_the_samples_of_the_others() {
        let dir = pagekeeper_testing::disk_dir();
        let names: Vec<OsString> = ["a", "b", "c"].map(OsString::from).to_vec();
        for name in &names {
            sparse_file(&dir.path().join(name), 50);
        }
        let fd = pagekeeper_kernel::open_directory(dir.path(), Links::Refuse).unwrap();
        let due = |windows: [usize; 3]| {
            let both = names.iter().zip(windows);
            let inode =
                |name: &OsString| InspectedFile::open(dir.path().join(name), Links::Refuse).unwrap().inode();
            let due = |(name, windows): (&OsString, usize)| DueFile {
                name: name.clone(),
                inode: inode(name),
                from: 0,
                windows,
                unless: None,
            };
            both.map(due).collect::<Vec<_>>()
        };
        let turn = turn(Duration::from_secs(3600));
        let mut room = WindowRoom { left: 60, least: 20 };
        let mut windows = |due: &DueFile| {
            let seen = sample_file(fd.as_fd(), dir.path(), &mut None, due, &mut room, &turn);
            seen.unwrap().unwrap().sample.windows.len()
        };
        let first: Vec<usize> = due([0; 3]).iter().map(&mut windows).collect();
        assert_eq!(first, [50, 20, 20]);
        assert_eq!(room.left, 0);
    }

    #[test]
    fn a_new_sample_replaces_the_old_one_of_its_range() {
        let window = |index: u64, resident| WindowFacts {
            start: index * WINDOW,
            end: (index + 1) * WINDOW,
            resident,
            unwritten: 1,
        };
        let windows = vec![window(1, 10), window(2, 20), window(5, 50), window(9, 90)];
        let mut sample = Sample { resident: 170, unwritten: 4, windows };
        sample.replace(&(2 * WINDOW..9 * WINDOW), vec![window(5, 7)]);
        assert_eq!((sample.resident, sample.unwritten), (107, 3));
        assert_eq!(sample.windows, [window(1, 10), window(5, 7), window(9, 90)]);
        sample.replace(&(3 * WINDOW..4 * WINDOW), Vec::new());
        assert_eq!((sample.resident, sample.windows.len()), (107, 3));
    }
}
