//! An `etcd` with one member. The client uses its JSON gateway.

use std::io::Read as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;

use super::{LoggedServer, SERVER_TIMEOUT, ServerProcess, files_below, text};
use crate::http::{ask_with, free_port, send};

/// Size of a value in bytes. A segment of the log has about 64 MB.
const ETCD_VALUE_BYTES: usize = 512 << 10;

/// A running `etcd`.
#[derive(Debug)]
pub struct Etcd {
    home: PathBuf,
    daemon: ServerProcess,
    client: u16,
    peer: u16,
    /// Number of values that were put and acknowledged.
    put: u64,
}

/// A watch on keys, from the first revision on.
#[derive(Debug)]
pub struct KeyWatch(TcpStream);

impl Etcd {
    /// Programs that it needs.
    pub const REQUIRED_PROGRAMS: [&str; 2] = ["etcd", "setpriv"];

    /// Starts a member with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path) -> Self {
        let (client, peer) = (free_port(), free_port());
        let daemon = daemon(home, client, peer);
        let mut server = Self { home: home.to_owned(), daemon, client, peer, put: 0 };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&mut self) {
        let port = self.client;
        self.daemon.wait_for("etcd answers", || {
            ask_with(port, "GET", "/health", &[], &[]).filter(|answer| answer.body.contains("true"))
        });
    }

    fn ask(&self, path: &str, body: &str) -> String {
        let answer = ask_with(self.client, "POST", path, &[], body.as_bytes()).expect("etcd runs");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Puts one small value.
    ///
    /// # Panics
    ///
    /// If it is refused.
    pub fn put_small(&self, key: &str, value: &str) {
        let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
        self.ask("/v3/kv/put", &format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}"));
    }

    /// Compacts away the history of all values, so that their space is reused.
    ///
    /// # Panics
    ///
    /// If it is refused.
    pub fn compact(&self) {
        let text = self.ask("/v3/kv/range", &format!("{{\"key\":\"{}\"}}", STANDARD.encode("none")));
        let revision = text.split("\"revision\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let revision = revision.expect("each answer says at which revision it is");
        self.ask("/v3/kv/compaction", &format!("{{\"revision\":\"{revision}\",\"physical\":true}}"));
    }

    /// Watches all keys with this prefix from the first revision on. Events wait in the connection
    /// until they are read.
    ///
    /// # Panics
    ///
    /// If the watch cannot be created.
    pub fn watch(&self, prefix: &str) -> KeyWatch {
        let mut end = prefix.as_bytes().to_owned();
        *end.last_mut().expect("a prefix") += 1;
        let (from, to) = (STANDARD.encode(prefix), STANDARD.encode(end));
        let request = format!(
            "{{\"create_request\":{{\"key\":\"{from}\",\"range_end\":\"{to}\",\"start_revision\":\"1\"}}}}"
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.client)).expect("etcd runs");
        stream.set_read_timeout(Some(SERVER_TIMEOUT)).expect("set a time");
        send(&mut stream, self.client, "POST", "/v3/watch", &[], request.as_bytes()).expect("etcd listens");
        KeyWatch(stream)
    }
}

impl KeyWatch {
    /// Reads until this many changes have come.
    ///
    /// # Panics
    ///
    /// If they do not come.
    pub fn read(&mut self, changes: usize) {
        const CHANGE_MARKER: &str = "\"mod_revision\"";
        let mut said = String::new();
        let mut piece = [0; 1 << 13];
        while said.matches(CHANGE_MARKER).count() < changes {
            let count = self.0.read(&mut piece).expect("etcd continues");
            assert!(count > 0, "it ended after {} of {changes}", said.matches(CHANGE_MARKER).count());
            said.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
    }
}

fn daemon(home: &Path, client: u16, peer: u16) -> ServerProcess {
    let url = |port| format!("http://127.0.0.1:{port}");
    ServerProcess::start(home, "etcd", |command| {
        command.args(["--data-dir", "data", "--quota-backend-bytes", "8000000000"]);
        command.args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)]);
        command.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
        command.args(["--initial-cluster", &format!("default={}", url(peer)), "--log-level", "error"]);
    })
}

fn key(number: u64) -> String {
    STANDARD.encode(format!("load/{number}"))
}

fn value(number: u64) -> String {
    STANDARD.encode(text(number, ETCD_VALUE_BYTES))
}

impl LoggedServer for Etcd {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        files_below(&self.home.join("data/member/wal"), |path| {
            path.extension().is_some_and(|end| end == "wal")
        })
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        Some(files_below(&self.home.join("data/member/snap"), |path| path.ends_with("db")))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let values = bytes.div_ceil(ETCD_VALUE_BYTES as u64);
        for _ in 0..values {
            let (key, value) = (key(self.put), value(self.put));
            self.ask("/v3/kv/put", &format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}"));
            self.put += 1;
        }
        values * ETCD_VALUE_BYTES as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.client, self.peer);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        for number in 0..self.put {
            let found = self.ask("/v3/kv/range", &format!("{{\"key\":\"{}\"}}", key(number)));
            assert!(found.contains(&value(number)), "value {number} of {} is not as it was put", self.put);
        }
    }
}
