//! A node of `OpenSearch` or Elasticsearch with one index of one shard. The client uses its REST
//! interface.
//!
//! `PAGEKEEPER_OPENSEARCH` or `PAGEKEEPER_ELASTICSEARCH` names the directory of its jars;
//! `scripts/fetch-servers.sh` fetches them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::{Launcher, LoggedServer, ServerProcess, files_below, text};
use crate::http::{ask_with, free_port};

/// Size of a document in bytes.
const DOCUMENT_BYTES: usize = 128 << 10;
/// Documents per request.
const DOCUMENTS_PER_REQUEST: u64 = 8;

/// The product that a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchProduct {
    /// Version 2.19.
    OpenSearch,
    /// Version 7.17.
    Elasticsearch,
}

impl SearchProduct {
    /// Returns the directory of its jars.
    pub fn jars(self) -> Option<PathBuf> {
        let variable = match self {
            Self::OpenSearch => "PAGEKEEPER_OPENSEARCH",
            Self::Elasticsearch => "PAGEKEEPER_ELASTICSEARCH",
        };
        std::env::var_os(variable).map(PathBuf::from)
    }

    /// Returns the product's name in its settings, and the name of its configuration file.
    fn name(self) -> &'static str {
        match self {
            Self::OpenSearch => "opensearch",
            Self::Elasticsearch => "elasticsearch",
        }
    }

    /// Returns the prefix of the product's Java system properties.
    fn prefix(self) -> &'static str {
        match self {
            Self::OpenSearch => "opensearch",
            Self::Elasticsearch => "es",
        }
    }

    /// Returns the main class.
    fn main(self) -> &'static str {
        match self {
            Self::OpenSearch => "org.opensearch.bootstrap.OpenSearch",
            Self::Elasticsearch => "org.elasticsearch.bootstrap.Elasticsearch",
        }
    }

    /// Returns the descriptor of the network transport's module.
    fn module(self) -> &'static str {
        match self {
            Self::OpenSearch => {
                "name=transport-netty4\ndescription=Netty\nversion=2.19.0\nopensearch.version=2.19.0\njava.version=11\n\
                 classname=org.opensearch.transport.Netty4Plugin\n"
            }
            Self::Elasticsearch => {
                "name=transport-netty4\ndescription=Netty\nversion=7.17.28\nelasticsearch.version=7.17.28\njava.version=1.8\n\
                 classname=org.elasticsearch.transport.Netty4Plugin\n"
            }
        }
    }
}

/// A running node.
#[derive(Debug)]
pub struct OpenSearch {
    of: SearchProduct,
    home: PathBuf,
    launcher: Launcher,
    daemon: ServerProcess,
    ports: (u16, u16),
    /// Number of documents that were put and acknowledged.
    put: u64,
}

impl OpenSearch {
    /// Programs that it needs.
    pub const REQUIRED_PROGRAMS: [&str; 2] = ["java", "setpriv"];

    /// Starts a node of this product with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path, of: SearchProduct) -> Self {
        Self::start_by(home, of, Launcher::default())
    }

    /// Starts a node by a launcher.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_by(home: &Path, of: SearchProduct, launcher: Launcher) -> Self {
        lay_out(home, of);
        let ports = (free_port(), free_port());
        let daemon = daemon(home, of, ports, &launcher);
        let mut server = Self { of, home: home.to_owned(), launcher, daemon, ports, put: 0 };
        server.wait_until_ready();
        server.ask(
            "PUT",
            "/load",
            "{\"settings\":{\"number_of_shards\":1,\"number_of_replicas\":0},\
              \"mappings\":{\"dynamic\":false,\"properties\":{\"number\":{\"type\":\"long\"}}}}",
        );
        server
    }

    fn wait_until_ready(&mut self) {
        let port = self.ports.0;
        self.daemon.wait_for("the node answers", || {
            let health = "/_cluster/health?wait_for_status=yellow&timeout=1s";
            ask_with(port, "GET", health, &[], &[]).filter(|answer| answer.status == 200)
        });
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let headers = [("Content-Type", "application/json")];
        let answer = ask_with(self.ports.0, method, path, &headers, body.as_bytes()).expect("the node runs");
        assert!(answer.status < 300, "{path}: {}", answer.body);
        answer.body
    }

    /// Updates a document. The server reads the old one from its log unless a refresh has made it
    /// visible to searches.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn update(&self, number: u64) {
        let text = String::from_utf8(text(number, DOCUMENT_BYTES)).expect("text");
        let body = format!("{{\"doc\":{{\"number\":{number},\"text\":\"{text}\"}},\"detect_noop\":true}}");
        self.ask("POST", &format!("/load/_update/{number}"), &body);
    }

    /// Returns the number of documents that were put.
    pub fn documents(&self) -> u64 {
        self.put
    }
}

/// Lays out the node's directory as its packages do: the network transport is a separate module.
fn lay_out(home: &Path, of: SearchProduct) {
    let write = |path: &str, text: &str| {
        let path = home.join(path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("make a directory");
        std::fs::write(path, text).expect("write a file for a node");
    };
    write(
        "config/log4j2.properties",
        "appender.console.type=Console\nappender.console.name=console\nrootLogger.level=warn\n\
         rootLogger.appenderRef.console.ref=console\nappender.console.layout.type=PatternLayout\n",
    );
    let module = "modules/transport-netty4";
    write(&format!("{module}/plugin-descriptor.properties"), of.module());
    write(
        &format!("{module}/plugin-security.policy"),
        "grant codeBase \"${codebase.netty-common}\" {\n\
         permission java.io.FilePermission \"/proc/sys/net/core/somaxconn\", \"read\";\n\
         permission java.net.SocketPermission \"*\", \"accept,connect,resolve\";\n\
         permission java.lang.RuntimePermission \"getClassLoader\";\n\
         permission java.lang.RuntimePermission \"setContextClassLoader\";\n};\n\
         grant codeBase \"${codebase.netty-transport}\" {\n\
         permission java.util.PropertyPermission \"sun.nio.ch.bugLevel\", \"write\";\n};\n",
    );
    std::fs::create_dir_all(home.join("plugins")).expect("make a directory");
    std::fs::create_dir_all(home.join("lib")).expect("make a directory");
    std::fs::create_dir_all(home.join("tmp")).expect("make a directory");
    let jars = of.jars().expect("the environment names the directory of its jars");
    for jar in files_below(&jars, |path| path.extension().is_some_and(|end| end == "jar")) {
        let name = jar.file_name().expect("its name").to_string_lossy().into_owned();
        let is_of_module = name.starts_with("netty-") || name.starts_with("transport-netty4");
        let to = if is_of_module { home.join(module) } else { home.join("lib") };
        // Java permissions are given to jars by their real paths, so a link would have none.
        std::fs::copy(&jar, to.join(&name)).expect("lay out a jar");
    }
}

fn daemon(home: &Path, of: SearchProduct, (client, peers): (u16, u16), launcher: &Launcher) -> ServerProcess {
    let settings = format!(
        "cluster.name: load\nnode.name: load\ndiscovery.type: single-node\nnetwork.host: 127.0.0.1\n\
         http.port: {client}\ntransport.port: {peers}\npath.data: {data}\npath.logs: {logs}\n\
         bootstrap.system_call_filter: false\ncluster.routing.allocation.disk.threshold_enabled: false\n",
        data = home.join("data").display(),
        logs = home.join("logs").display(),
    );
    let file = format!("config/{}.yml", of.name());
    std::fs::write(home.join(file), settings).expect("write its settings");
    ServerProcess::start_by(launcher, home, "java", |command| {
        // Without its native part the node does not notice that it runs as root, which it refuses.
        command.args(["-Djna.nosys=true", "-Djna.nounpack=true"]);
        command.args(["-Xms1g", "-Xmx1g", "-Djava.security.manager=allow"]);
        // As in both products' jvm.options; with other values a node may hang on exit.
        command.args(["-Dlog4j2.disable.jmx=true", "-Dlog4j.shutdownHookEnabled=false"]);
        command.args(["-Dio.netty.noUnsafe=true", "-Dio.netty.noKeySetOptimization=true"]);
        let prefix = of.prefix();
        command.arg(format!("-D{prefix}.networkaddress.cache.ttl=60"));
        command.arg(format!("-D{prefix}.path.home={}", home.display()));
        command.arg(format!("-D{prefix}.path.conf={}", home.join("config").display()));
        // Elasticsearch's own scripts set both.
        command.env("ES_TMPDIR", home.join("tmp")).env("LIBFFI_TMPDIR", home.join("tmp"));
        command.arg("-cp").arg(home.join("lib/*")).arg(of.main());
    })
}

impl LoggedServer for OpenSearch {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        let mut generations =
            files_below(&self.home.join("data"), |path| path.extension().is_some_and(|end| end == "tlog"));
        generations.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        generations
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        Some(files_below(&self.home.join("data"), |path| {
            path.extension().is_some_and(|end| end == "cfs" || end == "fdt")
        }))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let documents = bytes.div_ceil(DOCUMENT_BYTES as u64);
        let end = self.put + documents;
        while self.put < end {
            let mut body = String::new();
            let next = (self.put + DOCUMENTS_PER_REQUEST).min(end);
            for number in self.put..next {
                let text = String::from_utf8(text(number, DOCUMENT_BYTES)).expect("text");
                let action = format!("{{\"index\":{{\"_id\":\"{number}\"}}}}");
                writeln!(body, "{action}\n{{\"number\":{number},\"text\":\"{text}\"}}")
                    .expect("write to a string");
            }
            let answer = self.ask("POST", "/load/_bulk", &body);
            assert!(answer.contains("\"errors\":false"), "{answer}");
            self.put = next;
        }
        documents * DOCUMENT_BYTES as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.of, self.ports, &self.launcher);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        for number in 0..self.put {
            let found = self.ask("GET", &format!("/load/_source/{number}"), "");
            let expected = String::from_utf8(text(number, DOCUMENT_BYTES)).expect("text");
            assert!(found.contains(&expected), "document {number} of {} is not as it was put", self.put);
        }
    }
}
