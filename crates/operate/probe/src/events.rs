//! Kernel events during a measurement: page-cache adds and removals, block I/O, throttling pauses,
//! counters.
//!
//! If events are not available, the measurement continues without them and says why.

use std::time::Duration;

use pagekeeper_kernel::Inode;
use pagekeeper_trace::{BlockOp, PageFilter, TraceCounts, TraceOptions, Tracer};
use serde::Serialize;

use crate::directory::TestDirectory;

/// A counter of the events of the file system and its disk during a measurement.
pub(crate) struct EventCounter {
    tracer: Option<Tracer>,
    /// The source of the events, or why there is none, in plain words.
    pub(crate) source: String,
}

impl EventCounter {
    /// Starts to count, with the best source available.
    pub(crate) fn start(directory: &TestDirectory) -> Self {
        let Some(device) = directory.traced else {
            let source =
                "events are not counted: on this file system pages belong to another one below".to_owned();
            return Self { tracer: None, source };
        };
        let options = TraceOptions {
            reclaim: false,
            block: true,
            filter: PageFilter::Devices(vec![device]),
            entries: 4096,
            roots: directory.roots.clone(),
            ..TraceOptions::default()
        };
        match Tracer::start(&options) {
            Ok(tracer) => {
                let source = tracer.source().to_string();
                Self { tracer: Some(tracer), source }
            }
            Err(error) => Self { tracer: None, source: format!("events are not counted: {error}") },
        }
    }

    /// Returns the events since the last call.
    pub(crate) fn take(&mut self) -> Option<TraceCounts> {
        self.tracer.as_mut()?.take().ok()
    }
}

/// The kernel's activity during all intervals of one case, as rates.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct EventRates {
    /// Bytes of the file added to the page cache per second; `None` if page-cache events are not
    /// counted.
    pub added_bytes_per_second: Option<f64>,
    /// Bytes of the file removed from the page cache per second.
    pub removed_bytes_per_second: Option<f64>,
    /// Reads per second that the disk served, for any program; `None` if block I/O is not counted.
    pub disk_reads_per_second: Option<f64>,
    /// Writes per second that the disk served, for any program.
    pub disk_writes_per_second: Option<f64>,
    /// Mean number of the disk's reads and writes in flight.
    pub disk_queue: Option<f64>,
    /// Bytes of files dirtied per second by the whole machine (`nr_dirtied` of /proc/vmstat).
    pub dirtied_bytes_per_second: Option<f64>,
    /// Bytes of files written back per second by the whole machine (`nr_written` of /proc/vmstat).
    pub written_bytes_per_second: Option<f64>,
}

/// Computes the rates over several periods, `seconds` in total: the file's own pages, and the
/// disk's requests.
pub(crate) fn rates(
    counts: &[&TraceCounts],
    seconds: f64,
    file: Option<Inode>,
    disk: Option<u64>,
) -> EventRates {
    // One unknown value makes the sum unknown.
    let rate = |of: &dyn Fn(&TraceCounts) -> Option<u64>| {
        if counts.is_empty() || seconds <= 0.0 {
            return None;
        }
        let each: Option<Vec<u64>> = counts.iter().map(|counts| of(counts)).collect();
        Some(each?.iter().sum::<u64>() as f64 / seconds)
    };
    let requests = |op| {
        rate(&move |counts: &TraceCounts| {
            let of_disk =
                counts.block.as_ref()?.iter().filter(|block| Some(block.dev) == disk && block.op == op);
            disk.map(|_| of_disk.map(|block| block.latency.count()).sum())
        })
    };
    let busy_us = rate(&|counts| {
        let of_disk = counts.block.as_ref()?.iter().filter(|block| Some(block.dev) == disk);
        let busy: Duration = of_disk.map(|block| block.latency.total()).sum();
        disk.and_then(|_| u64::try_from(busy.as_micros()).ok())
    });
    EventRates {
        added_bytes_per_second: rate(&|counts| Some(counts.of_file(file?)?.added.bytes)),
        removed_bytes_per_second: rate(&|counts| Some(counts.of_file(file?)?.removed.bytes)),
        disk_reads_per_second: requests(BlockOp::Read),
        disk_writes_per_second: requests(BlockOp::Write),
        disk_queue: busy_us.map(|busy| busy / 1e6),
        dirtied_bytes_per_second: rate(&|counts| counts.machine.dirtied),
        written_bytes_per_second: rate(&|counts| counts.machine.written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_counts_stay_unknown() {
        assert_eq!(rates(&[], 1.0, None, None), EventRates::default());
    }
}
