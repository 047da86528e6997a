//! A primary and its replica: groups of records that are there as a whole or not at all, a follower
//! that continues where it stopped, and segments that are removed once it has read them.
//!
//! Run it by `cargo run -p pagekeeper-wal --example binlog`.

use std::error::Error;

use pagekeeper_wal::{BinLog, Position, PurgeMode};

const ROWS: usize = 2_000;

/// A copy of the primary's rows, with the position at which it continues.
struct Replica {
    rows: Vec<Vec<u8>>,
    at: Position,
}

impl Replica {
    /// Applies at most `limit` records. A group counts only once its last record is there.
    fn catch_up(&mut self, log: &BinLog, limit: usize) -> Result<(), pagekeeper_wal::Error> {
        let mut follower = log.follow(self.at)?; // near the end it reads memory, behind it the disk
        let mut group = Vec::new();
        for _ in 0..limit {
            let Some(event) = follower.try_next()? else { break };
            group.push(event.bytes);
            if event.ends_group {
                self.rows.append(&mut group);
                self.at = event.next;
            }
        }
        Ok(())
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let temp = tempfile::tempdir_in(".")?;
    let log =
        BinLog::options().max_segment_bytes(1 << 20).sync_every(100).open(temp.path().join("binlog"))?;
    let mut replica = Replica { rows: Vec::new(), at: log.first() };
    for row in 0..ROWS {
        let row = vec![row.to_le_bytes()[0]; 1_000];
        log.append_group(&[b"begin", &row])?;
    }
    replica.catch_up(&log, 1_001)?;
    assert_eq!(replica.rows.len(), 1_000); // the half of a group waits
    log.sync()?; // all of it is durable
    replica.catch_up(&log, usize::MAX)?;
    assert_eq!(replica.rows.len(), 2 * ROWS);
    let purged = log.purge_to(replica.at, PurgeMode::UnlessFollowed)?;
    assert!(purged >= 1);
    println!("the replica has {} rows; {purged} segments are purged", replica.rows.len());
    log.close()?;
    Ok(())
}
