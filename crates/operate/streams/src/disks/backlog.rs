//! The backlog of each device: bytes that followed programs have written and that are not on disk,
//! and the writers to hold because of it.
//!
//! Invariant: a device's sum is that of its files' unwritten pages.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pagekeeper_policy::stream_hold::{DeviceHolds, WriterLimits};
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_trace::page_events::EventFile;

use crate::disks::hold::{HoldTarget, HoldWish, WRITER_WISH_AGE_MAX};

/// A device's output is written at once beyond 1/`PRESSED_PART` of the bytes that may be unwritten,
/// and beyond `PRESSED_MAX` bytes. Below that it waits: a short-lived file may never have to be
/// written.
const PRESSED_PART: u64 = 4;
const PRESSED_MAX: u64 = 8 << 20;
/// A decision that is later than this counts as late.
const LATE_MAX: Duration = Duration::from_millis(2);

/// The backlog of one device.
#[derive(Default)]
struct DeviceBacklog {
    holds: DeviceHolds,
    /// Files with unwritten pages for which no write was requested.
    files: HashSet<EventFile>,
}

impl DeviceBacklog {
    fn is_pressed(&self, bound: u64) -> bool {
        self.holds.unwritten() > (bound / PRESSED_PART).min(PRESSED_MAX)
    }
}

/// All devices.
pub(crate) struct Backlogs {
    pace: StreamPace,
    devices: HashMap<u64, DeviceBacklog>,
    /// The identity by which each writing process is held; `None` for one that is never held.
    targets: HashMap<u32, Option<HoldTarget>>,
    /// The time at which [`Self::decide`] is to be called again.
    pub(crate) again_at: Option<Duration>,
}

impl Backlogs {
    pub(crate) fn new(pace: StreamPace) -> Self {
        Self { pace, devices: HashMap::new(), targets: HashMap::new(), again_at: None }
    }

    /// Records that a process dirtied clean pages. `target` is called once for each process.
    pub(crate) fn dirtied(
        &mut self,
        dev: u64,
        pid: u32,
        bytes: u64,
        now: Duration,
        target: impl FnOnce() -> Option<HoldTarget>,
    ) {
        self.targets.entry(pid).or_insert_with(target);
        self.devices.entry(dev).or_default().holds.dirtied(pid, bytes, now);
    }

    /// Records that a file has unwritten pages for which no write was requested.
    pub(crate) fn wait(&mut self, name: EventFile) {
        self.devices.entry(name.dev).or_default().files.insert(name);
    }

    /// Forgets a file that is no longer kept.
    pub(crate) fn forget_file(&mut self, name: &EventFile) {
        if let Some(device) = self.devices.get_mut(&name.dev) {
            device.files.remove(name);
        }
    }

    /// Records that bytes are no longer unwritten, or no longer counted.
    pub(crate) fn written(&mut self, dev: u64, bytes: u64, now: Duration) {
        if let Some(device) = self.devices.get_mut(&dev) {
            device.holds.written(bytes, now);
        }
    }

    /// Forgets a process that has ended, or has become another program.
    pub(crate) fn forget(&mut self, pid: u32) {
        if self.targets.remove(&pid).is_some() {
            self.devices.values_mut().for_each(|device| device.holds.ended(pid));
        }
    }

    /// Returns whether so much of a device with this bound is unwritten that its files are to be
    /// written at once.
    pub(crate) fn is_pressed(&self, dev: u64, bound: u64) -> bool {
        self.devices.get(&dev).is_some_and(|device| device.is_pressed(bound))
    }

    /// Takes the files that are to be written at once.
    pub(crate) fn pressed_files(&mut self, bound: impl Fn(u64) -> u64) -> Vec<EventFile> {
        let mut files = Vec::new();
        for (dev, device) in &mut self.devices {
            if device.is_pressed(bound(*dev)) {
                files.extend(device.files.drain());
            }
        }
        files
    }

    /// Returns the processes that are to be held, and when.
    pub(crate) fn decide(&mut self, bound: impl Fn(u64) -> u64, now: Duration) -> Vec<HoldWish> {
        self.again_at = None;
        let mut wishes = Vec::new();
        for (dev, device) in &mut self.devices {
            let unwritten = (self.pace != StreamPace::Off).then(|| bound(*dev));
            let rate = if let StreamPace::BytesPerSecond(rate) = self.pace { Some(rate) } else { None };
            let decision = device.holds.decide(WriterLimits { unwritten, rate }, now);
            let late = decision.late_at.saturating_sub(now) + LATE_MAX;
            for (pids, after) in [(decision.held, Duration::ZERO), (decision.held_if_late, late)] {
                let targets = pids.iter().filter_map(|pid| *self.targets.get(pid)?);
                wishes.extend(targets.map(|target| HoldWish { target, after, lasts: WRITER_WISH_AGE_MAX }));
            }
            self.again_at = self.again_at.into_iter().chain(decision.again_at).min();
        }
        self.devices.retain(|_, device| !device.holds.is_idle() || !device.files.is_empty());
        wishes
    }
}
