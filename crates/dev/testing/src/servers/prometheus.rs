//! A `prometheus` that receives series by remote write, and may send them on to another one.
//!
//! Each series of the load has one sample, which stays in memory until its chunk is full. One more
//! series fills chunks, as live series do, so that there are some in a mapped file.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use super::{LoggedServer, ServerProcess, files_below, text};
use crate::http::{ask, ask_with, free_port};

/// Size of a label in bytes. The log has each series once, with all of its labels.
const LABEL_BYTES: usize = 1000;
/// Series per request.
const SERIES_PER_REQUEST: u64 = 500;
/// The name of all series of the load.
const LOAD_SERIES: &str = "load";
/// The name of the series that shows that series are sent on.
const SENDING_SERIES: &str = "begun";
/// The name of the series that fills chunks.
const FILLING_SERIES: &str = "fills";
/// Samples of that series, a millisecond apart. A chunk has about 120.
const FILLING_SAMPLES: u64 = 20_000;

/// A running `prometheus`.
#[derive(Debug)]
pub struct Prometheus {
    home: PathBuf,
    daemon: ServerProcess,
    port: u16,
    to: Option<u16>,
    /// Number of series that were sent and acknowledged.
    put: u64,
}

impl Prometheus {
    /// Programs that it needs.
    pub const REQUIRED_PROGRAMS: [&str; 2] = ["prometheus", "setpriv"];

    /// Starts a server with its data below `home`. It sends its series on to the one at the port
    /// `to`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path, to: Option<u16>) -> Self {
        let port = free_port();
        let mut server = Self { home: home.to_owned(), daemon: daemon(home, port, to), port, to, put: 0 };
        server.wait_until_ready();
        fill_chunks(port);
        // Prometheus writes full chunks to the file within a minute, or when it stops.
        server.stop_and_restart();
        server.wait_until_sending();
        server
    }

    /// Returns the port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn wait_until_ready(&mut self) {
        let port = self.port;
        self.daemon.wait_for("prometheus is ready", || {
            ask(port, "GET", "/-/ready", &[]).filter(|answer| answer.status == 200)
        });
    }

    /// Waits until it sends series on. Remote write may begin after the server is ready, and leaves
    /// out samples that are older than its start.
    fn wait_until_sending(&mut self) {
        let (Some(to), port) = (self.to, self.port) else { return };
        self.daemon.wait_for("prometheus sends on what comes", || {
            write(port, SENDING_SERIES, 0..1);
            (count(to, SENDING_SERIES) == 1).then_some(())
        });
    }

    /// Returns the number of series of the load that it has.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    pub fn series(&self) -> u64 {
        count(self.port, LOAD_SERIES)
    }

    /// Waits until it has this many series of the load.
    ///
    /// # Panics
    ///
    /// If they do not come.
    pub fn wait_for_series(&mut self, count: u64) {
        for _ in 0..600 {
            if self.series() >= count {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        panic!("{} of {count} series came", self.series());
    }

    /// Returns the number of series that were sent to it.
    pub fn sent(&self) -> u64 {
        self.put
    }

    /// Stops the process, so that its sender lags.
    pub fn freeze(&self) {
        self.daemon.signal(Signal::STOP);
    }

    /// Continues the process.
    pub fn thaw(&self) {
        self.daemon.signal(Signal::CONT);
    }
}

fn daemon(home: &Path, port: u16, to: Option<u16>) -> ServerProcess {
    let write_to = to.map_or(String::new(), |to| {
        format!("remote_write:\n  - url: 'http://127.0.0.1:{to}/api/v1/write'\n    queue_config: {{max_backoff: 1s}}\n")
    });
    std::fs::create_dir_all(home).expect("make a directory for prometheus");
    std::fs::write(home.join("prometheus.yml"), format!("global: {{scrape_interval: 1h}}\n{write_to}"))
        .expect("write its configuration");
    ServerProcess::start(home, "prometheus", |command| {
        command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"]);
        // The minimum that it accepts.
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
        let requests = bytes.div_ceil(SERIES_PER_REQUEST * LABEL_BYTES as u64);
        for _ in 0..requests {
            write(self.port, LOAD_SERIES, self.put..self.put + SERIES_PER_REQUEST);
            self.put += SERIES_PER_REQUEST;
        }
        requests * SERIES_PER_REQUEST * LABEL_BYTES as u64
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

/// Returns the number of series with this name at the server on this port.
fn count(port: u16, name: &str) -> u64 {
    let path = format!("/api/v1/query?query=count(last_over_time({name}%5B1h%5D))");
    let answer = ask(port, "GET", &path, &[]).expect("prometheus runs");
    assert_eq!(answer.status, 200, "{}", answer.body);
    // "value":[TIME,"COUNT"]; without a series there is no value.
    let value = answer.body.split("\"value\":[").nth(1).and_then(|rest| rest.split('"').nth(1));
    value.map_or(0, |count| count.parse().expect("a number"))
}

/// Sends one sample of each of these series to the server on this port.
fn write(port: u16, name: &str, series: Range<u64>) {
    let mut request = Vec::new();
    let sample = (now(), 1.0);
    series.for_each(|number| add_series(&mut request, name, number, [sample]));
    send(port, &request);
}

/// Sends samples that fill chunks to the server on this port. They end now, and hardly compress.
fn fill_chunks(port: u16) {
    let mut rng = crate::Rng::from_seed(0);
    let mut value = || f64::from(u32::try_from(rng.number() >> 32).expect("32 bits"));
    let now = now();
    let mut request = Vec::new();
    // The port makes the series unique, also when it is sent on.
    add_series(
        &mut request,
        FILLING_SERIES,
        port.into(),
        (now - FILLING_SAMPLES..now).map(|time| (time, value())),
    );
    send(port, &request);
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    u64::try_from(now).expect("before the year 500 million")
}

/// Sends a remote-write request to the server on this port.
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

/// Adds a series to a remote-write request in protobuf, with the time and value of each sample.
fn add_series(request: &mut Vec<u8>, name: &str, number: u64, samples: impl IntoIterator<Item = (u64, f64)>) {
    let mut series = Vec::new();
    for (key, value) in [("__name__", name.as_bytes().to_vec()), ("text", text(number, LABEL_BYTES))] {
        let mut label = Vec::new();
        field(&mut label, 1, key.as_bytes());
        field(&mut label, 2, &value);
        field(&mut series, 1, &label);
    }
    for (time, value) in samples {
        // A double, and the time as a varint.
        let mut sample = vec![1 << 3 | 1];
        sample.extend(value.to_le_bytes());
        sample.push(2 << 3);
        varint(&mut sample, time);
        field(&mut series, 2, &sample);
    }
    field(request, 1, &series);
}

/// Appends a length-delimited protobuf field.
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

/// Encodes bytes in snappy format without compression: their length, and one literal.
fn snappy(bytes: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(bytes.len() + 16);
    varint(&mut block, bytes.len() as u64);
    let length = u32::try_from(bytes.len() - 1).expect("a request of less than 4 GiB");
    // A literal whose length minus one follows in four bytes.
    block.push(63 << 2);
    block.extend(length.to_le_bytes());
    block.extend(bytes);
    block
}
