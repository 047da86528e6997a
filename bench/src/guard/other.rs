//! `guard --server NAME`: the guard's benefit and cost for another server: log residency, device
//! reads, and the client's rate. The same load runs with and without the guard in turn, on one
//! server.
//!
//! A window is a number of bytes that the client puts and has acknowledged. Residency is that of
//! all logs at its end; device reads are the server's own, as counted by the kernel. With a rate
//! there is one guard, and a window is some seconds in which the guard's processor time is
//! measured.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use pagekeeper_testing::servers::{
    Cassandra, Etcd, Kafka, LoggedServer, MariaDb, MongoDb, MySql, Nats, OpenSearch, PostgreSql, Prometheus,
    RabbitMq, RocksDb, SearchProduct, WiredTiger,
};

use super::processor_time::cpu_seconds;
use super::watcher::RunningGuard;
use super::{AFTER_START_NAME, WITH_GUARD_NAME, WITHOUT_GUARD_NAME};
use crate::BenchRun;
use crate::data::{GIB, MIB, resident};
use crate::peers::InstalledProgram;
use crate::report::FigureUnit;
use crate::rounds::{SubjectSamples, median};

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerName {
    /// A table of `InnoDB`, and its binlog
    #[value(name = "mariadb")]
    MariaDb,
    /// A table of `MyRocks` in `MariaDB`, and RocksDB's log
    #[value(name = "myrocks")]
    MyRocks,
    /// A table of `InnoDB`, its redo log and its binlog; `PAGEKEEPER_MYSQL_ROOT` names the folder
    /// that it is unpacked in
    #[value(name = "mysql")]
    MySql,
    /// A table of large values
    #[value(name = "postgresql")]
    PostgreSql,
    /// With its gateway of JSON as the client
    Etcd,
    /// Sent series by remote write
    Prometheus,
    /// A stream of `JetStream`
    Nats,
    /// A topic of one partition or of `--partitions`, kcat as the client; `PAGEKEEPER_KAFKA` names
    /// the directory of its jars
    Kafka,
    /// A quorum queue
    #[value(name = "rabbitmq")]
    RabbitMq,
    /// A table of large values; `PAGEKEEPER_CASSANDRA` names the directory of its jars
    Cassandra,
    /// An index of one shard; `PAGEKEEPER_OPENSEARCH` names the directory of its jars
    #[value(name = "opensearch")]
    OpenSearch,
    /// The same of Elasticsearch; `PAGEKEEPER_ELASTICSEARCH` names the directory of its jars
    #[value(name = "elasticsearch")]
    Elasticsearch,
    /// A collection; `PAGEKEEPER_MONGODB_ROOT` names the folder that it is unpacked in
    #[value(name = "mongodb")]
    MongoDb,
    /// The engine of `MongoDB` by itself
    #[value(name = "wiredtiger")]
    WiredTiger,
    /// RocksDB by itself, as it is by default, with two column families
    #[value(name = "rocksdb")]
    RocksDb,
}

impl ServerName {
    fn programs(self) -> Vec<String> {
        let names: &[&str] = match self {
            Self::PostgreSql => return PostgreSql::programs(),
            Self::MariaDb | Self::MyRocks => MariaDb::programs(),
            Self::MySql => &MySql::REQUIRED_PROGRAMS,
            Self::MongoDb => &MongoDb::REQUIRED_PROGRAMS,
            Self::Etcd => &Etcd::REQUIRED_PROGRAMS,
            Self::Prometheus => &Prometheus::REQUIRED_PROGRAMS,
            Self::Nats => &Nats::REQUIRED_PROGRAMS,
            Self::Kafka => &Kafka::REQUIRED_PROGRAMS,
            Self::RabbitMq => RabbitMq::programs(),
            Self::Cassandra => &Cassandra::REQUIRED_PROGRAMS,
            Self::OpenSearch | Self::Elasticsearch => &OpenSearch::REQUIRED_PROGRAMS,
            Self::WiredTiger => &WiredTiger::REQUIRED_PROGRAMS,
            Self::RocksDb => &RocksDb::REQUIRED_PROGRAMS,
        };
        names.iter().copied().map(str::to_owned).collect()
    }

    fn start(self, home: &Path, topic: &KafkaTopic) -> Box<dyn LoggedServer> {
        match self {
            Self::MariaDb => Box::new(MariaDb::start(home)),
            Self::MyRocks => Box::new(MariaDb::with_myrocks(home)),
            Self::MySql => Box::new(MySql::start(home)),
            Self::MongoDb => Box::new(MongoDb::start(home)),
            Self::PostgreSql => Box::new(PostgreSql::start(home)),
            Self::Etcd => Box::new(Etcd::start(home)),
            Self::Prometheus => Box::new(Prometheus::start(home, None)),
            Self::Nats => Box::new(Nats::start(home, 4 * GIB)),
            Self::Kafka => {
                let partitions = topic.partitions.map_or(1, NonZeroU32::get);
                let segment = topic.segment.map(|segment| u64::from(segment) * MIB);
                Box::new(Kafka::with_partitions(home, 4 * GIB, partitions, segment))
            }
            Self::RabbitMq => Box::new(RabbitMq::start(home)),
            Self::Cassandra => Box::new(Cassandra::start(home)),
            Self::OpenSearch => Box::new(OpenSearch::start(home, SearchProduct::OpenSearch)),
            Self::Elasticsearch => Box::new(OpenSearch::start(home, SearchProduct::Elasticsearch)),
            Self::WiredTiger => Box::new(WiredTiger::start(home)),
            Self::RocksDb => Box::new(RocksDb::start(home)),
        }
    }

    /// Returns bytes of a window: more than the guard leaves resident, and little enough for the
    /// server's memory.
    fn window(self) -> u64 {
        match self {
            Self::Etcd | Self::Prometheus | Self::RabbitMq => 64 * MIB,
            Self::MariaDb
            | Self::MyRocks
            | Self::MySql
            | Self::PostgreSql
            | Self::Nats
            | Self::OpenSearch
            | Self::Elasticsearch
            | Self::Cassandra
            | Self::MongoDb
            | Self::WiredTiger
            | Self::RocksDb => 192 * MIB,
            Self::Kafka => 384 * MIB,
        }
    }

    /// For a server that is not installed but fetched by `scripts/fetch-servers.sh`: the variable
    /// that names its location, and whether it is there.
    fn fetched(self) -> Option<(&'static str, bool)> {
        match self {
            Self::Kafka => Some(("PAGEKEEPER_KAFKA", Kafka::jars().is_some())),
            Self::Cassandra => Some(("PAGEKEEPER_CASSANDRA", Cassandra::jars().is_some())),
            Self::OpenSearch => Some(("PAGEKEEPER_OPENSEARCH", SearchProduct::OpenSearch.jars().is_some())),
            Self::Elasticsearch => {
                Some(("PAGEKEEPER_ELASTICSEARCH", SearchProduct::Elasticsearch.jars().is_some()))
            }
            Self::MySql => Some(("PAGEKEEPER_MYSQL_ROOT", MySql::unpacked().is_some())),
            Self::MongoDb => Some(("PAGEKEEPER_MONGODB_ROOT", MongoDb::unpacked().is_some())),
            _ => None,
        }
    }

    /// Returns the missing part and how to get it.
    fn missing(self) -> Option<String> {
        if let Some(missing) =
            self.programs().into_iter().find(|program| !InstalledProgram::is_installed(program))
        {
            return Some(format!("{missing} is not installed"));
        }
        let package = match self {
            Self::WiredTiger if WiredTiger::version().is_none() => "libwiredtiger-dev",
            Self::RocksDb if RocksDb::version().is_none() => "librocksdb-dev",
            Self::MyRocks if !MariaDb::has_myrocks() => "mariadb-plugin-rocksdb",
            Self::MongoDb if !MongoDb::has_client() => "python3-pymongo",
            _ => {
                let (variable, _) = self.fetched().filter(|(_, is_there)| !is_there)?;
                let server = self.to_possible_value()?;
                return Some(format!(
                    "{variable} names no directory of it. This fetches it, and sets that:\n  \
                     eval \"$(scripts/fetch-servers.sh {})\"",
                    server.get_name()
                ));
            }
        };
        Some(format!("Debian's package {package} is not installed"))
    }

    /// Returns the guard's configuration. NATS's streams have no budget by default, and everything
    /// would stay resident, as would a window of Cassandra.
    fn configuration(self) -> &'static str {
        match self {
            Self::Nats => "[rules.nats.messages]\nrule = \"budget\"\nbudget = \"64M\"\n",
            Self::Cassandra => Cassandra::GUARD_RULES,
            _ => "",
        }
    }
}

/// The settings of Kafka's topic, where they differ from the defaults.
#[derive(Debug)]
pub(crate) struct KafkaTopic {
    pub(crate) partitions: Option<NonZeroU32>,
    /// MiB of a segment of its log.
    pub(crate) segment: Option<u32>,
}

/// Bytes that a server is to keep at most: some keep 4 GiB by default.
const KEPT_BYTES_MAX: u64 = 3 * GIB;

/// The figures of windows of one kind.
#[derive(Debug, Default)]
struct ServerWindows {
    rate: Vec<f64>,
    resident: Vec<f64>,
    read: Vec<f64>,
}

/// Runs the benchmark; the rate is in MiB per second.
pub(crate) fn run(
    run: &mut BenchRun,
    name: ServerName,
    topic: &KafkaTopic,
    rate: Option<NonZeroU32>,
) -> Result<()> {
    for (option, is_given) in
        [("--partitions", topic.partitions.is_some()), ("--segment", topic.segment.is_some())]
    {
        if is_given && name != ServerName::Kafka {
            bail!("{option} is for Kafka alone: leave it out, or say --server kafka");
        }
    }
    let rate = rate.map(|rate| u64::from(rate.get()) * MIB);
    let seconds = window_of(run).as_secs().saturating_mul(run.rounds as u64 + 1);
    let most = rate.unwrap_or_default().saturating_mul(seconds);
    if most > KEPT_BYTES_MAX {
        bail!(
            "{} MiB would be put in all, and servers keep no more than {}: ask for less with --rate or --rounds",
            most / MIB,
            KEPT_BYTES_MAX / MIB
        );
    }
    if let Some(missing) = name.missing() {
        bail!(missing);
    }
    if let Some(partitions) = topic.partitions {
        run.note(&format!("a topic of {partitions} partitions"));
    }
    if let Some(segment) = topic.segment {
        run.note(&format!("segments of {segment} MiB"));
    }
    run.say("a server")?;
    let config = run.scratch.path().join("guard.toml");
    std::fs::write(&config, name.configuration())?;
    let config = config.to_str().context("the scratch directory's name is no text")?;
    let mut server = name.start(&run.scratch.path().join("server"), topic);
    if let Some(rate) = rate {
        return at_a_rate(run, server.as_mut(), config, rate);
    }
    run.note("one server under one client; windows without the guard, and with it, in turn: what the first leaves is released in the second");
    let bytes = if run.quick { name.window() / 2 } else { name.window() };
    server.put(bytes);
    let (mut guarded, mut alone) = (ServerWindows::default(), ServerWindows::default());
    for _ in 0..if run.quick { run.rounds.min(3) } else { run.rounds } {
        run.say("a window without, and one with the guard")?;
        window(server.as_mut(), bytes, &mut alone)?;
        let pid = server.pid().to_string();
        let guard = RunningGuard::start(&run.pagekeeper, &["--pid", &pid, "--config", config])?;
        window(server.as_mut(), bytes, &mut guarded)?;
        guard.stop()?;
    }
    server.check_all();
    let pair = |with: &[f64], without: &[f64]| {
        [
            SubjectSamples { subject: WITH_GUARD_NAME, values: with.to_vec() },
            SubjectSamples { subject: WITHOUT_GUARD_NAME, values: without.to_vec() },
        ]
    };
    let rates = pair(&guarded.rate, &alone.rate);
    let report = &mut run.report;
    report.add_case("bytes put and acknowledged", FigureUnit::MibPerSecond, &rates);
    report.add_ratio(
        "guard_server_rate",
        FigureUnit::MibPerSecond,
        &rates,
        WITH_GUARD_NAME,
        WITHOUT_GUARD_NAME,
    );
    report.add_case(
        "logs in the page cache at a window's end",
        FigureUnit::Mib,
        &pair(&guarded.resident, &alone.resident),
    );
    report.add_case("read from the device in a window", FigureUnit::Mib, &pair(&guarded.read, &alone.read));
    Ok(())
}

fn window(server: &mut dyn LoggedServer, bytes: u64, seen: &mut ServerWindows) -> Result<()> {
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let (read, began) = (device_reads(server.pid())?, Instant::now());
    let put = server.put(bytes);
    seen.rate.push(mib(put) / began.elapsed().as_secs_f64());
    // Two ticks of the guard, so that the newest bytes are as old as the rest.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let logs = server.logs().iter().try_fold(0, |sum, path| resident(path).map(|bytes| sum + bytes))?;
    seen.resident.push(mib(logs));
    seen.read.push(mib(device_reads(server.pid())? - read));
    Ok(())
}

/// Returns the length of a window at a rate.
fn window_of(run: &BenchRun) -> Duration {
    Duration::from_secs(if run.quick { 3 } else { 12 })
}

/// Measures the guard's cost beside a server whose client puts this many bytes per second.
fn at_a_rate(run: &mut BenchRun, server: &mut dyn LoggedServer, config: &str, rate: u64) -> Result<()> {
    let length = window_of(run);
    run.note(&format!(
        "one server whose client puts {} MiB a second, and one guard throughout; windows of {} s, after one that does not count",
        rate / MIB,
        length.as_secs()
    ));
    // The guard identifies a server by a log that it has open.
    server.put(rate);
    let guard =
        RunningGuard::start(&run.pagekeeper, &["--pid", &server.pid().to_string(), "--config", config])?;
    let (mut put, mut percent) = (Vec::new(), Vec::new());
    for round in 0..=run.rounds {
        run.say("a window")?;
        let (before, began) = (cpu_seconds(guard.pid())?, Instant::now());
        let mut bytes = 0;
        for second in 1..=length.as_secs() {
            bytes += server.put(rate);
            run.stop.sleep(Duration::from_secs(second).saturating_sub(began.elapsed()))?;
        }
        let seconds = began.elapsed().as_secs_f64();
        if round > 0 {
            percent.push((cpu_seconds(guard.pid())? - before) / seconds * 100.0);
            put.push(bytes as f64 / MIB as f64 / seconds);
        }
    }
    let watched = guard.watched().context("the guard did not tick")?;
    run.note(&format!("{} log files were watched at the end", watched.files));
    guard.stop()?;
    server.check_all();
    if let Some(percent) = median(&percent) {
        run.report.ratios.insert("guard_server_cpu_percent", percent);
    }
    if put.iter().any(|seen| *seen < rate as f64 / MIB as f64 * 0.95) {
        run.note("the client did not come to its rate in each window");
    }
    let of = |subject, values| [SubjectSamples { subject, values }];
    run.report.add_case("bytes put and acknowledged", FigureUnit::MibPerSecond, &of("the client", put));
    run.report.add_case(
        "the guard's CPU beside the server",
        FigureUnit::PercentOfCore,
        &of(AFTER_START_NAME, percent),
    );
    Ok(())
}

/// Returns the bytes that a process has read from devices.
fn device_reads(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.and_then(|bytes| bytes.parse().ok()).unwrap_or_default())
}
