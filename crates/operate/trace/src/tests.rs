//! Tests of tracing the real kernel. They say so if permission or means are missing.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use super::bpf::programs::{CountTableFds, program};
use super::event::TracepointKind;
use super::tracefs::Tracepoint;
use super::*;
use crate::testing::{as_nobody, disk_dir, evict_all, file_of, skip};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Inode, InspectedFile, Links, page_size, residency};

const MIB: usize = 1 << 20;

/// The bytes that are read of a file of which each page is counted.
const READ_BYTES: usize = 64 * MIB;

/// The pages of a file that is read a page at a time.
const TRACED_PAGES: u64 = 16384;

/// Maximum number of attempts to trace without interference by others' programs.
const ATTEMPTS_MAX: usize = 20;

/// Runs one test at a time: a processor that is in one program, or in the midst of reading a table,
/// runs no other.
fn alone() -> MutexGuard<'static, ()> {
    static TEST_LOCK: Mutex<()> = Mutex::new(());
    lock(&TEST_LOCK)
}

/// Returns a tracer of exactly this level, for pages only unless the options say more; `None`, with
/// a message, if it is not available.
fn tracer(level: TraceLevel, options: TraceOptions) -> Option<Tracer> {
    let tracer = Tracer::start(&TraceOptions { best: level, ..options }).unwrap();
    if tracer.source().level() == level {
        return Some(tracer);
    }
    skip(tracer.source());
    None
}

fn only(path: &Path) -> TraceOptions {
    TraceOptions { filter: PageFilter::Files(vec![path.to_path_buf()]), ..TraceOptions::default() }
}

fn identity(file: &InspectedFile) -> Inode {
    traced_inode(&SysRoots::default(), file, file.path()).unwrap()
}

/// Makes a synced file that has no resident pages.
fn cold_file(len: usize) -> (tempfile::TempDir, InspectedFile) {
    let (dir, file) = file_of(len);
    evict_all(&file);
    (dir, file)
}

/// Checks that a source counts a read of 64 MiB as 64 MiB added (16,384 pages of 4 KiB), and their
/// eviction as 64 MiB removed.
fn counts_each_page(level: TraceLevel, options: impl Fn(&Path) -> TraceOptions) {
    let _alone = alone();
    let (_dir, file) = cold_file(READ_BYTES);
    for _ in 0..ATTEMPTS_MAX {
        evict_all(&file);
        let Some(tracer) = tracer(level, options(file.path())) else { return };
        if is_each_page_counted(level, &file, tracer) {
            return;
        }
    }
    skip("someone else uses programs all the time");
}

/// Returns false if the kernel skipped a program, which others that use programs can cause: then
/// nothing is exact.
fn is_each_page_counted(level: TraceLevel, file: &InspectedFile, mut tracer: Tracer) -> bool {
    let inode = identity(file);
    std::fs::read(file.path()).unwrap();
    let counts = tracer.take().unwrap();
    let flow = counts.of_file(inode).unwrap();
    if counts.losses.skipped > 0 {
        return false;
    }
    assert_eq!(flow.added.bytes, READ_BYTES as u64, "{level:?} {}", counts.losses);
    assert_eq!(flow.removed, PageTotals::default());
    assert!((1..=READ_BYTES as u64 / page_size()).contains(&flow.added.folios), "{flow:?}");
    if level != TraceLevel::Counters {
        let by_file: Vec<_> = counts.pages.iter().flatten().filter(|counts| counts.file == inode).collect();
        // Read-ahead is done by the reader.
        let task = by_file[0].task.as_ref().unwrap();
        assert_eq!((by_file.len(), task.process), (1, std::process::id()));
        assert_eq!(task.thread, u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap());
    }

    evict_all(file);
    let snapshot = tracer.snapshot().unwrap();
    if snapshot.losses.skipped > 0 {
        return false;
    }
    let flow = snapshot.of_file(inode).unwrap();
    assert_eq!((flow.added.bytes, flow.removed.bytes), (0, READ_BYTES as u64));
    // A snapshot does not end a period; `take` does.
    assert_eq!(tracer.take().unwrap().of_file(inode), Some(flow));
    assert_eq!(tracer.take().unwrap().of_file(inode), Some(PageFlow::default()));
    let losses = tracer.take().unwrap().losses;
    assert_eq!(losses, EventLosses { skipped: losses.skipped, ..EventLosses::default() });
    losses.skipped == 0
}

#[test]
fn programs_count_each_page() {
    counts_each_page(TraceLevel::Bpf, only);
}

#[test]
fn polling_counts_each_page() {
    counts_each_page(TraceLevel::Counters, only);
}

#[test]
fn devices_are_filtered() {
    let _alone = alone();
    let (_dir, file) = cold_file(MIB);
    let inode = identity(&file);
    for (dev, bytes) in [(inode.dev, MIB as u64), (inode.dev + 1, 0)] {
        evict_all(&file);
        let filter = PageFilter::Devices(vec![inode.dev + 2, dev]);
        let Some(mut tracer) = tracer(TraceLevel::Bpf, TraceOptions { filter, ..TraceOptions::default() })
        else {
            return;
        };
        std::fs::read(file.path()).unwrap();
        let counts = tracer.take().unwrap();
        assert_eq!(counts.of_file(inode).unwrap().added.bytes, bytes);
        assert!(counts.by_file().iter().all(|(file, _)| file.dev == dev));
    }
}

/// A table of few entries fills up, reports that, and has room again when its entries have been
/// idle.
#[test]
fn a_full_table_is_reported_and_recovers() {
    let _alone = alone();
    let dir = disk_dir();
    let paths: Vec<PathBuf> = (0..24).map(|number| dir.path().join(number.to_string())).collect();
    for path in &paths {
        std::fs::write(path, vec![1; 4096]).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    let files: Vec<_> = paths.iter().map(|path| InspectedFile::open(path, Links::Refuse).unwrap()).collect();
    let options = TraceOptions {
        entries: 16,
        filter: PageFilter::Files(paths.clone()),
        pauses: false,
        reclaim: false,
        ..TraceOptions::default()
    };
    for _ in 0..ATTEMPTS_MAX {
        files.iter().for_each(evict_all);
        let Some(mut tracer) = tracer(TraceLevel::Bpf, options.clone()) else { return };
        for path in &paths {
            std::fs::read(path).unwrap();
        }
        let full = tracer.take().unwrap();
        // Nothing happens: all entries are idle, and dropped.
        let idle = tracer.take().unwrap().losses;
        files[16..].iter().for_each(evict_all);
        let counts = tracer.take().unwrap();
        if full.losses.skipped + idle.skipped + counts.losses.skipped > 0 {
            continue;
        }
        assert_eq!(full.by_file().len(), 16);
        assert_eq!(full.losses, EventLosses { no_room: 8, ..EventLosses::default() });
        assert_eq!(idle.total(), 0);
        assert_eq!((counts.by_file().len(), counts.losses.total()), (8, 0));
        return;
    }
    skip("someone else uses programs all the time");
}

/// Makes a file of holes that is read in pages at random places: each is an event of its own.
fn file_of_single_pages(pages: u64) -> (tempfile::TempDir, InspectedFile, impl Fn()) {
    let dir = disk_dir();
    let path = dir.path().join("file");
    File::create(&path).unwrap().set_len(pages * page_size()).unwrap();
    let file = InspectedFile::open(&path, Links::Refuse).unwrap();
    let reader = File::open(&path).unwrap();
    rustix::fs::fadvise(&reader, 0, None, rustix::fs::Advice::Random).unwrap();
    let read = move || {
        let mut page = [0; 1];
        for number in 0..pages {
            // If the number of places is a power of two, an odd factor visits each place once.
            reader.read_exact_at(&mut page, number * 40503 % pages * page_size()).unwrap();
        }
    };
    (dir, file, read)
}

/// Repeatedly reading the tables takes nothing away from concurrent counts.
#[test]
fn counts_add_up_while_they_are_read() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let _alone = alone();
    let (_dir, file, read) = file_of_single_pages(TRACED_PAGES);
    let Some(mut tracer) = tracer(TraceLevel::Bpf, only(file.path())) else { return };
    let inode = identity(&file);
    let done = AtomicBool::new(false);
    let (mut added, mut skipped) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            read();
            done.store(true, Ordering::Release);
        });
        loop {
            let last = done.load(Ordering::Acquire);
            let counts = tracer.take().unwrap();
            added += counts.of_file(inode).unwrap().added.bytes / page_size();
            skipped += counts.losses.skipped;
            assert_eq!(counts.losses.no_room, 0);
            if last {
                break;
            }
        }
    });
    // The kernel runs no program on a processor that is reading a table, and counts that.
    assert!(added <= TRACED_PAGES && added + skipped >= TRACED_PAGES, "{added} counted, {skipped} skipped");
}

/// A task that reads more than its memory cgroup holds has to reclaim.
#[test]
fn direct_reclaim_is_counted_by_task() {
    const GROUP_MIB: usize = 16;
    let _alone = alone();
    let group = Path::new("/sys/fs/cgroup/memory").join(format!("pagekeeper-trace-{}", std::process::id()));
    if !group.parent().is_some_and(|root| root.join("memory.limit_in_bytes").exists()) {
        return skip("no memory cgroup of version 1 to reclaim in");
    }
    let (_dir, file) = cold_file(64 * MIB);
    evict_all(&file);
    let Some(mut tracer) = tracer(TraceLevel::Bpf, only(file.path())) else { return };
    if let Err(error) = std::fs::create_dir(&group) {
        return skip(format_args!("{}: {error}", group.display()));
    }
    std::fs::write(group.join("memory.limit_in_bytes"), (GROUP_MIB * MIB).to_string()).unwrap();
    let mut reader = Command::new("sh")
        .args(["-c", "echo $$ > \"$1/tasks\" && exec cat \"$2\"", "sh"])
        .args([&group, &file.path().to_path_buf()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = reader.id();
    let status = reader.wait().unwrap();
    let removed = std::fs::remove_dir(&group);
    assert!(status.success() && removed.is_ok(), "{status} {removed:?}");
    let counts = tracer.take().unwrap();
    let stalls: Vec<_> = counts.reclaim.iter().flatten().filter(|stalls| stalls.task.thread == pid).collect();
    assert_eq!((stalls.len(), stalls[0].kind), (1, ReclaimKind::Group), "{stalls:?}");
    let stalls = stalls[0];
    assert_eq!(stalls.task.name, "cat");
    assert!(stalls.stalls.count() > 0 && stalls.stalls.longest() <= stalls.stalls.total(), "{stalls:?}");
    assert!(stalls.stalls.at_most(1.0).unwrap() >= stalls.stalls.mean().unwrap(), "{stalls:?}");
    // The excess had to go.
    assert!(stalls.reclaimed >= (MIB * (64 - GROUP_MIB) / 2) as u64, "{stalls:?}");
    if counts.losses.total() > 0 {
        eprintln!("pages are not compared: {}", counts.losses);
        return;
    }
    // Pages that were read ahead and evicted before their turn came in twice; pages that
    // entered and did not leave are resident. Pages of the program itself may have been
    // reclaimed as well.
    let flow = counts.of_file(identity(&file)).unwrap();
    assert!(flow.added.bytes >= 64 * MIB as u64, "{flow:?}");
    assert!(flow.removed.bytes >= (MIB * (64 - GROUP_MIB)) as u64, "{flow:?}");
    let resident = residency(&file, 0..u64::MAX).unwrap().resident;
    assert_eq!(flow.added.bytes - flow.removed.bytes, resident);
}

/// A file system on a loop device whose share of dirty memory is small, so that only its writers
/// are throttled.
struct SmallShare {
    dir: tempfile::TempDir,
    device: String,
    /// The previous settings of the device, which it keeps for the next file system on it.
    before: Vec<(String, String)>,
}

impl SmallShare {
    fn make() -> Result<Self, String> {
        let dir = disk_dir();
        let image = dir.path().join("image");
        File::create(&image).and_then(|file| file.set_len(512 * MIB as u64)).map_err(|e| e.to_string())?;
        let mount = dir.path().join("mount");
        std::fs::create_dir(&mount).map_err(|e| e.to_string())?;
        let image = image.to_str().unwrap();
        run("mkfs.ext4", &["-q", "-F", image])?;
        let device = run("losetup", &["--find", "--show", image])?;
        let mut share = Self { dir, device, before: Vec::new() };
        run("mount", &[&share.device, mount.to_str().unwrap()])?;
        let stat = rustix::fs::stat(&mount).map_err(|e| e.to_string())?;
        let bdi = format!("/sys/class/bdi/{}", name_of(stat.st_dev));
        for (setting, value) in [("strict_limit", "1"), ("max_ratio", "1")] {
            let path = format!("{bdi}/{setting}");
            let before = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
            std::fs::write(&path, value).map_err(|e| format!("{path}: {e}"))?;
            share.before.push((path, before));
        }
        Ok(share)
    }

    fn mount(&self) -> PathBuf {
        self.dir.path().join("mount")
    }
}

impl Drop for SmallShare {
    fn drop(&mut self) {
        for (path, before) in &self.before {
            let _ = std::fs::write(path, before);
        }
        let _ = run("umount", &[self.mount().to_str().unwrap()]);
        let _ = run("losetup", &["--detach", &self.device]);
    }
}

/// Returns the kernel's name for a disk.
fn name_of(dev: u64) -> String {
    format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{program}: {}", text(&output.stderr)))
    }
}

#[test]
fn pauses_for_dirty_pages_are_counted_by_task_and_device() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount a file system");
    }
    let share = match SmallShare::make() {
        Ok(share) => share,
        Err(why) => return skip(why),
    };
    let device = name_of(rustix::fs::stat(share.mount()).unwrap().st_dev);
    let options = TraceOptions { pages: false, reclaim: false, ..TraceOptions::default() };
    let Some(mut tracer) = tracer(TraceLevel::Bpf, options) else { return };
    let own = std::process::id();
    let block = vec![7; 64 * 1024];
    let path = share.mount().join("file");
    // Whether a writer has to pause depends on the speed that the kernel assumes for this disk,
    // among all the others.
    let mut rounds = (0..20).map(|_| {
        // Small writes to one file: every few pages the kernel decides whether to pause.
        let file = File::create(&path).unwrap();
        for number in 0..3072_u64 {
            file.write_all_at(&block, number * 65536).unwrap();
        }
        std::fs::remove_file(&path).unwrap();
        tracer.take().unwrap()
    });
    let is_own = |pauses: &&PauseCounts| pauses.task.process == own && pauses.device == device;
    let counts = rounds.find(|counts| counts.pauses.iter().flatten().any(|pauses| is_own(&pauses)));
    let counts = counts.unwrap_or_else(|| panic!("no pause in twenty rounds"));
    let pauses: Vec<_> = counts.pauses.iter().flatten().filter(is_own).collect();
    assert_eq!(pauses.len(), 1, "{:?}", counts.pauses);
    let pauses = pauses[0];
    assert!(pauses.pauses.count() >= pauses.waits && pauses.waits > 0, "{pauses:?}");
    assert!(pauses.pauses.total() >= pauses.longest_wait, "{pauses:?}");
    assert!(pauses.longest_wait >= pauses.pauses.longest(), "{pauses:?}");
    // The device's own limit throttled it, far below that of the machine.
    assert!(pauses.levels.device_dirty > 0 && pauses.levels.limit > pauses.levels.setpoint, "{pauses:?}");
    // Programs of other tests can cause some events to be skipped.
    assert_eq!(counts.losses.total(), counts.losses.skipped, "{}", counts.losses);
}

/// Returns the reads that a disk has completed (`stat` of `sysfs-block`).
fn reads_of(disk: &str) -> u64 {
    let text = std::fs::read_to_string(Path::new(disk).join("stat")).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn requests_to_the_disk_are_counted() {
    let _alone = alone();
    let (_dir, file) = cold_file(4 * MIB);
    let stat = rustix::fs::stat(file.path()).unwrap();
    let disk =
        format!("/sys/dev/block/{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    if Path::new(&disk).join("partition").exists() || !Path::new(&disk).exists() {
        return skip("the test files are not on a whole disk");
    }
    let options =
        TraceOptions { pages: false, pauses: false, reclaim: false, block: true, ..TraceOptions::default() };
    let Some(mut tracer) = tracer(TraceLevel::Bpf, options) else { return };
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(file.path()).unwrap();
    let mut memory = vec![0_u8; 8192];
    let aligned = memory.as_ptr().align_offset(4096);
    let before = reads_of(&disk);
    for block in 0..256 {
        direct.read_exact_at(&mut memory[aligned..aligned + 4096], block * 4096 * 4).unwrap();
    }
    let of_disk = reads_of(&disk) - before;
    let counts = tracer.take().unwrap();
    let reads = counts.block.iter().flatten().find(|one| one.dev == stat.st_dev && one.op == BlockOp::Read);
    let reads = reads.unwrap_or_else(|| panic!("{:?}", counts.block));
    // A completion interrupts whatever runs, including other programs. Then it counts as
    // skipped, in some cases only after a minute. The whole machine's requests to its disks may
    // also exceed the table.
    let unfinished = match &tracer.reader {
        CountReader::Bpf(source) => source.drop_unfinished(u64::MAX).unwrap(),
        CountReader::Polling(_) => 0,
    };
    let lost = counts.losses.total();
    let seen = reads.latency.count() + lost + unfinished;
    let losses = counts.losses;
    assert!(seen >= 256, "{reads:?} {losses}, {of_disk} by the disk's own count");
    assert!(reads.bytes >= reads.latency.count() * 4096, "{reads:?}");
    assert!(reads.latency.longest() <= reads.latency.total() && reads.latency.mean().is_some());
    assert_eq!((counts.pages, counts.reclaim), (None, None));
}

#[test]
fn a_request_that_was_not_seen_to_complete_is_lost_in_time() {
    let _alone = alone();
    let options =
        TraceOptions { pages: false, pauses: false, reclaim: false, block: true, ..TraceOptions::default() };
    let Some(mut tracer) = tracer(TraceLevel::Bpf, options) else { return };
    let CountReader::Bpf(source) = &tracer.reader else { panic!("{:?}", tracer.source()) };
    source.begin_request(1);
    assert!(tracer.take().unwrap().losses.skipped > 0, "since the machine was started");
    let CountReader::Bpf(source) = &tracer.reader else { unreachable!() };
    source.begin_request(u64::MAX - 1);
    tracer.take().unwrap();
    let CountReader::Bpf(source) = &tracer.reader else { unreachable!() };
    assert!(source.drop_unfinished(u64::MAX).unwrap() >= 1, "it is not old enough");
}

#[test]
fn unrequested_events_are_none_with_a_reason() {
    let options = TraceOptions { best: TraceLevel::Counters, ..TraceOptions::default() };
    let mut tracer = Tracer::start(&options).unwrap();
    let TraceSource::Counters { no_bpf: TraceError::NotAsked } = tracer.source() else {
        panic!("{:?}", tracer.source());
    };
    let counts = tracer.take().unwrap();
    assert_eq!((counts.pages, counts.pauses, counts.reclaim, counts.block), (None, None, None, None));
    assert!(counts.machine.dirtied.is_some() && counts.machine.allocation_stalls.is_some());
}

#[test]
fn an_ordinary_user_gets_counters_and_hears_why() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let said = as_nobody(|| Tracer::start(&TraceOptions::default()).unwrap().source().to_string());
    assert!(said.starts_with("no events, only counters are read"), "{said}");
    assert!(said.contains("needs CAP_DAC_READ_SEARCH") || said.contains("tracefs is not mounted"), "{said}");
}

/// A user may read the tracepoints of this machine, but not run programs.
#[test]
fn the_capabilities_for_programs_are_named() {
    let Some(tracefs) = tracefs() else { return };
    let options = TraceOptions::default();
    let points = options.points(&tracefs).unwrap();
    let error = as_nobody(|| BpfSource::start(&options, &points, &KernelFilter::Everything).unwrap_err());
    let TraceError::Refused { call, needs, .. } = &error else { panic!("{error}") };
    assert_eq!(*call, "bpf(MAP_CREATE)");
    assert!(
        matches!(needs, MissingPermission::Capabilities(_) | MissingPermission::NoLockdown(_)),
        "{error}"
    );
}

#[test]
fn missing_tracefs_is_reported() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(tree.path().join("proc/self")).unwrap();
    std::fs::write(tree.path().join("proc/self/mountinfo"), "").unwrap();
    std::fs::write(tree.path().join("proc/vmstat"), "nr_dirtied 1\n").unwrap();
    let options = TraceOptions { roots: SysRoots::at(tree.path()), ..TraceOptions::default() };
    let tracer = Tracer::start(&options).unwrap();
    assert!(tracer.source().to_string().contains("tracefs is not mounted"), "{}", tracer.source());
}

fn tracefs() -> Option<Tracefs> {
    let found = Tracefs::find(&ProcRoot::default()).and_then(|tracefs| {
        tracefs.event(TracepointKind::Add)?;
        Ok(tracefs)
    });
    found.map_err(skip).ok()
}

/// One program is for a record without the fields it needs, and one is rejected by the verifier.
#[test]
fn the_error_has_the_verifiers_message() {
    let _alone = alone();
    let Some(tracefs) = tracefs() else { return };
    let tables = CountTableFds { entries: -1, flights: -1, lost: -1, epoch: -1 };
    let point = tracefs.event(TracepointKind::ReclaimEnd).unwrap();
    let error =
        program(&Tracepoint { event: TracepointKind::Add, ..point }, tables, &KernelFilter::Everything)
            .unwrap_err();
    assert!(error.to_string().contains("has no field s_dev"), "{error}");

    let mut asm = asm::Assembler::new();
    asm.set(asm::Register::R0, asm::Register::R7);
    asm.exit();
    let error =
        crate::sys::BpfProgram::load(crate::sys::ProgramKind::Tracepoint, "pk_wrong", &asm.finish().unwrap())
            .unwrap_err();
    if error.errno == rustix::io::Errno::PERM {
        return skip("programs may not be loaded");
    }
    assert!(error.log.contains("R7 !read_ok"), "{}", error.log);
}

/// Traces until it is killed. Run by the test below, in a process of its own.
#[test]
#[ignore = "only a part of killed_tracers_leave_nothing_behind"]
fn trace_until_killed() {
    let tracer = Tracer::start(&TraceOptions { block: true, ..TraceOptions::default() }).unwrap();
    match &tracer.reader {
        CountReader::Bpf(reader) => println!("programs {:?}", reader.program_ids()),
        CountReader::Polling(_) => println!("nothing"),
    }
    std::thread::sleep(std::time::Duration::from_secs(600));
}

/// Starts a child that traces, and returns its report before it begins.
fn tracing_child() -> (std::process::Child, String) {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::trace_until_killed", "--ignored", "--nocapture", "--test-threads=1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        // The harness first prints the test's name, without a newline.
        .find_map(|line| {
            let said = line.rsplit("... ").next().unwrap_or_default().to_owned();
            ["programs", "nothing"].iter().any(|word| said.starts_with(word)).then_some(said)
        })
        .unwrap();
    (child, said)
}

/// Waits until a condition holds that has to hold eventually.
fn in_the_end(holds: impl Fn() -> bool) -> bool {
    let tick = || std::thread::sleep(std::time::Duration::from_millis(50));
    (0..600).any(|_| {
        holds() || {
            tick();
            false
        }
    })
}

#[test]
fn killed_tracers_leave_nothing_behind() {
    let _alone = alone();
    let (mut child, said) = tracing_child();
    if let Some(ids) = said.strip_prefix("programs ") {
        let ids: Vec<u32> = ids.trim_matches(['[', ']']).split(", ").map(|id| id.parse().unwrap()).collect();
        let exists = |id: &u32| crate::sys::BpfProgram::exists(*id).unwrap();
        assert!(ids.len() >= 5 && ids.iter().all(exists), "{said}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(in_the_end(|| !ids.iter().any(exists)), "programs are still there");
    } else {
        child.kill().unwrap();
        child.wait().unwrap();
        skip(format_args!("no programs can be loaded: {said}"));
    }
}
