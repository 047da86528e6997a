//! A node of `Cassandra` with one table, and a client of its native protocol (version 4).
//!
//! `PAGEKEEPER_CASSANDRA` names the directory of its jars; `scripts/fetch-servers.sh` fetches them.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::{Launcher, LoggedServer, SERVER_TIMEOUT, ServerProcess, files_below, text};
use crate::http::free_port;

/// Size of a value in bytes.
const CASSANDRA_VALUE_BYTES: usize = 128 << 10;
/// Opcodes of the protocol's requests.
const OPCODE_STARTUP: u8 = 1;
const OPCODE_QUERY: u8 = 7;

/// A running node.
#[derive(Debug)]
pub struct Cassandra {
    home: PathBuf,
    daemon: ServerProcess,
    settings: NodeSettings,
    client: CassandraClient,
    /// Number of values that were put and acknowledged.
    put: i64,
}

/// Settings for each start of the node.
#[derive(Debug)]
struct NodeSettings {
    ports: (u16, u16),
    launcher: Launcher,
    flushes: FlushMode,
}

/// When and how the node flushes its memtables to table files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// As late as memory allows, so that the log gets long; puts wait meanwhile.
    Late,
    /// At a third of the memtable memory, which is the default.
    Usual,
}

impl FlushMode {
    fn settings(self) -> &'static str {
        match self {
            Self::Late => {
                "memtable_heap_space: 400MiB\nmemtable_offheap_space: 400MiB\nmemtable_cleanup_threshold: 0.9\n"
            }
            Self::Usual => "memtable_heap_space: 256MiB\nmemtable_offheap_space: 256MiB\n",
        }
    }
}

/// A connection that sends a request and waits for the response.
#[derive(Debug)]
struct CassandraClient {
    to: TcpStream,
    from: BufReader<TcpStream>,
}

impl CassandraClient {
    fn connect(port: u16) -> Option<Self> {
        let to = TcpStream::connect(("127.0.0.1", port)).ok()?;
        to.set_read_timeout(Some(SERVER_TIMEOUT)).expect("set a time");
        to.set_nodelay(true).expect("set it to send at once");
        let from = BufReader::new(to.try_clone().expect("a second handle"));
        let mut client = Self { to, from };
        client.ask(OPCODE_STARTUP, b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0");
        Some(client)
    }

    fn ask(&mut self, what: u8, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![4, 0, 0, 0, what];
        frame.extend(length(body).to_be_bytes());
        frame.extend(body);
        self.to.write_all(&frame).expect("the node continues");
        let mut head = [0; 9];
        self.from.read_exact(&mut head).expect("the node continues");
        let [_, _, _, _, kind, size @ ..] = head;
        let mut answer = vec![0; usize::try_from(u32::from_be_bytes(size)).expect("a size")];
        self.from.read_exact(&mut answer).expect("the node continues");
        assert_ne!(kind, 0, "an error: {}", String::from_utf8_lossy(&answer));
        answer
    }

    /// Runs one statement with these values.
    fn run(&mut self, statement: &str, values: &[&[u8]]) -> Vec<u8> {
        let mut body = length(statement.as_bytes()).to_be_bytes().to_vec();
        body.extend(statement.as_bytes());
        // Consistency ONE; values follow.
        body.extend([0, 1, 1]);
        body.extend(u16::try_from(values.len()).expect("few values").to_be_bytes());
        for value in values {
            body.extend(length(value).to_be_bytes());
            body.extend(*value);
        }
        self.ask(OPCODE_QUERY, &body)
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("less than 4 GiB")
}

impl Cassandra {
    /// Programs that it needs.
    pub const REQUIRED_PROGRAMS: [&str; 2] = ["java", "setpriv"];

    /// The guard's configuration for this node. Its segments, and so the budget for resident pages,
    /// are a quarter of the default.
    pub const GUARD_RULES: &str = "[rules.cassandra.wal]\nrule = \"budget\"\nbudget = \"32M\"\n";

    /// Returns the directory of its jars.
    pub fn jars() -> Option<PathBuf> {
        std::env::var_os("PAGEKEEPER_CASSANDRA").map(PathBuf::from)
    }

    /// Starts a node with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path) -> Self {
        Self::start_by(home, Launcher::default(), FlushMode::Late)
    }

    /// Starts a node by a launcher.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_by(home: &Path, launcher: Launcher, flushes: FlushMode) -> Self {
        let settings = NodeSettings { ports: (free_port(), free_port()), launcher, flushes };
        let mut daemon = daemon(home, &settings);
        let mut client = connect(&mut daemon, &settings);
        let replicas = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
        client.run(&format!("CREATE KEYSPACE load WITH replication = {replicas}"), &[]);
        client.run(
            "CREATE TABLE load.load (number bigint PRIMARY KEY, value blob) WITH compression = {'enabled': false}",
            &[],
        );
        Self { home: home.to_owned(), daemon, settings, client, put: 0 }
    }
}

fn connect(daemon: &mut ServerProcess, settings: &NodeSettings) -> CassandraClient {
    daemon.wait_for("the node listens", || CassandraClient::connect(settings.ports.0))
}

/// The options that Cassandra's own start scripts pass to Java 17.
const JAVA_OPTIONS: &str = "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED
--add-exports=java.base/java.lang.ref=ALL-UNNAMED
--add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED
--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED
--add-exports=java.rmi/sun.rmi.server=ALL-UNNAMED
--add-exports=java.sql/java.sql=ALL-UNNAMED
--add-opens=java.base/java.io=ALL-UNNAMED
--add-opens=java.base/java.lang=ALL-UNNAMED
--add-opens=java.base/java.lang.module=ALL-UNNAMED
--add-opens=java.base/java.lang.reflect=ALL-UNNAMED
--add-opens=java.base/java.net=ALL-UNNAMED
--add-opens=java.base/java.nio=ALL-UNNAMED
--add-opens=java.base/java.util=ALL-UNNAMED
--add-opens=java.base/java.util.concurrent=ALL-UNNAMED
--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED
--add-opens=java.base/jdk.internal.loader=ALL-UNNAMED
--add-opens=java.base/jdk.internal.math=ALL-UNNAMED
--add-opens=java.base/jdk.internal.module=ALL-UNNAMED
--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED
--add-opens=java.base/jdk.internal.reflect=ALL-UNNAMED
--add-opens=java.base/jdk.internal.util.jar=ALL-UNNAMED
--add-opens=java.base/sun.nio.ch=ALL-UNNAMED
--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED
-Djdk.attach.allowAttachSelf=true
-Dcassandra-foreground=yes
-Dcassandra.superuser_setup_delay_ms=0
-Dcassandra.ring_delay_ms=1
-Dcassandra.skip_wait_for_gossip_to_settle=0
-Dcassandra.config=file:cassandra.yaml
-Dcassandra.storagedir=data
-Xmx1g";

fn daemon(home: &Path, settings: &NodeSettings) -> ServerProcess {
    std::fs::create_dir_all(home).expect("make a directory for a node");
    let data = home.join("data");
    let directory = |name: &str| data.join(name).display().to_string();
    let NodeSettings { ports: (client, peers), launcher, flushes } = settings;
    let settings = format!(
        "cluster_name: load\npartitioner: org.apache.cassandra.dht.Murmur3Partitioner\nendpoint_snitch: SimpleSnitch\n\
         listen_address: 127.0.0.1\nrpc_address: 127.0.0.1\nnative_transport_port: {client}\nstorage_port: {peers}\n\
         start_native_transport: true\nauto_snapshot: false\nnum_tokens: 1\nauto_bootstrap: false\n\
         commitlog_sync: periodic\ncommitlog_sync_period: 1000ms\ncommitlog_segment_size: 8MiB\n\
         write_request_timeout: 60000ms\nread_request_timeout: 60000ms\n{}\
         commitlog_directory: {}\nsaved_caches_directory: {}\nhints_directory: {}\ncdc_raw_directory: {}\n\
         data_file_directories: [{}]\n\
         seed_provider: [{{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{{seeds: '127.0.0.1:{peers}'}}]}}]\n",
        flushes.settings(),
        directory("commitlog"),
        directory("saved_caches"),
        directory("hints"),
        directory("cdc_raw"),
        directory("tables"),
    );
    std::fs::write(home.join("cassandra.yaml"), settings).expect("write its settings");
    let jars = Cassandra::jars().expect("PAGEKEEPER_CASSANDRA names the directory of Cassandra's jars");
    ServerProcess::start_by(launcher, home, "java", |command| {
        // The class path also leads to its configuration files, such as
        // commitlog_archiving.properties.
        command.args(JAVA_OPTIONS.split('\n')).arg("-cp").arg(format!(
            "{}:{}",
            jars.join("*").display(),
            home.display()
        ));
        command.arg("org.apache.cassandra.service.CassandraDaemon");
    })
}

impl LoggedServer for Cassandra {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        use std::os::unix::fs::MetadataExt as _;
        let mut segments = files_below(&self.home.join("data/commitlog"), |path| {
            path.extension().is_some_and(|end| end == "log")
        });
        // The next segment is created in advance, with nothing but a header.
        segments.retain(|path| path.metadata().is_ok_and(|segment| segment.blocks() * 512 >= 1 << 20));
        segments
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        Some(files_below(&self.home.join("data/tables/load"), |path| {
            path.to_string_lossy().ends_with("-Data.db")
        }))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let values = bytes.div_ceil(CASSANDRA_VALUE_BYTES as u64);
        for _ in 0..values {
            let value = text(self.put.unsigned_abs(), CASSANDRA_VALUE_BYTES);
            let statement = "INSERT INTO load.load (number, value) VALUES (?, ?)";
            self.client.run(statement, &[&self.put.to_be_bytes(), &value]);
            self.put += 1;
        }
        values * CASSANDRA_VALUE_BYTES as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, &self.settings);
        self.client = connect(&mut self.daemon, &self.settings);
    }

    fn check_all(&mut self) {
        for number in 0..self.put {
            let rows =
                self.client.run("SELECT value FROM load.load WHERE number = ?", &[&number.to_be_bytes()]);
            let is_there = rows.ends_with(&text(number.unsigned_abs(), CASSANDRA_VALUE_BYTES));
            assert!(is_there, "value {number} of {} is not as it was put", self.put);
        }
    }
}
