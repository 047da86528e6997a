//! Figures and names in words, as in findings.

use std::path::Path;
use std::time::Duration;

use pagekeeper_catalog::units::Size;
use pagekeeper_kernel::text::escaped;

/// Formats a share in percent, as 0 or 100 only if it is exactly that.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    if part >= whole {
        return "100 %".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    match share {
        _ if share < 1.0 => "<1 %".to_owned(),
        _ if share > 99.0 => ">99 %".to_owned(),
        _ => format!("{share:.0} %"),
    }
}

/// Formats a duration in a suitable unit: "12.3 s", "4.5 ms", "80 µs".
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds >= 1.0 {
        format!("{seconds:.1} s")
    } else if seconds >= 0.001 {
        format!("{:.1} ms", seconds * 1e3)
    } else {
        format!("{:.0} µs", seconds * 1e6)
    }
}

/// Formats a count with its noun: "1 file", "3 files".
pub(crate) fn number(count: impl TryInto<u64>, one: &str, more: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {}", if count == 1 { one } else { more })
}

/// Returns bytes per second; `None` for an empty period.
pub(crate) fn per_second(bytes: u64, period: Duration) -> Option<u64> {
    let rate = (u128::from(bytes) * 1_000_000_000).checked_div(period.as_nanos())?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// Formats a rate: "38 MiB/s".
pub(crate) fn rate(bytes: u64) -> String {
    format!("{}/s", Size(bytes))
}

/// Returns the last component of a path: the name by which people know a file.
pub(crate) fn file_name(path: &Path) -> String {
    escaped(path.file_name().unwrap_or(path.as_os_str())).to_string()
}

/// Lists things with their sizes, the largest `shown` first: "a (5 MiB), b (2 MiB) and 3 more".
pub(crate) fn largest(mut all: Vec<(String, u64)>, shown: usize) -> String {
    all.sort_by(|(a, size_a), (b, size_b)| size_b.cmp(size_a).then_with(|| a.cmp(b)));
    let more = all.len().saturating_sub(shown);
    let named: Vec<String> =
        all.into_iter().take(shown).map(|(name, size)| format!("{name} ({})", Size(size))).collect();
    let named = named.join(", ");
    if more == 0 { named } else { format!("{named} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_rounded_to_none_or_all() {
        for (part, whole, text) in [
            (0, 5, "0 %"),
            (1, 1000, "<1 %"),
            (999, 1000, ">99 %"),
            (1, 2, "50 %"),
            (5, 5, "100 %"),
            (1, 0, "0 %"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }

    #[test]
    fn times_have_the_unit_that_suits() {
        for (microseconds, text) in [(80, "80 µs"), (4_500, "4.5 ms"), (12_340_000, "12.3 s"), (0, "0 µs")]
        {
            assert_eq!(time(Duration::from_micros(microseconds)), text);
        }
    }

    #[test]
    fn the_largest_are_named() {
        let all = vec![("a".to_owned(), 1 << 10), ("b".to_owned(), 5 << 20), ("c".to_owned(), 1 << 20)];
        assert_eq!(largest(all.clone(), 2), "b (5 MiB), c (1 MiB) and 1 more");
        assert_eq!(largest(all, 3), "b (5 MiB), c (1 MiB), a (1 KiB)");
        assert_eq!(number(1, "file", "files"), "1 file");
        assert_eq!(file_name(Path::new("/a/ibdata1")), "ibdata1");
    }
}
