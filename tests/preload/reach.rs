//! Ways to read and write that a stream's rules once missed, silently: for each, a cold file is left cold, and what was hot stays hot.
//! Residency is `fincore`'s.

use std::path::Path;
use std::process::Command;

use crate::support;
use crate::support::command::finish;
use crate::support::compare::Way;
use crate::support::loop_images::QuickDisk;
use crate::support::{MIB, evict};

/// A command of these words, as a stream, in a directory.
fn stream(words: &[&str], directory: &Path) -> Command {
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = Way::run(&["--as", "stream"], "").command(Path::new(program));
    command.args(arguments).current_dir(directory);
    command
}

fn resident(path: &Path) -> u64 {
    support::resident_bytes(&[path.to_owned()])
}

#[test]
fn one_large_read_leaves_nothing() {
    if !support::can_start("one large read", &["dd", "head", "python3", "fincore"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = QuickDisk::new();
    let here = scratch.path();
    let file = here.join("file");
    let mut make = Command::new("dd");
    make.args(["if=/dev/zero", "of=file", "bs=1M", "count=450", "conv=fsync", "status=none"]);
    finish(make.current_dir(here)).fine();
    for words in [
        // In two calls, the second of which meets what was read ahead for the first.
        &["dd", "if=file", "of=/dev/null", "bs=300M", "status=none"][..],
        &["python3", "-c", "assert len(open('file', 'rb').read()) == 450 << 20"],
        &[
            "python3",
            "-c",
            "import os; assert len(os.pread(os.open('file', 0), 1 << 30, 777)) == (450 << 20) - 777",
        ],
    ] {
        evict(&file);
        finish(&mut stream(words, here)).fine();
        let left = resident(&file);
        assert!(left <= MIB, "{words:?}: {left} bytes of a cold file stay");
        finish(
            Command::new("head")
                .args(["-c", "104857600", "file"])
                .current_dir(here)
                .stdout(std::process::Stdio::null()),
        )
        .fine();
        let hot = resident(&file);
        assert!(hot >= 100 * MIB, "{hot} bytes are hot");
        finish(&mut stream(words, here)).fine();
        let left = resident(&file);
        assert!(left >= 100 * MIB && left <= hot, "{words:?}: {hot} bytes were hot, {left} are");
    }
}
