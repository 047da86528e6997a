//! Containers of podman, with crun: a `MariaDB` whose image is made here of Debian's packages, on
//! an overlay with the layer of that image below.
//!
//! The data directory is in the image, so that its files come from the layer below and are copied
//! up when the server writes to them. Programs are this machine's, mounted read-only. No network is
//! used.
//!
//! Invariants: podman's storage is below the given directory, except for its files in `/run`;
//!  containers end with their handle. Needs root, and an overlay on the file system of that
//! directory.

use super::{MIB, eventually};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Programs that it needs.
pub(crate) const REQUIRED_PROGRAMS: [&str; 8] =
    ["podman", "crun", "conmon", "mariadbd", "mariadb-install-db", "mariadb", "setpriv", "tar"];

/// The path of its data, as it sees it.
pub(crate) const DATA: &str = "/var/lib/data";

/// Minimum bytes that [`Container::fill_binlogs`] leaves in the page cache without a guard.
///
pub(crate) const FILLED_BYTES_MIN: u64 = 40 * MIB;

/// Deadline for an emulated machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// The files that podman stores, and its image.
pub(crate) struct Engine {
    home: PathBuf,
}

/// A running container.
pub(crate) struct Container<'a> {
    engine: &'a Engine,
    name: &'static str,
    pid: u32,
}

impl Engine {
    /// Creates the image below `home`.
    pub(crate) fn new(home: &Path) -> Self {
        let (engine, image) = (Self { home: home.to_path_buf() }, home.join("image"));
        for directory in ["var/lib", "usr", "etc", "dev", "proc", "sys", "run", "tmp"] {
            std::fs::create_dir_all(image.join(directory)).expect("make a directory of the image");
        }
        for (link, target) in
            [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
        {
            std::os::unix::fs::symlink(target, image.join(link)).expect("make a link of the image");
        }
        for file in ["passwd", "group", "ld.so.cache"] {
            std::fs::copy(Path::new("/etc").join(file), image.join("etc").join(file)).expect("copy a file");
        }
        run_successfully(
            Command::new("mariadb-install-db")
                .args(["--no-defaults", "--user=root", "--skip-test-db", "--skip-name-resolve"])
                .args(["--auth-root-authentication-method=normal", "--innodb-log-file-size=16M"])
                .arg(format!("--datadir={}", image.join(&DATA[1..]).display())),
        );
        engine.import(&image, "pagekeeper-test");
        engine
    }

    /// Creates an image from a directory.
    pub(crate) fn import(&self, directory: &Path, name: &str) {
        let layer = self.home.join("layer.tar");
        run_successfully(
            Command::new("tar")
                .arg("--create")
                .arg("--file")
                .arg(&layer)
                .arg("--directory")
                .arg(directory)
                .arg("."),
        );
        run_successfully(self.podman().arg("import").arg(&layer).arg(name));
        std::fs::remove_file(&layer).expect("remove the layer");
    }

    /// Starts a server in a container, with more arguments of `podman run`.
    pub(crate) fn start(&self, name: &'static str, arguments: &[&str]) -> Container<'_> {
        run_successfully(
            self.podman()
                .args([
                    "run",
                    "--detach",
                    "--network=none",
                    "--ulimit=nofile=1024:1024",
                    "--ulimit=nproc=1024:1024",
                    "--volume=/usr:/usr:ro",
                    "--name",
                    name,
                ])
                .args(arguments)
                .args(["pagekeeper-test", "mariadbd", "--no-defaults", "--user=root", "--skip-networking"])
                .arg(format!("--datadir={DATA}"))
                .args(["--socket=/run/socket", "--pid-file=/run/pid", "--log-error=/run/log.err"])
                .args(["--log-bin=binlog", "--binlog-format=ROW", "--sync-binlog=1", "--max-binlog-size=16M"])
                .args(["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"]),
        );
        let container = Container { engine: self, name, pid: self.pid(name) };
        eventually("its server answers", RUN_TIMEOUT, || container.try_execute("SELECT 1").then_some(()));
        container.execute("CREATE DATABASE d; CREATE TABLE d.t (v LONGBLOB)");
        container
    }

    /// Returns the first process of a container, as seen from here.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        let shown = run_successfully(self.podman().args(["inspect", "--format={{.State.Pid}}", name]));
        String::from_utf8_lossy(&shown.stdout).trim().parse().expect("a process's number")
    }

    /// Returns a command of podman with this engine's storage.
    pub(crate) fn podman(&self) -> Command {
        let mut command = Command::new("podman");
        command
            .arg("--root")
            .arg(self.home.join("storage"))
            .arg("--runroot")
            .arg(self.home.join("run"))
            .arg("--tmpdir")
            .arg(self.home.join("tmp"))
            .args(["--cgroup-manager=cgroupfs", "--events-backend=none", "--storage-driver=overlay"])
            .args(["--runtime=crun", "--log-level=error"]);
        command
    }
}

impl Container<'_> {
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

    /// Makes the container write a file that is not read again, so that its clean pages
    /// are charged to the container.
    pub(crate) fn fill_file(&self, bytes: u64) {
        let count = format!("count={}", bytes / MIB);
        let dd = ["dd", "if=/dev/zero", "of=/var/lib/idle", "bs=1M", &count, "conv=fsync", "status=none"];
        run_successfully(self.engine.podman().args(["exec", self.name]).args(dd));
    }

    /// Returns the resident bytes of its binlogs: of the files in the layer that the container
    /// writes to, which have the pages.
    pub(crate) fn resident_binlogs(&self) -> u64 {
        let format = "--format={{.GraphDriver.Data.UpperDir}}";
        let shown = run_successfully(self.engine.podman().args(["inspect", format, self.name]));
        let upper = PathBuf::from(String::from_utf8_lossy(&shown.stdout).trim());
        let is_binlog = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.strip_prefix("binlog.").is_some_and(|end| end.parse::<u32>().is_ok())
        };
        let files =
            super::files_in(&upper.join(&DATA[1..])).into_iter().filter(is_binlog).collect::<Vec<_>>();
        super::resident_bytes(&files)
    }

    fn execute(&self, sql: &str) {
        assert!(self.try_execute(sql), "{sql}");
    }

    fn try_execute(&self, sql: &str) -> bool {
        let mut client = Command::new("mariadb");
        client
            .args(["--no-defaults", "--batch", "--user=root", "--execute", sql])
            .arg(format!("--socket=/proc/{}/root/run/socket", self.pid))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        client.status().expect("run mariadb").success()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A mount of a directory on itself, which podman leaves there.
        let _ = Command::new("umount").arg("--lazy").arg(self.home.join("storage/overlay")).output();
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.engine.podman().args(["rm", "--force", "--time=1", self.name]).output();
    }
}

fn run_successfully(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("start a program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
    output
}
