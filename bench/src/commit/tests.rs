//! Tests each subject on a small scale: commits of several threads are found again, and changes
//! that were not acknowledged or are missing are detected.

use super::content::{change, fresh};
use super::*;
use crate::scratch::ScratchDirectory;

const TEST_SIZE: StoreSize = StoreSize { pages: 600, memory: 16 << 20 };

fn filled(kind: StoreKind, dir: &Path) -> FilledStore {
    let pages = (kind.open)(dir, TEST_SIZE).unwrap();
    pages.fill().unwrap();
    let ledger = ChangeLedger::new(TEST_SIZE.pages);
    FilledStore { kind, dir: dir.to_path_buf(), pages, ledger }
}

#[test]
fn every_subject_has_exactly_the_acknowledged_commits() {
    for kind in kinds() {
        let scratch = ScratchDirectory::new(Path::new("/var/tmp")).unwrap();
        let subject = filled(kind, scratch.path());
        for (threads, pages) in [(1, 1), (5, 7)] {
            let load = CommitLoad { threads, pages, seed: 9 };
            // Only commits that end in time count, and a disk may take seconds for one.
            let mut samples = (0..12).map(|nth| {
                one(&subject, load, Duration::from_millis(60_u64 << nth), &StopRequest::never()).unwrap()
            });
            let sample = samples.find(|sample| sample.took.count() > 0).expect("commits end");
            assert!(sample.rate > 0.0 && sample.took.us(100.0) > 0.0, "{}", kind.name);
        }
        let FilledStore { pages, ledger, .. } = subject;
        drop(pages);
        verify(kind, scratch.path(), TEST_SIZE, &ledger).unwrap();
        // A change that was not acknowledged, and one that is lost.
        let pages = (kind.open)(scratch.path(), TEST_SIZE).unwrap();
        pages.committer().unwrap().commit(&[3], &mut |page, value| change(page, value).map(|_| ())).unwrap();
        drop(pages);
        assert!(verify(kind, scratch.path(), TEST_SIZE, &ledger).is_err(), "{}", kind.name);
        let wanting = ChangeLedger::new(TEST_SIZE.pages);
        assert!(verify(kind, scratch.path(), TEST_SIZE, &wanting).is_err(), "{}", kind.name);
    }
}

#[test]
fn a_commit_that_fails_ends_all_threads() {
    for kind in kinds() {
        let scratch = ScratchDirectory::new(Path::new("/var/tmp")).unwrap();
        let subject = filled(kind, scratch.path());
        let mut committer = subject.pages.committer().unwrap();
        let failed = committer.commit(&[5], &mut |_, _| anyhow::bail!("no"));
        assert!(failed.is_err(), "{}", kind.name);
        drop(committer);
        let mut found = Vec::new();
        let mut see = |_, value: &[u8]| {
            found = value.to_vec();
            Ok(())
        };
        subject.pages.check(5..6, &mut see).unwrap();
        assert_eq!(found, fresh(5), "{}", kind.name);
        let load = CommitLoad { threads: 3, pages: TEST_SIZE.pages.try_into().unwrap(), seed: 1 };
        let wrong = FilledStore { ledger: ChangeLedger::new(TEST_SIZE.pages + 1000), ..subject };
        assert!(one(&wrong, load, Duration::from_secs(5), &StopRequest::never()).is_err(), "{}", kind.name);
    }
}

#[test]
fn the_best_peer_is_no_limit() {
    let samples = |subject, values: &[f64]| SubjectSamples { subject, values: values.to_vec() };
    let all = [
        samples(tree::TREE_STORE.name, &[9.0]),
        samples("a", &[1.0, 1.0, 8.0]),
        samples("b", &[2.0, 2.0, 2.0]),
        samples(COMMIT_LIMIT_NAME, &[10.0]),
    ];
    assert_eq!(best_peer(&all), Some("b"));
    assert_eq!(best_peer(&all[..1]), None);
}
