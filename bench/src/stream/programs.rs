//! The pages that streaming programs leave in memory, and the effect on a hot file: each program as
//! people call it, under `run` by events and by the library, and plain; on the scratch directory's
//! file system, or on others.
//!
//! Invariants:
//! - File and target are cold at the beginning. The hot file is resident, read twice by a program
//!   of the cgroup.
//! - The cgroup has room for the hot file, the program's heap and [`PROGRAM_ROOM_BYTES`], so that a
//!   stream whose pages stay displaces the hot file.
//! - fincore counts what stays; the kernel's `Buffers` count for a block device; pagekeeper itself
//!   never counts. For a dumped server the file of its table counts.
//! - A guard follows the commands of users without permission, but not under `run` by the library.
//!   It follows no program by its name: a plain program has no follower.
//! - The time ends when the output is on disk, because plain most of it would only be in memory.
//!
//! A program that is not installed is named as missing. Fails where a program fails.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagekeeper_testing::{ThrottledDisk, unmount};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::database::files_below;
use super::site::start_guard;
use super::{PLAIN_NAME, UNDER_RUN_NAME};
use crate::BenchRun;
use crate::data::{GIB, MIB, make_cold, write_synced};
use crate::mariadb::MariaDbServer;
use crate::memory_group::{GroupParent, MemoryGroup};
use crate::peers::{InstalledProgram, run as run_process};
use crate::report::FigureUnit;
use crate::rounds::{BetterDirection, SubjectSamples, ratio};
use crate::running::RunningChild;
use crate::scratch::StopRequest;
use crate::slow_device;

/// Bytes of the file that is read, and of the hot file.
const READ_FILE_BYTES: u64 = 512 * MIB;
const HOT_FILE_BYTES: u64 = 256 * MIB;
/// Bytes of a program beside its heap and the hot file.
const PROGRAM_ROOM_BYTES: u64 = 160 * MIB;
/// The longest time until a run's cgroup is gone and its output is on disk.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// A guard, which is in no run's cgroup, has released everything once nothing went for this long.
const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// File systems: the scratch directory's, and an overlay over it.
pub(super) const SCRATCH_FILE_SYSTEM: &str = "here";
const OVERLAY_FILE_SYSTEM: &str = "overlayfs";
pub(super) const FILE_SYSTEM_KINDS: [&str; 5] =
    [SCRATCH_FILE_SYSTEM, "ext4", "xfs", "btrfs", OVERLAY_FILE_SYSTEM];

/// The database that is dumped.
const DUMPED_DATABASE: &str = "dumped";

/// A program and its shell command: `$RUN` runs it; `$FILE`, `$DEVICE` or the server at `$SOCKET`
/// is read; `$NEW` is a directory to write to.
struct StreamTool {
    name: &'static str,
    needs: &'static [&'static str],
    line: &'static str,
    /// Bytes of its heap.
    heap: u64,
}

const fn tool(
    name: &'static str,
    needs: &'static [&'static str],
    heap: u64,
    line: &'static str,
) -> StreamTool {
    StreamTool { name, needs, line, heap: heap * MIB }
}

const STREAM_TOOLS: [StreamTool; 20] = [
    tool("cp", &[], 0, "$RUN cp --reflink=never \"$FILE\" \"$NEW\""),
    tool("static cp", &["busybox"], 0, "$RUN busybox cp \"$FILE\" \"$NEW/copy\""),
    tool("fio, io_uring", &["fio"], 128, "$RUN fio --ioengine=io_uring --iodepth=32 --rw=read --filename=\"$FILE\" $FIO"),
    tool("fio, mmap, reads", &["fio"], 128, "$RUN fio --ioengine=mmap --rw=read --filename=\"$FILE\" $FIO"),
    tool("fio, mmap, writes", &["fio"], 128, "truncate -s 512m \"$NEW/fio\" && $RUN fio --ioengine=mmap --rw=write --size=512m --filename=\"$NEW/fio\" $FIO"),
    tool("rsync", &["rsync"], 0, "$RUN rsync --whole-file \"$FILE\" \"$NEW/\""),
    tool("tar", &[], 0, "$RUN tar -cPf \"$NEW/tar\" \"$FILE\""),
    tool(
        "borg",
        &["borg"],
        128,
        "export BORG_BASE_DIR=\"$NEW/home\"; borg init -e none \"$NEW/borg\" &&
         $RUN borg create --compression none \"$NEW/borg::one\" \"$FILE\"",
    ),
    tool(
        "restic",
        &["restic"],
        512,
        "export RESTIC_PASSWORD=x; restic -q --no-cache -r \"$NEW/restic\" init >/dev/null &&
         $RUN restic -q --no-cache -r \"$NEW/restic\" backup \"$FILE\"",
    ),
    tool("pigz", &["pigz"], 16, "$RUN pigz -1 -k -c \"$FILE\" >\"$NEW/gz\""),
    tool("zstd", &["zstd"], 64, "$RUN zstd -q -1 \"$FILE\" -o \"$NEW/zst\""),
    tool("dd bs=1G", &[], 512, "$RUN dd if=\"$FILE\" of=\"$NEW/dd\" bs=1G status=none"),
    tool(
        "node, copyFile",
        &["node"],
        64,
        "$RUN node -e 'fs.copyFileSync(process.argv[1], process.argv[2])' \"$FILE\" \"$NEW/node\"",
    ),
    tool(
        "python, read()",
        &["python3"],
        544,
        "$RUN python3 -c 'import sys; open(sys.argv[2], \"wb\").write(open(sys.argv[1], \"rb\").read())' \"$FILE\" \"$NEW/python\"",
    ),
    tool(
        "nginx, sendfile",
        &["nginx", "curl"],
        32,
        "printf 'daemon off; user root; pid nginx.pid; error_log stderr; events {} http { access_log off; sendfile on; server {
           listen 127.0.0.1:48157; root %s; } }' \"${FILE%/*}\" >\"$NEW/conf\"
         $RUN nginx -e stderr -p \"$NEW\" -c \"$NEW/conf\" & server=$!
         while kill -0 \"$server\" && [ ! -s \"$NEW/nginx.pid\" ]; do sleep 0.002; done
         curl -sf -o /dev/null \"http://127.0.0.1:48157/${FILE##*/}\"
         status=$?; kill \"$(cat \"$NEW/nginx.pid\")\"; wait \"$server\"; exit $status",
    ),
    tool(
        "mydumper",
        &["mydumper", "mariadbd", "mariadb-install-db", "mariadb"],
        32,
        "$RUN mydumper --socket=\"$SOCKET\" --user=root --database=dumped --threads=2 --rows=65536 --outputdir=\"$NEW/dump\"",
    ),
    tool("mbstream -c", &["mbstream"], 16, "cd \"${FILE%/*}\" && $RUN mbstream -c \"${FILE##*/}\" >\"$NEW/stream\""),
    tool(
        "cp by who does not own it",
        &["setpriv"],
        0,
        "chmod 777 \"$NEW\" && setpriv --reuid=65534 --regid=65534 --clear-groups $RUN cp --reflink=never \"$FILE\" \"$NEW\"",
    ),
    tool("sudo cp", &["sudo"], 0, "$RUN sudo cp --reflink=never \"$FILE\" \"$NEW\""),
    tool("dd of a block device", &["losetup"], 0, "$RUN dd if=\"$DEVICE\" of=/dev/null bs=1M status=none"),
];

/// The usual options of fio.
const FIO_OPTIONS: &str = "--name=pk --bs=256k --invalidate=0 --thread --output=/dev/null";
/// Before `run`: the caller gets no events.
const WITHOUT_EVENTS: &str = "setpriv --bounding-set=-sys_admin,-bpf,-perfmon --";
const LIBRARY_RUN_NAME: &str = "under run, by the library";
const PROGRAM_WAYS: [&str; 3] = [UNDER_RUN_NAME, LIBRARY_RUN_NAME, PLAIN_NAME];

/// The pages that a program's run leaves, and its rate.
#[derive(Debug, Default)]
struct LeftPages {
    source_mib: Vec<f64>,
    target_mib: Vec<f64>,
    hot_percent: Vec<f64>,
    rate: Vec<f64>,
}

struct ToolSetup<'a> {
    group: &'a MemoryGroup,
    /// The command prefix under `run`.
    run: String,
    /// Follows the commands of users without permission, and the socket where it listens.
    _guard: RunningChild,
    socket: PathBuf,
    file: PathBuf,
    hot: PathBuf,
    new: PathBuf,
    device: LoopDevice,
    served: Option<DumpServer>,
}

/// A server outside of the cgroup, with a table to dump.
struct DumpServer {
    server: MariaDbServer,
    table: PathBuf,
}

impl StreamTool {
    fn reads(&self, what: &str) -> bool {
        self.line.contains(what)
    }
}

/// The file system to measure on: the scratch directory's, a new one on a loop device, or an
/// overlay over the scratch directory's, as a container has it.
struct ToolFileSystem {
    _disk: Option<ThrottledDisk>,
    overlay: Option<PathBuf>,
}

impl ToolFileSystem {
    /// Makes it, and returns its directory.
    fn new(run: &BenchRun, kind: &str) -> Result<(Self, PathBuf)> {
        let home = run.scratch.path();
        if kind == OVERLAY_FILE_SYSTEM {
            let layers = "lowerdir=low,upperdir=up,workdir=work";
            let script = format!("mkdir low up work all && mount -t overlay overlay -o {layers} all");
            run_process(Command::new("sh").args(["-c", &script]).current_dir(home))?;
            let all = home.join("all");
            return Ok((Self { _disk: None, overlay: Some(all.clone()) }, all));
        }
        // Without a limit.
        let disk = (kind != SCRATCH_FILE_SYSTEM)
            .then(|| slow_device::new(&run.scratch, kind, 8 * GIB, 0))
            .transpose()?;
        let home = disk.as_ref().map_or(home, ThrottledDisk::path).to_path_buf();
        Ok((Self { _disk: disk, overlay: None }, home))
    }
}

impl Drop for ToolFileSystem {
    fn drop(&mut self) {
        if self.overlay.as_ref().is_some_and(|overlay| !unmount(overlay)) {
            eprintln!("pagekeeper-bench: can't unmount an overlay");
        }
    }
}

/// Runs all programs, or those with these names, on each of these file systems.
pub(super) fn run(
    run: &mut BenchRun,
    groups: &GroupParent,
    names: &[String],
    kinds: &[String],
) -> Result<()> {
    let is_unknown = |name: &&String| !STREAM_TOOLS.iter().any(|tool| tool.name == **name);
    if let Some(name) = names.iter().find(is_unknown) {
        bail!("there is no program {name}; there are: {}", STREAM_TOOLS.map(|tool| tool.name).join("; "));
    }
    run.scratch.require_space(6 * READ_FILE_BYTES + HOT_FILE_BYTES)?;
    run.note(&format!(
        "each program reads {} MiB and writes as much, in a memory cgroup (version {}) with {} MiB that were read twice; limit: that, its heap and {} MiB",
        READ_FILE_BYTES / MIB,
        groups.version(),
        HOT_FILE_BYTES / MIB,
        PROGRAM_ROOM_BYTES / MIB
    ));
    for kind in kinds {
        let (_place, home) = ToolFileSystem::new(run, kind)?;
        on(run, groups, names, kind, &home)?;
    }
    Ok(())
}

/// Runs programs on one file system.
fn on(run: &mut BenchRun, groups: &GroupParent, names: &[String], kind: &str, home: &Path) -> Result<()> {
    home.ancestors()
        .take(3)
        .filter(|path| path.starts_with(run.scratch.path()))
        .try_for_each(open_to_others)?;
    // A copy that other users can start, too.
    let program = home.join("pagekeeper");
    std::fs::copy(&run.pagekeeper.path, &program).context("can't copy pagekeeper")?;
    let (file, hot) = (home.join("file"), home.join("hot"));
    write_synced(&file, READ_FILE_BYTES)?;
    write_synced(&hot, HOT_FILE_BYTES)?;
    let group = groups.create(8 << 30)?;
    let device = LoopDevice::new(&run.scratch.path().join("device"))?;
    let socket = home.join("streams.sock");
    let streams = format!("processes = []\nsocket = \"{}\"", socket.display());
    let mut site = ToolSetup {
        _guard: start_guard(&program, &home.join("guard.toml"), &streams, &run.stop)?,
        socket,
        served: None,
        group: &group,
        run: format!("{} run --as=stream --", program.display()),
        new: home.join("new"),
        device,
        file,
        hot,
    };
    for tool in
        STREAM_TOOLS.iter().filter(|tool| names.is_empty() || names.iter().any(|name| name == tool.name))
    {
        if !run.has(tool.needs) {
            continue;
        }
        let title = if kind == SCRATCH_FILE_SYSTEM {
            tool.name.to_owned()
        } else {
            format!("{} on {kind}", tool.name)
        };
        run.say(&title)?;
        if tool.reads("$SOCKET") && site.served.is_none() {
            let mariadbd = run.peer("mariadbd").context("mariadbd has gone")?;
            site.served = Some(DumpServer::start(&mariadbd, home, &run.stop)?);
        }
        let mut stays = PROGRAM_WAYS.map(|_| LeftPages::default());
        for _ in 0..if run.quick { 1 } else { run.rounds.min(3) } {
            for (way, stays) in PROGRAM_WAYS.into_iter().zip(&mut stays) {
                site.once(tool, way, stays)?;
                run.stop.check()?;
            }
        }
        let [events, _, plain] = &stays;
        let left =
            events.source_mib.iter().chain(&events.target_mib).fold(0.0_f64, |most, one| most.max(*one));
        let hot = events.hot_percent.iter().fold(100.0_f64, |least, one| least.min(*one));
        // The worst of all programs.
        run.report.add_least("stream_programs_clean", 1.0 - left / (READ_FILE_BYTES / MIB) as f64);
        run.report.add_least("stream_programs_hot_kept", hot / 100.0);
        if let Some(speed) = ratio(&events.rate, &plain.rate, BetterDirection::More) {
            run.report.add_least("stream_programs_speed", speed);
        }
        let mut add = |what: &str, unit, of: fn(&LeftPages) -> &Vec<f64>| {
            let samples = PROGRAM_WAYS.iter().zip(&stays);
            let samples: Vec<SubjectSamples> = samples
                .map(|(subject, stays)| SubjectSamples { subject, values: of(stays).clone() })
                .collect();
            run.report.add_case(&format!("{title}: {what}"), unit, &samples);
        };
        add("bytes read that stay in memory", FigureUnit::Mib, |stays| &stays.source_mib);
        add("bytes written that stay in memory", FigureUnit::Mib, |stays| &stays.target_mib);
        add("the hot file stays", FigureUnit::Percent, |stays| &stays.hot_percent);
        add("rate, until what it wrote is on disk", FigureUnit::MibPerSecond, |stays| &stays.rate);
    }
    Ok(())
}

pub(crate) fn open_to_others(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))
        .context("can't open the directory to others")
}

impl DumpServer {
    fn start(mariadbd: &InstalledProgram, home: &Path, stop: &StopRequest) -> Result<Self> {
        let server = MariaDbServer::with_logs(mariadbd, home, stop)?;
        let table = server.make_table(DUMPED_DATABASE, READ_FILE_BYTES)?;
        Ok(Self { server, table })
    }
}

impl ToolSetup<'_> {
    /// Runs a program once.
    fn once(&self, tool: &StreamTool, way: &str, stays: &mut LeftPages) -> Result<()> {
        if self.new.exists() {
            std::fs::remove_dir_all(&self.new).context("can't remove what was written")?;
        }
        std::fs::create_dir(&self.new).context("can't make a directory")?;
        make_cold_soon(&self.file)?;
        make_cold_soon(&self.hot)?;
        let device = tool.reads("$DEVICE").then_some(&self.device);
        let served = self.served.as_ref().filter(|_| tool.reads("$SOCKET"));
        device.map(LoopDevice::make_cold).transpose()?;
        self.group.set_limit(HOT_FILE_BYTES + tool.heap + PROGRAM_ROOM_BYTES)?;
        for _ in 0..2 {
            run_process(self.group.command("cat").arg(&self.hot).stdout(std::process::Stdio::null()))?;
        }
        let before = buffers()?;
        let run = match way {
            UNDER_RUN_NAME => self.run.clone(),
            LIBRARY_RUN_NAME => format!("{WITHOUT_EVENTS} {}", self.run),
            _ => String::new(),
        };
        let mut shell = self.group.command("sh");
        shell.args(["-c", tool.line]);
        shell.env("FILE", &self.file).env("NEW", &self.new).env("RUN", run).env("FIO", FIO_OPTIONS);
        if way == UNDER_RUN_NAME {
            shell.env("PAGEKEEPER_STREAM_SOCKET", &self.socket);
        }
        shell.env("DEVICE", device.map_or(Path::new(""), |device| &device.path));
        shell.env("SOCKET", served.map_or(PathBuf::new(), |served| served.server.socket()));
        let began = Instant::now();
        run_process(&mut shell).with_context(|| tool.name)?;
        let written = files_below(&self.new)?;
        run_process(Command::new("sync").arg(&self.new).args(&written))?;
        let seconds = began.elapsed().as_secs_f64();
        self.settle()?;
        let read = served.map_or(&self.file, |served| &served.table);
        let left = || -> Result<(u64, u64)> {
            let of_device = device.map_or(Ok(0), |_| buffers().map(|now| now.saturating_sub(before)))?;
            // A program may write nothing.
            let of_written = if written.is_empty() { 0 } else { fincore(&written)? };
            Ok((fincore(std::slice::from_ref(read))? + of_device, of_written))
        };
        let (of_read, of_written) = last_of(left)?;
        stays.source_mib.push(of_read as f64 / MIB as f64);
        stays.target_mib.push(of_written as f64 / MIB as f64);
        stays
            .hot_percent
            .push(fincore(std::slice::from_ref(&self.hot))? as f64 / HOT_FILE_BYTES as f64 * 100.0);
        // The server decides the length of a dump.
        let moved = if served.is_some() { size_of_all(&written)? } else { READ_FILE_BYTES };
        stays.rate.push(moved as f64 / MIB as f64 / seconds);
        Ok(())
    }

    /// Waits until no process in the cgroup follows a command: everything it brought in was
    /// released then.
    fn settle(&self) -> Result<()> {
        let began = Instant::now();
        while !self.group.followers()?.is_empty() {
            ensure!(
                began.elapsed() < SETTLED_WITHIN,
                "a process in {} continues",
                self.group.entrance().display()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Returns the counts of resident bytes once they have not fallen for [`SETTLED_AFTER`].
fn last_of(left: impl Fn() -> Result<(u64, u64)>) -> Result<(u64, u64)> {
    let began = Instant::now();
    let (mut last, mut since) = (left()?, began);
    while since.elapsed() < SETTLED_AFTER && began.elapsed() < SETTLED_WITHIN {
        std::thread::sleep(Duration::from_millis(20));
        let now = left()?;
        if now.0 < last.0 || now.1 < last.1 {
            since = Instant::now();
        }
        last = now;
    }
    Ok(last)
}

/// Makes a file cold whose pages were sent. The kernel frees a processor's last packets only when
/// that processor receives another packet (`skb_attempt_defer_free`), so each one is sent one.
fn make_cold_soon(path: &Path) -> Result<()> {
    let began = Instant::now();
    loop {
        let made = make_cold(path);
        if made.is_ok() || began.elapsed() > SETTLED_WITHIN {
            return made;
        }
        send_on_each_processor().context("can't send to this host")?;
    }
}

fn send_on_each_processor() -> std::io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let allowed = sched_getaffinity(None)?;
    for processor in (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)) {
        let mut one = CpuSet::new();
        one.set(processor);
        sched_setaffinity(None, &one)?;
        socket.send_to(&[0], socket.local_addr()?)?;
    }
    Ok(sched_setaffinity(None, &allowed)?)
}

fn size_of_all(files: &[PathBuf]) -> Result<u64> {
    let size = |path: &PathBuf| path.metadata().map(|metadata| metadata.len());
    files.iter().map(size).sum::<std::io::Result<u64>>().context("can't stat what was written")
}

/// Returns resident bytes as counted by fincore.
fn fincore(files: &[PathBuf]) -> Result<u64> {
    let output = run_process(
        Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).args(files),
    )?;
    output
        .stdout
        .split_whitespace()
        .map(|number| number.parse::<u64>().context("fincore printed no number"))
        .sum()
}

/// Returns the bytes of block devices' own pages.
fn buffers() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("can't read /proc/meminfo")?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("Buffers:")).context("no Buffers in /proc/meminfo")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("Buffers is no number")?;
    Ok(kib << 10)
}

/// A loop device on a file that bypasses the file's page cache. It is kept open, because the kernel
/// drops its pages at the last close.
struct LoopDevice {
    path: PathBuf,
    _open: std::fs::File,
}

impl LoopDevice {
    fn new(file: &Path) -> Result<Self> {
        write_synced(file, READ_FILE_BYTES)?;
        make_cold(file)?;
        let made =
            run_process(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file))?;
        let path = PathBuf::from(made.stdout.trim());
        let open = std::fs::File::open(&path).with_context(|| format!("can't open {}", path.display()))?;
        Ok(Self { path, _open: open })
    }

    fn make_cold(&self) -> Result<()> {
        run_process(Command::new("blockdev").arg("--flushbufs").arg(&self.path)).map(drop)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run_process(Command::new("losetup").arg("--detach").arg(&self.path)) {
            eprintln!("pagekeeper-bench: can't detach {}: {error:#}", self.path.display());
        }
    }
}
