//! A server of another distribution, unpacked into a folder (`scripts/unpack-suite.sh`), in a chroot(2) in a mount namespace of its own:
//! the folder brings its own C library, and so the server's process is called as everywhere.
//!
//! Invariants: needs root, and leaves no mount behind; every step ends in exec(2), so that the process is the server itself in the end.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a server in there sees `data` of its home.
pub const DATA: &str = "/data";

/// $1: the unpacked folder; $2: a directory with `root`, `data`, `run` and `out`; then what to start in there.
const BEGIN: &str = r#"
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

/// Makes a server's home: `data`, `run` for its socket and what it says, `out` for what a client writes.
///
/// # Panics
///
/// Where it can't be made.
pub fn make_home(home: &Path) {
    for name in ["root", "data", "run", "out"] {
        std::fs::create_dir_all(home.join(name)).expect("make a server's directories");
    }
}

/// A command in there, its program and arguments yet to be added. It ends with the thread that starts it.
pub fn enter(unpacked: &Path, home: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", "unshare", "--mount", "--", "sh", "-c", BEGIN, "sh"]);
    command.args([unpacked, home]);
    command
}

/// What the guard's `--only` is to name for a server whose home is below `scratch`, and that is unpacked in a folder or not.
pub fn seen(unpacked: Option<&Path>, scratch: &Path) -> PathBuf {
    unpacked.map_or_else(|| scratch.to_owned(), |_| DATA.into())
}

/// The folder that a variable of the environment names.
pub(super) fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}
