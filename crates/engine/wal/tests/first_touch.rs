//! The redo log's memory is allocated in the background: a thread that commits has no page faults.
//!
//! A process of its own: page faults of the log's thread are counted by its name.

use std::time::{Duration, Instant};

use pagekeeper_kernel::page_size;
use pagekeeper_testing::{disk_dir, skip};
use pagekeeper_wal::RedoLog;

const RECORD_BYTES: usize = 16 << 10;

/// Page faults of other causes, such as a first call into a library.
const OTHER_FAULTS_MAX: u64 = 3;

/// Returns the minor page faults of a thread of this process: the tenth field of its `stat`, the
/// eighth behind the name.
fn faults(thread: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(7)?.parse().ok()
}

/// Returns the page faults of the log's flusher.
fn faults_of_flusher() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let ids = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
    let is_flusher = |thread: &String| {
        let name = std::fs::read_to_string(format!("/proc/{thread}/comm"));
        name.is_ok_and(|name| name.trim() == "log_flusher")
    };
    ids.map(|id| format!("self/task/{id}")).filter(is_flusher).filter_map(|thread| faults(&thread)).sum()
}

fn commit(log: &RedoLog, record: &[u8]) {
    let end = log.append(record).unwrap();
    log.wait_flushed(end).unwrap();
    log.checkpoint(end).unwrap();
}

#[test]
fn commits_allocate_no_memory_of_the_log_buffer() {
    let dir = disk_dir();
    let log = RedoLog::options().files(2).file_bytes(8 << 20).create(dir.path().join("redo")).unwrap();
    let (record, buffer) = (vec![7; RECORD_BYTES], log.longest_record() as u64);
    let pages = buffer / page_size();
    assert!(faults_of_flusher() < pages / 2, "memory is allocated before the first append");
    commit(&log, &record);
    let begun = Instant::now();
    while faults_of_flusher() < pages {
        if begun.elapsed() > Duration::from_secs(20) {
            return skip("the kernel populates no memory (before Linux 5.14)");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // The last step may not be over yet.
    std::thread::sleep(Duration::from_millis(100));
    let before = faults("thread-self").unwrap();
    for _ in 0..2 * buffer / RECORD_BYTES as u64 {
        commit(&log, &record);
    }
    let found = faults("thread-self").unwrap() - before;
    assert!(found <= OTHER_FAULTS_MAX, "{found} page faults of a thread that commits");
}
