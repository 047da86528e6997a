//! Closed temporary files that are kept until they have no name left: [`crate::temporary`].
//!
//! Invariants: without such files there is no timer. A file that is released was written by this
//! process alone. Files are released one at a time, so that a request does not wait for all of
//! them. Each entry is given up once its file is closed.

use super::drop::{begin, write_and_drop};
use super::helper_files::{self, HeldFile};
use crate::counters::Count;
use crate::files::temporary::{self, KEEP_MAX_NS, KEPT_FILES_MAX, Temporary};
use crate::files::tracked_files;
use crate::{process, sys};

/// Nanoseconds between two checks whether other processes removed the names.
const CHECK_NS: u64 = 1_000_000_000;

/// A kept file.
struct KeptFile {
    file: HeldFile,
    entry: Temporary,
    since: u64,
}

impl KeptFile {
    /// Whether to let go of it: it is lost, or the helper must let go of all files.
    fn is_over(&self) -> bool {
        self.entry.is_lost() || self.file.is_lost()
    }

    /// Closes it and leaves its pages.
    fn let_go(self) {
        if self.entry.is_lost() || helper_files::has_no_name(self.file.fd()) {
            self.entry.went();
        }
    }

    fn release(self) {
        let released = write_and_drop(self.file.fd(), 0..u64::MAX, &|| self.is_over());
        process::count(Count::StreamReleased, released);
        tracked_files::released(self.file.fd());
        self.let_go();
    }
}

/// All kept files.
pub(super) struct KeptFiles {
    files: [Option<KeptFile>; KEPT_FILES_MAX],
    count: usize,
    check_at: u64,
}

impl KeptFiles {
    pub(super) const NONE: Self = Self { files: [const { None }; KEPT_FILES_MAX], count: 0, check_at: 0 };

    /// Returns the nanoseconds until the next check.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        let wait = if temporary::are_results() { 0 } else { self.check_at.saturating_sub(now) };
        (self.count > 0).then_some(wait)
    }

    /// Adds a file that was closed. A thread that removes it waits until it is no longer counted,
    /// and from then on for its entry.
    pub(super) fn add(&mut self, mut file: HeldFile, entry: Temporary) {
        let now = sys::now();
        if self.count == 0 {
            self.check_at = now.saturating_add(CHECK_NS);
        }
        entry.close();
        file.keep();
        let kept = KeptFile { file, entry, since: now };
        match self.files.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(kept);
                self.count += 1;
            }
            // Does not happen: there is a place for each entry.
            None => kept.release(),
        }
    }

    /// Lets go of the files that are lost, or of all.
    pub(super) fn let_go(&mut self) {
        if self.count > 0 {
            self.taken(KeptFile::is_over).for_each(KeptFile::let_go);
        }
    }

    /// Does the work that is due.
    pub(super) fn go_on(&mut self) {
        let now = sys::now();
        if temporary::are_results() {
            self.release_one(now);
        } else if self.count > 0 && now >= self.check_at {
            self.check_at = now.saturating_add(CHECK_NS);
            self.let_go();
            // Another process gave it a second name.
            let result = self.taken(|kept| helper_files::has_names(kept.file.fd())).next();
            result.into_iter().for_each(KeptFile::release);
            self.release_one(now.saturating_sub(KEEP_MAX_NS));
        }
    }

    /// Releases all files.
    pub(super) fn finish(&mut self) {
        self.let_go();
        // Starts to write all of them before it waits for any.
        for kept in self.files.iter().flatten() {
            let _ = begin(kept.file.fd(), &(0..u64::MAX), true, true);
        }
        while self.release_one(u64::MAX) {}
    }

    /// Releases one file that was closed at or before `by`; returns whether there was one.
    fn release_one(&mut self, by: u64) -> bool {
        let kept = self.taken(|kept| kept.since <= by).next();
        kept.map(KeptFile::release).is_some()
    }

    /// Returns an iterator that removes the files for which `is_so` holds.
    fn taken(&mut self, is_so: impl Fn(&KeptFile) -> bool) -> impl Iterator<Item = KeptFile> {
        let Self { files, count, .. } = self;
        files.iter_mut().filter_map(move |place| {
            let kept = place.take_if(|kept| is_so(kept))?;
            *count -= 1;
            Some(kept)
        })
    }
}
