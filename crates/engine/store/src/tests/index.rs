//! Tests of the index, whose source is compiled a second time by its models.

use crate::Seq;
use crate::buffers::BufferPool;
use crate::format::page::PageKind;
use crate::index::Index;
use crate::snapshots::NeededVersions;
use crate::version::{VersionContent, WholePage};

fn content(byte: u8) -> VersionContent {
    VersionContent::Whole(WholePage::new(PageKind::Data, BufferPool::new(4096, 0).copy(&[byte; 4096])))
}

fn needed(live: &[Seq], visible: Seq) -> NeededVersions {
    NeededVersions { live: live.to_vec(), visible }
}

#[test]
fn versions_are_kept_as_long_as_a_snapshot_may_read_them() {
    let index = Index::default();
    for seq in 1..=6 {
        index.push(7, seq, content(0), &needed(&[2], 4));
    }
    // 2 is read, 4 may be, and so may later ones.
    assert_eq!(index.seqs(7), [2, 4, 5, 6]);
    assert_eq!(index.get(7, 3).unwrap().seq, 2);
    assert!(index.get(7, 1).is_none() && index.get(8, 9).is_none());
    index.prune_all(&needed(&[], 6));
    assert_eq!(index.seqs(7), [6]);
}

#[test]
fn a_page_goes_when_the_data_file_has_its_newest_version() {
    let index = Index::default();
    index.push(1, 5, content(5), &needed(&[], 5));
    index.push(1, 9, content(9), &needed(&[5], 9));
    assert_eq!(index.unapplied(9), [1]);
    index.applied(1, 5, &needed(&[5], 9));
    assert_eq!((index.seqs(1), index.unapplied(5)), (vec![5, 9], vec![]));
    index.applied(1, 9, &needed(&[5], 9));
    // The old one is read. Without the new one beside it, it would be taken for the newest.
    assert_eq!((index.seqs(1), index.unapplied_pages(2)), (vec![5, 9], 0));
    index.prune_all(&needed(&[], 9));
    assert_eq!((index.seqs(1), index.bytes()), (vec![], 0));
}

#[test]
fn overwritten_versions_are_kept_for_older_snapshots() {
    let index = Index::default();
    index.push(1, 5, content(5), &needed(&[3], 5));
    assert!(index.base_is_needed(1, 3) && !index.base_is_needed(1, 5));
    index.keep_base(1, 3, || Ok::<_, ()>(Some((content(2), 2)))).unwrap();
    assert!(!index.base_is_needed(1, 3));
    assert_eq!(index.get(1, 3).unwrap().seq, 2);
    index.applied(1, 5, &needed(&[3], 5));
    assert_eq!(index.seqs(1), [2, 5]);
}
