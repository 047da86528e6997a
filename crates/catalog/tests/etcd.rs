//! A profile of a user's own, in TOML alone: etcd, whose WAL segments have hexadecimal numbers and are preallocated. The names are
//! those of etcd 3.4.

use std::path::Path;

use pagekeeper_catalog::{PositionSpec, Profile};
use pagekeeper_policy::{FileClass, Rewrite, RewriteSource};

#[test]
fn a_profile_in_toml_alone_knows_the_files_of_etcd() {
    let profile = Profile::parse(include_str!("etcd.toml"), Path::new("etcd.toml")).unwrap();
    for (path, expected) in [
        ("wal/0000000000000000-0000000000000000.wal", Some(FileClass::Wal)),
        ("wal/0000000000000001-0000000000002f4a.wal", Some(FileClass::Wal)),
        ("wal/1.tmp", Some(FileClass::Wal)),
        ("snap/db", Some(FileClass::Data)),
        ("snap/0000000000000002-0000000000002711.snap", Some(FileClass::Data)),
        ("wal/0000000000000001.wal", None),
        ("wal", None),
    ] {
        assert_eq!(profile.class_of(&Path::new("/var/lib/etcd/member").join(path)), expected, "{path}");
    }
    let sequence = |name: &str| {
        let path = Path::new("/var/lib/etcd/member/wal").join(name);
        let (log, matched) = profile.log_of(&path).unwrap();
        (log, matched.stem().concat(), matched.number.sequence(None))
    };
    let first = sequence("000000000000000f-0000000000002f4a.wal");
    let next = sequence("0000000000000010-00000000000101c3.wal");
    assert_eq!((first.0, &first.1, first.2 + 1), (next.0, &next.1, next.2), "neighbours in one log");
    let log = &profile.logs[0];
    assert_eq!(
        (log.rewrite, log.position),
        (RewriteSource::Known(Rewrite::Never), PositionSpec::Preallocated)
    );
}
