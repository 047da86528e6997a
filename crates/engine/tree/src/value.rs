//! Values, including large ones in extents of separate pages.
//!
//! A new value takes free pages first, with one extent for each row of consecutive pages, and the
//! rest from a run at the end of the data file. A value that takes as many pages as the previous
//! one overwrites it, but only the pages that differ.
//!
//! Invariant: the pages of a value follow only from its length and its extents' heads; none of its
//! bytes counts as a head.

use std::fmt;
use std::ops::{Deref, Range};

use pagekeeper_store::{Page, PageNo, WriteTxn};

use crate::error::{TreeError, at};
use crate::format::NodeFault;
use crate::format::extent::{EXTENT_HEAD_BYTES, Extent, pages_for, room_of};
use crate::format::node::LargeRef;
use crate::read::Pages;

/// The value of an entry as it was when it was read; later commits do not change it. While it
/// exists, it keeps a page in memory, or memory of its own length.
#[derive(Clone)]
pub struct Value(ValueBytes);

#[derive(Clone)]
enum ValueBytes {
    Page(Page, Range<usize>),
    Bytes(Vec<u8>),
}

impl Value {
    /// Returns part of a page, which is known to be within it.
    pub(crate) fn in_page(page: Page, bytes: Range<usize>) -> Self {
        Self(ValueBytes::Page(page, bytes))
    }

    /// Returns copied bytes.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self(ValueBytes::Bytes(bytes))
    }

    /// Returns the value's bytes, copied if they are in a page.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            ValueBytes::Page(page, bytes) => page[bytes].to_vec(),
            ValueBytes::Bytes(bytes) => bytes,
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ValueBytes::Page(page, bytes) => &page[bytes.clone()],
            ValueBytes::Bytes(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Returns the extents of a value, each with the number of its first page. They have as many pages
/// as the value needs, and all of them are in the store.
pub(crate) fn extents(pages: &impl Pages, large: LargeRef) -> Result<Vec<(PageNo, Extent)>, TreeError> {
    let (mut found, mut left, mut next) = (Vec::new(), u64::from(large.len), Some(large.page));
    // The extents of a value that contains itself would never end, nor would the memory for them.
    let mut count_in_all = 0;
    while left > 0 {
        let Some(number) = next.map(PageNo::from) else {
            return Err(at(large.page.into())(NodeFault::Extent));
        };
        let (parsed, payload) = pages.page_with(number, |head| (Extent::parse(head), head.len()))?;
        let extent = parsed.map_err(at(number))?;
        let count = u64::from(extent.pages);
        count_in_all += count;
        let most = pages.end();
        if count > pages_for(left, payload) || number.get() + count > most || count_in_all > most {
            return Err(at(number)(NodeFault::Extent));
        }
        left = left.saturating_sub(room_of(count, payload));
        next = extent.next;
        found.push((number, extent));
    }
    if next.is_some() || found.is_empty() {
        return Err(at(large.page.into())(NodeFault::Extent));
    }
    Ok(found)
}

/// One page of a value.
struct ValuePart {
    page: PageNo,
    /// The range of the value in it.
    bytes: Range<usize>,
    /// The extent's head, if it is the first page of one.
    head: Option<Extent>,
}

impl ValuePart {
    /// Returns the range in the page.
    fn place(&self) -> Range<usize> {
        let start = if self.head.is_some() { EXTENT_HEAD_BYTES } else { 0 };
        start..start + self.bytes.len()
    }
}

/// Returns the pages of a value in order.
fn parts(extents: &[(PageNo, Extent)], len: usize, payload: usize) -> Vec<ValuePart> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for (first, extent) in extents {
        for page in 0..u64::from(extent.pages) {
            let head = Some(*extent).filter(|_| page == 0);
            let end = len.min(start + payload - if head.is_some() { EXTENT_HEAD_BYTES } else { 0 });
            parts.push(ValuePart { page: *first + page, bytes: start..end, head });
            start = end;
        }
    }
    parts
}

/// Returns the range of a value that has one page with this head; `None` if it has more pages, or
/// anything is wrong.
fn in_one_page(head: &[u8], large: LargeRef) -> Option<Range<usize>> {
    let only = Extent { pages: 1, next: None };
    let place = EXTENT_HEAD_BYTES..EXTENT_HEAD_BYTES + large.len as usize;
    let is_one = large.len > 0 && Extent::parse(head) == Ok(only) && place.end <= head.len();
    is_one.then_some(place)
}

/// Reads a value.
pub(crate) fn read(pages: &impl Pages, large: LargeRef) -> Result<Value, TreeError> {
    let head = pages.page(large.page.into())?;
    if let Some(place) = in_one_page(&head, large) {
        return Ok(Value::in_page(head, place));
    }
    let mut bytes = Vec::new();
    read_into(pages, large, head.len(), &mut bytes)?;
    Ok(Value::of(bytes))
}

/// Replaces the buffer's content by the bytes of a value, whose pages have payloads of this length.
fn read_into(
    pages: &impl Pages,
    large: LargeRef,
    payload: usize,
    bytes: &mut Vec<u8>,
) -> Result<(), TreeError> {
    let (extents, len) = (extents(pages, large)?, large.len as usize);
    bytes.clear();
    bytes.reserve(len);
    for part in parts(&extents, len, payload) {
        let copied = pages.page_with(part.page, |page| {
            bytes.extend_from_slice(page.get(part.place()).ok_or(NodeFault::Extent)?);
            Ok(())
        })?;
        copied.map_err(at(part.page))?;
    }
    Ok(())
}

/// Calls `read` with the bytes of a value: in place if it has one page, otherwise assembled in
/// `room`.
#[inline]
pub(crate) fn read_with<T>(
    pages: &impl Pages,
    large: LargeRef,
    room: &mut Vec<u8>,
    read_bytes: impl FnOnce(&[u8]) -> T,
) -> Result<T, TreeError> {
    let in_place = pages.page_with(large.page.into(), |head| match in_one_page(head, large) {
        Some(place) => Ok(read_bytes(&head[place])),
        None => Err((read_bytes, head.len())),
    })?;
    in_place.or_else(|(read_bytes, payload)| {
        read_into(pages, large, payload, room)?;
        Ok(read_bytes(room))
    })
}

/// Returns the pages of a value, after checking that each can be read, and that only zeros follow
/// its end.
pub(crate) fn check(pages: &impl Pages, large: LargeRef) -> Result<Vec<PageNo>, TreeError> {
    let extents = extents(pages, large)?;
    let payload = pages.page(extents[0].0)?.len();
    let mut found = Vec::new();
    for part in parts(&extents, large.len as usize, payload) {
        let page = pages.page(part.page)?;
        if page[part.place().end..].iter().any(|byte| *byte != 0) {
            return Err(at(part.page)(NodeFault::Tail));
        }
        found.push(part.page);
    }
    Ok(found)
}

/// Writes a value, which must not be empty, to new pages.
pub(crate) fn write(txn: &mut WriteTxn<'_>, value: &[u8]) -> Result<LargeRef, TreeError> {
    let len = u32::try_from(value.len()).unwrap_or_else(|_| unreachable!("its length was checked"));
    let (extents, payload) = allocate(txn, len)?;
    let mut room = vec![0; payload];
    for part in parts(&extents, value.len(), payload) {
        if let Some(head) = part.head {
            room[..EXTENT_HEAD_BYTES].copy_from_slice(&head.encode());
        }
        let place = part.place();
        room[place.end..].fill(0);
        room[place].copy_from_slice(&value[part.bytes]);
        txn.write(part.page, &room)?;
    }
    let first = extents.first().map(|(number, _)| *number);
    let page = first.and_then(|page| u32::try_from(page.get()).ok());
    let page =
        page.unwrap_or_else(|| unreachable!("a store has less than 2^32 pages, and a value one or more"));
    Ok(LargeRef { len, page })
}

/// Allocates pages for a value of this length. Returns them, and the bytes of a payload.
fn allocate(txn: &mut WriteTxn<'_>, len: u32) -> Result<(Vec<(PageNo, Extent)>, usize), TreeError> {
    let (mut found, mut left): (Vec<(PageNo, u64)>, _) = (Vec::new(), u64::from(len));
    let mut payload = 0;
    while left > 0 {
        let end = txn.pages();
        let page = txn.allocate()?;
        payload = txn.read(page)?.len();
        match found.last_mut() {
            Some((first, count)) if *first + *count == page => {
                *count += 1;
                left = left.saturating_sub(payload as u64);
            }
            _ => {
                found.push((page, 1));
                left = left.saturating_sub(room_of(1, payload));
            }
        }
        // No page was free: the missing ones are allocated as one run behind that page.
        if page.get() == end && left > 0 {
            let wanting = left.div_ceil(payload as u64);
            txn.allocate_run(wanting)?;
            if let Some((_, count)) = found.last_mut() {
                *count += wanting;
            }
            left = 0;
        }
    }
    let narrow = |number: u64| {
        u32::try_from(number).unwrap_or_else(|_| unreachable!("a store has less than 2^32 pages"))
    };
    let next = found.iter().skip(1).map(|(page, _)| Some(narrow(page.get()))).chain([None]);
    let extents =
        found.iter().zip(next).map(|((first, count), next)| (*first, Extent { pages: narrow(*count), next }));
    Ok((extents.collect(), payload))
}

/// Overwrites a value. Returns false, with nothing changed, if the new value takes fewer or more
/// pages.
pub(crate) fn overwrite(txn: &mut WriteTxn<'_>, before: LargeRef, value: &[u8]) -> Result<bool, TreeError> {
    let extents = extents(txn, before)?;
    let payload = txn.read(before.page.into())?.len();
    let room: u64 = extents.iter().map(|(_, extent)| room_of(extent.pages.into(), payload)).sum();
    let parts = parts(&extents, value.len(), payload);
    if value.len() as u64 > room || parts.last().is_none_or(|part| part.bytes.is_empty()) {
        return Ok(false);
    }
    for part in parts {
        let (place, bytes) = (part.place(), &value[part.bytes]);
        let is_same = {
            let page = txn.read(part.page)?;
            page[place.clone()] == *bytes && page[place.end..].iter().all(|byte| *byte == 0)
        };
        if !is_same {
            let page = txn.page_mut(part.page)?;
            page[place.end..].fill(0);
            page[place].copy_from_slice(bytes);
        }
    }
    Ok(true)
}

/// Frees the pages of a value, the last one first, so that they are allocated in their order again.
pub(crate) fn free(txn: &mut WriteTxn<'_>, large: LargeRef) -> Result<(), TreeError> {
    for (first, extent) in extents(txn, large)?.into_iter().rev() {
        for page in PageNo::each(first..first + u64::from(extent.pages)).rev() {
            txn.free(page)?;
        }
    }
    Ok(())
}
