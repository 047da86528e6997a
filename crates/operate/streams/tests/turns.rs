//! Programs that read from a disk on which others wait are held in turns; alone on it they are not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagekeeper_streams::{OthersOnDisks, StreamOptions, StreamPace, Streams, Verdict};
use pagekeeper_testing::{Mounted, skip};

/// A deadline longer than any of it takes on a busy machine.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(120);

fn streams(pace: StreamPace) -> Option<Streams> {
    let decide = Box::new(|_, _: Option<&Path>| Verdict::Release);
    let options = StreamOptions { names: Vec::new(), members: None, never: Vec::new(), decide, pace };
    Streams::start(options).map_err(skip).ok()
}

/// Returns a private file system with a cold file of 64 MiB.
fn cold_file() -> Option<(Mounted, PathBuf)> {
    let mounted = Mounted::new("ext4")?;
    let path = mounted.path().join("file");
    std::fs::write(&path, vec![7; 64 << 20]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    Some((mounted, path))
}

/// Killed when dropped, with all that it started.
struct Reader(Child, u32);

impl Reader {
    /// Reads the file over and over, by `dd` with these words; under a shell, since children of
    /// this process are not held.
    fn new(path: &Path, words: &str) -> Self {
        let script = format!("while :; do dd if=\"$1\" of=/dev/null status=none bs=64k {words}; done");
        let mut shell = Command::new("setsid")
            .args(["sh", "-c", "read -r go; sh -c \"$2\" sh \"$1\" & echo $!; wait", "sh"])
            .args([path.as_os_str(), script.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self(shell, line.trim().parse().unwrap())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

fn step_until(streams: &mut Streams, mut is_so: impl FnMut(&Streams) -> bool) {
    let end = Instant::now() + FOLLOW_TIMEOUT;
    while !is_so(streams) {
        assert!(Instant::now() < end, "{:?}", streams.report());
        streams.step();
        streams.wait(Duration::from_millis(10));
    }
}

/// Steps until the streams have read this much without a hold. Other tests may read their programs
/// from the same disk, and the streams then wait.
fn read_without_a_hold(streams: &mut Streams, mib: u64) {
    let seen = |streams: &Streams| (streams.report().held, streams.report().totals.added);
    let mut last = seen(streams);
    step_until(streams, |streams| {
        let (held, added) = seen(streams);
        if held != last.0 {
            last = (held, added);
        }
        added > last.1 + (mib << 20)
    });
}

#[test]
fn a_reader_has_its_turns_beside_others_and_the_whole_disk_alone() {
    let Some((_mounted, path)) = cold_file() else { return };
    let Some(mut streams) = streams(StreamPace::Auto) else { return };
    let reader = Reader::new(&path, "iflag=nocache");
    streams.follow(reader.1).unwrap();
    read_without_a_hold(&mut streams, 512);
    let alone = streams.report().held;
    let other = Reader::new(&path, "iflag=direct");
    step_until(&mut streams, |streams| streams.report().held > alone);
    drop(other);
    read_without_a_hold(&mut streams, 512);
}

#[test]
fn without_a_pace_nobody_is_held() {
    let Some((_mounted, path)) = cold_file() else { return };
    let Some(mut streams) = streams(StreamPace::Off) else { return };
    let readers = [Reader::new(&path, "iflag=nocache"), Reader::new(&path, "iflag=direct")];
    streams.follow(readers[0].1).unwrap();
    step_until(&mut streams, |streams| streams.report().totals.added >= 256 << 20);
    assert_eq!(streams.report().held, Duration::ZERO);
}

/// Looks until others on the disk have a share, or until they have none.
fn look_until_others(others: &mut OthersOnDisks, disk: u64, are_there: bool) {
    let end = Instant::now() + FOLLOW_TIMEOUT;
    while others.share(disk).is_none() == are_there {
        assert!(Instant::now() < end, "{others:?}");
        std::thread::sleep(Duration::from_millis(10));
        others.look();
    }
}

#[test]
fn a_task_of_this_process_sees_others_on_its_disk_and_not_itself() {
    let Ok(mut others) = OthersOnDisks::start().map_err(skip) else { return };
    let Some((_mounted, path)) = cold_file() else { return };
    let device = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(&path).unwrap());
    let disk = pagekeeper_kernel::disk_of(Path::new("/sys"), device).unwrap();
    // The kernel itself may use the disk, but not all the time as this process does.
    let mut unused_looks = 0;
    let is_unused = |_: u32| {
        assert_eq!(std::fs::read(&path).unwrap().len(), 64 << 20);
        let file = std::fs::File::open(&path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        others.look();
        unused_looks = if others.share(disk).is_none() { unused_looks + 1 } else { 0 };
        unused_looks >= 10
    };
    assert!((0..1000).any(is_unused), "own reads count as others'");
    let reader = Reader::new(&path, "iflag=direct");
    look_until_others(&mut others, disk, true);
    drop(reader);
    look_until_others(&mut others, disk, false);
}
