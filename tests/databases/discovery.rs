//! The guard beside a process that holds very many files open: a server that starts later is found
//! just as soon.
//!
//! Needs root, `bash`, `setpriv` and Debian's `rocksdb-tools`; skips with a sentence otherwise, and
//! fails instead where `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::support;
use crate::support::guard::Guard;
use crate::support::rocksdb::{self, Bench};
use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DESCRIPTORS: usize = 19_900;

/// A deadline far above the two seconds on an idle machine, and far below the minutes for
/// inspecting all descriptors first.
const WAIT_TIMEOUT: Duration = Duration::from_secs(40);

/// A shell that holds this many descriptors.
struct DescriptorHoarder(Child);

impl DescriptorHoarder {
    fn start(descriptors: usize) -> Self {
        let script = format!(
            "ulimit -n {} && for ((i = 0; i < {descriptors}; i++)); do exec {{fd}}</dev/null; done && \
             echo ready; read -r _",
            descriptors + 100
        );
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", "bash", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a shell");
        let mut ready = String::new();
        let output = child.stdout.take().expect("piped");
        std::io::BufReader::new(output).read_line(&mut ready).expect("read what it says");
        assert_eq!(ready, "ready\n");
        Self(child)
    }
}

impl Drop for DescriptorHoarder {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_is_found_soon_beside_a_process_of_very_many_descriptors() {
    let programs: Vec<&str> = rocksdb::REQUIRED_PROGRAMS.into_iter().chain(["bash"]).collect();
    if !support::can_run("finding a server beside many descriptors", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let hoarder = DescriptorHoarder::start(DESCRIPTORS);
    let open = std::fs::read_dir(format!("/proc/{}/fd", hoarder.0.id())).expect("it runs").count();
    assert!(open >= DESCRIPTORS, "{open}");
    let guard = Guard::spawn(&[]);
    guard.wait_for("tick", WAIT_TIMEOUT, |_| true);
    // By then it has read all descriptors that there are.
    std::thread::sleep(Duration::from_secs(6));
    let server = Bench::start(scratch.path(), support::MIB, false);
    let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    assert_eq!(found["profile"], "rocksdb", "{found}");
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
}
