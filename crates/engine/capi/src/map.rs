//! `pk_map_*` and `pk_cursor`: the ordered map in the pages of a store.
//!
//! Invariant: a cursor shares ownership of its snapshot or transaction and holds no reference into
//! it. It continues from its last key: in a snapshot a few entries at a time, in a transaction one.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::sync::Arc;

use pagekeeper_store::{Error, PageNo, ReadTxn};
use pagekeeper_tree::{Pages, Tree, TreeError, Value};

use crate::call::{call, fill, plain};
use crate::exclusive::{ExclusiveHandle, give_up};
use crate::pointers::{ArrayPointer, ClosingHandle, MutArrayPointer, given, put, wanted};
use crate::read_txn::ReadTxnHandle;
use crate::status::{CallFailure, Status};
use crate::write_txn::{EnteredTxn, SharedTxn, WriteTxnHandle};

/// Maximum number of entries that a cursor reads ahead, and their total size in bytes.
const READ_AHEAD_ENTRIES_MAX: usize = 32;
const READ_AHEAD_BYTES_MAX: usize = 32 << 10;

/// `pk_cursor`.
pub type CursorHandle = ExclusiveHandle<CursorState>;

/// The transaction that a cursor reads in.
#[derive(Clone)]
enum CursorSource {
    Snapshot(Arc<ReadTxn<'static>>),
    Write(Arc<SharedTxn>),
}

/// The remaining part of a range, in the direction of the cursor.
pub struct CursorState {
    source: CursorSource,
    tree: Tree,
    backwards: bool,
    /// The end of the range.
    until: Bound<Vec<u8>>,
    /// The start of the entries that were not read yet; `None` after the last.
    rest: Option<Bound<Vec<u8>>>,
    ahead: VecDeque<(Vec<u8>, Value)>,
    /// The entry that the caller got last, and has pointers into.
    current: Option<(Vec<u8>, Value)>,
}

impl CursorState {
    fn handle(source: CursorSource, tree: Tree, from: &[u8], backwards: bool) -> Box<CursorHandle> {
        let (until, ahead) = (Bound::Unbounded, VecDeque::new());
        let mut cursor = Self { source, tree, backwards, until, rest: None, ahead, current: None };
        cursor.seek(from);
        Box::new(ExclusiveHandle::new(cursor))
    }

    /// Continues at this key, or at the first or last one if it is empty.
    fn seek(&mut self, key: &[u8]) {
        let is_last = key.is_empty() && self.backwards;
        self.rest = Some(if is_last { Bound::Unbounded } else { Bound::Included(key.to_vec()) });
        self.ahead.clear();
    }

    /// Fails only if nothing was read: an unreadable entry does not affect those before it.
    fn read_ahead(&mut self) -> Result<(), CallFailure> {
        match self.source.clone() {
            CursorSource::Snapshot(txn) => self.read_from(&*txn, READ_AHEAD_ENTRIES_MAX)?,
            CursorSource::Write(txn) => self.read_from(&*EnteredTxn::new(&txn)?, 1)?,
        }
        Ok(())
    }

    fn read_from(&mut self, pages: &impl Pages, most: usize) -> Result<(), TreeError> {
        let Some(from) = self.rest.clone() else { return Ok(()) };
        let until = self.until.clone();
        let bounds = if self.backwards { (until, from) } else { (from, until) };
        let mut range = self.tree.range::<_, Vec<u8>>(pages, bounds);
        let mut bytes = 0;
        while self.ahead.len() < most && bytes < READ_AHEAD_BYTES_MAX {
            match if self.backwards { range.next_back() } else { range.next() } {
                Some(Ok((key, value))) => {
                    bytes += key.len() + value.len();
                    self.rest = Some(Bound::Excluded(key.clone()));
                    self.ahead.push_back((key, value));
                }
                Some(Err(error)) if self.ahead.is_empty() => return Err(error),
                Some(Err(_)) => break,
                None => {
                    self.rest = None;
                    break;
                }
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<&(Vec<u8>, Value)>, CallFailure> {
        if self.ahead.is_empty() {
            self.read_ahead()?;
        }
        self.current = self.ahead.pop_front();
        Ok(self.current.as_ref())
    }
}

/// Opens the map of a root page. The caller names that page, so a wrong one is a misuse, not
/// damage.
fn open(pages: &impl Pages, root: u64) -> Result<Tree, CallFailure> {
    Tree::open(pages, PageNo::new(root)).map_err(wrong_root)
}

fn wrong_root(error: TreeError) -> CallFailure {
    match error {
        TreeError::NotATree { .. }
        | TreeError::Store(
            Error::OutOfRange { .. } | Error::NotAllocated { .. } | Error::NeverWritten { .. },
        ) => CallFailure::misuse(format!("the root of a map: {error}")),
        error => error.into(),
    }
}

/// Copies the start of a value. Returns the length of the whole value.
fn get(
    pages: &impl Pages,
    root: u64,
    key: &[u8],
    buffer: &mut [u8],
    value_size: Option<&mut MaybeUninit<usize>>,
) -> Result<(), CallFailure> {
    let copied = open(pages, root)?.get_with(pages, key, |value| {
        let len = value.len().min(buffer.len());
        buffer[..len].copy_from_slice(&value[..len]);
        value.len()
    })?;
    put(value_size, copied.ok_or_else(no_such_key)?);
    Ok(())
}

fn no_such_key() -> CallFailure {
    CallFailure::new(Status::NotFound, "the map has no such key")
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_map_create(txn: Option<&WriteTxnHandle>, root: Option<&mut MaybeUninit<u64>>) -> Status {
    fill(root, "the root page", || {
        Ok(Tree::create(&mut *given(txn, "the transaction")?.enter()?)?.root().get())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_map_open(
    txn: Option<&ReadTxnHandle>,
    name: ArrayPointer<u8>,
    name_size: usize,
    root: Option<&mut MaybeUninit<u64>>,
) -> Status {
    fill(root, "the root page", || {
        let name = name.slice(name_size, "the name")?;
        let found = Tree::named(&*given(txn, "the snapshot")?.0, name).map_err(wrong_root)?;
        Ok(found.ok_or_else(no_such_map)?.root().get())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_map_open(
    txn: Option<&WriteTxnHandle>,
    name: ArrayPointer<u8>,
    name_size: usize,
    root: Option<&mut MaybeUninit<u64>>,
) -> Status {
    fill(root, "the root page", || {
        let mut txn = given(txn, "the transaction")?.enter()?;
        let name = name.slice(name_size, "the name")?;
        Ok(Tree::named_or_new(&mut txn, name).map_err(wrong_root)?.root().get())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_map_drop(
    txn: Option<&WriteTxnHandle>,
    name: ArrayPointer<u8>,
    name_size: usize,
) -> Status {
    call(|| {
        let mut txn = given(txn, "the transaction")?.enter()?;
        let name = name.slice(name_size, "the name")?;
        let was_there = Tree::delete_named(&mut txn, name).map_err(wrong_root)?;
        if was_there { Ok(()) } else { Err(no_such_map()) }
    })
}

fn no_such_map() -> CallFailure {
    CallFailure::new(Status::NotFound, "the store has no map of this name")
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_map_check(
    txn: Option<&ReadTxnHandle>,
    root: u64,
    entries: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let txn = given(txn, "the snapshot")?;
        put(entries, open(&*txn.0, root)?.check(&*txn.0)?.entries);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_map_drop(txn: Option<&WriteTxnHandle>, root: u64) -> Status {
    call(|| {
        let mut txn = given(txn, "the transaction")?.enter()?;
        Ok(open(&*txn, root)?.delete(&mut txn)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_map_put(
    txn: Option<&WriteTxnHandle>,
    root: u64,
    key: ArrayPointer<u8>,
    key_size: usize,
    value: ArrayPointer<u8>,
    value_size: usize,
) -> Status {
    call(|| {
        let mut txn = given(txn, "the transaction")?.enter()?;
        let (key, value) = (key.slice(key_size, "the key")?, value.slice(value_size, "the value")?);
        open(&*txn, root)?.insert(&mut txn, key, value)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_map_delete(
    txn: Option<&WriteTxnHandle>,
    root: u64,
    key: ArrayPointer<u8>,
    key_size: usize,
) -> Status {
    call(|| {
        let mut txn = given(txn, "the transaction")?.enter()?;
        let key = key.slice(key_size, "the key")?;
        if open(&*txn, root)?.remove(&mut txn, key)? { Ok(()) } else { Err(no_such_key()) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_map_get(
    txn: Option<&ReadTxnHandle>,
    root: u64,
    key: ArrayPointer<u8>,
    key_size: usize,
    buffer: MutArrayPointer<u8>,
    size: usize,
    value_size: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let txn = given(txn, "the snapshot")?;
        get(&*txn.0, root, key.slice(key_size, "the key")?, buffer.slice(size, "the buffer")?, value_size)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_map_get(
    txn: Option<&WriteTxnHandle>,
    root: u64,
    key: ArrayPointer<u8>,
    key_size: usize,
    buffer: MutArrayPointer<u8>,
    size: usize,
    value_size: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let txn = given(txn, "the transaction")?.enter()?;
        get(&*txn, root, key.slice(key_size, "the key")?, buffer.slice(size, "the buffer")?, value_size)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cursor_open(
    txn: Option<&ReadTxnHandle>,
    root: u64,
    from: ArrayPointer<u8>,
    from_size: usize,
    backwards: std::ffi::c_int,
    cursor: Option<&mut MaybeUninit<Box<CursorHandle>>>,
) -> Status {
    fill(cursor, "the cursor", || {
        let txn = given(txn, "the snapshot")?;
        let (source, tree) = (CursorSource::Snapshot(Arc::clone(&txn.0)), open(&*txn.0, root)?);
        Ok(CursorState::handle(source, tree, from.slice(from_size, "the key")?, backwards != 0))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_cursor_open(
    txn: Option<&WriteTxnHandle>,
    root: u64,
    from: ArrayPointer<u8>,
    from_size: usize,
    backwards: std::ffi::c_int,
    cursor: Option<&mut MaybeUninit<Box<CursorHandle>>>,
) -> Status {
    fill(cursor, "the cursor", || {
        let txn = given(txn, "the transaction")?;
        let (source, tree) = (CursorSource::Write(Arc::clone(&txn.0)), open(&*txn.enter()?, root)?);
        Ok(CursorState::handle(source, tree, from.slice(from_size, "the key")?, backwards != 0))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cursor_seek(
    cursor: Option<&CursorHandle>,
    key: ArrayPointer<u8>,
    key_size: usize,
) -> Status {
    call(|| {
        given(cursor, "the cursor")?.enter()?.seek(key.slice(key_size, "the key")?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cursor_set_end(
    cursor: Option<&CursorHandle>,
    key: ArrayPointer<u8>,
    key_size: usize,
    included: std::ffi::c_int,
) -> Status {
    call(|| {
        let key = key.slice(key_size, "the key")?.to_vec();
        let mut cursor = given(cursor, "the cursor")?.enter()?;
        cursor.until = if included != 0 { Bound::Included(key) } else { Bound::Excluded(key) };
        // Entries behind the new end may have been read.
        if let Some((first, _)) = cursor.ahead.front() {
            cursor.rest = Some(Bound::Included(first.clone()));
            cursor.ahead.clear();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cursor_next(
    cursor: Option<&CursorHandle>,
    key: Option<&mut MaybeUninit<*const c_void>>,
    key_size: Option<&mut MaybeUninit<usize>>,
    value: Option<&mut MaybeUninit<*const c_void>>,
    value_size: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let mut cursor = given(cursor, "the cursor")?.enter()?;
        let (key, value) = (wanted(key, "the key")?, wanted(value, "the value")?);
        let (key_size, value_size) =
            (wanted(key_size, "the key's size")?, wanted(value_size, "the value's size")?);
        let Some((found, of_it)) = cursor.next()? else {
            return Err(CallFailure::new(Status::End, "the map has no more entries"));
        };
        key.write(found.as_ptr().cast());
        key_size.write(found.len());
        value.write(of_it.as_ptr().cast());
        value_size.write(of_it.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cursor_close(cursor: Option<ClosingHandle<CursorHandle>>) {
    plain((), || drop(cursor.map(give_up)));
}
