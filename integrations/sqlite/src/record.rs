//! The form of a commit in the log: one record with the new length of the database file and the
//! changed blocks, complete or as ranges of bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | kind: 1 blocks follow, 2 they are in the spill file, 3 none: the file was marked |
//! | 1..9 | length of the database file after the commit, in bytes, little endian as all numbers |
//! | kind 1: then per block | its number (8 bytes), number of ranges (2); per range: offset, length (2 each), bytes |
//! | kind 2: 9..21 | number of blocks in the spill file (8 bytes) and CRC-32C of its index (4 bytes) |
//! | kind 3: 9..17 | number of the mark |
//!
//! A log has a record of kind 3 at its checkpoint.
//!
//! Invariants: the log's checksum covers the whole record, so that a commit is redone completely or
//! not at all. A block's first record since the checkpoint has the complete block, which repairs a
//! block torn by a power cut. A record of any other form is not a commit: [`decode`] returns
//! `None`.

/// Size of the blocks that divide the database file, whatever its page size, in bytes.
pub(crate) const BLOCK: usize = 4096;
/// [`BLOCK`] as `u64`.
pub(crate) const BLOCK_BYTES: u64 = BLOCK as u64;

/// The longest form of a block in a record, in bytes: as one range. Several ranges are shorter.
pub(crate) const BLOCK_RECORD_MAX: u64 = BLOCK_BYTES + 14;

pub(crate) type Block = [u8; BLOCK];

const KIND_BLOCKS: u8 = 1;
const KIND_SPILLED: u8 = 2;
const KIND_LENGTH: u8 = 3;
const HEAD_BYTES: usize = 9;
/// Equal bytes between two changes that cost less than the start of another range.
const GAP_BYTES: usize = 8;

/// A commit that is being encoded.
pub(crate) struct Writer {
    body: Vec<u8>,
    blocks: u64,
}

impl Writer {
    /// Starts a commit after which the file has `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        let mut body = vec![KIND_BLOCKS];
        body.extend_from_slice(&size.to_le_bytes());
        Self { body, blocks: 0 }
    }

    /// Adds a complete block.
    pub(crate) fn whole(&mut self, number: u64, new: &Block) {
        self.begin(number);
        self.body.extend_from_slice(&1_u16.to_le_bytes());
        self.range(0, new);
    }

    /// Adds the differences between the old and the new block.
    pub(crate) fn changes(&mut self, number: u64, old: &Block, new: &Block) {
        let ranges = differences(old, new);
        if ranges.is_empty() {
            return;
        }
        self.begin(number);
        self.body.extend_from_slice(&narrow(ranges.len()));
        for (start, end) in ranges {
            self.range(start, &new[start..end]);
        }
    }

    fn begin(&mut self, number: u64) {
        self.blocks += 1;
        self.body.extend_from_slice(&number.to_le_bytes());
    }

    fn range(&mut self, start: usize, bytes: &[u8]) {
        self.body.extend_from_slice(&narrow(start));
        self.body.extend_from_slice(&narrow(bytes.len()));
        self.body.extend_from_slice(bytes);
    }

    pub(crate) fn has_blocks(&self) -> bool {
        self.blocks > 0
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }
}

/// Returns the record of a commit whose blocks are in the spill file.
pub(crate) fn spilled(size: u64, blocks: u64, index: u32) -> Vec<u8> {
    let mut body = vec![KIND_SPILLED];
    body.extend_from_slice(&size.to_le_bytes());
    body.extend_from_slice(&blocks.to_le_bytes());
    body.extend_from_slice(&index.to_le_bytes());
    body
}

/// Returns the record of a file's length when it is marked with this number.
pub(crate) fn length(size: u64, mark: u64) -> Vec<u8> {
    let mut body = vec![KIND_LENGTH];
    body.extend_from_slice(&size.to_le_bytes());
    body.extend_from_slice(&mark.to_le_bytes());
    body
}

/// A decoded commit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Commit<'a> {
    /// Bytes of the file after it.
    pub(crate) size: u64,
    pub(crate) content: Content<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    /// Bytes to write, each range with its block and its offset in the block.
    Ranges(Vec<(u64, usize, &'a [u8])>),
    /// The file was marked with this number, and nothing was written.
    Length { mark: u64 },
    /// The blocks are in the spill file, whose index has this checksum.
    Spilled { blocks: u64, index: u32 },
}

/// Decodes a record.
pub(crate) fn decode(body: &[u8]) -> Option<Commit<'_>> {
    let mut rest = body.get(HEAD_BYTES..)?;
    let size = u64::from_le_bytes(body[1..].first_chunk().copied()?);
    if i64::try_from(size).is_err() {
        return None;
    }
    if body[0] == KIND_LENGTH {
        let content = Content::Length { mark: number(&mut rest)? };
        return rest.is_empty().then_some(Commit { size, content });
    }
    if body[0] == KIND_SPILLED {
        let blocks = number(&mut rest)?;
        let (index, rest) = rest.split_first_chunk()?;
        let content = Content::Spilled { blocks, index: u32::from_le_bytes(*index) };
        return rest.is_empty().then_some(Commit { size, content });
    }
    if body[0] != KIND_BLOCKS {
        return None;
    }
    let mut ranges = Vec::new();
    while !rest.is_empty() {
        let block = number(&mut rest)?;
        // No offset that cannot be written, whoever created the log.
        if block >= size.div_ceil(BLOCK_BYTES) {
            return None;
        }
        for _ in 0..short(&mut rest)? {
            let (start, len) = (short(&mut rest)?, short(&mut rest)?);
            let (bytes, after) = rest.split_at_checked(len)?;
            if start + len > BLOCK {
                return None;
            }
            ranges.push((block, start, bytes));
            rest = after;
        }
    }
    Some(Commit { size, content: Content::Ranges(ranges) })
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u64::from_le_bytes(*bytes))
}

fn short(rest: &mut &[u8]) -> Option<usize> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(usize::from(u16::from_le_bytes(*bytes)))
}

/// Encodes an offset or length in a block, or the number of its ranges.
fn narrow(value: usize) -> [u8; 2] {
    u16::try_from(value).expect("not more than a block").to_le_bytes()
}

/// Returns the ranges in which two blocks differ, in order.
fn differences(old: &Block, new: &Block) -> Vec<(usize, usize)> {
    const WORD_BYTES: usize = 16;
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (word, (before, after)) in old.chunks(WORD_BYTES).zip(new.chunks(WORD_BYTES)).enumerate() {
        if before == after {
            continue;
        }
        for at in 0..WORD_BYTES {
            if before[at] == after[at] {
                continue;
            }
            let at = word * WORD_BYTES + at;
            match ranges.last_mut() {
                Some((_, end)) if at - *end < GAP_BYTES => *end = at + 1,
                _ => ranges.push((at, at + 1)),
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn applied(body: &[u8], to: &Block) -> Block {
        let mut block = *to;
        let Some(Commit { content: Content::Ranges(ranges), .. }) = decode(body) else { panic!("no commit") };
        for (number, start, bytes) in ranges {
            assert_eq!(number, 7);
            block[start..start + bytes.len()].copy_from_slice(bytes);
        }
        block
    }

    proptest! {
        #[test]
        fn changes_make_the_new_of_the_old(edits in prop::collection::vec((0..BLOCK, 1..40_usize, any::<u8>()), 0..60)) {
            let old: Block = std::array::from_fn(|at| u8::try_from(at % 251).unwrap());
            let mut new = old;
            for (start, len, byte) in edits {
                let end = (start + len).min(BLOCK);
                new[start..end].fill(byte);
            }
            let mut writer = Writer::new(4096 * 8);
            writer.changes(7, &old, &new);
            prop_assert_eq!(writer.has_blocks(), old != new);
            prop_assert_eq!(applied(writer.body(), &old), new);
        }

        #[test]
        fn truncated_and_altered_records_are_refused_or_stay_in_bounds(cut in 0..600_usize, at in 0..600_usize, byte: u8) {
            let old = [0; BLOCK];
            let mut new = old;
            new[100..600].fill(3);
            let mut writer = Writer::new(4096 * 8);
            writer.changes(7, &old, &new);
            let mut body = writer.body().to_vec();
            if let Some(place) = body.get_mut(at) {
                *place = byte;
            }
            body.truncate(body.len() - cut.min(body.len()));
            if let Some(Commit { content: Content::Ranges(ranges), .. }) = decode(&body) {
                for (_, start, bytes) in ranges {
                    prop_assert!(start + bytes.len() <= BLOCK);
                }
            }
        }
    }

    #[test]
    fn each_kind_is_read_back() {
        let mut writer = Writer::new(1 << 40);
        assert!(!writer.has_blocks());
        assert_eq!(
            decode(writer.body()),
            Some(Commit { size: 1 << 40, content: Content::Ranges(Vec::new()) })
        );
        writer.whole(7, &[9; BLOCK]);
        assert_eq!(applied(writer.body(), &[0; BLOCK]), [9; BLOCK]);
        let body = spilled(8192, 2, 0xdead_beef);
        let content = Content::Spilled { blocks: 2, index: 0xdead_beef };
        assert_eq!(decode(&body), Some(Commit { size: 8192, content }));
        let length = length(8192, 7);
        assert_eq!(decode(&length), Some(Commit { size: 8192, content: Content::Length { mark: 7 } }));
        for body in [&body, &length] {
            for end in 0..body.len() {
                assert_eq!(decode(&body[..end]), None, "{end}");
            }
        }
    }

    #[test]
    fn a_block_past_the_end_is_no_commit() {
        for (size, number, is_commit) in
            [(4097, 1, true), (4096, 1, false), (8192, 2, false), (1 << 62, u64::MAX, false)]
        {
            let mut writer = Writer::new(size);
            writer.whole(number, &[9; BLOCK]);
            assert_eq!(decode(writer.body()).is_some(), is_commit, "{size} {number}");
        }
        assert_eq!(decode(Writer::new(1 << 63).body()), None);
    }

    #[test]
    fn a_few_bytes_cost_a_few_bytes() {
        let old = [0; BLOCK];
        let mut new = old;
        new[24] = 1;
        new[27] = 1;
        new[4000] = 1;
        assert_eq!(differences(&old, &new), [(24, 28), (4000, 4001)]);
    }
}
