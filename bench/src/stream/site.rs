//! The place of the windows: a server and a stream in one memory cgroup, and the figures of a
//! window.
//!
//! Invariants:
//! - Before each window the stream's files are cold, the server's files are resident (read by a
//!   program of the cgroup), and an earlier stream's output is gone.
//! - A stream's output is compared after the window.
//! - The limit is what the server and its files need plus a little, the same for all, and follows
//!   the server's own memory.
//!
//! Fails where the hot set does not fit, where a stream ends early, or where its output is wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::child::{STREAM_CALL_BYTES, check};
use super::database::DatabaseServer;
use crate::data::{MIB, make_cold, resident, write_synced};
use crate::guard::cpu_seconds;
use crate::memory_group::MemoryGroup;
use crate::peers::{InstalledProgram, run as run_process};
use crate::running::RunningChild;
use crate::scratch::StopRequest;

/// Memory for the stream beside the server and its files: its own program, and its data in flight.
pub(super) const STREAM_ROOM_BYTES: u64 = 24 * MIB;
/// The stream's name as a process.
const STREAM_PROCESS_NAME: &str = "pk-stream";
/// Bytes per file of the tree that is read.
const TREE_FILE_BYTES: u64 = 256 * MIB;
/// Smaller files do not count as hot.
const SMALL_FILE_BYTES: u64 = MIB;
/// Share of the hot files that must be resident when a window begins.
const WARM_SHARE: f64 = 0.97;

/// The work of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StreamWork {
    Read,
    Write,
    OwnHotFiles,
}

/// The way to run, or to help, the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamWay {
    NoStream,
    Plain,
    Run,
    Guard,
    Nocache,
    Direct,
}

/// The lengths and sizes of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamScale {
    /// Bytes per second of the stream.
    pub(super) rate: u64,
    /// Seconds of load beside the stream before the count.
    pub(super) settle: u64,
    /// Seconds of the count.
    pub(super) window: u64,
    /// Bytes of the tree that is read.
    pub(super) tree: u64,
}

impl StreamScale {
    /// Returns more bytes than a stream writes in a window, with 4 s for the time in between.
    pub(super) fn written(self) -> u64 {
        (self.rate * (self.settle + self.window + 4)).next_multiple_of(MIB)
    }
}

/// The figures of a window.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamSample {
    /// Transactions per second of the database.
    pub(super) transactions: f64,
    /// The stream's rate, in MiB/s.
    pub(super) stream_mib: f64,
    /// The stream's CPU time, in percent of a core.
    pub(super) stream_cpu: f64,
    /// The CPU time of the process that follows it, in percent of a core.
    pub(super) follower_cpu: f64,
    /// Percent of the hot files that were resident at the end.
    pub(super) hot_percent: f64,
    /// MiB that the group read back after reclaim had taken them.
    pub(super) back_mib: f64,
}

/// The place.
pub(super) struct StreamSetup<'a> {
    database: &'a dyn DatabaseServer,
    group: &'a MemoryGroup,
    pagekeeper: &'a InstalledProgram,
    setting: StreamScale,
    stop: StopRequest,
    /// See `measure`.
    base: u64,
    hot: Vec<PathBuf>,
    tree: Vec<PathBuf>,
    fresh: PathBuf,
}

impl<'a> StreamSetup<'a> {
    /// Limits the group to the memory that its server needs when warm.
    pub(super) fn new(
        database: &'a dyn DatabaseServer,
        group: &'a MemoryGroup,
        pagekeeper: &'a InstalledProgram,
        home: &Path,
        setting: StreamScale,
        stop: &StopRequest,
    ) -> Result<Self> {
        let mut hot = database.hot()?;
        hot.retain(|path| path.metadata().is_ok_and(|metadata| metadata.len() >= SMALL_FILE_BYTES));
        let tree = home.join("tree");
        if !tree.exists() {
            std::fs::create_dir(&tree).context("can't make the tree that is read")?;
            for file in 0..setting.tree / TREE_FILE_BYTES {
                write_synced(&tree.join(format!("{file:02}")), TREE_FILE_BYTES)?;
                stop.check()?;
            }
        }
        let tree = super::database::files_below(&tree)?;
        let fresh = home.join("written-anew");
        let mut site =
            Self { database, group, pagekeeper, setting, stop: stop.clone(), base: 0, hot, tree, fresh };
        site.base = site.measure()?;
        site.limit_group()?;
        Ok(site)
    }

    /// Returns the bytes of the warm group without the server's heap. Filling the server left more,
    /// which is evicted first.
    fn measure(&self) -> Result<u64> {
        for path in self.hot.iter().chain(&self.tree) {
            make_clean_and_cold(path)?;
        }
        self.warm()?;
        self.database.load(self.setting.window)?;
        Ok(self.group.usage()?.saturating_sub(self.group.anonymous()?))
    }

    /// Leaves the stream the same room in each window, although a server's heap grows as it runs.
    fn limit_group(&self) -> Result<()> {
        self.group.set_limit(self.base + self.group.anonymous()? + STREAM_ROOM_BYTES)
    }

    /// Returns the bytes of the files that the server reads.
    pub(super) fn hot_bytes(&self) -> Result<u64> {
        self.hot.iter().map(|path| Ok(path.metadata()?.len())).sum()
    }

    fn hot_percent(&self) -> Result<f64> {
        let there: u64 = self.hot.iter().map(|path| resident(path)).sum::<Result<u64>>()?;
        Ok(there as f64 / self.hot_bytes()? as f64 * 100.0)
    }

    /// Reads the server's files twice, so that the kernel considers them active.
    fn warm(&self) -> Result<()> {
        run_process(self.program(StreamWay::Plain)?.arg("--read").args(&self.hot).args(["--passes", "2"]))?;
        Ok(())
    }

    /// Returns this program as a stream in the group, under the subject's tool.
    fn program(&self, way: StreamWay) -> Result<Command> {
        // A name that the guard can tell from the bench's own.
        let program = self.fresh.with_file_name(STREAM_PROCESS_NAME);
        if !program.exists() {
            let own = std::env::current_exe().context("can't find this program")?;
            std::os::unix::fs::symlink(own, &program).context("can't name the stream")?;
        }
        let mut command = self.command(way);
        command.arg(program).arg("stream-child");
        Ok(command)
    }

    /// Returns a command in the group, under the subject's tool; the caller adds program and
    /// arguments.
    fn command(&self, way: StreamWay) -> Command {
        let mut command = self.group.command("setpriv");
        command.args(["--pdeathsig=KILL", "--"]);
        match way {
            StreamWay::Run => command.arg(&self.pagekeeper.path).args(["run", "--as", "stream", "--"]),
            StreamWay::Nocache => command.arg("nocache"),
            _ => &mut command,
        };
        command
    }

    /// Restores the state at the beginning of a window.
    fn prepare(&self) -> Result<()> {
        for path in &self.tree {
            make_cold(path)?;
        }
        std::fs::remove_file(&self.fresh)
            .or_else(may_be_missing)
            .context("can't remove a stream's output")?;
        self.limit_group()?;
        self.warm()?;
        let percent = self.hot_percent()?;
        ensure!(
            percent >= WARM_SHARE * 100.0,
            "{percent:.1} % of the hot files stay resident when they have just been read: they don't fit"
        );
        Ok(())
    }

    /// Measures one window.
    pub(super) fn window(&self, case: StreamWork, way: StreamWay) -> Result<StreamSample> {
        self.prepare()?;
        self.stop.check()?;
        let streams = format!("processes = [\"{STREAM_PROCESS_NAME}\"]");
        let guard = (way == StreamWay::Guard)
            .then(|| {
                start_guard(
                    &self.pagekeeper.path,
                    &self.fresh.with_file_name("guard.toml"),
                    &streams,
                    &self.stop,
                )
            })
            .transpose()?;
        let mut stream = (way != StreamWay::NoStream).then(|| self.stream(case, way)).transpose()?;
        self.database.load(self.setting.settle)?;
        self.stop.check()?;
        let refaults = self.group.refaults()?;
        let followers =
            guard.as_ref().map_or_else(|| self.group.followers(), |guard| Ok(vec![guard.id()]))?;
        let cpu = || followers.iter().map(|pid| cpu_seconds(*pid)).sum::<Result<f64>>();
        let followed = cpu()?;
        let (before, began) = (stream.as_mut().map(StreamProcess::account).transpose()?, Instant::now());
        let transactions = self.database.load(self.setting.window)?;
        let (after, seconds) =
            (stream.as_mut().map(StreamProcess::account).transpose()?, began.elapsed().as_secs_f64());
        let back = (self.group.refaults()? - refaults) * crate::drive::FILE_PAGE_BYTES;
        let hot_percent = self.hot_percent()?;
        self.stop.check()?;
        drop(stream);
        let mut seen = StreamSample {
            transactions,
            hot_percent,
            back_mib: back as f64 / MIB as f64,
            ..StreamSample::default()
        };
        if let (Some(before), Some(after)) = (before, after) {
            seen.stream_mib = (after.moved - before.moved) as f64 / MIB as f64 / seconds;
            seen.follower_cpu = (cpu()? - followed) / seconds * 100.0;
            seen.stream_cpu = (after.cpu - before.cpu) / seconds * 100.0;
            self.judge(case, after.moved)?;
        }
        Ok(seen)
    }

    /// Starts a stream that runs longer than the window.
    fn stream(&self, case: StreamWork, way: StreamWay) -> Result<StreamProcess> {
        let mut command = self.program(way)?;
        command.arg(format!("--rate={}", self.setting.rate));
        let bytes = format!("--bytes={}", self.setting.written());
        match case {
            StreamWork::Read => command.arg("--read").args(&self.tree),
            StreamWork::OwnHotFiles => command.arg("--read").args(&self.hot),
            StreamWork::Write => command.arg("--write").arg(&self.fresh).arg(bytes),
        };
        if way == StreamWay::Direct {
            command.arg("--direct");
        }
        let reads = matches!(case, StreamWork::Read | StreamWork::OwnHotFiles);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("can't start the stream")?;
        Ok(StreamProcess { child: child.into(), counter: if reads { "rchar: " } else { "wchar: " } })
    }

    /// Checks that at least `bytes` of a stream's output are there.
    fn judge(&self, case: StreamWork, bytes: u64) -> Result<()> {
        if case != StreamWork::Write {
            return Ok(());
        }
        // The account includes the few bytes of other writes.
        let blocks = bytes / STREAM_CALL_BYTES as u64 - 1;
        check(&self.fresh, blocks * STREAM_CALL_BYTES as u64)
    }
}

/// A running stream.
struct StreamProcess {
    child: RunningChild,
    /// The kernel's counter for the bytes that it moves.
    counter: &'static str,
}

/// The bytes that a stream has moved (`proc_pid_io(5)`), and its CPU time in seconds.
#[derive(Debug, Clone, Copy)]
struct StreamUsage {
    moved: u64,
    cpu: f64,
}

impl StreamProcess {
    fn account(&mut self) -> Result<StreamUsage> {
        if let Some(status) = self.child.try_wait().context("can't wait for the stream")? {
            anyhow::bail!("the stream ended early with {status}");
        }
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.child.id()))
            .context("can't read an account")?;
        let moved = io.lines().find_map(|line| line.strip_prefix(self.counter));
        let moved =
            moved.and_then(|moved| moved.parse().ok()).context("the stream's account is not understood")?;
        Ok(StreamUsage { moved, cpu: cpu_seconds(self.child.id())? })
    }
}

/// Drops a file's pages, some of which may be dirty.
fn make_clean_and_cold(path: &Path) -> Result<()> {
    let synced = std::fs::File::open(path).and_then(|file| file.sync_all());
    synced.with_context(|| format!("can't sync {}", path.display()))?;
    make_cold(path)
}

fn may_be_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Starts a guard with these settings of `[streams]`.
pub(super) fn start_guard(
    pagekeeper: &Path,
    config: &Path,
    streams: &str,
    stop: &StopRequest,
) -> Result<RunningChild> {
    std::fs::write(config, format!("[streams]\n{streams}\n")).context("can't configure a guard")?;
    let mut guard = crate::mariadb::with_parent(pagekeeper);
    guard.args(["guard", "--config"]).arg(config).stdin(Stdio::null()).stdout(Stdio::null());
    let guard = guard.spawn().context("can't start a guard")?;
    stop.sleep(Duration::from_secs(1))?;
    Ok(guard.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_enough_to_write_for_its_window() {
        let setting = StreamScale { rate: 300_000_000, settle: 1, window: 6, tree: 0 };
        assert!(setting.written() >= setting.rate * 11 && setting.written().is_multiple_of(MIB));
    }
}
