//! The share of each disk that streams leave to others, and the turns of streams that read.
//!
//! Invariants: a process is held only while others wait for a disk that it reads from, for at most
//! [`READ_HOLD_MAX_NS`] at a time. Without permission to count requests no reader is held, and
//! writers learn of others from their own pieces.
//!
//! [`READ_HOLD_MAX_NS`]: pagekeeper_policy::read_pace::READ_HOLD_MAX_NS

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::{disk_of, has_disks_below};
use pagekeeper_policy::disk_contention::{DiskContention, OthersRequests, YieldShare};
use pagekeeper_policy::pacer::{OtherUsers, nanoseconds};
use pagekeeper_policy::read_pace::ReadDuty;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_trace::disk_use::{DiskRequests, DiskUse, DiskWindow};
use pagekeeper_trace::page_events::{EventFile, PageEvents};

use crate::limits::{LOOK_IDLE, READER_IDLE_MAX, STEP_INTERVAL};

/// What streams know of others on one disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OthersOnDisk {
    pub(crate) share: YieldShare,
    pub(crate) users: OtherUsers,
}

impl OthersOnDisk {
    fn is_quiet(self) -> bool {
        self.share.is_none() && self.users != OtherUsers::Unknown
    }
}

/// The disk that a file system's device is, or is on.
#[derive(Debug, Clone, Copy)]
struct DiskPlace {
    disk: u64,
    /// Whether the disk lies on others.
    is_stacked: bool,
}

#[derive(Default)]
struct KnownDisks {
    /// What is known of others on each disk.
    others: HashMap<u64, OthersOnDisk>,
    /// Whether requests are counted: the last look at the counts succeeded.
    is_counted: bool,
    /// The place of each device, read once: each written part needs it. `None` if it is not known.
    places: HashMap<u64, Option<DiskPlace>>,
}

impl KnownDisks {
    fn place(&mut self, device: u64) -> Option<DiskPlace> {
        let read = || {
            let sys = Path::new("/sys");
            let disk = disk_of(sys, device)?;
            Some(DiskPlace { disk, is_stacked: has_disks_below(sys, device) })
        };
        *self.places.entry(device).or_insert_with(read)
    }

    fn all(&self, is_so: impl Fn(&OthersOnDisk) -> bool) -> bool {
        self.others.values().all(is_so)
    }

    /// Returns the share for the disk that a file system's device is, or is on; none if that is not
    /// known.
    fn share(&mut self, device: u64) -> YieldShare {
        if self.all(|others| others.share.is_none()) {
            return YieldShare::NONE;
        }
        self.place(device).map_or(YieldShare::NONE, |place| self.on(place).share)
    }

    /// Returns what is known of others on the disk of a file. If that disk lies on others, or is not
    /// known, as for btrfs, those on any disk count. Requests to a server are not known.
    fn users(&mut self, file: &EventFile) -> OtherUsers {
        if !self.is_counted {
            return OtherUsers::Unknown;
        }
        match self.place(file.dev) {
            Some(place) if !place.is_stacked => self.on(place).users,
            None if file.subvolume.is_none() => OtherUsers::Unknown,
            _ if self.all(|others| others.users == OtherUsers::None) => OtherUsers::None,
            _ if self.all(|others| others.is_quiet()) => OtherUsers::Few,
            _ => OtherUsers::Unknown,
        }
    }

    /// Returns what is known of others on a disk; nobody has used one that is not listed.
    fn on(&self, place: DiskPlace) -> OthersOnDisk {
        let unused = OthersOnDisk { share: YieldShare::NONE, users: OtherUsers::None };
        self.others.get(&place.disk).copied().unwrap_or(unused)
    }
}

/// The share of each disk's time that is left to others.
#[derive(Clone, Default)]
pub(crate) struct DiskShares(Arc<Mutex<KnownDisks>>);

impl DiskShares {
    /// Returns what is known of others on the disk of a file.
    pub(crate) fn others(&self, file: &EventFile) -> OthersOnDisk {
        let mut known = lock(&self.0);
        OthersOnDisk { share: known.share(file.dev), users: known.users(file) }
    }

    /// Returns the disk of a device.
    fn disk_of(&self, device: u64) -> Option<u64> {
        lock(&self.0).place(device).map(|place| place.disk)
    }

    /// Records whether requests are counted from now on.
    fn set_counted(&self, is_counted: bool) {
        lock(&self.0).is_counted = is_counted;
    }

    fn set(&self, disk: u64, others: OthersOnDisk) {
        lock(&self.0).others.insert(disk, others);
    }
}

/// The state of one disk.
#[derive(Default)]
struct Disk {
    contention: DiskContention,
    duty: ReadDuty,
    /// Followed processes that read from it, and when each last did.
    readers: BTreeMap<u32, Duration>,
}

/// The requests of others on all disks, and the disks that followed processes read from.
pub(crate) struct DiskTurns {
    source: DiskUse,
    shares: DiskShares,
    pace: StreamPace,
    disks: HashMap<u64, Disk>,
    last_look: Duration,
    /// Whether followed processes read, or others are active.
    is_active: bool,
    held: BTreeSet<u32>,
    /// Bytes of pages that followed processes added, minus those that they wrote to, by process and
    /// device since the last look.
    read: HashMap<(u32, u64), i64>,
}

impl DiskTurns {
    /// Returns `None` if requests can't be counted.
    pub(crate) fn new(events: &PageEvents, shares: DiskShares, pace: StreamPace) -> Option<Self> {
        let source = DiskUse::open(events).ok()?;
        shares.set_counted(true);
        Some(Self {
            source,
            shares,
            pace,
            disks: HashMap::new(),
            last_look: Duration::ZERO,
            is_active: false,
            held: BTreeSet::new(),
            read: HashMap::new(),
        })
    }

    /// Records that a followed process added pages of a device: requests delayed by a throttle do
    /// not show their process.
    pub(crate) fn added(&mut self, process: u32, device: u64, bytes: u64) {
        let read = self.read.entry((process, device)).or_default();
        *read = read.saturating_add_unsigned(bytes);
    }

    /// Records that a followed process wrote to clean pages, new ones or not.
    pub(crate) fn dirtied(&mut self, process: u32, device: u64, bytes: u64) {
        let read = self.read.entry((process, device)).or_default();
        *read = read.saturating_sub_unsigned(bytes);
    }

    /// Returns when the next look is due.
    pub(crate) fn next_look(&self) -> Duration {
        self.last_look + if self.is_active { STEP_INTERVAL } else { LOOK_IDLE }
    }

    /// Samples the disks, if that is due. Returns the processes that are to be held now.
    pub(crate) fn look(&mut self, now: Duration) -> &BTreeSet<u32> {
        if now >= self.next_look() {
            if let Ok(window) = self.source.take() {
                self.shares.set_counted(true);
                self.take_in(&window, now);
            } else {
                self.held.clear();
                self.shares.set_counted(false);
            }
        }
        &self.held
    }

    fn take_in(&mut self, window: &DiskWindow, now: Duration) {
        let since = nanoseconds(now.saturating_sub(std::mem::replace(&mut self.last_look, now)));
        for (disk, requests) in &window.others {
            let known = self.disks.entry(*disk).or_default();
            known.contention.others(seen(requests, since));
            let share = left_by(self.pace, known.contention.output_share());
            let users = match known.contention.is_unused() {
                _ if window.lost > 0 => OtherUsers::Unknown,
                true => OtherUsers::None,
                false => OtherUsers::Few,
            };
            self.shares.set(*disk, OthersOnDisk { share, users });
        }
        let added = std::mem::take(&mut self.read).into_iter().filter(|(_, bytes)| *bytes > 0);
        let mut readers: Vec<(u32, u64)> = window.reads.keys().copied().collect();
        for ((process, device), _) in added {
            readers.extend(self.shares.disk_of(device).map(|disk| (process, disk)));
        }
        self.is_active = !readers.is_empty();
        for (process, disk) in readers {
            self.disks.entry(disk).or_default().readers.insert(process, now);
        }
        self.held.clear();
        for disk in self.disks.values_mut() {
            disk.readers.retain(|_, last| now.saturating_sub(*last) < READER_IDLE_MAX);
            let share = left_by(self.pace, disk.contention.share());
            self.is_active |= !share.is_none();
            let of_readers = if disk.readers.is_empty() { YieldShare::NONE } else { share };
            if disk.duty.step(of_readers, nanoseconds(now)).is_some() {
                self.held.extend(disk.readers.keys());
            }
        }
    }
}

/// Returns the share that a stream of this pace leaves to others who need `needed`.
fn left_by(pace: StreamPace, needed: YieldShare) -> YieldShare {
    if pace == StreamPace::Idle && !needed.is_none() { YieldShare::MAX } else { needed }
}

/// Returns the requests that others wait for.
pub(crate) fn seen(requests: &DiskRequests, ns: u64) -> OthersRequests {
    let waited_for = requests.waited_for();
    OthersRequests {
        ns,
        begun: waited_for.begun,
        done: waited_for.done,
        waited_ns: nanoseconds(waited_for.waited),
    }
}
