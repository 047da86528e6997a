//! Loop devices over the disk's file, and the end of all mounts when the harness dies.
//!
//! Invariants: programs of their own do all of it, since this process must not wait for its own disk. Whatever ends the harness, no device
//! and no mount stays: a device goes with its last user, from its first moment on.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Bytes of a sector of the device, which a power cut leaves as a whole.
///
/// With less no file system in between can be counted on. ext4 looks at the checksum of its superblock, of 1 KiB, before it would get that
/// again from its journal; and XFS takes a block of 4 KiB whose first 512 bytes are of a later time than a change in its log for one that
/// has all of that change.
pub(crate) const SECTOR: usize = 4096;

/// Has the device open, marks it to be freed when nobody has, and does the rest. Signals to the whole group of processes, as Ctrl-C
/// gives them, don't come in between. What the kernel says of a failure is added.
const ON_DEVICE: &str = r#"trap "" HUP INT TERM
device=$(losetup --find --show --direct-io=on --sector-size "$1" "$2") || exit
exec 3<"$device"
losetup --detach "$device" || exit
shift 2
"$@" "$device" && exit
code=$?
dmesg | grep --word-regexp "${device#/dev/}" | tail --lines 6 >&2
exit $code"#;

/// Runs a program whose last argument is to be a device over a file of the disk. The device goes with its last user.
pub(crate) fn on_device(image: &Path, program: &[&str]) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", ON_DEVICE, "sh"]).arg(SECTOR.to_string()).arg(image).args(program);
    let output = shell.stdin(Stdio::null()).output().map_err(|error| format!("{program:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A shell that takes mounts away as soon as this value goes, or this process dies.
pub(crate) struct Cleaner(Child);

impl Cleaner {
    /// For mount points, the upper ones first.
    pub(crate) fn new(points: &[&Path]) -> Self {
        let script = r#"trap "" HUP INT TERM; read -r _; for point; do umount --no-canonicalize --lazy "$point"; done"#;
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).args(points);
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(shell.unwrap())
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        // The end of its input is what it waits for.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
