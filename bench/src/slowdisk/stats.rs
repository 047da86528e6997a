//! What a slow disk was asked for, and how well it kept its times: the content of the file `.stats`.
//!
//! Invariants: counts and times are of the span since the mount, or since the counts were last set to 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the disk was asked for since it was there, or since its counts were set to 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
    /// Requests to make durable, and to allocate or discard.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads and writes by their size: bytes, rounded up to a power of two.
    pub sizes: BTreeMap<u64, u64>,
    /// Requests under way, waiting ones too: the mean over the time in which there was any.
    pub depth_average: f64,
    /// The same at most.
    pub depth_peak: u64,
    /// Time in which any request was under way, in seconds.
    pub busy_seconds: f64,
    /// How much later than due answers were given, on average, in µs: what this disk is slower than it should be.
    pub late_average_us: f64,
    /// The same at most.
    pub late_peak_us: f64,
    /// CPU time of the disk's process, in seconds.
    pub cpu_seconds: f64,
}

impl Stats {
    /// Requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.others
    }
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Other,
}

/// What is counted. Times are in ns.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: [u64; 3],
    bytes: [u64; 2],
    /// By the power of two.
    sizes: [u64; 32],
    peak: u64,
    /// Sum of the times from arrival to done.
    spent: u64,
    busy: u64,
    /// Until when there is work.
    busy_until: u64,
    answered: u64,
    late: u64,
    late_peak: u64,
    cpu_before: u64,
}

impl Counts {
    /// None; the process has used `cpu` so far.
    pub(super) fn begin(cpu: u64) -> Self {
        Self { cpu_before: cpu, ..Self::default() }
    }

    /// A request that makes `depth` under way.
    pub(super) fn add(&mut self, kind: Kind, bytes: u64, arrival: u64, done: u64, depth: usize) {
        let data = match kind {
            Kind::Read => Some(0),
            Kind::Write => Some(1),
            Kind::Other => None,
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

    /// An answer was given so much after it was due.
    pub(super) fn answered(&mut self, late: u64) {
        self.answered += 1;
        self.late += late;
        self.late_peak = self.late_peak.max(late);
    }

    /// The account; the process has used `cpu` so far.
    pub(super) fn stats(&self, cpu: u64) -> Stats {
        let per = |sum: u64, of: u64| if of == 0 { 0.0 } else { sum as f64 / of as f64 };
        Stats {
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
        let mut counts = Counts::begin(5_000);
        counts.add(Kind::Read, 4096, 0, 2_000, 1);
        counts.add(Kind::Read, 5000, 0, 2_000, 2);
        counts.add(Kind::Write, 1, 10_000, 12_000, 1);
        counts.add(Kind::Other, 0, 11_000, 13_000, 2);
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
    fn it_is_read_as_it_was_written() {
        let mut counts = Counts::begin(0);
        counts.add(Kind::Write, 1 << 40, 0, 1, 1);
        let stats = counts.stats(1);
        let text = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<Stats>(&text).unwrap(), stats);
        assert_eq!(Counts::begin(7).stats(7), Stats::default());
    }
}
