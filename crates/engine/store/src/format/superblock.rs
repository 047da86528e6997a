//! The superblock: identifies a store, and says up to which commit its data file is complete.
//!
//! Two slots of 4096 bytes with the same content. They are written one after the other, each with a
//! sync, before anything is done that only the newer one covers. So either of them may be lost. The
//! one with the larger number is valid.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..8 | `pkstore` and a zero |
//! | 8..10 | version, 2 |
//! | 10..12 | flags: 1: the first change of a page after a checkpoint start may be a diff; 2: there is a root page; 4: there is a free list |
//! | 12..16 | bytes of a page |
//! | 16..24 | number of the write: the larger is newer |
//! | 24..32 | random id of the store |
//! | 32..40 | seq of the last commit that the data file has |
//! | 40..48 | LSN behind it: where reading the journal begins |
//! | 48..56 | maximum bytes of the journal that the data file may not have |
//! | 56..64 | number of pages |
//! | 64..72 | root page, if there is one |
//! | 72..80 | first trunk of the free list, if there is one |
//! | 80..88 | number of free pages |
//! | 88..90 | bytes of the user's metadata |
//! | 90..96 | zeros |
//! | 96..1120 | the user's metadata, filled up with zeros |
//! | 1120..1128 | id of the journal |
//! | 1128..4092 | zeros |
//! | 4092..4096 | CRC-32C of all before |
//!
//! Valid values: at most 2^32 - 2 pages, 64 KiB to 1 TiB of journal, and numbers of commits and
//! writes below 2^63, so that counting on from them does not overflow.
//!
//! Invariant: magic, version and checksum have the same position in all versions, so that a later
//! version is distinguished from corruption.

use pagekeeper_wal::Lsn;

use crate::{PageNo, Seq};

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = 4096;

/// Maximum bytes of the user's metadata.
pub(crate) const MAX_USER_BYTES: usize = 1024;

/// The smallest page, in bytes.
pub(crate) const MIN_PAGE_BYTES: u32 = 4096;

/// The largest page, in bytes.
pub(crate) const MAX_PAGE_BYTES: u32 = 65536;

const SLOT_MAGIC: [u8; 8] = *b"pkstore\0";
/// The version that is written, and the only one that is read.
pub(crate) const SUPERBLOCK_VERSION: u16 = 2;
const USER_OFFSET: usize = 96;
const JOURNAL_OFFSET: usize = USER_OFFSET + MAX_USER_BYTES;
const CHECKED_BYTES: usize = SLOT_BYTES - 4;

/// Maximum number of pages: the cache numbers them with 32 bits.
pub(crate) const MAX_PAGES: u64 = u32::MAX as u64 - 1;

/// The smallest limit of a journal, in bytes.
pub(crate) const MIN_JOURNAL_BYTES: u64 = 64 << 10;

/// The largest limit, in bytes.
pub(crate) const MAX_JOURNAL_BYTES: u64 = 1 << 40;

/// Maximum number of a commit, and of a write of a slot.
pub(crate) const MAX_SEQ: u64 = u64::MAX >> 1;

const FLAG_FIRST_DIFFS: u16 = 1;
const FLAG_ROOT: u16 = 2;
const FLAG_FREE_HEAD: u16 = 4;

/// The state of the store as a whole that each commit records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StoreMeta {
    /// The user's root page. It is not checked against the number of pages.
    pub(crate) root: Option<PageNo>,
    /// Number of pages, including free ones.
    pub(crate) pages: u64,
    /// The first trunk of the free list.
    pub(crate) free_head: Option<PageNo>,
    /// Number of free pages, including trunks.
    pub(crate) free_pages: u64,
    /// At most [`MAX_USER_BYTES`] bytes.
    pub(crate) user: Vec<u8>,
}

/// The content of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// The number of the write; the larger is newer.
    pub(crate) number: u64,
    /// The random id of the store.
    pub(crate) store: u64,
    /// The page size in bytes: a power of two, [`MIN_PAGE_BYTES`] to [`MAX_PAGE_BYTES`].
    pub(crate) page_size: u32,
    /// The last commit that is durable in the data file.
    pub(crate) checkpoint_seq: Seq,
    /// The LSN just behind its entry in the journal.
    pub(crate) checkpoint_lsn: Lsn,
    /// The journal's limit, in bytes.
    pub(crate) max_journal_bytes: u64,
    /// Whether the first change of a page after a checkpoint start may be a diff: the data file is
    /// written by atomic writes.
    pub(crate) first_diffs: bool,
    /// The random id of the journal.
    pub(crate) journal: u64,
    /// The meta as of that commit.
    pub(crate) meta: StoreMeta,
}

/// The result of reading a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotContent {
    /// It is intact.
    Superblock(Superblock),
    /// It is intact, but its version is not known here.
    Version(u16),
    /// It is corrupt, or its values are invalid.
    Nothing(SlotFault),
}

/// The reason why a slot is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SlotFault {
    #[error("behind the end of the file")]
    Missing,
    #[error("all zeros")]
    Blank,
    #[error("not a superblock's")]
    Foreign,
    #[error("its checksum does not hold")]
    Checksum,
    #[error("its content is invalid")]
    Senseless,
}

impl StoreMeta {
    /// Whether the store's own values are consistent.
    pub(super) fn is_sound(&self) -> bool {
        self.free_pages <= self.pages
            && self.free_head.is_none_or(|page| page.get() < self.pages)
            && self.user.len() <= MAX_USER_BYTES
    }
}

impl Superblock {
    /// Encodes a slot.
    ///
    /// # Panics
    /// If the user's metadata is longer than [`MAX_USER_BYTES`].
    pub(crate) fn encode(&self) -> [u8; SLOT_BYTES] {
        let meta = &self.meta;
        debug_assert!(meta.is_sound(), "{meta:?}");
        let mut bytes = [0; SLOT_BYTES];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let flags = flag(self.first_diffs, FLAG_FIRST_DIFFS)
            | flag(meta.root.is_some(), FLAG_ROOT)
            | flag(meta.free_head.is_some(), FLAG_FREE_HEAD);
        put(&SLOT_MAGIC);
        put(&SUPERBLOCK_VERSION.to_le_bytes());
        put(&flags.to_le_bytes());
        put(&self.page_size.to_le_bytes());
        let numbers = [
            self.number,
            self.store,
            self.checkpoint_seq.get(),
            self.checkpoint_lsn.get(),
            self.max_journal_bytes,
        ];
        let of_page = |page: Option<PageNo>| page.unwrap_or_default().get();
        let of_meta = [meta.pages, of_page(meta.root), of_page(meta.free_head), meta.free_pages];
        for number in numbers.into_iter().chain(of_meta) {
            put(&number.to_le_bytes());
        }
        let Ok(user_len) = u16::try_from(meta.user.len()) else {
            panic!("metadata of {} bytes", meta.user.len())
        };
        put(&user_len.to_le_bytes());
        bytes[USER_OFFSET..JOURNAL_OFFSET][..meta.user.len()].copy_from_slice(&meta.user);
        bytes[JOURNAL_OFFSET..JOURNAL_OFFSET + 8].copy_from_slice(&self.journal.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a slot.
    pub(crate) fn decode(slot: &[u8]) -> SlotContent {
        let Some(slot) = slot.first_chunk::<SLOT_BYTES>() else {
            return SlotContent::Nothing(SlotFault::Missing);
        };
        let (checked, crc) = slot.split_at(CHECKED_BYTES);
        if slot == &[0; SLOT_BYTES] {
            return SlotContent::Nothing(SlotFault::Blank);
        }
        if checked[..8] != SLOT_MAGIC {
            return SlotContent::Nothing(SlotFault::Foreign);
        }
        if crc32c::crc32c(checked).to_le_bytes() != crc {
            return SlotContent::Nothing(SlotFault::Checksum);
        }
        let short = |at: usize| u16::from_le_bytes(std::array::from_fn(|byte| slot[at + byte]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| slot[at + byte]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| slot[at + byte]));
        if short(8) != SUPERBLOCK_VERSION {
            return SlotContent::Version(short(8));
        }
        let (flags, page_size, user) = (short(10), word(12), usize::from(short(88)));
        let is_sound = flags <= (FLAG_FIRST_DIFFS | FLAG_ROOT | FLAG_FREE_HEAD)
            && page_size.is_power_of_two()
            && (MIN_PAGE_BYTES..=MAX_PAGE_BYTES).contains(&page_size)
            && user <= MAX_USER_BYTES
            && [long(16), long(32)].iter().all(|number| *number <= MAX_SEQ)
            && (MIN_JOURNAL_BYTES..=MAX_JOURNAL_BYTES).contains(&long(48))
            && long(56) <= MAX_PAGES;
        if !is_sound {
            return SlotContent::Nothing(SlotFault::Senseless);
        }
        let meta = StoreMeta {
            root: (flags & FLAG_ROOT != 0).then(|| PageNo::new(long(64))),
            pages: long(56),
            free_head: (flags & FLAG_FREE_HEAD != 0).then(|| PageNo::new(long(72))),
            free_pages: long(80),
            user: slot[USER_OFFSET..USER_OFFSET + user].to_vec(),
        };
        if !meta.is_sound() {
            return SlotContent::Nothing(SlotFault::Senseless);
        }
        SlotContent::Superblock(Self {
            number: long(16),
            store: long(24),
            page_size,
            checkpoint_seq: Seq::new(long(32)),
            checkpoint_lsn: Lsn::new(long(40)),
            max_journal_bytes: long(48),
            first_diffs: flags & FLAG_FIRST_DIFFS != 0,
            journal: long(JOURNAL_OFFSET),
            meta,
        })
    }
}

/// Returns which of two slots is valid, 0 or 1. A later version takes precedence; `None` if neither
/// slot is intact.
pub(crate) fn newest(slots: [&SlotContent; 2]) -> Option<usize> {
    let rank = |slot: &SlotContent| match slot {
        SlotContent::Nothing(_) => 0,
        SlotContent::Superblock(_) => 1,
        SlotContent::Version(_) => 2,
    };
    let [first, second] = slots;
    match (first, second) {
        (SlotContent::Nothing(_), SlotContent::Nothing(_)) => None,
        (SlotContent::Superblock(first), SlotContent::Superblock(second)) => {
            Some(usize::from(second.number > first.number))
        }
        (first, second) => Some(usize::from(rank(second) > rank(first))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            number: 4,
            store: 0x0102_0304_0506_0708,
            page_size: 16384,
            checkpoint_seq: Seq::new(1000),
            checkpoint_lsn: Lsn::new(0x1_2000),
            max_journal_bytes: 256 << 20,
            first_diffs: true,
            journal: 0x1112_1314_1516_1718,
            meta: StoreMeta {
                root: Some(PageNo::new(0)),
                pages: 300,
                free_head: Some(PageNo::new(299)),
                free_pages: 2,
                user: b"users".to_vec(),
            },
        }
    }

    fn reseal(slot: &mut [u8; SLOT_BYTES]) {
        let crc = crc32c::crc32c(&slot[..CHECKED_BYTES]);
        slot[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    }

    /// These bytes are on users' disks and must stay readable.
    #[test]
    fn the_format_of_a_slot_is_fixed() {
        let mut expected =
            b"pkstore\0\x02\0\x07\0\0\x40\0\0\x04\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01".to_vec();
        expected.extend(b"\xe8\x03\0\0\0\0\0\0\0\x20\x01\0\0\0\0\0\0\0\0\x10\0\0\0\0\x2c\x01\0\0\0\0\0\0");
        expected.extend(b"\0\0\0\0\0\0\0\0\x2b\x01\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0users");
        expected.resize(1120, 0);
        expected.extend(b"\x18\x17\x16\x15\x14\x13\x12\x11");
        expected.resize(4092, 0);
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        assert_eq!(superblock().encode()[..], expected);
        assert_eq!(Superblock::decode(&expected), SlotContent::Superblock(superblock()));
    }

    #[test]
    fn each_flipped_bit_is_detected() {
        let whole = superblock().encode();
        for bit in 0..SLOT_BYTES * 8 {
            let mut rotten = whole;
            rotten[bit / 8] ^= 1 << (bit % 8);
            let fault = if bit < 64 { SlotFault::Foreign } else { SlotFault::Checksum };
            assert_eq!(Superblock::decode(&rotten), SlotContent::Nothing(fault), "bit {bit}");
        }
        assert_eq!(Superblock::decode(&whole[..SLOT_BYTES - 1]), SlotContent::Nothing(SlotFault::Missing));
        assert_eq!(Superblock::decode(&[0; SLOT_BYTES]), SlotContent::Nothing(SlotFault::Blank));
    }

    #[test]
    fn nonsense_is_no_superblock() {
        let with = |at: usize, byte: u8| {
            let mut slot = superblock().encode();
            slot[at] = byte;
            reseal(&mut slot);
            Superblock::decode(&slot)
        };
        assert_eq!(with(8, 1), SlotContent::Version(1));
        // Unknown flags; pages of 0, 48 KiB and 128 KiB; more free pages than pages; a free list
        // behind the end; too much metadata. Numbers of a write and a commit without a successor;
        // journals of 2^63 bytes and of 24 KiB; 2^32 pages.
        let too_much = [(23, 0x80), (39, 0x80), (55, 0x80), (60, 1)];
        for (at, byte) in [(10, 8), (11, 1), (13, 0), (13, 0xc0), (14, 2), (81, 9), (72, 0x2c), (89, 5)]
            .into_iter()
            .chain(too_much)
        {
            assert_eq!(with(at, byte), SlotContent::Nothing(SlotFault::Senseless), "byte {at}");
        }
        let journal = Superblock { max_journal_bytes: 24 << 10, ..superblock() };
        assert_eq!(Superblock::decode(&journal.encode()), SlotContent::Nothing(SlotFault::Senseless));
    }

    #[test]
    fn the_newer_slot_counts() {
        let older = superblock();
        let newer = Superblock { number: 5, checkpoint_seq: Seq::new(2000), ..superblock() };
        let both =
            |first: &[u8], second: &[u8]| newest([&Superblock::decode(first), &Superblock::decode(second)]);
        let (old, new, torn) = (older.encode(), newer.encode(), [0; SLOT_BYTES]);
        assert_eq!([both(&old, &new), both(&new, &old), both(&new, &new)], [Some(1), Some(0), Some(0)]);
        assert_eq!([both(&torn, &old), both(&old, &torn), both(&torn, &torn)], [Some(1), Some(0), None]);
        let mut later = old;
        later[8] = 9;
        reseal(&mut later);
        assert_eq!(
            [both(&later, &new), both(&new, &later), both(&torn, &later)],
            [Some(0), Some(1), Some(1)]
        );
    }

    proptest! {
        #[test]
        fn a_superblock_is_read_as_written(
            numbers: [u64; 7],
            (shift, first_diffs) in (12_u32..=16, any::<bool>()),
            root: Option<u64>,
            free: Option<prop::sample::Index>,
            user in prop::collection::vec(any::<u8>(), 0..=MAX_USER_BYTES),
        ) {
            let [number, store, checkpoint_seq, checkpoint_lsn, max_journal_bytes, journal, pages] = numbers;
            let (number, checkpoint_seq) = (number >> 1, checkpoint_seq >> 1);
            let max_journal_bytes = MIN_JOURNAL_BYTES + max_journal_bytes % (MAX_JOURNAL_BYTES - MIN_JOURNAL_BYTES + 1);
            let pages = pages % MAX_PAGES + 1;
            let free_pages = free.map_or(0, |free| free.index(usize::try_from(pages).unwrap()) as u64);
            let (root, free_head) = (root.map(PageNo::new), free.map(|_| PageNo::new(free_pages)));
            let meta = StoreMeta { root, pages, free_head, free_pages, user };
            let (checkpoint_seq, checkpoint_lsn) = (Seq::new(checkpoint_seq), Lsn::new(checkpoint_lsn));
            let superblock = Superblock {
                number, store, page_size: 1 << shift, checkpoint_seq, checkpoint_lsn, max_journal_bytes, first_diffs, journal, meta,
            };
            prop_assert_eq!(Superblock::decode(&superblock.encode()), SlotContent::Superblock(superblock));
        }

        #[test]
        fn random_bytes_cause_no_panic(content in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut slot = [0; SLOT_BYTES];
            slot[..10].copy_from_slice(b"pkstore\0\x02\0");
            slot[10..10 + content.len()].copy_from_slice(&content);
            reseal(&mut slot);
            if let SlotContent::Superblock(found) = Superblock::decode(&slot) {
                prop_assert_eq!(Superblock::decode(&found.encode()), SlotContent::Superblock(found));
            }
        }
    }
}
