//! A table of large values, filled through an SQL client that reads statements. Each value is a
//! commit.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use super::text;

/// Size of a value in bytes.
const SQL_VALUE_BYTES: usize = 256 << 10;

/// The number of values that were put and acknowledged.
#[derive(Debug, Default)]
pub(super) struct ValueCount(u64);

impl ValueCount {
    /// Creates the table, with values of this type.
    pub(super) fn make_table(&mut self, client: &mut Command, of: &str) {
        run(client, |statements| {
            writeln!(statements, "CREATE TABLE pagekeeper_load (number BIGINT PRIMARY KEY, value {of});")
        });
        self.0 = 0;
    }

    /// Puts about this many bytes. Returns the exact number.
    pub(super) fn put(&mut self, client: &mut Command, bytes: u64) -> u64 {
        let until = self.0 + bytes.div_ceil(SQL_VALUE_BYTES as u64);
        run(client, |statements| {
            for number in self.0..until {
                write!(statements, "INSERT INTO pagekeeper_load VALUES ({number}, '")?;
                statements.write_all(&text(number, SQL_VALUE_BYTES))?;
                writeln!(statements, "');")?;
            }
            Ok(())
        });
        let put = until - self.0;
        self.0 = until;
        put * SQL_VALUE_BYTES as u64
    }

    /// Panics unless exactly the acknowledged values are there.
    pub(super) fn check(&self, client: &mut Command) {
        let mut child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a client");
        let mut statements = child.stdin.take().expect("its input");
        writeln!(statements, "SELECT value FROM pagekeeper_load ORDER BY number;")
            .expect("the client listens");
        drop(statements);
        let mut rows = BufReader::new(child.stdout.take().expect("its output")).split(b'\n');
        for number in 0..self.0 {
            let row = rows.next().and_then(Result::ok);
            let is_there = row.is_some_and(|row| row == text(number, SQL_VALUE_BYTES));
            assert!(is_there, "value {number} of {} is not as it was put", self.0);
        }
        assert!(rows.next().is_none(), "there are more than {} values", self.0);
        assert!(child.wait().expect("wait for a client").success());
    }
}

/// Runs statements through a client. Panics unless each succeeds.
fn run(client: &mut Command, write: impl FnOnce(&mut std::process::ChildStdin) -> std::io::Result<()>) {
    let mut child = client.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start a client");
    let mut statements = child.stdin.take().expect("its input");
    let written = write(&mut statements);
    drop(statements);
    let status = child.wait().expect("wait for a client");
    assert!(status.success() && written.is_ok(), "the client ended with {status}");
}
