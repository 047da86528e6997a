//! Decides, for one memory cgroup, when to keep its logs tighter and how much to ask the kernel to
//! reclaim next, from its page cache and its limit.
//!
//! Page cache counts against a group's limit, whether it is read again or not. Idle pages are not
//! visible from outside, so they are found by trial, as in Meta's senpai (*TMO: Transparent Memory
//! Offloading in Datacenters*, ASPLOS 2022; oomd's `Senpai.cpp`): reclaim a small step, then see
//! how much is read back.
//!
//! * Refaults (reclaimed pages that are read again) show that the pages were not idle. They stop
//!   reclaim for a pause that doubles each time. The pause starts over after the longest pause has
//!   passed without a stop, so a table that is scanned every ten minutes is not pushed out each
//!   time.
//! * As in senpai, a step is a share of the page cache, and shrinks as the group's tasks wait
//!   longer for memory.
//! * Unlike senpai, refaults count too, since on a fast disk pressure shows them late. Waiting for
//!   storage does not count, since a database always does. Reclaim ends at the requested share of
//!   the limit.
//!
//! Invariants: nothing is requested of a group without a limit, without an earlier sample, with a
//! counter that appeared or disappeared since, or whose refaults are not counted. A request never
//! exceeds the clean pages above the share.

use core::time::Duration;

use crate::PAGE_BYTES;

/// One step requests 1/`STEP_DIVISOR` of the group's page cache.
const STEP_DIVISOR: u64 = 100;
/// Lower and upper limit of a step in bytes.
const STEP_BYTES_MIN: u64 = 1 << 20;
const STEP_BYTES_MAX: u64 = 256 << 20;
/// Refaults of up to 1/`REFAULT_DIVISOR` of the previous step do not stop reclaim.
const REFAULT_DIVISOR: u64 = 8;
/// Refaults of up to this many bytes per second do not stop reclaim (64 KiB).
const FREE_REFAULT_BYTES_PER_SECOND: u64 = 64 << 10;
/// The share of time for which tasks may wait for memory, in millionths (0.1 %).
const STALL_MILLIONTHS_MAX: u128 = 1000;
/// The first and the longest pause after refaults. The longest pause without a stop resets the next
/// one to the first.
const PAUSE_MIN: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Logs are kept tighter until the page cache is 1/`RELAX_DIVISOR` of the share below it.
const RELAX_DIVISOR: u64 = 8;

/// The configuration for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRule {
    /// Percentage of the limit that page cache may take before anything is done.
    pub percent: u64,
    /// Whether to ask the kernel to reclaim the rest.
    pub reclaim: bool,
}

/// The state of a group at one moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSample {
    /// The group's ID: a new group at the same path has another one.
    pub group: u64,
    /// Time of the sample, by a monotonic clock.
    pub at: Duration,
    /// The lowest limit that applies to the group; `None` without one.
    pub limit: Option<u64>,
    /// Its page cache, without tmpfs and shared memory.
    pub file: u64,
    /// The part of `file` that is dirty or under writeback.
    pub unwritten: u64,
    /// File pages read again after they were reclaimed, since the group's creation; `None` if that
    /// is not counted.
    pub refaulted: Option<u64>,
    /// Time for which its tasks have waited for memory since its creation; `None` if that is not
    /// measured.
    pub stalled: Option<Duration>,
}

/// The reason for which no reclaim is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum GroupReason {
    /// It has no limit.
    NoLimit,
    /// The page cache is within its share of the limit.
    Within,
    /// Reclaim is not configured.
    NotAsked,
    /// This is the first sample, so there is no trend yet.
    New,
    /// This kernel does not count refaults.
    Blind,
    /// Reclaimed pages were read again.
    Refaults,
    /// Its tasks wait for memory.
    Stalls,
    /// Refaults or waits stopped reclaim recently.
    Pause,
    /// The pages above the share have yet to be written.
    Unwritten,
    /// The kernel found nothing more to reclaim.
    Exhausted,
}

/// The decision on a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupStep {
    /// Whether the logs of the group's databases are to be kept [tighter](crate::Rule::tightened).
    pub tight: bool,
    /// Bytes of file pages to ask the kernel to reclaim, or the reason for none.
    pub reclaim: Result<u64, GroupReason>,
}

/// The state kept for a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupState {
    last: Option<GroupSample>,
    tight: bool,
    asked: u64,
    pause: Duration,
    resume: Duration,
}

impl GroupState {
    /// Decides on the next step from a sample.
    ///
    /// ```
    /// use core::time::Duration;
    /// use pagekeeper_policy::group::{GroupReason, GroupRule, GroupSample, GroupState};
    ///
    /// let rule = GroupRule { percent: 50, reclaim: true };
    /// let mut state = GroupState::default();
    /// let sample = GroupSample {
    ///     group: 7,
    ///     at: Duration::from_secs(10),
    ///     limit: Some(1 << 30),
    ///     file: 768 << 20,
    ///     unwritten: 0,
    ///     refaulted: Some(0),
    ///     stalled: Some(Duration::ZERO),
    /// };
    /// assert_eq!(state.step(rule, sample).reclaim, Err(GroupReason::New));
    /// let step = state.step(rule, GroupSample { at: Duration::from_secs(15), ..sample });
    /// assert!(step.tight && step.reclaim == Ok((768 << 20) / 100));
    /// ```
    pub fn step(&mut self, rule: GroupRule, sample: GroupSample) -> GroupStep {
        let last = self.last.replace(sample);
        let Some(before) = last.filter(|last| continues(last, &sample)) else {
            // The same group with other counters keeps its pauses.
            let kept = if last.is_some_and(|last| last.group == sample.group && last.at < sample.at) {
                Self { pause: self.pause, resume: self.resume, ..Self::default() }
            } else {
                Self::default()
            };
            *self = Self { last: Some(sample), ..kept };
            let tight = self.is_tight(rule, &sample);
            let reclaim = Err(excess(rule, &sample).err().unwrap_or(GroupReason::New));
            return GroupStep { tight, reclaim };
        };
        let tight = self.is_tight(rule, &sample);
        let reclaim = self.reclaim(rule, &before, &sample);
        self.asked = reclaim.unwrap_or(0);
        GroupStep { tight, reclaim }
    }

    /// Records that the last requested step was not carried out.
    pub fn not_done(&mut self) {
        self.asked = 0;
    }

    /// Records that the kernel found nothing more to reclaim in the last step. This also starts a
    /// pause.
    pub fn exhausted(&mut self) -> GroupReason {
        self.asked = 0;
        let at = self.last.map_or(self.resume, |last| last.at);
        self.begin_pause(at, GroupReason::Exhausted)
    }

    fn is_tight(&mut self, rule: GroupRule, sample: &GroupSample) -> bool {
        let share = share_bytes(rule, sample);
        self.tight = share.is_some_and(|share| {
            let from = if self.tight { share - share / RELAX_DIVISOR } else { share };
            sample.file > from
        });
        self.tight
    }

    fn reclaim(
        &mut self,
        rule: GroupRule,
        before: &GroupSample,
        sample: &GroupSample,
    ) -> Result<u64, GroupReason> {
        let over = excess(rule, sample)?;
        let (Some(was), Some(is)) = (before.refaulted, sample.refaulted) else {
            return Err(GroupReason::Blind);
        };
        let period = sample.at.saturating_sub(before.at);
        let free = u128::from(FREE_REFAULT_BYTES_PER_SECOND) * period.as_millis() / 1000;
        let free = u64::try_from(free).unwrap_or(u64::MAX).max(self.asked / REFAULT_DIVISOR);
        let stalled = sample.stalled.unwrap_or_default().saturating_sub(before.stalled.unwrap_or_default());
        let stalled = stalled.as_micros() * 1_000_000 / period.as_micros().max(1);
        if is - was > free {
            return Err(self.begin_pause(sample.at, GroupReason::Refaults));
        }
        if stalled >= STALL_MILLIONTHS_MAX {
            return Err(self.begin_pause(sample.at, GroupReason::Stalls));
        }
        if sample.at < self.resume {
            return Err(GroupReason::Pause);
        }
        if sample.at.saturating_sub(self.resume) >= PAUSE_MAX {
            self.pause = Duration::ZERO;
        }
        let most = (sample.file / STEP_DIVISOR).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
        let eased = u128::from(most) * (STALL_MILLIONTHS_MAX - stalled) / STALL_MILLIONTHS_MAX;
        let eased = u64::try_from(eased).unwrap_or(most);
        // If the pages above the share have yet to be written, all clean ones may be hot.
        match eased.min(over.saturating_sub(sample.unwritten)) {
            bytes if bytes < PAGE_BYTES => Err(GroupReason::Unwritten),
            bytes => Ok(bytes),
        }
    }

    /// Begins a pause, each twice as long as the previous one.
    fn begin_pause(&mut self, at: Duration, why: GroupReason) -> GroupReason {
        // Events during a pause do not lengthen it.
        if at >= self.resume {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        }
        self.resume = at.saturating_add(self.pause);
        why
    }
}

/// Returns how much page cache the group may have.
fn share_bytes(rule: GroupRule, sample: &GroupSample) -> Option<u64> {
    let share = u128::from(sample.limit?) * u128::from(rule.percent) / 100;
    Some(u64::try_from(share).unwrap_or(u64::MAX))
}

/// Returns how far the page cache exceeds the share, in whole pages.
fn excess(rule: GroupRule, sample: &GroupSample) -> Result<u64, GroupReason> {
    let share = share_bytes(rule, sample).ok_or(GroupReason::NoLimit)?;
    match sample.file.saturating_sub(share) / PAGE_BYTES * PAGE_BYTES {
        0 => Err(GroupReason::Within),
        _ if !rule.reclaim => Err(GroupReason::NotAsked),
        over => Ok(over),
    }
}

/// Whether a counter, if present, has not gone back.
fn grows<T: PartialOrd>(before: Option<T>, after: Option<T>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => after >= before,
        (None, None) => true,
        _ => false,
    }
}

/// Whether two samples are of the same group: its counters only grow.
fn continues(before: &GroupSample, sample: &GroupSample) -> bool {
    before.group == sample.group
        && sample.at > before.at
        && grows(before.refaulted, sample.refaulted)
        && grows(before.stalled, sample.stalled)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const GROUP_RULE: GroupRule = GroupRule { percent: 25, reclaim: true };

    fn sample(seconds: u64) -> GroupSample {
        GroupSample {
            group: 1,
            at: Duration::from_secs(seconds),
            limit: Some(GIB),
            file: 800 * MIB,
            unwritten: 0,
            refaulted: Some(0),
            stalled: Some(Duration::ZERO),
        }
    }

    /// Runs steps every five seconds on the samples that `of` makes; returns what was requested.
    fn run(
        rule: GroupRule,
        steps: u64,
        mut of: impl FnMut(u64, &mut GroupSample),
    ) -> Vec<Result<u64, GroupReason>> {
        let mut state = GroupState::default();
        let one = |step: u64| {
            let mut seen = sample(step * 5);
            of(step, &mut seen);
            state.step(rule, seen).reclaim
        };
        (1..=steps).map(one).collect()
    }

    #[test]
    fn idle_pages_go_in_small_steps_down_to_the_share() {
        let mut file = 800 * MIB;
        let mut state = GroupState::default();
        let mut steps = 0;
        for step in 1..1000 {
            let step = state.step(GROUP_RULE, GroupSample { file, ..sample(step * 5) });
            let Ok(bytes) = step.reclaim else {
                if step.reclaim == Err(GroupReason::Within) {
                    break;
                }
                continue;
            };
            assert!(bytes <= (file / 100).max(MIB) && step.tight);
            file -= bytes;
            steps += 1;
        }
        assert!((256 * MIB..256 * MIB + PAGE_BYTES).contains(&file), "{file}");
        assert!((100..300).contains(&steps), "{steps}");
    }

    #[test]
    fn early_refaults_stop_reclaim_and_pauses_double() {
        // Everything that is reclaimed comes back.
        let mut refaulted = 0;
        let asked = run(GROUP_RULE, 2000, |_, seen| {
            refaulted += 8 * MIB;
            seen.refaulted = Some(refaulted);
        });
        assert_eq!(
            asked.iter().filter(|asked| asked.is_ok()).count(),
            0,
            "it reads again before anything was asked"
        );
        let (mut refaulted, mut state, mut asked, mut times) = (0, GroupState::default(), 0, Vec::new());
        for step in 1..=4000 {
            refaulted += asked;
            let seen = GroupSample { refaulted: Some(refaulted), ..sample(step * 5) };
            asked = state.step(GROUP_RULE, seen).reclaim.unwrap_or(0);
            if asked > 0 {
                times.push(step * 5);
            }
        }
        let pauses: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(pauses[..6], [65, 125, 245, 485, 965, 1925]);
        assert!(pauses[6..].iter().all(|pause| *pause == 3605), "{pauses:?}");
    }

    #[test]
    fn an_occasional_refault_stops_no_reclaim() {
        let mut refaulted = 0;
        let asked = run(GROUP_RULE, 50, |_, seen| {
            refaulted += 4096 * 20;
            seen.refaulted = Some(refaulted);
        });
        assert!(asked[1..].iter().all(Result::is_ok), "{asked:?}");
    }

    #[test]
    fn waiting_for_memory_makes_steps_smaller_and_ends_them() {
        let stalled = |micros: u64| {
            let mut all = Duration::ZERO;
            run(GROUP_RULE, 2, |_, seen| {
                all += Duration::from_micros(micros);
                seen.stalled = Some(all);
            })[1]
        };
        assert_eq!(stalled(0), Ok(8 * MIB));
        assert_eq!(stalled(2500), Ok(4 * MIB), "half of 0.1 % of five seconds");
        assert_eq!(stalled(5000), Err(GroupReason::Stalls));
        assert_eq!(stalled(u64::MAX / 4), Err(GroupReason::Stalls));
    }

    #[test]
    fn nothing_is_requested_without_a_limit_counts_or_configuration() {
        let last = |rule, change: fn(&mut GroupSample)| *run(rule, 9, |_, seen| change(seen)).last().unwrap();
        assert_eq!(last(GROUP_RULE, |seen| seen.limit = None), Err(GroupReason::NoLimit));
        assert_eq!(last(GROUP_RULE, |seen| seen.refaulted = None), Err(GroupReason::Blind));
        assert_eq!(last(GROUP_RULE, |seen| seen.unwritten = u64::MAX), Err(GroupReason::Unwritten));
        assert_eq!(last(GROUP_RULE, |seen| seen.file = 256 * MIB), Err(GroupReason::Within));
        assert_eq!(last(GROUP_RULE, |seen| seen.limit = Some(u64::MAX)), Err(GroupReason::Within));
        assert_eq!(last(GroupRule { reclaim: false, ..GROUP_RULE }, |_| ()), Err(GroupReason::NotAsked));
        assert!(last(GROUP_RULE, |seen| seen.stalled = None).is_ok(), "refaults alone are a brake");
        assert_eq!(
            last(GROUP_RULE, |seen| (seen.limit, seen.file) = (Some(0), 5 * PAGE_BYTES + 1)),
            Ok(5 * PAGE_BYTES)
        );
        assert_eq!(last(GROUP_RULE, |seen| (seen.limit, seen.file) = (Some(0), 5)), Err(GroupReason::Within));
    }

    #[test]
    fn clean_pages_do_not_go_in_place_of_dirty_ones() {
        // 800 MiB, of which 256 MiB are within the share: 544 MiB remain.
        let asked = |unwritten: u64| run(GROUP_RULE, 3, |_, seen| seen.unwritten = unwritten)[2];
        assert_eq!(asked(700 * MIB), Err(GroupReason::Unwritten));
        assert_eq!(asked(544 * MIB), Err(GroupReason::Unwritten));
        assert_eq!(asked(543 * MIB), Ok(MIB));
        assert_eq!(asked(MIB), Ok(8 * MIB));
    }

    /// Simulates scans of a table, every `period` seconds, each of which reads back all reclaimed
    /// pages. Returns the seconds after which a scan found pages missing.
    fn scans(period: u64, times: u64) -> Vec<u64> {
        let (mut state, mut file, mut refaulted, mut found) =
            (GroupState::default(), 800 * MIB, 0, Vec::new());
        for at in (5..period * times).step_by(5) {
            if at % period == 0 && file < 800 * MIB {
                refaulted += 800 * MIB - file;
                file = 800 * MIB;
                found.push(at);
            }
            let seen = GroupSample { file, refaulted: Some(refaulted), ..sample(at) };
            file -= state.step(GROUP_RULE, seen).reclaim.unwrap_or(0);
        }
        found
    }

    #[test]
    fn an_occasionally_scanned_table_is_reclaimed_at_growing_intervals() {
        let found = scans(600, 60);
        let last: Vec<u64> = found.iter().rev().take(3).copied().collect();
        assert!(last.windows(2).all(|two| two[0] - two[1] >= 3600), "{found:?}");
        assert!(found.len() < 20, "{found:?}");
        // A table that is scanned less often than the longest pause counts as idle in between.
        assert_eq!(scans(3 * 3600, 5).len(), 4);
    }

    #[test]
    fn a_pause_is_kept_over_a_counter_that_comes_and_goes() {
        let mut state = GroupState::default();
        let mut refaulted = 0;
        let mut step = |at: u64, more: u64, stalled: Option<Duration>| {
            refaulted += more;
            state.step(GROUP_RULE, GroupSample { refaulted: Some(refaulted), stalled, ..sample(at) }).reclaim
        };
        assert_eq!(step(5, 0, None), Err(GroupReason::New));
        assert_eq!(step(10, 64 * MIB, None), Err(GroupReason::Refaults));
        assert_eq!(step(15, 0, Some(Duration::from_secs(100))), Err(GroupReason::New), "no stall");
        assert_eq!(step(20, 0, Some(Duration::from_secs(100))), Err(GroupReason::Pause));
        assert_eq!(step(75, 0, Some(Duration::from_secs(100))), Ok(8 * MIB));
    }

    #[test]
    fn a_reclaim_that_finds_nothing_pauses_reclaiming() {
        let mut state = GroupState::default();
        let mut step = |at: u64| state.step(GROUP_RULE, sample(at)).reclaim;
        assert_eq!((step(5), step(10)), (Err(GroupReason::New), Ok(8 * MIB)));
        state.exhausted();
        let mut step = |at: u64| state.step(GROUP_RULE, sample(at)).reclaim;
        assert_eq!((step(15), step(65)), (Err(GroupReason::Pause), Err(GroupReason::Pause)));
        assert_eq!(step(70), Ok(8 * MIB));
        state.exhausted();
        assert_eq!(state.step(GROUP_RULE, sample(185)).reclaim, Err(GroupReason::Pause), "twice as long");
    }

    #[test]
    fn a_counter_that_goes_back_starts_the_group_again() {
        for change in [
            (|seen: &mut GroupSample| seen.refaulted = Some(3)) as fn(&mut GroupSample),
            |seen| seen.stalled = Some(Duration::from_secs(1)),
            |seen| seen.stalled = None,
            |seen| seen.refaulted = None,
            |seen| seen.group = 2,
            |seen| seen.at = Duration::from_secs(10),
        ] {
            let asked = run(GROUP_RULE, 4, |step, seen| {
                (seen.refaulted, seen.stalled) = (Some(4096), Some(Duration::from_secs(2)));
                if step == 3 {
                    change(seen);
                }
            });
            assert_eq!(asked[2], Err(GroupReason::New), "{asked:?}");
        }
    }

    #[test]
    fn logs_are_kept_tighter_until_well_below_the_share() {
        let mut state = GroupState::default();
        let mut tight = |second, file| state.step(GROUP_RULE, GroupSample { file, ..sample(second) }).tight;
        assert!(!tight(5, 256 * MIB));
        assert!(tight(10, 257 * MIB));
        assert!(tight(15, 225 * MIB), "not on and off at each tick");
        assert!(!tight(20, 224 * MIB));
        assert!(!tight(25, 256 * MIB));
    }
}
