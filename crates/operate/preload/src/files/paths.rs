//! Paths that are put together on the stack: of the program's descriptors in /proc, and of files in
//! directories.
//!
//! Invariant: nothing is allocated; a path that does not fit is none.

use core::ffi::CStr;

use libc::c_int;

use crate::sys::{self, Errno};

/// A path in /proc that ends in a descriptor number.
pub struct DescriptorPath([u8; 48]);

impl DescriptorPath {
    /// Creates the path; `directory` ends in `/`.
    pub fn new(directory: &[u8], fd: c_int) -> Self {
        let mut path = [0; 48];
        let mut digits = [0; 10];
        let mut left = fd.unsigned_abs();
        let mut from = digits.len();
        loop {
            from -= 1;
            digits[from] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        let _ = join(&mut path, &[directory, &digits[from..]]);
        Self(path)
    }

    /// Creates the path of a file in the calling thread's descriptor table.
    pub fn of_thread(fd: c_int) -> Self {
        Self::new(b"/proc/thread-self/fd/", fd)
    }

    /// Returns the path.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Returns the path of the file that `fd` names in the calling thread's descriptor table. It may be
/// cut off if it fills `into`.
pub fn path_of(fd: c_int, into: &mut [u8]) -> Result<&[u8], Errno> {
    let link = DescriptorPath::of_thread(fd);
    let link = if fd == libc::AT_FDCWD { c"/proc/thread-self/cwd" } else { link.as_c_str() };
    sys::read_link(link, into)
}

/// Opens the file that `fd` names in the calling thread's table again, read-only. Leaves the file's
/// access time alone if the user may have that.
pub fn reopen(fd: c_int) -> Result<c_int, Errno> {
    let path = DescriptorPath::of_thread(fd);
    let flags = libc::O_RDONLY | libc::O_NONBLOCK;
    match sys::open(path.as_c_str(), flags | libc::O_NOATIME) {
        Err(Errno(libc::EPERM)) => sys::open(path.as_c_str(), flags),
        opened => opened,
    }
}

/// Opens a descriptor that only names the file of another (`O_PATH`). Closing it keeps the
/// process's record locks on the file, which closing any other descriptor of it would release
/// (fcntl(2)).
pub fn name_of(fd: c_int) -> Result<c_int, Errno> {
    sys::open(DescriptorPath::of_thread(fd).as_c_str(), libc::O_PATH)
}

/// Writes the parts one after the other into `into`, with a null byte behind them. `None` if there
/// is too little room, or a part has a null byte.
pub fn join<'a>(into: &'a mut [u8], parts: &[&[u8]]) -> Option<&'a CStr> {
    let length = parts.iter().map(|part| part.len()).sum();
    let (end, room) = into.get_mut(..=length)?.split_last_mut()?;
    for (to, &byte) in room.iter_mut().zip(parts.iter().copied().flatten()) {
        *to = byte;
    }
    *end = 0;
    CStr::from_bytes_with_nul(into.get(..=length)?).ok()
}
