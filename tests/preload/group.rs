//! The memory cgroup of a command under `pagekeeper run`: it has no limit, is governed for as long as somebody is in it, and is said or
//! refused where there can be none. Residency is `fincore`'s.

mod kinds;

use crate::support;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::command::{finish, pagekeeper};
use crate::support::{MIB, copy_program, eventually, evict, open_to_others, resident_bytes, scratch};

/// Bytes of a stream.
const SIZE: u64 = 512 * MIB;
/// A disk may be slow to take what was written.
const SOON: Duration = Duration::from_secs(120);

/// Writes a file whose blocks all differ, so that nothing can be saved on it.
fn write(path: &Path, bytes: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let block: Vec<u8> = words.by_ref().take((MIB / 8) as usize).flatten().collect();
    let mut file = fs::File::create(path).unwrap();
    for nth in 0..bytes / MIB {
        let mut block = block.clone();
        block[..8].copy_from_slice(&nth.to_le_bytes());
        std::io::Write::write_all(&mut file, &block).unwrap();
    }
}

/// Writes a file as fast as it can in one thread, and takes 1.5 GiB of memory in two others, again and again.
const TAKER: &str = "\
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
static char buffer[1 << 20];
static void *take(void *nothing) {
    const size_t size = 768ul << 20;
    for (int time = 0; time < 4; time++) {
        char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) _exit(3);
        for (size_t at = 0; at < size; at += 4096) memory[at] = 1;
        munmap(memory, size);
    }
    return nothing;
}
int main(int count, char **arguments) {
    pthread_t threads[2];
    for (int thread = 0; thread < 2; thread++) pthread_create(threads + thread, 0, take, 0);
    int fd = open(arguments[1], O_WRONLY | O_CREAT, 0644);
    for (int times = 0; times < 512; times++)
        if (write(fd, buffer, sizeof buffer) != sizeof buffer) return 2;
    for (int thread = 0; thread < 2; thread++) pthread_join(threads[thread], 0);
    return 0;
}
";

#[test]
fn a_stream_that_takes_much_memory_at_once_meets_no_limit() {
    if !support::can_run("a_stream_that_takes_much_memory_at_once_meets_no_limit", &["cc", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let dir = scratch();
    let (text, program) = (dir.path().join("taker.c"), dir.path().join("taker"));
    fs::write(&text, TAKER).unwrap();
    finish(Command::new("cc").args(["-O1", "-static", "-pthread", "-o"]).arg(&program).arg(&text)).fine();
    let file = dir.path().join("file");
    for _ in 0..3 {
        let mut run = pagekeeper();
        run.args(["run", "--as=stream", "--require", "--"]).arg(&program).arg(&file);
        let mut child = run.stderr(Stdio::piped()).spawn().unwrap();
        let group = eventually("it is in a group", SOON, || group_of(child.id()));
        let directory = directory_of(&group);
        let number = |name: &str| fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
        while child.try_wait().unwrap().is_none() {
            // What meets a limit may be killed, or its write fails: it must not even be tried.
            assert!(number("memory.limit_in_bytes").is_none_or(|limit| limit > 1 << 60));
            assert_eq!(number("memory.failcnt").unwrap_or_default(), 0);
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        eventually("what it wrote goes", SOON, || {
            (resident_bytes(std::slice::from_ref(&file)) < MIB).then_some(())
        });
        fs::remove_file(&file).unwrap();
    }
}

/// A static program that holds file pages for as long as it is let: it waits for a line.
fn holder(options: &[&str], file: &Path) -> Child {
    let line = format!("busybox cat {} >/dev/null; read line", file.display());
    let mut run = pagekeeper();
    run.arg("run").args(options).args(["--as=stream", "--", "busybox", "sh", "-c", &line]);
    run.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The memory cgroup of a process, below the root of the hierarchy.
fn group_of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let line = text.lines().find(|line| line.contains(":memory:") || line.starts_with("0::/pagekeeper"))?;
    line.rsplit(':').next().filter(|path| path.contains("pagekeeper-run-")).map(str::to_owned)
}

/// Where that group's files are.
fn directory_of(group: &str) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let directories = points.map(|line| PathBuf::from(line.split(' ').nth(4).unwrap()).join(&group[1..]));
    directories.into_iter().find(|directory| directory.join("memory.stat").exists()).expect("it is mounted")
}

/// The processes that govern a command's group: they have its command line, and are not in its group.
fn governors(child: &Child) -> Vec<u32> {
    let own = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        pid != child.id() && !own.is_empty() && line == own && group_of(pid).is_none()
    })
    .collect()
}

#[test]
fn a_governor_that_is_killed_is_replaced() {
    if !support::can_run("a_governor_that_is_killed_is_replaced", &["busybox", "fincore"]) {
        return;
    }
    let dir = scratch();
    let file = dir.path().join("file");
    write(&file, SIZE);
    evict(&file);
    // With a report, the parent has the command line that the governors are known by.
    let mut child = holder(&["--report"], &file);
    let group = eventually("it is in a group", SOON, || group_of(child.id()));
    let directory = directory_of(&group);
    for _ in 0..3 {
        let governing = eventually("it is governed", SOON, || {
            let pids = governors(&child);
            (pids.len() == 2).then_some(pids)
        });
        // The younger governs, the elder watches over it.
        let governor = governing.into_iter().max().unwrap();
        let pid = rustix::process::Pid::from_raw(governor.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        eventually("another governs", SOON, || {
            (governors(&child).len() == 2 && !governors(&child).contains(&governor)).then_some(())
        });
    }
    // A service's or a terminal's end reaches them, too.
    let both = governors(&child);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP]
    {
        for &pid in &both {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, signal).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(governors(&child), both);
    drop(child.stdin.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "read(1) of a shell fails at the end: {ended:?}");
    let report = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(report.contains("in a memory cgroup of its own"), "{report}");
    eventually("the group is gone", SOON, || (!directory.exists()).then_some(()));
    assert_eq!(resident_bytes(&[file]), 0);
}

#[test]
fn the_command_is_as_without_a_group() {
    if !support::can_run("the_command_is_as_without_a_group", &["busybox"]) {
        return;
    }
    for options in [&["--as=stream"][..], &["--as=stream", "--report=/dev/null"]] {
        let run = |text: &str| {
            finish(pagekeeper().arg("run").args(options).args(["--", "busybox", "sh", "-c", text]))
        };
        assert_eq!(run("exit 7").code, 7);
        assert_eq!(run("kill -KILL $$").code, 137);
        // No child that it did not start, no descriptor but its own.
        for text in
            ["cd /proc/$$/fd && echo *", "ulimit -a; busybox nice; umask; pwd", "exec busybox pgrep -P $$"]
        {
            let alone = finish(Command::new("busybox").args(["sh", "-c", text]));
            let run = run(text);
            assert_eq!((run.code, run.stdout), (alone.code, alone.stdout), "{options:?} {text}");
        }
        // The end of its output is not held back by the governor: finish() reads to it.
        assert_eq!(run("echo one; echo two").fine(), "one\ntwo\n");
    }
    let missing = finish(pagekeeper().args(["run", "--as=stream", "--", "no-such-command"]));
    assert_eq!(missing.code, 127, "{missing:?}");
}

#[test]
fn who_may_make_no_group_is_warned_and_refused_by_require() {
    if !support::can_run("who_may_make_no_group_is_warned", &["busybox", "setpriv"]) {
        return;
    }
    let dir = scratch();
    let program = dir.path().join("pagekeeper");
    copy_program(&support::command::program(), &program);
    open_to_others(dir.path());
    let as_nobody = |options: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program).arg("run");
        finish(command.args(options).args(["--as=stream", "--", "busybox", "echo", "here"]))
    };
    let warned = as_nobody(&[]);
    assert_eq!((warned.code, warned.stdout.as_str()), (0, "here\n"), "{warned:?}");
    assert!(
        warned.stderr.contains("linked statically") && warned.stderr.contains("no memory cgroup can be made"),
        "{warned:?}"
    );
    assert_eq!(warned.stderr.lines().count(), 1, "{warned:?}");
    // What the library reaches has the rules, and what it lacks is said.
    let reached = |options: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program).arg("run");
        // Children are covered as their parents are.
        let line = "env -i cat /etc/hostname >/dev/null; echo here";
        finish(command.args(options).args(["--as=stream", "--", "sh", "-c", line]))
    };
    let warned = reached(&[]);
    assert_eq!((warned.code, warned.stdout.as_str()), (0, "here\n"), "{warned:?}");
    let expected = "/sh uses by io_uring or mappings stays (no memory cgroup can be made";
    assert!(warned.stderr.contains(expected) && warned.stderr.lines().count() == 1, "{warned:?}");
    let reported = reached(&["--report"]);
    assert!(reported.stderr.contains("not covered what the library does not see"), "{reported:?}");
    let refused = reached(&["--require"]);
    assert!(refused.code == 1 && refused.stdout.is_empty(), "{refused:?}");
    assert!(refused.stderr.contains(expected) && refused.stderr.contains("--require"), "{refused:?}");
    let refused = as_nobody(&["--require"]);
    assert!(
        refused.code == 1 && refused.stdout.is_empty() && refused.stderr.contains("--require"),
        "{refused:?}"
    );
}

#[test]
fn what_runs_elsewhere_is_said() {
    let dir = scratch();
    let docker = dir.path().join("docker");
    fs::write(&docker, "#!/bin/sh\necho elsewhere\n").unwrap();
    open_to_others(&docker);
    let outcome = finish(pagekeeper().args(["run", "--"]).arg(&docker).args(["exec", "db", "tar"]));
    assert!(outcome.code == 0 && outcome.stderr.contains("started by another process"), "{outcome:?}");
    let refused = finish(pagekeeper().args(["run", "--require", "--"]).arg(&docker));
    assert_eq!(refused.code, 1, "{refused:?}");
}

/// A process that goes on behind the command stays in its group: it is said, what it brings in goes as before, and then the group.
#[test]
fn what_goes_on_behind_the_command_is_still_governed() {
    if !support::can_run(
        "what_goes_on_behind_the_command_is_still_governed",
        &["busybox", "fincore", "mkfifo"],
    ) {
        return;
    }
    let _alone = support::alone();
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let files = [at("file"), at("copy")];
    write(&files[0], SIZE);
    evict(&files[0]);
    finish(Command::new("mkfifo").args([at("begin"), at("end")])).fine();
    let line = "(cat begin; cat file >copy; echo >done; cat end) </dev/null >/dev/null 2>&1 & echo $!";
    let mut run = pagekeeper();
    run.args(["run", "--report", "--as=stream", "--", "busybox", "sh", "-c", line]).current_dir(dir.path());
    let ended = finish(&mut run);
    assert!(ended.code == 0 && ended.stderr.contains("some of its processes go on"), "{ended:?}");
    let pid: u32 = ended.stdout.trim().parse().expect("a number");
    let group = group_of(pid).expect("it is in the group");
    let directory = directory_of(&group);
    fs::write(at("begin"), "").unwrap();
    eventually("it has copied", SOON, || at("done").exists().then_some(()));
    // What the governor lets a group have, and what it takes at once.
    eventually("most of it goes while it waits", SOON, || {
        (resident_bytes(&files) <= 100 * MIB).then_some(())
    });
    assert_eq!(group_of(pid).as_ref(), Some(&group));
    fs::write(at("end"), "").unwrap();
    eventually("the rest goes with it", SOON, || (resident_bytes(&files) <= MIB).then_some(()));
    eventually("the group is gone", SOON, || (!directory.exists()).then_some(()));
}
