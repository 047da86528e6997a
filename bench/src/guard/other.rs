//! `guard --server NAME`: what the guard gives back of the log of one of the other servers, what it has the server read, and what
//! it costs its client: the same load with and without the guard in turn, on one server.
//!
//! A window is so many bytes that the client puts and has acknowledged. Residency is of all logs at its end, reads of the device
//! are the server's own in it, as the kernel counts them.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use pagekeeper_testing::servers::{
    Cassandra, Etcd, Kafka, LoggedServer, MariaDb, Nats, OpenSearch, PostgreSql, Prometheus, RabbitMq,
    WiredTiger,
};

use super::watcher::Watcher;
use super::{WITH, WITHOUT};
use crate::Run;
use crate::data::{GIB, MIB, resident};
use crate::peers::Program;
use crate::report::Unit;
use crate::rounds::Samples;

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// A table of `InnoDB`, and its binlog
    #[value(name = "mariadb")]
    MariaDb,
    /// A table of `MyRocks` in `MariaDB`, and RocksDB's log
    #[value(name = "myrocks")]
    MyRocks,
    /// A table of large values
    #[value(name = "postgresql")]
    PostgreSql,
    /// With its gateway of JSON as the client
    Etcd,
    /// Sent series by remote write
    Prometheus,
    /// A stream of `JetStream`
    Nats,
    /// A topic of one partition, kcat as the client; `PAGEKEEPER_KAFKA` names the directory of its jars
    Kafka,
    /// A quorum queue
    #[value(name = "rabbitmq")]
    RabbitMq,
    /// A table of large values; `PAGEKEEPER_CASSANDRA` names the directory of its jars
    Cassandra,
    /// An index of one shard; `PAGEKEEPER_OPENSEARCH` names the directory of its jars
    #[value(name = "opensearch")]
    OpenSearch,
    /// The engine of `MongoDB` by itself
    #[value(name = "wiredtiger")]
    WiredTiger,
}

impl Name {
    fn programs(self) -> Vec<String> {
        let names: &[&str] = match self {
            Self::PostgreSql => return PostgreSql::programs(),
            Self::MariaDb | Self::MyRocks => &MariaDb::PROGRAMS,
            Self::Etcd => &Etcd::PROGRAMS,
            Self::Prometheus => &Prometheus::PROGRAMS,
            Self::Nats => &Nats::PROGRAMS,
            Self::Kafka => &Kafka::PROGRAMS,
            Self::RabbitMq => &RabbitMq::PROGRAMS,
            Self::Cassandra => &Cassandra::PROGRAMS,
            Self::OpenSearch => &OpenSearch::PROGRAMS,
            Self::WiredTiger => &WiredTiger::PROGRAMS,
        };
        names.iter().copied().map(str::to_owned).collect()
    }

    fn start(self, home: &std::path::Path) -> Box<dyn LoggedServer> {
        match self {
            Self::MariaDb => Box::new(MariaDb::start(home)),
            Self::MyRocks => Box::new(MariaDb::with_myrocks(home)),
            Self::PostgreSql => Box::new(PostgreSql::start(home)),
            Self::Etcd => Box::new(Etcd::start(home)),
            Self::Prometheus => Box::new(Prometheus::start(home, None)),
            Self::Nats => Box::new(Nats::start(home, 4 * GIB)),
            Self::Kafka => Box::new(Kafka::start(home, 4 * GIB)),
            Self::RabbitMq => Box::new(RabbitMq::start(home)),
            Self::Cassandra => Box::new(Cassandra::start(home)),
            Self::OpenSearch => Box::new(OpenSearch::start(home)),
            Self::WiredTiger => Box::new(WiredTiger::start(home)),
        }
    }

    /// Bytes of a window: more than the guard leaves, and little enough for the server's memory.
    fn window(self) -> u64 {
        match self {
            Self::Etcd | Self::Prometheus | Self::RabbitMq => 64 * MIB,
            Self::MariaDb
            | Self::MyRocks
            | Self::PostgreSql
            | Self::Nats
            | Self::OpenSearch
            | Self::Cassandra
            | Self::WiredTiger => 192 * MIB,
            Self::Kafka => 384 * MIB,
        }
    }

    /// For a server that is a `java`: what names the directory of its jars, that, and how the jar of the server is called.
    fn jars(self) -> Option<(&'static str, Option<PathBuf>, &'static str)> {
        match self {
            Self::Kafka => Some(("PAGEKEEPER_KAFKA", Kafka::jars(), "kafka_")),
            Self::Cassandra => Some(("PAGEKEEPER_CASSANDRA", Cassandra::jars(), "cassandra-all-")),
            Self::OpenSearch => Some(("PAGEKEEPER_OPENSEARCH", OpenSearch::jars(), "opensearch-2")),
            _ => None,
        }
    }

    /// What the guard is configured to: NATS's streams have no budget by default, and all would stay.
    fn configuration(self) -> &'static str {
        match self {
            Self::Nats => "[rules.nats.messages]\nrule = \"budget\"\nbudget = \"64M\"\n",
            _ => "",
        }
    }
}

/// What windows of one kind came to.
#[derive(Debug, Default)]
struct Seen {
    rate: Vec<f64>,
    resident: Vec<f64>,
    read: Vec<f64>,
}

/// Runs it.
pub(crate) fn run(run: &mut Run, name: Name) -> Result<()> {
    let programs = name.programs();
    if let Some(missing) = programs.iter().find(|program| !Program::is_installed(program)) {
        bail!("{missing} is not installed");
    }
    if let Some(server) = Program::find_file("server", &programs[0]) {
        run.note(&format!("{} {}", programs[0], server.version));
    }
    if matches!(name, Name::MyRocks) && !MariaDb::has_myrocks() {
        bail!("MariaDB's plugin MyRocks is not installed: Debian's package mariadb-plugin-rocksdb");
    }
    if let Some((variable, jars, main)) = name.jars() {
        let Some(jars) = jars else {
            let server = name.to_possible_value().context("each server can be asked for")?;
            bail!(
                "{variable} names no directory of jars. This fetches them, and sets it:\n  \
                 eval \"$(scripts/fetch-servers.sh {})\"",
                server.get_name()
            );
        };
        let names = std::fs::read_dir(&jars)?.flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        for name in names.filter(|name| name.starts_with(main)) {
            run.note(&name);
        }
    }
    run.note("one server under one client; windows without the guard, and with it, in turn: what the first leaves is released in the second");
    run.say("a server")?;
    let config = run.scratch.path().join("guard.toml");
    std::fs::write(&config, name.configuration())?;
    let config = config.to_str().context("the scratch directory's name is no text")?;
    let mut server = name.start(&run.scratch.path().join("server"));
    let bytes = if run.quick { name.window() / 2 } else { name.window() };
    server.put(bytes);
    let (mut guarded, mut alone) = (Seen::default(), Seen::default());
    for _ in 0..if run.quick { run.rounds.min(3) } else { run.rounds } {
        run.say("a window without, and one with the guard")?;
        window(server.as_mut(), bytes, &mut alone)?;
        let pid = server.pid().to_string();
        let guard = Watcher::start(&run.pagekeeper, &["--pid", &pid, "--config", config])?;
        window(server.as_mut(), bytes, &mut guarded)?;
        guard.stop()?;
    }
    server.check_all();
    let pair = |with: &[f64], without: &[f64]| {
        [
            Samples { subject: WITH, values: with.to_vec() },
            Samples { subject: WITHOUT, values: without.to_vec() },
        ]
    };
    let rates = pair(&guarded.rate, &alone.rate);
    let report = &mut run.report;
    report.add_case("bytes put and acknowledged", Unit::MibPerSecond, &rates);
    report.add_ratio("guard_server_rate", Unit::MibPerSecond, &rates, WITH, WITHOUT);
    report.add_case(
        "logs in the page cache at a window's end",
        Unit::Mib,
        &pair(&guarded.resident, &alone.resident),
    );
    report.add_case("read from the device in a window", Unit::Mib, &pair(&guarded.read, &alone.read));
    Ok(())
}

fn window(server: &mut dyn LoggedServer, bytes: u64, seen: &mut Seen) -> Result<()> {
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let (read, began) = (device_reads(server.pid())?, Instant::now());
    let put = server.put(bytes);
    seen.rate.push(mib(put) / began.elapsed().as_secs_f64());
    // Two ticks of the guard: what was written last is as old as the rest then.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let logs = server.logs().iter().try_fold(0, |sum, path| resident(path).map(|bytes| sum + bytes))?;
    seen.resident.push(mib(logs));
    seen.read.push(mib(device_reads(server.pid())? - read));
    Ok(())
}

/// Bytes that a process has had read from a device.
fn device_reads(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.and_then(|bytes| bytes.parse().ok()).unwrap_or_default())
}
