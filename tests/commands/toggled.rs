//! Beside a process that toggles its descriptors between a file and a device: the device is never opened.

use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, inotify};

use crate::support::command::run;
use crate::support::{can_run, copy_program, eventually, scratch};

/// Forty descriptors lead to the file and to the device in turn, so that some do change whenever one of them is opened.
const TOGGLES: &str = "exec 7<log 8<device; : >ready; while :; do for source in 7 8; do \
                       for fd in {20..59}; do eval \"exec $fd<&$source\"; done; done; done";

/// A process called as a database is; ended with its value.
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
    // That of /dev/null, which does no harm when it is opened.
    let number = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR, number).expect("make a device");
    let toggler = Toggler::start(dir.path());
    let ready = || dir.path().join("ready").exists().then_some(());
    eventually("the process has its files", Duration::from_secs(60), ready);
    let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
    let watch = inotify::init(flags).expect("watch");
    inotify::add_watch(&watch, &device, inotify::WatchFlags::OPEN).expect("watch the device");
    let mut buffer = [MaybeUninit::<u8>::uninit(); 1024];
    let mut was_opened = || inotify::Reader::new(&watch, &mut buffer).next().is_ok();

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
