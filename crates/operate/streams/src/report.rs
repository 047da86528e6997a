//! Totals of all pages.
//!
//! Invariant: all added bytes are either released, handed on, gone, or resident; for each file,
//! each process, and all together.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use pagekeeper_kernel::Error;
use pagekeeper_policy::stream_pages::StreamTotals;

use crate::limits::{OTHER_PROGRAMS, PROBLEMS_MAX, PROGRAMS_MAX, STAYED_FILES_MAX, USERS_MAX};
use crate::{FileReport, StreamReport};

/// Adds `more` to `sum`.
pub(crate) fn add(sum: &mut StreamTotals, more: StreamTotals) {
    sum.added += more.added;
    sum.released += more.released;
    sum.handed_on += more.handed_on;
    sum.gone += more.gone;
    sum.resident += more.resident;
}

impl StreamReport {
    /// Adds the figures of a later report, and takes over its running processes.
    pub fn add(&mut self, later: &Self) {
        add(&mut self.totals, later.totals);
        self.running = later.running;
        self.lost_bytes += later.lost_bytes;
        self.held += later.held;
        for (program, bytes) in &later.released_by_program {
            *self.released_by_program.entry(program.clone()).or_default() += bytes;
        }
        for (user, bytes) in &later.released_by_user {
            *self.released_by_user.entry(*user).or_default() += bytes;
        }
    }
}

/// The totals of files that are no longer kept.
#[derive(Default)]
pub(crate) struct Sums {
    totals: StreamTotals,
    /// The files of which pages stayed, largest first.
    stayed: Vec<FileReport>,
    released_by_program: BTreeMap<String, u64>,
    released_by_user: BTreeMap<Option<u32>, u64>,
    problems: HashSet<(u64, Option<i32>)>,
}

impl Sums {
    /// Adds the figures of a file that is no longer kept.
    pub(crate) fn retire(&mut self, file: FileReport) {
        add(&mut self.totals, file.totals);
        if file.totals.resident > 0 {
            insert_stayed(&mut self.stayed, file);
        }
    }

    /// Counts bytes that were released for a user's program.
    pub(crate) fn released(&mut self, user: u32, program: &str, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let has_room =
            self.released_by_user.len() < USERS_MAX || self.released_by_user.contains_key(&Some(user));
        *self.released_by_user.entry(has_room.then_some(user)).or_default() += bytes;
        let is_new = !self.released_by_program.contains_key(program);
        let name =
            if is_new && self.released_by_program.len() >= PROGRAMS_MAX { OTHER_PROGRAMS } else { program };
        match self.released_by_program.get_mut(name) {
            Some(sum) => *sum += bytes,
            None => drop(self.released_by_program.insert(name.to_owned(), bytes)),
        }
    }

    /// Returns whether a problem of this kind on this device was not reported before.
    pub(crate) fn is_new_problem(&mut self, dev: u64, problem: &Error) -> bool {
        self.problems.len() < PROBLEMS_MAX && self.problems.insert((dev, problem.errno()))
    }

    /// Returns the report, including the files that are kept.
    pub(crate) fn report(&self, kept: impl Iterator<Item = FileReport>, lost_bytes: u64) -> StreamReport {
        let mut report = StreamReport {
            totals: self.totals,
            stayed: self.stayed.clone(),
            released_by_program: self.released_by_program.clone(),
            released_by_user: self.released_by_user.clone(),
            running: 0,
            lost_bytes,
            held: Duration::ZERO,
        };
        for file in kept {
            add(&mut report.totals, file.totals);
            // A file without a reason is only not due yet.
            if file.totals.resident > 0 && file.why.is_some() {
                insert_stayed(&mut report.stayed, file);
            }
        }
        report
    }
}

fn insert_stayed(stayed: &mut Vec<FileReport>, file: FileReport) {
    let at = stayed.partition_point(|other| other.totals.resident >= file.totals.resident);
    stayed.insert(at, file);
    stayed.truncate(STAYED_FILES_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(resident: u64) -> FileReport {
        let totals =
            StreamTotals { added: 100 + resident, released: 100, resident, ..StreamTotals::default() };
        FileReport { path: resident.to_string().into(), totals, why: None }
    }

    #[test]
    fn the_files_of_which_most_stayed_are_named_and_all_are_counted() {
        let mut sums = Sums::default();
        for resident in 0..100 {
            sums.retire(file(resident));
        }
        let report = sums.report(std::iter::empty(), 7);
        assert_eq!(report.stayed.len(), STAYED_FILES_MAX);
        assert_eq!(report.stayed[0].totals.resident, 99);
        let StreamTotals { added, released, handed_on, gone, resident } = report.totals;
        assert_eq!((released, resident, report.lost_bytes), (10_000, 99 * 50, 7));
        assert_eq!(added, released + handed_on + gone + resident);
    }

    #[test]
    fn names_and_users_without_end_take_no_more_room() {
        let mut sums = Sums::default();
        for number in 0..10_000 {
            sums.released(number, &number.to_string(), 1);
        }
        let report = sums.report(std::iter::empty(), 0);
        assert_eq!(report.released_by_program.len(), PROGRAMS_MAX + 1);
        assert_eq!(report.released_by_program.values().sum::<u64>(), 10_000);
        assert_eq!(report.released_by_user.len(), USERS_MAX + 1);
        assert_eq!(report.released_by_user.values().sum::<u64>(), 10_000);
    }
}
