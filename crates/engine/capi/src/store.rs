//! `pk_store`: opening, statistics, sync, verification, backup, restore.

use std::mem::MaybeUninit;
use std::sync::Arc;

use pagekeeper_io::Process;
use pagekeeper_policy::pacer::nanoseconds;

use crate::call::{call, fill};
use crate::pointers::{
    ClosingHandle, OptionsPointer, OutPointer, SizedStruct, TextPointer, given, is_zero, put,
};
use crate::status::{CallFailure, Status};

/// `PK_NO_PAGE`.
pub(crate) const NO_PAGE: u64 = u64::MAX;

/// `pk_store`.
pub struct StoreHandle(pub(crate) Arc<pagekeeper_store::Store>, pub(crate) Process);

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct StoreOptions {
    struct_size: usize,
    memory: u64,
    journal_bytes: u64,
    page_size: u32,
    create: u32,
    read_only: u32,
    reserved: u32,
    snapshot_bytes: u64,
}

// SAFETY: only integers, the size first.
unsafe impl SizedStruct for StoreOptions {
    const STRUCT_NAME: &'static str = "pk_store_options";
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct StoreStats {
    struct_size: usize,
    page_size: u64,
    payload_size: u64,
    pages: u64,
    free_pages: u64,
    seq: u64,
    checkpoint_seq: u64,
    journal_bytes: u64,
    opening_ns: u64,
    recovered_commits: u64,
}

// SAFETY: only integers, the size first.
unsafe impl SizedStruct for StoreStats {
    const STRUCT_NAME: &'static str = "pk_store_stat";
}

impl StoreOptions {
    fn options(&self) -> Result<pagekeeper_store::StoreOptions, CallFailure> {
        is_zero(self.reserved)?;
        let mut options =
            pagekeeper_store::Store::options().read_only(self.read_only != 0).create(match self.create {
                0 => pagekeeper_store::Create::IfMissing,
                1 => pagekeeper_store::Create::Never,
                2 => pagekeeper_store::Create::New,
                other => {
                    return Err(CallFailure::misuse(format!("create is {other}, and should be 0, 1 or 2")));
                }
            });
        if self.memory > 0 {
            options = options.memory(self.memory);
        }
        if self.journal_bytes > 0 {
            options = options.journal_bytes(self.journal_bytes);
        }
        if self.snapshot_bytes > 0 {
            options = options.snapshot_bytes(self.snapshot_bytes);
        }
        if self.page_size > 0 {
            options = options.page_size(self.page_size as usize);
        }
        Ok(options)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_open(
    directory: TextPointer,
    options: OptionsPointer<StoreOptions>,
    store: Option<&mut MaybeUninit<Box<StoreHandle>>>,
) -> Status {
    fill(store, "the store", || {
        let opened = options.read()?.options()?.open(directory.path()?)?;
        Ok(Box::new(StoreHandle(Arc::new(opened), Process::current())))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_get_stat(store: Option<&StoreHandle>, stat: OutPointer<StoreStats>) -> Status {
    call(|| {
        let StoreHandle(store, process) = given(store, "the store")?;
        process.require()?;
        let found = store.stats();
        stat.write(StoreStats {
            struct_size: size_of::<StoreStats>(),
            page_size: found.page_size as u64,
            payload_size: store.payload_size() as u64,
            pages: found.pages,
            free_pages: found.free_pages,
            seq: found.seq.get(),
            checkpoint_seq: found.checkpoint_seq.get(),
            journal_bytes: found.journal_bytes,
            opening_ns: nanoseconds(found.opening.took),
            recovered_commits: found.opening.commits,
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_sync(store: Option<&StoreHandle>) -> Status {
    call(|| Ok(given(store, "the store")?.0.sync()?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_verify(
    store: Option<&StoreHandle>,
    faults: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let found = given(store, "the store")?.0.verify()?;
        put(faults, found.faults);
        match found.named.into_iter().next() {
            Some(first) => Err(CallFailure::new(Status::Corrupt, first)),
            None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_backup(
    store: Option<&StoreHandle>,
    to: TextPointer,
    seq: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let made = given(store, "the store")?.0.backup(to.path()?)?;
        put(seq, made.seq.get());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_restore(
    backup: TextPointer,
    to: TextPointer,
    seq: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let made = pagekeeper_store::Store::options().restore(backup.path()?, to.path()?)?;
        put(seq, made.seq.get());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_repair(
    store: TextPointer,
    to: TextPointer,
    faults: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let made = pagekeeper_store::Store::options().repair(store.path()?, to.path()?)?;
        put(faults, (made.lost.len() + made.doubtful.len() + made.notes.len()) as u64);
        let pages = made.lost.iter().chain(&made.doubtful);
        let mut found = pages.map(|page| format!("page {}: {}", page.page, page.what)).chain(made.notes);
        found.next().map_or(Ok(()), |first| Err(CallFailure::new(Status::Corrupt, first)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_store_close(store: Option<ClosingHandle<StoreHandle>>) -> Status {
    call(|| {
        // The last reference closes the store. With open transactions, the last of them does, and
        // cannot report an error. So all commits are made durable now.
        match store.map(ClosingHandle::open).transpose()?.map(|store| Arc::try_unwrap(store.0)) {
            Some(Ok(store)) => Ok(store.close()?),
            Some(Err(shared)) => match shared.sync() {
                Err(pagekeeper_store::Error::ReadOnly) => Ok(()),
                synced => Ok(synced?),
            },
            None => Ok(()),
        }
    })
}
