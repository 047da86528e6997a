//! `pk_read_txn` and `pk_store_page`.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use pagekeeper_store::{PageNo, ReadTxn};

use crate::call::{call, fill, plain};
use crate::pointers::{ClosingHandle, MutArrayPointer, given, put};
use crate::status::Status;
use crate::store::{NO_PAGE, StoreHandle};
use crate::write_txn::copy;

/// `pk_read_txn`.
pub struct ReadTxnHandle(pub(crate) Arc<ReadTxn<'static>>);

/// `pk_store_page`.
pub struct StorePageHandle(pagekeeper_store::Page);

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_begin_read(
    store: Option<&StoreHandle>,
    txn: Option<&mut MaybeUninit<Box<ReadTxnHandle>>>,
) -> Status {
    fill(txn, "the snapshot", || {
        Ok(Box::new(ReadTxnHandle(Arc::new(given(store, "the store")?.0.begin_read_owned()?))))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_read_get_root(
    txn: Option<&ReadTxnHandle>,
    page: Option<&mut MaybeUninit<u64>>,
) -> Status {
    fill(page, "the page", || Ok(given(txn, "the snapshot")?.0.root().map_or(NO_PAGE, PageNo::get)))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_read_seq(txn: Option<&ReadTxnHandle>) -> u64 {
    txn.map_or(0, |txn| txn.0.seq().get())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_read_copy(
    txn: Option<&ReadTxnHandle>,
    page: u64,
    offset: usize,
    buffer: MutArrayPointer<u8>,
    size: usize,
    read: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let buffer = buffer.slice(size, "the buffer")?;
        let copied = given(txn, "the snapshot")?
            .0
            .read_with(PageNo::new(page), |found| copy(found, offset, buffer))?;
        put(read, copied?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_read_page(
    txn: Option<&ReadTxnHandle>,
    number: u64,
    page: Option<&mut MaybeUninit<Box<StorePageHandle>>>,
) -> Status {
    fill(page, "the page", || {
        Ok(Box::new(StorePageHandle(given(txn, "the snapshot")?.0.read(PageNo::new(number))?)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_page_data(page: Option<&StorePageHandle>) -> *const c_void {
    page.map_or(std::ptr::null(), |page| page.0.as_ptr().cast())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_page_size(page: Option<&StorePageHandle>) -> usize {
    page.map_or(0, |page| page.0.len())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_page_release(page: Option<ClosingHandle<StorePageHandle>>) {
    plain((), || drop(page.map(ClosingHandle::open)));
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_read_end(txn: Option<ClosingHandle<ReadTxnHandle>>) {
    plain((), || drop(txn.map(ClosingHandle::open)));
}
