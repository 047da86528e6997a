//! One file of a streaming process: what is sampled, and released, at each tick.
//!
//! Invariants: the file is opened for a tick alone, read-only, so that a deleted file's space and a file system that is to be
//! unmounted are held by nobody longer than by the process itself; what can't be sampled in time counts as somebody else's.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::{Access, OpenFile, ProcRoot};
use pagekeeper_kernel::{
    Error, Expected, FileSystem, Flush, Handle, Inode, InspectedFile, Links, ReleaseOptions, Result,
    page_size, release, residency, resident_extents, start_writeback,
};
use pagekeeper_policy::external_stream::{Acts, Explained, ExternalStream, Filled, Sample, StreamPosition};
use pagekeeper_policy::ranges::append;
use pagekeeper_policy::{READ_AHEAD, WINDOW};

/// The fastest stream whose pages until the next tick are sampled ahead of it for sure, in bytes a second.
const FASTEST: u64 = 400 << 20;
/// A sample of pages ahead that are resident takes no longer than that: it goes on at the next tick.
const MAX_SAMPLE_TIME: Duration = Duration::from_millis(8);
/// Empty stretches are sampled in pieces of this many bytes.
const PIECE: u64 = 64 << 20;
/// What is written a tick behind the writer is waited for so long.
const PATIENCE: Duration = Duration::from_millis(50);
/// How far before a reader read-ahead may be, in bytes: of the largest folios and twice the largest read-ahead.
pub(super) const MAX_AHEAD: u64 = 32 << 20;
/// Samples after which it is asked again whether a database has the file open.
const ASK_AGAIN: u32 = 20;

/// A file as the descriptors of one process show it.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) file: OpenFile,
    /// Of several descriptors the one that is farthest.
    pub(super) furthest: u64,
    pub(super) writes: bool,
}

impl Shown {
    pub(super) fn of(file: OpenFile) -> Self {
        let furthest = file.position;
        Self { writes: file.access != Access::ReadOnly, furthest, file }
    }

    /// Another descriptor of the same file.
    pub(super) fn add(&mut self, other: &OpenFile) {
        self.file.position = self.file.position.min(other.position);
        self.furthest = self.furthest.max(other.position);
        self.writes |= other.access != Access::ReadOnly;
    }

    /// The file behind the descriptor; none if it is another by now, which is not opened.
    pub(super) fn open(&self, proc: &ProcRoot, pid: u32) -> Result<Option<InspectedFile>> {
        let link = proc.fd_path(pid, self.file.fd);
        let expected = Expected::Inode(self.file.inode);
        match InspectedFile::open_magic_link(&link, expected, self.file.path.clone()) {
            Err(Error::OtherFile { .. }) => Ok(None),
            opened => opened.map(Some),
        }
    }
}

/// What was done to a file at one tick, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReleaseTotals {
    pub(super) released: u64,
    pub(super) kept: u64,
    /// Of that, what is still to be written.
    pub(super) unwritten: u64,
}

/// A file that a process streams.
#[derive(Debug)]
pub(super) struct StreamFile {
    pub(super) path: PathBuf,
    pub(super) inode: Inode,
    pub(super) writes: bool,
    size: u64,
    first_size: u64,
    stream: ExternalStream,
    position: u64,
    /// Whether its position was seen to move.
    moves: bool,
    fastest: u64,
    shared: bool,
    samples: u32,
    /// Up to where the stream made it, or had fetched what was resident as it was met.
    owned: u64,
    /// Up to where it had read ahead when it was seen to move.
    reached: Option<u64>,
    /// How far it moved since the last sample, in bytes.
    pub(super) moved: u64,
    /// The stream's own pages before its position, in bytes.
    pub(super) ahead: u64,
}

/// A sample of a file.
#[derive(Debug)]
pub(super) enum FileSample {
    /// Where the stream is.
    At(u64),
    /// It has no position: these windows are filled, see [`Filled`].
    Windows(Vec<(Range<u64>, u64)>),
}

impl StreamFile {
    /// A file that was met now; `own` is what of it nobody had in the page cache before, as the same sample shows what
    /// was `ahead`.
    pub(super) fn met(shown: &Shown, own: Option<&Range<u64>>, ahead: Ahead) -> Self {
        let position = shown.file.position;
        let mut stream = ExternalStream::met(position, own.cloned());
        if let Some(own) = own.filter(|own| own.end < ahead.end) {
            stream.saw(ahead.end, ahead.resident.into_iter().filter(|extent| extent.start >= own.end));
        }
        Self {
            path: shown.file.path.clone(),
            inode: shown.file.inode,
            writes: shown.writes,
            size: shown.file.size,
            first_size: shown.file.size,
            owned: own.map_or(0, |own| own.end),
            stream,
            position,
            moves: position >= WINDOW,
            fastest: 0,
            shared: false,
            samples: 0,
            reached: None,
            moved: 0,
            ahead: 0,
        }
    }

    /// Samples what is ahead of the stream, and where it is. `brought` gives what its process has brought in since the last sample,
    /// in bytes; `shared` is asked whether a database has the file open.
    pub(super) fn sample(
        &mut self,
        file: &InspectedFile,
        shown: &Shown,
        tick: Duration,
        brought: impl FnOnce() -> u64,
        shared: impl FnOnce() -> bool,
    ) -> Result<FileSample> {
        let position = shown.file.position;
        self.moved = shown.furthest.saturating_sub(self.position);
        self.fastest = self.fastest.max(self.moved);
        let moves = position != self.position;
        self.moves |= moves;
        (self.position, self.writes, self.size) = (position, shown.writes, shown.file.size);
        self.path.clone_from(&shown.file.path);
        if self.moves && !self.writes {
            self.stream.reads_at(position);
            self.sample_again(file, shown.furthest, moves, brought)?;
        }
        let furthest = if self.writes { shown.furthest.max(self.size) } else { shown.furthest };
        let unseen = self.stream.unseen(if self.moves || self.writes {
            let ahead = (bytes_in(tick * 2) + READ_AHEAD).max(3 * self.fastest + READ_AHEAD);
            let end = (furthest.max(self.reached.unwrap_or(0)) + ahead).next_multiple_of(WINDOW);
            // What others add to a file that is read is theirs.
            if self.writes { end } else { end.min(self.size) }
        } else {
            self.size
        });
        if !unseen.is_empty() {
            let (end, resident) = resident_in(file, unseen, Some(Instant::now() + MAX_SAMPLE_TIME))?;
            // What it has added since its descriptors were read nobody had before.
            let max = if self.writes { self.size.next_multiple_of(page_size()) } else { u64::MAX };
            self.stream.saw(end, up_to(max, resident));
        }
        if !self.stream.is_all_own() {
            if self.samples.is_multiple_of(ASK_AGAIN) {
                self.shared = shared();
            }
            self.samples = self.samples.wrapping_add(1);
        }
        self.ahead = 0;
        if !self.writes {
            for own in self.stream.own(shown.furthest..shown.furthest + MAX_AHEAD, false) {
                self.ahead += residency(file, own)?.resident;
            }
        }
        Ok(if self.moves {
            FileSample::At(position)
        } else if self.grows() {
            FileSample::At(self.size)
        } else {
            FileSample::Windows(self.windows(file)?)
        })
    }

    fn grows(&self) -> bool {
        self.writes && self.size > self.first_size
    }

    /// Samples again what was seen before a reader: what has come since and can't have been read ahead for it is somebody else's.
    fn sample_again(
        &mut self,
        file: &InspectedFile,
        furthest: u64,
        moves: bool,
        brought: impl FnOnce() -> u64,
    ) -> Result<()> {
        let deadline = Instant::now() + MAX_SAMPLE_TIME;
        let mut others = Vec::new();
        let mut late = None;
        for gap in self.stream.own(furthest..self.stream.seen_to(), false) {
            let (end, resident) = resident_in(file, gap.clone(), Some(deadline))?;
            others.extend(resident);
            if end < gap.end {
                late = Some(end);
                break;
            }
        }
        // Where it is, and what it has brought in, after that sample: it goes on meanwhile.
        let run = furthest + run_from(file, furthest, MAX_AHEAD.saturating_add(self.fastest))?;
        let reached = match self.reached.filter(|_| !moves) {
            // It may be within one long read.
            Some(last) => run.min(last.saturating_add(brought())),
            None => run,
        };
        self.reached = Some(reached);
        // Pages are in the page cache a moment before they count as fetched.
        let reached = run.min(reached.saturating_add(READ_AHEAD));
        if let Some(end) = late {
            // Up to where it has read ahead nothing would count as somebody else's anyway.
            self.stream.forget_from(end.max(reached));
        }
        let beyond = others.into_iter().map(|range| range.start.max(reached)..range.end);
        self.stream.others(beyond.filter(|range| range.start < range.end));
        Ok(())
    }

    /// How much came into a file without a position, at most, since the last sample; see [`ExternalStream::grown`].
    pub(super) fn grown(&self, found: &FileSample, brought: u64) -> u64 {
        match found {
            FileSample::At(_) => 0,
            FileSample::Windows(windows) => self.stream.grown(windows, brought),
        }
    }

    /// What to do behind the stream. `brought` is what its process may have brought into files where it has no position, in bytes,
    /// and `explained` whether that is enough for all that came into them.
    pub(super) fn step(&mut self, found: FileSample, brought: u64, explained: Explained) -> Acts {
        let position = match found {
            FileSample::At(position) => StreamPosition::At(position),
            FileSample::Windows(windows) => StreamPosition::Unknown(Filled { windows, brought, explained }),
        };
        self.stream.step(&Sample { position, writes: self.writes, shared: self.shared })
    }

    /// Of the windows that were empty before, those that are not now, and how much of each is resident.
    fn windows(&self, file: &InspectedFile) -> Result<Vec<(Range<u64>, u64)>> {
        let mut filled = Vec::new();
        for own in self.stream.own(0..self.size, true) {
            let (mut start, mut length) = (own.start, PIECE);
            while start < own.end {
                let piece = start..start.saturating_add(length).min(own.end);
                if residency(file, piece.clone())?.resident == 0 {
                    // Nothing there costs nothing to count.
                    (start, length) = (piece.end, length.saturating_mul(2));
                    continue;
                }
                if length > PIECE {
                    length = PIECE;
                    continue;
                }
                for at in (piece.start..piece.end).step_by(usize::try_from(WINDOW).expect("2 MiB")) {
                    let window = at..(at + WINDOW).min(piece.end);
                    let resident = residency(file, window.clone())?.resident;
                    if resident > 0 {
                        filled.push((window, resident));
                    }
                }
                start = piece.end;
            }
        }
        Ok(filled)
    }

    /// Does what is to be done behind the stream.
    pub(super) fn act(&mut self, file: &InspectedFile, acts: Acts) -> Result<ReleaseTotals> {
        if let Some(range) = acts.start_writeback {
            start_writeback(file, range)?;
        }
        let patience = if self.writes { PATIENCE } else { Duration::ZERO };
        self.release(file, acts.release, patience)
    }

    fn release(
        &mut self,
        file: &InspectedFile,
        ranges: Vec<Range<u64>>,
        patience: Duration,
    ) -> Result<ReleaseTotals> {
        let (done, resisted) = release_all(file, ranges, patience)?;
        self.stream.resisted(resisted);
        Ok(done)
    }

    /// Releases what is left of a file that is closed, if it is still there to be found: by its name as this process sees it, or as
    /// the process `parent` does. `brought`: what its process has brought in since it was last sampled, in bytes; once that is
    /// done, only what resisted is tried again.
    pub(super) fn close(
        &mut self,
        proc: &ProcRoot,
        parent: u32,
        brought: u64,
    ) -> Result<Option<ReleaseTotals>> {
        let Some(file) = self.find(proc, parent) else { return Ok(None) };
        let size = file.size().next_multiple_of(page_size());
        let end = if self.writes && self.owned == 0 && !self.grows() {
            // What it has not come to yet, others may have read.
            size.min(self.position.saturating_add(2 * self.fastest))
        } else {
            size
        };
        let rest = self.stream.rest(end, brought, self.shared);
        if self.writes {
            for range in &rest {
                start_writeback(&file, range.clone())?;
            }
        }
        self.release(&file, rest, Duration::ZERO).map(Some)
    }

    fn find(&self, proc: &ProcRoot, parent: u32) -> Option<InspectedFile> {
        let same = |path: &Path| Handle::at(path, Links::Refuse).ok()?.open(Expected::Inode(self.inode)).ok();
        same(&self.path).or_else(|| same(&proc.in_namespace(parent, &self.path).ok()?))
    }
}

/// The bytes of the fastest stream in a time.
fn bytes_in(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_mul(FASTEST) / 1000
}

/// What is resident from a reader's position on.
#[derive(Debug, Clone, Default)]
pub(super) struct Ahead {
    /// Up to where it was sampled.
    end: u64,
    resident: Vec<Range<u64>>,
}

impl Ahead {
    /// Samples as far as `max`, and goes on while all is resident. As far as read-ahead may be that is done however long it takes:
    /// what is missed would count as somebody else's.
    pub(super) fn of(file: &InspectedFile, position: u64, max: u64) -> Result<Self> {
        Self::until(file, position, max, Instant::now() + MAX_SAMPLE_TIME)
    }

    fn until(file: &InspectedFile, position: u64, max: u64, deadline: Instant) -> Result<Self> {
        let mut at = position / page_size() * page_size();
        let mut ahead = Self { end: at, resident: Vec::new() };
        let end = position.saturating_add(max).min(file.size().max(position));
        while at < end && at >= ahead.end {
            let part = at..at.saturating_add(MAX_AHEAD).min(end);
            let (end, resident) = resident_in(file, part, None)?;
            for extent in resident {
                append(&mut ahead.resident, extent, 0);
            }
            ahead.end = end;
            at += ahead.run(at);
            if Instant::now() > deadline {
                break;
            }
        }
        Ok(ahead)
    }

    /// How much of that is there without a gap from `position` on, in bytes.
    pub(super) fn run(&self, position: u64) -> u64 {
        let first = self.resident.iter().find(|extent| extent.end > position);
        first.filter(|run| run.start <= position).map_or(0, |run| run.end - position)
    }
}

/// How much is resident from a reader's position on without a gap, in bytes, as far as `max`: what was read ahead for it, or was
/// there before.
fn run_from(file: &InspectedFile, position: u64, max: u64) -> Result<u64> {
    Ok(Ahead::of(file, position, max)?.run(position))
}

/// How much of a file is resident, in bytes; none if that takes too long.
pub(super) fn resident_of(file: &InspectedFile) -> Result<Option<u64>> {
    let (end, resident) = resident_in(file, 0..file.size(), Some(Instant::now() + MAX_SAMPLE_TIME))?;
    let sum = resident.iter().map(|extent| extent.end - extent.start).sum();
    Ok((end >= file.size()).then_some(sum))
}

/// The resident extents of a range, as far as can be sampled by `deadline`: up to which byte that was. Between two of them
/// something is missing: where the pieces of the sample meet, they are one.
fn resident_in(
    file: &InspectedFile,
    range: Range<u64>,
    deadline: Option<Instant>,
) -> Result<(u64, Vec<Range<u64>>)> {
    let mut found: Vec<Range<u64>> = Vec::new();
    if range.start >= file.size() {
        return Ok((range.end, found));
    }
    // Of overlayfs mincore(2) shows windows only.
    let piece = if file.file_system()? == FileSystem::Overlay { WINDOW } else { PIECE };
    let mut start = range.start;
    while start < range.end {
        let end = ((start / piece + 1) * piece).min(range.end);
        let counts = residency(file, start..end)?;
        if counts.resident >= end - start || (counts.resident > 0 && piece == WINDOW) {
            append(&mut found, start..end, 0);
        } else if counts.resident > 0 {
            for extent in resident_extents(file, start..end)? {
                append(&mut found, extent?, 0);
            }
        }
        start = end;
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            break;
        }
    }
    Ok((start, found))
}

/// The extents as far as byte `end`.
fn up_to(end: u64, extents: Vec<Range<u64>>) -> impl Iterator<Item = Range<u64>> {
    let cut = extents.into_iter().map(move |extent| extent.start..extent.end.min(end));
    cut.filter(|extent| extent.start < extent.end)
}

/// Releases ranges in turn, waiting at most `patience` in all for dirty pages; and what of them resisted.
fn release_all(
    file: &InspectedFile,
    ranges: Vec<Range<u64>>,
    patience: Duration,
) -> Result<(ReleaseTotals, Vec<Range<u64>>)> {
    let deadline = Instant::now() + patience;
    let mut done = ReleaseTotals::default();
    let mut resisted = Vec::new();
    for range in ranges {
        let options = ReleaseOptions {
            flush: Flush::Watch,
            patience: deadline.saturating_duration_since(Instant::now()),
            retry_pause: Duration::ZERO,
            explain: false,
        };
        let report = release(file, range.clone(), &options)?;
        done.released += report.released;
        done.kept += report.kept();
        done.unwritten += report.kept_dirty;
        if report.kept() > 0 {
            // No more than that: others may come into the range before the next try.
            resisted.extend(resident_in(file, range, Some(Instant::now() + MAX_SAMPLE_TIME))?.1);
        }
    }
    Ok((done, resisted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_read_ahead_is_one_run_wherever_it_is_in_the_file() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: what_is_read_ahead_is_one_run_wherever_it_is_in_the_file needs root");
            return;
        }
        let dir = disk_dir();
        let path = dir.path().join("table");
        std::fs::write(&path, vec![1; 80 << 20]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        for advice in [rustix::fs::Advice::DontNeed, rustix::fs::Advice::Random] {
            rustix::fs::fadvise(&file, 0, None, advice).unwrap();
        }
        // Across the border of two pieces.
        file.file().read_exact_at(&mut vec![0; 16 << 20], PIECE - 8 * MIB).unwrap();
        assert_eq!(run_from(&file, PIECE - 5 * MIB, MAX_AHEAD).unwrap(), 13 * MIB);
        assert_eq!(run_from(&file, PIECE + 8 * MIB, MAX_AHEAD).unwrap(), 0);
        // However far that is.
        file.file().read_exact_at(&mut vec![0; 32 << 20], PIECE - 40 * MIB).unwrap();
        assert_eq!(run_from(&file, PIECE - 40 * MIB, MAX_AHEAD).unwrap(), MAX_AHEAD);
        let deadline = Instant::now() + Duration::from_secs(3600);
        let ahead = Ahead::until(&file, PIECE - 40 * MIB, 2 * MAX_AHEAD, deadline).unwrap();
        assert_eq!(ahead.run(PIECE - 40 * MIB), 48 * MIB);
    }
}
