//! A disk that is slow but wide, on any machine: a FUSE mount with a fixed time per request, a
//! fixed number of requests served at once, optional caps on requests and bytes per second, and an
//! optional XFS on a loop device over it.
//!
//! It runs in its own process, so that it never waits for itself. `MOUNTPOINT/.stats` has its
//! account ([`DiskStats`] as JSON); truncating that file resets the counts.
//!
//! Invariants: the disk is taken down however its process ends, except by SIGKILL. SIGINT, SIGTERM
//! and SIGHUP end it in order. A disk that a [`SlowDisk`] started ends with that value, and with
//! the thread that started it. Fails with a sentence that says what to do, before anything is
//! changed where possible.

mod delay;
mod handle;
mod place;
mod schedule;
mod serve;
mod settings;
mod stats;
mod tree;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result, bail, ensure};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use delay::DelayQueue;
use place::{DiskImage, MountList};
use serve::SlowFileSystem;

pub use handle::SlowDisk;
pub use settings::DiskSettings;
pub use stats::DiskStats;

/// The process's output when the disk is ready.
const READY_LINE: &str = "ready";

/// Threads that take requests. Each executes what it took, so that a wait for a `--backing` disk
/// does not hold up all.
const SERVING_THREADS: usize = 4;

/// The arguments of `slowdisk`.
#[derive(Debug, clap::Args)]
pub struct SlowDiskArguments {
    /// An empty directory, where the disk is mounted
    mountpoint: PathBuf,
    #[command(flatten)]
    settings: DiskSettings,
    /// End with this process, which is the one that started this one.
    #[arg(long, hide = true)]
    parent: Option<u32>,
}

/// The reason why a disk ends.
#[derive(Debug)]
enum DiskEnd {
    Signal,
    Unmounted,
    Panic,
}

/// Runs the disk until a signal comes.
pub fn run(arguments: &SlowDiskArguments) -> Result<()> {
    let settings = &arguments.settings;
    // A signal that comes during the creation ends the disk afterwards.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("can't catch signals")?;
    arguments.parent.map_or(Ok(()), tie_to_parent)?;
    place::check_machine()?;
    let mount = place::check_mount_point(&arguments.mountpoint)?;
    let xfs = settings.xfs.as_deref().map(place::check_mount_point).transpose()?;
    ensure!(xfs.as_ref() != Some(&mount), "the disk and the XFS need a directory each");
    if xfs.is_some() {
        place::check_xfs(settings.size)?;
    }
    let backing = place::backing(settings.backing.as_deref(), settings.size)?;
    // Before there are threads, which inherit it.
    if let Err(error) = place::take_precedence() {
        eprintln!("slowdisk: {error:#}; beside other load the disk may be slower than it should");
    }

    let (send, ends) = channel();
    end_on_panic(send.clone());
    let delay = Arc::new(DelayQueue::new());
    let timer = delay.spawn().context("can't start a thread")?;
    let _image = xfs.as_ref().map(|_| DiskImage::make(&backing, settings.size)).transpose()?;
    let disk = SlowFileSystem::new(backing, Arc::clone(&delay), settings.keep_cache)
        .context("can't read the --backing directory")?;
    let mut mounts = MountList::default();
    let session = Session::new(disk, &mount, &config())
        .and_then(Session::spawn)
        .with_context(|| format!("can't mount on {}", mount.display()))?;
    mounts.add(&mount);
    let unmounted = send.clone();
    let served = std::thread::spawn(move || {
        let ended = session.join();
        // Nobody listens if this process unmounted it.
        let _ = unmounted.send(DiskEnd::Unmounted);
        ended
    });
    if let Err(error) = place::raise_dirty_limits(&mount) {
        eprintln!("slowdisk: {error:#}; buffered writes may be slower than the disk");
    }
    if let Some(xfs) = &xfs {
        place::mount_xfs(&mount, xfs, &mut mounts)?;
    }
    delay.begin(settings.model());
    if arguments.parent.is_none() {
        let on_it = xfs.as_ref().map(|xfs| format!("; an XFS on it is at {}", xfs.display()));
        let on_it = on_it.unwrap_or_default();
        eprintln!("{} is a disk of {settings}{on_it}; Ctrl-C takes it down", mount.display());
    }
    println!("{READY_LINE}");

    std::thread::spawn(move || signals.forever().next().map(|_| send.send(DiskEnd::Signal)));
    let why = ends.recv().context("nothing can end this disk")?;
    mounts.take_down()?;
    let served = served.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    delay.end();
    let answered = timer.join();
    match why {
        DiskEnd::Panic => bail!("the disk failed"),
        DiskEnd::Unmounted => bail!("{} was unmounted by someone else", mount.display()),
        DiskEnd::Signal => {
            served.context("the disk failed")?;
            ensure!(answered.is_ok(), "the disk failed");
            Ok(())
        }
    }
}

/// Ends this process when `parent` ends, from now on.
fn tie_to_parent(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("can't be tied to the parent's life")?;
    // The parent may have ended before.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    ensure!(now == Some(parent), "process {parent} has ended");
    Ok(())
}

fn end_on_panic(send: Sender<DiskEnd>) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        let _ = send.send(DiskEnd::Panic);
    }));
}

fn config() -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("pagekeeper-slowdisk".to_owned()),
        MountOption::Subtype("slowdisk".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(SERVING_THREADS);
    config.clone_fd = true;
    config
}
