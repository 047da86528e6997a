//! Samples: what of a file is resident now, window by window.
//!
//! The cost follows what is resident: a file without resident pages takes one call, an empty stretch of a large
//! one too. Fails as [`residency`] does: without permission the state is unknown, never "nothing".

use std::ops::Range;

use pagekeeper_kernel::{InspectedFile, Residency, Result, residency};
use pagekeeper_policy::{WINDOW, Window};

/// Parts that a stretch is cut into while looking for resident windows.
const FAN_OUT: u64 = 16;

/// What a file was seen to have in the page cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Resident bytes.
    pub(crate) resident: u64,
    /// Bytes dirty or under writeback.
    pub(crate) unwritten: u64,
    /// The windows that have resident pages, ascending.
    pub(crate) windows: Vec<Window>,
}

/// Takes a sample of the whole file.
pub(crate) fn sample(file: &InspectedFile) -> Result<Sample> {
    let size = file.size();
    let whole = residency(file, 0..u64::MAX)?;
    let mut found = Sample { resident: whole.resident, unwritten: whole.unwritten(), windows: Vec::new() };
    if whole.resident > 0 && size > 0 {
        let mut width = WINDOW;
        while width < size {
            width *= FAN_OUT;
        }
        descend(file, 0..size, width, &whole, &mut found.windows)?;
    }
    Ok(found)
}

/// Adds the windows of `range`, which is `width` wide but for the end of the file and has the counts `seen`.
fn descend(
    file: &InspectedFile,
    range: Range<u64>,
    width: u64,
    seen: &Residency,
    windows: &mut Vec<Window>,
) -> Result<()> {
    if width <= WINDOW {
        windows.push(Window {
            start: range.start,
            end: range.end,
            resident: seen.resident,
            unwritten: seen.unwritten().min(seen.resident),
        });
        return Ok(());
    }
    let width = width / FAN_OUT;
    let mut start = range.start;
    while start < range.end {
        let part = start..(start + width).min(range.end);
        start = part.end;
        let counts = residency(file, part.clone())?;
        if counts.resident > 0 {
            descend(file, part, width, &counts, windows)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::Links;
    use std::os::unix::fs::FileExt;

    #[test]
    fn windows_add_up_and_lie_where_the_pages_are() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("log");
        let out = std::fs::File::create(&path).unwrap();
        out.set_len(3 * 1024 * WINDOW + 5000).unwrap();
        for offset in [0, 1500 * WINDOW + 4096, 3 * 1024 * WINDOW + 4096] {
            out.write_all_at(b"x", offset).unwrap();
        }
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        let found = sample(&file).unwrap();
        let starts: Vec<u64> = found.windows.iter().map(|window| window.start / WINDOW).collect();
        assert_eq!(starts, [0, 1500, 3 * 1024]);
        assert_eq!(found.windows.last().unwrap().end, file.size());
        assert_eq!(found.resident, 3 * 4096);
        assert_eq!(found.windows.iter().map(|window| window.resident).sum::<u64>(), found.resident);
        assert!(found.unwritten > 0);
        out.sync_all().unwrap();
        assert_eq!(sample(&file).unwrap().unwritten, 0);
    }

    #[test]
    fn an_empty_file_has_nothing() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("empty");
        std::fs::File::create(&path).unwrap();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        assert_eq!(sample(&file).unwrap(), Sample::default());
    }
}
