//! A hostile user: processes that pose as databases, in private directories and namespaces, and
//! exchange, bind and toggle the files that the guard and the doctor inspect.
//!
//! Each part is this test program again ([`play`]), or a shell. Invariants: parts end with their
//! handle and with their parent; only the user's own files, and nothing of the machine, are
//! changed; no part opens a decoy once it is ready. The parts pause between acts: they race, but
//! don't compete for the processor.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};

use super::decoys::Decoys;
use super::{copy_program, eventually};

/// Programs that it needs.
pub(crate) const REQUIRED_PROGRAMS: [&str; 4] = ["setpriv", "unshare", "sh", "chown"];

/// Environment variable with the part that a process of this program plays in its working
/// directory.
const PART: &str = "PAGEKEEPER_HOSTILE_PART";

/// The ID of a user that owns nothing.
const USER_ID: &str = "54321";

const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// A directory of a process of the user's: its name, the program's, and the part.
type Role = (&'static [u8], &'static str, &'static str);

const ROLES: [Role; 9] = [
    (b"exchanged", "mongod", "exchange"),
    (b"bound", "mariadbd", "bind"),
    (b"toggled", "mysqld", "toggle"),
    (b"held\n\x1b[31m\xff", "tikv-server", "hold"),
    (b"huge", "mysqld", "crowd"),
    (b"scattered", "mysqld", "scatter"),
    (b"many", "postgres", "descriptors"),
    (b"forks", "sh", "fork"),
    (b"container", "mariadbd", "exchange"),
];

/// The running parts, and their decoys.
pub(crate) struct Hostile {
    parts: Vec<Child>,
    decoys: Decoys,
    home: PathBuf,
    secret: PathBuf,
}

impl Hostile {
    /// Starts all parts under `parent`, with links to the directories of `victims`, and `names`
    /// files in the largest directory; returns once they are ready.
    pub(crate) fn start(parent: &Path, victims: &[&Path], names: u32) -> Self {
        let root = parent.join("secret");
        std::fs::create_dir(&root).expect("make a directory");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&root, private).expect("make it private");
        let secret = root.join("WiredTigerLog.0000000001");
        std::fs::write(&secret, vec![1; 16 << 20]).expect("write a file");
        File::open(&secret).and_then(|file| file.sync_all()).expect("sync a file");
        let mut decoys = Decoys::new();
        let home = parent.join("hostile");
        std::fs::create_dir(&home).expect("make a directory");
        let program = home.join("program");
        copy_program(&std::env::current_exe().expect("this program"), &program);
        let mut parts = Vec::new();
        for (directory, name, part) in ROLES {
            let directory = home.join(OsStr::from_bytes(directory));
            lay_out(&directory, &mut decoys, &[victims, &[root.as_path()]].concat());
            if part == "fork" {
                for name in ["mongod", "mariadbd", "mysqld", "postgres", "tikv-server"] {
                    symlink("/bin/sh", directory.join(name)).expect("make a link");
                }
            } else {
                std::fs::hard_link(&program, directory.join(name)).expect("make a link");
            }
            parts.push(start(&directory, name, part, names));
        }
        for (directory, _, part) in ROLES {
            let ready = home.join(OsStr::from_bytes(directory)).join("ready");
            eventually(&format!("{part} is ready"), WAIT_TIMEOUT, || {
                check(&mut parts, &home);
                ready.exists().then_some(())
            });
        }
        decoys.add(&secret);
        // The parts opened these themselves, before they were ready.
        decoys.opened();
        Self { parts, decoys, home, secret }
    }

    /// Panics if a part has ended, or if a decoy was opened.
    pub(crate) fn check(&mut self) {
        check(&mut self.parts, &self.home);
        let opened = self.decoys.opened();
        assert!(opened.is_empty(), "these were opened: {opened:?}");
    }

    /// Discards the opens so far, for a caller that caused them.
    pub(crate) fn forget(&self) {
        self.decoys.opened();
    }

    /// Creates a resident file of root, in a directory of root, as the target of links.
    ///
    pub(crate) fn secret(&self) -> &Path {
        &self.secret
    }

    /// Process ids of the parts.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.parts.iter().map(Child::id).collect()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        for part in &mut self.parts {
            // Both calls fail only if the process has ended already.
            let _ = part.kill();
            let _ = part.wait();
        }
    }
}

fn check(parts: &mut [Child], home: &Path) {
    for (part, (directory, _, role)) in parts.iter_mut().zip(ROLES) {
        let ended = part.try_wait().expect("wait for a part");
        let said = || std::fs::read_to_string(home.join(OsStr::from_bytes(directory)).join("said"));
        assert!(ended.is_none(), "{role} ended: {ended:?} {:?}", said());
    }
}

/// Creates files of each database, decoys beside them, and links to directories of others.
fn lay_out(directory: &Path, decoys: &mut Decoys, others: &[&Path]) {
    for name in ["journal", "pg_wal"] {
        std::fs::create_dir_all(directory.join(name)).expect("make a directory");
    }
    let names =
        ["ib_logfile0", "binlog.000001", "binlog.000002", "binlog.000003", "aria_log.00000001", "000007.log"];
    let nested = ["journal/WiredTigerLog.0000000001", "pg_wal/000000010000000000000001"];
    for name in names.iter().chain(&nested) {
        std::fs::write(directory.join(name), vec![1; 1 << 20]).expect("write a log");
    }
    for name in ["binlog.index", "aria_log_control", "MANIFEST-000001", "OPTIONS-000005", "000004.sst"] {
        std::fs::write(directory.join(name), name).expect("write a file");
    }
    decoys.device(&directory.join("device"));
    decoys.fifo(&directory.join("fifo"));
    for (number, other) in others.iter().enumerate() {
        symlink(other, directory.join(format!("link{number}"))).expect("make a link");
    }
    if directory.ends_with("container") {
        return;
    }
    let status = Command::new("chown").args(["-hR", &format!("{USER_ID}:{USER_ID}")]).arg(directory).status();
    assert!(status.expect("run chown").success());
}

fn start(directory: &Path, name: &str, part: &str, names: u32) -> Child {
    let mut words: Vec<OsString> = Vec::new();
    let mut say = |text: &[&str]| words.extend(text.iter().map(OsString::from));
    if directory.ends_with("container") {
        say(&["setpriv", "--pdeathsig=KILL", "--"]);
        say(&["unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc"]);
    } else {
        let user = ["--reuid", USER_ID, "--regid", USER_ID, "--clear-groups", "--pdeathsig=KILL", "--"];
        say(&[&["setpriv"][..], &user].concat());
        // In its own namespaces, as their root.
        if part == "bind" || part == "exchange" {
            say(&["unshare", "-U", "-r", "-m"]);
        }
    }
    if part == "fork" {
        say(&["sh", "-c", FORKS]);
    } else {
        // By a name that a test program accepts as an argument, whatever the directory's name.
        words.push(Path::new(".").join(name).into());
        words.extend(["--exact", "hostile::a_part_of_the_hostile_user", "--nocapture"].map(OsString::from));
    }
    Command::new(&words[0])
        .args(&words[1..])
        .current_dir(directory)
        .env(PART, part)
        .env("PAGEKEEPER_HOSTILE_NAMES", names.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(directory.join("said")).expect("make a file"))
        .spawn()
        .expect("start a part")
}

/// Short-lived processes with databases' names, each with a log open for a moment. Each one
/// claims a directory of others.
const FORKS: &str = "parent=$PPID; : >ready; while [ -d /proc/$parent ]; do \
                     for name in mongod mariadbd mysqld postgres tikv-server; do \
                     ./$name -c 'exec 3>>ib_logfile0 4>>MANIFEST-000001 5>>pg_wal/000000010000000000000001; sleep 0.4' \
                     $name --datadir=link0 -D link1 & sleep 0.1; done; wait; done";

/// Plays the part in the environment until the parent has ended; returns immediately if there is
/// none.
pub(crate) fn play() {
    let Some(part) = std::env::var_os(PART) else { return };
    let here = std::env::current_dir().expect("a directory");
    let parent = rustix::process::getppid();
    let _held = hold_files_open(&here);
    match part.to_str() {
        Some("exchange") => exchange_files(parent),
        Some("bind") => bind_over_logs(parent),
        Some("toggle") => toggle_descriptors(parent),
        Some("hold") => idle(parent),
        Some("crowd") => {
            create_many_names();
            idle(parent);
        }
        Some("scatter") => write_scattered_pages(parent),
        Some("descriptors") => {
            let (_, most) = raise_descriptor_limit();
            let mut many = Vec::new();
            while (many.len() as u64) < most.min(16_000) - 100 {
                many.push(File::open("binlog.000001").expect("open a file"));
            }
            idle(parent);
        }
        other => panic!("no such part: {other:?}"),
    }
}

/// Holds files open like a database.
fn hold_files_open(here: &Path) -> Vec<File> {
    let names = [
        "aria_log_control",
        "MANIFEST-000001",
        "000007.log",
        "binlog.000003",
        "ib_logfile0",
        "journal/WiredTigerLog.0000000001",
        "pg_wal/000000010000000000000001",
    ];
    let open = |name| File::options().append(true).open(here.join(name)).expect("open a log");
    names.map(open).into()
}

/// Raises the limit of descriptors. Returns the old and the new one.
fn raise_descriptor_limit() -> (u64, u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let most = before.maximum.unwrap_or(16_000);
    let raised = Rlimit { current: Some(most), maximum: before.maximum };
    setrlimit(Resource::Nofile, raised).expect("raise a limit up to the hard one");
    (before.current.unwrap_or(most), most)
}

fn ready() {
    File::create("ready").expect("make a file");
}

/// Whether the test still runs. Another process takes in orphans.
fn is_test_running(parent: Option<rustix::process::Pid>) -> bool {
    rustix::process::getppid() == parent
}

fn idle(parent: Option<rustix::process::Pid>) {
    ready();
    while is_test_running(parent) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Exchanges logs with special files, and directories with links, each by one call.
fn exchange_files(parent: Option<rustix::process::Pid>) {
    let pairs = [
        ("ib_logfile0", "device"),
        ("binlog.000001", "fifo"),
        ("binlog.000002", "device"),
        ("journal", "link0"),
        ("pg_wal", "link1"),
        ("journal", "link2"),
        ("000007.log", "fifo"),
        ("pg_wal", "link2"),
    ];
    ready();
    for (turn, (first, second)) in pairs.iter().cycle().enumerate() {
        if !is_test_running(parent) {
            return;
        }
        // Sometimes longer than a tick, so that the guard finds a changed file.
        let exchanged = if turn % 101 == 0 { Duration::from_millis(700) } else { Duration::from_micros(400) };
        for pause in [exchanged, Duration::from_micros(1600)] {
            let done = rustix::fs::renameat_with(CWD, *first, CWD, *second, RenameFlags::EXCHANGE);
            done.expect("exchange two names");
            std::thread::sleep(pause);
        }
    }
}

/// Binds special files and others' directories over logs, in a private mount namespace.
fn bind_over_logs(parent: Option<rustix::process::Pid>) {
    ready();
    let pairs = [
        ("device", "ib_logfile0"),
        ("fifo", "binlog.000001"),
        ("link0", "journal"),
        ("device", "binlog.000003"),
    ];
    for (what, over) in pairs.iter().cycle() {
        if !is_test_running(parent) {
            return;
        }
        // A directory that its user may not enter is refused, as is one that is mounted over.
        if rustix::mount::mount_bind(*what, *over).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
            rustix::mount::unmount(*over, rustix::mount::UnmountFlags::DETACH).expect("unmount");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Toggles forty descriptors of a log to a device, a FIFO and a log again.
fn toggle_descriptors(parent: Option<rustix::process::Pid>) {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let sources: [OwnedFd; 3] = ["binlog.000001", "device", "fifo"]
        .map(|name| rustix::fs::openat(CWD, name, flags, Mode::empty()).expect("open a file"));
    let mut toggled: Vec<OwnedFd> =
        (0..40).map(|_| sources[0].try_clone().expect("another descriptor")).collect();
    ready();
    for source in sources.iter().cycle() {
        if !is_test_running(parent) {
            return;
        }
        for descriptor in &mut toggled {
            rustix::io::dup2(source.as_fd(), descriptor).expect("replace a descriptor");
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Creates very many log names, some with a page.
fn create_many_names() {
    let names = std::env::var("PAGEKEEPER_HOSTILE_NAMES").ok().and_then(|text| text.parse::<u32>().ok());
    for number in 100..names.expect("a number") {
        let file = File::create(format!("binlog.{number:06}")).expect("make a file");
        if number % 16 == 0 {
            std::io::Write::write_all(&mut &file, &[1; 4096]).expect("write a page");
        }
    }
}

/// Repeatedly writes a page in each second MiB of many large logs.
fn write_scattered_pages(parent: Option<rustix::process::Pid>) {
    const WINDOW: u64 = 2 << 20;
    const WINDOWS: u64 = 500;
    let logs: Vec<File> = (100..120)
        .map(|number| {
            let options = File::options().read(true).write(true).create(true).truncate(false).clone();
            let log = options.open(format!("binlog.{number:06}")).expect("make a log");
            log.set_len(WINDOWS * WINDOW).expect("grow it");
            rustix::fs::fadvise(&log, 0, None, rustix::fs::Advice::Random).expect("advise");
            log
        })
        .collect();
    ready();
    while is_test_running(parent) {
        for (log, window) in logs.iter().flat_map(|log| (0..WINDOWS).map(move |window| (log, window))) {
            log.read_at(&mut [0], window * WINDOW).expect("read");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}
