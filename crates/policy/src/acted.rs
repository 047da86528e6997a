//! Memory of acts: what to do with one window, given what the rule wants of it and what was done to it before.
//!
//! Invariants:
//! 1. A window whose figures and whose `retry` are those of its last release is not released again: what it
//!    keeps is mapped, locked or being read, and asking each step costs without gain.
//! 2. A dirty window is first told to be written (without waiting), and released one step later, written or
//!    not: the release itself waits. It is told again only if more of it became dirty or `retry` changed.
//! 3. A window without resident pages is not remembered.

use std::ops::Range;

/// A window as this crate works with it: inside the file, start aligned to [`crate::WINDOW`], end aligned to it
/// or at the end of the file, some pages resident. All in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) range: Range<u64>,
    pub(crate) resident: u64,
    pub(crate) unwritten: u64,
}

/// What a rule wants of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Leave it alone.
    Stay,
    /// Its pages stay, but dirty ones are not to pile up.
    Flush,
    /// Its pages are of no more use.
    Release,
}

/// What was done, or is to be done, to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    StartWriteback,
    Release,
}

/// The last deed done to a window, and the window as it was then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acted {
    pub(crate) start: u64,
    pub(crate) resident: u64,
    pub(crate) unwritten: u64,
    pub(crate) retry: u64,
    pub(crate) deed: Deed,
}

impl Acted {
    /// The memory of `start` in `all`, which ascends by start.
    pub(crate) fn find(all: &[Self], start: u64) -> Option<&Self> {
        all.binary_search_by_key(&start, |acted| acted.start).ok().map(|at| &all[at])
    }

    /// Whether the window looks exactly as it did at the deed.
    pub(crate) fn unchanged(&self, now: &Stretch) -> bool {
        (self.resident, self.unwritten) == (now.resident, now.unwritten)
    }

    /// The memory of a deed done now.
    pub(crate) fn now(stretch: &Stretch, deed: Deed, retry: u64) -> Self {
        Self {
            start: stretch.range.start,
            resident: stretch.resident,
            unwritten: stretch.unwritten,
            retry,
            deed,
        }
    }

    /// The same memory one step later. What has been written since is not dirty any more, so that new dirt
    /// shows.
    pub(crate) fn aged(&self, now: &Stretch) -> Self {
        let mut aged = self.clone();
        if self.deed == Deed::StartWriteback {
            aged.resident = aged.resident.min(now.resident);
            aged.unwritten = aged.unwritten.min(now.unwritten);
        }
        aged
    }
}

/// What to do with a window now.
pub(crate) fn decide(verdict: Verdict, past: Option<&Acted>, now: &Stretch, retry: u64) -> Option<Deed> {
    let dirtier = past.is_none_or(|past| now.unwritten > past.unwritten);
    match verdict {
        Verdict::Stay => None,
        Verdict::Flush => {
            let again = dirtier || past.is_none_or(|past| past.retry != retry);
            (now.unwritten > 0 && again).then_some(Deed::StartWriteback)
        }
        Verdict::Release => {
            let refused = past
                .is_some_and(|past| past.deed == Deed::Release && past.unchanged(now) && past.retry == retry);
            if refused {
                None
            } else if now.unwritten > 0 && dirtier {
                Some(Deed::StartWriteback)
            } else {
                Some(Deed::Release)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(resident: u64, unwritten: u64) -> Stretch {
        Stretch { range: 0..crate::WINDOW, resident, unwritten }
    }

    #[test]
    fn clean_windows_are_released_at_once_and_only_once() {
        let now = stretch(100, 0);
        assert_eq!(decide(Verdict::Release, None, &now, 0), Some(Deed::Release));
        let past = Acted::now(&now, Deed::Release, 0);
        assert_eq!(decide(Verdict::Release, Some(&past), &now, 0), None);
        assert_eq!(decide(Verdict::Release, Some(&past), &now, 1), Some(Deed::Release), "another retry");
        assert_eq!(decide(Verdict::Release, Some(&past), &stretch(60, 0), 0), Some(Deed::Release), "changed");
    }

    #[test]
    fn dirty_windows_are_flushed_and_released_a_step_later() {
        let dirty = stretch(100, 40);
        assert_eq!(decide(Verdict::Release, None, &dirty, 0), Some(Deed::StartWriteback));
        let past = Acted::now(&dirty, Deed::StartWriteback, 0);
        assert_eq!(decide(Verdict::Release, Some(&past), &dirty, 0), Some(Deed::Release), "still unwritten");
        assert_eq!(
            decide(Verdict::Release, Some(&past), &stretch(100, 0), 0),
            Some(Deed::Release),
            "written"
        );
        assert_eq!(
            decide(Verdict::Release, Some(&past), &stretch(100, 60), 0),
            Some(Deed::StartWriteback),
            "dirtied again"
        );
    }

    #[test]
    fn windows_that_only_need_writing_are_told_once() {
        let dirty = stretch(100, 40);
        assert_eq!(decide(Verdict::Flush, None, &dirty, 0), Some(Deed::StartWriteback));
        let past = Acted::now(&dirty, Deed::StartWriteback, 0);
        assert_eq!(decide(Verdict::Flush, Some(&past), &dirty, 0), None);
        assert_eq!(decide(Verdict::Flush, Some(&past), &stretch(100, 20), 0), None, "on its way");
        let aged = past.aged(&stretch(100, 0));
        assert_eq!(decide(Verdict::Flush, Some(&aged), &stretch(100, 4), 0), Some(Deed::StartWriteback));
        assert_eq!(decide(Verdict::Flush, None, &stretch(100, 0), 0), None, "clean");
        assert_eq!(decide(Verdict::Stay, None, &dirty, 0), None);
    }
}
