//! Processor time for the databases of many users: a token bucket for each user, and one for
//! listings of descriptors.
//!
//! Invariants:
//! 1. In the long run all databases together get no more processor time than `CPU_SHARE_MAX`,
//!    plus what they earn by released bytes (`EARNED_DIVISOR`).
//! 2. Each user has a fair share of it. Unused shares go to the others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::quotas::shares::shares;

/// Processor time per database in the long run, as a fraction: (numerator, denominator).
const CPU_SHARE_PER_DATABASE: (u32, u32) = (1, 100);
/// Processor time for all databases together in the long run, as a fraction.
const CPU_SHARE_MAX: (u32, u32) = (3, 200);
/// The most processor time in a user's bucket.
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
/// The most listing time that is saved up; and the allowance at the start, when everything is new,
/// with the time within which it can be spent.
const SAVED_LISTING_MAX: Duration = Duration::from_millis(250);
const INITIAL_LISTING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// The most processor time that a database takes in one turn.
pub const TURN_CPU_MAX: Duration = Duration::from_millis(250);

/// A token bucket of processor time, in nanoseconds; negative if more was spent than there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuBucket(i64);

impl CpuBucket {
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
pub struct CpuBudget<U> {
    users: BTreeMap<U, CpuBucket>,
    /// Time that nobody needed, for new users.
    reserve: CpuBucket,
    /// Time for releases.
    earnings: CpuBucket,
    filled: Instant,
}

impl<U: Ord + Copy> CpuBudget<U> {
    /// Makes empty buckets, and a full reserve.
    pub fn new(now: Instant) -> Self {
        Self {
            users: BTreeMap::new(),
            reserve: CpuBucket::of(2 * INITIAL_CPU_MAX),
            earnings: CpuBucket::of(TURN_CPU_MAX),
            filled: now,
        }
    }

    /// Fills the buckets of these users, given the number of their databases, and of those who owe
    /// time, as if each had one. Forgets all others. If there is too little time for what all lack,
    /// each user gets a fair share.
    pub fn fill(&mut self, databases: &BTreeMap<U, u32>, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        self.users.retain(|user, bucket| bucket.0 < 0 || databases.contains_key(user));
        let part = |(parts, of): (u32, u32)| passed * parts / of;
        let (each, mut pool) = (part(CPU_SHARE_PER_DATABASE), part(CPU_SHARE_MAX));
        let lack = |(user, bucket): (&U, &CpuBucket)| {
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

    /// Returns the bucket of a user. A new user gets at most half of the reserve, so a sequence of
    /// new users gets less and less.
    fn bucket(&mut self, user: U) -> &mut CpuBucket {
        let Self { users, reserve, .. } = self;
        users.entry(user).or_insert_with(|| {
            let half = reserve.available(Duration::ZERO).unwrap_or_default() / 2;
            let initial = half.min(INITIAL_CPU_MAX);
            reserve.spend(initial);
            CpuBucket::of(initial)
        })
    }

    /// Returns the time that a user has, with `beside` on credit; `None` if nothing is left.
    pub fn available(&mut self, user: U, beside: Duration) -> Option<Duration> {
        self.bucket(user).available(beside)
    }

    /// Returns whether a user has used up their time. Does not make a bucket for a new user, who
    /// has not.
    pub fn has_used_up(&self, user: U) -> bool {
        self.users.get(&user).is_some_and(|bucket| bucket.available(Duration::ZERO).is_none())
    }

    /// Deducts processor time that a user's database took.
    pub fn spend(&mut self, user: U, cpu: Duration) {
        self.bucket(user).spend(cpu);
    }

    /// Gives back the part of `cpu`, spent on releasing `bytes`, that these bytes earned.
    pub fn earn(&mut self, user: U, cpu: Duration, bytes: u64) {
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
pub struct ListingTime {
    bucket: CpuBucket,
    began: Instant,
    filled: Instant,
}

impl ListingTime {
    /// Makes a bucket with the allowance for the start.
    pub fn new(now: Instant) -> Self {
        Self { bucket: CpuBucket::of(INITIAL_LISTING.0), began: now, filled: now }
    }

    /// Returns how much of `wanted` is available at `now`; `None` if all was spent.
    pub fn slice(&mut self, wanted: Duration, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        if now.saturating_duration_since(self.began) > INITIAL_LISTING.1 {
            self.bucket.refill(passed / LISTING_DIVISOR, SAVED_LISTING_MAX);
        }
        self.bucket.available(Duration::ZERO).map(|left| left.min(wanted))
    }

    /// Deducts processor time that was spent.
    pub fn spend(&mut self, cpu: Duration) {
        self.bucket.spend(cpu);
    }

    /// Fills the bucket, for a caller that waits until everything was listed.
    pub fn hurry(&mut self) {
        let lack = self.bucket.lack(SAVED_LISTING_MAX);
        self.bucket.refill(lack, Duration::MAX);
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns a time in nanoseconds, to be shared.
fn as_count(time: Duration) -> usize {
    usize::try_from(time.as_nanos()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1;
    const BOB: u32 = 2;

    /// Fills the buckets of users with so many databases, for so many seconds.
    fn fill(budget: &mut CpuBudget<u32>, users: &[(u32, u32)], seconds: u64) {
        let until = budget.filled + Duration::from_secs(seconds);
        budget.fill(&users.iter().copied().collect(), until);
    }

    #[test]
    fn an_unused_share_goes_to_the_others() {
        let mut budget = CpuBudget::new(Instant::now());
        let users = [(ALICE, 1), (BOB, 1), (3, 1)];
        budget.users = users.map(|(user, _)| (user, CpuBucket(0))).into();
        budget.users.insert(3, CpuBucket::of(SAVED_CPU_MAX));
        fill(&mut budget, &users, 10);
        // 1.5 % of 10 s, for two users that may have up to 1 % each.
        let left: Vec<i64> = budget.users.values().map(|bucket| bucket.0).collect();
        assert_eq!(left, [75_000_000, 75_000_000, 1_000_000_000]);
        fill(&mut budget, &users[..1], 10);
        assert_eq!(budget.users, BTreeMap::from([(ALICE, CpuBucket(175_000_000))]));
    }

    #[test]
    fn a_user_with_many_databases_takes_no_time_of_another_user() {
        let mut budget = CpuBudget::new(Instant::now());
        budget.users = [(ALICE, CpuBucket(0)), (BOB, CpuBucket(0))].into();
        fill(&mut budget, &[(ALICE, 1000), (BOB, 1)], 10);
        // Half of 1.5 % of 10 s.
        assert!(budget.users.values().all(|bucket| bucket.0 == 75_000_000), "{budget:?}");
    }

    #[test]
    fn all_together_never_get_more_than_their_share() {
        let mut budget = CpuBudget::new(Instant::now());
        let reserve = budget.reserve.0;
        // Users come one after another, and each spends what it has.
        let users: Vec<(u32, u32)> = (0..1000).map(|user| (user, 1)).collect();
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
        assert_eq!(budget.users, BTreeMap::from([(ALICE, CpuBucket(-400_000_000))]));
        assert!(budget.has_used_up(ALICE) && !budget.has_used_up(BOB));
        fill(&mut budget, &[(BOB, 1)], 41);
        assert!(!budget.has_used_up(ALICE));
        fill(&mut budget, &[(BOB, 1)], 1);
        assert!(budget.users.is_empty());
    }

    #[test]
    fn listings_wait_until_their_cost_is_paid_back() {
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
                // A started read of one part of a process's descriptors is not interrupted.
                spent += Duration::from_millis(10);
                time.spend(Duration::from_millis(10));
            }
        }
        let most = Duration::from_secs(600) / LISTING_DIVISOR + Duration::from_millis(10);
        assert!(spent <= most && spent * 2 > most, "{spent:?}");
        let later = now + Duration::from_secs(100_000);
        time.slice(wanted, later);
        assert_eq!(time.bucket, CpuBucket::of(SAVED_LISTING_MAX));
        time.spend(Duration::from_secs(1));
        time.hurry();
        assert_eq!(time.slice(wanted, later), Some(wanted));
    }
}
