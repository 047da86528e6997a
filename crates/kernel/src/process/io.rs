//! How much a process has read and written (`proc_pid_io(5)`).

use super::{ProcRoot, malformed};
use crate::Result;
use crate::text::unescaped_bytes;

/// Bytes and calls since the process started, all its threads together, ended children that were waited for included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoCounters {
    /// Bytes asked for by read(2) and the like, from the page cache or not.
    pub read_by_calls: u64,
    /// Bytes given to write(2) and the like.
    pub written_by_calls: u64,
    /// How many read calls.
    pub read_calls: u64,
    /// How many write calls.
    pub write_calls: u64,
    /// Bytes it caused to be fetched from storage.
    pub read_from_storage: u64,
    /// Bytes it made dirty, to be written to storage.
    pub written_to_storage: u64,
    /// Bytes it made dirty that never reached storage, as their file was truncated or deleted.
    pub cancelled_writes: u64,
}

impl ProcRoot {
    /// What the process has read and written.
    ///
    /// Fails with [`Error::Unsupported`](crate::Error::Unsupported) where the kernel does not count
    /// (`CONFIG_TASK_IO_ACCOUNTING`).
    pub fn io_counters(&self, pid: u32) -> Result<IoCounters> {
        self.io_file(pid, "io")
    }

    /// What one thread of the process has read and written.
    pub fn thread_io_counters(&self, pid: u32, thread: u32) -> Result<IoCounters> {
        self.io_file(pid, &format!("task/{thread}/io"))
    }

    fn io_file(&self, pid: u32, name: &str) -> Result<IoCounters> {
        let content = self.read_optional(pid, name, "this kernel does not count a process's I/O")?;
        let mut counters = IoCounters::default();
        let mut seen = 0;
        for line in unescaped_bytes(&content).lines() {
            let Some((key, value)) = line.split_once(':') else {
                return Err(malformed(&self.of(pid, name), line));
            };
            let field = match key {
                "rchar" => &mut counters.read_by_calls,
                "wchar" => &mut counters.written_by_calls,
                "syscr" => &mut counters.read_calls,
                "syscw" => &mut counters.write_calls,
                "read_bytes" => &mut counters.read_from_storage,
                "write_bytes" => &mut counters.written_to_storage,
                "cancelled_write_bytes" => &mut counters.cancelled_writes,
                _ => continue,
            };
            *field = value.trim().parse().map_err(|_| malformed(&self.of(pid, name), line))?;
            seen += 1;
        }
        if seen < 7 {
            return Err(malformed(&self.of(pid, name), "all seven counters"));
        }
        Ok(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn own_writes_are_counted() {
        let proc = ProcRoot::default();
        let own = std::process::id();
        let before = proc.io_counters(own).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 100_000]).unwrap();
        let after = proc.io_counters(own).unwrap();
        assert!(after.written_by_calls >= before.written_by_calls + 100_000);
        assert!(after.write_calls > before.write_calls);
        let thread =
            proc.thread_io_counters(own, rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        assert!(thread.unwrap().written_by_calls >= 100_000);
    }

    #[test]
    fn a_fake_tree() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("3")).unwrap();
        let io = tree.path().join("3/io");
        let all = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n\
                   cancelled_write_bytes: 7\nnew_thing: x\n";
        std::fs::write(&io, all).unwrap();
        let proc = ProcRoot::at(tree.path());
        let counters = proc.io_counters(3).unwrap();
        assert_eq!((counters.read_from_storage, counters.cancelled_writes), (5, 7));
        for broken in ["rchar: 1\n", "rchar 1\n", "rchar: one\n"] {
            std::fs::write(&io, broken).unwrap();
            assert!(proc.io_counters(3).is_err());
        }
    }
}
