//! Files that a server appends to and that no pattern names: decides when they have become large
//! enough to be reported.
//!
//! The files of one directory count together, since a rotated log always has new files, each of
//! them small. A file that was open at the first look at its directory may have any size, so only
//! its later growth counts. A file that replaces another was written from its start meanwhile, so
//! its whole size counts. After an incomplete look, a file may be new to the caller only, so only
//! its growth counts.

use std::collections::BTreeMap;

use crate::names::NamePattern;

/// Appended bytes, while a server is watched, from which on a directory is reported: 64 MiB.
pub const APPENDED_REPORT_BYTES: u64 = 64 << 20;

/// Maximum number of directories followed per server; further ones are left out.
const APPENDED_DIRECTORIES_MAX: usize = 16;

/// Appended bytes of the files of one server, by directory (`D`) and file (`F`).
#[derive(Debug, Clone)]
pub struct AppendedFiles<D, F> {
    directories: BTreeMap<D, AppendedDirectory<F>>,
    /// Whether the last look was complete.
    was_complete: bool,
}

#[derive(Debug, Clone)]
struct AppendedDirectory<F> {
    /// The files open at the last look, with their sizes.
    sizes: BTreeMap<F, u64>,
    appended: u64,
    is_reported: bool,
}

impl<D, F> Default for AppendedFiles<D, F> {
    fn default() -> Self {
        Self { directories: BTreeMap::new(), was_complete: false }
    }
}

impl<D: Ord, F: Ord + Copy> AppendedFiles<D, F> {
    /// Records the unnamed files that the server has open for writing now, with their sizes in
    /// bytes. `is_complete` says whether these are all such files. Returns one file for each
    /// directory that is to be reported now; each directory is reported once.
    ///
    /// ```
    /// use pagekeeper_policy::unnamed::{APPENDED_REPORT_BYTES, AppendedFiles};
    ///
    /// let mut appended = AppendedFiles::default();
    /// assert_eq!(appended.observe([("/var/log", 1, 5 << 30)], true), [], "earlier bytes do not count");
    /// assert_eq!(appended.observe([("/var/log", 1, (5 << 30) + APPENDED_REPORT_BYTES)], true), [1]);
    /// assert_eq!(appended.observe([("/var/log", 1, 9 << 30)], true), [], "it was reported");
    /// ```
    pub fn observe(&mut self, open: impl IntoIterator<Item = (D, F, u64)>, is_complete: bool) -> Vec<F> {
        let was_complete = std::mem::replace(&mut self.was_complete, is_complete);
        let mut now: BTreeMap<D, BTreeMap<F, u64>> = BTreeMap::new();
        for (directory, file, size) in open {
            now.entry(directory).or_default().insert(file, size);
        }
        let mut much = Vec::new();
        for (directory, sizes) in now {
            if let Some(known) = self.directories.get_mut(&directory) {
                much.extend(known.observe(sizes, was_complete));
            } else if self.directories.len() < APPENDED_DIRECTORIES_MAX {
                self.directories
                    .insert(directory, AppendedDirectory { sizes, appended: 0, is_reported: false });
            }
        }
        much
    }
}

impl<F: Ord + Copy> AppendedDirectory<F> {
    /// Records the files that are open now. `was_complete` says whether the last look showed all
    /// files. Returns the file that grew most if the directory is to be reported now.
    fn observe(&mut self, sizes: BTreeMap<F, u64>, was_complete: bool) -> Option<F> {
        let is_rotated = was_complete && self.sizes.keys().any(|file| !sizes.contains_key(file));
        let growth = |(file, size): (&F, &u64)| {
            let before = match self.sizes.get(file) {
                Some(before) => *before,
                None if is_rotated => 0,
                None => *size,
            };
            (size.saturating_sub(before), *file)
        };
        let grown: Vec<(u64, F)> = sizes.iter().map(growth).collect();
        self.sizes = sizes;
        self.appended = grown.iter().fold(self.appended, |sum, (bytes, _)| sum.saturating_add(*bytes));
        if self.is_reported || self.appended < APPENDED_REPORT_BYTES {
            return None;
        }
        self.is_reported = true;
        grown.into_iter().max().map(|(_, file)| file)
    }
}

/// Whether to report an unnamed file after a short observation. The file must look like a log, by
/// its open mode or its growth. It must also have [`APPENDED_REPORT_BYTES`] bytes resident, or grow
/// by as much in a minute at its current rate.
///
/// ```
/// use pagekeeper_policy::unnamed::is_much_for_a_log;
///
/// assert!(is_much_for_a_log(64 << 20, 0, 10, true));
/// assert!(!is_much_for_a_log(64 << 20, 0, 10, false), "a table that rests");
/// assert!(is_much_for_a_log(1 << 20, 12 << 20, 10, false));
/// ```
pub const fn is_much_for_a_log(resident: u64, appended: u64, seconds: u64, is_write_only: bool) -> bool {
    let seconds = if seconds == 0 { 1 } else { seconds };
    let in_a_minute = (appended / seconds).saturating_mul(60);
    in_a_minute >= APPENDED_REPORT_BYTES
        || (resident >= APPENDED_REPORT_BYTES && (is_write_only || appended > 0))
}

/// Minimum number of digits that count as a date, a time or a number, which differs between the
/// files of a log.
const VARYING_DIGITS_MIN: usize = 4;

/// Returns a pattern for the files of the log that this file belongs to: dates, times and long
/// numbers in its name become `*`. Returns `None` if a character of the name has a meaning in
/// patterns.
///
/// ```
/// use pagekeeper_policy::unnamed::pattern_of;
///
/// assert_eq!(pattern_of("audit-2026-11-29_093000.txt").as_deref(), Some("audit-*.txt"));
/// assert_eq!(pattern_of("node1-statements.txt").as_deref(), Some("node1-statements.txt"));
/// ```
pub fn pattern_of(name: &str) -> Option<String> {
    let mut pattern = String::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '_' | '.' | ':' | 'T' | 'Z' | '+');
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let stretch = rest.get(..end).unwrap_or_default();
        let stretch = stretch.trim_end_matches(|c: char| !c.is_ascii_digit());
        let digits = stretch.bytes().filter(u8::is_ascii_digit).count();
        if first.is_ascii_digit() && digits >= VARYING_DIGITS_MIN {
            pattern.push('*');
            rest = rest.get(stretch.len()..).unwrap_or_default();
        } else {
            // Takes a short number whole, so that no part of it starts another one.
            let taken = if first.is_ascii_digit() { digits_of(rest) } else { first.len_utf8() };
            pattern.push_str(rest.get(..taken).unwrap_or_default());
            rest = rest.get(taken..).unwrap_or_default();
        }
    }
    let has_meaning = |c: char| matches!(c, '*' | '{' | '/');
    let parsed = (!name.contains(has_meaning)).then(|| pattern.parse::<NamePattern>())?;
    Some(if parsed.is_ok() { pattern } else { name.to_owned() })
}

fn digits_of(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_log_that_is_rotated_is_one_however_small_its_files_are() {
        let mut appended = AppendedFiles::default();
        let mut reported = Vec::new();
        for file in 0..20 {
            // Each file is seen once, grown to its full size.
            reported.extend(appended.observe([("/log", file, 10 * MIB)], true));
        }
        assert_eq!(reported, [7], "the seventh after the first: 70 MiB");
    }

    #[test]
    fn files_that_come_beside_others_count_from_then_on() {
        let mut appended = AppendedFiles::default();
        assert_eq!(appended.observe([("/d", 1, 0)], true), []);
        // A table of any size that was opened.
        assert_eq!(appended.observe([("/d", 1, 0), ("/d", 2, 900 * MIB)], true), []);
        assert_eq!(appended.observe([("/d", 1, 40 * MIB), ("/d", 2, 930 * MIB)], true), [1]);
        // Truncated and rewritten: the removed bytes do not count.
        let mut appended = AppendedFiles::default();
        assert_eq!(appended.observe([("/d", 1, 50 * MIB)], true), []);
        assert_eq!(appended.observe([("/d", 1, 0)], true), []);
        assert_eq!(appended.observe([("/d", 1, 50 * MIB)], true), []);
    }

    #[test]
    fn a_file_that_comes_into_sight_for_another_counts_from_then_on() {
        let mut appended = AppendedFiles::default();
        let files = |files: std::ops::Range<u32>| files.map(|file| ("/d", file, 900 * MIB));
        assert_eq!(appended.observe(files(0..64), false), []);
        assert_eq!(appended.observe(files(1..65), true), [], "the last was left out before");
        assert_eq!(appended.observe(files(2..66), true), [65]);
    }

    proptest! {
        #[test]
        fn a_pattern_matches_the_name_that_it_is_of(name in "[-a-z0-9_.T*{]{1,40}") {
            prop_assume!(!matches!(name.as_str(), "." | ".."));
            match pattern_of(&name) {
                Some(pattern) => {
                    let pattern: NamePattern = pattern.parse().unwrap();
                    prop_assert!(pattern.matches_name(std::ffi::OsStr::new(&name)).is_some());
                }
                None => prop_assert!(name.contains(['*', '{']), "{}", name),
            }
        }

        #[test]
        fn directories_are_reported_once_and_up_to_the_limit(
            looks in prop::collection::vec(prop::collection::vec((0_u8..40, 0_u8..6, any::<u64>()), 0..40), 0..30)
        ) {
            let mut appended = AppendedFiles::default();
            let mut reported = Vec::new();
            for look in looks {
                // A file lies in one directory.
                let open = look.into_iter().map(|(directory, file, size)| (directory, (directory, file), size));
                reported.extend(appended.observe(open, true).into_iter().map(|(directory, _)| directory));
            }
            let count = reported.len();
            reported.sort_unstable();
            reported.dedup();
            prop_assert_eq!(reported.len(), count);
            prop_assert!(count <= APPENDED_DIRECTORIES_MAX);
        }
    }
}
