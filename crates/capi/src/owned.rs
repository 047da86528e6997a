//! Files of the cache that their owner writes: `pk_file_open_owned` and what it adds to `pk_file`.
//!
//! Invariants: pages are written past the kernel's page cache where the file system can do that, and what the cache has of them is the new content,
//! or nothing, when the call returns, whatever it returns. A call that changes fails with misuse for a file that was not opened so.

use std::mem::MaybeUninit;
use std::sync::Arc;

use pagekeeper_cache::{InstallAs, OwnedFile};
use pagekeeper_io::{AlignedBuf, Create, IoFile, WriteMode, open_writable_past_cache};

use crate::cache::Cache;
use crate::call::call;
use crate::file::File;
use crate::pointers::{Array, Text, given, wanted};
use crate::status::{Failure, Status};

/// Bytes that are written at once: direct writes go from memory that is aligned, which the caller's may not be.
const PIECE: usize = 1 << 20;

/// The part of a `pk_file` that can be written.
#[derive(Debug)]
pub(crate) struct Owned {
    file: OwnedFile,
    device: Device,
}

/// The open file itself.
struct Device(Arc<dyn IoFile>);

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.0.path()).finish()
    }
}

/// The pages that a call is about: their owner, the number of the first, and how many bytes each has.
fn of_owner(file: Option<&File>) -> Result<&Owned, Failure> {
    let file = given(file, "the file")?;
    file.process.require()?;
    file.owned.as_ref().ok_or_else(|| {
        let path = pagekeeper_kernel::text::escaped(file.cached.path());
        Failure::misuse(format!("{path}: not opened by pk_file_open_owned(), so that it can't change"))
    })
}

/// How many pages so many bytes are: whole ones, within the file's limit.
fn pages(file: &OwnedFile, first: u64, bytes: usize) -> Result<u64, Failure> {
    let page = file.page_size();
    if !bytes.is_multiple_of(page) {
        return Err(Failure::misuse(format!("{bytes} bytes are no number of whole pages of {page}")));
    }
    let count = (bytes / page) as u64;
    match first.checked_add(count).filter(|end| *end <= file.max_pages()) {
        Some(_) => Ok(count),
        None => Err(Failure::new(
            Status::NotFound,
            format!("{count} pages from {first} on: the file was opened for {}", file.max_pages()),
        )),
    }
}

/// Takes pages out of the cache, however many: some at a time.
fn discard(file: &OwnedFile, pages: std::ops::Range<u64>) {
    const AT_ONCE: usize = 4096;
    let mut rest = pages;
    while !rest.is_empty() {
        file.discard_many(&rest.by_ref().take(AT_ONCE).collect::<Vec<_>>());
    }
}

/// Puts whole pages into the cache.
fn install(file: &OwnedFile, first: u64, bytes: &[u8], prefetched: std::ffi::c_int) -> Result<(), Failure> {
    let how = if prefetched == 0 { InstallAs::Read } else { InstallAs::Prefetched };
    for (number, content) in (first..).zip(bytes.chunks(file.page_size())) {
        file.install(number, content, how)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_open_owned(
    cache: Option<&Cache>,
    path: Text,
    create: u32,
    max_pages: u64,
    file: Option<&mut MaybeUninit<Box<File>>>,
) -> Status {
    call(|| {
        let (cache, out, path) = (given(cache, "the cache")?, wanted(file, "the file")?, path.path()?);
        cache.1.require()?;
        let cache = &cache.0;
        if max_pages == 0 {
            return Err(Failure::misuse("max_pages is 0: say how many pages the file may come to"));
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
            other => return Err(Failure::misuse(format!("create is {other}, and should be 0, 1 or 2"))),
        }?;
        let owned = cache.open_owned(Arc::clone(&device), max_pages)?;
        let cached = owned.as_cached_file().clone();
        let owned = Some(Owned { file: owned, device: Device(device) });
        out.write(Box::new(File { owned, ..File::from(cached) }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_write_pages(
    file: Option<&File>,
    first: u64,
    bytes: Array<u8>,
    size: usize,
    prefetched: std::ffi::c_int,
) -> Status {
    call(|| {
        let Owned { file, device: Device(device) } = of_owner(file)?;
        let (bytes, page) = (bytes.slice(size, "the pages")?, file.page_size());
        let count = pages(file, first, size)?;
        let written = (0..).zip(bytes.chunks(PIECE)).try_for_each(|(nth, piece)| {
            let mut aligned = AlignedBuf::new(piece.len());
            aligned.copy_from_slice(piece);
            device.write_at(first * page as u64 + nth * PIECE as u64, &aligned, WriteMode::Plain)
        });
        if let Err(error) = written {
            // Which of them the device has is not known.
            discard(file, first..first + count);
            return Err(error.into());
        }
        install(file, first, bytes, prefetched)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_install(
    file: Option<&File>,
    first: u64,
    bytes: Array<u8>,
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
pub extern "C" fn pk_file_discard(file: Option<&File>, first: u64, count: u64) -> Status {
    call(|| {
        let file = &of_owner(file)?.file;
        let end = first.saturating_add(count).min(file.max_pages());
        discard(file, first..end);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_sync(file: Option<&File>) -> Status {
    call(|| Ok(of_owner(file)?.device.0.sync_data()?))
}
