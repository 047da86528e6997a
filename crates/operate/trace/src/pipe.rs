//! The second best source: counts the lines that a private instance of the kernel's tracing writes, one for
//! each event.
//!
//! Invariants: filters in the kernel choose the events. The buffer has to hold them between two readings;
//! events that do not fit are counted as lost. One reading reads at most four buffers' worth of text, so it
//! ends even if events come faster than they are read. Fails if the kernel refuses the instance.

use std::collections::HashMap;
use std::fs::File;
use std::time::Duration;

use super::event::Event;
use super::gathered::{Gathered, LevelSums, Pauses, Requests, Stalls};
use super::instance::{Instance, read_some};
use super::lines::{Line, Pause, Record, What, parse};
use super::options::Points;
use super::programs::Choice;
use super::tracefs::Tracefs;
use super::{BlockOp, Durations, PageFlow, PageTotals, ReclaimKind, Task, TraceError, TraceOptions};
use pagekeeper_kernel::page_size;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::unescaped_bytes;

/// The name the kernel gives to a task whose name it has forgotten.
const FORGOTTEN: &[u8] = b"<...>";

/// A request to a device that has not completed.
#[derive(Debug)]
struct Flight {
    begun: Duration,
    sectors: u64,
    op: BlockOp,
}

/// Tracing by a private instance.
#[derive(Debug)]
pub(super) struct PipeSource {
    // Closed first: the instance can't be removed while it is open.
    pipe: File,
    _instance: Instance,
    counter: Counter,
    /// The most bytes that one reading reads.
    max_read: u64,
}

impl PipeSource {
    pub(super) fn start(
        options: &TraceOptions,
        tracefs: &Tracefs,
        points: &Points,
        choice: &Choice,
    ) -> Result<Self, TraceError> {
        let (instance, pipe) = Instance::create(tracefs, &options.roots.proc)?;
        instance.prepare(options.buffer_bytes)?;
        for point in points.there.iter().rev() {
            instance.enable(point.event, filter(point.event, choice).as_deref())?;
        }
        let entries = (options.entries as usize).max(1024);
        let counter = Counter {
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
    pub(super) fn read(&mut self, gathered: &mut Gathered) -> Result<(), TraceError> {
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
            self.counter.text(&buffer[..read], gathered);
        }
        self.counter.processes.clear();
        Ok(())
    }
}

/// Returns the kernel's filter for an event.
fn filter(event: Event, choice: &Choice) -> Option<String> {
    let any = |terms: Vec<String>| {
        // Without files there are no events: a device number that no file system has.
        if terms.is_empty() { "s_dev == 4294967295".to_owned() } else { terms.join(" || ") }
    };
    match (event, choice) {
        (Event::Add | Event::Delete, Choice::Devices(devices)) => {
            Some(any(devices.iter().map(|dev| format!("s_dev == {dev}")).collect()))
        }
        (Event::Add | Event::Delete, Choice::Files(files)) => {
            let term =
                |file: &pagekeeper_kernel::Inode| format!("(s_dev == {} && i_ino == {})", file.dev, file.ino);
            Some(any(files.iter().map(term).collect()))
        }
        (Event::Pause, _) => Some("pause > 0".to_owned()),
        _ => None,
    }
}

/// Counts lines.
#[derive(Debug)]
struct Counter {
    proc: ProcRoot,
    entries: usize,
    /// The beginning of a line whose end was not read yet.
    rest: Vec<u8>,
    /// The beginnings of stalls that have not ended.
    stalls: HashMap<(u32, ReclaimKind), Duration>,
    flights: HashMap<(u64, u64), Flight>,
    /// The processes of threads, as found in this reading.
    processes: HashMap<u32, Option<Task>>,
}

impl Counter {
    fn text(&mut self, text: &[u8], gathered: &mut Gathered) {
        let mut rest = std::mem::take(&mut self.rest);
        for part in text.split_inclusive(|byte| *byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(end) if rest.is_empty() => self.line(end, gathered),
                Some(end) => {
                    rest.extend_from_slice(end);
                    self.line(&rest, gathered);
                    rest.clear();
                }
                None => rest.extend_from_slice(part),
            }
        }
        self.rest = rest;
    }

    fn line(&mut self, line: &[u8], gathered: &mut Gathered) {
        match parse(line) {
            Some(Line::Event(record)) => self.event(&record, gathered),
            Some(Line::Lost(events)) => gathered.losses.overrun += events,
            None if line.is_empty() => {}
            None => gathered.losses.unread += 1,
        }
    }

    /// Returns the task of a line. Details that the line lacks come from `/proc`, where the task may have
    /// ended.
    fn task(&mut self, record: &Record<'_>) -> Task {
        let proc = &self.proc;
        let known = self.processes.entry(record.thread).or_insert_with(|| look_up(proc, record.thread));
        let name = unescaped_bytes(record.name).into_owned();
        match known {
            Some(known) if record.name == FORGOTTEN => known.clone(),
            Some(known) => Task { name, ..*known },
            None => Task { process: record.thread, thread: record.thread, name },
        }
    }

    fn event(&mut self, record: &Record<'_>, gathered: &mut Gathered) {
        match &record.what {
            What::Added { file, pages } => {
                let flow = PageFlow { added: totals(*pages), ..PageFlow::default() };
                gathered.pages(*file, Some(self.task(record)), &flow);
            }
            What::Removed { file, pages } => {
                let flow = PageFlow { removed: totals(*pages), ..PageFlow::default() };
                gathered.pages(*file, Some(self.task(record)), &flow);
            }
            What::Throttled(pause) => {
                if let Some(length) = pause.length {
                    gathered.pauses(self.task(record), pause.device.to_owned(), &pauses_of(pause, length));
                }
            }
            What::ReclaimBegan(kind) => {
                if self.stalls.len() < self.entries {
                    self.stalls.insert((record.thread, *kind), record.at);
                } else {
                    gathered.losses.no_room += 1;
                }
            }
            What::ReclaimEnded { kind, pages } => {
                // It may have begun before tracing did.
                if let Some(begun) = self.stalls.remove(&(record.thread, *kind)) {
                    let reclaimed = pages.saturating_mul(page_size());
                    let stalls = Stalls { lengths: one(record.at.saturating_sub(begun)), reclaimed };
                    gathered.reclaim(self.task(record), *kind, &stalls);
                }
            }
            What::Issued { dev, sector, sectors, op } => {
                if self.flights.len() < self.entries {
                    let flight = Flight { begun: record.at, sectors: *sectors, op: *op };
                    self.flights.insert((*dev, *sector), flight);
                } else {
                    gathered.losses.no_room += 1;
                }
            }
            What::Completed { dev, sector } => {
                if let Some(flight) = self.flights.remove(&(*dev, *sector)) {
                    let latency = one(record.at.saturating_sub(flight.begun));
                    let requests = Requests { latency, bytes: flight.sectors.saturating_mul(512) };
                    gathered.block(*dev, flight.op, &requests);
                }
            }
        }
    }
}

fn one(length: Duration) -> Durations {
    let mut durations = Durations::default();
    durations.add(length);
    durations
}

fn totals(pages: u64) -> PageTotals {
    PageTotals { folios: 1, bytes: pages.saturating_mul(page_size()) }
}

fn pauses_of(pause: &Pause<'_>, length: Duration) -> Pauses {
    Pauses {
        lengths: one(length),
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
fn look_up(proc: &ProcRoot, thread: u32) -> Option<Task> {
    let status = std::fs::read(proc.path().join(format!("{thread}/status"))).ok()?;
    let status = unescaped_bytes(&status);
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    Some(Task { process: line("Tgid:")?.parse().ok()?, thread, name: line("Name:")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::Inode;

    fn counter() -> Counter {
        let nowhere = tempfile::tempdir().unwrap();
        Counter {
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
            let (mut counter, mut gathered) = (counter(), Gathered::new(10));
            text.as_bytes().chunks(pieces).for_each(|piece| counter.text(piece, &mut gathered));
            let counts = gathered.page_counts();
            assert_eq!(counts[0].file, Inode { dev: rustix::fs::makedev(8, 0), ino: 0x1f });
            assert_eq!(counts[0].flow.added, PageTotals { folios: 2, bytes: 4 * page_size() });
            assert_eq!((gathered.losses.overrun, gathered.losses.unread), (5, 1), "pieces of {pieces}");
        }
    }

    #[test]
    fn beginnings_and_ends_belong_together_by_task_and_by_sector() {
        let (mut counter, mut gathered) = (counter(), Gathered::new(10));
        let text = line(1, "1.000000", "mm_vmscan_direct_reclaim_begin: order=0 gfp_flags=GFP_NOFS")
            + &line(2, "1.000100", "mm_vmscan_memcg_reclaim_begin: order=0 gfp_flags=GFP_NOFS")
            + &line(2, "1.000300", "mm_vmscan_memcg_reclaim_end: nr_reclaimed=32")
            + &line(1, "1.500000", "mm_vmscan_direct_reclaim_end: nr_reclaimed=1")
            + &line(3, "1.500000", "mm_vmscan_direct_reclaim_end: nr_reclaimed=9")
            + &line(1, "2.000000", "block_rq_issue: 8,0 WS 4096 () 77 + 8 none,0,0 [a]")
            + &line(0, "2.000000", "block_rq_complete: 8,1 WS () 77 + 8 none,0,0 [0]")
            + &line(0, "2.000250", "block_rq_complete: 8,0 WS () 77 + 8 none,0,0 [0]");
        counter.text(text.as_bytes(), &mut gathered);
        let stalls = gathered.reclaim_counts();
        let seen: Vec<_> =
            stalls.iter().map(|one| (one.task.thread, one.kind, one.stalls.total(), one.reclaimed)).collect();
        assert_eq!(
            seen,
            [
                (1, ReclaimKind::Machine, Duration::from_millis(500), page_size()),
                (2, ReclaimKind::Group, Duration::from_micros(200), 32 * page_size()),
            ]
        );
        let block = gathered.block_counts();
        assert_eq!((block.len(), block[0].op, block[0].bytes), (1, BlockOp::Write, 4096));
        assert_eq!(block[0].latency.total(), Duration::from_micros(250));
        assert_eq!(gathered.losses.total(), 0);
    }

    #[test]
    fn a_task_is_looked_up_where_the_line_does_not_name_it() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("12")).unwrap();
        std::fs::write(tree.path().join("12/status"), "Name:\tmysqld\nTgid:\t10\n").unwrap();
        let mut counter = Counter { proc: ProcRoot::at(tree.path()), ..counter() };
        let mut task = |name: &'static [u8], thread| {
            let what = What::ReclaimBegan(ReclaimKind::Machine);
            counter.task(&Record { name, thread, at: Duration::ZERO, what })
        };
        assert_eq!(task(b"<...>", 12), Task { process: 10, thread: 12, name: "mysqld".into() });
        assert_eq!(task(b"ib_log", 12), Task { process: 10, thread: 12, name: "ib_log".into() });
        assert_eq!(task(b"gone", 13), Task { process: 13, thread: 13, name: "gone".into() });
    }

    #[test]
    fn filters_choose_in_the_kernel() {
        let files = Choice::Files(vec![Inode { dev: 5, ino: 6 }, Inode { dev: 5, ino: 7 }]);
        assert_eq!(
            filter(Event::Add, &files).unwrap(),
            "(s_dev == 5 && i_ino == 6) || (s_dev == 5 && i_ino == 7)"
        );
        assert_eq!(filter(Event::Delete, &Choice::Devices(vec![1, 2])).unwrap(), "s_dev == 1 || s_dev == 2");
        assert_eq!(filter(Event::Add, &Choice::Everything), None);
        assert_eq!(filter(Event::Pause, &files).unwrap(), "pause > 0");
        assert_eq!(filter(Event::Add, &Choice::Files(Vec::new())).unwrap(), "s_dev == 4294967295");
    }
}
