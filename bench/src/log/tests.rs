//! Tests each kind of log on a small scale: appended records are found again.

use super::*;
use crate::scratch::ScratchDirectory;

#[test]
fn every_log_holds_the_appended_records() {
    let scratch = ScratchDirectory::new(Path::new("/var/tmp")).unwrap();
    let place = SampleDirectory { parent: scratch.path().to_path_buf() };
    for &kind in commits::COMMIT_LOG_KINDS {
        for bytes in [0, 1 << 20] {
            let dir = |dir: &Path| {
                let log = (kind.make)(dir, LogLoad { bytes })?;
                let bodies: Vec<Vec<u8>> = (1..50).map(|n: u8| vec![n; usize::from(n) * 10]).collect();
                for body in &bodies {
                    log.append(body, body[0] % 10 == 0)?;
                }
                log.hand_over()?;
                drop(log);
                let Some(check) = kind.check else { return Ok(()) };
                let mut found = Vec::new();
                check(dir, &mut |body| {
                    found.push(body.to_vec());
                    Ok(())
                })?;
                assert_eq!(found, bodies, "{}", kind.name);
                Ok(())
            };
            place.fresh(dir).unwrap();
        }
    }
}

#[test]
fn records_that_are_missing_or_garbled_are_seen() {
    let scratch = ScratchDirectory::new(Path::new("/var/tmp")).unwrap();
    let place = SampleDirectory { parent: scratch.path().to_path_buf() };
    let load = LogLoad { bytes: 2 << 20 };
    let sample = place.fresh(|dir| volume::one(ours::REDO_LOG, dir, load)).unwrap();
    assert!(sample.rate > 0.0 && sample.took.us(100.0) > 0.0);
    assert_eq!(sample.took.count(), 32);
    let forgetful = LogKind {
        name: "forgetful",
        check: Some(|dir, see| {
            let mut skipped = false;
            (ours::REDO_LOG.check.unwrap())(dir, &mut |body| {
                if std::mem::replace(&mut skipped, true) { see(body) } else { Ok(()) }
            })?;
            Ok(())
        }),
        ..ours::REDO_LOG
    };
    assert!(place.fresh(|dir| volume::one(forgetful, dir, load)).is_ok(), "a discarded record may be gone");
    let cut = LogKind { name: "cut", check: Some(|_, _| Ok(())), ..ours::REDO_LOG };
    assert!(place.fresh(|dir| volume::one(cut, dir, load)).is_err());
}
