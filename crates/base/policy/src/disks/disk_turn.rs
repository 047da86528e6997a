//! Turns of the writers of one disk: one of them has parts in flight at a time, and lets another
//! one that waits begin next.
//!
//! A turn ends by itself, since its writer may never come back to end it. Its holder does not
//! prolong it while another writer waits.

/// The shortest and the longest turn, in nanoseconds. In between, a turn lasts `TURN_PRICES` times
/// the expected time of a part.
const TURN_MIN_NS: u64 = 20_000_000;
/// The longest turn, in nanoseconds.
pub const TURN_MAX_NS: u64 = 1_000_000_000;
const TURN_PRICES: u64 = 4;
/// Nanoseconds for which a writer counts as waiting after a refused attempt: a few of its polls.
pub const WAITING_NS: u64 = 2_000_000;

/// A writer and a time: the holder of a turn and the turn's end, or a waiting writer and the time
/// until which it counts as waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnClaim {
    /// The writer's number, from 1 to [`TurnClaim::WRITERS_MAX`].
    pub writer: u64,
    /// The time, in nanoseconds.
    pub until: u64,
}

impl TurnClaim {
    const WRITER_BITS: u32 = 16;
    /// The number of writers that can be told apart.
    pub const WRITERS_MAX: u64 = (1 << Self::WRITER_BITS) - 1;
    /// Times are kept in microseconds, rounded up.
    const UNIT_NS: u64 = 1000;

    /// Returns the claim as a word.
    pub const fn to_word(self) -> u64 {
        self.until.div_ceil(Self::UNIT_NS) << Self::WRITER_BITS | self.writer
    }

    /// Returns the claim that a word holds.
    pub const fn of_word(word: u64) -> Self {
        let (writer, units) = (word & Self::WRITERS_MAX, word >> Self::WRITER_BITS);
        Self { writer, until: units * Self::UNIT_NS }
    }

    const fn is_of_another(self, writer: u64, now: u64) -> bool {
        self.writer != writer && self.until > now
    }
}

/// The attempt of a writer to begin a part.
#[derive(Debug, Clone, Copy)]
pub struct TurnRequest {
    /// Its number.
    pub writer: u64,
    /// Whether it has no other part in flight.
    pub is_first: bool,
    /// The expected time of a part, in nanoseconds.
    pub price: u64,
    /// The time, in nanoseconds.
    pub now: u64,
}

/// The answer to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnAnswer {
    /// It may begin within its turn.
    Begin,
    /// It may begin if it gets this turn.
    Take(TurnClaim),
    /// It may not begin, and counts as waiting.
    Wait(TurnClaim),
    /// It may not begin: another writer waits for the next turn.
    Leave,
}

/// Answers an attempt, where the turn is held, and waited for, by these claims.
///
/// ```
/// use pagekeeper_policy::disk_turn::{TurnAnswer, TurnClaim, TurnRequest, answer};
///
/// let free = TurnClaim { writer: 0, until: 0 };
/// let request = |writer, now| TurnRequest { writer, is_first: true, price: 1_000_000, now };
/// let TurnAnswer::Take(turn) = answer(free, free, request(1, 0)) else { panic!("nobody has it") };
/// let TurnAnswer::Wait(waiting) = answer(turn, free, request(2, 5)) else { panic!("it is the other's") };
/// // The next turn is the waiting writer's.
/// assert_eq!(answer(turn, waiting, request(1, 10)), TurnAnswer::Leave);
/// assert!(matches!(answer(turn, waiting, request(2, turn.until)), TurnAnswer::Take(_)));
/// ```
pub const fn answer(held: TurnClaim, waiting: TurnClaim, request: TurnRequest) -> TurnAnswer {
    let TurnRequest { writer, is_first, price, now } = request;
    if held.is_of_another(writer, now) {
        return TurnAnswer::Wait(TurnClaim { writer, until: now.saturating_add(WAITING_NS) });
    }
    if held.writer == writer && waiting.is_of_another(writer, now) {
        // The turn continues to its end while parts are in flight.
        return if !is_first && held.until > now { TurnAnswer::Begin } else { TurnAnswer::Leave };
    }
    let length = price.saturating_mul(TURN_PRICES).saturating_add(TURN_MIN_NS);
    let length = if length < TURN_MAX_NS { length } else { TURN_MAX_NS };
    TurnAnswer::Take(TurnClaim { writer, until: now.saturating_add(length) })
}
