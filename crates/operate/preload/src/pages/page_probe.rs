//! Finds the resident pages of a file for a user who may use neither cachestat(2) nor mincore(2) on
//! it.
//!
//! It brings in the first page of each 64 KiB, by reads that do not wait and that return whether
//! the page was there. Then it maps the window and accesses these pages, whereupon the kernel maps
//! the resident ones of the 64 KiB (`fault_around_bytes`). /proc/self/pagemap shows which these
//! were.
//!
//! Invariants: nothing is allocated; no child of fork inherits the mapping, which would keep the
//! file; it replaces no other mapping.

use core::ops::Range;

use libc::c_int;

use crate::sys::{self, Errno, call, page_size};

/// The kernel maps the resident pages among this many bytes around an accessed page: the default of
/// `fault_around_bytes`.
const FAULT_AROUND_BYTES: u64 = 64 << 10;
/// Maximum number of parts of that size, and the most pages, in a window.
const BLOCKS_MAX: usize = 32;
const PAGES_MAX: usize = 512;

/// Finds which pages of a window were resident, each in the lowest bit of a byte. The open file
/// must have `POSIX_FADV_RANDOM`.
pub fn probe(fd: c_int, window: &Range<u64>, pages: &mut [u8]) -> Result<(), Errno> {
    const PAGE_PRESENT: u64 = 1 << 63;
    let page = page_size();
    // With larger pages, fewer are mapped around one.
    let each = (FAULT_AROUND_BYTES / page).max(1) as usize;
    let count = (window.end.saturating_sub(window.start)).div_ceil(page) as usize;
    let (Some(pages), true) = (pages.get_mut(..count), count <= (each * BLOCKS_MAX).min(PAGES_MAX)) else {
        return Err(Errno(libc::EINVAL));
    };
    for (nth, block) in pages.chunks_mut(each).enumerate() {
        let at = window.start.saturating_add((nth * each) as u64 * page);
        let was_there = match sys::read_byte(fd, at, libc::RWF_NOWAIT) {
            Ok(_) => 1,
            Err(Errno(libc::EAGAIN)) => 0,
            Err(error) => return Err(error),
        };
        block.fill(0);
        block.iter_mut().take(1).for_each(|first| *first = was_there);
    }
    if each == 1 {
        // With pages of 64 KiB, each was queried by itself.
        return Ok(());
    }
    let mut seen = [0_u64; PAGES_MAX];
    let blocks = count.div_ceil(each);
    read_page_map(fd, window, (each, blocks), seen.get_mut(..count).unwrap_or_default())?;
    for (nth, (page, seen)) in pages.iter_mut().zip(seen).enumerate() {
        if !nth.is_multiple_of(each) {
            *page = u8::from(seen & PAGE_PRESENT != 0);
        }
    }
    Ok(())
}

/// Maps a window, accesses the first page of each of its blocks of `each` pages, and reads the
/// kernel's entries of all pages into `seen`.
fn read_page_map(
    fd: c_int,
    window: &Range<u64>,
    (each, blocks): (usize, usize),
    seen: &mut [u64],
) -> Result<(), Errno> {
    let page = page_size() as usize;
    let length = window.end.saturating_sub(window.start) as usize;
    let page_map = sys::open(c"/proc/self/pagemap", libc::O_RDONLY)?;
    let done = map_at_around(fd, window.start, length).map(|at| {
        let mut bytes = [0_u8; BLOCKS_MAX];
        let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: BLOCKS_MAX };
        let theirs: [libc::iovec; BLOCKS_MAX] = core::array::from_fn(|nth| libc::iovec {
            iov_base: (at + nth * each * page) as *mut _,
            iov_len: 1,
        });
        let (ours, theirs) = ((&raw const ours) as usize, theirs.as_ptr() as usize);
        let args = [sys::getpid() as usize, ours, 1, theirs, blocks, 0];
        let (into, size) = (seen.as_mut_ptr() as usize, size_of_val(seen));
        let from = at / page * size_of::<u64>();
        // SAFETY: a mapping that nobody else knows, and which only the kernel reads, into bytes
        // that live for the call; `seen` has a number for each of its pages.
        unsafe {
            sys::advise_memory(at, length, libc::MADV_DONTFORK);
            sys::advise_memory(at, length, libc::MADV_RANDOM);
            let read = call(libc::SYS_process_vm_readv, args);
            let got = call(libc::SYS_pread64, [page_map as usize, into, size, from]);
            let _ = sys::unmap(at, length);
            read == Ok(blocks) && got == Ok(size)
        }
    });
    sys::close(page_map);
    if done? { Ok(()) } else { Err(Errno(libc::EIO)) }
}

/// Maps a part of a file for reading at a multiple of [`FAULT_AROUND_BYTES`]; otherwise the last
/// pages would not be mapped with the first of their 64 KiB. The address is a hint: it replaces
/// nothing that other threads have mapped meanwhile. Fails with `EAGAIN` if they were quicker each
/// time.
fn map_at_around(fd: c_int, start: u64, length: usize) -> Result<usize, Errno> {
    const MAP_TRIES: usize = 4;
    let reserved = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let around = FAULT_AROUND_BYTES as usize;
    for _ in 0..MAP_TRIES {
        let whole = length + around;
        let room = sys::map(0, whole, libc::PROT_NONE, reserved, -1, 0)?;
        // SAFETY: made just before, and nobody else knows of it.
        unsafe { sys::unmap(room, whole) }?;
        let wish = room.next_multiple_of(around);
        let at = sys::map(wish, length, libc::PROT_READ, libc::MAP_SHARED, fd, start)?;
        if at.is_multiple_of(around) {
            return Ok(at);
        }
        // SAFETY: likewise.
        unsafe { sys::unmap(at, length) }?;
    }
    Err(Errno(libc::EAGAIN))
}
