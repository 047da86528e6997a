//! Inputs that never end or never begin: FIFOs and devices where a file is expected, a directory
//! whose listing continues forever. Each is refused in a sentence, or ends at the first signal.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode};

use crate::support::command::{Outcome, finish, program, run};
use crate::support::{can_run, scratch};

fn fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("make a FIFO");
}

#[test]
fn a_fifo_or_device_is_no_configuration_profile_or_list() {
    let dir = scratch();
    let pipe = dir.path().join("fifo");
    fifo(&pipe);
    let naming = dir.path().join("naming.toml");
    std::fs::write(&naming, "profiles = [\"fifo\"]\n").unwrap();
    let refused = |arguments: &[&OsStr], found: &str| {
        let outcome = run(arguments);
        assert_ne!(outcome.code, 0, "{outcome:?}");
        assert!(outcome.stderr.contains(found), "{outcome:?}");
        assert!(outcome.stderr.contains("not a regular file"), "{outcome:?}");
    };
    let text = OsStr::new;
    for (path, found) in [(pipe.as_path(), "a FIFO"), (Path::new("/dev/zero"), "a character device")] {
        let path = path.as_os_str();
        refused(&[text("guard"), text("--once"), text("--config"), path], found);
        refused(&[text("stat"), text("--files-from"), path], found);
        refused(&[text("evict"), text("--files-from"), path], found);
        refused(&[text("warm"), text("--files-from"), path], found);
    }
    refused(&[text("guard"), text("--once"), text("--config"), naming.as_os_str()], "a FIFO");
}

#[test]
fn a_list_of_paths_comes_through_a_pipe_that_is_open() {
    let dir = scratch();
    std::fs::write(dir.path().join("file"), b"x").unwrap();
    let script =
        format!("{} stat --files-from <(echo {})", program().display(), dir.path().join("file").display());
    let outcome = finish(Command::new("bash").arg("-c").arg(script));
    assert!(outcome.expect_success().contains("1 file"));
}

#[test]
fn a_signal_ends_commands_beside_a_listing_that_never_ends() {
    if !can_run("a_signal_ends_commands_beside_a_listing_that_never_ends", &["python3"]) {
        return;
    }
    let dir = scratch();
    let beside = |arguments: &[&str]| -> Outcome {
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/commands/endless_fuse.py"));
        command.arg(dir.path()).arg(program()).args(arguments).arg(dir.path());
        finish(&mut command)
    };
    let warmed = beside(&["warm"]);
    assert_eq!(warmed.code, 1, "{warmed:?}");
    assert!(warmed.stdout.contains("interrupted"), "{warmed:?}");
    let top = beside(&["top", "--once"]);
    assert_eq!(top.code, 0, "{top:?}");
}
