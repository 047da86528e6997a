//! Tests each subject on a small scale: commits of several threads are found again, and changes that were not
//! acknowledged or are missing are detected.

use super::content::{change, fresh};
use super::*;
use crate::scratch::Scratch;

const ROOM: Room = Room { pages: 600, memory: 16 << 20 };

fn filled(kind: Kind, dir: &Path) -> Compared {
    let pages = (kind.open)(dir, ROOM).unwrap();
    pages.fill().unwrap();
    let ledger = Ledger::new(ROOM.pages);
    Compared { kind, dir: dir.to_path_buf(), pages, ledger }
}

#[test]
fn every_subject_has_what_was_acknowledged_and_nothing_else() {
    for kind in kinds() {
        let scratch = Scratch::new(Path::new("/var/tmp")).unwrap();
        let subject = filled(kind, scratch.path());
        for (threads, pages) in [(1, 1), (5, 7)] {
            let load = Load { threads, pages, seed: 9 };
            // Only commits that end in time count, and a disk may take seconds for one.
            let mut samples = (0..12).map(|nth| {
                one(&subject, load, Duration::from_millis(60_u64 << nth), &Stop::never()).unwrap()
            });
            let sample = samples.find(|sample| sample.took.count() > 0).expect("commits end");
            assert!(sample.rate > 0.0 && sample.took.us(100.0) > 0.0, "{}", kind.name);
        }
        let Compared { pages, ledger, .. } = subject;
        drop(pages);
        verify(kind, scratch.path(), ROOM, &ledger).unwrap();
        // A change that was not acknowledged, and one that is lost.
        let pages = (kind.open)(scratch.path(), ROOM).unwrap();
        pages.committer().unwrap().commit(&[3], &mut |page, value| change(page, value).map(|_| ())).unwrap();
        drop(pages);
        assert!(verify(kind, scratch.path(), ROOM, &ledger).is_err(), "{}", kind.name);
        let wanting = Ledger::new(ROOM.pages);
        assert!(verify(kind, scratch.path(), ROOM, &wanting).is_err(), "{}", kind.name);
    }
}

#[test]
fn a_commit_that_fails_ends_all_threads() {
    for kind in kinds() {
        let scratch = Scratch::new(Path::new("/var/tmp")).unwrap();
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
        let load = Load { threads: 3, pages: ROOM.pages.try_into().unwrap(), seed: 1 };
        let wrong = Compared { ledger: Ledger::new(ROOM.pages + 1000), ..subject };
        assert!(one(&wrong, load, Duration::from_secs(5), &Stop::never()).is_err(), "{}", kind.name);
    }
}

#[test]
fn the_best_peer_is_no_limit() {
    let samples = |subject, values: &[f64]| Samples { subject, values: values.to_vec() };
    let all = [
        samples(tree::KIND.name, &[9.0]),
        samples("a", &[1.0, 1.0, 8.0]),
        samples("b", &[2.0, 2.0, 2.0]),
        samples(LIMIT, &[10.0]),
    ];
    assert_eq!(best_peer(&all), Some("b"));
    assert_eq!(best_peer(&all[..1]), None);
}
