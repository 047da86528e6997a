use super::*;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::{Command, Stdio};

use pagekeeper_testing::disk_dir;

fn opened(names: &FollowedNames) -> Option<PageEvents> {
    opened_by(|| PageEvents::open(names))
}

fn opened_by(open: impl FnOnce() -> Result<PageEvents, TraceError>) -> Option<PageEvents> {
    match open() {
        Ok(events) => Some(events),
        Err(error) if !rustix::process::geteuid().is_root() => {
            eprintln!("SKIPPED: needs root: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn drained(events: &mut PageEvents) -> Vec<PageEvent> {
    let mut all = Vec::new();
    events.drain(&mut |event| all.push(event));
    all
}

/// Returns the bytes that were added, and used, of a file.
fn sums(events: &[PageEvent], ino: u64) -> (u64, u64) {
    let len = |range: &Range<u64>| range.end - range.start;
    events.iter().fold((0, 0), |(added, used), event| match event {
        PageEvent::Added { file, bytes, .. } if file.ino == ino => (added + len(bytes), used),
        PageEvent::Used { file, bytes, .. } if file.ino == ino => (added, used + len(bytes)),
        _ => (added, used),
    })
}

fn cold_file(dir: &std::path::Path, name: &str, size: usize) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, vec![7; size]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    path
}

const SIZE: u64 = 8 << 20;

#[test]
fn a_followed_process_and_its_children_are_seen_and_nobody_else() {
    let Some(mut events) = opened(&FollowedNames::default()) else { return };
    let dir = disk_dir();
    let (own, others) = (cold_file(dir.path(), "own", 8 << 20), cold_file(dir.path(), "others", 8 << 20));
    let mut shell = Command::new("sh")
        .args(["-c", "read go; cat \"$1\" >/dev/null; cp \"$1\" \"$2\"; exit 3", "sh"])
        .args([&own, &dir.path().join("copy")])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    events.follow(shell.id()).unwrap();
    std::fs::read(&others).unwrap();
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(shell.wait().unwrap().code(), Some(3));
    let all = drained(&mut events);
    let ino = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().ino();
    let (added, used) = sums(&all, ino("own"));
    assert_eq!(added, SIZE, "each page comes once");
    assert!(!events.sees_use() || used >= SIZE, "{used}");
    assert_eq!(sums(&all, ino("copy")).0, SIZE);
    assert_eq!(sums(&all, ino("others")), (0, 0));
    let file = all.iter().find_map(|event| match event {
        PageEvent::Added { file, .. } if file.ino == ino("own") => Some(*file),
        _ => None,
    });
    assert_eq!(file.unwrap().dev, std::fs::metadata(&own).unwrap().dev(), "on ext4 and XFS");
    let names: Vec<_> = all
        .iter()
        .filter_map(|event| match event {
            PageEvent::Began { name, parent, .. } => Some((name.as_str(), *parent == shell.id())),
            _ => None,
        })
        .collect();
    assert!(names.contains(&("cat", false)) && names.contains(&("sh", true)), "{names:?}");
    let ended = all.iter().filter(|event| matches!(event, PageEvent::Ended { .. })).count();
    assert_eq!(ended, 3, "sh, cat and cp");
    assert_eq!(events.lost().unwrap(), LostEvents::default());
}

#[test]
fn uses_of_a_watched_file_are_attributed_to_their_process() {
    let Some(mut events) = opened(&FollowedNames::default()) else { return };
    if !events.sees_use() {
        return eprintln!("SKIPPED: uses by other processes need Linux 6.12");
    }
    let dir = disk_dir();
    let path = cold_file(dir.path(), "file", 4 << 20);
    let mut cat = Command::new("sh")
        .args(["-c", "read go; exec cat \"$1\" >/dev/null", "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    events.follow(cat.id()).unwrap();
    cat.stdin.take().unwrap().write_all(b"\n").unwrap();
    cat.wait().unwrap();
    drained(&mut events);
    let file = File::open(&path).unwrap();
    file.read_exact_at(&mut [0; 4096], 1 << 20).unwrap();
    let all = drained(&mut events);
    let (own, page) = (std::process::id(), page_size());
    let used = |event: &&PageEvent| {
        matches!(event, PageEvent::Used { process, is_followed: false, bytes, .. }
        if *process == own && *bytes == (1 << 20..(1 << 20) + page))
    };
    let found = all.iter().find(used).unwrap_or_else(|| panic!("{all:?}"));
    // Pages that it writes, and pages that it brings in itself.
    let written = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    written.write_all_at(&[1], 3 << 20).unwrap();
    written.write_all_at(&[1], 4 << 20).unwrap();
    let of_others = |events: &[PageEvent], at: u64| {
        events.iter().any(|event| {
            matches!(event, PageEvent::Used { process, is_followed: false, bytes, .. }
            if *process == own && bytes.contains(&at))
        })
    };
    let writes = drained(&mut events);
    assert!(of_others(&writes, 3 << 20) && of_others(&writes, 4 << 20), "{writes:?}");
    let PageEvent::Used { file: event, .. } = found else { unreachable!() };
    events.forget(event).unwrap();
    file.read_exact_at(&mut [0; 4096], 2 << 20).unwrap();
    assert_eq!(drained(&mut events), [], "it is watched no longer");
}

#[test]
fn writes_to_clean_pages_are_seen_by_calls_and_by_mappings() {
    let Some(mut events) = opened(&FollowedNames::default()) else { return };
    let dir = disk_dir();
    let (new, old, mapped) = (
        dir.path().join("new"),
        cold_file(dir.path(), "old", 8 << 20),
        cold_file(dir.path(), "mapped", 4 << 20),
    );
    // Resident and clean: only writes to it are events.
    std::fs::read(&old).unwrap();
    let mut shell = Command::new("sh")
        .args(["-c", "read go; head -c 4194304 /dev/zero >\"$1\"; dd if=/dev/zero of=\"$2\" bs=1M count=2 conv=notrunc 2>&1
            python3 -c 'import mmap, sys
f = open(sys.argv[1], \"r+b\"); m = mmap.mmap(f.fileno(), 0)
for at in range(0, len(m), 4096): m[at] = 1' \"$3\"", "sh"])
        .args([&new, &old, &mapped])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    events.follow(shell.id()).unwrap();
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    let has_python = shell.wait().unwrap().success();
    let all = drained(&mut events);
    let dirtied = |name: &str| -> u64 {
        let ino = std::fs::metadata(dir.path().join(name)).unwrap().ino();
        all.iter()
            .map(|event| match event {
                PageEvent::Dirtied { file, bytes, .. } if file.ino == ino => bytes.end - bytes.start,
                _ => 0,
            })
            .sum()
    };
    assert_eq!(dirtied("new"), 4 << 20);
    // Folios are written to as a whole, and the last one may be larger than the part that is
    // written.
    assert!((2 << 20..=4 << 20).contains(&dirtied("old")), "{}", dirtied("old"));
    if has_python {
        assert_eq!(dirtied("mapped"), 4 << 20);
    }
    assert_eq!(events.lost().unwrap().writes, 0);
}

#[test]
fn programs_are_followed_by_name_from_their_start() {
    let names = FollowedNames { streams: vec!["dd".into(), "bas*".into()], never: vec!["basename".into()] };
    let Some(mut events) = opened(&names) else { return };
    for program in ["dd", "base64", "basename", "true"] {
        let status = Command::new(program).arg("--version").stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "{program}");
    }
    let began: Vec<String> = drained(&mut events)
        .into_iter()
        .filter_map(|event| match event {
            PageEvent::Began { name, .. } => Some(name),
            _ => None,
        })
        .collect();
    // Other tests may start some of them meanwhile.
    assert!(began.iter().any(|name| name == "dd") && began.iter().any(|name| name == "base64"), "{began:?}");
    assert!(!began.iter().any(|name| name == "basename" || name == "true"), "{began:?}");
}

/// Names count for a single process below this one, and for the processes that it starts.
#[test]
fn names_count_below_a_process() {
    let names = FollowedNames { streams: vec!["dd".into()], never: Vec::new() };
    let Some(mut events) = opened_by(|| PageEvents::open_below(&names)) else { return };
    assert!(!events.heeds_names(), "nobody was named yet");
    let start = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let line = "read line; dd --version; sh -c 'dd --version; true'; dd if=/dev/null status=none; true";
    let (mut other, mut chosen) = (start(line), start(line));
    events.heed_names_below(chosen.id()).unwrap();
    assert!(events.heeds_names());
    for child in [&mut other, &mut chosen] {
        drop(child.stdin.take());
    }
    other.wait().unwrap();
    chosen.wait().unwrap();
    assert!(!events.heeds_names(), "all have ended");
    let began = drained(&mut events).into_iter().filter(|event| matches!(event, PageEvent::Began { .. }));
    assert_eq!(began.count(), 3, "of the one that was named");
}

#[test]
fn names_are_keys_of_the_bits_that_count() {
    let bits = |name: &str| name_key(name).map(|key| u32::from_ne_bytes(key[..4].try_into().unwrap()));
    assert_eq!([bits("tar"), bits("pg_*"), bits("*")], [Some(32), Some(24), Some(0)]);
    for refused in ["", "a*b", "*a", "a-name-of-16-byte"] {
        assert_eq!(bits(refused), None, "{refused}");
    }
    assert_eq!(bits("fifteen-bytes-x"), Some(128));
}

#[test]
fn a_long_read_counts_while_it_runs() {
    let mut readers = PendingReads::new();
    let mut used = |asked: Range<u64>| used_now(&mut readers, (1, 1), asked);
    assert_eq!(used(0..2000), 0..512);
    assert_eq!(used(1000..2000), 512..1512);
    assert_eq!(used(1900..2000), 1512..2000);
    assert_eq!(used(2000..2010), 2000..2010);
    // The reader moves elsewhere: its earlier request is not known to be used.
    assert_eq!(used(5000..9000), 5000..5512);
    assert_eq!(used(100..200), 100..200);
}

#[test]
fn events_that_find_no_space_in_the_buffer_are_counted() {
    let Some(mut events) = opened(&FollowedNames::default()) else { return };
    let dir = disk_dir();
    let file = File::create_new(dir.path().join("sparse")).unwrap();
    let pages = 2 * u64::from(EVENT_RING_BYTES) / 64;
    file.set_len(pages * page_size()).unwrap();
    let file = File::open(dir.path().join("sparse")).unwrap();
    // Each page comes by itself.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    events.follow(std::process::id()).unwrap();
    for page in 0..pages {
        file.read_exact_at(&mut [0], page * page_size()).unwrap();
    }
    events.unfollow(std::process::id()).unwrap();
    let added = sums(&drained(&mut events), file.metadata().unwrap().ino()).0 / page_size();
    // Other tests add pages in this process as well.
    let lost = events.lost().unwrap().pages;
    assert!(added < pages && added + lost >= pages, "{added} seen, {lost} lost of {pages}");
}
