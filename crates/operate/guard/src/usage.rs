//! The guard's own cost: CPU time and memory of this process.

use std::time::Duration;

/// Returns the CPU time of this process so far, user and system: `clock_gettime(2)`.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("CPU time is not negative");
    let nanoseconds = u32::try_from(time.tv_nsec).expect("less than a second");
    Duration::new(seconds, nanoseconds)
}

/// Returns the peak resident memory of this process, in bytes (`VmHWM` of proc(5)); `None` where `/proc` does
/// not show it.
#[allow(clippy::disallowed_methods, reason = "of /proc")]
pub(crate) fn memory_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_there_and_grow() {
        let before = cpu_time();
        while cpu_time() <= before {
            std::hint::spin_loop();
        }
        assert!(memory_peak().unwrap() > 100 << 10);
    }
}
