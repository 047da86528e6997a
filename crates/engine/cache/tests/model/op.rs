//! The operations, and their random choice.

use pagekeeper_simdisk::{Fault, Times};
use proptest::prelude::*;

/// A position in a file, known only when its length is.
#[derive(Debug, Clone)]
pub(crate) enum FilePosition {
    /// Any position, as a fraction of the file's length in units of 2^-32.
    Part(u32),
    /// A number of bytes before or behind the start of a page.
    Edge(u16, i8),
    /// A number of bytes before or behind the end.
    End(i32),
    /// The maximum offset.
    Max,
}

/// The length of a read.
#[derive(Debug, Clone)]
pub(crate) enum ReadLength {
    Bytes(u32),
    /// Whole pages, and some bytes more.
    Pages(u8, u8),
}

/// The new length of a file.
#[derive(Debug, Clone)]
pub(crate) struct FileSize {
    pub(crate) pages: u16,
    pub(crate) bytes: i32,
}

/// An operation. Files, open handles and kept pages are given by numbers, taken modulo how many
/// there are.
#[derive(Debug, Clone)]
pub(crate) enum ModelOp {
    Open(u8),
    Read {
        handle: u8,
        at: FilePosition,
        len: ReadLength,
    },
    ReadMany {
        handle: u8,
        reads: Vec<(FilePosition, ReadLength)>,
    },
    ReadAsync {
        handle: u8,
        at: FilePosition,
        len: ReadLength,
        dropped: bool,
    },
    Prefetch {
        handle: u8,
        at: FilePosition,
        len: ReadLength,
    },
    /// Holds guards of pages while others are read.
    Guards {
        handle: u8,
        pages: Vec<u16>,
        meanwhile: u8,
    },
    /// A page past the end of the file.
    PageBeyond {
        handle: u8,
        by: u64,
    },
    /// Keeps a page for a long time.
    Keep {
        handle: u8,
        page: u16,
    },
    LetGo(u8),
    Close(u8),
    DropHandle(u8),
    Replace {
        file: u8,
        size: FileSize,
    },
    Grow {
        file: u8,
        size: FileSize,
    },
    Cut {
        file: u8,
        size: FileSize,
    },
    Remove(u8),
    Fault {
        file: u8,
        at: FilePosition,
        len: ReadLength,
        fault: Fault,
        times: Times,
    },
    Heal(u8),
}

fn place() -> impl Strategy<Value = FilePosition> {
    prop_oneof![
        6 => any::<u32>().prop_map(FilePosition::Part),
        4 => (0_u16..700, -2_i8..3).prop_map(|(page, delta)| FilePosition::Edge(page, delta)),
        3 => (-20_000_i32..20_000).prop_map(FilePosition::End),
        1 => Just(FilePosition::Max),
    ]
}

fn length() -> impl Strategy<Value = ReadLength> {
    prop_oneof![
        1 => Just(ReadLength::Bytes(0)),
        6 => (1_u32..6000).prop_map(ReadLength::Bytes),
        2 => (0_u8..40, 0_u8..3).prop_map(|(pages, more)| ReadLength::Pages(pages, more)),
    ]
}

fn size() -> impl Strategy<Value = FileSize> {
    (
        prop_oneof![1 => Just(0_u16), 3 => 0_u16..20, 4 => 20_u16..700],
        prop_oneof![Just(0), -2..3, -3000..3000],
    )
        .prop_map(|(pages, bytes)| FileSize { pages, bytes })
}

fn fault() -> impl Strategy<Value = (Fault, Times)> {
    prop_oneof![
        4 => Just((Fault::EIO, Times::Once)),
        4 => Just((Fault::EIO, Times::Always)),
        2 => Just((Fault::INTERRUPTED, Times::Once)),
        1 => Just((Fault::INTERRUPTED, Times::Always)),
        3 => (1_usize..20_000).prop_map(|count| (Fault::Short(count), Times::Once)),
        1 => (4096_usize..20_000).prop_map(|count| (Fault::Short(count), Times::Always)),
        3 => (0_u64..2_000_000).prop_map(|len| (Fault::Cut(len), Times::Once)),
    ]
}

pub(crate) fn op() -> impl Strategy<Value = ModelOp> {
    let of = any::<u8>;
    prop_oneof![
        8 => of().prop_map(ModelOp::Open),
        14 => (of(), place(), length()).prop_map(|(handle, at, len)| ModelOp::Read { handle, at, len }),
        8 => (of(), prop::collection::vec((place(), length()), 0..12))
            .prop_map(|(handle, reads)| ModelOp::ReadMany { handle, reads }),
        8 => (of(), place(), length(), prop::bool::weighted(0.3))
            .prop_map(|(handle, at, len, dropped)| ModelOp::ReadAsync { handle, at, len, dropped }),
        6 => (of(), place(), length()).prop_map(|(handle, at, len)| ModelOp::Prefetch { handle, at, len }),
        6 => (of(), prop::collection::vec(0_u16..700, 1..24), of())
            .prop_map(|(handle, pages, meanwhile)| ModelOp::Guards { handle, pages, meanwhile }),
        1 => (of(), prop_oneof![0_u64..3, Just(u64::MAX / 2), Just(1 << 32)])
            .prop_map(|(handle, by)| ModelOp::PageBeyond { handle, by }),
        10 => (of(), 0_u16..700).prop_map(|(handle, page)| ModelOp::Keep { handle, page }),
        4 => of().prop_map(ModelOp::LetGo),
        3 => of().prop_map(ModelOp::Close),
        4 => of().prop_map(ModelOp::DropHandle),
        4 => (of(), size()).prop_map(|(file, size)| ModelOp::Replace { file, size }),
        2 => (of(), size()).prop_map(|(file, size)| ModelOp::Grow { file, size }),
        2 => (of(), size()).prop_map(|(file, size)| ModelOp::Cut { file, size }),
        1 => of().prop_map(ModelOp::Remove),
        6 => (of(), place(), length(), fault())
            .prop_map(|(file, at, len, (fault, times))| ModelOp::Fault { file, at, len, fault, times }),
        4 => of().prop_map(ModelOp::Heal),
    ]
}
