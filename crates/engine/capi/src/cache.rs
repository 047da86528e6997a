//! `pk_cache`: opening with options, the budget, the counters.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;

use pagekeeper_cache::{Backend, HugePages, LoadedPage, PageCache};
use pagekeeper_io::Process;

use crate::call::{call, fill, plain};
use crate::pointers::{ClosingHandle, OptionsPointer, OutPointer, SizedStruct, given, is_zero};
use crate::status::{CallFailure, Status};

/// Maximum size of a verifier's reason in bytes.
const REASON_BYTES: usize = 256;

type VerifierCallback = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    page: u64,
    bytes: *const c_void,
    size: usize,
    reason: *mut c_char,
    reason_size: usize,
) -> c_int;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CacheOptions {
    struct_size: usize,
    memory: u64,
    page_size: u32,
    backend: u32,
    huge_pages: u32,
    reserved: u32,
    verifier: Option<VerifierCallback>,
    verifier_arg: *mut c_void,
}

// SAFETY: integers, a function and its argument, for which the header's contract holds; the size
// first.
unsafe impl SizedStruct for CacheOptions {
    const STRUCT_NAME: &'static str = "pk_cache_options";
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CacheStats {
    struct_size: usize,
    hits: u64,
    misses: u64,
    coalesced: u64,
    prefetched: u64,
    bypassed: u64,
    failures: u64,
    evictions: u64,
    device_reads: u64,
    device_bytes: u64,
    resident_pages: u64,
    capacity_pages: u64,
    page_size: u64,
}

// SAFETY: only integers, the size first.
unsafe impl SizedStruct for CacheStats {
    const STRUCT_NAME: &'static str = "pk_cache_stats";
}

/// `pk_cache`.
#[derive(Debug)]
pub struct CacheHandle(pub(crate) PageCache, pub(crate) Process);

impl CacheOptions {
    fn options(&self) -> Result<pagekeeper_cache::CacheOptions, CallFailure> {
        is_zero(self.reserved)?;
        let mut options = PageCache::options();
        if self.memory > 0 {
            options = options.memory(self.memory);
        }
        if self.page_size > 0 {
            options = options.page_size(self.page_size as usize);
        }
        options = options.backend(match self.backend {
            0 => Backend::Auto,
            1 => Backend::Uring,
            2 => Backend::Threads,
            3 => Backend::Buffered,
            other => return Err(CallFailure::misuse(format!("no pk_backend is {other}"))),
        });
        options = options.huge_pages(match self.huge_pages {
            0 => HugePages::Transparent,
            1 => HugePages::Hugetlb,
            2 => HugePages::Off,
            other => return Err(CallFailure::misuse(format!("no pk_huge_pages is {other}"))),
        });
        Ok(match self.verifier {
            Some(verifier) => options.verifier(of_c(verifier, self.verifier_arg)),
            None => options,
        })
    }
}

/// The first argument of a verifier.
#[derive(Clone, Copy)]
struct VerifierArgument(*mut c_void);

// SAFETY: it is only passed on, never dereferenced; the header says that several threads call the
// verifier.
unsafe impl Send for VerifierArgument {}
// SAFETY: as above.
unsafe impl Sync for VerifierArgument {}

fn of_c(verifier: VerifierCallback, argument: *mut c_void) -> impl Fn(&LoadedPage<'_>) -> Result<(), String> {
    let argument = VerifierArgument(argument);
    move |page| {
        let VerifierArgument(argument) = { argument };
        let path = CString::new(page.path().as_os_str().as_bytes()).unwrap_or_default();
        let mut reason = [0_u8; REASON_BYTES];
        // SAFETY: the header's contract; the arguments live during the call, and have the given
        // lengths.
        let said = unsafe {
            verifier(
                argument,
                path.as_ptr(),
                page.page().get(),
                page.bytes().as_ptr().cast(),
                page.bytes().len(),
                reason.as_mut_ptr().cast(),
                reason.len(),
            )
        };
        if said == 0 {
            return Ok(());
        }
        let reason = reason.split(|&byte| byte == 0).next().unwrap_or_default();
        if reason.is_empty() { Err(format!("the verifier said {said}")) } else { Err(text(reason)) }
    }
}

fn text(bytes: &[u8]) -> String {
    pagekeeper_text::escaped(std::path::Path::new(std::ffi::OsStr::from_bytes(bytes))).to_string()
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_open(
    options: OptionsPointer<CacheOptions>,
    cache: Option<&mut MaybeUninit<Box<CacheHandle>>>,
) -> Status {
    fill(cache, "the cache", || {
        Ok(Box::new(CacheHandle(options.read()?.options()?.build()?, Process::current())))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_set_memory(cache: Option<&CacheHandle>, bytes: u64) -> Status {
    call(|| Ok(given(cache, "the cache")?.0.set_memory(bytes)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_get_stats(cache: Option<&CacheHandle>, stats: OutPointer<CacheStats>) -> Status {
    call(|| {
        let CacheHandle(cache, process) = given(cache, "the cache")?;
        process.require()?;
        let counted = cache.stats();
        stats.write(CacheStats {
            struct_size: size_of::<CacheStats>(),
            hits: counted.hits,
            misses: counted.misses,
            coalesced: counted.coalesced,
            prefetched: counted.prefetched,
            bypassed: counted.bypassed,
            failures: counted.failures,
            evictions: counted.evictions,
            device_reads: counted.device_reads,
            device_bytes: counted.device_bytes,
            resident_pages: counted.resident_pages,
            capacity_pages: counted.capacity_pages,
            page_size: counted.page_size,
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_close(cache: Option<ClosingHandle<CacheHandle>>) {
    plain((), || drop(cache.map(ClosingHandle::open)));
}
