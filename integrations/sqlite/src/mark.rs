//! The mark in a database's first bytes while our log has what the file may not have yet.
//!
//! SQLite looks at two things of a file that it did not write itself: the change counter (bytes 24 to 27), which says whether what it has in
//! memory still holds, and the magic string (bytes 0 to 15), without which it refuses the file ("file is not a database"). The mark changes both, within
//! the first 28 bytes, which no disk tears. So nobody without this VFS takes a file for whole that isn't, and none whose log is lost or another's.
//!
//! The mark has a number, which is another one each time: the log has it, too, which tells its file from a copy of another time.
//!
//! Invariant: marking and taking the mark off are each other's inverse, and lose nothing.

/// What a database begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// What a marked one begins with; its number follows.
const MARK: &[u8; 8] = b"pgkeeper";
/// Bytes that the mark lies in.
pub(crate) const SPAN: usize = 28;
const COUNTER: usize = 24;

/// The head of a marked file.
pub(crate) type Head = [u8; SPAN];

/// The number of a file's mark; `None` for one without.
pub(crate) fn of(head: &[u8]) -> Option<u64> {
    let number = head.strip_prefix(MARK)?.first_chunk()?;
    Some(u64::from_le_bytes(*number))
}

/// Whether a file begins as SQLite's do.
pub(crate) fn is_database(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Whether a file with this head can be marked: it is SQLite's, or empty.
pub(crate) fn can_be_marked(head: &Head) -> bool {
    is_database(head) || head.iter().all(|&byte| byte == 0)
}

/// Puts a mark into a head that can be marked, or in place of the one that it has.
pub(crate) fn put(head: &mut Head, number: u64) {
    if of(head).is_none() {
        head[..8].copy_from_slice(MARK);
        invert(&mut head[COUNTER..]);
    }
    head[8..16].copy_from_slice(&number.to_le_bytes());
}

/// Takes the mark off what was read of a marked file at an offset, as far as it is in it.
pub(crate) fn take_off(bytes: &mut [u8], offset: u64) {
    let Ok(start) = usize::try_from(offset) else { return };
    for (at, byte) in (start..SPAN).zip(bytes) {
        match at {
            0..16 => *byte = MAGIC[at],
            COUNTER.. => *byte = !*byte,
            _ => {}
        }
    }
}

fn invert(counter: &mut [u8]) {
    for byte in counter {
        *byte = !*byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_off_whole_and_in_parts() {
        let mut head = [0; SPAN];
        head[..16].copy_from_slice(MAGIC);
        for (at, byte) in head.iter_mut().enumerate().skip(16) {
            *byte = u8::try_from(at * 7 % 256).unwrap();
        }
        let before = head;
        assert!(can_be_marked(&before) && of(&before).is_none());
        put(&mut head, 7);
        put(&mut head, 0x0123_4567_89ab_cdef);
        assert_eq!(of(&head), Some(0x0123_4567_89ab_cdef));
        assert!(!can_be_marked(&head));
        assert_ne!(head[COUNTER..], before[COUNTER..], "who has the file in memory must see that it changed");
        for start in 0..SPAN + 4 {
            for end in start..SPAN + 4 {
                let mut longer = head.to_vec();
                longer.extend([1, 2, 3, 4]);
                let mut read = longer[start..end].to_vec();
                take_off(&mut read, start as u64);
                let whole = [&before[..], &[1, 2, 3, 4]].concat();
                assert_eq!(read, whole[start..end]);
            }
        }
    }

    #[test]
    fn a_file_of_something_else_is_not_marked() {
        assert!(can_be_marked(&[0; SPAN]));
        assert!(!can_be_marked(b"%PDF-1.4 this is no database"));
    }
}
