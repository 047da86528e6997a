//! Real servers with a home, ports and a load of their own: what tests and benchmarks of the guard drive.
//!
//! Invariants: all files of a server are below the directory that it is given; it never outlives its handle, nor the thread
//! that started it. What was put and acknowledged is known: a server can say whether all of it is there.

mod amqp;
mod cassandra;
mod clickhouse;
mod etcd;
mod kafka;
mod nats;
mod opensearch;
mod prometheus;
mod rabbitmq;
mod wiredtiger;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use cassandra::Cassandra;
pub use clickhouse::ClickHouse;
pub use etcd::{Etcd, Watch};
pub use kafka::Kafka;
pub use nats::Nats;
pub use opensearch::OpenSearch;
pub use prometheus::Prometheus;
pub use rabbitmq::RabbitMq;
pub use wiredtiger::WiredTiger;

/// Far longer than a start, or anything that is asked of a server, takes.
const DEADLINE: Duration = Duration::from_secs(120);

/// A server with a log that is written.
pub trait LoggedServer {
    /// Its process.
    fn pid(&self) -> u32;

    /// The files of its log, the newest last.
    fn logs(&self) -> Vec<PathBuf>;

    /// Files that it has mapped, or that are its data: nothing is to be done to their pages.
    fn others(&self) -> Vec<PathBuf>;

    /// Has its client put about so many bytes, and waits until all are acknowledged. Returns how many they were.
    fn put(&mut self, bytes: u64) -> u64;

    /// Kills it, as a machine short of memory does, and starts it again.
    fn kill_and_restart(&mut self);

    /// Panics unless all that was acknowledged is there.
    fn check_all(&mut self);
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
        std::fs::create_dir_all(home).expect("make a directory for a server");
        let log = home.join("log");
        let said = std::fs::File::options().create(true).append(true).open(&log).expect("make its log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--", program]).current_dir(home).stdin(Stdio::null());
        command.stdout(said.try_clone().expect("a second handle")).stderr(said);
        arguments(&mut command);
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

    /// Ends it without a chance to do anything more.
    fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("wait for a server");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files below a directory that `is_one` says yes to, by name; none where there is no such directory.
fn files_below(directory: &Path, is_one: impl Fn(&Path) -> bool + Copy) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path, is_one) } else { vec![path] };
    let mut files: Vec<PathBuf> = entries.flat_map(below).filter(|path| is_one(path)).collect();
    files.sort();
    files
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
