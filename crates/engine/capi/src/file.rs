//! `pk_file` and `pk_page`: reads, batches, pages in place, and reads with callbacks.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use pagekeeper_cache::{CachedFile, PageNo, PageRef, ReadRequest};
use pagekeeper_io::Process;

use crate::cache::CacheHandle;
use crate::call::{call, fill, note, plain};
use crate::owned::WritablePart;
use crate::pointers::{ClosingHandle, MutArrayPointer, TextPointer, given, put};
use crate::status::{CallFailure, Status};
use crate::task;

/// `pk_file`.
#[derive(Debug)]
pub struct FileHandle {
    pub(crate) cached: CachedFile,
    /// The writable part, if the caller writes the file.
    pub(crate) owned: Option<WritablePart>,
    pub(crate) process: Process,
}

impl From<CachedFile> for FileHandle {
    fn from(cached: CachedFile) -> Self {
        Self { cached, owned: None, process: Process::current() }
    }
}

/// `pk_page`.
#[derive(Debug)]
pub struct PageHandle(PageRef);

/// `pk_read`.
#[derive(Debug)]
#[repr(C)]
pub struct BatchRead {
    offset: u64,
    buffer: MutArrayPointer<u8>,
    size: usize,
    got: usize,
    /// A `pk_status`; any value on input.
    status: c_int,
}

/// `pk_done`.
pub(crate) type DoneCallback = unsafe extern "C" fn(*mut c_void, Status, usize);

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_open(
    cache: Option<&CacheHandle>,
    path: TextPointer,
    file: Option<&mut MaybeUninit<Box<FileHandle>>>,
) -> Status {
    fill(file, "the file", || {
        Ok(Box::new(FileHandle::from(given(cache, "the cache")?.0.open(path.path()?)?)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_size(file: Option<&FileHandle>) -> u64 {
    file.map_or(0, |file| file.cached.len())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_id(file: Option<&FileHandle>) -> u64 {
    file.map_or(0, |file| file.cached.id())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_is_direct(file: Option<&FileHandle>) -> c_int {
    file.map_or(0, |file| file.cached.is_direct().into())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_read(
    file: Option<&FileHandle>,
    offset: u64,
    buffer: MutArrayPointer<u8>,
    size: usize,
    mut read: Option<&mut MaybeUninit<usize>>,
) -> Status {
    // Most hits take this path, in as few instructions as possible: the processor overlaps as many
    // reads as its instruction window holds. So the size is stored before the copy, and no argument
    // has to be kept across it.
    if let (Some(file), Some(start)) = (file, buffer.start())
        // SAFETY: not NULL, and the header's contract: `size` bytes that belong to the library
        // during the call.
        && unsafe { file.cached.read_shortest(offset, start.as_ptr(), size, || put(read.as_deref_mut(), size)) }
    {
        return Status::Ok;
    }
    read_slowly(file, offset, buffer, size, read)
}

#[cold]
fn read_slowly(
    file: Option<&FileHandle>,
    offset: u64,
    buffer: MutArrayPointer<u8>,
    size: usize,
    read: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let got = given(file, "the file")?.cached.read_at(offset, buffer.slice(size, "the buffer")?)?;
        match read {
            Some(read) => _ = read.write(got),
            None if got < size => {
                return Err(CallFailure::new(
                    Status::End,
                    format!("the file ends {got} bytes after {offset}"),
                ));
            }
            None => {}
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_read_many(
    file: Option<&FileHandle>,
    reads: MutArrayPointer<BatchRead>,
    count: usize,
) -> Status {
    call(|| {
        let (file, reads) = (given(file, "the file")?, reads.slice(count, "the list of reads")?);
        let mut requests = Vec::with_capacity(reads.len());
        for BatchRead { offset, buffer, size, .. } in &*reads {
            requests.push(ReadRequest::new(*offset, buffer.slice(*size, "the buffer of a read")?));
        }
        let all = file.cached.read_many(&mut requests);
        for (request, to) in requests.iter().zip(reads) {
            let (got, status) = match request.outcome() {
                Ok(got) => (*got, Status::Ok),
                Err(error) => (0, CallFailure::from(error.clone()).status),
            };
            (to.got, to.status) = (got, status as c_int);
        }
        Ok(all?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_prefetch(file: Option<&FileHandle>, offset: u64, size: u64) -> Status {
    call(|| {
        let file = given(file, "the file")?;
        file.process.require()?;
        file.cached.prefetch(offset..offset.saturating_add(size));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_close(file: Option<ClosingHandle<FileHandle>>) {
    plain((), || drop(file.map(ClosingHandle::open)));
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_page_get(
    file: Option<&FileHandle>,
    number: u64,
    page: Option<&mut MaybeUninit<Box<PageHandle>>>,
) -> Status {
    fill(page, "the page", || {
        Ok(Box::new(PageHandle(given(file, "the file")?.cached.page_ref(PageNo::new(number))?)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_page_data(page: Option<&PageHandle>) -> *const c_void {
    page.map_or(std::ptr::null(), |page| page.0.as_ptr().cast())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_page_size(page: Option<&PageHandle>) -> usize {
    page.map_or(0, |page| page.0.len())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_page_release(page: Option<ClosingHandle<PageHandle>>) {
    plain((), || drop(page.map(ClosingHandle::open)));
}

/// The first argument of a callback.
struct CallbackArgument(*mut c_void);

// SAFETY: it is only passed on, never dereferenced; the header says that another thread may call
// back.
unsafe impl Send for CallbackArgument {}

#[unsafe(no_mangle)]
pub extern "C" fn pk_file_read_async(
    file: Option<&FileHandle>,
    offset: u64,
    buffer: MutArrayPointer<u8>,
    size: usize,
    done: Option<DoneCallback>,
    arg: *mut c_void,
) -> Status {
    call(|| {
        let file = given(file, "the file")?.cached.clone();
        let done = done.ok_or_else(|| CallFailure::misuse("the callback is NULL"))?;
        buffer.slice(size, "the buffer")?;
        let argument = CallbackArgument(arg);
        let mut end = PendingCallback(Some((done, argument)));
        task::run(async move {
            let (status, read) = match read_later(&file, offset, buffer, size).await {
                Ok(read) => (Status::Ok, read),
                Err(failure) => (note(failure), 0),
            };
            end.finish(status, read);
        });
        Ok(())
    })
}

/// Reads into a buffer that belongs to the library until the read is over. Nobody waits for it yet.
pub(crate) async fn read_later(
    file: &CachedFile,
    offset: u64,
    buffer: MutArrayPointer<u8>,
    size: usize,
) -> Result<usize, CallFailure> {
    let buffer = buffer.slice(size, "the buffer")?;
    Ok(file.read_at_async(offset, buffer).await?)
}

/// A callback that is called exactly once, whatever happens: with the status of a defect if the
/// read panicked.
struct PendingCallback(Option<(DoneCallback, CallbackArgument)>);

impl PendingCallback {
    fn finish(&mut self, status: Status, read: usize) {
        if let Some((done, CallbackArgument(arg))) = self.0.take() {
            // SAFETY: the header's contract.
            unsafe { done(arg, status, read) };
        }
    }
}

impl Drop for PendingCallback {
    fn drop(&mut self) {
        self.finish(Status::Internal, 0);
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_cache::PageCache;

    use super::*;

    #[test]
    fn sizes_and_offsets_beyond_all_memory_are_no_hits() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7_u8; 8192]).unwrap();
        let cache = PageCache::options().memory(1 << 20).build().unwrap();
        let file = FileHandle::from(cache.open(&path).unwrap());
        let mut buffer = [0_u8; 100];
        let mut read = |offset, size| {
            let mut got = MaybeUninit::new(usize::MAX);
            let to = MutArrayPointer::from(&mut buffer);
            let status = pk_file_read(Some(&file), offset, to, size, Some(&mut got));
            // SAFETY: it was initialised when it was created.
            (status, unsafe { got.assume_init() })
        };
        // From the fourth on it takes the shortest path.
        for _ in 0..8 {
            assert_eq!(read(4000, 96), (Status::Ok, 96));
            assert_eq!(read(4092, 8), (Status::Ok, 8));
        }
        // Sums with the offset in the page, or with the offset, that overflow.
        for size in [usize::MAX, usize::MAX - 4000, usize::MAX / 2 + 1] {
            assert_eq!(read(4000, size), (Status::Misuse, usize::MAX), "{size}");
        }
        for offset in [u64::MAX, u64::MAX - 50, 8192] {
            assert_eq!(read(offset, 100), (Status::Ok, 0), "{offset}");
        }
        assert_eq!(read(8150, 100), (Status::Ok, 42));
        file.cached.close();
        assert_eq!(read(4000, 96).1, usize::MAX, "nothing is put where it fails");
        assert_eq!(buffer[..42], [7; 42]);
    }
}
