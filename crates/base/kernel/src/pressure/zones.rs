//! Memory zones: the watermarks of free memory (`/proc/zoneinfo`; `mm/page_alloc.c`).

use super::SysRoots;
use crate::process::{malformed, read_text};
use crate::{Result, page_size};

/// The watermarks of free memory that control reclaim, summed over all zones, in bytes.
///
/// Each zone is reclaimed separately, so reclaim may start slightly before the sum is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Watermarks {
    /// Below it, programs must reclaim for themselves before they get memory.
    pub min: u64,
    /// Below it, background reclaim (kswapd) wakes.
    pub low: u64,
    /// Above it, background reclaim sleeps again.
    pub high: u64,
    /// Memory that the kernel excludes from dirtyable memory: each zone's high mark and its largest
    /// reserve for other zones' allocations (`totalreserve_pages`).
    pub reserve: u64,
}

/// The figures of one zone, in pages.
#[derive(Default)]
struct MemoryZone {
    min: u64,
    low: u64,
    high: u64,
    managed: u64,
    protection: u64,
}

impl Watermarks {
    /// Reads `/proc/zoneinfo`.
    pub fn read(roots: &SysRoots) -> Result<Self> {
        let path = roots.proc_file("zoneinfo");
        let text = read_text(&path)?;
        let mut zones: Vec<MemoryZone> = Vec::new();
        for line in text.lines() {
            if line.starts_with("Node ") {
                zones.push(MemoryZone::default());
                continue;
            }
            let Some(zone) = zones.last_mut() else {
                return Err(malformed(&path, line));
            };
            zone.take(line).ok_or_else(|| malformed(&path, line))?;
        }
        if zones.is_empty() {
            return Err(malformed(&path, "any zone"));
        }
        let mut sum = Self::default();
        let add = |sum: &mut u64, pages: u64| *sum = sum.saturating_add(pages.saturating_mul(page_size()));
        for zone in zones {
            add(&mut sum.min, zone.min);
            add(&mut sum.low, zone.low);
            add(&mut sum.high, zone.high);
            add(&mut sum.reserve, zone.protection.saturating_add(zone.high).min(zone.managed));
        }
        Ok(sum)
    }
}

impl MemoryZone {
    /// Records a line if it has one of the needed figures; `None` if the figure can't be parsed.
    fn take(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        let field = match words.next() {
            Some("min") => &mut self.min,
            Some("low") => &mut self.low,
            // The per-processor lists also have a line "high:".
            Some("high") => &mut self.high,
            Some("managed") => &mut self.managed,
            Some("protection:") => {
                let list = line.split_once('(')?.1.split_once(')')?.0;
                for reserve in list.split(',') {
                    self.protection = self.protection.max(reserve.trim().parse().ok()?);
                }
                return Some(());
            }
            _ => return Some(()),
        };
        *field = words.next()?.parse().ok()?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    const ZONES: &str = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_file 57190\n  pages free     3840\n\
        \x20       boost    0\n        min      57\n        low      71\n        high     85\n        managed  3840\n\
        \x20       protection: (0, 3019, 4427)\n      nr_free_pages 3840\n  pagesets\n    cpu: 0\n\
        \x20             high:    9999\n              high_min: 35\n\
        Node 0, zone   Normal\n  pages free     5\n        min      1000\n        low      2000\n\
        \x20       high     3000\n        managed  100000\n        protection: (0, 0, 0)\n";

    #[test]
    fn marks_are_summed_and_reserves_capped() {
        let (_tree, roots) = tree(&[("proc/zoneinfo", ZONES)]);
        let marks = Watermarks::read(&roots).unwrap();
        let page = page_size();
        assert_eq!((marks.min, marks.low, marks.high), (1057 * page, 2071 * page, 3085 * page));
        // 85 + 4427 exceeds the size of the first zone.
        assert_eq!(marks.reserve, (3840 + 3000) * page);
    }

    #[test]
    fn this_machine_has_marks_in_order() {
        let marks = Watermarks::read(&SysRoots::default()).unwrap();
        assert!(0 < marks.min && marks.min < marks.low && marks.low < marks.high);
        assert!(marks.reserve > 0);
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, line) in [
            ("", "any zone"),
            ("  min 5\n", "min 5"),
            ("Node 0, zone DMA\n  min five\n", "min five"),
            ("Node 0, zone DMA\n  protection: 1, 2\n", "protection: 1, 2"),
            ("Node 0, zone DMA\n  protection: (1, b)\n", "protection: (1, b)"),
        ] {
            let (_tree, roots) = tree(&[("proc/zoneinfo", text)]);
            assert!(Watermarks::read(&roots).unwrap_err().to_string().contains(line));
        }
    }
}
