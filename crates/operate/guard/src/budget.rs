//! Budgets: how many names and windows, and how much processor time, databases may cost the guard.
//!
//! A database's owner may be hostile: hundreds of thousands of files that look like logs, a page in
//! each window of large sparse files, endless renames. None of that may cost more than a small
//! share of a core and of memory, or keep the guard from serving the other databases.
//!
//! Invariants:
//! 1. The names and windows kept for all databases are fewer than [`NAMES_MAX`] and twice
//!    [`WINDOWS_MAX`], plus one for each directory. There are at most [`DIRECTORIES_MAX`]
//!    directories. A database that has more is served in part.
//! 2. In the long run all databases together get no more processor time than [`CPU_SHARE_MAX`],
//!    plus what they earn by released bytes ([`EARNED_DIVISOR`]).
//! 3. Each user has a [token bucket](CpuBudget) of processor time and a fair share of each
//!    [`Quota`]. Unused shares go to the others.
//! 4. This module does no I/O. Work measures itself with a [`Turn`], in the thread that does it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::process::thread_cpu_time;
use pagekeeper_policy::shares::shares;
use serde::Serialize;

/// Maximum number of log files watched per database.
pub(crate) const NAMES_PER_DATABASE: usize = 4096;
/// Maximum number of log files watched in all.
pub(crate) const NAMES_MAX: usize = 32_768;
/// Maximum windows with resident pages kept per database: 16 GiB of them. More are taken up once
/// these are released.
pub(crate) const WINDOWS_PER_DATABASE: usize = 8192;
/// Maximum windows kept in all.
pub(crate) const WINDOWS_MAX: usize = 32_768;
/// The most directories watched per database.
pub(crate) const DIRECTORIES_PER_DATABASE: usize = 1024;
/// The most directories watched per user.
pub(crate) const DIRECTORIES_PER_USER: usize = 2048;
/// The most directories watched in all.
pub(crate) const DIRECTORIES_MAX: usize = 4096;
/// Maximum number of descriptors of log files remembered per process.
pub(crate) const DESCRIPTORS_PER_PROCESS: usize = 2048;
/// Maximum number of descriptors remembered for all processes that are not databases.
pub(crate) const FOREIGN_DESCRIPTORS_MAX: usize = 16_384;

/// Processor time per database in the long run, as a fraction: (numerator, denominator).
const CPU_SHARE_PER_DATABASE: (u32, u32) = (1, 100);
/// Processor time for all databases together in the long run, as a fraction.
const CPU_SHARE_MAX: (u32, u32) = (3, 200);
/// Maximum processor time in a user's bucket.
const SAVED_CPU_MAX: Duration = Duration::from_secs(1);
/// The maximum of a new user's bucket. It is taken from time that the others did not need.
const INITIAL_CPU_MAX: Duration = Duration::from_millis(500);
/// Processor time earned per GiB released: about what releasing a GiB takes if all of it is
/// resident. Scattered pages take more, which their user pays.
const EARNED_PER_GIB: Duration = Duration::from_millis(100);
/// All databases together earn at most 1/`EARNED_DIVISOR` of the time.
const EARNED_DIVISOR: u32 = 20;

/// Listing descriptors of databases takes at most 1/`LISTING_DIVISOR` of the time. Listing those of
/// all other processes has the same budget of its own.
const LISTING_DIVISOR: u32 = 400;
/// Maximum listing time that is saved up; and the allowance at the start, when everything is new,
/// with the time within which it can be spent.
const SAVED_LISTING_MAX: Duration = Duration::from_millis(250);
const INITIAL_LISTING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// Maximum processor time that a database takes in one turn.
const TURN_CPU_MAX: Duration = Duration::from_millis(250);
/// Maximum wall-clock time that a database takes in one turn.
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

/// A token bucket of processor time, in nanoseconds; negative if more was spent than there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TokenBucket(i64);

impl TokenBucket {
    fn of(time: Duration) -> Self {
        Self(nanoseconds(time))
    }

    /// Returns the time that it lacks to hold `most`.
    fn lack(self, most: Duration) -> Duration {
        Duration::from_nanos(u64::try_from(nanoseconds(most).saturating_sub(self.0)).unwrap_or(0))
    }

    /// Adds time, up to `most`.
    fn refill(&mut self, time: Duration, most: Duration) {
        self.0 = self.0.saturating_add(nanoseconds(time)).min(nanoseconds(most));
    }

    /// Returns the time in it and `beside` together; `None` if nothing is left.
    fn available(self, beside: Duration) -> Option<Duration> {
        let left = u64::try_from(self.0.saturating_add(nanoseconds(beside))).ok();
        left.filter(|left| *left > 0).map(Duration::from_nanos)
    }

    fn spend(&mut self, cpu: Duration) {
        self.0 = self.0.saturating_sub(nanoseconds(cpu));
    }
}

/// Processor time for the databases: a token bucket per user.
#[derive(Debug)]
pub(crate) struct CpuBudget {
    users: BTreeMap<Party, TokenBucket>,
    /// Time that nobody needed, for users that come anew.
    reserve: TokenBucket,
    /// Time for releases.
    earnings: TokenBucket,
    filled: Instant,
}

impl CpuBudget {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            users: BTreeMap::new(),
            reserve: TokenBucket::of(2 * INITIAL_CPU_MAX),
            earnings: TokenBucket::of(TURN_CPU_MAX),
            filled: now,
        }
    }

    /// Fills the buckets of these users, given the number of their databases, and of those who owe
    /// time, as if each had one. Forgets all others. If there is too little time for what all lack,
    /// each user gets a fair share.
    pub(crate) fn fill(&mut self, databases: &BTreeMap<Party, u32>, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        self.users.retain(|user, bucket| bucket.0 < 0 || databases.contains_key(user));
        let part = |(parts, of): (u32, u32)| passed * parts / of;
        let (each, mut pool) = (part(CPU_SHARE_PER_DATABASE), part(CPU_SHARE_MAX));
        let lack = |(user, bucket): (&Party, &TokenBucket)| {
            let most = each.saturating_mul(databases.get(user).map_or(1, |count| (*count).max(1)));
            as_count(bucket.lack(SAVED_CPU_MAX).min(most))
        };
        let lacking: Vec<usize> = self.users.iter().map(lack).collect();
        for (bucket, share) in self.users.values_mut().zip(shares(as_count(pool), &lacking)) {
            let share = Duration::from_nanos(share as u64);
            bucket.refill(share, SAVED_CPU_MAX);
            pool = pool.saturating_sub(share);
        }
        self.reserve.refill(pool, 2 * INITIAL_CPU_MAX);
        self.earnings.refill(passed / EARNED_DIVISOR, TURN_CPU_MAX);
    }

    /// Returns the bucket of a user. A new one gets at most half of the reserve, so whoever comes
    /// under ever new names gets ever less.
    fn bucket(&mut self, user: Party) -> &mut TokenBucket {
        let Self { users, reserve, .. } = self;
        users.entry(user).or_insert_with(|| {
            let half = reserve.available(Duration::ZERO).unwrap_or_default() / 2;
            let initial = half.min(INITIAL_CPU_MAX);
            reserve.spend(initial);
            TokenBucket::of(initial)
        })
    }

    /// Returns the time that a user has, with `beside` on credit; `None` if nothing is left.
    pub(crate) fn available(&mut self, user: Party, beside: Duration) -> Option<Duration> {
        self.bucket(user).available(beside)
    }

    /// Returns whether a user has used up their time. Does not make a bucket for a new user, who
    /// has not.
    pub(crate) fn has_used_up(&self, user: Party) -> bool {
        self.users.get(&user).is_some_and(|bucket| bucket.available(Duration::ZERO).is_none())
    }

    /// Deducts processor time that a user's database took.
    pub(crate) fn spend(&mut self, user: Party, cpu: Duration) {
        self.bucket(user).spend(cpu);
    }

    /// Gives back the part of `cpu`, spent on releasing `bytes`, that these bytes earned.
    pub(crate) fn earn(&mut self, user: Party, cpu: Duration, bytes: u64) {
        let earned = self.earned(cpu, bytes);
        self.bucket(user).refill(earned, SAVED_CPU_MAX);
    }

    fn earned(&mut self, cpu: Duration, bytes: u64) -> Duration {
        let earned = (u128::from(bytes) * EARNED_PER_GIB.as_nanos()) >> 30;
        let earned = Duration::from_nanos(u64::try_from(earned).unwrap_or(u64::MAX));
        let earned = earned.min(cpu).min(self.earnings.available(Duration::ZERO).unwrap_or_default());
        self.earnings.spend(earned);
        earned
    }
}

/// A token bucket of processor time for listing descriptors. A process with very many descriptors
/// that keeps causing listings is listed later, and costs no more.
#[derive(Debug)]
pub(crate) struct ListingTime {
    bucket: TokenBucket,
    began: Instant,
    filled: Instant,
}

impl ListingTime {
    pub(crate) fn new(now: Instant) -> Self {
        Self { bucket: TokenBucket::of(INITIAL_LISTING.0), began: now, filled: now }
    }

    /// Returns how much of `wanted` is available at `now`; `None` if all was spent.
    pub(crate) fn slice(&mut self, wanted: Duration, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        if now.saturating_duration_since(self.began) > INITIAL_LISTING.1 {
            self.bucket.refill(passed / LISTING_DIVISOR, SAVED_LISTING_MAX);
        }
        self.bucket.available(Duration::ZERO).map(|left| left.min(wanted))
    }

    /// Deducts processor time that was spent.
    pub(crate) fn spend(&mut self, cpu: Duration) {
        self.bucket.spend(cpu);
    }

    /// Fills the bucket, for a caller that waits until everything was listed.
    pub(crate) fn hurry(&mut self) {
        let lack = self.bucket.lack(SAVED_LISTING_MAX);
        self.bucket.refill(lack, Duration::MAX);
    }
}

/// A limit that users share, and the databases of each. A database's share is at least one; all
/// shares together are at most `all`, plus one for each database.
#[derive(Debug)]
pub(crate) struct Quota {
    all: usize,
    per_database: usize,
    /// The share of one database of each user; empty when it has to be computed anew.
    shares: BTreeMap<Party, usize>,
}

impl Quota {
    pub(crate) fn new(all: usize, per_database: usize) -> Self {
        Self { all, per_database, shares: BTreeMap::new() }
    }

    /// Records that the numbers of databases have changed.
    pub(crate) fn forget(&mut self) {
        self.shares.clear();
    }

    /// Returns the share of one database of a user, given the number of each user's databases.
    pub(crate) fn share(&mut self, databases: &BTreeMap<Party, u32>, user: Party) -> usize {
        if self.shares.is_empty() {
            let count = |count: &u32| usize::try_from(*count).unwrap_or(usize::MAX);
            let most = self.per_database;
            let wanted: Vec<usize> =
                databases.values().map(|databases| count(databases).saturating_mul(most)).collect();
            let shares = shares(self.all, &wanted).into_iter().zip(databases);
            let each = shares.map(|(share, (user, own))| (*user, (share / count(own)).clamp(1, most)));
            self.shares = each.collect();
        }
        self.shares.get(&user).copied().unwrap_or(1)
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns a time in nanoseconds, to be shared.
fn as_count(time: Duration) -> usize {
    usize::try_from(time.as_nanos()).unwrap_or(usize::MAX)
}

/// The limits of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Processor time.
    pub(crate) cpu: Duration,
    /// Wall-clock time.
    pub(crate) wall: Duration,
}

impl Slice {
    /// Returns the limits of a turn of at most `cpu`.
    pub(crate) fn of(cpu: Duration) -> Self {
        Self { cpu: cpu.min(TURN_CPU_MAX), wall: TURN_WALL_MAX }
    }
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
            cpu: thread_cpu_time(),
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
        thread_cpu_time().saturating_sub(self.cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Party = Party::User(1);
    const BOB: Party = Party::User(2);

    /// Fills the buckets of users with this many databases, for this many seconds.
    fn fill(budget: &mut CpuBudget, users: &[(Party, u32)], seconds: u64) {
        let until = budget.filled + Duration::from_secs(seconds);
        budget.fill(&users.iter().copied().collect(), until);
    }

    #[test]
    fn what_one_does_not_need_is_the_others() {
        let mut budget = CpuBudget::new(Instant::now());
        let users = [(ALICE, 1), (BOB, 1), (Party::User(3), 1)];
        budget.users = users.map(|(user, _)| (user, TokenBucket(0))).into();
        budget.users.insert(Party::User(3), TokenBucket::of(SAVED_CPU_MAX));
        fill(&mut budget, &users, 10);
        // 1.5 % of 10 s, for two users that may have up to 1 % each.
        let left: Vec<i64> = budget.users.values().map(|bucket| bucket.0).collect();
        assert_eq!(left, [75_000_000, 75_000_000, 1_000_000_000]);
        fill(&mut budget, &users[..1], 10);
        assert_eq!(budget.users, BTreeMap::from([(ALICE, TokenBucket(175_000_000))]));
    }

    #[test]
    fn who_has_very_many_databases_takes_no_time_of_another_user() {
        let mut budget = CpuBudget::new(Instant::now());
        budget.users = [(ALICE, TokenBucket(0)), (BOB, TokenBucket(0))].into();
        fill(&mut budget, &[(ALICE, 1000), (BOB, 1)], 10);
        // Half of 1.5 % of 10 s.
        assert!(budget.users.values().all(|bucket| bucket.0 == 75_000_000), "{budget:?}");
    }

    #[test]
    fn all_together_never_get_more_than_their_share() {
        let mut budget = CpuBudget::new(Instant::now());
        let reserve = budget.reserve.0;
        // Users come one after another, and each spends what it has.
        let users: Vec<(Party, u32)> = (0..1000).map(|user| (Party::User(user), 1)).collect();
        let at_first: i64 = users.iter().map(|(user, _)| budget.bucket(*user).0).sum();
        assert!(at_first <= reserve, "{at_first}");
        budget.users.values_mut().for_each(|bucket| bucket.0 = 0);
        fill(&mut budget, &users, 100);
        let all: i64 = budget.users.values().map(|bucket| bucket.0).sum();
        assert!(all <= 1_500_000_000, "{all}");
        assert!(budget.users.values().all(|bucket| bucket.0 >= 1_499_000), "each has the same");
    }

    #[test]
    fn debts_are_paid_back_and_bytes_earn() {
        let mut budget = CpuBudget::new(Instant::now());
        budget.spend(ALICE, Duration::from_secs(1));
        assert_eq!(budget.available(ALICE, Duration::ZERO), None);
        assert!(budget.available(ALICE, Duration::from_secs(1)).is_some());
        fill(&mut budget, &[(ALICE, 1)], 51);
        assert!(budget.available(ALICE, Duration::ZERO).is_some());
        let spent = Duration::from_millis(50);
        assert_eq!(budget.earned(spent, 1 << 30), spent, "a GiB earned it");
        assert!(budget.earned(spent, 4096) * 2 < spent, "a page does not");
        let all: Duration = (0..100).map(|_| budget.earned(spent, 1 << 30)).sum();
        assert!(all < 10 * spent, "there is no more to earn than a share of a core");
    }

    #[test]
    fn a_user_whose_databases_have_ended_stays_in_debt_until_it_is_paid() {
        let mut budget = CpuBudget::new(Instant::now());
        budget.spend(ALICE, INITIAL_CPU_MAX + Duration::from_millis(500));
        fill(&mut budget, &[(BOB, 1)], 10);
        assert_eq!(budget.users, BTreeMap::from([(ALICE, TokenBucket(-400_000_000))]));
        assert!(budget.has_used_up(ALICE) && !budget.has_used_up(BOB));
        fill(&mut budget, &[(BOB, 1)], 41);
        assert!(!budget.has_used_up(ALICE));
        fill(&mut budget, &[(BOB, 1)], 1);
        assert!(budget.users.is_empty());
    }

    #[test]
    fn databases_have_shares_of_their_users() {
        let user = |number: usize| Party::User(u32::try_from(number).unwrap());
        let share = |all, most, counts: &[u32], of: usize| {
            let counts = counts.iter().enumerate().map(|(at, count)| (user(at + 1), *count)).collect();
            Quota::new(all, most).share(&counts, user(of))
        };
        let names = |counts: &[u32], of| share(NAMES_MAX, NAMES_PER_DATABASE, counts, of);
        assert_eq!(names(&[8], 1), NAMES_PER_DATABASE);
        assert_eq!(names(&[64], 1), 512);
        assert_eq!((names(&[2048, 1], 1), names(&[2048, 1], 2)), (14, NAMES_PER_DATABASE));
        assert_eq!(names(&[2048, 2048], 1), 8);
        let windows = |of| share(WINDOWS_MAX, WINDOWS_PER_DATABASE, &[1_000_000, 1], of);
        assert_eq!((windows(1), windows(2)), (1, WINDOWS_PER_DATABASE));
        // The stated bound holds for any distribution of databases over users.
        let each = vec![1; 4000];
        for counts in [&[1_u32, 2, 2000, 7][..], &[4000, 96], &each] {
            let all = counts.iter().enumerate().map(|(at, count)| (user(at + 1), *count)).collect();
            let mut quota = Quota::new(NAMES_MAX, NAMES_PER_DATABASE);
            let kept = counts.iter().enumerate();
            let kept = kept.map(|(at, count)| quota.share(&all, user(at + 1)) * *count as usize);
            let kept: usize = kept.sum();
            assert!(kept <= NAMES_MAX, "{kept} {counts:?}");
        }
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
        assert_eq!(time.bucket, TokenBucket::of(SAVED_LISTING_MAX));
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
