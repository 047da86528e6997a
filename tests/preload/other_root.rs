//! Streams below another root, where there is no /proc: a daemon that changes its own root, and
//! children of chroot(1). Residency is counted from outside, by cachestat(2).

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::report::{evict_all, resident_by_file};
use crate::support;
use crate::support::MIB;
use crate::support::command::{Outcome, finish, pagekeeper, pagekeeper_by_library};
use crate::support::compare::Way;
use crate::support::loop_images::QuickDisk;

/// A deadline far longer than anything here takes.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes and number of the small files; bytes of the large one.
const SMALL_FILE_BYTES: usize = 300 << 10;
const FILE_COUNT: u8 = 200;
const LARGE_FILE_BYTES: usize = 60 << 20;

/// An rsync daemon under the rules, each process of which changes its root; ended when dropped.
struct RsyncDaemon {
    child: Child,
    port: u16,
}

impl RsyncDaemon {
    /// Starts a daemon that serves a directory as that user.
    fn start(directory: &Path, user: u32, own: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let config = own.join("rsyncd.conf");
        let text = format!(
            "use chroot = yes\nuid = {user}\ngid = {user}\nnumeric ids = yes\n[files]\npath = {}\nread only = no\n",
            directory.display()
        );
        std::fs::write(&config, text).expect("write");
        let mut command = Way::stream_by_library().command(Path::new("rsync"));
        command.args(["--daemon", "--no-detach", "--address=127.0.0.1"]).arg(format!("--port={port}"));
        command.arg(format!("--config={}", config.display()));
        let child = command.stdin(Stdio::null()).spawn().expect("start rsync");
        let daemon = Self { child, port };
        support::eventually("rsync listens", WAIT_TIMEOUT, || TcpStream::connect(("127.0.0.1", port)).ok());
        daemon
    }

    fn files(&self) -> String {
        format!("rsync://127.0.0.1:{}/files/", self.port)
    }
}

impl Drop for RsyncDaemon {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        let _ = self.child.wait();
    }
}

/// Copies files without the rules at the client's end, whose pages are not checked.
fn copy(from: &str, to: &str) {
    finish(Command::new("rsync").args(["--recursive", "--whole-file", from, to])).expect_success();
}

/// Creates files of both sizes. Returns the total bytes.
fn make_files(directory: &Path) -> u64 {
    std::fs::create_dir(directory).expect("make a directory");
    for nth in 0..FILE_COUNT {
        std::fs::write(directory.join(format!("file-{nth}")), vec![nth; SMALL_FILE_BYTES]).expect("write");
    }
    let large: Vec<u8> = (0..251_u8).cycle().flat_map(|byte| [byte; 4096]).take(LARGE_FILE_BYTES).collect();
    std::fs::write(directory.join("large"), large).expect("write");
    u64::from(FILE_COUNT) * SMALL_FILE_BYTES as u64 + LARGE_FILE_BYTES as u64
}

/// Waits until at most a fiftieth is resident, since a dying process releases its files late.
///
fn wait_until_released(what: &str, directory: &Path, size: u64) {
    support::eventually(&format!("{what} goes"), WAIT_TIMEOUT, || {
        let left: u64 = resident_by_file(directory).values().sum();
        eprintln!("{what}: {left} of {size} bytes stay");
        (left <= size / 50).then_some(())
    });
}

/// rsync changes its root in a child of the daemon, and then forks the writing process. None of
/// these has /proc, so none has a helper that could open a file.
#[test]
#[ignore = "long: make test-stories"]
fn pages_of_a_daemon_below_another_root_go() {
    if !support::can_run("a daemon below another root", &["rsync", "python3", "diff"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let outside = support::scratch();
    let here = scratch.path();
    std::fs::set_permissions(here, PermissionsExt::from_mode(0o755)).expect("set permissions");
    let from = here.join("from");
    let size = make_files(&from);
    for user in [0, 65534] {
        let served = here.join("served");
        std::fs::create_dir(&served).expect("make a directory");
        std::os::unix::fs::chown(&served, Some(user), Some(user)).expect("give it away");
        let daemon = RsyncDaemon::start(&served, user, outside.path());
        evict_all(here);
        copy(&format!("{}/", from.display()), &daemon.files());
        wait_until_released(&format!("files received by user {user}"), &served, size);
        finish(Command::new("diff").arg("-r").args([&from, &served])).expect_success();
        evict_all(here);
        let back = here.join("back");
        copy(&daemon.files(), &format!("{}/", back.display()));
        wait_until_released(&format!("files served by user {user}"), &served, size);
        finish(Command::new("diff").arg("-r").args([&from, &back])).expect_success();
        drop(daemon);
        std::fs::remove_dir_all(&served).expect("remove");
        std::fs::remove_dir_all(&back).expect("remove");
    }
}

/// Creates a directory with only some programs and their libraries.
fn make_root(root: &Path, programs: &[&str]) {
    let copy = |file: &Path, to: &Path| {
        std::fs::create_dir_all(to.parent().expect("not the root")).expect("make a directory");
        std::fs::copy(file, to).expect("copy");
    };
    for program in programs {
        let found = finish(Command::new("sh").args(["-c", "command -v \"$0\"", program])).expect_success();
        let file = PathBuf::from(found.trim());
        copy(&file, &root.join("bin").join(program));
        let linked = finish(Command::new("ldd").arg(&file)).expect_success();
        let words = linked.split_whitespace().filter(|word| word.starts_with('/'));
        for library in words {
            copy(Path::new(library), &root.join(library.trim_start_matches('/')));
        }
    }
}

/// Runs a command under the rules in a directory.
fn run_under_rules(words: &[&str], here: &Path) -> Outcome {
    let mut command = pagekeeper();
    finish(command.args(["run", "--"]).args(words).current_dir(here))
}

/// The library is not in that root: the loader prints no error, and kernel events are used instead.
///
#[test]
#[ignore = "long: make test-stories"]
fn pages_of_a_program_below_a_minimal_root_go() {
    let programs = ["chroot", "cp", "dd", "ls", "ldd", "sh", "python3", "cmp"];
    if !support::can_follow("a root with little in it", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let root = here.join("root");
    make_root(&root, &["cp", "dd", "ls"]);
    let data = root.join("data");
    let size = make_files(&data);
    let (copies, programs) = (root.join("copies"), root.join("bin"));
    for words in [
        &["chroot", "root", "/bin/cp", "-r", "/data", "/copies"][..],
        &["sh", "-c", "chroot root /bin/cp -r /data /copies"],
        &[
            "chroot",
            "--userspec=0:0",
            "root",
            "/bin/dd",
            "if=/data/large",
            "of=/copies",
            "bs=64k",
            "status=none",
        ],
        &["chroot", "root", "/bin/dd", "if=/data/large", "of=/copies", "bs=1G", "status=none"],
    ] {
        evict_all(here);
        let before: u64 = resident_by_file(&programs).values().sum();
        assert_eq!(before, 0, "programs are resident");
        run_under_rules(words, here).expect_success();
        wait_until_released(&format!("{words:?}"), &data, size);
        if copies.is_dir() {
            wait_until_released(&format!("{words:?}, what it wrote,"), &copies, size);
            finish(Command::new("diff").arg("-r").args([&data, &copies])).expect_success();
            std::fs::remove_dir_all(&copies).expect("remove");
        } else {
            support::wait_until_resident_below(std::slice::from_ref(&copies), MIB, WAIT_TIMEOUT);
            finish(Command::new("cmp").arg(data.join("large")).arg(&copies)).expect_success();
            std::fs::remove_file(&copies).expect("remove");
        }
    }
    // Without events, one line reports that a script's children below a root are not covered.
    let mut command = pagekeeper_by_library();
    command.args(["run", "--", "sh", "-c", "chroot root /bin/ls /"]);
    let outcome = finish(command.current_dir(here));
    assert!(outcome.code == 0 && outcome.stdout.contains("data"), "{outcome:?}");
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(
        matches!(lines[..], [line] if line.contains("chroot starts its command without the library") && line.contains("without the rules")),
        "{outcome:?}"
    );
}
