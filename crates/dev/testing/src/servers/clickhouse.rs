//! Debian's `clickhouse-server` with one `MergeTree` table. The client uses its HTTP interface.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::{Launcher, LoggedServer, ServerProcess, files_below, text};
use crate::http::{ask_with, free_port};

/// Size of a row in bytes.
const ROW_BYTES: usize = 64 << 10;
/// Rows per insert. Each insert creates one part.
const ROWS_PER_INSERT: u64 = 64;

/// A running `clickhouse-server`. It has no log: parts of tables are written once, and merged.
#[derive(Debug)]
pub struct ClickHouse {
    home: PathBuf,
    launcher: Launcher,
    daemon: ServerProcess,
    ports: [u16; 3],
    /// Number of rows that were put and acknowledged.
    put: u64,
}

impl ClickHouse {
    /// Programs that it needs.
    pub const REQUIRED_PROGRAMS: [&str; 2] = ["/usr/sbin/clickhouse-server", "setpriv"];

    /// Starts a server with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path) -> Self {
        Self::start_by(home, Launcher::default())
    }

    /// Starts a server by a launcher.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_by(home: &Path, launcher: Launcher) -> Self {
        let ports = [free_port(), free_port(), free_port()];
        let daemon = daemon(home, ports, &launcher);
        let mut server = Self { home: home.to_owned(), launcher, daemon, ports, put: 0 };
        server.wait_until_ready();
        server.ask("CREATE TABLE load (number UInt64, value String) ENGINE = MergeTree ORDER BY number", &[]);
        server
    }

    fn wait_until_ready(&mut self) {
        let port = self.ports[0];
        self.daemon.wait_for("clickhouse-server answers", || {
            ask_with(port, "GET", "/ping", &[], &[]).filter(|answer| answer.status == 200)
        });
    }

    fn ask(&self, query: &str, body: &[u8]) -> String {
        self.ask_with(query, "", body)
    }

    /// Sends a query with settings of its own, as `&name=value`.
    fn ask_with(&self, query: &str, settings: &str, body: &[u8]) -> String {
        let path = format!("/?query={}{settings}", query.replace(' ', "%20"));
        // Without this header it takes a POST without a body for a chunked one.
        let length: &[(&str, &str)] = if body.is_empty() { &[("Content-Length", "0")] } else { &[] };
        let answer = ask_with(self.ports[0], "POST", &path, length, body).expect("clickhouse-server runs");
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        answer.body
    }

    /// Merges all parts into one: reads all of them and writes a new one.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn merge(&self) {
        self.ask("OPTIMIZE TABLE load FINAL", &[]);
    }

    /// Reads all values with several threads, by direct I/O or through the page cache.
    ///
    /// # Panics
    ///
    /// If the server refuses, or if values are missing.
    pub fn scan(&self, is_direct: bool) {
        let settings = format!("&max_threads=4&min_bytes_to_use_direct_io={}", u8::from(is_direct));
        let found = self.ask_with("SELECT sum(length(value)) FROM load", &settings, &[]);
        assert_eq!(found.trim().parse(), Ok(self.put * ROW_BYTES as u64));
    }
}

fn daemon(home: &Path, [http, tcp, peers]: [u16; 3], launcher: &Launcher) -> ServerProcess {
    let path = |name: &str| home.join(name).display().to_string();
    std::fs::create_dir_all(home).expect("make a directory for clickhouse-server");
    let settings = format!(
        "<yandex><logger><level>warning</level><console>1</console></logger><http_port>{http}</http_port><tcp_port>{tcp}</tcp_port>\
         <interserver_http_port>{peers}</interserver_http_port><listen_host>127.0.0.1</listen_host><path>{}/</path><tmp_path>{}/</tmp_path>\
         <users_config>{}</users_config><default_profile>default</default_profile><default_database>default</default_database>\
         <mark_cache_size>5368709120</mark_cache_size></yandex>\n",
        path("data"),
        path("tmp"),
        path("users.xml"),
    );
    std::fs::write(home.join("config.xml"), settings).expect("write its settings");
    let users = "<yandex><profiles><default/></profiles><users><default><password></password><networks><ip>127.0.0.1</ip></networks>\
                 <profile>default</profile><quota>default</quota></default></users><quotas><default/></quotas></yandex>\n";
    std::fs::write(home.join("users.xml"), users).expect("write its users");
    ServerProcess::start_by(launcher, home, ClickHouse::REQUIRED_PROGRAMS[0], |command| {
        command.arg("--config-file=config.xml");
    })
}

impl LoggedServer for ClickHouse {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        // Column files, in parts that are not temporary.
        Some(files_below(&self.home.join("data/data/default/load"), |path| {
            path.extension().is_some_and(|end| end == "bin") && !path.to_string_lossy().contains("tmp_")
        }))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let rows = bytes.div_ceil(ROW_BYTES as u64);
        let end = self.put + rows;
        while self.put < end {
            let next = (self.put + ROWS_PER_INSERT).min(end);
            let mut body = Vec::new();
            for number in self.put..next {
                body.extend(format!("{number}\t").into_bytes());
                body.extend(text(number, ROW_BYTES));
                body.push(b'\n');
            }
            self.ask("INSERT INTO load FORMAT TabSeparated", &body);
            self.put = next;
        }
        rows * ROW_BYTES as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.ports, &self.launcher);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        // A query per row would read a whole granule each time.
        let found = self.ask("SELECT value FROM load ORDER BY number", &[]);
        let mut rows = found.lines();
        for number in 0..self.put {
            let is_there = rows.next().is_some_and(|row| row.as_bytes() == text(number, ROW_BYTES));
            assert!(is_there, "row {number} of {} is not as it was put", self.put);
        }
        assert_eq!(rows.next(), None);
    }
}
