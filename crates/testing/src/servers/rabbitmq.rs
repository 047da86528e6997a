//! A `rabbitmq-server` with one queue, `load`: a quorum queue of one member. It is Debian's, or the one that is unpacked, with its Erlang,
//! in the folder that `PAGEKEEPER_RABBITMQ_ROOT` names, as `scripts/fetch-servers.sh` fetches it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::amqp::Amqp;
use super::{Daemon, LoggedServer, files_below, text, unpacked};
use crate::http::free_port;

/// Bytes of a message.
const MESSAGE: usize = 128 << 10;
/// Messages that wait for their confirmation at most.
const UNCONFIRMED: u64 = 64;
const QUEUE: &str = "load";

/// A running server.
#[derive(Debug)]
pub struct RabbitMq {
    home: PathBuf,
    /// Who says on which port a server of Erlang is; of this one alone.
    _mapper: Daemon,
    daemon: Daemon,
    ports: Ports,
    /// How many messages were put and confirmed.
    put: u64,
    /// How many of them a reader took.
    taken: u64,
    client: Amqp,
    /// Messages that this client published.
    published: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    mapper: u16,
    client: u16,
    distribution: u16,
}

impl RabbitMq {
    /// Programs that it needs, the first of them with its version where it is Debian's.
    pub fn programs() -> &'static [&'static str] {
        if Self::unpacked().is_some() {
            &["epmd", "setpriv", "unshare", "mount", "chroot", "sh"]
        } else {
            &["rabbitmqctl", SCRIPT, "epmd", "setpriv"]
        }
    }

    /// The folder that it is unpacked in, if it is not Debian's.
    pub fn unpacked() -> Option<PathBuf> {
        unpacked::folder("PAGEKEEPER_RABBITMQ_ROOT")
    }

    /// Starts one with its data below `home`, and makes the queue, which is a quorum queue.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn start(home: &Path) -> Self {
        let ports = Ports { mapper: free_port(), client: free_port(), distribution: free_port() };
        let mapper = Daemon::start(&home.join("epmd"), "epmd", |command| {
            command.args(["-address", "127.0.0.1", "-port", &ports.mapper.to_string()]);
        });
        let mut daemon = daemon(home, ports);
        let client = connect(&mut daemon, ports);
        Self { home: home.to_owned(), _mapper: mapper, daemon, ports, put: 0, taken: 0, client, published: 0 }
    }

    /// Takes so many messages from the queue's head, by a reader that has none ahead.
    ///
    /// # Panics
    ///
    /// Where one is not as it was put.
    pub fn take(&mut self, messages: u64) {
        let mut reader = Amqp::connect(self.ports.client).expect("rabbitmq-server runs");
        reader.consume(QUEUE, 1);
        let end = self.taken + messages;
        while self.taken < end {
            let (tag, body) = reader.deliver();
            let number = number_of(&body);
            assert!(body == message(number), "message {number} is not as it was put");
            assert!(number <= self.taken, "message {} was left out", self.taken);
            reader.acknowledge(tag);
            // What was acknowledged last, before its reader went or the server was killed, may come again.
            self.taken = self.taken.max(number + 1);
        }
    }

    /// How many messages wait in the queue.
    pub fn waiting(&self) -> u64 {
        self.put - self.taken
    }
}

/// The script, by its own name: the one in the path refuses to be run by root.
const SCRIPT: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Its number, and text.
fn message(number: u64) -> Vec<u8> {
    [number.to_be_bytes().to_vec(), text(number, MESSAGE - 8)].concat()
}

fn number_of(message: &[u8]) -> u64 {
    u64::from_be_bytes(*message.first_chunk().expect("a number"))
}

fn daemon(home: &Path, ports: Ports) -> Daemon {
    unpacked::make_home(home);
    let run = home.join("run");
    std::fs::write(run.join("plugins"), "[].\n").expect("write that it has no plug-ins");
    // One that has much to do elsewhere is still itself.
    let settings = "vm_memory_high_watermark.relative = 0.8\ndisk_free_limit.absolute = 50MB\n";
    std::fs::write(run.join("rabbitmq.conf"), settings).expect("write its settings");
    let Some(unpacked) = RabbitMq::unpacked() else {
        return Daemon::start(home, SCRIPT, |command| set_up(command, home, ports));
    };
    let mut command = unpacked::enter(&unpacked, home);
    set_up(&mut command, Path::new("/"), ports);
    command.arg(SCRIPT);
    Daemon::spawn(home, command)
}

/// Its environment; `home` is where it sees its own.
fn set_up(command: &mut Command, home: &Path, ports: Ports) {
    let run = home.join("run");
    command.env("HOME", &run).env("RABBITMQ_MNESIA_BASE", home.join("data"));
    command.env("RABBITMQ_LOG_BASE", run.join("logs"));
    command.env("RABBITMQ_NODENAME", "rabbit@localhost").env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1");
    command.env("RABBITMQ_NODE_PORT", ports.client.to_string());
    command.env("RABBITMQ_DIST_PORT", ports.distribution.to_string());
    command.env("ERL_EPMD_PORT", ports.mapper.to_string());
    command.env("RABBITMQ_CONFIG_FILE", run.join("rabbitmq.conf"));
    command.env("RABBITMQ_ENABLED_PLUGINS_FILE", run.join("plugins"));
    // In the place of the script, and without a shell.
    command.env("RUNNING_UNDER_SYSTEMD", "true");
}

fn connect(daemon: &mut Daemon, ports: Ports) -> Amqp {
    let mut client = daemon.wait_for("rabbitmq-server listens", || Amqp::connect(ports.client));
    client.declare(QUEUE);
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
        let messages = bytes.div_ceil(MESSAGE as u64);
        let first = self.published;
        let mut confirmed = first;
        while confirmed < first + messages {
            while self.published < (confirmed + UNCONFIRMED).min(first + messages) {
                self.client.publish(QUEUE, &message(self.put + self.published - first));
                self.published += 1;
            }
            confirmed = confirmed.max(self.client.confirmed());
        }
        self.put += messages;
        messages * MESSAGE as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.ports);
        self.client = connect(&mut self.daemon, self.ports);
        self.published = 0;
    }

    fn check_all(&mut self) {
        // What it does not acknowledge is in the queue again when it has gone.
        let mut reader = Amqp::connect(self.ports.client).expect("rabbitmq-server runs");
        reader.consume(QUEUE, 0);
        let mut missing: BTreeSet<u64> = (self.taken..self.put).collect();
        while !missing.is_empty() {
            let (_, body) = reader.deliver();
            let number = number_of(&body);
            assert!(body == message(number), "message {number} is not as it was put");
            missing.remove(&number);
        }
    }
}
