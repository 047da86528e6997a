//! One table: the fate of a stream's pages if others use, change, remove or see its file. The book
//! has the same table.
//!
//! Each row is the same on each file system that it names. Nothing is released before all of a row
//! has happened, so its order is certain. Residency is counted by fincore(1).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use pagekeeper_streams::{RequestId, Requester, StreamTotals, Streams};
use pagekeeper_testing::{Mounted, skip};
use pagekeeper_trace::page_events::{FollowedNames, PageEvents};

use super::{MIB, follow_to_end, is_nearly, resident, streams, waiting};

/// Bytes of each file.
const SIZE: u64 = 8 * MIB;
const HALF: u64 = SIZE / 2;
/// Rows that happen before their pages are released; the kernel's buffer has room for the events of
/// twice as many.
const CASES_AT_A_TIME: usize = 5;
const ALL_KINDS: &[&str] = &["ext4", "xfs", "btrfs"];

/// A row, as commands of a shell in a directory with the cold files `file` and `other`. Copies are
/// made by dd(1): cp and cat would share blocks.
struct Case {
    name: &'static str,
    kinds: &'static [&'static str],
    /// By others, before the stream.
    before: &'static str,
    stream: &'static str,
    /// By others, after the stream, but before any page is released.
    then: &'static str,
    /// Bytes that are others' at the end.
    others: u64,
}

const fn case(name: &'static str, stream: &'static str) -> Case {
    Case { name, kinds: ALL_KINDS, before: "", stream, then: "", others: 0 }
}

/// Half of `file`, and no page more.
const READ_HALF: &str = "python3 -c 'import os
fd = os.open(\"file\", os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
for at in range(0, 4 << 20, 4096): os.pread(fd, 4096, at)'";
const READ: &str = "cat file >/dev/null";

const CASES: [Case; 19] = [
    case("two streams read it at once", "cat file >/dev/null & cat file >/dev/null; wait"),
    Case { before: READ_HALF, others: HALF, ..case("others had read half of it before", READ) },
    Case { then: READ_HALF, others: HALF, ..case("others read half of it after the stream", READ) },
    Case { then: "cat new >/dev/null", others: SIZE, ..case("others read what the stream wrote", "dd if=file of=new bs=1M status=none; rm file") },
    Case { then: "dd if=other of=file bs=1M status=none; rm other", others: SIZE, ..case("others write it again", READ) },
    case("it is removed", "cat file >/dev/null; rm file"),
    Case { then: "mv file away; dd if=other of=file bs=1M status=none; rm other", others: SIZE, ..case("it is renamed, and another takes its name", READ) },
    Case { then: "cat other >/dev/null; mv other file", others: SIZE, ..case("another is renamed over it", READ) },
    Case { then: "truncate --size=4M file", ..case("its second half is cut off", READ) },
    Case { then: "fallocate --punch-hole --length=4M file", ..case("a hole is made of its first half", READ) },
    Case { then: "dd if=file iflag=nocache count=0 status=none", ..case("others drop its pages", READ) },
    case("the stream's name of it, a hard link, is removed", "ln file link; cat link >/dev/null; rm link"),
    Case {
        kinds: &["xfs", "btrfs"],
        before: "cp --reflink=always file copy; cat file >/dev/null",
        others: SIZE,
        ..case("it shares its blocks with another (reflink)", "cat copy >/dev/null")
    },
    Case {
        kinds: &["btrfs"],
        before: "btrfs -q subvolume create of; dd if=file of=of/file bs=1M status=none; sync -f of; btrfs -q subvolume snapshot of snapshot; rm file",
        others: SIZE,
        ..case("it is in a snapshot, and others have the original in memory", "cat snapshot/file >/dev/null")
    },
    Case {
        before: READ_HALF,
        others: HALF,
        ..case("the stream sees it by a bind mount of its own", "unshare --mount sh -c 'mkdir b; mount --bind . b; cat b/file >/dev/null'")
    },
    Case {
        before: READ_HALF,
        others: HALF,
        ..case(
            "the stream sees it by an overlay of its own",
            "unshare --mount sh -c 'mkdir low up work all; mv file low; mount -t overlay -o lowerdir=low,upperdir=up,workdir=work none all
             cat all/file >/dev/null'",
        )
    },
    case("the stream is root of its own user namespace", "unshare --user --map-root-user cat file >/dev/null"),
    case("the stream is in its own PID namespace", "unshare --pid --fork cat file >/dev/null"),
    case("the stream overwrites it in place", "dd if=other of=file bs=1M conv=notrunc status=none; rm other"),
];

/// Formats a part of a whole: "all", "half", "none", or percent.
fn share(part: u64, whole: u64) -> String {
    match part * 100 / whole.max(1) {
        0..=9 => "none".to_owned(),
        45..=55 => "half".to_owned(),
        91.. => "all".to_owned(),
        other => format!("{other} %"),
    }
}

fn shell(script: &str, place: &Path) {
    let said = Command::new("sh").args(["-ec", script]).current_dir(place).output().unwrap();
    assert!(said.status.success(), "{script}: {}", String::from_utf8_lossy(&said.stderr));
}

/// Returns all files below a directory.
fn files_below(place: &Path) -> Vec<PathBuf> {
    let said = Command::new("find").arg(place).args(["-type", "f"]).output().unwrap();
    String::from_utf8(said.stdout).unwrap().lines().map(PathBuf::from).collect()
}

impl Case {
    /// Has it all happen, while nothing is released.
    fn happens(&self, streams: &mut Streams, place: &Path) -> RequestId {
        std::fs::create_dir(place).unwrap();
        for name in ["file", "other"] {
            shell(&format!("head -c {SIZE} /dev/urandom >{name}"), place);
        }
        shell(
            "sync -f .; for name in file other; do dd if=$name iflag=nocache count=0 status=none; done",
            place,
        );
        shell(self.before, place);
        let script = format!("cd \"$1\"; {}", self.stream);
        let mut stream = waiting(&["sh", "-ec", &script, "sh", place.to_str().unwrap()]);
        let root = Requester { user: 0, groups: vec![0] };
        let request = streams.follow_for(stream.id(), root).unwrap();
        drop(stream.stdin.take());
        let said = stream.wait_with_output().unwrap();
        assert!(said.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&said.stderr));
        shell(self.then, place);
        request
    }

    /// Returns its row, once all was released that is to be.
    fn row(&self, totals: StreamTotals, place: &Path) -> String {
        let parts = [totals.released, totals.handed_on, totals.gone].map(|part| share(part, totals.added));
        assert!(totals.added >= HALF, "{}: {totals:?}", self.name);
        assert!(is_nearly(resident(&files_below(place)), self.others), "{}: {totals:?}", self.name);
        let others = if self.others > 0 { "stay" } else { "" };
        format!("| {} | {} | {others} |", self.name, parts.join(" | "))
    }
}

fn sees_use() -> bool {
    PageEvents::open(&FollowedNames::default()).is_ok_and(|events| events.sees_use())
}

#[test]
fn the_book_shows_the_fate_of_pages_of_shared_changed_and_hidden_files() {
    if !sees_use() {
        return skip("uses of pages by others are events since Linux 6.12");
    }
    let mut rows: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for kind in ALL_KINDS {
        let Some(mounted) = Mounted::new(kind) else { continue };
        let Some(mut streams) = streams(&[]) else { return };
        let place = |case: &Case| mounted.path().join(case.name.replace(['/', ' '], "-"));
        let cases: Vec<&Case> = CASES.iter().filter(|case| case.kinds.contains(kind)).collect();
        for cases in cases.chunks(CASES_AT_A_TIME) {
            let begin = |case: &&Case| case.happens(&mut streams, &place(case));
            let requests: Vec<RequestId> = cases.iter().map(begin).collect();
            follow_to_end(&mut streams);
            for (case, request) in cases.iter().zip(requests) {
                let row = case.row(streams.request_report(request).unwrap().totals, &place(case));
                println!("{kind}: {row}");
                rows.entry(case.name).or_default().insert(row);
            }
        }
    }
    assert!(rows.values().all(|rows| rows.len() == 1), "file systems differ: {rows:#?}");
    let rows = CASES.iter().filter_map(|case| rows.get(case.name)?.first());
    let expected: Vec<&str> = rows.map(String::as_str).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/internals/streams.md");
    let page = std::fs::read_to_string(page).unwrap();
    let lines = page.lines().skip_while(|line| !line.starts_with("| the file or the stream |"));
    let shown: Vec<&str> = lines.skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(
        expected.len() < CASES.len() || shown == expected,
        "the table in the book should be\n{}",
        expected.join("\n")
    );
}
