//! How a writer's output stands: whether it was synced, whether its progress shows, and who keeps a
//! temporary file.
//!
//! ```text
//!              Synced            CannotSee
//!   Synced ◀─────────── Unsynced ─────────▶ Blind
//!          ───────────▶     ▲
//!              Wrote        │ take_kept(Nobody)
//!                          Kept ─────────▶ Given
//!                            take_kept(Helper)
//! ```
//!
//! Invariants: every other event leaves the state as it is. The entry of a kept file is taken once.

/// The state of a file's output; `K` is the entry of a temporary file that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterState<K> {
    /// Something was written since the last sync.
    Unsynced,
    /// All that was written was synced.
    Synced,
    /// Nothing shows when the output is written.
    Blind,
    /// Its writer keeps the file.
    Kept(K),
    /// The helper keeps the file.
    Given,
}

/// An event of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterEvent {
    /// It wrote something.
    Wrote,
    /// It synced the file.
    Synced,
    /// A wait for its writeback ended without a sign.
    CannotSee,
}

/// Who keeps a temporary file next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextKeeper {
    /// Nobody: its output is treated like any other.
    Nobody,
    /// The helper.
    Helper,
}

impl<K> WriterState<K> {
    /// Returns the state after an event.
    ///
    /// ```
    /// use pagekeeper_policy::writer_state::{WriterEvent, WriterState};
    ///
    /// let synced = WriterState::<()>::Unsynced.after(WriterEvent::Synced);
    /// assert_eq!(synced, WriterState::Synced);
    /// assert_eq!(synced.after(WriterEvent::Wrote), WriterState::Unsynced);
    /// ```
    #[must_use]
    pub fn after(self, event: WriterEvent) -> Self {
        match (self, event) {
            (Self::Unsynced, WriterEvent::Synced) => Self::Synced,
            (Self::Unsynced, WriterEvent::CannotSee) => Self::Blind,
            (Self::Synced, WriterEvent::Wrote) => Self::Unsynced,
            (state, _) => state,
        }
    }

    /// Takes the entry that the writer keeps, for the next keeper; `None` if there is none.
    pub fn take_kept(&mut self, next: NextKeeper) -> Option<K> {
        let after = match next {
            NextKeeper::Nobody => Self::Unsynced,
            NextKeeper::Helper => Self::Given,
        };
        if !self.is_kept() {
            return None;
        }
        match core::mem::replace(self, after) {
            Self::Kept(kept) => Some(kept),
            Self::Unsynced | Self::Synced | Self::Blind | Self::Given => None,
        }
    }

    /// Whether the writer keeps the file.
    pub const fn is_kept(&self) -> bool {
        matches!(self, Self::Kept(_))
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn a_kept_file_stays_kept_until_its_entry_is_taken() {
        for event in [WriterEvent::Wrote, WriterEvent::Synced, WriterEvent::CannotSee] {
            let mut kept = WriterState::Kept(7).after(event);
            assert_eq!((kept.take_kept(NextKeeper::Helper), kept), (Some(7), WriterState::Given));
            assert_eq!((kept.after(event), kept.take_kept(NextKeeper::Nobody)), (WriterState::Given, None));
        }
        let mut kept = WriterState::Kept(7);
        assert_eq!((kept.take_kept(NextKeeper::Nobody), kept), (Some(7), WriterState::Unsynced));
    }

    #[test]
    fn what_cannot_be_seen_is_not_waited_for_again() {
        let blind = WriterState::<()>::Unsynced.after(WriterEvent::CannotSee);
        for event in [WriterEvent::Wrote, WriterEvent::Synced, WriterEvent::CannotSee] {
            assert_eq!(blind.after(event), WriterState::Blind);
        }
    }
}
