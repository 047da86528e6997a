//! Where files that can have pages are: the mounts to walk, each file system once.
//!
//! Invariants: a file system that is mounted several times is walked from its widest mount; one without stored data,
//! tmpfs (whose pages `meminfo` counts as shmem) and, unless asked for, a network file system (whose server might never
//! answer) is not entered; nor is an overlay whose layers are walked, since its pages are theirs.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::{Mount, ProcRoot};

/// A file system with files to walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the walk begins, as this process can open it.
    pub(super) point: PathBuf,
    /// The device by which tracing names it.
    pub(super) traced: u64,
    /// Its type: `ext4`.
    pub(super) kind: String,
    /// Its device or other source: `/dev/vda`.
    pub(super) source: String,
}

/// What to walk, and what to pass by.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    /// Each file system once.
    pub(super) walked: Vec<Place>,
    /// Directories that are not entered on the way: other mounts.
    pub(super) passed_by: HashSet<PathBuf>,
    /// Points of network file systems that were left out.
    pub(super) network: Vec<PathBuf>,
    /// Only some directories are walked, not whole file systems.
    pub(super) scoped: bool,
    /// Overlays whose layers are walked: their device, and a layer.
    pub(super) overlays: Vec<(u64, PathBuf)>,
}

/// What a file system is good for here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// Its files are on this machine.
    Local,
    /// Layers below hold its pages.
    Overlay,
    /// A server, or a program, answers for it.
    Network,
    /// It has no files with pages of their own, or only such as `meminfo` counts as shmem.
    Nothing,
}

fn worth(kind: &str) -> Worth {
    match kind {
        "overlay" => Worth::Overlay,
        "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" | "ceph" | "9p" | "afs" | "lustre" | "gpfs" | "beegfs"
        | "virtiofs" | "fuse" | "autofs" => Worth::Network,
        "fuseblk" => Worth::Local,
        _ if kind.starts_with("fuse.") => Worth::Network,
        "proc" | "sysfs" | "cgroup" | "cgroup2" | "devpts" | "devtmpfs" | "tmpfs" | "debugfs" | "tracefs"
        | "securityfs" | "pstore" | "bpf" | "mqueue" | "configfs" | "fusectl" | "binfmt_misc"
        | "hugetlbfs" | "rpc_pipefs" | "efivarfs" | "nsfs" | "selinuxfs" | "nfsd" | "resctrl" => {
            Worth::Nothing
        }
        _ => Worth::Local,
    }
}

/// A layer of an overlay that can be seen from here, where it is walked itself: the upper one if there is one.
fn seen_layer(mount: &Mount) -> Option<PathBuf> {
    let option = |name: &str| mount.options.split(',').find_map(|option| option.strip_prefix(name));
    let (upper, work) = (option("upperdir="), option("workdir="));
    let lowers: Vec<&str> = option("lowerdir=").into_iter().flat_map(|dirs| dirs.split(':')).collect();
    let layer = Path::new(upper.or(lowers.first().copied())?);
    if layer.is_absolute() {
        return layer.is_dir().then(|| layer.to_path_buf());
    }
    let relative: Vec<&Path> = upper.into_iter().chain(work).chain(lowers).map(Path::new).collect();
    let base = mount.point.ancestors().find(|base| is_base_of(mount, base, &relative))?;
    Some(base.join(layer))
}

/// Whether the layers of an overlay are named relative to this directory, as container runtimes do where there are many: all
/// are there, and its root shows the number of one of them.
fn is_base_of(mount: &Mount, base: &Path, layers: &[&Path]) -> bool {
    let Ok(root) = rustix::fs::lstat(&mount.point).map(|stat| Inode::of(&stat)) else { return false };
    let layers: Vec<_> = layers.iter().map(|layer| base.join(layer)).collect();
    root.dev == mount.dev
        && layers.iter().all(|layer| layer.is_dir())
        && layers.iter().any(|layer| rustix::fs::stat(layer).is_ok_and(|stat| stat.st_ino == root.ino))
}

impl Places {
    /// The file systems of the whole host: those that this process sees mounted, and those that only processes in other
    /// mount namespaces do, through `/proc/PID/root`.
    pub(super) fn of_host(proc: &ProcRoot, network: bool) -> pagekeeper_kernel::Result<Self> {
        let own = proc.own_mounts()?;
        let mut places = Self::choose(&own, Path::new("/"), network, seen_layer);
        let mut namespaces: HashSet<u64> = proc.mount_namespace(std::process::id()).into_iter().collect();
        for pid in proc.pids()? {
            let Ok(namespace) = proc.mount_namespace(pid) else { continue };
            if !namespaces.insert(namespace) {
                continue;
            }
            let Ok(mounts) = proc.mounts(pid) else { continue };
            let theirs = Self::choose(&mounts, &proc.root(pid), network, seen_layer);
            let mut known: HashSet<u64> = places.walked.iter().map(|place| place.traced).collect();
            // Their layers can be seen from here, if not from there.
            known.extend(places.overlays.iter().map(|(dev, _)| *dev));
            places.walked.extend(theirs.walked.into_iter().filter(|place| !known.contains(&place.traced)));
            places.passed_by.extend(theirs.passed_by);
            places.overlays.extend(theirs.overlays);
        }
        Ok(places)
    }

    /// The file systems of some directories, and of what is mounted below them.
    pub(super) fn of_directories(
        proc: &ProcRoot,
        directories: &[PathBuf],
        network: bool,
    ) -> pagekeeper_kernel::Result<Self> {
        let mounts = proc.own_mounts()?;
        let mut places = Self { scoped: true, ..Self::default() };
        for directory in directories {
            let point = std::fs::canonicalize(directory)
                .map_err(|error| pagekeeper_kernel::Error::call("realpath", directory, error))?;
            let Some(mount) = mount_of(&mounts, &point) else { continue };
            if places.walked.iter().any(|place| point.starts_with(&place.point)) {
                continue;
            }
            places.walked.push(Place { point, ..place(mount, Path::new("/")) });
        }
        for mount in &mounts {
            let below = places
                .walked
                .iter()
                .any(|place| mount.point != place.point && mount.point.starts_with(&place.point));
            if !below {
                continue;
            }
            match worth(&mount.kind) {
                Worth::Network if !network => places.network.push(mount.point.clone()),
                // Found by its files' device once the walk is there.
                Worth::Local | Worth::Network | Worth::Overlay => {
                    places.walked.push(place(mount, Path::new("/")));
                }
                Worth::Nothing => {}
            }
            places.passed_by.insert(mount.point.clone());
        }
        Ok(places)
    }

    fn choose(
        mounts: &[Mount],
        root: &Path,
        network: bool,
        seen_layer: impl Fn(&Mount) -> Option<PathBuf>,
    ) -> Self {
        let mut places = Self::default();
        let mut widest: HashMap<u64, &Mount> = HashMap::new();
        let reach = |point: &Path| reach(root, point);
        for mount in mounts {
            places.passed_by.insert(reach(&mount.point));
            let wanted = match worth(&mount.kind) {
                Worth::Local => true,
                Worth::Overlay => match seen_layer(mount) {
                    Some(layer) => {
                        places.overlays.push((mount.dev, layer));
                        false
                    }
                    None => true,
                },
                Worth::Network => {
                    if !network && mount.kind != "autofs" {
                        places.network.push(reach(&mount.point));
                    }
                    network
                }
                Worth::Nothing => false,
            };
            // What is mounted over can't be reached; the last one at a point is on top.
            if wanted && mounts.iter().rfind(|other| other.point == mount.point) == Some(mount) {
                let best = widest.entry(mount.dev).or_insert(mount);
                if best.root.components().count() > mount.root.components().count() {
                    *best = mount;
                }
            }
        }
        // In the order of the mounts; of a file system of which only parts are mounted, each part that is not in another.
        for mount in mounts {
            let Some(best) = widest.get(&mount.dev) else { continue };
            let chosen = best.id == mount.id
                || (!mount.root.starts_with(&best.root)
                    && mounts.iter().rfind(|other| other.point == mount.point) == Some(mount)
                    && !places.walked.iter().any(|place| place.point == reach(&mount.point)));
            if chosen {
                places.walked.push(place(mount, root));
            }
        }
        places
    }

    /// The same as they are now.
    pub(super) fn again(&self, proc: &ProcRoot, network: bool) -> pagekeeper_kernel::Result<Self> {
        if self.scoped {
            let points: Vec<PathBuf> = self.walked.iter().map(|place| place.point.clone()).collect();
            Self::of_directories(proc, &points, network)
        } else {
            Self::of_host(proc, network)
        }
    }

    /// Where file systems with files are mounted now that were not here.
    pub(super) fn new_in(&self, now: &Self) -> Vec<PathBuf> {
        let known: HashSet<u64> = self.walked.iter().map(|place| place.traced).collect();
        let new = now.walked.iter().filter(|place| !known.contains(&place.traced));
        new.map(|place| place.point.clone()).collect()
    }

    /// Whether a directory met on the way is entered.
    pub(super) fn enters(&self, directory: &Path) -> bool {
        !self.passed_by.contains(directory)
    }

    /// Whether a file of that name, on a device that is walked, belongs here.
    pub(super) fn covers(&self, path: &Path) -> bool {
        !self.scoped || self.of_path(path).is_some()
    }

    /// The index of the place a path is in: the innermost.
    pub(super) fn of_path(&self, path: &Path) -> Option<usize> {
        let inside = self.walked.iter().enumerate().filter(|(_, place)| path.starts_with(&place.point));
        inside.max_by_key(|(_, place)| place.point.as_os_str().len()).map(|(index, _)| index)
    }
}

fn place(mount: &Mount, root: &Path) -> Place {
    Place {
        point: reach(root, &mount.point),
        traced: mount.dev,
        kind: mount.kind.clone(),
        source: mount.source.to_string_lossy().into_owned(),
    }
}

/// The innermost mount that a path is on.
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

    fn points(places: &Places) -> Vec<&str> {
        places.walked.iter().map(|place| place.point.to_str().unwrap()).collect()
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
        let places = Places::choose(&mounts, Path::new("/"), false, |_| None);
        assert_eq!(points(&places), ["/", "/data"]);
        assert!(!places.enters(Path::new("/data")) && !places.enters(Path::new("/proc")));
        assert!(places.enters(Path::new("/home")));
        assert_eq!(places.of_path(Path::new("/data/x")), Some(1));
        assert_eq!(places.of_path(Path::new("/database")), Some(0));
    }

    #[test]
    fn of_a_file_system_mounted_in_parts_each_part_is_walked() {
        let mounts = [mount(1, 8, "/a", "/a", "ext4"), mount(2, 8, "/b", "/b", "ext4")];
        assert_eq!(points(&Places::choose(&mounts, Path::new("/"), false, |_| None)), ["/a", "/b"]);
    }

    #[test]
    fn network_and_overlay_only_where_they_are_wanted() {
        let mounts = [
            mount(1, 8, "/", "/", "overlay"),
            mount(2, 9, "/", "/net", "nfs4"),
            mount(3, 10, "/", "/home/me", "fuse.sshfs"),
            mount(4, 11, "/", "/win", "fuseblk"),
        ];
        let places = Places::choose(&mounts, Path::new("/"), false, |_| Some("/layers".into()));
        assert_eq!(points(&places), ["/win"]);
        assert_eq!(places.network, [PathBuf::from("/net"), PathBuf::from("/home/me")]);
        let places = Places::choose(&mounts, Path::new("/"), true, |_| None);
        assert_eq!(points(&places), ["/", "/net", "/home/me", "/win"]);
    }

    #[test]
    fn what_is_mounted_later_is_new() {
        let mut mounts = vec![mount(1, 8, "/", "/", "ext4")];
        let choose = |mounts: &[Mount]| Places::choose(mounts, Path::new("/"), false, |_| None);
        let places = choose(&mounts);
        mounts.push(mount(2, 8, "/home", "/bind", "ext4"));
        mounts.push(mount(3, 20, "/", "/run", "tmpfs"));
        assert_eq!(places.new_in(&choose(&mounts)), Vec::<PathBuf>::new());
        mounts.push(mount(4, 9, "/", "/data", "xfs"));
        assert_eq!(places.new_in(&choose(&mounts)), [PathBuf::from("/data")]);
        let now = places.again(&ProcRoot::default(), false).unwrap();
        assert!(!now.walked.is_empty() && now.passed_by.contains(Path::new("/proc")));
    }

    #[test]
    fn another_namespace_is_reached_through_its_root() {
        let mounts = [mount(1, 8, "/", "/", "ext4"), mount(2, 9, "/", "/data", "xfs")];
        let places = Places::choose(&mounts, Path::new("/proc/7/root"), false, |_| None);
        assert_eq!(points(&places), ["/proc/7/root/", "/proc/7/root/data"]);
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
        let places = Places::of_host(&ProcRoot::default(), false);
        assert!(std::process::Command::new("umount").arg(&point).status().unwrap().success());
        let (places, options) = (places.unwrap(), options.unwrap().options);
        if !options.contains("upperdir=up,") {
            crate::testing::skip("mount(8) made the paths absolute");
        }
        assert!(!places.walked.iter().any(|place| place.traced == dev), "{options}");
        let layer = point.parent().and_then(Path::parent).unwrap().join("up");
        assert!(places.overlays.contains(&(dev, layer)), "{:?}", places.overlays);
    }

    #[test]
    fn the_host_has_a_place() {
        let places = Places::of_host(&ProcRoot::default(), false).unwrap();
        assert!(!places.walked.is_empty());
        let here = std::env::current_dir().unwrap();
        let places =
            Places::of_directories(&ProcRoot::default(), std::slice::from_ref(&here), false).unwrap();
        assert_eq!(places.walked[0].point, here.canonicalize().unwrap());
        assert!(places.covers(&here.join("x")) && !places.covers(Path::new("/x")));
    }
}
