//! Real programs on real file systems: pages they bring in go, and a hot file beside them stays.
//! Residency is counted by fincore(1).

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagekeeper_streams::{
    StreamEvent, StreamOptions, StreamPace, StreamReport, StreamTotals, Streams, Verdict,
};
use pagekeeper_testing::{Mounted, Rng, skip};

mod cases;

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 96 * MIB;
const HOT_BYTES: u64 = 16 * MIB;
/// A deadline longer than any of it takes on a busy machine.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(120);

/// A file system with a large file that is not resident, and a hot one that is.
struct Place {
    mounted: Mounted,
    kind: &'static str,
}

/// Returns the places that are available here.
fn places() -> impl Iterator<Item = Place> {
    ["ext4", "xfs", "btrfs"].into_iter().filter_map(|kind| Some(Place { mounted: Mounted::new(kind)?, kind }))
}

impl Place {
    fn at(&self, name: &str) -> PathBuf {
        self.mounted.path().join(name)
    }

    fn write(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.at(name);
        let mut rng = Rng::from_seed(bytes);
        let content: Vec<u8> = (0..bytes / 8).flat_map(|_| rng.number().to_ne_bytes()).collect();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes all to the disk, drops these files' pages, and reads the hot file.
    fn settle(&self, files: &[PathBuf]) {
        rustix::fs::syncfs(File::open(self.mounted.path()).unwrap()).unwrap();
        for file in files.iter().filter(|file| file.exists()) {
            let opened = File::open(file).unwrap();
            rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let mut hot = Vec::new();
        File::open(self.at("hot")).unwrap().read_to_end(&mut hot).unwrap();
        assert_eq!(resident(&[self.at("hot")]), HOT_BYTES);
    }
}

/// Returns the resident bytes of the existing ones of these files.
fn resident(paths: &[PathBuf]) -> u64 {
    let mut sum = 0;
    for part in paths.chunks(500) {
        let output =
            Command::new("fincore").args(["-b", "-n", "-r", "-o", "RES"]).args(part).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        sum += String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| line.trim().parse::<u64>().unwrap())
            .sum::<u64>();
    }
    sum
}

fn streams(names: &[&str]) -> Option<Streams> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let options = StreamOptions {
        names,
        members: None,
        never: Vec::new(),
        decide: Box::new(|_, _| Verdict::Release),
        pace: StreamPace::Auto,
    };
    match Streams::start(options) {
        Ok(streams) => Some(streams),
        Err(error) => {
            skip(error);
            None
        }
    }
}

/// Returns a program that waits for a line before it begins.
fn waiting(words: &[&str]) -> Child {
    let mut sh = Command::new("sh");
    sh.args(["-c", "read go; exec \"$@\"", "sh"]).args(words);
    sh.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Follows a program from its start to its end, until nothing is left to release.
fn followed(words: &[&str]) -> Option<(Vec<StreamEvent>, StreamReport)> {
    let mut streams = streams(&[])?;
    let mut child = waiting(words);
    streams.follow(child.id()).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let events = follow_to_end(&mut streams);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some((events, streams.report()))
}

/// Follows until nothing runs and nothing is left to release.
fn follow_to_end(streams: &mut Streams) -> Vec<StreamEvent> {
    let mut events = Vec::new();
    let until = Instant::now() + FOLLOW_TIMEOUT;
    loop {
        events.extend(streams.step());
        if streams.running() == 0 && !streams.is_busy() {
            return events;
        }
        assert!(Instant::now() < until, "{:?}", streams.report());
        streams.wait(Duration::from_millis(100));
    }
}

/// Checks that nearly no page of these files is left, that the report accounts for all pages
/// brought in, and that the hot file stayed.
fn check(place: &Place, words: &[&str], files: &[PathBuf], came: u64) {
    place.settle(files);
    let Some((events, report)) = followed(words) else { return };
    let context = format!("{} on {}: {report:?}", words[0], place.kind);
    let left = resident(files);
    assert!(left <= came / 100, "{left} bytes left, {context}");
    assert!(is_nearly(resident(&[place.at("hot")]), HOT_BYTES), "{context}");
    let totals = report.totals;
    assert_eq!(totals.added, totals.released + totals.handed_on + totals.gone + totals.resident, "{context}");
    assert!(totals.released >= came / 10 * 9, "{context}");
    assert!(totals.resident <= came / 100, "{context}");
    let ended = events.iter().filter(|event| matches!(event, StreamEvent::Ended { .. })).count();
    let began = events.iter().filter(|event| matches!(event, StreamEvent::Began { .. })).count();
    assert!(began > 0 && began == ended, "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, StreamEvent::Problem { .. })), "{events:?}");
}

/// Whether all but a hundredth of what is to be resident is: the kernel may reclaim some of it.
fn is_nearly(resident: u64, expected: u64) -> bool {
    (expected - expected / 100..=expected).contains(&resident)
}

fn has(program: &str) -> bool {
    let found =
        Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        skip(format_args!("a stream of {program} needs {program}"));
    }
    found
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_static_program_s_copy() {
    if !has("busybox") {
        return;
    }
    for place in places() {
        place.write("hot", HOT_BYTES);
        let (from, to) = (place.write("from", FILE_BYTES), place.at("to"));
        check(
            &place,
            &["busybox", "cp", text(&from), text(&to)],
            &[from.clone(), to.clone()],
            2 * FILE_BYTES,
        );
        assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
    }
}

#[test]
fn reads_by_io_uring_and_by_a_mapping() {
    if !has("fio") {
        return;
    }
    for place in places() {
        place.write("hot", HOT_BYTES);
        let file = place.write("file", FILE_BYTES);
        let name = format!("--filename={}", text(&file));
        let size = format!("--size={FILE_BYTES}");
        for engine in ["--ioengine=io_uring", "--ioengine=mmap"] {
            let words = [
                "fio",
                "--name=read",
                &name,
                &size,
                "--rw=read",
                "--bs=128k",
                "--invalidate=0",
                "--thread",
                engine,
            ];
            check(&place, &words, std::slice::from_ref(&file), FILE_BYTES);
        }
    }
}

#[test]
fn an_archive_of_many_files() {
    for place in places() {
        place.write("hot", HOT_BYTES);
        std::fs::create_dir(place.at("many")).unwrap();
        let mut files: Vec<PathBuf> = (0..2000)
            .map(|number| place.write(&format!("many/{number}"), 16_384 + number % 7 * 4096))
            .collect();
        let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
        let (archive, many) = (place.at("archive"), place.at("many"));
        files.push(archive.clone());
        check(&place, &["tar", "-cf", text(&archive), text(&many)], &files, 2 * bytes);
    }
}

/// Twice as many as the kernel's buffer has room for.
const PAGES: u64 = 120_000;
/// Reads each page of a file by a call of its own.
const EACH_PAGE: &str = "import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
for page in range(int(sys.argv[2])): os.pread(fd, 1, page * 4096)";

/// The program ends before its events are read, and the kernel's buffer holds only a part of them.
#[test]
fn additions_lost_by_the_kernels_buffer_are_released() {
    for place in places() {
        let path = place.at("sparse");
        File::create_new(&path).unwrap().set_len(PAGES * 4096).unwrap();
        let Some(mut streams) = streams(&[]) else { return };
        let mut child = waiting(&["python3", "-c", EACH_PAGE, text(&path), &PAGES.to_string()]);
        streams.follow(child.id()).unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success(), "{}", place.kind);
        assert!(is_nearly(resident(std::slice::from_ref(&path)), PAGES * 4096), "{}", place.kind);
        follow_to_end(&mut streams);
        assert_eq!(resident(&[path]), 0, "{}: {:?}", place.kind, streams.report());
        let report = streams.report();
        let StreamTotals { released, gone, .. } = report.totals;
        assert!(released + gone >= PAGES * 4096 / 100 * 99, "{}: {report:?}", place.kind);
    }
}

/// The rate is printed, and so are the events for which the kernel's buffer had no room.
#[test]
fn single_pages_are_released_at_the_rate_of_additions() {
    for place in places() {
        let path = place.at("sparse");
        File::create_new(&path).unwrap().set_len(PAGES * 4096).unwrap();
        let words = ["python3", "-c", EACH_PAGE, text(&path), &PAGES.to_string()];
        let began = Instant::now();
        let Some((_, report)) = followed(&words) else { return };
        let (millis, lost) = (began.elapsed().as_millis(), report.lost_bytes / 4096);
        let rate = u128::from(PAGES) * 1000 / millis.max(1);
        println!("{}: {rate} additions a second, {lost} lost for good", place.kind);
        assert_eq!(resident(&[path]), 0, "{}: {report:?}", place.kind);
        assert!(report.totals.added >= PAGES * 4096, "{}: {report:?}", place.kind);
    }
}

#[test]
fn programs_are_followed_by_their_names() {
    let Some(place) = Mounted::new("ext4").map(|mounted| Place { mounted, kind: "ext4" }) else { return };
    if !has("busybox") {
        return;
    }
    let busybox = Command::new("sh").args(["-c", "command -v busybox"]).output().unwrap();
    let busybox = String::from_utf8(busybox.stdout).unwrap();
    // A shell that runs already, whose child reads; and a reader that is started later.
    for name in ["pkshell", "pkreader"] {
        std::fs::copy(busybox.trim(), place.at(name)).unwrap();
    }
    place.write("hot", HOT_BYTES);
    let [by_child, by_name] = ["child", "name"].map(|name| place.write(name, 16 * MIB));
    let other = place.write("other", 16 * MIB);
    place.settle(&[by_child.clone(), by_name.clone(), other.clone()]);
    let mut shell = Command::new(place.at("pkshell"))
        .arg0("busybox")
        .args(["sh", "-c", "read go; cat \"$1\" | wc -c", "sh"])
        .arg(&by_child)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The process has the program's name once it is executed.
    let comm = format!("/proc/{}/comm", shell.id());
    while std::fs::read_to_string(&comm).unwrap() != "pkshell\n" {
        std::thread::sleep(Duration::from_millis(1));
    }
    let Some(mut streams) = streams(&["pkshell", "pkread*"]) else {
        drop(shell.stdin.take());
        let _ = shell.wait();
        return;
    };
    assert!(streams.running() > 0, "the shell runs");
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    let reader = |name: &Path, file: &Path| {
        let read =
            Command::new(name).arg0("busybox").arg("cat").arg(file).stdout(Stdio::null()).status().unwrap();
        assert!(read.success());
    };
    reader(&place.at("pkreader"), &by_name);
    reader(Path::new(busybox.trim()), &other);
    assert!(shell.wait().unwrap().success());
    follow_to_end(&mut streams);
    assert_eq!(resident(&[by_child, by_name]), 0, "{:?}", streams.report());
    assert_eq!(resident(&[other, place.at("hot")]), 16 * MIB + HOT_BYTES, "{:?}", streams.report());
}
