//! Loop devices over the disk's file, and the removal of all mounts when the harness dies.
//!
//! Invariants: separate programs do all of it, because this process must not wait for its own disk.
//! However the harness ends, no device and no mount stays: a device goes with its last user, from
//! its first moment on.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Bytes of a sector of the device, which a power cut leaves whole.
///
/// With smaller sectors no file system in between is reliable. ext4 checks the checksum of its
/// superblock, of 1 KiB, before it would restore it from its journal. XFS takes a block of 4 KiB
/// whose first 512 bytes are newer than a change in its log for one that has all of that change.
pub(crate) const SECTOR: usize = 4096;

/// Keeps the device open, marks it to be freed with its last user, and does the rest. Signals to
/// the whole process group, as by Ctrl-C, are ignored meanwhile. A failure includes the kernel's
/// message.
const ON_DEVICE: &str = r#"trap "" HUP INT TERM
device=$(losetup --find --show --direct-io=on --sector-size "$1" "$2") || exit
exec 3<"$device"
losetup --detach "$device" || exit
shift 2
"$@" "$device" && exit
code=$?
dmesg | grep --word-regexp "${device#/dev/}" | tail --lines 6 >&2
exit $code"#;

/// Runs a program with a device over a file of the disk as its last argument. The device goes with
/// its last user.
pub(crate) fn on_device(image: &Path, program: &[&str]) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", ON_DEVICE, "sh"]).arg(SECTOR.to_string()).arg(image).args(program);
    let output = shell.stdin(Stdio::null()).output().map_err(|error| format!("{program:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A shell that removes mounts as soon as this value is dropped, or this process dies.
pub(crate) struct Cleaner(Child);

impl Cleaner {
    /// Creates a cleaner of mount points, the upper ones first.
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
        // The shell waits for the end of its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
