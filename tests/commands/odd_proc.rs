//! Odd text that others put into `/proc`: mount options, mount points, names of processes and of
//! control groups that are not UTF-8, or that look like something else. The text ends no
//! command and hides no other entry.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::command::{Outcome, finish, program};
use crate::support::{can_run, copy_program, eventually, scratch};

/// Mounts with odd names and options, then a program that sees them.
const WITH_ODD_MOUNTS: &str = r#"
set -e
dir=$1
shift
odd=$(printf '\377')
mount --make-rprivate /
mount -t tmpfs none "$dir"
mkdir "$dir/low$odd" "$dir/up" "$dir/work" "$dir/merged$odd" "$dir/point$odd"
mount -t overlay -o "lowerdir=$dir/low$odd,upperdir=$dir/up,workdir=$dir/work" "over$odd" "$dir/merged$odd"
mount -t tmpfs "tmp$odd" "$dir/point$odd"
exec "$@"
"#;

/// Runs the program in a mount namespace of its own, with odd mounts.
fn run_with_odd_mounts(dir: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-c", WITH_ODD_MOUNTS, "sh"]).arg(dir);
    finish(command.arg(program()).args(arguments))
}

/// Returns the report's visibility gaps, each with the reason.
fn gaps(outcome: &Outcome) -> Vec<String> {
    let report: Value = outcome.json();
    report["visibility_gaps"].as_array().expect("a list of gaps").iter().map(Value::to_string).collect()
}

#[test]
fn mounts_that_are_not_utf_8_end_no_command_and_blind_none() {
    let test = "mounts_that_are_not_utf_8_end_no_command_and_blind_none";
    if !can_run(test, &["unshare", "mount"]) {
        return;
    }
    let dir = scratch();
    for arguments in
        [&["top", "--once", "--json", "--interval", "100ms"][..], &["doctor", "--watch", "200ms", "--json"]]
    {
        let outcome = run_with_odd_mounts(dir.path(), arguments);
        assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{arguments:?}: {outcome:?}");
        let blinded: Vec<String> =
            gaps(&outcome).into_iter().filter(|gap| gap.contains("mountinfo")).collect();
        assert!(blinded.is_empty(), "{arguments:?}: {blinded:?}");
    }
    let guard = run_with_odd_mounts(dir.path(), &["guard", "--once", "--dry-run"]);
    let said = [guard.stdout.as_str(), &guard.stderr].concat();
    assert!(guard.code == 0 && !said.contains("mountinfo"), "{guard:?}");
}

/// A process that ends with its value.
struct Sleeper(Child);

impl Sleeper {
    /// Starts `sleep` under a name of any bytes.
    fn named(dir: &Path, name: &OsStr) -> Self {
        let path = dir.join(name);
        copy_program(Path::new("/bin/sleep"), &path);
        let child = Command::new(&path).arg0(name).arg("600").stdout(Stdio::null()).spawn();
        Self(child.expect("start a copy of sleep"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_of_any_name_is_reported_and_hides_no_other() {
    let test = "a_process_of_any_name_is_reported_and_hides_no_other";
    if !can_run(test, &[]) {
        return;
    }
    let dir = scratch();
    // A forged status line, the end of a name, a second line, and bytes that are not text.
    let names = [&b") S 1 1\n9"[..], b"\xff\xfe\n(x", b"Tgid:\t1\nPid:\t1"];
    let sleepers: Vec<Sleeper> =
        names.iter().map(|name| Sleeper::named(dir.path(), OsStr::from_bytes(name))).collect();
    let pids: Vec<String> = sleepers.iter().map(|sleeper| sleeper.0.id().to_string()).collect();
    for (pid, name) in pids.iter().zip(names) {
        eventually("it has its name", Duration::from_secs(60), || {
            let comm = std::fs::read(format!("/proc/{pid}/comm")).ok();
            comm.filter(|comm| comm.strip_suffix(b"\n") == Some(name))
        });
    }
    let of_each = pids.iter().map(|pid| vec!["doctor", "--watch", "100ms", "--json", "--pid", pid]);
    let of_all = [
        vec!["doctor", "--watch", "100ms", "--json"],
        vec!["top", "--once", "--json", "--interval", "100ms", "--pid", &pids[0]],
    ];
    for arguments in of_each.chain(of_all) {
        let outcome = finish(Command::new(program()).args(&arguments));
        assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{arguments:?}: {outcome:?}");
        let unread: Vec<String> =
            gaps(&outcome).into_iter().filter(|gap| pids.iter().any(|pid| gap.contains(pid))).collect();
        assert!(unread.is_empty(), "{arguments:?}: {unread:?}");
    }
}

#[test]
fn a_control_group_of_any_name_is_read() {
    use pagekeeper_kernel::process::ProcRoot;
    let test = "a_control_group_of_any_name_is_read";
    if !can_run(test, &[]) {
        return;
    }
    let dir = scratch();
    let sleeper = Sleeper::named(dir.path(), OsStr::new("sleeper"));
    let pid = sleeper.0.id();
    let name = OsStr::from_bytes(b"pagekeeper-test-\xff:0::");
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let made = roots.iter().map(|root| Path::new(root).join(name)).find(|group| {
        std::fs::create_dir(group).is_ok()
            && std::fs::write(group.join("cgroup.procs"), pid.to_string()).is_ok()
    });
    let Some(group) = made else {
        pagekeeper_testing::skip(format_args!("{test}: no control group can be made here"));
        return;
    };
    let paths = ProcRoot::default().cgroup_paths(pid);
    drop(sleeper);
    eventually("the group is empty", Duration::from_secs(60), || std::fs::remove_dir(&group).ok());
    let paths = paths.expect("all lines are read");
    assert!(
        paths.iter().any(|path| path.path.as_os_str().as_bytes().ends_with(name.as_bytes())),
        "{paths:?}"
    );
}
