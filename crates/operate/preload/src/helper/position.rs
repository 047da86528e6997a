//! File offsets of the program's descriptors, from /proc.

use libc::c_int;
use pagekeeper_policy::number;

use crate::paths::DescriptorPath;
use crate::sys;

/// Returns the program's offset in the file that its descriptor names.
pub(super) fn position_of(fd: c_int) -> Option<u64> {
    position_in(sys::text_of(DescriptorPath::new(b"/proc/self/fdinfo/", fd).as_c_str(), &mut [0; 64]))
}

/// Parses the offset from the text of /proc/PID/fdinfo: its first line is `pos:`, blanks, and the number.
fn position_in(text: &[u8]) -> Option<u64> {
    number(text.strip_prefix(b"pos:")?.split(|&byte| byte == b'\n').next()?.trim_ascii())
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
