//! Samples: the resident pages of a file, window by window.
//!
//! The cost follows what is resident: a file without resident pages takes one call, and so does an
//! empty stretch of a large one. A file of at most 64 MiB that had resident pages when it was last
//! sampled takes one call per window. A sample stops early if it takes too long or has more windows
//! than there is room for; the next one continues from there. Sampling fails as [`residency`] does:
//! without permission the state is unknown, never "nothing".

use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use pagekeeper_kernel::{
    ExpectedFile, FileSystem, Inode, InspectedFile, Residency, Result, residency, stat_in, status_changed,
};
use pagekeeper_policy::{WINDOW, WindowFacts};
use rustix::fs::Stat;

use crate::budget::Turn;

/// Number of parts that a stretch is cut into in the search for resident windows. The whole range
/// is cut into at most twice as many.
const FAN_OUT: u64 = 16;

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

/// Room for windows of all files of a database.
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
    let limits = SampleLimits { from: due.from, had_some, room: most, turn };
    let SampleScan { sample, next, no_room } = sample(&file, &limits)?;
    *known = file.known_file_system().map(|found| (dev, found)).or(*known);
    room.left = room.left.saturating_sub(sample.windows.len());
    let stat = LastStat { size: file.size(), status_changed: file.status_changed() };
    Ok(Some(FileSample { stat, changed: file.modified(), sample, next, no_room }))
}

/// The limits of a sample.
#[derive(Debug)]
pub(crate) struct SampleLimits<'a> {
    /// The offset at which it begins, in bytes.
    pub(crate) from: u64,
    /// Whether some of the file was resident when it was last sampled, and is likely to be now.
    pub(crate) had_some: bool,
    /// Maximum windows that it may have.
    pub(crate) room: usize,
    pub(crate) turn: &'a Turn,
}

/// A sample in progress, and how far it has come.
#[derive(Debug, Default)]
pub(crate) struct SampleScan {
    pub(crate) sample: Sample,
    /// The offset at which it stopped, unless at the end.
    pub(crate) next: Option<u64>,
    /// Whether it stopped for lack of room.
    pub(crate) no_room: bool,
}

/// Samples a file. The sums cover the whole file, the windows only what is reached.
pub(crate) fn sample(file: &InspectedFile, limits: &SampleLimits<'_>) -> Result<SampleScan> {
    let size = file.size();
    let mut scan = SampleScan::default();
    // The file has few windows.
    let at_once = limits.had_some && limits.from == 0 && size > 0 && width_of(size) <= FAN_OUT * WINDOW;
    if at_once {
        scan.descend_into_parts(file, 0..size, WINDOW, Some(limits))?;
        if scan.next.is_none() {
            (scan.sample.resident, scan.sample.unwritten) = sums(&scan.sample.windows);
            return Ok(scan);
        }
    }
    let whole = residency(file, 0..u64::MAX)?;
    (scan.sample.resident, scan.sample.unwritten) = (whole.resident, whole.unwritten());
    if !at_once && whole.resident > 0 && size > 0 {
        scan.descend(file, 0..size, width_of(size), &whole, Some(limits))?;
    }
    Ok(scan)
}

/// Returns the windows with resident pages in a range of a file.
pub(crate) fn sample_again(file: &InspectedFile, range: Range<u64>) -> Result<Vec<WindowFacts>> {
    let mut scan = SampleScan::default();
    let counts = residency(file, range.clone())?;
    if counts.resident > 0 && !range.is_empty() {
        let width = width_of(range.end - range.start);
        scan.descend(file, range, width, &counts, None)?;
    }
    Ok(scan.sample.windows)
}

/// Returns the width with which the search in a range of that size begins; the range is at most
/// twice as wide.
fn width_of(size: u64) -> u64 {
    if size <= WINDOW {
        return WINDOW;
    }
    let mut width = FAN_OUT * WINDOW;
    while width.saturating_mul(2) < size {
        width = width.saturating_mul(FAN_OUT);
    }
    width
}

impl SampleScan {
    /// Adds the windows of `range`, which is at most twice `width` wide and has the counts `seen`.
    fn descend(
        &mut self,
        file: &InspectedFile,
        range: Range<u64>,
        width: u64,
        seen: &Residency,
        limits: Option<&SampleLimits<'_>>,
    ) -> Result<()> {
        if width <= WINDOW {
            self.sample.windows.push(WindowFacts {
                start: range.start,
                end: range.end,
                resident: seen.resident,
                unwritten: seen.unwritten().min(seen.resident),
            });
            return Ok(());
        }
        self.descend_into_parts(file, range, width / FAN_OUT, limits)
    }

    /// Adds the windows of the parts of `range`, each `width` wide.
    fn descend_into_parts(
        &mut self,
        file: &InspectedFile,
        range: Range<u64>,
        width: u64,
        limits: Option<&SampleLimits<'_>>,
    ) -> Result<()> {
        let mut start = range.start;
        while start < range.end {
            let part = start..start.saturating_add(width).min(range.end);
            start = part.end;
            if let Some(limits) = limits {
                if part.end <= limits.from {
                    continue;
                }
                self.no_room = self.sample.windows.len() >= limits.room;
                if self.no_room || limits.turn.step() {
                    self.next = Some(part.start.max(limits.from));
                    break;
                }
            }
            let counts = residency(file, part.clone())?;
            if counts.resident > 0 {
                self.descend(file, part, width, &counts, limits)?;
            }
            if self.next.is_some() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Slice;
    use pagekeeper_kernel::{Error, Links, ResidencySource, page_size};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    fn turn(cpu: Duration) -> Turn {
        Turn::begin(Slice { cpu, wall: Duration::from_secs(3600) })
    }

    fn whole(file: &InspectedFile) -> Sample {
        let turn = turn(Duration::from_secs(3600));
        let scan =
            sample(file, &SampleLimits { from: 0, had_some: false, room: usize::MAX, turn: &turn }).unwrap();
        assert_eq!((scan.next, scan.no_room), (None, false));
        scan.sample
    }

    #[test]
    fn windows_add_up_and_lie_where_the_pages_are() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("log");
        let out = std::fs::File::create(&path).unwrap();
        out.set_len(3 * 1024 * WINDOW + 5000).unwrap();
        for offset in [0, 1500 * WINDOW + 4096, 3 * 1024 * WINDOW + 4096] {
            out.write_all_at(b"x", offset).unwrap();
        }
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        let found = whole(&file);
        let starts: Vec<u64> = found.windows.iter().map(|window| window.start / WINDOW).collect();
        assert_eq!(starts, [0, 1500, 3 * 1024]);
        assert_eq!(found.windows.last().unwrap().end, file.size());
        assert_eq!(found.resident, 3 * page_size());
        assert_eq!(found.windows.iter().map(|window| window.resident).sum::<u64>(), found.resident);
        let is_seen = residency(&file, 0..u64::MAX).unwrap().dirty.is_some();
        assert_eq!(found.unwritten > 0, is_seen);
        out.sync_all().unwrap();
        assert_eq!(whole(&file).unwritten, 0);
    }

    #[test]
    fn a_file_is_seen_alike_whatever_it_had_before() {
        let dir = pagekeeper_testing::disk_dir();
        let of_few = 2 * FAN_OUT;
        for (size, at) in [
            (5 * WINDOW + 5000, vec![0, 2 * WINDOW + 4096, 5 * WINDOW + 4096]),
            (of_few * WINDOW, vec![WINDOW - 4096, (of_few - 1) * WINDOW]),
            (of_few * WINDOW + 1, vec![0, of_few * WINDOW]),
            (1, vec![0]),
            (3 * WINDOW, vec![]),
        ] {
            let path = dir.path().join(size.to_string());
            let out = std::fs::File::create(&path).unwrap();
            for offset in &at {
                out.write_all_at(b"x", *offset).unwrap();
            }
            out.set_len(size).unwrap();
            out.sync_all().unwrap();
            let file = InspectedFile::open(&path, Links::Refuse).unwrap();
            let expected = whole(&file);
            assert_eq!(expected.windows.len(), at.len(), "of {size} bytes");
            let turn = turn(Duration::from_secs(3600));
            let scan =
                sample(&file, &SampleLimits { from: 0, had_some: true, room: usize::MAX, turn: &turn })
                    .unwrap();
            assert_eq!((scan.next, scan.no_room), (None, false));
            assert_eq!(scan.sample, expected, "of {size} bytes");
        }
    }

    #[test]
    fn an_empty_file_has_nothing() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("empty");
        std::fs::File::create(&path).unwrap();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        assert_eq!(whole(&file), Sample::default());
    }

    /// Makes a sparse file with a page in each of this many windows.
    fn sparse(path: &Path, windows: u64) -> InspectedFile {
        let out = std::fs::File::create(path).unwrap();
        for window in 0..windows {
            out.write_all_at(b"x", window * WINDOW).unwrap();
        }
        InspectedFile::open(path, Links::Refuse).unwrap()
    }

    #[test]
    fn a_sample_for_which_there_is_no_room_or_time_goes_on_where_it_stopped() {
        let dir = pagekeeper_testing::disk_dir();
        let endless = Duration::from_secs(3600);
        for (windows, room, cpu, least) in [
            (100, 30, endless, 4),
            (100, usize::MAX, Duration::ZERO, 4),
            // These have few windows: they are counted at once if some were resident before.
            (32, 10, endless, 4),
            (32, usize::MAX, Duration::ZERO, 2),
            (32, usize::MAX, endless, 1),
        ] {
            let file = sparse(&dir.path().join(windows.to_string()), windows);
            let expected: Vec<u64> = (0..windows).collect();
            for had_some in [false, true] {
                let (mut from, mut seen, mut samples) = (0, Vec::new(), 0);
                loop {
                    let turn = turn(cpu);
                    let scan = sample(&file, &SampleLimits { from, had_some, room, turn: &turn }).unwrap();
                    assert_eq!(scan.sample.resident, windows * page_size(), "the sums are of all of it");
                    assert!(scan.sample.windows.len() <= room.min(32));
                    assert_eq!(scan.no_room, scan.next.is_some() && room < 32);
                    seen.extend(scan.sample.windows.iter().map(|window| window.start / WINDOW));
                    samples += 1;
                    let Some(next) = scan.next else { break };
                    from = next;
                }
                assert_eq!(seen, expected);
                assert!(samples >= least, "{samples} of {windows}");
            }
        }
    }

    /// The file system matters where nothing is resident: on an overlay the kernel reports 0
    /// resident pages, whatever is resident.
    #[test]
    fn the_file_system_of_a_device_is_asked_for_once() {
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
        // Where the kernel's clock for files ticks slowly, the next write would have the same time
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
    fn one_file_does_not_take_the_room_of_the_others() {
        let dir = pagekeeper_testing::disk_dir();
        let names: Vec<OsString> = ["a", "b", "c"].map(OsString::from).to_vec();
        for name in &names {
            sparse(&dir.path().join(name), 50);
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
    fn a_range_that_was_seen_anew_takes_the_place_of_the_old() {
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
