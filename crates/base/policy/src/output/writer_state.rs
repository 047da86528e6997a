//! The state of a writer's output: whether it was synced, whether its progress shows, and the
//! keeper of a temporary file.
//!
//! ```text
//! synced   no ── Synced ──▶ yes ── Wrote ──▶ no
//! blind    no ── CannotSee ──▶ yes
//! keeper   Writer ── take_kept(Nobody) ──▶ Nobody
//!                 ── take_kept(Helper) ──▶ Helper
//! ```
//!
//! Invariants: the three are independent of each other. The entry of a kept file is taken once.

/// The keeper of a temporary file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileKeeper<K> {
    /// Nobody: its output is treated like any other.
    #[default]
    Nobody,
    /// Its writer, which has this entry.
    Writer(K),
    /// The helper.
    Helper,
}

/// The state of a file's output; `K` is the entry of a temporary file that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriterState<K> {
    /// The keeper of the file.
    pub keeper: FileKeeper<K>,
    is_synced: bool,
    is_blind: bool,
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

/// The next keeper of a temporary file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextKeeper {
    /// Nobody: its output is treated like any other.
    Nobody,
    /// The helper.
    Helper,
}

impl<K> WriterState<K> {
    /// Returns the initial state.
    pub const fn new() -> Self {
        Self { keeper: FileKeeper::Nobody, is_synced: false, is_blind: false }
    }

    /// Applies an event.
    ///
    /// ```
    /// use pagekeeper_policy::writer_state::{WriterEvent, WriterState};
    ///
    /// let mut state = WriterState::<()>::new();
    /// state.apply(WriterEvent::Synced);
    /// assert!(state.is_synced());
    /// state.apply(WriterEvent::Wrote);
    /// assert!(!state.is_synced());
    /// ```
    pub const fn apply(&mut self, event: WriterEvent) {
        match event {
            WriterEvent::Wrote => self.is_synced = false,
            WriterEvent::Synced => self.is_synced = true,
            WriterEvent::CannotSee => self.is_blind = true,
        }
    }

    /// Takes the entry that the writer keeps, for the next keeper; `None` if there is none.
    pub fn take_kept(&mut self, next: NextKeeper) -> Option<K> {
        let after = match next {
            NextKeeper::Nobody => FileKeeper::Nobody,
            NextKeeper::Helper => FileKeeper::Helper,
        };
        if !self.is_kept() {
            return None;
        }
        match core::mem::replace(&mut self.keeper, after) {
            FileKeeper::Writer(kept) => Some(kept),
            FileKeeper::Nobody | FileKeeper::Helper => None,
        }
    }

    /// Whether the writer keeps the file.
    pub const fn is_kept(&self) -> bool {
        matches!(self.keeper, FileKeeper::Writer(_))
    }

    /// Whether all that was written was synced.
    pub const fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Whether nothing shows when the output is written.
    pub const fn is_blind(&self) -> bool {
        self.is_blind
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    const WRITER_EVENTS: [WriterEvent; 3] = [WriterEvent::Wrote, WriterEvent::Synced, WriterEvent::CannotSee];

    fn kept() -> WriterState<u8> {
        WriterState { keeper: FileKeeper::Writer(7), ..WriterState::new() }
    }

    #[test]
    fn a_kept_file_stays_kept_until_its_entry_is_taken() {
        for (next, keeper) in
            [(NextKeeper::Helper, FileKeeper::Helper), (NextKeeper::Nobody, FileKeeper::Nobody)]
        {
            let mut state = kept();
            for event in WRITER_EVENTS {
                state.apply(event);
            }
            assert_eq!((state.take_kept(next), state.keeper), (Some(7), keeper));
            for event in WRITER_EVENTS {
                state.apply(event);
            }
            assert_eq!((state.take_kept(NextKeeper::Nobody), state.keeper), (None, keeper));
        }
    }

    #[test]
    fn events_are_remembered_under_every_rule_that_keeps() {
        for keeper in [FileKeeper::Nobody, FileKeeper::Writer(7), FileKeeper::Helper] {
            let mut state = WriterState { keeper, ..WriterState::new() };
            state.apply(WriterEvent::CannotSee);
            assert_eq!((state.is_blind(), state.is_synced()), (true, false), "{keeper:?}");
            state.apply(WriterEvent::Synced);
            state.take_kept(NextKeeper::Helper);
            assert_eq!((state.is_blind(), state.is_synced()), (true, true), "{keeper:?}");
            state.apply(WriterEvent::Wrote);
            assert_eq!((state.is_blind(), state.is_synced()), (true, false), "{keeper:?}");
        }
    }
}
