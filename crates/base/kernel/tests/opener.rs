//! Attacks on the opener: while names are exchanged, mounts laid over them and descriptors toggled,
//! nothing but regular files is opened.
//!
//! Each decoy (a FIFO, a device) is watched by inotify(7), which reports every open of its inode,
//! by whatever name, but not that a descriptor of `O_PATH` refers to it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{
    Error, ExpectedFile, InspectedFile, Links, PathHandle, Result, WalkOptions, open_directory, walk,
};
use pagekeeper_testing::{OpenCounter, skip};
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags};

/// Minimum number of outcomes of each kind, which shows that the race was really run.
const OUTCOMES_MIN: usize = 500;
/// Time after which a race ends, whatever its outcomes.
const RACE_TIME_MAX: Duration = Duration::from_secs(20);

/// A special file, and every open of it.
struct Decoy {
    path: PathBuf,
    opens: OpenCounter,
}

impl Decoy {
    /// Returns `None` if it can't be created (no permission), or if its opens look like mere
    /// references.
    fn new(path: PathBuf, kind: FileType) -> Option<Self> {
        // The device of /dev/null, which does no harm when it is opened.
        let device = if kind == FileType::CharacterDevice { rustix::fs::makedev(1, 3) } else { 0 };
        if let Err(error) = rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device) {
            skip(format_args!("can't make a {kind:?}: {error}"));
            return None;
        }
        let decoy = Self { opens: OpenCounter::of(&path), path };
        drop(decoy.open(OFlags::PATH));
        if decoy.was_opened() {
            skip("this kernel reports references to files as opens");
            return None;
        }
        match decoy.open(OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(_) => assert!(decoy.was_opened(), "an open is noticed"),
            // On a file system mounted without devices.
            Err(error) => {
                skip(format_args!("can't open a {kind:?} here at all: {error}"));
                return None;
            }
        }
        Some(decoy)
    }

    fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(CWD, &self.path, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Whether it was opened since the last call.
    fn was_opened(&self) -> bool {
        self.opens.any()
    }
}

/// Calls `act` again and again on another thread, while `opener` runs.
fn while_doing(act: impl Fn() + Sync, opener: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                act();
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(opener));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Opens repeatedly until both outcomes occurred often enough.
fn race(open: impl Fn() -> Result<InspectedFile>) {
    let (mut opened, mut refused) = (0, 0);
    let end = Instant::now() + RACE_TIME_MAX;
    while (opened < OUTCOMES_MIN || refused < OUTCOMES_MIN) && Instant::now() < end {
        match open() {
            Ok(file) => {
                assert_eq!(file.size(), 3);
                opened += 1;
            }
            Err(Error::NotRegular { .. } | Error::OtherFile { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(opened > 0 && refused > 0, "there was a race: {opened} opened, {refused} refused");
}

fn exchange(one: &Path, other: &Path) {
    rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
}

/// Creates a directory with a file `log` and a decoy beside it.
fn file_beside_decoy(kind: FileType) -> Option<(tempfile::TempDir, PathBuf, Decoy)> {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    std::fs::write(&log, b"log").unwrap();
    let decoy = Decoy::new(dir.path().join("decoy"), kind)?;
    Some((dir, log, decoy))
}

#[test]
fn an_exchanged_name_never_opens_a_fifo_or_device() {
    for kind in [FileType::Fifo, FileType::CharacterDevice] {
        let Some((dir, log, decoy)) = file_beside_decoy(kind) else { continue };
        let top = open_directory(dir.path(), Links::Refuse).unwrap();
        let inode = InspectedFile::open(&log, Links::Refuse).unwrap().inode();
        let known = ExpectedFile::Inode(inode);
        while_doing(
            || exchange(&log, &decoy.path),
            || {
                for links in [Links::Follow, Links::Refuse, Links::RefuseAll] {
                    race(|| InspectedFile::open(&log, links));
                }
                race(|| InspectedFile::open_in(top.as_fd(), "log", ExpectedFile::Any, log.clone()));
                race(|| InspectedFile::open_in(top.as_fd(), "log", known, log.clone()));
                race(|| InspectedFile::open_below(top.as_fd(), "log", known, log.clone()));
            },
        );
        assert!(!decoy.was_opened(), "{kind:?}");
    }
}

#[test]
fn a_name_exchanged_between_two_files_opens_the_expected_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [log, other] = ["log", "other"].map(|name| dir.path().join(name));
    std::fs::write(&log, b"log").unwrap();
    std::fs::write(&other, b"secret").unwrap();
    let inode = InspectedFile::open(&log, Links::Refuse).unwrap().inode();
    // `race` compares this file's size.
    while_doing(
        || exchange(&log, &other),
        || race(|| PathHandle::at(&log, Links::Refuse)?.open(ExpectedFile::Inode(inode))),
    );
}

#[test]
fn a_walk_never_opens_a_replacement_of_a_file() {
    for kind in [FileType::Fifo, FileType::CharacterDevice] {
        let Some((dir, log, decoy)) = file_beside_decoy(kind) else { continue };
        let visited = AtomicUsize::new(0);
        let options = WalkOptions { threads: 1, ..WalkOptions::default() };
        let end = Instant::now() + RACE_TIME_MAX;
        while_doing(
            || exchange(&log, &decoy.path),
            || {
                for _ in 0..5000 {
                    walk(&[dir.path().to_path_buf()], &options, &|found| {
                        assert_eq!(found.unwrap().size(), 3);
                        visited.fetch_add(1, Ordering::Relaxed);
                    });
                    if Instant::now() > end {
                        break;
                    }
                }
            },
        );
        assert!(visited.into_inner() > 0);
        assert!(!decoy.was_opened(), "{kind:?}");
    }
}

#[test]
fn a_toggled_descriptor_never_opens_a_device() {
    for kind in [FileType::Fifo, FileType::CharacterDevice] {
        let Some((_dir, log, decoy)) = file_beside_decoy(kind) else { continue };
        let regular = File::open(&log).unwrap();
        let special = File::from(decoy.open(OFlags::RDONLY | OFlags::NONBLOCK).unwrap());
        assert!(decoy.was_opened());
        let toggled = std::sync::Mutex::new(OwnedFd::from(regular.try_clone().unwrap()));
        let number = std::os::fd::AsRawFd::as_raw_fd(&*toggled.lock().unwrap());
        let link = ProcRoot::default().fd_path(std::process::id(), number);
        let inode = InspectedFile::open(&log, Links::Refuse).unwrap().inode();
        while_doing(
            || {
                let mut toggled = toggled.lock().unwrap();
                rustix::io::dup2(&special, &mut toggled).unwrap();
                rustix::io::dup2(&regular, &mut toggled).unwrap();
            },
            || {
                race(|| InspectedFile::open_magic_link(&link, ExpectedFile::Any, log.clone()));
                race(|| InspectedFile::open_magic_link(&link, ExpectedFile::Inode(inode), log.clone()));
            },
        );
        assert!(!decoy.was_opened(), "{kind:?}");
    }
}

/// A process in a mount namespace of its own; ended when dropped.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `script` with `dir` as `$0` in a private mount namespace, and leaves its process there.
fn container(script: &str, dir: &Path) -> Option<Container> {
    if !rustix::process::geteuid().is_root() {
        skip("only root may unshare a mount namespace");
        return None;
    }
    let child = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &format!("{script} && echo ready && read -r _"),
        ])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(child) = child else {
        skip("unshare(1) is not installed");
        return None;
    };
    let mut container = Container(child);
    let mut ready = [0; 6];
    std::io::Read::read_exact(container.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
    Some(container)
}

#[test]
fn a_device_bound_over_a_file_in_a_private_namespace_is_never_opened() {
    let Some((dir, log, decoy)) = file_beside_decoy(FileType::CharacterDevice) else { return };
    std::fs::write(dir.path().join("other"), b"secret").unwrap();
    let script = "cd \"$0\" && touch bound && mount --bind decoy log && mount --bind other bound";
    let Some(container) = container(script, dir.path()) else { return };
    let pid = container.0.id();
    let proc = ProcRoot::default();
    let theirs = proc.open_directory_in_namespace(pid, dir.path()).unwrap();
    let open = |name: &str| {
        InspectedFile::open_in(theirs.as_fd(), name, ExpectedFile::Any, dir.path().join(name)).unwrap_err()
    };
    assert_eq!(
        open("log").to_string(),
        format!("{}: something is mounted over it, not opened", log.display())
    );
    assert!(matches!(open("bound"), Error::MountPoint { .. }), "a regular file is refused, too");
    let reach = proc.in_namespace(pid, &log).unwrap();
    let errors = [
        InspectedFile::open_below(theirs.as_fd(), "log", ExpectedFile::Any, log.clone()).unwrap_err(),
        InspectedFile::open(&reach, Links::Follow).unwrap_err(),
        InspectedFile::open(&reach, Links::RefuseAll).unwrap_err(),
        proc.handle_in_namespace(pid, &log).unwrap().open(ExpectedFile::Any).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::NotRegular { .. }), "{error}");
    }
    let visit = |found: Result<InspectedFile>| assert_ne!(found.unwrap().path().file_name().unwrap(), "log");
    walk(&[reach.parent().unwrap().to_path_buf()], &WalkOptions::default(), &visit);
    assert!(!decoy.was_opened());
    // Outside nothing is mounted.
    assert_eq!(InspectedFile::open(&log, Links::RefuseAll).unwrap().size(), 3);
}

#[test]
fn a_link_in_anothers_root_leads_nowhere_outside() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    std::fs::create_dir(dir.path().join("secret")).unwrap();
    std::fs::write(dir.path().join("secret/log"), b"secret").unwrap();
    let Some(container) =
        container("mount -t tmpfs none \"$0/data\" && ln -s ../secret \"$0/data/db\"", dir.path())
    else {
        return;
    };
    let proc = ProcRoot::default();
    let reach = proc.in_namespace(container.0.id(), &dir.path().join("data/db/log")).unwrap();
    let error = InspectedFile::open(&reach, Links::RefuseAll).unwrap_err();
    assert!(matches!(error, Error::SymbolicLink { .. }), "{error}");
    // Without the link the same path can be opened.
    let reach = proc.in_namespace(container.0.id(), &dir.path().join("secret/log")).unwrap();
    assert_eq!(InspectedFile::open(&reach, Links::RefuseAll).unwrap().size(), 6);
}

#[test]
fn without_proc_nothing_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("log"), b"log").unwrap();
    // This program again, in a namespace where /proc is hidden.
    if let Some(log) = std::env::var_os("PAGEKEEPER_LOG_WITHOUT_PROC") {
        let error = InspectedFile::open(&log, Links::Refuse).unwrap_err();
        assert!(error.to_string().contains("through /proc, which is not mounted here"), "{error}");
        open_directory(Path::new(&log).parent().unwrap(), Links::Refuse).unwrap();
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root may unshare a mount namespace");
    }
    let program = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs none /proc && exec \"$0\" --exact without_proc_nothing_is_opened";
    let Ok(ended) = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(program)
        .env("PAGEKEEPER_LOG_WITHOUT_PROC", dir.path().join("log"))
        .output()
    else {
        return skip("unshare(1) is not installed");
    };
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}
