//! Tests of the index, whose source is compiled a second time by its models.

use crate::buffers::BufferPool;
use crate::format::page::PageKind;
use crate::index::Index;
use crate::snapshots::NeededVersions;
use crate::version::{VersionContent, WholePage};
use crate::{PageNo, Seq};

const PAGE: PageNo = PageNo::new(7);

fn content(byte: u8) -> VersionContent {
    VersionContent::Whole(WholePage::new(PageKind::Data, BufferPool::new(4096, 0).copy(&[byte; 4096])))
}

fn needed(live: &[u64], visible: u64) -> NeededVersions {
    NeededVersions { live: live.iter().copied().map(Seq::new).collect(), visible: Seq::new(visible) }
}

fn seqs(index: &Index, page: PageNo) -> Vec<u64> {
    index.seqs(page).into_iter().map(Seq::get).collect()
}

#[test]
fn versions_are_kept_as_long_as_a_snapshot_may_read_them() {
    let index = Index::default();
    for seq in 1..=6 {
        index.push(PAGE, Seq::new(seq), content(0), &needed(&[2], 4));
    }
    // 2 is read, 4 may be, and so may later ones.
    assert_eq!(seqs(&index, PAGE), [2, 4, 5, 6]);
    assert_eq!(index.get(PAGE, Seq::new(3)).unwrap().seq, Seq::new(2));
    assert!(index.get(PAGE, Seq::new(1)).is_none() && index.get(PAGE + 1, Seq::new(9)).is_none());
    index.prune_all(&needed(&[], 6));
    assert_eq!(seqs(&index, PAGE), [6]);
}

#[test]
fn a_page_goes_when_the_data_file_has_its_newest_version() {
    let index = Index::default();
    index.push(PAGE, Seq::new(5), content(5), &needed(&[], 5));
    index.push(PAGE, Seq::new(9), content(9), &needed(&[5], 9));
    assert_eq!(index.unapplied(Seq::new(9)), [PAGE]);
    index.applied(PAGE, Seq::new(5), &needed(&[5], 9));
    assert_eq!((seqs(&index, PAGE), index.unapplied(Seq::new(5))), (vec![5, 9], vec![]));
    index.applied(PAGE, Seq::new(9), &needed(&[5], 9));
    // The old one is read. Without the new one beside it, it would be taken for the newest.
    assert_eq!((seqs(&index, PAGE), index.unapplied_pages(8)), (vec![5, 9], 0));
    index.prune_all(&needed(&[], 9));
    assert_eq!((seqs(&index, PAGE), index.bytes()), (vec![], 0));
}

#[test]
fn overwritten_versions_are_kept_for_older_snapshots() {
    let index = Index::default();
    index.push(PAGE, Seq::new(5), content(5), &needed(&[3], 5));
    assert!(index.base_is_needed(PAGE, Seq::new(3)) && !index.base_is_needed(PAGE, Seq::new(5)));
    let in_file = || Ok::<_, ()>(Some((content(2), Seq::new(2))));
    index.keep_base(PAGE, Seq::new(3), in_file).unwrap();
    assert!(!index.base_is_needed(PAGE, Seq::new(3)));
    assert_eq!(index.get(PAGE, Seq::new(3)).unwrap().seq, Seq::new(2));
    index.applied(PAGE, Seq::new(5), &needed(&[3], 5));
    assert_eq!(seqs(&index, PAGE), [2, 5]);
}
