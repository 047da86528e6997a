//! The doctor on a host where files that belong to no database hold most of the page cache: an
//! archive that nobody has open, and the file of a program that no profile knows. fincore counts
//! them, too.
//!
//! Needs root, a loop device, util-linux's `fincore` and a few GiB of free memory; skips with a
//! sentence otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`.

use std::fs::File;
use std::io::{Read, copy, sink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagekeeper_kernel::pressure::{MemInfo, SysRoots};
use serde_json::{Value, json};

use crate::support;
use crate::support::command::run;
use crate::support::loop_images::LoopImage;
use crate::support::{MIB, doctor_report};

/// Files of the archive.
const FILE_COUNT: u64 = 3;

/// Returns a fully resident file; holes have pages like other parts.
fn cached(path: &Path, bytes: u64) -> File {
    let file =
        File::options().create(true).truncate(true).read(true).write(true).open(path).expect("make a file");
    file.set_len(bytes).expect("give it a size");
    copy(&mut (&file).take(bytes), &mut sink()).expect("read it");
    file
}

fn holder<'a>(report: &'a Value, path: &Path) -> Option<&'a Value> {
    let holders = report["inspected"]["largest_elsewhere"].as_array().expect("holders");
    holders.iter().find(|holder| holder["path"].as_str() == path.to_str())
}

#[test]
#[ignore = "long: make test-stories"]
fn other_holders_of_page_cache_are_named() {
    let programs = LoopImage::programs("ext4");
    let programs: Vec<&str> = programs.iter().map(String::as_str).chain(["fincore", "sleep"]).collect();
    if !support::can_run("the doctor and files of no database", &programs) {
        return;
    }
    let _alone = support::alone();
    // A file system of its own, as archives often have: it is walked before the root, which may
    // exceed the time limit.
    let image = LoopImage::new("ext4", 8 << 30);
    let archive = image.path().join("archive of WAL");
    std::fs::create_dir(&archive).expect("make a directory");
    // The two files together exceed a tenth of memory, above which the doctor reports them.
    let memory = MemInfo::read(&SysRoots::default()).expect("read /proc/meminfo").total;
    let each = (memory / 19).max(520 * MIB).next_multiple_of(FILE_COUNT * MIB) / FILE_COUNT;
    let logs: Vec<PathBuf> =
        (0..FILE_COUNT).map(|at| archive.join(format!("00000001000000000000000{at}"))).collect();
    for log in &logs {
        drop(cached(log, each));
    }
    let open = image.path().join("db");
    // A process that reads nothing itself is no database.
    let held = cached(&open, each * FILE_COUNT);
    let mut holder_process =
        Command::new("sleep").arg("600").stdin(Stdio::from(held)).spawn().expect("start sleep");

    let counted = || [&logs[..], std::slice::from_ref(&open)].map(support::resident_bytes);

    // Some machines page out idle memory, so the reported size lies between two counts of fincore.
    let before = counted();
    let report = doctor_report::of(&run(["doctor", "--elsewhere", "--json", "--watch", "100ms"]));
    let after = counted();
    let found = [&archive, &open]
        .map(|path| holder(&report, path).unwrap_or_else(|| panic!("{path:?} of {:#}", report["inspected"])));
    for ((found, before), after) in found.iter().zip(before).zip(after) {
        let resident = found["resident_bytes"].as_u64().expect("bytes");
        assert!((after..=before).contains(&resident), "fincore: {before}, then {after}; {found:#}");
    }
    assert_eq!((&found[0]["files"], &found[0]["open_in"]), (&json!(FILE_COUNT), &json!([])));
    assert_eq!(found[1]["open_in"][0]["pid"], json!(holder_process.id()), "{:#}", found[1]);

    // Without `--elsewhere` no foreign file is opened, and the file alone is below the reported
    // size.
    let text = run(["doctor", "--watch", "100ms"]).stdout;
    assert!(text.contains("`pagekeeper doctor --elsewhere`") && !text.contains("archive of WAL"), "{text}");

    // The text for people; its command evicts them.
    let text = run(["doctor", "--elsewhere", "--watch", "100ms"]).stdout;
    assert!(text.contains("elsewhere") && text.contains("`pagekeeper evict PATH`"), "{text}");
    let outcome = run(["evict", archive.to_str().expect("plain")]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let report = doctor_report::of(&run(["doctor", "--elsewhere", "--json", "--watch", "100ms"]));
    assert_eq!(holder(&report, &archive), None);

    let of_directory = run(["doctor", "--elsewhere", "--watch", "100ms", archive.to_str().expect("plain")]);
    assert_eq!(of_directory.code, 64, "{of_directory:?}");
    holder_process.kill().and_then(|()| holder_process.wait()).expect("end sleep");
}
