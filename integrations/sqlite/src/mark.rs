//! The mark in a database's first bytes while our log has changes that the file may lack.
//!
//! SQLite checks two parts of a file that it did not write itself. The change counter (bytes 24 to
//! 27) says whether its cached pages are still valid. Without the magic string (bytes 0 to 15) it
//! refuses the file ("file is not a database"). The mark changes both, within the first 28 bytes,
//! which no disk tears. So nobody without this VFS takes an incomplete file for a complete one, nor
//! a file whose log is lost or another's.
//!
//! The mark has a number that is different each time. The log has it, too, which distinguishes its
//! file from a copy of another time.
//!
//! Invariant: setting and removing the mark are inverse operations, and lose nothing.

/// The start of a database.
const DATABASE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The start of a marked database; its number follows.
const MARK_MAGIC: &[u8; 8] = b"pgkeeper";
/// Size of the marked part in bytes.
pub(crate) const MARK_BYTES: usize = 28;
const COUNTER_OFFSET: usize = 24;

/// The head of a marked file.
pub(crate) type Head = [u8; MARK_BYTES];

/// Returns the number of a file's mark; `None` without a mark.
pub(crate) fn of(head: &[u8]) -> Option<u64> {
    let number = head.strip_prefix(MARK_MAGIC)?.first_chunk()?;
    Some(u64::from_le_bytes(*number))
}

/// Whether a file begins like an SQLite database.
pub(crate) fn is_database(head: &[u8]) -> bool {
    head.starts_with(DATABASE_MAGIC)
}

/// Whether a file is a database in WAL mode: the versions of its format that readers and writers
/// need say so.
pub(crate) fn is_wal(head: &Head) -> bool {
    is_database(head) && head[18..20].contains(&2)
}

/// Whether a file with this head can be marked: it is SQLite's, or empty.
pub(crate) fn can_be_marked(head: &Head) -> bool {
    is_database(head) || head.iter().all(|&byte| byte == 0)
}

/// Sets a mark in a head that can be marked, or replaces its mark.
pub(crate) fn put(head: &mut Head, number: u64) {
    if of(head).is_none() {
        head[..8].copy_from_slice(MARK_MAGIC);
        invert(&mut head[COUNTER_OFFSET..]);
    }
    head[8..16].copy_from_slice(&number.to_le_bytes());
}

/// Removes the mark from bytes that were read from a marked file at an offset, as far as they
/// contain it.
pub(crate) fn take_off(bytes: &mut [u8], offset: u64) {
    let Ok(start) = usize::try_from(offset) else { return };
    for (at, byte) in (start..MARK_BYTES).zip(bytes) {
        match at {
            0..16 => *byte = DATABASE_MAGIC[at],
            COUNTER_OFFSET.. => *byte = !*byte,
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
        let mut head = [0; MARK_BYTES];
        head[..16].copy_from_slice(DATABASE_MAGIC);
        for (at, byte) in head.iter_mut().enumerate().skip(16) {
            *byte = u8::try_from(at * 7 % 256).unwrap();
        }
        let before = head;
        assert!(can_be_marked(&before) && of(&before).is_none());
        put(&mut head, 7);
        put(&mut head, 0x0123_4567_89ab_cdef);
        assert_eq!(of(&head), Some(0x0123_4567_89ab_cdef));
        assert!(!can_be_marked(&head));
        assert_ne!(
            head[COUNTER_OFFSET..],
            before[COUNTER_OFFSET..],
            "a connection with cached pages must see the change"
        );
        for start in 0..MARK_BYTES + 4 {
            for end in start..MARK_BYTES + 4 {
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
        assert!(can_be_marked(&[0; MARK_BYTES]));
        assert!(!can_be_marked(b"%PDF-1.4 this is no database"));
    }
}
