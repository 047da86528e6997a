//! The second best source: counts the lines that a private instance of the kernel's tracing writes,
//! one for each event.
//!
//! Invariants: filters in the kernel choose the events. The buffer has to hold them between two
//! readings; events that do not fit are counted as lost. One reading reads at most four buffers'
//! worth of text, so it ends even if events come faster than they are read. Fails if the kernel
//! refuses the instance.

use std::collections::HashMap;
use std::fs::File;
use std::time::Duration;

use super::event::TracepointKind;
use super::instance::{TraceInstance, read_some};
use super::lines::{EventDetails, LineEvent, PauseDetails, TraceLine, parse};
use super::options::TracepointSet;
use super::period_sums::{LevelSums, PauseSums, PeriodSums, RequestSums, StallSums};
use super::programs::KernelFilter;
use super::tracefs::Tracefs;
use super::{
    BlockOp, DurationStats, PageFlow, PageTotals, ReclaimKind, TaskIdentity, TraceError, TraceOptions,
};
use pagekeeper_kernel::page_size;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::unescaped_bytes;

/// The name the kernel gives to a task whose name it has forgotten.
const FORGOTTEN_TASK_NAME: &[u8] = b"<...>";

/// A request to a device that has not completed.
#[derive(Debug)]
struct PendingRequest {
    begun: Duration,
    sectors: u64,
    op: BlockOp,
}

/// Tracing by a private instance.
#[derive(Debug)]
pub(super) struct PipeSource {
    // Closed first: the instance can't be removed while it is open.
    pipe: File,
    _instance: TraceInstance,
    counter: LineCounter,
    /// Maximum bytes that one reading reads.
    max_read: u64,
}

impl PipeSource {
    pub(super) fn start(
        options: &TraceOptions,
        tracefs: &Tracefs,
        points: &TracepointSet,
        filter: &KernelFilter,
    ) -> Result<Self, TraceError> {
        let (instance, pipe) = TraceInstance::create(tracefs, &options.roots.proc)?;
        instance.prepare(options.buffer_bytes)?;
        for point in points.there.iter().rev() {
            instance.enable(point.event, event_filter(point.event, filter).as_deref())?;
        }
        let entries = (options.entries as usize).max(1024);
        let counter = LineCounter {
            proc: options.roots.proc.clone(),
            entries,
            rest: Vec::new(),
            stalls: HashMap::new(),
            flights: HashMap::new(),
            processes: HashMap::new(),
        };
        Ok(Self {
            pipe,
            _instance: instance,
            counter,
            max_read: options.buffer_bytes.max(1 << 20).saturating_mul(4),
        })
    }

    /// Adds the lines since the last reading.
    pub(super) fn read(&mut self, sums: &mut PeriodSums) -> Result<(), TraceError> {
        let mut buffer = vec![0; 64 * 1024];
        let mut done = 0_u64;
        while done < self.max_read {
            let read = read_some(&mut self.pipe, &mut buffer).map_err(|error| TraceError::Call {
                call: "read",
                what: "trace_pipe".into(),
                source: error,
            })?;
            if read == 0 {
                break;
            }
            done += read as u64;
            self.counter.count_text(&buffer[..read], sums);
        }
        self.counter.processes.clear();
        Ok(())
    }
}

/// Returns the kernel's filter for an event.
fn event_filter(event: TracepointKind, filter: &KernelFilter) -> Option<String> {
    let any = |terms: Vec<String>| {
        // Without files there are no events: a device number that no file system has.
        if terms.is_empty() { "s_dev == 4294967295".to_owned() } else { terms.join(" || ") }
    };
    match (event, filter) {
        (TracepointKind::Add | TracepointKind::Delete, KernelFilter::Devices(devices)) => {
            Some(any(devices.iter().map(|dev| format!("s_dev == {dev}")).collect()))
        }
        (TracepointKind::Add | TracepointKind::Delete, KernelFilter::Files(files)) => {
            let term =
                |file: &pagekeeper_kernel::Inode| format!("(s_dev == {} && i_ino == {})", file.dev, file.ino);
            Some(any(files.iter().map(term).collect()))
        }
        (TracepointKind::Pause, _) => Some("pause > 0".to_owned()),
        _ => None,
    }
}

/// Counts lines.
#[derive(Debug)]
struct LineCounter {
    proc: ProcRoot,
    entries: usize,
    /// The beginning of a line whose end was not read yet.
    rest: Vec<u8>,
    /// The beginnings of stalls that have not ended.
    stalls: HashMap<(u32, ReclaimKind), Duration>,
    flights: HashMap<(u64, u64), PendingRequest>,
    /// The processes of threads, as found in this reading.
    processes: HashMap<u32, Option<TaskIdentity>>,
}

impl LineCounter {
    fn count_text(&mut self, text: &[u8], sums: &mut PeriodSums) {
        let mut rest = std::mem::take(&mut self.rest);
        for part in text.split_inclusive(|byte| *byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(end) if rest.is_empty() => self.count_line(end, sums),
                Some(end) => {
                    rest.extend_from_slice(end);
                    self.count_line(&rest, sums);
                    rest.clear();
                }
                None => rest.extend_from_slice(part),
            }
        }
        self.rest = rest;
    }

    fn count_line(&mut self, line: &[u8], sums: &mut PeriodSums) {
        match parse(line) {
            Some(TraceLine::Event(record)) => self.count_event(&record, sums),
            Some(TraceLine::Lost(events)) => sums.losses.overrun += events,
            None if line.is_empty() => {}
            None => sums.losses.unread += 1,
        }
    }

    /// Returns the task of a line. Details that the line lacks come from `/proc`, where the task
    /// may have ended.
    fn find_task(&mut self, record: &LineEvent<'_>) -> TaskIdentity {
        let proc = &self.proc;
        let known = self.processes.entry(record.thread).or_insert_with(|| read_task(proc, record.thread));
        let name = unescaped_bytes(record.name).into_owned();
        match known {
            Some(known) if record.name == FORGOTTEN_TASK_NAME => known.clone(),
            Some(known) => TaskIdentity { name, ..*known },
            None => TaskIdentity { process: record.thread, thread: record.thread, name },
        }
    }

    fn count_event(&mut self, record: &LineEvent<'_>, sums: &mut PeriodSums) {
        match &record.what {
            EventDetails::Added { file, pages } => {
                let flow = PageFlow { added: totals(*pages), ..PageFlow::default() };
                sums.add_pages(*file, Some(self.find_task(record)), &flow);
            }
            EventDetails::Removed { file, pages } => {
                let flow = PageFlow { removed: totals(*pages), ..PageFlow::default() };
                sums.add_pages(*file, Some(self.find_task(record)), &flow);
            }
            EventDetails::Throttled(pause) => {
                if let Some(length) = pause.length {
                    sums.add_pauses(
                        self.find_task(record),
                        pause.device.to_owned(),
                        &single_pause(pause, length),
                    );
                }
            }
            EventDetails::ReclaimBegan(kind) => {
                if self.stalls.len() < self.entries {
                    self.stalls.insert((record.thread, *kind), record.at);
                } else {
                    sums.losses.no_room += 1;
                }
            }
            EventDetails::ReclaimEnded { kind, pages } => {
                // The stall may have begun before tracing did.
                if let Some(begun) = self.stalls.remove(&(record.thread, *kind)) {
                    let reclaimed = pages.saturating_mul(page_size());
                    let stalls =
                        StallSums { lengths: single_duration(record.at.saturating_sub(begun)), reclaimed };
                    sums.add_reclaim(self.find_task(record), *kind, &stalls);
                }
            }
            EventDetails::Issued { dev, sector, sectors, op } => {
                if self.flights.len() < self.entries {
                    let flight = PendingRequest { begun: record.at, sectors: *sectors, op: *op };
                    self.flights.insert((*dev, *sector), flight);
                } else {
                    sums.losses.no_room += 1;
                }
            }
            EventDetails::Completed { dev, sector } => {
                if let Some(flight) = self.flights.remove(&(*dev, *sector)) {
                    let latency = single_duration(record.at.saturating_sub(flight.begun));
                    let requests = RequestSums { latency, bytes: flight.sectors.saturating_mul(512) };
                    sums.add_block(*dev, flight.op, &requests);
                }
            }
        }
    }
}

fn single_duration(length: Duration) -> DurationStats {
    let mut durations = DurationStats::default();
    durations.add(length);
    durations
}

fn totals(pages: u64) -> PageTotals {
    PageTotals { folios: 1, bytes: pages.saturating_mul(page_size()) }
}

fn single_pause(pause: &PauseDetails<'_>, length: Duration) -> PauseSums {
    PauseSums {
        lengths: single_duration(length),
        waits: u64::from(pause.paused.is_zero()),
        longest_wait: pause.paused + length,
        levels: LevelSums {
            dirty: pause.dirty,
            setpoint: pause.setpoint,
            limit: pause.limit,
            device_dirty: pause.device_dirty,
            device_setpoint: pause.device_setpoint,
        },
    }
}

/// Returns the process of a thread, and its present name.
fn read_task(proc: &ProcRoot, thread: u32) -> Option<TaskIdentity> {
    let status = std::fs::read(proc.path().join(format!("{thread}/status"))).ok()?;
    let status = unescaped_bytes(&status);
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    Some(TaskIdentity { process: line("Tgid:")?.parse().ok()?, thread, name: line("Name:")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::Inode;

    fn counter() -> LineCounter {
        let nowhere = tempfile::tempdir().unwrap();
        LineCounter {
            proc: ProcRoot::at(nowhere.path()),
            entries: 2,
            rest: Vec::new(),
            stalls: HashMap::new(),
            flights: HashMap::new(),
            processes: HashMap::new(),
        }
    }

    fn line(thread: u32, at: &str, what: &str) -> String {
        format!("{:>16}-{thread:<7} [000] ..... {at}: {what}\n", "task")
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let page = "mm_filemap_add_to_page_cache: dev 8:0 ino 1f pfn=0x1 ofs=0 order=1";
        let text = line(7, "1.0", page) + "CPU:0 [LOST 5 EVENTS]\n" + &line(7, "1.1", page) + "rubbish\n";
        for pieces in [1, 3, 7, 1000] {
            let (mut counter, mut sums) = (counter(), PeriodSums::new(10));
            text.as_bytes().chunks(pieces).for_each(|piece| counter.count_text(piece, &mut sums));
            let counts = sums.page_counts();
            assert_eq!(counts[0].file, Inode { dev: rustix::fs::makedev(8, 0), ino: 0x1f });
            assert_eq!(counts[0].flow.added, PageTotals { folios: 2, bytes: 4 * page_size() });
            assert_eq!((sums.losses.overrun, sums.losses.unread), (5, 1), "pieces of {pieces}");
        }
    }

    #[test]
    fn beginnings_and_ends_belong_together_by_task_and_by_sector() {
        let (mut counter, mut sums) = (counter(), PeriodSums::new(10));
        let text = line(1, "1.000000", "mm_vmscan_direct_reclaim_begin: order=0 gfp_flags=GFP_NOFS")
            + &line(2, "1.000100", "mm_vmscan_memcg_reclaim_begin: order=0 gfp_flags=GFP_NOFS")
            + &line(2, "1.000300", "mm_vmscan_memcg_reclaim_end: nr_reclaimed=32")
            + &line(1, "1.500000", "mm_vmscan_direct_reclaim_end: nr_reclaimed=1")
            + &line(3, "1.500000", "mm_vmscan_direct_reclaim_end: nr_reclaimed=9")
            + &line(1, "2.000000", "block_rq_issue: 8,0 WS 4096 () 77 + 8 none,0,0 [a]")
            + &line(0, "2.000000", "block_rq_complete: 8,1 WS () 77 + 8 none,0,0 [0]")
            + &line(0, "2.000250", "block_rq_complete: 8,0 WS () 77 + 8 none,0,0 [0]");
        counter.count_text(text.as_bytes(), &mut sums);
        let stalls = sums.reclaim_counts();
        let seen: Vec<_> =
            stalls.iter().map(|one| (one.task.thread, one.kind, one.stalls.total(), one.reclaimed)).collect();
        assert_eq!(
            seen,
            [
                (1, ReclaimKind::Machine, Duration::from_millis(500), page_size()),
                (2, ReclaimKind::Group, Duration::from_micros(200), 32 * page_size()),
            ]
        );
        let block = sums.block_counts();
        assert_eq!((block.len(), block[0].op, block[0].bytes), (1, BlockOp::Write, 4096));
        assert_eq!(block[0].latency.total(), Duration::from_micros(250));
        assert_eq!(sums.losses.total(), 0);
    }

    #[test]
    fn a_task_is_looked_up_where_the_line_does_not_name_it() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("12")).unwrap();
        std::fs::write(tree.path().join("12/status"), "Name:\tmysqld\nTgid:\t10\n").unwrap();
        let mut counter = LineCounter { proc: ProcRoot::at(tree.path()), ..counter() };
        let mut task = |name: &'static [u8], thread| {
            let what = EventDetails::ReclaimBegan(ReclaimKind::Machine);
            counter.find_task(&LineEvent { name, thread, at: Duration::ZERO, what })
        };
        assert_eq!(task(b"<...>", 12), TaskIdentity { process: 10, thread: 12, name: "mysqld".into() });
        assert_eq!(task(b"ib_log", 12), TaskIdentity { process: 10, thread: 12, name: "ib_log".into() });
        assert_eq!(task(b"gone", 13), TaskIdentity { process: 13, thread: 13, name: "gone".into() });
    }

    #[test]
    fn filters_choose_in_the_kernel() {
        let files = KernelFilter::Files(vec![Inode { dev: 5, ino: 6 }, Inode { dev: 5, ino: 7 }]);
        assert_eq!(
            event_filter(TracepointKind::Add, &files).unwrap(),
            "(s_dev == 5 && i_ino == 6) || (s_dev == 5 && i_ino == 7)"
        );
        assert_eq!(
            event_filter(TracepointKind::Delete, &KernelFilter::Devices(vec![1, 2])).unwrap(),
            "s_dev == 1 || s_dev == 2"
        );
        assert_eq!(event_filter(TracepointKind::Add, &KernelFilter::Everything), None);
        assert_eq!(event_filter(TracepointKind::Pause, &files).unwrap(), "pause > 0");
        assert_eq!(
            event_filter(TracepointKind::Add, &KernelFilter::Files(Vec::new())).unwrap(),
            "s_dev == 4294967295"
        );
    }
}
