//! `pagekeeper run` as shells, services and operators use it: the command's environment, exit
//! codes, the library's place, and messages.

use crate::support;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::command::{
    Outcome, finish, pagekeeper, pagekeeper_by_library, program, run, words_by_library,
};
use crate::support::loop_images::QuickDisk;
use crate::support::pseudo_terminal::PseudoTerminal;
use crate::support::{
    MIB, can_run, can_start, copy_program, eventually, open_to_others, resident_bytes, scratch,
};
use rustix::process::{Pid, Signal, kill_process};

/// A deadline far longer than anything here takes.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs a shell's text under `pagekeeper run` with these options.
pub(crate) fn run_sh(options: &[&str], text: &str) -> Outcome {
    finish(pagekeeper_by_library().arg("run").args(options).args(["--", "sh", "-c", text]))
}

/// Compiles a C program, with these options of the compiler.
pub(crate) fn compile(directory: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (text, program) = (directory.join(format!("{name}.c")), directory.join(name));
    std::fs::write(&text, source).unwrap();
    finish(Command::new("cc").arg("-o").arg(&program).arg(&text).args(options)).expect_success();
    program
}

fn library() -> PathBuf {
    let preloaded = run_sh(&[], "echo $LD_PRELOAD").expect_success();
    PathBuf::from(preloaded.trim())
}

#[test]
fn it_ends_as_the_command_ends() {
    let dir = scratch();
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "exit 0\n").unwrap();
    for options in [&[][..], &["--report"]] {
        for (text, code) in
            [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
        {
            assert_eq!(run_sh(options, text).code, code, "{options:?} {text}");
        }
        let missing = finish(pagekeeper().arg("run").args(options).args(["--", "no-such-command-here"]));
        assert_eq!(
            (missing.code, missing.stderr.as_str()),
            (127, "pagekeeper: no-such-command-here: command not found\n")
        );
        let denied = finish(pagekeeper().arg("run").args(options).arg("--").arg(&plain));
        assert!(
            denied.code == 126 && denied.stderr.contains("can't be executed: Permission denied"),
            "{denied:?}"
        );
        // One that blocks on open until there is a writer.
        let fifo = dir.path().join("fifo");
        if !fifo.exists() {
            assert!(
                std::process::Command::new("mkfifo")
                    .args(["-m", "755"])
                    .arg(&fifo)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let fifo = finish(pagekeeper().arg("run").args(options).arg("--").arg(&fifo));
        assert_eq!(fifo.code, 126, "{fifo:?}");
        let directory = finish(pagekeeper().arg("run").args(options).arg("--").arg(dir.path()));
        assert!(directory.code == 126 && directory.stderr.contains("it is a directory"), "{directory:?}");
    }
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o755)).unwrap();
    // Without an interpreter line: run by the shell, as by execvp(3).
    finish(pagekeeper().args(["run", "--as", "bulk", "--"]).arg(&plain)).expect_success();
}

#[test]
fn mistakes_are_reported_before_anything_starts() {
    let dir = scratch();
    let config = dir.path().join("guard.toml");
    std::fs::write(&config, "[streams]\nprogram = \"tar\"\n").unwrap();
    let config = config.to_str().unwrap();
    for (options, said) in [
        (
            &["--profile", "oracle"][..],
            &["no profile is called \"oracle\"", "mariadb, mysql, postgresql, rocksdb"][..],
        ),
        (&["--config", config], &["guard.toml", "line 2", "program"]),
        (&["--config", "/no/such/file"], &["/no/such/file", "No such file"]),
        (&["--as", "archive"], &["stream, bulk, logs"]),
        (&["--as", "stream", "--profile", "mysql"], &["cannot be used with"]),
    ] {
        let outcome = run_sh(options, "echo started");
        let code = if options[0] == "--config" { 2 } else { 64 };
        assert!(outcome.code == code && outcome.stdout.is_empty(), "{options:?}: {outcome:?}");
        assert!(said.iter().all(|said| outcome.stderr.contains(said)), "{options:?}: {outcome:?}");
    }
    let none = run(["run"]);
    assert!(none.code == 64 && none.stderr.contains("COMMAND"), "{none:?}");
}

#[test]
fn the_commands_arguments_and_files_are_untouched() {
    let odd: Vec<OsString> = [&b"--report"[..], b"-h", b"", b"a b", b"$x", b"--", b"\xff\xfe", b"two\nlines"]
        .iter()
        .map(|bytes| OsString::from_vec(bytes.to_vec()))
        .collect();
    for separator in [&["--"][..], &[]] {
        let shown =
            pagekeeper().arg("run").args(separator).args(["printf", "<%s>"]).args(&odd).output().unwrap();
        assert_eq!(shown.stdout, b"<--report><-h><><a b><$x><--><\xff\xfe><two\nlines>", "{separator:?}");
    }
    // Compares signals, descriptors, working directory, name, limits, and the environment except
    // two variables.
    let state = "grep -E '^(Sig(Blk|Ign)|NoNewPrivs|Seccomp:|CapEff)' /proc/self/status; ls -l /proc/self/fd | sed 's/.* \\([0-9]* ->\\)/\\1/; s/[0-9]*.fd$/fd/'; \
                 pwd; echo $0; ulimit -a; env -0 | grep -zvE '^(LD_PRELOAD|PAGEKEEPER_RUN|RUN|_)=' | sort -z | tr '\\0' '\\n'";
    let program = program();
    for before in ["", "trap '' PIPE HUP", "trap '' INT CHLD", "exec 7</etc/passwd 0<&-"] {
        let with = |options: &str| {
            let text = format!("{before}\nexec $RUN {options} sh -c \"$STATE\" | grep -v '^3 ->\\|pipe:'");
            finish(
                Command::new("sh")
                    .args(["-c", &text])
                    .env("STATE", state)
                    .env("RUN", if options.is_empty() { OsStr::new("") } else { program.as_os_str() }),
            )
            .expect_success()
        };
        let plain = with("");
        assert!(plain.contains("SigIgn"), "{plain}");
        assert_eq!(with("run --"), plain, "{before}");
        assert_eq!(with("run --report=/dev/null --"), plain, "{before}");
    }
}

/// Reads and writes of closed descriptors fail, as without `pagekeeper run`.
#[test]
fn closed_descriptors_stay_closed() {
    for (command, closed) in [("cat", "<&-"), ("echo hello", ">&-"), ("echo hello >&2", "2>&-")] {
        for run in ["", "\"$PAGEKEEPER\" run --", "\"$PAGEKEEPER\" run --report=/dev/null --"] {
            let text = format!("exec {run} sh -c '{command} && exit 0; exit 7' {closed}");
            let outcome = finish(Command::new("sh").args(["-c", &text]).env("PAGEKEEPER", program()));
            assert_eq!(outcome.code, 7, "{text}: {outcome:?}");
        }
    }
}

#[test]
fn run_without_a_report_becomes_the_command() {
    let text = "echo $$; exec \"$PAGEKEEPER\" run -- sh -c 'echo $$'";
    let pids = finish(Command::new("sh").args(["-c", text]).env("PAGEKEEPER", program())).expect_success();
    let pids: Vec<&str> = pids.lines().collect();
    assert!(pids.len() == 2 && pids[0] == pids[1], "{pids:?}");
}

#[test]
fn the_library_is_loaded_into_the_command_and_its_children() {
    let library = library();
    let metadata = library.metadata().unwrap();
    assert_eq!(metadata.permissions().mode() & 0o222, 0, "{library:?}");
    for text in [
        "cat /proc/self/maps",
        "sh -c 'exec cat /proc/self/maps'",
        "env -u PAGEKEEPER_RUN cat /proc/self/maps",
    ] {
        let maps = run_sh(&[], text).expect_success();
        assert!(maps.contains(library.to_str().unwrap()), "{text}: {maps}");
    }
    assert!(!run_sh(&[], "env -u LD_PRELOAD cat /proc/self/maps").expect_success().contains("libpagekeeper"));
}

#[test]
fn earlier_preloads_stay_and_runs_nest() {
    if !can_start("earlier_preloads_stay_and_runs_nest", &["cc"]) {
        return;
    }
    let dir = scratch();
    let other = compile(dir.path(), "other.so", "int other_library = 1;\n", &["-shared", "-fPIC"]);
    let own = library();
    let expected = format!("{}:{}\n", other.display(), own.display());
    let show = "echo $LD_PRELOAD";
    let kept =
        finish(pagekeeper_by_library().args(["run", "--", "sh", "-c", show]).env("LD_PRELOAD", &other))
            .expect_success();
    assert_eq!(kept, expected);
    let program = program();
    let nested = format!(
        "{0} run --as stream -- {0} run --as bulk -- sh -c 'echo $LD_PRELOAD; echo \"$PAGEKEEPER_RUN\" | head -1'",
        program.display()
    );
    let nested = finish(Command::new("sh").args(["-c", &nested]).env("LD_PRELOAD", &other)).expect_success();
    assert_eq!(nested, format!("{expected}as bulk\n"));
}

#[test]
fn the_library_needs_no_more_than_debian_11_has() {
    if !can_start("the_library_needs_no_more_than_debian_11_has", &["objdump"]) {
        return;
    }
    let library = library();
    let symbols = finish(Command::new("objdump").arg("-T").arg(&library)).expect_success();
    for line in symbols.lines().filter(|line| line.contains("*UND*")) {
        let Some((_, version)) = line.split_once("GLIBC_") else { continue };
        let version = version.split([')', ' ']).next().unwrap();
        let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap_or(u32::MAX)).collect();
        assert!(numbers[..] <= [2, 31][..], "newer than glibc 2.31: {line}");
    }
    let headers = finish(Command::new("objdump").arg("-p").arg(&library)).expect_success();
    let needed: Vec<&str> =
        headers.lines().filter_map(|line| line.trim().strip_prefix("NEEDED")).map(str::trim).collect();
    // Not libdl either: a weak symbol may be undefined.
    assert!(needed.iter().all(|name| *name == "libc.so.6" || name.starts_with("ld-linux")), "{needed:?}");
    let is_weak = |line: &str| line.contains(" w ") && line.contains("*UND*") && line.ends_with(" dlsym");
    assert!(symbols.lines().any(is_weak), "{symbols}");
    assert!(
        !headers.lines().any(|line| line.trim_start().starts_with("TLS")),
        "thread-local storage: {headers}"
    );
}

/// Runs `pagekeeper run` with these options after a shell's text, in a mount namespace of its own.
fn in_own_mounts(mounts: &str, options: &str) -> Outcome {
    // Through a descriptor: what is mounted may lie over the program.
    let text = format!(
        "exec 3<\"$PAGEKEEPER\"\nset -e\nmount --make-rprivate /\n{mounts}\nexec setpriv --bounding-set=-sys_admin,-bpf,-perfmon -- /proc/self/fd/3 run {options} -- sh -c 'echo started; echo $LD_PRELOAD'"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &text]).env("PAGEKEEPER", program());
    command
        .env("HOME", "/dev/shm/home")
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("XDG_CACHE_HOME")
        .env_remove("LD_PRELOAD");
    finish(&mut command)
}

#[test]
fn the_command_runs_with_a_warning_on_noexec_and_read_only_mounts() {
    if !can_run("the_command_runs_with_a_warning_on_noexec_and_read_only_mounts", &["unshare", "mount"]) {
        return;
    }
    let noexec = "for d in /run /var/lib /dev/shm /tmp; do mount -t tmpfs -o noexec,mode=1777 none $d; done";
    // Remounts every mount read-only, like a read-only container; mounts below others are skipped.
    //
    let readonly = "mount --bind / / && mount -o remount,bind,ro / && cd /\n\
                    for d in /run /var/lib /dev/shm /tmp; do mount -t tmpfs -o ro none $d; done";
    for (mounts, said) in [(noexec, "nothing may be executed there"), (readonly, "Read-only file system")] {
        let outcome = in_own_mounts(mounts, "");
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "started\n\n"), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        for place in ["/run/pagekeeper", "/var/lib/pagekeeper", "/dev/shm/pagekeeper-0", "/tmp/pagekeeper-0"]
        {
            assert!(outcome.stderr.contains(place), "{place}: {outcome:?}");
        }
        assert!(outcome.stderr.contains(said) && outcome.stderr.contains("without the rules"), "{outcome:?}");
        let refused = in_own_mounts(mounts, "--require");
        assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}");
    }
    let some = format!("{readonly}\numount /dev/shm 2>/dev/null; mount -t tmpfs -o mode=1777 none /dev/shm");
    let placed = in_own_mounts(&some, "--require").expect_success();
    assert!(
        placed.starts_with("started\n/dev/shm/home/.cache/pagekeeper/libpagekeeper-")
            || placed.starts_with("started\n/dev/shm/pagekeeper-0/libpagekeeper-"),
        "{placed}"
    );
}

/// A report that can't be counted or written must not prevent a backup or make it fail.
///
#[test]
fn without_a_report_the_command_runs_and_ends_as_usual() {
    for file in ["/dev/full", "/no/such/directory/report"] {
        for (text, code) in [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)] {
            let outcome = run_sh(&[&format!("--report={file}")], text);
            assert_eq!(outcome.code, code, "{outcome:?}");
            let said = format!("pagekeeper: can't write {file}: ");
            assert!(outcome.stderr.contains(&said), "{outcome:?}");
            assert!(outcome.stderr.contains("no rule was for any process"), "{outcome:?}");
        }
    }
}

/// The file system cannot reserve space, as NFS before its version 4.2.
#[test]
fn a_report_without_space_moves_or_is_given_up_with_a_warning() {
    let name = "a_report_without_space_moves_or_is_given_up_with_a_warning";
    if !can_run(name, &["unshare", "mount"]) {
        return;
    }
    let readonly = "mount --bind / / && mount -o remount,bind,ro / && cd /\n\
                    for d in /var/lib /dev/shm /tmp; do mount -t tmpfs -o ro none $d; done\n\
                    mount -t ramfs -o mode=755 none /run";
    let uncounted = in_own_mounts(readonly, "--report --require");
    assert_eq!(uncounted.code, 0, "{uncounted:?}");
    assert!(uncounted.stdout.starts_with("started\n/run/pagekeeper/libpagekeeper-"), "{uncounted:?}");
    assert!(uncounted.stderr.contains("nothing can be counted (/run/pagekeeper: "), "{uncounted:?}");
    assert!(uncounted.stderr.contains("applied, but not counted"), "{uncounted:?}");
    let some = format!("{readonly}\nmount -t tmpfs -o mode=1777 none /tmp");
    let streams = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/preload/streams.toml");
    let counted = in_own_mounts(&some, &format!("--config {streams} --report --require"));
    assert!(
        counted.code == 0 && counted.stderr.starts_with("pagekeeper: what the rules did in "),
        "{counted:?}"
    );
}

#[test]
fn another_user_has_a_library_of_its_own() {
    if !can_run("another_user_has_a_library_of_its_own", &["setpriv"]) {
        return;
    }
    let dir = scratch();
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let copy = dir.path().join("pagekeeper");
    support::copy_program(&program(), &copy);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args([
        "run",
        "--",
        "sh",
        "-c",
        "echo $LD_PRELOAD",
    ]);
    command.env("HOME", dir.path()).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME");
    let placed = finish(&mut command).expect_success();
    let expected = dir.path().join(".cache/pagekeeper/libpagekeeper-");
    assert!(placed.starts_with(expected.to_str().unwrap()), "{placed}");
}

#[test]
fn a_report_says_that_processes_of_other_users_are_not_in_it() {
    if !can_run("a_report_says_that_processes_of_other_users_are_not_in_it", &["setpriv"]) {
        return;
    }
    let become_another = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = pagekeeper_by_library();
    command.args(["run", "--report", "--"]);
    let outcome = finish(command.args(become_another).args(["dd", "status=none", "if=/proc/self/maps"]));
    assert!(outcome.code == 0 && outcome.stdout.contains("libpagekeeper-"), "{outcome:?}");
    assert!(outcome.stderr.contains("processes of other users"), "{outcome:?}");
}

/// A program that forbids cachestat(2) to another one, with this error; with 0 the call kills it.
const FILTER: &str = r"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    (void)count;
    int error = atoi(arguments[1]);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 451, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, error ? SECCOMP_RET_ERRNO | error : SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof code / sizeof *code, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return 1;
    execvp(arguments[2], arguments + 2);
    return 1;
}
";

#[test]
fn everything_works_where_cachestat_is_forbidden() {
    if !can_start("everything_works_where_cachestat_is_forbidden", &["cc", "cmp"]) {
        return;
    }
    let dir = scratch();
    let filter = compile(dir.path(), "filter", FILTER, &[]);
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::write(&from, vec![7; 24 << 20]).unwrap();
    for error in [rustix::io::Errno::NOSYS, rustix::io::Errno::PERM] {
        let mut command = Command::new(&filter);
        command
            .arg(error.raw_os_error().to_string())
            .args(words_by_library())
            .args(["run", "--report", "--json", "--", "cp"]);
        let outcome = finish(command.arg(&from).arg(&to));
        assert_eq!(outcome.code, 0, "{outcome:?}");
        let report: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
        assert_eq!(report["rules"], true, "{outcome:?}");
        finish(Command::new("cmp").arg(&from).arg(&to)).expect_success();
        std::fs::remove_file(&to).unwrap();
    }
}

/// The rules stay off where their calls would end the process, with a warning that gives the
/// reason.
#[test]
fn everything_works_with_a_warning_where_cachestat_kills() {
    if !can_start("everything_works_with_a_warning_where_cachestat_kills", &["cc", "cmp"]) {
        return;
    }
    let dir = scratch();
    let filter = compile(dir.path(), "filter", FILTER, &[]);
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::write(&from, vec![7; 4 << 20]).unwrap();
    for options in [&["--report", "--as", "stream"][..], &["--report", "--json", "--as", "stream"]] {
        let mut command = Command::new(&filter);
        command.arg("0").args(words_by_library()).arg("run").args(options).args(["--", "cp"]);
        let outcome = finish(command.arg(&from).arg(&to));
        assert_eq!(outcome.code, 0, "{outcome:?}");
        if options.contains(&"--json") {
            let report: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
            assert_eq!(report["total"]["filtered_processes"], 1, "{outcome:?}");
        } else {
            let said = "  not covered 1 process left without rules: its seccomp filter would kill it";
            assert!(outcome.stderr.contains(said), "{outcome:?}");
        }
        finish(Command::new("cmp").arg(&from).arg(&to)).expect_success();
    }
}

/// Starts a shell's text under `pagekeeper run --report=FILE`, and waits until it says that it is
/// ready.
fn start_reported(report: &Path, text: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut option = OsString::from("--report=");
    option.push(report);
    let mut child = pagekeeper()
        .arg("run")
        .arg(option)
        .args(["--", "sh", "-c", text])
        // The command's parent must be in another group of its session; otherwise no terminal may
        // stop the command.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, out)
}

/// Returns the counter files of processes below a home.
fn counted_in(home: &Path) -> Vec<OsString> {
    let entries = std::fs::read_dir(home.join("pagekeeper")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.as_encoded_bytes().starts_with(b"report-")).collect()
}

/// The next run removes the file, with a report or without, and leaves counter files that are in
/// use.
#[test]
fn the_counter_file_of_a_killed_run_is_removed() {
    if !can_run("the_counter_file_of_a_killed_run_is_removed", &["setpriv"]) {
        return;
    }
    let dir = scratch();
    let own = dir.path().join("pagekeeper-itself");
    copy_program(&program(), &own);
    let home = dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    open_to_others(dir.path());
    let run = |options: &[&str], text: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&own).arg("run");
        command.args(options).args(["--", "sh", "-c", text]).env("XDG_CACHE_HOME", &home);
        command
    };
    let start = || {
        let mut living = run(&["--report=/dev/null"], "echo ready; read line");
        let mut living = living.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(living.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        living
    };
    for options in [&[][..], &["--report=/dev/null"]] {
        let mut living = start();
        let kept = counted_in(&home);
        let mut killed = start();
        assert_eq!((kept.len(), counted_in(&home).len()), (1, 2));
        killed.kill().unwrap();
        killed.wait().unwrap();
        finish(&mut run(options, "true")).expect_success();
        assert_eq!(counted_in(&home), kept, "{options:?}");
        drop(living.stdin.take());
        living.wait().unwrap();
        assert!(counted_in(&home).is_empty(), "{options:?}");
    }
}

#[test]
fn run_with_a_report_forwards_signals() {
    let dir = scratch();
    let report = dir.path().join("report");
    let wait = "echo ready; while :; do sleep 0.02; done";
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
    ] {
        let (mut child, _out) = start_reported(&report, &format!("trap 'exit 42' {name}; {wait}"));
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(42), "{name}");
        assert!(std::fs::read_to_string(&report).unwrap().starts_with("pagekeeper: "), "{name}");
    }
    // Not caught: the signal kills the command, and so its parent.
    for signal in [Signal::TERM, Signal::QUIT] {
        let (mut child, _out) = start_reported(&report, wait);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!((status.signal(), status.core_dumped()), (Some(signal.as_raw()), false));
    }
}

/// Returns the letter of a process's state in /proc/PID/stat.
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

/// As in a container: a session whose leader has no process id here.
#[test]
fn run_with_a_report_ends_as_the_command_in_a_pid_namespace() {
    let name = "run_with_a_report_ends_as_the_command_in_a_pid_namespace";
    if !can_run(name, &["unshare"]) {
        return;
    }
    let command = |text: &str| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--"]).arg(program());
        finish(command.args(["run", "--report", "--", "sh", "-c", text]))
    };
    for code in [0, 42] {
        let outcome = command(&format!("exit {code}"));
        assert!(outcome.code == code && outcome.stderr.starts_with("pagekeeper: "), "{outcome:?}");
    }
}

/// As the first process of a container, which gets every process whose parent has ended.
#[test]
fn run_with_a_report_leaves_no_zombie() {
    if !can_run("run_with_a_report_leaves_no_zombie", &["unshare"]) {
        return;
    }
    // Five that outlive their parent, and end one by one.
    let text = "for i in 1 2 3 4 5; do (sleep 0.0$i &); done; n=0\n\
                while [ $n -lt 200 ]; do sleep 0.02; n=$((n+1))\n\
                cat /proc/[0-9]*/stat 2>/dev/null | grep -q ' (sleep) . 1 ' || exit 7; done; exit 8";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]).arg(program());
    let outcome = finish(command.args(["run", "--report=/dev/null", "--", "sh", "-c", text]));
    assert_eq!(outcome.code, 7, "{outcome:?}");
}

#[test]
fn run_with_a_report_stops_as_the_command_stops() {
    let dir = scratch();
    let text = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.02; done";
    let (mut child, _out) = start_reported(&dir.path().join("report"), text);
    let pid = Pid::from_child(&child);
    for _ in 0..2 {
        kill_process(pid, Signal::TSTP).unwrap();
        eventually("both stop", WAIT_TIMEOUT, || (state(child.id()) == 'T').then_some(()));
        kill_process(pid, Signal::CONT).unwrap();
        eventually("both continue", WAIT_TIMEOUT, || (state(child.id()) != 'T').then_some(()));
    }
    kill_process(pid, Signal::USR1).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_terminals_key_reaches_the_command_once() {
    if !can_start("a_terminals_key_reaches_the_command_once", &["setsid"]) {
        return;
    }
    let dir = scratch();
    let commands = dir.path().join("commands");
    std::fs::write(
        &commands,
        "n=0; trap 'n=$((n+1))' INT; echo ready\nwhile ! read line; do :; done\nsleep 0.3; echo \"interrupts $n\"; exit 5\n",
    )
    .unwrap();
    // Replaces the user's shell, which the key might end.
    let line = format!("exec {} run --report=/dev/null -- sh {}", program().display(), commands.display());
    let mut terminal = PseudoTerminal::start(&line);
    terminal.read_until("ready\r\n");
    terminal.type_keys(b"\x03");
    // The terminal drops what was typed before an interrupt: the line comes after it is shown.
    terminal.read_until("^C");
    terminal.type_keys(b"go on\n");
    let (status, shown) = terminal.finish();
    assert!(shown.contains("interrupts 1") && status.code() == Some(5), "{status}: {shown}");
}

/// Bytes of the file that is copied.
const FILE_BYTES: u64 = 64 * MIB;

#[test]
fn a_report_lists_released_bytes() {
    if !can_start("a_report_lists_released_bytes", &["cp", "cmp", "fincore"]) {
        return;
    }
    // `run` waits for writeback for up to two seconds after a command, which a slow disk may
    // exceed.
    let dir = QuickDisk::new();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| (at / 4096 + at).to_le_bytes()[0]).collect();
    std::fs::write(&from, bytes).unwrap();
    let evict = || drop(finish(pagekeeper().arg("evict").arg(&from)).expect_success());
    evict();
    let copy = |options: &[&str]| {
        let mut run = pagekeeper_by_library();
        finish(run.arg("run").args(options).args(["--", "cp"]).arg(&from).arg(&to))
    };
    let outcome = copy(&["--report", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    let resident = (resident_bytes(std::slice::from_ref(&from)), resident_bytes(std::slice::from_ref(&to)));
    assert!(resident.0 <= FILE_BYTES / 8 && resident.1 <= FILE_BYTES / 8, "{resident:?}: {report:#}");
    let total = |name: &str| report["total"][name].as_u64().unwrap();
    assert_eq!(
        (total("stream_read_bytes"), total("stream_written_bytes")),
        (FILE_BYTES, FILE_BYTES),
        "{report:#}"
    );
    assert_eq!(report["processes"][0]["name"], "cp", "{report:#}");
    finish(Command::new("cmp").arg(&from).arg(&to)).expect_success();

    // The text output; resident pages stay.
    std::fs::remove_file(&to).unwrap();
    drop(finish(pagekeeper().arg("warm").arg(&from)).expect_success());
    let outcome = copy(&["--report"]);
    for said in ["what the rules did in 1 process\n", "read 64 MiB", "written 64 MiB"] {
        assert!(outcome.stderr.contains(said), "{said}: {outcome:?}");
    }
    assert_eq!(resident_bytes(std::slice::from_ref(&from)), FILE_BYTES, "{outcome:?}");
    let nothing = run_sh(&["--report"], "true");
    assert!(nothing.stderr.contains("no rule was for any process of it (see"), "{nothing:?}");
}
