//! Real servers with a home, ports and a load of their own: what tests and benchmarks of the guard drive.
//!
//! Invariants: all files of a server are below the directory that it is given; it never outlives its handle, nor the thread
//! that started it. What was put and acknowledged is known: a server can say whether all of it is there.

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

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use cassandra::{Cassandra, Flushes};
pub use clickhouse::ClickHouse;
pub use etcd::{Etcd, Watch};
pub use kafka::Kafka;
pub use mariadb::MariaDb;
pub use mongodb::MongoDb;
pub use mysql::MySql;
pub use nats::Nats;
pub use opensearch::{OpenSearch, Search};
pub use postgresql::PostgreSql;
pub use prometheus::Prometheus;
pub use rabbitmq::RabbitMq;
pub use rocksdb::RocksDb;
pub use wiredtiger::WiredTiger;

use values::Values;

/// Far longer than a start, or anything that is asked of a server, takes.
const DEADLINE: Duration = Duration::from_secs(120);

/// A server with a log that is written.
pub trait LoggedServer {
    /// Its process.
    fn pid(&self) -> u32;

    /// The files of its log, the newest last.
    fn logs(&self) -> Vec<PathBuf>;

    /// Files that it has mapped, or that are its data: nothing is to be done to their pages. `None` of a server that can have no page of
    /// such a file in the page cache, each for a reason that it gives; a story fails where one that can has none.
    fn others(&self) -> Option<Vec<PathBuf>>;

    /// Has its client put about so many bytes, and waits until all are acknowledged. Returns how many they were.
    fn put(&mut self, bytes: u64) -> u64;

    /// Ends it by this signal and starts it again.
    fn restart_after(&mut self, signal: Signal);

    /// Kills it, as a machine short of memory does, and starts it again.
    fn kill_and_restart(&mut self) {
        self.restart_after(Signal::KILL);
    }

    /// Stops it, as its operator does, and starts it again.
    fn stop_and_restart(&mut self) {
        self.restart_after(Signal::TERM);
    }

    /// Panics unless all that was acknowledged is there.
    fn check_all(&mut self);
}

/// What a server is started by: words that go before its own, as of `pagekeeper run --`, which becomes the server itself. None by
/// default.
#[derive(Debug, Clone, Default)]
pub struct Launcher(Vec<OsString>);

impl Launcher {
    /// These words, the first of them a program.
    pub fn new(words: impl IntoIterator<Item = OsString>) -> Self {
        Self(words.into_iter().collect())
    }
}

/// A process of a server.
#[derive(Debug)]
struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a program; what it says goes to a file `log` in `home`, which is made where it is missing.
    fn start(home: &Path, program: &str, arguments: impl FnOnce(&mut Command)) -> Self {
        Self::start_by(&Launcher::default(), home, program, arguments)
    }

    /// The same, by a launcher.
    fn start_by(
        launcher: &Launcher,
        home: &Path,
        program: &str,
        arguments: impl FnOnce(&mut Command),
    ) -> Self {
        std::fs::create_dir_all(home).expect("make a directory for a server");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).args(&launcher.0).arg(program);
        let log = direct(home, &mut command);
        arguments(&mut command);
        Self { child: command.spawn().expect("start a server"), log }
    }

    /// The same of a whole command, in a home that is there.
    fn spawn(home: &Path, mut command: Command) -> Self {
        let log = direct(home, &mut command);
        Self { child: command.spawn().expect("start a server"), log }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks again until `ready` gives a value.
    fn wait_for<T>(&mut self, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(value) = ready() {
                return value;
            }
            let ended = self.child.try_wait().expect("wait for a server");
            let said = || std::fs::read_to_string(&self.log).unwrap_or_default();
            assert!(ended.is_none(), "it ended by itself, {ended:?}: {}", said());
            assert!(began.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}; it said {}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal a server");
    }

    /// Sends it a signal by which it ends, and waits until it has.
    fn end(&mut self, signal: Signal) {
        self.signal(signal);
        let began = Instant::now();
        while self.child.try_wait().expect("wait for a server").is_none() {
            assert!(began.elapsed() < DEADLINE, "it does not end within {DEADLINE:?} of {signal:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has a command run in `home`, and write what it says to the file `log` there, which is returned.
fn direct(home: &Path, command: &mut Command) -> PathBuf {
    let log = home.join("log");
    let said = std::fs::File::options().create(true).append(true).open(&log).expect("make its log");
    command.current_dir(home).stdin(Stdio::null());
    command.stdout(said.try_clone().expect("a second handle")).stderr(said);
    log
}

/// The files below a directory that `is_one` says yes to, by name; none where there is no such directory.
fn files_below(directory: &Path, is_one: impl Fn(&Path) -> bool + Copy) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path, is_one) } else { vec![path] };
    let mut files: Vec<PathBuf> = entries.flat_map(below).filter(|path| is_one(path)).collect();
    files.sort();
    files
}

/// Makes a directory that a server's own user may enter, and its parent, too.
fn let_in(home: &Path) {
    std::fs::create_dir_all(home).expect("make a directory for a server");
    for path in [home.parent().expect("it is below another"), home] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
            .expect("let the server's user in");
    }
}

/// So many bytes of text that differ with the number, and that no compression makes much shorter.
fn text(number: u64, length: usize) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
    let mut rng = crate::Rng::from_seed(number);
    let mut text = Vec::with_capacity(length + 10);
    while text.len() < length {
        let mut word = rng.number();
        for _ in 0..10 {
            text.push(DIGITS[usize::try_from(word % 64).expect("below 64")]);
            word /= 64;
        }
    }
    text.truncate(length);
    text
}
