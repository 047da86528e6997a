//! File offsets of the program's descriptors, from /proc.

use libc::c_int;

use crate::sys;

/// Returns the program's offset in the file that its descriptor names.
pub(super) fn position_of(fd: c_int) -> Option<u64> {
    let path = sys::DescriptorPath::new(b"/proc/self/fdinfo/", fd);
    let info = sys::open(path.as_c_str(), libc::O_RDONLY).ok()?;
    let mut text = [0; 64];
    let length = sys::read(info, &mut text);
    sys::close(info);
    position_in(text.get(..length.ok()?)?)
}

/// Parses the offset from the text of /proc/PID/fdinfo: its first line is `pos:`, blanks, and the number.
fn position_in(text: &[u8]) -> Option<u64> {
    let line = text.strip_prefix(b"pos:")?.split(|&byte| byte == b'\n').next()?.trim_ascii();
    if line.is_empty() {
        return None;
    }
    line.iter().try_fold(0_u64, |sum, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn the_position_is_read_from_proc() {
        assert_eq!(position_in(b"pos:\t4096\nflags:\t0100002\n"), Some(4096));
        for text in [&b""[..], b"pos:", b"pos:\t\nflags", b"pos:\tx\n", b"flags:\t1\n"] {
            assert_eq!(position_in(text), None);
        }
    }
}
