//! Budgets: how many names and windows, and how much processor time, one database may cost the guard.
//!
//! A database's owner may be hostile: hundreds of thousands of files that look like logs, a page in each
//! window of large sparse files, endless renames. None of that may cost more than a small share of a core and
//! of memory, or keep the guard from serving the other databases.
//!
//! Invariants:
//! 1. The names and windows kept for all databases are fewer than [`NAMES_MAX`] and twice [`WINDOWS_MAX`],
//!    plus one for each directory. There are at most [`DIRECTORIES_MAX`] directories. A database that has
//!    more is served in part.
//! 2. In the long run all databases together get no more processor time than [`CPU_SHARE_MAX`], plus what
//!    they earn by released bytes ([`EARNED_DIVISOR`]).
//! 3. Each user has a fair share of every budget, and each database a fair share of its user's. Unused shares
//!    go to the others.
//! 4. This module does no I/O. Work measures itself with a [`Turn`], in the thread that does it.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_policy::shares::shares_by_party;
use serde::Serialize;

/// The most log files watched per database.
pub(crate) const NAMES_PER_DATABASE: usize = 4096;
/// The most log files watched in all.
pub(crate) const NAMES_MAX: usize = 32_768;
/// The most windows with resident pages kept per database: 16 GiB of them. More are taken up once these are
/// released.
pub(crate) const WINDOWS_PER_DATABASE: usize = 8192;
/// The most windows kept in all.
pub(crate) const WINDOWS_MAX: usize = 32_768;
/// The most directories watched per database.
pub(crate) const DIRECTORIES_PER_DATABASE: usize = 1024;
/// The most directories watched per user.
pub(crate) const DIRECTORIES_PER_USER: usize = 2048;
/// The most directories watched in all.
pub(crate) const DIRECTORIES_MAX: usize = 4096;
/// The most descriptors of log files remembered per process.
pub(crate) const DESCRIPTORS_PER_PROCESS: usize = 2048;
/// The most descriptors remembered for all processes that are not databases.
pub(crate) const FOREIGN_DESCRIPTORS_MAX: usize = 16_384;

/// Processor time per database in the long run, as a fraction: (numerator, denominator).
const CPU_SHARE_PER_DATABASE: (u32, u32) = (1, 100);
/// Processor time for all databases together in the long run, as a fraction.
const CPU_SHARE_MAX: (u32, u32) = (3, 200);
/// The most processor time that a database saves up.
const SAVED_CPU_MAX: Duration = Duration::from_secs(1);
/// The most that a new database starts with. It is taken from time that the others did not need.
const INITIAL_CREDIT_MAX: Duration = Duration::from_millis(500);
/// Processor time earned per GiB released: about what releasing a GiB takes if all of it is resident.
/// Scattered pages take more, which the database pays itself.
const EARNED_PER_GIB: Duration = Duration::from_millis(100);
/// All databases together earn at most 1/`EARNED_DIVISOR` of the time.
const EARNED_DIVISOR: u32 = 20;

/// Listing descriptors of databases takes at most 1/`LISTING_DIVISOR` of the time. Listing those of all other
/// processes has the same budget of its own.
const LISTING_DIVISOR: u32 = 400;
/// The most listing time that is saved up; and the allowance at the start, when everything is new, with the
/// time within which it can be spent.
const SAVED_LISTING_MAX: Duration = Duration::from_millis(250);
const INITIAL_LISTING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// The most processor time that a database takes in one turn.
const TURN_CPU_MAX: Duration = Duration::from_millis(250);
/// The most wall-clock time that a database takes in one turn.
const TURN_WALL_MAX: Duration = Duration::from_millis(250);
/// Steps between two readings of the clocks.
const STEPS_PER_CLOCK_READ: u32 = 32;

/// A budget that a database exceeds: it is served in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Budget {
    /// Log files. Only those with the highest numbers are watched.
    Names,
    /// Windows of 2 MiB with resident pages. Some are handled now, the others later.
    Windows,
    /// Processor time, or the time its file system takes to answer. Everything is done later.
    Time,
    /// Directories with logs. The others are not watched.
    Directories,
    /// Descriptors of log files. The positions of the others are not known.
    Descriptors,
}

impl Budget {
    /// All budgets.
    pub const ALL: [Self; 5] = [Self::Names, Self::Windows, Self::Time, Self::Directories, Self::Descriptors];

    /// Returns the budget's name, as in JSON.
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

/// The processor time that one database may spend now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credit {
    /// In nanoseconds; negative if more was spent than there was.
    left: i64,
}

impl Credit {
    /// Returns the limits of one turn, for the credit and `beside` together; `None` if nothing is left.
    pub(crate) fn slice(self, beside: Duration) -> Option<Slice> {
        let left = self.left.saturating_add(nanoseconds(beside));
        let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
        Some(Slice { cpu: Duration::from_nanos(left).min(TURN_CPU_MAX), wall: TURN_WALL_MAX })
    }

    /// Deducts processor time that was spent.
    pub(crate) fn spend(&mut self, cpu: Duration) {
        self.left = self.left.saturating_sub(nanoseconds(cpu));
    }
}

/// The limits of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Processor time.
    pub(crate) cpu: Duration,
    /// Wall-clock time.
    pub(crate) wall: Duration,
}

/// Distributes processor time among the databases.
#[derive(Debug)]
pub(crate) struct CpuScheduler {
    /// Time in nanoseconds that nobody needed, for new databases.
    reserve: i64,
    earnings: i64,
    filled: Instant,
}

impl CpuScheduler {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            reserve: nanoseconds(2 * INITIAL_CREDIT_MAX),
            earnings: nanoseconds(TURN_CPU_MAX),
            filled: now,
        }
    }

    /// Returns the credit of a new database: at most half of the reserve, so whoever starts one after another
    /// gets ever less.
    pub(crate) fn open(&mut self) -> Credit {
        let left = (self.reserve / 2).min(nanoseconds(INITIAL_CREDIT_MAX));
        self.reserve -= left;
        Credit { left }
    }

    /// Distributes the time since the last call. Each database gets what it lacks; if there is too little for
    /// that, each user gets a fair share, and each database a fair share of its user's.
    pub(crate) fn fill<'a>(&mut self, credits: impl Iterator<Item = (Party, &'a mut Credit)>, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        let part = |(parts, of): (u32, u32)| nanoseconds(passed * parts / of);
        let (each, mut pool) = (part(CPU_SHARE_PER_DATABASE), part(CPU_SHARE_MAX));
        let mut credits: Vec<(Party, &mut Credit)> = credits.collect();
        let lack = |credit: &Credit| (nanoseconds(SAVED_CPU_MAX) - credit.left).clamp(0, each);
        let lacking: Vec<(Party, usize)> =
            credits.iter().map(|(party, credit)| (*party, lack(credit).try_into().unwrap_or(0))).collect();
        let shares = shares_by_party(pool.try_into().unwrap_or(0), &lacking);
        for ((_, credit), share) in credits.iter_mut().zip(shares) {
            let given = i64::try_from(share).unwrap_or(0);
            credit.left += given;
            pool -= given;
        }
        self.reserve = (self.reserve + pool).min(nanoseconds(2 * INITIAL_CREDIT_MAX));
        let earned = self.earnings + nanoseconds(passed / EARNED_DIVISOR);
        self.earnings = earned.min(nanoseconds(TURN_CPU_MAX));
    }

    /// Returns the part of `cpu`, spent on releasing `bytes`, that these bytes did not earn.
    pub(crate) fn unpaid(&mut self, cpu: Duration, bytes: u64) -> Duration {
        let earned = (u128::from(bytes) * EARNED_PER_GIB.as_nanos()) >> 30;
        let earned = i64::try_from(earned).unwrap_or(i64::MAX).min(nanoseconds(cpu)).min(self.earnings);
        self.earnings -= earned;
        cpu.saturating_sub(Duration::from_nanos(u64::try_from(earned).unwrap_or(0)))
    }
}

/// A token bucket of processor time for listing descriptors. A process with very many descriptors that keeps
/// causing listings is listed later, and costs no more.
#[derive(Debug)]
pub(crate) struct ListingTime {
    /// In nanoseconds; negative if more was spent than there was.
    left: i64,
    began: Instant,
    filled: Instant,
}

impl ListingTime {
    pub(crate) fn new(now: Instant) -> Self {
        Self { left: nanoseconds(INITIAL_LISTING.0), began: now, filled: now }
    }

    /// Returns how much of `wanted` is available at `now`; `None` if all was spent.
    pub(crate) fn slice(&mut self, wanted: Duration, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        if now.saturating_duration_since(self.began) > INITIAL_LISTING.1 {
            self.left =
                (self.left + nanoseconds(passed / LISTING_DIVISOR)).min(nanoseconds(SAVED_LISTING_MAX));
        }
        let left = u64::try_from(self.left).ok().filter(|left| *left > 0)?;
        Some(wanted.min(Duration::from_nanos(left)))
    }

    /// Deducts processor time that was spent.
    pub(crate) fn spend(&mut self, cpu: Duration) {
        self.left = self.left.saturating_sub(nanoseconds(cpu));
    }

    /// Fills the bucket, for a caller that waits until everything was listed.
    pub(crate) fn hurry(&mut self) {
        self.left = self.left.max(nanoseconds(SAVED_LISTING_MAX));
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// One database's turn. It measures the time spent by the thread that began it.
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
            until_read: Cell::new(STEPS_PER_CLOCK_READ),
            over: Cell::new(false),
        }
    }

    /// Counts a step of about a microsecond. Returns whether the turn is over.
    pub(crate) fn step(&self) -> bool {
        let left = self.until_read.get().saturating_sub(1);
        self.until_read.set(left);
        if left == 0 { self.is_over() } else { self.over.get() }
    }

    /// Reads the clocks. Returns whether the turn is over.
    pub(crate) fn is_over(&self) -> bool {
        self.until_read.set(STEPS_PER_CLOCK_READ);
        let over =
            self.over.get() || self.spent() >= self.slice.cpu || self.wall.elapsed() >= self.slice.wall;
        self.over.set(over);
        over
    }

    /// Returns the processor time of this thread since the turn began.
    pub(crate) fn spent(&self) -> Duration {
        thread_time().saturating_sub(self.cpu)
    }
}

/// Returns the processor time of this thread so far: `clock_gettime(2)`.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("CPU time is not negative");
    Duration::new(seconds, u32::try_from(time.tv_nsec).expect("less than a second"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(scheduler: &mut CpuScheduler, credits: &mut [Credit], seconds: u64) {
        let until = scheduler.filled + Duration::from_secs(seconds);
        scheduler.fill(credits.iter_mut().map(|credit| (Party::User(1), credit)), until);
    }

    #[test]
    fn what_one_does_not_need_is_the_others() {
        let mut scheduler = CpuScheduler::new(Instant::now());
        let idle = Credit { left: nanoseconds(SAVED_CPU_MAX) };
        let mut credits = [Credit { left: 0 }, idle, Credit { left: 0 }, idle];
        filled(&mut scheduler, &mut credits, 10);
        assert_eq!(credits[1], idle, "it has all it can save");
        // 1.5 % of 10 s, for two databases that may have up to 1 % each.
        assert_eq!((credits[0].left, credits[2].left), (75_000_000, 75_000_000));
        let mut alone = [Credit { left: 0 }];
        filled(&mut scheduler, &mut alone, 10);
        assert_eq!(alone[0].left, 100_000_000);
    }

    #[test]
    fn who_has_very_many_databases_takes_no_time_of_another_user() {
        let mut scheduler = CpuScheduler::new(Instant::now());
        let mut credits = [Credit { left: 0 }; 101];
        let until = scheduler.filled + Duration::from_secs(10);
        let of = |at| Party::User(if at == 100 { 2 } else { 1 });
        let owned = credits.iter_mut().enumerate().map(|(at, credit)| (of(at), credit));
        scheduler.fill(owned, until);
        // Half of 1.5 % of 10 s.
        assert_eq!(credits[100].left, 75_000_000);
        assert!(credits[..100].iter().all(|credit| credit.left == 750_000));
    }

    #[test]
    fn all_together_never_get_more_than_their_share() {
        let mut scheduler = CpuScheduler::new(Instant::now());
        let reserve = scheduler.reserve;
        let mut credits = Vec::new();
        // Databases start one after another, and each spends what it has.
        for _ in 0..1000 {
            credits.push(scheduler.open());
        }
        let at_first: i64 = credits.iter().map(|credit| credit.left).sum();
        assert!(at_first <= reserve, "{at_first}");
        for credit in &mut credits {
            credit.left = 0;
        }
        filled(&mut scheduler, &mut credits, 100);
        let all: i64 = credits.iter().map(|credit| credit.left).sum();
        assert!(all <= 1_500_000_000, "{all}");
        assert!(credits.iter().all(|credit| credit.left >= 1_499_000), "each has the same");
    }

    #[test]
    fn debts_are_paid_back_and_bytes_earn() {
        let mut scheduler = CpuScheduler::new(Instant::now());
        let mut credit = scheduler.open();
        credit.spend(Duration::from_secs(1));
        assert_eq!(credit.slice(Duration::ZERO), None);
        assert!(credit.slice(Duration::from_secs(1)).is_some());
        let mut credits = [credit];
        filled(&mut scheduler, &mut credits, 51);
        assert!(credits[0].slice(Duration::ZERO).is_some());
        let spent = Duration::from_millis(50);
        assert_eq!(scheduler.unpaid(spent, 1 << 30), Duration::ZERO, "a GiB earned it");
        assert!(scheduler.unpaid(spent, 4096) * 2 > spent, "a page does not");
        let all: Duration = (0..100).map(|_| scheduler.unpaid(spent, 1 << 30)).sum();
        assert!(all > 90 * spent, "there is no more to earn than a share of a core");
    }

    #[test]
    fn listings_wait_until_what_they_took_is_made_good() {
        let now = Instant::now();
        let mut time = ListingTime::new(now);
        let wanted = Duration::from_millis(50);
        assert_eq!(time.slice(wanted, now), Some(wanted));
        time.spend(INITIAL_LISTING.0);
        assert_eq!(time.slice(wanted, now), None);
        let mut spent = Duration::ZERO;
        for tick in 1..=1200 {
            let now = now + tick * Duration::from_millis(500);
            if time.slice(wanted, now).is_some() {
                // Reading one of a process's pieces is not interrupted.
                spent += Duration::from_millis(10);
                time.spend(Duration::from_millis(10));
            }
        }
        let most = Duration::from_secs(600) / LISTING_DIVISOR + Duration::from_millis(10);
        assert!(spent <= most && spent * 2 > most, "{spent:?}");
        let later = now + Duration::from_secs(100_000);
        time.slice(wanted, later);
        assert_eq!(time.left, nanoseconds(SAVED_LISTING_MAX));
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
