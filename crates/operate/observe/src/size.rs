//! How much memory a database needs: the hit ratio of its page cache at other sizes, from a sample of
//! its accesses on this kernel.
//!
//! The first half of the time fills the simulations, the second half counts. Sizes are of page
//! cache alone: a limit needs the other memory of its group besides.
//!
//! Not covered: accesses through pages that are mapped already ([`SizeReport::mapped_share`]), and
//! the multi-generational LRU, whose rules differ. Fails with [`SizeError`] where nothing can be
//! seen: no permission, no tracepoints, no process, no access.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_kernel::pressure::{CgroupVersion, HeldGroup, MemInfo, MemoryCgroup, MemoryPlace, SysRoots};
use pagekeeper_kernel::{Links, WalkOptions, open_directory, read_named, residency, walk};
use pagekeeper_policy::miss_curve::{MissCurve, SizeCurve};
use pagekeeper_policy::page_sample::PageSample;
use pagekeeper_trace::TraceError;
use pagekeeper_trace::page_events::samples::{AccessCounts, PageSamples, SampleScope, SampledDirectory};

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
    /// The curve. Its present size is what the limit leaves for page cache, or all page cache of the
    /// group, of the files or of the machine.
    pub curve: SizeCurve,
    /// The time that was counted.
    pub counted: Duration,
    /// The number of pages that each page of the sample stands for.
    pub weight: u64,
    /// Events without room.
    pub lost: u64,
    /// Faults that mapped pages of the page cache, as a share of all accesses that were seen.
    pub mapped_share: f64,
    /// The memory cgroup of the processes.
    pub group: Option<MemoryCgroup>,
    /// Whether all processes ended before the time was over.
    pub has_ended: bool,
    /// Whether this kernel uses the multi-generational LRU, which is not simulated.
    pub is_multi_generational: bool,
}

impl SizeReport {
    /// Returns the memory of the group that is no page cache of files; 0 if it is not known.
    pub fn other_memory(&self) -> u64 {
        self.group.as_ref().map_or(0, |group| group.usage.saturating_sub(file_pages(group)))
    }

    /// Returns bytes a second, given bytes of the counted time.
    pub fn a_second(&self, bytes: u64) -> f64 {
        bytes as f64 / self.counted.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Watches for `duration`, and returns the curve. `wait` sleeps for a time, and returns whether to
/// end early.
///
/// # Errors
///
/// If nothing can be seen, or nothing is read.
pub fn measure(
    scope: &SizeScope,
    duration: Duration,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> Result<SizeReport, SizeError> {
    let mut sizing = CacheSizing::start(scope)?;
    let began = Instant::now();
    while !sizing.has_ended && !wait(DRAIN_INTERVAL) && began.elapsed() < duration {
        sizing.tick()?;
        if sizing.counting_since.is_none() && began.elapsed() >= duration / 2 {
            sizing.begin_counting()?;
        }
    }
    sizing.finish(began.elapsed())
}

struct CacheSizing<'a> {
    scope: &'a SizeScope,
    roots: SysRoots,
    samples: PageSamples,
    curve: MissCurve,
    group: Option<MemoryCgroup>,
    members_seen: Instant,
    counting_since: Option<(Instant, AccessCounts)>,
    has_ended: bool,
}

impl<'a> CacheSizing<'a> {
    fn start(scope: &'a SizeScope) -> Result<Self, SizeError> {
        let roots = SysRoots::default();
        let members = members(scope, &roots)?;
        let group = group_of(scope, &roots, &members)?;
        let (present, most) = present_size(scope, &roots, group.as_ref())?;
        let sample = sample_of(present);
        let samples = PageSamples::open(sample, &sample_scope(scope, &roots)?)?;
        for pid in members {
            samples.follow(pid)?;
        }
        Ok(Self {
            scope,
            roots,
            samples,
            curve: MissCurve::new(sample, present, &sizes(present, most), KEPT_PAGES_MAX),
            group,
            members_seen: Instant::now(),
            counting_since: None,
            has_ended: false,
        })
    }

    fn tick(&mut self) -> Result<(), SizeError> {
        self.drain();
        if self.members_seen.elapsed() < MEMBERS_INTERVAL {
            return Ok(());
        }
        self.members_seen = Instant::now();
        match self.scope {
            SizeScope::Processes(_) => self.has_ended = !self.samples.has_processes()?,
            SizeScope::Cgroup(_) => {
                for pid in members(self.scope, &self.roots).unwrap_or_default() {
                    self.samples.follow(pid)?;
                }
            }
            SizeScope::Directories(_) => {}
        }
        Ok(())
    }

    fn drain(&mut self) {
        let curve = &mut self.curve;
        self.samples.drain(&mut |event| curve.apply(event.file, event.pages, event.event));
    }

    fn begin_counting(&mut self) -> Result<(), SizeError> {
        self.drain();
        self.curve.begin_counting();
        self.counting_since = Some((Instant::now(), self.samples.counts()?));
        Ok(())
    }

    /// Returns the report; what was seen in all the time, `watched`, if it ended before the counting
    /// began.
    fn finish(mut self, watched: Duration) -> Result<SizeReport, SizeError> {
        let (counted, before) = match self.counting_since {
            Some((since, before)) => (since.elapsed(), before),
            None => (watched, AccessCounts::default()),
        };
        let now = self.samples.counts()?;
        self.drain();
        let (used, mapped) = (now.used - before.used, now.mapped - before.mapped);
        let mut curve = self.curve.curve(used).ok_or(SizeError::NoAccess(watched))?;
        let members = members(self.scope, &self.roots).unwrap_or_default();
        if let Some(group) = group_of(self.scope, &self.roots, &members)? {
            curve.present_bytes = present_size(self.scope, &self.roots, Some(&group))?.0;
            self.group = Some(group);
        }
        Ok(SizeReport {
            curve,
            counted,
            weight: self.curve.weight(),
            lost: self.samples.lost()?,
            mapped_share: mapped as f64 / (used + mapped).max(1) as f64,
            group: self.group,
            has_ended: self.has_ended,
            is_multi_generational: is_multi_generational(),
        })
    }
}

/// Returns the sample of a page cache of this size.
fn sample_of(present: u64) -> PageSample {
    let share = present / pagekeeper_kernel::page_size() / SAMPLED_PAGES;
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
                let place = MemoryPlace::among(roots, *pid, &mounts).ok().flatten();
                place.is_some_and(|place| place.directory.starts_with(path) || place.group.starts_with(path))
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

/// Returns the memory cgroup of the scope.
fn group_of(scope: &SizeScope, roots: &SysRoots, members: &[u32]) -> Result<Option<MemoryCgroup>, SizeError> {
    let Some(member) = members.first() else { return Ok(None) };
    match scope {
        SizeScope::Cgroup(path) => {
            let Some(place) = MemoryPlace::of(roots, *member)? else { return Ok(None) };
            let named = place.directory.starts_with(path).then(|| path.clone());
            let levels = place.group.strip_prefix(path).map_or(0, |rest| rest.components().count());
            let above = place.directory.ancestors().nth(levels).map(PathBuf::from);
            let Some(directory) = named.or(above) else { return Ok(None) };
            Ok(Some(HeldGroup::open(place.version, &directory)?.figures()?))
        }
        _ => Ok(MemoryCgroup::of(roots, *member)?.filter(has_limit)),
    }
}

/// Returns whether a group can have a limit: the root of version 1 has figures, but none of its own.
fn has_limit(group: &MemoryCgroup) -> bool {
    let above = group.directory.parent();
    group.version == CgroupVersion::V2
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
) -> Result<(u64, u64), SizeError> {
    let machine = MemInfo::read(roots)?;
    let present = match (scope, group) {
        (SizeScope::Directories(directories), _) => resident_bytes(directories),
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

/// Returns the bytes of files below directories that are resident.
fn resident_bytes(directories: &[PathBuf]) -> u64 {
    let resident = AtomicU64::new(0);
    walk(directories, &WalkOptions::default(), &|visited| {
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
    fn what_is_not_there_is_said() {
        let mut never = |_| true;
        let gone = measure(&SizeScope::Processes(vec![u32::MAX]), Duration::ZERO, &mut never).unwrap_err();
        assert_eq!(gone.to_string(), format!("there is no process {}", u32::MAX));
        let none = measure(&SizeScope::Cgroup("/no/such".into()), Duration::ZERO, &mut never).unwrap_err();
        assert_eq!(none.to_string(), "no process is in the memory cgroup /no/such");
        let own = members(&SizeScope::Processes(vec![std::process::id()]), &SysRoots::default()).unwrap();
        assert!(own.contains(&std::process::id()));
    }
}
