//! Measurements beside the rates: latencies of single calls, and the kernel's account of device reads.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// The kernel's I/O account of this process: `proc_pid_io(5)`.
pub(crate) const PROCESS: &str = "/proc/self/io";
/// The I/O account of the calling thread.
pub(crate) const THREAD: &str = "/proc/thread-self/io";

/// Returns the bytes read from devices, according to the account of a process or thread.
pub(crate) fn device_bytes(account: &str) -> Result<u64> {
    let text = std::fs::read_to_string(account).with_context(|| format!("can't read {account}"))?;
    device_bytes_in(&text).with_context(|| format!("{account} is not understood"))
}

fn device_bytes_in(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

/// Creates a histogram of latencies in nanoseconds, up to a minute.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).unwrap_or_else(|_| unreachable!("these bounds are allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_devices_are_found_in_an_account() {
        assert_eq!(device_bytes_in("rchar: 5\nread_bytes: 4096\nwrite_bytes: 7\n"), Some(4096));
        assert_eq!(device_bytes_in(""), None);
        assert!(device_bytes(PROCESS).is_ok() && device_bytes(THREAD).is_ok());
    }
}
