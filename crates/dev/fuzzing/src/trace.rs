//! Lines of the kernel's tracing, which contain the names that tasks chose: any bytes are parsed or
//! rejected.

use pagekeeper_trace::fuzzing::task_of_event;

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        if let Some(name) = task_of_event(line) {
            assert!(name.len() <= 16, "the width of its column");
        }
    }
}

/// Returns a line of each kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let events = [
        "mm_filemap_add_to_page_cache: dev 254:3 ino 1f3 pfn=0x26 ofs=0 order=2",
        "balance_dirty_pages: bdi 254:0: limit=5 setpoint=4 dirty=6 wb_setpoint=2 wb_dirty=3 paused=12 pause=100",
        "mm_vmscan_direct_reclaim_end: nr_reclaimed=62",
        "block_rq_issue: 254,0 RA 4096 () 77 + 8 none,0,0 [dd a + 9 x]",
        "block_rq_complete: 8,0 WS () 77 + 8 [0]",
    ];
    let lines = events
        .map(|event| format!("  kworker/u8:3+f-1234    [001] d..1.   123.456789: {event}").into_bytes());
    [lines.to_vec(), vec![b"CPU:1 [LOST 234 EVENTS]".to_vec()]].concat()
}
