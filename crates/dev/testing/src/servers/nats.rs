//! A `nats-server` with `JetStream` on a file store, and a client of its text protocol.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::{LoggedServer, SERVER_TIMEOUT, ServerProcess, files_below, text};
use crate::http::free_port;

/// Size of a message in bytes. A block of a stream has about 8 MB.
const NATS_MESSAGE_BYTES: usize = 128 << 10;
/// Maximum number of messages that wait for their acknowledgement.
const UNACKNOWLEDGED_MAX: u64 = 64;

/// A running `nats-server` with one stream, `load`.
#[derive(Debug)]
pub struct Nats {
    home: PathBuf,
    daemon: ServerProcess,
    port: u16,
    client: NatsClient,
    /// Number of messages that were put and acknowledged.
    put: u64,
}

/// A connection that waits for answers in one inbox.
#[derive(Debug)]
struct NatsClient {
    to: TcpStream,
    from: BufReader<TcpStream>,
}

impl NatsClient {
    fn connect(port: u16) -> Option<Self> {
        let mut to = TcpStream::connect(("127.0.0.1", port)).ok()?;
        to.set_read_timeout(Some(SERVER_TIMEOUT)).expect("set a time");
        let from = BufReader::new(to.try_clone().expect("a second handle"));
        to.write_all(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB inbox 1\r\n").ok()?;
        Some(Self { to, from })
    }

    fn send(&mut self, subject: &str, body: &[u8]) {
        let head = format!("PUB {subject} inbox {}\r\n", body.len());
        let mut line = head.into_bytes();
        line.extend(body);
        line.extend(b"\r\n");
        self.to.write_all(&line).expect("nats-server runs");
    }

    /// Receives the next message in the inbox.
    fn receive(&mut self) -> Vec<u8> {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.from.read_line(&mut line).expect("nats-server continues") > 0, "it hung up");
            assert!(!line.starts_with("-ERR"), "{line}");
            if line.starts_with("PING") {
                self.to.write_all(b"PONG\r\n").expect("nats-server runs");
            } else if line.starts_with("MSG") || line.starts_with("HMSG") {
                let length = line.split_whitespace().last().and_then(|length| length.parse().ok());
                let mut body = vec![0; length.expect("a length")];
                self.from.read_exact(&mut body).expect("nats-server continues");
                self.from.read_line(&mut line).expect("nats-server continues");
                return body;
            }
        }
    }

    fn ask(&mut self, subject: &str, body: &str) -> String {
        self.send(subject, body.as_bytes());
        let answer = String::from_utf8(self.receive()).expect("text");
        assert!(!answer.contains("\"error\""), "{subject}: {answer}");
        answer
    }
}

impl Nats {
    /// Programs that it needs.
    pub const REQUIRED_PROGRAMS: [&str; 2] = ["nats-server", "setpriv"];

    /// Starts a server with its data below `home`, and creates the stream, which retains `kept`
    /// bytes.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path, kept: u64) -> Self {
        let port = free_port();
        let mut daemon = daemon(home, port);
        let mut client = daemon.wait_for("nats-server answers", || NatsClient::connect(port));
        let stream = "{\"name\":\"load\",\"subjects\":[\"load\"],\"storage\":\"file\",\"retention\":\"limits\",\
                      \"num_replicas\":1,\"discard\":\"old\"";
        client.ask("$JS.API.STREAM.CREATE.load", &format!("{stream},\"max_bytes\":{kept}}}"));
        Self { home: home.to_owned(), daemon, port, client, put: 0 }
    }

    /// Creates a pull consumer that begins with the first message.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn make_reader(&mut self) {
        self.client.ask(
            "$JS.API.CONSUMER.DURABLE.CREATE.load.reader",
            "{\"stream_name\":\"load\",\"config\":{\"durable_name\":\"reader\",\"deliver_policy\":\"all\",\
             \"ack_policy\":\"none\",\"replay_policy\":\"instant\"}}",
        );
    }

    /// Reads the next messages through that consumer.
    ///
    /// # Panics
    ///
    /// If one is not as it was put.
    pub fn read(&mut self, messages: std::ops::Range<u64>) {
        for number in messages {
            self.client.send("$JS.API.CONSUMER.MSG.NEXT.load.reader", b"");
            assert!(
                self.client.receive() == text(number, NATS_MESSAGE_BYTES),
                "message {number} is not as it was put"
            );
        }
    }

    /// Returns the number of messages that were put.
    pub fn put_messages(&self) -> u64 {
        self.put
    }
}

fn daemon(home: &Path, port: u16) -> ServerProcess {
    std::fs::create_dir_all(home).expect("make a directory for nats-server");
    let text = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n", home.display());
    std::fs::write(home.join("nats.conf"), text).expect("write its configuration");
    ServerProcess::start(home, "nats-server", |command| {
        command.args(["-c", "nats.conf"]);
    })
}

impl LoggedServer for Nats {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        let mut blocks = files_below(&self.home.join("jetstream"), |path| {
            path.extension().is_some_and(|end| end == "blk")
        });
        // 10.blk comes after 9.blk.
        blocks.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        blocks
    }

    /// Returns `None`: the blocks of a stream are both its data and its log.
    fn others(&self) -> Option<Vec<PathBuf>> {
        None
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let messages = bytes.div_ceil(NATS_MESSAGE_BYTES as u64);
        let mut waiting = 0;
        for sent in 0..messages {
            self.client.send("load", &text(self.put + sent, NATS_MESSAGE_BYTES));
            waiting += 1;
            if waiting == UNACKNOWLEDGED_MAX {
                waiting -= self.acknowledged();
            }
        }
        while waiting > 0 {
            waiting -= self.acknowledged();
        }
        self.put += messages;
        messages * NATS_MESSAGE_BYTES as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.port);
        let port = self.port;
        self.client = self.daemon.wait_for("nats-server answers", || NatsClient::connect(port));
        // The stream is available a little later.
        let client = &mut self.client;
        self.daemon.wait_for("the stream is there", || {
            client.send("$JS.API.STREAM.INFO.load", b"");
            let answer = client.receive();
            (!answer.is_empty() && !String::from_utf8_lossy(&answer).contains("\"error\"")).then_some(())
        });
    }

    fn check_all(&mut self) {
        let answer = self.client.ask("$JS.API.STREAM.INFO.load", "");
        assert!(
            answer.contains(&format!("\"messages\":{},", self.put)),
            "not {} messages: {answer}",
            self.put
        );
    }
}

impl Nats {
    /// Waits for one acknowledgement. Returns 1.
    fn acknowledged(&mut self) -> u64 {
        let answer = String::from_utf8(self.client.receive()).expect("text");
        assert!(answer.contains("\"seq\"") && !answer.contains("\"error\""), "{answer}");
        1
    }
}
