//! How much memory a database needs: the hit ratio of its page cache at other sizes, from a sample
//! of its accesses on this kernel.
//!
//! The first half of the time fills the simulations, the second half counts. Sizes are of page
//! cache alone: a limit needs the other memory of its group besides.
//!
//! Not covered: accesses through pages that are mapped already ([`SizeReport::mapped_share`]), and
//! the multi-generational LRU, whose rules differ. Fails with [`SizeError`] where nothing can be
//! seen: no permission, no tracepoints, no process, no access.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_kernel::pressure::{CgroupVersion, MemInfo, MemoryCgroup, MemoryPlace, SysRoots};
use pagekeeper_kernel::process::Mount;
use pagekeeper_kernel::{Links, WalkOptions, open_directory, page_size, read_named, residency, walk};
use pagekeeper_policy::miss_curve::{MissCurve, SizeCurve, TOLERATED_LOSS};
use pagekeeper_policy::page_sample::PageSample;
use pagekeeper_text::shell_quoted;
use pagekeeper_trace::TraceError;
use pagekeeper_trace::page_events::samples::{AccessCounts, PageSamples, SampleScope, SampledDirectory};
use serde::Serialize;

/// The pages of the sample that the present size has.
const SAMPLED_PAGES: u64 = 4 << 10;
/// The least and the largest logarithm of the pages that one of the sample stands for.
const WEIGHT_LOG2_RANGE: (u32, u32) = (3, 10);
/// The most pages that are kept: some 40 MiB.
const KEPT_PAGES_MAX: usize = 64 << 10;
/// The smallest size of page cache that is looked at.
const SIZE_MIN: u64 = 1 << 20;
/// The sizes that are simulated, in sixteenths of the present one.
const SIZES: [u64; 16] = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64];
/// Time between two looks at the buffer of events.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two looks for new processes of a group.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of lists of processes until one has no new ones.
const MEMBER_LISTS_MAX: usize = 8;
/// Maximum time for the events that are still in the buffer at the end; later ones count as lost.
const LAST_DRAIN_MAX: Duration = Duration::from_secs(1);
/// Maximum number of different problems that are reported.
const PROBLEMS_MAX: usize = 8;
/// A recommended limit is a multiple of this.
pub const LIMIT_STEP: u64 = 1 << 20;

/// Sleeps for a time, or not at all for zero, and returns whether to end early.
pub type EndingWait<'a> = &'a (dyn Fn(Duration) -> bool + Sync);

/// The accesses that count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SizeScope {
    /// Those of these processes, of their descendants, and of children to come.
    Processes(Vec<u32>),
    /// Those of the processes in and below this memory cgroup: its directory, or its path from the
    /// hierarchy's root.
    Cgroup(PathBuf),
    /// Those to files below these directories, by anybody.
    Directories(Vec<PathBuf>),
}

/// The reason why there is no curve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// There is no such process.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// No process is in the group.
    #[error("no process is in the memory cgroup {}", pagekeeper_text::escaped(.0))]
    NoMember(PathBuf),
    /// Nothing was read.
    #[error("nothing was read through the page cache in {:.0} s", .0.as_secs_f64())]
    NoAccess(Duration),
    /// `/proc`, `/sys` or a directory can't be read.
    #[error(transparent)]
    Kernel(#[from] pagekeeper_kernel::Error),
    /// The events can't be seen.
    #[error("can't see accesses to the page cache: {0}")]
    Trace(#[from] TraceError),
}

/// A curve, and how it came about.
#[derive(Debug, Clone)]
pub struct SizeReport {
    /// The curve. Its present size is what the limit leaves for page cache, or all page cache of
    /// the group, of the files or of the machine.
    pub curve: SizeCurve,
    /// The time that was counted.
    pub counted: Duration,
    /// The number of pages that each page of the sample stands for.
    pub weight: u64,
    /// Events without room, or without time at the end.
    pub lost: u64,
    /// Whether no event was lost, so that the curve has the accesses that were not sampled.
    pub is_complete: bool,
    /// Faults that mapped pages of the page cache, as a share of all accesses that were seen.
    pub mapped_share: f64,
    /// The memory cgroup of the processes; `None` if it is one that can't have a limit.
    pub group: Option<MemoryCgroup>,
    /// Processes in that group or below it that are not watched.
    pub other_members: usize,
    /// Whether all processes ended before the time was over.
    pub has_ended: bool,
    /// Whether this kernel uses the multi-generational LRU, which is not simulated.
    pub is_multi_generational: bool,
    /// Failures that the measurement survived.
    pub problems: Vec<String>,
}

/// The size that loses at most a point of hits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeastSize {
    /// Bytes of page cache.
    pub page_cache_bytes: u64,
    /// The limit, with the other memory of the group; `None` without a group.
    pub limit_bytes: Option<u64>,
    /// The commands that set the limit.
    pub commands: Vec<String>,
}

impl SizeReport {
    /// Returns the memory of the group that is no page cache of files; 0 if it is not known.
    pub fn other_memory(&self) -> u64 {
        self.group.as_ref().map_or(0, |group| group.usage.saturating_sub(file_pages(group)))
    }

    /// Returns the size that loses at most a point of hits.
    pub fn least(&self) -> LeastSize {
        let page_cache_bytes = self.curve.least_within(TOLERATED_LOSS);
        let Some(group) = &self.group else {
            return LeastSize { page_cache_bytes, limit_bytes: None, commands: Vec::new() };
        };
        let needed = page_cache_bytes.saturating_add(self.other_memory());
        let rounded = needed.checked_next_multiple_of(LIMIT_STEP).unwrap_or(needed);
        let limit = rounded.min(group.effective_limit.unwrap_or(u64::MAX));
        let set = |file: &str| format!("echo {limit} > {}", shell_quoted(&group.directory.join(file)));
        let commands = match group.version {
            CgroupVersion::V1 => vec![set("memory.limit_in_bytes")],
            CgroupVersion::V2 => vec![set("memory.high"), set("memory.max")],
        };
        LeastSize { page_cache_bytes, limit_bytes: Some(limit), commands }
    }

    /// Returns bytes a second, given bytes of the counted time.
    pub fn a_second(&self, bytes: u64) -> f64 {
        bytes as f64 / self.counted.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Watches for `duration`, and returns the curve.
///
/// # Errors
///
/// If nothing can be seen, or nothing is read.
pub fn measure(scope: &SizeScope, duration: Duration, wait: EndingWait<'_>) -> Result<SizeReport, SizeError> {
    let mut sizing = CacheSizing::start(scope, wait)?;
    let began = Instant::now();
    sizing.ends_at = began.checked_add(duration);
    while !sizing.has_ended && !wait(DRAIN_INTERVAL) && began.elapsed() < duration {
        sizing.tick();
        if sizing.counting_since.is_none() && began.elapsed() >= duration / 2 {
            sizing.begin_counting();
        }
    }
    sizing.finish(began.elapsed())
}

struct CacheSizing<'a> {
    scope: &'a SizeScope,
    wait: EndingWait<'a>,
    roots: SysRoots,
    samples: PageSamples,
    curve: MissCurve,
    group: Option<MemoryCgroup>,
    other_members: usize,
    /// Processes that were followed by their numbers, not as children.
    followed: BTreeSet<u32>,
    members_seen: Instant,
    counting_since: Option<Instant>,
    /// The counts when the counting began.
    before: Option<AccessCounts>,
    ends_at: Option<Instant>,
    /// Events without time at the end.
    skipped: u64,
    has_ended: bool,
    problems: Vec<String>,
}

impl<'a> CacheSizing<'a> {
    fn start(scope: &'a SizeScope, wait: EndingWait<'a>) -> Result<Self, SizeError> {
        let roots = SysRoots::default();
        let group = group_of(scope, &roots, &members(scope, &roots)?)?;
        let in_kernel = sample_scope(scope, &roots)?;
        if matches!(scope, SizeScope::Directories(_)) {
            // Shows what is missing before the walk, which can take long.
            PageSamples::open(sample_of(0), &in_kernel)?;
        }
        let (present, most) = present_size(scope, &roots, group.as_ref(), wait)?;
        let sample = sample_of(present);
        let samples = PageSamples::open(sample, &in_kernel)?;
        let mut sizing = Self {
            scope,
            wait,
            roots,
            samples,
            curve: MissCurve::new(sample, page_size(), present, &sizes(present, most), KEPT_PAGES_MAX),
            group,
            other_members: 0,
            followed: BTreeSet::new(),
            members_seen: Instant::now(),
            counting_since: None,
            before: Some(AccessCounts::default()),
            ends_at: None,
            skipped: 0,
            has_ended: false,
            problems: Vec::new(),
        };
        sizing.follow_members();
        sizing.other_members = sizing.count_other_members();
        Ok(sizing)
    }

    /// Returns a result, and makes an error a problem of the report.
    fn noted<T, E: fmt::Display>(&mut self, doing: &str, result: Result<T, E>) -> Option<T> {
        let problem = match result {
            Ok(value) => return Some(value),
            Err(error) => format!("can't {doing}: {error}"),
        };
        if self.problems.len() < PROBLEMS_MAX && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        None
    }

    fn tick(&mut self) {
        self.drain();
        if self.members_seen.elapsed() < MEMBERS_INTERVAL {
            return;
        }
        self.members_seen = Instant::now();
        match self.scope {
            SizeScope::Processes(_) => {
                self.forget_ended();
                let has_processes = self.samples.has_processes();
                self.has_ended = self.noted("see whether processes run", has_processes) == Some(false);
            }
            SizeScope::Cgroup(_) => self.follow_members(),
            SizeScope::Directories(_) => {}
        }
    }

    /// Follows the processes of the scope, until a list of them has no new ones: a child that
    /// started before its parent was followed is in the next list.
    fn follow_members(&mut self) {
        for _ in 0..MEMBER_LISTS_MAX {
            // None is left, or there is none to follow.
            let mut new = members(self.scope, &self.roots).unwrap_or_default();
            new.retain(|pid| self.followed.insert(*pid));
            if new.is_empty() {
                break;
            }
            for pid in new {
                let followed = self.samples.follow(pid);
                self.noted("follow a process", followed);
            }
        }
        self.forget_ended();
    }

    /// Stops following processes that are gone: one that ended before it was followed would stay.
    fn forget_ended(&mut self) {
        let Ok(running) = self.roots.proc.pids() else { return };
        let running: BTreeSet<u32> = running.into_iter().collect();
        let gone: Vec<u32> = self.followed.difference(&running).copied().collect();
        for pid in gone {
            self.followed.remove(&pid);
            let unfollowed = self.samples.unfollow(pid);
            self.noted("forget a process that ended", unfollowed);
        }
    }

    /// Returns the number of processes in the group that are not followed.
    fn count_other_members(&self) -> usize {
        let Some(group) = &self.group else { return 0 };
        let (Ok(mounts), Ok(all)) = (self.roots.proc.own_mounts(), self.roots.proc.pids()) else { return 0 };
        let is_other = |pid: &u32| {
            !self.followed.contains(pid)
                && place_of(&self.roots, *pid, &mounts)
                    .is_some_and(|place| place.directory.starts_with(&group.directory))
        };
        all.iter().filter(|pid| is_other(pid)).count()
    }

    /// Applies the events that have come. Once the time is over or a stop is requested, only for
    /// [`LAST_DRAIN_MAX`].
    fn drain(&mut self) {
        let (curve, skipped) = (&mut self.curve, &mut self.skipped);
        let (wait, ends_at) = (self.wait, self.ends_at);
        let mut gives_up_at = None;
        self.samples.drain(&mut |event| {
            let now = Instant::now();
            let is_over = || ends_at.is_some_and(|end| now >= end) || wait(Duration::ZERO);
            if gives_up_at.is_none() && is_over() {
                gives_up_at = Some(now + LAST_DRAIN_MAX);
            }
            if gives_up_at.is_some_and(|end| now >= end) {
                *skipped += 1;
            } else {
                curve.apply(event.file, event.pages, event.event);
            }
        });
    }

    fn begin_counting(&mut self) {
        self.drain();
        self.curve.begin_counting();
        self.counting_since = Some(Instant::now());
        let counts = self.samples.counts();
        self.before = self.noted("count accesses", counts);
    }

    /// Returns the report; what was seen in all the time, `watched`, if it ended before the
    /// counting began.
    fn finish(mut self, watched: Duration) -> Result<SizeReport, SizeError> {
        let counted = self.counting_since.map_or(watched, |since| since.elapsed());
        let now = self.samples.counts();
        let now = self.noted("count accesses", now);
        self.drain();
        let lost = self.samples.lost();
        let lost = self.noted("count lost events", lost).map(|lost| lost + self.skipped);
        let since = |before: AccessCounts, now: AccessCounts| AccessCounts {
            used: now.used.saturating_sub(before.used),
            mapped: now.mapped.saturating_sub(before.mapped),
        };
        let seen = self.before.zip(now).map(|(before, now)| since(before, now));
        let all = seen.map(|seen| seen.used).filter(|_| lost == Some(0));
        let mut curve = self.curve.curve(all).ok_or(SizeError::NoAccess(watched))?;
        self.look_at_group_again(&mut curve);
        let AccessCounts { used, mapped } = seen.unwrap_or_default();
        Ok(SizeReport {
            curve,
            counted,
            weight: self.curve.weight(),
            lost: lost.unwrap_or(self.skipped),
            is_complete: all.is_some(),
            mapped_share: mapped as f64 / (used + mapped).max(1) as f64,
            group: self.group,
            other_members: self.other_members,
            has_ended: self.has_ended,
            is_multi_generational: is_multi_generational(),
            problems: self.problems,
        })
    }

    /// Updates the group's figures and the present size, unless all processes have ended.
    fn look_at_group_again(&mut self, curve: &mut SizeCurve) {
        let members = members(self.scope, &self.roots).unwrap_or_default();
        let group = group_of(self.scope, &self.roots, &members);
        let Some(group) = self.noted("read the memory cgroup", group).flatten() else { return };
        let present = present_size(self.scope, &self.roots, Some(&group), self.wait);
        if let Some((present, _)) = self.noted("read the memory's size", present) {
            curve.present_bytes = present;
        }
        self.group = Some(group);
    }
}

/// Returns the sample of a page cache of this size.
fn sample_of(present: u64) -> PageSample {
    let share = present / page_size() / SAMPLED_PAGES;
    PageSample::one_in_power(share.max(1).ilog2().clamp(WEIGHT_LOG2_RANGE.0, WEIGHT_LOG2_RANGE.1))
}

/// Returns the sizes that are simulated, up to `most` at least.
fn sizes(present: u64, most: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> = SIZES.iter().map(|part| present / 16 * part).collect();
    while let Some(last) = sizes.last().copied().filter(|last| *last < most) {
        sizes.push(last * 2);
    }
    sizes
}

/// Returns the processes of the scope.
fn members(scope: &SizeScope, roots: &SysRoots) -> Result<Vec<u32>, SizeError> {
    match scope {
        SizeScope::Directories(_) => Ok(Vec::new()),
        SizeScope::Processes(named) => {
            let all = roots.proc.pids()?;
            if let Some(missing) = named.iter().find(|pid| !all.contains(pid)) {
                return Err(SizeError::NoProcess(*missing));
            }
            Ok(all.into_iter().filter(|pid| is_below(roots, *pid, named)).collect())
        }
        SizeScope::Cgroup(path) => {
            let mounts = roots.proc.own_mounts()?;
            let is_in = |pid: &u32| {
                let place = place_of(roots, *pid, &mounts);
                place.is_some_and(|place| own_path(&place, path).starts_with(path))
            };
            let all: Vec<u32> = roots.proc.pids()?.into_iter().filter(is_in).collect();
            if all.is_empty() { Err(SizeError::NoMember(path.clone())) } else { Ok(all) }
        }
    }
}

/// Returns whether a process is one of these, or a descendant.
fn is_below(roots: &SysRoots, pid: u32, named: &[u32]) -> bool {
    let parents = std::iter::successors(Some(pid), |pid| roots.proc.parent(*pid).ok().filter(|pid| *pid > 1));
    // A loop is possible only if numbers are reused meanwhile.
    parents.take(1 << 10).any(|pid| named.contains(&pid))
}

/// Returns the place of a process among the groups; `None` also if it has ended.
fn place_of(roots: &SysRoots, pid: u32, mounts: &[Mount]) -> Option<MemoryPlace> {
    MemoryPlace::among(roots, pid, mounts).ok().flatten()
}

/// Returns a group's path in the form in which another one is named: its directory, or its path
/// from the hierarchy's root.
fn own_path<'a>(place: &'a MemoryPlace, named: &Path) -> &'a Path {
    let is_directory = named.starts_with(&place.top) && named != Path::new("/");
    if is_directory { &place.directory } else { &place.group }
}

/// Returns the place of a group that was named, given that of a group in it.
fn named_place(place: MemoryPlace, named: &Path) -> MemoryPlace {
    let below = own_path(&place, named).strip_prefix(named);
    let levels = below.map_or(0, |below| below.components().count());
    // The root may not be visible here.
    let visible = place.directory.ancestors().take_while(|above| above.starts_with(&place.top));
    let directory = visible.take(levels + 1).last().unwrap_or(&place.directory).to_path_buf();
    MemoryPlace { directory, ..place }
}

/// Returns the memory cgroup of the scope, with the limits above it; `None` if it can't have one.
fn group_of(scope: &SizeScope, roots: &SysRoots, members: &[u32]) -> Result<Option<MemoryCgroup>, SizeError> {
    let mounts = roots.proc.own_mounts()?;
    // Children of processes that were named may be in other groups.
    let named: &[u32] = if let SizeScope::Processes(named) = scope { named } else { &[] };
    let mut found = Ok(None);
    for pid in named.iter().chain(members) {
        found = MemoryPlace::among(roots, *pid, &mounts).and_then(|place| match (place, scope) {
            (None, _) => Ok(None),
            (Some(place), SizeScope::Cgroup(path)) => MemoryCgroup::charged_in(&named_place(place, path)),
            (Some(place), _) => MemoryCgroup::charged_in(&place),
        });
        // The call fails for a process that has ended.
        if found.is_ok() {
            break;
        }
    }
    Ok(found?.filter(can_have_limit))
}

/// Returns whether a group can have a limit: the root of version 1 has figures, but none of its
/// own.
fn can_have_limit(group: &MemoryCgroup) -> bool {
    let above = group.directory.parent();
    group.version == CgroupVersion::V2
        || group.limit.is_some()
        || above.is_some_and(|above| above.join("memory.limit_in_bytes").exists())
}

/// Returns the pages of files in a group that can be reclaimed.
fn file_pages(group: &MemoryCgroup) -> u64 {
    group.active_file + group.inactive_file
}

/// Returns the present size of the page cache, and the size up to which it may grow.
fn present_size(
    scope: &SizeScope,
    roots: &SysRoots,
    group: Option<&MemoryCgroup>,
    wait: EndingWait<'_>,
) -> Result<(u64, u64), SizeError> {
    let machine = MemInfo::read(roots)?;
    let present = match (scope, group) {
        (SizeScope::Directories(directories), _) => resident_bytes(directories, wait),
        (_, Some(group)) => match group.effective_limit.filter(|limit| *limit < machine.total) {
            Some(limit) => {
                let present = limit.saturating_sub(group.usage.saturating_sub(file_pages(group)));
                return Ok((present.max(SIZE_MIN), present));
            }
            None => file_pages(group),
        },
        (_, None) => machine.active_file + machine.inactive_file,
    };
    // The sample of pages that all fit must fit, too.
    Ok(((present + present / 8).max(SIZE_MIN), machine.total))
}

fn is_multi_generational() -> bool {
    let enabled = read_named(Path::new("/sys/kernel/mm/lru_gen/enabled"), 64).unwrap_or_default();
    let digits = enabled.strip_prefix(b"0x").unwrap_or_default();
    let last = digits.iter().rev().find(|digit| digit.is_ascii_hexdigit());
    // The lowest bit is in the last digit.
    last.is_some_and(|digit| char::from(*digit).to_digit(16).is_some_and(|value| value & 1 == 1))
}

/// Returns the bytes of files below directories that are resident; fewer if it is to end early.
fn resident_bytes(directories: &[PathBuf], wait: EndingWait<'_>) -> u64 {
    let resident = AtomicU64::new(0);
    let is_over = || wait(Duration::ZERO);
    let options = WalkOptions { one_file_system: true, stop: Some(&is_over), ..WalkOptions::default() };
    walk(directories, &options, &|visited| {
        if let Ok(counts) = visited.and_then(|file| residency(&file, 0..u64::MAX)) {
            resident.fetch_add(counts.resident, Ordering::Relaxed);
        }
    });
    resident.into_inner()
}

fn sample_scope(scope: &SizeScope, roots: &SysRoots) -> Result<SampleScope, SizeError> {
    let SizeScope::Directories(directories) = scope else { return Ok(SampleScope::Processes) };
    let of_path = |path: &PathBuf| {
        let directory = open_directory(path, Links::Follow)?;
        let stat = rustix::fs::fstat(&directory)
            .map_err(|errno| pagekeeper_kernel::Error::call("fstat", path, errno))?;
        let dev = roots.proc.own_mount_of(&directory).map_or(stat.st_dev, |mount| mount.dev);
        Ok(SampledDirectory { dev, ino: stat.st_ino })
    };
    Ok(SampleScope::Directories(directories.iter().map(of_path).collect::<Result<_, SizeError>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_and_the_sizes_follow_the_present_size() {
        for (present, weight) in [(1 << 20, 8), (256 << 20, 16), (1 << 30, 64), (1 << 50, 1024)] {
            assert_eq!(sample_of(present).weight(), weight, "{present}");
        }
        let few = sizes(16 << 20, 16 << 20);
        assert_eq!((few.len(), few[0], few[9]), (16, 1 << 20, 16 << 20));
        assert!(few.is_sorted());
        assert_eq!(sizes(16 << 20, 1 << 30).last(), Some(&(1 << 30)));
    }

    #[test]
    fn a_missing_process_or_group_is_reported() {
        let at_once = |_| true;
        let gone = measure(&SizeScope::Processes(vec![u32::MAX]), Duration::ZERO, &at_once).unwrap_err();
        assert_eq!(gone.to_string(), format!("there is no process {}", u32::MAX));
        let none = measure(&SizeScope::Cgroup("/no/such".into()), Duration::ZERO, &at_once).unwrap_err();
        assert_eq!(none.to_string(), "no process is in the memory cgroup /no/such");
        let own = members(&SizeScope::Processes(vec![std::process::id()]), &SysRoots::default()).unwrap();
        assert!(own.contains(&std::process::id()));
    }

    #[test]
    fn a_group_is_named_by_its_directory_or_by_its_path() {
        let place = |directory: &str, top: &str, group: &str| MemoryPlace {
            version: CgroupVersion::V2,
            directory: directory.into(),
            top: top.into(),
            group: group.into(),
        };
        let deep = || place("/sys/fs/cgroup/a/b", "/sys/fs/cgroup", "/a/b");
        for (named, directory) in [
            ("/a/b", "/sys/fs/cgroup/a/b"),
            ("/a", "/sys/fs/cgroup/a"),
            ("/", "/sys/fs/cgroup"),
            ("/sys/fs/cgroup/a", "/sys/fs/cgroup/a"),
            ("/sys/fs/cgroup", "/sys/fs/cgroup"),
        ] {
            assert!(own_path(&deep(), Path::new(named)).starts_with(named), "{named}");
            assert_eq!(named_place(deep(), Path::new(named)).directory, Path::new(directory), "{named}");
        }
        for named in ["/sys", "/b", "/a/b/c", "/sys/fs/cgroup/b"] {
            assert!(!own_path(&deep(), Path::new(named)).starts_with(named), "{named}");
        }
        // Only a part of the hierarchy is mounted.
        let part = place("/sys/fs/cgroup/b", "/sys/fs/cgroup", "/pod/a/b");
        assert_eq!(named_place(part, Path::new("/")).directory, Path::new("/sys/fs/cgroup"));
    }
}
