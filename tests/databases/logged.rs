//! The guard beside real servers with logs, in one story. Pages of old logs go, those of the newest
//! stay, mapped files and data are left alone, and a lagging reader gets everything. After a
//! restart, and a kill, all acknowledged data is there.
//!
//! Each test needs root and its server; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s.

use crate::claims::FakeServer;
use crate::support;
use crate::support::guard::{EndedGuard, Guard, program};
use crate::support::{MIB, eventually, resident_bytes, size_bytes};
use pagekeeper_testing::servers::{
    Cassandra, ClickHouse, Etcd, Kafka, LoggedServer, MariaDb, MongoDb, MySql, Nats, OpenSearch, PostgreSql,
    Prometheus, RabbitMq, RocksDb, SearchProduct, WiredTiger, unpacked,
};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The smallest page size.
const PAGE: u64 = 4096;

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// A server of this profile before the counted writes, and its guard; both act only below
/// `scratch`.
struct Story<'a, S> {
    server: &'a mut S,
    guard: Guard,
    profile: &'static str,
    /// Maximum resident bytes of the newest files, and minimum of the last one.
    stays: (u64, u64),
}

impl<'a, S: LoggedServer> Story<'a, S> {
    /// Checks that without a guard all pages stay, and with one old pages go.
    fn begin(
        server: &'a mut S,
        scratch: &Path,
        (profile, more): (&'static str, &[&str]),
        bytes: u64,
        stays: (u64, u64),
    ) -> Self {
        server.put(bytes);
        let resident = resident_bytes(&server.logs());
        the_doctor_names(profile, server.pid());
        // Some machines page out idle memory.
        assert!(
            resident >= bytes / 4 * 3,
            "only {resident} bytes of {profile}'s logs are resident without a guard"
        );
        let only = format!("dir:{}", scratch.to_str().expect("a path of this test's own"));
        let guard = Guard::spawn(&[&["--tick", "100ms", "--only", &only], more].concat());
        let pid = server.pid();
        guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid && event["profile"] == profile);
        let story = Self { server, guard, profile, stays };
        story.only_the_newest_stays();
        story
    }

    fn only_the_newest_stays(&self) {
        let logs = self.server.logs();
        let (newest, _) = logs.split_last().expect("a log");
        eventually(&format!("old logs of {} are released: {logs:?}", self.profile), WAIT_TIMEOUT, || {
            (resident_bytes(&logs) <= self.stays.0).then_some(())
        });
        let left = resident_bytes(std::slice::from_ref(newest));
        let least = self.stays.1.min(size_bytes(std::slice::from_ref(newest)));
        assert!(left >= least, "only {left} bytes of {} stayed", newest.display());
    }

    /// Returns mapped files and data files, with the resident bytes of each. There must be some, or
    /// nothing could be lost, unless the server may have none.
    fn mapped_and_data_files(&self) -> Vec<(PathBuf, u64)> {
        let Some(others) = self.server.others() else { return Vec::new() };
        let of_each = |path: PathBuf| (path.clone(), resident_bytes(&[path]));
        let others: Vec<(PathBuf, u64)> = others.into_iter().map(of_each).collect();
        let any = others.iter().any(|(_, resident)| *resident > 0);
        assert!(any, "no page of what {} has mapped, or as data, is resident: {others:?}", self.profile);
        others
    }

    /// Puts this many more bytes under the guard, and checks that mapped files and data lose no
    /// page.
    fn write_more(&mut self, bytes: u64) {
        let before = self.mapped_and_data_files();
        self.server.put(bytes);
        self.only_the_newest_stays();
        for (path, before) in before {
            // A server may truncate a file that it created too long.
            let whole = size_bytes(std::slice::from_ref(&path)).next_multiple_of(PAGE);
            let after = resident_bytes(std::slice::from_ref(&path));
            assert!(after >= before.min(whole), "{after} bytes of {before} are left of {}", path.display());
        }
    }

    /// Checks that after a restart and after a kill all data is there, and the server is found and
    /// served again.
    fn check_restarts(self, released: u64) -> EndedGuard {
        for restart in [S::stop_and_restart, S::kill_and_restart] {
            let before = self.server.pid();
            restart(self.server);
            let pid = self.server.pid();
            assert_ne!(pid, before);
            self.server.check_all();
            // Some servers open the log when they write.
            self.server.put(8 * MIB);
            let profile = self.profile;
            self.guard
                .wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid && event["profile"] == profile);
            self.only_the_newest_stays();
            self.server.check_all();
        }
        let ended = self.guard.stop();
        assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
        let troubles: Vec<_> = ended
            .events
            .iter()
            .filter(|event| event["event"] == "problem" || event["event"] == "warning")
            // Recovery and consumers read back what the guard had released.
            .filter(|event| !event["warning"].as_str().is_some_and(|said| said.starts_with("read back")))
            .collect();
        assert!(troubles.is_empty(), "{troubles:#?}");
        let by_class = ended.summary()["released_bytes"].as_object().expect("bytes by class").clone();
        let all: u64 = by_class.values().map(|bytes| bytes.as_u64().expect("bytes")).sum();
        assert!(all >= released, "{}", ended.summary());
        println!("{}", ended.summary());
        ended
    }
}

/// Whether a server in Java is available: its jars are in the directory that the environment names.
pub(crate) fn can_run_jars(name: &str, programs: &[&str], jars: Option<&PathBuf>) -> bool {
    can_run_fetched(name, programs, &format!("PAGEKEEPER_{}", name.to_uppercase()), jars)
}

/// Returns whether a fetched server is in the directory that the environment names.
pub(crate) fn can_run_fetched(
    name: &str,
    programs: &[&str],
    variable: &str,
    directory: Option<&PathBuf>,
) -> bool {
    let what = format!("the guard beside {name}");
    if !support::can_run(&what, programs) {
        return false;
    }
    if directory.is_none() {
        pagekeeper_testing::skip(format!("{what}: {variable} names no directory of it"));
    }
    directory.is_some()
}

/// Checks that the doctor names the database, whatever its process is called, and reports nothing
/// about older messages.
fn the_doctor_names(profile: &str, pid: u32) {
    let expected = match profile {
        // Messages are kept, and parts of tables are data.
        "nats" | "clickhouse" => "Nothing found",
        "kafka" => "of it beyond its budget",
        _ => "of it never read again",
    };
    let process = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
    // On a busy machine the rules may need longer than the doctor watches.
    eventually(&format!("the doctor says {expected} of {profile}"), WAIT_TIMEOUT, || {
        let said = Command::new(program())
            .args(["doctor", "--watch", "3s", "--pid", &pid.to_string()])
            .output()
            .expect("start the doctor");
        let report = String::from_utf8(said.stdout).expect("text");
        let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.status.success(), "{report}");
        let names = [
            format!("{profile} (process {pid})"),
            // "clickhouse-serv": the kernel keeps 15 bytes of a name.
            format!("{} (process {pid})", process.trim_end()),
            format!(", process {pid})"),
        ];
        let is_named =
            names.iter().any(|name| report.contains(name)) && report.to_lowercase().contains(profile);
        assert!(is_named, "{report}");
        report.contains(expected).then_some(())
    });
}

#[test]
#[ignore = "make test-databases; make test has other stories of this server"]
fn the_binlog_of_mariadb_stays_out_of_the_page_cache() {
    if !support::can_run("the guard beside MariaDB", MariaDb::programs()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = MariaDb::start(&scratch.path().join("mariadb"));
    let only = unpacked::seen(MariaDb::unpacked().as_deref(), scratch.path());
    let mut story = Story::begin(&mut server, &only, ("mariadb", &[]), 80 * MIB, (16 * MIB, MIB));
    story.write_more(60 * MIB);
    story.check_restarts(100 * MIB);
}

#[test]
#[ignore = "long: make test-stories"]
fn the_log_of_myrocks_stays_out_of_the_page_cache() {
    if !support::can_run("the guard beside MyRocks", MariaDb::programs()) {
        return;
    }
    if !MariaDb::has_myrocks() {
        pagekeeper_testing::skip("the guard beside MyRocks: the plugin is not installed");
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = MariaDb::with_myrocks(&scratch.path().join("myrocks"));
    // The first table's file would come with 64 MiB.
    server.put(8 * MIB);
    server.flush();
    let only = unpacked::seen(MariaDb::unpacked().as_deref(), scratch.path());
    let mut story = Story::begin(&mut server, &only, ("mariadb", &[]), 50 * MIB, (10 * MIB, MIB));
    story.write_more(80 * MIB);
    story.check_restarts(60 * MIB);
}

#[test]
#[ignore = "make test-databases fetches MySQL"]
fn the_redo_log_and_binlog_of_mysql_stay_out_of_the_page_cache() {
    let unpacked = MySql::unpacked();
    if !can_run_fetched("MySQL", &MySql::REQUIRED_PROGRAMS, "PAGEKEEPER_MYSQL_ROOT", unpacked.as_ref()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = MySql::start(&scratch.path().join("mysql"));
    let mut story = Story::begin(
        &mut server,
        Path::new(MySql::INNER_DATA_PATH),
        ("mysql", &[]),
        80 * MIB,
        (24 * MIB, MIB),
    );
    story.write_more(60 * MIB);
    story.check_restarts(100 * MIB);
}

#[test]
#[ignore = "make test-databases; make test has other stories of this server"]
fn the_wal_of_postgresql_stays_out_of_the_page_cache() {
    let programs = PostgreSql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("the guard beside PostgreSQL", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = PostgreSql::start(&scratch.path().join("postgresql"));
    // The last of its files may be a spare one.
    let mut story = Story::begin(&mut server, scratch.path(), ("postgresql", &[]), 80 * MIB, (10 * MIB, 0));
    story.write_more(60 * MIB);
    story.check_restarts(100 * MIB);
}

#[test]
#[ignore = "long: make test-stories"]
fn the_wal_of_etcd_stays_out_of_the_page_cache() {
    if !support::can_run("the guard beside etcd", &Etcd::REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = Etcd::start(&scratch.path().join("etcd"));
    for number in 0..50 {
        server.put_small(&format!("watched/{number}"), "first");
    }
    let mut lagging = server.watch("watched/");
    let mut story = Story::begin(&mut server, scratch.path(), ("etcd", &[]), 70 * MIB, (10 * MIB, MIB));
    story.write_more(60 * MIB);
    for number in 0..50 {
        story.server.put_small(&format!("watched/{number}"), "second");
    }
    lagging.read(100);
    story.check_restarts(100 * MIB);
}

#[test]
fn a_stranger_called_etcd_gets_nothing_of_the_real_one() {
    if !support::can_run("a fake beside etcd", &Etcd::REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = Etcd::start(&scratch.path().join("etcd"));
    server.put(8 * MIB);
    // Anybody may read them.
    for directory in ["etcd", "etcd/data", "etcd/data/member", "etcd/data/member/wal"] {
        support::open_to_others(&scratch.path().join(directory));
    }
    let wal = server.logs().pop().expect("a segment");
    std::fs::set_permissions(&wal, std::fs::Permissions::from_mode(0o644)).expect("set permissions");
    let home = scratch.path().join("home");
    std::fs::create_dir(&home).expect("make a directory");
    let fake = FakeServer::start("etcd", &home, &format!("exec 3<{}", wal.display()));
    // Beside this process alone, nothing is released.
    let pid = fake.pid();
    let guard = Guard::spawn(&["--tick", "100ms", "--pid", &pid.to_string()]);
    let refused = guard.wait_for("refused", WAIT_TIMEOUT, |event| event["pid"] == pid);
    assert_eq!((&refused["profile"], &refused["reason"]), (&"etcd".into(), &"not-owner".into()), "{refused}");
    guard.wait_for_ticks(10);
    let ended = guard.stop();
    assert!(!ended.events.iter().any(|event| event["event"] == "released"), "{:#?}", ended.events);
    // Some machines page out idle memory; a guard that took it for the fake's would leave 4 MiB.
    assert!(resident_bytes(&[wal]) >= 6 * MIB);
    server.check_all();
}

#[test]
#[ignore = "long: make test-stories"]
fn the_wal_of_prometheus_stays_out_of_the_page_cache() {
    if !support::can_run("the guard beside Prometheus", &Prometheus::REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut to = Prometheus::start(&scratch.path().join("to"), None);
    let mut server = Prometheus::start(&scratch.path().join("from"), Some(to.port()));
    let mut story =
        Story::begin(&mut server, scratch.path(), ("prometheus", &[]), 25 * MIB, (10 * MIB, MIB / 4));
    // The sender lags, so the pages that it has yet to read stay, and it gets all.
    to.freeze();
    story.server.put(25 * MIB);
    to.thaw();
    to.wait_for_series(story.server.sent());
    story.write_more(15 * MIB);
    story.check_restarts(25 * MIB);
}

#[test]
#[ignore = "long: make test-stories"]
fn old_blocks_of_jetstream_leave_the_page_cache() {
    if !support::can_run("the guard beside NATS", &Nats::REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = Nats::start(&scratch.path().join("nats"), 1 << 30);
    server.make_reader();
    // By default all pages stay, since keys and objects are read from blocks of any age.
    let config = scratch.path().join("guard.toml");
    std::fs::write(&config, "[rules.nats.messages]\nrule = \"budget\"\nbudget = \"64M\"\n").expect("write");
    let more = ["--config", config.to_str().expect("a path of this test's own")];
    let mut story = Story::begin(&mut server, scratch.path(), ("nats", &more), 120 * MIB, (64 * MIB, MIB));
    story.server.read(0..10);
    story.write_more(60 * MIB);
    let put = story.server.put_messages();
    story.server.read(10..put);
    story.check_restarts(100 * MIB);
}

#[test]
#[ignore = "make test-databases fetches Kafka"]
fn old_segments_of_kafka_leave_the_page_cache() {
    if !can_run_jars("Kafka", &Kafka::REQUIRED_PROGRAMS, Kafka::jars().as_ref()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = Kafka::start(&scratch.path().join("kafka"), 8 << 30);
    let mut story = Story::begin(&mut server, scratch.path(), ("kafka", &[]), 400 * MIB, (256 * MIB, MIB));
    // The reader begins, and its pipe is soon full: it lags by everything written later.
    let messages = story.server.put_messages();
    let mut lagging = story.server.reader(messages);
    story.write_more(200 * MIB);
    Kafka::check(&mut lagging, messages);
    story.check_restarts(300 * MIB);
}

#[test]
#[ignore = "make test-databases fetches Kafka"]
fn hundreds_of_partitions_stay_within_the_total() {
    const PARTITIONS: u32 = 300;
    const TOTAL: u64 = 64 * MIB;
    if !can_run_jars("Kafka", &Kafka::REQUIRED_PROGRAMS, Kafka::jars().as_ref()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = Kafka::with_partitions(&scratch.path().join("kafka"), 8 << 30, PARTITIONS, None);
    let read_while_putting = |server: &mut Kafka, bytes: u64| {
        let io = format!("/proc/{}/io", server.pid());
        let before = support::io_counter(Path::new(&io), "read_bytes");
        server.put(bytes);
        support::io_counter(Path::new(&io), "read_bytes") - before
    };
    server.put(300 * MIB);
    let read_without = read_while_putting(&mut server, 300 * MIB);
    // All except the writers' windows, which are not released.
    let bound = |server: &Kafka| {
        let mut newest = std::collections::BTreeMap::new();
        for log in server.logs() {
            newest.insert(log.parent().expect("a partition").to_owned(), log);
        }
        assert_eq!(newest.len(), PARTITIONS as usize);
        TOTAL + newest.values().map(|log| size_bytes(std::slice::from_ref(log)).min(2 * MIB)).sum::<u64>()
    };
    let resident = resident_bytes(&server.logs());
    // Some machines page out idle memory.
    assert!(resident >= 450 * MIB && resident > bound(&server), "only {resident} bytes are resident");

    let config = scratch.path().join("guard.toml");
    let rules = format!("[rules.kafka.messages]\nrule = \"budget\"\nbudget = \"16M\"\ntotal = \"{TOTAL}\"\n");
    std::fs::write(&config, rules).expect("write");
    let only = format!("dir:{}", scratch.path().to_str().expect("a path of this test's own"));
    let config = config.to_str().expect("a path of this test's own");
    let guard = Guard::spawn(&["--tick", "100ms", "--only", &only, "--config", config]);
    let are_watched = |server: &Kafka| {
        let segments = server.logs().len() as u64;
        guard.wait_for("tick", WAIT_TIMEOUT, |tick| tick["files"].as_u64() >= Some(segments));
    };
    let stays_within = |server: &Kafka| {
        eventually("no more than the total stays", WAIT_TIMEOUT, || {
            (resident_bytes(&server.logs()) <= bound(server)).then_some(())
        });
    };
    are_watched(&server);
    stays_within(&server);
    let read_with = read_while_putting(&mut server, 300 * MIB);
    stays_within(&server);
    println!("read without the guard {read_without} bytes, with it {read_with}");
    // Counts the whole broker, including its code, so it is inexact: a twentieth of the written
    // bytes.
    assert!(
        read_with <= read_without + 15 * MIB,
        "{read_with} bytes were read, {read_without} without the guard"
    );
    // Reads from the first message on; most of the log is only on the disk.
    server.check_all();

    server.kill_and_restart();
    let pid = server.pid();
    server.put(32 * MIB);
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid);
    stays_within(&server);
    server.check_all();
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let troubles = ["problem", "warning", "in_part", "refused"];
    let troubles = ended.events.iter().filter(|event| troubles.iter().any(|name| event["event"] == *name));
    assert_eq!(troubles.count(), 0, "{:#?}", ended.events);
    let left_out = |event: &&serde_json::Value| event["left_out_files"].as_u64() > Some(0);
    assert_eq!(ended.events.iter().filter(left_out).count(), 0);
}

#[test]
#[ignore = "long: make test-stories"]
fn the_log_of_rabbitmqs_quorum_queues_stays_out_of_the_page_cache() {
    if !support::can_run("the guard beside RabbitMQ", RabbitMq::programs()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = RabbitMq::start(&scratch.path().join("rabbitmq"));
    // At its start it writes the content of its log to the queue's segments.
    server.put(16 * MIB);
    server.stop_and_restart();
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "segment");
    support::eventually("a message is in a segment", WAIT_TIMEOUT, || {
        server.others()?.iter().any(is_segment).then_some(())
    });
    let only = unpacked::seen(RabbitMq::unpacked().as_deref(), scratch.path());
    let mut story = Story::begin(&mut server, &only, ("rabbitmq", &[]), 40 * MIB, (10 * MIB, MIB));
    story.server.take(10);
    story.write_more(24 * MIB);
    // The consumer lags by everything except the messages it has taken.
    let waiting = story.server.waiting();
    story.server.take(waiting / 2);
    story.check_restarts(50 * MIB);
}

#[test]
#[ignore = "make test-databases fetches Cassandra"]
fn closed_segments_of_cassandra_leave_the_page_cache() {
    if !can_run_jars("Cassandra", &Cassandra::REQUIRED_PROGRAMS, Cassandra::jars().as_ref()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let config = scratch.path().join("guard.toml");
    std::fs::write(&config, Cassandra::GUARD_RULES).expect("write rules");
    let options = ["--config", config.to_str().expect("a path of this test's own")];
    let mut server = Cassandra::start(&scratch.path().join("cassandra"));
    // The server's memory holds everything that is put; at its end the server writes it to a table
    // file.
    server.put(16 * MIB);
    server.stop_and_restart();
    let mut story =
        Story::begin(&mut server, scratch.path(), ("cassandra", &options), 240 * MIB, (40 * MIB, MIB));
    story.write_more(80 * MIB);
    story.server.check_all();
    story.check_restarts(240 * MIB);
}

#[test]
#[ignore = "make test-databases fetches OpenSearch"]
fn old_generations_of_opensearchs_translog_leave_the_page_cache() {
    old_generations_leave(SearchProduct::OpenSearch, "OpenSearch");
}

#[test]
#[ignore = "make test-databases fetches Elasticsearch"]
fn old_generations_of_elasticsearchs_translog_leave_the_page_cache() {
    old_generations_leave(SearchProduct::Elasticsearch, "Elasticsearch");
}

fn old_generations_leave(of: SearchProduct, name: &str) {
    if !can_run_jars(name, &OpenSearch::REQUIRED_PROGRAMS, of.jars().as_ref()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = OpenSearch::start(&scratch.path().join("node"), of);
    let mut story =
        Story::begin(&mut server, scratch.path(), ("opensearch", &[]), 200 * MIB, (64 * MIB, MIB));
    story.write_more(100 * MIB);
    // Updates read the old values from the log or the index.
    let documents = story.server.documents();
    (0..documents).step_by(50).for_each(|number| story.server.update(number));
    story.server.update(documents - 1);
    story.check_restarts(200 * MIB);
}

/// Whether a program with this library can be built here.
pub(crate) fn can_run_engine(what: &str, programs: &[&str], header: &str) -> bool {
    if !support::can_run(what, programs) {
        return false;
    }
    let is_there = Path::new(header).exists();
    if !is_there {
        pagekeeper_testing::skip(format!("{what}: its library's headers are not installed"));
    }
    is_there
}

#[test]
fn the_wal_of_rocksdb_stays_out_of_the_page_cache() {
    if !can_run_engine("the guard beside RocksDB", &RocksDb::REQUIRED_PROGRAMS, RocksDb::HEADER_PATH) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = RocksDb::start(&scratch.path().join("rocksdb"));
    // Two files of the WAL are full then, and a table is made of each.
    let mut story = Story::begin(&mut server, scratch.path(), ("rocksdb", &[]), 150 * MIB, (10 * MIB, MIB));
    story.write_more(100 * MIB);
    story.check_restarts(200 * MIB);
}

#[test]
#[ignore = "make test-databases installs WiredTiger"]
fn the_journal_of_wiredtiger_stays_out_of_the_page_cache() {
    if !can_run_engine("the guard beside WiredTiger", &WiredTiger::REQUIRED_PROGRAMS, WiredTiger::HEADER_PATH)
    {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = WiredTiger::start(&scratch.path().join("wiredtiger"));
    // The writer's file is made at its full length of 100 MB, and read to its end when it is opened
    // again.
    let mut story = Story::begin(&mut server, scratch.path(), ("mongodb", &[]), 250 * MIB, (120 * MIB, 0));
    story.write_more(150 * MIB);
    story.check_restarts(250 * MIB);
}

/// Whether `MongoDB` and its client's dependencies are available.
pub(crate) fn can_run_mongodb() -> bool {
    let unpacked = MongoDb::unpacked();
    if !can_run_fetched("MongoDB", &MongoDb::REQUIRED_PROGRAMS, "PAGEKEEPER_MONGODB_ROOT", unpacked.as_ref())
    {
        return false;
    }
    if !MongoDb::has_client() {
        pagekeeper_testing::skip("the guard beside MongoDB: python3-pymongo is not installed");
    }
    MongoDb::has_client()
}

#[test]
#[ignore = "make test-databases fetches MongoDB"]
fn the_journal_of_mongodb_stays_out_of_the_page_cache() {
    if !can_run_mongodb() {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = MongoDb::start(&scratch.path().join("mongodb"));
    // Like WiredTiger without `MongoDB`.
    let mut story = Story::begin(
        &mut server,
        Path::new(MongoDb::INNER_DATA_PATH),
        ("mongodb", &[]),
        250 * MIB,
        (120 * MIB, 0),
    );
    story.write_more(150 * MIB);
    story.check_restarts(250 * MIB);
}

#[test]
#[ignore = "make test-databases; make test has other stories of this server"]
fn parts_of_clickhouse_are_left_alone() {
    if !support::can_run("the guard beside ClickHouse", &ClickHouse::REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = ClickHouse::start(&scratch.path().join("clickhouse"));
    server.put(64 * MIB);
    the_doctor_names("clickhouse", server.pid());
    let only = format!("dir:{}", scratch.path().to_str().expect("a path of this test's own"));
    let guard = Guard::spawn(&["--tick", "100ms", "--only", &only]);
    // ClickHouse has no log by which it could be found.
    guard.wait_for_ticks(10);
    server.put(32 * MIB);
    server.merge();
    server.check_all();
    server.stop_and_restart();
    server.check_all();
    server.kill_and_restart();
    server.check_all();
    let parts = server.others().expect("it has data");
    // Some machines page out idle memory.
    let (resident, size) = (resident_bytes(&parts), size_bytes(&parts));
    assert!(size >= 64 * MIB && resident >= size / 4 * 3, "{resident} bytes of {size} are resident");
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert!(!ended.events.iter().any(|event| event["event"] == "released"), "{:#?}", ended.events);
}
