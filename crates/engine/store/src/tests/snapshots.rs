//! Tests of snapshots, whose source is compiled a second time by their models.

use std::sync::Arc;

use crate::Seq;
use crate::snapshots::{NeededVersions, Snapshots};
use pagekeeper_wal::Lsn;

fn snapshots() -> Snapshots {
    let snapshots = Snapshots::new(Seq::new(3), Arc::default());
    for seq in 4..=6 {
        snapshots.committed(Seq::new(seq), Lsn::new(seq * 100), Arc::default());
    }
    snapshots
}

#[test]
fn commits_become_visible_in_order() {
    let snapshots = snapshots();
    snapshots.durable(Lsn::new(499));
    assert_eq!(snapshots.visible().0, Seq::new(4));
    let live = snapshots.begin();
    // A commit that does not wait shows the earlier ones, too.
    snapshots.show(Seq::new(6));
    assert_eq!([live.seq, snapshots.begin().seq], [4, 6].map(Seq::new));
}

#[test]
fn a_version_is_needed_until_its_last_snapshot_ends() {
    let snapshots = snapshots();
    let old = snapshots.begin();
    snapshots.show(Seq::new(6));
    snapshots.set_checkpoint(Some(Seq::new(5)));
    let needed = snapshots.needed();
    assert_eq!(needed, NeededVersions { live: [3, 5].map(Seq::new).to_vec(), visible: Seq::new(6) });
    let needs = |start, end| needed.needs(Seq::new(start)..Seq::new(end));
    assert!(needs(2, 4) && needs(5, 6) && needs(6, 7) && !needs(4, 5));
    assert_eq!(snapshots.oldest(), Seq::new(3));
    assert!(snapshots.end_oldest() && old.is_ended() && !snapshots.end_oldest());
    snapshots.set_checkpoint(None);
    assert_eq!(snapshots.oldest(), Seq::new(6));
    snapshots.end(&old);
}
