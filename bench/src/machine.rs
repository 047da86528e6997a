//! The machine of a run: the facts that a reader needs to judge or to repeat its figures.
//!
//! Reads /proc, /sys and one `fstatfs`; a fact that cannot be found is "unknown", never an error.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::FileSystem;
use serde::Serialize;

/// The facts of a machine.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MachineFacts {
    /// Model of the processor.
    pub(crate) cpu: String,
    /// Number of processors this process may use.
    pub(crate) cores: usize,
    /// Memory, in bytes.
    pub(crate) memory_bytes: u64,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Kind of file system of the files.
    pub(crate) file_system: String,
    /// Device of the files.
    pub(crate) device: String,
    /// Read-ahead of that device at the start of the run, in KiB.
    pub(crate) read_ahead_kb: Option<u64>,
    /// Load average of the minute before the run.
    pub load_1m: f64,
    /// Versions of the measured programs, and of pagekeeper.
    pub(crate) versions: BTreeMap<String, String>,
}

impl MachineFacts {
    /// Describes this machine, for files in `directory`; whoever runs the programs fills in
    /// `versions`.
    pub(crate) fn of(directory: &Path) -> Self {
        let queue = queue_of(directory);
        Self {
            cpu: cpu_of(&read("/proc/cpuinfo")).unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: meminfo("MemTotal").unwrap_or(0),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            file_system: std::fs::File::open(directory)
                .ok()
                .and_then(|open| FileSystem::of(&open, directory).ok())
                .map_or_else(unknown, |kind| kind.to_string()),
            device: queue
                .as_deref()
                .and_then(|queue| Some(queue.parent()?.file_name()?.to_string_lossy().into_owned()))
                .unwrap_or_else(unknown),
            read_ahead_kb: queue.and_then(|queue| read(queue.join("read_ahead_kb")).trim().parse().ok()),
            load_1m: first_number(&read("/proc/loadavg")),
            versions: BTreeMap::new(),
        }
    }
}

/// Returns the memory available without swapping, in bytes; 0 if unknown.
pub(crate) fn available_bytes() -> u64 {
    meminfo("MemAvailable").unwrap_or(0)
}

/// Returns `/sys/block/DISK/queue` of the disk of `directory`.
fn queue_of(directory: &Path) -> Option<PathBuf> {
    let dev = directory.metadata().ok()?.dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition has no queue of its own.
    [device.join("queue"), device.parent()?.join("queue")].into_iter().find(|queue| queue.is_dir())
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn first_number(text: &str) -> f64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn cpu_of(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn meminfo(name: &str) -> Option<u64> {
    kib_field(&read("/proc/meminfo"), name)
}

/// Returns a field like `VmHWM:  1234 kB` of a file of /proc, in bytes.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let rest =
        text.lines().find_map(|line| line.strip_prefix(name).and_then(|rest| rest.strip_prefix(':')))?;
    Some(rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read() {
        let text = "MemTotal:       24000000 kB\nMemFree: 5 kB\n";
        assert_eq!(kib_field(text, "MemTotal"), Some(24_000_000 << 10));
        assert_eq!(kib_field(text, "Mem"), None);
        assert_eq!(cpu_of("processor\t: 0\nmodel name\t: A  Processor \n"), Some("A  Processor".to_owned()));
        assert_eq!(cpu_of("Processor: ARM"), None);
        assert!((first_number("0.50 0.2 0.1 1/200 3") - 0.5).abs() < 1e-9);
    }
}
