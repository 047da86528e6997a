//! A `MariaDB` in a container made by hand: mount and pid namespaces of its own, another root
//! directory, and its data on a file system that is mounted nowhere else.
//!
//! Invariants: the container ends with its handle, also by a panic, and with the thread that
//! started it; its mounts and its loop device go with it. Its files are seen from here through
//! `/proc/PID/root` alone.

use super::{MIB, eventually};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Programs that it needs.
pub(crate) const REQUIRED_PROGRAMS: [&str; 11] = [
    "mariadbd",
    "mariadb-install-db",
    "mariadb",
    "fincore",
    "setpriv",
    "unshare",
    "pivot_root",
    "mount",
    "umount",
    "mkfs.ext4",
    "losetup",
];

/// The path of its data, as it sees it.
pub(crate) const DATA: &str = "/var/lib/data";

/// Minimum bytes that [`Container::fill_binlogs`] leaves in the page cache without a guard.
///
pub(crate) const FILLED_BYTES_MIN: u64 = 40 * MIB;

/// The installation of a database is part of it: some 100 MiB and many syncs.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

/// $1: a directory with `image`; $2: `disk` or `overlay`; $3: what to do in the new root. That is
/// the root of the whole namespace for a disk, and one of the process alone, by chroot(2), for an
/// overlay.
const BEGIN: &str = r#"
set -eu
mount --make-rprivate /
cd "$1"
mkdir disk root lower
mount -o loop,noatime image disk
if [ "$2" = overlay ]; then
    mkdir disk/upper disk/work
    mount -t overlay -o lowerdir=lower,upperdir=disk/upper,workdir=disk/work overlay root
else
    mount -t tmpfs root root
fi
cd root
mkdir -p var/lib/data dev proc run tmp disk old
mount --rbind ../disk disk
[ "$2" = overlay ] || mount --bind ../disk var/lib/data
for name in bin sbin lib lib64 usr etc; do
    if [ -L "/$name" ]; then
        cp -P "/$name" .
    elif [ -d "/$name" ]; then
        mkdir "$name"
        mount --rbind "/$name" "$name"
    fi
done
mount --rbind /dev dev
mount -t proc proc proc
[ "$2" = disk ] || exec chroot . sh -c "$3"
pivot_root . old
cd /
umount -l old
exec sh -c "$3"
"#;

/// The rest, inside its root.
const SERVE: &str = r"
set -eu
# What ext4 puts there is no database's.
rm -rf /var/lib/data/lost+found
mariadb-install-db --no-defaults --user=root --skip-test-db --skip-name-resolve \
    --auth-root-authentication-method=normal --datadir=/var/lib/data >/run/install 2>&1
exec mariadbd --no-defaults --user=root --skip-networking --datadir=/var/lib/data --socket=/run/socket \
    --pid-file=/run/pid --log-error=/run/log.err --log-bin=binlog --binlog-format=ROW --sync-binlog=1 \
    --max-binlog-size=16M --innodb-buffer-pool-size=32M --innodb-log-file-size=16M
";

/// The kind of file system of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataLocation {
    /// A volume: a file system of its own.
    Disk,
    /// The container's own root, an overlay.
    Overlay,
}

/// A running container.
pub(crate) struct Container {
    home: PathBuf,
    on: DataLocation,
    /// `unshare`, whose only child is the container's first process.
    child: Child,
    pid: u32,
}

impl Container {
    /// Creates a container under `parent` and waits until its server answers.
    pub(crate) fn start(parent: &Path, on: DataLocation) -> Self {
        let home = parent.join(format!("{on:?}"));
        std::fs::create_dir(&home).expect("make the container's directory");
        let image = home.join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(1 << 30)).expect("make an image");
        let made = Command::new("mkfs.ext4").arg("-q").arg(&image).status().expect("run mkfs.ext4");
        assert!(made.success(), "mkfs.ext4: {made}");
        let said = std::fs::File::create(home.join("said")).expect("make a file");
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--"])
            .args(["sh", "-c", BEGIN, "sh"])
            .arg(&home)
            .args([if on == DataLocation::Overlay { "overlay" } else { "disk" }, SERVE])
            .stdin(Stdio::null())
            .stdout(said.try_clone().expect("a second handle"))
            .stderr(said)
            .spawn()
            .expect("start unshare");
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let pid = eventually("the container begins", RUN_TIMEOUT, || {
            check(&home, &mut child);
            std::fs::read_to_string(&children).ok()?.trim().parse().ok()
        });
        let mut container = Self { home, on, child, pid };
        eventually("its server answers", RUN_TIMEOUT, || {
            check(&container.home, &mut container.child);
            container.try_execute("SELECT 1").then_some(())
        });
        container.execute("CREATE DATABASE d; CREATE TABLE d.t (v LONGBLOB)");
        container
    }

    /// Returns its server's process, as seen from here.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Fills at least two more binlogs.
    pub(crate) fn fill_binlogs(&self) {
        for _ in 0..40 {
            self.execute("INSERT INTO d.t VALUES (REPEAT('x', 1048576)); DELETE FROM d.t");
        }
    }

    fn execute(&self, sql: &str) {
        assert!(self.try_execute(sql), "{sql}");
    }

    fn try_execute(&self, sql: &str) -> bool {
        Command::new("mariadb")
            .args(["--no-defaults", "--batch", "--user=root", "--execute", sql])
            .arg(format!("--socket=/proc/{}/root/run/socket", self.pid))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("run mariadb")
            .success()
    }

    /// Returns its binlogs: on an overlay, the lower files that have the pages.
    pub(crate) fn binlogs(&self) -> Vec<PathBuf> {
        let below = if self.on == DataLocation::Overlay { "/disk/upper" } else { "" };
        let data = format!("/proc/{}/root{below}{DATA}", self.pid);
        let mut files: Vec<PathBuf> = std::fs::read_dir(data)
            .expect("list the container's data")
            .map(|entry| entry.expect("list the container's data").path())
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                name.strip_prefix("binlog.").is_some_and(|end| end.parse::<u32>().is_ok())
            })
            .collect();
        files.sort();
        files
    }

    /// Ends it, and waits until nothing holds its file system any more: its loop device is free.
    pub(crate) fn end(mut self) {
        self.kill();
        eventually("its file system is let go", RUN_TIMEOUT, || {
            let output = Command::new("losetup")
                .arg("--associated")
                .arg(self.home.join("image"))
                .output()
                .expect("run losetup");
            output.stdout.is_empty().then_some(())
        });
    }

    fn kill(&mut self) {
        // Both calls fail only if the process has ended already; its first process dies with it,
        // and all others with that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.kill();
    }
}

fn check(home: &Path, child: &mut Child) {
    if let Some(status) = child.try_wait().expect("wait for unshare") {
        let said = std::fs::read_to_string(home.join("said")).unwrap_or_default();
        panic!("the container ended with {status}: {said}");
    }
}
