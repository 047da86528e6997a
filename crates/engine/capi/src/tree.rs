//! `pk_tree_*` and `pk_cursor`: the ordered map in the pages of a store.
//!
//! Invariant: a cursor shares ownership of its snapshot and holds no reference into it. It
//! continues from its last key, a few entries at a time.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::sync::Arc;

use pagekeeper_store::{Error, PageNo, ReadTxn};
use pagekeeper_tree::{Pages, Tree, TreeError, Value};

use crate::call::{call, plain};
use crate::exclusive::{ExclusiveHandle, give_up};
use crate::pointers::{ArrayPointer, MutArrayPointer, given, put, wanted};
use crate::snapshot::ReadTxnHandle;
use crate::status::{CallFailure, Status};
use crate::txn::WriteTxnHandle;

/// Maximum number of entries that a cursor reads ahead, and their total size in bytes.
const READ_AHEAD_ENTRIES_MAX: usize = 32;
const READ_AHEAD_BYTES_MAX: usize = 32 << 10;

/// `pk_cursor`.
pub type CursorHandle = ExclusiveHandle<CursorState>;

/// The remaining part of a range, in the direction of the cursor.
pub struct CursorState {
    txn: Arc<ReadTxn<'static>>,
    tree: Tree,
    backwards: bool,
    /// The start of the entries that were not read yet; `None` after the last.
    rest: Option<Bound<Vec<u8>>>,
    ahead: VecDeque<(Vec<u8>, Value)>,
    /// The entry that the caller got last, and has pointers into.
    current: Option<(Vec<u8>, Value)>,
}

impl CursorState {
    /// Fails only if nothing was read: an unreadable entry does not affect those before it.
    fn read_ahead(&mut self) -> Result<(), TreeError> {
        let Some(from) = self.rest.clone() else { return Ok(()) };
        let bounds = if self.backwards { (Bound::Unbounded, from) } else { (from, Bound::Unbounded) };
        let mut range = self.tree.range::<_, Vec<u8>>(&*self.txn, bounds);
        let mut bytes = 0;
        while self.ahead.len() < READ_AHEAD_ENTRIES_MAX && bytes < READ_AHEAD_BYTES_MAX {
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

    fn next(&mut self) -> Result<Option<&(Vec<u8>, Value)>, TreeError> {
        if self.ahead.is_empty() {
            self.read_ahead()?;
        }
        self.current = self.ahead.pop_front();
        Ok(self.current.as_ref())
    }
}

/// Opens the tree of a root page. The caller names that page, so a wrong one is a misuse, not
/// damage.
fn open(pages: &impl Pages, root: u64) -> Result<Tree, CallFailure> {
    Tree::open(pages, PageNo::new(root)).map_err(|error| match error {
        TreeError::NotATree { .. }
        | TreeError::Store(
            Error::OutOfRange { .. } | Error::NotAllocated { .. } | Error::NeverWritten { .. },
        ) => CallFailure::misuse(format!("the root of a tree: {error}")),
        error => error.into(),
    })
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
    CallFailure::new(Status::NotFound, "the tree has no such key")
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_tree_create(
    txn: Option<&WriteTxnHandle>,
    root: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let root = wanted(root, "the root page")?;
        root.write(Tree::create(&mut *given(txn, "the transaction")?.enter()?)?.root().get());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_tree_delete(txn: Option<&WriteTxnHandle>, root: u64) -> Status {
    call(|| {
        let mut txn = given(txn, "the transaction")?.enter()?;
        Ok(open(&*txn, root)?.delete(&mut txn)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_tree_put(
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
pub extern "C" fn pk_tree_remove(
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
pub extern "C" fn pk_tree_get(
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
pub extern "C" fn pk_txn_tree_get(
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
    call(|| {
        let (txn, cursor) = (given(txn, "the snapshot")?, wanted(cursor, "the cursor")?);
        let from = match from.slice(from_size, "the key")? {
            [] if backwards != 0 => Bound::Unbounded,
            key => Bound::Included(key.to_vec()),
        };
        cursor.write(Box::new(ExclusiveHandle::new(CursorState {
            txn: Arc::clone(&txn.0),
            tree: open(&*txn.0, root)?,
            backwards: backwards != 0,
            rest: Some(from),
            ahead: VecDeque::new(),
            current: None,
        })));
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
            return Err(CallFailure::new(Status::End, "the tree has no more entries"));
        };
        key.write(found.as_ptr().cast());
        key_size.write(found.len());
        value.write(of_it.as_ptr().cast());
        value_size.write(of_it.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cursor_close(cursor: Option<Box<CursorHandle>>) {
    plain((), || drop(cursor.map(give_up)));
}
