//! The windows of a file that have resident pages.
//!
//! The cost follows what is resident: a file without resident pages takes one call, and so does an
//! empty stretch of a large one. A file of few windows that is likely to have resident pages takes
//! one call per window. A search stops early if it takes too long or finds more windows than there
//! is room for; the next one continues from there. It fails as [`residency`] does: without
//! permission the state is unknown, never "nothing".

use std::ops::Range;

use crate::pages::residency::{Residency, residency};
use crate::{InspectedFile, Result};

/// Number of parts that a stretch is cut into in the search for resident windows. The whole range
/// is cut into at most twice as many.
const FAN_OUT: u64 = 16;

/// A window with resident pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidentWindow {
    /// Its range in the file; the last window ends with the file.
    pub range: Range<u64>,
    /// Bytes resident in it.
    pub resident: u64,
    /// Bytes of these that are dirty or under writeback.
    pub unwritten: u64,
}

/// The parameters of a search.
pub struct WindowSearch<'a> {
    /// The size of a window in bytes.
    pub window: u64,
    /// The offset at which it begins, in bytes.
    pub from: u64,
    /// Whether some of the file was resident when it was last searched, and is likely to be now.
    pub had_some: bool,
    /// The most windows that it may find.
    pub room: usize,
    /// Asked before each call; ends the search if it returns true.
    pub is_over: &'a dyn Fn() -> bool,
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResidentWindows {
    /// Bytes resident in the whole file.
    pub resident: u64,
    /// Bytes dirty or under writeback in the whole file.
    pub unwritten: u64,
    /// The windows that were reached, ascending.
    pub windows: Vec<ResidentWindow>,
    /// The offset at which it stopped, unless at the end.
    pub next: Option<u64>,
    /// Whether it stopped for lack of room.
    pub no_room: bool,
}

/// Searches a file. The sums cover the whole file, the windows only what is reached.
pub fn resident_windows(file: &InspectedFile, search: &WindowSearch<'_>) -> Result<ResidentWindows> {
    let (size, window) = (file.size(), search.window);
    let mut scan = ResidentWindows::default();
    let width = width_of(size, window);
    // The file has few windows.
    let at_once = search.had_some && search.from == 0 && size > 0 && width <= FAN_OUT.saturating_mul(window);
    if at_once {
        scan.descend_into_parts(file, 0..size, (window, window), Some(search))?;
        if scan.next.is_none() {
            scan.resident = scan.windows.iter().map(|window| window.resident).sum();
            scan.unwritten = scan.windows.iter().map(|window| window.unwritten).sum();
            return Ok(scan);
        }
    }
    let whole = residency(file, 0..u64::MAX)?;
    (scan.resident, scan.unwritten) = (whole.resident, whole.unwritten());
    if !at_once && whole.resident > 0 && size > 0 {
        scan.descend(file, 0..size, (width, window), &whole, Some(search))?;
    }
    Ok(scan)
}

/// Returns the windows of a size that have resident pages in a range of a file.
pub fn resident_windows_in(
    file: &InspectedFile,
    range: Range<u64>,
    window: u64,
) -> Result<Vec<ResidentWindow>> {
    let mut scan = ResidentWindows::default();
    let counts = residency(file, range.clone())?;
    if counts.resident > 0 && !range.is_empty() {
        let width = width_of(range.end - range.start, window);
        scan.descend(file, range, (width, window), &counts, None)?;
    }
    Ok(scan.windows)
}

/// Returns the width with which the search in a range of that size begins; the range is at most
/// twice as wide.
fn width_of(size: u64, window: u64) -> u64 {
    if size <= window {
        return window;
    }
    let mut width = FAN_OUT.saturating_mul(window.max(1));
    while width.saturating_mul(2) < size {
        width = width.saturating_mul(FAN_OUT);
    }
    width
}

impl ResidentWindows {
    /// Adds the windows of `range`, which is at most twice `width` wide and has the counts `seen`.
    fn descend(
        &mut self,
        file: &InspectedFile,
        range: Range<u64>,
        (width, window): (u64, u64),
        seen: &Residency,
        search: Option<&WindowSearch<'_>>,
    ) -> Result<()> {
        if width <= window {
            let (resident, unwritten) = (seen.resident, seen.unwritten().min(seen.resident));
            self.windows.push(ResidentWindow { range, resident, unwritten });
            return Ok(());
        }
        self.descend_into_parts(file, range, (width / FAN_OUT, window), search)
    }

    /// Adds the windows of the parts of `range`, each `width` wide.
    fn descend_into_parts(
        &mut self,
        file: &InspectedFile,
        range: Range<u64>,
        (width, window): (u64, u64),
        search: Option<&WindowSearch<'_>>,
    ) -> Result<()> {
        let mut start = range.start;
        while start < range.end {
            let part = start..start.saturating_add(width).min(range.end);
            start = part.end;
            if let Some(search) = search {
                if part.end <= search.from {
                    continue;
                }
                self.no_room = self.windows.len() >= search.room;
                if self.no_room || (search.is_over)() {
                    self.next = Some(part.start.max(search.from));
                    break;
                }
            }
            let counts = residency(file, part.clone())?;
            if counts.resident > 0 {
                self.descend(file, part, (width, window), &counts, search)?;
            }
            if self.next.is_some() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Links, page_size};
    use std::cell::Cell;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    const WINDOW: u64 = 2 << 20;

    fn search(
        file: &InspectedFile,
        (from, had_some, room): (u64, bool, usize),
        is_over: &dyn Fn() -> bool,
    ) -> ResidentWindows {
        let search = WindowSearch { window: WINDOW, from, had_some, room, is_over };
        resident_windows(file, &search).unwrap()
    }

    fn whole(file: &InspectedFile) -> ResidentWindows {
        let scan = search(file, (0, false, usize::MAX), &|| false);
        assert_eq!((scan.next, scan.no_room), (None, false));
        scan
    }

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
        let found = whole(&file);
        let starts: Vec<u64> = found.windows.iter().map(|window| window.range.start / WINDOW).collect();
        assert_eq!(starts, [0, 1500, 3 * 1024]);
        assert_eq!(found.windows.last().unwrap().range.end, file.size());
        assert_eq!(found.resident, 3 * page_size());
        assert_eq!(found.windows.iter().map(|window| window.resident).sum::<u64>(), found.resident);
        let is_seen = residency(&file, 0..u64::MAX).unwrap().dirty.is_some();
        assert_eq!(found.unwritten > 0, is_seen);
        out.sync_all().unwrap();
        assert_eq!(whole(&file).unwritten, 0);
    }

    #[test]
    fn a_sample_does_not_depend_on_earlier_ones() {
        let dir = pagekeeper_testing::disk_dir();
        let of_few = 2 * FAN_OUT;
        for (size, at) in [
            (5 * WINDOW + 5000, vec![0, 2 * WINDOW + 4096, 5 * WINDOW + 4096]),
            (of_few * WINDOW, vec![WINDOW - 4096, (of_few - 1) * WINDOW]),
            (of_few * WINDOW + 1, vec![0, of_few * WINDOW]),
            (1, vec![0]),
            (3 * WINDOW, vec![]),
        ] {
            let path = dir.path().join(size.to_string());
            let out = std::fs::File::create(&path).unwrap();
            for offset in &at {
                out.write_all_at(b"x", *offset).unwrap();
            }
            out.set_len(size).unwrap();
            out.sync_all().unwrap();
            let file = InspectedFile::open(&path, Links::Refuse).unwrap();
            let expected = whole(&file);
            assert_eq!(expected.windows.len(), at.len(), "of {size} bytes");
            let scan = search(&file, (0, true, usize::MAX), &|| false);
            assert_eq!((scan.next, scan.no_room), (None, false));
            assert_eq!(scan, expected, "of {size} bytes");
        }
    }

    #[test]
    fn an_empty_file_has_nothing() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("empty");
        std::fs::File::create(&path).unwrap();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        assert_eq!(whole(&file), ResidentWindows::default());
    }

    /// Makes a sparse file with a page in each of so many windows.
    fn sparse(path: &Path, windows: u64) -> InspectedFile {
        let out = std::fs::File::create(path).unwrap();
        for window in 0..windows {
            out.write_all_at(b"x", window * WINDOW).unwrap();
        }
        InspectedFile::open(path, Links::Refuse).unwrap()
    }

    #[test]
    fn an_unfinished_sample_continues_where_it_stopped() {
        let dir = pagekeeper_testing::disk_dir();
        for (windows, room, calls, least) in [
            (100, 30, usize::MAX, 4),
            (100, usize::MAX, 32, 4),
            // These have few windows: they are counted at once if some were resident before.
            (32, 10, usize::MAX, 4),
            (32, usize::MAX, 32, 2),
            (32, usize::MAX, usize::MAX, 1),
        ] {
            let file = sparse(&dir.path().join(windows.to_string()), windows);
            let expected: Vec<u64> = (0..windows).collect();
            for had_some in [false, true] {
                let (mut from, mut seen, mut samples) = (0, Vec::new(), 0);
                loop {
                    let asked = Cell::new(0);
                    let is_over = || {
                        asked.set(asked.get() + 1);
                        asked.get() >= calls
                    };
                    let scan = search(&file, (from, had_some, room), &is_over);
                    assert_eq!(scan.resident, windows * page_size(), "the sums are of all of it");
                    assert!(scan.windows.len() <= room.min(32));
                    assert_eq!(scan.no_room, scan.next.is_some() && room < 32);
                    seen.extend(scan.windows.iter().map(|window| window.range.start / WINDOW));
                    samples += 1;
                    let Some(next) = scan.next else { break };
                    from = next;
                }
                assert_eq!(seen, expected);
                assert!(samples >= least, "{samples} of {windows}");
            }
        }
    }
}
