//! Figures and names in words, as in findings.

use std::path::Path;
use std::time::Duration;

use pagekeeper_text::{ByteSize, escaped, listed_up_to};

/// Returns bytes per second; `None` for an empty period.
pub(crate) fn per_second(bytes: u64, period: Duration) -> Option<u64> {
    let rate = (u128::from(bytes) * 1_000_000_000).checked_div(period.as_nanos())?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// Returns the last component of a path: the name by which people know a file.
pub(crate) fn file_name(path: &Path) -> String {
    escaped(path.file_name().unwrap_or(path.as_os_str())).to_string()
}

/// Formats a process: "tar (process 77)".
pub(crate) fn process(name: &str, pid: u32) -> String {
    format!("{name} (process {pid})")
}

/// Lists things with their sizes, the largest `shown` first: "a (5 MiB), b (2 MiB) and 3 more".
pub(crate) fn largest(mut all: Vec<(String, u64)>, shown: usize) -> String {
    all.sort_by(|(a, size_a), (b, size_b)| size_b.cmp(size_a).then_with(|| a.cmp(b)));
    let all: Vec<String> =
        all.into_iter().map(|(name, size)| format!("{name} ({})", ByteSize(size))).collect();
    listed_up_to(&all, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_named() {
        let all = vec![("a".to_owned(), 1 << 10), ("b".to_owned(), 5 << 20), ("c".to_owned(), 1 << 20)];
        assert_eq!(largest(all.clone(), 2), "b (5 MiB), c (1 MiB) and 1 more");
        assert_eq!(largest(all, 3), "b (5 MiB), c (1 MiB), a (1 KiB)");
        assert_eq!(file_name(Path::new("/a/ibdata1")), "ibdata1");
    }
}
