//! The snapshot file: which pages of which files were resident, compact and checked.
//!
//! Version 1, all numbers unsigned LEB128 varints unless said otherwise, times as seconds (zigzag
//! varint) and nanoseconds since the epoch:
//!
//! ```text
//! magic     8 bytes  89 "PKSNAP" 0a
//! version   2 bytes  little-endian
//! created   time
//! page size bytes
//! files     count, then for each:
//!   path      length, bytes; absolute
//!   device, inode, size in bytes
//!   changed   time     (mtime)
//!   last used time     (the later of atime and mtime)
//!   extents   count, then for each, in pages: distance from the end of the one before, length
//! checksum  4 bytes  CRC32C of all before, little-endian
//! ```
//!
//! Invariants: what [`encode`] writes, [`decode`] reads back equal; `decode` of any other bytes
//! fails without panic, and never allocates more than a small multiple of the bytes given. Every
//! later version keeps magic, version and checksum where they are, and files of version 1 are read
//! forever.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pagekeeper_kernel::Inode;

/// The first bytes of every snapshot file. The first byte is not text, and the last one changes if
/// line ends are converted.
pub const SNAPSHOT_MAGIC: [u8; 8] = *b"\x89PKSNAP\n";

const FORMAT_VERSION: u16 = 1;

const CHECKSUM_BYTES: usize = 4;

/// The contents of a snapshot file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedPages {
    /// The time when it was taken.
    pub created: SavedTime,
    /// In bytes; extents count in pages of this size.
    pub page_size: u64,
    /// The files that had resident pages.
    pub files: Vec<SavedFile>,
}

/// One file as it was when the snapshot was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedFile {
    /// Absolute path.
    pub path: PathBuf,
    /// Device and inode number.
    pub inode: Inode,
    /// In bytes.
    pub size: u64,
    /// Time of the last change of the contents.
    pub changed: SavedTime,
    /// The later of the last access, as far as the file system records it, and the last change.
    pub last_used: SavedTime,
    /// Resident extents in pages: sorted, not empty, not touching.
    pub extents: Vec<Range<u64>>,
}

/// A time since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SavedTime {
    /// Negative before 1970.
    pub seconds: i64,
    /// Under 10⁹.
    pub nanos: u32,
}

/// The reason why bytes are not a valid snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotFormatError {
    /// They do not begin as a snapshot does.
    #[error("not a snapshot of pagekeeper")]
    NotASnapshot,
    /// Bytes are missing or were changed.
    #[error("a damaged snapshot: its checksum does not hold, so nothing of it is used. Take a new one")]
    Damaged,
    /// Written by a later version of this program.
    #[error("a snapshot of format {0}; this pagekeeper reads format {FORMAT_VERSION}")]
    UnknownVersion(u16),
    /// The checksum is correct, but the contents are invalid: the program that wrote them has a
    /// bug.
    #[error("a snapshot written wrongly: {0}")]
    Malformed(&'static str),
}

/// Encodes a snapshot as bytes.
pub fn encode(snapshot: &SavedPages) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + snapshot.files.len() * 128);
    out.extend_from_slice(&SNAPSHOT_MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    put_time(&mut out, snapshot.created);
    put(&mut out, snapshot.page_size);
    put(&mut out, snapshot.files.len() as u64);
    for file in &snapshot.files {
        let path = file.path.as_os_str().as_bytes();
        put(&mut out, path.len() as u64);
        out.extend_from_slice(path);
        put(&mut out, file.inode.dev);
        put(&mut out, file.inode.ino);
        put(&mut out, file.size);
        put_time(&mut out, file.changed);
        put_time(&mut out, file.last_used);
        put(&mut out, file.extents.len() as u64);
        let mut end = 0;
        for extent in &file.extents {
            put(&mut out, extent.start - end);
            put(&mut out, extent.end - extent.start);
            end = extent.end;
        }
    }
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn put_time(out: &mut Vec<u8>, time: SavedTime) {
    let zigzag = (time.seconds << 1) ^ (time.seconds >> 63);
    put(out, zigzag.cast_unsigned());
    put(out, u64::from(time.nanos));
}

/// Decodes a snapshot from the bytes of its file.
///
/// # Errors
///
/// If they are not a snapshot that [`encode`] could have written.
pub fn decode(bytes: &[u8]) -> Result<SavedPages, SnapshotFormatError> {
    if !bytes.starts_with(&SNAPSHOT_MAGIC) {
        // Cut within the magic, or another kind of file.
        let cut = !bytes.is_empty() && SNAPSHOT_MAGIC.starts_with(bytes);
        return Err(if cut { SnapshotFormatError::Damaged } else { SnapshotFormatError::NotASnapshot });
    }
    let (content, checksum) =
        bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(SnapshotFormatError::Damaged)?;
    let (version, content_after_version) = content
        .get(SNAPSHOT_MAGIC.len()..)
        .and_then(|rest| rest.split_first_chunk::<2>())
        .ok_or(SnapshotFormatError::Damaged)?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
        return Err(SnapshotFormatError::Damaged);
    }
    let version = u16::from_le_bytes(*version);
    if version != FORMAT_VERSION {
        return Err(SnapshotFormatError::UnknownVersion(version));
    }
    let mut input = SnapshotInput(content_after_version);
    let snapshot = input.snapshot()?;
    if input.0.is_empty() { Ok(snapshot) } else { Err(SnapshotFormatError::Malformed("bytes after its end")) }
}

/// The bytes that remain to be read.
struct SnapshotInput<'a>(&'a [u8]);

impl<'a> SnapshotInput<'a> {
    fn snapshot(&mut self) -> Result<SavedPages, SnapshotFormatError> {
        let created = self.time()?;
        let page_size = self.number()?;
        if !page_size.is_power_of_two() || page_size > 1 << 30 {
            return Err(SnapshotFormatError::Malformed("an impossible page size"));
        }
        let count = self.number()?;
        // No capacity is taken from a count, which may be wrong: the vector grows with the entries
        // that exist.
        let mut files = Vec::new();
        for _ in 0..count {
            files.push(self.file(u64::MAX / page_size)?);
        }
        Ok(SavedPages { created, page_size, files })
    }

    fn file(&mut self, pages_max: u64) -> Result<SavedFile, SnapshotFormatError> {
        let len = self.number()?;
        let path = self.bytes(len)?;
        if !path.starts_with(b"/") || path.contains(&0) {
            return Err(SnapshotFormatError::Malformed("a path that is not absolute"));
        }
        Ok(SavedFile {
            path: OsString::from_vec(path.to_vec()).into(),
            inode: Inode { dev: self.number()?, ino: self.number()? },
            size: self.number()?,
            changed: self.time()?,
            last_used: self.time()?,
            extents: self.extents(pages_max)?,
        })
    }

    fn extents(&mut self, pages_max: u64) -> Result<Vec<Range<u64>>, SnapshotFormatError> {
        let count = self.number()?;
        let mut extents: Vec<Range<u64>> = Vec::new();
        for _ in 0..count {
            let (distance, len) = (self.number()?, self.number()?);
            let before = extents.last().map(|last| last.end);
            if len == 0 || (distance == 0 && before.is_some()) {
                return Err(SnapshotFormatError::Malformed("an empty or touching extent"));
            }
            let start = before.unwrap_or(0).checked_add(distance);
            let end = start.and_then(|start| start.checked_add(len));
            match (start, end) {
                (Some(start), Some(end)) if end <= pages_max => extents.push(start..end),
                _ => return Err(SnapshotFormatError::Malformed("an extent past any possible file")),
            }
        }
        Ok(extents)
    }

    fn time(&mut self) -> Result<SavedTime, SnapshotFormatError> {
        let zigzag = self.number()?;
        let seconds = (zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed());
        let nanos = u32::try_from(self.number()?).ok().filter(|nanos| *nanos < 1_000_000_000);
        Ok(SavedTime { seconds, nanos: nanos.ok_or(SnapshotFormatError::Malformed("an impossible time"))? })
    }

    fn number(&mut self) -> Result<u64, SnapshotFormatError> {
        let mut number = 0_u64;
        for shift in (0..).step_by(7) {
            let (&byte, rest) =
                self.0.split_first().ok_or(SnapshotFormatError::Malformed("it ends in the middle"))?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift > 63 || bits << shift >> shift != bits {
                return Err(SnapshotFormatError::Malformed("a number of more than 64 bits"));
            }
            number |= bits << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(number)
    }

    fn bytes(&mut self, len: u64) -> Result<&'a [u8], SnapshotFormatError> {
        let (bytes, rest) = usize::try_from(len)
            .ok()
            .and_then(|len| self.0.split_at_checked(len))
            .ok_or(SnapshotFormatError::Malformed("it ends in the middle"))?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Version 1 as it was first written. It must stay readable: never regenerate it.
    const GOLDEN_V1: &[u8] = include_bytes!("testdata/v1.snapshot");

    fn golden_content() -> SavedPages {
        SavedPages {
            created: SavedTime { seconds: 1_760_000_000, nanos: 123_456_789 },
            page_size: 4096,
            files: vec![
                SavedFile {
                    path: "/var/lib/mysql/ibdata1".into(),
                    inode: Inode { dev: 65024, ino: 1_234_567 },
                    size: 79_691_776,
                    changed: SavedTime { seconds: 1_759_999_999, nanos: 0 },
                    last_used: SavedTime { seconds: 1_759_999_999, nanos: 999_999_999 },
                    extents: vec![0..1, 3..64, 1000..19_456],
                },
                SavedFile {
                    path: OsString::from_vec(b"/srv/\xff\xfe old".to_vec()).into(),
                    inode: Inode { dev: 0, ino: u64::MAX },
                    size: 0,
                    changed: SavedTime { seconds: -1, nanos: 5 },
                    last_used: SavedTime { seconds: i64::MIN, nanos: 0 },
                    extents: vec![],
                },
            ],
        }
    }

    #[test]
    fn version_1_stays_readable() {
        assert_eq!(decode(GOLDEN_V1), Ok(golden_content()));
    }

    #[test]
    fn written_files_have_version_1() {
        assert_eq!(encode(&golden_content()), GOLDEN_V1);
    }

    #[test]
    fn every_flipped_bit_is_an_error() {
        for bit in 0..GOLDEN_V1.len() * 8 {
            let mut bytes = GOLDEN_V1.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = decode(&bytes).unwrap_err();
            let expected = if bit / 8 < SNAPSHOT_MAGIC.len() {
                SnapshotFormatError::NotASnapshot
            } else {
                SnapshotFormatError::Damaged
            };
            assert_eq!(error, expected, "bit {bit}");
        }
    }

    #[test]
    fn every_cut_is_an_error() {
        for len in 1..GOLDEN_V1.len() {
            assert_eq!(decode(&GOLDEN_V1[..len]), Err(SnapshotFormatError::Damaged), "{len} bytes");
        }
        assert_eq!(decode(b""), Err(SnapshotFormatError::NotASnapshot));
        assert_eq!(decode(b"-- MySQL dump"), Err(SnapshotFormatError::NotASnapshot));
    }

    /// Returns bytes with a correct checksum, as a faulty or hostile writer could make them.
    fn sealed(version: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = SNAPSHOT_MAGIC.to_vec();
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(content);
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_later_version_is_named() {
        let error = decode(&sealed(7, b"whatever")).unwrap_err();
        assert_eq!(error.to_string(), "a snapshot of format 7; this pagekeeper reads format 1");
    }

    #[test]
    fn huge_counts_take_no_memory() {
        // Created 0, page size 4096, then 2⁶³ files, none of which exists.
        let mut content = vec![0, 0, 0x80, 0x20];
        put(&mut content, 1 << 63);
        assert_eq!(
            decode(&sealed(1, &content)),
            Err(SnapshotFormatError::Malformed("it ends in the middle"))
        );
    }

    fn times() -> impl Strategy<Value = SavedTime> {
        (any::<i64>(), 0_u32..1_000_000_000).prop_map(|(seconds, nanos)| SavedTime { seconds, nanos })
    }

    fn files() -> impl Strategy<Value = SavedFile> {
        let extents = prop::collection::vec((1_u64..1 << 40, 1_u64..1 << 40), 0..20).prop_map(|steps| {
            let mut end = 0;
            let extent = |(gap, len)| {
                let start = end + gap - u64::from(end == 0);
                end = start + len;
                start..end
            };
            steps.into_iter().map(extent).collect()
        });
        let path = prop::collection::vec(1_u8.., 0..40);
        (path, any::<[u64; 3]>(), times(), times(), extents).prop_map(
            |(path, [dev, ino, size], changed, last_used, extents)| SavedFile {
                path: OsString::from_vec([b"/".as_slice(), &path].concat()).into(),
                inode: Inode { dev, ino },
                size,
                changed,
                last_used,
                extents,
            },
        )
    }

    fn snapshots() -> impl Strategy<Value = SavedPages> {
        (times(), 0_u32..=30, prop::collection::vec(files(), 0..6))
            .prop_map(|(created, power, files)| SavedPages { created, page_size: 1 << power, files })
            .prop_filter("in reach of the page size", |snapshot| {
                let pages_max = u64::MAX / snapshot.page_size;
                let mut extents = snapshot.files.iter().flat_map(|file| &file.extents);
                extents.all(|extent| extent.end <= pages_max)
            })
    }

    proptest! {
        #[test]
        fn written_snapshots_parse_back(snapshot in snapshots()) {
            prop_assert_eq!(decode(&encode(&snapshot)), Ok(snapshot));
        }

        #[test]
        fn one_changed_byte_anywhere_is_an_error(
            snapshot in snapshots(),
            at in any::<prop::sample::Index>(),
            by in 1_u8..,
        ) {
            let mut bytes = encode(&snapshot);
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn random_content_never_panics(content in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&content);
            let _ = decode(&sealed(1, &content));
        }

        #[test]
        fn content_changed_and_sealed_again_never_panics(
            snapshot in snapshots(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let bytes = encode(&snapshot);
            let mut content = bytes[SNAPSHOT_MAGIC.len() + 2..bytes.len() - CHECKSUM_BYTES].to_vec();
            let at = at.index(content.len());
            content[at] = byte;
            // It is read with other contents, or refused; what was read can be written again.
            if let Ok(read) = decode(&sealed(1, &content)) {
                prop_assert_eq!(decode(&encode(&read)), Ok(read));
            }
        }
    }
}
