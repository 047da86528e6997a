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
use pagekeeper_kernel::{disk_of, disks_below};
use pagekeeper_policy::disk_contention::{DiskContention, OthersRequests, YieldShare};
use pagekeeper_policy::pacer::{OtherUsers, nanoseconds};
use pagekeeper_policy::read_pace::ReadDuty;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_trace::disk_use::{DiskRequests, DiskUse, DiskWindow, RequestCounts};
use pagekeeper_trace::page_events::{EventFile, PageEvents};

use crate::limits::{LOOK_IDLE, READER_IDLE_MAX, STEP_INTERVAL};

/// What streams know of others on one disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OthersOnDisk {
    pub(crate) share: YieldShare,
    pub(crate) users: OtherUsers,
    /// Processes among the users. Kernel workers may make a stream's own requests, to the disks
    /// below its own.
    processes: OtherUsers,
}

/// The disk that a file system's device is, or is on.
#[derive(Debug)]
struct DiskPlace {
    disk: u64,
    /// The disks that the disk lies on; `None` if they are not known.
    below: Option<BTreeSet<u64>>,
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

/// Returns the place of a device.
fn place(places: &mut HashMap<u64, Option<DiskPlace>>, device: u64) -> Option<&DiskPlace> {
    let read = || {
        let sys = Path::new("/sys");
        let disk = disk_of(sys, device)?;
        Some(DiskPlace { disk, below: disks_below(sys, disk) })
    };
    places.entry(device).or_insert_with(read).as_ref()
}

impl KnownDisks {
    /// Returns what is known of others on the disk of a file; nobody has used one that is not
    /// listed. If that disk lies on others, or is not known, as for btrfs, users of any disk count,
    /// except kernel workers on the disks below. Requests to a server are not known.
    fn of(&mut self, file: &EventFile) -> OthersOnDisk {
        let (share, none) = (YieldShare::NONE, OtherUsers::None);
        let place = place(&mut self.places, file.dev);
        let known = place.and_then(|place| self.others.get(&place.disk).copied());
        let known = known.unwrap_or(OthersOnDisk { share, users: none, processes: none });
        let below = place.and_then(|place| place.below.as_ref());
        let users = match place {
            _ if !self.is_counted => OtherUsers::Unknown,
            Some(_) if below.is_some_and(BTreeSet::is_empty) => known.users,
            None if file.subvolume.is_none() => OtherUsers::Unknown,
            _ => {
                let is_below = |disk: &u64| below.is_some_and(|below| below.contains(disk));
                let of = |(disk, others): (&u64, &OthersOnDisk)| {
                    if is_below(disk) { others.processes } else { others.users }
                };
                self.others.iter().map(of).fold(known.users, OtherUsers::min)
            }
        };
        OthersOnDisk { users, ..known }
    }
}

/// The share of each disk's time that is left to others.
#[derive(Clone, Default)]
pub(crate) struct DiskShares(Arc<Mutex<KnownDisks>>);

impl DiskShares {
    /// Returns what is known of others on the disk of a file.
    pub(crate) fn others(&self, file: &EventFile) -> OthersOnDisk {
        lock(&self.0).of(file)
    }

    /// Returns the disk of a device.
    fn disk_of(&self, device: u64) -> Option<u64> {
        place(&mut lock(&self.0).places, device).map(|place| place.disk)
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
    /// The same by the requests that processes make themselves.
    processes: DiskContention,
    duty: ReadDuty,
    /// Followed processes that read from it, and when each last did.
    readers: BTreeMap<u32, Duration>,
}

impl Disk {
    /// Records the requests of others in the last `ns` nanoseconds.
    fn hear(&mut self, requests: &DiskRequests, ns: u64) {
        self.contention.others(seen(&requests.waited_for(), ns));
        self.processes.others(seen(&requests.of_processes(), ns));
    }

    /// Returns what is known of others, where `lost` requests were not counted.
    fn others(&self, pace: StreamPace, lost: u64) -> OthersOnDisk {
        let users = |contention: &DiskContention| match contention.is_unused() {
            _ if lost > 0 || !contention.output_share().is_none() => OtherUsers::Unknown,
            true => OtherUsers::None,
            false => OtherUsers::Few,
        };
        let share = left_by(pace, self.contention.output_share());
        OthersOnDisk { share, users: users(&self.contention), processes: users(&self.processes) }
    }
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
            known.hear(requests, since);
            self.shares.set(*disk, known.others(self.pace, window.lost));
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

/// Returns the requests of others in the last `ns` nanoseconds.
pub(crate) fn seen(requests: &RequestCounts, ns: u64) -> OthersRequests {
    let waited_ns = nanoseconds(requests.waited);
    OthersRequests { ns, begun: requests.begun, done: requests.done, waited_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: u64 = 10_000_000;

    fn file(dev: u64) -> EventFile {
        EventFile { dev, ino: 1, generation: 0, subvolume: None, is_block_device: false, mapping: 0 }
    }

    /// A stream's own requests reach the disk below a loop device by workers, as the commits of
    /// some journals reach their disk.
    #[test]
    fn workers_are_others_except_on_disks_below() {
        let syncs =
            RequestCounts { begun: 20, done: 20, waited: Duration::from_millis(8), ..Default::default() };
        let of_workers = DiskRequests { workers: syncs, ..DiskRequests::default() };
        let of_processes = DiskRequests { syncs, ..DiskRequests::default() };
        let mut known = KnownDisks { is_counted: true, ..KnownDisks::default() };
        let place = |disk, below| Some(DiskPlace { disk, below });
        let on_8 = Some(BTreeSet::from([8]));
        known.places.extend([(7, place(7, on_8)), (8, place(8, Some(BTreeSet::new()))), (9, None)]);
        known.places.insert(10, place(10, None));
        let users = |known: &mut KnownDisks, dev| known.of(&file(dev)).users;
        assert_eq!(users(&mut known, 7), OtherUsers::None);

        let mut below = Disk::default();
        below.hear(&of_workers, TICK_NS);
        known.others.insert(8, below.others(StreamPace::Auto, 0));
        assert_eq!(users(&mut known, 7), OtherUsers::None);
        assert!(users(&mut known, 8) == OtherUsers::Unknown && !known.of(&file(8)).share.is_none());

        // A journal on a disk beside it commits; and the disks below some are not known.
        known.others.insert(11, below.others(StreamPace::Auto, 0));
        let btrfs = EventFile { subvolume: Some(5), ..file(9) };
        assert_eq!([7, 10].map(|dev| users(&mut known, dev)), [OtherUsers::Unknown; 2]);
        assert_eq!(known.of(&btrfs).users, OtherUsers::Unknown);
        known.others.remove(&11);
        assert_eq!(users(&mut known, 10), OtherUsers::Unknown);

        // A process waits for the disk below.
        below.hear(&of_processes, TICK_NS);
        known.others.insert(8, below.others(StreamPace::Auto, 0));
        assert_eq!(users(&mut known, 7), OtherUsers::Unknown);

        // A journal on the loop device commits.
        let mut above = Disk::default();
        above.hear(&of_workers, TICK_NS);
        known.others = HashMap::from([(7, above.others(StreamPace::Auto, 0))]);
        assert!(users(&mut known, 7) == OtherUsers::Unknown && !known.of(&file(7)).share.is_none());
        known.others = HashMap::from([(7, Disk::default().others(StreamPace::Auto, 1))]);
        assert_eq!([users(&mut known, 7), users(&mut known, 9)], [OtherUsers::Unknown; 2]);
    }
}
