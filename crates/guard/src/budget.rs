//! What one database may cost the guard: names, windows and processor time.
//!
//! A database's owner may be hostile: hundreds of thousands of files that look like logs, a page in each window of
//! large sparse files, renames without end. None of that may cost more than a small share of a core and of memory,
//! nor keep the guard from the other databases.
//!
//! Invariants:
//! 1. The names and windows kept of all databases are fewer than [`ALL_NAMES`] and twice [`ALL_WINDOWS`], and one more for
//!    each directory, of which there are at most [`ALL_DIRECTORIES`]. A database that has more is served in part.
//! 2. In the long run all databases together take no more processor time than [`TIME_OF_ALL`], beside what they earn by
//!    bytes that were released ([`EARNED`]).
//! 3. Of all that there is for all each user has a share, and of that each of its databases. What one does not need is the
//!    others'.
//! 4. Nothing here does I/O. Work measures itself, by a [`Turn`] in the thread that does it.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_policy::shares::shares_by_party;
use serde::Serialize;

/// Log files that are watched of one database.
pub(crate) const NAMES: usize = 4096;
/// And of all together.
pub(crate) const ALL_NAMES: usize = 32_768;
/// Windows with resident pages that are kept of one database: 16 GiB of them. The next come when these are released.
pub(crate) const WINDOWS: usize = 8192;
/// And of all together.
pub(crate) const ALL_WINDOWS: usize = 32_768;
/// Directories that are watched of one database.
pub(crate) const DIRECTORIES: usize = 1024;
/// Of all databases of one user.
pub(crate) const DIRECTORIES_OF_USER: usize = 2048;
/// And of all together.
pub(crate) const ALL_DIRECTORIES: usize = 4096;
/// Descriptors of log files that are kept in mind of one process.
pub(crate) const DESCRIPTORS: usize = 2048;
/// And of all processes together that are no databases.
pub(crate) const DESCRIPTORS_OF_OTHERS: usize = 16_384;

/// Processor time that is given out to one database in the long run, as (parts, of so many).
const TIME_OF_ONE: (u32, u32) = (1, 100);
/// And to all together.
const TIME_OF_ALL: (u32, u32) = (3, 200);
/// What a database can save up.
const SAVED: Duration = Duration::from_secs(1);
/// What a new one starts with at most; it comes out of what others did not need.
const AT_FIRST: Duration = Duration::from_millis(500);
/// Processor time that goes on top for each GiB that was released: about what releasing it takes where all of it is
/// resident. Pages that lie far apart take more, which is then the database's own.
const PER_GIB: Duration = Duration::from_millis(100);
/// What all together can earn so, as one part of so many.
const EARNED: u32 = 20;

/// Processor time for listing descriptors of databases, and as much for those of all other processes, as one part of so many.
const LISTING: u32 = 400;
/// What can be saved up for that, what there is at first, when all is new, and how long that can be taken.
const LISTING_SAVED: Duration = Duration::from_millis(250);
const LISTING_AT_FIRST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// Processor time that one database takes at once.
const SLICE: Duration = Duration::from_millis(250);
/// Time on the clock that one database takes at once.
const WALL: Duration = Duration::from_millis(250);
/// Steps between two readings of the clocks.
const STEPS: u32 = 32;

/// What a database has more of, or takes more of, than the guard gives to one: it is served in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Budget {
    /// Log files: those with the highest numbers are watched.
    Names,
    /// Windows of 2 MiB with resident pages: some are seen to now, the others later.
    Windows,
    /// Processor time, or time in which its file system answers: all is done later.
    Time,
    /// Directories with logs: the rest are left alone.
    Directories,
    /// Descriptors of log files: of the rest no position is known.
    Descriptors,
}

impl Budget {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Names, Self::Windows, Self::Time, Self::Directories, Self::Descriptors];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Windows => "windows",
            Self::Time => "time",
            Self::Directories => "directories",
            Self::Descriptors => "descriptors",
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Names => "more log files than the guard watches of one database: only those with the highest numbers are",
            Self::Windows => "more of its logs is resident than the guard keeps in mind of one database: it is released part by part",
            Self::Directories => "more directories of logs than the guard watches of one database, or of one user: the rest are left alone",
            Self::Descriptors => "more of its log files are open than the guard keeps in mind of one database: where its writers and followers are is known in part",
            Self::Time => "its logs take more time than the guard gives to one database: they are sampled and released more slowly",
        })
    }
}

/// The processor time that one database may take now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credit {
    /// In nanoseconds; what was taken too much is owed.
    left: i64,
}

impl Credit {
    /// What there is for one turn, and `beside` that; `None` if nothing is left.
    pub(crate) fn slice(self, beside: Duration) -> Option<Slice> {
        let left = self.left.saturating_add(nanoseconds(beside));
        let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
        Some(Slice { cpu: Duration::from_nanos(left).min(SLICE), wall: WALL })
    }

    /// Takes off what was spent.
    pub(crate) fn spend(&mut self, cpu: Duration) {
        self.left = self.left.saturating_sub(nanoseconds(cpu));
    }
}

/// The limits of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Processor time.
    pub(crate) cpu: Duration,
    /// Time on the clock.
    pub(crate) wall: Duration,
}

/// Gives out processor time to the databases.
#[derive(Debug)]
pub(crate) struct Purse {
    /// What nobody needed, for new ones.
    reserve: i64,
    earnings: i64,
    filled: Instant,
}

impl Purse {
    pub(crate) fn new(now: Instant) -> Self {
        Self { reserve: nanoseconds(2 * AT_FIRST), earnings: nanoseconds(SLICE), filled: now }
    }

    /// The credit of a new database. Whoever starts one after another gets ever less.
    pub(crate) fn open(&mut self) -> Credit {
        let left = (self.reserve / 2).min(nanoseconds(AT_FIRST));
        self.reserve -= left;
        Credit { left }
    }

    /// Shares out the time since the last call: to each what it lacks, and where there is too little for that, to each user
    /// alike, and to each of its databases.
    pub(crate) fn fill<'a>(&mut self, credits: impl Iterator<Item = (Party, &'a mut Credit)>, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        let part = |(parts, of): (u32, u32)| nanoseconds(passed * parts / of);
        let (each, mut pool) = (part(TIME_OF_ONE), part(TIME_OF_ALL));
        let mut credits: Vec<(Party, &mut Credit)> = credits.collect();
        let lack = |credit: &Credit| (nanoseconds(SAVED) - credit.left).clamp(0, each);
        let lacking: Vec<(Party, usize)> =
            credits.iter().map(|(party, credit)| (*party, lack(credit).try_into().unwrap_or(0))).collect();
        let shares = shares_by_party(pool.try_into().unwrap_or(0), &lacking);
        for ((_, credit), share) in credits.iter_mut().zip(shares) {
            let given = i64::try_from(share).unwrap_or(0);
            credit.left += given;
            pool -= given;
        }
        self.reserve = (self.reserve + pool).min(nanoseconds(2 * AT_FIRST));
        let earned = self.earnings + nanoseconds(passed / EARNED);
        self.earnings = earned.min(nanoseconds(SLICE));
    }

    /// What of the time that a database spent on releasing so many bytes these have not earned.
    pub(crate) fn unpaid(&mut self, cpu: Duration, bytes: u64) -> Duration {
        let earned = (u128::from(bytes) * PER_GIB.as_nanos()) >> 30;
        let earned = i64::try_from(earned).unwrap_or(i64::MAX).min(nanoseconds(cpu)).min(self.earnings);
        self.earnings -= earned;
        cpu.saturating_sub(Duration::from_nanos(u64::try_from(earned).unwrap_or(0)))
    }
}

/// The processor time for listing descriptors: whoever has very many of them open, and gives ever new cause to list them,
/// makes its own listings come later, and costs no more.
#[derive(Debug)]
pub(crate) struct ListingTime {
    /// In nanoseconds; what was taken too much is owed.
    left: i64,
    began: Instant,
    filled: Instant,
}

impl ListingTime {
    pub(crate) fn new(now: Instant) -> Self {
        Self { left: nanoseconds(LISTING_AT_FIRST.0), began: now, filled: now }
    }

    /// How much of what is wanted there is, at this time; `None` if all was spent.
    pub(crate) fn slice(&mut self, wanted: Duration, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        if now.saturating_duration_since(self.began) > LISTING_AT_FIRST.1 {
            self.left = (self.left + nanoseconds(passed / LISTING)).min(nanoseconds(LISTING_SAVED));
        }
        let left = u64::try_from(self.left).ok().filter(|left| *left > 0)?;
        Some(wanted.min(Duration::from_nanos(left)))
    }

    /// Takes off what was spent.
    pub(crate) fn spend(&mut self, cpu: Duration) {
        self.left = self.left.saturating_sub(nanoseconds(cpu));
    }

    /// There is enough now, for whoever waits until all was listed.
    pub(crate) fn hurry(&mut self) {
        self.left = self.left.max(nanoseconds(LISTING_SAVED));
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// One database's turn, in the thread that began it: measures what is spent.
#[derive(Debug)]
pub(crate) struct Turn {
    slice: Slice,
    cpu: Duration,
    wall: Instant,
    /// Steps until the clocks are read again.
    until_read: Cell<u32>,
    over: Cell<bool>,
}

impl Turn {
    pub(crate) fn begin(slice: Slice) -> Self {
        Self {
            slice,
            cpu: thread_time(),
            wall: Instant::now(),
            until_read: Cell::new(STEPS),
            over: Cell::new(false),
        }
    }

    /// A step of a microsecond or so; whether the turn is over.
    pub(crate) fn step(&self) -> bool {
        let left = self.until_read.get().saturating_sub(1);
        self.until_read.set(left);
        if left == 0 { self.is_over() } else { self.over.get() }
    }

    /// Whether the turn is over, by the clocks.
    pub(crate) fn is_over(&self) -> bool {
        self.until_read.set(STEPS);
        let over =
            self.over.get() || self.spent() >= self.slice.cpu || self.wall.elapsed() >= self.slice.wall;
        self.over.set(over);
        over
    }

    /// Processor time of this thread since it began.
    pub(crate) fn spent(&self) -> Duration {
        thread_time().saturating_sub(self.cpu)
    }
}

/// Processor time of this thread so far: `clock_gettime(2)`.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("CPU time is not negative");
    Duration::new(seconds, u32::try_from(time.tv_nsec).expect("less than a second"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(purse: &mut Purse, credits: &mut [Credit], seconds: u64) {
        let until = purse.filled + Duration::from_secs(seconds);
        purse.fill(credits.iter_mut().map(|credit| (Party::User(1), credit)), until);
    }

    #[test]
    fn what_one_does_not_need_is_the_others() {
        let mut purse = Purse::new(Instant::now());
        let idle = Credit { left: nanoseconds(SAVED) };
        let mut credits = [Credit { left: 0 }, idle, Credit { left: 0 }, idle];
        filled(&mut purse, &mut credits, 10);
        assert_eq!(credits[1], idle, "it has all it can save");
        // 1.5 % of 10 s, for two that may have up to 1 % each.
        assert_eq!((credits[0].left, credits[2].left), (75_000_000, 75_000_000));
        let mut alone = [Credit { left: 0 }];
        filled(&mut purse, &mut alone, 10);
        assert_eq!(alone[0].left, 100_000_000);
    }

    #[test]
    fn who_has_very_many_databases_takes_no_time_of_another_user() {
        let mut purse = Purse::new(Instant::now());
        let mut credits = [Credit { left: 0 }; 101];
        let until = purse.filled + Duration::from_secs(10);
        let of = |at| Party::User(if at == 100 { 2 } else { 1 });
        let owned = credits.iter_mut().enumerate().map(|(at, credit)| (of(at), credit));
        purse.fill(owned, until);
        // Half of 1.5 % of 10 s.
        assert_eq!(credits[100].left, 75_000_000);
        assert!(credits[..100].iter().all(|credit| credit.left == 750_000));
    }

    #[test]
    fn all_together_never_get_more_than_their_share() {
        let mut purse = Purse::new(Instant::now());
        let reserve = purse.reserve;
        let mut credits = Vec::new();
        // One after another starts, and spends what it has.
        for _ in 0..1000 {
            credits.push(purse.open());
        }
        let at_first: i64 = credits.iter().map(|credit| credit.left).sum();
        assert!(at_first <= reserve, "{at_first}");
        for credit in &mut credits {
            credit.left = 0;
        }
        filled(&mut purse, &mut credits, 100);
        let all: i64 = credits.iter().map(|credit| credit.left).sum();
        assert!(all <= 1_500_000_000, "{all}");
        assert!(credits.iter().all(|credit| credit.left >= 1_499_000), "each has the same");
    }

    #[test]
    fn debts_are_paid_back_and_bytes_earn() {
        let mut purse = Purse::new(Instant::now());
        let mut credit = purse.open();
        credit.spend(Duration::from_secs(1));
        assert_eq!(credit.slice(Duration::ZERO), None);
        assert!(credit.slice(Duration::from_secs(1)).is_some());
        let mut credits = [credit];
        filled(&mut purse, &mut credits, 51);
        assert!(credits[0].slice(Duration::ZERO).is_some());
        let spent = Duration::from_millis(50);
        assert_eq!(purse.unpaid(spent, 1 << 30), Duration::ZERO, "a GiB earned it");
        assert!(purse.unpaid(spent, 4096) * 2 > spent, "a page does not");
        let all: Duration = (0..100).map(|_| purse.unpaid(spent, 1 << 30)).sum();
        assert!(all > 90 * spent, "there is no more to earn than a share of a core");
    }

    #[test]
    fn listings_wait_until_what_they_took_is_made_good() {
        let now = Instant::now();
        let mut time = ListingTime::new(now);
        let wanted = Duration::from_millis(50);
        assert_eq!(time.slice(wanted, now), Some(wanted));
        time.spend(LISTING_AT_FIRST.0);
        assert_eq!(time.slice(wanted, now), None);
        let mut spent = Duration::ZERO;
        for tick in 1..=1200 {
            let now = now + tick * Duration::from_millis(500);
            if time.slice(wanted, now).is_some() {
                // A piece of a process that has very many is not interrupted.
                spent += Duration::from_millis(10);
                time.spend(Duration::from_millis(10));
            }
        }
        let most = Duration::from_secs(600) / LISTING + Duration::from_millis(10);
        assert!(spent <= most && spent * 2 > most, "{spent:?}");
        let later = now + Duration::from_secs(100_000);
        time.slice(wanted, later);
        assert_eq!(time.left, nanoseconds(LISTING_SAVED));
        time.spend(Duration::from_secs(1));
        time.hurry();
        assert_eq!(time.slice(wanted, later), Some(wanted));
    }

    #[test]
    fn a_turn_ends_by_either_clock() {
        let endless = Duration::from_secs(3600);
        let turn = Turn::begin(Slice { cpu: Duration::from_millis(5), wall: endless });
        while !turn.step() {
            std::hint::spin_loop();
        }
        assert!(turn.spent() >= Duration::from_millis(5) && turn.is_over());
        let turn = Turn::begin(Slice { cpu: endless, wall: Duration::from_millis(5) });
        assert!(!turn.is_over());
        std::thread::sleep(Duration::from_millis(5));
        assert!(turn.is_over());
    }
}
