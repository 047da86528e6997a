//! Figures for a narrow screen.
//!
//! Invariants: a size takes at most 5 columns, a rate 6; an unknown figure is "?", never 0.

use pagekeeper_observe::{CachedBreakdown, MemoryBreakdown};

/// Returns a size in few columns: "512B", "1.2M", "34G".
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1000 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // Rounded first: 999.6 K is 1.0 M.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 9.95 && value.fract() != 0.0 {
        format!("{value:.1}{}", UNITS[unit])
    } else {
        format!("{value:.0}{}", UNITS[unit])
    }
}

/// Returns a size that may be unknown; 0 is drawn less prominently.
pub(super) fn figure(bytes: Option<u64>) -> String {
    match bytes {
        None => "?".to_owned(),
        Some(0) => "-".to_owned(),
        Some(bytes) => size(bytes),
    }
}

/// Returns a change per second: "+1.2M", "-34K", or nothing.
pub(super) fn rate(bytes: i64) -> String {
    match bytes {
        0 => "-".to_owned(),
        1.. => format!("+{}", size(bytes.unsigned_abs())),
        _ => format!("-{}", size(bytes.unsigned_abs())),
    }
}

/// Returns a line that compares the files' pages with `Cached`: a percentage, or a share if some
/// files are not counted.
pub(super) fn explained(explained: &CachedBreakdown) -> String {
    if explained.scoped {
        return format!("{} of Cached {} are of these files", size(explained.files), size(explained.cached));
    }
    format!(
        "Cached {} = files {} + shmem {}: {:.1} % explained",
        size(explained.cached),
        size(explained.files),
        size(explained.shmem),
        explained.share() * 100.0
    )
}

/// Returns a line about pages of block devices, which have no rows, if they are at least a tenth of
/// the page cache. No device is opened to find its name; `stat` opens only a device that the user
/// names.
pub(super) fn buffers_line(split: &MemoryBreakdown) -> Option<String> {
    let is_much = split.buffers > 0 && split.buffers >= (split.files() + split.buffers) / 10;
    let line = || {
        let buffers = size(split.buffers);
        format!(
            "{buffers} of block devices (buffers) are in no row: `pagekeeper stat DEVICE` counts one that you name"
        )
    };
    is_much.then(line)
}

/// Returns text cut to a width in columns. It is cut at its front, the least important part of a
/// path: "…/data/base/1".
pub(super) fn cut_front(text: &str, width: usize, mark: &str) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(mark.chars().count());
    let kept: String = text.chars().skip(length - room).collect();
    mark.chars().take(width).chain(kept.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_pages_of_block_devices_get_a_line() {
        let of =
            |clean, buffers| buffers_line(&MemoryBreakdown { clean, buffers, ..MemoryBreakdown::default() });
        assert_eq!((of(0, 0), of(91, 9)), (None, None));
        let line = of(2 << 20, 302 << 20).unwrap();
        assert!(line.starts_with("302M of block devices (buffers) are in no row: "), "{line}");
    }

    #[test]
    fn sizes_take_five_columns_at_most() {
        for (bytes, text) in [
            (0, "0B"),
            (999, "999B"),
            (1024, "1K"),
            (4096, "4K"),
            (1536, "1.5K"),
            (10 << 20, "10M"),
            ((999 << 20) + (700 << 10), "1.0G"),
            (1 << 30, "1G"),
            (123_456_789_012, "115G"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
        for shift in 0..64 {
            assert!(size(u64::MAX >> shift).len() <= 5, "{}", size(u64::MAX >> shift));
        }
        assert_eq!(
            (figure(None), figure(Some(0)), figure(Some(1024))),
            ("?".into(), "-".into(), "1K".into())
        );
        assert_eq!((rate(0), rate(2048), rate(-2048)), ("-".into(), "+2K".into(), "-2K".into()));
    }

    #[test]
    fn watching_some_directories_does_not_explain_the_hosts_cache() {
        let all = CachedBreakdown { cached: 1 << 30, files: 900 << 20, shmem: 124 << 20, scoped: false };
        assert_eq!(explained(&all), "Cached 1G = files 900M + shmem 124M: 100.0 % explained");
        let some = CachedBreakdown { files: 400 << 20, scoped: true, ..all };
        assert_eq!(explained(&some), "400M of Cached 1G are of these files");
    }

    #[test]
    fn paths_are_cut_from_their_front() {
        assert_eq!(cut_front("/var/lib/mysql/ibdata1", 10, "…"), "…l/ibdata1");
        assert_eq!(cut_front("/short", 10, "…"), "/short");
        assert_eq!(cut_front("/var/lib", 2, "..."), "..");
        assert_eq!(cut_front("/é/ü/ö", 3, "…"), "…/ö");
    }
}
