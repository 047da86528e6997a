//! `pagekeeper doctor` beside a real `MariaDB`: log files in the page cache, and mixed direct I/O.
//! Each problem is provoked, reported with its evidence, and gone after the reported fix.
//!
//! Needs root and Debian's `mariadb-server` and `util-linux`; skips with a sentence otherwise, and
//! fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. Only this server's findings are read: others may
//! run on the host.

use crate::support;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::command::{Outcome, finish, pagekeeper, program};
use crate::support::mariadb::{Options, Server};
use crate::support::memory_group::MemoryGroup;
use crate::support::sysbench::LoadedServer as _;
use crate::support::{MIB, alone, can_run, doctor_report, resident_bytes, scratch};
use serde_json::Value;

const REQUIRED_PROGRAMS: [&str; 5] = ["mariadbd", "mariadb-install-db", "mariadb", "fincore", "setpriv"];
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the doctor on one process, and returns its report.
fn doctor(pid: u32, more: &[&str]) -> Value {
    let outcome = finish(pagekeeper().args(["doctor", "--json", "--pid", &pid.to_string()]).args(more));
    assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{outcome:#?}");
    doctor_report::of(&outcome)
}

/// Runs [`doctor`] on a directory.
fn doctor_of(directory: &Path, more: &[&str]) -> Value {
    let outcome =
        finish(pagekeeper().args(["doctor", "--json", "--watch", "500ms"]).args(more).arg(directory));
    assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{outcome:#?}");
    doctor_report::of(&outcome)
}

/// Returns the findings of a kind that are about a database, not the host.
fn findings_of<'a>(report: &'a Value, kind: &str) -> Vec<&'a Value> {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().filter(|finding| finding["kind"] == kind && !finding["database"].is_null()).collect()
}

/// Returns the single finding of a kind.
fn only_finding<'a>(report: &'a Value, kind: &str) -> &'a Value {
    let found = findings_of(report, kind);
    assert_eq!(found.len(), 1, "{report:#}");
    found[0]
}

/// Returns the figures of the evidence that `matches`.
fn figures(finding: &Value, matches: impl Fn(&Value) -> bool) -> &Value {
    let evidence = finding["evidence"].as_array().expect("a list");
    let found = evidence.iter().map(|evidence| &evidence["figures"]).find(|figures| matches(figures));
    found.unwrap_or_else(|| panic!("no such evidence: {finding:#}"))
}

fn figure(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or_else(|| panic!("no figure {name}: {figures}"))
}

fn fixes(finding: &Value) -> Vec<&str> {
    let fixes = finding["fixes"].as_array().expect("a list");
    fixes.iter().map(|fix| fix["act"].as_str().expect("text")).collect()
}

/// Writes this many MiB of rows, each of one MiB: they go through the redo log and the binlog.
fn write(server: &Server, mebibytes: u64) {
    for _ in 0..mebibytes / 4 {
        server.execute("INSERT INTO test.t (b) SELECT REPEAT('x', 1048576) FROM test.seq_1_to_4");
    }
}

fn make_table(server: &Server) {
    server.execute("CREATE DATABASE IF NOT EXISTS test");
    server.execute("CREATE TABLE test.t (id INT PRIMARY KEY AUTO_INCREMENT, b LONGBLOB) ENGINE=InnoDB");
}

#[test]
fn logs_are_reported_with_their_share_and_gone_after_the_fix() {
    if !can_run("logs_are_reported_with_their_share_and_gone_after_the_fix", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    let mut server = Server::start(dir.path(), Options::primary().redo_buffered(true));
    make_table(&server);
    let idle = doctor(server.pid(), &["--watch", "500ms"]);
    assert_eq!(findings_of(&idle, "logs-in-cache"), Vec::<&Value>::new(), "{idle:#}");
    assert_eq!(idle["inspected"]["databases"][0]["profile"], "mariadb");

    // Half of it while the doctor watches.
    write(&server, 64);
    let report = std::thread::scope(|scope| {
        let watching = scope.spawn(|| doctor(server.pid(), &["--watch", "3s"]));
        // Repeats until the report has come, since the start of the watch is unknown.
        while !watching.is_finished() {
            write(&server, 4);
            std::thread::sleep(Duration::from_millis(200));
        }
        watching.join().expect("the doctor reports")
    });
    let logs = only_finding(&report, "logs-in-cache");
    let binlog = figures(logs, |figures| figures["class"] == "binlog");
    let binlogs = resident_bytes(&server.binlogs());
    assert!(figure(binlog, "resident_bytes").abs_diff(binlogs) < 40 * MIB, "{binlogs} resident: {logs:#}");
    let redo = figures(logs, |figures| figures["class"] == "redo");
    assert!(figure(redo, "resident_bytes") > 4 * MIB, "{logs:#}");
    let releasable = figures(logs, |figures| figures["releasable_bytes"].is_u64());
    // The binlogs before the last, and at least the part of the ring far behind its writer.
    assert!(figure(releasable, "releasable_bytes") > 48 * MIB, "{logs:#}");
    assert!(figure(releasable, "releasable_bytes") <= figure(releasable, "resident_bytes"), "{logs:#}");
    assert!(figure(figures(logs, |figures| figures["growth_bytes"].is_u64()), "growth_bytes") > MIB);
    assert!(logs["cost"]["text"].as_str().unwrap().contains("No throughput"), "{logs:#}");
    assert!(fixes(logs).iter().any(|fix| fix.contains("innodb_log_file_buffering=OFF")), "{logs:#}");
    let guard = format!("`pagekeeper guard --pid {}`", server.pid());
    assert!(logs["pagekeeper"].as_str().unwrap().starts_with(&guard), "{logs:#}");

    // Fix: let pagekeeper release it.
    finish(pagekeeper().args(["guard", "--once", "--pid", &server.pid().to_string()])).expect_success();
    let after = doctor(server.pid(), &["--watch", "1s"]);
    assert_eq!(findings_of(&after, "logs-in-cache"), Vec::<&Value>::new(), "{after:#}");

    // The database's own setting: the redo log is not in the page cache any more.
    server.restart_with(Options::primary().redo_buffered(false));
    write(&server, 64);
    let report = doctor(server.pid(), &["--watch", "500ms"]);
    let logs = only_finding(&report, "logs-in-cache");
    // Aria's small log stays buffered.
    let evidence = logs["evidence"].as_array().unwrap();
    let redo =
        evidence.iter().map(|evidence| &evidence["figures"]).filter(|figures| figures["class"] == "redo");
    assert!(redo.map(|redo| figure(redo, "resident_bytes")).sum::<u64>() < 2 * MIB, "{logs:#}");
    assert!(!fixes(logs).iter().any(|fix| fix.contains("innodb_log_file_buffering")), "{logs:#}");
}

#[test]
#[ignore = "long: make test-stories"]
fn logs_charged_to_another_group_do_not_count_in_this_one() {
    let test = "logs_charged_to_another_group_do_not_count_in_this_one";
    if !can_run(test, &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    // The server's pages can be dropped once it has ended.
    let Some(group) = MemoryGroup::new(test, 512 * MIB) else { return };
    let server = Server::start(dir.path(), Options::primary());
    make_table(&server);
    // The server's pages are charged to its present group, like those of a restarted container.
    write(&server, 64);
    group.add(server.pid());
    let report = doctor(server.pid(), &["--watch", "500ms"]);
    let logs = only_finding(&report, "logs-in-cache");
    let cost = logs["cost"]["text"].as_str().expect("text");
    assert!(cost.starts_with("0 % of the memory"), "{logs:#}");
    assert!(cost.contains("of it at least are charged to another memory cgroup"), "{logs:#}");
    // From now on its writes are charged to the new one.
    write(&server, 64);
    let report = doctor(server.pid(), &["--watch", "500ms"]);
    let logs = only_finding(&report, "logs-in-cache");
    let cost = logs["cost"]["text"].as_str().expect("text");
    let share = cost.split(' ').find_map(|word| word.parse::<u64>().ok()).expect("a percentage");
    assert!((10..=20).contains(&share), "64 MiB of 512: {logs:#}");
    assert!(cost.contains("charged to another"), "{logs:#}");
}

/// A shell in which one `cat` after the other reads a file through the page cache until
/// dropped. Each one finds no page resident and leaves all of them.
struct CatLoop(Child);

impl CatLoop {
    fn start(file: &Path) -> Self {
        // With the trap it ends only after its child.
        let script = "trap exit TERM
while :; do dd if=\"$0\" iflag=nocache count=0 status=none; cat \"$0\" >/dev/null; sleep 0.3; done";
        let child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", "sh", "-c", script])
            .arg(file)
            .stdin(Stdio::null())
            .spawn()
            .expect("start a shell");
        Self(child)
    }
}

impl Drop for CatLoop {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn leftovers_of_direct_io_are_reported_and_evicted() {
    let programs = [&REQUIRED_PROGRAMS[..], &["sh", "dd", "cat"]].concat();
    if !can_run("leftovers_of_direct_io_are_reported_and_evicted", &programs) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    let server = Server::start(dir.path(), Options::primary());
    make_table(&server);
    write(&server, 8);
    // Drops the pages that the installation left.
    doctor(server.pid(), &["--watch", "500ms", "--fix"]);
    let clean = doctor(server.pid(), &["--watch", "500ms"]);
    assert_eq!(findings_of(&clean, "mixed-io"), Vec::<&Value>::new(), "{clean:#}");

    // Short-lived programs: one that no sample finds with the file open is named by tracing.
    //
    let table = server.data().join("test/t.ibd");
    let cats = CatLoop::start(&table);
    let by = "; brought in through the page cache while watching by cat (";
    let named = support::eventually("the reader is named", WAIT_TIMEOUT, || {
        let report = doctor(server.pid(), &["--watch", "2s", "--fix"]);
        let is_named = |mixed: &&Value| {
            let mut all = mixed["evidence"].as_array().expect("a list").iter();
            all.any(|one| {
                let text = one["text"].as_str().expect("text");
                text.starts_with("t.ibd: O_DIRECT by ") && text.contains(by)
            })
        };
        let named = findings_of(&report, "mixed-io").into_iter().find(is_named)?.clone();
        Some((named, report))
    });
    drop(cats);
    let (named, report) = named;
    // They read it again immediately, whether or not one has it open at that moment.
    let spared = report["fixed"].as_array().expect("a list").iter();
    let mut spared = spared.filter(|fixed| fixed["path"] == table.to_string_lossy().as_ref());
    let why = spared.next().and_then(|fixed| fixed["left_alone"].as_str());
    assert!(why.is_some_and(|why| why.contains("through the page cache")), "{report:#}");
    assert!(named["title"].as_str().unwrap().contains("left in the page cache of "), "{named:#}");
    let is_of_cat =
        |fix: &&str| fix.starts_with("let cat (") && fix.ends_with(" use O_DIRECT too, or stop it");
    assert!(fixes(&named).iter().any(is_of_cat), "{named:#}");

    let read = std::fs::read(&table).expect("read the table as cat does").len();
    assert!(read >= 8 << 20);
    let most = resident_bytes(std::slice::from_ref(&table));
    let report = doctor(server.pid(), &["--watch", "500ms"]);
    let mixed = only_finding(&report, "mixed-io");
    assert!(mixed["title"].as_str().unwrap().contains("left in the page cache of 1 file"), "{mixed:#}");
    let reported = figures(mixed, |figures| figures["path"] == table.to_string_lossy().as_ref());
    // Nobody reads it meanwhile, but the kernel may page out idle memory (DAMON).
    let least = resident_bytes(std::slice::from_ref(&table));
    assert!((least..=most).contains(&figure(reported, "resident_bytes")), "{least} to {most}: {reported:#}");
    assert_eq!(reported["stretches_bytes"][0][0], 0, "{mixed:#}");
    assert_eq!(reported["openers"][0]["pid"], server.pid());
    assert_eq!(reported["openers"][0]["how"], "direct");

    let fixed = doctor(server.pid(), &["--watch", "500ms", "--fix"]);
    let own = fixed["fixed"].as_array().expect("a list");
    assert!(own.len() == 1 && own[0]["path"] == table.to_string_lossy().as_ref(), "{fixed:#}");
    assert_eq!(own[0]["released"], own[0]["resident_before"], "{fixed:#}");
    // Since the first report the kernel may have paged out single pages (DAMON).
    assert!(figure(&own[0], "resident_before") <= figure(reported, "resident_bytes"), "{fixed:#}");
    assert_eq!(resident_bytes(std::slice::from_ref(&table)), 0);
    let after = doctor(server.pid(), &["--watch", "500ms"]);
    assert_eq!(findings_of(&after, "mixed-io"), Vec::<&Value>::new(), "{after:#}");
    assert_eq!(server.query("SELECT COUNT(*) AS n FROM test.t")[0]["n"], "8");
}

/// A process that writes the first page of a file through the page cache again and again, until it
/// is dropped.
struct PageWriter(Child);

impl PageWriter {
    fn start(file: &Path) -> Self {
        let script =
            "while :; do dd if=/dev/zero of=\"$0\" conv=notrunc bs=4096 count=1 2>/dev/null; done 1<>\"$0\"";
        let child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", "sh", "-c", script])
            .arg(file)
            .stdin(Stdio::null())
            .spawn()
            .expect("start a writer");
        Self(child)
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a disk profile for `directory` in which a buffered writer costs more than half of the
/// rate.
fn profile_of(directory: &Path) -> PathBuf {
    let number = rustix::fs::statvfs(directory).expect("it is there").f_fsid;
    let kind =
        finish(Command::new("findmnt").args(["-n", "-o", "FSTYPE", "-T"]).arg(directory)).expect_success();
    let path = directory.join("disk.toml");
    let text = format!(
        "version = 1\nmeasured_at = 0\nkernel = \"\"\nfile_system = \"{}\"\nfile_system_id = \"{number:016x}\"\n\
         reads = []\ndevice = \"\"\n[uncached]\nappend = false\noverwrite = false\n\
         [mixed]\nbuffered_writer_read = 0.42\nbuffered_writer_write = 0.48\n",
        kind.trim()
    );
    std::fs::write(&path, text).expect("write a profile");
    path
}

#[test]
#[ignore = "long: make test-stories"]
fn a_buffered_writer_beside_direct_io_is_the_costly_case() {
    if !can_run("a_buffered_writer_beside_direct_io_is_the_costly_case", &["setpriv", "dd", "findmnt"]) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("make a directory");
    let table = data.join("t.ibd");
    std::fs::write(&table, vec![7; 4 << 20]).expect("write a table");
    File::open(&table).and_then(|file| file.sync_all()).expect("sync it");
    let direct = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(0o40_000)
        .open(&table)
        .expect("open it with O_DIRECT");
    let profile = profile_of(dir.path());
    let profile = profile.to_str().expect("plain letters");

    let writer = PageWriter::start(&table);
    let report = support::eventually("the writer is seen", WAIT_TIMEOUT, || {
        let report = doctor_of(&data, &[]);
        (!findings_of(&report, "mixed-io").is_empty()
            && only_finding(&report, "mixed-io")["title"].as_str()?.contains("by a writer"))
        .then_some(report)
    });
    let mixed = only_finding(&report, "mixed-io");
    assert_eq!(mixed["severity"], "warning", "not measured: {mixed:#}");
    assert!(mixed["cost"]["text"].as_str().unwrap().contains("pagekeeper probe --save"), "{mixed:#}");
    let openers = &figures(mixed, |figures| figures["path"].is_string())["openers"];
    let openers = openers.as_array().expect("a list");
    let has = |pid: u32, how: &str| {
        openers.iter().any(|opener| opener["pid"] == pid && opener["how"] == how && opener["writes"] == true)
    };
    assert!(has(std::process::id(), "direct") && has(writer.0.id(), "buffered"), "{mixed:#}");
    // Measured, on this very file system.
    let report = doctor_of(&data, &["--disk-profile", profile]);
    let mixed = only_finding(&report, "mixed-io");
    assert_eq!(mixed["severity"], "serious", "{mixed:#}");
    assert!(mixed["cost"]["text"].as_str().unwrap().starts_with("Direct reads ran at 42 %"), "{mixed:#}");
    // A file that a process writes is left alone.
    let report = doctor_of(&data, &["--fix"]);
    let fixed = &report["fixed"][0];
    assert_eq!(fixed["released"], 0, "{report:#}");
    assert!(fixed["left_alone"].as_str().unwrap().contains("may write it"), "{report:#}");
    let checked = ["doctor", "--check", "--duration", "500ms", "--disk-profile", profile];
    let checked = finish(pagekeeper().args(checked).arg(&data));
    assert!(checked.code == 2 && checked.stderr.is_empty(), "{checked:#?}");

    drop(writer);
    let report = support::eventually("only leftovers", WAIT_TIMEOUT, || {
        let report = doctor_of(&data, &["--fix"]);
        report["fixed"][0]["left_alone"].is_null().then_some(report)
    });
    assert!(report["fixed"][0]["released"].as_u64() > Some(0), "{report:#}");
    let checked = finish(pagekeeper().args(["doctor", "--check", "--watch", "500ms"]).arg(&data));
    assert_eq!(findings_of(&doctor_of(&data, &[]), "mixed-io"), Vec::<&Value>::new());
    assert_eq!(checked.code, 0, "{checked:#?}");
    drop(direct);
}

#[test]
fn without_permissions_the_gaps_are_reported() {
    if !can_run("without_permissions_the_gaps_are_reported", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = alone();
    let dir = scratch();
    let server = Server::start(dir.path(), Options::primary());
    let copy = dir.path().join("pagekeeper");
    support::copy_program(&program(), &copy);
    let run = |more: &[&str]| -> Outcome {
        finish(
            Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
                .arg(&copy)
                .args(["doctor", "--watch", "500ms", "--pid", &server.pid().to_string()])
                .args(more),
        )
    };
    let outcome = run(&["--json"]);
    assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{outcome:#?}");
    let report = outcome.json();
    let limits = report["visibility_gaps"].as_array().expect("a list");
    let needs = |right: &str| {
        limits.iter().any(|limit| limit["needs"].as_str().is_some_and(|needs| needs.contains(right)))
    };
    assert!(needs("CAP_SYS_PTRACE"), "{report:#}");
    assert!(report["inspected"]["traced"].as_str().unwrap().contains("without events"), "{report:#}");
    let events =
        limits.iter().find(|limit| limit["what"].as_str().unwrap().contains("pages that come and go"));
    assert!(events.is_some_and(|limit| limit["needs"].as_str().unwrap().starts_with("CAP_")), "{report:#}");
    let text = run(&[]).expect_success();
    assert!(text.contains("not seen") && text.contains("needs CAP_SYS_PTRACE"), "{text}");
    assert!(!text.contains("Nothing found.\n"), "{text}");
    assert_eq!(run(&["--check"]).code, doctor_report::check_code(&report, 3), "not all was seen");
}

#[test]
fn an_empty_result_is_reported_and_a_signal_ends_the_watch() {
    let dir = scratch();
    std::fs::write(dir.path().join("file"), vec![0; 1 << 20]).expect("write a file");
    let text = finish(pagekeeper().args(["doctor", "--watch", "100ms"]).arg(dir.path())).expect_success();
    assert!(text.contains("Inspected 1 database for ") && text.contains("1 file, 1 MiB"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.contains('/')), "{text}");

    let child = pagekeeper()
        .args(["doctor", "--json", "--watch", "1h"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the doctor");
    let pid = rustix::process::Pid::from_child(&child);
    let caught = PathBuf::from(format!("/proc/{}/status", child.id()));
    support::eventually("it catches the signal", WAIT_TIMEOUT, || {
        let status = std::fs::read_to_string(&caught).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim();
        (u64::from_str_radix(mask, 16).ok()? & 0b10 != 0).then_some(())
    });
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal the doctor");
    let output = child.wait_with_output().expect("wait for the doctor");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(report["inspected"]["files"], 1);
    assert!(report["inspected"]["seconds"].as_f64() < Some(3600.0));
}

#[test]
fn unreadable_targets_are_refused_in_a_sentence() {
    for (arguments, code, sentence) in [
        (&["doctor", "--pid", "4194999"][..], 1, "there is no process 4194999"),
        (
            &["doctor", "/no/such/directory"],
            1,
            "pagekeeper: /no/such/directory: No such file or directory (os error 2)\n",
        ),
        (&["doctor", "/etc/passwd"], 1, "pagekeeper: /etc/passwd: not a directory\n"),
        (&["doctor", "--disk-profile", "/no/such/file"], 1, "/no/such/file: "),
        (&["doctor", "--watch", "0s"], 64, "is not a length of time"),
        (&["doctor", "--pid", "1", "/tmp"], 64, "cannot be used with"),
    ] {
        let outcome = finish(pagekeeper().args(arguments));
        assert_eq!(outcome.code, code, "{outcome:#?}");
        assert!(outcome.stderr.contains(sentence) && outcome.stdout.is_empty(), "{outcome:#?}");
    }
}
