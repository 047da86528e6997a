//! History of actions: decides what to do with one window, from its verdict and from the last
//! action on it.
//!
//! Invariants:
//! 1. A window is not released again while its figures and `retry` equal those of its last release.
//!    Its remaining pages are mapped, locked or being read, so asking each step costs without gain.
//! 2. Writeback of a dirty window is started first, without waiting. The window is released one
//!    step later, written or not: the release itself waits. Writeback is started again only if more
//!    of the window became dirty or `retry` changed.
//! 3. A window without resident pages is not remembered.

use std::ops::Range;

use crate::logs::allowance::Verdict;

/// A window inside the file with some pages resident, in bytes. It starts aligned to
/// [`crate::WINDOW`] and ends aligned, or at the end of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResidentWindow {
    pub(crate) range: Range<u64>,
    pub(crate) resident: u64,
    pub(crate) unwritten: u64,
}

/// An action on a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowAction {
    StartWriteback,
    Release,
}

/// The last action on a window, and the window as it was then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowHistory {
    pub(crate) start: u64,
    pub(crate) resident: u64,
    pub(crate) unwritten: u64,
    pub(crate) retry: u64,
    pub(crate) action: WindowAction,
}

impl WindowHistory {
    /// Returns the history of the window at `start`; `all` ascends by start.
    pub(crate) fn find(all: &[Self], start: u64) -> Option<&Self> {
        all.binary_search_by_key(&start, |history| history.start).ok().map(|at| &all[at])
    }

    /// Whether the window's figures equal those at the action.
    pub(crate) fn is_unchanged(&self, now: &ResidentWindow) -> bool {
        (self.resident, self.unwritten) == (now.resident, now.unwritten)
    }

    /// Returns the history of an action done now.
    pub(crate) fn of_action(window: &ResidentWindow, action: WindowAction, retry: u64) -> Self {
        Self {
            start: window.range.start,
            resident: window.resident,
            unwritten: window.unwritten,
            retry,
            action,
        }
    }

    /// Returns the same history one step later. Pages written since no longer count as dirty, so
    /// that new dirty pages are noticed.
    pub(crate) fn one_step_later(&self, now: &ResidentWindow) -> Self {
        let mut aged = self.clone();
        if self.action == WindowAction::StartWriteback {
            aged.resident = aged.resident.min(now.resident);
            aged.unwritten = aged.unwritten.min(now.unwritten);
        }
        aged
    }
}

/// Decides what to do with a window now.
pub(crate) fn decide(
    verdict: Verdict,
    past: Option<&WindowHistory>,
    now: &ResidentWindow,
    retry: u64,
) -> Option<WindowAction> {
    let dirtier = past.is_none_or(|past| now.unwritten > past.unwritten);
    match verdict {
        Verdict::Stay => None,
        Verdict::Flush => {
            let again = dirtier || past.is_none_or(|past| past.retry != retry);
            (now.unwritten > 0 && again).then_some(WindowAction::StartWriteback)
        }
        Verdict::Release => {
            let refused = past.is_some_and(|past| {
                past.action == WindowAction::Release && past.is_unchanged(now) && past.retry == retry
            });
            if refused {
                None
            } else if now.unwritten > 0 && dirtier {
                Some(WindowAction::StartWriteback)
            } else {
                Some(WindowAction::Release)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(resident: u64, unwritten: u64) -> ResidentWindow {
        ResidentWindow { range: 0..crate::WINDOW, resident, unwritten }
    }

    #[test]
    fn clean_windows_are_released_at_once_and_only_once() {
        let now = window(100, 0);
        assert_eq!(decide(Verdict::Release, None, &now, 0), Some(WindowAction::Release));
        let past = WindowHistory::of_action(&now, WindowAction::Release, 0);
        assert_eq!(decide(Verdict::Release, Some(&past), &now, 0), None);
        assert_eq!(
            decide(Verdict::Release, Some(&past), &now, 1),
            Some(WindowAction::Release),
            "another retry"
        );
        assert_eq!(
            decide(Verdict::Release, Some(&past), &window(60, 0), 0),
            Some(WindowAction::Release),
            "changed"
        );
    }

    #[test]
    fn dirty_windows_are_flushed_and_released_a_step_later() {
        let dirty = window(100, 40);
        assert_eq!(decide(Verdict::Release, None, &dirty, 0), Some(WindowAction::StartWriteback));
        let past = WindowHistory::of_action(&dirty, WindowAction::StartWriteback, 0);
        assert_eq!(
            decide(Verdict::Release, Some(&past), &dirty, 0),
            Some(WindowAction::Release),
            "still unwritten"
        );
        assert_eq!(
            decide(Verdict::Release, Some(&past), &window(100, 0), 0),
            Some(WindowAction::Release),
            "written"
        );
        assert_eq!(
            decide(Verdict::Release, Some(&past), &window(100, 60), 0),
            Some(WindowAction::StartWriteback),
            "dirtied again"
        );
    }

    #[test]
    fn writeback_of_windows_that_only_need_writing_is_started_once() {
        let dirty = window(100, 40);
        assert_eq!(decide(Verdict::Flush, None, &dirty, 0), Some(WindowAction::StartWriteback));
        let past = WindowHistory::of_action(&dirty, WindowAction::StartWriteback, 0);
        assert_eq!(decide(Verdict::Flush, Some(&past), &dirty, 0), None);
        assert_eq!(decide(Verdict::Flush, Some(&past), &window(100, 20), 0), None, "on its way");
        let aged = past.one_step_later(&window(100, 0));
        assert_eq!(
            decide(Verdict::Flush, Some(&aged), &window(100, 4), 0),
            Some(WindowAction::StartWriteback)
        );
        assert_eq!(decide(Verdict::Flush, None, &window(100, 0), 0), None, "clean");
        assert_eq!(decide(Verdict::Stay, None, &dirty, 0), None);
    }
}
