//! A `rabbitmq-server` with one queue, `load`: a quorum queue with one member. The server is
//! Debian's, or one unpacked together with its Erlang in the folder that `PAGEKEEPER_RABBITMQ_ROOT`
//! names; `scripts/fetch-servers.sh` fetches it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::amqp::AmqpConnection;
use super::{LoggedServer, ServerProcess, files_below, text, unpacked};
use crate::http::free_port;

/// Size of a message in bytes.
const RABBITMQ_MESSAGE_BYTES: usize = 128 << 10;
/// Maximum number of messages that wait for their confirm.
const UNCONFIRMED_MAX: u64 = 64;
const QUEUE_NAME: &str = "load";

/// A running server.
#[derive(Debug)]
pub struct RabbitMq {
    home: PathBuf,
    /// A private epmd for this server.
    _mapper: ServerProcess,
    daemon: ServerProcess,
    ports: ServerPorts,
    /// Number of messages that were put and confirmed.
    put: u64,
    /// Number of those that a reader took.
    taken: u64,
    client: AmqpConnection,
    /// Number of messages that this client published.
    published: u64,
}

#[derive(Debug, Clone, Copy)]
struct ServerPorts {
    mapper: u16,
    client: u16,
    distribution: u16,
}

impl RabbitMq {
    /// Returns the programs that the server needs. For Debian's server, the first one has its
    /// version.
    pub fn programs() -> &'static [&'static str] {
        if Self::unpacked().is_some() {
            &["epmd", "setpriv", "unshare", "mount", "chroot", "sh"]
        } else {
            &["rabbitmqctl", SERVER_SCRIPT, "epmd", "setpriv"]
        }
    }

    /// Returns the folder of the unpacked server, or `None` for Debian's.
    pub fn unpacked() -> Option<PathBuf> {
        unpacked::folder("PAGEKEEPER_RABBITMQ_ROOT")
    }

    /// Starts a server with its data below `home`, and declares the quorum queue.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path) -> Self {
        let ports = ServerPorts { mapper: free_port(), client: free_port(), distribution: free_port() };
        let mapper = ServerProcess::start(&home.join("epmd"), "epmd", |command| {
            command.args(["-address", "127.0.0.1", "-port", &ports.mapper.to_string()]);
        });
        let mut daemon = daemon(home, ports);
        let client = connect(&mut daemon, ports);
        Self { home: home.to_owned(), _mapper: mapper, daemon, ports, put: 0, taken: 0, client, published: 0 }
    }

    /// Takes this many messages from the head of the queue, one at a time.
    ///
    /// # Panics
    ///
    /// If one is not as it was put.
    pub fn take(&mut self, messages: u64) {
        let mut reader = AmqpConnection::connect(self.ports.client).expect("rabbitmq-server runs");
        reader.consume(QUEUE_NAME, 1);
        let end = self.taken + messages;
        while self.taken < end {
            let (tag, body) = reader.deliver();
            let number = number_of(&body);
            assert!(body == message(number), "message {number} is not as it was put");
            assert!(number <= self.taken, "message {} was left out", self.taken);
            reader.acknowledge(tag);
            // Messages that were acknowledged just before the reader closed, or the server was
            // killed, may come again.
            self.taken = self.taken.max(number + 1);
        }
    }

    /// Returns the number of messages in the queue.
    pub fn waiting(&self) -> u64 {
        self.put - self.taken
    }
}

/// The script itself: the one in `PATH` refuses to run as root.
const SERVER_SCRIPT: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Returns a message: its number, and text.
fn message(number: u64) -> Vec<u8> {
    [number.to_be_bytes().to_vec(), text(number, RABBITMQ_MESSAGE_BYTES - 8)].concat()
}

fn number_of(message: &[u8]) -> u64 {
    u64::from_be_bytes(*message.first_chunk().expect("a number"))
}

fn daemon(home: &Path, ports: ServerPorts) -> ServerProcess {
    unpacked::make_home(home);
    let run = home.join("run");
    std::fs::write(run.join("plugins"), "[].\n").expect("write that it has no plug-ins");
    // Load elsewhere on the machine must not raise its alarms.
    let settings = "vm_memory_high_watermark.relative = 0.8\ndisk_free_limit.absolute = 50MB\n";
    std::fs::write(run.join("rabbitmq.conf"), settings).expect("write its settings");
    let Some(unpacked) = RabbitMq::unpacked() else {
        return ServerProcess::start(home, SERVER_SCRIPT, |command| set_up(command, home, ports));
    };
    let mut command = unpacked::enter(&unpacked, home);
    set_up(&mut command, Path::new("/"), ports);
    command.arg(SERVER_SCRIPT);
    ServerProcess::spawn(home, command)
}

/// Sets the server's environment; `home` is the path as the server sees it.
fn set_up(command: &mut Command, home: &Path, ports: ServerPorts) {
    let run = home.join("run");
    command.env("HOME", &run).env("RABBITMQ_MNESIA_BASE", home.join("data"));
    command.env("RABBITMQ_LOG_BASE", run.join("logs"));
    command.env("RABBITMQ_NODENAME", "rabbit@localhost").env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1");
    command.env("RABBITMQ_NODE_PORT", ports.client.to_string());
    command.env("RABBITMQ_DIST_PORT", ports.distribution.to_string());
    command.env("ERL_EPMD_PORT", ports.mapper.to_string());
    command.env("RABBITMQ_CONFIG_FILE", run.join("rabbitmq.conf"));
    command.env("RABBITMQ_ENABLED_PLUGINS_FILE", run.join("plugins"));
    // As the script does it, but without a shell.
    command.env("RUNNING_UNDER_SYSTEMD", "true");
}

fn connect(daemon: &mut ServerProcess, ports: ServerPorts) -> AmqpConnection {
    let mut client = daemon.wait_for("rabbitmq-server listens", || AmqpConnection::connect(ports.client));
    client.declare(QUEUE_NAME);
    client.confirm();
    client
}

impl LoggedServer for RabbitMq {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        files_below(&self.home.join("data"), |path| path.extension().is_some_and(|end| end == "wal"))
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        Some(files_below(&self.home.join("data"), |path| {
            path.extension().is_some_and(|end| end == "segment" || end == "rdq" || end == "dets")
        }))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let messages = bytes.div_ceil(RABBITMQ_MESSAGE_BYTES as u64);
        let first = self.published;
        let mut confirmed = first;
        while confirmed < first + messages {
            while self.published < (confirmed + UNCONFIRMED_MAX).min(first + messages) {
                self.client.publish(QUEUE_NAME, &message(self.put + self.published - first));
                self.published += 1;
            }
            confirmed = confirmed.max(self.client.confirmed());
        }
        self.put += messages;
        messages * RABBITMQ_MESSAGE_BYTES as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.ports);
        self.client = connect(&mut self.daemon, self.ports);
        self.published = 0;
    }

    fn check_all(&mut self) {
        // Unacknowledged messages return to the queue when the reader closes.
        let mut reader = AmqpConnection::connect(self.ports.client).expect("rabbitmq-server runs");
        reader.consume(QUEUE_NAME, 0);
        let mut missing: BTreeSet<u64> = (self.taken..self.put).collect();
        while !missing.is_empty() {
            let (_, body) = reader.deliver();
            let number = number_of(&body);
            assert!(body == message(number), "message {number} is not as it was put");
            missing.remove(&number);
        }
    }
}
