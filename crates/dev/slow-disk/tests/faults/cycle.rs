//! A life of a store or log: cycles of opening, committing, and losing power, on one disk.
//!
//! Invariants: an acknowledgement counts if it was read from the pipe, because its writer cannot
//! have got it from a disk without power; later output of a process comes from its memory. Fails
//! with the error and the seed of the life. A seed repeats the random choices, but not the
//! interleaving of threads.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pagekeeper_testing::Rng;

use crate::device::{self, Cleaner, on_device};
use crate::disk::{Disk, Faults, mount_point, unmount};
use crate::file::{self, CutOutcome};
use crate::oracle::{Line, Oracle};
use crate::subjects::Subject;

/// The variable with the task of the process under test: subject, way of writing, cycle, whether to
/// close at once, and directory.
pub(crate) const TASK_VARIABLE: &str = "PAGEKEEPER_FAULTS_CHILD";
/// The longest time of a cycle that does not reach its cut.
const CYCLE_TIME_MAX: Duration = Duration::from_secs(5);
/// The longest time of an undisturbed opening.
const OPENING_TIME_MAX: Duration = Duration::from_secs(120);
const IMAGE: &str = "image";

/// The place of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilePlace {
    /// On the disk itself.
    Files,
    /// In a file system on a loop device over one file of the disk.
    On(&'static str),
}

/// The behaviour of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskBehaviour {
    /// Only the power is lost.
    Honest,
    /// In addition, now and then a write or sync fails, there is no room, or a block cannot be
    /// read. Under a file system only a sync fails, and mostly loses its data, because any block
    /// may be the file system's own. Linux's file systems do not reliably survive that: a flush
    /// that fails for one file also loses what others had written, and not all file systems stop.
    /// See [`LifeCounts::ruined`].
    Failing,
    /// One sync in twenty reports success and loses its data.
    Lying,
}

/// The counts of a life.
#[derive(Debug, Default)]
pub(crate) struct LifeCounts {
    pub(crate) cycles: u64,
    pub(crate) openings: u64,
    pub(crate) acknowledgements: u64,
    pub(crate) syncs: u64,
    pub(crate) lies: u64,
    pub(crate) failed_syncs: u64,
    /// File systems that could not be mounted after a sync had failed under them, and were
    /// replaced.
    pub(crate) ruined: u64,
}

pub(crate) struct SubjectLife {
    _cleaner: Cleaner,
    subject: Subject,
    place: FilePlace,
    manner: DiskBehaviour,
    way: u64,
    rng: Rng,
    disk: Disk,
    oracle: Oracle,
    /// Mount point of a file system.
    mounted: tempfile::TempDir,
    account: LifeCounts,
    /// Whether a sync has failed under this file system.
    is_suspect: bool,
}

/// The output of a process, and its end.
struct ProcessOutput {
    lines: Vec<Line>,
    /// Whether it ended by itself while the disk had power.
    ended: bool,
    said_besides: String,
}

impl SubjectLife {
    pub(crate) fn new(subject: Subject, place: FilePlace, manner: DiskBehaviour, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let sector = if place == FilePlace::Files { file::SECTOR } else { device::SECTOR };
        let disk = Disk::new(sector, Rng::from_seed(rng.number()));
        let mounted = mount_point();
        let mut life = Self {
            _cleaner: Cleaner::new(&[mounted.path(), disk.point()]),
            subject,
            place,
            manner,
            way: rng.number(),
            rng,
            disk,
            oracle: Oracle::default(),
            mounted,
            account: LifeCounts::default(),
            is_suspect: false,
        };
        life.make_file_system();
        life
    }

    /// Runs this many cycles and opens what is left; fails with the error.
    pub(crate) fn run(mut self, cycles: u64) -> Result<LifeCounts, String> {
        for cycle in 1..=cycles {
            self.cycle(cycle).map_err(|what| format!("cycle {cycle}: {what}"))?;
        }
        self.look().map_err(|what| format!("after {cycles} cycles: {what}"))?;
        self.count_heard();
        Ok(self.account)
    }

    /// Runs one cycle, with the power cut at this change or sync, and opens what is left. Returns
    /// whether the cycle ended before.
    pub(crate) fn run_until(mut self, change: u64) -> Result<bool, String> {
        self.disk.start();
        self.disk.set(Faults { cut_at: Some(change), ..Faults::default() });
        let heard = self.hear(1, false, OPENING_TIME_MAX);
        self.disk.turn_off();
        self.disk.stop();
        let cut = CutOutcome::random(&mut self.rng);
        self.disk.lose_unsynced(cut, &mut self.rng);
        let of_cut = |what| format!("{cut:?}: {what}");
        if heard.ended && heard.has_failed() {
            return Err(heard.why());
        }
        self.oracle.hear(&heard.lines).map_err(of_cut)?;
        self.look().map_err(of_cut)?;
        Ok(heard.ended)
    }

    fn directory(&self) -> PathBuf {
        match self.place {
            FilePlace::Files => self.disk.point().join("under-test"),
            FilePlace::On(_) => self.mounted.path().join("under-test"),
        }
    }

    fn faults(&mut self) -> Faults {
        let rng = &mut self.rng;
        let mut faults = Faults { cut_at: Some(1 + rng.skewed(1200)), ..Faults::default() };
        match self.manner {
            DiskBehaviour::Honest => {}
            DiskBehaviour::Failing if self.place != FilePlace::Files => {
                faults.failing_sync = rng.one_in(2).then(|| 1 + rng.skewed(60));
                faults.failing_sync_drops = !rng.one_in(4);
            }
            DiskBehaviour::Lying => {
                faults.lies_one_in = Some(20);
                if !rng.one_in(4) {
                    faults.cut_at = None;
                    faults.cut_after_lie = Some(rng.skewed(4));
                }
            }
            DiskBehaviour::Failing => match rng.of(0..8) {
                0 | 1 => {
                    faults.failing_sync = Some(1 + rng.skewed(100));
                    faults.failing_sync_drops = rng.one_in(2);
                }
                2 => faults.failing_write = Some(1 + rng.skewed(400)),
                3 => {
                    let used = self.disk.with_medium(|medium| medium.used_blocks());
                    faults.room = Some(used + rng.skewed(200));
                }
                4 => faults.unreadable.extend(self.disk.with_medium(|medium| medium.any_block(rng))),
                _ => {}
            },
        }
        faults
    }

    fn cycle(&mut self, cycle: u64) -> Result<(), String> {
        self.disk.start();
        let faults = self.faults();
        let hindered = faults.failing_sync.is_some()
            || faults.failing_write.is_some()
            || faults.room.is_some()
            || !faults.unreadable.is_empty()
            || faults.lies_one_in.is_some();
        // Usually after the file system is mounted; otherwise its own recovery is cut off, too. XFS
        // would retry that forever.
        let early = self.rng.one_in(8) && self.place != FilePlace::On("xfs");
        if early {
            self.disk.set(faults.clone());
        }
        let mounted = self.mount();
        let heard = mounted.is_ok().then(|| {
            if !early {
                self.disk.set(faults);
            }
            self.hear(cycle, false, CYCLE_TIME_MAX)
        });
        let (syncs, lies, failed_syncs) = self.disk.turn_off();
        self.unmount(mounted.is_ok());
        let cut = if self.manner == DiskBehaviour::Lying {
            CutOutcome::Nothing
        } else {
            CutOutcome::random(&mut self.rng)
        };
        self.disk.lose_unsynced(cut, &mut self.rng);
        self.account.cycles += 1;
        self.account.syncs += syncs;
        self.account.lies += lies;
        self.account.failed_syncs += failed_syncs;
        self.is_suspect |= failed_syncs > 0;
        let Some(heard) = heard else {
            return if early { Ok(()) } else { self.begin_anew(mounted) };
        };
        self.oracle.hear(&heard.lines)?;
        if heard.ended && !hindered {
            return Err(heard.why());
        }
        Ok(())
    }

    /// Opens it on a healthy disk.
    fn look(&mut self) -> Result<(), String> {
        self.disk.start();
        let mounted = self.mount();
        let heard = mounted.is_ok().then(|| self.hear(0, true, OPENING_TIME_MAX));
        self.disk.turn_off();
        self.unmount(mounted.is_ok());
        let Some(heard) = heard else { return self.begin_anew(mounted) };
        self.oracle.hear(&heard.lines)?;
        let is_open = heard.lines.iter().any(|line| matches!(line, Line::Opened(_)));
        if is_open && !heard.has_failed() && heard.ended { Ok(()) } else { Err(heard.why()) }
    }

    /// Runs a process until it ends, the power is lost, or its time is over; then it is killed.
    fn hear(&mut self, cycle: u64, only_look: bool, patience: Duration) -> ProcessOutput {
        let asked = format!(
            "{} {} {cycle} {only_look} {}",
            self.subject.name(),
            self.way,
            text_of(&self.directory())
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(TASK_VARIABLE, asked)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let heard = std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).filter_map(|line| Line::parse(&line)).collect()
        });
        let mut stderr = child.stderr.take().unwrap();
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            let _ = stderr.read_to_string(&mut said);
            said
        });
        let went = self.disk.wait_off(patience, || has_ended(&mut child));
        let ended = !went && has_ended(&mut child);
        self.disk.turn_off();
        // Acknowledgements may still be on their way.
        std::thread::sleep(Duration::from_micros(self.rng.of(0..5000)));
        child.kill().unwrap();
        child.wait().unwrap();
        ProcessOutput { lines: heard.join().unwrap(), ended, said_besides: said.join().unwrap() }
    }

    fn make_file_system(&mut self) {
        let FilePlace::On(kind) = self.place else { return };
        // The smallest size that mkfs.xfs accepts.
        self.disk.make_file(IMAGE, if kind == "xfs" { 300 << 20 } else { 64 << 20 });
        self.disk.start();
        let mkfs = format!("mkfs.{kind}");
        let words: &[&str] = if kind == "xfs" {
            &[&mkfs, "-q", "-f", "-K", "-s", "size=4096"]
        } else {
            &[&mkfs, "-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0"]
        };
        let made = on_device(&self.disk.point().join(IMAGE), words);
        self.disk.stop();
        self.disk.turn_off();
        made.unwrap();
        self.disk.lose_unsynced(CutOutcome::Nothing, &mut self.rng);
    }

    /// Continues with a new file system where one cannot be mounted and that may be the disk's
    /// fault; fails otherwise.
    fn begin_anew(&mut self, mounted: Result<(), String>) -> Result<(), String> {
        let why = mounted.err().unwrap_or_default();
        if !self.is_suspect {
            return Err(format!("the file system can't be mounted: {why}"));
        }
        println!("a file system is lost to a sync that failed: {why}");
        self.account.ruined += 1;
        self.count_heard();
        (self.oracle, self.is_suspect) = (Oracle::default(), false);
        self.make_file_system();
        Ok(())
    }

    fn count_heard(&mut self) {
        self.account.openings += self.oracle.openings;
        self.account.acknowledgements += self.oracle.acknowledgements;
    }

    /// Mounts the file system; fails where the power was lost meanwhile.
    fn mount(&self) -> Result<(), String> {
        let FilePlace::On(kind) = self.place else { return Ok(()) };
        let point = text_of(self.mounted.path());
        let words = ["mount", "-t", kind, "-o", "noatime", "--target", point, "--source"];
        on_device(&self.disk.point().join(IMAGE), &words)
    }

    fn unmount(&mut self, is_mounted: bool) {
        if is_mounted && self.place != FilePlace::Files {
            unmount(self.mounted.path());
        }
        self.disk.stop();
    }
}

impl ProcessOutput {
    fn has_failed(&self) -> bool {
        self.lines.iter().any(|line| matches!(line, Line::Failed(_)))
    }

    fn why(&self) -> String {
        let failed: Vec<String> = self
            .lines
            .iter()
            .filter_map(|line| match line {
                Line::Failed(why) => Some(why.clone()),
                Line::Found { .. } | Line::Opened(_) | Line::Acknowledged(_) | Line::Wrong(_) => None,
            })
            .collect();
        format!("it ended by itself: {}; {}", failed.join("; "), self.said_besides.trim())
    }
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}
