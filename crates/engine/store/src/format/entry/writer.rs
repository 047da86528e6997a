//! Encoding a commit as an entry.

use std::ops::Range;

use super::super::page::PageKind;
use super::super::superblock::{MAX_USER_BYTES, StoreMeta};
use super::super::varint;
use super::{
    ENTRY_VERSION, FLAG_MORE, KIND_DIFF, KIND_FREE, KIND_FULL_PAGE_IMAGE, META_FREE_HEAD, META_ROOT,
    PART_HEADER, diff,
};
use crate::{PageNo, Seq};

/// Takes the changes of a commit, and returns the bodies of its records.
#[derive(Debug)]
pub(crate) struct EntryWriter {
    seq: Seq,
    /// Space for the first part's header, and the items.
    bytes: Vec<u8>,
    /// The ends of the items.
    ends: Vec<usize>,
}

impl EntryWriter {
    /// Begins the entry of commit `seq`, after which `meta` describes the store.
    pub(crate) fn new(seq: Seq, meta: &StoreMeta) -> Self {
        debug_assert!(meta.user.len() <= MAX_USER_BYTES);
        let mut head = Vec::with_capacity(1 + 4 * varint::MAX_LEN);
        head.push(meta.root.map_or(0, |_| META_ROOT) | meta.free_head.map_or(0, |_| META_FREE_HEAD));
        let (root, free_head) = (meta.root.map(PageNo::get), meta.free_head.map(PageNo::get));
        let numbers = [root, Some(meta.pages), free_head, Some(meta.free_pages)];
        numbers.into_iter().flatten().for_each(|number| varint::put(&mut head, number));
        let mut writer = Self { seq, bytes: vec![0; PART_HEADER], ends: Vec::new() };
        varint::put(&mut writer.bytes, (head.len() + meta.user.len()) as u64);
        writer.bytes.extend_from_slice(&head);
        writer.bytes.extend_from_slice(&meta.user);
        writer.ends.push(writer.bytes.len());
        writer
    }

    /// Adds a page with this payload and checksum, whatever it was before.
    pub(crate) fn full_page_image(&mut self, page: PageNo, kind: PageKind, crc: u32, payload: &[u8]) {
        let (first, bytes) = trim(payload);
        self.change(KIND_FULL_PAGE_IMAGE, kind, page, crc, varint::len(first as u64) + bytes.len());
        varint::put(&mut self.bytes, first as u64);
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    /// Adds a page that has this checksum after these ranges replace those of its version of the
    /// earlier commit `base_seq`. The ranges of the payload ascend, do not overlap, and are not
    /// empty.
    pub(crate) fn diff(
        &mut self,
        page: PageNo,
        kind: PageKind,
        crc: u32,
        base_seq: Seq,
        ranges: &[(u32, &[u8])],
    ) {
        debug_assert!(base_seq < self.seq);
        let encoded = |(end, len): (usize, usize), (start, bytes): &(u32, &[u8])| {
            let start = *start as usize;
            debug_assert!(end <= start && !bytes.is_empty());
            (start + bytes.len(), len + diff::encoded_len(end, start, bytes.len()))
        };
        let (_, len) = ranges.iter().fold((0, 0), encoded);
        let before = self.seq - base_seq;
        self.change(KIND_DIFF, kind, page, crc, varint::len(before) + len);
        varint::put(&mut self.bytes, before);
        let mut end = 0;
        for (start, bytes) in ranges {
            let start = *start as usize;
            varint::put(&mut self.bytes, (start - end) as u64);
            varint::put(&mut self.bytes, bytes.len() as u64);
            self.bytes.extend_from_slice(bytes);
            end = start + bytes.len();
        }
        self.ends.push(self.bytes.len());
    }

    /// Adds a free page with this checksum: that of a page of kind free whose payload is zeros.
    pub(crate) fn free(&mut self, page: PageNo, crc: u32) {
        self.change(KIND_FREE, PageKind::Free, page, crc, 0);
        self.ends.push(self.bytes.len());
    }

    /// Returns the bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Removes the last change, which began at this length.
    pub(crate) fn undo(&mut self, len: usize) {
        self.bytes.truncate(len);
        self.ends.pop();
    }

    /// Returns the bodies of the entry's records in order. None is longer than `longest` bytes,
    /// which must be above 16.
    pub(crate) fn finish(mut self, longest: usize) -> Vec<Vec<u8>> {
        if self.bytes.len() <= longest {
            self.bytes[..PART_HEADER].copy_from_slice(&header(self.seq, 0, false));
            return vec![self.bytes];
        }
        let parts = parts(&self.ends, longest);
        let last = parts.len() - 1;
        let body = |(ordinal, part): (usize, Range<usize>)| {
            let Ok(number) = u32::try_from(ordinal) else { unreachable!("an entry of 2^32 parts") };
            [&header(self.seq, number, ordinal < last), &self.bytes[part]].concat()
        };
        parts.into_iter().enumerate().map(body).collect()
    }

    /// Begins an item, of which `len` bytes follow.
    fn change(&mut self, what: u8, kind: PageKind, page: PageNo, crc: u32, len: usize) {
        varint::put(&mut self.bytes, (1 + varint::len(page.get()) + 4 + len) as u64);
        self.bytes.push(what | (kind as u8) << 4);
        varint::put(&mut self.bytes, page.get());
        self.bytes.extend_from_slice(&crc.to_le_bytes());
    }
}

/// Returns the part of each record of an entry whose items have these ends, without its header. The
/// first item begins behind a header. No record is longer than `longest` bytes.
pub(crate) fn parts(ends: &[usize], longest: usize) -> Vec<Range<usize>> {
    debug_assert!(longest > PART_HEADER);
    let room = longest.saturating_sub(PART_HEADER).max(1);
    let mut parts = Vec::new();
    let (mut start, whole) = (PART_HEADER, ends.last().copied().unwrap_or(PART_HEADER));
    let mut ends = ends.iter().copied().peekable();
    while start < whole {
        // The last item that ends within reach. A longer one is split.
        let mut end = start;
        while let Some(next) = ends.next_if(|next| *next <= start + room) {
            end = next;
        }
        if end == start {
            end = start + room;
        }
        parts.push(start..end);
        start = end;
    }
    parts
}

fn header(seq: Seq, ordinal: u32, goes_on: bool) -> [u8; PART_HEADER] {
    let mut header = [0; PART_HEADER];
    header[0] = ENTRY_VERSION;
    header[1] = if goes_on { FLAG_MORE } else { 0 };
    header[4..8].copy_from_slice(&ordinal.to_le_bytes());
    header[8..].copy_from_slice(&seq.get().to_le_bytes());
    header
}

/// Returns the payload without the zeros at both ends, and where it begins.
fn trim(payload: &[u8]) -> (usize, &[u8]) {
    const STRIDE: usize = 64;
    let zeros = |chunk: &&[u8]| **chunk == [0; STRIDE][..chunk.len()];
    // First in chunks, then byte by byte.
    let skipped = payload.chunks(STRIDE).take_while(zeros).count() * STRIDE;
    let Some(rest) = payload.get(skipped..).filter(|rest| !rest.is_empty()) else {
        return (0, &[]);
    };
    let skipped = skipped + rest.iter().take_while(|byte| **byte == 0).count();
    let behind = payload[skipped..].rchunks(STRIDE).take_while(zeros).count() * STRIDE;
    let bytes = &payload[skipped..payload.len().saturating_sub(behind).max(skipped)];
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    (skipped, &bytes[..end])
}
