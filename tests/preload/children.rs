//! Children of a command under `pagekeeper run` that can't load a library, or that lose it: they
//! are covered by other means, or reported, or refused. Residency is `fincore`'s.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support;
use crate::support::command::{Outcome, contained, finish, pagekeeper, pagekeeper_by_library};
use crate::support::compare::built;
use crate::support::{MIB, copy_program, eventually, evict, open_to_others, resident_bytes, scratch};

const FILE_BYTES: u64 = 160 * MIB;
/// A disk may be slow to write dirty pages.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a program by `posix_spawn`, by its name or its path, in a different environment.
const SPAWN: &str = "\
import os, sys
name, environment = sys.argv[1], dict(os.environ) if sys.argv[2] == 'kept' else {}
spawn = os.posix_spawn if '/' in name else os.posix_spawnp
pid = spawn(name, [os.path.basename(name)] + sys.argv[3:], environment)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

fn write(path: &Path) {
    let block: Vec<u8> = (0..MIB).map(|at| (at % 251) as u8).collect();
    let mut file = fs::File::create(path).unwrap();
    for _ in 0..FILE_BYTES / MIB {
        std::io::Write::write_all(&mut file, &block).unwrap();
    }
}

fn resident(path: &Path) -> u64 {
    resident_bytes(&[path.to_owned()])
}

/// Runs a shell line, in which `SRC` and `DST` stand for files, under `run` with these
/// options.
fn run(options: &[&str], line: &str, source: &Path, target: &Path) -> Outcome {
    let line = line.replace("SRC", source.to_str().unwrap()).replace("DST", target.to_str().unwrap());
    finish(pagekeeper().arg("run").args(options).args(["--", "sh", "-c", &line]))
}

/// Returns a shell line for a file tree in which doas(1) lets root become any user.
fn with_doas(line: &str, directory: &Path) -> String {
    let etc = directory.join("etc");
    finish(Command::new("cp").arg("-a").arg("/etc").arg(&etc)).expect_success();
    fs::write(etc.join("doas.conf"), "permit nopass root\n").unwrap();
    fs::set_permissions(etc.join("doas.conf"), std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    format!("unshare --mount sh -c 'mount --bind {} /etc && {line}'", etc.display())
}

#[test]
#[ignore = "long: make test-stories"]
fn children_of_a_script_are_covered() {
    let needed = [
        "cc", "fincore", "busybox", "sudo", "su", "doas", "unshare", "setpriv", "python3", "env", "xargs",
        "restic", "bash",
    ];
    if !support::can_follow("children_of_a_script_are_covered", &needed) {
        return;
    }
    let _alone = support::alone();
    let dir = scratch();
    open_to_others(dir.path());
    let anybody = || std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(dir.path(), anybody()).unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    write(&source);
    open_to_others(&source);
    let applets = dir.path().join("applets");
    fs::create_dir(&applets).unwrap();
    copy_program(Path::new("/bin/busybox"), &applets.join("busybox"));
    std::os::unix::fs::symlink("busybox", applets.join("cp")).unwrap();
    let script = dir.path().join("script");
    fs::write(&script, format!("#!{} sh\nexec cp \"$1\" \"$2\"\n", applets.join("busybox").display()))
        .unwrap();
    open_to_others(&script);
    let spawn = dir.path().join("spawn.py");
    fs::write(&spawn, SPAWN).unwrap();
    let starts = built("starts", &["-O1"]);
    let (applets, spawn, starts) = (applets.display(), spawn.display(), starts.display());
    let mut failures = Vec::new();
    for line in [
        // A static program, started in each way.
        "busybox cp SRC DST; true",
        "exec busybox cp SRC DST",
        "bash -c 'busybox cp SRC DST; true'",
        &format!("PATH={applets}; cp SRC DST; true"),
        "env busybox cp SRC DST",
        "echo SRC DST | xargs busybox cp",
        &format!("python3 {spawn} busybox kept cp SRC DST"),
        &format!("python3 {spawn} /bin/busybox kept cp SRC DST"),
        "python3 -c \"import subprocess as s; s.run(['busybox', 'cp', 'SRC', 'DST'], check=True)\"",
        &format!("{starts} execl /bin/busybox cp SRC DST"),
        &format!("{starts} execl /bin/busybox cp -f -p -L -- SRC DST"),
        &format!("{starts} execlp busybox cp SRC DST"),
        &format!("{starts} execle /bin/busybox cp -f SRC DST"),
        &format!("{starts} execveat busybox cp SRC DST"),
        &format!("{starts} SYS_execve /bin/busybox cp SRC DST"),
        &format!("{starts} SYS_execveat /bin/busybox cp SRC DST"),
        // With another environment.
        "env -i cp SRC DST",
        &format!("python3 {spawn} /bin/cp cleared SRC DST"),
        "bash -c 'exec -c /bin/cp SRC DST'",
        // As another user, and below another root.
        "sudo -u nobody cp SRC DST; true",
        "su nobody -s /bin/sh -c 'cp SRC DST'",
        "su - -s /bin/sh -c 'cp SRC DST'",
        &with_doas("doas -u nobody cp SRC DST", dir.path()),
        &format!("chroot {} /applets/busybox cp /source /target; true", dir.path().display()),
    ] {
        let _ = fs::remove_file(&target);
        evict(&source);
        let outcome = run(&["--require"], line, &source, &target);
        if outcome.code != 0 || !outcome.stderr.is_empty() {
            failures.push(format!("{line}: {outcome:?}"));
            continue;
        }
        assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap(), "{line}: the copy is the same");
        evict(&source);
        evict(&target);
        fs::remove_file(&target).unwrap();
        // By the library, which has uncovered programs followed.
        let outcome = run(&["--profile", "rocksdb"], line, &source, &target);
        assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{line}: {outcome:?}");
        // The last pages go after the program's end.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        let left = loop {
            let left = (resident(&source), resident(&target));
            if left.0 + left.1 <= 2 * MIB || std::time::Instant::now() > deadline {
                break left;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        println!("{line}: {left:?}");
        if left.0 + left.1 > 2 * MIB {
            failures.push(format!("{line}: {left:?} of {FILE_BYTES} bytes stay"));
        }
    }
    // A real program of Go's, in a script with others.
    let at = dir.path().display();
    let line = format!(
        "export RESTIC_PASSWORD=none; restic --quiet --no-cache --repo {at}/repository init && \
         restic --quiet --no-cache --repo {at}/repository backup SRC && cp SRC DST"
    );
    evict(&source);
    let outcome = run(&["--require"], &line, &source, &target);
    assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{outcome:?}");
    eventually("pages of the backed-up files go", WAIT_TIMEOUT, || {
        (resident(&source) <= 2 * MIB).then_some(())
    });
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The library is loaded into the program, but does not see its calls.
#[test]
fn pages_mapped_by_a_known_stream_go_too() {
    if !support::can_follow("pages_mapped_by_a_known_stream_go_too", &["b3sum", "setpriv", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let dir = scratch();
    let source = dir.path().join("source");
    write(&source);
    let sum = |prefix: &[&str]| {
        let mut words = prefix.iter().copied().chain(["b3sum", source.to_str().unwrap()]);
        finish(Command::new(words.next().unwrap()).args(words))
    };
    let plain = sum(&[]).expect_success();
    let program = dir.path().join("pagekeeper");
    copy_program(&support::command::program(), &program);
    open_to_others(dir.path());
    open_to_others(&source);
    let run = program.to_str().unwrap();
    for way in [
        &[run, "run", "--require", "--"][..],
        &[run, "run", "--require", "--", "sh", "-c", "\"$@\"; true", ""],
    ] {
        evict(&source);
        let outcome = sum(way);
        assert!(
            outcome.code == 0 && outcome.stdout == plain && outcome.stderr.is_empty(),
            "{way:?}: {outcome:?}"
        );
        eventually(&format!("mapped pages go, {way:?}"), WAIT_TIMEOUT, || {
            (resident(&source) <= 2 * MIB).then_some(())
        });
    }
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", run, "run"];
    for way in [&["--"][..], &["--", "sh", "-c", "\"$@\"; \"$@\" >/dev/null", ""]] {
        let said = sum(&[&nobody, way].concat());
        assert!(said.code == 0 && said.stdout == plain, "{said:?}");
        assert!(said.stderr.contains("/b3sum uses by mappings stay"), "{said:?}");
        assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
        // The library reaches it.
        let required = sum(&[&nobody[..], &["--require"], way].concat());
        assert!(required.code == 0 && required.stdout == plain, "{required:?}");
    }
}

#[test]
fn uncovered_programs_are_reported_once_and_refused_by_require() {
    let needed = ["busybox", "setpriv", "python3"];
    if !support::can_run("uncovered_programs_are_reported_once", &needed) {
        return;
    }
    let dir = scratch();
    let program = dir.path().join("pagekeeper");
    copy_program(&support::command::program(), &program);
    open_to_others(dir.path());
    let as_nobody = |options: &[&str], line: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program).arg("run");
        finish(command.args(options).args(["--", "sh", "-c", line]))
    };
    // Not a stream: for instance a database, which would lose its cache.
    for line in
        ["for i in 1 2 3; do busybox echo $i; done", "for i in 1 2 3; do busybox sh -c \"echo $i\"; done"]
    {
        let said = as_nobody(&[], line);
        assert!(said.code == 0 && said.stdout == "1\n2\n3\n", "{said:?}");
        assert!(said.stderr.contains("/busybox is linked statically"), "{said:?}");
        assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
    }
    // A stream that can't be followed.
    let said = as_nobody(&[], "busybox cat /etc/passwd >/dev/null; true");
    assert!(said.code == 0 && said.stderr.contains("can't be followed by events"), "{said:?}");
    let refused = as_nobody(&["--require"], "busybox echo started; echo $?");
    assert!(refused.code == 0 && refused.stdout == "1\n", "{refused:?}");
    assert!(refused.stderr.contains("not started, by --require"), "{refused:?}");
    // A program that becomes unreachable by its own act.
    let moved: PathBuf = dir.path().join("elsewhere");
    let line = |rest: &str| format!("mv {} {}; {rest}", program.display(), moved.display());
    for (options, stdout) in [(&[][..], "started\n0\n"), (&["--require"][..], "126\n")] {
        let mut command = contained(&program);
        command.arg("run").args(options);
        let outcome = finish(command.args(["--", "sh", "-c", &line("busybox echo started; echo $?")]));
        fs::rename(&moved, &program).unwrap();
        assert_eq!(outcome.stdout, stdout, "{outcome:?}");
        assert!(outcome.stderr.contains("/busybox is started without the rules"), "{outcome:?}");
    }
    // The report counts them.
    let report = as_nobody(&["--report=json"], "busybox true; busybox true; true");
    let json = report.stderr.lines().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    assert_eq!(json.unwrap()["total"]["processes_not_reached"], 2);
}

#[test]
fn a_started_program_has_its_usual_environment() {
    if !support::can_run("a_started_program_has_its_usual_environment", &["cc", "busybox", "bash", "seq"]) {
        return;
    }
    let starts = built("starts", &["-O1"]);
    let starts = starts.display();
    let both = |line: &str| {
        let plain = finish(Command::new("bash").args(["-c", line]));
        for mut command in [pagekeeper(), pagekeeper_by_library()] {
            let run = finish(command.args(["run", "--", "bash", "-c", line]));
            assert_eq!((run.code, &run.stdout), (plain.code, &plain.stdout), "{line}: {run:?}");
        }
    };
    for line in [
        "exec -a another busybox sh -c 'exit 7'",
        "busybox sh -c 'kill -TERM $$'",
        "exec 7</etc/passwd 8>/dev/null; busybox sh -c 'cd /proc/$$/fd; echo *'",
        "cd /usr; umask 27; ulimit -n 99; busybox sh -c 'pwd; umask; ulimit -n'",
        "trap '' INT USR1; busybox grep SigIgn /proc/self/status",
        "busybox sh -c 'for word; do echo \"<$word>\"; done' '' 'a b' -c -- --require '' $'\\n'",
        // More words than usual.
        "busybox echo $(seq 100000) | md5sum",
        "env -i A=b busybox env | busybox grep -v '^LD_PRELOAD=\\|^PAGEKEEPER_RUN=\\|^[a-z]\\|^$'",
        "sh -c 'echo $$; exec busybox sh -c \"echo \\$\\$\"' | uniq | wc -l",
        &format!("{starts} execl /bin/busybox echo 1 2 3 4 5 6 7 8 9; {starts} execlp busybox echo; echo $?"),
        &format!("{starts} execlp no-such-program; echo $?; {starts} execl /etc/passwd 1 2 3 4 5; echo $?"),
        "busybox no-such-applet; echo $?; /no/such/program; echo $?; /etc/passwd; echo $?",
    ] {
        both(line);
    }
}
