//! Users who have the guard follow their own commands: `pagekeeper run` of an ordinary user, beside
//! a guard that listens on a socket.
//!
//! Needs root, a kernel whose events can be followed, and setpriv. Residency is `fincore`'s.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::guard::Guard;
use crate::support::memory_group::MemoryGroup;
use crate::support::{self, MIB, kept_bytes};

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
const USER_ID: u32 = 1001;
const FILE_BYTES: u64 = 16 * MIB;

/// A guard with a socket, and a directory that every user may enter.
struct Service {
    scratch: tempfile::TempDir,
    program: PathBuf,
    guard: Option<Guard>,
}

impl Service {
    /// Returns a guard to which everybody may send requests.
    fn start(what: &str) -> Option<Self> {
        let programs = ["setpriv", "fincore", "cat", "sh"];
        if !support::can_run(what, &programs) || !support::can_follow(what, &programs) {
            return None;
        }
        let scratch = support::scratch();
        let program = scratch.path().join("pagekeeper");
        support::copy_program(&support::guard::program(), &program);
        let mut service = Self { scratch, program, guard: None };
        service.start_guard("");
        Some(service)
    }

    /// Starts a guard that serves requests and follows the programs in `processes`.
    fn start_guard(&mut self, processes: &str) {
        let (config, nowhere) = (self.at("guard.toml"), self.at("nowhere"));
        let text = format!(
            "directories = [\"{}\"]\n[streams]\nprocesses = [{processes}]\nsocket = \"{}\"\n",
            nowhere.display(),
            self.socket().display()
        );
        std::fs::write(&config, text).expect("write the configuration");
        let guard = Guard::spawn(&["--config", config.to_str().expect("a path of this test's own")]);
        guard.wait_for("tick", WAIT_TIMEOUT, |_| true);
        self.guard = Some(guard);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.at("streams.sock")
    }

    /// Creates a file with no resident page.
    fn file(&self, name: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.at(name);
        std::fs::write(&path, vec![7; usize::try_from(FILE_BYTES).expect("it is small")])
            .expect("write a file");
        chown(&path, Some(owner), Some(owner)).expect("give a file away");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set permissions");
        support::evict(&path);
        path
    }

    /// Returns a command of the user under `run`, as a stream, with a report.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={USER_ID}"), &format!("--regid={USER_ID}"), "--clear-groups", "--"]);
        command.arg(&self.program).args(["run", "--report", "--json", "--as", "stream", "--"]).args(words);
        command.env("PAGEKEEPER_STREAM_SOCKET", self.socket()).current_dir(self.scratch.path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("start pagekeeper run")
    }
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    let json = text.lines().find(|line| line.starts_with('{')).map(serde_json::from_str);
    json.and_then(Result::ok).unwrap_or_else(|| panic!("no report: {text}"))
}

/// Lets a waiting command continue by sending it a line.
fn finish(mut child: Child) -> Output {
    child.stdin.take().expect("piped").write_all(b"\n").expect("the command waits for a line");
    child.wait_with_output().expect("wait for the command")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test's own")
}

#[test]
fn a_user_s_command_is_followed_and_only_files_they_may_read_go() {
    let Some(service) = Service::start("a user's request for streams") else { return };
    let own = service.file("own", USER_ID, 0o600);
    let open = service.file("open", 0, 0o644);
    let output = service.run(&["cat", text(&own), text(&open)]);
    assert!(output.status.success(), "{output:?}");
    let events = report(&output)["events"].clone();
    assert_eq!(events["by_guard"], true, "{events}");
    let bytes = |name: &str| events[name].as_u64().expect("a number");
    assert!(bytes("released_bytes") >= 2 * FILE_BYTES - MIB, "{events}");
    let parts = ["released_bytes", "used_by_others_bytes", "gone_bytes", "left_bytes"].map(bytes);
    assert_eq!(bytes("added_bytes"), parts.iter().sum::<u64>(), "{events}");
    assert!(kept_bytes(&[own, open]) <= MIB);

    // A setuid-root program that the user starts.
    let private = service.file("private", 0, 0o600);
    let privileged = service.at("privileged-cat");
    support::copy_program(Path::new("/bin/cat"), &privileged);
    std::fs::set_permissions(&privileged, PermissionsExt::from_mode(0o4755)).expect("set permissions");
    let output = service.run(&[text(&privileged), text(&private)]);
    if !output.status.success() {
        return pagekeeper_testing::skip("a set-user-ID program needs a file system without nosuid.");
    }
    let events = report(&output)["events"].clone();
    assert!(events["left_bytes"].as_u64() >= Some(FILE_BYTES), "{events}");
    assert_eq!(kept_bytes(&[private]), FILE_BYTES);
    let guard = service.guard.expect("it was started");
    assert!(guard.stop().status.success());
}

#[test]
fn a_command_outlives_the_guard_that_follows_it_and_a_reload_changes_nothing() {
    let Some(mut service) = Service::start("a guard that ends while it follows") else { return };
    let file = service.file("file", USER_ID, 0o600);
    let waiting = format!("read go; cat {}; exit 7", text(&file));
    let start = |service: &Service| {
        let child = service.command(&["sh", "-c", &waiting]).spawn().expect("start pagekeeper run");
        support::eventually("the command waits", WAIT_TIMEOUT, || {
            let children = format!("/proc/{0}/task/{0}/children", child.id());
            std::fs::read_to_string(children).ok().filter(|children| !children.trim().is_empty())
        });
        child
    };

    let child = start(&service);
    let guard = service.guard.as_ref().expect("it was started");
    guard.hang_up();
    guard.wait_for_ticks(guard.ticks() + 2);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(report(&output)["events"]["by_guard"], true, "{output:?}");
    assert!(kept_bytes(std::slice::from_ref(&file)) <= MIB);

    let child = start(&service);
    // After a kill its socket stays.
    service.guard = None;
    assert!(service.socket().exists());
    let output = finish(child);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the guard that followed it has ended"));

    // If nobody listens, the library is used.
    support::evict(&file);
    let output = service.run(&["cat", text(&file)]);
    assert!(output.status.success(), "{output:?}");
    let said = report(&output);
    assert!(said["events"].is_null(), "{said}");
    assert!(said["no_events"].as_str().is_some_and(|why| why.contains("[streams] socket")), "{said}");
    assert!(kept_bytes(std::slice::from_ref(&file)) <= MIB);

    service.start_guard("");
    support::evict(&file);
    let output = service.run(&["cat", text(&file)]);
    assert_eq!(report(&output)["events"]["by_guard"], true, "{output:?}");
}

#[test]
fn all_programs_of_a_control_group_are_followed_and_no_others() {
    let Some(mut service) = Service::start("streams of a control group") else { return };
    let Some(group) = MemoryGroup::new("streams of a control group", 512 * MIB) else { return };
    service.guard = None;
    let name = group.path().file_name().and_then(|name| name.to_str()).expect("a name of this test's own");
    // Processes that already run in it are followed, too.
    let (before, file, other) =
        (service.file("before", 0, 0o644), service.file("file", 0, 0o644), service.file("other", 0, 0o644));
    let script = format!("read go; exec cat {}", text(&before));
    let mut waiting = group.command("sh");
    waiting.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let waiting = waiting.spawn().expect("start a shell");
    support::eventually("the shell is in the group", WAIT_TIMEOUT, || {
        group.processes().contains(&waiting.id()).then_some(())
    });
    service.start_guard(&format!("\"cgroup:/**{name}*\""));
    for command in [group.command("cat").arg(&file), Command::new("cat").arg(&other)] {
        assert!(command.stdout(Stdio::null()).status().expect("start cat").success());
    }
    assert!(finish(waiting).status.success());
    support::wait_until_resident_below(&[before, file], MIB, WAIT_TIMEOUT);
    assert_eq!(kept_bytes(&[other]), FILE_BYTES);
    let ended = service.guard.take().expect("it was started").stop();
    assert!(ended.summary()["released_behind_streams_bytes"]["cat"].as_u64() >= Some(2 * FILE_BYTES - MIB));
}
