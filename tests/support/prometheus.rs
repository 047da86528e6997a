//! A real `prometheus` with its own configuration, data and port, that scrapes a target and
//! evaluates rules.
//!
//! The server ends with its handle. Fails with its output.

#[allow(unused_imports, reason = "each test program uses its own part")]
pub(crate) use pagekeeper_testing::http::{HttpResponse, ask, free_port};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running `prometheus`.
pub(crate) struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    /// Starts one that scrapes `target` every second, as the job `pagekeeper`, and evaluates
    /// these rules.
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

    /// Returns the present value of an expression: labels and value of each series.
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

    /// Returns the value of an expression that gives one; `None` if it gives nothing.
    pub(crate) fn value(&self, expression: &str) -> Option<f64> {
        let series = self.query(expression);
        assert!(series.len() < 2, "{expression}: {series:?}");
        series.first().map(|(_, value)| *value)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
