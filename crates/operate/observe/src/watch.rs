//! Facts beside the snapshots: reads and syncs during a watch, the programs that moved pages,
//! events of memory pressure, and other holders of page cache.

pub(crate) mod elsewhere;
pub(crate) mod holders;
pub(crate) mod pool_pressure;
pub(crate) mod read_watch;
pub(crate) mod streamers;
pub(crate) mod sync_watch;
