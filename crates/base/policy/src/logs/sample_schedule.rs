//! Schedules the samples of one watched log file, in ticks of its observer.
//!
//! Invariants: an idle file is sampled at growing intervals, at least every [`IDLE_TICKS_MAX`]
//! ticks, or every [`EMPTY_TICKS_MAX`] ticks where it may rest. In a database with very many files,
//! its pages are counted in at least every `SAMPLES_PER_COUNT`th of these samples; the others only
//! ask stat(2).

use crate::WINDOW;

/// The most ticks between samples of an idle file.
pub const IDLE_TICKS_MAX: u32 = 32;
/// The same for a file without resident pages in a database with many files: somebody has to open
/// it first, which is seen. Does not apply to new files or to the last of a log.
pub const EMPTY_TICKS_MAX: u32 = 128;
/// In a database with very many files, the pages of some files are counted only every so many
/// samples while stat(2) shows no change. These are files that are sampled rarely, or that have at
/// most one window. Their pages change only if somebody reads them, and a reader that is seen
/// triggers a count.
const SAMPLES_PER_COUNT: u8 = 4;
/// Factors by which the interval of an idle file grows with each sample. The second one is for
/// files that had pages, in a database with very many files.
const SLOWDOWN_FACTORS: (u32, u32) = (2, 4);

/// The schedule of one file's samples. Files with the same `turn` that become idle are sampled in
/// the same ticks later. `among_many` says whether its database has very many files.
#[derive(Debug, Clone)]
pub struct SampleSchedule {
    /// Ticks until the next sample.
    pub due: u32,
    /// Ticks between samples.
    interval: u32,
    /// Samples since its pages were counted, in which stat(2) showed no change.
    uncounted: u8,
    /// Whether it ever had resident pages.
    had_pages: bool,
}

impl Default for SampleSchedule {
    fn default() -> Self {
        Self { due: 0, interval: 1, uncounted: 0, had_pages: false }
    }
}

impl SampleSchedule {
    /// Makes the next sample due at once, with its pages counted.
    pub fn sample_now(&mut self) {
        (self.due, self.interval, self.uncounted) = (0, 1, SAMPLES_PER_COUNT);
    }

    /// Records a sample that counted `resident` bytes, and whether it shows the `same` as the one
    /// before.
    pub fn counted(&mut self, same: bool, resident: u64, among_many: bool, may_rest: bool, turn: u64) {
        // A file that never had a page may be new, and be written next.
        let is_known = self.had_pages || self.interval >= IDLE_TICKS_MAX;
        let slower = self.slower(among_many);
        self.had_pages |= resident > 0;
        self.uncounted = 0;
        if !same {
            (self.interval, self.due) = (1, 1);
        } else if may_rest && is_known && resident == 0 {
            self.slow_down(EMPTY_TICKS_MAX, EMPTY_TICKS_MAX, turn);
        } else {
            self.slow_down(slower, IDLE_TICKS_MAX, turn);
        }
    }

    /// Returns whether the pages of a file with so many bytes need not be counted in its next
    /// sample if stat(2) shows no change.
    pub fn can_go_uncounted(&self, resident: u64, unwritten: u64) -> bool {
        let rests = self.interval >= IDLE_TICKS_MAX && unwritten == 0;
        (rests || resident <= WINDOW) && self.uncounted + 1 < SAMPLES_PER_COUNT
    }

    /// Records a sample in which stat(2) showed no change.
    pub fn uncounted(&mut self, turn: u64) {
        self.uncounted += 1;
        self.slow_down(self.slower(true), IDLE_TICKS_MAX.max(self.interval), turn);
    }

    /// Records that the file could not be inspected.
    pub fn failed(&mut self) {
        (self.due, self.uncounted) = (IDLE_TICKS_MAX, SAMPLES_PER_COUNT);
    }

    /// Returns whether its pages were counted in the last sample.
    pub fn is_counted(&self) -> bool {
        self.uncounted == 0
    }

    fn slower(&self, among_many: bool) -> u32 {
        if among_many && self.had_pages { SLOWDOWN_FACTORS.1 } else { SLOWDOWN_FACTORS.0 }
    }

    /// Multiplies its interval by `slower`, up to `most`.
    fn slow_down(&mut self, slower: u32, most: u32, turn: u64) {
        let before = self.interval;
        self.interval = (before * slower).min(most);
        self.due = if before < most && self.interval == most {
            // Files that became idle together are spread over the ticks.
            1 + u32::try_from(turn % u64::from(most)).expect("it is less than the most")
        } else {
            self.interval
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_file_is_sampled_at_growing_intervals_until_it_changes() {
        let mut schedule = SampleSchedule::default();
        let idle = |schedule: &mut SampleSchedule| {
            schedule.counted(true, 4096, false, false, 7);
            schedule.due
        };
        assert_eq!([0; 6].map(|_| idle(&mut schedule)), [2, 4, 8, 16, 1 + 7, 32]);
        schedule.counted(false, 4096, false, false, 7);
        assert_eq!((schedule.due, idle(&mut schedule)), (1, 2));
    }

    #[test]
    fn pages_of_an_idle_file_are_counted_in_every_fourth_sample() {
        let mut schedule = SampleSchedule::default();
        assert!(schedule.can_go_uncounted(WINDOW, 1) && !schedule.can_go_uncounted(WINDOW + 1, 0));
        (0..3).for_each(|_| schedule.uncounted(0));
        assert!(!schedule.can_go_uncounted(0, 0) && !schedule.is_counted());
        schedule.counted(true, 0, true, true, 0);
        assert!(schedule.can_go_uncounted(0, 0) && schedule.is_counted());
    }
}
