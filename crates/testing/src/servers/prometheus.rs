//! A `prometheus` that is sent series by remote write, and may send them on to another one.
//!
//! A series of the load has one sample, which stays in memory until its chunk is full; so one more series fills chunks, as series do that
//! go on, and there are some in a file that is mapped.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use super::{Daemon, LoggedServer, files_below, text};
use crate::http::{ask, ask_with, free_port};

/// Bytes of a label: a series is written to the log with all of its labels once.
const LABEL: usize = 1000;
/// Series in one request.
const SERIES: u64 = 500;
/// The name of all series of the load.
const LOAD: &str = "load";
/// ... of the one that shows that series are sent on ...
const BEGUN: &str = "begun";
/// ... and of the one that fills chunks.
const FILLS: &str = "fills";
/// Its samples, a millisecond apart: a chunk has some 120.
const SAMPLES: u64 = 20_000;

/// A running `prometheus`.
#[derive(Debug)]
pub struct Prometheus {
    home: PathBuf,
    daemon: Daemon,
    port: u16,
    to: Option<u16>,
    /// How many series were sent and acknowledged.
    put: u64,
}

impl Prometheus {
    /// Programs that it needs.
    pub const PROGRAMS: [&str; 2] = ["prometheus", "setpriv"];

    /// Starts one with its data below `home`, that sends what comes on to the one at the port `to`.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn start(home: &Path, to: Option<u16>) -> Self {
        let port = free_port();
        let mut server = Self { home: home.to_owned(), daemon: daemon(home, port, to), port, to, put: 0 };
        server.wait_until_ready();
        fill_chunks(port);
        // It writes them to the file within a minute, or at its end.
        server.stop_and_restart();
        server.wait_until_sending();
        server
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn wait_until_ready(&mut self) {
        let port = self.port;
        self.daemon.wait_for("prometheus is ready", || {
            ask(port, "GET", "/-/ready", &[]).filter(|answer| answer.status == 200)
        });
    }

    /// It sends nothing on that is older than the begin of its sending, which may come after it is ready.
    fn wait_until_sending(&mut self) {
        let (Some(to), port) = (self.to, self.port) else { return };
        self.daemon.wait_for("prometheus sends on what comes", || {
            write(port, BEGUN, 0..1);
            (count(to, BEGUN) == 1).then_some(())
        });
    }

    /// How many series of the load it has.
    ///
    /// # Panics
    ///
    /// Where it does not answer.
    pub fn series(&self) -> u64 {
        count(self.port, LOAD)
    }

    /// Waits until it has so many series of the load.
    ///
    /// # Panics
    ///
    /// Where they do not come.
    pub fn wait_for_series(&mut self, count: u64) {
        for _ in 0..600 {
            if self.series() >= count {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        panic!("{} of {count} series came", self.series());
    }

    /// How many series it was sent.
    pub fn sent(&self) -> u64 {
        self.put
    }

    /// Stops it, so that who sends to it lags.
    pub fn freeze(&self) {
        self.daemon.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.daemon.signal(Signal::CONT);
    }
}

fn daemon(home: &Path, port: u16, to: Option<u16>) -> Daemon {
    let write_to = to.map_or(String::new(), |to| {
        format!("remote_write:\n  - url: 'http://127.0.0.1:{to}/api/v1/write'\n    queue_config: {{max_backoff: 1s}}\n")
    });
    std::fs::create_dir_all(home).expect("make a directory for prometheus");
    std::fs::write(home.join("prometheus.yml"), format!("global: {{scrape_interval: 1h}}\n{write_to}"))
        .expect("write its configuration");
    Daemon::start(home, "prometheus", |command| {
        command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"]);
        // The least that it takes.
        command.arg("--storage.tsdb.wal-segment-size=10MB").arg("--web.enable-remote-write-receiver");
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    })
}

impl LoggedServer for Prometheus {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        files_below(&self.home.join("data/wal"), |path| {
            path.parent().is_some_and(|parent| parent.ends_with("wal"))
        })
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        Some(files_below(&self.home.join("data/chunks_head"), |_| true))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let requests = bytes.div_ceil(SERIES * LABEL as u64);
        for _ in 0..requests {
            write(self.port, LOAD, self.put..self.put + SERIES);
            self.put += SERIES;
        }
        requests * SERIES * LABEL as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.port, self.to);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        assert_eq!(self.series(), self.put);
    }
}

/// How many series of a name the one at a port has.
fn count(port: u16, name: &str) -> u64 {
    let path = format!("/api/v1/query?query=count(last_over_time({name}%5B1h%5D))");
    let answer = ask(port, "GET", &path, &[]).expect("prometheus runs");
    assert_eq!(answer.status, 200, "{}", answer.body);
    // "value":[TIME,"COUNT"]; without a series there is no value.
    let value = answer.body.split("\"value\":[").nth(1).and_then(|rest| rest.split('"').nth(1));
    value.map_or(0, |count| count.parse().expect("a number"))
}

/// Sends one sample of each of these series to the one at a port.
fn write(port: u16, name: &str, series: Range<u64>) {
    let mut request = Vec::new();
    let sample = (now(), 1.0);
    series.for_each(|number| add_series(&mut request, name, number, [sample]));
    send(port, &request);
}

/// Sends samples that fill chunks to the one at a port: until now, of values that no compression makes much shorter.
fn fill_chunks(port: u16) {
    let mut rng = crate::Rng::from_seed(0);
    let mut value = || f64::from(u32::try_from(rng.number() >> 32).expect("32 bits"));
    let now = now();
    let mut request = Vec::new();
    // No other one has this series, also where what comes is sent on.
    add_series(&mut request, FILLS, port.into(), (now - SAMPLES..now).map(|time| (time, value())));
    send(port, &request);
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    u64::try_from(now).expect("before the year 500 million")
}

/// Sends a request of remote write to the one at a port.
fn send(port: u16, request: &[u8]) {
    let headers = [
        ("Content-Type", "application/x-protobuf"),
        ("Content-Encoding", "snappy"),
        ("X-Prometheus-Remote-Write-Version", "0.1.0"),
    ];
    let body = snappy(request);
    let answer = ask_with(port, "POST", "/api/v1/write", &headers, &body).expect("prometheus runs");
    assert_eq!(answer.status, 204, "{}", answer.body);
}

/// Adds a series to a request of remote write, in protobuf: of each sample the time and the value.
fn add_series(request: &mut Vec<u8>, name: &str, number: u64, samples: impl IntoIterator<Item = (u64, f64)>) {
    let mut series = Vec::new();
    for (key, value) in [("__name__", name.as_bytes().to_vec()), ("text", text(number, LABEL))] {
        let mut label = Vec::new();
        field(&mut label, 1, key.as_bytes());
        field(&mut label, 2, &value);
        field(&mut series, 1, &label);
    }
    for (time, value) in samples {
        // A double, and a number as a varint.
        let mut sample = vec![1 << 3 | 1];
        sample.extend(value.to_le_bytes());
        sample.push(2 << 3);
        varint(&mut sample, time);
        field(&mut series, 2, &sample);
    }
    field(request, 1, &series);
}

/// A field of protobuf that has a length.
fn field(to: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    to.push(number << 3 | 2);
    varint(to, bytes.len() as u64);
    to.extend(bytes);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    loop {
        let seven = u8::try_from(value & 0x7f).expect("seven bits");
        value >>= 7;
        if value == 0 {
            return to.push(seven);
        }
        to.push(seven | 0x80);
    }
}

/// The same bytes as snappy has them where nothing can be compressed: their length, and one literal.
fn snappy(bytes: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(bytes.len() + 16);
    varint(&mut block, bytes.len() as u64);
    let length = u32::try_from(bytes.len() - 1).expect("a request of less than 4 GiB");
    // A literal whose length less one follows in four bytes.
    block.push(63 << 2);
    block.extend(length.to_le_bytes());
    block.extend(bytes);
    block
}
