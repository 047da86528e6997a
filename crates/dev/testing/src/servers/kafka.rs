//! A broker of `Kafka` that is also its controller, with one topic, `load`, of one or more
//! partitions. The client is Debian's `kcat`.
//!
//! `PAGEKEEPER_KAFKA` names the directory of the broker's jars; `scripts/fetch-servers.sh` fetches
//! them.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::{LoggedServer, ServerProcess, files_below, text};
use crate::http::free_port;

/// Size of a message in bytes.
const KAFKA_MESSAGE_BYTES: usize = 100 << 10;
/// Size of a log segment in bytes: for one partition, and for several.
const SEGMENT_BYTES: (u64, u64) = (16 << 20, 2 << 20);

/// A running broker.
#[derive(Debug)]
pub struct Kafka {
    home: PathBuf,
    daemon: ServerProcess,
    ports: (u16, u16),
    partitions: u32,
    /// Number of messages that were put and acknowledged.
    put: u64,
}

impl Kafka {
    /// Programs that it needs.
    pub const REQUIRED_PROGRAMS: [&str; 3] = ["java", "kcat", "setpriv"];

    /// Returns the directory of its jars.
    pub fn jars() -> Option<PathBuf> {
        std::env::var_os("PAGEKEEPER_KAFKA").map(PathBuf::from)
    }

    /// Starts a broker with its data below `home`, which retains `kept` bytes.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path, kept: u64) -> Self {
        Self::with_partitions(home, kept, 1, None)
    }

    /// Starts a broker as [`Self::start`] does, with a topic of several partitions. It retains
    /// `kept` bytes of each. `segment` is the size of a log segment in bytes; the default for
    /// several partitions is small, so that segments are soon complete.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn with_partitions(home: &Path, kept: u64, partitions: u32, segment: Option<u64>) -> Self {
        let segment = segment.unwrap_or(if partitions == 1 { SEGMENT_BYTES.0 } else { SEGMENT_BYTES.1 });
        let ports = (free_port(), free_port());
        let data = home.join("data");
        std::fs::create_dir_all(&data).expect("make a directory for a broker");
        let settings = format!(
            "process.roles=broker,controller\nnode.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{client}\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n\
             log.dirs={data}\nnum.partitions={partitions}\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
             log.segment.bytes={segment}\nlog.retention.bytes={kept}\nlog.retention.check.interval.ms=1000\n\
             log.segment.delete.delay.ms=1000\n",
            client = ports.0,
            controller = ports.1,
            data = data.display()
        );
        std::fs::write(home.join("server.properties"), settings).expect("write its settings");
        let said = Command::new("java")
            .args(["-cp", &class_path(), "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk"])
            .args(["-c", "server.properties"])
            .current_dir(home)
            .output()
            .expect("start java");
        assert!(said.status.success(), "{said:?}");
        let mut server = Self { home: home.to_owned(), daemon: daemon(home), ports, partitions, put: 0 };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&mut self) {
        let ports = self.ports;
        let all = format!("with {} partitions", self.partitions);
        self.daemon.wait_for("the broker answers", || {
            let said =
                kcat(ports).args(["-L", "-t", "load", "-m", "2"]).stderr(Stdio::null()).output().ok()?;
            // The first request creates the topic, or a partition has no leader yet.
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            (said.contains(&all) && !said.contains("not available")).then_some(())
        });
    }

    /// Returns the number of messages that were put.
    pub fn put_messages(&self) -> u64 {
        self.put
    }

    /// Checks the output of a reader: each message comes once, and those of a partition in the
    /// order in which they were put.
    ///
    /// # Panics
    ///
    /// If a message is not as it was put.
    pub fn check(reader: &mut Child, messages: u64) {
        let mut said = BufReader::new(reader.stdout.take().expect("piped"));
        let mut line = Vec::new();
        // The next message number that may come, by partition.
        let mut next: HashMap<u64, u64> = HashMap::new();
        let mut seen: HashSet<u64> = HashSet::new();
        for _ in 0..messages {
            line.clear();
            said.read_until(b'\n', &mut line).expect("kcat continues");
            let mut parts = line.strip_suffix(b"\n").unwrap_or(&line).splitn(3, |byte| *byte == b' ');
            let mut figure = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
            let (partition, number) = figure().zip(figure()).expect("a partition, and a number as the key");
            assert!(
                parts.next() == Some(&text(number, KAFKA_MESSAGE_BYTES)),
                "message {number} is not as it was put"
            );
            let next = next.entry(partition).or_default();
            assert!(number >= *next, "message {number} of partition {partition} came before {next}");
            *next = number + 1;
            assert!(number < messages && seen.insert(number), "message {number} was not awaited");
        }
        assert!(reader.wait().expect("wait for kcat").success());
    }

    /// Starts a reader from the first message on. Unless the caller reads its output, it lags.
    ///
    /// # Panics
    ///
    /// If kcat does not start.
    pub fn reader(&self, messages: u64) -> Child {
        kcat(self.ports)
            .args([
                "-C",
                "-t",
                "load",
                "-o",
                "beginning",
                "-q",
                "-c",
                &messages.to_string(),
                "-f",
                "%p %k %s\\n",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .expect("start kcat")
    }
}

fn class_path() -> String {
    let jars = Kafka::jars().expect("PAGEKEEPER_KAFKA names the directory of Kafka's jars");
    format!("{}/*", jars.display())
}

fn kcat(ports: (u16, u16)) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig=KILL", "--", "kcat", "-b"])
        .arg(format!("127.0.0.1:{}", ports.0))
        .stdin(Stdio::null());
    command
}

fn daemon(home: &Path) -> ServerProcess {
    ServerProcess::start(home, "java", |command| {
        command.args(["-Xmx512m", "-cp", &class_path(), "kafka.Kafka", "server.properties"]);
    })
}

impl LoggedServer for Kafka {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        // Only the topic's segments: the controller's log is beside them.
        let data = self.home.join("data");
        let is_segment = |path: &Path| path.extension().is_some_and(|end| end == "log");
        let partitions = (0..self.partitions).map(|number| data.join(format!("load-{number}")));
        partitions.flat_map(|partition| files_below(&partition, is_segment)).collect()
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        // The newest one may still be empty.
        Some(files_below(&self.home.join("data/load-0"), |path| path.to_string_lossy().ends_with("index")))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let messages = bytes.div_ceil(KAFKA_MESSAGE_BYTES as u64);
        let mut client = kcat(self.ports)
            // The key, which chooses the partition, is the message number. The producer is
            // idempotent: retries, such as those without a partition leader, cause neither
            // duplicates nor reordering. The limits bound the memory of the client.
            .args([
                "-P",
                "-t",
                "load",
                "-K",
                " ",
                "-X",
                "acks=all",
                "-X",
                "enable.idempotence=true",
                "-X",
                "queue.buffering.max.kbytes=262144",
            ])
            .stdin(Stdio::piped())
            .spawn()
            .expect("start kcat");
        let mut to = client.stdin.take().expect("piped");
        for number in self.put..self.put + messages {
            let mut line = format!("{number} ").into_bytes();
            line.extend(text(number, KAFKA_MESSAGE_BYTES));
            line.push(b'\n');
            to.write_all(&line).expect("kcat continues");
        }
        drop(to);
        // kcat exits once everything is acknowledged.
        assert!(client.wait().expect("wait for kcat").success());
        self.put += messages;
        messages * KAFKA_MESSAGE_BYTES as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        Self::check(&mut self.reader(self.put), self.put);
    }
}
