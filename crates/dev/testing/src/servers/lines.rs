//! A client of programs that store values and read commands line by line. "put NUMBER LENGTH" and
//! that many bytes is answered by "ok" once the value is in the log and synced; "get NUMBER" by
//! "LENGTH" and that many bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout};

use super::text;

/// Size of a value in bytes.
const LINE_VALUE_BYTES: usize = 128 << 10;

/// The program's input and output, and the number of acknowledged values.
#[derive(Debug)]
pub(super) struct LineClient {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// The file that has its stderr.
    log: PathBuf,
    put: u64,
}

impl LineClient {
    /// Connects to a program with piped input and output, once it prints "ready". `put` values are
    /// there from earlier runs.
    pub(super) fn of(child: &mut Child, log: PathBuf, put: u64) -> Self {
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = Self { to, from, log, put };
        lines.expect("ready");
        lines
    }

    /// Returns the number of values that were put.
    pub(super) fn values(&self) -> u64 {
        self.put
    }

    fn expect(&mut self, expected: &str) {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it continues");
        let said = || std::fs::read_to_string(&self.log).unwrap_or_default();
        assert_eq!(line.trim_end(), expected, "{}", said());
    }

    /// Puts about this many bytes. Returns the exact number.
    pub(super) fn put(&mut self, bytes: u64) -> u64 {
        let values = bytes.div_ceil(LINE_VALUE_BYTES as u64);
        for _ in 0..values {
            let head = format!("put {} {LINE_VALUE_BYTES}\n", self.put).into_bytes();
            self.to.write_all(&[head, text(self.put, LINE_VALUE_BYTES)].concat()).expect("it continues");
            self.expect("ok");
            self.put += 1;
        }
        values * LINE_VALUE_BYTES as u64
    }

    /// Has the server write about this many bytes to its text log.
    pub(super) fn log(&mut self, bytes: u64) {
        self.to.write_all(format!("log {bytes}\n").as_bytes()).expect("it continues");
        self.expect("ok");
    }

    /// Panics unless all acknowledged values are there.
    pub(super) fn check(&mut self) {
        for number in 0..self.put {
            self.to.write_all(format!("get {number}\n").as_bytes()).expect("it continues");
            self.expect(&LINE_VALUE_BYTES.to_string());
            let mut value = vec![0; LINE_VALUE_BYTES];
            self.from.read_exact(&mut value).expect("it continues");
            assert!(
                value == text(number, LINE_VALUE_BYTES),
                "value {number} of {} is not as it was put",
                self.put
            );
        }
    }
}
