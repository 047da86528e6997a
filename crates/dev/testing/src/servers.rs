//! Real servers, each with its own home, ports and load, for tests and benchmarks of the guard.
//!
//! Invariants: all files of a server are below the directory it is given. A server never outlives
//! its handle, nor the thread that started it. The acknowledged data is known: a server can check
//! that all of it is there.

mod amqp;
mod cassandra;
mod clickhouse;
mod engine;
mod etcd;
mod kafka;
mod lines;
mod mariadb;
mod mongodb;
mod mysql;
mod nats;
mod opensearch;
mod postgresql;
mod prometheus;
mod rabbitmq;
mod rocksdb;
pub mod unpacked;
mod values;
mod wiredtiger;

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use cassandra::{Cassandra, FlushMode};
pub use clickhouse::ClickHouse;
pub use etcd::{Etcd, KeyWatch};
pub use kafka::Kafka;
pub use mariadb::MariaDb;
pub use mongodb::MongoDb;
pub use mysql::MySql;
pub use nats::Nats;
pub use opensearch::{OpenSearch, SearchProduct};
pub use postgresql::PostgreSql;
pub use prometheus::Prometheus;
pub use rabbitmq::RabbitMq;
pub use rocksdb::RocksDb;
pub use wiredtiger::WiredTiger;

use values::ValueCount;

/// A deadline far longer than a start or any request to a server takes.
const SERVER_TIMEOUT: Duration = Duration::from_secs(120);

/// A server that writes a log.
pub trait LoggedServer {
    /// Returns the process ID of the server.
    fn pid(&self) -> u32;

    /// Returns the files of its log, the newest last.
    fn logs(&self) -> Vec<PathBuf>;

    /// Returns files that the server has mapped, or that are its data: nothing may happen to their
    /// pages. Returns `None` for a server that can have no page of such a file in the page cache;
    /// each such server states its reason. A test fails if the list is empty.
    fn others(&self) -> Option<Vec<PathBuf>>;

    /// Puts about this many bytes, and waits until all are acknowledged. Returns the exact number.
    fn put(&mut self, bytes: u64) -> u64;

    /// Ends the server by this signal and starts it again.
    fn restart_after(&mut self, signal: Signal);

    /// Kills the server, as the OOM killer does, and starts it again.
    fn kill_and_restart(&mut self) {
        self.restart_after(Signal::KILL);
    }

    /// Stops the server, as its operator does, and starts it again.
    fn stop_and_restart(&mut self) {
        self.restart_after(Signal::TERM);
    }

    /// Panics unless all acknowledged data is there.
    fn check_all(&mut self);
}

/// Words that precede a server's command line, such as `pagekeeper run --`. The launcher becomes
/// the server itself by exec(2). Empty by default.
#[derive(Debug, Clone, Default)]
pub struct Launcher(Vec<OsString>);

impl Launcher {
    /// Creates a launcher from these words; the first one is a program.
    pub fn new(words: impl IntoIterator<Item = OsString>) -> Self {
        Self(words.into_iter().collect())
    }

    /// Returns a command that starts a program, without its arguments. It ends with the
    /// thread that starts it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).args(&self.0).arg(program);
        command
    }
}

/// A process of a server.
#[derive(Debug)]
struct ServerProcess {
    child: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts a program. Its output goes to the file `log` in `home`, which is created if it is
    /// missing.
    fn start(home: &Path, program: &str, arguments: impl FnOnce(&mut Command)) -> Self {
        Self::start_by(&Launcher::default(), home, program, arguments)
    }

    /// Starts a program by a launcher.
    fn start_by(
        launcher: &Launcher,
        home: &Path,
        program: &str,
        arguments: impl FnOnce(&mut Command),
    ) -> Self {
        std::fs::create_dir_all(home).expect("make a directory for a server");
        let mut command = launcher.command(program);
        let log = direct(home, &mut command);
        arguments(&mut command);
        Self { child: command.spawn().expect("start a server"), log }
    }

    /// Starts a complete command in a home that exists.
    fn spawn(home: &Path, mut command: Command) -> Self {
        let log = direct(home, &mut command);
        Self { child: command.spawn().expect("start a server"), log }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Polls until `ready` returns a value.
    fn wait_for<T>(&mut self, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(value) = ready() {
                return value;
            }
            let ended = self.child.try_wait().expect("wait for a server");
            let said = || std::fs::read_to_string(&self.log).unwrap_or_default();
            assert!(ended.is_none(), "it ended by itself, {ended:?}: {}", said());
            assert!(
                began.elapsed() < SERVER_TIMEOUT,
                "not within {SERVER_TIMEOUT:?}: {what}; it said {}",
                said()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal a server");
    }

    /// Sends a signal that ends the process, and waits for the end.
    fn end(&mut self, signal: Signal) {
        self.signal(signal);
        let began = Instant::now();
        while self.child.try_wait().expect("wait for a server").is_none() {
            assert!(
                began.elapsed() < SERVER_TIMEOUT,
                "it does not end within {SERVER_TIMEOUT:?} of {signal:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a command run in `home` with its output in the file `log` there. Returns the path of that
/// file.
fn direct(home: &Path, command: &mut Command) -> PathBuf {
    let log = home.join("log");
    let said = std::fs::File::options().create(true).append(true).open(&log).expect("make its log");
    command.current_dir(home).stdin(Stdio::null());
    command.stdout(said.try_clone().expect("a second handle")).stderr(said);
    log
}

/// Returns the files below a directory for which `is_one` is true, sorted by name; none if there is
/// no such directory.
fn files_below(directory: &Path, is_one: impl Fn(&Path) -> bool + Copy) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path, is_one) } else { vec![path] };
    let mut files: Vec<PathBuf> = entries.flat_map(below).filter(|path| is_one(path)).collect();
    files.sort();
    files
}

/// Creates a directory that the server's own user may enter, and its parent.
fn admit_server_user(home: &Path) {
    std::fs::create_dir_all(home).expect("make a directory for a server");
    for path in [home.parent().expect("it is below another"), home] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
            .expect("let the server's user in");
    }
}

/// Returns `length` bytes of text that depend on `number` and hardly compress.
fn text(number: u64, length: usize) -> Vec<u8> {
    const TEXT_DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
    let mut rng = crate::Rng::from_seed(number);
    let mut text = Vec::with_capacity(length + 10);
    while text.len() < length {
        let mut word = rng.number();
        for _ in 0..10 {
            text.push(TEXT_DIGITS[usize::try_from(word % 64).expect("below 64")]);
            word /= 64;
        }
    }
    text.truncate(length);
    text
}
