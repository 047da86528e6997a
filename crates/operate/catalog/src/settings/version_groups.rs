//! The groups of option files for a server's own version (`mysqld-8.0`), found in its program.
//!
//! Invariant: in a program that was not read to its end, a missing group is unknown.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use super::program_search::ProgramSearch;

/// Upper limit of the length of a group name in bytes.
const GROUP_NAME_BYTES_MAX: usize = 32;
/// Limit of groups kept per program: real ones have a few.
const PROGRAM_GROUPS_MAX: usize = 256;

/// A page of zeros.
const ZEROS: [u8; 4096] = [0; 4096];

/// The groups of all programs searched so far.
#[derive(Debug, Default)]
pub(super) struct VersionGroups(ProgramSearch<ProgramGroups>);

#[derive(Debug, Default)]
struct ProgramGroups {
    names: HashSet<Vec<u8>>,
    /// Whether the whole program was read.
    whole: bool,
}

impl VersionGroups {
    /// Limits the bytes of programs to read from now on.
    pub(super) fn lower(&mut self, most: u64) {
        self.0.lower(most);
    }

    /// Whether a program contains this group's name as a string. Returns `None` if it was not read
    /// to its end and the name was not found.
    pub(super) fn is_in(&mut self, exe: &Path, group: &str) -> Option<bool> {
        let groups = self.0.of(exe, |program, most| {
            let mut groups = of_program(program.reader().take(most));
            groups.whole &= most == program.size();
            groups
        })?;
        let found = groups.names.contains(group.as_bytes());
        (found || groups.whole).then_some(found)
    }
}

/// Returns the versioned groups among the strings of a program, which lie between zero bytes.
fn of_program(mut program: impl Read) -> ProgramGroups {
    let mut groups = ProgramGroups::default();
    let mut chunk = vec![0; 1 << 20];
    // The string being read; `None` inside one that is too long.
    let mut string: Option<Vec<u8>> = None;
    loop {
        let read = match program.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return groups,
        };
        // Handles whole pages of zeros quickly.
        for block in chunk[..read].chunks(ZEROS.len()) {
            if *block == ZEROS[..block.len()] {
                groups.take(string.replace(Vec::new()));
                continue;
            }
            for part in block.split_inclusive(|byte| *byte == 0) {
                let bytes = part.strip_suffix(b"\0").unwrap_or(part);
                let fits = |string: &mut Vec<u8>| string.len() + bytes.len() <= GROUP_NAME_BYTES_MAX;
                string = string.take_if(fits);
                if let Some(string) = &mut string {
                    string.extend_from_slice(bytes);
                }
                if bytes.len() < part.len() {
                    groups.take(string.replace(Vec::new()));
                }
            }
        }
    }
    groups.whole = true;
    groups
}

impl ProgramGroups {
    fn take(&mut self, string: Option<Vec<u8>>) {
        let Some(string) = string else { return };
        let dash = string.iter().rposition(|byte| *byte == b'-');
        let versioned =
            dash.is_some_and(|dash| dash > 0 && string.get(dash + 1).is_some_and(u8::is_ascii_digit));
        if versioned && self.names.len() < PROGRAM_GROUPS_MAX {
            self.names.insert(string);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::program_search::{ALL_PROGRAMS_BYTES_MAX, PROGRAM_BYTES_MAX};
    use super::*;

    #[test]
    fn a_program_tells_which_groups_it_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mariadbd");
        // Across the border of two reads, and of two blocks.
        let mut bytes = vec![b'x'; (1 << 20) - 5];
        bytes.extend(b"\0mariadb-10.11\0end");
        std::fs::write(&path, &bytes).unwrap();
        let mut groups = VersionGroups::default();
        let is_in = |groups: &mut VersionGroups, group| groups.is_in(&path, group);
        assert_eq!(is_in(&mut groups, "mariadb-10.11"), Some(true));
        assert_eq!(is_in(&mut groups, "mariadb-10.1"), Some(false));
        assert_eq!(is_in(&mut groups, "mariadb-10"), Some(false));
        assert_eq!(groups.is_in(&dir.path().join("none"), "mariadb-10.1"), None);
        // A program is read once, however often a group is queried. A replaced file is another
        // program.
        assert_eq!(groups.0.left(), ALL_PROGRAMS_BYTES_MAX - bytes.len() as u64);
        bytes.extend(b"\0mysqld-9.1\0");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(groups.is_in(&path, "mysqld-9.1"), Some(true));
    }

    #[test]
    fn a_huge_program_is_searched_in_part() {
        let dir = tempfile::tempdir().unwrap();
        let mut groups = VersionGroups::default();
        for number in 0..3 {
            let path = dir.path().join(number.to_string());
            std::fs::write(&path, b"\x7fELF\0mysqld-8.0\0").unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(PROGRAM_BYTES_MAX * 4).unwrap();
            let found = groups.is_in(&path, "mysqld-8.0");
            assert_eq!(found, (number < 2).then_some(true), "{number}");
            assert_eq!(groups.is_in(&path, "mysqld-9.0"), None);
        }
        assert_eq!(groups.0.left(), 0);
    }

    #[test]
    fn strings_are_separated_by_zeros() {
        let names = |bytes: &[u8]| {
            let mut names: Vec<_> = of_program(bytes).names.into_iter().collect();
            names.sort();
            names
        };
        assert_eq!(names(b"mysqld-1\0a-2\0\0-3\0b-\0c-4x\0d-5"), [&b"a-2"[..], b"c-4x"]);
        let mut sparse = vec![0; 3 << 12];
        sparse[4093..4099].copy_from_slice(b"server");
        sparse[4099..4102].copy_from_slice(b"-10");
        assert_eq!(names(&sparse), [b"server-10"]);
        assert_eq!(names(&[b"\0", &[b'x'; GROUP_NAME_BYTES_MAX][..], b"-1\0y-1\0"].concat()), [b"y-1"]);
    }
}
