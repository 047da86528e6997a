//! A real `prometheus` with a configuration, data and port of its own, and plain HTTP to ask it and others.
//!
//! The server ends with its handle. Fails with what it said.

use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// An answer of an HTTP server.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its status.
    pub(crate) status: u16,
    /// Its headers, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// What follows.
    pub(crate) body: String,
}

impl Answer {
    /// A header's value; panics without it.
    pub(crate) fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(other, _)| other == name);
        &header.unwrap_or_else(|| panic!("no {name} in {:?}", self.headers)).1
    }
}

/// Asks the server at a port of this host; `None` if nobody listens.
pub(crate) fn ask(port: u16, method: &str, path: &str, headers: &[(&str, &str)]) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set a time");
    // Of version 1.0, so that the answer is in one piece and ends with the connection.
    let mut head = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").expect("memory");
    }
    head.push_str("\r\n");
    // Who refuses a head may close before all of it is sent: the answer shows it.
    let sent = stream.write_all(head.as_bytes());
    let mut text = String::new();
    // Then the end is a reset, behind the answer.
    let read = stream.read_to_string(&mut text);
    assert!(read.is_ok() || text.contains("\r\n\r\n"), "no answer: {sent:?}, {read:?}: {text:?}");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let header = |line: &str| {
        let (name, value) = line.split_once(':').expect("a header");
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    Some(Answer { status, headers: lines.map(header).collect(), body: body.to_owned() })
}

/// A port that nobody listens at.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind to a free port");
    listener.local_addr().expect("bound").port()
}

/// A running `prometheus`.
pub(crate) struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    /// Starts one that scrapes `target` each second, as the job `pagekeeper`, and follows these rules.
    pub(crate) fn start(home: &Path, target: u16, rules: &Path) -> Self {
        std::fs::create_dir(home).expect("make a directory for prometheus");
        let config = home.join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: ['{}']\n\
             scrape_configs:\n  - job_name: pagekeeper\n    static_configs:\n      - targets: ['127.0.0.1:{target}']\n",
            rules.display()
        );
        std::fs::write(&config, text).expect("write its configuration");
        let log = std::fs::File::create(home.join("log")).expect("make its log");
        let port = free_port();
        let child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", "prometheus", "--log.level=warn"])
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", home.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start prometheus");
        let server = Self { child, port };
        super::eventually("prometheus is ready", Duration::from_secs(300), || {
            ask(port, "GET", "/-/ready", &[]).filter(|answer| answer.status == 200)
        });
        server
    }

    /// What an expression gives at the moment: labels and value of each series.
    pub(crate) fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let mut encoded = String::new();
        for byte in expression.bytes() {
            write!(encoded, "%{byte:02X}").expect("memory");
        }
        let path = format!("/api/v1/query?query={encoded}");
        let answer = ask(self.port, "GET", &path, &[]).expect("prometheus runs");
        let said: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(said["status"], "success", "{expression}: {said}");
        let series = said["data"]["result"].as_array().expect("series");
        series
            .iter()
            .map(|one| {
                let value = one["value"][1].as_str().and_then(|text| text.parse().ok());
                (one["metric"].clone(), value.expect("a number"))
            })
            .collect()
    }

    /// The value of an expression that gives one; `None` if it gives nothing.
    pub(crate) fn value(&self, expression: &str) -> Option<f64> {
        let series = self.query(expression);
        assert!(series.len() < 2, "{expression}: {series:?}");
        series.first().map(|(_, value)| *value)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
