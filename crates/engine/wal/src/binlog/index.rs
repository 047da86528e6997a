//! The index: the list of a binlog's segments, with the ends of the sealed ones.
//!
//! It is a text file, `binlog.index`, that is replaced as a whole: the new one is written under
//! another name, synced and exchanged with the old one, then the directory is synced. After a crash
//! it is the old or the new one, never a mixture. The old one's file becomes the next one's, so a
//! full disk that lacks even an inode can replace it. On file systems that copy on write, and for a
//! file with further names, another file takes its place, with space allocated ahead.
//!
//! ```text
//! pagekeeper-binlog 1 0123456789abcdef 6b1c2f90      version, the log's id
//! binlog.000007 1073741824 5d3c0e11                  sealed: its records end here
//! binlog.000008 - 20f3a9b7                           the last one may be open
//! end 2 8e10c4d2                                     how many there are
//! ```
//!
//! Each line ends with the CRC32C of everything before it in the file, without other CRCs and line
//! ends. A changed, missing or extra line is therefore detected.

use std::fmt::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::{Access, Create, Error as IoError, Io, IoFile, WriteMode};
use pagekeeper_kernel::is_overwritten_in_place;

use super::segment::{SEGMENT_HEADER_BYTES, segment_name, segment_number};
use crate::Error;
use crate::record::BLOCK;

/// The name of the index within the log's directory.
pub(super) const INDEX_NAME: &str = "binlog.index";

/// The name of a shorter index until the segments that it no longer lists are removed. If it
/// exists, it is the index.
pub(super) const TRUNCATED_INDEX_NAME: &str = "binlog.index.truncated";

/// The name under which the next index is written.
pub(super) const NEW_INDEX_NAME: &str = "binlog.index.new";

const INDEX_MAGIC: &str = "pagekeeper-binlog";
const INDEX_VERSION: u32 = 1;

/// Bytes that one more segment adds to the index, at most.
const NEXT_LINE_BYTES: u64 = 64;

/// A larger file is not an index. This size is enough for 10 million segments.
const INDEX_BYTES_MAX: u64 = 512 << 20;

/// One line of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListedSegment {
    pub(super) number: u64,
    /// The end of the segment's records, in bytes; `None` for the last segment while it is open.
    pub(super) sealed: Option<u64>,
}

/// A defect of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IndexDefect {
    /// The number of the defective line, from 1.
    Line(usize),
    /// The index has this unknown version.
    Version(u32),
}

/// The whole index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentIndex {
    pub(super) log_id: u64,
    /// Numbers ascend by one; only the last one may be open.
    pub(super) segments: Vec<ListedSegment>,
}

impl SegmentIndex {
    fn encode(&self) -> String {
        let mut text = String::new();
        let mut crc = 0;
        push_line(&mut text, &mut crc, &format!("{INDEX_MAGIC} {INDEX_VERSION} {:016x}", self.log_id));
        for ListedSegment { number, sealed } in &self.segments {
            let name = segment_name(*number);
            let line = sealed.map_or_else(|| format!("{name} -"), |sealed| format!("{name} {sealed}"));
            push_line(&mut text, &mut crc, &line);
        }
        push_line(&mut text, &mut crc, &format!("end {}", self.segments.len()));
        text
    }

    /// Parses an index, or returns its defect.
    fn parse(text: &str) -> Result<Self, IndexDefect> {
        Self::parse_lines(text).map_err(|line| match Self::version(text) {
            Some(version) if version != INDEX_VERSION => IndexDefect::Version(version),
            Some(_) | None => IndexDefect::Line(line),
        })
    }

    /// Returns the version of an index whose first line is intact.
    fn version(text: &str) -> Option<u32> {
        let (line, sum) = text.lines().next()?.rsplit_once(' ')?;
        let is_whole = sum == format!("{:08x}", crc32c::crc32c(line.as_bytes()));
        let version = line.strip_prefix(INDEX_MAGIC)?.strip_prefix(' ')?.split(' ').next()?;
        version.parse().ok().filter(|_| is_whole)
    }

    /// Parses an index, or returns the number of the first defective line, from 1.
    fn parse_lines(text: &str) -> Result<Self, usize> {
        let mut crc = 0;
        let mut lines = text.split('\n').enumerate().map(|(at, line)| match line.rsplit_once(' ') {
            Some((line, sum)) => {
                crc = crc32c::crc32c_append(crc, line.as_bytes());
                if sum == format!("{crc:08x}") { Ok((at + 1, line)) } else { Err(at + 1) }
            }
            None => Err(at + 1),
        });
        let (at, first) = lines.next().unwrap_or(Err(1))?;
        let id = first.strip_prefix(&format!("{INDEX_MAGIC} {INDEX_VERSION} ")).ok_or(at)?;
        let log_id = u64::from_str_radix(id, 16).map_err(|_| at)?;
        let mut segments: Vec<ListedSegment> = Vec::new();
        loop {
            let (at, line) = lines.next().unwrap_or(Err(segments.len() + 2))?;
            let (name, value) = line.split_once(' ').ok_or(at)?;
            if name == "end" {
                let whole = value.parse() == Ok(segments.len());
                // Nothing may follow the last line end.
                return if whole && text.lines().count() == at && text.ends_with('\n') {
                    Ok(Self { log_id, segments })
                } else {
                    Err(at)
                };
            }
            let number = segment_number(name).ok_or(at)?;
            let sealed = if value == "-" { None } else { Some(value.parse().map_err(|_| at)?) };
            let follows =
                segments.last().is_none_or(|last| last.number + 1 == number && last.sealed.is_some());
            if !follows || sealed.is_some_and(|sealed| sealed < SEGMENT_HEADER_BYTES) {
                return Err(at);
            }
            segments.push(ListedSegment { number, sealed });
        }
    }

    /// Reads the index of the log in `dir` from the file with this name; `None` if there is none.
    pub(super) fn read(io: &dyn Io, dir: &Path, name: &str) -> Result<Option<Self>, Error> {
        let path = dir.join(name);
        let file = match io.open(&path, Access::Buffered) {
            Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
            file => file?,
        };
        let size = file.stat()?.size;
        let damaged = |line| Error::BrokenIndex { path: path.clone(), line };
        let len = usize::try_from(size).ok().filter(|_| size <= INDEX_BYTES_MAX).ok_or_else(|| damaged(1))?;
        let mut bytes = vec![0; len];
        let len = file.read_at(0, &mut bytes)?;
        let text = std::str::from_utf8(&bytes[..len]).map_err(|_| damaged(1))?;
        Self::parse(text).map(Some).map_err(|wrong| match wrong {
            IndexDefect::Line(line) => damaged(line),
            IndexDefect::Version(version) => Error::UnknownVersion { path: path.clone(), version },
        })
    }

    /// Writes the index under its temporary name and syncs it: all steps that can fail for lack of
    /// space. Uses the room that was kept for it, also by the log's last owner: the caller has
    /// synced the directory since then.
    pub(super) fn prepare(
        &self,
        io: &dyn Io,
        dir: &Path,
        room: Option<IndexRoom>,
        sync: bool,
    ) -> Result<PreparedIndex, IoError> {
        let (text, new) = (self.encode(), dir.join(NEW_INDEX_NAME));
        let file = match room.map(|IndexRoom(file)| file).or_else(|| overwritable(io, &new)) {
            Some(file) => file,
            None => new_file(io, &new)?,
        };
        file.write_at(0, text.as_bytes(), WriteMode::Plain)?;
        file.set_len(text.len() as u64)?;
        if sync {
            file.sync_all()?;
        }
        Ok(PreparedIndex { new, dir: dir.to_path_buf() })
    }

    /// Keeps a file with space for the next index under its temporary name, so that segments can be
    /// sealed and purged on a full disk. Returns `None` if that fails, for example because the disk
    /// is already full, or the file system cannot allocate ahead. The log can continue without it.
    pub(super) fn keep_room(&self, io: &dyn Io, dir: &Path) -> Option<IndexRoom> {
        let bytes = (self.encode().len() as u64 + NEXT_LINE_BYTES).next_multiple_of(BLOCK);
        let new = dir.join(NEW_INDEX_NAME);
        if let Some(file) = overwritable(io, &new) {
            // A full XFS refuses this even for blocks that are there.
            let _ = file.allocate(0..bytes);
            return Some(IndexRoom(file));
        }
        let kept = new_file(io, &new).and_then(|file| {
            file.allocate(0..bytes)?;
            Ok(IndexRoom(file))
        });
        if kept.is_err() {
            // Without space the file would only take up a name.
            let _ = io.remove(&new);
        }
        kept.ok()
    }
}

/// Space for the next index.
pub(super) struct IndexRoom(Arc<dyn IoFile>);

/// Opens a file that can be written over without space: it is this user's, it has no other name and
/// no link leads to it, and its file system does not copy on write.
fn overwritable(io: &dyn Io, path: &Path) -> Option<Arc<dyn IoFile>> {
    let file = io.open_writable(path, Access::Buffered, Create::Never).ok()?;
    let is_overwritable =
        file.fd().is_none_or(|fd| is_ours(fd, path) && is_overwritten_in_place(fd, path).unwrap_or(false));
    is_overwritable.then_some(file)
}

/// Whether an open file is this user's, and has this name and no other.
fn is_ours(fd: BorrowedFd<'_>, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (rustix::fs::fstat(fd), rustix::fs::lstat(path)) else { return false };
    open.st_nlink == 1
        && (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino)
        && open.st_uid == rustix::process::geteuid().as_raw()
}

fn new_file(io: &dyn Io, path: &Path) -> Result<Arc<dyn IoFile>, IoError> {
    remove_if_there(io, path)?;
    io.open_writable(path, Access::Buffered, Create::New)
}

/// An index that is written and synced, but not in place yet.
#[must_use]
pub(super) struct PreparedIndex {
    new: PathBuf,
    dir: PathBuf,
}

impl PreparedIndex {
    /// Renames the file, over any file of this name. A crash may show either of them until the
    /// directory is synced.
    pub(super) fn rename(&self, io: &dyn Io, name: &str) -> Result<(), IoError> {
        io.rename(&self.new, &self.dir.join(name))
    }

    /// Exchanges the file with the old index. If there is none, or the file system cannot do that,
    /// renames the file.
    pub(super) fn replace(&self, io: &dyn Io) -> Result<(), IoError> {
        let exchanged = io.exchange(&self.new, &self.dir.join(INDEX_NAME));
        match exchanged.as_ref().map_err(IoError::errno) {
            Err(Some(libc::ENOENT | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) => {
                self.rename(io, INDEX_NAME)
            }
            _ => exchanged,
        }
    }
}

/// Removes a file, if it exists.
pub(super) fn remove_if_there(io: &dyn Io, path: &Path) -> Result<(), IoError> {
    match io.remove(path) {
        Err(error) if error.errno() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

fn push_line(text: &mut String, crc: &mut u32, line: &str) {
    *crc = crc32c::crc32c_append(*crc, line.as_bytes());
    writeln!(text, "{line} {crc:08x}").expect("a string takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(sealed: &[Option<u64>]) -> SegmentIndex {
        let segments = (7..).zip(sealed).map(|(number, &sealed)| ListedSegment { number, sealed }).collect();
        SegmentIndex { log_id: 0x0123_4567_89ab_cdef, segments }
    }

    #[test]
    fn written_values_parse_back() {
        for index in
            [index(&[]), index(&[None]), index(&[Some(4096)]), index(&[Some(1 << 40), Some(4096), None])]
        {
            assert_eq!(SegmentIndex::parse(&index.encode()), Ok(index));
        }
    }

    #[test]
    fn any_change_of_a_byte_or_a_line_shows() {
        let text = index(&[Some(8192), Some(12288), None]).encode();
        let bytes = text.as_bytes();
        for at in 0..bytes.len() {
            assert!(SegmentIndex::parse(&text[..at]).is_err(), "cut at {at}");
            for bit in 0..7 {
                let mut changed = bytes.to_vec();
                changed[at] ^= 1 << bit;
                let changed = String::from_utf8(changed).unwrap();
                assert!(SegmentIndex::parse(&changed).is_err(), "{changed}");
            }
        }
        let lines: Vec<_> = text.lines().collect();
        for at in 0..lines.len() {
            let mut fewer = lines.clone();
            fewer.remove(at);
            assert!(SegmentIndex::parse(&(fewer.join("\n") + "\n")).is_err(), "without line {at}");
            let mut more = lines.clone();
            more.insert(at, lines[at]);
            assert!(SegmentIndex::parse(&(more.join("\n") + "\n")).is_err(), "line {at} twice");
        }
        assert!(SegmentIndex::parse(&format!("{text}\n")).is_err());
        assert!(SegmentIndex::parse(&format!("{text}{text}")).is_err());
    }

    #[test]
    fn numbers_ascend_by_one_and_only_the_last_is_open() {
        let of = |segments: &[(u64, Option<u64>)]| {
            let segments =
                segments.iter().map(|&(number, sealed)| ListedSegment { number, sealed }).collect();
            SegmentIndex::parse(&SegmentIndex { log_id: 1, segments }.encode())
        };
        assert!(of(&[(1, Some(4096)), (2, None)]).is_ok());
        assert_eq!(of(&[(1, Some(4096)), (3, None)]), Err(IndexDefect::Line(3)));
        assert_eq!(of(&[(1, None), (2, None)]), Err(IndexDefect::Line(3)));
        assert_eq!(of(&[(1, Some(4095))]), Err(IndexDefect::Line(2)));
        let line = "pagekeeper-binlog 7 what it then has";
        let newer = format!("{line} {:08x}\nand so on\n", crc32c::crc32c(line.as_bytes()));
        assert_eq!(SegmentIndex::parse(&newer), Err(IndexDefect::Version(7)));
    }
}
