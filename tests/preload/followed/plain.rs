//! Plain backups and copies by root: no library is loaded into them, their pages go, and everything
//! else is as without `run`. Residency is `fincore`'s and cachestat's.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{WAIT_TIMEOUT, write};
use crate::report::resident_by_file;
use crate::support;
use crate::support::command::{finish, pagekeeper};
use crate::support::compare::files_below;
use crate::support::loop_images::QuickDisk;
use crate::support::{
    MIB, copy_program, eventually, evict, evict_all, files_in, open_to_others, resident_bytes, scratch,
};

/// Bytes of the large file, and of the hot file.
const LARGE_FILE_BYTES: u64 = 48 * MIB;
const HOT_BYTES: u64 = 8 * MIB;

/// A command that reads `source` and `many`, and writes below `made`.
type CommandWords = &'static [&'static str];

const KINDS: [(&str, CommandWords); 11] = [
    ("cp", &["cp", "-r", "source", "many", "made"]),
    ("tar", &["tar", "--mtime=@0", "-cf", "made/archive", "source", "many"]),
    ("rsync", &["rsync", "-a", "source", "many", "made"]),
    ("dd", &["dd", "if=source", "of=made/copy", "bs=1M", "status=none"]),
    ("cat of many files", &["sh", "-c", "exec cat source many/* >made/all"]),
    ("a script", &["sh", "-c", "cp source made/copy; echo done; exit 3"]),
    ("a static program in a script", &["sh", "-c", "busybox cp source made/copy; busybox cp -r many made"]),
    ("a pipeline", &["sh", "-c", "tar --mtime=@0 -c source many | zstd -q -o made/archive"]),
    ("python", &["python3", "-c", "import shutil; shutil.copyfile('source', 'made/copy'); print('done')"]),
    ("sudo", &["sudo", "cp", "-r", "source", "many", "made"]),
    ("setpriv", &["setpriv", "--no-new-privs", "cp", "-r", "source", "many", "made"]),
];

fn make_files(here: &Path) {
    write(&here.join("source"), LARGE_FILE_BYTES);
    write(&here.join("hot"), HOT_BYTES);
    fs::create_dir(here.join("many")).unwrap();
    for nth in 0..100 {
        write(&here.join(format!("many/{nth}")), MIB / 16 * (nth % 3));
        fs::write(here.join(format!("many/small-{nth}")), vec![7; usize::try_from(nth).unwrap() * 97])
            .unwrap();
    }
}

/// Evicts all files except the hot one.
fn evict_all_but_hot(here: &Path) {
    let _ = fs::remove_dir_all(here.join("made"));
    fs::create_dir(here.join("made")).unwrap();
    evict_all(&files_in(here));
    drop(fs::read(here.join("hot")).unwrap());
}

/// Fails unless the report accounts for all pages that were brought in.
fn check_page_sums(name: &str, report: &Value) -> u64 {
    let events = &report["events"];
    let bytes =
        |field: &str| events[field].as_u64().unwrap_or_else(|| panic!("{name}: no {field}: {report:#}"));
    let parts = ["released_bytes", "used_by_others_bytes", "gone_bytes", "left_bytes"].map(bytes);
    assert_eq!(bytes("added_bytes"), parts.iter().sum::<u64>(), "{name}: {report:#}");
    assert_eq!(bytes("lost_bytes"), 0, "{name}: {report:#}");
    assert!(report["rules"] == false && report["processes"] == serde_json::json!([]), "{name}: {report:#}");
    bytes("added_bytes")
}

#[test]
fn a_plain_backup_by_root_loads_no_library_and_leaves_no_pages() {
    let needed = ["cp", "tar", "rsync", "dd", "zstd", "python3", "sudo", "setpriv", "busybox", "fincore"];
    if !support::can_follow("plain backups by root", &needed) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let outside = support::scratch();
    let (here, to) = (scratch.path(), outside.path().join("report"));
    make_files(here);
    for (name, words) in KINDS {
        evict_all_but_hot(here);
        let plain = finish(Command::new(words[0]).args(&words[1..]).current_dir(here));
        let files = files_below(&here.join("made"));
        evict_all_but_hot(here);
        let mut run = pagekeeper();
        run.args(["run", "--require", "--json"])
            .arg(format!("--report={}", to.display()))
            .arg("--")
            .args(words);
        let outcome = finish(run.current_dir(here));
        let said: Vec<&str> =
            outcome.stderr.lines().filter(|line| !line.contains(" is taken for a stream: ")).collect();
        assert_eq!((outcome.code, &outcome.stdout), (plain.code, &plain.stdout), "{name}: {outcome:?}");
        assert_eq!(said, plain.stderr.lines().collect::<Vec<&str>>(), "{name}");
        let report: Value = serde_json::from_slice(&fs::read(&to).unwrap()).unwrap();
        assert!(check_page_sums(name, &report) >= LARGE_FILE_BYTES, "{name}: {report:#}");
        let hot = here.join("hot");
        let used: Vec<_> = files_in(here).into_iter().filter(|file| *file != hot).collect();
        eventually(&format!("all but a hundredth goes: {name}"), WAIT_TIMEOUT, || {
            let left = resident_bytes(&used);
            eprintln!("{name}: {left} bytes stay");
            (left <= support::size_bytes(&used) / 100).then_some(())
        });
        assert_eq!(resident_bytes(&[hot]), HOT_BYTES, "{name}: what was hot");
        assert!(files_below(&here.join("made")) == files, "{name}: what was made differs");
    }
}

/// Root's environment is unchanged; that of a user who gets no events has the library.
#[test]
fn the_environment_of_a_stream_is_as_plain_for_root() {
    if !support::can_follow("the environment of a stream", &["env", "setpriv", "sudo", "python3"]) {
        return;
    }
    let dir = scratch();
    let program = dir.path().join("pagekeeper");
    copy_program(&support::command::program(), &program);
    open_to_others(dir.path());
    let python = "import os; print(sorted(os.environ.items()))";
    for (options, words) in [
        (&[][..], &["env"][..]),
        (&[], &["env", "A=b", "env"]),
        (&[], &["nice", "env"]),
        (&[], &["sh", "-c", "env"]),
        (&[], &["python3", "-c", python]),
        (&[], &["sudo", "--preserve-env", "env"]),
        (&["--as", "stream"], &["sh", "-c", "sh -c env"]),
        (&["--as", "stream", "--report=/dev/null"], &["env"]),
    ] {
        let plain = finish(Command::new(words[0]).args(&words[1..]).env("LD_PRELOAD", "").env_remove("_"));
        let mut run = Command::new(&program);
        run.arg("run").args(options).arg("--").args(words).env("LD_PRELOAD", "").env_remove("_");
        let outcome = finish(&mut run);
        assert_eq!((outcome.code, outcome.stdout), (plain.code, plain.stdout), "{options:?} {words:?}");
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program).arg("run");
        let other = finish(other.args(["--", "sh", "-c", "env"]).env("HOME", dir.path()));
        assert!(other.code == 0 && other.stdout.contains("/libpagekeeper-"), "{other:?}");
    }
    // A database has the library, whoever starts it.
    let server = dir.path().join("mongod");
    copy_program(Path::new("/usr/bin/env"), &server);
    let outcome = finish(pagekeeper().args(["run", "--"]).arg(&server)).expect_success();
    assert!(outcome.contains("/libpagekeeper-"), "{outcome}");
}

/// A file with a lease is never opened: all its pages stay, and the report has them.
#[test]
fn remaining_pages_agree_with_cachestat() {
    if !support::can_follow("pages that stay by events", &["python3", "cat"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    for name in ["leased", "plain"] {
        write(&here.join(name), HOT_BYTES);
        evict(&here.join(name));
    }
    let text = "import fcntl, sys; f = open('leased'); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK); print('ready', flush=True); sys.stdin.read()";
    let mut holder = Command::new("python3");
    holder.args(["-c", text]).current_dir(here).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    let mut ready = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.take().unwrap()), &mut ready)
        .unwrap();
    let mut run = pagekeeper();
    run.args(["run", "--json", "--", "cat", "leased", "plain"]).current_dir(here).stdout(Stdio::null());
    let outcome = finish(&mut run);
    let report: Value = serde_json::from_str(&outcome.stderr).unwrap();
    crate::support::schemas::check("run", &report);
    check_page_sums("a lease", &report);
    let left = report["events"]["left_bytes"].as_u64().unwrap();
    let resident: u64 = resident_by_file(here).values().sum();
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_eq!((left, resident), (HOT_BYTES, HOT_BYTES), "{report:#}");
    assert_eq!(report["events"]["left"][0]["left_bytes"], HOT_BYTES, "{report:#}");
}

/// Runs `run --pid` with these options.
fn follow(options: &[&str]) -> Child {
    let mut run = pagekeeper();
    run.arg("run").args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    run.spawn().unwrap()
}

/// Starts a shell that begins its work when it reads a line.
fn start_waiting_shell(line: &str, here: &Path) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("read line; {line}")]).current_dir(here).stdin(Stdio::piped());
    shell.spawn().unwrap()
}

#[test]
#[ignore = "long: make test-stories"]
fn a_running_program_is_followed_by_its_pid() {
    if !support::can_follow("following running programs", &["cp", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    write(&here.join("source"), LARGE_FILE_BYTES);
    let files = [here.join("source"), here.join("copy")];
    evict(&files[0]);
    // One child exists when its parent is named, and one starts later.
    let mut stream = start_waiting_shell("cp source copy; true", here);
    let mut other = start_waiting_shell("exec cat source >/dev/null", here);
    let pids = [&stream, &other].map(|child| child.id().to_string());
    let following = follow(&["--report", "--pid", &pids[0], "--pid", &pids[1]]);
    // Followed once the BPF programs are loaded.
    std::thread::sleep(std::time::Duration::from_secs(2));
    for child in [&mut stream, &mut other] {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    let ended = following.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(0) && said.contains("followed by kernel events"), "{said}");
    assert!(resident_bytes(&files) <= 2 * LARGE_FILE_BYTES / 100, "{said}");
    // A signal ends it, but none of the programs that it follows.
    let mut stream = start_waiting_shell("true", here);
    let following = follow(&["--pid", &stream.id().to_string()]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let pid = rustix::process::Pid::from_child(&following);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = following.wait_with_output().unwrap();
    assert!(ended.status.code() == Some(0) && ended.stderr.is_empty(), "{ended:?}");
    assert!(stream.try_wait().unwrap().is_none(), "it continues");
    drop(stream.stdin.take());
    stream.wait().unwrap();
}

#[test]
fn a_program_that_must_not_be_followed_is_refused_in_a_sentence() {
    if !support::can_follow("numbers of no streams", &["setpriv", "sleep"]) {
        return;
    }
    let dir = scratch();
    let program = dir.path().join("pagekeeper");
    copy_program(&support::command::program(), &program);
    open_to_others(dir.path());
    let server = dir.path().join("mongod");
    copy_program(Path::new("/bin/sleep"), &server);
    let mut server = Command::new(server).arg("1000").spawn().unwrap();
    let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let refused = |pid: u32, said: &str| {
        let outcome = finish(pagekeeper().args(["run", "--pid", &pid.to_string()]));
        assert!(outcome.code == 1 && outcome.stderr.contains(said), "{said}: {outcome:?}");
    };
    refused(1, "has started all others");
    refused(2, "thread of the kernel");
    refused(4_000_000, "no process 4000000 runs");
    refused(ended.id(), "no process");
    refused(server.id(), "is a database (profile mongodb)");
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program);
    let other = finish(other.args(["run", "--pid", &sleeper.id().to_string()]));
    assert!(other.code == 1 && other.stderr.contains("is another user's"), "{other:?}");
    for words in [&["--pid", "x"][..], &["--pid", "1", "--", "true"], &["--pid", "1", "--as", "stream"]] {
        let wrong = finish(pagekeeper().arg("run").args(words));
        assert_eq!(wrong.code, 64, "{words:?}: {wrong:?}");
    }
    for child in [&mut server, &mut sleeper] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
