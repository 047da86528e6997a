//! Values that are put and got by a program of lines: "put NUMBER LENGTH" and that many bytes is answered by "ok" once the value is in
//! the log and synced, "get NUMBER" by "LENGTH" and that many bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout};

use super::text;

/// Bytes of a value.
const VALUE: usize = 128 << 10;

/// The program's input and output, and what was put into it and acknowledged.
#[derive(Debug)]
pub(super) struct Lines {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Where what it says on stderr is.
    log: PathBuf,
    put: u64,
}

impl Lines {
    /// Of a program whose input and output are piped, once it says "ready"; of those before it so many values are there.
    pub(super) fn of(child: &mut Child, log: PathBuf, put: u64) -> Self {
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = Self { to, from, log, put };
        lines.expect("ready");
        lines
    }

    /// How many values were put.
    pub(super) fn values(&self) -> u64 {
        self.put
    }

    fn expect(&mut self, expected: &str) {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it goes on");
        let said = || std::fs::read_to_string(&self.log).unwrap_or_default();
        assert_eq!(line.trim_end(), expected, "{}", said());
    }

    /// Puts about so many bytes; how many they were.
    pub(super) fn put(&mut self, bytes: u64) -> u64 {
        let values = bytes.div_ceil(VALUE as u64);
        for _ in 0..values {
            let head = format!("put {} {VALUE}\n", self.put).into_bytes();
            self.to.write_all(&[head, text(self.put, VALUE)].concat()).expect("it goes on");
            self.expect("ok");
            self.put += 1;
        }
        values * VALUE as u64
    }

    /// Panics unless all that was put is there.
    pub(super) fn check(&mut self) {
        for number in 0..self.put {
            self.to.write_all(format!("get {number}\n").as_bytes()).expect("it goes on");
            self.expect(&VALUE.to_string());
            let mut value = vec![0; VALUE];
            self.from.read_exact(&mut value).expect("it goes on");
            assert!(value == text(number, VALUE), "value {number} of {} is not as it was put", self.put);
        }
    }
}
