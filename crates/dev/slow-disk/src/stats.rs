//! The account of a slow disk's requests and punctuality: the content of the file `.stats`.
//!
//! Invariant: counts and times cover the span since the mount, or since the counts were last reset.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The requests of a disk since its mount, or since its counts were reset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskStats {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Syncs, allocations and discards.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads and writes by size in bytes, rounded up to a power of two.
    pub sizes: BTreeMap<u64, u64>,
    /// Mean of the requests in flight, including waiting ones, over the time with any.
    pub depth_average: f64,
    /// Largest number of requests in flight.
    pub depth_peak: u64,
    /// Time with any request in flight, in seconds.
    pub busy_seconds: f64,
    /// Average delay of answers beyond their due time, in µs: how much slower this disk is than it
    /// should be.
    pub late_average_us: f64,
    /// Largest delay of an answer beyond its due time, in µs.
    pub late_peak_us: f64,
    /// CPU time of the disk's process, in seconds.
    pub cpu_seconds: f64,
}

impl DiskStats {
    /// Returns the requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.others
    }
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    Read,
    Write,
    Other,
}

/// The counts. Times are in ns.
#[derive(Debug, Default)]
pub(super) struct RequestCounts {
    requests: [u64; 3],
    bytes: [u64; 2],
    /// Reads and writes by power of two.
    sizes: [u64; 32],
    peak: u64,
    /// Sum of the times from arrival to done.
    spent: u64,
    busy: u64,
    /// End of the current work.
    busy_until: u64,
    answered: u64,
    late: u64,
    late_peak: u64,
    cpu_before: u64,
}

impl RequestCounts {
    /// Creates empty counts; `cpu` is the process's CPU time so far.
    pub(super) fn begin(cpu: u64) -> Self {
        Self { cpu_before: cpu, ..Self::default() }
    }

    /// Counts a request, with which `depth` are in flight.
    pub(super) fn add(&mut self, kind: RequestPurpose, bytes: u64, arrival: u64, done: u64, depth: usize) {
        let data = match kind {
            RequestPurpose::Read => Some(0),
            RequestPurpose::Write => Some(1),
            RequestPurpose::Other => None,
        };
        self.requests[data.unwrap_or(2)] += 1;
        if let Some(data) = data {
            self.bytes[data] += bytes;
            let power = bytes.max(1).next_power_of_two().trailing_zeros() as usize;
            self.sizes[power.min(self.sizes.len() - 1)] += 1;
        }
        self.peak = self.peak.max(depth as u64);
        self.spent += done.saturating_sub(arrival);
        self.busy += done.saturating_sub(arrival.max(self.busy_until));
        self.busy_until = self.busy_until.max(done);
    }

    /// Counts an answer that was late by this many ns.
    pub(super) fn answered(&mut self, late: u64) {
        self.answered += 1;
        self.late += late;
        self.late_peak = self.late_peak.max(late);
    }

    /// Returns the account; `cpu` is the process's CPU time so far.
    pub(super) fn stats(&self, cpu: u64) -> DiskStats {
        let per = |sum: u64, of: u64| if of == 0 { 0.0 } else { sum as f64 / of as f64 };
        DiskStats {
            reads: self.requests[0],
            writes: self.requests[1],
            others: self.requests[2],
            read_bytes: self.bytes[0],
            written_bytes: self.bytes[1],
            sizes: (0..)
                .zip(self.sizes)
                .filter(|&(_, count)| count > 0)
                .map(|(power, n)| (1 << power, n))
                .collect(),
            depth_average: per(self.spent, self.busy),
            depth_peak: self.peak,
            busy_seconds: self.busy as f64 / 1e9,
            late_average_us: per(self.late, self.answered) / 1e3,
            late_peak_us: self.late_peak as f64 / 1e3,
            cpu_seconds: cpu.saturating_sub(self.cpu_before) as f64 / 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_depth_leaves_idle_time_out() {
        let mut counts = RequestCounts::begin(5_000);
        counts.add(RequestPurpose::Read, 4096, 0, 2_000, 1);
        counts.add(RequestPurpose::Read, 5000, 0, 2_000, 2);
        counts.add(RequestPurpose::Write, 1, 10_000, 12_000, 1);
        counts.add(RequestPurpose::Other, 0, 11_000, 13_000, 2);
        counts.answered(1_000);
        counts.answered(3_000);
        let stats = counts.stats(9_000);
        assert_eq!((stats.reads, stats.writes, stats.others, stats.requests()), (2, 1, 1, 4));
        assert_eq!((stats.read_bytes, stats.written_bytes), (9096, 1));
        assert_eq!(stats.sizes, BTreeMap::from([(1, 1), (4096, 1), (8192, 1)]));
        assert!((stats.depth_average - 8.0 / 5.0).abs() < 1e-9, "{stats:?}");
        assert!((stats.busy_seconds - 5e-6).abs() < 1e-12);
        assert_eq!(stats.depth_peak, 2);
        assert!((stats.late_average_us - 2.0).abs() < 1e-9 && (stats.late_peak_us - 3.0).abs() < 1e-9);
        assert!((stats.cpu_seconds - 4e-6).abs() < 1e-12);
    }

    #[test]
    fn statistics_parse_back() {
        let mut counts = RequestCounts::begin(0);
        counts.add(RequestPurpose::Write, 1 << 40, 0, 1, 1);
        let stats = counts.stats(1);
        let text = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<DiskStats>(&text).unwrap(), stats);
        assert_eq!(RequestCounts::begin(7).stats(7), DiskStats::default());
    }
}
