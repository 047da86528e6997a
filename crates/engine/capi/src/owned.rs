//! Files of the cache that their owner writes: `pk_file_open_owned` and its additions to `pk_file`.
//!
//! Invariants: pages are written past the kernel's page cache if the file system supports that.
//! When a call returns, with or without an error, the cache holds their new content or nothing. A
//! call that changes a file fails with a misuse error unless `pk_file_open_owned` opened it.

use std::mem::MaybeUninit;
use std::sync::Arc;

use pagekeeper_cache::{InstallAs, OwnedFile, PageNo};
use pagekeeper_io::{AlignedBuf, Create, IoFile, WriteMode, open_writable_past_cache};

use crate::cache::CacheHandle;
use crate::call::{call, fill};
use crate::file::FileHandle;
use crate::pointers::{ArrayPointer, TextPointer, given};
use crate::status::{CallFailure, Status};

/// Bytes per write: direct writes need aligned memory, which the caller's may not be.
const WRITE_BYTES: usize = 1 << 20;

/// The writable part of a `pk_file`.
#[derive(Debug)]
pub(crate) struct WritablePart {
    file: OwnedFile,
    device: DeviceFile,
}

/// The open file itself.
struct DeviceFile(Arc<dyn IoFile>);

impl std::fmt::Debug for DeviceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DeviceFile").field(&self.0.path()).finish()
    }
}

/// Returns the owned part of a file. Fails in a forked child, and for a file that the caller does
/// not write.
fn of_owner(file: Option<&FileHandle>) -> Result<&WritablePart, CallFailure> {
    let file = given(file, "the file")?;
    file.process.require()?;
    file.owned.as_ref().ok_or_else(|| {
        let path = pagekeeper_text::escaped(file.cached.path());
        CallFailure::misuse(format!("{path}: not opened by pk_file_open_owned(), so that it can't change"))
    })
}

/// Returns the number of pages in `bytes`, which must be whole pages within the file's limit.
fn pages(file: &OwnedFile, first: u64, bytes: usize) -> Result<u64, CallFailure> {
    let page = file.page_size();
    if !bytes.is_multiple_of(page) {
        return Err(CallFailure::misuse(format!("{bytes} bytes are no number of whole pages of {page}")));
    }
    let count = (bytes / page) as u64;
    match first.checked_add(count).filter(|end| *end <= file.max_pages()) {
        Some(_) => Ok(count),
        None => Err(CallFailure::new(
            Status::NotFound,
            format!("{count} pages from {first} on: the file was opened for {}", file.max_pages()),
        )),
    }
}

/// Removes pages from the cache, a limited number at a time.
fn discard(file: &OwnedFile, pages: std::ops::Range<u64>) {
    const DISCARD_PAGES_MAX: usize = 4096;
    let mut rest = pages;
    while !rest.is_empty() {
        let some = rest.by_ref().take(DISCARD_PAGES_MAX).map(PageNo::new);
        file.discard_many(&some.collect::<Vec<_>>());
    }
}

/// Puts whole pages into the cache.
fn install(
    file: &OwnedFile,
    first: u64,
    bytes: &[u8],
    prefetched: std::ffi::c_int,
) -> Result<(), CallFailure> {
    let how = if prefetched == 0 { InstallAs::Read } else { InstallAs::Prefetched };
    for (number, content) in (first..).zip(bytes.chunks(file.page_size())) {
        file.install(PageNo::new(number), content, how)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_open_owned(
    cache: Option<&CacheHandle>,
    path: TextPointer,
    create: u32,
    max_pages: u64,
    file: Option<&mut MaybeUninit<Box<FileHandle>>>,
) -> Status {
    fill(file, "the file", || {
        let (cache, path) = (given(cache, "the cache")?, path.path()?);
        cache.1.require()?;
        let cache = &cache.0;
        if max_pages == 0 {
            return Err(CallFailure::misuse("max_pages is 0: say how many pages the file may come to"));
        }
        let io = &**cache.io();
        let open = |create| open_writable_past_cache(io, path, create);
        let device = match create {
            0 => match open(Create::Never) {
                Err(error) if error.errno() == Some(libc::ENOENT) => open(Create::New),
                opened => opened,
            },
            1 => open(Create::Never),
            2 => open(Create::New),
            other => return Err(CallFailure::misuse(format!("create is {other}, and should be 0, 1 or 2"))),
        }?;
        let owned = cache.open_owned(Arc::clone(&device), max_pages)?;
        let cached = owned.as_cached_file().clone();
        let owned = Some(WritablePart { file: owned, device: DeviceFile(device) });
        Ok(Box::new(FileHandle { owned, ..FileHandle::from(cached) }))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_write_pages(
    file: Option<&FileHandle>,
    first: u64,
    bytes: ArrayPointer<u8>,
    size: usize,
    prefetched: std::ffi::c_int,
) -> Status {
    call(|| {
        let WritablePart { file, device: DeviceFile(device) } = of_owner(file)?;
        let (bytes, page) = (bytes.slice(size, "the pages")?, file.page_size());
        let count = pages(file, first, size)?;
        let written = (0..).zip(bytes.chunks(WRITE_BYTES)).try_for_each(|(nth, piece)| {
            let mut aligned = AlignedBuf::new(piece.len());
            aligned.copy_from_slice(piece);
            device.write_at(first * page as u64 + nth * WRITE_BYTES as u64, &aligned, WriteMode::Plain)
        });
        if let Err(error) = written {
            // The pages that reached the device are not known.
            discard(file, first..first + count);
            return Err(error.into());
        }
        install(file, first, bytes, prefetched)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_install(
    file: Option<&FileHandle>,
    first: u64,
    bytes: ArrayPointer<u8>,
    size: usize,
    prefetched: std::ffi::c_int,
) -> Status {
    call(|| {
        let file = &of_owner(file)?.file;
        let bytes = bytes.slice(size, "the pages")?;
        pages(file, first, size)?;
        install(file, first, bytes, prefetched)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_discard(file: Option<&FileHandle>, first: u64, count: u64) -> Status {
    call(|| {
        let file = &of_owner(file)?.file;
        let end = first.saturating_add(count).min(file.max_pages());
        discard(file, first..end);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_sync(file: Option<&FileHandle>) -> Status {
    call(|| Ok(of_owner(file)?.device.0.sync_data()?))
}
