//! The cost of this process itself.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time and memory of this process.
#[derive(Debug, Clone, Copy)]
pub struct OwnCost {
    /// CPU time so far, user and system.
    pub cpu: Duration,
    /// Resident memory in bytes; `None` if `/proc` does not show it.
    pub memory: Option<u64>,
    /// Peak resident memory in bytes.
    pub memory_peak: Option<u64>,
}

impl OwnCost {
    /// Reads the current state.
    pub fn read() -> Self {
        #[allow(clippy::disallowed_methods, reason = "of /proc")]
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
        };
        let cpu = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
        Self { cpu, memory: bytes("VmRSS:"), memory_peak: bytes("VmHWM:") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_costs_something() {
        let own = OwnCost::read();
        assert!(own.cpu > Duration::ZERO && own.memory.unwrap() > 100 << 10);
        assert!(own.memory_peak.unwrap() > 100 << 10);
    }
}
