//! What is gauged beside the rates: how long single calls took, and what the kernel says was read from devices.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// The kernel's account of this process, of `proc_pid_io(5)`.
pub(crate) const PROCESS: &str = "/proc/self/io";
/// That of the calling thread.
pub(crate) const THREAD: &str = "/proc/thread-self/io";

/// Bytes that were read from devices for the process or thread whose account this is.
pub(crate) fn device_bytes(account: &str) -> Result<u64> {
    let text = std::fs::read_to_string(account).with_context(|| format!("can't read {account}"))?;
    device_bytes_in(&text).with_context(|| format!("{account} is not understood"))
}

fn device_bytes_in(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

/// How long single calls took, in nanoseconds: up to a minute.
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
