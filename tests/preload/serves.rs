//! Servers that send files: pages in a socket's queue are released once they are sent.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support;
use crate::support::compare::Way;
use crate::support::loop_images::QuickDisk;
use crate::support::{MIB, evict};

const FILE_BYTES: u64 = 200 * MIB;
/// A deadline far longer than a queue takes to be sent.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// An nginx that sends the files of a directory by sendfile(2), under the rules; ended with the
/// value.
struct Nginx {
    child: Child,
    port: u16,
}

impl Nginx {
    fn start(directory: &Path, own: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let (own_at, files) = (own.display(), directory.display());
        let config = format!(
            "daemon off; master_process off; pid {own_at}/pid; error_log {own_at}/errors;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; sendfile on; sendfile_max_chunk 2m; server {{ listen 127.0.0.1:{port}; root {files}; }} }}\n"
        );
        let file = own.join("nginx.conf");
        std::fs::write(&file, config).expect("write");
        let mut report = std::ffi::OsString::from("--report=");
        report.push(own.join("report"));
        let mut way = Way::stream_by_library();
        way.add_option(report.to_str().expect("a plain path"));
        way.add_option("--json");
        let mut command = way.command(Path::new("nginx"));
        let child = command.arg("-c").arg(&file).stdin(Stdio::null()).spawn().expect("start nginx");
        let nginx = Self { child, port };
        support::eventually("nginx listens", WAIT_TIMEOUT, || nginx.connect());
        nginx
    }

    fn connect(&self) -> Option<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.port)).ok()
    }

    /// Requests a file, and reads it with a pause after every `piece` bytes. Returns the bytes
    /// received.
    fn read_slowly(&self, name: &str, each: usize, pause: Duration) -> u64 {
        let mut from = self.connect().expect("connect");
        from.write_all(format!("GET /{name} HTTP/1.0\r\n\r\n").as_bytes()).expect("ask");
        let (mut bytes, mut sum) = (vec![0; each], 0);
        loop {
            let mut length = 0;
            while length < each {
                match from.read(&mut bytes[length..]).expect("read") {
                    0 => return sum + length as u64,
                    more => length += more,
                }
            }
            sum += length as u64;
            std::thread::sleep(pause);
        }
    }

    /// Ends it, and returns its report.
    fn end(mut self, own: &Path) -> Value {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not 0");
        kill_process(pid, Signal::TERM).expect("end nginx");
        self.child.wait().expect("wait");
        serde_json::from_slice(&std::fs::read(own.join("report")).expect("a report")).expect("JSON")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn pages_that_nginx_sends_are_released_once_sent() {
    if !support::can_start("nginx", &["nginx", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let (scratch, outside) = (QuickDisk::new(), support::scratch());
    let file = scratch.path().join("file");
    let bytes = vec![0x5a; usize::try_from(FILE_BYTES).expect("small")];
    std::fs::write(&file, bytes).expect("write");
    let resident = || support::resident_bytes(std::slice::from_ref(&file));
    evict(&file);
    let nginx = Nginx::start(scratch.path(), outside.path());
    // One after the other, and several at once.
    for clients in [1, 6] {
        std::thread::scope(|scope| {
            for nth in 0..clients {
                let nginx = &nginx;
                scope.spawn(move || {
                    let pause = Duration::from_millis(4 + nth);
                    let sum = nginx.read_slowly("file", 1 << 20, pause);
                    assert!(sum > FILE_BYTES, "{sum} bytes came");
                });
            }
        });
        let left = support::eventually("sent pages go", WAIT_TIMEOUT, || {
            let left = resident();
            eprintln!("{clients} clients: {left} bytes stay");
            (left <= FILE_BYTES / 50).then_some(left)
        });
        assert!(left <= FILE_BYTES / 50);
    }
    let report = nginx.end(outside.path());
    // Only this file counts: the file with its process number, which it removes as it ends, may be
    // listed as it was when closed.
    let stayed = report["stayed"].as_array().expect("a list").iter();
    let of_file = stayed.filter(|stayed| stayed["path"].as_str().map(Path::new) == Some(&file));
    let bytes: u64 = of_file.map(|stayed| stayed["stayed_bytes"].as_u64().expect("bytes")).sum();
    assert_eq!(bytes, resident(), "{report}");
}

/// A client stops reading: the report counts the pages in its queue.
#[test]
fn pages_that_a_socket_queue_still_holds_are_reported() {
    if !support::can_start("nginx and a client that stops", &["nginx", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let (scratch, outside) = (QuickDisk::new(), support::scratch());
    let file = scratch.path().join("file");
    std::fs::write(&file, vec![0x5a; 3 << 20]).expect("write");
    evict(&file);
    let nginx = Nginx::start(scratch.path(), outside.path());
    let mut client = nginx.connect().expect("connect");
    client.write_all(b"GET /file HTTP/1.0\r\n\r\n").expect("ask");
    let resident = || support::resident_bytes(std::slice::from_ref(&file));
    support::eventually("something is sent", WAIT_TIMEOUT, || (resident() > 0).then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    let report = nginx.end(outside.path());
    let held = resident();
    assert!(held > 0, "nothing is held");
    let stayed = &report["stayed"][0];
    assert_eq!(
        (stayed["stayed_bytes"].as_u64(), stayed["why"].as_str()),
        (Some(held), Some("in-flight")),
        "{report}"
    );
    drop(client);
}

/// A program that sends a whole file by one sendfile(2).
const SENDS_ALL: &str = "
import os, socket, sys
listener = socket.socket()
listener.bind(('127.0.0.1', 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
with open(sys.argv[1], 'rb', buffering=0) as file:
    size = os.fstat(file.fileno()).st_size
    sent = os.sendfile(connection.fileno(), file.fileno(), 0, size)
    assert sent == size, sent
";

#[test]
#[ignore = "long: make test-stories"]
fn a_file_sent_by_one_call_is_released_once_sent() {
    const WHOLE_FILE_BYTES: u64 = 400 * MIB;
    if !support::can_start("one large sendfile", &["python3", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let (scratch, outside) = (QuickDisk::new(), support::scratch());
    let file = scratch.path().join("file");
    std::fs::write(&file, vec![0x5a; usize::try_from(WHOLE_FILE_BYTES).expect("small")]).expect("write");
    evict(&file);
    let resident = || support::resident_bytes(std::slice::from_ref(&file));
    let report = outside.path().join("report");
    let mut way = Way::stream_by_library();
    way.add_option(&format!("--report={}", report.display()));
    way.add_option("--json");
    let mut command = way.command(Path::new("python3"));
    let mut server =
        command.args(["-c", SENDS_ALL]).arg(&file).stdout(Stdio::piped()).spawn().expect("start");
    let mut port = String::new();
    std::io::BufReader::new(server.stdout.take().expect("piped")).read_line(&mut port).expect("a port");
    let port: u16 = port.trim().parse().expect("a port");
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    let (mut bytes, mut sum) = (vec![0; 8 << 20], 0);
    loop {
        let length = client.read(&mut bytes).expect("read");
        if length == 0 {
            break;
        }
        assert!(bytes[..length].iter().all(|&byte| byte == 0x5a), "other bytes came");
        sum += length as u64;
    }
    assert!(server.wait().expect("wait").success());
    let report: Value = serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
    assert_eq!(sum, WHOLE_FILE_BYTES);
    // Files in its queue as the process ended.
    assert!(resident() <= WHOLE_FILE_BYTES / 50, "{} bytes stay; {report}", resident());
    let stayed = report["stayed"].as_array().expect("a list").iter();
    let of_file = stayed.filter(|stayed| stayed["path"].as_str().map(Path::new) == Some(&file));
    let said: Vec<_> =
        of_file.map(|stayed| (stayed["stayed_bytes"].as_u64(), stayed["why"].as_str())).collect();
    match resident() {
        0 => assert!(said.is_empty(), "{report}"),
        held => assert_eq!(said, [(Some(held), Some("in-flight"))], "{report}"),
    }
}
