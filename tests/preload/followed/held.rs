//! Commands that are held because they write faster than their disk: whichever process ends
//! beside them, they continue; and they end immediately when killed.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagekeeper_testing::ThrottledDisk;
use rustix::process::{Signal, kill_process};

use super::{WAIT_TIMEOUT, follower};
use crate::support::command::{pagekeeper, program};
use crate::support::memory_group::MemoryGroup;
use crate::support::{self, MIB, eventually, stat_fields};

/// Bytes that a command writes, and bytes per second of its disk.
const WRITTEN_BYTES: u64 = 64 * MIB;
const DISK_BYTES_PER_SECOND: u64 = 16 * MIB;

/// Writes, and then allocates memory without end.
const ALLOCATING_WRITER: &str = "import sys
output, taken = open(sys.argv[1], 'wb', buffering=0), []
for _ in range(64): output.write(bytes(1 << 20))
while True:
    taken.append(bytearray(b'1') * (1 << 20))
    output.write(bytes(1 << 16))
";

fn disk(test: &str, programs: &[&str]) -> Option<ThrottledDisk> {
    support::can_follow(test, programs)
        .then(|| ThrottledDisk::new("ext4", test, 512 * MIB, DISK_BYTES_PER_SECOND))?
}

/// Copies from /dev/zero: a hold ends a read early, as any signal does.
fn dd(to: &Path) -> Vec<String> {
    let (to, count) = (format!("of={}", to.display()), format!("count={}", WRITTEN_BYTES / MIB));
    ["dd", "if=/dev/zero", &to, "bs=1M", &count, "iflag=fullblock"].map(str::to_owned).to_vec()
}

fn start(run: &mut Command) -> Child {
    run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn is_held(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| fields[0] == "t")
}

/// Returns a held process below this one.
fn held_below(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.find_map(|child| if is_held(child) { Some(child) } else { held_below(child) })
}

#[test]
fn a_held_command_continues_as_its_follower_is_killed() {
    let Some(disk) = disk("a follower that holds its command is killed", &["dd"]) else { return };
    let to = disk.path().join("to");
    let mut child = start(pagekeeper().args(["run", "--report", "--"]).args(dd(&to)));
    let held = eventually("it is held", WAIT_TIMEOUT, || held_below(child.id()));
    kill_process(follower(&child).expect("a follower"), Signal::KILL).unwrap();
    eventually("it is let go", WAIT_TIMEOUT, || (!is_held(held)).then_some(()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::metadata(&to).unwrap().len(), WRITTEN_BYTES);
}

/// Only one of the two runs can hold the command.
#[test]
fn a_command_of_a_run_inside_another_is_held_and_ends() {
    let Some(disk) = disk("a run inside another", &["dd"]) else { return };
    let to = disk.path().join("to");
    let mut run = pagekeeper();
    run.args(["run", "--report", "--"]).arg(program()).args(["run", "--report", "--"]).args(dd(&to));
    let mut child = start(&mut run);
    eventually("it is held", WAIT_TIMEOUT, || held_below(child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::metadata(&to).unwrap().len(), WRITTEN_BYTES);
}

#[test]
fn a_held_command_that_takes_all_memory_ends() {
    let test = "a held command without memory";
    let Some(disk) = disk(test, &["python3"]) else { return };
    let Some(group) = MemoryGroup::new(test, 256 * MIB) else { return };
    let to = disk.path().join("to");
    let mut run = group.command(program().to_str().unwrap());
    let mut child = start(
        run.args(["run", "--report", "--as=stream", "--", "python3", "-c", ALLOCATING_WRITER]).arg(&to),
    );
    let held = eventually("it is held", WAIT_TIMEOUT, || held_below(child.id()));
    let ended = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9), "{ended:?}");
    eventually("nothing of it is left", WAIT_TIMEOUT, || {
        (!Path::new(&format!("/proc/{held}")).exists()).then_some(())
    });
}
