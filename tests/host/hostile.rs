//! A soak beside a hostile user: a real `MariaDB` and a real `PostgreSQL` under a steady load are
//! served as without that user, and neither the guard nor the doctor opens a file that is not a
//! database's own.
//!
//! Opened files are observed in two ways in the first half: every open of a decoy by inotify(7),
//! and every successful call of the guard and the doctor by strace(1). In the second half costs are
//! measured. Twenty seconds, or as many as `PAGEKEEPER_HOSTILE_SECONDS` says.
//! `PAGEKEEPER_HOSTILE_PROGRAM` names a release build, for which the limits of processor time are
//! also checked; this build is hardly optimised and shares the machine with other tests.
//!
//! Needs root, Debian's `mariadb-server`, `postgresql`, `sysbench` and `strace`; skips with a
//! sentence otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::support;
use crate::support::command::finish;
use crate::support::guard::{Guard, program};
use crate::support::hostile::{self, Hostile};
use crate::support::mariadb::{self, Options};
use crate::support::sysbench::{self, Load};
use crate::support::{MIB, kept_bytes, postgresql, resident_bytes};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum memory of the guard, in bytes.
const MEMORY_BYTES_MAX: u64 = 64 * MIB;
/// Maximum processor time of the guard, in cores.
const CPU_CORES_MAX: f64 = 0.02;
/// Deadline of the doctor for a watch of two seconds.
const DOCTOR_TIME_MAX: Duration = Duration::from_secs(120);

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Returns the requested release build, if any, and the duration of the soak.
fn requested_soak() -> (Option<PathBuf>, Duration) {
    let seconds = std::env::var("PAGEKEEPER_HOSTILE_SECONDS").ok();
    let seconds = seconds.map_or(20, |text| text.parse().expect("PAGEKEEPER_HOSTILE_SECONDS: a number"));
    (std::env::var_os("PAGEKEEPER_HOSTILE_PROGRAM").map(PathBuf::from), Duration::from_secs(seconds))
}

/// A load of updates, each with some 100 KiB of WAL, at this rate per second until dropped.
struct UpdateLoad(Child);

impl UpdateLoad {
    fn start(server: &postgresql::Server, directory: &Path) -> Self {
        let script = directory.join("updates.sql");
        let text = "\\set first random(1, 499000)\n\
                    UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid BETWEEN :first AND :first + 200;\n";
        std::fs::write(&script, text).expect("write a script");
        let script = script.to_str().expect("text");
        let mut load = server.pgbench(&["-n", "--client=2", "--rate=10", "--time=3600", "--file", script]);
        let load = load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(load.spawn().expect("start pgbench"))
    }

    fn check(&mut self) {
        let ended = self.0.try_wait().expect("wait for pgbench");
        assert!(ended.is_none(), "pgbench ended by itself: {ended:?}");
    }
}

impl Drop for UpdateLoad {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Both servers under their loads.
struct LoadedServers {
    mariadb: mariadb::Server,
    postgresql: postgresql::Server,
    loads: (Load, UpdateLoad),
}

impl LoadedServers {
    fn start(parent: &Path) -> Self {
        let mariadb = mariadb::Server::start(parent, Options::primary());
        sysbench::prepare(&mariadb);
        let postgresql = postgresql::Server::start(parent);
        let loads = (Load::at_rate(&mariadb, 20), UpdateLoad::start(&postgresql, parent));
        Self { mariadb, postgresql, loads }
    }

    fn resident(&mut self) -> [u64; 2] {
        self.loads.0.check();
        self.loads.1.check();
        [resident_bytes(&self.mariadb.log_files()), resident_bytes(&self.postgresql.segments())]
    }

    /// Returns means of resident bytes, sampled twice a second, and calls `also` meanwhile.
    ///
    /// `PostgreSQL` fills each new segment with zeros first, 16 MiB at once, twice a minute at this
    /// load. It begins with one, so that a short run has one, too.
    fn sample(&mut self, time: Duration, mut beside: impl FnMut()) -> [u64; 2] {
        self.postgresql.query("SELECT pg_switch_wal()");
        let (start, mut sums, mut count) = (Instant::now(), [0, 0], 0);
        while start.elapsed() < time || count == 0 {
            for (sum, resident) in sums.iter_mut().zip(self.resident()) {
                *sum += resident;
            }
            count += 1;
            beside();
            std::thread::sleep(Duration::from_millis(500));
        }
        sums.map(|sum| sum / count)
    }
}

/// strace(1) of one program, one file for each thread so that no call is cut in two.
struct SyscallTrace {
    child: Child,
    prefix: PathBuf,
}

impl SyscallTrace {
    fn attach(pid: u32, prefix: PathBuf) -> Self {
        let mut command = strace(&prefix);
        let command = command.args(["-p", &pid.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
        Self { child: command.spawn().expect("start strace"), prefix }
    }

    fn end(mut self) -> PathBuf {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal strace");
        self.child.wait().expect("wait for strace");
        self.prefix.clone()
    }
}

impl Drop for SyscallTrace {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn strace(prefix: &Path) -> Command {
    let mut command = Command::new("strace");
    command.args(["-ff", "-qq", "-yy", "-s", "4096", "-e", "trace=open,openat,openat2", "-e", "signal=none"]);
    command.arg("-o").arg(prefix);
    command
}

/// Returns the path that a call has opened, as strace shows it; `None` for a call that failed, or
/// that only refers to a file.
fn opened(line: &str) -> Option<&str> {
    let (call, result) = line.rsplit_once(" = ")?;
    let (_, file) = result.split_once('<')?;
    (!call.contains("O_PATH")).then(|| file.trim_end().trim_end_matches('>'))
}

/// Returns all files that were opened by the traces of this prefix.
fn all_opened(prefix: &Path) -> Vec<String> {
    let directory = prefix.parent().expect("a directory");
    let name = prefix.file_name().and_then(|name| name.to_str()).expect("text");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).expect("list traces") {
        let path = entry.expect("list traces").path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|found| found.starts_with(name)) {
            let text = std::fs::read(&path).expect("read a trace");
            all.extend(String::from_utf8_lossy(&text).lines().filter_map(opened).map(str::to_owned));
        }
    }
    assert!(all.len() > 100, "only {} opens were seen", all.len());
    all
}

/// Selects the opened files that belong to no database: special files, and files in the scratch
/// directory of neither servers nor the hostile user. A directory to which a link leads may be
/// opened to see whose it is, but nothing in it.
fn foreign_files<'a>(opened: &'a [String], scratch: &Path, theirs: &[&Path]) -> Vec<&'a String> {
    let directories = [scratch.to_owned(), scratch.join("secret")];
    let special = |file: &str| {
        ["<char ", "<block ", "<pipe:"].iter().any(|kind| file.contains(kind))
            && !file.starts_with("/dev/null<")
    };
    let foreign = |file: &str| {
        let file = Path::new(file);
        let known = directories.iter().any(|directory| directory == file);
        !known && file.starts_with(scratch) && !theirs.iter().any(|path| file.starts_with(path))
    };
    opened.iter().filter(|file| special(file) || foreign(file)).collect()
}

#[test]
fn a_part_of_the_hostile_user() {
    hostile::play();
}

#[test]
fn opens_are_read_from_traces() {
    let line =
        r#"openat(AT_FDCWD</>, "/proc/thread-self/fd/5", O_RDONLY|O_NOATIME) = 6</a/device<char 1:3>>"#;
    assert_eq!(opened(line), Some("/a/device<char 1:3"));
    assert_eq!(opened(r#"openat2(3</a>, "b", {flags=O_RDONLY|O_PATH, resolve=0}, 24) = 6</a/b>"#), None);
    assert_eq!(
        opened(r#"openat(AT_FDCWD</>, "/b", O_RDONLY) = -1 ENOENT (No such file or directory)"#),
        None
    );
    let opened = [
        "/s/servers/log",
        "/s/secret/log",
        "/s/secret",
        "/s/servers/x<char 1:3",
        "/dev/null<char 1:3",
        "/etc/passwd",
    ];
    let opened = opened.map(str::to_owned);
    let found = foreign_files(&opened, Path::new("/s"), &[Path::new("/s/servers")]);
    assert_eq!(found, ["/s/secret/log", "/s/servers/x<char 1:3"]);
}

#[test]
#[ignore = "long: make test-stories"]
fn a_hostile_user_beside_real_servers_gains_nothing_and_costs_them_nothing() {
    let own = postgresql::programs();
    let own = own.iter().map(String::as_str);
    let programs: Vec<&str> =
        own.chain(mariadb::REQUIRED_PROGRAMS).chain(hostile::REQUIRED_PROGRAMS).chain(["strace"]).collect();
    if !support::can_run("a soak beside a hostile user", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let directory = |name: &str| {
        let path = scratch.path().join(name);
        std::fs::create_dir(&path).expect("make a directory");
        support::open_to_others(&path);
        path
    };
    let (release, time) = requested_soak();
    let tested = release.clone().unwrap_or_else(program);
    let long = time > Duration::from_secs(120);
    let served = directory("servers");
    let mut servers = LoadedServers::start(&served);
    let mut command = Command::new("setpriv");
    let guard =
        Guard::spawn_command(command.args(["--pdeathsig=KILL", "--"]).arg(&tested).args(["guard", "--json"]));
    for pid in [servers.mariadb.pid(), servers.postgresql.pid()] {
        guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid);
    }
    guard.wait_for_ticks(20);
    let alone = (Instant::now(), guard.cpu_seconds());
    let before = servers.sample((time / 2).min(Duration::from_secs(60)), || ());
    let cpu_alone = (guard.cpu_seconds() - alone.1) / alone.0.elapsed().as_secs_f64();

    let traces = directory("traces");
    let (data, wal) = (servers.mariadb.data(), servers.postgresql.wal());
    let mut attack = Hostile::start(scratch.path(), &[&data, &wal], if long { 100_000 } else { 2_000 });
    let secret = kept_bytes(&[attack.secret().to_owned()]);
    attack.forget();
    let trace = SyscallTrace::attach(guard.pid(), traces.join("guard"));
    let watch = ["doctor", "--json", "--watch", "2s"];
    // Stops only at these calls, which can't be set up for a running process.
    let mut under_strace = strace(&traces.join("doctor"));
    let under_strace =
        under_strace.arg("--seccomp-bpf").arg(&tested).args(watch).stdout(Stdio::null()).status();
    assert!(under_strace.expect("run strace").success(), "the doctor fails");
    servers.sample(time / 2, || attack.check());
    let prefix = trace.end();
    let theirs = [served.as_path(), &scratch.path().join("hostile")];
    let mut count = 0;
    for prefix in [prefix, traces.join("doctor")] {
        let all = all_opened(&prefix);
        let found = foreign_files(&all, scratch.path(), &theirs);
        assert!(found.is_empty(), "{} opened {found:#?}", prefix.display());
        count += all.len();
    }

    // The cost, without a tracer.
    let start = (Instant::now(), guard.cpu_seconds());
    let examined = std::thread::spawn({
        let tested = tested.clone();
        move || {
            let start = Instant::now();
            (finish(Command::new(tested).args(watch)), start.elapsed())
        }
    });
    let beside = servers.sample(time / 2, || attack.check());
    let cpu = (guard.cpu_seconds() - start.1) / start.0.elapsed().as_secs_f64();
    let (outcome, doctor) = examined.join().expect("the doctor ends");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    outcome.json();
    attack.check();
    let memory = guard.memory_peak_bytes();
    let kept = kept_bytes(&[attack.secret().to_owned()]);
    let [before, beside] = [before, beside].map(|figures| figures.map(|bytes| bytes as f64 / MIB as f64));
    let load = std::fs::read_to_string("/proc/loadavg").expect("the machine's load");
    println!(
        "{time:?} beside {} processes: {count} files opened, {:.1} MiB of memory, {:.2} % of a core ({:.2} % without them), \
         logs of MariaDB {:.1} MiB ({:.1}), of PostgreSQL {:.1} MiB ({:.1}), the doctor {:.1} s, load {}",
        attack.pids().len(),
        memory as f64 / MIB as f64,
        cpu * 100.0,
        cpu_alone * 100.0,
        beside[0],
        before[0],
        beside[1],
        before[1],
        doctor.as_secs_f64(),
        load.trim(),
    );
    drop(attack);
    let ended = guard.stop();
    println!("{}", ended.summary());
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert_eq!(kept, secret, "pages of a file of root's were released");
    assert!(memory <= MEMORY_BYTES_MAX, "it took {memory} bytes");
    assert!(doctor <= DOCTOR_TIME_MAX, "the doctor took {doctor:?}");
    // The bytes that a late tick leaves on a shared machine.
    let late = if release.is_some() { 4.0 } else { 32.0 };
    for (before, beside) in before.into_iter().zip(beside) {
        assert!(
            beside <= before * 1.2 + late,
            "{beside} MiB of logs are resident, {before} without the hostile user"
        );
    }
    if release.is_some() {
        assert!(cpu <= CPU_CORES_MAX, "it takes {:.2} % of a core", cpu * 100.0);
    }
}
