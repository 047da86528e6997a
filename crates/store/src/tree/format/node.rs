//! Leaves and inner pages: entries in the order of their keys, without the bytes that all keys of the page begin with.
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
//! An entry: bytes of the key behind the prefix (2), bytes of what is behind that (2), the key, and then the value, or the number of a page
//! (4). Where the length of the value is [`LARGE`] the value lies in pages of its own: its length (4) and its first page (4).
//!
//! An inner page's first entry has no key: it stands for all keys below the second one's. Any other one stands for its key and all up
//! to the next.
//!
//! Invariant: what [`Node::parse`] has let pass is read without a panic; entries are checked one by one when they are read.

use std::cmp::Ordering;

use super::{Fault, MAX_KEY, MAX_LEVEL, long, short};

/// Bytes before the prefix.
pub(crate) const HEAD: usize = 12;
/// Bytes of an entry beside its key and what is behind that.
pub(crate) const CELL_HEAD: usize = 4;
/// Bytes that an entry takes up in the directory of entries.
pub(crate) const SLOT: usize = 2;
/// As the length of a value: it is in pages of its own.
pub(super) const LARGE: usize = 0xffff;
/// Bytes of what stands for such a value, and of a page's number.
const REF: usize = 8;
const CHILD: usize = 4;

/// Where a large value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LargeRef {
    /// Bytes of the value.
    pub(crate) len: u32,
    /// The head of its first extent.
    pub(crate) page: u32,
}

/// What stands behind the key of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// Of a leaf.
    Value(&'a [u8]),
    /// Of a leaf.
    Large(LargeRef),
    /// Of an inner page: the number of another one.
    Child(u32),
}

impl Body<'_> {
    /// Bytes that it takes up.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Value(value) => value.len(),
            Self::Large(_) => REF,
            Self::Child(_) => CHILD,
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

    /// What is written as its length.
    pub(super) fn tag(&self) -> usize {
        if matches!(self, Self::Large(_)) { LARGE } else { self.len() }
    }
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell<'a> {
    /// The key behind the page's prefix.
    pub(crate) suffix: &'a [u8],
    pub(crate) body: Body<'a>,
    /// Where the entry stands in the payload.
    pub(crate) start: usize,
}

impl Cell<'_> {
    /// Bytes of the entry itself.
    pub(crate) fn len(&self) -> usize {
        CELL_HEAD + self.suffix.len() + self.body.len()
    }

    /// Where its body begins.
    pub(crate) fn body_start(&self) -> usize {
        self.start + CELL_HEAD + self.suffix.len()
    }
}

/// A key that is looked for, behind the page's prefix.
struct Wanted<'a> {
    suffix: &'a [u8],
    head: u64,
}

/// The first eight bytes of a key, with zeros for those that it does not have.
fn head_of(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

/// A leaf or an inner page, to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    bytes: &'a [u8],
    level: u8,
    count: usize,
    prefix: usize,
    heap: usize,
}

impl<'a> Node<'a> {
    /// A payload, if its head makes sense.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Fault> {
        if bytes.len() < HEAD || bytes.len() > usize::from(u16::MAX) {
            return Err(Fault::Magic);
        }
        let level = bytes[2];
        let is_leaf = match &bytes[..2] {
            b"tl" => true,
            b"ti" => false,
            _ => return Err(Fault::Magic),
        };
        if level > MAX_LEVEL {
            return Err(Fault::TooHigh);
        }
        let (count, heap, prefix) = (short(bytes, 4), short(bytes, 6), short(bytes, 8));
        let node = Self { bytes, level, count, prefix, heap };
        let is_sound = is_leaf == (level == 0)
            && (is_leaf || count > 0)
            && bytes[3] == 0
            && bytes[10..12] == [0; 2]
            && prefix <= MAX_KEY
            && node.slots_end() <= heap
            && heap <= bytes.len();
        if is_sound { Ok(node) } else { Err(Fault::Head) }
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// How many entries there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// What all keys begin with.
    pub(crate) fn prefix(&self) -> &'a [u8] {
        &self.bytes[HEAD..HEAD + self.prefix]
    }

    pub(super) fn slots_start(&self) -> usize {
        HEAD + self.prefix
    }

    pub(super) fn slots_end(&self) -> usize {
        self.slots_start() + SLOT * self.count
    }

    /// Where entries begin.
    pub(super) fn heap(&self) -> usize {
        self.heap
    }

    /// Bytes between the directory and the entries.
    pub(crate) fn gap(&self) -> usize {
        self.heap - self.slots_end()
    }

    /// An entry. There must be as many.
    pub(crate) fn cell(&self, at: usize) -> Result<Cell<'a>, Fault> {
        let fault = Fault::Entry(at);
        if at >= self.count {
            return Err(fault);
        }
        let start = short(self.bytes, self.slots_start() + SLOT * at);
        if start < self.heap || start + CELL_HEAD > self.bytes.len() {
            return Err(fault);
        }
        let (key, tag) = (short(self.bytes, start), short(self.bytes, start + 2));
        let body = start + CELL_HEAD + key;
        let len = match tag {
            LARGE if self.is_leaf() => REF,
            len if self.is_leaf() || len == CHILD => len,
            _ => return Err(fault),
        };
        if body + len > self.bytes.len() || self.prefix + key > MAX_KEY {
            return Err(fault);
        }
        let body = &self.bytes[body..body + len];
        let body = match tag {
            _ if !self.is_leaf() => Body::Child(long(body, 0)),
            LARGE => Body::Large(LargeRef { len: long(body, 0), page: long(body, 4) }),
            _ => Body::Value(body),
        };
        let first = start + CELL_HEAD;
        Ok(Cell { suffix: &self.bytes[first..first + key], body, start })
    }

    /// All entries.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Result<Cell<'a>, Fault>> + '_ {
        (0..self.count).map(|at| self.cell(at))
    }

    /// The whole key of an entry.
    pub(crate) fn key(&self, at: usize) -> Result<Vec<u8>, Fault> {
        Ok([self.prefix(), self.cell(at)?.suffix].concat())
    }

    /// The number of the page that an entry of an inner page names.
    pub(crate) fn child(&self, at: usize) -> Result<u64, Fault> {
        match self.cell(at)?.body {
            Body::Child(page) => Ok(u64::from(page)),
            Body::Value(_) | Body::Large(_) => Err(Fault::Entry(at)),
        }
    }

    /// A key without the page's prefix, which it must begin with.
    pub(crate) fn suffix<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Fault> {
        key.strip_prefix(self.prefix()).ok_or(Fault::Prefix)
    }

    /// Which entry of a leaf has this key, or before which one it would come.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Result<usize, usize>, Fault> {
        self.search(self.suffix(key)?, 0)
    }

    /// Which entry of an inner page stands for this key.
    pub(crate) fn find_child(&self, key: &[u8]) -> Result<usize, Fault> {
        Ok(match self.search(self.suffix(key)?, 1)? {
            Ok(at) => at,
            Err(after) => after - 1,
        })
    }

    /// Among the entries from `first` on.
    fn search(&self, suffix: &[u8], first: usize) -> Result<Result<usize, usize>, Fault> {
        let wanted = Wanted { suffix, head: head_of(suffix) };
        let (mut low, mut high) = (first, self.count.max(first));
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.compare(middle, &wanted)? {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(Ok(middle)),
                Ordering::Greater => high = middle,
            }
        }
        Ok(Err(low))
    }

    /// How an entry's key stands to another one. By their first bytes, as a number, where these differ.
    #[inline]
    fn compare(&self, at: usize, wanted: &Wanted<'_>) -> Result<Ordering, Fault> {
        let slot = self.slots_start() + SLOT * at;
        let start = short(self.bytes, slot);
        let first = start + CELL_HEAD;
        if start >= self.heap
            && first < self.bytes.len()
            && let Some(bytes) = self.bytes[first..].first_chunk::<8>()
        {
            let len = short(self.bytes, start);
            let beyond = if len < 8 { u64::MAX >> (8 * len) } else { 0 };
            let order = (u64::from_be_bytes(*bytes) & !beyond).cmp(&wanted.head);
            if order != Ordering::Equal {
                return Ok(order);
            }
        }
        Ok(self.cell(at)?.suffix.cmp(wanted.suffix))
    }

    /// Bytes that its entries take up, and their places in the directory, if keys had so many bytes less of prefix.
    pub(crate) fn used(&self, prefix: usize) -> Result<usize, Fault> {
        let more = self.prefix.saturating_sub(prefix);
        let mut used = 0;
        for (at, cell) in self.cells().enumerate() {
            let more = if at == 0 && !self.is_leaf() { 0 } else { more };
            used += SLOT + cell?.len() + more;
        }
        Ok(used)
    }

    /// Bytes that it needs, put together anew.
    pub(crate) fn live(&self) -> Result<usize, Fault> {
        Ok(self.slots_start() + self.used(self.prefix)?)
    }
}

/// Bytes that two keys have in common at their beginning.
pub(crate) fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
