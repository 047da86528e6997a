//! The best source: programs in the kernel that count at each tracepoint, and the tables in which
//! they count.
//!
//! Invariants: counters only grow while an entry lives, and the counts of a period are the
//! difference of two readings, so nothing is lost between readings and nothing is reset. If a table
//! is more than half full, entries that did not change between two readings are dropped. They are
//! read and deleted in one operation, so an event in between is still counted. Everything is closed
//! with the descriptors: when this value is dropped or the process ends, for whatever cause, the
//! kernel is as it was. Fails if the kernel or its verifier refuses; see [`TraceError`].

pub(crate) mod locked;
pub(crate) mod programs;
pub(crate) mod record;

use std::collections::HashMap;

use rustix::io::Errno;

use super::error::PermissionKind;
use super::event::TracepointKind;
use super::options::{TracepointGroup, TracepointSet};
use super::period_sums::PeriodSums;
use super::tracefs::Tracepoint;
use crate::bpf::programs::{CountTableFds, KernelFilter, program};
use crate::bpf::record::{
    InFlightKey, InFlightValue, LOSS_COUNTERS, PageKey, PageValue, PauseKey, PauseValue, ReadingPair,
    RequestKey, RequestValue, StallKey, StallValue,
};
use crate::sys::{BpfMap, BpfProgram, LoadError, MapKind, ProgramAttachment, ProgramKind};
use crate::{TraceError, TraceOptions};

/// The number of entries that are read with one call.
const ENTRIES_PER_LOOKUP: usize = 512;

fn failed(call: &'static str, what: &str, errno: Errno) -> TraceError {
    TraceError::of(PermissionKind::Programs, call, what, errno)
}

/// A table, and its last reading.
#[derive(Debug)]
struct CountTable {
    name: &'static str,
    map: BpfMap,
    entries: usize,
    last: HashMap<Box<[u8]>, Box<[u8]>>,
}

/// Makes an array of `count` numbers.
fn number_array(name: &'static str, count: u32) -> Result<BpfMap, TraceError> {
    BpfMap::create(MapKind::Array, name, 4, 8, count).map_err(|e| failed("bpf(MAP_CREATE)", name, e))
}

fn number_at(map: &BpfMap, index: u32) -> Result<u64, Errno> {
    let mut value = [0; 8];
    map.lookup(&index.to_ne_bytes(), &mut value)?;
    Ok(u64::from_ne_bytes(value))
}

impl CountTable {
    fn new(name: &'static str, key_size: usize, value_size: usize, entries: u32) -> Result<Self, TraceError> {
        let map = BpfMap::create(MapKind::Hash, name, key_size, value_size, entries)
            .map_err(|e| failed("bpf(MAP_CREATE)", name, e))?;
        let entries = entries as usize;
        Ok(Self { name, map, entries, last: HashMap::new() })
    }

    /// Passes on each entry that changed since the last reading. `busy` returns whether an entry
    /// may not be dropped.
    fn read(
        &mut self,
        epoch: u64,
        mut changed: impl FnMut(&ReadingPair<'_>),
        busy: impl Fn(&[u8]) -> bool,
    ) -> Result<(), TraceError> {
        let mut idle = Vec::new();
        let mut count = 0;
        let zeros = vec![0; self.map.sizes().1];
        let mut last = std::mem::take(&mut self.last);
        let result = self.for_each_entry(|key, now| {
            count += 1;
            if let Some(then) = last.get_mut(key) {
                if now == &**then {
                    if !busy(now) {
                        idle.push(Box::<[u8]>::from(key));
                    }
                } else {
                    changed(&ReadingPair { key, now, then, epoch });
                    then.copy_from_slice(now);
                }
            } else {
                changed(&ReadingPair { key, now, then: &zeros, epoch });
                last.insert(key.into(), now.into());
            }
        });
        self.last = last;
        result.map_err(|e| failed("bpf(MAP_LOOKUP)", self.name, e))?;
        if count > self.entries / 2 {
            self.drop_idle(&idle, epoch, &mut changed)
                .map_err(|e| failed("bpf(MAP_DELETE)", self.name, e))?;
        }
        Ok(())
    }

    /// Deletes entries that did not change. Passes on what they counted meanwhile.
    fn drop_idle(
        &mut self,
        idle: &[Box<[u8]>],
        epoch: u64,
        changed: &mut impl FnMut(&ReadingPair<'_>),
    ) -> Result<(), Errno> {
        let mut now = vec![0; self.map.sizes().1];
        for key in idle {
            let found = self.map.take(key, &mut now)?;
            if let (true, Some(then)) = (found, self.last.remove(key))
                && *then != *now
            {
                changed(&ReadingPair { key, now: &now, then: &then, epoch });
            }
        }
        Ok(())
    }

    /// Deletes requests that began before then, in nanoseconds of the monotonic clock. Returns
    /// their number.
    fn drop_unfinished(&self, then: u64) -> Result<u64, TraceError> {
        let mut old = Vec::new();
        self.for_each_entry(|key, value| {
            if record::begun(value) < then {
                old.push(Box::<[u8]>::from(key));
            }
        })
        .map_err(|e| failed("bpf(MAP_LOOKUP)", self.name, e))?;
        let mut value = vec![0; self.map.sizes().1];
        // Before Linux 5.14 unfinished requests stay, and count as lost once there is no room.
        Ok(old.iter().map(|key| u64::from(self.map.take(key, &mut value).unwrap_or(false))).sum())
    }

    /// Passes on each entry once.
    fn for_each_entry(&self, mut entry: impl FnMut(&[u8], &[u8])) -> Result<(), Errno> {
        let (key_size, value_size) = self.map.sizes();
        let (mut keys, mut values) =
            (vec![0; ENTRIES_PER_LOOKUP * key_size], vec![0; ENTRIES_PER_LOOKUP * value_size]);
        let mut cursor = None;
        loop {
            let (count, end) = self.map.lookup_batch(&mut cursor, &mut keys, &mut values)?;
            for (key, value) in keys.chunks(key_size).zip(values.chunks(value_size)).take(count) {
                entry(key, value);
            }
            if end {
                return Ok(());
            }
        }
    }
}

/// A request without a completion for this long, in nanoseconds, has completed unseen, or was given
/// up: disks are given 30 s for one. Linux 6.18 sometimes runs no program at the first completions,
/// and does not count these as skipped.
const REQUEST_TIMEOUT_NS: u64 = 60_000_000_000;

/// Tracing by programs in the kernel.
#[derive(Debug)]
pub(super) struct BpfSource {
    // The attachments are dropped first: no program runs while the rest is taken apart.
    attachments: Vec<ProgramAttachment>,
    programs: Vec<BpfProgram>,
    pages: Option<CountTable>,
    pauses: Option<CountTable>,
    stalls: Option<CountTable>,
    requests: Option<CountTable>,
    flights: Option<CountTable>,
    lost: BpfMap,
    last_lost: u64,
    last_skipped: u64,
    epoch: BpfMap,
    epoch_now: u64,
}

impl BpfSource {
    pub(super) fn start(
        options: &TraceOptions,
        points: &TracepointSet,
        filter: &KernelFilter,
    ) -> Result<Self, TraceError> {
        let lesser = options.entries_of_time();
        let table = |kind, name, key, value, entries| {
            points.has(kind).then(|| CountTable::new(name, key, value, entries)).transpose()
        };
        let mut source = Self {
            attachments: Vec::new(),
            programs: Vec::new(),
            pages: table(
                TracepointGroup::Pages,
                "pk_pages",
                size_of::<PageKey>(),
                size_of::<PageValue>(),
                options.entries.max(1),
            )?,
            pauses: table(
                TracepointGroup::Pauses,
                "pk_pauses",
                size_of::<PauseKey>(),
                size_of::<PauseValue>(),
                lesser,
            )?,
            stalls: table(
                TracepointGroup::Reclaim,
                "pk_stalls",
                size_of::<StallKey>(),
                size_of::<StallValue>(),
                lesser,
            )?,
            requests: table(
                TracepointGroup::Block,
                "pk_requests",
                size_of::<RequestKey>(),
                size_of::<RequestValue>(),
                lesser,
            )?,
            flights: table(
                TracepointGroup::Block,
                "pk_flights",
                size_of::<InFlightKey>(),
                size_of::<InFlightValue>(),
                options.entries.max(1024),
            )?,
            lost: number_array("pk_lost", LOSS_COUNTERS)?,
            last_lost: 0,
            last_skipped: 0,
            epoch: number_array("pk_epoch", 1)?,
            epoch_now: 0,
        };
        source.next_epoch()?;
        source.programs =
            points.there.iter().map(|point| source.load(point, filter)).collect::<Result<_, _>>()?;
        let cpu = online_cpu(options);
        // Programs for ends are attached before those for beginnings. So a request whose end is
        // seen either has its beginning, too, or is skipped.
        for (point, program) in points.there.iter().zip(&source.programs).rev() {
            let attached = program.attach(point.format.id, cpu);
            let attachment =
                attached.map_err(|error| failed(error.call, &point.event.to_string(), error.errno))?;
            source.attachments.push(attachment);
        }
        Ok(source)
    }

    fn load(&self, point: &Tracepoint, filter: &KernelFilter) -> Result<BpfProgram, TraceError> {
        let (table, flights, name) = match point.event {
            TracepointKind::Add => (&self.pages, &self.pages, "pk_page_add"),
            TracepointKind::Delete => (&self.pages, &self.pages, "pk_page_delete"),
            TracepointKind::Pause => (&self.pauses, &self.pauses, "pk_pause"),
            TracepointKind::ReclaimBegin => (&self.stalls, &self.stalls, "pk_stall_begin"),
            TracepointKind::ReclaimEnd => (&self.stalls, &self.stalls, "pk_stall_end"),
            TracepointKind::GroupReclaimBegin => (&self.stalls, &self.stalls, "pk_group_begin"),
            TracepointKind::GroupReclaimEnd => (&self.stalls, &self.stalls, "pk_group_end"),
            TracepointKind::Issue => (&self.requests, &self.flights, "pk_issue"),
            TracepointKind::Complete => (&self.requests, &self.flights, "pk_complete"),
        };
        let fd = |table: &Option<CountTable>| table.as_ref().map_or(-1, |table| table.map.raw_fd());
        let tables = CountTableFds {
            entries: fd(table),
            flights: fd(flights),
            lost: self.lost.raw_fd(),
            epoch: self.epoch.raw_fd(),
        };
        let code = program(point, tables, filter)?;
        BpfProgram::load(ProgramKind::Tracepoint, name, &code).map_err(|LoadError { errno, log }| {
            if log.is_empty() {
                failed("bpf(PROG_LOAD)", name, errno)
            } else {
                TraceError::Rejected { program: name.into(), log, source: errno.into() }
            }
        })
    }

    /// Begins a new epoch. Returns the one that ended.
    fn next_epoch(&mut self) -> Result<u64, TraceError> {
        let ended = self.epoch_now;
        self.epoch
            .update(&0_u32.to_ne_bytes(), &(ended + 1).to_ne_bytes())
            .map_err(|e| failed("bpf(MAP_UPDATE)", "pk_epoch", e))?;
        self.epoch_now = ended + 1;
        Ok(ended)
    }

    /// Adds the counts since the last reading.
    pub(super) fn read(&mut self, sums: &mut PeriodSums) -> Result<(), TraceError> {
        let epoch = self.next_epoch()?;
        if let Some(table) = &mut self.pages {
            let add = |readings: &ReadingPair<'_>| {
                let (file, task, flow) = readings.pages();
                sums.add_pages(file, Some(task), &flow);
            };
            table.read(epoch, add, |_| false)?;
        }
        if let Some(table) = &mut self.pauses {
            let add = |readings: &ReadingPair<'_>| {
                let (task, device, pauses) = readings.pauses();
                sums.add_pauses(task, device, &pauses);
            };
            table.read(epoch, add, |_| false)?;
        }
        if let Some(table) = &mut self.stalls {
            let add = |readings: &ReadingPair<'_>| {
                let (task, kind, stalls) = readings.stalls();
                // An entry may have changed only because a stall began.
                if stalls.lengths.count() > 0 {
                    sums.add_reclaim(task, kind, &stalls);
                }
            };
            table.read(epoch, add, record::stalled)?;
        }
        if let Some(table) = &mut self.requests {
            let add = |readings: &ReadingPair<'_>| {
                let (dev, op, requests) = readings.requests();
                sums.add_block(dev, op, &requests);
            };
            table.read(epoch, add, |_| false)?;
        }
        if let Some(table) = &self.flights {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let now = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000
                + u64::try_from(now.tv_nsec).unwrap_or(0);
            sums.losses.skipped += table.drop_unfinished(now.saturating_sub(REQUEST_TIMEOUT_NS))?;
        }
        self.read_losses(sums)
    }

    fn read_losses(&mut self, sums: &mut PeriodSums) -> Result<(), TraceError> {
        let mut lost = 0;
        for index in 0..LOSS_COUNTERS {
            lost += number_at(&self.lost, index).map_err(|e| failed("bpf(MAP_LOOKUP)", "pk_lost", e))?;
        }
        sums.losses.no_room += lost.saturating_sub(self.last_lost);
        self.last_lost = lost;
        // Not every kernel counts this, and not everybody may read it.
        let skipped = self.programs.iter().map(|program| program.skipped().unwrap_or(0)).sum::<u64>();
        sums.losses.skipped += skipped.saturating_sub(self.last_skipped);
        self.last_skipped = skipped;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn drop_unfinished(&self, then: u64) -> Result<u64, TraceError> {
        self.flights.as_ref().map_or(Ok(0), |table| table.drop_unfinished(then))
    }

    /// Adds a request of no disk to the requests in flight.
    #[cfg(test)]
    pub(super) fn begin_request(&self, begun: u64) {
        let map = &self.flights.as_ref().unwrap().map;
        let (mut key, mut value) = (vec![0; map.sizes().0], vec![0; map.sizes().1]);
        key.fill(0xff);
        value[..8].copy_from_slice(&begun.to_ne_bytes());
        map.update(&key, &value).unwrap();
    }

    #[cfg(test)]
    pub(super) fn program_ids(&self) -> Vec<u32> {
        self.programs.iter().map(|program| program.id().unwrap()).collect()
    }
}

/// Returns a processor that is online: the first one named (`0-3,5`).
fn online_cpu(options: &TraceOptions) -> u32 {
    let online = std::fs::read_to_string(options.roots.sys.join("devices/system/cpu/online"));
    let first = online.ok().and_then(|text| text.split(['-', ',', '\n']).next()?.parse().ok());
    first.unwrap_or(0)
}
