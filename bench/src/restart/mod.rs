//! `restart`: a killed server starts cold on a disk that takes 2 ms per request and serves 64 at
//! once: plain, with `warm` of all its files beside it, with `warm --from` a snapshot beside it, and
//! under `warm --learn`.
//!
//! It measures the time until the server accepts queries. The recording is of the recovery of an
//! earlier state; the server then wrote more, the snapshot was saved, and the server was killed.
//! Invariants: each sample starts from the same state, cold; nothing of the server runs when a disk
//! ends. A server that is not installed is noted as missing. Fails with a plain message without
//! root.

mod engines;
mod servers;
mod service;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};

use crate::BenchRun;
use crate::data::{GIB, MIB};
use crate::mariadb::with_parent;
use crate::peers::run as run_program;
use crate::recovery::site::{DISK_WIDTH, REQUEST_LATENCY, RecoveryDisk};
use crate::report::FigureUnit;
use crate::rounds::{RoundPlan, SubjectTurn};
use crate::running::RunningChild;
use crate::scratch::StopRequest;
use service::RestartedService;

const LEARNED_NAME: &str = "warm --learn";
const SNAPSHOT_NAME: &str = "warm --from a snapshot, beside";
const WARM_ALL_NAME: &str = "warm all, beside";
const PLAIN_START_NAME: &str = "plain";
const START_SUBJECTS: [&str; 4] = [LEARNED_NAME, SNAPSHOT_NAME, WARM_ALL_NAME, PLAIN_START_NAME];

/// The directory of the state that every sample starts from.
const STATE_NAME: &str = "state";
/// The directory that a server starts on.
const WORK_NAME: &str = "work";
/// The name of the recording, and of its file.
const RECORDING_NAME: &str = "service";
/// The longest start, and the longest wait for a recorder.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// The time in which the children of a killed server end.
const KILLED_WAIT: Duration = Duration::from_secs(2);
/// Rounds that count, at most: a plain start takes up to a minute and a half.
const RESTART_ROUNDS_MAX: usize = 3;

/// A server whose restart is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RestartServer {
    Sqlite,
    Postgresql,
    Etcd,
    Wiredtiger,
    Rocksdb,
    /// Tables through the page cache
    Mariadb,
    /// Tables by direct I/O, the default
    MariadbDirect,
}

/// The servers of a run.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RestartOptions {
    /// Only this server, may be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    server: Vec<RestartServer>,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun, choice: &RestartOptions) -> Result<()> {
    run.note(&format!(
        "while a server starts, its files are on a disk that takes {REQUEST_LATENCY:?} and serves {DISK_WIDTH} at once"
    ));
    run.note("the recording is of the recovery of an earlier state, the snapshot from before the kill");
    let disk = RecoveryDisk::new(&run.scratch, if run.quick { 3 * GIB } else { 8 * GIB })?;
    let bytes = if run.quick { 96 * MIB } else { GIB };
    for server in <RestartServer as clap::ValueEnum>::value_variants() {
        let service = service::of(*server, bytes);
        let is_chosen = choice.server.is_empty() || choice.server.contains(server);
        if is_chosen && run.has(service.programs()) && has_headers(run, &*service) {
            measure(run, &disk, &*service)?;
        }
    }
    Ok(())
}

fn has_headers(run: &mut BenchRun, service: &dyn RestartedService) -> bool {
    let is_there = service.header().is_none_or(|header| Path::new(header).exists());
    if !is_there {
        run.report.add_missing(service.name());
    }
    is_there
}

fn measure(run: &mut BenchRun, disk: &RecoveryDisk, service: &dyn RestartedService) -> Result<()> {
    let saved = tempfile::tempdir_in(run.scratch.path()).context("can't make a directory")?;
    let pagekeeper = run.pagekeeper.path.clone();
    let stop = run.stop.clone();
    let site = RestartSite { disk, service, pagekeeper: &pagekeeper, saved: saved.path(), stop: &stop };
    run.say(&format!("{}: writing", service.name()))?;
    site.fill()?;
    run.say(&format!("{}: recording a start, writing more", service.name()))?;
    site.record()?;
    run.say(&format!("{}: starting", service.name()))?;
    // Every sample begins with nothing cached, so no uncounted round is needed.
    let rounds = run.rounds.min(if run.quick { 1 } else { RESTART_ROUNDS_MAX });
    let plan = RoundPlan { rounds, until: None, warm_up: false };
    let measured = run.measure(&START_SUBJECTS, plan, |SubjectTurn { subject, .. }| {
        let subject = START_SUBJECTS[subject];
        let took = site.sample(subject)?;
        eprintln!("          {subject}: {took:.0} ms");
        Ok(took)
    })?;
    let (case, unit) = (service.name(), FigureUnit::Milliseconds);
    let samples = measured.figure(|ms| *ms);
    run.report.add_case(case, unit, &samples);
    run.report.add_ratio(service.ratio(), unit, &samples, service.means(), PLAIN_START_NAME);
    let least = crate::rounds::ratio(&samples[0].values, &samples[3].values, unit.better());
    if let Some(least) = least {
        run.report.add_least("restart_least_vs_plain", least);
    }
    Ok(())
}

/// A service, and where it starts.
struct RestartSite<'a> {
    disk: &'a RecoveryDisk,
    service: &'a dyn RestartedService,
    pagekeeper: &'a Path,
    /// The directory of recording and snapshot.
    saved: &'a Path,
    stop: &'a StopRequest,
}

impl RestartSite<'_> {
    /// Writes the state of a killed service at memory speed.
    fn fill(&self) -> Result<()> {
        self.disk.at_once(STATE_NAME, |dir| {
            run_program(Command::new("rm").arg("-rf").arg(dir))?;
            run_program(Command::new("mkdir").arg(dir))?;
            // The server's own user passes here.
            run_program(Command::new("chmod").arg("0755").args(dir.ancestors().take(3)))?;
            self.service.prepare(dir, self.stop)?;
            let mut running = self.service.start(dir, &[], self.stop)?;
            self.service.write(dir, &mut running)?;
            drop(running);
            self.stop.sleep(KILLED_WAIT)
        })
    }

    /// Records a start from that state, has the service write more, saves a snapshot, and kills it:
    /// that is the state of all samples.
    fn record(&self) -> Result<()> {
        self.copy_state()?;
        self.disk.on_disk(WORK_NAME, |work| {
            let began = SystemTime::now();
            let mut running = self.service.start(work, &self.learning(), self.stop)?;
            self.wait_for_recorder(began)?;
            self.service.write(work, &mut running)?;
            let mut snapshot = Command::new(self.pagekeeper);
            snapshot.arg("snapshot").arg(work).arg("--output").arg(self.snapshot());
            run_program(&mut snapshot)?;
            drop(running);
            self.stop.sleep(KILLED_WAIT)
        })?;
        std::fs::rename(self.recording(), self.saved.join("first")).context("nothing was recorded")?;
        self.disk.at_once(WORK_NAME, |work| {
            let state = work.with_file_name(STATE_NAME);
            run_program(Command::new("rm").arg("-rf").arg(&state))?;
            std::fs::rename(work, state).context("can't rename a directory")
        })
    }

    fn copy_state(&self) -> Result<()> {
        self.disk.at_once(WORK_NAME, |work| {
            let state = work.with_file_name(STATE_NAME);
            run_program(Command::new("rm").arg("-rf").arg(work))?;
            run_program(Command::new("cp").arg("-a").arg(state).arg(work)).map(drop)
        })
    }

    /// Starts the service on a copy of the state; returns the time until it accepts queries, in ms.
    fn sample(&self, subject: &str) -> Result<f64> {
        self.copy_state()?;
        // Each sample has the recording of the first start alone.
        std::fs::copy(self.saved.join("first"), self.recording()).context("can't copy the recording")?;
        self.disk.on_disk(WORK_NAME, |work| {
            let (began, wall) = (Instant::now(), SystemTime::now());
            let beside = match subject {
                WARM_ALL_NAME => Some(self.warm(work.as_os_str().into())?),
                SNAPSHOT_NAME => Some(self.warm(format!("--from={}", self.snapshot().display()).into())?),
                _ => None,
            };
            let prefix = if subject == LEARNED_NAME { self.learning() } else { Vec::new() };
            let running = self.service.start(work, &prefix, self.stop)?;
            let took = began.elapsed();
            if subject == LEARNED_NAME {
                self.wait_for_recorder(wall)?;
            }
            drop((running, beside));
            // Its children may still have the disk open.
            self.stop.sleep(KILLED_WAIT)?;
            Ok(took.as_secs_f64() * 1e3)
        })
    }

    fn recording(&self) -> PathBuf {
        self.saved.join(RECORDING_NAME)
    }

    fn snapshot(&self) -> PathBuf {
        self.saved.join("snapshot")
    }

    fn learning(&self) -> Vec<OsString> {
        let words = [self.pagekeeper.into(), "warm".into(), "--recordings".into(), self.saved.into()];
        let more = ["--learn", RECORDING_NAME, "--"].map(OsString::from);
        words.into_iter().chain(more).collect()
    }

    /// Loads files as the unit for a boot does.
    fn warm(&self, files: OsString) -> Result<RunningChild> {
        let mut command = with_parent(self.pagekeeper);
        command.args(["warm", "--pace", "off", "--jobs", "32"]).arg(files);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command.spawn().context("can't start warm")?.into())
    }

    /// Waits until the recorder has written since that time.
    fn wait_for_recorder(&self, since: SystemTime) -> Result<()> {
        let began = Instant::now();
        let is_written = || {
            let changed = self.recording().metadata().and_then(|found| found.modified());
            changed.is_ok_and(|changed| changed > since)
        };
        while !is_written() && began.elapsed() < START_TIMEOUT {
            self.stop.sleep(Duration::from_millis(100))?;
        }
        Ok(())
    }
}
