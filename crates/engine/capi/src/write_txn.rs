//! `pk_write_txn`.
//!
//! Invariant: cursors share the transaction. Once it has ended, they find that it is gone.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard};

use pagekeeper_store::{Durability, PageNo, WriteTxn};

use crate::call::{call, fill, plain};
use crate::exclusive::ExclusiveHandle;
use crate::pointers::{ArrayPointer, ClosingHandle, MutArrayPointer, given, put};
use crate::queue::timeout;
use crate::status::{CallFailure, Status};
use crate::store::{NO_PAGE, StoreHandle};

/// A transaction, until it ends.
pub(crate) type SharedTxn = ExclusiveHandle<Option<WriteTxn<'static>>>;

/// `pk_write_txn`.
pub struct WriteTxnHandle(pub(crate) Arc<SharedTxn>);

impl WriteTxnHandle {
    pub(crate) fn new(txn: WriteTxn<'static>) -> Self {
        Self(Arc::new(ExclusiveHandle::new(Some(txn))))
    }

    /// Locks the transaction for a call.
    pub(crate) fn enter(&self) -> Result<EnteredTxn<'_>, CallFailure> {
        EnteredTxn::new(&self.0)
    }
}

/// A transaction during a call.
pub(crate) struct EnteredTxn<'h>(MutexGuard<'h, Option<WriteTxn<'static>>>);

impl<'h> EnteredTxn<'h> {
    pub(crate) fn new(shared: &'h SharedTxn) -> Result<Self, CallFailure> {
        let entered = shared.enter()?;
        if entered.is_some() { Ok(Self(entered)) } else { Err(has_ended()) }
    }
}

fn has_ended() -> CallFailure {
    CallFailure::misuse("the transaction has ended")
}

impl Deref for EnteredTxn<'_> {
    type Target = WriteTxn<'static>;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().unwrap_or_else(|| unreachable!("it was checked"))
    }
}

impl DerefMut for EnteredTxn<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_mut().unwrap_or_else(|| unreachable!("it was checked"))
    }
}

/// Closes a handle and returns its transaction. In a forked child, or while another thread uses the
/// handle, it stays open.
fn end(handle: ClosingHandle<WriteTxnHandle>) -> Result<WriteTxn<'static>, CallFailure> {
    let txn = handle.get()?.0.enter()?.take();
    handle.open()?;
    txn.ok_or_else(has_ended)
}

/// Copies a part of a page to a buffer, as far as it goes. Returns the number of bytes.
pub(crate) fn copy(page: &[u8], offset: usize, buffer: &mut [u8]) -> Result<usize, CallFailure> {
    let from = page.get(offset..).ok_or_else(|| {
        CallFailure::misuse(format!("offset {offset} is past the {} bytes of the page", page.len()))
    })?;
    let read = from.len().min(buffer.len());
    buffer[..read].copy_from_slice(&from[..read]);
    Ok(read)
}

/// Converts a `pk_durability`.
pub(crate) fn to_durability(durability: u32) -> Result<Durability, CallFailure> {
    match durability {
        0 => Ok(Durability::Sync),
        1 => Ok(Durability::Group),
        2 => Ok(Durability::None),
        other => Err(CallFailure::misuse(format!("no pk_durability is {other}: nothing was committed"))),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_begin_write(
    store: Option<&StoreHandle>,
    txn: Option<&mut MaybeUninit<Box<WriteTxnHandle>>>,
) -> Status {
    pk_store_begin_write_timeout(store, -1, txn)
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_begin_write_timeout(
    store: Option<&StoreHandle>,
    timeout_ms: c_int,
    txn: Option<&mut MaybeUninit<Box<WriteTxnHandle>>>,
) -> Status {
    fill(txn, "the transaction", || {
        let begun = given(store, "the store")?.0.begin_write_here(timeout(timeout_ms))?;
        Ok(Box::new(WriteTxnHandle::new(begun)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_allocate(
    txn: Option<&WriteTxnHandle>,
    page: Option<&mut MaybeUninit<u64>>,
) -> Status {
    fill(page, "the page", || Ok(given(txn, "the transaction")?.enter()?.allocate()?.get()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_allocate_run(
    txn: Option<&WriteTxnHandle>,
    pages: u64,
    first: Option<&mut MaybeUninit<u64>>,
) -> Status {
    fill(first, "the first page", || Ok(given(txn, "the transaction")?.enter()?.allocate_run(pages)?.get()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_free(txn: Option<&WriteTxnHandle>, page: u64) -> Status {
    call(|| Ok(given(txn, "the transaction")?.enter()?.free(PageNo::new(page))?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_copy(
    txn: Option<&WriteTxnHandle>,
    page: u64,
    offset: usize,
    buffer: MutArrayPointer<u8>,
    size: usize,
    read: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let buffer = buffer.slice(size, "the buffer")?;
        let found = given(txn, "the transaction")?.enter()?.read(PageNo::new(page))?;
        put(read, copy(&found, offset, buffer)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_change(
    txn: Option<&WriteTxnHandle>,
    page: u64,
    offset: usize,
    bytes: ArrayPointer<u8>,
    size: usize,
) -> Status {
    call(|| {
        let bytes = bytes.slice(size, "the bytes")?;
        let mut txn = given(txn, "the transaction")?.enter()?;
        let payload = txn.page_mut(PageNo::new(page))?;
        let len = payload.len();
        let part =
            offset.checked_add(size).and_then(|end| payload.get_mut(offset..end)).ok_or_else(|| {
                CallFailure::misuse(format!(
                    "{size} bytes from {offset} on are past the {len} bytes of the page"
                ))
            })?;
        part.copy_from_slice(bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_page(
    txn: Option<&WriteTxnHandle>,
    page: u64,
    bytes: ArrayPointer<u8>,
    size: usize,
) -> Status {
    call(|| {
        let bytes = bytes.slice(size, "the bytes")?;
        Ok(given(txn, "the transaction")?.enter()?.write(PageNo::new(page), bytes)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_get_root(
    txn: Option<&WriteTxnHandle>,
    page: Option<&mut MaybeUninit<u64>>,
) -> Status {
    fill(page, "the page", || Ok(given(txn, "the transaction")?.enter()?.root().map_or(NO_PAGE, PageNo::get)))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_set_root(txn: Option<&WriteTxnHandle>, page: u64) -> Status {
    call(|| {
        given(txn, "the transaction")?.enter()?.set_root((page != NO_PAGE).then_some(PageNo::new(page)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_commit(
    txn: Option<ClosingHandle<WriteTxnHandle>>,
    durability: u32,
    seq: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let txn = txn.ok_or_else(|| CallFailure::misuse("the transaction is NULL"))?;
        let txn = end(txn)?;
        put(seq, txn.commit(to_durability(durability)?)?.get());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_write_abort(txn: Option<ClosingHandle<WriteTxnHandle>>) {
    plain((), || drop(txn.map(end)));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pagekeeper_io::Process;

    use super::*;

    fn begin(store: &StoreHandle, timeout_ms: c_int) -> (Status, MaybeUninit<Box<WriteTxnHandle>>) {
        let mut txn = MaybeUninit::uninit();
        (pk_store_begin_write_timeout(Some(store), timeout_ms, Some(&mut txn)), txn)
    }

    #[test]
    fn a_second_transaction_is_refused_on_its_thread_and_times_out_on_others() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let options = pagekeeper_store::Store::options().memory(4 << 20).journal_bytes(1 << 20);
        let opened = options.open(dir.path().join("store")).unwrap();
        let store = StoreHandle(Arc::new(opened), Process::current());
        let (status, first) = begin(&store, 0);
        assert_eq!(status, Status::Ok);
        let mut second = MaybeUninit::uninit();
        assert_eq!(pk_store_begin_write(Some(&store), Some(&mut second)), Status::Misuse);
        for timeout_ms in [0, 2] {
            assert_eq!(begin(&store, timeout_ms).0, Status::TimedOut);
            let other =
                std::thread::scope(|scope| scope.spawn(|| begin(&store, timeout_ms).0).join().unwrap());
            assert_eq!(other, Status::TimedOut);
        }
        // SAFETY: written by the call that returned PK_OK.
        pk_write_abort(Some(unsafe { first.assume_init() }.into()));
        let (status, again) = begin(&store, -1);
        assert_eq!(status, Status::Ok);
        // SAFETY: as above.
        assert_eq!(pk_write_commit(Some(unsafe { again.assume_init() }.into()), 0, None), Status::Ok);
    }

    #[test]
    fn a_thread_that_passed_its_transaction_on_waits_for_it_with_the_longest_timeout() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let options = pagekeeper_store::Store::options().memory(4 << 20).journal_bytes(1 << 20);
        let opened = options.open(dir.path().join("store")).unwrap();
        let store = StoreHandle(Arc::new(opened), Process::current());
        let (status, first) = begin(&store, -1);
        assert_eq!(status, Status::Ok);
        // SAFETY: written by the call that returned PK_OK.
        let first = unsafe { first.assume_init() };
        assert_eq!(begin(&store, -1).0, Status::Misuse);
        let ended = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            pk_write_commit(Some(first.into()), 0, None)
        });
        let (status, next) = begin(&store, c_int::MAX);
        assert_eq!(status, Status::Ok);
        assert_eq!(ended.join().unwrap(), Status::Ok);
        // SAFETY: as above.
        pk_write_abort(Some(unsafe { next.assume_init() }.into()));
    }
}
