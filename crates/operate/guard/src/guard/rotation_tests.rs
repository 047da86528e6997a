//! Tests of which logs processes are seen to have open when logs are rotated, and of the listings
//! for that. As root, beside processes of their own users. Listings come only on request here, so
//! everything that is seen was looked for.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::claim_tests::{DATABASE, Fake, OTHER, Watch, directory, log, scratch};
use super::sampling::descriptors;
use crate::config::Options;

/// A shell script that runs the file `step` in its directory, and then removes it.
const STEPS: &str = "while :; do if [ -e step ]; then . ./step; rm step; fi; sleep 0.01; done";

/// A process in a directory that opens and closes logs on demand.
struct Process {
    fake: Fake,
    place: PathBuf,
}

impl Process {
    fn start(scratch: &Path, name: &str, user: u32, place: PathBuf, script: &str) -> Self {
        let fake = Fake::start(scratch, name, user, &place, script);
        std::fs::write(place.join("go"), STEPS).unwrap();
        Self { fake, place }
    }

    fn run_step(&self, script: &str) {
        let step = self.place.join("step");
        std::fs::write(self.place.join("step.new"), script).unwrap();
        std::fs::rename(self.place.join("step.new"), &step).unwrap();
        let began = Instant::now();
        while step.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "{script} is not done");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A server with one log, of which everything is known.
struct Rotating {
    watch: Watch,
    server: Process,
    data: PathBuf,
    /// A process that is not a database.
    reader: Process,
}

impl Rotating {
    fn start(scratch: &Path) -> Self {
        let data = directory(scratch.join("data"), DATABASE, 0o755);
        std::fs::write(data.join("binlog.index"), "").unwrap();
        log(data.join("binlog.000001"), DATABASE, 0o644);
        let place = directory(scratch.join("place"), OTHER, 0o755);
        let reader = Process::start(scratch, "reads", OTHER, place, ":");
        let server = Process::start(scratch, "mariadbd", DATABASE, data.clone(), "exec 3>>binlog.000001");
        let options = Options { find: false, pids: vec![server.fake.pid()], ..Options::default() };
        let mut all = Self { watch: Watch::with(options), server, data, reader };
        all.watch.tick_past_listing();
        assert!(all.sees(&all.server, 1));
        all
    }

    fn tick(&mut self) {
        self.watch.tick();
        let watched = &mut self.watch.guard.watched;
        watched.databases[0].descriptors.schedule.on_demand_alone();
        watched.others.schedule.on_demand_alone();
    }

    fn path(&self, number: u32) -> PathBuf {
        self.data.join(format!("binlog.{number:06}"))
    }

    /// Returns whether a process is seen to have that log open.
    fn sees(&self, process: &Process, number: u32) -> bool {
        let inode = std::fs::metadata(self.path(number)).unwrap().ino();
        let pid = process.fake.pid();
        let watched = &self.watch.guard.watched;
        descriptors(&watched.databases, &watched.others)
            .any(|seen| seen.pid == pid && seen.inode.ino == inode)
    }

    /// Ticks until a log is seen. A requested listing may have to wait for the cost of the last
    /// one.
    fn tick_until_seen(&mut self, who: &str, number: u32) {
        let began = Instant::now();
        loop {
            self.tick();
            let process = if who == "server" { &self.server } else { &self.reader };
            if self.sees(process, number) {
                break;
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{who} at {number}: {:#?}",
                self.watch.reports
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns how often all descriptors of the server, and of all other processes, were listed.
    fn listing_counts(&self) -> [usize; 2] {
        let watched = &self.watch.guard.watched;
        [watched.databases[0].descriptors.schedule.ended, watched.others.schedule.ended]
    }

    /// Rotates the log, at one descriptor or at two.
    fn rotate(&mut self, to: u32, from: u32, at: u32) {
        self.server.run_step(&format!("exec {from}>&-; exec {at}>>binlog.{to:06}"));
    }
}

/// Returns whether the kernel counts descriptors.
fn kernel_counts_descriptors() -> bool {
    let counts = pagekeeper_kernel::process::ProcRoot::default().fd_count(std::process::id()).is_some();
    if !counts {
        pagekeeper_testing::skip("the kernel does not say how many descriptors a process has (Linux 6.2)");
    }
    counts
}

#[test]
fn a_log_that_is_rotated_is_seen_without_a_listing() {
    let Some(scratch) = scratch("rotations").filter(|_| kernel_counts_descriptors()) else { return };
    let mut all = Rotating::start(scratch.path());
    all.tick();
    let before = all.listing_counts();
    for number in 2..10 {
        // A directory is not listed again at once.
        std::thread::sleep(Duration::from_millis(250));
        all.rotate(number, 3, 3);
        all.tick_until_seen("server", number);
    }
    let after = all.listing_counts();
    // If its directory had to wait, the descriptor is missed first.
    assert!(after[0] - before[0] <= 1 && after[1] == before[1], "{before:?} {after:?}");
}

#[test]
fn a_server_that_opens_logs_at_new_descriptors_is_listed() {
    let Some(scratch) = scratch("rotations to other descriptors") else { return };
    let mut all = Rotating::start(scratch.path());
    let mut at = 3;
    for (number, next) in (2..).zip([5, 4, 7, 6, 9, 8]) {
        all.rotate(number, at, next);
        all.tick_until_seen("server", number);
        at = next;
    }
    all.tick_until_seen("server", 7);
}

#[test]
fn a_follower_in_the_server_that_begins_at_a_rotation_is_seen() {
    let Some(scratch) = scratch("a follower that begins at a rotation") else { return };
    let mut all = Rotating::start(scratch.path());
    // The follower is anywhere, and where the writer was.
    for (number, follower, writer) in [(2, 5, 3), (22, 3, 4)] {
        all.server.run_step(&format!(
            "exec 3>&-; exec {follower}<binlog.000001; exec {writer}>>binlog.{number:06}"
        ));
        all.tick_until_seen("server", number);
        assert!(all.sees(&all.server, 1), "a follower that lags");
        // The next round begins as this one did.
        all.server.run_step(&format!("exec {follower}<&-"));
        all.tick();
        assert!(!all.sees(&all.server, 1));
        all.server.run_step(&format!("exec {writer}>&-; exec 3>>binlog.{:06}", number + 10));
        all.tick_until_seen("server", number + 10);
    }
}

#[test]
fn a_follower_elsewhere_is_seen_when_logs_are_rotated() {
    let Some(scratch) = scratch("a follower in another process") else { return };
    let mut all = Rotating::start(scratch.path());
    let opens = |all: &Rotating, number: u32| format!("exec 3<{}", all.path(number).display());
    // The reader is new, and opens an old log.
    let step = opens(&all, 1);
    all.reader.run_step(&step);
    all.rotate(2, 3, 3);
    all.tick_until_seen("reader", 1);
    // The reader moves to the next log, at the same number, and later without a descriptor in
    // between.
    let step = opens(&all, 2);
    all.reader.run_step(&step);
    all.tick_until_seen("reader", 2);
    all.reader.run_step("exec 3<&-");
    for _ in 0..3 {
        all.tick();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!all.sees(&all.reader, 2));
    let step = opens(&all, 2);
    all.reader.run_step(&format!("exec 4</dev/null; {step}; exec 4<&-"));
    all.rotate(3, 3, 3);
    all.tick_until_seen("reader", 2);
}
