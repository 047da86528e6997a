//! A `clickhouse-server`, Debian's, with one table of `MergeTree`. Its client is its own HTTP.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::{Daemon, Launcher, LoggedServer, files_below, text};
use crate::http::{ask_with, free_port};

/// Bytes of a row.
const ROW: usize = 64 << 10;
/// Rows of one insertion, which is a part.
const AT_ONCE: u64 = 64;

/// A running `clickhouse-server`. It has no log: parts of tables are written once, and merged.
#[derive(Debug)]
pub struct ClickHouse {
    home: PathBuf,
    launcher: Launcher,
    daemon: Daemon,
    ports: [u16; 3],
    /// How many rows were put and acknowledged.
    put: u64,
}

impl ClickHouse {
    /// Programs that it needs.
    pub const PROGRAMS: [&str; 2] = ["/usr/sbin/clickhouse-server", "setpriv"];

    /// Starts one with its data below `home`.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn start(home: &Path) -> Self {
        Self::start_by(home, Launcher::default())
    }

    /// The same by a launcher.
    ///
    /// # Panics
    ///
    /// Where it does not start.
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

    /// The same with settings of this query, as `&name=value`.
    fn ask_with(&self, query: &str, settings: &str, body: &[u8]) -> String {
        let path = format!("/?query={}{settings}", query.replace(' ', "%20"));
        // Without a body it takes a POST for one whose length it has yet to learn.
        let length: &[(&str, &str)] = if body.is_empty() { &[("Content-Length", "0")] } else { &[] };
        let answer = ask_with(self.ports[0], "POST", &path, length, body).expect("clickhouse-server runs");
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        answer.body
    }

    /// Merges all parts into one: it reads them, and writes another.
    ///
    /// # Panics
    ///
    /// Where it is refused.
    pub fn merge(&self) {
        self.ask("OPTIMIZE TABLE load FINAL", &[]);
    }

    /// Reads all values, by several threads: by direct I/O, or through the page cache.
    ///
    /// # Panics
    ///
    /// Where it is refused, or not all are there.
    pub fn scan(&self, is_direct: bool) {
        let settings = format!("&max_threads=4&min_bytes_to_use_direct_io={}", u8::from(is_direct));
        let found = self.ask_with("SELECT sum(length(value)) FROM load", &settings, &[]);
        assert_eq!(found.trim().parse(), Ok(self.put * ROW as u64));
    }
}

fn daemon(home: &Path, [http, tcp, peers]: [u16; 3], launcher: &Launcher) -> Daemon {
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
    Daemon::start_by(launcher, home, ClickHouse::PROGRAMS[0], |command| {
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
        // Of columns, in parts that are not about to go.
        Some(files_below(&self.home.join("data/data/default/load"), |path| {
            path.extension().is_some_and(|end| end == "bin") && !path.to_string_lossy().contains("tmp_")
        }))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let rows = bytes.div_ceil(ROW as u64);
        let end = self.put + rows;
        while self.put < end {
            let next = (self.put + AT_ONCE).min(end);
            let mut body = Vec::new();
            for number in self.put..next {
                body.extend(format!("{number}\t").into_bytes());
                body.extend(text(number, ROW));
                body.push(b'\n');
            }
            self.ask("INSERT INTO load FORMAT TabSeparated", &body);
            self.put = next;
        }
        rows * ROW as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.ports, &self.launcher);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        // One by one each would read as many rows as its mark is for.
        let found = self.ask("SELECT value FROM load ORDER BY number", &[]);
        let mut rows = found.lines();
        for number in 0..self.put {
            let is_there = rows.next().is_some_and(|row| row.as_bytes() == text(number, ROW));
            assert!(is_there, "row {number} of {} is not as it was put", self.put);
        }
        assert_eq!(rows.next(), None);
    }
}
