//! The guard on the host, the databases in containers. Each has its own mount and pid namespaces
//! and its own root, with its data at the same path, on a volume or on the container's overlay.
//!
//! Needs root and Debian's `mariadb-server`; skips with a sentence otherwise, and fails instead
//! where `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s, of the files below an overlay.

use crate::support;
use crate::support::container::{Container, DATA, DataLocation, FILLED_BYTES_MIN, REQUIRED_PROGRAMS};
use crate::support::guard::Guard;
use crate::support::{MIB, kept_bytes, wait_until_resident_below};
use std::time::Duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Maximum resident bytes of the current binlog: twice the profile's slack.
const IDLE_LIMIT: u64 = 8 * MIB;

#[test]
fn logs_in_containers_are_found_and_released() {
    if !support::can_run("databases in containers", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let [volume, overlay] =
        [DataLocation::Disk, DataLocation::Overlay].map(|on| Container::start(scratch.path(), on));
    for container in [&volume, &overlay] {
        container.fill_binlogs();
        // This includes pages that the kernel itself paged out as idle.
        let resident = kept_bytes(&container.binlogs());
        assert!(resident >= FILLED_BYTES_MIN, "only {resident} bytes are resident without a guard");
    }

    let guard = Guard::spawn(&["--tick", "200ms"]);
    for container in [&volume, &overlay] {
        let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == container.pid());
        let directories = found["directories"].as_array().expect("a list");
        assert!(found["profile"] == "mariadb" && directories.contains(&DATA.into()), "{found}");
        wait_until_resident_below(&container.binlogs(), IDLE_LIMIT, WAIT_TIMEOUT);
    }

    // One server ends: its file system is released, and the other one, at the same path, is still
    // served.
    let ended = volume.pid();
    volume.end();
    guard.wait_for("lost", WAIT_TIMEOUT, |event| event["pid"] == ended);
    let before = overlay.binlogs().len();
    overlay.fill_binlogs();
    assert!(overlay.binlogs().len() >= before + 2, "no new binlogs");
    wait_until_resident_below(&overlay.binlogs(), IDLE_LIMIT, WAIT_TIMEOUT);

    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let released = ended.summary()["released_bytes"]["binlog"].as_u64();
    assert!(released > Some(3 * FILLED_BYTES_MIN - 4 * IDLE_LIMIT), "{}", ended.summary());
    let problems: Vec<_> = ended
        .events
        .iter()
        .filter(|event| event["event"] == "problem")
        .filter(|event| event["path"].as_str().is_some_and(|path| path.starts_with(DATA)))
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
    println!("{}", ended.summary());
}
