//! Leaves and inner pages: entries in the order of their keys, without the common prefix of all
//! keys of the page.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..2 | `tl`: a leaf; `ti`: an inner page |
//! | 2 | level: 0 of a leaf, above a leaf 1 |
//! | 3 | zero |
//! | 4..6 | entries |
//! | 6..8 | where the first byte of an entry stands: the payload's end if there is none |
//! | 8..10 | bytes of the prefix |
//! | 10..12 | zeros |
//! | 12.. | the prefix, then for each entry in order where it stands (2) |
//! | at its end | the entries, in any order |
//!
//! An entry has the length of its key without the prefix (2), the length of its body (2), the key,
//! and the body: the value, or the number of a page (4). If the length of the value is
//! [`LARGE_TAG`], the value is in separate pages, and the body has its length (4) and its first
//! page (4).
//!
//! The first entry of an inner page has no key: it stands for all keys below the second entry's.
//! Each other entry stands for its key and all keys up to the next one's.
//!
//! Invariant: a page that [`Node::parse`] accepts is read without panics. Entries are checked one
//! by one as they are read.

use std::cmp::Ordering;

use pagekeeper_store::PageNo;

use super::{MAX_LEVEL, NodeFault, long, max_key, short};

/// Bytes before the prefix.
pub(crate) const NODE_HEAD_BYTES: usize = 12;
/// Bytes of an entry beside its key and body.
pub(crate) const CELL_HEAD_BYTES: usize = 4;
/// Bytes of an entry's slot in the directory.
pub(crate) const SLOT_BYTES: usize = 2;
/// The length that stands for a value in separate pages.
pub(super) const LARGE_TAG: usize = 0xffff;
/// Bytes of the reference to such a value, and of a page's number.
pub(crate) const LARGE_REF_BYTES: usize = 8;
const CHILD_BYTES: usize = 4;

/// The place of a large value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LargeRef {
    /// Bytes of the value.
    pub(crate) len: u32,
    /// The head of its first extent.
    pub(crate) page: u32,
}

/// The body of an entry, which follows its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryBody<'a> {
    /// In a leaf.
    Value(&'a [u8]),
    /// In a leaf.
    Large(LargeRef),
    /// In an inner page: the number of another page.
    Child(u32),
}

impl EntryBody<'_> {
    /// Returns its length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Value(value) => value.len(),
            Self::Large(_) => LARGE_REF_BYTES,
            Self::Child(_) => CHILD_BYTES,
        }
    }

    pub(super) fn write(&self, to: &mut [u8]) {
        match self {
            Self::Value(value) => to.copy_from_slice(value),
            Self::Large(LargeRef { len, page }) => {
                to[..4].copy_from_slice(&len.to_le_bytes());
                to[4..].copy_from_slice(&page.to_le_bytes());
            }
            Self::Child(page) => to.copy_from_slice(&page.to_le_bytes()),
        }
    }

    /// Returns the number that is written as its length.
    pub(super) fn tag(&self) -> usize {
        if matches!(self, Self::Large(_)) { LARGE_TAG } else { self.len() }
    }
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell<'a> {
    /// The key behind the page's prefix.
    pub(crate) suffix: &'a [u8],
    pub(crate) body: EntryBody<'a>,
    /// The offset of the entry in the payload.
    pub(crate) start: usize,
}

impl Cell<'_> {
    /// Returns the length of the entry in bytes.
    pub(crate) fn len(&self) -> usize {
        CELL_HEAD_BYTES + self.suffix.len() + self.body.len()
    }

    /// Returns the offset of its body.
    pub(crate) fn body_start(&self) -> usize {
        self.start + CELL_HEAD_BYTES + self.suffix.len()
    }
}

/// Returns the first eight bytes of a key, padded with zeros.
#[inline]
fn head_of(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => key.iter().rev().fold(0, |head, byte| head >> 8 | u64::from(*byte) << 56),
    }
}

/// For each key length, the bits of a head that belong to the key.
const HEAD_MASKS_BY_LENGTH: [u64; 9] = {
    let mut of = [u64::MAX; 9];
    let mut len = 0;
    while len < 8 {
        of[len] = !(u64::MAX >> (8 * len));
        len += 1;
    }
    of
};

/// The place of an entry in the payload.
struct CellPlace {
    start: usize,
    /// The offset of its body.
    body: usize,
    end: usize,
    is_large: bool,
}

/// A leaf or an inner page, for reading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    bytes: &'a [u8],
    level: u8,
    count: usize,
    prefix: usize,
    heap: usize,
}

impl<'a> Node<'a> {
    /// Accepts a payload if its head is valid.
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, NodeFault> {
        Self::of_head(bytes).ok_or_else(|| Self::fault_of(bytes))
    }

    /// The fast path of [`parse`](Self::parse).
    #[inline]
    pub(crate) fn of_head(bytes: &'a [u8]) -> Option<Self> {
        let fields: &[u8; NODE_HEAD_BYTES] = bytes.first_chunk()?;
        let level = fields[2];
        let magic = if level == 0 { *b"tl" } else { *b"ti" };
        let (count, heap, prefix) = (short(fields, 4), short(fields, 6), short(fields, 8));
        let node = Self { bytes, level, count, prefix, heap };
        let is_sound = u16::try_from(bytes.len()).is_ok()
            && fields[..2] == magic
            && level <= MAX_LEVEL
            && (level == 0 || count > 0)
            && fields[3] == 0
            && fields[10..] == [0; 2]
            && prefix <= max_key(bytes.len())
            && node.slots_end() <= heap
            && heap <= bytes.len();
        is_sound.then_some(node)
    }

    /// Returns why a payload's head is invalid.
    #[cold]
    fn fault_of(bytes: &[u8]) -> NodeFault {
        let is_magic = matches!(bytes.first_chunk(), Some(b"tl" | b"ti"));
        if bytes.len() < NODE_HEAD_BYTES || bytes.len() > usize::from(u16::MAX) || !is_magic {
            NodeFault::Magic
        } else if bytes[2] > MAX_LEVEL {
            NodeFault::TooHigh
        } else {
            NodeFault::Head
        }
    }

    #[inline]
    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Returns the number of entries.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the common prefix of all keys.
    #[inline]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        &self.bytes[NODE_HEAD_BYTES..NODE_HEAD_BYTES + self.prefix]
    }

    #[inline]
    pub(super) fn slots_start(&self) -> usize {
        NODE_HEAD_BYTES + self.prefix
    }

    #[inline]
    pub(super) fn slots_end(&self) -> usize {
        self.slots_start() + SLOT_BYTES * self.count
    }

    /// Returns the offset where entries begin.
    pub(super) fn heap(&self) -> usize {
        self.heap
    }

    /// Returns the bytes between the directory and the entries.
    pub(crate) fn gap(&self) -> usize {
        self.heap - self.slots_end()
    }

    /// Returns the place of an entry, if it is within the page.
    #[inline]
    fn place(&self, at: usize) -> Option<CellPlace> {
        if at >= self.count {
            return None;
        }
        let start = short(self.bytes, self.slots_start() + SLOT_BYTES * at);
        if start < self.heap || start + CELL_HEAD_BYTES > self.bytes.len() {
            return None;
        }
        let (key, tag) = (short(self.bytes, start), short(self.bytes, start + 2));
        let len = match tag {
            LARGE_TAG if self.is_leaf() => LARGE_REF_BYTES,
            len if self.is_leaf() || len == CHILD_BYTES => len,
            _ => return None,
        };
        let body = start + CELL_HEAD_BYTES + key;
        let is_within = body + len <= self.bytes.len() && self.prefix + key <= max_key(self.bytes.len());
        is_within.then_some(CellPlace { start, body, end: body + len, is_large: tag == LARGE_TAG })
    }

    /// Returns an entry, which must exist.
    #[inline]
    pub(crate) fn cell(&self, at: usize) -> Result<Cell<'a>, NodeFault> {
        let CellPlace { start, body, end, is_large } = self.place(at).ok_or(NodeFault::Entry(at))?;
        let suffix = &self.bytes[start + CELL_HEAD_BYTES..body];
        let body = &self.bytes[body..end];
        let body = match is_large {
            _ if !self.is_leaf() => EntryBody::Child(long(body, 0)),
            true => EntryBody::Large(LargeRef { len: long(body, 0), page: long(body, 4) }),
            false => EntryBody::Value(body),
        };
        Ok(Cell { suffix, body, start })
    }

    /// Returns all entries.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Result<Cell<'a>, NodeFault>> + '_ {
        (0..self.count).map(|at| self.cell(at))
    }

    /// Returns the whole key of an entry.
    pub(crate) fn key(&self, at: usize) -> Result<Vec<u8>, NodeFault> {
        Ok([self.prefix(), self.cell(at)?.suffix].concat())
    }

    /// Returns the number of the page in an entry of an inner page.
    #[inline]
    pub(crate) fn child(&self, at: usize) -> Result<PageNo, NodeFault> {
        match self.place(at) {
            Some(place) if !self.is_leaf() => Ok(long(self.bytes, place.body).into()),
            _ => Err(NodeFault::Entry(at)),
        }
    }

    /// Returns a key without the page's prefix, with which it must begin.
    #[inline]
    pub(crate) fn suffix<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], NodeFault> {
        key.strip_prefix(self.prefix()).ok_or(NodeFault::Prefix)
    }

    /// Returns the entry of a leaf with this key, or the one before which it would come.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Result<Result<usize, usize>, NodeFault> {
        self.search(self.suffix(key)?, 0)
    }

    /// Returns the entry of an inner page that stands for this key.
    #[inline]
    pub(crate) fn find_child(&self, key: &[u8]) -> Result<usize, NodeFault> {
        Ok(match self.search(self.suffix(key)?, 1)? {
            Ok(at) => at,
            Err(after) => after - 1,
        })
    }

    /// Searches the entries from `first` on.
    ///
    /// Compares the first bytes of keys as numbers. The next half is computed rather than branched
    /// to, since such a branch is mispredicted half of the time, and that costs more than the
    /// comparison. Only the entry found in this way is compared as a whole. If it is below the key,
    /// other entries with the same first bytes may be below it, too.
    #[inline]
    fn search(&self, suffix: &[u8], first: usize) -> Result<Result<usize, usize>, NodeFault> {
        let wanted = head_of(suffix);
        let (mut low, mut left) = (first, self.count.saturating_sub(first));
        while left > 0 {
            let half = left.div_ceil(2);
            let middle = low + half - 1;
            let is_below = self.head(middle).ok_or(NodeFault::Entry(middle))? < wanted;
            low = std::hint::select_unpredictable(is_below, low + half, low);
            left -= half;
        }
        if low >= self.count || self.head(low).is_some_and(|head| head != wanted) {
            return Ok(Err(low));
        }
        match self.cell(low)?.suffix.cmp(suffix) {
            Ordering::Less => self.search_whole(suffix, low + 1),
            Ordering::Equal => Ok(Ok(low)),
            Ordering::Greater => Ok(Err(low)),
        }
    }

    /// Does the same with whole keys.
    fn search_whole(&self, suffix: &[u8], first: usize) -> Result<Result<usize, usize>, NodeFault> {
        let (mut low, mut high) = (first, self.count.max(first));
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.cell(middle)?.suffix.cmp(suffix) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(Ok(middle)),
                Ordering::Greater => high = middle,
            }
        }
        Ok(Err(low))
    }

    /// Returns the first eight bytes of an entry's key without the prefix, as [`head_of`] does.
    #[inline]
    fn head(&self, at: usize) -> Option<u64> {
        let start = short(self.bytes, self.slots_start() + SLOT_BYTES * at);
        match self.bytes.get(start..).and_then(<[u8]>::first_chunk::<{ CELL_HEAD_BYTES + 8 }>) {
            Some(cell) if start >= self.heap => {
                let head = u64::from_be_bytes(std::array::from_fn(|byte| cell[CELL_HEAD_BYTES + byte]));
                // Bytes behind a shorter key do not belong to it.
                Some(head & HEAD_MASKS_BY_LENGTH[short(cell, 0).min(8)])
            }
            // The entry is at the page's end, or invalid.
            _ => self.head_of_whole(at),
        }
    }

    #[cold]
    fn head_of_whole(&self, at: usize) -> Option<u64> {
        self.cell(at).ok().map(|cell| head_of(cell.suffix))
    }

    /// Returns the bytes of its entries, and of their slots in the directory, if the prefix were at
    /// most `prefix` bytes long.
    pub(crate) fn used(&self, prefix: usize) -> Result<usize, NodeFault> {
        let more = self.prefix.saturating_sub(prefix);
        let mut used = 0;
        for (at, cell) in self.cells().enumerate() {
            let more = if at == 0 && !self.is_leaf() { 0 } else { more };
            used += SLOT_BYTES + cell?.len() + more;
        }
        Ok(used)
    }

    /// Returns the bytes that it needs when it is rebuilt.
    pub(crate) fn live(&self) -> Result<usize, NodeFault> {
        Ok(self.slots_start() + self.used(self.prefix)?)
    }
}

/// Returns the length of the common prefix of two keys.
pub(crate) fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
