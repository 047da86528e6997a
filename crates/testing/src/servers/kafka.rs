//! A broker of `Kafka`, which is its own controller, with one topic of one partition, `load`. Its client is Debian's `kcat`.
//!
//! The broker's jars are in the directory that `PAGEKEEPER_KAFKA` names, as `make test-databases` fetches them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Daemon, LoggedServer, files_below, text};
use crate::http::free_port;

/// Bytes of a message.
const MESSAGE: usize = 100 << 10;
/// Of a segment of the log.
const SEGMENT: u64 = 16 << 20;

/// A running broker.
#[derive(Debug)]
pub struct Kafka {
    home: PathBuf,
    daemon: Daemon,
    ports: (u16, u16),
    /// How many messages were put and acknowledged.
    put: u64,
}

impl Kafka {
    /// Programs that it needs.
    pub const PROGRAMS: [&str; 3] = ["java", "kcat", "setpriv"];

    /// Where its jars are.
    pub fn jars() -> Option<PathBuf> {
        std::env::var_os("PAGEKEEPER_KAFKA").map(PathBuf::from)
    }

    /// Starts one with its data below `home`, which keeps so many bytes.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn start(home: &Path, kept: u64) -> Self {
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
             log.dirs={data}\nnum.partitions=1\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
             log.segment.bytes={SEGMENT}\nlog.retention.bytes={kept}\nlog.retention.check.interval.ms=1000\n\
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
        let mut server = Self { home: home.to_owned(), daemon: daemon(home), ports, put: 0 };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&mut self) {
        let ports = self.ports;
        self.daemon.wait_for("the broker answers", || {
            let said =
                kcat(ports).args(["-L", "-t", "load", "-m", "2"]).stderr(Stdio::null()).output().ok()?;
            // The first question makes the topic, or a partition has yet to find its leader.
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            (said.contains("with 1 partitions") && !said.contains("not available")).then_some(())
        });
    }

    /// How many messages were put.
    pub fn put_messages(&self) -> u64 {
        self.put
    }

    /// Reads what such a reader has to say.
    ///
    /// # Panics
    ///
    /// Where a message is not as it was put.
    pub fn check(reader: &mut Child, messages: u64) {
        let mut said = BufReader::new(reader.stdout.take().expect("piped"));
        let mut line = Vec::new();
        for number in 0..messages {
            line.clear();
            said.read_until(b'\n', &mut line).expect("kcat goes on");
            let message = line.strip_suffix(b"\n").unwrap_or(&line);
            assert!(message == text(number, MESSAGE), "message {number} is not as it was put");
        }
        assert!(reader.wait().expect("wait for kcat").success());
    }

    /// Begins to read from the first message on; who waits for it has to read what it says, or it lags.
    ///
    /// # Panics
    ///
    /// Where kcat does not start.
    pub fn reader(&self, messages: u64) -> Child {
        kcat(self.ports)
            .args(["-C", "-t", "load", "-p", "0", "-o", "beginning", "-q", "-c", &messages.to_string()])
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

fn daemon(home: &Path) -> Daemon {
    Daemon::start(home, "java", |command| {
        command.args(["-Xmx512m", "-cp", &class_path(), "kafka.Kafka", "server.properties"]);
    })
}

impl LoggedServer for Kafka {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        files_below(&self.home.join("data/load-0"), |path| path.extension().is_some_and(|end| end == "log"))
    }

    fn others(&self) -> Vec<PathBuf> {
        // The newest: of segments that are done with they are cut to what they hold.
        let all =
            files_below(&self.home.join("data/load-0"), |path| path.to_string_lossy().ends_with("index"));
        all.into_iter().rev().take(2).collect()
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let messages = bytes.div_ceil(MESSAGE as u64);
        let mut client = kcat(self.ports)
            .args(["-P", "-t", "load", "-p", "0", "-X", "acks=all"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("start kcat");
        let mut to = client.stdin.take().expect("piped");
        for number in self.put..self.put + messages {
            let mut line = text(number, MESSAGE);
            line.push(b'\n');
            to.write_all(&line).expect("kcat goes on");
        }
        drop(to);
        // It ends when all is acknowledged.
        assert!(client.wait().expect("wait for kcat").success());
        self.put += messages;
        messages * MESSAGE as u64
    }

    fn kill_and_restart(&mut self) {
        self.daemon.kill();
        self.daemon = daemon(&self.home);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        Self::check(&mut self.reader(self.put), self.put);
    }
}
