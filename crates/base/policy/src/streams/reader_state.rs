//! The states of a reader that sees its own calls. Each is a way to find the pages that its reads
//! bring in; events change it.
//!
//! Invariants: residency that could not be seen once is not asked for again. Reads by several
//! threads stay such reads.

/// The way in which the pages of a file's reads are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderState {
    /// Pages are sampled ahead of one thread's reads.
    InOrder,
    /// Read-ahead is off, and the pages of each read are sampled before it.
    Scattered,
    /// Pages are sampled ahead of the reads of several threads.
    Shared,
    /// Residency cannot be seen: reads are uncached, or the pages ahead of them are handled by
    /// somebody else.
    Uncached,
    /// The same, for the reads of several threads.
    SharedUncached,
    /// Residency cannot be seen, and uncached reads are refused.
    Unknown,
}

/// Something that changes how pages are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderEvent {
    /// Reads began to jump around.
    Scattered,
    /// Reads are in order again, or the reader leaves the file.
    InOrder,
    /// A second thread reads.
    Shared,
    /// Residency cannot be seen.
    CannotSee,
    /// A read cannot be uncached.
    UncachedRefused,
}

impl ReaderState {
    /// Returns the state after an event. Events that do not concern a state leave it.
    ///
    /// ```
    /// use pagekeeper_policy::reader_state::{ReaderEvent, ReaderState};
    ///
    /// let state = ReaderState::InOrder.after(ReaderEvent::Scattered).after(ReaderEvent::Shared);
    /// assert_eq!(state, ReaderState::Shared);
    /// let state = state.after(ReaderEvent::CannotSee);
    /// assert_eq!(state, ReaderState::SharedUncached);
    /// assert_eq!(state.after(ReaderEvent::UncachedRefused), ReaderState::Unknown);
    /// ```
    #[must_use]
    pub const fn after(self, event: ReaderEvent) -> Self {
        match (self, event) {
            (Self::InOrder, ReaderEvent::Scattered) => Self::Scattered,
            (Self::Scattered, ReaderEvent::InOrder) => Self::InOrder,
            (Self::InOrder | Self::Scattered, ReaderEvent::Shared) => Self::Shared,
            (Self::Uncached, ReaderEvent::Shared) | (Self::Shared, ReaderEvent::CannotSee) => {
                Self::SharedUncached
            }
            (Self::InOrder | Self::Scattered, ReaderEvent::CannotSee) => Self::Uncached,
            (Self::Uncached | Self::SharedUncached, ReaderEvent::UncachedRefused) => Self::Unknown,
            (state, _) => state,
        }
    }

    /// Whether residency is sampled.
    pub const fn is_sampled(self) -> bool {
        matches!(self, Self::InOrder | Self::Scattered | Self::Shared)
    }

    /// Whether several threads are known to read.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Shared | Self::SharedUncached)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    const READER_STATES: [ReaderState; 6] = [
        ReaderState::InOrder,
        ReaderState::Scattered,
        ReaderState::Shared,
        ReaderState::Uncached,
        ReaderState::SharedUncached,
        ReaderState::Unknown,
    ];
    const READER_EVENTS: [ReaderEvent; 5] = [
        ReaderEvent::Scattered,
        ReaderEvent::InOrder,
        ReaderEvent::Shared,
        ReaderEvent::CannotSee,
        ReaderEvent::UncachedRefused,
    ];

    #[test]
    fn a_lost_reader_stays_lost() {
        for (state, event) in
            READER_STATES.into_iter().flat_map(|state| READER_EVENTS.map(|event| (state, event)))
        {
            let next = state.after(event);
            assert!(state.is_sampled() || !next.is_sampled(), "{state:?} {event:?}");
            assert!(
                !state.is_shared() || next.is_shared() || next == ReaderState::Unknown,
                "{state:?} {event:?}"
            );
            assert_eq!(next.after(event), next, "the same event again changes nothing");
        }
    }

    #[test]
    fn only_uncached_reads_can_be_refused() {
        for state in READER_STATES {
            let is_uncached = matches!(state, ReaderState::Uncached | ReaderState::SharedUncached);
            let next = state.after(ReaderEvent::UncachedRefused);
            assert_eq!(next, if is_uncached { ReaderState::Unknown } else { state });
        }
    }
}
