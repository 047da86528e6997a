//! Servers of other distributions, unpacked into a folder (`scripts/unpack-suite.sh`) and run in a
//! chroot(2) in a mount namespace of their own. The chroot makes the folder's own C library the
//! server's. So it needs no explicit loader, and its process has the usual name.
//!
//! Invariants: needs root; leaves no mount behind; every step ends in exec(2), so that the process
//! becomes the server itself.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The path of the home's `data` as the server sees it.
pub const INNER_DATA_PATH: &str = "/data";

/// Arguments: the unpacked folder; a directory with `root`, `data`, `run` and `out`; and the
/// command to start inside.
const ENTER_SCRIPT: &str = r#"
set -eu
unpacked=$1 home=$2
shift 2
mount --make-rprivate /
mount -t tmpfs root "$home/root"
cd "$home/root"
mkdir usr etc data run out dev proc sys tmp
mount --bind "$unpacked/usr" usr
mount --bind "$unpacked/etc" etc
mount --rbind /dev dev
mount --rbind /proc proc
# MariaDB asks there for a disk's blocks.
mount --rbind /sys sys
for name in data run out; do
    mount --bind "$home/$name" "$name"
done
for name in bin sbin lib lib64; do
    if [ -L "$unpacked/$name" ]; then
        cp -P "$unpacked/$name" .
    elif [ -d "$unpacked/$name" ]; then
        mkdir "$name"
        mount --bind "$unpacked/$name" "$name"
    fi
done
exec chroot . "$@"
"#;

/// Creates a server's home: `data`, `run` for its socket and output, `out` for files that a client
/// writes.
///
/// # Panics
///
/// If it cannot be created.
pub fn make_home(home: &Path) {
    for name in ["root", "data", "run", "out"] {
        std::fs::create_dir_all(home.join(name)).expect("make a server's directories");
    }
}

/// Returns a command that enters the folder; the caller adds the program and its arguments. The
/// process ends with the thread that starts it.
pub fn enter(unpacked: &Path, home: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", "unshare", "--mount", "--", "sh", "-c", ENTER_SCRIPT, "sh"]);
    command.args([unpacked, home]);
    command
}

/// Returns the path for the guard's `--only`, for a server with its home below `scratch` that may
/// be unpacked in a folder.
pub fn seen(unpacked: Option<&Path>, scratch: &Path) -> PathBuf {
    unpacked.map_or_else(|| scratch.to_owned(), |_| INNER_DATA_PATH.into())
}

/// Returns the folder that an environment variable names.
pub(super) fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}
