//! Plain data for tests of the screen.

use std::time::{Duration, SystemTime};

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::{MemInfo, SysRoots, Watermarks};
use pagekeeper_observe::{CensusTick, Explained, Flow, Query, Row, RowKey, Rows, Split};
use pagekeeper_trace::Losses;

use super::model::{Model, Seen};

const GIB: u64 = 1 << 30;

/// Returns a file with this many MiB resident.
pub(super) fn file_row(ino: u64, path: &str, mib: u64) -> Row {
    Row {
        key: RowKey::File(Inode { dev: 1, ino }),
        label: path.to_owned(),
        path: Some(path.into()),
        deleted: false,
        files: 1,
        size: 1 << 30,
        resident: mib << 20,
        dirty: Some(0),
        writeback: Some(0),
        evicted: Some(0),
        recently_evicted: Some(0),
        growth: 0,
        flow: Some(Flow::default()),
        total_flow: Some(Flow::default()),
        owners: Vec::new(),
        class: None,
        database: None,
    }
}

/// Returns a tick with round figures.
pub(super) fn tick() -> CensusTick {
    let memory = MemInfo::read(&SysRoots::default()).expect("there is a /proc");
    CensusTick {
        at: SystemTime::UNIX_EPOCH,
        period: Duration::from_secs(1),
        memory,
        watermarks: Watermarks { min: 64 << 20, low: 80 << 20, high: 96 << 20, reserve: 0 },
        split: Split {
            total: 16 * GIB,
            processes: 4 * GIB,
            clean: 6 * GIB,
            dirty: GIB,
            writeback: 0,
            shmem: GIB / 2,
            buffers: GIB / 4,
            slab: GIB,
            free: 3 * GIB,
            other: GIB / 4,
        },
        explained: Explained { cached: 7 * GIB + GIB / 2, files: 7 * GIB, shmem: GIB / 2, scoped: false },
        file_systems: Vec::new(),
        files: 12_345,
        files_in_memory: 2_000,
        pauses: Some(Vec::new()),
        reclaim: Some(Vec::new()),
        machine: None,
        losses: Losses::default(),
        rescan: None,
        visibility_gaps: Vec::new(),
    }
}

/// Returns a screen that shows these rows.
pub(super) fn model_with(rows: &[Row]) -> Model {
    let mut model = Model::new(Query::default(), Duration::from_secs(1));
    let rows = Rows { rows: rows.to_vec(), matching: rows.len(), resident: 0 };
    model.take(Seen { tick: tick(), rows, query: model.query.clone() }, true);
    model
}
