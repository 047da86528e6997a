//! The entry of a page in its file's page table: 32 bits, which a hit reads with one load.
//!
//! ```text
//! bits   31 … 4             3 2          1 0
//! absent   stamp            origin       0   0 as a whole: never seen, or forgotten
//! resident frame             frequency    1
//! loading  frame             0            2
//! unread   frame             0            3   resident by prefetch, not read yet
//! ```
//!
//! Invariants: entries change under the pool's lock only, except for the frequency. The frequency
//! is raised by compare-and-swap, so it never spoils an entry that changed meanwhile. Frame numbers
//! are below [`FRAMES_MAX`].

/// Frame numbers have 28 bits: caches of up to 1 TiB of 4 KiB pages.
pub(crate) const FRAMES_MAX: u32 = 1 << 28;

/// A stamp counts evictions modulo this many.
pub(crate) const STAMP_MODULUS: u32 = 1 << 28;

/// The largest frequency of a page: it has two bits.
pub(crate) const FREQUENCY_MAX: u32 = 3;

const STATE_MASK: u32 = 0b11;
const STATE_RESIDENT: u32 = 1;
const STATE_LOADING: u32 = 2;
const STATE_UNREAD: u32 = 3;

/// The queue that a page is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// For pages that were seen once.
    Small,
    /// For pages that were read again.
    Main,
}

/// The place that a page was evicted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictionOrigin {
    /// The small queue.
    Small,
    /// The small queue, after one further read.
    SmallReadOnce,
    /// The main queue.
    Main,
}

/// The decoded state of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// Not in a frame. If the page was evicted recently: from where and when.
    Absent(Option<(EvictionOrigin, u32)>),
    /// In a frame.
    Resident { frame: u32, frequency: u32 },
    /// In a frame by prefetch, and not read since.
    Unread { frame: u32 },
    /// On its way into a frame, which only the loader may access.
    Loading { frame: u32 },
}

/// An entry as it is stored in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageEntry(pub(crate) u32);

impl PageEntry {
    pub(crate) const NEVER_SEEN: Self = Self(0);

    pub(crate) fn resident(frame: u32, frequency: u32) -> Self {
        debug_assert!(frame < FRAMES_MAX && frequency <= FREQUENCY_MAX);
        Self(frame << 4 | frequency << 2 | STATE_RESIDENT)
    }

    pub(crate) fn unread(frame: u32) -> Self {
        debug_assert!(frame < FRAMES_MAX);
        Self(frame << 4 | STATE_UNREAD)
    }

    pub(crate) fn loading(frame: u32) -> Self {
        debug_assert!(frame < FRAMES_MAX);
        Self(frame << 4 | STATE_LOADING)
    }

    /// Returns the entry of a page evicted from `origin`, with `stamp` the count of its queue's
    /// clock.
    pub(crate) fn evicted(origin: EvictionOrigin, stamp: u32) -> Self {
        // Stamp 0 of the small queue would read as "never seen": the next stamp takes its place.
        let stamp = if stamp == 0 { 1 } else { stamp % STAMP_MODULUS };
        Self(stamp << 4 | (origin as u32) << 2)
    }

    pub(crate) fn state(self) -> EntryState {
        let frame = self.0 >> 4;
        match self.0 & STATE_MASK {
            STATE_RESIDENT => EntryState::Resident { frame, frequency: self.0 >> 2 & FREQUENCY_MAX },
            STATE_LOADING => EntryState::Loading { frame },
            STATE_UNREAD => EntryState::Unread { frame },
            _ if self == Self::NEVER_SEEN => EntryState::Absent(None),
            _ => {
                let origin = match self.0 >> 2 & 0b11 {
                    0 => EvictionOrigin::Small,
                    1 => EvictionOrigin::SmallReadOnce,
                    _ => EvictionOrigin::Main,
                };
                EntryState::Absent(Some((origin, self.0 >> 4)))
            }
        }
    }

    /// Returns the frame if the page can be read: resident or unread.
    #[inline]
    pub(crate) fn readable(self) -> Option<u32> {
        (self.0 & STATE_RESIDENT != 0).then_some(self.0 >> 4)
    }

    /// Returns the frame if the page is resident and its frequency is at its maximum: the shortest
    /// way of a hit.
    #[inline]
    pub(crate) fn settled(self) -> Option<u32> {
        const SETTLED_BITS: u32 = FREQUENCY_MAX << 2 | STATE_RESIDENT;
        (self.0 & (FREQUENCY_MAX << 2 | STATE_MASK) == SETTLED_BITS).then_some(self.0 >> 4)
    }

    /// Returns a readable entry as it is after a read; the same if there is nothing more to
    /// remember.
    #[inline]
    pub(crate) fn touched(self) -> Self {
        match self.0 & STATE_MASK {
            STATE_RESIDENT if self.settled().is_none() => Self(self.0 + (1 << 2)),
            // The first read of a prefetched page stands for the miss that it would have been.
            STATE_UNREAD => Self(self.0 & !STATE_MASK | STATE_RESIDENT),
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_decodes_to_its_fields() {
        for frame in [0, 1, 12345, FRAMES_MAX - 1] {
            for frequency in 0..=FREQUENCY_MAX {
                assert_eq!(
                    PageEntry::resident(frame, frequency).state(),
                    EntryState::Resident { frame, frequency }
                );
                assert_eq!(PageEntry::resident(frame, frequency).readable(), Some(frame));
            }
            assert_eq!(PageEntry::loading(frame).state(), EntryState::Loading { frame });
            assert_eq!(PageEntry::loading(frame).readable(), None);
            assert_eq!(PageEntry::unread(frame).state(), EntryState::Unread { frame });
            assert_eq!(PageEntry::unread(frame).readable(), Some(frame));
        }
        for origin in [EvictionOrigin::Small, EvictionOrigin::SmallReadOnce, EvictionOrigin::Main] {
            for stamp in [1, 2, 77, STAMP_MODULUS - 1] {
                assert_eq!(
                    PageEntry::evicted(origin, stamp).state(),
                    EntryState::Absent(Some((origin, stamp)))
                );
                assert_eq!(PageEntry::evicted(origin, stamp).readable(), None);
            }
            assert_eq!(PageEntry::evicted(origin, 0).state(), EntryState::Absent(Some((origin, 1))));
        }
        assert_eq!(PageEntry::NEVER_SEEN.state(), EntryState::Absent(None));
    }

    #[test]
    fn reading_raises_the_frequency_up_to_three() {
        let mut entry = PageEntry::unread(9);
        let mut seen = Vec::new();
        for _ in 0..6 {
            entry = entry.touched();
            seen.push(entry);
        }
        let expected = [0, 1, 2, 3, 3, 3].map(|frequency| PageEntry::resident(9, frequency));
        assert_eq!(seen, expected);
        let settled: Vec<_> = seen.iter().map(|entry| entry.settled()).collect();
        assert_eq!(settled, [None, None, None, Some(9), Some(9), Some(9)]);
        for other in
            [PageEntry::loading(9), PageEntry::evicted(EvictionOrigin::Small, 3), PageEntry::NEVER_SEEN]
        {
            assert_eq!(other.touched(), other);
            assert_eq!(other.settled(), None);
        }
    }
}
