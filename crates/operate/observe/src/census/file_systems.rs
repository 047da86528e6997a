//! File systems whose files can have pages: selects the mounts to walk, each file system once.
//!
//! Invariants: a file system that is mounted several times is walked from its widest mount. Not
//! entered are
//! - file systems without stored data;
//! - tmpfs, whose pages `meminfo` counts as shmem;
//! - network file systems, unless the options ask for them: their server might never answer;
//! - overlays whose layers are walked, since their pages are those of the layers.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::hang::announce;
use pagekeeper_kernel::process::{Mount, ProcRoot};
use pagekeeper_kernel::{Inode, stat_of_name};
use pagekeeper_text::unescaped;

/// A file system with files to walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WalkedFileSystem {
    /// The path at which the walk begins, as this process can open it.
    pub(super) point: PathBuf,
    /// The device by which tracing names it.
    pub(super) traced: u64,
    /// Its type: `ext4`.
    pub(super) kind: String,
    /// Its device or other source: `/dev/vda`.
    pub(super) source: String,
}

/// The file systems to walk, and those to leave out.
#[derive(Debug, Clone, Default)]
pub(super) struct FileSystems {
    /// Each file system once.
    pub(super) walked: Vec<WalkedFileSystem>,
    /// Directories that are not entered on the way: other mounts.
    pub(super) excluded: HashSet<PathBuf>,
    /// Mount points of network file systems that were left out.
    pub(super) network: Vec<PathBuf>,
    /// Whether only some directories are walked, not whole file systems.
    pub(super) scoped: bool,
    /// Overlays whose layers are walked: their device, and a layer.
    pub(super) overlays: Vec<(u64, PathBuf)>,
}

/// The role of a file system for the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSystemUse {
    /// Its files are on this machine.
    Local,
    /// Layers below hold its pages.
    Overlay,
    /// A server or a program answers for it.
    Network,
    /// It has no files with pages of their own, or only pages that `meminfo` counts as shmem.
    Nothing,
}

fn use_of(mount: &Mount) -> FileSystemUse {
    match mount.kind.as_str() {
        _ if mount.is_remote() => FileSystemUse::Network,
        "overlay" => FileSystemUse::Overlay,
        "proc" | "sysfs" | "cgroup" | "cgroup2" | "devpts" | "devtmpfs" | "tmpfs" | "debugfs" | "tracefs"
        | "securityfs" | "pstore" | "bpf" | "mqueue" | "configfs" | "fusectl" | "binfmt_misc"
        | "hugetlbfs" | "rpc_pipefs" | "efivarfs" | "nsfs" | "selinuxfs" | "nfsd" | "resctrl" => {
            FileSystemUse::Nothing
        }
        _ => FileSystemUse::Local,
    }
}

/// Returns a layer of an overlay that is visible from here, where it is walked itself: the upper
/// one if there is one.
fn visible_layer(mount: &Mount) -> Option<PathBuf> {
    let directory = |bytes| Path::new(OsStr::from_bytes(bytes));
    let (upper, work) = (mount.option("upperdir"), mount.option("workdir"));
    let lowers = mount.option("lowerdir");
    let (upper, work) = (upper.as_deref().map(Path::new), work.as_deref().map(Path::new));
    let lowers = lowers.iter().flat_map(|lowers| lowers.as_bytes().split(|byte| *byte == b':'));
    let lowers: Vec<&Path> = lowers.map(directory).collect();
    let layer = upper.or(lowers.first().copied())?;
    if layer.is_absolute() {
        return is_directory(layer).then(|| layer.to_path_buf());
    }
    let relative: Vec<&Path> = upper.into_iter().chain(work).chain(lowers).collect();
    let base = mount.point.ancestors().find(|base| is_base_of(mount, base, &relative))?;
    Some(base.join(layer))
}

/// Returns whether a layer exists; a link to one counts.
fn is_directory(path: &Path) -> bool {
    announce(path).is_ok_and(|_call| path.is_dir())
}

/// Returns whether the layers of an overlay are named relative to this directory, as container
/// runtimes do if there are many. That is so if all of them exist there, and the overlay's root has
/// the inode number of one of them.
fn is_base_of(mount: &Mount, base: &Path, layers: &[&Path]) -> bool {
    let Ok(root) = stat_of_name(&mount.point).map(|stat| Inode::of(&stat)) else { return false };
    let layers: Vec<_> = layers.iter().map(|layer| base.join(layer)).collect();
    root.dev == mount.dev
        && layers.iter().all(|layer| is_directory(layer))
        && layers.iter().any(|layer| stat_of_name(layer).is_ok_and(|stat| stat.st_ino == root.ino))
}

impl FileSystems {
    /// Returns the file systems of the whole host: those mounted for this process, and those that
    /// only processes in other mount namespaces see, through `/proc/PID/root`.
    pub(super) fn of_host(proc: &ProcRoot, network: bool) -> pagekeeper_kernel::Result<Self> {
        let own = proc.own_mounts()?;
        let mut file_systems = Self::choose(&own, Path::new("/"), network, visible_layer);
        let mut namespaces: HashSet<u64> = proc.mount_namespace(std::process::id()).into_iter().collect();
        for pid in proc.pids()? {
            let Ok(namespace) = proc.mount_namespace(pid) else { continue };
            if !namespaces.insert(namespace) {
                continue;
            }
            let Ok(mounts) = proc.mounts(pid) else { continue };
            let theirs = Self::choose(&mounts, &proc.root(pid), network, visible_layer);
            let mut known: HashSet<u64> =
                file_systems.walked.iter().map(|file_system| file_system.traced).collect();
            // Their layers are visible from here, if not from there.
            known.extend(file_systems.overlays.iter().map(|(dev, _)| *dev));
            file_systems
                .walked
                .extend(theirs.walked.into_iter().filter(|file_system| !known.contains(&file_system.traced)));
            file_systems.excluded.extend(theirs.excluded);
            file_systems.overlays.extend(theirs.overlays);
        }
        Ok(file_systems)
    }

    /// Returns the file systems of some directories, and those mounted below them.
    pub(super) fn of_directories(
        proc: &ProcRoot,
        directories: &[PathBuf],
        network: bool,
    ) -> pagekeeper_kernel::Result<Self> {
        let mounts = proc.own_mounts()?;
        let mut file_systems = Self { scoped: true, ..Self::default() };
        for directory in directories {
            let _call = announce(directory)?;
            let point = std::fs::canonicalize(directory)
                .map_err(|error| pagekeeper_kernel::Error::call("realpath", directory, error))?;
            let Some(mount) = mount_of(&mounts, &point) else { continue };
            if file_systems.walked.iter().any(|file_system| point.starts_with(&file_system.point)) {
                continue;
            }
            file_systems.walked.push(WalkedFileSystem { point, ..file_system(mount, Path::new("/")) });
        }
        for mount in &mounts {
            let below = file_systems.walked.iter().any(|file_system| {
                mount.point != file_system.point && mount.point.starts_with(&file_system.point)
            });
            if !below {
                continue;
            }
            match use_of(mount) {
                FileSystemUse::Network if !network => file_systems.network.push(mount.point.clone()),
                // Its files' device identifies it once the walk is there.
                FileSystemUse::Local | FileSystemUse::Network | FileSystemUse::Overlay => {
                    file_systems.walked.push(file_system(mount, Path::new("/")));
                }
                FileSystemUse::Nothing => {}
            }
            file_systems.excluded.insert(mount.point.clone());
        }
        Ok(file_systems)
    }

    fn choose(
        mounts: &[Mount],
        root: &Path,
        network: bool,
        visible_layer: impl Fn(&Mount) -> Option<PathBuf>,
    ) -> Self {
        let mut file_systems = Self::default();
        let mut widest: HashMap<u64, &Mount> = HashMap::new();
        let reach = |point: &Path| reach(root, point);
        for mount in mounts {
            file_systems.excluded.insert(reach(&mount.point));
            let wanted = match use_of(mount) {
                FileSystemUse::Local => true,
                FileSystemUse::Overlay => match visible_layer(mount) {
                    Some(layer) => {
                        file_systems.overlays.push((mount.dev, layer));
                        false
                    }
                    None => true,
                },
                FileSystemUse::Network => {
                    if !network && mount.kind != "autofs" {
                        file_systems.network.push(reach(&mount.point));
                    }
                    network
                }
                FileSystemUse::Nothing => false,
            };
            // A mount that is covered by another can't be reached; the last one at a point is on
            // top.
            if wanted && mounts.iter().rfind(|other| other.point == mount.point) == Some(mount) {
                let best = widest.entry(mount.dev).or_insert(mount);
                if best.root.components().count() > mount.root.components().count() {
                    *best = mount;
                }
            }
        }
        // In the order of the mounts. If only parts of a file system are mounted, each part that is
        // not within another one.
        for mount in mounts {
            let Some(best) = widest.get(&mount.dev) else { continue };
            let chosen = best.id == mount.id
                || (!mount.root.starts_with(&best.root)
                    && mounts.iter().rfind(|other| other.point == mount.point) == Some(mount)
                    && !file_systems
                        .walked
                        .iter()
                        .any(|file_system| file_system.point == reach(&mount.point)));
            if chosen {
                file_systems.walked.push(file_system(mount, root));
            }
        }
        file_systems
    }

    /// Returns the same selection as of now.
    pub(super) fn again(&self, proc: &ProcRoot, network: bool) -> pagekeeper_kernel::Result<Self> {
        if self.scoped {
            let points: Vec<PathBuf> =
                self.walked.iter().map(|file_system| file_system.point.clone()).collect();
            Self::of_directories(proc, &points, network)
        } else {
            Self::of_host(proc, network)
        }
    }

    /// Returns the mount points of file systems with files that are in `now` and not in `self`.
    pub(super) fn new_in(&self, now: &Self) -> Vec<PathBuf> {
        let known: HashSet<u64> = self.walked.iter().map(|file_system| file_system.traced).collect();
        let new = now.walked.iter().filter(|file_system| !known.contains(&file_system.traced));
        new.map(|file_system| file_system.point.clone()).collect()
    }

    /// Returns whether the walk enters a directory that it meets.
    pub(super) fn enters(&self, directory: &Path) -> bool {
        !self.excluded.contains(directory)
    }

    /// Returns whether a file of that name, on a device that is walked, belongs to the selection.
    pub(super) fn covers(&self, path: &Path) -> bool {
        !self.scoped || self.of_path(path).is_some()
    }

    /// Returns the index of the innermost file system that a path is in.
    pub(super) fn of_path(&self, path: &Path) -> Option<usize> {
        let inside =
            self.walked.iter().enumerate().filter(|(_, file_system)| path.starts_with(&file_system.point));
        inside.max_by_key(|(_, file_system)| file_system.point.as_os_str().len()).map(|(index, _)| index)
    }
}

fn file_system(mount: &Mount, root: &Path) -> WalkedFileSystem {
    WalkedFileSystem {
        point: reach(root, &mount.point),
        traced: mount.dev,
        kind: mount.kind.clone(),
        source: unescaped(&mount.source).into_owned(),
    }
}

/// Returns the innermost mount that a path is on.
fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let over = mounts.iter().enumerate().filter(|(_, mount)| path.starts_with(&mount.point));
    over.max_by_key(|(index, mount)| (mount.point.as_os_str().len(), *index)).map(|(_, mount)| mount)
}

fn reach(root: &Path, point: &Path) -> PathBuf {
    if root == Path::new("/") {
        return point.to_path_buf();
    }
    root.join(point.strip_prefix("/").unwrap_or(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, dev: u64, root: &str, point: &str, kind: &str) -> Mount {
        Mount {
            id,
            dev,
            root: root.into(),
            point: point.into(),
            kind: kind.into(),
            source: "/dev/x".into(),
            options: "upperdir=/layers/up".into(),
        }
    }

    fn points(file_systems: &FileSystems) -> Vec<&str> {
        file_systems.walked.iter().map(|file_system| file_system.point.to_str().unwrap()).collect()
    }

    #[test]
    fn each_file_system_is_walked_once_and_from_its_widest_mount() {
        let mounts = [
            mount(1, 8, "/", "/", "ext4"),
            mount(2, 9, "/sub", "/bind", "xfs"),
            mount(3, 9, "/", "/data", "xfs"),
            mount(4, 8, "/home", "/chroot/home", "ext4"),
            mount(5, 20, "/", "/proc", "proc"),
            mount(6, 21, "/", "/dev/shm", "tmpfs"),
        ];
        let file_systems = FileSystems::choose(&mounts, Path::new("/"), false, |_| None);
        assert_eq!(points(&file_systems), ["/", "/data"]);
        assert!(!file_systems.enters(Path::new("/data")) && !file_systems.enters(Path::new("/proc")));
        assert!(file_systems.enters(Path::new("/home")));
        assert_eq!(file_systems.of_path(Path::new("/data/x")), Some(1));
        assert_eq!(file_systems.of_path(Path::new("/database")), Some(0));
    }

    #[test]
    fn each_mounted_part_of_a_file_system_is_walked() {
        let mounts = [mount(1, 8, "/a", "/a", "ext4"), mount(2, 8, "/b", "/b", "ext4")];
        assert_eq!(points(&FileSystems::choose(&mounts, Path::new("/"), false, |_| None)), ["/a", "/b"]);
    }

    #[test]
    fn network_and_overlay_only_where_they_are_wanted() {
        let mounts = [
            mount(1, 8, "/", "/", "overlay"),
            mount(2, 9, "/", "/net", "nfs4"),
            mount(3, 10, "/", "/home/me", "fuse.sshfs"),
            mount(4, 11, "/", "/win", "fuseblk"),
        ];
        let file_systems = FileSystems::choose(&mounts, Path::new("/"), false, |_| Some("/layers".into()));
        assert_eq!(points(&file_systems), ["/win"]);
        assert_eq!(file_systems.network, [PathBuf::from("/net"), PathBuf::from("/home/me")]);
        let file_systems = FileSystems::choose(&mounts, Path::new("/"), true, |_| None);
        assert_eq!(points(&file_systems), ["/", "/net", "/home/me", "/win"]);
    }

    #[test]
    fn file_systems_mounted_later_are_new() {
        let mut mounts = vec![mount(1, 8, "/", "/", "ext4")];
        let choose = |mounts: &[Mount]| FileSystems::choose(mounts, Path::new("/"), false, |_| None);
        let file_systems = choose(&mounts);
        mounts.push(mount(2, 8, "/home", "/bind", "ext4"));
        mounts.push(mount(3, 20, "/", "/run", "tmpfs"));
        assert_eq!(file_systems.new_in(&choose(&mounts)), Vec::<PathBuf>::new());
        mounts.push(mount(4, 9, "/", "/data", "xfs"));
        assert_eq!(file_systems.new_in(&choose(&mounts)), [PathBuf::from("/data")]);
        let now = file_systems.again(&ProcRoot::default(), false).unwrap();
        assert!(!now.walked.is_empty() && now.excluded.contains(Path::new("/proc")));
    }

    #[test]
    fn another_namespace_is_reached_through_its_root() {
        let mounts = [mount(1, 8, "/", "/", "ext4"), mount(2, 9, "/", "/data", "xfs")];
        let file_systems = FileSystems::choose(&mounts, Path::new("/proc/7/root"), false, |_| None);
        assert_eq!(points(&file_systems), ["/proc/7/root/", "/proc/7/root/data"]);
    }

    #[test]
    fn an_overlay_whose_layers_are_named_relatively_is_no_place_of_its_own() {
        let dir = crate::testing::disk_dir();
        for name in ["low", "up", "work", "deep/merged"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let point = dir.path().canonicalize().unwrap().join("deep/merged");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "overlay", "-o", "lowerdir=low,upperdir=up,workdir=work", "overlay"]);
        if !mount.arg(&point).current_dir(dir.path()).status().is_ok_and(|status| status.success()) {
            crate::testing::skip("no overlay can be mounted here");
            return;
        }
        let dev = Inode::of(&rustix::fs::stat(&point).unwrap()).dev;
        let options = ProcRoot::default().own_mounts().unwrap().into_iter().find(|mount| mount.dev == dev);
        let file_systems = FileSystems::of_host(&ProcRoot::default(), false);
        assert!(std::process::Command::new("umount").arg(&point).status().unwrap().success());
        let (file_systems, options) = (file_systems.unwrap(), options.unwrap());
        if options.option("upperdir").is_none_or(|upper| upper != "up") {
            crate::testing::skip("mount(8) made the paths absolute");
        }
        assert!(!file_systems.walked.iter().any(|file_system| file_system.traced == dev), "{options:?}");
        let layer = point.parent().and_then(Path::parent).unwrap().join("up");
        assert!(file_systems.overlays.contains(&(dev, layer)), "{:?}", file_systems.overlays);
    }

    #[test]
    fn the_host_has_a_place() {
        let file_systems = FileSystems::of_host(&ProcRoot::default(), false).unwrap();
        assert!(!file_systems.walked.is_empty());
        let here = std::env::current_dir().unwrap();
        let file_systems =
            FileSystems::of_directories(&ProcRoot::default(), std::slice::from_ref(&here), false).unwrap();
        assert_eq!(file_systems.walked[0].point, here.canonicalize().unwrap());
        assert!(file_systems.covers(&here.join("x")) && !file_systems.covers(Path::new("/x")));
    }
}
