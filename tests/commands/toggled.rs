//! Beside a process that toggles its descriptors between a file and a device: the device is never
//! opened.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::command::run;
use crate::support::decoys::Decoys;
use crate::support::{can_run, copy_program, eventually, scratch};

/// Forty descriptors lead to the file and to the device in turn, so that some do change whenever
/// one of them is opened.
const TOGGLES: &str = "exec 7<log 8<device; : >ready; while :; do for source in 7 8; do \
                       for fd in {20..59}; do eval \"exec $fd<&$source\"; done; done; done";

/// A process with a database's name; ended when dropped.
struct Toggler(Child);

impl Toggler {
    fn start(dir: &Path) -> Self {
        let program = dir.join("mongod");
        copy_program(Path::new("/bin/bash"), &program);
        let mut command = Command::new(&program);
        command.args(["-c", TOGGLES]).current_dir(dir).stdin(Stdio::null());
        Self(command.spawn().expect("start a copy of bash"))
    }
}

impl Drop for Toggler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn no_command_opens_a_device_that_a_process_toggles_with_a_file() {
    let test = "no_command_opens_a_device_that_a_process_toggles_with_a_file";
    if !can_run(test, &["bash"]) {
        return;
    }
    let dir = scratch();
    let device = dir.path().join("device");
    std::fs::write(dir.path().join("log"), vec![1; 64 << 10]).expect("write a file");
    let mut decoys = Decoys::new();
    decoys.device(&device);
    let toggler = Toggler::start(dir.path());
    let ready = || dir.path().join("ready").exists().then_some(());
    eventually("the process has its files", Duration::from_secs(60), ready);
    // The toggler itself opened it once.
    decoys.opened();
    let was_opened = || !decoys.opened().is_empty();

    let pid = toggler.0.id().to_string();
    for _ in 0..2 {
        let outcome = run(["doctor", "--json", "--watch", "200ms", "--pid", &pid]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        assert!(!was_opened(), "doctor");
    }
    for arguments in [&["guard", "--once", "--dry-run"][..], &["top", "--once", "--interval", "100ms"]] {
        let outcome = run(arguments);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        assert!(!was_opened(), "{arguments:?}");
    }
    std::fs::File::open(&device).expect("open the device");
    assert!(was_opened(), "that it is opened is seen");
}
