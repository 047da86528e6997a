//! The cost of this process itself.

use std::time::Duration;

use pagekeeper_kernel::page_size;

/// CPU time and memory of this process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Own {
    /// CPU time so far, user and system.
    pub(super) cpu: Duration,
    /// Resident memory in bytes; `None` if `/proc` does not show it.
    pub(super) memory: Option<u64>,
    /// Peak resident memory in bytes.
    pub(super) memory_peak: Option<u64>,
}

impl Own {
    /// Reads the current state.
    pub(super) fn read() -> Self {
        let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu = Duration::new(
            u64::try_from(usage.tv_sec).expect("the clock started at 0"),
            u32::try_from(usage.tv_nsec).expect("less than a second"),
        );
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").ok()?;
            Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? * page_size())
        };
        let peak = || {
            let text = std::fs::read_to_string("/proc/self/status").ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
        };
        Self { cpu, memory: resident(), memory_peak: peak() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_costs_something() {
        let own = Own::read();
        assert!(own.cpu > Duration::ZERO && own.memory.unwrap() > 100 << 10);
        assert!(own.memory_peak.is_some());
    }
}
